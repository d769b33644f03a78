"""The one writer of stages: a value that is computed once into local memory, and is read from there.

    value(r, q)   →   load(STAGE(value(r', q'), r', q'), place)        r', q': fresh ranges that fill it

Panels, padded windows, tiles of computed values, a unit's operands and its sums, what threads share: they are the same
node and differ in their ``Side``s. What becomes a stage and with which sides is said by ``stages.py`` for the opt
STAGE, by ``matrix.py`` and ``views.py`` for the operands of units.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import NamedTuple

from tinsmith.codegen.roles import range_size
from tinsmith.codegen.streams import bind
from tinsmith.ir import Ops, UOp
from tinsmith.ir.layout import Layout, Placed
from tinsmith.ir.symbolic import simplify
from tinsmith.ir.uop import toposort


class Side(NamedTuple):
    """A dimension of a stage.

    Attributes:
        loops: what fills it, the slowest first; those of one step are none.
        place: where along it a reader finds its element.
        free: further steps of its first loop that nothing fills, so that what lies across is in other banks.
    """

    loops: Sequence[UOp]
    place: UOp
    free: int = 0


def from_stage(value: UOp, sides: Sequence[Side], table: Mapping[UOp, UOp] | None = None, valid: UOp | None = None,
               layout: Layout | None = None, depth: int = 1) -> UOp:
    """The load of a value from its stage.

    Args:
        table: the value's ranges in terms of those that fill the stage.
        valid: where an element is filled with the value; its loads give 0 elsewhere.
        layout: how it lies, if not as the sides say; ``depth``: slots.
    """
    copy, loops, sizes, place = value, list[UOp](), list[int](), UOp.index(0)
    for r, at in (table or {}).items():
        copy = bind(copy, r, at)
    if valid is not None:
        copy = _guarded(copy, valid)
    for side in sides:
        own = [r for r in side.loops if r.op is Ops.RANGE]
        steps = [range_size(r) + side.free * (r is own[0]) for r in own]
        place = place * prod(steps) + side.place
        loops, sizes = [*loops, *own], [*sizes, *steps]
    placed = Placed(tuple(sizes), layout, depth)
    return UOp(Ops.STAGE, value.dtype.ptr(), (simplify(copy), *loops), placed).load(place.simplify())


def under_names(load: UOp, names: dict[UOp, UOp]) -> UOp:
    """What reads the same stage where a place's ranges have other names."""
    return load.replace(src=(load.src[0], load.src[1].substitute(names).simplify()))


def _guarded(value: UOp, valid: UOp) -> UOp:
    """A value whose loads, as far as a condition's ranges move them, give 0 where it is false."""
    found = [n for n in toposort(value) if n.op is Ops.LOAD and not valid.ranges.isdisjoint(n.src[1].ranges)]
    return value.substitute({n: n.replace(src=(*n.src[:2], n.src[2] & valid if len(n.src) > 2 else valid))
                             for n in found})
