# mypy: disable-error-code=misc
"""Elementwise methods (arithmetic, selection, bit operations, signs, rounding), and Python's operators.

The operands of a binary method are broadcast and promoted to one dtype. A Python number takes the tensor's dtype,
except a float with an integer tensor (default float) and an integer with a bool tensor (default int). An in-place
operator writes to the tensor's memory.

``ArithmeticMethods`` has the composed methods: ``addcmul``, ``atan2``, ``hypot``, ``gcd``, ``diff``, ``trapezoid``, …
"""
from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from tinsmith.core.dtypes import DType, dtypes, promote
from tinsmith.core.errors import ArgumentError, DTypeError, ShapeError
from tinsmith.ir import Ops, UOp
from tinsmith.ir.ops import Op
from tinsmith.runtime.thread_turns import writing
from tinsmith.tensor.arguments import Scalar, integer, shown
from tinsmith.tensor.autograd.backward import with_slopes
from tinsmith.tensor.base import TensorBase
from tinsmith.tensor.helpers import (
    as_sized,
    axis_and_size,
    float_of,
    in_one_dtype,
    in_one_shape,
    matched,
    matched_nodes,
    operand,
    operand_node,
    plain,
    rounded_once,
    same_sizes,
    weak_dtype,
)
from tinsmith.tensor.host_data import check_range
from tinsmith.tensor.math.casting import Conversions
from tinsmith.tensor.math.elementary import Powers, Trigonometry

if TYPE_CHECKING:
    from tinsmith.tensor.tensor import Tensor


# Python numbers as operands: (dtype, value, type, shape) → (constant of that shape, True if ``dtype`` rounds the value
# to fewer digits than float32).
_scalars: dict[tuple[Any, ...], tuple[UOp, bool]] = {}
_KEPT_SCALARS = 4096


class ElementwiseMethods(Conversions, Powers, Trigonometry):
    """Elementwise methods that map to one op or a few."""

    __slots__ = ()
    __array_priority__ = 1000.0  # makes NumPy defer `array + tensor` to Tensor.__radd__

    def _unary_float(self: Tensor, op: Op) -> Tensor:
        return self._new(float_of(self).alu(op))

    def _binary(self: Tensor, name: str, op: Op, other: Any, reverse: bool = False) -> Tensor:
        a = self.uop
        if isinstance(other, TensorBase):
            b = other.uop
            if a.dtype is not b.dtype or a.device != b.device or a.shape != b.shape:
                a, b = matched_nodes(name, [b, a] if reverse else [a, b])
                reverse = False
        else:
            if type(other) is not float and type(other) is not int:
                other = plain(other)
            if type(other) in (int, float):
                dtype = a.dtype
                if not dtype.is_float and (dtype := weak_dtype(other, dtype)) is not a.dtype:
                    a = a.cast(dtype)
                key = dtype, other, type(other), a.shape
                found = _scalars.get(key)
                if found is None:
                    check_range(name, other, dtype)
                    narrow = dtype.itemsize <= 2 and dtype.is_float
                    found = a.const_like(other), narrow and dtype.as_const(other) != other
                    if other:  # 0.0 and -0.0 are equal keys
                        if len(_scalars) > _KEPT_SCALARS:
                            _scalars.clear()
                        _scalars[key] = found
                b, is_rounded = found
                if is_rounded and op in _IN_FLOAT32:
                    wide = self._new(a.cast(dtypes.float32))  # keeps the scalar's float32 digits; one final rounding
                    return wide._binary(name, op, other, reverse).cast(dtype)
            else:
                y = operand_node(name, other, self)
                a, b = matched_nodes(name, [y, a] if reverse else [a, y])
                reverse = False
        return type(self)._wrap(UOp(op, None, (b, a) if reverse else (a, b)), self._device)

    def _integers(self: Tensor, name: str, other: Any, reverse: bool = False, allow_bool: bool = True) -> list[UOp]:
        y = operand(name, other, self)
        for t in (self, y):
            if t.dtype.is_float or (t.dtype.is_bool and not allow_bool):
                raise DTypeError(name, f"works on integers, not on {t.dtype!r}", ".cast(dtypes.int32)")
        return matched(name, *((y, self) if reverse else (self, y)))

    # *** arithmetic ***

    def add(self: Tensor, x: Any, reverse: bool = False, *, alpha: float = 1) -> Tensor:
        """Return the sum ``self + alpha * x``.

        >>> Tensor([1, 2]).add(3).tolist()
        [4, 5]
        """
        if alpha != 1:
            y = operand("add", x, self)
            return _sum_scaled(y, self, alpha) if reverse else _sum_scaled(self, y, alpha)
        return self._binary("add", Ops.ADD, x, reverse)

    def sub(self: Tensor, x: Any, reverse: bool = False, *, alpha: float = 1) -> Tensor:
        """Return the difference ``self - alpha * x``; bools are subtracted as the integers 0 and 1.

        >>> Tensor([1, 2]).sub(3).tolist()
        [-2, -1]
        """
        if alpha != 1:
            y = operand("sub", x, self)
            return _difference_scaled(y, self, alpha) if reverse else _difference_scaled(self, y, alpha)
        if self.dtype.is_bool:
            x = operand("sub", x, self)
            x = x.cast(dtypes.default_int) if x.dtype.is_bool else x
        return self._binary("sub", Ops.SUB, x, reverse)

    def mul(self: Tensor, x: Any, reverse: bool = False) -> Tensor:
        """Return the product.

        >>> Tensor([1, 2]).mul(3).tolist()
        [3, 6]
        """
        return self._binary("mul", Ops.MUL, x, reverse)

    def div(self: Tensor, x: Any, reverse: bool = False, rounding_mode: str | None = None) -> Tensor:
        """Return the quotient as a float; ``rounding_mode`` "floor" or "trunc" rounds it.

        >>> Tensor([1, 2]).div(2).tolist()
        [0.5, 1.0]
        """
        if rounding_mode == "floor":
            return self.idiv(x, reverse)
        x = plain(x)
        y = x if type(x) in (int, float) and self.dtype.is_float else operand("div", x, self)
        if rounding_mode == "trunc" and not (self.dtype.is_float or y.dtype.is_float):
            a, b = (y, self) if reverse else (self, y)
            quotient = a.idiv(b)
            inexact = quotient.mul(b).ne(a) & quotient.lt(0)
            return inexact.where(quotient.add(1), quotient)
        if rounding_mode not in (None, "trunc"):
            raise ArgumentError("div", f"unknown rounding_mode {rounding_mode!r}", "None, 'floor' or 'trunc'")
        if not (self.dtype.is_float or y.dtype.is_float):
            y = y.cast(dtypes.default_float)
        if rounding_mode == "trunc":
            if isinstance(y, (int, float)):
                return _trunc_quotient(self, y, reverse)
            a, b = in_one_dtype(self, y)
            return _trunc_quotient(a, b, reverse)
        return self._binary("div", Ops.FDIV, y, reverse)

    def idiv(self: Tensor, x: Any, reverse: bool = False) -> Tensor:
        """Return the quotient rounded down (floor division); an integer divided by 0 gives 0.

        >>> Tensor([7, -7, 7]).idiv(Tensor([2, 2, 0])).tolist()
        [3, -4, 0]
        """
        x = plain(x)
        y = operand("idiv", x, self)
        if self.dtype.is_float or y.dtype.is_float:
            dtype = promote(self.dtype, y.dtype)
            a, b = self.cast(dtype), y.cast(dtype)
            if type(x) in (int, float):  # float32 digits for a scalar next to a 16-bit float, as in div
                b = self._new(UOp.const(promote(dtype, dtypes.float32), x))
            return (_floor_quotient(b, a) if reverse else _floor_quotient(a, b)).cast(dtype)
        if self.dtype.is_bool and y.dtype.is_bool:
            y = y.cast(dtypes.default_int)
        return self._binary("idiv", Ops.IDIV, y, reverse)

    def mod(self: Tensor, x: Any, reverse: bool = False) -> Tensor:
        """Return the remainder with the sign of the divisor; an integer modulo 0 is 0.

        >>> Tensor([7, -7, 7]).mod(Tensor([2, 2, 0])).tolist()
        [1, 1, 0]
        """
        y = operand("mod", x, self)
        if not (self.dtype.is_float or y.dtype.is_float):
            if self.dtype.is_bool and y.dtype.is_bool:
                y = y.cast(dtypes.default_int)
            return self._binary("mod", Ops.MOD, y, reverse)
        a, b = (y, self) if reverse else (self, y)
        rest = a._binary("mod", Ops.FMOD, b)
        return _other_side(rest, b).where(rest + b, rest)

    def fmod(self: Tensor, x: Any) -> Tensor:
        """Return the remainder with the sign of the dividend, as in C.

        >>> Tensor([7, -7]).fmod(4).tolist()
        [3, -3]
        """
        y = operand("fmod", x, self)
        if not (self.dtype.is_float or y.dtype.is_float):
            return self.sub(y.mul(self.div(y, rounding_mode="trunc")))
        return self._binary("fmod", Ops.FMOD, y)

    def neg(self: Tensor) -> Tensor:
        """Return the negated value; logical NOT for bools.

        >>> Tensor([1, -2]).neg().tolist()
        [-1, 2]
        """
        return self.logical_not() if self.dtype.is_bool else self._new(self.uop.alu(Ops.NEG))

    def reciprocal(self: Tensor) -> Tensor:
        """Return the reciprocal, 1 / x.

        >>> Tensor([2., 4.]).reciprocal().tolist()
        [0.5, 0.25]
        """
        return self._unary_float(Ops.RECIP)

    def maximum(self: Tensor, x: Any) -> Tensor:
        """Return the elementwise maximum; NaN if either value is NaN.

        >>> Tensor([1, 5]).maximum(3).tolist()
        [3, 5]
        """
        return self._binary("maximum", Ops.MAX, x)

    def minimum(self: Tensor, x: Any) -> Tensor:
        """Return the elementwise minimum; NaN if either value is NaN.

        >>> Tensor([1, 5]).minimum(3).tolist()
        [1, 3]
        """
        return self._binary("minimum", Ops.MIN, x)

    def clamp(self: Tensor, min_: Any = None, max_: Any = None, *, min: Any = None, max: Any = None) -> Tensor:
        """Limit the values to [``min_``, ``max_``]; a value equal to a bound keeps its gradient.

        PyTorch's ``min=`` and ``max=`` are the same arguments.

        >>> Tensor([-3, 1, 9]).clamp(0, 5).tolist()
        [0, 1, 5]
        """
        min_, max_ = min_ if min is None else min, max_ if max is None else max
        if min_ is None and max_ is None:
            raise ArgumentError("clamp", "neither a lower nor an upper bound is given", "clamp(0) or clamp(max_=1)")
        low = self if min_ is None else self.maximum(min_)
        out = low if max_ is None else low.minimum(max_)
        if not out.dtype.is_float:
            return out
        bounds = (-math.inf if min_ is None else min_, math.inf if max_ is None else max_)
        return with_slopes(out, _clamp_slopes, *map(out._new, matched_nodes(
            "clamp", [out.uop, self.uop, *(operand_node("clamp", b, out) for b in bounds)])[1:]))

    def clip(self: Tensor, min_: Any = None, max_: Any = None, *, min: Any = None, max: Any = None) -> Tensor:
        """Return the same as ``clamp``.

        >>> Tensor([-3, 1, 9]).clip(0, 5).tolist()
        [0, 1, 5]
        """
        return self.clamp(min_, max_, min=min, max=max)

    def lerp(self: Tensor, end: Any, weight: Any) -> Tensor:
        """Interpolate linearly: ``self + weight * (end - self)``.

        >>> Tensor([0., 10.]).lerp(Tensor([10., 20.]), 0.5).tolist()
        [5.0, 15.0]
        """
        weight = weight if type(weight) in (int, float) else operand("lerp", weight, self)
        return _lerp(self, operand("lerp", end, self), weight)

    # *** selection ***

    def where(self: Tensor, x: Any, y: Any) -> Tensor:
        """Select ``x`` where this condition is true, else ``y``. PyTorch's order is accepted, too:
        ``t.where(condition, y)``, with a non-bool ``t``, selects ``t`` where the condition is true, else ``y``.

        >>> Tensor([True, False]).where(Tensor([1, 2]), 9).tolist()
        [1, 9]
        >>> x = Tensor([1, -2]); x.where(x > 0, 9).tolist()
        [1, 9]
        """
        if isinstance(x, TensorBase) and x.dtype.is_bool and not self.dtype.is_bool:
            chosen: Tensor = x.where(self, y)  # type: ignore[attr-defined]
            return chosen
        condition = self if self.dtype.is_bool else self.ne(0)
        like = next((t for t in (x, y) if hasattr(t, "uop")), None)
        if like is None:
            kind = promote(dtypes.of(x), dtypes.of(y))
            like = self._new(UOp.const(kind, 0))
        a, b = operand_node("where", x, like), operand_node("where", y, like)
        dtype = promote(a.dtype, b.dtype)
        return self._new(UOp(Ops.WHERE, None, in_one_shape("where", condition.uop, a.cast(dtype), b.cast(dtype))))

    def masked_fill(self: Tensor, mask: Tensor, value: Any) -> Tensor:
        """Replace elements by ``value`` where the mask is true; the dtype stays.

        >>> Tensor([1, 2]).masked_fill(Tensor([True, False]), 0).tolist()
        [0, 2]

        Raises:
            DTypeError: if the dtype cannot hold the value.
        """
        new = operand("masked_fill", value, self)
        held = isinstance(value, Scalar) and math.isfinite(value) and self.dtype.as_const(value) == value
        if not held and promote(new.dtype, self.dtype) is not self.dtype:
            raise DTypeError("masked_fill", f"a tensor of {self.dtype!r} cannot hold {shown(value)}",
                             f".cast({new.dtype!r}) first")
        return operand("masked_fill", mask, self).where(new.cast(self.dtype), self)

    def copysign(self: Tensor, other: Any) -> Tensor:
        """Return the magnitude of this value with the sign of ``other``; the sign of zeros and NaN counts.

        >>> Tensor([1., 2.]).copysign(Tensor([-0., 3.])).tolist()
        [-1.0, 2.0]
        """
        y = operand("copysign", other, self)
        a, b = matched("copysign", self._new(float_of(self)), y)
        size = self._new(a).abs()
        return self._new(_sign_bit(b)).where(size.neg(), size)

    # *** bits ***

    def bitwise_and(self: Tensor, x: Any, reverse: bool = False) -> Tensor:
        """Return the bitwise AND; logical AND for bools.

        >>> Tensor([6, 5]).bitwise_and(3).tolist()
        [2, 1]
        """
        return self._new(UOp(Ops.AND, None, tuple(self._integers("bitwise_and", x, reverse))))

    def bitwise_or(self: Tensor, x: Any, reverse: bool = False) -> Tensor:
        """Return the bitwise OR; logical OR for bools.

        >>> Tensor([6, 5]).bitwise_or(3).tolist()
        [7, 7]
        """
        return self._new(UOp(Ops.OR, None, tuple(self._integers("bitwise_or", x, reverse))))

    def bitwise_xor(self: Tensor, x: Any, reverse: bool = False) -> Tensor:
        """Return the bitwise XOR; logical XOR for bools.

        >>> Tensor([6, 5]).bitwise_xor(3).tolist()
        [5, 6]
        """
        return self._new(UOp(Ops.XOR, None, tuple(self._integers("bitwise_xor", x, reverse))))

    def bitwise_not(self: Tensor) -> Tensor:
        """Invert all bits; logical NOT for bools.

        >>> Tensor([0, 5]).bitwise_not().tolist()
        [-1, -6]
        """
        ones = int(self.dtype.max) if self.dtype.is_unsigned else -1
        return self.logical_not() if self.dtype.is_bool else self.bitwise_xor(ones)

    def lshift(self: Tensor, x: Any, reverse: bool = False) -> Tensor:
        """Shift the bits left by ``x``; 0 if ``x`` is negative or at least the bit width.

        >>> Tensor([1, 3]).lshift(2).tolist()
        [4, 12]
        """
        return self._new(UOp(Ops.SHL, None, tuple(self._integers("lshift", x, reverse, allow_bool=False))))

    def rshift(self: Tensor, x: Any, reverse: bool = False) -> Tensor:
        """Shift the bits right by ``x``; signed integers copy the sign bit (arithmetic shift).

        >>> Tensor([4, -8]).rshift(2).tolist()
        [1, -2]
        """
        return self._new(UOp(Ops.SHR, None, tuple(self._integers("rshift", x, reverse, allow_bool=False))))

    # *** sign and rounding ***

    def abs(self: Tensor) -> Tensor:
        """Return the absolute value; its gradient at 0 is 0.

        >>> Tensor([-1., 2.]).abs().tolist()
        [1.0, 2.0]
        """
        if self.dtype.is_unsigned:
            return self._copy()
        magnitude = self.maximum(self.neg())  # max(0.0, -0.0) may be either zero: adding 0.0 gives +0.0
        return magnitude + 0.0 if self.dtype.is_float else magnitude

    def sign(self: Tensor) -> Tensor:
        """Return the sign: -1, 0 or 1; NaN stays NaN.

        >>> Tensor([-3., 0., 2.]).sign().tolist()
        [-1.0, 0.0, 1.0]
        """
        if self.dtype.is_bool:
            return self._copy()
        zero = self.eq(0).where(0, self.detach()) if self.dtype.is_float else self._new(self.uop.const_like(0))
        out = self.gt(0).where(1, zero)
        return out if self.dtype.is_unsigned else self.lt(0).where(-1, out)

    def trunc(self: Tensor) -> Tensor:
        """Round towards zero.

        >>> Tensor([1.7, -1.7]).trunc().tolist()
        [1.0, -1.0]
        """
        return self._new(self.uop.alu(Ops.TRUNC)) if self.dtype.is_float else self._copy()

    def floor(self: Tensor) -> Tensor:
        """Round down.

        >>> Tensor([1.7, -1.2]).floor().tolist()
        [1.0, -2.0]
        """
        if not self.dtype.is_float:
            return self._copy()
        whole = self.trunc()
        return self.lt(whole).where(whole.sub(1), whole)

    def ceil(self: Tensor) -> Tensor:
        """Round up.

        >>> Tensor([1.2, -1.7]).ceil().tolist()
        [2.0, -1.0]
        """
        if not self.dtype.is_float:
            return self._copy()
        whole = self.trunc()
        return whole.lt(self).where(whole.add(1), whole)

    def round(self: Tensor, decimals: int = 0) -> Tensor:
        """Round to ``decimals`` decimal places, halves to even; negative ``decimals`` round to tens, hundreds, ….

        >>> Tensor([0.5, 1.5, -1.2]).round().tolist(), Tensor([12., 15.]).round(-1).tolist()
        ([0.0, 2.0, -1.0], [10.0, 20.0])
        """
        decimals = integer("round", "decimals", decimals)
        if not self.dtype.is_float:
            if decimals < 0:
                raise DTypeError("round", f"decimals={decimals} of a tensor of {self.dtype!r}", ".float()")
            return self._copy()
        if decimals:
            return _round_to(self, decimals)
        whole = self.trunc()  # trunc keeps the sign of values that round to 0
        beyond = self.sub(whole).abs()
        odd = whole.mul(0.5).trunc().mul(2).ne(whole)
        away = beyond.gt(0.5) | (beyond.eq(0.5) & odd)
        return away.where(whole.add(self.lt(0).where(-1, 1)), whole)

_IN_FLOAT32 = (Ops.ADD, Ops.SUB, Ops.MUL, Ops.FDIV)

"""What takes a Python scalar beside a 16-bit float with float32's digits, as PyTorch's GPU kernels do (its CPU kernels
round that of sums and differences); all else rounds the scalar."""


@rounded_once
def _sum_scaled(x: Tensor, y: Tensor, factor: float) -> Tensor:
    x, y = in_one_dtype(x, y)
    return x.add(y.mul(factor))


@rounded_once
def _difference_scaled(x: Tensor, y: Tensor, factor: float) -> Tensor:
    x, y = in_one_dtype(x, y)
    return x.sub(y.mul(factor))


@rounded_once
def _round_to(x: Tensor, decimals: int) -> Tensor:
    scale = 10.0 ** abs(decimals)
    return x.mul(scale).round().div(scale) if decimals > 0 else x.div(scale).round().mul(scale)


@rounded_once
def _lerp(start: Tensor, end: Tensor, weight: Tensor | float) -> Tensor:
    return start.add(end.sub(start).mul(weight))


def _clamp_slopes(g: Tensor, out: Tensor, x: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of ``clamp``: a value equal to a bound counts as inside."""
    ordered = low.lt(high) | high.eq(math.inf)
    return ((x.ge(low) & x.le(high)).where(g, 0), (x.lt(low) & ordered).where(g, 0),
            (x.gt(high) | high.lt(low)).where(g, 0))

_BITS_OF: dict[DType, DType] = {dtypes.float16: dtypes.int16, dtypes.bfloat16: dtypes.int16,
                                dtypes.float32: dtypes.int32,
                                dtypes.float64: dtypes.int64}


def _sign_bit(x: UOp) -> UOp:
    bits = x.bitcast(_BITS_OF[x.dtype])
    return bits.lt(0)


def _other_side(rest: Tensor, b: Tensor) -> Tensor:
    """Return True where a remainder with the dividend's sign must be shifted by ``b`` to have the divisor's sign."""
    return rest.ne(0) & rest.lt(0).ne(b.lt(0))


@rounded_once
def _trunc_quotient(a: Tensor, b: Tensor | float, reverse: bool) -> Tensor:
    return a.div(b, reverse).trunc()


@rounded_once
def _floor_quotient(a: Tensor, b: Tensor) -> Tensor:
    """Floor division of floats by way of the exact remainder, as in Python and PyTorch."""
    a, b = (a._new(u) for u in matched("idiv", a, b))
    rest = a._binary("idiv", Ops.FMOD, b)
    whole = a.sub(rest).div(b)
    whole = _other_side(rest, b).where(whole.sub(1), whole)
    near = whole.floor()
    near = whole.sub(near).gt(0.5).where(near.add(1), near)
    negative = a.signbit().ne(b.signbit())
    near = whole.eq(0).where(negative.where(-0.0, near._zeros()), near)
    return b.eq(0).where(a.detach().abs().mul(negative.where(-math.inf, math.inf)), near)


class ArithmeticMethods:
    """``addcmul atan2 hypot gcd xlogy logit frac`` and similar methods."""

    __slots__ = ()

    def addcmul(self: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: float = 1) -> Tensor:
        """Return ``self + value * tensor1 * tensor2``.

        >>> Tensor([1.0]).addcmul(Tensor([2.0]), Tensor([3.0]), value=10).tolist()
        [61.0]
        """
        return _addcmul(self, operand("addcmul", tensor1, self), operand("addcmul", tensor2, self), value)

    def addcdiv(self: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: float = 1) -> Tensor:
        """Return ``self + value * tensor1 / tensor2``.

        >>> Tensor([1.0]).addcdiv(Tensor([6.0]), Tensor([3.0]), value=10).tolist()
        [21.0]
        """
        return _addcdiv(self, operand("addcdiv", tensor1, self), operand("addcdiv", tensor2, self), value)

    def rsub(self: Tensor, other: Any, *, alpha: float = 1) -> Tensor:
        """Return ``other - alpha * self``.

        >>> Tensor([1, 2]).rsub(5).tolist()
        [4, 3]
        """
        return self.sub(other, True, alpha=alpha)

    def float_power(self: Tensor, exponent: Any) -> Tensor:
        """Raise to the power ``exponent`` in float64.

        >>> Tensor([2, 3]).float_power(2).tolist()
        [4.0, 9.0]
        """
        y = operand("float_power", exponent, self.double())
        return self.double().pow(y.double() if hasattr(exponent, "uop") else exponent)

    def ldexp(self: Tensor, other: Any) -> Tensor:
        """Return ``self * 2 ** other``.

        >>> Tensor([1.5]).ldexp(Tensor([2])).tolist()
        [6.0]
        """
        x = self._new(float_of(self))
        return x.mul(operand("ldexp", other, x).cast(x.dtype).exp2())

    def frac(self: Tensor) -> Tensor:
        """Return the fractional part, ``x - trunc(x)``; it has the sign of x.

        >>> Tensor([1.5, -1.5]).frac().tolist()
        [0.5, -0.5]
        """
        return self.sub(self.trunc())

    def heaviside(self: Tensor, values: Any) -> Tensor:
        """The Heaviside step function: 0 for negative values, 1 for positive ones, ``values`` at zero.

        >>> Tensor([-1.0, 0.0, 2.0]).heaviside(Tensor([0.5])).tolist()
        [0.0, 0.5, 1.0]
        """
        at_zero = operand("heaviside", values, self)
        out = self.eq(0).where(at_zero, self.gt(0).where(1, self._zeros()))
        if self.dtype.is_bool:
            return out.cast(at_zero.dtype)
        return self.isnan().where(self, out) if self.dtype.is_float else out

    def deg2rad(self: Tensor) -> Tensor:
        """Convert degrees to radians.

        >>> Tensor([180.0]).deg2rad().numpy().round(4).tolist()
        [3.1415998935699463]
        """
        return self.mul(math.pi / 180)

    def rad2deg(self: Tensor) -> Tensor:
        """Convert radians to degrees.

        >>> Tensor([math.pi]).rad2deg().numpy().round(3).tolist()
        [180.0]
        """
        return self.mul(180 / math.pi)

    def atan2(self: Tensor, other: Any) -> Tensor:
        """Return the angle in [-pi, pi] of the point (x=other, y=self); signs of zeros and infinities as in C.

        >>> Tensor([1.0, 0.0]).atan2(Tensor([1.0, -1.0])).numpy().round(4).tolist()
        [0.7853999733924866, 3.1415998935699463]
        """
        y = operand("atan2", other, self._new(float_of(self)))
        return _atan2(self._new(float_of(self) if self.dtype.is_float or not y.dtype.is_float else
                                self.uop.cast(y.dtype)), y)

    def hypot(self: Tensor, other: Any) -> Tensor:
        """Return ``sqrt(self² + other²)`` without intermediate overflow.

        >>> Tensor([3e30]).hypot(Tensor([4e30])).tolist() == Tensor([5e30]).tolist()
        True
        """
        return _hypot(self, operand("hypot", other, self))

    def xlogy(self: Tensor, other: Any) -> Tensor:
        """Return ``self * log(other)``; 0 where ``self`` is 0 and ``other`` is not NaN.

        >>> Tensor([0.0, 2.0]).xlogy(Tensor([0.0, 1.0])).tolist()
        [0.0, 0.0]
        """
        return _xlogy(self, operand("xlogy", other, self))

    @rounded_once
    def logit(self: Tensor, eps: float | None = None) -> Tensor:
        """Return ``log(x / (1 - x))``, the inverse of the sigmoid; ``eps`` clamps x to [eps, 1 - eps].

        >>> Tensor([0.5]).logit().tolist()
        [0.0]
        """
        x = self._new(float_of(self))
        x = x if eps is None else x.clamp(eps, 1 - eps)
        return x.div(x.neg().add(1)).log()

    def logaddexp2(self: Tensor, other: Any) -> Tensor:
        """Return ``log2(2 ** self + 2 ** other)`` without overflow.

        >>> Tensor([3.0]).logaddexp2(Tensor([3.0])).tolist()
        [4.0]
        """
        return _logaddexp2(self, operand("logaddexp2", other, self))

    def gcd(self: Tensor, other: Any) -> Tensor:
        """Return the greatest common divisor of integers (Euclid's algorithm, unrolled to the dtype's worst case).

        >>> Tensor([12, 7]).gcd(Tensor([18, 0])).tolist()
        [6, 7]
        """
        a, b = (self._new(u).abs() for u in self._integers("gcd", other, allow_bool=False))
        for _ in range(math.ceil(a.dtype.bits * 1.4403) + 2):  # Lamé: consecutive Fibonacci numbers need the most steps
            a, b = b.eq(0).where(a, b), a.mod(b)  # 0 % 0 == 0
        return a

    def lcm(self: Tensor, other: Any) -> Tensor:
        """Return the least common multiple of integers.

        >>> Tensor([4, 0]).lcm(Tensor([6, 5])).tolist()
        [12, 0]
        """
        y = operand("lcm", other, self)
        divisor = self.gcd(y)
        return self.idiv(divisor.eq(0).where(1, divisor)).mul(y).abs()

    def diff(self: Tensor, n: int = 1, dim: int = -1, prepend: Tensor | None = None,
             append: Tensor | None = None) -> Tensor:
        """Return the differences between adjacent elements along ``dim``, taken ``n`` times.

        >>> Tensor([1, 4, 9]).diff().tolist()
        [3, 5]

        Args:
            prepend, append: tensors concatenated before and after the values along ``dim`` first.
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
        """Integrate along ``dim`` by the trapezoidal rule, at the points ``x`` or with spacing ``dx``.

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

_OPERANDS = (TensorBase, bool, int, float, np.generic, np.ndarray, UOp, list, tuple)


def _known(value: Any) -> bool:
    if isinstance(value, _OPERANDS):
        return True
    if type(value).__name__ == "Tensor" and hasattr(value, "__dlpack__"):  # Python's message: Tensor and Tensor
        raise DTypeError(type(value).__module__, "its tensors are not ours", "tinsmith.from_dlpack(x), or x.numpy()")
    return False


class OperatorMethods:
    """``+ - * / // % ** @ & | ^ << >> ~ < <= > >= == !=``, with their reflected and in-place forms."""

    __slots__ = ()

    def __neg__(self: Tensor) -> Tensor: return self.neg()
    def __pos__(self: Tensor) -> Tensor: return self
    def __abs__(self: Tensor) -> Tensor: return self.abs()
    def __invert__(self: Tensor) -> Tensor: return self.bitwise_not()
    def __round__(self: Tensor, ndigits: int | None = None) -> Tensor: return self.round(ndigits or 0)
    def __add__(self: Tensor, x: Any) -> Tensor:
        return self._binary("add", Ops.ADD, x) if isinstance(x, _OPERANDS) or _known(x) else NotImplemented

    def __sub__(self: Tensor, x: Any) -> Tensor: return self.sub(x) if _known(x) else NotImplemented
    def __mul__(self: Tensor, x: Any) -> Tensor:
        return self._binary("mul", Ops.MUL, x) if isinstance(x, _OPERANDS) or _known(x) else NotImplemented

    def __truediv__(self: Tensor, x: Any) -> Tensor: return self.div(x) if _known(x) else NotImplemented
    def __floordiv__(self: Tensor, x: Any) -> Tensor: return self.idiv(x) if _known(x) else NotImplemented
    def __mod__(self: Tensor, x: Any) -> Tensor: return self.mod(x) if _known(x) else NotImplemented
    def __pow__(self: Tensor, x: Any) -> Tensor: return self.pow(x) if _known(x) else NotImplemented
    def __matmul__(self: Tensor, x: Any) -> Tensor: return self.matmul(x) if _known(x) else NotImplemented
    def __and__(self: Tensor, x: Any) -> Tensor: return self.bitwise_and(x) if _known(x) else NotImplemented
    def __or__(self: Tensor, x: Any) -> Tensor: return self.bitwise_or(x) if _known(x) else NotImplemented
    def __xor__(self: Tensor, x: Any) -> Tensor: return self.bitwise_xor(x) if _known(x) else NotImplemented
    def __lshift__(self: Tensor, x: Any) -> Tensor: return self.lshift(x) if _known(x) else NotImplemented
    def __rshift__(self: Tensor, x: Any) -> Tensor: return self.rshift(x) if _known(x) else NotImplemented

    def __radd__(self: Tensor, x: Any) -> Tensor:
        return self._binary("add", Ops.ADD, x, True) if isinstance(x, _OPERANDS) or _known(x) else NotImplemented

    def __rsub__(self: Tensor, x: Any) -> Tensor: return self.sub(x, True) if _known(x) else NotImplemented
    def __rmul__(self: Tensor, x: Any) -> Tensor:
        return self._binary("mul", Ops.MUL, x, True) if isinstance(x, _OPERANDS) or _known(x) else NotImplemented

    def __rtruediv__(self: Tensor, x: Any) -> Tensor: return self.div(x, True) if _known(x) else NotImplemented
    def __rfloordiv__(self: Tensor, x: Any) -> Tensor: return self.idiv(x, True) if _known(x) else NotImplemented
    def __rmod__(self: Tensor, x: Any) -> Tensor: return self.mod(x, True) if _known(x) else NotImplemented
    def __rpow__(self: Tensor, x: Any) -> Tensor: return self.pow(x, True) if _known(x) else NotImplemented
    def __rmatmul__(self: Tensor, x: Any) -> Tensor: return self.matmul(x, True) if _known(x) else NotImplemented
    def __rand__(self: Tensor, x: Any) -> Tensor: return self.bitwise_and(x, True) if _known(x) else NotImplemented
    def __ror__(self: Tensor, x: Any) -> Tensor: return self.bitwise_or(x, True) if _known(x) else NotImplemented
    def __rxor__(self: Tensor, x: Any) -> Tensor: return self.bitwise_xor(x, True) if _known(x) else NotImplemented
    def __rlshift__(self: Tensor, x: Any) -> Tensor: return self.lshift(x, True) if _known(x) else NotImplemented
    def __rrshift__(self: Tensor, x: Any) -> Tensor: return self.rshift(x, True) if _known(x) else NotImplemented

    def __divmod__(self: Tensor, x: Any) -> tuple[Tensor, Tensor]:
        return (self.idiv(x), self.mod(x)) if _known(x) else NotImplemented

    def __rdivmod__(self: Tensor, x: Any) -> tuple[Tensor, Tensor]:
        return (self.idiv(x, True), self.mod(x, True)) if _known(x) else NotImplemented

    def __lt__(self: Tensor, x: Any) -> Tensor: return self.lt(x) if _known(x) else NotImplemented
    def __le__(self: Tensor, x: Any) -> Tensor: return self.le(x) if _known(x) else NotImplemented
    def __gt__(self: Tensor, x: Any) -> Tensor: return self.gt(x) if _known(x) else NotImplemented
    def __ge__(self: Tensor, x: Any) -> Tensor: return self.ge(x) if _known(x) else NotImplemented

    def __eq__(self: Tensor, x: Any) -> Tensor:  # type: ignore[override]
        return self.eq(x) if _known(x) else NotImplemented

    def __ne__(self: Tensor, x: Any) -> Tensor:  # type: ignore[override]
        return self.ne(x) if _known(x) else NotImplemented

    def __iadd__(self: Tensor, x: Any) -> Tensor: return self._updated("add", x)
    def __isub__(self: Tensor, x: Any) -> Tensor: return self._updated("sub", x)
    def __imul__(self: Tensor, x: Any) -> Tensor: return self._updated("mul", x)
    def __itruediv__(self: Tensor, x: Any) -> Tensor: return self._updated("div", x)
    def __ifloordiv__(self: Tensor, x: Any) -> Tensor: return self._updated("idiv", x)
    def __imod__(self: Tensor, x: Any) -> Tensor: return self._updated("mod", x)
    def __ipow__(self: Tensor, x: Any) -> Tensor: return self._updated("pow", x)
    def __imatmul__(self: Tensor, x: Any) -> Tensor: return self._updated("matmul", x)
    def __iand__(self: Tensor, x: Any) -> Tensor: return self._updated("bitwise_and", x)
    def __ior__(self: Tensor, x: Any) -> Tensor: return self._updated("bitwise_or", x)
    def __ixor__(self: Tensor, x: Any) -> Tensor: return self._updated("bitwise_xor", x)
    def __ilshift__(self: Tensor, x: Any) -> Tensor: return self._updated("lshift", x)
    def __irshift__(self: Tensor, x: Any) -> Tensor: return self._updated("rshift", x)

    def _updated(self: Tensor, method: str, x: Any) -> Tensor:
        """Write the result of ``method`` to this tensor's memory, atomically with respect to other threads."""
        with writing(self):
            return self._become(method, getattr(self, method)(x))

    def _become(self: Tensor, op: str, value: Tensor) -> Tensor:
        """Write ``value``, the result of an in-place operator, to this tensor's memory."""
        if not same_sizes(value.shape, self.shape):
            raise ShapeError(op, f"in place, a tensor of shape {self.shape} cannot become {value.shape}",
                             "the form that makes a new tensor: x = x + y")
        if value.dtype is not self.dtype:
            if not (value.dtype.is_float and self.dtype.is_float):
                raise DTypeError(op, f"in place, a tensor of {self.dtype!r} cannot become {value.dtype!r}",
                                 "the form that makes a new tensor: x = x + y")
            value = value.cast(self.dtype)
        if value.device != self.device:
            return self.assign(value)  # raises the error that names both devices
        self._write(as_sized(value.uop, self.shape))
        return self
