"""Metal devices: ``METAL`` is the Mac's GPU, ``METAL:1`` the next one. They need macOS and pyobjc's Metal framework."""
from __future__ import annotations

import functools
import importlib
import platform
import struct
import sys
from collections.abc import Sequence
from typing import Any, Final

from tinsmith.backend.device import Allocator, Compiled, Compiler
from tinsmith.backend.program import Call, Program
from tinsmith.codegen.launch import Launch
from tinsmith.codegen.render.metal import MetalRenderer
from tinsmith.core.counters import GlobalCounters
from tinsmith.core.disk_cache import cache_key
from tinsmith.core.errors import CompileError, DeviceError, OutOfMemoryError

RENDERER = MetalRenderer
MOST_ARGUMENTS: Final = 31  # Metal's limit on buffers and variables together


@functools.cache
def load_metal() -> Any:
    """Return pyobjc's Metal framework module.

    Raises:
        DeviceError: saying what is missing.
    """
    try:
        return importlib.import_module("Metal")
    except ImportError as error:
        if sys.platform != "darwin":
            raise DeviceError("Device", "there is no device 'METAL' here: Metal exists on macOS alone",
                              "ALIAS=METAL=CPU") from None
        raise DeviceError("METAL", f"pyobjc's Metal framework cannot be imported ({error})",
                          "pip install 'tinsmith[metal]'") from None


class MetalQueue:
    """A GPU with one command queue, which runs command buffers in order."""

    def __init__(self, gpu: Any) -> None:
        self.gpu, self.metal = gpu, load_metal()
        self.commands = gpu.newCommandQueue()
        self.running: list[Any] = []

    def wait(self) -> None:
        """Wait until all command buffers have finished.

        Raises:
            RuntimeError: with Metal's description, if a kernel failed.
        """
        running, self.running = self.running, []
        for buffer in running:
            buffer.waitUntilCompleted()
            if buffer.error() is not None:
                raise RuntimeError(str(buffer.error().localizedDescription()))


class MetalAllocator(Allocator):
    """Allocator of memory shared by processor and GPU; a handle is an ``MTLBuffer``."""

    def __init__(self, queue: MetalQueue) -> None:
        self.queue = queue

    def alloc(self, nbytes: int) -> Any:
        gpu, shared = self.queue.gpu, self.queue.metal.MTLResourceStorageModeShared
        found = gpu.newBufferWithLength_options_(max(nbytes, 1), shared) if nbytes <= gpu.maxBufferLength() else None
        if found is None:
            raise OutOfMemoryError("METAL", f"{nbytes} bytes requested, a buffer has at most {gpu.maxBufferLength()}",
                                   "free tensors, or a smaller batch")
        GlobalCounters.memory += found.length()
        return found

    def free(self, opaque: Any) -> None:
        GlobalCounters.memory -= opaque.length()  # command buffers that use it retain it

    def copyin(self, opaque: Any, offset: int, source: memoryview) -> None:
        self.queue.wait()
        self.bytes(opaque)[offset : offset + source.nbytes] = source.cast("B")

    def copyout(self, target: memoryview, opaque: Any, offset: int) -> None:
        self.queue.wait()
        target[:] = self.bytes(opaque)[offset : offset + target.nbytes]

    def bytes(self, opaque: Any) -> memoryview:
        found: memoryview = opaque.contents().as_buffer(opaque.length())
        return found.cast("B")


class MetalCompiler(Compiler):
    """Passes the source through: Metal compiles it, with IEEE arithmetic, when a program is loaded."""

    def __init__(self, queue: MetalQueue) -> None:
        self.path = str(queue.gpu.name())

    def key(self) -> str:
        return cache_key("metal", self.path, platform.mac_ver()[0])


class MetalProgram(Program):
    """A compute pipeline."""

    def __init__(self, queue: MetalQueue, kernel: Launch, binary: bytes) -> None:
        super().__init__(kernel, binary)
        self.queue, metal, gpu = queue, queue.metal, queue.gpu
        count = len(kernel.buffers) + len(kernel.variables)
        if count > MOST_ARGUMENTS:
            raise CompileError("METAL", f"{kernel.name} takes {count} arguments, Metal allows {MOST_ARGUMENTS}",
                               "fewer tensors in one expression: .contiguous() or realize() of a part")
        options = metal.MTLCompileOptions.new()
        options.setFastMathEnabled_(False)
        library, error = gpu.newLibraryWithSource_options_error_(binary.decode(), options, None)
        if library is None:
            raise CompileError("METAL", f"Metal refused generated code:\n{error.localizedDescription()}\n"
                               f"{binary.decode()}", "report it: this is a bug of tinsmith")
        function = library.newFunctionWithName_(kernel.symbol)
        self.pipeline, error = gpu.newComputePipelineStateWithFunction_error_(function, None)
        if self.pipeline is None:
            raise CompileError("METAL", f"cannot create the pipeline of {kernel.name}: {error.localizedDescription()}",
                               "report it: this is a bug of tinsmith")
        self.blocks, self.threads = (metal.MTLSizeMake(*(*of, 1, 1, 1)[:3]) for of in (kernel.grid, kernel.block))

    def __call__(self, buffers: Sequence[Any], variables: Sequence[int] = ()) -> None:
        run_calls(self.queue, [Call(self, list(buffers), list(variables))])

    def encode(self, encoder: Any, buffers: Sequence[Any], variables: Sequence[int]) -> None:
        encoder.setComputePipelineState_(self.pipeline)
        for n, b in enumerate(buffers):
            encoder.setBuffer_offset_atIndex_(b.opaque, b.offset, n)
        for n, value in enumerate(variables, len(buffers)):
            encoder.setBytes_length_atIndex_(struct.pack("=i", value), 4, n)
        encoder.dispatchThreadgroups_threadsPerThreadgroup_(self.blocks, self.threads)


def run_calls(queue: MetalQueue, calls: Sequence[Call]) -> Any:
    """Launch kernels in order in one command buffer; return it."""
    commands = queue.commands.commandBuffer()
    encoder = commands.computeCommandEncoder()
    for call in calls:
        assert isinstance(call.program, MetalProgram)
        call.program.encode(encoder, call.buffers, call.variables)
    encoder.endEncoding()
    commands.commit()
    queue.running.append(commands)
    return commands


class MetalDevice(Compiled):
    """A GPU with one queue."""

    def __init__(self, name: str, queue: MetalQueue) -> None:
        self.queue = queue
        super().__init__(name, MetalAllocator(queue), MetalCompiler(queue),
                         lambda kernel, binary: MetalProgram(queue, kernel, binary), MetalRenderer())
        self.hardware = str(queue.gpu.name())

    def run(self, calls: Sequence[Call]) -> None:
        if calls:
            run_calls(self.queue, calls)

    def timed(self, call: Call) -> float:
        for b in call.buffers:
            b.opaque  # noqa: B018
        commands = run_calls(self.queue, [call])
        self.queue.wait()
        return float(commands.GPUEndTime() - commands.GPUStartTime())

    def synchronize(self) -> None:
        self.queue.wait()


def DEVICE(name: str) -> Compiled:
    """Open ``METAL`` or ``METAL:k``.

    Raises:
        DeviceError: saying what is missing.
    """
    found = list(load_metal().MTLCopyAllDevices())
    parts = name.split(":")[1:]
    number = int(parts[0]) if parts and parts[0].isdigit() else 0
    if number >= len(found) or any(not p.isdigit() for p in parts):
        raise DeviceError("Device", f"there is no {name}", f"METAL:0 to METAL:{len(found) - 1}" if found else "DEV=CPU")
    return MetalDevice(name, MetalQueue(found[number]))
