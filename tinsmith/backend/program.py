"""A loaded kernel, and launches of it: one at a time, or many made ready together."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from tinsmith.codegen.launch import Launch
from tinsmith.core.dtypes import DType

if TYPE_CHECKING:
    from tinsmith.backend.device import Compiled
    from tinsmith.backend.memory import Buffer


class Program:
    """A loaded kernel, ready to be called with buffers in order and the values of its variables."""

    def __init__(self, kernel: Launch, binary: bytes) -> None:
        self.kernel, self.binary = kernel, binary

    def __call__(self, buffers: Sequence[Buffer], variables: Sequence[int] = ()) -> None:
        raise NotImplementedError

    @property
    def occupancy(self) -> float | None:
        """The share of a multiprocessor's threads that its blocks can take at a time; None where there are none."""
        return None


class LaunchError(Exception):
    """A launch failed. ``number``: which of a graph's, where that is known."""

    number: int | None = None


@dataclass(slots=True)
class Call:
    """One kernel launch of a schedule."""

    program: Program
    buffers: list[Buffer]
    variables: list[int]


class Place(NamedTuple):
    """Where a launch of a graph finds a buffer: base number ``base``, or a part of it from byte ``offset`` on."""

    base: int
    offset: int = 0
    size: int = 0
    dtype: DType | None = None  # None: the base itself

    def of(self, bases: Sequence[Buffer]) -> Buffer:
        found = bases[self.base]
        return found if self.dtype is None else found.view(self.size, self.dtype, self.offset)


class Launched(NamedTuple):
    """One kernel launch of a graph: buffers by place, variables by their number among the graph's values."""

    program: Program
    places: tuple[Place, ...]
    variables: tuple[int, ...]


class Graph:
    """Kernel launches in a fixed order, made ready once and run many times on other buffers and values.

    This one launches them one by one. A device that can do better returns a subclass from ``Compiled.graph``; it runs
    the same launches, so what is captured does not depend on the device.

    Attributes:
        whole: a call that raises an error has launched nothing.
    """

    whole: ClassVar[bool] = False

    def __init__(self, device: Compiled, launches: Sequence[Launched]) -> None:
        self.device, self.launches = device, launches

    def __call__(self, bases: Sequence[Buffer], values: Sequence[int]) -> None:
        self.device.run([Call(e.program, [p.of(bases) for p in e.places], [values[v] for v in e.variables])
                         for e in self.launches])
