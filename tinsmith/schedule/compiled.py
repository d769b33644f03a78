"""A schedule whose kernels are loaded programs: what runs, what is kept in memory and what goes to disk."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tinsmith.backend.device import Device, Program
from tinsmith.codegen.program import Launch
from tinsmith.core.settings import settings
from tinsmith.ir.uop import Origin
from tinsmith.schedule.items import Schedule, ScheduleItem
from tinsmith.schedule.planner import Plan


@dataclass(frozen=True)
class BufferName:
    """Stands for a buffer in a canonical graph."""

    number: int
    size: int
    device: str


@dataclass
class Step:
    """One item of a compiled schedule: a kernel, or a copy where there is no program.

    Attributes:
        slots: the buffers it is launched on, in order; (target, source) for a copy.
        variables: numbers of the program's values that it takes.
        origin: methods and lines of the user's program that it computes.
        name: what is shown of it.
        launch: a whole ``KernelProgram`` if it was lowered in this process.
        item: what it was lowered from, likewise.
    """

    device: str
    program: Program | None
    slots: list[int]
    variables: list[int]
    origin: Sequence[Origin] = ()
    name: str = ""
    launch: Launch | None = None
    item: ScheduleItem | None = None

    @property
    def methods(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(method for method, _, _ in self.origin))


@dataclass
class CompiledSchedule:
    """A schedule with its programs and its memory plan, independent of buffers and bound values.

    The schedule of a program that comes from disk has no items: nothing was scheduled.
    """

    schedule: Schedule
    plan: Plan
    steps: list[Step] = field(default_factory=list)
    in_place: dict[int, int] = field(default_factory=dict)  # slot of an output → number of the input it overwrites


_programs: dict[tuple[object, ...], Program] = {}


def program_key(device: str, launch: Launch) -> tuple[object, ...]:
    """Loaded programs are shared by all schedules that run one source, compiled alike, on one device."""
    return device, launch.symbol, settings.code_key()


def is_loaded(device: str, launch: Launch) -> bool:
    return program_key(device, launch) in _programs


def load(device: str, kernels: Sequence[tuple[Launch, bytes]]) -> None:
    """Load different kernels, none of which is loaded yet, all at once."""
    keys = [program_key(device, launch) for launch, _ in kernels]
    _programs.update(zip(keys, Device[device].load(kernels)))


def loaded(device: str, launch: Launch) -> Program:
    return _programs[program_key(device, launch)]
