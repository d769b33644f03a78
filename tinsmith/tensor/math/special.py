"""Special functions of the error-function and gamma-function families.

The gamma-function family is computed in float64 and rounded once.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

from tinsmith.core.dtypes import dtypes
from tinsmith.tensor.math.arithmetic import Arithmetic
from tinsmith.tensor.math.elementary import horner

T = TypeVar("T", bound=Arithmetic)
# erfc(x) = exp(-x²) P(x)/Q(x) for 0.46875 <= x <= 4, and exp(-x²)/x (1/sqrt(pi) - P(z)/Q(z) z) with z = 1/x² beyond:
# W. J. Cody, Rational Chebyshev approximations for the error function, Math. Comp. 23 (1969)
ERFC_P = (2.15311535474403846e-8, 5.64188496988670089e-1, 8.88314979438837594, 6.61191906371416295e1,
           2.98635138197400131e2, 8.81952221241769090e2, 1.71204761263407058e3, 2.05107837782607147e3,
           1.23033935479799725e3)
ERFC_Q = (1.0, 1.57449261107098347e1, 1.17693950891312499e2, 5.37181101862009858e2, 1.62138957456669019e3,
           3.29079923573345963e3, 4.36261909014324716e3, 3.43936767414372164e3, 1.23033935480374942e3)
FAR_P = (1.63153871373020978e-2, 3.05326634961232344e-1, 3.60344899949804439e-1, 1.25781726111229246e-1,
          1.60837851487422766e-2, 6.58749161529837803e-4)
FAR_Q = (1.0, 2.56852019228982242, 1.87295284992346725, 5.27905102951428412e-1, 6.05183413124413191e-2,
          2.33520497626869185e-3)
# Initial estimate of erfinv for Newton's method: M. Giles, Approximating the erfinv function (2012), table 5
INVERSE = (2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503,
            -0.00417768164, 0.246640727, 1.50140941)
INVERSE_FAR = (-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613,
                0.00943887047, 1.00167406, 2.83297682)
_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510)  # B(2), B(4), ...
_SHIFT = 10  # asymptotic series are evaluated at arguments of at least this


def bessel(x: T, order: int, scaled: bool) -> T:
    """Return the modified Bessel function I of order 0 or 1, in float64: its power series up to 15 (all terms
    positive), its asymptotic series beyond (DLMF 10.25.2, 10.40.1). ``scaled``: multiply by exp(-abs(x))."""
    wide = x.cast(dtypes.float64)
    size = wide.abs()
    far = size.gt(15)
    near, large = far.where(0.0, size), far.where(size, 15.0)
    power = [1.0]
    for k in range(1, 40):
        power.append(power[-1] / (k * (k + order)))
    asymptotic = [1.0]
    for k in range(1, 25):
        asymptotic.append(asymptotic[-1] * ((2 * k - 1) ** 2 - 4 * order**2) / (8 * k))
    small = series_of(near.square().mul(0.25), power)
    small = small.mul(near.mul(0.5)) if order else small
    tail = series_of(large.reciprocal(), asymptotic).div(large.mul(2 * math.pi).sqrt())
    if scaled:
        out = far.where(tail, small.mul(near.neg().exp()))
    else:
        half = large.mul(0.5).exp()  # in two factors: exp alone overflows before its product with the tail does
        out = far.where(half.mul(tail).mul(half), small)
    out = size.isinf().where(0.0 if scaled else math.inf, out)
    out = out.copysign(wide) if order else out
    return wide.isnan().where(wide, out).cast(x.dtype)


def reflected(x: T, positive: Callable[[T], T], below: Callable[[T, T], T]) -> T:
    """Evaluate ``positive(x)`` for x >= 0.5, else ``below(x, positive(1 - x))`` (reflection formula); in float64."""
    wide = x.cast(dtypes.float64)
    negative = wide.lt(0.5)
    found = positive(negative.where(wide.neg().add(1), wide))
    return negative.where(below(negative.where(wide, 0.25), found), found).cast(x.dtype)


def sine_of(x: T) -> T:
    """sin(pi x) from the distance to the nearest integer: exactly 0 at integers."""
    whole = x.round()
    odd = whole.mul(0.5).trunc().mul(2).ne(whole)
    turn = x.sub(whole).mul(math.pi).sin()
    return odd.where(turn.neg(), turn)


def cotangent(x: T) -> T:
    turn = x.sub(x.round()).mul(math.pi)
    return turn.cos().div(turn.sin())


def cotangent_slope(n: int) -> tuple[float, ...]:
    """Return the ``n``-th derivative of cot(x) as a polynomial in c = cot(x), highest power first; dc/dx = -(1 + c²).

    >>> cotangent_slope(1), cotangent_slope(2)
    ((-1, 0, -1), (2, 0, 2, 0))
    """
    powers = [0, 1]
    for _ in range(n):
        slope = [k * p for k, p in enumerate(powers)][1:]
        powers = [-a - b for a, b in zip([*slope, 0, 0], [0, 0, *slope])]
    return tuple(powers[::-1])


def series_of(z: T, coefficients: Sequence[float]) -> T:
    return horner(z, tuple(coefficients[::-1]))


def log_gamma(x: T) -> T:
    """Stirling's series at x, or at x + 10 with the product x·(x+1)…(x+9) divided out where x < 10."""
    small = x.lt(_SHIFT)
    product = small.where(x, 1.0)
    for k in range(1, _SHIFT):
        product = product.mul(small.where(x.add(k), 1.0))
    y = small.where(x.add(_SHIFT), x)
    over = y.reciprocal()
    rest = series_of(over.square(), [b / (2 * k * (2 * k - 1)) for k, b in enumerate(_BERNOULLI, 1)]).mul(over)
    out = y.sub(0.5).mul(y.log()).sub(y).add(0.5 * math.log(2 * math.pi)).add(rest).sub(product.log())
    return y.eq(math.inf).where(math.inf, out)


def digamma_of(x: T) -> T:
    small = x.lt(_SHIFT)
    total = small.where(x, math.inf).reciprocal()
    for k in range(1, _SHIFT):
        total = total.add(small.where(x.add(k), math.inf).reciprocal())
    y = small.where(x.add(_SHIFT), x)
    over = y.reciprocal()
    square = over.square()
    series = series_of(square, [b / (2 * k) for k, b in enumerate(_BERNOULLI, 1)]).mul(square)
    return y.log().sub(over.mul(0.5)).sub(series).sub(total)


def zeta_of(s: int, q: T) -> T:
    """The Hurwitz zeta function for q > 0: ten terms, then the Euler–Maclaurin formula for the rest."""
    total = q.reciprocal().pow(s)
    for k in range(1, _SHIFT):
        total = total.add(q.add(k).reciprocal().pow(s))
    y = q.add(_SHIFT)
    over = y.reciprocal()
    last = over.pow(s)
    total = total.add(over.pow(s - 1).mul(1 / (s - 1))).add(last.mul(0.5))
    factor, power = s / 2.0, last.mul(over)
    for k, b in enumerate(_BERNOULLI, 1):
        total = total.add(power.mul(b * factor))
        factor *= (s + 2 * k - 1) * (s + 2 * k) / ((2 * k + 1) * (2 * k + 2))
        power = power.mul(over.square())
    return total


def erfc_slope(g: T, out: T, x: T) -> tuple[T]:
    return (g.mul(x.square().neg().exp()).mul(-2 / math.sqrt(math.pi)),)


def erfinv_slope(g: T, out: T, y: T) -> tuple[T]:
    return (g.mul(out.square().exp()).mul(math.sqrt(math.pi) / 2),)


def lgamma_slope(g: T, out: T, x: T) -> tuple[T]:
    return (g.mul(x.digamma()),)


def digamma_slope(g: T, out: T, x: T) -> tuple[T]:
    return (g.mul(x.polygamma(1)),)


def i0_slope(g: T, out: T, x: T) -> tuple[T]:
    return (g.mul(x.i1()),)


def i0e_slope(g: T, out: T, x: T) -> tuple[T]:
    return (g.mul(x.i1e().sub(x.sign().mul(x.i0e()))),)


def _i1_over_x(x: T, i1: T) -> T:
    zero = x.eq(0)
    return zero.where(0.5, i1.div(zero.where(1.0, x)))


def i1_slope(g: T, out: T, x: T) -> tuple[T]:
    return (g.mul(x.i0().sub(_i1_over_x(x, x.i1()))),)


def i1e_slope(g: T, out: T, x: T) -> tuple[T]:
    i1e = x.i1e()
    return (g.mul(x.i0e().sub(_i1_over_x(x, i1e)).sub(x.sign().mul(i1e))),)


def log_ndtr_slope(g: T, out: T, x: T) -> tuple[T]:
    return (g.mul(math.sqrt(2 / math.pi)).div(x.mul(-math.sqrt(0.5)).erfcx()),)  # density / ndtr, without cancellation


def polygamma_slope(g: T, out: T, x: T, order: T) -> tuple[T, None]:
    return g.mul(x.polygamma(int(order.uop.base.arg) + 1)), None
