"""Binary search in sorted rows, and index vectors along an axis."""
from __future__ import annotations

from typing import TypeVar

from tinsmith.core.dtypes import dtypes
from tinsmith.core.errors import ShapeError
from tinsmith.tensor.helpers import axis_and_size, operand
from tinsmith.tensor.reduce.reduce import Reduce

T = TypeVar("T", bound=Reduce)
LONG_ROW = 256  # elements; from this length on, a binary search is less work than a comparison with all elements


def stands_before(row: T, value: T, behind: bool) -> T:
    """Return True for the elements of a sorted row before the insertion position of ``value``; NaN sorts last."""
    return value.lt(row).logical_not() if behind else row.lt(value) | value.isnan() & row.isnan().logical_not()


def halved(row: T, value: T, size: int, behind: bool) -> T:
    """Return the insertion position of each value by a binary search that sets its bits from the highest down."""
    place = value.zeros_like(dtype=dtypes.default_int, requires_grad=False)
    for digit in reversed(range(size.bit_length())):
        probe = place.add(1 << digit)
        found = row.gather(-1, probe.minimum(size).sub(1))
        place = (probe.le(size) & stands_before(found, value, behind)).where(probe, place)
    return place


def wide_index(op: str, x: T, d: int, index: T) -> T:
    """Return a vector of positions along axis ``d``, expanded to the shape of the slices at these positions."""
    places = operand(op, index, x).reshape(-1)
    shape = (*x.shape[:d], places.shape[0], *x.shape[d + 1 :])
    return places.reshape((1,) * d + (-1,) + (1,) * (x.ndim - d - 1)).expand(shape)


def indexed_slices(op: str, x: T, dim: int, index: T, source: T) -> tuple[int, T, T]:
    """Return the axis, the position of each element of ``source``, and ``source`` cast to the dtype of ``x``."""
    value, x = operand(op, source, x), x if x.ndim else x.reshape(1)
    d = axis_and_size(op, x, dim)[0]
    wide = wide_index(op, x, d, index)
    value = value if value.ndim or x.ndim > 1 else value.reshape(1)
    if value.shape != wide.shape:
        raise ShapeError(op, f"slices of shape {value.shape} at {wide.shape[d]} positions of axis {d} of {x.shape}",
                         f"shape {wide.shape}")
    return d, wide, value.cast(x.dtype)
