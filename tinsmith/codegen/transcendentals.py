"""exp, exp2, log, log2, sin, tanh and erf written with basic operations, for float32 and float64.

Every expression is free of branches, tables and calls, so a vector unit computes all its lanes at once. Arguments are
reduced as in W. J. Cody and W. Waite, "Software Manual for the Elementary Functions" (1980) and J.-M. Muller,
"Elementary Functions" (3rd ed., 2016, ch. 10 and 11); the polynomials are minimax fits made for this file with the
Remez algorithm (Muller, ch. 3) in 60-digit arithmetic. NaN passes through; signed zeros, infinities and denormals
come out as IEEE 754 wishes.

The accuracies below hold whether MULADD rounds once or twice and whether or not a compiler contracts ``a * b + c``: a
product whose exactness matters has few enough bits to be exact. They do not hold if a compiler may reassociate
(``-ffast-math``), because ``(x + magic) - magic`` is what rounds to an integer here, nor where denormals are flushed.

Largest error found among millions of samples, in units in the last place (ulp), MULADD fused / not fused:

======  ==================  ==================  ==========================================
op      float32             float64             range
======  ==================  ==================  ==========================================
EXP     1.01 / 0.97         1.02 / 0.99         all; float32 0.89 with SCALE
EXP2    0.83 / 1.06         0.94 / 1.21         all
LOG     0.91 / 0.90         0.83 / 0.83         all, denormals too
LOG2    1.04 / 1.32         1.70 / 1.70         all, denormals too
SIN     1.7 / 1.9           1.9 / 2.0           float32: 2.0 beyond 2**17; float64: abs(x) ≤ 1e8
TANH    2.5 / 2.5           2.5 / 2.5           all
ERF     0.98 / 1.22         1.0 / 1.0           all
======  ==================  ==================  ==========================================

Beyond 1e8 the float64 sine is that of an argument x·(1 + d) with abs(d) ≤ 2**-51: as good as x itself is known if it
was rounded, no better.
"""
from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tinsmith.core.dtypes import DType, dtypes
from tinsmith.ir.ops import Op, Ops
from tinsmith.ir.rewrite import Pat, Rule, RuleSet
from tinsmith.ir.uop import UOp

_LOG2E = 1.4426950408889634
_PI = 3.141592653589793
_INV_PI = 0.3183098861837907


class _Format(NamedTuple):
    """A float format and the constants fitted to it. Polynomials list their coefficients from the lowest power up.

    Attributes:
        uint: the unsigned integer of the same width.
        mantissa, bias: explicit mantissa bits; exponent bias.
        ln2: log(2) in two parts, the first short enough that its product with any exponent is exact.
        exp_range, exp2_range: arguments beyond give 0 or infinity all the same.
        exp: q in exp(r) = 1 + r + r²·q(r), abs(r) ≤ log(2)/2.
        expm1: q again, fitted to the relative error of exp(r) - 1.
        exp2: p in 2**r = 1 + r·p(r), abs(r) ≤ 1/2.
        sin: p in sin(r) = r + r³·p(r²).
        tanh_one, erf_one: from here on the function rounds to 1.
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
        """x + magic - magic rounds x to an integer, which the low bits of x + magic hold meanwhile."""
        return 1.5 * 2.0**self.mantissa

    @property
    def sign(self) -> int:
        return 1 << (self.uint.bits - 1)


_FORMATS = {
    dtypes.float32: _Format(
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
    dtypes.float64: _Format(
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

# log(1 + f) = f + f²·p(f) and log2(1 + f) = f + f·(log2(e) - 1 + f·p(f)) for sqrt(1/2) ≤ 1 + f < sqrt(2), float32
_LOG32 = (-0.49999988079071045, 0.33333325386047363, -0.25001582503318787, 0.2000197470188141, -0.16609081625938416,
          0.14181824028491974, -0.13242992758750916, 0.12904445827007294, -0.07621783018112183)
_LOG2_32 = (0.4426950514316559, -0.7213473320007324, 0.4808982312679291, -0.36069658398628235, 0.2885674834251404,
            -0.23961840569972992, 0.2046004682779312, -0.19105598330497742, 0.1861717849969864, -0.10995908826589584)
# log((1+s)/(1-s)) = 2s + s·z·p(z), z = s², float64
_LOG64 = (0.6666666666666734, 0.3999999999941509, 0.2857142874231096, 0.22222198579953545, 0.18183564016218556,
          0.15314057648857443, 0.1479588541742267)

# pi in parts: for float32 of 24 bits each, whose products with a whole number are rounded together with a sum; for
# float64 the first three have 28 bits, so that their products are exact
_PI_PARTS = {dtype: tuple(float.fromhex(h) for h in parts) for dtype, parts in (
    (dtypes.float32, ("0x1.921fb6p+1", "-0x1.777a5cp-24", "-0x1.ee59dap-49")),
    (dtypes.float64, ("0x1.921fb54p+1", "0x1.10b461p-29", "0x1.a62633p-57", "0x1.45c06e0e68948p-85")))}
_FAR = 2.0**17  # from here on the parts for float32 do not suffice

# 1/pi for float32 arguments from each bound up. An argument of 2**50 or more is a multiple of 2**27, so the bits of
# 1/pi worth a multiple of 2**-26 only add whole turns to the product: they are left out, and what follows is kept in
# three parts. The first two have 27 bits, so that their products with a float32 are exact in float64.
_PAYNE_HANEK = tuple((least, tuple(float.fromhex(h) for h in parts)) for least, parts in (
    (0.0, ("0x1.45f307p-2", "-0x1.1b1bbe8p-29", "-0x1.6b01ec5417056p-56")),
    (2.0**50, ("-0x1.1b1bbe8p-29", "-0x1.6b01ec8p-56", "0x1.5f47d4d377037p-83")),
    (2.0**78, ("-0x1.6b01ec4p-56", "-0x1.4170568p-84", "0x1.377036d8a5665p-111")),
    (2.0**106, ("-0x1.4170564p-84", "-0x1.911f928p-112", "0x1.8a5664f10e41p-139"))))


def _fma(x: UOp, y: UOp | float, z: UOp | float) -> UOp:
    y, z = (v if isinstance(v, UOp) else UOp.const(x.dtype, v) for v in (y, z))
    return UOp(Ops.MULADD, None, (x, y, z))


def _polynomial(x: UOp, coefficients: Sequence[float]) -> UOp:
    """Horner's scheme; coefficients from the lowest power up."""
    result: UOp | float = coefficients[-1]
    for c in reversed(coefficients[:-1]):
        result = _fma(x, result, c)
    assert isinstance(result, UOp)
    return result


def _at_least(x: UOp, low: float) -> UOp:
    """The greater of x and ``low``, NaN if x is NaN. Compare and choose are one machine instruction, MAX is many."""
    return x.lt(low).where(low, x)


def _within(x: UOp, low: float, high: float) -> tuple[UOp, UOp]:
    """Whether x is so low that its power is 0, and x where it is not, at most ``high``. What is hidden (-inf) is not
    computed as a denormal number that vanishes, which takes many cycles."""
    below = x.lt(low)
    return below, _at_most(below.where(0.0, x), high)


def _at_most(x: UOp, high: float) -> UOp:
    return (x > high).where(high, x)


def _split_sign(x: UOp) -> tuple[UOp, UOp]:
    """abs(x), and the sign bit of x as an unsigned integer."""
    f = _FORMATS[x.dtype]
    bits = x.bitcast(f.uint)
    return (bits & (f.sign - 1)).bitcast(x.dtype), bits & f.sign


def _flip_sign(x: UOp, sign: UOp) -> UOp:
    return (x.bitcast(sign.dtype) ^ sign).bitcast(x.dtype)


def _round(x: UOp, factor: float, offset: int) -> tuple[UOp, UOp]:
    """n = x·factor rounded to nearest, as a float, and an unsigned integer whose low bits are n + offset."""
    f = _FORMATS[x.dtype]
    shifted = x + (f.magic + offset) if factor == 1 else _fma(x, factor, f.magic + offset)
    return shifted - (f.magic + offset), shifted.bitcast(f.uint)


def _times_power(y: UOp, bits: UOp) -> UOp:
    """y·2**n from n + 2·bias in the low bits: in two factors, so that overflow and underflow round once, rightly."""
    f = _FORMATS[y.dtype]
    half = bits >> 1
    first, second = half << f.mantissa, (bits - half) << f.mantissa
    return y * first.bitcast(y.dtype) * second.bitcast(y.dtype)


def _reduce_ln2(x: UOp, n: UOp) -> UOp:
    """x - n·log(2)."""
    high, low = _FORMATS[x.dtype].ln2
    return _fma(n, -low, _fma(n, -high, x))


def exp(x: UOp) -> UOp:
    """e to the x = 2**n · exp(r), r = x - n·log(2): Cody and Waite ch. 6; n is split in halves for denormal results."""
    f = _FORMATS[x.dtype]
    vanishes, x = _within(x, *f.exp_range)
    n, bits = _round(x, _LOG2E, 2 * f.bias)
    r = _reduce_ln2(x, n)
    return vanishes.where(0.0, _times_power(_fma(r * r, _polynomial(r, f.exp), r) + 1.0, bits))


def exp2(x: UOp) -> UOp:
    """2 to the x = 2**n · 2**(x - n); exact for integers."""
    f = _FORMATS[x.dtype]
    vanishes, x = _within(x, *f.exp2_range)
    n, bits = _round(x, 1.0, 2 * f.bias)
    r = x - n
    return vanishes.where(0.0, _times_power(_fma(r, _polynomial(r, f.exp2), 1.0), bits))


def scaled_exp(x: UOp) -> UOp:
    """The same where SCALE takes care of the range: of an infinite or too large x, n alone decides. A polynomial of odd
    degree would be negative where n is so large that it is no longer near x."""
    f = _FORMATS[x.dtype]
    below = x.lt(f.exp_range[0])
    x = x if len(f.exp) % 2 else _at_most(x, f.exp_range[1])
    n, _ = _round(x, _LOG2E, 0)
    r = _reduce_ln2(x, n)
    return below.where(0.0, _scale(_polynomial(r, (1.0, 1.0, *f.exp)), n))


def scaled_exp2(x: UOp) -> UOp:
    """The same with SCALE."""
    f = _FORMATS[x.dtype]
    n, _ = _round(x, 1.0, 0)
    return x.lt(f.exp2_range[0]).where(0.0, _scale(_polynomial(x - n, (1.0, *f.exp2)), n))


def _scale(x: UOp, n: UOp) -> UOp:
    return UOp(Ops.SCALE, None, (x, n))


def _expm1_parts(x: UOp) -> tuple[UOp, UOp]:
    """exp(x) - 1 = p·s + (s - 1) as (p, s), s a power of two; for x of moderate size."""
    f = _FORMATS[x.dtype]
    n, bits = _round(x, _LOG2E, f.bias)
    r = _reduce_ln2(x, n)
    return _fma(r * r, _polynomial(r, f.expm1), r), (bits << f.mantissa).bitcast(x.dtype)


def _split_power(x: UOp) -> tuple[UOp, UOp]:
    """x = 2**e · (1 + f) with sqrt(1/2) ≤ 1 + f < sqrt(2), as (e, f), for finite x > 0 (Muller, 11.4; as in FDLIBM).

    The exponent becomes a float by way of the bits of 2**mantissa + exponent, which is cheaper than a conversion.
    """
    f = _FORMATS[x.dtype]
    m, one = f.mantissa, f.bias << f.mantissa
    root = {23: 0x3F3504F3, 52: 0x3FE6A09E667F3BCD}[m]  # the bits of sqrt(1/2)
    zero: UOp | float = 2.0**m + f.bias
    normal = x
    if not _is_normal(x):
        small = x.lt(2.0 ** (1 - f.bias))
        normal, zero = small.where(x * 2.0 ** (m + 1), x), small.where(UOp.const(x.dtype, zero + m + 1), zero)
    raised = normal.bitcast(f.uint) + (one - root)
    mantissa = ((raised & ((1 << m) - 1)) + root).bitcast(x.dtype)
    exponent = ((raised >> m) | ((f.bias + m) << m)).bitcast(x.dtype)
    return exponent - zero, mantissa - 1.0


def _is_normal(x: UOp) -> bool:
    """Whether x is certainly positive, finite and no denormal."""
    known = _range(x)
    return known is not None and 2.0 ** (1 - _FORMATS[x.dtype].bias) <= known[0]


def _range(x: UOp, depth: int = 4) -> tuple[float, float] | None:
    """Bounds of a float that is a few operations away from an integer: such a one is never NaN."""
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


def _log_limits(x: UOp, value: UOp) -> UOp:
    """``value`` where 0 < x < inf; -inf at 0, NaN below and for NaN, inf at inf."""
    if _is_normal(x):
        return value
    inf = float("inf")
    at_most_zero = x.eq(0.0).where(UOp.const(x.dtype, -inf), float("nan"))
    return x.eq(inf).where(x, (x > 0.0).where(value, at_most_zero))


def _log1p64(f: UOp) -> tuple[UOp, UOp]:
    """log(1 + f) = f - (h - t), h = f²/2, as (h, t): the atanh series in s = f/(2 + f) (FDLIBM's arrangement)."""
    s = f / (f + 2.0)
    z = s * s
    h = f * f * 0.5
    return h, s * _fma(z, _polynomial(z, _LOG64), h)


def log(x: UOp) -> UOp:
    """Natural logarithm = e·log(2) + log(1 + f); float32 fits log(1 + f) directly, float64 uses the atanh series."""
    high, low = _FORMATS[x.dtype].ln2
    e, f = _split_power(x)
    if x.dtype is dtypes.float32:
        value = _fma(e, high, _fma(e, low, _fma(f * f, _polynomial(f, _LOG32), f)))
    else:
        h, t = _log1p64(f)
        value = _fma(e, high, f - (h - _fma(e, low, t)))
    return _log_limits(x, value)


def log2(x: UOp) -> UOp:
    """Logarithm to base 2 = e + log2(1 + f); exact for powers of two."""
    e, f = _split_power(x)
    if x.dtype is dtypes.float32:
        value = _fma(f, _polynomial(f, _LOG2_32), f) + e
    else:
        h, t = _log1p64(f)
        value = _fma(f - (h - t), _LOG2E, e)
    return _log_limits(x, value)


def sin(x: UOp) -> UOp:
    """Sine: (-1)**n · sin(r), r = abs(x) - n·pi, with one polynomial for abs(r) up to about pi/2."""
    a, sign = _split_sign(x)
    return _sine(_reduce_exactly(a) if x.dtype is dtypes.float32 else _reduce_pi(a, _PI_PARTS[x.dtype]), sign)


def fused_sin(x: UOp) -> UOp:
    """The same where MULADD rounds once: no part of pi need be short, and three suffice but for large arguments."""
    if x.dtype is not dtypes.float32:
        return sin(x)
    a, sign = _split_sign(x)
    r = _reduce_pi(a, _PI_PARTS[x.dtype])
    return _sine(UOp(Ops.RARELY, None, (a > _FAR, _reduce_exactly(a), r)), sign)


def _sine(r: UOp, sign: UOp) -> UOp:
    z = r * r
    return _flip_sign(_fma(r * z, _polynomial(z, _FORMATS[r.dtype].sin), r), sign)


def _reduce_pi(a: UOp, parts: Sequence[float]) -> UOp:
    """±(a - n·pi), minus if n is odd, for a ≥ 0: n·pi is subtracted in parts (Cody and Waite, ch. 8)."""
    f = _FORMATS[a.dtype]
    shifted = _fma(a, _INV_PI, f.magic)
    n = f.magic - shifted  # minus the number of half turns
    r = a
    for part in parts:
        r = _fma(n, part, r)
    if a.dtype is dtypes.float64:
        r = _at_most(_at_least(r, -_PI / 2), _PI / 2)  # huge arguments: stay within [-1, 1]
    return _flip_sign(r, shifted.bitcast(f.uint) << (f.uint.bits - 1))


def _reduce_exactly(a: UOp) -> UOp:
    """The same for any float32, in float64 arithmetic; abs at most pi·(1/2 + 1/16). After M. Payne and R. Hanek,
    "Radian reduction for trigonometric functions" (SIGNUM Newsletter 18, 1983).

    a/pi = p1 + p2 + p3 but for multiples of 2, with p1 < 2**51, p2 < 2**24 and p3 < 1/16. The first two are exact and
    lose their integers exactly, so that what is left has the relative accuracy of one rounded sum.
    """
    f = _FORMATS[dtypes.float64]
    wide = a.cast(dtypes.float64)
    parts = [UOp.const(dtypes.float64, c) for c in _PAYNE_HANEK[0][1]]
    for least, others in _PAYNE_HANEK[1:]:
        below = a.lt(least)
        parts = [below.where(c, other) for c, other in zip(parts, others)]
    c1, c2, c3 = parts
    n1 = _fma(wide, c1, f.magic)  # p1 to the nearest integer (plus magic, as are the following)
    rest = _fma(wide, c1, f.magic - n1)
    n2 = _fma(wide, c2, rest) + n1  # p1 + p2 to the nearest integer
    rest = _fma(wide, c2, n1 - n2) + rest
    half_turns = _fma(wide, c3, rest)
    return _flip_sign(half_turns * _PI, n2.bitcast(f.uint) << 63).cast(dtypes.float32)


def tanh(x: UOp) -> UOp:
    """Hyperbolic tangent = m/(m + 2), m = exp(2·abs(x)) - 1, which keeps its relative accuracy near 0."""
    f = _FORMATS[x.dtype]
    a, sign = _split_sign(x)
    a = _at_most(a, f.tanh_one)
    p, s = _expm1_parts(a + a)
    m = _fma(p, s, s - 1.0)
    return _flip_sign(m / (m + 2.0), sign)


def one_plus_tanh(x: UOp) -> UOp:
    """1 + tanh(x) = 2/(1 + 2**(-2·log2(e)·x)), also right where tanh(x) is almost -1."""
    return UOp.const(x.dtype, 2.0) / ((x * (-2 * _LOG2E)).alu(Ops.EXP2) + 1.0)


def erf(x: UOp) -> UOp:
    """The error function: an odd polynomial up to 1, then 1 - exp(-p(x)), p fitted to -log(erfc) (after N. Juffa)."""
    f = _FORMATS[x.dtype]
    a, sign = _split_sign(x)
    z = x * x
    small = _fma(x, _polynomial(z, f.erf_small), x)
    t = _at_most(a, f.erf_one) - 1.0
    p, s = _expm1_parts(_polynomial(t, tuple(-c for c in f.erf_large)))
    large = 1.0 - _fma(p, s, s)
    return a.lt(1.0).where(small, _flip_sign(large, sign))


def _rule(op: Op, law: str, function: Callable[[UOp], UOp]) -> Rule:
    x = Pat("x", when=lambda n: n.dtype in _FORMATS)
    return Rule(op.name.lower(), law, Pat("", (op,), (x,)), function,
                lambda: UOp(op, None, (UOp(Ops.PARAM, dtypes.float32, (), (0, ())),)))


_LAWS = {
    Ops.EXP: "exp(x) = 2**n · exp(x - n·log 2)", Ops.EXP2: "2**x = 2**n · 2**(x - n)",
    Ops.LOG: "log(2**e · m) = e·log 2 + log m", Ops.LOG2: "log2(2**e · m) = e + log2 m",
    Ops.SIN: "sin(x) = (-1)**n · sin(x - n·pi)", Ops.TANH: "tanh(x) = m/(m + 2), m = exp(2x) - 1",
    Ops.ERF: "erf(x) = x·p(x²) up to 1, then 1 - exp(-q(x))",
}
FUNCTIONS = tuple(_LAWS)  # what these rules write out


@functools.cache
def transcendentals(fma: bool = False, scales: bool = False) -> RuleSet:
    """The rules for a target. ``fma``: MULADD rounds once; ``scales``: it has SCALE."""
    written = {Ops.EXP: scaled_exp if scales else exp, Ops.EXP2: scaled_exp2 if scales else exp2, Ops.LOG: log,
               Ops.LOG2: log2, Ops.SIN: fused_sin if fma else sin, Ops.TANH: tanh, Ops.ERF: erf}
    return RuleSet("transcendentals", tuple(_rule(op, law, written[op]) for op, law in _LAWS.items()))
