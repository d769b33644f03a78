"""Opts for reductions over a few elements: pooling windows, and their gradients.

The window is written out, and so are the places in it that the output has; what then runs is elementwise code whose
lanes lie beside each other in whole vectors, every so many elements apart (see ``emit_strided_loads``).
"""
from __future__ import annotations

import math

from tinsmith.codegen.kernel import Kernel
from tinsmith.codegen.opt import OptOps
from tinsmith.codegen.render.base import Target
from tinsmith.codegen.roles import range_size
from tinsmith.codegen.tuning import apply_to, lanes_of, split, stride_of
from tinsmith.ir import Ops, UOp
from tinsmith.ir.uop import toposort


def windows_fit(kernel: Kernel) -> bool:
    """Whether every reduction runs over few elements."""
    most = kernel.target.core.written_out
    return all(0 < math.prod(range_size(r) for r in f.src[1:]) <= most for f in kernel.folds)


def window_opts(kernel: Kernel, target: Target) -> None:
    """Write the windows out, and the places in them that the output has; lanes along the output."""
    for r in list(kernel.parallel):
        if step := _windows_along(kernel, r):
            apply_to(kernel, OptOps.TILE, r, step)
    _lanes(kernel, target)
    shared = [r for r in kernel.parallel if not any(r in f.ranges for f in kernel.folds)]
    copies = 1
    for r in sorted(shared, key=range_size):
        if range_size(r) * copies <= kernel.target.core.written_out:
            copies *= range_size(r)
            apply_to(kernel, OptOps.UPCAST, r)
    for r in list(kernel.reduces):
        apply_to(kernel, OptOps.UNROLL, r)


def _windows_along(kernel: Kernel, r: UOp) -> int:
    """How many neighbours along ``r`` read the same windows: the reductions know it by a quotient only."""
    bodies = [n for f in kernel.folds for n in toposort(f.src[0])]
    quotients = {n for n in bodies if n.op is Ops.IDIV and n.src[0] is r and n.src[1].is_const}
    steps = {n.src[1].arg for n in quotients}
    readers = {n for n in bodies if r in n.src}
    if len(steps) != 1 or readers != quotients:
        return 0
    (step,) = steps
    fits = 1 < step <= kernel.target.core.written_out and range_size(r) % step == 0
    return step if fits and range_size(r) > step else 0


def _lanes(kernel: Kernel, target: Target) -> None:
    """Lanes along the output, side by side or with the places of a window between them."""
    if not target.vector_bytes or any(s.op is not Ops.STORE for s in kernel.stores):
        return
    lanes = lanes_of(kernel, target)
    short = {1, *(range_size(r) for r in kernel.parallel if range_size(r) <= target.core.window_step
                  and all(stride_of(s.src[1], r) == 1 for s in kernel.stores))}
    options = [r for r in kernel.parallel if range_size(r) >= 4 and kernel.may_have_lanes(r)
               and all(stride_of(s.src[1], r) in short for s in kernel.stores)]
    if options:
        best = max(options, key=lambda r: (min(range_size(r), lanes), range_size(r)))
        split(kernel, OptOps.VECTOR, best, min(lanes, 1 << range_size(best).bit_length() - 1))


def woven_lanes(kernel: Kernel, target: Target, lanes: int, stores: list[UOp]) -> None:
    """Lanes along what is repeated or interleaved: the few places that each element goes to are written together."""
    own = [r for r in kernel.parallel if all(r in s.ranges for s in stores)]
    for short in own:
        count = range_size(short)
        beside = [r for r in own if range_size(r) >= lanes and all(stride_of(s.src[1], r) == count for s in stores)
                  and all(stride_of(n.src[1], r) in (0, 1) for n in toposort(stores) if n.op is Ops.LOAD)]
        if 1 < count <= target.core.window_step and beside and all(stride_of(s.src[1], short) == 1 for s in stores):
            split(kernel, OptOps.VECTOR, beside[0], lanes)
            return apply_to(kernel, OptOps.UPCAST, short)
    return None
