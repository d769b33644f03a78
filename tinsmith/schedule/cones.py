"""What a value is computed from: below its views, and element by element up to reductions, its cone in the graph."""
from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from tinsmith.codegen.indexing import ZERO, Index, move
from tinsmith.codegen.render.costs import Costs
from tinsmith.core.dtypes import DType
from tinsmith.ir import Op, Ops, UOp
from tinsmith.ir.structure import contraction

MOST_CONE = 256  # nodes of an elementwise function that is looked through whole: a larger one is not cheap
SOURCES = (Ops.BUFFER, Ops.PARAM, Ops.CONST, Ops.VARIABLE, Ops.BIND, Ops.IOTA)


def size_of(node: UOp) -> int:
    """The elements of a value, the most that it can have."""
    size = node.size
    return int(size.vmax if isinstance(size, UOp) else size)


class Views(NamedTuple):
    """Views and casts above a value, the last applied first."""

    above: tuple[UOp, ...]
    source: UOp

    def of(self, source: UOp) -> UOp:
        """The same views, and casts, of another source."""
        for n in reversed(self.above):
            cast = n.op is Ops.CAST
            source = source.cast(n.dtype) if cast else UOp(n.op, None, (source, *n.src[1:]), n.arg)
        return source


def views_of(value: UOp, through: Callable[[UOp], bool]) -> Views:
    """A value as views of what lies below the nodes for which ``through`` holds."""
    above = list[UOp]()
    while through(value):
        above.append(value)
        value = value.src[0]
    return Views(tuple(above), value)


class Read(NamedTuple):
    """What a factor of a product reads, and where.

    Attributes:
        views: of the source, and casts.
        place: of the source, in ranges of the product's axes.
        slides: the ranges that windows slide along.
    """

    views: Views
    place: Index
    slides: frozenset[UOp]

    @property
    def source(self) -> UOp:
        return self.views.source


def ranges_of(shape: Sequence[int]) -> Index:
    """A range for each axis, which has its number."""
    return tuple(UOp.range(s, n, None) if s > 1 else ZERO for n, s in enumerate(shape))


def read_by(factor: UOp, index: Index, through: Callable[[UOp], bool], takes: Callable[[UOp], bool]) -> Read:
    """What is read below the views and casts for which ``through`` holds, in the shape that the lowest reshapes give it
    where ``takes`` holds for it."""
    above, value, slides = list[tuple[UOp, Index]](), factor, frozenset[UOp]()
    while through(value):
        above.append((value, index))
        if value.op in (Ops.WINDOW, Ops.UNWINDOW):
            at = [index[a].ranges for a in (value.arg.axis, value.arg.window_axis)]
            slides |= at[0] | at[1] if all(at) else frozenset()
        index = index if value.op is Ops.CAST else move(value, index)[0]
        value = value.src[0]
    casts = list[UOp]()
    while above and above[-1][0].op in (Ops.RESHAPE, Ops.CAST) and takes(value):
        view, at_view = above.pop()
        casts += [view] if view.op is Ops.CAST else []
        value, index = (value, index) if view.op is Ops.CAST else (value.reshape(view.shape), at_view)
    return Read(Views((*(v for v, _ in above), *reversed(casts)), value), index, slides)


def below_reshapes(value: UOp) -> UOp:
    """The same elements in the same order, in the shape that they were computed in."""
    return views_of(value, lambda n: n.op is Ops.RESHAPE).source


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


def is_chain(node: UOp, factor: UOp | None, contracts: Mapping[UOp, bool], costs: Costs) -> bool:
    """Whether a unit may hold what is between a contraction and the one that its computed factor is made of."""
    if factor is None:
        return False
    powers, other = _widened(factor).source, _widened(next(s for s in node.src[0].src if s is not factor))
    inner = [r for r in reductions_of(cone_of(powers)) if contracts[r]]
    found = [contraction(r) for r in (node, *inner)]
    narrow = all(c is not None and max(stored_type(x).itemsize for x in (c.a, c.b)) <= costs.chain_bytes for c in found)
    repeats = [n for v in other.above if v.op is Ops.EXPAND for n, one in zip(v.shape, v.src[0].shape)
               if one == 1 and isinstance(n, int)]
    return (powers.op is Ops.EXP and len(inner) == 1 and narrow and has_own_statistics(factor)
            and max(repeats, default=0) >= costs.chain_rows)


def stored_type(factor: UOp) -> DType:
    """The type of a factor before it is widened and repeated: that of the fewest bytes on its way."""
    seen = _widened(factor)
    return min((n.dtype for n in (*seen.above, seen.source)), key=lambda dtype: dtype.itemsize)


def _widened(factor: UOp) -> Views:
    return views_of(factor, lambda n: n.op.kind == "movement" or n.op is Ops.CAST)
