"""Candidates for contractions of computed operands on a CPU (back-to-back GEMM, attention): rows in local memory, and
three register tiles.

Per block of rows: the inner contractions fill a tile of local memory (rows × vectors of accumulators), the row
statistics (maximum, sum) read it along lanes, and the outer contraction reads it as broadcast scalars against vectors
of its other operand.
"""
from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from tinsmith.codegen.kernel import Kernel
from tinsmith.codegen.opt import Opt, OptOps
from tinsmith.codegen.planner.candidate import Candidate, apply_to, lanes_of, power_of_two, split, stage, stride_of
from tinsmith.codegen.planner.cost import Price, chain_price
from tinsmith.codegen.planner.cpu.loops import thread_opts
from tinsmith.codegen.transform.carried_accumulators import block_of, crossing
from tinsmith.codegen.transform.computed_operand import (
    equal_values,
    inner_contractions,
    is_made,
    outer_folds,
    single_way_out,
    streams,
)
from tinsmith.codegen.transform.online_softmax import greatest
from tinsmith.codegen.transform.skip_masked_blocks import everywhere, masked_blocks, nothing_where, visible_ends
from tinsmith.ir import Ops, UOp
from tinsmith.ir.ranges import Role, count_of, range_size
from tinsmith.ir.structure import contraction
from tinsmith.ir.uop import toposort
from tinsmith.target.cpu_model import CpuModel
from tinsmith.target.target import Target


def chain_ways(kernel: Kernel, target: Target) -> Iterator[Candidate]:
    """Generate the schedules of contractions of computed operands, and of statements that reduce one tile along both
    sides."""
    lanes, core = lanes_of(kernel, target), target.core
    products = sum(count_of(f.src[0].ranges) for f in kernel.folds) / lanes
    sides = crossing(kernel.sink)
    lengths = [range_size(side[0]) for side in sides]
    sizes = [block_of(n, core.tile_blocks) if isinstance(n, int) else 0 for n in lengths]

    def offered(what: str, spent: Price, way: Callable[[Kernel], None]) -> Candidate:
        return Candidate(what, spent, partial(_with_panels, way=way, target=target))

    if sides and all(sizes):
        yield offered("blocks of a tile shared by statements", chain_price(target, products), partial(
            blocks_of_tiles, target=target, sides=sides, sizes=sizes))
    if any(not isinstance(range_size(r), int) for r in kernel.order):
        return
    far = False
    if (row := _row(kernel, target)) is not None:
        far = core.tile_rows * 2 * row.nbytes > target.l2_bytes // 2
        spent = chain_price(target, products, core.visible if row.masked else 1.0, rescaled=True)
        yield offered(f"blocks of {row.block} columns", spent, partial(blocks_of_rows, target=target, row=row))
    found = {rows[-1:] for _, rows in streams(kernel.sink)}
    rows = found.pop() if len(found) == 1 else ()
    if rows:
        yield offered("full rows", chain_price(target, products, far=far), partial(
            whole_rows, target=target, rows=rows))


def _with_panels(kernel: Kernel, way: Callable[[Kernel], None], target: Target) -> None:
    way(kernel)
    panels(kernel, target)
    steps(kernel, target.core.tile_steps)
    if target.threads > 1:
        thread_opts(kernel, target)


def whole_rows(kernel: Kernel, target: Target, rows: tuple[UOp, ...]) -> None:
    """Compute a few complete rows at a time."""
    lanes = lanes_of(kernel, target)
    split(kernel, OptOps.UPCAST, rows[0], min(target.core.tile_rows, range_size(rows[0])))  # sizes of 1 have no range
    tiles(kernel, target.core, lanes)
    columns(kernel, target.core, lanes)
    statistics(kernel, target.core, lanes)


def blocks_of_tiles(kernel: Kernel, target: Target, sides: list[list[UOp]], sizes: list[int]) -> None:
    """Compute statements that reduce one tile along both of its sides block by block, with their results accumulated in
    memory."""
    lanes = lanes_of(kernel, target)
    for side, size in zip(sides, sizes):
        at = [kernel.ranges.index(r) for r in side]
        kernel.apply(Opt(OptOps.CARRY, at[0], (size, *at[1:])))
    if masked_blocks(kernel):
        kernel.apply(Opt(OptOps.SKIP))
    common = [r for r in kernel.order if all(r in s.ranges for s in kernel.stores)]
    tiles(kernel, target.core, lanes, [*common, *(r for r in kernel.order if r.arg[1] is Role.BLOCK)])
    columns(kernel, target.core, lanes)
    rows(kernel)


class _Row(NamedTuple):
    """A row reduction with a maximum and sums relative to it, one of them a contraction with all columns of the result.

    Attributes:
        over: the range of the maximum.
        rows: the ranges of the rows.
        column: the range of the result's columns.
        nbytes: bytes of a row.
        block: elements of a block of ``over``.
        masked: a mask hides some blocks completely.
    """

    over: UOp
    rows: list[UOp]
    column: UOp
    nbytes: int
    block: int
    masked: bool


def _row(kernel: Kernel, target: Target) -> _Row | None:
    top, sums = greatest(kernel.sink), [f for f in outer_folds(kernel.sink) if contraction(f)]
    if top is None or len(sums) != 1 or not inner_contractions(top.src[0]):
        return None
    over, size = top.src[1], range_size(top.src[1])
    beside = [r for r in kernel.parallel if r in sums[0].ranges and r not in top.ranges]
    rows, (least, most, apart) = [r for r in kernel.parallel if r in top.ranges], target.core.row_block
    block = block_of(size, range(min(most, max(size // 4, least)), least - 1, -apart)[::-1])
    fits = len(beside) == 1 and -(-range_size(beside[0]) // lanes_of(kernel, target)) <= target.core.accumulators
    if not fits or block in (0, size) or not rows:
        return None
    hidden = nothing_where(top.src[0], -math.inf)
    masked = hidden is not None and everywhere(hidden, [over]) is not None
    return _Row(over, rows, beside[0], size * top.dtype.itemsize, block, masked)


def blocks_of_rows(kernel: Kernel, target: Target, row: _Row) -> None:
    """Compute rows with a maximum block by block (online softmax): for rows that exceed half of the second cache, or
    with a mask that hides blocks.

    Measured, 8 heads of 64: 512 rows of 512 keys take 4.7 ms in blocks and 3.9 ms as full rows, with a causal mask 3.5
    and 3.9; 4096 of 4096 (one head) 53 and 44 ms, with the mask 23 and 49.
    """
    lanes = lanes_of(kernel, target)
    vectors = -(-range_size(row.column) // lanes)
    kernel.apply(Opt(OptOps.ONLINE, kernel.ranges.index(row.over), row.block))
    height = min(max(target.core.accumulators // vectors, 1), kernel.target.core.tile_rows, range_size(row.rows[-1]))
    if height > 1:
        split(kernel, OptOps.UPCAST, row.rows[-1], height)
    if visible_ends(kernel):
        kernel.apply(Opt(OptOps.SKIP))
    around = [r for r in kernel.ranges if r in kernel.parallel or r.arg[1] is Role.BLOCK]
    while inner := inner_contractions(next(f.src[0] for f in kernel.folds
                                           if f.arg is Ops.MAX and f.src[1].arg[1] is not Role.BLOCK)):
        value = single_way_out(inner[0], kernel.sink, frozenset())
        tile(kernel, value, lanes, power_of_two(target.core.accumulators // height), around)
    for factor in [s for f in kernel.folds if contraction(f) for s in f.src[0].src]:
        if any(n.op is Ops.STAGE for n in toposort(factor)) and factor in kernel.stageable[len(kernel.loads):]:
            tile(kernel, factor, lanes, 1, around)
    if lanes > 1:
        outer, _ = split(kernel, OptOps.VECTOR, row.column, lanes)
        if outer is not None and range_size(outer) > 1:
            apply_to(kernel, OptOps.UPCAST, outer, range_size(outer))
    statistics(kernel, target.core, lanes)


def tiles(kernel: Kernel, core: CpuModel, lanes: int, around: Sequence[UOp] | None = None) -> None:
    """Stage every inner contraction as a tile, then every computed operand that is not staged yet. ``around``: the
    loops that enclose the tiles; None: all."""
    while inner := next((i for operand, _ in streams(kernel.sink) if (i := inner_contractions(operand))), None):
        values = [single_way_out(f, kernel.sink, _made_of_others(f, inner, kernel.sink)
                                 | _in_fewer_places(f, kernel.sink, around)) for f in inner]
        readers = Counter(s for n in toposort(kernel.sink) for s in set(n.src))
        tile(kernel, max(values, key=lambda v: readers[v]), lanes, core.tile_vectors, around)
    for fold in outer_folds(kernel.sink):
        if fold in outer_folds(kernel.sink) and contraction(fold):
            for factor in fold.src[0].src:
                made = is_made(factor) or any(n.op is Ops.STAGE for n in toposort(factor))
                if made and factor in kernel.stageable[len(kernel.loads):]:
                    tile(kernel, factor, lanes, 1, around)


def _made_of_others(fold: UOp, inner: list[UOp], sink: UOp) -> frozenset[UOp]:
    others = {f for f in inner if f is not fold}
    made: set[UOp] = set()
    for n in toposort(sink):
        if n in others or any(s in made for s in n.src):
            made.add(n)
    return frozenset(made - set(toposort(fold)))


def _in_fewer_places(fold: UOp, sink: UOp, around: Sequence[UOp] | None) -> frozenset[UOp]:
    """Return values computed from ``fold`` that occur fewer times than ``fold``, up to renaming of ranges."""
    if around is None:
        return frozenset()
    fixed = frozenset(around)
    count = len(equal_values(sink, fold, fixed))
    above = [n for n in toposort(sink) if n.op.alu and n.ranges == fold.ranges and fold in toposort(n)]
    return frozenset(n for n in above if len(equal_values(sink, n, fixed)) < count)


def tile(kernel: Kernel, value: UOp, lanes: int, copies: int, around: Sequence[UOp] | None) -> None:
    """Stage ``value`` over its register-tile rows and its reduced ranges."""
    loops = [r for r in kernel.ranges if r.arg[1] in (Role.LOOP, Role.THREAD)] if around is None else around
    outside = [r for r in loops if r in value.ranges]
    reduced = (range_size(r) for r in reversed(kernel.order) if r in value.ranges and r.arg[1] is Role.REDUCE)
    along = next(reduced, 1)  # a reduction over 1 element has no range
    while copies > 1 and along < lanes * copies:
        copies //= 2
    stage(kernel, value, outside, lanes if 1 < lanes <= 2 * along else 0, copies)


def columns(kernel: Kernel, core: CpuModel, lanes: int) -> None:
    """Vectorize every outer contraction along its columns, with ``Core.tile_vectors`` vectors of accumulators."""
    done: set[UOp] = set()
    while True:
        ready = [f for f in outer_folds(kernel.sink) if contraction(f)
                 and not any(r.arg[1] is Role.VECTOR for r in f.ranges)]
        staged = {r for n in toposort(kernel.sink) if n.op is Ops.STAGE for r in n.ranges}  # not once per lane
        options = [(f, r) for f in ready for r in kernel.parallel if r in f.ranges and range_size(r) >= 4
                   and r not in done | staged and any(r not in s.ranges for s in f.src[0].src)
                   and kernel.may_have_lanes(r)]
        options = [(f, r) for f, r in options if all(stride_of(s.src[1], r) in (0, 1) for s in kernel.stores
                                                     if f in toposort(s))] or options
        if lanes == 1 or not options:
            return
        best = options[-1][1]
        done.add(best)
        outer, _ = split(kernel, OptOps.VECTOR, best, min(lanes, power_of_two(range_size(best))))
        if outer is not None and range_size(outer) > 1:
            split(kernel, OptOps.UPCAST, outer, core.tile_vectors)


def rows(kernel: Kernel) -> None:
    """Upcast the rows of every outer contraction: the loop of the factor without lanes."""
    for f in [f for f in outer_folds(kernel.sink) if contraction(f)]:
        factor = next((s for s in f.src[0].src if not any(r.arg[1] is Role.VECTOR for r in s.ranges)), f.src[0].src[0])
        other = f.src[0].src[1] if factor is f.src[0].src[0] else f.src[0].src[0]
        loops = [r for r in kernel.parallel if r in factor.ranges and r in f.ranges and r not in other.ranges]
        if loops:
            split(kernel, OptOps.UPCAST, loops[-1], min(kernel.target.core.tile_rows, range_size(loops[-1])))


def statistics(kernel: Kernel, core: CpuModel, lanes: int) -> None:
    """Vectorize the reductions of staged rows along the row, with several accumulators."""
    for ranges in dict.fromkeys(f.src[1:] for f in kernel.folds if not contraction(f)):
        r = ranges[-1]
        if r.arg[1] is Role.BLOCK:
            continue
        if lanes == 1 or r not in kernel.order or range_size(r) < lanes or not kernel.may_have_lanes(r):
            continue
        outer, _ = split(kernel, OptOps.VECTOR, r, lanes)
        if outer is not None and range_size(outer) % core.tile_steps == 0:
            split(kernel, OptOps.UNROLL, outer, core.tile_steps)


def panels(kernel: Kernel, target: Target) -> None:
    """Pack factors that cannot be read from memory directly: vectors whose lanes are not contiguous, and scalars that
    must be computed first."""
    while True:
        wanted = [s for f in kernel.folds if contraction(f) for s in f.src[0].src if _wants_panel(s)]
        packed = next(((s, out) for s in wanted if (out := _outside(kernel, s)) is not None), None)
        if packed is None:
            return
        value, outside = packed
        stage(kernel, value, outside, lanes_of(kernel, target))


def _wants_panel(factor: UOp) -> bool:
    lane = next((r for r in factor.ranges if r.arg[1] is Role.VECTOR), None)
    loads = [n for n in toposort(factor) if n.op is Ops.LOAD]
    if not loads or any(n.op in (Ops.STAGE, Ops.FOLD) for n in toposort(factor)):
        return False
    if lane is None:
        return factor.op is not Ops.LOAD
    return any(stride_of(n.src[1], lane) != 1 or len(n.src) > 2 for n in loads if lane in n.ranges)


def _outside(kernel: Kernel, factor: UOp) -> list[UOp] | None:
    """Return the loops that enclose the packing of a factor: the parallel ones and the carried BLOCK loops; all BLOCK
    loops if the panel would else exceed ``Core.largest_panel``. None if it is too large even then."""
    around = [r for r in kernel.order if r in factor.ranges and r in kernel.parallel
              and all(r in s.ranges for s in kernel.stores)]
    carried = {s.src[4] for s in kernel.stores if s.op is Ops.SCATTER_STORE}
    blocks = [r for r in factor.ranges if r.arg[1] is Role.BLOCK]
    for outside in ([*around, *(r for r in blocks if r in carried)], [*around, *blocks]):
        size = count_of(frozenset(r for r in factor.ranges if r not in outside)) * factor.dtype.itemsize
        if size <= kernel.target.core.largest_panel:
            return outside
    return None


def steps(kernel: Kernel, most: int) -> None:
    """Unroll the summed range of every contraction by ``most``: in full if it is shorter, by 2 if ``most`` does not
    divide it."""
    for r in dict.fromkeys(f.src[-1] for f in kernel.folds if contraction(f)):
        size = range_size(r) if r in kernel.order else 1
        if r.arg[1] is Role.REDUCE and size > 1:
            split(kernel, OptOps.UNROLL, r, most if size % most == 0 else 2) if size > most else apply_to(
                kernel, OptOps.UNROLL, r, size)
