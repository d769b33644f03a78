"""``python -m benchmarks.startup``: time of the import and of a first dot product, in fresh processes.

All times are beyond ``import numpy``. "Empty" and "filled" are the state of the library's disk cache.
"""
from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile

from benchmarks.process import environment, machine

LAZY = """
from {name} import Tensor
imported = perf_counter()
assert Tensor([1, 2]).dot(Tensor([3, 4])).numpy() == 11
"""
TORCH = """
import torch
imported = perf_counter()
assert torch.tensor([1, 2]).dot(torch.tensor([3, 4])).numpy() == 11
"""
SCRIPT = """
import json
from time import perf_counter
import numpy
start = perf_counter()
{body}
print(json.dumps([imported - start, perf_counter() - start]))
"""


def measure(name: str, python: str, cache: str) -> tuple[float, float]:
    """Return the seconds of the import, and of import and dot product together."""
    body = TORCH if name == "torch" else LAZY.format(name=name)
    done = subprocess.run([python, "-c", SCRIPT.format(body=body)], env=environment(python, cache),
                          cwd=tempfile.gettempdir(), capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1])
    imported, total = json.loads(done.stdout.splitlines()[-1])
    return imported, total


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.startup", description=__doc__.split("\n")[0])
    parser.add_argument("--torch", metavar="PYTHON", help="interpreter that has PyTorch")
    parser.add_argument("--tinygrad", metavar="PYTHON", help="interpreter that has tinygrad")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    systems = {"tinsmith": sys.executable, "torch": options.torch, "tinygrad": options.tinygrad}
    print(f"{machine()}\nmilliseconds beyond import numpy, medians of {options.rounds} rounds in turn\n")
    print(f"{'':10} {'import':>8} {'import + dot, empty cache':>26} {'filled cache':>13}")
    samples: dict[str, list[tuple[float, float, float]]] = {name: [] for name, python in systems.items() if python}
    errors = {name: "left out: no interpreter given" for name in systems if name not in samples}
    for round_ in range(options.rounds + 1):  # the first fills the operating system's file cache
        for name in [name for name in samples if name not in errors]:
            try:
                with tempfile.TemporaryDirectory() as cache:
                    (imported, empty), (_, filled) = (measure(name, systems[name], cache) for _ in range(2))
                samples[name] += [(imported, empty, filled)] if round_ else []
            except (RuntimeError, OSError) as e:
                errors[name] = str(e)
    for name in systems:
        if name in errors:
            print(f"{name:10} {errors[name]}")
        else:
            a, b, c = (1e3 * statistics.median(column) for column in zip(*samples[name]))
            print(f"{name:10} {a:8.0f} {b:26.0f} {c:13.0f}")


if __name__ == "__main__":
    main()
