"""The cost model of a CPU core: caches, prefetch and the costs of tiles, with where they were measured."""
from __future__ import annotations

from typing import NamedTuple


class TileCosts(NamedTuple):
    """Costs of a CPU contraction other than its multiply-adds, in cycles of one core; measured on a core with AVX-512.
    """

    # A cache line of scalars: from L2, from beyond, and from more pages than fit half of the first TLB (measured
    # on Zen 3: 8 cycles with 960 pages in all, 24 with 3,200; a convolution of 256 channels along one axis).
    scalar_line: tuple[float, float, float] = (0.4, 2.0, 8.0)
    conflict: float = 1.4  # a scalar whose line was displaced by those of other rows (Zen 3: 14 rows 4 KB apart)
    panel_vector: float = 0.14  # a panel vector from L2
    # a row of a tile's result: in cache, or if the result is several times the L2
    result_row: tuple[float, float] = (4, 26)
    # An element of a store that is strided along the lanes: transposed in blocks, one by one, or one by one to lines
    # that leave the second cache between two of their elements (Zen 3: 3.0 ms for 1.4 M elements).
    stored_across: tuple[float, float, float] = (0.4, 1.2, 5.0)
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
    # packing an element if each needs its own cache line, which stays in the second cache, or not
    scattered: tuple[float, float] = (3.0, 12.0)
    copied: float = 1.0  # copying a scalar to local memory, from strided pieces
    # packing an element into a matrix unit's order: memory contiguous along it, or not.
    unit_order: tuple[float, float] = (0.4, 1.2)
    operation: float = 0.6  # an operation on a vector or scalar of an operand; measured: x.relu() @ w on Zen 3
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
    tlb: int = 64  # entries of the first TLB
    page: int = 4 << 10  # bytes between addresses that fall into the same set of L1
    ways: int = 16  # associativity of L2
    # Cycles per lane, but the first, of a vector access: contiguous, equal for all lanes, within adjacent vectors
    # (small stride), strided; and of scalar access.
    reads: tuple[float, ...] = (0.0, 0.375, 0.125, 1.0, 0.5)
    writes: tuple[float, ...] = (0.0, 0.75, 1.75, 1.75, 0.75)
    close_strides: range = range(2, 9)  # strides at which lanes are selected from full vectors
    tile: TileCosts = TileCosts()  # costs of contractions
    tile_rows: int = 8  # rows of a register tile of computed operands, at most: see Target.tile_rows
    whole_steps: int = 6  # reductions up to this length are fully unrolled in a register tile
    wide: int = 4  # panel vectors from which on unrolling by two is enough (else four)
    largest_panel: int = 4 << 20  # bytes of a packed panel, at most
    pieces: float = 1.25  # slowdown per step of a partitioned loop (each part duplicates the code)
    peeled: int = 4  # tiles per row up to which the first and last are peeled to skip what a window does not cover
    shortest_lanes: int = 4  # elements of a row, or copies, from which on vectorization is worth it
    # Register copies of a step, at most: elements of a window, output positions of an input, inputs of a stack.
    written_out: int = 16
    interleaved: int = 4  # stride of an interleaved range between lanes, at most
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
