"""Plan of a program before it runs: predicted time, memory traffic, memory, and the largest values.

Times come from the model of ``codegen.planner.roofline``. Memory is the memory that the program requests from the
allocator:
inputs exist already; results and the blocks of temporaries are allocated when the program starts.
"""
from __future__ import annotations

import textwrap
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from tinsmith.backend.device import Device
from tinsmith.backend.machine import machine, roofline
from tinsmith.backend.memory import Buffer
from tinsmith.backend.shards import flattened
from tinsmith.codegen.launch import KernelProgram, Launch, lines_of
from tinsmith.codegen.planner.roofline import Machine, estimate
from tinsmith.core.counters import GlobalCounters
from tinsmith.core.errors import place
from tinsmith.core.origin import Origin, layer_of
from tinsmith.core.settings import settings
from tinsmith.core.terminal import WIDTH, bytes_text, cut, percent, plural, time_text
from tinsmith.ir import Ops, UOp
from tinsmith.ir.uop import toposort
from tinsmith.runtime.compiled_schedule import CompiledSchedule
from tinsmith.runtime.lowering import sources
from tinsmith.schedule.canonical import canonical, part_names
from tinsmith.schedule.memory.in_place import choose_in_place
from tinsmith.schedule.memory.memory_budget import devices_of
from tinsmith.schedule.memory.memory_plan import MemoryPlan as Places
from tinsmith.schedule.memory.memory_plan import plan_memory
from tinsmith.schedule.schedule_item import Slot

SHOWN: Final = 8  # rows of the table


@dataclass(frozen=True)
class LiveValue:
    """A value that is in memory at the step with the largest memory use.

    Attributes:
        kind: ``input``, ``result`` or ``temporary``.
        shape: as in the program; (size,) if only the number of elements is known.
        origin: method, file and line of the user's program that computes it; for some inputs, those that read it first.
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
        others: bytes of existing tensors that it does not read.
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
        memory: by device that computes.
        values: those in memory at the fullest step of each device, largest first.
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
        """The part of it that is not allocated yet."""
        return sum(m.new for m in self.memory.values())

    def __str__(self) -> str:
        return "\n".join(_text(self))

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
        free: BUFFERs that nobody reads afterwards.
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


def _text(p: Plan) -> list[str]:
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
