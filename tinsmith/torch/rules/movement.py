"""Rules for views and movement: reshaping, permuting, slicing, padding, joining."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tinsmith.tensor.tensor import Tensor
from tinsmith.torch.rules.registry import Unsupported, rule


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
