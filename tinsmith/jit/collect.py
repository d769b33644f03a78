"""The record of a captured call: its programs, the Python functions that ran, and calls that cannot be repeated.

A profile hook records the functions and the unrepeatable calls (clock, files, …).
"""
from __future__ import annotations

import contextvars
import datetime
import io
import os
import random
import sys
import time
import types
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, NamedTuple

from tinsmith.backend.device import Device
from tinsmith.backend.memory import Buffer, copied
from tinsmith.backend.shards import flattened
from tinsmith.core.errors import JitError, place, user_line
from tinsmith.core.object_lifetime import no_collection
from tinsmith.core.terminal import cut, width
from tinsmith.ir import Ops, UOp
from tinsmith.ir.algebra.sizes import bindings
from tinsmith.ir.uop import toposort
from tinsmith.jit.guards.signature import library
from tinsmith.jit.guards.state import State
from tinsmith.runtime.compiled_schedule import CompiledSchedule
from tinsmith.runtime.launch import launch, recorders
from tinsmith.tensor.base import TensorBase
from tinsmith.tensor.realize import buffer_of


class Source(NamedTuple):
    """The source of a buffer at a replay: a guard's entry, an earlier program's output, or a fixed buffer."""

    group: int = -1
    program: int = -1
    output: int = 0
    held: Any = None

    @property
    def made(self) -> tuple[int, int]:
        """Return (index of the program, index of its output)."""
        return self.program, self.output



@dataclass(repr=False)
class JitItem:
    """One program that ran during capture: its schedule, the variables' names and values, and its buffers. Printing it
    gives one line; ``print(item.compiled)`` gives one for each kernel.

    ``inputs`` and ``outputs`` are emptied when the capture is finished; ``sources`` then describes the inputs.
    ``holders`` are tensors from before the recording that held inputs; the items returned by
    ``CacheCollector.finish()`` use them.
    """

    compiled: CompiledSchedule
    inputs: list[Buffer]
    values: list[int]
    names: list[str]
    outputs: list[Buffer]
    sources: list[Source] = field(default_factory=list)
    holders: dict[int, weakref.ref[TensorBase]] = field(default_factory=dict, repr=False)

    def __repr__(self) -> str:
        if len(self.compiled) == 1:
            return repr(self.compiled[0])
        return cut(f"{len(self.compiled)} steps: {', '.join(f'{i.device} {i.name}' for i in self.compiled)}", width())

    @property
    def rawbufs(self) -> list[Buffer]:
        """The buffers that it runs on: inputs, then outputs. If a tensor was assigned meanwhile, its new buffer."""
        return [*(self._present(n, b) for n, b in enumerate(self.inputs)), *self.outputs]

    def _present(self, number: int, buffer: Buffer) -> Buffer:
        """Return the current buffer of input ``number``, which was ``buffer`` when the program was recorded."""
        holder = self.holders[number]() if number in self.holders else None
        found = None if holder is None else buffer_of(holder)
        alike = found is not None and (found.device, found.size, found.dtype) == (
            buffer.device, buffer.size, buffer.dtype) and found.layout == buffer.layout
        return found if found is not None and alike else buffer

    def prg(self, rawbufs: Sequence[Buffer], var_vals: Mapping[Any, int] | None = None, wait: bool = False,
            jit: bool = True) -> float | None:
        """Run the program again; the arguments follow the tutorials.

        Args:
            rawbufs: its buffers, or replacements of the same sizes.
            var_vals: values of variables, by variable; default: those of the first run.
            wait: wait until it has run, and return the seconds that it took.
            jit: ignored.

        Raises:
            JitError: for a wrong number of buffers, and for a program of a captured function, which keeps no buffers.
        """
        bound, count = self.compiled.bound, len(self.inputs)
        if not self.outputs or len(rawbufs) != len(self.rawbufs):
            raise JitError("JitItem.prg", f"got {len(rawbufs)} buffers, has {len(self.rawbufs)}; a captured function "
                           "takes its buffers from the arguments of each call", "ji.prg(ji.rawbufs) for what "
                           "CacheCollector.finish() gives; otherwise call the captured function")
        results = dict(zip(bound.results, flattened(rawbufs[count:])))
        outputs = [results[n] for n in range(len(bound.outputs))]
        given = {v.src[0].arg[0] if v.op is Ops.BIND else v.arg[0]: n for v, n in (var_vals or {}).items()}
        values = [given.get(name, value) for name, value in zip(self.names, self.values)]
        blocks = bound.new_blocks()
        start = time.perf_counter()
        inputs = [copied(b) if any(b is o for o in outputs) else b for b in flattened(rawbufs[:count])]
        launch(bound, inputs, outputs, values, blocks)
        if not wait:
            return None
        for device in {step.device for step in self.compiled.steps}:
            Device[device].synchronize()
        return time.perf_counter() - start



class CacheCollector:
    """Collects the programs that run between ``start`` and ``finish``; a capture is one of these.

    >>> CacheCollector.start()
    >>> _ = (Tensor([1.0]) + 1).realize()
    >>> len(CacheCollector.finish())
    1
    """

    _current: ClassVar[list[CacheCollector]] = []

    def __init__(self) -> None:
        self.items: list[JitItem] = []
        self.graphs: dict[UOp, None] = {}
        self.host_read: tuple[str, int] | None = None

    def wanted(self, graphs: Sequence[UOp]) -> None:
        self.graphs.update(dict.fromkeys(graphs))

    def ran(self, roots: Sequence[UOp], compiled: CompiledSchedule, inputs: list[Buffer], values: list[int],
            outputs: list[Buffer]) -> None:
        names = [n.src[0].arg[0] for n in bindings(toposort(roots))]
        self.items.append(JitItem(compiled, inputs, values, names, outputs))

    def read(self) -> None:
        self.host_read = self.host_read or user_line()

    def precedes(self, node: UOp) -> bool:
        return False  # the values differ at a replay

    @classmethod
    def start(cls, variables: Any = None) -> None:
        """Begin to collect; ``variables`` is accepted for the tutorials and ignored."""
        cls._current.append(_Followed())
        recorders.append(cls._current[-1])

    @classmethod
    def finish(cls) -> list[JitItem]:
        """Return the programs that ran since the latest ``start``."""
        collector = cls._current.pop()
        recorders.remove(collector)
        return collector.items



class _Followed(CacheCollector):
    """The collector of ``start`` and ``finish``; program inputs are held by tensors from before ``start``."""

    def __init__(self) -> None:
        super().__init__()
        self.before = set(toposort([t.uop for t in TensorBase.live]))
        self.tensors = [weakref.ref(t) for t in TensorBase.live]
        self.made: set[int] = set()

    def precedes(self, node: UOp) -> bool:
        return node in self.before

    def ran(self, roots: Sequence[UOp], compiled: CompiledSchedule, inputs: list[Buffer], values: list[int],
            outputs: list[Buffer]) -> None:
        super().ran(roots, compiled, inputs, values, outputs)
        holders = {id(buffer_of(t)): ref for ref in reversed(self.tensors) if (t := ref()) is not None}
        self.items[-1].holders = {n: holders[id(b)] for n, b in enumerate(inputs)
                                  if id(b) in holders and id(b) not in self.made}
        self.made.update(map(id, outputs))

_CLOCK: Final = ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "process_time",
                 "process_time_ns", "thread_time", "gmtime", "localtime", "ctime", "asctime", "strftime")
_CALLS: Final[dict[Any, str]] = {**{getattr(time, n): f"time.{n}" for n in _CLOCK if hasattr(time, n)},
                                 os.urandom: "os.urandom", open: "open", io.open: "open", input: "input",
                                 datetime.datetime.now: "datetime.now", datetime.datetime.utcnow: "datetime.utcnow",
                                 datetime.datetime.today: "datetime.today", datetime.date.today: "date.today"}
_OWNERS: Final = {random.Random: "random", io.IOBase: "a file's", contextvars.ContextVar: "a context variable's"}
_KINDS: Final = tuple(_OWNERS)
_ENVIRON: Final = {f.__code__ for f in (os._Environ.__getitem__, os._Environ.__iter__)}
# What they read changes no result, or we asked for it: platformdirs says where the disk cache is.
_SILENT: Final = {"logging", "warnings", "threading", "traceback", "linecache", "tinsmith", "numpy", "platformdirs"}



def _of_a_device(frame: types.FrameType) -> bool:
    """Return True if a function of another package was called by ``tinsmith.backend``, as part of computing."""
    found: types.FrameType | None = frame
    while found is not None:
        module = str(found.f_globals.get("__name__", ""))
        if module.startswith("tinsmith."):
            return found is not frame and module.startswith("tinsmith.backend.")
        found = found.f_back
    return False



class CaptureProfile:
    """A profile function for the time of a capture; events are forwarded to a profiler that is already active.

    The garbage collector is paused meanwhile: it may run at any line, and its calls (``gc.callbacks``, finalizers of
    unrelated garbage) do not belong to the function.

    Args:
        state: receives every function before it runs for the first time.

    Attributes:
        calls: (name of the function, file, line) of calls whose result may differ at the next call.
    """

    def __init__(self, state: State) -> None:
        self.state = state
        self.codes: set[types.CodeType] = set()
        self.calls: dict[tuple[str, str, int], None] = {}
        self.quiet: set[type] = set()  # kinds of objects whose methods are no matter
        self.printing = 0
        self.earlier: Any = None
        self.collector = no_collection()

    def __enter__(self) -> CaptureProfile:
        self.collector.__enter__()
        self.earlier = sys.getprofile()
        sys.setprofile(self.event if not callable(self.earlier) else self.both)
        return self

    def __exit__(self, *error: object) -> None:
        sys.setprofile(self.earlier if callable(self.earlier) else None)
        if hasattr(self.earlier, "enable"):  # a profiler in C hooks itself in
            self.earlier.enable()
        self.collector.__exit__(None, None, None)

    def both(self, frame: types.FrameType, event: str, arg: Any) -> None:
        self.earlier(frame, event, arg)
        self.event(frame, event, arg)

    def event(self, frame: types.FrameType, event: str, arg: Any) -> None:
        if event == "call":
            code = frame.f_code
            if code not in self.codes and not self.printing and not _of_a_device(frame):
                self.codes.add(code)
                self.state.add(code, frame.f_globals)
            if code in _ENVIRON:
                self.note("os.environ", frame)
        elif event == "c_call":
            kind = type(arg.__self__)
            if kind not in self.quiet:
                self.called(arg, kind, frame)
        elif arg is print and event in ("c_return", "c_exception"):
            self.printing -= 1

    def called(self, function: Any, kind: type, frame: types.FrameType) -> None:
        """Record the call of a C function of a module, a class, or an object of class ``kind``."""
        owner = function.__self__
        if function is print:
            self.printing += 1
        elif issubclass(kind, (types.ModuleType, type)):
            if function in _CALLS and not self.printing:
                self.note(_CALLS[function], frame)
        elif not issubclass(kind, _KINDS):
            self.quiet.add(kind)
        elif owner not in (sys.stdout, sys.stderr) and not self.printing:
            text = next(text for k, text in _OWNERS.items() if issubclass(kind, k))
            self.note(f"{text}{'.' if text == 'random' else ' '}{function.__name__}", frame)

    def note(self, name: str, frame: types.FrameType | None) -> None:
        """Record a call that came from the user's code, directly or through a library that forwards it."""
        if frame is not None and _of_a_device(frame):
            return
        while frame is not None:
            module = str(frame.f_globals.get("__name__", ""))
            if module.partition(".")[0] in _SILENT:
                return
            if not library(module):
                self.calls[name, frame.f_code.co_filename, frame.f_lineno] = None
                return
            frame = frame.f_back

    def reason(self) -> str:
        """Return the reason why the call cannot be captured; empty if it can."""
        if self.state.failed:
            return self.state.failed
        calls = dict.fromkeys([*self.calls, *(() if self.calls else self.state.gone_on())])
        return "uses " + ", ".join(f"{name} at {place(file, line)}" for name, file, line in calls) if calls else ""
