"""Convolution layers."""
from __future__ import annotations

import math
from collections.abc import Sequence

from tinsmith.core.errors import ArgumentError
from tinsmith.nn.describe import Layer, arguments, per_axis
from tinsmith.tensor.arguments import choice, flag, integer, integers, size
from tinsmith.tensor.base import check_tensors
from tinsmith.tensor.nnops.windows import pad_pairs, same_padding
from tinsmith.tensor.tensor import Tensor

Ints = int | Sequence[int]


class Conv2d(Layer):
    """2-D convolution: ``[N, in, H, W] → [N, out, H', W']``, initialized as in PyTorch.

    Args:
        padding: of the input: one number, one per axis, (before, after) pairs from the last axis on, or "same".
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
