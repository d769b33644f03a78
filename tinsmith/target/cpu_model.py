"""The cost models of a CPU core (``CpuModel``) and of a GPU (``GpuModel``).

``CpuModel`` has caches, prefetch and the costs of tiles, with the place of each measurement. ``GpuModel`` has thread
blocks, registers and local memory, and the costs of their use.
"""
from __future__ import annotations

from typing import NamedTuple


class TileCosts(NamedTuple):
    """Costs of a CPU contraction other than its multiply-adds, in cycles of one core; measured on a core with AVX-512.
    """

    scalar_line: tuple[float, float] = (0.4, 2.0)  # a cache line of scalars from L2, from beyond
    panel_vector: float = 0.14  # a panel vector from L2
    # a row of a tile's result: in cache, or if the result is several times the L2
    result_row: tuple[float, float] = (4, 26)
    # An element of a store that is strided along the lanes: transposed in blocks, or one by one.
    stored_across: tuple[float, float] = (0.4, 1.2)
    step: tuple[float, float] = (2.0, 0.5)  # minimum cycles per step of a tile, and cycles besides the products
    used: float = 0.6  # share of a partial last tile's time that is saved with the elements left out
    row: float = 1.5  # efficiency of a tile with m rows: m / (m + row)
    # Slowdown of a tile whose steps cannot be unrolled because registers would spill.
    spilled: float = 1.7
    # (steps, slowdown) of a sum of at least that many steps, all of which read lines of the same few cache sets (set
    # conflicts); measured: 7.1 against 5.3 ms for 2048 × 256 results of 512 products.
    same_sets: tuple[int, float] = (128, 1.3)
    near: float = 0.7  # share of L1 that a panel may fill to stay there
    # An element of an unpacked panel: from rows near each other, from rows far apart, and from rows that conflict in
    # the sets of L2.
    as_it_lies: tuple[float, float, float] = (0.0, 0.0094, 0.019)
    widened: tuple[float, float] = (1.2, 1.0)  # widening 16-bit floats of an unpacked panel: a vector, a scalar
    lines_of_set: int = 32  # rows per cache set that double the cost of packing an element across the lanes
    along: float = 0.15  # packing an element, if memory is contiguous along the lanes
    across: tuple[float, float] = (0.9, 1.5)  # packing an element across the lanes: transposed in blocks, or one by one
    scattered: float = 12.0  # packing an element if each needs its own cache line
    copied: float = 1.0  # copying a scalar to local memory, from strided pieces
    # packing an element into a matrix unit's order: memory contiguous along it, or not.
    unit_order: tuple[float, float] = (0.4, 1.2)
    result: float = 0.4  # an element of a unit's result, from tile to memory
    # Factors on ``result`` if memory is not contiguous along the columns: (side of blocks that are transposed, factor),
    # the largest side first.
    turned: tuple[tuple[int, float], ...] = ((8, 1.5), (4, 2.0), (1, 3.0))


class CpuModel(NamedTuple):
    """Registers, caches and tuning data of a CPU core."""

    issue: int = 2  # vector instructions, or vector loads, issued per cycle
    latency: int = 4  # cycles of latency of an addition
    # Bytes per second: from L2, from the shared L3 of ``l3_bytes``, from memory to one core, and from memory to all
    # cores. Defaults of a modest machine without measurements.
    bandwidths: tuple[float, float, float, float] = (60e9, 20e9, 10e9, 12e9)
    l3_bytes: int = 16 << 20  # bytes of L3, shared by all cores
    line: int = 64  # bytes per cache line
    page: int = 4 << 10  # bytes between addresses that fall into the same set of L1
    ways: int = 16  # associativity of L2
    # Cycles per lane, but the first, of a vector access: contiguous, equal for all lanes, within adjacent vectors
    # (small stride), strided; and of scalar access.
    reads: tuple[float, ...] = (0.0, 0.375, 0.125, 1.0, 0.5)
    writes: tuple[float, ...] = (0.0, 0.75, 1.75, 1.75, 0.75)
    tile: TileCosts = TileCosts()  # costs of contractions
    tile_rows: int = 8  # rows of a register tile of computed operands
    whole_steps: int = 6  # reductions up to this length are fully unrolled in a register tile
    wide: int = 4  # panel vectors from which on unrolling by two is enough (else four)
    largest_panel: int = 4 << 20  # bytes of a packed panel, at most
    pieces: float = 1.25  # slowdown per step of a partitioned loop (each part duplicates the code)
    peeled: int = 4  # tiles per row up to which the first and last are peeled to skip what a window does not cover
    shortest_lanes: int = 4  # elements of a row, or copies, from which on vectorization is worth it
    # Register copies of a step, at most: elements of a window, output positions of an input, inputs of a stack.
    written_out: int = 16
    window_step: int = 4  # stride of a window between lanes, at most
    # Iterations, at most, that are unrolled so that they share work (the gates and states of a recurrent cell) if they
    # share at least ``shared_work`` operations per element.
    shared_copies: int = 6
    shared_work: int = 16
    # Rows that are summed before they are added to a sum in memory, so that this is read and written less often.
    steps_together: tuple[int, ...] = (4, 2)
    separate_sums: int = 8  # separate accumulators of an unrolled reduction, at most
    shared_sums: int = 24  # accumulators of reductions that share a loop, at most: more would spill
    rows_beside: int = 4  # rows reduced side by side (interleaved)
    apart: tuple[float, float] = (0.75, 1.9)  # additional cycles per vector of interleaved rows: in L2, beyond
    # Share of the latency at the end of a row that the next row does not hide, for rows with one pass.
    waits: float = 0.3
    dear: int = 12  # operations per element from which on a value is staged in local memory rather than recomputed
    short_row: int = 64  # elements of a row from which on it is worth a loop for staging
    rows_kept: int = 2  # rows staged in local memory at a time, per reduction
    even: int = 4  # blocks per worker from which on an imbalance of one block does not matter
    pair_bytes: int = 128  # bytes of two adjacent lines, which the prefetcher fetches, and stores best fill, together
    accumulators: int = 16  # accumulators of a register tile with all columns of a result, at most
    # Columns of a block of an online reduction over long rows: (least, most, step).
    row_block: tuple[int, int, int] = (64, 256, 16)
    # slowdown of rows in blocks with rescaled running sums (online softmax), relative to full rows
    rescaling: float = 1.2
    visible: float = 0.5  # expected share of blocks that a mask leaves
    spilled: float = 1.5  # slowdown of full rows that do not fit half of L2
    # Side lengths to try of a tile that several sums accumulate into: multiples of register tiles; with smaller ones,
    # results would be read and written too often.
    tile_blocks: range = range(16, 72, 8)
    tile_vectors: int = 2  # adjacent vectors in the register tile of a computed-operand contraction
    tile_steps: int = 4  # unrolled steps there
    serial_work: int = 1 << 14  # elements × operations below which waking a second core costs more than it saves
    # Accumulators per sum, if one sum, two sums, … share the loop: independent chains hide the latency of additions.
    # One if more sums share it.
    sums: tuple[int, ...] = (4, 4, 2, 2)
    # Scans interleaved, at most: the latency of an addition in cycles; more would read too many lines of one cache set.
    chains: int = 4
    streamed: int = 32 << 20  # bytes of results from which on stores bypass the caches (non-temporal)
    # Prefetch distance, in rows, of a panel that is used too little to be packed.
    rows_ahead: int = 8
    rows_apart: int = 1 << 10  # minimum bytes between such rows
    least_ahead: int = 16  # minimum iterations of a loop with prefetch
    bytes_ahead: int = 4 << 10  # prefetch distance, in bytes, of a row that streams through a sum
    streams_ahead: int = 2 << 10  # prefetch distance, in bytes, of streaming elementwise work

    def copies_of_sums(self, together: int) -> int:
        """Return the accumulators per sum if ``together`` sums share a loop."""
        return self.sums[together - 1] if 0 < together <= len(self.sums) else 1

CORE = CpuModel()


class GpuModel(NamedTuple):
    """Tuning data for kernels that run as a grid of thread blocks."""

    threads: int = 128  # threads per block by default
    most_threads: int = 512  # threads per block if there are many rows or elements
    lanes: int = 8  # elements per vector access at most, as far as a vector register holds them
    long: int = 64  # minimum length of a reduction that threads of a block share
    short: int = 16  # maximum length of a reduction that one thread computes in registers
    turns: int = 2  # desired vectors of a row per thread
    # log2 deviation from the desired vectors per thread that doubles the price: (few rows, many rows)
    turn: tuple[float, float] = (4, 32)
    rows: int = 16  # rows per core from which on there are enough for all cores, even with few threads per row
    row_values: int = 1 << 16  # elements of a row that a block keeps in registers, at most
    thread_values: int = 80  # elements of a row that a thread keeps in registers, at most
    running: int = 256  # threads that share the steps of a scan, at most
    loads: int = 4  # loads in flight per thread in a loop; twice as many down a column
    columns: int = 32  # threads along a row where threads share the way down the columns
    ways: int = 8  # threads that share one column, at most
    together: int = 2  # rows or windows that one thread computes at a time
    tile: int = 64  # side of a tile that is transposed through local memory, in elements
    tile_rows: int = 8  # elements of such a tile per thread
    enough: int = 1 << 13  # results from which on each gets its own thread, without shared reductions
    vectors: int = 1 << 9  # results from which on a thread computes several of them
    # Register copies (rows, columns) of a contraction, the first that leaves work for all threads is chosen.
    copies: tuple[tuple[int, int], ...] = ((8, 4), (4, 4), (4, 2), (2, 2))
    in_vain: int = 1 << 16  # idle blocks that may be launched if a size is known only at run time
    early: int = 32  # values that a thread may load before the barrier ahead of their use
    beside: int = 8  # rows of a fragment for which a thread reads other operands at a time
    band: int = 16  # rows of tiles per band: blocks go down a band, then to its next column (L2 reuse)
    # threads per block to try for a contraction's tile; empty: no such tiles
    product_threads: tuple[int, ...] = (64, 128, 256)
    sums: tuple[tuple[int, int], ...] = ((4, 4), (4, 8), (8, 8))  # rows and columns of results per thread to try
    slices: tuple[int, ...] = (16, 8)  # steps of the reduction (k) per stage in local memory, to try
    least: int = 16  # rows, columns and steps from which on a tile in local memory is worth it
    carried: int = 24  # 32-bit words per thread that a software pipeline may have in flight
    fma: int = 128  # multiply-adds per core and cycle
    words: int = 32  # 32-bit words that a core's threads read from local memory per cycle
    copied: int = 4  # instructions to copy one element to local memory
    meeting: int = 24  # cycles of a barrier
    warps: int = 16  # warps per core that hide latencies
    hiding: float = 0.25  # exponent of the slowdown with fewer warps: (warps / resident warps) ** hiding
    result: float = 88.0  # cost of a staged unit's epilogue, in steps of the sum
    after: float = 30.0  # additional cost per operation of the epilogue, in steps of the sum
    alone: float = 2.5  # factor on the epilogue's cost where one ping-pong group executes it alone
    # additional cycles of a staged unit per row of a copied patch (im2col), compared with a longer box
    patch: float = 0.9
    begin: int = 96  # extra steps of a warp-specialized back-to-back loop, whose block waits for its first operands
    units: int = 4  # matrix units per core
    # Register tiles of a unit's fragments per warp to try: (rows, columns).
    fragments: tuple[tuple[int, int], ...] = ((4, 4), (2, 4), (4, 2), (2, 2), (1, 4), (1, 2), (1, 1))
    unit_steps: tuple[int, ...] = (2, 1)  # unit steps per stage in local memory, to try
    warp: int = 32  # threads that local memory serves at a time, for targets without warp shuffles
    access: int = 32  # bytes per core and cycle between threads and memory, in sectors of this size
    bandwidth: int = 16  # bytes per core and cycle of main memory bandwidth
    latency: int = 600  # cycles of latency of a load from main memory
    stores: float = 1.5  # weight of a store, relative to a load, in the choice of the range along adjacent threads
    same: float = 0.25  # weight of an access that is equal for adjacent threads, in that choice
    # factor on the price of a general candidate if a specialized one applies: the estimates are not yet measured
    doubt: float = 3.0

BLOCKS = GpuModel()
