"""Matrix units as data rows, and the layouts of the tiles that they read from local memory.

A unit adds ``a[m, k] · b[k, n]`` to ``c[m, n]`` in one step. A ``Fragment`` is the register layout of one of the three:
the mapping from (lane, register) to (row, column), where lanes are the cooperating threads. A position is written in
mixed-radix *digits* ``(size, row step, column step)``, the fastest first: register number ``r`` of lane ``l`` holds row
``Σ digit·row step`` and column ``Σ digit·column step``, summed over the digits of ``r`` and of ``l``.

To add a unit, write a row and list it in a device's ``Target.units``. No other code refers to a unit by name:

* the opt ``TC`` splits and pads the three ranges and emits ``MMA`` nodes for any row;
* a single-thread unit that loads and stores its own tiles (``whole`` fragments: AMX, or an accelerator's own unit) is
  lowered to ``LOAD_TILE``, ``MMA`` and ``STORE_TILE`` lines; the renderer prints them (``emit`` names the instruction)
  and assigns tile numbers, of which ``accumulators`` may be live at once. Dot-product instructions on pairs or fours of
  elements (AVX512-BF16, VNNI) are such units whose tiles are vector registers;
* a warp-level unit (``mma.sync``: 32 threads) gets its operands element by element, as the digits of each lane say, and
  the epilogue works on the registers of the lanes. The lane number is ``SPECIAL`` ``lidx0``;
* both interpreters run every row from its digits alone, so a row can be tested before any renderer supports it.

The row of an ``mma.sync`` of 16×8×16 halves, for example, has ``threads=32`` and the accumulator fragment
``Fragment(((2, 0, 1), (2, 8, 0)), ((4, 0, 2), (8, 1, 0)))``: four registers; the low two bits of the lane select a pair
of columns, the other bits the row.

A tile of local memory that a matrix unit reads directly (``StagedLayout``) is a stack of *chunks* of 64 elements of 16
bits: first all rows of the first 64 columns, then all rows of the next 64. Indices, in the graph too, are (chunk, row,
column in the chunk). The hardware swizzles the 16-byte pieces of a row on both sides, copy and matrix unit:

    piece c of row r is at byte  r·128 + ((c xor (r mod 8)) · 16)

so that the same piece of eight consecutive rows, which a unit reads together, falls into different banks. A tile whose
width is no multiple of a 128-byte chunk uses rows of 64 or 32 bytes, and the swizzle permutes fewer pieces.
"""
from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np

from tinsmith.core.dtypes import DType, dtypes
from tinsmith.core.errors import ArgumentError
from tinsmith.ir.ops.op import Array

Digit = tuple[int, int, int]


@dataclass(frozen=True)
class Fragment:
    """The register layout of an operand: digits of the register number and of the lane number, the fastest first.

    Attributes:
        registers, lanes: digits (size, row step, column step).
        whole: the unit itself moves this operand between memory and its tiles. Then the slowest register digit counts
            rows, which are one pitch apart in memory, and the elements of a row are adjacent, in the order of the other
            digits.
    """

    registers: tuple[Digit, ...]
    lanes: tuple[Digit, ...] = ()
    whole: bool = False

    @property
    def size(self) -> int:
        """Number of elements per lane."""
        return _size(self.registers)

    @property
    def rows(self) -> int:
        """Number of rows of a tile in memory; each has ``size // rows`` elements."""
        return self.registers[-1][0]

    def places(self) -> Array:
        """Return the row and column of every element, as an array of shape (lanes, registers, 2).

        >>> Fragment(((2, 0, 1),), ((2, 1, 0),)).places().tolist()
        [[[0, 0], [0, 1]], [[1, 0], [1, 1]]]
        """
        lanes, registers = _steps(self.lanes), _steps(self.registers)
        found: Array = lanes[:, None, :] + registers[None, :, :]
        return found


def _size(digits: tuple[Digit, ...]) -> int:
    total = 1
    for size, _, _ in digits:
        total *= size
    return total


def _steps(digits: tuple[Digit, ...]) -> Array:
    out = np.zeros((1, 2), np.int64)
    for size, row, column in digits:
        out = (np.arange(size)[:, None, None] * np.array([row, column]) + out[None]).reshape(-1, 2)
    return out


@dataclass(frozen=True)
class UnitTile:
    """A thread-block tile for a staged unit (operands read from local memory).

    Attributes:
        below: fragments of c stacked along m.
        slots: stages of the operands' ring buffer.
        speed: fraction of the unit's rate that the main loop reaches with this tile (measured).
        roles: warp specialization: producer warps fill the slots, across all tiles of a persistent block.
        between: for a chain (back-to-back GEMM): columns of the intermediate tile; each ring then has ``slots`` slots.
        ahead: for a chain: the intermediate tile is computed one block before the last contraction reads it.
        turns: ping-pong: number of warp groups that alternate on the unit, each with its own tile (0: none); in a chain
            they alternate block by block.
    """

    below: int
    slots: int
    speed: float
    roles: bool = False
    between: int = 0
    ahead: bool = False
    turns: int = 0


def in_memory(operand: DType) -> DType:
    """Return the dtype in memory of a unit's operand dtype: float32 for tf32, which the unit rounds to; else the dtype
    itself.

    >>> in_memory(dtypes.tf32), in_memory(dtypes.float16)
    (dtypes.float, dtypes.half)
    """
    return dtypes.float32 if operand is dtypes.tf32 else operand


@dataclass(frozen=True)
class MatrixUnit:
    """One row of the table of matrix units.

    Attributes:
        name: name used by opts; unique among the units of a device.
        arch: machine family: ``x86_64``, ``cuda``, … or ``any``.
        m, n, k: rows, columns and depth of one step.
        a, b, acc: dtypes of the operands and of the accumulator. A ``tf32`` unit multiplies float32 rounded to tf32, so
            it is used only if an opt names it.
        threads: cooperating lanes (1, a warp, or a warpgroup).
        fragment_a, fragment_b, fragment_c: register layouts of a[m, k], b[k, n] and c[m, n].
        emit: the instruction or intrinsic; ``muladd`` means ordinary vector arithmetic.
        requires: required machine features, as the compiler spells them.
        accumulators: fragments of c that may be live at once.
        registers: fragments of a, b and c that may be live at once.
        rate: multiplications and additions per cycle of one core (or warp), for the cost model.
        load: cycles to load one fragment.
        efficiency: fraction of ``rate`` reached with operands from the L2 cache.
        in_turn: the products of a step are added to the accumulator one by one, the last first, each addition rounded.
            Otherwise the products are summed first.
        flushes: subnormal operands count as 0, and subnormal sums become 0 (flush to zero).
        flipped: the unit row for b of the opposite signedness. Flipping the top bits of b converts it, which changes
            each value by half its range; that constant times the row sums of a is subtracted or added afterwards.
        staged: an asynchronous unit that reads its operands from local memory in the layouts of ``ir.matrix_unit``.
        turned: for a staged unit: True if operands may be contiguous along either axis; False: only along k.
        held: for a staged unit: register layout of a, if a can come from registers instead of local memory.
        tiles: for a staged unit: candidate thread-block tiles.
        chains: candidate tiles as the last unit of a chain (back-to-back GEMM).
        joined: the same for chains of several inner or outer products, without row statistics.
    """

    name: str
    arch: str
    m: int
    n: int
    k: int
    a: DType
    b: DType
    acc: DType
    threads: int
    fragment_a: Fragment
    fragment_b: Fragment
    fragment_c: Fragment
    emit: str
    requires: tuple[str, ...] = ()
    accumulators: int = 4
    registers: int = 8
    rate: float = 0.0
    load: float = 0.0
    efficiency: float = 0.55
    in_turn: bool = False
    flushes: bool = False
    flipped: MatrixUnit | None = None
    staged: bool = False
    turned: bool = True
    held: Fragment | None = None
    tiles: tuple[UnitTile, ...] = ()
    chains: tuple[UnitTile, ...] = ()
    joined: tuple[UnitTile, ...] = ()

    def __post_init__(self) -> None:
        """Check that each operand's digits cover all its elements, and that a ``whole`` c has adjacent rows or columns.

        Raises:
            ArgumentError: names the faulty fragment.
        """
        for name, shape in (("a", (self.m, self.k)), ("b", (self.k, self.n)), ("c", (self.m, self.n))):
            fragment: Fragment = getattr(self, f"fragment_{name}")
            digits = [d for d in (*fragment.registers, *fragment.lanes) if d[1] or d[2]]
            reached = tuple(1 + sum((d[0] - 1) * d[axis] for d in digits) for axis in (1, 2))
            count = _size(tuple(digits))
            if reached != shape or count != shape[0] * shape[1]:
                there = f"{count} elements of {reached[0]} rows and {reached[1]} columns"
                wrong = f"{self.name}: fragment_{name} covers {there}, but {name} is {shape[0]} × {shape[1]}"
                raise ArgumentError("MatrixUnit", wrong, "digits that cover each element once")
        down = [bool(d[1]) for d in self.fragment_c.registers if d[0] > 1]
        if self.fragment_c.whole and down not in (sorted(down), sorted(down, reverse=True)):
            raise ArgumentError("MatrixUnit", f"{self.name}: fragment_c has neither adjacent rows nor adjacent columns",
                                "digits of one axis before those of the other")

    def __str__(self) -> str:
        return self.name

    @property
    def rounds(self) -> bool:
        """True if operands are rounded when they are copied to the unit (tf32)."""
        return in_memory(self.a) is not self.a

    @property
    def operand_a(self) -> Fragment:
        """The register layout of a."""
        return self.held or self.fragment_a

    def multiply(self, acc: Array, a: Array, b: Array) -> Array:
        """Compute one step on fragments, arrays of shape (threads, elements): the meaning of an MMA line.

        >>> from tinsmith.target.units.x86 import fma
        >>> unit = fma(dtypes.float32, 8)
        >>> unit.multiply(np.ones((1, 2), np.float32), np.full((1, 1), 2, np.float32), np.ones((1, 2), np.float32))
        array([[3., 3.]], dtype=float32)
        """
        rows, depth, columns = (_gather(f, x, shape, self.acc) for f, x, shape in (
            (self.fragment_a, a, (self.m, self.k)), (self.fragment_c, acc, (self.m, self.n)),
            (self.fragment_b, b, (self.k, self.n))))
        if self.flushes:
            depth, rows, columns = _flushed(depth), _flushed(rows), _flushed(columns)
        if self.in_turn:
            for k in reversed(range(self.k)):  # products of 16-bit floats are exact in float64, and so are ties of sums
                out = depth + rows[:, k, None].astype(np.float64) * columns[k].astype(np.float64)
                depth = _flushed(out.astype(self.acc.numpy))
        else:
            depth = (depth + (rows[:, :, None] * columns[None]).sum(1, dtype=self.acc.numpy)).astype(self.acc.numpy)
        out = _flushed(depth) if self.flushes else depth
        place = _cached_places(self.fragment_c)
        return np.asarray(out[place[..., 0], place[..., 1]])


def _gather(fragment: Fragment, values: Array, shape: tuple[int, int], dtype: DType) -> Array:
    place = _cached_places(fragment)
    out = np.zeros(shape, dtype.numpy)
    out[place[..., 0], place[..., 1]] = np.broadcast_to(values, place.shape[:2]).astype(dtype.numpy)
    return out


def _flushed(x: Array) -> Array:
    """Return ``x`` with float32 subnormals flushed to zero (the sign is kept)."""
    return np.where(np.abs(x) < np.finfo(np.float32).tiny, np.copysign(np.float32(0), x), x)


@functools.cache
def _cached_places(fragment: Fragment) -> Array:
    return fragment.places()


def available(table: tuple[MatrixUnit, ...], arch: str, features: frozenset[str]) -> tuple[MatrixUnit, ...]:
    """Return the rows that a machine of ``arch`` with ``features`` supports."""
    return tuple(u for u in table if u.arch in ("any", arch) and features.issuperset(u.requires))

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
