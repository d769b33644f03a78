"""Values and functions of the host: Python data as nodes, known values, and host calls.

Python numbers become constants; other data are copied. Known values are values that the host can read without running a
kernel: lists, arrays, tensors made of them, and small realized tensors in host-addressable memory. Such an index that
is out of range raises an error where it is used. Any other out-of-range index reads 0, and its write is dropped;
``CHECKED=1`` reports it.

A host call is an operation that a function of the host computes from complete values in host-addressable memory.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np

from tinsmith.backend.device import Device
from tinsmith.backend.memory import Buffer
from tinsmith.backend.npy.device import check_file
from tinsmith.backend.shards import Shards
from tinsmith.core.dtypes import DType, dtypes
from tinsmith.core.errors import AxisError, DTypeError, RangeError, ShapeError, shown
from tinsmith.ir import Ops, UOp
from tinsmith.ir.algebra.sizes import normal_size, symbols
from tinsmith.runtime.launch import recorders, seen_on_host
from tinsmith.schedule.values import STAGED
from tinsmith.tensor.interop import dlpack
from tinsmith.tensor.realize import is_realized

if TYPE_CHECKING:
    from tinsmith.tensor.abstract import AbstractTensor, T

_FEW: Final = 1 << 14  # elements; a smaller buffer is read in less time than a method call takes
_SAME_VALUES = (Ops.COPY, Ops.CONTIGUOUS, Ops.DETACH, Ops.SHARD)


def host_values(uop: UOp) -> np.ndarray[Any, Any] | None:
    """Return the values of host data below views, casts and copies; None for anything computed or realized.

    >>> from tinsmith import Tensor
    >>> host_values(Tensor([[1, 2], [3, 4]])[:, 1].uop), host_values((Tensor([1, 2]) + 1).uop)
    (array([2, 4], dtype=int32), None)
    """
    above: list[UOp] = []
    while uop.op.kind in ("movement", "cast") or uop.op in _SAME_VALUES:
        if uop.op not in _SAME_VALUES:
            above.append(uop)
        uop = uop.src[0]
    if uop.op is Ops.CONST:
        values = np.asarray(uop.arg, uop.dtype.numpy)
    elif uop.op is Ops.BUFFER and uop.device == "NPY":
        values = check_file(uop.arg.opaque).view(uop.dtype.numpy)
    else:
        return None
    for n in reversed(above):
        if n.op.kind == "movement" and any(True for _ in symbols(n.arg)):
            return None
        assert n.op.meaning is not None
        values = n.op.meaning(n, values)
    return values


def _seen_values(uop: UOp) -> np.ndarray[Any, Any] | None:
    """Return the values of a small realized tensor in host-addressable memory, else None. Also None during a capture,
    because a replay may find other values there."""
    base = uop.base
    if recorders or base.op is not Ops.BUFFER or isinstance(base.arg, Shards) or not is_realized(uop):
        return None
    few = not isinstance(uop.size, UOp) and 0 < base.arg.size <= _FEW
    return seen_on_host(uop) if few and base.arg.is_allocated() and base.arg.host_view() is not None else None


def check_indices(op: str, index: AbstractTensor, low: int, size: Any, what: str = "index", ignored: int | None = None,
                  seen: bool = False) -> None:
    """Check an index tensor whose values the host knows against the range of an axis.

    Args:
        low: the least valid index.
        size: the size of the axis; a symbolic size is not checked.
        what: the role of the index in error messages.
        ignored: a value that is valid although out of range (``ignore_index``).
        seen: check small realized tensors in host-addressable memory, too.

    Raises:
        AxisError: naming the first index that is out of range.
    """
    if isinstance(size, UOp):
        return
    values = host_values(index.uop)
    if values is None and seen:
        values = _seen_values(index.uop)
    if values is None:
        return
    outside = (values < low) | (values >= size)
    if ignored is not None:
        outside &= values != ignored
    if outside.any():
        more = ", and ignore_index=... for rows to leave out" if what == "class" else ""
        raise AxisError(op, f"{what} {values[outside].flat[0]} is out of range for an axis of size {size}",
                        f"{low} to {size - 1}{more}")


def on_host(*tensors: AbstractTensor) -> bool:
    """Return True if functions of the host can read these tensors, and all their sizes are positive constants."""
    return all(isinstance(t.device, str) and Device[t.device].calls_host and all(
        isinstance(s, int) and s > 0 for s in t.shape) for t in tensors)


def host_value(name: str, shape: tuple[int, ...], *sources: T, after: Sequence[T] = ()) -> T:
    """Return the result of the function ``name`` of ``ir.ops.scans``, with the dtype of the first source.

    Args:
        shape: shape of the result.
        sources: the arguments, of one dtype; ``on_host`` must be true for them.
        after: tensors of any dtype that are computed before the call, and before the sources if these allow it. The
            function is given them before its arguments, and must not read them.
    """
    read = [_in_memory(t.uop) for t in sources]
    late = [n for n in dict.fromkeys(_in_memory(t.uop) for t in after) if n not in read]
    shapes = (*((1,) for _ in late), *(tuple(t.shape) for t in sources))
    return sources[0]._new(UOp(Ops.HOST, sources[0].dtype, (*late, *read), (name, shapes, shape)))


def _in_memory(node: UOp) -> UOp:
    """Return a node with the elements of ``node`` in memory in row-major order; its shape may differ."""
    flat = node
    while flat.op in (Ops.RESHAPE, Ops.DETACH):
        flat = flat.src[0]
    return flat if flat.op is Ops.BUFFER or flat.op in STAGED else UOp(Ops.CONTIGUOUS, None, (node,))


class TinygradRules:
    """tinygrad's rules, which ``compat`` turns on: numbers wrap, None is a line of no elements, and backward fills the
    gradients of computed tensors that no leaf is below."""

    on: ClassVar[bool] = False


def from_data(data: Any, device: str, dtype: DType | None) -> UOp:
    """Return a node for Python data: scalars become constants, other data are copied from a NumPy array.

    Raises:
        DTypeError: if no dtype holds it.
        ShapeError: if nested lists are ragged.
        RangeError: if a number does not fit the dtype.
    """
    if data is None and TinygradRules.on:
        return UOp.const(dtype or dtypes.default_float, 0).expand_to((0,))
    if isinstance(data, (bool, int, float)):
        kind = dtype or dtypes.of(data)
        check_range("Tensor", data, kind)
        return UOp.const(kind, data)
    if isinstance(data, np.generic):
        return UOp.const(dtype or dtypes.from_numpy(data.dtype), data.item())
    if hasattr(data, "__dlpack__") and not isinstance(data, np.ndarray):
        data = dlpack.on_host(data)
    array = _to_array(data, dtype)
    if array.ndim == 0:
        return UOp.const(dtypes.from_numpy(array.dtype), array.item())
    if array.size == 0:
        return UOp.const(dtypes.from_numpy(array.dtype), 0).expand_to(array.shape)
    dense = np.ascontiguousarray(array, array.dtype.newbyteorder("="))
    if dense.dtype == np.bool_:
        dense = dense.view(np.uint8) != 0  # kernels read a byte other than 0 and 1 in their own ways
    elif dense is data or dense.base is not None:
        dense = dense.copy()  # the caller may change the array before the copy is made
    found = dtypes.from_numpy(dense.dtype)
    buffer = Buffer("NPY", dense.size, found, opaque=dense.reshape(-1).view(np.uint8))
    return UOp(Ops.BUFFER, found, (), buffer).copy_to(device).reshape(dense.shape)


def from_size(size: UOp, dtype: DType | None = None) -> UOp:
    """Return a symbolic integer as a value of ``dtype``: by default the default int, or int64 if its bounds need it."""
    if dtype is None:
        small = dtypes.default_int.min <= size.vmin and size.vmax <= dtypes.default_int.max
        dtype = dtypes.default_int if small else dtypes.int64
    normal = normal_size(size)
    return normal.cast(dtype) if isinstance(normal, UOp) else UOp.const(dtype, normal)


def _to_array(data: Any, dtype: DType | None) -> np.ndarray[Any, Any]:
    if isinstance(data, np.ndarray):
        return _numeric(data, data)
    if isinstance(data, (bytes, bytearray, memoryview)):
        return np.frombuffer(data, np.uint8)
    if isinstance(data, (list, tuple)):
        _refuse_tensors(data)
    try:
        array = np.array(data)
    except ValueError as error:
        raise ShapeError("Tensor", f"ragged nested lists: {error}", "lists of equal lengths") from None
    _numeric(array, data)
    if dtype is not None:
        if array.dtype.kind in "iu" and array.size:
            check_range("Tensor", int(array.min()), dtype)
            check_range("Tensor", int(array.max()), dtype)
        return array.astype(dtype.numpy)
    if array.dtype == np.float64:
        return array.astype(dtypes.default_float.numpy)
    if array.dtype != np.int64:
        return array
    fits = dtypes.of(array.min(initial=0)) is dtypes.of(array.max(initial=0)) is dtypes.default_int
    return array.astype(dtypes.default_int.numpy) if fits else array


def _refuse_tensors(data: Sequence[Any]) -> None:
    """Raise DTypeError for tensors inside a list: NumPy would read them one by one and lose their gradients."""
    for v in data:
        if isinstance(getattr(v, "uop", None), UOp):
            raise DTypeError("Tensor", f"cannot make a tensor of a {type(data).__name__} of tensors",
                             "Tensor.stack(...) or .cat(...), or .tolist() of each")
        if isinstance(v, (list, tuple)):
            _refuse_tensors(v)
        elif len(data) > 8 and isinstance(v, (bool, int, float)):
            return  # numbers all along: the rest is NumPy's to look at


def check_range(op: str, value: float, dtype: DType) -> None:
    """Refuse a Python number that a tensor of ``dtype`` would wrap. (An array's conversion wraps, as NumPy's does.)

    Raises:
        RangeError: naming the dtype and its limits.
    """
    if dtype.is_int and not TinygradRules.on and not dtype.min <= value <= dtype.max:
        raise RangeError(op, f"{dtype!r} holds integers from {dtype.min} to {dtype.max}, not {value}", "a wider dtype")
    if dtype.is_float and isinstance(value, int) and abs(value) > _LARGEST:
        raise RangeError(op, "the integer is too large for a float", "a smaller number")

_NAMED_FLOATS = {d.numpy.name for d in (dtypes.bfloat16, *dtypes.fp8s)}  # NumPy knows these as bytes
_LARGEST = int(np.finfo(np.float64).max)


def _numeric(array: np.ndarray[Any, Any], data: Any) -> np.ndarray[Any, Any]:
    """Return ``array`` if a dtype can hold its elements; raise an error that describes ``data`` otherwise."""
    if array.dtype.kind in "biuf" or array.dtype.name in _NAMED_FLOATS:
        return array
    if data is None:
        what = "None"
    elif array.dtype.kind == "O" and array.ndim:
        stray = next((v for v in array.flat if not isinstance(v, (bool, int, float, np.generic))), None)
        if stray is None and all(isinstance(v, int) for v in array.flat):
            big = max(array.flat, key=abs)
            raise DTypeError("Tensor", f"no dtype holds the integer {big}", "a float, or smaller numbers")
        what = f"{type(data).__name__} with an element {shown(stray)}"
    else:
        given = shown(data)
        what = f"{array.dtype.name!r} data" if isinstance(data, np.ndarray) else given
    raise DTypeError("Tensor", f"cannot make a tensor of {what}", "numbers, lists of numbers, or arrays of them")
