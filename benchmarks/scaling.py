"""``python -m benchmarks.scaling``: first-call time of programs with n and 2n operations, for growing n.

Each runs in a fresh process with an empty disk cache; medians of processor seconds of building, scheduling, compiling
and running, which a busy machine changes little.
"""
from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import process_time

import numpy as np

from benchmarks.process import environment, machine
from tinsmith import Tensor


def sines(n: int) -> list[Tensor]:
    """Gradients through a chain of functions; all intermediate values are needed."""
    x = y = Tensor(np.ones(16, np.float32), requires_grad=True)
    for k in range(n):
        y = y * 1.0001 + 0.5 if k % 2 else y.sin()
    y.sum().backward()
    return [x.grad] if x.grad is not None else []


def sums(n: int) -> list[Tensor]:
    """Gradients through a chain of additions of one leaf."""
    x = y = Tensor(np.ones(16, np.float32), requires_grad=True)
    for _ in range(n):
        y = y + x
    y.sum().backward()
    return [x.grad] if x.grad is not None else []


def cats(n: int) -> list[Tensor]:
    """Concatenations of concatenations."""
    x = y = Tensor(np.ones(4, np.float32))
    for _ in range(n):
        y = y.cat(x)
    return [y]


def setitems(n: int) -> list[Tensor]:
    """Elements set one by one before anything is realized."""
    y = Tensor.zeros(n).contiguous()
    for k in range(n):
        y[k] = k
    return [y]


def lstm(n: int) -> list[Tensor]:
    """Gradients of an LSTM of 32 units written as a loop over ``n`` steps."""
    rng = np.random.default_rng(0)
    w = Tensor((rng.standard_normal((64, 128)) * 0.1).astype(np.float32), requires_grad=True)
    b = Tensor(np.zeros(128, np.float32), requires_grad=True)
    steps = Tensor(rng.standard_normal((n, 8, 32)).astype(np.float32))
    h = c = Tensor.zeros(8, 32)
    for t in range(n):
        i, f, g, o = (steps[t].cat(h, dim=1) @ w + b).chunk(4, 1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
    h.square().sum().backward()
    return [p.grad for p in (w, b) if p.grad is not None]


PROGRAMS: dict[str, tuple[Callable[[int], list[Tensor]], tuple[int, ...]]] = {
    "sines": (sines, (3000, 6000, 12500, 25000, 50000, 100000)),
    "sums": (sums, (3000, 6000, 12500, 25000, 50000, 100000)),
    "cats": (cats, (250, 500, 1000, 2000)),
    "setitems": (setitems, (250, 500, 1000, 2000, 4000)),
    "lstm": (lstm, (8, 16, 32, 64, 128)),
}


def seconds(name: str, n: int) -> float:
    """Return the processor seconds of the first call with ``n`` operations in a fresh process."""
    with tempfile.TemporaryDirectory() as cache:
        env = {**environment(sys.executable, cache), "PYTHONPATH": str(Path(__file__).parents[1])}
        done = subprocess.run([sys.executable, "-m", "benchmarks.scaling", "--one", name, str(n)], env=env,
                              capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1])
    return float(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description=__doc__.split("\n")[0])
    parser.add_argument("--only", metavar="NAME,...", default=",".join(PROGRAMS), help="programs; the default is all")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--one", nargs=2, metavar=("NAME", "N"), help="one call in this process")
    options = parser.parse_args()
    if options.one:
        name, n = options.one
        sums(1)[0].realize()  # one-time loading is not measured
        start = process_time()
        Tensor.realize(*PROGRAMS[name][0](int(n)))
        print(process_time() - start)
        return
    print(f"{machine()}\nprocessor seconds of the first call, medians of {options.rounds}; the ratio to half as many\n")
    print("| program | operations | seconds | ratio |\n| --- | --- | --- | --- |")
    for name in options.only.split(","):
        before: tuple[int, float] | None = None
        for n in PROGRAMS[name][1]:
            took = statistics.median(seconds(name, n) for _ in range(options.rounds))
            ratio = f"{took / before[1]:.2f}" if before else "–"
            print(f"| {name} | {n:,} | {took:.2f} | {ratio} |", flush=True)
            before = n, took


if __name__ == "__main__":
    main()
