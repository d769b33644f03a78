"""``python -m benchmarks eager``: small eager programs, not captured: one thread, warm, in turn with PyTorch.

Each row is a program of a few ops on tensors of 64 elements, whose time is the interpreter's: recording, the key of the
graph, the launch, the copy to the host. Times are processor time per call, medians of rounds; the number of Python
functions that one call executes, and of the files that they are in, do not depend on the machine.
"""
from __future__ import annotations

import argparse
import importlib.util
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

from benchmarks.process import machine
from benchmarks.timing import warm_up

TURN: Final = 0.02       # minimum seconds of a sample
WARM: Final = 100        # calls before the samples, after which each program and each size has been compiled
SIZES: Final = 4096      # elements of the vector that the growing slice is taken of
Call = Callable[[], object]
Op = Callable[..., Any]


def _ours() -> tuple[Op, Op, Op]:
    """Return the functions that make random values, compute a result, and compute a gradient."""
    from tinsmith import Tensor

    return (lambda *shape: Tensor.randn(*shape).realize(), lambda t: t.realize(),
            lambda y, x: y.gradient(x)[0].realize())


def _torch() -> tuple[Op, Op, Op]:
    import torch

    torch.set_num_threads(1)
    return torch.randn, lambda t: t, lambda y, x: torch.autograd.grad(y, x)[0]


def programs(system: str) -> dict[str, Call]:
    """Return the rows of ``tinsmith`` or ``torch``: name → call."""
    randn, realized, gradient = _ours() if system == "tinsmith" else _torch()
    x, w, long = randn(8, 8), randn(8, 8), randn(SIZES)
    w.requires_grad = True
    calls = iter(range(1, sys.maxsize))

    def ops(count: int) -> Any:
        y = x * 2.0
        for _ in range(count - 1):
            y = y + x
        return y.sum().item()

    return {
        "mul, sum, item": lambda: ops(1),
        "ten ops, item": lambda: ops(10),
        "gradient of a product's sum": lambda: gradient((x * w).sum(), w),
        "a constant that changes": lambda: (x * float(next(calls))).sum().item(),
        "A[i, j].item()": lambda: x[next(calls) % 8, 3].item(),
        "a slice that grows": lambda: (long[: next(calls) % SIZES + 1] * 2.0).sum().item(),
        "softmax, realize": lambda: realized(x.softmax(-1)),
    }


@contextmanager
def counted() -> Iterator[list[str]]:
    """Return a context manager with a list that receives the file of each Python function that the block executes."""
    files: list[str] = []

    def note(frame: FrameType, event: str, arg: object) -> None:
        if event == "call":
            files.append(frame.f_code.co_filename)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield files
    finally:
        sys.setprofile(before)
        del files[-1:]  # the end of this block is a call, too


def seconds(calls: list[Call], rounds: int) -> list[float]:
    """Return each call's processor time: medians of samples, taken in turn."""
    counts, found = [], [[] for _ in calls]  # type: list[int], list[list[float]]
    for call in calls:
        warm_up(call, 0, WARM)
        start = time.process_time()
        call()
        counts.append(max(1, int(TURN / max(time.process_time() - start, 1e-6))))
    for _ in range(rounds):
        for call, count, samples in zip(calls, counts, found):
            start = time.process_time()
            for _ in range(count):
                call()
            samples.append((time.process_time() - start) / count)
    return [statistics.median(samples) for samples in found]


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks eager", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", default="", metavar="NAME,...", help="rows whose names begin so; the default is all")
    parser.add_argument("--rounds", type=int, default=25, help="samples of each row and system (default 25)")
    options = parser.parse_args(arguments)
    os.environ["THREADS"] = "1"
    warnings.filterwarnings("ignore", "this line has made")
    systems = ["tinsmith", *(["torch"] if importlib.util.find_spec("torch") else [])]
    rows = [programs(system) for system in systems]
    print(f"{machine()}; processor time of one thread, µs\n")
    print(f"{'':32}{'ours':>9}{'torch':>9}{'ratio':>8}{'functions':>11}{'files':>7}")
    for name in rows[0]:
        if name.startswith(tuple(options.only.split(","))):
            mine, *peer = seconds([row[name] for row in rows], options.rounds)
            with counted() as files:
                rows[0][name]()
            theirs = f"{peer[0] * 1e6:>9.1f}{mine / peer[0]:>8.1f}" if peer else f"{'–':>9}{'–':>8}"
            print(f"{name:32}{mine * 1e6:>9.1f}{theirs}{len(files):>11}{len(set(files)):>7}", flush=True)
