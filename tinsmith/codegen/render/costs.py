"""What the scheduler weighs, as rows of a target: when values are computed again, and how work is cut."""
from __future__ import annotations

from typing import NamedTuple


class Cuts(NamedTuple):
    """When long reductions and scans of few rows, and sums beside them, are cut, and into how many pieces."""

    long: int = 1 << 15  # elements per result from which a reduction with few results is cut
    chunks: int = 32  # pieces of it
    most_chunks: int = 1 << 12
    most_others: int = 32  # at most, of maxima and the like
    few: int = 64  # results that keep all cores busy by themselves, two for each core at least
    few_products: int = 1 << 16  # those of a contraction
    few_columns: float = 0.125  # those of sums down columns, as a share of the threads under way
    least: int = 8  # chunks that are worth it, or steps of a contraction that are worth chunks
    about: bool = False  # sums about a mean are cut, too
    column: int = 1 << 62  # elements of a column from which on columns are cut
    column_threads: int = 4  # threads of a block that share the way down such a column
    scan: int = 1 << 14  # steps from which a scan is cut
    scan_rows: int = 16  # of so many rows at most
    scan_blocks: int = 64  # blocks that it is cut into, about; 0: as many as are under way together
    scan_step: int = 16  # blocks hold whole vectors of so many steps where the length allows it
    scan_threads: int = 256  # threads that share the steps of a block where there are cores to fill
    scan_column: int = 64  # steps of a block that one thread goes through
    scan_waves: int = 2  # blocks for each that is under way at a time
    # Blocks add up their steps from the last to the first: what was read last is still near when they come to where
    # each of them starts.
    backwards: bool = False
    blocks: int = 16  # of rows, wished where sums are added up beside them
    least_blocks: int = 8  # at least: work for several cores, and few partial results to sum up
    shared_row: int = 64  # elements of a row that the threads of a block share
    thread_values: int = 0  # those that each holds, where they go through rows together
    least_row: int = 16  # fewer are no whole vectors
    scatters: bool = False  # they become sums where they would keep few threads busy
    asked_places: int = 64  # places up to which every place of a scatter asks every step
    sorted_steps: int = 256  # steps of a scatter that are worth sorting
    # Their places come in multiples of this, since threads may ask for the steps of places that do not exist.
    asked_beyond: int = 1 << 10


CUTS_FOR_CORES = Cuts(most_others=1 << 12, about=True, column=1 << 10, scan_blocks=0, backwards=True, thread_values=8,
                      scatters=True)  # of a grid, which are to be filled


class Costs(NamedTuple):
    """What the scheduler weighs: when a value is computed again, and when work is cut into pieces."""

    recompute: int = 48  # operations per element up to which all kernels but one that read a value compute it again
    light: int = 12  # the same for a value of small reductions that have memory in any case
    places: int = 128  # operations per element spent on computing a value again at several places of one kernel
    operand: int = 12  # operations per element of a value that a contraction reads many times over
    rows: int = 8  # rows that a multi-pass kernel needs before it may hold work worth several cores
    small_work: int = 1 << 14  # elements below which parallelism does not matter
    # Products per element up to which a row-by-column value is computed again instead of stored.
    stream_depth: int = 128
    streams: bool = True  # a contraction of a function of a contraction is one kernel
    # It is one for factors of so many bytes, of exponentials relative to their rows, with ``chain_rows`` rows at least
    # that share the other factor: what a matrix unit's registers hold between two products.
    chain_bytes: int = 0
    chain_rows: int = 32
    sums_beside: bool = True  # sums of what another kernel goes through are added up there, block of rows by block
    sum_steps: int = 16  # rows that such a block has at least: fewer, and partial sums are much to write and read again
    maps_beside: bool = False  # that kernel computes other maps of its rows, too
    chunk: int = 3 << 9  # products of a chunk of a long contraction
    sum_chunk: int = 1 << 14  # elements of a chunk of a long sum
    copied: int = 8  # bytes of kernel traffic that take as long as one byte from another device
    rounds: int = 1 << 18  # bytes of a collective's value from which less traffic is worth more rounds
    digits: range = range(4, 12)  # bits of a digit of a sort: counters stay in the nearest cache, or in registers
    piece: int = 16  # elements of a sort that are compared with each other, where pieces are sorted side by side
    balance: float = 77.0  # products that a staged unit does while memory moves a byte
    launch: float = 1e9  # while a kernel is launched
    sector: int = 32  # bytes that memory moves together
    split_lines: float = 0.25  # the share of its time that a product loses where an operand's rows begin inside one
    no_boxes: float = 6.0  # where they are no boxes, so that another unit must do it
    cuts: Cuts = Cuts()  # into how many pieces


CORE_COSTS = Costs()
GRID_COSTS = Costs(light=48, rows=128, streams=False, chain_bytes=2, sum_steps=8, maps_beside=True, chunk=1 << 9,
                   sum_chunk=1 << 12, digits=range(4, 7))
RANKED_COSTS = GRID_COSTS._replace(digits=range(8, 9), piece=12 << 8)  # where a thread for each digit ranks a piece
