"""Neural-network operations: normalization, attention, convolution, pooling, losses, resampling.

Activations are elementwise functions: ``math/functions.py``. A loss selects the column of a class index by comparison
inside the row's kernel: no gather, no stored one-hot."""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Self, TypeVar

from tinsmith.core.dtypes import DType, dtypes, promote
from tinsmith.core.errors import ArgumentError, DTypeError, ShapeError
from tinsmith.ir import Ops, UOp
from tinsmith.ir.algebra.sizes import normal_size, value_of_size
from tinsmith.ir.uop import Window
from tinsmith.tensor.arguments import Scalar, choice, flag, integer, integers, number, shown
from tinsmith.tensor.autocast import contraction, in_float32, narrow_dtype
from tinsmith.tensor.autograd.backward import with_slopes
from tinsmith.tensor.create import random
from tinsmith.tensor.helpers import (
    axes_of,
    axis_and_size,
    equal,
    operand,
    product,
    rounded_once,
    same_device,
    same_sizes,
)
from tinsmith.tensor.host_data import check_indices
from tinsmith.tensor.linalg.linear_algebra import LinearAlgebra
from tinsmith.tensor.modes import Mode, note_mode
from tinsmith.tensor.nnops.activations import class_count, crossentropy_slopes, ramp_and_bend
from tinsmith.tensor.nnops.attention import is_narrow, weighted_mean
from tinsmith.tensor.nnops.resampling import (
    LINEAR,
    exact_ratio,
    resample_area,
    resample_linear,
    resample_nearest,
    wanted_sizes,
)
from tinsmith.tensor.nnops.windows import (
    Ints,
    accumulator_dtype,
    check_channels,
    finish,
    first_greatest,
    first_greatest_place,
    found_again,
    in_either_order,
    output_sizes,
    pad_pairs,
    padded,
    plane_index,
    pool_arguments,
    pool_windows,
    spatial_dims,
    unbatched,
    window_steps,
)
from tinsmith.tensor.reduce.reduce import accumulator

T = TypeVar("T", bound="Functional")
Axes = int | Sequence[int]


def _for_each_head(query: T, key: T, value: T, grouped: bool) -> tuple[T, T]:
    """Return key and value with as many heads as the query; if ``grouped``, adjacent query heads share one."""
    ours, theirs, last = (x.shape[-3] if x.ndim > 2 else 1 for x in (query, key, value))
    if equal(ours, theirs) and equal(ours, last):
        return key, value
    divides = equal(theirs, last) and isinstance(ours, int) and isinstance(theirs, int) and ours % theirs == 0
    if not (divides if grouped else 1 in (ours, theirs) and 1 in (ours, last)):
        raise ShapeError("scaled_dot_product_attention", f"{ours} heads of query {query.shape}, {theirs} of key "
                         f"{key.shape}, {last} of value {value.shape}", "enable_gqa=True" if divides else
                         "as many heads of all three, or with enable_gqa=True fewer of key and value that divide them")
    if not grouped:
        return key, value
    return key.repeat_interleave(ours // theirs, dim=-3), value.repeat_interleave(ours // theirs, dim=-3)


class Functional(LinearAlgebra):
    """Operations of neural networks: softmax, norms, convolution, pooling, attention, losses, resampling."""

    __slots__ = ()

    # *** normalization, attention, dropout ***

    @classmethod
    def train(cls, mode: bool = True) -> Mode:
        """Set training mode for a ``with`` block or a decorated function: dropout drops, batch norm uses its batch.

        >>> with Tensor.train():
        ...     Tensor.training
        True
        """
        return Mode("training", mode)

    @classmethod
    def test(cls) -> Mode:
        """Set evaluation mode for a ``with`` block or a decorated function: the opposite of ``train``.

        >>> with Tensor.train(), Tensor.test():
        ...     Tensor.training
        False
        """
        return cls.train(False)

    def sequential(self, layers: Sequence[Callable[[Self], Self]]) -> Self:
        """Apply layers one after the other.

        >>> Tensor([-1., 4.]).sequential([Tensor.relu, Tensor.sqrt]).tolist()
        [0.0, 2.0]
        """
        wrong = [v for v in layers if not callable(v)] if isinstance(layers, (tuple, list)) else [layers]
        if wrong:
            raise DTypeError("sequential", f"takes a list of layers, got {shown(wrong[0])}",
                             "a list of functions of a tensor")
        x = self
        for position, layer in enumerate(layers):  # noqa: B007  layer_names reads both variables
            x = layer(x)
        return x

    def _float(self) -> Self:
        """Cast integers and bools to the default float."""
        return self if self.dtype.is_float else self.cast(dtypes.default_float)

    def _statistics(self, axis: Axes) -> tuple[Self, Self, Self]:
        """Return (mean, x - mean, variance) along ``axis``, kept with size 1."""
        centred, variance, off = self._centred(axis)
        return self.detach().mean(axis=axis, keepdim=True) + off, centred, variance

    def _centred(self, axis: Axes) -> tuple[Self, Self, Self]:
        """Return (x - mean, variance, rounding error of the computed mean) along ``axis``, kept with size 1."""
        away, off = self._away(axis)
        return away - off, ((away * away).mean(axis=axis, keepdim=True) - off * off).maximum(0), off

    @in_float32
    def layernorm(self, axis: Axes = -1, eps: float = 1e-5) -> Self:
        """Normalize to mean 0 and variance 1 along ``axis``; statistics of 16-bit floats are computed in float32.

        >>> [round(v, 3) for v in Tensor([1., 2., 3.]).layernorm().tolist()]
        [-1.225, 0.0, 1.225]
        """
        x, axis, eps = self._float(), axes_of("layernorm", self, axis), number("layernorm", "eps", eps)
        wide = x.float() if x.dtype.itemsize <= 2 else x
        centred, variance, _ = wide._centred(axis)
        return (centred * (variance + eps).rsqrt()).cast(x.dtype)

    @in_float32
    def rms_norm(self, axis: Axes = -1, *args: Any, weight: Self | None = None,
                 eps: float | None = None) -> Self:
        """Divide by the root mean square along ``axis`` and multiply by ``weight``.

        ``rms_norm(x, axis, eps=1e-6)`` is tinygrad's form. PyTorch's is ``rms_norm(x, normalized_shape, weight, eps)``:
        if a weight is given, or ``axis`` can only be a shape, ``axis`` holds the sizes of the last axes, and
        ``eps`` defaults to the machine epsilon of the dtype.

        >>> Tensor([3.0, 3.0]).rms_norm((2,), Tensor([2.0, 1.0])).tolist()
        [2.0, 1.0]
        """
        if args and not isinstance(args[0], Scalar):
            weight, args = args[0], args[1:]
        if len(args) > (eps is None):
            raise ArgumentError("rms_norm", f"{shown(args[-1])} is one argument too many",
                                "rms_norm(axis, eps), or rms_norm(normalized_shape, weight, eps)")
        x, eps = self._float(), args[0] if args else eps
        sizes = tuple(axis) if isinstance(axis, (tuple, list)) else None
        least = 1e-6
        if sizes and (weight is not None or any(s >= self.ndim for s in sizes)) and same_sizes(
                sizes, self.shape[-len(sizes) :]):
            axis, least = tuple(range(-len(sizes), 0)), float(dtypes.finfo(x.dtype).eps)
        wide = x.float() if x.dtype.itemsize <= 2 else x
        spread = (wide * wide).mean(axis=axis, keepdim=True) + number("rms_norm", "eps", least if eps is None else eps)
        normal = (wide * spread.rsqrt()).cast(x.dtype)
        return normal if weight is None else normal * operand("rms_norm", weight, self)

    def batchnorm(self, weight: Self | None, bias: Self | None, mean: Self, invstd: Self,
                  axis: Axes = 1) -> Self:
        """Return ``(x - mean) * invstd * weight + bias``, with one value of each per position along ``axis``.

        >>> Tensor([[1., 4.]]).batchnorm(None, None, Tensor([1., 2.]), Tensor([1., 0.5])).tolist()
        [[0.0, 1.0]]
        """
        axes = axes_of("batchnorm", self, axis)
        shape = tuple(s if n in axes else 1 for n, s in enumerate(self.shape))
        mean, invstd = operand("batchnorm", mean, self), operand("batchnorm", invstd, self)
        weight = None if weight is None else operand("batchnorm", weight, self)
        bias = None if bias is None else operand("batchnorm", bias, self)
        for name, t in (("weight", weight), ("bias", bias), ("mean", mean), ("invstd", invstd)):
            if t is not None and t.numel() != math.prod(shape):
                raise ShapeError("batchnorm", f"input {self.shape} with {math.prod(shape)} positions along {axes}, "
                                 f"{name} {t.shape}", f"{name} of shape {tuple(self.shape[a] for a in axes)}")
        scale = invstd if weight is None else invstd * weight
        return _affine(self, mean.reshape(shape), scale.reshape(shape), None if bias is None else bias.reshape(shape))

    def dropout(self, p: float = 0.5) -> Self:
        """Zero elements with probability ``p`` and scale the others by 1 / (1 - p); the identity outside training mode.

        >>> Tensor([1., 2.]).dropout(0.9).tolist()
        [1.0, 2.0]
        """
        p = number("dropout", "p", p, 0, 1)
        if p and self.recording:
            note_mode("dropout", self.training)
        if not self.training or p == 0:
            return self
        if p == 1:
            return self * 0
        part, parts = (random.rows.last() if self.ndim else None) or (0, 1)
        first, rest = (self.shape[0], self.shape[1:]) if parts > 1 else (0, ())
        drawn = type(self).rand(*((parts * first, *rest) if parts > 1 else self.shape), device=self.device)
        if parts > 1:
            drawn = drawn[part * first : (part + 1) * first]
        kept = drawn >= p
        return kept.where(self * (1 / (1 - p)), 0)

    def scaled_dot_product_attention(self, key: Self, value: Self, attn_mask: Self | None = None,
                                     dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None,
                                     enable_gqa: bool = False) -> Self:
        """Return ``softmax(q @ kᵀ · scale + mask) @ v`` with q ``[…, L, E]``, k ``[…, S, E]``, v ``[…, S, Ev]``.

        Args:
            attn_mask: bool (False = masked out) or float, added to the scores; broadcasts to ``[…, L, S]``. A fully
                masked row gives zeros.
            is_causal: position i attends to positions up to i.
            scale: default 1/√E.
            enable_gqa: fewer key and value heads than query heads; adjacent query heads share one.

        Scores and sums of 16-bit floats are float32; the weights are rounded to 16 bits, the input of matrix units.

        >>> q = Tensor([[[1., 0.], [0., 1.]]])
        >>> q.scaled_dot_product_attention(q, q, is_causal=True).shape
        (1, 2, 2)
        """
        if is_causal and attn_mask is not None:
            raise ArgumentError("scaled_dot_product_attention", "is_causal together with attn_mask", "one of the two")
        op = "scaled_dot_product_attention"
        key, value = operand(op, key, self), operand(op, value, self)
        attn_mask = None if attn_mask is None else operand(op, attn_mask, self)
        flat = min(self.ndim, key.ndim, value.ndim) < 2
        if flat or not (equal(self.shape[-1], key.shape[-1]) and equal(key.shape[-2], value.shape[-2])):
            raise ShapeError(op, f"query {self.shape}, key {key.shape}, value "
                             f"{value.shape}", "query […, L, E], key […, S, E], value […, S, Ev]")
        if (kind := narrow_dtype(self, key, value)) is not None:
            self, key, value = self.cast(kind), key.cast(kind), value.cast(kind)
        key, value = _for_each_head(self, key, value, enable_gqa)
        factor = number(op, "scale", scale) if scale is not None else 1 / math.sqrt(value_of_size(self.shape[-1]) or 1)
        # 16-bit scores would overflow before scaling, and lose precision
        scores = self.matmul(key.transpose(-2, -1), dtype=accumulator(promote(self.dtype, key.dtype))) * factor
        if is_causal:
            line, column = scores.uop.iota_like(scores.ndim - 2), scores.uop.iota_like(scores.ndim - 1)
            scores = scores._new((line < column).where(-math.inf, scores.uop))
        elif attn_mask is not None and attn_mask.dtype.is_int:
            raise DTypeError(op, f"attn_mask of dtype {attn_mask.dtype!r}", ".bool() to mask, or .float() to add")
        elif attn_mask is not None and attn_mask.dtype.is_bool:
            scores = attn_mask.where(scores, -math.inf)
        elif attn_mask is not None:
            scores = scores + attn_mask
        # softmax(scores) @ v with the division after the product: one per element of the result, not of the scores
        if is_narrow(self, key, value):
            ones = scores.ones_like()
            kept = ones.dropout(dropout_p)
            return weighted_mean(self, key, value, scores, factor, attn_mask, None if kept is ones else kept)
        shifted, axes = scores._shifted(op, -1, None, masked=attn_mask is not None)
        weights = shifted.exp()
        total = weights._reduce(Ops.ADD, axes, True)
        if attn_mask is not None:
            total = total.eq(0).where(1, total)  # a fully masked row
        weights, halves = weights.dropout(dropout_p), value.dtype.is_float and value.dtype.itemsize == 2
        if halves and self.dtype is value.dtype:
            weights = weights.cast(value.dtype)  # 16-bit operands for the matrix unit
        wide = weights.matmul(value, dtype=total.dtype)
        return (wide * total.reciprocal()).cast(value.dtype)

    def embedding(self, weight: Self, padding_idx: int | None = None) -> Self:
        """Look up rows of ``weight``: indices ``[…] → […, width]``; a computed index out of range gives zeros.

        Args:
            padding_idx: an index (from the end if negative) whose row gets no gradient.

        >>> Tensor([1, 0]).embedding(Tensor([[1., 2.], [3., 4.]])).tolist()
        [[3.0, 4.0], [1.0, 2.0]]

        Raises:
            AxisError: if an index known on the host is out of range.
        """
        if not self.dtype.is_int:
            raise DTypeError("embedding", f"indices of dtype {self.dtype!r}", ".cast(dtypes.int)")
        weight = operand("embedding", weight, self)
        if weight.ndim != 2:
            raise ShapeError("embedding", f"a weight of shape {weight.shape}", "[rows, width]")
        same_device("embedding", self, weight)
        check_indices("embedding", self, 0, weight.shape[0], seen=True)
        count, width = self.numel(), weight.shape[1]
        index: UOp = self.uop.reshape((count, 1)).expand((count, width))
        out = weight._new(weight.uop.gather(index, 0).reshape((*self.shape, width)))
        if padding_idx is None:
            return out
        rows = weight.shape[0]
        silent = integer("embedding", "padding_idx", padding_idx, -rows, rows - 1) % rows
        return self.eq(silent).unsqueeze(-1).where(out.detach(), out)

    # *** convolution and pooling ***

    @contraction
    def conv2d(self, weight: Self, bias: Self | None = None, groups: int = 1, stride: Ints = 1,
               dilation: Ints = 1, padding: Ints | str = 0, dtype: DType | None = None) -> Self:
        """Convolve over the last axes: ``[N, Cin, …] * [Cout, Cin/groups, k…] → [N, Cout, …]``.

        The weight determines the number of spatial axes (1 to 3). Without the axis N, the result has none either.

        Args:
            bias: ``[Cout]``, added to every position.
            padding: zeros around each axis: one number, one per axis, or (before, after) pairs from the last axis on;
                "valid" for none, "same" (with stride 1) to keep the size.
            dtype: the dtype of the sums; default: float32 for 16-bit floats.

        >>> Tensor.ones(1, 1, 3, 3).conv2d(Tensor.ones(1, 1, 2, 2)).tolist()
        [[[[4.0, 4.0], [4.0, 4.0]]]]

        Raises:
            ShapeError: if channels, groups or kernel do not match the input.
        """
        weight, bias = operand("conv2d", weight, self), None if bias is None else operand("conv2d", bias, self)
        if unbatched(self, weight):
            return self.unsqueeze(0).conv2d(weight, bias, groups, stride, dilation, padding, dtype).squeeze(0)
        dims, groups = spatial_dims("conv2d", self, weight), integer("conv2d", "groups", groups, least=1)
        steps, spread = window_steps("conv2d", stride, dilation, dims)
        amounts = pad_pairs("conv2d", padding, dims, weight.shape[2:], steps, spread)
        (n, channels), (cout, cin, *kernel) = self.shape[:2], weight.shape
        check_channels("conv2d", self, weight, bias, channels, cin * groups, cout, groups)
        out_dtype, acc = accumulator_dtype("conv2d", self, weight, dtype)
        x = padded(self.uop, ((0, 0), (0, 0), *amounts), 0).cast(acc)
        size = x.shape[2:]
        outputs = tuple(output_sizes("conv2d", *a) for a in zip(size, kernel, steps, spread))
        ones = (1,) * dims
        x = x.reshape((n, groups, 1, cin, *size, *ones))
        x = x.permute((0, 1, 2, *range(4, 4 + dims), 3, *range(4 + dims, 4 + 2 * dims)))
        x = x.expand((n, groups, cout // groups, *size, cin, *kernel))
        for a in range(dims):
            x = x.window(Window(3 + a, 4 + dims + a, steps[a], spread[a], size[a], outputs[a]))
        w = weight.uop.cast(acc).reshape((1, groups, cout // groups, *ones, cin, *kernel))
        multiplied = x * w.expand((n, groups, cout // groups, *outputs, cin, *kernel))
        total = multiplied.reduce("ADD", tuple(range(3 + dims, 4 + 2 * dims)))
        return finish(self._new(total.reshape((n, cout, *outputs))), bias, dims, out_dtype)

    @contraction
    def conv_transpose2d(self, weight: Self, bias: Self | None = None, groups: int = 1, stride: Ints = 1,
                         dilation: Ints = 1, padding: Ints = 0, output_padding: Ints = 0) -> Self:
        """Return the transpose of ``conv2d``: ``[N, Cin, …] * [Cin, Cout/groups, k…] → [N, Cout, …]``; N is optional.

        >>> Tensor.ones(1, 1, 1, 2).conv_transpose2d(Tensor.ones(1, 1, 1, 2)).tolist()
        [[[[1.0, 2.0, 1.0]]]]
        """
        op = "conv_transpose2d"
        weight, bias = operand(op, weight, self), None if bias is None else operand(op, bias, self)
        if unbatched(self, weight):
            return self.unsqueeze(0).conv_transpose2d(weight, bias, groups, stride, dilation, padding,
                                                      output_padding).squeeze(0)
        dims, groups = spatial_dims(op, self, weight), integer(op, "groups", groups, least=1)
        steps, spread = window_steps(op, stride, dilation, dims)
        amounts, extra = pad_pairs(op, padding, dims), integers(op, "output_padding", output_padding, dims)
        (n, channels), size, (cin, cout, *kernel) = self.shape[:2], self.shape[2:], weight.shape
        cout *= groups
        check_channels(op, self, weight, bias, channels, cin, cout, groups)
        out_dtype, acc = accumulator_dtype(op, self, weight, None)
        each_in, each_out, ones = cin // groups, cout // groups, (1,) * dims
        full = (n, groups, each_out, *size, each_in, *kernel)
        x = self.uop.cast(acc).reshape((n, groups, 1, each_in, *size, *ones))
        x = x.permute((0, 1, 2, *range(4, 4 + dims), 3, *range(4 + dims, 4 + 2 * dims))).expand(full)
        w = weight.uop.cast(acc).reshape((1, groups, each_in, each_out, *ones, *kernel))
        w = w.permute((0, 1, 3, *range(4, 4 + dims), 2, *range(4 + dims, 4 + 2 * dims))).expand(full)
        spread_out = x * w
        grown = tuple(normal_size((s - 1) * st + d * (k - 1) + 1) for s, st, d, k in zip(size, steps, spread, kernel))
        for a in range(dims):
            window = Window(3 + a, 4 + dims + a, steps[a], spread[a], grown[a], size[a])
            spread_out = spread_out.unwindow(window)
        total = spread_out.reduce("ADD", tuple(range(3 + dims, 4 + 2 * dims))).reshape((n, cout, *grown))
        total = total.pad(((0, 0), (0, 0), *((0, max(e - p[1], 0)) for e, p in zip(extra, amounts))))
        keep = tuple((p[0], g + e - p[1]) for g, p, e in zip(grown, amounts, extra))
        if any(end <= begin for begin, end in keep):
            raise ShapeError(op, f"padding {amounts} leaves nothing of size {grown}", "less padding")
        total = total.shrink(((0, n), (0, cout), *keep))
        return finish(self._new(total), bias, dims, out_dtype)

    @in_either_order
    def max_pool2d(self, kernel_size: Ints = 2, stride: Ints | None = None, dilation: Ints = 1,
                   padding: Ints = 0, ceil_mode: bool = False, return_indices: bool = False) -> Any:
        """Return the maximum of each window over the last axes (two, or as many as ``kernel_size`` has).

        Of equal maxima in a window, the first one gets the gradient. After ``stride``, positional arguments may be in
        tinygrad's order or PyTorch's (``padding, dilation``); a call that is ambiguous raises an error.

        >>> Tensor.arange(16).reshape(1, 1, 4, 4).max_pool2d().tolist()
        [[[[5, 7], [13, 15]]]]

        Args:
            return_indices: also return the index of each maximum in its flattened input plane.
        """
        kernel, steps, spread, amounts = pool_arguments("max_pool2d", self, kernel_size, stride, dilation, padding)
        x = padded(self.uop, ((0, 0),) * (self.ndim - len(kernel)) + amounts, self.dtype.min)
        windows, axes, shape = pool_windows("max_pool2d", x, kernel, steps, spread,
                                             amounts if ceil_mode else None, self.dtype.min)
        greatest = with_slopes(self._new(windows.reduce("MAX", axes)), first_greatest, self._new(windows))
        out = self._new(greatest.uop.reshape(shape))
        if not return_indices:
            return out
        place = first_greatest_place(greatest.detach(), self._new(windows).detach())
        found = plane_index(self._new(place.uop.reshape(shape)), self.shape[self.ndim - len(kernel):], kernel, steps,
                            spread, [b for b, _ in amounts])
        return out, found.cast(dtypes.default_int)

    def max_unpool2d(self, indices: Self, kernel_size: Ints = 2, stride: Ints | None = None,
                     dilation: Ints = 1, padding: Ints = 0, output_size: Sequence[int] | None = None) -> Self:
        """Put each value at the index returned by ``max_pool2d(return_indices=True)``; zeros elsewhere.

        Args:
            output_size: the sizes of the last axes, or the full shape, where the pool's arguments leave them ambiguous.

        >>> x, places = Tensor([[[[1, 2], [3, 4]]]]).max_pool2d(return_indices=True)
        >>> x.max_unpool2d(places).tolist()
        [[[[0, 0], [0, 4]]]]
        """
        op = "max_unpool2d"
        kernel, steps, spread, amounts = pool_arguments(op, self, kernel_size, stride, dilation, padding)
        dims = len(kernel)
        if indices.shape != self.shape:
            raise ShapeError(op, f"values {self.shape}, indices {indices.shape}", "what max_pool2d gave")
        lead, size = self.shape[: self.ndim - dims], self.shape[self.ndim - dims :]
        whole = tuple((s - 1) * st + d * (k - 1) + 1 - b - e
                      for s, st, d, k, (b, e) in zip(size, steps, spread, kernel, amounts))
        if output_size is not None:
            whole = integers(op, "output_size", tuple(output_size)[-dims:], dims, least=1)
        flat = type(self).zeros(*lead, product(whole), dtype=self.dtype, device=self.device, requires_grad=False)
        rows = (*lead, product(size))
        values, places = self.reshape(rows), indices.reshape(rows)
        out = with_slopes(flat.scatter(-1, places, values.detach()), found_again, values, places)
        return out.reshape(*lead, *whole)

    @in_either_order
    @rounded_once
    def avg_pool2d(self, kernel_size: Ints = 2, stride: Ints | None = None, dilation: Ints = 1,
                   padding: Ints = 0, ceil_mode: bool = False, count_include_pad: bool = True,
                   divisor_override: int | None = None) -> Self:
        """Return the mean of each window over the last axes; of int64 rounded towards zero, as in PyTorch.

        After ``stride``, positional arguments may be in tinygrad's order or PyTorch's (``padding, ceil_mode,
        count_include_pad, divisor_override``); a call that means different pools in the two orders raises an error.

        Args:
            count_include_pad: True: padding counts as zeros of the window; False: padding is left out of the mean.
            divisor_override: the divisor of the sums instead of the window size.

        >>> Tensor.arange(16).float().reshape(1, 1, 4, 4).avg_pool2d().tolist()
        [[[[2.5, 4.5], [10.5, 12.5]]]]
        """
        whole = self.dtype is dtypes.int64
        this = self if whole else self._float()
        kernel, steps, spread, amounts = pool_arguments("avg_pool2d", this, kernel_size, stride, dilation, padding)
        around = ((0, 0),) * (this.ndim - len(kernel)) + amounts

        def total(x: UOp, inside: int) -> UOp:
            windows, axes, shape = pool_windows("avg_pool2d", padded(x, around, inside), kernel, steps, spread,
                                                 amounts if ceil_mode else None, 0)
            return windows.reduce("ADD", axes).reshape(shape)

        summed = total(this.uop, 0)
        if divisor_override is not None:
            divisor = integer("avg_pool2d", "divisor_override", divisor_override)
            if not divisor:
                raise ArgumentError("avg_pool2d", "divisor_override is 0", "another integer")
            return this._new(summed).div(divisor, rounding_mode="trunc" if whole else None)
        if not ceil_mode and (count_include_pad or not any(b or e for b, e in amounts)):
            if whole:
                return this._new(summed).div(math.prod(kernel), rounding_mode="trunc")
            return this._new(summed * (1 / math.prod(kernel)))
        count = total(this.uop.const_like(1), int(count_include_pad))
        return this._new(summed).div(this._new(count), rounding_mode="trunc") if whole else this._new(summed / count)

    # *** losses ***

    def _reduced(self, reduction: str, dtype: DType | None = None) -> Self:
        choice("loss", "reduction", reduction, ("mean", "sum", "none"))
        total = self if reduction == "none" else self.mean() if reduction == "mean" else self.sum()
        return total if dtype is None else total.cast(dtype)

    def _weighted(self, op: str, weight: Self | None, reduction: str, dtype: DType) -> Self:
        return (self if weight is None else self * operand(op, weight, self))._reduced(reduction, dtype)

    def _beside(self, op: str, target: Self) -> tuple[Self, Self, DType]:
        """Return predictions and targets in the working dtype (float32 for 16-bit floats), and the loss's dtype."""
        x, target = self._float(), operand(op, target, self)
        if not same_sizes(x.shape, target.shape):
            raise ShapeError(op, f"predictions {x.shape}, targets {target.shape}", "equal shapes")
        dtype = promote(x.dtype, target.dtype)
        wide = accumulator(dtype)
        return x.cast(wide), target.cast(wide), dtype

    @in_float32
    def mse_loss(self, target: Self, reduction: str = "mean") -> Self:
        """Return the squared differences.

        >>> Tensor([1., 2.]).mse_loss(Tensor([1., 4.])).item()
        2.0
        """
        x, y, dtype = self._beside("mse_loss", target)
        return (x - y).square()._reduced(reduction, dtype)

    @in_float32
    def l1_loss(self, target: Self, reduction: str = "mean") -> Self:
        """Return the absolute differences.

        >>> Tensor([1.0, 4.0]).l1_loss(Tensor([0.0, 2.0])).item()
        1.5
        """
        x, y, dtype = self._beside("l1_loss", target)
        return (x - y).abs()._reduced(reduction, dtype)

    @in_float32
    def huber_loss(self, target: Self, reduction: str = "mean", delta: float = 1.0) -> Self:
        """Return ``0.5 * d²`` for differences below ``delta``, else ``delta * (|d| - 0.5 * delta)``.

        >>> Tensor([1.0, 4.0]).huber_loss(Tensor([0.0, 2.0])).item()
        1.0
        """
        delta = number("huber_loss", "delta", delta)
        x, y, dtype = self._beside("huber_loss", target)
        d = x - y
        size = d.abs()
        return (size < delta).where(d * d * 0.5, (size - delta / 2) * delta)._reduced(reduction, dtype)

    @in_float32
    def smooth_l1_loss(self, target: Self, reduction: str = "mean", beta: float = 1.0) -> Self:
        """The Huber loss with ``delta=beta``, divided by ``beta``; the L1 loss for ``beta=0``.

        >>> Tensor([1.0, 4.0]).smooth_l1_loss(Tensor([0.0, 2.0]), beta=2.0).item()
        0.625
        """
        beta = number("smooth_l1_loss", "beta", beta)
        return self.huber_loss(target, reduction, beta) * (1 / beta) if beta else self.l1_loss(target, reduction)

    def binary_crossentropy(self, target: Self, reduction: str = "mean",
                            weight: Self | None = None) -> Self:
        """Return the binary cross entropy of probabilities in [0, 1]; logarithms are clamped to at least -100.

        Args:
            weight: a factor per element, broadcast to the loss.

        >>> Tensor([0.5]).binary_crossentropy(Tensor([1.0])).numpy().round(4).item()
        0.6930999755859375
        """
        x, y, dtype = self._beside("binary_crossentropy", target)
        loss = -(y * x.log().maximum(-100) + (1 - y) * (-x).log1p().maximum(-100))
        return with_slopes(loss, crossentropy_slopes, x, y)._weighted("binary_crossentropy", weight, reduction, dtype)

    @in_float32
    def binary_crossentropy_logits(self, target: Self, reduction: str = "mean",
                                   pos_weight: Self | None = None, weight: Self | None = None) -> Self:
        """Return ``binary_crossentropy`` of ``sigmoid(self)``, accurate for large logits.

        Args:
            pos_weight: a factor of the term of targets 1.
            weight: a factor per element, broadcast to the loss.

        >>> round(Tensor([0., 200.]).binary_crossentropy_logits(Tensor([1., 0.])).item(), 4)
        100.3466
        """
        x, y, dtype = self._beside("binary_crossentropy_logits", target)
        if pos_weight is None:
            ramp, bend = map(x._new, ramp_and_bend(x.uop))
            loss = ramp - x * y + bend  # the large terms first: they cancel
            return loss._weighted("binary_crossentropy_logits", weight, reduction, dtype)
        pos_weight = operand("binary_crossentropy_logits", pos_weight, self)
        ramp, bend = map(x._new, ramp_and_bend(-x.uop))
        scale = 1 + (pos_weight.cast(promote(x.dtype, pos_weight.dtype)) - 1) * y
        loss = x * (1 - y) + ramp * scale + bend * scale
        return loss._weighted("binary_crossentropy_logits", weight, reduction, promote(dtype, pos_weight.dtype))

    def _row_logits(self, axis: int) -> tuple[Self, Self]:
        """Return (logits minus their row's maximum, logarithm of the row's sum of exponentials of that).

        The maximum is detached: the difference of the two results does not depend on it.
        """
        x = self._float()
        x = x.float() if x.dtype.itemsize <= 2 else x
        shifted = x - x.max(axis=axis, keepdim=True).detach()
        return shifted, shifted.exp().sum(axis=axis, keepdim=True).log()

    def _picked(self, label: Self, axis: int) -> Self:
        """Return the element of each row selected by ``label`` (size 1 along ``axis``); 0 where it is out of range.

        ``CHECKED=1`` recognizes this sum by its form.
        """
        wide = label.uop if label.dtype.is_int and label.dtype.itemsize >= 4 else label.uop.cast(dtypes.int32)
        hit = self.uop.iota_like(axis).cast(wide.dtype).eq(wide.expand(self.shape))
        return self._new(hit.where(self.uop, 0)).sum(axis=axis, keepdim=True)

    def _rows(self, op: str, axis: int) -> tuple[Any, ...]:
        """Return the shape without the class axis."""
        if not self.ndim:
            raise ShapeError(op, "0-d logits have no axis of classes", "shape [classes] or [N, classes, …]")
        return (*self.shape[:axis], *self.shape[axis + 1 :])

    def _by_class(self, op: str, weight: Self, axis: int) -> Self:
        """Expand one weight per class to the shape of the logits."""
        weight = operand(op, weight, self)
        if not same_sizes(weight.shape, (self.shape[axis],)):
            raise ShapeError(op, f"weight {weight.shape} for {self.shape[axis]} classes",
                             f"one weight per class: shape {(self.shape[axis],)}")
        return weight.reshape(*[1] * axis, -1, *[1] * (self.ndim - axis - 1)).expand(self.shape)

    def _class_loss(self, label: Self, axis: int, ignore_index: int | None, label_smoothing: float,
                    reduction: str, weight: Self | None = None) -> Self:
        """Return the negative log-probability of the class indices ``label`` along ``axis``."""
        rows = self._rows("cross_entropy", axis)
        label = class_count("cross_entropy", operand("cross_entropy", label, self))
        if not same_sizes(label.shape, rows):
            raise ShapeError("cross_entropy", f"logits {self.shape}, class indices {label.shape}", f"indices {rows}")
        label_smoothing = number("cross_entropy", "label_smoothing", label_smoothing, 0, 1)
        check_indices("cross_entropy", label, 0, self.shape[axis], "class", ignore_index, seen=True)
        kept = None if ignore_index is None else label.ne(ignore_index)
        shifted, total = self._row_logits(axis)
        place = (label if kept is None else kept.where(label, 0)).unsqueeze(axis)
        loss, of_row = total - shifted._picked(place, axis), None
        by_class = None if weight is None else self._by_class("cross_entropy", weight, axis).cast(loss.dtype)
        if by_class is not None:
            of_row = by_class._picked(place, axis)
            loss = loss * of_row
        if label_smoothing:
            every = total - shifted
            smooth = (every if by_class is None else every * by_class).mean(axis=axis, keepdim=True)
            loss = loss * (1 - label_smoothing) + smooth * label_smoothing
        loss, count = loss.squeeze(axis), kept if of_row is None else of_row.squeeze(axis)
        if count is None:
            return loss._reduced(reduction)
        if kept is not None:
            loss, count = kept.where(loss, 0), kept.where(count, 0)
        return loss.sum() / count.sum() if reduction == "mean" else loss._reduced(reduction)

    @in_float32
    def sparse_categorical_crossentropy(self, Y: Self, ignore_index: int = -1, label_smoothing: float = 0.0,
                                        reduction: str = "mean") -> Self:
        """Cross entropy of logits ``[…, classes]`` with class indices ``[…]``.

        Args:
            ignore_index: rows with this label are ignored.

        >>> round(Tensor([[0., 0.], [9., 0.]]).sparse_categorical_crossentropy(Tensor([1, -1])).item(), 4)
        0.6931

        Raises:
            AxisError: if a label known on the host is out of range; a computed one contributes the row's log-sum-exp,
                and ``CHECKED=1`` reports it.
        """
        return self._class_loss(Y, self.ndim - 1, ignore_index, label_smoothing, reduction)

    @in_float32
    def cross_entropy(self, Y: Self, reduction: str = "mean", label_smoothing: float = 0.0,
                      ignore_index: int | None = None, weight: Self | None = None) -> Self:
        """Cross entropy of logits ``[N, classes, …]`` (or ``[classes]``) with class indices or probabilities.

        Args:
            Y: class indices ``[N, …]``, or probabilities in the logits' shape.
            ignore_index: rows with this label are ignored.
            weight: a factor per class; the mean over class indices divides by the sum of the labels' weights.

        >>> round(Tensor([[0., 0.]]).cross_entropy(Tensor([1])).item(), 4)
        0.6931
        >>> round(Tensor([[0., 0.]]).cross_entropy(Tensor([[0.5, 0.5]])).item(), 4)
        0.6931

        Raises:
            AxisError: if a label is out of range, as in ``sparse_categorical_crossentropy``.
        """
        axis = 1 if self.ndim > 1 else 0
        Y = operand("cross_entropy", Y, self)
        if Y.ndim == self.ndim - 1:
            return self._class_loss(Y, axis, ignore_index, label_smoothing, reduction, weight)
        if not same_sizes(Y.shape, self.shape):
            raise ShapeError("cross_entropy", f"logits {self.shape}, targets {Y.shape}",
                             "class indices without the class axis, or probabilities in the logits' shape")
        if not Y.dtype.is_float:
            raise DTypeError("cross_entropy", f"probabilities of dtype {Y.dtype!r}", ".float()")
        label_smoothing = number("cross_entropy", "label_smoothing", label_smoothing, 0, 1)
        self._rows("cross_entropy", axis)
        classes = self.shape[axis]
        target = Y * (1 - label_smoothing) + label_smoothing / classes if label_smoothing else Y
        shifted, total = self._row_logits(axis)
        target = target if weight is None else target * self._by_class("cross_entropy", weight, axis)
        loss = ((total - shifted) * target).sum(axis=axis)
        return loss.sum() / (loss.numel() or 1) if reduction == "mean" else loss._reduced(reduction)

    @in_float32
    def nll_loss(self, Y: Self, weight: Self | None = None, ignore_index: int | None = None,
                 reduction: str = "mean") -> Self:
        """Return the negative log-probability of the labelled class; ``self`` holds log-probabilities
        ``[N, classes, …]``.

        >>> Tensor([[-0.5, -1.0], [-2.0, -0.25]]).nll_loss(Tensor([0, 1])).item()
        0.375

        Args:
            weight: a factor per class; the mean divides by the sum of the weights used.
            ignore_index: samples with this class index contribute nothing.

        Raises:
            AxisError: if a class index known on the host is out of range. A computed one is not checked and
                contributes 0.
        """
        axis = 1 if self.ndim > 1 else 0
        rows = self._rows("nll_loss", axis)
        Y = class_count("nll_loss", operand("nll_loss", Y, self))
        if not same_sizes(Y.shape, rows):
            raise ShapeError("nll_loss", f"log-probabilities {self.shape}, class indices {Y.shape}", f"indices {rows}")
        check_indices("nll_loss", Y, 0, self.shape[axis], "class", ignore_index, seen=True)
        kept = None if ignore_index is None else Y.ne(ignore_index)
        label = (Y if kept is None else kept.where(Y, 0)).unsqueeze(axis)
        loss = -self._picked(label, axis).squeeze(axis)
        scale = None
        if weight is not None:
            scale = self._by_class("nll_loss", weight, axis)._picked(label, axis).squeeze(axis)
        if kept is not None:
            scale = kept.cast(self.dtype) if scale is None else scale * kept.cast(self.dtype)
        if scale is None:
            return loss._reduced(reduction)
        loss = scale.ne(0).where(loss * scale, 0)
        return loss.sum() / scale.sum() if reduction == "mean" else loss._reduced(reduction)

    # *** further functions ***

    def glu(self, dim: int = -1) -> Self:
        """Return the first half of an axis times the sigmoid of the second half (gated linear unit).

        >>> Tensor([2.0, 0.0]).glu().tolist()
        [1.0]
        """
        d, size = axis_and_size("glu", self, dim)
        if size % 2:
            raise ShapeError("glu", f"axis {d} of shape {self.shape} has no halves", "an even size")
        a, b = self.narrow(d, 0, size // 2), self.narrow(d, size // 2, size // 2)
        return a.mul(b.sigmoid())

    @contraction  # no contraction, but in PyTorch's list
    def prelu(self, weight: Self) -> Self:
        """x where x > 0, else ``weight * x``; ``weight`` has one value, or one per channel (axis 1).

        >>> Tensor([-4.0, 2.0]).prelu(Tensor([0.25])).tolist()
        [-1.0, 2.0]
        """
        w = operand("prelu", weight, self).reshape(-1)
        w = w.reshape(1, -1, *(1,) * (self.ndim - 2)) if w.shape[0] != 1 and self.ndim > 1 else w
        return self.gt(0).where(self, self.mul(w if self.ndim else w.reshape(())))

    def threshold(self, threshold: float, value: float) -> Self:
        """x where x > ``threshold``, else ``value``.

        >>> Tensor([1.0, 3.0]).threshold(2, -1).tolist()
        [-1.0, 3.0]
        """
        return self.le(number("threshold", "threshold", threshold)).where(number("threshold", "value", value), self)

    def hardshrink(self, lambd: float = 0.5) -> Self:
        """x where abs(x) > ``lambd``, else 0.

        >>> Tensor([0.2, 1.0]).hardshrink().tolist()
        [0.0, 1.0]
        """
        return self.abs().le(number("hardshrink", "lambd", lambd)).where(0, self)

    def softshrink(self, lambd: float = 0.5) -> Self:
        """x moved towards 0 by ``lambd``; 0 where abs(x) <= ``lambd``.

        >>> Tensor([0.2, 1.0, -2.0]).softshrink().tolist()
        [0.0, 0.5, -1.5]
        """
        lambd = number("softshrink", "lambd", lambd, least=0)
        return self.gt(lambd).where(self.sub(lambd), self.lt(-lambd).where(self.add(lambd), self.mul(0)))

    def gumbel_softmax(self, tau: float = 1.0, hard: bool = False, dim: int = -1) -> Self:
        """Return a softmax of logits plus Gumbel noise: a differentiable draw of a category.

        >>> Tensor([0.0, 100.0]).gumbel_softmax(hard=True).tolist()
        [0.0, 1.0]

        Args:
            hard: return a one-hot draw, with the gradient of the soft one (straight-through).
        """
        noise = self.rand_like().clamp(1e-20).log().neg().clamp(1e-20).log().neg().detach()
        soft = self.add(noise).div(number("gumbel_softmax", "tau", tau, zero=False)).softmax(dim)
        if not flag("gumbel_softmax", "hard", hard):
            return soft
        d, size = axis_and_size("gumbel_softmax", self, dim)
        picked = soft.argmax(d).one_hot(size).cast(soft.dtype).movedim(-1, d)
        return picked.sub(soft.detach()).add(soft)

    def pixel_shuffle(self, upscale_factor: int) -> Self:
        """Rearrange channels to pixels: ``[…, c·r², h, w] → […, c, h·r, w·r]``.

        >>> Tensor([[[[1]], [[2]], [[3]], [[4]]]]).pixel_shuffle(2).tolist()
        [[[[1, 2], [3, 4]]]]
        """
        r = integer("pixel_shuffle", "upscale_factor", upscale_factor, least=1)
        if self.ndim < 3 or self.shape[-3] % (r * r):
            raise ShapeError("pixel_shuffle", f"channels of shape {self.shape} into {r} x {r} pixels", "c·r² channels")
        *lead, c, h, w = self.shape
        x = self.reshape(*lead, c // (r * r), r, r, h, w)
        n = len(lead)
        return x.permute(*range(n + 1), n + 3, n + 1, n + 4, n + 2).reshape(*lead, c // (r * r), h * r, w * r)

    def pixel_unshuffle(self, downscale_factor: int) -> Self:
        """Rearrange pixels to channels: ``[…, c, h·r, w·r] → […, c·r², h, w]``.

        >>> Tensor([[[[1, 2], [3, 4]]]]).pixel_unshuffle(2).tolist()
        [[[[1]], [[2]], [[3]], [[4]]]]
        """
        r = integer("pixel_unshuffle", "downscale_factor", downscale_factor, least=1)
        if self.ndim < 3 or self.shape[-1] % r or self.shape[-2] % r:
            raise ShapeError("pixel_unshuffle", f"pixels of shape {self.shape} by {r}", "sides that it divides")
        *lead, c, h, w = self.shape
        x = self.reshape(*lead, c, h // r, r, w // r, r)
        n = len(lead)
        return x.permute(*range(n + 1), n + 2, n + 4, n + 1, n + 3).reshape(*lead, c * r * r, h // r, w // r)

    def channel_shuffle(self, groups: int) -> Self:
        """Interleave ``groups`` equal groups of channels (axis 1).

        >>> Tensor([[[1], [2], [3], [4]]]).channel_shuffle(2).flatten().tolist()
        [1, 3, 2, 4]
        """
        groups = integer("channel_shuffle", "groups", groups, least=1)
        if self.ndim < 3 or self.shape[1] % groups:
            raise ShapeError("channel_shuffle", f"channels of shape {self.shape} in {groups} groups", "equal groups")
        x = self.reshape(self.shape[0], groups, self.shape[1] // groups, *self.shape[2:])
        return x.transpose(1, 2).reshape(self.shape)

    # *** losses ***

    @in_float32
    def kl_div(self, target: Self, reduction: str = "mean", log_target: bool = False) -> Self:
        """The Kullback–Leibler divergence of ``target`` from the distribution whose log-probabilities are ``self``.

        >>> Tensor([-1.0]).kl_div(Tensor([0.0])).item()
        0.0

        Args:
            reduction: "mean", "sum", "none", or "batchmean": the sum divided by the size of axis 0.
            log_target: the target holds log-probabilities, too.
        """
        y = operand("kl_div", target, self)
        each = y.exp().mul(y.sub(self)) if flag("kl_div", "log_target", log_target) else y.xlogy(y).sub(y.mul(self))
        return each.sum().div(self.shape[0]) if reduction == "batchmean" else each._reduced(reduction)

    @in_float32
    def poisson_nll_loss(self, target: Self, log_input: bool = True, full: bool = False, eps: float = 1e-8,
                         reduction: str = "mean") -> Self:
        """Return the negative log-likelihood of a Poisson distribution with rate ``self`` (its logarithm if
        ``log_input``).

        >>> Tensor([0.0]).poisson_nll_loss(Tensor([1.0])).item()
        1.0
        """
        y = operand("poisson_nll_loss", target, self)
        loss = self.exp().sub(y.mul(self)) if log_input else self.sub(y.mul(self.add(eps).log()))
        if full:
            stirling = y.mul(y.clamp(1).log()).sub(y).add(y.clamp(1).mul(2 * math.pi).log().mul(0.5))
            loss = loss.add(y.le(1).where(0, stirling))
        return loss._reduced(reduction)

    def gaussian_nll_loss(self, target: Self, var: Self, full: bool = False, eps: float = 1e-6,
                          reduction: str = "mean") -> Self:
        """Return the negative log-likelihood of a normal distribution with means ``self`` and variances ``var``.

        >>> Tensor([0.0]).gaussian_nll_loss(Tensor([0.0]), Tensor([1.0])).item()
        0.0
        """
        y, wide = operand("gaussian_nll_loss", target, self), operand("gaussian_nll_loss", var, self)
        if wide.shape != self.shape and wide.ndim and same_sizes(wide.shape, self.shape[:-1]):
            wide = wide.unsqueeze(-1)  # one variance per row, as in PyTorch
        wide = wide.add(wide.detach().clamp(eps).sub(wide.detach()))
        loss = wide.log().add(self.sub(y).square().div(wide)).mul(0.5)
        return (loss.add(0.5 * math.log(2 * math.pi)) if full else loss)._reduced(reduction)

    @in_float32
    def soft_margin_loss(self, target: Self, reduction: str = "mean") -> Self:
        """Return ``log(1 + exp(-target * x))`` for targets 1 and -1.

        >>> Tensor([0.0]).soft_margin_loss(Tensor([1.0])).numpy().round(4).item()
        0.6930999755859375
        """
        return operand("soft_margin_loss", target, self).mul(self).neg().softplus()._reduced(reduction)

    @in_float32
    def hinge_embedding_loss(self, target: Self, margin: float = 1.0, reduction: str = "mean") -> Self:
        """x where the target is 1, ``max(0, margin - x)`` where it is -1, the sum of both elsewhere.

        >>> Tensor([0.5, 0.25]).hinge_embedding_loss(Tensor([1.0, -1.0])).item()
        0.625
        """
        y = operand("hinge_embedding_loss", target, self)
        near, far = y.ne(-1).where(self, 0.0), y.ne(1).where(self.neg().add(margin).clamp(0), 0.0)
        return near.add(far)._reduced(reduction)

    @in_float32
    def margin_ranking_loss(self, other: Self, target: Self, margin: float = 0.0,
                            reduction: str = "mean") -> Self:
        """Return ``max(0, -target * (x - other) + margin)``.

        >>> Tensor([1.0]).margin_ranking_loss(Tensor([3.0]), Tensor([1.0])).item()
        2.0
        """
        y = operand("margin_ranking_loss", target, self)
        return y.neg().mul(self.sub(other)).add(margin).clamp(0)._reduced(reduction)

    @in_float32
    def cosine_embedding_loss(self, other: Self, target: Self, margin: float = 0.0,
                              reduction: str = "mean") -> Self:
        """Return ``1 - cosine`` where the target is 1, ``max(0, cosine - margin)`` where it is -1.

        >>> Tensor([[1.0, 0.0]]).cosine_embedding_loss(Tensor([[0.0, 1.0]]), Tensor([1.0])).item()
        1.0
        """
        y = operand("cosine_embedding_loss", target, self)
        cosine = self.cosine_similarity(other, dim=-1)
        return y.eq(1).where(cosine.neg().add(1), cosine.sub(margin).clamp(0))._reduced(reduction)

    @in_float32
    def triplet_margin_loss(self, positive: Self, negative: Self, margin: float = 1.0, p: float = 2.0,
                            eps: float = 1e-6, swap: bool = False, reduction: str = "mean") -> Self:
        """Return ``max(0, |x - positive| - |x - negative| + margin)``.

        >>> Tensor([[0.0]]).triplet_margin_loss(Tensor([[0.0]]), Tensor([[3.0]])).item()
        0.0
        """
        near, far = self.pairwise_distance(positive, p, eps), self.pairwise_distance(negative, p, eps)
        if flag("triplet_margin_loss", "swap", swap):
            far = far.minimum(operand("triplet_margin_loss", positive, self).pairwise_distance(negative, p, eps))
        return near.sub(far).add(margin).clamp(0)._reduced(reduction)

    # *** resampling ***

    @in_float32
    def interpolate(self, size: int | Sequence[int] | None = None, mode: str = "linear",
                    align_corners: bool | None = False, *, scale_factor: float | Sequence[float] | None = None,
                    recompute_scale_factor: bool | None = None) -> Self:
        """Resample the last axes to another size. Positions are exact fractions: no rounding error in sizes.

        Args:
            size: the new sizes of the last axes; one number applies to all axes after the first two.
            mode: "linear" (also "bilinear" and "trilinear"), "bicubic", "nearest", "nearest-exact", or "area" for the
                mean of each window of an adaptive pool.
            align_corners: for linear and cubic: align the centers of the outermost elements, not their outer edges.
            scale_factor: the ratio of new to old size (the new size is rounded down), instead of ``size``.
            recompute_scale_factor: compute positions from the ratio of the sizes instead of ``scale_factor``.

        >>> Tensor([1., 2., 3.]).interpolate((5,), align_corners=True).tolist()
        [1.0, 1.5, 2.0, 2.5, 3.0]
        >>> Tensor([[1, 2]]).interpolate((4,), mode="nearest").tolist()
        [[1, 1, 2, 2]]
        >>> Tensor([[[1., 2.]]]).interpolate(scale_factor=2, mode="nearest").tolist()
        [[[1.0, 1.0, 2.0, 2.0]]]

        Raises:
            ArgumentError: for an unknown mode, or unless exactly one of ``size`` and ``scale_factor`` is given.
            DTypeError: if integers are interpolated.
            ShapeError: if there are more sizes than axes, or an axis to resample is empty.
        """
        wanted, ratios = wanted_sizes(self, size, scale_factor)
        choice("interpolate", "mode", mode, (*LINEAR, "bicubic", "area", "nearest", "nearest-exact"))
        align_corners = flag("interpolate", "align_corners", align_corners)
        if not mode.startswith("nearest") and not self.dtype.is_float:
            raise DTypeError("interpolate", f"{self.dtype!r} elements have nothing between them", ".float()")
        first = self.ndim - len(wanted)
        if first < 0 or any(old == 0 and new for old, new in zip(self.shape[first:], wanted)):
            raise ShapeError("interpolate", f"shape {self.shape} to the sizes {wanted}",
                             "at most one size per axis, and elements to start from")
        out = self
        for axis, (new, ratio) in enumerate(zip(wanted, ratios), first):
            old = self.shape[axis]
            if equal(new, old) and (ratio is None or mode in (*LINEAR, "area", "nearest")):
                continue
            if ratio is None or flag("interpolate", "recompute_scale_factor", recompute_scale_factor):
                ratio = exact_ratio(old, new)
            if mode == "area":
                out = resample_area(out, axis, new)
            elif mode.startswith("nearest"):
                out = resample_nearest(out, axis, new, ratio, mode)
            else:
                out = resample_linear(out, axis, new, ratio, align_corners, mode == "bicubic")
        return out


@rounded_once
def _affine(x: T, origin: T, scale: T, bias: T | None) -> T:
    out = (x - origin) * scale
    return out if bias is None else out + bias


