"""Unlikely branches: what only UNLIKELY's second source needs runs where its condition holds."""
from __future__ import annotations

from tinsmith.codegen.emitter import Emitter
from tinsmith.codegen.roles import range_size
from tinsmith.codegen.scopes import Coords
from tinsmith.ir import Ops, UOp


def unlikely(lin: Emitter, n: UOp, coords: Coords) -> UOp:
    """The lines of ``UNLIKELY(c, y, z)``, where those of c and z are written::

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
    """Whether a condition holds in any lane: the first takes in the one half of them away, a quarter, and so on."""
    kind = condition.dtype
    reach = kind.count
    while reach > 1:
        reach = (reach + 1) // 2
        away = tuple((lane + reach) % kind.count for lane in range(kind.count))
        condition = lin.emit(lin.here, UOp(Ops.OR, None, (condition, lin.picked(condition, away))))
    return condition if kind.count == 1 else lin.picked(condition, (0,))
