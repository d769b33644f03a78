"""A schedule whose kernels are loaded programs: what runs, what is kept in memory and what goes to disk."""
from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import overload

from tinsmith.backend.device import Device
from tinsmith.backend.memory import Buffer, Layout
from tinsmith.backend.program import Graph, Launched, Place, Program
from tinsmith.codegen.launch import Launch
from tinsmith.core.recent import Recent
from tinsmith.core.settings import settings
from tinsmith.ir.uop import Origin
from tinsmith.runtime.listing import ScheduledItem, item_of
from tinsmith.runtime.step import Step
from tinsmith.schedule.items import Schedule, Slot
from tinsmith.schedule.order import verify_order
from tinsmith.schedule.planner import Plan


@dataclass(repr=False)
class CompiledSchedule(Sequence[ScheduledItem]):
    """A schedule with its programs and its memory plan, independent of buffers and bound values.

    It is a list of its steps in order; printing it gives a line for each. The schedule of a program that comes from
    disk has no ``ScheduleItem``s: nothing was scheduled. ``layouts`` says how the outputs make up the roots, one by
    one; it is empty where everything is on single devices. ``missing``: bytes that MEMORY_BUDGET lacks.
    ``arguments`` are the buffers and bound values of the tensors that it was made for, if it was made for some:
    ``Tensor.schedule``.
    """

    schedule: Schedule
    plan: Plan
    steps: list[Step] = field(default_factory=list)
    in_place: dict[int, int] = field(default_factory=dict)  # slot of an output → number of the input it may overwrite
    layouts: list[Layout | None] = field(default_factory=list)
    missing: int = 0
    arguments: tuple[list[Buffer], list[int]] | None = field(default=None, compare=False)

    def __len__(self) -> int:
        return len(self.steps)

    @overload
    def __getitem__(self, at: int) -> ScheduledItem: ...
    @overload
    def __getitem__(self, at: slice) -> list[ScheduledItem]: ...
    def __getitem__(self, at: int | slice) -> ScheduledItem | list[ScheduledItem]:
        slots = self.schedule.slots
        if isinstance(at, slice):
            return [item_of(slots, step) for step in self.steps[at]]
        return item_of(slots, self.steps[at])

    def __repr__(self) -> str:
        return "\n".join(map(repr, self)) or "nothing to compute: the values are in memory"

    @functools.cached_property
    def bound(self) -> Bound:
        """The schedule made ready to run."""
        return Bound(self)


@dataclass
class Part:
    """Neighbouring steps that are run together: kernels of one worker, with the copies that it makes itself; or one
    copy where there is no graph.

    Attributes:
        programs: what each step launches.
    """

    device: str
    steps: list[Step]
    programs: list[Program]
    graph: Graph | None = None
    ops: int = 0
    bytes: int = 0


class Bound:
    """A compiled schedule made ready to run on any buffers.

    Attributes:
        inputs: for each input that it reads, its number.
        outputs: the slots that it provides for results, and ``results``: which of them each result is.
        in_place: (number of an output, number of the input whose memory it may take over).
        blocks: (device, bytes) of each block of temporaries.
        places: slot → where it lies among the *bases*: inputs, outputs, blocks.
        parts: what runs, in order.
        queue: runs the same on several devices at a time, for programs of devices that do not take turns.
    """

    def __init__(self, compiled: CompiledSchedule) -> None:
        schedule, plan = compiled.schedule, compiled.plan
        verify_order(compiled.steps, schedule.slots, "compiling")
        self.inputs = list(schedule.inputs)
        order = {slot: n for n, slot in enumerate(dict.fromkeys(schedule.outputs))}
        self.outputs = [schedule.slots[n] for n in order]
        self.results = [order[n] for n in schedule.outputs]
        self._steps = compiled.steps
        self.blocks = list(plan.sizes.items())
        self.in_place = [(order[slot], number) for slot, number in compiled.in_place.items()]
        bases = [*schedule.inputs.values(), *order]
        self.places: dict[int, Place] = {slot: Place(n) for n, slot in enumerate(bases)}
        block = {device: len(bases) + n for n, (device, _) in enumerate(self.blocks)}
        for number, offset in plan.offsets.items():
            slot = schedule.slots[number]
            self.places[number] = Place(block[slot.device], offset, slot.size, slot.dtype)
        self.parts = parts(compiled.steps, schedule.slots)
        self.queue: Callable[[Sequence[Buffer], Sequence[int], list[Step]], object] | None = None
        for part in self.parts:
            if part.programs:
                self._make_graph(part)

    @functools.cached_property
    def origins(self) -> list[Origin | None]:
        """For each output, method and line of the user's program that computes it."""
        found = {s: next((o for o in reversed(step.origin) if o[2]), None) for step in self._steps
                 for s in step.written}
        return [found.get(slot.number) for slot in self.outputs]

    def _make_graph(self, part: Part) -> None:
        launches = []
        for step, program in zip(part.steps, part.programs):
            kernel = step.launch or program.kernel
            launches.append(Launched(program, tuple(self.places[s] for s in step.slots), tuple(step.variables)))
            part.ops += kernel.ops
            part.bytes += kernel.bytes
        part.graph = Device[part.device].graph(launches)


def parts(steps: Sequence[Step], slots: Sequence[Slot]) -> list[Part]:
    """Steps in order, those of one worker together until another worker, or a copy that no device makes, comes."""
    found: list[Part] = []
    for step in steps:
        program = step.program
        if program is None:
            target, source = (slots[s] for s in step.slots)
            program = Device[target.device].copier(Device[source.device], target.size * target.dtype.itemsize)
        last = found[-1] if found else None
        if program is not None and last is not None and last.programs and (
                last.device == step.device or Device[last.device].worker == Device[step.device].worker):
            last.steps.append(step)
            last.programs.append(program)
        else:
            found.append(Part(step.device, [step], [] if program is None else [program]))
    return found


programs: Recent[tuple[object, ...], Program] = Recent()


def program_key(device: str, launch: Launch) -> tuple[object, ...]:
    """Loaded programs are shared by all schedules that run one source, compiled alike, on one device."""
    return device, launch.symbol, settings.code_key


def is_loaded(device: str, launch: Launch) -> bool:
    return program_key(device, launch) in programs


def load(device: str, kernels: Sequence[tuple[Launch, bytes]]) -> None:
    """Load different kernels, none of which is loaded yet, all at once."""
    keys = [program_key(device, launch) for launch, _ in kernels]
    for key, program in zip(keys, Device[device].load(kernels)):
        programs[key] = program


def loaded(device: str, launch: Launch) -> Program:
    program = programs.get(program_key(device, launch))
    assert program is not None, f"{launch.symbol} is not loaded"
    return program
