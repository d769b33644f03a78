"""Hooks for observers of the runtime: a capture registers a recorder here, and realize calls it."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from tinsmith.backend.memory import Buffer
from tinsmith.core.thread_local import OfThread
from tinsmith.ir import UOp

if TYPE_CHECKING:
    from tinsmith.runtime.compiled_schedule import CompiledSchedule


class Recorder(Protocol):
    """An observer of graphs whose values are wanted, of programs that run for them, and of reads on the host."""

    def ran(self, roots: Sequence[UOp], compiled: CompiledSchedule, inputs: list[Buffer], values: list[int],
            outputs: list[Buffer]) -> None: ...

    def wanted(self, graphs: Sequence[UOp]) -> None: ...

    def read(self) -> None: ...

    def precedes(self, node: UOp) -> bool:
        """Return True if a known value was computed before the recording; else the recorded
        programs must compute it again."""
        ...


recorders: OfThread[Recorder] = OfThread()  # per thread: a capture records only its own thread
lowered: list[Callable[[CompiledSchedule], None]] = []  # called with every program that is lowered
endings: list[Callable[[Any], None]] = []  # called with the ``trace.Trace`` of a run at its end
