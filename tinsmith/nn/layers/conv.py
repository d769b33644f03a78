"""Convolution and pooling layers; pools have a fixed window size (``MaxPool2d``) or output size
(``AdaptiveAvgPool2d``).
"""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tinsmith.core.errors import ArgumentError, ShapeError
from tinsmith.nn.describe import Layer, arguments, per_axis
from tinsmith.tensor.arguments import choice, flag, integer, integers, size
from tinsmith.tensor.autograd.backward import with_slopes
from tinsmith.tensor.base import check_tensors
from tinsmith.tensor.nnops.windows import pad_pairs, same_padding
from tinsmith.tensor.tensor import Tensor

Ints = int | Sequence[int]


class Conv2d(Layer):
    """2-D convolution: ``[N, in, H, W] → [N, out, H', W']``, initialized as in PyTorch.

    Args:
        padding: padding of the input: one number, one per axis, (before, after) pairs from the last axis on, or "same".
        padding_mode: the values of the padding: "zeros", "reflect", "replicate" or "circular".

    >>> from tinsmith import nn
    >>> nn.Conv2d(1, 4, 3, padding=1)(Tensor.ones(2, 1, 5, 5)).shape
    (2, 4, 5, 5)
    """

    dims = 2

    def __init__(self, in_channels: int, out_channels: int, kernel_size: Ints, stride: Ints = 1,
                 padding: Ints | str = 0, dilation: Ints = 1, groups: int = 1, bias: bool = True,
                 padding_mode: str = "zeros") -> None:
        op = type(self).__name__
        in_channels = size(op, "in_channels", in_channels, 1)
        out_channels = size(op, "out_channels", out_channels, 1)
        groups = integer(op, "groups", groups, 1)
        kernel = integers(op, "kernel_size", kernel_size, self.dims, least=1)
        steps = integers(op, "stride", stride, self.dims, least=1)
        spread = integers(op, "dilation", dilation, self.dims, least=1)
        if in_channels % groups or out_channels % groups:
            raise ArgumentError(op, f"groups={groups} for {in_channels} → {out_channels} channels",
                                "a number that divides both")
        if isinstance(padding, str):
            pairs = same_padding(op, padding, kernel, steps, spread)
            padding = [n for pair in reversed(pairs) for n in pair]
        self.kernel_size, self.stride, self.padding = kernel, stride, padding
        self.dilation, self.groups = spread, groups
        self.padding_mode = choice(op, "padding_mode", padding_mode, ("zeros", "reflect", "replicate", "circular"))
        bias = flag(op, "bias", bias)
        bound = 1 / math.sqrt(in_channels // groups * math.prod(kernel))
        self.weight = Tensor.uniform(*self._weight_shape(in_channels, out_channels), low=-bound, high=bound)
        self.bias = Tensor.uniform(out_channels, low=-bound, high=bound) if bias else None

    def _weight_shape(self, in_channels: int, out_channels: int) -> tuple[int, ...]:
        return (out_channels, in_channels // self.groups, *self.kernel_size)

    def _channels(self) -> tuple[int, int]:
        """Return the numbers of channels of the input and of the output."""
        return self.weight.shape[1] * self.groups, self.weight.shape[0]

    def extra_repr(self) -> str:
        inputs, outputs = self._channels()
        ones, padding = (1,) * self.dims, per_axis(self.padding, self.dims)
        extra = per_axis(getattr(self, "output_padding", 0), self.dims)
        options = {"padding": padding if any(padding) else None,
                   "dilation": self.dilation if self.dilation != ones else None,
                   "output_padding": extra if any(extra) else None,
                   "groups": self.groups if self.groups != 1 else None, "bias": False if self.bias is None else None}
        shown = arguments(kernel_size=self.kernel_size, stride=per_axis(self.stride, self.dims),
                          **{name: value for name, value in options.items() if value is not None})
        mode = "" if self.padding_mode == "zeros" else f", padding_mode={self.padding_mode}"
        return f"{inputs}, {outputs}, {shown}{mode}"

    def __call__(self, x: Tensor) -> Tensor:
        check_tensors(type(self).__name__, [x])
        padding = self.padding
        if self.padding_mode != "zeros" and x.ndim in (self.dims + 1, self.dims + 2):
            pairs = pad_pairs(type(self).__name__, padding, self.dims)
            x, padding = x.pad([n for pair in reversed(pairs) for n in pair], mode=self.padding_mode), 0
        return x.conv2d(self.weight, self.bias, self.groups, self.stride, self.dilation, padding)


class Conv1d(Conv2d):
    """1-D convolution: ``[N, in, L] → [N, out, L']``.

    >>> from tinsmith import nn
    >>> nn.Conv1d(2, 3, 3)(Tensor.ones(1, 2, 8)).shape
    (1, 3, 6)
    """

    dims = 1


class Conv3d(Conv2d):
    """3-D convolution: ``[N, in, D, H, W] → [N, out, D', H', W']``.

    >>> from tinsmith import nn
    >>> nn.Conv3d(2, 3, 3, padding=1, padding_mode="replicate")(Tensor.ones(1, 2, 4, 4, 4)).shape
    (1, 3, 4, 4, 4)
    """

    dims = 3


class ConvTranspose2d(Conv2d):
    """2-D transposed convolution, ``[N, in, H, W] → [N, out, H', W']``; weight ``[in, out/groups, kH, kW]``.

    >>> from tinsmith import nn
    >>> nn.ConvTranspose2d(2, 3, 2, stride=2)(Tensor.ones(1, 2, 4, 4)).shape
    (1, 3, 8, 8)
    """

    def __init__(self, in_channels: int, out_channels: int, kernel_size: Ints, stride: Ints = 1, padding: Ints = 0,
                 output_padding: Ints = 0, dilation: Ints = 1, groups: int = 1, bias: bool = True) -> None:
        super().__init__(in_channels, out_channels, kernel_size, stride, padding, dilation, groups, False)
        op = type(self).__name__
        self.output_padding = integers(op, "output_padding", output_padding, self.dims, least=0)
        in_channels, out_channels = int(in_channels), int(out_channels)
        bound = 1 / math.sqrt(out_channels // self.groups * math.prod(self.kernel_size))
        self.weight = Tensor.uniform(*self._weight_shape(in_channels, out_channels), low=-bound, high=bound)
        self.bias = Tensor.uniform(out_channels, low=-bound, high=bound) if flag(op, "bias", bias) else None

    def _weight_shape(self, in_channels: int, out_channels: int) -> tuple[int, ...]:
        return (in_channels, out_channels // self.groups, *self.kernel_size)

    def _channels(self) -> tuple[int, int]:
        return self.weight.shape[0], self.weight.shape[1] * self.groups

    def __call__(self, x: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        """Return the transposed convolution of ``x``.

        Args:
            output_size: sizes of the spatial axes of the result; with a stride > 1 several are possible.
        """
        op = type(self).__name__
        check_tensors(op, [x])
        extra = self.output_padding
        if output_size is not None:
            wanted = integers(op, "output_size", tuple(output_size)[-self.dims :], self.dims, least=0)
            around, steps = pad_pairs(op, self.padding, self.dims), integers(op, "stride", self.stride, self.dims)
            least = [(s - 1) * step - b - e + spread * (k - 1) + 1 for s, step, (b, e), spread, k in zip(
                x.shape[x.ndim - self.dims :], steps, around, self.dilation, self.kernel_size)]
            extra = tuple(n - m for n, m in zip(wanted, least))
            if any(not 0 <= n < max(step, spread) for n, step, spread in zip(extra, steps, self.dilation)):
                most = [m + max(step, spread) - 1 for m, step, spread in zip(least, steps, self.dilation)]
                raise ArgumentError(op, f"output_size={wanted} of an input {x.shape}",
                                    f"sizes from {tuple(least)} to {tuple(most)}")
        return x.conv_transpose2d(self.weight, self.bias, self.groups, self.stride, self.dilation,
                                  self.padding, extra)


class ConvTranspose1d(ConvTranspose2d):
    """1-D transposed convolution: ``[N, in, L] → [N, out, L']``."""

    dims = 1


class ConvTranspose3d(ConvTranspose2d):
    """3-D transposed convolution: ``[N, in, D, H, W] → [N, out, D', H', W']``."""

    dims = 3


def _plain(sizes: Any) -> Any:
    """Return a tuple of equal sizes as one number, other values unchanged."""
    return sizes[0] if isinstance(sizes, tuple) and len(set(sizes)) == 1 else sizes


class MaxPool2d(Layer):
    """Max pooling of ``[…, H, W]``; ``MaxPool1d`` and ``MaxPool3d`` pool one and three axes.

    >>> from tinsmith import nn
    >>> nn.MaxPool1d(2)(Tensor([[1., 5., 2., 3.]])).tolist()
    [[5.0, 3.0]]
    """

    dims = 2

    def __init__(self, kernel_size: Ints, stride: Ints | None = None, padding: Ints = 0, dilation: Ints = 1,
                 return_indices: bool = False, ceil_mode: bool = False) -> None:
        op = type(self).__name__
        self.kernel_size = integers(op, "kernel_size", kernel_size, self.dims, least=1)
        self.stride, self.padding, self.dilation = stride, padding, dilation
        self.return_indices = flag(op, "return_indices", return_indices)
        self.ceil_mode = flag(op, "ceil_mode", ceil_mode)

    def extra_repr(self) -> str:
        stride = self.kernel_size if self.stride is None else self.stride
        return arguments(kernel_size=_plain(self.kernel_size), stride=_plain(stride), padding=self.padding,
                         dilation=self.dilation, ceil_mode=self.ceil_mode)

    def __call__(self, x: Tensor) -> Any:
        check_tensors(type(self).__name__, [x])
        return x.max_pool2d(self.kernel_size, self.stride, dilation=self.dilation, padding=self.padding,
                            ceil_mode=self.ceil_mode, return_indices=self.return_indices)


class MaxPool1d(MaxPool2d):
    """Max pooling of ``[…, L]``; arguments as for ``MaxPool2d``."""

    dims = 1


class MaxPool3d(MaxPool2d):
    """Max pooling of ``[…, D, H, W]``; arguments as for ``MaxPool2d``."""

    dims = 3


class AvgPool2d(Layer):
    """Average pooling of ``[…, H, W]``; ``AvgPool1d`` and ``AvgPool3d`` pool one and three axes.

    >>> from tinsmith import nn
    >>> nn.AvgPool1d(2)(Tensor([[1., 5., 2., 3.]])).tolist()
    [[3.0, 2.5]]
    """

    dims = 2

    def __init__(self, kernel_size: Ints, stride: Ints | None = None, padding: Ints = 0, ceil_mode: bool = False,
                 count_include_pad: bool = True, divisor_override: int | None = None) -> None:
        op = type(self).__name__
        self.kernel_size = integers(op, "kernel_size", kernel_size, self.dims, least=1)
        self.stride, self.padding = stride, padding
        self.ceil_mode = flag(op, "ceil_mode", ceil_mode)
        self.count_include_pad = flag(op, "count_include_pad", count_include_pad)
        self.divisor_override = divisor_override

    def extra_repr(self) -> str:
        stride = self.kernel_size if self.stride is None else self.stride
        return arguments(kernel_size=_plain(self.kernel_size), stride=_plain(stride), padding=self.padding)

    def __call__(self, x: Tensor) -> Tensor:
        check_tensors(type(self).__name__, [x])
        return x.avg_pool2d(self.kernel_size, self.stride, padding=self.padding, ceil_mode=self.ceil_mode,
                            count_include_pad=self.count_include_pad, divisor_override=self.divisor_override)


class AvgPool1d(AvgPool2d):
    """Average pooling of ``[…, L]``; arguments as for ``AvgPool2d``."""

    dims = 1


class AvgPool3d(AvgPool2d):
    """Average pooling of ``[…, D, H, W]``; arguments as for ``AvgPool2d``."""

    dims = 3


class _AdaptivePool(Layer):
    """The base of adaptive pools: window i of n over s positions covers ⌊i·s/n⌋ up to ⌈(i+1)·s/n⌉ - 1."""

    dims = 2

    def __init__(self, output_size: int | Sequence[int | None] | None) -> None:
        several = isinstance(output_size, (tuple, list))
        given: Sequence[Any] = output_size if isinstance(output_size, (tuple, list)) else [output_size] * self.dims
        self.output_size = tuple(None if n is None else integers(type(self).__name__, "output_size", n, least=0)[0]
                                 for n in given)
        if several and len(given) != self.dims:
            integers(type(self).__name__, "output_size", [0] * len(given), self.dims)

    def extra_repr(self) -> str:
        return arguments(output_size=_plain(self.output_size))

    def __call__(self, x: Tensor) -> Tensor:
        op = type(self).__name__
        check_tensors(op, [x])
        if x.ndim not in (self.dims + 1, self.dims + 2):
            raise ShapeError(op, f"input {x.shape}", f"an input [N, C, …] with {self.dims} axes behind the channels")
        here = x.shape[x.ndim - self.dims :]
        wanted = tuple(s if n is None else n for s, n in zip(here, self.output_size))
        if not all(here):
            raise ShapeError(op, f"input {x.shape} has an axis of size 0 to pool over", "one element or more")
        if all(n and s % n == 0 for s, n in zip(here, wanted)):
            return self._even(x, tuple(s // n for s, n in zip(here, wanted)))
        for axis, (s, n) in enumerate(zip(here, wanted), x.ndim - self.dims):
            if s != n:
                x = self._uneven(x.transpose(axis, -1), s, n).transpose(axis, -1)
        return x

    def _uneven(self, x: Tensor, s: int, n: int) -> Tensor:
        """Pool the last axis of size ``s`` into ``n`` windows of different sizes."""
        raise NotImplementedError

    def _even(self, x: Tensor, kernel: tuple[int, ...]) -> Tensor:
        raise NotImplementedError


def _filled(x: Tensor, n: int, filling: float) -> Tensor:
    """Return the n windows of the last axis as ``[…, n, longest]``, shorter ones padded with ``filling``."""
    place, size = _windows(x.shape[-1], n)
    inside = Tensor(np.arange(place.shape[1]) < size, device=x.device)
    return inside.where(x[..., Tensor(place, device=x.device)], filling)


def _sums(x: Tensor, n: int) -> Tensor:
    """Return the sums of the n windows of the last axis."""
    return with_slopes(_filled(x, n, 0).sum(-1), _sums_slope, x)


def _sums_slope(gradient: Tensor, value: Tensor, x: Tensor) -> tuple[Tensor]:
    """Return the gradient of ``_sums``. Window i of n over s positions contains p (i·s < (p+1)·n and p·n < (i+1)·s)
    exactly if window p of s over n positions contains i, so it is ``_sums`` of the gradient with s windows."""
    return (_sums(gradient, x.shape[-1]),)


def _windows(s: int, n: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the positions of n windows as rows (short windows use a prefix), and their sizes ``[n, 1]``."""
    first, end = [i * s // n for i in range(n)], [-(-(i + 1) * s // n) for i in range(n)]
    longest = max((e - f for f, e in zip(first, end)), default=1)
    place = np.array(first, np.int32).reshape(n, 1) + np.arange(longest, dtype=np.int32)
    return np.minimum(place, s - 1), np.array([e - f for f, e in zip(first, end)], np.int32).reshape(n, 1)


class AdaptiveAvgPool2d(_AdaptivePool):
    """Average pooling of ``[…, H, W]`` to a given output size; also ``AdaptiveAvgPool1d``, ``AdaptiveAvgPool3d``.

    Args:
        output_size: of each axis; None keeps an axis as it is.

    >>> from tinsmith import nn
    >>> nn.AdaptiveAvgPool1d(2)(Tensor([[1., 2., 6.]])).tolist()
    [[1.5, 4.0]]
    """

    def _even(self, x: Tensor, kernel: tuple[int, ...]) -> Tensor:
        return x.avg_pool2d(kernel) if math.prod(kernel) > 1 else x

    def _uneven(self, x: Tensor, s: int, n: int) -> Tensor:
        sizes = Tensor(_windows(s, n)[1].reshape(n), device=x.device)
        return (_sums(x, n) / sizes).cast(x.dtype)


class AdaptiveAvgPool1d(AdaptiveAvgPool2d):
    """Average pooling of ``[…, L]`` to a given output size."""

    dims = 1


class AdaptiveAvgPool3d(AdaptiveAvgPool2d):
    """Average pooling of ``[…, D, H, W]`` to a given output size."""

    dims = 3


class AdaptiveMaxPool2d(_AdaptivePool):
    """Max pooling of ``[…, H, W]`` to a given output size; also ``AdaptiveMaxPool1d``, ``AdaptiveMaxPool3d``.

    Args:
        output_size: of each axis; None keeps an axis as it is.
        return_indices: also return the index of each maximum in its flattened (row-major) input plane.

    >>> from tinsmith import nn
    >>> nn.AdaptiveMaxPool1d(2)(Tensor([[1., 2., 6.]])).tolist()
    [[2.0, 6.0]]
    >>> nn.AdaptiveMaxPool1d(2, return_indices=True)(Tensor([[1., 2., 6.]]))[1].tolist()
    [[1, 2]]
    """

    def __init__(self, output_size: int | Sequence[int | None] | None, return_indices: bool = False) -> None:
        super().__init__(output_size)
        self.return_indices = flag(type(self).__name__, "return_indices", return_indices)

    def __call__(self, x: Tensor) -> Any:
        out = super().__call__(x)
        return (out, self._places(x)) if self.return_indices else out

    def _places(self, x: Tensor) -> Tensor:
        """Return the flat index of each window's first maximum, reducing axis by axis from the last."""
        here, lead = x.shape[x.ndim - self.dims :], (1,) * (x.ndim - self.dims)
        place = Tensor.arange(math.prod(here), device=x.device).reshape(*lead, *here).expand(x.shape)
        for axis in reversed(range(x.ndim - self.dims, x.ndim)):
            s, n = x.shape[axis], self.output_size[axis - x.ndim]
            rows, size = _windows(s, s if n is None else n)
            at, inside = Tensor(rows, device=x.device), Tensor(np.arange(rows.shape[1]) < size, device=x.device)
            values, places = (t.transpose(axis, -1)[..., at] for t in (x, place))
            best = inside.where(values, values.dtype.min).argmax(-1, keepdim=True)
            x, place = (t.gather(-1, best).squeeze(-1).transpose(axis, -1) for t in (values, places))
        return place

    def _even(self, x: Tensor, kernel: tuple[int, ...]) -> Tensor:
        return x.max_pool2d(kernel) if math.prod(kernel) > 1 else x

    def _uneven(self, x: Tensor, s: int, n: int) -> Tensor:
        return _filled(x, n, x.dtype.min).max(-1)


class AdaptiveMaxPool1d(AdaptiveMaxPool2d):
    """Max pooling of ``[…, L]`` to a given output size."""

    dims = 1


class AdaptiveMaxPool3d(AdaptiveMaxPool2d):
    """Max pooling of ``[…, D, H, W]`` to a given output size."""

    dims = 3
