"""The analytic model that chooses opts: a roofline per structure, no measuring.

Five structures cover what a CPU core runs well:

* contraction: a register tile of (rows × vectors) accumulators; one operand is loaded as vectors, from a packed panel
  in near memory where that pays, the other as scalars spread over the lanes;
* reduction: lanes and several accumulators along the reduced range if memory runs along it, else lanes beside it;
* running values: lanes along the steps, combined in a register, or beside them, or several rows whose chains overlap;
* windows of a few elements: written out, with lanes beside each other (``heuristics_windows``);
* elementwise: lanes along the range that memory runs along, and loops ordered so that strided reads reuse their lines.
"""
from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from tinsmith.codegen.ahead import may_stream
from tinsmith.codegen.heuristics_rows import keep_rows, row_ahead
from tinsmith.codegen.heuristics_scatter import scatter_opts
from tinsmith.codegen.heuristics_transpose import transpose_opts
from tinsmith.codegen.heuristics_windows import window_opts
from tinsmith.codegen.hidden import covered_steps
from tinsmith.codegen.kernel import Kernel, windows
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
from tinsmith.ir.uop import toposort

SERIAL_WORK = 1 << 14  # elements × operations below which waking a second core costs more than it saves
FULL_UNROLL = 6
PAGE = 4096
WAYS = 16  # of a second cache
SCAN_CHAINS = 4  # as many additions as one takes cycles; more would read too many lines of one cache set
STREAM_BYTES = 32 << 20  # results from here on are written past the caches: they would not stay there
LARGEST_STAGE = 4 << 20
SHARED_COPIES = 4  # iterations that are written out so that they share work
SHARED_WORK = 16  # operations per element that are worth it
PEELED = 4  # tiles of a row of which the first and last leave out what a window does not cover
PREFETCH_ROWS = 8  # how far ahead the rows of a panel are fetched that is too small in use to be packed
PREFETCH_BYTES = 4 << 10  # and how far ahead a row is that streams through a sum
STREAM_AHEAD = 2 << 10  # the same for elementwise work that streams in and out


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
    large = sum(_stored_bytes(s) for s in kernel.stores) >= STREAM_BYTES
    if tile is None and plan is None and large and may_stream(kernel):
        kernel.apply(Opt(OptOps.HINT))
        if not kernel.folds:
            stream_ahead(kernel)
    if target.vector_bytes:
        look_ahead(kernel, target)
    if target.threads > 1 and work >= SERIAL_WORK:
        thread_opts(kernel, target)
    return None


def look_ahead(kernel: Kernel, target: Target) -> None:
    """Prefetch what streams through a reduction from beyond the second cache: rows of an unpacked panel that lie far
    apart, which no hardware follows, and long sums a page ahead."""
    for load in kernel.loads:
        loops = [r for r in kernel.order if r in load.src[1].ranges and not r.arg[1].expanded]
        lanes = any(r.arg[1] is Role.VECTOR for r in load.src[1].ranges)
        if not loops or not lanes or loops[-1].arg[1] is not Role.REDUCE or len(load.src) > 2:
            continue
        size, step = load.dtype.itemsize, _stride(load.src[1], loops[-1])
        if row := row_ahead(kernel, load, loops, target):
            kernel.apply(Opt(OptOps.HINT, kernel.loads.index(load), (row, 1)))
            continue
        if not step or _count(load.src[1].ranges) * size <= target.l2_bytes // 2 or range_size(loops[-1]) < 16:
            continue
        unrolled = _count(frozenset(r for r in load.src[1].ranges if r.arg[1] is Role.UNROLL))
        far = abs(step) * size // unrolled >= 1024
        distance = PREFETCH_ROWS // unrolled if far else PREFETCH_BYTES // (abs(step) * size)
        if 0 < distance < range_size(loops[-1]) and load in kernel.loads:
            kernel.apply(Opt(OptOps.HINT, kernel.loads.index(load), distance))


def stream_ahead(kernel: Kernel) -> None:
    """Prefetch what streams in beside results that stream out: while a core computes, few of its loads wait."""
    for load in kernel.loads:
        loops = [r for r in kernel.order if r in load.src[1].ranges and not r.arg[1].expanded]
        step = (_stride(load.src[1], loops[-1]) or 0) * load.dtype.itemsize if loops else 0
        if 0 < step <= STREAM_AHEAD // 4 and range_size(loops[-1]) > STREAM_AHEAD // step and load in kernel.loads:
            kernel.apply(Opt(OptOps.HINT, kernel.loads.index(load), STREAM_AHEAD // step))


def symbolic_opts(kernel: Kernel, target: Target) -> None:
    """With sizes known only at run time, ranges of fixed size can still become lanes, copies and threads."""
    if target.vector_bytes:
        symbolic_lanes(kernel, target)
    outer = next(iter(kernel.ranges), None)
    if target.threads > 1 and outer in kernel.parallel and _work(kernel) >= SERIAL_WORK:
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


# *** contractions ***


@dataclass
class Tile:
    """A register tile for one contraction: lanes along ``lane``, rows along ``rows`` (innermost first)."""

    fold: UOp
    lane: UOp
    lanes: int
    vectors: int
    rows: list[tuple[UOp, int]]
    panel: UOp  # the operand that is loaded as vectors
    scalar: UOp  # the operand that is spread
    cycles: float
    pack: bool

    @property
    def height(self) -> int:
        """Rows of the tile."""
        total = 1
        for _, amount in self.rows:
            total *= amount
        return total


def _operands(fold: UOp) -> tuple[UOp, UOp] | None:
    body = fold.src[0]
    if fold.arg is not Ops.ADD or body.op is not Ops.MUL or not body.dtype.is_float:
        return None
    return body.src[0], body.src[1]


def best_tile(kernel: Kernel, target: Target) -> Tile | None:
    """The cheapest register tile for the kernel's contraction; None if it holds none worth tiling."""
    folds = [f for f in kernel.folds if _operands(f)]
    if len(kernel.folds) != 1 or not folds or any(s.op is not Ops.STORE for s in kernel.stores):
        return None
    fold = folds[0]
    a, b = _operands(fold) or (fold, fold)
    candidates = []
    for panel, scalar in ((a, b), (b, a)):
        own = [r for r in kernel.order if r in panel.ranges - scalar.ranges and r in fold.ranges]
        other = [r for r in kernel.order if r in scalar.ranges - panel.ranges and r in fold.ranges]
        for lane in own:
            if range_size(lane) >= 4 and other:
                candidates += _tiles(kernel, target, fold, panel, scalar, lane, other)
    return min(candidates, key=lambda t: t.cycles, default=None)


def _load(operand: UOp) -> UOp | None:
    """The load that an operand is made of, below casts and cheap arithmetic."""
    loads = [n for n in toposort(operand) if n.op is Ops.LOAD]
    return loads[0] if len(loads) == 1 else None


def _tiles(kernel: Kernel, target: Target, fold: UOp, panel: UOp, scalar: UOp, lane: UOp,
           other: list[UOp]) -> list[Tile]:
    """Tiles with lanes along ``lane``, one for each sensible number of vectors and rows."""
    lanes = min(_lanes(kernel, target), _power_of_two(range_size(lane)))
    load = _load(scalar)
    rows = sorted(other, key=lambda r: abs(_stride(load.src[1], r) or 1 << 40) if load is not None else 0)
    inner = max(fold.src[1:], key=kernel.order.index)
    steps = _unroll_amount(range_size(inner))
    out = []
    for vectors in range(1, min(4, -(-range_size(lane) // lanes)) + 1):
        limits = {(target.vector_registers - 1) // vectors - 1, (target.vector_registers + 4 - steps) // (vectors + 1)}
        for limit in limits:
            tile = Tile(fold, lane, lanes, vectors, _choose_rows(rows, limit), panel, scalar, 0.0, False)
            slides = load is not None and any(_same_step(load.src[1], r, inner) for r, _ in tile.rows)
            tile.cycles = _tile_cycles(kernel, target, tile, other)
            if slides and tile.height * (vectors + 1) + steps > target.vector_registers + 4:
                tile.cycles *= 1.7  # the inner loop cannot be written out: it would run out of registers
            if not (tile.pack and _count(frozenset(fold.src[1:])) * vectors * lanes * 4 > LARGEST_STAGE):
                out.append(tile)
    return out


def _tile_cycles(kernel: Kernel, target: Target, tile: Tile, other: list[UOp]) -> float:
    """Estimated cycles of one core, and whether the panel is to be packed: two fused multiply-adds and two loads per
    cycle, edges that waste lanes and rows, the copy into the panel, and stores that do not run along the lanes."""
    fold, lane, lanes, vectors, height = tile.fold, tile.lane, tile.lanes, tile.vectors, tile.height
    size: int = range_size(lane)
    load = _load(tile.panel)
    fill = size / (-(-size // lanes) * lanes)
    count = -(-size // lanes)
    fill *= 0.4 + 0.6 * count / (-(-count // vectors) * vectors)  # the last tile may have fewer vectors
    for r, amount in tile.rows:
        fill *= 0.4 + 0.6 * range_size(r) / (-(-range_size(r) // amount) * amount)
    step = max(height * vectors / 2, (height + vectors) / 2, 2.0) + 0.5
    cycles: float = _count(fold.src[0].ranges) / (height * vectors * lanes * fill) * step
    if not all(_stride(s.src[1], lane) in (0, 1) for s in kernel.stores):
        cycles += _count(fold.ranges) * 1.2
    if _crowds_a_set(_load(tile.scalar), fold):
        cycles *= 1.3  # measured: 7.1 against 5.3 ms for 2048 × 256 results of 512 products
    along = load is not None and _stride(load.src[1], lane) == 1
    guarded = load is None or len(load.src) > 2
    reuse = _count(frozenset(other))
    pitch, width = abs(_largest_stride(load, fold)) * 4, vectors * lanes * 4
    room = target.l2_bytes * _share_of_sets(pitch, width, target.l2_bytes)
    apart = pitch >= 2048 or 2 * width * _count(frozenset(fold.src[1:])) >= room
    again = reuse > 2 * height if _is_narrow(load) else reuse >= 8 * height and apart
    tile.pack = not along or guarded or again
    if tile.pack:
        outside = any(load is not None and _stride(load.src[1], r) == 1 for r in kernel.parallel if r is not lane)
        each = 0.15 if along else 12 if outside else 1.5  # a line of memory per element where panels go along memory
        return cycles + _count(tile.panel.ranges) * each
    cycles *= 1 + 1 / height if _is_narrow(load) else 1
    return cycles * 1.02 if reuse > height else cycles


def _crowds_a_set(scalar: UOp | None, fold: UOp) -> bool:
    """Whether every step of a long reduction reads a line of the same few sets of the caches: pages that lie apart."""
    if scalar is None or _count(frozenset(fold.src[1:])) < 128:
        return False
    step = abs(_stride(scalar.src[1], fold.src[-1]) or 0) * scalar.dtype.itemsize
    return step >= PAGE and step % PAGE == 0


def _share_of_sets(pitch: int, width: int, cache: int) -> float:
    """The part of a cache's sets that rows of ``width`` bytes fall into which lie ``pitch`` bytes apart."""
    way = max(cache // WAYS, 1)
    return min(1.0, width / math.gcd(pitch, way)) if pitch else 1.0


def _is_narrow(load: UOp | None) -> bool:
    """16-bit floats, which are to be widened once, not at every use."""
    return load is not None and load.dtype.is_float and load.dtype.itemsize == 2


def _same_step(index: UOp, a: UOp, b: UOp) -> bool:
    """Whether an index moves equally far along both ranges: a window sliding over rows."""
    step = _stride(index, a)
    return bool(step) and abs(step or 0) == abs(_stride(index, b) or 0)


def _unroll_amount(size: int) -> int:
    return size if size <= FULL_UNROLL else (4 if size % 4 == 0 else 2)


def _largest_stride(load: UOp | None, fold: UOp) -> int:
    if load is None:
        return 0
    return max((abs(_stride(load.src[1], r) or 0) for r in fold.src[1:]), default=0)


def _choose_rows(rows: list[UOp], limit: int) -> list[tuple[UOp, int]]:
    """Row ranges and amounts whose product fits ``limit``: whole small ranges, else a divisor, else what fits."""
    chosen: list[tuple[UOp, int]] = []
    for r in rows:
        size = range_size(r)
        if limit < 2:
            break
        best = max(range(1, min(limit, size) + 1),
                   key=lambda m: (size / (-(-size // m) * m) * m / (m + 1.5), m))
        if best > 1:
            chosen.append((r, best))
            limit //= best
        if limit < 3:
            break
    return chosen


def apply_tile(kernel: Kernel, target: Target, tile: Tile) -> None:
    """Stage guarded scalars as padded tiles, split rows and lanes, pack the panel, order the loops, unroll."""
    if covered_steps(kernel):
        kernel.apply(Opt(OptOps.SKIP))
    scalar_load = _load(tile.scalar)
    lane_number, rows = tile.lane, list(tile.rows)
    again = tile.pack and _is_narrow(scalar_load) and range_size(tile.lane) > tile.vectors * tile.lanes
    if scalar_load is not None and (len(scalar_load.src) > 2 or again):
        _stage_guarded(kernel, scalar_load, rows, target)
    outer_rows: list[UOp] = []
    for r, amount in rows:
        outer, _ = _split(kernel, OptOps.UPCAST, r, amount)
        if outer is not None:
            outer_rows.append(outer)
    lane_outer, _ = _split(kernel, OptOps.VECTOR, lane_number, tile.lanes)
    if lane_outer is not None and tile.vectors > 1:
        lane_outer, _ = _split(kernel, OptOps.UPCAST, lane_outer, min(tile.vectors, range_size(lane_outer)))
    panel = _panel_load(kernel)
    batch = [r for r in kernel.parallel if panel is not None and r in panel.ranges and r is not lane_outer]
    _order_loops(kernel, batch, lane_outer)
    if tile.pack and panel is not None:
        _pack(kernel, panel, batch, lane_outer, target)
    _unroll(kernel, target)
    for outer in outer_rows:
        _peel_edges(kernel, outer)


def _peel_edges(kernel: Kernel, loop: UOp) -> None:
    """Write out a short loop over tiles if its first or last ones reach outside of a window by steps written out."""
    steps = {r.arg[0] for r in kernel.order if r.arg[1] is Role.UNROLL}
    reaches = any(loop in s.ranges for number, span in kernel.spans.items() if number in steps for s in span)
    staged = any(loop in n.ranges for n in kernel.nodes if n.op is Ops.STAGE)
    if reaches and not staged and range_size(loop) <= PEELED:
        _apply(kernel, OptOps.PEEL, loop)


def _unroll(kernel: Kernel, target: Target) -> None:
    """Write out a few steps of the innermost reduction, unless its steps share scalars with the rows (a window):
    those would have to stay in registers all through."""
    for r in reversed(kernel.reduces):
        size = range_size(r)
        amount = _unroll_amount(size)
        if size > 1 and _live(kernel, r, amount) <= target.vector_registers + 4:
            _apply(kernel, OptOps.UNROLL, r, amount)
        return


def _live(kernel: Kernel, r: UOp, steps: int) -> int:
    """Vector registers that stay occupied if ``steps`` steps of ``r`` are written out: accumulators, and the scalars
    that several steps share because they slide over the rows (0 if they do not)."""
    fold = kernel.folds[0]
    accumulators = _count(frozenset(x for x in fold.ranges if x.arg[1] is Role.UPCAST))
    for n in toposort(fold):
        if n.op is Ops.LOAD and r in n.src[1].ranges and not any(x.arg[1] is Role.VECTOR for x in n.src[1].ranges):
            step = abs(_stride(n.src[1], r) or 1)
            copies = [u for u in n.src[1].ranges if u.arg[1] is Role.UPCAST]
            if any(abs(_stride(n.src[1], u) or 0) == step for u in copies):
                return accumulators + _count(frozenset(copies)) + steps
    return 0


def _panel_load(kernel: Kernel) -> UOp | None:
    """The load inside the contraction that has lanes."""
    for f in kernel.folds:
        for s in f.src[0].src:
            load = _load(s)
            if load is not None and load.src[0].op is Ops.PARAM and any(r.arg[1] is Role.VECTOR for r in load.ranges):
                return load
    return None


def _order_loops(kernel: Kernel, batch: list[UOp], lane_outer: UOp | None) -> None:
    """What the panel depends on comes outermost, so that a packed panel serves all rows."""
    loops = [r for r in kernel.ranges if not r.arg[1].expanded]
    first = batch + ([lane_outer] if lane_outer is not None else [])
    rest = [r for r in loops if r not in first]
    wanted = first + rest
    if wanted != loops:
        kernel.apply(Opt(OptOps.ORDER, None, tuple(loops.index(r) for r in wanted)))


def _pack(kernel: Kernel, panel: UOp, batch: list[UOp], lane_outer: UOp | None, target: Target) -> None:
    whole = _count(frozenset(r for r in panel.ranges if r not in batch)) * max(panel.dtype.itemsize, 4)
    outside = list(batch)
    inside = [r for r in kernel.order if r in panel.ranges and r not in batch]
    overlaps = any(len(box.ranges) > 1 for box in windows(panel, inside))  # panels of a window would share columns
    if lane_outer is not None and (whole > target.l2_bytes // 2 or not overlaps):
        outside.append(lane_outer)
    _stage(kernel, panel, outside, target)


def _stage(kernel: Kernel, load: UOp, outside: list[UOp], target: Target) -> None:
    kept = tuple(kernel.ranges.index(r) for r in outside)
    kernel.apply(Opt(OptOps.STAGE, kernel.loads.index(load), kept, _lanes(kernel, target)))


def _stage_guarded(kernel: Kernel, load: UOp, rows: list[tuple[UOp, int]], target: Target) -> None:
    """A guarded operand is copied into a zero-padded tile per outermost loop, so that the inner loop has no tests."""
    outside = [r for r in kernel.parallel if r in load.ranges][:1]
    while True:
        inside = sorted((r for r in load.ranges if r not in outside), key=kernel.order.index)
        bytes_needed = max(load.dtype.itemsize, 4) * math.prod(box.size for box in windows(load, inside))
        if bytes_needed <= target.l2_bytes // 2:
            break
        more = [r for r in kernel.parallel if r in load.ranges and r not in outside and r not in [x for x, _ in rows]]
        if not more:
            return
        outside.append(more[0])
    _stage(kernel, load, outside, target)


# *** reductions and elementwise work ***


def _score(loads: list[UOp], stores: list[UOp], r: UOp) -> float:
    """How well memory runs along ``r``: whole vectors count for it, gathers against it; loads of few elements, which
    stay in registers or near, hardly count."""
    total = 0.0
    most = max((_count(n.src[1].ranges) for n in (*loads, *stores)), default=1)
    for n in loads:
        stride, share = _stride(n.src[1], r), _count(n.src[1].ranges) / most
        total += {0: 0.25, 1: 1.0}.get(stride if stride is not None else -1, -1.0) * share
    for n in stores:
        stride = _stride(n.src[1], r)
        total += {0: 0.0, 1: 1.5}.get(stride if stride is not None else -1, -2.0)
    return total


def reduce_opts(kernel: Kernel, target: Target) -> None:
    """Lanes for every reduction and then for every store."""
    if not target.vector_bytes:
        return
    lanes = _lanes(kernel, target)
    keep_rows(kernel, target, lanes)
    for ranges in dict.fromkeys(f.src[1:] for f in kernel.folds):
        group = [f for f in kernel.folds if f.src[1:] == ranges]
        if any(x.arg[1].expanded for f in group for x in f.src[0].ranges) or not group:
            continue
        loads = [n for f in group for n in toposort(f.src[0]) if n.op is Ops.LOAD and n.src[0].op is Ops.PARAM]
        beside = [r for r in kernel.parallel if all(r in f.ranges for f in group)]
        options = [r for r in (*ranges, *beside) if range_size(r) >= lanes and kernel.may_have_lanes(r)]
        if not options:
            continue
        best = max(options, key=lambda r: (_score(loads, [], r), kernel.order.index(r)))
        if best in ranges:
            outer, _ = _split(kernel, OptOps.VECTOR, best, lanes)
            copies = {1: 4, 2: 4, 3: 2, 4: 2}.get(_together(group), 1)
            if outer is not None and range_size(outer) >= 4 and copies > 1:
                _split(kernel, OptOps.UNROLL, outer, copies)
        elif _score(loads, kernel.stores, best) >= 0:
            outer, _ = _split(kernel, OptOps.VECTOR, best, lanes)
            streams = sum(_stride(n.src[1], best) != 0 for n in loads)
            if outer is not None and range_size(outer) >= 4 and len(group) <= 2 and streams <= 3:
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
        options = [r for r in inner if range_size(r) >= lanes and _score(loads, [store], r) > 0]
        if options:
            _split(kernel, OptOps.VECTOR, max(options, key=lambda r: _score(loads, [store], r)), lanes)


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
        _split(kernel, OptOps.UPCAST, chains[-1], min(SCAN_CHAINS, range_size(chains[-1])))
    return None


def elementwise_opts(kernel: Kernel, target: Target) -> None:
    """Lanes along memory; strided reads get an inner loop that walks along their lines."""
    lanes = _lanes(kernel, target)
    stores = [s for s in kernel.stores if s.op is Ops.STORE]
    scatters = [s for s in kernel.stores if s.op is Ops.SCATTER_STORE]
    parallel = [r for r in kernel.parallel if not any(r is s.src[4] for s in scatters)]
    if not parallel:
        return None
    loads = kernel.loads
    options = [r for r in parallel if range_size(r) >= min(lanes, 4) and all(r in s.ranges for s in kernel.stores)]
    if not options:
        return None
    full = {r: min(1.0, range_size(r) / lanes) for r in options}
    best = max(options, key=lambda r: (_score(loads, stores, r) * full[r], kernel.order.index(r)))
    if _score(loads, stores, best) <= 0 or (scatters and not all(_stride(s.src[1], best) == 1 for s in scatters)):
        return None
    amount = min(lanes, _power_of_two(range_size(best)))
    outer, lane = _split(kernel, OptOps.VECTOR, best, amount)
    lanes_of_loop = {outer, lane}
    if scatters:
        return scatter_opts(kernel, target, outer) if outer is not None else None
    _share_work(kernel, outer)
    along = [r for n in kernel.loads for r in kernel.parallel
             if n.src[1].ranges & lanes_of_loop and _stride(n.src[1], r) == 1 and r is not outer]
    if along:
        transpose_opts(kernel, outer, along[0], amount)
    return None


def _share_work(kernel: Kernel, lane_loop: UOp | None) -> None:
    """A short range on which less than half of the work depends is written out, so that the rest is done once."""
    for r in kernel.parallel:
        if r is lane_loop or range_size(r) > SHARED_COPIES:
            continue
        work = Counter(r in n.ranges for n in toposort(kernel.sink)
                       if n.op.elementwise and n.dtype.scalar is not dtypes.index)
        if work[False] > max(work[True], SHARED_WORK):
            kernel.apply(Opt(OptOps.UPCAST, kernel.ranges.index(r)))


def thread_opts(kernel: Kernel, target: Target) -> None:
    """Split the outermost loop over the workers, joined with the next where it is too short to share out evenly."""
    for _ in range(2):
        loops = [r for r in kernel.parallel if all(r in s.ranges for s in kernel.stores)]
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

