"""PyTorch's rules in corner cases: unusual shapes, empty inputs, values outside of a formula's domain."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.parity.helpers import compare, random, same, torch
from tinsmith import Tensor, dtypes, nn

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


@pytest.mark.parametrize("shape", [(0, 0), (0, 3), (3, 0), (2, 0, 3), (2, 3, 0), (0, 3, 2)], ids=str)
def test_factors_of_empty_matrices(shape: tuple[int, ...]) -> None:
    x = np.zeros(shape, np.float32)
    for ours, theirs in ((Tensor.qr, torch.linalg.qr), (Tensor.svd, torch.linalg.svd),
                         (lambda t: t.qr("complete"), lambda t: torch.linalg.qr(t, "complete")),
                         (lambda t: t.svd(False), lambda t: torch.linalg.svd(t, False)),
                         (lambda t: (t.pinv(), t.svdvals(), t.matrix_rank()),
                          lambda t: (torch.linalg.pinv(t), torch.linalg.svdvals(t), torch.linalg.matrix_rank(t)))):
        for got, want in zip(ours(Tensor(x)), theirs(torch.tensor(x)), strict=True):
            assert got.shape == tuple(want.shape) and np.array_equal(got.numpy(), want.numpy())


@pytest.mark.parametrize("arguments", [{"rtol": 0.5}, {"atol": 1.0}, {"atol": 0.0}, {"atol": 1.0, "rtol": 0.9}],
                         ids=str)
def test_tolerances_of_pseudo_inverses(arguments: dict[str, float]) -> None:
    x = random(3, 4, 4)
    compare(lambda t: t.pinv(**arguments), lambda t: torch.linalg.pinv(t, **arguments), x, gradients=False)
    compare(lambda t: t.pinv(hermitian=True, **arguments), lambda t: torch.linalg.pinv(t, hermitian=True, **arguments),
            x, gradients=False)
    each = {k: np.full(3, v, np.float32) for k, v in arguments.items()}
    got = Tensor(x).matrix_rank(**{k: Tensor(v) for k, v in each.items()})
    assert np.array_equal(got.numpy(), torch.linalg.matrix_rank(
        torch.tensor(x), **{k: torch.tensor(v) for k, v in each.items()}).numpy())


def test_the_nuclear_norm() -> None:
    compare(lambda x: x.norm("nuc"), lambda x: x.norm("nuc"), random(3, 4))
    compare(lambda x: x.norm("nuc", (0, 2), True), lambda x: x.norm("nuc", (0, 2), True), random(3, 2, 4))
    compare(lambda x: x.norm("fro"), lambda x: x.norm("fro"), random(3, 2, 4))
    for t in (Tensor([1.0]), Tensor.ones(2, 2, 2)):
        with pytest.raises(RuntimeError, match="p='nuc'"):
            t.norm("nuc")


def test_convolutions_without_a_batch() -> None:
    x, w = random(3, 6, 6), random(4, 3, 3, 3, seed=1)
    compare(lambda x, w: x.conv2d(w, padding=1), lambda x, w: F.conv2d(x, w, padding=1), x, w)
    compare(lambda x, w: x.conv_transpose2d(w, stride=2), lambda x, w: F.conv_transpose2d(x, w, stride=2),
            x, random(3, 4, 3, 3, seed=1))
    compare(lambda x, w: x.conv2d(w), lambda x, w: F.conv1d(x, w), random(3, 6), random(4, 3, 3, seed=1))
    for layer, theirs in ((nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular"), torch.nn.Conv2d),
                          (nn.ConvTranspose2d(3, 4, 3), torch.nn.ConvTranspose2d)):
        assert layer.weight.shape and layer(Tensor(x)).shape == layer(Tensor(x[None])).shape[1:]
        np.testing.assert_allclose(layer(Tensor(x)).numpy(), layer(Tensor(x[None])).numpy()[0], rtol=1e-5, atol=1e-6)
        assert theirs is not None


def test_empty_lines_in_cat() -> None:
    x, none = random(2, 3), np.zeros(0, np.float32)
    for dim in (0, 1, -1):
        compare(lambda a, b, dim=dim: Tensor.cat(a, b, a, dim=dim), lambda a, b, dim=dim: torch.cat([a, b, a], dim),
                none, x)
    assert Tensor.cat(Tensor([]), Tensor([[1, 2]])).dtype is dtypes.float32
    assert Tensor.cat(Tensor([]), Tensor([])).shape == (0,) and Tensor.cat([Tensor(x), Tensor(x)], 1).shape == (2, 6)
    with pytest.raises(RuntimeError, match="numbers of axes differ"):
        Tensor.cat(Tensor(x), Tensor.zeros(0, 3, 3))


def test_rms_norm_with_weights() -> None:
    x, w = random(2, 3, 4), random(3, 4, seed=1)
    compare(lambda x, w: x.rms_norm((3, 4), w), lambda x, w: F.rms_norm(x, (3, 4), w), x, w)
    compare(lambda x, w: x.rms_norm((3, 4), w, 0.1), lambda x, w: F.rms_norm(x, (3, 4), w, 0.1), x, w)
    compare(lambda x: x.rms_norm((4,), eps=0.1), lambda x: F.rms_norm(x, (4,), eps=0.1), x)
    np.testing.assert_allclose(Tensor(x).rms_norm((1, 2), 0.1).numpy(),
                               Tensor(x).rms_norm(eps=0.1, axis=(1, 2)).numpy())
    with pytest.raises(RuntimeError, match="too many"):
        Tensor(x).rms_norm((4,), Tensor(w), 0.1, 3)


def test_further_positional_arguments() -> None:
    x, y = random(3, 2), random(4, 2, seed=1)
    compare(lambda x, y: x.cdist(y, 1.0, "use_mm_for_euclid_dist"), lambda x, y: torch.cdist(x, y, 1.0), x, y)
    t, square = Tensor(x), Tensor(random(3, 3))
    assert len(square.lu(True, False)) == 3
    with pytest.raises(RuntimeError, match="pivot=False"):
        square.lu(False)
    assert t.to("CPU", "float64", False, True).dtype is dtypes.float64
    assert t.to(dtypes.float64, False, True).dtype is dtypes.float64
    assert t.to(Tensor([1]), True).dtype is dtypes.int32
    copy = t.to("CPU", None, False, True)
    copy[0] = 0
    assert t.to("CPU") is t and np.array_equal(t.numpy(), x)
    for kind in ("float32", "int32"):
        got, want = Tensor.linspace(4.3, -3, 50, dtype=kind), torch.linspace(4.3, -3, 50, dtype=getattr(torch, kind))
        np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-6, atol=1e-6)
    assert Tensor.linspace(Tensor(0.0), Tensor(1.0), 3).tolist() == [0.0, 0.5, 1.0]


def test_sizes_of_selections() -> None:
    none = Tensor([], dtype=dtypes.bool)
    assert Tensor([]).masked_select(none, size=2, fill_value=1).tolist() == [1.0, 1.0]
    assert Tensor([]).nonzero(size=2, fill_value=5).tolist() == [[5], [5]]
    assert Tensor([1.0, 2.0]).masked_select(Tensor([True, True]), size=0).shape == (0,)
    assert Tensor(3.0).nonzero(size=2).shape == (2, 0)


@pytest.mark.parametrize("seed", [np.array([3]), np.int64(3), Tensor([3]), Tensor(3), np.array([[3]])], ids=repr)
def test_seeds_of_one_element(seed: Any) -> None:
    Tensor.manual_seed(3)
    want = Tensor.rand(3).tolist()
    Tensor.manual_seed(seed)
    assert Tensor.rand(3).tolist() == want
    for bad in (np.array([3, 4]), Tensor([3.5]), None):
        with pytest.raises(TypeError, match="seed must be an integer"):
            Tensor.manual_seed(bad)


def test_deviations_are_not_negative() -> None:
    for f in (lambda: Tensor.normal(3, std=-1), lambda: Tensor.zeros(3).normal_(0, -1)):
        with pytest.raises(RuntimeError, match="std is -1"):
            f()


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "NAdam", "RAdam", "LARS", "Muon"])
def test_options_of_optimizers_are_not_negative(name: str) -> None:
    kind = getattr(nn.optim, name)
    options = ["weight_decay"] + ["momentum"] * (name in ("SGD", "RMSprop", "LARS", "Muon"))
    for option in options:
        with pytest.raises(ValueError, match=f"{option} is -1"):
            kind([Tensor.ones(2, 2)], lr=0.1, **{option: -1})
