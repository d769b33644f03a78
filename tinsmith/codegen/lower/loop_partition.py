"""Loop partitioning: split a loop where guards or index expressions change, so that each part has one simple body.

    for x < 1554: y[x] = x < 777 ? a[x] : b[x - 777]    →    for x < 777: y[x] = a[x]
                                                             for x < 777: y[x + 777] = b[x]

``cut_loop`` splits a range at given points: every statement over it becomes one statement per part, with its own
ranges, so the parts are in the kernel graph and every interpreter sees them. ``change_points`` returns the points where
guards and indices change; ``planner/cpu/loops.py`` decides
where splitting pays.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import chain, groupby, pairwise

from tinsmith.codegen.kernel_graph import KernelGraph
from tinsmith.codegen.opt import Opt
from tinsmith.codegen.transform.skip_masked_blocks import as_index
from tinsmith.codegen.transform.stages import Ahead
from tinsmith.ir import Ops, UOp
from tinsmith.ir.algebra.bounds import bound_ranges
from tinsmith.ir.algebra.sizes import linear_form
from tinsmith.ir.algebra.symbolic import simplify
from tinsmith.ir.structure import Role, is_partial, range_size
from tinsmith.ir.uop import toposort

MOST_PIECES = 16  # parts per loop, each duplicating its code; more if every part has only a share of the code
MOST_LOOPS = 256  # parts per loop at most, however short their code


# *** change points ***


def change_points(nodes: Iterable[UOp], r: UOp) -> list[int]:
    """Return the values of ``r`` at which a comparison with a constant, a quotient or a remainder changes its form.

    >>> r = UOp.range(9, 0, Role.LOOP)
    >>> change_points([(r - 2).lt(3), (r + 1) // 8, r.lt(9)], r)
    [5, 7]
    """
    size, points = range_size(r), set[int]()
    for n in nodes:
        if r not in n.ranges or len(n.src) != 2:
            continue
        if n.op in (Ops.CMPLT, Ops.CMPEQ, Ops.CMPNE) and (line := _line(n.src[0], n.src[1], r)) is not None:
            step, start = line  # the difference of the operands is step*r + start
            if n.op is Ops.CMPLT:
                points.add(-(start // step) if step > 0 else start // -step + 1)
            elif start % step == 0:
                points |= {-start // step, -start // step + 1}
        elif n.op in (Ops.IDIV, Ops.MOD) and n.src[1].is_const and (line := _line(n.src[0], UOp.index(0), r)):
            step, start = line
            by, last = n.src[1].arg, step * (size - 1) + start
            if by > 0 and abs(last // by - start // by) < MOST_PIECES:
                for whole in range(min(last, start) // by + 1, max(last, start) // by + 1):
                    # r where the quotient becomes ``whole`` (step > 0) or stops being so (step < 0)
                    bound = whole * by - start
                    points.add(-(-bound // step) if step > 0 else bound // step + 1)
    return sorted(p for p in points if 0 < p < size)


def _line(a: UOp, b: UOp, r: UOp) -> tuple[int, int] | None:
    """Return (step, start) with ``a - b`` = step*r + start; None if it has another form."""
    low, high = as_index(a), as_index(b)
    if low is None or high is None:
        return None
    terms, constant = linear_form(low - high)
    return (terms[r], constant) if set(terms) == {r} else None


def decided(root: UOp, r: UOp, begin: int, end: int) -> UOp:
    """Specialize ``root`` to begin ≤ r < end: WHEREs decided on that interval are replaced by their selected branch.
    Only selected branches are visited: of a sum over parts of a loop, each part keeps its own term.

    >>> r, x = UOp.range(9, 0, Role.LOOP), UOp.index(5)
    >>> decided(r.lt(4).where(x, r), r, 0, 4) is x, decided(r.lt(4).where(x, r), r, 4, 9) is r
    (True, True)
    """
    known: dict[UOp, bool | None] = {}
    new: dict[UOp, UOp] = {}
    stack = [root]
    while stack:
        n = stack[-1]
        if n in new:
            stack.pop()
            continue
        holds = _holds(n.src[0], r, begin, end, known) if n.op is Ops.WHERE and r in n.src[0].ranges else None
        src = n.src if holds is None else n.src[2 - holds : 3 - holds]
        waiting = [s for s in src if s not in new] if r in n.ranges else []
        stack += waiting
        if not waiting:
            changed = tuple(new.get(s, s) for s in src)
            new[n] = changed[0] if holds is not None else n if changed == n.src else n.replace(src=changed)
    return new[root]


def _holds(condition: UOp, r: UOp, begin: int, end: int, known: dict[UOp, bool | None]) -> bool | None:
    """Return the condition's truth value for all ``r`` from ``begin`` to ``end`` (exclusive); None if it varies."""
    if condition not in known:
        known[condition] = None
        if condition.op is Ops.CMPLT and (line := _line(condition.src[0], condition.src[1], r)) is not None:
            below = [line[0] * at + line[1] < 0 for at in (begin, end - 1)]
            known[condition] = below[0] if below[0] == below[1] else None
        elif condition.op is Ops.CMPEQ and condition.src[0].dtype.is_bool and condition.src[1].is_const:
            inner = _holds(condition.src[0], r, begin, end, known)
            known[condition] = None if inner is None else inner == condition.src[1].arg
        elif condition.op is Ops.AND:
            parts = [_holds(s, r, begin, end, known) for s in condition.src]
            known[condition] = False if False in parts else True if None not in parts else None
    return known[condition]


# *** loop parts in the kernel graph ***


def cut(k: KernelGraph, opt: Opt) -> None:
    """Apply CUT: split a parallel loop at the points ``amt``."""
    r = k.axis(opt)
    points = opt.amt if isinstance(opt.amt, tuple) else (opt.amt,)
    size = range_size(r)
    opt.require(r.arg[1] is Role.LOOP and r not in k.bound and isinstance(size, int),
                "only a parallel loop of fixed size can be cut")
    whole = all(isinstance(p, int) for p in points)
    opt.require(whole and list(points) == sorted({p for p in points if p and 0 < p < size}) and bool(points),
                f"split points must be increasing and between 0 and {size}")
    opt.require(len(points) < MOST_LOOPS, f"a loop can have at most {MOST_LOOPS} parts")
    opt.require(all(x.arg[1] is not Role.BLOCK for x in k.order), "CUT comes before opts that make BLOCK loops")
    opt.require(is_whole(k, r), "ordered statements must either all or none depend on the loop")
    cut_loop(k, r, [p for p in points if p])


def is_whole(k: KernelGraph, r: UOp) -> bool:
    """Return True if statements that are ordered after each other either all depend on ``r``, or none does."""
    return all(len({r in p.ranges for p in toposort(s) if p.op in (Ops.STORE, Ops.SCATTER_STORE)}) == 1
               for s in k.sink.src)


def cut_loop(k: KernelGraph, r: UOp, points: list[int]) -> None:
    """Split every statement over ``r`` into one per part; loops inside of ``r`` get new ranges for each part."""
    edges = [0, *points, range_size(r)]

    def parts() -> Iterator[tuple[UOp, tuple[UOp, ...]]]:
        for begin, end in pairwise(edges):
            piece = k.new_range(end - begin, r.arg[1], is_partial(r) and end == edges[-1])
            yield (piece + begin).simplify(), (piece,)

    _replace_by_parts(k, r, parts(), lambda s, n: decided(s, r, *edges[n : n + 2]))


def _replace_by_parts(k: KernelGraph, r: UOp, parts: Iterable[tuple[UOp, tuple[UOp, ...]]],
                      special: Callable[[UOp, int], UOp]) -> None:
    """Replace every statement over ``r`` by one per part.

    Args:
        parts: for each part, the value of ``r`` as an expression of the part's own ranges, and these ranges in nesting
            order.
        special: a function that returns the statement of a part, given its number.
    """
    inside = _inside(k, r)
    nest: dict[UOp, list[UOp]] = {q: [] if q is r else [q] for q in k.order}
    tables = []
    for number, (place, ranges) in enumerate(parts):
        nest[r] += [x for x in ranges if x.op is Ops.RANGE]
        names = {q: q.replace(arg=(k.new_number(), *q.arg[1:])) for q in inside} if number else {}
        table = {r: place, **names}
        names = {q: new.substitute(table) for q, new in names.items()}  # their limits contain ranges, too
        for old, new in names.items():
            nest[old].append(new)
        tables.append(table | names)
    statements: list[UOp] = []
    for over, group in groupby(k.sink.src, lambda s: r in _over(s)):
        same = list(group)
        statements += [_renamed(special(s, n), t) for n, t in enumerate(tables) for s in same] if over else same
    k.order = list(chain.from_iterable(nest[q] for q in k.order))
    k.sink = simplify(k.sink.replace(src=tuple(statements)))
    k.reorder()


def _over(statement: UOp) -> frozenset[UOp]:
    """Return all ranges of a statement and of the statements it is ordered after."""
    return frozenset().union(*(n.ranges for n in toposort(statement) if n.op in (Ops.STORE, Ops.SCATTER_STORE)))


def _inside(k: KernelGraph, r: UOp) -> list[UOp]:
    """Return the loops nested inside ``r`` in its statements, and ranges reduced, staged or scanned per value of ``r``.
    """
    statements = [s for s in k.sink.src if r in _over(s)]
    further = set(k.order[k.order.index(r) + 1 :])
    found = {q for s in statements for q in _over(s) & further if not q.arg[1].expanded}
    for n in toposort(statements):
        if r in n.ranges:
            found |= n.src[1].ranges if n.op is Ops.PREFIX else set(bound_ranges(n))
    return [q for q in k.order if q in found]


def _renamed(statement: UOp, table: dict[UOp, UOp]) -> UOp:
    """Substitute ranges in a statement, including the loop numbers of its prefetched and rotated loads."""
    numbers = {q.arg[0]: n for q, new in table.items() for n in new.ranges}
    loads = {n: n.replace(arg=replace(n.arg, loop=numbers[n.arg.loop].arg[0])) for n in toposort(statement)
             if n.op is Ops.LOAD and isinstance(n.arg, Ahead) and n.arg.loop in numbers}
    return statement.substitute(loads).substitute(table)


def outermost_loops(k: KernelGraph) -> set[UOp]:
    """Return the outermost loop of each statement if the statements are independent of order; else an empty set."""
    written = {s.src[0] for s in k.stores}
    if any(s.op is not Ops.STORE for s in k.stores) or any(n.op is Ops.LOAD and n.src[0] in written for n in k.nodes):
        return set()
    return {loops[0] for s in k.stores if (loops := [r for r in k.order if r in s.ranges and not r.arg[1].expanded])}


def first_loop(k: KernelGraph) -> UOp | None:
    """Return the outermost loop; loops over blocks of an online softmax (``ONLINE``) do not count."""
    return next((r for r in k.ranges if r.arg[1] is not Role.BLOCK or all(r not in f.src[1:] for f in k.folds)), None)
