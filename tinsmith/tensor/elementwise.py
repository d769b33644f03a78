"""Elementwise methods: arithmetic, comparisons, bits, rounding, powers and the functions of analysis.

Both operands of a binary method are broadcast and promoted to one dtype. A Python number takes the tensor's dtype, but
for a float beside integers (default float) and an integer beside bools (default int).
"""
# mypy: disable-error-code=misc
# ``self`` is the Tensor that this class is mixed into.
from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from tinsmith.core.dtypes import DType, dtypes, promote
from tinsmith.core.errors import ArgumentError, DTypeError
from tinsmith.ir import Ops, UOp
from tinsmith.ir.ops import Op
from tinsmith.tensor.arguments import Scalar, flag, integer, shown
from tinsmith.tensor.base import TensorBase
from tinsmith.tensor.conversions import Conversions
from tinsmith.tensor.data import check_range
from tinsmith.tensor.helpers import (
    broadcast_shape,
    expand_uop,
    float_of,
    matched,
    operand,
    rounded_once,
    same_device,
    side_of,
    weak_dtype,
)
from tinsmith.tensor.slopes import with_slopes
from tinsmith.tensor.trigonometry import Trigonometry

if TYPE_CHECKING:
    from tinsmith.tensor.tensor import Tensor


class Elementwise(Conversions, Trigonometry):
    """Methods that work on one element at a time."""

    __slots__ = ()
    __array_priority__ = 1000.0  # NumPy arrays leave `array + tensor` to the tensor

    def _unary_float(self: Tensor, op: Op) -> Tensor:
        return self._new(float_of(self).alu(op))

    def _binary(self: Tensor, name: str, op: Op, other: Any, reverse: bool = False) -> Tensor:
        if type(other) in (int, float):
            a = self.uop.cast(weak_dtype(other, self.dtype))
            check_range(name, other, a.dtype)
            b = a.const_like(other)
            a, b = (b, a) if reverse else (a, b)
        else:
            y = operand(name, other, self)
            a, b = matched(name, *((y, self) if reverse else (self, y)))
        return self._new(UOp(op, None, (a, b)))

    def _integers(self: Tensor, name: str, other: Any, reverse: bool = False, allow_bool: bool = True) -> list[UOp]:
        y = operand(name, other, self)
        for t in (self, y):
            if t.dtype.is_float or (t.dtype.is_bool and not allow_bool):
                raise DTypeError(name, f"works on integers, not on {t.dtype!r}", ".cast(dtypes.int32)")
        return matched(name, *((y, self) if reverse else (self, y)))

    # *** arithmetic ***

    def add(self: Tensor, x: Any, reverse: bool = False, *, alpha: float = 1) -> Tensor:
        """The sum, of ``alpha`` times the other.

        >>> Tensor([1, 2]).add(3).tolist()
        [4, 5]
        """
        if alpha != 1:
            x = operand("add", x, self).mul(alpha)
        return self._binary("add", Ops.ADD, x, reverse)

    def sub(self: Tensor, x: Any, reverse: bool = False, *, alpha: float = 1) -> Tensor:
        """The difference, of ``alpha`` times the other; of bools, that of 0 and 1.

        >>> Tensor([1, 2]).sub(3).tolist()
        [-2, -1]
        """
        if alpha != 1:
            x = operand("sub", x, self).mul(alpha)
        if self.dtype.is_bool:
            x = operand("sub", x, self)
            x = x.cast(dtypes.default_int) if x.dtype.is_bool else x
        return self._binary("sub", Ops.SUB, x, reverse)

    def mul(self: Tensor, x: Any, reverse: bool = False) -> Tensor:
        """The product.

        >>> Tensor([1, 2]).mul(3).tolist()
        [3, 6]
        """
        return self._binary("mul", Ops.MUL, x, reverse)

    def div(self: Tensor, x: Any, reverse: bool = False, rounding_mode: str | None = None) -> Tensor:
        """The quotient as a float; ``rounding_mode`` may be "floor" or "trunc".

        >>> Tensor([1, 2]).div(2).tolist()
        [0.5, 1.0]
        """
        if rounding_mode == "floor":
            return self.idiv(x, reverse)
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
        out = self._binary("div", Ops.FDIV, y, reverse)
        return out.trunc() if rounding_mode == "trunc" else out

    def idiv(self: Tensor, x: Any, reverse: bool = False) -> Tensor:
        """The quotient rounded down; an integer divided by 0 gives 0.

        >>> Tensor([7, -7, 7]).idiv(Tensor([2, 2, 0])).tolist()
        [3, -4, 0]
        """
        y = operand("idiv", x, self)
        if self.dtype.is_float or y.dtype.is_float:
            return self._binary("idiv", Ops.FDIV, y, reverse).floor()
        if self.dtype.is_bool and y.dtype.is_bool:
            y = y.cast(dtypes.default_int)
        return self._binary("idiv", Ops.IDIV, y, reverse)

    def mod(self: Tensor, x: Any, reverse: bool = False) -> Tensor:
        """The remainder with the sign of the divisor; of an integer divided by 0 it is 0.

        >>> Tensor([7, -7, 7]).mod(Tensor([2, 2, 0])).tolist()
        [1, 1, 0]
        """
        y = operand("mod", x, self)
        if not (self.dtype.is_float or y.dtype.is_float):
            if self.dtype.is_bool and y.dtype.is_bool:
                y = y.cast(dtypes.default_int)
            return self._binary("mod", Ops.MOD, y, reverse)
        a, b = (y, self) if reverse else (self, y)
        rest = _remainder(a, b)
        return rest.ne(0).mul(rest.lt(0).ne(b.lt(0))).where(rest + b, rest)

    def fmod(self: Tensor, x: Any) -> Tensor:
        """The remainder with the sign of the dividend, as in C.

        >>> Tensor([7, -7]).fmod(4).tolist()
        [3, -3]
        """
        y = operand("fmod", x, self)
        if not (self.dtype.is_float or y.dtype.is_float):
            return self.sub(y.mul(self.div(y, rounding_mode="trunc")))
        return _remainder(self, y)

    def neg(self: Tensor) -> Tensor:
        """Minus the value; NOT of bools.

        >>> Tensor([1, -2]).neg().tolist()
        [-1, 2]
        """
        return self.logical_not() if self.dtype.is_bool else self._new(self.uop.alu(Ops.NEG))

    def reciprocal(self: Tensor) -> Tensor:
        """One divided by the value.

        >>> Tensor([2., 4.]).reciprocal().tolist()
        [0.5, 0.25]
        """
        return self._unary_float(Ops.RECIP)

    def square(self: Tensor) -> Tensor:
        """The value times itself.

        >>> Tensor([2., -3.]).square().tolist()
        [4.0, 9.0]
        """
        return self.mul(self)

    def pow(self: Tensor, x: Any, reverse: bool = False) -> Tensor:
        """The value to the power ``x``; signs and zeros as in NumPy.

        >>> Tensor([2, -3]).pow(3).tolist()
        [8, -27]
        """
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
        """A power that needs no logarithm; None for the others."""
        dtype = promote(self.dtype, dtypes.default_float) if isinstance(exponent, float) and not self.dtype.is_float \
            else (dtypes.default_int if self.dtype.is_bool else self.dtype)
        x = self.cast(dtype)
        if dtype.is_int and exponent < 0:
            raise ArgumentError("pow", f"{self.dtype!r} to the negative power {exponent} is no integer",
                                ".cast(dtypes.float32) first")
        if exponent in (0.5, -0.5):
            return x.sqrt() if exponent > 0 else x.rsqrt()
        least, most = (-2, 4) if dtype.is_float else (0, 64)  # every product of floats is rounded
        if not least <= exponent <= most or exponent != int(exponent):
            return None
        if exponent == 0:
            one = x._new(x.uop.const_like(1))
            return with_slopes(one, _power_slopes, x, x._new(x.uop.const_like(0))) if dtype.is_float else one
        if exponent < 0:  # the square of 1/x, which is finite where 1 over the square is
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
        """Integers to integer powers by repeated squaring, wrapping like products; negative powers but of ±1 give 0."""
        x, n = (self._new(u) for u in matched("pow", self, exponent))
        if x.dtype.is_bool:
            x, n = x.cast(dtypes.default_int), n.cast(dtypes.default_int)
        out = x._new(x.uop.const_like(1))
        square, left = x, n
        for _ in range(x.dtype.bits.bit_length()):  # beyond 2**7 bits of exponent only 0, 1 and -1 would not wrap
            out = left.bitwise_and(1).ne(0).where(out.mul(square), out)
            square, left = square.mul(square), left.rshift(1)
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
        out = (odd & (below | x.reciprocal().lt(0))).where(power.neg(), power)  # -0 too keeps its sign
        out = (below & x.gt(-math.inf) & whole.logical_not()).where(math.nan, out)
        return with_slopes(out, _power_slopes, x, y).cast(a.dtype if a.dtype.is_float else dtype)

    def maximum(self: Tensor, x: Any) -> Tensor:
        """The greater of two values; NaN if either is NaN.

        >>> Tensor([1, 5]).maximum(3).tolist()
        [3, 5]
        """
        return self._binary("maximum", Ops.MAX, x)

    def minimum(self: Tensor, x: Any) -> Tensor:
        """The smaller of two values; NaN if either is NaN.

        >>> Tensor([1, 5]).minimum(3).tolist()
        [1, 3]
        """
        return self._binary("minimum", Ops.MIN, x)

    def clamp(self: Tensor, min_: Any = None, max_: Any = None, *, min: Any = None, max: Any = None) -> Tensor:
        """Values below ``min_`` become it, values above ``max_`` become that; a value at a bound keeps the gradient.

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
        return with_slopes(out, _clamp_slopes, *map(out._new, matched(
            "clamp", out, self, *(operand("clamp", b, out) for b in bounds))[1:]))

    def clip(self: Tensor, min_: Any = None, max_: Any = None, *, min: Any = None, max: Any = None) -> Tensor:
        """The same as ``clamp``.

        >>> Tensor([-3, 1, 9]).clip(0, 5).tolist()
        [0, 1, 5]
        """
        return self.clamp(min_, max_, min=min, max=max)

    def lerp(self: Tensor, end: Any, weight: Any) -> Tensor:
        """The value a fraction ``weight`` of the way to ``end``.

        >>> Tensor([0., 10.]).lerp(Tensor([10., 20.]), 0.5).tolist()
        [5.0, 15.0]
        """
        weight = weight if type(weight) in (int, float) else operand("lerp", weight, self)
        return _lerp(self, operand("lerp", end, self), weight)

    # *** choosing ***

    def where(self: Tensor, x: Any, y: Any) -> Tensor:
        """``x`` where this condition holds, else ``y``; of a tensor that is no bool and a bool ``x``, as PyTorch
        has it, this tensor where ``x`` holds, else ``y``.

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
        a, b = operand("where", x, like), operand("where", y, like)
        dtype = promote(a.dtype, b.dtype)
        same_device("where", condition, a, b)
        shape = broadcast_shape("where", condition.shape, a.shape, b.shape)
        nodes = (condition.uop, a.uop.cast(dtype), b.uop.cast(dtype))
        return self._new(UOp(Ops.WHERE, None, tuple(expand_uop(n, shape) for n in nodes)))

    def masked_fill(self: Tensor, mask: Tensor, value: Any) -> Tensor:
        """``value`` where the mask holds; the dtype stays.

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
        """The magnitude of this value with the sign of ``other``, zeros and NaN included.

        >>> Tensor([1., 2.]).copysign(Tensor([-0., 3.])).tolist()
        [-1.0, 2.0]
        """
        y = operand("copysign", other, self)
        a, b = matched("copysign", self._new(float_of(self)), y)
        size = self._new(a).abs()
        return self._new(_sign_bit(b)).where(size.neg(), size)

    # *** comparisons ***

    def _everywhere(self: Tensor, truth: bool) -> Tensor:
        """One truth value in this shape: how the values compare with an integer that their dtype cannot hold."""
        return self._new(UOp.const(dtypes.bool, truth).expand_to(self.shape))

    def eq(self: Tensor, x: Any) -> Tensor:
        """Whether the values are equal.

        >>> Tensor([1, 2]).eq(2).tolist()
        [False, True]
        """
        side = side_of(x, self.dtype)
        return self._everywhere(False) if side else self._binary("eq", Ops.CMPEQ, x)

    def ne(self: Tensor, x: Any) -> Tensor:
        """Whether the values differ (NaN differs from everything).

        >>> Tensor([1, 2]).ne(2).tolist()
        [True, False]
        """
        side = side_of(x, self.dtype)
        return self._everywhere(True) if side else self._binary("ne", Ops.CMPNE, x)

    def lt(self: Tensor, x: Any) -> Tensor:
        """Whether this value is less.

        >>> Tensor([1, 2]).lt(2).tolist()
        [True, False]
        """
        side = side_of(x, self.dtype)
        return self._everywhere(side > 0) if side else self._binary("lt", Ops.CMPLT, x)

    def gt(self: Tensor, x: Any) -> Tensor:
        """Whether this value is greater.

        >>> Tensor([1, 2]).gt(1).tolist()
        [False, True]
        """
        side = side_of(x, self.dtype)
        return self._everywhere(side < 0) if side else self._binary("gt", Ops.CMPLT, x, reverse=True)

    def le(self: Tensor, x: Any) -> Tensor:
        """Whether this value is less or equal.

        >>> Tensor([1, 2]).le(1).tolist()
        [True, False]
        """
        side = side_of(x, self.dtype)
        if side:
            return self._everywhere(side > 0)
        y = operand("le", x, self)
        less = self._binary("le", Ops.CMPLT, y)
        return less.bitwise_or(self._binary("le", Ops.CMPEQ, y)) if _may_be_nan(self, y) else self.gt(y).logical_not()

    def ge(self: Tensor, x: Any) -> Tensor:
        """Whether this value is greater or equal.

        >>> Tensor([1, 2]).ge(2).tolist()
        [False, True]
        """
        side = side_of(x, self.dtype)
        if side:
            return self._everywhere(side < 0)
        y = operand("ge", x, self)
        more = self._binary("ge", Ops.CMPLT, y, reverse=True)
        return more.bitwise_or(self._binary("ge", Ops.CMPEQ, y)) if _may_be_nan(self, y) else self.lt(y).logical_not()

    def isnan(self: Tensor) -> Tensor:
        """Whether the value is not a number.

        >>> Tensor([1., math.nan]).isnan().tolist()
        [False, True]
        """
        return self.ne(self)

    def isinf(self: Tensor, detect_positive: bool = True, detect_negative: bool = True) -> Tensor:
        """Whether the value is infinite.

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

    def isfinite(self: Tensor) -> Tensor:
        """Whether the value is neither infinite nor NaN.

        >>> Tensor([1., -math.inf, math.nan]).isfinite().tolist()
        [True, False, False]
        """
        if not self.dtype.is_float:
            return self._new(self.uop.zeros(dtypes.bool)).logical_not()
        return self.abs().lt(math.inf)

    def isclose(self: Tensor, other: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Tensor:
        """Whether two values differ by at most ``atol + rtol * abs(other)``.

        >>> Tensor([1., 2.]).isclose(Tensor([1.000001, 2.1])).tolist()
        [True, False]
        """
        y = operand("isclose", other, self)
        near = y.isfinite() & (self.sub(y).abs() <= y.abs().mul(rtol).add(atol))
        out = near | self.eq(y)
        return out | (self.isnan() & y.isnan()) if equal_nan else out

    def allclose(self: Tensor, other: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> bool:
        """Whether all values are close; computed now.

        >>> Tensor([1., 2.]).allclose(Tensor([1., 2.]))
        True
        """
        return bool(self.isclose(other, rtol, atol, equal_nan).all().item())

    # *** bits ***

    def logical_not(self: Tensor) -> Tensor:
        """True where the value is zero.

        >>> Tensor([0, 2]).logical_not().tolist()
        [True, False]
        """
        return self.eq(False) if self.dtype.is_bool else self.eq(0)

    def bitwise_and(self: Tensor, x: Any, reverse: bool = False) -> Tensor:
        """Bits set in both; AND of bools.

        >>> Tensor([6, 5]).bitwise_and(3).tolist()
        [2, 1]
        """
        return self._new(UOp(Ops.AND, None, tuple(self._integers("bitwise_and", x, reverse))))

    def bitwise_or(self: Tensor, x: Any, reverse: bool = False) -> Tensor:
        """Bits set in either; OR of bools.

        >>> Tensor([6, 5]).bitwise_or(3).tolist()
        [7, 7]
        """
        return self._new(UOp(Ops.OR, None, tuple(self._integers("bitwise_or", x, reverse))))

    def bitwise_xor(self: Tensor, x: Any, reverse: bool = False) -> Tensor:
        """Bits set in one only.

        >>> Tensor([6, 5]).bitwise_xor(3).tolist()
        [5, 6]
        """
        return self._new(UOp(Ops.XOR, None, tuple(self._integers("bitwise_xor", x, reverse))))

    def bitwise_not(self: Tensor) -> Tensor:
        """All bits inverted; NOT of bools.

        >>> Tensor([0, 5]).bitwise_not().tolist()
        [-1, -6]
        """
        ones = int(self.dtype.max) if self.dtype.is_unsigned else -1
        return self.logical_not() if self.dtype.is_bool else self.bitwise_xor(ones)

    def lshift(self: Tensor, x: Any, reverse: bool = False) -> Tensor:
        """Bits moved up by ``x`` places; 0 if ``x`` is negative or at least the width.

        >>> Tensor([1, 3]).lshift(2).tolist()
        [4, 12]
        """
        return self._new(UOp(Ops.SHL, None, tuple(self._integers("lshift", x, reverse, allow_bool=False))))

    def rshift(self: Tensor, x: Any, reverse: bool = False) -> Tensor:
        """Bits moved down by ``x`` places, copying the sign.

        >>> Tensor([4, -8]).rshift(2).tolist()
        [1, -2]
        """
        return self._new(UOp(Ops.SHR, None, tuple(self._integers("rshift", x, reverse, allow_bool=False))))

    # *** sign and rounding ***

    def abs(self: Tensor) -> Tensor:
        """The magnitude; its gradient at 0 is 0.

        >>> Tensor([-1., 2.]).abs().tolist()
        [1.0, 2.0]
        """
        if self.dtype.is_unsigned:
            return self._copy()
        magnitude = self.maximum(self.neg())  # of two zeros a maximum may be either: + 0.0 makes it the positive one
        return magnitude + 0.0 if self.dtype.is_float else magnitude

    def sign(self: Tensor) -> Tensor:
        """-1, 0 or 1; NaN stays NaN.

        >>> Tensor([-3., 0., 2.]).sign().tolist()
        [-1.0, 0.0, 1.0]
        """
        if self.dtype.is_bool:
            return self._copy()
        zero = self.eq(0).where(0, self.detach()) if self.dtype.is_float else self._new(self.uop.const_like(0))
        out = self.gt(0).where(1, zero)
        return out if self.dtype.is_unsigned else self.lt(0).where(-1, out)

    def trunc(self: Tensor) -> Tensor:
        """Rounded towards zero.

        >>> Tensor([1.7, -1.7]).trunc().tolist()
        [1.0, -1.0]
        """
        return self._new(self.uop.alu(Ops.TRUNC)) if self.dtype.is_float else self._copy()

    def floor(self: Tensor) -> Tensor:
        """Rounded down.

        >>> Tensor([1.7, -1.2]).floor().tolist()
        [1.0, -2.0]
        """
        if not self.dtype.is_float:
            return self._copy()
        whole = self.trunc()
        return self.lt(whole).where(whole.sub(1), whole)

    def ceil(self: Tensor) -> Tensor:
        """Rounded up.

        >>> Tensor([1.2, -1.7]).ceil().tolist()
        [2.0, -1.0]
        """
        if not self.dtype.is_float:
            return self._copy()
        whole = self.trunc()
        return whole.lt(self).where(whole.add(1), whole)

    def round(self: Tensor, decimals: int = 0) -> Tensor:
        """Rounded to the nearest whole number, or to so many ``decimals``, halves to the even one.

        >>> Tensor([0.5, 1.5, -1.2]).round().tolist(), Tensor([12., 15.]).round(-1).tolist()
        ([0.0, 2.0, -1.0], [10.0, 20.0])
        """
        decimals = integer("round", "decimals", decimals)
        if not self.dtype.is_float:
            if decimals < 0:
                raise DTypeError("round", f"decimals={decimals} of a tensor of {self.dtype!r}", ".float()")
            return self._copy()
        if decimals:
            scale = 10.0 ** abs(decimals)
            return self.mul(scale).round().div(scale) if decimals > 0 else self.div(scale).round().mul(scale)
        low = self.floor()
        above = self.sub(low)
        even = low.mul(0.5).trunc().mul(2).eq(low)
        up = above.gt(0.5) | (above.eq(0.5) & even.logical_not())
        return up.where(low.add(1), low)

    # *** roots, exponentials, logarithms ***

    def sqrt(self: Tensor) -> Tensor:
        """The square root.

        >>> Tensor([1., 4.]).sqrt().tolist()
        [1.0, 2.0]
        """
        return self._unary_float(Ops.SQRT)

    @rounded_once
    def rsqrt(self: Tensor) -> Tensor:
        """One divided by the square root.

        >>> Tensor([1., 4.]).rsqrt().tolist()
        [1.0, 0.5]
        """
        return self.sqrt().reciprocal()

    def exp(self: Tensor) -> Tensor:
        """e to the power of the value.

        >>> Tensor([0., 1.]).exp().numpy().round(4).tolist()
        [1.0, 2.7183001041412354]
        """
        return self._unary_float(Ops.EXP)

    def exp2(self: Tensor) -> Tensor:
        """2 to the power of the value.

        >>> Tensor([0., 3.]).exp2().tolist()
        [1.0, 8.0]
        """
        return self._unary_float(Ops.EXP2)

    def log(self: Tensor) -> Tensor:
        """The natural logarithm.

        >>> Tensor([1.]).log().tolist()
        [0.0]
        """
        return self._unary_float(Ops.LOG)

    def log2(self: Tensor) -> Tensor:
        """The logarithm to base 2.

        >>> Tensor([1., 8.]).log2().tolist()
        [0.0, 3.0]
        """
        return self._unary_float(Ops.LOG2)

    @rounded_once
    def log10(self: Tensor) -> Tensor:
        """The logarithm to base 10.

        >>> Tensor([1., 100.]).log10().tolist()
        [0.0, 2.0]
        """
        return self.log2().mul(math.log10(2))

    def log1p(self: Tensor) -> Tensor:
        """The logarithm of 1 + x, exact near 0.

        >>> Tensor([1e-10]).log1p().tolist() == Tensor([1e-10]).tolist()
        True
        """
        return self._unary_float(Ops.LOG1P)

    def expm1(self: Tensor) -> Tensor:
        """e to the x minus 1, exact near 0.

        >>> Tensor([1e-10]).expm1().tolist() == Tensor([1e-10]).tolist()
        True
        """
        return self._unary_float(Ops.EXPM1)

    def logaddexp(self: Tensor, other: Any) -> Tensor:
        """The logarithm of the sum of two exponentials.

        >>> round(Tensor([1000.]).logaddexp(Tensor([1000.])).item(), 3)
        1000.693
        """
        return _logaddexp(self, operand("logaddexp", other, self))


@rounded_once
def _lerp(start: Tensor, end: Tensor, weight: Tensor | float) -> Tensor:
    return start.add(end.sub(start).mul(weight))


@rounded_once
def _logaddexp(x: Tensor, y: Tensor) -> Tensor:
    lead = x.eq(y).where(0, x.sub(y)).abs()  # equal infinities differ by 0
    out = x.maximum(y).add(lead.neg().exp().log1p())
    return with_slopes(out, _logaddexp_slopes, *map(out._new, matched("logaddexp", out, x, y)[1:]))


def _power_slopes(g: Tensor, out: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """Where the power is 0 the base does not matter; at the base 0 positive powers do not."""
    if y.uop.base.is_const:
        power = y.uop.base.arg
        return None if power == 0 else g.mul(x.pow(power - 1).mul(power)), None
    by_base = y.eq(0).where(0, g.mul(y.mul(x.pow(y.sub(1)))))
    return by_base, (x.eq(0) & y.ge(0)).where(0, g.mul(out.mul(x.log())))


def _clamp_slopes(g: Tensor, out: Tensor, x: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A value at a bound counts as inside."""
    ordered = low.lt(high) | high.eq(math.inf)
    return ((x.ge(low) & x.le(high)).where(g, 0), (x.lt(low) & ordered).where(g, 0),
            (x.gt(high) | high.lt(low)).where(g, 0))


def _logaddexp_slopes(g: Tensor, out: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return g.div(y.sub(x).exp().add(1)), g.div(x.sub(y).exp().add(1))


def _may_be_nan(x: Tensor, y: Tensor) -> bool:
    return x.dtype.is_float or y.dtype.is_float


_BITS_OF: dict[DType, DType] = {dtypes.float16: dtypes.int16, dtypes.bfloat16: dtypes.int16,
                                dtypes.float32: dtypes.int32,
                                dtypes.float64: dtypes.int64}


def _sign_bit(x: UOp) -> UOp:
    bits = x.bitcast(_BITS_OF[x.dtype])
    return bits.lt(0)


def _remainder(a: Tensor, b: Tensor) -> Tensor:
    """a - b * trunc(a / b) of floats, in float64: exact while the quotient is below 2**53. By an infinity it is a."""
    dtype = promote(a.dtype, b.dtype)
    x, y = a.cast(dtypes.float64), b.cast(dtypes.float64)
    rest = x - y * (x / y).trunc()
    return (y.isinf() & x.isfinite()).where(x, rest).cast(dtype)
