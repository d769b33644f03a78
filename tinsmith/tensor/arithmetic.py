"""More arithmetic of elements: products and quotients added, angles, integers' divisors, powers of two."""
# mypy: disable-error-code=misc
# ``self`` is the Tensor that this class is mixed into.
from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from tinsmith.tensor.arguments import integer
from tinsmith.tensor.helpers import axis_and_size, float_of, in_one_dtype, matched, operand, rounded_once
from tinsmith.tensor.slopes import with_slopes

if TYPE_CHECKING:
    from tinsmith.tensor.tensor import Tensor


class Arithmetic:
    """``addcmul atan2 hypot gcd xlogy logit frac`` and their like."""

    __slots__ = ()

    def addcmul(self: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: float = 1) -> Tensor:
        """``self + value * tensor1 * tensor2``.

        >>> Tensor([1.0]).addcmul(Tensor([2.0]), Tensor([3.0]), value=10).tolist()
        [61.0]
        """
        return _addcmul(self, operand("addcmul", tensor1, self), operand("addcmul", tensor2, self), value)

    def addcdiv(self: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: float = 1) -> Tensor:
        """``self + value * tensor1 / tensor2``.

        >>> Tensor([1.0]).addcdiv(Tensor([6.0]), Tensor([3.0]), value=10).tolist()
        [21.0]
        """
        return _addcdiv(self, operand("addcdiv", tensor1, self), operand("addcdiv", tensor2, self), value)

    def rsub(self: Tensor, other: Any, *, alpha: float = 1) -> Tensor:
        """``other - alpha * self``.

        >>> Tensor([1, 2]).rsub(5).tolist()
        [4, 3]
        """
        return self.sub(other, True, alpha=alpha)

    def float_power(self: Tensor, exponent: Any) -> Tensor:
        """``pow`` in float64.

        >>> Tensor([2, 3]).float_power(2).tolist()
        [4.0, 9.0]
        """
        y = operand("float_power", exponent, self.double())
        return self.double().pow(y.double() if hasattr(exponent, "uop") else exponent)

    def ldexp(self: Tensor, other: Any) -> Tensor:
        """``self * 2 ** other``.

        >>> Tensor([1.5]).ldexp(Tensor([2])).tolist()
        [6.0]
        """
        x = self._new(float_of(self))
        return x.mul(operand("ldexp", other, x).cast(x.dtype).exp2())

    def frac(self: Tensor) -> Tensor:
        """What ``trunc`` takes away.

        >>> Tensor([1.5, -1.5]).frac().tolist()
        [0.5, -0.5]
        """
        return self.sub(self.trunc())

    def heaviside(self: Tensor, values: Any) -> Tensor:
        """0 below zero, 1 above it, ``values`` at zero.

        >>> Tensor([-1.0, 0.0, 2.0]).heaviside(Tensor([0.5])).tolist()
        [0.0, 0.5, 1.0]
        """
        at_zero = operand("heaviside", values, self)
        out = self.eq(0).where(at_zero, self.gt(0).where(1, self._zeros()))
        if self.dtype.is_bool:
            return out.cast(at_zero.dtype)
        return self.isnan().where(self, out) if self.dtype.is_float else out

    def deg2rad(self: Tensor) -> Tensor:
        """Degrees in radians.

        >>> Tensor([180.0]).deg2rad().numpy().round(4).tolist()
        [3.1415998935699463]
        """
        return self.mul(math.pi / 180)

    def rad2deg(self: Tensor) -> Tensor:
        """Radians in degrees.

        >>> Tensor([math.pi]).rad2deg().numpy().round(3).tolist()
        [180.0]
        """
        return self.mul(180 / math.pi)

    def atan2(self: Tensor, other: Any) -> Tensor:
        """The angle in [-pi, pi] of the point (other, self): signs of zeros and infinities as in C.

        >>> Tensor([1.0, 0.0]).atan2(Tensor([1.0, -1.0])).numpy().round(4).tolist()
        [0.7853999733924866, 3.1415998935699463]
        """
        y = operand("atan2", other, self._new(float_of(self)))
        return _atan2(self._new(float_of(self) if self.dtype.is_float or not y.dtype.is_float else
                                self.uop.cast(y.dtype)), y)

    def hypot(self: Tensor, other: Any) -> Tensor:
        """``sqrt(self² + other²)``, which overflows only where the result does.

        >>> Tensor([3e30]).hypot(Tensor([4e30])).tolist() == Tensor([5e30]).tolist()
        True
        """
        return _hypot(self, operand("hypot", other, self))

    def xlogy(self: Tensor, other: Any) -> Tensor:
        """``self * log(other)``, and 0 where this is 0 and the other no NaN.

        >>> Tensor([0.0, 2.0]).xlogy(Tensor([0.0, 1.0])).tolist()
        [0.0, 0.0]
        """
        return _xlogy(self, operand("xlogy", other, self))

    @rounded_once
    def logit(self: Tensor, eps: float | None = None) -> Tensor:
        """``log(x / (1 - x))``, the inverse of the sigmoid; ``eps`` holds x in [eps, 1 - eps].

        >>> Tensor([0.5]).logit().tolist()
        [0.0]
        """
        x = self._new(float_of(self))
        x = x if eps is None else x.clamp(eps, 1 - eps)
        return x.div(x.neg().add(1)).log()

    def logaddexp2(self: Tensor, other: Any) -> Tensor:
        """The logarithm to base 2 of the sum of two powers of 2.

        >>> Tensor([3.0]).logaddexp2(Tensor([3.0])).tolist()
        [4.0]
        """
        return _logaddexp2(self, operand("logaddexp2", other, self))

    def gcd(self: Tensor, other: Any) -> Tensor:
        """The greatest common divisor of integers: Euclid's steps, as many as the dtype may take.

        >>> Tensor([12, 7]).gcd(Tensor([18, 0])).tolist()
        [6, 7]
        """
        a, b = (self._new(u).abs() for u in self._integers("gcd", other, allow_bool=False))
        for _ in range(math.ceil(a.dtype.bits * 1.4403) + 2):  # Lamé: Fibonacci numbers take the most
            a, b = b.eq(0).where(a, b), a.mod(b)  # of 0 the remainder is 0
        return a

    def lcm(self: Tensor, other: Any) -> Tensor:
        """The least common multiple of integers.

        >>> Tensor([4, 0]).lcm(Tensor([6, 5])).tolist()
        [12, 0]
        """
        y = operand("lcm", other, self)
        divisor = self.gcd(y)
        return self.idiv(divisor.eq(0).where(1, divisor)).mul(y).abs()

    def diff(self: Tensor, n: int = 1, dim: int = -1, prepend: Tensor | None = None,
             append: Tensor | None = None) -> Tensor:
        """Differences of neighbours along an axis, ``n`` times.

        >>> Tensor([1, 4, 9]).diff().tolist()
        [3, 5]

        Args:
            prepend: tensors to put in front of the values, and behind them, first.
        """
        d, _ = axis_and_size("diff", self, dim)
        if integer("diff", "n", n, least=0) == 0:
            return self._copy()
        parts = [t for t in (prepend, self, append) if t is not None]
        x = parts[0].cat(*parts[1:], dim=d) if len(parts) > 1 else self
        for _ in range(n):
            count = x.shape[d]
            below, above = x.narrow(d, 0, max(count - 1, 0)), x.narrow(d, min(1, count), max(count - 1, 0))
            x = above.ne(below) if x.dtype.is_bool else above.sub(below)
        return x

    def trapezoid(self: Tensor, x: Tensor | None = None, *, dx: float = 1.0, dim: int = -1) -> Tensor:
        """The integral of values by trapezoids, at ``x`` or ``dx`` apart.

        >>> Tensor([1.0, 2.0, 3.0]).trapezoid().item()
        4.0
        """
        d, count = axis_and_size("trapezoid", self, dim)
        pairs = self.narrow(d, 0, max(count - 1, 0)).add(self.narrow(d, min(1, count), max(count - 1, 0))).mul(0.5)
        if x is None:
            return pairs.sum(d).mul(dx)
        steps = x.diff(dim=-1 if x.ndim == 1 else d)
        return pairs.mul(steps.reshape((-1,) + (1,) * (self.ndim - d - 1)) if x.ndim == 1 else steps).sum(d)


@rounded_once
def _addcmul(x: Tensor, a: Tensor, b: Tensor, value: float) -> Tensor:
    x, a, b = in_one_dtype(x, a, b)
    return x.add((a if value == 1 else a.mul(value)).mul(b))


@rounded_once
def _addcdiv(x: Tensor, a: Tensor, b: Tensor, value: float) -> Tensor:
    x, a, b = in_one_dtype(x, a, b)
    return x.add((a if value == 1 else a.mul(value)).div(b))


@rounded_once
def _atan2(y: Tensor, x: Tensor) -> Tensor:
    y, x = (y._new(u) for u in matched("atan2", y, x))
    far, up = x.abs(), y.abs()
    steep = up.gt(far)
    low, high = steep.where(far, up), steep.where(up, far)
    same = high.eq(math.inf) & low.eq(math.inf)
    ratio = same.where(1.0, low.div(high.eq(0).where(1.0, high)))
    angle = ratio.atan()
    angle = steep.where(angle.neg().add(math.pi / 2), angle)
    angle = x.signbit().where(angle.neg().add(math.pi), angle)
    out = (x.isnan() | y.isnan()).where(math.nan, angle.copysign(y))
    return with_slopes(out, _atan2_slopes, y, x)


def _atan2_slopes(g: Tensor, out: Tensor, y: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    size = x.square().add(y.square())
    none = size.eq(0)
    scaled = g.div(none.where(1.0, size))
    return none.where(0, scaled.mul(x)), none.where(0, scaled.mul(y).neg())


@rounded_once
def _hypot(x: Tensor, y: Tensor) -> Tensor:
    a, b = (x._new(u) for u in matched("hypot", x._new(float_of(x)), y))
    far, near = a.abs().maximum(b.abs()), a.abs().minimum(b.abs())
    none = far.eq(0) | far.eq(math.inf)
    ratio = none.where(0.0, near.div(none.where(1.0, far)))
    out = far.mul(ratio.square().add(1).sqrt())
    out = (a.isinf() | b.isinf()).where(math.inf, out)
    return with_slopes(out, _hypot_slopes, a, b)


def _hypot_slopes(g: Tensor, out: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    return g.mul(a.div(out)), g.mul(b.div(out))


@rounded_once
def _xlogy(x: Tensor, y: Tensor) -> Tensor:
    a, b = (x._new(u) for u in matched("xlogy", x._new(float_of(x)), y))
    none = a.eq(0) & b.isnan().logical_not()
    return with_slopes(none.where(0, a.mul(none.where(1.0, b).log())), _xlogy_slopes, a, b)


def _xlogy_slopes(g: Tensor, out: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    none = a.eq(0) & b.le(0)
    return none.where(0, g.mul(none.where(1.0, b).log())), g.mul(a).div(b)


@rounded_once
def _logaddexp2(x: Tensor, y: Tensor) -> Tensor:
    factor = math.log(2)
    return x.mul(factor).logaddexp(y.mul(factor)).mul(1 / factor)
