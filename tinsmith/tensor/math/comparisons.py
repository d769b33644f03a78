"""Elementwise logic and comparisons, tests for special values (NaN, infinities, signs), and one-sided clamps."""
# mypy: disable-error-code=misc
# ``self`` is the Tensor that this class is mixed into.
from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from tinsmith.core.dtypes import dtypes
from tinsmith.ir import Ops, UOp
from tinsmith.tensor.arguments import flag
from tinsmith.tensor.base import TensorBase
from tinsmith.tensor.helpers import operand, side_of

if TYPE_CHECKING:
    from tinsmith.tensor.tensor import Tensor


class Comparisons:
    """``logical_and eq lt isnan isclose fmax signbit`` and similar methods."""

    __slots__ = ()

    def logical_and(self: Tensor, other: Any) -> Tensor:
        """Return True where both values are nonzero.

        >>> Tensor([0, 1, 2]).logical_and(Tensor([1, 1, 0])).tolist()
        [False, True, False]
        """
        return self.bool().bitwise_and(operand("logical_and", other, self).bool())

    def logical_or(self: Tensor, other: Any) -> Tensor:
        """Return True where at least one of the two values is nonzero.

        >>> Tensor([0, 1]).logical_or(Tensor([0, 0])).tolist()
        [False, True]
        """
        return self.bool().bitwise_or(operand("logical_or", other, self).bool())

    def logical_xor(self: Tensor, other: Any) -> Tensor:
        """Return True where exactly one of the two values is nonzero.

        >>> Tensor([0, 1]).logical_xor(Tensor([2, 3])).tolist()
        [True, False]
        """
        return self.bool().ne(operand("logical_xor", other, self).bool())

    def equal(self: Tensor, other: Tensor) -> bool:
        """Return True if shapes and all values are equal, as a Python bool: this realizes both tensors.

        >>> Tensor([1, 2]).equal(Tensor([1, 2])), Tensor([1, 2]).equal(Tensor([1]))
        (True, False)
        """
        y = operand("equal", other, self)
        return self.shape == y.shape and (0 in self.shape or bool(self.eq(y).all().item()))

    def is_nonzero(self: Tensor) -> bool:
        """Return True if the only element is nonzero, as a Python bool: this realizes the tensor.

        >>> Tensor([0.0]).is_nonzero()
        False
        """
        return bool(self)

    def is_same_size(self: Tensor, other: Tensor) -> bool:
        """Return True if the two shapes are equal.

        >>> Tensor([1]).is_same_size(Tensor([2]))
        True
        """
        return isinstance(other, TensorBase) and self.shape == other.shape

    def isposinf(self: Tensor) -> Tensor:
        """Return True where the value is positive infinity.

        >>> Tensor([1.0, math.inf]).isposinf().tolist()
        [False, True]
        """
        return self.isinf(detect_negative=False)

    def isneginf(self: Tensor) -> Tensor:
        """Return True where the value is negative infinity.

        >>> Tensor([1.0, -math.inf]).isneginf().tolist()
        [False, True]
        """
        return self.isinf(detect_positive=False)

    def isreal(self: Tensor) -> Tensor:
        """Return True for every element: there is no complex dtype.

        >>> Tensor([1.0]).isreal().tolist()
        [True]
        """
        return self._everywhere(True)

    def signbit(self: Tensor) -> Tensor:
        """Return True where the sign bit is set, which includes -0.0 and NaN with a negative sign.

        >>> Tensor([-0.0, 1.0]).signbit().tolist()
        [True, False]
        """
        if not self.dtype.is_float:
            return self.lt(0) if not self.dtype.is_unsigned else self._everywhere(False)
        return self.const_like(1).copysign(self).lt(0)

    def fmax(self: Tensor, other: Any) -> Tensor:
        """Return the elementwise maximum; where one value is NaN, the other one.

        >>> Tensor([1.0, math.nan]).fmax(Tensor([2.0, 3.0])).tolist()
        [2.0, 3.0]
        """
        y = operand("fmax", other, self)
        return self.ge(y).bitwise_or(y.isnan()).where(self, y)

    def fmin(self: Tensor, other: Any) -> Tensor:
        """Return the elementwise minimum; where one value is NaN, the other one.

        >>> Tensor([1.0, math.nan]).fmin(Tensor([2.0, 3.0])).tolist()
        [1.0, 3.0]
        """
        y = operand("fmin", other, self)
        return self.le(y).bitwise_or(y.isnan()).where(self, y)

    def clamp_min(self: Tensor, min: Any) -> Tensor:
        """Replace values below ``min`` by ``min``.

        >>> Tensor([-1, 2]).clamp_min(0).tolist()
        [0, 2]
        """
        return self.clamp(min)

    def clamp_max(self: Tensor, max: Any) -> Tensor:
        """Replace values above ``max`` by ``max``.

        >>> Tensor([-1, 2]).clamp_max(0).tolist()
        [-1, 0]
        """
        return self.clamp(max_=max)

    def nan_to_num(self: Tensor, nan: float | None = 0.0, posinf: float | None = None,
                   neginf: float | None = None) -> Tensor:
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

    def _everywhere(self: Tensor, truth: bool) -> Tensor:
        """Return a bool tensor filled with ``truth``: the comparison with an integer outside the dtype's range."""
        return self._new(UOp.const(dtypes.bool, truth).expand_to(self.shape))

    def eq(self: Tensor, x: Any) -> Tensor:
        """Return True where the values are equal.

        >>> Tensor([1, 2]).eq(2).tolist()
        [False, True]
        """
        side = side_of(x, self.dtype)
        return self._everywhere(False) if side else self._binary("eq", Ops.CMPEQ, x)

    def ne(self: Tensor, x: Any) -> Tensor:
        """Return True where the values differ (NaN differs from everything).

        >>> Tensor([1, 2]).ne(2).tolist()
        [True, False]
        """
        side = side_of(x, self.dtype)
        return self._everywhere(True) if side else self._binary("ne", Ops.CMPNE, x)

    def lt(self: Tensor, x: Any) -> Tensor:
        """Return True where this value is less than ``x``.

        >>> Tensor([1, 2]).lt(2).tolist()
        [True, False]
        """
        side = side_of(x, self.dtype)
        return self._everywhere(side > 0) if side else self._binary("lt", Ops.CMPLT, x)

    def gt(self: Tensor, x: Any) -> Tensor:
        """Return True where this value is greater than ``x``.

        >>> Tensor([1, 2]).gt(1).tolist()
        [False, True]
        """
        side = side_of(x, self.dtype)
        return self._everywhere(side < 0) if side else self._binary("gt", Ops.CMPLT, x, reverse=True)

    def le(self: Tensor, x: Any) -> Tensor:
        """Return True where this value is less than or equal to ``x``.

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
        """Return True where this value is greater than or equal to ``x``.

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
        """Return True where the value is NaN.

        >>> Tensor([1., math.nan]).isnan().tolist()
        [False, True]
        """
        return self.ne(self)

    def isinf(self: Tensor, detect_positive: bool = True, detect_negative: bool = True) -> Tensor:
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

    def isfinite(self: Tensor) -> Tensor:
        """Return True where the value is neither infinite nor NaN.

        >>> Tensor([1., -math.inf, math.nan]).isfinite().tolist()
        [True, False, False]
        """
        if not self.dtype.is_float:
            return self._new(self.uop.zeros(dtypes.bool)).logical_not()
        return self.abs().lt(math.inf)

    def isclose(self: Tensor, other: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Tensor:
        """Return True where the values differ by at most ``atol + rtol * abs(other)``.

        >>> Tensor([1., 2.]).isclose(Tensor([1.000001, 2.1])).tolist()
        [True, False]
        """
        y = operand("isclose", other, self)
        near = y.isfinite() & (self.sub(y).abs() <= y.abs().mul(rtol).add(atol))
        out = near | self.eq(y)
        return out | (self.isnan() & y.isnan()) if equal_nan else out

    def allclose(self: Tensor, other: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> bool:
        """Return True if ``isclose`` holds for all elements, as a Python bool: this realizes both tensors.

        >>> Tensor([1., 2.]).allclose(Tensor([1., 2.]))
        True
        """
        return bool(self.isclose(other, rtol, atol, equal_nan).all().item())

    def logical_not(self: Tensor) -> Tensor:
        """Return True where the value is zero.

        >>> Tensor([0, 2]).logical_not().tolist()
        [True, False]
        """
        return self.eq(False) if self.dtype.is_bool else self.eq(0)


def _may_be_nan(x: Tensor, y: Tensor) -> bool:
    return x.dtype.is_float or y.dtype.is_float
