"""Candidates for memory-bound kernels on a grid of blocks: reductions along rows and down columns, and elementwise
kernels.

* rows: the threads of a block read a row in vectors, keep it in registers if it fits, and share each reduction over it;
  a block takes several short rows;
* columns: adjacent threads read adjacent columns in vectors (coalesced), and share the reduction down the columns;
* elementwise: vectors along memory, then threads along memory; a transposition goes through local memory.
"""
from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from tinsmith.codegen.kernel import Kernel
from tinsmith.codegen.opt import Opt, OptOps
from tinsmith.codegen.planner import candidate
from tinsmith.codegen.planner.candidate import apply_to, stride_of
from tinsmith.codegen.transform.skip_masked_blocks import added_sum, covered_steps, is_sum_over_blocks
from tinsmith.codegen.transform.thread_blocks import may_be_shared, threads_per_block
from tinsmith.ir import Ops, UOp
from tinsmith.ir.matrix_unit import ROW_BYTES
from tinsmith.ir.structure import Role, count_of, range_size, sum_of_products
from tinsmith.ir.uop import toposort
from tinsmith.target.target import Target


def split(kernel: Kernel, op: OptOps, r: UOp | None, amount: int) -> UOp | None:
    """Split ``amount`` off a range and return the outer loop, or None if no loop is left. Return ``r`` unchanged if
    ``amount`` is below 2."""
    return r if r is None or amount < 2 else candidate.split(kernel, op, r, min(amount, range_size(r)))[0]


def room(kernel: Kernel, op: OptOps, r: UOp, wanted: int, target: Target) -> int:
    """Return ``wanted``, the number of threads for ``r``, if they fit the block, else the factor by which the block can
    still grow. Because new threads may share an axis with existing ones, the opt is tried on a copy."""
    if wanted < 2 or not may_be_shared(kernel, r):
        return min(wanted, 1)
    trial, threads = kernel.copied(), threads_per_block(kernel)
    trial.target = replace(target, block_threads=wanted * max(threads, target.block_threads))
    apply_to(trial, op, r, wanted)
    return wanted if threads_per_block(trial) <= target.block_threads else target.block_threads // threads


def lanes_for(kernel: Kernel, target: Target, size: int, *along: UOp, stores: bool = True) -> int:
    """Return the number of elements of one vector access along the ranges ``along`` that divides ``size``; ``stores``:
    stores limit it too, not only loads."""
    used = [(n.src[1], n.dtype) for n in kernel.loads]
    used += [(s.src[1], s.src[2].dtype) for s in kernel.stores] if stores else []
    widest = max((d.itemsize for index, d in used if any(stride_of(index, r) == 1 for r in along)), default=4)
    return math.gcd(size, min(target.vector_bytes // widest, target.blocks.lanes))


def results_of(kernel: Kernel) -> int:
    return math.prod(range_size(r) for r in kernel.order if r.arg[1] is Role.GLOBAL)


# *** rows ***


class RowRanges(NamedTuple):
    """The ranges of a row reduction.

    Attributes:
        size: elements along memory, of each of the following ranges.
        whole: all loads read them side by side. Else there are no vectors: some read across memory, or one element for
            several (a spread gradient's).
        reduced: the reduced ranges along memory.
        beside: the range along memory of what is stored of the same rows; at most one.
        apart: further ranges of the rows, which are not contiguous in memory (the images of a batch, of which a channel
            is reduced): a reduced one for each reduction that has one, and those that are stored.
    """

    size: int
    whole: bool
    reduced: list[UOp]
    beside: list[UOp]
    apart: list[UOp]


def rows_of(kernel: Kernel, target: Target) -> RowRanges | None:
    """Return the rows that a kernel reduces; None if it has other work, too."""
    added = all(s.op is Ops.STORE or added_sum(s) for s in kernel.stores)
    if kernel.ordered or kernel.products or not added:
        return None
    reduced: dict[UOp, None] = {}
    apart: dict[UOp, None] = {}
    for f in kernel.folds:
        loads = [n for n in toposort(f.src[0]) if n.op is Ops.LOAD]
        along = [r for r in f.src[1:] if any(stride_of(n.src[1], r) == 1 for n in loads)]
        found = along or list(f.src[1:])  # a condition on the index alone loads nothing
        if len(found) != 1:
            return None
        reduced[found[0]] = None
        apart |= dict.fromkeys([r for r in f.src[1:] if r is not found[0] and isinstance(range_size(r), int)][:1])
    loops = [r for r in kernel.parallel if r.arg[1] is Role.LOOP]
    beside = [r for r in loops if any(stride_of(s.src[1], r) == 1 for s in kernel.stores)] if len(loops) > 1 else loops
    others = [r for r in loops if r not in beside]
    if not reduced or len(beside) != min(len(loops), 1) or len(others) > 1 or not all(
            any(r in s.ranges for s in kernel.stores) for r in loops):
        return None
    sizes = {range_size(r) for r in (*reduced, *beside)}
    size = sizes.pop()
    steps = {stride_of(n.src[1], r) for n in kernel.loads for r in (*reduced, *beside)}
    plain = all(stride_of(s.src[1], r) in (0, 1) for s in kernel.stores for r in (*reduced, *beside))
    if sizes or not isinstance(size, int) or not plain:
        return None
    # a short row does if further ranges are reduced with it (the channels of a group, for each position)
    read = [n.src[1] for n in kernel.loads if any(stride_of(n.src[1], r) == 1 for r in reduced)]
    overlap = any(0 < abs(stride_of(i, r) or 0) < size for i in read for r in kernel.parallel)  # as those of windows do
    even = steps <= {0, 1}
    short = not beside and not overlap and results_of(kernel) < target.cores * target.resident // 4 and all(
        len(f.src) == 3 or (len(f.src) > 3 and not even) for f in kernel.folds)
    if not even and not (short and _has_rows(kernel, list(reduced))):
        return None
    stored = beside and not overlap  # each thread would compute the whole row again for its element
    if not stored and size * (min(map(range_size, apart), default=1) if short else 1) < target.blocks.long:
        return None
    return RowRanges(size, even, list(reduced), beside, [*apart, *others])


def _has_rows(kernel: Kernel, rows: Sequence[UOp]) -> bool:
    """Return True if each result sums rows of its own in some argument, as a channel of an image does, and no fold is a
    product."""
    own = [n.src[1] for n in kernel.loads if any(stride_of(n.src[1], r) == 1 for r in rows)]
    found = [sum_of_products(f) for f in kernel.folds]
    return any(not i.ranges.isdisjoint(kernel.parallel) for i in own) and not any(
        p is not None and (p.m or p.n) for p in found)


def row_opts(kernel: Kernel, target: Target) -> bool:
    """Assign the threads of a block to each row, or to several short rows; return False if there are no such rows."""
    rows, blocks = rows_of(kernel, target), target.blocks
    if rows is None or not target.warp:
        return False
    lanes = lanes_for(kernel, target, rows.size, *rows.reduced, *rows.beside) if rows.whole else 1
    outer = [r for r in kernel.order if r.arg[1] is Role.GLOBAL and isinstance(range_size(r), int)]
    count = math.prod(map(range_size, outer))
    short = rows.size < blocks.long
    turns = blocks.turns if rows.beside else 1 if short else blocks.loads
    threads = threads_for(rows.size, lanes, count, target, turns)
    groups = groups_for(rows, target, count * threads, min(blocks.most_threads, target.block_threads) // threads)
    share = max(count // target.cores, target.warp // threads, 1)  # fills a warp, leaves a block per core
    most = max(threads_of_block(kernel, target, count * threads * groups) // (threads * groups), 1)
    rows_to_block(kernel, min(1 << (most.bit_length() - 1), 1 << (share.bit_length() - 1)))
    for r in rows.apart:
        summed = r.arg[1] is Role.REDUCE
        left = split(kernel, OptOps.GROUP if summed else OptOps.LOCAL, kernel.numbered[r.arg[0]], groups)
        if short and summed and left is not None:
            split(kernel, OptOps.UNROLL, left, max(d for d in range(1, blocks.loads + 1) if range_size(left) % d == 0))
    for r in (*rows.reduced, *rows.beside):
        reduced = r in rows.reduced
        left = split(kernel, OptOps.VECTOR, kernel.numbered[r.arg[0]], lanes)
        left = split(kernel, OptOps.GROUP if reduced else OptOps.LOCAL, left, threads)
        if left is not None:
            turns = range_size(left)
            kept = min(blocks.thread_values, blocks.row_values // threads)
            whole = turns * lanes <= kept and not rows.apart
            amount = turns if whole else max(d for d in range(1, blocks.loads + 1) if turns % d == 0)
            split(kernel, OptOps.UNROLL if reduced else OptOps.UPCAST, left, amount)
    return True


def groups_for(rows: RowRanges, target: Target, threads: int, most: int) -> int:
    """Return the number of groups of threads that share the ranges apart of a row, so that ``threads`` threads become
    enough to occupy the device: a power of two up to ``most``, 1 if there is no such range."""
    sizes = [range_size(r) for r in rows.apart]
    wanted = min([most, *sizes, target.cores * target.resident // max(threads, 1)]) if sizes else 1
    return 1 << (max(wanted, 1).bit_length() - 1)


def rows_to_block(kernel: Kernel, amount: int) -> None:
    """Make a block of threads compute up to ``amount`` rows: split the innermost range of the grid (LOCAL)."""
    outer = [r for r in kernel.order if r.arg[1] is Role.GLOBAL and isinstance(range_size(r), int)]
    if outer and amount > 1:
        split(kernel, OptOps.LOCAL, outer[-1], min(amount, 1 << (range_size(outer[-1]).bit_length() - 1)))


def threads_for(size: int, lanes: int, rows: int, target: Target, wished: int) -> int:
    """Return the number of threads for each of ``rows`` rows of ``size`` elements, in vectors of ``lanes``: a power of
    two up to a warp, or full warps.

    Rows in vectors are bound by memory: about ``wished`` vectors per thread, with few threads idle in the last
    iteration. If rows are few, deviations from ``wished`` cost more, because each row has to keep its core busy.

    Rows whose elements are read one by one are bound by instructions: those of each step, and those of the shuffles
    that combine the threads' results. A warp reads few of them at a time (``GpuModel.lines``: 8 threads for a row of 49
    floats took 36 µs for 300,000 rows, 4 threads 69), and registers hold the row.
    """
    vectors, model = size // lanes, target.blocks
    few = [1 << n for n in range(target.warp.bit_length())]
    options = [t for t in (*few, *range(2 * target.warp, target.block_threads + 1, target.warp)) if t <= vectors]
    many = rows >= target.cores * model.rows
    if lanes == 1:
        least = max(target.warp // model.lines, size // model.thread_values)
        options = [t for t in options if t >= least] or options[-1:]

    def cost(threads: int) -> float:
        turns = -(-vectors // threads)
        if lanes == 1:
            idle = max(target.cores * target.resident / (2 * rows * threads), 1)
            return (turns + math.log2(threads)) * threads * math.sqrt(idle)
        return turns * threads / vectors * (1 + abs(math.log2(turns / wished)) / model.turn[many])

    return min(options, key=cost, default=1)


# *** scans ***


def running_opts(kernel: Kernel, target: Target) -> bool:
    """Share the steps of a scan among the threads of a block if memory is contiguous along them, else give each thread
    a row; lanes load several steps at a time. Return False if the kernel has no scan."""
    if not kernel.ordered:
        return False
    (steps,) = kernel.ordered
    size, used = range_size(steps), (*kernel.loads, *kernel.stores)
    weighted = any(n.op is Ops.PREFIX and n.arg is Ops.MULADD for n in kernel.nodes)
    along = all(stride_of(n.src[1], steps) in (-1, 0, 1) for n in used)
    if not weighted and isinstance(size, int) and size >= 2 * target.blocks.lanes:
        lanes = lanes_for(kernel, target, target.blocks.lanes, steps) if along else target.blocks.lanes
        vectors = -(-size // lanes)
        options = [1 << n for n in range((min(target.blocks.running, target.block_threads, vectors)).bit_length())]
        threads = min(options, key=lambda t: -(-vectors // t) * (t + 1)) if along and target.warp else 1
        if size % (lanes * threads):
            apply_to(kernel, OptOps.PADTO, steps, lanes * threads)
        if lanes > 1:
            apply_to(kernel, OptOps.VECTOR, next(iter(kernel.ordered)), lanes)
        if threads > 1:
            apply_to(kernel, OptOps.GROUP, next(iter(kernel.ordered)), threads)
            rows_to_block(kernel, target.blocks.threads // threads)
            return True
    thread_opts(kernel, target)
    return True


# *** short sums ***


def short_sum_opts(kernel: Kernel, target: Target) -> bool:
    """Compute several short sums over the same elements in one thread, such as one for each key, so that it reads them
    once. Return False if there are none."""
    over = {f.src[1:] for f in kernel.folds}
    if len(over) != 1 or len(ranges := over.pop()) != 1 or kernel.ordered or kernel.products:
        return False
    (r,), size = ranges, range_size(ranges[0])
    sharing = next((p for p in kernel.parallel if _reads_alike(kernel, target, p, r)), None)
    if sharing is None or not isinstance(size, int) or size > target.blocks.short:
        return False
    along = all(stride_of(s.src[1], sharing) == 1 for s in kernel.stores)
    lanes = lanes_for(kernel, target, target.blocks.short, sharing) if along else 1
    left = split(kernel, OptOps.VECTOR, sharing, lanes)
    if left is not None:
        split(kernel, OptOps.UPCAST, left, target.blocks.short // lanes)
    rest = split(kernel, OptOps.VECTOR, r, lanes_for(kernel, target, size, r, stores=False)) if lanes == 1 else r
    if rest is not None:
        split(kernel, OptOps.UNROLL, rest, range_size(rest))
    thread_opts(kernel, target)
    return True


def _reads_alike(kernel: Kernel, target: Target, p: UOp, r: UOp) -> bool:
    """Return True if the inner part of the parallel range ``p`` changes the sums over ``r`` but not the elements that
    they read."""
    size = range_size(p)
    if not isinstance(size, int) or size % target.blocks.short or p.arg[1] is not Role.GLOBAL:
        return False
    trial, at = kernel.copied(), kernel.order.index(p) + (size > target.blocks.short)
    trial.apply(Opt(OptOps.UPCAST, kernel.ranges.index(p), target.blocks.short))
    inner = trial.order[at]
    loads = [n for n in toposort(trial.folds) if n.op is Ops.LOAD and r in n.src[1].ranges]
    return bool(loads) and all(inner in f.ranges for f in trial.folds) and all(inner not in n.ranges for n in loads)


def _fixed(r: UOp) -> int:
    """Return a range's size; 0 if it is symbolic."""
    size = range_size(r)
    return size if isinstance(size, int) else 0


def _splits(kernel: Kernel, target: Target, r: UOp) -> bool:
    """Return True if ``r``, which is not contiguous in any store, can be divided by ``GpuModel.together`` with enough
    threads left to occupy the device."""
    return (r.arg[1] is Role.GLOBAL and _fixed(r) > 0 == _fixed(r) % target.blocks.together
            and results_of(kernel) >= target.blocks.together * target.cores * target.resident
            and all(s.op is Ops.STORE and stride_of(s.src[1], r) not in (None, 0, 1) for s in kernel.stores))


def listed_opts(kernel: Kernel, target: Target) -> bool:
    """Skip the steps of sums that a list in memory excludes for each block (segment sums); return False if there is no
    such list."""
    spans = toposort([n for span in covered_steps(kernel).values() for n in span])
    if not any(n.op is Ops.LOAD for n in spans):
        return False
    kernel.apply(Opt(OptOps.SKIP))
    if not any(r.arg[1] is Role.GLOBAL and r not in spans for r in kernel.order):
        return True  # a block for each sum: the threads of a warp need the same steps
    vector_opts(kernel, target)
    for r in reversed([r for r in kernel.order if r.arg[1] is Role.GLOBAL and r not in spans]):
        split(kernel, OptOps.LOCAL, r, amount_for(range_size(r), min(target.blocks.threads, target.block_threads)))
        break
    return True


# *** columns ***


def column_opts(kernel: Kernel, target: Target) -> bool:
    """Assign adjacent threads to adjacent columns of long sums; return False if there are no such sums."""
    over = {f.src[1:] for f in kernel.folds}
    if len(over) != 1 or kernel.ordered or kernel.products or any(s.op is not Ops.STORE for s in kernel.stores):
        return False
    down = max(over.pop(), key=lambda r: range_size(r) if isinstance(range_size(r), int) else 0)
    loads = [n for n in kernel.loads if down in n.src[1].ranges]
    across = [r for r in kernel.parallel if r.arg[1] is Role.GLOBAL and isinstance(range_size(r), int)
              and any(stride_of(n.src[1], r) == 1 for n in loads)]
    if not across or not isinstance(range_size(down), int) or range_size(down) < target.blocks.long:
        return False
    column = max(across, key=range_size)
    if any(stride_of(n.src[1], column) not in (0, 1) for n in loads):
        return False
    lanes, results = lanes_for(kernel, target, range_size(column), column, stores=False), results_of(kernel)
    outer = next((r for r in kernel.parallel if r.arg[1] is Role.GLOBAL and any(  # groups of columns
        stride_of(n.src[1], column) == 1 and stride_of(n.src[1], r) == range_size(column) for n in loads)), None)
    groups = _fixed(outer) if outer is not None else 1
    if 4 * range_size(column) * max(groups, 1) < target.blocks.columns * lanes:
        return False
    threads = max(results // lanes, 1)
    enough = threads >= target.cores * target.resident // 2
    wished = min(target.blocks.threads if enough else target.blocks.columns, target.block_threads)
    if not enough:  # a block per core, whose threads read at least a full line, or a sector if there are few lines
        bytes_read = lanes * max(n.dtype.itemsize for n in loads if stride_of(n.src[1], column) == 1)
        least = target.blocks.access if threads * bytes_read < ROW_BYTES * target.cores else ROW_BYTES
        wished = min(wished, max(threads // target.cores, least // bytes_read, 1))
    left = split(kernel, OptOps.VECTOR, column, lanes)
    beside = 1
    if left is not None:
        beside = amount_for(range_size(left), wished)
        split(kernel, OptOps.LOCAL, left, beside)
    if outer is not None and groups > 1 and 2 * beside <= wished:
        more = amount_for(groups, wished // beside)
        split(kernel, OptOps.LOCAL, kernel.numbered[outer.arg[0]], more)
        beside *= more
    rest = kernel.numbered[down.arg[0]]
    if not enough:
        rest = split(kernel, OptOps.GROUP, rest, ways_down(target, range_size(rest), beside, threads // beside)) or rest
    if rest in kernel.reduces:
        split(kernel, OptOps.UNROLL, rest, math.gcd(range_size(rest), 2 * target.blocks.loads))
    return True


def ways_down(target: Target, size: int, beside: int, blocks: int) -> int:
    """Return the number of threads that share each of ``beside`` columns of ``size`` elements: ``GpuModel.ways``, and
    more of them if there are fewer blocks than cores, unless a column of few steps, which they divide, would get a
    partial step."""
    model = target.blocks
    ways = min(model.ways, target.block_threads // beside)
    most = min(model.most_threads, target.block_threads) // beside if blocks < target.cores else 0
    while 2 * ways <= min(most, size // model.loads) and (
            size % ways or size % (2 * ways) == 0 or size >= 8 * model.loads * ways):
        ways *= 2
    return ways


# *** elementwise ***


def picked_opts(kernel: Kernel, target: Target) -> None:
    """Give each thread two rows of a gather, so that both loads are in flight while it waits for the indices."""
    picked = frozenset(r for n in kernel.loads for m in toposort(n.src[1]) if m.op is Ops.LOAD for r in m.src[1].ranges)
    along = [r for r in kernel.parallel if r not in picked and any(stride_of(n.src[1], r) == 1 for n in kernel.loads)]
    found = [r for r in kernel.parallel if along and r in picked and _splits(kernel, target, r)]
    for r in found[-1:]:
        split(kernel, OptOps.UPCAST, r, target.blocks.together)


def vector_opts(kernel: Kernel, target: Target) -> int:
    """Vectorize the range that is contiguous in every store and load, if it divides into full vectors; return the lanes
    (1: none)."""
    for r in kernel.parallel:
        along = all((s.op is Ops.STORE or is_sum_over_blocks(s)) and stride_of(s.src[1], r) == 1 for s in kernel.stores)
        along = along and all(stride_of(n.src[1], r) in (0, 1) or _picked(n) for n in kernel.loads)
        if not along or not isinstance(range_size(r), int) or results_of(kernel) < target.blocks.vectors:
            continue
        lanes = lanes_for(kernel, target, range_size(r), r)
        if lanes > 1:
            apply_to(kernel, OptOps.VECTOR, r, lanes)
            return lanes
    return 1


def _picked(load: UOp) -> bool:
    """Return True if the index of a load is itself loaded (a gather), so that its lanes are separate loads."""
    return any(n.op is Ops.LOAD for n in toposort(load.src[1]))


def made_opts(kernel: Kernel, target: Target) -> None:
    """Give each thread several vectors in a kernel without loads, which is compute-bound: common subexpressions are
    computed once."""
    left = next((r for r in reversed(kernel.parallel) if r.arg[1] is Role.GLOBAL), None)
    if not kernel.loads and left is not None and _fixed(left) % target.blocks.together == 0 and (
            results_of(kernel) >= target.blocks.rows * target.cores):
        split(kernel, OptOps.UPCAST, left, target.blocks.together)


def transpose_opts(kernel: Kernel, target: Target) -> bool:
    """Transpose through a tile in local memory if one load is contiguous along another range than the stores; return
    False if none is."""
    side, rows = target.blocks.tile, target.blocks.tile_rows
    if any(s.op is not Ops.STORE for s in kernel.stores) or kernel.folds or kernel.ordered:
        return False
    across = [r for r in kernel.parallel if r.arg[1] is Role.GLOBAL
              and all(stride_of(s.src[1], r) == 1 for s in kernel.stores)]
    if not across or not _tiles(across[-1], target):
        return False
    x = across[-1]
    turned = [(n, y) for n in kernel.loads for y in kernel.parallel if y is not x and len(n.src) == 2
              and y.arg[1] is Role.GLOBAL and _tiles(y, target) and stride_of(n.src[1], y) == 1
              and (stride_of(n.src[1], x) or 0) > 1]
    if len(turned) != 1 or target.block_threads < side * side // rows:
        return False
    load, y = turned[0]
    number, places = kernel.loads.index(load), [kernel.order.index(r) for r in (x, y)]
    for at in places:
        if range_size(kernel.order[at]) % side:
            apply_to(kernel, OptOps.PADTO, kernel.order[at], side)
    x, y = (kernel.order[at] for at in places)
    split(kernel, OptOps.LOCAL, x, side)
    split(kernel, OptOps.LOCAL, split(kernel, OptOps.UPCAST, kernel.numbered[y.arg[0]], rows), side // rows)
    kept = tuple(i for i, r in enumerate(kernel.ranges) if r.arg[1] is Role.GLOBAL)
    kernel.apply(Opt(OptOps.STAGE, number, kept))
    return True


def _tiles(r: UOp, target: Target) -> bool:
    """Return True if tiles of side ``GpuModel.tile`` along a range are more than three quarters full."""
    size = range_size(r)
    return isinstance(size, int) and 4 * size > 3 * (size + -size % target.blocks.tile)


def amount_for(size: int, most: int) -> int:
    """Return the number of threads for a range, at most ``most``: a large divisor, else a power of two with a partial
    last block."""
    divisors = [d for d in range(1, min(size, most) + 1) if size % d == 0]
    best = max(divisors, default=1)
    return best if 2 * best >= min(size, most) else 1 << (min(size, most).bit_length() - 1)


def threads_of_block(kernel: Kernel, target: Target, total: int) -> int:
    """Return the number of threads of a block, if there are ``total`` threads in all: more of them if the time to start
    the blocks would count (``GpuModel.starts``)."""
    model, moved = target.blocks, dict[UOp, int]()
    for n in (*kernel.loads, *kernel.stores):
        dtype = n.dtype if n.op is Ops.LOAD else n.src[2].dtype
        moved[n.src[0]] = max(moved.get(n.src[0], 0), count_of(n.src[1].ranges) * dtype.itemsize)
    (blocks, least), found = model.starts, model.threads
    while found < model.most_threads and total > blocks * target.cores * found and (
            found * sum(moved.values()) < least * total):
        found *= 2
    return min(found, target.block_threads)


def thread_opts(kernel: Kernel, target: Target, lanes: int = 1) -> None:
    """Split ranges into threads of a block: the innermost loop that all stores share, else ranges of the grid.

    Ranges of the grid that are contiguous in memory are split first, so that accesses are coalesced.
    """
    used = math.prod(range_size(r) for r in kernel.order if r.arg[1] is Role.LOCAL)
    shared = max((range_size(r) for r in kernel.order if r.arg[1] is Role.GROUP), default=0)
    beside = [r for r in kernel.parallel if r.arg[1] is Role.LOOP and all(r in s.ranges for s in kernel.stores)]
    for r in beside[-1:]:  # the threads that reduced a row also store its elements
        if not isinstance(range_size(r), int) or any(n.op is Ops.STAGE and r in n.ranges for n in kernel.nodes):
            continue  # the stage would be computed again for each of them
        wished = min(shared or target.blocks.threads, range_size(r))
        split(kernel, OptOps.LOCAL, r, room(kernel, OptOps.LOCAL, r, wished, target))
    if shared or beside:
        return
    sizes = [range_size(r) for r in kernel.parallel if isinstance(range_size(r), int)]
    left = threads_of_block(kernel, target, math.prod(sizes)) // max(used, 1)
    grid = [r for r in kernel.order if r.arg[1] is Role.GLOBAL]
    for r in sorted(grid, key=lambda r: (_nearness(kernel, r, lanes), kernel.order.index(r)), reverse=True):
        amount = amount_for(range_size(r), left)
        if amount > 1:
            split(kernel, OptOps.LOCAL, r, amount)
            left //= amount


def _nearness(kernel: Kernel, r: UOp, lanes: int) -> float:
    """Return a score of how well accesses of threads along ``r`` coalesce, weighted by the elements that each access
    touches."""
    total, used, blocks = 0.0, (*kernel.loads, *kernel.stores), kernel.target.blocks
    most = max(count_of(n.src[1].ranges) for n in used)
    for n in used:
        stride = stride_of(n.src[1], r)
        weight = (blocks.stores if n.op is Ops.STORE else 1.0) * count_of(n.src[1].ranges) / most
        total += -weight if stride is None else blocks.same if stride == 0 else weight if abs(stride) <= lanes else 0.0
    return total
