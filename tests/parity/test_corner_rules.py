"""PyTorch's rules in corners: other shapes, empty work, values outside of what a formula was made for."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.parity.helpers import compare, random, same, torch
from tinsmith import Tensor

F = torch.nn.functional


def test_one_variance_for_each_row() -> None:
    var = np.array([0.5, 1.0, 2.0], np.float32)
    for v in (var, var[:, None], np.broadcast_to(var[:, None], (3, 4)).copy()):
        compare(lambda x, y, v: x.gaussian_nll_loss(y, v), lambda x, y, v: F.gaussian_nll_loss(x, y, v),
                random(3, 4), random(3, 4, seed=1), v)


def test_no_difference_takes_nothing_along() -> None:
    same(lambda x, y: x.diff(n=0, append=y), lambda x, y: x.diff(n=0, append=y), random(3), random(2, seed=1),
         gradients=False)


@pytest.mark.parametrize("n", range(5))
def test_polygamma_below_zero(n: int) -> None:
    x = np.array([-0.5, -0.1, -1.3, -2.7, -7.2, -20.5, 0.3, 1.0, 5.0], np.float64)
    got, want = Tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
    ours, theirs = got.polygamma(n), torch.polygamma(n, want)
    np.testing.assert_allclose(ours.numpy(), theirs.detach().numpy(), rtol=1e-7)
    ours.sum().backward()
    theirs.sum().backward()
    assert got.grad is not None
    np.testing.assert_allclose(got.grad.numpy(), want.grad.numpy(), rtol=1e-7)


@pytest.mark.parametrize("q", [0.5, [0.25, 0.5]], ids=str)
@pytest.mark.parametrize("dim", [None, 0], ids=str)
@pytest.mark.parametrize("keepdim", [True, False], ids=str)
def test_quantiles_of_one_number(q: Any, dim: int | None, keepdim: bool) -> None:
    for name in ("quantile", "nanquantile"):
        ours = getattr(Tensor(3.0), name)(Tensor(q) if isinstance(q, list) else q, dim, keepdim)
        theirs = getattr(torch.tensor(3.0), name)(torch.tensor(q), dim, keepdim)
        assert ours.shape == tuple(theirs.shape) and np.array_equal(ours.numpy(), theirs.numpy())


def test_hinge_embedding_loss_of_any_target() -> None:
    y = np.array([1, -1, 0, 2], np.float32)
    compare(lambda x: x.hinge_embedding_loss(Tensor(y)), lambda x: F.hinge_embedding_loss(x, torch.tensor(y)),
            np.array([0.5, 0.3, 0.2, 3.0], np.float32))


@pytest.mark.parametrize("arguments", [(3, 2, 1, True), (3, 2, 1, False, False), (3, 2, 0), (3, 2, 1, True, True, 5)],
                         ids=str)
def test_positional_arguments_of_a_mean_of_windows(arguments: tuple[Any, ...]) -> None:
    compare(lambda x: x.avg_pool2d(*arguments), lambda x: F.avg_pool2d(x, *arguments), random(1, 2, 8, 8))
