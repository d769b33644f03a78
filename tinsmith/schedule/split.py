"""Long reductions with few results are cut in two: partial results of chunks, which keep every core busy and every
packed panel in cache, and then their combination."""
from __future__ import annotations

from collections.abc import Sequence

from tinsmith.core.settings import settings
from tinsmith.ir import Ops, UOp
from tinsmith.ir.uop import toposort
from tinsmith.schedule.contraction import is_repeated

LONG = 1 << 15  # elements per result from which a reduction with few results is cut
FEW = 64  # results that keep all cores busy by themselves
CONTRACTION_LONG = 1 << 12
CONTRACTION_FEW = 1 << 16
CHUNKS = 32


def split_reductions(roots: Sequence[UOp]) -> list[UOp]:
    """The graph with long reductions cut; unchanged with NOOPT=1."""
    if settings.NOOPT:
        return list(roots)
    new: dict[UOp, UOp] = {}
    for n in toposort(roots):
        src = tuple(new.get(s, s) for s in n.src)
        node = n if src == n.src else n.replace(src=src)
        if node.op is Ops.REDUCE:
            node = _split(node)
        if node is not n:
            new[n] = node
    return [new.get(r, r) for r in roots]


def _split(node: UOp) -> UOp:
    x, (op, axes) = node.src[0], node.arg
    if not all(isinstance(s, int) for s in x.shape):
        return node
    results, length = node.size, x.size // max(node.size, 1)
    contraction = op is Ops.ADD and x.op is Ops.MUL and all(is_repeated(s) for s in x.src)
    long, few = (CONTRACTION_LONG, CONTRACTION_FEW) if contraction else (LONG, FEW)
    axis = next((a for a in axes if x.shape[a] >= 2 * FEW or x.shape[a] == length), None)
    if axis is None or length < long or results > few:
        return node
    chunks = _chunks(x.shape[axis], length)
    if chunks is None:
        return node
    shape = x.shape
    apart = x.reshape((*shape[:axis], chunks, shape[axis] // chunks, *shape[axis + 1 :]))
    inner = tuple(a + (a >= axis) for a in axes)  # the chunk's own axis takes the place after `axis`
    inner = tuple(sorted({a for a in inner if a != axis} | {axis + 1}))
    partial = apart.reduce(op, inner).contiguous()
    return partial.reduce(op, (axis,)).reshape(node.shape)


def _chunks(size: int, length: int) -> int | None:
    """A divisor of ``size`` near the wished number of chunks."""
    divisors = [d for d in range(8, min(size, 4 * CHUNKS) + 1) if size % d == 0]
    return min(divisors, key=lambda d: abs(d - CHUNKS), default=None)
