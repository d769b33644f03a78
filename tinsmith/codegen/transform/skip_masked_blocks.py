"""Opts on blocks of a contraction: SKIP (blocks hidden by a mask) and CARRY (accumulation in memory block by block).

**SKIP**: blocks and steps of a loop that a mask hides completely are not computed, because they add nothing to a sum. A
hidden element is 0, or -inf below an exponential. The result is exact for finite values; a NaN or an infinity among
hidden elements does not propagate if its complete block is skipped.

**CARRY**: contractions that reduce one tile along both of its sides.

    dq[i] = Σ_j s(i, j)·k[j]        dk[j] = Σ_i s(i, j)·q[i]        with s made of contractions: a row-by-column value

Each sum runs over the parallel range of the other. ``CARRY`` splits both ranges into blocks and shares the loops over
blocks: a tile of s is computed once, and every result adds the tile's contribution.
"""
from __future__ import annotations

import math
from collections.abc import Collection
from typing import TYPE_CHECKING

from tinsmith.codegen.kernel_graph import KernelGraph
from tinsmith.codegen.lower.normalize import conjuncts, names_across
from tinsmith.core.dtypes import dtypes
from tinsmith.ir import Op, Ops, UOp
from tinsmith.ir.algebra.bounds import bound_ranges, start_of
from tinsmith.ir.algebra.sizes import from_linear, linear_form
from tinsmith.ir.structure import THREADS, Role, guard_of, range_size
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
        if no is not None and no.is_const:
            return yes
        return (condition & yes).simplify() if no is None else (condition & yes | _negated(condition) & no).simplify()
    if node.op in (Ops.EXP, Ops.EXP2) and nothing == 0:
        return nothing_where(node.src[0], -math.inf)
    if node.op is Ops.CAST and node.src[0].dtype.is_float:
        return nothing_where(node.src[0], nothing)
    if node.op is Ops.MULADD and nothing != 0 and node.src[1].op is Ops.CONST and node.src[1].arg > 0:
        return nothing_where(node.src[0], nothing)
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
    """Return the statements over blocks that a mask can hide, each with the condition that a block is visible (adds
    something)."""
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
    """Return the loops over blocks whose last blocks a mask hides, each with its number of visible blocks."""
    found, endless = dict[UOp, UOp](), set[UOp]()
    shared = THREADS if k.products else ()  # the threads of a unit's block share the loop count
    around = {r for r in k.parallel if not r.arg[1].expanded and r.arg[1] not in shared}
    for fold in k.folds:
        block = fold.src[0]
        if block.op is Ops.MUL and block.src[1].is_const:
            block = block.src[0]
        if fold.src[1].arg[1] is not Role.BLOCK:
            continue
        loop, product = fold.src[1], block.src[0] if block.op is Ops.FOLD else block
        if fold.arg is Ops.MAX and block.op is Ops.FOLD:
            hidden = nothing_where(block.src[0], -math.inf)
        elif product.op is Ops.MMA and greatest_of(k, loop) is None:
            hidden = nothing_where(product.src[0])
        else:
            continue
        end = end_before(hidden, loop, around) if hidden is not None else None
        if end is None or found.setdefault(loop, end) is not end:
            endless.add(loop)  # one of its sums needs all blocks
    return {loop: end for loop, end in found.items() if loop not in endless}


def end_before(hidden: UOp, loop: UOp, around: Collection[UOp], backwards: bool = False) -> UOp | None:
    """Return the number of steps of a loop after which ``hidden`` holds for all values of the ranges inside it; None if
    none is known. ``backwards``: of the steps from last to first."""
    whole = everywhere(hidden, hidden.ranges - set(around) - {loop})
    if whole is None or whole.op is not Ops.CMPLT:
        return None
    terms, constant = linear_form(whole.src[0] - whole.src[1])
    step = terms.pop(loop, 0) * (1 if backwards else -1)
    fits = step > 0 and not any(loop in t.ranges for t in terms)
    return (from_linear(terms, constant, loop) // step + 1).simplify() if fits else None


def greatest_of(k: KernelGraph, loop: UOp) -> UOp | None:
    """Return the maximum over the blocks of a loop; None if there is none."""
    return next((f for f in k.folds if f.arg is Ops.MAX and f.src[1:] == (loop,)), None)


def clear_end(loop: UOp, nodes: Collection[UOp], around: Collection[UOp]) -> tuple[UOp, dict[UOp, UOp]] | None:
    """Return the step of a loop before which no mask hides an element, and the constant values of the masks before it;
    None if none is known.

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
        terms = _needed(fold.src[0]) if fold.arg is Ops.ADD else _listed_for(fold.src[0], fold.arg)
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


def _listed_for(value: UOp, op: Op) -> list[tuple[UOp, UOp]]:
    """Return pairs (low, high) with a loaded bound: the value is the identity of ``op`` unless low < high for each."""
    while value.op is Ops.CAST and value.dtype.is_float and value.src[0].dtype.is_float:  # keeps the identity
        value = value.src[0]
    if value.op is not Ops.WHERE or not value.src[2].is_const or op.identity is None or (
            value.src[2].arg != op.identity(value.dtype)):
        return []
    pairs = [pair for c in conjuncts(value.src[0]) if (pair := _inequality(c, True)) is not None]
    return [p for p in pairs if any(n.op is Ops.LOAD for n in toposort(p))]


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
    opt.require(all(len(loop.src) == 1 for loop in steps), "the steps of a loop are left out already", "another opt")
    table = {loop: loop.replace(src=(*span, loop.src[-1])) for loop, span in steps.items()}
    k.rebuild_as([s.replace(src=(*s.src[:3], (s.src[3] & found[s]).simplify(), s.src[4])) if s in found else s
                  for s in k.sink.src], table)
    k.reorder()

AROUND = (Role.GLOBAL, *THREADS)  # ranges of which a thread has one value


def block_of(size: int, allowed: range) -> int:
    """Return the longest block size in ``allowed`` that divides a range of ``size``; 0 if none does.

    >>> block_of(512, range(16, 72, 8)), block_of(120, range(16, 72, 8)), block_of(97, range(16, 72, 8))
    (64, 40, 0)
    """
    return next((b for b in reversed(allowed) if size % b == 0), 0)


def carries(store: UOp, r: UOp) -> UOp | None:
    """Return the sum over ``r`` if a statement stores it unchanged and its dtype can hold partial sums; else None."""
    fold = store.src[2]
    plain = store.op is Ops.STORE and fold.op is Ops.FOLD and fold.arg is Ops.ADD and r in fold.src[1:]
    return fold if plain and fold.dtype in (dtypes.float32, dtypes.float64) else None


def crossing(sink: UOp) -> list[list[UOp]]:
    """Return both sides of the tiles that statements share: for each side its ranges in all statements, first in those
    that reduce it. Empty unless all statements share the tiles."""
    main, sides = sink.src[0], list[dict[UOp, None]]()
    for s in sink.src[1:]:
        names = names_across(s, main) or {}
        if not names and main.ranges.isdisjoint(s.ranges):
            return []
        summed = [(r, new) for r, new in names.items() if r.arg[1] is Role.REDUCE]
        rows = [(r, new) for r, new in names.items() if new.arg[1] is Role.REDUCE]
        if len(summed) != 1 or len(rows) != 1:
            continue
        sides = sides or [{}, {}]
        sides[0].update(dict.fromkeys(summed[0]))
        sides[1].update(dict.fromkeys(rows[0][::-1]))
    return [sorted(side, key=lambda r: r.arg[1] is not Role.REDUCE) for side in sides]


def carry(k: KernelGraph, opt: Opt) -> None:
    """Accumulate sums over the axis in blocks of amt[0], in one loop with the blocks of the ranges at the positions
    amt[1:]."""
    positions = (opt.axis, *opt.amt[1:]) if isinstance(opt.amt, tuple) and opt.axis is not None else ()
    names = [k.ranges[n] for n in positions if 0 <= n < len(k.ranges)]
    opt.require(len(set(names)) == len(positions) > 1, "the amount is (block, positions of other ranges)")
    assert isinstance(opt.amt, tuple)
    block, size = opt.amt[0], names[0].src[-1].arg if names[0].src[-1].is_const else 0
    opt.require(all(r.src == names[0].src for r in names) and block > 1 and size % block == 0,
                "the block size must divide the ranges, which must have equal sizes")
    sums = [r for r in names if r.arg[1] is Role.REDUCE]
    opt.require(names[0] in sums and all(r in sums or (r.arg[1] is Role.LOOP and r not in k.bound) for r in names),
                "CARRY needs reductions, and parallel loops")
    opt.require(all(n.op not in (Ops.AFTER, Ops.STAGE, Ops.MMA) for n in k.nodes), "CARRY comes before STAGE and TC")
    for x in k.stores:
        inside = {r for f in toposort(x) if f.op is Ops.FOLD for r in f.src[1:]} & set(sums)
        opt.require(len(inside | (x.ranges & set(names))) == 1 and all(carries(x, r) for r in inside),
                    "each statement must have exactly one of the ranges, as a plain sum over it or as its loop")
    cut = [k.split(r, block, r.arg[1])[0] for r in names]
    if cut[0].op is not Ops.RANGE:
        return
    loop = k.new_range(size // block, Role.BLOCK)
    starts, statements = [], []
    for x in k.sink.src:
        r = next((r for r in cut if r.arg[1] is Role.REDUCE and x.op is Ops.STORE and carries(x, r)), None)
        if r is not None:
            memory, offset, fold = x.src[:3]
            starts.append(x.replace(src=(memory, offset, UOp.const(fold.dtype, 0))))
            part = fold.replace(src=tuple(n for n in fold.src if n is not r))
            x = UOp(Ops.SCATTER_STORE, None, (memory, offset, memory.load(offset) + part, UOp.const(dtypes.bool, True),
                                              loop))
        statements.append(x)
    k.order.insert(min(k.order.index(r) for r in cut), loop)
    k.order = [r for r in k.order if r not in cut]
    k.rebuild_as((*starts, *statements), dict.fromkeys(cut, loop))


def adds_only(k: KernelGraph, r: UOp) -> bool:
    """Return True if the steps of a loop over blocks only add to sums in memory."""
    found = [s for s in k.stores if s.op is Ops.SCATTER_STORE and s.src[4] is r]
    return bool(found) and all(map(added_sum, found))


def steps_together(k: KernelGraph, opt: Opt, r: UOp, amount: int) -> None:
    """Compute ``amount`` steps of a loop at once, if its sums are accumulated in memory; each sum then adds the total
    of the steps."""
    opt.require(range_size(r) % amount == 0 and range_size(r) > amount and adds_only(k, r),
                "UPCAST of a BLOCK loop must divide it, and its steps may only add to sums")
    outer, inner = k.split(r, amount, Role.UPCAST)
    table = {}
    for s in k.stores:
        if s.op is Ops.SCATTER_STORE and s.src[4] is outer and (found := added_sum(s)) is not None:
            old, part = found
            total = old + UOp(Ops.FOLD, None, (part, inner), Ops.ADD)
            table[s] = s.replace(src=(*s.src[:2], total, *s.src[3:]))
    k.sink = k.sink.substitute(table)


def added_sum(store: UOp) -> tuple[UOp, UOp] | None:
    """Return the load of the sum so far, whose address does not depend on the steps, and the value that a step adds;
    None if the store does not accumulate."""
    memory, offset, value, valid, loop = store.src
    if loop in offset.ranges | valid.ranges:
        return None
    if (start := start_of(value)) is not None:
        pairs = [(start, value.replace(src=value.src[:-1]))]
    else:
        pairs = [(a, b) for a, b in zip(value.src, value.src[::-1]) if value.op is Ops.ADD]
    for old, part in pairs:
        if old.op is Ops.LOAD and old.src[:2] == (memory, offset):
            return old, part
    return None


def continued(sink: UOp) -> UOp:
    """Continue sums that are accumulated in memory in one accumulator: old + Σ x = Σ x starting from old."""
    table = {}
    for s in (n for n in toposort(sink) if n.op is Ops.SCATTER_STORE):
        old, part = added_sum(s) or (None, None)
        if old is not None and part is not None and s.src[2].op is Ops.ADD and goes_on(part):
            table[s] = s.replace(src=(*s.src[:2], part.replace(src=(*part.src, old)), *s.src[3:]))
    return sink.substitute(table) if table else sink


def goes_on(part: UOp) -> bool:
    """Return True if a sum can continue in the accumulators of its loop: these hold one value per element, not a unit's
    fragment. Fully unrolled sums do not continue: they are added up first, so that steps do not depend on each
    other."""
    if part.op is not Ops.FOLD or part.arg is not Ops.ADD or part.src[0].op is Ops.MMA:
        return False
    roles = {r.arg[1] for r in bound_ranges(part)}
    return Role.REDUCE in roles and roles <= {Role.REDUCE, Role.UPCAST, Role.UNROLL}


def in_register(store: UOp) -> bool:
    """Return True if a sum over blocks stays in a register of the thread that adds to it: its address depends only on
    expanded ranges, threads and axes of the grid."""
    expanded = all(r.arg[1].expanded or r.arg[1] in AROUND for r in store.src[1].ranges)
    return expanded and is_sum_over_blocks(store)


def is_sum_over_blocks(store: UOp) -> bool:
    """Return True for a sum in memory to which each step of a loop over blocks adds; False for a scatter."""
    if store.op is not Ops.SCATTER_STORE or store.src[4].op is not Ops.RANGE:  # a loop of one step has no range
        return False
    return store.src[4].arg[1] is Role.BLOCK and added_sum(store) is not None
