"""ONNX operators that move, select and place elements, and reductions, scans and sorts."""
from __future__ import annotations

import functools
import math
from typing import Any, Final

import numpy as np

from tinsmith.core.dtypes import dtypes
from tinsmith.core.errors import ShapeError
from tinsmith.nn.onnx.values import DTYPES, axis_of, constant, ints, known, number, to_float_and_back
from tinsmith.tensor.math.table import REDUCTIONS
from tinsmith.tensor.tensor import Tensor


def Shape(x: Any, start: int = 0, end: int | None = None) -> Tensor:
    return constant(np.array(x.shape[start:end], np.int64))


def Size(x: Any) -> Tensor:
    return constant(np.int64(math.prod(x.shape)))


def Reshape(x: Tensor, shape: Any, allowzero: int = 0) -> Tensor:
    wanted = ints(shape)
    if not allowzero:
        wanted = [x.shape[n] if s == 0 else s for n, s in enumerate(wanted)]
    if -1 in wanted:
        rest = math.prod(s for s in wanted if s != -1)
        wanted[wanted.index(-1)] = math.prod(x.shape) // rest if rest else 0
    return x.reshape(tuple(wanted))


def Flatten(x: Tensor, axis: int = 1) -> Tensor:
    at = axis_of(axis, x.ndim)
    return x.reshape(math.prod(x.shape[:at]), math.prod(x.shape[at:]))


def Squeeze(x: Tensor, axes: Any = None) -> Tensor:
    gone = {n for n, s in enumerate(x.shape) if s == 1} if axes is None else {axis_of(a, x.ndim) for a in ints(axes)}
    return x.reshape(tuple(s for n, s in enumerate(x.shape) if n not in gone))


def Unsqueeze(x: Tensor, axes: Any) -> Tensor:
    new = ints(axes)
    ndim = x.ndim + len(new)
    at, sizes = {axis_of(a, ndim) for a in new}, iter(x.shape)
    return x.reshape(tuple(1 if n in at else next(sizes) for n in range(ndim)))


def Transpose(x: Tensor, perm: Any = None) -> Tensor:
    return x.permute(*(perm or range(x.ndim - 1, -1, -1))) if x.ndim > 1 else x


def Concat(*xs: Tensor, axis: int) -> Tensor:
    return xs[0].cat(*xs[1:], dim=axis)


def Split(x: Tensor, split: Any = None, axis: int = 0, num_outputs: int | None = None, outputs: int = 1) -> Any:
    at = axis_of(axis, x.ndim)
    if split is None:
        count = num_outputs or outputs
        size = -(-x.shape[at] // count)
        sizes = [max(min(size, x.shape[at] - n * size), 0) for n in range(count)]
    else:
        sizes = ints(split)
    return tuple(x.split(sizes, at))


def Slice(x: Tensor, starts: Any, ends: Any, axes: Any = None, steps: Any = None) -> Tensor:
    begins, stops = ints(starts), ints(ends)
    over = list(range(len(begins))) if axes is None else [axis_of(a, x.ndim) for a in ints(axes)]
    by = [1] * len(begins) if steps is None else ints(steps)
    index = [slice(None)] * x.ndim
    for a, begin, stop, step in zip(over, begins, stops, by):
        first, last, stride = slice(begin, stop, step).indices(x.shape[a])
        index[a] = slice(first, None if last < 0 else last, stride)
    return x[tuple(index)]


def Gather(x: Any, indices: Tensor, axis: int = 0) -> Any:
    at = axis_of(axis, x.ndim)
    if not isinstance(x, Tensor):
        return np.take(x, known(indices), axis=at)
    return x[(slice(None),) * at + (_positive(indices, x.shape[at]),)]


def _positive(indices: Tensor, size: int) -> Tensor:
    return (indices < 0).where(indices + size, indices)


def GatherElements(x: Tensor, indices: Tensor, axis: int = 0) -> Tensor:
    at = axis_of(axis, x.ndim)
    return x.gather(at, _positive(indices, x.shape[at]))


def _places(x: Tensor, indices: Tensor, batch: int) -> tuple[Tensor, int]:
    """Return the flat index that each coordinate row means in the axes of ``x`` from ``batch`` on, and their size."""
    depth = indices.shape[-1]
    sizes = x.shape[batch : batch + depth]
    flat = Tensor.zeros(*indices.shape[:-1], dtype=dtypes.int64)
    for n, size in enumerate(sizes):
        flat = flat * size + _positive(indices[..., n], size)
    return flat, math.prod(sizes)


def GatherND(x: Tensor, indices: Tensor, batch_dims: int = 0) -> Tensor:
    depth, batches = indices.shape[-1], x.shape[:batch_dims]
    at, count = _places(x, indices, batch_dims)
    rest, lead = x.shape[batch_dims + depth :], math.prod(batches)
    rows = x.reshape(lead * count, *rest)
    at = at.reshape(lead, -1) + Tensor.arange(lead).reshape(-1, 1) * count
    return rows[at.reshape(-1)].reshape(*indices.shape[:-1], *rest)


def ScatterND(x: Tensor, indices: Tensor, updates: Tensor, reduction: str = "none") -> Tensor:
    at, count = _places(x, indices, 0)
    rest = x.shape[indices.shape[-1] :]
    width = math.prod(rest)
    index = at.reshape(-1, 1).expand(at.numel(), width)
    rows = _scattered(x.reshape(count, width), 0, index, updates.reshape(-1, width), reduction)
    return rows.reshape(x.shape)


def _scattered(x: Tensor, axis: int, index: Tensor, updates: Tensor, reduction: str) -> Tensor:
    how = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}.get(reduction)
    return x.scatter(axis, index, updates) if how is None else x.scatter_reduce(axis, index, updates, how)


def ScatterElements(x: Tensor, indices: Tensor, updates: Tensor, axis: int = 0, reduction: str = "none") -> Tensor:
    at = axis_of(axis, x.ndim)
    return _scattered(x, at, _positive(indices, x.shape[at]), updates, reduction)

Scatter = ScatterElements


def Expand(x: Tensor, shape: Any) -> Tensor:
    wanted = ints(shape)
    if any(n < 0 for n in wanted):
        raise ShapeError("Expand", f"shape {tuple(wanted)} has a negative size", "sizes of at least 0")
    own = (1,) * (len(wanted) - x.ndim) + tuple(x.shape)
    wanted = [1] * (len(own) - len(wanted)) + wanted
    return x.reshape(own).expand(tuple(w if s == 1 else s for s, w in zip(own, wanted)))


def Tile(x: Tensor, repeats: Any) -> Tensor:
    return x.repeat(*ints(repeats))


def Pad(x: Tensor, pads: Any, constant_value: Any = None, axes: Any = None, mode: str = "constant",
        value: float = 0.0) -> Tensor:
    given = ints(pads)
    half = len(given) // 2
    over = list(range(x.ndim)) if axes is None else [axis_of(a, x.ndim) for a in ints(axes)]
    amounts = [(0, 0)] * x.ndim
    for n, a in enumerate(over):
        amounts[a] = (given[n], given[half + n])
    fill = value if constant_value is None else number(constant_value)
    if mode == "constant":
        cut = x.shrink(tuple((max(-b, 0), s - max(-e, 0)) for (b, e), s in zip(amounts, x.shape)))
        return cut.pad([(max(b, 0), max(e, 0)) for b, e in amounts], value=fill)
    for n, (before, after) in enumerate(amounts):
        x = x[(slice(None),) * n + (constant(_reflected(x.shape[n], before, after, mode)),)] if before or after else x
    return x


def _reflected(size: int, before: int, after: int, mode: str) -> Any:
    """Return the source index of each element of a padded axis."""
    at = np.arange(-before, size + after)
    if mode == "edge":
        return np.clip(at, 0, size - 1)
    if mode == "wrap":
        return at % size
    period = max(2 * (size - 1), 1)
    folded = np.abs(at) % period
    return np.minimum(folded, period - folded) if size > 1 else folded * 0


def ConstantOfShape(shape: Any, value: Any = None) -> Tensor:
    fill = Tensor(0.0) if value is None else value
    return Tensor.full(tuple(ints(shape)), number(fill), dtype=fill.dtype)


def Constant(value: Any = None, value_int: Any = None, value_ints: Any = None, value_float: Any = None,
             value_floats: Any = None, value_string: Any = None, value_strings: Any = None,
             sparse_value: Any = None) -> Any:
    if value is not None:
        return value
    for given, dtype in ((value_int, np.int64), (value_ints, np.int64), (value_float, np.float32),
                         (value_floats, np.float32)):
        if given is not None:
            return constant(np.asarray(given, dtype))
    return np.asarray(value_string if value_strings is None else value_strings, object)


def Range(start: Any, limit: Any, delta: Any) -> Tensor:
    array = np.arange(number(start), number(limit), number(delta))
    return constant(array.astype(start.dtype.numpy))


def OneHot(indices: Tensor, depth: Any, values: Tensor, axis: int = -1) -> Tensor:
    size = int(number(depth))
    at = axis_of(axis, indices.ndim + 1)
    places = Tensor.arange(size).reshape(*[-1 if n == at else 1 for n in range(indices.ndim + 1)])
    index = indices.cast(dtypes.int64)
    hit = places.eq(_positive(index, size).unsqueeze(at))
    return hit.where(values[1], values[0])


def EyeLike(x: Tensor, dtype: int | None = None, k: int = 0) -> Tensor:
    rows, columns = x.shape
    hit = (Tensor.arange(rows).reshape(-1, 1) + k).eq(Tensor.arange(columns))
    return hit.cast(x.dtype if dtype is None else DTYPES[dtype])


def Trilu(x: Tensor, k: Any = None, upper: int = 1) -> Tensor:
    diagonal = 0 if k is None else int(number(k))
    rows, columns = x.shape[-2:]
    place = Tensor.arange(columns) - Tensor.arange(rows).reshape(-1, 1)
    return (place >= diagonal if upper else place <= diagonal).where(x, 0)


def Compress(x: Tensor, condition: Tensor, axis: int | None = None) -> Tensor:
    chosen = np.flatnonzero(known(condition))
    flat, at = (x.reshape(-1), 0) if axis is None else (x, axis_of(axis, x.ndim))
    return flat[(slice(None),) * at + (constant(chosen),)]


def ReverseSequence(x: Tensor, sequence_lens: Tensor, batch_axis: int = 1, time_axis: int = 0) -> Tensor:
    def along(axis: int, count: int) -> Tensor:
        return Tensor.arange(count).reshape(*[-1 if n == axis else 1 for n in range(x.ndim)])

    steps = along(time_axis, x.shape[time_axis])
    lengths = sequence_lens.reshape(*[-1 if n == batch_axis else 1 for n in range(x.ndim)])
    return x.gather(time_axis, (steps < lengths).where(lengths - 1 - steps, steps).expand(x.shape))


def DepthToSpace(x: Tensor, blocksize: int, mode: str = "DCR") -> Tensor:
    n, c, h, w = x.shape
    b = blocksize
    if mode == "DCR":
        parts = x.reshape(n, b, b, c // b**2, h, w).permute(0, 3, 4, 1, 5, 2)
    else:
        parts = x.reshape(n, c // b**2, b, b, h, w).permute(0, 1, 4, 2, 5, 3)
    return parts.reshape(n, c // b**2, h * b, w * b)


def SpaceToDepth(x: Tensor, blocksize: int, mode: str = "DCR") -> Tensor:
    n, c, h, w = x.shape
    b = blocksize
    parts = x.reshape(n, c, h // b, b, w // b, b)
    order = (0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4)
    return parts.permute(*order).reshape(n, c * b**2, h // b, w // b)


def Col2Im(x: Tensor, image_shape: Any, block_shape: Any, dilations: Any = None, pads: Any = None,
           strides: Any = None) -> Tensor:
    """Columns added up where their windows were: each place of a window is a strided, padded image."""
    image, block = ints(image_shape), ints(block_shape)
    rank = len(image)
    by, gap, edges = strides or [1] * rank, dilations or [1] * rank, pads or [0] * 2 * rank
    full = [s + edges[n] + edges[rank + n] for n, s in enumerate(image)]
    counts = [(f - g * (b - 1) - 1) // s + 1 for f, g, b, s in zip(full, gap, block, by)]
    parts = x.reshape(x.shape[0], -1, math.prod(block), *counts)
    out: Any = 0
    for n, place in enumerate(np.ndindex(*block)):
        part = parts[:, :, n]
        for axis in range(rank):
            part = _spread(part, 2 + axis, by[axis])
        start = [p * g for p, g in zip(place, gap)]
        amounts = [(a, f - a - part.shape[2 + k]) for k, (a, f) in enumerate(zip(start, full))]
        fits = tuple((0, min(part.shape[2 + k], f - a)) for k, (a, f) in enumerate(zip(start, full)))
        part = part.shrink(((0, part.shape[0]), (0, part.shape[1]), *fits))
        out = out + part.pad([(0, 0), (0, 0), *((b, max(e, 0)) for b, e in amounts)])
    keep = tuple((edges[n], edges[n] + s) for n, s in enumerate(image))
    found: Tensor = out.shrink(((0, out.shape[0]), (0, out.shape[1]), *keep))
    return found


def _spread(x: Tensor, axis: int, step: int) -> Tensor:
    """Elements with ``step - 1`` zeros between them."""
    if step == 1:
        return x
    shape = x.shape
    apart = x.unsqueeze(axis + 1).pad([(0, step - 1) if n == axis + 1 else (0, 0) for n in range(x.ndim + 1)])
    flat = apart.reshape(*shape[:axis], shape[axis] * step, *shape[axis + 1 :])
    return flat.shrink(tuple((0, s - step + 1 if n == axis else s) for n, s in enumerate(flat.shape)))


def TensorScatter(past: Tensor, update: Tensor, write_indices: Tensor | None = None, axis: int = -2,
                  mode: str = "linear") -> Tensor:
    """Return a cache with new entries from each batch's position on."""
    at = axis_of(axis, past.ndim)
    size, count = past.shape[at], update.shape[at]
    steps = Tensor.arange(count, dtype=dtypes.int64).reshape(*[-1 if n == at else 1 for n in range(past.ndim)])
    if write_indices is not None:
        steps = steps + write_indices.reshape(-1, *[1] * (past.ndim - 1))
    steps = steps % size if mode == "circular" else steps
    return past.scatter(at, steps.expand(update.shape), update)


def _axes(x: Tensor, axes: Any, noop: int) -> tuple[int, ...] | None:
    """Return the axes to reduce; None for none at all."""
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


def _reduce(name: str, x: Tensor, axes: Any = None, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Tensor:
    """Return the reduction by a method of ``REDUCTIONS``, in the operand's dtype."""
    over = _axes(x, axes, noop_with_empty_axes)
    if not over:
        return x
    empty = REDUCTIONS[name].empty
    if empty and _is_empty(x, over):
        least = {"least": x.dtype.min, "greatest": x.dtype.max, "-inf": -math.inf}
        return _filled(x, over, keepdims, least[empty])
    found: Tensor = getattr(x, name)(over, bool(keepdims))
    return found.cast(x.dtype)


# Operators that are a method: its name is in the table of methods.
REDUCERS: Final = {row.onnx: functools.partial(_reduce, name) for name, row in REDUCTIONS.items() if row.onnx}


def ReduceL1(x: Tensor, axes: Any = None, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Tensor:
    return _reduce("sum", x.abs(), axes, keepdims, noop_with_empty_axes)


def ReduceSumSquare(x: Tensor, axes: Any = None, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Tensor:
    return _reduce("sum", x * x, axes, keepdims, noop_with_empty_axes)


def ReduceL2(x: Tensor, axes: Any = None, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Tensor:
    wide, dtype = to_float_and_back(x)
    return ReduceSumSquare(wide, axes, keepdims, noop_with_empty_axes).sqrt().cast(dtype)


def ReduceLogSum(x: Tensor, axes: Any = None, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Tensor:
    return _reduce("sum", x, axes, keepdims, noop_with_empty_axes).log().cast(x.dtype)


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
