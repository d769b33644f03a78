"""Rules for convolutions, pooling, norms, resampling and matrix products."""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from tinsmith.codegen.lower.indexing import flatten, place_in
from tinsmith.core.dtypes import DType, dtypes
from tinsmith.ir import UOp
from tinsmith.ir.algebra.sizes import linear_form
from tinsmith.ir.structure import Role
from tinsmith.tensor.helpers import product
from tinsmith.tensor.tensor import Tensor
from tinsmith.torch.rules.registry import Unsupported, rule


def _leaf(x: Tensor) -> Tensor:
    """Return ``x`` as a value that gradients are taken with respect to."""
    return x.detach().requires_grad_(True)


def _gradients(result: Tensor, grad: Tensor, *targets: Tensor) -> list[Tensor]:
    return result.gradient(*targets, gradient=grad.cast(result.dtype))


# *** convolutions ***
def _conv(x: Tensor, weight: Tensor, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int],
          transposed: bool, output_padding: Sequence[int], groups: int) -> Tensor:
    n = weight.ndim - 2
    stride, padding, dilation = (tuple(v) * (n if len(v) == 1 else 1) for v in (stride, padding, dilation))
    if transposed:
        output_padding = tuple(output_padding) * (n if len(output_padding) == 1 else 1)
        return x.conv_transpose2d(weight, None, groups, stride, dilation, padding, output_padding)
    return x.conv2d(weight, None, groups, stride, dilation, padding)


@rule("convolution")
def _convolution(x: Tensor, weight: Tensor, bias: Tensor | None, stride: Sequence[int], padding: Sequence[int],
                 dilation: Sequence[int], transposed: bool, output_padding: Sequence[int], groups: int) -> Tensor:
    plain = x.ndim == weight.ndim
    y = _conv(x if plain else x.unsqueeze(0), weight, stride, padding, dilation, transposed, output_padding, groups)
    if bias is not None:
        y = y + bias.reshape((1, -1) + (1,) * (weight.ndim - 2))
    return y if plain else y.squeeze(0)


@rule("convolution_backward")
def _convolution_backward(grad: Tensor, x: Tensor, weight: Tensor, bias_sizes: Any, stride: Sequence[int],
                          padding: Sequence[int], dilation: Sequence[int], transposed: bool,
                          output_padding: Sequence[int], groups: int, mask: Sequence[bool]) -> tuple[Any, ...]:
    if x.ndim != weight.ndim:
        raise Unsupported("a convolution without a batch")
    x, weight = _leaf(x), _leaf(weight)
    y = _conv(x, weight, stride, padding, dilation, transposed, output_padding, groups)
    wanted = [t for t, yes in zip((x, weight), mask) if yes]
    found = iter(_gradients(y, grad, *wanted) if wanted else [])
    first = next(found) if mask[0] else None
    second = next(found) if mask[1] else None
    third = None
    if mask[2]:
        wide = grad.cast(dtypes.float32) if grad.dtype.itemsize < 4 else grad
        third = wide.sum((0, *range(2, grad.ndim))).cast(grad.dtype)
    return first, second, third


# *** pooling ***
# cycles of a core to ask one window if an element is its maximum, in vectors; to add one gradient to an element at an
# index; to fill an element with zero before; to round it to 16 bits behind (Zen 4)
PER_QUESTION: Final = 0.45
PER_GRADIENT: Final = 2.5
PER_ZERO: Final = 0.4
PER_ROUNDED: Final = 0.4
VECTOR: Final = 8  # int64 indices per vector


def _each(values: Sequence[int], n: int) -> tuple[int, ...]:
    return tuple(values) * (n if len(values) == 1 else 1)


def _batched(x: Tensor, n: int) -> Tensor:
    return x if x.ndim == n + 2 else x.unsqueeze(0)


def _max_pool(x: Tensor, n: int, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int],
              dilation: Sequence[int], ceil_mode: bool, indices: bool) -> Any:
    return x.max_pool2d(_each(kernel, n), _each(stride or kernel, n), dilation=_each(dilation, n),
                        padding=_each(padding, n), ceil_mode=ceil_mode, return_indices=indices)


@rule("max_pool2d_with_indices")
def _max_pool2d(x: Tensor, kernel: Sequence[int], stride: Sequence[int] = (), padding: Sequence[int] = (0,),
                dilation: Sequence[int] = (1,), ceil_mode: bool = False) -> tuple[Tensor, Tensor]:
    y, at = _max_pool(_batched(x, 2), 2, kernel, stride, padding, dilation, ceil_mode, True)
    return (y, at) if x.ndim == 4 else (y.squeeze(0), at.squeeze(0))


@rule("max_pool3d_with_indices")
def _max_pool3d(x: Tensor, kernel: Sequence[int], stride: Sequence[int] = (), padding: Sequence[int] = (0,),
                dilation: Sequence[int] = (1,), ceil_mode: bool = False) -> tuple[Tensor, Tensor]:
    y, at = _max_pool(_batched(x, 3), 3, kernel, stride, padding, dilation, ceil_mode, True)
    return (y, at) if x.ndim == 5 else (y.squeeze(0), at.squeeze(0))


@rule("max_pool2d_with_indices_backward")
def _max_pool2d_backward(grad: Tensor, x: Tensor, kernel: Sequence[int], stride: Sequence[int],
                         padding: Sequence[int], dilation: Sequence[int], ceil_mode: bool, at: Tensor) -> Tensor:
    """Each window hands its gradient to the element that ``at`` names; the windows' gradients are added up.

    Each element asks the windows that can contain it. On a CPU, if these are many, the gradients are added to the
    elements one after the other instead. With sizes that vary, the gradients go through the view of windows; where
    these are dilated, the gradient of the maximum does the same, with more comparisons.
    """
    dtype = x.dtype
    if dtype.itemsize <= 2:  # added up in float32, rounded once
        grad, x = grad.cast(dtypes.float32), x.cast(dtypes.float32)
    found = _asked(grad, x, at, _each(kernel, 2), _each(stride or kernel, 2), _each(padding, 2), _each(dilation, 2),
                   dtype)
    if found is not None:
        return found
    if x.is_cpu:
        return _added_in_order(grad, x, at)
    inner, grad, at = _leaf(_batched(x, 2)), _batched(grad, 2), _batched(at, 2)
    if any(d != 1 for d in dilation):
        y = _max_pool(inner, 2, kernel, stride, padding, dilation, ceil_mode, False)
        return _gradients(y, grad, inner)[0].reshape(x.shape)
    size, steps, before = _each(kernel, 2), _each(stride or kernel, 2), _each(padding, 2)
    counts, lengths = grad.shape[2:], inner.shape[2:]
    after = [max((counts[n] - 1) * steps[n] + size[n] - before[n] - lengths[n], 0) for n in (0, 1)]
    windows = inner.pad((before[1], after[1], before[0], after[0]))
    windows = windows.shrink([(0, s) for s in windows.shape[:2]] + [
        (0, (counts[n] - 1) * steps[n] + size[n]) for n in (0, 1)])
    windows = windows.unfold(2, size[0], steps[0]).unfold(3, size[1], steps[1])
    row, column = (Tensor.arange(counts[n], dtype=dtypes.int32, device=x.device).reshape(-1, 1) * steps[n] - before[n]
                   + Tensor.arange(size[n], dtype=dtypes.int32, device=x.device) for n in (0, 1))
    place = row.reshape(counts[0], 1, size[0], 1) * lengths[1] + column.reshape(1, counts[1], 1, size[1])
    chosen = at.cast(dtypes.int32).reshape(*at.shape, 1, 1) == place
    each = chosen.where(grad.reshape(*grad.shape, 1, 1), 0)
    return _gradients(windows, each, inner)[0].reshape(x.shape)


def _added_in_order(grad: Tensor, x: Tensor, at: Tensor) -> Tensor:
    """Return the gradients of maxima, added to the elements one after the other in the order of memory."""
    last = all(isinstance(n, int) for n in at.shape) and _inner_axis(at) == at.ndim - 3
    x, grad, at = (t.movedim(-3, -1) if last else t for t in (x, grad, at.cast(dtypes.uint32)))
    axes = (-3, -2) if last else (-2, -1)
    found = x.flatten(*axes).zeros_like().scatter_add(axes[0] + 1, at.flatten(*axes), grad.flatten(*axes))
    return found.reshape(x.shape).movedim(-1, -3) if last else found.reshape(x.shape)


def _asked(grad: Tensor, x: Tensor, at: Tensor, size: Sequence[int], steps: Sequence[int], before: Sequence[int],
           spread: Sequence[int], dtype: DType) -> Tensor | None:
    """Return the gradient of maxima as sums over the windows that can contain each element.

    None if sizes vary, or if it takes a CPU less time to add up the gradients.
    """
    inner, grad, at = _batched(x, 2), _batched(grad, 2), _batched(at, 2)
    if not all(isinstance(n, int) for n in (*inner.shape, *grad.shape)):
        return None
    near = _Windows.around(inner.shape[2:], size, steps, before, spread)
    if x.is_cpu and not _few_windows(at, inner.shape, near.counts, steps, dtype):
        return None
    row, column = (Tensor.arange(n * s, dtype=dtypes.int32, device=x.device).reshape(n, s, 1, 1)
                   for n, s in zip(near.tiles, steps))
    own = row.reshape(*row.shape[:2], 1, 1, 1, 1) * inner.shape[3] + column
    total = (near.of(at.cast(dtypes.int32)) == own).where(near.of(grad), 0).sum((6, 7)).cast(dtype)
    return near.elements(total, inner.shape).reshape(x.shape)


class _Windows(NamedTuple):
    """The windows that can contain an element, on two axes. The elements are tiles of as many as the windows move by;
    those of tile t see the windows t + ``first`` to t + ``first`` + ``counts`` - 1."""

    first: Sequence[int]
    counts: Sequence[int]
    tiles: Sequence[int]

    @staticmethod
    def around(lengths: Sequence[int], size: Sequence[int], steps: Sequence[int], before: Sequence[int],
               spread: Sequence[int]) -> _Windows:
        first = [-((d * (k - 1) - p) // s) for k, s, p, d in zip(size, steps, before, spread)]
        counts = [(s - 1 + p) // s - a + 1 for s, p, a in zip(steps, before, first)]
        return _Windows(first, counts, [-(-n // s) for n, s in zip(lengths, steps)])

    def of(self, values: Tensor) -> Tensor:
        """Return a value per window as one per tile and window around it: N, C, rows, 1, columns, 1, and windows."""
        for a, (first, count, tiles) in enumerate(zip(*self)):
            values = _between(values, 2 + a, first, tiles + first + count - 1).unfold(2 + a, count, 1)
        return values.reshape(*values.shape[:2], self.tiles[0], 1, self.tiles[1], 1, *self.counts)

    def elements(self, values: Tensor, shape: Sequence[int]) -> Tensor:
        """Return the elements of a tensor of size ``shape``, given their values by tile and offset in the tile."""
        found = values.reshape(*shape[:2], *(values.shape[a] * values.shape[a + 1] for a in (2, 4)))
        return found.shrink([(0, n) for n in shape])


def _few_windows(at: Tensor, shape: Sequence[int], counts: Sequence[int], steps: Sequence[int], dtype: DType) -> bool:
    """Return True if it takes less time that each element asks all windows around it, ``counts`` per axis.

    Along an axis on which the windows move by several elements, pairs of vectors are stored interleaved.
    """
    lanes = _inner_axis(at)
    step = steps[lanes - 2] if lanes >= 2 else 1
    row, vector = shape[lanes] / step, VECTOR * min(step, 2)
    if step > 1 and (shape[lanes] % step or row < vector):  # stored one by one
        return False
    asked = product(counts) * math.ceil(row / vector) * vector / row
    added = PER_GRADIENT * product(at.shape) / product(shape) + PER_ZERO
    return bool(PER_QUESTION * asked <= added + (PER_ROUNDED if dtype.itemsize < 4 else 0))


def _inner_axis(x: Tensor) -> int:
    """Return the axis along which the elements of a tensor of fixed sizes are contiguous; the last one if none is."""
    ranges = [UOp.range(n, a, Role.LOOP) for a, n in enumerate(x.shape)]
    base, index = place_in(x.uop, tuple(ranges))
    address = linear_form(flatten(base.shape, index))[0]
    found = next((a for a, r in enumerate(ranges) if address.get(r) == 1), x.ndim)
    return found if max(x.shape[found + 1:], default=1) > 1 else x.ndim - 1


def _between(x: Tensor, axis: int, begin: int, end: int) -> Tensor:
    """Return the elements from ``begin`` to ``end`` on an axis; zeros beyond it."""
    length = x.shape[axis]
    low, high = min(max(begin, 0), length), min(max(end, 0), length)
    x = x.shrink([(low, high) if a == axis else (0, n) for a, n in enumerate(x.shape)])
    return x.pad([(low - begin, end - high) if a == axis else (0, 0) for a in range(x.ndim)])


def _avg_pool(x: Tensor, n: int, kernel: Sequence[int], stride: Sequence[int] = (), padding: Sequence[int] = (0,),
              ceil_mode: bool = False, count_include_pad: bool = True, divisor: int | None = None) -> Tensor:
    y = _batched(x, n).avg_pool2d(_each(kernel, n), _each(stride or kernel, n), padding=_each(padding, n),
                                  ceil_mode=ceil_mode, count_include_pad=count_include_pad, divisor_override=divisor)
    return y if x.ndim == n + 2 else y.squeeze(0)


@rule("avg_pool1d")
def _avg_pool1d(x: Tensor, *args: Any) -> Tensor:
    return _avg_pool(x, 1, *args)


@rule("avg_pool2d")
def _avg_pool2d(x: Tensor, *args: Any) -> Tensor:
    return _avg_pool(x, 2, *args)


@rule("avg_pool3d")
def _avg_pool3d(x: Tensor, *args: Any) -> Tensor:
    return _avg_pool(x, 3, *args)


@rule("avg_pool2d_backward")
def _avg_pool2d_backward(grad: Tensor, x: Tensor, kernel: Sequence[int], stride: Sequence[int] = (),
                         padding: Sequence[int] = (0,), ceil_mode: bool = False, count_include_pad: bool = True,
                         divisor: int | None = None) -> Tensor:
    """On a CPU, elements sum up the windows around them if these overlap and move by several elements. Their gradients
    would be added to memory at that stride."""
    size, steps, before = _each(kernel, 2), _each(stride or kernel, 2), _each(padding, 2)
    fixed = all(isinstance(n, int) for n in (*x.shape, *grad.shape))
    if x.is_cpu and fixed and max(steps) > 1 and any(k > s for k, s in zip(size, steps)):
        wide = _batched(grad.cast(dtypes.float32) if grad.dtype.itemsize < 4 else grad, 2)
        shares = wide / (_window_sizes(wide, x, size, steps, before, count_include_pad) if divisor is None else divisor)
        return _from_window_shares(shares, _batched(x, 2), size, steps, before).cast(x.dtype).reshape(x.shape)
    inner = _leaf(x)
    y = _avg_pool(inner, 2, kernel, stride, padding, ceil_mode, count_include_pad, divisor)
    return _gradients(y, grad, inner)[0]


def _window_sizes(grad: Tensor, x: Tensor, size: Sequence[int], steps: Sequence[int], before: Sequence[int],
                  padded: bool) -> Tensor:
    """Return the number of elements of each window, with or without those of the padding."""
    sides = []
    for n, k, s, p, length in zip(grad.shape[2:], size, steps, before, x.shape[-2:]):
        begin = Tensor.arange(n, dtype=dtypes.int32, device=x.device) * s - p
        end = (begin + k).minimum(length + p)
        sides.append(end - begin if padded else end.minimum(length) - begin.maximum(0))
    return (sides[0].reshape(-1, 1) * sides[1]).cast(grad.dtype)


def _from_window_shares(shares: Tensor, x: Tensor, size: Sequence[int], steps: Sequence[int],
                        before: Sequence[int]) -> Tensor:
    """Return the sums of the values of the windows that contain each element of ``x``."""
    near, inside = _Windows.around(x.shape[2:], size, steps, before, (1, 1)), []
    for first, count, k, s, p in zip(near.first, near.counts, size, steps, before):
        offset = Tensor.arange(s, dtype=dtypes.int32, device=x.device).reshape(-1, 1)
        begin = Tensor.arange(count, dtype=dtypes.int32, device=x.device) * s + (first * s - p)
        inside.append((begin <= offset) & (offset < begin + k))
    rows, columns = inside
    both = rows.reshape(steps[0], 1, 1, near.counts[0], 1) & columns.reshape(steps[1], 1, near.counts[1])
    return near.elements(both.where(near.of(shares), 0).sum((6, 7)), x.shape)


@rule("avg_pool3d_backward")
def _avg_pool3d_backward(grad: Tensor, x: Tensor, *args: Any) -> Tensor:
    inner = _leaf(x)
    return _gradients(_avg_pool(inner, 3, *args), grad, inner)[0]


def _adaptive(x: Tensor, n: int, size: Sequence[int]) -> Tensor:
    """Mean over windows that divide each axis into ``size`` parts; products with averaging matrices if sizes vary."""
    axes = [x.ndim - n + k for k in range(n)]
    for axis, parts in zip(axes, size):
        length = x.shape[axis]
        if length % parts == 0:
            split = (*x.shape[:axis], parts, length // parts, *x.shape[axis + 1:])
            x = x.reshape(split).mean(axis + 1)
            continue
        rows = Tensor.arange(parts, device=x.device).reshape(-1, 1)
        columns = Tensor.arange(length, device=x.device).reshape(1, -1)
        first, last = rows * length // parts, ((rows + 1) * length + parts - 1) // parts
        inside = (columns >= first) & (columns < last)
        weights = inside.cast(x.dtype) / (last - first).cast(x.dtype)
        x = x.transpose(axis, -1).matmul(weights.transpose(0, 1)).transpose(axis, -1)
    return x


@rule("_adaptive_avg_pool2d")
def _adaptive_avg_pool2d(x: Tensor, size: Sequence[int]) -> Tensor:
    return _adaptive(x, 2, size)


@rule("_adaptive_avg_pool3d")
def _adaptive_avg_pool3d(x: Tensor, size: Sequence[int]) -> Tensor:
    return _adaptive(x, 3, size)


@rule("_adaptive_avg_pool2d_backward")
def _adaptive_avg_pool2d_backward(grad: Tensor, x: Tensor) -> Tensor:
    inner = _leaf(x)
    return _gradients(_adaptive(inner, 2, grad.shape[-2:]), grad, inner)[0]


# *** norms ***
def _wide(x: Tensor) -> Tensor:
    return x.cast(dtypes.float32) if x.dtype in (dtypes.float16, dtypes.bfloat16) else x


def _along(x: Tensor, values: Tensor | None) -> Any:
    """Return a value per channel in the rank of ``x``."""
    return None if values is None else _wide(values).reshape((1, -1) + (1,) * (x.ndim - 2))


def _normalized(x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    y = (x - mean) * rstd
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


@rule("_native_batch_norm_legit_no_training", meta=True)
def _batch_norm_inference(x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, var: Tensor,
                          momentum: float, eps: float, meta: Any) -> tuple[Tensor, ...]:
    """The statistics among the results are empty on the CPU."""
    wide = _wide(x)
    rstd = (_along(x, var) + eps).rsqrt()
    y = _normalized(wide, _along(x, mean), rstd, _along(x, weight), _along(x, bias))
    empty = Tensor.zeros(0, dtype=dtypes.float32, device=x.device)
    return y, *((mean, rstd.reshape(-1)) if meta[1].size else (empty, empty))


def _batch_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> tuple[Tensor, ...]:
    wide, axes = _wide(x), (0, *range(2, x.ndim))
    mean = wide.mean(axes, True)
    var = (wide - mean).square().mean(axes, True)
    rstd = (var + eps).rsqrt()
    y = _normalized(wide, mean, rstd, _along(x, weight), _along(x, bias))
    return y, mean.reshape(-1), rstd.reshape(-1), var.reshape(-1)


@rule("_native_batch_norm_legit_functional", meta=True)
def _batch_norm_training(x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, var: Tensor,
                         training: bool, momentum: float, eps: float, meta: Any) -> tuple[Tensor, ...]:
    if not training:
        return (*_batch_norm_inference(x, weight, bias, mean, var, momentum, eps, meta), mean, var)
    y, batch_mean, rstd, batch_var = _batch_norm(x, weight, bias, eps)
    count = x.numel() // x.shape[1]
    unbiased = batch_var * count / max(count - 1, 1)
    new_mean = batch_mean * momentum + _wide(mean) * (1 - momentum)
    return y, batch_mean, rstd, new_mean, unbiased * momentum + _wide(var) * (1 - momentum)


@rule("_native_batch_norm_legit.no_stats")
def _batch_norm_no_stats(x: Tensor, weight: Tensor | None, bias: Tensor | None, training: bool, momentum: float,
                         eps: float) -> tuple[Tensor, ...]:
    return _batch_norm(x, weight, bias, eps)[:3]


@rule("native_batch_norm_backward")
def _batch_norm_backward(grad: Tensor, x: Tensor, weight: Tensor | None, mean: Tensor | None, var: Tensor | None,
                         save_mean: Tensor | None, save_rstd: Tensor | None, train: bool, eps: float,
                         mask: Sequence[bool]) -> tuple[Any, ...]:
    wide, g, axes = _wide(x), _wide(grad), (0, *range(2, x.ndim))
    if train:
        center, rstd = _along(x, save_mean), _along(x, save_rstd)
    else:
        assert var is not None
        center, rstd = _along(x, mean), (_along(x, var) + eps).rsqrt()
    normal = (wide - center) * rstd
    sum_grad, sum_product = g.sum(axes, True), (g * normal).sum(axes, True)
    factor = rstd if weight is None else rstd * _along(x, weight)
    count = x.numel() // x.shape[1]
    inner = (g - sum_grad / count - normal * (sum_product / count)) if train else g
    return (inner * factor if mask[0] else None, sum_product.reshape(-1) if mask[1] else None,
            sum_grad.reshape(-1) if mask[2] else None)


@rule("native_layer_norm")
def _layer_norm(x: Tensor, shape: Sequence[int], weight: Tensor | None, bias: Tensor | None,
                eps: float) -> tuple[Tensor, ...]:
    wide, axes = _wide(x), tuple(range(x.ndim - len(shape), x.ndim))
    mean = wide.mean(axes, True)
    rstd = ((wide - mean).square().mean(axes, True) + eps).rsqrt()
    y = _normalized(wide, mean, rstd, None if weight is None else _wide(weight), None if bias is None else _wide(bias))
    return y, mean, rstd


@rule("native_layer_norm_backward")
def _layer_norm_backward(grad: Tensor, x: Tensor, shape: Sequence[int], mean: Tensor, rstd: Tensor,
                         weight: Tensor | None, bias: Tensor | None, mask: Sequence[bool]) -> tuple[Any, ...]:
    wide, g = _wide(x), _wide(grad)
    outer, axes = tuple(range(x.ndim - len(shape))), tuple(range(x.ndim - len(shape), x.ndim))
    normal = (wide - _wide(mean)) * _wide(rstd)
    inner = g if weight is None else g * _wide(weight)
    first = _wide(rstd) * (inner - inner.mean(axes, True) - normal * (inner * normal).mean(axes, True))
    second = (g * normal).sum(outer) if outer else g * normal
    third = g.sum(outer) if outer else g
    return first if mask[0] else None, second if mask[1] else None, third if mask[2] else None


@rule("native_group_norm")
def _group_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, n: int, c: int, hxw: int, groups: int,
                eps: float) -> tuple[Tensor, ...]:
    parts = _wide(x).reshape(n, groups, c // groups, *x.shape[2:])
    row = tuple(range(2, parts.ndim))
    mean = parts.mean(row, True)
    rstd = ((parts - mean).square().mean(row, True) + eps).rsqrt()
    y = ((parts - mean) * rstd).reshape(x.shape)
    y = y if weight is None else y * _along(x, weight)
    return y if bias is None else y + _along(x, bias), mean.reshape(n, groups), rstd.reshape(n, groups)


@rule("native_group_norm_backward")
def _group_norm_backward(grad: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor | None, n: int, c: int,
                         hxw: int, groups: int, mask: Sequence[bool]) -> tuple[Any, ...]:
    shape = (n, groups, c // groups, *x.shape[2:])
    row, one = tuple(range(2, len(shape))), (n, groups, *[1] * (len(shape) - 2))
    wide, g = _wide(x).reshape(shape), _wide(grad)
    normal = (wide - _wide(mean).reshape(one)) * _wide(rstd).reshape(one)
    inner = (g if weight is None else g * _along(x, weight)).reshape(shape)
    first = inner - inner.mean(row, True) - normal * (inner * normal).mean(row, True)
    first = first * _wide(rstd).reshape(one)
    per_channel = (0, *range(2, x.ndim))
    return (first.reshape(x.shape) if mask[0] else None,
            (g * normal.reshape(x.shape)).sum(per_channel) if mask[1] else None,
            g.sum(per_channel) if mask[2] else None)


# *** resampling ***
@rule("upsample_nearest2d", "upsample_nearest2d.vec", meta=True)
def _nearest(x: Tensor, *scales: Any, meta: Any) -> Tensor:
    rows, columns = meta.shape[-2:]
    if rows % x.shape[2] or columns % x.shape[3]:
        if any(s is not None for s in scales[1:]):
            raise Unsupported("nearest neighbours by a factor that gives no whole sizes")
        return x.interpolate((rows, columns), "nearest")
    a, b = rows // x.shape[2], columns // x.shape[3]
    n, c, h, w = x.shape
    return x.reshape(n, c, h, 1, w, 1).expand(n, c, h, a, w, b).reshape(n, c, rows, columns)


@rule("upsample_nearest2d_backward")
def _nearest_backward(grad: Tensor, output_size: Sequence[int], input_size: Sequence[int], *_: Any) -> Tensor:
    n, c, h, w = input_size
    rows, columns = output_size
    if rows % h or columns % w:
        raise Unsupported("nearest neighbours of a size that is no multiple")
    return grad.reshape(n, c, h, rows // h, w, columns // w).sum((3, 5))


@rule("upsample_bilinear2d", "upsample_bilinear2d.vec", meta=True)
def _bilinear(x: Tensor, size: Any, align_corners: bool, *scales: Any, meta: Any) -> Tensor:
    given = [s for s in scales if s is not None]
    given = list(given[0]) if len(given) == 1 and not isinstance(given[0], float) else given
    exact = not given or all(o == s * f for o, s, f in zip(meta.shape[-2:], x.shape[-2:], given))
    if not exact and not align_corners:
        raise Unsupported("bilinear resampling by a factor that does not give whole sizes")
    return x.interpolate(tuple(meta.shape[-2:]), "linear", align_corners)


@rule("mm", "bmm", "mv", "dot", "vdot", "matmul")
def _product(x: Tensor, y: Tensor) -> Tensor:
    return x.matmul(y)


@rule("addmm", "baddbmm", "addmv")
def _add_product(bias: Tensor, x: Tensor, y: Tensor, beta: Any = 1, alpha: Any = 1) -> Tensor:
    if x.dtype.is_float:
        product = x.matmul(y, dtype=dtypes.float32) if x.dtype.itemsize == 2 else x.matmul(y)
    else:
        product, beta, alpha = x.matmul(y), int(beta), int(alpha)  # PyTorch cuts off their fractions
    product = product if alpha == 1 else product * alpha
    return product if beta == 0 else product + (bias if beta == 1 else bias * beta)


@rule("_cdist_forward")
def _distances(x: Tensor, y: Tensor, p: float, mode: int | None = None) -> Tensor:
    return x.cdist(y, p)


@rule("linear")
def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    product = x.matmul(weight.transpose(-1, -2))
    return product if bias is None else product + bias
