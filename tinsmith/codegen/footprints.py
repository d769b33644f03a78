"""Footprints: what the iterations of some loops reach of a value, as boxes along one loop or a sum of two."""
from __future__ import annotations

from typing import NamedTuple

from tinsmith.codegen import matrix
from tinsmith.codegen.roles import Role, range_size
from tinsmith.core.dtypes import dtypes
from tinsmith.ir import Ops, UOp
from tinsmith.ir.linear import linear_form
from tinsmith.ir.uop import toposort


class Footprint(NamedTuple):
    """Ranges that enter a staged value only as one sum, ``position + low``, which takes ``size`` values."""

    ranges: tuple[UOp, ...]
    position: UOp
    low: int
    size: int


def footprints(value: UOp, inside: list[UOp]) -> list[Footprint]:
    """``inside`` grouped into boxes: y and ky of y + ky, or x and kx of x*stride - kx, are one box."""
    boxes: list[Footprint] = []
    left = list(inside)
    sums = matrix.sums([s for n in toposort(value) if n.op is Ops.LOAD for s in n.src[1:]])
    while left:
        r = left.pop(0)
        partner = next((p for p in left if _enter_as_sum(sums, r, p) is not None), None)
        if partner is None:
            boxes.append(Footprint((r,), r, 0, range_size(r)))
            continue
        left.remove(partner)
        k, unit, other = _enter_as_sum(sums, r, partner) or (0, r, r)
        reach = k * (range_size(other) - 1)
        low = min(reach, 0)
        boxes.append(Footprint((unit, other), (unit + other * k - low).simplify(), low, range_size(unit) + abs(reach)))
    return boxes


def _enter_as_sum(sums: list[UOp], a: UOp, b: UOp) -> tuple[int, UOp, UOp] | None:
    """(k, unit, other) if a value, with these sums in its places, depends on a and b only through unit + k*other."""
    if a.arg[1].expanded or b.arg[1].expanded:
        return None
    for unit, other in ((a, b), (b, a)):
        ratios = {matrix.ratio(root, unit, other) for root in sums}
        ratios.discard(None)
        if len(ratios) == 1:
            k = ratios.pop()
            if isinstance(k, int) and 0 < abs(k) < range_size(unit):  # neighbours overlap: there is something to share
                return k, unit, other
    return None


def memory_order(value: UOp, box: Footprint) -> tuple[int, int]:
    """Loops of a tile in the order of the memory it is copied from, so that copying walks along it."""
    lead = box.ranges[0]
    load = next((n for n in toposort(value) if n.op is Ops.LOAD), None)
    stride = 0 if load is None else abs(linear_form(load.src[1])[0].get(lead, 0))
    return layout_rank(lead), -stride if layout_rank(lead) == 0 else 0


def layout_rank(r: UOp) -> int:
    """A tile is stored loop by loop, then register copies, lanes fastest, so that its reader loads whole vectors."""
    return {Role.UPCAST: 1, Role.VECTOR: 2}.get(r.arg[1], 0)


def strides(value: UOp) -> dict[UOp, int]:
    """How far a step of each range goes, in the sums that a value's places are made of."""
    found: dict[UOp, int] = {}
    for n in toposort(value):
        if n.op in (Ops.ADD, Ops.MUL, Ops.RANGE) and n.dtype is dtypes.index:
            for term, factor in linear_form(n)[0].items():
                if term.op is Ops.RANGE:
                    found[term] = max(found.get(term, 0), abs(factor))
    return found
