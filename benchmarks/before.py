"""``python -m benchmarks.before FOLDER``: this checkout of Tinsmith compared with an earlier one, in turn.

Times are one thread's processor time, which stays comparable on a machine that others use. Each round asks both for the
median of a few captured calls; a row shows the median of the rounds' ratios, with their minimum and maximum.
"""
from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks.cases import CASES, Case
from benchmarks.process import Died, Process, machine

SAMPLES, TURN = 10, 0.3  # maximum number of calls per turn, and its maximum duration in seconds


def ratios(now: Process, before: Process, case: Case, rounds: int) -> tuple[list[float], list[float]]:
    """Return, for each round, the seconds of a call of this checkout, and the ratio to the earlier checkout's."""
    seconds, found = list[float](), list[float]()
    for turn in range(rounds):
        pair = {}
        for process in (now, before) if turn % 2 else (before, now):
            pair[process] = statistics.median(process.ask(case=case.name, variant="jit", samples=SAMPLES, budget=TURN,
                                                          cold=False, processor=True))
        seconds.append(pair[now])
        found.append(pair[now] / pair[before])
    return seconds, found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.before", description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, help="the other checkout")
    parser.add_argument("--only", default="", help="cases whose names begin so, with commas between")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    os.environ["THREADS"] = "1"
    print(machine(), f"load {os.getloadavg()[0]:.1f}", sep="; ", end="\n\n")
    print(f"{'':46}{'now, ms':>10}{'now/before':>12}   least to greatest")
    medians = list[float]()
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other, \
            contextlib.closing(Process("tinsmith", sys.executable, one)) as now, \
            contextlib.closing(Process("tinsmith", sys.executable, other, str(options.folder.resolve()))) as before:
        for case in CASES:
            if case.fresh or not case.name.startswith(tuple(options.only.split(","))):
                continue
            try:
                seconds, found = ratios(now, before, case, options.rounds)
            except Died as error:
                print(f"{case.name:46}{error}")
                continue
            medians.append(statistics.median(found))
            print(f"{case.name:46}{statistics.median(seconds) * 1e3:>10.3f}{medians[-1]:>12.2f}   "
                  f"{min(found):.2f} to {max(found):.2f}", flush=True)
    if medians:
        print(f"\ngeometric mean of {len(medians)}: {statistics.geometric_mean(medians):.3f}")


if __name__ == "__main__":
    main()
