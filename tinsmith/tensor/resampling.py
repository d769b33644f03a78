"""Images and signals at another size."""
# mypy: disable-error-code=misc
# ``self`` is the Tensor that this class is mixed into.
from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tinsmith.core.dtypes import dtypes
from tinsmith.core.errors import DTypeError, ShapeError
from tinsmith.tensor.arguments import choice, flag
from tinsmith.tensor.helpers import sizes

if TYPE_CHECKING:
    from tinsmith.tensor.tensor import Tensor

_LINEAR = ("linear", "bilinear", "trilinear")


class Resampling:
    """``interpolate``."""

    __slots__ = ()

    def interpolate(self: Tensor, size: Sequence[int], mode: str = "linear", align_corners: bool = False) -> Tensor:
        """The last axes at another size. Positions are exact fractions, so that no size is off by a rounding.

        Args:
            size: new sizes of the last axes.
            mode: "linear" (also "bilinear" and "trilinear"), "nearest" or "nearest-exact".
            align_corners: for linear: the outermost elements keep their places, instead of the edges around them.

        >>> Tensor([1., 2., 3.]).interpolate((5,), align_corners=True).tolist()
        [1.0, 1.5, 2.0, 2.5, 3.0]
        >>> Tensor([[1, 2]]).interpolate((4,), mode="nearest").tolist()
        [[1, 1, 2, 2]]

        Raises:
            ArgumentError: for an unknown mode.
            DTypeError: if integers are to be interpolated linearly.
            ShapeError: if there are more sizes than axes, or nothing to make elements of.
        """
        wanted = sizes("interpolate", (size,))
        choice("interpolate", "mode", mode, (*_LINEAR, "nearest", "nearest-exact"))
        align_corners = flag("interpolate", "align_corners", align_corners)
        if mode in _LINEAR and not self.dtype.is_float:
            raise DTypeError("interpolate", f"{self.dtype!r} elements have nothing between them", ".float()")
        first = self.ndim - len(wanted)
        if first < 0 or any(old == 0 and new for old, new in zip(self.shape[first:], wanted)):
            raise ShapeError("interpolate", f"shape {self.shape} to the sizes {wanted}",
                             "at most one size per axis, and elements to start from")
        out = self
        for axis, new in enumerate(wanted, first):
            if new != self.shape[axis]:
                out = _linear(out, axis, new, align_corners) if mode in _LINEAR else _nearest(out, axis, new, mode)
        return out


def _nearest(x: Tensor, axis: int, new: int, mode: str) -> Tensor:
    old, step = x.shape[axis], type(x).arange(new, device=x.device)
    place = (step * 2 + 1) * old // (2 * new) if mode == "nearest-exact" else step * old // max(new, 1)
    return _at(x, axis, place)


def _linear(x: Tensor, axis: int, new: int, align_corners: bool) -> Tensor:
    """Element i lies at (i + 1/2) old/new - 1/2, or at i (old - 1)/(new - 1): a fraction of whole numbers."""
    old, step = x.shape[axis], type(x).arange(new, device=x.device)
    if align_corners:
        above, below = step * (old - 1), max(new - 1, 1)
    else:
        above, below = ((step * 2 + 1) * old - new).maximum(0), 2 * new
    low = above // below
    shape = (1,) * axis + (new,) + (1,) * (x.ndim - axis - 1)
    wide = dtypes.float32 if x.dtype.itemsize < 4 else x.dtype
    weight = ((above - low * below).cast(wide) / below).reshape(shape)
    a, b = _at(x, axis, low).cast(wide), _at(x, axis, (low + 1).minimum(old - 1)).cast(wide)
    between: Tensor = a * (1 - weight) + b * weight
    return between.cast(x.dtype)


def _at(x: Tensor, axis: int, place: Tensor) -> Tensor:
    found: Tensor = x[(slice(None),) * axis + (place,)]
    return found
