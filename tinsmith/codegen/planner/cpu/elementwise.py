"""Candidates of elementwise kernels on a CPU: the ranges along which to vectorize.

Loops are partitioned first where their formula changes. If no range is contiguous in all accesses, a short interleaved
range is unrolled. Strided reads get an inner loop along their lines; square blocks are transposed in registers. The
rows of a scatter run in order, a full row at a time, and every worker has columns of its own.
"""
from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from functools import partial

from tinsmith.codegen.kernel import Kernel
from tinsmith.codegen.opt import Opt, OptOps
from tinsmith.codegen.planner.candidate import (
    Candidate,
    apply_to,
    lanes_of,
    name_of,
    order,
    power_of_two,
    split,
    stride_of,
)
from tinsmith.codegen.planner.cost import lane_cycles
from tinsmith.codegen.planner.cpu.loop_partition import cut_loops
from tinsmith.codegen.transform.computed_operand import SIDE
from tinsmith.core.dtypes import dtypes
from tinsmith.ir import Ops, UOp
from tinsmith.ir.ranges import Role, count_of, is_partial, range_size
from tinsmith.ir.uop import toposort
from tinsmith.target.target import Target


def map_ways(kernel: Kernel, target: Target) -> Iterator[Candidate]:
    """Generate the candidates: lanes along each range, or loops partitioned where their formula changes, with lanes for
    each nest."""
    if kernel.folds or not target.vector_bytes:
        return
    lanes, pieces = lanes_of(kernel, target), kernel.copied()
    whole = list(nest_ways(kernel, target, lanes, kernel.stores))
    yield from whole
    plain = all(s.op is Ops.STORE for s in kernel.stores)
    share = cut_loops(pieces, lanes, target.core.pieces) if plain else 1.0
    if share < 1:
        least = min(w.cycles for w in whole)
        yield Candidate("loop partitioning", {"memory": least * share},
                        partial(_nests, pieces=pieces, target=target, lanes=lanes))


def _nests(kernel: Kernel, pieces: Kernel, target: Target, lanes: int) -> None:
    vars(kernel).update(vars(pieces.copied()))
    for offset in range(len(kernel.stores)):
        nest = [s for s in kernel.stores if s.ranges == kernel.stores[offset].ranges]
        if not any(r.arg[1].expanded for r in nest[0].ranges):
            min(nest_ways(kernel, target, lanes, nest), key=lambda w: w.cycles).apply(kernel)
    for r in [r for r in kernel.parallel if range_size(r) < target.core.shortest_lanes]:
        apply_to(kernel, OptOps.UPCAST, r)


def nest_ways(kernel: Kernel, target: Target, lanes: int, nest: list[UOp]) -> Iterator[Candidate]:
    """Generate the candidates for the statements of one loop nest: lanes along each range that memory suits, or
    none."""
    stores = [s for s in nest if s.op is Ops.STORE]
    scatters = [s for s in nest if s.op is Ops.SCATTER_STORE and s.src[4].arg[1] is not Role.BLOCK]
    parallel = [r for r in kernel.parallel if not any(r is s.src[4] for s in scatters)]
    loads = [n for n in toposort(nest) if n.op is Ops.LOAD and n.src[0].op is Ops.PARAM]
    options = [r for r in parallel if range_size(r) >= min(lanes, 4) and all(r in s.ranges for s in nest)]
    vectors = max(count_of(s.ranges) for s in nest) / lanes
    cycles = lane_cycles(target, lanes, loads, stores, options[::-1])
    for r, some in cycles.items():
        if r is not None and some < cycles[None] and all(stride_of(s.src[1], r) == 1 for s in scatters):
            amount = min(lanes * _narrow(nest, loads, r), power_of_two(range_size(r)))
            yield Candidate(f"vectorize along {name_of(r)}", {"memory": vectors * some}, partial(
                _nest, target=target, nest=nest, lane=r, amount=amount))
    yield Candidate("no contiguous vectors", {"memory": vectors * cycles[None]},
                    lambda k: None if scatters or not options else woven_lanes(k, target, lanes, nest))


def _nest(kernel: Kernel, target: Target, nest: list[UOp], lane: UOp, amount: int) -> None:
    """Vectorize a nest along ``lane``; strided reads get an inner loop along their lines."""
    whole, scatters = len(nest) == len(kernel.stores), any(
        s.op is Ops.SCATTER_STORE and s.src[4].arg[1] is not Role.BLOCK for s in nest)
    outer, inner = split(kernel, OptOps.VECTOR, lane, amount)
    lanes_of_loop = {outer, inner}
    if scatters:
        return scatter_opts(kernel, target, outer) if outer is not None else None
    if whole:
        share_work(kernel, outer)
    loops = kernel.parallel
    along = [r for n in kernel.loads for r in loops
             if n.src[1].ranges & lanes_of_loop and stride_of(n.src[1], r) == 1 and r is not outer]
    if along:
        transpose_opts(kernel, target, outer, along[0], amount)
    return None


def _narrow(nest: list[UOp], loads: list[UOp], r: UOp) -> int:
    """Return the factor by which lanes of elements narrower than 32 bits may exceed 32-bit lanes, if they are only
    copied along ``r``; else 1."""
    copied = all(s.src[2].op is Ops.LOAD for s in nest) and all(stride_of(n.src[1], r) in (0, 1) for n in loads)
    return max(4 // max(s.src[2].dtype.itemsize for s in nest), 1) if copied else 1


def share_work(kernel: Kernel, lane_loop: UOp | None) -> None:
    """Unroll a short range on which less than half of the work depends, so that the rest is done once; and a range
    whose iterations each read one input of their own (stacked tensors), so that no iteration tests for the others."""
    core = kernel.target.core
    for r in kernel.parallel:
        if r is lane_loop or not isinstance(range_size(r), int) or range_size(r) > core.written_out:
            continue
        picked = sum(len(n.src) > 2 and n.src[2].ranges == {r} for n in kernel.loads)
        if picked >= range_size(r) - 1 and picked * 2 > len(kernel.loads):
            kernel.apply(Opt(OptOps.UPCAST, kernel.ranges.index(r)))
            continue
        if range_size(r) > core.shared_copies:
            continue
        work = Counter(r in n.ranges for n in toposort(kernel.sink)
                       if n.op.elementwise and n.dtype.scalar is not dtypes.index)
        if work[False] > max(work[True], core.shared_work):
            kernel.apply(Opt(OptOps.UPCAST, kernel.ranges.index(r)))


def woven_lanes(kernel: Kernel, target: Target, lanes: int, stores: list[UOp]) -> None:
    """Vectorize along a repeated or interleaved range, with its short inner range unrolled, so that adjacent results
    are stored together."""
    own = [r for r in kernel.parallel if all(r in s.ranges for s in stores)]
    for short in own:
        count = range_size(short)
        beside = [r for r in own if range_size(r) >= lanes and all(stride_of(s.src[1], r) == count for s in stores)
                  and all(stride_of(n.src[1], r) in (0, 1) for n in toposort(stores) if n.op is Ops.LOAD)]
        if 1 < count <= target.core.window_step and beside and all(stride_of(s.src[1], short) == 1 for s in stores):
            split(kernel, OptOps.VECTOR, beside[0], lanes)
            return apply_to(kernel, OptOps.UPCAST, short)
    return None


def transpose_opts(kernel: Kernel, target: Target, lane_loop: UOp | None, along: UOp, lanes: int) -> None:
    """Move the loop along the lines that strided lanes read innermost. Square blocks are transposed in registers, and
    results are written as pairs of lines: a loop that writes one line per row waits for each line to be fetched
    first."""
    sizes = [n.dtype.itemsize for n in kernel.loads]
    last: list[UOp] = [along]
    if range_size(along) % SIDE == 0 and min(sizes) >= 4:
        left, _ = split(kernel, OptOps.UPCAST, along, SIDE)
        last = [left] if left is not None else []
        pair = target.core.pair_bytes // (lanes * max(sizes))
        whole = lane_loop is not None and not is_partial(lane_loop) and range_size(lane_loop) % pair == 0
        if lane_loop is not None and whole and pair > 1:
            last.append(split(kernel, OptOps.TILE, lane_loop, pair)[1])
    loops = [r for r in kernel.ranges if not r.arg[1].expanded]
    order(kernel, [*(r for r in loops if r not in last), *last])


def scatter_opts(kernel: Kernel, target: Target, columns: UOp) -> None:
    """Order the loops as blocks of ``columns``, rows, columns of a block: the memory that is read and added to is then
    one block long, and no two workers add to the same address."""
    shared = [r for r in kernel.parallel if r is not columns and all(r in s.ranges for s in kernel.stores)]
    inner: UOp | None = columns
    if math.prod(range_size(r) for r in shared) < target.threads:
        parts = parts_of_columns(range_size(columns), target.threads, target.core.even)
        whole = not is_partial(columns)
        if parts == range_size(columns):
            shared, inner = [*shared, columns], None
        elif parts and whole:
            block, inner = split(kernel, OptOps.TILE, columns, range_size(columns) // parts)
            shared += [block] if block is not None else []
    loops = [r for r in kernel.ranges if not r.arg[1].expanded]
    last = [inner] if inner is not None else []
    order(kernel, [*shared, *(r for r in loops if r not in (*shared, *last)), *last])


def parts_of_columns(size: int, threads: int, shares: int) -> int:
    """Return the number of equal blocks that ``size`` is cut into, so that the workers are balanced: a multiple of
    ``threads`` up to ``shares`` blocks each, else any number of at least ``shares`` each that divides, else blocks of
    1; 0 if there are too few columns.

    >>> [parts_of_columns(size, 8, 4) for size in (64, 19, 36, 7)]
    [8, 19, 36, 0]
    """
    even = range(threads, shares * threads + 1, threads)
    fitting = next((n for n in (*even, *range(shares * threads, 4 * shares * threads)) if size % n == 0), 0)
    return fitting or (size if size >= 2 * threads else 0)
