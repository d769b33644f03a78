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
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from tinsmith.codegen.accumulators import adds_only
from tinsmith.codegen.ahead import may_stream
from tinsmith.codegen.bounds import outermost_loops
from tinsmith.codegen.heuristics_cuts import cut_loops
from tinsmith.codegen.heuristics_rows import keep_rows, row_ahead
from tinsmith.codegen.heuristics_scatter import scatter_opts
from tinsmith.codegen.heuristics_transpose import transpose_opts
from tinsmith.codegen.heuristics_windows import window_opts, windows_fit, woven_lanes
from tinsmith.codegen.kernel import Kernel
from tinsmith.codegen.opt import Opt, OptOps
from tinsmith.codegen.render.base import Target
from tinsmith.codegen.roles import Role, range_size
from tinsmith.codegen.tuning import Candidate, access_cycles, name_of
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
from tinsmith.ir.uop import toposort


def finish(kernel: Kernel, target: Target, work: int, streams: bool) -> None:
    """What every way over the loops of cores ends with: steps together, stores past the caches, prefetches, threads.

    Args:
        work: of the kernel before its opts.
        streams: whether results may go past the caches: those of a register tile come in pieces.
    """
    if (together := _steps_together(kernel)) is not None:
        _apply(kernel, OptOps.UPCAST, *together)
    large = sum(_stored_bytes(s) for s in kernel.stores) >= target.core.streamed
    if streams and large and may_stream(kernel):
        kernel.apply(Opt(OptOps.HINT))
        if not kernel.folds:
            stream_ahead(kernel, target.core.streams_ahead)
    if target.vector_bytes:
        look_ahead(kernel, target)
    if target.threads > 1 and work >= target.core.serial_work:
        thread_opts(kernel, target)


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


def _width(r: UOp, lanes: int) -> int:
    """Lanes along a range: all, or as many as cover a short one."""
    size: int = range_size(r)
    return min(lanes, 1 << (size - 1).bit_length())


def _long_first(cycles: dict[UOp, float], alone: float, lanes: int, shortest: int) -> list[UOp]:
    """Ranges that fill whole vectors; if lanes along none of them pay, short ones along which they do."""
    long = [r for r in cycles if range_size(r) >= lanes]
    short = [r for r in cycles if shortest <= range_size(r) < lanes and cycles[r] < alone]
    return short if short and all(cycles[r] >= alone for r in long) else long


def row_ways(kernel: Kernel, target: Target) -> Iterator[Candidate]:
    """Lanes for the first reduction along each of its ranges or of those beside it; short ones are written out."""
    if not kernel.folds:
        return
    lanes, kept = _lanes(kernel, target), kernel.copied()
    if target.vector_bytes:
        keep_rows(kept, target, lanes)
    found = next((_options(kept, target, lanes, over) for over in dict.fromkeys(f.src[1:] for f in kept.folds)
                  if _group(kept, over)), None) if target.vector_bytes else None
    vectors = max(_count(f.src[0].ranges) for f in kernel.folds) / lanes
    alone, options = (found.alone, found.paying()) if found is not None else (0.0, [])
    if windows_fit(kernel):
        least = min(found.cycles.values(), default=alone) if found is not None else alone
        yield Candidate("windows written out", {"memory": vectors * least}, lambda k: window_opts(k, target))
    for r in options:
        assert found is not None
        yield Candidate(f"lanes along {name_of(r)}", {"memory": vectors * found.cycles[r], "loops": vectors},
                        partial(_reduce, kept=kept, target=target, lane=r))
    yield Candidate("no lanes for the first sum", {"memory": vectors * alone, "waiting": vectors * lanes
                    * target.core.latency, "loops": vectors * lanes}, partial(_reduce, kept=kept, target=target))


class _Options(NamedTuple):
    """Ranges that the lanes of reductions over the same ranges may run along, innermost first, and the cycles of a
    vector of what these read; ``worth``: those beside the reductions whose results can be stored then."""

    over: tuple[UOp, ...]
    options: list[UOp]
    cycles: dict[UOp, float]
    alone: float
    worth: list[UOp]

    def paying(self) -> list[UOp]:
        """Those that lanes may be put along, the cheapest first; none if the cheapest pays not for its stores."""
        found = sorted(self.options, key=lambda r: self.cycles[r])
        return [r for r in found if r in self.over or r in self.worth] if found and (
            found[0] in self.over or found[0] in self.worth) else []


def _group(kernel: Kernel, over: tuple[UOp, ...]) -> list[UOp]:
    """Reductions over the same ranges that have no lanes or copies yet."""
    group = [f for f in kernel.folds if f.src[1:] == over]
    return [] if any(x.arg[1].expanded for f in group for x in f.src[0].ranges) else group


def _options(kernel: Kernel, target: Target, lanes: int, over: tuple[UOp, ...]) -> _Options:
    group, core = _group(kernel, over), target.core
    loads = [n for f in group for n in toposort(f.src[0]) if n.op is Ops.LOAD and n.src[0].op is Ops.PARAM]
    beside = [r for r in kernel.parallel if all(r in f.ranges for f in group)]
    ranges = sorted((*over, *beside), key=kernel.order.index, reverse=True)
    cycles = {r: access_cycles(core, lanes, loads, [], r) for r in ranges if kernel.may_have_lanes(r)}
    alone, stored = (access_cycles(core, lanes, loads, of, None) for of in ([], kernel.stores))
    worth = [r for r in beside if access_cycles(core, lanes, loads, kernel.stores, r) <= stored]
    return _Options(over, _long_first(cycles, alone, lanes, core.shortest_lanes), cycles, alone, worth)


def _reduce(kernel: Kernel, kept: Kernel, target: Target, lane: UOp | None = None) -> None:
    """Lanes for every reduction, of the first one along ``lane``, and then for every store."""
    vars(kernel).update(vars(kept.copied()))
    if not target.vector_bytes:
        return
    lanes = _lanes(kernel, target)
    loop, together = _steps_together(kernel) or (None, 1)
    first = True
    for over in dict.fromkeys(f.src[1:] for f in kernel.folds):
        group = _group(kernel, over)
        if not group:
            continue
        best = lane if first else next(iter(_options(kernel, target, lanes, over).paying()), None)
        first = False
        if best is None:
            continue
        if best in over:
            outer, _ = _split(kernel, OptOps.VECTOR, best, _width(best, lanes))
            copies = target.core.copies_of_sums(_together(group)) // (together if loop in group[0].ranges else 1)
            if outer is not None and range_size(outer) >= 4 and copies > 1:
                _split(kernel, OptOps.UNROLL, outer, copies)
        else:
            loads = [n for f in group for n in toposort(f.src[0]) if n.op is Ops.LOAD and n.src[0].op is Ops.PARAM]
            outer, _ = _split(kernel, OptOps.VECTOR, best, _width(best, lanes))
            streams = sum(_stride(n.src[1], best) != 0 for n in loads)
            if outer is not None and range_size(outer) >= 4 and _together(group) <= 2 and streams <= 3:
                _split(kernel, OptOps.UPCAST, outer, 4)
    lanes_for_stores(kernel, target, lanes)


def _together(folds: list[UOp]) -> int:
    """How many reductions share a loop: those of which none needs another's result."""
    loop: dict[UOp, int] = {}
    for f in toposort(folds):
        if f in folds:
            loop[f] = 1 + max((loop[g] for g in toposort(f.src[0]) if g in loop), default=0)
    return max(Counter(loop.values()).values())


def lanes_for_stores(kernel: Kernel, target: Target, lanes: int) -> None:
    """Lanes for stores whose own loops have none yet."""
    for store in list(kernel.stores):
        if store.op is not Ops.STORE or store not in kernel.stores:
            continue
        if any(r.arg[1].expanded for r in store.ranges):
            continue
        inner = [r for r in kernel.parallel if r in store.ranges and not any(r in f.ranges for f in kernel.folds)]
        loads = [n for n in toposort(store.src[2], lambda n: n.op is not Ops.FOLD)
                 if n.op is Ops.LOAD and n.src[0].op is Ops.PARAM]
        cycles = {r: access_cycles(target.core, lanes, loads, [store], r) for r in inner}
        alone = access_cycles(target.core, lanes, loads, [store], None)
        options = [r for r in _long_first(cycles, alone, lanes, target.core.shortest_lanes) if cycles[r] < alone]
        if options:
            best = min(options, key=lambda r: cycles[r])
            _split(kernel, OptOps.VECTOR, best, _width(best, lanes))


def scan_ways(kernel: Kernel, target: Target) -> Iterator[Candidate]:
    """Steps along memory are combined by vectors; else each waits for the one before it, and several chains go on side
    by side: vectors, then copies."""
    lanes, core = _lanes(kernel, target), target.core
    store, (ordered,) = kernel.stores[0], kernel.ordered
    beside = [r for r in kernel.parallel if _stride(store.src[1], r) == 1 and range_size(r) >= 4]
    weighted = any(n.op is Ops.PREFIX and n.arg is Ops.MULADD for n in toposort(kernel.sink))
    steps = _count(store.ranges)
    if target.vector_bytes and not weighted and range_size(ordered) % lanes == 0 and len(store.src) == 3 and all(
            _stride(n.src[1], ordered) in (0, 1) for n in (store, *kernel.loads)):
        yield Candidate("steps combined by vectors", {"steps": steps * lanes.bit_length() / lanes},
                        lambda k: _apply(k, OptOps.VECTOR, ordered, lanes))
    if beside and target.vector_bytes:
        width = min(lanes, _power_of_two(range_size(beside[-1])))
        yield Candidate(f"lanes along {name_of(beside[-1])}", {"steps": steps * core.latency / core.chains / width},
                        partial(_chains, target=target, lane=beside[-1], lanes=width))
    chains = min(core.chains, max(map(range_size, kernel.parallel[-1:]), default=1))
    yield Candidate("chains side by side", {"steps": steps * core.latency / chains},
                    partial(_chains, target=target, lane=None, lanes=1))


def _chains(kernel: Kernel, target: Target, lane: UOp | None, lanes: int) -> None:
    """Copies of the lines of a scan, with lanes along ``lane``."""
    chains = kernel.parallel
    if lane is not None:
        outer, _ = _split(kernel, OptOps.VECTOR, lane, lanes)
        chains = [] if outer is None else [outer]
    if chains and range_size(chains[-1]) >= 2:
        _split(kernel, OptOps.UPCAST, chains[-1], min(target.core.chains, range_size(chains[-1])))


def map_ways(kernel: Kernel, target: Target) -> Iterator[Candidate]:
    """Lanes along each range; or loops are cut where their formula changes, and each nest of them gets its lanes."""
    if kernel.folds or not target.vector_bytes:
        return
    lanes, pieces = _lanes(kernel, target), kernel.copied()
    whole = list(nest_ways(kernel, target, lanes, kernel.stores))
    yield from whole
    plain = all(s.op is Ops.STORE for s in kernel.stores)
    share = cut_loops(pieces, lanes, target.core.pieces) if plain else 1.0
    if share < 1:
        least = min(w.cycles for w in whole)
        yield Candidate("loops cut where their formula changes", {"memory": least * share},
                        partial(_nests, pieces=pieces, target=target, lanes=lanes))


def _nests(kernel: Kernel, pieces: Kernel, target: Target, lanes: int) -> None:
    vars(kernel).update(vars(pieces.copied()))
    for offset in range(len(kernel.stores)):
        nest = [s for s in kernel.stores if s.ranges == kernel.stores[offset].ranges]
        if not any(r.arg[1].expanded for r in nest[0].ranges):
            min(nest_ways(kernel, target, lanes, nest), key=lambda w: w.cycles).apply(kernel)
    for r in [r for r in kernel.parallel if range_size(r) < target.core.shortest_lanes]:
        _apply(kernel, OptOps.UPCAST, r)


def nest_ways(kernel: Kernel, target: Target, lanes: int, nest: list[UOp]) -> Iterator[Candidate]:
    """Lanes along memory for the statements of a nest of loops, or none."""
    stores = [s for s in nest if s.op is Ops.STORE]
    scatters = [s for s in nest if s.op is Ops.SCATTER_STORE and s.src[4].arg[1] is not Role.BLOCK]
    parallel = [r for r in kernel.parallel if not any(r is s.src[4] for s in scatters)]
    loads = [n for n in toposort(nest) if n.op is Ops.LOAD and n.src[0].op is Ops.PARAM]
    options = [r for r in parallel if range_size(r) >= min(lanes, 4) and all(r in s.ranges for s in nest)]
    vectors = max(_count(s.ranges) for s in nest) / lanes
    alone = access_cycles(target.core, lanes, loads, stores, None)
    for r in reversed(options):
        cycles = access_cycles(target.core, lanes, loads, stores, r)
        if cycles < alone and all(_stride(s.src[1], r) == 1 for s in scatters):
            some = alone - (alone - cycles) * min(1.0, range_size(r) / lanes)
            amount = min(lanes * _narrow(nest, loads, r), _power_of_two(range_size(r)))
            yield Candidate(f"lanes along {name_of(r)}", {"memory": vectors * some}, partial(
                _nest, target=target, nest=nest, lane=r, amount=amount))
    yield Candidate("no whole vectors", {"memory": vectors * alone}, lambda k: None if scatters or not options
                    else woven_lanes(k, target, lanes, nest))


def _nest(kernel: Kernel, target: Target, nest: list[UOp], lane: UOp, amount: int) -> None:
    """Lanes along memory; strided reads get an inner loop that walks along their lines."""
    whole, scatters = len(nest) == len(kernel.stores), any(
        s.op is Ops.SCATTER_STORE and s.src[4].arg[1] is not Role.BLOCK for s in nest)
    outer, inner = _split(kernel, OptOps.VECTOR, lane, amount)
    lanes_of_loop = {outer, inner}
    if scatters:
        return scatter_opts(kernel, target, outer) if outer is not None else None
    if whole:
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

