"""Where staged tiles lie: rows of 128 bytes that are swizzled, slots of a ring, and the boxes that fill them.

A tile of local memory that a matrix unit reads itself is a stack of *chunks* of 64 elements of 16 bits: first all rows
of the first 64 columns, then all rows of the next ones. An index counts (chunk, row, column in its chunk), and so does
the graph: that the 16-byte pieces of a row change places is the hardware's doing on both sides:

    piece c of row r lies at byte  r·128 + ((c xor (r mod 8)) · 16)

so that eight rows of one piece, which a unit reads at once, lie in different banks. Where a tile has no whole chunks of
that width, rows of 64 or 32 bytes lie so side by side, and fewer pieces change places.
"""
from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

ROW_BYTES = 128  # of a chunk, at most; the swizzle repeats every 8 of them
LEAST_ROW_BYTES = 32  # of a chunk
PIECE_BYTES = 16  # which change places
MOST_DIMENSIONS = 5  # of a view
MOST_STEP = 8  # of a box along a dimension


@dataclass(frozen=True)
class Layout:
    """How a staged operand lies in a slot.

    Attributes:
        rows: of a chunk.
        columns: elements of a row of a chunk.
        chunks: side by side.
        deep: rows run along the reduction; else the elements of a row do.
        row: bytes of a row of a chunk.

    >>> tile = Layout(64, 64, 4, deep=True)
    >>> tile.place(3, 70), tile.elements
    (4294, 16384)
    """

    rows: int
    columns: int
    chunks: int
    deep: bool
    row: int = ROW_BYTES

    @property
    def elements(self) -> int:
        return self.rows * self.columns * self.chunks

    def place(self, row: Any, column: Any) -> Any:
        """The index of an element in its slot."""
        return column // self.columns * (self.rows * self.columns) + row * self.columns + column % self.columns

    def byte(self, row: int, column: int) -> int:
        """Where the hardware puts an element in its slot.

        >>> tile = Layout(64, 64, 1, deep=True)
        >>> tile.byte(0, 8), tile.byte(1, 8), tile.byte(1, 0)
        (16, 128, 144)
        >>> Layout(64, 32, 1, True, 64).byte(2, 0), Layout(64, 32, 1, True, 64).byte(2, 8)
        (144, 128)
        """
        place: int = self.place(row, column) * (self.row // self.columns)
        return place ^ place // ROW_BYTES % (self.row // PIECE_BYTES) * PIECE_BYTES


class Placed(tuple[int, ...]):
    """The argument of a STAGE: its sizes, how they lie (as the sizes say, if there is no layout), and how many slots
    there are.

    >>> a, b = (Placed((8, 64), Layout(8, 64, 1, False), depth) for depth in (2, 3))
    >>> a == (8, 64), a == b, list(a)
    (False, False, [8, 64])
    """

    layout: Layout | None
    depth: int

    def __new__(cls, sizes: tuple[int, ...], layout: Layout | None = None, depth: int = 1) -> Placed:
        self = super().__new__(cls, sizes)
        self.layout, self.depth = layout, depth
        return self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Placed) and (*self, self.layout, self.depth) == (*other, other.layout, other.depth)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((*self, self.layout, self.depth))

    def __getnewargs__(self) -> tuple[Any, ...]:
        return tuple(self), self.layout, self.depth

    def __repr__(self) -> str:
        more = "" if self.layout is None and self.depth == 1 else f", {self.layout}, {self.depth} slots"
        return f"{tuple(self)!r}{more}"


@dataclass(frozen=True)
class View:
    """Memory as a bulk copy sees it, the fastest dimension first: element ``x`` is at ``offset + Σ x·stride``, and
    is nothing outside of the sizes.

    Attributes:
        box: how many elements of each dimension one copy brings.
        steps: how far apart these are in their dimension; none: side by side.

    >>> View((100, 7), (1, 112), (64, 8)).bytes(2)
    1024
    """

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    offset: int = 0
    steps: tuple[int, ...] = ()

    def reach(self) -> tuple[int, ...]:
        """How many places of each dimension a box spans.

        >>> View((64, 9, 9), (1, 64, 576), (64, 2, 4), 0, (1, 2, 2)).reach()
        (64, 3, 7)
        """
        return tuple((n - 1) * step + 1 for n, step in zip(self.box, self.steps or itertools.repeat(1)))

    def bytes(self, itemsize: int) -> int:
        """What one copy counts: zeros outside included."""
        total = itemsize
        for size in self.box:
            total *= size
        return total
