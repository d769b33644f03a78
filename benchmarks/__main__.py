"""``python -m benchmarks``: Tinsmith, PyTorch and tinygrad side by side, each in its own process; medians.

Only one process works at a time, and the next one waits until the thread pool of the last has stopped spinning: two
pools that spin on the same cores falsify each other's times. Each turn starts with untimed calls: an idle virtual
machine may run all its processors on one core and needs some milliseconds of work until each has its own again.
"""
from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.cases import BY_NAME, CASES, Case
from benchmarks.peers import VARIANTS
from benchmarks.process import Died, Process, machine

PAUSE = 0.4         # seconds between turns
SAMPLES = 20        # maximum number of samples per turn
TURN = 0.4          # maximum duration of a turn in seconds
ENOUGH = 20.0       # total seconds of samples per system and case after which no more turns are taken
COLD_ROUNDS = 3     # maximum number of fresh processes


@dataclass
class Cell:
    """One table cell: the samples of one column, or the error that prevented them."""

    seconds: list[float] = field(default_factory=list)
    error: str = ""

    def value(self, case: Case) -> float | None:
        if self.error or not self.seconds:
            return None
        return min(self.seconds) if case.best else statistics.median(self.seconds)


Column = tuple[str, str]                # system, variant
Row = tuple[str, Case, dict[Column, Cell]]


class Runner:
    """The workers of the available systems, and the table rows that they measure."""

    def __init__(self, pythons: dict[str, str], rounds: int) -> None:
        self.pythons, self.rounds = pythons, rounds
        self.columns: list[Column] = [(s, v) for s in pythons for v in VARIANTS[s]]
        self.workers: dict[str, Process] = {}

    def worker(self, system: str) -> Process:
        if system not in self.workers or not self.workers[system].alive:
            self.workers[system] = Process(system, self.pythons[system])
        return self.workers[system]

    def rows(self, case: Case) -> Iterator[Row]:
        if case.fresh:
            yield from self._fresh(case)
        else:
            yield case.name, case, self._steady(case)

    def _ask(self, process: Process, case: Case, column: Column, cell: Cell, cold: bool = False) -> None:
        if cell.error or sum(cell.seconds) * case.loops > ENOUGH:
            return
        try:
            cell.seconds += process.ask(case=case.name, variant=column[1], samples=SAMPLES, budget=TURN, cold=cold)
        except Died as e:
            cell.error = str(e)
        time.sleep(PAUSE)

    def _steady(self, case: Case) -> dict[Column, Cell]:
        cells = {column: Cell() for column in self.columns}
        for _ in range(self.rounds):
            for column, cell in cells.items():
                self._ask(self.worker(column[0]), case, column, cell)
        return cells

    def _fresh(self, case: Case) -> Iterator[Row]:
        first, second = ({column: Cell() for column in self.columns} for _ in range(2))
        for _ in range(min(self.rounds, COLD_ROUNDS)):
            for column in self.columns:
                if column[1] == "jit":  # a first call cannot be a JIT replay
                    continue
                with tempfile.TemporaryDirectory(prefix="benchmarks-") as cache:
                    for cells in (first, second):
                        with contextlib.closing(Process(column[0], self.pythons[column[0]], cache)) as process:
                            self._ask(process, case, column, cells[column], cold=True)
        yield f"{case.name}, empty cache", case, first
        yield f"{case.name}, 2nd process", case, second

    def close(self) -> None:
        for process in self.workers.values():
            process.close()


def _time(seconds: float) -> str:
    for scale, unit in ((1, "s"), (1e3, "ms")):
        if seconds * scale >= 1:
            return f"{seconds * scale:.3g} {unit}" if seconds * scale < 1000 else f"{seconds * scale:.0f} {unit}"
    return f"{seconds * 1e6:.3g} µs"


def _cells(row: Row, columns: list[Column]) -> list[str]:
    """Return the texts of a row: name, time and rate per column, and Tinsmith's ratio to each peer's best variant."""
    name, case, cells = row
    texts, best = [", ".join(filter(None, [name, "best" * case.best, case.unit]))], dict[str, float]()
    for column in columns:
        value = cells[column].value(case)
        if value is None:
            texts.append(cells[column].error[:14] or "–")
            continue
        best[column[0]] = min(value, best.get(column[0], value))
        texts.append(_time(value) + (f"  {case.work / value / 1e9:,.0f}" if case.work else ""))
    ours = best.get("tinsmith")
    for peer in dict.fromkeys(system for system, _ in columns if system != "tinsmith"):
        texts.append(f"{ours / best[peer]:.2f}" if ours and peer in best else "–")
    return texts


def _header(columns: list[Column]) -> list[str]:
    peers = dict.fromkeys(system for system, _ in columns if system != "tinsmith")
    return ["", *(" ".join(c).strip() for c in columns), *(f"ours/{peer}" for peer in peers)]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.split("\n")[0])
    parser.add_argument("--torch", metavar="PYTHON", help="interpreter that has PyTorch")
    parser.add_argument("--tinygrad", metavar="PYTHON", help="interpreter that has tinygrad")
    parser.add_argument("--without-ours", action="store_true", help="measure the peers alone")
    parser.add_argument("--only", metavar="NAME,...", default="", help="cases whose names begin so; the default is all")
    parser.add_argument("--rounds", type=int, default=5, help="turns of every system per case (default 5)")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table there too")
    options = parser.parse_args()
    wanted = tuple(name.strip() for name in options.only.split(","))
    options.cases = [case for case in CASES if case.name.startswith(wanted)]
    if not options.cases:
        parser.error(f"no case begins with {options.only!r}; there are: {', '.join(BY_NAME)}")
    return options


def main() -> None:
    options = _options()
    pythons = {} if options.without_ours else {"tinsmith": sys.executable}
    lines = [machine()]
    for peer in ("torch", "tinygrad"):
        python = getattr(options, peer)
        if python and os.access(python, os.X_OK):
            pythons[peer] = python
        else:
            lines.append(f"{peer} is left out: " + (f"no interpreter {python}" if python else f"no --{peer} PYTHON"))
    runner = Runner(pythons, options.rounds)
    lines.append(", ".join(f"{system} {runner.worker(system).version}" for system in pythons)
                 + f"; {options.rounds} rounds in turn with {PAUSE} s between, medians; load {os.getloadavg()[0]:.1f}")
    print("\n".join(lines), end="\n\n", flush=True)

    table, notes = [_header(runner.columns)], dict[str, str]()

    def show(texts: list[str]) -> None:
        widths = [33, *[14] * len(runner.columns), *[10] * len(texts)]
        print(" ".join(text.ljust(width) for text, width in zip(texts, widths)).rstrip(), flush=True)

    show(table[0])
    try:
        for case in options.cases:
            for row in runner.rows(case):
                table.append(_cells(row, runner.columns))
                show(table[-1])
                notes |= {f"{row[0]}, {' '.join(c).strip()}": cell.error for c, cell in row[2].items() if cell.error}
    finally:
        runner.close()
    errors = [f"{where}: {error}" for where, error in notes.items()]
    print("\n" + "\n".join(errors) if errors else "")
    if options.markdown:
        table.insert(1, ["---"] * len(table[0]))
        text = "\n".join("| " + " | ".join(row) + " |" for row in table)
        options.markdown.write_text("  \n".join(lines) + f"\n\n{text}\n" + "".join(f"\n- {e}" for e in errors) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["cuda"]:
        from benchmarks import cuda

        cuda.main(sys.argv[2:])
    elif sys.argv[1:2] == ["check"]:
        from benchmarks import check

        sys.exit(check.main(sys.argv[2:]))
    elif sys.argv[1:2] == ["models"]:
        from benchmarks import models

        models.main(sys.argv[2:])
    elif sys.argv[1:2] == ["cliffs"]:
        from benchmarks import cliffs

        sys.exit(cliffs.main(sys.argv[2:]))
    elif sys.argv[1:2] == ["eager"]:
        from benchmarks import eager

        eager.main(sys.argv[2:])
    elif sys.argv[1:2] == ["symbolic"]:
        from benchmarks import symbolic

        sys.exit(symbolic.main(sys.argv[2:]))
    elif sys.argv[1:2] == ["zoo"]:
        from benchmarks.zoo import runner

        sys.exit(runner.main(sys.argv[2:]))
    else:
        main()
