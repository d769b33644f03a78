"""Candidates of contractions on a CPU's matrix unit, and of contractions of computed operands (back-to-back GEMM).

**Matrix units of one thread** (``unit_ways``). The loops are, outermost first: batch, blocks of columns (divided over
the workers), row tiles, column tiles of the block, the reduction. The column operand is packed in the unit's order once
per block, so that it stays in the second cache. The row operand is read in place, or packed per row tile if its layout
does not suit the unit.

**Computed operands** (``chain_ways``; attention). Per block of rows, the inner contractions fill a tile of local memory
(a register tile of rows × vectors), the row statistics (maximum, sum) read it along lanes, and the outer contraction
reads it as broadcast scalars against vectors of its other operand.
"""
from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from tinsmith.codegen.kernel import Kernel
from tinsmith.codegen.lower.indexing import footprints
from tinsmith.codegen.opt import Opt, OptOps
from tinsmith.codegen.planner.candidate import (
    Candidate,
    apply_to,
    lanes_of,
    name_of,
    order_loops,
    power_of_two,
    split,
    stage,
    stride_of,
)
from tinsmith.codegen.planner.cost import Moved, Price, chain_price, price, unit_results, unit_steps
from tinsmith.codegen.planner.cpu.loops import thread_opts
from tinsmith.codegen.transform import matrix_units
from tinsmith.codegen.transform.back_to_back_gemm import greatest
from tinsmith.codegen.transform.computed_operand import (
    equal_values,
    inner_contractions,
    is_made,
    outer_folds,
    single_way_out,
    streams,
)
from tinsmith.codegen.transform.skip_masked_blocks import (
    block_of,
    crossing,
    everywhere,
    masked_blocks,
    nothing_where,
    visible_ends,
)
from tinsmith.ir import Ops, UOp
from tinsmith.ir.algebra.sizes import linear_form
from tinsmith.ir.matrix_unit import MatrixUnit
from tinsmith.ir.structure import Role, contraction, count_of, is_partial, range_size
from tinsmith.ir.uop import toposort
from tinsmith.target.cpu_model import CpuModel
from tinsmith.target.target import Target


@dataclass
class UnitPlan:
    """A contraction on a unit: its ranges, the copies of the unit's tile along (m, n), and the price."""

    unit: MatrixUnit
    m: UOp
    n: UOp
    k: UOp
    copies: tuple[int, int]
    price: Price


def unit_ways(kernel: Kernel, target: Target) -> Iterator[Candidate]:
    """Generate the candidates on the target's matrix units of one thread."""
    sizes = [range_size(r) for r in kernel.order]
    if len(kernel.folds) != 1 or any(s.op is not Ops.STORE for s in kernel.stores) or not all(
            isinstance(s, int) for s in sizes):
        return
    for unit in target.units:
        for p in _plans(kernel, target, kernel.folds[0], unit) if unit.threads == 1 and unit.emit != "muladd" else ():
            yield Candidate(f"{unit.name}, {p.copies[0]} × {p.copies[1]} tiles along {name_of(p.m)} and "
                            f"{name_of(p.n)}", p.price, partial(apply_plan, target=target, plan=p))


def _plans(kernel: Kernel, target: Target, fold: UOp, unit: MatrixUnit) -> list[UnitPlan]:
    found = contraction(fold, guarded=True)
    if found is None or any(is_partial(r) or r.arg[1].expanded for r in kernel.order):
        return []
    out = []
    for x, y in ((found.a, found.b), (found.b, found.a)):
        rows = [r for r in kernel.parallel if r in x.ranges - y.ranges and r in fold.ranges]
        columns = [r for r in kernel.parallel if r in y.ranges - x.ranges and r in fold.ranges]
        depth = [r for r in fold.src[1:] if r in x.ranges and r in y.ranges]
        if not (rows and columns and depth) or len(depth) != len(fold.src) - 1:
            continue
        k = max(depth, key=range_size)
        out += [_plan(kernel, target, fold, unit, m, n, k) for n in columns for m in rows
                if matrix_units.operands(fold, m, n, unit) is not None]
    return out


def _stored_along(kernel: Kernel, r: UOp) -> bool:
    return all(linear_form(s.src[1])[0].get(r, 0) in (0, 1) for s in kernel.stores)


def _plan(kernel: Kernel, target: Target, fold: UOp, unit: MatrixUnit, m: UOp, n: UOp, k: UOp) -> UnitPlan:
    """Return the plan with the cheapest number of accumulator tiles along m and n."""
    operands = matrix_units.operands(fold, m, n, unit)
    assert operands is not None
    others = [r for r in fold.src[0].ranges if r not in (m, n, k)]
    widest = target.core.tile.turned[0][0]
    direct = _loadable(operands[0], m, k) and range_size(k) % unit.k == 0
    shared = [_shared(o, axis, step) for o, axis, step in ((operands[0], m, unit.m), (operands[1], n, unit.n))]
    again = _repeated(kernel, target, operands, m, n)
    rows, long_rows, columns = [_packing(o, axes, part) for o, axes, part in (
        (operands[0], (k,), shared[0] * again), (operands[0], (m, k), shared[0] * again),
        (operands[1], (n, k), shared[1]))]

    def priced(copies: tuple[int, int]) -> Price:
        mu, nu = copies
        count = math.prod(-(-range_size(r) // step) for r, step in (
            *((r, 1) for r in others), (m, unit.m * mu), (n, unit.n * nu), (k, unit.k)))
        blocks = math.gcd(unit.m * mu, widest) if _stored_along(kernel, m) else 1
        moved = [unit_results(target, count_of(fold.ranges), None if _stored_along(kernel, n) else blocks), columns]
        if not (direct and range_size(m) % (unit.m * mu) == 0):  # else rows are read in place
            moved.append(long_rows if shared[0] < 1 or (unit.m * mu >= widest and matrix_units.is_power(mu)) else rows)
        return price(target, unit_steps(count, unit, copies), moved)

    prices = {c: priced(c) for c in _copies(unit)}
    best = min(prices, key=lambda c: (sum(prices[c].values()), (c[0] + c[1]) / (c[0] * c[1])))
    return UnitPlan(unit, m, n, k, best, prices[best])


def _copies(unit: MatrixUnit) -> list[tuple[int, int]]:
    """Return the (rows, columns) of accumulator tiles that fit the unit's registers, together with the operands of the
    shorter side and one operand of the other."""
    most = unit.accumulators
    return [(mu, nu) for mu in range(1, most + 1) for nu in range(1, most // mu + 1)
            if mu * nu + min(mu, nu) + 1 <= unit.registers]


def _shared(operand: UOp, axis: UOp, step: int) -> float:
    """Return the fraction of an operand's elements that are staged: less than 1 if a sliding window overlaps along
    ``axis``, because each element is staged once."""
    for box in footprints(operand, [axis, *(r for r in operand.ranges if r is not axis)]):
        if axis in box.weights and box.low == 0 and (step == 1 or box.lead is axis):
            return float(box.size / math.prod(range_size(r) for r in box.weights))
    return 1.0


def _repeated(kernel: Kernel, target: Target, operands: tuple[UOp, ...], m: UOp, n: UOp) -> int:
    """Return how often the rows are packed: loops that only the columns depend on are outside of the loops of the rows,
    unless there are none of these and all rows are packed at once (see ``_around_rows``)."""
    rows, columns = (o.ranges for o in operands[:2])
    own = [r for r in kernel.parallel if r in rows and r is not m]
    if not own and count_of(rows) * operands[0].dtype.itemsize <= target.l2_bytes // 4:
        return 1
    return count_of(r for r in kernel.parallel if r is not n and r in columns - rows)


def _packing(operand: UOp, axes: tuple[UOp, ...], part: float) -> Moved:
    """Return the cost of packing an operand (its number of elements times ``part``) into the unit's order."""
    along = any(linear_form(o.src[1])[0].get(r, 0) == 1 for o in _loads(operand) for r in axes)
    return Moved("unit_order", count_of(operand.ranges) * part, not along)


def _loads(operand: UOp) -> list[UOp]:
    return [n for n in toposort(operand) if n.op is Ops.LOAD and n.src[0].op is Ops.PARAM]


def _loadable(operand: UOp, m: UOp, k: UOp) -> bool:
    """Return True if the operand is in memory as a row-major tile with rows along ``k``."""
    if operand.op is not Ops.LOAD or len(operand.src) > 2:
        return False
    terms, _ = linear_form(operand.src[1])
    return terms.get(k, 0) == 1 and not any((m in t.ranges or k in t.ranges) and t not in (m, k) for t in terms)


def apply_plan(kernel: Kernel, target: Target, plan: UnitPlan) -> None:
    """Apply TC, block the columns, stage the operands, order the loops, and vectorize the stores of the result."""
    at = kernel.ranges.index
    outer = [r for r in kernel.parallel if r not in (plan.m, plan.n)]
    kernel.apply(Opt(OptOps.TC, at(plan.k), (at(plan.m), at(plan.n), *plan.copies), unit=plan.unit.name))
    product = kernel.products[0]
    a, b = product.src[:2]
    row_tiles, column_tiles = ([r for r in kernel.parallel if r in x.ranges and r not in outer] for x in (a, b))
    blocks: list[UOp] = []
    batch = [r for r in outer if r in kernel.products[0].src[1].ranges]
    if column_tiles:
        shares = math.prod(range_size(r) for r in outer if r not in batch)
        least = 1 if shares >= target.threads else target.threads
        blocks, column_tiles = _blocks(kernel, target, plan, column_tiles[0], least)
    order_loops(kernel, [*batch, *blocks, *(r for r in outer if r not in batch), *row_tiles, *column_tiles])
    _stage(kernel, 1, [*batch, *blocks])
    if 0 in matrix_units.unloadable(kernel.products[0]):
        _stage(kernel, 0, _around_rows(kernel, target, row_tiles))
    _lanes_of_sums(kernel, target)
    _lanes_of_the_result(kernel, target)


def _lanes_of_sums(kernel: Kernel, target: Target) -> None:
    """Vectorize the reductions that do not run on the unit, if memory is contiguous along their range."""
    for fold in kernel.folds:
        r, loads = max(fold.src[1:], key=range_size), _loads(fold.src[0])
        lanes = target.vector_bytes // max((n.dtype.itemsize for n in loads), default=1)
        along = fold.src[0].op is not Ops.MMA and all(stride_of(n.src[1], r) == 1 for n in loads)
        if along and 1 < lanes <= range_size(r):
            split(kernel, OptOps.VECTOR, r, lanes)


def _blocks(kernel: Kernel, target: Target, plan: UnitPlan, tiles: UOp, least: int) -> tuple[list[UOp], list[UOp]]:
    """Split the column tiles into at least ``least`` blocks that fit half of the second cache; return (block loops,
    tile loops)."""
    operand = kernel.products[0].src[1]
    count = range_size(tiles)
    per_tile = plan.unit.n * plan.copies[1] * operand.dtype.itemsize * math.prod(
        range_size(r) for r in operand.ranges if r.arg[1] is Role.REDUCE) * plan.unit.k
    most = min(max(target.l2_bytes // 2 // per_tile, 1), -(-count // max(least, 1)))
    size = max(d for d in range(1, count + 1) if count % d == 0 and d <= most)
    if size == count:
        return [], [tiles]
    if size == 1:
        return [tiles], []
    position = kernel.order.index(tiles)
    kernel.apply(Opt(OptOps.TILE, kernel.ranges.index(tiles), size))
    return [kernel.order[position]], [kernel.order[position + 1]]


def _around_rows(kernel: Kernel, target: Target, row_tiles: list[UOp]) -> list[UOp]:
    """Return the loops inside which rows are packed: those of the row tiles too, unless the packed rows fit a quarter
    of the second cache and are reused, by an enclosing loop that does not move them or because row tiles overlap."""
    product = kernel.products[0]
    operand = product.src[0]
    own = [r for r in kernel.parallel if r in operand.ranges]
    around = kernel.order[: min((kernel.order.index(r) for r in row_tiles), default=0)]
    size = operand.dtype.itemsize * math.prod(range_size(r) for r in operand.ranges)
    again = any(r not in operand.ranges and r.arg[1] is Role.LOOP for r in around)
    outside = [r for r in own if r not in row_tiles]
    inside = [r for r in kernel.order if r in operand.ranges and r not in outside and r.arg[1] is not Role.FRAGMENT]
    window = matrix_units.slide(product, 0, inside)
    if window is not None and any(r in window.weights for r in row_tiles):
        size = size // math.prod(range_size(r) for r in (*outside, *window.weights)) * window.size
        again = True
    return outside if again and size <= target.l2_bytes // 4 else own


def _stage(kernel: Kernel, which: int, outside: list[UOp]) -> None:
    """Stage operand ``which`` of the unit, named by one of its loads; an operand made of constants is not staged."""
    loads = _loads(kernel.products[0].src[which])
    if loads:
        stage(kernel, loads[0], outside)


def _lanes_of_the_result(kernel: Kernel, target: Target) -> None:
    """Vectorize the loop that stores the staged result, along its columns, or along its rows with blocks transposed in
    registers."""
    inner = [r for r in kernel.parallel if not any(r in p.ranges for p in kernel.products)]
    lanes, sides = max(target.vector_bytes // 4, 1), [side for side, _ in target.core.tile.turned if side > 1]
    for r in reversed(inner):
        width = math.gcd(range_size(r), lanes)
        if _stored_along(kernel, r) and width >= min(lanes, min(sides)) > 1 and kernel.may_have_lanes(r):
            block = min(width, max(sides))
            if r is not inner[-1] and range_size(inner[-1]) % block == 0:
                apply_to(kernel, OptOps.UPCAST, inner[-1], block)
            apply_to(kernel, OptOps.VECTOR, r, width)
            return


def chain_ways(kernel: Kernel, target: Target) -> Iterator[Candidate]:
    """Generate the schedules of contractions of computed operands, and of statements that reduce one tile along both
    sides."""
    lanes, core = lanes_of(kernel, target), target.core
    products = sum(count_of(f.src[0].ranges) for f in kernel.folds) / lanes
    sides = crossing(kernel.sink)
    lengths = [range_size(side[0]) for side in sides]
    sizes = [block_of(n, core.tile_blocks) if isinstance(n, int) else 0 for n in lengths]

    def offered(what: str, spent: Price, way: Callable[[Kernel], None]) -> Candidate:
        return Candidate(what, spent, partial(_with_panels, way=way, target=target))

    if sides and all(sizes):
        yield offered("blocks of a tile shared by statements", chain_price(target, products), partial(
            blocks_of_tiles, target=target, sides=sides, sizes=sizes))
    if any(not isinstance(range_size(r), int) for r in kernel.order):
        return
    far = False
    if (row := _row(kernel, target)) is not None:
        far = core.tile_rows * 2 * row.nbytes > target.l2_bytes // 2
        spent = chain_price(target, products, core.visible if row.masked else 1.0, rescaled=True)
        yield offered(f"blocks of {row.block} columns", spent, partial(blocks_of_rows, target=target, row=row))
    found = {rows[-1:] for _, rows in streams(kernel.sink)}
    rows = found.pop() if len(found) == 1 else ()
    if rows:
        yield offered("full rows", chain_price(target, products, far=far), partial(
            whole_rows, target=target, rows=rows))


def _with_panels(kernel: Kernel, way: Callable[[Kernel], None], target: Target) -> None:
    way(kernel)
    panels(kernel, target)
    steps(kernel, target.core.tile_steps)
    if target.threads > 1:
        thread_opts(kernel, target)


def whole_rows(kernel: Kernel, target: Target, rows: tuple[UOp, ...]) -> None:
    """Compute a few complete rows at a time."""
    lanes = lanes_of(kernel, target)
    _rows_inside(kernel, rows)
    split(kernel, OptOps.UPCAST, rows[0], target.tile_rows(range_size(rows[0])))  # sizes of 1 have no range
    tiles(kernel, target.core, lanes)
    columns(kernel, target.core, lanes)
    statistics(kernel, target.core, lanes)


def _rows_inside(kernel: Kernel, rows: Sequence[UOp]) -> None:
    """Move the loops over rows inside the other loops of their operands, such as batch and heads: what rows share, such
    as packed columns, is then computed once for all of them."""
    inside = frozenset(r for operand, _ in streams(kernel.sink) for r in operand.ranges)
    order_loops(kernel, [r for r in kernel.parallel if r in inside and r not in rows])


def blocks_of_tiles(kernel: Kernel, target: Target, sides: list[list[UOp]], sizes: list[int]) -> None:
    """Compute statements that reduce one tile along both of its sides block by block, with their results accumulated in
    memory."""
    lanes = lanes_of(kernel, target)
    for side, size in zip(sides, sizes):
        at = [kernel.ranges.index(r) for r in side]
        kernel.apply(Opt(OptOps.CARRY, at[0], (size, *at[1:])))
    if masked_blocks(kernel):
        kernel.apply(Opt(OptOps.SKIP))
    common = [r for r in kernel.order if all(r in s.ranges for s in kernel.stores)]
    tiles(kernel, target.core, lanes, [*common, *(r for r in kernel.order if r.arg[1] is Role.BLOCK)])
    columns(kernel, target.core, lanes)
    rows(kernel)


class _Row(NamedTuple):
    """A row reduction with a maximum and sums relative to it, one of them a contraction with all columns of the result.

    Attributes:
        over: the range of the maximum.
        rows: the ranges of the rows.
        column: the range of the result's columns.
        nbytes: bytes of a row.
        block: elements of a block of ``over``.
        masked: a mask hides some blocks completely.
    """

    over: UOp
    rows: list[UOp]
    column: UOp
    nbytes: int
    block: int
    masked: bool


def _row(kernel: Kernel, target: Target) -> _Row | None:
    top, sums = greatest(kernel.sink), [f for f in outer_folds(kernel.sink) if contraction(f)]
    if top is None or len(sums) != 1 or not inner_contractions(top.src[0]):
        return None
    over, size = top.src[1], range_size(top.src[1])
    beside = [r for r in kernel.parallel if r in sums[0].ranges and r not in top.ranges]
    rows, (least, most, apart) = [r for r in kernel.parallel if r in top.ranges], target.core.row_block
    block = block_of(size, range(min(most, max(size // 4, least)), least - 1, -apart)[::-1])
    fits = len(beside) == 1 and -(-range_size(beside[0]) // lanes_of(kernel, target)) <= target.core.accumulators
    if not fits or block in (0, size) or not rows:
        return None
    hidden = nothing_where(top.src[0], -math.inf)
    masked = hidden is not None and everywhere(hidden, [over]) is not None
    return _Row(over, rows, beside[0], size * top.dtype.itemsize, block, masked)


def blocks_of_rows(kernel: Kernel, target: Target, row: _Row) -> None:
    """Compute rows with a maximum block by block (online softmax): for rows that exceed half of the second cache, or
    with a mask that hides blocks.

    Measured, 8 heads of 64: 512 rows of 512 keys take 4.7 ms in blocks and 3.9 ms as full rows, with a causal mask 3.5
    and 3.9; 4096 of 4096 (one head) 53 and 44 ms, with the mask 23 and 49.
    """
    lanes = lanes_of(kernel, target)
    vectors = -(-range_size(row.column) // lanes)
    kernel.apply(Opt(OptOps.ONLINE, kernel.ranges.index(row.over), row.block))
    height = min(max(target.core.accumulators // vectors, 1), target.tile_rows(range_size(row.rows[-1])))
    if height > 1:
        split(kernel, OptOps.UPCAST, row.rows[-1], height)
    if visible_ends(kernel):
        kernel.apply(Opt(OptOps.SKIP))
    around = [r for r in kernel.ranges if r in kernel.parallel or r.arg[1] is Role.BLOCK]
    while inner := inner_contractions(next(f.src[0] for f in kernel.folds
                                           if f.arg is Ops.MAX and f.src[1].arg[1] is not Role.BLOCK)):
        value = single_way_out(inner[0], kernel.sink, frozenset())
        tile(kernel, value, lanes, power_of_two(target.core.accumulators // height), around)
    for factor in [s for f in kernel.folds if contraction(f) for s in f.src[0].src]:
        if any(n.op is Ops.STAGE for n in toposort(factor)) and factor in kernel.stageable[len(kernel.loads):]:
            tile(kernel, factor, lanes, 1, around)
    if lanes > 1:
        outer, _ = split(kernel, OptOps.VECTOR, row.column, lanes)
        if outer is not None and range_size(outer) > 1:
            apply_to(kernel, OptOps.UPCAST, outer, range_size(outer))
    statistics(kernel, target.core, lanes)


def tiles(kernel: Kernel, core: CpuModel, lanes: int, around: Sequence[UOp] | None = None) -> None:
    """Stage every inner contraction as a tile, then every computed operand that is not staged yet. ``around``: the
    loops that enclose the tiles; None: all."""
    while inner := next((i for operand, _ in streams(kernel.sink) if (i := inner_contractions(operand))), None):
        values = [single_way_out(f, kernel.sink, _made_of_others(f, inner, kernel.sink)
                                 | _in_fewer_places(f, kernel.sink, around)) for f in inner]
        readers = Counter(s for n in toposort(kernel.sink) for s in set(n.src))
        tile(kernel, max(values, key=lambda v: readers[v]), lanes, core.tile_vectors, around)
    for fold in outer_folds(kernel.sink):
        if fold in outer_folds(kernel.sink) and contraction(fold):
            for factor in fold.src[0].src:
                made = is_made(factor) or any(n.op is Ops.STAGE for n in toposort(factor))
                if made and factor in kernel.stageable[len(kernel.loads):]:
                    tile(kernel, factor, lanes, 1, around)


def _made_of_others(fold: UOp, inner: list[UOp], sink: UOp) -> frozenset[UOp]:
    others = {f for f in inner if f is not fold}
    made: set[UOp] = set()
    for n in toposort(sink):
        if n in others or any(s in made for s in n.src):
            made.add(n)
    return frozenset(made - set(toposort(fold)))


def _in_fewer_places(fold: UOp, sink: UOp, around: Sequence[UOp] | None) -> frozenset[UOp]:
    """Return values computed from ``fold`` that occur fewer times than ``fold``, up to renaming of ranges."""
    if around is None:
        return frozenset()
    fixed = frozenset(around)
    count = len(equal_values(sink, fold, fixed))
    above = [n for n in toposort(sink) if n.op.alu and n.ranges == fold.ranges and fold in toposort(n)]
    return frozenset(n for n in above if len(equal_values(sink, n, fixed)) < count)


def tile(kernel: Kernel, value: UOp, lanes: int, copies: int, around: Sequence[UOp] | None) -> None:
    """Stage ``value`` over its register-tile rows and its reduced ranges."""
    loops = [r for r in kernel.ranges if r.arg[1] in (Role.LOOP, Role.THREAD)] if around is None else around
    outside = [r for r in loops if r in value.ranges]
    reduced = (range_size(r) for r in reversed(kernel.order) if r in value.ranges and r.arg[1] is Role.REDUCE)
    along = next(reduced, 1)  # a reduction over 1 element has no range
    while copies > 1 and along < lanes * copies:
        copies //= 2
    stage(kernel, value, outside, lanes if 1 < lanes <= 2 * along else 0, copies)


def columns(kernel: Kernel, core: CpuModel, lanes: int) -> None:
    """Vectorize every outer contraction along its columns, with ``CpuModel.tile_vectors`` vectors of accumulators."""
    done: set[UOp] = set()
    while True:
        ready = [f for f in outer_folds(kernel.sink) if contraction(f)
                 and not any(r.arg[1] is Role.VECTOR for r in f.ranges)]
        staged = {r for n in toposort(kernel.sink) if n.op is Ops.STAGE for r in n.ranges}  # not once per lane
        options = [(f, r) for f in ready for r in kernel.parallel if r in f.ranges and range_size(r) >= 4
                   and r not in done | staged and any(r not in s.ranges for s in f.src[0].src)
                   and kernel.may_have_lanes(r)]
        options = [(f, r) for f, r in options if all(stride_of(s.src[1], r) in (0, 1) for s in kernel.stores
                                                     if f in toposort(s))] or options
        if lanes == 1 or not options:
            return
        best = options[-1][1]
        done.add(best)
        outer, _ = split(kernel, OptOps.VECTOR, best, min(lanes, power_of_two(range_size(best))))
        if outer is not None and range_size(outer) > 1:
            split(kernel, OptOps.UPCAST, outer, core.tile_vectors)


def rows(kernel: Kernel) -> None:
    """Upcast the rows of every outer contraction: the loop of the factor that has no lanes."""
    for f in [f for f in outer_folds(kernel.sink) if contraction(f)]:
        factor = next((s for s in f.src[0].src if not any(r.arg[1] is Role.VECTOR for r in s.ranges)), f.src[0].src[0])
        other = f.src[0].src[1] if factor is f.src[0].src[0] else f.src[0].src[0]
        loops = [r for r in kernel.parallel if r in factor.ranges and r in f.ranges and r not in other.ranges]
        if loops:
            split(kernel, OptOps.UPCAST, loops[-1], kernel.target.tile_rows(range_size(loops[-1]), even=True))


def statistics(kernel: Kernel, core: CpuModel, lanes: int) -> None:
    """Vectorize the reductions of staged rows along the row, with several accumulators."""
    for ranges in dict.fromkeys(f.src[1:] for f in kernel.folds if not contraction(f)):
        r = ranges[-1]
        if r.arg[1] is Role.BLOCK:
            continue
        if lanes == 1 or r not in kernel.order or range_size(r) < lanes or not kernel.may_have_lanes(r):
            continue
        outer, _ = split(kernel, OptOps.VECTOR, r, lanes)
        if outer is not None and range_size(outer) % core.tile_steps == 0:
            split(kernel, OptOps.UNROLL, outer, core.tile_steps)


def panels(kernel: Kernel, target: Target) -> None:
    """Pack factors that cannot be read from memory directly: vectors whose lanes are not contiguous, and scalars that
    must be computed first."""
    while True:
        wanted = [s for f in kernel.folds if contraction(f) for s in f.src[0].src if _wants_panel(s)]
        packed = next(((s, out) for s in wanted if (out := _outside(kernel, s)) is not None), None)
        if packed is None:
            return
        value, outside = packed
        stage(kernel, value, outside, lanes_of(kernel, target))


def _wants_panel(factor: UOp) -> bool:
    lane = next((r for r in factor.ranges if r.arg[1] is Role.VECTOR), None)
    loads = [n for n in toposort(factor) if n.op is Ops.LOAD]
    if not loads or any(n.op in (Ops.STAGE, Ops.FOLD) for n in toposort(factor)):
        return False
    if lane is None:
        return factor.op is not Ops.LOAD
    return any(stride_of(n.src[1], lane) != 1 or len(n.src) > 2 for n in loads if lane in n.ranges)


def _outside(kernel: Kernel, factor: UOp) -> list[UOp] | None:
    """Return the loops that enclose the packing of a factor: the parallel ones and the carried BLOCK loops; all BLOCK
    loops if the panel would otherwise exceed ``CpuModel.largest_panel``. None if it is too large even then."""
    around = [r for r in kernel.order if r in factor.ranges and r in kernel.parallel
              and all(r in s.ranges for s in kernel.stores)]
    carried = {s.src[4] for s in kernel.stores if s.op is Ops.SCATTER_STORE}
    blocks = [r for r in factor.ranges if r.arg[1] is Role.BLOCK]
    for outside in ([*around, *(r for r in blocks if r in carried)], [*around, *blocks]):
        size = count_of(frozenset(r for r in factor.ranges if r not in outside)) * factor.dtype.itemsize
        if size <= kernel.target.core.largest_panel:
            return outside
    return None


def steps(kernel: Kernel, most: int) -> None:
    """Unroll the summed range of every contraction by ``most``: in full if it is shorter, by 2 if ``most`` does not
    divide it."""
    for r in dict.fromkeys(f.src[-1] for f in kernel.folds if contraction(f)):
        size = range_size(r) if r in kernel.order else 1
        if r.arg[1] is Role.REDUCE and size > 1:
            split(kernel, OptOps.UNROLL, r, most if size % most == 0 else 2) if size > most else apply_to(
                kernel, OptOps.UNROLL, r, size)
