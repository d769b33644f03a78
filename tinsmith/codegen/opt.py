"""The data types of the optimizer: ``Opt``, one transformation of a kernel, and ``OptOps``, the list of
transformations. ``opts`` implements them."""
from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

from tinsmith.core.errors import ArgumentError


class OptOps(enum.Enum):
    """The transformations of the optimizer. `axis` is a position in ``Kernel.ranges`` unless noted otherwise, `amt` a
    size."""

    THREAD = enum.auto()  # split a parallel range over the CPU worker threads
    UPCAST = enum.auto()  # unroll and jam: the inner `amt` of a parallel or BLOCK range become copies in registers
    VECTOR = enum.auto()  # vectorize: the inner `amt` of a range become lanes of vector registers
    UNROLL = enum.auto()  # the inner `amt` of a reduction become unrolled copies of its step
    TILE = enum.auto()  # split a range into an outer and an inner loop of `amt`
    CUT = enum.auto()  # loop partitioning: split a parallel loop at the iterations `amt` into consecutive loops
    SWAP = enum.auto()  # loop interchange: exchange the loops `axis` and `amt`, which have the same role
    ORDER = enum.auto()  # loop permutation: `amt` = the positions of all loops, outermost first
    PADTO = enum.auto()  # round a range up to a multiple of `amt`; accesses beyond the old size are masked
    MERGE = enum.auto()  # fuse the ranges `axis` and `amt` into one; `amt` varies faster
    STAGE = enum.auto()  # copy ``Kernel.stageable[axis]`` to local memory; `amt` = positions of the enclosing ranges
    SPLIT = enum.auto()  # split-K: a reduction becomes `amt` partial results, which are then combined
    TC = enum.auto()  # run the reduction `axis` on a matrix unit; `amt` = (m, n[, copies along m, along n])
    # Without an axis: non-temporal stores of full aligned vectors, for results larger than the caches. With an axis:
    # prefetch; `axis` numbers a load, `amt` = iterations of its innermost loop ahead, or a tuple (docs/opts.md).
    HINT = enum.auto()
    ROTATE = enum.auto()  # software-pipeline load number `axis` of a reduction: it is issued one iteration early
    CARRY = enum.auto()  # accumulate a sum in memory block by block; `amt` = (block size, positions of other ranges)
    ONLINE = enum.auto()  # online softmax: a maximum and the sums relative to it become one loop over blocks of `amt`
    SKIP = enum.auto()  # skip blocks that a mask hides completely, and steps of a sum outside of a window
    # tile order: the tiles of two loops in bands; `amt` = (other axis, band size[, 1: merge into one range of tiles[,
    # number of persistent blocks that loop over the tiles]]); -1: run a grid axis from the last block to the first
    WALK = enum.auto()
    # warp specialization: extra producer warps fill the slots of the rings, the block's own warps only read them;
    # `amt` consumer groups alternate (ping-pong): over the blocks of a chain, else over tiles of the grid
    ROLES = enum.auto()
    LOCAL = enum.auto()  # the inner `amt` of a parallel range become threads of a block
    GROUP = enum.auto()  # `amt` threads of a block share a reduction, cyclically: thread t takes steps t, t + amt, …
    GROUPTOP = enum.auto()  # `amt` threads of a block share a reduction, each a contiguous piece
    RANK = enum.auto()  # block-wide histogram or rank: `amt` threads of a block count the equal keys of a range's steps
    NOLOCALS = enum.auto()  # no local memory and no LOCAL/GROUP threads; the device chooses the block size

    def __repr__(self) -> str:
        return f"OptOps.{self.name}"


@dataclass(frozen=True)
class Opt:
    """One transformation of the optimizer.

    Attributes:
        op: the transformation.
        axis: the range or value that it applies to (see ``OptOps``).
        amt: its size, or a tuple whose meaning depends on ``op``.
        lanes: STAGE: the width of the vectors that fill the stage; 0: scalar copies.
        unit: TC: the name of one of the target's matrix units; empty: the first that fits.
        copies: STAGE of a computed tile: the number of vectors that are filled side by side.
        layout: STAGE of an operand that a unit reads from local memory: ``swizzled`` is rows of 128 bytes
            (``ir.matrix_unit``); of an operand for the threads of a block: ``deep`` or ``flat`` (``stages``).
        depth: STAGE of such an operand: the slots of its ring, which asynchronous copies fill ahead; for an operand in
            registers, 2: it is computed one iteration of the enclosing loop before the unit reads it.

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
        self.require(self.depth > 0 and self.copies > 0 and self.lanes >= 0, f"depth {self.depth} and copies "
                     f"{self.copies} must be positive, lanes {self.lanes} not negative",
                     "depth >= 1, copies >= 1, lanes >= 0")

    def __repr__(self) -> str:
        more = f", lanes={self.lanes}" * bool(self.lanes) + f", unit={self.unit!r}" * bool(self.unit)
        more += f", copies={self.copies}" * (self.copies > 1) + f", layout={self.layout!r}" * bool(self.layout)
        more += f", depth={self.depth}" * (self.depth > 1)
        return f"Opt(op={self.op!r}, axis={self.axis}, amt={self.amt}{more})"

    def illegal(self, why: str, mend: str = "another axis or amount") -> ArgumentError:
        """Return the error that names this opt and the reason why it is illegal."""
        return ArgumentError("Opt", f"{self}: {why}", mend)

    def require(self, condition: bool, why: str, mend: str = "another axis or amount") -> None:
        """Raise ``illegal(why, mend)`` unless ``condition`` holds."""
        if not condition:
            raise self.illegal(why, mend)

    def part_of(self, size: Any, most: int = 0) -> int:
        """Return ``amt`` as a number of steps of a range of ``size``; the full size if ``amt`` is 0 or None. A range of
        symbolic size takes the amounts up to its greatest size."""
        fixed = isinstance(size, int)
        self.require(fixed or self.amt not in (0, None), "a range of symbolic size needs an amount")
        amount, most = size if self.amt in (0, None) else self.amt, max(most, size if fixed else size.vmax)
        if not (isinstance(amount, int) and 1 < amount <= most):
            raise self.illegal(f"the amount must be in 2..{most}")
        return amount
