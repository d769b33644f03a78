"""What the compiler needs to know of a target, and what every renderer does alike."""
from __future__ import annotations

import copy
import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import ClassVar

from tinsmith.codegen.render.costs import CORE_COSTS, Costs
from tinsmith.codegen.roles import Role
from tinsmith.core.dtypes import DType, dtypes
from tinsmith.ir import Ops, UOp
from tinsmith.ir.units import MatrixUnit


@dataclass(frozen=True)
class Blocks:
    """How work is shared out among the threads of a block.

    Attributes:
        threads: of a block where nothing asks for more.
        most_threads: of a block where there are many of them.
        lanes: of one access, as far as they fit a vector.
        long: elements from which on a reduction is worth sharing; ``short``: of a sum that a thread has in registers.
        turns: vectors of a row for each thread, where there are so many; ``loads`` of one that is only read.
            ``turn``: how many times 2 more or fewer take twice as long, where rows are few or many.
        rows: for each core: enough of them even if each has few threads.
        row_values, thread_values: elements of a row that a block and a thread keep in registers.
        running: threads that share the steps of running values.
        loads: that a thread has under way where it goes through a loop, twice as many down a column.
        columns: threads side by side; ``ways``: how many share the way down.
        together: rows or windows of a thread that are under way at once.
        tile: side of a transposed tile; ``tile_rows``: how much of it a thread writes.
        enough: results from which on every one has a thread of its own; ``vectors``: from which on it has several.
        copies: of a product along a range of each factor, the most that there is work for all threads without.
        in_vain: blocks that may be launched for nothing, for a size known only at run time.
        early: values that a thread has loaded before the barrier ahead of their use.
        beside: rows of a fragment's elements for which a thread reads other memory at a time.
        band: rows of tiles that blocks walk down before they go one column to the right: about a square is under way.
        product_threads: of a block that computes a tile of a contraction; none: no such tiles. ``sums``: rows and
            columns of it that a thread may have; ``slices``: steps of the reduction that local memory holds at a time;
            ``least``: rows, columns and steps that are worth it; ``carried``: words that a thread has on their way.
        fma: multiply-adds that a core starts in a cycle; ``words``: of local memory that its threads read; ``copied``:
            instructions to bring an element there; ``meeting``: cycles of a barrier; ``warps``: that hide latencies.
        result: steps of the sum that a staged unit does while the groups of a tile store its results, and ``after`` one
            operation on each; a group that does so alone, in turn with others, takes ``alone`` times as long.
        units: matrix units that work at once; ``fragments``: rows and columns of a unit's tiles that a warp may have;
            ``unit_steps``: of a unit that local memory holds at a time.
        hiding: a core with fewer of them takes longer, by this power of how many times fewer.
        warp: threads that memory serves together, where they hand each other nothing.
        access: bytes that pass between a core's threads and memory in a cycle, whole pieces of it; ``bandwidth``: a
            core's share of main memory's; ``latency``: cycles until what is loaded is there.
        stores: how many loads each counts for where neighbours are chosen; ``same``: what is the same for them.
        doubt: how much more a way counts where a more special one suits: no estimate of these has been measured.
    """

    threads: int = 128
    most_threads: int = 512
    lanes: int = 8
    long: int = 64
    short: int = 16
    turns: int = 2
    turn: tuple[float, float] = (4, 32)
    rows: int = 16
    row_values: int = 1 << 16
    thread_values: int = 80
    running: int = 256
    loads: int = 4
    columns: int = 32
    ways: int = 8
    together: int = 2
    tile: int = 64
    tile_rows: int = 8
    enough: int = 1 << 13
    vectors: int = 1 << 9
    copies: tuple[tuple[int, int], ...] = ((8, 4), (4, 4), (4, 2), (2, 2))
    in_vain: int = 1 << 16
    early: int = 32
    beside: int = 8
    band: int = 16
    product_threads: tuple[int, ...] = (64, 128, 256)
    sums: tuple[tuple[int, int], ...] = ((4, 4), (4, 8), (8, 8))
    slices: tuple[int, ...] = (16, 8)
    least: int = 16
    carried: int = 24
    fma: int = 128
    words: int = 32
    copied: int = 4
    meeting: int = 24
    warps: int = 16
    hiding: float = 0.25
    result: float = 88.0
    after: float = 30.0
    alone: float = 2.5
    units: int = 4
    fragments: tuple[tuple[int, int], ...] = ((4, 4), (2, 4), (4, 2), (2, 2), (1, 4), (1, 2), (1, 1))
    unit_steps: tuple[int, ...] = (2, 1)
    warp: int = 32
    access: int = 32
    bandwidth: int = 16
    latency: int = 600
    stores: float = 1.5
    same: float = 0.25
    doubt: float = 3.0


@dataclass(frozen=True)
class TileCosts:
    """What contractions wait for beside their products, in cycles of one core; measured on a core with AVX-512.

    Attributes:
        scalar_line: a line of scalars from the second cache, and from beyond.
        panel_vector: a vector of a panel from the second cache.
        result_row: each row of a tile in the result, and in one of several times the second cache.
        stored_across: an element whose lanes lie apart in the result: in blocks that are transposed, or not.
        step: cycles of a step of a tile at least, and those beside its products.
        used: the share of a last tile's time that falls with what is left out of it.
        row: a tile of m rows is worth m / (m + row).
        spilled: how many times as long a tile takes whose steps cannot be written out, as registers would run out.
        same_sets: where every step of a sum of so many reads lines of the same few sets of a cache: so many times as
            long; measured: 7.1 against 5.3 ms for 2048 × 256 results of 512 products.
        near: the share of the first cache that a panel may fill to stay there.
        packed_from: rows of a tile's height that a panel serves before it is worth packing: of 16-bit floats; where it
            crowds the second cache's sets; where its rows lie far apart.
        unpacked: how many times as long where it is read again and again as it lies.
        lines_of_set: rows in one set of a cache that make an element twice as dear to pack across the lanes.
        along, across, scattered: an element to be packed along the lanes; across them, in blocks that are transposed or
            one by one; where each needs a line of memory.
        copied: a scalar to be copied to local memory, in pieces that lie apart.
        unit_order: an element to be brought into the order of a matrix unit, where memory runs along it, or not.
        result: an element of a unit's result, from tile to memory; ``turned``: times as many where memory does not run
            along its columns: in blocks of so many rows and columns that are transposed, the largest first.
    """

    scalar_line: tuple[float, float] = (0.4, 2.0)
    panel_vector: float = 0.14
    result_row: tuple[float, float] = (4, 26)
    stored_across: tuple[float, float] = (0.4, 1.2)
    step: tuple[float, float] = (2.0, 0.5)
    used: float = 0.6
    row: float = 1.5
    spilled: float = 1.7
    same_sets: tuple[int, float] = (128, 1.3)
    near: float = 0.7
    packed_from: tuple[int, int, int] = (2, 8, 16)
    unpacked: float = 1.02
    lines_of_set: int = 32
    along: float = 0.15
    across: tuple[float, float] = (0.9, 1.5)
    scattered: float = 12.0
    copied: float = 1.0
    unit_order: tuple[float, float] = (0.4, 1.2)
    result: float = 0.4
    turned: tuple[tuple[int, float], ...] = ((8, 1.5), (4, 2.0), (1, 3.0))


@dataclass(frozen=True)
class Core:
    """What the registers and caches of a core are good for.

    Attributes:
        issue: vector instructions, or vector loads, that start per cycle; ``latency``: cycles from one addition to the
            next that needs it.
        bandwidths: bytes per second from its second cache, from one of ``l3_bytes`` that all share, and from memory, to
            one core and to all of them: of a modest machine, where nobody has measured.
        line: bytes of a cache line; ``page``: bytes after which a line falls into the same set of the first cache;
            ``ways``: lines of a set of the second.
        reads, writes: what each lane but the first of a vector costs, in cycles, where memory runs along the lanes, is
            the same for all, is shared by neighbours or a few elements apart, or lies far apart; and where there are no
            lanes.
        tile: what contractions wait for.
        tile_rows: of a register tile of computed operands.
        whole_steps: of a reduction up to which all are written out in a register tile; ``wide``: vectors of a panel
            from which on two steps are enough.
        largest_panel: bytes of a packed panel.
        pieces: how many times as long a step takes where a loop is cut into pieces: each is code of its own.
        peeled: tiles of a row of which the first and last leave out what a window does not cover.
        shortest_lanes: elements of a row, or copies, that are worth a vector of their own.
        written_out: copies of a step: elements of a window, places that it has in the output, inputs of a stack;
            ``window_step``: elements from a lane to the next where windows are read.
        shared_copies: iterations that are written out so that they share work, the gates and states of a recurrent
            cell, where it is at least ``shared_work`` operations per element.
        steps_together: rows whose sum is added to one that stays in memory, which is then read and written less.
        separate_sums: accumulators of a reduction up to which steps written out have their own; ``shared_sums``: those
            of reductions that share a loop: more would not stay in registers.
        rows_beside: rows that several passes go through side by side; ``apart``: cycles that a vector takes more then.
        dear: operations per element from which a second computation costs more than a look into local memory.
        short_row: elements of a row that are not worth a loop of their own.
        rows_kept: at once in local memory.
        even: blocks per worker from which it does not matter that the workers' shares differ by one.
        pair_bytes: lines that are fetched, and so are best written, together.
        accumulators: of register tiles with all columns of a result.
        row_block: columns of a block of long rows, at least and at most, and how far apart these numbers are.
        rescaling: how many times as long rows take block by block, with running sums, as whole ones; ``visible``: the
            share of blocks that a mask leaves; ``spilled``: how many times as long whole rows take that do not fit half
            of the second cache.
        tile_blocks: how long the sides of a tile may be that several sums take in: whole register tiles; of shorter
            ones, results would be read and written too often.
        tile_vectors: beside each other in a register tile of a stream, with so many ``tile_steps`` written out.
        serial_work: elements × operations below which waking a second core costs more than it saves.
        sums: accumulators of a sum, the first where one sum has the loop, the next where two share it, …: chains that
            hide an addition's latency; one where more sums share it.
        chains: of running values, side by side: as many as an addition takes cycles; more would read too many lines of
            one cache set.
        streamed: bytes of results from which they are written past the caches: they would not stay there.
        rows_ahead: how far ahead the rows of a panel are fetched that is too little used to be packed, which lie
            ``rows_apart`` bytes apart at least; ``bytes_ahead``: a row that streams through a sum; ``streams_ahead``:
            elementwise work that streams in and out. ``least_ahead``: steps of a loop that is worth it.
    """

    issue: int = 2
    latency: int = 4
    bandwidths: tuple[float, float, float, float] = (60e9, 20e9, 10e9, 12e9)
    l3_bytes: int = 16 << 20
    line: int = 64
    page: int = 4 << 10
    ways: int = 16
    reads: tuple[float, ...] = (0.0, 0.375, 0.125, 1.0, 0.5)
    writes: tuple[float, ...] = (0.0, 0.75, 1.75, 1.75, 0.75)
    tile: TileCosts = TileCosts()
    tile_rows: int = 8
    whole_steps: int = 6
    wide: int = 4
    largest_panel: int = 4 << 20
    pieces: float = 1.25
    peeled: int = 4
    shortest_lanes: int = 4
    written_out: int = 16
    window_step: int = 4
    shared_copies: int = 6
    shared_work: int = 16
    steps_together: tuple[int, ...] = (4, 2)
    separate_sums: int = 8
    shared_sums: int = 24
    rows_beside: int = 4
    apart: float = 0.75
    dear: int = 12
    short_row: int = 64
    rows_kept: int = 2
    even: int = 4
    pair_bytes: int = 128
    accumulators: int = 16
    row_block: tuple[int, int, int] = (64, 256, 16)
    rescaling: float = 1.2
    visible: float = 0.5
    spilled: float = 1.5
    tile_blocks: range = range(16, 72, 8)
    tile_vectors: int = 2
    tile_steps: int = 4
    serial_work: int = 1 << 14
    sums: tuple[int, ...] = (4, 4, 2, 2)
    chains: int = 4
    streamed: int = 32 << 20
    rows_ahead: int = 8
    rows_apart: int = 1 << 10
    least_ahead: int = 16
    bytes_ahead: int = 4 << 10
    streams_ahead: int = 2 << 10

    def copies_of_sums(self, together: int) -> int:
        """Accumulators of each of so many sums that share a loop."""
        return self.sums[together - 1] if 0 < together <= len(self.sums) else 1


@dataclass(frozen=True)
class Target:
    """Data about a device that lowering and the analytic heuristics use.

    Attributes:
        vector_bytes: width of a vector register; 0 where there is no vector type.
        vector_registers: how many of them.
        threads: workers that a THREAD range is split over; 0 where kernels have no threads of their own.
        local_bytes: local memory that a kernel's stages may fill; any number where it is part of main memory.
        l1_bytes, l2_bytes: caches per core.
        dtypes: element types that arithmetic works on directly; others are widened.
        fma: MULADD is one instruction, which rounds once.
        scales: SCALE is one instruction.
        masks: each lane of a vector is loaded under a condition of its own.
        exp2s: EXP2 of a float32 is one, off by 2 places at most; with ``fma`` only.
        rough: functions of float32 that are ``ROUGH`` are instructions; only with ``exp2s``.
        units: the matrix units it has, the preferred first.
        block_threads: threads that a block may have, with local memory of their own and barriers; 0: no blocks.
        warp: threads of a block that hand each other values without memory; 0: they cannot.
        matches: threads of a warp find those with the same key.
        matrix_loads: warps load matrices of 8 × 8 elements of 16 bits from local memory.
        bulk_copy: one thread copies boxes of memory whose rows begin at multiples of so many bytes; 0: none does.
        ring_bytes: local memory that a block with rings may fill.
        block_registers: that a block's threads may share out among themselves; 0: all have the same.
        filling_registers: that a thread needs which only issues copies.
        cores: what blocks of a grid are spread over, each of which holds ``resident`` threads at a time.
        clock: cycles per second, by which a price in cycles becomes a time.
        launches_early: blocks of a kernel may come before the last one has ended, and wait for that themselves.
        replays: graphs of one program that are kept, each for the addresses that it was made for.
        parallel: what loops of independent iterations are from the start: loops, or axes of a grid of blocks.
        costs: what the scheduler weighs.
        blocks: how work is shared out among the threads of blocks; ``core``: what one core is good for.
    """

    name: str
    vector_bytes: int = 0
    vector_registers: int = 16
    threads: int = 0
    local_bytes: int = 1 << 62
    l1_bytes: int = 32 << 10
    l2_bytes: int = 1 << 20
    dtypes: frozenset[DType] = field(
        default_factory=lambda: frozenset(set(dtypes.all) - {dtypes.float16, dtypes.bfloat16}))
    storage: frozenset[DType] = field(default_factory=lambda: frozenset(dtypes.all))
    fma: bool = False
    scales: bool = False
    masks: bool = False
    exp2s: bool = False
    rough: bool = False
    units: tuple[MatrixUnit, ...] = ()
    block_threads: int = 0
    warp: int = 0
    matches: bool = False
    matrix_loads: bool = False
    bulk_copy: int = 0
    ring_bytes: int = 0
    block_registers: int = 0
    filling_registers: int = 32
    cores: int = 1
    resident: int = 2048
    clock: float = 2.5e9
    launches_early: bool = False
    replays: int = 4
    parallel: Role = Role.LOOP
    costs: Costs = CORE_COSTS
    blocks: Blocks = Blocks()
    core: Core = Core()

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


def mentions(text: str, name: str) -> bool:
    """Whether a text has a name in it, as a word."""
    return name in text and re.search(rf"\b{name}\b", text) is not None  # few are there: a look at letters is quick


def nonnegative(node: UOp) -> bool:
    """Whether an index expression can never be negative, so that machine division rounds as ours does."""
    if node.op is Ops.CONST:
        return bool(node.arg >= 0)
    if node.op in (Ops.RANGE, Ops.SPECIAL):
        return True
    if node.op in (Ops.VECTORIZE, Ops.GEP):
        return all(nonnegative(s) for s in node.src)
    if node.op in (Ops.ADD, Ops.MUL, Ops.IDIV, Ops.MOD, Ops.MAX, Ops.MIN):
        return all(nonnegative(s) for s in node.src)
    return bool(node.dtype.kind == "uint")
