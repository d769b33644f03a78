"""A program before its kernels are lowered: schedule items over numbered buffers, in order."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tinsmith.core.dtypes import DType
from tinsmith.ir import UOp
from tinsmith.ir.uop import Origin

if TYPE_CHECKING:
    from tinsmith.schedule.fusion import Fusion

Tile = tuple[UOp, tuple[bool, ...]]


@dataclass
class Slot:
    """A buffer of a program: one of its inputs, or memory that the program provides.

    Attributes:
        may_be_empty: its value has a symbolic size, of which some values leave no element: then nothing is written.
        in_parts: several items write it, each a part of its own.
        shape, origin: of the value, for people; a program from disk knows neither.
    """

    number: int
    size: int
    dtype: DType
    device: str
    input: bool = False
    output: bool = False
    may_be_empty: bool = False
    in_parts: bool = False
    shape: tuple[Any, ...] | None = field(default=None, compare=False)
    origin: Sequence[Origin] = field(default=(), compare=False)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize


@dataclass
class ScheduleItem:
    """One kernel (its graph over PARAMs, outputs first) or one copy, with the slots it works on.

    Attributes:
        sink: the kernel's graph; None for a copy.
        slots: buffers in the order of the PARAMs; (target, source) for a copy.
        outputs: how many of them, from the first on, it writes.
        reason: why its result has memory of its own.
        origin: methods and lines of the user's program that it computes.
        tiles: row-by-column values that it computes again tile by tile, each with its parallel axes.
        statistics: its result is one of the rows of these tiles, not a contraction of them.
        again: it has run before: its result was not kept, for lack of memory.
    """

    device: str
    sink: UOp | None
    slots: list[int]
    reason: str
    origin: list[tuple[str, str, int]] = field(default_factory=list)
    variables: list[UOp] = field(default_factory=list)
    outputs: int = 1
    tiles: frozenset[Tile] = frozenset()
    statistics: bool = False
    again: bool = False

    @property
    def written(self) -> list[int]:
        return self.slots[: self.outputs]

    @property
    def read(self) -> list[int]:
        return self.slots[self.outputs :]


@dataclass
class Schedule:
    """Everything a realize has to do, in terms of slots.

    Attributes:
        inputs: number of a buffer in the canonical graph → its slot.
        versions: slot of an assigned output → number of the buffer that holds the version before.
        slot_of: the slot of each stored node.
    """

    items: list[ScheduleItem]
    slots: list[Slot]
    inputs: dict[int, int]
    outputs: list[int]
    versions: dict[int, int]
    fusion: Fusion | None = None
    slot_of: dict[UOp, int] = field(default_factory=dict)
