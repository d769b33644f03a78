"""The analytic choice of opts for a chain of contractions on a grid: attention, and whatever else has its form.

A block computes a tile of rows and all columns of the result, block by block of what lies between: ``ONLINE`` makes
the blocks, ``TC`` brings the chain onto a unit, ``LOCAL`` puts groups of warps below each other, and a ``STAGE`` per
operand makes the rings. A unit's row says which tiles it is good for; all blocks come in waves over the cores.
"""
from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

from tinsmith.codegen.heuristics_rings import tried
from tinsmith.codegen.kernel import Kernel
from tinsmith.codegen.masking import visible_ends
from tinsmith.codegen.online import greatest, relative_sums
from tinsmith.codegen.opt import Opt, OptOps
from tinsmith.codegen.render.base import Target
from tinsmith.codegen.roles import Role, range_size
from tinsmith.codegen.streams import inner_contractions, outer_folds
from tinsmith.codegen.tuning import Candidate
from tinsmith.core.errors import ArgumentError
from tinsmith.ir import Ops
from tinsmith.ir.structure import contraction
from tinsmith.ir.units import MatrixUnit
from tinsmith.ir.uop import toposort


def chain_ways(kernel: Kernel, target: Target) -> Iterator[Candidate]:
    """Tiles of the units that chains are good for."""
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
    fastest = max((u.rate for u in target.units if u.chains), default=0.0)
    stored = {n.dtype for n in toposort(b) if n.op is Ops.LOAD}
    for unit in (u for u in target.units if u.b in stored and range_size(row) >= u.m // 2):
        for below, block, slots, speed in unit.chains:
            side = unit.m * below
            waves = -(-others * -(-range_size(row) // side) // target.cores)
            width = depth + -(-range_size(column) // unit.n) * unit.n
            cycles = waves * side * -(-size // block) * block * width / (fastest * speed)
            tile = partial(_chained, numbers=numbers, unit=unit, below=below, block=block, slots=slots)
            what = f"a chain of tiles of {side} × {block} with {unit.name}, {slots} slots"
            yield Candidate(what, {"products": cycles}, tile)


def _chained(kernel: Kernel, numbers: list[int], unit: MatrixUnit, below: int, block: int, slots: int) -> None:
    if not _applied(kernel, numbers[:2], numbers[2:], unit, below, block, slots):
        raise ArgumentError("Opt", "an operand does not lie as the unit needs it", "rows at multiples of 16 bytes")


def at_number(kernel: Kernel, number: int) -> int:
    return next(i for i, r in enumerate(kernel.ranges) if r.arg[0] == number)


def _applied(kernel: Kernel, sides: list[int], keys: list[int], unit: MatrixUnit, below: int, block: int,
             slots: int) -> bool:
    """The opts of a tile; False where one of them is refused."""
    numbers = [*sides, *keys]

    def at(which: int) -> int:
        return at_number(kernel, numbers[which])

    for which, multiple in enumerate((unit.m * below, 1, *(block for _ in keys))):
        place = at(which)
        if range_size(kernel.ranges[place]) % multiple:
            if not tried(kernel, Opt(OptOps.PADTO, place, multiple)):
                return False
            numbers[which] = kernel.ranges[place].arg[0]
    size = range_size(kernel.ranges[at(2)])
    if size > block and not tried(kernel, Opt(OptOps.ONLINE, at(2), block)):
        return False
    fold = next((f for f in kernel.folds if contraction(f, guarded=True) and any(
        n.op is Ops.FOLD for n in toposort(f.src[0]))), None)
    copies = -(-range_size(kernel.ranges[at(1)]) // unit.n)
    known = {r.arg[0] for r in kernel.order}
    if fold is None or not tried(kernel, Opt(OptOps.TC, kernel.ranges.index(fold.src[-1]), (at(0), at(1), 1, copies),
                                             unit=unit.name)):
        return False
    rows = next((r for r in kernel.order if r.arg[1] is Role.GLOBAL and r.arg[0] not in known), None)
    if below > 1 and rows is not None:
        place = kernel.ranges.index(rows)
        if not tried(kernel, Opt(OptOps.LOCAL, place, below)):
            return False
        rows = kernel.ranges[place] if kernel.ranges[place].arg[1] is Role.GLOBAL else None
    if ends := visible_ends(kernel):
        kernel.apply(Opt(OptOps.SKIP))
        if rows is not None and any(rows.arg[0] == r.arg[0] for e in ends.values() for r in e.ranges):
            tried(kernel, Opt(OptOps.WALK, at_number(kernel, rows.arg[0]), -1))
    loaded = [s for p in kernel.products for s in p.src[:2] if s in kernel.loads]
    return not unit.staged or all(_staged(kernel, slots) for _ in loaded)


def _staged(kernel: Kernel, slots: int) -> bool:
    """A ring for the first operand that has none; one slot where no loop leads through it."""
    value = next(s for p in kernel.products for s in p.src[:2] if s in kernel.loads)
    kept = [r for r in kernel.ranges if r in value.ranges and r.arg[1] in (Role.GLOBAL, Role.BLOCK)]
    deep = slots if any(r.arg[1] is Role.BLOCK for r in kept) else 1
    return tried(kernel, Opt(OptOps.STAGE, kernel.stageable.index(value), tuple(map(kernel.ranges.index, kept)),
                             layout="swizzled", depth=deep))
