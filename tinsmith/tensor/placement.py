# mypy: disable-error-code=misc
"""Device placement of tensors: copies between devices, clones, and replication or sharding over several devices."""
from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from tinsmith.backend.device import Device, DeviceName, members
from tinsmith.backend.memory import Buffer
from tinsmith.core.dtypes import DType, to_dtype
from tinsmith.core.errors import ShapeError
from tinsmith.ir import Ops, UOp
from tinsmith.schedule.multi.collectives import even_bounds
from tinsmith.schedule.multi.sharding import place_of
from tinsmith.tensor.base import TensorBase, check_tensors, device_name
from tinsmith.tensor.helpers import axis_of
from tinsmith.tensor.interop import files
from tinsmith.tensor.realize import numbers

if TYPE_CHECKING:
    from tinsmith.tensor.tensor import Tensor


class Placement(TensorBase):
    """Copies between devices."""

    __slots__ = ()

    def to(self, device: DeviceName | DType | Tensor | None = None, dtype: DType | str | bool | None = None,
           non_blocking: bool = False, copy: bool = False) -> Tensor:
        """Return the values on another device, or replicated on several devices; shards are gathered.

        >>> Tensor([1, 2]).to("CPU").device, Tensor([1]).to(dtypes.float32).dtype
        ('CPU', dtypes.float)

        Args:
            device: a device; as in PyTorch, also a dtype to cast to, or a tensor whose dtype and device to take.
            dtype: cast to it, too. Behind a dtype or a tensor, ``non_blocking`` and ``copy`` come next, as in PyTorch.
            non_blocking: of PyTorch's; copies never block here.
            copy: return a copy even if neither device nor dtype changes.
        """
        if isinstance(dtype, bool):
            return self.to(device, None, dtype, non_blocking or copy)
        if isinstance(device, TensorBase):
            return self.to(device._device, device.dtype, non_blocking, copy)
        if isinstance(device, DType):
            device, dtype = self._device, device
        elif device is None and dtype is not None:
            device = self._device
        moved = self._moved(device_name(device))
        if dtype is not None and to_dtype(dtype) is not self.dtype:
            return moved._new(moved.uop.cast(to_dtype(dtype)))
        return moved.clone() if copy and moved is self else moved

    def to_(self, device: DeviceName | None) -> Tensor:
        """Move this tensor to another device in place.

        >>> Tensor([1, 2]).to_("CPU").tolist()
        [1, 2]
        """
        return self._take_place(self._moved(device_name(device), alone=True))

    def _moved(self, target: str, alone: bool = False) -> Tensor:
        """Return the values on another device or group; for ``alone`` see ``_on_host``."""
        if target == self._device:
            return self  # type: ignore[return-value]
        if files.on_disk(target) or files.on_disk(self._device):
            return type(self)._wrap(files.moved(self, target), target)
        source = self._on_host(alone)
        moved = self.uop.copy_to(target) if source is None else source.base.copy_to(target).reshape(self.shape)
        out = type(self)._wrap(moved, target)
        out.requires_grad = self.requires_grad
        return out

    def _on_host(self, alone: bool = False) -> UOp | None:
        """Return the tensor's host data if it was not copied to a device yet, else None.

        Moving the tensor to another device then takes one copy instead of two.

        Args:
            alone: True if this tensor is moved. Otherwise it stays, and its gradient must flow back from the other
                device, so the result is None for tensors that need a gradient.
        """
        node = self.uop
        if files.on_disk(self._device):
            return files.on_host(self)
        if not alone and self.requires_grad is not False and self.dtype.is_float:
            return None
        if node.op is Ops.DETACH and node.arg is not None:
            node = node.src[0]
        while node.op is Ops.RESHAPE:
            node = node.src[0]
        host = node.src[0] if node.op is Ops.COPY else node
        if host is node or host.op is not Ops.BUFFER or host.arg.layout is not None:
            return None
        return None if Device[host.arg.device].has_programs else host.reshape(self.shape)

    def clone(self, device: DeviceName | None = None) -> Tensor:
        """Return a copy of the values in new memory, on ``device`` if given.

        >>> Tensor([1, 2]).clone().tolist()
        [1, 2]
        """
        there = self if device is None else self.to(device)
        return there._new(UOp(Ops.CONTIGUOUS, None, (there.uop,), next(numbers)))


class Sharding:
    """``shard``, ``shard_``, ``shard_like``. A SHARD node, or a buffer of shards, corresponds to tinygrad's
    MultiLazyBuffer."""

    __slots__ = ()

    def shard(self: Tensor, devices: DeviceName | Sequence[str], axis: int | None = None) -> Tensor:
        """Return the values sharded over several devices along ``axis``, or replicated on each if ``axis`` is None.

        Every operation accepts sharded tensors and returns the same values as on one device. If the size is not
        divisible, the first shards are one element longer.

        >>> x = Tensor([1, 2, 3, 4]).shard(("CPU:0", "CPU:1"), axis=0)
        >>> x.device, x.shape, x.sum().item()
        (('CPU', 'CPU:1'), (4,), 10)

        Raises:
            DeviceError: for a device that does not exist, or is named twice.
            ShapeError: if the axis is shorter than there are devices, or symbolic.
        """
        return self._sharded(devices, axis)

    def shard_(self: Tensor, devices: DeviceName | Sequence[str], axis: int | None = None) -> Tensor:
        """Spread this tensor over several devices in place.

        >>> a = Tensor([1., 2., 3., 4.]).shard_(("CPU:0", "CPU:1"), axis=0)
        >>> b = Tensor([5., 6., 7., 8.]).shard_(("CPU:0", "CPU:1"), axis=0)
        >>> a.dot(b).item()
        70.0
        """
        return self._take_place(self._sharded(devices, axis, alone=True))

    def _sharded(self: Tensor, devices: DeviceName | Sequence[str], axis: int | None, alone: bool = False) -> Tensor:
        name = device_name(tuple(devices) if isinstance(devices, list) else devices)  # type: ignore[arg-type]
        if axis is None or len(members(name)) == 1:
            return self._moved(name, alone)
        d = axis_of("shard", self, axis)
        host = self._on_host(alone)
        made = self._new(parts(self.uop if host is None else host, d, name, on_host=host is not None))
        made.requires_grad = self.requires_grad
        return made

    def shard_like(self: Tensor, other: Tensor) -> Tensor:
        """Return the values placed like ``other``, of the same shape: on its device, or sharded in the same way.

        >>> x = Tensor.ones(4, 2).shard(("CPU:0", "CPU:1"), axis=1)
        >>> Tensor.zeros(4, 2).shard_like(x).shard_axis
        1

        Raises:
            ShapeError: if the shapes differ.
        """
        check_tensors("shard_like", [other])
        if len(members(other._device)) == 1 or other.shard_axis is None:
            return self.to(other._device)
        if self.shape != other.shape:
            raise ShapeError("shard_like", f"{self.shape} cannot lie like {other.shape}", "equal shapes")
        _, axis, bounds = place_of(other.uop)
        assert axis is not None
        if place_of(self.uop) == place_of(other.uop):
            return self
        made = self._new(parts(self.uop, axis, other._device, bounds))
        made.requires_grad = self.requires_grad
        return made

    @property
    def shard_axis(self: Tensor) -> int | None:
        """The axis along which the values are sharded over several devices; None if they are not sharded.

        >>> x = Tensor.ones(4, 2).shard(("CPU:0", "CPU:1"), axis=1)
        >>> x.shard_axis, x.T.shard_axis, x.sum(1).shard_axis
        (1, 0, None)
        """
        return place_of(self.uop)[1]


def parts(uop: UOp, axis: int, name: str, bounds: tuple[int, ...] | None = None, on_host: bool = False) -> UOp:
    """Return a value sharded along an axis, evenly unless ``bounds`` are given.

    Raises:
        ShapeError: if the axis is too short, or symbolic.
    """
    devices, size = members(name), uop.shape[axis]
    if isinstance(size, UOp):
        raise ShapeError("shard", f"axis {axis} of shape {uop.shape} has a size that is known only at run time",
                         "another axis, or axis=None")
    if size < len(devices):
        raise ShapeError("shard", f"axis {axis} of shape {uop.shape} is too short for {len(devices)} devices",
                         "fewer devices, another axis, or axis=None")
    ends = bounds or even_bounds(size, len(devices))
    found = []
    if uop.device is not None and not on_host and not Device[members(uop.device)[0]].has_programs:
        uop = uop.copy_to(devices[0])  # memory cannot cut what it has
    for d, (b, e) in zip(devices, pairwise(ends)):
        if on_host:
            found.append(_host_part(uop, axis, b, e).copy_to(d))
            continue
        part = uop.shrink(tuple((b, e) if i == axis else (0, s) for i, s in enumerate(uop.shape)))
        found.append(part if uop.device is None else part.copy_to(d))
    return UOp(Ops.SHARD, None, tuple(found), (axis, name))


def _host_part(uop: UOp, axis: int, begin: int, end: int) -> UOp:
    """Return a range of an axis of a host buffer as a new host buffer, so that a device receives only its shard."""
    whole = np.frombuffer(uop.base.arg.host_view(), uop.dtype.numpy).reshape(uop.shape)
    part = np.ascontiguousarray(whole[(slice(None),) * axis + (slice(begin, end),)])
    buffer = Buffer(uop.base.arg.device, part.size, uop.dtype, opaque=part.reshape(-1).view(np.uint8))
    return UOp(Ops.BUFFER, uop.dtype, (), buffer).reshape(part.shape)
