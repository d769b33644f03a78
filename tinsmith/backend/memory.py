"""Buffers: memory on a device, allocated when it is first needed and given back when nothing refers to it."""
from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np

from tinsmith.backend.device import Device
from tinsmith.core.dtypes import DType
from tinsmith.core.errors import KernelError


@dataclass(frozen=True)
class BufferSpec:
    """Wishes about a buffer's memory."""

    cpu_access: bool = False
    uncached: bool = False


class Buffer:
    """``size`` elements of ``dtype`` on ``device``; a view shares the memory of ``base`` from byte ``offset`` on.

    >>> b = Buffer("CPU", 2, dtypes.int32)
    >>> b.copyin(memoryview(np.array([3, 4], np.int32))).numpy()
    array([3, 4], dtype=int32)
    """

    __slots__ = ("__weakref__", "_finalizer", "_opaque", "base", "device", "dtype", "failed", "offset", "options",
                 "size")

    def __init__(self, device: str, size: int, dtype: DType, options: BufferSpec | None = None,
                 base: Buffer | None = None, offset: int = 0, opaque: Any = None) -> None:
        self.device: str = base.device if base is not None else Device.canonicalize(device)
        self.size, self.dtype = size, dtype
        self.options, self.base, self.offset = options or BufferSpec(), base, offset
        self.failed: BaseException | None = None
        self._opaque: Any = opaque
        self._finalizer: Any = None

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    def is_allocated(self) -> bool:
        return self.base.is_allocated() if self.base is not None else self._opaque is not None

    @property
    def opaque(self) -> Any:
        """The allocator's handle; memory is taken now if there is none yet."""
        if self.base is not None:
            return self.base.opaque
        if self._opaque is None:
            self.allocate()
        return self._opaque

    def allocate(self) -> Buffer:
        """Take the memory now."""
        allocator = Device[self.device].allocator
        self._opaque = allocator.alloc(self.nbytes)
        self._finalizer = weakref.finalize(self, allocator.free, self._opaque)
        self._finalizer.atexit = False
        return self

    def copyin(self, source: memoryview) -> Buffer:
        """Fill from host bytes of the same size."""
        Device[self.device].allocator.copyin(self.opaque, self.offset, source.cast("B") if source.nbytes else source)
        return self

    def copyout(self, target: memoryview) -> memoryview:
        """Copy into host bytes of the same size."""
        self.check()
        if target.nbytes:
            Device[self.device].allocator.copyout(target.cast("B"), self.opaque, self.offset)
        return target

    def check(self) -> None:
        """Raise if the kernel that should have filled this buffer failed.

        Raises:
            KernelError: naming that failure.
        """
        if self.failed is not None:
            raise KernelError("read", f"the kernel that computes this value failed: {self.failed}",
                              "mend that failure and compute the value again") from self.failed

    def as_buffer(self) -> memoryview:
        """A copy of the contents as bytes."""
        return self.copyout(memoryview(bytearray(self.nbytes)))

    def host_view(self) -> memoryview | None:
        """The bytes themselves where the host can address them."""
        return Device[self.device].allocator.host_view(self.opaque, self.offset, self.nbytes)

    def numpy(self) -> np.ndarray[Any, Any]:
        """A copy as a one-dimensional NumPy array."""
        out = np.empty(self.size, self.dtype.numpy)
        self.copyout(out.view(np.uint8).data)
        return out

    def view(self, size: int, dtype: DType, offset: int) -> Buffer:
        """``size`` elements of ``dtype`` of this buffer's memory, from byte ``offset`` on."""
        base = self if self.base is None else self.base
        return Buffer(self.device, size, dtype, self.options, base, self.offset + offset)

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickle holds the contents: addresses mean nothing elsewhere. A view becomes a buffer of its own."""
        contents = bytes(self.as_buffer()) if self.is_allocated() else None
        return _loaded, (self.device, self.size, self.dtype, self.options, contents)

    def __repr__(self) -> str:
        return f"<Buffer {self.device} {self.size} x {self.dtype!r}{f' +{self.offset}' if self.offset else ''}>"


def _loaded(device: str, size: int, dtype: DType, options: BufferSpec, contents: bytes | None) -> Buffer:
    b = Buffer(device, size, dtype, options)
    return b if contents is None else b.copyin(memoryview(contents))
