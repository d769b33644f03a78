"""Rows that begin where copies of boxes can begin: operands of large products, and results, in memory with padded rows.

A unit that reads staged operands gets them box by box. Rows that begin at no multiple of ``Target.bulk_copy`` bytes are
no boxes at all, and rows that begin inside a sector of memory take one more each. A padded copy mends both:

    Σ a·b   →   Σ shrink(contiguous(pad(a)))·b        16-bit(Σ a·b)   →   shrink(contiguous(16-bit(Σ a·pad(b))))

Some units read rows along the reduction only (``turned``): the copy is then one of what the views make of the operand.
It is worth its time where an operand's elements are used often enough, so this is decided by a price, in products.
"""
from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from tinsmith.codegen.render.base import Target
from tinsmith.core.dtypes import DType
from tinsmith.core.settings import settings
from tinsmith.ir import Ops, UOp
from tinsmith.ir.layout import ROW_BYTES
from tinsmith.ir.ops.repeated import is_product
from tinsmith.ir.units import MatrixUnit, in_memory
from tinsmith.schedule.channels import channels_last
from tinsmith.schedule.cones import below_reshapes
from tinsmith.schedule.origins import rebuilt

_VIEWS = (Ops.RESHAPE, Ops.PERMUTE, Ops.EXPAND)
_MEMORY = (Ops.BUFFER, Ops.CONTIGUOUS, Ops.COPY, Ops.ASSIGN)


def pitched(roots: Sequence[UOp], target: Target) -> list[UOp]:
    """The graph with such copies; unchanged with NOOPT=1, and where no unit reads staged operands."""
    staged = [u for u in target.units if u.staged and (settings.ALLOW_TF32 or not u.rounds)]
    types = {(in_memory(u.a), u.acc): u for u in sorted(staged, key=lambda u: u.rate)}
    if settings.NOOPT or not types:
        return list(roots)
    products = set[UOp]()

    def rule(node: UOp, n: UOp) -> UOp:
        if node.op is Ops.CAST and node.dtype.itemsize == 2 and below_reshapes(node.src[0]) in products:
            return _with_rows(node, target)
        if node.op is Ops.REDUCE and node.arg[0] is Ops.ADD:
            narrow = [u.a for u in types.values() if u.turned and u.acc is node.dtype]
            found = (channels_last(node.src[0], a, target) for a in narrow)
            node = node.replace(src=(next((p for p in found if p is not None), node.src[0]),))
        if node.op is Ops.REDUCE and (unit := _unit_of(node, types)) is not None:
            node = node.replace(src=(_copied(node, target, unit),))
            products.add(node)
        return node

    return rebuilt(roots, rule)


class _Factor(NamedTuple):
    """A factor of a product: what it reads, its type, and the views of that, the first applied first."""

    source: UOp
    dtype: DType
    views: tuple[UOp, ...]

    @property
    def row(self) -> int:
        return int(self.source.shape[-1] * self.source.dtype.itemsize)

    def runs_along(self, axes: Sequence[int]) -> bool:
        """Whether elements of the source lie side by side along one of the axes that the views end with."""
        shape, axis = self.source.shape, self.source.ndim - 1
        for view in self.views:
            beyond = prod(shape[axis + 1 :])
            if view.op is Ops.PERMUTE:
                axis = view.arg.index(axis)
            elif view.op is Ops.RESHAPE:
                axis = next((a for a, s in enumerate(view.shape) if s == shape[axis] and
                             prod(view.shape[a + 1 :]) == beyond), -1)
            if axis < 0:
                return False
            shape = view.shape
        return axis in axes

    def of(self, source: UOp) -> UOp:
        """The same factor of another source."""
        made = source.cast(self.dtype)
        for view in self.views:
            made = UOp(view.op, None, (made, *view.src[1:]), view.arg)
        return made


def _factor(value: UOp) -> _Factor:
    views, dtype = list[UOp](), value.dtype
    while value.op in _VIEWS:
        views.append(value)
        value = value.src[0]
    source = value.src[0] if value.op is Ops.CAST else value
    while views and views[-1].op is Ops.RESHAPE:
        source = source.reshape(views.pop().shape)
    return _Factor(source, dtype, tuple(reversed(views)))


def _unit_of(node: UOp, types: dict[tuple[DType, DType], MatrixUnit]) -> MatrixUnit | None:
    """The fastest unit that can do a sum of products from staged operands."""
    fixed = all(isinstance(s, int) for s in node.src[0].shape)
    if node.arg[0] is not Ops.ADD or not fixed or not is_product(node.src[0]):
        return None
    found = {types.get((_factor(f).source.dtype, node.dtype)) for f in node.src[0].src}
    return found.pop() if len(found) == 1 else None


def _copied(total: UOp, target: Target, unit: MatrixUnit) -> UOp:
    """A sum's product of padded copies of what the factors read, where that pays: either gets one where its sectors
    are split, both must have boxes, or neither need have any."""
    product, costs = total.src[0], target.costs
    factors = [_factor(f) for f in product.src]
    size = product.size * max(u.rate for u in target.units if u.staged) / unit.rate
    across = [f for f in factors if not unit.turned and not f.runs_along(total.arg[1])]
    odd = [f for f in factors if f in across or f.row % target.bulk_copy]
    if odd and not (product.ndim - 1 in total.arg[1] and all(_is_dense(f.source) for f in odd) and
                    size * costs.no_boxes > sum(_price(f.source, target) for f in odd)):
        return product
    chosen = [f in odd or (f.row % costs.sector > 0 and _is_dense(f.source) and
                           size * costs.split_lines > _price(f.source, target)) for f in factors]
    made = ((_turned(old) if f in across else f.of(_with_pitch(_padded(f.source, f.source.ndim - 1), f.source)))
            if copied else old for f, copied, old in zip(factors, chosen, product.src))
    return product.replace(src=tuple(made)) if any(chosen) else product


def _turned(factor: UOp) -> UOp:
    """The copy of a factor whose rows run along its last axis."""
    if factor.op is Ops.EXPAND:
        return _turned(factor.src[0]).expand(factor.shape)
    return _with_pitch(_padded(factor, factor.ndim - 1), factor)


def _is_dense(x: UOp) -> bool:
    """Whether a value lies in memory, row behind row."""
    return below_reshapes(x).op in _MEMORY


def _price(x: UOp, target: Target) -> float:
    """What a copy costs, in products."""
    return float(2 * x.size * x.dtype.itemsize * target.costs.balance + target.costs.launch)


def _padded(x: UOp, axis: int, itemsize: int = 0) -> UOp:
    """With rows along an axis that are whole lines."""
    step = ROW_BYTES // (itemsize or x.dtype.itemsize)
    return x.pad(tuple((0, -s % step if a == axis else 0) for a, s in enumerate(x.shape)))


def _with_pitch(wide: UOp, like: UOp) -> UOp:
    """A value with padded rows in memory of its own, and of that what there was before."""
    return wide.contiguous().shrink(tuple((0, s) for s in like.shape))


def _with_rows(node: UOp, target: Target) -> UOp:
    """A product's result, rounded to 16 bits, in memory with padded rows, where no whole vectors are stored otherwise:
    the factor that has columns is padded instead of the result."""
    total, itemsize = below_reshapes(node.src[0]), node.dtype.itemsize
    product = total.src[0]
    column = next((a for a in reversed(range(total.ndim)) if total.shape[a] > 1), 0)
    repeated = [f.src[0].shape[column] == 1 if f.op is Ops.EXPAND else None for f in product.src]
    whole = total.shape[column] * itemsize % target.bulk_copy == 0
    rounded = total.cast(node.dtype)
    if whole or None in repeated or repeated[0] == repeated[1] or (
            product.size * target.costs.split_lines <= _price(rounded, target)):
        return node
    inner = [f.src[0] if again else _padded(f.src[0], column, itemsize) for f, again in zip(product.src, repeated)]
    shape = tuple(max(sizes) for sizes in zip(*(f.shape for f in inner)))
    wide = product.replace(src=tuple(f.expand(shape) for f in inner))
    return _with_pitch(wide.reduce(Ops.ADD, total.arg[1]).cast(node.dtype), rounded).reshape(node.shape)
