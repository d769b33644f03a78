"""What the compiler needs to know of a target, and what every renderer does alike."""
from __future__ import annotations

import copy
import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import ClassVar, NamedTuple

from tinsmith.codegen.render.costs import CORE_COSTS, Costs
from tinsmith.codegen.roles import Role
from tinsmith.core.dtypes import DType, dtypes
from tinsmith.ir import Ops, UOp
from tinsmith.ir.units import MatrixUnit


class Blocks(NamedTuple):
    """How work is shared out among the threads of a block."""

    threads: int = 128  # of a block where nothing asks for more
    most_threads: int = 512  # of a block where there are many of them
    lanes: int = 8  # of one access, as far as they fit a vector
    long: int = 64  # elements from which on a reduction is worth sharing
    short: int = 16  # elements of a sum that a thread has in registers
    turns: int = 2  # vectors of a row for each thread, where there are so many
    turn: tuple[float, float] = (4, 32)  # how many times 2 more or fewer take twice as long, for few or many rows
    rows: int = 16  # for each core: enough of them even if each has few threads
    row_values: int = 1 << 16  # elements of a row that a block keeps in registers
    thread_values: int = 80  # those that a thread keeps
    running: int = 256  # threads that share the steps of running values
    loads: int = 4  # that a thread has under way where it goes through a loop, twice as many down a column
    columns: int = 32  # threads side by side
    ways: int = 8  # how many of them share the way down
    together: int = 2  # rows or windows of a thread that are under way at once
    tile: int = 64  # side of a transposed tile
    tile_rows: int = 8  # how much of it a thread writes
    enough: int = 1 << 13  # results from which on every one has a thread of its own
    vectors: int = 1 << 9  # results from which on a thread has several
    # Of a product along a range of each factor: the most copies that there is work for all threads without.
    copies: tuple[tuple[int, int], ...] = ((8, 4), (4, 4), (4, 2), (2, 2))
    in_vain: int = 1 << 16  # blocks that may be launched for nothing, for a size known only at run time
    early: int = 32  # values that a thread has loaded before the barrier ahead of their use
    beside: int = 8  # rows of a fragment's elements for which a thread reads other memory at a time
    band: int = 16  # rows of tiles that blocks walk down before they go a column on: about a square is under way
    product_threads: tuple[int, ...] = (64, 128, 256)  # of a block for a tile of a contraction; none: no such tiles
    sums: tuple[tuple[int, int], ...] = ((4, 4), (4, 8), (8, 8))  # rows and columns of it that a thread may have
    slices: tuple[int, ...] = (16, 8)  # steps of the reduction that local memory holds at a time
    least: int = 16  # rows, columns and steps that are worth it
    carried: int = 24  # words that a thread has on their way
    fma: int = 128  # multiply-adds that a core starts in a cycle
    words: int = 32  # of local memory that its threads read in a cycle
    copied: int = 4  # instructions to bring an element there
    meeting: int = 24  # cycles of a barrier
    warps: int = 16  # that hide latencies
    hiding: float = 0.25  # a core with fewer of them takes longer, by this power of how many times fewer
    result: float = 88.0  # steps of the sum that a staged unit does while the groups of a tile store its results
    after: float = 30.0  # and one operation on each of them
    alone: float = 2.5  # how many times as long a group takes that does so alone, in turn with others
    patch: float = 0.9  # cycles that a row of a patch takes a staged unit beyond one of a longer box
    begin: int = 96  # steps of a chain in which a block that has a core to itself waits for its operands
    units: int = 4  # matrix units that work at once
    # Rows and columns of a unit's tiles that a warp may have.
    fragments: tuple[tuple[int, int], ...] = ((4, 4), (2, 4), (4, 2), (2, 2), (1, 4), (1, 2), (1, 1))
    unit_steps: tuple[int, ...] = (2, 1)  # of a unit that local memory holds at a time
    warp: int = 32  # threads that memory serves together, where they hand each other nothing
    access: int = 32  # bytes that pass between a core's threads and memory in a cycle, whole pieces of it
    bandwidth: int = 16  # a core's share of main memory's
    latency: int = 600  # cycles until what is loaded is there
    stores: float = 1.5  # how many loads each counts for where neighbours are chosen
    same: float = 0.25  # what is the same for them
    doubt: float = 3.0  # how much more a way counts where a more special one suits: no estimate has been measured


class TileCosts(NamedTuple):
    """What contractions wait for beside their products, in cycles of one core; measured on a core with AVX-512."""

    scalar_line: tuple[float, float] = (0.4, 2.0)  # a line of scalars from the second cache, and from beyond
    panel_vector: float = 0.14  # a vector of a panel from the second cache
    result_row: tuple[float, float] = (4, 26)  # each row of a tile in the result; of several times the second cache
    # An element whose lanes lie apart in the result: in blocks that are transposed, or not.
    stored_across: tuple[float, float] = (0.4, 1.2)
    step: tuple[float, float] = (2.0, 0.5)  # cycles of a step of a tile at least, and those beside its products
    used: float = 0.6  # the share of a last tile's time that falls with what is left out of it
    row: float = 1.5  # a tile of m rows is worth m / (m + row)
    # How many times as long a tile takes whose steps cannot be written out, as registers would run out.
    spilled: float = 1.7
    # Where every step of a sum of so many reads lines of the same few sets of a cache: so many times as long; measured:
    # 7.1 against 5.3 ms for 2048 × 256 results of 512 products.
    same_sets: tuple[int, float] = (128, 1.3)
    near: float = 0.7  # the share of the first cache that a panel may fill to stay there
    # An element of a panel that is not packed: from rows near each other, from rows that lie far apart, and from such
    # that crowd the second cache's sets.
    as_it_lies: tuple[float, float, float] = (0.0, 0.0094, 0.019)
    widened: tuple[float, float] = (1.2, 1.0)  # a vector of such a panel, or a scalar, of 16-bit floats
    lines_of_set: int = 32  # rows in one set of a cache that make an element twice as dear to pack across the lanes
    along: float = 0.15  # an element to be packed along the lanes
    across: tuple[float, float] = (0.9, 1.5)  # across them, in blocks that are transposed or one by one
    scattered: float = 12.0  # where each needs a line of memory
    copied: float = 1.0  # a scalar to be copied to local memory, in pieces that lie apart
    # An element to be brought into the order of a matrix unit, where memory runs along it, or not.
    unit_order: tuple[float, float] = (0.4, 1.2)
    result: float = 0.4  # an element of a unit's result, from tile to memory
    # Times as many where memory does not run along its columns: in blocks of so many rows and columns that are
    # transposed, the largest first.
    turned: tuple[tuple[int, float], ...] = ((8, 1.5), (4, 2.0), (1, 3.0))


class Core(NamedTuple):
    """What the registers and caches of a core are good for."""

    issue: int = 2  # vector instructions, or vector loads, that start per cycle
    latency: int = 4  # cycles from one addition to the next that needs it
    # Bytes per second from its second cache, from one of ``l3_bytes`` that all share, and from memory, to one core and
    # to all of them: of a modest machine, where nobody has measured.
    bandwidths: tuple[float, float, float, float] = (60e9, 20e9, 10e9, 12e9)
    l3_bytes: int = 16 << 20
    line: int = 64  # bytes of a cache line
    page: int = 4 << 10  # bytes after which a line falls into the same set of the first cache
    ways: int = 16  # lines of a set of the second
    # What each lane but the first of a vector costs, in cycles, where memory runs along the lanes, is the same for all,
    # is shared by neighbours or a few elements apart, or lies far apart; and where there are no lanes.
    reads: tuple[float, ...] = (0.0, 0.375, 0.125, 1.0, 0.5)
    writes: tuple[float, ...] = (0.0, 0.75, 1.75, 1.75, 0.75)
    tile: TileCosts = TileCosts()  # what contractions wait for
    tile_rows: int = 8  # of a register tile of computed operands
    whole_steps: int = 6  # of a reduction up to which all are written out in a register tile
    wide: int = 4  # vectors of a panel from which on two steps are enough
    largest_panel: int = 4 << 20  # bytes of a packed panel
    pieces: float = 1.25  # how many times as long a step takes where a loop is cut into pieces: each is code of its own
    peeled: int = 4  # tiles of a row of which the first and last leave out what a window does not cover
    shortest_lanes: int = 4  # elements of a row, or copies, that are worth a vector of their own
    # Copies of a step: elements of a window, places that it has in the output, inputs of a stack.
    written_out: int = 16
    window_step: int = 4  # elements from a lane to the next where windows are read
    # Iterations that are written out so that they share work, the gates and states of a recurrent cell, where it is at
    # least ``shared_work`` operations per element.
    shared_copies: int = 6
    shared_work: int = 16
    # Rows whose sum is added to one that stays in memory, which is then read and written less.
    steps_together: tuple[int, ...] = (4, 2)
    separate_sums: int = 8  # accumulators of a reduction up to which steps written out have their own
    shared_sums: int = 24  # those of reductions that share a loop: more would not stay in registers
    rows_beside: int = 4  # rows that are gone through side by side
    apart: tuple[float, float] = (0.75, 1.9)  # cycles that a vector takes more then, in the second cache and beyond
    # The share of the wait at the end of a row that the next one does not hide, if it has one pass.
    waits: float = 0.3
    dear: int = 12  # operations per element from which a second computation costs more than a look into local memory
    short_row: int = 64  # elements of a row that are not worth a loop of their own
    rows_kept: int = 2  # at once in local memory
    even: int = 4  # blocks per worker from which it does not matter that the workers' shares differ by one
    pair_bytes: int = 128  # lines that are fetched, and so are best written, together
    accumulators: int = 16  # of register tiles with all columns of a result
    # Columns of a block of long rows, at least and at most, and how far apart these numbers are.
    row_block: tuple[int, int, int] = (64, 256, 16)
    rescaling: float = 1.2  # how many times as long rows take block by block, with running sums, as whole ones
    visible: float = 0.5  # the share of blocks that a mask leaves
    spilled: float = 1.5  # how many times as long whole rows take that do not fit half of the second cache
    # How long the sides of a tile may be that several sums take in: whole register tiles; of shorter ones, results
    # would be read and written too often.
    tile_blocks: range = range(16, 72, 8)
    tile_vectors: int = 2  # beside each other in a register tile of a stream
    tile_steps: int = 4  # that are written out there
    serial_work: int = 1 << 14  # elements × operations below which waking a second core costs more than it saves
    # Accumulators of a sum, the first where one sum has the loop, the next where two share it, …: chains that hide an
    # addition's latency; one where more sums share it.
    sums: tuple[int, ...] = (4, 4, 2, 2)
    # Of running values, side by side: as many as an addition takes cycles; more would read too many lines of one set.
    chains: int = 4
    streamed: int = 32 << 20  # bytes of results from which they are written past the caches: they would not stay there
    # How far ahead the rows of a panel are fetched that is too little used to be packed.
    rows_ahead: int = 8
    rows_apart: int = 1 << 10  # bytes between them at least
    least_ahead: int = 16  # steps of a loop that is worth it
    bytes_ahead: int = 4 << 10  # of a row that streams through a sum
    streams_ahead: int = 2 << 10  # of elementwise work that streams in and out

    def copies_of_sums(self, together: int) -> int:
        """Accumulators of each of so many sums that share a loop."""
        return self.sums[together - 1] if 0 < together <= len(self.sums) else 1


BLOCKS, CORE = Blocks(), Core()


@dataclass(frozen=True)
class Target:
    """Data about a device that lowering and the analytic heuristics use."""

    name: str
    vector_bytes: int = 0  # width of a vector register; 0 where there is no vector type
    vector_registers: int = 16
    threads: int = 0  # workers that a THREAD range is split over; 0 where kernels have no threads of their own
    local_bytes: int = 1 << 62  # local memory that a kernel's stages may fill; any number where it is main memory
    l1_bytes: int = 32 << 10  # of the caches of a core
    l2_bytes: int = 1 << 20
    dtypes: frozenset[DType] = field(  # element types that arithmetic works on directly; others are widened
        default_factory=lambda: frozenset(set(dtypes.all) - {dtypes.float16, dtypes.bfloat16}))
    storage: frozenset[DType] = field(default_factory=lambda: frozenset(dtypes.all))
    fma: bool = False  # MULADD is one instruction, which rounds once
    scales: bool = False  # SCALE is one instruction
    masks: bool = False  # each lane of a vector is loaded under a condition of its own
    exp2s: bool = False  # EXP2 of a float32 is one instruction, off by 2 places at most; with ``fma`` only
    rough: bool = False  # functions of float32 that are ``ROUGH`` are instructions; only with ``exp2s``
    units: tuple[MatrixUnit, ...] = ()  # the matrix units it has, the preferred first
    block_threads: int = 0  # threads that a block may have, with local memory of their own and barriers; 0: no blocks
    warp: int = 0  # threads of a block that hand each other values without memory; 0: they cannot
    matches: bool = False  # threads of a warp find those with the same key
    matrix_loads: bool = False  # warps load matrices of 8 × 8 elements of 16 bits from local memory
    bulk_copy: int = 0  # one thread copies boxes of memory whose rows begin at multiples of so many bytes; 0: none does
    ring_bytes: int = 0  # local memory that a block with rings may fill
    block_registers: int = 0  # that a block's threads may share out among themselves; 0: all have the same
    filling_registers: int = 32  # that a thread needs which only issues copies
    cores: int = 1  # what blocks of a grid are spread over
    resident: int = 2048  # threads that each of them holds at a time
    clock: float = 2.5e9  # cycles per second, by which a price in cycles becomes a time
    launches_early: bool = False  # blocks of a kernel may come before the last one has ended, and wait for that
    replays: int = 4  # graphs of one program that are kept, each for the addresses that it was made for
    parallel: Role = Role.LOOP  # what independent iterations are from the start: loops, or axes of a grid of blocks
    costs: Costs = CORE_COSTS  # what the scheduler weighs
    blocks: Blocks = BLOCKS  # how work is shared out among the threads of blocks
    core: Core = CORE  # what one core is good for

    @functools.cached_property
    def key(self) -> str:
        """All fields as text, the same in every process."""
        values = ((f.name, getattr(self, f.name)) for f in fields(self))
        return ",".join(f"{n}={sorted(d.name for d in v) if isinstance(v, frozenset) else repr(v)}" for n, v in values)


class Renderer:
    """Base of all renderers: ``render`` writes one kernel as source text. ``comment`` begins a comment in it."""

    comment: ClassVar[str] = "//"
    numbers: dict[UOp, int] | None = None  # of a program whose lines are to be told apart

    def __init__(self, target: Target) -> None:
        self.target = target

    def mark(self, u: UOp) -> str:
        """What ends the lines of a UOp: nothing, but for ``lines``."""
        return "" if self.numbers is None else f"\0{self.numbers.get(u, -1)}"

    def lines(self, name: str, program: Sequence[UOp]) -> list[tuple[str, UOp | None]]:
        """The lines of ``render``, each with the UOp that it is written for; None where it is for all."""
        marked = copy.copy(self)
        marked.numbers = {u: n for n, u in enumerate(program)}
        found = []
        for line in marked.render(name, program).split("\n"):
            text, _, number = line.partition("\0")
            found.append((text, program[int(number)] if number and number != "-1" else None))
        return found

    def render(self, name: str, program: Sequence[UOp]) -> str:
        """Source text of the kernel ``name``."""
        raise NotImplementedError

    def supported_dtypes(self) -> set[DType]:
        """Element types that tensors on the device may have; floats narrower than it computes with are widened."""
        return {*self.target.storage, *dtypes.fp8s}

    def key(self) -> str:
        """All that changes the text for one program."""
        return f"{type(self).__name__}:{self.target.key}"


def near_bytes(u: UOp) -> int:
    """Bytes that a DEFINE_LOCAL or DEFINE_RING takes of local memory, in whole cache lines."""
    size = 8 * u.arg[1] if u.op is Ops.DEFINE_RING else int(u.arg[1]) * u.dtype.itemsize
    return -(-size // 64) * 64


def local_bytes(program: Sequence[UOp]) -> int:
    """Local memory that a program's stages and rings fill, each on its own cache lines."""
    return sum(near_bytes(u) for u in program if u.op in (Ops.DEFINE_LOCAL, Ops.DEFINE_RING))


def specials(program: Sequence[UOp]) -> dict[str, int]:
    """``gidx0``, ``lidx0``, … with their sizes."""
    return {u.arg[0]: u.arg[1] for u in program if u.op is Ops.SPECIAL and isinstance(u.arg, tuple)}


def launch_size(program: Sequence[UOp], prefix: str) -> list[int]:
    """The sizes of ``gidx0``, ``gidx1``, … (blocks) or ``lidx0``, … (threads) that a program asks the device for."""
    return [size for name, size in sorted(specials(program).items()) if name.startswith(prefix)]


def mentions(text: str, name: str) -> bool:
    """Whether a text has a name in it, as a word."""
    return name in text and re.search(rf"\b{name}\b", text) is not None  # few are there: a look at letters is quick


def beside_zero(node: UOp) -> bool:
    """Return True if this is a float's MAX or MIN with a constant 0: one comparison, which keeps NaN and -0."""
    other = node.src[-1]
    other = other.src[0] if other.op is Ops.VECTORIZE else other
    return node.op in (Ops.MAX, Ops.MIN) and other.op is Ops.CONST and other.dtype.is_float and other.arg == 0


def nonnegative(node: UOp) -> bool:
    """Return True if an index expression can never be negative, so that machine division rounds as ours does."""
    stack, seen = [node], set()
    while stack:
        n = stack.pop()
        if n in seen:
            continue
        seen.add(n)
        if n.op in (Ops.VECTORIZE, Ops.GEP, Ops.ADD, Ops.MUL, Ops.IDIV, Ops.MOD, Ops.MAX, Ops.MIN):
            stack.extend(n.src)
        elif not (n.arg >= 0 if n.op is Ops.CONST else n.op in (Ops.RANGE, Ops.SPECIAL) or n.dtype.kind == "uint"):
            return False
    return True
