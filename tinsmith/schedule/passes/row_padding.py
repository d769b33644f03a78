"""Row padding: operands and results of large products are stored with a padded row pitch,
so that TMA boxes can copy them.

Matrix units that read staged operands get them by bulk tensor copies (boxes). A row pitch that is no multiple of
``Target.bulk_copy`` bytes excludes boxes, and rows that begin inside a memory sector read one sector more
each. A padded copy solves both:

    Σ a·b   →   Σ shrink(contiguous(pad(a)))·b        16-bit(Σ a·b)   →   shrink(contiguous(16-bit(Σ a·pad(b))))

Units without ``turned`` read rows along the reduction only: the copy is then of the operand after its views. A copy
pays if the operand's elements are reused often enough; a price in products decides.
"""
from __future__ import annotations

from collections.abc import Sequence

from tinsmith.core.settings import settings
from tinsmith.ir import Ops, UOp
from tinsmith.ir.matrix_unit import MatrixUnit, in_memory
from tinsmith.ir.ops.repeated import is_product
from tinsmith.ir.staged_layout import ROW_BYTES
from tinsmith.schedule.fusion.fan_in import Read, below_reshapes, ranges_of, read_by
from tinsmith.schedule.passes.channels_last import channels_last, price_of_copy
from tinsmith.schedule.passes.rewrites import rebuilt
from tinsmith.target.target import Target

_VIEWS = (Ops.RESHAPE, Ops.PERMUTE, Ops.EXPAND)
_MEMORY = (Ops.BUFFER, Ops.CONTIGUOUS, Ops.COPY, Ops.ASSIGN)


def pitched(roots: Sequence[UOp], target: Target) -> list[UOp]:
    """Return the graph with such copies; unchanged if no unit reads staged operands."""
    staged = [u for u in target.units if u.staged and (settings.ALLOW_TF32 or not u.rounds)]
    types = {(in_memory(u.a), u.acc): u for u in sorted(staged, key=lambda u: u.rate)}
    if not types:
        return list(roots)
    products = set[UOp]()

    def rule(node: UOp, n: UOp) -> UOp:
        if node.op is Ops.CAST and node.dtype.itemsize == 2 and below_reshapes(node.src[0]) in products:
            return _with_rows(node, target)
        if node.op is Ops.REDUCE and node.arg[0] is Ops.ADD:
            narrow = [u.a for u in types.values() if u.turned and u.acc is node.dtype]
            found = (channels_last(node.src[0], a, target) for a in narrow)
            node = node.replace(src=(next((p for p in found if p is not None), node.src[0]),))
        reads = _reads(node) if node.op is Ops.REDUCE else []
        units = {types.get((r.source.dtype, node.dtype)) for r in reads}
        if len(units) == 1 and (unit := units.pop()) is not None:
            node = node.replace(src=(_copied(node, reads, target, unit),))
            products.add(node)
        return node

    return rebuilt(roots, rule)


def _reads(total: UOp) -> list[Read]:
    """Return the reads of the factors of a sum of products, in the shape of the lowest views;
    [] for other reductions."""
    product = total.src[0]
    if total.arg[0] is not Ops.ADD or not is_product(product) or not all(isinstance(s, int) for s in product.shape):
        return []
    return [read_by(f, ranges_of(product.shape), lambda n: n.op in _VIEWS or (
        n.op is Ops.CAST and n.dtype is product.dtype), lambda v: True) for f in product.src]


def _copied(total: UOp, reads: Sequence[Read], target: Target, unit: MatrixUnit) -> UOp:
    """Return the product of ``total`` over padded copies of its operands, where that pays.

    An operand is copied if its rows split sectors. For boxes, all operands that lack them must be copied, or none is.
    """
    product, costs = total.src[0], target.costs
    size = product.size * max(u.rate for u in target.units if u.staged) / unit.rate
    rows = [r.source.shape[-1] * r.source.dtype.itemsize for r in reads]
    across = [not (unit.turned or (r.place[-1].op is Ops.RANGE and r.place[-1].arg[0] in total.arg[1])) for r in reads]
    odd = [over or row % target.bulk_copy > 0 for over, row in zip(across, rows)]
    prices = [price_of_copy(r.source, target) for r in reads]
    dense = [_is_dense(r.source) for r in reads]
    if any(odd) and not (product.ndim - 1 in total.arg[1] and all(d for d, o in zip(dense, odd) if o) and
                         size * costs.no_boxes > sum(p for p, o in zip(prices, odd) if o)):
        return product
    factors = list(product.src)
    for n, (read, row) in enumerate(zip(reads, rows)):
        split = row % costs.sector > 0 and dense[n] and size * costs.split_lines > prices[n]
        if across[n]:
            factors[n] = _turned(factors[n])
        elif odd[n] or split:
            factors[n] = read.views.of(_with_pitch(_padded(read.source, read.source.ndim - 1), read.source))
    return product.replace(src=tuple(factors))


def _turned(factor: UOp) -> UOp:
    """Return a copy of a factor whose rows run along its last axis."""
    if factor.op is Ops.EXPAND:
        return _turned(factor.src[0]).expand(factor.shape)
    return _with_pitch(_padded(factor, factor.ndim - 1), factor)


def _is_dense(x: UOp) -> bool:
    """Return True if a value is in memory with contiguous rows."""
    return below_reshapes(x).op in _MEMORY


def _padded(x: UOp, axis: int, itemsize: int = 0) -> UOp:
    """Return ``x`` padded along ``axis`` to full cache lines of elements of ``itemsize`` bytes (0: its own)."""
    step = ROW_BYTES // (itemsize or x.dtype.itemsize)
    return x.pad(tuple((0, -s % step if a == axis else 0) for a, s in enumerate(x.shape)))


def _with_pitch(wide: UOp, like: UOp) -> UOp:
    """Return the elements of ``like`` from the padded value ``wide``, which gets memory of its own."""
    return wide.contiguous().shrink(tuple((0, s) for s in like.shape))


def _with_rows(node: UOp, target: Target) -> UOp:
    """Return a product's 16-bit result in memory with padded rows, if it could not be stored in full vectors otherwise.

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
