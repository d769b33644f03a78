"""What a captured call ran, program by program."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

from tinsmith.backend.memory import Buffer
from tinsmith.core.errors import user_line
from tinsmith.ir import UOp
from tinsmith.ir.uop import bindings, toposort
from tinsmith.schedule.compiled import CompiledSchedule
from tinsmith.schedule.record import recorders


class Source(NamedTuple):
    """Where a replay takes a buffer from: an entry of the guards, an output of an earlier program, or itself."""

    group: int = -1
    program: int = -1
    output: int = 0
    held: Any = None

    @property
    def made(self) -> tuple[int, int]:
        """Number of the program, and of the output among its outputs."""
        return self.program, self.output


@dataclass
class JitItem:
    """One program that ran during capture: its schedule, the variables' names and values, and its buffers.

    ``inputs`` and ``outputs`` are emptied when the capture is finished; ``sources`` then says what the inputs are.
    """

    compiled: CompiledSchedule
    inputs: list[Buffer]
    values: list[int]
    names: list[str]
    outputs: list[Buffer]
    sources: list[Source] = field(default_factory=list)


class CacheCollector:
    """Collects the programs that run between ``start`` and ``finish``; a capture is one of these.

    >>> CacheCollector.start()
    >>> _ = (Tensor([1.0]) + 1).realize()
    >>> len(CacheCollector.finish())
    1
    """

    _current: ClassVar[list[CacheCollector]] = []

    def __init__(self) -> None:
        self.items: list[JitItem] = []
        self.graphs: dict[UOp, None] = {}
        self.host_read: tuple[str, int] | None = None

    def wanted(self, graphs: Sequence[UOp]) -> None:
        self.graphs.update(dict.fromkeys(graphs))

    def ran(self, roots: Sequence[UOp], compiled: CompiledSchedule, inputs: list[Buffer], values: list[int],
            outputs: list[Buffer]) -> None:
        names = [n.src[0].arg[0] for n in bindings(toposort(roots))]
        self.items.append(JitItem(compiled, inputs, values, names, outputs))

    def read(self) -> None:
        self.host_read = self.host_read or user_line()

    @classmethod
    def start(cls, variables: Any = None) -> None:
        """Begin to collect; ``variables`` is there for the tutorials' sake."""
        cls._current.append(CacheCollector())
        recorders.append(cls._current[-1])

    @classmethod
    def finish(cls) -> list[JitItem]:
        """The programs since the latest ``start``."""
        collector = cls._current.pop()
        recorders.remove(collector)
        return collector.items
