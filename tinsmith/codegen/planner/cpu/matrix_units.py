"""Candidates for a contraction on a matrix unit of one thread (CPU): the ranges, the register tile, and the cache
blocks.

The loops, outermost first: batch, blocks of columns (divided over the workers), row tiles, column tiles of the block,
the reduction. The column operand is packed in the unit's order once per block, so that it stays in the second cache;
the row operand is read in place, or packed per row tile if its layout does not suit the unit.
"""
from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from tinsmith.codegen.kernel import Kernel
from tinsmith.codegen.lower.footprints import footprints
from tinsmith.codegen.opt import Opt, OptOps
from tinsmith.codegen.planner.candidate import Candidate, apply_to, name_of, order, split, stage, stride_of
from tinsmith.codegen.planner.cost import Moved, Price, price, unit_results, unit_steps
from tinsmith.codegen.transform import matrix_units
from tinsmith.ir import Ops, UOp
from tinsmith.ir.algebra.linear import linear_form
from tinsmith.ir.matrix_unit import MatrixUnit
from tinsmith.ir.ranges import Role, count_of, is_partial, range_size
from tinsmith.ir.structure import contraction
from tinsmith.ir.uop import toposort
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
        n = max(columns, key=lambda r: (_stored_along(kernel, r), range_size(r)))
        across = not _stored_along(kernel, n)
        m = max(rows, key=lambda r: (across and _stored_along(kernel, r), range_size(r)))
        k = max(depth, key=range_size)
        if matrix_units.operands(fold, m, n, unit) is not None:
            out.append(_plan(kernel, target, fold, unit, m, n, k))
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
    rows, long_rows, columns = [_packing(o, axes, part) for o, axes, part in (
        (operands[0], (k,), shared[0]), (operands[0], (m, k), shared[0]), (operands[1], (n, k), shared[1]))]

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
    """Return the (rows, columns) of accumulator tiles that fit the unit's registers together with the operands of the
    shorter side and one more."""
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


def _packing(operand: UOp, axes: tuple[UOp, ...], part: float) -> Moved:
    """Return the cost of packing an operand (the fraction ``part`` of its elements) into the unit's order."""
    along = any(linear_form(o.src[1])[0].get(r, 0) == 1 for o in _loads(operand) for r in axes)
    return Moved("unit_order", count_of(operand.ranges) * part, not along)


def _loads(operand: UOp) -> list[UOp]:
    return [n for n in toposort(operand) if n.op is Ops.LOAD and n.src[0].op is Ops.PARAM]


def _loadable(operand: UOp, m: UOp, k: UOp) -> bool:
    """Return True if the operand lies in memory as a row-major tile with rows along ``k``."""
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
    order(kernel, [*batch, *blocks, *(r for r in outer if r not in batch), *row_tiles, *column_tiles])
    _stage(kernel, 1, [*batch, *blocks])
    if 0 in matrix_units.unloadable(kernel.products[0]):
        _stage(kernel, 0, _around_rows(kernel, target, row_tiles))
    _lanes_of_sums(kernel, target)
    _lanes_of_the_result(kernel, target)


def _lanes_of_sums(kernel: Kernel, target: Target) -> None:
    """Vectorize the reductions that do not run on the unit, if memory runs along their range."""
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
