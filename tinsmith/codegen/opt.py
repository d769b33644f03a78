"""The language of the optimizer: what an opt says. What each does to a kernel is in ``opts``."""
from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

from tinsmith.core.errors import ArgumentError


class OptOps(enum.Enum):
    """The language of the optimizer; `axis` is a position in ``Kernel.ranges``, `amt` a size."""

    THREAD = enum.auto()  # split a parallel range over CPU workers
    UPCAST = enum.auto()  # the inner `amt` of a parallel range, or of one that sums in memory run over, become copies
    VECTOR = enum.auto()  # the inner `amt` of a range become lanes of vector registers
    UNROLL = enum.auto()  # the inner `amt` of a reduction become copies
    TILE = enum.auto()  # split a range into an outer and an inner loop of `amt`
    CUT = enum.auto()  # a parallel loop becomes one loop for each piece between the points `amt`
    SWAP = enum.auto()  # exchange two loops of one kind in nesting order
    ORDER = enum.auto()  # the nesting order of the loops, outermost first, as positions
    PADTO = enum.auto()  # round a range up to a multiple of `amt`; what is beyond is masked
    MERGE = enum.auto()  # two parallel ranges become one, the second running faster
    STAGE = enum.auto()  # `axis` numbers a ``Kernel.stageable`` value; `amt` = positions of the ranges kept outside
    SPLIT = enum.auto()  # a reduction becomes `amt` partial results, which are then combined
    TC = enum.auto()  # the reduction `axis` steps through a matrix unit; `amt` = (m, n[, copies along m, along n])
    # Without an axis: stores of whole aligned vectors go past the caches, for results too large to stay there.
    # `axis` numbers a load: it fetches `amt` iterations of its innermost loop ahead, or as docs/opts.md says.
    HINT = enum.auto()
    ROTATE = enum.auto()  # `axis` numbers a load in a reduction: it is issued one iteration ahead of its reader
    CARRY = enum.auto()  # a sum in blocks that stays in memory; `amt` = (block, the parallel range of the same tiles)
    ONLINE = enum.auto()  # a maximum and the sums relative to it become one loop over blocks of `amt`
    SKIP = enum.auto()  # blocks that a mask hides, and steps of a sum outside of a window, are not computed
    # tiles of two loops in bands: `amt` = (the other, band[, 1: as one range of tiles[, blocks that go through them]]);
    # -1: an axis of the grid from the last block to the first
    WALK = enum.auto()
    # further warps of the block fill the slots of rings, and its own only read them; `amt` groups of these take turns:
    # at the blocks of a chain, else at places of the grid
    ROLES = enum.auto()
    LOCAL = enum.auto()  # the inner `amt` of a parallel range become threads of a block
    GROUP = enum.auto()  # `amt` threads of a block share a reduction, taking turns
    GROUPTOP = enum.auto()  # the same, each with a piece of its own
    RANK = enum.auto()  # `amt` threads of a block count the equal keys of a range's steps
    NOLOCALS = enum.auto()  # no blocks: every thread works alone

    def __repr__(self) -> str:
        return f"OptOps.{self.name}"


@dataclass(frozen=True)
class Opt:
    """One optimizer choice. ``lanes`` belongs to STAGE: the width of the vectors that fill it; 0: one by one.
    ``copies``: how many of them are filled side by side, where the staged value is a computed tile.

    ``layout`` and ``depth`` belong to the STAGE of an operand that its unit reads from local memory: how it lies there
    (``swizzled``: rows of 128 bytes, ``ir.layout``), and how many slots a ring has, which copies fill ahead; ``depth``
    2 of an operand in registers: it is made one step of the loop around before the unit reads it.
    ``unit`` belongs to TC: the name of one of the target's matrix units; none: the first that fits.

    >>> Opt(OptOps.UPCAST, 0, 4), Opt(OptOps.STAGE, 1, (0,), lanes=16)
    (Opt(op=OptOps.UPCAST, axis=0, amt=4), Opt(op=OptOps.STAGE, axis=1, amt=(0,), lanes=16))
    """

    op: OptOps
    axis: int | None = None
    amt: int | tuple[int, ...] | None = None
    lanes: int = 0
    unit: str = ""
    copies: int = 1
    layout: str = ""
    depth: int = 1

    def __post_init__(self) -> None:
        self.require(self.depth > 0 and self.copies > 0 and self.lanes >= 0, f"depth {self.depth}, copies "
                     f"{self.copies} and lanes {self.lanes} are counts", "depth and copies from 1, lanes from 0")

    def __repr__(self) -> str:
        more = f", lanes={self.lanes}" * bool(self.lanes) + f", unit={self.unit!r}" * bool(self.unit)
        more += f", copies={self.copies}" * (self.copies > 1) + f", layout={self.layout!r}" * bool(self.layout)
        more += f", depth={self.depth}" * (self.depth > 1)
        return f"Opt(op={self.op!r}, axis={self.axis}, amt={self.amt}{more})"

    def illegal(self, why: str, mend: str = "another axis or amount") -> ArgumentError:
        """The error that names the opt and what it lacks."""
        return ArgumentError("Opt", f"{self}: {why}", mend)

    def require(self, condition: bool, why: str, mend: str = "another axis or amount") -> None:
        """Raise it unless what the opt needs is so."""
        if not condition:
            raise self.illegal(why, mend)

    def part_of(self, size: Any, most: int = 0) -> int:
        """How many steps of a range of ``size`` it takes: all of them where it does not say."""
        self.require(isinstance(size, int), "the range has a symbolic size")
        amount, most = size if self.amt in (0, None) else self.amt, max(most, size)
        if not (isinstance(amount, int) and 1 < amount <= most):
            raise self.illegal(f"the amount must be in 2..{most}")
        return amount
