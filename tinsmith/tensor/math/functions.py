"""Elementwise functions: powers, exponentials, trigonometric, hyperbolic and special functions, activations.

Each is a primitive op (``Ops.EXP``, ``Ops.SIN``, …) or composed of primitive ops. An activation is one elementwise
expression, with finite values and gradients everywhere. The gamma functions are computed in float64 and rounded once.
"""
from __future__ import annotations

import math
from typing import Any, Self, TypeVar

from tinsmith.core.dtypes import dtypes, promote
from tinsmith.core.errors import ArgumentError
from tinsmith.ir import Ops
from tinsmith.tensor.arguments import choice, integer, number
from tinsmith.tensor.autocast import in_float32
from tinsmith.tensor.autograd.backward import with_slopes
from tinsmith.tensor.helpers import (
    float_of,
    matched,
    operand,
    plain,
    rounded_once,
)
from tinsmith.tensor.math.arithmetic import Arithmetic
from tinsmith.tensor.math.elementary import (
    ATAN_P,
    ATAN_Q,
    acos_slope,
    acosh_slope,
    asin_slope,
    atanh_slope,
    cosh_slope,
    half_exponential,
    horner,
    logaddexp2_of,
    logaddexp_of,
    power_slopes,
    sinh_slope,
)
from tinsmith.tensor.math.elementwise import addcdiv_of, addcmul_of, atan2_of, hypot_of, xlogy_of
from tinsmith.tensor.math.special import (
    ERFC_P,
    ERFC_Q,
    FAR_P,
    FAR_Q,
    INVERSE,
    INVERSE_FAR,
    bessel,
    cotangent,
    cotangent_slope,
    digamma_of,
    digamma_slope,
    erfc_slope,
    erfinv_slope,
    i0_slope,
    i0e_slope,
    i1_slope,
    i1e_slope,
    lgamma_slope,
    log_gamma,
    log_ndtr_slope,
    polygamma_slope,
    reflected,
    series_of,
    sine_of,
    zeta_of,
)
from tinsmith.tensor.nnops.activations import (
    gelu_slope,
    gelu_slope_of_half,
    gelu_tanh_slope,
    hardswish_slope,
    hardtanh_slope,
    positive_part,
    ramp_and_bend,
    relu_slope,
    share_below,
    share_by_tanh,
)

T = TypeVar("T", bound="Functions")


class Functions(Arithmetic):
    """Elementwise functions: powers, exponentials, trigonometric and special functions, activations."""

    __slots__ = ()

    # *** powers, exponentials, logarithms ***

    @in_float32
    def square(self) -> Self:
        """Return the square of the value.

        >>> Tensor([2., -3.]).square().tolist()
        [4.0, 9.0]
        """
        return self._new(self.uop.cast(dtypes.default_int)).square() if self.dtype.is_bool else self.mul(self)

    @in_float32
    def pow(self, x: Any, reverse: bool = False) -> Self:
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

    def _constant_power(self, exponent: int | float) -> Self | None:
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
            return with_slopes(one, power_slopes, x, x._new(x.uop.const_like(0))) if dtype.is_float else one
        if exponent < 0:  # square 1/x: it is finite where the reciprocal of the square is not
            out = x.reciprocal() if exponent == -1 else x.reciprocal().square()
            return with_slopes(out, power_slopes, x, x._new(x.uop.const_like(exponent)))
        product, square, left = None, x, int(exponent)
        while left:
            if left & 1:
                product = square if product is None else product.mul(square)
            left >>= 1
            square = square.mul(square) if left else square
        return product

    def _integer_power(self, exponent: Self) -> Self:
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

    def _general_power(self, exponent: Self) -> Self:
        a, b = matched("pow", self, exponent)
        dtype = promote(a.dtype, dtypes.float32) if a.dtype.itemsize < 4 or not a.dtype.is_float else a.dtype
        x, y = self._new(a.cast(dtype)), self._new(b.cast(dtype))
        whole = y.trunc().eq(y)
        odd = whole & y.mul(0.5).trunc().ne(y.mul(0.5))
        below = x.lt(0)
        power = self._new(x.abs().uop.alu(Ops.POW, y.uop))
        out = (odd & (below | x.reciprocal().lt(0))).where(power.neg(), power)  # -0 keeps its sign
        out = (below & x.gt(-math.inf) & whole.logical_not()).where(math.nan, out)
        return with_slopes(out, power_slopes, x, y).cast(a.dtype if a.dtype.is_float else dtype)

    def sqrt(self) -> Self:
        """Return the square root.

        >>> Tensor([1., 4.]).sqrt().tolist()
        [1.0, 2.0]
        """
        return self._unary_float(Ops.SQRT)

    @in_float32
    @rounded_once
    def rsqrt(self) -> Self:
        """Return the reciprocal of the square root.

        >>> Tensor([1., 4.]).rsqrt().tolist()
        [1.0, 0.5]
        """
        return self.sqrt().reciprocal()

    @in_float32
    def exp(self) -> Self:
        """e raised to the value.

        >>> Tensor([0., 1.]).exp().numpy().round(4).tolist()
        [1.0, 2.7183001041412354]
        """
        return self._unary_float(Ops.EXP)

    def exp2(self) -> Self:
        """2 raised to the value.

        >>> Tensor([0., 3.]).exp2().tolist()
        [1.0, 8.0]
        """
        return self._unary_float(Ops.EXP2)

    @in_float32
    def log(self) -> Self:
        """Return the natural logarithm.

        >>> Tensor([1.]).log().tolist()
        [0.0]
        """
        return self._unary_float(Ops.LOG)

    @in_float32
    def log2(self) -> Self:
        """Return the logarithm to base 2.

        >>> Tensor([1., 8.]).log2().tolist()
        [0.0, 3.0]
        """
        return self._unary_float(Ops.LOG2)

    @in_float32
    @rounded_once
    def log10(self) -> Self:
        """Return the logarithm to base 10.

        >>> Tensor([1., 100.]).log10().tolist()
        [0.0, 2.0]
        """
        return self.log2().mul(math.log10(2))

    @in_float32
    def log1p(self) -> Self:
        """Return ``log(1 + x)``, accurate near 0.

        >>> Tensor([1e-10]).log1p().tolist() == Tensor([1e-10]).tolist()
        True
        """
        return self._unary_float(Ops.LOG1P)

    @in_float32
    def expm1(self) -> Self:
        """Return ``exp(x) - 1``, accurate near 0.

        >>> Tensor([1e-10]).expm1().tolist() == Tensor([1e-10]).tolist()
        True
        """
        return self._unary_float(Ops.EXPM1)

    def logaddexp(self, other: Any) -> Self:
        """Return ``log(exp(self) + exp(other))`` without overflow.

        >>> round(Tensor([1000.]).logaddexp(Tensor([1000.])).item(), 3)
        1000.693
        """
        return logaddexp_of(self, operand("logaddexp", other, self))

    # *** trigonometric and hyperbolic functions ***

    def sin(self) -> Self:
        """Return the sine of an angle in radians.

        >>> Tensor([0.]).sin().tolist()
        [0.0]
        """
        return self._unary_float(Ops.SIN)

    def cos(self) -> Self:
        """Return the cosine of an angle in radians.

        >>> Tensor([0.]).cos().tolist()
        [1.0]
        """
        return self._unary_float(Ops.COS)

    @in_float32
    @rounded_once
    def tan(self) -> Self:
        """Return the tangent of an angle in radians.

        >>> Tensor([0.]).tan().tolist()
        [0.0]
        """
        return self.sin().div(self.cos())

    @rounded_once
    def atan(self) -> Self:
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
        angle = start.add(reduced.add(reduced.mul(z.mul(horner(z, ATAN_P).div(horner(z, ATAN_Q))))))
        return x.eq(0).where(x, negative.where(angle.neg(), angle))  # -0 keeps its sign

    @in_float32
    @rounded_once
    def asin(self) -> Self:
        """Return the inverse sine in radians, in [-pi/2, pi/2]; NaN outside [-1, 1].

        >>> Tensor([0.]).asin().tolist()
        [0.0]
        """
        x = self._new(float_of(self))
        out = x.div(x.neg().add(1).mul(x.add(1)).sqrt()).atan()
        return with_slopes(out, asin_slope, x)

    @in_float32
    @rounded_once
    def acos(self) -> Self:
        """Return the inverse cosine in radians, in [0, pi]; NaN outside [-1, 1].

        >>> Tensor([1.]).acos().tolist()
        [0.0]
        """
        x = self._new(float_of(self))
        out = x.neg().add(1).div(x.add(1)).sqrt().atan().mul(2)
        return with_slopes(out, acos_slope, x)

    def tanh(self) -> Self:
        """Return the hyperbolic tangent.

        >>> Tensor([0.]).tanh().tolist()
        [0.0]
        """
        return self._unary_float(Ops.TANH)

    @in_float32
    @rounded_once
    def sinh(self) -> Self:
        """Return the hyperbolic sine.

        >>> Tensor([0.]).sinh().tolist()
        [0.0]
        """
        x = self._new(float_of(self))
        near, far, is_far, negative = half_exponential(x)
        rest = near.expm1()
        size = is_far.where(far, rest.add(rest.div(rest.add(1))).mul(0.5))
        return with_slopes(negative.where(size.neg(), size), sinh_slope, x)

    @in_float32
    @rounded_once
    def cosh(self) -> Self:
        """Return the hyperbolic cosine.

        >>> Tensor([0.]).cosh().tolist()
        [1.0]
        """
        x = self._new(float_of(self))
        near, far, is_far, _ = half_exponential(x)
        half = near.exp().mul(0.5)
        return with_slopes(is_far.where(far, half.add(half.reciprocal().mul(0.25))), cosh_slope, x)

    @rounded_once
    def asinh(self) -> Self:
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
    def acosh(self) -> Self:
        """Return the inverse hyperbolic cosine; NaN below 1.

        >>> Tensor([1.]).acosh().tolist()
        [0.0]
        """
        x = self._new(float_of(self))
        large = x.gt(1e9)
        above = large.where(1, x.lt(1).where(math.nan, x.sub(1)))  # the square must stay finite
        near = above.add(above.mul(above.add(2)).sqrt()).log1p()
        return with_slopes(large.where(x.log().add(math.log(2)), near), acosh_slope, x)

    @rounded_once
    def atanh(self) -> Self:
        """Return the inverse hyperbolic tangent; infinite at -1 and 1, NaN outside.

        >>> Tensor([0.]).atanh().tolist()
        [0.0]
        """
        x = self._new(float_of(self))
        out = x.log1p().sub(x.neg().log1p()).mul(0.5)
        return with_slopes(out, atanh_slope, x)

    def erf(self) -> Self:
        """Return the error function.

        >>> Tensor([0.]).erf().tolist()
        [0.0]
        """
        return self._unary_float(Ops.ERF)

    # *** special functions ***

    @rounded_once
    def erfc(self) -> Self:
        """Return ``1 - erf(x)``, accurate where the result is small.

        >>> Tensor([0.0]).erfc().tolist(), 0 < Tensor([9.0]).erfc().item() < 1e-36
        ([1.0], True)
        """
        x = self._new(float_of(self))
        size = x.abs()
        out = _exp_of_square(size.minimum(40.0), -1).mul(_scaled_erfc(size))
        out = x.lt(0).where(out.neg().add(2), out)
        out = size.eq(math.inf).where(x.lt(0).where(2.0, out._zeros()), out)
        return with_slopes(size.lt(_NEAR).where(x.erf().neg().add(1), out), erfc_slope, x)

    @rounded_once
    def erfcx(self) -> Self:
        """Return ``exp(x²) * erfc(x)``, which neither overflows nor underflows for positive x.

        >>> Tensor([0.0, 1.0]).erfcx().numpy().round(4).tolist(), Tensor([1e6]).erfcx().item() > 5e-7
        ([1.0, 0.4275999963283539], True)
        """
        x = self._new(float_of(self))
        size = x.abs()
        square = _exp_of_square(size.minimum(40.0), 1)
        out = x.lt(0).where(square.mul(2).sub(_scaled_erfc(size)), _scaled_erfc(size))
        return with_slopes(size.lt(_NEAR).where(square.mul(x.erf().neg().add(1)), out), _erfcx_slope, x)

    @rounded_once
    def sinc(self) -> Self:
        """Return ``sin(pi x) / (pi x)``; 1 at 0, and exactly 0 at the other integers.

        >>> Tensor([0.0, 0.5, 2.0]).sinc().numpy().round(4).tolist()
        [1.0, 0.6366000175476074, 0.0]
        """
        x = self._new(float_of(self))
        zero = x.eq(0)
        away = zero.where(1.0, x)
        return x.isinf().where(0.0, zero.where(1.0, sine_of(away).div(away.mul(math.pi))))

    @in_float32
    def erfinv(self) -> Self:
        """Return the inverse of ``erf``: infinite at -1 and 1, NaN outside; computed in float64.

        >>> Tensor([0.0, 0.5]).erfinv().numpy().round(4).tolist()
        [0.0, 0.47690001130104065]
        """
        y = self._new(float_of(self))
        wide = y.cast(dtypes.float64)
        size = wide.abs()
        w = size.neg().add(1).mul(size.add(1)).maximum(1e-300).log().neg()
        close = w.lt(5)
        start = close.where(horner(w.sub(2.5), INVERSE), horner(w.sqrt().sub(3), INVERSE_FAR))
        x, left = start.mul(size), size.neg().add(1)
        for _ in range(1 if y.dtype.itemsize <= 4 else 3):  # Newton steps on erf or erfc, whichever does not cancel
            off = size.lt(0.5).where(x.erf().sub(size), left.sub(x.erfc()))
            x = x.sub(off.mul(x.square().exp()).mul(math.sqrt(math.pi) / 2))
        x = size.eq(1).where(math.inf, size.gt(1).where(math.nan, x))
        return with_slopes(x.copysign(wide).cast(y.dtype), erfinv_slope, y)

    def lgamma(self) -> Self:
        """Return the logarithm of abs(gamma(x)), by Stirling's series beyond 10.

        >>> Tensor([1.0, 5.0]).lgamma().numpy().round(4).tolist()
        [0.0, 3.178100109100342]
        """
        x = self._new(float_of(self))
        out = reflected(x, log_gamma, lambda v, turned: sine_of(v).abs().log().neg().add(math.log(math.pi)).sub(turned))
        pole = x.le(0) & x.eq(x.floor())
        return with_slopes((x.isinf() | pole).where(math.inf, out), lgamma_slope, x)

    @rounded_once
    def digamma(self) -> Self:
        """Return the derivative of ``lgamma``; NaN at negative integers.

        >>> Tensor([1.0]).digamma().numpy().round(4).tolist()
        [-0.5771999955177307]
        """
        x = self._new(float_of(self))
        out = reflected(x, digamma_of, lambda v, turned: turned.sub(cotangent(v).mul(math.pi)))
        whole = x.le(0) & x.eq(x.floor())
        out = whole.where(x.eq(0).where(x.reciprocal().neg(), math.nan), out)
        return with_slopes(out, digamma_slope, x)

    def polygamma(self, n: int) -> Self:
        """Return the ``n``-th derivative of ``digamma``; infinite at 0 and negative integers.

        >>> Tensor([1.0]).polygamma(1).numpy().round(4).tolist()
        [1.6448999643325806]
        """
        x, n = self._new(float_of(self)), integer("polygamma", "n", n, least=0)
        if n == 0:
            return x.digamma()
        sign = (-1.0) ** (n + 1) * math.factorial(n)
        slope = cotangent_slope(n)
        out = reflected(x, lambda v: zeta_of(n + 1, v).mul(sign), lambda v, turned: turned.mul((-1.0) ** n).sub(
            horner(cotangent(v), slope).mul(math.pi ** (n + 1))))
        whole = x.le(0) & x.eq(x.trunc())
        out = whole.where(math.copysign(math.inf, sign), out)
        return with_slopes(out, polygamma_slope, x, x.const_like(n))

    def mvlgamma(self, p: int) -> Self:
        """Return the logarithm of the multivariate gamma function of dimension ``p``.

        >>> Tensor([3.0]).mvlgamma(1).numpy().round(4).tolist()
        [0.6930999755859375]
        """
        p = integer("mvlgamma", "p", p, least=1)
        total = self.lgamma()
        for k in range(1, p):
            total = total.add(self.sub(k / 2).lgamma())
        return total.add(p * (p - 1) / 4 * math.log(math.pi))

    def i0(self) -> Self:
        """Return the modified Bessel function of the first kind, of order 0.

        >>> Tensor([0.0, 1.0]).i0().numpy().round(4).tolist()
        [1.0, 1.2661000490188599]
        """
        x = self._new(float_of(self))
        return with_slopes(bessel(x, 0, scaled=False), i0_slope, x)

    def i0e(self) -> Self:
        """Return ``i0(x) * exp(-abs(x))``, without overflow.

        >>> Tensor([0.0, 1.0]).i0e().numpy().round(4).tolist()
        [1.0, 0.4657999873161316]
        """
        x = self._new(float_of(self))
        return with_slopes(bessel(x, 0, scaled=True), i0e_slope, x)

    def i1(self) -> Self:
        """Return the modified Bessel function of the first kind, of order 1 (the derivative of ``i0``).

        >>> Tensor([0.0, 1.0]).i1().numpy().round(4).tolist()
        [0.0, 0.5651999711990356]
        """
        x = self._new(float_of(self))
        return with_slopes(bessel(x, 1, scaled=False), i1_slope, x)

    def i1e(self) -> Self:
        """Return ``i1(x) * exp(-abs(x))``, without overflow.

        >>> Tensor([0.0, 1.0]).i1e().numpy().round(4).tolist()
        [0.0, 0.2079000025987625]
        """
        x = self._new(float_of(self))
        return with_slopes(bessel(x, 1, scaled=True), i1e_slope, x)

    def ndtr(self) -> Self:
        """Return the standard normal cumulative distribution function; computed in float64.

        >>> Tensor([0.0, 1.0]).ndtr().numpy().round(4).tolist()
        [0.5, 0.8413000106811523]
        """
        x = self._new(float_of(self))
        return x.cast(dtypes.float64).mul(-math.sqrt(0.5)).erfc().mul(0.5).cast(x.dtype)

    def log_ndtr(self) -> Self:
        """Return ``log(ndtr(x))``, accurate where ``ndtr(x)`` underflows; computed in float64.

        >>> Tensor([0.0, -40.0]).log_ndtr().numpy().round(3).tolist()
        [-0.6930000185966492, -804.6079711914062]
        """
        x = self._new(float_of(self))
        wide = x.cast(dtypes.float64)
        far, above = wide.lt(-20), wide.gt(0)
        size = far.where(wide.neg(), 20.0)
        series = series_of(size.square().reciprocal(), [1.0, -1.0, 3.0, -15.0, 105.0, -945.0, 10395.0])
        tail = size.mul(size).mul(-0.5).sub(size.log()).sub(0.5 * math.log(2 * math.pi)).add(series.log())
        half = far.where(0.0, wide).abs().mul(math.sqrt(0.5)).erfc().mul(0.5)
        out = far.where(tail, above.where(half.neg().log1p(), half.log()))
        return with_slopes(wide.isneginf().where(-math.inf, out).cast(x.dtype), log_ndtr_slope, x)

    @rounded_once
    def entr(self) -> Self:
        """Return ``-x * log(x)``: 0 at 0, minus infinity for negative x.

        >>> Tensor([0.0, 2.0, -1.0]).entr().numpy().round(4).tolist()
        [0.0, -1.386299967765808, -inf]
        """
        x = self._new(float_of(self))
        out = x.gt(0).where(x, 1.0).log().mul(x).neg()
        return x.eq(0).where(0.0, x.lt(0).where(-math.inf, x.isnan().where(x, out)))

    def xlog1py(self, other: Self | float) -> Self:
        """Return ``self * log1p(other)``; 0 where ``self`` is 0 and ``other`` is not NaN.

        >>> Tensor([0.0, 2.0]).xlog1py(Tensor([-1.0, 0.0])).tolist()
        [0.0, 0.0]
        """
        y = self._new(float_of(operand("xlog1py", other, self)))
        nothing = self.eq(0) & y.isnan().logical_not()
        return nothing.where(0.0, nothing.where(0.0, y).log1p().mul(self))

    # *** composed arithmetic ***

    def addcmul(self, tensor1: Self, tensor2: Self, *, value: float = 1) -> Self:
        """Return ``self + value * tensor1 * tensor2``.

        >>> Tensor([1.0]).addcmul(Tensor([2.0]), Tensor([3.0]), value=10).tolist()
        [61.0]
        """
        return addcmul_of(self, operand("addcmul", tensor1, self), operand("addcmul", tensor2, self), value)

    def addcdiv(self, tensor1: Self, tensor2: Self, *, value: float = 1) -> Self:
        """Return ``self + value * tensor1 / tensor2``.

        >>> Tensor([1.0]).addcdiv(Tensor([6.0]), Tensor([3.0]), value=10).tolist()
        [21.0]
        """
        return addcdiv_of(self, operand("addcdiv", tensor1, self), operand("addcdiv", tensor2, self), value)

    def rsub(self, other: Any, *, alpha: float = 1) -> Self:
        """Return ``other - alpha * self``.

        >>> Tensor([1, 2]).rsub(5).tolist()
        [4, 3]
        """
        return self.sub(other, True, alpha=alpha)

    def float_power(self, exponent: Any) -> Self:
        """Raise to the power ``exponent`` in float64.

        >>> Tensor([2, 3]).float_power(2).tolist()
        [4.0, 9.0]
        """
        y = operand("float_power", exponent, self.double())
        return self.double().pow(y.double() if hasattr(exponent, "uop") else exponent)

    def ldexp(self, other: Any) -> Self:
        """Return ``self * 2 ** other``.

        >>> Tensor([1.5]).ldexp(Tensor([2])).tolist()
        [6.0]
        """
        x = self._new(float_of(self))
        return x.mul(operand("ldexp", other, x).cast(x.dtype).exp2())

    def frac(self) -> Self:
        """Return the fractional part, ``x - trunc(x)``; it has the sign of x.

        >>> Tensor([1.5, -1.5]).frac().tolist()
        [0.5, -0.5]
        """
        return self.sub(self.trunc())

    def heaviside(self, values: Any) -> Self:
        """The Heaviside step function: 0 for negative values, 1 for positive ones, ``values`` at zero.

        >>> Tensor([-1.0, 0.0, 2.0]).heaviside(Tensor([0.5])).tolist()
        [0.0, 0.5, 1.0]
        """
        at_zero = operand("heaviside", values, self)
        out = self.eq(0).where(at_zero, self.gt(0).where(1, self._zeros()))
        if self.dtype.is_bool:
            return out.cast(at_zero.dtype)
        return self.isnan().where(self, out) if self.dtype.is_float else out

    def deg2rad(self) -> Self:
        """Convert degrees to radians.

        >>> Tensor([180.0]).deg2rad().numpy().round(4).tolist()
        [3.1415998935699463]
        """
        return self.mul(math.pi / 180)

    def rad2deg(self) -> Self:
        """Convert radians to degrees.

        >>> Tensor([math.pi]).rad2deg().numpy().round(3).tolist()
        [180.0]
        """
        return self.mul(180 / math.pi)

    def atan2(self, other: Any) -> Self:
        """Return the angle in [-pi, pi] of the point (x=other, y=self); signs of zeros and infinities as in C.

        >>> Tensor([1.0, 0.0]).atan2(Tensor([1.0, -1.0])).numpy().round(4).tolist()
        [0.7853999733924866, 3.1415998935699463]
        """
        y = operand("atan2", other, self._new(float_of(self)))
        return atan2_of(self._new(float_of(self) if self.dtype.is_float or not y.dtype.is_float else
                                self.uop.cast(y.dtype)), y)

    def hypot(self, other: Any) -> Self:
        """Return ``sqrt(self² + other²)`` without intermediate overflow.

        >>> Tensor([3e30]).hypot(Tensor([4e30])).tolist() == Tensor([5e30]).tolist()
        True
        """
        return hypot_of(self, operand("hypot", other, self))

    def xlogy(self, other: Any) -> Self:
        """Return ``self * log(other)``; 0 where ``self`` is 0 and ``other`` is not NaN.

        >>> Tensor([0.0, 2.0]).xlogy(Tensor([0.0, 1.0])).tolist()
        [0.0, 0.0]
        """
        return xlogy_of(self, operand("xlogy", other, self))

    @rounded_once
    def logit(self, eps: float | None = None) -> Self:
        """Return ``log(x / (1 - x))``, the inverse of the sigmoid; ``eps`` clamps x to [eps, 1 - eps].

        >>> Tensor([0.5]).logit().tolist()
        [0.0]
        """
        x = self._new(float_of(self))
        x = x if eps is None else x.clamp(eps, 1 - eps)
        return x.div(x.neg().add(1)).log()

    def logaddexp2(self, other: Any) -> Self:
        """Return ``log2(2 ** self + 2 ** other)`` without overflow.

        >>> Tensor([3.0]).logaddexp2(Tensor([3.0])).tolist()
        [4.0]
        """
        return logaddexp2_of(self, operand("logaddexp2", other, self))

    def gcd(self, other: Any) -> Self:
        """Return the greatest common divisor of integers (Euclid's algorithm, unrolled to the dtype's worst case).

        >>> Tensor([12, 7]).gcd(Tensor([18, 0])).tolist()
        [6, 7]
        """
        a, b = (self._new(u).abs() for u in self._integers("gcd", other, allow_bool=False))
        for _ in range(math.ceil(a.dtype.bits * 1.4403) + 2):  # Lamé: consecutive Fibonacci numbers need the most steps
            a, b = b.eq(0).where(a, b), a.mod(b)  # 0 % 0 == 0
        return a

    def lcm(self, other: Any) -> Self:
        """Return the least common multiple of integers.

        >>> Tensor([4, 0]).lcm(Tensor([6, 5])).tolist()
        [12, 0]
        """
        y = operand("lcm", other, self)
        divisor = self.gcd(y)
        return self.idiv(divisor.eq(0).where(1, divisor)).mul(y).abs()

    # *** activations ***

    def relu(self) -> Self:
        """Return ``max(x, 0)``; NaN stays NaN, the derivative at 0 is 0.

        >>> Tensor([-1., 0., 2.]).relu().tolist()
        [0.0, 0.0, 2.0]
        """
        return with_slopes(self._new(self.uop.maximum(0)), relu_slope, self)

    @rounded_once
    def leaky_relu(self, neg_slope: float = 0.01) -> Self:
        """x where x > 0, else ``neg_slope * x``.

        >>> Tensor([-4., 2.]).leaky_relu(0.25).tolist()
        [-1.0, 2.0]
        """
        x, slope = self._float(), number("leaky_relu", "neg_slope", neg_slope)
        return x._new((x.uop > 0).where(x.uop, x.uop * slope))

    def relu6(self) -> Self:
        """Return ``min(max(x, 0), 6)``.

        >>> [round(v, 4) for v in Tensor([-1.0, 2.0]).relu6().tolist()]
        [0.0, 2.0]
        """
        return self.hardtanh(0, 6)

    @rounded_once
    def elu(self, alpha: float = 1.0) -> Self:
        """x where x > 0, else ``alpha * (exp(x) - 1)``.

        >>> [round(v, 4) for v in Tensor([-1.0, 2.0]).elu().tolist()]
        [-0.6321, 2.0]
        """
        x, alpha = self._float().uop, number("elu", "alpha", alpha)
        up = positive_part(x)
        return self._new(up.where(x, up.where(0, x).alu("EXPM1") * alpha))

    @rounded_once
    def celu(self, alpha: float = 1.0) -> Self:
        """x where x > 0, else ``alpha * (exp(x / alpha) - 1)``.

        >>> [round(v, 4) for v in Tensor([-1.0, 2.0]).celu().tolist()]
        [-0.6321, 2.0]
        """
        x, alpha = self._float().uop, number("celu", "alpha", alpha, zero=False)
        up = positive_part(x)
        return self._new(up.where(x, (up.where(0, x) * (1 / alpha)).alu("EXPM1") * alpha))

    @rounded_once
    def selu(self, alpha: float = 1.6732632423543772, gamma: float = 1.0507009873554805) -> Self:
        """Return ``gamma * elu(x, alpha)``; the defaults keep mean 0 and variance 1 through deep networks.

        >>> [round(v, 4) for v in Tensor([-1.0, 2.0]).selu().tolist()]
        [-1.1113, 2.1014]
        """
        return self.elu(alpha) * number("selu", "gamma", gamma)

    @rounded_once
    def sigmoid(self) -> Self:
        """Return ``1 / (1 + exp(-x))``, without overflow.

        >>> Tensor([0., float("inf"), -float("inf")]).sigmoid().tolist()
        [0.5, 1.0, 0.0]
        """
        x = self._float().uop
        below = x < 0
        e = below.where(x, -x).alu("EXP")
        return self._new(below.where(e, 1) / (e + 1))

    @rounded_once
    def logsigmoid(self) -> Self:
        """Return ``log(sigmoid(x))``, accurate where ``sigmoid(x)`` underflows.

        >>> [round(v, 4) for v in Tensor([-1.0, 2.0]).logsigmoid().tolist()]
        [-1.3133, -0.1269]
        """
        return -((-self._float()).softplus())

    @rounded_once
    def silu(self) -> Self:
        """Return ``x * sigmoid(x)``.

        >>> [round(v, 4) for v in Tensor([-1.0, 2.0]).silu().tolist()]
        [-0.2689, 1.7616]
        """
        return self * self.sigmoid()

    def swish(self) -> Self:
        """Return the same as ``silu``.

        >>> [round(v, 4) for v in Tensor([-1.0, 2.0]).swish().tolist()]
        [-0.2689, 1.7616]
        """
        return self.silu()

    @rounded_once
    def quick_gelu(self) -> Self:
        """Return ``x * sigmoid(1.702 * x)``, an approximation of ``gelu``.

        >>> [round(v, 4) for v in Tensor([-1.0, 2.0]).quick_gelu().tolist()]
        [-0.1542, 1.9357]
        """
        return self * (self * 1.702).sigmoid()

    def gelu(self, approximate: str = "none") -> Self:
        """x times the standard normal distribution function of x (https://arxiv.org/abs/1606.08415).

        Args:
            approximate: "none" for the error function; "tanh" for the formula that GPT-2 was trained with, cheaper and
                up to 0.0005 different.

        >>> [round(v, 4) for v in Tensor([-1., 0., 1.]).gelu().tolist()]
        [-0.1587, 0.0, 0.8413]
        >>> [round(v, 4) for v in Tensor([-1., 0., 1.]).gelu("tanh").tolist()]
        [-0.1588, 0.0, 0.8412]
        """
        x = self._float()
        half = x.dtype.itemsize <= 2  # computed in float32, rounded once
        x, dtype = x.cast(dtypes.float32) if half else x, x.dtype
        by_tanh = choice("gelu", "approximate", approximate, ("tanh", "none")) == "tanh"
        if half:
            share = share_by_tanh(x) if by_tanh else share_below(x, half)
            out = with_slopes(x * share, gelu_tanh_slope if by_tanh else gelu_slope_of_half, x)
        elif by_tanh:
            inner = (x + x * x * x * 0.044715) * math.sqrt(2 / math.pi)
            out = x * 0.5 * (inner.tanh() + 1)
        else:
            out = with_slopes(x * share_below(x), gelu_slope, x)
        return out.cast(dtype)

    @in_float32
    @rounded_once
    def softplus(self, beta: float = 1.0, threshold: float | None = None) -> Self:
        """Return ``log(1 + exp(beta * x)) / beta``.

        >>> [round(v, 4) for v in Tensor([-1.0, 2.0]).softplus().tolist()]
        [0.3133, 2.1269]

        Args:
            threshold: return x where ``beta * x`` exceeds it; PyTorch's 20 makes no difference in float32.
        """
        x, beta = self._float().uop, number("softplus", "beta", beta, zero=False)
        x = x * beta if beta != 1 else x
        ramp, bend = ramp_and_bend(x)
        out = self._new((ramp + bend) * (1 / beta) if beta != 1 else ramp + bend)
        if threshold is None:
            return out
        return self._new(x).gt(number("softplus", "threshold", threshold)).where(self._float(), out)

    @rounded_once
    def mish(self) -> Self:
        """Return ``x * tanh(softplus(x))``.

        >>> [round(v, 4) for v in Tensor([-1.0, 2.0]).mish().tolist()]
        [-0.3034, 1.944]
        """
        return self * self.softplus().tanh()

    def hardtanh(self, min_val: float = -1.0, max_val: float = 1.0) -> Self:
        """Clamp x to ``[min_val, max_val]``; the derivative at both ends is 0.

        >>> [round(v, 4) for v in Tensor([-1.0, 2.0]).hardtanh().tolist()]
        [-1.0, 1.0]
        """
        low, high = number("hardtanh", "min_val", min_val), number("hardtanh", "max_val", max_val)
        out = self.maximum(low).minimum(high)
        return with_slopes(out, hardtanh_slope, self.cast(out.dtype), out.full_like(low, requires_grad=False),
                           out.full_like(high, requires_grad=False))

    @rounded_once
    def hardsigmoid(self, alpha: float = 1 / 6, beta: float = 0.5) -> Self:
        """Clamp ``alpha * x + beta`` to [0, 1].

        >>> [round(v, 4) for v in Tensor([-1.0, 2.0]).hardsigmoid().tolist()]
        [0.3333, 0.8333]
        """
        alpha, beta = number("hardsigmoid", "alpha", alpha), number("hardsigmoid", "beta", beta)
        return (self._float() * alpha + beta).hardtanh(0.0, 1.0)

    @rounded_once
    def hardswish(self) -> Self:
        """Return ``x * relu6(x + 3) / 6``.

        >>> [round(v, 4) for v in Tensor([-1.0, 2.0]).hardswish().tolist()]
        [-0.3333, 1.6667]
        """
        x = self._float()
        return with_slopes(x * (x + 3).relu6() * (1 / 6), hardswish_slope, x)

    @rounded_once
    def softsign(self) -> Self:
        """Return ``x / (1 + |x|)``.

        >>> [round(v, 4) for v in Tensor([-1.0, 2.0]).softsign().tolist()]
        [-0.5, 0.6667]
        """
        return self / (self.abs() + 1)

    @rounded_once
    def tanhshrink(self) -> Self:
        """Return ``x - tanh(x)``.

        >>> [round(v, 4) for v in Tensor([-1.0, 2.0]).tanhshrink().tolist()]
        [-0.2384, 1.036]
        """
        return self - self.tanh()


_NEAR = 0.46875  # below it, erfc is 1 - erf


def _scaled_erfc(size: T) -> T:
    """Return ``exp(x²) * erfc(x)`` for x >= 0.46875, of x."""
    far = size.gt(4)
    middle = size.lt(_NEAR).where(1.0, far.where(4.0, size))
    z = far.where(size, 4.0).square().reciprocal()
    tail = z.mul(horner(z, FAR_P)).div(horner(z, FAR_Q)).neg().add(1 / math.sqrt(math.pi))
    return far.where(tail.div(far.where(size, 4.0)), horner(middle, ERFC_P).div(horner(middle, ERFC_Q)))


def _exp_of_square(x: T, sign: int) -> T:
    """Return ``exp(sign * x²)`` of x >= 0 as a product of two exponentials, of which one's argument is exact."""
    whole = x.mul(16).trunc().mul(1 / 16)
    return whole.square().mul(sign).exp().mul(x.sub(whole).mul(x.add(whole)).mul(sign).exp())


def _erfcx_slope(g: T, out: T, x: T) -> tuple[T]:
    return (g.mul(out.mul(x).mul(2).sub(2 / math.sqrt(math.pi))),)
