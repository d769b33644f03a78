"""Compiled schedules: steps with loaded programs and a memory plan, and their form that is ready to run.

Running hand-written UOp programs on any device."""
from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, overload

from tinsmith.backend.device import Device
from tinsmith.backend.memory import Buffer, ShardLayout
from tinsmith.backend.program import BufferLocation, Graph, Launched, Program
from tinsmith.codegen.launch import Launch
from tinsmith.core.counters import GlobalCounters
from tinsmith.core.dtypes import dtypes
from tinsmith.core.lazy_import import Late
from tinsmith.core.object_lifetime import Recent
from tinsmith.core.settings import settings
from tinsmith.ir.uop import Origin
from tinsmith.runtime.step import Step
from tinsmith.runtime.thread_turns import turn_of
from tinsmith.schedule.memory.memory_plan import MemoryPlan, plan_slots, verify_order
from tinsmith.schedule.schedule_item import Schedule, Slot
from tinsmith.schedule.slot_sizes import values_in

if TYPE_CHECKING:
    from tinsmith.runtime import listing
    from tinsmith.runtime.listing import ScheduledItem
else:
    listing = Late("tinsmith.runtime.listing")


@dataclass(repr=False)
class CompiledSchedule(Sequence["ScheduledItem"]):
    """A schedule with its programs and its memory plan, independent of buffers and bound values.

    It is a sequence of its steps in order; printing it gives one line per step.

    Attributes:
        schedule: the schedule; without ``ScheduleItem``s if the program was loaded from disk.
        layouts: for each root, the layout of its outputs over devices; empty if everything is on single devices.
        missing: bytes by which the program exceeds MEMORY_BUDGET.
        arguments: buffers and bound values of the tensors it was made for (``Tensor.schedule``), else None.
        places: for each step, the positions of its origins in the canonical graph: (number of the node, index).
        named_for: the origins that the steps show at present; they change if another graph runs the program.
    """

    schedule: Schedule
    plan: MemoryPlan
    steps: list[Step] = field(default_factory=list)
    # slot of an output → number of the input that it may overwrite
    in_place: dict[int, int] = field(default_factory=dict)
    layouts: list[ShardLayout | None] = field(default_factory=list)
    missing: int = 0
    arguments: tuple[list[Buffer], list[int]] | None = field(default=None, compare=False)
    places: list[list[tuple[int, int]]] = field(default_factory=list, compare=False)
    named_for: tuple[tuple[Origin, ...], ...] | None = field(default=None, compare=False)
    _bounds: dict[tuple[int, ...], Bound] = field(default_factory=dict, compare=False)

    def __len__(self) -> int:
        return len(self.steps)

    @overload
    def __getitem__(self, at: int) -> ScheduledItem: ...
    @overload
    def __getitem__(self, at: slice) -> list[ScheduledItem]: ...
    def __getitem__(self, at: int | slice) -> ScheduledItem | list[ScheduledItem]:
        slots = self.schedule.slots
        if isinstance(at, slice):
            return [listing.item_of(slots, step) for step in self.steps[at]]
        return listing.item_of(slots, self.steps[at])

    def __repr__(self) -> str:
        return "\n".join(map(repr, self)) or "nothing to compute: all values are in memory"

    @functools.cached_property
    def bound(self) -> Bound:
        """The schedule prepared to run."""
        return Bound(self, self.schedule.slots, self.plan)

    @functools.cached_property
    def _sized(self) -> set[int]:
        """The numbers of the values that sizes depend on."""
        return {v for s in self.schedule.slots for v in values_in(s.terms or ())}

    def bound_for(self, values: Sequence[int]) -> Bound:
        """Return the schedule prepared to run with ``values`` of its variables, with memory for sizes rounded up to
        powers of two."""
        room = tuple(1 << (v - 1).bit_length() if n in self._sized and v > 1 else 1 for n, v in enumerate(values))
        found = self._bounds.get(room)
        if found is None:
            least = [n // 2 + 1 if n > 1 else 0 for n in room]
            slots = [s if s.input or s.terms is None else replace(s, size=s.most_elements(least, room))
                     for s in self.schedule.slots]
            plan = plan_slots(slots, [step.slots for step in self.steps])
            found = self._bounds[room] = Bound(self, slots, plan)
        return found


@dataclass(eq=False, repr=False)
class KernelItem:
    """Consecutive steps of one worker that are launched together, including copies that the device performs itself.

    ``turn`` is the lock to hold during the launch; None if there is none.
    """

    steps: list[Step]
    graph: Graph | None = None
    ops: int = 0
    bytes: int = 0
    turn: contextlib.AbstractContextManager[Any] | None = None

    def __repr__(self) -> str:
        return f"KERNEL {', '.join(s.name for s in self.steps)}"

    def make_ready(self, bound: Bound) -> None:
        launches = []
        for step in self.steps:
            program = program_of(step, bound.slots)
            assert program is not None
            kernel = step.launch or program.kernel
            launches.append(Launched(program, tuple(bound.places[s] for s in step.slots), tuple(step.variables)))
            self.ops += kernel.ops
            self.bytes += kernel.bytes
        device = Device[self.steps[0].device]
        self.graph, self.turn = device.graph(launches), turn_of(device)

    def count(self) -> None:
        counters = GlobalCounters
        counters.kernel_count += len(self.steps)
        counters.global_ops += self.ops
        counters.global_mem += self.bytes


@dataclass(eq=False, repr=False)
class CopyItem:
    """One copy between two devices, or between a device and the host, that no device performs itself."""

    step: Step
    target: str
    source: str
    nbytes: int
    graph: ClassVar[None] = None

    def __repr__(self) -> str:
        return f"COPY   {self.nbytes}, {self.target} <- {self.source}"

    @property
    def steps(self) -> list[Step]:
        return [self.step]

    def count(self) -> None:
        GlobalCounters.kernel_count += 1
        GlobalCounters.global_mem += self.nbytes


def copy_item(step: Step, slots: Sequence[Slot]) -> CopyItem:
    target, source = (slots[s] for s in step.slots)
    return CopyItem(step, target.device, source.device, source.nbytes)


def program_of(step: Step, slots: Sequence[Slot]) -> Program | None:
    """Return the program that a step launches; None for a copy that its device does not perform itself."""
    if step.program is not None:
        return step.program
    target, source = (slots[s] for s in step.slots)
    return Device[target.device].copier(Device[source.device], target.nbytes)


class Bound:
    """A compiled schedule prepared to run on any buffers.

    Attributes:
        inputs: the numbers of the inputs that it reads.
        outputs: the slots that it provides for results.
        results: for each result, the index of its slot in ``outputs``; ``in_order`` if these are 0, 1, 2, ….
        in_place: (number of an output, number of the input whose memory it may overwrite).
        blocks: (device, bytes) of each block of temporaries.
        places: slot → its position among the *bases*: inputs, outputs, blocks.
        slots: the slots of the schedule.
        parts: the items to run, in order.
        alone: the only item, if it launches kernels and several threads may launch them at the same time; else None.
        carried: the (old, new) slots of steps that copy an old version to the memory of a new one.
        queue: the command queue that runs the same steps on several devices concurrently; None if all devices share one
            worker.
    """

    def __init__(self, compiled: CompiledSchedule, slots: Sequence[Slot], plan: MemoryPlan) -> None:
        schedule = compiled.schedule
        verify_order(compiled.steps, slots, "compiling")
        self.slots, self._steps = slots, compiled.steps
        self.inputs = list(schedule.inputs)
        order = {slot: n for n, slot in enumerate(dict.fromkeys(schedule.outputs))}
        self.outputs = [slots[n] for n in order]
        self.results = [order[n] for n in schedule.outputs]
        self.blocks = list(plan.sizes.items())
        self.in_place = [(order[slot], number) for slot, number in compiled.in_place.items()]
        bases = [*schedule.inputs.values(), *order]
        self.places: dict[int, BufferLocation] = {slot: BufferLocation(n) for n, slot in enumerate(bases)}
        block = {device: len(bases) + n for n, (device, _) in enumerate(self.blocks)}
        for number, offset in plan.offsets.items():
            slot = slots[number]
            self.places[number] = BufferLocation(block[slot.device], offset, slot.size, slot.dtype)
        self.parts = parts(compiled.steps, slots)
        self.carried = [(s.read[0], s.written[0]) for s in compiled.steps if s.carries]
        self.queue: Callable[[Sequence[Buffer], Sequence[int], list[Step]], object] | None = None
        for part in self.parts:
            if isinstance(part, KernelItem):
                part.make_ready(self)
        only = self.parts[0] if len(self.parts) == 1 and not self.carried else None
        self.alone = only if isinstance(only, KernelItem) and only.turn is None else None
        self.in_order = self.results == list(range(len(self.results)))
        self._specs = [(s.device, s.size, s.dtype) for s in self.outputs]

    @functools.cached_property
    def parts_in_place(self) -> list[KernelItem | CopyItem]:
        """The items to run if every old version that is carried over is already in the memory of the new one."""
        found = parts([s for s in self._steps if not s.carries], self.slots)
        for part in found:
            if isinstance(part, KernelItem):
                part.make_ready(self)
        return found

    def parts_on(self, bases: Sequence[Buffer]) -> list[KernelItem | CopyItem]:
        """Return the items to run on these inputs, outputs and blocks."""
        places = self.places
        if self.carried and self.queue is None and all(
                bases[places[old].base] is bases[places[new].base] for old, new in self.carried):
            return self.parts_in_place
        return self.parts

    def new_outputs(self, values: Sequence[int] | None = None) -> list[Buffer]:
        """Return new memory for the outputs: for the sizes at ``values`` of the variables, else for the maximum
        sizes."""
        if values is None:
            return [Buffer(device, size, dtype) for device, size, dtype in self._specs]
        return [Buffer(s.device, s.elements(values), s.dtype) for s in self.outputs]

    def new_blocks(self) -> list[Buffer]:
        return [Buffer(device, size, dtypes.uint8) for device, size in self.blocks]

    @functools.cached_property
    def origins(self) -> list[Origin | None]:
        """For each output, the method and line of the user's program that computes it."""
        found = {s: next((o for o in reversed(step.origin) if o[2]), None) for step in self._steps
                 for s in step.written}
        return [found.get(slot.number) for slot in self.outputs]


def parts(steps: Sequence[Step], slots: Sequence[Slot]) -> list[KernelItem | CopyItem]:
    """Return the steps in order, with consecutive steps of one worker grouped; a copy that no device performs ends a
    group."""
    found: list[KernelItem | CopyItem] = []
    last = None  # the worker of the last item, if that launches kernels
    for step in steps:
        worker = None if program_of(step, slots) is None else Device[step.device].worker
        if worker is None:
            found.append(copy_item(step, slots))
        elif worker == last:
            found[-1].steps.append(step)
        else:
            found.append(KernelItem([step]))
        last = worker
    return found

programs: Recent[tuple[object, ...], Program] = Recent()


def program_key(device: str, launch: Launch) -> tuple[object, ...]:
    """Return the cache key of a loaded program; schedules with the same source, compiler and device share it."""
    return device, launch.symbol, settings.code_key


def is_loaded(device: str, launch: Launch) -> bool:
    return program_key(device, launch) in programs


def load(device: str, kernels: Sequence[tuple[Launch, bytes]]) -> None:
    """Load several kernels in one batch; they must differ, and none may be loaded yet."""
    keys = [program_key(device, launch) for launch, _ in kernels]
    for key, program in zip(keys, Device[device].load(kernels)):
        programs[key] = program


def loaded(device: str, launch: Launch) -> Program:
    program = programs.get(program_key(device, launch))
    assert program is not None, f"{launch.symbol} is not loaded"
    return program
