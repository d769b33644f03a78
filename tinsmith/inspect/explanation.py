"""``explain()`` and ``plan()``: a program's kernels, reasons, times, traffic and memory.

``explain()`` schedules and lowers the graph again, so that the text never depends on a cache. Its kernels run on
scratch memory: no tensor changes, lazy tensors stay lazy, and nothing is overwritten.

``plan()`` predicts time, memory traffic, memory and the largest values before anything runs. Times come from the model
of ``codegen.planner.roofline``. Memory is the memory that the program requests from the allocator: inputs exist
already; results and the blocks of temporaries are allocated when the program starts.
"""
from __future__ import annotations

import textwrap
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from tinsmith.backend.device import Device
from tinsmith.backend.machine import machine, roofline, seconds_of, why_above
from tinsmith.backend.memory import Buffer, copy_buffer
from tinsmith.backend.shards import flattened
from tinsmith.codegen.launch import KernelProgram, Launch, lines_of
from tinsmith.codegen.opt import Opt
from tinsmith.codegen.planner.planner import KernelPlan
from tinsmith.codegen.planner.roofline import Estimate, Machine, estimate
from tinsmith.codegen.planner.work import Work
from tinsmith.core.counters import GlobalCounters
from tinsmith.core.dtypes import dtypes
from tinsmith.core.errors import place
from tinsmith.core.origin import Origin, layer_of, layers_of, layers_text, wrapped_labels
from tinsmith.core.settings import settings
from tinsmith.core.terminal import WIDTH, bytes_text, cut, name_column, percent, plural, time_text
from tinsmith.inspect.debug import opts_text
from tinsmith.inspect.fusion_report import ValueReport, answer, value_reports
from tinsmith.ir import Ops, UOp
from tinsmith.ir.uop import toposort
from tinsmith.runtime.compiled_schedule import CompiledSchedule
from tinsmith.runtime.lowering import lower, sources
from tinsmith.runtime.step import Step
from tinsmith.schedule.canonical import canonical, part_names
from tinsmith.schedule.memory.memory_budget import devices_of
from tinsmith.schedule.memory.memory_plan import MemoryPlan as Places
from tinsmith.schedule.memory.memory_plan import choose_in_place, plan_memory
from tinsmith.schedule.schedule_item import Schedule, ScheduleItem, Slot

BUDGET = 1.0  # seconds for measuring an entire program, approximately


@dataclass(frozen=True)
class KernelReport:
    """One kernel of a program.

    Attributes:
        name: the name in ``DEBUG=2`` output.
        reason: the reason why its result is stored.
        writes, reads: numbers of buffers.
        origin: methods and lines of the user's program that it computes.
        opts: the chosen opts.
        estimate: the predicted time, its parts, and the roofline.
        seconds: measured; None if it was not run.
        transcendentals: number of exponentials, logarithms and similar functions that it computes.
        plan: the kernel's structure, the chosen candidate, and the reason why the runner-up lost.
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
        input_bytes, output_bytes: bytes of the buffers that are read, and of the results.
        temporary_bytes: bytes of the blocks of all other values; data copied from the host are inputs, as in a plan.
        unshared_bytes: total bytes of these values without sharing of memory.
        temporary_count: the number of these values.
        values: the values that the program computes, each with the reason why it is stored or fused.
        question: the name that ``explain(why=…)`` was given; printing shows the answer only.
    """

    steps: tuple[KernelReport | CopyReport, ...]
    machines: dict[str, Machine] = field(default_factory=dict)
    input_bytes: int = 0
    output_bytes: int = 0
    temporary_bytes: int = 0
    unshared_bytes: int = 0
    temporary_count: int = 0
    values: tuple[ValueReport, ...] = field(default=(), repr=False)
    question: str | None = None

    def why(self, name: str) -> str:
        """Return why values share kernels or are stored: of an op (``SUM``), a method (``softmax``) or a kernel.

        Raises:
            UnknownNameError: if the program computes nothing of this name.
        """
        names = [s.name if isinstance(s, KernelReport) else "a copy" for s in self.steps]
        merges = [s.reason.partition(":")[0] if isinstance(s, KernelReport) and len(s.writes) > 1 else ""
                  for s in self.steps]
        return answer(self.values, names, merges, name)

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
        return "\n".join(_text(self)) if self.question is None else self.why(self.question)

    __repr__ = __str__


def explain(roots: Sequence[UOp], device: str, run: bool = True, why: str | None = None) -> Explanation:
    """Return the explanation of the program that computes ``roots`` (concrete nodes, as for ``execute.realize``).

    Args:
        device: where kernels without any buffer run.
        run: measure; False only compiles.
        why: the name of an op, a method or a kernel: the explanation prints why its values share kernels.

    Raises:
        UnknownNameError: if the program computes nothing of the name ``why``.
    """
    graph, buffers, values = canonical(roots)
    compiled = lower(graph, device)
    compiled.arguments = [b.arg for b in buffers], values
    times = measured(compiled) if run else {}
    machines = {s.device: machine(s.device) for s in compiled.steps if s.program is not None}
    schedule = _with_data_in_place(compiled.schedule)
    places = plan_memory(schedule)
    sizes = {s.number: s.size * s.dtype.itemsize for s in schedule.slots}
    found = Explanation(
        tuple(_report(compiled, n, machines, times.get(n)) for n in range(len(compiled.steps))), machines,
        sum(sizes[s.number] for s in schedule.slots if s.input),
        sum(sizes[n] for n in set(schedule.outputs)), sum(places.sizes.values()),
        sum(sizes[n] for n in places.offsets), len(places.offsets), value_reports(compiled), why)
    if why is not None:
        found.why(why)  # raises an error for an unknown name
    return found


def _with_data_in_place(schedule: Schedule) -> Schedule:
    """Return the schedule for the case that data of the host are already on their device: ``realize`` keeps these
    copies, so they are inputs instead of temporaries. Only for a plan of memory."""
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
    """Return the seconds of each step of a program that has its arguments, run on separate memory.

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

SHOWN: Final = 8  # rows of the table


@dataclass(frozen=True)
class LiveValue:
    """A value that is in memory at the step with the largest memory use.

    Attributes:
        kind: ``input``, ``result`` or ``temporary``.
        shape: its shape in the program; (size,) if only the number of elements is known.
        origin: method, file and line of the user's program that computes it; for some inputs, that read it first.
        first, last: the steps that write it and read it last, counted from 1; None for inputs and results.
    """

    device: str
    kind: str
    nbytes: int
    dtype: str
    shape: tuple[Any, ...]
    origin: Origin | None = None
    first: int | None = None
    last: int | None = None


@dataclass(frozen=True)
class DeviceMemoryUse:
    """Memory of a program on one device, in bytes.

    Attributes:
        inputs: bytes that it reads.
        copied: part of ``inputs`` that has yet to be copied from the host.
        results: bytes of results that are not in place of an input.
        temporaries: bytes of the block for all other values.
        others: bytes of existing tensors that the program does not read.
        step: the step at which the block is fullest, counted from 1; 0 without temporaries.
        kept: bytes that a captured function still holds for results and temporaries, from the previous call.
        temporary_count: number of values that share the block.
    """

    inputs: int
    copied: int
    results: int
    temporaries: int
    others: int
    step: int
    kept: int = 0
    temporary_count: int = 0

    @property
    def peak(self) -> int:
        """The largest memory that the program needs at one time."""
        return self.inputs + self.results + self.temporaries

    @property
    def new(self) -> int:
        """The memory that the program will request from the device."""
        return self.copied + self.results + self.temporaries - self.kept


@dataclass(frozen=True)
class Plan:
    """The predicted cost of a program. Printing it shows a page of at most 120 columns.

    Attributes:
        kernels, copies: the numbers of each.
        seconds: predicted time of all kernels.
        operations, traffic: arithmetic operations, and bytes that kernels and copies read and write.
        memory: memory use, by device that computes.
        values: values in memory at the fullest step of each device, largest first.
        again: number of kernels that are rematerialized for a memory budget.
        again_seconds: predicted time of these.
        budget: bytes for each device, 0 without one.
        missing: bytes by which the program exceeds it.
    """

    kernels: int = 0
    copies: int = 0
    seconds: float = 0.0
    operations: int = 0
    traffic: int = 0
    memory: dict[str, DeviceMemoryUse] = field(default_factory=dict)
    values: tuple[LiveValue, ...] = ()
    again: int = 0
    again_seconds: float = 0.0
    budget: int = 0
    missing: int = 0

    @property
    def peak_bytes(self) -> int:
        """The memory that the program needs at once, on all devices that compute."""
        return sum(m.peak for m in self.memory.values())

    @property
    def new_bytes(self) -> int:
        """The bytes that are not allocated yet."""
        return sum(m.new for m in self.memory.values())

    def __str__(self) -> str:
        return "\n".join(_plan_text(self))

    __repr__ = __str__


class _Step(NamedTuple):
    """A kernel, or a copy if ``kernel`` is None."""

    device: str
    kernel: Launch | None
    written: Sequence[int]
    read: Sequence[int]
    origin: Sequence[Origin]
    again: bool = False


@dataclass
class _Program:
    """The data that a plan is computed from. ``in_place``: slots of results that take the memory of an input."""

    steps: list[_Step]
    slots: list[Slot]
    places: Places
    in_place: Collection[int] = ()
    missing: int = 0

Origins = Callable[[Buffer], Origin | None]


def plan(roots: Sequence[UOp], device: str, free: Collection[UOp] = (), data: Sequence[UOp] = (),
         origins: Origins = lambda b: None) -> Plan:
    """Return the plan of the program that ``execute.realize`` would run; it is scheduled and lowered, but not compiled.

    Args:
        free: BUFFERs that nothing reads afterwards.
        data: BUFFERs without memory: placeholders for data that will be copied from the host before.
        origins: the origin of the value of a buffer that is not allocated yet.
    """
    found, inputs, held = _Program([], [], Places({}, {})), flattened([b.arg for b in data]), dict[int, Buffer]()
    if roots:
        graph, nodes, _ = canonical(roots)
        given = flattened([b.arg for b in nodes])
        spared = {n for b in free if b in nodes for n in _numbers(nodes, b)}
        schedule, _, kernels, missing = sources(graph, device, {}, spared)
        chosen = choose_in_place(schedule, [lines_of(k) for k, _ in kernels])
        in_place = {s for s, number in chosen.items() if number in spared}
        steps = [_Step(item.device, k, item.written, item.read, item.origin, item.again)
                 for item, (k, _) in zip(schedule.items, kernels) if not (item.carries and item.slots[0] in in_place)]
        found = _Program(steps, schedule.slots, plan_memory(schedule), in_place, missing)
        held = {slot: given[number] for number, slot in schedule.inputs.items()}
        _shape_inputs(graph, schedule.inputs, found.slots)
        inputs += given
    return _plan(found, held, inputs, origins)


def of_compiled(compiled: CompiledSchedule, in_place: Collection[int], kept: Mapping[str, int]) -> Plan:
    """Return the plan of a compiled program, such as a captured one, on inputs that exist already.

    Args:
        in_place: slots of results that take the memory of an input.
        kept: bytes, by device, that it holds for results and temporaries.
    """
    steps = [_Step(s.device, s.kernel, s.written, s.read, s.origin, s.item is not None and s.item.again)
             for s in compiled.steps if not (s.carries and s.written[0] in in_place)]
    program = _Program(steps, compiled.schedule.slots, compiled.plan, in_place, compiled.missing)
    return _plan(program, {}, (), lambda b: None, kept)


def _numbers(nodes: Sequence[UOp], buffer: UOp) -> Iterator[int]:
    """Yield the numbers of a buffer, or of its parts."""
    count = 0
    for node in nodes:
        parts = 1 if node.arg.layout is None else len(node.arg.layout.devices)
        if node is buffer:
            yield from range(count, count + parts)
        count += parts


def _shape_inputs(graph: Sequence[UOp], inputs: Mapping[int, int], slots: list[Slot]) -> None:
    """Give inputs the shape, and the user's line, of the first reshape of them."""
    for n in toposort(graph):
        base = n.src[0] if n.op is Ops.RESHAPE else None
        if base is not None and base.op is Ops.BUFFER:
            for part in part_names(base.arg):
                slot = slots[inputs[part.number]] if part.number in inputs else None
                if slot is not None and slot.shape is None and slot.size == n.size:
                    slots[slot.number] = replace(slot, shape=n.shape, origin=n.origin)


def _plan(program: _Program, held: Mapping[int, Buffer], inputs: Sequence[Buffer], origins: Origins,
          kept: Mapping[str, int] = MappingProxyType({})) -> Plan:
    """Return the plan of a program.

    Args:
        held: slot → its buffer.
        inputs: all input buffers, including those that no kernel reads.
    """
    slots, steps = program.slots, program.steps
    machines = {s.device: machine(s.device) for s in steps if s.kernel is not None}
    times = [0.0 if s.kernel is None else _seconds(s.kernel, machines[s.device]) for s in steps]
    host = [b for b in {id(b): b for b in inputs}.values() if not b.is_allocated() and Device[b.device].has_programs]
    moved = sum(s.kernel.bytes if s.kernel is not None else slots[s.written[0]].nbytes for s in steps)
    used = GlobalCounters.mem_used_per_device
    memory, values = {}, list[LiveValue]()
    for device in sorted(devices_of(slots) | {b.device for b in host}):
        read = {id(b): b for b in inputs if b.device == device and b.base is None}
        given = sum(s.nbytes for s in slots if s.input and s.device == device)
        known = sum(b.nbytes for b in read.values())
        waiting = sum(b.nbytes for b in host if b.device == device)
        step, alive = _fullest(program, device)
        results = [s for s in slots if s.output and s.device == device and s.number not in program.in_place]
        memory[device] = DeviceMemoryUse(max(given, known), waiting, sum(s.nbytes for s in results),
                                program.places.sizes.get(device, 0),
                                max(used.get(device, 0) - (max(given, known) - waiting) - kept.get(device, 0), 0),
                                step, kept.get(device, 0),
                                sum(slots[n].device == device for n in program.places.offsets))
        there = [s for s in slots if s.device == device and s.input] + results + alive
        values += [_value(program, s, held.get(s.number), origins) for s in there]
    again = [t for s, t in zip(steps, times) if s.again]
    kernels = [s.kernel for s in steps if s.kernel is not None]
    return Plan(len(kernels), len(steps) - len(kernels) + len(host), sum(times), sum(k.ops for k in kernels),
                moved + sum(b.nbytes for b in host), memory, tuple(sorted(values, key=lambda v: -v.nbytes)), len(again),
                sum(again), settings.memory_limit, program.missing)


def _seconds(kernel: Launch, of: Machine) -> float:
    """Return the predicted seconds of a kernel; for one from disk, only the roofline is known."""
    if isinstance(kernel, KernelProgram):
        return estimate(kernel.kernel, of, kernel.work).seconds
    return of.launch + roofline(of.device, kernel.ops, kernel.bytes, kernel.unit)


def _fullest(program: _Program, device: str) -> tuple[int, list[Slot]]:
    """Return the step, counted from 1, at which the temporaries of a device take most memory,
    and the temporaries live then."""
    lives = {n: life for n, life in _lives(program.steps).items()
             if n in program.places.offsets and program.slots[n].device == device}
    change = [0] * (len(program.steps) + 1)
    for n, (first, last) in lives.items():
        change[first] += program.slots[n].nbytes
        change[last + 1] -= program.slots[n].nbytes
    best, most, now = -1, 0, 0
    for at, d in enumerate(change):
        now += d
        if now > most:
            best, most = at, now
    return best + 1, [program.slots[n] for n, (first, last) in lives.items() if first <= best <= last]


def _lives(steps: Sequence[_Step]) -> dict[int, tuple[int, int]]:
    """Return the first and the last step that uses each slot."""
    found: dict[int, tuple[int, int]] = {}
    for at, step in enumerate(steps):
        for s in (*step.written, *step.read):
            found[s] = found.get(s, (at, at))[0], at
    return found


def _value(program: _Program, slot: Slot, buffer: Buffer | None, origins: Origins) -> LiveValue:
    kind = "input" if slot.input else "result" if slot.output else "temporary"
    made = None if buffer is None else origins(buffer) or buffer.origin
    uses = [at for at, s in enumerate(program.steps, 1) if slot.number in s.written or slot.number in s.read]
    lines = slot.origin or (program.steps[uses[0] - 1].origin if uses else ())
    first, last = (uses[0], uses[-1]) if kind == "temporary" else (None, None)
    shape = slot.shape if slot.shape is not None else (slot.size,)
    return LiveValue(slot.device, kind, slot.nbytes, slot.dtype.name, shape, made or (lines[-1] if lines else None),
                     first,
                 last)


# *** text ***
def _plan_text(p: Plan) -> list[str]:
    if not p.memory:
        return ["nothing to compute: all values are in memory"]
    total = " and ".join(plural(n, word) for n, word in ((p.kernels, "kernel"), (p.copies, "copy")) if n)
    lines = [f"{total}: {time_text(p.seconds)} predicted, {bytes_text(p.traffic)} read and written"]
    for device, m in p.memory.items():
        at = f" at step {m.step} of {p.kernels + p.copies}" if m.step else ""
        others = f"; {bytes_text(m.others)} in other tensors" if m.others else ""
        lines.append(f"{device}: {bytes_text(m.peak)} peak: inputs {bytes_text(m.inputs)}, results "
                     f"{bytes_text(m.results)}, temporaries {bytes_text(m.temporaries)}{at}{others}")
    if p.budget:
        kept = f"exceeded by {bytes_text(p.missing)}" if p.missing else "met"
        again = f"; {plural(p.again, 'kernel')} rematerialized, {percent(p.again_seconds / p.seconds)} of the time" if (
            p.again and p.seconds) else ""
        lines.append(f"memory budget {bytes_text(p.budget)}: {kept}{again}")
    return [*lines, *_table(p)]


def _table(p: Plan) -> list[str]:
    """Return the table of values in memory at the fullest step; equal values of one line share a row."""
    rows: dict[tuple[Any, ...], list[LiveValue]] = {}
    for v in p.values:
        rows.setdefault((v.device, v.kind, v.dtype, v.shape, v.origin), []).append(v)
    largest = sorted(rows.values(), key=lambda same: -sum(v.nbytes for v in same))
    several = len(p.memory) > 1
    lines = [f"{'bytes':>10}  {'what':9}  {'device  ' if several else ''}{'value':34}  made by"] if largest else []
    for same in largest[:SHOWN]:
        v = same[0]
        name = f"{v.dtype} {tuple(v.shape)}".replace(",)", ")")
        name = f"{len(same)} of {name}" if len(same) > 1 else name
        steps = f", steps {v.first} to {v.last}" if len(same) == 1 and v.first is not None else ""
        on = f"{v.device:6}  " if several else ""
        row = f"{bytes_text(sum(x.nbytes for x in same)):>10}  {v.kind:9}  {on}{cut(name, 34):34}  "
        made = textwrap.wrap(f"{_line(v.origin)}{steps}", WIDTH - len(row), break_long_words=False,
                             break_on_hyphens=False)
        lines += [f"{row if n == 0 else ' ' * len(row)}{part}" for n, part in enumerate(made)]
    rest = largest[SHOWN:]
    if rest:
        total = sum(v.nbytes for same in rest for v in same)
        lines.append(f"{bytes_text(total):>10}  in {plural(len(rest), 'smaller row')}")
    return lines


def _line(origin: Origin | None) -> str:
    if origin is None:
        return "-"
    method, file, line = origin
    layer = f"{layer_of(origin)}: " if layer_of(origin) else ""
    return f"{layer}{method} ({place(file, line)})" if method else f"{layer}{place(file, line)}"
