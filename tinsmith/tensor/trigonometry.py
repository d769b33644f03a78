"""Circular and hyperbolic functions and their inverses, from the few that are primitive ops."""
# mypy: disable-error-code=misc
# ``self`` is the Tensor that this class is mixed into.
from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from tinsmith.core.dtypes import dtypes
from tinsmith.ir import Ops
from tinsmith.tensor.helpers import float_of, rounded_once
from tinsmith.tensor.slopes import with_slopes

if TYPE_CHECKING:
    from tinsmith.tensor.tensor import Tensor

# atan(x) = x + x*z*P(z)/Q(z) with z = x*x for |x| <= 0.66: S. Moshier, Cephes mathematical library, atan.c
_ATAN_P = (-8.750608600031904122785e-1, -1.615753718733365076637e1, -7.500855792314704667340e1,
           -1.228866684490136173410e2, -6.485021904942025371773e1)
_ATAN_Q = (1.0, 2.485846490142306297962e1, 1.650270098316988542046e2, 4.328810604912902668951e2,
           4.853903996359136964868e2, 1.945506571482613964425e2)


class Trigonometry:
    """Circular and hyperbolic functions."""

    __slots__ = ()

    def sin(self: Tensor) -> Tensor:
        """The sine of an angle in radians.

        >>> Tensor([0.]).sin().tolist()
        [0.0]
        """
        return self._unary_float(Ops.SIN)

    def cos(self: Tensor) -> Tensor:
        """The cosine of an angle in radians.

        >>> Tensor([0.]).cos().tolist()
        [1.0]
        """
        return self._unary_float(Ops.COS)

    @rounded_once
    def tan(self: Tensor) -> Tensor:
        """The tangent of an angle in radians.

        >>> Tensor([0.]).tan().tolist()
        [0.0]
        """
        return self.sin().div(self.cos())

    @rounded_once
    def atan(self: Tensor) -> Tensor:
        """The angle in (-pi/2, pi/2) with this tangent.

        >>> Tensor([0.]).atan().tolist()
        [0.0]
        """
        x = self._new(float_of(self))
        negative = x.lt(0)
        size = negative.where(x.neg(), x)
        steep, middle = size.gt(1 + math.sqrt(2)), size.gt(0.66)
        flat = steep.where(0.0, size)  # each branch sees only arguments that it can differentiate
        reduced = steep.where(steep.where(size, 1.0).reciprocal().neg(),
                              middle.where(flat.sub(1).div(flat.add(1)), flat))
        start = steep.where(math.pi / 2, middle.where(math.pi / 4, x._new(x.uop.const_like(0))))
        z = reduced.mul(reduced)
        angle = start.add(reduced.add(reduced.mul(z.mul(_polynomial(z, _ATAN_P).div(_polynomial(z, _ATAN_Q))))))
        return x.eq(0).where(x, negative.where(angle.neg(), angle))  # -0 keeps its sign

    @rounded_once
    def asin(self: Tensor) -> Tensor:
        """The angle in [-pi/2, pi/2] with this sine; NaN beyond [-1, 1].

        >>> Tensor([0.]).asin().tolist()
        [0.0]
        """
        x = self._new(float_of(self))
        out = x.div(x.neg().add(1).mul(x.add(1)).sqrt()).atan()
        return with_slopes(out, _asin_slope, x)

    @rounded_once
    def acos(self: Tensor) -> Tensor:
        """The angle in [0, pi] with this cosine; NaN beyond [-1, 1].

        >>> Tensor([1.]).acos().tolist()
        [0.0]
        """
        x = self._new(float_of(self))
        out = x.neg().add(1).div(x.add(1)).sqrt().atan().mul(2)
        return with_slopes(out, _acos_slope, x)

    def tanh(self: Tensor) -> Tensor:
        """The hyperbolic tangent.

        >>> Tensor([0.]).tanh().tolist()
        [0.0]
        """
        return self._unary_float(Ops.TANH)

    @rounded_once
    def sinh(self: Tensor) -> Tensor:
        """The hyperbolic sine.

        >>> Tensor([0.]).sinh().tolist()
        [0.0]
        """
        x = self._new(float_of(self))
        near, far, is_far, negative = _half_exponential(x)
        rest = near.expm1()
        size = is_far.where(far, rest.add(rest.div(rest.add(1))).mul(0.5))
        return with_slopes(negative.where(size.neg(), size), _sinh_slope, x)

    @rounded_once
    def cosh(self: Tensor) -> Tensor:
        """The hyperbolic cosine.

        >>> Tensor([0.]).cosh().tolist()
        [1.0]
        """
        x = self._new(float_of(self))
        near, far, is_far, _ = _half_exponential(x)
        half = near.exp().mul(0.5)
        return with_slopes(is_far.where(far, half.add(half.reciprocal().mul(0.25))), _cosh_slope, x)

    @rounded_once
    def asinh(self: Tensor) -> Tensor:
        """The inverse of ``sinh``.

        >>> Tensor([0.]).asinh().tolist()
        [0.0]
        """
        x = self._new(float_of(self))
        negative = x.lt(0)
        size = negative.where(x.neg(), x)
        large = size.gt(1e9)
        small = large.where(1, size)  # its square stays finite
        near = small.add(small.mul(small).div(small.mul(small).add(1).sqrt().add(1))).log1p()
        far = large.where(size, 1).log()  # of 1 where it is not taken: the slope at 0 would be inf * 0
        out = large.where(far.add(math.log(2)), near)
        return x.eq(0).where(x, negative.where(out.neg(), out))  # -0 keeps its sign

    @rounded_once
    def acosh(self: Tensor) -> Tensor:
        """The inverse of ``cosh``; NaN below 1.

        >>> Tensor([1.]).acosh().tolist()
        [0.0]
        """
        x = self._new(float_of(self))
        large = x.gt(1e9)
        above = large.where(1, x.lt(1).where(math.nan, x.sub(1)))  # its square stays finite
        near = above.add(above.mul(above.add(2)).sqrt()).log1p()
        return with_slopes(large.where(x.log().add(math.log(2)), near), _acosh_slope, x)

    @rounded_once
    def atanh(self: Tensor) -> Tensor:
        """The inverse of ``tanh``; infinite at -1 and 1, NaN beyond.

        >>> Tensor([0.]).atanh().tolist()
        [0.0]
        """
        x = self._new(float_of(self))
        out = x.log1p().sub(x.neg().log1p()).mul(0.5)
        return with_slopes(out, _atanh_slope, x)

    def erf(self: Tensor) -> Tensor:
        """The error function.

        >>> Tensor([0.]).erf().tolist()
        [0.0]
        """
        return self._unary_float(Ops.ERF)


# c and exp(c)/2: numbers of few bits whose exponentials are almost floats, so that exp(x - c)·exp(c)/2 = exp(x)/2
_HALVED = {dtypes.float32: (14.52734375, 1018861.6875), dtypes.float64: (4.14190673828125, 31.461342115095473)}


def _half_exponential(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(a up to 20, exp(a)/2 beyond, whether a > 20, whether x < 0), a = abs(x): from 20 on the hyperbolic sine and
    cosine are half the exponential, which may be finite where the exponential is not."""
    negative = x.lt(0)
    size = negative.where(x.neg(), x)
    is_far = size.gt(20)
    shift, half = _HALVED[x.dtype]
    return is_far.where(0, size), size.sub(shift).exp().mul(half), is_far, negative


def _cosh_slope(g: Tensor, out: Tensor, x: Tensor) -> tuple[Tensor]:
    return (g.mul(x.sinh()),)


def _sinh_slope(g: Tensor, out: Tensor, x: Tensor) -> tuple[Tensor]:
    return (g.mul(x.cosh()),)


def _asin_slope(g: Tensor, out: Tensor, x: Tensor) -> tuple[Tensor]:
    return (g.mul(x.square().neg().add(1).rsqrt()),)


def _acos_slope(g: Tensor, out: Tensor, x: Tensor) -> tuple[Tensor]:
    return (g.mul(x.square().neg().add(1).rsqrt()).neg(),)


def _acosh_slope(g: Tensor, out: Tensor, x: Tensor) -> tuple[Tensor]:
    return (g.mul(x.square().sub(1).rsqrt()),)


def _atanh_slope(g: Tensor, out: Tensor, x: Tensor) -> tuple[Tensor]:
    return (g.div(x.square().neg().add(1)),)


def _polynomial(x: Tensor, coefficients: tuple[float, ...]) -> Tensor:
    """Horner's scheme, highest power first."""
    out: Any = coefficients[0]
    for c in coefficients[1:]:
        out = x.mul(out).add(c)
    return out  # type: ignore[no-any-return]
