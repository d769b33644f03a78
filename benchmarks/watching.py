"""``python -m benchmarks.watching``: the cost of tracing and profiling, switched off and on.

``--before FOLDER``: a checkout to compare with, such as one without the hooks. Each sample is a fresh process, in turn;
the best sample counts, since other processes only make times longer.
"""
from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.process import machine

ROOT = Path(__file__).parents[1]
SCRIPT = """
import contextlib, io, json, sys
from time import perf_counter
import numpy as np
from tinsmith import Tensor, TinyJit, nn

def best(call, times, turns=15):
    found = []
    for _ in range(turns):
        start = perf_counter()
        for _ in range(times):
            call()
        found.append((perf_counter() - start) / times)
    return min(found)

x = Tensor([1.0, 2.0, 3.0, 4.0]).realize()
add = lambda: (x + x).realize()
step = TinyJit(lambda t: (t + t).realize())
net = lambda n: nn.Linear(64, n)(nn.Linear(32, 64)(Tensor.empty(16, 32)).relu()).log_softmax().mean()
for call in (add, lambda: step(x), add, lambda: step(x), lambda: net(10).schedule()):
    call()
sizes = iter(range(11, 1000))
found = [best(add, 200), best(lambda: step(x), 500), best(lambda: net(next(sizes)).schedule(), 1, 6)]
print("found", json.dumps(found))
"""
CASES = ("tiny add", "tiny add, replayed", "making a program of 5 kernels")
WAYS: dict[str, dict[str, str]] = {"off": {}, "PROFILE=1": {"PROFILE": "1"}, "VIZ=2": {"VIZ": "2"}}


def measure(root: Path, settings: dict[str, str]) -> list[float]:
    """Return the seconds of each case in one fresh process."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "PYTHONPATH": str(root), "CACHE_DIR": folder, "THREADS": "1", **settings}
        done = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, cwd=folder, capture_output=True,
                              text=True)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    line = next(line for line in done.stdout.splitlines() if line.startswith("found "))
    found: list[float] = json.loads(line.removeprefix("found "))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.watching", description=__doc__.split("\n")[0])
    parser.add_argument("--before", type=Path, metavar="FOLDER", help="another checkout of the repository")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    columns = {**({"before": (options.before, {})} if options.before else {}),
               **{name: (ROOT, settings) for name, settings in WAYS.items()}}
    found: dict[str, list[list[float]]] = {name: [] for name in columns}
    for _ in range(options.rounds):
        for name, (root, settings) in columns.items():
            found[name].append(measure(root, settings))
    print(f"{machine()}; microseconds, best of {options.rounds} processes\n")
    print(f"{'':32}" + "".join(f"{name:>12}" for name in columns))
    for n, case in enumerate(CASES):
        print(f"{case:32}" + "".join(f"{min(times[n] for times in found[name]) * 1e6:12.1f}" for name in columns))


if __name__ == "__main__":
    main()
