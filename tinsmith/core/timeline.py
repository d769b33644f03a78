"""The timeline: kernels, copies, synchronizations and compilations on one clock, and memory allocation and release.

``PROFILE`` and ``VIZ`` record events here; they are written as a Perfetto trace and shown by the trace page. Processes
of one program write one trace.
"""
from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from tinsmith.core.counters import GlobalCounters, Ran
from tinsmith.core.origin import layers_of
from tinsmith.core.settings import settings

MOST: Final = 200_000  # events kept; later ones are only counted
PYTHON: Final = "Python"  # the row of the user's thread
COLLECTIVES: Final = "collectives"  # the row of host functions of ``distributed``
_HOST_FUNCTIONS: Final = ("host_mpi_", "host_nccl_")
_EPOCH: Final = 1_700_000_000  # seconds: the origin of times of several processes, so that microseconds stay exact
# phases: see ``Timeline.phases``
IMPORTING: Final = "importing Tinsmith"
RECORDING: Final = "recording: Tensor methods and your own Python"
SCHEDULING: Final = "scheduling"
GENERATING: Final = "generating code"
COMPILING: Final = "compiling and loading"
GUARDS: Final = "guards and arguments of TinyJit"
LAUNCHING: Final = "launching"
PERFETTO: Final = ".perfetto.json"
PHASES: Final = (IMPORTING, RECORDING, SCHEDULING, GENERATING, COMPILING, GUARDS, LAUNCHING)


class Participant(NamedTuple):
    """This process among those of a program. ``token``: the same in all of them, and another one in each run."""

    rank: int
    host: str
    token: str


class Event(NamedTuple):
    """A span or, for kind ``memory``, a moment. ``row``: the device, or another row of the timeline; ``memory``: bytes
    in use on the device afterwards."""

    kind: str
    row: str
    name: str
    start: float
    seconds: float
    memory: int = 0
    ops: int = 0
    bytes: int = 0
    lines: tuple[tuple[str, str, int], ...] = ()
    key: str = ""


class _Open(threading.local):
    """The open phases of a thread: for each, the seconds to subtract (nested phases and kernels)."""

    def __init__(self) -> None:
        self.others: list[float] = []


class Timeline:
    """Recorded events, in the order in which they ended.

    Attributes:
        programs: the number of programs that were made.
        phases: seconds that the user's threads spent in each phase, without the phases and kernels inside of it.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Delete all recorded events."""
        self.events: list[Event] = []
        self.left_out = self.programs = 0
        self.phases: defaultdict[str, float] = defaultdict(float)
        self._open = _Open()

    def note(self, event: Event) -> None:
        if len(self.events) < MOST:
            self.events.append(event)
        else:
            self.left_out += 1

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the time of the block to a phase, without the time of nested phases and kernels."""
        others = self._open.others
        others.append(0.0)
        start = time.perf_counter()
        try:
            yield
        finally:
            seconds = time.perf_counter() - start
            self.phases[name] += seconds - others.pop()
            if others:
                others[-1] += seconds

    def ran(self, ran: Ran) -> None:
        """Record a kernel, a copy or a synchronization."""
        if self._open.others:
            self._open.others[-1] += ran.seconds
        self.note(Event(ran.kind, ran.device, ran.name, ran.start, ran.seconds, GlobalCounters.memory_on[ran.device],
                        ran.ops, ran.bytes, ran.lines, ran.key))

    def memory(self, row: str) -> None:
        """Record that memory of a device was allocated or released."""
        self.note(Event("memory", row, "", time.perf_counter(), 0.0, GlobalCounters.memory_on[row]))

    @contextlib.contextmanager
    def span(self, kind: str, row: str, name: str, key: str = "") -> Iterator[None]:
        """Record the block as an event of ``kind``; kind ``program`` counts programs."""
        start = time.perf_counter()
        try:
            yield
        finally:
            seconds = time.perf_counter() - start
            self.note(Event(kind, row, name, start, seconds, GlobalCounters.memory_on[row], key=key))
            if kind == "program":
                self.programs += 1


timeline: Final = Timeline()
parts: Final[list[Participant]] = []  # of this process; empty in a program of one process


def phase(name: str) -> contextlib.AbstractContextManager[None]:
    """Return ``timeline.phase`` if events are recorded, else a context that does nothing.

    >>> before = timeline.phases.copy()
    >>> with phase(SCHEDULING):
    ...     pass
    >>> timeline.phases == before
    True
    """
    return timeline.phase(name) if settings.timed else contextlib.nullcontext()


def span(kind: str, row: str, name: str, key: str = "") -> contextlib.AbstractContextManager[None]:
    """Return ``timeline.span`` if events are recorded, else a context that does nothing.

    >>> before = len(timeline.events)
    >>> with span("program", PYTHON, "a name"):
    ...     pass
    >>> len(timeline.events) == before
    True
    """
    return timeline.span(kind, row, name, key) if settings.timed else contextlib.nullcontext()


def output_path(suffix: str) -> Path:
    """Return the path of an output file of this run: named after the script, in ``TRACE_DIR`` (created) or the current
    folder.

    Raises:
        OSError: if ``TRACE_DIR`` cannot be created.

    >>> output_path(".perfetto.json").name.endswith(".perfetto.json")
    True
    """
    name = Path(sys.argv[0]).stem if sys.argv and sys.argv[0] not in ("", "-", "-c", "-m") else "python"
    folder = Path(settings.TRACE_DIR)
    folder.mkdir(parents=True, exist_ok=True)
    rank = f".rank{parts[0].rank}" if parts and parts[0].rank and suffix != PERFETTO else ""
    return folder / f"{name}{rank}{suffix}"


def _row(event: Event) -> str:
    """Return the row of an event: collectives have one of their own."""
    return COLLECTIVES if event.name.startswith(_HOST_FUNCTIONS) else event.row


def perfetto(events: list[Event]) -> dict[str, Any]:
    """Return the events in the trace format of https://ui.perfetto.dev: one process, a thread per row, and a memory
    counter per device; times in microseconds, on the clock of the host in a program of several processes.

    >>> found = perfetto([Event("kernel", "CPU", "r_2", 1.0, 2e-6, 64)])["traceEvents"]
    >>> [e["ph"] for e in found], found[-2]["dur"]
    (['M', 'M', 'X', 'C'], 2.0)
    """
    spans = dict.fromkeys(_row(e) for e in events if e.kind != "memory")
    pid, rows = os.getpid(), {row: n for n, row in enumerate(spans, 1)}
    start, title = min((e.start for e in events), default=0.0), "tinsmith"
    if parts:
        pid, title = parts[0].rank + 1, f"rank {parts[0].rank} on {parts[0].host}"
        start = time.perf_counter() - time.time() + _EPOCH
    found: list[dict[str, Any]] = [{"ph": "M", "pid": pid, "name": "process_name", "args": {"name": title}}]
    found += [{"ph": "M", "pid": pid, "tid": n, "name": "thread_name", "args": {"name": row}}
              for row, n in rows.items()]
    for e in events:
        at = round((e.start - start) * 1e6, 3)
        lines = [f"{method} ({file}:{line})" for method, file, line in e.lines]
        details = {"operations": e.ops, "bytes": e.bytes, "lines": lines, "layers": layers_of(e.lines)}
        if e.kind != "memory":
            found.append({"ph": "X", "pid": pid, "tid": rows[_row(e)], "name": e.name, "cat": e.kind, "ts": at,
                          "dur": round(e.seconds * 1e6, 3), "args": {k: v for k, v in details.items() if v}})
        if e.kind in ("kernel", "copy", "memory"):
            found.append({"ph": "C", "pid": pid, "name": f"memory of {e.row}", "ts": round(at + e.seconds * 1e6, 3),
                          "args": {"bytes": e.memory}})
    return {"traceEvents": found, "displayTimeUnit": "ms"}


def write_perfetto(path: Path) -> None:
    """Write all recorded events as a Perfetto trace; processes of one program add theirs to one file."""
    found = perfetto(timeline.events)
    if not parts:
        path.write_text(json.dumps(found), "utf-8")
        return
    lines = ",\n".join(map(json.dumps, found["traceEvents"]))
    first = json.dumps({"ph": "M", "pid": 0, "name": "run", "args": {"name": parts[0].token}})
    with path.open("a+b") as file:
        if os.name == "posix":
            importlib.import_module("fcntl").flock(file, 2)  # LOCK_EX, until the file is closed
        file.seek(0)
        if file.readline() != f"[{first},\n".encode():  # the trace of an earlier run
            file.truncate(0)
            file.write(f"[{first},\n{lines}\n]".encode())
            return
        file.truncate(file.seek(-2, os.SEEK_END))  # the bracket
        file.write(f",\n{lines}\n]".encode())
