"""Normalization layers: batch, layer, group, instance and RMS normalization."""
from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tinsmith.core.dtypes import dtypes
from tinsmith.core.errors import ArgumentError, ShapeError
from tinsmith.nn.describe import Layer, arguments
from tinsmith.tensor.arguments import flag, integer, integers, number, size
from tinsmith.tensor.base import check_tensors
from tinsmith.tensor.modes import note_mode
from tinsmith.tensor.tensor import Tensor


def _filled(shape: int | tuple[int, ...], value: float, requires_grad: bool | None = None) -> Tensor:
    """Return a constant tensor with its own buffer: equal lazy constants would be one node and one parameter."""
    return Tensor(np.full(shape, value, dtypes.default_float.numpy), requires_grad=requires_grad)


class _Running(Layer):
    """The running mean and variance of each channel, updated in training."""

    momentum: float | None
    num_features: int
    eps: float
    track_running_stats: bool
    weight: Tensor | None
    bias: Tensor | None

    def extra_repr(self) -> str:
        rest = arguments(eps=self.eps, momentum=self.momentum, affine=self.weight is not None,
                         bias=self.bias is not None, track_running_stats=self.track_running_stats)
        return f"{self.num_features}, {rest}"

    def _begin(self) -> None:
        self.num_batches_tracked = Tensor(np.zeros(1, np.int64), requires_grad=False)
        self.running_mean = _filled(self.num_features, 0, False)
        self.running_var = _filled(self.num_features, 1, False)

    def _track(self, mean: Tensor, variance: Tensor, count: int) -> None:
        """Update the running statistics from statistics over ``count`` values; the running variance is unbiased."""
        mean, variance = (t.reshape(-1, self.num_features) for t in (mean, variance * (count / max(count - 1, 1))))
        newest = self.momentum if self.momentum is not None else 1 / (self.num_batches_tracked + 1).float()
        for running, new in ((self.running_mean, mean), (self.running_var, variance)):
            found = new.reshape(-1) if new.shape[0] == 1 else new.mean(0)
            running.assign((running * (1 - newest) + found * newest).cast(running.dtype))
        self.num_batches_tracked.assign(self.num_batches_tracked + 1)


class BatchNorm(_Running):
    """Batch normalization of each channel (axis 1) of ``[N, C, …]``; uses running statistics outside training.

    Args:
        affine: learn a scale and a shift per channel.
        track_running_stats: keep running mean and variance, updated by each call in training.
        momentum: weight of the latest batch in the running statistics; None: the mean of all batches.
        synced: compute the statistics over the batch of all devices. False: each device uses its shard alone, and the
            running statistics are means over devices. Over processes, ``distributed.sync_batch_norm`` does so.
        bias: False: no shift.

    >>> from tinsmith import nn
    >>> layer = nn.BatchNorm(2)
    >>> with Tensor.train():
    ...     layer(Tensor([[1., 2.], [3., 6.]])).shape
    (2, 2)
    >>> layer.num_batches_tracked.item()
    1
    """

    def __init__(self, sz: int, eps: float = 1e-5, affine: bool = True, track_running_stats: bool = True,
                 momentum: float | None = 0.1, synced: bool = True, bias: bool = True) -> None:
        sz = self.num_features = size("BatchNorm", "sz", sz)
        self.eps = number("BatchNorm", "eps", eps)
        self.momentum = None if momentum is None else number("BatchNorm", "momentum", momentum)
        affine, self.synced = flag("BatchNorm", "affine", affine), flag("BatchNorm", "synced", synced)
        self.track_running_stats = flag("BatchNorm", "track_running_stats", track_running_stats)
        self.weight = _filled(sz, 1) if affine else None
        self.bias = _filled(sz, 0) if affine and flag("BatchNorm", "bias", bias) else None
        if self.track_running_stats:
            self._begin()

    def __call__(self, x: Tensor) -> Tensor:
        check_tensors("BatchNorm", [x])
        if x.ndim < 2 or x.shape[1] != self.num_features:
            raise ShapeError("BatchNorm", f"input {x.shape}, {self.num_features} channels",
                             f"an input [N, {self.num_features}, …]")
        if self.track_running_stats and Tensor.recording:
            note_mode("BatchNorm", Tensor.training, self.weight)
        if self.track_running_stats and not Tensor.training:
            invstd = (self.running_var + self.eps).rsqrt()
            return x.batchnorm(self.weight, self.bias, self.running_mean, invstd).cast(x.dtype)
        if 0 in x.shape:  # an empty batch has no statistics
            if self.track_running_stats:
                self.num_batches_tracked.assign(self.num_batches_tracked + 1)
            zeros = Tensor.zeros(self.num_features, dtype=x.dtype, device=x.device, requires_grad=False)
            return x.batchnorm(self.weight, self.bias, zeros, zeros)
        wide = x.float() if x.dtype.itemsize <= 2 else x
        groups = 1 if self.synced else self._groups(x)
        if groups > 1:
            wide = wide.reshape(groups, -1, *x.shape[1:])
        extra = wide.ndim - x.ndim
        mean, centred, variance, parts = self._moments(wide, (extra, *range(2 + extra, wide.ndim)))
        if self.track_running_stats and Tensor.training:
            with Tensor.no_grad():
                self._track(mean.detach(), variance.detach(), parts * wide.numel() // self.num_features // groups)
        shape = (1, -1, *[1] * (x.ndim - 2))
        scale = (variance + self.eps).rsqrt()
        out = centred * (scale if self.weight is None else scale * self.weight.reshape(shape))
        out = (out if self.bias is None else out + self.bias.reshape(shape)).cast(x.dtype)
        return out.reshape(x.shape) if groups > 1 else out

    def _moments(self, x: Tensor, axes: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor, int]:
        """Return (mean, x - mean, variance) along ``axes``, and the number of parts like ``x`` that they are of."""
        return *x._statistics(axes), 1

    def _groups(self, x: Tensor) -> int:
        """Return the number of devices that the batch is sharded over."""
        devices = x.device
        if isinstance(devices, str) or x.shard_axis != 0:
            return 1
        if x.shape[0] % len(devices):
            raise ShapeError("BatchNorm", f"a batch of {x.shape[0]} has unequal parts on {len(devices)} devices",
                             "an even batch, or synced=True")
        return len(devices)


BatchNorm1d = BatchNorm2d = BatchNorm3d = BatchNorm


class LayerNorm(Layer):
    """Layer normalization over the last axes (``normalized_shape``), then scale and shift.

    >>> from tinsmith import nn
    >>> nn.LayerNorm(4)(Tensor.ones(2, 4)).tolist()[0]
    [0.0, 0.0, 0.0, 0.0]
    """

    def __init__(self, normalized_shape: int | Sequence[int], eps: float = 1e-5, elementwise_affine: bool = True,
                 bias: bool = True) -> None:
        shape = integers("LayerNorm", "normalized_shape", normalized_shape, least=0)
        elementwise_affine = flag("LayerNorm", "elementwise_affine", elementwise_affine)
        self.normalized_shape, self.eps = shape, number("LayerNorm", "eps", eps)
        self.axis = tuple(range(-len(shape), 0))
        self.weight = _filled(shape, 1) if elementwise_affine else None
        self.bias = _filled(shape, 0) if elementwise_affine and flag("LayerNorm", "bias", bias) else None

    def extra_repr(self) -> str:
        rest = arguments(eps=self.eps, elementwise_affine=self.weight is not None, bias=self.bias is not None)
        return f"{self.normalized_shape}, {rest}"

    def __call__(self, x: Tensor) -> Tensor:
        check_tensors("LayerNorm", [x])
        if tuple(x.shape[-len(self.normalized_shape) :]) != self.normalized_shape:
            raise ShapeError("LayerNorm", f"input {x.shape}, normalized shape {self.normalized_shape}",
                             f"an input that ends in {self.normalized_shape}")
        out = x.layernorm(self.axis, self.eps)
        out = out if self.weight is None else out * self.weight
        return out if self.bias is None else out + self.bias


class LayerNorm2d(LayerNorm):
    """``LayerNorm`` over the channel axis of ``[N, C, H, W]``."""

    def __call__(self, x: Tensor) -> Tensor:
        check_tensors("LayerNorm2d", [x])
        if x.ndim != 4:
            raise ShapeError("LayerNorm2d", f"input {x.shape}", "an input [N, C, H, W]")
        return super().__call__(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class GroupNorm(Layer):
    """Group normalization of ``[N, C, …]``: statistics per sample and group of channels, scale and shift per channel.

    >>> from tinsmith import nn
    >>> nn.GroupNorm(2, 4)(Tensor.ones(1, 4, 3)).shape
    (1, 4, 3)
    """

    def __init__(self, num_groups: int, num_channels: int, eps: float = 1e-5, affine: bool = True,
                 bias: bool = True) -> None:
        num_groups = integer("GroupNorm", "num_groups", num_groups, 1)
        num_channels, affine = size("GroupNorm", "num_channels", num_channels), flag("GroupNorm", "affine", affine)
        if num_channels % num_groups:
            raise ArgumentError("GroupNorm", f"{num_groups} groups of {num_channels} channels", "a divisor")
        self.num_groups, self.num_channels, self.eps = num_groups, num_channels, number("GroupNorm", "eps", eps)
        self.weight = _filled(num_channels, 1) if affine else None
        self.bias = _filled(num_channels, 0) if affine and flag("GroupNorm", "bias", bias) else None

    def extra_repr(self) -> str:
        rest = arguments(eps=self.eps, affine=self.weight is not None, bias=self.bias is not None)
        return f"{self.num_groups}, {self.num_channels}, {rest}"

    def __call__(self, x: Tensor) -> Tensor:
        check_tensors(type(self).__name__, [x])
        if x.ndim < 2 or x.shape[1] != self.num_channels:
            raise ShapeError("GroupNorm", f"input {x.shape}, {self.num_channels} channels",
                             f"an input [N, {self.num_channels}, …]")
        parts = x.reshape(x.shape[0], self.num_groups, self.num_channels // self.num_groups, *x.shape[2:])
        return self._scaled(parts.layernorm(tuple(range(2, parts.ndim)), self.eps).reshape(x.shape))

    def _scaled(self, x: Tensor) -> Tensor:
        shape = (1, -1, *[1] * (x.ndim - 2))
        out = x if self.weight is None else x * self.weight.reshape(shape)
        return out if self.bias is None else out + self.bias.reshape(shape)


class InstanceNorm(_Running, GroupNorm):
    """Instance normalization of ``[N, C, …]``: statistics per sample and channel.

    Args:
        affine: learn a scale and a shift per channel.
        track_running_stats: keep running mean and variance, which are used outside training.
        momentum: weight of the latest batch in the running statistics.
        bias: False: no shift.
    """

    def __init__(self, num_features: int, eps: float = 1e-5, affine: bool = True, track_running_stats: bool = False,
                 momentum: float = 0.1, bias: bool = True) -> None:
        super().__init__(num_features, num_features, eps, affine, bias)
        self.num_features, self.momentum = self.num_channels, number("InstanceNorm", "momentum", momentum)
        self.track_running_stats = flag("InstanceNorm", "track_running_stats", track_running_stats)
        if self.track_running_stats:
            self._begin()

    def __call__(self, x: Tensor) -> Tensor:
        if not self.track_running_stats:
            return super().__call__(x).cast(x.dtype)
        check_tensors(type(self).__name__, [x])
        if x.ndim < 3 or x.shape[1] != self.num_features:
            raise ShapeError("InstanceNorm", f"input {x.shape}, {self.num_features} channels",
                             f"an input [N, {self.num_features}, …]")
        if Tensor.recording:
            note_mode("InstanceNorm", Tensor.training, self.weight)
        if not Tensor.training:
            invstd = (self.running_var + self.eps).rsqrt()
            return x.batchnorm(self.weight, self.bias, self.running_mean, invstd).cast(x.dtype)
        wide = (x.float() if x.dtype.itemsize <= 2 else x).flatten(2)
        with Tensor.no_grad():
            mean, _, variance = wide._statistics(-1)
            self._track(mean.detach(), variance.detach(), wide.shape[-1])
        return super().__call__(x).cast(x.dtype)


class InstanceNorm1d(InstanceNorm):
    """``InstanceNorm`` with PyTorch's name and default: no scale and shift unless ``affine=True``.

    >>> from tinsmith import nn
    >>> nn.InstanceNorm1d(2)(Tensor([[[1., 3.], [5., 5.]]])).numpy().round(2).tolist()
    [[[-1.0, 1.0], [0.0, 0.0]]]
    """

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float = 0.1, affine: bool = False,
                 track_running_stats: bool = False, bias: bool = True) -> None:
        super().__init__(num_features, eps, affine, track_running_stats, momentum, bias)


InstanceNorm2d = InstanceNorm3d = InstanceNorm1d


class RMSNorm(Layer):
    """RMS normalization: the last axes (``dim``) divided by their root mean square, then scaled.

    >>> from tinsmith import nn
    >>> nn.RMSNorm(2)(Tensor([[3., 3.]])).numpy().round(3).tolist()
    [[1.0, 1.0]]
    """

    def __init__(self, dim: int | Sequence[int], eps: float = 1e-6, elementwise_affine: bool = True) -> None:
        self.eps, self.normalized_shape = number("RMSNorm", "eps", eps), integers("RMSNorm", "dim", dim, least=0)
        affine = flag("RMSNorm", "elementwise_affine", elementwise_affine)
        self.weight = _filled(self.normalized_shape, 1) if affine else None

    def extra_repr(self) -> str:
        return f"{self.normalized_shape}, {arguments(eps=self.eps, elementwise_affine=self.weight is not None)}"

    def __call__(self, x: Tensor) -> Tensor:
        check_tensors("RMSNorm", [x])
        if x.shape[-len(self.normalized_shape) :] != self.normalized_shape:
            raise ShapeError("RMSNorm", f"input {x.shape}, weight {self.normalized_shape}",
                             f"an input that ends in {self.normalized_shape}")
        out = x.rms_norm(tuple(range(-len(self.normalized_shape), 0)), self.eps)
        return out if self.weight is None else out * self.weight
