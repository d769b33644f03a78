"""Polyphase decomposition of strided transposed windows: sums over windows with gaps are computed phase by phase.

    y[p] = Σ_k x[o, k], o·s + k = p        (REDUCE of UNWINDOW: a strided convolution's data gradient, a transposed one)

Computed directly, s - 1 of s terms belong to no window and are masked. With p = q·s + r and k = j·s + r the windows are
contiguous, and each phase r is a dense sum (sub-pixel convolution, https://arxiv.org/abs/1609.05158):

    y[q, r] = Σ_j x[q - j, j·s + r]

The first K mod s phases have one term more than the others. Phases with the same number of terms are computed together.
All phases of sums per channel, without rows and columns of a matrix, are one sum with zeros after the window: one
kernel stores rows of the result, also of a part of it. On a core, the sums are stored side by side before.
"""
from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from tinsmith.core.dtypes import DType
from tinsmith.ir import Ops, UOp
from tinsmith.ir.ops.op import is_product
from tinsmith.ir.uop import Window
from tinsmith.schedule.fusion.fan_in import columns_of, stored_type
from tinsmith.schedule.passes.rewrites import rebuilt
from tinsmith.schedule.values import views_of
from tinsmith.target.target import Target


class _Phases(NamedTuple):
    """Phases ``first`` to ``end`` of ``window``, each a sum of ``terms`` terms."""

    window: Window
    first: int
    end: int
    terms: int


def sum_by_phase(roots: Sequence[UOp], target: Target) -> list[UOp]:
    """Return the graph with sums over strided transposed windows rewritten as dense sums, phase by phase.

    Where gathered values cost nothing by themselves (``Costs.join`` is 0), all phases are stored at their positions of
    one value, so that no reader of it has to choose between them.
    """
    totals, stored = set[UOp](), set[UOp]()  # what this pass has made

    sums = dict[UOp, _Channels]()

    def per_channel(of: _Channels) -> UOp:
        total = of.total({})
        sums[total] = of
        return total

    def rule(node: UOp, n: UOp) -> UOp:
        if node.op is Ops.CAST and node.src[0] in sums and node.dtype.itemsize < node.src[0].dtype.itemsize:
            return per_channel(sums[node.src[0]]._replace(dtype=node.dtype))
        if node.op is Ops.SHRINK and (crop := _cropped(node, sums)) is not None:
            return crop
        if node.op is Ops.REDUCE and node.src[0].op is Ops.UNWINDOW and node.arg[0] is Ops.ADD:
            if (of := _per_channel(node, target)) is not None:
                return per_channel(of)
            total = _sum(node, target)
            if total is not node:
                totals.add(total)
            return total
        if node.op is Ops.CAST and node.src[0] in totals and node.dtype.itemsize < node.src[0].dtype.itemsize:
            total = _narrowed(node.src[0], node.dtype)  # each position is in one phase, the others are 0
            if not _is_sum(total) or target.costs.join:
                return total
            total = total.contiguous()
            stored.add(total)
            return total
        if node.op is Ops.SHRINK and (seen := views_of(node, _is_crop)).source in stored:
            return seen.of(seen.source.src[0]).contiguous()  # no element outside is computed
        return node

    return rebuilt(roots, rule)


def _is_sum(total: UOp) -> bool:
    """Return True for the sum of several phases."""
    return views_of(total, lambda n: n.op.kind == "movement").source.op is Ops.ADD


def _is_crop(node: UOp) -> bool:
    return node.op in (Ops.SHRINK, Ops.RESHAPE)


def _narrowed(total: UOp, dtype: DType) -> UOp:
    """Return the sum of placed phases with each phase stored in ``dtype``."""
    if total.op is Ops.CONTIGUOUS:
        return total.src[0].cast(dtype).contiguous()
    return total.replace(dtype=dtype, src=tuple(_narrowed(s, dtype) for s in total.src))


def _lies_apart(w: Window, x: UOp, axes: Sequence[int]) -> bool:
    """Return True if window ``w`` is strided without dilation, its elements are summed (or it has only one), and its
    axis is kept."""
    summed = (w.window_axis in axes or x.shape[w.window_axis] == 1) and w.axis not in axes
    return summed and w.stride > 1 and w.dilation == 1 and all(isinstance(s, int) for s in (w.inputs, *x.shape))


def _sum(node: UOp, target: Target) -> UOp:
    axes = node.arg[1]
    windows, x = _windows_below(node.src[0])
    apart = [w for w in windows if _lies_apart(w, x, axes)]
    if not apart:
        return node
    total: UOp | None = None
    for parts in itertools.product(*(_alike(w, x.shape[w.window_axis]) for w in apart)):
        # phases of one term are no windows: a plain product, whose results are 0 after the last window
        plain = [p for p in parts if p.terms == 1 and _inputs(p) >= p.window.outputs and not target.costs.join]
        dense = {p.window: replace(p.window, stride=1, inputs=_inputs(p)) for p in parts if p not in plain}
        beyond = {p.window.axis: _inputs(p) - p.window.outputs for p in plain}
        stored = not target.costs.join and not any(beyond.values()) and all(
            p.end - p.first == p.window.stride for p in parts)
        y = _by_place(x, [w.window_axis for w in windows]) if stored and is_product(x) else x
        for p in parts:
            y = _phase(y, p, not target.costs.join)
        for w in windows:
            y = y if any(p.window is w for p in plain) else y.unwindow(dense.get(w, w))
        y = y.reduce("ADD", axes)
        if stored:  # where they are read: as rows of channels
            y = _placed(y, parts, stored)
        else:
            y = _placed(y.alu("CONTIGUOUS").pad(tuple((0, beyond.get(a, 0)) for a in range(y.ndim))), parts)
        total = y if total is None else total + y
    assert total is not None
    return total


def _by_place(product: UOp, places: Sequence[int]) -> UOp:
    """Return a product whose repeated factors that have places of a window, the weights, are copied place by place:
    rows of channels, as the results are."""
    def copied(factor: UOp) -> UOp:
        if factor.op is not Ops.EXPAND or all(factor.src[0].shape[a] == 1 for a in places):
            return factor
        small, rank = factor.src[0], factor.ndim
        order = (*places, *(a for a in range(rank) if a not in places))
        back = tuple(order.index(a) for a in range(rank))
        copy = small.permute(order).cast(stored_type(small)).contiguous().cast(small.dtype)
        return copy.permute(back).expand(factor.shape)

    return product.replace(src=tuple(map(copied, product.src)))


class _Channels(NamedTuple):
    """A sum over strided transposed windows of products per channel, without rows and columns of a matrix.

    Attributes:
        x: the products, below the windows.
        axes: the summed axes.
        windows: all windows, the lowest one first; ``apart``: the strided ones.
        dtype: the dtype in which the sum is stored.
        stored: it is stored phase by phase, not where it is read.
    """

    x: UOp
    axes: tuple[int, ...]
    windows: tuple[Window, ...]
    apart: tuple[Window, ...]
    dtype: DType
    stored: bool

    def total(self, crops: Mapping[int, tuple[int, int]]) -> UOp:
        """Return the sum with all phases of a position side by side, from and to the given positions of some axes.

        All phases have equally many terms, some of which are 0. Zeros before a window shift the phases, so that a crop
        begins with the first one.
        """
        x, parts, cut = self.x, list[_Phases](), dict[int, tuple[int, int]]()
        dense = dict[Window, Window]()
        for w in self.apart:
            begin, end = crops.get(w.axis, (0, w.inputs))
            shift, size = -begin % w.stride, x.shape[w.window_axis]
            terms, tiles = -(-(size + shift) // w.stride), -(-(end - begin) // w.stride)
            x = _grown(x, w.window_axis, shift, terms * w.stride - size - shift)
            first = (begin + shift) // w.stride
            parts.append(_Phases(replace(w, inputs=end - begin), 0, w.stride, terms))
            dense[w] = replace(w, stride=1, inputs=max(-(-(w.inputs + shift) // w.stride), first + tiles))
            cut[w.axis] = (first, first + tiles)
        x = x.replace(src=tuple(map(_stored, x.src)))
        for p in parts:
            x = _phase(x, p, True)
        for w in self.windows:
            x = x.unwindow(dense.get(w, w))
        x = x.shrink(tuple(cut.get(a, (0, s)) for a, s in enumerate(x.shape)))
        y = x.reduce("ADD", self.axes).cast(self.dtype)
        return _placed(y.alu("CONTIGUOUS") if self.stored else y, parts)


def _grown(products: UOp, axis: int, before: int, after: int) -> UOp:
    """Return products with zeros before and after an axis. A factor that is repeated along the axis is repeated more
    often, if the other one is not and gets the zeros."""
    repeated = [f.op is Ops.EXPAND and f.src[0].shape[axis] == 1 for f in products.src]
    size = products.shape[axis]
    shape, factors = tuple(size + before + after if a == axis else s for a, s in enumerate(products.shape)), list[UOp]()
    for factor, more in zip(products.src, repeated):
        inner = factor.src[0] if factor.op is Ops.EXPAND else factor
        if not more or all(repeated):
            inner = inner.expand(tuple(size if a == axis else s for a, s in enumerate(inner.shape)))
            inner = inner.pad(tuple((before, after) if a == axis else (0, 0) for a in range(inner.ndim)))
        factors.append(inner.expand(shape))
    return products.replace(src=tuple(factors))


def _stored(factor: UOp) -> UOp:
    """Return a factor that was padded from memory, since lanes that are apart read no guarded elements."""
    if factor.op is not Ops.EXPAND or factor.src[0].op is not Ops.PAD:
        return factor
    return factor.replace(src=(factor.src[0].alu("CONTIGUOUS"),))


def _per_channel(node: UOp, target: Target) -> _Channels | None:
    """Return the sum of products per channel that a node is, or None."""
    windows, x = _windows_below(node.src[0])
    apart = tuple(w for w in windows if _lies_apart(w, x, node.arg[1]))
    if not apart or not is_product(x) or columns_of(x, node.arg[1]) > 1:
        return None
    return _Channels(x, node.arg[1], tuple(windows), apart, node.dtype, target.costs.join > 0)


def _cropped(node: UOp, sums: Mapping[UOp, _Channels]) -> UOp | None:
    """Return a crop of a sum per channel, of which no element outside is computed; None if ``node`` is none."""
    seen = views_of(node.src[0], lambda v: v not in sums and _keeps_order(v))
    of = sums.get(seen.source)
    if of is None:
        return None
    inside = [a for a, s in enumerate(seen.source.shape) if s != 1 and a >= min(w.axis for w in of.apart)]
    long = [a for a, s in enumerate(node.src[0].shape) if s != 1][-len(inside):]
    cut = {a for a, (bounds, s) in enumerate(zip(node.arg, node.src[0].shape)) if bounds != (0, s)}
    crops = {a: node.arg[b] for a, b in zip(inside, long)}
    if [seen.source.shape[a] for a in inside] != [node.src[0].shape[b] for b in long] or not cut <= {
            b for a, b in zip(inside, long) if any(w.axis == a for w in of.apart)}:
        return None
    return of.total(crops).reshape(node.shape)


def _keeps_order(view: UOp) -> bool:
    """Return True for views that have the elements in the same order."""
    if view.op is Ops.PERMUTE:
        long = [a for a in view.arg if view.src[0].shape[a] != 1]
        return long == sorted(long)
    return view.op is Ops.RESHAPE


def _windows_below(x: UOp) -> tuple[list[Window], UOp]:
    """Return the transposed windows above a value, the lowest one first, and the value."""
    windows: list[Window] = []
    while x.op is Ops.UNWINDOW:
        windows.insert(0, x.arg)
        x = x.src[0]
    return windows, x


def _alike(w: Window, size: int) -> Iterator[_Phases]:
    """Yield the phases of windows of ``size`` elements, grouped by their number of terms."""
    terms, more = divmod(size, w.stride)
    if more:
        yield _Phases(w, 0, more, terms + 1)
    if terms:
        yield _Phases(w, more, w.stride, terms)


def _phase(x: UOp, p: _Phases, factors: bool) -> UOp:
    """Return the positions in the window that a group of phases sums; the phases become a new last axis.

    ``factors``: return a product as the product of such views of its factors.
    """
    if factors and is_product(x):
        return x.replace(src=tuple(_phase(s, p, False) for s in x.src))
    w, at = p.window, p.window.window_axis
    size = x.shape[at]
    steps = -(-size // w.stride)
    x = x.pad(tuple((0, steps * w.stride - size if a == at else 0) for a in range(x.ndim)))
    x = x.reshape((*x.shape[:at], steps, w.stride, *x.shape[at + 1 :]))
    bounds = {at: (0, p.terms), at + 1: (p.first, p.end)}
    x = x.shrink(tuple(bounds.get(a, (0, s)) for a, s in enumerate(x.shape)))
    return x.permute((*range(at + 1), *range(at + 2, x.ndim), at + 1))


def _inputs(p: _Phases) -> int:
    """Return the number of positions of each phase."""
    return -(-p.window.inputs // p.window.stride)


def _placed(x: UOp, parts: Sequence[_Phases], stored: bool = False) -> UOp:
    """Return the positions with their phases interleaved, and 0 in phases outside ``parts``; phases are the last axes
    of x. If ``stored``, the positions are stored in that order."""
    rank = x.ndim - len(parts)
    beyond = {rank + n: (p.first, p.window.stride - p.end) for n, p in enumerate(parts)}
    x = x.pad(tuple(beyond.get(a, (0, 0)) for a in range(x.ndim)))
    phases = {p.window.axis: rank + n for n, p in enumerate(parts)}
    x = x.permute(tuple(b for a in range(rank) for b in ((a, phases[a]) if a in phases else (a,))))
    x = x.alu("CONTIGUOUS") if stored else x
    inputs = {p.window.axis: p.window.inputs for p in parts}
    sizes = iter(x.shape)
    x = x.reshape(tuple(next(sizes) * (next(sizes) if a in phases else 1) for a in range(rank)))
    return x.shrink(tuple((0, inputs.get(a, s)) for a, s in enumerate(x.shape)))
