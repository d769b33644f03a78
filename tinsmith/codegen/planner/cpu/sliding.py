"""Candidates of sums of products over windows without matrix reuse, such as depthwise convolutions, on a CPU.

Lanes run along a range of the result that both factors have (the channels). Several positions along which the window
slides are computed together: they share the weights, and adjacent steps of the window share the elements. Weights whose
lanes are apart in memory are staged in the order of the lanes.
"""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from tinsmith.codegen.kernel import Kernel
from tinsmith.codegen.lower.indexing import footprints
from tinsmith.codegen.opt import OptOps
from tinsmith.codegen.planner.candidate import (
    Candidate,
    apply_to,
    lanes_of,
    name_of,
    split,
    stage,
    stride_of,
    the_sum,
)
from tinsmith.codegen.planner.cost import Moved, access_cycles, loads_of, operations, price
from tinsmith.ir import Ops, UOp
from tinsmith.ir.structure import count_of, is_partial, range_size, sum_of_products
from tinsmith.ir.uop import toposort
from tinsmith.target.target import Target


@dataclass(frozen=True)
class Sliding:
    """A plan for one sum of products over windows.

    Attributes:
        lane: the range of the lanes.
        slides: the range of the result whose positions are computed together.
        copies: their number.
        window: the reduction that is unrolled, along which the window extends in the direction of ``slides``.
    """

    lane: UOp
    slides: UOp
    copies: int
    window: UOp


def sliding_ways(kernel: Kernel, target: Target) -> Iterator[Candidate]:
    """Generate the candidates: for each range of contiguous lanes, windows that slide along each other range."""
    fold = the_sum(kernel)
    if fold is None or not target.vector_bytes or not sum_of_products(fold, guarded=True):
        return
    lanes, loads = lanes_of(kernel, target), loads_of(fold.src[0])
    for plan in _plans(kernel, target, fold, loads, lanes):
        packed = [n for n in loads if stride_of(n.src[1], plan.lane) not in (0, 1)]
        number = count_of(fold.src[0].ranges) / lanes
        shares = {n: _share(n, plan) for n in loads}
        read = sum(shares[n] * (1 if n in packed else access_cycles(target, lanes, [n], [], plan.lane)) for n in loads)
        work = (operations(fold.src[0]) + fold.arg.cost) / target.core.issue
        stored = sum(count_of(s.ranges) / lanes * access_cycles(target, lanes, [], [s], plan.lane)
                     for s in kernel.stores)
        loops = number / (plan.copies * range_size(plan.window))
        spent = {"memory": number * (read + work) + stored, "loops": loops}
        copied = [Moved("across", count_of(n.src[1].ranges) * max(target.threads, 1), 1) for n in packed]
        yield Candidate(f"vectorize along {name_of(plan.lane)}, {plan.copies} windows along {name_of(plan.slides)}",
                        spent | price(target, None, copied), partial(_apply, target=target, plan=plan, lanes=lanes))


def _plans(kernel: Kernel, target: Target, fold: UOp, loads: list[UOp], lanes: int) -> Iterator[Sliding]:
    """Generate the ranges of lanes, of positions and of steps that suit the sum."""
    for lane in kernel.parallel:
        contiguous = all(stride_of(s.src[1], lane) == 1 for s in kernel.stores)
        if not contiguous or lane not in fold.ranges or range_size(lane) < lanes or not kernel.may_have_lanes(lane):
            continue
        apart = [n for n in loads if stride_of(n.src[1], lane) not in (0, 1)]
        near = all(count_of(n.src[1].ranges) * n.dtype.itemsize <= target.l2_bytes // 2 for n in apart)
        if not near or any(len(n.src) > 2 for n in apart):
            continue
        others = [r for r in kernel.parallel if r is not lane and r in fold.ranges and not is_partial(r)]
        for slides in reversed(others):  # of equal prices, that of the positions nearest in memory
            if all(slides in n.src[1].ranges for n in loads):
                continue
            for window in fold.src[1:]:
                most = (target.vector_registers - range_size(window)) // 2
                overlaps = any(len(box.weights) > 1 for n in loads for box in footprints(n, [slides, window]))
                if overlaps and min(most, range_size(slides)) > 1 and range_size(window) <= target.core.written_out:
                    yield Sliding(lane, slides, _copies(range_size(slides), most, target.core.written_out), window)


def _copies(size: int, most: int, limit: int) -> int:
    """Return the number of positions, at most ``most``, with the fewest tiles; of several the one whose last tile is
    fullest.

    >>> _copies(56, 12, 16), _copies(28, 14, 16), _copies(33, 12, 16), _copies(5, 12, 16)
    (12, 14, 11, 5)
    """
    most = min(most, limit, size)
    tiles = -(-size // most)
    return -(-size // tiles)


def _share(load: UOp, plan: Sliding) -> float:
    """Return the loads per product: positions that read the same element share it, and so do steps of the window."""
    copies, steps = plan.copies, range_size(plan.window)
    if plan.slides not in load.src[1].ranges:
        return 1 / copies
    overlaps = any(len(box.weights) > 1 for box in footprints(load, [plan.slides, plan.window]))
    return (copies + steps - 1) / (copies * steps) if overlaps else 1.0


def _apply(kernel: Kernel, target: Target, plan: Sliding, lanes: int) -> None:
    """Vectorize, compute the positions together, stage the weights in the order of the lanes, unroll the window."""
    _, lane = split(kernel, OptOps.VECTOR, plan.lane, lanes)
    split(kernel, OptOps.UPCAST, plan.slides, plan.copies)
    for memory in dict.fromkeys(n.src[0] for n in kernel.loads):
        load = next((n for n in kernel.loads if n.src[0] is memory), None)
        if load is not None and memory.op is Ops.PARAM and stride_of(load.src[1], lane) not in (0, 1):
            stage(kernel, _converted(kernel, load), (), lanes)
    apply_to(kernel, OptOps.UNROLL, plan.window)


def _converted(kernel: Kernel, load: UOp) -> UOp:
    """Return the largest value that is computed of one load only, such as its conversion to a wider type."""
    alone = [v for v in kernel.stageable if load in toposort(v) and v.ranges == load.ranges]
    return max(alone, key=lambda v: len(toposort(v)), default=load)
