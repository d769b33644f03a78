"""Chains of contractions on a matrix unit (back-to-back GEMM), and the opt ONLINE.

**Chains**: a contraction of a function of contractions, with the intermediate tile in registers.

    FOLD(f(FOLD(q·k, e), …)·v, j)   →   s = STAGE(FOLD(MMA(q, k, m, j', e'), e''), j')
                                        FOLD(MMA(f(load(s, j)), v, m, n, j'''), j'')

A unit leaves its accumulators in the registers of the threads, and elementwise functions of them stay there. As an
operand of the next product they only need to be rounded and packed: rows of the accumulator are rows of the operand.
Row statistics, a maximum or a sum over j, are reductions over each thread's registers and then over a few adjacent
lanes. The STAGE says that the sum is computed once for all readers; it is in registers because the unit leaves it
there.

**Online softmax** (Milakov and Gimelshein, 2018): a maximum and the sums relative to it become one loop over blocks.

    m = max_j s(j)      l = Σ_j exp(s(j) - m)·v(j)

A sum relative to one number can be rescaled to another: ``exp(x - m') = exp(m - m')·exp(x - m)``. So each block has its
own maximum and sums, and the sums of all blocks are rescaled to the common maximum:

    b = max of the block    m = max of all b    l = Σ over blocks of exp(b - m)·(Σ in the block of exp(s - b)·v)

The linearizer runs over the blocks once, carrying the running maximum and the sums relative to it. Local memory holds
one block at a time, whatever the length of the rows.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tinsmith.codegen.decompose.floats import LOG2E
from tinsmith.codegen.kernel_graph import KernelGraph
from tinsmith.codegen.transform import matrix_units
from tinsmith.codegen.transform.computed_operand import equal_values, inner_contractions, outer_folds
from tinsmith.codegen.transform.skip_masked_blocks import end_before, nothing_where
from tinsmith.codegen.transform.stage_builder import Side, from_stage, under_names
from tinsmith.core.dtypes import dtypes
from tinsmith.ir import Ops, UOp
from tinsmith.ir.algebra.symbolic import simplify
from tinsmith.ir.matrix_unit import ROW_BYTES, MatrixUnit, Placed
from tinsmith.ir.ops.elementwise import ROUGH
from tinsmith.ir.structure import Role, contraction, guard_of, range_size
from tinsmith.ir.uop import toposort

if TYPE_CHECKING:
    from tinsmith.codegen.opt import Opt


def chain(k: KernelGraph, opt: Opt, fold: UOp, m: UOp, n: UOp, unit: MatrixUnit, split: Callable[[UOp, int, int], UOp],
          copies: int) -> None:
    """Put ``fold`` over one range, a contraction with a computed operand, and everything the operand is computed from
    on ``unit`` and units with the same fragments.

    Args:
        split: a function of (range, copies, size of the part) that splits a range into copies and the unit's part.
        copies: copies of the unit's columns.
    """
    wide = replace(unit.fragment_c, registers=(*unit.fragment_c.registers, (unit.k, 0, unit.n)))
    held = unit.threads > 1 and not unit.fragment_c.whole and matrix_units.choice(wide, unit.operand_a, 0)
    opt.require(bool(held), f"the accumulator layout of {unit.name} does not match its operand layout")
    r = fold.src[-1]
    number, tile = r.arg[0], tile_unit(k.target.units, unit, range_size(r))
    opt.require(len(fold.src) == 2 and range_size(n) <= unit.n * copies,
                "a chain needs all columns in one tile and a single reduction loop")
    if tile is None:
        raise opt.illegal(f"{unit.name} has no tile of {range_size(r)} columns", "another block")
    m, n = split(k.pad(m, unit.m), 1, unit.m), split(k.pad(n, unit.n * copies), copies, unit.n)
    whole = ROW_BYTES // unit.a.itemsize if unit.staged else unit.k
    for x in dict.fromkeys(x for f in k.folds if contraction(f, guarded=True) for x in f.src[1:]):
        if x.arg[0] != number and x in k.order:
            k.pad(x, whole)
    for other in _columns(k, number):  # of further sums
        opt.require(range_size(other) <= unit.n * copies, "a chain needs all columns in one tile")
        split(k.pad(other, unit.n * copies), copies, unit.n)
    while todo := next((f for f in inner_of(k, number)), None):
        fits = len(todo.src) == 2 and matrix_units.operands(todo, m, k.numbered[number], tile) is not None
        opt.require(fits, f"{unit.name} cannot compute the inner contraction")
        _hold(k, todo, m, k.numbered[number], tile)
    sums = [f for f in k.folds if f.src[-1].arg[0] == number and contraction(f, guarded=True)]
    others = [f for f in k.folds if f not in sums and matrix_units.reads_held(f.src[0]) and f.src[0].op is not Ops.MMA]
    opt.require(all(len(f.src) == 2 and m in f.ranges for f in others), "each row statistic must be a single reduction")
    shared = {f: k.new_range(range_size(r), Role.FRAGMENT) for f in others if f.src[1].arg[0] == number}
    for f in others:
        if f in shared:
            new = f.substitute({f.src[1]: shared[f]})
            k.order.append(shared[f])
            k.sink = simplify(k.sink.substitute({f: new}))
        elif f.src[1].arg[1] is Role.REDUCE:
            k.change_role(k.numbered[f.src[1].arg[0]], Role.FRAGMENT)
    _powers_of_two(k)
    _reciprocals(k, n)
    r, table = k.numbered[number], dict[UOp, UOp]()
    for fold in (f for f in k.folds if f.src[-1] is r):
        product = contraction(fold, guarded=True)
        assert product is not None
        column = next(x for s in (product.a, product.b) if m not in s.ranges for x in s.ranges
                      if x.arg[1] is Role.FRAGMENT and x is not r)
        found = matrix_units.operands(fold, m, column, unit)
        opt.require(found is not None, f"{unit.name} cannot compute a sum of the chain")
        assert found is not None
        steps, step = k.new_range(range_size(r) // unit.k, Role.UNROLL), k.new_range(unit.k, Role.FRAGMENT)
        table[fold] = matrix_units.summed(found, {r: (steps * unit.k + step).simplify()}, (m, column, step), unit,
                                          (steps,))
        k.order += [x for x in (steps, step) if x.op is Ops.RANGE]
    k.sink = simplify(k.sink.substitute(table))
    _unrounded(k)
    left = set(toposort(k.sink))
    k.order = [x for x in k.order if x in left]


def _columns(k: KernelGraph, number: int) -> list[UOp]:
    """Return the ranges of loops that the sums over range ``number`` depend on, but not their computed operands."""
    found = set[UOp]()
    for f in k.folds:
        c = contraction(f, guarded=True) if f.src[-1].arg[0] == number else None
        for a, b in ((c.a, c.b), (c.b, c.a)) if c is not None else ():
            if inner_contractions(a):
                found |= {r for r in b.ranges - a.ranges if r in k.parallel and not r.arg[1].expanded}
    return sorted(found, key=lambda r: r.arg[0])


def make_ahead(k: KernelGraph, opt: Opt, product: UOp, outside: list[UOp]) -> None:
    """Compute the register operand of the last product one block before the unit reads it: the unit runs the products
    of both blocks at once, and threads compute the function between them for one block while the unit works on the
    other (FlashAttention-3, Shah et al., 2024, algorithm 2)."""
    loads = matrix_units.reads_held(product.src[0])
    brought = [s.src[0].arg for p in k.products for s in p.src[:2] if s.op is Ops.LOAD and s.src[0].op is Ops.STAGE
               and not matrix_units.held(s.src[0]) and any(r.arg[1] is Role.BLOCK for r in s.src[0].ranges)]
    opt.require(not opt.layout and opt.depth == 2 and not outside, "an operand in registers has two buffers, without "
                "kept ranges or a layout", "depth=2 without ranges or a layout")
    fits = product.arg.staged and not matrix_units.made_ahead(product) and len(brought) == 2
    opt.require(fits and all(arg.depth > 1 for arg in brought), "this needs an asynchronous unit whose other "
                "operands come from rings of two slots at least", "STAGE of the other operands before")
    stages = dict.fromkeys(load.src[0] for load in loads)
    k.sink = k.sink.substitute({s: s.replace(arg=Placed(s.arg, depth=opt.depth)) for s in stages})


def _powers_of_two(k: KernelGraph) -> None:
    """Move a factor out of a maximum, and turn exponentials into powers of two with one multiply-add:

        max_j c·x(j) = c·max_j x(j)  for c > 0        exp(c·x - m) = 2**(x·(c·log2 e) - m·log2 e)

    The second rounds x·c·log2 e, up to 128, with a relative error of 2**-24: far below the precision of the power in 16
    bits. Powers below 2**-126 are negligible beside the largest, which is 1.
    """
    def scaled(n: UOp) -> tuple[UOp, float]:
        if n.op is Ops.WHERE and any(s.is_const and s.arg == -math.inf for s in n.src[1:]):
            hidden = n.src[1].is_const
            x, factor = scaled(n.src[1 + hidden])
            return (n.src[0].where(-math.inf, x) if hidden else n.src[0].where(x, -math.inf)), factor
        if n.op is Ops.MUL and n.src[1].is_const and n.src[1].arg > 0:
            return n.src[0], float(n.src[1].arg)
        return n, 1.0

    def of_tile(n: UOp) -> bool:
        return n.dtype is dtypes.float32 and any(x.src[1].ranges <= n.ranges for x in matrix_units.reads_held(n))

    table = dict[UOp, UOp]()
    for f in k.folds:
        x, factor = scaled(f.src[0])
        if f.arg is Ops.MAX and factor != 1 and of_tile(f.src[0]):
            table[f] = f.replace(src=(x, *f.src[1:])) * factor
    k.sink = k.sink.substitute(table)
    table = {}
    for n in k.nodes:
        if n.op is Ops.EXP and of_tile(n):
            x, low = n.src[0].src if n.src[0].op is Ops.SUB else (n.src[0], None)
            x, factor = scaled(x)
            shift = UOp.const(n.dtype, 0) if low is None else low * -LOG2E
            x = x.alu(Ops.MULADD, UOp.const(n.dtype, factor * LOG2E), shift)
            table[n] = UOp(Ops.EXP2, None, (x,), ROUGH if k.target.rough else None)
    k.sink = k.sink.substitute(table)


def _unrounded(k: KernelGraph) -> None:
    """Omit the rounding of a value in accumulators that is widened again: it is rounded to be stored, not to be read
    here."""
    table = {n: n.src[0].src[0] for n in k.nodes if n.op is Ops.CAST and n.src[0].op is Ops.CAST
             and n.dtype is n.src[0].src[0].dtype is dtypes.float32 and n.src[0].dtype.is_float
             and matrix_units.reads_held(n)}
    k.sink = k.sink.substitute(table)


def _reciprocals(k: KernelGraph, column: UOp) -> None:
    """Divide all columns of a 16-bit result by multiplying with one reciprocal per row: x/y = x·(1/y), one more
    rounding."""
    table = {}
    for n in k.nodes:
        quotient = n.src[0] if n.op is Ops.CAST and n.dtype.is_float and n.dtype.itemsize == 2 else n
        if quotient is not n and quotient.op is Ops.FDIV and column in quotient.src[0].ranges - quotient.src[1].ranges:
            table[quotient] = quotient.src[0] * quotient.src[1].alu(Ops.RECIP)
    k.sink = k.sink.substitute(table)


def tile_unit(units: tuple[MatrixUnit, ...], like: MatrixUnit, columns: int) -> MatrixUnit | None:
    """Return the widest unit with the same types and depth as ``like`` whose width divides ``columns``; None if there
    is none, or if ``columns`` is not a power of two."""
    kinds = {u: (u.a, u.b, u.acc, u.m, u.k, u.threads, u.staged) for u in (like, *units)}
    same = [u for u in units if kinds[u] == kinds[like] and columns % u.n == 0 and columns // u.n <= u.accumulators]
    return max(same, key=lambda u: u.n, default=None) if matrix_units.is_power(columns) else None


def inner_of(k: KernelGraph, number: int) -> list[UOp]:
    """Return the contractions inside the operands of the sums over range ``number`` that depend on its step and are not
    on a unit yet."""
    folds = [f for f in k.folds if f.src[-1].arg[0] == number and contraction(f, guarded=True)]
    inside = dict.fromkeys(n for fold in folds for n in toposort(fold.src[0], lambda n: n.op is not Ops.STAGE))
    return [n for n in inside if contraction(n, guarded=True) and any(r.arg[0] == number for r in n.ranges)]


def _hold(k: KernelGraph, fold: UOp, m: UOp, r: UOp, unit: MatrixUnit) -> None:
    """Stage the product ``fold`` in accumulator registers of ``unit``: its tiles along ``r`` are computed once.

    All values equal to ``fold``, up to the names of their reduced ranges, are replaced by reads of this stage.
    """
    fixed = frozenset(x for x in fold.ranges if x is not r)
    same = equal_values(k.sink, fold, fixed)
    found = matrix_units.operands(fold, m, r, unit)
    assert found is not None
    depth, size = fold.src[1], range_size(r)
    beside, column = k.new_range(size // unit.n, Role.UPCAST), k.new_range(unit.n, Role.FRAGMENT)
    steps, step = k.new_range(range_size(depth) // unit.k, Role.UNROLL), k.new_range(unit.k, Role.FRAGMENT)
    table = {r: (beside * unit.n + column).simplify(), depth: (steps * unit.k + step).simplify()}
    load = from_stage(matrix_units.summed(found, table, (m, column, step), unit, (steps,)), [Side((beside, column), r)])
    k.read_staged(load, {n: under_names(load, names) for n, names in same.items()})
    k.order += [x for x in (steps, step) if x.op is Ops.RANGE]


def greatest(sink: UOp) -> UOp | None:
    """Return the maximum that some sums are relative to, if no other reduction depends on it; else None."""
    folds = [n for n in toposort(sink) if n.op is Ops.FOLD]
    found = next((f for f in folds if f.arg is Ops.MAX and len(f.src) == 2 and f.dtype.is_float), None)
    sums = relative_sums(sink, found) if found is not None else []
    return found if sums else None


def relative_sums(sink: UOp, greatest: UOp) -> Sequence[UOp]:
    """Return the sums relative to the maximum ``greatest``; none if another reduction depends on it or on them."""
    readers = [f for f in toposort(sink) if f.op is Ops.FOLD and f is not greatest and greatest in toposort(f)]
    sums = [f for f in readers if f.arg is Ops.ADD and len(f.src) == 2 and f.src[1].src == greatest.src[1].src
            and _shift(f.src[0], greatest) is not None]
    return sums if len(sums) == len(readers) else []


def finite(top: UOp) -> UOp:
    """Return a maximum, or 0 if it is -inf: values that are all -inf stay -inf relative to 0, and their exponentials
    are 0."""
    return top.eq(-math.inf).where(0.0, top)


def _shift(body: UOp, greatest: UOp) -> UOp | None:
    """Return the shift of a value: the maximum or its ``finite`` form; None if the value is relative to neither.

    A value is relative if it is guarded to 0 or a product with exp(x - shift), which depends on the maximum nowhere
    else.
    """
    if (guard := guard_of(body)) is not None:
        return None if greatest in toposort(guard) else _shift(body.src[1], greatest)
    if body.op is Ops.CAST and body.dtype.is_float:  # the cast rounds alike for any shift
        return _shift(body.src[0], greatest)
    if body.op is Ops.MUL:
        with_it = [s for s in body.src if greatest in toposort(s)]
        return _shift(with_it[0], greatest) if len(with_it) == 1 else None
    if body.op is not Ops.EXP or body.src[0].op is not Ops.SUB:
        return None
    x, shift = body.src[0].src
    return shift if shift in (greatest, finite(greatest)) and greatest not in toposort(x) else None


def chained_sums(k: KernelGraph) -> list[UOp]:
    """Return the outer contractions of operands that are computed from other contractions, if these are all reductions
    of the kernel, have one range each, of equal size, and read the same tiles; else none.

    Sums over different ranges read the same tiles if they do so after renaming their ranges.
    """
    sums = [f for f in outer_folds(k.sink) if contraction(f, guarded=True) and inner_contractions(f.src[0])]
    if not sums or any(len(f.src) != 2 or range_size(f.src[1]) != range_size(sums[0].src[1]) for f in sums):
        return []
    inner = {c for f in sums for c in inner_contractions(f.src[0])}
    return sums if set(k.folds) == {*sums, *inner} else []


def in_blocks(k: KernelGraph, opt: Opt) -> None:
    """Split the sums of ``chained_sums`` into blocks of ``amt``, in one loop. If a mask hides the first blocks, the
    loop runs from the last block to the first one, so that the hidden blocks come last."""
    sums = chained_sums(k)
    r = k.ranges[opt.axis] if opt.axis is not None and 0 <= opt.axis < len(k.ranges) else None
    opt.require(bool(sums) and r in [f.src[1] for f in sums] and all(n.op not in (Ops.STAGE, Ops.MMA) for n in k.nodes),
                "no maximum over the axis has sums relative to it, and no contraction of a computed operand sums it")
    assert r is not None
    size = range_size(r)
    opt.require(isinstance(opt.amt, int) and 1 < opt.amt < size and size % opt.amt == 0,
                "the block size must divide a range of fixed size")
    assert isinstance(opt.amt, int)
    loop, inner = k.new_range(size // opt.amt, Role.BLOCK), k.new_range(opt.amt, Role.REDUCE)
    hidden = [nothing_where(f.src[0].substitute({f.src[1]: loop * opt.amt + inner})) for f in sums]
    ends = [h is not None and end_before(h, loop, k.parallel, backwards=True) is not None for h in hidden]
    at = loop * -1 + (size // opt.amt - 1) if all(ends) else loop
    position = (at * opt.amt + inner).simplify()
    old = {f.src[1] for f in sums}
    table = {f: UOp(Ops.FOLD, None, (UOp(Ops.FOLD, None, (f.src[0].substitute({f.src[1]: position}), inner), Ops.ADD),
                                     loop), Ops.ADD) for f in sums}
    k.order[k.order.index(r)] = inner
    k.order = [loop, *(x for x in k.order if x not in old)]
    k.rebuild_as(k.sink.src, table)


def online(k: KernelGraph, opt: Opt) -> None:
    """Rewrite a maximum over the axis, and the sums relative to it, to blocks of ``amt``; without a maximum, the
    contractions of computed operands."""
    top = greatest(k.sink)
    if top is None:
        return in_blocks(k, opt)
    r = k.ranges[opt.axis] if opt.axis is not None and 0 <= opt.axis < len(k.ranges) else None
    if top is None or r is not top.src[1]:
        raise opt.illegal("no maximum over the axis has sums relative to it", "another axis")
    size = r.src[-1].arg if r.src[-1].is_const else 0
    opt.require(isinstance(opt.amt, int) and 1 < opt.amt < size and size % opt.amt == 0,
                "the block size must divide a range of fixed size")
    opt.require(r.arg[1] is Role.REDUCE and all(n.op not in (Ops.STAGE, Ops.MMA) for n in k.nodes),
                "ONLINE comes before other opts on these reductions")
    assert isinstance(opt.amt, int)
    sums = relative_sums(k.sink, top)
    others = {f.src[1] for f in sums} - {r}
    bound = {x: {f for f in k.folds if x in f.src[1:]} for x in others}
    opt.require(all(fs <= set(sums) for fs in bound.values()), "another reduction shares a range with them")
    loop, inner = k.new_range(size // opt.amt, Role.BLOCK), k.new_range(opt.amt, Role.REDUCE)
    position = (loop * opt.amt + inner).simplify()
    block = UOp(Ops.FOLD, None, (top.src[0].substitute({r: position}), inner), Ops.MAX)
    whole = UOp(Ops.FOLD, None, (block, loop), Ops.MAX)
    own_shift = finite(block)  # a block that is all -inf adds 0
    table = {top: whole}
    for f in sums:
        shift = _shift(f.src[0], top)
        assert shift is not None
        own = inner if f.ranges <= top.ranges else k.new_range(opt.amt, Role.REDUCE)
        at = (loop * opt.amt + own).simplify()
        part = UOp(Ops.FOLD, None, (f.src[0].substitute({shift: own_shift, f.src[1]: at}), own), Ops.ADD)
        table[f] = UOp(Ops.FOLD, None, ((block - shift.substitute({top: whole})).alu("EXP") * part, loop), Ops.ADD)
        k.order += [own] * (own is not inner)
    k.order[k.order.index(r)] = inner
    k.order = [loop, *(x for x in k.order if x not in others)]
    k.rebuild_as(k.sink.src, table)
