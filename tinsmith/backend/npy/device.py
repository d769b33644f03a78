"""The device behind ``Tensor(array)``: its buffers are the caller's own arrays, so creating one copies nothing."""
from __future__ import annotations

import mmap
from typing import Any

import numpy as np

from tinsmith.backend.device import Allocator, Compiled, Compiler
from tinsmith.backend.program import Program
from tinsmith.codegen.launch import Launch
from tinsmith.codegen.render.base import Renderer
from tinsmith.core.errors import DeviceError, FileFormatError, OutOfMemoryError


class ArrayAllocator(Allocator):
    """Allocator whose blocks are contiguous byte arrays."""

    def alloc(self, nbytes: int) -> np.ndarray[Any, Any]:
        try:
            return np.empty(nbytes, np.uint8)
        except (MemoryError, ValueError):  # NumPy raises ValueError for sizes beyond the address space
            raise OutOfMemoryError("NumPy", f"{nbytes} bytes requested for a copy on the host",
                                   "a smaller part") from None

    def copyin(self, opaque: np.ndarray[Any, Any], offset: int, source: memoryview) -> None:
        check_file(opaque)[offset : offset + source.nbytes] = np.frombuffer(source, np.uint8)

    def copyout(self, target: memoryview, opaque: np.ndarray[Any, Any], offset: int) -> None:
        target[:] = self.host_view(opaque, offset, target.nbytes)

    def host_view(self, opaque: np.ndarray[Any, Any], offset: int, nbytes: int) -> memoryview:
        return check_file(opaque).data[offset : offset + nbytes]


def file_of(block: np.ndarray[Any, Any]) -> np.memmap[Any, Any] | None:
    """Return the memory-mapped file that an array is part of; None for ordinary memory."""
    owner: Any = block
    while isinstance(owner, np.ndarray) and not isinstance(owner, np.memmap):
        owner = owner.base
    return owner if isinstance(owner, np.memmap) else None


def check_file(block: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return ``block``. Raise if its file was truncated since it was mapped: reading would give zeros or kill Python.

    Raises:
        FileFormatError: naming the file.
    """
    file = file_of(block)
    owner: Any = file
    while isinstance(owner, np.ndarray):
        owner = owner.base
    if file is not None and isinstance(owner, mmap.mmap) and owner.size() < len(owner):
        raise FileFormatError("read", f"{str(file.filename)!r} has {owner.size()} bytes, and had {len(owner)} "
                              "when it was opened", "the original file, unmodified until its tensors are computed")
    return block


def _no_programs(kernel: Launch, binary: bytes) -> Program:
    raise DeviceError("NPY", "NumPy arrays are memory without programs", "Tensor(...).to('CPU')")


class DEVICE(Compiled):
    """The NPY device."""

    def __init__(self, device: str) -> None:
        super().__init__(device, ArrayAllocator(), Compiler(), _no_programs)

    @property
    def renderer(self) -> Renderer:
        raise DeviceError("Device", f"{self.device} is memory without programs", "copy the tensor with .to('CPU')")
