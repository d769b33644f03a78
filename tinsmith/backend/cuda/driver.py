"""The CUDA driver and NVRTC, through NVIDIA's Python bindings.

The driver part holds one GPU's context, stream and events, and translates driver errors. NVRTC compiles CUDA C++ to PTX
or cubin, and needs no GPU.
"""
from __future__ import annotations

import functools
import importlib
import os
import re
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final, NoReturn

from tinsmith.backend.cpu import os_calls
from tinsmith.backend.device import Compiler
from tinsmith.backend.program import LaunchError
from tinsmith.codegen.render.cuda import generation
from tinsmith.core.counters import GlobalCounters
from tinsmith.core.disk_cache import cache_key, cached
from tinsmith.core.errors import CompileError, DeviceError, KernelError, OutOfMemoryError
from tinsmith.core.object_lifetime import LiveSet

INSTALL: Final = "pip install 'tinsmith[cuda]'"
LESS: Final = "free tensors, use a smaller batch or a narrower dtype"
_LAUNCHED: Final = 64  # launches since the last synchronization that an error can list
# Errors that make a context unusable: every later call returns the same error.
_FATAL: Final = ("ILLEGAL_ADDRESS", "ILLEGAL_INSTRUCTION", "MISALIGNED_ADDRESS", "INVALID_ADDRESS_SPACE", "INVALID_PC",
                 "LAUNCH_FAILED", "LAUNCH_TIMEOUT", "HARDWARE_STACK_ERROR", "ASSERT", "ECC_UNCORRECTABLE", "CONTAINED",
                 "MPS_CLIENT_TERMINATED", "EXTERNAL_DEVICE", "CONTEXT_IS_DESTROYED", "UNKNOWN")

_NO_MEMORY: Final = "CUDA_ERROR_OUT_OF_MEMORY"


class CUDAError(LaunchError):
    """An error status of a driver call, such as ``CUDA_ERROR_OUT_OF_MEMORY``."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(f"{name} ({text})")
        self.name = name


@functools.cache
def bindings(module: str) -> Any:
    """Import ``driver`` or ``nvrtc`` of ``cuda.bindings``.

    Raises:
        DeviceError: if the package is not installed.
    """
    try:
        return importlib.import_module(f"cuda.bindings.{module}")
    except ImportError as error:
        raise DeviceError("CUDA", f"cuda-bindings cannot be imported ({error})", INSTALL) from None


@functools.cache
def gpu_count() -> int:
    """Return the number of GPUs, at least 1.

    Raises:
        DeviceError: if the bindings, the driver or a GPU is missing.
    """
    driver = bindings("driver")
    try:
        found = driver.cuInit(0)
    except Exception:  # the bindings' loader raises its own exception type for a missing library
        raise DeviceError("CUDA", "no NVIDIA driver (libcuda) is installed",
                          "a machine with an NVIDIA GPU, or DEV=CPU") from None
    none = found[0] and found[0].name == "CUDA_ERROR_NO_DEVICE"
    if found[0] and not none:
        raise DeviceError("CUDA", f"the NVIDIA driver does not start: {found[0].name}", "nvidia-smi says more")
    version, count = int(driver.cuDriverGetVersion()[1]), 0 if none else int(driver.cuDeviceGetCount()[1])
    if version < 13000:
        raise DeviceError("CUDA", f"the NVIDIA driver is for CUDA {version // 1000}.{version % 1000 // 10}, "
                          "cubins are compiled for CUDA 13.0", "driver 580 or later")
    if not count:
        raise DeviceError("CUDA", "the NVIDIA driver finds no GPU",
                          "nvidia-smi, which lists the GPUs; CUDA_VISIBLE_DEVICES hides others; or DEV=CPU")
    return count

_current = threading.local()  # .gpu: the GPU whose context is current in this thread
_all: Final = LiveSet["CudaGPU"]()


class CudaGPU:
    """A GPU with its primary context, which is shared with other libraries of the process, and its own stream.

    Attributes:
        lost: the reason why the GPU is unusable; "" while it works. ``remedy``: the advice for this case.
    """

    def __init__(self, name: str, number: int) -> None:
        self.name, self.number, self.driver = name, number, bindings("driver")
        self.lost = ""
        self.remedy = "a new process"
        self.spare: Callable[[], None] = lambda: None  # releases cached free memory
        self.lock = threading.RLock()  # protects argument blocks and the ring of pinned copy buffers
        self.launched: deque[tuple[str, ...]] = deque(maxlen=_LAUNCHED)  # kernel names of each recent launch
        self.dead: deque[tuple[Callable[[Any], Any], Any]] = deque()  # (destructor, handle) to destroy; see `bury`
        self.device = self.call(self.driver.cuDeviceGet, number)
        self.context = self.call(self.driver.cuDevicePrimaryCtxRetain, self.device)
        self.use()
        self.stream = self._stream()
        self._fence: Any = None
        self._between: Any = None
        _all.add(self)

    def use(self) -> None:
        """Make this GPU's context current in this thread."""
        if getattr(_current, "gpu", None) is not self:
            self.check()
            self.call(self.driver.cuCtxSetCurrent, self.context)
            _current.gpu = self

    def call(self, function: Callable[..., tuple[Any, ...]], *arguments: Any) -> Any:
        """Call a driver function and return its result; if memory is short, release cached blocks and try once more.

        Raises:
            TinsmithError, CUDAError: see ``fail``.
        """
        status, *results = function(*arguments)
        if status and status.name == _NO_MEMORY and not self.lost:
            self.spare()
            status, *results = function(*arguments)
        if status:
            self.fail(status)
        return results[0] if len(results) == 1 else results

    def fail(self, status: Any) -> NoReturn:
        """Raise the exception for a driver status.

        Raises:
            KernelError: if a kernel failed, which may have been launched earlier; the GPU is then lost.
            DeviceError: if the GPU was lost before.
            OutOfMemoryError: if there is not enough memory for the call.
            CUDAError: otherwise.
        """
        self.check()
        error = self.error_of(status)
        if self.lost:
            raise KernelError(self.name, f"a kernel failed: {self.lost}. The device is lost",
                              "CUDA_SYNC=1 names the kernel and the line; start a new process") from None
        if error.name == _NO_MEMORY:
            free, total = self.memory()
            raise OutOfMemoryError(self.name, f"the driver is out of memory, {free} of {total} bytes of the "
                                   "GPU free", LESS) from None
        raise error

    def error_of(self, status: Any) -> CUDAError:
        """Return the exception for ``status``; mark the GPU as lost if the error is fatal."""
        text = self.driver.cuGetErrorString(status)[1]
        error = CUDAError(status.name, text.decode() if isinstance(text, bytes) else str(text))
        if status.name.removeprefix("CUDA_ERROR_").startswith(_FATAL):
            self.lost = self.lost or f"{error}; {self.suspects()}"
        return error

    def suspects(self) -> str:
        """Return a text that lists the kernels that may have failed."""
        names = list(dict.fromkeys(name for run in reversed(self.launched) for name in run))
        some = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
        return f"launched since the last synchronization: {some}" if names else "no kernel was launched"

    def check(self) -> None:
        """Raise if the GPU is lost.

        Raises:
            DeviceError: with the reason.
        """
        if self.lost:
            raise DeviceError(self.name, f"the device is lost: {self.lost}",
                              f"{self.remedy}; tensors on other devices can still be read")

    def synchronize(self) -> None:
        """Wait until everything launched has finished.

        Raises:
            KernelError: if a kernel failed.
        """
        self.check()
        self.use()
        self.call(self.driver.cuStreamSynchronize, self.stream)
        self.launched.clear()

    def settle(self, stream: Any = None) -> None:
        """Wait for the kernel just launched (CUDA_SYNC), on ``stream`` or on the GPU's own.

        Raises:
            CUDAError: if it failed; the caller knows which kernel it was.
        """
        self.use()
        status, = self.driver.cuStreamSynchronize(self.stream if stream is None else stream)
        if status:
            raise self.error_of(status)
        self.launched.clear()

    def bury(self) -> None:
        """Destroy the driver objects that nothing refers to any more."""
        while self.dead:
            function, handle = self.dead.popleft()
            if not self.lost:
                function(handle)

    # *** events ***

    def event(self, timing: bool = False) -> Any:
        flags = self.driver.CUevent_flags
        kind = flags.CU_EVENT_DEFAULT if timing else flags.CU_EVENT_DISABLE_TIMING
        return self.call(self.driver.cuEventCreate, int(kind))

    def record(self, event: Any = None) -> Any:
        """Record an event in the stream, after everything launched so far; return it."""
        self.use()
        event = self.event() if event is None else event
        self.call(self.driver.cuEventRecord, event, self.stream)
        return event

    def wait(self, event: Any) -> None:
        """Order later launches after ``event``, which may be another GPU's."""
        self.use()
        self.call(self.driver.cuStreamWaitEvent, self.stream, event, 0)

    def is_reached(self, event: Any) -> bool:
        """Return True if everything before a recorded event has run."""
        self.use()
        return not self.driver.cuEventQuery(event)[0]

    def fence(self) -> Any:
        """Return an event after everything launched so far. The event is reused by the next call, so wait for it at
        once."""
        if self._fence is None:
            self.use()
            self._fence = self.event()
        return self.record(self._fence)

    # *** streams beside that of the kernels ***

    @functools.cached_property
    def beside(self) -> Any:
        """The stream of work that kernels do not wait for."""
        return self._stream()

    @functools.cached_property
    def capturing(self) -> Any:
        """The stream whose work is captured as a graph, and never run."""
        return self._stream()

    def _stream(self) -> Any:
        self.use()
        return self.call(self.driver.cuStreamCreate, int(self.driver.CUstream_flags.CU_STREAM_NON_BLOCKING))

    def order(self, before: Any, after: Any) -> None:
        """Let later work of the stream ``after`` wait for everything in the stream ``before``."""
        if self._between is None:
            self._between = self.event()
        self.call(self.driver.cuEventRecord, self._between, before)
        self.call(self.driver.cuStreamWaitEvent, after, self._between, 0)

    # *** facts ***

    def attribute(self, name: str) -> int:
        """Return a device attribute by its driver name without the prefix."""
        which = getattr(self.driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(self.call(self.driver.cuDeviceGetAttribute, which, self.device))

    @functools.cached_property
    def model(self) -> str:
        """The model name."""
        name: bytes = self.call(self.driver.cuDeviceGetName, 128, self.device)
        return name.split(b"\0")[0].decode()

    @functools.cached_property
    def arch(self) -> str:
        """The architecture, such as ``sm_80``; ``sm_90a`` includes that generation's specific features."""
        found = f"sm_{self.attribute('COMPUTE_CAPABILITY_MAJOR')}{self.attribute('COMPUTE_CAPABILITY_MINOR')}"
        return "sm_90a" if found == "sm_90" else found

    @functools.cached_property
    def uuid(self) -> bytes:
        """The 16 bytes that identify the GPU among all."""
        return bytes(self.call(self.driver.cuDeviceGetUuid, self.device).bytes)

    def memory(self) -> tuple[int, int]:
        """Return (free bytes, total bytes)."""
        self.use()
        free, total = self.call(self.driver.cuMemGetInfo)
        return int(free), int(total)


def forget_context() -> None:
    """Look up the current context again at the next use: another library of this thread may have changed it."""
    _current.gpu = None


def _forked() -> None:
    """Mark all GPUs as lost in a forked child: it inherits the Python objects but no context, so driver calls would
    fail or hang."""
    _current.gpu = None
    for gpu in _all:
        if not gpu.lost:
            gpu.remedy = 'multiprocessing.get_context("spawn"), which starts fresh processes'
            gpu.lost = (f"process {os.getpid()} was forked from one that had opened it, and a GPU's memory and streams "
                        "are not inherited")

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def reach(gpus: Iterable[CudaGPU], other: CudaGPU) -> None:
    """Enable peer access between ``gpus`` and ``other``, if the hardware supports it."""
    for a, b in ((x, y) for gpu in gpus for x, y in ((gpu, other), (other, gpu)) if gpu is not other):
        a.use()
        if int(a.call(a.driver.cuDeviceCanAccessPeer, a.device, b.device)):
            status, = a.driver.cuCtxEnablePeerAccess(b.context, 0)
            if status and status.name != "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED":
                raise a.error_of(status)

REGISTERS: Final = 1 << 16  # per multiprocessor (CUDA C++ Programming Guide, "Technical Specifications")
_BLOCK = re.compile(r"__launch_bounds__\((\d+)\)")
_USED = re.compile(r"Used (\d+) registers")


@functools.cache
def load_nvrtc() -> tuple[Any, str]:
    """Return the NVRTC bindings and the library's version.

    Raises:
        DeviceError: if NVRTC is not installed.
    """
    nvrtc = bindings("nvrtc")
    try:
        status, major, minor = nvrtc.nvrtcVersion()
    except Exception as error:  # the bindings' loader raises its own exception type for a missing library
        raise DeviceError("CUDA", f"NVRTC cannot be loaded: {error}", INSTALL) from None
    if status:
        raise DeviceError("CUDA", f"NVRTC does not answer: {status.name}", INSTALL)
    return nvrtc, f"{major}.{minor}"


class NVRTCCompiler(Compiler):
    """The compiler for one GPU architecture.

    Args:
        arch: target architecture, such as ``sm_90``.
        binary: True for machine code (cubin), False for PTX.
        gpu: model name, for messages.

    Raises:
        DeviceError: if this NVRTC does not support the architecture, or is not installed.
    """

    def __init__(self, arch: str = "sm_90", binary: bool = True, gpu: str = "") -> None:
        self.arch, self.binary = arch, binary
        self.nvrtc, version = load_nvrtc()
        self.version = f"NVRTC {version}"
        whose = f"{arch}{f' ({gpu})' if gpu else ''}"
        self.path = f"{self.version}, {whose}"
        known = self._check(self.nvrtc.nvrtcGetSupportedArchs(), "")
        if generation(arch) not in known:
            newer = generation(arch) > max(known)
            raise DeviceError("CUDA", f"{self.version} does not support {whose}, only "
                              f"{', '.join(f'sm_{n}' for n in known)}",
                              "pip install -U nvidia-cuda-nvrtc" if newer else "DEV=CPU, or DEV=WEBGPU on such a GPU")
        target = arch if binary else arch.replace("sm_", "compute_")
        self.options = [f"--gpu-architecture={target}", "--fmad=false", "--device-int128", "--ptxas-options=-v"]

    def threads(self) -> int:
        return max(os_calls.usable_cores() - 1, 1)

    def key(self) -> str:
        return cache_key("cuda", self.version, *self.options)

    def compile(self, source: str) -> bytes:
        return cached("cuda", cache_key(self.key(), source), functools.partial(self._best, source))

    def _best(self, source: str) -> bytes:
        """Return the compiled program, with the bound on registers that lets two blocks run at once if that is
        needed."""
        GlobalCounters.compile_count += 1
        text, log = self._compiled(source)
        used, block = _USED.search(log), _BLOCK.search(source)
        if used and block and "__syncthreads" in source and _leaves_one(int(used[1]), int(block[1])):
            text, _ = self._compiled(_BLOCK.sub(rf"__launch_bounds__({block[1]}, 2)", source))
        return text

    def _compiled(self, source: str) -> tuple[bytes, str]:
        """Return the compiled program and the compiler's log."""
        nvrtc = self.nvrtc
        program = self._check(nvrtc.nvrtcCreateProgram(source.encode(), b"kernel.cu", 0, [], []), "")
        try:
            status = nvrtc.nvrtcCompileProgram(program, len(self.options), [o.encode() for o in self.options])
            log = self._text(program, "ProgramLog").decode(errors="replace")
            if status[0]:
                self._check(status, log + "\n" + source)
            text = self._text(program, "CUBIN" if self.binary else "PTX")
            return text if self.binary else text.rstrip(b"\0"), log
        finally:
            nvrtc.nvrtcDestroyProgram(program)

    def _text(self, program: Any, what: str) -> bytes:
        size = self._check(getattr(self.nvrtc, f"nvrtcGet{what}Size")(program), "")
        buffer = bytes(size)  # NVRTC writes into the bytes object in place
        self._check(getattr(self.nvrtc, f"nvrtcGet{what}")(program, buffer), "")
        return buffer

    def _check(self, found: tuple[Any, ...], log: str) -> Any:
        if found[0]:
            raise CompileError("CUDA", f"{self.version} rejected the generated code: {found[0].name}\n{log}",
                               "report it: this is a bug of tinsmith")
        return found[1] if len(found) > 1 else None

    def disassemble(self, source: str) -> str:
        """Return the PTX of ``source``."""
        return NVRTCCompiler(self.arch, binary=False).compile(source).decode()


def _leaves_one(registers: int, threads: int) -> bool:
    """Return True if the registers limit occupancy to one block per multiprocessor and at 64 registers per thread two
    would fit: with two, one block works while the other waits at a barrier. Two are not requested from the start,
    because ptxas then uses more registers than it needs."""
    return threads * (-(-registers // 8) * 8) * 2 > REGISTERS and 2 * threads * 64 <= REGISTERS
