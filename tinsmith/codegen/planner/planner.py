"""The planner: it prices the candidate schedules of a kernel with the target's data and applies the cheapest.

``structure`` classifies the kernel (contraction, reduced rows, scan, scatter, map). The generators of that structure
yield candidates: lists of opts, each with a price in cycles by cause. A candidate that turns out not to suit the kernel
is dropped, with the reason. Of the others the cheapest is applied, the first one of several with equal price. A
contraction that no tile suits falls back on the generators of row reductions.

A generator only offers legal candidates that fit the device. If an opt or a program is refused nevertheless, that is a
bug of the generator: with ``CHECK_IR=1`` the error is raised, else the next candidate is applied and
``KernelPlan.mistakes`` records the error.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain

from tinsmith.codegen.kernel import Kernel
from tinsmith.codegen.opt import Opt, OptOps
from tinsmith.codegen.planner.candidate import Candidate, Unfit, apply_if_it_fits, weight_of
from tinsmith.codegen.planner.cpu.dot_tiles import dot_ways
from tinsmith.codegen.planner.cpu.loops import finish, map_ways, scan_ways, thread_opts, why_alone
from tinsmith.codegen.planner.cpu.matrix_units import chain_ways, unit_ways
from tinsmith.codegen.planner.cpu.reductions import row_ways
from tinsmith.codegen.planner.cpu.register_tiles import tile_ways
from tinsmith.codegen.planner.cpu.sliding import sliding_ways
from tinsmith.codegen.planner.gpu.products import BLOCKS, Generator
from tinsmith.core.errors import ArgumentError
from tinsmith.core.settings import settings
from tinsmith.ir import Ops, UOp
from tinsmith.ir.algebra.sizes import TYPICAL
from tinsmith.ir.algebra.symbolic import simplify
from tinsmith.ir.structure import Contraction, Map, Role, Rows, Scan, Scatter, Structure, range_size, structure
from tinsmith.target.target import Target

LARGER = tuple(TYPICAL * 18**k for k in (1, 2, 3))  # none is a multiple of a large power of two: rests are not empty


@dataclass(frozen=True)
class KernelPlan:
    """The planner's choice for a kernel, in words.

    Attributes:
        structure: the class of the kernel ("contraction", "rows", …).
        chosen: the candidate that was applied.
        cycles: its expected cycles.
        other: the runner-up; empty if there was none.
        why: the reason why ``other`` lost.
        mistakes: candidates whose opts or programs were refused, although their generators offered them.
        alone: the reason why a large kernel runs on one worker; empty if it does not.
    """

    structure: str
    chosen: str
    cycles: float
    other: str = ""
    why: str = ""
    mistakes: tuple[str, ...] = ()
    alone: str = ""

    def __str__(self) -> str:
        beaten = f"; next best: {self.other}, {self.why}" if self.other else ""
        beaten += f"; one worker: {self.alone}" if self.alone else ""
        return f"{self.structure}: {self.chosen}{beaten}" + "".join(f"; refused (bug): {m}" for m in self.mistakes)


def plan(kernel: Kernel, target: Target, build: Callable[[Kernel], object]) -> KernelPlan:
    """Apply the cheapest candidate that suits ``kernel`` and whose program ``build`` accepts; return the choice and the
    runner-up.

    Raises:
        ArgumentError: with ``CHECK_IR=1``, if an opt that a generator offers, or a candidate's program, is refused.
    """
    found = structure(kernel.sink)
    chained = isinstance(found, Contraction) and found.chain
    name = type(found).__name__.lower() + (" of contractions" if chained else "")
    unfit, mistakes = list[tuple[str, str]](), list[str]()
    large = target.threads > 1 and weight_of(kernel) >= target.core.serial_work
    twin = of_fixed_size(kernel)
    for generate in generators(twin, target):
        ways = list[Candidate]()
        with _refusals("other candidates", unfit, mistakes):
            ways = sorted(generate(twin, target), key=lambda w: w.cycles)
        for at, way in enumerate(ways):
            trial = kernel.copied()
            with _refusals(way.what, unfit, mistakes):
                if twin is kernel:
                    way.apply(trial)
                else:
                    apply_as_to(twin, way, trial)
                alone = why_alone(trial) if large else ""
                build(trial)
                vars(kernel).update(vars(trial))
                others = ((w.what, why_not(way, w)) for w in ways[at + 1 :] if w.what != way.what)
                return KernelPlan(name, way.what, way.cycles, *next(chain(unfit, others), ("", "")), tuple(mistakes),
                            alone)
    build(kernel)
    return KernelPlan(name, "unchanged", 0.0, *next(iter(unfit), ("", "")), tuple(mistakes))


def of_fixed_size(kernel: Kernel) -> Kernel:
    """Return the kernel with its variables replaced by typical values, for which candidates are generated and priced;
    the kernel itself if it has no variables.

    The values are larger if some range has no element for the usual ones, as the full chunks of a long sum. The same
    opts apply to both kernels: a range of symbolic size runs in full tiles and a tail.
    """
    variables = kernel.of(Ops.VARIABLE)
    if not variables:
        return kernel
    found = _with_values(kernel, variables, TYPICAL)
    for larger in LARGER:
        if all(range_size(r) > 0 for r in found.ranges):
            return found
        trial = _with_values(kernel, variables, larger)
        found = trial if all(range_size(r) > 0 for r in trial.ranges) else found
    return found


def _with_values(kernel: Kernel, variables: list[UOp], value: int) -> Kernel:
    """Return the kernel with every variable replaced by ``value``, or by the next value that its bounds allow."""
    twin = kernel.copied()
    typical = {v: UOp.index(max(v.vmin, min(v.vmax, value))) for v in variables}
    twin.sink = simplify(kernel.sink.substitute(typical))
    twin.reorder()
    left = set(twin.of(Ops.RANGE))
    twin.order = [r for r in twin.order if r in left]
    return twin


def apply_as_to(twin: Kernel, way: Candidate, kernel: Kernel) -> None:
    """Apply to a kernel the opts that a candidate applies to its twin of fixed size.

    Raises:
        Unfit: if an opt needs a fixed size.
    """
    fixed, begun, target = twin.copied(), len(twin.opts), kernel.target
    way.apply(fixed)
    if target.threads > 1 and weight_of(kernel) >= target.core.serial_work and not any(
            r.arg[1] is Role.THREAD for r in fixed.order):
        thread_opts(fixed, target)  # a launch of a smaller size is serial (``Launch.growth``)
    if len(twin.order) != len(kernel.order):
        raise Unfit("with a typical size, the kernel has other loops")
    for opt in fixed.opts[begun:]:
        apply_if_it_fits(kernel, opt)


@contextmanager
def _refusals(what: str, unfit: list[tuple[str, str]], mistakes: list[str]) -> Iterator[None]:
    """Catch the refusal of candidate ``what`` and record its reason in ``unfit`` or ``mistakes``."""
    try:
        yield
    except Unfit as reason:
        unfit.append((what, f"not applicable: {reason}"))
    except ArgumentError as error:
        if settings.CHECK_IR:
            raise
        mistakes.append(f"{what}: {error.message}")


def why_not(chosen: Candidate, other: Candidate) -> str:
    """Return why ``other`` lost: its cycles relative to ``chosen``, and the cause of most of the difference.

    >>> a, b = (Candidate("", {"products": 100.0, "packing": cycles}, print) for cycles in (20.0, 50.0))
    >>> why_not(a, b), why_not(a, a)
    ('25 % more cycles, mostly packing', 'the same cycles')
    >>> why_not(a, a._replace(price={"products": 500.0}))
    '4.2× the cycles, mostly products'
    """
    part = max(other.price, key=lambda p: other.price[p] - chosen.price.get(p, 0.0), default="")
    ratio = other.cycles / chosen.cycles if chosen.cycles else math.inf
    if ratio <= 1:
        return "the same cycles"
    often = f"{ratio:.1f}× the" if ratio >= 2 else f"{100 * (ratio - 1):.2g} % more"
    return f"{often} cycles, mostly {part}"


def candidates(kernel: Kernel, target: Target) -> list[Candidate]:
    """Return the candidates of the first generator of a kernel's structure that offers any."""
    return next((ways for generate in generators(kernel, target) if (ways := list(generate(kernel, target)))), [])


def generators(kernel: Kernel, target: Target) -> tuple[Generator, ...]:
    """Return the generators of a kernel's structure, the most specific first; a later one is used only if no candidate
    of the earlier ones suits the kernel."""
    return GENERATORS[target.parallel][type(structure(kernel.sink))]


def _alone(kernel: Kernel, target: Target) -> Iterator[Candidate]:
    """Generate the candidate without thread blocks, if ``NOLOCALS`` is set."""
    if settings.NOLOCALS:
        yield Candidate("no thread blocks", {}, lambda k: k.apply(Opt(OptOps.NOLOCALS)))


# *** CPU ***


def _finished(ways: Callable[[Kernel, Target], Iterable[Candidate]], streams: bool) -> Generator:
    """Return a generator whose candidates end with ``finish``: prefetches, non-temporal stores, threads."""
    def generate(kernel: Kernel, target: Target) -> Iterator[Candidate]:
        work = weight_of(kernel)

        def applied(k: Kernel, way: Candidate) -> None:
            way.apply(k)
            finish(k, target, work, streams)

        for way in ways(kernel, target):
            yield way._replace(apply=partial(applied, way=way))
    return generate


def _as_it_is(kernel: Kernel, target: Target) -> Iterator[Candidate]:
    yield Candidate("loops unchanged", {}, lambda k: None)


_plain = (_finished(map_ways, True), _finished(_as_it_is, True))
# rows of symbolic size may be too long to be kept in local memory
_rows = (chain_ways, _finished(row_ways, True), _finished(partial(row_ways, keeps=False), True), *_plain)
_tiles = _finished(lambda kernel, target: chain(*(
    ways(kernel, target) for ways in (tile_ways, dot_ways, unit_ways, sliding_ways))), False)
CORES: dict[type[Structure], tuple[Generator, ...]] = {
    Contraction: (chain_ways, _tiles, *_rows), Rows: _rows, Scan: (_tiles, _finished(scan_ways, True), *_plain),
    Scatter: _plain, Map: _plain}
GENERATORS = {Role.LOOP: CORES, Role.GLOBAL: {of: (_alone, *ways) for of, ways in BLOCKS.items()}}
