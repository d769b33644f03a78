"""What stands between the brackets of ``x[...]``, taken apart: slices, dropped and new axes, positions and masks."""
from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tinsmith.core.dtypes import dtypes
from tinsmith.core.errors import ArgumentError, AxisError, DTypeError, ShapeError
from tinsmith.ir import UOp
from tinsmith.ir.sizes import normal_size, value_of_size
from tinsmith.tensor.arguments import integer, shown
from tinsmith.tensor.base import TensorBase
from tinsmith.tensor.helpers import (
    check_box,
    operand,
)
from tinsmith.tensor.hostdata import check_indices
from tinsmith.tensor.slices import Slice

if TYPE_CHECKING:
    from tinsmith.tensor.tensor import Tensor


@dataclass
class Plan:
    """An index taken apart: a slice per axis, then new and dropped axes, then positions along some of the axes left.

    Attributes:
        slices: one per axis of the tensor.
        shape: after the slices, dropped and new axes.
        picks: axis of ``shape`` -> index tensor.
        apart: whether an Ellipsis stands between picks, be it for no axis at all: NumPy puts their axes first then.
    """

    slices: list[Slice]
    shape: tuple[Any, ...]
    picks: dict[int, Tensor]
    apart: bool


def taken_apart(op: str, x: Tensor, index: Any) -> Plan:
    items = _expanded(op, x, list(index) if isinstance(index, tuple) else [index])
    slices: list[Slice] = []
    shape: list[Any] = []
    picks: dict[int, Tensor] = {}
    before = 0
    advanced = any(isinstance(i, TensorBase) for i in items)
    for item in items:
        if item is None:
            shape.append(1)
            continue
        if item is Ellipsis:
            before = len(picks)
            continue
        axis = len(slices)
        size = x.shape[axis]
        if isinstance(item, slice):
            slices.append(slice_of(op, item, size, axis))
            shape.append(slices[-1].count)
            continue
        if isinstance(item, UOp) and not advanced and item.dtype is dtypes.index:
            check_box(op, axis, item, item + 1, size)
            slices.append(Slice(normal_size(item), 1))
            continue
        if isinstance(item, TensorBase) or advanced or isinstance(item, UOp):
            slices.append(Slice(0, size))
            picks[len(shape)] = _pick(op, x, item, axis, size)
            shape.append(size)
            continue
        slices.append(Slice(position(op, item, axis, size, x.shape), 1))
    return Plan(slices, tuple(shape), picks, 0 < before < len(picks))


def _expanded(op: str, x: Tensor, items: list[Any]) -> list[Any]:
    """One entry per axis (and None): lists and arrays as tensors, masks as positions, slices after an Ellipsis."""
    out: list[Any] = []
    for item in items:
        if isinstance(item, (list, np.ndarray)):
            item = type(x)(np.asarray(item, np.int32) if isinstance(item, list) and not item else item, device=x.device,
                           requires_grad=False)
        mask = isinstance(item, TensorBase) and item.dtype.is_bool
        if isinstance(item, (bool, np.bool_)) or (mask and not item.ndim):
            raise DTypeError(op, "a plain bool is no index", "a mask tensor, or None for a new axis")
        if mask:
            axis = sum(i is not None and i is not Ellipsis for i in out)
            out.extend(_positions(op, x, item, axis if not any(i is Ellipsis for i in out) else None))
            continue
        out.append(item)
    if sum(i is Ellipsis for i in out) > 1:
        raise AxisError(op, "an index with more than one ellipsis", "one ...")
    used = sum(i is not None and i is not Ellipsis for i in out)
    if used > x.ndim:
        raise AxisError(op, f"{used} indices for the {x.ndim} axes of shape {x.shape}", f"at most {x.ndim}")
    fill = [slice(None)] * (x.ndim - used)
    at = next((n for n, i in enumerate(out) if i is Ellipsis), len(out))
    return [*out[: at + 1], *fill, *out[at + 1 :]]


def _positions(op: str, x: Tensor, mask: TensorBase, axis: int | None) -> list[Tensor]:
    """The coordinates where a mask holds, one index tensor per axis of the mask."""
    if axis is not None and mask.shape != x.shape[axis : axis + mask.ndim]:
        raise ShapeError(op, f"a mask of shape {mask.shape} at axis {axis} of a tensor of shape {x.shape}",
                         "a mask of the axes' own sizes")
    found = np.nonzero(mask.numpy())
    return [type(x)(f.astype(np.int32), device=x.device) for f in found]


def whole_mask(x: Tensor, index: Any) -> Tensor | None:
    """The mask, if the index is one mask over the whole tensor."""
    if isinstance(index, (list, np.ndarray)) and np.asarray(index).dtype == np.bool_:
        index = type(x)(index, device=x.device)
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
    """A bound of a symbolic slice; a negative number counts from the end."""
    return normal_size(size + bound if isinstance(bound, int) and bound < 0 else bound)


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
    """A slice whose bounds are not cut off at the axis's ends: it must not leave the axis. Backwards, it is the slice
    between the same places of the axis read from its end."""
    step = 1 if s.step is None else integer(op, "a slice's step", s.step)
    begin = None if s.start is None else from_front(s.start, size)
    end = None if s.stop is None else from_front(s.stop, size)
    if step < 0:
        begin, end = (None if v is None else normal_size(size - 1 - v) for v in (begin, end))
    begin, end = 0 if begin is None else begin, size if end is None else end
    check_box(op, axis, begin, end, size)
    count = end - begin if abs(step) == 1 else (end - begin + (abs(step) - 1)) // abs(step)
    return Slice(begin, normal_size(count), abs(step), step < 0)


def _pick(op: str, x: Tensor, item: Any, axis: int, size: Any) -> Tensor:
    """Positions along one axis: negative ones count from the end."""
    if not isinstance(item, (TensorBase, UOp)):
        return x._new(UOp.const(dtypes.int32, position(op, item, axis, size, x.shape)))
    index = operand(op, item, x)
    if not index.dtype.is_int:
        raise DTypeError(op, f"cannot index with a tensor of {index.dtype!r}", ".cast(dtypes.int32)")
    check_indices(op, index, -size, size)
    index = index.cast(index_dtype(index, size))
    return index.lt(0).where(index.add(size), index)


def index_dtype(index: Tensor, size: Any) -> Any:
    large = index.dtype.itemsize == 8 or index.dtype is dtypes.uint32 or (not isinstance(size, UOp) and size > 1 << 31)
    return dtypes.int64 if large else dtypes.int32
