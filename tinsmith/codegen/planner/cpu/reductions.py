"""Candidates of reductions on a CPU: the ranges along which to vectorize the first one.

Lanes and several accumulators run along the reduced range if memory does, else lanes along a parallel range. Expensive
values that several passes over a row need are computed once and kept in local memory. Windows of a few elements, and
their gradients, are unrolled together with the positions in the window that the output has; the rest is elementwise,
with lanes in full vectors at a fixed stride (see ``emit/strided.py``).
"""
from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

from tinsmith.codegen.kernel import Kernel
from tinsmith.codegen.lower.indexing import footprints
from tinsmith.codegen.lower.normalize import divided_by
from tinsmith.codegen.opt import Opt, OptOps
from tinsmith.codegen.planner.candidate import (
    Candidate,
    apply_to,
    lanes_of,
    name_of,
    power_of_two,
    split,
    stage,
    stride_of,
)
from tinsmith.codegen.planner.cost import Price, access_cycles, lane_cycles, loads_of, row_price
from tinsmith.codegen.planner.cpu.sliding import sliding_ways
from tinsmith.codegen.transform.computed_operand import bind, block_factors, equal_values
from tinsmith.codegen.transform.skip_masked_blocks import adds_only
from tinsmith.core.dtypes import dtypes
from tinsmith.ir import Ops, UOp
from tinsmith.ir.algebra.sizes import linear_form
from tinsmith.ir.algebra.symbolic import simplify
from tinsmith.ir.structure import Role, count_of, is_partial, range_size, sum_of_products
from tinsmith.ir.uop import toposort
from tinsmith.target.target import Target

BLOCKS = (8, 16, 32, 64, 128, 256, 512)  # elements of a block of quantized weights, or of a part of it
MOST_STEPS = 8  # vectors of a block of quantized weights to unroll, at most
FEWER = 0.9  # share of loads below which more unrolled steps are worth their code


def row_ways(kernel: Kernel, target: Target, keeps: bool = True) -> Iterator[Candidate]:
    """Generate the candidates: lanes for the first reduction along each of its ranges or of the parallel ones; short
    windows unrolled. With ``keeps``, values that several passes over a row need are kept in local memory."""
    if not kernel.folds:
        return
    lanes, kept = lanes_of(kernel, target), kernel.copied()
    if target.vector_bytes and keeps:
        keep_rows(kept, target, lanes)
    over = next((f.src[1:] for f in kept.folds if target.vector_bytes and _group(kept, f.src[1:])), None)
    cycles = {None: 0.0} if over is None else _cycles(kept, target, lanes, over)
    vectors = max(count_of(f.src[0].ranges) for f in kernel.folds) / lanes
    if windows_fit(kernel):
        yield Candidate("unrolled windows", _window_price(kernel, target, lanes), lambda k: window_opts(k, target))
    yield from sliding_ways(kernel, target)
    several = max(_depths(kernel.folds).values()) > 1
    shared = {} if over is None else _cycles(kept, target, lanes, over, shared=True)
    own, used = _once_a_row(kernel), {n.src[0]: n.src[1].ranges for n in (*kernel.loads, *kernel.stores)}
    far = sum(count_of(ranges) * memory.dtype.itemsize for memory, ranges in used.items()) > target.l2_bytes
    for r, each in cycles.items():
        stored = sum(count_of(s.ranges) / lanes * access_cycles(target, lanes, [], [s], r) for s in kernel.stores)
        if r is None:
            waits = vectors * lanes * (1 + own / count_of(over or ()))
            spent = row_price(target, vectors, each, stored, vectors * lanes, waits)
            yield Candidate("first reduction not vectorized", spent, partial(_reduce, kept=kept, target=target))
            continue
        ends = vectors * lanes / count_of(over or ()) if r in (over or ()) else 0.0
        waits = ends * (1.0 if several else target.core.waits)
        for rows in (None, *_rows_beside(kept, target, over or (), r)) if waits else (None,):
            together, apart = (rows.together, f", {rows.together} rows interleaved") if rows is not None else (1, "")
            read = shared[r] if rows is not None and rows.shared else each
            loops = vectors * max(lanes / range_size(r), 1.0)
            spent = row_price(target, vectors, read, stored, loops, waits, lanes.bit_length() + own, together, far,
                              rows is not None and rows.shared)
            yield Candidate(f"vectorize along {name_of(r)}{apart}", spent, partial(
                _reduce, kept=kept, target=target, lane=r, beside=rows))


def _once_a_row(kernel: Kernel) -> int:
    """Return the number of operations on values that exist once per row: values computed from its sums, and values
    loaded once per row."""
    rows = {f.ranges for f in kernel.folds}
    return sum(n.op.cost if n.op.alu else 1 for n in kernel.nodes
               if n.ranges in rows and n.dtype.is_float and (n.op.alu or n.op is Ops.LOAD))


class RowsBeside(NamedTuple):
    """Rows that are interleaved, so that their final combinations of lanes overlap.

    Attributes:
        loop: the loop over rows.
        together: its steps that are computed side by side.
        shared: the rows are columns of memory, and their lanes together read full vectors.
    """

    loop: UOp
    together: int
    shared: bool = False


def _rows_beside(kernel: Kernel, target: Target, over: tuple[UOp, ...], lane: UOp) -> list[RowsBeside]:
    """Return the rows that can be interleaved if lanes run along ``lane`` of the reductions over ``over``:
    ``CpuModel.rows_beside`` of the innermost loop, or all columns if lanes have their number as a stride."""
    count, shares = target.core.rows_beside, max(target.threads, 1) * target.core.even
    rows = [r for r in kernel.parallel if all(r in n.ranges for n in (*kernel.folds, *kernel.stores))]
    if not rows or any(s.op is not Ops.STORE for s in kernel.stores):
        return []
    size, number = range_size(rows[-1]), count_of(frozenset(rows))
    loads = [n for f in _group(kernel, over) for n in loads_of(f.src[0]) if n.src[0].op is Ops.PARAM]
    if size in target.core.close_strides and loads and all(
            (stride_of(n.src[1], lane), stride_of(n.src[1], rows[-1])) == (size, 1) for n in loads):
        return [RowsBeside(rows[-1], size, True)] if target.threads < 2 or number >= size * shares else []
    return [RowsBeside(rows[-1], count)] if size >= count and number >= count * shares else []


def _group(kernel: Kernel, over: tuple[UOp, ...]) -> list[UOp]:
    """Return the reductions over ``over`` if none of them has lanes or copies yet."""
    group = [f for f in kernel.folds if f.src[1:] == over]
    return [] if any(x.arg[1].expanded for f in group for x in f.src[0].ranges) else group


def _read_by(folds: Sequence[UOp]) -> list[UOp]:
    """Return the loads of buffers in reductions."""
    return [n for f in folds for n in toposort(f.src[0]) if n.op is Ops.LOAD and n.src[0].op is Ops.PARAM]


def _cycles(kernel: Kernel, target: Target, lanes: int, over: tuple[UOp, ...],
            shared: bool = False) -> dict[UOp | None, float]:
    """Return the cycles to read one vector for the reductions over ``over``, by the range of the lanes, the cheapest
    first; the key None is for scalar reads. ``shared``: as in ``lane_cycles``."""
    group = _group(kernel, over)
    loads = _read_by(group)
    beside = [r for r in kernel.parallel if all(r in f.ranges for f in group)]
    ranges = sorted((*over, *beside), key=kernel.order.index, reverse=True)
    return lane_cycles(target, lanes, loads, [], _long(kernel, target, ranges), _work(group), shared)


def _work(folds: Sequence[UOp]) -> int:
    """Return the operations that reductions apply to each element, those of the reductions they depend on left out."""
    own = {n for f in folds for n in toposort(f.src[0], lambda n: n.op is not Ops.FOLD)
           if not n.ranges.isdisjoint(f.src[1:])}
    return sum(n.op.cost for n in own if n.op.alu and n.dtype.is_float) + sum(int(f.arg.cost) for f in folds)


def _long(kernel: Kernel, target: Target, ranges: Sequence[UOp]) -> list[UOp]:
    """Return the ranges that have enough steps for lanes."""
    return [r for r in ranges if kernel.may_have_lanes(r) and range_size(r) >= target.core.shortest_lanes]


def _long_first(cycles: dict[UOp | None, float], lanes: int) -> dict[UOp | None, float]:
    """Return the ranges that fill full vectors; also the short ones if vectorizing a long one does not pay."""
    long = {r: spent for r, spent in cycles.items() if r is None or range_size(r) >= lanes}
    return long if min(long.values()) < cycles[None] else cycles


def _reduce(kernel: Kernel, kept: Kernel, target: Target, lane: UOp | None = None,
            beside: RowsBeside | None = None) -> None:
    """Vectorize every reduction, the first along ``lane``, and then every store; interleave the rows ``beside``."""
    vars(kernel).update(vars(kept.copied()))
    if not target.vector_bytes:
        return
    lanes = lanes_of(kernel, target)
    loop, together = steps_together(kernel) or (None, 1)
    first = True
    for over in dict.fromkeys(f.src[1:] for f in kernel.folds):
        group = _group(kernel, over)
        if not group:
            continue
        best = lane if first else next(iter(_cycles(kernel, target, lanes, over)))
        first = False
        if best is None:
            continue
        loads = _read_by(group)
        streams = sum(stride_of(n.src[1], best) != 0 for n in loads)
        if best in over and blocks_of_factors(kernel, target, best, lanes):
            continue
        outer, lane = split(kernel, OptOps.VECTOR, best, min(lanes, power_of_two(range_size(best))))
        long, several = outer is not None and range_size(outer) >= 4, _together(group) <= 2 and streams <= 3
        if best in over:
            copies = target.core.copies_of_sums(_together(group)) // (together if loop in group[0].ranges else 1)
            if beside is not None:
                copies = min(copies, 1 << (target.core.accumulators // beside.together).bit_length() - 1)
            if outer is not None and long and copies > 1:
                split(kernel, OptOps.UNROLL, outer, steps_of_block(kernel, outer, copies))
        elif outer is not None and long and several:
            split(kernel, OptOps.UPCAST, outer, 4)
        if not long and several:
            products_beside(kernel, target, lane)
    lanes_for_stores(kernel, target, lanes)
    if beside is not None and beside.loop in kernel.order:  # ``products_beside`` may have split it
        split(kernel, OptOps.UPCAST, beside.loop, beside.together)


def blocks_of_factors(kernel: Kernel, target: Target, r: UOp, lanes: int) -> bool:
    """Vectorize sums of products over blocks of packed elements whose factors are packed, too: the factors of several
    blocks are computed as a vector in local memory, from which the blocks read them. Return False if there are none."""
    folds = [f for f in kernel.folds if r in f.src[1:]]
    if len(folds) != len(kernel.folds) or any(f.src[1:] != (r,) or not sum_of_products(f) for f in folds):
        return False
    roots = [_indices(factor, r) for f in folds for factor in _factors_of_blocks(f, r, lanes)]
    size = range_size(r)
    sizes = [n for n in BLOCKS if size % n == 0]
    block = next((n for n in reversed(sizes) if all(_shared(x, r, n) for x in roots)), 0) if roots else 0
    every = [x for f in folds for x in _indices(f.src[0], r)]
    # lanes beyond a period of the factors' places would be loaded one by one
    period = next((n for n in sizes if all(_repeats(x, r, n) for root in roots for x in root)), 0)
    least = period if period > block else lanes * block
    whole = next((n for n in sizes if block and n >= least and all(_repeats(x, r, n) for x in every)), 0)
    if not whole:
        return False
    if range_size(r) > whole:
        _, r = split(kernel, OptOps.TILE, r, whole)
    block_loop, inner = split(kernel, OptOps.TILE, r, block)
    assert block_loop is not None
    while factors := [n for n in block_factors(kernel.sink) if n.op is not Ops.LOAD]:
        outside = [x for x in kernel.ranges if x in factors[0].ranges and x is not block_loop]
        stage(kernel, factors[0], outside, min(lanes, whole // block))
    outer, _ = split(kernel, OptOps.VECTOR, inner, lanes)
    if outer is not None:
        apply_to(kernel, OptOps.UNROLL, outer)
    together = steps_of_block(kernel, block_loop, 1)
    if together > 1:
        split(kernel, OptOps.UNROLL, block_loop, together)
    lanes_for_stores(kernel, target, lanes)
    return True


def _factors_of_blocks(fold: UOp, r: UOp, lanes: int) -> Iterator[UOp]:
    """Generate the largest computed values in a sum of products that depend on ``r``, but not on its position in a
    block of at least ``lanes`` steps."""
    stack = list(fold.src[0].src)
    while stack:
        n = stack.pop()
        if r in n.ranges and n.op.alu and n.dtype.is_float:
            roots = _indices(n, r)
            shared = range_size(r) % lanes == 0 and _shared(roots, r, lanes)
            if shared and any(x.op is Ops.LOAD for x in toposort(n)):
                yield n
            else:
                stack += n.src


def _indices(value: UOp, r: UOp) -> list[UOp]:
    """Return the index expressions inside a value that depend on ``r``."""
    return list(dict.fromkeys(s for n in toposort(value) if n.dtype is not dtypes.index and n.op is not Ops.RANGE
                              for s in n.src if s.dtype is dtypes.index and r in s.ranges))


def _shared(indices: list[UOp], r: UOp, block: int) -> bool:
    """Return True if index expressions are equal for all steps of ``r`` in a block."""
    outer, inner = UOp.range(range_size(r) // block, -1, Role.REDUCE), UOp.range(block, -2, Role.REDUCE)
    return all(inner not in simplify(bind(x, r, outer * block + inner)).ranges for x in indices)


def _repeats(index: UOp, r: UOp, block: int) -> bool:
    """Return True if an index expression grows by a constant from block to block of ``r``."""
    outer, inner = UOp.range(range_size(r) // block, -1, Role.REDUCE), UOp.range(block, -2, Role.REDUCE)
    return all(t is outer or outer not in t.ranges
               for t in linear_form(simplify(bind(index, r, outer * block + inner)))[0])


def steps_of_block(kernel: Kernel, outer: UOp, copies: int) -> int:
    """Return the steps of ``outer`` to unroll, at least ``copies``: as many as share loads of packed elements, such as
    the low and high halves of the bytes of a block of quantized weights."""
    folds = [f for f in kernel.folds if outer in f.src[1:] and sum_of_products(f)]
    loads = [n for f in folds for n in loads_of(f.src[0]) if stride_of(n.src[1], outer) is None]
    if not loads or len(folds) < len([f for f in kernel.folds if outer in f.src[1:]]):
        return copies
    best, least, amount = copies, math.inf, copies
    while amount <= MOST_STEPS and range_size(outer) % amount == 0:
        tile = UOp.range(range_size(outer) // amount, -1, Role.REDUCE)
        at = [(tile * amount + step).simplify() for step in range(amount)]
        read = len({(n.src[0], simplify(bind(n.src[1], outer, x))) for n in loads for x in at}) / amount
        if read < FEWER * least:
            best, least = amount, read
        amount *= 2
    return best


def products_beside(kernel: Kernel, target: Target, lane: UOp) -> None:
    """Upcast sums of products that share one factor until their number hides the latency of an addition; unroll the
    steps of a window that slides over them, as far as its shared elements fit the registers."""
    folds, copies = [f for f in kernel.folds if lane in f.src[0].ranges and sum_of_products(f, guarded=True)], 1
    loads = [n for f in folds for n in toposort(f.src[0]) if n.op is Ops.LOAD and n.src[0].op is Ops.PARAM]
    for r in reversed(kernel.parallel):
        shared = not is_partial(r) and all(r in f.ranges for f in folds) and any(r not in n.ranges for n in loads)
        if not shared or copies >= target.core.chains:
            continue
        size, few = range_size(r), min(range_size(r), target.core.chains)
        slides = [q for q in kernel.reduces if 2 * few + range_size(q) <= target.vector_registers and any(
            len(box.weights) > 1 for n in loads for box in footprints(n, [r, q]))]
        rooms = [(target.vector_registers - range_size(q)) // 2 for q in slides]
        amount = size if size <= min([target.core.written_out // copies, *rooms]) else few
        copies *= amount
        split(kernel, OptOps.UPCAST, r, amount)
        for q in slides:
            apply_to(kernel, OptOps.UNROLL, q)


def steps_together(kernel: Kernel) -> tuple[UOp, int] | None:
    """Return a BLOCK loop of sums in memory and the number of its steps to compute together; None if there is none."""
    for loop in kernel.order:
        fits = [n for n in kernel.target.core.steps_together if range_size(loop) > n and range_size(loop) % n == 0]
        if loop.arg[1] is Role.BLOCK and fits and adds_only(kernel, loop):
            return loop, fits[0]
    return None


def _depths(folds: list[UOp]) -> dict[UOp, int]:
    """Return the number of the pass over the data in which each reduction runs, from 1: it follows the passes of the
    reductions that it needs."""
    loop: dict[UOp, int] = {}
    for f in toposort(folds):
        if f in folds:
            loop[f] = 1 + max((loop[g] for g in toposort(f.src[0]) if g in loop), default=0)
    return loop


def _together(folds: list[UOp]) -> int:
    """Return the largest number of independent reductions in one pass."""
    return max(Counter(_depths(folds).values()).values())


def lanes_for_stores(kernel: Kernel, target: Target, lanes: int) -> None:
    """Vectorize the stores whose loops have no lanes yet."""
    for store in list(kernel.stores):
        if store.op is not Ops.STORE or store not in kernel.stores:
            continue
        if any(r.arg[1].expanded for r in store.ranges):
            continue
        inner = [r for r in kernel.parallel if r in store.ranges and not any(r in f.ranges for f in kernel.folds)]
        loads = [n for n in toposort(store.src[2], lambda n: n.op is not Ops.FOLD)
                 if n.op is Ops.LOAD and n.src[0].op is Ops.PARAM]
        work = sum(n.op.cost for n in toposort(store.src[2], lambda n: n.op is not Ops.FOLD)
                   if n.op.alu and n.dtype.is_float and not n.ranges.isdisjoint(inner))
        cycles = _long_first(lane_cycles(target, lanes, loads, [store], _long(kernel, target, inner), work), lanes)
        best = min(cycles, key=lambda r: cycles[r])
        if best is not None and cycles[best] < cycles[None]:
            split(kernel, OptOps.VECTOR, best, min(lanes, power_of_two(range_size(best))))


def keep_rows(kernel: Kernel, target: Target, lanes: int) -> None:
    """Stage the values that several passes over a row compute, the most expensive first."""
    for _ in range(target.core.rows_kept):
        found = {n: cost for n in kernel.stageable if (cost := _cost(kernel, target, n))}
        if not found:
            return
        value = max(found, key=lambda n: found[n])
        outside = tuple(kernel.ranges.index(r) for r in kernel.ranges if r in value.ranges and r in kernel.parallel)
        kernel.apply(Opt(OptOps.STAGE, kernel.stageable.index(value), outside, lanes))


def _cost(kernel: Kernel, target: Target, value: UOp) -> int:
    """Return the cost of recomputing one element of a value; 0 if that is cheap, or if it is not a row of several
    passes."""
    row = [r for r in value.ranges if r not in kernel.parallel]
    if value.op is Ops.LOAD or value.op is Ops.FOLD or len(row) != 1:
        return 0
    (r,) = row
    size = range_size(r)
    if not target.core.short_row <= size <= target.l2_bytes // (4 * value.dtype.itemsize) or is_partial(r):
        return 0
    own = toposort(value, lambda n: n.op is not Ops.FOLD)
    if any(stride_of(n.src[1], r) not in (0, 1) for n in own if n.op is Ops.LOAD):
        return 0
    cost = sum(n.op.cost for n in own if n.op.alu and r in n.ranges and n.dtype.is_float)
    readers = equal_values(kernel.sink, value, frozenset(value.ranges - {r}))
    return cost if cost >= target.core.dear and len(readers) > 1 else 0


def row_ahead(kernel: Kernel, load: UOp, loops: list[UOp], target: Target) -> int:
    """Return the prefetch distance in iterations from a row that several passes read to the next row: the last pass, if
    it has much arithmetic, can prefetch it. 0 if there is no such pass, or if two rows do not fit the first cache."""
    r = loops[-1]
    last = _last_pass(kernel, load, r)
    if last is None:
        return 0
    own = toposort(last.src[0], lambda n: n.op is not Ops.FOLD)
    cost = sum(n.op.cost for n in own if n.op.alu and n.dtype.is_float)
    count, step = range_size(r), stride_of(load.src[1], r) or 0
    follows = len(loops) > 1 and stride_of(load.src[1], loops[-2]) == count * step
    kept = 2 * count * step + (math.prod(last.arg) if last.op is Ops.STAGE else 0)
    fits = kept * load.dtype.itemsize <= target.l1_bytes
    return count if cost >= target.core.dear and follows and fits and step > 0 else 0


def _last_pass(kernel: Kernel, load: UOp, r: UOp) -> UOp | None:
    """Return the last pass (reduction or stage) of several over a row, if it reads the row by ``load`` along ``r``;
    else None."""
    passes = {n: toposort(n.src[0], lambda n: n.op not in (Ops.FOLD, Ops.STAGE)) for n in kernel.nodes
              if n.op in (Ops.FOLD, Ops.STAGE)}
    same = {n for n in kernel.loads if n.src[0] is load.src[0] and any(
        x.arg[1] is Role.VECTOR for x in n.src[1].ranges)}
    readers = [p for p, nodes in passes.items() if not same.isdisjoint(nodes)]
    if len(readers) < 2 or not same <= {n for p in readers for n in passes[p]}:
        return None
    return next((p for p in readers if r in p.src[1:] and load in passes[p] and all(
        g is p or g in toposort(p.src[0]) for g in readers)), None)


def windows_fit(kernel: Kernel) -> bool:
    """Return True if every reduction runs over at most ``CpuModel.written_out`` elements."""
    most = kernel.target.core.written_out
    return all(0 < math.prod(range_size(r) for r in f.src[1:]) <= most for f in kernel.folds)


def window_opts(kernel: Kernel, target: Target) -> None:
    """Unroll the windows, and the ranges of the output that are positions in a window, or lie between the elements of a
    vector of results; vectorize along the output."""
    _separate_positions(kernel)
    between = _between_lanes(kernel, window_lane(kernel, target))
    window_lanes(kernel, target)
    shared = [r for r in kernel.parallel if r in between or not any(r in f.ranges for f in kernel.folds)]
    copies = 1
    for r in sorted((r for r in shared if range_size(r) > 1), key=range_size):
        if range_size(r) * copies <= kernel.target.core.written_out:
            copies *= range_size(r)
            apply_to(kernel, OptOps.UPCAST, r)
    for r in kernel.reduces:
        if range_size(r) > 1:  # a variable's typical value may leave one element or none
            apply_to(kernel, OptOps.UNROLL, r)


def _between_lanes(kernel: Kernel, lane: UOp | None) -> set[UOp]:
    """Return the range of results that lie between those of adjacent lanes: written together, they fill vectors."""
    steps = {stride_of(s.src[1], lane) for s in kernel.stores} if lane is not None else set()
    return {r for r in kernel.parallel if steps == {range_size(r)} and all(
        stride_of(s.src[1], r) == 1 for s in kernel.stores)}


def _separate_positions(kernel: Kernel) -> None:
    """Split the ranges of the output that enclose positions in a window, so that these are ranges of their own."""
    for r in list(kernel.parallel):
        if step := _windows_along(kernel, r):
            apply_to(kernel, OptOps.TILE, r, step)


def _window_price(kernel: Kernel, target: Target, lanes: int) -> Price:
    """Return the price of unrolled windows. Reductions that do not depend on the range of the lanes, because the lanes
    are the positions of a row that is reduced, run on scalars."""
    trial = kernel.copied()
    _separate_positions(trial)
    lane, spent = window_lane(trial, target), 0.0
    for over in dict.fromkeys(f.src[1:] for f in trial.folds):
        group = [f for f in trial.folds if f.src[1:] == over]
        loads = _read_by(group)
        along = [lane] if lane is not None and all(lane in f.ranges for f in group) else []
        cycles = lane_cycles(target, lanes, loads, [], along, _work(group), shared=True)
        spent += max(count_of(f.src[0].ranges) for f in group) / lanes * cycles[along[0] if along else None]
    return {"memory": spent}


def _windows_along(kernel: Kernel, r: UOp) -> int:
    """Return the number of adjacent steps of ``r`` that read the same windows (reductions depend on ``r`` only by a
    quotient); else 0."""
    step = divided_by([n for f in kernel.folds for n in toposort(f.src[0])], r)
    fits = 1 < step <= kernel.target.core.written_out and range_size(r) % step == 0
    return step if fits and range_size(r) > step else 0


def window_lanes(kernel: Kernel, target: Target) -> None:
    """Vectorize along the output, contiguous or strided by the positions of a window."""
    if (best := window_lane(kernel, target)) is not None:
        split(kernel, OptOps.VECTOR, best, min(lanes_of(kernel, target), 1 << range_size(best).bit_length() - 1))


def window_lane(kernel: Kernel, target: Target) -> UOp | None:
    """Return the range of the output along which unrolled windows are vectorized; None if there is none."""
    if not target.vector_bytes:
        return None
    lanes = lanes_of(kernel, target)
    short = {1, *(range_size(r) for r in kernel.parallel if range_size(r) in target.core.close_strides
                  and all(stride_of(s.src[1], r) == 1 for s in kernel.stores))}
    options = [r for r in kernel.parallel if range_size(r) >= 4 and kernel.may_have_lanes(r)
               and all(stride_of(s.src[1], r) in short for s in kernel.stores)]
    return max(options, key=lambda r: (min(range_size(r), lanes), range_size(r)), default=None)
