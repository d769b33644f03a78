"""Scheduler costs of a target: when values are recomputed, and how reductions and scans are split."""
from __future__ import annotations

from typing import NamedTuple


class Cuts(NamedTuple):
    """When long reductions and scans of few rows, and the sums fused into them, are split, and into how many parts."""

    long: int = 1 << 15  # elements per result from which on a reduction with few results is split
    chunks: int = 32  # parts to aim for, at least
    most_chunks: int = 1 << 12  # parts of a sum, at most
    most_others: int = 32  # parts of other reductions (maxima and similar), at most
    few: int = 64  # results that keep all cores busy without splitting; two per core at least
    few_products: int = 1 << 16  # the same for results of a contraction
    # results of a contraction per resident thread of a grid that occupy it: each thread computes 64, and a quarter of
    # the resident ones suffice
    thread_products: int = 0
    few_columns: float = 0.125  # the same for column sums, as a share of the resident threads
    least: int = 8  # parts, or steps of a contraction per part, from which on splitting is worth it
    about: bool = False  # True if sums about a mean (variance) are split, too
    column: int = 1 << 62  # elements of a column from which on column reductions are split
    column_threads: int = 4  # threads of a block that share a part of such a column
    scan: int = 1 << 14  # steps from which on a scan is split
    scan_rows: int = 16  # rows of a scan to be split, at most
    scan_blocks: int = 64  # blocks to split a scan into, about; 0: as many as are resident
    scan_step: int = 16  # the steps per block are a multiple of this, where the length allows it
    scan_threads: int = 256  # threads that share the steps of a block of a scan, on a grid
    scan_column: int = 64  # steps of a scan's block that one thread computes in sequence
    scan_waves: int = 2  # blocks of a scan per resident block (waves)
    # Blocks of a scan sum their steps from last to first: the latest elements read are still cached when the second
    # pass starts at the beginning of each block.
    backwards: bool = False
    blocks: int = 16  # row blocks desired for partial sums fused into another kernel
    least_blocks: int = 8  # row blocks at least: work for several cores, but few partial results
    # row blocks extend across the host's axes (64 × 197 rows in blocks of 8) if this gives more than so many times as
    # many blocks
    few_blocks: int = 8
    shared_row: int = 64  # elements of a row from which on the threads of a block share it
    thread_values: int = 0  # elements per thread where threads share rows
    least_row: int = 16  # elements of a row, at least: fewer do not fill vectors
    scatters: bool = False  # True if scatters with too little parallel work are rewritten as sums or sorts
    asked_places: int = 64  # number of places up to which a scatter becomes a sum over all steps per place
    sorted_steps: int = 256  # steps of a scatter from which on sorting is worth it
    segment: int = 32  # steps of a part of a sorted scatter, at least
    # The place count of a sorted scatter is rounded up to this multiple: threads may look up places beyond the last.
    asked_beyond: int = 1 << 10


CUTS_FOR_CORES = Cuts(thread_products=16, most_others=1 << 12, about=True, column=1 << 10, scan_blocks=0,
                      backwards=True, thread_values=8, scatters=True)  # for a grid, whose cores need to be filled


class Costs(NamedTuple):
    """Scheduler costs: when a value is recomputed instead of stored, and how work is split."""

    recompute: int = 48  # operations per element up to which a value is recomputed by all of its kernels but one
    light: int = 12  # the same for a value of small reductions that is stored in any case
    places: int = 128  # operations per element for recomputing a value at several places of one kernel, at most
    windows: int = 16  # the same for windows, whose outputs seldom fill vectors
    unpartitioned: int = 16  # the same for several places of a kernel with reductions: its loops cannot be partitioned
    short_row: int = 16  # elements of a row up to which its loop is unrolled, so that it has no vectors
    scalar: int = 8  # the same for a value that is computed without vectors, at most
    # An element that a kernel accesses across memory, relative to one along it: copying 4×56×56×64 floats to channels
    # first takes 4 times as long as in their order (Zen 4). 0: each value is stored over its own axes.
    across: int = 4
    join: int = 64  # operations per element of a gather or concatenation, whose loads are one per element
    operand: int = 12  # operations per element of a value that a contraction reads many times, at most
    # The same, times the number of reads of an element: x.relu() @ w for 512 × 768 elements on Zen 3 takes 28 us more
    # with 32 columns, and 65 if the relu is stored; with 512 columns 1.69 ms and 0.17
    operand_reads: int = 128
    block_factors: bool = True  # scales of blocks of packed elements are computed by the sum that reads them
    rows: int = 8  # rows from which on a multi-pass kernel has enough parallelism for several cores
    # the same if a row is not contiguous in memory, as a channel of a batch of images: separate kernels then access
    # each value along its own memory. On a grid, by a step of ResNet-50 (H100): 62 ms with 128, 56.6 with 4096
    rows_apart: int = 8
    small_work: int = 1 << 14  # elements below which parallelism does not matter
    # Products per element up to which a row-by-column value (score matrix) is recomputed instead of stored.
    stream_depth: int = 128
    streams: bool = True  # a contraction of a function of a contraction becomes one kernel
    # The same only for factors of at most ``chain_bytes`` bytes per element and an online softmax, with at least
    # ``chain_rows`` rows that share the other factor: back-to-back contractions in a matrix unit's registers. 0: never.
    chain_bytes: int = 0
    chain_rows: int = 32
    # columns of the result, at most, of such a chain whose factor has no row statistics, only given values per row or
    # column (gradients of attention): its accumulators and those of its inner contractions share registers. 0: never
    chain_width: int = 0
    # sums over the rows that another kernel traverses are fused into it, one partial sum per block of rows
    sums_beside: bool = True
    sum_steps: int = 16  # rows per such block, at least: with fewer, partial sums cost too much memory traffic
    maps_beside: bool = False  # other elementwise results of the same rows are fused into that kernel, too
    chunk: int = 3 << 9  # products per part of a split contraction
    sum_chunk: int = 1 << 14  # elements per part of a split sum
    # The same where no parts of equal length suit the size. No power of two for vectors: their lanes may lie in parts
    # side by side, which would all fall into one set of the caches (Zen 3: 34 against 13 ms for 3000017 × 3 elements).
    uneven_chunk: int = (1 << 14) - 64
    copied: int = 8  # bytes of kernel memory traffic that take as long as one byte from another device
    rounds: int = 1 << 18  # bytes of a collective's value from which on less traffic is worth more rounds
    digits: range = range(4, 12)  # bits per digit of a radix sort: counters stay in L1, or in registers
    piece: int = 16  # elements of a sort that are compared with each other, where parts are sorted side by side
    # comparisons per byte of a key up to which a sort compares all pairs of each row: wider keys have more digits
    compared: int = 0
    balance: float = 77.0  # products of a staged matrix unit per byte of memory traffic
    launch: float = 1e9  # cost of a kernel launch, in such products
    sector: int = 32  # bytes of a memory sector
    # bytes of a run from which on it gets a loop, where loads divide a row into runs that lie apart in memory; cores
    # cut the row's loop where it goes on to the next run instead
    run: int = 1 << 62
    split_lines: float = 0.25  # relative slowdown of a product whose operand rows are not aligned to sectors
    # slowdown of a product whose operands cannot be copied as boxes (TMA), so that another unit computes it
    no_boxes: float = 6.0
    # the same per element of the sum that a block computes: blocks do not hide the latency of their loads
    no_boxes_step: float = 4.7e6
    cuts: Cuts = Cuts()  # how reductions and scans are split


CORE_COSTS = Costs()
GRID_COSTS = Costs(block_factors=False, across=0, light=48, windows=48, unpartitioned=128, short_row=0, scalar=1 << 62,
                   operand_reads=1 << 62, join=0, rows=128, rows_apart=1 << 12, streams=False, chain_bytes=2,
                   sum_steps=8, maps_beside=True, chunk=1 << 9, sum_chunk=1 << 12, uneven_chunk=1 << 12,
                   digits=range(4, 7), run=32, compared=1 << 23)
RANKED_COSTS = GRID_COSTS._replace(digits=range(8, 9), piece=12 << 8)  # one thread per digit ranks a part
