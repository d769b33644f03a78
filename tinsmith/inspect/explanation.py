"""Explanation of a program: its kernels, the reason for each, opts, predicted and measured time, memory.

The graph is scheduled and lowered again, so that the text never depends on a cache. Its kernels run on scratch memory:
no tensor changes, lazy tensors stay lazy, and nothing is overwritten.
"""
from __future__ import annotations

import textwrap
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tinsmith.backend.device import Device
from tinsmith.backend.machine import machine, roofline, why_above
from tinsmith.backend.memory import copy_buffer
from tinsmith.backend.shards import flattened
from tinsmith.backend.timing import seconds_of
from tinsmith.codegen.launch import KernelProgram
from tinsmith.codegen.opt import Opt
from tinsmith.codegen.planner.planner import KernelPlan
from tinsmith.codegen.planner.roofline import Estimate, Machine, estimate
from tinsmith.codegen.planner.work import Work
from tinsmith.core.dtypes import dtypes
from tinsmith.core.errors import place
from tinsmith.core.origin import layers_of, layers_text, wrapped_labels
from tinsmith.core.terminal import WIDTH, bytes_text, name_column, percent, plural, time_text
from tinsmith.inspect.debug import opts_text
from tinsmith.ir import UOp
from tinsmith.ir.uop import Origin
from tinsmith.runtime.compiled_schedule import CompiledSchedule
from tinsmith.runtime.lowering import lower
from tinsmith.runtime.step import Step
from tinsmith.schedule.canonical import canonical
from tinsmith.schedule.memory.memory_plan import plan_memory
from tinsmith.schedule.schedule_item import Schedule, ScheduleItem

BUDGET = 1.0  # seconds for measuring an entire program, approximately


@dataclass(frozen=True)
class KernelReport:
    """One kernel of a program.

    Attributes:
        name: as ``DEBUG=2`` shows it.
        reason: why its result has memory of its own.
        writes, reads: numbers of buffers.
        origin: methods and lines of the user's program that it computes.
        opts: what the optimizer chose.
        estimate: the predicted time, its parts, and the roofline.
        seconds: measured; None if it was not run.
        transcendentals: number of exponentials, logarithms and similar functions that it computes.
        plan: the kernel's structure, the candidate that was chosen, and why the next best lost.
        occupancy: the share of a multiprocessor's threads that its blocks can occupy; None for devices without blocks.
    """

    device: str
    name: str
    reason: str
    writes: tuple[int, ...]
    reads: tuple[int, ...]
    origin: tuple[Origin, ...]
    opts: tuple[Opt, ...]
    estimate: Estimate
    seconds: float | None
    transcendentals: int = 0
    occupancy: float | None = None
    plan: KernelPlan | None = None

    @property
    def layers(self) -> tuple[str, ...]:
        """The labels of the model layers that it computes: ``layers.0 Conv2d``."""
        return layers_of(self.origin)

    @property
    def share(self) -> float | None:
        """The fraction of the machine's roofline that is reached: 1.0 is the roofline."""
        return None if not self.seconds else self.estimate.roofline / self.seconds


@dataclass(frozen=True)
class CopyReport:
    """One copy between devices."""

    device: str
    source: str
    nbytes: int
    reason: str
    seconds: float | None


@dataclass(frozen=True)
class Explanation:
    """The program that computes some tensors. Printing it shows the full text, at most 120 columns wide.

    Attributes:
        steps: kernels and copies in order.
        machines: the machine data behind the estimates, by device.
        input_bytes, output_bytes: of the buffers read, and of the results.
        temporary_bytes: of the blocks that hold all other values; data copied from the host are inputs, as in a plan.
        unshared_bytes: of these values if each had memory of its own.
        temporary_count: the number of these values.
    """

    steps: tuple[KernelReport | CopyReport, ...]
    machines: dict[str, Machine] = field(default_factory=dict)
    input_bytes: int = 0
    output_bytes: int = 0
    temporary_bytes: int = 0
    unshared_bytes: int = 0
    temporary_count: int = 0

    @property
    def kernels(self) -> list[KernelReport]:
        return [s for s in self.steps if isinstance(s, KernelReport)]

    @property
    def predicted(self) -> float:
        """The predicted seconds of all kernels."""
        return sum(k.estimate.seconds for k in self.kernels)

    @property
    def seconds(self) -> float | None:
        """The measured seconds of all kernels; None if they were not run."""
        found = [k.seconds for k in self.kernels]
        return None if None in found else sum(s for s in found if s is not None)

    @property
    def peak_bytes(self) -> int:
        """The memory in use at once: inputs, results and temporaries."""
        return self.input_bytes + self.output_bytes + self.temporary_bytes

    def __str__(self) -> str:
        return "\n".join(_text(self))

    __repr__ = __str__


def explain(roots: Sequence[UOp], device: str, run: bool = True) -> Explanation:
    """Return the explanation of the program that computes ``roots`` (concrete nodes, as for ``execute.realize``).

    Args:
        device: where kernels without any buffer run.
        run: measure; False only compiles.
    """
    graph, buffers, values = canonical(roots)
    compiled = lower(graph, device)
    compiled.arguments = [b.arg for b in buffers], values
    times = measured(compiled) if run else {}
    machines = {s.device: machine(s.device) for s in compiled.steps if s.program is not None}
    schedule = _with_data_in_place(compiled.schedule)
    places = plan_memory(schedule)
    sizes = {s.number: s.size * s.dtype.itemsize for s in schedule.slots}
    return Explanation(
        tuple(_report(compiled, n, machines, times.get(n)) for n in range(len(compiled.steps))), machines,
        sum(sizes[s.number] for s in schedule.slots if s.input),
        sum(sizes[n] for n in set(schedule.outputs)), sum(places.sizes.values()),
        sum(sizes[n] for n in places.offsets), len(places.offsets))


def _with_data_in_place(schedule: Schedule) -> Schedule:
    """Return the schedule as it runs once data of the host are on their device: ``realize`` keeps these copies, so they
    are inputs and no temporaries. Only for a plan of memory."""
    slots = list(schedule.slots)
    items = []
    for item in schedule.items:
        target, source = (item.slots[0], item.slots[-1])
        if item.sink is None and not slots[target].output and not Device[slots[source].device].has_programs:
            slots[target], slots[source] = replace(slots[target], input=True), replace(slots[source], input=False)
        else:
            items.append(item)
    return replace(schedule, items=items, slots=slots)


def _report(compiled: CompiledSchedule, number: int, machines: dict[str, Machine],
            seconds: float | None) -> KernelReport | CopyReport:
    step, item = compiled.steps[number], compiled.schedule.items[number]
    if step.program is None:
        target, source = (compiled.schedule.slots[n] for n in item.slots)
        return CopyReport(target.device, source.device, source.size * source.dtype.itemsize, item.reason, seconds)
    kernel = step.shown
    if kernel is not None and kernel.host:
        return KernelReport(step.device, step.name, item.reason, tuple(item.slots[:1]), tuple(item.slots[1:]),
                            tuple(item.origin), (), _of_host(compiled, item, machines[step.device]), seconds)
    assert isinstance(kernel, KernelProgram)
    return KernelReport(step.device, step.name, item.reason, tuple(item.slots[: item.outputs]),
                        tuple(item.slots[item.outputs :]), tuple(item.origin), tuple(kernel.opts),
                        estimate(kernel.kernel, machines[step.device], kernel.work), seconds, kernel.transcendentals,
                        step.program.occupancy, kernel.plan)


def _of_host(compiled: CompiledSchedule, item: ScheduleItem, of: Machine) -> Estimate:
    """Return the estimate of a host function: it moves its arrays; its arithmetic is unknown."""
    written, *read = (compiled.schedule.slots[s].nbytes for s in item.slots)
    work = Work(0, sum(read), written)
    memory = roofline(of.device, work.operations, work.bytes)
    return Estimate(work, memory, 0.0, of.launch, memory, of.level(work.bytes).name)


# *** measuring ***


def measured(compiled: CompiledSchedule) -> dict[int, float]:
    """Return the seconds of each step of a program that has its arguments, run on memory of its own.

    Steps run in order, so each is measured on its real input values.
    """
    assert compiled.arguments is not None
    given, values = compiled.arguments
    inputs, bound = flattened(given), compiled.bound
    bases = [*(inputs[n] for n in bound.inputs), *bound.new_outputs(), *bound.new_blocks()]
    budget = max(BUDGET / max(len(compiled.steps), 1), 2e-3)

    def one(step: Step) -> float:
        places = [bound.places[s].of(bases) for s in step.slots]
        if step.program is not None:
            return seconds_of(step.device, step.program, places, [values[v] for v in step.variables], min(budget, 0.1))
        for device in {b.device for b in places}:
            Device[device].synchronize()
        places[0].opaque  # noqa: B018  allocate now: the allocation is not part of the copy's time
        start = time.perf_counter()
        copy_buffer(places[0], places[1])
        return time.perf_counter() - start

    for b in inputs:
        b.check()
    return {n: one(step) for n, step in enumerate(compiled.steps)}


# *** text ***


def _text(e: Explanation) -> list[str]:
    if not e.steps:
        return ["nothing to compute: all values are in memory"]
    copies = len(e.steps) - len(e.kernels)
    total = " and ".join(plural(n, word) for n, word in ((len(e.kernels), "kernel"), (copies, "copy")) if n)
    ideal = sum(k.estimate.roofline for k in e.kernels)
    times = [f"{time_text(e.predicted)} predicted"]
    if e.seconds:
        times += [f"{time_text(e.seconds)} measured", f"{percent(ideal / e.seconds)} of the roofline"]
    lines = [f"{total}: {', '.join(times)}" if e.kernels else total, _memory(e)]
    lines += [line for m in e.machines.values() for line in textwrap.wrap(_machine(m), WIDTH, subsequent_indent="  ")]
    lines.append("")
    lines.append(f"{'#':>3} {'device':8} {'kernel':28} {'predicted':>10} {'measured':>10} {'roofline':>9} "
                 f"{'GFLOP/s':>9} {'GB/s':>7}  bound by")
    for number, step in enumerate(e.steps, 1):
        lines += _kernel(number, step) if isinstance(step, KernelReport) else _copy(number, step)
    return lines


def _kernel(number: int, k: KernelReport) -> list[str]:
    work, rate = k.estimate.work, (k.seconds or k.estimate.seconds) * 1e9
    measured = "-" if k.seconds is None else time_text(k.seconds)
    share = "-" if k.share is None else percent(k.share)
    above = _why_above(k)
    row = (f"{number:3d} {k.device:8} {name_column(k.name, 28, 13)} "
           f"{time_text(k.estimate.seconds):>10} {measured:>10} {share:>9} "
           f"{work.operations / rate:9.1f} {work.bytes / rate:7.1f}  {k.estimate.bound}")
    buffers = f"buffer{'s' * (len(k.writes) > 1)} {_list(k.writes)}{' from ' * bool(k.reads)}{_list(k.reads)}"
    special = f", {k.transcendentals:,} transcendentals" if k.transcendentals else ""
    parts = [
        f"stored because: {k.reason}",
        f"computes {', '.join(dict.fromkeys(_place(o) for o in k.origin if o[0]))}" if any(k.origin) else "",
        f"{buffers}: {work.operations:,} operations{special}, reads {bytes_text(work.bytes_read)}, "
        f"writes {bytes_text(work.bytes_written)}",
        f"model: memory {time_text(k.estimate.memory)} ({k.estimate.level}), "
        f"arithmetic {time_text(k.estimate.arithmetic)}, "
        f"launch {time_text(k.estimate.launch)}; roofline {time_text(k.estimate.roofline)}",
        f"above its roofline: {above}" if above else "",
        "" if k.occupancy is None else f"occupancy {percent(k.occupancy)} of a multiprocessor's threads",
        "" if k.plan is None else f"planned as {k.plan}",
        f"opts {opts_text(list(k.opts))}"]
    layers = wrapped_labels(layers_text(k.layers, len(k.layers)), WIDTH - 16)
    named = [f"{'        ' if n else '      layers'} {line}" for n, line in enumerate(layers)]
    return [*row.split("\n"), *_indented(parts[0]), *named,
            *(line for part in parts[1:] if part for line in _indented(part))]


def _why_above(k: KernelReport) -> str:
    """Return the reason why a kernel was faster than its roofline; empty if it was not."""
    if k.share is None or k.seconds is None or k.share <= 1:
        return ""
    work = k.estimate.work
    return (why_above(k.device, work.operations, work.bytes, k.seconds)
            or "its matrix unit or its caches are faster than when the machine was measured")


def _copy(number: int, c: CopyReport) -> list[str]:
    measured = "-" if c.seconds is None else time_text(c.seconds)
    rate = f"{c.nbytes / c.seconds / 1e9:7.1f}" if c.seconds else "      -"
    name = f"copy {bytes_text(c.nbytes)} <- {c.source}"
    return [f"{number:3d} {c.device:8} {name:28} {'-':>10} {measured:>10} {'-':>9} {'-':>9} {rate}",
            *_indented(f"copied because: {c.reason}")]


def _memory(e: Explanation) -> str:
    shared = f" ({bytes_text(e.unshared_bytes)} without sharing)" if e.unshared_bytes > e.temporary_bytes else ""
    return (f"memory: {bytes_text(e.peak_bytes)} peak: inputs {bytes_text(e.input_bytes)}, results "
            f"{bytes_text(e.output_bytes)}, temporaries {bytes_text(e.temporary_bytes)}{shared}")


def _machine(m: Machine) -> str:
    how = "measured here" if m.measured else "default model, not measured: run python -m tinsmith machine"
    return (f"{m.device}: {m.peak(dtypes.float32).all / 1e9:.0f} GFLOP/s in float32 and "
            f"{m.memory[-1].all / 1e9:.1f} GB/s from memory with {m.size} ({how})")


def _indented(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 8, break_long_words=False,
                         break_on_hyphens=False)


def _place(origin: Origin) -> str:
    method, file, line = origin
    return f"{method} ({place(file, line)})"


def _list(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))
