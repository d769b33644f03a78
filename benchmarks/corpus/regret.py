"""Regret of the planner: the time of the chosen opts over that of the best candidate, measured in alternation.

Candidates of a kernel are the cheapest that the planner's generators offer, the choice without matrix units, no opts at
all, and the neighbours of the choice that the model prices lowest: one opt more, or the choice cut off before one of
its last opts. Each is compiled, compared with the default program and timed by the child process of ``BEAM``, the best
of several rounds; the fastest is then timed in turn with the choice. If their times do not differ significantly, the
ratio is 1.
"""
from __future__ import annotations

import math
import random
import statistics
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.corpus import record
from benchmarks.corpus.programs import CorpusProgram
from tinsmith.backend.device import Device
from tinsmith.backend.machine import machine, processor
from tinsmith.codegen.compile_kernel import begin, choose
from tinsmith.codegen.kernel import Kernel
from tinsmith.codegen.opt import OptOps
from tinsmith.codegen.planner.candidate import Candidate, Unfit
from tinsmith.codegen.planner.planner import candidates as planned
from tinsmith.codegen.planner.roofline import estimate
from tinsmith.core.errors import ArgumentError
from tinsmith.core.settings import Context
from tinsmith.inspect.search.search import COPIES, Trial, actions, copies, why_not
from tinsmith.inspect.search.trial import TrialRequest
from tinsmith.ir import UOp

FOLDER = Path(__file__).parent / "regret"
ASKED = 1.05
OFFERED = 8  # candidates of the planner that are measured
NEIGHBOURS = 12  # and lists of opts beside its choice
CUT = 3  # last opts that the choice may be cut off before
TURNS = 15
BUDGET = 0.02  # seconds of a turn


class Regret(NamedTuple):
    """The regret of one kernel: time of the chosen opts over the best with a 90 % interval, and both lists of opts."""

    program: str
    kernel: str
    ratio: float
    low: float
    high: float
    chosen: str
    best: str

    def __str__(self) -> str:
        better = "" if self.best == self.chosen else f"\n    better: {self.best}\n    chosen: {self.chosen}"
        return f"{self.program}, {self.kernel}: {self.ratio:.3f} ({self.low:.3f} to {self.high:.3f}){better}"


def candidates(sink: UOp, device: str) -> list[Kernel]:
    """Return the choice, then the candidates to measure, without repetitions."""
    target = Device[device].renderer.target
    plain = begin(sink, target)
    chosen, without = plain.copied(), plain.copied()
    choose(chosen, target)
    with Context(TC=0):
        choose(without, target)
    ways = sorted(planned(plain, target), key=lambda w: w.cycles)[:OFFERED]
    offered = [k for way in ways if (k := _applied(plain, way)) is not None]
    near = [*_longer(chosen, device), *_cut_off(plain, chosen)]
    near.sort(key=lambda k: estimate(k, machine(device)).seconds)
    found: dict[tuple[UOp, tuple[UOp, ...]], Kernel] = {}
    for k in (chosen, without, plain, *offered, *near[:NEIGHBOURS]):
        found.setdefault((k.sink, tuple(k.order)), k)
    return list(found.values())


def _applied(plain: Kernel, way: Candidate) -> Kernel | None:
    """Return the kernel with a candidate's opts; None if they are illegal."""
    k = plain.copied()
    try:
        way.apply(k)
    except Unfit:
        return None
    return k


def _longer(chosen: Kernel, device: str) -> Iterator[Kernel]:
    for opt in actions(chosen, Device[device].renderer.target):
        more = chosen.copied()
        try:
            more.apply(opt)
        except (ArgumentError, AssertionError):
            continue
        if copies(more) <= COPIES:
            yield more


def _cut_off(plain: Kernel, chosen: Kernel) -> Iterator[Kernel]:
    for count in range(1, min(CUT, len(chosen.opts)) + 1):
        shorter = plain.copied()
        for opt in chosen.opts[:-count]:
            shorter.apply(opt)
        yield shorter


def of_kernel(program: str, sink: UOp, device: str, alone: bool = False) -> Regret | None:
    """Return the regret of a kernel; None if it cannot be searched or is too slow.

    Args:
        alone: by the processor's time of one worker, for a machine that others use.
    """
    if why_not(sink, device) is not None:
        return None
    trial = Trial(TrialRequest(device, sink, budget=BUDGET, processor=alone))
    if trial.prepare()["state"] != "ready":
        return None
    found = candidates(sink, device)
    for k in found if alone else ():
        k.opts = [o for o in k.opts if o.op is not OptOps.THREAD]
    chosen, *others = found
    times = [(t, k) for k in others if (t := trial(k)) is not None]
    best = min(times, key=lambda tk: tk[0], default=(0.0, chosen))[1]
    ratios = []
    for _ in range(TURNS):
        a, b = trial(chosen), trial(best)
        if a is None or b is None:
            return None
        ratios.append(a / b)
    low, high = interval(ratios)
    if low <= 1 <= high:  # noise: the better of two that are equal looks better
        best = chosen
    texts = [" ".join(map(record.short, k.opts)) or "none" for k in (chosen, best)]
    ratio = max(statistics.median(ratios), 1.0) if best is not chosen else 1.0
    return Regret(program, chosen.name(), ratio, low, high, *texts)


def interval(ratios: Sequence[float]) -> tuple[float, float]:
    """Return the 90 % interval of the median, by resampling the measurements (Efron's bootstrap).

    >>> interval([2.0, 2.0, 2.0])
    (2.0, 2.0)
    """
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(400))
    return medians[20], medians[-21]


def measured(programs: Iterable[CorpusProgram], device: str, alone: bool) -> Iterator[Regret]:
    """Yield the regret of each kernel of some programs, each kernel once."""
    seen = set[UOp]()
    for program in programs:
        for step in record.steps(program, device):
            sink = step.item.sink if step.item is not None else None
            if sink is not None and sink not in seen:
                seen.add(sink)
                found = of_kernel(program.name, sink, device, alone)
                if found is not None:
                    yield found


def report(programs: Sequence[CorpusProgram], device: str, alone: bool = False) -> bool:
    """Measure, print, and store the regret for this kind of machine; return True if it is within the requested
    limit."""
    found = []
    for one in measured(programs, device, alone):
        found.append(one)
        print(one, flush=True)
    if not found:
        print("no kernel of these can be measured")
        return False
    mean = math.exp(statistics.fmean(math.log(r.ratio) for r in found))
    worst = max(found, key=lambda r: r.ratio)
    print(f"{len(found)} kernels on {processor()}: chosen over best, geometric mean {mean:.3f} (asked: {ASKED}), "
          f"worst {worst.ratio:.3f}: {worst.program}, {worst.kernel}")
    keep(found)
    return mean <= ASKED


def keep(found: Sequence[Regret]) -> None:
    """Store the lines of this kind of machine; keep those of kernels that were not measured."""
    path = FOLDER / ("".join(c if c.isalnum() else "_" for c in processor()) + ".txt")
    lines = path.read_text().splitlines() if path.exists() else []
    kept = {tuple(line.split("\t")[:2]): line for line in lines}
    for r in found:
        numbers = [f"{x:.3f}" for x in (r.ratio, r.low, r.high)]
        kept[r.program, r.kernel] = "\t".join([r.program, r.kernel, *numbers, r.chosen, r.best])
    FOLDER.mkdir(exist_ok=True)
    path.write_text("\n".join(kept[key] for key in sorted(kept)) + "\n")
