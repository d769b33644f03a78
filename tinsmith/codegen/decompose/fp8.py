"""Emulation of 8-bit floats: stored as bytes, computed in float32. No renderer sees their dtypes."""
from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from tinsmith.core.dtypes import DType, dtypes
from tinsmith.ir import Ops, UOp
from tinsmith.ir.uop import toposort


class Fp8Format(NamedTuple):
    """An 8-bit float format.

    Attributes:
        mantissa, bias: mantissa bits; exponent bias.
        largest: the byte of the greatest finite number.
        overflow: the byte of greater numbers.
        nan: the byte of NaN.
        signed_nan: True if infinities and NaN have a sign; otherwise there is one NaN and no negative zero.
    """

    mantissa: int
    bias: int
    largest: int
    overflow: int
    nan: int
    signed_nan: bool


FORMATS: Final = {
    dtypes.fp8e4m3: Fp8Format(3, 7, 0x7E, 0x7F, 0x7F, True),
    dtypes.fp8e5m2: Fp8Format(2, 15, 0x7B, 0x7C, 0x7F, True),
    dtypes.fp8e4m3fnuz: Fp8Format(3, 8, 0x7F, 0x80, 0x80, False),
    dtypes.fp8e5m2fnuz: Fp8Format(2, 16, 0x7F, 0x80, 0x80, False),
}
_INF: Final = 0x7F800000  # the bits of infinity in float32


def as_bytes(sink: UOp) -> UOp:
    """Return a kernel graph in which 8-bit floats are bytes and arithmetic on them is done in float32."""
    order = toposort(sink)
    if not any(n.dtype.scalar in FORMATS for n in order):
        return sink
    new: dict[UOp, UOp] = {}
    for n in order:
        new[n] = _rewritten(n, tuple(new[s] for s in n.src))
    return new[sink]


def _rewritten(n: UOp, src: tuple[UOp, ...]) -> UOp:
    own = n.dtype
    if n.op is Ops.CAST and (own in FORMATS or n.src[0].dtype in FORMATS):
        value = decoded(src[0], n.src[0].dtype) if n.src[0].dtype in FORMATS else src[0].cast(dtypes.float32)
        return encoded(value, own) if own in FORMATS else value.cast(own)
    if n.op is Ops.BITCAST and own in FORMATS:
        return src[0].bitcast(dtypes.uint8)
    if n.op is Ops.CONST and own in FORMATS:
        return UOp.const(dtypes.uint8, int(np.asarray(n.arg, own.numpy).view(np.uint8)))
    if n.op is Ops.PARAM and own.scalar in FORMATS:
        return UOp(n.op, dtypes.uint8.ptr() if own.pointer else dtypes.uint8, (), n.arg)
    if own in FORMATS:
        return UOp(n.op, dtypes.uint8, src, n.arg)
    return n if src == n.src else UOp(n.op, own, src, n.arg)


def decoded(byte: UOp, dtype: DType) -> UOp:
    """Return the float32 value of a byte of ``dtype``."""
    f = FORMATS[dtype]
    bits = byte.cast(dtypes.uint32)
    size, sign = bits & 0x7F, (bits & 0x80) << 24
    normal = (size << (23 - f.mantissa)) + ((127 - f.bias) << 23)
    small = (size.cast(dtypes.float32) * 2.0 ** (1 - f.bias - f.mantissa)).bitcast(dtypes.uint32)
    wide = size.lt(1 << f.mantissa).where(small, normal)
    if f.signed_nan:
        wide = (size > f.largest).where(size.eq(f.nan).where(_const(_INF | 1 << 22), _const(_INF)), wide)
        if f.nan > f.overflow:  # in a format with infinities, greater bytes are NaN
            wide = (size > f.overflow).where(_const(_INF | 1 << 22), wide)
        return (wide | sign).bitcast(dtypes.float32)
    return bits.eq(f.nan).where(_const(_INF | 1 << 22), wide | sign).bitcast(dtypes.float32)


def encoded(value: UOp, dtype: DType) -> UOp:
    """Round a float32 to a byte of ``dtype``, to nearest with ties to even; greater values overflow."""
    f = FORMATS[dtype]
    bits = value.bitcast(dtypes.uint32)
    size, sign = bits & 0x7FFFFFFF, (bits >> 24) & 0x80
    shift = 23 - f.mantissa
    odd = (size >> shift) & 1
    normal = ((size + ((1 << (shift - 1)) - 1) + odd) >> shift) - ((127 - f.bias) << f.mantissa)
    # adding it rounds to multiples of the subnormal step, which is the last bit of this float32
    unit = 2.0 ** (24 - f.bias - f.mantissa)
    small = (size.bitcast(dtypes.float32) + unit).bitcast(dtypes.uint32) - int(np.float32(unit).view(np.uint32))
    byte = size.lt((128 - f.bias) << 23).where(small, normal)
    byte = (size.lt((_INF >> 1) + (_INF >> 2)) & (byte.lt(f.largest + 1))).where(byte, _const(f.overflow))
    byte = (size > _INF).where(_const(f.nan), byte)
    byte = (byte | sign) if f.signed_nan else byte.eq(0).where(_const(0), byte | sign)
    return byte.cast(dtypes.uint8)


def _const(value: Any) -> UOp:
    return UOp.const(dtypes.uint32, value)
