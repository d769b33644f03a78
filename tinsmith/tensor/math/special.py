"""Special functions of the error-function and gamma-function families.

The gamma-function family is computed in float64 and rounded once.
"""
# mypy: disable-error-code=misc
# ``self`` is the Tensor that this class is mixed into.
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tinsmith.core.dtypes import dtypes
from tinsmith.tensor.arguments import integer
from tinsmith.tensor.autograd.backward import with_slopes
from tinsmith.tensor.helpers import float_of, operand, rounded_once
from tinsmith.tensor.math.elementary import _polynomial

if TYPE_CHECKING:
    from tinsmith.tensor.tensor import Tensor

# erfc(x) = exp(-x²) P(x)/Q(x) for 0.46875 <= x <= 4, and exp(-x²)/x (1/sqrt(pi) - P(z)/Q(z) z) with z = 1/x² beyond:
# W. J. Cody, Rational Chebyshev approximations for the error function, Math. Comp. 23 (1969)
_ERFC_P = (2.15311535474403846e-8, 5.64188496988670089e-1, 8.88314979438837594, 6.61191906371416295e1,
           2.98635138197400131e2, 8.81952221241769090e2, 1.71204761263407058e3, 2.05107837782607147e3,
           1.23033935479799725e3)
_ERFC_Q = (1.0, 1.57449261107098347e1, 1.17693950891312499e2, 5.37181101862009858e2, 1.62138957456669019e3,
           3.29079923573345963e3, 4.36261909014324716e3, 3.43936767414372164e3, 1.23033935480374942e3)
_FAR_P = (1.63153871373020978e-2, 3.05326634961232344e-1, 3.60344899949804439e-1, 1.25781726111229246e-1,
          1.60837851487422766e-2, 6.58749161529837803e-4)
_FAR_Q = (1.0, 2.56852019228982242, 1.87295284992346725, 5.27905102951428412e-1, 6.05183413124413191e-2,
          2.33520497626869185e-3)
# Initial estimate of erfinv for Newton's method: M. Giles, Approximating the erfinv function (2012), table 5
_INVERSE = (2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503,
            -0.00417768164, 0.246640727, 1.50140941)
_INVERSE_FAR = (-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613,
                0.00943887047, 1.00167406, 2.83297682)
_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510)  # B(2), B(4), ...
_SHIFT = 10  # asymptotic series are evaluated at arguments of at least this


class Special:
    """``erfc erfinv sinc lgamma digamma polygamma mvlgamma i0 i0e i1 i1e ndtr log_ndtr entr xlog1py``."""

    __slots__ = ()

    @rounded_once
    def erfc(self: Tensor) -> Tensor:
        """Return ``1 - erf(x)``, accurate where the result is small.

        >>> Tensor([0.0]).erfc().tolist(), 0 < Tensor([9.0]).erfc().item() < 1e-36
        ([1.0], True)
        """
        x = self._new(float_of(self))
        size = x.abs()
        near, far = size.lt(0.46875), size.gt(4)
        middle = near.where(1.0, far.where(4.0, size))
        z = far.where(size, 4.0).square().reciprocal()
        tail = z.mul(_polynomial(z, _FAR_P)).div(_polynomial(z, _FAR_Q)).neg().add(1 / math.sqrt(math.pi))
        ratio = far.where(tail.div(far.where(size, 4.0)),
                          _polynomial(middle, _ERFC_P).div(_polynomial(middle, _ERFC_Q)))
        held = size.minimum(40.0)
        whole = held.mul(16).trunc().mul(1 / 16)  # few bits, exact square: exp(-x²) as a product of two exponentials
        out = whole.square().neg().exp().mul(held.sub(whole).mul(held.add(whole)).neg().exp()).mul(ratio)
        out = x.lt(0).where(out.neg().add(2), out)
        out = size.eq(math.inf).where(x.lt(0).where(2.0, out._zeros()), out)
        return with_slopes(near.where(x.erf().neg().add(1), out), _erfc_slope, x)

    @rounded_once
    def sinc(self: Tensor) -> Tensor:
        """Return ``sin(pi x) / (pi x)``; 1 at 0, and exactly 0 at the other integers.

        >>> Tensor([0.0, 0.5, 2.0]).sinc().numpy().round(4).tolist()
        [1.0, 0.6366000175476074, 0.0]
        """
        x = self._new(float_of(self))
        zero = x.eq(0)
        away = zero.where(1.0, x)
        return x.isinf().where(0.0, zero.where(1.0, _sine(away).div(away.mul(math.pi))))

    def erfinv(self: Tensor) -> Tensor:
        """Return the inverse of ``erf``: infinite at -1 and 1, NaN outside; computed in float64.

        >>> Tensor([0.0, 0.5]).erfinv().numpy().round(4).tolist()
        [0.0, 0.47690001130104065]
        """
        y = self._new(float_of(self))
        wide = y.cast(dtypes.float64)
        size = wide.abs()
        w = size.neg().add(1).mul(size.add(1)).maximum(1e-300).log().neg()
        close = w.lt(5)
        start = close.where(_polynomial(w.sub(2.5), _INVERSE), _polynomial(w.sqrt().sub(3), _INVERSE_FAR))
        x, left = start.mul(size), size.neg().add(1)
        for _ in range(1 if y.dtype.itemsize <= 4 else 3):  # Newton steps on erf or erfc, whichever does not cancel
            off = size.lt(0.5).where(x.erf().sub(size), left.sub(x.erfc()))
            x = x.sub(off.mul(x.square().exp()).mul(math.sqrt(math.pi) / 2))
        x = size.eq(1).where(math.inf, size.gt(1).where(math.nan, x))
        return with_slopes(x.copysign(wide).cast(y.dtype), _erfinv_slope, y)

    def lgamma(self: Tensor) -> Tensor:
        """Return the logarithm of abs(gamma(x)), by Stirling's series beyond 10.

        >>> Tensor([1.0, 5.0]).lgamma().numpy().round(4).tolist()
        [0.0, 3.178100109100342]
        """
        x = self._new(float_of(self))
        out = _reflected(x, _log_gamma, lambda v, turned: _sine(v).abs().log().neg().add(math.log(math.pi)).sub(turned))
        pole = x.le(0) & x.eq(x.floor())
        return with_slopes((x.isinf() | pole).where(math.inf, out), _lgamma_slope, x)

    def digamma(self: Tensor) -> Tensor:
        """Return the derivative of ``lgamma``; NaN at negative integers.

        >>> Tensor([1.0]).digamma().numpy().round(4).tolist()
        [-0.5771999955177307]
        """
        x = self._new(float_of(self))
        out = _reflected(x, _digamma, lambda v, turned: turned.sub(_cotangent(v).mul(math.pi)))
        whole = x.le(0) & x.eq(x.floor())
        out = whole.where(x.eq(0).where(x.reciprocal().neg(), math.nan), out)
        return with_slopes(out, _digamma_slope, x)

    def polygamma(self: Tensor, n: int) -> Tensor:
        """Return the ``n``-th derivative of ``digamma``; infinite at 0 and negative integers.

        >>> Tensor([1.0]).polygamma(1).numpy().round(4).tolist()
        [1.6448999643325806]
        """
        x, n = self._new(float_of(self)), integer("polygamma", "n", n, least=0)
        if n == 0:
            return x.digamma()
        sign = (-1.0) ** (n + 1) * math.factorial(n)
        slope = _cotangent_slope(n)
        out = _reflected(x, lambda v: _zeta(n + 1, v).mul(sign), lambda v, turned: turned.mul((-1.0) ** n).sub(
            _polynomial(_cotangent(v), slope).mul(math.pi ** (n + 1))))
        whole = x.le(0) & x.eq(x.trunc())
        out = whole.where(math.copysign(math.inf, sign), out)
        return with_slopes(out, _polygamma_slope, x, x.const_like(n))

    def mvlgamma(self: Tensor, p: int) -> Tensor:
        """Return the logarithm of the multivariate gamma function of dimension ``p``.

        >>> Tensor([3.0]).mvlgamma(1).numpy().round(4).tolist()
        [0.6930999755859375]
        """
        p = integer("mvlgamma", "p", p, least=1)
        total = self.lgamma()
        for k in range(1, p):
            total = total.add(self.sub(k / 2).lgamma())
        return total.add(p * (p - 1) / 4 * math.log(math.pi))

    def i0(self: Tensor) -> Tensor:
        """Return the modified Bessel function of the first kind, of order 0.

        >>> Tensor([0.0, 1.0]).i0().numpy().round(4).tolist()
        [1.0, 1.2661000490188599]
        """
        x = self._new(float_of(self))
        return with_slopes(_bessel(x, 0, scaled=False), _i0_slope, x)

    def i0e(self: Tensor) -> Tensor:
        """Return ``i0(x) * exp(-abs(x))``, without overflow.

        >>> Tensor([0.0, 1.0]).i0e().numpy().round(4).tolist()
        [1.0, 0.4657999873161316]
        """
        x = self._new(float_of(self))
        return with_slopes(_bessel(x, 0, scaled=True), _i0e_slope, x)

    def i1(self: Tensor) -> Tensor:
        """Return the modified Bessel function of the first kind, of order 1 (the derivative of ``i0``).

        >>> Tensor([0.0, 1.0]).i1().numpy().round(4).tolist()
        [0.0, 0.5651999711990356]
        """
        x = self._new(float_of(self))
        return with_slopes(_bessel(x, 1, scaled=False), _i1_slope, x)

    def i1e(self: Tensor) -> Tensor:
        """Return ``i1(x) * exp(-abs(x))``, without overflow.

        >>> Tensor([0.0, 1.0]).i1e().numpy().round(4).tolist()
        [0.0, 0.2079000025987625]
        """
        x = self._new(float_of(self))
        return with_slopes(_bessel(x, 1, scaled=True), _i1e_slope, x)

    def ndtr(self: Tensor) -> Tensor:
        """Return the standard normal cumulative distribution function; computed in float64.

        >>> Tensor([0.0, 1.0]).ndtr().numpy().round(4).tolist()
        [0.5, 0.8413000106811523]
        """
        x = self._new(float_of(self))
        return x.cast(dtypes.float64).mul(-math.sqrt(0.5)).erfc().mul(0.5).cast(x.dtype)

    def log_ndtr(self: Tensor) -> Tensor:
        """Return ``log(ndtr(x))``, accurate where ``ndtr(x)`` underflows; computed in float64.

        >>> Tensor([0.0, -40.0]).log_ndtr().numpy().round(3).tolist()
        [-0.6930000185966492, -804.6079711914062]
        """
        x = self._new(float_of(self))
        wide = x.cast(dtypes.float64)
        far, above = wide.lt(-20), wide.gt(0)
        size = far.where(wide.neg(), 20.0)
        series = _series(size.square().reciprocal(), [1.0, -1.0, 3.0, -15.0, 105.0, -945.0, 10395.0])
        tail = size.mul(size).mul(-0.5).sub(size.log()).sub(0.5 * math.log(2 * math.pi)).add(series.log())
        half = far.where(0.0, wide).abs().mul(math.sqrt(0.5)).erfc().mul(0.5)
        out = far.where(tail, above.where(half.neg().log1p(), half.log()))
        return with_slopes(wide.isneginf().where(-math.inf, out).cast(x.dtype), _log_ndtr_slope, x)

    @rounded_once
    def entr(self: Tensor) -> Tensor:
        """Return ``-x * log(x)``: 0 at 0, minus infinity for negative x.

        >>> Tensor([0.0, 2.0, -1.0]).entr().numpy().round(4).tolist()
        [0.0, -1.386299967765808, -inf]
        """
        x = self._new(float_of(self))
        out = x.gt(0).where(x, 1.0).log().mul(x).neg()
        return x.eq(0).where(0.0, x.lt(0).where(-math.inf, x.isnan().where(x, out)))

    def xlog1py(self: Tensor, other: Tensor | float) -> Tensor:
        """Return ``self * log1p(other)``; 0 where ``self`` is 0 and ``other`` is not NaN.

        >>> Tensor([0.0, 2.0]).xlog1py(Tensor([-1.0, 0.0])).tolist()
        [0.0, 0.0]
        """
        y = self._new(float_of(operand("xlog1py", other, self)))
        nothing = self.eq(0) & y.isnan().logical_not()
        return nothing.where(0.0, nothing.where(0.0, y).log1p().mul(self))


def _bessel(x: Tensor, order: int, scaled: bool) -> Tensor:
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
    small = _series(near.square().mul(0.25), power)
    small = small.mul(near.mul(0.5)) if order else small
    tail = _series(large.reciprocal(), asymptotic).div(large.mul(2 * math.pi).sqrt())
    if scaled:
        out = far.where(tail, small.mul(near.neg().exp()))
    else:
        half = large.mul(0.5).exp()  # in two factors: exp alone overflows before its product with the tail does
        out = far.where(half.mul(tail).mul(half), small)
    out = size.isinf().where(0.0 if scaled else math.inf, out)
    out = out.copysign(wide) if order else out
    return wide.isnan().where(wide, out).cast(x.dtype)


def _reflected(x: Tensor, positive: Callable[[Tensor], Tensor], below: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Evaluate ``positive(x)`` for x >= 0.5, else ``below(x, positive(1 - x))`` (reflection formula); in float64."""
    wide = x.cast(dtypes.float64)
    negative = wide.lt(0.5)
    found = positive(negative.where(wide.neg().add(1), wide))
    return negative.where(below(negative.where(wide, 0.25), found), found).cast(x.dtype)


def _sine(x: Tensor) -> Tensor:
    """sin(pi x) from the distance to the nearest integer: exactly 0 at integers."""
    whole = x.round()
    odd = whole.mul(0.5).trunc().mul(2).ne(whole)
    turn = x.sub(whole).mul(math.pi).sin()
    return odd.where(turn.neg(), turn)


def _cotangent(x: Tensor) -> Tensor:
    turn = x.sub(x.round()).mul(math.pi)
    return turn.cos().div(turn.sin())


def _cotangent_slope(n: int) -> tuple[float, ...]:
    """Return the ``n``-th derivative of cot(x) as a polynomial in c = cot(x), highest power first; dc/dx = -(1 + c²).

    >>> _cotangent_slope(1), _cotangent_slope(2)
    ((-1, 0, -1), (2, 0, 2, 0))
    """
    powers = [0, 1]
    for _ in range(n):
        slope = [k * p for k, p in enumerate(powers)][1:]
        powers = [-a - b for a, b in zip([*slope, 0, 0], [0, 0, *slope])]
    return tuple(powers[::-1])


def _series(z: Tensor, coefficients: Sequence[float]) -> Tensor:
    return _polynomial(z, tuple(coefficients[::-1]))


def _log_gamma(x: Tensor) -> Tensor:
    """Stirling's series at x, or at x + 10 with the product x·(x+1)…(x+9) divided out where x < 10."""
    small = x.lt(_SHIFT)
    product = small.where(x, 1.0)
    for k in range(1, _SHIFT):
        product = product.mul(small.where(x.add(k), 1.0))
    y = small.where(x.add(_SHIFT), x)
    over = y.reciprocal()
    rest = _series(over.square(), [b / (2 * k * (2 * k - 1)) for k, b in enumerate(_BERNOULLI, 1)]).mul(over)
    out = y.sub(0.5).mul(y.log()).sub(y).add(0.5 * math.log(2 * math.pi)).add(rest).sub(product.log())
    return y.eq(math.inf).where(math.inf, out)


def _digamma(x: Tensor) -> Tensor:
    small = x.lt(_SHIFT)
    total = small.where(x, math.inf).reciprocal()
    for k in range(1, _SHIFT):
        total = total.add(small.where(x.add(k), math.inf).reciprocal())
    y = small.where(x.add(_SHIFT), x)
    over = y.reciprocal()
    square = over.square()
    series = _series(square, [b / (2 * k) for k, b in enumerate(_BERNOULLI, 1)]).mul(square)
    return y.log().sub(over.mul(0.5)).sub(series).sub(total)


def _zeta(s: int, q: Tensor) -> Tensor:
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


def _erfc_slope(g: Tensor, out: Tensor, x: Tensor) -> tuple[Tensor]:
    return (g.mul(x.square().neg().exp()).mul(-2 / math.sqrt(math.pi)),)


def _erfinv_slope(g: Tensor, out: Tensor, y: Tensor) -> tuple[Tensor]:
    return (g.mul(out.square().exp()).mul(math.sqrt(math.pi) / 2),)


def _lgamma_slope(g: Tensor, out: Tensor, x: Tensor) -> tuple[Tensor]:
    return (g.mul(x.digamma()),)


def _digamma_slope(g: Tensor, out: Tensor, x: Tensor) -> tuple[Tensor]:
    return (g.mul(x.polygamma(1)),)


def _i0_slope(g: Tensor, out: Tensor, x: Tensor) -> tuple[Tensor]:
    return (g.mul(x.i1()),)


def _i0e_slope(g: Tensor, out: Tensor, x: Tensor) -> tuple[Tensor]:
    return (g.mul(x.i1e().sub(x.sign().mul(x.i0e()))),)


def _i1_over_x(x: Tensor, i1: Tensor) -> Tensor:
    zero = x.eq(0)
    return zero.where(0.5, i1.div(zero.where(1.0, x)))


def _i1_slope(g: Tensor, out: Tensor, x: Tensor) -> tuple[Tensor]:
    return (g.mul(x.i0().sub(_i1_over_x(x, x.i1()))),)


def _i1e_slope(g: Tensor, out: Tensor, x: Tensor) -> tuple[Tensor]:
    i1e = x.i1e()
    return (g.mul(x.i0e().sub(_i1_over_x(x, i1e)).sub(x.sign().mul(i1e))),)


def _log_ndtr_slope(g: Tensor, out: Tensor, x: Tensor) -> tuple[Tensor]:
    exponent = x.square().mul(-0.5).sub(x.log_ndtr())  # density / ndtr
    return (g.mul(exponent.exp()).mul(1 / math.sqrt(2 * math.pi)),)


def _polygamma_slope(g: Tensor, out: Tensor, x: Tensor, order: Tensor) -> tuple[Tensor, None]:
    return g.mul(x.polygamma(int(order.uop.base.arg) + 1)), None
