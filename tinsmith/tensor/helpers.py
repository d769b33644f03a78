"""What the families of Tensor methods share: axes, shapes, broadcasting, dtypes of operands."""
from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec

import numpy as np

from tinsmith.backend.device import members
from tinsmith.core.dtypes import DType, dtypes, promote
from tinsmith.core.errors import ArgumentError, AxisError, DeviceError, DTypeError, ShapeError
from tinsmith.ir import Ops, UOp
from tinsmith.ir.algebra.sizes import check_bound, normal_size, size_text, unbound, value_of_size
from tinsmith.tensor.arguments import Scalar, integer, listed, shown
from tinsmith.tensor.base import TensorBase
from tinsmith.tensor.interop import files
from tinsmith.tensor.python_data import check_range, from_size

if TYPE_CHECKING:
    from tinsmith.tensor.tensor import Tensor

Shape = tuple[Any, ...]
P = ParamSpec("P")


def equal(a: Any, b: Any) -> bool:
    """Equal sizes: for every value of their variables, or for those that they are bound to.

    Of the second kind are two nodes, of which ``as_sized`` makes one.
    """
    if a is b or not (isinstance(a, UOp) or isinstance(b, UOp)):
        return bool(a == b)
    return value_of_size(normal_size(UOp.index(a) - UOp.index(b))) == 0


def same_sizes(a: Shape, b: Shape) -> bool:
    """Whether two shapes are ``equal`` size by size."""
    return a == b or (len(a) == len(b) and all(map(equal, a, b)))


def as_sized(uop: UOp, shape: Shape) -> UOp:
    """``uop`` with the sizes of ``shape``, which are ``equal`` to its own, and so the same nodes; all of it is kept."""
    return uop if uop.shape == shape else uop.shrink(tuple((0, s) for s in shape))


def one(size: Any) -> bool:
    """Whether a size is 1."""
    return not isinstance(size, UOp) and size == 1


def product(sizes: Sequence[Any]) -> Any:
    """The product of sizes, symbolic ones included."""
    return normal_size(math.prod(sizes))


def sizes(op: str, values: Sequence[Any], bound: bool = True) -> Shape:
    """A shape given as numbers or one sequence.

    Args:
        bound: refuse variables without a value.

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
    """A size with variables in its normal form (an int if they cancel).

    Raises:
        ArgumentError: if a variable has no value.
        ShapeError: if the size is negative.
    """
    free = not bound and next(unbound(size), None) is not None
    if not free:
        check_bound(op, size)
    found = normal_size(size)
    if isinstance(found, UOp) and (found.vmin < 0 if free else found < 0):
        raise ShapeError(op, f"the size {size_text(found)} is negative", "sizes of at least 0")
    return found


def check_box(op: str, axis: int, begin: Any, end: Any, size: Any) -> None:
    """``0 <= begin <= end <= size`` for the values of the variables.

    Raises:
        ArgumentError: if a variable has no value.
        ShapeError: if it does not hold.
    """
    for v in (begin, end):
        if isinstance(v, UOp):
            check_bound(op, v)
    for low, high in ((0, begin), (begin, end), (end, size)):
        if normal_size(high - low) < 0:
            raise ShapeError(op, f"({size_text(begin)}; {size_text(end)}) leaves axis {axis} with size "
                             f"{size_text(size)}: {size_text(low)} is more than {size_text(high)}",
                             "0 <= begin <= end <= size")


def axis_of(op: str, x: Tensor, axis: Any, extra: int = 0) -> int:
    """An axis counted from the front.

    Args:
        extra: how many positions behind the last axis are allowed too.

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


def axis_and_size(op: str, x: Tensor, axis: Any) -> tuple[int, Any]:
    """An axis counted from the front, and its size.

    Raises:
        AxisError: if there is no such axis.
        ShapeError: if there are no axes at all.
    """
    if not x.ndim:
        raise ShapeError(op, "a 0-d tensor has no axes", ".reshape(1)")
    found = axis_of(op, x, axis)
    return found, x.shape[found]


def as_lines(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Tensors without axes as lines of one element, as PyTorch takes them, if all others are lines.

    >>> from tinsmith import Tensor
    >>> [t.shape for t in as_lines(Tensor(1), Tensor([1, 2]))]
    [(1,), (2,)]
    """
    if max(t.ndim for t in tensors) > 1:
        return tensors
    return tuple(t if t.ndim else t.reshape(1) for t in tensors)


def axis_or_dim(op: str, axis: Any, dim: Any, default: Any = None) -> Any:
    """The axes given as ``axis`` or by PyTorch's name for them, ``dim``.

    Raises:
        ArgumentError: if both are given.
    """
    if dim is None:
        return axis
    if axis != default:
        raise ArgumentError(op, f"axis={axis!r} and dim={dim!r} are two names of one argument", f"axis={axis!r} alone")
    return dim


def axes_of(op: str, x: Tensor, axis: int | Sequence[int] | None) -> tuple[int, ...]:
    """Axes to reduce, sorted: all of them for None.

    Raises:
        AxisError: for one that does not exist.
        ArgumentError: if one is given twice.
    """
    if axis is None:
        return tuple(range(x.ndim))
    given = tuple(axis) if isinstance(axis, (tuple, list)) else (axis,)
    found = sorted(axis_of(op, x, a) for a in given)
    if len(set(found)) != len(found):
        raise ArgumentError(op, f"axes {given} name one axis twice", "each axis once")
    return tuple(found) if x.ndim else ()


@functools.lru_cache(4096)
def broadcast_shape(op: str, *shapes: Shape) -> Shape:
    """The common shape by NumPy's rules; what has a variable is not repeated, also where its value is 1.

    >>> broadcast_shape("add", (3, 1), (4,))
    (3, 4)

    Raises:
        ShapeError: if there is none.
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
    """``uop`` repeated to ``shape``, which it broadcasts to."""
    if uop.shape == shape:
        return uop
    own, sized = _steps(uop.shape, shape)
    return as_sized(uop.reshape(own), sized).expand(shape)


@functools.lru_cache(4096)
def _steps(own: Shape, shape: Shape) -> tuple[Shape, Shape]:
    """A shape with as many axes as the one that it broadcasts to, and with its sizes where it does not repeat."""
    own = (1,) * (len(shape) - len(own)) + own
    return own, tuple(a if one(a) else b for a, b in zip(own, shape))


def weak_dtype(value: Any, other: DType) -> DType:
    """The dtype of a Python number beside a tensor of dtype ``other``: the tensor's own where it can hold the kind."""
    if isinstance(value, (bool, np.bool_)) or other.is_float:
        return other
    if isinstance(value, (float, np.floating)):
        return dtypes.default_float
    return dtypes.default_int if other.is_bool else other


def plain(value: Any) -> Any:
    """A number of NumPy's as Python's; anything else as it is."""
    return value.item() if isinstance(value, np.generic) else value


def constant(op: str, value: Any, dtype: DType) -> UOp:
    """A number as a node of ``dtype``.

    Raises:
        RangeError: if the dtype cannot hold it. (A float beside an integer dtype is cut, as a cast does.)
    """
    number = value.item() if isinstance(value, np.generic) else value
    check_range(op, number, dtype)
    return UOp.const(dtype, number)


def side_of(value: Any, dtype: DType) -> int:
    """1 for an integer above all values of an integer or bool dtype, -1 for one below, else 0."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)) or dtype.is_float:
        return 0
    own = weak_dtype(value, dtype)
    return int(value > own.max) - int(value < own.min)


def operand(op: str, value: Any, like: Tensor) -> Tensor:
    """``value`` as a tensor beside ``like``; numbers are weakly typed.

    Raises:
        DTypeError: if it is nothing that a tensor can be made of.
    """
    if isinstance(value, TensorBase):
        return value  # type: ignore[return-value]
    if isinstance(value, Scalar):
        return like._new(constant(op, value, weak_dtype(value, like.dtype)))
    if isinstance(value, UOp):
        return like._new(from_size(value) if value.dtype is dtypes.index else value)
    if isinstance(value, (np.ndarray, list, tuple)):
        return type(like)(value, device="CPU" if files.on_disk(like._device) else like.device, requires_grad=False)
    raise DTypeError(op, f"cannot combine a tensor with {shown(value)}", "a tensor, a number or an array")


def operand_node(op: str, value: Any, like: Tensor) -> UOp:
    """The node of ``operand``: numbers need no tensor of their own."""
    if isinstance(value, TensorBase):
        return value.uop
    if type(value) in (int, float, bool):
        return constant(op, value, weak_dtype(value, like.dtype))
    return operand(op, value, like).uop


def same_device(op: str, *tensors: Tensor) -> str:
    """The one device that all of ``tensors`` live on; constants live anywhere.

    Raises:
        DeviceError: if there are two.
    """
    return _one_device(op, [t.uop for t in tensors]) or tensors[0]._device


def _one_device(op: str, nodes: Sequence[UOp]) -> str | None:
    """The one device that nodes name, if any names one."""
    found: str | None = None
    for n in nodes:
        if n.device is not None and n.device != found:
            if found is not None:
                places = [members(d) if "," in d else d for d in dict.fromkeys(n.device for n in nodes) if d]
                raise DeviceError(op, f"tensors on different devices: {', '.join(map(str, places))}",
                                  f".to({places[0]!r})")
            found = n.device
    return found


def matched(op: str, *tensors: Tensor) -> list[UOp]:
    """Nodes of ``tensors`` in one dtype and one shape."""
    return matched_nodes(op, [t.uop for t in tensors])


def matched_nodes(op: str, nodes: list[UOp]) -> list[UOp]:
    """Nodes in one dtype and one shape."""
    first = nodes[0]
    for n in nodes:
        if n.dtype is not first.dtype or n.device != first.device or n.shape != first.shape:
            break
    else:
        return nodes
    dtype = promote(*[n.dtype for n in nodes])
    return list(in_one_shape(op, *[n.cast(dtype) for n in nodes]))


def in_one_dtype(*tensors: Tensor) -> list[Tensor]:
    """``tensors`` in the dtype that all of them promote to."""
    dtype = promote(*[t.dtype for t in tensors])
    return [t.cast(dtype) for t in tensors]


def in_one_shape(op: str, *nodes: UOp) -> tuple[UOp, ...]:
    """Nodes of one device in one shape."""
    _one_device(op, nodes)
    shape = broadcast_shape(op, *[n.shape for n in nodes])
    return tuple([expand_uop(n, shape) for n in nodes])


def float_of(x: Tensor) -> UOp:
    """The node of ``x`` as floats: integers become the default float."""
    return x.uop if x.dtype.is_float else x.uop.cast(dtypes.default_float)


def muladd(x: UOp, y: UOp | float, z: UOp | float) -> UOp:
    """x * y + z of a formula of ours, rounded once where the device can."""
    y, z = (v if isinstance(v, UOp) else x.const_like(v) for v in (y, z))
    return x.alu(Ops.MULADD, y, z)


def _widened(value: Any) -> Any:
    """A float of 16 bits or less as float32; anything else as it is."""
    narrow = isinstance(value, TensorBase) and value.dtype.is_float and value.dtype.itemsize <= 2
    return value.cast(dtypes.float32) if narrow else value


def rounded_once(method: Callable[Concatenate[Tensor, P], Tensor]) -> Callable[Concatenate[Tensor, P], Tensor]:
    """A method of several steps that computes 16-bit floats in float32 throughout and rounds once, at the end."""

    def wide(self: Tensor, /, *args: P.args, **kwargs: P.kwargs) -> Tensor:
        beside = [t.dtype for t in (*args, *kwargs.values()) if isinstance(t, TensorBase)]
        dtype = promote(self.dtype, *beside)
        if not dtype.is_float or dtype.itemsize > 2:
            return method(self, *args, **kwargs)
        return method(_widened(self), *map(_widened, args), **{k: _widened(v) for k, v in kwargs.items()}).cast(dtype)

    wide.__code__ = wide.__code__.replace(co_name=method.__name__)  # nodes and errors name the method that was called
    return functools.wraps(method)(wide)


# Optimizers look at attributes of theirs by these two: a capture takes code of nn that names vars() for code that may
# read any attribute of any object, and would guard them all.
def attribute(owner: Any, name: str) -> Any:
    """What an object itself has under a name, past properties of its class."""
    return vars(owner)[name]


def held_tensors(owner: Any) -> list[Tensor]:
    """The tensors among an object's attributes, and in lists, tuples and dicts there, each once."""
    found: dict[int, Any] = {}
    for value in vars(owner).values():
        values = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else [value]
        found.update((id(t), t) for t in values if isinstance(t, TensorBase))
    return list(found.values())
