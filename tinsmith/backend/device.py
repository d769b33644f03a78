"""The device protocol, and the registry that opens devices by name on first use.

A device is a ``Compiled``, which holds four parts: an ``Allocator`` for its memory, a ``Renderer`` that generates
source, a ``Compiler`` that turns source into a binary, and a ``Program`` class that loads and runs a binary. Shared
code uses these parts and the data of the target; it never branches on a device's name.

A *stand-in* replaces a device that is not on this machine: its source is generated and shown, and another device runs
the kernels.
"""
from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

from tinsmith.backend import memory
from tinsmith.backend.allocator import Allocator as Allocator  # re-exported, as ``Program`` is
from tinsmith.backend.program import Call, Graph, Launched
from tinsmith.backend.program import Program as Program  # re-exported: part of the device protocol
from tinsmith.codegen.launch import Launch
from tinsmith.codegen.render.base import Renderer
from tinsmith.core.errors import ArgumentError, DeviceError, shown
from tinsmith.core.settings import settings, tell_unread
from tinsmith.core.terminal import show
from tinsmith.target.target import Target

DeviceName = str | tuple[str, ...]  # a device or a group; internally, a group is its names joined by commas


def members(name: str) -> tuple[str, ...]:
    """Return the devices of a group; a single device is a group of one.

    >>> members("CPU,CPU:1"), members("CPU")
    (('CPU', 'CPU:1'), ('CPU',))
    """
    return tuple(name.split(","))


class Compiler:
    """Compiles source to a binary. Implementations cache on disk through ``core.disk_cache``."""

    def threads(self) -> int:
        """Return the number of extra threads that should call ``compile``, if it releases the interpreter lock.

        0: compile in the calling thread only.
        """
        return 0

    def compile(self, source: str) -> bytes:
        """Return the binary of ``source``.

        Raises:
            CompileError: if the compiler rejects the source.
        """
        return source.encode()

    def key(self) -> str | None:
        """Return the cache key of everything but the source that determines the binary.

        None: a program cannot be recreated in another process from its launch data and its binary.
        """
        return None

    def disassemble(self, source: str) -> str:
        """Return the assembly that DEBUG=7 prints; "" if there is none."""
        return ""

    def assembly_lines(self, source: str) -> list[int]:
        """Return, for each line of the assembly, the line of ``source`` it comes from, or -1; [] if unknown."""
        return []


def _check_memory(device: str, allocator: Allocator) -> None:
    """Raise if the allocator lacks a required method or a method has the wrong parameters."""
    for method, arguments in (("alloc", "nbytes"), ("copyin", "opaque, offset, source"),
                              ("copyout", "target, opaque, offset")):
        kind = type(allocator)
        own = getattr(kind, method, None)
        if own is None or own is getattr(Allocator, method):
            wrong = f"has no method {method}({arguments})"
        elif _takes(own, 1 + len(arguments.split(", "))):
            continue
        else:
            wrong = f"has a method {method} that does not take ({arguments})"
        raise ArgumentError(kind.__name__, f"the allocator of {device} {wrong}",
                            "alloc(nbytes), copyin(opaque, offset, source), copyout(target, opaque, offset) and "
                            "free(opaque), which are tinygrad's _alloc, _copyin, _copyout and _free with the byte to "
                            "begin at: docs/new_accelerator.md")


def _takes(function: Callable[..., Any], count: int) -> bool:
    """Return True if ``function`` can be called with ``count`` positional arguments."""
    try:
        inspect.signature(function).bind(*[None] * count)
    except TypeError:
        return False
    return True


class Compiled:
    """A device: its name and its parts.

    Args:
        device: canonical name, such as ``CPU:1``.
        allocator: its memory; None for a device without its own memory.
        compiler: compiles source to a binary.
        runtime: creates a Program from a kernel and its binary.
        renderer: generates source; its ``target`` describes the device. None: a device that runs no programs.

    Raises:
        ArgumentError: if a part is a class, or the allocator lacks one of its methods.
    """

    def __init__(self, device: str, allocator: Allocator, compiler: Compiler,
                 runtime: Callable[[Launch, bytes], Program], renderer: Renderer | None = None) -> None:
        for part, what in ((allocator, "allocator"), (compiler, "compiler"), (renderer, "renderer")):
            if isinstance(part, type):
                raise ArgumentError(type(self).__name__, f"{what}={part.__name__} is a class, not a part of {device}",
                                    f"{what}={part.__name__}()")
        if allocator is not None:
            _check_memory(device, allocator)
        self.device, self.allocator, self.compiler, self.runtime = device, allocator, compiler, runtime
        self._renderer = renderer
        self.hardware = ""  # model name; empty for the host's processor

    @property
    def renderer(self) -> Renderer:
        if self._renderer is None:
            raise DeviceError(
                "Device", f"{self.device} has no renderer, so no source can be generated for it",
                f"{type(self).__name__}'s super().__init__(device, allocator, compiler, runtime, renderer) with a "
                f"renderer, such as CRenderer(Target({self.device.lower()!r})), and Device.register: "
                "docs/new_accelerator.md; or copy the tensor with .to('CPU')")
        return self._renderer

    @property
    def runs_on(self) -> Compiled:
        """The device that runs its kernels: itself, or the stand-in for a device that is not on this machine."""
        return self

    persistent: ClassVar[bool] = False  # its memory outlives the process (files), so values are written at once

    concurrent: ClassVar[bool] = False  # several threads may launch at the same time

    interpreted: ClassVar[bool] = False  # programs are interpreted, thousands of times slower than machine code

    dlpack: tuple[int, int] | None = None  # DLPack (device type, device id), if its handles are ``Block``s
    calls_host: bool = False  # queue commands may be host functions, on memory that the device shares with the host

    @property
    def stream(self) -> int | None:
        """The stream that runs its work, as DLPack defines it; a consumer of its memory makes that stream wait."""
        return None

    def hand_over(self, stream: int | None) -> None:
        """Order work that is later put into the foreign ``stream`` after everything launched here (DLPack export)."""
        self.synchronize()

    @property
    def target(self) -> Target:
        """The features available to generated code; a default target for a device without programs."""
        return Target(self.device) if self._renderer is None else self._renderer.target

    @property
    def has_programs(self) -> bool:
        return self._renderer is not None

    @property
    def worker(self) -> str:
        """The name of the host thread that runs this device's work: devices with the same worker run one at a time,
        devices with different workers at the same time."""
        return self.device

    def load(self, kernels: Sequence[tuple[Launch, bytes]]) -> list[Program]:
        """Create programs from kernels and their binaries; a device may load them in one batch."""
        return [self.runtime(kernel, binary) for kernel, binary in kernels]

    def copier(self, source: Compiled, nbytes: int) -> Program | None:
        """Return a program that copies ``nbytes`` bytes from its second buffer, on ``source``, to its first, on this
        device.

        It is launched in order with this device's kernels. None: copies are separate commands.
        """
        return None

    def run(self, calls: Sequence[Call]) -> None:
        """Launch kernels in order."""
        for call in calls:
            call.program(call.buffers, call.variables)

    def graph(self, launches: Sequence[Launched]) -> Graph:
        """Return launches prepared to run together, many times."""
        return Graph(self, launches)

    def timed(self, call: Call) -> float:
        """Launch one kernel, wait for it, and return its seconds; memory of its outputs is allocated before the timing
        starts."""
        for b in call.buffers:
            b.opaque  # noqa: B018
        start = time.perf_counter()
        self.run([call])
        self.synchronize()
        return time.perf_counter() - start

    @property
    def lost(self) -> str:
        """The reason why the device is unusable in this process; "" while it works."""
        return ""

    def synchronize(self) -> None:
        """Wait until everything launched on this device has finished."""

    def record(self) -> Any:
        """Return an event that marks everything launched so far as finished; None if launches are synchronous."""
        return self.synchronize()

    def wait(self, event: Any) -> None:
        """Order later launches after ``event``, of this device or another of its ``worker``."""


def _offered() -> list[Any]:
    """Return the device entry points of installed packages; importlib.metadata is slow to import, so the import is
    lazy."""
    metadata = importlib.import_module("importlib.metadata")
    return list(metadata.entry_points(group="tinsmith.devices"))


class _Devices:
    """The device registry, ``Device["CUDA:1"]``: canonical names, opening on first use, registration of devices."""

    def __init__(self) -> None:
        self._opened: dict[str, Compiled] = {}
        self._classes: dict[str, Callable[[str], Compiled]] = {}
        self._names: dict[tuple[DeviceName, str], str] = {}  # (name, ALIAS setting) → canonical name
        self._pid = os.getpid()

    EVERYWHERE = ("CPU", "PYTHON", "NPY")
    BUILT_IN = (*EVERYWHERE, "DISK", "OPENCL", "CUDA", "WEBGPU", "METAL", "HIP")

    @property
    def DEFAULT(self) -> str:
        """The device of tensors that name none: ``DEV``, else ``CPU``."""
        return self.canonicalize(settings.DEV or "CPU")

    @DEFAULT.setter
    def DEFAULT(self, name: str) -> None:
        settings.DEV = name

    def canonicalize(self, name: DeviceName | Sequence[str] | None) -> str:
        """Return the canonical name of a device after aliases (``cpu:0`` → ``CPU``), or of a group for several names.

        >>> Device.canonicalize("cpu:0"), Device.canonicalize("cpu:1:c"), Device.canonicalize(("CPU:0", "CPU:1"))
        ('CPU', 'CPU:1:C', 'CPU,CPU:1')

        Raises:
            DeviceError: if ``name`` is not a device name, or a group names a device twice.
        """
        if name is None:
            return self.DEFAULT
        aliases = settings.ALIAS
        found = self._names.get((name, aliases)) if isinstance(name, (str, tuple)) else None
        if found is None:
            found = self._group(name)
            self._names[name if isinstance(name, str) else tuple(name), aliases] = found
        return found

    def _group(self, name: object) -> str:
        several = members(name) if isinstance(name, str) else name
        if isinstance(several, (tuple, list)) and not several:
            raise DeviceError("Device", "an empty device group", "at least one name")
        if not isinstance(several, (tuple, list)) or not all(isinstance(n, str) for n in several):
            raise DeviceError("Device", f"a device name is a string, not {name!r}",
                              f"one of {', '.join(self.known())}")
        group = [self._canonical(n) for n in several]
        if len(set(group)) < len(group):
            raise DeviceError("Device", f"{', '.join(group)} name one device twice", "different devices")
        return ",".join(group)

    def _canonical(self, name: str) -> str:
        kind, _, path = name.partition(":")
        if kind.upper() == "DISK":  # the rest is a file path
            return f"DISK:{path}"
        parts = name.upper().split(":")
        for alias in filter(None, settings.ALIAS.upper().split(",")):
            old, _, new = alias.partition("=")
            if old == parts[0]:
                parts[0] = new
        index = next((p for p in parts[1:] if p.isdigit()), "0")
        rest = [p for p in parts[1:] if not p.isdigit()]
        return ":".join([parts[0], *([index] if int(index) else []), *rest])

    def known(self) -> list[str]:
        """Return the names that can be opened: built in, registered, or offered by installed packages."""
        offered = [e.name.upper() for e in _offered()]
        return list(dict.fromkeys([*self.BUILT_IN, *self._classes, *offered]))

    def register(self, name: str, make: Callable[[str], Compiled]) -> None:
        """Add a device: ``make`` is called with the canonical name and returns the opened device."""
        if not name.isidentifier():
            raise ArgumentError("Device.register", f"{name!r} is not a device name", "letters, digits and underscores")
        if not callable(make):
            raise ArgumentError("Device.register", f"{name} needs a class, got {shown(make)}", "a subclass of Compiled")
        self._classes[name.upper()] = make

    def made_by(self, name: str) -> str | None:
        """Return the module that registered a device, for another process to import; None for other devices."""
        make = self._classes.get(self.canonicalize(name).split(":")[0])
        return None if make is None else str(make.__module__)

    def __getitem__(self, name: str | None) -> Compiled:
        found = self._opened.get(name or "")
        if found is not None:
            return found
        canonical = self.canonicalize(name)
        return self._opened.get(canonical) or self._made(canonical, settings.DEBUG >= 4 or self.shows_source)

    shows_source = False  # True: absent devices get a stand-in at any DEBUG level, not only from 4 on

    def here(self, name: str | None) -> Compiled:
        """Return the device itself, never a stand-in.

        Raises:
            DeviceError: with the reason why it is not on this machine.
        """
        canonical = self.canonicalize(name)
        found = self._opened.get(canonical) or self._made(canonical, False)
        if found.runs_on is not found:
            raise vars(found)["missing"]
        return found

    def _made(self, canonical: str, stands_in: bool) -> Compiled:
        if not self._opened:
            tell_unread()
        try:
            opened = self._open(canonical)
        except DeviceError as error:
            opened = self._stand_in(canonical, error, stands_in)
        self._opened[canonical] = opened
        if settings.DEBUG >= 1:
            show(f"opened device {canonical} from pid:{os.getpid()}")
            runner = opened.runs_on
            if runner is not opened:
                show(f"{canonical} is not on this machine: its source is shown, values and times are {runner.device}'s")
        return opened

    def _stand_in(self, canonical: str, error: DeviceError, wanted: bool) -> Compiled:
        """Return a stand-in that shows the source of a device that cannot be opened.

        Raises:
            DeviceError: if no stand-in is wanted, or the device has no renderer.
        """
        kind, *rest = canonical.split(":")
        renderer = None if kind in self._classes else self._writes(kind)
        if renderer is None:
            raise error
        if not wanted:
            mend = f"{error.mend}; or DEBUG=4, which shows its source"
            raise DeviceError(error.op, error.message, mend) from None
        standin = importlib.import_module("tinsmith.backend.device")
        runner = self[":".join(["CPU", *(p for p in rest if p.isdigit())])]
        found: Compiled = standin.StandIn(canonical, renderer(), runner, error)
        return found

    def _writes(self, kind: str) -> Callable[[], Renderer] | None:
        """Return the renderer class of a built-in device, whether or not the device can be opened; None if it has
        none."""
        if kind not in self.BUILT_IN:
            return None
        return getattr(importlib.import_module(f"tinsmith.backend.{kind.lower()}.device"), "RENDERER", None)

    def _open(self, canonical: str) -> Compiled:
        base = canonical.split(":")[0]
        make = self._classes.get(base)
        if make is None and base in self.BUILT_IN:
            make = importlib.import_module(f"tinsmith.backend.{base.lower()}.device").DEVICE
        if make is None:
            found = [e for e in _offered() if e.name.upper() == base]
            make = found[0].load() if found else None
        if make is None:
            raise DeviceError("Device", f"there is no device {canonical!r}", f"one of {', '.join(self.known())}, or "
                              f"Device.register({base!r}, its class): docs/new_accelerator.md")
        opened = make(canonical)
        if not isinstance(opened, Compiled):
            raise DeviceError("Device", f"the factory registered as {base} returned {opened!r:.60}, not a device",
                              f"Device.register({base!r}, a subclass of Compiled)")
        return opened

    def renderer_of(self, name: str) -> Renderer:
        """Return the renderer of a device, also of a built-in device that cannot be opened here, so that source can be
        generated.

        >>> type(Device.renderer_of("CUDA")).__name__
        'CUDARenderer'

        Raises:
            DeviceError: if there is no such device.
        """
        base = self.canonicalize(name).split(":")[0]
        try:
            return self.here(name).renderer
        except DeviceError:
            make = None if base in self._classes else self._writes(base)
            if make is None:
                raise
            return make()

    def get_available_devices(self) -> Iterator[str]:
        """Yield the names of devices that can run programs on this machine; ``Device[name]`` says why another cannot be
        opened.

        >>> "CPU" in Device.get_available_devices()
        True
        """
        for name in self.known():
            with contextlib.suppress(Exception):  # third-party devices can raise anything
                if self.here(name).has_programs:
                    yield name

    @property
    def default(self) -> Compiled:
        """The opened default device."""
        return self[self.DEFAULT]

    def __iter__(self) -> Any:
        return iter(self.known())

    def opened(self) -> list[str]:
        """Return the names of the devices opened so far."""
        return list(self._opened)

Device = _Devices()
memory.connect(Device)


class _Compiler(Compiler):
    """The runner's compiler, for the kernels that it runs; it gives no assembly of the shown source."""

    def __init__(self, compiler: Compiler) -> None:
        self.compiler = compiler

    def threads(self) -> int:
        return self.compiler.threads()

    def compile(self, source: str) -> bytes:
        return self.compiler.compile(source)


class StandIn(Compiled):
    """``Device["METAL"]`` on a machine without Metal, for showing its source.

    Programs are scheduled, and kernels rendered, for the target of the absent device. Each kernel is also compiled for
    ``runner``, whose memory holds all buffers, so the values that a script reads are correct.

    Args:
        device: canonical name of the absent device.
        renderer: the renderer of the shown source.
        runner: the device that runs the kernels.
        missing: the error that opening the device itself raised.
    """

    def __init__(self, device: str, renderer: Renderer, runner: Compiled, missing: Exception) -> None:
        super().__init__(device, runner.allocator, _Compiler(runner.compiler), runner.runtime, renderer)
        self.runner, self.missing = runner, missing

    @property
    def runs_on(self) -> Compiled:
        return self.runner

    @property
    def worker(self) -> str:
        return self.runner.worker

    def load(self, kernels: Sequence[tuple[Launch, bytes]]) -> list[Program]:
        return self.runner.load(kernels)

    def copier(self, source: Compiled, nbytes: int) -> Program | None:
        return self.runner.copier(source.runs_on, nbytes)

    def run(self, calls: Sequence[Call]) -> None:
        self.runner.run(calls)

    def graph(self, launches: Sequence[Launched]) -> Graph:
        return self.runner.graph(launches)

    def timed(self, call: Call) -> float:
        return self.runner.timed(call)

    def synchronize(self) -> None:
        self.runner.synchronize()
