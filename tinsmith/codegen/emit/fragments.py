"""Emission on the accumulators of a matrix unit, in the threads' registers: epilogues, back-to-back contractions.

A value that depends on rows and columns of a tile has one lane per register of the tile's fragment. A row statistic has
one lane per row that a thread holds. An operand of the next product is a selection of such lanes.

**Epilogue.** Lanes exchange columns so that each stores full vectors. A lane holds pairs of columns of many 8-column
blocks. If a fragment has at least four such blocks, the four lanes of a row exchange them by shuffles so that each lane
holds eight adjacent columns. This is a 4 × 4 transpose in two steps, one per bit of the lane number:

    lane l, bit b:   send = b(l) ? x : y;   x, y = b(l) ? (shuffled send, y) : (x, shuffled send)

Operations that depend only on the accumulator run before the exchange, in which two 16-bit elements travel as one
32-bit word. Elements that the epilogue loads beside the accumulator are prefetched before the products begin: the
accumulator leaves registers for few loads at a time, each of which would wait for memory.

**Back-to-back contractions** over blocks with an online softmax (as in FlashAttention):

    S = q·k of the block;  m = max(m, rows of S);  p = exp(S - m);  l = l·exp(m before - m) + rows of p
    O = O·exp(m before - m) + p·v                            on the unit, which accumulates into O

The sums l and O are relative to the running maximum m. The operands of each block arrive through rings (software
pipelines in shared memory). Without warp specialization the loop has one barrier per iteration, after all reads of the
slots that are filled next have been drained.

If p is computed one block ahead (``made_ahead`` of ``transform/matrix_units.py``), the unit overlaps the scores of the
next block with the product of the current one:

    S = q·k of block 0;  p, m, l of it
    for block:  S = q·k;  O = O + p·v of the block before;  drain S;  m, l;  drain O;  O = O·exp(m before - m);  p
    O = O + p·v of the last
"""
from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from tinsmith.codegen.emit.emitter import Emitter
from tinsmith.codegen.emit.reductions import FoldWriter, OnlineWriter
from tinsmith.codegen.emit.scopes import Coords
from tinsmith.codegen.transform import matrix_units
from tinsmith.codegen.transform.back_to_back_gemm import finite
from tinsmith.codegen.transform.computed_operand import bind
from tinsmith.codegen.transform.matrix_units import held, made_ahead, product_of, reads_held
from tinsmith.codegen.transform.rings import Ring, rings_of
from tinsmith.codegen.transform.skip_masked_blocks import clear_end
from tinsmith.core.dtypes import dtypes
from tinsmith.ir import Op, Ops, UOp
from tinsmith.ir.algebra.sizes import linear_form, shifted
from tinsmith.ir.algebra.symbolic import simplify
from tinsmith.ir.matrix_unit import Digit, Fragment
from tinsmith.ir.structure import Role, range_size
from tinsmith.ir.uop import toposort


def store_fragments(lin: Emitter, n: UOp, fixed: Coords) -> None:
    """Store a matrix unit's accumulators: as tiles if the unit stores tiles, else each lane stores rows of its
    elements."""
    order = toposort(n)
    product = next((x for x in order if x.op is Ops.MMA and (x.src[2].ranges | x.src[3].ranges) <= n.ranges), None)
    if product is None:
        return _store_statistics(lin, n, fixed)
    fragment, row, column = product.arg.fragment_c, product.src[2], product.src[3]
    total = [x for x in order if x.op in (Ops.FOLD, Ops.MMA) and (row.ranges | column.ranges) <= x.ranges][-1]
    copies = [lin.both(own, fixed) for own in lin.all_coords(n.ranges - {r for r, _ in fixed})]
    if not fragment.whole:
        tile = ThreadTile(fragment, row, column)
        vectors = _vectors(lin, n.src[1], tile)
        if product.arg.staged and total.op is Ops.FOLD and vectors.width > 1:
            for coords in copies:
                _prefetch_beside(lin, n, total, vectors, coords)
        for coords in copies:
            _store_rows(lin, n, total, tile, vectors, coords)
        return
    for coords in copies:
        line = lin.value(total, coords)
        assert n.src[2] is total and len(n.src) == 3, n
        found = matrix_units.store_address(n.src[0], lin.at(n.src[1], coords), fragment, row, column)
        assert found is not None, n
        _, index, pitch = found
        shape = fragment.rows, fragment.size // fragment.rows
        apart = lin.emit(0, UOp.index(pitch))
        lin.force(UOp(Ops.STORE_TILE, None, (n.src[0], lin.expression(index), apart, line), shape))


class _Vectors(NamedTuple):
    """The vectors of adjacent columns that a lane stores.

    Attributes:
        fragment: the layout of the accumulator when it is stored.
        positions: row and column of the first element of a vector, given those of the ``ranges`` within the lane.
        width: elements of a vector.
        exchanged: lanes exchange columns before they store.
    """

    fragment: Fragment
    positions: Mapping[UOp, UOp]
    ranges: tuple[UOp, UOp]
    width: int
    exchanged: bool

    @property
    def steps(self) -> list[tuple[int, int]]:
        """Return the row and column of each vector within the lane."""
        return [(int(r), int(c)) for r, c in self.fragment.places()[0][:: self.width]]

    def positions_of(self, step: tuple[int, int]) -> dict[UOp, UOp]:
        """Return the row and column of a vector's first element."""
        return {own: at.substitute({r: UOp.index(s) for r, s in zip(self.ranges, step)})
                for own, at in self.positions.items()}


def _vectors(lin: Emitter, index: UOp, tile: ThreadTile) -> _Vectors:
    """Return the vectors in which lanes store a tile: along its columns if memory is contiguous along them."""
    along = _runs_along(lin, index, tile.column, tile.fragment)
    fragment = _after_exchange(tile.fragment) if along else tile.fragment
    width = fragment.registers[0][0] if along and fragment.registers[0][1:] == (0, 1) else 1
    lanes = math.prod(size for size, _, _ in fragment.lanes)
    starts = matrix_units.lane_position(fragment, UOp(Ops.SPECIAL, dtypes.index, (), ("lidx0", lanes)))
    own = (tile.row, tile.column)
    at = lin.new_range(range_size(tile.row), Role.LOOP), lin.new_range(range_size(tile.column), Role.LOOP)
    return _Vectors(fragment, {r: start + a for r, start, a in zip(own, starts, at)}, at, width, along)


def _store_rows(lin: Emitter, n: UOp, total: UOp, tile: ThreadTile, vectors: _Vectors, coords: Coords) -> None:
    """Store vectors of adjacent columns if memory is contiguous along them, else single elements. Loads of up to
    ``blocks.beside`` vectors are issued before the first of their stores, because the compiler may not reorder a load
    and a store."""
    width, stores = vectors.width, list[UOp]()
    own = _of_the_sum(n.src[2], total, tile.row)
    line = value_in(lin, own, tile, coords)
    rows = _exchanged(lin, line, tile.fragment) if vectors.exchanged else None
    lane = lin.new_range(width, Role.VECTOR) if width > 1 else UOp.index(0)
    positions = {**vectors.positions, tile.column: vectors.positions[tile.column] + lane}
    place = lin.affine(n.src[1].substitute(positions), vectors.ranges)
    for number, step in enumerate(vectors.steps):
        first = number * width
        part = rows(first, width) if rows is not None else lin.picked(line, range(first, first + width))
        name = lin.named(part)
        if width > 1:
            name = UOp(Ops.AFTER, None, (name, lane))  # a named line with lanes
            lin.reread[name] = True
            lin.scopes[-1].values[name, ()] = part
        table, store = vectors.positions_of(step), n
        table[tile.column] += lane
        if place is not None:  # the addresses of all rows differ by a constant
            table |= {n.src[1]: _at_step(place, step)}
        store = simplify(n.substitute({own: name}).substitute(table))
        stores.append(store)
        if len(stores) == lin.kernel.target.blocks.beside or first + width >= vectors.fragment.size:
            for load in (x for s in stores for x in toposort(s.src[2:]) if x.op is Ops.LOAD):
                lin.value(load, lin.coords_of(load, coords))
            for each in stores:
                lin.store(each, coords)
            stores = []


def _at_step(place: tuple[UOp, int, list[int]], step: tuple[int, int]) -> UOp:
    """Return the index of a vector from an affine index (``Emitter.affine``) of its row and column."""
    rest, constant, strides = place
    return shifted(rest, constant + sum(s * stride for s, stride in zip(step, strides)))


def _prefetch_beside(lin: Emitter, n: UOp, total: UOp, vectors: _Vectors, coords: Coords) -> None:
    """Prefetch the vectors that a store of a staged unit's sum loads for each row and column, under the conditions of
    their loads: the addresses of the others do not exist, and any one address in their place would be a bottleneck."""
    inside, own = set(toposort(total)), vectors.positions
    for load in (x for x in toposort(n.src[2:]) if x.op is Ops.LOAD and x not in inside):
        place = lin.affine(load.src[1].substitute(dict(own)), vectors.ranges)
        if load.src[0].op is not Ops.PARAM or not own.keys() <= load.ranges or place is None:
            continue
        for step in vectors.steps:
            first = vectors.positions_of(step)
            conditions = [simplify(v.substitute(first)) for v in load.src[2:]]
            valid = [lin.indexed(v, coords) for v in conditions if not (v.is_const and v.arg)]
            index = lin.indexed(_at_step(place, step), coords)
            lin.force(UOp(Ops.PREFETCH, None, (lin.memory(load.src[0], coords), index, *valid)))


def _store_statistics(lin: Emitter, n: UOp, fixed: Coords) -> None:
    """Store one value per row of a tile: of the lanes that share a row, the first one stores it."""
    product = next(x for x in toposort(n) if x.op is Ops.MMA and x.src[2] in n.ranges)
    row, tile = product.src[2], ThreadTile(product.arg.fragment_c, product.src[2], product.src[3])
    outside = toposort(n, lambda n: n.op is not Ops.FOLD)
    folds = list(dict.fromkeys(s for x in outside for s in x.src if s.op is Ops.FOLD and row in s.ranges))
    lanes = math.prod(size for size, _, _ in tile.rows.lanes)
    lane = UOp(Ops.SPECIAL, dtypes.index, (), ("lidx0", lanes))
    down, across = matrix_units.lane_position(product.arg.fragment_c, lane)
    mine = across.eq(0) if len(n.src) < 4 else n.src[3] & across.eq(0)
    for own in lin.all_coords(n.ranges - {r for r, _ in fixed}):
        coords = lin.both(own, fixed)
        lines = [lin.value(f, coords) for f in folds]
        for at, place in enumerate(tile.rows.places()[0]):
            names = {f: lin.named(lin.picked(line, [at])) for f, line in zip(folds, lines)}
            store = n.replace(src=(*n.src[:3], mine)).substitute(names).substitute({row: down + int(place[0])})
            lin.store(simplify(store), coords)


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
    """Return the largest part of a stored value that depends only on the accumulator and on row statistics, provided
    that the accumulator is used nowhere else; otherwise the accumulator itself. A part that was rounded to 16 bits and
    widened again is taken before it is widened: lanes exchange two such elements at a time."""
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
    own = border.pop() if len(border) == 1 else total
    widened = own.op is Ops.CAST and own.src[0].dtype.itemsize == 2 < own.dtype.itemsize
    return own.src[0] if widened else own


def _exchanged(lin: Emitter, line: UOp, fragment: Fragment) -> Callable[[int, int], UOp] | None:
    """Exchange columns between lanes. Return a reader of vectors of the new layout (``_after_exchange``); None if the
    layout does not fit."""
    digits = _digits(fragment)
    if digits is None:
        return None
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

    return vector


def _after_exchange(fragment: Fragment) -> Fragment:
    """Return the layout of a fragment after the exchange of columns between lanes; itself if the layout does not fit.
    """
    digits = _digits(fragment)
    if digits is None:
        return fragment
    (pair, *between, blocks), (first, *others) = digits
    beside = pair[0] * first[0]
    whole = ((beside, 0, 1), *between, (blocks[0] // first[0], 0, beside * first[0]))
    return Fragment(whole, ((first[0], 0, beside), *others))


def _digits(fragment: Fragment) -> tuple[tuple[Digit, ...], tuple[Digit, ...]] | None:
    """Return the digits of registers and lanes if adjacent lanes hold adjacent pairs of columns, with blocks after
    them; else None."""
    registers, lanes = fragment.registers, fragment.lanes
    if len(registers) < 2 or not lanes:
        return None
    pair, blocks, size = registers[0], registers[-1], lanes[0][0]
    fits = pair[1:] == (0, 1) and pair[0] == 2 and lanes[0][1:] == (0, 2) and matrix_units.is_power(size)
    between = all(across == 0 for _, _, across in registers[1:-1])
    return (registers, lanes) if fits and between and blocks[1:] == (0, 2 * size) and blocks[0] % size == 0 else None


@dataclass(frozen=True)
class ThreadTile:
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
    product = matrix_units.product_of(stage.src[0])
    assert product is not None, stage
    return product


def place_of(lin: Emitter, value: UOp) -> tuple[UOp, ThreadTile]:
    """Return a value computed from accumulators, rewritten over the accumulators' own rows and columns, and its tile.
    """
    loads = matrix_units.reads_held(value)
    stage, index = loads[0].src[0], loads[0].src[1]
    product = product_in(stage)
    own = next(r for r in index.ranges if r.arg[1] is Role.FRAGMENT)
    columns = lin.columns.setdefault(stage.arg, own if index is own else lin.new_range(
        int(np.prod(stage.arg)), Role.FRAGMENT))
    if index is not columns:
        value = bind(value, own, (columns - (index - own)).simplify()).simplify()
    return value, ThreadTile(tile_of(stage), product.src[2], columns)


def value_in(lin: Emitter, n: UOp, at: ThreadTile, coords: Coords) -> UOp:
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
    elif n.op is Ops.LOAD and matrix_units.held(n.src[0]):
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
    """Return True if a value depends on named lines (``Emitter.named``), which may have lanes."""
    return lin.rereads(n)


def widened(lin: Emitter, line: UOp, at: ThreadTile, count: int, depth: int | None = None) -> UOp:
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
    start = matrix_units.reads_held(product.src[0])[0].src[1].substitute({column: UOp.index(0)} | {
        r: UOp.index(c) for r, c in coords}).simplify()
    choice = matrix_units.choice(at.fragment, product.arg.operand_a, int(start.arg))
    assert choice is not None, product
    if line.dtype.itemsize != 2 or choice[1::2] != [x + 1 for x in choice[::2]]:
        return lin.picked(line, choice)
    part = lin.picked(lin.words(line), (x // 2 for x in choice[::2]))
    return lin.emit(lin.here, UOp(Ops.BITCAST, line.dtype.scalar.vec(len(choice)), (part,)))


class ChainWriter(OnlineWriter):
    """A loop over blocks whose accumulators are fragments of a matrix unit.

    ``block`` is the index of the block being written; ``turn`` is its number in the ping-pong order of the consumer
    groups. ``ahead``: p is computed one block before its product. It is then carried by the loop: in ``values``, under
    the key ``~g`` (negative) for reduction ``g``.
    """

    ahead = False
    block = UOp.index(0)
    turn: UOp | None = None

    def place(self, f: UOp) -> ThreadTile:
        """Return the tile that holds ``f``; for a value without columns (a row statistic), the tile whose rows it has.
        """
        products = [n for n in toposort(f) if n.op is Ops.MMA]
        own = [p for p in products if {p.src[2], p.src[3]} <= f.ranges]
        if own:
            return ThreadTile(own[0].arg.fragment_c, own[0].src[2], own[0].src[3])
        stage = next(n for n in toposort(f) if held(n))
        product = product_in(stage)
        return ThreadTile(tile_of(stage), product.src[2], product.src[3])

    def lanes_of(self, f: UOp) -> int:
        at = self.place(f)
        return at.fragment.size if at.column in f.ranges else at.rows.size if at.row in f.ranges else 1

    def counted(self, r: UOp, size: UOp, bodies: list[UOp], inside: Callable[[list[UOp]], None]) -> None:
        """Write the loop over blocks. Operands that do not depend on the block are loaded before the loop, the others
        through rings. Blocks without masked elements come first, in a separate loop without the mask (loop
        partitioning). With p ahead, the first block is peeled."""
        lin, (start, end) = self.lin, self.lin.span_of(r)
        products = [p for p in toposort(bodies) if p.op is Ops.MMA and p.arg.staged]
        rings = list(dict.fromkeys(ring for p in products for ring in rings_of(lin, p)))
        for ring in rings if lin.role is None else ():
            ring.fill_first() if ring.loop is not None else ring.fill(UOp.index(0))
        for ring in rings:
            if ring.loop is None:
                ring.wait(UOp.index(0))
        walked = [ring for ring in rings if ring.loop is not None]

        def blocks(first: UOp, last: UOp, bodies: list[UOp]) -> None:
            simple = [simplify(b) for b in bodies]
            self.in_loop(r, first, last, lambda: self.at_block(r, walked, lambda: inside(simple)))

        self.ahead = any(map(made_ahead, products))
        if self.ahead:
            end = end.maximum(start + 1).simplify()
            with lin.first_step(r, start):
                self.at_block(start, walked, lambda: inside([simplify(b) for b in bodies]))
            start = (start + 1).simplify()
        if lin.turns is not None:
            self.turn = (r + start).simplify()  # has the same parity as r - start
        found = clear_end(r, toposort(bodies), {x for x in lin.opened if x.arg[1] is Role.GLOBAL})
        if found is not None:
            middle = found[0].minimum(end).maximum(start).simplify()
            blocks(start, middle, [b.substitute(found[1]) for b in bodies])
            start = middle
        blocks(start, end, bodies)
        self.block = end
        for g, writer in self.behind(bodies).items():
            writer.drained()  # all copies are done: no slot is filled any more
            self.values |= {(g, *key[1:]): value for key, value in writer.values.items()}

    def at_block(self, block: UOp, rings: Sequence[Ring], inside: Callable[[], None]) -> None:
        self.block = block
        if rings and self.lin.role is None:
            if block.op is Ops.RANGE:  # the peeled first block needs no barrier: no thread has read a slot yet
                self.lin.barrier()
            for ring in rings:
                ring.fill((block + ring.distance).simplify())
        inside()

    def issue(self, writer: FoldWriter, block: UOp) -> None:
        """Wait for the operands of a block and issue the product's steps to the unit."""
        assert writer.product is not None
        bodies = writer.begun()
        writer.hold(writer.product)
        for ring in rings_of(self.lin, writer.product):
            if ring.loop is not None:
                ring.wait(block)
        self.lin.force(UOp(Ops.FENCE))
        writer.step(bodies)
        self.lin.force(UOp(Ops.COMMIT))

    def land(self, writer: FoldWriter, in_flight: int = 0) -> None:
        """Wait for the product and release the ring slots of its operands."""
        assert writer.product is not None
        writer.drained(in_flight)
        for ring in rings_of(self.lin, writer.product):
            ring.release()

    def scores(self, bodies: list[UOp]) -> list[FoldWriter]:
        """Return writers of the asynchronous products (scores) that the block's values are computed from."""
        stages = dict.fromkeys(n.src[0] for body in bodies for n in reads_held(body))
        return [FoldWriter(self.lin, [s.src[0]], self.coords) for s in stages if product_in(s).arg.staged]

    def behind(self, bodies: list[UOp]) -> dict[int, FoldWriter]:
        """Issue the products of the previous block (p computed ahead), if any; return their writers by reduction
        number."""
        found = {}
        for g in {~key[0] for key in self.values if key[0] < 0}:
            part = self.parts(bodies[g])[1]
            product = product_of(part)
            assert product is not None
            dtype = product.arg.a.vec(product.arg.operand_a.size)
            made = {key[2]: self.lin.emit(self.lin.here, UOp(Ops.BITCAST, dtype, (words,)))
                    for key, words in self.values.items() if key[0] == ~g}
            starts = {c: self.values[g, c, ()] for c in self.copies[self.group[g]]}
            found[g] = FoldWriter(self.lin, [part], self.coords, starts, made)
            self.issue(found[g], (self.block - 1).simplify())
        return found

    def step(self, bodies: list[UOp]) -> None:
        lin, here, turns = self.lin, self.lin.here, self.lin.turns if self.turn is not None else None
        if turns is not None and self.turn is not None:
            turns.take(self.turn)
        scores = self.scores(bodies)
        for writer in scores:
            self.issue(writer, self.block)
        behind = self.behind(bodies)
        if turns is not None:
            turns.hand_on()
        for n, writer in enumerate(scores, 1):
            self.land(writer, len(scores) - n + len(behind))
            writer.finished()
        known = {c: (old, lin.named(lin.value(shift))) for c, (old, shift) in self.maxima(bodies[0]).items()}
        products = list[tuple[int, UOp, dict[Coords, UOp]]]()
        for g, (f, body) in enumerate(zip(self.group, bodies)):
            if g == 0:
                continue
            keeps, at = {}, self.place(f)
            for c in self.copies[f]:
                old, shift = known[lin.coords_of(self.group[0], c)]
                weight, part, top = self.parts(body)
                keep = lin.value(weight.substitute({top: shift, top.src[0]: old}))
                keeps[c] = widened(lin, keep, at, self.lanes_of(f))
                part = part.substitute({finite(top.src[0]): shift, top.src[0]: shift})
            if product_of(part) is not None:
                products.append((g, part, keeps))
                continue
            for c, keep in keeps.items():
                own = statistic(lin, part, c, False) if self.over_tile(part) else lin.value(part, c)
                kept = lin.combine(here, Ops.MUL, f.dtype, [self.values[g, c, ()], keep])
                self.values[g, c, ()] = lin.combine(here, Ops.ADD, f.dtype, [kept, own])
        for g, part, keeps in products:
            self.multiply(g, part, keeps, behind.get(g))

    def multiply(self, g: int, part: UOp, keeps: dict[Coords, UOp], behind: FoldWriter | None) -> None:
        """Add a product to a sum rescaled to the current maximum. With p ahead, defer the product to the next
        iteration."""
        lin, f = self.lin, self.group[g]
        if behind is not None:
            self.land(behind)
            self.values |= {(g, *key[1:]): value for key, value in behind.values.items()}
        starts = {c: lin.combine(lin.here, Ops.MUL, f.dtype, [self.values[g, c, ()], keep])
                  for c, keep in keeps.items()}
        writer = FoldWriter(lin, [part], self.coords, starts)
        assert writer.product is not None
        if self.ahead:
            writer.hold(writer.product)
            self.values |= {(g, c, ()): start for c, start in starts.items()}
            self.values |= {(~g, (), steps): lin.words(line) for steps, line in writer.held.items()}
            return
        if writer.product.arg.staged:
            self.issue(writer, self.block)
            self.land(writer)
            writer.finished()
        else:
            writer.run()
        self.values |= {(g, c, ()): lin.value(part, c) for c in starts}

    def over_tile(self, part: UOp) -> bool:
        """Return True if ``part`` reduces columns of a tile, so that combining across lanes can wait until after the
        loop."""
        return part.op is Ops.FOLD and part.src[1].arg[1] is Role.FRAGMENT

    def finish(self, g: int, f: UOp, c: Coords) -> UOp:
        lin, at, line = self.lin, self.place(f), self.values[g, c, ()]
        if g == 0:
            return line
        weight, part, top = self.parts(f.src[0])
        line = across_lanes(lin, Ops.ADD, line, at.fragment) if self.over_tile(part) else line
        return lin.combine(lin.here, Ops.MUL, f.dtype, [line, widened(lin, self.whole(weight, top, c), at,
                                                                                 line.dtype.count)])


class JoinedWriter(ChainWriter):
    """A loop over blocks whose products have operands computed from other products, without row statistics: the sums
    are not rescaled. All inner products are issued at once, then the loads of what is known per row or per column (as
    the statistics of a softmax), which take as long as a product; an operand is computed as soon as the products that
    it needs are done, while the unit works on the others."""

    def step(self, bodies: list[UOp]) -> None:
        operands = [p.src[0] for b in bodies if (p := product_of(b)) is not None]
        left, issued = self.scores(operands), list[FoldWriter]()

        def landed(writer: FoldWriter) -> None:
            self.land(writer, len(issued) - 1 - issued.index(writer))
            writer.finished()

        def needed(part: UOp) -> list[FoldWriter]:
            product = product_of(part)
            assert product is not None
            stages = {n.src[0].src[0] for n in reads_held(product.src[0])}
            return [w for w in left if w.group[0] in stages]

        turns = self.lin.turns if self.turn is not None else None
        if turns is not None and self.turn is not None:
            turns.take(self.turn)
        for writer in left:
            self.issue(writer, self.block)
            issued.append(writer)
        if turns is not None:
            turns.hand_on()
        self.load_statistics(operands)
        sums = list[FoldWriter]()
        for g, part in sorted(enumerate(bodies), key=lambda pair: len(needed(pair[1]))):
            for writer in needed(part):
                landed(writer)
                left.remove(writer)
            starts = {c: self.values[g, c, ()] for c in self.copies[self.group[g]]}
            writer = FoldWriter(self.lin, [part], self.coords, starts)
            assert writer.product is not None
            if writer.product.arg.staged:
                self.issue(writer, self.block)
                issued.append(writer)
                sums.append(writer)
            else:
                writer.run()
        for writer in sums:
            landed(writer)
        self.values |= {(g, c, ()): self.lin.value(part, c) for g, part in enumerate(bodies)
                        for c in self.copies[self.group[g]]}

    def load_statistics(self, operands: list[UOp]) -> None:
        """Load the values that the operands need for each row or for each column of a tile."""
        for operand in filter(reads_held, operands):
            value, at = place_of(self.lin, operand)
            for n in toposort(value, lambda n: n.op is not Ops.MMA):
                if n.op is Ops.LOAD and not held(n.src[0]) and len(n.ranges & {at.row, at.column}) == 1:
                    value_in(self.lin, n, at, self.lin.coords_of(n, self.coords))

    def finish(self, g: int, f: UOp, c: Coords) -> UOp:
        return self.values[g, c, ()]
