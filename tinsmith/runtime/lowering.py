"""From a canonical graph to loaded programs: a schedule, sources, binaries and a memory plan.

Threads compile kernels while the main thread generates the next sources; then the main thread compiles, too.
"""
from __future__ import annotations

import contextlib
import math
import queue
import sys
import threading
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from tinsmith.backend.device import Compiled, Device, members
from tinsmith.backend.memory import ShardLayout
from tinsmith.codegen.launch import KernelProgram, Launch, lines_of
from tinsmith.codegen.opt import Opt
from tinsmith.core.counters import GlobalCounters
from tinsmith.core.disk_cache import cache_key
from tinsmith.core.errors import raised_by_handler
from tinsmith.core.lazy_import import Late
from tinsmith.core.origin import passed
from tinsmith.core.settings import in_context, settings
from tinsmith.core.terminal import counted
from tinsmith.core.timeline import COMPILING, GENERATING, phase, span
from tinsmith.ir import Ops, UOp
from tinsmith.ir.uop import toposort
from tinsmith.runtime import inspectors
from tinsmith.runtime.compiled_schedule import CompiledSchedule, is_loaded, load, loaded
from tinsmith.runtime.launch import lowered
from tinsmith.runtime.step import Step, copy_name
from tinsmith.schedule.fusion.horizontal import fuse_horizontally
from tinsmith.schedule.memory.memory_budget import Kernels, within
from tinsmith.schedule.memory.memory_plan import choose_in_place, plan_memory, verify_order
from tinsmith.schedule.memory.slice_writes import store_in_place, write_slices
from tinsmith.schedule.multi.collectives import overlapped
from tinsmith.schedule.multi.sharding import is_group, spread_out
from tinsmith.schedule.passes.rewrites import without_empty
from tinsmith.schedule.schedule_item import Schedule, ScheduleItem
from tinsmith.schedule.scheduler import Scheduler

if TYPE_CHECKING:
    from tinsmith.codegen import compile_kernel
else:
    compile_kernel = Late("tinsmith.codegen.compile_kernel")

# Interpreter switch interval in seconds while compiling. Compiler threads need the interpreter only briefly between
# native calls; Python's default of 5 ms per request would leave a core idle.
SWITCH: Final = 0.0005


class _Job:
    """One kernel to compile."""

    def __init__(self, device: str, kernel: KernelProgram) -> None:
        self.device, self.kernel = device, kernel
        self.binary: bytes | None = None
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            with span("compile", f"{self.device} compiler", self.kernel.name, self.kernel.symbol):
                self.binary = Device[self.device].compiler.compile(self.kernel.source)
        except BaseException as error:  # raised again in ``load``
            self.error = error


class Compilation:
    """The compilation of a schedule's kernels; used in a ``with`` block.

    Compilers that report no ``threads`` run in ``load``, as does the compilation of a single kernel.
    """

    def __init__(self) -> None:
        self._jobs: dict[tuple[str, str], _Job] = {}
        self._queue: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._most: dict[str, int] = {}  # device → maximum number of threads
        self._abandoned = False
        self._interval = sys.getswitchinterval()

    def __enter__(self) -> Compilation:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._abandoned = True
        sys.setswitchinterval(self._interval)  # also if an exception came before the first thread was noted
        self._finish()
        first = raised_by_handler(error)
        if first is not None and first is not error:
            raise first from None

    def add(self, device: str, kernel: KernelProgram) -> None:
        """Start to compile ``kernel``, unless it is loaded or was added before."""
        if is_loaded(device, kernel) or (device, kernel.symbol) in self._jobs:
            return
        job = self._jobs[device, kernel.symbol] = _Job(device, kernel)
        if device not in self._most:
            self._most[device] = Device[device].compiler.threads()
        if self._most[device]:
            self._queue.put(job)
            if len(self._threads) < min(self._most[device], len(self._jobs) - 1):
                sys.setswitchinterval(min(SWITCH, self._interval))
                work = in_context(self._serve)
                self._threads.append(threading.Thread(target=work, name="tinsmith compiler", daemon=True))
                self._threads[-1].start()

    def load(self) -> None:
        """Finish compilation and load all programs, device by device.

        Raises:
            CompileError: the first one that a compiler raised.
        """
        self._finish()
        batches: dict[str, list[tuple[Launch, bytes]]] = {}
        for job in sorted(self._jobs.values(), key=lambda job: job.error is None):  # failed jobs first
            if job.binary is None and job.error is None:
                job.run()
            if job.error is not None:
                raise job.error
            assert job.binary is not None
            batches.setdefault(job.device, []).append((job.kernel, job.binary))
        for device, batch in batches.items():
            load(device, batch)

    def _serve(self) -> None:
        """Compile jobs from the queue until it returns None (the loop of a compiler thread)."""
        while (job := self._queue.get()) is not None:
            self._run(job)

    def _run(self, job: _Job) -> None:
        if not self._abandoned:
            job.run()
            self._abandoned = self._abandoned or job.error is not None

    def _finish(self) -> None:
        """Help the compiler threads until the queue is empty, then end them."""
        if not self._threads:
            return
        try:
            with contextlib.suppress(queue.Empty):
                while True:
                    job = self._queue.get_nowait()
                    if job is not None:  # None: an earlier ``_finish`` was interrupted while it ended threads
                        self._run(job)
        finally:
            for _ in self._threads:
                self._queue.put(None)
            sys.setswitchinterval(self._interval)
        for thread in self._threads:
            if thread.is_alive():  # False: it has ended, or a signal handler raised before it started
                thread.join()
        self._threads.clear()


def planned(graph: list[UOp], device: str) -> tuple[Schedule, list[ShardLayout | None]]:
    """Return the schedule of a canonical graph before its kernels are lowered, and the layouts of sharded results."""
    layouts: list[ShardLayout | None] = []
    graph = passed("without empty values", without_empty(graph, device))
    if any(is_group(d) for d in (device, *(n.device for n in toposort(graph)))):
        graph, layouts = spread_out(graph, device)
        passed("spread over devices", graph)
        device = members(device)[0]
    schedule = Scheduler(graph, device).run()
    arrange(schedule)
    return schedule, layouts


def arrange(schedule: Schedule) -> None:
    """Merge items and put them in their final order.

    Raises:
        VerifyError: if a pass loses an item or orders one before its inputs.
    """
    verify_order(schedule.items, schedule.slots, "Scheduler")
    for step in (*(() if settings.NOOPT else (fuse_horizontally, store_in_place, write_slices)), overlapped):
        schedule.items = passed(step.__name__.replace("_", " "), step(schedule))
        verify_order(schedule.items, schedule.slots, step.__name__)


def lower(graph: list[UOp], device: str, opts: Mapping[int, Sequence[Opt]] | None = None,
          free: Collection[int] | None = None) -> CompiledSchedule:
    """Schedule, lower and load the program of a canonical graph, using only the cache of binaries.

    Args:
        opts: opts for kernels, by their number, instead of the planner's choice.
        free: numbers of inputs whose memory new versions may overwrite; None for any of them. Used by a memory budget.
    """
    if settings.recorded:
        return inspectors.trace.current().lowered(graph, lambda: _lower(graph, device, opts, free))
    return _lower(graph, device, opts, free)


def _lower(graph: list[UOp], device: str, opts: Mapping[int, Sequence[Opt]] | None,
           free: Collection[int] | None) -> CompiledSchedule:
    with Compilation() as compilation:
        schedule, layouts, kernels, missing = sources(graph, device, opts or {}, free, compilation)
        with phase(COMPILING):
            compilation.load()
    compiled = CompiledSchedule(schedule, plan_memory(schedule), layouts=layouts, missing=missing)
    names: dict[str, list[str]] = {}
    for item, (kernel, written) in zip(schedule.items, kernels):
        if kernel is None or written is None:
            target, source = (schedule.slots[s] for s in item.slots)
            name = copy_name(source.nbytes, target.device, source.device)
            compiled.steps.append(Step(item.device, None, item.slots, [], item.origin, name, item=item))
            continue
        same = names.setdefault(written.name, [])
        if written.symbol not in same:
            same.append(written.symbol)
        number = same.index(written.symbol)
        name = written.name if number == 0 else f"{written.name}n{number}"
        slots = [item.slots[n] for n in kernel.buffers]
        values = [item.variables[int(v[1:])].src[1].arg for v in kernel.variables]
        program = loaded(item.device, kernel)
        compiled.steps.append(Step(item.device, program, slots, values, item.origin, name, kernel, item,
                                   None if written is kernel else written, item.carries))
    compiled.in_place = choose_in_place(schedule, [lines_of(k) for k, _ in kernels])
    for tell in lowered:
        tell(compiled)
    return compiled


def sources(graph: list[UOp], device: str, opts: Mapping[int, Sequence[Opt]], free: Collection[int] | None,
            compilation: Compilation | None = None) -> tuple[Schedule, list[ShardLayout | None], Kernels, int]:
    """Return the schedule of a canonical graph, its layouts, its kernels with their sources, and the bytes beyond
    MEMORY_BUDGET."""
    GlobalCounters.schedule_count += 1
    schedule, layouts = planned(graph, device)
    kernels: Kernels = []
    with phase(GENERATING):
        for n, item in enumerate(counted(schedule.items, "compiling", "kernels")):
            kernels.append(_kernel(item, opts.get(n), compilation))
    missing = 0
    if settings.memory_limit:
        kernels, missing = within(schedule, kernels, settings.memory_limit, free)
        verify_order(passed("memory budget", schedule.items), schedule.slots, "memory budget")
    return schedule, layouts, kernels, missing


def _kernel(item: ScheduleItem, opts: Sequence[Opt] | None,
            compilation: Compilation | None) -> tuple[Launch | None, Launch | None]:
    """Write the source of an item's kernel and begin to compile it.

    Returns:
        The kernel that runs and the kernel that is shown to users (they differ if another device runs for this one);
        None for copies.
    """
    if item.sink is None:
        return None, None
    if item.sink.src[0].op is Ops.HOST:
        kernel: Launch = _host_call(item.sink.src[0])
        if compilation is not None and not is_loaded(item.device, kernel):
            load(item.device, [(kernel, b"")])
        return kernel, kernel
    target = Device[item.device]
    chosen = _searched(item.sink, target) if opts is None else opts
    written = made = compile_kernel.compile_kernel(item.sink, target.renderer, chosen)
    if target.runs_on is not target:
        made = compile_kernel.compile_kernel(item.sink, target.runs_on.renderer)
    if compilation is not None:
        compilation.add(item.device, made)
    return made, written


def _host_call(node: UOp) -> Launch:
    """Return the launch data of a call of a host function."""
    name, shapes, shape = node.arg
    sizes = "_".join(str(s) for s in shapes[0])
    moved = sum(math.prod(s) for s in (*shapes, shape)) * node.dtype.itemsize
    text = f"host_{name}_{sizes}"
    symbol = f"{text}_{node.dtype.name}_{cache_key(repr(node.arg))[:10]}"
    buffers = [0, *(s.base.arg[0] for s in node.src)]  # two sources may be one buffer
    return Launch(text, symbol, buffers, [], frozenset((0,)), 0, moved, 0, True, [], [],
                  host=[name, node.dtype.name, shapes, shape])


def _searched(sink: UOp, device: Compiled) -> Sequence[Opt] | None:
    """Return the opts that BEAM search finds, if it is enabled and the device can run kernels; else None."""
    wanted = settings.BEAM > 0 and not settings.NOOPT and device.runs_on is device
    return inspectors.search.opts_for(sink, device.device) if wanted else None
