"""Rewrites before fusion: the driver ``rebuilt``, and small rewrite rules."""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tinsmith.core.dtypes import DType
from tinsmith.ir import Ops, UOp
from tinsmith.ir.ops import FOR_GRADIENTS
from tinsmith.ir.ops.op import is_product
from tinsmith.ir.uop import toposort
from tinsmith.schedule.values import SOURCES, Views, views_of

FEW_GATHERED = 0.5  # elements of a gather per element of its source, at most, to be computed alone
MOST_GATHERS, MOST_GATHERED = 8, 64  # stored values, and all values, that a gathered element is computed from, at most
_VIEWS = (Ops.RESHAPE, Ops.PERMUTE, Ops.EXPAND, Ops.FLIP)
_PARTS = (*_VIEWS, Ops.SHRINK)


def note_origin(made: UOp, of: UOp) -> None:
    """Copy the user's source lines of node ``of`` to the new nodes in ``made``."""
    if not of.origin:
        return
    stack = [made]
    while stack:
        n = stack.pop()
        if not n.origin and n.op not in (Ops.CONST, Ops.BUFFER):
            n.origin = of.origin
            stack.extend(n.src)


def rebuilt(roots: Sequence[UOp], rule: Callable[[UOp, UOp], UOp]) -> list[UOp]:
    """Return the graph rewritten bottom-up: ``rule`` gets each node over its rewritten
    sources, and the original node."""
    new: dict[UOp, UOp] = {}
    for n in toposort(roots):
        src = tuple([new.get(s, s) for s in n.src])
        node = rule(n if src == n.src else n.replace(src=src), n)
        if node is not n:
            note_origin(node, n)
            new[n] = node
    return [new.get(r, r) for r in roots]


def without_empty(roots: Sequence[UOp], device: str) -> list[UOp]:
    """Return the graph without empty values below its roots.

    A read of an empty value becomes a constant; a reduction over no elements becomes its op's identity.

    Args:
        device: the device that computes constants; constants of another device are copied to it.
    """
    def known(node: UOp, n: UOp) -> UOp:
        found = _constant(n) or node
        if found is not n and found.device is None and n.device not in (None, device) and 0 not in n.shape:
            return found.contiguous().copy_to(str(n.device))
        return found

    return [r if 0 in r.shape else new for r, new in zip(roots, rebuilt(roots, known))]


def _constant(n: UOp) -> UOp | None:
    """Return the constant that replaces an empty value, or a reduction over no elements; else None."""
    if n.op in (Ops.BUFFER, Ops.CONST) or not n.src:
        return None
    if 0 in n.shape:
        return UOp.const(n.dtype, 0).expand_to(n.shape)
    if n.op is Ops.REDUCE and 0 in n.src[0].shape:
        identity = n.arg[0].identity
        assert identity is not None
        return UOp.const(n.dtype, identity(n.dtype)).expand_to(n.shape)
    return None


def cast_below_views(roots: Sequence[UOp]) -> list[UOp]:
    """Return the graph with float casts moved below views, and without permutations that cancel out; roots stay.

        CAST(view(x))   →   view(CAST(x))        view: RESHAPE, PERMUTE, EXPAND, FLIP
        CAST(part(x))   →   part(CAST(x))        part: SHRINK, if the parts that are cast alike cover x
        CAST(CAST(x))   →   x                    if x is widened and rounded to its own dtype again
        PERMUTE(PERMUTE(x))   →   x              if the axes are in their order again

    A value that gets memory is then computed over its own axes, and stored once in 16 bits if it is
    rounded to 16 bits, for all its views. Over the axes of a view, its index would contain quotients and
    remainders and could not vectorize.
    """
    own, covered = set(roots), _covered(roots)

    def moved(node: UOp, n: UOp) -> UOp:
        if node.op is Ops.PERMUTE and n not in own:
            inner = views_of(node.src[0], lambda v: v.op in FOR_GRADIENTS).source
            return inner.src[0] if inner.op is Ops.PERMUTE and all(
                inner.arg[a] == n for n, a in enumerate(node.arg)) else node
        if node.op is not Ops.CAST or n in own or not (node.dtype.is_float and node.src[0].dtype.is_float):
            return node
        through = _PARTS if n in covered else _VIEWS
        seen = views_of(node.src[0], lambda v: v.op in through)
        source = views_of(seen.source, lambda v: v.op in FOR_GRADIENTS).source
        if source.op is Ops.CAST and source.src[0].dtype is node.dtype and node.dtype.itemsize < source.dtype.itemsize:
            return seen.of(source.src[0])
        return seen.of(seen.source.cast(node.dtype)) if seen.above else node

    return rebuilt(roots, moved)


def _covered(roots: Sequence[UOp]) -> set[UOp]:
    """Return the casts of parts of a computed value that are cast alike and together have as many elements as it."""
    found: dict[tuple[UOp, DType], list[tuple[UOp, int]]] = {}
    for n in toposort(roots):
        if n.op is Ops.CAST and n.dtype.is_float:
            seen = views_of(n.src[0], lambda v: v.op in _PARTS or (v.op is Ops.CAST and v.dtype.is_float))
            sizes = [v.size for v in seen.above]
            if any(v.op is Ops.SHRINK for v in seen.above) and all(isinstance(s, int) for s in sizes):
                found.setdefault((seen.source, n.dtype), []).append((n, min(sizes)))
    return {n for (source, _), parts in found.items() for n, _ in parts if source.op not in SOURCES
            and isinstance(source.size, int) and sum(size for _, size in parts) >= source.size}


def sum_copies(roots: Sequence[UOp]) -> list[UOp]:
    """Return the graph with reductions of values that are copied to memory reading the copy.

        Σ view(x)   →   Σ view(CONTIGUOUS(x))       if CONTIGUOUS(x) is computed anyway; view: casts and views

    A copy is made for a product, of an operand that is assembled from parts, for example. Its sum, the gradient of a
    bias, would read each part across its memory.
    """
    copied = {n.src[0] for n in toposort(roots) if n.op is Ops.CONTIGUOUS and n.src[0].op not in SOURCES}

    def through(value: UOp) -> bool:
        return value not in copied and (value.op in _VIEWS or (value.op is Ops.CAST and value.dtype.is_float))

    def of_copy(node: UOp, n: UOp) -> UOp:
        if n.op is not Ops.REDUCE or is_product(n.src[0]):
            return node
        seen = views_of(n.src[0], through)
        if seen.source not in copied:
            return node
        above, value = list[UOp](), node.src[0]
        for _ in seen.above:
            above.append(value)
            value = value.src[0]
        return reduced_below_reshape(node.replace(src=(Views(tuple(above), value).of(value.contiguous()),)))

    return rebuilt(roots, of_copy) if copied else list(roots)


def reduced_below_reshape(node: UOp) -> UOp:
    """Return a reduction of a RESHAPE as the RESHAPE of a reduction, whose loops are the axes below it; the node itself
    if the RESHAPE joins reduced axes with others."""
    view, (op, axes) = node.src[0], node.arg
    sizes = (*view.shape, *view.src[0].shape) if view.op is Ops.RESHAPE else (0,)
    if not all(isinstance(s, int) and s > 0 for s in sizes):
        return node
    below, reduced, left = list(enumerate(view.src[0].shape)), list[int](), list(enumerate(view.shape))
    while left or below:
        over, under = [left.pop(0)] if left else [], [below.pop(0)] if below else []
        while (n := math.prod(s for _, s in over)) != (m := math.prod(s for _, s in under)):
            (over if n < m else under).append((left if n < m else below).pop(0))
        kinds = {a in axes for a, s in over if s > 1}
        if len(kinds) > 1:
            return node
        reduced += [a for a, s in under if kinds == {True}]
    return view.src[0].reduce(op, tuple(reduced)).reshape(node.shape)


def gather_first(roots: Sequence[UOp]) -> list[UOp]:
    """Return the graph with gathers of few elements moved below what is computed elementwise.

        GATHER(f(a, b), i)   →   WHERE(inside(i), f(GATHER(a, i), GATHER(b, i)), 0)

    Only the gathered elements of ``f`` are computed, and its source is not stored: the logarithms of the probabilities
    of labels, for example. Outside of the source's indices a gather is 0, which ``f`` of zeros may not be. Results
    that are stored anyway are gathered from.
    """
    own = set(roots)

    def moved(node: UOp, n: UOp) -> UOp:
        if node.op is not Ops.GATHER:
            return node
        source = views_of(node.src[0], lambda v: v.op in _PARTS).source
        sizes = node.size, source.size
        if n.src[0] in own or not source.op.elementwise or not all(isinstance(s, int) for s in sizes) or (
                sizes[0] > FEW_GATHERED * sizes[1]):
            return node
        found = dict[UOp, UOp]()
        value = _gathered(node.src[0], node.src[1], node.arg, own, found)
        if len(found) > MOST_GATHERED or sum(v.op is Ops.GATHER for v in found.values()) > MOST_GATHERS:
            return node
        index, size = node.src[1], node.src[0].shape[node.arg]
        return (index.ge(0) & index.lt(size)).where(value, 0)

    return rebuilt(roots, moved)


def _gathered(source: UOp, index: UOp, axis: int, stored: set[UOp], found: dict[UOp, UOp]) -> UOp:
    """Return the elements of ``source`` at ``index``, computed from elements of what is below elementwise ops."""
    if source in found:
        return found[source]
    seen = views_of(source, lambda v: v.op in _PARTS)
    f = seen.source
    if f.op is Ops.CONST:
        made = f.expand_to(index.shape)
    elif f.op.elementwise and stored.isdisjoint((f, *seen.above)) and len(found) <= MOST_GATHERED:
        found[source] = source
        made = f.replace(src=tuple(_gathered(seen.of(s), index, axis, stored, found) for s in f.src))
    else:
        made = source.gather(index, axis)
    found[source] = made
    return made
