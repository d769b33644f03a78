"""The inputs of a kernel under construction: for each value read, its index expression and enclosing loops."""
from __future__ import annotations

from dataclasses import dataclass, field

from tinsmith.codegen.indexing import Index
from tinsmith.ir import Ops, UOp

Ranges = frozenset[UOp]


@dataclass
class KernelGroup:
    """A kernel under construction.

    Attributes:
        root: the value it stores.
        chain: for each reduction, the set of ranges it depends on.
        reduces: number of reductions.
        contraction: True if it contains a large contraction.
        ranges: its parallel ranges.
        stream: contractions of computed operands that it fuses.
        tiles: row-by-column values it computes, each with its axes (True: parallel, False: reduced).
        work: operations per element, and views, that it holds so far.
    """

    root: UOp
    chain: list[Ranges] = field(default_factory=list)
    reduces: int = 0
    contraction: bool = False
    ranges: Ranges = frozenset()
    stream: frozenset[UOp] = frozenset()
    walk: UOp | None = None  # the contraction whose tiles it walks over
    tiles: set[tuple[UOp, tuple[bool, ...]]] = field(default_factory=set)
    work: int = 0


@dataclass(frozen=True, eq=False)
class Request:
    """A read of a node by kernel ``group`` at ``index``, inside the reduction loops ``around``.

    ``rows``: inside a stream, the parallel ranges of its rows, else None.
    """

    group: KernelGroup
    index: Index
    around: Ranges
    rows: Ranges | None = None

    @property
    def outer(self) -> Ranges:
        """The parallel ranges that enclose the read."""
        return self.group.ranges if self.rows is None else self.rows

    @property
    def in_tile(self) -> bool:
        """Return True if the value is indexed by both row ranges and reduced ranges, each axis by
        one range: a value of a tile."""
        plain = all(i.op is Ops.RANGE or i.is_const for i in self.index)
        return plain and bool(self.around) and bool(self.outer) and (self.outer | self.around) <= ranges_in(self.index)

    @property
    def position(self) -> tuple[bool, ...]:
        """Return, for each axis of the index, True if it is parallel."""
        return tuple(i.ranges <= self.outer for i in self.index)


def ranges_in(index: Index) -> Ranges:
    return frozenset().union(*(i.ranges for i in index))


def is_block(node: UOp, request: Request) -> bool:
    """Return True if rows and columns of a product are both kept by the enclosing reduction over other axes."""
    body = node.src[0]
    if body.op is not Ops.MUL:
        return False
    a, b = ({i for i, stays in enumerate(request.position) if stays and f.op is Ops.EXPAND and f.shape[i] != 1
             and f.src[0].shape[i] == 1} for f in body.src)
    return bool(a - b and b - a)
