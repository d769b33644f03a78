"""The cost model of a GPU: thread blocks, registers, local memory and the costs of their use."""
from __future__ import annotations

from typing import NamedTuple


class GpuModel(NamedTuple):
    """Tuning data for kernels that run as a grid of thread blocks."""

    threads: int = 128  # threads per block by default
    most_threads: int = 512  # threads per block if there are many rows or elements
    # blocks per core from which on they get more threads, and bytes that a block should read and write at least: a GPU
    # starts a block every 1.1 ns (H200), in which the cache moves so many. With 128 threads per block, 3 KB, a cast of
    # 4M floats takes 10.7 µs, with 512 threads 3.7.
    starts: tuple[int, int] = (8, 1 << 14)
    lanes: int = 8  # elements per vector access at most, as far as a vector register holds them
    long: int = 64  # minimum length of a reduction that threads of a block share
    short: int = 16  # maximum length of a reduction that one thread computes in registers
    least_shared: int = 4  # minimum length of a row that the threads which store its elements reduce together
    lines: int = 4  # rows that a warp reads at a time element by element, at most: each is in another line of the cache
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
    together: int = 2  # rows of a gather, or vectors of windows, that one thread computes at a time
    few_more: float = 1.25  # loads per term of a tile of windows, relative to the fewest, to save registers
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
    groups: tuple[int, ...] = (1, 2, 4, 8)  # groups of threads that share the steps of a slice, to try
    least: int = 16  # rows, columns and steps from which on a tile in local memory is worth it
    # 32-bit words per thread that a software pipeline may have in flight beside the most sums per thread
    carried: int = 24
    fma: int = 128  # multiply-adds per core and cycle
    words: int = 32  # 32-bit words that a core's threads read from local memory per cycle
    copied: int = 4  # instructions to copy one element to local memory
    meeting: int = 24  # cycles of a barrier
    warps: int = 16  # warps per core that hide latencies
    hiding: float = 0.25  # exponent of the slowdown with fewer warps: (warps / resident warps) ** hiding
    result: float = 88.0  # cost of a staged unit's epilogue, in steps of the sum
    after: float = 30.0  # additional cost per operation of the epilogue, in steps of the sum
    loaded: float = 80.0  # additional cost of each byte that the epilogue loads per result, in steps of the sum
    alone: float = 2.8  # factor on the epilogue's cost where one ping-pong group executes it alone
    # additional cycles of a staged unit per row of a copied patch (im2col), compared with a longer box
    patch: float = 0.9
    beside_another: float = 1.25  # speed of a joined chain's block that shares its core with another, relative to alone
    begin: int = 96  # extra steps of a warp-specialized back-to-back loop, whose block waits for its first operands
    # sums per thread of a ping-pong group, at most, whose epilogue loads values: more leave it no registers for them
    sums_beside: int = 128
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
