"""Candidates of elementwise kernels and scans on a CPU, loop partitioning, and the opts that end every CPU candidate.

* Maps: a candidate per range to vectorize. Loops are partitioned first where their formula changes (``CUT``), if the
  pieces take fewer steps than the full loop. If no range is contiguous in all accesses, a short interleaved range is
  unrolled. Strided reads get an inner loop along their lines; square blocks are transposed in registers.
* Scatters: rows run in order, one full row at a time, and every worker has its own columns.
* Scans: lanes along the steps, combined within a register; or lanes along a parallel range; or several rows whose
  dependence chains overlap.
* ``finish`` applies prefetches, non-temporal stores and threads to every candidate.
"""
from __future__ import annotations

import functools
import math
import operator
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import pairwise
from typing import Final

from tinsmith.codegen.kernel import Kernel
from tinsmith.codegen.lower.loop_partition import (
    MOST_PIECES,
    change_points,
    decided,
    first_loop,
    outermost_loops,
)
from tinsmith.codegen.lower.normalize import conjuncts
from tinsmith.codegen.opt import Opt, OptOps
from tinsmith.codegen.planner.candidate import (
    Candidate,
    apply_to,
    lanes_of,
    name_of,
    order_loops,
    power_of_two,
    split,
    stored_bytes,
    stride_of,
)
from tinsmith.codegen.planner.cost import lane_cycles, step_price
from tinsmith.codegen.planner.cpu.reductions import row_ahead, steps_together
from tinsmith.codegen.transform.computed_operand import SIDE
from tinsmith.codegen.transform.skip_masked_blocks import as_index
from tinsmith.codegen.transform.stages import may_stream
from tinsmith.core.dtypes import dtypes
from tinsmith.ir import Ops, UOp
from tinsmith.ir.algebra.sizes import from_linear, linear_form, order
from tinsmith.ir.algebra.symbolic import simplify
from tinsmith.ir.rewrite import Pat, Rule, RuleSet, rewrite
from tinsmith.ir.structure import Role, count_of, is_partial, range_size
from tinsmith.ir.uop import toposort
from tinsmith.target.target import Target

# unrolled updates of a scatter whose elements have an index each: 2×400×256 take 205 us one at a time, 155 by 8 or 16
# (Zen 4)
UPDATES: Final = 8


def scan_ways(kernel: Kernel, target: Target) -> Iterator[Candidate]:
    """Generate the candidates of a scan: lanes along the steps, combined within vectors, if memory runs along them;
    else several independent chains of dependent steps, as lanes along a parallel range or as copies."""
    lanes, core = lanes_of(kernel, target), target.core
    store, (ordered,) = kernel.stores[0], kernel.ordered
    beside = [r for r in kernel.parallel if stride_of(store.src[1], r) == 1 and range_size(r) >= 4]
    weighted = any(n.op is Ops.PREFIX and n.arg is Ops.MULADD for n in toposort(kernel.sink))
    steps = count_of(store.ranges)
    if target.vector_bytes and not weighted and range_size(ordered) % lanes == 0 and len(store.src) == 3 and all(
            stride_of(n.src[1], ordered) in (0, 1) for n in (store, *kernel.loads)):
        yield Candidate("scan within vectors", step_price(target, steps, lanes),
                        lambda k: apply_to(k, OptOps.VECTOR, ordered, lanes))
    if beside and target.vector_bytes:
        width = min(lanes, power_of_two(range_size(beside[-1])))
        yield Candidate(f"vectorize along {name_of(beside[-1])}", step_price(target, steps, width, core.chains),
                        partial(_chains, target=target, lane=beside[-1], lanes=width))
    chains = min(core.chains, max(map(range_size, kernel.parallel[-1:]), default=1))
    yield Candidate("interleaved dependence chains", step_price(target, steps, 1, chains),
                    partial(_chains, target=target, lane=None, lanes=1))


def _chains(kernel: Kernel, target: Target, lane: UOp | None, lanes: int) -> None:
    """Apply lanes along ``lane`` and copies of the innermost parallel loop: independent chains of a scan."""
    chains = kernel.parallel
    if lane is not None:
        outer, _ = split(kernel, OptOps.VECTOR, lane, lanes)
        chains = [] if outer is None else [outer]
    if chains and range_size(chains[-1]) >= 2:
        split(kernel, OptOps.UPCAST, chains[-1], min(target.core.chains, range_size(chains[-1])))


def finish(kernel: Kernel, target: Target, work: int, streams: bool) -> None:
    """Apply the opts that end every CPU candidate: several steps of a BLOCK loop at once, non-temporal stores,
    prefetches, threads.

    Args:
        work: the work of the kernel before its opts, by ``weight_of``.
        streams: allow non-temporal stores; False for a register tile, which stores its results in pieces.
    """
    if (together := steps_together(kernel)) is not None:
        apply_to(kernel, OptOps.UPCAST, *together)
    large = sum(stored_bytes(s) for s in kernel.stores) >= target.core.streamed
    if streams and large and may_stream(kernel):
        kernel.apply(Opt(OptOps.HINT))
        if not kernel.folds:
            stream_ahead(kernel, target.core.streams_ahead)
    if target.vector_bytes:
        look_ahead(kernel, target)
    if target.threads > 1 and work >= target.core.serial_work:
        thread_opts(kernel, target)


def look_ahead(kernel: Kernel, target: Target) -> None:
    """Prefetch the loads of reductions that stream from beyond the second cache: rows of an unpacked panel that are far
    apart, which no hardware prefetcher follows, and long sums a page ahead."""
    fetched = set[UOp]()  # memory whose next rows are prefetched already
    filling = {r for n in kernel.of(Ops.STAGE) for r in n.src[1:]}
    for load in kernel.loads:
        loops = [r for r in kernel.order if r in load.src[1].ranges and not r.arg[1].expanded]
        lanes = any(r.arg[1] is Role.VECTOR for r in load.src[1].ranges)
        fills = bool(loops) and loops[-1] in filling
        if not loops or not lanes or not (fills or loops[-1].arg[1] is Role.REDUCE) or len(load.src) > 2:
            continue
        size, step = load.dtype.itemsize, stride_of(load.src[1], loops[-1])
        if row := row_ahead(kernel, load, loops, target):
            kernel.apply(Opt(OptOps.HINT, kernel.loads.index(load), (row, 0 if fills else 1)))
            fetched.add(load.src[0])
        if fills or load.src[0] in fetched:
            continue
        near = count_of(load.src[1].ranges) * size <= target.l2_bytes // 2
        if not step or near or range_size(loops[-1]) < target.core.least_ahead:
            continue
        unrolled = count_of(frozenset(r for r in load.src[1].ranges if r.arg[1] is Role.UNROLL))
        far = abs(step) * size // unrolled >= target.core.rows_apart
        ahead = target.core.rows_ahead // unrolled, target.core.bytes_ahead // (abs(step) * size)
        distance = ahead[not far]
        if 0 < distance < range_size(loops[-1]) and load in kernel.loads:
            kernel.apply(Opt(OptOps.HINT, kernel.loads.index(load), distance))


def stream_ahead(kernel: Kernel, nbytes: int) -> None:
    """Prefetch loads ``nbytes`` ahead in a kernel with non-temporal stores: while a core computes, it has few loads in
    flight."""
    for load in kernel.loads:
        loops = [r for r in kernel.order if r in load.src[1].ranges and not r.arg[1].expanded]
        step = (stride_of(load.src[1], loops[-1]) or 0) * load.dtype.itemsize if loops else 0
        if 0 < step <= nbytes // 4 and range_size(loops[-1]) > nbytes // step and load in kernel.loads:
            kernel.apply(Opt(OptOps.HINT, kernel.loads.index(load), nbytes // step))


def thread_opts(kernel: Kernel, target: Target) -> None:
    """Split the outermost loop over the workers; fuse it with the next loop if it is too short to divide evenly."""
    for _ in range(2):
        loops = [r for r in kernel.parallel if all(r in s.ranges for s in kernel.stores)]
        if not loops and (apart := outermost_loops(kernel)) and apart <= set(kernel.parallel):
            break
        if not loops or first_loop(kernel) is not loops[0]:
            return
        outer = loops[0]
        size = range_size(outer)
        uneven = size < 4 * target.threads and size % target.threads != 0
        whole = not any(map(is_partial, loops[:2]))
        if uneven and whole and len(loops) > 1 and not _stage_between(kernel, outer, loops[1]):
            kernel.apply(Opt(OptOps.MERGE, kernel.ranges.index(outer), kernel.ranges.index(loops[1])))
            continue
        break
    outer = kernel.parallel[0]
    if range_size(outer) > 1 and first_loop(kernel) is outer:
        apply_to(kernel, OptOps.THREAD, outer)


def why_alone(kernel: Kernel) -> str:
    """Return the reason why a kernel runs on one worker; empty if it is threaded, or if no reason is known."""
    own = [[r for r in kernel.parallel if r in s.ranges and range_size(r) != 1] for s in kernel.stores]
    common = [r for r in kernel.parallel if all(r in loops for loops in own)]
    if any(r.arg[1] is Role.THREAD for r in kernel.order):
        return ""
    if any(not isinstance(range_size(r), int) for r in common[:1]):
        return "the size of its outer loop is known only at run time"
    if not common and any(s.op is Ops.SCATTER_STORE or s.src[2].op is Ops.PREFIX for s in kernel.stores):
        return "its steps depend on each other"
    return "" if any(own) else "it has no parallel loop"


def _stage_between(kernel: Kernel, a: UOp, b: UOp) -> bool:
    """Return True if a stage or reduction is computed inside loop ``a`` but outside loop ``b``."""
    return any(n.op in (Ops.STAGE, Ops.FOLD) and a in n.ranges and b not in n.ranges for n in toposort(kernel.sink))


def cut_loops(k: Kernel, lanes: int, cost: float) -> float:
    """Partition parallel loops of elementwise statements at the iterations where their formula changes, if that is
    cheaper. The loop along which memory is contiguous comes first, then the enclosing ones from the inside out, because
    a partition copies complete statements with all their loops. Return the fraction of the work that is left. ``cost``:
    the relative time of a step in separate code."""
    left = 1.0
    along = {_along(s) for s in k.stores}
    for r in sorted(k.parallel, key=lambda r: (r not in along, -k.order.index(r))):
        points = change_points(k.nodes, r)
        statements = [s for s in k.stores if r in s.ranges]
        share = cost * _share(statements, r, points, lanes) if points and _fits(k, statements, r, points) else 1.0
        if share < 1:
            k.apply(Opt(OptOps.CUT, k.ranges.index(r), tuple(points)))
            left *= share
    return left


def _fits(k: Kernel, statements: list[UOp], r: UOp, points: list[int]) -> bool:
    """Return True if the code of all pieces is at most as long as that of ``MOST_PIECES`` full statements."""
    if len(k.stores) + len(statements) * len(points) <= MOST_PIECES:
        return True
    pieces = sum(len(toposort(decided(s, r, *edge))) for s in statements for edge in _edges(r, points))
    return len(k.stores) + pieces / len(toposort(statements)) <= MOST_PIECES


def _edges(r: UOp, points: list[int]) -> Iterable[tuple[int, int]]:
    return pairwise([0, *points, range_size(r)])


def _share(statements: list[UOp], r: UOp, points: list[int], lanes: int) -> float:
    """Return the work of the pieces as a fraction of the full loop's."""
    after = 0.0
    for s in statements:
        inner, all_left = _along(s) is r, _only_chooses(s, r)
        for begin, end in _edges(r, points):
            piece = r.replace(src=(UOp.index(end - begin),)) if end - begin > 1 else UOp.index(0)
            left = decided(s, r, begin, end)
            left = left if all_left else simplify(left.substitute({r: (piece + begin).simplify()}))
            after += _steps(left, end - begin, inner, lanes)
    return after / sum(_steps(s, range_size(r), _along(s) is r, lanes) for s in statements)


def _only_chooses(statement: UOp, r: UOp) -> bool:
    """Return True if conditions on ``r`` only select values in WHERE nodes, so that ``decided`` has removed all it
    can."""
    nodes = toposort(statement)
    asked = {n for n in nodes if n.dtype.is_bool and r in n.ranges}
    return all(asked.isdisjoint(n.src) for n in nodes if n.op is not Ops.WHERE and n not in asked)


def _along(store: UOp) -> UOp | None:
    """Return the range that is contiguous in the memory of a store; None if there is none."""
    return next((r for r, step in linear_form(store.src[1])[0].items() if step == 1 and r.op is Ops.RANGE), None)


def _steps(statement: UOp, count: int, inner: bool, lanes: int) -> float:
    """Return the instructions for ``count`` values of a statement along a range, vectorized if it is the ``inner`` one.
    Instructions that depend on enclosing loops only are hoisted and free; a partial vector costs a full one plus its
    masking."""
    along, work = _along(statement), 0
    for n in toposort(one_load(statement, frozenset() if along is None else along.ranges)):
        if along is not None and along not in n.ranges:
            continue
        if n.op is Ops.LOAD:
            steps = [1 if t is along and abs(step) == 1 else lanes for t, step in linear_form(n.src[1])[0].items()
                     if along in t.ranges]
            work += max(steps, default=1)
        elif n.op is Ops.STORE or (n.op.alu and n.dtype is not dtypes.index):
            work += 1
    return work * (count // lanes + (2 if count % lanes else 0)) + 2.0 if inner else float(work * count)


def _chosen(n: UOp, lanes: frozenset[UOp]) -> UOp | None:
    """Replace a WHERE between loads of one memory by a single load, if the condition is the same for all lanes."""
    found = _branch(n, frozenset(), lanes)
    if found is None:
        return None
    load, offset, guards = found
    guard = [functools.reduce(operator.and_, sorted(guards, key=order))] if guards else []
    return load.replace(src=(load.src[0], offset.simplify(), *guard))


def _branch(n: UOp, known: frozenset[UOp], lanes: frozenset[UOp]) -> tuple[UOp, UOp, frozenset[UOp]] | None:
    """Return (load, index, guards other than the ``known`` conditions) of a branch; None if it is not one load."""
    if n.op is Ops.LOAD:
        return n, n.src[1], frozenset(conjuncts(n.src[2]) if len(n.src) > 2 else []) - known
    if n.op is not Ops.WHERE:
        return None
    condition = _of_indices(n.src[0])
    if any(r in lanes or r.arg[1] is Role.VECTOR for r in condition.ranges):
        return None
    never = condition.src[0] if condition.op is Ops.CMPEQ and condition.src[1].is_const else condition.logical_not()
    yes, no = (_branch(x, known.union(holds), lanes) for x, holds in ((n.src[1], conjuncts(condition)),
                                                                      (n.src[2], [never])))
    if yes is None or no is None or yes[0].src[0] is not no[0].src[0] or yes[2] != no[2]:
        return None
    (a, first), (b, second) = linear_form(yes[1]), linear_form(no[1])
    same = {t: c for t, c in a.items() if b.get(t) == c}
    rest = [from_linear({t: c for t, c in x.items() if t not in same}, constant, yes[1])
            for x, constant in ((a, 0), (b, second - first))]
    if any(r in lanes or r.arg[1] is Role.VECTOR for x in rest for r in x.ranges):
        return None
    return yes[0], from_linear(same, first, yes[1]) + condition.where(*rest), yes[2]


def _of_indices(condition: UOp) -> UOp:
    """Return a comparison of indices that were cast to integers as a comparison of the indices themselves, the form of
    guards."""
    sides = [as_index(s) for s in condition.src] if condition.op is Ops.CMPLT else []
    low, high = sides or (None, None)
    return condition if low is None or high is None else low.lt(high).simplify()


def _two_loads() -> UOp:
    i, x = UOp.range(8, 0, Role.LOOP), UOp(Ops.PARAM, dtypes.int32.ptr(), (), (1, (9,)))
    return i.lt(3).where(x.load(i, i.lt(3)), x.load(i + 1, i.lt(3).logical_not()))


def _same_op(n: UOp, c: UOp, a: UOp, b: UOp) -> UOp | None:
    """Apply an op that both branches end with once, if they differ in one source. The cast of a size that only
    variables determine stays in its branch, as a fixed size would: indices are wider than most values."""
    if a is b or not a.op.elementwise or (a.op, a.dtype, a.arg, len(a.src)) != (b.op, b.dtype, b.arg, len(b.src)):
        return None
    differ = [at for at, (x, y) in enumerate(zip(a.src, b.src)) if x is not y]
    if len(differ) != 1 or a.src[differ[0]].dtype is not b.src[differ[0]].dtype or a.op is Ops.CONST:
        return None
    if a.op is Ops.CAST and a.src[0].dtype is dtypes.index and not (a.ranges and b.ranges):
        return None
    (at,) = differ
    return a.replace(src=(*a.src[:at], c.where(a.src[at], b.src[at]), *a.src[at + 1 :]))


def _two_negations() -> UOp:
    i, x = UOp.range(8, 0, Role.LOOP), UOp(Ops.PARAM, dtypes.int32.ptr(), (), (1, (9,)))
    return i.lt(3).where(-x.load(i), -x.load(i + 1))

_choice = Pat("n", (Ops.WHERE,), (Pat("c"), Pat("a"), Pat("b")))


def _rules(lanes: frozenset[UOp]) -> RuleSet:
    return RuleSet("one-load", (
        Rule("one-op", "where(c, f(x, z), f(y, z)) = f(where(c, x, y), z)", _choice, _same_op, _two_negations),
        Rule("one-load", "where(c, m[i if c], m[j unless c]) = m[where(c, i, j)], c the same for all lanes", _choice,
             lambda n, c, a, b: _chosen(n, lanes), _two_loads),))

bounds_rules = _rules(frozenset())


def one_load(root: UOp, lanes: frozenset[UOp] = frozenset()) -> UOp:
    """Replace a WHERE between elements of one memory by one load with a selected index, if the condition is the same
    for all lanes."""
    return rewrite([root], bounds_rules if not lanes else _rules(lanes))[0]


def map_ways(kernel: Kernel, target: Target) -> Iterator[Candidate]:
    """Generate the candidates: lanes along each range, or loops partitioned where their formula changes, with lanes for
    each nest."""
    if kernel.folds or not target.vector_bytes:
        return
    lanes, pieces = lanes_of(kernel, target), kernel.copied()
    whole = list(nest_ways(kernel, target, lanes, kernel.stores))
    yield from whole
    plain = all(s.op is Ops.STORE for s in kernel.stores)
    share = cut_loops(pieces, lanes, target.core.pieces) if plain else 1.0
    if share < 1:
        least = min(w.cycles for w in whole)
        yield Candidate("loop partitioning", {"memory": least * share},
                        partial(_nests, pieces=pieces, target=target, lanes=lanes))


def _nests(kernel: Kernel, pieces: Kernel, target: Target, lanes: int) -> None:
    vars(kernel).update(vars(pieces.copied()))
    for offset in range(len(kernel.stores)):
        nest = [s for s in kernel.stores if s.ranges == kernel.stores[offset].ranges]
        if not any(r.arg[1].expanded for r in nest[0].ranges):
            min(nest_ways(kernel, target, lanes, nest), key=lambda w: w.cycles).apply(kernel)
    for r in [r for r in kernel.parallel if range_size(r) < target.core.shortest_lanes]:
        apply_to(kernel, OptOps.UPCAST, r)


def nest_ways(kernel: Kernel, target: Target, lanes: int, nest: list[UOp]) -> Iterator[Candidate]:
    """Generate the candidates for the statements of one loop nest: lanes along each range that memory suits, or
    none."""
    stores = [s for s in nest if s.op is Ops.STORE]
    scatters = [s for s in nest if s.op is Ops.SCATTER_STORE and s.src[4].arg[1] is not Role.BLOCK]
    parallel = [r for r in kernel.parallel if not any(r is s.src[4] for s in scatters)]
    loads = [n for n in toposort(nest) if n.op is Ops.LOAD and n.src[0].op is Ops.PARAM]
    options = [r for r in parallel if range_size(r) >= min(lanes, 4) and all(r in s.ranges for s in nest)
               and kernel.may_have_lanes(r)]
    vectors = max(count_of(s.ranges) for s in nest) / lanes
    woven = _woven_ranges(kernel, target, lanes, nest)
    work = 0 if woven else sum(n.op.cost for n in toposort(nest) if n.op.alu and n.dtype.is_float)
    cycles = lane_cycles(target, lanes, loads, stores, options[::-1], work)
    accesses = lane_cycles(target, lanes, loads, stores, options[::-1])
    for r, some in cycles.items():
        # Lanes that are stored apart must pay by their accesses alone: such a kernel cannot overwrite what it reads.
        apart = any(stride_of(s.src[1], r) not in (0, 1) for s in stores) if r is not None else False
        if apart and accesses[r] >= accesses[None]:
            continue
        if r is not None and some < cycles[None] and all(stride_of(s.src[1], r) == 1 for s in scatters):
            amount = min(lanes * _narrow(nest, loads, r), power_of_two(range_size(r)))
            yield Candidate(f"vectorize along {name_of(r)}", {"memory": vectors * some}, partial(
                _nest, target=target, nest=nest, lane=r, amount=amount))
    yield Candidate("no contiguous vectors", {"memory": vectors * cycles[None]},
                    partial(_scattered, target=target, lanes=lanes, nest=nest) if scatters else
                    lambda k: woven_lanes(k, target, lanes, nest) if options else None)


def _scattered(kernel: Kernel, target: Target, lanes: int, nest: list[UOp]) -> None:
    """Plan a scatter whose elements have an index each: the loop along which its values are contiguous is the innermost
    one, unrolled; else the copy of the base is vectorized, if it has a loop of its own."""
    scatters = [s for s in nest if s.op is Ops.SCATTER_STORE]
    values = [n for s in scatters for n in toposort(s.src[2]) if n.op is Ops.LOAD and n.src[0] is not s.src[0]]
    fixed = [r for r in kernel.parallel if isinstance(range_size(r), int)]
    columns = next((r for r in fixed if all(r in s.ranges for s in nest)
                    and any(stride_of(n.src[1], r) == 1 for n in values)), None)
    if columns is not None:
        outer, _ = split(kernel, OptOps.UPCAST, columns, min(UPDATES, range_size(columns)))
        return scatter_opts(kernel, target, outer) if outer is not None else None
    for s in nest:
        own = _along(s) if s.op is Ops.STORE else None
        if own in fixed and not any(own in x.ranges for x in nest if x is not s) and all(
                stride_of(n.src[1], own) in (0, 1) for n in toposort(s) if n.op is Ops.LOAD):
            split(kernel, OptOps.VECTOR, own, min(lanes, power_of_two(range_size(own))))
    return None


def _nest(kernel: Kernel, target: Target, nest: list[UOp], lane: UOp, amount: int) -> None:
    """Vectorize a nest along ``lane``; strided reads get an inner loop along their lines."""
    whole, scatters = len(nest) == len(kernel.stores), any(
        s.op is Ops.SCATTER_STORE and s.src[4].arg[1] is not Role.BLOCK for s in nest)
    outer, inner = split(kernel, OptOps.VECTOR, lane, amount)
    lanes_of_loop = {outer, inner}
    if scatters:
        return scatter_opts(kernel, target, outer) if outer is not None else None
    if whole:
        share_work(kernel, outer)
    loops = kernel.parallel
    along = [r for n in kernel.loads for r in loops
             if n.src[1].ranges & lanes_of_loop and stride_of(n.src[1], r) == 1 and r is not outer]
    if along:
        transpose_opts(kernel, target, outer, along[0], amount)
    return None


def _narrow(nest: list[UOp], loads: list[UOp], r: UOp) -> int:
    """Return the factor by which lanes of elements narrower than 32 bits may exceed 32-bit lanes, if they are only
    copied along ``r``; else 1."""
    copied = all(s.src[2].op is Ops.LOAD for s in nest) and all(stride_of(n.src[1], r) in (0, 1) for n in loads)
    return max(4 // max(s.src[2].dtype.itemsize for s in nest), 1) if copied else 1


def share_work(kernel: Kernel, lane_loop: UOp | None) -> None:
    """Unroll a short range on which less than half of the work depends, so that the other work is done once. Also
    unroll a range whose iterations each read a different input (stacked tensors), so that no iteration tests for the
    other inputs."""
    core = kernel.target.core
    for r in kernel.parallel:
        if r is lane_loop or not isinstance(range_size(r), int) or range_size(r) > core.written_out:
            continue
        picked = sum(len(n.src) > 2 and n.src[2].ranges == {r} for n in kernel.loads)
        if picked >= range_size(r) - 1 and picked * 2 > len(kernel.loads):
            kernel.apply(Opt(OptOps.UPCAST, kernel.ranges.index(r)))
            continue
        if range_size(r) > core.shared_copies:
            continue
        work = Counter(r in n.ranges for n in toposort(kernel.sink)
                       if n.op.elementwise and n.dtype.scalar is not dtypes.index)
        if work[False] > max(work[True], core.shared_work):
            kernel.apply(Opt(OptOps.UPCAST, kernel.ranges.index(r)))


def woven_lanes(kernel: Kernel, target: Target, lanes: int, stores: list[UOp]) -> None:
    """Vectorize along a repeated or interleaved range, with its short inner range unrolled, so that adjacent results
    are stored together."""
    if found := _woven_ranges(kernel, target, lanes, stores):
        split(kernel, OptOps.VECTOR, found[0], lanes)
        apply_to(kernel, OptOps.UPCAST, found[1])


def _woven_ranges(kernel: Kernel, target: Target, lanes: int, stores: list[UOp]) -> tuple[UOp, UOp] | None:
    """Return the range for ``woven_lanes`` and its short inner range; None if there are none."""
    own = [r for r in kernel.parallel if all(r in s.ranges for s in stores)]
    for short in own:
        count = range_size(short)
        beside = [r for r in own if range_size(r) >= lanes and all(stride_of(s.src[1], r) == count for s in stores)
                  and all(stride_of(n.src[1], r) in (0, 1) for n in toposort(stores) if n.op is Ops.LOAD)]
        if 1 < count <= target.core.interleaved and beside and all(stride_of(s.src[1], short) == 1 for s in stores):
            return beside[0], short
    return None


def transpose_opts(kernel: Kernel, target: Target, lane_loop: UOp | None, along: UOp, lanes: int) -> None:
    """Move the loop along the lines that strided lanes read innermost. Square blocks are transposed in registers, and
    results are written as pairs of lines: a loop that writes one line per row waits for each line to be fetched
    first."""
    sizes = [n.dtype.itemsize for n in kernel.loads]
    last: list[UOp] = [along]
    if range_size(along) % SIDE == 0 and min(sizes) >= 4:
        left, _ = split(kernel, OptOps.UPCAST, along, SIDE)
        last = [left] if left is not None else []
        pair = target.core.pair_bytes // (lanes * max(sizes))
        whole = lane_loop is not None and not is_partial(lane_loop) and range_size(lane_loop) % pair == 0
        if lane_loop is not None and whole and pair > 1:
            last.append(split(kernel, OptOps.TILE, lane_loop, pair)[1])
    loops = [r for r in kernel.ranges if not r.arg[1].expanded]
    order_loops(kernel, [*(r for r in loops if r not in last), *last])


def scatter_opts(kernel: Kernel, target: Target, columns: UOp) -> None:
    """Order the loops as blocks of ``columns``, rows, columns of a block: the memory that is updated is then one block
    wide, and no two workers add to the same address."""
    shared = [r for r in kernel.parallel if r is not columns and all(r in s.ranges for s in kernel.stores)]
    inner: UOp | None = columns
    if math.prod(range_size(r) for r in shared) < target.threads:
        parts = parts_of_columns(range_size(columns), target.threads, target.core.even)
        whole = not is_partial(columns)
        if parts == range_size(columns):
            shared, inner = [*shared, columns], None
        elif parts and whole:
            block, inner = split(kernel, OptOps.TILE, columns, range_size(columns) // parts)
            shared += [block] if block is not None else []
    loops = [r for r in kernel.ranges if not r.arg[1].expanded]
    last = [inner] if inner is not None else []
    order_loops(kernel, [*shared, *(r for r in loops if r not in (*shared, *last)), *last])


def parts_of_columns(size: int, threads: int, shares: int) -> int:
    """Return the number of equal blocks that balances the workers: a divisor of ``size`` that is a multiple of
    ``threads``, up to ``shares`` blocks per worker; else any divisor with at least ``shares`` blocks per worker; else
    ``size`` blocks of 1. 0 if there are too few columns.

    >>> [parts_of_columns(size, 8, 4) for size in (64, 19, 36, 7)]
    [8, 19, 36, 0]
    """
    even = range(threads, shares * threads + 1, threads)
    fitting = next((n for n in (*even, *range(shares * threads, 4 * shares * threads)) if size % n == 0), 0)
    return fitting or (size if size >= 2 * threads else 0)
