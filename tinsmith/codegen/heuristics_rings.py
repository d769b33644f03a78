"""The analytic choice of opts for a contraction whose unit reads its operands from a ring's slots.

A block computes one tile of the result; a unit's row says which tiles it is good for. All blocks of a tile's size come
in waves over the cores, so the cheapest tile is the one with the least ``waves · tile / speed``. Where there are
several waves, as many blocks as there are cores take turns, and warps of their own fill their rings. Where an operand
is no box of memory, its STAGE is refused, and so is the unit.
"""
from __future__ import annotations

import math

from tinsmith.codegen import matrix
from tinsmith.codegen.kernel import Kernel
from tinsmith.codegen.opt import Opt, OptOps
from tinsmith.codegen.render.base import Target
from tinsmith.codegen.roles import Role, range_size
from tinsmith.core.errors import ArgumentError
from tinsmith.ir import UOp
from tinsmith.ir.layout import ROW_BYTES
from tinsmith.ir.units import MatrixUnit, Tile


def ring_opts(kernel: Kernel, target: Target, fold: UOp, m: UOp, n: UOp, k: UOp) -> bool:
    """Bring a contraction onto the best tile of a unit that works from rings; False where there is none."""
    sizes = [range_size(r) for r in (m, n, k)]
    if not all(isinstance(s, int) for s in sizes):
        return False
    others = [range_size(r) for r in fold.ranges if r not in (m, n) and not r.arg[1].expanded]
    batch = math.prod(s for s in others if isinstance(s, int))

    def waves(unit: MatrixUnit, tile: Tile) -> int:
        blocks = batch * -(-sizes[0] // (unit.m * tile.below)) * -(-sizes[1] // unit.n)
        return -(-int(blocks) // target.cores)

    def cost(choice: tuple[MatrixUnit, Tile]) -> float:
        unit, tile = choice
        return waves(*choice) * unit.m * tile.below * unit.n / tile.speed

    fitting = [unit for unit in target.units if unit.tiles and matrix.operands(fold, m, n, unit) is not None]
    tiles = [(unit, tile) for unit in fitting for tile in unit.tiles if not tile.roles or waves(unit, tile) > 1]
    for unit, tile in sorted(tiles, key=cost):
        if sizes[0] < unit.m or sizes[1] < unit.n // 2 or sizes[2] < 2 * unit.k:
            continue
        trial = kernel.copied()
        if tile_applied(trial, [r.arg[0] for r in (m, n, k)], unit, tile):
            vars(kernel).update(vars(trial))
            return True
    return False


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
