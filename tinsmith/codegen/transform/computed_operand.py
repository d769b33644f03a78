"""Analysis of contractions of computed operands (back-to-back GEMM): an operand is computed tile by tile in local
memory, next to its consumer.

    out[i, d] = Σ_j p(i, j) * v[j, d]    with p made of Σ_e q[i, e] * k[j, e], of statistics of its rows, ...

A few rows of p are computed over all j as a register tile of the inner contraction and staged in local memory, from
which the row statistics and the outer contraction read them: attention and its gradients, without storing all scores.
"""
from __future__ import annotations

from collections.abc import Iterator

from tinsmith.codegen.decompose.elementary import FUNCTIONS
from tinsmith.core.dtypes import dtypes
from tinsmith.ir import Ops, UOp
from tinsmith.ir.structure import contraction
from tinsmith.ir.uop import toposort

SIDE = 4  # lanes and copies of a block to transpose in registers: 128 bits of each line at a time


def streams(sink: UOp) -> Iterator[tuple[UOp, tuple[UOp, ...]]]:
    """Generate (operand, rows): operands computed from contractions, or at some cost, in outermost reductions (a
    computed factor of a contraction, or the body of a row statistic), with the parallel ranges that only the operand
    has."""
    for fold in outer_folds(sink):
        body, bound, product = fold.src[0], set(fold.src[1:]), contraction(fold)
        for operand, other in (body.src, body.src[::-1]) if product else ():
            if is_made(operand) and not _has_fold(other) and bound <= operand.ranges:
                yield operand, _in_order(operand.ranges - other.ranges - bound)
                break
        inner = None if product else next((c for c in inner_contractions(body) if bound <= c.ranges), None)
        if inner is not None:
            a, b = (s.ranges & fold.ranges for s in inner.src[0].src)
            yield body, _in_order(a - b or b - a)


def outer_folds(sink: UOp) -> list[UOp]:
    """Return the reductions that are not computed inside another reduction's loop or inside a stage."""
    outside = toposort(sink, lambda n: n.op is not Ops.FOLD and n.op is not Ops.STAGE)
    sources = (s for n in outside if n.op not in (Ops.FOLD, Ops.STAGE) for s in n.src)
    return list(dict.fromkeys(s for s in sources if s.op is Ops.FOLD))


def _in_order(ranges: frozenset[UOp]) -> tuple[UOp, ...]:
    return tuple(sorted(ranges, key=lambda r: r.arg[0]))


def _has_fold(node: UOp) -> bool:
    """Return True if a node contains a reduction outside of stages."""
    return any(n.op is Ops.FOLD for n in toposort(node, lambda n: n.op is not Ops.STAGE))


def is_made(factor: UOp) -> bool:
    """Return True if a factor is too expensive to be recomputed for every column: it contains a reduction or a
    transcendental function."""
    return any(n.op in (Ops.FOLD, *FUNCTIONS) for n in toposort(factor, lambda n: n.op is not Ops.STAGE))


def inner_contractions(node: UOp) -> list[UOp]:
    """Return the contractions that ``node`` is computed from and that are not staged yet."""
    return [n for n in toposort(node, lambda n: n.op is not Ops.STAGE) if n.op is Ops.FOLD and contraction(n)]


def share_rows(sink: UOp) -> UOp:
    """Rename the ranges of stores that are computed from the same contraction so that they run over the same ranges."""
    stores = sorted((s for s in sink.src if s.op is Ops.STORE), key=lambda s: -len(s.ranges))
    table: dict[UOp, UOp] = {}
    for at, store in enumerate(stores):
        for main in stores[:at]:
            names = None if main in table or store.ranges & main.ranges else _names_of_rows(store, main)
            if names:
                table[store] = store.substitute(names)
                break
    return sink.substitute(table) if table else sink


def _names_of_rows(store: UOp, main: UOp) -> dict[UOp, UOp] | None:
    """Return the renaming from the ranges of ``store`` to those of ``main``, if both contain the same reduction of a
    contraction; else None."""
    mine, its = ([n for n in toposort(s.src[2]) if n.op is Ops.FOLD] for s in (store, main))
    for fold in reversed(mine):
        if not any(contraction(n) for n in toposort(fold) if n.op is Ops.FOLD):
            continue
        for n in its:
            renamed: dict[UOp, UOp] = {}
            if same_value(fold, n, renamed) and len(set(renamed.values())) == len(renamed):
                rows = [r for r in store.ranges if r in renamed]
                if rows and all(renamed[r] in main.ranges for r in rows):
                    return renamed
    return None


def block_factors(sink: UOp) -> list[UOp]:
    """Return the computed values that the steps of an inner reduced range share: the largest ones, such as the scales
    of blocks of quantized weights, in a factor of a sum of products."""
    found = dict[UOp, None]()
    for fold in (n for n in toposort(sink) if n.op is Ops.FOLD and n.src[0].op is Ops.MUL and len(n.src) > 2):
        reduced = frozenset(fold.src[1:])
        for operand in fold.src[0].src:
            whole, stack = operand.ranges & reduced, [operand]
            while stack:
                n = stack.pop()
                if n.ranges >= whole:
                    stack += n.src
                elif n.op.alu and n.dtype.is_float and n.ranges & reduced and not _has_fold(n) and any(
                        x.op is Ops.LOAD and x.src[0].op is Ops.PARAM for x in toposort(n)):
                    found[n] = None
    return list(found)


# *** values in local memory ***


def same_value(a: UOp, b: UOp, renamed: dict[UOp, UOp]) -> bool:
    """Return True if ``b`` equals ``a`` up to renaming of ranges; ``renamed`` holds the known pairs and receives the
    others.

    >>> i, j = UOp.range(3, 0, None), UOp.range(3, 1, None)
    >>> same_value(i * 2, j * 2, {}), same_value(i * 2, j * 2, {i: i})
    (True, False)
    """
    stack, seen = [(a, b)], set()
    while stack:
        x, y = stack.pop()
        if (x, y) in seen:
            continue
        seen.add((x, y))
        if x.op is Ops.RANGE and y.op is Ops.RANGE:
            if renamed.setdefault(x, y) is not y or x.src != y.src:
                return False
            continue
        if x.op is not y.op or x.dtype is not y.dtype or x.arg != y.arg or len(x.src) != len(y.src):
            return False
        if x is y and not any(renamed.get(r, r) is not r for r in x.ranges):
            continue
        stack += zip(x.src, y.src)
    return True


def bind(node: UOp, r: UOp, value: UOp) -> UOp:
    """Return ``node`` with ``value`` in place of ``r``; ``r`` stays in reductions that are over ``r`` themselves."""
    new = {r: value}
    for n in toposort(node, lambda n: n is not r and (r in n.ranges or (n.op is Ops.SCATTER_STORE and n.src[4] is r))):
        src = tuple(new.get(s, s) for s in n.src)
        new[n] = n if src == n.src else n.replace(src=src)
    return new.get(node, node)


def single_way_out(start: UOp, top: UOp, stop: frozenset[UOp]) -> UOp:
    """Return the last value that all paths from ``start`` to ``top`` pass through (a dominator), before they reach a
    node of ``stop`` or one with more ranges."""
    order = toposort(top)
    above = {start}
    for n in order:
        if n not in above and any(s in above for s in n.src):
            above.add(n)
    users: dict[UOp, int] = {}
    for n in order:
        for s in set(n.src):
            if n in above and s in above:
                users[s] = users.get(s, 0) + 1
    left: dict[UOp, int] = {}
    best = start
    for n in order:
        if n not in above:
            continue
        if n is not start and (n in stop or not (n.op.alu or n.op.kind == "cast") or n.ranges - start.ranges):
            break
        for s in set(n.src) & left.keys():
            left[s] -= 1
            if not left[s]:
                del left[s]
        left[n] = users.get(n, 0)
        if set(left) == {n} and n.dtype is not dtypes.index and not n.dtype.is_bool:
            best = n
    return best


def computed_values(sink: UOp) -> list[UOp]:
    """Return the computed factors of contractions, and the values inside reductions that contain reductions, in a
    stable order."""
    folds = [f for f in toposort(sink) if f.op is Ops.FOLD]
    inside = dict.fromkeys(n for f in folds for n in toposort(f.src[0]))
    factors = {s for f in folds if contraction(f) for s in f.src[0].src}
    return [n for n in inside if n.ranges and (n.op.alu or n.op.kind == "cast" or n.op is Ops.FOLD)
            and n.dtype is not dtypes.index and not n.dtype.is_bool and (n in factors or _has_fold(n))
            and all(m.op is not Ops.MMA for m in toposort(n))]


def equal_values(sink: UOp, value: UOp, fixed: frozenset[UOp]) -> dict[UOp, dict[UOp, UOp]]:
    """Return the nodes that equal ``value`` up to the names of reduced ranges, each with the renaming of its ranges."""
    found = {}
    for n in toposort(sink):
        if n.op is value.op and n.dtype is value.dtype:
            renamed = {r: r for r in fixed}
            if same_value(value, n, renamed):
                found[n] = renamed
    return found
