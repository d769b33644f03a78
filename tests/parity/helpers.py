"""Comparison of the same computation in Tinsmith and PyTorch: values and gradients."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the parity extra (torch==2.13.0) is not installed")

from tinsmith import Tensor  # noqa: E402

SPECIAL = np.array([0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 1e-8, -1e-8, 80.0, -80.0, 1e4, -1e4, np.inf, -np.inf, np.nan],
                   np.float32)


def random(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def compare(ours: Callable[..., Tensor], theirs: Callable[..., Any], *arrays: Any, gradients: bool = True,
            rtol: float = 1e-4, atol: float = 1e-5) -> None:
    """Check equal values, and equal gradients of a weighted sum for float32 inputs (others get no gradient)."""
    mine = [Tensor(a) for a in arrays]
    other = [torch.tensor(a, requires_grad=gradients and a.dtype.kind == "f") for a in arrays]
    out, expected = ours(*mine), theirs(*other)
    assert tuple(out.shape) == tuple(expected.shape)
    np.testing.assert_allclose(out.numpy(), expected.detach().numpy(), rtol=rtol, atol=atol)
    if not gradients:
        return
    weights = random(*expected.shape, seed=9)
    pairs = [(m, t) for m, t in zip(mine, other) if t.requires_grad]
    (expected * torch.tensor(weights)).sum().backward()
    got = (out * Tensor(weights)).sum().gradient(*(m for m, _ in pairs))
    for g, (_, t) in zip(got, pairs):
        np.testing.assert_allclose(g.numpy(), t.grad.numpy(), rtol=rtol, atol=atol)


def parts(value: Any) -> list[Any]:
    return [p for v in value for p in parts(v)] if isinstance(value, (tuple, list)) else [value]


def same(
    ours: Callable[..., Any],
    theirs: Callable[..., Any],
    *arrays: Any,
    rtol: float = 1e-4,
    atol: float = 1e-5,
    gradients: bool = True,
) -> None:
    """Check equal values and shapes of all results, and equal gradients of a weighted sum of the float ones."""
    mine = [Tensor(a) for a in arrays]
    other = [torch.tensor(a) for a in arrays]
    for t in other:
        t.requires_grad_(gradients and t.dtype.is_floating_point)
    found, wanted = parts(ours(*mine)), parts(theirs(*other))
    assert len(found) == len(wanted)
    total, goal = None, None
    for n, (got, want) in enumerate(zip(found, wanted)):
        if not hasattr(want, "shape"):
            assert got == want
            continue
        assert tuple(got.shape) == tuple(want.shape)
        assert got.dtype.is_float == want.dtype.is_floating_point and got.dtype.is_bool == (want.dtype == torch.bool)
        np.testing.assert_allclose(got.numpy().astype(np.float64), want.detach().double().numpy(), rtol=rtol, atol=atol)
        if gradients and want.requires_grad:
            weights = random(*want.shape, seed=n + 5).astype(want.detach().numpy().dtype)
            a, b = (got * Tensor(weights, requires_grad=False)).sum(), (want * torch.tensor(weights)).sum()
            total, goal = (a, b) if total is None else (total + a, goal + b)
    if total is None:
        return
    goal.backward()
    pairs = [(m, t) for m, t in zip(mine, other) if t.requires_grad]
    for g, (_, t) in zip(total.gradient(*(m for m, _ in pairs)), pairs):
        want = np.zeros(t.shape) if t.grad is None else t.grad.numpy()
        np.testing.assert_allclose(g.numpy(), want, rtol=10 * rtol, atol=10 * atol)


def table(rows: dict[str, Sequence[Any]]) -> Any:
    """Parametrize a test over named rows."""
    return pytest.mark.parametrize("row", rows.values(), ids=rows.keys())
