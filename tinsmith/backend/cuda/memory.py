"""GPU memory, pinned host memory, copies between host and GPU, and tensor maps.

Copies use a ring of pinned buffers. Tensor maps (TMA descriptors) describe boxes of a buffer to the copy engine;
kernels take them by value.
"""
from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tinsmith.backend.cpu import os_calls
from tinsmith.backend.cuda.driver import LESS, CudaGPU
from tinsmith.backend.device import Allocator
from tinsmith.backend.memory import FreeLists, MemoryBlock
from tinsmith.core.dtypes import DType, dtypes
from tinsmith.core.errors import DeviceError, OutOfMemoryError

if TYPE_CHECKING:
    from tinsmith.backend.memory import BufferSpec

PIECE: Final = 4 << 20  # bytes of a pinned buffer of the copy ring
PIECES: Final = 4  # buffers of the ring


class _GPUMemory(FreeLists):
    """Free lists over driver allocations. A freed block can be reused at once, because the stream runs everything in
    order."""

    what = "of the GPU's memory"

    def __init__(self, gpu: CudaGPU, cache_limit: int) -> None:
        super().__init__(cache_limit)
        self.gpu = gpu

    def made(self, nbytes: int) -> tuple[int, Callable[[], None]]:
        """Allocate memory; return its address and a function that frees it."""
        address = int(self.gpu.call(self.gpu.driver.cuMemAlloc, max(nbytes, 1)))
        return address, lambda: self.release(self.gpu.driver.cuMemFree, address)

    def release(self, function: Callable[[int], Any], address: int) -> None:
        if not self.gpu.lost:
            self.gpu.use()
            self.gpu.call(function, address)

    def _fresh(self, nbytes: int, capacity: int) -> MemoryBlock:
        self.gpu.check()
        self.gpu.use()
        for size in (capacity, nbytes):
            with contextlib.suppress(OutOfMemoryError):
                return MemoryBlock(nbytes, size, *self.made(size))
            self._shrink(0)
        free, total = self.gpu.memory()
        raise OutOfMemoryError(self.gpu.name, f"{nbytes} bytes {self.what} requested, {self.in_use} bytes in use here, "
                               f"{free} of {total} bytes of the GPU free", LESS)


class PinnedBlock(MemoryBlock):
    """Pinned host memory, which the GPU can address; ``pool`` is its allocator."""

    __slots__ = ("pool",)
    pool: _PinnedMemory


class _PinnedMemory(_GPUMemory):
    """Free lists of pinned host memory, addressable by every GPU.

    Args:
        uncached: write-combined: host writes bypass the caches, and host reads are slow.
    """

    what = "of pinned host memory"

    def __init__(self, gpu: CudaGPU, uncached: bool = False) -> None:
        super().__init__(gpu, os_calls.total_memory() // 16)
        self.flags = 0x1 | 0x2 | (0x4 if uncached else 0)  # portable, mapped, write-combined

    def made(self, nbytes: int) -> tuple[int, Callable[[], None]]:
        address = int(self.gpu.call(self.gpu.driver.cuMemHostAlloc, max(nbytes, 1), self.flags))
        return address, lambda: self.release(self.gpu.driver.cuMemFreeHost, address)

    def _fresh(self, nbytes: int, capacity: int) -> MemoryBlock:
        found = super()._fresh(nbytes, capacity)
        block = PinnedBlock(nbytes, found.capacity, found.address, found._release)
        block.pool = self
        return block


def _host_bytes(address: int, nbytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.frombuffer(memoryview((ctypes.c_ubyte * nbytes).from_address(address)), np.uint8)


class CUDAAllocator(Allocator):
    """The memory of one GPU. ``copyin`` returns once the source has been read; copies run in the stream, like
    kernels."""

    def __init__(self, gpu: CudaGPU) -> None:
        self.gpu = gpu
        self.memory = _GPUMemory(gpu, gpu.memory()[1] // 4)
        gpu.spare = self.memory.trim
        self.pinned, self.uncached = _PinnedMemory(gpu), _PinnedMemory(gpu, True)
        self._ring: list[tuple[int, np.ndarray[Any, Any], Any]] = []  # (address, bytes, event of its last use)
        self._next = 0

    def alloc(self, nbytes: int) -> MemoryBlock:
        return self.memory.alloc(nbytes)

    def alloc_as(self, nbytes: int, options: BufferSpec) -> MemoryBlock:
        if not options.cpu_access:
            return self.alloc(nbytes)
        return (self.uncached if options.uncached else self.pinned).alloc(nbytes)

    def free(self, opaque: MemoryBlock) -> None:
        (opaque.pool if isinstance(opaque, PinnedBlock) else self.memory).free(opaque)

    # *** copies ***

    def pieces(self, nbytes: int) -> Iterator[tuple[int, int, tuple[int, np.ndarray[Any, Any], Any]]]:
        """Yield (begin, bytes, ring buffer) for each piece of a copy of ``nbytes``."""
        if not self._ring:
            for _ in range(PIECES):
                address = self.pinned.made(PIECE)[0]
                self._ring.append((address, _host_bytes(address, PIECE), self.gpu.record()))
        for begin in range(0, nbytes, PIECE):
            self._next = (self._next + 1) % PIECES
            yield begin, min(PIECE, nbytes - begin), self._ring[self._next]

    def copyin(self, opaque: MemoryBlock, offset: int, source: memoryview) -> None:
        if not source.nbytes:
            return
        gpu, data = self.gpu, np.frombuffer(source, np.uint8)
        if isinstance(opaque, PinnedBlock):
            gpu.synchronize()
            _host_bytes(opaque.address + offset, data.size)[:] = data
            return
        gpu.check()
        with gpu.lock:
            gpu.use()
            for begin, count, (address, piece, free) in self.pieces(data.size):
                gpu.call(gpu.driver.cuEventSynchronize, free)
                piece[:count] = data[begin : begin + count]
                gpu.call(gpu.driver.cuMemcpyHtoDAsync, opaque.address + offset + begin, address, count, gpu.stream)
                gpu.record(free)

    def copyout(self, target: memoryview, opaque: MemoryBlock, offset: int) -> None:
        gpu, data = self.gpu, np.frombuffer(target, np.uint8)
        if isinstance(opaque, PinnedBlock):
            gpu.synchronize()
            data[:] = _host_bytes(opaque.address + offset, data.size)
            return
        gpu.check()
        with gpu.lock:
            gpu.use()
            under_way: list[tuple[int, int, np.ndarray[Any, Any], Any]] = []
            for begin, count, (address, piece, done) in self.pieces(data.size):
                if len(under_way) == PIECES:
                    self._arrived(data, *under_way.pop(0))
                gpu.call(gpu.driver.cuMemcpyDtoHAsync, address, opaque.address + offset + begin, count, gpu.stream)
                under_way.append((begin, count, piece, gpu.record(done)))
            for arriving in under_way:
                self._arrived(data, *arriving)
            gpu.launched.clear()

    def _arrived(self, data: np.ndarray[Any, Any], begin: int, count: int, piece: np.ndarray[Any, Any],
                 done: Any) -> None:
        self.gpu.call(self.gpu.driver.cuEventSynchronize, done)
        data[begin : begin + count] = piece[:count]

    def host_view(self, opaque: MemoryBlock, offset: int, nbytes: int) -> memoryview | None:
        """Return the bytes of pinned memory after waiting for the GPU; None for GPU memory."""
        if not isinstance(opaque, PinnedBlock):
            return None
        self.gpu.synchronize()
        return memoryview((ctypes.c_ubyte * nbytes).from_address(opaque.address + offset)).cast("B")

BYTES: Final = 128  # bytes of an encoded map
ALIGN: Final = 16  # bytes: required alignment of a map's base address
KEPT: Final = 64  # encoded maps cached per view, one per address


class TensorMap:
    """One view of a buffer, encoded for the buffer's current address.

    Args:
        view: (argument position of the buffer, offset in elements, name of the element dtype in local memory, sizes,
            strides, extent of a box, element strides in a box, bytes per row of local memory).
    """

    def __init__(self, gpu: CudaGPU, view: list[Any]) -> None:
        self.gpu = gpu
        self.argument, offset, name, self.sizes, self.strides, self.reach, self.steps, self.row = view
        dtype: DType = getattr(dtypes, name)
        self.itemsize = dtype.itemsize
        self.kind = "TFLOAT32" if dtype is dtypes.tf32 else f"UINT{dtype.bits}"  # TFLOAT32 rounds; UINT copies bits
        self.offset = offset * self.itemsize
        self.block = ctypes.create_string_buffer(BYTES)
        self.address = 0
        self.encoded: dict[int, bytes] = {}

    def point_to(self, address: int) -> None:
        """Encode the map for another address of the buffer.

        Raises:
            DeviceError: if the address is misaligned, which happens only with memory borrowed from another library.
        """
        if address == self.address:
            return
        found = self.encoded.get(address)
        if found is None:
            if len(self.encoded) >= KEPT:
                self.encoded.clear()
            found = self.encoded[address] = self.encode(address + self.offset)
        ctypes.memmove(self.block, found, BYTES)
        self.address = address

    def encode(self, address: int) -> bytes:
        if address % ALIGN:
            raise DeviceError(self.gpu.name, f"a matrix product reads memory at {address:#x}, lent by another library: "
                              f"TMA needs addresses aligned to {ALIGN} bytes", "tensor.clone() before the product")
        driver, rank = self.gpu.driver, len(self.sizes)
        made = self.gpu.call(
            driver.cuTensorMapEncodeTiled,
            getattr(driver.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{self.kind}"), rank, address,
            [driver.cuuint64_t(n) for n in self.sizes],
            [driver.cuuint64_t(n * self.itemsize) for n in self.strides[1:]],
            [driver.cuuint32_t(n) for n in self.reach], [driver.cuuint32_t(n) for n in self.steps or (1,) * rank],
            driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            getattr(driver.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{self.row}B"),
            driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE)
        return ctypes.string_at(made.getPtr(), BYTES)
