"""What a value is computed from, element by element, up to reductions: its cone in the graph."""
from __future__ import annotations

from collections.abc import Iterable

from tinsmith.ir import Op, Ops, UOp

MOST_CONE = 256  # nodes of an elementwise function that is looked through whole: a larger one is not cheap
SOURCES = (Ops.BUFFER, Ops.PARAM, Ops.CONST, Ops.VARIABLE, Ops.BIND, Ops.IOTA)


def summed(node: UOp) -> UOp:
    """What a reduction goes through, whatever shape it has there."""
    value = node.src[0]
    while value.op is Ops.RESHAPE:
        value = value.src[0]
    return value


def narrower(node: UOp) -> UOp | None:
    """The float of fewer bits that a value is made of alone, which gets memory in its place: half the bytes, and the
    type that matrix units read."""
    if node.op is not Ops.CAST or not (node.dtype.is_float and node.src[0].dtype.is_float):
        return None
    source = node.src[0]
    return source if source.dtype.itemsize < node.dtype.itemsize and source.op.kind != "movement" and (
        source.op not in SOURCES) else None


def cone_of(node: UOp, ends: tuple[Op, ...] = ()) -> dict[UOp, None]:
    """What a value is an elementwise function of, up to the reductions and other ``ends``: the nearest nodes, one more
    than MOST_CONE of them at most."""
    cone: dict[UOp, None] = {node: None}
    front = [node]
    while front and len(cone) <= MOST_CONE:
        below = dict.fromkeys(s for n in front for s in n.src if s.op is not Ops.REDUCE and s.op not in ends)
        front = [s for s in below if s not in cone][: MOST_CONE + 1 - len(cone)]
        cone.update(dict.fromkeys(front))
    return cone


def has_own_statistics(node: UOp) -> bool:
    """Whether a value is computed from reductions of something that it is itself an elementwise function of."""
    cone = cone_of(node)
    if len(cone) > MOST_CONE:
        return False
    own = {n for n in cone if n.base.op is not Ops.CONST and n.size != 1}
    return any(not own.isdisjoint(cone_of(r.src[0])) for r in reductions_of(cone))


def reductions_of(cone: Iterable[UOp]) -> frozenset[UOp]:
    """The reductions at the end of a cone."""
    return frozenset(s for n in cone for s in (n, *n.src) if s.op is Ops.REDUCE)
