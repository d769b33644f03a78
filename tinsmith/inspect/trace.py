"""Trace: a record of how programs were compiled and run, pass by pass, as one JSON document (fields: docs/viz.md).

While a program is lowered, the trace is its observer: passes report their results, rules their rewrites. Expensive
texts (estimates, sources, assembly) are made from the finished program.
"""
from __future__ import annotations

import atexit
import contextlib
import json
import linecache
import multiprocessing
import os
import platform
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from tinsmith.backend.device import Device
from tinsmith.backend.machine import machine
from tinsmith.codegen.compile_kernel import begin
from tinsmith.codegen.kernel import Kernel
from tinsmith.codegen.launch import KernelProgram, programs
from tinsmith.codegen.planner.roofline import Machine, estimate
from tinsmith.codegen.render.base import Renderer
from tinsmith.core import counters
from tinsmith.core.errors import TinsmithError, user_line
from tinsmith.core.origin import InLayer, Origin, layer_of, layers_of, observed
from tinsmith.core.settings import Context, settings
from tinsmith.core.terminal import show
from tinsmith.core.timeline import output_path, timeline
from tinsmith.inspect.debug import READABLE, opts_text
from tinsmith.inspect.fusion_report import items_of
from tinsmith.ir import Ops, UOp
from tinsmith.ir.structure import Axis, range_size
from tinsmith.ir.text.node import argument_text, expression, is_integer, short
from tinsmith.ir.text.printer import graph_rows, table_rows, tree_rows
from tinsmith.ir.uop import toposort
from tinsmith.runtime.compiled_schedule import CompiledSchedule
from tinsmith.runtime.launch import endings
from tinsmith.schedule.canonical import BufferName
from tinsmith.schedule.fusion.fusion import Fusion
from tinsmith.schedule.schedule_item import Schedule, ScheduleItem
from tinsmith.target.target import Target

FORMAT: Final = "tinsmith trace"
VERSION: Final = 1
MOST_REWRITES: Final = 400  # distinct rewrites of one pass that are kept; the others are counted
MOST_ROWS: Final = 20_000  # rows of one pass
MOST_SOURCE: Final = 1 << 20  # bytes of a user's source file that are kept

Rows = list[list[Any]]  # [text, number of an origin or -1]
# a pass: its name, its result, its rewrites, and the number of rewrites left out
Stage = tuple[str, Rows, list[list[Any]], int]


class Trace:
    """A recording of programs; ``document`` returns all of it."""

    def __init__(self, begun: float) -> None:
        self.programs: list[dict[str, Any]] = []
        self.kernels: dict[str, dict[str, Any]] = {}
        self.origins: dict[Origin, int] = {}
        # setting (VIZ, GRAPH, JITGRAPH) → its value, if it was set while something was recorded
        self.wanted: dict[str, int] = {}
        self.begun = begun  # start of the timeline, on the clock of time.perf_counter
        self.machines: dict[str, dict[str, Any]] = {}
        self._compiled: dict[int, tuple[CompiledSchedule, dict[str, Any]]] = {}
        self._stages: list[Stage] = []
        self._of_kernel: list[Stage] | None = None  # passes of the current kernel; None between kernels
        self._pending: Counter[tuple[str, str, str, str]] = Counter()
        self._left_out = 0
        self.seen: dict[UOp, UOp] = {}
        self._finished: list[tuple[KernelProgram, list[Stage]]] = []
        self._thread = 0

    # *** the observer ***

    def passed(self, name: str, value: Any) -> None:
        if threading.get_ident() != self._thread:
            return
        if name == "kernel":
            self._of_kernel = []
        if isinstance(value, KernelProgram):
            self._finished.append((value, self._of_kernel or []))
            self._of_kernel = None
        else:
            stages = self._stages if self._of_kernel is None else self._of_kernel
            stages.append((name, self._rows(value), self._rewrites(), self._left_out))
        self._pending.clear()
        self.seen.clear()
        self._left_out = 0

    def rewritten(self, rule: Any, before: UOp, after: UOp) -> None:
        if threading.get_ident() != self._thread:
            return
        texts = next((t for t in ((_text(before, d), _text(after, d)) for d in (3, 8)) if t[0] != t[1]), ("…", "…"))
        key = rule.name, rule.law, *texts
        if key in self._pending or len(self._pending) < MOST_REWRITES:
            self._pending[key] += 1
        else:
            self._left_out += 1

    def _rewrites(self) -> list[list[Any]]:
        return [[*key, count] for key, count in self._pending.items()]

    def _rows(self, value: Any) -> Rows:
        """Return a pass's result, one row per node or item."""
        if isinstance(value, Kernel):
            value = value.sink
        if isinstance(value, Fusion):
            value = list(value.rows())
        if isinstance(value, UOp):
            found: Sequence[tuple[UOp, str]] = graph_rows(value) if _is_lowered(value) else tree_rows(value)
        elif value and isinstance(value[0], ScheduleItem):
            return [[_item_text(i), self.origin(i.origin)] for i in value]
        elif value and isinstance(value[0], tuple):  # pairs of a node and its text
            found = value
        elif any(n.op in (Ops.DEFINE_GLOBAL, Ops.STORE) for n in value):
            found = table_rows(value)
        else:
            found = _listing(value)
        return [[text, self.origin_of(n)] for n, text in found[:MOST_ROWS]]

    def origin(self, found: Sequence[Origin]) -> int:
        """Return the number of the last origin in the sequence; -1 if there is none."""
        return self.origins.setdefault(found[-1], len(self.origins)) if found else -1

    def origin_of(self, node: UOp) -> int:
        """Return the same for a node; -1 for a constant and its views, which other programs share: their origins may
        be of another program's line."""
        return -1 if node.base.op is Ops.CONST else self.origin(node.origin)

    def _origins(self, found: Sequence[Origin]) -> list[int]:
        return list(dict.fromkeys(self.origin((o,)) for o in found))

    # *** programs ***

    def lowered(self, graph: Sequence[UOp], make: Callable[[], CompiledSchedule]) -> CompiledSchedule:
        """Return the program that ``make`` compiles from ``graph``, and record it."""
        if observed.observer is not None:  # a BEAM search inside another program's lowering
            return make()
        self._thread, self._stages, self._finished, self._of_kernel = threading.get_ident(), [], [], None
        observed.observer = self
        started = time.perf_counter()
        try:
            self.passed("tensor graph", list(graph))
            compiled = make()
        finally:
            observed.observer = None
        seconds = time.perf_counter() - started
        self._add(compiled, self._stages, started, seconds)
        return compiled

    def _add(self, compiled: CompiledSchedule, stages: Sequence[Any], started: float, seconds: float) -> None:
        for kernel, passes in self._finished:
            self._kernel(kernel, passes, compiled)
        schedule = compiled.schedule
        found: dict[str, Any] = {
            "number": len(self.programs), "captured": "", "line": self.origin((("", *user_line()),)),
            "start": started - self.begun, "seconds": seconds, "passes": self._passes(stages),
            "items": [self._item(compiled, n) for n in range(len(compiled.steps))],
            "slots": [[s.size, repr(s.dtype).removeprefix("dtypes."), s.device, _kind(compiled, s.number)]
                      for s in schedule.slots],
            "nodes": self._nodes(schedule)}
        self.programs.append(found)
        self._compiled[id(compiled)] = compiled, found

    def captured(self, name: str, parts: Sequence[CompiledSchedule]) -> None:
        """Mark some programs as parts of a captured function."""
        for compiled in parts:
            if id(compiled) in self._compiled:
                self._compiled[id(compiled)][1]["captured"] = name

    def measured(self, compiled: CompiledSchedule, seconds: dict[int, float]) -> None:
        """Record the measured seconds of steps, by number."""
        for n, taken in seconds.items():
            self._compiled[id(compiled)][1]["items"][n]["seconds"] = taken

    def _passes(self, stages: Sequence[Stage]) -> list[dict[str, Any]]:
        """Return passes with their rows; ``rows`` is None where they equal those of the pass before."""
        found: list[dict[str, Any]] = []
        last: Rows | None = None
        for name, rows, rewrites, left_out in stages:
            found.append({"name": name, "rows": None if rows == last else rows, "rewrites": rewrites,
                          "left_out": left_out})
            last = rows
        return found

    def _item(self, compiled: CompiledSchedule, number: int) -> dict[str, Any]:
        step, item = compiled.steps[number], compiled.schedule.items[number]
        kernel = step.shown if isinstance(step.shown, KernelProgram) else None
        return {"name": step.name, "device": step.device, "kernel": kernel and kernel.symbol, "reason": item.reason,
                "origins": self._origins(item.origin), "layers": list(layers_of(item.origin)),
                "writes": item.written, "reads": item.read, "seconds": None}

    def _nodes(self, schedule: Schedule) -> list[list[Any]]:
        """Return [op, dtype, shape, argument, sources, origin, state, numbers of items, reason] of each node, sources
        first."""
        order = schedule.fusion.analysis.order if schedule.fusion is not None else []
        number = {n: i for i, n in enumerate(order)}
        fusion, items = schedule.fusion, items_of(schedule)
        rows = []
        for n in order:
            state = ("realized" if n.op is Ops.BUFFER else "stored" if n in schedule.slot_of else
                     "view" if n.op.kind == "movement" else "constant" if not n.src else "fused")
            rows.append([n.op.name, repr(n.dtype).removeprefix("dtypes."), _shape(n), _short(n.arg),
                         [number[s] for s in n.src], self.origin_of(n), state, sorted(items.get(n, ())),
                         fusion.reason(n) if fusion is not None and state in ("stored", "fused") else ""])
        return rows

    # *** kernels ***

    def _kernel(self, kernel: KernelProgram, stages: Sequence[Stage],
                compiled: CompiledSchedule) -> None:
        step = next((s for s in compiled.steps if s.shown is not None and s.shown.symbol == kernel.symbol), None)
        if step is None or step.item is None or step.item.sink is None or kernel.symbol in self.kernels:
            return
        device = Device[step.device]
        renderer = device.renderer
        machines = machine(step.device)
        expected = estimate(kernel.kernel, machines, kernel.work)
        self._machine(step.device)
        opts, after = self._opts(step.item.sink, kernel, renderer.target, machines)
        passes = []
        for stage in stages:
            passes.append(stage)
            if stage[0] == "ranges":
                passes += opts
        try:
            assembly = device.compiler.disassemble(kernel.source) or ""
            written = device.compiler.assembly_lines(kernel.source)
        except TinsmithError as error:
            assembly, written = str(error), []
        native = _lines(renderer, kernel, kernel.source)
        written = written[len(assembly) - len(assembly.lstrip("\n")) :]
        assembly = assembly.strip("\n")
        machine_code = [native[n] if 0 <= n < len(native) else -1 for n in written[: assembly.count("\n") + 1]]
        self.kernels[kernel.symbol] = {
            "name": kernel.name, "device": step.device, "opts": opts_text(kernel.opts),
            "expected": after,
            "before": _axes(begin(step.item.sink, renderer.target)), "after": _axes(kernel.kernel),
            "estimate": {"seconds": expected.seconds, "memory": expected.memory, "arithmetic": expected.arithmetic,
                         "launch": expected.launch, "roofline": expected.roofline, "level": expected.level,
                         "operations": expected.work.operations, "read": expected.work.bytes_read,
                         "written": expected.work.bytes_written},
            "tree": self._rows(step.item.sink),
            "passes": self._passes(passes), "uops": self._rows(kernel.uops),
            "source": READABLE.render(kernel.name, kernel.uops),
            "native": kernel.source.replace(kernel.symbol, kernel.name),
            "lines": {"source": _lines(READABLE, kernel, None), "native": native, "assembly": machine_code},
            "assembly": assembly.expandtabs(8).replace(kernel.symbol, kernel.name)}

    def _opts(self, sink: UOp, kernel: KernelProgram, target: Target,
              machines: Machine) -> tuple[list[Stage], list[float]]:
        """Return one pass per opt, applied in order to the kernel without opts, and the predicted
        seconds before and after each."""
        again = begin(sink, target)
        found, seconds = list[Stage](), [estimate(again, machines, kernel.work).seconds]
        for opt in kernel.opts:
            again.apply(opt)
            found.append((f"opt {opts_text([opt])}", self._rows(again.sink), [], 0))
            seconds.append(estimate(again, machines, kernel.work).seconds)
        return found, seconds

    def _machine(self, device: str) -> None:
        if device not in self.machines:
            m = machine(device)
            self.machines[device] = {
                "name": m.name, "workers": m.workers, "measured": m.measured,
                "peaks": [[r.name, r.all] for r in m.peaks], "memory": [[r.name, r.all, r.capacity] for r in m.memory]}

    # *** the document ***

    def document(self) -> dict[str, Any]:
        """Return the trace as a JSON-compatible dictionary."""
        events = [[e.kind, e.row, e.name, e.start - self.begun, e.seconds, e.memory, e.ops, e.bytes,
                   self._origins(e.lines), e.key] for e in timeline.events if e.start >= self.begun]
        files = dict.fromkeys(file for _, file, _ in self.origins)
        return {"format": FORMAT, "version": VERSION, "program": " ".join(sys.argv) or "python",
                "python": platform.python_version(), "machines": self.machines,
                "origins": [list(o) for o in self.origins],
                "layers": [o.path if isinstance(o, InLayer) else "" for o in self.origins],
                "labels": [layer_of(o) for o in self.origins],
                "files": {f: t for f in files if (t := _source(f))},
                "programs": self.programs, "kernels": self.kernels, "events": events,
                "events_left_out": timeline.left_out}

    def write(self, path: Path) -> None:
        """Write the document to a file.

        Raises:
            OSError: if it cannot be written.
        """
        path.write_text(json.dumps(self.document(), separators=(",", ":")), "utf-8")


# *** texts ***


def _is_lowered(sink: UOp) -> bool:
    return any(n.op in (Ops.STORE, Ops.SCATTER_STORE) for n in sink.src)


def _text(n: UOp, depth: int) -> str:
    return expression(n, 80 * depth) if n.op.alu and is_integer(n) else short(n, depth)


def _short(arg: Any) -> str:
    if isinstance(arg, BufferName):
        return f"buffer {arg.number} on {arg.device}"
    text = "" if arg is None else argument_text(arg)
    return text if len(text) <= 100 else f"{text[:99]}…"


def _shape(n: UOp) -> list[Any]:
    try:
        return [s if isinstance(s, int) else expression(s) for s in n.shape]
    except TypeError:  # a node without a tensor shape
        return []


def _listing(roots: Sequence[UOp]) -> list[tuple[UOp, str]]:
    number = {n: i for i, n in enumerate(toposort(list(roots)))}
    return [(n, f"{i:4d} {n.op.name:14s}: {n.dtype!r:16s} {[number[s] for s in n.src]!s:14s} {_short(n.arg)}")
            for n, i in number.items()]


def _item_text(item: ScheduleItem) -> str:
    what = "copy" if item.sink is None else "kernel"
    methods = ", ".join(dict.fromkeys(m for m, _, _ in item.origin if m))
    reads = f" from {', '.join(map(str, item.read))}" if item.read else ""
    parts = (f"{item.device} {what} {', '.join(map(str, item.written))}{reads}", item.reason, methods)
    return "; ".join(filter(None, parts))


def _kind(compiled: CompiledSchedule, slot: int) -> str:
    """Return the kind of a slot, with the offset of a temporary in its device's block."""
    found = compiled.schedule.slots[slot]
    if found.input or found.output:
        return "input" if found.input else "output"
    offset = compiled.plan.offsets.get(slot)
    return "unused" if offset is None else f"temporary at {offset}"


def _lines(renderer: Renderer, kernel: KernelProgram, text: str | None) -> list[int]:
    """Return, for each source line, the row of the UOp table it comes from, or -1; [] if the
    text is not the renderer's."""
    rows = {n: row for row, (n, _) in enumerate(table_rows(kernel.uops))}
    lines = renderer.lines(kernel.symbol, kernel.uops)
    if text is not None and "\n".join(line for line, _ in lines) != text:
        return []
    return [-1 if u is None else rows.get(u, -1) for _, u in lines]


def _axes(kernel: Kernel) -> list[str]:
    return [repr(Axis(range_size(r), r.arg[1])) for r in kernel.ranges]


def _source(file: str) -> str:
    """Return the text of a user's file; for a notebook cell, which has no file, the text in ``linecache``."""
    try:
        path = Path(file)
        return path.read_text("utf-8", errors="replace") if path.stat().st_size <= MOST_SOURCE else ""
    except (OSError, ValueError):
        return "".join(linecache.getlines(file))[:MOST_SOURCE]


# *** the trace of a run: VIZ, GRAPH, JITGRAPH ***

_run: list[Trace] = []
_inner: list[Trace] = []  # traces of ``recording`` blocks


def of_this_run() -> Trace:
    """Return the trace of this process; start it if there is none."""
    if not _run:
        _run.append(Trace(counters.BEGIN))
        atexit.register(_at_exit, os.getpid())
    # also those set in a ``Context`` block
    _run[0].wanted |= {s: n for s in ("VIZ", "GRAPH", "JITGRAPH") if (n := getattr(settings, s))}
    return _run[0]


def current() -> Trace:
    """Return the trace that records programs now."""
    return _inner[-1] if _inner else of_this_run()


@contextlib.contextmanager
def recording() -> Iterator[Trace]:
    """Record a trace of this block only; cached kernels are lowered again in it, so that their passes are recorded."""
    _inner.append(Trace(time.perf_counter()))
    programs.clear()
    try:
        with Context(VIZ=2):
            yield _inner[-1]
    finally:
        _inner.pop()


def expect_nothing() -> None:
    """Do not say at exit that no program ran: this process only starts others."""
    of_this_run().wanted.clear()


def _at_exit(pid: int) -> None:
    if pid != os.getpid():
        return
    if not _run[0].programs:
        if _run[0].wanted.get("VIZ") and multiprocessing.parent_process() is None:
            show("VIZ: no program ran, so there is nothing to show; tensors are lazy until .numpy(), .item() or "
                 ".realize() computes them")
        return
    for ending in endings:
        try:
            ending(_run[0])
        except OSError as error:
            show(f"the trace cannot be written: {error}; set TRACE_DIR to another folder")


def trace_path() -> Path:
    """Return the path of this run's trace."""
    return output_path(".trace.json")
