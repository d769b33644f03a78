"""A GPU whose kernels fault or hang, depending on their opts."""
from __future__ import annotations

from typing import Any

from tests.schedule.faulty_device import CRASH, HANG
from tinsmith.backend.cuda.device import DEVICE as CUDA
from tinsmith.backend.cuda.device import CUDAProgram
from tinsmith.backend.cuda.driver import NVRTCCompiler
from tinsmith.backend.device import Compiled, Device
from tinsmith.codegen.launch import KernelProgram, Launch
from tinsmith.codegen.opt import OptOps

BODIES = {CRASH: "*(int*)8 = 1;", HANG: "while (*(volatile float*)data0 == *(volatile float*)data0 || 1) {}"}


def make(name: str) -> Compiled:
    device: Any = CUDA("CUDA")

    def program(kernel: Launch, binary: bytes) -> CUDAProgram:
        opts = kernel.opts if isinstance(kernel, KernelProgram) else []
        body = next((BODIES[o.amt] for o in opts if o.op is OptOps.UPCAST and o.amt in BODIES), None)
        if body is not None:
            parameters = ", ".join(f"float* data{n}" for n in kernel.buffers)
            source = f'extern "C" __global__ void {kernel.symbol}({parameters}) {{ {body} }}'
            binary = NVRTCCompiler(device.gpu.arch).compile(source)
        return CUDAProgram(device.gpu, kernel, binary)

    device.device, device.runtime = name, program
    return device  # type: ignore[no-any-return]


Device.register("FAULTYGPU", make)
