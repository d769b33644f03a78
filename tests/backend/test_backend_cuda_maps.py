"""Tensor maps (TMA descriptors) without a GPU: alignment of their base addresses."""
from __future__ import annotations

import types
from typing import Any, cast

import pytest

from benchmarks.corpus import targets
from tinsmith.backend.cuda.memory import TensorMap
from tinsmith.codegen.launch import KernelProgram
from tinsmith.core.dtypes import dtypes
from tinsmith.core.errors import DeviceError
from tinsmith.core.settings import Context
from tinsmith.runtime.launch import lowered
from tinsmith.tensor.tensor import Tensor


class Encoded(TensorMap):
    """A fake that records the addresses of tensor maps instead of calling the driver."""

    def encode(self, address: int) -> bytes:
        if address % 16:
            return super().encode(address)
        self.asked = [*getattr(self, "asked", []), address]
        return bytes(128)


def test_a_map_is_encoded_once_for_each_address_of_its_buffer() -> None:
    gpu = cast(Any, types.SimpleNamespace(name="CUDA"))
    tensor_map = Encoded(gpu, [1, 8, "bfloat16", [64, 64], [1, 64], [64, 8], [1, 1], 128])
    for address in (1024, 1024, 4096, 1024):
        tensor_map.point_to(address)
    assert tensor_map.asked == [1024 + 16, 4096 + 16], "an offset of 8 elements of 2 bytes"


def test_memory_of_others_that_begins_elsewhere_is_an_error_that_names_the_remedy() -> None:
    gpu = cast(Any, types.SimpleNamespace(name="CUDA"))
    tensor_map = Encoded(gpu, [1, 0, "bfloat16", [64, 64], [1, 64], [64, 8], [1, 1], 128])
    with pytest.raises(DeviceError, match=r"0x1008.*clone\(\)"):
        tensor_map.point_to(0x1008)


def test_products_of_different_views_are_different_kernels() -> None:
    """A loaded kernel encodes its own views, so kernels of equal text that read other views have other names."""
    programs: list[Any] = []
    note = programs.append
    lowered.append(note)
    try:
        x, w = (Tensor.empty(*s, dtype=dtypes.bfloat16, device=targets.device_name("sm_90a")).realize()
                for s in ((512, 1536), (256, 512)))
        with Context(DYNAMIC=0):  # else one program serves all views
            for first in (0, 512, 1024):
                (x[:, first:first + 256] @ w).realize()
    finally:
        lowered.remove(note)
    kernels = [s.shown for p in programs for s in p.steps if isinstance(s.shown, KernelProgram) and s.shown.maps]
    assert len({k.symbol for k in kernels}) == len({str(k.maps) for k in kernels}) == 3
