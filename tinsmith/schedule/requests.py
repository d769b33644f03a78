"""What a kernel in the making asks for: each value that it reads, with the index and the loops at which it reads it."""
from __future__ import annotations

from dataclasses import dataclass, field

from tinsmith.codegen.indexing import Index
from tinsmith.ir import Ops, UOp

Ranges = frozenset[UOp]


@dataclass
class KernelGroup:
    """A kernel in the making: its root, and the range sets its reductions depend on.

    ``stream`` holds its contractions of computed operands, ``tiles`` the row-by-column values that it computes, each
    with the parallel (True) and the reduced axes. ``work``: operations per element, and views, that it holds so far.
    """

    root: UOp
    chain: list[Ranges] = field(default_factory=list)
    reduces: int = 0
    contraction: bool = False
    ranges: Ranges = frozenset()
    stream: frozenset[UOp] = frozenset()
    walk: UOp | None = None  # the contraction whose tiles it goes through
    tiles: set[tuple[UOp, tuple[bool, ...]]] = field(default_factory=set)
    work: int = 0


@dataclass(frozen=True, eq=False)
class Request:
    """Kernel ``group`` reads a node at ``index``, inside the loops ``around`` (the reductions entered on the way).

    ``rows``: inside a stream, the parallel ranges of its rows, else None.
    """

    group: KernelGroup
    index: Index
    around: Ranges
    rows: Ranges | None = None

    @property
    def outer(self) -> Ranges:
        """The parallel ranges around what is read."""
        return self.group.ranges if self.rows is None else self.rows

    @property
    def in_tile(self) -> bool:
        """Whether rows meet what is reduced, each a range of its own: the place of a value that a tile holds."""
        plain = all(i.op is Ops.RANGE or i.is_const for i in self.index)
        return plain and bool(self.around) and bool(self.outer) and (self.outer | self.around) <= ranges_in(self.index)

    @property
    def position(self) -> tuple[bool, ...]:
        """Which axes are parallel."""
        return tuple(i.ranges <= self.outer for i in self.index)


def ranges_in(index: Index) -> Ranges:
    return frozenset().union(*(i.ranges for i in index))


def is_block(node: UOp, request: Request) -> bool:
    """Whether rows and columns of a product both stay axes of what a reduction over others of its columns gives."""
    body = node.src[0]
    if body.op is not Ops.MUL:
        return False
    a, b = ({i for i, stays in enumerate(request.position) if stays and f.op is Ops.EXPAND and f.shape[i] != 1
             and f.src[0].shape[i] == 1} for f in body.src)
    return bool(a - b and b - a)
