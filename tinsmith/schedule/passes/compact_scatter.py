"""Scatter that combines in a wide dtype and is rounded to a narrow one: the gradient of an embedding in bf16.

Few updates into a large table touch few of its rows. The wide sums are then kept in one row per distinct index, and
only their rounded values are written into the table, which never exists in the wide dtype.
"""
from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from tinsmith.core.dtypes import dtypes
from tinsmith.ir import Ops, UOp
from tinsmith.ir.ops import FOR_GRADIENTS
from tinsmith.ir.uop import toposort
from tinsmith.schedule.passes.rewrites import rebuilt
from tinsmith.schedule.passes.sorted_scatter import COMBINED, constant_along
from tinsmith.schedule.values import views_of
from tinsmith.target.target import Target

PER_ROW: Final = 2  # time per byte of a row accessed at an index, relative to a byte of the table in order (Zen 4)


def compact_scatters(roots: Sequence[UOp], target: Target) -> list[UOp]:
    """Return the graph with rounded scatters into a constant combined in one row per distinct index.

        CAST(SCATTER(c, i, x))   →   SCATTER(CAST(c), i, CAST(GATHER(sums, row)))       sums: SCATTER(c, row, x)

    ``row`` is the last update of the same index. Only the cast may read the scatter. Targets that sort the indices
    store no wide table.
    """
    if target.costs.cuts.scatters:
        return list(roots)
    nodes = toposort(roots)
    readers = Counter(roots) + Counter(s for n in nodes for s in n.src)
    found = {n for n in nodes if n.op is Ops.CAST and n.src[0].op is Ops.SCATTER and readers[n.src[0]] == 1
             and _saves_traffic(n.src[0], n)}
    return rebuilt(roots, lambda node, n: _by_distinct_index(node) if n in found else node) if found else list(roots)


def _saves_traffic(n: UOp, rounded: UOp) -> bool:
    """Return True if it takes longer to write and read a scatter's wide table than its compact sums."""
    (base, index, x), (axis, op) = n.src, n.arg
    if op not in COMBINED or not all(isinstance(s, int) for s in (*n.shape, *x.shape)):
        return False
    others = [a for a in range(n.ndim) if a != axis]
    if _constant(base) is None or not all(index.shape[a] == 1 or constant_along(index, a) for a in others):
        return False
    wide, narrow = n.dtype.itemsize, rounded.dtype.itemsize
    table = 2 * wide * n.size
    rows = (2 * wide + narrow) * x.size + dtypes.int32.itemsize * (2 * n.shape[axis] + 2 * x.shape[axis])
    return narrow < wide and PER_ROW * rows < table


def _constant(base: UOp) -> UOp | None:
    """Return the constant that a value repeats; else None."""
    source = views_of(base, lambda v: v.op in (*FOR_GRADIENTS, Ops.RESHAPE, Ops.EXPAND)).source
    return source if source.op is Ops.CONST else None


def _by_distinct_index(node: UOp) -> UOp:
    """Return the CAST of a SCATTER with its sums in one row per distinct index."""
    (base, index, x), (axis, op) = node.src[0].src, node.src[0].arg
    start = _constant(base)
    assert start is not None
    places, steps = base.shape[axis], x.shape[axis]
    at = index.shrink(tuple((0, s) if a == axis else (0, 1) for a, s in enumerate(index.shape))).reshape((steps,))
    last = UOp.const(dtypes.int32, 0).expand_to((places,)).scatter(at, UOp.iota(steps, dtypes.int32), 0, None)
    inside = at.lt(0).logical_not() & at.lt(places)
    row = inside.where(last.gather(at, 0), steps)  # an update beyond the table has no row
    row = row.reshape(tuple(steps if a == axis else 1 for a in range(x.ndim))).expand(x.shape)
    sums = UOp.const(start.dtype, start.arg).expand_to(x.shape).scatter(row, x, axis, op)
    rounded = sums.gather(row, axis).cast(node.dtype)
    return UOp.const(start.dtype, start.arg).cast(node.dtype).expand_to(base.shape).scatter(index, rounded, axis, None)
