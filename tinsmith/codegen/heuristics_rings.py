"""The analytic choice of opts for a contraction whose unit reads its operands from a ring's slots.

A block computes one tile of the result; a unit's row says which tiles it is good for. All blocks of a tile's size come
in waves over the cores, so the cheapest tile is the one with the least ``waves · tile / speed``. Where there are
several waves, as many blocks as there are cores take turns, and warps of their own fill their rings. Where an operand
is no box of memory, the unit does not suit the kernel.
"""
from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

from tinsmith.codegen import matrix
from tinsmith.codegen.kernel import Kernel
from tinsmith.codegen.opt import Opt, OptOps
from tinsmith.codegen.render.base import Target
from tinsmith.codegen.roles import Role, range_size
from tinsmith.codegen.tuning import Candidate, Unfit, apply_if_it_fits, stride_of
from tinsmith.codegen.views import loaded
from tinsmith.core.settings import settings
from tinsmith.ir import Ops, UOp
from tinsmith.ir.layout import ROW_BYTES
from tinsmith.ir.structure import contraction
from tinsmith.ir.units import MatrixUnit, Tile


def ring_ways(kernel: Kernel, target: Target) -> Iterator[Candidate]:
    """Tiles of the units that work from rings, for one large contraction."""
    fold = next(iter(kernel.folds), None)
    found = contraction(fold, guarded=True) if fold is not None and len(kernel.folds) == 1 else None
    if fold is None or found is None or any(s.op is not Ops.STORE for s in kernel.stores):
        return
    x, y = (_largest(kernel, fold, a, b) for a, b in ((found.a, found.b), (found.b, found.a)))
    k = max((r for r in found.k if r in found.a.ranges and r in found.b.ranges), key=range_size, default=None)
    if x is None or y is None or k is None:
        return
    m, n = (y, x) if all(stride_of(s.src[1], x) == 1 for s in kernel.stores) else (x, y)
    sizes = [range_size(r) for r in (m, n, k)]
    if not all(isinstance(s, int) for s in sizes):
        return
    others = [range_size(r) for r in fold.ranges if r not in (m, n) and not r.arg[1].expanded]
    batch = math.prod(s for s in others if isinstance(s, int))
    for unit in target.units:
        if not unit.tiles or (unit.rounds and not settings.ALLOW_TF32) or matrix.operands(
                fold, m, n, unit) is None or any(
                size < least for size, least in zip(sizes, (unit.m, unit.n // 2, 2 * unit.k))):
            continue
        fastest = max(u.rate for u in target.units if u.tiles and u.a is unit.a)
        for tile in unit.tiles:
            side = unit.m * tile.below
            waves = -(-batch * -(-sizes[0] // side) * -(-sizes[1] // unit.n) // target.cores)
            fits = unit.threads * (tile.below + tile.roles) <= target.block_threads
            if fits and (not tile.roles or waves > 1):
                filled = "warps of their own fill" if tile.roles else "a ring of"
                cycles = waves * side * unit.n * sizes[2] / (fastest * tile.speed)
                yield Candidate(f"tiles of {side} × {unit.n} with {unit.name}, {filled} {tile.slots} slots",
                                {"products": cycles}, partial(apply_tile, numbers=[r.arg[0] for r in (m, n, k)],
                                                              unit=unit, tile=tile))


def _largest(kernel: Kernel, fold: UOp, a: UOp, b: UOp) -> UOp | None:
    """The longest range of the grid that only operand ``a`` has."""
    own = [r for r in kernel.order if r in a.ranges - b.ranges and r in fold.ranges and r.arg[1] is Role.GLOBAL]
    return max(own, key=range_size, default=None)


def apply_tile(kernel: Kernel, numbers: list[int], unit: MatrixUnit, tile: Tile) -> None:
    """PADTO, TC, LOCAL, UNROLL, WALK, a STAGE per operand and ROLES."""
    below, steps = tile.below, ROW_BYTES // unit.a.itemsize
    m, n, k = map(kernel.axis_of, numbers)
    for axis, multiple in ((m, unit.m * below), (k, steps)):
        if range_size(kernel.ranges[axis]) % multiple:
            kernel.apply(Opt(OptOps.PADTO, axis, multiple))
    kernel.apply(Opt(OptOps.TC, k, (m, n, 1, 1), unit=unit.name))
    if below > 1 and (rows := _own(kernel, 0)) is not None:
        kernel.apply(Opt(OptOps.LOCAL, kernel.ranges.index(rows), below))
    for r in kernel.reduces if steps > unit.k else ():
        kernel.apply(Opt(OptOps.UNROLL, kernel.ranges.index(r), steps // unit.k))
    rows, columns = (_own(kernel, which) for which in (0, 1))
    if rows is not None and columns is not None:
        band = max(d for d in range(1, kernel.target.blocks.band + 1) if range_size(rows) % d == 0)
        if band > 1 or tile.roles:
            blocks = (kernel.target.cores,) * tile.roles
            kernel.apply(Opt(OptOps.WALK, kernel.ranges.index(rows), (kernel.ranges.index(columns), band, 1, *blocks)))
    for which in (0, 1):
        value = kernel.products[0].src[which]
        stage_operand(kernel, value, [r for r in kernel.ranges if r in value.ranges and r.arg[1] in (
            Role.GLOBAL, Role.REDUCE)], tile.slots)
    if tile.roles:
        kernel.apply(Opt(OptOps.ROLES))


def stage_operand(kernel: Kernel, value: UOp, kept: list[UOp], slots: int) -> None:
    """The ring of an operand, if it is a box of memory."""
    load = loaded(value)
    if load is None:
        raise Unfit("an operand is no value in memory")
    apply_if_it_fits(kernel, Opt(OptOps.STAGE, kernel.stageable.index(load), tuple(map(kernel.ranges.index, kept)),
                                 layout="swizzled", depth=slots))


def _own(kernel: Kernel, which: int) -> UOp | None:
    """The axis of the grid that only one operand has."""
    product = kernel.products[0]
    mine = product.src[which].ranges - product.src[1 - which].ranges
    return next((r for r in kernel.order if r in mine and r.arg[1] is Role.GLOBAL), None)
