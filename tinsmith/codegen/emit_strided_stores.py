"""Lanes that lie apart in memory, stored with what other copies store between or beside them."""
from __future__ import annotations

from collections.abc import Iterator

from tinsmith.codegen.emit_strided_loads import transposed
from tinsmith.codegen.emitter import Emitter
from tinsmith.codegen.roles import Role, range_size
from tinsmith.codegen.scopes import Coords
from tinsmith.codegen.streams import SIDE, bind
from tinsmith.ir import Ops, UOp
from tinsmith.ir.linear import linear_form, shifted


def store_strided(lin: Emitter, n: UOp, fixed: Coords) -> bool:
    """Write all copies of a store whose lanes lie apart, without a scatter; False where that cannot be."""
    lanes = lin.lanes(n)
    guarded = len(n.src) > 3 and not (n.src[3].is_const and n.src[3].arg)
    if lanes is None or guarded:
        return False
    terms, _ = linear_form(n.src[1])
    step, given = terms.get(lanes, 0), {r for r, _ in fixed}
    copies = next((r for r in terms if r.op is Ops.RANGE and r.arg[1] is Role.UPCAST and terms[r] == 1), None)
    if copies is None or copies in given or any(r in t.ranges for t in terms for r in (copies, lanes) if t is not r):
        return False
    woven = step == range_size(copies)
    if not woven and (abs(step) <= 1 or range_size(copies) < SIDE or range_size(lanes) % SIDE):
        return False
    memory = n.src[0] if n.src[0].op is Ops.DEFINE_LOCAL else lin.memory(n.src[0], fixed)
    for own in lin.all_coords(n.ranges - {r for r, _ in fixed} - {copies}):
        coords = lin.both(own, fixed)
        values = [lin.spread(lin.value(n.src[2], lin.both(coords, ((copies, at),))), range_size(lanes))
                  for at in range(range_size(copies))]
        first = lin.at(bind(bind(n.src[1], copies, UOp.index(0)), lanes, UOp.index(0)), coords)
        for distance, part in _woven(lin, values) if woven else _blocks(lin, values, step):
            lin.force(UOp(Ops.STORE, None, (memory, lin.expression(shifted(first, distance)), part), n.arg))
    return True


def _woven(lin: Emitter, parts: list[UOp]) -> Iterator[tuple[int, UOp]]:
    """Lanes of several copies side by side: a0 b0 a1 b1 …, in one store, or in as many as are powers of two."""
    count, ways = parts[0].dtype.count, len(parts)
    order = tuple(lane + count * way for lane in range(count) for way in range(ways))
    parts += parts[-1:] * ((1 << (ways - 1).bit_length()) - ways)  # C has no vectors of other sizes
    joined = lin.emit(lin.here, UOp(Ops.VECTORIZE, parts[0].dtype.scalar.vec(count * len(parts)), tuple(parts)))
    for start, size in _whole_vectors(count * ways):
        yield start, lin.picked(joined, order[start : start + size])


def _blocks(lin: Emitter, values: list[UOp], step: int) -> Iterator[tuple[int, UOp]]:
    """Lanes far apart whose neighbours are other copies: blocks of lanes and copies are transposed in registers, and
    each lane's part of a block is stored at once. The last block may overlap the one before."""
    last = len(values) - SIDE
    for start in (*range(0, last, SIDE), last):
        rows = transposed(lin, values[start : start + SIDE], lin.here)
        for lane in range(values[0].dtype.count):
            part = lin.picked(rows[lane % SIDE], range(lane - lane % SIDE, lane - lane % SIDE + SIDE))
            yield start + step * lane, part


def _whole_vectors(count: int) -> list[tuple[int, int]]:
    """(start, size) of vectors beside each other whose sizes are powers of two, the largest first."""
    out, start = [], 0
    while start < count:
        size = 1 << (count - start).bit_length() - 1
        out.append((start, size))
        start += size
    return out
