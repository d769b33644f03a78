"""Matrix units as data rows: the shape of one step, the register layout of each operand, and the required features.

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
* a warp-level unit (``mma.sync``: 32 threads) gets its operands element by element, each lane those that its digits
  give, and the rest of the kernel works on the elements that a lane holds. The lane number is ``SPECIAL`` ``lidx0``;
* both interpreters run every row from its digits alone, so a row can be tested before any renderer supports it.

The row of an ``mma.sync`` of 16×8×16 halves, for example, has ``threads=32`` and the accumulator fragment
``Fragment(((2, 0, 1), (2, 8, 0)), ((4, 0, 2), (8, 1, 0)))``: four registers; the low two bits of the lane select a pair
of columns, the other bits the row.
"""
from __future__ import annotations

import functools
from dataclasses import dataclass

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
class Tile:
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
        staged: an asynchronous unit that reads its operands from local memory in the layouts of ``ir.layout``.
        turned: for a staged unit: True if operands may be contiguous along either axis; False: only along k.
        held: for a staged unit: register layout of a, if a can come from registers instead of local memory.
        tiles: for a staged unit: candidate thread-block tiles.
        chains: candidate tiles as the last unit of a chain (back-to-back GEMM).
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
    tiles: tuple[Tile, ...] = ()
    chains: tuple[Tile, ...] = ()

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
                wrong = f"{self.name}: fragment_{name} names {there}, and {name} is {shape[0]} × {shape[1]}"
                raise ArgumentError("MatrixUnit", wrong, "digits that name each element once")
        down = [bool(d[1]) for d in self.fragment_c.registers if d[0] > 1]
        if self.fragment_c.whole and down not in (sorted(down), sorted(down, reverse=True)):
            raise ArgumentError("MatrixUnit", f"{self.name}: fragment_c has neither rows nor columns side by side",
                                "digits of one axis before those of the other")

    def __str__(self) -> str:
        return self.name

    @property
    def rounds(self) -> bool:
        """True if operands lose bits on their way to the unit (tf32)."""
        return in_memory(self.a) is not self.a

    @property
    def operand_a(self) -> Fragment:
        """The register layout of a."""
        return self.held or self.fragment_a

    def multiply(self, acc: Array, a: Array, b: Array) -> Array:
        """Compute one step on fragments, arrays of shape (threads, elements): the meaning of an MMA line.

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


# *** rows ***


def fma(dtype: DType, vector_bytes: int, rate: float = 0.0) -> MatrixUnit:
    """Return the unit of every vector machine: the outer product of one element of a and a vector of b.

    It needs no MMA nodes: the optimizer vectorizes along n (VECTOR) and unrolls along m (UPCAST) instead.

    >>> fma(dtypes.float32, 64).n
    16
    """
    n = max(vector_bytes // dtype.itemsize, 1)
    row = ((n, 0, 1),)
    return MatrixUnit(f"fma_{dtype.name}", "any", 1, n, 1, dtype, dtype, dtype, 1, Fragment(((1, 0, 0),)),
                      Fragment(row), Fragment(row), "muladd", (), 24, 32, rate or 4.0 * n)


def _amx(name: str, emit: str, a: DType, b: DType, acc: DType, feature: str) -> MatrixUnit:
    """Return an AMX row: tiles of 16 rows of 64 bytes; in b, elements that meet in one 32-bit lane of c are adjacent
    (VNNI packing)."""
    packed = 4 // a.itemsize
    k = 16 * packed
    row_major = Fragment(((k, 0, 1), (16, 1, 0)), whole=True)
    interleaved = Fragment(((packed, 1, 0), (16, 0, 1), (16, packed, 0)), whole=True)
    square = Fragment(((16, 0, 1), (16, 1, 0)), whole=True)
    return MatrixUnit(name, "x86_64", 16, 16, k, a, b, acc, 1, row_major, interleaved, square, emit,
                      ("amx-tile", feature), 4, 8, 2.0 * 16 * k, 16.0, flushes=acc.is_float)


AMX = (
    _amx("amx_bf16", "tdpbf16ps", dtypes.bfloat16, dtypes.bfloat16, dtypes.float32, "amx-bf16"),
    _amx("amx_s8s8", "tdpbssd", dtypes.int8, dtypes.int8, dtypes.int32, "amx-int8"),
    _amx("amx_s8u8", "tdpbsud", dtypes.int8, dtypes.uint8, dtypes.int32, "amx-int8"),
    _amx("amx_u8s8", "tdpbusd", dtypes.uint8, dtypes.int8, dtypes.int32, "amx-int8"),
    _amx("amx_u8u8", "tdpbuud", dtypes.uint8, dtypes.uint8, dtypes.int32, "amx-int8"),
)


def _dot(name: str, a: DType, b: DType, acc: DType, feature: str, flipped: MatrixUnit | None = None) -> MatrixUnit:
    """Return the row of a dot-product instruction on 64-byte vectors: each 32-bit lane of c accumulates the products
    of the two or four elements that a (broadcast to all lanes) and b hold there. Throughput equals that of
    multiply-adds."""
    packed = 4 // a.itemsize
    row, column = Fragment(((packed, 0, 1), (1, 1, 0)), whole=True), Fragment(((16, 0, 1), (1, 1, 0)), whole=True)
    interleaved = Fragment(((packed, 1, 0), (16, 0, 1), (1, packed, 0)), whole=True)
    return MatrixUnit(name, "x86_64", 1, 16, packed, a, b, acc, 1, row, interleaved, column, name, ("avx512f", feature),
                      24, 32, 4.0 * 16 * packed, 0.65, 0.9, in_turn=acc.is_float, flushes=acc.is_float,
                      flipped=flipped)


_S8U8 = _dot("dot_s8u8", dtypes.int8, dtypes.uint8, dtypes.int32, "avx512vnni")
_U8S8 = _dot("dot_u8s8", dtypes.uint8, dtypes.int8, dtypes.int32, "avx512vnni")
DOT = (
    _dot("dot_bf16", dtypes.bfloat16, dtypes.bfloat16, dtypes.float32, "avx512bf16"),
    _dot("dot_s8s8", dtypes.int8, dtypes.int8, dtypes.int32, "avx512vnni", _S8U8), _S8U8, _U8S8,
    _dot("dot_u8u8", dtypes.uint8, dtypes.uint8, dtypes.int32, "avx512vnni", _U8S8),
    _dot("dot_s16", dtypes.int16, dtypes.int16, dtypes.int32, "avx512vnni"),
)


def _mma_sync(name: str, emit: str, k: int, dtype: DType) -> MatrixUnit:
    """Return the row of a warp-level ``mma.sync`` of 16 × 8 × k. Layouts from the PTX manual: four adjacent lanes share
    a row of a and of c and a column of b, and a 32-bit register holds elements adjacent along k."""
    packed = 4 // dtype.itemsize
    a = Fragment(((packed, 0, 1), (2, 8, 0), (2, 0, 4 * packed)), ((4, 0, packed), (8, 1, 0)))
    b = Fragment(((packed, 1, 0), (2, 4 * packed, 0)), ((4, packed, 0), (8, 0, 1)))
    c = Fragment(((2, 0, 1), (2, 8, 0)), ((4, 0, 2), (8, 1, 0)))
    return MatrixUnit(name, "cuda", 16, 8, k, dtype, dtype, dtypes.float32, 32, a, b, c, emit, ("sm_80",), 16, 32,
                      2.0 * 16 * 8 * k / 16,
                      chains=(Tile(4, 1, 0.2, between=64), Tile(1, 1, 0.1, between=64)) if packed > 1 else ())


CUDA = (
    _mma_sync("mma_f16", "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", 16, dtypes.float16),
    _mma_sync("mma_bf16", "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", 16, dtypes.bfloat16),
    _mma_sync("mma_tf32", "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32", 8, dtypes.tf32),
)


def _wgmma(name: str, dtype: DType, n: int, tiles: tuple[Tile, ...],
           chains: tuple[Tile, ...]) -> MatrixUnit:
    """Return the row of a warpgroup ``wgmma`` of 64 × n × 32 bytes, n / 2 cycles per step: each of the four warps holds
    16 rows of the accumulator in the layout of ``mma.sync``. Speeds measured for bf16 4096³ on an H200."""
    k, short = 32 // dtype.itemsize, dtype.itemsize == 2
    emit = f"wgmma.mma_async.sync.aligned.m64n{n}k{k}.f32.{name}.{name}"
    c = Fragment(((2, 0, 1), (2, 8, 0), (n // 8, 0, 8)), ((4, 0, 2), (8, 1, 0), (4, 16, 0)))
    held = Fragment(((2, 0, 1), (2, 8, 0), (2, 0, 8)), ((4, 0, 2), (8, 1, 0), (4, 16, 0)))
    return MatrixUnit(f"wgmma_{name}_{n}", "cuda", 64, n, k, dtype, dtype, dtypes.float32, 128,
                      Fragment(((k, 0, 1), (64, 1, 0))), Fragment(((k, 1, 0), (n, 0, 1))), c, emit, ("sm_90a",),
                      max(1, 384 // n), 4, 2.0 * 64 * n * k / (n / 2), staged=True, turned=short,
                      held=held if short else None, tiles=tiles, chains=chains if short else ())


_ATTENTION = (Tile(2, 2, 0.9, between=64), Tile(1, 2, 0.6, between=64))  # n ≥ 192: few registers are left
_OPERANDS = (("bf16", dtypes.bfloat16), ("f16", dtypes.float16), ("tf32", dtypes.tf32))
HOPPER = tuple(_wgmma(name, dtype, n, tiles, chains)
               for name, dtype in _OPERANDS for n, tiles, chains in (
                   (256, (Tile(2, 4, 1.0), Tile(2, 4, 1.03, True), Tile(1, 5, 0.87)), _ATTENTION),
                   (192, (Tile(2, 5, 0.98), Tile(2, 5, 1.0, True), Tile(3, 4, 1.03, True), Tile(1, 6, 0.72),
                          Tile(2, 5, 1.0, True, turns=2)), _ATTENTION),
                   (128, (Tile(2, 6, 0.94), Tile(2, 6, 0.95, True), Tile(1, 8, 0.73), Tile(2, 6, 0.93, True, turns=2)),
                    (Tile(2, 2, 1.0, True, 128, True, 2), Tile(2, 2, 0.89, between=64),
                     Tile(1, 2, 0.6, between=128))),
                   (64, (Tile(2, 6, 0.58), Tile(2, 6, 0.64, True), Tile(1, 8, 0.5)),
                    (Tile(2, 2, 1.0, between=128), Tile(1, 3, 0.6, between=128))),
                   (96, (Tile(3, 6, 0.78),), ())))


def _wmma(name: str, emit: str, dtype: DType) -> MatrixUnit:
    """Return the row of an RDNA 3 wave-level WMMA of 16 × 16 × 16. Both half-waves hold the same elements of a and b: a
    lane holds a row of a and a column of b; of c, the even rows (lower half) or odd rows (upper half) of a column."""
    a = Fragment(((16, 0, 1),), ((16, 1, 0), (2, 0, 0)))
    b = Fragment(((16, 1, 0),), ((16, 0, 1), (2, 0, 0)))
    c = Fragment(((8, 2, 0),), ((16, 0, 1), (2, 1, 0)))
    return MatrixUnit(name, "hip", 16, 16, 16, dtype, dtype, dtypes.float32, 32, a, b, c, emit, ("gfx11",), 8, 32,
                      2.0 * 16 * 16 * 16 / 16)


RDNA3 = (
    _wmma("wmma_f16", "__builtin_amdgcn_wmma_f32_16x16x16_f16_w32", dtypes.float16),
    _wmma("wmma_bf16", "__builtin_amdgcn_wmma_f32_16x16x16_bf16_w32", dtypes.bfloat16),
)


def _simdgroup(name: str, dtype: DType) -> MatrixUnit:
    """Return the row of an Apple SIMD-group product of 8 × 8 × 8. Each of 32 lanes holds two adjacent elements of a
    row: bits 0 and 3 of the lane number select the column pair, bits 1, 2 and 4 the row."""
    part = Fragment(((2, 0, 1),), ((2, 0, 2), (2, 1, 0), (2, 2, 0), (2, 0, 4), (2, 4, 0)))
    return MatrixUnit(name, "metal", 8, 8, 8, dtype, dtype, dtypes.float32, 32, part, part, part,
                      "simdgroup_multiply_accumulate", (), 16, 32, 2.0 * 8 * 8 * 8 / 8)


APPLE = (_simdgroup("simdgroup_f16", dtypes.float16), _simdgroup("simdgroup_f32", dtypes.float32))


def available(table: tuple[MatrixUnit, ...], arch: str, features: frozenset[str]) -> tuple[MatrixUnit, ...]:
    """Return the rows that a machine of ``arch`` with ``features`` supports."""
    return tuple(u for u in table if u.arch in ("any", arch) and features.issuperset(u.requires))
