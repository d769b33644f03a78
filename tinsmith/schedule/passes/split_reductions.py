"""Splitting long reductions and scans for parallelism.

A long reduction with few results becomes partial results of chunks (split-K), which keep every core busy and every
packed panel in cache, and their combination. If no chunks of equal length suit its size (a prime, or a variable), the
elements after the last full chunk are reduced apart. A long scan with few rows becomes a blocked scan: the total of
each block, a scan of the totals, and then the scans of all blocks in parallel.
"""
from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tinsmith.codegen.lower.indexing import Index, flatten, move
from tinsmith.ir import Ops, UOp
from tinsmith.ir.algebra.sizes import SMALL, TYPICAL, linear_form
from tinsmith.ir.matrix_unit import ROW_BYTES
from tinsmith.ir.ops.op import is_product
from tinsmith.ir.structure import contraction
from tinsmith.ir.uop import toposort
from tinsmith.schedule.fusion.fan_in import below_reshapes, ranges_of, read_by
from tinsmith.schedule.passes.channels_last import TileCut, tile_cut
from tinsmith.schedule.passes.rewrites import rebuilt, reduced_below_reshape
from tinsmith.schedule.values import views_of
from tinsmith.target.target import Target


def split_reductions(roots: Sequence[UOp], target: Target) -> list[UOp]:
    """Return the graph with long reductions and scans split for the cores of ``target``."""
    readers = Counter(s for n in toposort(roots) for s in n.src)
    readers.update(roots)
    own = set(roots)

    def cut(node: UOp, n: UOp) -> UOp:
        about = target.costs.cuts.about and node.op is Ops.REDUCE and _is_about_sum(n)
        if about and (found := _split_about(node, target)):
            return found
        if node.op is Ops.REDUCE and (inner := _short_rows(node, target)):
            op, axes = node.arg
            return _split(node.src[0].reduce(op, tuple(a for a in axes if a not in inner)), target).reduce(op, inner)
        if node.op is Ops.REDUCE and _lies_apart(node.src[0]) and n not in own:
            below = reduced_below_reshape(node)
            found = below if below is node else _split(below, target)
            if found is not below:
                return found
        if node.op is Ops.REDUCE:
            return _split(_joined(node, target) if _alone(n.src[0], readers) else node, target)
        return _split_scan(node, target) if node.op is Ops.SCAN and len(node.src) == 1 else node

    return rebuilt(roots, cut)


def _lies_apart(value: UOp) -> bool:
    """Return True for a reshape above a permutation: the axes that it joins may lie apart in memory, and a sum is cut
    along one of them."""
    return value.op is Ops.RESHAPE and views_of(value, lambda v: v.op is Ops.RESHAPE or v.op is Ops.CAST).source.op is (
        Ops.PERMUTE)


def _alone(node: UOp, readers: Mapping[UOp, int]) -> bool:
    """Return True if a node is a reduction, seen through reshapes, that has one reader."""
    while node.op is Ops.RESHAPE and readers[node] == 1:
        node = node.src[0]
    return node.op is Ops.REDUCE and readers[node] == 1


def _joined(node: UOp, target: Target) -> UOp:
    """Return a long reduction of a reduction by the same op as one reduction; ``node`` itself if it is none."""
    inner, (op, axes) = node.src[0], node.arg
    shape = inner.shape
    inner = below_reshapes(inner)
    if inner.op is not Ops.REDUCE or inner.arg[0] is not op or _adds_products(inner):
        return node
    x = inner.src[0]
    if not all(isinstance(s, int) for s in (*x.shape, *shape)) or x.size // max(node.size, 1) < target.costs.cuts.long:
        return node
    kept = [a for a, s in enumerate(inner.shape) if s != 1]
    outer = [a for a, s in enumerate(shape) if s != 1]
    if [inner.shape[a] for a in kept] != [shape[a] for a in outer]:
        return node  # the reshape between them does more than drop or add axes of size 1
    both = {*inner.arg[1], *(a for a, place in zip(kept, outer) if place in axes)}
    return x.reduce(op, tuple(both)).reshape(node.shape)


def _adds_products(node: UOp) -> bool:
    return node.arg[0] is Ops.ADD and is_product(node.src[0])


def _split(node: UOp, target: Target) -> UOp:
    if node.op is Ops.RESHAPE:
        return _split(node.src[0], target).reshape(node.shape)
    found = _cut(node, target)
    if found is None:
        return _split_unevenly(node, target)
    op, x, summed = node.arg[0], found.apart(node.src[0]), {found.axis}
    if _adds_products(node) and (again := _cut_again(node, found, target)) is not None:
        x, summed, found = x.reshape(again.shape), {again.axis, found.axis + (found.axis > again.axis)}, again
    partial = x.reduce(op, found.axes).permute(found.first).contiguous()
    total = partial.reduce(op, tuple(sorted(map(found.first.index, summed))))
    if [a for a in found.first if a not in summed] != sorted({*found.first} - summed):
        total = total.permute(tuple(found.first.index(a) for a in range(total.ndim)))
    return total.reshape(node.shape)


def _cut_again(node: UOp, cut: _Cut, target: Target) -> _Cut | None:
    """Return the split of a second axis, where the first one leaves the threads of a grid without work: of products
    that no tile shares, as those of the weights of a convolution of single channels. Each thread computes a few."""
    results = 4 * target.cores * target.resident * (target.costs.cuts.thread_products > 0)
    wished = results // (node.size * cut.shape[cut.axis])
    others = [a for a in cut.axes if a != cut.axis + 1 and cut.shape[a] > 1]
    if wished < 2 or not others or _is_matmul(node):
        return None
    chunks = _chunks(cut.shape[others[0]], wished, 2)
    return None if chunks is None else _at(
        cut.shape, cut.axes, others[0], (chunks, cut.shape[others[0]] // chunks), cut.first)


def _is_matmul(node: UOp) -> bool:
    """Return True for a sum of products of which each factor has results of its own (rows or columns)."""
    product, axes = node.src[0], node.arg[1]
    index = ranges_of(product.shape)
    a, b = (frozenset().union(*(i.ranges for i in read_by(
        f, index, lambda v: v.op.kind == "movement" or v.op is Ops.CAST, lambda v: False).place)) for f in product.src)
    kept = frozenset(r for n, i in enumerate(index) if n not in axes for r in i.ranges)
    return not (kept & a <= b or kept & b <= a)


def _split_unevenly(node: UOp, target: Target) -> UOp:
    """Return a long reduction with few results as a reduction of reductions: over several axes, along the first of them
    at last; along one axis, over full chunks and over the rest. Sizes may be variables. ``node`` itself if it is
    short."""
    x, (op, axes) = node.src[0], node.arg
    sizes, cuts, chunk = [_expected(s) for s in x.shape], target.costs.cuts, target.costs.uneven_chunk
    results = math.prod(s for a, s in enumerate(sizes) if a not in axes)
    long = [a for a in axes if sizes[a] > 1]
    short = all(sizes[a] < 2 * cuts.few for a in long) or math.prod(sizes[a] for a in long) <= max(cuts.long, 2 * chunk)
    if short or results > max(cuts.few, 2 * target.cores):
        return node
    if len(long) > 1:
        return _split(_split(x.reduce(op, tuple(long[1:])), target).contiguous().reduce(op, axes), target)
    axis, size = long[0], x.shape[long[0]]
    full = size // chunk
    whole, rest = (x.shrink(tuple(part if a == axis else (0, s) for a, s in enumerate(x.shape)))
                   for part in ((0, full * chunk), (full * chunk, size)))
    parts = whole.reshape((*x.shape[:axis], full, chunk, *x.shape[axis + 1 :])).reduce(op, (axis + 1,)).contiguous()
    total = _split(parts.reduce(op, (axis,)), target).reshape(node.shape)
    return total.alu(op, rest.reduce(op, axes))


def _expected(size: int | UOp) -> int:
    """Return a size for typical values of its variables: half of a bound that is not that of small sizes, since bounds
    are at least twice the largest size seen (``dynamic_sizes``)."""
    if isinstance(size, int):
        return size
    variables = {n: n.src[0] if n.op is Ops.BIND else n for n in toposort(size) if n.op in (Ops.BIND, Ops.VARIABLE)}
    found = size.substitute({n: UOp.index(v.vmax // 2 if v.vmax > SMALL else min(v.vmax, TYPICAL))
                             for n, v in variables.items()}).simplify()
    return found.vmax


def _is_about_sum(node: UOp) -> bool:
    """Return True if a sum is of x - m or its square, where m depends on a sum of the same x (as in a variance)."""
    away = _away(node)
    if node.arg[0] is not Ops.ADD or away.op is not Ops.SUB or away.src[1].op is not Ops.EXPAND:
        return False
    x, m = away.src[0], away.src[1].src[0]
    near = toposort(m, lambda n: n.op is not Ops.REDUCE)
    once = all(m.shape[a] == 1 for a in node.arg[1]) and x.dtype.is_float
    return once and any(s.op is Ops.REDUCE and s.src[0] is x for n in near for s in n.src)


def _away(node: UOp) -> UOp:
    body = node.src[0]
    return body.src[0] if body.op is Ops.MUL and body.src[0] is body.src[1] else body


def _split_about(node: UOp, target: Target) -> UOp | None:
    """Return a long sum about a mean m as sums of chunks about their own means, so that no pass over x waits for
    another pass.

        Σ (x - m)²  =  Σ_chunks [Σ (x - m_i)² + L·(m_i - m)²]        m_i: the mean of the chunk's L elements

    (Chan, Golub and LeVeque, 1983). Down columns, where a second pass over a chunk would read memory again, the squares
    are about the chunk's first row f instead:

        Σ (x - m_i)²  =  Σ (x - f)² - (Σ x - L·f)² / L
    """
    inner = _short_rows(node, target)
    found = _cut(node.src[0].reduce(Ops.ADD, tuple(a for a in node.arg[1] if a not in inner)), target)
    if found is None:
        return None
    away = _away(node)
    merged = away.ndim + 1 - len(found.shape)  # the number of summed axes less one: ``found`` merges them
    after = [a - merged * (a > found.axis) + (a > found.axis) for a in inner]
    left = tuple(map(found.first.index, (found.axis, *after)))  # summed when the chunks are combined
    x, m = found.apart(away.src[0]), away.src[1].src[0]
    length = math.prod(x.shape[a] for a in found.axes)
    sums = x.reduce(Ops.ADD, found.axes).permute(found.first).contiguous()
    one = (found.axis, *after, *found.axes)
    m = m.reshape(tuple(x.shape[a] if a not in one else 1 for a in found.first)).expand(sums.shape)
    if away is node.src[0]:
        return (sums - m * m.const_like(length)).reduce(Ops.ADD, left).reshape(node.shape)
    total = sums.permute(tuple(map(found.first.index, range(x.ndim))))
    center = x.shrink(tuple((0, 1) if a in found.axes else (0, s) for a, s in enumerate(x.shape))) if found.down else (
        total * total.const_like(1 / length))
    own = x - center.expand(x.shape)
    squares = (own * own).reduce(Ops.ADD, found.axes).permute(found.first).contiguous()
    if found.down:
        away_sum = sums - center.permute(found.first) * sums.const_like(length)
        squares = squares - away_sum * away_sum * sums.const_like(1 / length)
    off = sums * sums.const_like(1 / length) - m
    return (squares + off * off * m.const_like(length)).reduce(Ops.ADD, left).reshape(node.shape)


class _Cut(NamedTuple):
    """The split of a reduction.

    Attributes:
        shape: the shape of the input, with the chunks as an additional axis.
        axis: the axis of the chunks.
        axes: the axes that are reduced inside a chunk.
        first: all axes, that of the chunks first, so that the results of one chunk are contiguous; down columns, in
            the order of the input, which other kernels over the same chunks share.
        down: the reduction runs across memory (over columns), not along it.
    """

    shape: tuple[int, ...]
    axis: int
    axes: tuple[int, ...]
    first: tuple[int, ...]
    down: bool

    def apart(self, x: UOp) -> UOp:
        """Return an input in chunks; zeros fill the last chunk of a sum of products."""
        before, (chunks, length), after = (
            self.shape[: self.axis], self.shape[self.axis : self.axis + 2], self.shape[self.axis + 2 :])
        size = x.size // math.prod((*before, *after))
        if chunks * length > size:
            x = x.reshape((*before, size, *after))
            x = x.pad(tuple((0, chunks * length - size if a == self.axis else 0) for a in range(x.ndim)))
        return x.reshape(self.shape)


def _cut(node: UOp, target: Target) -> _Cut | None:
    x, (op, axes) = node.src[0], node.arg
    if not all(isinstance(s, int) for s in x.shape):
        return None
    if (tiled := tile_cut(node, target) if _adds_products(node) else None) is not None:
        return _tiles(x.shape, axes, tiled) if tiled.chunks > 1 else None
    results, length, cuts = node.size, x.size // max(node.size, 1), target.costs.cuts
    products = _adds_products(node)
    along = _memory_axis(x) if length >= cuts.column and not products else None
    down = along is not None and along not in axes and x.shape[along] > 1
    few = target.cores * target.resident * cuts.few_columns if down else max(cuts.few, 2 * target.cores)
    least, long = 2 * cuts.few, cuts.column if down else cuts.long
    if down and axes == tuple(range(axes[0], axes[-1] + 1)):  # pixels of images: one axis of rows
        x = x.reshape((*x.shape[: axes[0]], length, *x.shape[axes[-1] + 1 :]))
        axes = axes[:1]
    wave = target.cores * target.resident * cuts.thread_products if products else 0  # results that occupy a grid
    if products:
        least, long, few = cuts.least, 2 * target.costs.chunk, max(cuts.few_products, wave // 2)
    axis = next((a for a in axes if x.shape[a] >= least or x.shape[a] == length), None)
    if axis is None or length < long or results > few:
        return None
    if products:
        wished = min(length // target.costs.chunk, max(cuts.chunks, target.cores))
        if results > cuts.few_products:
            wished = min(length // (4 * target.costs.chunk), wave // results)
        chunks = _chunks(x.shape[axis], wished, 2) if wished > 1 else None
    elif down:
        chunks = _chunks(x.shape[axis], max(target.cores * target.resident // (cuts.column_threads * results), 1), 2)
    else:
        most = cuts.most_chunks if op is Ops.ADD else cuts.most_others
        wished = min(max(cuts.chunks, length // target.costs.sum_chunk), most)
        chunks = _chunks(x.shape[axis], wished, cuts.least)
    if chunks is None:
        return None
    return _at(x.shape, axes, axis, (chunks, x.shape[axis] // chunks), range(x.ndim), down)


def _tiles(sizes: tuple[int, ...], axes: tuple[int, ...], cut: TileCut) -> _Cut:
    """Return the split of a matmul, with the axes that are split as one merged."""
    end, fewer = cut.axis + cut.joined, cut.joined - 1
    own = [a - fewer * (a >= end) if a < cut.axis or a >= end else cut.axis for a in range(len(sizes))]
    order = [own[a] for a in cut.order if not cut.axis < a < end]
    merged = (*sizes[: cut.axis], math.prod(sizes[cut.axis : end]), *sizes[end:])
    return _at(merged, tuple(sorted({own[a] for a in axes})), cut.axis, (cut.chunks, cut.length), order)


def _at(sizes: tuple[int, ...], axes: tuple[int, ...], axis: int, chunks: tuple[int, int], order: Sequence[int],
        down: bool = False) -> _Cut:
    """Return the split of ``axis`` into ``chunks`` (number, length), whose results are stored in the given order of
    axes."""
    shape = (*sizes[:axis], *chunks, *sizes[axis + 1 :])
    inner = tuple(a + (a >= axis) for a in axes)  # the axis inside a chunk comes after the axis of the chunks
    inner = tuple(sorted({a for a in inner if a != axis} | {axis + 1}))
    first = (axis, *(a + (a >= axis) for a in order))
    return _Cut(shape, axis, inner, tuple(sorted(first)) if down else first, down)


def _short_rows(node: UOp, target: Target) -> tuple[int, ...]:
    """Return the reduced axes along memory of a long reduction, if they are shorter than a cache line and other axes
    outside of them are kept, as the channels of a group; else ().

    Reducing the other axes first, down columns, reads whole lines.
    """
    x, (_, axes) = node.src[0], node.arg
    fixed = all(isinstance(s, int) for s in x.shape)
    if not fixed or x.size // max(node.size, 1) < target.costs.cuts.column or is_product(x) or contraction(node):
        return ()
    strides = _memory_strides(x)
    inner = list[int]()
    for axis in sorted((a for a in strides if x.shape[a] > 1), key=strides.__getitem__):
        if axis not in axes:
            break
        inner.append(axis)
    else:
        return ()
    others = [a for a in axes if a not in inner and x.shape[a] > 1]
    short = math.prod(x.shape[a] for a in inner) * x.dtype.itemsize < ROW_BYTES
    return tuple(sorted(inner)) if inner and others and short else ()


def _memory_axis(x: UOp) -> int | None:
    """Return the axis along which the largest input is contiguous in memory; None if unknown."""
    strides = _memory_strides(x)
    return min(strides, key=strides.__getitem__, default=None)


def _memory_strides(x: UOp) -> dict[int, int]:
    """Return the strides of the axes in the largest input's memory; {} if they are unknown."""
    index: Index = ranges_of(x.shape)
    while x.op.elementwise or x.op in (Ops.PERMUTE, Ops.EXPAND, Ops.RESHAPE):
        if x.op.elementwise:
            x = max((s for s in x.src if s.shape == x.shape), key=lambda s: s.base.size, default=x.src[0])
        else:
            x, index = x.src[0], move(x, index)[0]
    strides = linear_form(flatten(x.shape, index))[0]
    return {r.arg[0]: stride for r, stride in strides.items()} if all(r.op is Ops.RANGE for r in strides) else {}


def _split_scan(node: UOp, target: Target) -> UOp:
    """Return a long scan as scans of blocks, each with a start value: the scan of the block
    totals, which is split likewise."""
    x, (op, axis) = node.src[0], node.arg
    shape = x.shape
    if not all(isinstance(s, int) for s in shape):
        return node
    length = _steps_of_block(shape[axis], node.size // max(shape[axis], 1), math.prod(shape[axis + 1 :]) == 1, target)
    if not length:
        return node
    blocks = -(-shape[axis] // length)
    whole = x.shrink(tuple((0, (blocks - 1) * length) if i == axis else (0, s) for i, s in enumerate(shape)))
    apart = whole.reshape((*shape[:axis], blocks - 1, length, *shape[axis + 1 :]))
    turned = (axis,) if target.costs.cuts.backwards else ()
    totals = apart.flip(turned).reduce(op, (axis + 1,)).reshape((*shape[:axis], blocks - 1, *shape[axis + 1 :]))
    before = _split_scan(totals.contiguous().flip(turned).scan(op, axis), target)
    moved = before.pad(tuple((int(i == axis), 0) for i in range(x.ndim)))
    assert op.identity is not None
    place = moved.iota_like(axis)
    start = place.eq(place.const_like(0)).where(moved.const_like(op.identity(node.dtype)), moved)
    return x.scan(op, axis, start)


def _steps_of_block(steps: int, rows: int, along: bool, target: Target) -> int:
    """Return the steps per block of a scan of ``rows`` rows along or across memory (``along``); 0: it is not split."""
    cuts, each = target.costs.cuts, target.costs.cuts.scan_step
    if cuts.scan_blocks:
        if steps < cuts.scan or rows > cuts.scan_rows:
            return 0
        vectors = steps // each if steps % each == 0 else steps
        return -(-steps // (_chunks(vectors, cuts.scan_blocks, cuts.least) or cuts.scan_blocks))
    threads, least = (cuts.scan_threads, cuts.scan_threads * each // 2) if along else (1, cuts.scan_column)
    room = target.cores * target.resident // threads  # rows that run in parallel
    if steps < 4 * least or 2 * rows > room:
        return 0
    wished = max(steps * rows // (cuts.scan_waves * room), least)
    half = each // 2  # half a step: full vectors
    near = range(wished // each * half, min(2 * wished, steps // 2) + 1, half)
    even = [d for d in near if steps % d == 0] or [d for d in near if d == -(-steps // -(-steps // d))]
    return min(even, key=lambda d: abs(d - wished), default=0)


def _chunks(size: int, wished: int, least: int) -> int | None:
    """Return the divisor of ``size``, at least ``least``, nearest to ``wished`` chunks; None without one."""
    divisors = [d for d in range(least, min(size, 4 * wished) + 1) if size % d == 0]
    return min(divisors, key=lambda d: abs(d - wished), default=None)
