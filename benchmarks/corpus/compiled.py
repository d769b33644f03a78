"""Build the default plan of every kernel of whole networks, without a device.

CUDA is compiled to machine code by NVRTC, whose assembler checks a block's memory, threads and registers; OpenCL by the
platform of this machine, if it has one; kernels in other languages are rendered only.
"""
from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from typing import NamedTuple

from benchmarks.corpus import record
from benchmarks.corpus.programs import CorpusProgram
from benchmarks.corpus.targets import RENDERED, TARGETS
from tinsmith.backend.cuda.driver import NVRTCCompiler, load_nvrtc
from tinsmith.backend.device import Device
from tinsmith.codegen.launch import KernelProgram
from tinsmith.core.errors import DeviceError, TinsmithError

GPUS = [t for t in TARGETS if t.startswith("sm_")]
GRIDS = [*GPUS, "opencl", "metal", *RENDERED]  # targets with blocks of threads, whose memory plans have to fit
Compile = Callable[[str], object]


class Built(NamedTuple):
    """The kernels of a program on a target, how many of them were compiled, and everything that went wrong."""

    kernels: int
    compiled: int
    faults: list[str]


@functools.cache
def compiler(target: str) -> Compile | None:
    """The function that compiles a target's source; None where there is none on this machine."""
    try:
        if target in GPUS:
            load_nvrtc()
            return NVRTCCompiler(target).compile
        if target == "opencl" and importlib.util.find_spec("pyopencl"):
            return Device["OPENCL"].compiler.compile
    except DeviceError:
        pass
    return None


def built(program: CorpusProgram, target: str, compiles: bool = True) -> Built:
    """Choose and write all kernels of a program, and compile them where a compiler is here and ``compiles``."""
    try:
        kernels = record.kernels(program, target)
    except TinsmithError as error:
        return Built(0, 0, [f"refused: {error}"])
    faults, count, compile_one = list[str](), 0, compiler(target) if compiles else None
    for kernel in kernels:
        faults += _faults(kernel)
        if compile_one is not None:
            try:
                compile_one(kernel.source)
                count += 1
            except TinsmithError as error:
                faults.append(f"{kernel.name}: {error}")
    return Built(len(kernels), count, faults)


def _faults(kernel: KernelProgram) -> list[str]:
    return [f"{kernel.name}: {mistake}" for mistake in (kernel.plan.mistakes if kernel.plan is not None else ())]
