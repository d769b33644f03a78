"""Ranges: what the linearizer makes of one, and its size."""
from __future__ import annotations

import enum
import math
from collections.abc import Iterable
from typing import Any, NamedTuple

from tinsmith.ir import UOp


class Role(enum.Enum):
    """The role of a range; the letter names it in kernel names and DEBUG output."""

    THREAD = "t"  # split over CPU workers
    GLOBAL = "g"  # blocks of a grid
    LOCAL = "l"  # threads of a block
    GROUP = "G"  # threads of a block that share a reduction
    LOOP = "L"
    BLOCK = "b"  # loops over blocks, around all that depends on them; sums over them stay in memory
    REDUCE = "R"
    RANK = "k"  # steps whose keys the threads of a block count together
    UPCAST = "u"  # copies in registers
    UNROLL = "r"  # copies of a reduction's step
    VECTOR = "v"  # lanes of vector registers
    FRAGMENT = "m"  # rows, columns or depth of a matrix unit's tile

    def __repr__(self) -> str:
        return self.name

    @property
    def expanded(self) -> bool:
        """Written out by the linearizer instead of looped over."""
        return self in (Role.UPCAST, Role.UNROLL, Role.VECTOR, Role.FRAGMENT)


THREADS = (Role.LOCAL, Role.GROUP)  # of a block


def range_size(r: UOp) -> Any:
    """How many iterations a range has: an int, or a UOp where it is known at launch only."""
    return r.src[-1].arg if r.src[-1].is_const else r.src[-1]


def count_of(ranges: Iterable[UOp]) -> int:
    """Iterations of ranges; a symbolic size counts as its greatest value.

    >>> count_of([UOp.range(3, 0, Role.LOOP), UOp.range(4, 1, Role.REDUCE)])
    12
    """
    return math.prod(r.vmax + 1 for r in ranges)


def digits(ranges: Iterable[UOp], number: UOp) -> dict[UOp, UOp]:
    """Ranges as digits of one number, the fastest first."""
    table, pitch = dict[UOp, UOp](), 1
    for r in ranges:
        table[r] = (number // pitch % range_size(r)).simplify()
        pitch *= range_size(r)
    return table


def limits(r: UOp) -> tuple[UOp, UOp] | None:
    """The first and the last but one step of a range that takes only some of its steps; None if it takes all."""
    return r.src[:2] if len(r.src) == 3 else None


def is_partial(r: UOp) -> bool:
    """Whether guards stop the last iteration on its way: it is written by itself, and the others have none.

    >>> is_partial(UOp.range(3, 0, Role.LOOP)), is_partial(UOp.range(3, 0, Role.LOOP, True))
    (False, True)
    """
    return len(r.arg) == 3


class Axis(NamedTuple):
    """One range of a kernel: what an opt's ``axis`` counts.

    >>> Axis(8, Role.REDUCE)
    8 reduce
    """

    size: int | UOp
    role: Role

    def __repr__(self) -> str:
        return f"{self.size} {self.role.name.lower()}"
