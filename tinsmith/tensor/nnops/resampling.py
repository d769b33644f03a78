"""Positions and weights of ``Tensor.interpolate``: resampling of images and signals."""
from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from tinsmith.core.dtypes import dtypes
from tinsmith.core.errors import ArgumentError
from tinsmith.core.lazy_import import Late
from tinsmith.tensor.arguments import number, shown
from tinsmith.tensor.helpers import sizes
from tinsmith.tensor.linalg.linear_algebra import LinearAlgebra

if TYPE_CHECKING:
    import fractions
    from fractions import Fraction

else:
    fractions = Late("fractions")

T = TypeVar("T", bound=LinearAlgebra)
LINEAR = ("linear", "bilinear", "trilinear")


def exact_ratio(old: int, new: int) -> Fraction:
    """Return the distance of resampled points in units of the old ones."""
    return fractions.Fraction(old, max(new, 1))


def wanted_sizes(x: LinearAlgebra, size: Any, scale_factor: Any) -> tuple[tuple[int, ...], list[Fraction | None]]:
    """Return the new sizes, and the ratios old / new given by ``scale_factor`` (None: from the sizes)."""
    if (size is None) == (scale_factor is None):
        raise ArgumentError("interpolate", f"size={shown(size)} and scale_factor={shown(scale_factor)}",
                            "one of the two")
    count = max(x.ndim - 2, 1)
    if scale_factor is None:
        several = isinstance(size, (tuple, list))
        found = sizes("interpolate", size if several else (size,)) * (1 if several else count)
        return found, [None] * len(found)
    factors = scale_factor if isinstance(scale_factor, (tuple, list)) else (scale_factor,) * count
    for factor in factors:
        number("interpolate", "scale_factor", factor, 0, zero=False)
    return (tuple(int(s * f) for s, f in zip(x.shape[x.ndim - len(factors) :], factors)),
            [1 / fractions.Fraction(f).limit_denominator(1 << 12) for f in factors])


def resample_nearest(x: T, axis: int, new: int, ratio: Fraction, mode: str) -> T:
    over, under = ratio.numerator, ratio.denominator
    if over == 1 and new == x.shape[axis] * under:
        return x.repeat_interleave(under, axis)
    step = type(x).arange(new, device=x.device)
    place = (step * 2 + 1) * over // (2 * under) if mode == "nearest-exact" else step * over // under
    return _at(x, axis, place)


def resample_linear(x: T, axis: int, new: int, ratio: Fraction, align_corners: bool, cubic: bool) -> T:
    """Interpolate linearly or cubically along ``axis``.

    Output element i is at (i + 1/2)·ratio - 1/2 of the input, or at i·(old - 1)/(new - 1) with ``align_corners``: an
    exact fraction of integers."""
    old, step = x.shape[axis], type(x).arange(new, device=x.device)
    if align_corners:
        above, below = step * (old - 1), max(new - 1, 1)
    else:
        above, below = (step * 2 + 1) * ratio.numerator - ratio.denominator, 2 * ratio.denominator
        above = above if cubic else above.maximum(0)
    low = above // below
    shape = (1,) * axis + (new,) + (1,) * (x.ndim - axis - 1)
    wide = dtypes.float32 if x.dtype.itemsize < 4 else x.dtype
    t = ((above - low * below).cast(wide) / below).reshape(shape)
    weights = [(-1, _far(t + 1)), (0, _near(t)), (1, _near(1 - t)), (2, _far(2 - t))] if cubic else [(0, 1 - t), (1, t)]
    parts: list[T] = [_at(x, axis, (low + n).clamp(0, old - 1)).cast(wide) * w for n, w in weights]
    return functools.reduce(lambda total, part: total.add(part), parts).cast(x.dtype)


def _near(t: T) -> T:
    """Return the cubic convolution kernel with a = -3/4 (Keys 1981) for distances up to 1."""
    return (t * 1.25 - 2.25) * t * t + 1


def _far(t: T) -> T:
    """Return the cubic convolution kernel with a = -3/4 (Keys 1981) for distances from 1 to 2."""
    return ((t * -0.75 + 3.75) * t - 6) * t + 3


def resample_area(x: T, axis: int, new: int) -> T:
    """Average along ``axis``: output i is the mean of the inputs ⌊i·old/new⌋ to ⌈(i + 1)·old/new⌉, excluded."""
    old = x.shape[axis]
    place, i = np.arange(old), np.arange(new)[:, None]
    inside = (place >= i * old // max(new, 1)) & (place < -(-(i + 1) * old // max(new, 1)))
    means = type(x)((inside / inside.sum(1, keepdims=True)).astype(x.dtype.numpy or np.float32), dtype=x.dtype,
                    device=x.device, requires_grad=False)
    return x.transpose(axis, -1).matmul(means.transpose()).transpose(axis, -1)


def _at(x: T, axis: int, place: T) -> T:
    found: T = x[(slice(None),) * axis + (place,)]
    return found
