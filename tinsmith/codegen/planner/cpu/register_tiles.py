"""The candidates and the analytic model of contractions on a CPU: register tiles, their operands, and packed panels.

A tile of (rows × vectors) accumulators runs two multiply-adds per cycle; edges waste some. Between tiles of similar
size the cost of the operands decides:

* the cache lines of the scalar operand pass through the first cache once per panel, of which wide tiles have fewer, or
  in every step if memory does not run along the reduction;
* the vectors of a panel larger than the first cache come from the second for every tile of rows: tall tiles read it
  less often;
* the rows of a tile are apart in the result, and each has a fixed cost: wide tiles have fewer rows;
* workers take full panels, which may not divide evenly.

``price`` converts these to cycles with the target's costs.
"""
from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

from tinsmith.codegen.kernel import Kernel
from tinsmith.codegen.lower.indexing import footprints
from tinsmith.codegen.opt import Opt, OptOps
from tinsmith.codegen.planner.candidate import (
    Candidate,
    apply_to,
    footprint,
    lanes_of,
    name_of,
    order_loops,
    power_of_two,
    split,
    stride_of,
    the_sum,
)
from tinsmith.codegen.planner.cost import Moved, Price, busiest, loads_of, operations, price, vector_steps
from tinsmith.codegen.transform.computed_operand import SIDE
from tinsmith.codegen.transform.skip_masked_blocks import covered_steps
from tinsmith.ir import Ops, UOp
from tinsmith.ir.structure import Role, contraction, count_of, limits, range_size
from tinsmith.ir.uop import toposort
from tinsmith.target.cpu_model import CpuModel, TileCosts
from tinsmith.target.target import Target

LEAST_TILES = 4  # register tiles in a block of windows, at least
SHARES = (1, 2, 4)  # of half of L2 that a block of windows may take


@dataclass(frozen=True)
class RegisterTile:
    """A register tile for one contraction.

    Attributes:
        fold: the sum of products.
        panel: the operand that is loaded as vectors.
        scalar: the operand that is broadcast to the lanes.
        other: the ranges of the result that only ``scalar`` has.
        lane: the range of the lanes.
        lanes: lanes of a vector.
        vectors: vectors of accumulators in a row of the tile.
        rows: ranges of the tile's rows, innermost first, each with its number of copies.
        pack: True if the panel is packed: copied to local memory in the order of the tile.
        block: rows of the only range of ``rows`` over which all panels pass before the next rows; 0: no blocks.
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
    block: int = 0

    @property
    def stages(self) -> bool:
        """Return True if the windows of a block are staged: blocks are full, so that no guard depends on the row."""
        return bool(self.block) and range_size(self.rows[0][0]) % self.block == 0

    @property
    def height(self) -> int:
        """Rows of the tile."""
        return math.prod(amount for _, amount in self.rows)

    @property
    def width(self) -> int:
        return self.vectors * self.lanes


def tile_ways(kernel: Kernel, target: Target) -> Iterator[Candidate]:
    """Generate the register tiles for the kernel's contraction."""
    for tile in _tiles(kernel, target):
        packed = ("packed" if tile.pack else "unpacked") + f", blocks of {tile.block} rows" * bool(tile.block)
        packed += ", their windows staged" * tile.stages
        yield Candidate(f"a register tile of {tile.height} × {tile.vectors} vectors along {name_of(tile.lane)}, "
                        f"panel {packed}", _price(kernel, target, tile), partial(apply_tile, target=target, tile=tile))


def _tiles(kernel: Kernel, target: Target) -> Iterator[RegisterTile]:
    """Generate tiles with lanes along each range of an operand, for each useful number of vectors and rows."""
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
                    tile = RegisterTile(fold, panel, scalar, other, lane, lanes, vectors, _choose_rows(rows, limit,
                                                                                                       core.tile))
                    if _lies_along(tile):
                        yield tile
                    if count_of(frozenset(fold.src[1:])) * tile.width * 4 <= core.largest_panel:
                        yield replace(tile, pack=True)
                        for block in _blocks_of_windows(target, tile):
                            yield replace(tile, pack=True, block=block)


def _load(operand: UOp) -> UOp | None:
    """Return the load of an operand below casts and arithmetic, of several the one with most elements; None if there is
    none."""
    return max(loads_of(operand), key=lambda n: count_of(n.src[1].ranges), default=None)


def _blocks_of_windows(target: Target, tile: RegisterTile) -> list[int]:
    """Return numbers of rows whose windows fit half of L2: the most, and fewer for more workers.

    None unless windows slide along a range that is too long to stage in full, and the steps of the sum lie on many
    pages, as in a convolution along one axis of [N, C, L].
    """
    load = _load(tile.scalar)
    if load is None or len(tile.rows) != 1 or not _is_scattered(load, tile.fold, target.core):
        return []
    slides, height = tile.rows[0]
    boxes = footprints(load, [*(r for r in tile.fold.src[1:] if r in load.ranges), slides])
    window = next(box for box in boxes if slides in box.weights)
    apart = math.prod(box.size for box in boxes if box is not window) * max(load.dtype.itemsize, 4)
    if len(window.weights) == 1 or apart * window.size <= target.l2_bytes // 2:
        return []
    step = abs(window.weights[slides])
    others = window.size - step * (range_size(slides) - 1)
    most, least = (target.l2_bytes // 2 // apart - others) // step + 1, LEAST_TILES * height
    full = [n for n in range(least, most + 1) if range_size(slides) % n == 0]  # full blocks, if there are any
    sizes = full or range(height, most + 1, height)
    found = (max((n for n in sizes if least <= n <= most // share), default=0) for share in SHARES)
    return [n for n in dict.fromkeys(found) if n]


def _blocks(kernel: Kernel, tile: RegisterTile) -> int:
    """Return the iterations of the loop over blocks, which workers divide."""
    slides = tile.rows[0][0]
    around = count_of(frozenset(_loops_around(kernel, tile))) if tile.stages else 1
    return around * -(-int(range_size(slides)) // tile.block)


def _loops_around(kernel: Kernel, tile: RegisterTile) -> list[UOp]:
    """Return the loops besides that of the rows which only the scalar operand depends on, such as the batch."""
    return [r for r in kernel.parallel if r in tile.scalar.ranges - tile.panel.ranges and r is not tile.rows[0][0]]


def _is_scattered(load: UOp, fold: UOp, core: CpuModel) -> bool:
    """Return True if the steps of a sum read from so many pages that they take more than half of the first TLB."""
    pitches = {r: abs(stride_of(load.src[1], r) or 0) * load.dtype.itemsize for r in fold.src[1:]}
    return math.prod(int(range_size(r)) for r, pitch in pitches.items() if pitch >= core.page) > core.tlb // 2


def _copies_scalars(tile: RegisterTile) -> bool:
    """Return True if the scalar operand is a 16-bit float that several panels read; it is then widened once, into local
    memory."""
    return tile.pack and _is_narrow(_load(tile.scalar)) and range_size(tile.lane) > tile.width


def _lies_along(tile: RegisterTile) -> bool:
    """Return True if vectors of the panel can be loaded in place: the lanes are contiguous and unguarded."""
    steps = [stride_of(n.src[1], tile.lane) for n in loads_of(tile.panel) if len(n.src) == 2]
    return len(steps) == len(loads_of(tile.panel)) and 1 in steps and all(step in (0, 1) for step in steps)


def _as_it_lies(target: Target, tile: RegisterTile) -> Moved:
    """Return the cost of reading a panel in place, for each use: elements of close rows, of rows that are far apart, or
    of rows that conflict in the sets of the second cache; vectors of 16-bit floats are widened at each use."""
    load, used = _load(tile.panel), count_of(tile.fold.src[0].ranges) / tile.height
    if _is_narrow(load):
        return Moved("widened", used / tile.lanes, 0)
    pitch, width = abs(_largest_stride(load, tile.fold)) * 4, tile.width * 4
    room = target.l2_bytes * _share_of_sets(pitch, width, target.l2_bytes // target.core.ways)
    crowded = 2 * width * count_of(frozenset(tile.fold.src[1:])) >= room
    return Moved("as_it_lies", used, 2 if crowded else int(pitch >= target.core.page // 2))


def _price(kernel: Kernel, target: Target, tile: RegisterTile) -> Price:
    """Return the price of a tile: two multiply-adds and two loads per cycle, lanes and rows wasted at the edges,
    loading of operands, packing, and stores that do not run along the lanes."""
    fold, lane, costs, size = tile.fold, tile.lane, target.core.tile, range_size(tile.lane)
    count = -(-size // tile.lanes)
    fill = size / (count * tile.lanes)
    for number, amount in ((count, tile.vectors), *((range_size(r), amount) for r, amount in tile.rows)):
        fill *= 1 - costs.used + costs.used * number / (-(-number // amount) * amount)  # the last tile may be smaller
    steps = vector_steps(target, count_of(fold.src[0].ranges) / (tile.height * tile.width * fill), tile.height,
                         tile.vectors)
    moved = [*_feeding(kernel, target, tile)]
    if not all(stride_of(s.src[1], lane) in (0, 1) for s in kernel.stores):
        blocks = any(amount >= SIDE and all(stride_of(s.src[1], r) == 1 for s in kernel.stores)
                     for r, amount in tile.rows)
        far = _lines_between(kernel, target, tile, [s.src[1] for s in kernel.stores], fold.ranges)
        moved.append(Moved("stored_across", count_of(fold.ranges), 0 if blocks else 1 + far))
    slow = costs.same_sets[1] if _crowds_a_set(_load(tile.scalar), fold, target.core) else 1.0
    inner, load = max(fold.src[1:], key=kernel.order.index), _load(tile.scalar)
    written = _unroll_amount(target.core, range_size(inner))
    if load is not None and any(_is_read_again(load.src[1], r, inner) for r, _ in tile.rows) and (
            tile.height * (tile.vectors + 1) + written > target.vector_registers + 4):
        slow *= costs.spilled
    moved += _functions(target, tile)
    if not tile.pack:
        moved.append(_as_it_lies(target, tile))
    elif tile.block:
        slow *= busiest(_blocks(kernel, tile), 1, target.threads)
    elif not any(r in tile.panel.ranges and r is not lane for r in kernel.parallel):
        slow *= busiest(count, tile.vectors, target.threads)
    return price(target, steps, moved, slow) | price(target, None, _packing(kernel, target, tile))


def _functions(target: Target, tile: RegisterTile) -> Iterator[Moved]:
    """Generate the cost of computing operands that are functions of loaded elements: once where they are copied to
    local memory, else at each use."""
    used, load = count_of(tile.fold.src[0].ranges), _load(tile.scalar)
    staged = tile.stages or _copies_scalars(tile) or (load is not None and len(load.src) > 2)
    for operand, copied, at_use in ((tile.panel, tile.pack, used / (tile.height * tile.lanes)),
                                    (tile.scalar, staged, used / tile.width)):
        scattered = copied and any(stride_of(n.src[1], tile.lane) not in (0, 1) for n in loads_of(operand)[1:])
        often = count_of(operand.ranges) / (1 if scattered else tile.lanes) if copied else at_use
        if work := operations(operand):
            yield Moved("operation", often * work)


def _packing(kernel: Kernel, target: Target, tile: RegisterTile) -> Iterator[Moved]:
    """Generate the cost of copying the panel into the order of the tile."""
    load, lane, elements = _load(tile.panel), tile.lane, count_of(tile.panel.ranges)
    if not tile.pack:
        return
    if tile.block:  # each worker packs all panels
        elements *= max(target.threads, 1)
    if load is not None and stride_of(load.src[1], lane) == 1:
        yield Moved("along", elements)
    elif load is not None and any(stride_of(load.src[1], r) == 1 for r in kernel.parallel if r is not lane):
        yield Moved("scattered", elements, _lines_between(kernel, target, tile, [load.src[1]], tile.panel.ranges))
    else:
        blocks = load is not None and any(stride_of(load.src[1], r) == 1 and range_size(r) % SIDE == 0
                                          for r in tile.fold.src[1:])
        crowded = _per_set(load, lane, tile.width, target.core.page) / target.core.tile.lines_of_set
        yield Moved("across", elements * (1 + crowded), not blocks)


def _lines_between(kernel: Kernel, target: Target, tile: RegisterTile, indices: list[UOp],
                   ranges: frozenset[UOp]) -> bool:
    """Return True if the lines of elements that are strided along the lanes leave the second cache before the loop
    along them, around the tiles, comes to their next elements."""
    batch = [r for r in kernel.parallel if r in tile.panel.ranges and r is not tile.lane]
    loops = [*batch, tile.lane, *(r for r in kernel.order if r not in batch and r is not tile.lane)]
    along = [n for n, r in enumerate(loops) if r in kernel.parallel and r is not tile.lane and r not in dict(tile.rows)
             and all(stride_of(i, r) == 1 for i in indices)]
    return any(count_of(ranges.intersection(loops[n + 1 :])) * target.core.line > target.l2_bytes // 2 for n in along)


def _feeding(kernel: Kernel, target: Target, tile: RegisterTile) -> Iterator[Moved]:
    """Generate the costs of loading scalars and panel vectors, and of storing the rows of the result."""
    steps, size = frozenset(tile.fold.src[1:]), tile.fold.dtype.itemsize
    products, results = count_of(tile.fold.src[0].ranges), count_of(tile.fold.ranges)
    scalar, reached = _load(tile.scalar), count_of(steps.union(tile.other))
    distinct, staged, across = reached, False, False
    if scalar is not None:  # elements of overlapping windows count once; guarded loads are staged
        inside = [r for r in kernel.order if r in scalar.ranges and (r in steps or r in tile.other)]
        distinct = math.prod(box.size for box in footprints(scalar, inside))
        staged, across = len(scalar.src) > 2, abs(stride_of(scalar.src[1], tile.fold.src[-1]) or 0) > 1
    if _is_narrow(scalar):
        yield Moved("copied", distinct) if _copies_scalars(tile) else Moved("widened", products / tile.width, 1)
    share = _lines_of_step(target, tile, scalar) / tile.height if scalar is not None and across else (
        distinct / reached * size / target.core.line)
    if tile.stages and scalar is not None:
        again = 1 + (reached - distinct) / distinct / tile.block  # blocks share the elements at their borders
        yield Moved("copied", distinct * again * count_of(frozenset(r for r in scalar.ranges if r not in inside)))
        yield Moved("scalar_line", products / tile.width * distinct / reached * size / target.core.line)
    elif tile.block:  # the first panel brings the lines to L2
        yield Moved("scalar_line", products / tile.width * share)
    elif scalar is not None and not staged and not across and _conflict(target, tile, scalar):
        yield Moved("conflict", products / tile.width)
    else:
        far = 2 if _blocks_of_windows(target, tile) else int(distinct * size > target.l2_bytes // 2 and not staged)
        yield Moved("scalar_line", products / tile.width * share, far)
    if tile.block or not _is_near(target, tile):
        yield Moved("panel_vector", products / (tile.height * tile.lanes))
    yield Moved("result_row", results / tile.width, results * size > 4 * target.l2_bytes)


def _lines_of_step(target: Target, tile: RegisterTile, load: UOp) -> float:
    """Return the cache lines that the rows of a tile read in one step, on average over the positions of the tiles."""
    lines = 1.0
    for r, amount in tile.rows:
        reach, line = amount * abs(stride_of(load.src[1], r) or 0) * load.dtype.itemsize, target.core.line
        lines *= min(1 if line % max(reach, 1) == 0 else 1 + reach * (amount - 1) / amount / line, amount)
    return lines


def _per_set(load: UOp | None, lane: UOp, rows: int, page: int) -> float:
    """Return the cache lines per set of the first cache if ``rows`` rows of an operand are read together."""
    pitch = abs(stride_of(load.src[1], lane) or 0) * load.dtype.itemsize if load is not None else 0
    return rows * math.gcd(pitch, page) / page


def _conflict(target: Target, tile: RegisterTile, load: UOp) -> bool:
    """Return True if the lines of a tile's rows of scalars, and one of the panel, do not fit a set of the first cache:
    each line leaves it before the next step reads its next element."""
    ways = target.l1_bytes // target.core.page
    return math.prod(max(_per_set(load, r, amount, target.core.page), 1) for r, amount in tile.rows) >= ways


def _crowds_a_set(scalar: UOp | None, fold: UOp, core: CpuModel) -> bool:
    """Return True if all steps of a long reduction read lines of the same few cache sets: their stride is a multiple of
    a page."""
    if scalar is None or count_of(frozenset(fold.src[1:])) < core.tile.same_sets[0]:
        return False
    step = abs(stride_of(scalar.src[1], fold.src[-1]) or 0) * scalar.dtype.itemsize
    return step >= core.page and step % core.page == 0


def _share_of_sets(pitch: int, width: int, way: int) -> float:
    """Return the fraction of a cache's sets that rows of ``width`` bytes at a distance of ``pitch`` bytes occupy.
    ``way``: bytes of one cache way."""
    return min(1.0, width / math.gcd(pitch, max(way, 1))) if pitch else 1.0


def _is_narrow(load: UOp | None) -> bool:
    """Return True for a load of 16-bit floats, which should be widened once, not at each use."""
    return load is not None and load.dtype.is_float and load.dtype.itemsize == 2


def _is_read_again(index: UOp, row: UOp, inner: UOp) -> bool:
    """Return True if several steps of ``inner`` read the same element: they have the stride of ``row``, as for a window
    that slides over rows, or none, as for an element that is repeated."""
    step, further = stride_of(index, row), stride_of(index, inner)
    return further is None or (bool(step) and abs(step or 0) == abs(further))


def _unroll_amount(core: CpuModel, size: int, vectors: int = 1) -> int:
    """Return the number of steps of a reduction to unroll, with ``vectors`` vectors of the panel in each."""
    return size if size <= core.whole_steps else (4 if size % 4 == 0 and vectors < core.wide else 2)


def _largest_stride(load: UOp | None, fold: UOp) -> int:
    if load is None:
        return 0
    return max((abs(stride_of(load.src[1], r) or 0) for r in fold.src[1:]), default=0)


def _choose_rows(rows: list[UOp], limit: int, costs: TileCosts) -> list[tuple[UOp, int]]:
    """Return row ranges and their copies, whose product is at most ``limit``: few rows wasted at the edge, many per
    tile."""
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


def apply_tile(kernel: Kernel, target: Target, tile: RegisterTile) -> None:
    """Stage guarded scalars as padded tiles, split rows and lanes, pack the panel, order the loops, unroll."""
    if covered_steps(kernel) and not tile.stages:  # a stage is padded with zeros
        before = kernel.order
        kernel.apply(Opt(OptOps.SKIP))
        limited = dict(zip(before, kernel.order))
        tile = replace(tile, fold=tile.fold.substitute(limited), scalar=tile.scalar.substitute(limited))
    lane_number, rows, scalar = tile.lane, list(tile.rows), tile.scalar
    if tile.block:
        rows, scalar = [_in_blocks(kernel, tile)], _scalar_in_blocks(kernel, tile)
    scalar_load = _load(scalar)
    if scalar_load is not None and (tile.stages or len(scalar_load.src) > 2 or _copies_scalars(tile)):
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
        _pack(kernel, tile, panel, batch, lane_outer, outer_rows, target)
    else:
        order_loops(kernel, batch + ([lane_outer] if lane_outer is not None else []))
    _unroll(kernel, target, tile.vectors)
    _fetch_pieces(kernel, target)
    for outer in outer_rows:
        _peel_edges(kernel, outer)


def _in_blocks(kernel: Kernel, tile: RegisterTile) -> tuple[UOp, int]:
    """Split the rows into blocks, and return the range of the rows of a block with its number of copies. Full blocks
    are one loop with the loops around them, such as the batch, so that workers divide all of them."""
    (slides, height), around = tile.rows[0], _loops_around(kernel, tile)
    outer, inner = split(kernel, OptOps.TILE, slides, tile.block)
    assert outer is not None
    for r in around if tile.stages else ():
        at = kernel.order.index(r)
        apply_to(kernel, OptOps.MERGE, r, kernel.ranges.index(outer))
        outer = kernel.order[at]
    return inner, height


def _scalar_in_blocks(kernel: Kernel, tile: RegisterTile) -> UOp:
    """Return the scalar operand after its rows were split: the one that does not depend on the lanes."""
    found = contraction(kernel.folds[0])
    assert found is not None
    return found.b if tile.lane in found.a.ranges else found.a


def _fetch_pieces(kernel: Kernel, target: Target) -> None:
    """Prefetch scalars that are read as short pieces far apart, which no hardware prefetcher follows: those of the next
    sweep over all pieces if this sweep's stay in the first cache, else those of the next step of the outermost
    reduction."""
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
    """Unroll a short loop over tiles if some unrolled steps of its first or last iteration lie outside of a window."""
    steps = [r for r in kernel.order if r.arg[1] is Role.UNROLL]
    reaches = any(loop in s.ranges for r in steps for s in limits(r) or ())
    staged = any(loop in n.ranges for n in kernel.of(Ops.STAGE))
    if reaches and not staged and range_size(loop) <= kernel.target.core.peeled:
        apply_to(kernel, OptOps.CUT, loop, tuple(range(1, range_size(loop))))


def _unroll(kernel: Kernel, target: Target, vectors: int) -> None:
    """Unroll a few steps of the innermost reduction, unless they share scalars with the rows (a window) and these would
    exceed the registers."""
    for r in reversed(kernel.reduces):
        size = range_size(r)
        amount = _unroll_amount(target.core, size, vectors)
        if size > 1 and _live(kernel, r, amount) <= target.vector_registers + 4:
            apply_to(kernel, OptOps.UNROLL, r, amount)
        return


def _live(kernel: Kernel, r: UOp, steps: int) -> int:
    """Return the number of live vector registers if ``steps`` steps of ``r`` are unrolled: accumulators, and scalars
    that several steps share because a window slides over the rows; 0 if no scalars are shared."""
    fold = kernel.folds[0]
    accumulators = count_of(frozenset(x for x in fold.ranges if x.arg[1] is Role.UPCAST))
    for n in toposort(fold):
        if n.op is Ops.LOAD and r in n.src[1].ranges and not any(x.arg[1] is Role.VECTOR for x in n.src[1].ranges):
            step = stride_of(n.src[1], r)
            copies = [u for u in n.src[1].ranges if u.arg[1] is Role.UPCAST]
            if (step is None and copies) or any(
                    0 < abs(stride_of(n.src[1], u) or 0) < steps * abs(step or 1) for u in copies):
                return accumulators + count_of(frozenset(copies)) + steps
    return 0


def _panel_load(kernel: Kernel) -> UOp | None:
    """Return the load inside the contraction that has lanes; None if there is none."""
    for f in kernel.folds:
        for s in f.src[0].src:
            load = _load(s)
            if load is not None and load.src[0].op is Ops.PARAM and any(r.arg[1] is Role.VECTOR for r in load.ranges):
                return load
    return None


def _pack(kernel: Kernel, tile: RegisterTile, panel: UOp, batch: list[UOp], lane_outer: UOp | None,
          rows: list[UOp], target: Target) -> None:
    """Pack one panel at a time, which serves all rows; or all panels at once if they share columns of a window, or if
    scalars then need to be copied only once."""
    if lane_outer is None:
        order_loops(kernel, batch)
        return _stage(kernel, panel, batch, target)
    inside = [r for r in kernel.order if r in panel.ranges and r not in batch]
    fits = count_of(frozenset(inside)) * max(panel.dtype.itemsize, 4) <= target.l2_bytes // 2
    copies = _loops_of_copies(kernel, tile, panel, lane_outer, target) if fits else []
    if tile.block:  # all panels pass over a block of windows while it is in L2
        copies = sorted((r for r in kernel.parallel if r not in panel.ranges and r not in rows), key=lambda r: -r.vmax)
    copies = [r for r in copies if r not in batch]
    order_loops(kernel, [*batch, *copies, lane_outer])
    overlaps = any(len(box.weights) > 1 for box in footprints(panel, inside))
    at_once = tile.block or (fits and (copies or overlaps))
    return _stage(kernel, panel, batch if at_once else [*batch, lane_outer], target)


def _loops_of_copies(kernel: Kernel, tile: RegisterTile, panel: UOp, lane_outer: UOp, target: Target) -> list[UOp]:
    """Return the loops in which scalars are copied to local memory, if it is cheaper to nest the panels inside them:
    every worker then packs all panels and reads them from the second cache, but scalars are copied once, not per panel.
    Else none."""
    staged = kernel.of(Ops.STAGE)
    loops = [r for r in kernel.parallel if any(r in n.ranges for n in staged)]
    copies = sum(count_of(n.ranges) * math.prod(n.arg) for n in staged) * (range_size(lane_outer) - 1)
    packed = [Moved("across", count_of(panel.ranges) * max(target.threads - 1, 0))]
    if _is_near(target, tile):
        packed.append(Moved("panel_vector", count_of(tile.fold.src[0].ranges) / (tile.height * tile.lanes)))
    again, around = (sum(price(target, None, moved).values()) for moved in ([Moved("copied", copies)], packed))
    return loops if again > around else []


def _is_near(target: Target, tile: RegisterTile) -> bool:
    """Return True if a panel stays in the first cache."""
    panel = count_of(frozenset(tile.fold.src[1:])) * tile.width * tile.fold.dtype.itemsize
    return panel <= target.core.tile.near * target.l1_bytes


def _stage(kernel: Kernel, load: UOp, outside: list[UOp], target: Target) -> None:
    kept = tuple(kernel.ranges.index(r) for r in outside)
    kernel.apply(Opt(OptOps.STAGE, kernel.loads.index(load), kept, lanes_of(kernel, target)))


def _stage_guarded(kernel: Kernel, load: UOp, rows: list[tuple[UOp, int]], target: Target) -> None:
    """Copy a guarded operand into a zero-padded tile per outer loop, so that the inner loop has no bounds checks."""
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
