"""What the scheduler weighs, as rows of a target: when values are computed again, and how work is cut."""
from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Cuts:
    """When long reductions and scans of few rows, and sums beside them, are cut, and into how many pieces.

    Attributes:
        long: elements per result from which a reduction with few results is cut, into ``chunks`` (at most
            ``most_chunks``) pieces.
            Maxima and the like come in ``most_others`` at most.
        few: results that keep all cores busy by themselves, two for each core at least; ``few_products``: those of a
            contraction; ``few_columns``: those of sums down columns, as a share of the threads under way.
        least: chunks that are worth it, or steps of a contraction that are worth chunks.
        about: sums about a mean are cut, too.
        column: elements of a column from which on columns are cut.
        column_threads: threads of a block that share the way down such a column.
        scan: steps from which a scan of at most ``scan_rows`` rows is cut, into about ``scan_blocks`` blocks; 0: into
            as many as are under way together.
        scan_step: blocks hold whole vectors of so many steps where the length allows it.
        scan_threads: threads that share the steps of a block where there are cores to fill; ``scan_column``: the steps
            of a block that one thread goes through; ``scan_waves``: blocks for each that is under way at a time.
        backwards: blocks add up their steps from the last to the first: what was read last is still near when they
            come to where each of them starts.
        blocks: of rows, wished where sums are added up beside them, ``least_blocks`` at least: work for several cores,
            and few partial results to sum up.
        shared_row: elements of a row that the threads of a block share; ``thread_values``: those that each holds, where
            they go through rows together; ``least_row``: fewer are no whole vectors.
        scatters: they become sums where they would keep few threads busy.
        asked_places: places up to which every place of a scatter asks every step.
        sorted_steps: steps of a scatter that are worth sorting; ``asked_beyond``: their places come in multiples of
            this, since threads may ask for the steps of places that do not exist.
    """

    long: int = 1 << 15
    chunks: int = 32
    most_chunks: int = 1 << 12
    most_others: int = 32
    few: int = 64
    few_products: int = 1 << 16
    few_columns: float = 0.125
    least: int = 8
    about: bool = False
    column: int = 1 << 62
    column_threads: int = 4
    scan: int = 1 << 14
    scan_rows: int = 16
    scan_blocks: int = 64
    scan_step: int = 16
    scan_threads: int = 256
    scan_column: int = 64
    scan_waves: int = 2
    backwards: bool = False
    blocks: int = 16
    least_blocks: int = 8
    shared_row: int = 64
    thread_values: int = 0
    least_row: int = 16
    scatters: bool = False
    asked_places: int = 64
    sorted_steps: int = 256
    asked_beyond: int = 1 << 10


CUTS_FOR_CORES = Cuts(most_others=1 << 12, about=True, column=1 << 10, scan_blocks=0, backwards=True, thread_values=8,
                      scatters=True)  # of a grid, which are to be filled


@dataclass(frozen=True)
class Costs:
    """What the scheduler weighs: when a value is computed again, and when work is cut into pieces.

    Attributes:
        recompute: operations per element, of all kernels but one that read a value, up to which they compute it again.
        light: the same for a value of small reductions that have memory in any case.
        places: operations per element spent on computing a value again at several places of one kernel.
        operand: operations per element of a value that a contraction reads many times over.
        rows: rows that a multi-pass kernel needs before it may hold work worth several cores.
        small_work: elements below which parallelism does not matter.
        stream_depth: products per element up to which a row-by-column value is computed again instead of stored.
        streams: a contraction of a function of a contraction is one kernel.
        chain_bytes: it is one for factors of so many bytes, of exponentials relative to their rows, with ``chain_rows``
            rows at least that share the other factor: what a matrix unit's registers hold between two products.
        sums_beside: sums of what another kernel goes through are added up by that kernel, block of rows by block.
        sum_steps: rows that such a block has at least: fewer, and partial sums are much to write and to read again.
        maps_beside: that kernel computes other maps of its rows, too.
        chunk: products of a chunk of a long contraction.
        sum_chunk: elements of a chunk of a long sum.
        copied: bytes of kernel traffic that take as long as one byte from another device.
        rounds: bytes of a collective's value from which less traffic is worth more rounds.
        digits: bits that a digit of a sort may have: counters stay in the nearest cache, or in registers.
        piece: elements of a sort that are compared with each other, where pieces are sorted side by side.
        balance: products that a staged unit does while memory moves a byte; ``launch``: while a kernel is launched.
        sector: bytes that memory moves together. ``split_lines``: the share of its time that a product loses where an
            operand's rows begin inside one; ``no_boxes``: where they are no boxes, so that another unit must do it.
        cuts: into how many pieces.
    """

    recompute: int = 48
    light: int = 12
    places: int = 128
    operand: int = 12
    rows: int = 8
    small_work: int = 1 << 14
    stream_depth: int = 128
    streams: bool = True
    chain_bytes: int = 0
    chain_rows: int = 32
    sums_beside: bool = True
    sum_steps: int = 16
    maps_beside: bool = False
    chunk: int = 3 << 9
    sum_chunk: int = 1 << 14
    copied: int = 8
    rounds: int = 1 << 18
    digits: range = range(4, 12)
    piece: int = 16
    balance: float = 77.0
    launch: float = 1e9
    sector: int = 32
    split_lines: float = 0.25
    no_boxes: float = 4.0
    cuts: Cuts = Cuts()


CORE_COSTS = Costs()
GRID_COSTS = Costs(light=48, rows=128, streams=False, chain_bytes=2, sum_steps=8, maps_beside=True, chunk=1 << 9,
                   sum_chunk=1 << 12, digits=range(4, 7))
RANKED_COSTS = replace(GRID_COSTS, digits=range(8, 9), piece=12 << 8)  # where a thread for each digit ranks a piece
