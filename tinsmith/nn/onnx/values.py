"""Values of ONNX models (tensors, lists of tensors, None, arrays of text), and ONNX element types.

Types of less than 8 bits are kept in 8, and the floats of 4 bits and the scales of 8 bits in float32: an operator that
makes them rounds to what they can hold.
"""
from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from tinsmith.core.dtypes import DType, dtypes
from tinsmith.core.object_lifetime import WeakTable
from tinsmith.ir import Ops
from tinsmith.ir.interpret.tensor import evaluate
from tinsmith.ir.uop import toposort
from tinsmith.tensor.tensor import Tensor

STRING: Final = 8
DTYPES: Final = {
    1: dtypes.float32, 2: dtypes.uint8, 3: dtypes.int8, 4: dtypes.uint16, 5: dtypes.int16, 6: dtypes.int32,
    7: dtypes.int64, 9: dtypes.bool, 10: dtypes.float16, 11: dtypes.float64, 12: dtypes.uint32, 13: dtypes.uint64,
    16: dtypes.bfloat16, 17: dtypes.fp8e4m3, 18: dtypes.fp8e4m3fnuz, 19: dtypes.fp8e5m2, 20: dtypes.fp8e5m2fnuz,
    21: dtypes.uint8, 22: dtypes.int8, 23: dtypes.float32, 24: dtypes.float32, 25: dtypes.uint8, 26: dtypes.int8}
NARROW: Final = {21: (0, 15), 22: (-8, 7), 25: (0, 3), 26: (-2, 1)}  # the least and greatest of integers below 8 bits
FLOAT4: Final = 23
SCALE8: Final = 24
FEW: Final = 64  # integers that may be a shape
NUMBER_OF: Final = {dtype: number for number, dtype in reversed(DTYPES.items())}


class Declared(NamedTuple):
    """The declaration of a graph's input or output.

    Attributes:
        shape: a size or symbolic name per axis; empty if the file does not say.
        dtype: the dtype; None for text.
        number: ONNX's number of the element type.
        ranked: True if the file says the number of axes.
    """

    shape: tuple[int | str, ...]
    dtype: DType | None
    number: int = 0
    ranked: bool = False


def known(t: Tensor) -> np.ndarray[Any, Any]:
    """Return a tensor's values. They are computed on the host if all its data are on the host, so that shapes need no
    kernel."""
    leaves = {}
    for node in toposort([t.uop]):
        if node.op is Ops.BUFFER:
            if node.device != "NPY":
                return t.numpy()
            leaves[node] = node.arg.opaque.view(node.dtype.numpy)
    return evaluate([t.uop], leaves)[0]


def ints(value: Any) -> list[int]:
    """Integers of an input or an attribute."""
    if isinstance(value, Tensor):
        return [int(n) for n in known(value).reshape(-1)]
    return [int(n) for n in (value if isinstance(value, (list, tuple)) else [value])]


def number(value: Any) -> Any:
    """A Python number of an input or an attribute."""
    return known(value).reshape(-1)[0].item() if isinstance(value, Tensor) else value


def constant(array: Any, dtype: DType | None = None) -> Tensor:
    """Data of the host as a tensor that ``known`` can read."""
    return Tensor(np.asarray(array), dtype=dtype, requires_grad=False)


def kept(value: Any) -> Any:
    """Return a constant for storage between runs; small integer tensors become arrays, which a capture may read."""
    few = isinstance(value, Tensor) and not value.dtype.is_float and value.numel() <= FEW and value not in _types
    return known(value) if few else value


def fresh(value: Any) -> Any:
    """Return a constant for a run."""
    return constant(value) if isinstance(value, np.ndarray) and value.dtype != object else value


def folded(t: Tensor) -> Tensor:
    """Constant-fold a small integer tensor that depends on host data only, to keep shape arithmetic short."""
    if t.dtype.is_float or t.numel() > FEW or any(n.op is Ops.BUFFER and n.device != "NPY" for n in toposort([t.uop])):
        return t
    return constant(known(t))


_types: WeakTable[Tensor, int] = WeakTable()  # of tensors whose element type is narrower than our dtype


def noted(t: Tensor, number: int) -> Tensor:
    """Record that a tensor has an ONNX element type without a Tinsmith dtype, and return it."""
    if number in NARROW or number in (FLOAT4, SCALE8):
        _types[t] = number
    return t


def type_of(t: Tensor) -> int:
    """Return the number of a tensor's element type."""
    return _types.get(t, NUMBER_OF[t.dtype])


def cast(t: Tensor, to: int, saturate: bool = True, round_mode: str = "up") -> Tensor:
    """Return a tensor as ONNX's element type number ``to``; ``round_mode`` is that of scales."""
    if to == SCALE8 and type_of(t) != SCALE8:
        return noted(_to_scale(t.float(), saturate, round_mode), to)
    return noted(_cast(t, to, saturate), to)


def _cast(t: Tensor, to: int, saturate: bool) -> Tensor:
    dtype = DTYPES[to]
    if to in NARROW:
        low, high = NARROW[to]
        span = high - low + 1
        wrapped = t.cast(dtypes.int32) & (span - 1)
        return (wrapped > high).where(wrapped - span, wrapped).cast(dtype)
    if to == FLOAT4:
        return rounded_to_float4(t.float())
    if dtype in _GREATEST and t.dtype is not dtype:
        return _to_float8(t.float() if t.dtype is not dtypes.float64 else t, dtype, saturate)
    return t.cast(dtype)


def _to_scale(t: Tensor, saturate: bool, round_mode: str) -> Tensor:
    """Round a float32 to a power of two from 2**-127 to 2**127 (the scale format e8m0)."""
    bits = t.bitcast(dtypes.uint32).cast(dtypes.int32)
    exponent, fraction = (bits >> 23) & 0xFF, bits & 0x7FFFFF
    half = 0x400000
    up = (fraction > half) | ((fraction == half) & (exponent > 0)) if round_mode == "nearest" else fraction > 0
    if round_mode == "down":
        up = fraction < 0
    found = (exponent + up.cast(dtypes.int32)).minimum(254 if saturate else 255)
    power = (found == 0).where(half, found << 23).cast(dtypes.uint32).bitcast(dtypes.float32)
    return ((exponent == 255) | (found == 255)).where(float("nan"), power)


_GREATEST: Final = {dtypes.fp8e4m3: 448.0, dtypes.fp8e4m3fnuz: 240.0, dtypes.fp8e5m2: 57344.0,
                    dtypes.fp8e5m2fnuz: 57344.0}


def _to_float8(t: Tensor, dtype: DType, saturate: bool) -> Tensor:
    most = _GREATEST[dtype]
    if saturate:
        return t.isnan().where(t, t.clip(-most, most)).cast(dtype)
    return t.cast(dtype)


def rounded_to_float4(t: Tensor) -> Tensor:
    """Return the nearest of 0, 0.5, 1, 1.5, 2, 3, 4, 6 with a sign, ties to even."""
    size = t.abs().clip(0, 6)
    step = (size < 2).where(0.5, (size < 4).where(1.0, 2.0))
    return ((size / step).round() * step).copysign(t)


def axis_of(axis: int, ndim: int) -> int:
    return axis + ndim if axis < 0 else axis


def to_float_and_back(t: Tensor) -> tuple[Tensor, DType]:
    """Return a tensor in at least float32, and the type that the result is to have."""
    return (t.float() if t.dtype.itemsize < 4 or not t.dtype.is_float else t), t.dtype
