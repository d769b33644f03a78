"""Sums accumulated in memory block by block, the opt CARRY: contractions of one tile along both of its sides.

    dq[i] = Σ_j s(i, j)·k[j]        dk[j] = Σ_i s(i, j)·q[i]        with s made of contractions: a row-by-column value

Each sum runs over the parallel range of the other. ``CARRY`` cuts both ranges into blocks and shares the loops over
blocks: a tile of s is computed once, and every result adds the tile's contribution.
"""
from __future__ import annotations

from typing import TYPE_CHECKING

from tinsmith.codegen.kernel_graph import KernelGraph
from tinsmith.codegen.lower.normalize import names_across
from tinsmith.core.dtypes import dtypes
from tinsmith.ir import Ops, UOp
from tinsmith.ir.algebra.bounds import bound_ranges, start_of
from tinsmith.ir.ranges import THREADS, Role, range_size
from tinsmith.ir.uop import toposort

if TYPE_CHECKING:
    from tinsmith.codegen.opt import Opt

AROUND = (Role.GLOBAL, *THREADS)  # ranges of which a thread has one value


def block_of(size: int, allowed: range) -> int:
    """Return the longest block size in ``allowed`` that divides a range of ``size``; 0 if none does.

    >>> block_of(512, range(16, 72, 8)), block_of(120, range(16, 72, 8)), block_of(97, range(16, 72, 8))
    (64, 40, 0)
    """
    return next((b for b in reversed(allowed) if size % b == 0), 0)


def carries(store: UOp, r: UOp) -> UOp | None:
    """Return the sum over ``r`` if it is all that a statement stores and has a type that keeps partial sums; else
    None."""
    fold = store.src[2]
    plain = store.op is Ops.STORE and fold.op is Ops.FOLD and fold.arg is Ops.ADD and r in fold.src[1:]
    return fold if plain and fold.dtype in (dtypes.float32, dtypes.float64) else None


def crossing(sink: UOp) -> list[list[UOp]]:
    """Return both sides of the tiles that statements share: for each side the ranges of it in the statements, those
    that reduce it first. Empty unless all statements share the tiles."""
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
    """Compute ``amount`` steps of a loop whose sums are accumulated in memory at once; a sum adds their total."""
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
    """Return the sum so far, at an address that the steps do not move, and the value that a step adds; None if the
    store is no such sum."""
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
    """Return True if a sum has a loop in whose accumulators it can continue: one per element, and not in a unit's
    fragment order. Fully unrolled sums are added up first, so that steps do not depend on each other."""
    if part.op is not Ops.FOLD or part.arg is not Ops.ADD or part.src[0].op is Ops.MMA:
        return False
    roles = {r.arg[1] for r in bound_ranges(part)}
    return Role.REDUCE in roles and roles <= {Role.REDUCE, Role.UPCAST, Role.UNROLL}


def in_register(store: UOp) -> bool:
    """Return True if a sum over blocks stays in a register of the thread that adds to it: only expanded ranges and
    those of threads and the grid move its address."""
    if store.op is not Ops.SCATTER_STORE or store.src[4].op is not Ops.RANGE:  # a loop of one step has no range
        return False
    if store.src[4].arg[1] is not Role.BLOCK:  # not a scatter
        return False
    expanded = all(r.arg[1].expanded or r.arg[1] in AROUND for r in store.src[1].ranges)
    return expanded and added_sum(store) is not None
