"""Positions and weights of ``Tensor.interpolate``: resampling of images and signals."""
from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from tinsmith.core.dtypes import dtypes
from tinsmith.core.errors import ArgumentError
from tinsmith.core.lazy_import import Late
from tinsmith.ir import UOp
from tinsmith.ir.algebra.sizes import normal_size, polynomial, value_of_size
from tinsmith.tensor.arguments import number, shown
from tinsmith.tensor.helpers import equal, sizes
from tinsmith.tensor.linalg.linear_algebra import LinearAlgebra

if TYPE_CHECKING:
    import fractions
    from fractions import Fraction
else:
    fractions = Late("fractions")

T = TypeVar("T", bound=LinearAlgebra)
LINEAR = ("linear", "bilinear", "trilinear")


class Ratio(NamedTuple):
    """A ratio of two sizes, at least one of them symbolic, with the attributes of a ``Fraction``."""

    numerator: Any
    denominator: Any


def exact_ratio(old: Any, new: Any) -> Fraction | Ratio:
    """Return the distance of resampled points in units of the old ones: a fraction if it is the same for all values of
    symbolic sizes."""
    if not isinstance(old, UOp) and not isinstance(new, UOp):
        return fractions.Fraction(old, max(new, 1))
    over, under = (next(iter(polynomial(s).values())) if isinstance(s, UOp) else s for s in (old, new))
    constant = fractions.Fraction(over, max(under, 1))  # the only candidate: the ratio of the first coefficients
    difference = normal_size(old * constant.denominator - new * constant.numerator)
    return constant if not isinstance(difference, UOp) and difference == 0 else Ratio(old, new)


def wanted_sizes(x: LinearAlgebra, size: Any, scale_factor: Any) -> tuple[
        tuple[Any, ...], list[Fraction | Ratio | None]]:
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
    exact = [fractions.Fraction(f).limit_denominator(1 << 12) for f in factors]
    wanted = [normal_size(s * e.numerator // e.denominator) if isinstance(s, UOp) and e == f else
              int(value_of_size(s) * f) for s, f, e in zip(x.shape[x.ndim - len(factors) :], factors, exact)]
    return tuple(wanted), [1 / e for e in exact]


def _steps(x: T, new: Any, ratio: Fraction | Ratio) -> T:
    """Return the numbers of the ``new`` points; products with symbolic sizes need 64 bits."""
    wide = dtypes.int64 if isinstance(ratio, Ratio) else None
    return type(x).arange(new, dtype=wide, device=x.device)


def resample_nearest(x: T, axis: int, new: Any, ratio: Fraction | Ratio, mode: str) -> T:
    over, under = ratio.numerator, ratio.denominator
    if isinstance(over, int) and over == 1 and equal(new, x.shape[axis] * under):
        return x.repeat_interleave(under, axis)
    step = _steps(x, new, ratio)
    place = (step * 2 + 1) * over // (2 * under) if mode == "nearest-exact" else step * over // under
    return _at(x, axis, place)


def resample_linear(x: T, axis: int, new: Any, ratio: Fraction | Ratio, align_corners: bool, cubic: bool) -> T:
    """Interpolate linearly or cubically along ``axis``.

    Output element i is at (i + 1/2)·ratio - 1/2 of the input, or at i·(old - 1)/(new - 1) with ``align_corners``: an
    exact fraction of integers."""
    old, step = x.shape[axis], _steps(x, new, ratio)
    if align_corners:
        above, below = step * (old - 1), (new - 1).maximum(1) if isinstance(new, UOp) else max(new - 1, 1)
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
