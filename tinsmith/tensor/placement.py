"""Where values live: on another device, on several, or in memory of their own."""
# mypy: disable-error-code=misc
# ``self`` is the Tensor that this class is mixed into.
from __future__ import annotations

from typing import TYPE_CHECKING

from tinsmith.backend.device import Device, DeviceName
from tinsmith.core.dtypes import DType, to_dtype
from tinsmith.ir import Ops, UOp
from tinsmith.tensor import files
from tinsmith.tensor.base import TensorBase, device_name
from tinsmith.tensor.realize import numbers

if TYPE_CHECKING:
    from tinsmith.tensor.tensor import Tensor


class Placement(TensorBase):
    """Copies between devices."""

    __slots__ = ()

    def to(self, device: DeviceName | DType | Tensor | None = None, dtype: DType | str | bool | None = None,
           non_blocking: bool = False, copy: bool = False) -> Tensor:
        """The same values on another device, or whole on each of several. Parts on several devices are put together.

        >>> Tensor([1, 2]).to("CPU").device, Tensor([1]).to(dtypes.float32).dtype
        ('CPU', dtypes.float)

        Args:
            device: a device, or what stands in its place in PyTorch: a dtype to cast to, or a tensor whose dtype and
                device to take.
            dtype: cast to it, too. Behind a dtype or a tensor, ``non_blocking`` and ``copy`` come next, as in PyTorch.
            non_blocking: of PyTorch's; copies never block here.
            copy: memory of its own, also where nothing changes.
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
        """The values on another device or group; for ``alone`` see ``_on_host``."""
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
        """Data that no device has got yet, where they are: they need not go through the default device to another.

        Args:
            alone: this tensor gives its value up. Otherwise a gradient must find its way from the other device to it.
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
        """A copy in memory of its own, on another device if one is named.

        >>> Tensor([1, 2]).clone().tolist()
        [1, 2]
        """
        there = self if device is None else self.to(device)
        return there._new(UOp(Ops.CONTIGUOUS, None, (there.uop,), next(numbers)))
