"""The analytic model that chooses opts: a roofline per structure, no measuring.

Five structures cover what a CPU core runs well:

* contraction: a register tile of (rows × vectors) accumulators; one operand is loaded as vectors, from a packed panel
  in local memory where that pays, the other as scalars spread over the lanes (``heuristics_tiles``);
* reduction: lanes and several accumulators along the reduced range if memory runs along it, else lanes beside it;
* running values: lanes along the steps, combined in a register, or beside them, or several rows whose chains overlap;
* windows of a few elements: written out, with lanes beside each other (``heuristics_windows``);
* elementwise: lanes along the range that memory runs along, and loops ordered so that strided reads reuse their lines.
"""
from __future__ import annotations

from collections import Counter

from tinsmith.codegen.accumulators import adds_only
from tinsmith.codegen.ahead import may_stream
from tinsmith.codegen.bounds import outermost_loops
from tinsmith.codegen.heuristics_cuts import cut_loops
from tinsmith.codegen.heuristics_rows import keep_rows, row_ahead
from tinsmith.codegen.heuristics_scatter import scatter_opts
from tinsmith.codegen.heuristics_tiles import apply_tile, best_tile
from tinsmith.codegen.heuristics_transpose import transpose_opts
from tinsmith.codegen.heuristics_windows import window_opts, woven_lanes
from tinsmith.codegen.kernel import Kernel
from tinsmith.codegen.matrix_opts import apply_plan, best_plan
from tinsmith.codegen.opt import Opt, OptOps
from tinsmith.codegen.render.base import Target
from tinsmith.codegen.roles import Role, range_size
from tinsmith.codegen.tuning import apply_to as _apply
from tinsmith.codegen.tuning import count_of as _count
from tinsmith.codegen.tuning import lanes_of as _lanes
from tinsmith.codegen.tuning import power_of_two as _power_of_two
from tinsmith.codegen.tuning import split as _split
from tinsmith.codegen.tuning import stored_bytes as _stored_bytes
from tinsmith.codegen.tuning import stride_of as _stride
from tinsmith.codegen.tuning import work_of as _work
from tinsmith.core.dtypes import dtypes
from tinsmith.ir import Ops, UOp
from tinsmith.ir.linear import from_linear, linear_form
from tinsmith.ir.symbolic import is_made_of, values_over
from tinsmith.ir.uop import toposort


def choose_opts(kernel: Kernel, target: Target) -> None:
    """Apply the opts that the model expects to be fastest on ``target``."""
    if any(not isinstance(range_size(r), int) for r in kernel.order):
        return symbolic_opts(kernel, target)
    work = _work(kernel)
    tile = best_tile(kernel, target) if target.vector_bytes else None
    plan = best_plan(kernel, target)
    if plan is not None and (tile is None or plan.cycles < tile.cycles):
        apply_plan(kernel, target, plan)
    elif tile is not None:
        apply_tile(kernel, target, tile)
    elif kernel.ordered:
        scan_opts(kernel, target)
    elif kernel.folds and window_opts(kernel, target):
        pass
    elif kernel.folds:
        reduce_opts(kernel, target)
    elif target.vector_bytes:
        elementwise_opts(kernel, target)
    if (together := _steps_together(kernel)) is not None:
        _apply(kernel, OptOps.UPCAST, *together)
    large = sum(_stored_bytes(s) for s in kernel.stores) >= target.core.streamed
    if tile is None and plan is None and large and may_stream(kernel):
        kernel.apply(Opt(OptOps.HINT))
        if not kernel.folds:
            stream_ahead(kernel, target.core.streams_ahead)
    if target.vector_bytes:
        look_ahead(kernel, target)
    if target.threads > 1 and work >= target.core.serial_work:
        thread_opts(kernel, target)
    return None


def _steps_together(kernel: Kernel) -> tuple[UOp, int] | None:
    """A loop of sums that stay in memory, and how many of its steps are computed together."""
    for loop in kernel.order:
        fits = [n for n in kernel.target.core.steps_together if range_size(loop) > n and range_size(loop) % n == 0]
        if loop.arg[1] is Role.BLOCK and fits and adds_only(kernel, loop):
            return loop, fits[0]
    return None


def look_ahead(kernel: Kernel, target: Target) -> None:
    """Prefetch what streams through a reduction from beyond the second cache: rows of an unpacked panel that lie far
    apart, which no hardware follows, and long sums a page ahead."""
    fetched = set[UOp]()  # memory of which whole rows are
    filling = {r for n in kernel.nodes if n.op is Ops.STAGE for r in n.src[1:]}
    for load in kernel.loads:
        loops = [r for r in kernel.order if r in load.src[1].ranges and not r.arg[1].expanded]
        lanes = any(r.arg[1] is Role.VECTOR for r in load.src[1].ranges)
        fills = bool(loops) and loops[-1] in filling
        if not loops or not lanes or not (fills or loops[-1].arg[1] is Role.REDUCE) or len(load.src) > 2:
            continue
        size, step = load.dtype.itemsize, _stride(load.src[1], loops[-1])
        if row := row_ahead(kernel, load, loops, target):
            kernel.apply(Opt(OptOps.HINT, kernel.loads.index(load), (row, 0 if fills else 1)))
            fetched.add(load.src[0])
        if fills or load.src[0] in fetched:
            continue
        if not step or _count(load.src[1].ranges) * size <= target.l2_bytes // 2 or range_size(loops[-1]) < 16:
            continue
        unrolled = _count(frozenset(r for r in load.src[1].ranges if r.arg[1] is Role.UNROLL))
        far = abs(step) * size // unrolled >= 1024
        ahead = target.core.rows_ahead // unrolled, target.core.bytes_ahead // (abs(step) * size)
        distance = ahead[not far]
        if 0 < distance < range_size(loops[-1]) and load in kernel.loads:
            kernel.apply(Opt(OptOps.HINT, kernel.loads.index(load), distance))


def stream_ahead(kernel: Kernel, nbytes: int) -> None:
    """Prefetch what streams in beside results that stream out: while a core computes, few of its loads wait."""
    for load in kernel.loads:
        loops = [r for r in kernel.order if r in load.src[1].ranges and not r.arg[1].expanded]
        step = (_stride(load.src[1], loops[-1]) or 0) * load.dtype.itemsize if loops else 0
        if 0 < step <= nbytes // 4 and range_size(loops[-1]) > nbytes // step and load in kernel.loads:
            kernel.apply(Opt(OptOps.HINT, kernel.loads.index(load), nbytes // step))


def symbolic_opts(kernel: Kernel, target: Target) -> None:
    """With sizes known only at run time, ranges of fixed size can still become lanes, copies and threads."""
    if target.vector_bytes:
        symbolic_lanes(kernel, target)
    outer = next(iter(kernel.ranges), None)
    if target.threads > 1 and outer in kernel.parallel and _work(kernel) >= target.core.serial_work:
        assert outer is not None
        if isinstance(range_size(outer), int) and all(outer in s.ranges for s in kernel.stores):
            _apply(kernel, OptOps.THREAD, outer)


def symbolic_lanes(kernel: Kernel, target: Target) -> None:
    """Lanes along the results, and several vectors of them where each is a sum; else along what is summed up."""
    lanes = _lanes(kernel, target)

    def whole(r: UOp) -> bool:
        size = range_size(r)
        return isinstance(size, int) and size % lanes == 0 and kernel.may_have_lanes(r)

    for r in reversed(kernel.parallel):
        if whole(r) and all(_stride(s.src[1], r) == 1 for s in kernel.stores):
            outer, _ = _split(kernel, OptOps.VECTOR, r, lanes)
            if outer is not None and kernel.folds:
                _split(kernel, OptOps.UPCAST, outer, min(4, range_size(outer)))
            return
    for r in kernel.reduces:
        loads = [n for f in kernel.folds if r in f.src[1:] for n in toposort(f.src[0]) if n.op is Ops.LOAD]
        strides = {_stride(n.src[1], r) for n in loads}
        if whole(r) and strides <= {0, 1} and 1 in strides:
            outer, _ = _split(kernel, OptOps.VECTOR, r, lanes)
            if outer is not None:
                _split(kernel, OptOps.UNROLL, outer, min(4, range_size(outer)))
            return


# *** reductions and elementwise work ***


def _score(loads: list[UOp], stores: list[UOp], r: UOp) -> float:
    """How well memory runs along ``r``: whole vectors count for it, gathers against it; loads of few elements, which
    stay in registers or near, hardly count."""
    total = 0.0
    most = max((_count(n.src[1].ranges) for n in (*loads, *stores)), default=1)
    for n in loads:
        stride, share = _stride(n.src[1], r), _count(n.src[1].ranges) / most
        along = 0.75 if stride is None and _is_near(n.src[1], r) else -1.0
        total += {0: 0.25, 1: 1.0}.get(stride if stride is not None else -1, along) * share
    for n in stores:
        stride = _stride(n.src[1], r)
        total += {0: 0.0, 1: 1.5}.get(stride if stride is not None else -1, -2.0)
    return total


def _is_near(index: UOp, r: UOp) -> bool:
    """Whether neighbours along ``r`` share elements that lie side by side: what a window of two had as its maximum."""
    own = {t: factor for t, factor in linear_form(index)[0].items() if r in t.ranges}
    if not all(is_made_of(t, r) for t in own):
        return False
    positions = values_over(from_linear(own, 0, index), r)
    return max(positions) - min(positions) < len(positions)


def _width(r: UOp, lanes: int) -> int:
    """Lanes along a range: all, or as many as cover a short one."""
    size: int = range_size(r)
    return min(lanes, 1 << (size - 1).bit_length())


def _long_first(scores: dict[UOp, float], lanes: int, shortest: int) -> list[UOp]:
    """Ranges that fill whole vectors; if memory runs along none of them, short ones that it runs along."""
    long = [r for r in scores if range_size(r) >= lanes]
    short = [r for r in scores if shortest <= range_size(r) < lanes and scores[r] > 0]
    return short if short and all(scores[r] <= 0 for r in long) else long


def reduce_opts(kernel: Kernel, target: Target) -> None:
    """Lanes for every reduction and then for every store."""
    if not target.vector_bytes:
        return
    lanes = _lanes(kernel, target)
    keep_rows(kernel, target, lanes)
    loop, together = _steps_together(kernel) or (None, 1)
    for ranges in dict.fromkeys(f.src[1:] for f in kernel.folds):
        group = [f for f in kernel.folds if f.src[1:] == ranges]
        if any(x.arg[1].expanded for f in group for x in f.src[0].ranges) or not group:
            continue
        loads = [n for f in group for n in toposort(f.src[0]) if n.op is Ops.LOAD and n.src[0].op is Ops.PARAM]
        beside = [r for r in kernel.parallel if all(r in f.ranges for f in group)]
        scores = {r: _score(loads, [], r) for r in (*ranges, *beside) if kernel.may_have_lanes(r)}
        options = _long_first(scores, lanes, kernel.target.core.shortest_lanes)
        if not options:
            continue
        best = max(options, key=lambda r: (scores[r], kernel.order.index(r)))
        if best in ranges:
            outer, _ = _split(kernel, OptOps.VECTOR, best, _width(best, lanes))
            copies = target.core.copies_of_sums(_together(group)) // (together if loop in group[0].ranges else 1)
            if outer is not None and range_size(outer) >= 4 and copies > 1:
                _split(kernel, OptOps.UNROLL, outer, copies)
        elif _score(loads, kernel.stores, best) >= 0:
            outer, _ = _split(kernel, OptOps.VECTOR, best, _width(best, lanes))
            streams = sum(_stride(n.src[1], best) != 0 for n in loads)
            if outer is not None and range_size(outer) >= 4 and _together(group) <= 2 and streams <= 3:
                _split(kernel, OptOps.UPCAST, outer, 4)
    lanes_for_stores(kernel, lanes)


def _together(folds: list[UOp]) -> int:
    """How many reductions share a loop: those of which none needs another's result."""
    loop: dict[UOp, int] = {}
    for f in toposort(folds):
        if f in folds:
            loop[f] = 1 + max((loop[g] for g in toposort(f.src[0]) if g in loop), default=0)
    return max(Counter(loop.values()).values())


def lanes_for_stores(kernel: Kernel, lanes: int) -> None:
    """Lanes for stores whose own loops have none yet."""
    for store in list(kernel.stores):
        if store.op is not Ops.STORE or store not in kernel.stores:
            continue
        if any(r.arg[1].expanded for r in store.ranges):
            continue
        inner = [r for r in kernel.parallel if r in store.ranges and not any(r in f.ranges for f in kernel.folds)]
        loads = [n for n in toposort(store.src[2], lambda n: n.op is not Ops.FOLD)
                 if n.op is Ops.LOAD and n.src[0].op is Ops.PARAM]
        scores = {r: _score(loads, [store], r) for r in inner}
        options = [r for r in _long_first(scores, lanes, kernel.target.core.shortest_lanes) if scores[r] > 0]
        if options:
            best = max(options, key=lambda r: scores[r])
            _split(kernel, OptOps.VECTOR, best, _width(best, lanes))


def scan_opts(kernel: Kernel, target: Target) -> None:
    """Steps along memory are combined by vectors; else each waits for the one before it, and several chains go on side
    by side: vectors, then copies."""
    lanes = _lanes(kernel, target)
    store, (ordered,) = kernel.stores[0], kernel.ordered
    beside = [r for r in kernel.parallel if _stride(store.src[1], r) == 1 and range_size(r) >= 4]
    weighted = any(n.op is Ops.PREFIX and n.arg is Ops.MULADD for n in toposort(kernel.sink))
    if target.vector_bytes and not weighted and range_size(ordered) % lanes == 0 and len(store.src) == 3 and all(
            _stride(n.src[1], ordered) in (0, 1) for n in (store, *kernel.loads)):
        return _apply(kernel, OptOps.VECTOR, ordered, lanes)
    if beside and target.vector_bytes:
        outer, _ = _split(kernel, OptOps.VECTOR, beside[-1], min(lanes, _power_of_two(range_size(beside[-1]))))
        chains = [] if outer is None else [outer]
    else:
        chains = kernel.parallel
    if chains and range_size(chains[-1]) >= 2:
        _split(kernel, OptOps.UPCAST, chains[-1], min(target.core.chains, range_size(chains[-1])))
    return None


def elementwise_opts(kernel: Kernel, target: Target) -> None:
    """Loops are cut where their formula changes; then each nest of them gets its lanes."""
    lanes = _lanes(kernel, target)
    if all(s.op is Ops.STORE for s in kernel.stores) and cut_loops(kernel, lanes):
        for offset in range(len(kernel.stores)):
            nest = [s for s in kernel.stores if s.ranges == kernel.stores[offset].ranges]
            if not any(r.arg[1].expanded for r in nest[0].ranges):
                nest_opts(kernel, target, lanes, nest)
        for r in [r for r in kernel.parallel if range_size(r) < target.core.shortest_lanes]:
            _apply(kernel, OptOps.UPCAST, r)
        return None
    return nest_opts(kernel, target, lanes, kernel.stores)


def nest_opts(kernel: Kernel, target: Target, lanes: int, nest: list[UOp]) -> None:
    """Lanes along memory; strided reads get an inner loop that walks along their lines."""
    stores = [s for s in nest if s.op is Ops.STORE]
    scatters = [s for s in nest if s.op is Ops.SCATTER_STORE and s.src[4].arg[1] is not Role.BLOCK]
    parallel = [r for r in kernel.parallel if not any(r is s.src[4] for s in scatters)]
    loads = [n for n in toposort(nest) if n.op is Ops.LOAD and n.src[0].op is Ops.PARAM]
    options = [r for r in parallel if range_size(r) >= min(lanes, 4) and all(r in s.ranges for s in nest)]
    if not options:
        return None
    full = {r: min(1.0, range_size(r) / lanes) for r in options}
    best = max(options, key=lambda r: (_score(loads, stores, r) * full[r], kernel.order.index(r)))
    if _score(loads, stores, best) <= 0 or (scatters and not all(_stride(s.src[1], best) == 1 for s in scatters)):
        return None if scatters else woven_lanes(kernel, target, lanes, nest)
    amount = min(lanes * _narrow(nest, loads, best), _power_of_two(range_size(best)))
    outer, lane = _split(kernel, OptOps.VECTOR, best, amount)
    lanes_of_loop = {outer, lane}
    if scatters:
        return scatter_opts(kernel, target, outer) if outer is not None else None
    if len(nest) == len(kernel.stores):
        share_work(kernel, outer)
    loops = kernel.parallel
    along = [r for n in kernel.loads for r in loops
             if n.src[1].ranges & lanes_of_loop and _stride(n.src[1], r) == 1 and r is not outer]
    if along:
        transpose_opts(kernel, target, outer, along[0], amount)
    return None


def _narrow(nest: list[UOp], loads: list[UOp], r: UOp) -> int:
    """How many times as many lanes fill a vector as 32-bit ones, where narrow elements are only copied along ``r``."""
    copied = all(s.src[2].op is Ops.LOAD for s in nest) and all(_stride(n.src[1], r) in (0, 1) for n in loads)
    return max(4 // max(s.src[2].dtype.itemsize for s in nest), 1) if copied else 1


def share_work(kernel: Kernel, lane_loop: UOp | None) -> None:
    """A short range on which less than half of the work depends is written out, so that the rest is done once; and one
    whose every iteration reads an input of its own, as when tensors are stacked, so that it asks for no other."""
    core = kernel.target.core
    for r in kernel.parallel:
        if r is lane_loop or range_size(r) > core.written_out:
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


def thread_opts(kernel: Kernel, target: Target) -> None:
    """Split the outermost loop over the workers, joined with the next where it is too short to share out evenly."""
    for _ in range(2):
        loops = [r for r in kernel.parallel if all(r in s.ranges for s in kernel.stores)]
        if not loops and (apart := outermost_loops(kernel)) and apart <= set(kernel.parallel):
            break
        if not loops or kernel.ranges[0] is not loops[0]:
            return
        outer = loops[0]
        size = range_size(outer)
        uneven = size < 4 * target.threads and size % target.threads != 0
        whole = not any(r.arg[0] in kernel.full for r in loops[:2])
        if uneven and whole and len(loops) > 1 and not _stage_between(kernel, outer, loops[1]):
            kernel.apply(Opt(OptOps.MERGE, kernel.ranges.index(outer), kernel.ranges.index(loops[1])))
            continue
        break
    outer = kernel.parallel[0]
    if range_size(outer) > 1 and kernel.ranges[0] is outer:
        _apply(kernel, OptOps.THREAD, outer)


def _stage_between(kernel: Kernel, a: UOp, b: UOp) -> bool:
    """Whether a stage or reduction is computed inside loop a but outside loop b."""
    return any(n.op in (Ops.STAGE, Ops.FOLD) and a in n.ranges and b not in n.ranges for n in toposort(kernel.sink))

