"""Strided vector loads and stores without gather or scatter: full vectors, shared with adjacent register copies, and
shuffles in registers."""
from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from tinsmith.codegen.emit.emitter import Emitter
from tinsmith.codegen.emit.scopes import Coords
from tinsmith.codegen.transform.computed_operand import SIDE, bind
from tinsmith.core.dtypes import dtypes
from tinsmith.ir import Ops, UOp
from tinsmith.ir.algebra.sizes import from_linear, linear_form, shifted
from tinsmith.ir.algebra.symbolic import is_made_of, values_over
from tinsmith.ir.structure import Role, range_size


def strided(lin: Emitter, n: UOp, memory: UOp, coords: Coords, lanes: UOp, valid: UOp | None) -> UOp | None:
    """Return the value of a load with strided lanes, without a gather; None if that is impossible."""
    if n.src[0] in lin.written:
        return None
    found = _in_one_vector(lin, n, memory, coords, lanes, valid)
    return _transposed(lin, n, memory, coords, lanes) if found is None and valid is None else found


def _in_one_vector(lin: Emitter, n: UOp, memory: UOp, coords: Coords, lanes: UOp, valid: UOp | None) -> UOp | None:
    """Load lanes that are within one or a few vectors, and select them by a shuffle.

    Lanes at a close stride (``CpuModel.close_strides``) are selected from full vectors, if these are inside the memory;
    register copies that read the elements in between share the vectors. Lanes that repeat a few elements (for example
    the gradient of max pooling) are selected from one vector. If the vector may cross the end of the memory, or if
    lanes are guarded, a mask restricts the load to the needed elements.
    """
    expr, count = lin.at(n.src[1], coords), range_size(lanes)
    terms, constant = linear_form(expr)
    own = {t: terms.pop(t) for t in [*terms] if lanes in t.ranges}
    if not all(is_made_of(t, lanes) for t in own):
        return None
    known = valid is None or (valid.op is Ops.VECTORIZE and all(s.op is Ops.CONST for s in valid.src))
    seen = [True] * count if valid is None or not known else [bool(s.arg) for s in valid.src]
    step, depth = own.get(lanes, 0) if len(own) == 1 else 0, max(lin.depth_of(n), lin.depth_of(n.src[0]))

    def part(first: int, begin: int, reads: Sequence[bool], where: UOp | None) -> UOp:
        start, mask = from_linear(terms, first + begin, expr).simplify(), None
        if not all(reads):
            each = tuple(lin.emit(0, UOp.const(dtypes.bool, x)) for x in reads)
            mask = lin.emit(0, UOp(Ops.VECTORIZE, dtypes.bool.vec(len(each)), each))
        if where is not None and mask is not None:
            mask = lin.combine(depth, Ops.AND, dtypes.bool, [lin.picked(lin.spread(where, count), [
                at // step for at in range(begin, begin + len(reads))], depth), mask])
        src = (memory, lin.expression(start), *([] if mask is None else [mask]))
        return lin.emit(depth, UOp(Ops.LOAD, n.dtype.vec(len(reads)), src, None))

    def vector(first: int, reads: Sequence[bool], picked: Sequence[int], where: UOp | None = None) -> UOp:
        if len(reads) & (len(reads) - 1) == 0:
            wide = part(first, 0, reads, where)
        else:  # C has vectors of power-of-two sizes only
            wide = lin.joined([part(first, k, reads[k : k + count], where) for k in range(0, len(reads), count)], depth)
        return lin.spread(wide, count) if len(reads) == 1 else lin.picked(wide, picked, depth)

    at_step, apart = constant % max(step, 1), step in lin.kernel.target.core.close_strides
    whole = from_linear(terms, constant - at_step, expr).simplify()
    if apart and valid is None and whole.vmin >= 0 and whole.vmax + step * count <= _elements(n.src[0]):
        return vector(constant - at_step, [True] * step * count, range(at_step, step * count, step))
    offsets = [int(at) for at in values_over(from_linear(own, 0, expr), lanes)]
    low, high = (best(at for at, reads in zip(offsets, seen) if reads) for best in (min, max))
    if known and len(seen) == count and high - low < count:
        width = 1 << (high - low).bit_length()
        line = vector(constant + low, [at <= high - low for at in range(width)],
                      [at - low if reads else 0 for at, reads in zip(offsets, seen)])
        return line if valid is None else lin.combine(depth, Ops.WHERE, n.dtype, [valid, line, UOp.const(n.dtype, 0)])
    if not apart or not lin.kernel.target.masks or (valid is not None and valid.dtype.count > count):
        return None
    reads = [at % step == at_step and seen[at // step] for at in range(step * count)]
    return vector(constant - at_step, reads, range(at_step, step * count, step), None if known else valid)


def _transposed(lin: Emitter, n: UOp, memory: UOp, coords: Coords, lanes: UOp) -> UOp | None:
    """Load lanes far apart whose adjacent elements other register copies read: each lane loads the elements of all
    copies as one vector, and blocks of lanes × copies are transposed in registers."""
    terms, _ = linear_form(n.src[1])
    copy, count = dict(coords), range_size(lanes)
    across = next((r for r in copy if r.arg[1] is Role.UPCAST and terms.get(r) == 1), None)
    if across is None or any(r in t.ranges for t in terms for r in (across, lanes) if t is not r):
        return None
    side = range_size(across)
    if side & (side - 1) or count % side:
        return None
    rest = tuple((r, v) for r, v in coords if r is not across)
    rows = lin.turned.get((n, rest), [])
    if rows and all(any(row in s.values for s in lin.scopes) for row in rows):  # already written for another copy
        return rows[copy[across]]
    depth = max(lin.depth_of(n), lin.depth_of(n.src[0]))
    first = bind(n.src[1], across, UOp.index(0))
    starts = [bind(first, lanes, UOp.index(lane)) for lane in range(count)]
    if len(n.src) > 2 and not all(s.vmin >= 0 and s.vmax + side <= _elements(n.src[0]) for s in starts):
        return None  # this copy is in bounds; the others may need a guard
    offsets = [lin.indexed(s, rest) for s in starts]
    rows = [lin.emit(depth, UOp(Ops.LOAD, n.dtype.vec(side), (memory, offset), None)) for offset in offsets]
    if count > side:
        rows = [lin.emit(depth, UOp(Ops.VECTORIZE, n.dtype.vec(count), tuple(rows[k::side]))) for k in range(side)]
    lin.turned[n, rest] = rows = transposed(lin, rows, depth)
    return rows[copy[across]]


def transposed(lin: Emitter, rows: list[UOp], depth: int) -> list[UOp]:
    """Transpose adjacent square blocks of lanes by interleaving pairs of rows in units of doubling width."""
    side, dtype = len(rows), rows[0].dtype
    groups, width = [[r] for r in rows], 1
    while len(groups) > 1:
        halves = [_interleaved(dtype.count, side, width, half) for half in (0, 1)]
        merged = []
        for first, second in zip(groups[::2], groups[1::2]):
            pairs = [lin.emit(depth, UOp(Ops.VECTORIZE, dtype.scalar.vec(2 * dtype.count), p))
                     for p in zip(first, second)]
            merged.append([lin.picked(p, order, depth) for p in pairs for order in halves])
        groups, width = merged, 2 * width
    return groups[0]


def _interleaved(count: int, side: int, width: int, half: int) -> tuple[int, ...]:
    """Return lane numbers that interleave ``width``-lane units of two vectors, from half ``half`` of every block."""
    return tuple(block + half * side // 2 + unit + i + of * count for block in range(0, count, side)
                 for unit in range(0, side // 2, width) for of in (0, 1) for i in range(width))


def _elements(memory: UOp) -> int:
    """Return the number of elements of a memory, 0 if it is symbolic."""
    sizes = memory.arg[1] if memory.op is Ops.PARAM else memory.arg
    return math.prod(sizes) if all(isinstance(s, int) for s in sizes) else 0


def store_strided(lin: Emitter, n: UOp, fixed: Coords) -> bool:
    """Write all copies of a store with strided lanes without a scatter; return False if that is impossible."""
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
    """Interleave the lanes of several copies (a0 b0 a1 b1 …); yield vectors of power-of-two sizes with their offsets.
    """
    count, ways = parts[0].dtype.count, len(parts)
    order = tuple(lane + count * way for lane in range(count) for way in range(ways))
    joined = lin.joined(parts, lin.here)
    for start, size in _whole_vectors(count * ways):
        yield start, lin.picked(joined, order[start : start + size])


def _blocks(lin: Emitter, values: list[UOp], step: int) -> Iterator[tuple[int, UOp]]:
    """Transpose blocks of lanes × copies in registers; yield one contiguous vector per lane with its offset. The last
    block may overlap the one before."""
    last = len(values) - SIDE
    for start in (*range(0, last, SIDE), last):
        rows = transposed(lin, values[start : start + SIDE], lin.here)
        for lane in range(values[0].dtype.count):
            part = lin.picked(rows[lane % SIDE], range(lane - lane % SIDE, lane - lane % SIDE + SIDE))
            yield start + step * lane, part


def _whole_vectors(count: int) -> list[tuple[int, int]]:
    """Return (start, size) of consecutive vectors of power-of-two sizes that cover ``count`` elements, the largest
    first."""
    out, start = [], 0
    while start < count:
        size = 1 << (count - start).bit_length() - 1
        out.append((start, size))
        start += size
    return out
