"""Copies of operands for bulk tensor copies (TMA boxes): channels last, padded rows, and computed operands.

**Channels last.** Boxes begin at multiples of 16 bytes along the fastest axis of memory, and a window shifts by single
elements. So the axis that windows slide along must not be the fastest, as it is in images [N, C, H, W] and weights
[Cout, Cin, K, K]:

    Σ windows(x)·w   →   Σ windows(view(contiguous(x with its channels last)))·w

A computed operand needs no additional copy: its kernel stores it channels last. A price decides whether a copy pays.

**Padded rows.** A row pitch that is no multiple of ``Target.bulk_copy`` bytes excludes boxes, and rows that begin
inside a memory sector read one sector more each. A padded copy solves both:

    Σ a·b   →   Σ shrink(contiguous(pad(a)))·b        16-bit(Σ a·b)   →   shrink(contiguous(16-bit(Σ a·pad(b))))

Units without ``turned`` read only rows along the reduction: the copy is then of the operand after its views. A copy
pays if the operand's elements are reused often enough; a price in products decides.

**Computed operands.** Boxes are of memory. What fusion would compute again for each tile, as weights that ``autocast``
converts, is stored once; so is the narrow copy of a value that other kernels read wide (softmax for the backward pass):

    Σ 16-bit(w)·x   →   Σ contiguous(16-bit(w))·x

``tile_cut`` splits the reduction of a matmul that has too few output tiles (split-K).
"""
from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence, Set
from itertools import pairwise
from typing import NamedTuple

from tinsmith.codegen.lower.indexing import Index, flatten
from tinsmith.codegen.planner.cost import waves_of
from tinsmith.core.dtypes import DType
from tinsmith.ir import Ops, UOp
from tinsmith.ir.algebra.sizes import linear_form
from tinsmith.ir.matrix_unit import ROW_BYTES, MatrixUnit, in_memory
from tinsmith.ir.ops.op import is_product
from tinsmith.ir.structure import contraction
from tinsmith.ir.uop import toposort
from tinsmith.schedule.fusion.fan_in import (
    MOST_CONE,
    Read,
    below_reshapes,
    cone_of,
    is_of_scores,
    ranges_of,
    read_by,
    reductions_of,
    stored_type,
)
from tinsmith.schedule.passes.rewrites import rebuilt
from tinsmith.schedule.values import SOURCES, STAGED
from tinsmith.target.target import Target

_TILE = 64 * 64  # results of a block, about
_MEMORY = (*SOURCES, Ops.CONTIGUOUS, Ops.COPY, Ops.ASSIGN)


def _stored(factor: UOp, index: Index, narrow: DType) -> Read | None:
    """Return the read of a factor: the value of dtype ``narrow`` below its views and casts;
    None if it has another dtype.

    The value has the shape in which it lies in memory. A 1-D value, or one that is to be computed, has the shape of the
    lowest reshapes.
    """
    found = read_by(factor, index, lambda v: v.op.kind == "movement" or (v.op is Ops.CAST and v.dtype is not narrow),
                    lambda v: v.ndim == 1 or not _lies(v))
    return found if found.source.dtype is narrow else None


def _lies(x: UOp) -> bool:
    """Return True if a value is already in memory."""
    return below_reshapes(x).op in _MEMORY


def price_of_copy(x: UOp, target: Target) -> float:
    """Return the cost of a copy (read, write and launch), in the time of one product (multiply-add) of a staged
    unit."""
    return float(2 * x.size * x.dtype.itemsize * target.costs.balance + target.costs.launch)


def gain_of_boxes(product: UOp, reads: Sequence[Read], total: UOp, unit: MatrixUnit, target: Target) -> float:
    """Return the time that a sum of products saves if its operands are boxes, in the time of one product: none where
    what it reads and stores takes longer than the products."""
    costs, work = target.costs, product.size * max(u.rate for u in target.units if u.staged) / unit.rate
    moved = (sum(r.source.size for r in reads) + total.size) * in_memory(unit.a).itemsize * costs.balance
    return float(max(work * costs.no_boxes, moved) - max(work, moved))


def _waits(product: UOp, total: UOp, target: Target) -> float:
    """Return the time that a block without boxes waits for the loads of its steps. Sums of few results are split, so
    that a block has fewer of them."""
    tiles = -(-total.size // _TILE)
    split = max(target.cores // (2 * tiles), 1) if tiles else 1
    return float(product.size / max(total.size * split, 1) * target.costs.no_boxes_step)


def _sides(reads: Sequence[Read], shape: Sequence[int], axes: Sequence[int]) -> tuple[int, int, int]:
    """Return the rows and columns of a matrix of sums over ``axes``, and the number of such matrices."""
    a, b = (frozenset().union(*(i.ranges for i in r.place)) for r in reads)
    kept = frozenset().union(*(i.ranges for n, i in enumerate(ranges_of(shape)) if n not in axes))
    rows, columns, batch = (math.prod(int(r.vmax) + 1 for r in kept & own) for own in (a - b, b - a, a & b))
    return rows, columns, batch


def channels_last(total: UOp, of: MatrixUnit, target: Target) -> UOp | None:
    """Return the product that ``total`` sums with channels-last copies of its operands where the TMA boxes of a unit
    need them.

    None if it is not a product, if no operand needs a copy, or if the copies do not pay.
    """
    summed, axes, narrow = total.src[0], total.arg[1], in_memory(of.a)
    if not all(isinstance(s, int) for s in summed.shape):
        return None
    above = read_by(summed, ranges_of(summed.shape), lambda v: v.op.kind == "movement", lambda v: False)
    product = above.source
    factors = product.src if is_product(product) else ()
    reads = [r for f in factors if (r := _stored(f, above.place, narrow)) is not None]
    if len(reads) < 2 or 2 * min(_sides(reads, summed.shape, axes)[:2]) < ROW_BYTES // narrow.itemsize:
        return None  # no product of a staged unit
    slides = above.slides.union(*(r.slides for r in reads))
    unit = max(target.bulk_copy // narrow.itemsize, 1)
    found = [(r, _channels(r, slides, axes, unit, of.turned)) for r in reads]
    copied = [r for r, axis in found if axis is not None and not (
        axis == r.source.ndim - 1 and (_lies(r.source) or not slides))]
    price = sum(price_of_copy(r.source, target) for r in copied
                if _lies(r.source) or _is_inlined(r.source, target.costs.operand, frozenset()))
    picked = any(s > 1 and not at.ranges for r, axis in found if axis is not None
                 for s, at in zip(r.source.shape[axis:], r.place[axis:]))  # one position of a window
    apart = not of.turned and _row(product) not in axes  # ``_copied`` turns rows along the last axis only
    fits = (slides or picked or apart) and all(axis is not None for _, axis in found)
    if not fits or gain_of_boxes(product, reads, total, of, target) + _waits(product, total, target) <= price:
        return None
    made = (_last(r, axis) if r in copied and axis is not None else f for (r, axis), f in zip(found, factors))
    return above.views.of(product.replace(src=tuple(made))) if copied else None


def _channels(read: Read, slides: frozenset[UOp], summed: Sequence[int], unit: int, turned: bool) -> int | None:
    """Return the axis to store innermost; None if it is not a single range, or is short.

    It is the fastest axis that is read at several positions, if no window slides along it or a faster one. Else it is
    the fastest axis of channels: not a position of an image, as the rows of a window along its columns. Channels are
    summed if positions are kept, and kept if positions are summed (the gradient of weights). Units without ``turned``
    read only rows along a summed axis.
    """
    shape, item = read.source.shape, read.source.dtype.itemsize
    free = [a for a, at in enumerate(read.place) if shape[a] > 1 and at.ranges and not at.ranges & slides and (
        turned or all(r.arg[0] in summed for r in at.ranges))]
    slid = [a for a, at in enumerate(read.place) if at.ranges & slides and shape[a] >= unit]
    kept = {a: {r for r in at.ranges if r.arg[0] not in summed} for a, at in enumerate(read.place)}
    along = any(r.vmax >= unit for a in slid for r in kept[a])
    channels = [a for a in free if not (slid and turned) or bool(kept[a]) is not along]
    fastest = [a for a in free[-1:] if a > max(slid, default=-1)]
    return next((a for a in (*fastest, *channels[-1:]) if read.place[a].op is Ops.RANGE and shape[a] % unit == 0
                 and 2 * shape[a] * item >= ROW_BYTES), None)


def _last(read: Read, axis: int) -> UOp:
    """Return a factor that reads a copy of its source with ``axis`` innermost."""
    order = (*(a for a in range(read.source.ndim) if a != axis), axis)
    back: Sequence[int] = [order.index(a) for a in range(read.source.ndim)]
    return read.views.of(read.source.permute(order).contiguous().permute(tuple(back)))


# *** split-K for few tiles ***
class TileCut(NamedTuple):
    """The split of one reduced axis of a matmul.

    Attributes:
        axis: the reduced axis that is split.
        chunks: the number of chunks; 1: no split.
        length: the elements of a chunk along the axis; the last chunk may have fewer.
        joined: the number of axes, from ``axis`` on, that are split as one.
        order: the order of axes in which the partial results of a chunk are stored.
    """

    axis: int
    chunks: int
    length: int
    joined: int
    order: tuple[int, ...]


def tile_cut(node: UOp, target: Target) -> TileCut | None:
    """Return the split-K of a sum of products that gives a staged matrix unit tiles for all cores.

    A split into one chunk means that there are enough tiles. None if no staged unit computes the sum, or if rows of a
    box would be too short. Reduced axes that are one axis in memory have any number of chunks of whole boxes: bulk
    copies fill the last one with zeros. Pixels of windows are split along one axis, without a rest.

    The cost of a chunk is one write and one read of its partial results. Their rows follow the first operand; their
    columns follow the memory order of the second.
    """
    product, axes = node.src[0], node.arg[1]
    units = [u for u in target.units if u.tiles and u.acc is node.dtype and all(
        stored_type(f) is in_memory(u.a) for f in product.src) and _may_use(u, node)]
    index = ranges_of(product.shape)
    reads = [r for u in units[:1] for f in product.src if (r := _stored(f, index, in_memory(u.a))) is not None]
    if len(reads) < 2:
        return None
    a, b = (frozenset().union(*(i.ranges for i in r.place)) for r in reads)
    m, n, batch = _sides(reads, product.shape, axes)
    steps, width = [product.shape[axis] for axis in axes], ROW_BYTES // units[0].a.itemsize
    strides = [linear_form(flatten(r.source.shape, r.place))[0] for r in reads]
    rows = [a for a in axes if not units[0].turned and strides[0].get(index[a]) == 1]  # boxes have whole rows
    joins = _is_one_axis(reads, index, axes, max(target.bulk_copy // units[0].a.itemsize, 1))
    if 2 * min(m, n) < width or (not joins and _patch(steps) < width):
        return None

    def price(chunks: int, depth: int) -> float:
        cycles = min(waves_of(target, (m, n), (u.m * t.below, u.n), batch * chunks) * u.m * t.below * u.n / t.speed
                     for u in units for t in u.tiles)
        partial = (chunks * node.size * 2 * node.dtype.itemsize * target.costs.balance + target.costs.launch)
        return float(cycles * depth * target.cores + partial * (chunks > 1))
    whole = math.prod(steps)
    ways = [(price(c, whole // c), c, axis, size // c, 1) for axis, size in zip(axes, steps)
            for c in range(1, min(size, target.cores) + 1)
            if size % c == 0 and axis not in rows
            and _patch([s // c if a == axis else s for a, s in zip(axes, steps)]) >= width]
    if joins:
        boxes = -(-whole // width)
        each = {-(-boxes // c) for c in range(1, max(min(boxes // 2, target.cores), 1) + 1)}
        ways += [(price(-(-boxes // n), n * width), -(-boxes // n), axes[0], n * width, len(axes)) for n in each]
    if not ways:
        return None
    _, chunks, axis, length, joined = min(ways)
    columns = strides[1]
    order = sorted(range(product.ndim), key=lambda n: (1, -columns.get(index[n], 0)) if index[n] in b - a else (0, n))
    return TileCut(axis, chunks, length, joined, tuple(order))


def _is_one_axis(reads: Sequence[Read], index: Index, axes: Sequence[int], unit: int) -> bool:
    """Return True if the reduced axes are neighbours and form one axis in the memory of both factors, as the batch and
    the rows of a linear layer do, and if rows in memory start at multiples of ``unit`` elements."""
    long = [index[a] for a in axes if index[a].ranges]
    for read in reads:
        strides = linear_form(flatten(read.source.shape, read.place))[0]
        apart = any(strides.get(a) != strides.get(b, 0) * (b.vmax + 1) for a, b in pairwise(long))
        if any(stride != 1 and stride % unit for stride in strides.values()):
            return False
        if apart or read.slides or any(at.vmin < 0 or at.vmax >= s for at, s in zip(read.place, read.source.shape)):
            return False
    return tuple(axes) == tuple(range(axes[0], axes[-1] + 1))


def _patch(sizes: Sequence[int]) -> int:
    """Return the product of the largest powers of two that divide ``sizes``: the reduced
    elements that fit boxes exactly."""
    return math.prod(s & -s for s in sizes)

_VIEWS = (Ops.RESHAPE, Ops.PERMUTE, Ops.EXPAND)

_STORED = (Ops.BUFFER, Ops.CONTIGUOUS, Ops.COPY, Ops.ASSIGN)


def pitched(roots: Sequence[UOp], target: Target) -> list[UOp]:
    """Return the graph with copies to padded rows; unchanged if no unit of the target reads staged operands."""
    staged = [u for u in target.units if u.staged]
    types = {(in_memory(u.a), u.acc): u for u in sorted(staged, key=lambda u: u.rate)}
    if not types:
        return list(roots)
    products, shared = set[UOp](), set[UOp]()  # shared: values with several readers
    readers = Counter(s for n in toposort(roots) for s in dict.fromkeys(n.src))

    def rule(node: UOp, n: UOp) -> UOp:
        if readers[n] > 1:
            shared.add(node)
        if node.op is Ops.CAST and node.dtype.itemsize == 2 and below_reshapes(node.src[0]) in products:
            return _with_rows(node, target)
        if node.op is Ops.REDUCE and node.arg[0] is Ops.ADD:
            units = [u for u in types.values() if u.acc is node.dtype and _may_use(u, node)]
            found = (channels_last(node, u, target) for u in units)
            node = node.replace(src=(next((p for p in found if p is not None), node.src[0]),))
        reads = _reads(node) if node.op is Ops.REDUCE else []
        fit = {types.get((r.source.dtype, node.dtype)) for r in reads}
        if len(fit) == 1 and (unit := fit.pop()) is not None and _may_use(unit, node):
            node = node.replace(src=(_copied(node, reads, target, unit, shared),))
            products.add(node)
        return node

    return rebuilt(roots, rule)


def _may_use(unit: MatrixUnit, total: UOp) -> bool:
    """Return True if a unit rounds no operands, or if a sum of products has stored ones that it may round."""
    if not unit.rounds:
        return True
    found = contraction(total)
    return found is not None and found.may_round and all(
        stored_type(f) is in_memory(unit.a) for f in (found.a, found.b))


def _reads(total: UOp) -> list[Read]:
    """Return the reads of the factors of a sum of products, in the shape of the lowest views;
    [] for other reductions."""
    product = total.src[0]
    if total.arg[0] is not Ops.ADD or not is_product(product) or not all(isinstance(s, int) for s in product.shape):
        return []
    return [read_by(f, ranges_of(product.shape), lambda n: n.op in _VIEWS or _is_single(n) or (
        n.op is Ops.CAST and n.dtype is product.dtype), lambda v: True) for f in product.src]


def _is_single(node: UOp) -> bool:
    """Return True for a window of one position, as of a 1×1 convolution: a view of every ``stride``-th element."""
    return node.op is Ops.WINDOW and node.shape[node.arg.window_axis] == 1


def _copied(total: UOp, reads: Sequence[Read], target: Target, unit: MatrixUnit, shared: Set[UOp]) -> UOp:
    """Return the product ``total`` with copies of its operands, where these pay: padded ones, and those of values that
    fusion would compute again for each tile, such as weights that ``autocast`` converts.

    An operand is copied if its rows begin inside a memory sector. To make boxes possible, all operands that are not
    boxes must be copied, or none is.
    """
    product, costs = total.src[0], target.costs
    size = product.size * max(u.rate for u in target.units if u.staged) / unit.rate
    rows = [r.source.shape[_row(r.source)] * r.source.dtype.itemsize for r in reads]
    along = [r.place[_row(r.source)] for r in reads]
    across = [not (unit.turned or (at.op is Ops.RANGE and at.arg[0] in total.arg[1])) for at in along]
    inlined = [_is_inlined(r.source, costs.operand, shared) and not is_of_scores(r.source, costs) for r in reads]
    dense = [_is_dense(r.source) or again for r, again in zip(reads, inlined)]
    short = [over or row % target.bulk_copy > 0 for over, row in zip(across, rows)]
    odd = [o or again for o, again in zip(short, inlined)]
    prices = [price_of_copy(r.source, target) for r in reads]
    whole = not any(short) or _row(product) in total.arg[1]
    if any(odd) and not (whole and all(d for d, o in zip(dense, odd) if o) and
                         gain_of_boxes(product, reads, total, unit, target) > sum(
                             p for p, o in zip(prices, odd) if o)):
        return product
    factors = list(product.src)
    for n, (read, row) in enumerate(zip(reads, rows)):
        split = row % costs.sector > 0 and dense[n] and size * costs.split_lines > prices[n]
        if across[n]:
            factors[n] = _turned(factors[n])
        elif inlined[n] and not short[n] and not split:
            factors[n] = read.views.of(below_reshapes(read.source).contiguous().reshape(read.source.shape))
        elif odd[n] or split:
            factors[n] = read.views.of(_with_pitch(_padded(read.source, _row(read.source)), read.source))
    return product.replace(src=tuple(factors))


def _row(x: UOp) -> int:
    """Return the axis along which the rows of a value in memory run."""
    return next((a for a in reversed(range(x.ndim)) if x.shape[a] != 1), x.ndim - 1)


def _turned(factor: UOp) -> UOp:
    """Return a copy of a factor whose rows run along its last axis of several elements."""
    if factor.op is Ops.EXPAND:
        return _turned(factor.src[0]).expand(factor.shape)
    return _with_pitch(_padded(factor, _row(factor)), factor)


def _is_dense(x: UOp) -> bool:
    """Return True if a value is in memory with contiguous rows."""
    return below_reshapes(x).op in _STORED


def _is_inlined(x: UOp, most: int, shared: Set[UOp]) -> bool:
    """Return True for what fusion computes in the kernel that reads it: an elementwise function of values in memory
    that costs at most ``most`` operations per element, or the conversion of a value that others read, too."""
    value = below_reshapes(x)
    if value.op is Ops.CAST and value.src[0] in shared and value.src[0].op not in SOURCES:
        return True
    cone = cone_of(x, STAGED)
    work = sum(n.op.cost for n in cone if n.op.elementwise)
    return not _is_dense(x) and 0 < work <= most and len(cone) <= MOST_CONE and not reductions_of(cone)


def _padded(x: UOp, axis: int, itemsize: int = 0) -> UOp:
    """Return ``x`` padded along ``axis`` to full cache lines of elements of ``itemsize`` bytes (0: its own)."""
    step = ROW_BYTES // (itemsize or x.dtype.itemsize)
    return x.pad(tuple((0, -s % step if a == axis else 0) for a, s in enumerate(x.shape)))


def _with_pitch(wide: UOp, like: UOp) -> UOp:
    """Return the elements of ``like`` as a view of the padded value ``wide``, which is stored."""
    return wide.contiguous().shrink(tuple((0, s) for s in like.shape))


def _with_rows(node: UOp, target: Target) -> UOp:
    """Return a product whose 16-bit result is stored with padded rows, if full vectors could not be stored otherwise.

    The factor that has the columns is padded instead of the result.
    """
    total, itemsize = below_reshapes(node.src[0]), node.dtype.itemsize
    product = total.src[0]
    column = next((a for a in reversed(range(total.ndim)) if total.shape[a] > 1), 0)
    repeated = [f.src[0].shape[column] == 1 if f.op is Ops.EXPAND else None for f in product.src]
    whole = total.shape[column] * itemsize % target.bulk_copy == 0
    rounded = total.cast(node.dtype)
    if whole or None in repeated or repeated[0] == repeated[1] or (
            product.size * target.costs.split_lines <= price_of_copy(rounded, target)):
        return node
    inner = [f.src[0] if again else _padded(f.src[0], column, itemsize) for f, again in zip(product.src, repeated)]
    shape = tuple(max(sizes) for sizes in zip(*(f.shape for f in inner)))
    wide = product.replace(src=tuple(f.expand(shape) for f in inner))
    return _with_pitch(wide.reduce(Ops.ADD, total.arg[1]).cast(node.dtype), rounded).reshape(node.shape)
