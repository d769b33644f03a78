"""Layouts of staged tiles in local (shared) memory: swizzled rows of up to 128 bytes, ring slots, and bulk-copy boxes.

A tile of local memory that a matrix unit reads directly is a stack of *chunks* of 64 elements of 16 bits: first all
rows of the first 64 columns, then all rows of the next 64. Indices, in the graph too, count (chunk, row, column in the
chunk); the swizzle of the 16-byte pieces of a row is applied by the hardware on both sides, copy and matrix unit:

    piece c of row r lies at byte  r·128 + ((c xor (r mod 8)) · 16)

so that the same piece of eight consecutive rows, which a unit reads together, falls into different banks. A tile whose
width is no multiple of a 128-byte chunk uses rows of 64 or 32 bytes, and the swizzle permutes fewer pieces.
"""
from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

ROW_BYTES = 128  # bytes of the longest row of a chunk; the swizzle repeats every 8 rows
LEAST_ROW_BYTES = 32  # bytes of the shortest row of a chunk
PIECE_BYTES = 16  # bytes of the unit that the swizzle permutes
MOST_DIMENSIONS = 5  # dimensions of a View, at most
MOST_STEP = 8  # element stride of a box along a dimension, at most


@dataclass(frozen=True)
class StagedLayout:
    """The layout of a staged operand in a ring slot.

    Attributes:
        rows: rows of a chunk.
        columns: elements per row of a chunk.
        chunks: chunks of the tile, which split its columns.
        deep: True if the row index runs along the reduction; False if the column index does.
        row: bytes per row of a chunk.

    >>> tile = StagedLayout(64, 64, 4, deep=True)
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
        """Return the (unswizzled) index of an element in its slot."""
        return column // self.columns * (self.rows * self.columns) + row * self.columns + column % self.columns

    def byte(self, row: int, column: int) -> int:
        """Return the byte offset of an element in its slot after the hardware swizzle.

        >>> tile = StagedLayout(64, 64, 1, deep=True)
        >>> tile.byte(0, 8), tile.byte(1, 8), tile.byte(1, 0)
        (16, 128, 144)
        >>> StagedLayout(64, 32, 1, True, 64).byte(2, 0), StagedLayout(64, 32, 1, True, 64).byte(2, 8)
        (144, 128)
        """
        place: int = self.place(row, column) * (self.row // self.columns)
        return place ^ place // ROW_BYTES % (self.row // PIECE_BYTES) * PIECE_BYTES


class Placed(tuple[int, ...]):
    """The argument of a STAGE: its sizes, its layout (None: dense, row-major), and the number of ring slots.

    >>> a, b = (Placed((8, 64), StagedLayout(8, 64, 1, False), depth) for depth in (2, 3))
    >>> a == (8, 64), a == b, list(a)
    (False, False, [8, 64])
    """

    layout: StagedLayout | None
    depth: int

    def __new__(cls, sizes: tuple[int, ...], layout: StagedLayout | None = None, depth: int = 1) -> Placed:
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
class BulkView:
    """Memory as a bulk copy (TMA) sees it, fastest dimension first: element ``x`` is at ``offset + Σ x·stride``;
    elements outside ``sizes`` read as zero.

    Attributes:
        box: elements per dimension that one copy transfers.
        steps: distance between those elements per dimension; empty: adjacent (1).

    >>> BulkView((100, 7), (1, 112), (64, 8)).bytes(2)
    1024
    """

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    offset: int = 0
    steps: tuple[int, ...] = ()

    def reach(self) -> tuple[int, ...]:
        """Return the extent of a box along each dimension, gaps included.

        >>> BulkView((64, 9, 9), (1, 64, 576), (64, 2, 4), 0, (1, 2, 2)).reach()
        (64, 3, 7)
        """
        return tuple((n - 1) * step + 1 for n, step in zip(self.box, self.steps or itertools.repeat(1)))

    def bytes(self, itemsize: int) -> int:
        """Return the bytes that one copy transfers, zero-filled elements outside the bounds included."""
        total = itemsize
        for size in self.box:
            total *= size
        return total
