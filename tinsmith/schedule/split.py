"""Long reductions with few results are cut in two: partial results of chunks, which keep every core busy and every
packed panel in cache, and then their combination. Long scans with few rows likewise: the total of each block, where
each block therefore starts, and then all blocks side by side."""
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
SCAN_LONG = 1 << 14  # steps from which a scan of few rows is cut
SCAN_FEW = 16
SCAN_BLOCKS = 64
SCAN_STEP = 16  # blocks hold whole vectors of so many steps where the length allows it


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
        elif node.op is Ops.SCAN and len(node.src) == 1:
            node = _split_scan(node)
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
    chunks = _chunks(x.shape[axis], CHUNKS)
    if chunks is None:
        return node
    shape = x.shape
    apart = x.reshape((*shape[:axis], chunks, shape[axis] // chunks, *shape[axis + 1 :]))
    inner = tuple(a + (a >= axis) for a in axes)  # the chunk's own axis takes the place after `axis`
    inner = tuple(sorted({a for a in inner if a != axis} | {axis + 1}))
    partial = apart.reduce(op, inner).contiguous()
    return partial.reduce(op, (axis,)).reshape(node.shape)


def _split_scan(node: UOp) -> UOp:
    x, (op, axis) = node.src[0], node.arg
    shape = x.shape
    if not all(isinstance(s, int) for s in shape) or shape[axis] < SCAN_LONG or node.size // shape[axis] > SCAN_FEW:
        return node
    steps = shape[axis] // SCAN_STEP if shape[axis] % SCAN_STEP == 0 else shape[axis]
    blocks = _chunks(steps, SCAN_BLOCKS) or SCAN_BLOCKS
    length = -(-shape[axis] // blocks)
    blocks = -(-shape[axis] // length)
    whole = x.shrink(tuple((0, (blocks - 1) * length) if i == axis else (0, s) for i, s in enumerate(shape)))
    apart = whole.reshape((*shape[:axis], blocks - 1, length, *shape[axis + 1 :]))
    totals = apart.reduce(op, (axis + 1,)).reshape((*shape[:axis], blocks - 1, *shape[axis + 1 :]))
    before = totals.contiguous().scan(op, axis)
    moved = before.pad(tuple((int(i == axis), 0) for i in range(x.ndim)))
    assert op.identity is not None
    place = moved.iota_like(axis)
    start = place.eq(place.const_like(0)).where(moved.const_like(op.identity(node.dtype)), moved)
    return x.scan(op, axis, start)


def _chunks(size: int, wished: int) -> int | None:
    """A divisor of ``size`` near the wished number of chunks."""
    divisors = [d for d in range(8, min(size, 4 * wished) + 1) if size % d == 0]
    return min(divisors, key=lambda d: abs(d - wished), default=None)
