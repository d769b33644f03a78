"""Candidates of contractions and chains of contractions whose operands arrive through rings (wgmma).

A block computes one tile of the result; a unit's row lists the tiles that suit it. Blocks of one tile size run in waves
over the cores, so the cheapest tile minimizes ``waves · tile / speed``, where the epilogue counts as further steps of
the sum. With several waves, as many persistent blocks as cores loop over the tiles, and producer warps fill their rings
(warp specialization); for short sums, consumer groups also alternate (ping-pong). If an operand is not a box of memory,
the unit does not suit the kernel.

The rows, columns and steps of a product may be boxes of several ranges, as those of a convolution are. Each group is
merged into one range, made of *patches*: the rows of a tile are a box of images, lines and columns, and a step takes
some channels at one position of the window. Bulk copies can bring patches of any shape, so the shape is chosen to waste
least at the edges.

Chains (``chain_ways``: attention, and other kernels of the same form). A block computes a tile of rows and all columns
of the result, looping over blocks of the range between the contractions. ``ONLINE`` creates that loop, ``TC`` puts the
chain on a matrix unit, ``LOCAL`` stacks warp groups along the rows, and one ``STAGE`` per operand creates the rings.
"""
from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial

from tinsmith.codegen.kernel import Kernel
from tinsmith.codegen.lower.normalize import conditions_of
from tinsmith.codegen.opt import Opt, OptOps
from tinsmith.codegen.planner.candidate import Candidate, Unfit, apply_if_it_fits, apply_to, stride_of, the_sum
from tinsmith.codegen.planner.cost import loading, price, staged_steps, storing, waves_of
from tinsmith.codegen.transform import matrix_units
from tinsmith.codegen.transform.back_to_back_gemm import chained_sums, greatest, relative_sums
from tinsmith.codegen.transform.computed_operand import inner_contractions, outer_folds
from tinsmith.codegen.transform.skip_masked_blocks import visible_ends
from tinsmith.codegen.transform.tma_boxes import loaded
from tinsmith.ir import Ops, UOp
from tinsmith.ir.matrix_unit import ROW_BYTES, MatrixUnit, UnitTile
from tinsmith.ir.structure import Role, contraction, range_size
from tinsmith.ir.uop import toposort
from tinsmith.target.target import Target

Part = tuple[int, int]  # (number of a range, number of its steps in a patch; 0: not divided into patches)


def ring_ways(kernel: Kernel, target: Target) -> Iterator[Candidate]:
    """Generate the tiles of the units that read from rings, for one large contraction."""
    fold = the_sum(kernel)
    found = contraction(fold, guarded=True) if fold is not None else None
    if fold is None or found is None:
        return
    x, y = (_along(kernel, fold, a, b) for a, b in ((found.a, found.b), (found.b, found.a)))
    k = [r for r in found.k if r in found.a.ranges and r in found.b.ranges]
    if not (x and y and k) or not all(isinstance(range_size(r), int) for r in (*x, *y, *k)):
        return
    stored = next((r for r in (*x, *y) if all(stride_of(s.src[1], r) == 1 for s in kernel.stores)), None)
    m, n = (y, x) if stored in x else (x, y)
    lengths, after = {r.arg[0]: range_size(r) for r in (*x, *y, *k)}, _operations_after(kernel, fold)
    loaded_after = _bytes_after(kernel, fold, x, y)
    for unit in target.units:
        if not unit.tiles or (unit.rounds and not found.may_round) or matrix_units.operands(
                fold, m[0], n[0], unit) is None:
            continue
        results, beside = storing(target, unit, after), loading(target, unit, loaded_after)
        for tile in unit.tiles:
            side, steps = unit.m * tile.below, ROW_BYTES // unit.a.itemsize
            if tile.turns and loaded_after and side * unit.n // unit.threads > target.blocks.sums_beside:
                continue
            vector = unit.fragment_c.registers[0][0] * unit.fragment_c.lanes[0][0]  # columns that a lane stores at once
            vectors = {stored: vector} if stored is not None and range_size(stored) % vector == 0 else {}
            groups = [patches(found.a, found.b, ranges, size, steps, len(k) > 1, vectors)
                      for ranges, size in ((m, side), (n, unit.n), (k, 0))]
            sizes = [math.prod(map(range_size, ranges)) for ranges in (m, n, k)]
            if any(size < least for size, least in zip(sizes, (unit.m, unit.n // 2, 2 * unit.k))):
                continue
            taken = {number for group in groups for number, _ in group}
            others = [range_size(r) for r in fold.ranges if r.arg[0] not in taken and not r.arg[1].expanded]
            batch = math.prod(s for s in others if isinstance(s, int))
            places = [_volume(*zip(*((lengths[number], max(n, 1)) for number, n in group))) for group in groups]
            waves = waves_of(target, places[:2], (side, unit.n), batch)
            fits = unit.threads * ((tile.turns or tile.below) + tile.roles) <= target.block_threads
            if fits and (not tile.roles or waves > 1):
                filled = "producer warps fill" if tile.roles else "a ring of"
                filled = f"{tile.turns} ping-pong groups, {filled}" if tile.turns else filled
                rows = sum(size for group, size in zip(groups, (side, unit.n)) if len(group) > 1)
                steps_of = staged_steps(target, unit, tile, unit.n, waves, places[2], results, rows, beside)
                spent = price(target, steps_of)
                yield Candidate(f"tiles of {side} × {unit.n} with {unit.name}, {filled} {tile.slots} slots", spent,
                                partial(apply_tile, groups=groups, unit=unit, tile=tile))


def _bytes_after(kernel: Kernel, fold: UOp, x: Sequence[UOp], y: Sequence[UOp]) -> int:
    """Return the bytes that the epilogue loads for each result."""
    inside, sides = set(toposort(fold)), (frozenset(x), frozenset(y))
    return sum(n.dtype.itemsize for n in toposort([s.src[2] for s in kernel.stores]) if n.op is Ops.LOAD and (
        n not in inside and all(not side.isdisjoint(n.src[1].ranges) for side in sides)))


def _operations_after(kernel: Kernel, fold: UOp) -> int:
    """Return the number of floating-point operations between a sum and its stores (the epilogue)."""
    inside = set(toposort(fold))
    return sum(n.op.alu and n.dtype.is_float for n in toposort([s.src[2] for s in kernel.stores]) if n not in inside)


def _along(kernel: Kernel, fold: UOp, a: UOp, b: UOp) -> list[UOp]:
    """Return the grid ranges of operand ``a`` that operand ``b`` does not have, outermost first."""
    return [r for r in kernel.order if r in a.ranges - b.ranges and r in fold.ranges and r.arg[1] is Role.GLOBAL]


def patches(a: UOp, b: UOp, ranges: Sequence[UOp], size: int, width: int, windows: bool,
            vectors: Mapping[UOp, int]) -> tuple[Part, ...]:
    """Return the ranges of a tile of ``size`` elements with their steps per patch, the slowest first. ``size`` 0 means
    the ranges of the sum, ``width`` elements of which form a step.

    If memory is contiguous along one of the ranges, that range is the fastest. Else the tile is the box that wastes
    least at the edges, then the one with the shortest sides; its side along a range in ``vectors`` is a multiple of the
    value there. Without windows a single long range is enough, and the others become axes of the grid.
    """
    sizes = [range_size(r) for r in ranges]
    longest = ranges[sizes.index(max(sizes))]
    along = next((r for r in ranges for x in (a, b) if any(
        stride_of(n.src[1], r) == 1 for n in toposort(x) if n.op is Ops.LOAD)), None)
    shape = min(_boxes(size or width, len(ranges)), key=lambda box: (
        any(n % vectors.get(r, 1) for r, n in zip(ranges, box)), _volume(sizes, box), sum(box), box))
    alone = [size if r is longest else 1 for r in ranges]
    if len(ranges) == 1 or not (windows or (along is None and _volume(sizes, shape) < _volume(sizes, alone))):
        return ((longest.arg[0], 0),)
    if along is None:
        return tuple((r.arg[0], n) for r, n in zip(ranges, shape))
    whole = width if not size else -(-range_size(along) // width) * width
    parts = [(r.arg[0], whole if r is along else 1) for r in ranges]
    return tuple(sorted(parts, key=lambda part: part[1] > 1) if size else parts)


def _volume(sizes: Sequence[int], box: Sequence[int]) -> int:
    """Return the number of elements of all boxes that cover ``sizes``."""
    return math.prod(-(-s // n) * n for s, n in zip(sizes, box))


def _boxes(size: int, axes: int) -> Iterator[tuple[int, ...]]:
    """Generate all boxes of ``size`` elements; only the slowest axes have sides that are not powers of two."""
    if axes == 1:
        yield (size,)
        return
    for n in range(1, size + 1):
        inner = size // n
        if size % n == 0 and (inner & (inner - 1) == 0 or n == 1):
            yield from ((n, *rest) for rest in _boxes(inner, axes - 1))


def as_one(kernel: Kernel, group: Sequence[Part]) -> int:
    """Merge the ranges of a group into one, patch by patch (PADTO, TILE, MERGE); return its number."""
    outer, inner = list[int](), list[int]()
    for number, size in group if len(group) > 1 else ():
        r = kernel.numbered[number]
        if size > 1 and range_size(r) % size:
            at = kernel.order.index(r)
            apply_to(kernel, OptOps.PADTO, r, size)
            r = kernel.order[at]
        if size > 1 and range_size(r) > size:
            at = kernel.order.index(r)
            apply_to(kernel, OptOps.TILE, r, size)
            outer.append(kernel.order[at].arg[0])
            r = kernel.order[at + 1]
        (inner if size > 1 else outer).append(r.arg[0])
    whole, *rest = [*outer, *inner] or [group[0][0]]
    for number in rest:
        at = kernel.order.index(kernel.numbered[whole])
        after = kernel.order.index(kernel.numbered[number]) < at
        apply_to(kernel, OptOps.MERGE, kernel.order[at], kernel.axis_of(number))
        whole = kernel.order[at - after].arg[0]
    return whole


def apply_tile(kernel: Kernel, groups: Sequence[Sequence[Part]], unit: MatrixUnit, tile: UnitTile) -> None:
    """Merge ranges, then apply PADTO, TC, LOCAL, UNROLL, WALK, a STAGE for each operand, and ROLES."""
    below, steps = tile.below, ROW_BYTES // unit.a.itemsize
    m, n, k = map(kernel.axis_of, [as_one(kernel, g) for g in groups])
    for axis, multiple in ((m, unit.m * below), (k, steps)):
        if range_size(kernel.ranges[axis]) % multiple:
            kernel.apply(Opt(OptOps.PADTO, axis, multiple))
    others = {r for axis, r in enumerate(kernel.ranges) if axis not in (m, n)}  # also those that one operand alone has
    kernel.apply(Opt(OptOps.TC, k, (m, n, below if tile.turns else 1, 1), unit=unit.name))
    if below > 1 and not tile.turns and (rows := _own(kernel, 0, others)) is not None:
        kernel.apply(Opt(OptOps.LOCAL, kernel.ranges.index(rows), below))
    for r in kernel.reduces if steps > unit.k else ():
        kernel.apply(Opt(OptOps.UNROLL, kernel.ranges.index(r), steps // unit.k))
    rows, columns = (_own(kernel, which, others) for which in (0, 1))
    if rows is not None and (columns is not None or tile.roles):
        most = kernel.target.blocks.band if columns is not None else 1
        band = max(d for d in range(1, most + 1) if range_size(rows) % d == 0)
        if band > 1 or tile.roles:
            blocks = (kernel.target.cores,) * tile.roles
            other = kernel.ranges.index(columns or rows)
            kernel.apply(Opt(OptOps.WALK, kernel.ranges.index(rows), (other, band, 1, *blocks)))
    # the operand with more bounds first: it may leave to the other those that both have
    for which in sorted((0, 1), key=lambda which: -len(conditions_of(kernel.products[0].src[which]))):
        value = kernel.products[0].src[which]
        stage_operand(kernel, value, [r for r in kernel.ranges if r in value.ranges and r.arg[1] in (
            Role.GLOBAL, Role.REDUCE)], tile.slots)
    if tile.roles:
        kernel.apply(Opt(OptOps.ROLES, amt=tile.turns if kernel.blocks and tile.turns else None))


def stage_operand(kernel: Kernel, value: UOp, kept: list[UOp], slots: int) -> None:
    """Stage an operand in a ring of ``slots`` slots.

    Raises:
        Unfit: if the operand is not a box of memory.
    """
    load = loaded(value)
    if load is None:
        raise Unfit("an operand is not loaded from memory")
    apply_if_it_fits(kernel, Opt(OptOps.STAGE, kernel.stageable.index(load), tuple(map(kernel.ranges.index, kept)),
                                 layout="swizzled", depth=slots))


def _own(kernel: Kernel, which: int, others: Set[UOp]) -> UOp | None:
    """Return the grid range that only operand ``which`` has, and that is not in ``others``."""
    product = kernel.products[0]
    mine = product.src[which].ranges - product.src[1 - which].ranges - others
    return next((r for r in kernel.order if r in mine and r.arg[1] is Role.GLOBAL), None)


def chain_ways(kernel: Kernel, target: Target) -> Iterator[Candidate]:
    """Generate the tiles of the matrix units that list tiles for chains."""
    top = greatest(kernel.sink)
    if top is None:
        yield from joined_ways(kernel, target)
        return
    found = [f for f in outer_folds(kernel.sink) if contraction(f) and any(map(inner_contractions, f.src[0].src))]
    if len(found) != 1 or not inner_contractions(top.src[0]):
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


def joined_ways(kernel: Kernel, target: Target) -> Iterator[Candidate]:
    """Generate the tiles for one or two contractions of operands that are computed from common contractions, without
    row statistics (gradients of attention)."""
    sums = chained_sums(kernel)
    pairs = [sorted((c.a, c.b), key=lambda s: not inner_contractions(s)) for f in sums if (c := contraction(f))]
    if not pairs or len(pairs) > 2 or not all(isinstance(range_size(r), int) for r in kernel.order):
        return
    sides = [([r for r in kernel.parallel if r in a.ranges - b.ranges], [r for r in kernel.parallel if r in
                                                                           b.ranges - a.ranges]) for a, b in pairs]
    if any(rows != sides[0][0] or len(columns) != 1 for rows, columns in sides) or not sides[0][0]:
        return
    row, columns, size = max(sides[0][0], key=range_size), [c for _, (c,) in sides], range_size(sums[0].src[1])
    inner = dict.fromkeys(c for f in sums for c in inner_contractions(f.src[0]))
    keys, most = list(dict.fromkeys(f.src[1] for f in sums)), max(map(range_size, columns))
    others = math.prod(range_size(r) for r in kernel.parallel if r is not row and r not in columns)
    numbers = [r.arg[0] for r in (row, columns[0], *keys)]
    stored = {n.dtype for _, b in pairs for n in toposort(b) if n.op is Ops.LOAD}
    for unit in (u for u in target.units if u.b in stored and u.joined and u.n >= most):
        for tile in unit.joined:
            side, block = unit.m * tile.below, tile.between
            if unit.threads * (tile.below + tile.roles) > target.block_threads or size <= block:
                continue
            waves = waves_of(target, (range_size(row),), (side,), others)
            width = sum(range_size(c.src[-1]) for c in inner) + unit.n * len(sums)
            length = -(-size // block) * block + target.blocks.begin * tile.roles
            held = (block * len(inner) + unit.n * len(sums)) * unit.m // unit.threads  # elements of accumulators
            if not tile.roles and target.blocks_by_registers(unit.threads * tile.below, held) > 1:
                tile = replace(tile, speed=tile.speed * target.blocks.beside_another)
            filled = "producer warps fill" if tile.roles else "rings of"
            what = (f"a chain of {len(inner) + len(sums)} products, tiles of {side} × {block} with {unit.name}, "
                    f"{filled} {tile.slots} slots")
            yield Candidate(what, price(target, staged_steps(target, unit, tile, width, waves, length)),
                            partial(apply_chain, numbers=numbers, unit=unit, tile=tile))


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
