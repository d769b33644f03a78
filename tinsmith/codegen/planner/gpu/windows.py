"""Candidates for sums over overlapping windows on a grid of blocks: pools, convolutions of single channels, and their
gradients.

A thread computes U results at adjacent places p, and for each of them V steps q of the sum at a time. Where addresses
depend on a·p + b·q, several of these U·V terms read the same element, which stays in a register:

    loads per term = distinct elements / (U·V)        window of 7, U = 7, V = 7:  13 + 7 loads of a product for 49 terms

A convolution slides p along the image and sums q over the window. In the gradient of its weights p is a place in the
window, and q goes along the image.
"""
from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from tinsmith.codegen.kernel import Kernel
from tinsmith.codegen.opt import OptOps
from tinsmith.codegen.planner.candidate import stride_of
from tinsmith.codegen.planner.gpu.bandwidth import amount_for, lanes_for, results_of, split, thread_opts
from tinsmith.ir import Ops, UOp
from tinsmith.ir.structure import Role, range_size
from tinsmith.target.target import Target

NEAR: Final = 16  # bytes between the elements of adjacent threads, at most: a warp reads four lines of memory
ADJACENT: Final = 8  # such threads, at least
PLACES: Final = 8  # places that a thread computes, or threads of a block that share lines, at most
RESIDENT: Final = 1 / 8  # share of the resident threads that keep all cores busy: each has many loads in flight
REGISTERS: Final = 40  # sums and loaded elements of a thread, at most


class WindowTile(NamedTuple):
    """The terms of a sum that a thread computes at a time.

    Attributes:
        loads: the elements that it loads for each term.
        registers: the registers of sums and loaded elements.
        place, step: the range of places, and the range of the sum.
        places, steps: the number of places and of steps.
    """

    loads: float
    registers: int
    place: UOp
    step: UOp
    places: int
    steps: int


def window_opts(kernel: Kernel, target: Target) -> bool:
    """Compute a tile of overlapping windows in each thread: the smallest that needs few more loads than the best one.
    Unroll windows of a few elements completely. Return False if windows do not overlap."""
    if kernel.ordered or kernel.products or not kernel.folds:
        return False
    tiles = list(_tiles(kernel, target))
    if not tiles:
        return False
    least = min(t.loads for t in tiles)
    tile = min((t for t in tiles if t.loads <= target.blocks.few_more * least), key=lambda t: t.registers)
    threads, few = results_of(kernel) // tile.places, _terms(kernel) <= target.blocks.short
    across = next((r for r in kernel.parallel if r is not tile.place and _is_contiguous(kernel, r)), None)
    split(kernel, OptOps.UPCAST, tile.place, tile.places)
    lanes, left = 1, across
    if across is not None and threads >= target.blocks.together * _enough(target):
        lanes = min(lanes_for(kernel, target, range_size(across), across), target.blocks.together)
        left = split(kernel, OptOps.VECTOR, kernel.numbered[across.arg[0]], lanes)
    split(kernel, OptOps.UNROLL, kernel.numbered[tile.step.arg[0]], tile.steps)
    for r in list(kernel.reduces) if few else ():
        split(kernel, OptOps.UNROLL, r, range_size(r))
    if left is not None:
        _share_lines(kernel, target, kernel.numbered[left.arg[0]])
    thread_opts(kernel, target, lanes)
    return True


def _share_lines(kernel: Kernel, target: Target, across: UOp) -> None:
    """Let a block compute all places of a short range whose windows overlap, as the rows of a window in the gradient of
    its weights: they read the same lines, which are then in the core's cache."""
    for r in kernel.parallel:
        size = range_size(r)
        short = r.arg[1] is Role.GLOBAL and isinstance(size, int) and 1 < size <= PLACES
        if r is not across and short and any(_slides(n, r, q) for n in kernel.loads for q in kernel.reduces):
            split(kernel, OptOps.LOCAL, across, amount_for(range_size(across), target.blocks.most_threads // size))
            split(kernel, OptOps.LOCAL, kernel.numbered[r.arg[0]], size)
            return


def _slides(load: UOp, place: UOp, step: UOp) -> bool:
    """Return True if the windows at adjacent steps of a sum overlap."""
    a, b = stride_of(load.src[1], place), stride_of(load.src[1], step)
    return bool(a and b and b % a == 0 and 0 < b // a < range_size(place))


def _terms(kernel: Kernel) -> int:
    """Return the steps of the longest sum's loops."""
    found: int = max(math.prod(range_size(r) for r in f.src[1:] if r.arg[1] is Role.REDUCE) for f in kernel.folds)
    return found


def _enough(target: Target) -> int:
    """Return the number of threads that keep all cores busy."""
    return int(target.cores * target.resident * RESIDENT)


def _tiles(kernel: Kernel, target: Target) -> Iterator[WindowTile]:
    """Generate the tiles of windows that overlap and leave enough threads."""
    summed = [r for r in kernel.reduces if isinstance(range_size(r), int) and all(r in f.src[1:] for f in kernel.folds)]
    places = [r for r in kernel.parallel if r.arg[1] is Role.GLOBAL and isinstance(range_size(r), int) and all(
        s.op is Ops.STORE and stride_of(s.src[1], r) not in (None, 0, 1) for s in kernel.stores)]
    if not all(isinstance(range_size(r), int) for f in kernel.folds for r in f.src[1:]):
        return
    for p, q in itertools.product(places, summed):
        slid = [n for n in kernel.loads if stride_of(n.src[1], p) and stride_of(n.src[1], q)]
        if not any(_is_near(slid, r) and range_size(r) >= ADJACENT for r in kernel.parallel if r is not p):
            continue  # the threads of a warp would read a line each
        steps = [(stride_of(n.src[1], p), stride_of(n.src[1], q)) for n in kernel.loads]
        strides = [(a, b) for a, b in steps if a is not None and b is not None]
        if len(strides) < len(steps):
            continue
        for u, v in itertools.product(_divisors(range_size(p), PLACES),
                                      _divisors(range_size(q), target.blocks.short)):
            each = [_distinct(a, b, u, v) for a, b in strides]
            overlap = any(a and b and n < u * v for n, (a, b) in zip(each, strides))
            registers = u * len(kernel.folds) + sum(each)
            if u > 1 and overlap and registers <= REGISTERS and (
                    results_of(kernel) >= u * _enough(target)):
                yield WindowTile(sum(each) / (u * v), registers, p, q, u, v)


def _distinct(a: int, b: int, places: int, steps: int) -> int:
    """Return the number of elements at a·p + b·q.

    >>> _distinct(1, 1, 7, 7), _distinct(2, 1, 7, 7), _distinct(0, 1, 7, 7)
    (13, 19, 7)
    """
    return len({a * p + b * q for p in range(places) for q in range(steps)})


def _divisors(size: int, most: int) -> list[int]:
    return [n for n in range(1, min(size, most) + 1) if size % n == 0]


def _is_near(loads: Sequence[UOp], r: UOp) -> bool:
    """Return True if adjacent threads along ``r`` read elements of few lines of memory."""
    steps = [(stride_of(n.src[1], r) or 0) * n.dtype.itemsize for n in loads]
    return r.arg[1] is Role.GLOBAL and isinstance(range_size(r), int) and any(steps) and max(steps) <= NEAR


def _is_contiguous(kernel: Kernel, r: UOp) -> bool:
    """Return True if the elements of ``r`` are neighbours in all stores, and neighbours or the same in all loads."""
    loads = all(stride_of(n.src[1], r) in (0, 1) for n in kernel.loads)
    return r.arg[1] is Role.GLOBAL and isinstance(range_size(r), int) and loads and all(
        stride_of(s.src[1], r) == 1 for s in kernel.stores)
