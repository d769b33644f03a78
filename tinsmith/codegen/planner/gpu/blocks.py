"""The candidates of targets with a grid of thread blocks (``BLOCKS``, by structure), and those of general reductions.

* contractions: ``back_to_back_gemm.py``, ``rings.py`` and ``products.py``;
* memory-bound kernels: ``bandwidth.py``;
* any other reduction: if there are too few results for a thread each, the threads of a block share it.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial

from tinsmith.codegen.kernel import Kernel
from tinsmith.codegen.opt import Opt, OptOps
from tinsmith.codegen.planner.candidate import Candidate, apply_if_it_fits, apply_to, stride_of
from tinsmith.codegen.planner.cpu.elementwise import share_work
from tinsmith.codegen.planner.gpu.back_to_back_gemm import chain_ways
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
    window_opts,
)
from tinsmith.codegen.planner.gpu.products import product_ways
from tinsmith.codegen.planner.gpu.rings import ring_ways
from tinsmith.codegen.planner.roofline import cycles
from tinsmith.codegen.transform.block_rank import counted
from tinsmith.core.errors import ArgumentError
from tinsmith.ir import Ops
from tinsmith.ir.ranges import Role, range_size
from tinsmith.ir.structure import Contraction, Map, Rows, Scan, Scatter, Structure, sum_of_products
from tinsmith.target.target import Target

Generator = Callable[[Kernel, Target], Iterator[Candidate]]


def _ways(*ways: tuple[str, Callable[[Kernel, Target], bool]]) -> Generator:
    """Return a generator of candidates from rules, the most specific rule first; a rule applies its opts or returns
    False. If several rules suit the kernel, ``estimate`` prices each, with a surcharge of ``Blocks.doubt`` on all but
    the first."""
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
    """Share every large reduction among the threads of a block if there are fewer than ``Blocks.enough`` results."""
    beside = any(r.arg[1] is Role.LOOP for r in kernel.parallel)  # the threads of a block share these loops in any case
    if results_of(kernel) >= target.blocks.enough and not beside:
        return
    for fold in {f.src[1:]: f for f in kernel.folds}.values():
        sizes = {r.arg[0]: size for r in fold.src[1:] if isinstance(size := range_size(r), int)}
        total = math.prod(sizes.values())
        most = min(target.block_threads, target.blocks.threads)
        wanted = min(most, 1 << (math.isqrt(4 * total).bit_length() - 1))
        long = [number for number, size in sizes.items() if size >= target.blocks.long]
        # several short ranges: from the innermost on
        for number in long or reversed(sizes) if total >= target.blocks.long else ():
            r = kernel.numbered.get(number)
            if r is None or r.arg[1] is not Role.REDUCE or wanted < 2:
                continue
            size = range_size(r)
            most = min(wanted, 1 << (math.isqrt(4 * size).bit_length() - 1)) if long else min(wanted, size)
            amount = room(kernel, OptOps.GROUP, r, most, target)
            if amount > 1:
                apply_to(kernel, OptOps.GROUP, r, amount)
                wanted //= 1 if long else amount


def reuse_opts(kernel: Kernel, target: Target) -> None:
    """Upcast a sum of products along a range of each factor alone, as long as all threads still have work: a loaded
    element of one factor serves all copies along the other's range."""
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
    """Vectorize along memory, then assign threads along memory."""
    share_work(kernel, None)
    picked_opts(kernel, target)
    thread_opts(kernel, target, vector_opts(kernel, target))
    made_opts(kernel, target)
    return True


_products = ring_ways, product_ways
_rows = _ways(("segment sums", listed_opts), ("threads of a block share each row", row_opts),
              ("coalesced threads along columns", column_opts), ("several short sums per thread", short_sum_opts),
              ("two overlapping windows per thread", window_opts),
              ("threads of a block share long reductions", sum_opts))
_maps = _ways(("transpose through local memory", transpose_opts), ("coalesced threads", map_opts))
BLOCKS: dict[type[Structure], tuple[Generator, ...]] = {
    Contraction: (chain_ways, *_products, _rows), Rows: (count_ways, _rows),
    Scan: (*_products, _ways(("threads of a block share the scan", running_opts))), Scatter: (_maps,), Map: (_maps,)}
