"""Neural network operators: convolutions, pools, norms, and products.

Convolutions, pools, norms, and products.

The optimizers of ONNX's preview of training: new values of parameters and of their state."""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tinsmith.core.dtypes import dtypes
from tinsmith.nn.onnx.values import axis_of, constant, ints, known, to_float_and_back
from tinsmith.tensor.tensor import Tensor

Pads = list[tuple[int, int]]


def _pads(size: Sequence[int], kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int],
          pads: Any, auto_pad: str) -> Pads:
    """Return the (before, after) padding of each spatial axis."""
    rank = len(kernel)
    if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        out = []
        for s, k, step, gap in zip(size, kernel, strides, dilations):
            total = max((-(-s // step) - 1) * step + (k - 1) * gap + 1 - s, 0)
            less = total // 2
            out.append((less, total - less) if auto_pad == "SAME_UPPER" else (total - less, less))
        return out
    given = [0] * 2 * rank if pads is None or auto_pad == "VALID" else ints(pads)
    return list(zip(given[:rank], given[rank:]))


def _padded(x: Tensor, pads: Pads, value: float = 0.0) -> tuple[Tensor, tuple[int, ...]]:
    """Return the image, padded where its two ends differ, and the padding that is the same at both."""
    if all(b == e for b, e in pads):
        return x, tuple(b for b, _ in pads)
    return x.pad([(0, 0), (0, 0), *pads], value=value), (0,) * len(pads)


def Conv(x: Tensor, w: Tensor, b: Tensor | None = None, auto_pad: str = "NOTSET", dilations: Any = None,
         group: int = 1, kernel_shape: Any = None, pads: Any = None, strides: Any = None) -> Tensor:
    rank = w.ndim - 2
    by, gap = tuple(strides or [1] * rank), tuple(dilations or [1] * rank)
    image, padding = _padded(x, _pads(x.shape[2:], w.shape[2:], by, gap, pads, auto_pad))
    return image.conv2d(w, b, groups=group, stride=by, dilation=gap, padding=padding)


def ConvTranspose(x: Tensor, w: Tensor, b: Tensor | None = None, auto_pad: str = "NOTSET", dilations: Any = None,
                  group: int = 1, kernel_shape: Any = None, output_padding: Any = None, output_shape: Any = None,
                  pads: Any = None, strides: Any = None) -> Tensor:
    rank = w.ndim - 2
    by, gap = tuple(strides or [1] * rank), tuple(dilations or [1] * rank)
    more = list(output_padding or [0] * rank)
    reach = [(k - 1) * g + 1 for k, g in zip(w.shape[2:], gap)]
    full = [s * (n - 1) + r + m for n, s, r, m in zip(x.shape[2:], by, reach, more)]
    wanted = output_shape
    if wanted is None and auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        wanted = [n * s for n, s in zip(x.shape[2:], by)]
    if wanted is not None:
        total = [f - o for f, o in zip(full, wanted)]
        halves = [(t // 2, t - t // 2) for t in total]
        cut = halves if auto_pad == "SAME_UPPER" else [(e, b0) for b0, e in halves]
    else:
        given = ints(pads) if pads is not None else [0] * 2 * rank
        cut = list(zip(given[:rank], given[rank:]))
    out = x.conv_transpose2d(w, b, groups=group, stride=by, dilation=gap)
    if any(more):  # what is added lies behind the last window
        tail = out.pad([(0, 0), (0, 0), *((0, m) for m in more)])
        if b is not None:
            inside = Tensor.ones(*out.shape).pad([(0, 0), (0, 0), *((0, m) for m in more)])
            tail = tail + (1 - inside) * b.reshape(1, -1, *[1] * rank)
        out = tail
    grown = [(max(-b0, 0), max(-e, 0)) for b0, e in cut]
    if any(b0 or e for b0, e in grown):
        out = out.pad([(0, 0), (0, 0), *grown])
    keep = [(max(b0, 0), s - max(e, 0)) for (b0, e), s in zip(cut, out.shape[2:])]
    return out.shrink(((0, out.shape[0]), (0, out.shape[1]), *keep))


def _ceil_pads(size: Sequence[int], kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int],
               pads: Pads) -> Pads:
    """Return the pads for ``ceil_mode``: the end is extended so that the last window fits.

    A window that would begin after the image and its first padding is dropped.
    """
    out = []
    for n, k, s, d, (b, e) in zip(size, kernel, strides, dilations, pads):
        count = -(-(n + b + e - (k - 1) * d - 1) // s) + 1
        if (count - 1) * s >= n + b:
            count -= 1
        out.append((b, max((count - 1) * s + (k - 1) * d + 1 - n - b, e)))
    return out


def _least(x: Tensor) -> Any:
    return x.dtype.min


def MaxPool(x: Tensor, kernel_shape: Any, auto_pad: str = "NOTSET", ceil_mode: int = 0, dilations: Any = None,
            pads: Any = None, storage_order: int = 0, strides: Any = None, outputs: int = 1) -> Any:
    rank = len(kernel_shape)
    by, gap = tuple(strides or [1] * rank), tuple(dilations or [1] * rank)
    edges = _pads(x.shape[2:], kernel_shape, by, gap, pads, auto_pad)
    if ceil_mode:
        edges = _ceil_pads(x.shape[2:], kernel_shape, by, gap, edges)
    padded = x.pad([(0, 0), (0, 0), *edges], value=_least(x)) if any(b or e for b, e in edges) else x
    options: dict[str, Any] = {"kernel_size": tuple(kernel_shape), "stride": by, "dilation": gap}
    if outputs == 1:
        return padded.max_pool2d(**options)
    values, flat = padded.max_pool2d(**options, return_indices=True)
    size = padded.shape[2:]
    place: Any = 0
    parts: list[Tensor] = []
    for n in reversed(range(rank)):
        parts.insert(0, flat % size[n] - edges[n][0])
        flat = flat // size[n]
    order = range(rank) if not storage_order else reversed(range(rank))
    for n in order:
        place = place * x.shape[2 + n] + parts[n]
    lead = Tensor.arange(math.prod(x.shape[:2])).reshape(*x.shape[:2], *[1] * rank) * math.prod(x.shape[2:])
    return values, (place + lead).cast(dtypes.int64)


def AveragePool(x: Tensor, kernel_shape: Any, auto_pad: str = "NOTSET", ceil_mode: int = 0, dilations: Any = None,
                count_include_pad: int = 0, pads: Any = None, strides: Any = None) -> Tensor:
    rank = len(kernel_shape)
    by, gap = tuple(strides or [1] * rank), tuple(dilations or [1] * rank)
    edges = _pads(x.shape[2:], kernel_shape, by, gap, pads, auto_pad)
    outer = _ceil_pads(x.shape[2:], kernel_shape, by, gap, edges) if ceil_mode else edges
    options: dict[str, Any] = {"kernel_size": tuple(kernel_shape), "stride": by, "dilation": gap}
    if not any(b or e for b, e in outer):
        return x.avg_pool2d(**options)
    sums = x.pad([(0, 0), (0, 0), *outer]).avg_pool2d(**options)
    ones = Tensor.ones(1, 1, *x.shape[2:], dtype=x.dtype)
    if count_include_pad:
        ones = ones.pad([(0, 0), (0, 0), *edges], value=1)
        outer = [(b - b0, e - e0) for (b, e), (b0, e0) in zip(outer, edges)]
    return sums / ones.pad([(0, 0), (0, 0), *outer]).avg_pool2d(**options)


def LpPool(x: Tensor, kernel_shape: Any, auto_pad: str = "NOTSET", ceil_mode: int = 0, dilations: Any = None,
           p: int = 2, pads: Any = None, strides: Any = None) -> Tensor:
    mean = AveragePool(x.abs() ** p, kernel_shape, auto_pad, ceil_mode, dilations, 1, pads, strides)
    if ceil_mode:
        rank = len(kernel_shape)
        by, gap = tuple(strides or [1] * rank), tuple(dilations or [1] * rank)
        edges = _ceil_pads(x.shape[2:], kernel_shape, by, gap,
                           _pads(x.shape[2:], kernel_shape, by, gap, pads, auto_pad))
        padded = (x.abs() ** p).pad([(0, 0), (0, 0), *edges])
        mean = padded.avg_pool2d(kernel_size=tuple(kernel_shape), stride=by, dilation=gap)
    out: Tensor = (mean * math.prod(kernel_shape)) ** (1 / p)
    return out


def _rest(x: Tensor) -> tuple[int, ...]:
    return tuple(range(2, x.ndim))


def GlobalAveragePool(x: Tensor) -> Tensor:
    return x.mean(_rest(x), keepdim=True)


def GlobalMaxPool(x: Tensor) -> Tensor:
    return x.max(_rest(x), keepdim=True)


def GlobalLpPool(x: Tensor, p: int = 2) -> Tensor:
    return (x.abs() ** p).sum(_rest(x), keepdim=True) ** (1 / p)


def MaxUnpool(x: Tensor, indices: Tensor, output_shape: Any = None, kernel_shape: Any = None, pads: Any = None,
              strides: Any = None) -> Tensor:
    """ONNX ``MaxUnpool``: scatter the values to ``indices``, which are flat indices into the complete batch."""
    rank = len(kernel_shape)
    by, edges = strides or [1] * rank, pads or [0] * 2 * rank
    size = [(n - 1) * s - edges[k] - edges[rank + k] + kernel_shape[k]
            for k, (n, s) in enumerate(zip(x.shape[2:], by))]
    shape = (*x.shape[:2], *size)
    flat = Tensor.zeros(math.prod(shape), dtype=x.dtype).scatter(0, indices.reshape(-1), x.reshape(-1)).reshape(shape)
    if output_shape is None:
        return flat
    wanted = ints(output_shape)
    return flat.pad([(0, w - s) for w, s in zip(wanted, shape)])


def _per_channel(t: Tensor, x: Tensor) -> Tensor:
    return t.reshape(1, -1, *[1] * (x.ndim - 2))


def BatchNormalization(x: Tensor, scale: Tensor, b: Tensor, mean: Tensor, var: Tensor, epsilon: float = 1e-5,
                       momentum: float = 0.9, training_mode: int = 0, spatial: int = 1) -> Any:
    new_mean, new_var = mean, var
    if training_mode:
        over = (0, *_rest(x))
        seen, spread = x.mean(over), x.var(over, correction=0)
        new_mean, new_var = (old * momentum + new * (1 - momentum) for old, new in ((mean, seen), (var, spread)))
        mean, var = seen, spread
    factor = scale * (var + epsilon).rsqrt()
    out = ((x - _per_channel(mean, x)) * _per_channel(factor, x) + _per_channel(b, x)).cast(x.dtype)
    return (out, new_mean, new_var) if training_mode else out


def _normalized(x: Tensor, axes: tuple[int, ...], epsilon: float) -> tuple[Tensor, Tensor, Tensor]:
    mean = x.mean(axes, keepdim=True)
    centered = x - mean
    scale = ((centered * centered).mean(axes, keepdim=True) + epsilon).rsqrt()
    return centered * scale, mean, scale


def InstanceNormalization(x: Tensor, scale: Tensor, b: Tensor, epsilon: float = 1e-5) -> Tensor:
    return _normalized(x, _rest(x), epsilon)[0] * _per_channel(scale, x) + _per_channel(b, x)


def LayerNormalization(x: Tensor, scale: Tensor, b: Tensor | None = None, axis: int = -1, epsilon: float = 1e-5,
                       stash_type: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    wide, dtype = to_float_and_back(x)
    out, mean, factor = _normalized(wide, tuple(range(axis_of(axis, x.ndim), x.ndim)), epsilon)
    out = out.cast(dtype) * scale
    return (out if b is None else out + b), mean, factor


def RMSNormalization(x: Tensor, scale: Tensor, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1) -> Tensor:
    wide, dtype = to_float_and_back(x)
    over = tuple(range(axis_of(axis, x.ndim), x.ndim))
    return (wide * ((wide * wide).mean(over, keepdim=True) + epsilon).rsqrt()).cast(dtype) * scale


def LRN(x: Tensor, size: int, alpha: float = 0.0001, beta: float = 0.75, bias: float = 1.0) -> Tensor:
    before = (size - 1) // 2
    squares = (x * x).pad([(before, size - 1 - before) if n == 1 else (0, 0) for n in range(x.ndim)])
    total: Any = 0
    for n in range(size):
        total = total + squares[:, n : n + x.shape[1]]
    out: Tensor = x / (bias + alpha / size * total) ** beta
    return out


def MatMul(x: Tensor, y: Tensor) -> Tensor:
    return x.matmul(y).cast(x.dtype)


def Gemm(a: Tensor, b: Tensor, c: Tensor | None = None, alpha: float = 1.0, beta: float = 1.0, transA: int = 0,
         transB: int = 0) -> Tensor:
    out = (a.T if transA else a) @ (b.T if transB else b)
    out = out if alpha == 1 else out * alpha
    if c is not None:
        out = out + (c if beta == 1 else c * beta)
    return out.cast(a.dtype)


def Einsum(*xs: Tensor, equation: str) -> Tensor:
    return Tensor.einsum(equation.replace(" ", ""), *xs)


def Det(x: Tensor) -> Tensor:
    return constant(np.linalg.det(known(x)).astype(x.dtype.numpy))
