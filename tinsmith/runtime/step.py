"""A step of a compiled schedule (a kernel ready to launch, or a copy), and the hooks of tools that watch steps run.

The tools are in ``tinsmith.inspect``, above this package. ``tinsmith`` registers their modules here; each is imported
at the first use of a name in it. Compiled schedules are typed ``Any`` here, because their module imports this one.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from tinsmith.backend.device import Compiled
from tinsmith.backend.memory import Buffer
from tinsmith.backend.program import Program
from tinsmith.codegen.launch import KernelProgram, Launch
from tinsmith.codegen.opt import Opt
from tinsmith.core.counters import Ran
from tinsmith.core.origin import Origin, layers_of
from tinsmith.ir import UOp
from tinsmith.schedule.scheduler import ScheduleItem

if TYPE_CHECKING:
    pass



def copy_name(nbytes: int, target: str, source: str) -> str:
    return f"copy {nbytes}, {target} <- {source}"



@dataclass
class Step:
    """One item of a compiled schedule: a kernel, or a copy if there is no program.

    Attributes:
        slots: the buffers it is launched on, in order; (target, source) for a copy.
        variables: numbers of the program's values that it takes.
        origin: methods and lines of the user's program that it computes.
        name: the name shown to users.
        launch: launch data; a full ``KernelProgram`` if it was lowered in this process.
        item: the schedule item it was lowered from, if in this process.
        carries: it copies an old version to the new one's memory; skipped if that is the same.
        written_for: the kernel generated for the original device, if a stand-in device runs another kernel.
    """

    device: str
    program: Program | None
    slots: list[int]
    variables: list[int]
    origin: Sequence[Origin] = ()
    name: str = ""
    launch: Launch | None = None
    item: ScheduleItem | None = None
    written_for: Launch | None = None
    carries: bool = False

    @property
    def kernel(self) -> Launch | None:
        """The launch data; None for a copy."""
        return self.launch or (None if self.program is None else self.program.kernel)

    @property
    def shown(self) -> Launch | None:
        """The kernel shown to users."""
        return self.written_for or self.launch

    @property
    def written(self) -> list[int]:
        kernel = self.kernel
        if kernel is None:
            return self.slots[:1]
        return [s for s, n in zip(self.slots, kernel.buffers) if n in kernel.written]

    @property
    def read(self) -> list[int]:
        written = set(self.written)
        return [s for s in self.slots if s not in written]

    @property
    def methods(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(method for method, _, _ in self.origin))

    @property
    def layers(self) -> tuple[str, ...]:
        """The labels of the model layers that it computes: ``layers.0 Conv2d``."""
        return layers_of(self.origin)

_T = TypeVar("_T")



class Search(Protocol):
    """The search for opts by measured time (``BEAM``)."""

    def opts_for(self, sink: UOp, device: str) -> Sequence[Opt] | None:
        """Return the opts that the search finds for a kernel; None for the default opts."""



class ProgramTrace(Protocol):
    """A trace of programs as they are made."""

    def lowered(self, graph: Sequence[UOp], make: Callable[[], _T]) -> _T:
        """Return the program that ``make`` compiles from ``graph``, and record it."""



class Tracing(Protocol):
    """The traces of a process."""

    def current(self) -> ProgramTrace:
        """Return the trace that records programs now."""



class Debug(Protocol):
    """The text of ``DEBUG`` and of schedules."""

    def show_kernel(self, item: ScheduleItem | None, kernel: KernelProgram, name: str, device: Compiled) -> None:
        """Print the output of the current DEBUG level."""

    def opts_text(self, opts: list[Opt]) -> str:
        """Return opts as text, in order."""

    def tree(self, sink: UOp, kernel: KernelProgram) -> str:
        """Return the kernel's tree."""



class Checked(Protocol):
    """The checks of ``CHECKED=2``."""

    def apart(self, bound: Any, bases: Sequence[Buffer]) -> Callable[[int], Buffer]:
        """Return a function slot → buffer in which temporaries share no memory."""

    def watched(self, step: Step, of: Callable[[int], Buffer], values: Sequence[int]) -> AbstractContextManager[None]:
        """Check the memory accesses and the results of a kernel that runs in this block."""

    def verify_guards(self, steps: Sequence[Step]) -> None:
        """Check the guards of all buffers after a program."""



class Profile(Protocol):
    """The table of ``PROFILE``."""

    def note(self, ran: Ran) -> None:
        """Count a run."""

search: Search
trace: Tracing
debug: Debug
checked: Checked
profile: Profile



def register(**tools: Any) -> None:
    """Set variables of this module to the given modules of tools."""
    globals().update(tools)
