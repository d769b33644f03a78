"""Rows that are read several times: a value that is dear to compute is computed once and kept in local memory."""
from __future__ import annotations

import math

from tinsmith.codegen.kernel import Kernel
from tinsmith.codegen.opt import Opt, OptOps
from tinsmith.codegen.render.base import Target
from tinsmith.codegen.roles import Role, range_size
from tinsmith.codegen.streams import equal_values
from tinsmith.codegen.tuning import stride_of
from tinsmith.ir import Ops, UOp
from tinsmith.ir.uop import toposort


def keep_rows(kernel: Kernel, target: Target, lanes: int) -> None:
    """Stage what several passes over a row compute, the dearest first."""
    for _ in range(target.core.rows_kept):
        found = {n: cost for n in kernel.stageable if (cost := _cost(kernel, target, n))}
        if not found:
            return
        value = max(found, key=lambda n: found[n])
        outside = tuple(kernel.ranges.index(r) for r in kernel.ranges if r in value.ranges and r in kernel.parallel)
        kernel.apply(Opt(OptOps.STAGE, kernel.stageable.index(value), outside, lanes))


def _cost(kernel: Kernel, target: Target, value: UOp) -> int:
    """What computing a value once more costs per element; 0 where it is cheap, or not a row of several passes."""
    row = [r for r in value.ranges if r not in kernel.parallel]
    if value.op is Ops.LOAD or value.op is Ops.FOLD or len(row) != 1:
        return 0
    (r,) = row
    size = range_size(r)
    if not target.core.short_row <= size <= target.l2_bytes // (4 * value.dtype.itemsize) or r.arg[0] in kernel.full:
        return 0
    own = toposort(value, lambda n: n.op is not Ops.FOLD)
    if any(stride_of(n.src[1], r) not in (0, 1) for n in own if n.op is Ops.LOAD):
        return 0
    cost = sum(n.op.cost for n in own if n.op.alu and r in n.ranges and n.dtype.is_float)
    readers = equal_values(kernel.sink, value, frozenset(value.ranges - {r}))
    return cost if cost >= target.core.dear and len(readers) > 1 else 0


def row_ahead(kernel: Kernel, load: UOp, loops: list[UOp], target: Target) -> int:
    """How many iterations lie between a row that is read several times, by one pass after the other, and the next row:
    the last pass, if it has much to compute, can fetch that meanwhile. 0 if they are not so, or the rows are too large
    to stay near."""
    r = loops[-1]
    last = _last_pass(kernel, load, r)
    if last is None:
        return 0
    own = toposort(last.src[0], lambda n: n.op is not Ops.FOLD)
    cost = sum(n.op.cost for n in own if n.op.alu and n.dtype.is_float)
    count, step = range_size(r), stride_of(load.src[1], r) or 0
    follows = len(loops) > 1 and stride_of(load.src[1], loops[-2]) == count * step
    kept = 2 * count * step + (math.prod(last.arg) if last.op is Ops.STAGE else 0)
    fits = kept * load.dtype.itemsize <= target.l1_bytes
    return count if cost >= target.core.dear and follows and fits and step > 0 else 0


def _last_pass(kernel: Kernel, load: UOp, r: UOp) -> UOp | None:
    """The last of several passes over a row, if it reads the row by ``load`` over ``r``: a reduction or a stage."""
    passes = {n: toposort(n.src[0], lambda n: n.op not in (Ops.FOLD, Ops.STAGE)) for n in kernel.nodes
              if n.op in (Ops.FOLD, Ops.STAGE)}
    same = {n for n in kernel.loads if n.src[0] is load.src[0] and any(
        x.arg[1] is Role.VECTOR for x in n.src[1].ranges)}
    readers = [p for p, nodes in passes.items() if not same.isdisjoint(nodes)]
    if len(readers) < 2 or not same <= {n for p in readers for n in passes[p]}:
        return None
    return next((p for p in readers if r in p.src[1:] and load in passes[p] and all(
        g is p or g in toposort(p.src[0]) for g in readers)), None)
