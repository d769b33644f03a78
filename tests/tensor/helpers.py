"""Helpers for tests of ``Tensor``: inputs with special values, tolerances, numerical gradients."""
from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from ml_dtypes import bfloat16

from tinsmith import Tensor, dtypes
from tinsmith.core.dtypes import DType

SHAPES = [(), (0,), (3,), (2, 3), (4, 1, 5)]
FLOATS = list(dtypes.floats)
INTS = list(dtypes.ints)
RTOL = {dtypes.float16: 2e-3, dtypes.bfloat16: 1.6e-2, dtypes.float32: 3e-6, dtypes.float64: 1e-12}


def values(shape: Sequence[int], dtype: DType, low: float = -4, high: float = 4, seed: int = 0) -> np.ndarray:
    """Return random values of ``dtype``; integers from a small range, unsigned ones not negative."""
    rng = np.random.default_rng(seed)
    if dtype.is_bool:
        return rng.integers(0, 2, shape).astype(np.bool_)
    if dtype.is_int:
        return rng.integers(0 if dtype.is_unsigned else int(np.floor(low)), int(np.ceil(high)) + 1,
                            shape).astype(dtype.numpy)
    return np.asarray(rng.uniform(low, high, shape)).astype(dtype.numpy)


def special(dtype: DType) -> np.ndarray:
    """Return special values: those that often reveal errors."""
    if dtype.is_float:
        tiny = {dtypes.float16: 6e-5, dtypes.bfloat16: 1e-30}.get(dtype, 1e-30)
        return np.array([0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 100.0, -100.0, tiny, -tiny, np.inf, -np.inf,
                         np.nan]).astype(dtype.numpy)
    if dtype.is_bool:
        return np.array([False, True])
    return np.array([int(dtype.min), int(dtype.max), 0, 1, 2, int(dtype.max) // 2], dtype.numpy)


def wide(x: np.ndarray) -> np.ndarray:
    """Convert 16-bit floats to float32, in which NumPy computes accurately."""
    return x.astype(np.float32) if x.dtype in (np.float16, bfloat16) else x


def check(got: Tensor, want: np.ndarray, dtype: DType | None = None, rtol: float | None = None,
          atol: float = 0) -> None:
    """Check shape, dtype (if given) and values, NaN included."""
    want = np.asarray(want)
    assert got.shape == want.shape
    if dtype is not None:
        assert got.dtype is dtype, f"{got.dtype} is not {dtype}"
    values = got.numpy()
    assert values.shape == want.shape and values.dtype == got.dtype.numpy
    if not got.dtype.is_float:
        np.testing.assert_array_equal(values, want)
        return
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = want.astype(got.dtype.numpy).astype(np.float64)
    tolerance = RTOL[got.dtype] if rtol is None else rtol
    np.testing.assert_allclose(values.astype(np.float64), rounded, rtol=tolerance, atol=atol)


def check_gradient(f: Callable[..., Tensor], *inputs: np.ndarray, rtol: float = 1e-5, atol: float = 1e-7) -> None:
    """Check ``backward`` of a weighted sum of ``f`` against central differences, in float64."""
    tensors = [Tensor(x, dtype=dtypes.float64) for x in inputs]
    out = f(*tensors)
    weights = np.random.default_rng(5).uniform(0.5, 1.5, out.shape)
    (out * Tensor(weights, dtype=dtypes.float64, requires_grad=False)).sum().backward()
    for n, x in enumerate(inputs):
        grad = tensors[n].grad
        got = np.zeros(x.shape) if grad is None else grad.numpy()
        np.testing.assert_allclose(got, _numeric(f, inputs, n, weights), rtol=rtol, atol=atol)


def _numeric(f: Callable[..., Tensor], inputs: Sequence[np.ndarray], n: int, weights: np.ndarray) -> np.ndarray:
    """Return central differences; one program computes all displaced inputs."""
    step = 1e-6
    x = inputs[n]
    results = []
    for i in np.ndindex(x.shape):
        for sign in (1, -1):
            moved = x.copy()
            moved[i] += sign * step
            results.append(f(*(Tensor(moved if m == n else v, dtype=dtypes.float64, requires_grad=False)
                               for m, v in enumerate(inputs))))
    total = [float((r.numpy() * weights).sum()) for r in results]
    return ((np.array(total[0::2]) - np.array(total[1::2])) / (2 * step)).reshape(x.shape)
