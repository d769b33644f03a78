"""Who wants to know what runs: capture registers a recorder here, and realize tells it."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from tinsmith.backend.memory import Buffer
from tinsmith.core.ofthread import OfThread
from tinsmith.ir import UOp

if TYPE_CHECKING:
    from tinsmith.runtime.compiled import CompiledSchedule


class Recorder(Protocol):
    """Told of every graph whose values are wanted (as the tensors have it), of every program that runs for them, and of
    every buffer whose values go to the host."""

    def ran(self, roots: Sequence[UOp], compiled: CompiledSchedule, inputs: list[Buffer], values: list[int],
            outputs: list[Buffer]) -> None: ...

    def wanted(self, graphs: Sequence[UOp]) -> None: ...

    def read(self) -> None: ...

    def precedes(self, node: UOp) -> bool:
        """Whether a value that is known goes before what is recorded; else the programs must make it again."""
        ...


recorders: OfThread[Recorder] = OfThread()  # a capture learns of what its own thread does
lowered: list[Callable[[CompiledSchedule], None]] = []  # told of every program that is lowered
endings: list[Callable[[Any], None]] = []  # given the ``trace.Trace`` of a run at its end
