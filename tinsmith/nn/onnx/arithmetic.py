"""Elementwise and quantized operators of ONNX: functions of tensors by ONNX's names, with attributes as keywords.

Quantized operators work on low-bit integers with scale and zero point.
"""
from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

from tinsmith.core.dtypes import dtypes
from tinsmith.nn.onnx import neural
from tinsmith.nn.onnx.values import DTYPES, NARROW, axis_of, cast, constant, noted, number, type_of
from tinsmith.tensor.math.table import onnx_methods
from tinsmith.tensor.tensor import Tensor

# Operators that are a method: its name is in the table of methods.
SIMPLE: Final[dict[str, Callable[..., Tensor]]] = {
    "Identity": lambda x: x, **{operator: getattr(Tensor, name) for operator, name in onnx_methods().items()}}


def Add(x: Tensor, y: Tensor) -> Tensor:
    return x + y


def Sub(x: Tensor, y: Tensor) -> Tensor:
    return x - y


def Mul(x: Tensor, y: Tensor) -> Tensor:
    return x * y


def Div(x: Tensor, y: Tensor) -> Tensor:
    return x / y if x.dtype.is_float else x.div(y, rounding_mode="trunc").cast(x.dtype)


def Mod(x: Tensor, y: Tensor, fmod: int = 0) -> Tensor:
    return x.fmod(y) if fmod else x.mod(y)


def Pow(x: Tensor, y: Tensor) -> Tensor:
    if x.dtype.is_int and y.dtype.is_float:
        return x.cast(dtypes.float64).pow(y.cast(dtypes.float64)).cast(x.dtype)
    return x.pow(y.cast(x.dtype))


def BitShift(x: Tensor, y: Tensor, direction: str) -> Tensor:
    return x << y if direction == "LEFT" else x >> y


def Equal(x: Any, y: Any) -> Tensor:
    if not isinstance(x, Tensor):  # text
        return constant(x == y)
    return x.eq(y)


def Max(*xs: Tensor) -> Tensor:
    return functools.reduce(Tensor.maximum, xs)


def Min(*xs: Tensor) -> Tensor:
    return functools.reduce(Tensor.minimum, xs)


def Sum(*xs: Tensor) -> Tensor:
    return functools.reduce(Tensor.add, xs)


def Mean(*xs: Tensor) -> Tensor:
    return Sum(*xs) / len(xs)


def Where(condition: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return condition.where(x, y)


def Clip(x: Tensor, min: Any = None, max: Any = None) -> Tensor:
    """At least ``min``, then at most ``max``, where they are given."""
    if min is not None:
        x = x.maximum(min)
    return x if max is None else x.minimum(max)


def IsInf(x: Tensor, detect_negative: int = 1, detect_positive: int = 1) -> Tensor:
    found = x.isinf()
    found = found if detect_positive else found & (x < 0)
    return found if detect_negative else found & (x > 0)


def Elu(x: Tensor, alpha: float = 1.0) -> Tensor:
    return (x < 0).where(alpha * (x.minimum(0).exp() - 1), x)


def Celu(x: Tensor, alpha: float = 1.0) -> Tensor:
    return x.maximum(0) + (alpha * ((x / alpha).exp() - 1)).minimum(0)


def Selu(x: Tensor, alpha: float = 1.67326319217681884765625, gamma: float = 1.05070102214813232421875) -> Tensor:
    return gamma * (x > 0).where(x, alpha * x.minimum(0).exp() - alpha)


def Gelu(x: Tensor, approximate: str = "none") -> Tensor:
    return x.gelu(approximate)


def LeakyRelu(x: Tensor, alpha: float = 0.01) -> Tensor:
    return (x < 0).where(alpha * x, x)


def PRelu(x: Tensor, slope: Tensor) -> Tensor:
    return (x < 0).where(slope * x, x)


def ThresholdedRelu(x: Tensor, alpha: float = 1.0) -> Tensor:
    return (x > alpha).where(x, 0)


def HardSigmoid(x: Tensor, alpha: float = 0.2, beta: float = 0.5) -> Tensor:
    return (alpha * x + beta).clip(0, 1)


def Swish(x: Tensor, alpha: float = 1.0) -> Tensor:
    return x * (alpha * x).sigmoid()


def Shrink(x: Tensor, bias: float = 0.0, lambd: float = 0.5) -> Tensor:
    return (x < -lambd).where(x + bias, (x > lambd).where(x - bias, 0)).cast(x.dtype)


def Cast(x: Any, to: int, saturate: int = 1, round_mode: str = "up") -> Any:
    if not isinstance(x, Tensor):  # text of numbers
        return constant(x.astype(float)).cast(DTYPES[to])
    return cast(x, to, bool(saturate), round_mode)


def CastLike(x: Tensor, like: Tensor, saturate: int = 1) -> Tensor:
    return cast(x, type_of(like), bool(saturate))


def BitCast(x: Tensor, to: int) -> Tensor:
    return x.bitcast(DTYPES[to])


def Dropout(x: Tensor, ratio: Any = None, training_mode: Any = None, seed: int = 0) -> tuple[Tensor, Tensor]:
    p = 0.5 if ratio is None else float(number(ratio))
    if training_mode is None or not number(training_mode) or not p:
        return x, Tensor.ones(*x.shape, dtype=dtypes.bool)
    mask = Tensor.rand(*x.shape) >= p
    return x * mask / (1 - p), mask


def Bernoulli(x: Tensor, dtype: int = 0, seed: float = 0.0) -> Tensor:
    drawn = Tensor.rand(*x.shape) < x
    return drawn.cast(DTYPES[dtype] if dtype else x.dtype)


def RandomUniformLike(x: Tensor, dtype: int = 0, high: float = 1.0, low: float = 0.0, seed: float = 0.0) -> Tensor:
    return Tensor.uniform(*x.shape, low=low, high=high).cast(DTYPES[dtype] if dtype else x.dtype)


def RandomNormalLike(x: Tensor, dtype: int = 0, mean: float = 0.0, scale: float = 1.0, seed: float = 0.0) -> Tensor:
    return (Tensor.randn(*x.shape) * scale + mean).cast(DTYPES[dtype] if dtype else x.dtype)


def RandomUniform(shape: Any, dtype: int = 1, high: float = 1.0, low: float = 0.0, seed: float = 0.0) -> Tensor:
    return Tensor.uniform(*shape, low=low, high=high).cast(DTYPES[dtype])


def RandomNormal(shape: Any, dtype: int = 1, mean: float = 0.0, scale: float = 1.0, seed: float = 0.0) -> Tensor:
    return (Tensor.randn(*shape) * scale + mean).cast(DTYPES[dtype])


def _spread(t: Tensor, x: Tensor, axis: int, block: int) -> Tensor:
    """Broadcast scales or zero points to ``x``: per tensor, per axis, or per block along the axis."""
    if t.ndim == 0 or t.numel() == 1:
        return t.reshape(())
    if t.ndim == 1 and not block:
        return t.reshape(*[-1 if n == axis else 1 for n in range(x.ndim)])
    whole = t.repeat_interleave(block, axis)
    return whole[(slice(None),) * axis + (slice(0, x.shape[axis]),)]


def QuantizeLinear(x: Tensor, scale: Tensor, zero: Tensor | None = None, axis: int = 1, block_size: int = 0,
                   output_dtype: int = 0, precision: int = 0, saturate: int = 1) -> Tensor:
    at = axis_of(axis, x.ndim) if x.ndim else 0
    to = output_dtype or (2 if zero is None else type_of(zero))
    scaled = x.float() / _spread(scale, x, at, block_size).float()
    dtype = DTYPES[to]
    if not dtype.is_int:
        return cast(scaled if zero is None else scaled + _spread(zero, x, at, block_size).float(), to, bool(saturate))
    low, high = NARROW.get(to, (dtype.min, dtype.max))
    shift = 0 if zero is None else _spread(zero, x, at, block_size).float()
    return noted((scaled.round() + shift).clip(float(low), float(high)).cast(dtype), to)


def DequantizeLinear(x: Tensor, scale: Tensor, zero: Tensor | None = None, axis: int = 1, block_size: int = 0,
                     output_dtype: int = 0) -> Tensor:
    at = axis_of(axis, x.ndim) if x.ndim else 0
    value = x.cast(dtypes.int32) if x.dtype.is_int else x.float()
    if zero is not None:
        value = value - _spread(zero, x, at, block_size).cast(value.dtype)
    out = value.float() * _spread(scale, x, at, block_size).float()
    return out.cast(DTYPES[output_dtype] if output_dtype else scale.dtype)


def DynamicQuantizeLinear(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    low, high = x.min().minimum(0), x.max().maximum(0)
    scale = (high - low) / 255
    zero = (-low / scale).round().clip(0, 255)
    return ((x / scale).round() + zero).clip(0, 255).cast(dtypes.uint8), scale, zero.cast(dtypes.uint8)


def _wide(x: Tensor, zero: Tensor | None, rows: bool = False) -> Tensor:
    """Return integers minus their zero point, as int32."""
    out = x.cast(dtypes.int32)
    if zero is None:
        return out
    return out - (zero.reshape(-1, 1) if rows and zero.ndim == 1 and zero.numel() > 1 else zero).cast(dtypes.int32)


def MatMulInteger(a: Tensor, b: Tensor, a_zero: Tensor | None = None, b_zero: Tensor | None = None) -> Tensor:
    return _wide(a, a_zero, rows=True).matmul(_wide(b, b_zero)).cast(dtypes.int32)


def _requantized(total: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
    out = (total.cast(dtypes.float64) * scale.cast(dtypes.float64)).float().round() + zero.float()
    return out.clip(float(zero.dtype.min), float(zero.dtype.max)).cast(zero.dtype)


def QLinearMatMul(a: Tensor, a_scale: Tensor, a_zero: Tensor, b: Tensor, b_scale: Tensor, b_zero: Tensor,
                  y_scale: Tensor, y_zero: Tensor) -> Tensor:
    total = _wide(a, a_zero, rows=True).matmul(_wide(b, b_zero))
    rows = a_scale.reshape(-1, 1) if a_scale.ndim == 1 and a_scale.numel() > 1 else a_scale
    return _requantized(total, rows.float() * b_scale.float() / y_scale.float(), y_zero)


def ConvInteger(x: Tensor, w: Tensor, x_zero: Tensor | None = None, w_zero: Tensor | None = None,
                **options: Any) -> Tensor:
    weights = _wide(w, None if w_zero is None else _channels(w_zero, w.ndim, 0))
    return neural.Conv(_wide(x, x_zero), weights, **options).cast(dtypes.int32)


def _channels(t: Tensor, ndim: int, axis: int) -> Tensor:
    return t.reshape(*[-1 if n == axis else 1 for n in range(ndim)]) if t.numel() > 1 else t.reshape(())


def QLinearConv(x: Tensor, x_scale: Tensor, x_zero: Tensor, w: Tensor, w_scale: Tensor, w_zero: Tensor,
                y_scale: Tensor, y_zero: Tensor, b: Tensor | None = None, **options: Any) -> Tensor:
    total = neural.Conv(_wide(x, x_zero.reshape(())), _wide(w, _channels(w_zero, w.ndim, 0)), **options)
    if b is not None:
        total = total + _channels(b, x.ndim, 1)
    return _requantized(total, x_scale.reshape(()) * _channels(w_scale, x.ndim, 1) / y_scale.reshape(()),
                        y_zero.reshape(()))
