"""The analytic model of contractions: a register tile, what feeds it, and whether its panel is packed.

A tile of (rows × vectors) accumulators takes two multiply-adds per cycle, and edges waste some of them. What feeds it
decides between tiles of about the same size:

* the scalars' lines pass through the first cache once for every panel, of which wide tiles have fewer, or with every
  step if their memory does not run along the reduction;
* the panel's vectors come from the second cache for every tile of rows, if it is larger than the first: tall tiles have
  fewer of those;
* a tile's rows lie apart in the result, and each begins at a cost: wide tiles have fewer rows;
* workers share out whole panels, which may not come out even.

What each of these takes says ``price``, from the target's rows.
"""
from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

from tinsmith.codegen.footprints import footprints
from tinsmith.codegen.kernel import Kernel
from tinsmith.codegen.masking import covered_steps
from tinsmith.codegen.opt import Opt, OptOps
from tinsmith.codegen.price import Moved, Price, busiest, price, vector_steps
from tinsmith.codegen.render.base import Core, Target, TileCosts
from tinsmith.codegen.roles import Role, count_of, limits, range_size
from tinsmith.codegen.streams import SIDE
from tinsmith.codegen.tuning import (
    Candidate,
    apply_to,
    footprint,
    lanes_of,
    name_of,
    order,
    power_of_two,
    split,
    stride_of,
    the_sum,
)
from tinsmith.ir import Ops, UOp
from tinsmith.ir.structure import contraction
from tinsmith.ir.uop import toposort


@dataclass(frozen=True)
class Tile:
    """A register tile for one contraction: lanes along ``lane``, rows along ``rows`` (innermost first).

    Attributes:
        panel: the operand that is loaded as vectors, ``pack``: from a copy in the order of the tile.
        scalar: the operand that is spread over the lanes, ``other``: the ranges of results that only it has.
    """

    fold: UOp
    panel: UOp
    scalar: UOp
    other: list[UOp]
    lane: UOp
    lanes: int
    vectors: int
    rows: list[tuple[UOp, int]]
    pack: bool = False

    @property
    def height(self) -> int:
        """Rows of the tile."""
        return math.prod(amount for _, amount in self.rows)

    @property
    def width(self) -> int:
        return self.vectors * self.lanes


def tile_ways(kernel: Kernel, target: Target) -> Iterator[Candidate]:
    """Register tiles for the kernel's contraction."""
    for tile in _tiles(kernel, target):
        packed = "packed" if tile.pack else "unpacked"
        yield Candidate(f"a register tile of {tile.height} × {tile.vectors} vectors along {name_of(tile.lane)}, its "
                        f"panel {packed}", _price(kernel, target, tile), partial(apply_tile, target=target, tile=tile))


def _tiles(kernel: Kernel, target: Target) -> Iterator[Tile]:
    """Tiles with lanes along each range of an operand, one for each sensible number of vectors and rows."""
    fold = the_sum(kernel)
    found = contraction(fold) if fold is not None and fold.dtype.is_float else None
    if fold is None or found is None or not target.vector_bytes:
        return
    inner, core = max(fold.src[1:], key=kernel.order.index), target.core
    steps = _unroll_amount(core, range_size(inner))
    for panel, scalar in ((found.a, found.b), (found.b, found.a)):
        own, other = ([r for r in kernel.order if r in x.ranges - y.ranges and r in fold.ranges]
                      for x, y in ((panel, scalar), (scalar, panel)))
        load = _load(scalar)
        rows = sorted(other, key=lambda r: abs(stride_of(load.src[1], r) or 1 << 40) if load is not None else 0)
        for lane in (r for r in own if range_size(r) >= 4 and other):
            lanes = min(lanes_of(kernel, target), power_of_two(range_size(lane)))
            for vectors in range(1, min(4, -(-range_size(lane) // lanes)) + 1):
                for limit in {(target.vector_registers - 1) // vectors - 1,
                              (target.vector_registers + 4 - steps) // (vectors + 1)}:
                    tile = Tile(fold, panel, scalar, other, lane, lanes, vectors, _choose_rows(rows, limit, core.tile))
                    if _lies_along(tile):
                        yield tile
                    if count_of(frozenset(fold.src[1:])) * tile.width * 4 <= core.largest_panel:
                        yield replace(tile, pack=True)


def _load(operand: UOp) -> UOp | None:
    """The load that an operand is made of, below casts and cheap arithmetic."""
    loads = [n for n in toposort(operand) if n.op is Ops.LOAD]
    return loads[0] if len(loads) == 1 else None


def _copies_scalars(tile: Tile) -> bool:
    """Whether scalars that every panel reads again are widened once, into local memory."""
    return tile.pack and _is_narrow(_load(tile.scalar)) and range_size(tile.lane) > tile.width


def _lies_along(tile: Tile) -> bool:
    """Whether vectors of the panel can be read where it is."""
    load = _load(tile.panel)
    return load is not None and stride_of(load.src[1], tile.lane) == 1 and len(load.src) == 2


def _as_it_lies(target: Target, tile: Tile) -> Moved:
    """What a panel that is not packed costs as often as tiles read it: elements of rows near each other, of rows that
    lie far apart, or of such that crowd the second cache's sets; vectors of 16-bit floats are widened at every use."""
    load, used = _load(tile.panel), count_of(tile.fold.src[0].ranges) / tile.height
    if _is_narrow(load):
        return Moved("widened", used / tile.lanes, 0)
    pitch, width = abs(_largest_stride(load, tile.fold)) * 4, tile.width * 4
    room = target.l2_bytes * _share_of_sets(pitch, width, target.l2_bytes // target.core.ways)
    crowded = 2 * width * count_of(frozenset(tile.fold.src[1:])) >= room
    return Moved("as_it_lies", used, 2 if crowded else int(pitch >= target.core.page // 2))


def _price(kernel: Kernel, target: Target, tile: Tile) -> Price:
    """Of a tile: two multiply-adds and two loads per cycle, edges that waste lanes and rows, what feeds it, the copy
    into the panel, and stores that do not run along the lanes."""
    fold, lane, costs, size = tile.fold, tile.lane, target.core.tile, range_size(tile.lane)
    count = -(-size // tile.lanes)
    fill = size / (count * tile.lanes)
    for number, amount in ((count, tile.vectors), *((range_size(r), amount) for r, amount in tile.rows)):
        fill *= 1 - costs.used + costs.used * number / (-(-number // amount) * amount)  # the last tile may have fewer
    steps = vector_steps(target, count_of(fold.src[0].ranges) / (tile.height * tile.width * fill), tile.height,
                         tile.vectors)
    moved = [*_feeding(kernel, target, tile)]
    if not all(stride_of(s.src[1], lane) in (0, 1) for s in kernel.stores):
        blocks = any(amount >= SIDE and all(stride_of(s.src[1], r) == 1 for s in kernel.stores)
                     for r, amount in tile.rows)
        moved.append(Moved("stored_across", count_of(fold.ranges), not blocks))
    slow = costs.same_sets[1] if _crowds_a_set(_load(tile.scalar), fold, target.core) else 1.0
    inner, load = max(fold.src[1:], key=kernel.order.index), _load(tile.scalar)
    written = _unroll_amount(target.core, range_size(inner))
    if load is not None and any(_same_step(load.src[1], r, inner) for r, _ in tile.rows) and (
            tile.height * (tile.vectors + 1) + written > target.vector_registers + 4):
        slow *= costs.spilled
    if not tile.pack:
        moved.append(_as_it_lies(target, tile))
    elif not any(r in tile.panel.ranges and r is not lane for r in kernel.parallel):
        slow *= busiest(count, tile.vectors, target.threads)
    return price(target, steps, moved, slow) | price(target, None, _packing(kernel, target, tile))


def _packing(kernel: Kernel, target: Target, tile: Tile) -> Iterator[Moved]:
    """The panel's way into the order of the tile."""
    load, lane, elements = _load(tile.panel), tile.lane, count_of(tile.panel.ranges)
    if not tile.pack:
        return
    if load is not None and stride_of(load.src[1], lane) == 1:
        yield Moved("along", elements)
    elif load is not None and any(stride_of(load.src[1], r) == 1 for r in kernel.parallel if r is not lane):
        yield Moved("scattered", elements)
    else:
        blocks = load is not None and any(stride_of(load.src[1], r) == 1 and range_size(r) % SIDE == 0
                                          for r in tile.fold.src[1:])
        crowded = _per_set(load, lane, tile.width, target.core.page) / target.core.tile.lines_of_set
        yield Moved("across", elements * (1 + crowded), not blocks)


def _feeding(kernel: Kernel, target: Target, tile: Tile) -> Iterator[Moved]:
    """Scalars, vectors of the panel and rows of the result that the tile waits for."""
    steps, size = frozenset(tile.fold.src[1:]), tile.fold.dtype.itemsize
    products, results = count_of(tile.fold.src[0].ranges), count_of(tile.fold.ranges)
    scalar, reached = _load(tile.scalar), count_of(steps.union(tile.other))
    distinct, staged, across = reached, False, False
    if scalar is not None:  # of windows that overlap, each element comes once; guarded ones are copied to local memory
        inside = [r for r in kernel.order if r in scalar.ranges and (r in steps or r in tile.other)]
        distinct = math.prod(box.size for box in footprints(scalar, inside))
        staged, across = len(scalar.src) > 2, abs(stride_of(scalar.src[1], tile.fold.src[-1]) or 0) > 1
    if _is_narrow(scalar):
        yield Moved("copied", distinct) if _copies_scalars(tile) else Moved("widened", products / tile.width, 1)
    share = 1 / tile.height if across else distinct / reached * size / target.core.line
    yield Moved("scalar_line", products / tile.width * share, distinct * size > target.l2_bytes // 2 and not staged)
    if not _is_near(target, tile):
        yield Moved("panel_vector", products / (tile.height * tile.lanes))
    yield Moved("result_row", results / tile.width, results * size > 4 * target.l2_bytes)


def _per_set(load: UOp | None, lane: UOp, rows: int, page: int) -> float:
    """Lines in each set of the first cache that they fall into when ``rows`` rows of an operand are read together."""
    pitch = abs(stride_of(load.src[1], lane) or 0) * load.dtype.itemsize if load is not None else 0
    return rows * math.gcd(pitch, page) / page


def _crowds_a_set(scalar: UOp | None, fold: UOp, core: Core) -> bool:
    """Whether every step of a long reduction reads a line of the same few sets of the caches: pages that lie apart."""
    if scalar is None or count_of(frozenset(fold.src[1:])) < core.tile.same_sets[0]:
        return False
    step = abs(stride_of(scalar.src[1], fold.src[-1]) or 0) * scalar.dtype.itemsize
    return step >= core.page and step % core.page == 0


def _share_of_sets(pitch: int, width: int, way: int) -> float:
    """The part of a cache's sets that rows of ``width`` bytes fall into which lie ``pitch`` bytes apart; ``way``: bytes
    of one line of every set."""
    return min(1.0, width / math.gcd(pitch, max(way, 1))) if pitch else 1.0


def _is_narrow(load: UOp | None) -> bool:
    """16-bit floats, which are to be widened once, not at every use."""
    return load is not None and load.dtype.is_float and load.dtype.itemsize == 2


def _same_step(index: UOp, a: UOp, b: UOp) -> bool:
    """Whether an index moves equally far along both ranges: a window sliding over rows."""
    step = stride_of(index, a)
    return bool(step) and abs(step or 0) == abs(stride_of(index, b) or 0)


def _unroll_amount(core: Core, size: int, vectors: int = 1) -> int:
    """Steps of a reduction that are written out, where each takes so many vectors of a panel."""
    return size if size <= core.whole_steps else (4 if size % 4 == 0 and vectors < core.wide else 2)


def _largest_stride(load: UOp | None, fold: UOp) -> int:
    if load is None:
        return 0
    return max((abs(stride_of(load.src[1], r) or 0) for r in fold.src[1:]), default=0)


def _choose_rows(rows: list[UOp], limit: int, costs: TileCosts) -> list[tuple[UOp, int]]:
    """Row ranges and amounts whose product fits ``limit``: whole small ranges, else a divisor, else what fits."""
    chosen: list[tuple[UOp, int]] = []
    for r in rows:
        size = range_size(r)
        if limit < 2:
            break
        best = max(range(1, min(limit, size) + 1),
                   key=lambda m: (size / (-(-size // m) * m) * m / (m + costs.row), m))
        if best > 1:
            chosen.append((r, best))
            limit //= best
        if limit < 3:
            break
    return chosen


def apply_tile(kernel: Kernel, target: Target, tile: Tile) -> None:
    """Stage guarded scalars as padded tiles, split rows and lanes, pack the panel, order the loops, unroll."""
    if covered_steps(kernel):
        before = kernel.order
        kernel.apply(Opt(OptOps.SKIP))
        limited = dict(zip(before, kernel.order))
        tile = replace(tile, fold=tile.fold.substitute(limited), scalar=tile.scalar.substitute(limited))
    scalar_load = _load(tile.scalar)
    lane_number, rows = tile.lane, list(tile.rows)
    if scalar_load is not None and (len(scalar_load.src) > 2 or _copies_scalars(tile)):
        _stage_guarded(kernel, scalar_load, rows, target)
    outer_rows: list[UOp] = []
    for r, amount in rows:
        outer, _ = split(kernel, OptOps.UPCAST, r, amount)
        if outer is not None:
            outer_rows.append(outer)
    lane_outer, _ = split(kernel, OptOps.VECTOR, lane_number, tile.lanes)
    if lane_outer is not None and tile.vectors > 1:
        lane_outer, _ = split(kernel, OptOps.UPCAST, lane_outer, min(tile.vectors, range_size(lane_outer)))
    panel = _panel_load(kernel)
    batch = [r for r in kernel.parallel if panel is not None and r in panel.ranges and r is not lane_outer]
    if tile.pack and panel is not None:
        _pack(kernel, tile, panel, batch, lane_outer, target)
    else:
        order(kernel, batch + ([lane_outer] if lane_outer is not None else []))
    _unroll(kernel, target, tile.vectors)
    _fetch_pieces(kernel, target)
    for outer in outer_rows:
        _peel_edges(kernel, outer)


def _fetch_pieces(kernel: Kernel, target: Target) -> None:
    """Fetch scalars ahead that come in short pieces from places far apart, which no hardware follows: those of the
    next sweep over them all where this one's stay near, else those of the next step of the outermost reduction."""
    for load in kernel.loads:
        index, size = load.src[1], load.dtype.itemsize
        loops = [r for r in kernel.order if r in index.ranges and not r.arg[1].expanded]
        steps = [r for r in loops if r.arg[1] is Role.REDUCE]
        if len(steps) < 2 or len(load.src) > 2 or load.src[0].op is not Ops.PARAM or any(
                r.arg[1] is Role.VECTOR for r in index.ranges):
            continue
        swept = [r for r in index.ranges if r in steps or r.arg[1].expanded]
        piece = footprint(index, [r for r in swept if r is not steps[0]]) * size
        apart = abs(stride_of(index, steps[0]) or 0) * size
        if not piece < target.core.page // 2 <= apart or footprint(index, index.ranges) * size <= target.l2_bytes // 2:
            continue
        outwards, around = len(steps) - 1, loops[:-len(steps)]
        if footprint(index, swept) * size <= target.l1_bytes // 2:
            if not around or footprint(index, [*swept, around[-1]]) < footprint(index, swept) * range_size(around[-1]):
                continue
            outwards += 1
        kernel.apply(Opt(OptOps.HINT, kernel.loads.index(load), (1, 0, outwards)))


def _peel_edges(kernel: Kernel, loop: UOp) -> None:
    """Write out a short loop over tiles if its first or last ones reach outside of a window by steps written out."""
    steps = [r for r in kernel.order if r.arg[1] is Role.UNROLL]
    reaches = any(loop in s.ranges for r in steps for s in limits(r) or ())
    staged = any(loop in n.ranges for n in kernel.of(Ops.STAGE))
    if reaches and not staged and range_size(loop) <= kernel.target.core.peeled:
        apply_to(kernel, OptOps.CUT, loop, tuple(range(1, range_size(loop))))


def _unroll(kernel: Kernel, target: Target, vectors: int) -> None:
    """Write out a few steps of the innermost reduction, unless its steps share scalars with the rows (a window):
    those would have to stay in registers all through."""
    for r in reversed(kernel.reduces):
        size = range_size(r)
        amount = _unroll_amount(target.core, size, vectors)
        if size > 1 and _live(kernel, r, amount) <= target.vector_registers + 4:
            apply_to(kernel, OptOps.UNROLL, r, amount)
        return


def _live(kernel: Kernel, r: UOp, steps: int) -> int:
    """Vector registers that stay occupied if ``steps`` steps of ``r`` are written out: accumulators, and the scalars
    that several steps share because they slide over the rows (0 if they do not)."""
    fold = kernel.folds[0]
    accumulators = count_of(frozenset(x for x in fold.ranges if x.arg[1] is Role.UPCAST))
    for n in toposort(fold):
        if n.op is Ops.LOAD and r in n.src[1].ranges and not any(x.arg[1] is Role.VECTOR for x in n.src[1].ranges):
            step = abs(stride_of(n.src[1], r) or 1)
            copies = [u for u in n.src[1].ranges if u.arg[1] is Role.UPCAST]
            if any(0 < abs(stride_of(n.src[1], u) or 0) < steps * step for u in copies):
                return accumulators + count_of(frozenset(copies)) + steps
    return 0


def _panel_load(kernel: Kernel) -> UOp | None:
    """The load inside the contraction that has lanes."""
    for f in kernel.folds:
        for s in f.src[0].src:
            load = _load(s)
            if load is not None and load.src[0].op is Ops.PARAM and any(r.arg[1] is Role.VECTOR for r in load.ranges):
                return load
    return None


def _pack(kernel: Kernel, tile: Tile, panel: UOp, batch: list[UOp], lane_outer: UOp | None, target: Target) -> None:
    """Pack a panel at a time, which serves all rows; all at once if they share columns of a window, or so that scalars
    need to be copied only once."""
    if lane_outer is None:
        order(kernel, batch)
        return _stage(kernel, panel, batch, target)
    inside = [r for r in kernel.order if r in panel.ranges and r not in batch]
    fits = count_of(frozenset(inside)) * max(panel.dtype.itemsize, 4) <= target.l2_bytes // 2
    copies = _loops_of_copies(kernel, tile, panel, lane_outer, target) if fits else []
    copies = [r for r in copies if r not in batch]
    order(kernel, [*batch, *copies, lane_outer])
    overlaps = any(len(box.weights) > 1 for box in footprints(panel, inside))
    return _stage(kernel, panel, batch if fits and (copies or overlaps) else [*batch, lane_outer], target)


def _loops_of_copies(kernel: Kernel, tile: Tile, panel: UOp, lane_outer: UOp, target: Target) -> list[UOp]:
    """The loops in which scalars are copied to local memory, if it costs less that these go around the panels: then
    every worker packs all panels, which come from the second cache, but no panel has the scalars copied again."""
    staged = kernel.of(Ops.STAGE)
    loops = [r for r in kernel.parallel if any(r in n.ranges for n in staged)]
    copies = sum(count_of(n.ranges) * math.prod(n.arg) for n in staged) * (range_size(lane_outer) - 1)
    packed = [Moved("across", count_of(panel.ranges) * max(target.threads - 1, 0))]
    if _is_near(target, tile):
        packed.append(Moved("panel_vector", count_of(tile.fold.src[0].ranges) / (tile.height * tile.lanes)))
    again, around = (sum(price(target, None, moved).values()) for moved in ([Moved("copied", copies)], packed))
    return loops if again > around else []


def _is_near(target: Target, tile: Tile) -> bool:
    """Whether a panel stays in the first cache."""
    panel = count_of(frozenset(tile.fold.src[1:])) * tile.width * tile.fold.dtype.itemsize
    return panel <= target.core.tile.near * target.l1_bytes


def _stage(kernel: Kernel, load: UOp, outside: list[UOp], target: Target) -> None:
    kept = tuple(kernel.ranges.index(r) for r in outside)
    kernel.apply(Opt(OptOps.STAGE, kernel.loads.index(load), kept, lanes_of(kernel, target)))


def _stage_guarded(kernel: Kernel, load: UOp, rows: list[tuple[UOp, int]], target: Target) -> None:
    """A guarded operand is copied into a zero-padded tile per outermost loop, so that the inner loop has no tests."""
    outside = [r for r in kernel.parallel if r in load.ranges][:1]
    while True:
        inside = sorted((r for r in load.ranges if r not in outside), key=kernel.order.index)
        bytes_needed = max(load.dtype.itemsize, 4) * math.prod(box.size for box in footprints(load, inside))
        if bytes_needed <= target.l2_bytes // 2:
            break
        more = [r for r in kernel.parallel if r in load.ranges and r not in outside and r not in [x for x, _ in rows]]
        if not more:
            return
        outside.append(more[0])
    _stage(kernel, load, outside, target)
