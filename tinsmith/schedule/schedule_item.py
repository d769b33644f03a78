"""Data structures of a schedule: slots, kernels and copies in order, before kernels are lowered."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tinsmith.core.dtypes import DType
from tinsmith.ir import UOp
from tinsmith.ir.uop import Origin
from tinsmith.schedule.slot_sizes import Terms, bounds_of_size, value_of

if TYPE_CHECKING:
    from tinsmith.schedule.fusion.fusion import Fusion

Tile = tuple[UOp, tuple[bool, ...]]


@dataclass
class Slot:
    """A buffer of a program: an input, an output, or a temporary.

    Attributes:
        number: its index in ``Schedule.slots``.
        size: elements; the maximum for a symbolic size.
        may_be_empty: a symbolic size may be 0 at run time: then nothing is written.
        in_parts: several items write it: disjoint parts, or parts of an old version that an earlier item carried over.
        terms: a symbolic size, as data (``slot_sizes``); None if it has no such form.
        shape, origin: shape and origin of the value, for messages only; a program loaded from disk has neither.
    """

    number: int
    size: int
    dtype: DType
    device: str
    input: bool = False
    output: bool = False
    may_be_empty: bool = False
    in_parts: bool = False
    terms: Terms | None = None
    shape: tuple[Any, ...] | None = field(default=None, compare=False)
    origin: Sequence[Origin] = field(default=(), compare=False)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    def elements(self, values: Sequence[int]) -> int:
        """Return the number of elements for values of the program's variables; the maximum if ``terms`` is None."""
        return self.size if self.terms is None else value_of(self.terms, values)

    def most_elements(self, low: Sequence[int], high: Sequence[int]) -> int:
        """Return an upper bound of the number of elements if each variable, at least 0, is between ``low`` and
        ``high``."""
        return self.size if self.terms is None else bounds_of_size(self.terms, low, high)[1]


@dataclass
class ScheduleItem:
    """One kernel (its graph over PARAMs, outputs first) or one copy, with the slots it works on.

    Attributes:
        device: the device that runs it.
        sink: the kernel's graph; None for a copy.
        slots: buffers in the order of the PARAMs; (target, source) for a copy.
        reason: the reason why its result is stored.
        origin: (method, file, line) in the user's program of each operation it computes.
        variables: the bound symbolic sizes it takes as arguments.
        outputs: number of leading slots that it writes.
        tiles: row-by-column values that it recomputes tile by tile, each with its axes (True:
            parallel, False: reduced).
        statistics: its result is a statistic of the rows of these tiles, not a contraction.
        again: it has run before and is rematerialized under a memory budget.
        carries: it copies an old version to the memory of the new one; skipped if both have the same memory.
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
    carries: bool = False

    @property
    def written(self) -> list[int]:
        return self.slots[: self.outputs]

    @property
    def read(self) -> list[int]:
        return self.slots[self.outputs :]


@dataclass
class Schedule:
    """The result of scheduling: the items to run, in terms of slots.

    Attributes:
        inputs: number of a buffer in the canonical graph → its slot.
        outputs: the slot of each root.
        versions: slot of an assigned output → number of the buffer that holds the previous version.
        fusion: the fusion decision, for reports.
        slot_of: the slot of each stored node.
    """

    items: list[ScheduleItem]
    slots: list[Slot]
    inputs: dict[int, int]
    outputs: list[int]
    versions: dict[int, int]
    fusion: Fusion | None = None
    slot_of: dict[UOp, int] = field(default_factory=dict)
