"""Footprints: the elements of a value that some loops access, as boxes along one loop or a sum of loops."""
from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from tinsmith.core.dtypes import dtypes
from tinsmith.ir import Ops, UOp
from tinsmith.ir.algebra.linear import linear_form
from tinsmith.ir.ranges import Role, range_size
from tinsmith.ir.uop import toposort


class Footprint(NamedTuple):
    """A box along one sum ``Σ weight·range`` (the first weight is 1) with overlapping steps: ``size`` values from
    ``low`` on. The value depends on its ranges only through this sum."""

    weights: dict[UOp, int]
    low: int
    size: int

    @property
    def lead(self) -> UOp:
        return next(iter(self.weights))

    @property
    def position(self) -> UOp:
        """Return the index of an element in the box."""
        return sum((r * weight for r, weight in self.weights.items()), UOp.index(-self.low)).simplify()


def footprints(value: UOp, inside: list[UOp]) -> list[Footprint]:
    """Group ``inside`` into boxes: y and ky of y + ky, or x and kx of x*stride - kx, form one box."""
    boxes, left = list[Footprint](), list(inside)
    sums = _sums(s for n in toposort(value) if n.op is Ops.LOAD for s in n.src[1:])
    while left:
        r = left.pop(0)
        pairs = ((p, unit, other) for p in left for unit, other in ((r, p), (p, r))
                 if not r.arg[1].expanded and not p.arg[1].expanded)
        found = next(((p, unit, other, k) for p, unit, other in pairs
                      if 0 < abs(k := _weight(sums, unit, other)) < range_size(unit)), None)
        if found is None:
            boxes.append(Footprint({r: 1}, 0, range_size(r)))
            continue
        partner, unit, other, k = found
        left.remove(partner)
        reach = k * (range_size(other) - 1)
        boxes.append(Footprint({unit: 1, other: k}, min(reach, 0), range_size(unit) + abs(reach)))
    return boxes


def windows(value: UOp, ranges: Sequence[UOp]) -> Iterator[Footprint]:
    """Yield, for each range as the lead, the window formed with the ranges of longer steps that overlap it."""
    sums = _sums([value])
    for lead in ranges:
        weights, size = {lead: 1}, range_size(lead)
        steps = [(k, r) for r in ranges if r is not lead and (k := _weight(sums, lead, r)) > 0]
        for k, r in sorted(steps, key=lambda step: step[0]):
            if k < size:
                weights, size = weights | {r: k}, size + k * (range_size(r) - 1)
        yield Footprint(weights, 0, size)


def _sums(roots: Iterable[UOp]) -> list[UOp]:
    """Return the integer sums inside index and guard expressions."""
    return [s for root in roots for s in ([root] if root.dtype is dtypes.index else (
        s for n in toposort(root) if n.dtype is not dtypes.index for s in n.src if s.dtype is dtypes.index))]


def _weight(sums: Sequence[UOp], unit: UOp, other: UOp) -> int:
    """Return the number of steps of ``unit`` per step of ``other``, in all sums with either; 0 if the sums disagree."""
    found = set[int]()
    for terms in (linear_form(root)[0] for root in sums):
        a, b = terms.get(unit, 0), terms.get(other, 0)
        if any((unit in t.ranges or other in t.ranges) and t is not unit and t is not other for t in terms):
            return 0
        if a or b:
            found.add(b // a if a and b % a == 0 else 0)
    return found.pop() if len(found) == 1 else 0


def memory_order(value: UOp, box: Footprint) -> tuple[int, int]:
    """Return a sort key for the loops of a tile: the order of the source memory, so that copying is sequential."""
    lead = box.lead
    load = next((n for n in toposort(value) if n.op is Ops.LOAD), None)
    stride = 0 if load is None else abs(linear_form(load.src[1])[0].get(lead, 0))
    return layout_rank(lead), -stride if layout_rank(lead) == 0 else 0


def layout_rank(r: UOp) -> int:
    """Return a range's rank in a tile's layout: loops, then register copies, then lanes (fastest), for vector loads."""
    return {Role.UPCAST: 1, Role.VECTOR: 2}.get(r.arg[1], 0)


def strides(value: UOp) -> dict[UOp, int]:
    """Return the largest stride of each range in the index sums of a value."""
    found: dict[UOp, int] = {}
    for n in toposort(value):
        if n.op in (Ops.ADD, Ops.MUL, Ops.RANGE) and n.dtype is dtypes.index:
            for term, factor in linear_form(n)[0].items():
                if term.op is Ops.RANGE:
                    found[term] = max(found.get(term, 0), abs(factor))
    return found
