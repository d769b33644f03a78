"""The bounds pass: a loop whose body changes its formula on the way becomes several loops, each of one formula.

    for x < 1554: y[x] = x < 777 ? a[x] : b[x - 777]    →    for x < 777: y[x] = a[x]
                                                             for x < 777: y[x + 777] = b[x]

``cut_loop`` splits a loop's range at some points: every statement over it becomes one per piece, with ranges of its
own, so the pieces are in the kernel graph and every interpreter sees them. ``change_points`` says where guards and
indices change, ``cut_loops`` where that pays. What conditions of outer loops choose between is read by one load.
"""
from __future__ import annotations

import functools
import operator
from collections.abc import Iterable
from dataclasses import replace
from itertools import chain, groupby, pairwise
from typing import TYPE_CHECKING

from tinsmith.codegen.ahead import Ahead
from tinsmith.codegen.masking import as_index
from tinsmith.codegen.normalize import conjuncts
from tinsmith.codegen.opt import Opt, OptOps
from tinsmith.codegen.roles import Role, range_size
from tinsmith.core.dtypes import dtypes
from tinsmith.core.errors import ArgumentError
from tinsmith.ir import Ops, UOp
from tinsmith.ir.linear import from_linear, linear_form, order
from tinsmith.ir.rewrite import Pat, Rule, RuleSet, rewrite
from tinsmith.ir.symbolic import simplify
from tinsmith.ir.uop import toposort

if TYPE_CHECKING:
    from tinsmith.codegen.kernel import Kernel

MOST_PIECES = 16  # statements that one may become: each is code of its own


# *** where a formula changes ***


def change_points(nodes: Iterable[UOp], r: UOp) -> list[int]:
    """The values of ``r`` from which on a comparison with a constant, a quotient or a remainder goes another way.

    >>> r = UOp.range(9, 0, Role.LOOP)
    >>> change_points([(r - 2).lt(3), (r + 1) // 8, r.lt(9)], r)
    [5, 7]
    """
    size, points = range_size(r), set[int]()
    for n in nodes:
        if r not in n.ranges or len(n.src) != 2:
            continue
        if n.op in (Ops.CMPLT, Ops.CMPEQ, Ops.CMPNE) and (line := _line(n.src[0], n.src[1], r)) is not None:
            step, start = line  # the difference is step*r + start
            if n.op is Ops.CMPLT:
                points.add(-(start // step) if step > 0 else start // -step + 1)
            elif start % step == 0:
                points |= {-start // step, -start // step + 1}
        elif n.op in (Ops.IDIV, Ops.MOD) and n.src[1].is_const and (line := _line(n.src[0], UOp.index(0), r)):
            step, start = line
            by, last = n.src[1].arg, step * (size - 1) + start
            if by > 0 and abs(last // by - start // by) < MOST_PIECES:
                for whole in range(min(last, start) // by + 1, max(last, start) // by + 1):
                    bound = whole * by - start  # from here on the quotient is whole, or just before it was
                    points.add(-(-bound // step) if step > 0 else bound // step + 1)
    return sorted(p for p in points if 0 < p < size)


def _line(a: UOp, b: UOp, r: UOp) -> tuple[int, int] | None:
    """``a - b`` as step*r + start; None if it is something else."""
    low, high = as_index(a), as_index(b)
    if low is None or high is None:
        return None
    terms, constant = linear_form(low - high)
    return (terms[r], constant) if set(terms) == {r} else None


# *** pieces of a loop in the kernel graph ***


def cut(k: Kernel, opt: Opt) -> None:
    """A parallel loop becomes one loop per piece between the points ``amt``."""
    r = k.axis(opt)
    points = opt.amt if isinstance(opt.amt, tuple) else (opt.amt,)
    size = range_size(r)
    _require(r.arg[1] is Role.LOOP and r not in k.bound and isinstance(size, int), opt,
             "only a parallel loop of fixed size is cut")
    whole = all(isinstance(p, int) for p in points)
    _require(whole and list(points) == sorted({p for p in points if p and 0 < p < size}) and bool(points), opt,
             f"it is cut at points between 0 and {size}, in order")
    _require(len(points) < MOST_PIECES, opt, f"a loop has {MOST_PIECES} pieces at most")
    _require(all(x.arg[1] is not Role.BLOCK for x in k.order), opt, "loops over blocks are cut before")
    for s in k.sink.src:
        parts = [p for p in toposort(s) if p.op in (Ops.STORE, Ops.SCATTER_STORE)]
        _require(len({r in p.ranges for p in parts}) == 1, opt, "statements in order have it all or none")
    cut_loop(k, r, [p for p in points if p])


def _require(condition: bool, opt: Opt, why: str) -> None:
    if not condition:
        raise ArgumentError("Opt", f"{opt}: {why}", "another axis or amount")


def cut_loop(k: Kernel, r: UOp, points: list[int]) -> None:
    """Every statement over ``r`` becomes one per piece; the loops inside of ``r`` are each piece's own."""
    edges = [0, *points, range_size(r)]
    inside = _inside(k, r)
    nest: dict[UOp, list[UOp]] = {q: [q] for q in k.order if q is not r}
    pieces, tables = [], []
    for number, (begin, end) in enumerate(pairwise(edges)):
        piece = k.new_range(end - begin, r.arg[1])
        names = {q: q.replace(arg=(k.new_number(), q.arg[1])) for q in inside} if number else {}
        for old, new in names.items():
            nest[old].append(new)
        pieces += [piece] if piece.op is Ops.RANGE else []
        tables.append({r: (piece + begin).simplify(), **names})
        _describe(k, r, piece, begin, names)
    spans = {}
    for number, span in k.spans.items():
        for table in tables:
            name = next((new.arg[0] for old, new in table.items() if old.arg[0] == number), number)
            spans[name] = span[0].substitute(table).simplify(), span[1].substitute(table).simplify()
    k.spans = spans
    nest[r] = pieces
    statements: list[UOp] = []
    for over, group in groupby(k.sink.src, lambda s: r in _over(s)):
        same = list(group)
        statements += [_renamed(s, t) for t in tables for s in same] if over else same
    k.order = list(chain.from_iterable(nest[q] for q in k.order))
    k.sink = simplify(k.sink.replace(src=tuple(statements)))


def _over(statement: UOp) -> frozenset[UOp]:
    """All ranges of a statement, and of those that it comes after."""
    return frozenset().union(*(n.ranges for n in toposort(statement) if n.op in (Ops.STORE, Ops.SCATTER_STORE)))


def _inside(k: Kernel, r: UOp) -> list[UOp]:
    """Loops of statements over ``r`` further in, and of what is reduced, staged or carried for each value of ``r``."""
    statements = [s for s in k.sink.src if r in _over(s)]
    further = set(k.order[k.order.index(r) + 1 :])
    found = {q for s in statements for q in _over(s) & further if not q.arg[1].expanded}
    for n in toposort(statements):
        if n.op in (Ops.FOLD, Ops.STAGE, Ops.PREFIX, Ops.SCATTER_STORE, Ops.MMA) and r in n.ranges:
            bound = {Ops.PREFIX: n.src[1].ranges, Ops.SCATTER_STORE: n.src[4:], Ops.MMA: n.src[4:]}.get(n.op, n.src[1:])
            found |= {q for q in bound if q.op is Ops.RANGE}
    return [q for q in k.order if q in found]


def _renamed(statement: UOp, table: dict[UOp, UOp]) -> UOp:
    """A statement with ranges replaced; its loads look ahead along the loops that they are in now."""
    numbers = {q.arg[0]: n for q, new in table.items() for n in new.ranges}
    loads = {n: n.replace(arg=replace(n.arg, loop=numbers[n.arg.loop].arg[0])) for n in toposort(statement)
             if n.op is Ops.LOAD and isinstance(n.arg, Ahead) and n.arg.loop in numbers}
    return statement.substitute(loads).substitute(table)


def _describe(k: Kernel, r: UOp, piece: UOp, begin: int, names: dict[UOp, UOp]) -> None:
    """What tables say of loops holds for those of a piece."""
    whole = k.full.get(r.arg[0])
    if whole is not None and piece.op is Ops.RANGE and 0 < whole - begin < range_size(piece):
        k.full[piece.arg[0]] = whole - begin
    for old, new in names.items():
        if old.arg[0] in k.full:
            k.full[new.arg[0]] = k.full[old.arg[0]]


def outermost_loops(k: Kernel) -> set[UOp]:
    """The outermost loop of each statement, where the statements could run in any order; else none."""
    written = {s.src[0] for s in k.stores}
    if any(s.op is not Ops.STORE for s in k.stores) or any(n.op is Ops.LOAD and n.src[0] in written for n in k.nodes):
        return set()
    return {loops[0] for s in k.stores if (loops := [r for r in k.order if r in s.ranges and not r.arg[1].expanded])}


# *** where it pays ***


def cut_loops(k: Kernel, lanes: int) -> bool:
    """Cut parallel loops of elementwise statements where their formula changes, if what is left of a step in each
    piece is worth more loops; first the loop that memory runs along, then those around it, inner ones first, since they
    are copied with those around them. True if any was."""
    done = False
    along = {_along(s) for s in k.stores}
    for r in sorted(k.parallel, key=lambda r: (r not in along, -k.order.index(r))):
        points = change_points(k.nodes, r)
        statements = [s for s in k.stores if r in s.ranges]
        few = len(k.stores) + len(statements) * len(points) <= MOST_PIECES
        if points and few and _pays(statements, r, points, lanes):
            k.apply(Opt(OptOps.CUT, k.ranges.index(r), tuple(points)))
            done = True
    return done


def _pays(statements: list[UOp], r: UOp, points: list[int], lanes: int) -> bool:
    """Whether the pieces take less than four fifths of the steps that the whole loop takes."""
    after = 0.0
    for begin, end in pairwise([0, *points, range_size(r)]):
        piece = r.replace(src=(UOp.index(end - begin),)) if end - begin > 1 else UOp.index(0)
        table = {r: (piece + begin).simplify()}
        after += sum(_steps(simplify(s.substitute(table)), end - begin, _along(s) is r, lanes) for s in statements)
    return after < 0.8 * sum(_steps(s, range_size(r), _along(s) is r, lanes) for s in statements)


def _along(store: UOp) -> UOp | None:
    """The range that the memory of a statement's results runs along."""
    return next((r for r, step in linear_form(store.src[1])[0].items() if step == 1 and r.op is Ops.RANGE), None)


def _steps(statement: UOp, count: int, inner: bool, lanes: int) -> float:
    """Instructions for ``count`` values of a range of a statement, in vectors if it is the inner one. What only loops
    around decide is decided once; a part of a vector takes as long as a whole one, and some more to be masked."""
    along, work = _along(statement), 0
    for n in toposort(one_load(statement, frozenset() if along is None else along.ranges)):
        if along is not None and along not in n.ranges:
            continue
        if n.op is Ops.LOAD:
            steps = [1 if t is along and abs(step) == 1 else lanes for t, step in linear_form(n.src[1])[0].items()
                     if along in t.ranges]
            work += max(steps, default=1)
        elif n.op is Ops.STORE or (n.op.alu and n.dtype is not dtypes.index):
            work += 1
    return work * (count // lanes + (2 if count % lanes else 0)) + 2.0 if inner else float(work * count)


# *** one load of what outer loops choose between ***


def _chosen(n: UOp, lanes: frozenset[UOp]) -> UOp | None:
    """One load for several of the same memory, of which a condition, the same for all lanes, chooses one."""
    found = _branch(n, frozenset(), lanes)
    if found is None:
        return None
    load, offset, guards = found
    guard = [functools.reduce(operator.and_, sorted(guards, key=order))] if guards else []
    return load.replace(src=(load.src[0], offset.simplify(), *guard))


def _branch(n: UOp, known: frozenset[UOp], lanes: frozenset[UOp]) -> tuple[UOp, UOp, frozenset[UOp]] | None:
    """A load, its place, and what guards it beside the conditions that are known to hold where it is chosen."""
    if n.op is Ops.LOAD:
        return n, n.src[1], frozenset(conjuncts(n.src[2]) if len(n.src) > 2 else []) - known
    if n.op is not Ops.WHERE:
        return None
    condition = _of_indices(n.src[0])
    if any(r in lanes or r.arg[1] is Role.VECTOR for r in condition.ranges):
        return None
    never = condition.src[0] if condition.op is Ops.CMPEQ and condition.src[1].is_const else condition.logical_not()
    yes, no = (_branch(x, known.union(holds), lanes) for x, holds in ((n.src[1], conjuncts(condition)),
                                                                      (n.src[2], [never])))
    if yes is None or no is None or yes[0].src[0] is not no[0].src[0] or yes[2] != no[2]:
        return None
    (a, first), (b, second) = linear_form(yes[1]), linear_form(no[1])
    same = {t: c for t, c in a.items() if b.get(t) == c}
    rest = [from_linear({t: c for t, c in x.items() if t not in same}, constant, yes[1])
            for x, constant in ((a, 0), (b, second - first))]
    if any(r in lanes or r.arg[1] is Role.VECTOR for x in rest for r in x.ranges):
        return None
    return yes[0], from_linear(same, first, yes[1]) + condition.where(*rest), yes[2]


def _of_indices(condition: UOp) -> UOp:
    """A comparison of indices that were cast to numbers as one of indices, as guards are."""
    sides = [as_index(s) for s in condition.src] if condition.op is Ops.CMPLT else []
    low, high = sides or (None, None)
    return condition if low is None or high is None else low.lt(high).simplify()


def _two_loads() -> UOp:
    i, x = UOp.range(8, 0, Role.LOOP), UOp(Ops.PARAM, dtypes.int32.ptr(), (), (1, (9,)))
    return i.lt(3).where(x.load(i, i.lt(3)), x.load(i + 1, i.lt(3).logical_not()))


def _same_op(n: UOp, c: UOp, a: UOp, b: UOp) -> UOp | None:
    """What both branches do at the end is done once, where they differ in one source."""
    if a is b or not a.op.elementwise or (a.op, a.dtype, a.arg, len(a.src)) != (b.op, b.dtype, b.arg, len(b.src)):
        return None
    differ = [at for at, (x, y) in enumerate(zip(a.src, b.src)) if x is not y]
    if len(differ) != 1 or a.src[differ[0]].dtype is not b.src[differ[0]].dtype or a.op is Ops.CONST:
        return None
    (at,) = differ
    return a.replace(src=(*a.src[:at], c.where(a.src[at], b.src[at]), *a.src[at + 1 :]))


def _two_negations() -> UOp:
    i, x = UOp.range(8, 0, Role.LOOP), UOp(Ops.PARAM, dtypes.int32.ptr(), (), (1, (9,)))
    return i.lt(3).where(-x.load(i), -x.load(i + 1))


_choice = Pat("n", (Ops.WHERE,), (Pat("c"), Pat("a"), Pat("b")))


def _rules(lanes: frozenset[UOp]) -> RuleSet:
    return RuleSet("one-load", (
        Rule("one-op", "where(c, f(x, z), f(y, z)) = f(where(c, x, y), z)", _choice, _same_op, _two_negations),
        Rule("one-load", "where(c, m[i if c], m[j unless c]) = m[where(c, i, j)], c the same for all lanes", _choice,
             lambda n, c, a, b: _chosen(n, lanes), _two_loads),))


bounds_rules = _rules(frozenset())


def one_load(root: UOp, lanes: frozenset[UOp] = frozenset()) -> UOp:
    """Elements of one memory that a condition chooses between are one load, where the condition is the same for all
    lanes: its place is chosen."""
    return rewrite([root], bounds_rules if not lanes else _rules(lanes))[0]
