"""Formulas, gradients and constants behind the elementwise methods of ``arithmetic.py`` and ``functions.py``."""
from __future__ import annotations

import math
from typing import Any, Final, TypeVar

import numpy as np

from tinsmith.core.dtypes import DType, dtypes
from tinsmith.core.errors import DTypeError
from tinsmith.ir import Ops, UOp
from tinsmith.tensor.autograd.backward import with_slopes
from tinsmith.tensor.base import TensorBase
from tinsmith.tensor.helpers import (
    float_of,
    in_one_dtype,
    matched,
    rounded_once,
)
from tinsmith.tensor.shape.layout import Layout

T = TypeVar("T", bound=Layout)
UINT: Final = {1: dtypes.uint8, 2: dtypes.uint16, 4: dtypes.uint32, 8: dtypes.uint64}
IN_FLOAT32 = (Ops.ADD, Ops.SUB, Ops.MUL, Ops.FDIV)

"""The ops that compute a 16-bit float and a Python scalar with float32's digits, as PyTorch's GPU kernels do. Its CPU
kernels round the scalar of sums and differences; the other ops round it everywhere."""


@rounded_once
def sum_scaled(x: T, y: T, factor: float) -> T:
    x, y = in_one_dtype(x, y)
    return x.add(y.mul(factor))


@rounded_once
def difference_scaled(x: T, y: T, factor: float) -> T:
    x, y = in_one_dtype(x, y)
    return x.sub(y.mul(factor))


@rounded_once
def round_to(x: T, decimals: int) -> T:
    scale = 10.0 ** abs(decimals)
    return x.mul(scale).round().div(scale) if decimals > 0 else x.div(scale).round().mul(scale)


@rounded_once
def lerp_of(start: T, end: T, weight: T | float) -> T:
    return start.add(end.sub(start).mul(weight))


def clamp_slopes(g: T, out: T, x: T, low: T, high: T) -> tuple[T, T, T]:
    """Return the gradients of ``clamp``: a value equal to a bound counts as inside."""
    ordered = low.lt(high) | high.eq(math.inf)
    return ((x.ge(low) & x.le(high)).where(g, 0), (x.lt(low) & ordered).where(g, 0),
            (x.gt(high) | high.lt(low)).where(g, 0))

_BITS_OF: dict[DType, DType] = {dtypes.float16: dtypes.int16, dtypes.bfloat16: dtypes.int16,
                                dtypes.float32: dtypes.int32,
                                dtypes.float64: dtypes.int64}


def sign_bit(x: UOp) -> UOp:
    bits = x.bitcast(_BITS_OF[x.dtype])
    return bits.lt(0)


def other_side(rest: T, b: T) -> T:
    """Return True where a remainder with the dividend's sign must be shifted by ``b`` to have the divisor's sign."""
    return rest.ne(0) & rest.lt(0).ne(b.lt(0))


@rounded_once
def trunc_quotient(a: T, b: T | float, reverse: bool) -> T:
    return a.div(b, reverse).trunc()


@rounded_once
def floor_quotient(a: T, b: T) -> T:
    """Floor division of floats by way of the exact remainder, as in Python and PyTorch."""
    a, b = (a._new(u) for u in matched("idiv", a, b))
    rest = a._binary("idiv", Ops.FMOD, b)
    whole = a.sub(rest).div(b)
    whole = other_side(rest, b).where(whole.sub(1), whole)
    near = whole.floor()
    near = whole.sub(near).gt(0.5).where(near.add(1), near)
    negative = a.signbit().ne(b.signbit())
    near = whole.eq(0).where(negative.where(-0.0, near._zeros()), near)
    return b.eq(0).where(a.detach().abs().mul(negative.where(-math.inf, math.inf)), near)


@rounded_once
def addcmul_of(x: T, a: T, b: T, value: float) -> T:
    x, a, b = in_one_dtype(x, a, b)
    return x.add((a if value == 1 else a.mul(value)).mul(b))


@rounded_once
def addcdiv_of(x: T, a: T, b: T, value: float) -> T:
    x, a, b = in_one_dtype(x, a, b)
    return x.add((a if value == 1 else a.mul(value)).div(b))


@rounded_once
def atan2_of(y: T, x: T) -> T:
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


def _atan2_slopes(g: T, out: T, y: T, x: T) -> tuple[T, T]:
    size = x.square().add(y.square())
    none = size.eq(0)
    scaled = g.div(none.where(1.0, size))
    return none.where(0, scaled.mul(x)), none.where(0, scaled.mul(y).neg())


@rounded_once
def hypot_of(x: T, y: T) -> T:
    a, b = (x._new(u) for u in matched("hypot", x._new(float_of(x)), y))
    far, near = a.abs().maximum(b.abs()), a.abs().minimum(b.abs())
    none = far.eq(0) | far.eq(math.inf)
    ratio = none.where(0.0, near.div(none.where(1.0, far)))
    out = far.mul(ratio.square().add(1).sqrt())
    out = (a.isinf() | b.isinf()).where(math.inf, out)
    return with_slopes(out, _hypot_slopes, a, b)


def _hypot_slopes(g: T, out: T, a: T, b: T) -> tuple[T, T]:
    return g.mul(a.div(out)), g.mul(b.div(out))


@rounded_once
def xlogy_of(x: T, y: T) -> T:
    a, b = (x._new(u) for u in matched("xlogy", x._new(float_of(x)), y))
    none = a.eq(0) & b.isnan().logical_not()
    return with_slopes(none.where(0, a.mul(none.where(1.0, b).log())), _xlogy_slopes, a, b)


def _xlogy_slopes(g: T, out: T, a: T, b: T) -> tuple[T, T]:
    none = a.eq(0) & b.le(0)
    return none.where(0, g.mul(none.where(1.0, b).log())), g.mul(a).div(b)


Operand = TensorBase | bool | int | float | np.generic | np.ndarray[Any, Any] | UOp | list[Any] | tuple[Any, ...]
OPERANDS = (TensorBase, bool, int, float, np.generic, np.ndarray, UOp, list, tuple)


def known(value: Any) -> bool:
    if isinstance(value, OPERANDS):
        return True
    if type(value).__name__ == "Tensor" and hasattr(value, "__dlpack__"):  # Python's message: Tensor and Tensor
        raise DTypeError(type(value).__module__, "its tensors are not ours", "tinsmith.from_dlpack(x), or x.numpy()")
    return False


def may_be_nan(x: Layout, y: Layout) -> bool:
    return x.dtype.is_float or y.dtype.is_float
