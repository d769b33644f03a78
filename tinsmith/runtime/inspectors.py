"""The tools that watch programs, which stand above this package: the package that has them registers them here.

``tinsmith`` registers the modules of ``tinsmith.inspect``, each imported when something in it is first used. Compiled
schedules are ``Any`` here: their module needs this one.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

from tinsmith.backend.device import Compiled
from tinsmith.backend.memory import Buffer
from tinsmith.codegen.launch import KernelProgram
from tinsmith.codegen.opt import Opt
from tinsmith.core.counters import Ran
from tinsmith.ir import UOp
from tinsmith.runtime.step import Step
from tinsmith.schedule.schedule_item import ScheduleItem

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
