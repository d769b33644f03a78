"""Helpers shared by the Tensor method families: axes, shapes, broadcasting, and dtypes of operands."""
from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np

from tinsmith.backend.device import members
from tinsmith.core.dtypes import DType, dtypes, promote
from tinsmith.core.errors import ArgumentError, AxisError, DeviceError, DTypeError, ShapeError
from tinsmith.ir import Ops, UOp
from tinsmith.ir.algebra.sizes import check_bound, holds, normal_size, size_text, unbound
from tinsmith.tensor.arguments import Scalar, integer, listed, shown
from tinsmith.tensor.base import TensorBase
from tinsmith.tensor.host_data import check_range, from_size
from tinsmith.tensor.interop import files
from tinsmith.tensor.sizes.traced import TracedSize

T = TypeVar("T", bound=TensorBase)
Shape = tuple[Any, ...]
P = ParamSpec("P")


def equal(a: Any, b: Any) -> bool:
    """Return True if two sizes are equal, for all values of their variables or for the bound values.

    Sizes that are equal only for the bound values are different nodes; ``as_sized`` replaces one by the other.
    """
    if a is b or not (isinstance(a, UOp) or isinstance(b, UOp)):
        return bool(a == b)
    difference = normal_size(UOp.index(a) - UOp.index(b))
    return holds(difference.eq(0)) if isinstance(difference, UOp) else difference == 0


def same_sizes(a: Shape, b: Shape) -> bool:
    """Return True if two shapes have the same number of axes and their sizes are pairwise ``equal``."""
    return a == b or (len(a) == len(b) and all(map(equal, a, b)))


def as_sized(uop: UOp, shape: Shape) -> UOp:
    """Return ``uop``, unchanged in content, with its size nodes replaced by those of ``shape``, which are ``equal``."""
    return uop if uop.shape == shape else uop.shrink(tuple((0, s) for s in shape))


def one(size: Any) -> bool:
    """Return True if a size is the constant 1."""
    return not isinstance(size, UOp) and size == 1


def product(sizes: Sequence[Any]) -> Any:
    """Return the product of sizes, which may be symbolic."""
    return normal_size(math.prod(sizes))


def sizes(op: str, values: Sequence[Any], bound: bool = True) -> Shape:
    """Return a shape that was given as separate sizes or as one sequence.

    Args:
        bound: raise for variables without a value.

    Raises:
        DTypeError: if a size is no integer.
        ShapeError: if a size is negative, or may be.
    """
    shape = tuple(symbolic_size(op, s, bound) if isinstance(s, UOp) else integer(op, "a size", s)
                  for s in listed(values))
    if any(not isinstance(s, UOp) and s < 0 for s in shape):
        raise ShapeError(op, f"shape {shape} has a negative size", "sizes of at least 0")
    return shape


def symbolic_size(op: str, size: UOp, bound: bool = True) -> Any:
    """Return a symbolic size in normal form (an int if the variables cancel).

    Raises:
        ArgumentError: if a variable has no value.
        DTypeError: if it is no integer.
        ShapeError: if the size is negative.
    """
    free = not bound and not size.dtype.is_float and next(unbound(size), None) is not None
    if not free:
        check_bound(op, size)
    found = normal_size(size)
    if isinstance(found, UOp) and (found.vmin < 0 if free else found < 0):
        raise ShapeError(op, f"the size {size_text(found)} is negative", "sizes of at least 0")
    return found


def check_box(op: str, axis: int, begin: Any, end: Any, size: Any) -> None:
    """Check that ``0 <= begin <= end <= size`` for the bound values of the variables.

    Raises:
        ArgumentError: if a variable has no value.
        ShapeError: if the inequality does not hold.
    """
    for v in (begin, end):
        if isinstance(v, UOp):
            check_bound(op, v)
    for low, high in ((0, begin), (begin, end), (end, size)):
        if normal_size(high - low) < 0:
            raise ShapeError(op, f"({size_text(begin)}; {size_text(end)}) leaves axis {axis} with size "
                             f"{size_text(size)}: {size_text(low)} is more than {size_text(high)}",
                             "0 <= begin <= end <= size")


def axis_of(op: str, x: TensorBase, axis: Any, extra: int = 0) -> int:
    """Return ``axis`` as a nonnegative number.

    Args:
        extra: the number of valid positions after the last axis (for methods that insert axes).

    Raises:
        AxisError: if there is no such axis.
    """
    ndim = max(x.ndim + extra, 1)
    if type(axis) is int and -ndim <= axis < ndim:
        return axis % ndim
    if isinstance(axis, (bool, np.bool_, TensorBase)):  # PyTorch's overloads by position: x.max(y), x.any(True)
        raise DTypeError(op, f"an axis must be an integer, got {shown(axis)}",
                         "other arguments by their names: keepdim=, unbiased=")
    number = integer(op, "an axis", axis)
    if not -ndim <= number < ndim:
        raise AxisError(op, f"axis {number} of a tensor with {x.ndim} axes, shape {x.shape}",
                        f"an axis from {-ndim} to {ndim - 1}")
    return number % ndim


def axis_and_size(op: str, x: TensorBase, axis: Any) -> tuple[int, Any]:
    """Return ``axis`` as a nonnegative number, and the size of that axis.

    Raises:
        AxisError: if there is no such axis.
        ShapeError: if there are no axes at all.
    """
    if not x.ndim:
        raise ShapeError(op, "a 0-d tensor has no axes", ".reshape(1)")
    found = axis_of(op, x, axis)
    return found, x.shape[found]


def as_lines(*tensors: T) -> tuple[T, ...]:
    """Return the tensors with 0-d ones reshaped to ``(1,)``, as PyTorch does, if none has more than one axis.

    >>> from tinsmith import Tensor
    >>> [t.shape for t in as_lines(Tensor(1), Tensor([1, 2]))]
    [(1,), (2,)]
    """
    if max(t.ndim for t in tensors) > 1:
        return tensors
    return tuple(t if t.ndim else t.reshape(1) for t in tensors)


def axis_or_dim(op: str, axis: Any, dim: Any, default: Any = None) -> Any:
    """Return the axes that were given as ``axis`` or by PyTorch's name ``dim``.

    Raises:
        ArgumentError: if both are given.
    """
    if dim is None:
        return axis
    if axis != default:
        raise ArgumentError(op, f"axis={axis!r} and dim={dim!r} are two names of one argument", f"axis={axis!r} alone")
    return dim


def axes_of(op: str, x: TensorBase, axis: int | Sequence[int] | None) -> tuple[int, ...]:
    """Return the axes to reduce as sorted nonnegative numbers; all axes for None.

    Raises:
        AxisError: for one that does not exist.
        ArgumentError: if one is given twice.
    """
    ndim = len(x.uop.shape)
    if axis is None:
        return tuple(range(ndim))
    if type(axis) is int and -ndim <= axis < ndim:
        return (axis % ndim,)
    given = tuple(axis) if isinstance(axis, (tuple, list)) else (axis,)
    found = sorted(axis_of(op, x, a) for a in given)
    if len(set(found)) != len(found):
        raise ArgumentError(op, f"axes {given} name one axis twice", "each axis once")
    return tuple(found) if x.ndim else ()


_shape_of = operator.attrgetter("shape")


@functools.lru_cache(4096)
def broadcast_shape(op: str, *shapes: Shape) -> Shape:
    """Return the broadcast shape by NumPy's rules. A symbolic size is never broadcast, even if its value is 1.

    >>> broadcast_shape("add", (3, 1), (4,))
    (3, 4)

    Raises:
        ShapeError: if the shapes do not broadcast.
    """
    ndim = max(len(s) for s in shapes)
    padded = [(1,) * (ndim - len(s)) + s for s in shapes]
    out = []
    for axis, column in enumerate(zip(*padded)):
        wide = [s for s in column if not one(s)]
        size = next((s for s in wide if not isinstance(s, UOp)), wide[0] if wide else 1)
        if len(wide) > 1 and not all(equal(s, size) for s in wide):
            different = " and ".join(dict.fromkeys(map(size_text, wide)))
            raise ShapeError(op, f"shapes {' and '.join(str(s) for s in shapes)} do not broadcast: "
                             f"axis {axis - ndim} has sizes {different}",
                             "reshape, expand or transpose one of them so that sizes are equal or 1")
        out.append(size)
    return tuple(out)


def expand_uop(uop: UOp, shape: Shape) -> UOp:
    """Return ``uop`` broadcast to ``shape``."""
    if uop.shape == shape:
        return uop
    own, sized = _steps(uop.shape, shape)
    if UOp not in map(type, sized):
        x = uop if own == uop.shape else UOp(Ops.RESHAPE, uop.dtype, (uop,), own)
        return UOp(Ops.EXPAND, uop.dtype, (x,), shape) if own != shape else x
    return as_sized(uop.reshape(own), sized).expand(shape)


@functools.lru_cache(4096)
def _steps(own: Shape, shape: Shape) -> tuple[Shape, Shape]:
    """Return ``own`` padded with leading 1s to the length of ``shape``, and the same with the size nodes of ``shape``
    on the axes that are not broadcast."""
    own = (1,) * (len(shape) - len(own)) + own
    return own, tuple(a if one(a) else b for a, b in zip(own, shape))


def weak_dtype(value: Any, other: DType) -> DType:
    """Return the dtype of a Python number combined with a tensor of dtype ``other`` (weak typing): ``other`` if it can
    represent the number's kind, else the default float or int."""
    if isinstance(value, (bool, np.bool_)) or other.is_float:
        return other
    if isinstance(value, (float, np.floating)):
        return dtypes.default_float
    return dtypes.default_int if other.is_bool else other


def plain(value: Any) -> Any:
    """Return a NumPy scalar as a Python number; anything else unchanged."""
    return value.item() if isinstance(value, np.generic) else value


def constant(op: str, value: Any, dtype: DType) -> UOp:
    """Return a number as a constant node of ``dtype``.

    Raises:
        RangeError: if the dtype cannot hold the number. (A float is truncated to an integer dtype, as by a cast.)
    """
    number = value.item() if isinstance(value, np.generic) else value
    check_range(op, number, dtype)
    return UOp.const(dtype, number)


def side_of(value: Any, dtype: DType) -> int:
    """Return 1 for an integer above the range of an integer or bool dtype, -1 for one below it, else 0."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)) or dtype.is_float:
        return 0
    own = weak_dtype(value, dtype)
    return int(value > own.max) - int(value < own.min)


def operand(op: str, value: Any, like: T) -> T:
    """Return ``value`` as a tensor operand to combine with ``like``; numbers are weakly typed.

    Raises:
        DTypeError: if ``value`` cannot be converted to a tensor.
    """
    tensor: T = value
    if isinstance(value, TensorBase):
        return tensor
    if type(value) is TracedSize:
        value = value.node
    if isinstance(value, Scalar):
        return like._new(constant(op, value, weak_dtype(value, like.dtype)))
    if isinstance(value, UOp):
        return like._new(from_size(value) if value.dtype is dtypes.index else value)
    if isinstance(value, (np.ndarray, list, tuple)):
        return type(like)(value, device="CPU" if files.on_disk(like._device) else like.device, requires_grad=False)
    raise DTypeError(op, f"cannot combine a tensor with {shown(value)}", "a tensor, a number or an array")


def operand_node(op: str, value: Any, like: TensorBase) -> UOp:
    """Return the node of ``operand``; fast path: a number needs no tensor object."""
    if isinstance(value, TensorBase):
        return value.uop
    if type(value) in (int, float, bool):
        return constant(op, value, weak_dtype(value, like.dtype))
    return operand(op, value, like).uop


def same_device(op: str, *tensors: TensorBase) -> str:
    """Return the device of all ``tensors``; constants belong to any device.

    Raises:
        DeviceError: if the tensors are on different devices.
    """
    return _one_device(op, [t.uop for t in tensors]) or tensors[0]._device


def _one_device(op: str, nodes: Sequence[UOp]) -> str | None:
    """Return the device that the nodes have in common; None if all are constants."""
    found: str | None = None
    for n in nodes:
        if n.device is not None and n.device != found:
            if found is not None:
                places = [members(d) if "," in d else d for d in dict.fromkeys(n.device for n in nodes) if d]
                raise DeviceError(op, f"tensors on different devices: {', '.join(map(str, places))}",
                                  f".to({places[0]!r})")
            found = n.device
    return found


def matched(op: str, *tensors: TensorBase) -> list[UOp]:
    """Return the nodes of ``tensors``, promoted to one dtype and broadcast to one shape."""
    return matched_nodes(op, [t.uop for t in tensors])


def matched_nodes(op: str, nodes: list[UOp]) -> list[UOp]:
    """Return the nodes, promoted to one dtype and broadcast to one shape."""
    first = nodes[0]
    for n in nodes:
        if n.dtype is not first.dtype or n.device != first.device or n.shape != first.shape:
            break
    else:
        return nodes
    for n in nodes:
        if n.dtype is not first.dtype:
            dtype = promote(*[n.dtype for n in nodes])
            nodes = [n.cast(dtype) for n in nodes]
            break
    return list(in_one_shape(op, *nodes))


def in_one_dtype(*tensors: T) -> list[T]:
    """Return ``tensors`` cast to the dtype that all of them promote to."""
    dtype = promote(*[t.dtype for t in tensors])
    return [t.cast(dtype) for t in tensors]


def in_one_shape(op: str, *nodes: UOp) -> tuple[UOp, ...]:
    """Return the nodes, which must be on one device, broadcast to one shape."""
    for n in nodes:
        if n.device != nodes[0].device:
            _one_device(op, nodes)
            break
    shapes = tuple(map(_shape_of, nodes))
    shape = broadcast_shape(op, *shapes)
    found = []
    for n, own in zip(nodes, shapes):
        found.append(n if own == shape else expand_uop(n, shape))
    return tuple(found)


def float_of(x: TensorBase) -> UOp:
    """Return the node of ``x``, cast to the default float if it is not floating point."""
    return x.uop if x.dtype.is_float else x.uop.cast(dtypes.default_float)


def muladd(x: UOp, y: UOp | float, z: UOp | float) -> UOp:
    """Return ``x * y + z`` for internal formulas, rounded once (FMA) on devices that support it."""
    y, z = (v if isinstance(v, UOp) else x.const_like(v) for v in (y, z))
    return x.alu(Ops.MULADD, y, z)


def widened(value: Any) -> Any:
    """Return a float tensor of 16 bits or less cast to float32; anything else unchanged."""
    narrow = isinstance(value, TensorBase) and value.dtype.is_float and value.dtype.itemsize <= 2
    return value.cast(dtypes.float32) if narrow else value


def rounded_once(method: Callable[Concatenate[T, P], T]) -> Callable[Concatenate[T, P], T]:
    """Decorate a method of several steps: 16-bit floats are computed in float32 and rounded once, at the end."""

    def wide(self: T, /, *args: P.args, **kwargs: P.kwargs) -> T:
        beside = [t.dtype for t in (*args, *kwargs.values()) if isinstance(t, TensorBase)]
        dtype = promote(self.dtype, *beside)
        if not dtype.is_float or dtype.itemsize > 2:
            return method(self, *args, **kwargs)
        return method(widened(self), *map(widened, args), **{k: widened(v) for k, v in kwargs.items()}).cast(dtype)

    wide.__code__ = wide.__code__.replace(co_name=method.__name__)  # nodes and errors name the method that was called
    return functools.wraps(method)(wide)


# Optimizers read their own attributes through these two functions. A capture assumes that code of nn that names vars()
# may read any attribute of any object, and would guard all of them.
def attribute(owner: Any, name: str) -> Any:
    """Return an instance attribute of an object, bypassing properties of its class."""
    return vars(owner)[name]


def held_tensors(owner: Any) -> list[TensorBase]:
    """Return the distinct tensors in an object's attributes, and in lists, tuples and dicts among them."""
    found: dict[int, Any] = {}
    for value in vars(owner).values():
        values = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else [value]
        found.update((id(t), t) for t in values if isinstance(t, TensorBase))
    return list(found.values())
