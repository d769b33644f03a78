"""Opts of blocks of threads: the axes of the grid, LOCAL, GROUP, GROUPTOP, ROLES, and RANK.

A reduction that threads share is a stage in local memory: every thread computes a partial result, and all threads read
the partial results back:

    FOLD(x, r, g)   →   FOLD(load(STAGE(FOLD(x, r), g'), g2), g2)        g' runs over threads, g2 is a loop

Its semantics are those of any other kernel graph. The linearizer replaces g' by the thread's own number and puts a
barrier after the stage.

RANK computes block-wide histograms and ranks of keys:

    count of d:      FOLD(key(r) == d, r)
    rank of step s:  FOLD(r < s and key(r) == key(s), r)

Taken literally, both compare all pairs. The opt keeps these nodes in the graph and divides the steps among threads:
each warp takes a contiguous piece, 32 steps at a time, and keeps a counter for each key
(``codegen/emit/block_rank.py``).
"""
from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from tinsmith.codegen.kernel_graph import KernelGraph
from tinsmith.codegen.lower.indexing import strides
from tinsmith.codegen.opt import Opt
from tinsmith.codegen.transform import matrix_units
from tinsmith.codegen.transform.stage_builder import Side, from_stage
from tinsmith.ir import Ops, UOp
from tinsmith.ir.algebra.sizes import linear_form
from tinsmith.ir.algebra.symbolic import simplify
from tinsmith.ir.structure import THREADS, Role, divides, range_size
from tinsmith.ir.uop import toposort

if TYPE_CHECKING:
    from tinsmith.codegen.opt import Opt

ROWS_OF_GRID = (1 << 16) - 1  # largest size of the second and third axis of a grid


# *** the grid ***
def to_grid(k: KernelGraph, role: Role = Role.GLOBAL) -> None:
    """Turn every parallel loop that all stores and large reductions depend on into an axis of the grid (or into
    ``role``).

    A loop that a large reduction does not depend on stays a loop, because otherwise every block would repeat the same
    reduction.

    A loop of symbolic size becomes an axis of its greatest size, as long as all such axes together have at most
    ``in_vain`` blocks.
    """
    for r in k.parallel:
        if role is Role.LOOP or r.arg[1] is not Role.LOOP or not all(r in s.ranges for s in k.stores) or any(
                r not in f.ranges and _is_repeated(k, f, r) for f in k.folds):
            continue
        if isinstance(range_size(r), int):
            k.change_role(r, role)
        elif k.symbolic_blocks * range_size(r).vmax <= k.target.blocks.in_vain:
            k.symbolic_blocks *= range_size(r).vmax
            new = k.new_range(range_size(r).vmax, role)
            k.rebuild({r: new}, new.lt(range_size(r)), r)
            k.order[k.order.index(r)] = new


def _is_repeated(k: KernelGraph, fold: UOp, r: UOp) -> bool:
    """Return True if a reduction should not be repeated for each step of ``r``: it is long, or it is of a short row
    that is stored as well, and the rows are enough threads."""
    elements, blocks = _elements(fold), k.target.blocks
    rows = [q for q in k.parallel if q is not r]
    return elements > blocks.short or (
        blocks.least_shared <= elements == r.src[-1].vmax and all(q in fold.ranges for q in rows)
        and prod(int(q.src[-1].vmax) for q in rows) >= k.target.cores * k.target.resident // 4)


def _elements(fold: UOp) -> int:
    return prod(int(r.src[-1].vmax) for r in fold.src[1:])


def grid_axes(k: KernelGraph) -> list[list[UOp]]:
    """Return the ranges of each axis of the grid, the fastest first: one range per axis, or all ranges in one axis."""
    blocks = [r for r in reversed(k.order) if r.arg[1] is Role.GLOBAL]
    if k.blocks or len(blocks) > 3 or any(range_size(r) > ROWS_OF_GRID for r in blocks[1:]):
        return [blocks]
    return [[r] for r in blocks]


def thread_axes(k: KernelGraph) -> list[list[UOp]]:
    """Return the ranges of each axis of a block, the fastest first.

    Ranges of equal size share an axis if no value depends on both: the threads that reduced a row then write its
    elements.
    """
    threads = [r for r in reversed(k.order) if r.arg[1] in THREADS]
    apart: set[frozenset[UOp]] = set()
    wanted = set(threads)
    for n in toposort(k.sink) if threads else []:
        used = n.ranges | (n.src[0].ranges if n.op is Ops.STAGE else frozenset())
        own = wanted & used
        apart |= {frozenset(pair) for pair in combinations(own, 2)}
    axes: list[list[UOp]] = []
    for r in threads:
        fits = [axis for axis in axes if range_size(axis[0]) == range_size(r)
                and not any(frozenset((r, x)) in apart for x in axis)]
        if fits:  # prefer an axis with a range of the same role: filling and reading of one stage
            min(fits, key=lambda axis: all(x.arg[1] is not r.arg[1] for x in axis)).append(r)
        else:
            axes.append([r])
    return sorted(axes, key=lambda axis: _pitch(k, axis)) if len(axes) > 1 else axes


def _pitch(k: KernelGraph, axis: list[UOp]) -> tuple[int, int]:
    """Return a sort key of an axis of a block: the distance between adjacent threads in the largest memory that they
    access. The axis with the smallest distance comes first, so that its threads are in one warp (coalescing)."""
    if not k.scan_threads.isdisjoint(axis):
        return (-1 << 62, 0)  # a scan: neighbours exchange values
    found = [(1, 0)]
    for n in k.nodes:
        if n.op in (Ops.LOAD, Ops.STORE) and n.src[0].op is Ops.PARAM:
            terms = linear_form(n.src[1])[0]
            size = n.src[0].arg[1][0]
            weights = terms if not set(terms).isdisjoint(axis) else strides(n.src[1])
            found += [(-(size if isinstance(size, int) else size.vmax), abs(weights[r])) for r in axis if r in weights]
    size, step = min(found)
    return (0, step) if size <= 0 else (1, 0)


def threads_per_block(k: KernelGraph) -> int:
    lanes: int = max((p.arg.threads for p in k.products), default=1)
    return lanes * (prod(int(range_size(axis[0])) for axis in thread_axes(k)) * k.tiles_in_turn + k.roles)


# *** the opts ***
def _threads_allowed(k: KernelGraph, opt: Opt) -> None:
    name = opt.op.name
    opt.require(bool(k.target.block_threads), f"{name} needs blocks of threads with local memory and barriers, which "
                "this device does not have", "UPCAST, VECTOR, UNROLL, TILE, STAGE or THREAD; or a device like OPENCL "
                "or PYTHON")
    opt.require(all(r.arg[1] is not Role.THREAD for r in k.order), "the kernel is split over workers already",
                "one of THREAD and LOCAL/GROUP")
    opt.require(not k.products or (name == "LOCAL" and k.products[0].arg.threads > 1),
                "a matrix unit's reduction cannot be shared, and a one-thread unit has no LOCAL threads",
                "LOCAL with a unit of several threads")
    opt.require(all(o.op.name != "NOLOCALS" for o in k.opts), "NOLOCALS was applied before",
                "a list of opts without it")


def changed(k: KernelGraph, opt: Opt, change: Callable[[KernelGraph], None]) -> None:
    """Apply ``change`` to ``k`` unless its blocks then have too many threads. The change is tried on a copy, because
    ranges may share an axis."""
    trial = k.copied()
    change(trial)
    threads, most = threads_per_block(trial), k.target.block_threads
    opt.require(threads <= most, f"a block has at most {most} threads, it would have {threads}", "a smaller amount")
    vars(k).update(vars(trial))


def may_be_shared(k: KernelGraph, r: UOp) -> bool:
    """Return True if threads may share a range: no stage in local memory is filled separately for each of its
    values."""
    return not any(n.op is Ops.STAGE and r in n.ranges and not matrix_units.held(n) for n in toposort(k.sink))


def _before_stages(k: KernelGraph, opt: Opt, r: UOp) -> None:
    opt.require(may_be_shared(k, r), "a stage depends on this range",
                "LOCAL before GROUP, and both before STAGE")


def local(k: KernelGraph, opt: Opt) -> None:
    """Turn the inner `amt` of a parallel loop into threads of a block."""
    r = k.axis(opt)
    parallel = r not in k.bound and r.arg[1] in (Role.LOOP, Role.GLOBAL) and any(r in s.ranges for s in k.stores)
    opt.require(parallel, "LOCAL needs a parallel loop that a store depends on")
    filled = {s.src[0] for s in k.stores if r in s.ranges}
    opt.require(all(s.src[0] not in filled or r in s.ranges for s in k.stores),
                "two statements store to the same memory, and only one depends on the axis")
    amount = opt.part_of(range_size(r))
    _threads_allowed(k, opt)
    _before_stages(k, opt, r)

    def change(new: KernelGraph) -> None:
        at = new.order.index(r)
        to_grid(new)  # a range of symbolic size gets another number there
        new.split(new.order[at], amount, Role.LOCAL)

    changed(k, opt, change)


def roles(k: KernelGraph, opt: Opt) -> None:
    """Apply warp specialization: producer warps fill the slots of the rings that a unit reads its operands from. With
    an amount, that number of consumer groups alternate (ping-pong): all groups of a chain at its unit, block by block
    of its loop; else over tiles of the grid, one each: while one group stores its result, another's products run."""
    opt.require(any(p.arg.staged for p in k.products) and not k.roles,
                "ROLES needs a matrix unit that reads staged operands, and applies once")
    operands = {n.src[0] for p in k.products for n in p.src[:2]}
    opt.require(all(n.op is not Ops.STAGE or n in operands or matrix_units.held(n) for n in k.nodes),
                "all stages must be operands of the unit")
    turns = opt.amt or 0
    opt.require(isinstance(turns, int) and turns >= 0 and turns != 1,
                "the amount is None or the number of ping-pong groups")
    assert isinstance(turns, int)
    groups = threads_per_block(k) // max(p.arg.threads for p in k.products)
    if turns and k.goes_by_blocks:
        opt.require(turns == groups, f"ping-pong of a chain needs all its {groups} groups",
                    "that amount, or LOCAL before")
    several = groups == len(k.products) == 1 and 0 < k.blocks < prod(range_size(r) for r in k.order
                                                                     if r.arg[1] is Role.GLOBAL)
    opt.require(not turns or k.goes_by_blocks or several, "ping-pong needs a chain, or a "
                "persistent block that loops over tiles of the grid", "WALK with fewer blocks, and no LOCAL")

    def change(new: KernelGraph) -> None:
        new.roles, new.turns = True, turns

    changed(k, opt, change)


def group(k: KernelGraph, opt: Opt) -> None:
    """Let `amt` threads share a reduction: GROUP divides the steps cyclically, GROUPTOP gives each thread a contiguous
    piece."""
    top = opt.op.name == "GROUPTOP"
    r = k.axis(opt)
    if r in k.ordered and not top:
        return _share_steps(k, opt, r)
    opt.require(r.arg[1] is Role.REDUCE, "GROUP needs a reduction")
    amount = opt.part_of(range_size(r))
    fixed = isinstance(range_size(r), int)
    opt.require(not top or (fixed and range_size(r) % amount == 0), f"the number of pieces must divide {range_size(r)}")
    _threads_allowed(k, opt)
    _before_stages(k, opt, r)

    def change(new: KernelGraph) -> None:
        outer, inner = new.split(r, range_size(r) // amount if top else amount, Role.REDUCE)
        _share(new, outer if top else inner)

    changed(k, opt, change)


def _share_steps(k: KernelGraph, opt: Opt, r: UOp) -> None:
    """Share the steps of a scan: threads take adjacent vectors of steps and exchange their partial results."""
    _threads_allowed(k, opt)
    amount = opt.part_of(range_size(r))
    opt.require(k.target.warp > 0 and not any(n.op is Ops.PREFIX and n.arg is Ops.MULADD for n in k.nodes),
                "threads cannot combine the steps of this scan")
    opt.require(not (k.scan_threads or amount & (amount - 1)) and divides(amount, range_size(r)),
                "GROUP of a scan needs a power of two that divides the steps, once", "PADTO and VECTOR before")

    def change(new: KernelGraph) -> None:
        to_grid(new)
        _, own = new.split(new.numbered[r.arg[0]], amount, Role.GROUP)
        new.order.append(new.order.pop(new.order.index(own)))

    changed(k, opt, change)


def _share(k: KernelGraph, g: UOp) -> None:
    """Turn every reduction over ``g`` into partial results of threads in local memory, which are then combined."""
    count = range_size(g)
    own, again = k.new_range(count, Role.GROUP), k.new_range(count, Role.REDUCE)
    copies: dict[UOp, UOp] = {}  # copies of thread and lane ranges, which fill the stage
    while fold := next((f for f in k.folds if g in f.src[1:]), None):
        loops = tuple(s for s in fold.src[1:] if s is not g)
        part = UOp(Ops.FOLD, None, (fold.src[0], *loops), fold.arg) if loops else fold.src[0]
        beside = [r for r in k.order if r in part.ranges and r.arg[1] in (*THREADS, Role.VECTOR)]
        for r in beside:
            if r not in copies:
                copies[r] = k.new_range(range_size(r), r.arg[1])
        sides = [Side((copies[r],), r) for r in beside if r.arg[1] in THREADS]
        sides += [Side((own,), again), *(Side((copies[r],), r) for r in beside if r.arg[1] is Role.VECTOR)]
        load = from_stage(part, sides, {g: own} | {r: copies[r] for r in beside})
        whole = UOp(Ops.FOLD, None, (load, again), fold.arg)
        k.sink = k.sink.substitute({fold: whole})
    k.order[k.order.index(g)] = again
    k.order += [*copies.values(), own]


def no_locals(k: KernelGraph, opt: Opt) -> None:
    """Use no threads of a block: the device chooses the size of blocks. This opt must come before LOCAL and GROUP."""
    opt.require(bool(k.target.block_threads), "this device has no blocks of threads", "a list of opts without it")
    opt.require(all(r.arg[1] not in THREADS for r in k.order), "the kernel has threads in blocks already",
                "a list of opts without LOCAL, GROUP and GROUPTOP")
    to_grid(k)


class Count(NamedTuple):
    """A count of the steps of a range whose key equals a given key.

    Attributes:
        steps: the range.
        key: the key of each step.
        asked: the key to count, which does not depend on ``steps``.
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
        to_grid(new)
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

    changed(k, opt, change)


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
    """Return the step that a thread computes in iteration ``turn``: adjacent threads of a warp take adjacent steps, and
    the iterations of a warp are consecutive."""
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
