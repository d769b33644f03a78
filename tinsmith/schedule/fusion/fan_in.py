"""Backward slices of a value: below its views, and its cone (the elementwise fan-in down to the nearest reductions)."""
from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import NamedTuple

from tinsmith.codegen.lower.indexing import ZERO, Index, move
from tinsmith.core.dtypes import DType
from tinsmith.ir import Op, Ops, UOp
from tinsmith.ir.ops import FOR_GRADIENTS
from tinsmith.ir.structure import contraction, count_of, unrepeated_size
from tinsmith.schedule.values import SOURCES, STAGED, Views, size_of, views_of
from tinsmith.target.schedule_costs import Costs

MOST_CONE = 256  # nodes of a cone that is analyzed; a larger elementwise function counts as expensive


class Read(NamedTuple):
    """The value that a factor of a product reads, and the index at which it reads it.

    Attributes:
        views: the views and casts between the factor and the value.
        place: the index into the value, in ranges of the product's axes.
        slides: the ranges that windows slide along.
    """

    views: Views
    place: Index
    slides: frozenset[UOp]

    @property
    def source(self) -> UOp:
        return self.views.source


def ranges_of(shape: Sequence[int]) -> Index:
    """Return one range per axis, numbered like the axis; a constant 0 for an axis of size 1."""
    return tuple(UOp.range(s, n, None) if s > 1 else ZERO for n, s in enumerate(shape))


def read_by(factor: UOp, index: Index, through: Callable[[UOp], bool], takes: Callable[[UOp], bool]) -> Read:
    """Return the value that ``factor`` reads below the views and casts for which ``through`` holds, with its index.

    If ``takes`` holds for the value, its shape is that after the lowest reshapes, and casts are moved above these
    reshapes.
    """
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


def columns_of(product: UOp, axes: Sequence[int]) -> int:
    """Return the number of rows or of columns, whichever are fewer, of a matrix of sums of products over ``axes``: of
    the elements along axes that one factor repeats. It is 1 for sums per channel, as of a depthwise convolution."""
    index = ranges_of(product.shape)
    kept = frozenset().union(*(i.ranges for a, i in enumerate(index) if a not in axes))
    a, b = (frozenset().union(*(i.ranges for i in read_by(f, index, is_view, lambda v: False).place))
            for f in product.src)
    return min(count_of(kept & a - b), count_of(kept & b - a))


def below_reshapes(value: UOp) -> UOp:
    """Return the value below reshapes: the same elements in the same order, in the shape in which they are computed."""
    return views_of(value, lambda n: n.op is Ops.RESHAPE).source


def narrower(node: UOp) -> UOp | None:
    """Return the float of fewer bits that ``node`` is a cast of, else None.

    The narrower value is stored instead of ``node``: half the bytes, and the dtype that matrix units read.
    """
    if node.op is not Ops.CAST or not (node.dtype.is_float and node.src[0].dtype.is_float):
        return None
    source = node.src[0]
    return source if source.dtype.itemsize < node.dtype.itemsize and source.op.kind != "movement" and (
        source.op not in SOURCES) else None


def rounded(node: UOp, reader: Mapping[UOp, UOp | None]) -> list[UOp]:
    """Return the values from the float of fewer bits that ``node`` is only read as, down to ``node``'s reader; empty if
    there is none. Between them are casts, operations with constants, and reshapes.

    Args:
        reader: the only reader of each value.
    """
    chain, value = list[UOp](), node
    while (above := reader.get(value)) is not None and node.dtype.is_float and above.dtype.is_float:
        beside = [s for s in above.src if s is not value]
        if not (above.op is Ops.RESHAPE or (above.op.elementwise and all(s.base.op is Ops.CONST for s in beside))):
            return []
        chain.insert(0, above)
        if above.dtype.itemsize < node.dtype.itemsize:
            return chain
        value = above
    return []


def cone_of(node: UOp, ends: tuple[Op, ...] = (), stored: Container[UOp] = ()) -> dict[UOp, None]:
    """Return the cone of ``node``: the nodes it is an elementwise function of, down to reductions, ops in ``ends`` and
    values that are ``stored``.

    Breadth first; at most MOST_CONE + 1 nodes.
    """
    cone: dict[UOp, None] = {node: None}
    front = [node]
    while front and len(cone) <= MOST_CONE:
        below = dict.fromkeys(s for n in front for s in n.src
                              if s.op is not Ops.REDUCE and s.op not in ends and s not in stored)
        front = [s for s in below if s not in cone][: MOST_CONE + 1 - len(cone)]
        cone.update(dict.fromkeys(front))
    return cone


def has_own_statistics(node: UOp, ends: tuple[Op, ...] = ()) -> bool:
    """Return True if a value depends on a reduction of one of its own elementwise inputs (as softmax does), without
    what lies behind ops in ``ends``."""
    cone = cone_of(node, ends)
    if len(cone) > MOST_CONE:
        return False
    own = {n for n in cone if n.base.op is not Ops.CONST and n.size != 1}
    return any(not own.isdisjoint(cone_of(r.src[0])) for r in reductions_of(cone))


def is_computed_in_rows(product: UOp, factor: UOp, inner: Callable[[UOp], bool]) -> bool:
    """Return True if blocks of rows of ``factor``, an operand of the contraction ``product``, can be computed next to
    their reader as tiles of another contraction. A row is along the summed axes of ``product``.

    Of the contractions below ``factor`` (``inner`` holds for them), one operand must have the summed axes, and all else
    that it has must be shared with the other operand (heads and batches in attention).
    """
    index = ranges_of(product.src[0].shape)
    summed = frozenset().union(*(index[a].ranges for a in product.arg[1]))
    found = _reductions_at(factor, index)
    slides = any(summed & i.ranges and i.ranges - summed for _, place in found for i in place)  # adjacent rows overlap
    return not slides and all(_rows_by_columns(r, place, summed) for r, place in found if inner(r))


def _rows_by_columns(inner: UOp, place: Index, columns: frozenset[UOp]) -> bool:
    """Return True if one operand of the contraction ``inner`` has all ``columns``, the other its other ranges."""
    body = inner.src[0]
    while body.op is Ops.CAST:
        body = body.src[0]
    if body.op is not Ops.MUL:
        return False
    a, b = (_ranges_read(s, tuple(ZERO if n in inner.arg[1] else i for n, i in enumerate(place))) for s in body.src)
    return any(columns.isdisjoint(other) and side - columns <= other for side, other in ((a, b), (b, a)))


def _ranges_read(value: UOp, index: Index) -> frozenset[UOp]:
    """Return the ranges of ``index`` that the value below views depends on."""
    return frozenset().union(*(i.ranges for i in read_by(value, index, is_view, lambda n: False).place))


def is_view(node: UOp) -> bool:
    """Return True for a view or cast, through which a value is read."""
    return node.op.kind == "movement" or node.op is Ops.CAST


def _reductions_at(factor: UOp, index: Index) -> list[tuple[UOp, Index]]:
    """Return the reductions at the end of the cone of ``factor``, each with its index; of a cone beyond 2 · MOST_CONE
    nodes, those that are found first."""
    found: dict[tuple[UOp, Index], None] = {}
    seen: set[tuple[UOp, Index]] = set()
    stack = [(factor, index)]
    while stack and len(seen) <= 2 * MOST_CONE:
        node, at = stack.pop()
        if (node, at) in seen:
            continue
        seen.add((node, at))
        if node.op is Ops.REDUCE:
            found[node, at] = None
        elif node.op.kind == "movement":
            stack.append((node.src[0], move(node, at)[0]))
        elif node.op.elementwise or node.op in (Ops.CONTIGUOUS, *FOR_GRADIENTS):
            stack += [(s, at) for s in node.src]
    return list(found)


def reductions_of(cone: Iterable[UOp]) -> frozenset[UOp]:
    """Return the reductions at the end of a cone."""
    return frozenset(s for n in cone for s in (n, *n.src) if s.op is Ops.REDUCE)


def inner_products(values: Iterable[UOp], matmuls: Container[UOp]) -> set[UOp]:
    """Return the contractions in ``matmuls`` that ``values`` are elementwise functions of."""
    return {r for value in values for r in _ends(value) if r in matmuls}


def _ends(value: UOp, ends: tuple[Op, ...] = ()) -> Iterable[UOp]:
    """Return the reductions that a value is, or is an elementwise function of."""
    return (value,) if value.op is Ops.REDUCE else reductions_of(cone_of(value, ends))


def is_of_scores(value: UOp, costs: Costs) -> bool:
    """Return True if ``value`` is an elementwise function of a contraction of few steps whose result is larger than its
    operands, which a chain may recompute."""
    for r in _ends(value, STAGED):
        found = contraction(r)
        if found is not None and size_of(r.src[0]) <= costs.stream_depth * size_of(r) and (
                size_of(r) >= unrepeated_size(found.a) + unrepeated_size(found.b)):
            return True
    return False


CHAIN_BLOCK = 64  # steps of a chain's loop, at least


def has_maximum(factor: UOp) -> bool:
    """Return True if a chain's computed operand is relative to the maximum of its own rows."""
    return has_own_statistics(_widened(factor).source, STAGED)


def is_chain(node: UOp, factor: UOp | None, matmuls: Container[UOp], costs: Costs) -> bool:
    """Return True if a matrix unit can hold the intermediate between two contractions in registers (as in attention).

    ``factor`` is the computed operand of contraction ``node``, made of narrow contractions, with enough rows that share
    the other operand: exponentials relative to their rows, or a function of one or two contractions and of values in
    memory.
    """
    if factor is None:
        return False
    powers, other = _widened(factor).source, _widened(next(s for s in node.src[0].src if s is not factor))
    inner = [r for r in reductions_of(cone_of(powers)) if r in matmuls]
    found = [contraction(r) for r in (node, *inner)]
    narrow = all(c is not None and max(stored_type(x).itemsize for x in (c.a, c.b)) <= costs.chain_bytes for c in found)
    repeats = [n for v in other.above if v.op is Ops.EXPAND for n, one in zip(v.shape, v.src[0].shape)
               if one == 1 and isinstance(n, int)]
    if not narrow or max(repeats, default=0) < costs.chain_rows:
        return False
    if powers.op is Ops.EXP and len(inner) == 1 and has_own_statistics(factor, STAGED):
        return True
    width = math.prod(n for v in _widened(factor).above if v.op is Ops.EXPAND for n, one in zip(v.shape, v.src[0].shape)
                      if one == 1)
    sizes = [width, *(size_of(r.src[0]) // size_of(r) for r in inner)]
    given = reductions_of(cone_of(powers, STAGED)) == set(inner) and 1 <= len(inner) <= 2
    return given and width <= costs.chain_width and not any(n % 8 for n in sizes) and (
        size_of(node.src[0]) > CHAIN_BLOCK * size_of(node))


def stored_type(factor: UOp) -> DType:
    """Return the dtype of a factor before it is widened and repeated: the narrowest one below its views and casts."""
    seen = _widened(factor)
    return min((n.dtype for n in (*seen.above, seen.source)), key=lambda dtype: dtype.itemsize)


def _widened(factor: UOp) -> Views:
    return views_of(factor, is_view)
