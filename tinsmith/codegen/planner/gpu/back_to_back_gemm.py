"""Candidates for chains of contractions on a grid: attention (as FlashAttention), and other kernels of the same form.

A block computes a tile of rows and all columns of the result, looping over blocks of the range between the
contractions: ``ONLINE`` creates that loop, ``TC`` puts the chain on a matrix unit, ``LOCAL`` stacks warp groups along
the rows, and one ``STAGE`` per operand creates the rings. A unit's row lists the tiles that suit it; blocks run in
waves over the cores.
"""
from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

from tinsmith.codegen.kernel import Kernel
from tinsmith.codegen.opt import Opt, OptOps
from tinsmith.codegen.planner.candidate import Candidate
from tinsmith.codegen.planner.cost import price, staged_steps, waves_of
from tinsmith.codegen.planner.gpu.rings import stage_operand
from tinsmith.codegen.transform import matrix_units
from tinsmith.codegen.transform.computed_operand import inner_contractions, outer_folds
from tinsmith.codegen.transform.online_softmax import greatest, relative_sums
from tinsmith.codegen.transform.skip_masked_blocks import visible_ends
from tinsmith.ir import Ops
from tinsmith.ir.matrix_unit import MatrixUnit, UnitTile
from tinsmith.ir.ranges import Role, range_size
from tinsmith.ir.structure import contraction
from tinsmith.ir.uop import toposort
from tinsmith.target.target import Target


def chain_ways(kernel: Kernel, target: Target) -> Iterator[Candidate]:
    """Generate the tiles of the matrix units that list tiles for chains."""
    top = greatest(kernel.sink)
    found = [f for f in outer_folds(kernel.sink) if contraction(f) and any(map(inner_contractions, f.src[0].src))]
    if top is None or len(found) != 1 or not inner_contractions(top.src[0]):
        return
    a, b = sorted(found[0].src[0].src, key=lambda s: not inner_contractions(s))
    rows, columns = ([r for r in kernel.parallel if r in x.ranges - y.ranges] for x, y in ((a, b), (b, a)))
    keys = [top.src[1], *dict.fromkeys(f.src[1] for f in relative_sums(kernel.sink, top) if f.src[1] is not top.src[1])]
    if not rows or len(columns) != 1 or not all(isinstance(range_size(r), int) for r in kernel.order):
        return
    row, column, size = max(rows, key=range_size), columns[0], range_size(keys[0])
    depth = max(range_size(f.src[-1]) for f in inner_contractions(a))
    others = math.prod(range_size(r) for r in kernel.parallel if r is not row and r is not column)
    numbers = [r.arg[0] for r in (row, column, *keys)]
    stored = {n.dtype for n in toposort(b) if n.op is Ops.LOAD}
    fit = [u for u in target.units if u.b in stored and range_size(row) >= u.m // 2]
    wide = max((u.n for u in fit if u.staged and u.chains), default=0)
    for unit in (u for u in fit if not u.staged or u.n >= min(range_size(column), wide)):
        for tile in unit.chains:
            side, block = unit.m * tile.below, tile.between
            if unit.threads * (tile.below + tile.roles) > target.block_threads or (tile.ahead and size <= block):
                continue
            waves = waves_of(target, (range_size(row),), (side,), others)
            width = depth + -(-range_size(column) // unit.n) * unit.n
            length = -(-size // block) * block + target.blocks.begin * tile.roles
            steps = staged_steps(target, unit, tile, width, waves, length)
            filled = "producer warps fill" if tile.roles else "rings of"
            what = f"a chain of tiles of {side} × {block} with {unit.name}, {filled} {tile.slots} slots"
            yield Candidate(what, price(target, steps), partial(apply_chain, numbers=numbers, unit=unit, tile=tile))


def apply_chain(kernel: Kernel, numbers: list[int], unit: MatrixUnit, tile: UnitTile) -> None:
    """Apply the opts of a tile. ``numbers``: range numbers of the rows, the columns, and the ranges between the
    contractions."""
    numbers, below, block = list(numbers), tile.below, tile.between

    def at(which: int) -> int:
        return kernel.axis_of(numbers[which])

    for which, multiple in enumerate((unit.m * below, 1, *(block for _ in numbers[2:]))):
        place = at(which)
        if range_size(kernel.ranges[place]) % multiple:
            kernel.apply(Opt(OptOps.PADTO, place, multiple))
            numbers[which] = kernel.ranges[place].arg[0]
    if range_size(kernel.ranges[at(2)]) > block:
        kernel.apply(Opt(OptOps.ONLINE, at(2), block))
    fold = next(f for f in kernel.folds if contraction(f, guarded=True) and any(
        n.op is Ops.FOLD for n in toposort(f.src[0])))
    copies = -(-range_size(kernel.ranges[at(1)]) // unit.n)
    known = {r.arg[0] for r in kernel.order}
    kernel.apply(Opt(OptOps.TC, kernel.ranges.index(fold.src[-1]), (at(0), at(1), 1, copies), unit=unit.name))
    rows = next((r for r in kernel.order if r.arg[1] is Role.GLOBAL and r.arg[0] not in known), None)
    if below > 1 and rows is not None:
        place = kernel.ranges.index(rows)
        kernel.apply(Opt(OptOps.LOCAL, place, below))
        rows = kernel.ranges[place] if kernel.ranges[place].arg[1] is Role.GLOBAL else None
    if ends := visible_ends(kernel):
        kernel.apply(Opt(OptOps.SKIP))
        if rows is not None and any(rows.arg[0] == r.arg[0] for e in ends.values() for r in e.ranges):
            kernel.apply(Opt(OptOps.WALK, kernel.axis_of(rows.arg[0]), -1))
    for _ in [s for p in kernel.products for s in p.src[:2] if s in kernel.loads] if unit.staged else ():
        value = next(s for p in kernel.products for s in p.src[:2] if s in kernel.loads)
        kept = [r for r in kernel.ranges if r in value.ranges and r.arg[1] in (Role.GLOBAL, Role.BLOCK)]
        stage_operand(kernel, value, kept, tile.slots if any(r.arg[1] is Role.BLOCK for r in kept) else 1)
    if tile.ahead:
        value = next(p.src[0] for p in kernel.products if matrix_units.reads_held(p.src[0]))
        kernel.apply(Opt(OptOps.STAGE, kernel.stageable.index(value), (), depth=2))
    if tile.roles:
        several = any(r.arg[1] is Role.LOCAL for r in kernel.order)
        kernel.apply(Opt(OptOps.ROLES, None, tile.turns if tile.turns and several else None))
