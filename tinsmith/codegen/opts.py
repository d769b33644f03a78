"""What each opt does to a kernel, and where it is legal.

A handler applies its opt whole, or raises and leaves the kernel as it was; it returns the opts to note where these are
not the one that was given.
"""
from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from tinsmith.codegen import accumulators, ahead, blocks, bounds, chains, masking, matrix, online
from tinsmith.codegen.kernelgraph import KernelGraph
from tinsmith.codegen.opt import Opt, OptOps
from tinsmith.codegen.roles import Axis, Role, is_partial, range_size
from tinsmith.core.dtypes import dtypes
from tinsmith.core.errors import ArgumentError
from tinsmith.ir import Ops, UOp
from tinsmith.ir.structure import contraction
from tinsmith.ir.symbolic import simplify
from tinsmith.ir.units import MatrixUnit, fma
from tinsmith.ir.uop import toposort


def _illegal(opt: Opt, why: str) -> ArgumentError:
    return ArgumentError("Opt", f"{opt}: {why}", "another axis or amount")


def _require(condition: bool, opt: Opt, why: str) -> None:
    if not condition:
        raise _illegal(opt, why)


def _amount(k: KernelGraph, opt: Opt, r: UOp, most: int = 0) -> int:
    size = range_size(r)
    _require(isinstance(size, int), opt, "the range has a symbolic size")
    amount = size if opt.amt in (0, None) else opt.amt
    most = max(most, size)
    if not (isinstance(amount, int) and 1 < amount <= most):
        raise _illegal(opt, f"the amount must be in 2..{most}")
    return amount


def _is_parallel(k: KernelGraph, r: UOp) -> bool:
    return r.arg[1] in (Role.LOOP, Role.THREAD, Role.GLOBAL) and r not in k.bound


def _upcast(k: KernelGraph, opt: Opt) -> None:
    r = k.axis(opt)
    if r.arg[1] is Role.BLOCK:
        return accumulators.steps_together(k, opt, r, _amount(k, opt, r))
    _require(_is_parallel(k, r), opt, "only a parallel loop can be upcast")
    amount = _amount(k, opt, r)
    for n in k.products:
        sums = math.prod(range_size(x) for x in n.ranges if x.arg[1] is Role.UPCAST)
        _require(r not in n.ranges or sums * amount <= n.arg.accumulators, opt, f"{n.arg.name} holds no more sums")
    k.split(r, amount, Role.UPCAST)
    return None


def _unroll(k: KernelGraph, opt: Opt) -> None:
    r = k.axis(opt)
    _require(r.arg[1] is Role.REDUCE, opt, "only a reduction can be unrolled")
    k.split(r, _amount(k, opt, r), Role.UNROLL)


def _vector(k: KernelGraph, opt: Opt) -> None:
    r = k.axis(opt)
    size = range_size(r)
    amount = _amount(k, opt, r, 2 * size - 1 if isinstance(size, int) else 0)
    _require(amount & (amount - 1) == 0, opt, "lanes come in powers of two")
    _require(not k.scan_lanes, opt, "running values have lanes already")
    if r in k.ordered:
        running = [n for n in toposort(k.sink) if n.op is Ops.PREFIX]
        _require(size % amount == 0, opt, "the steps must fill whole vectors")
        _require(not k.scan_threads, opt, "threads share its steps already")
        _require(all(n.arg is not Ops.MULADD and n.src[1] is r for n in running), opt, "its steps cannot be combined")
        _require(k.may_have_lanes(r), opt, "a value has lanes along one range only")
        _require(not any(n.op is Ops.STAGE for n in toposort(k.sink)), opt, "a stage has no copy per lane")
        k.split(r, amount, Role.VECTOR)
        return
    _require(_is_parallel(k, r) or r.arg[1] is Role.REDUCE, opt, "only loops become lanes")
    _require(k.may_have_lanes(r), opt, "a value has lanes along one range only")
    stages = [n for n in toposort(k.sink) if n.op is Ops.STAGE]
    _require(not any(r in n.ranges for n in stages), opt, "a stage has no copy per lane")
    k.split(r, amount, Role.VECTOR)


def _tile(k: KernelGraph, opt: Opt) -> None:
    r = k.axis(opt)
    _require(r.arg[1] in (Role.LOOP, Role.GLOBAL, Role.REDUCE), opt, "only loops can be tiled")
    _require(r not in k.bound or r.arg[1] is Role.REDUCE, opt, "an ordered loop cannot be tiled")
    _require(not _feeds_unit(k, r), opt, "a matrix unit's reduction stays one loop")
    amount = _amount(k, opt, r)
    _require(range_size(r) % amount == 0, opt, "a tile must divide the range")
    k.split(r, amount, r.arg[1])


def _feeds_unit(k: KernelGraph, r: UOp) -> bool:
    """Whether a range is reduced by the steps of a matrix unit: its tiles of sums live through one loop."""
    return any(f.src[0].op is Ops.MMA and r in f.src[1:] for f in k.folds)


def _thread(k: KernelGraph, opt: Opt) -> None:
    r = k.axis(opt)
    _require(r.arg[1] is Role.LOOP and r not in k.bound, opt, "one parallel loop can be split over threads")
    _require(not any(x.arg[1] in (Role.THREAD, Role.LOCAL, Role.GROUP) for x in k.order), opt,
             "the kernel is split over threads already")
    _require(bounds.first_loop(k) is r, opt, "it must be the outermost loop")
    outermost = {r} if all(r in s.ranges for s in k.stores) else bounds.outermost_loops(k)
    fits = r in outermost and all(x.arg[1] is Role.LOOP and x not in k.bound for x in outermost)
    _require(fits, opt, "every store must depend on it, or have a parallel loop of its own outermost")
    for x in outermost:
        k.change_role(x, Role.THREAD)


def _swap(k: KernelGraph, opt: Opt) -> None:
    a = k.axis(opt)
    b = k.axis(Opt(opt.op, opt.amt if isinstance(opt.amt, int) else None))
    _require(a.arg[1] == b.arg[1] and not a.arg[1].expanded, opt, "only loops of one kind change places")
    _require((a in k.bound) == (b in k.bound), opt, "only loops of one kind change places")
    i, j = k.order.index(a), k.order.index(b)
    k.order[i], k.order[j] = b, a


def _padto(k: KernelGraph, opt: Opt) -> None:
    r = k.axis(opt)
    _require(isinstance(opt.amt, int) and opt.amt > 1 and isinstance(range_size(r), int), opt, "needs a multiple")
    _require(_is_parallel(k, r) or r.arg[1] is Role.REDUCE or r in k.ordered, opt, "only loops can be padded")
    _require(r not in k.ordered or not k.scan_lanes | k.scan_threads, opt, "its steps are shared out")
    assert isinstance(opt.amt, int)
    k.pad(r, opt.amt)


def _merge(k: KernelGraph, opt: Opt) -> None:
    a = k.axis(opt)
    b = k.axis(Opt(opt.op, opt.amt if isinstance(opt.amt, int) else None))
    reduced = a.arg[1] is b.arg[1] is Role.REDUCE
    fits = reduced or (_is_parallel(k, a) and _is_parallel(k, b))
    _require(a is not b and fits, opt, "two parallel loops, or two of a reduction, can be merged")
    _require(not reduced or all((a in f.src[1:]) == (b in f.src[1:]) for f in k.folds), opt, "one sum has both")
    _require(not reduced or all(n.op is not Ops.STAGE for n in k.nodes), opt, "MERGE comes before STAGE")
    _require(not is_partial(a) and not is_partial(b), opt, "a partial range cannot be merged")
    _require(all((a in s.ranges) == (b in s.ranges) for s in k.stores), opt, "every store must have both or none")
    _require(a.arg[1] is b.arg[1], opt, "only loops of one kind can be merged")
    k.merge(a, b)


def _stage(k: KernelGraph, opt: Opt) -> None:
    values = k.stageable
    _require(opt.axis is not None and 0 <= opt.axis < len(values), opt, f"there are {len(values)} values to stage")
    assert opt.axis is not None
    kept = opt.amt if isinstance(opt.amt, tuple) else ()
    _require(all(0 <= i < len(k.ranges) for i in kept), opt, f"there are {len(k.ranges)} ranges")
    outside = [k.ranges[i] for i in kept]
    value = values[opt.axis]
    for product in k.products:
        for which, operand in enumerate(product.src[:2]):
            within = value in toposort(operand, lambda n: n.op is not Ops.MMA)
            if within and not (opt.layout and _loads_elements(product.arg)):
                _stage_operand(k, opt, product, which, outside)
                return
    _require(not k.roles, opt, "roles leave no threads that fill it together")
    value = _widened(k, value) if value.op is Ops.LOAD else value
    lanes = [r for r in outside if r.arg[1] is Role.VECTOR and r in value.ranges]
    _require(not lanes, opt, "a stage has no copy per lane")
    threads = [r for r in outside if r.arg[1] in blocks.THREADS and r in value.ranges]
    _require(not threads, opt, "a stage is shared by the threads of a block")
    _require(opt.lanes != 1 and opt.lanes & (opt.lanes - 1) == 0, opt, "lanes come in powers of two")
    inside = [r for r in k.order if r in value.ranges and r not in outside]
    _require(bool(inside), opt, "nothing is left to stage over")
    _require(all(isinstance(range_size(r), int) for r in inside), opt, "a stage has a fixed size")
    bound = frozenset(r for n in toposort(k.sink) if n.op is Ops.SCATTER_STORE
                      for r in ({n.src[4]} if n.src[4].arg[1] is Role.BLOCK else n.ranges | {n.src[4]}))
    _require(not bound & set(inside), opt, "an ordered scatter cannot be staged")
    _require(not k.scan_lanes, opt, "a stage has no copy per lane")
    if opt.layout or opt.depth > 1:
        blocks.stage_tile(k, opt, value, outside)
        return
    if not any(n.op is Ops.FOLD for n in toposort(value)):
        k.stage(value, outside, opt.lanes)
        return
    free = [r for r in inside if r.arg[1] is Role.VECTOR or (r.arg[1] is Role.REDUCE and is_partial(r))]
    _require(not free, opt, "a computed tile has no lanes yet, and no partial reduction")
    k.stage_tile(value, outside, opt.lanes, opt.copies)


def _widened(k: KernelGraph, load: UOp) -> UOp:
    """A load of 16-bit floats that is only read as float32 is staged as float32: widened once, not at every use."""
    users = [n for n in toposort(k.sink) if load in n.src]
    wide = len(users) == 1 and users[0].op is Ops.CAST and users[0].dtype is dtypes.float32
    return users[0] if wide and load.dtype.is_float and load.dtype.itemsize == 2 else load


def _loads_elements(unit: MatrixUnit) -> bool:
    """Whether the lanes of a unit load the elements of its operands, from wherever they are."""
    return not unit.fragment_a.whole and not unit.staged


def _stage_operand(k: KernelGraph, opt: Opt, product: UOp, which: int, outside: list[UOp]) -> None:
    """An operand of a matrix unit is staged as a whole, in the order in which the unit wants its elements."""
    operand, unit = product.src[which], product.arg
    _require(unit.fragment_c.whole or unit.staged, opt, f"the lanes of {unit.name} load their own elements")
    _require(all(n.op is not Ops.STAGE for n in toposort(operand)), opt, "the operand is staged already")
    layouts = ("swizzled",) if unit.staged else ("",)
    fits = opt.layout in layouts and (unit.staged or opt.depth == 1)
    _require(fits, opt, f"{unit.name} reads {layouts[0] or 'packed'} operands{' from one slot' * (not unit.staged)}")
    inside = [r for r in k.order if r in operand.ranges and r not in outside and r.arg[1] is not Role.FRAGMENT]
    fixed = all(isinstance(range_size(r), int) and not is_partial(r) for r in inside)
    _require(fixed, opt, "a stage has a fixed size")
    why = k.stage_operand(product, which, inside, opt.depth)
    _require(not why, opt, why)


def _unit_of(k: KernelGraph, opt: Opt, fold: UOp, m: UOp, n: UOp) -> MatrixUnit:
    """The unit that the opt names, else the first that multiplies these types; multiply-adds where there is none."""
    everywhere = (*(u for u in k.target.units if u.emit == "muladd"), fma(fold.dtype, 0))
    for unit in (*(u for u in k.target.units if u.emit != "muladd"), *everywhere):
        wanted = opt.unit == unit.name or (not opt.unit and not unit.significand)
        if wanted and matrix.operands(fold, m, n, unit):
            return unit
    known = ", ".join(u.name for u in k.target.units) or "none"
    raise ArgumentError("Opt", f"{opt}: no matrix unit of that name multiplies this (the target has: {known})",
                        "the opt without a unit, which falls back on an outer product of multiply-adds")


def _matrix_unit(k: KernelGraph, opt: Opt) -> list[Opt]:
    """Pad the ranges of a sum of products to whole tiles, split them, and let a unit do the steps.

    The opt is noted with the unit's name, so that it means the same on another target.
    """
    r = k.axis(opt)
    amt = opt.amt if isinstance(opt.amt, tuple) else ()
    _require(len(amt) in (2, 4), opt, "the amount is (m, n) or (m, n, copies along m, copies along n)")
    m, n = (k.axis(Opt(opt.op, a)) for a in amt[:2])
    _require(m is not n and all(_is_parallel(k, x) and x.arg[1] in (Role.LOOP, Role.GLOBAL) for x in (m, n)), opt,
             "m and n are two parallel loops")
    _require(not any(x.arg[1] in blocks.THREADS for x in k.order), opt, "the block has other threads already")
    fixed = all(isinstance(range_size(x), int) and not is_partial(x) for x in (m, n, r))
    _require(fixed, opt, "a range is partial or of symbolic size")
    fold = next((f for f in k.folds if r in f.src[1:] and contraction(f, guarded=True)), None)
    if fold is None:
        raise _illegal(opt, "no sum of products runs over it")
    inside = toposort(fold)
    plain = not any(x.arg[1].expanded for x in fold.src[0].ranges) and all(x.op is not Ops.STAGE for x in inside)
    _require(plain, opt, "copies, lanes and stages come after it")
    _require({m, n} <= fold.ranges, opt, "it must be a sum over m and n")
    unit = _unit_of(k, opt, fold, m, n)
    _require(not unit.fragment_c.whole or Role.GLOBAL not in (m.arg[1], n.arg[1]), opt, f"{unit.name} has no grid")
    mu, nu = amt[2:] or (1, 1)
    _require(mu > 0 and nu > 0 and mu * nu <= unit.accumulators, opt, f"{unit.name} holds {unit.accumulators} sums")
    if sum(x.op is Ops.FOLD for x in inside) > 1:
        _require(mu == 1, opt, "a chain has one row of tiles")
        trial = k.copied()
        chains.chain(trial, opt, fold, m, n, unit, lambda x, c, step: _split_copies(trial, x, c, step), nu)
        vars(k).update(vars(trial))
        return [replace(opt, unit=unit.name)]
    if unit.emit == "muladd":
        return _outer_product(k, k.ranges.index(m), k.ranges.index(n), (mu, nu), unit.n)
    m, n, r = k.pad(m, unit.m * mu), k.pad(n, unit.n * nu), k.pad(r, unit.k)
    whole = unit.fragment_c.whole
    if not whole:  # copies and the unit's own ranges belong to the reader too
        m, n = _split_copies(k, m, mu, unit.m), _split_copies(k, n, nu, unit.n)
    else:
        m, n = _split_tile(k, m, unit.m * mu), _split_tile(k, n, unit.n * nu)
    fold = next(f for f in k.folds if r in f.src[1:] and matrix.operands(f, m, n, unit))
    rest, more = matrix.taken_off(fold, m, n, unit, unit.m * mu, k.new_range) if unit.flipped else (None, [])
    r = k.split(r, unit.k, Role.REDUCE)[unit.k > 1]
    fold = next(f for f in k.folds if r in f.src[1:] and matrix.operands(f, m, n, unit))
    if whole:
        value, fresh = matrix.on_unit(fold, m, n, r, unit, (mu, nu), k.new_range)
        value, fresh = value if rest is None else value + rest, [*fresh, *more]
    else:
        value, fresh = matrix.in_registers(fold, m, n, r, unit, k.new_range)
    k.sink = simplify(k.sink.substitute({fold: value}))
    k.order += fresh
    if r not in toposort(k.sink):
        k.order.remove(r)
    return [replace(opt, unit=unit.name)]


def _split_tile(k: KernelGraph, r: UOp, size: int) -> UOp:
    """A range over a staged tile, which reads what the loops around it have computed; the range itself where a tile is
    a single row or column."""
    outer, inner = k.split(r, size, Role.LOOP)
    if inner.op is not Ops.RANGE:
        return outer
    k.order.remove(inner)
    k.order.append(inner)
    return inner


def _outer_product(k: KernelGraph, m: int, n: int, copies: tuple[int, int], lanes: int) -> list[Opt]:
    """What every machine can do: lanes along n, and copies of a vector's sums along m and n; as opts of their own."""
    trial = k.copied()
    for axis, multiple in ((m, copies[0]), (n, lanes * copies[1])):
        if multiple > 1 and range_size(trial.ranges[axis]) % multiple:
            apply(trial, Opt(OptOps.PADTO, axis, multiple))
    for op, axis, amount in ((OptOps.VECTOR, n, lanes), (OptOps.UPCAST, n, copies[1]), (OptOps.UPCAST, m, copies[0])):
        if amount > 1:
            loops = len(trial.parallel)
            apply(trial, Opt(op, axis, amount))
            m -= axis == n and n < m and len(trial.parallel) < loops  # all of n's loop became lanes or copies
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
    _require(every, opt, "give every loop once")
    assert isinstance(opt.amt, tuple)
    wanted = [loops[i] for i in opt.amt]
    _require(all(r in k.ordered for r in wanted[len(wanted) - len(k.ordered) :]), opt, "running values stay innermost")
    k.order = wanted + [r for r in k.order if r.arg[1].expanded]


def _split_reduction(k: KernelGraph, opt: Opt) -> None:
    r = k.axis(opt)
    size = range_size(r)
    _require(r.arg[1] is Role.REDUCE and isinstance(size, int), opt, "only a reduction of fixed size is split")
    _require(not _feeds_unit(k, r), opt, "a matrix unit's reduction stays one loop")
    divides = isinstance(opt.amt, int) and 1 < opt.amt < size and size % opt.amt == 0
    _require(divides, opt, f"the parts must divide {size}")
    assert isinstance(opt.amt, int)
    outer, inner = k.split(r, size // opt.amt, Role.REDUCE)
    while whole := next((f for f in k.folds if outer in f.src[1:] and inner in f.src[1:]), None):
        part = whole.replace(src=tuple(s for s in whole.src if s is not outer))
        k.sink = k.sink.substitute({whole: UOp(Ops.FOLD, None, (part, outer), whole.arg)})


HANDLERS: dict[OptOps, Callable[[KernelGraph, Opt], list[Opt] | None]] = {
    OptOps.UPCAST: _upcast, OptOps.UNROLL: _unroll, OptOps.VECTOR: _vector, OptOps.TILE: _tile, OptOps.CUT: bounds.cut,
    OptOps.THREAD: _thread, OptOps.SWAP: _swap, OptOps.PADTO: _padto, OptOps.MERGE: _merge, OptOps.STAGE: _stage,
    OptOps.ORDER: _order, OptOps.SPLIT: _split_reduction, OptOps.HINT: ahead.hint, OptOps.LOCAL: blocks.local,
    OptOps.GROUP: blocks.group, OptOps.GROUPTOP: blocks.group, OptOps.NOLOCALS: blocks.no_locals,
    OptOps.TC: _matrix_unit, OptOps.ROTATE: ahead.rotate, OptOps.WALK: ahead.walk, OptOps.CARRY: accumulators.carry,
    OptOps.SKIP: masking.skip, OptOps.ROLES: blocks.roles, OptOps.ONLINE: online.online,
}

OF_REDUCTIONS = (OptOps.GROUP, OptOps.GROUPTOP, OptOps.UNROLL, OptOps.SPLIT, OptOps.TC)  # their axis is one


def apply(k: KernelGraph, opt: Opt) -> None:
    """Apply one opt.

    Raises:
        ArgumentError: if the opt is not legal here, with the axes that there are; the kernel is unchanged.
    """
    try:
        said = HANDLERS[opt.op](k, opt)
    except ArgumentError as error:
        axes = [Axis(range_size(r), r.arg[1]) for r in k.ranges]
        sums = [str(n) for n, a in enumerate(axes) if a.role is Role.REDUCE]
        shown = ", ".join(f"{n}: {a!r}" for n, a in enumerate(axes)) or "none"
        mend = f"axis {' or '.join(sums)}, the reduction" if sums and opt.op in OF_REDUCTIONS and str(
            opt.axis) not in sums else error.mend
        raise ArgumentError("Opt", f"{error.message}; the axes are {shown}", mend) from None
    k.opts += [opt] if said is None else said
