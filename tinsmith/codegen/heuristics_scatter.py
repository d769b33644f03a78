"""Loops of scatters: rows come in order, whole rows at a time, and every worker has columns of its own."""
from __future__ import annotations

import math

from tinsmith.codegen.kernel import Kernel
from tinsmith.codegen.opt import OptOps
from tinsmith.codegen.render.base import Target
from tinsmith.codegen.roles import range_size
from tinsmith.codegen.tuning import order, split
from tinsmith.ir import UOp


def scatter_opts(kernel: Kernel, target: Target, columns: UOp) -> None:
    """Blocks of ``columns`` outside, then the rows, then the columns of a block: what is read and added to is then as
    long as a block, and no two workers add to one place."""
    shared = [r for r in kernel.parallel if r is not columns and all(r in s.ranges for s in kernel.stores)]
    inner: UOp | None = columns
    if math.prod(range_size(r) for r in shared) < target.threads:
        parts = _blocks(range_size(columns), target.threads, target.core.even)
        whole = columns.arg[0] not in kernel.full
        if parts == range_size(columns):
            shared, inner = [*shared, columns], None
        elif parts and whole:
            block, inner = split(kernel, OptOps.TILE, columns, range_size(columns) // parts)
            shared += [block] if block is not None else []
    loops = [r for r in kernel.ranges if not r.arg[1].expanded]
    last = [inner] if inner is not None else []
    order(kernel, [*shared, *(r for r in loops if r not in (*shared, *last)), *last])


def _blocks(size: int, threads: int, shares: int) -> int:
    """How many equal blocks ``size`` is cut into, so that the workers have as much to do as each other, at least with
    so many ``shares`` each; 0: none fit."""
    even = range(threads, shares * threads + 1, threads)
    return next((n for n in (*even, *range(shares * threads, 4 * shares * threads)) if size % n == 0), 0)
