"""Parser of the index in ``x[...]``: slices, dropped and new axes, index tensors and masks."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from tinsmith.core.dtypes import dtypes
from tinsmith.core.errors import ArgumentError, AxisError, DTypeError, ShapeError
from tinsmith.ir import UOp
from tinsmith.ir.algebra.sizes import normal_size, value_of_size
from tinsmith.tensor.arguments import integer, shown
from tinsmith.tensor.base import TensorBase
from tinsmith.tensor.helpers import check_box, operand
from tinsmith.tensor.host_data import check_indices
from tinsmith.tensor.indexing.slices import Slice
from tinsmith.tensor.shape.movement import Movement
from tinsmith.tensor.sizes.traced import plain, traces

T = TypeVar("T", bound=Movement)
_AXES = 32  # a list of at least 32 items is an array of positions, whatever its items are, as in PyTorch


@dataclass
class ParsedIndex:
    """A parsed index: a slice per axis, then new and dropped axes, then index tensors along some remaining axes.

    Attributes:
        slices: one per axis of the tensor.
        shape: after the slices, dropped and new axes.
        picks: axis of ``shape`` -> index tensor.
    """

    slices: list[Slice]
    shape: tuple[Any, ...]
    picks: dict[int, Movement]


def taken_apart(op: str, x: Movement, index: Any) -> ParsedIndex:
    """Parse an index of ``x``. Integers and slices apply first; index tensors select along the remaining axes, as in
    PyTorch."""
    slices: list[Slice] = []
    shape: list[Any] = []
    picks: dict[int, Movement] = {}
    own = x.uop.shape
    for item in _filled_up(op, x, _items(x, index)):
        axis = len(slices)
        size = own[axis] if axis < len(own) else 1
        if type(item) is int and type(size) is int and -size <= item < size:
            slices.append(Slice(item if item >= 0 else item + size, 1))
        elif item is None:
            shape.append(1)
        elif isinstance(item, slice):
            slices.append(slice_of(op, item, size, axis))
            shape.append(slices[-1].count)
        elif isinstance(item, TensorBase) and item.dtype.is_bool:
            for place, size in zip(_positions(op, x, item, axis), item.shape or (1,)):
                picks[len(shape)] = place
                shape.append(size)
            slices += [Slice(0, size) for size in item.shape]
        elif isinstance(item, UOp) and item.dtype is dtypes.index:
            item = from_front(item, size)
            check_box(op, axis, item, item + 1, size)
            slices.append(Slice(item, 1))
        elif isinstance(item, (TensorBase, UOp)):
            picks[len(shape)] = _pick(op, x, item, size)
            slices.append(Slice(0, size))
            shape.append(size)
        else:
            slices.append(Slice(position(op, item, axis, size, own), 1))
    return ParsedIndex(slices, tuple(shape), picks)


def _items(x: Movement, index: Any) -> list[Any]:
    """Return the items of an index: None, Ellipsis, slices, integers, and tensors (also for arrays and sequences).

    A list that contains other items than numbers is treated as a tuple.
    """
    if traces.threads:
        index = plain(index)
    if isinstance(index, list) and len(index) < _AXES and any(
            i is None or i is Ellipsis or isinstance(i, slice) or _is_array(i) for i in index):
        index = tuple(index)
    return [i if type(i) is int or type(i) is slice else _as_tensor(x, i)
            for i in (index if isinstance(index, tuple) else (index,))]


def _is_array(item: Any) -> bool:
    """Return True if an item is an array, tensor or sequence. A 0-d NumPy array counts as a number, a 0-d tensor as an
    array."""
    if isinstance(item, np.ndarray):
        return item.ndim > 0
    return isinstance(item, TensorBase) or (isinstance(item, Sequence) and not isinstance(item, str))


def _as_tensor(x: Movement, item: Any) -> Any:
    """Return a sequence or array of numbers as a tensor, a bool as a 0-d tensor, and any other item unchanged."""
    if isinstance(item, np.ndarray) and not item.ndim:
        item = item[()]
    if isinstance(item, (bool, np.bool_)):
        return type(x)(bool(item), device=x.device, requires_grad=False)
    if isinstance(item, TensorBase) or not _is_array(item):
        return item
    if not isinstance(item, np.ndarray):
        parts = list(item)
        if any(_is_array(i) for i in parts) and _holds_tensor(parts):
            return type(x).stack(*[operand("getitem", _as_tensor(x, i), x) for i in parts])
        item = parts or np.zeros(0, np.int32)
    return type(x)(item, device=x.device, requires_grad=False)


def _holds_tensor(item: Any) -> bool:
    return isinstance(item, TensorBase) or (isinstance(item, (list, tuple)) and any(map(_holds_tensor, item)))


def _filled_up(op: str, x: Movement, items: list[Any]) -> list[Any]:
    """Return the items with full slices inserted in place of the Ellipsis, or at the end, up to the number of axes."""
    dots, used, ndim = [], 0, len(x.uop.shape)
    for n, i in enumerate(items):
        if i is Ellipsis:
            dots.append(n)
        elif i is not None:
            used += i.ndim if isinstance(i, TensorBase) and i.dtype.is_bool else 1
    if len(dots) > 1:
        raise AxisError(op, "an index with more than one ellipsis", "one ...")
    if used > ndim:
        raise AxisError(op, f"{used} indices for the {ndim} axes of shape {x.shape}", f"at most {ndim}")
    at = dots[0] if dots else len(items)
    return [*items[:at], *[slice(None)] * (ndim - used), *items[at + 1 :]]


def _positions(op: str, x: T, mask: TensorBase, axis: int) -> list[T]:
    """Return the coordinates of the True elements of a mask, one index tensor per axis; a 0-d mask adds one axis."""
    if mask.shape != x.shape[axis : axis + mask.ndim]:
        raise ShapeError(op, f"a mask of shape {mask.shape} at axis {axis} of a tensor of shape {x.shape}",
                         "a mask of the axes' own sizes")
    found = np.nonzero(np.atleast_1d(mask.numpy()))
    return [type(x)(f.astype(np.int32), device=x.device, requires_grad=False) for f in found]


def whole_mask(x: T, index: Any) -> T | None:
    """Return the mask if the index is a single mask of the tensor's full shape, else None."""
    if isinstance(index, (list, np.ndarray)):
        items = _items(x, index)
        index = items[0] if len(items) == 1 else None
    ok = isinstance(index, TensorBase) and index.dtype.is_bool and index.shape == x.shape and index.ndim > 0
    return index if ok else None


def position(op: str, item: Any, axis: int, size: Any, shape: Any) -> Any:
    try:
        number = int(item.__index__())
    except (AttributeError, TypeError):
        raise DTypeError(op, f"cannot index with {shown(item)}",
                         "ints, slices, None, ..., or tensors of ints or bools") from None
    if not -size <= number < size:
        raise AxisError(op, f"index {number} is out of range for axis {axis} of shape {shape}",
                        f"{-value_of_size(size)} to {value_of_size(size) - 1}")
    return normal_size(number + size) if number < 0 else number


def from_front(bound: Any, size: Any) -> Any:
    """Return a bound of a symbolic slice counted from the front; a negative one, or one whose bound value is negative,
    counts from the end."""
    return normal_size(size + bound if bound < 0 else bound)


def slice_of(op: str, s: slice, size: Any, axis: int) -> Slice:
    if s.step is not None and s.step == 0:
        raise ArgumentError(op, "a slice with step 0", "another step")
    if isinstance(size, UOp) or any(isinstance(v, UOp) for v in (s.start, s.stop)):
        return _symbolic_slice(op, s, size, axis)
    try:
        begin, end, step = s.indices(size)
    except TypeError:
        raise DTypeError(op, f"a slice takes ints, got {s}", "int(...)") from None
    count = len(range(begin, end, step))
    if step > 0 or count == 0:
        return Slice(begin if count else 0, count, max(step, 1))
    return Slice(size - 1 - begin, count, -step, True)


def _symbolic_slice(op: str, s: slice, size: Any, axis: int) -> Slice:
    """Return a slice with symbolic bounds, which are not clamped: the slice must lie inside the axis. With a negative
    step, the bounds are converted to positions of the flipped axis."""
    step = 1 if s.step is None else integer(op, "a slice's step", s.step)
    begin = None if s.start is None else from_front(s.start, size)
    end = None if s.stop is None else from_front(s.stop, size)
    if step < 0:
        begin, end = (None if v is None else normal_size(size - 1 - v) for v in (begin, end))
    begin, end = 0 if begin is None else begin, size if end is None else end
    check_box(op, axis, begin, end, size)
    count = end - begin if abs(step) == 1 else (end - begin + (abs(step) - 1)) // abs(step)
    return Slice(begin, normal_size(count), abs(step), step < 0)


def _pick(op: str, x: T, item: Any, size: Any) -> T:
    """Return an index tensor along an axis with negative positions converted to positive ones."""
    index = operand(op, item, x)
    if not index.dtype.is_int:
        raise DTypeError(op, f"cannot index with a tensor of {index.dtype!r}", ".cast(dtypes.int32)")
    check_indices(op, index, -size, size)
    index = index.cast(index_dtype(index, size))
    return index.lt(0).where(index.add(size), index)


def index_dtype(index: Movement, size: Any) -> Any:
    large = index.dtype.itemsize == 8 or index.dtype is dtypes.uint32 or (not isinstance(size, UOp) and size > 1 << 31)
    return dtypes.int64 if large else dtypes.int32
