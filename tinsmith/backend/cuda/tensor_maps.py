"""Tensor maps (TMA descriptors): they describe boxes of a buffer to the copy engine, and kernels take them by value."""
from __future__ import annotations

import ctypes
from typing import Any, Final

from tinsmith.backend.cuda.driver import CudaGPU
from tinsmith.core.dtypes import DType, dtypes
from tinsmith.core.errors import DeviceError

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
