"""Kinds of ranges (``Role``), and helpers for their sizes."""
from __future__ import annotations

import enum
import math
from collections.abc import Iterable
from typing import Any, NamedTuple

from tinsmith.ir import UOp


class Role(enum.Enum):
    """The kind of a range; the letter names it in kernel names and DEBUG output."""

    THREAD = "t"  # split over the CPU worker threads
    GLOBAL = "g"  # index of a thread block in the grid
    LOCAL = "l"  # threads of a block
    GROUP = "G"  # threads of a block that share a reduction
    LOOP = "L"  # loop over independent iterations, or over the ordered steps of a scan
    BLOCK = "b"  # outer loop over blocks of another range; sums over it are accumulated in memory
    REDUCE = "R"  # loop of a reduction
    RANK = "k"  # steps of a histogram or rank, which the threads of a block share
    UPCAST = "u"  # register tile: copies of a parallel iteration
    UNROLL = "r"  # unrolled copies of a reduction step
    VECTOR = "v"  # lanes of vector registers
    FRAGMENT = "m"  # rows, columns or depth of a matrix unit's tile

    def __repr__(self) -> str:
        return self.name

    @property
    def expanded(self) -> bool:
        """True if the linearizer unrolls or vectorizes the range instead of emitting a loop."""
        return self in (Role.UPCAST, Role.UNROLL, Role.VECTOR, Role.FRAGMENT)


THREADS = (Role.LOCAL, Role.GROUP)  # threads of a block


def range_size(r: UOp) -> Any:
    """Return the number of iterations of a range: an int, or a UOp if it is known only at launch."""
    return r.src[-1].arg if r.src[-1].is_const else r.src[-1]


def count_of(ranges: Iterable[UOp]) -> int:
    """Return the product of the sizes of ``ranges``; a symbolic size counts as its greatest value.

    >>> count_of([UOp.range(3, 0, Role.LOOP), UOp.range(4, 1, Role.REDUCE)])
    12
    """
    return math.prod(r.vmax + 1 for r in ranges)


def digits(ranges: Iterable[UOp], number: UOp) -> dict[UOp, UOp]:
    """Return each range as a mixed-radix digit of ``number``; the first range varies fastest."""
    table, pitch = dict[UOp, UOp](), 1
    for r in ranges:
        table[r] = (number // pitch % range_size(r)).simplify()
        pitch *= range_size(r)
    return table


def limits(r: UOp) -> tuple[UOp, UOp] | None:
    """Return (start, end) of a range that runs over part of its steps; None if it runs over all."""
    return r.src[:2] if len(r.src) == 3 else None


def is_partial(r: UOp) -> bool:
    """Return True if the range's last iteration is partial: guards leave it early, and it is emitted as a separate copy
    of the loop body, so that the other iterations need no guards.

    >>> is_partial(UOp.range(3, 0, Role.LOOP)), is_partial(UOp.range(3, 0, Role.LOOP, True))
    (False, True)
    """
    return len(r.arg) == 3


class Axis(NamedTuple):
    """A range of a kernel as shown to users: the item that an opt's ``axis`` numbers.

    >>> Axis(8, Role.REDUCE)
    8 reduce
    """

    size: int | UOp
    role: Role

    def __repr__(self) -> str:
        return f"{self.size} {self.role.name.lower()}"
