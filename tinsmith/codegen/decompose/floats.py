"""Float formats: building blocks of the elementary functions, and emulation of 8-bit floats.

The building blocks are fitted constants, and operations on bits and on sums of two floats; each takes and returns nodes
of float32 or float64. 8-bit floats are stored as bytes and computed in float32, so that no renderer sees their dtypes.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from tinsmith.core.dtypes import DType, dtypes
from tinsmith.ir import Ops, UOp
from tinsmith.ir.uop import toposort

LOG2E = 1.4426950408889634
# log2(e) as a float32, and the rest that this rounds away
LOG2E_PARTS = 1.44269502162933349609375, 1.925963033500011e-08


class FloatFormat(NamedTuple):
    """A float format and the constants fitted to it. Polynomials list their coefficients from the lowest power up.

    Attributes:
        uint: the unsigned integer of the same width.
        mantissa, bias: explicit mantissa bits; exponent bias.
        ln2: log(2) in two parts, the first short enough that its product with any exponent is exact.
        exp_range, exp2_range: the results of arguments outside of it are 0 or infinity.
        exp: q in exp(r) = 1 + r + r²·q(r), abs(r) ≤ log(2)/2.
        expm1: q again, fitted to the relative error of exp(r) - 1.
        exp2: p in 2**r = 1 + r·p(r), abs(r) ≤ 1/2.
        sin: p in sin(r) = r + r³·p(r²).
        tanh_one, erf_one: the function rounds to 1 from this argument on.
        erf_small: p in erf(x) = x + x·p(x²), abs(x) ≤ 1.
        erf_large: p in erf(x) = 1 - exp(-p(x - 1)), x from 1 to erf_one.
    """

    uint: DType
    mantissa: int
    bias: int
    ln2: tuple[float, float]
    exp_range: tuple[float, float]
    exp2_range: tuple[float, float]
    exp: tuple[float, ...]
    expm1: tuple[float, ...]
    exp2: tuple[float, ...]
    sin: tuple[float, ...]
    tanh_one: float
    erf_one: float
    erf_small: tuple[float, ...]
    erf_large: tuple[float, ...]

    @property
    def magic(self) -> float:
        """Return the constant for which x + magic - magic rounds x to an integer; the low bits of x + magic hold that
        integer."""
        return 1.5 * 2.0**self.mantissa

    @property
    def sign(self) -> int:
        return 1 << (self.uint.bits - 1)

FORMATS = {
    dtypes.float32: FloatFormat(
        uint=dtypes.uint32, mantissa=23, bias=127,
        ln2=(0.693145751953125, 1.4286068203094173e-06),
        exp_range=(-104.0, 89.0), exp2_range=(-151.0, 129.0),
        exp=(0.4999999403953552, 0.1666652113199234, 0.04166838899254799, 0.00836874544620514, 0.0013814542908221483),
        expm1=(0.4999999701976776, 0.1666654348373413, 0.04166720062494278, 0.008366547524929047,
               0.0013882514322176576),
        exp2=(0.6931471824645996, 0.24022644758224487, 0.055503591895103455, 0.009618841111660004,
              0.0013391136890277267, 0.00015238004561979324),
        sin=(-0.1666666567325592, 0.008333302102982998, -0.0001983808760996908, 2.741733169386862e-06,
             -2.243939078994117e-08),
        tanh_one=9.25, erf_one=3.95,
        erf_small=(0.12837916612625122, -0.3761262595653534, 0.1128358542919159, -0.026853812858462334,
                   0.005188327748328447, -0.0008010193705558777, 7.853861461626366e-05),
        erf_large=(1.8496055603027344, 2.6389667987823486, 0.8431183099746704, 0.04150068387389183,
                   -0.009890885092318058, 0.0018261580262333155, -0.000185572644113563)),
    dtypes.float64: FloatFormat(
        uint=dtypes.uint64, mantissa=52, bias=1023,
        ln2=(0.6931471805598903, 5.497923018708371e-14),
        exp_range=(-746.0, 710.0), exp2_range=(-1076.0, 1025.0),
        exp=(0.5000000000000011, 0.1666666666666641, 0.04166666666652973, 0.008333333333494964, 0.0013888888943759793,
             0.00019841269505809636, 2.480149294955293e-05, 2.7557586766434223e-06, 2.763030633767334e-07,
             2.5000032018146102e-08),
        expm1=(0.5, 0.16666666666666677, 0.041666666666666505, 0.008333333333321653, 0.0013888888888962628,
               0.00019841269886073602, 2.480158717219611e-05, 2.7557244253945112e-06, 2.7557402798030286e-07,
               2.5109024572181808e-08, 2.087532329845701e-09),
        exp2=(0.6931471805599453, 0.2402265069591013, 0.055504108664820084, 0.00961812910759412, 0.0013333558146774657,
              0.00015403530457111292, 1.5252733493088217e-05, 1.3215435282720737e-06, 1.0178199588874166e-07,
              7.073783176817963e-09, 4.434768706734869e-10),
        sin=(-0.16666666666666666, 0.008333333333333194, -0.00019841269841209145, 2.755731921112431e-06,
             -2.5052106871581907e-08, 1.605893964298162e-10, -7.642989813364944e-13, 2.7211569291467523e-15),
        tanh_one=20.0, erf_one=5.95,
        erf_small=(0.12837916709551256, -0.3761263890318352, 0.11283791670944185, -0.026866170643111413,
                   0.005223977606118082, -0.0008548325929297858, 0.00012055293576463675, -1.4924712294668787e-05,
                   1.644713149225552e-06, -1.6206313231481635e-07, 1.371097841690133e-08, -7.779465283022883e-10),
        erf_large=(1.8496055099332482, 2.638967514234788, 0.8431072563586768, 0.04156109804180741,
                   -0.010033825374388726, 0.001977902567738249, -0.00023732248055852677, -2.6277878165217965e-05,
                   2.715911955606025e-05, -9.608912823981252e-06, 2.0597873603623065e-06, -1.4288903450431904e-07,
                   -9.753848731065875e-08, 5.203365140577936e-08, -1.491000214339067e-08, 2.863692338242003e-09,
                   -3.681927129439699e-10, 2.88103270881123e-11, -1.0388773386680766e-12)),
}


def fma(x: UOp, y: UOp | float, z: UOp | float) -> UOp:
    y, z = (v if isinstance(v, UOp) else UOp.const(x.dtype, v) for v in (y, z))
    return UOp(Ops.MULADD, None, (x, y, z))


def polynomial(x: UOp, coefficients: Sequence[float]) -> UOp:
    """Evaluate a polynomial by Horner's scheme; coefficients from the lowest power up."""
    result: UOp | float = coefficients[-1]
    for c in reversed(coefficients[:-1]):
        result = fma(x, result, c)
    assert isinstance(result, UOp)
    return result


def at_least(x: UOp, low: float) -> UOp:
    """Return the greater of x and ``low``, NaN if x is NaN. Compare and select are one instruction each, MAX is many.
    """
    return x.lt(low).where(low, x)


def at_most(x: UOp, high: float) -> UOp:
    return (x > high).where(high, x)


def split_sign(x: UOp) -> tuple[UOp, UOp]:
    """Return abs(x), and the sign bit of x as an unsigned integer."""
    f = FORMATS[x.dtype]
    bits = x.bitcast(f.uint)
    return (bits & (f.sign - 1)).bitcast(x.dtype), bits & f.sign


def flip_sign(x: UOp, sign: UOp) -> UOp:
    return (x.bitcast(sign.dtype) ^ sign).bitcast(x.dtype)


def rounded(x: UOp, factor: float, offset: int) -> tuple[UOp, UOp]:
    """Return n = x·factor rounded to nearest, as a float, and an unsigned integer whose low bits are n + offset."""
    f = FORMATS[x.dtype]
    shifted = x + (f.magic + offset) if factor == 1 else fma(x, factor, f.magic + offset)
    return shifted - (f.magic + offset), shifted.bitcast(f.uint)


def times_power(y: UOp, n: UOp, bits: UOp, scales: bool) -> UOp:
    """Return y·2**n: by SCALE where the target has it; else from n + 2·bias in the low bits of ``bits``, in two
    factors, so that overflow and underflow round once, correctly."""
    if scales:
        return UOp(Ops.SCALE, None, (y, n))
    f = FORMATS[y.dtype]
    half = bits >> 1
    first, second = half << f.mantissa, (bits - half) << f.mantissa
    return y * first.bitcast(y.dtype) * second.bitcast(y.dtype)


def reduce_ln2(x: UOp, n: UOp) -> UOp:
    """Return x - n·log(2)."""
    high, low = FORMATS[x.dtype].ln2
    return fma(n, -low, fma(n, -high, x))


def split_power(x: UOp, normal: bool = False) -> tuple[UOp, UOp]:
    """Split x = 2**e · (1 + f) with sqrt(1/2) ≤ 1 + f < sqrt(2), as (e, f), for finite x > 0 (Muller, 11.4; as in
    FDLIBM).

    The exponent becomes a float through the bits of 2**mantissa + exponent, which is cheaper than a conversion.
    ``normal``: x is not subnormal.
    """
    f = FORMATS[x.dtype]
    m, one = f.mantissa, f.bias << f.mantissa
    root = {23: 0x3F3504F3, 52: 0x3FE6A09E667F3BCD}[m]  # the bits of sqrt(1/2)
    zero: UOp | float = 2.0**m + f.bias
    if not (normal or is_normal(x)):
        small = x.lt(2.0 ** (1 - f.bias))
        x, zero = small.where(x * 2.0 ** (m + 1), x), small.where(UOp.const(x.dtype, zero + m + 1), zero)
    raised = x.bitcast(f.uint) + (one - root)
    mantissa = ((raised & ((1 << m) - 1)) + root).bitcast(x.dtype)
    exponent = ((raised >> m) | ((f.bias + m) << m)).bitcast(x.dtype)
    return exponent - zero, mantissa - 1.0


def is_normal(x: UOp) -> bool:
    """Return True if x is known to be positive, finite and not subnormal."""
    known = _range(x)
    return known is not None and 2.0 ** (1 - FORMATS[x.dtype].bias) <= known[0]


def _range(x: UOp, depth: int = 4) -> tuple[float, float] | None:
    """Return bounds of a float computed by few operations from integers (which is never NaN); else None."""
    if x.op is Ops.CONST:
        return x.arg, x.arg
    if x.op is Ops.CAST and x.src[0].dtype.is_int:
        low, high = x.src[0].bounds
        return float(low), float(high)
    if not depth or x.op not in (Ops.ADD, Ops.MUL, Ops.MULADD):
        return None
    known = [r for r in (_range(s, depth - 1) for s in x.src) if r is not None]
    if len(known) < len(x.src):
        return None
    a, b = known[:2]
    if x.op is Ops.ADD:
        return a[0] + b[0], a[1] + b[1]
    corners = [p * q for p in a for q in b]
    c = known[2] if x.op is Ops.MULADD else (0.0, 0.0)
    return min(corners) + c[0], max(corners) + c[1]


def log_limits(x: UOp, value: UOp) -> UOp:
    """Return ``value`` where 0 < x < inf; -inf at 0, NaN for x < 0 and NaN, inf at inf."""
    if is_normal(x):
        return value
    inf = float("inf")
    at_most_zero = x.eq(0.0).where(UOp.const(x.dtype, -inf), float("nan"))
    return x.eq(inf).where(x, (x > 0.0).where(value, at_most_zero))


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

FP8_FORMATS: Final = {
    dtypes.fp8e4m3: Fp8Format(3, 7, 0x7E, 0x7F, 0x7F, True),
    dtypes.fp8e5m2: Fp8Format(2, 15, 0x7B, 0x7C, 0x7F, True),
    dtypes.fp8e4m3fnuz: Fp8Format(3, 8, 0x7F, 0x80, 0x80, False),
    dtypes.fp8e5m2fnuz: Fp8Format(2, 16, 0x7F, 0x80, 0x80, False),
}
_INF: Final = 0x7F800000  # the bits of infinity in float32


def as_bytes(sink: UOp) -> UOp:
    """Return a kernel graph in which 8-bit floats are bytes and arithmetic on them is done in float32."""
    order = toposort(sink)
    if not any(n.dtype.scalar in FP8_FORMATS for n in order):
        return sink
    new: dict[UOp, UOp] = {}
    for n in order:
        new[n] = _rewritten(n, tuple(new[s] for s in n.src))
    return new[sink]


def _rewritten(n: UOp, src: tuple[UOp, ...]) -> UOp:
    own = n.dtype
    if n.op is Ops.CAST and (own in FP8_FORMATS or n.src[0].dtype in FP8_FORMATS):
        value = decoded(src[0], n.src[0].dtype) if n.src[0].dtype in FP8_FORMATS else src[0].cast(dtypes.float32)
        return encoded(value, own) if own in FP8_FORMATS else value.cast(own)
    if n.op is Ops.BITCAST and own in FP8_FORMATS:
        return src[0].bitcast(dtypes.uint8)
    if n.op is Ops.CONST and own in FP8_FORMATS:
        return UOp.const(dtypes.uint8, int(np.asarray(n.arg, own.numpy).view(np.uint8)))
    if n.op is Ops.PARAM and own.scalar in FP8_FORMATS:
        return UOp(n.op, dtypes.uint8.ptr() if own.pointer else dtypes.uint8, (), n.arg)
    if own in FP8_FORMATS:
        return UOp(n.op, dtypes.uint8, src, n.arg)
    return n if src == n.src else UOp(n.op, own, src, n.arg)


def decoded(byte: UOp, dtype: DType) -> UOp:
    """Return the float32 value of a byte of ``dtype``."""
    f = FP8_FORMATS[dtype]
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
    f = FP8_FORMATS[dtype]
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
