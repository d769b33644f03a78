"""exp, exp2, expm1, log, log2, log1p, sin, cos, tanh, erf and pow in basic operations, for float32 and float64.

Every expression is free of tables and calls, so that all lanes of a vector are computed at once; only the reduction of
very large angles is in a branch. Arguments are reduced as in W. J. Cody and W. Waite, "Software Manual for the
Elementary Functions" (1980) and J.-M. Muller, "Elementary Functions" (3rd ed., 2016, ch. 10 and 11); the polynomials
are minimax fits made for this file with the Remez algorithm (Muller, ch. 3) in 60-digit arithmetic. NaN propagates;
signed zeros, infinities and subnormals follow IEEE 754. Float32 needs no float64, which some targets lack.

The accuracies hold whether MULADD rounds once or twice and whether or not a compiler contracts ``a * b + c``: a product
whose exactness matters has few enough bits to be exact. They do not hold if a compiler may reassociate
(``-ffast-math``), because ``(x + magic) - magic`` is used to round to an integer, nor where subnormals are flushed to
0.

docs/numerics.md lists the measured errors; tests/codegen/test_transcendentals.py bounds them with MULADD rounded once
and twice.
"""
from __future__ import annotations

import functools
from collections.abc import Callable

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
from tinsmith.codegen.decompose.pow import pow
from tinsmith.codegen.decompose.trig import cos, sin
from tinsmith.core.dtypes import DType, dtypes
from tinsmith.ir.ops import Op, Ops
from tinsmith.ir.ops.elementwise import ROUGH
from tinsmith.ir.rewrite import Pat, Rule, RuleSet
from tinsmith.ir.uop import UOp

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
