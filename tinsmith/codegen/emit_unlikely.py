"""Unlikely branches: the second source of UNLIKELY is computed in a branch that is taken only if its condition holds.
"""
from __future__ import annotations

from tinsmith.codegen.emitter import Emitter
from tinsmith.codegen.roles import range_size
from tinsmith.codegen.scopes import Coords
from tinsmith.ir import Ops, UOp


def unlikely(lin: Emitter, n: UOp, coords: Coords) -> UOp:
    """Write ``UNLIKELY(c, y, z)`` as a branch around ``y``, after ``c`` and ``z``::

            acc = z
            if any lane of c:
                acc = c ? y : acc
    """
    lanes = lin.lanes(n)
    count = range_size(lanes) if lanes is not None else 1
    with lin.at_depth(lin.depth_of(n)):
        condition, usual = (lin.spread(lin.value(s, coords), count) for s in n.src[::2])
        acc = lin.accumulator(usual)
        with lin.branch(_any(lin, condition), whole=True):
            rare = lin.value(n.src[1], coords)
            chosen = lin.combine(lin.here, Ops.WHERE, n.dtype, [condition, rare, acc])
            phi = lin.force(UOp(Ops.PHI, None, (acc, chosen)))
        lin.scopes[-1].values[phi] = phi
    return phi


def _any(lin: Emitter, condition: UOp) -> UOp:
    """Return a scalar that is true if the condition holds in any lane (OR with rotations by 1/2, 1/4, … of the vector).
    """
    kind = condition.dtype
    reach = kind.count
    while reach > 1:
        reach = (reach + 1) // 2
        away = tuple((lane + reach) % kind.count for lane in range(kind.count))
        condition = lin.emit(lin.here, UOp(Ops.OR, None, (condition, lin.picked(condition, away))))
    return condition if kind.count == 1 else lin.picked(condition, (0,))
