"""Online softmax (Milakov and Gimelshein, 2018) as a rewrite, the opt ONLINE: a maximum and the sums relative to it
become one loop over blocks.

    m = max_j s(j)      l = Σ_j exp(s(j) - m)·v(j)

``exp(x - m') = exp(m - m')·exp(x - m)``: a sum relative to one number can be rescaled to another one. So each block has
a maximum and sums of its own, and the sums of all blocks are rescaled to the common maximum:

    b = max of the block    m = max of all b    l = Σ over blocks of exp(b - m)·(Σ in the block of exp(s - b)·v)

The linearizer runs over the blocks once, carrying the running maximum and the sums relative to it. Local memory holds
one block at a time, whatever the length of the rows.
"""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tinsmith.codegen.kernel_graph import KernelGraph
from tinsmith.ir import Ops, UOp
from tinsmith.ir.ranges import Role
from tinsmith.ir.structure import guard_of
from tinsmith.ir.uop import toposort

if TYPE_CHECKING:
    from tinsmith.codegen.opt import Opt


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
    """Return the number that a value is relative to, the maximum or ``finite`` of it; None if it is not relative to
    either.

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


def online(k: KernelGraph, opt: Opt) -> None:
    """Rewrite a maximum over the axis, and the sums relative to it, to blocks of ``amt``."""
    top = greatest(k.sink)
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
