"""Lanes that lie apart in memory, read as whole vectors together with what other copies need, and rearranged."""
from __future__ import annotations

import math

from tinsmith.codegen.emitter import Emitter
from tinsmith.codegen.roles import Role, range_size
from tinsmith.codegen.scopes import Coords
from tinsmith.codegen.streams import bind
from tinsmith.core.dtypes import dtypes
from tinsmith.ir import Ops, UOp
from tinsmith.ir.linear import from_linear, linear_form
from tinsmith.ir.symbolic import is_made_of, values_over


def strided(lin: Emitter, n: UOp, memory: UOp, coords: Coords, lanes: UOp, valid: UOp | None) -> UOp | None:
    """The value of a load whose lanes do not lie side by side, without a gather; None where that cannot be."""
    if n.src[0] in lin.written:
        return None
    found = _woven(lin, n, memory, coords, lanes) if valid is None else None
    if found is None:
        found = _shared(lin, n, memory, coords, lanes, valid)
    if found is None:
        found = _masked(lin, n, memory, coords, lanes, valid)
    if found is None and valid is None:
        found = _transposed(lin, n, memory, coords, lanes)
    return found


def _shared(lin: Emitter, n: UOp, memory: UOp, coords: Coords, lanes: UOp, valid: UOp | None) -> UOp | None:
    """Lanes that share the elements of one vector, such as neighbours whose maximum was pooled: the vector, spread."""
    terms, constant = linear_form(lin.at(n.src[1], coords))
    own = {t: factor for t, factor in terms.items() if lanes in t.ranges}
    if not all(is_made_of(t, lanes) for t in own):
        return None
    seen = [True] * range_size(lanes)
    if valid is not None:
        if valid.op is not Ops.VECTORIZE or not all(s.op is Ops.CONST for s in valid.src):
            return None
        seen = [bool(s.arg) for s in valid.src]
    offsets = [int(at) for at in values_over(from_linear(own, 0, n.src[1]), lanes)]
    needed = [at for at, reads in zip(offsets, seen) if reads]
    low, size = min(needed), max(needed) - min(needed) + 1
    if size > len(seen):
        return None
    start = from_linear({t: f for t, f in terms.items() if t not in own}, constant + low, n.src[1]).simplify()
    depth = max(lin.depth_of(n), lin.depth_of(n.src[0]))
    width = 1 << (size - 1).bit_length()
    mask = tuple(lin.emit(0, UOp.const(dtypes.bool, at < size)) for at in range(width))
    part = () if width == size else (lin.emit(0, UOp(Ops.VECTORIZE, dtypes.bool.vec(width), mask)),)
    wide = lin.emit(depth, UOp(Ops.LOAD, n.dtype.vec(width), (memory, lin.expression(start), *part), None))
    picked = tuple(at - low if reads else 0 for at, reads in zip(offsets, seen))
    line = lin.spread(wide, len(seen)) if width == 1 else lin.picked(wide, picked, depth)
    return line if valid is None else lin.combine(depth, Ops.WHERE, n.dtype, [valid, line, UOp.const(n.dtype, 0)])


def _woven(lin: Emitter, n: UOp, memory: UOp, coords: Coords, lanes: UOp) -> UOp | None:
    """Lanes a few elements apart, as part of whole vectors where these lie inside the memory; copies that read
    the elements between them share the vectors."""
    start, step, first = _steps_apart(lin, n, coords, lanes)
    count, size = range_size(lanes), _elements(n.src[0])
    if start is None or start.vmin < 0 or start.vmax + step * count > size:
        return None
    depth = max(lin.depth_of(n), lin.depth_of(n.src[0]))
    wide = lin.emit(depth, UOp(Ops.LOAD, n.dtype.vec(step * count), (memory, lin.expression(start)), None))
    return lin.picked(wide, range(first, step * count, step), depth)


def _masked(lin: Emitter, n: UOp, memory: UOp, coords: Coords, lanes: UOp, valid: UOp | None) -> UOp | None:
    """The same where they are guarded or where the memory may end in between: nothing is read but the elements of the
    lanes themselves."""
    start, step, first = _steps_apart(lin, n, coords, lanes)
    count = range_size(lanes)
    if start is None or not lin.kernel.target.masks or (valid is not None and valid.dtype.count > count):
        return None
    depth = max(lin.depth_of(n), lin.depth_of(n.src[0]))
    own = [at % step == first for at in range(step * count)]
    if valid is not None and valid.op is Ops.VECTORIZE and all(s.op is Ops.CONST for s in valid.src):
        own, valid = [mine and bool(valid.src[at // step].arg) for at, mine in enumerate(own)], None
    vector = dtypes.bool.vec(step * count)
    mask = lin.emit(0, UOp(Ops.VECTORIZE, vector, tuple(lin.emit(0, UOp.const(dtypes.bool, x)) for x in own)))
    if valid is not None:
        each = lin.picked(lin.spread(valid, count), [at // step for at in range(step * count)], depth)
        mask = lin.combine(depth, Ops.AND, dtypes.bool, [each, mask])
    wide = lin.emit(depth, UOp(Ops.LOAD, n.dtype.vec(step * count), (memory, lin.expression(start), mask), None))
    return lin.picked(wide, range(first, step * count, step), depth)


def _steps_apart(lin: Emitter, n: UOp, coords: Coords, lanes: UOp) -> tuple[UOp | None, int, int]:
    """Where a vector begins that holds lanes a few elements apart, how many, and the place of the first in it."""
    expr = lin.at(n.src[1], coords)
    terms, constant = linear_form(expr)
    step = terms.pop(lanes, 0)
    if step not in (2, 4) or any(lanes in t.ranges for t in terms):
        return None, step, 0
    return from_linear(terms, constant - constant % step, expr).simplify(), step, constant % step


def _transposed(lin: Emitter, n: UOp, memory: UOp, coords: Coords, lanes: UOp) -> UOp | None:
    """Lanes far apart whose neighbours the other copies read: every lane reads what is for all copies at once, and
    blocks of as many lanes as copies are transposed in registers."""
    terms, _ = linear_form(n.src[1])
    copy, count = dict(coords), range_size(lanes)
    across = next((r for r in copy if r.arg[1] is Role.UPCAST and terms.get(r) == 1), None)
    if across is None or any(r in t.ranges for t in terms for r in (across, lanes) if t is not r):
        return None
    side = range_size(across)
    if side & (side - 1) or count % side:
        return None
    rest = tuple((r, v) for r, v in coords if r is not across)
    depth = max(lin.depth_of(n), lin.depth_of(n.src[0]))
    first = bind(n.src[1], across, UOp.index(0))
    starts = [bind(first, lanes, UOp.index(lane)) for lane in range(count)]
    if len(n.src) > 2 and not all(s.vmin >= 0 and s.vmax + side <= _elements(n.src[0]) for s in starts):
        return None  # this copy is inside, and others may be guarded
    offsets = [lin.indexed(s, rest) for s in starts]
    rows = [lin.emit(depth, UOp(Ops.LOAD, n.dtype.vec(side), (memory, offset), None)) for offset in offsets]
    if count > side:
        rows = [lin.emit(depth, UOp(Ops.VECTORIZE, n.dtype.vec(count), tuple(rows[k::side]))) for k in range(side)]
    return transposed(lin, rows, depth)[copy[across]]


def transposed(lin: Emitter, rows: list[UOp], depth: int) -> list[UOp]:
    """Square blocks of lanes side by side, each transposed: rows are interleaved by twos, in ever wider units."""
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
    """Units of so many lanes of two vectors in turn, from the first or the second half of every block."""
    return tuple(block + half * side // 2 + unit + i + of * count for block in range(0, count, side)
                 for unit in range(0, side // 2, width) for of in (0, 1) for i in range(width))


def _elements(memory: UOp) -> int:
    """How many elements a memory is known to have."""
    sizes = memory.arg[1] if memory.op is Ops.PARAM else memory.arg
    return math.prod(sizes) if all(isinstance(s, int) for s in sizes) else 0
