"""Candidates of contractions of few rows on a CPU: tiles of dot products.

The lanes of a register tile run along a parallel range, so that one operand is broadcast. If memory of both operands
runs along the reduced range and one of them has few rows (a decoder's batch, a small batch of a classifier), no operand
offers enough lanes, or its panel would be packed for few uses. In a tile of dot products the lanes run along the
reduced range instead: each step loads one vector of each row and each column, and all of them are multiplied with each
other. The lanes of the sums are added up at the end. A computed operand, such as quantized weights, is computed in full
vectors, once for all rows of the tile.
"""
from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from tinsmith.codegen.kernel import Kernel
from tinsmith.codegen.opt import OptOps
from tinsmith.codegen.planner.candidate import Candidate, lanes_of, name_of, order_loops, split, the_sum
from tinsmith.codegen.planner.cost import Moved, Price, TileSteps, access_cycles, loads_of, operations, price
from tinsmith.ir import UOp
from tinsmith.ir.structure import contraction, count_of, range_size
from tinsmith.target.target import Target

MOST_ROWS = 8
MOST_COLUMNS = 3
STEPS = (4, 2)  # steps of the sum to unroll, each with its own accumulators


class DotTile(NamedTuple):
    """A tile of dot products.

    Attributes:
        fold: the sum of products.
        lane: the reduced range along which the lanes run.
        rows: the range of the tile's rows, which only the operand with fewer elements has, and their number.
        columns: the range of the tile's columns, which only the other operand has, and their number.
        few: the operand of the rows.
        many: the operand of the columns, which is read once.
    """

    fold: UOp
    lane: UOp
    rows: tuple[UOp, int]
    columns: tuple[UOp, int]
    few: UOp
    many: UOp

    @property
    def sums(self) -> int:
        return self.rows[1] * self.columns[1]


def dot_ways(kernel: Kernel, target: Target) -> Iterator[Candidate]:
    """Generate the tiles of dot products for the kernel's contraction."""
    for tile in _tiles(kernel, target):
        what = f"dot products of {tile.rows[1]} × {tile.columns[1]} vectors along {name_of(tile.lane)}"
        yield Candidate(what, _price(kernel, target, tile), partial(apply_dots, target=target, tile=tile))


def _tiles(kernel: Kernel, target: Target) -> Iterator[DotTile]:
    """Generate tiles with lanes along each reduced range along which both operands lie: of all rows, or, if an operand
    is packed in words (quantized weights), of some."""
    fold = the_sum(kernel)
    found = contraction(fold) if fold is not None and fold.dtype.is_float else None
    if fold is None or found is None or not target.vector_bytes:
        return
    few, many = sorted((found.a, found.b), key=lambda x: count_of(x.ranges))
    own, other = ([r for r in kernel.parallel if r in x.ranges - y.ranges and r in fold.ranges]
                  for x, y in ((few, many), (many, few)))
    if len(own) != 1 or not other:
        return
    plain = _is_plain(few) and _is_plain(many)
    lanes, rows, columns = lanes_of(kernel, target), own[0], other[-1]
    height = min(range_size(rows), MOST_ROWS)
    if plain and height < range_size(rows):  # panels are packed once for all rows
        return
    for lane in fold.src[1:]:
        if range_size(lane) < 2 * lanes or not kernel.may_have_lanes(lane):
            continue
        if any(_vector_cycles(x, target, lanes, lane) >= _vector_cycles(x, target, lanes, None) for x in (few, many)):
            continue
        for width in range(1, min(MOST_COLUMNS, range_size(columns)) + 1):
            if height * width + min(height, width) < target.vector_registers and (
                    plain or height * width * STEPS[0] <= 2 * target.vector_registers):
                yield DotTile(fold, lane, (rows, height), (columns, width), few, many)


def _is_plain(operand: UOp) -> bool:
    """Return True if an operand is computed from one load. Unrolled steps of others share the words of packed elements,
    which is worth more than accumulators in registers."""
    return len(loads_of(operand)) == 1


def _vector_cycles(operand: UOp, target: Target, lanes: int, lane: UOp | None) -> float:
    """Return the cycles to load what one vector of an operand is computed from."""
    return access_cycles(target, lanes, loads_of(operand), [], lane)


def _steps(tile: DotTile, target: Target, lanes: int) -> int:
    """Return the number of steps of the sum to unroll."""
    size = range_size(tile.lane) // lanes
    most = target.vector_registers * (1 if _is_plain(tile.few) and _is_plain(tile.many) else 2)
    return next((n for n in STEPS if tile.sums * n <= most and size % n == 0), 1)


def _price(kernel: Kernel, target: Target, tile: DotTile) -> Price:
    """Return the price of a tile: multiply-adds, loads and computation of the operands, edges, and the final sums of
    the lanes."""
    core, lanes, fold = target.core, lanes_of(kernel, target), tile.fold
    fill = range_size(tile.lane) / (-(-range_size(tile.lane) // lanes) * lanes)
    for r, amount in (tile.rows, tile.columns):
        fill *= range_size(r) / (-(-range_size(r) // amount) * amount)
    number = count_of(fold.src[0].ranges) / (tile.sums * lanes * fill)
    sides = ((tile.few, tile.rows[1]), (tile.many, tile.columns[1]))
    loads = sum(amount * _vector_cycles(x, target, lanes, tile.lane) for x, amount in sides)
    computed = number * sum(amount * operations(x) for x, amount in sides)
    least, beside = core.tile.step
    products = max(tile.sums / core.issue, core.latency / _steps(tile, target, lanes))
    steps = TileSteps(number, products, max(loads / core.issue, least), beside)
    size, results = fold.dtype.itemsize, count_of(fold.ranges)
    again = count_of(tile.few.ranges) * range_size(tile.columns[0]) / tile.columns[1] / lanes
    near = tile.rows[1] * range_size(tile.lane) * size <= core.tile.near * target.l1_bytes
    lines = sum(count_of(n.ranges) * n.dtype.itemsize for n in loads_of(tile.many)) / core.line
    moved = [Moved("scalar_line", lines, int(lines * core.line > target.l2_bytes // 2)),
             Moved("operation", computed), *([] if near else [Moved("panel_vector", again)])]
    ends = results * lanes.bit_length() * (1 + core.latency / tile.sums)
    return price(target, steps, moved) | {"final sums": ends / core.issue}


def apply_dots(kernel: Kernel, target: Target, tile: DotTile) -> None:
    """Split rows, columns and lanes; the loops over columns are outermost, so that the larger operand is read once."""
    lanes = lanes_of(kernel, target)
    steps = _steps(tile, target, lanes)
    columns, width = tile.columns
    outer_columns = columns if width == 1 else split(kernel, OptOps.UPCAST, columns, width)[0]
    split(kernel, OptOps.UPCAST, *tile.rows)
    outer, _ = split(kernel, OptOps.VECTOR, tile.lane, lanes)
    if outer is not None and steps > 1:
        split(kernel, OptOps.UNROLL, outer, min(steps, range_size(outer)))
    around = [r for r in kernel.parallel if r in tile.few.ranges and r in tile.many.ranges]
    if outer_columns is not None:
        order_loops(kernel, [*around, outer_columns])
