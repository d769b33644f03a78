"""The implementation of each opt as a handler, and its legality checks.

A handler applies its opt completely, or raises and leaves the kernel unchanged. It returns the opts to record in
``Kernel.opts`` where these differ from the one given, else None.
"""
from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from tinsmith.codegen.kernel_graph import KernelGraph
from tinsmith.codegen.lower import loop_partition
from tinsmith.codegen.opt import Opt, OptOps
from tinsmith.codegen.transform import back_to_back_gemm, matrix_units, skip_masked_blocks, stages, thread_blocks
from tinsmith.core.errors import ArgumentError
from tinsmith.ir import Ops, UOp
from tinsmith.ir.algebra.symbolic import simplify
from tinsmith.ir.matrix_unit import MatrixUnit
from tinsmith.ir.structure import THREADS, Axis, Role, contraction, divides, is_partial, range_size
from tinsmith.ir.uop import toposort
from tinsmith.target.units.x86 import fma


def _is_parallel(k: KernelGraph, r: UOp) -> bool:
    return r.arg[1] in (Role.LOOP, Role.THREAD, Role.GLOBAL) and r not in k.bound


def _upcast(k: KernelGraph, opt: Opt) -> None:
    r = k.axis(opt)
    if r.arg[1] is Role.BLOCK:
        return skip_masked_blocks.steps_together(k, opt, r, opt.part_of(range_size(r)))
    opt.require(_is_parallel(k, r), "only a parallel loop can be upcast")
    amount = opt.part_of(range_size(r))
    for n in k.products:
        sums = math.prod(range_size(x) for x in n.ranges if x.arg[1] is Role.UPCAST)
        opt.require(r not in n.ranges or sums * amount <= n.arg.accumulators,
                    f"{n.arg.name} has {n.arg.accumulators} accumulators")
    k.split(r, amount, Role.UPCAST)
    return None


def _unroll(k: KernelGraph, opt: Opt) -> None:
    r = k.axis(opt)
    opt.require(r.arg[1] is Role.REDUCE, "only a reduction can be unrolled")
    amount = opt.part_of(range_size(r))
    whole = divides(amount, range_size(r)) or all(p.arg.fragment_c.whole for p in k.products)
    opt.require(whole or not _feeds_unit(k, r), "UNROLL must divide the reduction of a warp's unit (PADTO before TC)")
    opt.require(divides(amount, range_size(r)) or not any(r in f.src[1:] and _of_threads(f.src[0]) for f in k.folds),
                "UNROLL must divide a sum of threads' partial results, whose reads have no guard")
    k.split(r, amount, Role.UNROLL)


def _of_threads(value: UOp) -> bool:
    """Return True for an element of a stage that holds partial results of threads (``GROUP``)."""
    stage = value.src[0] if value.op is Ops.LOAD else value
    return stage.op is Ops.STAGE and any(r.arg[1] is Role.GROUP for r in stage.src[1:])


def _vector(k: KernelGraph, opt: Opt) -> None:
    r = k.axis(opt)
    size = range_size(r)
    amount = opt.part_of(size, 2 * r.vmax + 1)
    opt.require(amount & (amount - 1) == 0, "the number of lanes must be a power of two")
    opt.require(not k.scan_lanes, "the scan is vectorized already")
    if r in k.ordered:
        running = [n for n in toposort(k.sink) if n.op is Ops.PREFIX]
        opt.require(divides(amount, size), "the number of lanes must divide the steps of a scan")
        opt.require(not k.scan_threads, "GROUP was applied to the scan already")
        opt.require(all(n.arg is not Ops.MULADD and n.src[1] is r for n in running),
                    "the steps of this scan cannot be combined")
        opt.require(k.may_have_lanes(r), "a value can be vectorized along one range only")
        opt.require(not any(n.op is Ops.STAGE for n in toposort(k.sink)), "a vectorized scan cannot have stages")
        k.split(r, amount, Role.VECTOR)
        return
    opt.require(_is_parallel(k, r) or r.arg[1] is Role.REDUCE, "only a loop can be vectorized")
    opt.require(k.may_have_lanes(r), "a value can be vectorized along one range only")
    stages = [n for n in toposort(k.sink) if n.op is Ops.STAGE]
    opt.require(not any(r in n.ranges for n in stages), "a stage depends on this range")
    k.split(r, amount, Role.VECTOR)


def _tile(k: KernelGraph, opt: Opt) -> None:
    r = k.axis(opt)
    opt.require(r.arg[1] in (Role.LOOP, Role.GLOBAL, Role.REDUCE), "only loops can be tiled")
    opt.require(r not in k.bound or r.arg[1] is Role.REDUCE, "an ordered loop cannot be tiled")
    opt.require(not _feeds_unit(k, r), "the reduction of a matrix unit must be a single loop")
    amount = opt.part_of(range_size(r))
    opt.require(divides(amount, range_size(r)) or (r.arg[1] is Role.LOOP and not is_partial(r)),
                "a tile must divide the range of a reduction, a grid or a partial loop")
    k.split(r, amount, r.arg[1])


def _feeds_unit(k: KernelGraph, r: UOp) -> bool:
    """Return True if ``r`` is reduced by the steps of a matrix unit, whose accumulators live in one loop."""
    return any(f.src[0].op is Ops.MMA and r in f.src[1:] for f in k.folds)


def _thread(k: KernelGraph, opt: Opt) -> None:
    r = k.axis(opt)
    opt.require(r.arg[1] is Role.LOOP and r not in k.bound, "THREAD needs a parallel loop")
    opt.require(not any(x.arg[1] in (Role.THREAD, *THREADS) for x in k.order),
                "the kernel has threads already")
    opt.require(loop_partition.first_loop(k) is r, "THREAD needs the outermost loop")
    outermost = {r} if all(r in s.ranges for s in k.stores) else loop_partition.outermost_loops(k)
    fits = r in outermost and all(x.arg[1] is Role.LOOP and x not in k.bound for x in outermost)
    opt.require(fits, "every store must depend on the loop, or have its own outermost parallel loop")
    for x in outermost:
        k.change_role(x, Role.THREAD)


def _swap(k: KernelGraph, opt: Opt) -> None:
    a = k.axis(opt)
    b = k.axis(Opt(opt.op, opt.amt if isinstance(opt.amt, int) else None))
    opt.require(a.arg[1] == b.arg[1] and not a.arg[1].expanded, "SWAP needs two loops with the same role")
    opt.require((a in k.bound) == (b in k.bound), "a parallel loop cannot be swapped with an ordered one")
    i, j = k.order.index(a), k.order.index(b)
    k.order[i], k.order[j] = b, a


def _padto(k: KernelGraph, opt: Opt) -> None:
    r = k.axis(opt)
    opt.require(isinstance(opt.amt, int) and opt.amt > 1 and isinstance(range_size(r), int),
                "PADTO needs an amount above 1 and a range of fixed size")
    opt.require(_is_parallel(k, r) or r.arg[1] is Role.REDUCE or r in k.ordered, "only loops can be padded")
    opt.require(r not in k.ordered or not k.scan_lanes | k.scan_threads,
                "PADTO of a scan comes before VECTOR and GROUP")
    assert isinstance(opt.amt, int)
    k.pad(r, opt.amt)


def _merge(k: KernelGraph, opt: Opt) -> None:
    a = k.axis(opt)
    b = k.axis(Opt(opt.op, opt.amt if isinstance(opt.amt, int) else None))
    reduced = a.arg[1] is b.arg[1] is Role.REDUCE
    fits = reduced or (_is_parallel(k, a) and _is_parallel(k, b))
    opt.require(a is not b and fits, "MERGE needs two parallel loops or two reduction loops")
    opt.require(not reduced or all((a in f.src[1:]) == (b in f.src[1:]) for f in k.folds),
                "each reduction must have both loops or neither")
    opt.require(not reduced or all(n.op is not Ops.STAGE for n in k.nodes), "MERGE comes before STAGE")
    opt.require(not is_partial(a) and not is_partial(b), "a partial range cannot be merged")
    opt.require(all((a in s.ranges) == (b in s.ranges) for s in k.stores),
                "every store must depend on both loops or neither")
    opt.require(a.arg[1] is b.arg[1], "MERGE needs two loops with the same role")
    k.merge(a, b)


def _unit_of(k: KernelGraph, opt: Opt, fold: UOp, m: UOp, n: UOp) -> MatrixUnit:
    """Return the unit that the opt names, else the first unit with matching types; without one, a ``muladd`` unit."""
    everywhere = (*(u for u in k.target.units if u.emit == "muladd"), fma(fold.dtype, 0))
    for unit in (*(u for u in k.target.units if u.emit != "muladd"), *everywhere):
        wanted = opt.unit == unit.name or (not opt.unit and not unit.rounds)
        if wanted and matrix_units.operands(fold, m, n, unit):
            return unit
    known = ", ".join(u.name for u in k.target.units) or "none"
    raise ArgumentError("Opt", f"{opt}: no matrix unit of that name computes this product (the target has: {known})",
                        "the opt without a unit, which falls back on an outer product of multiply-adds")


def _matrix_unit(k: KernelGraph, opt: Opt) -> list[Opt]:
    """Pad the ranges of a sum of products to full tiles, split them, and run the steps on a matrix unit.

    The opt is recorded with the unit's name, so that it has the same effect on another target.
    """
    r = k.axis(opt)
    amt = opt.amt if isinstance(opt.amt, tuple) else ()
    opt.require(len(amt) in (2, 4), "the amount is (m, n) or (m, n, copies along m, copies along n)")
    m, n = (k.axis(Opt(opt.op, a)) for a in amt[:2])
    opt.require(m is not n and all(_is_parallel(k, x) and x.arg[1] in (Role.LOOP, Role.GLOBAL) for x in (m, n)),
                "m and n are two parallel loops")
    opt.require(not any(x.arg[1] in THREADS for x in k.order), "TC comes before LOCAL and GROUP")
    fixed = all(isinstance(range_size(x), int) and not is_partial(x) for x in (m, n, r))
    opt.require(fixed, "TC needs full ranges of fixed size")
    fold = next((f for f in k.folds if r in f.src[1:] and contraction(f, guarded=True)), None)
    if fold is None:
        raise opt.illegal("the axis is not reduced by a sum of products")
    inside = toposort(fold)
    plain = not any(x.arg[1].expanded for x in fold.src[0].ranges) and all(x.op is not Ops.STAGE for x in inside)
    opt.require(plain, "TC comes before UPCAST, VECTOR and STAGE")
    opt.require({m, n} <= fold.ranges, "the sum must depend on m and n")
    unit = _unit_of(k, opt, fold, m, n)
    opt.require(not unit.fragment_c.whole or Role.GLOBAL not in (m.arg[1], n.arg[1]),
                f"{unit.name} cannot run on a grid")
    mu, nu = amt[2:] or (1, 1)
    opt.require(mu > 0 and nu > 0 and mu * nu <= unit.accumulators, f"{unit.name} has {unit.accumulators} accumulators")
    if sum(x.op is Ops.FOLD for x in inside) > 1:
        opt.require(mu == 1, "a chain allows one copy along m")
        trial = k.copied()
        back_to_back_gemm.chain(trial, opt, fold, m, n, unit, lambda x, c, step: _split_copies(trial, x, c, step), nu)
        vars(k).update(vars(trial))
        return [replace(opt, unit=unit.name)]
    if unit.emit == "muladd":
        return _outer_product(k, k.ranges.index(m), k.ranges.index(n), (mu, nu), unit.n)
    counts = range_size(m), range_size(n)
    m, n, r = k.pad(m, unit.m * mu), k.pad(n, unit.n * nu), k.pad(r, unit.k)
    whole = unit.fragment_c.whole
    for side, count in zip((m, n), counts):
        if whole and range_size(side) != count:
            k.sink = simplify(matrix_units.guarded_by_position(k.sink, side, count, r))
    if not whole:  # the UPCAST and FRAGMENT ranges are shared with the consumer of the result
        m, n = _split_copies(k, m, mu, unit.m), _split_copies(k, n, nu, unit.n)
    else:
        m, n = _split_tile(k, m, unit.m * mu), _split_tile(k, n, unit.n * nu)
    fold = next(f for f in k.folds if r in f.src[1:] and matrix_units.operands(f, m, n, unit))
    rest, more = matrix_units.taken_off(fold, m, n, unit, unit.m * mu, k.new_range) if unit.flipped else (None, [])
    r = k.split(r, unit.k, Role.REDUCE)[unit.k > 1]
    fold = next(f for f in k.folds if r in f.src[1:] and matrix_units.operands(f, m, n, unit))
    value, fresh = matrix_units.on_unit(fold, m, n, r, unit, (mu, nu), k.new_range)
    k.sink = simplify(k.sink.substitute({fold: value if rest is None else value + rest}))
    k.order += [*fresh, *more]
    if r not in toposort(k.sink):
        k.order.remove(r)
    return [replace(opt, unit=unit.name)]


def _split_tile(k: KernelGraph, r: UOp, size: int) -> UOp:
    """Split ``r`` and return the inner range over one staged tile, moved innermost; the outer range if a tile is a
    single row or column."""
    outer, inner = k.split(r, size, Role.LOOP)
    if inner.op is not Ops.RANGE:
        return outer
    k.order.remove(inner)
    k.order.append(inner)
    return inner


def _outer_product(k: KernelGraph, m: int, n: int, copies: tuple[int, int], lanes: int) -> list[Opt]:
    """Apply the fallback without a matrix unit, as separate opts: PADTO, lanes along n, copies along n and m."""
    trial = k.copied()
    for axis, multiple in ((m, copies[0]), (n, lanes * copies[1])):
        if multiple > 1 and range_size(trial.ranges[axis]) % multiple:
            apply(trial, Opt(OptOps.PADTO, axis, multiple))
    for op, axis, amount in ((OptOps.VECTOR, n, lanes), (OptOps.UPCAST, n, copies[1]), (OptOps.UPCAST, m, copies[0])):
        if amount > 1:
            loops = len(trial.parallel)
            apply(trial, Opt(op, axis, amount))
            m -= axis == n and n < m and len(trial.parallel) < loops  # n's loop became lanes or copies
    vars(k).update(vars(trial))
    return []


def _split_copies(k: KernelGraph, r: UOp, copies: int, step: int) -> UOp:
    outer, inner = k.split(r, step, Role.FRAGMENT)
    if copies > 1 and outer.op is Ops.RANGE:
        k.split(outer, copies, Role.UPCAST)
    return inner


def _order(k: KernelGraph, opt: Opt) -> None:
    loops = [r for r in k.order if not r.arg[1].expanded]
    every = isinstance(opt.amt, tuple) and bool(loops) and sorted(opt.amt) == list(range(len(loops)))
    opt.require(every, "the amount must list each loop once")
    assert isinstance(opt.amt, tuple)
    wanted = [loops[i] for i in opt.amt]
    opt.require(all(r in k.ordered for r in wanted[len(wanted) - len(k.ordered) :]),
                "the loop of a scan must stay innermost")
    k.order = wanted + [r for r in k.order if r.arg[1].expanded]


def _split_reduction(k: KernelGraph, opt: Opt) -> None:
    r = k.axis(opt)
    size = range_size(r)
    opt.require(r.arg[1] is Role.REDUCE and isinstance(size, int), "SPLIT needs a reduction of fixed size")
    opt.require(not _feeds_unit(k, r), "the reduction of a matrix unit must be a single loop")
    divides = isinstance(opt.amt, int) and 1 < opt.amt < size and size % opt.amt == 0
    opt.require(divides, f"the number of parts must divide {size}")
    assert isinstance(opt.amt, int)
    outer, inner = k.split(r, size // opt.amt, Role.REDUCE)
    while whole := next((f for f in k.folds if outer in f.src[1:] and inner in f.src[1:]), None):
        part = whole.replace(src=tuple(s for s in whole.src if s is not outer))
        k.sink = k.sink.substitute({whole: UOp(Ops.FOLD, None, (part, outer), whole.arg)})


HANDLERS: dict[OptOps, Callable[[KernelGraph, Opt], list[Opt] | None]] = {
    OptOps.UPCAST: _upcast, OptOps.UNROLL: _unroll, OptOps.VECTOR: _vector, OptOps.TILE: _tile,
    OptOps.CUT: loop_partition.cut,
    OptOps.THREAD: _thread, OptOps.SWAP: _swap, OptOps.PADTO: _padto, OptOps.MERGE: _merge, OptOps.STAGE: stages.stage,
    OptOps.ORDER: _order, OptOps.SPLIT: _split_reduction, OptOps.HINT: stages.hint, OptOps.LOCAL: thread_blocks.local,
    OptOps.GROUP: thread_blocks.group, OptOps.GROUPTOP: thread_blocks.group, OptOps.NOLOCALS: thread_blocks.no_locals,
    OptOps.TC: _matrix_unit, OptOps.ROTATE: stages.rotate, OptOps.WALK: stages.walk,
    OptOps.CARRY: skip_masked_blocks.carry,
    OptOps.SKIP: skip_masked_blocks.skip, OptOps.ROLES: thread_blocks.roles, OptOps.ONLINE: back_to_back_gemm.online,
    OptOps.RANK: thread_blocks.rank,
}

# Opts whose axis is a reduction.
OF_REDUCTIONS = (OptOps.GROUP, OptOps.GROUPTOP, OptOps.RANK, OptOps.UNROLL, OptOps.SPLIT, OptOps.TC)


def apply(k: KernelGraph, opt: Opt) -> None:
    """Apply one opt and record it in ``k.opts``.

    Raises:
        ArgumentError: if the opt is illegal for this kernel; the message lists the axes, and the kernel is unchanged.
    """
    try:
        said = HANDLERS[opt.op](k, opt)
    except ArgumentError as error:
        axes = [Axis(range_size(r), r.arg[1]) for r in k.ranges]
        sums = [str(n) for n, a in enumerate(axes) if a.role is Role.REDUCE]
        shown = ", ".join(f"{n}: {a!r}" for n, a in enumerate(axes)) or "none"
        mend = f"axis {' or '.join(sums)}, the reduction" if sums and opt.op in OF_REDUCTIONS and str(
            opt.axis) not in sums else error.mend
        raise ArgumentError("Opt", f"{error.message}; axes: {shown}", mend) from None
    k.opts += [opt] if said is None else said
