"""WebGPU devices: ``WEBGPU`` is the best adapter of this machine, ``WEBGPU:1`` the next. They need wgpu."""
from __future__ import annotations

import functools
import importlib
import itertools
import struct
from collections.abc import Sequence
from importlib import metadata
from typing import Any, Final

from tinsmith.backend.device import Allocator, Compiled, Compiler
from tinsmith.backend.program import Call, Program
from tinsmith.codegen.launch import Launch
from tinsmith.codegen.render.wgsl import WGSLRenderer, folded_grid, wgsl_target
from tinsmith.core.counters import GlobalCounters
from tinsmith.core.disk_cache import cache_key
from tinsmith.core.errors import CompileError, DeviceError, OutOfMemoryError
from tinsmith.target.target import Target

RENDERER = WGSLRenderer
_INSTALL: Final = "pip install 'tinsmith[webgpu]'"
_ORDER: Final = ("DiscreteGPU", "IntegratedGPU", "VirtualGPU", "CPU")
FEATURES: Final = ("shader-int64", "shader-f64")  # naga's extensions of WGSL
_KEPT: Final = 4  # cached bind groups per program
_numbers = itertools.count()


@functools.cache
def load_wgpu() -> Any:
    """Return the wgpu module, configured for the native APIs with compute support.

    Raises:
        DeviceError: if it is not installed.
    """
    try:
        wgpu = importlib.import_module("wgpu")
        extras = importlib.import_module("wgpu.backends.wgpu_native.extras")
    except (ImportError, OSError) as error:
        raise DeviceError("WEBGPU", f"wgpu cannot be imported ({error})", _INSTALL) from None
    extras.set_instance_extras(backends=["Vulkan", "Metal", "DX12"])
    return wgpu


@functools.cache
def all_adapters() -> list[Any]:
    """Return every adapter, GPUs first.

    Raises:
        DeviceError: if there is none.
    """
    found = [a for a in load_wgpu().gpu.enumerate_adapters_sync() if a.info["adapter_type"] in _ORDER]
    if not found:
        raise DeviceError("WEBGPU", "wgpu finds no adapter", "a Vulkan driver, such as Mesa's, which needs no GPU")
    return sorted(found, key=lambda a: _ORDER.index(a.info["adapter_type"]))


class WebGPUAdapter:
    """An opened adapter: its device and queue, and the supported ones of ``features``."""

    def __init__(self, adapter: Any, features: Sequence[str] = FEATURES) -> None:
        self.wgpu, self.adapter, self.limits = load_wgpu(), adapter, adapter.limits
        self.features = [f for f in features if f in adapter.features]
        wanted = {k: v for k, v in self.limits.items() if k.startswith(("max-compute", "max-storage", "max-buffer"))}
        self.device = adapter.request_device_sync(required_features=self.features, required_limits=wanted)
        self.queue = self.device.queue
        self.align = int(self.limits["min-storage-buffer-offset-alignment"])
        self.name = adapter.info["device"] or adapter.info["description"]


class WebGPUMemory:
    """Device memory. ``number`` is unique and never reused, so it can be a cache key."""

    __slots__ = ("buffer", "nbytes", "number")

    def __init__(self, buffer: Any, nbytes: int) -> None:
        self.buffer, self.nbytes, self.number = buffer, nbytes, next(_numbers)


class WebGPUAllocator(Allocator):
    """Allocator of storage buffers, rounded up to 4-byte words; a handle is a ``WebGPUMemory``."""

    def __init__(self, gpu: WebGPUAdapter) -> None:
        self.gpu, self.in_use = gpu, 0

    def alloc(self, nbytes: int) -> WebGPUMemory:
        usage, limit = self.gpu.wgpu.BufferUsage, self.gpu.limits["max-buffer-size"]
        try:
            if nbytes > limit:
                raise MemoryError(f"a block has at most {limit} bytes")
            buffer = self.gpu.device.create_buffer(
                size=max(-(-nbytes // 4) * 4, 4), usage=usage.STORAGE | usage.COPY_SRC | usage.COPY_DST)
        except (MemoryError, self.gpu.wgpu.GPUError) as error:
            raise OutOfMemoryError("WEBGPU", f"{nbytes} bytes requested, {self.in_use} bytes in use: {error}",
                                   "free tensors, or a smaller batch") from None
        self.in_use += nbytes
        GlobalCounters.memory += nbytes
        return WebGPUMemory(buffer, nbytes)

    def free(self, opaque: WebGPUMemory) -> None:
        opaque.buffer.destroy()
        self.in_use -= opaque.nbytes
        GlobalCounters.memory -= opaque.nbytes

    def copyin(self, opaque: WebGPUMemory, offset: int, source: memoryview) -> None:
        if not source.nbytes:
            return
        begin, end = _words(offset, source.nbytes)
        data = source.cast("B")
        if (begin, end) != (offset, offset + source.nbytes):  # keep the bytes of partial words at both ends
            whole = bytearray(self.gpu.queue.read_buffer(opaque.buffer, begin, end - begin))
            whole[offset - begin : offset - begin + source.nbytes] = data
            data = memoryview(whole)
        self.gpu.queue.write_buffer(opaque.buffer, begin, data)

    def copyout(self, target: memoryview, opaque: WebGPUMemory, offset: int) -> None:
        if target.nbytes:
            begin, end = _words(offset, target.nbytes)
            found = self.gpu.queue.read_buffer(opaque.buffer, begin, end - begin).cast("B")
            target[:] = found[offset - begin : offset - begin + target.nbytes]


def _words(offset: int, nbytes: int) -> tuple[int, int]:
    """Return the byte range rounded outward to 4-byte words."""
    return offset // 4 * 4, -(-(offset + nbytes) // 4) * 4


class WebGPUCompiler(Compiler):
    """Passes WGSL through: the driver compiles it when a program is loaded."""

    def __init__(self, gpu: WebGPUAdapter) -> None:
        info = gpu.adapter.info
        self.path = f"{gpu.name} ({info['backend_type']}, wgpu {metadata.version('wgpu')})"

    def key(self) -> str:
        return cache_key("webgpu", self.path)


class WebGPUProgram(Program):
    """A compute pipeline with a cache of bind groups."""

    def __init__(self, gpu: WebGPUAdapter, kernel: Launch, binary: bytes) -> None:
        super().__init__(kernel, binary)
        self.gpu = gpu
        most = gpu.limits["max-storage-buffers-per-shader-stage"]
        if len(kernel.buffers) > most:
            raise CompileError("WEBGPU", f"{kernel.name} works on {len(kernel.buffers)} buffers, {gpu.name} allows "
                               f"{most}", "fewer tensors in one expression: .contiguous() or realize() of a part")
        stage, kinds = gpu.wgpu.ShaderStage.COMPUTE, ["storage"] * len(kernel.buffers) + ["uniform"]
        try:
            module = gpu.device.create_shader_module(code=binary.decode())
            self.layout = gpu.device.create_bind_group_layout(entries=[
                {"binding": n, "visibility": stage, "buffer": {"type": kind}} for n, kind in enumerate(kinds)])
            self.pipeline = gpu.device.create_compute_pipeline(
                layout=gpu.device.create_pipeline_layout(bind_group_layouts=[self.layout]),
                compute={"module": module, "entry_point": kernel.symbol})
        except gpu.wgpu.GPUError as error:
            raise CompileError("WEBGPU", f"{gpu.name} rejected the generated code:\n{error}\n{binary.decode()}",
                               "report it: this is a bug of tinsmith") from None
        self.blocks = folded_grid(kernel.grid)
        self.ready: dict[tuple[int, ...], Any] = {}

    def __call__(self, buffers: Sequence[Any], variables: Sequence[int] = ()) -> None:
        run_calls(self.gpu, [Call(self, list(buffers), list(variables))])

    def arguments(self, buffers: Sequence[Any], variables: Sequence[int]) -> Any:
        """Return the bind group of a launch. Each buffer is bound at the last allowed offset at or before its start;
        the distance in elements is passed as a uniform."""
        places = [(b.opaque, b.offset, b.nbytes, b.dtype.itemsize) for b in buffers]
        key = (*(n for block, *rest in places for n in (block.number, *rest)), *variables)
        found = self.ready.pop(key, None)
        if found is None:
            if len(self.ready) >= _KEPT:
                del self.ready[next(iter(self.ready))]
            found = self.bind(places, variables)
        self.ready[key] = found
        return found

    def bind(self, places: Sequence[tuple[WebGPUMemory, int, int, int]], variables: Sequence[int]) -> Any:
        gpu, bound, values = self.gpu, [], []
        for block, offset, nbytes, itemsize in places:
            begin = offset // gpu.align * gpu.align
            end = max(_words(offset, nbytes)[1], begin + 4)
            bound.append({"buffer": block.buffer, "offset": begin, "size": end - begin})
            values.append((offset - begin) // itemsize)
        values += variables
        packed = struct.pack(f"<{len(values)}i", *values)
        packed += bytes(16 - len(packed) % 16)
        bound.append({"buffer": gpu.device.create_buffer_with_data(data=packed, usage=gpu.wgpu.BufferUsage.UNIFORM)})
        return gpu.device.create_bind_group(layout=self.layout, entries=[
            {"binding": n, "resource": resource} for n, resource in enumerate(bound)])


def run_calls(gpu: WebGPUAdapter, calls: Sequence[Call]) -> None:
    """Launch kernels in order, in one submission."""
    if not calls:
        return
    commands = gpu.device.create_command_encoder()
    compute = commands.begin_compute_pass()
    for call in calls:
        program = call.program
        assert isinstance(program, WebGPUProgram)
        compute.set_pipeline(program.pipeline)
        compute.set_bind_group(0, program.arguments(call.buffers, call.variables))
        compute.dispatch_workgroups(*program.blocks)
    compute.end()
    gpu.queue.submit([commands.finish()])


class WebGPUDevice(Compiled):
    """An adapter with one queue, in which copies and kernels run in order."""

    def __init__(self, name: str, gpu: WebGPUAdapter) -> None:
        self.gpu = gpu
        super().__init__(name, WebGPUAllocator(gpu), WebGPUCompiler(gpu),
                         lambda kernel, binary: WebGPUProgram(gpu, kernel, binary), WGSLRenderer(gpu_target(gpu)))
        self.hardware = gpu.name
        usage = gpu.wgpu.BufferUsage
        self.fence = gpu.device.create_buffer(size=4, usage=usage.COPY_SRC | usage.COPY_DST)

    def run(self, calls: Sequence[Call]) -> None:
        run_calls(self.gpu, calls)

    def synchronize(self) -> None:
        self.gpu.queue.read_buffer(self.fence)  # waits for the queue; its own call for that fails in wgpu 0.32


def gpu_target(gpu: WebGPUAdapter) -> Target:
    """Return the target (features of generated code) of an adapter."""
    limits = gpu.limits
    threads = min(limits["max-compute-invocations-per-workgroup"], limits["max-compute-workgroup-size-x"], 1024)
    return wgsl_target(threads, min(limits["max-compute-workgroup-storage-size"], 64 << 10),
                       "shader-int64" in gpu.features, "shader-f64" in gpu.features)


def DEVICE(name: str) -> Compiled:
    """Open ``WEBGPU`` or ``WEBGPU:k``.

    Raises:
        DeviceError: if a requirement is missing; the message names it.
    """
    found = all_adapters()
    parts = name.split(":")[1:]
    number = int(parts[0]) if parts and parts[0].isdigit() else 0
    if number >= len(found) or any(not p.isdigit() for p in parts):
        raise DeviceError("Device", f"there is no {name}", f"WEBGPU:0 to WEBGPU:{len(found) - 1}")
    return WebGPUDevice(name, WebGPUAdapter(found[number]))
