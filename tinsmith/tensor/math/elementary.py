"""Coefficients, formulas and gradients of powers, trigonometric and hyperbolic functions."""
from __future__ import annotations

import math
from typing import TypeVar

from tinsmith.core.dtypes import dtypes
from tinsmith.ir import Ops
from tinsmith.tensor.autograd.backward import with_slopes
from tinsmith.tensor.helpers import matched, rounded_once
from tinsmith.tensor.math.arithmetic import Arithmetic

T = TypeVar("T", bound=Arithmetic)


@rounded_once
def logaddexp_of(x: T, y: T) -> T:
    out = x.maximum(y).add(_distance(x, y).neg().exp().log1p())
    return with_slopes(out, _logaddexp_slopes, *map(out._new, matched("logaddexp", out, x, y)[1:]))


@rounded_once
def logaddexp2_of(x: T, y: T) -> T:
    # not logaddexp(x log 2, y log 2) / log 2: a large argument would be rounded before the power is taken
    out = x.maximum(y).add(_distance(x, y).neg()._unary_float(Ops.EXP2).log1p().mul(1 / math.log(2)))
    return with_slopes(out, _logaddexp2_slopes, *map(out._new, matched("logaddexp2", out, x, y)[1:]))


def _distance(x: T, y: T) -> T:
    return x.eq(y).where(0, x.sub(y)).abs()  # equal infinities: 0, not NaN


def power_slopes(g: T, out: T, x: T, y: T) -> tuple[T | None, T | None]:
    """Return the gradients of ``x ** y``: 0 for the base where y == 0, 0 for the exponent where x == 0 and y >= 0."""
    if y.uop.base.is_const:
        power = y.uop.base.arg
        return None if power == 0 else g.mul(x.pow(power - 1).mul(power)), None
    by_base = y.eq(0).where(0, g.mul(y.mul(x.pow(y.sub(1)))))
    return by_base, (x.eq(0) & y.ge(0)).where(0, g.mul(out.mul(x.log())))


def _logaddexp_slopes(g: T, out: T, x: T, y: T) -> tuple[T, T]:
    return g.div(y.sub(x).exp().add(1)), g.div(x.sub(y).exp().add(1))


def _logaddexp2_slopes(g: T, out: T, x: T, y: T) -> tuple[T, T]:
    a, b = y.sub(x)._unary_float(Ops.EXP2), x.sub(y)._unary_float(Ops.EXP2)
    return g.div(a.add(1)), g.div(b.add(1))


# atan(x) = x + x*z*P(z)/Q(z) with z = x*x for |x| <= 0.66: S. Moshier, Cephes mathematical library, atan.c
ATAN_P = (-8.750608600031904122785e-1, -1.615753718733365076637e1, -7.500855792314704667340e1,
           -1.228866684490136173410e2, -6.485021904942025371773e1)

ATAN_Q = (1.0, 2.485846490142306297962e1, 1.650270098316988542046e2, 4.328810604912902668951e2,
           4.853903996359136964868e2, 1.945506571482613964425e2)


# (c, exp(c)/2) per dtype: both are almost exact floats, so that exp(x - c)·(exp(c)/2) = exp(x)/2 without overflow
_HALVED = {dtypes.float32: (14.52734375, 1018861.6875), dtypes.float64: (4.14190673828125, 31.461342115095473)}


def half_exponential(x: T) -> tuple[T, T, T, T]:
    """Return (a where a <= 20 else 0, exp(a)/2 for a > 20, a > 20, x < 0) with a = abs(x).

    Beyond 20, sinh and cosh equal exp(a)/2 in both float formats, and exp(a)/2 may be finite where exp(a) overflows."""
    negative = x.lt(0)
    size = negative.where(x.neg(), x)
    is_far = size.gt(20)
    shift, half = _HALVED[x.dtype]
    return is_far.where(0, size), size.sub(shift).exp().mul(half), is_far, negative


def cosh_slope(g: T, out: T, x: T) -> tuple[T]:
    return (g.mul(x.sinh()),)


def sinh_slope(g: T, out: T, x: T) -> tuple[T]:
    return (g.mul(x.cosh()),)


def asin_slope(g: T, out: T, x: T) -> tuple[T]:
    return (g.mul(x.square().neg().add(1).rsqrt()),)


def acos_slope(g: T, out: T, x: T) -> tuple[T]:
    return (g.mul(x.square().neg().add(1).rsqrt()).neg(),)


def acosh_slope(g: T, out: T, x: T) -> tuple[T]:
    return (g.mul(x.square().sub(1).rsqrt()),)


def atanh_slope(g: T, out: T, x: T) -> tuple[T]:
    return (g.div(x.square().neg().add(1)),)


def horner(x: T, coefficients: tuple[float, ...]) -> T:
    """Evaluate a polynomial by Horner's scheme; ``coefficients``, two at least, start at the highest power."""
    first, second, *rest = coefficients
    out = x.mul(first).add(second)
    for c in rest:
        out = x.mul(out).add(c)
    return out
