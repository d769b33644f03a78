"""Loop partitioning (``CUT``) of elementwise loops, if the pieces take fewer steps than the full loop."""
from __future__ import annotations

import functools
import operator
from collections.abc import Iterable
from itertools import pairwise

from tinsmith.codegen.kernel import Kernel
from tinsmith.codegen.lower.loop_partition import MOST_PIECES, change_points, decided
from tinsmith.codegen.lower.normalize import conjuncts
from tinsmith.codegen.opt import Opt, OptOps
from tinsmith.codegen.transform.skip_masked_blocks import as_index
from tinsmith.core.dtypes import dtypes
from tinsmith.ir import Ops, UOp
from tinsmith.ir.algebra.linear import from_linear, linear_form, order
from tinsmith.ir.algebra.symbolic import simplify
from tinsmith.ir.ranges import Role, range_size
from tinsmith.ir.rewrite import Pat, Rule, RuleSet, rewrite
from tinsmith.ir.uop import toposort


def cut_loops(k: Kernel, lanes: int, cost: float) -> float:
    """Partition parallel loops of elementwise statements at the iterations where their formula changes, if that is
    cheaper. The loop that memory runs along comes first, then the enclosing ones from the inside out, since a loop is
    copied with those around it. Return the fraction of the work that is left. ``cost``: the relative time of a step in
    separate code."""
    left = 1.0
    along = {_along(s) for s in k.stores}
    for r in sorted(k.parallel, key=lambda r: (r not in along, -k.order.index(r))):
        points = change_points(k.nodes, r)
        statements = [s for s in k.stores if r in s.ranges]
        share = cost * _share(statements, r, points, lanes) if points and _fits(k, statements, r, points) else 1.0
        if share < 1:
            k.apply(Opt(OptOps.CUT, k.ranges.index(r), tuple(points)))
            left *= share
    return left


def _fits(k: Kernel, statements: list[UOp], r: UOp, points: list[int]) -> bool:
    """Return True if the code of all pieces is at most as long as that of ``MOST_PIECES`` full statements."""
    if len(k.stores) + len(statements) * len(points) <= MOST_PIECES:
        return True
    pieces = sum(len(toposort(decided(s, r, *edge))) for s in statements for edge in _edges(r, points))
    return len(k.stores) + pieces / len(toposort(statements)) <= MOST_PIECES


def _edges(r: UOp, points: list[int]) -> Iterable[tuple[int, int]]:
    return pairwise([0, *points, range_size(r)])


def _share(statements: list[UOp], r: UOp, points: list[int], lanes: int) -> float:
    """Return the work of the pieces as a fraction of the full loop's."""
    after = 0.0
    for s in statements:
        inner, all_left = _along(s) is r, _only_chooses(s, r)
        for begin, end in _edges(r, points):
            piece = r.replace(src=(UOp.index(end - begin),)) if end - begin > 1 else UOp.index(0)
            left = decided(s, r, begin, end)
            left = left if all_left else simplify(left.substitute({r: (piece + begin).simplify()}))
            after += _steps(left, end - begin, inner, lanes)
    return after / sum(_steps(s, range_size(r), _along(s) is r, lanes) for s in statements)


def _only_chooses(statement: UOp, r: UOp) -> bool:
    """Return True if conditions on ``r`` only select values in WHERE nodes, so that ``decided`` has removed all it
    can."""
    nodes = toposort(statement)
    asked = {n for n in nodes if n.dtype.is_bool and r in n.ranges}
    return all(asked.isdisjoint(n.src) for n in nodes if n.op is not Ops.WHERE and n not in asked)


def _along(store: UOp) -> UOp | None:
    """Return the range that is contiguous in the memory of a store; None if there is none."""
    return next((r for r, step in linear_form(store.src[1])[0].items() if step == 1 and r.op is Ops.RANGE), None)


def _steps(statement: UOp, count: int, inner: bool, lanes: int) -> float:
    """Return the instructions for ``count`` values of a statement along a range, vectorized if it is the ``inner`` one.
    What depends on enclosing loops only is hoisted and free; a partial vector costs a full one plus its masking."""
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


def _chosen(n: UOp, lanes: frozenset[UOp]) -> UOp | None:
    """Replace a WHERE between loads of one memory by a single load, if the condition is the same for all lanes."""
    found = _branch(n, frozenset(), lanes)
    if found is None:
        return None
    load, offset, guards = found
    guard = [functools.reduce(operator.and_, sorted(guards, key=order))] if guards else []
    return load.replace(src=(load.src[0], offset.simplify(), *guard))


def _branch(n: UOp, known: frozenset[UOp], lanes: frozenset[UOp]) -> tuple[UOp, UOp, frozenset[UOp]] | None:
    """Return (load, index, guards other than the ``known`` conditions) of a branch; None if it is not one load."""
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
    """Return a comparison of indices that were cast to integers as a comparison of the indices, as guards are."""
    sides = [as_index(s) for s in condition.src] if condition.op is Ops.CMPLT else []
    low, high = sides or (None, None)
    return condition if low is None or high is None else low.lt(high).simplify()


def _two_loads() -> UOp:
    i, x = UOp.range(8, 0, Role.LOOP), UOp(Ops.PARAM, dtypes.int32.ptr(), (), (1, (9,)))
    return i.lt(3).where(x.load(i, i.lt(3)), x.load(i + 1, i.lt(3).logical_not()))


def _same_op(n: UOp, c: UOp, a: UOp, b: UOp) -> UOp | None:
    """Apply an op that both branches end with once, if they differ in one source."""
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
    """Replace a WHERE between elements of one memory by one load with a selected index, if the condition is the same
    for all lanes."""
    return rewrite([root], bounds_rules if not lanes else _rules(lanes))[0]
