"""Beam search over lists of opts by measured time: the best lists so far are extended by every legal opt.

The search is independent of the device: ``measure`` returns the time of a kernel, or None if it failed, was too slow or
gave a wrong result. Only the extensions that the model of ``estimate`` ranks best are measured.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from tinsmith.codegen.kernel import Kernel
from tinsmith.codegen.opt import Opt, OptOps
from tinsmith.codegen.planner.roofline import Machine, estimate
from tinsmith.core.errors import ArgumentError
from tinsmith.ir import UOp
from tinsmith.ir.ranges import Role, count_of, range_size
from tinsmith.ir.uop import toposort
from tinsmith.target.target import Target

ROUNDS = 10  # maximum number of opts added to a start
GAIN = 0.98  # a round must make the best kernel at least this much faster, or the search ends
COPIES = 256  # copies of one value beyond which a program is not worth compiling
AMOUNTS = (2, 3, 4, 5, 6, 7, 8, 12, 14, 16)
TILES = (4, 16, 64, 256)

Measure = Callable[[Kernel], "float | None"]


@dataclass(frozen=True)
class Found:
    """The result of a search.

    Attributes:
        opts: the best list of opts.
        seconds: its time.
        before: the time of the first start.
        tried: kernels measured.
        failed: kernels whose measurement failed.
    """

    opts: tuple[Opt, ...]
    seconds: float
    before: float
    tried: int
    failed: int


def beam_search(starts: Iterable[Kernel], width: int, target: Target, machine: Machine,
                measure: Measure) -> Found | None:
    """Return the fastest list of opts that a beam of ``width`` finds; None if no start could be measured.

    Args:
        starts: kernels with opts already applied, the default first.
        machine: for the model that selects the kernels to measure.
        measure: returns the seconds of a kernel, or None.
    """
    search = _Search(width, target, machine, measure)
    beam = search.measured(starts)
    if not beam:
        return None
    before = next((t for k, t in search.first if t is not None), beam[0][1])
    for _ in range(ROUNDS):
        best = beam[0][1]
        candidates = [c for k, _ in beam for c in search.extended(k)]
        candidates.sort(key=lambda k: estimate(k, machine).seconds)
        beam = sorted([*beam, *search.measured(candidates[: 4 * width + 4])], key=lambda b: b[1])[:width]
        if beam[0][1] > best * GAIN:
            break
    kernel, seconds = beam[0]
    return Found(tuple(kernel.opts), seconds, before, search.tried, search.failed)


class _Search:
    """The kernels seen and measured so far."""

    def __init__(self, width: int, target: Target, machine: Machine, measure: Measure) -> None:
        self.width, self.target, self.machine, self.measure = width, target, machine, measure
        self.seen: set[tuple[UOp, tuple[UOp, ...]]] = set()
        self.first: list[tuple[Kernel, float | None]] = []
        self.tried = self.failed = 0

    def measured(self, kernels: Iterable[Kernel]) -> list[tuple[Kernel, float]]:
        """Return the kernels not seen before with their times, the fastest first; failed ones are left out."""
        out = []
        for k in kernels:
            if not self.new(k):
                continue
            self.tried += 1
            seconds = self.measure(k)
            self.first.append((k, seconds))
            if seconds is None:
                self.failed += 1
            else:
                out.append((k, seconds))
        return sorted(out, key=lambda b: b[1])

    def new(self, k: Kernel) -> bool:
        state = k.sink, tuple(k.order)
        if state in self.seen:
            return False
        self.seen.add(state)
        return True

    def extended(self, kernel: Kernel) -> Iterator[Kernel]:
        """Generate ``kernel`` with one more opt, for every legal one that does not unroll too much."""
        for opt in actions(kernel, self.target):
            more = kernel.copied()
            try:
                more.apply(opt)
            except (ArgumentError, AssertionError):
                continue
            if (more.sink, tuple(more.order)) not in self.seen and copies(more) <= COPIES:
                yield more


def copies(kernel: Kernel) -> int:
    """Return the greatest number of copies of one value that the linearizer writes."""
    expanded = (Role.UPCAST, Role.UNROLL)
    return max((count_of(r for r in n.ranges if r.arg[1] in expanded) for n in toposort(kernel.sink)), default=1)


def actions(kernel: Kernel, target: Target) -> Iterator[Opt]:
    """Generate opts worth trying next; some may be illegal.

    >>> from tinsmith.codegen.lower.lower import lower
    >>> from tinsmith.ir import Ops
    >>> x = UOp(Ops.PARAM, dtypes.float32, (), (1, (8, 64)))
    >>> k = Kernel(lower(UOp(Ops.SINK, None, (x.reduce("ADD", (1,)),))))
    >>> sorted({o.op.name for o in actions(k, Target("text", vector_bytes=32, threads=2))})
    ['HINT', 'STAGE', 'THREAD', 'TILE', 'UNROLL', 'UPCAST', 'VECTOR']
    """
    ranges = kernel.ranges
    lanes = sorted({max(target.vector_bytes // size, 1) for size in (8, 4)} - {1}) if target.vector_bytes else []
    for axis, r in enumerate(ranges):
        size = range_size(r)
        if not isinstance(size, int) or r.arg[1].expanded:
            continue
        fitting = [a for a in AMOUNTS if a <= size]
        threads = [a for a in fitting if a <= target.block_threads]
        if r.arg[1] is Role.REDUCE:
            yield from (Opt(OptOps.UNROLL, axis, a) for a in fitting)
            yield from (Opt(op, axis, a) for op in (OptOps.GROUP, OptOps.GROUPTOP) for a in threads if a >= 4)
        else:
            yield from (Opt(OptOps.UPCAST, axis, a) for a in fitting)
            yield from (Opt(OptOps.LOCAL, axis, a) for a in threads)
        yield from (Opt(OptOps.VECTOR, axis, a) for a in lanes if a < 2 * size)
        yield from (Opt(OptOps.TILE, axis, a) for a in TILES if a < size and size % a == 0)
        yield from (Opt(OptOps.SWAP, axis, other) for other in range(axis + 1, len(ranges))
                    if ranges[other].arg[1] is r.arg[1])
        if target.threads > 1 and axis == 0:
            yield Opt(OptOps.THREAD, axis)
    yield from _stages(kernel, lanes)
    yield Opt(OptOps.HINT)


def _stages(kernel: Kernel, lanes: list[int]) -> Iterator[Opt]:
    """Generate a STAGE of each load, inside the first few loops that it depends on."""
    parallel = kernel.parallel
    for number, load in enumerate(kernel.loads):
        own = [r for r in parallel if r in load.ranges]
        for depth in range(min(len(own), 3)):
            kept = tuple(kernel.ranges.index(r) for r in own[:depth])
            yield Opt(OptOps.STAGE, number, kept, lanes[-1] if lanes else 0)
