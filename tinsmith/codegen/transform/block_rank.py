"""Block-wide histogram and rank of keys, the opt RANK: threads of a block share the counts of equal keys.

    count of d:      FOLD(key(r) == d, r)
    rank of step s:  FOLD(r < s and key(r) == key(s), r)

Taken literally, both compare all pairs. The opt RANK keeps these nodes in the graph and divides the steps among
threads: each warp takes a contiguous piece, 32 steps at a time, and keeps a counter for each key
(``codegen/emit/block_rank.py``).
"""
from __future__ import annotations

from typing import NamedTuple

from tinsmith.codegen.kernel_graph import KernelGraph
from tinsmith.codegen.opt import Opt
from tinsmith.codegen.transform import thread_blocks
from tinsmith.ir import Ops, UOp
from tinsmith.ir.algebra.symbolic import simplify
from tinsmith.ir.ranges import THREADS, Role, range_size


class Count(NamedTuple):
    """A count of the steps of a range whose key equals a given key.

    Attributes:
        steps: the range.
        key: the key of each step.
        asked: the key that is counted; it does not depend on ``steps``.
        before: only steps below this one count (a rank); None: all steps.
    """

    steps: UOp
    key: UOp
    asked: UOp
    before: UOp | None


def counted(fold: UOp) -> Count | None:
    """Return the count that a FOLD computes; None if it is no count."""
    body = fold.src[0]
    if fold.op is not Ops.FOLD or fold.arg is not Ops.ADD or len(fold.src) != 2 or not fold.dtype.is_int:
        return None
    if body.op is not Ops.CAST or not body.src[0].dtype.is_bool:
        return None
    r, condition, before = fold.src[1], body.src[0], None
    if condition.op is Ops.AND:
        order, condition = sorted(condition.src, key=lambda c: c.op is not Ops.CMPLT)
        if order.op is not Ops.CMPLT or (before := _first_beyond(order, r)) is None:
            return None
    if condition.op is not Ops.CMPEQ:
        return None
    asked, key = sorted(condition.src, key=lambda x: r in x.ranges)
    if r in asked.ranges or r not in key.ranges:
        return None
    return Count(r, key, asked, before)


def _first_beyond(order: UOp, r: UOp) -> UOp | None:
    """Return the first step for which ``order``, a comparison ``r < b``, is false; None if it is another comparison."""
    a, b = (s.src[0] if s.op is Ops.CAST else s for s in order.src)
    return b if a is r and r not in b.ranges else None


def rank(k: KernelGraph, opt: Opt) -> None:
    """Let `amt` threads of a block count the equal keys of all steps of a range; there are at most as many keys as
    threads."""
    r, threads, warp = k.axis(opt), opt.amt, k.target.warp
    opt.require(isinstance(threads, int) and k.target.matches and threads % warp == 0 < threads <=
                k.target.block_threads, "RANK needs warp match instructions, and full warps of threads in one block")
    assert isinstance(threads, int)
    size = range_size(r)
    opt.require(r.arg[1] is Role.REDUCE and isinstance(size, int) and size % threads == 0,
                "the number of threads must divide a reduction of fixed size")
    count, *more = [counted(f) for f in k.folds if r in f.src[1:]]
    alone = not more and len(k.stores) == 1 and not k.products and all(n.op is not Ops.STAGE for n in k.nodes)
    if count is None or not alone:
        raise opt.illegal("the reduction does not count equal keys, or the kernel computes more")
    opt.require(not any(x.arg[1] in THREADS or x.arg[1].expanded for x in k.order),
                "RANK comes before LOCAL, GROUP, UPCAST and VECTOR")
    low, high = count.key.bounds
    opt.require(0 <= low <= high < threads, f"keys from {low} to {high} do not fit {threads} counters, one per thread")
    opt.require(local_bytes(k.stores[0], count, size, threads, warp) <= k.target.local_bytes,
                f"counters and {size} steps do not fit into {k.target.local_bytes} bytes", "fewer steps")
    own = _own_range(count)
    fits = own is not None and own not in k.bound and all(own in s.ranges for s in k.stores)
    if own is None or not fits or (count.before is None and range_size(own) != threads):
        raise opt.illegal("each result must be indexed by key, or by the ranked step")

    def change(new: KernelGraph) -> None:
        thread_blocks.to_grid(new)
        mine = new.numbered[own.arg[0]]
        new.change_role(new.numbered[r.arg[0]], Role.RANK)
        if count.before is None:
            new.order.append(new.order.pop(new.order.index(mine)))
            new.change_role(mine, Role.LOCAL)
            return
        if range_size(mine) > size:
            _, mine = new.split(mine, size, Role.LOOP)
        thread, turn = new.new_range(threads, Role.LOCAL), new.new_range(size // threads, Role.UPCAST)
        new.rebuild({mine: step_of(thread, turn, size // threads, warp)})
        new.order[new.order.index(mine)] = thread
        new.order += [turn] if turn.op is Ops.RANGE else []

    thread_blocks.changed(k, opt, change)


def local_bytes(store: UOp, count: Count, size: int, threads: int, warp: int) -> int:
    """Return the bytes of local memory of a block: counters of each warp; for ranks also the start of each key and
    exchanged elements."""
    counters = 4 * threads * (threads // warp)
    if count.before is None:
        return counters
    moved = store.src[2].dtype.itemsize + 4 * (not follows(count.asked, store.src[2]))
    return counters + 4 * (threads + warp) + size * moved * exchanged(store)


def exchanged(store: UOp) -> bool:
    """Return True if a store's index is a rank plus an offset and fits 32 bits, so that elements are exchanged in local
    memory."""
    size = store.src[0].arg[1][0]
    return place_of(store).op is Ops.ADD and isinstance(size, int) and size < 1 << 31 and any(
        n.op is Ops.FOLD and counted(n) is not None for n in place_of(store).src)


def place_of(store: UOp) -> UOp:
    """Return the index of a store without its casts."""
    place = store.src[1]
    while place.op is Ops.CAST:
        place = place.src[0]
    return place


def follows(key: UOp, value: UOp) -> bool:
    """Return True if a step's key can be computed from the value that the step stores."""
    return not key.substitute({value: UOp.const(value.dtype, 0)}).ranges


def step_of(thread: UOp, turn: UOp, turns: int, warp: int) -> UOp:
    """Return the step that a thread takes in a turn: adjacent threads of a warp take adjacent steps, and a warp's turns
    follow each other."""
    return (thread // warp * (turns * warp) + turn * warp + thread % warp).simplify()


def _own_range(count: Count) -> UOp | None:
    """Return the range of the results: the keys of a histogram, or the ranked steps."""
    if count.before is None:
        asked = count.asked.src[0] if count.asked.op is Ops.CAST else count.asked
        return asked if asked.op is Ops.RANGE else None
    s, size = count.before, range_size(count.steps)
    own = s.src[0] if s.op is Ops.MOD and s.src[1].is_const and s.src[1].arg == size else s
    if own.op is not Ops.RANGE or not isinstance(whole := range_size(own), int) or whole % size:
        return None
    return own if simplify(count.key.substitute({count.steps: s})) is simplify(count.asked) else None


def ranked(node: UOp) -> list[UOp]:
    """Return the counts in a node whose steps are divided among threads (RANK)."""
    return [n for n in node.toposort() if n.op is Ops.FOLD and n.src[1].op is Ops.RANGE
            and n.src[1].arg[1] is Role.RANK]
