"""The order of axes in which a value is stored: the one that its kernels access along memory, by price.

A kernel's loops run in the order of the value that it stores, and its lanes along the last axis. Fusion stores a value
over its own axes. Where the kernels that read it run along another axis (windows of images that are stored channels
last, whose maxima two kernels read), this value, and all that is read to compute it, is accessed across memory. Then it
is stored in the order of its readers; and if a copy in that order is stored anyway, as an output, in that copy:

    b = CONTIGUOUS(permute(a)), f(a)   →   b = CONTIGUOUS(permute(a)), f(permute⁻¹(b))

An element that is accessed along memory costs 1, across memory ``Costs.across``. Readers are asked before what they
read, so that a chain of values takes the order of its last one.
"""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from tinsmith.codegen.lower.indexing import Index, flatten, moved_back, place_in
from tinsmith.core.settings import settings
from tinsmith.ir import Ops, UOp
from tinsmith.ir.algebra.sizes import linear_form
from tinsmith.ir.ops import FOR_GRADIENTS
from tinsmith.ir.ops.op import is_product
from tinsmith.ir.structure import contraction, count_of
from tinsmith.schedule.fusion.analysis import KernelGroup, KernelInput, Ranges, is_fixed
from tinsmith.schedule.fusion.fan_in import columns_of, ranges_of
from tinsmith.schedule.fusion.fusion import Fusion, fused
from tinsmith.schedule.fusion.rules import Verdict
from tinsmith.schedule.passes.rewrites import rebuilt
from tinsmith.schedule.values import STAGED, size_of, views_of
from tinsmith.target.schedule_costs import Costs

MOST_COLUMNS: Final = 4  # of a sum of products that is no matrix: the phases of a strided window
# rules that store values which something reads in the order of their own axes
_PINNED: Final = frozenset({"output", "kind", "gathered", "copied", "host function", "sequential", "seam"})


class _Copy(NamedTuple):
    """A stored copy of a value in another order, and the view of it that has the axes of the value.

    Attributes:
        same: an output with the same elements in the same order, which is this copy then.
    """

    node: UOp
    back: UOp
    same: UOp | None = None


def fused_in_best_orders(roots: Sequence[UOp], costs: Costs) -> tuple[list[UOp], Fusion]:
    """Return the roots of a graph whose values are stored in the cheapest orders, and the fusion decision for it."""
    fusion = fused(roots, costs)
    chosen = _Orders(fusion).choices() if costs.across and not settings.NOOPT else {}
    if not chosen:
        return list(roots), fusion
    made: dict[UOp, UOp] = {}
    same: dict[UOp, UOp] = {}
    reasons: dict[UOp, Verdict] = {}

    def stored(node: UOp, n: UOp) -> UOp:
        if n in same:
            return made[same[n]].reshape(n.shape)
        if n not in chosen:
            return node
        copy = chosen[n]
        value, new = (n.src[0], node.src[0]) if n.op is Ops.CONTIGUOUS else (n, node)
        above = views_of(copy.node.src[0], lambda v: v is not value)
        made[copy.node] = found = copy.node.replace(src=(above.of(new),))
        if copy.same is None:
            reasons[found] = fusion.stored()[n]
        else:
            same[copy.same] = copy.node
        return _restored(above.above, found)

    new = [made[same[r]] if r in same else found for r, found in zip(roots, rebuilt(roots, stored))]
    return new, fused(new, costs, reasons)


def _restored(above: Sequence[UOp], copy: UOp) -> UOp:
    """Return a copy of views of a value in the order of the value."""
    for view in above:
        copy = copy if view.op in FOR_GRADIENTS else moved_back(view, copy)
    return copy


class _Orders:
    """The choice of orders for the stored values of one graph.

    Attributes:
        reads: kernel → the values in memory that it reads, each with its read.
        lanes: kernel → the range along which its lanes run.
    """

    def __init__(self, fusion: Fusion) -> None:
        self.fusion, self.costs, self.roots, self.stored = fusion, fusion.costs, set(fusion.roots), fusion.stored()
        self.reads: dict[int, list[tuple[UOp, KernelInput]]] = {}
        self.lanes: dict[int, UOp | None] = {}
        decisions = fusion.decisions
        for n in self.stored:
            if (group := decisions[n].group) is not None:
                self.lanes[id(group)] = max(group.ranges, key=lambda r: r.arg[0], default=None)
        between = [(n, r) for n in self.stored for r in decisions[n].requests.values()]
        for value, r in (*fusion.inputs, *between):
            self.reads.setdefault(id(r.group), []).append((value, r))

    def choices(self) -> dict[UOp, _Copy]:
        """Return the values that are stored in another order, each with its copy."""
        found = ((n, self._cheapest(n)) for n in reversed(self.stored) if self._may_move(n))
        return {n: copy for n, copy in found if copy is not None}

    def _may_move(self, n: UOp) -> bool:
        group = self.fusion.decisions[n].group
        free = n.op not in STAGED and n.op.kind != "movement" and self.stored[n].rule.name not in _PINNED
        return (n not in self.roots and (free or _is_stored_sum(n)) and is_fixed(n) and n.ndim > 1
                and group is not None and not (group.stream or group.tiles)
                and all(r.rows is None and r.group.ranges for r in self.fusion.decisions[n].requests.values()))

    def _cheapest(self, n: UOp) -> _Copy | None:
        """Return the copy in which a value is stored; None: over its own axes."""
        decision = self.fusion.decisions[n]
        requests, group = list(decision.requests.values()), decision.group
        assert group is not None
        wanted = list(self._wanted(n, requests))
        options = {r.group.root: copy for r in requests if (copy := _copy_in(r.group.root, n)) is not None}
        if not wanted and not options:
            return None
        moved = [] if _is_matrix(n) else [_moved_inside(n, a) for a in wanted]
        kept = _Copy(n, n)
        best = min((kept, *options.values(), *moved), key=lambda copy: self._price(n, group, requests, copy))
        self.lanes[id(group)] = _lanes_of(n, group, best)
        return None if best is kept else best

    def _wanted(self, n: UOp, requests: Sequence[KernelInput]) -> Iterator[int]:
        """Yield the axes along which the lanes of readers run, other than the last one; none of one element."""
        long = [a for a, s in enumerate(n.shape) if s != 1]
        seen = {*range(n.ndim)} - {*long[:-1]}
        for r in requests:
            lanes = self.lanes.get(id(r.group))  # None: nothing runs along an axis
            for a, i in enumerate(r.index):
                if a not in seen and (i is lanes or (lanes in i.ranges and linear_form(i)[0].get(lanes) == 1)):
                    seen.add(a)
                    yield a

    def _price(self, n: UOp, group: KernelGroup, requests: Sequence[KernelInput], copy: _Copy) -> int:
        """Return the price of the accesses that depend on the order in which a value is stored."""
        total, lanes = 0, _lanes_of(n, group, copy)
        for r in requests:
            if r.group.root is not copy.same:
                again = size_of(n) if _views_between(r.group.root, n) is not None else 0  # stored twice
                total += self._price_of(copy, r.index, r.around, self.lanes.get(id(r.group))) + again
        for value, r in self.reads.get(id(group), ()) if not group.contraction else ():
            if value.op is Ops.BUFFER or (value.op.kind != "movement" and not self._may_move(value)):
                total += self._price_of(_Copy(value, value), r.index, r.around, lanes)
        return total

    def _price_of(self, copy: _Copy, index: Index, around: Ranges, lanes: UOp | None) -> int:
        """Return the price of a read inside the reductions ``around``: lanes can run along a long one of these, too."""
        address = _address(copy, index)
        touched = frozenset().union(*(term.ranges for term in address))
        along = lanes not in touched or any(
            step == 1 and (r is lanes or (r in around and count_of((r,)) > self.costs.short_row))
            for r, step in address.items())
        return count_of(touched) * (1 if along else self.costs.across)


def _lanes_of(n: UOp, group: KernelGroup, copy: _Copy) -> UOp | None:
    """Return the range along which the lanes of a value's kernel run if it stores ``copy``."""
    own = sorted(group.ranges, key=lambda r: r.arg[0])
    ranges = iter(own)
    address = _address(copy, tuple(next(ranges) if s != 1 else UOp.index(0) for s in n.shape))
    return next((r for r in own if address.get(r) == 1), None)


def _address(copy: _Copy, index: Index) -> dict[UOp, int]:
    """Return the terms of the address of an element of a value in a copy of it."""
    place = index if copy.back is copy.node else _place(copy, index)
    return linear_form(flatten(copy.node.shape, place))[0]


def _place(copy: _Copy, index: Index) -> Index:
    base, place = place_in(copy.back, index)
    assert base is copy.node
    return place


def _views_between(copy: UOp, value: UOp) -> tuple[UOp, ...] | None:
    """Return the views between a value and a copy of all of it in another order; None if ``copy`` is none."""
    if copy.op is not Ops.CONTIGUOUS:
        return None
    seen = views_of(copy.src[0], lambda v: v is not value and v.op in (Ops.RESHAPE, Ops.PERMUTE, *FOR_GRADIENTS))
    return seen.above if seen.source is value else None


def _copy_in(root: UOp, value: UOp) -> _Copy | None:
    """Return the copy that an output is of a value, as one with the axes of the value; None if it is none."""
    above = _views_between(root, value)
    if above is None:
        return None
    ranges = ranges_of(value.shape)
    address = _address(_Copy(root, _restored(above, root)), ranges)
    if any(r not in address for r in ranges if r.op is Ops.RANGE) or len(address) > value.ndim:
        return None
    order = tuple(sorted(range(value.ndim), key=lambda a: -address.get(ranges[a], 0)))
    return _permuted(value, order)._replace(same=root)


def _is_matrix(value: UOp) -> bool:
    """Return True for a sum of products with rows and columns, whose tiles have an order of their own."""
    if contraction(value) is None:
        return False
    product = views_of(value.src[0], lambda v: v.op in (Ops.UNWINDOW, Ops.SHRINK)).source
    return not is_product(product) or columns_of(product, value.arg[1]) > MOST_COLUMNS


def _is_stored_sum(value: UOp) -> bool:
    """Return True for a sum of products per channel that a pass stores."""
    total = views_of(value, lambda v: v.op in (Ops.CONTIGUOUS, Ops.CAST)).source
    return value.op is Ops.CONTIGUOUS and total.op is Ops.REDUCE and contraction(total) is not None and (
        not _is_matrix(total))


def _moved_inside(n: UOp, axis: int) -> _Copy:
    """Return a new copy of a value with an axis moved behind the others."""
    return _permuted(n, (*(a for a in range(n.ndim) if a != axis), axis))


def _permuted(n: UOp, order: tuple[int, ...]) -> _Copy:
    """Return a new copy of a value with its axes in another order."""
    view = (n.src[0] if n.op is Ops.CONTIGUOUS else n).permute(order)
    copy = UOp(Ops.CONTIGUOUS, None, (view,))
    return _Copy(copy, moved_back(view, copy) if view.op is Ops.PERMUTE else copy)
