"""Normal form of a kernel graph before any opt: nested sums are merged, redundant guards are dropped, and a sum that
selects one element becomes a load.

    FOLD(FOLD(x, r2), r1)              →  FOLD(x, r1, r2)
    where(c, load(a, c) * load(b, c), 0)  →  load(a, c) * load(b)       inside a sum
    FOLD(where(r == k, load(a, r), 0), r)  →  load(a, k)                 where it exists
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise

from tinsmith.codegen.transform.computed_operand import inner_contractions, same_value, share_rows
from tinsmith.core.dtypes import dtypes
from tinsmith.ir import Ops, UOp
from tinsmith.ir.algebra.bounds import bound_ranges
from tinsmith.ir.algebra.sizes import linear_form
from tinsmith.ir.algebra.symbolic import simplify
from tinsmith.ir.rewrite import Pat, Rule, RuleSet, rewrite
from tinsmith.ir.structure import contraction, guard_of, sum_of_products
from tinsmith.ir.uop import toposort


def conjuncts(valid: UOp) -> list[UOp]:
    """Return the conditions of a conjunction, in order."""
    if valid.op is Ops.AND:
        return conjuncts(valid.src[0]) + conjuncts(valid.src[1])
    return [valid]


def implies(valid: UOp, other: UOp) -> bool:
    """Return True if every condition of ``other`` is one of ``valid``."""
    return set(conjuncts(other)) <= set(conjuncts(valid))


def _nested(n: UOp) -> UOp | None:
    """Merge with the inner reduction if that depends on the outer one's ranges (else it stays outside)."""
    body = n.src[0]
    guard = guard_of(body) if n.arg is Ops.ADD else None
    body = body if guard is None else body.src[1]
    if body.op is not Ops.FOLD or body.arg is not n.arg or not set(n.src[1:]) <= body.ranges:
        return None
    if guard is not None and not guard.ranges.isdisjoint(body.src[1:]):
        return None
    inner = body.src[0]
    value = inner if guard is None else guard.where(inner, UOp.const(inner.dtype, 0))
    return UOp(Ops.FOLD, None, (value, *n.src[1:], *body.src[1:]), n.arg)


def _in_bounds(load: UOp) -> bool:
    size = load.src[0].arg[1][0] if load.src[0].op is Ops.PARAM else None
    low, high = load.src[1].bounds
    return isinstance(size, int) and low >= 0 and high < size


def conditions_of(value: UOp) -> frozenset[UOp]:
    """Return conditions that must all hold for a value to be nonzero."""
    if value.op is Ops.LOAD and len(value.src) == 3:
        return frozenset(conjuncts(value.src[2]))
    if (guard := guard_of(value)) is not None:
        return conditions_of(value.src[1]).union(conjuncts(guard))
    return frozenset().union(*map(conditions_of, value.src)) if value.op in (Ops.CAST, Ops.MUL) else frozenset()


def _given(value: UOp, conditions: frozenset[UOp]) -> UOp | None:
    """Drop the guards in ``conditions`` from a value; None if a load could then be out of bounds elsewhere."""
    table: dict[UOp, UOp] = {}
    for n in toposort(value):
        src = tuple(table[s] for s in n.src)
        if n.op is Ops.LOAD and len(src) == 3 and conditions.issuperset(conjuncts(n.src[2])):
            if not _in_bounds(n):
                return None
            src = src[:2]
        given = (guard := guard_of(n)) is not None and conditions.issuperset(conjuncts(guard))
        table[n] = src[1] if given else n if src == n.src else n.replace(src=src)
    return table[value]


def _guarded_product(n: UOp) -> UOp | None:
    """Drop, in a sum, the guard around a product if one factor is 0 outside of it; the other factor needs no guard
    either."""
    guard = guard_of(n.src[0]) if n.arg is Ops.ADD else None
    if guard is None:
        return None
    product = n.src[0].src[1]
    if (inner := guard_of(product)) is not None:
        return n.replace(src=((guard & inner).simplify().where(*product.src[1:]), *n.src[1:]))
    free = _one_guard(product, guard)
    return free and n.replace(src=(free, *n.src[1:]))


def _guarded_twice(n: UOp) -> UOp | None:
    """Drop, in a sum, the guards of one factor that the other factor's guards imply (they already make the product 0).
    """
    free = _one_guard(n.src[0], None) if n.arg is Ops.ADD else None
    return free and n.replace(src=(free, *n.src[1:]))


def _one_guard(product: UOp, guard: UOp | None) -> UOp | None:
    """Return the product without ``guard``, and with one factor's guards dropped, if the other factor is 0 outside of
    them; else None."""
    for keep, drop in ((0, 1), (1, 0)) if product.op is Ops.MUL else ():
        a, b = product.src[keep], product.src[drop]
        conditions = conditions_of(a)
        free = _given(b, conditions) if guard is None or conditions.issuperset(conjuncts(guard)) else None
        if free is not None and (guard is not None or free is not b):
            return product.replace(src=(a, free) if keep == 0 else (free, a))
    return None


def _one_index(n: UOp) -> UOp | None:
    """Replace a sum with a condition ``r == index`` by the one element that it selects."""
    body = n.src[0]
    guard = guard_of(body) if n.arg is Ops.ADD else None
    for condition in conjuncts(guard) if guard is not None else ():
        for r in n.src[1:]:
            at = _named_index(condition, r)
            if at is None or not all(s.ranges.isdisjoint(n.src[1:]) for s in (at, r.src[-1])):
                continue
            inside = at.ge(0) & at.lt(r.src[-1])
            value = _at(body, r, at, inside)
            return inside.where(n.replace(src=(value, *(s for s in n.src[1:] if s is not r))) if len(n.src) > 2 else
                                value + UOp.const(n.dtype, 0), UOp.const(n.dtype, 0))
    return None


def _named_index(condition: UOp, r: UOp) -> UOp | None:
    """Return the index that a range must equal for a condition to hold; None for other conditions."""
    if condition.op is not Ops.CMPEQ or not condition.src[0].dtype.is_int:
        return None
    for a, b in (condition.src, condition.src[::-1]):
        own = a.src[0] if a.op is Ops.CAST else a
        if own is r and r.vmax <= a.dtype.max:
            return b.cast(dtypes.index)
    return None


def _at(value: UOp, r: UOp, offset: UOp, inside: UOp) -> UOp:
    """Return the value at one index of a range; its loads are guarded by ``inside``."""
    new = {r: offset}
    for n in toposort(value, lambda n: n is not r and r in n.ranges):
        src = tuple(new.get(s, s) for s in n.src)
        if n.op is Ops.LOAD:
            src = (*src[:2], src[2] & inside if len(src) > 2 else inside)
        new[n] = n.replace(src=src)
    return new[value]


def _sum_of_sums() -> UOp:
    i, j = UOp.range(3, 0, "r"), UOp.range(4, 1, "r")
    x = UOp(Ops.PARAM, dtypes.int32.ptr(), (), (1, (12,))).load(i * 4 + j)
    return UOp(Ops.FOLD, None, (UOp(Ops.FOLD, None, (x, j), Ops.ADD), i), Ops.ADD)


def _masked_product() -> UOp:
    i = UOp.range(3, 0, "r")
    valid = i.lt(2)
    a, b = (UOp(Ops.PARAM, dtypes.int32.ptr(), (), (k, (3,))).load(i, valid) for k in (1, 2))
    return UOp(Ops.FOLD, None, (valid.where(a * b, UOp.const(dtypes.int32, 0)), i), Ops.ADD)


def _masked_twice() -> UOp:
    i = UOp.range(3, 0, "r")
    a, b = (UOp(Ops.PARAM, dtypes.int32.ptr(), (), (k, (3,))).load(i, i.lt(2)) for k in (1, 2))
    return UOp(Ops.FOLD, None, (a * b, i), Ops.ADD)


def _hit() -> UOp:
    i, k = UOp.range(3, 0, "r"), UOp(Ops.PARAM, dtypes.int32.ptr(), (), (1, (1,))).load(UOp.index(0))
    x = UOp(Ops.PARAM, dtypes.int32.ptr(), (), (2, (3,))).load(i)
    return UOp(Ops.FOLD, None, (i.cast(dtypes.int32).eq(k).where(x, UOp.const(dtypes.int32, 0)), i), Ops.ADD)


_fold = Pat("n", (Ops.FOLD,))
normal_form = RuleSet("normal-form", (
    Rule("one-sum", "Σ_i Σ_j x = Σ_ij x", _fold, _nested, _sum_of_sums),
    Rule("zero-factor", "Σ where(c, a*b, 0) = Σ a*b where a is 0 unless c", _fold, _guarded_product, _masked_product),
    Rule("one-index", "Σ_i where(i = k, x[i], 0) = x[k] if 0 ≤ k < n, else 0", _fold, _one_index, _hit),
    Rule("one-guard", "Σ a[if c]*b[if c] = Σ a[if c]*b, also of casts of them", _fold, _guarded_twice, _masked_twice),
))


def normalize(sink: UOp) -> UOp:
    """Return the kernel graph with nested sums merged, and with rows shared by several outputs traversed once.

    The graph is simplified first, because a factor 1 in 1·x would hide the form of x.
    """
    return apart(share_rows(rewrite([simplify(sink)], normal_form)[0]))


def mergeable(sink: UOp, order: list[UOp]) -> Iterator[tuple[UOp, UOp]]:
    """Yield pairs (outer, inner) of consecutive ranges that every index uses only as outer*size(inner) + inner."""
    roots = index_roots(sink)
    homes = _homes(sink)
    for a, b in pairwise(order):
        if homes.get(a) == homes.get(b) and b.src[-1].is_const and a.src[-1].is_const and _step_together(roots, a, b):
            yield a, b


def grouped(fold: UOp) -> tuple[UOp, int] | None:
    """Return (range, group size) for a sum of products in which one factor depends on the range only through its group
    number (``range // size``); elements of a group are then columns of a matrix product."""
    found = sum_of_products(fold, guarded=True)
    if found is not None and not (found.m and found.n):
        for r in found.batch:
            for factor in (found.a, found.b):
                step = divided_by(toposort(factor), r)
                if step and r.src[-1].is_const and r.src[-1].arg % step == 0 and step < r.src[-1].arg:
                    return r, step
    return None


def joined(fold: UOp) -> tuple[UOp, int] | None:
    """Return (range, size) for a reduction that reads a range as two axes that lie apart in memory: by the quotient and
    the remainder of ``size`` alone. Loops over these axes read memory with constant steps."""
    if sum_of_products(fold, guarded=True) is not None:
        return None
    nodes = toposort(fold)
    for r in sorted(fold.src[0].ranges - {*fold.src[1:]}, key=lambda r: r.arg[0]):
        readers = [n for n in nodes if r in n.src]
        steps = {n.src[1].arg if n.op in (Ops.IDIV, Ops.MOD) and n.src[1].is_const else 0 for n in readers}
        size = r.src[-1].arg if r.src[-1].is_const else 0
        if len({n.op for n in readers}) == 2 and len(steps) == 1 and 1 < (step := steps.pop()) < size and (
                size % step == 0):
            return r, step
    return None


def runs(sink: UOp, least: int) -> tuple[UOp, int] | None:
    """Return (range, size) for a parallel range that loads divide into runs of ``size`` elements: they read adjacent
    elements within a run, and each run at another place, as the heads in a row of attention's result. Loops over runs
    and over their elements have constant steps. Runs of fewer than ``least`` bytes are left together, because the
    stores are contiguous along the whole range.

    Sums of products are left alone: a matrix has one range for its rows and one for its columns.
    """
    nodes = toposort(sink)
    folds = [n for n in nodes if n.op is Ops.FOLD]
    if any(sum_of_products(f, guarded=True) is not None for f in folds):
        return None
    inner = {r for n in nodes for r in bound_ranges(n)}
    for load in nodes:
        for part, step in linear_form(load.src[1])[0].items() if load.op is Ops.LOAD else ():
            if part.op is not Ops.MOD or step != 1 or part.src[0].op is not Ops.RANGE or not part.src[1].is_const:
                continue
            r, size = part.src[0], part.src[1].arg
            if r not in inner and r.src[-1].is_const and r.src[-1].arg % size == 0 and (
                    size * load.dtype.itemsize >= least):
                return r, size
    return None


def divided_by(nodes: Iterable[UOp], r: UOp) -> int:
    """Return the constant divisor of a range if all its readers use only that quotient; else 0."""
    readers = {n for n in nodes if r in n.src}
    steps = {n.src[1].arg if n.op is Ops.IDIV and n.src[1].is_const else 0 for n in readers}
    return steps.pop() if len(steps) == 1 else 0


def index_roots(sink: UOp) -> list[UOp]:
    """Return every maximal index expression: those that address memory, guard it, or enter the arithmetic."""
    roots: dict[UOp, None] = {}
    for n in toposort(sink):
        if n.op in (Ops.FOLD, Ops.STAGE, Ops.RANGE):
            continue
        for s in n.src:
            if s.dtype is dtypes.index and n.dtype is not dtypes.index:
                roots[s] = None
    return list(roots)


def _homes(sink: UOp) -> dict[UOp, frozenset[int]]:
    """Return, per range, the reductions that bind it and the statements that step over it."""
    homes: dict[UOp, set[int]] = {}
    for n in toposort(sink):
        for r in n.src[1:2] if n.op is Ops.PREFIX else bound_ranges(n):
            homes.setdefault(r, set()).add(id(n))
        if n.op in (Ops.STORE, Ops.SCATTER_STORE):
            for r in n.ranges:
                homes.setdefault(r, set()).add(-id(n))
    return {r: frozenset(h) for r, h in homes.items()}


def _step_together(roots: list[UOp], a: UOp, b: UOp) -> bool:
    """Return True if every root is a function of a*size(b) + b, also inside quotients, remainders and conditions."""
    return all(_joint(root, a, b) for root in roots)


def _joint(node: UOp, a: UOp, b: UOp) -> bool:
    if a not in node.ranges and b not in node.ranges:
        return True
    if node is a or node is b:
        return False
    terms, _ = linear_form(node) if node.dtype is dtypes.index else ({node: 1}, 0)
    if node in terms:
        return all(_joint(s, a, b) for s in node.src)
    return terms.get(a, 0) == terms.get(b, 0) * b.src[-1].arg and all(
        _joint(t, a, b) for t in terms if t is not a and t is not b)


def apart(sink: UOp) -> UOp:
    """Give statements that traverse a matrix that another statement reduces along its other side their own ranges; only
    the common rows stay shared."""
    main = sink.src[0]
    if not any(names_across(s, main) for s in sink.src[1:]):
        return sink
    count = 1 + max(n.arg[0] for n in toposort(sink) if n.op is Ops.RANGE)
    statements = [main]
    for s in sink.src[1:]:
        names = names_across(s, main)
        if names:
            own = [n for n in toposort(s) if n.op is Ops.RANGE]
            fresh = {r: r.replace(arg=(count + n, r.arg[1])) for n, r in enumerate(own)}
            count += len(own)
            both = {fresh[r]: new for r, new in names.items() if r in s.ranges and new in main.ranges}
            s = s.substitute(fresh).substitute(both)
        statements.append(s)
    return sink.replace(src=tuple(statements))


def names_across(store: UOp, main: UOp) -> dict[UOp, UOp] | None:
    """Return a map from the ranges of ``store`` to those of ``main`` if both use one contraction but sum it along
    different sides; None otherwise."""
    if store.op is not Ops.STORE or main.op is not Ops.STORE:
        return None
    for a in inner_sums(store):
        for b in inner_sums(main):
            names: dict[UOp, UOp] = {}
            if not same_value(a, b, names) or a.substitute(names) is not b:
                continue
            names = {r: names.get(r, r) for r in a.ranges}
            reduced = [r for r in store.ranges & a.ranges if names[r] not in main.ranges]
            summed = [r for r in a.ranges - store.ranges if names[r] in main.ranges]
            if len(reduced) == len(summed) == 1:
                return names
    return None


def inner_sums(store: UOp) -> list[UOp]:
    """Return the contractions inside the contraction of ``store`` if all its reductions are sums; else an empty list.
    """
    top = store.src[2]
    plain = top.op is Ops.FOLD and contraction(top) and all(n.arg is Ops.ADD for n in toposort(top) if n.op is Ops.FOLD)
    return inner_contractions(top.src[0]) if plain else []
