"""Loaded kernels and their launches: single launches, and graphs of launches that are prepared once."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

from tinsmith.backend.memory import Buffer
from tinsmith.codegen.launch import Launch
from tinsmith.core.dtypes import DType
from tinsmith.target.target import Target


class Program:
    """A loaded kernel, called with its buffers in order and the values of its variables."""

    def __init__(self, kernel: Launch, binary: bytes) -> None:
        self.kernel, self.binary = kernel, binary

    def __call__(self, buffers: Sequence[Buffer], variables: Sequence[int] = ()) -> None:
        raise NotImplementedError

    @property
    def occupancy(self) -> float | None:
        """Resident threads of its blocks on a multiprocessor, as a fraction of the maximum; None on devices without."""
        return None


class LaunchError(Exception):
    """A failed launch. ``number``: its position in the graph, if known."""

    number: int | None = None


@dataclass(slots=True)
class Call:
    """One kernel launch of a schedule."""

    program: Program
    buffers: list[Buffer]
    variables: list[int]


class Runner(Protocol):
    """The part of a device that a graph of launches uses."""

    @property
    def target(self) -> Target: ...
    def run(self, calls: Sequence[Call]) -> object: ...


class BufferLocation(NamedTuple):
    """The buffer argument of a graph's launch: base number ``base``, or the part of it that begins at byte
    ``offset``."""

    base: int
    offset: int = 0
    size: int = 0
    dtype: DType | None = None  # None: the base itself

    def of(self, bases: Sequence[Buffer]) -> Buffer:
        found = bases[self.base]
        return found if self.dtype is None else found.view(self.size, self.dtype, self.offset)


class Launched(NamedTuple):
    """One kernel launch of a graph: its buffers as Places, its variables as positions in the graph's values."""

    program: Program
    places: tuple[BufferLocation, ...]
    variables: tuple[int, ...]


class Graph:
    """Kernel launches in a fixed order, prepared once and run many times with other buffers and values.

    This base class launches them one by one. A device with native graphs returns a subclass from ``Compiled.graph``; it
    runs the same launches, so a capture does not depend on the device.

    Attributes:
        whole: True if a call that raises has launched nothing (all or nothing).
    """

    whole: ClassVar[bool] = False

    def __init__(self, device: Runner, launches: Sequence[Launched]) -> None:
        self.device, self.launches = device, launches

    def __call__(self, bases: Sequence[Buffer], values: Sequence[int]) -> None:
        self.device.run([Call(e.program, [p.of(bases) for p in e.places], [values[v] for v in e.variables])
                         for e in self.launches])
