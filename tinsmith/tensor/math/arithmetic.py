"""Elementwise methods: casts, arithmetic, comparisons, selection, bit operations, rounding, and Python's operators.

The operands of a binary method are broadcast and promoted to one dtype. A Python number takes the tensor's dtype,
except a float with an integer tensor (default float) and an integer with a bool tensor (default int). An in-place
operator writes to the tensor's memory.
"""
from __future__ import annotations

import math
from typing import Any, Self, overload

from tinsmith.core.dtypes import DType, DTypeLike, dtypes, promote, to_dtype
from tinsmith.core.errors import ArgumentError, DTypeError, ShapeError
from tinsmith.ir import Ops, UOp
from tinsmith.ir.ops import Op
from tinsmith.runtime.thread_turns import writing
from tinsmith.tensor.arguments import Scalar, flag, integer, shown
from tinsmith.tensor.autocast import in_float32
from tinsmith.tensor.autograd.backward import with_slopes
from tinsmith.tensor.base import TensorBase
from tinsmith.tensor.helpers import (
    as_sized,
    float_of,
    in_one_dtype,
    in_one_shape,
    matched,
    matched_nodes,
    operand,
    operand_node,
    plain,
    same_sizes,
    side_of,
    weak_dtype,
)
from tinsmith.tensor.host_data import check_range
from tinsmith.tensor.interop import files
from tinsmith.tensor.math.elementwise import (
    IN_FLOAT32,
    OPERANDS,
    UINT,
    Operand,
    clamp_slopes,
    difference_scaled,
    floor_quotient,
    known,
    lerp_of,
    may_be_nan,
    other_side,
    round_to,
    sign_bit,
    sum_scaled,
    trunc_quotient,
)
from tinsmith.tensor.shape.layout import Layout
from tinsmith.tensor.storage import BITS, Bits

# Python numbers as operands: (dtype, value, type, shape) → (constant of that shape, True if ``dtype`` rounds the value
# to fewer digits than float32).
_scalars: dict[tuple[Any, ...], tuple[UOp, bool]] = {}
_KEPT_SCALARS = 4096


class Arithmetic(Layout):
    """Casts, arithmetic, selection, bit operations, rounding, comparisons, and Python's operators."""

    __slots__ = ()

    # *** casts ***

    def cast(self, dtype: DTypeLike) -> Self:
        """Convert the values to ``dtype``; see the op table's CAST for out-of-range and non-finite values.

        >>> Tensor([1.7, 300]).cast("uint8").tolist()
        [1, 255]
        """
        return self._new(self.uop.cast(to_dtype(dtype)))

    def bitcast(self, dtype: DTypeLike) -> Self:
        """Reinterpret the bits as ``dtype``: a view. If the item sizes differ, the last axis grows or shrinks to match.

        >>> hex(Tensor([1.0]).bitcast("int32").item()), Tensor([1.0]).bitcast("uint8").tolist()
        ('0x3f800000', [0, 0, 128, 63])

        Raises:
            ShapeError: if the bytes of the last axis are not a multiple of the new item size.
        """
        to = to_dtype(dtype)
        own, new = self.dtype.itemsize, to.itemsize
        if own != new and (not self.ndim or (self.shape[-1] * own) % new):
            raise ShapeError("bitcast", f"{self.shape} of {own} bytes each into elements of {new} bytes",
                             "a last axis whose bytes make whole elements")
        if self.dtype.is_bool is not to.is_bool and own != new:
            raise DTypeError("bitcast", f"{self.dtype!r} to {to!r}", "dtypes.uint8 between them")
        if files.on_disk(self._device):
            return self._new(files.bits(self, to))
        return self._view(BITS, Bits(self.dtype, to, type(self), self._device))

    def _as_bits(self, to: DType) -> Self:
        """Return the result of ``bitcast`` as a new value instead of a view."""
        own, new = self.dtype.itemsize, to.itemsize
        if to.is_bool or self.dtype.is_bool:  # any nonzero byte is true; true is stored as 1
            bits = self.cast(dtypes.uint8) if self.dtype.is_bool else self._new(self.uop.bitcast(dtypes.uint8))
            return bits.ne(0) if to.is_bool else bits._new(bits.uop.bitcast(to))
        if own == new:
            return self._new(self.uop.bitcast(to))
        bits, wanted = self._new(self.uop.bitcast(UINT[own])), UINT[new]
        shift = type(self).arange(max(own, new) // min(own, new), dtype=UINT[max(own, new)], device=self.device)
        shift = shift.mul(8 * min(own, new))
        if own < new:
            parts = bits.reshape(*self.shape[:-1], -1, new // own).cast(wanted).lshift(shift)
            return parts.sum(-1, dtype=wanted)._as_bits(to)
        cut = bits.unsqueeze(-1).rshift(shift).cast(wanted)
        return cut.reshape(*self.shape[:-1], -1)._as_bits(to)

    __array_priority__ = 1000.0  # makes NumPy defer `array + tensor` to Tensor.__radd__

    def _unary_float(self, op: Op) -> Self:
        return self._new(float_of(self).alu(op))

    def _binary(self, name: str, op: Op, other: Any, reverse: bool = False) -> Self:
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
                if is_rounded and op in IN_FLOAT32:
                    wide = self._new(a.cast(dtypes.float32))  # keeps the scalar's float32 digits; one final rounding
                    return wide._binary(name, op, other, reverse).cast(dtype)
            else:
                y = operand_node(name, other, self)
                a, b = matched_nodes(name, [y, a] if reverse else [a, y])
                reverse = False
        return type(self)._wrap(UOp(op, None, (b, a) if reverse else (a, b)), self._device)

    def _integers(self, name: str, other: Any, reverse: bool = False, allow_bool: bool = True) -> list[UOp]:
        y = operand(name, other, self)
        for t in (self, y):
            if t.dtype.is_float or (t.dtype.is_bool and not allow_bool):
                raise DTypeError(name, f"works on integers, not on {t.dtype!r}", ".cast(dtypes.int32)")
        return matched(name, *((y, self) if reverse else (self, y)))

    # *** arithmetic ***

    def add(self, x: Any, reverse: bool = False, *, alpha: float = 1) -> Self:
        """Return the sum ``self + alpha * x``.

        >>> Tensor([1, 2]).add(3).tolist()
        [4, 5]
        """
        if alpha != 1:
            y = operand("add", x, self)
            return sum_scaled(y, self, alpha) if reverse else sum_scaled(self, y, alpha)
        return self._binary("add", Ops.ADD, x, reverse)

    def sub(self, x: Any, reverse: bool = False, *, alpha: float = 1) -> Self:
        """Return the difference ``self - alpha * x``; bools are subtracted as the integers 0 and 1.

        >>> Tensor([1, 2]).sub(3).tolist()
        [-2, -1]
        """
        if alpha != 1:
            y = operand("sub", x, self)
            return difference_scaled(y, self, alpha) if reverse else difference_scaled(self, y, alpha)
        if self.dtype.is_bool:
            x = operand("sub", x, self)
            x = x.cast(dtypes.default_int) if x.dtype.is_bool else x
        return self._binary("sub", Ops.SUB, x, reverse)

    def mul(self, x: Any, reverse: bool = False) -> Self:
        """Return the product.

        >>> Tensor([1, 2]).mul(3).tolist()
        [3, 6]
        """
        return self._binary("mul", Ops.MUL, x, reverse)

    def div(self, x: Any, reverse: bool = False, rounding_mode: str | None = None) -> Self:
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
                return trunc_quotient(self, y, reverse)
            a, b = in_one_dtype(self, operand("div", y, self))
            return trunc_quotient(a, b, reverse)
        return self._binary("div", Ops.FDIV, y, reverse)

    def idiv(self, x: Any, reverse: bool = False) -> Self:
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
            return (floor_quotient(b, a) if reverse else floor_quotient(a, b)).cast(dtype)
        if self.dtype.is_bool and y.dtype.is_bool:
            y = y.cast(dtypes.default_int)
        return self._binary("idiv", Ops.IDIV, y, reverse)

    def mod(self, x: Any, reverse: bool = False) -> Self:
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
        return other_side(rest, b).where(rest + b, rest)

    def fmod(self, x: Any) -> Self:
        """Return the remainder with the sign of the dividend, as in C.

        >>> Tensor([7, -7]).fmod(4).tolist()
        [3, -3]
        """
        y = operand("fmod", x, self)
        if not (self.dtype.is_float or y.dtype.is_float):
            return self.sub(y.mul(self.div(y, rounding_mode="trunc")))
        return self._binary("fmod", Ops.FMOD, y)

    def neg(self) -> Self:
        """Return the negated value; logical NOT for bools.

        >>> Tensor([1, -2]).neg().tolist()
        [-1, 2]
        """
        return self.logical_not() if self.dtype.is_bool else self._new(self.uop.alu(Ops.NEG))

    @in_float32
    def reciprocal(self) -> Self:
        """Return the reciprocal, 1 / x.

        >>> Tensor([2., 4.]).reciprocal().tolist()
        [0.5, 0.25]
        """
        return self._unary_float(Ops.RECIP)

    def maximum(self, x: Any) -> Self:
        """Return the elementwise maximum; NaN if either value is NaN.

        >>> Tensor([1, 5]).maximum(3).tolist()
        [3, 5]
        """
        return self._binary("maximum", Ops.MAX, x)

    def minimum(self, x: Any) -> Self:
        """Return the elementwise minimum; NaN if either value is NaN.

        >>> Tensor([1, 5]).minimum(3).tolist()
        [1, 3]
        """
        return self._binary("minimum", Ops.MIN, x)

    def clamp(self, min_: Any = None, max_: Any = None, *, min: Any = None, max: Any = None) -> Self:
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
        return with_slopes(out, clamp_slopes, *map(out._new, matched_nodes(
            "clamp", [out.uop, self.uop, *(operand_node("clamp", b, out) for b in bounds)])[1:]))

    def clip(self, min_: Any = None, max_: Any = None, *, min: Any = None, max: Any = None) -> Self:
        """Return the same as ``clamp``.

        >>> Tensor([-3, 1, 9]).clip(0, 5).tolist()
        [0, 1, 5]
        """
        return self.clamp(min_, max_, min=min, max=max)

    def lerp(self, end: Any, weight: Any) -> Self:
        """Interpolate linearly: ``self + weight * (end - self)``.

        >>> Tensor([0., 10.]).lerp(Tensor([10., 20.]), 0.5).tolist()
        [5.0, 15.0]
        """
        by: Self | float = weight if type(weight) in (int, float) else operand("lerp", weight, self)
        return lerp_of(self, operand("lerp", end, self), by)

    # *** selection ***

    def where(self, x: Any, y: Any) -> Self:
        """Select ``x`` where this condition is true, else ``y``. PyTorch's order is accepted, too:
        ``t.where(condition, y)``, with a non-bool ``t``, selects ``t`` where the condition is true, else ``y``.

        >>> Tensor([True, False]).where(Tensor([1, 2]), 9).tolist()
        [1, 9]
        >>> x = Tensor([1, -2]); x.where(x > 0, 9).tolist()
        [1, 9]
        """
        if isinstance(x, TensorBase) and x.dtype.is_bool and not self.dtype.is_bool:
            return operand("where", x, self).where(self, y)
        condition = self if self.dtype.is_bool else self.ne(0)
        others = (t for t in (x, y) if not isinstance(t, Scalar))
        like = next((t if hasattr(t, "uop") else operand("where", t, self) for t in others), None)
        if like is None:
            kind = promote(dtypes.of(x), dtypes.of(y))
            like = self._new(UOp.const(kind, 0))
        a, b = operand_node("where", x, like), operand_node("where", y, like)
        dtype = promote(a.dtype, b.dtype)
        return self._new(UOp(Ops.WHERE, None, in_one_shape("where", condition.uop, a.cast(dtype), b.cast(dtype))))

    def masked_fill(self, mask: Self, value: Any) -> Self:
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

    def copysign(self, other: Any) -> Self:
        """Return the magnitude of this value with the sign of ``other``; the sign of zeros and NaN counts.

        >>> Tensor([1., 2.]).copysign(Tensor([-0., 3.])).tolist()
        [-1.0, 2.0]
        """
        y = operand("copysign", other, self)
        a, b = matched("copysign", self._new(float_of(self)), y)
        size = self._new(a).abs()
        return self._new(sign_bit(b)).where(size.neg(), size)

    # *** bits ***

    def bitwise_and(self, x: Any, reverse: bool = False) -> Self:
        """Return the bitwise AND; logical AND for bools.

        >>> Tensor([6, 5]).bitwise_and(3).tolist()
        [2, 1]
        """
        return self._new(UOp(Ops.AND, None, tuple(self._integers("bitwise_and", x, reverse))))

    def bitwise_or(self, x: Any, reverse: bool = False) -> Self:
        """Return the bitwise OR; logical OR for bools.

        >>> Tensor([6, 5]).bitwise_or(3).tolist()
        [7, 7]
        """
        return self._new(UOp(Ops.OR, None, tuple(self._integers("bitwise_or", x, reverse))))

    def bitwise_xor(self, x: Any, reverse: bool = False) -> Self:
        """Return the bitwise XOR; logical XOR for bools.

        >>> Tensor([6, 5]).bitwise_xor(3).tolist()
        [5, 6]
        """
        return self._new(UOp(Ops.XOR, None, tuple(self._integers("bitwise_xor", x, reverse))))

    def bitwise_not(self) -> Self:
        """Invert all bits; logical NOT for bools.

        >>> Tensor([0, 5]).bitwise_not().tolist()
        [-1, -6]
        """
        ones = int(self.dtype.max) if self.dtype.is_unsigned else -1
        return self.logical_not() if self.dtype.is_bool else self.bitwise_xor(ones)

    def lshift(self, x: Any, reverse: bool = False) -> Self:
        """Shift the bits left by ``x``; 0 if ``x`` is negative or at least the bit width.

        >>> Tensor([1, 3]).lshift(2).tolist()
        [4, 12]
        """
        return self._new(UOp(Ops.SHL, None, tuple(self._integers("lshift", x, reverse, allow_bool=False))))

    def rshift(self, x: Any, reverse: bool = False) -> Self:
        """Shift the bits right by ``x``; signed integers copy the sign bit (arithmetic shift).

        >>> Tensor([4, -8]).rshift(2).tolist()
        [1, -2]
        """
        return self._new(UOp(Ops.SHR, None, tuple(self._integers("rshift", x, reverse, allow_bool=False))))

    # *** sign and rounding ***

    def abs(self) -> Self:
        """Return the absolute value; its gradient at 0 is 0.

        >>> Tensor([-1., 2.]).abs().tolist()
        [1.0, 2.0]
        """
        if self.dtype.is_unsigned:
            return self._copy()
        magnitude = self.maximum(self.neg())  # max(0.0, -0.0) may be either zero: adding 0.0 gives +0.0
        return magnitude + 0.0 if self.dtype.is_float else magnitude

    def sign(self) -> Self:
        """Return the sign: -1, 0 or 1; NaN stays NaN.

        >>> Tensor([-3., 0., 2.]).sign().tolist()
        [-1.0, 0.0, 1.0]
        """
        if self.dtype.is_bool:
            return self._copy()
        zero = self.eq(0).where(0, self.detach()) if self.dtype.is_float else self._new(self.uop.const_like(0))
        out = self.gt(0).where(1, zero)
        return out if self.dtype.is_unsigned else self.lt(0).where(-1, out)

    def trunc(self) -> Self:
        """Round towards zero.

        >>> Tensor([1.7, -1.7]).trunc().tolist()
        [1.0, -1.0]
        """
        return self._new(self.uop.alu(Ops.TRUNC)) if self.dtype.is_float else self._copy()

    def floor(self) -> Self:
        """Round down.

        >>> Tensor([1.7, -1.2]).floor().tolist()
        [1.0, -2.0]
        """
        if not self.dtype.is_float:
            return self._copy()
        whole = self.trunc()
        return self.lt(whole).where(whole.sub(1), whole)

    def ceil(self) -> Self:
        """Round up.

        >>> Tensor([1.2, -1.7]).ceil().tolist()
        [2.0, -1.0]
        """
        if not self.dtype.is_float:
            return self._copy()
        whole = self.trunc()
        return whole.lt(self).where(whole.add(1), whole)

    def round(self, decimals: int = 0) -> Self:
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
            return round_to(self, decimals)
        whole = self.trunc()  # trunc keeps the sign of values that round to 0
        beyond = self.sub(whole).abs()
        odd = whole.mul(0.5).trunc().mul(2).ne(whole)
        away = beyond.gt(0.5) | (beyond.eq(0.5) & odd)
        return away.where(whole.add(self.lt(0).where(-1, 1)), whole)

    # *** comparisons ***

    def logical_and(self, other: Any) -> Self:
        """Return True where both values are nonzero.

        >>> Tensor([0, 1, 2]).logical_and(Tensor([1, 1, 0])).tolist()
        [False, True, False]
        """
        return self.bool().bitwise_and(operand("logical_and", other, self).bool())

    def logical_or(self, other: Any) -> Self:
        """Return True where at least one of the two values is nonzero.

        >>> Tensor([0, 1]).logical_or(Tensor([0, 0])).tolist()
        [False, True]
        """
        return self.bool().bitwise_or(operand("logical_or", other, self).bool())

    def logical_xor(self, other: Any) -> Self:
        """Return True where exactly one of the two values is nonzero.

        >>> Tensor([0, 1]).logical_xor(Tensor([2, 3])).tolist()
        [True, False]
        """
        return self.bool().ne(operand("logical_xor", other, self).bool())

    def equal(self, other: Self) -> bool:
        """Return True if shapes and all values are equal, as a Python bool: this realizes both tensors.

        >>> Tensor([1, 2]).equal(Tensor([1, 2])), Tensor([1, 2]).equal(Tensor([1]))
        (True, False)
        """
        y = operand("equal", other, self)
        return self.shape == y.shape and (0 in self.shape or bool(self.eq(y).all().item()))

    def is_nonzero(self) -> bool:
        """Return True if the only element is nonzero, as a Python bool: this realizes the tensor.

        >>> Tensor([0.0]).is_nonzero()
        False
        """
        return bool(self)

    def is_same_size(self, other: Self) -> bool:
        """Return True if the two shapes are equal.

        >>> Tensor([1]).is_same_size(Tensor([2]))
        True
        """
        return isinstance(other, TensorBase) and self.shape == other.shape

    def isposinf(self) -> Self:
        """Return True where the value is positive infinity.

        >>> Tensor([1.0, math.inf]).isposinf().tolist()
        [False, True]
        """
        return self.isinf(detect_negative=False)

    def isneginf(self) -> Self:
        """Return True where the value is negative infinity.

        >>> Tensor([1.0, -math.inf]).isneginf().tolist()
        [False, True]
        """
        return self.isinf(detect_positive=False)

    def isreal(self) -> Self:
        """Return True for every element: there is no complex dtype.

        >>> Tensor([1.0]).isreal().tolist()
        [True]
        """
        return self._everywhere(True)

    def signbit(self) -> Self:
        """Return True where the sign bit is set, which includes -0.0 and NaN with a negative sign.

        >>> Tensor([-0.0, 1.0]).signbit().tolist()
        [True, False]
        """
        if not self.dtype.is_float:
            return self.lt(0) if not self.dtype.is_unsigned else self._everywhere(False)
        return self.const_like(1).copysign(self).lt(0)

    def fmax(self, other: Any) -> Self:
        """Return the elementwise maximum; where one value is NaN, the other one.

        >>> Tensor([1.0, math.nan]).fmax(Tensor([2.0, 3.0])).tolist()
        [2.0, 3.0]
        """
        y = operand("fmax", other, self)
        return self.ge(y).bitwise_or(y.isnan()).where(self, y)

    def fmin(self, other: Any) -> Self:
        """Return the elementwise minimum; where one value is NaN, the other one.

        >>> Tensor([1.0, math.nan]).fmin(Tensor([2.0, 3.0])).tolist()
        [1.0, 3.0]
        """
        y = operand("fmin", other, self)
        return self.le(y).bitwise_or(y.isnan()).where(self, y)

    def clamp_min(self, min: Any) -> Self:
        """Replace values below ``min`` by ``min``.

        >>> Tensor([-1, 2]).clamp_min(0).tolist()
        [0, 2]
        """
        return self.clamp(min)

    def clamp_max(self, max: Any) -> Self:
        """Replace values above ``max`` by ``max``.

        >>> Tensor([-1, 2]).clamp_max(0).tolist()
        [-1, 0]
        """
        return self.clamp(max_=max)

    def nan_to_num(self, nan: float | None = 0.0, posinf: float | None = None,
                   neginf: float | None = None) -> Self:
        """Replace NaN by ``nan``, infinities by ``posinf`` and ``neginf`` (default: the dtype's extreme numbers).

        >>> Tensor([1.0, math.nan, -math.inf]).nan_to_num(neginf=-9).tolist()
        [1.0, 0.0, -9.0]
        """
        if not self.dtype.is_float:
            return self._copy()
        most = dtypes.finfo(self.dtype).max
        out = self.isnan().where(0.0 if nan is None else nan, self)
        out = out.eq(math.inf).where(most if posinf is None else posinf, out)
        return out.eq(-math.inf).where(-most if neginf is None else neginf, out)

    def _everywhere(self, truth: bool) -> Self:
        """Return a bool tensor filled with ``truth``: the comparison with an integer outside the dtype's range."""
        return self._new(UOp.const(dtypes.bool, truth).expand_to(self.shape))

    def eq(self, x: Any) -> Self:
        """Return True where the values are equal.

        >>> Tensor([1, 2]).eq(2).tolist()
        [False, True]
        """
        side = side_of(x, self.dtype)
        return self._everywhere(False) if side else self._binary("eq", Ops.CMPEQ, x)

    def ne(self, x: Any) -> Self:
        """Return True where the values differ (NaN differs from everything).

        >>> Tensor([1, 2]).ne(2).tolist()
        [True, False]
        """
        side = side_of(x, self.dtype)
        return self._everywhere(True) if side else self._binary("ne", Ops.CMPNE, x)

    def lt(self, x: Any) -> Self:
        """Return True where this value is less than ``x``.

        >>> Tensor([1, 2]).lt(2).tolist()
        [True, False]
        """
        side = side_of(x, self.dtype)
        return self._everywhere(side > 0) if side else self._binary("lt", Ops.CMPLT, x)

    def gt(self, x: Any) -> Self:
        """Return True where this value is greater than ``x``.

        >>> Tensor([1, 2]).gt(1).tolist()
        [False, True]
        """
        side = side_of(x, self.dtype)
        return self._everywhere(side < 0) if side else self._binary("gt", Ops.CMPLT, x, reverse=True)

    def le(self, x: Any) -> Self:
        """Return True where this value is less than or equal to ``x``.

        >>> Tensor([1, 2]).le(1).tolist()
        [True, False]
        """
        side = side_of(x, self.dtype)
        if side:
            return self._everywhere(side > 0)
        y = operand("le", x, self)
        less = self._binary("le", Ops.CMPLT, y)
        return less.bitwise_or(self._binary("le", Ops.CMPEQ, y)) if may_be_nan(self, y) else self.gt(y).logical_not()

    def ge(self, x: Any) -> Self:
        """Return True where this value is greater than or equal to ``x``.

        >>> Tensor([1, 2]).ge(2).tolist()
        [False, True]
        """
        side = side_of(x, self.dtype)
        if side:
            return self._everywhere(side < 0)
        y = operand("ge", x, self)
        more = self._binary("ge", Ops.CMPLT, y, reverse=True)
        return more.bitwise_or(self._binary("ge", Ops.CMPEQ, y)) if may_be_nan(self, y) else self.lt(y).logical_not()

    def isnan(self) -> Self:
        """Return True where the value is NaN.

        >>> Tensor([1., math.nan]).isnan().tolist()
        [False, True]
        """
        return self.ne(self)

    def isinf(self, detect_positive: bool = True, detect_negative: bool = True) -> Self:
        """Return True where the value is infinite; ``detect_positive`` and ``detect_negative`` select the signs tested.

        >>> Tensor([1., -math.inf]).isinf().tolist()
        [False, True]
        """
        detect_positive = flag("isinf", "detect_positive", detect_positive)
        detect_negative = flag("isinf", "detect_negative", detect_negative)
        if not self.dtype.is_float:
            return self._new(self.uop.zeros(dtypes.bool))
        if detect_positive and detect_negative:
            return self.abs().eq(math.inf)
        found = self.eq(math.inf) if detect_positive else self.eq(-math.inf)
        return found if detect_positive or detect_negative else self._new(self.uop.zeros(dtypes.bool))

    def isfinite(self) -> Self:
        """Return True where the value is neither infinite nor NaN.

        >>> Tensor([1., -math.inf, math.nan]).isfinite().tolist()
        [True, False, False]
        """
        if not self.dtype.is_float:
            return self._new(self.uop.zeros(dtypes.bool)).logical_not()
        return self.abs().lt(math.inf)

    def isclose(self, other: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Self:
        """Return True where the values differ by at most ``atol + rtol * abs(other)``.

        >>> Tensor([1., 2.]).isclose(Tensor([1.000001, 2.1])).tolist()
        [True, False]
        """
        y = operand("isclose", other, self)
        near = y.isfinite() & (self.sub(y).abs() <= y.abs().mul(rtol).add(atol))
        out = near | self.eq(y)
        return out | (self.isnan() & y.isnan()) if equal_nan else out

    def allclose(self, other: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> bool:
        """Return True if ``isclose`` holds for all elements, as a Python bool: this realizes both tensors.

        >>> Tensor([1., 2.]).allclose(Tensor([1., 2.]))
        True
        """
        return bool(self.isclose(other, rtol, atol, equal_nan).all().item())

    def logical_not(self) -> Self:
        """Return True where the value is zero.

        >>> Tensor([0, 2]).logical_not().tolist()
        [True, False]
        """
        return self.eq(False) if self.dtype.is_bool else self.eq(0)

    # *** operators ***

    def __neg__(self) -> Self: return self.neg()
    def __pos__(self) -> Self: return self
    def __abs__(self) -> Self: return self.abs()
    def __invert__(self) -> Self: return self.bitwise_not()
    def __round__(self, ndigits: int | None = None) -> Self: return self.round(ndigits or 0)
    def __add__(self, x: Any) -> Self:
        return self._binary("add", Ops.ADD, x) if isinstance(x, OPERANDS) or known(x) else NotImplemented

    def __sub__(self, x: Any) -> Self: return self.sub(x) if known(x) else NotImplemented
    def __mul__(self, x: Any) -> Self:
        return self._binary("mul", Ops.MUL, x) if isinstance(x, OPERANDS) or known(x) else NotImplemented

    def __truediv__(self, x: Any) -> Self: return self.div(x) if known(x) else NotImplemented
    def __floordiv__(self, x: Any) -> Self: return self.idiv(x) if known(x) else NotImplemented
    def __mod__(self, x: Any) -> Self: return self.mod(x) if known(x) else NotImplemented
    def __pow__(self, x: Any) -> Self: return self.pow(x) if known(x) else NotImplemented
    def __matmul__(self, x: Any) -> Self: return self.matmul(x) if known(x) else NotImplemented
    def __and__(self, x: Any) -> Self: return self.bitwise_and(x) if known(x) else NotImplemented
    def __or__(self, x: Any) -> Self: return self.bitwise_or(x) if known(x) else NotImplemented
    def __xor__(self, x: Any) -> Self: return self.bitwise_xor(x) if known(x) else NotImplemented
    def __lshift__(self, x: Any) -> Self: return self.lshift(x) if known(x) else NotImplemented
    def __rshift__(self, x: Any) -> Self: return self.rshift(x) if known(x) else NotImplemented

    def __radd__(self, x: Any) -> Self:
        return self._binary("add", Ops.ADD, x, True) if isinstance(x, OPERANDS) or known(x) else NotImplemented

    def __rsub__(self, x: Any) -> Self: return self.sub(x, True) if known(x) else NotImplemented
    def __rmul__(self, x: Any) -> Self:
        return self._binary("mul", Ops.MUL, x, True) if isinstance(x, OPERANDS) or known(x) else NotImplemented

    @in_float32
    def __rtruediv__(self, x: Any) -> Self: return self.div(x, True) if known(x) else NotImplemented

    def __rfloordiv__(self, x: Any) -> Self: return self.idiv(x, True) if known(x) else NotImplemented
    def __rmod__(self, x: Any) -> Self: return self.mod(x, True) if known(x) else NotImplemented
    def __rpow__(self, x: Any) -> Self: return self.pow(x, True) if known(x) else NotImplemented
    def __rmatmul__(self, x: Any) -> Self: return self.matmul(x, True) if known(x) else NotImplemented
    def __rand__(self, x: Any) -> Self: return self.bitwise_and(x, True) if known(x) else NotImplemented
    def __ror__(self, x: Any) -> Self: return self.bitwise_or(x, True) if known(x) else NotImplemented
    def __rxor__(self, x: Any) -> Self: return self.bitwise_xor(x, True) if known(x) else NotImplemented
    def __rlshift__(self, x: Any) -> Self: return self.lshift(x, True) if known(x) else NotImplemented
    def __rrshift__(self, x: Any) -> Self: return self.rshift(x, True) if known(x) else NotImplemented

    def __divmod__(self, x: Any) -> tuple[Self, Self]:
        return (self.idiv(x), self.mod(x)) if known(x) else NotImplemented

    def __rdivmod__(self, x: Any) -> tuple[Self, Self]:
        return (self.idiv(x, True), self.mod(x, True)) if known(x) else NotImplemented

    def __lt__(self, x: Any) -> Self: return self.lt(x) if known(x) else NotImplemented
    def __le__(self, x: Any) -> Self: return self.le(x) if known(x) else NotImplemented
    def __gt__(self, x: Any) -> Self: return self.gt(x) if known(x) else NotImplemented
    def __ge__(self, x: Any) -> Self: return self.ge(x) if known(x) else NotImplemented

    @overload
    def __eq__(self, x: Operand) -> Self: ...
    @overload
    def __eq__(self, x: object) -> Any: ...  # as for every object
    def __eq__(self, x: Any) -> Any: return self.eq(x) if known(x) else NotImplemented

    @overload
    def __ne__(self, x: Operand) -> Self: ...
    @overload
    def __ne__(self, x: object) -> Any: ...
    def __ne__(self, x: Any) -> Any: return self.ne(x) if known(x) else NotImplemented

    def __iadd__(self, x: Any) -> Self: return self._updated("add", x)
    def __isub__(self, x: Any) -> Self: return self._updated("sub", x)
    def __imul__(self, x: Any) -> Self: return self._updated("mul", x)
    def __itruediv__(self, x: Any) -> Self: return self._updated("div", x)
    def __ifloordiv__(self, x: Any) -> Self: return self._updated("idiv", x)
    def __imod__(self, x: Any) -> Self: return self._updated("mod", x)
    def __ipow__(self, x: Any) -> Self: return self._updated("pow", x)
    def __imatmul__(self, x: Any) -> Self: return self._updated("matmul", x)
    def __iand__(self, x: Any) -> Self: return self._updated("bitwise_and", x)
    def __ior__(self, x: Any) -> Self: return self._updated("bitwise_or", x)
    def __ixor__(self, x: Any) -> Self: return self._updated("bitwise_xor", x)
    def __ilshift__(self, x: Any) -> Self: return self._updated("lshift", x)
    def __irshift__(self, x: Any) -> Self: return self._updated("rshift", x)

    def _updated(self, method: str, x: Any) -> Self:
        """Write the result of ``method`` to this tensor's memory, atomically with respect to other threads."""
        with writing(self):
            return self._become(method, getattr(self, method)(x))

    def _become(self, op: str, value: Self) -> Self:
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
