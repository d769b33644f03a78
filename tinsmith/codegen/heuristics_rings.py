"""The analytic choice of opts for a contraction whose unit reads its operands from a ring's slots.

A block computes one tile of the result; a unit's row says which tiles it is good for. All blocks of a tile's size come
in waves over the cores, so the cheapest tile is the one with the least ``waves · tile / speed``. Where there are
several waves, as many blocks as there are cores take turns, and warps of their own fill their rings. Where an operand
is no box of memory, its STAGE is refused, and so is the unit.
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
from tinsmith.codegen.tuning import Candidate, stride_of
from tinsmith.core.errors import ArgumentError
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
    fastest = max((u.rate for u in target.units if u.tiles), default=0.0)
    for unit in target.units:
        if not unit.tiles or matrix.operands(fold, m, n, unit) is None or any(
                size < least for size, least in zip(sizes, (unit.m, unit.n // 2, 2 * unit.k))):
            continue
        for tile in unit.tiles:
            side = unit.m * tile.below
            waves = -(-batch * -(-sizes[0] // side) * -(-sizes[1] // unit.n) // target.cores)
            if not tile.roles or waves > 1:
                filled = "warps of their own fill" if tile.roles else "a ring of"
                cycles = waves * side * unit.n * sizes[2] / (fastest * tile.speed)
                yield Candidate(f"tiles of {side} × {unit.n} with {unit.name}, {filled} {tile.slots} slots",
                                {"products": cycles}, partial(_applied, m=m, n=n, k=k, unit=unit, tile=tile))


def _largest(kernel: Kernel, fold: UOp, a: UOp, b: UOp) -> UOp | None:
    """The longest range of the grid that only operand ``a`` has."""
    own = [r for r in kernel.order if r in a.ranges - b.ranges and r in fold.ranges and r.arg[1] is Role.GLOBAL]
    return max(own, key=range_size, default=None)


def _applied(kernel: Kernel, m: UOp, n: UOp, k: UOp, unit: MatrixUnit, tile: Tile) -> None:
    if not tile_applied(kernel, [r.arg[0] for r in (m, n, k)], unit, tile):
        raise ArgumentError("Opt", "an operand is no box of memory", "rows at multiples of 16 bytes")


def tile_applied(kernel: Kernel, numbers: list[int], unit: MatrixUnit, tile: Tile) -> bool:
    """PADTO, TC, LOCAL, UNROLL, WALK, a STAGE per operand and ROLES; False where one of them is refused."""
    below, steps = tile.below, ROW_BYTES // unit.a.itemsize
    positions = [next(i for i, r in enumerate(kernel.ranges) if r.arg[0] == n) for n in numbers]
    for axis, multiple in ((0, unit.m * below), (2, steps)):
        if range_size(kernel.ranges[positions[axis]]) % multiple and not tried(
                kernel, Opt(OptOps.PADTO, positions[axis], multiple)):
            return False
    m, n, k = positions
    if not tried(kernel, Opt(OptOps.TC, k, (m, n, 1, 1), unit=unit.name)):
        return False
    rows, columns = (_own(kernel, which) for which in (0, 1))
    if below > 1 and (rows is None or not tried(kernel, Opt(OptOps.LOCAL, kernel.ranges.index(rows), below))):
        return False
    for r in kernel.reduces if steps > unit.k else ():
        if not tried(kernel, Opt(OptOps.UNROLL, kernel.ranges.index(r), steps // unit.k)):
            return False
    rows, columns = (_own(kernel, which) for which in (0, 1))
    if rows is not None and columns is not None:
        band = max(d for d in range(1, kernel.target.blocks.band + 1) if range_size(rows) % d == 0)
        if band > 1 or tile.roles:
            blocks = (kernel.target.cores,) * tile.roles
            tried(kernel, Opt(OptOps.WALK, kernel.ranges.index(rows), (kernel.ranges.index(columns), band, 1, *blocks)))
    staged = all(_staged(kernel, which, tile.slots) for which in (0, 1))
    return staged and (not tile.roles or tried(kernel, Opt(OptOps.ROLES)))


def tried(kernel: Kernel, opt: Opt) -> bool:
    """Apply ``opt``; False where it is refused: where operands lie as they do not suit, nothing else knows."""
    try:
        kernel.apply(opt)
    except ArgumentError:
        return False
    return True


def _own(kernel: Kernel, which: int) -> UOp | None:
    """The axis of the grid that only one operand has."""
    product = kernel.products[0]
    mine = product.src[which].ranges - product.src[1 - which].ranges
    return next((r for r in kernel.order if r in mine and r.arg[1] is Role.GLOBAL), None)


def _staged(kernel: Kernel, which: int, slots: int) -> bool:
    value = kernel.products[0].src[which]
    kept = tuple(i for i, r in enumerate(kernel.ranges) if r in value.ranges and r.arg[1] in (Role.GLOBAL, Role.REDUCE))
    return value in kernel.stageable and tried(kernel, Opt(OptOps.STAGE, kernel.stageable.index(value), kept,
                                                           layout="swizzled", depth=slots))
