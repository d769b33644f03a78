"""Layout propagation: results of convolutions are stored channels last, and so is what is computed of them.

A convolution's result [N, C, H, W] is a matrix of pixels by channels. Units with staged operands read and store such
matrices as rows of channels; an image by channels needs a copy before each window, and its statistics per channel read
short runs of memory. So the product is computed over the axes [N, H, W, C], and a view restores the order that the
program has. The view moves up through all that is computed of it, to the outputs of the graph:

    permute(a) + b   →   permute(a + permute⁻¹(b))       Σ permute(a)   →   permute(Σ a)       window(permute(a)) → …

So do the program's own views of rows of channels, as of a layer norm between convolutions, or of an input that lies
channels last. A node that the view cannot pass reads it as any other view. Graphs without convolutions keep their
order.

``store_normalized`` stores the 16-bit result of a product that is normalized by statistics of its channels (batch norm
and its gradient): the kernels of the statistics and of the normalized value then read it once each, and nothing that is
computed of it is stored in 32 bits.
"""
from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from tinsmith.ir import Ops, UOp
from tinsmith.ir.matrix_unit import MatrixUnit
from tinsmith.ir.ops import FOR_GRADIENTS
from tinsmith.ir.ops.op import is_product
from tinsmith.ir.structure import contraction
from tinsmith.ir.uop import toposort
from tinsmith.schedule.fusion.fan_in import (
    MOST_CONE,
    cone_of,
    ranges_of,
    read_by,
    stored_type,
)
from tinsmith.schedule.passes.rewrites import rebuilt
from tinsmith.schedule.values import STAGED
from tinsmith.target.target import Target

Order = tuple[int, ...]

# they read memory of a value in its own order, or define it
_FIXED = (Ops.COPY, Ops.HOST, Ops.ASSIGN, Ops.SCATTER, Ops.SCAN, Ops.HISTOGRAM, Ops.GATHER)


def propagate_layouts(roots: Sequence[UOp], target: Target, kept: Collection[UOp] | None = None) -> list[UOp]:
    """Return the graph with convolutions of dtypes that a staged unit multiplies computed channels last.

    Values that are copied, assigned or indexed keep the order of their axes, and so do those in ``kept``.

    Args:
        kept: default: the roots.
    """
    units = _units(target)
    if not units:
        return list(roots)
    order = toposort(roots)
    fixed = frozenset({*(roots if kept is None else kept), *(s for n in order if n.op in _FIXED for s in n.src)})
    types = frozenset((u.a, u.acc) for u in units)
    if not any(n.op is Ops.PERMUTE or n.op is Ops.WINDOW for n in order):
        return list(roots)
    pass_ = _Propagation(types, target.bulk_copy, fixed, any(n.op in (Ops.WINDOW, Ops.UNWINDOW) for n in order))
    return rebuilt(roots, pass_.rule)


def orders_computed(values: Sequence[UOp], free: Sequence[bool], target: Target) -> list[Order | None]:
    """Return for each value of a graph the order of its axes in memory that costs no permutation, if it may be chosen.

    Args:
        free: True for values that may be stored in any order.

    Returns:
        Axes, the one with the largest stride first. None for a value whose order must stay, that no
        convolution is below, or that is no permutation of what a kernel computes.
    """
    if not any(free) or not _units(target):
        return [None] * len(values)
    roots = rebuilt(values, lambda node, n: node.src[0] if n.op in FOR_GRADIENTS else node)
    kept = frozenset(r for r, f in zip(roots, free) if not f)
    found = propagate_layouts(roots, target, kept)
    return [_order_below(new) if r not in kept and new is not r else None for r, new in zip(roots, found)]


def _order_below(value: UOp) -> Order | None:
    """Return the order of a value's axes below the permutations at its top; None if another view is below."""
    order = tuple(range(value.ndim))
    while value.op is Ops.PERMUTE:
        order = tuple(value.arg[a] for a in order)
        value = value.src[0]
    while value.op is Ops.RESHAPE:
        value = value.src[0]
    return None if value.op.kind == "movement" or value.op is Ops.BUFFER else _inverse(order)


def _units(target: Target) -> list[MatrixUnit]:
    return [u for u in target.units if u.tiles and u.turned] if target.bulk_copy else []


def store_normalized(roots: Sequence[UOp], target: Target) -> list[UOp]:
    """Return the graph with 16-bit results of products stored if they are normalized by statistics of their channels.

    If masks or sums of other values follow that are expensive to compute again, their result is stored, too: as an
    epilogue of the product, their reads would stall its matrix unit.
    """
    if not _units(target):
        return list(roots)
    order = toposort(roots)
    readers: dict[UOp, list[UOp]] = {}
    for n in order:
        for s in dict.fromkeys(n.src):
            readers.setdefault(s, []).append(n)
    behind: dict[UOp, _Forward] = {}
    found = {s for v in order if _is_rounded_product(v) and _is_normalized(v, readers, behind)
             for s in _to_store(v, readers)}
    return rebuilt(roots, lambda node, n: node.contiguous() if n in found else node)


_Readers = Mapping[UOp, Sequence[UOp]]


class _Forward(NamedTuple):
    """The elementwise functions of a value, and the reductions of those."""

    values: set[UOp]
    reductions: set[UOp]


def _forward(value: UOp, readers: _Readers) -> _Forward:
    found = _Forward({value}, set())
    front = [value]
    while front:
        for n in readers.get(front.pop(), ()):
            if n.op is Ops.REDUCE:
                found.reductions.add(n)
            elif n not in found.values and _is_function(n):
                found.values.add(n)
                front.append(n)
    return found


def _is_function(node: UOp) -> bool:
    return node.op.kind == "movement" or ((node.op.elementwise or node.op in FOR_GRADIENTS) and not is_product(node))


def _is_normalized(value: UOp, readers: _Readers, behind: dict[UOp, _Forward]) -> bool:
    """Return True if a function of ``value`` is combined with a statistic of its channels."""
    own = _forward(value, readers)
    for r in own.reductions:
        if _is_apart(r):
            if r not in behind:
                behind[r] = _forward(r, readers)
            if not own.values.isdisjoint(behind[r].values):
                return True
    return False


def _to_store(value: UOp, readers: _Readers) -> set[UOp]:
    """Return what is stored of a product: the crop that all readers read, and the function of it that all of them read,
    if that is expensive to compute again."""
    crop = value
    while len(readers[crop]) == 1 and readers[crop][0].op in (Ops.RESHAPE, Ops.SHRINK):
        (crop,) = readers[crop]
    top = crop
    while len(readers[top]) == 1 and _is_function(readers[top][0]) and readers[top][0].size == crop.size:
        (top,) = readers[top]
    while top is not crop and (top.op.kind == "movement" or top.op in (Ops.CAST, *FOR_GRADIENTS)):
        top = next(s for s in top.src if s.size == top.size)
    return {crop, top} if len(cone_of(top, STAGED)) > MOST_CONE else {crop}


def _is_apart(r: UOp) -> bool:
    """Return True for a reduction, not of products, whose elements are not contiguous: axes inside are kept."""
    long = [a for a, s in enumerate(r.src[0].shape) if s != 1]
    axes = [a for a in r.arg[1] if a in long]
    return not is_product(r.src[0]) and axes != long[len(long) - len(axes):]


def _is_rounded_product(value: UOp) -> bool:
    """Return True for a product rounded to 16 bits, or a rounded sum of products, as the gradient of a value that two
    convolutions read."""
    if value.op is not Ops.CAST or value.dtype.itemsize != 2:
        return False
    terms = [value.src[0]]
    while terms:
        term = terms.pop()
        if term.op is Ops.ADD:
            terms += term.src
        elif term.op.kind == "movement" or term.op is Ops.CONTIGUOUS:
            terms.append(term.src[0])
        elif contraction(term) is None:
            return False
    return True


@dataclass
class _Propagation:
    """The state of the pass.

    Attributes:
        types: operand and accumulator dtypes of staged units.
        vector: bytes that rows of channels must be a multiple of.
        fixed: nodes that keep the order of their axes.
        windows: True for a graph with convolutions, in which any view of rows of channels moves up.
        orders: the views that move up → their orders.
        sides: results of products in the order [pixels, channels] → for each axis, the operand that has it.
    """

    types: frozenset[tuple[object, object]]
    vector: int
    fixed: frozenset[UOp]
    windows: bool
    orders: dict[UOp, Order] = field(default_factory=dict)
    sides: dict[UOp, str] = field(default_factory=dict)

    def rule(self, node: UOp, n: UOp) -> UOp:
        """Return the rewritten node; ``n`` is the original one."""
        if n in self.fixed and node.op.kind != "movement":
            return self._fixed_sum(node)
        if node.op in (Ops.WINDOW, Ops.UNWINDOW) and _is_identity(node):
            return node.src[0]
        if node.op is Ops.REDUCE:
            return self._reduce(node)
        if node.op is Ops.PERMUTE and (
                self._interleaves(node) if node.src[0] in self.sides else self.windows and _turns_rows(node)):
            self.orders[node] = node.arg
            return node
        if node.op is Ops.CAST and node.src[0] in self.sides:
            self.sides[node] = self.sides[node.src[0]]
        if node.op.kind == "movement":
            below = self.orders.get(node.src[0])
            return node if below is None else self._movement(node, node.src[0].src[0], below)
        if node.op.elementwise or node.op in (Ops.CONTIGUOUS, *FOR_GRADIENTS):
            order = next((self.orders[s] for s in node.src if s in self.orders), None)
            if order is not None and not is_product(node) and all(s.shape == node.shape for s in node.src):
                back = _inverse(order)
                return self._view(node.replace(src=tuple(self._turned(s, back) for s in node.src)), order)
        return node

    def _view(self, value: UOp, order: Order) -> UOp:
        """Return ``value`` in the given order of axes: a view that moves up, or a reshape where one suffices."""
        if order == tuple(range(len(order))):
            return value
        long = [a for a in order if value.shape[a] != 1]
        if long == sorted(long):
            return value.reshape(tuple(value.shape[a] for a in order))
        made = value.permute(order)
        self.orders[made] = order
        return made

    def _turned(self, x: UOp, order: Order) -> UOp:
        """Return ``x.permute(order)``, as a view below repetitions."""
        if x in self.orders:
            inner = tuple(self.orders[x][a] for a in order)
            return x.src[0].permute(inner)
        if x.op is Ops.EXPAND:
            return self._turned(x.src[0], order).expand(tuple(x.shape[a] for a in order))
        long = [a for a in order if x.shape[a] != 1]
        return x.reshape(tuple(x.shape[a] for a in order)) if long == sorted(long) else x.permute(order)

    # *** products ***

    def _reduce(self, node: UOp) -> UOp:
        op, axes = node.arg
        body = node.src[0]
        if body in self.orders:
            order = self.orders[body]
            return self._view(body.src[0].reduce(op, tuple(order[a] for a in axes)), order)
        while body.op is Ops.UNWINDOW:
            body = body.src[0]
        if not is_product(body) or not all(isinstance(s, int) for s in body.shape):
            return node
        sides = self._sides(node, body)
        fits = self._has_unit(node, body)
        moved = _channels_inside(sides) if fits and self._has_rows(node, sides) else None
        if moved is None and fits and body is not node.src[0]:  # the gradient of an image
            moved = _groups_inside(sides) if self._has_rows(node, sides, sides.replace(".", "")[-1:]) else None
        if moved is None and not {"a", "b"} <= set(sides):  # no matrix: windows of each channel
            moved = next((_inverse(self.orders[f]) for f in body.src if f in self.orders), None)
        if moved is None:
            self.sides |= {node: sides} if fits else {}
            return node
        back = _inverse(moved)
        return self._view(self._product(node.src[0], moved).reduce(op, tuple(back[a] for a in axes)), back)

    def _fixed_sum(self, node: UOp) -> UOp:
        """Return a reduction of a view, as a bias gradient, whose axes keep their order as a reduction below the view;
        other nodes as they are."""
        if node.op is not Ops.REDUCE or node.src[0] not in self.orders:
            return node
        moved = self._reduce(node)
        return moved.contiguous() if moved.op is Ops.RESHAPE else node

    def _product(self, x: UOp, order: Order) -> UOp:
        """Return ``x.permute(order)`` of windows over a product, as the same windows of a product over other axes."""
        if x.op is Ops.UNWINDOW:
            back, w = _inverse(order), x.arg
            return self._product(x.src[0], order).unwindow(
                replace(w, axis=back[w.axis], window_axis=back[w.window_axis]))
        return x.replace(src=tuple(self._turned(s, order) for s in x.src))

    def _sides(self, node: UOp, product: UOp) -> str:
        """Return the operand that has each axis of a sum of products: a, b, both (c), or none (a dot): a reduced axis,
        or one of size 1."""
        index = ranges_of(product.shape)
        a, b = (frozenset().union(*(i.ranges for i in read_by(f, index, _is_view, lambda v: False).place))
                for f in product.src)
        at = [i.ranges for i in index]
        return "".join("." if s == 1 else "c" if r <= a & b else "a" if r <= a else "b"
                       for s, r in zip(node.shape, at))

    def _has_unit(self, node: UOp, product: UOp) -> bool:
        return len({stored_type(f) for f in product.src}) == 1 and (
            (stored_type(product.src[0]), node.dtype) in self.types)

    def _has_rows(self, node: UOp, sides: str, inner: str = "") -> bool:
        """Return True if full vectors of channels, of the operand ``inner``, can be stored."""
        inner = inner or _inner(sides)
        row = math.prod(s for s, side in zip(node.shape, sides) if side in (inner, "c"))
        return bool(row * 2 % self.vector == 0)

    def _interleaves(self, node: UOp) -> bool:
        """Return True if a view moves the channels of a product in between its pixels."""
        sides = self.sides.get(node.src[0], "")
        return bool(sides) and _channels_inside("".join(sides[a] for a in node.arg)) is not None and (
            self._has_rows(node, "".join(sides[a] for a in node.arg)))

    # *** movement ***

    def _movement(self, node: UOp, x: UOp, order: Order) -> UOp:
        """Return a movement op on the view ``x.permute(order)`` as a view of the same op on ``x``."""
        if not all(isinstance(s, int) for s in (*node.shape, *x.shape)):
            return node
        if node.op is Ops.RESHAPE:
            return self._reshape(node, x, order)
        back = _inverse(order)
        if node.op is Ops.PERMUTE:
            return self._view(x, tuple(order[a] for a in node.arg))
        if node.op in (Ops.WINDOW, Ops.UNWINDOW):
            w = node.arg
            arg: object = replace(w, axis=order[w.axis], window_axis=order[w.window_axis])
        elif node.op is Ops.FLIP:
            arg = tuple(sorted(order[a] for a in node.arg))
        elif node.op in (Ops.EXPAND, Ops.PAD, Ops.SHRINK):
            arg = tuple(node.arg[a] for a in back)
        else:
            return node
        return self._view(node.replace(src=(x,), arg=arg), order)

    def _reshape(self, node: UOp, x: UOp, order: Order) -> UOp:
        """Return a reshape of the view; the view is passed if all axes that are merged are adjacent in ``x``."""
        parts = _segments(node.src[0].shape, node.shape)
        if parts is None:
            return node
        runs = list[tuple[tuple[int, ...], range]]()
        for old, new in parts:
            places = tuple(order[a] for a in old if node.src[0].shape[a] != 1)
            between = [p for p in range(min(places), max(places)) if x.shape[p] != 1] if places else []
            if list(places[:-1]) != between:
                return node
            runs.append((places or (order[old[0]],), new))
        runs.sort(key=lambda run: run[0])
        inner = [a for _, new in runs for a in new]
        return self._view(x.reshape(tuple(node.shape[a] for a in inner)), _inverse(tuple(inner)))


def _is_view(node: UOp) -> bool:
    return node.op.kind == "movement" or node.op is Ops.CAST


def _turns_rows(node: UOp) -> bool:
    """Return True for a view that moves the last axis of what is below in front of two others: channels of images that
    lie in rows in memory, or are computed in rows. (The transposed keys of attention are moved in front of one.)"""
    rank = node.ndim
    return 0 < node.arg.index(rank - 1) < rank - 2 and all(isinstance(s, int) and s > 1 for s in node.shape)


def _is_identity(node: UOp) -> bool:
    """Return True for windows of one position at every position, as of a 1×1 convolution."""
    w = node.arg
    return bool(node.shape[w.window_axis] == 1 and w.stride == 1 and w.inputs == w.outputs)


def _inverse(order: Order) -> Order:
    return tuple(order.index(a) for a in range(len(order)))


def _inner(sides: str) -> str:
    """Return the operand that has the channels: the one that does not have the last axis."""
    last = sides.replace(".", "").replace("c", "")[-1:]
    return {"a": "b", "b": "a"}.get(last, "")


def _channels_inside(sides: str) -> Order | None:
    """Return the order of axes that moves channels behind pixels; None if no channel lies between pixels.

    >>> _channels_inside("a.baa..."), _channels_inside("aab")
    ((0, 1, 3, 4, 5, 6, 7, 2), None)
    """
    inner = _inner(sides)
    outer = {"a": "b", "b": "a"}.get(inner, "")
    if not inner or inner not in sides or outer not in sides[: sides.index(inner)]:
        return None
    rank = {"c": 1, inner: 2}
    return tuple(sorted(range(len(sides)), key=lambda a: rank.get(sides[a], 0)))


def _groups_inside(sides: str) -> Order | None:
    """Return the order of axes that moves groups of channels, which both operands have, behind pixels, where channels
    are last; None if no group lies between pixels.

    >>> _groups_inside("acaab"), _groups_inside("caab")
    ((0, 2, 3, 1, 4), None)
    """
    inner = sides.replace(".", "")[-1:]
    outer = {"a": "b", "b": "a"}.get(inner, "")
    group = sides.find("c")
    if not outer or group < 0 or outer not in sides[:group] or outer not in sides[group:]:
        return None
    rank = {"c": 1, inner: 2}
    return tuple(sorted(range(len(sides)), key=lambda a: rank.get(sides[a], 0)))


def _segments(old: Sequence[int], new: Sequence[int]) -> list[tuple[range, range]] | None:
    """Return the smallest runs of axes of two shapes that have as many elements each; axes of size 1 belong to the run
    before them. None if a size is 0.

    >>> _segments((8, 64, 7, 7), (8, 1, 64, 49))
    [(range(0, 1), range(0, 2)), (range(1, 2), range(2, 3)), (range(2, 4), range(3, 4))]
    """
    if 0 in old or 0 in new or not old or not new:
        return None
    found = list[tuple[range, range]]()
    i = j = 0
    while i < len(old) and j < len(new):
        first, second = i, j
        i, j, m, n = i + 1, j + 1, old[i], new[j]
        while m != n:
            if m < n:
                m, i = m * old[i], i + 1
            else:
                n, j = n * new[j], j + 1
        while i < len(old) and old[i] == 1:
            i += 1
        while j < len(new) and new[j] == 1:
            j += 1
        found.append((range(first, i), range(second, j)))
    return found
