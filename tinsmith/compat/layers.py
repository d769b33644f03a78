"""tinygrad's convolution layers: the length of ``kernel_size`` gives the number of axes."""
from __future__ import annotations

from tinsmith import nn
from tinsmith.nn.layers.conv import Ints


def _axes(kernel_size: Ints) -> int:
    return 2 if isinstance(kernel_size, int) else len(kernel_size)


class Conv2d(nn.Conv2d):
    """Convolution over as many axes as ``kernel_size`` has numbers; over two for one number.

    >>> from tinsmith import Tensor
    >>> Conv2d(2, 3, (3, 3, 3))(Tensor.ones(1, 2, 4, 5, 6)).shape
    (1, 3, 2, 3, 4)
    """

    def __init__(self, in_channels: int, out_channels: int, kernel_size: Ints, stride: Ints = 1,
                 padding: Ints | str = 0, dilation: Ints = 1, groups: int = 1, bias: bool = True) -> None:
        self.dims = _axes(kernel_size)
        super().__init__(in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias)


class ConvTranspose2d(nn.ConvTranspose2d, Conv2d):
    """Transposed convolution over as many axes as ``kernel_size`` has numbers; over two for one number."""

    def __init__(self, in_channels: int, out_channels: int, kernel_size: Ints, stride: Ints = 1, padding: Ints = 0,
                 output_padding: Ints = 0, dilation: Ints = 1, groups: int = 1, bias: bool = True) -> None:
        self.dims = _axes(kernel_size)
        super().__init__(in_channels, out_channels, kernel_size, stride, padding, output_padding, dilation, groups,
                         bias)


def _one_axis(kernel_size: Ints) -> Ints:
    return (kernel_size,) if isinstance(kernel_size, int) else kernel_size


def Conv1d(in_channels: int, out_channels: int, kernel_size: Ints, stride: Ints = 1, padding: Ints | str = 0,
           dilation: Ints = 1, groups: int = 1, bias: bool = True) -> Conv2d:
    """A ``Conv2d`` over one axis."""
    return Conv2d(in_channels, out_channels, _one_axis(kernel_size), stride, padding, dilation, groups, bias)


def ConvTranspose1d(in_channels: int, out_channels: int, kernel_size: Ints, stride: Ints = 1, padding: Ints = 0,
                    output_padding: Ints = 0, dilation: Ints = 1, groups: int = 1,
                    bias: bool = True) -> ConvTranspose2d:
    """A ``ConvTranspose2d`` over one axis."""
    return ConvTranspose2d(in_channels, out_channels, _one_axis(kernel_size), stride, padding, output_padding,
                           dilation, groups, bias)
