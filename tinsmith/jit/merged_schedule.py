"""The merged schedule of a capture, and templates of its results.

The programs of a capture become one schedule, with one memory plan and one launch per replay. A template is a value as
a graph over numbered buffers, from which a replay builds results and new state.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence, Set
from dataclasses import dataclass, replace
from typing import Final

from tinsmith.backend.memory import Buffer, ShardLayout
from tinsmith.core.settings import settings
from tinsmith.ir import Ops, UOp
from tinsmith.ir.algebra.sizes import bindings, normal_size, with_symbols
from tinsmith.ir.interpret.tensor import evaluator
from tinsmith.ir.ops.scans import WAITS
from tinsmith.ir.uop import toposort
from tinsmith.jit.aliases import Alias
from tinsmith.jit.collect import JitItem, Source
from tinsmith.jit.concrete import concrete, is_range
from tinsmith.jit.guards.tensors import TensorPath
from tinsmith.runtime.command_queue import overlap
from tinsmith.runtime.compiled_schedule import CompiledSchedule
from tinsmith.runtime.step import Step
from tinsmith.schedule.canonical import buffer_name
from tinsmith.schedule.memory.memory_budget import fitted, room_in, seconds_of
from tinsmith.schedule.memory.memory_plan import plan_slots
from tinsmith.schedule.schedule_item import Schedule, Slot
from tinsmith.schedule.slot_sizes import renumbered
from tinsmith.tensor.storage import Looks
from tinsmith.tensor.tensor import Tensor

Made = tuple[int, int]  # number of a program, number among its outputs
WHOLE: Final = -1
# (name, value at capture) of variables, and the function of their current values
Dense = tuple[list[tuple[str, int]], Callable[[Sequence[int]], list[int]] | None]
Part = tuple[int, int, int]  # the same, and number of the part; WHOLE on a single device


@dataclass
class Joined:
    """The merged schedule of all programs of a capture.

    Attributes:
        inputs: the sources of its inputs, by number: entries of the guards, or held buffers. Each part of a buffer over
            several devices is an input, given with the number of the part.
        results: the outputs that are needed after the programs, and the numbers of their parts among the schedule's
            results.
        layouts: the layouts of results over several devices.
        values: (name, value at capture) of its variables.
    """

    compiled: CompiledSchedule
    inputs: list[tuple[Source, int]]
    results: dict[Made, list[int]]
    layouts: dict[Made, ShardLayout]
    values: list[tuple[str, int]]


class _Joiner:
    def __init__(self, items: Sequence[JitItem], wanted: Collection[Made]) -> None:
        self.items, self.wanted = items, wanted
        self.slots: list[Slot] = []
        self.steps: list[Step] = []
        self.sources: dict[tuple[Source | int, int], int] = {}  # an input, or the id of a held buffer → its number
        self.inputs: list[tuple[Source, int]] = []
        self.input_slots: dict[int, int] = {}
        self.made: dict[Part, int] = {}
        self.layouts: dict[Made, ShardLayout] = {}
        self.values: list[tuple[str, int]] = []
        self.overwrites: dict[int, int] = {}  # slot → number of an input that its program may write over

    def new_slot(self, like: Slot, given: bool = False, output: bool = False) -> int:
        self.slots.append(replace(like, number=len(self.slots), input=given, output=output))
        return len(self.slots) - 1

    def given(self, source: Source, part: int, slot: Slot) -> int:
        """Return the slot of a buffer from before the capture or of an earlier program's output."""
        if source.program >= 0:
            return self.made[(*source.made, part)]
        key = _key(source, part)
        if key not in self.sources:
            self.sources[key] = len(self.inputs)
            self.inputs.append((source, part))
            self.input_slots[self.sources[key]] = self.new_slot(slot, given=True)
        return self.input_slots[self.sources[key]]

    def add(self, number: int, item: JitItem) -> None:
        schedule = item.compiled.schedule
        inputs = [(source, part) for source, b in zip(item.sources, item.inputs) for part in _parts(b.layout)]
        first = len(self.values)
        own = [s if s.terms is None else replace(s, terms=renumbered(s.terms, first))
               for s in schedule.slots]
        to = {slot: self.given(*inputs[n], own[slot]) for n, slot in schedule.inputs.items()}
        slots = iter(schedule.outputs)
        for k, b in enumerate(item.outputs):
            if b.layout is not None:
                self.layouts[number, k] = b.layout
            for part, slot in zip(_parts(b.layout), slots):
                if slot not in to:
                    to[slot] = self.new_slot(own[slot])
                self.made[number, k, part] = to[slot]
                self.slots[to[slot]].output |= (number, k) in self.wanted
        for slot, n in item.compiled.in_place.items():
            if inputs[n][0].group >= 0 and _key(*inputs[n]) in self.sources:
                self.overwrites[to[slot]] = self.sources[_key(*inputs[n])]
        self.values += zip(item.names, item.values)
        for step in item.compiled.steps:
            for s in step.slots:
                if s not in to:
                    to[s] = self.new_slot(own[s])
            self.steps.append(replace(step, slots=[to[s] for s in step.slots],
                                      variables=[first + v for v in step.variables]))

    def wait_late(self) -> None:
        """Move the commands that wait for work beside kernels behind the steps that do not depend on them.

        A step's level is the number of the last such command on which it depends. Steps go on in the order of levels:
        optimizer kernels of gradients that have been reduced run beside the reduction of others. Commands of the host,
        such as collectives, keep their order.
        """
        if not any(_waits(step) for step in self.steps):
            return
        levels: list[int] = []
        written, read = dict[int, int](), dict[int, int]()  # slot → highest level of a step that does
        count = last = 0
        for step in self.steps:
            count += _waits(step)
            mine = {*step.written,
                    *(self.input_slots[self.overwrites[s]] for s in step.written if s in self.overwrites)}
            level = max([count * _waits(step), *(written.get(s, 0) for s in (*step.read, *mine)),
                         *(read.get(s, 0) for s in mine)])
            if step.kernel is not None and step.kernel.host:
                level = last = max(level, last)
            # a collective's result is complete only after the command that waits for it, which reads it
            mine = {*mine, *step.read} if _waits(step) else mine
            written.update((s, max(level, written.get(s, 0))) for s in mine)
            read.update((s, max(level, read.get(s, 0))) for s in step.read)
            levels.append(level)
        self.steps = [self.steps[n] for n in sorted(range(len(levels)), key=levels.__getitem__)]

    def in_place(self) -> dict[int, int]:
        """Return {input number: slot} of outputs that may be written in place of an input that no later step reads."""
        writer = {s: at for at, step in enumerate(self.steps) for s in step.written}
        last = {s: at for at, step in enumerate(self.steps) for s in step.read}
        found: dict[int, int] = {}  # number of an input → slot
        for slot, number in self.overwrites.items():
            if self.slots[slot].output and last.get(self.input_slots[number], -1) <= writer.get(slot, -1):
                found.setdefault(number, slot)
        return {slot: number for number, slot in found.items()}

    def fit(self, outputs: Set[int]) -> int:
        """Fit the merged schedule into the memory budget; return the bytes by which it is exceeded."""
        in_place = self.in_place()
        seconds = [seconds_of(s.device, s.kernel, sum(self.slots[n].nbytes for n in s.slots)) for s in self.steps]
        versions = {slot: self.input_slots[number] for slot, number in in_place.items()}
        limit = settings.memory_limit
        found = fitted(self.steps, seconds, self.slots, room_in(limit, self.slots, outputs - in_place.keys()), versions)
        self.steps = [replace(step, slots=[r.renamed.get(s, s) for s in step.slots]) for r in found.runs
                      for step in [self.steps[r.number]]]
        self.slots = found.slots
        return found.beyond(room_in(limit, self.slots, outputs - self.in_place().keys()))


def _waits(step: Step) -> bool:
    """Return True for a command that waits for work that an earlier one has begun."""
    return step.kernel is not None and bool(step.kernel.host) and step.kernel.host[0] in WAITS


def _parts(layout: ShardLayout | None) -> Sequence[int]:
    """Return the numbers of the buffers of a value."""
    return (WHOLE,) if layout is None else range(len(layout.devices))


def _key(source: Source, part: int) -> tuple[Source | int, int]:
    return id(source.held) if source.group < 0 else source, part


def join(items: Sequence[JitItem], wanted: Collection[Made]) -> Joined:
    """Return one schedule that runs ``items`` in order; only the ``wanted`` outputs outlive it, the others become
    temporaries."""
    joiner = _Joiner(items, wanted)
    for number, item in enumerate(items):
        joiner.add(number, item)
    parts = {m: [(*m, part) for part in _parts(joiner.layouts.get(m))] for m in wanted}
    outputs = dict.fromkeys(joiner.made[p] for m in wanted for p in parts[m])
    order = {slot: n for n, slot in enumerate(outputs)}
    joiner.wait_late()
    missing = joiner.fit(outputs.keys()) if settings.memory_limit else 0
    plan = plan_slots(joiner.slots, [step.slots for step in joiner.steps])
    schedule = Schedule([], joiner.slots, joiner.input_slots, list(outputs), {})
    compiled = CompiledSchedule(schedule, plan, joiner.steps, joiner.in_place(), missing=missing)
    overlap(compiled)
    results = {m: [order[joiner.made[p]] for p in parts[m]] for m in wanted}
    return Joined(compiled, joiner.inputs, results, joiner.layouts, joiner.values)


@dataclass(slots=True)
class Template:
    """A value as a graph over numbered buffers (sources)."""

    uop: UOp
    sources: list[Source]
    plain: bool  # the graph is one buffer
    drawn: bool  # it has bound variables: sizes, or random numbers
    ranged: bool = False  # it is of a capture over a range of sizes: these become integers
    dense: Dense | None = None  # a quick way to its shape, if it is all of one buffer in order

    def fill(self, buffers: Sequence[Buffer], value: Callable[[str, int], int]) -> UOp:
        if self.ranged:
            return self._sized(buffers, value)
        if self.plain:
            return UOp(Ops.BUFFER, self.uop.dtype, (), buffers[0])
        table = {placeholder(n, b): UOp(Ops.BUFFER, b.dtype, (), b) for n, b in enumerate(buffers)}
        if not self.drawn:
            return self.uop.substitute(table)
        for n in bindings(toposort(self.uop)):
            table[n] = UOp(Ops.BIND, None, (n.src[0], UOp.index(value(n.src[0].arg[0], n.src[1].arg))))
        return _rebound(self.uop, table)

    def _sized(self, buffers: Sequence[Buffer], value: Callable[[str, int], int]) -> UOp:
        if self.dense is None:
            self.dense = dense(self.uop)
        variables, shape_of = self.dense
        if shape_of is not None:
            shape, (b,) = tuple(shape_of([value(*v) for v in variables])), buffers
            flat = UOp(Ops.BUFFER, b.dtype, (), b)
            return flat if len(shape) == 1 else UOp(Ops.RESHAPE, b.dtype, (flat,), shape)
        table: dict[UOp, UOp] = {}
        for n in bindings(toposort(self.uop)):
            now = UOp.index(value(n.src[0].arg[0], n.src[1].arg))
            table[n] = now if is_range(n) else UOp(Ops.BIND, None, (n.src[0], now))
        nodes = [UOp(Ops.BUFFER, b.dtype, (), b) for b in buffers]
        return concrete([self.uop], table, lambda name: nodes[name.number])[self.uop]


def dense(uop: UOp) -> Dense:
    """Return the variables of a template's shape and the function of their values that gives it; the function is None
    unless the value is one complete buffer, reshaped."""
    node, size = uop, math.prod(uop.shape)
    if node.op is Ops.RESHAPE:
        node = node.src[0]
    if node.op is Ops.SHRINK and node.arg == ((0, normal_size(size)),):
        node = node.src[0]
    if node.op is not Ops.BUFFER or node is uop or not uop.shape:
        return [], None
    sizes = [UOp.index(s) for s in uop.shape]
    variables = [b for s in sizes for b in toposort(s) if b.op is Ops.BIND]
    variables = list(dict.fromkeys(variables))
    return [(b.src[0].arg[0], b.src[1].arg) for b in variables], evaluator(sizes, variables)


def _rebound(uop: UOp, table: dict[UOp, UOp]) -> UOp:
    """Return the graph with nodes replaced, also in the arguments of movement ops."""
    new = dict(table)
    for n in toposort(uop, lambda n: n not in table):
        src = tuple(new.get(s, s) for s in n.src)
        arg = with_symbols(n.arg, table) if n.op.kind == "movement" else n.arg
        new[n] = n.replace(src=src, arg=arg)
    return new.get(uop, uop)


def placeholder(number: int, b: Buffer) -> UOp:
    return UOp(Ops.BUFFER, b.dtype, (), buffer_name(number, b))


class Returned:
    """A tensor among the results: an earlier tensor, or a new one. (Not a dataclass, because dataclasses are treated as
    nested results.)"""

    def __init__(self, place: TensorPath | None, template: Template | None, device: str, requires_grad: bool | None,
                 alias: Alias | None = None) -> None:
        self.place, self.template, self.device, self.requires_grad = place, template, device, requires_grad
        self.alias = alias  # of memory that only results share, the template is that of the whole


@dataclass(slots=True)
class Written:
    """A tensor from before the call whose value or gradient the call sets.

    Attributes:
        place: the place of the tensor; if ``sets``, the place of its gradient.
        template: the template of the new value; None: the gradient was dropped.
        sets: the gradient becomes another tensor.
        late: the gradient is computed only if it is read.
        whole: the template of the complete memory that the tensor shares with views, and the view operations from it to
            the tensor.
        replaces: the tensor gets another memory, and its former views keep the old one.
    """

    place: TensorPath
    template: Template | None
    late: bool = False
    sets: bool = False
    whole: tuple[Template, Looks] | None = None
    replaces: bool = False

    def fits(self, t: Tensor) -> bool:
        """Return True if ``t`` is the same view of its memory as at the capture."""
        shared = t._shared
        return self.whole is None if shared is None else self.whole is not None and self.whole[1] == shared.looks
