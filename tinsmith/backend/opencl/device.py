"""OpenCL devices: ``OPENCL`` is the first device of all platforms, ``OPENCL:1`` the next. They need pyopencl."""
from __future__ import annotations

import functools
import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from tinsmith.backend.device import Allocator, Compiled, Compiler
from tinsmith.backend.program import Call, Program
from tinsmith.codegen.launch import Launch
from tinsmith.codegen.render.opencl import OpenCLRenderer
from tinsmith.core.counters import GlobalCounters
from tinsmith.core.disk_cache import cache_key, cached
from tinsmith.core.dtypes import dtypes
from tinsmith.core.errors import CompileError, DeviceError, OutOfMemoryError
from tinsmith.ir.structure import Role
from tinsmith.target.schedule_costs import GRID_COSTS
from tinsmith.target.target import Target

_OPTIONS = ["-cl-std=CL1.2", "-w"]
_INSTALL = "pip install 'tinsmith[opencl]' (pyopencl and PoCL)"


def load_pyopencl() -> Any:
    """Return the pyopencl module.

    Raises:
        DeviceError: if it is not installed.
    """
    try:
        return importlib.import_module("pyopencl")
    except ImportError as error:
        raise DeviceError("OPENCL", f"pyopencl cannot be imported ({error})", _INSTALL) from None


def all_devices(cl: Any) -> list[Any]:
    """Return every device of every platform.

    Raises:
        DeviceError: if there is no platform, or none with a device.
    """
    try:
        found = [d for p in cl.get_platforms() for d in p.get_devices()]
    except cl.Error as error:
        raise DeviceError("OPENCL", f"there is no OpenCL platform ({error})", _INSTALL) from None
    if not found:
        raise DeviceError("OPENCL", "no OpenCL platform has a device", _INSTALL)
    return found


class OpenCLQueue:
    """A context with one in-order command queue on one device."""

    def __init__(self, cl: Any, device: Any) -> None:
        self.cl, self.device = cl, device
        self.context = cl.Context([device])
        self.commands = cl.CommandQueue(self.context, properties=cl.command_queue_properties.PROFILING_ENABLE)
        self.align = max(device.mem_base_addr_align // 8, 1)


class OpenCLMemory:
    """Device memory, and the sub-buffers created from it."""

    __slots__ = ("buffer", "nbytes", "parts")

    def __init__(self, buffer: Any, nbytes: int) -> None:
        self.buffer, self.nbytes = buffer, nbytes
        self.parts: dict[tuple[int, int], Any] = {}


class OpenCLAllocator(Allocator):
    """Allocator of buffers in one context; a handle is a ``OpenCLMemory``."""

    def __init__(self, queue: OpenCLQueue) -> None:
        self.queue = queue
        self.in_use = 0

    def alloc(self, nbytes: int) -> OpenCLMemory:
        cl, limit = self.queue.cl, self.queue.device.max_mem_alloc_size
        try:
            if nbytes > limit:
                raise MemoryError(f"a block has at most {limit} bytes")
            block = OpenCLMemory(cl.Buffer(self.queue.context, cl.mem_flags.READ_WRITE, max(nbytes, 1)), nbytes)
        except (cl.Error, MemoryError, OverflowError) as error:
            raise OutOfMemoryError("OPENCL", f"{nbytes} bytes requested, {self.in_use} bytes in use: {error}",
                                   "free tensors, or a smaller batch") from None
        self.in_use += nbytes
        GlobalCounters.memory += nbytes
        return block

    def free(self, opaque: OpenCLMemory) -> None:
        opaque.parts.clear()
        opaque.buffer.release()
        self.in_use -= opaque.nbytes
        GlobalCounters.memory -= opaque.nbytes

    def copyin(self, opaque: OpenCLMemory, offset: int, source: memoryview) -> None:
        if source.nbytes:
            array = np.frombuffer(source, np.uint8)
            self.queue.cl.enqueue_copy(self.queue.commands, opaque.buffer, array, dst_offset=offset)

    def copyout(self, target: memoryview, opaque: OpenCLMemory, offset: int) -> None:
        if target.nbytes:
            array = np.frombuffer(target, np.uint8)
            self.queue.cl.enqueue_copy(self.queue.commands, array, opaque.buffer, src_offset=offset)


class OpenCLCompiler(Compiler):
    """Compiles OpenCL C to the platform's binary, cached on disk."""

    def __init__(self, queue: OpenCLQueue) -> None:
        self.queue = queue

    @functools.cached_property
    def path(self) -> str:
        """Device and platform name, for messages."""
        device = self.queue.device
        return f"{device.name.strip()} ({device.platform.name.strip()})"

    def key(self) -> str:
        device = self.queue.device
        return cache_key("opencl", self.path, device.platform.version, device.version, device.driver_version, *_OPTIONS)

    def compile(self, source: str) -> bytes:
        return cached("opencl", cache_key(self.key(), source), functools.partial(self._compiled, source))

    def _compiled(self, source: str) -> bytes:
        GlobalCounters.compile_count += 1
        cl = self.queue.cl
        try:
            program = cl.Program(self.queue.context, source).build(_OPTIONS, cache_dir=False)
        except cl.Error as error:
            raise CompileError("OPENCL", f"{self.path} rejected the generated code:\n{error}\n{source}",
                               "report it: this is a bug of tinsmith") from None
        binary: bytes = program.get_info(cl.program_info.BINARIES)[0]
        return binary


class OpenCLProgram(Program):
    """An OpenCL kernel, built from its binary and ready to be launched."""

    def __init__(self, queue: OpenCLQueue, kernel: Launch, binary: bytes) -> None:
        super().__init__(kernel, binary)
        self.queue = queue
        cl = queue.cl
        program = cl.Program(queue.context, [queue.device], [binary]).build(_OPTIONS, cache_dir=False)
        self.function = cl.Kernel(program, kernel.symbol)
        grid = (*kernel.grid, *([1] * (3 - len(kernel.grid))))
        block = (*kernel.block, *([1] * (3 - len(kernel.block))))
        fixed = bool(kernel.block) or kernel.local_bytes > 0
        self.local_size = block if fixed else None
        self.global_size = tuple(g * b for g, b in zip(grid, block)) if fixed else grid

    def __call__(self, buffers: Sequence[Any], variables: Sequence[int] = ()) -> None:
        self.launch(buffers, variables)

    def launch(self, buffers: Sequence[Any], variables: Sequence[int]) -> Any:
        """Enqueue the kernel, and after it the copies back of written views at unaligned offsets (see ``part``).

        Return the kernel's completion event.
        """
        copied: list[tuple[Any, Any]] = []
        arguments = [self.part(b, number in self.kernel.written, copied)
                     for number, b in zip(self.kernel.buffers, buffers)]
        self.function.set_args(*arguments, *(np.int32(v) for v in variables))
        cl = self.queue.cl
        event = cl.enqueue_nd_range_kernel(self.queue.commands, self.function, self.global_size, self.local_size)
        for b, copy in copied:
            cl.enqueue_copy(self.queue.commands, b.opaque.buffer, copy, dst_offset=b.offset, byte_count=b.nbytes)
        return event

    def part(self, b: Any, written: bool, copied: list[tuple[Any, Any]]) -> Any:
        """Return the memory object of a buffer. A view at an offset that the device does not allow is copied, and
        copied back if written."""
        block, cl = b.opaque, self.queue.cl
        if not b.offset and b.nbytes == block.nbytes:
            return block.buffer
        key = (b.offset, max(b.nbytes, 1))
        if b.offset % self.queue.align == 0:
            if key not in block.parts:
                block.parts[key] = block.buffer.get_sub_region(*key)
            return block.parts[key]
        copy = cl.Buffer(self.queue.context, cl.mem_flags.READ_WRITE, key[1])
        cl.enqueue_copy(self.queue.commands, copy, block.buffer, src_offset=b.offset, byte_count=b.nbytes)
        if written:
            copied.append((b, copy))
        return copy


class OpenCLDevice(Compiled):
    """A device with one queue, in which copies and kernels run in order."""

    def __init__(self, name: str, queue: OpenCLQueue) -> None:
        self.queue = queue
        super().__init__(name, OpenCLAllocator(queue), OpenCLCompiler(queue),
                         lambda kernel, binary: OpenCLProgram(queue, kernel, binary),
                         OpenCLRenderer(device_target(queue.device)))

    def timed(self, call: Call) -> float:
        assert isinstance(call.program, OpenCLProgram)
        event = call.program.launch(call.buffers, call.variables)
        event.wait()
        return float(event.profile.end - event.profile.start) * 1e-9

    def synchronize(self) -> None:
        self.queue.commands.finish()


def device_target(device: Any) -> Target:
    """Return the ``Target`` (features of generated code) of an OpenCL device."""
    held = frozenset(dtypes.all) if device.double_fp_config else frozenset(dtypes.all) - {dtypes.float64}
    return Target("opencl", 16, 32, local_bytes=min(device.local_mem_size, 48 << 10), storage=held,
                  dtypes=held - {dtypes.float16, dtypes.bfloat16}, fma=True,
                  block_threads=min(device.max_work_group_size, 1024), parallel=Role.GLOBAL, costs=GRID_COSTS)


def DEVICE(name: str) -> Compiled:
    """Open ``OPENCL`` or ``OPENCL:k``."""
    cl = load_pyopencl()
    found = all_devices(cl)
    parts = name.split(":")[1:]
    number = int(parts[0]) if parts and parts[0].isdigit() else 0
    if number >= len(found) or any(not p.isdigit() for p in parts):
        raise DeviceError("Device", f"there is no {name}", f"OPENCL:0 to OPENCL:{len(found) - 1}")
    return OpenCLDevice(name, OpenCLQueue(cl, found[number]))
