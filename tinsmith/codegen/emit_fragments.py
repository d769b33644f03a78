"""Epilogue of a matrix unit: vector stores of fragments after lanes have exchanged columns.

A lane holds pairs of columns of many 8-column blocks. If a fragment has at least four such blocks, the four lanes of a
row exchange them by shuffles so that each lane holds eight adjacent columns. This is a 4 × 4 transpose in two steps,
one per bit of the lane number:

    lane l, bit b:   send = b(l) ? x : y;   x, y = b(l) ? (shuffled send, y) : (x, shuffled send)

The rest of the epilogue works on vectors of eight. The part of the stored value that depends only on the accumulator is
computed before the exchange, in which two 16-bit elements travel as one 32-bit word.
"""
from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from tinsmith.codegen import matrix
from tinsmith.codegen.emit_tiles import Place, value_in
from tinsmith.codegen.emitter import Emitter
from tinsmith.codegen.roles import Role, range_size
from tinsmith.codegen.scopes import Coords
from tinsmith.core.dtypes import dtypes
from tinsmith.ir import Ops, UOp
from tinsmith.ir.linear import linear_form, shifted
from tinsmith.ir.symbolic import for_all_lanes, simplify
from tinsmith.ir.units import Digit, Fragment
from tinsmith.ir.uop import toposort


def store_fragments(lin: Emitter, n: UOp, fixed: Coords) -> None:
    """Store a matrix unit's accumulators: as tiles if the unit stores tiles, else each lane stores rows of its
    elements."""
    order = toposort(n)
    product = next(x for x in order if x.op is Ops.MMA and (x.src[2].ranges | x.src[3].ranges) <= n.ranges)
    fragment, row, column = product.arg.fragment_c, product.src[2], product.src[3]
    total = [x for x in order if x.op in (Ops.FOLD, Ops.MMA) and (row.ranges | column.ranges) <= x.ranges][-1]
    for own in lin.all_coords(n.ranges - {r for r, _ in fixed}):
        coords = lin.both(own, fixed)
        if not fragment.whole:
            _store_rows(lin, n, total, Place(fragment, row, column), coords)
            continue
        line = lin.value(total, coords)
        assert n.src[2] is total and len(n.src) == 3, n
        found = matrix.store_address(n.src[0], lin.at(n.src[1], coords), fragment, row, column)
        assert found is not None, n
        _, index, pitch = found
        shape = fragment.rows, fragment.size // fragment.rows
        apart = lin.emit(0, UOp.index(pitch))
        lin.force(UOp(Ops.STORE_TILE, None, (n.src[0], lin.expression(index), apart, line), shape))


def _store_rows(lin: Emitter, n: UOp, total: UOp, tile: Place, coords: Coords) -> None:
    """Store vectors of adjacent columns if memory is contiguous along them, else single elements. Loads of up to
    ``blocks.beside`` vectors are issued before the first of their stores, because the compiler may not reorder a load
    and a store."""
    fragment, row, column = tile.fragment, tile.row, tile.column
    along = _runs_along(lin, n.src[1], column, fragment)
    own = _of_the_sum(n.src[2], total, row)
    line = value_in(lin, own, tile, coords)
    rows, fragment = _exchanged(lin, line, fragment) if along else (None, fragment)
    width = fragment.registers[0][0] if along and fragment.registers[0][1:] == (0, 1) else 1
    lanes = math.prod(size for size, _, _ in fragment.lanes)
    down, across = matrix.lane_position(fragment, UOp(Ops.SPECIAL, dtypes.index, (), ("lidx0", lanes)))
    steps, stores = fragment.places()[0], list[UOp]()
    lane = lin.new_range(width, Role.VECTOR) if width > 1 else UOp.index(0)
    at = tuple(lin.new_range(range_size(r), Role.LOOP) for r in (row, column))
    place = lin.affine(n.src[1].substitute({row: down + at[0], column: across + at[1] + lane}), at)
    for first in range(0, fragment.size, width):
        part = rows(first, width) if rows is not None else lin.picked(line, range(first, first + width))
        name = lin.named(part)
        if width > 1:
            name = UOp(Ops.AFTER, None, (name, lane))  # a named line with lanes
            lin.reread[name] = True
            lin.scopes[-1].values[name, ()] = part
        r, c = (int(x) for x in steps[first])
        table, store = {row: down + r, column: across + c + lane}, n
        if place is not None:  # the addresses of all rows differ by a constant
            rest, constant, (down_step, across_step) = place
            table |= {n.src[1]: shifted(rest, constant + r * down_step + c * across_step)}
        store = simplify(n.substitute({own: name}).substitute(table))
        alike = {x: found for x in toposort(store) if (found := for_all_lanes(x, lane)) is not None}
        if alike:
            store = simplify(store.substitute(alike))
        stores.append(store)
        if len(stores) == lin.kernel.target.blocks.beside or first + width >= fragment.size:
            for load in (x for s in stores for x in toposort(s.src[2:]) if x.op is Ops.LOAD):
                lin.value(load, lin.coords_of(load, coords))
            for each in stores:
                lin.store(each, coords)
            stores = []


def _runs_along(lin: Emitter, index: UOp, column: UOp, fragment: Fragment) -> bool:
    """Return True if memory is contiguous along the columns for at least one vector; columns may be pixels of a patch.
    """
    terms, digits = linear_form(index)[0], _digits(fragment)
    if terms.get(column) == 1:
        return True
    width = math.prod(size for size, _, _ in (digits[0][0], digits[1][0])) if digits is not None else 1
    if width == 1 or range_size(column) % width:
        return False
    lane, vector = lin.new_range(width, Role.VECTOR), lin.new_range(range_size(column) // width, Role.LOOP)
    terms = linear_form(index.substitute({column: vector * width + lane}).simplify())[0]
    return terms.pop(lane, 0) == 1 and not any(lane in t.ranges for t in terms)


def _of_the_sum(value: UOp, total: UOp, row: UOp) -> UOp:
    """Return the largest part of a stored value that depends only on the accumulator and on row statistics, if the rest
    needs no other part of it; else the accumulator."""
    order = toposort(value, lambda n: n.op not in (Ops.FOLD, Ops.MMA))
    pure = {total, *(s for n in order for s in n.src if s.op is Ops.FOLD and row in s.ranges)}
    border = set[UOp]()
    for n in order:
        inner = [s for s in n.src if not s.is_const]
        if n.op.elementwise and n.op is not Ops.UNLIKELY and inner and all(s in pure for s in inner):
            pure.add(n)
        else:
            border.update(s for s in inner if s in pure)
    if value in pure:
        border.add(value)
    return border.pop() if len(border) == 1 else total


def _exchanged(lin: Emitter, line: UOp, fragment: Fragment) -> tuple[Callable[[int, int], UOp] | None, Fragment]:
    """Exchange columns between lanes. Return a reader of vectors and the new fragment layout; (None, ``fragment``) if
    the layout does not fit."""
    digits = _digits(fragment)
    if digits is None:
        return None, fragment
    (pair, *between, blocks), lanes = digits
    size, here = lanes[0][0], lin.here
    packed = line.dtype.itemsize == 2
    middle = math.prod(d[0] for d in between)
    words = lin.words(line) if packed else line
    per_pair = 1 if packed else pair[0]
    position = np.arange(words.dtype.count).reshape(blocks[0] // size, size, middle, per_pair)
    thread = lin.expression(UOp(Ops.SPECIAL, dtypes.index, (), ("lidx0", math.prod(d[0] for d in fragment.lanes))))
    bit = 1
    while bit < size:
        low = [x for x in range(size) if not x & bit]
        xs, ys = (position[:, chosen].reshape(-1) for chosen in (low, [x | bit for x in low]))
        x, y = (lin.picked(words, at) for at in (xs, ys))
        upper = lin.raw((thread // bit % 2).simplify().eq(1))
        kind = words.dtype.scalar
        sent = lin.combine(here, Ops.WHERE, kind, [upper, x, y])
        come = lin.emit(here, UOp(Ops.SHUFFLE, sent.dtype, (sent,), bit))
        x, y = (lin.combine(here, Ops.WHERE, kind, [upper, *both]) for both in ((come, x), (y, come)))
        back = np.argsort(np.array([*xs, *ys]))
        words = lin.picked(lin.emit(here, UOp(Ops.VECTORIZE, words.dtype, (x, y))), back)
        bit *= 2
    order = position.transpose(0, 2, 1, 3).reshape(-1)  # adjacent elements are those that the lanes had

    def vector(first: int, width: int) -> UOp:
        per = 2 if packed else 1
        part = lin.picked(words, order[first // per : (first + width) // per])
        return lin.emit(here, UOp(Ops.BITCAST, line.dtype.scalar.vec(width), (part,))) if packed else part

    beside = pair[0] * size
    whole = ((beside, 0, 1), *between, (blocks[0] // size, 0, beside * size))
    return vector, Fragment(whole, ((size, 0, beside), *lanes[1:]))


def _digits(fragment: Fragment) -> tuple[tuple[Digit, ...], tuple[Digit, ...]] | None:
    """Return the digits of registers and lanes if adjacent lanes hold adjacent pairs of columns, with blocks after
    them; else None."""
    registers, lanes = fragment.registers, fragment.lanes
    if len(registers) < 2 or not lanes:
        return None
    pair, blocks, size = registers[0], registers[-1], lanes[0][0]
    fits = pair[1:] == (0, 1) and pair[0] == 2 and lanes[0][1:] == (0, 2) and matrix.is_power(size)
    between = all(across == 0 for _, _, across in registers[1:-1])
    return (registers, lanes) if fits and between and blocks[1:] == (0, 2 * size) and blocks[0] % size == 0 else None
