"""Candidates of scans on a CPU, and the opts that end every CPU candidate: prefetches, non-temporal stores, threads.
Kernels with sizes known only at run time.

A scan gets lanes along its steps, which are combined within a register, or lanes along a parallel range, or several
rows whose dependence chains overlap.
"""
from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

from tinsmith.codegen.kernel import Kernel
from tinsmith.codegen.lower.loop_partition import first_loop, is_whole, outermost_loops
from tinsmith.codegen.opt import Opt, OptOps
from tinsmith.codegen.planner.candidate import (
    Candidate,
    apply_to,
    lanes_of,
    name_of,
    power_of_two,
    split,
    stored_bytes,
    stride_of,
    weight_of,
)
from tinsmith.codegen.planner.cost import step_price
from tinsmith.codegen.planner.cpu.reductions import row_ahead, steps_together
from tinsmith.codegen.transform.prefetch import may_stream
from tinsmith.ir import Ops, UOp
from tinsmith.ir.ranges import Role, count_of, is_partial, range_size
from tinsmith.ir.uop import toposort
from tinsmith.target.target import Target

ROWS: Final = 4  # steps of a tile of a loop of symbolic size

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
        work: ``weight_of`` the kernel before its opts.
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


def symbolic_opts(kernel: Kernel, target: Target) -> None:
    """Vectorize, upcast and thread the ranges of fixed size in a kernel that has symbolic sizes too."""
    if target.vector_bytes:
        rows = symbolic_rows(kernel)
        symbolic_lanes(kernel, target, rows)
    outer = next(iter(kernel.ranges), None)
    if target.threads > 1 and outer in kernel.parallel and weight_of(kernel) >= target.core.serial_work:
        assert outer is not None
        if isinstance(range_size(outer), int) and all(outer in s.ranges for s in kernel.stores):
            apply_to(kernel, OptOps.THREAD, outer)


def symbolic_rows(kernel: Kernel) -> bool:
    """Tile the innermost loop of symbolic size that some load of a sum does not depend on, so that several rows share
    what is loaded; return True if there is one."""
    loads = [n for f in kernel.folds for n in toposort(f.src[0]) if n.op is Ops.LOAD]
    for r in reversed(kernel.parallel):
        shared = loads and any(r not in n.ranges for n in loads)
        if isinstance(range_size(r), int) or not shared or r.vmax < ROWS or not is_whole(kernel, r) or any(
                r not in s.ranges for s in kernel.stores):
            continue
        at = kernel.order.index(r)
        apply_to(kernel, OptOps.TILE, r, ROWS)
        apply_to(kernel, OptOps.UPCAST, kernel.order[at + 1], ROWS)
        return True
    return False


def symbolic_lanes(kernel: Kernel, target: Target, rows: bool) -> None:
    """Vectorize a range that each store runs along, with several vectors per iteration if there are sums; else a
    reduced range.

    Args:
        rows: tiles of rows take registers, too.
    """
    lanes, copies = lanes_of(kernel, target), 2 if rows and target.vector_bytes < 64 else 4

    def whole(r: UOp) -> bool:
        size = range_size(r)
        return isinstance(size, int) and size % lanes == 0 and kernel.may_have_lanes(r)

    found = False
    for n in range(len(kernel.stores)):
        store = kernel.stores[n]
        along = (r for r in reversed(kernel.parallel) if r in store.ranges and whole(r) and all(
            stride_of(s.src[1], r) == 1 for s in kernel.stores if r in s.ranges))
        if (r := next(along, None)) is None:
            continue
        outer, _ = split(kernel, OptOps.VECTOR, r, lanes)
        if outer is not None and kernel.folds:
            split(kernel, OptOps.UPCAST, outer, min(copies, range_size(outer)))
        found = True
    if found:
        return
    for r in kernel.reduces:
        loads = [n for f in kernel.folds if r in f.src[1:] for n in toposort(f.src[0]) if n.op is Ops.LOAD]
        strides = {stride_of(n.src[1], r) for n in loads}
        if whole(r) and strides <= {0, 1} and 1 in strides:
            outer, _ = split(kernel, OptOps.VECTOR, r, lanes)
            if outer is not None:
                split(kernel, OptOps.UNROLL, outer, min(4, range_size(outer)))
            return


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
    """Return why a kernel runs on one worker, however large it is; empty if it is threaded or if no obstacle is
    known."""
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
