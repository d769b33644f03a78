"""Power function for x ≥ 0: x**y = 2**(y·log2 x), with the logarithm and the product as sums of two floats
(double-float arithmetic).

The relative error of the result grows with the exponent: for a power of 2**100 to be correct to the last place, the
exponent, and so the logarithm, needs 7 bits more than a float holds (Muller, 12.2; T. J. Dekker, "A floating-point
technique for extending the available precision", Numerische Mathematik 18, 1971).
"""
from __future__ import annotations

from tinsmith.codegen.decompose.floats import (
    FORMATS,
    at_least,
    at_most,
    fma,
    polynomial,
    rounded,
    split_power,
    times_power,
)
from tinsmith.core.dtypes import dtypes
from tinsmith.ir.uop import UOp

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
