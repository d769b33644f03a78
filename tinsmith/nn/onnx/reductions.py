"""Reductions, running sums and orders."""
from __future__ import annotations

from typing import Any

import numpy as np

from tinsmith.core.dtypes import dtypes
from tinsmith.nn.onnx.values import axis_of, constant, ints, known, number, to_float_and_back
from tinsmith.tensor.tensor import Tensor


def _axes(x: Tensor, axes: Any, noop: int) -> tuple[int, ...] | None:
    """The axes to reduce; None for none at all."""
    given = [] if axes is None else ints(axes)
    if not given:
        return None if noop else tuple(range(x.ndim))
    return tuple(axis_of(a, x.ndim) for a in given)


def _is_empty(x: Tensor, axes: tuple[int, ...]) -> bool:
    return any(x.shape[a] == 0 for a in axes)


def _filled(x: Tensor, axes: tuple[int, ...], keep: int, value: Any) -> Tensor:
    """Return the reduction over zero elements: ``value`` in the reduced shape."""
    shape = [1 if n in axes else s for n, s in enumerate(x.shape) if keep or n not in axes]
    return Tensor.full(tuple(shape), value, dtype=x.dtype)


def ReduceSum(x: Tensor, axes: Any = None, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Tensor:
    over = _axes(x, axes, noop_with_empty_axes)
    return x if over is None else x.sum(over, keepdim=bool(keepdims)).cast(x.dtype) if over else x


def ReduceMean(x: Tensor, axes: Any = None, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Tensor:
    over = _axes(x, axes, noop_with_empty_axes)
    return x if not over else x.mean(over, keepdim=bool(keepdims)).cast(x.dtype)


def ReduceProd(x: Tensor, axes: Any = None, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Tensor:
    over = _axes(x, axes, noop_with_empty_axes)
    return x if not over else x.prod(over, keepdim=bool(keepdims)).cast(x.dtype)


def ReduceMax(x: Tensor, axes: Any = None, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Tensor:
    over = _axes(x, axes, noop_with_empty_axes)
    if not over:
        return x
    return _filled(x, over, keepdims, x.dtype.min) if _is_empty(x, over) else x.max(over, keepdim=bool(keepdims))


def ReduceMin(x: Tensor, axes: Any = None, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Tensor:
    over = _axes(x, axes, noop_with_empty_axes)
    if not over:
        return x
    return _filled(x, over, keepdims, x.dtype.max) if _is_empty(x, over) else x.min(over, keepdim=bool(keepdims))


def ReduceL1(x: Tensor, axes: Any = None, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Tensor:
    return ReduceSum(x.abs(), axes, keepdims, noop_with_empty_axes)


def ReduceSumSquare(x: Tensor, axes: Any = None, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Tensor:
    return ReduceSum(x * x, axes, keepdims, noop_with_empty_axes)


def ReduceL2(x: Tensor, axes: Any = None, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Tensor:
    wide, dtype = to_float_and_back(x)
    return ReduceSumSquare(wide, axes, keepdims, noop_with_empty_axes).sqrt().cast(dtype)


def ReduceLogSum(x: Tensor, axes: Any = None, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Tensor:
    return ReduceSum(x, axes, keepdims, noop_with_empty_axes).log().cast(x.dtype)


def ReduceLogSumExp(x: Tensor, axes: Any = None, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Tensor:
    over = _axes(x, axes, noop_with_empty_axes)
    if not over:
        return x
    if _is_empty(x, over):
        return _filled(x, over, keepdims, float("-inf"))
    return x.logsumexp(over, keepdim=bool(keepdims)).cast(x.dtype)


def _arg(x: Tensor, axis: int, keepdims: int, last: int, least: bool) -> Tensor:
    size = x.shape[axis]
    seen = x.flip(axis) if last else x
    at = seen.argmin(axis, keepdim=bool(keepdims)) if least else seen.argmax(axis, keepdim=bool(keepdims))
    out: Tensor = size - 1 - at if last else at
    return out.cast(dtypes.int64)


def ArgMax(x: Tensor, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Tensor:
    return _arg(x, axis_of(axis, x.ndim), keepdims, select_last_index, False)


def ArgMin(x: Tensor, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Tensor:
    return _arg(x, axis_of(axis, x.ndim), keepdims, select_last_index, True)


def _running(scan: Any, x: Tensor, axis: int, exclusive: int, reverse: int, start: int) -> Tensor:
    seen = x.flip(axis) if reverse else x
    out: Tensor = scan(seen, axis).cast(x.dtype)
    if exclusive:
        pads = [(1, 0) if n == axis else (0, 0) for n in range(x.ndim)]
        keep = tuple((0, n) for n in x.shape)
        out = out.pad(pads, value=start).shrink(keep)
    return out.flip(axis) if reverse else out


def CumSum(x: Tensor, axis: Any, exclusive: int = 0, reverse: int = 0) -> Tensor:
    return _running(Tensor.cumsum, x, axis_of(int(number(axis)), x.ndim), exclusive, reverse, 0)


def CumProd(x: Tensor, axis: Any, exclusive: int = 0, reverse: int = 0) -> Tensor:
    return _running(Tensor.cumprod, x, axis_of(int(number(axis)), x.ndim), exclusive, reverse, 1)


def TopK(x: Tensor, k: Any, axis: int = -1, largest: int = 1, sorted: int = 1) -> tuple[Tensor, Tensor]:
    values, places = x.topk(int(number(k)), axis_of(axis, x.ndim), bool(largest))
    return values, places.cast(dtypes.int64)


def Hardmax(x: Tensor, axis: int | None = None, opset: int = 13) -> Tensor:
    flat, shape = _as_rows(x, axis, opset)
    at = axis_of(-1 if axis is None else axis, x.ndim) if shape is None else 1
    best = flat.argmax(at, keepdim=True)
    places = Tensor.arange(flat.shape[at]).reshape(*[-1 if n == at else 1 for n in range(flat.ndim)])
    return places.eq(best).cast(x.dtype).reshape(x.shape)


def _as_rows(x: Tensor, axis: int | None, opset: int) -> tuple[Tensor, tuple[int, ...] | None]:
    """Flatten ``x`` to 2-D at ``axis`` before opset 13; return it with the shape to restore."""
    if opset >= 13:
        return x, None
    before = int(np.prod(x.shape[: axis_of(1 if axis is None else axis, x.ndim)], dtype=int))
    return x.reshape(before, -1), x.shape


def Softmax(x: Tensor, axis: int | None = None, opset: int = 13) -> Tensor:
    rows, shape = _as_rows(x, axis, opset)
    return rows.softmax(1).reshape(shape) if shape is not None else x.softmax(-1 if axis is None else axis)


def LogSoftmax(x: Tensor, axis: int | None = None, opset: int = 13) -> Tensor:
    rows, shape = _as_rows(x, axis, opset)
    return rows.log_softmax(1).reshape(shape) if shape is not None else x.log_softmax(-1 if axis is None else axis)


def NonZero(x: Tensor) -> Tensor:
    return constant(np.array(np.nonzero(known(x)), np.int64))


def Unique(x: Tensor, axis: int | None = None, sorted: int = 1) -> tuple[Tensor, ...]:
    """Computed on the host, since the result's size depends on the values."""
    array = known(x)
    values, first, inverse, counts = np.unique(array, True, True, True, axis=axis)
    order = np.arange(len(first)) if sorted else np.argsort(first)
    ranks = np.argsort(order)
    values = np.take(values, order, axis=0 if axis is None else axis)
    return (constant(values), *(constant(np.asarray(v, np.int64))
                                for v in (first[order], ranks[inverse.reshape(-1)], counts[order])))


def LpNormalization(x: Tensor, axis: int = -1, p: int = 2) -> Tensor:
    size = x.abs().sum(axis, keepdim=True) if p == 1 else (x * x).sum(axis, keepdim=True).sqrt()
    return size.eq(0).where(0, x / size.eq(0).where(1, size))
