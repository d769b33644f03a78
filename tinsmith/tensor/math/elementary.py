# mypy: disable-error-code=misc
"""Powers, roots, exponentials, logarithms, trigonometric and hyperbolic functions and their inverses.

Each is a primitive op (``Ops.EXP``, ``Ops.SIN``, …) or composed of primitive ops."""
from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from tinsmith.core.dtypes import dtypes, promote
from tinsmith.core.errors import ArgumentError
from tinsmith.ir import Ops
from tinsmith.tensor.autograd.backward import with_slopes
from tinsmith.tensor.helpers import float_of, matched, operand, plain, rounded_once

if TYPE_CHECKING:
    from tinsmith.tensor.tensor import Tensor


class Powers:
    """``pow sqrt exp log`` and similar methods."""

    __slots__ = ()

    def square(self: Tensor) -> Tensor:
        """Return the square of the value.

        >>> Tensor([2., -3.]).square().tolist()
        [4.0, 9.0]
        """
        return self._new(self.uop.cast(dtypes.default_int)).square() if self.dtype.is_bool else self.mul(self)

    def pow(self: Tensor, x: Any, reverse: bool = False) -> Tensor:
        """Raise to the power ``x``; signs and zeros as in NumPy.

        >>> Tensor([2, -3]).pow(3).tolist()
        [8, -27]
        """
        x = plain(x)
        if type(x) in (int, float) and self.dtype.is_float and self.dtype.itemsize <= 2:
            return self.float().pow(x, reverse).cast(self.dtype)
        y = operand("pow", x, self)
        base, exponent = (y, self) if reverse else (self, y)
        if not reverse and isinstance(x, (int, float)) and not isinstance(x, bool):
            special = base._constant_power(x)
            if special is not None:
                return special
        if not (base.dtype.is_float or exponent.dtype.is_float):
            return base._integer_power(exponent)
        return base._general_power(exponent)

    def _constant_power(self: Tensor, exponent: int | float) -> Tensor | None:
        """Return the power by multiplications and ``sqrt`` for a suitable constant exponent, else None."""
        dtype = promote(self.dtype, dtypes.default_float) if isinstance(exponent, float) and not self.dtype.is_float \
            else (dtypes.default_int if self.dtype.is_bool else self.dtype)
        x = self.cast(dtype)
        if dtype.is_int and exponent < 0:
            raise ArgumentError("pow", f"{self.dtype!r} to the negative power {exponent} is no integer",
                                ".cast(dtypes.float32) first")
        if exponent in (0.5, -0.5):
            return x.sqrt() if exponent > 0 else x.rsqrt()
        least, most = (-2, 4) if dtype.is_float else (0, 64)  # floats: each product rounds, so only short chains
        if not least <= exponent <= most or exponent != int(exponent):
            return None
        if exponent == 0:
            one = x._new(x.uop.const_like(1))
            return with_slopes(one, _power_slopes, x, x._new(x.uop.const_like(0))) if dtype.is_float else one
        if exponent < 0:  # square 1/x: it is finite where the reciprocal of the square is not
            out = x.reciprocal() if exponent == -1 else x.reciprocal().square()
            return with_slopes(out, _power_slopes, x, x._new(x.uop.const_like(exponent)))
        product, square, left = None, x, int(exponent)
        while left:
            if left & 1:
                product = square if product is None else product.mul(square)
            left >>= 1
            square = square.mul(square) if left else square
        return product

    def _integer_power(self: Tensor, exponent: Tensor) -> Tensor:
        """Raise integers to integer powers by repeated squaring, wrapping modulo 2**bits.

        A negative power gives 0, except for the bases ±1.

        The powers of an odd number have period 2**(bits - 2), and those of an even number are 0 from exponent
        ``bits`` on; so ``bits - 2`` squarings suffice.
        """
        x, n = (self._new(u) for u in matched("pow", self, exponent))
        if x.dtype.is_bool:
            x, n = x.cast(dtypes.default_int), n.cast(dtypes.default_int)
        out = x._new(x.uop.const_like(1))
        square, left, bits = x, n, x.dtype.bits
        for _ in range(int(n.uop.base.arg).bit_length() if n.uop.base.is_const else bits - 2):
            out = left.bitwise_and(1).ne(0).where(out.mul(square), out)
            square, left = square.mul(square), left.rshift(1)
        out = (n.ge(bits) & x.bitwise_and(1).eq(0)).where(0, out)
        if n.dtype.is_unsigned:
            return out
        inverse = x.eq(1).where(1, x.eq(-1).where(n.bitwise_and(1).ne(0).where(-1, 1), 0)).cast(x.dtype)
        return n.lt(0).where(inverse, out)

    def _general_power(self: Tensor, exponent: Tensor) -> Tensor:
        a, b = matched("pow", self, exponent)
        dtype = promote(a.dtype, dtypes.float32) if a.dtype.itemsize < 4 or not a.dtype.is_float else a.dtype
        x, y = self._new(a.cast(dtype)), self._new(b.cast(dtype))
        whole = y.trunc().eq(y)
        odd = whole & y.mul(0.5).trunc().ne(y.mul(0.5))
        below = x.lt(0)
        power = self._new(x.abs().uop.alu(Ops.POW, y.uop))
        out = (odd & (below | x.reciprocal().lt(0))).where(power.neg(), power)  # -0 keeps its sign
        out = (below & x.gt(-math.inf) & whole.logical_not()).where(math.nan, out)
        return with_slopes(out, _power_slopes, x, y).cast(a.dtype if a.dtype.is_float else dtype)

    def sqrt(self: Tensor) -> Tensor:
        """Return the square root.

        >>> Tensor([1., 4.]).sqrt().tolist()
        [1.0, 2.0]
        """
        return self._unary_float(Ops.SQRT)

    @rounded_once
    def rsqrt(self: Tensor) -> Tensor:
        """Return the reciprocal of the square root.

        >>> Tensor([1., 4.]).rsqrt().tolist()
        [1.0, 0.5]
        """
        return self.sqrt().reciprocal()

    def exp(self: Tensor) -> Tensor:
        """e raised to the value.

        >>> Tensor([0., 1.]).exp().numpy().round(4).tolist()
        [1.0, 2.7183001041412354]
        """
        return self._unary_float(Ops.EXP)

    def exp2(self: Tensor) -> Tensor:
        """2 raised to the value.

        >>> Tensor([0., 3.]).exp2().tolist()
        [1.0, 8.0]
        """
        return self._unary_float(Ops.EXP2)

    def log(self: Tensor) -> Tensor:
        """Return the natural logarithm.

        >>> Tensor([1.]).log().tolist()
        [0.0]
        """
        return self._unary_float(Ops.LOG)

    def log2(self: Tensor) -> Tensor:
        """Return the logarithm to base 2.

        >>> Tensor([1., 8.]).log2().tolist()
        [0.0, 3.0]
        """
        return self._unary_float(Ops.LOG2)

    @rounded_once
    def log10(self: Tensor) -> Tensor:
        """Return the logarithm to base 10.

        >>> Tensor([1., 100.]).log10().tolist()
        [0.0, 2.0]
        """
        return self.log2().mul(math.log10(2))

    def log1p(self: Tensor) -> Tensor:
        """Return ``log(1 + x)``, accurate near 0.

        >>> Tensor([1e-10]).log1p().tolist() == Tensor([1e-10]).tolist()
        True
        """
        return self._unary_float(Ops.LOG1P)

    def expm1(self: Tensor) -> Tensor:
        """Return ``exp(x) - 1``, accurate near 0.

        >>> Tensor([1e-10]).expm1().tolist() == Tensor([1e-10]).tolist()
        True
        """
        return self._unary_float(Ops.EXPM1)

    def logaddexp(self: Tensor, other: Any) -> Tensor:
        """Return ``log(exp(self) + exp(other))`` without overflow.

        >>> round(Tensor([1000.]).logaddexp(Tensor([1000.])).item(), 3)
        1000.693
        """
        return _logaddexp(self, operand("logaddexp", other, self))


@rounded_once
def _logaddexp(x: Tensor, y: Tensor) -> Tensor:
    lead = x.eq(y).where(0, x.sub(y)).abs()  # equal infinities: difference 0, not NaN
    out = x.maximum(y).add(lead.neg().exp().log1p())
    return with_slopes(out, _logaddexp_slopes, *map(out._new, matched("logaddexp", out, x, y)[1:]))


def _power_slopes(g: Tensor, out: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """Return the gradients of ``x ** y``: 0 for the base where y == 0, 0 for the exponent where x == 0 and y >= 0."""
    if y.uop.base.is_const:
        power = y.uop.base.arg
        return None if power == 0 else g.mul(x.pow(power - 1).mul(power)), None
    by_base = y.eq(0).where(0, g.mul(y.mul(x.pow(y.sub(1)))))
    return by_base, (x.eq(0) & y.ge(0)).where(0, g.mul(out.mul(x.log())))


def _logaddexp_slopes(g: Tensor, out: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return g.div(y.sub(x).exp().add(1)), g.div(x.sub(y).exp().add(1))


# atan(x) = x + x*z*P(z)/Q(z) with z = x*x for |x| <= 0.66: S. Moshier, Cephes mathematical library, atan.c
_ATAN_P = (-8.750608600031904122785e-1, -1.615753718733365076637e1, -7.500855792314704667340e1,
           -1.228866684490136173410e2, -6.485021904942025371773e1)

_ATAN_Q = (1.0, 2.485846490142306297962e1, 1.650270098316988542046e2, 4.328810604912902668951e2,
           4.853903996359136964868e2, 1.945506571482613964425e2)


class Trigonometry:
    """Trigonometric and hyperbolic functions, their inverses, and ``erf``."""

    __slots__ = ()

    def sin(self: Tensor) -> Tensor:
        """Return the sine of an angle in radians.

        >>> Tensor([0.]).sin().tolist()
        [0.0]
        """
        return self._unary_float(Ops.SIN)

    def cos(self: Tensor) -> Tensor:
        """Return the cosine of an angle in radians.

        >>> Tensor([0.]).cos().tolist()
        [1.0]
        """
        return self._unary_float(Ops.COS)

    @rounded_once
    def tan(self: Tensor) -> Tensor:
        """Return the tangent of an angle in radians.

        >>> Tensor([0.]).tan().tolist()
        [0.0]
        """
        return self.sin().div(self.cos())

    @rounded_once
    def atan(self: Tensor) -> Tensor:
        """Return the inverse tangent in radians, in (-pi/2, pi/2).

        >>> Tensor([0.]).atan().tolist()
        [0.0]
        """
        x = self._new(float_of(self))
        negative = x.lt(0)
        size = negative.where(x.neg(), x)
        steep, middle = size.gt(1 + math.sqrt(2)), size.gt(0.66)
        flat = steep.where(0.0, size)  # masked: arguments of a branch not taken would give NaN gradients
        reduced = steep.where(steep.where(size, 1.0).reciprocal().neg(),
                              middle.where(flat.sub(1).div(flat.add(1)), flat))
        start = steep.where(math.pi / 2, middle.where(math.pi / 4, x._new(x.uop.const_like(0))))
        z = reduced.mul(reduced)
        angle = start.add(reduced.add(reduced.mul(z.mul(_polynomial(z, _ATAN_P).div(_polynomial(z, _ATAN_Q))))))
        return x.eq(0).where(x, negative.where(angle.neg(), angle))  # -0 keeps its sign

    @rounded_once
    def asin(self: Tensor) -> Tensor:
        """Return the inverse sine in radians, in [-pi/2, pi/2]; NaN outside [-1, 1].

        >>> Tensor([0.]).asin().tolist()
        [0.0]
        """
        x = self._new(float_of(self))
        out = x.div(x.neg().add(1).mul(x.add(1)).sqrt()).atan()
        return with_slopes(out, _asin_slope, x)

    @rounded_once
    def acos(self: Tensor) -> Tensor:
        """Return the inverse cosine in radians, in [0, pi]; NaN outside [-1, 1].

        >>> Tensor([1.]).acos().tolist()
        [0.0]
        """
        x = self._new(float_of(self))
        out = x.neg().add(1).div(x.add(1)).sqrt().atan().mul(2)
        return with_slopes(out, _acos_slope, x)

    def tanh(self: Tensor) -> Tensor:
        """Return the hyperbolic tangent.

        >>> Tensor([0.]).tanh().tolist()
        [0.0]
        """
        return self._unary_float(Ops.TANH)

    @rounded_once
    def sinh(self: Tensor) -> Tensor:
        """Return the hyperbolic sine.

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
        """Return the hyperbolic cosine.

        >>> Tensor([0.]).cosh().tolist()
        [1.0]
        """
        x = self._new(float_of(self))
        near, far, is_far, _ = _half_exponential(x)
        half = near.exp().mul(0.5)
        return with_slopes(is_far.where(far, half.add(half.reciprocal().mul(0.25))), _cosh_slope, x)

    @rounded_once
    def asinh(self: Tensor) -> Tensor:
        """Return the inverse hyperbolic sine.

        >>> Tensor([0.]).asinh().tolist()
        [0.0]
        """
        x = self._new(float_of(self))
        negative = x.lt(0)
        size = negative.where(x.neg(), x)
        large = size.gt(1e9)
        small = large.where(1, size)  # its square stays finite
        near = small.add(small.mul(small).div(small.mul(small).add(1).sqrt().add(1))).log1p()
        far = large.where(size, 1).log()  # 1 where not taken: the gradient at 0 would be inf * 0
        out = large.where(far.add(math.log(2)), near)
        return x.eq(0).where(x, negative.where(out.neg(), out))  # -0 keeps its sign

    @rounded_once
    def acosh(self: Tensor) -> Tensor:
        """Return the inverse hyperbolic cosine; NaN below 1.

        >>> Tensor([1.]).acosh().tolist()
        [0.0]
        """
        x = self._new(float_of(self))
        large = x.gt(1e9)
        above = large.where(1, x.lt(1).where(math.nan, x.sub(1)))  # the square must stay finite
        near = above.add(above.mul(above.add(2)).sqrt()).log1p()
        return with_slopes(large.where(x.log().add(math.log(2)), near), _acosh_slope, x)

    @rounded_once
    def atanh(self: Tensor) -> Tensor:
        """Return the inverse hyperbolic tangent; infinite at -1 and 1, NaN outside.

        >>> Tensor([0.]).atanh().tolist()
        [0.0]
        """
        x = self._new(float_of(self))
        out = x.log1p().sub(x.neg().log1p()).mul(0.5)
        return with_slopes(out, _atanh_slope, x)

    def erf(self: Tensor) -> Tensor:
        """Return the error function.

        >>> Tensor([0.]).erf().tolist()
        [0.0]
        """
        return self._unary_float(Ops.ERF)


# (c, exp(c)/2) per dtype: both are almost exact floats, so that exp(x - c)·(exp(c)/2) = exp(x)/2 without overflow
_HALVED = {dtypes.float32: (14.52734375, 1018861.6875), dtypes.float64: (4.14190673828125, 31.461342115095473)}


def _half_exponential(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return (a where a <= 20 else 0, exp(a)/2 for a > 20, a > 20, x < 0) with a = abs(x).

    Beyond 20, sinh and cosh equal exp(a)/2 in both float formats, and exp(a)/2 may be finite where exp(a) overflows."""
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
    """Evaluate a polynomial by Horner's scheme; ``coefficients`` start at the highest power."""
    out: Any = coefficients[0]
    for c in coefficients[1:]:
        out = x.mul(out).add(c)
    return out  # type: ignore[no-any-return]
