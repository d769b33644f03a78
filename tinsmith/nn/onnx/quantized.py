"""Quantized operators: low-bit integers with scale and zero point."""
from __future__ import annotations

from typing import Any

from tinsmith.core.dtypes import dtypes
from tinsmith.nn.onnx import neural
from tinsmith.nn.onnx.values import DTYPES, NARROW, axis_of, cast, noted, type_of
from tinsmith.tensor.tensor import Tensor


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


