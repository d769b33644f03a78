"""Elementary functions in basic operations: exp, exp2, expm1, log, log2, log1p, sin, cos, tanh, erf and pow.

All functions exist for float32 and float64. They use no tables and no calls, so that all lanes of a vector are computed
at once; only the reduction of very large angles is in a branch. NaN propagates; signed zeros, infinities and subnormals
follow IEEE 754. The float32 versions use no float64, which some targets lack.

* Arguments are reduced as in W. J. Cody and W. Waite, "Software Manual for the Elementary Functions" (1980) and J.-M.
  Muller, "Elementary Functions" (3rd ed., 2016, ch. 10 and 11). The polynomials are minimax fits made for this file
  with the Remez algorithm (Muller, ch. 3) in 60-digit arithmetic.
* sin and cos subtract multiples of pi in parts for small angles (Cody and Waite, ch. 8). Large angles are reduced in
  integers, in an unlikely branch: M. Payne and R. Hanek, "Radian reduction for trigonometric functions" (SIGNUM
  Newsletter 18, 1983). cos(x) = sin(x + pi/2), where half a half turn is added exactly.
* pow for x ≥ 0 is 2**(y·log2 x), with logarithm and product as sums of two floats (T. J. Dekker, "A floating-point
  technique for extending the available precision", Numerische Mathematik 18, 1971). The relative error grows with the
  exponent: for a power of 2**100 to be correct to the last place, the logarithm needs 7 bits more than a float has
  (Muller, 12.2).

The accuracies hold whether MULADD rounds once or twice and whether or not a compiler contracts ``a * b + c``: a product
whose exactness matters has few enough bits to be exact. They do not hold if a compiler may reassociate
(``-ffast-math``), because ``(x + magic) - magic`` rounds to an integer, nor where subnormals are flushed to 0.

docs/numerics.md lists the measured errors; tests/codegen/test_transcendentals.py bounds them with MULADD rounded once
and twice.
"""
from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence

from tinsmith.codegen.decompose.floats import (
    FORMATS,
    LOG2E,
    LOG2E_PARTS,
    at_least,
    at_most,
    flip_sign,
    fma,
    log_limits,
    polynomial,
    reduce_ln2,
    rounded,
    split_power,
    split_sign,
    times_power,
)
from tinsmith.core.dtypes import DType, dtypes
from tinsmith.ir.ops import Op, Ops
from tinsmith.ir.ops.elementwise import ROUGH
from tinsmith.ir.rewrite import Pat, Rule, RuleSet
from tinsmith.ir.uop import UOp

_PI, _PI_LOW, _PI_WORD = 3.141592653589793, 1.2246467991473532e-16, 0xC90FDAA22168C235  # the last: 2**62·pi
_INV_PI = 0.3183098861837907

# pi as a sum of short numbers, whose multiples are subtracted without error up to the angle given first. Where a
# product is rounded together with a sum (FMA), parts of 24 bits suffice. Elsewhere the products must be exact
# themselves. The subtractions of all but the last two parts are exact, and the last part is below the last place unless
# the subtraction before it was exact: the angle is rounded once, which counts twice where its sine lies in the binade
# below its own.
_FUSED32 = 2.0**17, ("0x1.921fb6p+1", "-0x1.777a5cp-24", "-0x1.ee59dap-49")
_SHORT = {dtypes.float32: (2.0**9, ("0x1.922p+1", "-0x1.28p-17", "-0x1.777cp-24", "0x1.a308d4p-40")),
          dtypes.float64: (2.0**25, ("0x1.921fb54p+1", "0x1.10b46p-29", "0x1.1a62634p-53", "-0x1.d747f23e32ed7p-82"))}

# 1/pi in words of 64 bits, after one word of zeros for small angles
_INV_PI_WORDS = (
    0, 0x517CC1B727220A94, 0xFE13ABE8FA9A6EE0, 0x6DB14ACC9E21C820, 0xFF28B1D5EF5DE2B0, 0xDB92371D2126E970,
    0x0324977504E8C90E, 0x7F0EF58E5894D39F, 0x74411AFA975DA242, 0x74CE38135A2FBF20, 0x9CC8EB1CC1A99CFA,
    0x4E422FC5DEFC941D, 0x8FFC4BFFEF02CC07, 0xF79788C5AD05368F, 0xB69B3F6793E584DB, 0xA7A31FB34F2FF516,
    0xBA93DD63F5F2F8BD, 0x9E839CFBC5294975, 0x35FDAFD88FC6AE84, 0x2B0198237E3DB5D5)
_LOW_HALF, _LOW_BITS = (1 << 32) - 1, (1 << 11) - 1


def sin(x: UOp, fused: bool) -> UOp:
    """Return sin(x) = (-1)**n · sin(r), r = abs(x) - n·pi, with one polynomial for abs(r) up to about pi/2."""
    a, sign = split_sign(x)
    return flip_sign(_sine(_reduced(a, False, fused)), sign)


def cos(x: UOp, fused: bool) -> UOp:
    """Return cos(x) as the sine of abs(x) + pi/2; 1 where it rounds to 1."""
    a, _ = split_sign(x)
    return a.lt(2.0 ** -(FORMATS[x.dtype].mantissa / 2 + 1)).where(1.0, _sine(_reduced(a, True, fused)))


def _sine(r: UOp) -> UOp:
    z = r * r
    found = fma(r * z, polynomial(z, FORMATS[r.dtype].sin), r)
    return at_most(at_least(found, -1.0), 1.0) if r.dtype is dtypes.float64 else found  # the polynomial might exceed 1


def _reduced(a: UOp, quarter: bool, fused: bool) -> UOp:
    """Reduce a ≥ 0 to ±(a - n·pi), minus if n is odd; with ``quarter`` reduce a + pi/2."""
    most, parts = _FUSED32 if fused and a.dtype is dtypes.float32 else _SHORT[a.dtype]
    return UOp(Ops.UNLIKELY, None, (a > most, _by_integers(a, quarter), _by_parts(a, quarter, parts)))


def _by_parts(a: UOp, quarter: bool, parts: Sequence[str]) -> UOp:
    f = FORMATS[a.dtype]
    shifted = fma(a, _INV_PI, 0.5) + f.magic if quarter else fma(a, _INV_PI, f.magic)
    n = f.magic - shifted  # minus the number of half turns
    r, times = a, n + 0.5 if quarter else n
    for part in parts:
        r = fma(times, float.fromhex(part), r)
    return flip_sign(r, shifted.bitcast(f.uint) << (f.uint.bits - 1))


def _by_integers(a: UOp, quarter: bool) -> UOp:
    """Reduce any large float in integers (Payne and Hanek): for a = m·2**e, the product of m and the bits of 1/pi from
    weight 2**-e down is the number of half turns modulo 2. The top bit of the product is worth one half turn."""
    f, word = FORMATS[a.dtype], dtypes.uint64
    bits = a.bitcast(f.uint).cast(word)
    m = (bits & ((1 << f.mantissa) - 1)) | (1 << f.mantissa)
    place = (bits >> f.mantissa) + (64 - 1 - f.bias - f.mantissa)
    high, low = _words_product(m, _words_from(place, 2 if a.dtype is dtypes.float32 else 3))
    if quarter:
        high = high + (1 << 62)
    odd = (high + (1 << 62)) >> 63
    fraction, rest = (high << 1) | (low >> 63), low << 1  # in half turns, from -1/2 up
    negative = fraction >> 63
    flipped = UOp.const(word, 0) - negative
    r = _times_pi(fraction ^ flipped, rest ^ flipped, a.dtype)
    r = flip_sign(r, (odd ^ negative).cast(f.uint) << (f.uint.bits - 1))
    return a.lt(float("inf")).where(r, float("nan"))


def _times_pi(fraction: UOp, rest: UOp, dtype: DType) -> UOp:
    """Return pi times a 128-bit fraction, rounded about once."""
    if dtype is dtypes.float32:
        return _as_float(_upper_product(fraction, UOp.const(fraction.dtype, _PI_WORD)), dtype) * 2.0**-62
    first, left = (_as_float(part, dtype) * 2.0**-64 for part in (fraction & ~_LOW_BITS, fraction & _LOW_BITS))
    left = fma(_as_float(rest >> 1, dtype), 2.0**-127, left)
    return fma(first, _PI, fma(first, _PI_LOW, left * _PI))


def _as_float(bits: UOp, dtype: DType) -> UOp:
    """Convert a word below 2**63 to a float, as a signed integer, for which devices have an instruction."""
    return bits.bitcast(dtypes.int64).cast(dtype)


def _words_from(place: UOp, count: int) -> list[UOp]:
    """Return ``count`` words of 1/pi from bit number ``place`` on: words are skipped by selects, as in a barrel
    shifter."""
    skipped, shift = place >> 6, place & 63
    words = [UOp.const(dtypes.uint64, w) for w in _INV_PI_WORDS[:20 if count == 3 else 5]]
    for step in (16, 8, 4, 2, 1):
        chosen = (skipped & step).ne(0)
        words = [chosen.where(words[i + step], w) if i + step < len(words) else w
                 for i, w in enumerate(words[:count + step])]
    rest = 63 - shift
    return [(first << shift) | ((second >> 1) >> rest) for first, second in itertools.pairwise(words)]


def _words_product(m: UOp, words: Sequence[UOp]) -> tuple[UOp, UOp]:
    """Return the two upper words of m times a multi-word number, modulo its width."""
    results, carried = [], UOp.const(m.dtype, 0)
    for word in reversed(words):
        results.append(m * word + carried)
        carried = _upper_product(m, word) + results[-1].lt(carried).cast(m.dtype)
    return results[-1], results[-2]


def _upper_product(x: UOp, y: UOp) -> UOp:
    """Return the upper word of a 64 × 64 bit product."""
    x0, x1, y0, y1 = x & _LOW_HALF, x >> 32, y & _LOW_HALF, y >> 32
    middle = x0 * y1 + ((x0 * y0) >> 32)
    return x1 * y1 + (middle >> 32) + ((x1 * y0 + (middle & _LOW_HALF)) >> 32)

Sum = tuple[UOp, UOp]  # a double-float: a number as a float and the rest that this rounds away

# log2((1+s)/(1-s)) = s·(c0 + z·(c1 + z·p(z))), z = s²: 2/log(2) and 2/(3·log(2)) in two parts each, and p
_SERIES = {
    dtypes.float32: ((2.885390043258667, 3.851926067000022e-08), (0.9617967009544373, -7.028461812552678e-09),
                     (0.5770782232284546, 0.41206586360931396, 0.33251962065696716)),
    dtypes.float64: ((2.8853900817779268, 4.0710547481862066e-17), (0.9617966939259756, 5.0577616648125907e-17),
                     (0.5770780163555853, 0.4121985831111439, 0.32059889796714114, 0.26230819147090806,
                      0.2219527883193448, 0.19238057917688256, 0.1688849687327331, 0.16913282299806123))}


def pow(x: UOp, y: UOp, fused: bool, scales: bool) -> UOp:
    """Return x**y. ``fused``: MULADD rounds once, which gives a product's error; ``scales``: the target has SCALE."""
    f, inf = FORMATS[x.dtype], float("inf")
    high, low = _log2(x, fused)
    most = 2.0 ** (2 * f.mantissa - 6)  # for greater y, every power but those of 1 is 0 or infinite
    y_within = at_most(at_least(y, -most), most)
    exponent, rest = _product(y_within, high, fused)
    value = _exp2(exponent, fma(y_within, low, rest), scales)
    value = exponent.lt(f.exp2_range[0]).where(0.0, (exponent > f.exp2_range[1]).where(inf, value))
    endless = x.eq(0.0) | x.eq(inf)
    grows = (x > 1.0).ne(y.lt(0.0))
    value = endless.where((y.eq(y)).where(grows.where(inf, UOp.const(x.dtype, 0.0)), y), value)
    value = y.eq(1.0).where(x, value)
    value = x.lt(0.0).where(float("nan"), x.eq(x).where(value, x))
    return (x.eq(1.0) | y.eq(0.0)).where(1.0, value)


def _log2(x: UOp, fused: bool) -> Sum:
    """Return log2(x) = e + log2(1 + f), with s = f/(2 + f), for finite x > 0."""
    (c0, c0_low), (c1, c1_low), series = _SERIES[x.dtype]
    e, f = split_power(x)
    below, below_low = _ordered_sum(UOp.const(x.dtype, 2.0), f)
    inverse = UOp.const(x.dtype, 1.0) / below
    s = f * inverse
    p, p_low = _product(s, below, fused)
    s_low = (f - p - p_low - s * below_low) * inverse
    z, z_low = _product(s, s, fused)
    z_low = fma(s + s, s_low, z_low)
    u, u_low = _ordered_sum(UOp.const(x.dtype, c1), z * polynomial(z, series))
    v, v_low = _times((z, z_low), (u, u_low + c1_low), fused)
    w, w_low = _ordered_sum(UOp.const(x.dtype, c0), v)
    high, low = _times((s, s_low), (w, w_low + (v_low + c0_low)), fused)
    total, lost = _ordered_sum(e, high)
    return total, lost + low


def _exp2(x: UOp, low: UOp, scales: bool) -> UOp:
    """Return 2**(x + low) for a small ``low``."""
    f = FORMATS[x.dtype]
    n, bits = rounded(x, 1.0, 0 if scales else 2 * f.bias)
    r = x - n + low
    value = fma(r, polynomial(r, f.exp2), 1.0)
    return times_power(value, n, bits, scales)


def _ordered_sum(x: UOp, y: UOp) -> Sum:
    """Return x + y and its rounding error, for abs(x) ≥ abs(y) or x = 0 (Dekker's fast two-sum)."""
    total = x + y
    return total, y - (total - x)


def _times(x: Sum, y: Sum, fused: bool) -> Sum:
    high, low = _product(x[0], y[0], fused)
    return high, fma(x[0], y[1], fma(x[1], y[0], low))


def _product(x: UOp, y: UOp, fused: bool) -> Sum:
    product = x * y
    if fused:
        return product, fma(x, y, -product)
    (a, a_low), (b, b_low) = _halves(x), _halves(y)
    return product, a_low * b_low + (a_low * b + (a * b_low + (a * b - product)))


def _halves(x: UOp) -> Sum:
    """Split x into two numbers of half as many bits each, whose products are exact (Veltkamp splitting, by masking
    bits)."""
    f = FORMATS[x.dtype]
    kept = f.mantissa // 2 + 1
    upper = ((x.bitcast(f.uint) >> kept) << kept).bitcast(x.dtype)
    return upper, x - upper

# log(1 + f) = f + f²·p(f) and log2(1 + f) = f + f·(log2(e) - 1 + f·p(f)) for sqrt(1/2) ≤ 1 + f < sqrt(2), float32
_LOG32 = (-0.49999988079071045, 0.33333325386047363, -0.25001582503318787, 0.2000197470188141, -0.16609081625938416,
          0.14181824028491974, -0.13242992758750916, 0.12904445827007294, -0.07621783018112183)
_LOG2_32 = (0.4426950514316559, -0.7213473320007324, 0.4808982312679291, -0.36069658398628235, 0.2885674834251404,
            -0.23961840569972992, 0.2046004682779312, -0.19105598330497742, 0.1861717849969864, -0.10995908826589584)

# log((1+s)/(1-s)) = 2s + s·z·p(z), z = s², float64
_LOG64 = (0.6666666666666734, 0.3999999999941509, 0.2857142874231096, 0.22222198579953545, 0.18183564016218556,
          0.15314057648857443, 0.1479588541742267)

FIRST_INFINITE = 88.72283935546875  # the least float32 whose exponential overflows float32


def exponential(x: UOp, natural: bool, scales: bool = False) -> UOp:
    """Return e**x (``natural``) or 2**x as 2**n times the power of r = x - n·log(2) (Cody and Waite, ch. 6) or x - n.

    Where the result underflows to 0, x is replaced by 0 first: subnormal intermediate results take many cycles.
    ``scales``: SCALE handles the range, so that for infinite or too large x only n matters; but a polynomial of odd
    degree would be negative where n is so large that it is no longer near x.
    """
    f = FORMATS[x.dtype]
    low, high = f.exp_range if natural else f.exp2_range
    series = (1.0, 1.0, *f.exp) if natural else (1.0, *f.exp2)
    vanishes = x.lt(low)
    if not scales:
        x = vanishes.where(0.0, x)
    if not scales or len(series) % 2 == 0:
        x = at_most(x, high)
    n, bits = rounded(x, LOG2E if natural else 1.0, 0 if scales else 2 * f.bias)
    r = reduce_ln2(x, n) if natural else x - n
    value = fma(r * r, polynomial(r, f.exp), r) + 1.0 if natural and not scales else polynomial(r, series)
    return vanishes.where(0.0, times_power(value, n, bits, scales))


def exp_by_exp2(x: UOp) -> UOp:
    """Return exp(x) as 2**(x·log2(e) rounded), corrected by the rounding error, where EXP2 is an instruction for
    float32."""
    if x.dtype is not dtypes.float32:
        return exponential(x, natural=True)
    f, (high, low) = FORMATS[x.dtype], LOG2E_PARTS
    x = x.maximum(f.exp_range[0]).minimum(FIRST_INFINITE)  # there the rest is positive: inf + inf·rest is not NaN
    power = x * high
    rest = fma(x, low, fma(x, high, power * -1.0))
    value = power.alu(Ops.EXP2)
    return fma(value, rest * (1 / LOG2E), value)


def _expm1_parts(x: UOp, power: int = 0) -> tuple[UOp, UOp]:
    """Return (p, s) with (exp(x) - 1)·2**power = p·s + (s - 2**power), s a power of two; for x of moderate size."""
    f = FORMATS[x.dtype]
    n, bits = rounded(x, LOG2E, f.bias + power)
    r = reduce_ln2(x, n)
    return fma(r * r, polynomial(r, f.expm1), r), (bits << f.mantissa).bitcast(x.dtype)


def expm1(x: UOp) -> UOp:
    """Return exp(x) - 1 as twice its half, which is finite wherever the result is."""
    f = FORMATS[x.dtype]
    p, s = _expm1_parts(at_most(at_least(x, -2.0 * f.tanh_one), f.exp_range[1]), -1)
    half = fma(p, s, s - 0.5)
    return _unless_tiny(x, half + half)


def _unless_tiny(x: UOp, value: UOp) -> UOp:
    """Return x where 1 + x rounds to 1 (there exp(x) - 1 and log(1 + x) round to x, with its sign), else ``value``."""
    return split_sign(x)[0].lt(2.0 ** -(FORMATS[x.dtype].mantissa + 2)).where(x, value)


def _log1p64(f: UOp) -> tuple[UOp, UOp]:
    """Return (h, t) with log(1 + f) = f - (h - t), h = f²/2: the atanh series in s = f/(2 + f) (FDLIBM's arrangement).
    """
    s = f / (f + 2.0)
    z = s * s
    h = f * f * 0.5
    return h, s * fma(z, polynomial(z, _LOG64), h)


def log(x: UOp) -> UOp:
    """Return log(x) = e·log(2) + log(1 + f); float32 fits log(1 + f) directly, float64 uses the atanh series."""
    return log_limits(x, _log_of_parts(*split_power(x)))


def _log_of_parts(e: UOp, f: UOp) -> UOp:
    high, low = FORMATS[f.dtype].ln2
    if f.dtype is dtypes.float32:
        return fma(e, high, fma(e, low, fma(f * f, polynomial(f, _LOG32), f)))
    h, t = _log1p64(f)
    return fma(e, high, f - (h - fma(e, low, t)))


def log1p(x: UOp) -> UOp:
    """Return log(1 + x): the rounding error of the sum u = 1 + x is added to its fraction."""
    f = FORMATS[x.dtype]
    u = x + 1.0
    lost = (x > 1.0).where(1.0 - (u - x), x - (u - 1.0))
    e, fraction = split_power(u, normal=True)
    inverse = (((f.magic + f.bias) - at_most(e, f.bias - 1)).bitcast(f.uint) << f.mantissa).bitcast(x.dtype)  # 2**-e
    return _unless_tiny(x, log_limits(u, _log_of_parts(e, fma(lost, inverse, fraction))))


def log2(x: UOp) -> UOp:
    """Return log2(x) = e + log2(1 + f); exact for powers of two."""
    e, f = split_power(x)
    if x.dtype is dtypes.float32:
        value = fma(f, polynomial(f, _LOG2_32), f) + e
    else:
        h, t = _log1p64(f)
        value = fma(f - (h - t), LOG2E, e)
    return log_limits(x, value)


def tanh(x: UOp) -> UOp:
    """Return tanh(x) = m/(m + 2), m = exp(2·abs(x)) - 1, which keeps its relative accuracy near 0."""
    f = FORMATS[x.dtype]
    a, sign = split_sign(x)
    a = at_most(a, f.tanh_one)
    p, s = _expm1_parts(a + a)
    m = fma(p, s, s - 1.0)
    return flip_sign(m / (m + 2.0), sign)


def one_plus_tanh(x: UOp, times: UOp, rough: bool = False) -> UOp:
    """Return y·(1 + tanh(x)) = 2·y/(1 + 2**(-2·log2(e)·x)), accurate also where tanh(x) is almost -1; constant factors
    are folded into one.

    ``rough``: an approximate EXP2 is enough; powers below the least normal number are negligible next to 1.
    """
    (x, by), (y, half) = ((v.src[0], v.src[1].arg) if v.op is Ops.MUL and v.src[1].is_const else (v, 1.0)
                          for v in (x, times))
    power = UOp(Ops.EXP2, None, (x * (-2 * LOG2E * by),), ROUGH if rough and x.dtype is dtypes.float32 else None)
    return y * (2.0 * half) / (power + 1.0)


def erf(x: UOp) -> UOp:
    """Return erf(x): an odd polynomial up to 1, then 1 - exp(-p(x)), p fitted to -log(erfc) (after N. Juffa)."""
    f = FORMATS[x.dtype]
    a, sign = split_sign(x)
    z = x * x
    small = fma(x, polynomial(z, f.erf_small), x)
    t = at_most(a, f.erf_one) - 1.0
    p, s = _expm1_parts(polynomial(t, tuple(-c for c in f.erf_large)))
    large = 1.0 - fma(p, s, s)
    return a.lt(1.0).where(small, flip_sign(large, sign))


def _rule(op: Op, law: str, function: Callable[..., UOp], but: DType | None = None) -> Rule:
    known = [d for d in FORMATS if d is not but]
    operands = tuple(Pat(name, when=lambda n: n.dtype in known) for name in "xy"[: 2 if op.kind == "binary" else 1])
    return Rule(op.name.lower(), law, Pat("", (op,), operands, when=lambda n: n.arg is None), function,
                lambda: UOp(op, None, tuple(UOp(Ops.PARAM, dtypes.float32, (), (n, ())) for n in range(len(operands)))))

_LAWS = {
    Ops.EXP: "exp(x) = 2**n · exp(x - n·log 2)", Ops.EXP2: "2**x = 2**n · 2**(x - n)",
    Ops.EXPM1: "exp(x) - 1 = 2**n · (exp(x - n·log 2) - 1) + 2**n - 1",
    Ops.LOG: "log(2**e · m) = e·log 2 + log m", Ops.LOG2: "log2(2**e · m) = e + log2 m",
    Ops.LOG1P: "log(1 + x) = log(u + lost), u = 1 + x rounded",
    Ops.SIN: "sin(x) = (-1)**n · sin(x - n·pi)", Ops.COS: "cos(x) = (-1)**n · sin(x + pi/2 - n·pi)",
    Ops.TANH: "tanh(x) = m/(m + 2), m = exp(2x) - 1", Ops.ERF: "erf(x) = x·p(x²) up to 1, then 1 - exp(-q(x))",
    Ops.POW: "x**y = 2**(y·log2 x)",
}
FUNCTIONS = tuple(_LAWS)  # the ops that these rules expand


@functools.cache
def transcendentals(fma: bool = False, scales: bool = False, exp2s: bool = False) -> RuleSet:
    """Return the rules for a target. ``fma``: MULADD rounds once; ``scales``: it has SCALE; ``exp2s``: it has EXP2 of
    float32."""
    written: dict[Op, Callable[..., UOp]] = {
        Ops.EXP: exp_by_exp2 if exp2s else functools.partial(exponential, natural=True, scales=scales),
        Ops.EXP2: functools.partial(exponential, natural=False, scales=scales), Ops.EXPM1: expm1,
        Ops.LOG: log, Ops.LOG2: log2, Ops.LOG1P: log1p, Ops.SIN: functools.partial(sin, fused=fma),
        Ops.COS: functools.partial(cos, fused=fma), Ops.TANH: tanh, Ops.ERF: erf,
        Ops.POW: functools.partial(pow, fused=fma, scales=scales)}
    instruction = {Ops.EXP2: dtypes.float32} if exp2s else {}
    return RuleSet("transcendentals", tuple(_rule(op, law, written[op], instruction.get(op))
                                            for op, law in _LAWS.items()))
