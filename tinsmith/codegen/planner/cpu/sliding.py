"""Candidates of sums of products over windows without matrix reuse, such as depthwise convolutions, on a CPU.

Lanes run along a range of the result that both factors have (the channels). Several positions along which the window
slides are computed together: they share the weights, and adjacent steps of the window share the elements. Weights whose
lanes are apart in memory are staged in the order of the lanes. Where few results sum many elements, as the gradient of
the weights, all positions of two ranges share one pass over the elements.
"""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
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

FEW = 16  # elements that a result sums, from which on it may be stored across memory
SHARED = 4  # registers for elements that are read, where results take the others
PRODUCTS = 64  # products to unroll, at most


@dataclass(frozen=True)
class Sliding:
    """A plan for one sum of products over windows.

    Attributes:
        lane: the range of the lanes.
        slides: the range of the result whose positions are computed together.
        copies: their number.
        window: the reduction along which the window extends in the direction of ``slides``.
        steps: its steps that are unrolled.
        beside: another range of the result, all of whose positions are computed together; None if there is none.
    """

    lane: UOp
    slides: UOp
    copies: int
    window: UOp
    steps: int
    beside: UOp | None = None

    @property
    def results(self) -> int:
        """The number of results that are computed together, in vectors."""
        return self.copies * (1 if self.beside is None else range_size(self.beside))


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
        loops = number / (plan.results * plan.steps)
        spent = {"memory": number * (read + work) + stored, "loops": loops}
        copied = [Moved("across", count_of(n.src[1].ranges) * max(target.threads, 1), 1) for n in packed]
        yield Candidate(f"vectorize along {name_of(plan.lane)}, {plan.results} windows along {name_of(plan.slides)}",
                        spent | price(target, None, copied), partial(_apply, target=target, plan=plan, lanes=lanes))


def _plans(kernel: Kernel, target: Target, fold: UOp, loads: list[UOp], lanes: int) -> Iterator[Sliding]:
    """Generate the ranges of lanes, of positions and of steps that suit the sum."""
    few = FEW * count_of(fold.ranges) <= count_of(fold.src[0].ranges)
    for lane in kernel.parallel:
        contiguous = few or all(stride_of(s.src[1], lane) == 1 for s in kernel.stores)
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
                if any(len(box.weights) > 1 for n in loads for box in footprints(n, [slides, window])):
                    yield from _tiles(target, Sliding(lane, slides, 0, window, range_size(window)), loads,
                                      [r for r in others if few and r is not slides])


def _tiles(target: Target, plan: Sliding, loads: list[UOp], others: list[UOp]) -> Iterator[Sliding]:
    """Generate the numbers of positions and steps to compute together: the complete window, or, of few results that sum
    many elements, the positions of two ranges, and as many steps as they leave room for."""
    size, steps, most = range_size(plan.slides), plan.steps, target.core.written_out
    room = (target.vector_registers - steps) // 2
    if min(room, size) > 1 and steps <= most:
        yield replace(plan, copies=_copies(size, room, most))
    for beside in others:
        results = size * range_size(beside)
        if results <= target.vector_registers - SHARED and any(beside not in n.src[1].ranges for n in loads):
            unrolled = max((n for n in range(1, most + 1) if steps % n == 0 and n * results <= PRODUCTS), default=1)
            yield replace(plan, copies=size, steps=unrolled, beside=beside)


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
    copies, steps = plan.copies, plan.steps
    beside = 1 if plan.beside is None or plan.beside in load.src[1].ranges else range_size(plan.beside)
    if plan.slides not in load.src[1].ranges:
        return 1 / (copies * beside)
    overlaps = any(len(box.weights) > 1 for box in footprints(load, [plan.slides, plan.window]))
    return ((copies + steps - 1) / (copies * steps) if overlaps else 1.0) / beside


def _apply(kernel: Kernel, target: Target, plan: Sliding, lanes: int) -> None:
    """Vectorize, compute the positions together, stage the weights in the order of the lanes, unroll the window."""
    _, lane = split(kernel, OptOps.VECTOR, plan.lane, lanes)
    split(kernel, OptOps.UPCAST, plan.slides, plan.copies)
    if plan.beside is not None:
        apply_to(kernel, OptOps.UPCAST, plan.beside)
    for memory in dict.fromkeys(n.src[0] for n in kernel.loads):
        load = next((n for n in kernel.loads if n.src[0] is memory), None)
        if load is not None and memory.op is Ops.PARAM and stride_of(load.src[1], lane) not in (0, 1):
            stage(kernel, _converted(kernel, load), (), lanes)
    if plan.steps == range_size(plan.window):
        apply_to(kernel, OptOps.UNROLL, plan.window)
    elif plan.steps > 1:
        split(kernel, OptOps.UNROLL, plan.window, plan.steps)


def _converted(kernel: Kernel, load: UOp) -> UOp:
    """Return the largest value that is computed of one load only, such as its conversion to a wider type."""
    alone = [v for v in kernel.stageable if load in toposort(v) and v.ranges == load.ranges]
    return max(alone, key=lambda v: len(toposort(v)), default=load)
