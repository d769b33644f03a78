"""A device whose programs crash, hang, give wrong results or are refused, depending on their opts."""
from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from typing import Any

from tinsmith.backend.cpu.device import CPUDevice, CPUProgram, HostAllocator, LLVMCompiler, host_target
from tinsmith.backend.device import Compiled, Device
from tinsmith.backend.program import Call
from tinsmith.codegen.launch import KernelProgram, Launch
from tinsmith.codegen.opt import OptOps
from tinsmith.codegen.render.llvm import LLVMRenderer
from tinsmith.core.errors import CompileError

CRASH, HANG, LIE, REFUSE = 3, 5, 2, 7  # amounts of UPCAST


class FaultyProgram(CPUProgram):
    """A program that misbehaves depending on the amounts of its UPCAST opts."""

    def __init__(self, kernel: Launch, binary: bytes) -> None:
        super().__init__(kernel, binary)
        opts = kernel.opts if isinstance(kernel, KernelProgram) else []
        self.amounts = {o.amt for o in opts if o.op is OptOps.UPCAST}
        if REFUSE in self.amounts:
            raise CompileError("FAULTY", "seven is too many", "another amount")


class FaultyDevice(CPUDevice):
    """A CPU device with faulty programs."""

    def run(self, calls: Sequence[Call]) -> None:
        for call in calls:
            amounts = getattr(call.program, "amounts", set())
            if CRASH in amounts:
                os.kill(os.getpid(), signal.SIGSEGV)
            if HANG in amounts:
                time.sleep(3600)
            super().run([call])
            if LIE in amounts:
                first: Any = call.buffers[0]
                first.copyin(memoryview(bytearray(first.nbytes)))

    def graph(self, launches: Sequence[Any]) -> Any:
        return Compiled.graph(self, launches)


def make(name: str) -> Compiled:
    return FaultyDevice(name, HostAllocator(), LLVMCompiler(), FaultyProgram, LLVMRenderer(host_target("llvm")))


Device.register("FAULTY", make)
