"""Activation functions: one elementwise expression each, with finite values and gradients everywhere."""
# mypy: disable-error-code=misc
# ``self`` is the Tensor that this class is mixed into.
from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tinsmith.ir import UOp
from tinsmith.tensor.arguments import choice, number
from tinsmith.tensor.autograd.custom_gradient import with_slopes
from tinsmith.tensor.helpers import muladd, rounded_once

if TYPE_CHECKING:
    from tinsmith.tensor.tensor import Tensor


def _positive(x: UOp) -> UOp:
    """Return x > 0 or NaN: selected NaN propagate."""
    return (x > 0) | x.ne(x)


def ramp_and_bend(x: UOp) -> tuple[UOp, UOp]:
    """Return max(x, 0) and log(1 + exp(-abs(x))); their sum is log(1 + exp(x)), the softplus."""
    below = x < 0
    return below.where(0, x), below.where(x, -x).alu("EXP").alu("LOG1P")


def _relu_slope(g: Tensor, out: Tensor, x: Tensor) -> tuple[Tensor]:
    """The gradient of ``relu``, from the result, so that the argument need not be kept; NaN keeps its gradient."""
    return (out.ne(0).where(g, 0),)


def _hardtanh_slope(g: Tensor, out: Tensor, x: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, None, None]:
    return (out.ne(low) & out.ne(high)).where(g, 0), None, None


def _hardswish_slope(g: Tensor, out: Tensor, x: Tensor) -> tuple[Tensor]:
    return (x.le(-3).where(0, x.lt(3).where(g * (x * (1 / 3) + 0.5), g)),)


# log(erfc(z) / t) + z² as a polynomial in t = 1 / (1 + z/2), z = abs(x)/√2: relative error of erfc below 1.2e-7
# (Press et al., Numerical Recipes in C, 2nd ed., section 6.2).
_TAIL = (0.17087277, -0.82215223, 1.48851587, -1.13520398, 0.27886807, -0.18628806, 0.09678418, 0.37409196, 1.00002368,
         -1.26551223)


def _share_below(x: Tensor) -> Tensor:
    """The standard normal distribution function; in float32 with full relative precision also in the left tail."""
    if x.dtype.itemsize > 4:
        return ((x * math.sqrt(0.5)).erf() + 1) * 0.5
    t = x._new(muladd(x.abs().uop, math.sqrt(0.125), 1.0)).reciprocal()
    exponent = t.uop.const_like(_TAIL[0])
    for c in _TAIL[1:]:
        exponent = muladd(exponent, t.uop, c)
    tail = t * 0.5 * x._new(muladd(x.uop * -0.5, x.uop, exponent)).exp()
    return (x < 0).where(tail, 1 - tail)


def _gelu_slope(g: Tensor, out: Tensor, x: Tensor) -> tuple[Tensor]:
    density = (x * x * -0.5).exp() * (1 / math.sqrt(2 * math.pi))
    return (g * (_share_below(x) + x * density),)


class Activations:
    """Activation functions."""

    __slots__ = ()

    def relu(self: Tensor) -> Tensor:
        """``max(x, 0)``; NaN stays NaN, the derivative at 0 is 0.

        >>> Tensor([-1., 0., 2.]).relu().tolist()
        [0.0, 0.0, 2.0]
        """
        return with_slopes(self._new(self.uop.maximum(0)), _relu_slope, self)

    @rounded_once
    def leaky_relu(self: Tensor, neg_slope: float = 0.01) -> Tensor:
        """x where x > 0, else ``neg_slope * x``.

        >>> Tensor([-4., 2.]).leaky_relu(0.25).tolist()
        [-1.0, 2.0]
        """
        x, slope = self._float(), number("leaky_relu", "neg_slope", neg_slope)
        return x._new((x.uop > 0).where(x.uop, x.uop * slope))

    def relu6(self: Tensor) -> Tensor:
        """``min(max(x, 0), 6)``."""
        return self.hardtanh(0, 6)

    @rounded_once
    def elu(self: Tensor, alpha: float = 1.0) -> Tensor:
        """x where x > 0, else ``alpha * (exp(x) - 1)``."""
        x, alpha = self._float().uop, number("elu", "alpha", alpha)
        up = _positive(x)
        return self._new(up.where(x, up.where(0, x).alu("EXPM1") * alpha))

    @rounded_once
    def celu(self: Tensor, alpha: float = 1.0) -> Tensor:
        """x where x > 0, else ``alpha * (exp(x / alpha) - 1)``."""
        x, alpha = self._float().uop, number("celu", "alpha", alpha, zero=False)
        up = _positive(x)
        return self._new(up.where(x, (up.where(0, x) * (1 / alpha)).alu("EXPM1") * alpha))

    @rounded_once
    def selu(self: Tensor, alpha: float = 1.6732632423543772, gamma: float = 1.0507009873554805) -> Tensor:
        """``gamma * elu(x, alpha)``; the defaults keep mean 0 and variance 1 through deep networks."""
        return self.elu(alpha) * number("selu", "gamma", gamma)

    @rounded_once
    def sigmoid(self: Tensor) -> Tensor:
        """``1 / (1 + exp(-x))``, without overflow.

        >>> Tensor([0., float("inf"), -float("inf")]).sigmoid().tolist()
        [0.5, 1.0, 0.0]
        """
        x = self._float().uop
        below = x < 0
        e = below.where(x, -x).alu("EXP")
        return self._new(below.where(e, 1) / (e + 1))

    @rounded_once
    def logsigmoid(self: Tensor) -> Tensor:
        """``log(sigmoid(x))``, accurate where ``sigmoid(x)`` underflows."""
        return -((-self._float()).softplus())

    @rounded_once
    def silu(self: Tensor) -> Tensor:
        """``x * sigmoid(x)``."""
        return self * self.sigmoid()

    def swish(self: Tensor) -> Tensor:
        """The same as ``silu``."""
        return self.silu()

    @rounded_once
    def quick_gelu(self: Tensor) -> Tensor:
        """``x * sigmoid(1.702 * x)``, an approximation of ``gelu``."""
        return self * (self * 1.702).sigmoid()

    @rounded_once
    def gelu(self: Tensor, approximate: str = "none") -> Tensor:
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
        if choice("gelu", "approximate", approximate, ("tanh", "none")) == "tanh":
            inner = (x + x * x * x * 0.044715) * math.sqrt(2 / math.pi)
            return x * 0.5 * (inner.tanh() + 1)
        return with_slopes(x * _share_below(x), _gelu_slope, x)

    @rounded_once
    def softplus(self: Tensor, beta: float = 1.0, threshold: float | None = None) -> Tensor:
        """``log(1 + exp(beta * x)) / beta``.

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
    def mish(self: Tensor) -> Tensor:
        """``x * tanh(softplus(x))``."""
        return self * self.softplus().tanh()

    def hardtanh(self: Tensor, min_val: float = -1.0, max_val: float = 1.0) -> Tensor:
        """Clamp x to ``[min_val, max_val]``; the derivative at both ends is 0."""
        low, high = number("hardtanh", "min_val", min_val), number("hardtanh", "max_val", max_val)
        out = self.maximum(low).minimum(high)
        return with_slopes(out, _hardtanh_slope, self.cast(out.dtype), out.full_like(low, requires_grad=False),
                           out.full_like(high, requires_grad=False))

    @rounded_once
    def hardsigmoid(self: Tensor, alpha: float = 1 / 6, beta: float = 0.5) -> Tensor:
        """Clamp ``alpha * x + beta`` to [0, 1]."""
        alpha, beta = number("hardsigmoid", "alpha", alpha), number("hardsigmoid", "beta", beta)
        return (self._float() * alpha + beta).hardtanh(0.0, 1.0)

    @rounded_once
    def hardswish(self: Tensor) -> Tensor:
        """``x * relu6(x + 3) / 6``."""
        x = self._float()
        return with_slopes(x * (x + 3).relu6() * (1 / 6), _hardswish_slope, x)

    @rounded_once
    def softsign(self: Tensor) -> Tensor:
        """``x / (1 + |x|)``."""
        return self / (self.abs() + 1)

    @rounded_once
    def tanhshrink(self: Tensor) -> Tensor:
        """``x - tanh(x)``."""
        return self - self.tanh()
