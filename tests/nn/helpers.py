"""Numerical derivatives and NumPy references for the tests of nn."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tinsmith import Tensor

Array = np.ndarray[Any, Any]


def arrays(*shapes: tuple[int, ...], seed: int = 0) -> list[Array]:
    """Normal float64 arrays."""
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(s) for s in shapes]


def check_gradient(f: Callable[..., Tensor], *values: Array, order: int = 1, tolerance: float = 1e-6) -> None:
    """Derivatives of ``f`` along random directions against central differences in float64."""
    rng = np.random.default_rng(7)
    weights = rng.standard_normal(tuple(int(s) for s in f(*map(Tensor, values)).shape))

    def scalar(*xs: Tensor) -> Tensor:
        out = (f(*xs) * Tensor(weights)).sum()
        return out

    functions = [scalar]
    if order == 2:
        turns = [rng.standard_normal(v.shape) for v in values]

        def slope(*xs: Tensor) -> Tensor:
            grads = scalar(*xs).gradient(*xs)
            return sum(((g * Tensor(t)).sum() for g, t in zip(grads, turns)), Tensor(np.zeros(())))

        functions.append(slope)
    for function in functions:
        inputs = [Tensor(v) for v in values]
        assert all(x.dtype.itemsize == 8 for x in inputs), "numerical gradients need float64"
        grads = [g.numpy() for g in function(*inputs).gradient(*inputs)]
        step = 1e-5
        for _ in range(2):
            directions = [rng.standard_normal(v.shape) for v in values]
            high = function(*(Tensor(v + step * d) for v, d in zip(values, directions))).item()
            low = function(*(Tensor(v - step * d) for v, d in zip(values, directions))).item()
            expected = (high - low) / (2 * step)
            got = sum(float((g * d).sum()) for g, d in zip(grads, directions))
            assert abs(got - expected) <= tolerance * max(1.0, abs(expected)) * 10, (got, expected)


def windows(x: Array, kernel: tuple[int, int], stride: tuple[int, int], dilation: tuple[int, int]) -> Array:
    """[…, H, W] → […, OH, OW, KH, KW]."""
    reach = tuple(d * (k - 1) + 1 for k, d in zip(kernel, dilation))
    seen = np.lib.stride_tricks.sliding_window_view(x, reach, (-2, -1))
    return seen[..., :: stride[0], :: stride[1], :: dilation[0], :: dilation[1]]


def conv(x: Array, w: Array, b: Array | None, groups: int, stride: tuple[int, int], dilation: tuple[int, int],
         padding: tuple[tuple[int, int], tuple[int, int]]) -> Array:
    """conv2d by definition."""
    seen = windows(np.pad(x, ((0, 0), (0, 0), *padding)), w.shape[2:], stride, dilation)
    n, c = x.shape[:2]
    seen = seen.reshape(n, groups, c // groups, *seen.shape[2:])
    out = np.einsum("ngchwyx,gocyx->ngohw", seen, w.reshape(groups, -1, *w.shape[1:]))
    out = out.reshape(n, w.shape[0], *out.shape[3:])
    return out if b is None else out + b[:, None, None]
