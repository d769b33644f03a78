"""Scatter that combines (adds, as the gradient of a gather does; maxima, minima, products) by sorting, for targets with
many cores.

Indices are sorted stably, and each position combines its own updates in their order (a segmented sum): no update waits
for another, and results are deterministic. If positions are few, the sorted updates are cut into parts, so that many
cores share those of one position. With few positions of a vector, each position scans all updates instead.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tinsmith.core.dtypes import dtypes
from tinsmith.ir import Ops, UOp
from tinsmith.ir.graphs import by_pieces, count_below, digit_bits_for
from tinsmith.schedule.passes.rewrites import rebuilt
from tinsmith.target.target import Target

COMBINED: Final = (Ops.ADD, Ops.MAX, Ops.MIN, Ops.MUL)


def spread_scatters(roots: Sequence[UOp], target: Target) -> list[UOp]:
    """Return the graph with combining scatters that would leave most cores idle rewritten as reductions."""
    if not target.costs.cuts.scatters:
        return list(roots)
    return rebuilt(roots, lambda node, _: _by_segments(node, target)
                   if node.op is Ops.SCATTER and node.arg[1] in COMBINED else node)


def _by_segments(n: UOp, target: Target) -> UOp:
    (base, index, x), (axis, op) = n.src, n.arg[:2]
    if not all(isinstance(s, int) for s in (*n.shape, *index.shape)):
        return n
    steps, places, others = index.shape[axis], base.shape[axis], [a for a in range(n.ndim) if a != axis]
    beside = x.size // max(steps, 1)
    alike = all(index.shape[a] == 1 or constant_along(index, a) for a in others)
    if not alike or steps < target.costs.cuts.sorted_steps or 4 * beside >= target.cores * target.resident:
        return n
    if places <= target.costs.cuts.asked_places and n.ndim == 1:
        return _by_each(n)
    at = index.shrink(tuple((0, s) if a == axis else (0, 1) for a, s in enumerate(index.shape))).reshape((1, steps))
    at = at.cast(dtypes.int64)
    inside = at.lt(0).logical_not() & at.lt(places)
    keys = inside.where(at, places).cast(dtypes.uint32)
    bits = places.bit_length()
    costs = target.costs
    digits = digit_bits_for(bits, steps, costs.digits, costs.piece)
    ordered, order = by_pieces(keys.contiguous(), bits, digits, costs.piece)
    ordered = ordered.contiguous().reshape((steps,))
    multiple = target.costs.cuts.asked_beyond
    limits = UOp.iota(-(-(places + 1) // multiple) * multiple, dtypes.int32)
    begin = count_below(ordered, limits.cast(dtypes.uint32)).contiguous()
    parts = _parts(places, steps, beside, target)
    each = -(-steps // parts)
    order = order.reshape((steps,)).pad(((0, parts * each - steps),)).reshape((parts * each, 1))
    rows = x.permute((axis, *others)).reshape((steps, beside))
    rows = _in_order(rows, order.expand((parts * each, beside)))
    cube = (places, parts, each, beside)
    first, last = (begin.shrink(((k, k + places),)).reshape((places, 1, 1, 1)).expand(cube) for k in (0, 1))
    step = UOp.iota(parts * each, dtypes.int32).reshape((1, parts, each, 1)).expand(cube)
    mine = step.lt(first).logical_not() & step.lt(last)
    rows = rows.reshape((1, parts, each, beside)).expand(cube)
    total = mine.where(rows, rows.const_like(op.identity(rows.dtype))).reduce(op, (2,))
    total = total.contiguous().reduce(op, (1,)) if parts > 1 else total
    shape = tuple(base.shape[a] for a in (axis, *others))
    back = tuple((axis, *others).index(a) for a in range(n.ndim))
    return base.alu(op, total.reshape(shape).permute(back))


def _parts(places: int, steps: int, beside: int, target: Target) -> int:
    """Return the number of parts of the sorted steps: few positions alone do not occupy the device, and one of them may
    have most of the updates. All parts together have no more results than there are updates."""
    threads = places * -(-beside // target.blocks.lanes)
    wanted = target.cores * target.resident // max(threads, 1)
    return max(min(wanted, steps // target.costs.cuts.segment, steps // max(places, 1)), 1)


def _in_order(x: UOp, order: UOp, deep: int = 4) -> UOp:
    """Return the rows of ``x`` gathered in ``order``; elementwise nodes (to depth ``deep``)
    are computed after the gather."""
    if x.base.op is Ops.CONST:
        return x
    if x.op.elementwise and deep:
        return x.replace(src=tuple(_in_order(s, order, deep - 1) for s in x.src))
    return x.gather(order, 0)


def constant_along(n: UOp, axis: int) -> bool:
    """Return True if a value is known to be constant along ``axis``."""
    if n.op is Ops.EXPAND:
        return bool(n.src[0].shape[axis] == 1) or constant_along(n.src[0], axis)
    return n.op is Ops.CONST or ((n.op.elementwise or n.op is Ops.CONTIGUOUS)
                                 and all(constant_along(s, axis) for s in n.src))


def _by_each(n: UOp) -> UOp:
    """Return a scatter as a masked reduction: each position compares its index with the indices of all updates."""
    (base, index, x), op = n.src, n.arg[1]
    cube = (*base.shape, x.size)
    at, value = (v.reshape((1, x.size)).expand(cube) for v in (index, x))
    mine = at.eq(at.iota_like(0).cast(at.dtype))
    return base.alu(op, mine.where(value, value.const_like(op.identity(x.dtype))).reduce(op, (1,)).reshape(base.shape))
