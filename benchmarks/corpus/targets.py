"""The targets of the corpus, as data: none of their machines is required.

A target is a device whose programs are scheduled, chosen and written as on the machine itself, and never run: its
memory holds nothing, reading it gives zeros, and launching a program does nothing.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from tinsmith.backend.cpu.device import cpu_target
from tinsmith.backend.cpu.os_calls import CacheSizes
from tinsmith.backend.device import Allocator, Call, Compiled, Compiler, Device, Program
from tinsmith.backend.opencl.device import device_target
from tinsmith.codegen.render.base import Renderer
from tinsmith.codegen.render.cuda import CUDARenderer, cuda_target
from tinsmith.codegen.render.hip import HIPRenderer
from tinsmith.codegen.render.llvm import LLVMRenderer
from tinsmith.codegen.render.metal import MetalRenderer
from tinsmith.codegen.render.opencl import OpenCLRenderer
from tinsmith.codegen.render.wgsl import WGSLRenderer

AVX2 = frozenset(("sse2", "avx", "avx2", "fma", "f16c"))
AVX512 = AVX2 | {"avx512f", "avx512vl", "avx512bw", "avx512dq"}
DOTS = AVX512 | {"avx512vnni", "avx512bf16"}
AMX = DOTS | {"amx-tile", "amx-bf16", "amx-int8"}


def _x86(features: frozenset[str], cores: int, l1: int, l2: int) -> Renderer:
    return LLVMRenderer(cpu_target("llvm", "x86_64", features, cores, CacheSizes(l1 << 10, l2 << 10)))


def _opencl() -> Renderer:
    """Return PoCL's device on a CPU of eight cores, as OpenCL describes it."""
    return OpenCLRenderer(device_target(SimpleNamespace(double_fp_config=1, local_mem_size=512 << 10,
                                                        max_work_group_size=4096)))


TARGETS: dict[str, Callable[[], Renderer]] = {
    "avx2": lambda: _x86(AVX2, 8, 32, 512),
    "avx512": lambda: _x86(AVX512, 8, 32, 1024),
    "avx512_bf16": lambda: _x86(DOTS, 2, 32, 1024),
    "amx": lambda: _x86(AMX, 8, 48, 2048),
    "sm_80": lambda: CUDARenderer(cuda_target("sm_80", 108)),
    "sm_90a": lambda: CUDARenderer(cuda_target("sm_90a", 132)),
    "opencl": _opencl,
    "metal": MetalRenderer,
}
RENDERED: dict[str, Callable[[], Renderer]] = {"hip": HIPRenderer, "webgpu": WGSLRenderer}  # of whole networks alone


class Nowhere(Allocator):
    """An allocator of memory that stores nothing."""

    def alloc(self, nbytes: int) -> Any:
        return nbytes

    def free(self, opaque: Any) -> None:
        """Do nothing: no memory was allocated."""

    def copyin(self, opaque: Any, offset: int, source: memoryview) -> None:
        """Discard the data."""

    def copyout(self, target: memoryview, opaque: Any, offset: int) -> None:
        target.cast("B")[:] = bytes(target.nbytes)


class Unrun(Compiled):
    """A device whose programs are never run."""

    def run(self, calls: Sequence[Call]) -> None:
        """Compute nothing."""


def device_name(target: str) -> str:
    """Return the name of a target's device, which is opened on first use."""
    return f"CORPUS_{target.upper()}"


for _target, _renderer in (TARGETS | RENDERED).items():
    Device.register(device_name(_target), lambda name, make=_renderer: Unrun(
        name, Nowhere(), Compiler(), Program, make()))
