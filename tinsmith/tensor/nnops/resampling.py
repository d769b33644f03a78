"""Resampling of images and signals: ``interpolate``."""
# mypy: disable-error-code=misc
# ``self`` is the Tensor that this class is mixed into.
from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tinsmith.core.dtypes import dtypes
from tinsmith.core.errors import ArgumentError, DTypeError, ShapeError
from tinsmith.core.lazy_import import Late
from tinsmith.tensor.arguments import choice, flag, number, shown
from tinsmith.tensor.helpers import sizes

if TYPE_CHECKING:
    import fractions
    from fractions import Fraction

    from tinsmith.tensor.tensor import Tensor
else:
    fractions = Late("fractions")

_LINEAR = ("linear", "bilinear", "trilinear")


class Resampling:
    """``interpolate``."""

    __slots__ = ()

    def interpolate(self: Tensor, size: int | Sequence[int] | None = None, mode: str = "linear",
                    align_corners: bool | None = False, *, scale_factor: float | Sequence[float] | None = None,
                    recompute_scale_factor: bool | None = None) -> Tensor:
        """Resample the last axes to another size. Positions are exact fractions: no rounding error in sizes.

        Args:
            size: the new sizes of the last axes; one number applies to all axes after the first two.
            mode: "linear" (also "bilinear" and "trilinear"), "bicubic", "nearest", "nearest-exact", or "area" for the
                mean of each window of an adaptive pool.
            align_corners: for linear and cubic: align the centers of the outermost elements, not their outer edges.
            scale_factor: the ratio of new to old size (the new size is rounded down), instead of ``size``.
            recompute_scale_factor: compute positions from the ratio of the sizes instead of ``scale_factor``.

        >>> Tensor([1., 2., 3.]).interpolate((5,), align_corners=True).tolist()
        [1.0, 1.5, 2.0, 2.5, 3.0]
        >>> Tensor([[1, 2]]).interpolate((4,), mode="nearest").tolist()
        [[1, 1, 2, 2]]
        >>> Tensor([[[1., 2.]]]).interpolate(scale_factor=2, mode="nearest").tolist()
        [[[1.0, 1.0, 2.0, 2.0]]]

        Raises:
            ArgumentError: for an unknown mode, or unless exactly one of ``size`` and ``scale_factor`` is given.
            DTypeError: if integers are interpolated.
            ShapeError: if there are more sizes than axes, or an axis to resample is empty.
        """
        wanted, ratios = _wanted(self, size, scale_factor)
        choice("interpolate", "mode", mode, (*_LINEAR, "bicubic", "area", "nearest", "nearest-exact"))
        align_corners = flag("interpolate", "align_corners", align_corners)
        if not mode.startswith("nearest") and not self.dtype.is_float:
            raise DTypeError("interpolate", f"{self.dtype!r} elements have nothing between them", ".float()")
        first = self.ndim - len(wanted)
        if first < 0 or any(old == 0 and new for old, new in zip(self.shape[first:], wanted)):
            raise ShapeError("interpolate", f"shape {self.shape} to the sizes {wanted}",
                             "at most one size per axis, and elements to start from")
        out = self
        for axis, (new, ratio) in enumerate(zip(wanted, ratios), first):
            old = self.shape[axis]
            if new == old and (ratio is None or mode in (*_LINEAR, "area", "nearest")):
                continue
            if ratio is None or flag("interpolate", "recompute_scale_factor", recompute_scale_factor):
                ratio = fractions.Fraction(old, max(new, 1))
            if mode == "area":
                out = _area(out, axis, new)
            elif mode.startswith("nearest"):
                out = _nearest(out, axis, new, ratio, mode)
            else:
                out = _between(out, axis, new, ratio, align_corners, mode == "bicubic")
        return out


def _wanted(x: Tensor, size: Any, scale_factor: Any) -> tuple[tuple[int, ...], list[Fraction | None]]:
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


def _nearest(x: Tensor, axis: int, new: int, ratio: Fraction, mode: str) -> Tensor:
    over, under = ratio.numerator, ratio.denominator
    if over == 1 and new == x.shape[axis] * under:
        return x.repeat_interleave(under, axis)
    step = type(x).arange(new, device=x.device)
    place = (step * 2 + 1) * over // (2 * under) if mode == "nearest-exact" else step * over // under
    return _at(x, axis, place)


def _between(x: Tensor, axis: int, new: int, ratio: Fraction, align_corners: bool, cubic: bool) -> Tensor:
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
    parts = [_at(x, axis, (low + n).clamp(0, old - 1)).cast(wide) * w for n, w in weights]
    return functools.reduce(type(x).add, parts).cast(x.dtype)


def _near(t: Tensor) -> Tensor:
    """Return the cubic convolution kernel with a = -3/4 (Keys 1981) for distances up to 1."""
    return (t * 1.25 - 2.25) * t * t + 1


def _far(t: Tensor) -> Tensor:
    """Return the cubic convolution kernel with a = -3/4 (Keys 1981) for distances from 1 to 2."""
    return ((t * -0.75 + 3.75) * t - 6) * t + 3


def _area(x: Tensor, axis: int, new: int) -> Tensor:
    """Average along ``axis``: output i is the mean of the inputs ⌊i·old/new⌋ to ⌈(i + 1)·old/new⌉, excluded."""
    old = x.shape[axis]
    place, i = np.arange(old), np.arange(new)[:, None]
    inside = (place >= i * old // max(new, 1)) & (place < -(-(i + 1) * old // max(new, 1)))
    means = type(x)((inside / inside.sum(1, keepdims=True)).astype(x.dtype.numpy or np.float32), dtype=x.dtype,
                    device=x.device, requires_grad=False)
    return x.transpose(axis, -1).matmul(means.transpose()).transpose(axis, -1)


def _at(x: Tensor, axis: int, place: Tensor) -> Tensor:
    found: Tensor = x[(slice(None),) * axis + (place,)]
    return found
