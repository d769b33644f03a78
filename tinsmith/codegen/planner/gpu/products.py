"""Candidates of a grid of thread blocks: the generators by structure (``BLOCKS``), and contractions without rings.

* Contractions: ``rings.py`` first, then this file. The ranges of each factor are merged into one. A block computes a
  tile of (rows × columns); each thread, or each warp with a matrix unit, computes a register tile of it. Slices of both
  operands are loaded one step ahead into a double buffer. The sides of a tile are chosen by the price of a step: its
  multiply-adds, the words that threads read from local memory, and the elements that they copy there.
* Memory-bound kernels: ``bandwidth.py``.
* Other reductions: if there are too few results for one thread each, the threads of a block share a reduction.
"""
from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from tinsmith.codegen.kernel import Kernel
from tinsmith.codegen.opt import Opt, OptOps
from tinsmith.codegen.planner.candidate import Candidate, apply_if_it_fits, apply_to, stride_of, the_sum
from tinsmith.codegen.planner.cost import Price, local_steps, price, shared_sum, waves_of
from tinsmith.codegen.planner.cpu.loops import share_work
from tinsmith.codegen.planner.gpu.bandwidth import (
    column_opts,
    listed_opts,
    made_opts,
    picked_opts,
    results_of,
    room,
    row_opts,
    running_opts,
    short_sum_opts,
    thread_opts,
    transpose_opts,
    vector_opts,
)
from tinsmith.codegen.planner.gpu.rings import chain_ways, ring_ways
from tinsmith.codegen.planner.gpu.windows import window_opts
from tinsmith.codegen.planner.roofline import cycles
from tinsmith.codegen.transform import matrix_units
from tinsmith.codegen.transform.stages import converted
from tinsmith.codegen.transform.thread_blocks import counted
from tinsmith.core.errors import ArgumentError
from tinsmith.ir import Ops, UOp
from tinsmith.ir.matrix_unit import MatrixUnit
from tinsmith.ir.structure import (
    Contraction,
    Map,
    Role,
    Rows,
    Scan,
    Scatter,
    Structure,
    contraction,
    range_size,
    sum_of_products,
)
from tinsmith.ir.uop import toposort
from tinsmith.target.target import Target
from tinsmith.target.units.x86 import fma


class BlockTile(NamedTuple):
    """A block's tile of a contraction.

    Attributes:
        down: threads (warps with a matrix unit) along the rows.
        across: threads (warps) along the columns.
        rows: rows per thread, in tiles of the unit.
        columns: columns per thread, in tiles of the unit.
        steps: steps of the reduction in a thread's part of a slice of local memory, in depths of the unit.
        unit: the matrix unit, or a multiply-add of one thread.
        groups: groups of threads that compute the same results over different steps, and add them at the end.
    """

    down: int
    across: int
    rows: int
    columns: int
    steps: int
    unit: MatrixUnit
    groups: int = 1

    @property
    def threads(self) -> int:
        return self.down * self.across * self.unit.threads * self.groups

    @property
    def sides(self) -> tuple[int, int]:
        return self.down * self.rows * self.unit.m, self.across * self.columns * self.unit.n

    @property
    def depth(self) -> int:
        return self.steps * self.unit.k * self.groups

    def suits(self, target: Target, sizes: Sequence[int], batch: int) -> bool:
        """Return True unless groups share the sums of results that occupy all cores, or sums of few slices."""
        return self.groups == 1 or (waves_of(target, sizes[:2], self.sides, batch) == 1 and sizes[2] >= 2 * self.depth)

    def price(self, target: Target, sizes: Sequence[int], batch: int) -> Price:
        """Return the price for results of ``sizes`` = (rows, columns, steps of the sum), ``batch`` times."""
        waves = waves_of(target, sizes[:2], self.sides, batch)
        steps = local_steps(target, self.unit, (self.down, self.across), (self.rows, self.columns), self.depth, waves,
                            sizes[2], self.groups)
        return price(target, steps) | shared_sum(target, math.prod(self.sides), self.groups)


class Widths(NamedTuple):
    """Bytes of an element of each factor: in registers while it is copied, and in local memory."""

    carried: tuple[int, int]
    kept: tuple[int, int]


def widths(factors: Sequence[UOp]) -> Widths:
    """Return the widths of two factors, each of which is staged load by load."""
    carried, kept = [0, 0], [0, 0]
    for at, factor in enumerate(factors):
        for load in (n for n in toposort(factor) if n.op is Ops.LOAD and n.src[0].op is Ops.PARAM):
            width = converted(load, factor).dtype.itemsize
            kept[at] += width
            carried[at] += max(width, load.dtype.itemsize)
    return Widths((carried[0], carried[1]), (kept[0], kept[1]))


def tiles(target: Target, unit: MatrixUnit, of: Widths) -> Iterator[BlockTile]:
    """Generate the tiles that a block may compute: two slots fit local memory, and the data in flight fit registers."""
    data, alone = target.blocks, unit.threads == 1
    for threads, (rows, columns), steps, groups in itertools.product(
            data.product_threads, data.sums if alone else data.fragments, data.slices if alone else data.unit_steps,
            data.groups if alone else (1,)):
        parts = threads // unit.threads // groups
        for down in (1 << i for i in range(parts.bit_length())) if parts * unit.threads >= data.warp else ():
            found = BlockTile(down, parts // down, rows, columns, steps, unit, groups)
            carried = sum(side * width for side, width in zip(found.sides, of.carried)) * found.depth // 4
            kept = sum(side * width for side, width in zip(found.sides, of.kept)) * found.depth
            room = 2 * (kept + 16 * max(sum(found.sides), 2 * found.depth))  # bytes of two slots with padded rows
            room += unit.acc.itemsize * math.prod(found.sides) * groups * (groups > 1)
            words = data.carried + (max(data.sums[-1][0] * data.sums[-1][1] - rows * columns, 0) if alone else 0)
            fits = threads <= target.block_threads and carried <= words * threads and room <= target.local_bytes
            if fits and (alone or rows * columns <= unit.accumulators):
                yield found


def product_ways(kernel: Kernel, target: Target) -> Iterator[Candidate]:
    """Generate tiles in local memory for one large contraction: the best two for each unit."""
    fold = the_sum(kernel)
    found = contraction(fold, guarded=True) if fold is not None else None
    if fold is None or found is None:
        return
    sides = [list(found.m), list(found.n)]
    fixed = all(isinstance(range_size(r), int) for side in (*sides, found.k) for r in side)
    if not fixed or any(r.arg[1] is not Role.GLOBAL for r in (*found.batch, *found.m, *found.n)):
        return
    if any(stride_of(s.src[1], r) == 1 for s in kernel.stores for r in sides[0]):
        sides = sides[::-1]
    sizes = [math.prod(range_size(r) for r in side) for side in (*sides, found.k)]
    count = math.prod(int(r.vmax) + 1 for r in found.batch)

    trial = kernel.copied()
    row, column, k = (_merged(trial, side) for side in (*sides, list(found.k)))
    numbers = [r.arg[0] for r in (row, column, k)]
    for unit in (*target.units, fma(fold.dtype, 0)):
        alone = unit.emit == "muladd"
        least = (target.blocks.least,) * 3 if alone else (unit.m, unit.n, 1)
        loads_own = not unit.staged and not unit.fragment_a.whole and (found.may_round or not unit.rounds)
        factors = matrix_units.operands(trial.folds[0], row, column, unit) if loads_own and not alone else None
        if alone and fold.dtype.is_float:
            factors = (found.a, found.b) if sides[0][0] in found.a.ranges else (found.b, found.a)
        if factors is None or any(size < low for size, low in zip(sizes, least)):
            continue
        prices = {tile: tile.price(target, sizes, count) for tile in tiles(target, unit, widths(factors))
                  if tile.suits(target, sizes, count)}
        for tile in sorted(prices, key=lambda t: sum(prices[t].values()))[:2]:
            down, across = tile.sides
            of = f"threads, {tile.rows} × {tile.columns} each" if alone else f"warps with {unit.name}"
            of += f", {tile.groups} groups of which share the sums" if tile.groups > 1 else ""
            yield Candidate(f"tiles of {down} × {across} in local memory, {tile.down} × {tile.across} {of}",
                            prices[tile], partial(_tiled, trial=trial, numbers=numbers, tile=tile))


def _tiled(kernel: Kernel, trial: Kernel, numbers: Sequence[int], tile: BlockTile) -> None:
    """Apply PADTO, the opts of the tile, and a STAGE for each load."""
    vars(kernel).update(vars(trial.copied()))
    padded = [_padded(kernel, *pair) for pair in zip(numbers, (*tile.sides, tile.depth))]
    (_of_threads if tile.unit.threads == 1 else _of_warps)(kernel, padded, tile)
    outer = next((r for r in kernel.reduces for f in kernel.folds if r in f.src[1:]), None)
    _staged(kernel, outer, tile)
    if tile.groups > 1:
        inner = next(r for f in kernel.folds for r in f.src[1:] if r is not outer and r.arg[1] is Role.REDUCE)
        apply_to(kernel, OptOps.GROUP, inner, tile.groups)


def _of_threads(kernel: Kernel, numbers: Sequence[int], tile: BlockTile) -> None:
    """Apply VECTOR, UPCAST and LOCAL to the rows and columns, and TILE to the reduction."""
    for number, copies, threads in zip(numbers, (tile.rows, tile.columns), (tile.down, tile.across)):
        inner = math.gcd(copies, 4)
        first = OptOps.VECTOR if number == numbers[1] and inner == 4 else OptOps.UPCAST
        for op, amount in ((first, inner), (OptOps.LOCAL, threads), (OptOps.UPCAST, copies // inner)):
            if number in kernel.numbered and amount > 1:
                number = _applied(kernel, op, number, amount)
    apply_to(kernel, OptOps.TILE, kernel.numbered[numbers[2]], tile.depth)


def _of_warps(kernel: Kernel, numbers: Sequence[int], tile: BlockTile) -> None:
    """Apply TC, LOCAL and UNROLL."""
    m, n, k = map(kernel.axis_of, numbers)
    kernel.apply(Opt(OptOps.TC, k, (m, n, tile.rows, tile.columns), unit=tile.unit.name))
    for which, warps in enumerate((tile.down, tile.across)):
        product = kernel.products[0]
        mine = product.src[2 + which].ranges | (product.src[which].ranges - product.src[1 - which].ranges)
        r = next((r for r in kernel.order if r in mine and r.arg[1] is Role.GLOBAL), None)
        if warps > 1 and r is not None:
            apply_to(kernel, OptOps.LOCAL, r, warps)
    if tile.steps > 1 and kernel.reduces:
        apply_to(kernel, OptOps.UNROLL, kernel.reduces[0], tile.steps)


def _merged(kernel: Kernel, ranges: list[UOp]) -> UOp:
    """Merge ``ranges`` into one range and return it."""
    r, *others = sorted(ranges, key=kernel.order.index)
    for other in others:
        at = kernel.order.index(r)
        kernel.apply(Opt(OptOps.MERGE, kernel.ranges.index(r), kernel.ranges.index(other)))
        r = kernel.order[at]
    return r


def _padded(kernel: Kernel, number: int, multiple: int) -> int:
    """Pad a range to a multiple of ``multiple`` if needed; return its number."""
    partial = range_size(kernel.numbered[number]) % multiple
    return _applied(kernel, OptOps.PADTO, number, multiple) if partial else number


def _applied(kernel: Kernel, op: OptOps, number: int, amount: int) -> int:
    """Apply an opt to a range; return the number of the range that takes its position."""
    at = kernel.order.index(kernel.numbered[number])
    apply_to(kernel, op, kernel.order[at], amount)
    return int(kernel.order[at].arg[0])


def _staged(kernel: Kernel, outer: UOp | None, tile: BlockTile) -> None:
    """Stage every load of the sum (a fold, or a single step of a unit), a tile per block and slice; for a unit, rows
    follow the layout in memory."""
    inner = (Role.LOCAL, Role.FRAGMENT)
    while load := next((n for n in toposort([*kernel.folds, *kernel.products]) if n.op is Ops.LOAD
                        and n.src[0].op is Ops.PARAM and any(r.arg[1] in inner for r in n.ranges)), None):
        outside = {r for r in load.ranges if r.arg[1] is Role.GLOBAL or r is outer}
        kept = tuple(i for i, r in enumerate(kernel.ranges) if r in outside)
        flat = any(stride_of(load.src[1], p.src[4]) == 1 for p in kernel.products)
        lanes = kernel.target.vector_bytes // (4 if tile.unit.threads == 1 else load.dtype.itemsize)
        kernel.apply(Opt(OptOps.STAGE, kernel.loads.index(load), kept, lanes=lanes, layout="flat" if flat else "deep",
                         depth=1 + (outer in load.ranges)))

Generator = Callable[[Kernel, Target], Iterator[Candidate]]


def _ways(*ways: tuple[str, Callable[[Kernel, Target], bool]]) -> Generator:
    """Return a generator of candidates from rules, the most specific rule first; a rule applies its opts or returns
    False. If several rules suit the kernel, ``estimate`` prices each; the prices of all but the first are multiplied by
    ``GpuModel.doubt``."""
    def generate(kernel: Kernel, target: Target) -> Iterator[Candidate]:
        found = [(what, made) for what, choose in ways if (made := _made(kernel, target, choose)) is not None]
        for at, (what, made) in enumerate(found):
            price = cycles(made) if len(found) > 1 and isinstance(made, Kernel) else {}
            if at:
                price["uncertainty of the estimate"] = target.blocks.doubt * sum(price.values())
            yield Candidate(what, price, partial(_become, made=made))
    return generate


def _made(kernel: Kernel, target: Target, choose: Callable[[Kernel, Target], bool]) -> Kernel | ArgumentError | None:
    """Return a copy of the kernel with the opts of a rule, or the error of a refused opt; None if the rule does not
    suit it."""
    trial = kernel.copied()
    try:
        return trial if choose(trial, target) else None
    except ArgumentError as error:
        return error


def _become(kernel: Kernel, made: Kernel | ArgumentError) -> None:
    if isinstance(made, ArgumentError):
        raise made
    vars(kernel).update(vars(made))


def shared_reduction_opts(kernel: Kernel, target: Target) -> None:
    """Share every large reduction among the threads of a block if there are fewer than ``GpuModel.enough`` results."""
    beside = any(r.arg[1] is Role.LOOP for r in kernel.parallel)  # the threads of a block share these loops in any case
    if results_of(kernel) >= target.blocks.enough and not beside:
        return
    for fold in {f.src[1:]: f for f in kernel.folds}.values():
        sizes = {r.arg[0]: size for r in fold.src[1:] if isinstance(size := range_size(r), int)}
        total = math.prod(sizes.values())
        most = min(target.block_threads, target.blocks.threads)
        wanted = min(most, sharing_threads(total, target))
        long = [number for number, size in sizes.items() if size >= target.blocks.long]
        # several short ranges: from the innermost on
        for number in long or reversed(sizes) if total >= target.blocks.long else ():
            r = kernel.numbered.get(number)
            if r is None or r.arg[1] is not Role.REDUCE or wanted < 2:
                continue
            size = range_size(r)
            most = min(wanted, sharing_threads(size, target) if long else size)
            amount = room(kernel, OptOps.GROUP, r, most, target)
            if amount > 1:
                apply_to(kernel, OptOps.GROUP, r, amount)
                wanted //= 1 if long else amount


def sharing_threads(elements: int, target: Target) -> int:
    """Return the number of threads that share a sum of so many elements, a power of two: each loads a few at a time, or
    as many as there are partial sums to add."""
    return 1 << (max(math.isqrt(4 * elements), elements // target.blocks.loads).bit_length() - 1)


def reuse_opts(kernel: Kernel, target: Target) -> None:
    """Upcast a sum of products along a range that only one factor has, and along one that only the other has, as long
    as all threads still have work. A loaded element of one factor is then reused by all copies along the range of the
    other."""
    fold = next(iter(kernel.folds), None)
    found = sum_of_products(fold) if fold is not None and len(kernel.folds) == 1 and fold.dtype.is_float else None
    if fold is None or found is None or not all(n.op is Ops.LOAD for n in found[:2]):
        return
    pair = found.a, found.b
    own = [next((r for r in kernel.order if r in a.ranges - b.ranges and r.arg[1] is Role.GLOBAL and not any(
        stride_of(n.src[1], r) == 1 for n in (*pair, *kernel.stores))), None) for a, b in (pair, pair[::-1])]
    for copies in target.blocks.copies:
        amounts = [math.gcd(range_size(r), c) if r is not None and isinstance(range_size(r), int) else 1
                   for r, c in zip(own, copies)]
        if results_of(kernel) >= math.prod(amounts) * target.cores * target.resident // 4:
            for r, amount in zip(own, amounts):
                if r is not None and amount > 1:
                    apply_to(kernel, OptOps.UPCAST, r, amount)
            return


def sum_opts(kernel: Kernel, target: Target) -> bool:
    """Apply the opts of a general reduction: register reuse of factors, long sums shared among threads."""
    reuse_opts(kernel, target)
    shared_reduction_opts(kernel, target)
    thread_opts(kernel, target)
    return True


def count_ways(kernel: Kernel, target: Target) -> Iterator[Candidate]:
    """Generate the candidates that count equal keys block-wide, one thread for each key (RANK)."""
    for count in [c for f in kernel.folds if (c := counted(f)) is not None and target.matches]:
        keys = 1 << max(count.key.bounds[1], target.warp - 1).bit_length()
        yield Candidate("block-wide histogram of keys", {}, partial(
            apply_if_it_fits, opt=Opt(OptOps.RANK, kernel.ranges.index(count.steps), keys)))


def map_opts(kernel: Kernel, target: Target) -> bool:
    """Vectorize along contiguous memory, then assign adjacent threads to adjacent vectors."""
    share_work(kernel, None)
    picked_opts(kernel, target)
    thread_opts(kernel, target, vector_opts(kernel, target))
    made_opts(kernel, target)
    return True

_products = ring_ways, product_ways
_rows = _ways(("segment sums", listed_opts), ("overlapping windows per thread", window_opts),
              ("threads of a block share each row", row_opts),
              ("coalesced threads along columns", column_opts), ("several short sums per thread", short_sum_opts),
              ("threads of a block share long reductions", sum_opts))
_maps = _ways(("transpose through local memory", transpose_opts), ("coalesced threads", map_opts))
BLOCKS: dict[type[Structure], tuple[Generator, ...]] = {
    Contraction: (chain_ways, *_products, _rows), Rows: (count_ways, _rows),
    Scan: (*_products, _ways(("threads of a block share the scan", running_opts))), Scatter: (_maps,), Map: (_maps,)}
