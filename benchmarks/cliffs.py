"""``python -m benchmarks cliffs``: find random programs that run faster with ``.contiguous()`` between their ops.

A program is a chain of 2 to 6 ops on one 4-d value: convolutions, pools, norms, softmax, products, pads, permutes,
concatenations, gathers, scans; every third one also computes a gradient. It is captured as written, with
``.contiguous()`` after every op, and with it after one op drawn at random, and measured in processor time, in turn.
Fusion that is chosen by price is never slower than a stored value: a program that takes more than `CLIFF` times the
best of the others shows a wrong price, and is printed; with ``--plans``, with the plans of both.
"""
from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.process import machine

CLIFF: Final = 1.3
LARGEST: Final = 1 << 21   # elements of the largest value
SAMPLES, TURN = 5, 0.02    # turns of each variant; minimum seconds of one
Op = Callable[[Any], Any]


@dataclass(frozen=True)
class Step:
    """An op of a program, with its text."""

    text: str
    apply: Op


@dataclass
class Program:
    """A chain of ops on a value of ``shape``; with ``gradient``, the gradient of the result's sum of squares too."""

    shape: tuple[int, ...]
    steps: list[Step]
    gradient: bool
    seed: int

    def __str__(self) -> str:
        chain = "".join(s.text for s in self.steps)
        return f"seed {self.seed}: x{self.shape}{chain}" + " with gradient" * self.gradient

    def values(self, x: Any, stored: frozenset[int]) -> list[Any]:
        """Return the result, and the gradient if it has one; results of the steps in ``stored`` are contiguous."""
        y = x
        for n, step in enumerate(self.steps):
            y = step.apply(y).contiguous() if n in stored else step.apply(y)
        results = [y, *(y * y).sum().gradient(x)] if self.gradient else [y]
        return [r.contiguous() for r in results]  # in memory of its own, not a view of the argument


def _weights(*shape: int) -> Any:
    from tinsmith import Tensor

    return Tensor.randn(*shape).mul(0.1).realize()


def _convolution(r: random.Random, shape: tuple[int, ...]) -> Step | None:
    k, step = r.choice([1, 1, 3, 3, 5]), r.choice([1, 1, 1, 2])
    channels = shape[1]
    groups = r.choice([1, 1, 1, channels])
    out = channels if groups > 1 else r.choice([8, 16, 24, 32, 64, 100])
    if min(shape[2:]) < k:
        return None
    w = _weights(out, channels // groups, k, k)
    return Step(f".conv2d({out}, {k}, stride={step}, groups={groups})",
                lambda y: y.conv2d(w, stride=step, padding=k // 2, groups=groups))


def _pool(r: random.Random, shape: tuple[int, ...]) -> Step | None:
    k, step, kind = r.choice([2, 3]), r.choice([1, 2]), r.choice(["max_pool2d", "avg_pool2d"])
    if min(shape[2:]) < k:
        return None
    return Step(f".{kind}({k}, stride={step})", lambda y: getattr(y, kind)((k, k), stride=step))


def _norm(r: random.Random, shape: tuple[int, ...]) -> Step:
    axes = r.choice([(3,), (1,), (2, 3), (0, 2, 3), (1, 2, 3)])
    return Step(f".normalized{axes}", lambda y: (y - y.mean(axes, keepdim=True)) * (
        y.var(axes, keepdim=True, correction=0) + 1e-5).rsqrt())


def _softmax(r: random.Random, shape: tuple[int, ...]) -> Step:
    axis = r.choice([-1, -1, 1, 2])
    return Step(f".softmax({axis})", lambda y: y.softmax(axis))


def _product(r: random.Random, shape: tuple[int, ...]) -> Step:
    if r.random() < 0.3:
        return Step(" @ own transpose", lambda y: y @ y.transpose(2, 3) * 0.1)
    w = _weights(shape[3], r.choice([16, 32, 64, 100]))
    return Step(f" @ ({w.shape[0]}, {w.shape[1]})", lambda y: y @ w)


def _pad(r: random.Random, shape: tuple[int, ...]) -> Step:
    a, b, c, d = (r.randrange(3) for _ in range(4))
    return Step(f".pad({a, b, c, d})", lambda y: y.pad((a, b, c, d)))


def _permute(r: random.Random, shape: tuple[int, ...]) -> Step:
    order = r.choice([(0, 2, 3, 1), (0, 3, 1, 2), (0, 1, 3, 2), (1, 0, 2, 3)])
    return Step(f".permute{order}", lambda y: y.permute(order))


def _concatenation(r: random.Random, shape: tuple[int, ...]) -> Step:
    axis = r.choice([1, 2, 3])
    return Step(f".cat(relu, {axis})", lambda y: y.cat(y.relu(), dim=axis))


def _gather(r: random.Random, shape: tuple[int, ...]) -> Step:
    from tinsmith import Tensor

    axis = r.choice([1, 2, 3])
    rows = Tensor([r.randrange(shape[axis]) for _ in range(shape[axis])]).realize()
    return Step(f"[rows of {axis}]", lambda y: y[(slice(None),) * axis + (rows,)])


def _scan(r: random.Random, shape: tuple[int, ...]) -> Step:
    axis = r.choice([1, 2, 3])
    return Step(f".cumsum({axis})", lambda y: y.cumsum(axis) * 0.1)


def _sums(r: random.Random, shape: tuple[int, ...]) -> Step:
    axis = r.choice([1, 2, 3])
    return Step(f" - sum({axis})/8", lambda y: y - y.sum(axis, keepdim=True) * 0.125)


def _elementwise(r: random.Random, shape: tuple[int, ...]) -> Step:
    name = r.choice(["relu", "gelu", "tanh", "sigmoid", "silu"])
    return Step(f".{name}()", lambda y: getattr(y, name)())


def _upsample(r: random.Random, shape: tuple[int, ...]) -> Step:
    return Step(".repeated twice", lambda y: y.repeat_interleave(2, 2).repeat_interleave(2, 3))


KINDS: Final = (_convolution, _convolution, _pool, _norm, _norm, _softmax, _product, _pad, _permute, _concatenation,
                _gather, _scan, _sums, _elementwise, _elementwise, _upsample)


def draw(seed: int) -> Program:
    """Return the program of a seed: the same ops, sizes and weights each time."""
    from tinsmith import Tensor

    r = random.Random(seed)
    Tensor.manual_seed(seed)
    shape = (r.choice([1, 2, 4, 8]), r.choice([3, 8, 16, 32, 64]), r.choice([7, 14, 28, 32, 50]),
             r.choice([7, 14, 28, 32, 56]))
    first, steps, length = shape, [], r.randint(2, 6)
    while len(steps) < length:
        step = r.choice(KINDS)(r, shape)
        after = step and step.apply(Tensor.empty(*shape)).shape
        if step and after and len(after) == 4 and Tensor.empty(*after).numel() <= LARGEST and min(after) > 0:
            steps.append(step)
            shape = after
    return Program(first, steps, seed % 3 == 0, seed)


def captured(program: Program, stored: frozenset[int]) -> tuple[Callable[[], object], Any]:
    """Return a replay of the program with these steps stored, and its captured function."""
    from tinsmith import Tensor, TinyJit

    jit = TinyJit(lambda x: Tensor.realize(*program.values(x, stored)))
    x = Tensor.randn(*program.shape, requires_grad=program.gradient).realize()
    for _ in range(3):
        jit(x)
    return lambda: jit(x), jit


def seconds(calls: list[Callable[[], object]]) -> list[float]:
    """Return each call's processor time: medians of turns, taken one after the other."""
    counts, found = [1] * len(calls), [[] for _ in calls]  # type: list[int], list[list[float]]
    for turn in range(-1, SAMPLES):
        for n, call in enumerate(calls):
            start = time.process_time()
            for _ in range(counts[n]):
                call()
            spent = (time.process_time() - start) / counts[n]
            if turn < 0:
                counts[n] = max(1, min(1000, int(TURN / max(spent, 1e-6))))
            else:
                found[n].append(spent)
    return [statistics.median(f) for f in found]


@dataclass
class Finding:
    """The measured times of a program: as written, and of its best variant with stored steps."""

    program: Program
    written: float
    best: float
    stored: frozenset[int]

    @property
    def ratio(self) -> float:
        return self.written / self.best


def measure(program: Program) -> Finding:
    """Measure a program as written against its variants with stored steps."""
    steps = range(len(program.steps))
    one = random.Random(~program.seed).choice(steps)
    variants = [frozenset[int](), frozenset(steps), frozenset([one])]
    times = seconds([captured(program, v)[0] for v in variants])
    best = min(range(1, len(times)), key=times.__getitem__)
    return Finding(program, times[0], times[best], variants[best])


def show(found: Finding) -> None:
    """Print the plans of both variants of a finding."""
    for stored in (frozenset[int](), found.stored):
        print(f"  stored {sorted(stored)}" if stored else "  as written")
        print("    " + str(captured(found.program, stored)[1].plan()).replace("\n", "\n    "))


def main(arguments: list[str]) -> int:
    """Run the campaign; return 1 if a program is a cliff."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks cliffs", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--programs", type=int, default=100, help="programs to draw (default 100)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first one (default 0)")
    parser.add_argument("--minutes", type=float, default=1e9, help="stop after this time")
    parser.add_argument("--plans", action="store_true", help="print the plans of the cliffs")
    options = parser.parse_args(arguments)
    os.environ.setdefault("THREADS", "1")
    os.environ["DYNAMIC"] = "0"
    warnings.filterwarnings("ignore", "this line has made")
    print(f"{machine()}; processor time, one thread", flush=True)
    found: list[Finding] = []
    start = time.perf_counter()
    for seed in range(options.seed, options.seed + options.programs):
        if time.perf_counter() - start > 60 * options.minutes:
            break
        program = draw(seed)
        result = measure(program)
        if result.ratio > CLIFF:  # a second look: machines are noisy
            again = measure(program)
            result = min(result, again, key=lambda f: f.ratio)
        found.append(result)
        if result.ratio > CLIFF:
            print(f"{result.ratio:5.2f}×  {result.written * 1e6:9,.0f} µs  stored {sorted(result.stored)}  {program}",
                  flush=True)
            if options.plans:
                show(result)
    ratios = sorted(f.ratio for f in found)
    cliffs = [f for f in found if f.ratio > CLIFF]
    print(f"{len(found)} programs: {len(cliffs)} above {CLIFF}, worst {ratios[-1]:.2f}, "
          f"median {statistics.median(ratios):.2f}")
    return int(bool(cliffs))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
