"""A profile hook for captures: records the Python functions that run, and unrepeatable calls (clock, files, ...)."""
from __future__ import annotations

import contextvars
import datetime
import io
import os
import random
import sys
import time
import types
from typing import Any, Final

from tinsmith.core.errors import place
from tinsmith.core.object_lifetime import no_collection
from tinsmith.jit.guards.signature import library
from tinsmith.jit.guards.state import State

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
