"""Rules for views, movement (reshaping, permuting, slicing, padding, joining), and reads and writes by index."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tinsmith.core.dtypes import dtypes
from tinsmith.tensor.tensor import Tensor
from tinsmith.torch.layouts import Meta, flattened, is_dense, is_readable, span, strided, unflattened
from tinsmith.torch.rules.registry import Unsupported, rule

Indices = Sequence[Tensor | None]


def _key(x: Tensor, indices: Indices) -> tuple[Any, ...]:
    """Return the subscript of an advanced index; bool masks have sizes that depend on data.

    Raises:
        Unsupported: for a mask.
    """
    if any(i is not None and i.dtype in (dtypes.bool, dtypes.uint8) for i in indices):
        raise Unsupported("an index that is a mask")
    return tuple(slice(None) if i is None else i for i in indices)


@rule("index.Tensor", "_unsafe_index.Tensor")
def _index(x: Tensor, indices: Indices) -> Tensor:
    return x[_key(x, indices)]


@rule("index_put", "_unsafe_index_put", meta=True)
def _index_put(x: Tensor, indices: Indices, values: Tensor, accumulate: bool = False, *, meta: Any) -> Tensor:
    if len(indices) == 1 and indices[0] is not None and indices[0].dtype is dtypes.bool and not accumulate:
        mask = indices[0]
        if values.ndim == 0 or values.numel() == 1:
            wide = mask.reshape(mask.shape + (1,) * (x.ndim - mask.ndim))
            return wide.where(values.cast(x.dtype).reshape(()), x)
    _key(x, indices)
    order = [n for n, i in enumerate(indices) if i is not None]
    if order != list(range(order[0], order[-1] + 1)):
        raise Unsupported("indices with gaps between them")
    rest = [n for n in range(x.ndim) if n not in order]
    moved = x.permute(*order, *rest)
    found = [i for i in indices if i is not None]
    shape = Tensor.broadcast_tensors(*found)[0].shape
    whole = (*x.shape[:order[0]], *shape, *x.shape[order[-1] + 1:])
    values = values.cast(x.dtype).expand(whole)
    front = order[0]
    if front and len(shape) == 1 and len(found) == 1 and not accumulate:
        return x.index_copy(front, found[0], values)  # along its axis, so that a cache can be written in place
    axes = [*range(front, front + len(shape)), *range(front), *range(front + len(shape), len(whole))]
    written = moved.index_put(tuple(found), values.permute(*axes), accumulate)
    back = [[*order, *rest].index(n) for n in range(x.ndim)]
    return written.permute(*back)


@rule("index_select")
def _index_select(x: Tensor, dim: int, index: Tensor) -> Tensor:
    if not x.ndim:
        return x
    return x.index_select(dim, index.reshape(-1))


@rule("embedding")
def _embedding(weight: Tensor, indices: Tensor, padding_idx: int = -1, scale: bool = False,
               sparse: bool = False) -> Tensor:
    return weight[indices]


@rule("embedding_dense_backward")
def _embedding_backward(grad: Tensor, indices: Tensor, count: int, padding_idx: int, scale: bool) -> Tensor:
    if scale:
        raise Unsupported("gradients scaled by frequency")
    width = grad.shape[-1]
    flat, rows = grad.reshape(-1, width), indices.reshape(-1)
    if padding_idx >= 0:
        flat = (rows != padding_idx).reshape(-1, 1).where(flat, 0)
    wide = dtypes.float32 if grad.dtype in (dtypes.float16, dtypes.bfloat16) else grad.dtype
    zeros = Tensor.zeros(count, width, dtype=wide, device=grad.device)
    return zeros.index_put((rows,), flat.cast(wide), True).cast(grad.dtype)

_MAXIMUM = 2  # the mode of an embedding bag, after the sum and the mean


@rule("_embedding_bag", "_embedding_bag_forward_only", meta=True)
def _embedding_bag(weight: Tensor, indices: Tensor, offsets: Tensor, scale: bool = False, mode: int = 0,
                   sparse: bool = False, per_sample: Tensor | None = None, last: bool = False,
                   padding_idx: int = -1, *, meta: Any) -> tuple[Tensor, ...]:
    """Sums or means of the table's rows, and, as PyTorch needs them: the bag of each row and the bags' sizes."""
    if mode == _MAXIMUM:
        raise Unsupported("the maximum of a bag")
    count = meta[0].shape[0]
    bag = _bags(indices, offsets[:count])
    rows = weight[indices].cast(_accumulator(weight))
    rows = rows if per_sample is None else rows * per_sample.cast(rows.dtype).unsqueeze(-1)
    kept = indices != padding_idx
    total = Tensor.zeros(*meta[0].shape, dtype=rows.dtype, device=weight.device).index_put(
        (bag,), kept.unsqueeze(-1).where(rows, 0), True)
    sizes = _bag_sizes(bag, kept, count)
    if mode:
        total = total / sizes.maximum(1).cast(total.dtype).unsqueeze(-1)
    else:
        sizes = sizes.zeros_like()
    # which of them have elements depends on the mode and the device
    return total, *(t if t.shape == m.shape else Tensor.zeros(*m.shape, dtype=t.dtype, device=t.device)
                    for t, m in zip((bag, sizes, sizes), meta[1:]))


@rule("_embedding_bag_backward")
def _embedding_bag_backward(grad: Tensor, indices: Tensor, offsets: Tensor, bag: Tensor, sizes: Tensor,
                            maximum: Tensor, count: int, scale: bool, mode: int, sparse: bool,
                            per_sample: Tensor | None, padding_idx: int = -1) -> Tensor:
    if mode == _MAXIMUM or scale or sparse:
        raise Unsupported("the maximum of a bag, gradients scaled by frequency, sparse gradients")
    bag = _bags(indices, offsets[: grad.shape[0]])
    wide = grad.cast(_accumulator(grad))
    kept = indices != padding_idx
    if mode:
        wide = wide / _bag_sizes(bag, kept, grad.shape[0]).maximum(1).cast(wide.dtype).unsqueeze(-1)
    rows = wide[bag]
    rows = rows if per_sample is None else rows * per_sample.cast(rows.dtype).unsqueeze(-1)
    zeros = Tensor.zeros(count, grad.shape[1], dtype=rows.dtype, device=grad.device)
    return zeros.index_put((indices,), kept.unsqueeze(-1).where(rows, 0), True)


def _bags(indices: Tensor, offsets: Tensor) -> Tensor:
    """Return the bag of each index: the last whose offset is not above its place."""
    places = Tensor.arange(indices.shape[0], dtype=offsets.dtype, device=indices.device)
    return offsets.searchsorted(places, right=True).cast(offsets.dtype) - 1


def _bag_sizes(bag: Tensor, kept: Tensor, count: int) -> Tensor:
    zeros = Tensor.zeros(count, dtype=bag.dtype, device=bag.device)
    return zeros.index_put((bag,), kept.cast(bag.dtype), True)


def _accumulator(x: Tensor) -> Any:
    return dtypes.float32 if x.dtype.itemsize < 4 else x.dtype


@rule("gather")
def _gather(x: Tensor, dim: int, index: Tensor, sparse_grad: bool = False) -> Tensor:
    return x.gather(dim, index) if x.ndim and index.ndim else x.reshape(-1).gather(
        0, index.reshape(-1)).reshape(index.shape)


def _one_each(x: Tensor, dim: int, index: Tensor) -> Tensor | None:
    """Return True for the element of each row of ``x`` that ``index`` names, if it names one: a comparison, which fuses
    with what is computed from the result; else None."""
    dim %= x.ndim
    if index.shape[dim] != 1 or any(a != b for n, (a, b) in enumerate(zip(x.shape, index.shape)) if n != dim):
        return None
    numbers = Tensor.arange(x.shape[dim], dtype=index.dtype, device=x.device)
    return numbers.reshape([-1 if n == dim else 1 for n in range(x.ndim)]) == index


@rule("scatter.src", "scatter.value")
def _scatter(x: Tensor, dim: int, index: Tensor, source: Any = None, *, value: Any = None) -> Tensor:
    source = value if source is None else source
    if not x.ndim or not index.ndim:
        raise Unsupported("scatter into a scalar")
    if (chosen := _one_each(x, dim, index)) is not None and (
            not isinstance(source, Tensor) or source.shape == index.shape):
        return chosen.where(source.cast(x.dtype) if isinstance(source, Tensor) else source, x)
    return x.scatter(dim, index, source.cast(x.dtype) if isinstance(source, Tensor) else source)


@rule("scatter_add")
def _scatter_add(x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    if not x.ndim or not index.ndim:
        raise Unsupported("scatter into a scalar")
    if (chosen := _one_each(x, dim, index)) is not None and source.shape == index.shape:
        return x + chosen.where(source.cast(x.dtype), 0)
    return x.scatter_add(dim, index, source.cast(x.dtype))


@rule("scatter_reduce.two")
def _scatter_reduce(x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str,
                    include_self: bool = True) -> Tensor:
    if not x.ndim or not index.ndim:
        raise Unsupported("scatter into a scalar")
    return x.scatter_reduce(dim, index, source.cast(x.dtype), reduce, include_self)


@rule("index_add")
def _index_add(x: Tensor, dim: int, index: Tensor, source: Tensor, alpha: Any = 1) -> Tensor:
    if not x.ndim:
        raise Unsupported("index_add into a scalar")
    return x.index_add(dim, index.reshape(-1), source, alpha=alpha)


@rule("bucketize.Tensor")
def _bucketize(x: Tensor, boundaries: Tensor, out_int32: bool = False, right: bool = False) -> Tensor:
    return x.bucketize(boundaries, right=right, out_int32=out_int32)


@rule("searchsorted.Tensor")
def _searchsorted(boundaries: Tensor, x: Tensor, out_int32: bool = False, right: bool = False,
                  side: str | None = None, sorter: Tensor | None = None) -> Tensor:
    return boundaries.searchsorted(x, right=right, side=side, sorter=sorter, out_int32=out_int32)


@rule("histc")
def _histc(x: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    single = x.dtype.is_float and x.dtype.itemsize <= dtypes.float32.itemsize
    return x.cast(dtypes.float32 if single else dtypes.float64).histc(bins, min, max).cast(x.dtype)


@rule("masked_scatter")
def _masked_scatter(x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    return x.masked_scatter(mask, source)


@rule("view", "_unsafe_view", "reshape", "_reshape_alias", meta=True)
def _view(x: Tensor, *_: Any, meta: Any) -> Tensor:
    return x.reshape(meta.shape)


@rule("expand", meta=True)
def _expand(x: Tensor, size: Sequence[int], implicit: bool = False, *, meta: Any) -> Tensor:
    return x.reshape((1,) * (len(meta.shape) - x.ndim) + x.shape).expand(meta.shape)


@rule("unsqueeze", "squeeze", "squeeze.dim", "squeeze.dims", meta=True)
def _squeeze(x: Tensor, *_: Any, meta: Any) -> Tensor:
    return x.reshape(meta.shape)


@rule("permute")
def _permute(x: Tensor, dims: Sequence[int]) -> Tensor:
    return x.permute(tuple(dims)) if dims else x


@rule("transpose.int")
def _transpose(x: Tensor, a: int, b: int) -> Tensor:
    return x.transpose(a, b) if x.ndim else x


@rule("t")
def _t(x: Tensor) -> Tensor:
    return x.transpose(0, 1) if x.ndim == 2 else x


@rule("select.int")
def _select(x: Tensor, dim: int, index: int) -> Tensor:
    return x.select(dim, index)


def _bounds(length: int, start: int | None, end: int | None) -> tuple[int, int]:
    low = 0 if start is None else min(max(start + length if start < 0 else start, 0), length)
    high = length if end is None else min(max(end + length if end < 0 else end, 0), length)
    return low, max(low, high)


@rule("slice.Tensor")
def _slice(x: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Tensor:
    dim %= x.ndim
    low, high = _bounds(x.shape[dim], start, end)
    return x[(slice(None),) * dim + (slice(low, high, step),)]


@rule("slice_scatter")
def _slice_scatter(x: Tensor, source: Tensor, dim: int = 0, start: int | None = None, end: int | None = None,
                   step: int = 1) -> Tensor:
    dim %= x.ndim
    low, high = _bounds(x.shape[dim], start, end)
    if low >= high:
        return x
    return x.slice_scatter(source.cast(x.dtype), dim, low, high, step)


@rule("select_scatter")
def _select_scatter(x: Tensor, source: Tensor, dim: int, index: int) -> Tensor:
    return x.select_scatter(source.cast(x.dtype), dim, index)


@rule("diagonal")
def _diagonal(x: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    return x.diagonal(offset, dim1, dim2)


@rule("diagonal_scatter")
def _diagonal_scatter(x: Tensor, source: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    return x.diagonal_scatter(source.cast(x.dtype), offset, dim1, dim2)


@rule("split.Tensor")
def _split(x: Tensor, size: int, dim: int = 0) -> tuple[Tensor, ...]:
    return x.split(size, dim)


@rule("split_with_sizes")
def _split_with_sizes(x: Tensor, sizes: Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
    return x.split(list(sizes), dim)


@rule("unbind.int")
def _unbind(x: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    return x.unbind(dim)


@rule("unfold")
def _unfold(x: Tensor, dim: int, size: int, step: int) -> Tensor:
    if not x.ndim:
        raise Unsupported("a window of a scalar")
    return x.unfold(dim, size, step)


@rule("flip")
def _flip(x: Tensor, dims: Sequence[int]) -> Tensor:
    return x.flip(tuple(dims)) if dims and x.ndim else x


@rule("roll")
def _roll(x: Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> Tensor:
    return x.roll(tuple(shifts), tuple(dims)) if dims else x.flatten().roll(shifts[0], 0).reshape(x.shape)


@rule("repeat")
def _repeat(x: Tensor, repeats: Sequence[int]) -> Tensor:
    return x.repeat(*repeats) if repeats else x


@rule("constant_pad_nd")
def _pad(x: Tensor, padding: Sequence[int], value: Any = 0) -> Tensor:
    """Pad the last axes; negative widths cut."""
    widths = [(padding[2 * n], padding[2 * n + 1]) for n in reversed(range(len(padding) // 2))]
    axes = range(x.ndim - len(widths), x.ndim)
    x = x.shrink([(0, s) for s in x.shape[:x.ndim - len(widths)]]
                 + [(max(-a, 0), x.shape[n] - max(-b, 0)) for n, (a, b) in zip(axes, widths)])
    positive = [max(w, 0) for w in padding]
    return x.pad(positive, value=float(value) if x.dtype.is_float else value) if any(positive) else x


@rule("reflection_pad1d", "reflection_pad2d", "reflection_pad3d")
def _reflect(x: Tensor, padding: Sequence[int]) -> Tensor:
    return x.pad(list(padding), mode="reflect")


@rule("replication_pad1d", "replication_pad2d", "replication_pad3d")
def _replicate(x: Tensor, padding: Sequence[int]) -> Tensor:
    return x.pad(list(padding), mode="replicate")


@rule("cat", meta=True)
def _cat(tensors: Sequence[Tensor], dim: int = 0, *, meta: Any) -> Tensor:
    parts = [t.cast(meta.dtype) for t in tensors if not (t.ndim == 1 and t.shape[0] == 0)]
    return parts[0] if len(parts) == 1 else Tensor.cat(*parts, dim=dim)


@rule("stack", meta=True)
def _stack(tensors: Sequence[Tensor], dim: int = 0, *, meta: Any) -> Tensor:
    return Tensor.stack(*(t.cast(meta.dtype) for t in tensors), dim=dim)


@rule("pixel_shuffle")
def _pixel_shuffle(x: Tensor, factor: int) -> Tensor:
    return x.pixel_shuffle(factor)


@rule("pixel_unshuffle")
def _pixel_unshuffle(x: Tensor, factor: int) -> Tensor:
    return x.pixel_unshuffle(factor)


@rule("tril")
def _tril(x: Tensor, diagonal: int = 0) -> Tensor:
    return x.tril(diagonal)


@rule("triu")
def _triu(x: Tensor, diagonal: int = 0) -> Tensor:
    return x.triu(diagonal)


# *** memory as a view ***
@rule("as_strided", layout=True, meta=True)
def _as_strided(x: Tensor, size: Sequence[int], stride: Sequence[int], offset: int | None = None, *,
                layout: Sequence[int] | None, meta: Meta) -> Tensor:
    """A view of the whole memory of ``x``, with rows that do not overlap."""
    if layout is None or not meta.size or not is_readable(Meta(tuple(size), tuple(stride), x.dtype)):
        raise Unsupported("a view of a part of the memory, or one whose elements overlap")
    first, room = offset or 0, span(size, stride)
    flat = flattened(x, layout)
    flat = flat.shrink([(first, min(first + room, flat.shape[0]))])
    return strided(flat.pad((0, room - flat.shape[0])), meta.shape, stride)


@rule("as_strided_scatter", layout=True)
def _as_strided_scatter(x: Tensor, source: Tensor, size: Sequence[int], stride: Sequence[int],
                        offset: int | None = None, *, layout: Sequence[int] | None) -> Tensor:
    """Memory that is written through a view of all of it."""
    if layout is None or offset or source.numel() != x.numel() or not is_dense(size, stride):
        raise Unsupported("a write to a part of the memory")
    return unflattened(flattened(source, stride), x.shape, layout)
