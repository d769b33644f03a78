"""The builder of STAGE nodes: a value that is computed once into local memory and read from there.

    value(r, q)   →   load(STAGE(value(r', q'), r', q'), place)        r', q': fresh ranges that fill it

Panels, padded windows, tiles of computed values, a unit's operands and accumulators, and values shared by threads are
the same node with different ``Side``s. ``stages.py`` (for the opt STAGE), ``matrix_units.py`` and ``tma_boxes.py`` (for
operands of units) choose the value and its sides.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import NamedTuple

from tinsmith.codegen.transform.computed_operand import bind
from tinsmith.ir import Ops, UOp
from tinsmith.ir.algebra.symbolic import simplify
from tinsmith.ir.matrix_unit import Placed, StagedLayout
from tinsmith.ir.uop import toposort


class Side(NamedTuple):
    """A dimension of a stage.

    Attributes:
        loops: the ranges that fill the dimension, the slowest first; ranges of size 1 are omitted.
        place: the index of a reader's element along the dimension.
        free: padding, in steps of its first loop, that puts elements across the dimension into different banks.
    """

    loops: Sequence[UOp]
    place: UOp
    free: int = 0


def from_stage(value: UOp, sides: Sequence[Side], table: Mapping[UOp, UOp] | None = None, valid: UOp | None = None,
               layout: StagedLayout | None = None, depth: int = 1) -> UOp:
    """Return the load of a value from its stage.

    Args:
        table: the value's ranges in terms of the ranges that fill the stage.
        valid: the condition under which an element is filled; loads of the value give 0 elsewhere.
        layout: the layout in local memory; None: the order of ``sides``.
        depth: slots of the stage.
    """
    copy, loops, sizes, place = value, list[UOp](), list[int](), UOp.index(0)
    for r, at in (table or {}).items():
        copy = bind(copy, r, at)
    if valid is not None:
        copy = _guarded(copy, valid)
    for side in sides:
        own = [r for r in side.loops if r.op is Ops.RANGE]
        steps = [r.vmax + 1 + side.free * (r is own[0]) for r in own]
        place = place * prod(steps) + side.place
        loops, sizes = [*loops, *own], [*sizes, *steps]
    placed = Placed(tuple(sizes), layout, depth)
    return UOp(Ops.STAGE, value.dtype.ptr(), (simplify(copy), *loops), placed).load(place.simplify())


def under_names(load: UOp, names: dict[UOp, UOp]) -> UOp:
    """Return the load from the same stage with the ranges of its index renamed."""
    return load.replace(src=(load.src[0], load.src[1].substitute(names).simplify()))


def _guarded(value: UOp, valid: UOp) -> UOp:
    """Return ``value`` with ``valid`` as a further guard of the loads that depend on its ranges."""
    found = [n for n in toposort(value) if n.op is Ops.LOAD and not valid.ranges.isdisjoint(n.src[1].ranges)]
    return value.substitute({n: n.replace(src=(*n.src[:2], n.src[2] & valid if len(n.src) > 2 else valid))
                             for n in found})
