"""The opt SKIP and its analysis: blocks and steps of a loop that a mask hides completely are not computed, because they
add nothing to a sum.

A hidden element is 0, or -inf below an exponential. That is exact for finite values; a NaN or an infinity among hidden
elements no longer propagates if its complete block is skipped.
"""
from __future__ import annotations

import math
from collections.abc import Collection
from typing import TYPE_CHECKING

from tinsmith.codegen.kernel_graph import KernelGraph
from tinsmith.codegen.lower.normalize import conjuncts
from tinsmith.core.dtypes import dtypes
from tinsmith.ir import Ops, UOp
from tinsmith.ir.algebra.linear import from_linear, linear_form
from tinsmith.ir.ranges import THREADS, Role
from tinsmith.ir.structure import guard_of
from tinsmith.ir.uop import toposort

if TYPE_CHECKING:
    from tinsmith.codegen.opt import Opt


def nothing_where(node: UOp, nothing: float = 0.0) -> UOp | None:
    """Return a condition under which a float value is ``nothing`` (0 or -inf), provided its inputs are finite; None if
    none is known.

    >>> i, x = UOp.range(9, 0, None), UOp.const(dtypes.float32, 2)
    >>> nothing_where(i.lt(3).where(-math.inf, x).alu("EXP")) is i.lt(3)
    True
    """
    if node.op is Ops.CONST:
        return UOp.const(dtypes.bool, True) if node.arg == nothing else None
    if node.op is Ops.WHERE:
        condition, *branches = node.src
        yes, no = (nothing_where(b, nothing) for b in branches)
        if yes is None:
            return None if no is None else (_negated(condition) & no).simplify()
        return (condition & yes).simplify() if no is None else (condition & yes | no).simplify()
    if node.op is Ops.EXP and nothing == 0:
        return nothing_where(node.src[0], -math.inf)
    if node.op is Ops.MUL and nothing == 0:
        return next((c for s in node.src if (c := nothing_where(s)) is not None), None)
    if node.op is Ops.MUL and node.src[1].op is Ops.CONST and node.src[1].arg > 0:
        return nothing_where(node.src[0], nothing)
    if nothing != 0 and node.op in (Ops.ADD, Ops.SUB):
        return nothing_where(node.src[0], nothing)
    return None


def everywhere(condition: UOp, inside: Collection[UOp], truth: bool = True) -> UOp | None:
    """Return the condition on the outer ranges under which ``condition`` has the value ``truth`` for all values of the
    ranges ``inside``; None if none is known.

    >>> i, j = UOp.range(4, 0, None), UOp.range(8, 1, None)
    >>> whole = everywhere((i * 8 + j).lt(24), [j])
    >>> [whole.substitute({i: UOp.index(n)}).simplify().arg for n in range(4)]
    [True, True, True, False]
    """
    if condition.is_const:
        return UOp.const(dtypes.bool, bool(condition.arg) is truth)
    if condition.op in (Ops.AND, Ops.OR):
        parts = [everywhere(s, inside, truth) for s in condition.src]
        known = [p for p in parts if p is not None]
        if len(known) == 2 and known[0] is known[1]:
            return known[0]
        if (condition.op is Ops.AND) is truth:
            return (known[0] & known[1]).simplify() if len(known) == 2 else None
        return (known[0] | known[1]).simplify() if len(known) == 2 else next(iter(known), None)
    if condition.op is not Ops.CMPLT:
        return None
    low, high = (as_index(s) for s in condition.src)
    if low is None or high is None:
        return None
    terms, constant = linear_form(low - high if truth else high - low)
    if not all(t in inside or t.ranges.isdisjoint(inside) for t in terms):
        return None
    for r in [t for t in terms if t in inside]:
        factor = terms.pop(r)
        constant += max(factor * r.vmin, factor * r.vmax)
    return from_linear(terms, 0, low).simplify().lt((0 if truth else 1) - constant).simplify()


def as_index(node: UOp) -> UOp | None:
    """Return an integer as an index, without casts of indices that fit the integer type; None if it is not an index."""
    while node.op is Ops.CAST and node.src[0].dtype is dtypes.index and node.dtype.is_int:
        low, high = node.src[0].bounds
        if not (low >= -(1 << 31) and high < 1 << 31 and node.dtype.itemsize >= 4):
            return None
        node = node.src[0]
    if node.op is Ops.CONST and node.dtype.is_int:
        return UOp.index(node.arg)
    return node if node.dtype is dtypes.index else None


def _negated(condition: UOp) -> UOp:
    return UOp(Ops.CMPNE, None, (condition, UOp.const(dtypes.bool, True)))


def masked_blocks(k: KernelGraph) -> dict[UOp, UOp]:
    """Return the statements over blocks to which some blocks add nothing, each with the condition that a block adds
    something."""
    found = {}
    around = {r for r in k.order if r.arg[1] is Role.BLOCK or all(r in s.ranges for s in k.stores)}
    for s in k.stores:
        if s.op is Ops.SCATTER_STORE and s.src[4].arg[1] is Role.BLOCK and s.src[2].op is Ops.ADD:
            part = s.src[2].src[1]
            hidden = nothing_where(part.src[0]) if part.op is Ops.FOLD else None
            whole = everywhere(hidden, hidden.ranges - around) if hidden is not None else None
            if whole is not None and not whole.is_const:
                found[s] = _negated(whole)
    return found


def visible_ends(k: KernelGraph) -> dict[UOp, UOp]:
    """Return the loops over blocks whose last blocks a mask hides, each with the number of blocks before them."""
    found = {}
    shared = THREADS if k.products else ()  # the threads of a unit's block share the loop count
    around = {r for r in k.parallel if not r.arg[1].expanded and r.arg[1] not in shared}
    for fold in k.folds:
        block = fold.src[0]
        if block.op is Ops.MUL and block.src[1].is_const:
            block = block.src[0]
        if fold.arg is not Ops.MAX or block.op is not Ops.FOLD or fold.src[1].arg[1] is not Role.BLOCK:
            continue
        loop, hidden = fold.src[1], nothing_where(block.src[0], -math.inf)
        whole = everywhere(hidden, hidden.ranges - around - {loop}) if hidden is not None else None
        if whole is None or whole.op is not Ops.CMPLT:
            continue
        terms, constant = linear_form(whole.src[0] - whole.src[1])
        step = -terms.pop(loop, 0)
        if step > 0 and not any(loop in t.ranges for t in terms):
            found[loop] = (from_linear(terms, constant, loop) // step + 1).simplify()
    return found


def clear_end(loop: UOp, nodes: Collection[UOp], around: Collection[UOp]) -> tuple[UOp, dict[UOp, UOp]] | None:
    """Return the step of a loop up to which no mask hides anything, and the masks' constant values up to there; None if
    none is known.

    A mask is the condition of a WHERE one side of which is constant, 0 or -inf.
    """
    table, ends = dict[UOp, UOp](), dict[UOp, None]()
    for n in nodes:
        sides = [s.is_const and s.arg in (0, -math.inf) for s in n.src[1:]] if n.op is Ops.WHERE else []
        if not any(sides) or n.src[0].ranges.isdisjoint({loop}):
            continue
        whole = everywhere(n.src[0], n.src[0].ranges - set(around) - {loop}, truth=not sides[0])
        if whole is None or whole.op is not Ops.CMPLT:
            continue
        terms, constant = linear_form(whole.src[0] - whole.src[1])  # step·loop + terms + constant < 0
        step = terms.pop(loop, 0)
        if step > 0 and not any(loop in t.ranges for t in terms):
            ends[((from_linear(terms, constant, loop) * -1 - 1) // step + 1).maximum(0).simplify()] = None
            table[n.src[0]] = UOp.const(dtypes.bool, not sides[0])
    end: UOp | None = None
    for e in ends:
        end = e if end is None else end.minimum(e)
    return None if end is None else (end.simplify(), table)


def covered_steps(k: KernelGraph) -> dict[UOp, tuple[UOp, UOp]]:
    """Return the loops of sums whose first or last steps only read outside of a window, each with (start, end) of the
    steps between: the rows of a convolution window at the edge of an image, or the steps that a list in memory gives to
    a block of a grid."""
    found: dict[UOp, set[tuple[UOp, UOp]]] = {}
    around = {r for r in k.parallel if r.arg[1] in (Role.LOOP, Role.THREAD, Role.GLOBAL)}
    for fold in k.folds:
        terms = _needed(fold.src[0]) if fold.arg is Ops.ADD else []
        for loop in (r for r in fold.src[1:] if r.arg[1] is Role.REDUCE):
            found.setdefault(loop, set()).add(_steps_between(loop, terms, around))
    return {loop: span for loop, (span, *others) in found.items() if not others and (span[0].ranges or span[1].ranges)}


def _steps_between(loop: UOp, terms: list[tuple[UOp, UOp]], around: Collection[UOp]) -> tuple[UOp, UOp]:
    """Return (start, end) of the steps of a loop for which low < high can hold for all pairs whose other ranges enclose
    it."""
    start, end = UOp.index(0), loop.src[0]
    for low, high in terms:
        sides, constant = linear_form(low - high)
        step = sides.pop(loop, 0)
        if not step or not sides or not all(t in around or _listed(t, around) for t in sides):
            continue
        rest = from_linear(sides, constant, loop)  # step·loop + rest < 0
        if step > 0:
            end = end.minimum((rest * -1 - 1) // step + 1)
        else:
            start = start.maximum(rest // -step + 1)
    return start.simplify(), end.simplify()


def _needed(node: UOp) -> list[tuple[UOp, UOp]]:
    """Return pairs (low, high): the value is 0 unless low < high for each of them, provided its inputs are finite."""
    if node.op is Ops.LOAD and len(node.src) > 2:
        return [pair for c in conjuncts(node.src[2]) if (pair := _inequality(c)) is not None]
    if (guard := guard_of(node)) is not None:
        pairs = [pair for c in conjuncts(guard) if (pair := _inequality(c, True)) is not None]
        return [p for p in pairs if any(n.op is Ops.LOAD for n in toposort(p))]
    if node.op in (Ops.MUL, Ops.CAST):
        return [pair for s in node.src for pair in _needed(s)]
    return []


def _listed(term: UOp, around: Collection[UOp]) -> bool:
    """Return True if a term of an index is loaded from memory, once per block of the grid."""
    own = term.ranges
    return term.op is Ops.CAST and bool(own) and all(r in around and r.arg[1] is Role.GLOBAL for r in own)


def _inequality(condition: UOp, listed: bool = False) -> tuple[UOp, UOp] | None:
    """Return the indices (low, high) if a condition says low < high, else None. ``listed``: one of them may be
    loaded."""
    inner, turned = condition, False
    if condition.op in (Ops.CMPEQ, Ops.CMPNE) and condition.src[1].is_const:
        inner, turned = condition.src[0], bool(condition.src[1].arg) is (condition.op is Ops.CMPNE)
    if inner.op is not Ops.CMPLT:
        return None
    low, high = (s.cast(dtypes.index) if listed and s.op is Ops.LOAD and s.dtype is dtypes.int32 else as_index(s)
                 for s in inner.src)
    if low is None or high is None:
        return None
    return (high, low + 1) if turned else (low, high)


def skip(k: KernelGraph, opt: Opt) -> None:
    """Skip blocks that add nothing to the statements over them, and the first and last steps of loops that add
    nothing."""
    found, ends, steps = masked_blocks(k), visible_ends(k), covered_steps(k)
    opt.require(bool(found or ends or steps), "no block or step is known to be masked entirely", "another opt")
    steps |= {loop: (UOp.index(0), end) for loop, end in ends.items()}
    table = {loop: loop.replace(src=(*span, loop.src[-1])) for loop, span in steps.items()}
    k.rebuild_as([s.replace(src=(*s.src[:3], (s.src[3] & found[s]).simplify(), s.src[4])) if s in found else s
                  for s in k.sink.src], table)
    k.reorder()
