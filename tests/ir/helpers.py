"""Helpers for tests of ir/: parameters, reverse mode over the op table's gradients, finite differences."""
from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tinsmith.core.dtypes import DType, dtypes
from tinsmith.ir import Ops, UOp
from tinsmith.ir.interpret.tensor import evaluate
from tinsmith.ir.uop import toposort


def param(number: int, shape: tuple, dtype: DType = dtypes.float64) -> UOp:
    return UOp(Ops.PARAM, dtype, (), (number, shape))


def gradients(root: UOp, seed: UOp, wrt: list[UOp]) -> list[UOp]:
    """Return the gradients of sum(root * seed) as graphs, by reverse mode."""
    found: dict[UOp, UOp] = {root: seed}
    for n in reversed(toposort(root)):
        if n not in found or not n.src or n.op.gradient is None:
            continue
        for s, g in zip(n.src, n.op.gradient(n, found[n])):
            if g is not None:
                found[s] = found[s] + g if s in found else g
    return [found.get(w, w.const_like(0)) for w in wrt]


def numeric(f: Callable[[np.ndarray], float], x: np.ndarray, step: float = 1e-5) -> np.ndarray:
    """Return central differences of a scalar function."""
    out = np.zeros_like(x)
    for i in np.ndindex(x.shape):
        low, high = x.copy(), x.copy()
        low[i] -= step
        high[i] += step
        out[i] = (f(high) - f(low)) / (2 * step)
    return out


def check_gradient(root: UOp, inputs: dict[UOp, np.ndarray], tolerance: float = 1e-6) -> None:
    """Check the gradients of ``root`` by its float inputs against finite differences."""
    wrt = [x for x in inputs if x.dtype is dtypes.float64]
    seed = param(99, root.shape)
    weights = np.random.default_rng(1).standard_normal(root.shape)
    exact = evaluate(gradients(root, seed, wrt), {**inputs, seed: weights})
    for x, got in zip(wrt, exact):
        want = numeric(lambda v, x=x: float((evaluate([root], {**inputs, x: v})[0] * weights).sum()), inputs[x])
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=tolerance)
