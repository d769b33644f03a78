"""The device behind ``Tensor(array)``: a buffer here is the caller's own array, so creating it copies nothing."""
from __future__ import annotations

from typing import Any

import numpy as np

from tinsmith.backend.device import Allocator, Compiled, Compiler, Program
from tinsmith.codegen.launch import Launch
from tinsmith.codegen.render.base import Renderer
from tinsmith.core.errors import DeviceError, OutOfMemoryError


class ArrayAllocator(Allocator):
    """Blocks are contiguous arrays of bytes."""

    def alloc(self, nbytes: int) -> np.ndarray[Any, Any]:
        try:
            return np.empty(nbytes, np.uint8)
        except (MemoryError, ValueError):  # NumPy refuses sizes that no address could name as a ValueError
            raise OutOfMemoryError("NumPy", f"{nbytes} bytes requested for a copy on the host",
                                   "a smaller part") from None

    def copyin(self, opaque: np.ndarray[Any, Any], offset: int, source: memoryview) -> None:
        opaque[offset : offset + source.nbytes] = np.frombuffer(source, np.uint8)

    def copyout(self, target: memoryview, opaque: np.ndarray[Any, Any], offset: int) -> None:
        target[:] = self.host_view(opaque, offset, target.nbytes)

    def host_view(self, opaque: np.ndarray[Any, Any], offset: int, nbytes: int) -> memoryview:
        return opaque.data[offset : offset + nbytes]


def _no_programs(kernel: Launch, binary: bytes) -> Program:
    raise DeviceError("NPY", "NumPy arrays are memory without programs", "Tensor(...).to('CPU')")


class DEVICE(Compiled):
    """The NPY device."""

    def __init__(self, device: str) -> None:
        super().__init__(device, ArrayAllocator(), Compiler(), _no_programs)

    @property
    def renderer(self) -> Renderer:
        raise DeviceError("Device", f"{self.device} is memory without programs", "copy the tensor with .to('CPU')")
