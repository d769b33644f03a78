"""Computation on the accumulators of a matrix unit, in the registers of the threads: one lane per fragment register.

A value that depends on rows and columns of a tile has one lane per register of the tile's fragment. A row statistic has
one lane per row that a thread holds. An operand of the next product is a selection of such lanes.
"""
from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tinsmith.codegen import matrix
from tinsmith.codegen.emitter import Emitter
from tinsmith.codegen.roles import Role, range_size
from tinsmith.codegen.scopes import Coords
from tinsmith.codegen.streams import bind
from tinsmith.ir import Op, Ops, UOp
from tinsmith.ir.units import Fragment


@dataclass(frozen=True)
class Place:
    """A tile in the registers of a warp: its fragment and the ranges of its rows and columns."""

    fragment: Fragment
    row: UOp
    column: UOp

    @cached_property
    def rows(self) -> Fragment:
        """Return the fragment of a row statistic: the rows that a thread holds, without columns."""
        return Fragment(tuple(d for d in self.fragment.registers if d[1]), self.fragment.lanes)

    @cached_property
    def spread(self) -> tuple[int, ...]:
        """Return, for each register, the index of its row among the thread's rows."""
        found = {int(r): n for n, r in enumerate(self.rows.places()[0][:, 0])}
        return tuple(found[int(r)] for r in self.fragment.places()[0][:, 0])


def tile_of(stage: UOp) -> Fragment:
    """Return the fragment of all columns of an accumulator: the unit's fragment, repeated per register copy."""
    product = product_in(stage)
    copies = stage.arg[0] if len(stage.arg) > 1 else 1
    c = product.arg.fragment_c
    return Fragment((*c.registers, (copies, 0, product.arg.n)), c.lanes) if copies > 1 else c


def product_in(stage: UOp) -> UOp:
    product = matrix.product_of(stage.src[0])
    assert product is not None, stage
    return product


def place_of(lin: Emitter, value: UOp) -> tuple[UOp, Place]:
    """Return a value computed from accumulators, rewritten over the accumulators' own rows and columns, and its tile.
    """
    loads = matrix.reads_held(value)
    stage, index = loads[0].src[0], loads[0].src[1]
    product = product_in(stage)
    own = next(r for r in index.ranges if r.arg[1] is Role.FRAGMENT)
    columns = lin.columns.setdefault(stage.arg, own if index is own else lin.new_range(
        int(np.prod(stage.arg)), Role.FRAGMENT))
    if index is not columns:
        value = bind(value, own, (columns - (index - own)).simplify()).simplify()
    return value, Place(tile_of(stage), product.src[2], columns)


def value_in(lin: Emitter, n: UOp, at: Place, coords: Coords) -> UOp:
    """Return the line of a value in a tile: one lane per register, or per row of the thread, or a scalar."""
    own = n.ranges & {at.row, at.column}
    if n.is_const or n.op in (Ops.FOLD, Ops.MMA) or (n.op is not Ops.SPECIAL and not own and not _named(lin, n)):
        return lin.value(n, coords)
    key = n, at, lin.coords_of(n, coords)
    found = next((s.values[key] for s in reversed(lin.scopes) if key in s.values), None)
    if found is not None:
        return found
    depth = lin.here if _named(lin, n) else lin.depth_of(n)
    if n.op is Ops.SPECIAL:
        line = lin.value(n)
    elif n.op is Ops.LOAD and matrix.held(n.src[0]):
        line = sum_in_registers(lin, n.src[0], coords)
    elif (n.op.elementwise and not lin.index_only(n)) and n.op is not Ops.UNLIKELY:
        parts = [value_in(lin, s, at, coords) for s in n.src]
        count = max(p.dtype.count for p in parts)
        line = lin.combine(depth, n.op, n.dtype, [widened(lin, p, at, count, depth) for p in parts], n.arg)
    else:
        fragment = at.fragment if at.column in own else at.rows
        elements = []
        for table in lin.elements(fragment, at.row, at.column):
            element = n.substitute(table).simplify()
            elements.append(lin.value(element, lin.coords_of(element, coords)))
        line = lin.emit(depth, UOp(Ops.VECTORIZE, n.dtype.vec(len(elements)), tuple(elements)))
    lin.scopes[depth].values[key] = line
    return line


def _named(lin: Emitter, n: UOp) -> bool:
    """Return True if a value depends on named lines, which may have lanes."""
    return lin.rereads(n)


def widened(lin: Emitter, line: UOp, at: Place, count: int, depth: int | None = None) -> UOp:
    """Broadcast a row statistic to all registers of the tile."""
    if line.dtype.count in (1, count):
        return line
    assert line.dtype.count == at.rows.size, line
    return lin.picked(line, at.spread, depth)


def sum_in_registers(lin: Emitter, stage: UOp, coords: Coords) -> UOp:
    """Return the accumulator over all of its columns, as one line."""
    beside = [r for r in stage.src[1:] if r.arg[1] is Role.UPCAST]
    own = lin.coords_of(stage.src[0], coords)
    parts = [lin.value(stage.src[0], lin.both(own, ((r, c),))) for r in beside for c in range(range_size(r))]
    if not parts:
        return lin.value(stage.src[0], own)
    return lin.emit(lin.depth_of(stage), UOp(Ops.VECTORIZE, parts[0].dtype.scalar.vec(
        sum(p.dtype.count for p in parts)), tuple(parts)))


def statistic(lin: Emitter, fold: UOp, coords: Coords, lanes: bool = True) -> UOp:
    """Reduce a tile along its columns: within each thread's registers, then (``lanes``) across the lanes of a row."""
    body, at = place_of(lin, fold.src[0])
    line = widened(lin, value_in(lin, body, at, coords), at, at.fragment.size)
    order = np.argsort(np.array(at.spread), kind="stable").reshape(at.rows.size, -1).T  # columns, rows
    line = lin.halved(fold.arg, lin.picked(line, order.reshape(-1)), at.rows.size)
    return across_lanes(lin, fold.arg, line, at.fragment) if lanes else line


def across_lanes(lin: Emitter, op: Op, line: UOp, fragment: Fragment) -> UOp:
    """Combine a value across the lanes that hold columns of one row, by shuffles."""
    pitch = 1
    for size, _, across in fragment.lanes:
        step = pitch
        while across and step < pitch * size:
            line = lin.shuffled(op, line, step)
            step *= 2
        pitch *= size
    return line


def held_operand(lin: Emitter, product: UOp, coords: Coords) -> UOp:
    """Return a product's A operand computed from accumulators in registers: selected lanes, 16-bit ones as 32-bit
    words."""
    value, at = place_of(lin, product.src[0])
    column = product.src[4]
    line = widened(lin, value_in(lin, value, at, coords), at, at.fragment.size)
    start = matrix.reads_held(product.src[0])[0].src[1].substitute({column: UOp.index(0)} | {
        r: UOp.index(c) for r, c in coords}).simplify()
    choice = matrix.choice(at.fragment, product.arg.operand_a, int(start.arg))
    assert choice is not None, product
    if line.dtype.itemsize != 2 or choice[1::2] != [x + 1 for x in choice[::2]]:
        return lin.picked(line, choice)
    part = lin.picked(lin.words(line), (x // 2 for x in choice[::2]))
    return lin.emit(lin.here, UOp(Ops.BITCAST, line.dtype.scalar.vec(len(choice)), (part,)))
