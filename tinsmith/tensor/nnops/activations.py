"""Formulas and gradients of activation functions and losses."""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, TypeVar

from tinsmith.core.errors import DTypeError
from tinsmith.ir import UOp
from tinsmith.tensor.autograd.backward import with_slopes
from tinsmith.tensor.helpers import muladd
from tinsmith.tensor.math.arithmetic import Arithmetic

T = TypeVar("T", bound=Arithmetic)


def positive_part(x: UOp) -> UOp:
    """Return x > 0 or NaN: selected NaN propagate."""
    return (x > 0) | x.ne(x)


def ramp_and_bend(x: UOp) -> tuple[UOp, UOp]:
    """Return max(x, 0) and log(1 + exp(-abs(x))); their sum is log(1 + exp(x)), the softplus."""
    below = x < 0
    return below.where(0, x), below.where(x, -x).alu("EXP").alu("LOG1P")


def relu_slope(g: T, out: T, x: T) -> tuple[T]:
    """Return the gradient of ``relu``, from the result, so that the argument need not be kept; NaN keeps its
    gradient."""
    return (out.ne(0).where(g, 0),)


def hardtanh_slope(g: T, out: T, x: T, low: T, high: T) -> tuple[T, None, None]:
    return (out.ne(low) & out.ne(high)).where(g, 0), None, None


def hardswish_slope(g: T, out: T, x: T) -> tuple[T]:
    return (x.le(-3).where(0, x.lt(3).where(g * (x * (1 / 3) + 0.5), g)),)

# log(erfc(z) / t) + z² as a polynomial in t = 1 / (1 + z/2), z = abs(x)/√2: relative error of erfc below 1.2e-7
# (Press et al., Numerical Recipes in C, 2nd ed., section 6.2).
_TAIL = (0.17087277, -0.82215223, 1.48851587, -1.13520398, 0.27886807, -0.18628806, 0.09678418, 0.37409196, 1.00002368,
         -1.26551223)
# The left tail times exp(x²/2) / t as a polynomial in t = 1 / (1 + _SLANT·abs(x)), with a relative error below 5e-6,
# for results that are rounded to 16 bits (the form of Hastings, 1955; see Abramowitz and Stegun, 7.1.26): a fit by
# iteratively reweighted least squares (Lawson, 1961) for x from -13.3, where float32 underflows.
_TAIL_OF_HALF = (-0.073929101, 0.18045022, 0.015744863, 0.13342969, 0.12044130, 0.12386070)
_SLANT = 0.31
_TAIL_OVER_DENSITY = tuple(c * math.sqrt(2 * math.pi) for c in _TAIL_OF_HALF)


def share_below(x: T, half: bool = False) -> T:
    """Return the standard normal distribution function; in float32 with full relative precision also in the left
    tail; ``half``: with the precision of 16-bit floats."""
    if x.dtype.itemsize > 4:
        return ((x * math.sqrt(0.5)).erf() + 1) * 0.5
    if half:
        t = x._new(muladd(x.abs().uop, _SLANT, 1.0)).reciprocal()
        tail = t * _polynomial(t, _TAIL_OF_HALF) * _bell(x)
    else:
        t = x._new(muladd(x.abs().uop, math.sqrt(0.125), 1.0)).reciprocal()
        exponent = _polynomial(t, _TAIL)
        tail = t * 0.5 * x._new(muladd(x.uop * -0.5, x.uop, exponent.uop)).exp()
    return with_slopes((x < 0).where(tail, 1 - tail), _density_slope, x)  # abs(x) would have the slope 0 at 0


def _density_slope(g: T, out: T, x: T) -> tuple[T]:
    return (g * _density(x),)


def _density(x: T) -> T:
    return _bell(x) * (1 / math.sqrt(2 * math.pi))


def _polynomial(t: T, coefficients: Sequence[float]) -> T:
    """Return the polynomial in ``t`` with these coefficients, the highest power first."""
    out = t.uop.const_like(coefficients[0])
    for c in coefficients[1:]:
        out = muladd(out, t.uop, c)
    return t._new(out)


def _bell(x: T) -> T:
    return (x * x * -0.5).exp()


def gelu_slope(g: T, out: T, x: T) -> tuple[T]:
    return (g * (share_below(x) + x * _density(x)),)


def gelu_slope_of_half(g: T, out: T, x: T) -> tuple[T]:
    """Return the gradient with the precision of 16-bit floats. For negative x it is density·(tail/density - abs(x)),
    where tail/density is a polynomial; for positive x it is 1 minus the gradient at -x."""
    magnitude = x.abs()
    t = x._new(muladd(magnitude.uop, _SLANT, 1.0)).reciprocal()
    factor = x._new(muladd(_polynomial(t, _TAIL_OVER_DENSITY).uop, t.uop, -magnitude.uop))
    below = x._new(muladd((x * x).uop, -0.5, -0.5 * math.log(2 * math.pi))).exp() * factor
    return (g * with_slopes((x < 0).where(below, 1 - below), _gelu_curvature, x),)


def _gelu_curvature(g: T, out: T, x: T) -> tuple[T]:
    """Return the second derivative, (2 - x²)·density."""
    return (g * (2 - x * x) * _density(x),)


_CUBIC: Final = 0.044715  # of GELU's approximation by tanh (Hendrycks and Gimpel, https://arxiv.org/abs/1606.08415)
_SLOPE: Final = 2 * math.sqrt(2 / math.pi)  # that of 2u at 0


def share_by_tanh(x: T) -> T:
    """Return (1 + tanh(u)) / 2 of GELU's approximation u = √(2/π)·(x + 0.044715·x³), as a sigmoid of 2u."""
    return (x * (x * x * (-_CUBIC * _SLOPE) - _SLOPE)).exp().add(1).reciprocal()


def gelu_tanh_slope(g: T, out: T, x: T) -> tuple[T]:
    share, steep = share_by_tanh(x), x * x * (3 * _CUBIC * _SLOPE) + _SLOPE  # steep: the slope of 2u
    return (g * (share + x * share * (1 - share) * steep),)


def crossentropy_slopes(g: T, loss: T, x: T, target: T) -> tuple[T, T]:
    """Return gradients that stay finite for predictions of exactly 0 and 1."""
    return g * (x - target) / ((1 - x) * x).clamp(1e-12), g * ((1 - x).log() - x.log())


def class_count(op: str, label: T) -> T:
    if label.dtype.is_float:
        raise DTypeError(op, f"class indices of dtype {label.dtype!r}", ".cast(dtypes.int32)")
    return label


