"""``PROFILE=1``: which kernels and copies took the time, as a table at the end of the program.

Everything runs one kernel at a time then, so that each can be timed: the total is more than without it.
"""
from __future__ import annotations

import atexit
import os
from dataclasses import dataclass, field

from tinsmith.backend.machine import machine
from tinsmith.core.counters import Ran
from tinsmith.core.dtypes import dtypes
from tinsmith.core.terminal import WIDTH, show
from tinsmith.schedule.texts import cut, percent, plural, time_text

ROWS = 40  # of the table; what took less time is one row


@dataclass
class Row:
    """One kernel or kind of copy: how often it ran and how long that took."""

    ran: Ran
    runs: int = 0
    total: float = 0.0
    best: float = field(default=float("inf"))

    @property
    def mean(self) -> float:
        return self.total / self.runs


_rows: dict[tuple[str, str, tuple[str, ...]], Row] = {}


def note(ran: Ran) -> None:
    """Count what ran; the first call makes sure that the table is printed at the end."""
    if not _rows:
        atexit.register(_print_at_exit, os.getpid())
    row = _rows.setdefault((ran.device, ran.name, ran.origin), Row(ran))
    row.runs += 1
    row.total += ran.seconds
    row.best = min(row.best, ran.seconds)


def reset() -> None:
    """Forget what was counted."""
    _rows.clear()


def table() -> str:
    """What took the time so far, the longest first, at most 120 columns wide; empty if nothing ran."""
    rows = sorted(_rows.values(), key=lambda r: -r.total)
    total = sum(r.total for r in rows)
    if not rows:
        return ""
    kernels = [r for r in rows if r.ran.kind == "kernel"]
    lines = [f"profile: {plural(sum(r.runs for r in kernels), 'launch')} of {plural(len(kernels), 'kernel')} and "
             f"{plural(sum(r.runs for r in rows) - sum(r.runs for r in kernels), 'copy')} in {time_text(total)}",
             " share    total   runs     mean     best roofline  GFLOP/s   GB/s  "
             "device   kernel                computes"]
    for row in rows[:ROWS]:
        lines.append(_line(row, total))
    rest = rows[ROWS:]
    if rest:
        seconds = sum(r.total for r in rest)
        share = percent(seconds / max(total, 1e-12))
        lines.append(f"{share:>6} {time_text(seconds):>8} {sum(r.runs for r in rest):6d} {len(rest)} others")
    if any(not machine(d).measured for d in {r.ran.device for r in kernels}):
        lines.append("roofline: of a modest machine; python -m tinsmith machine measures this one")
    return "\n".join(lines)


def _line(row: Row, total: float) -> str:
    ran, rate = row.ran, max(row.mean, 1e-12) * 1e9
    share = percent(row.total / max(total, 1e-12))
    reached = percent(_roofline(ran) / max(row.best, 1e-12)) if ran.kind == "kernel" else "-"
    times = f"{time_text(row.total):>8} {row.runs:6d} {time_text(row.mean):>8} {time_text(row.best):>8}"
    text = (f"{share:>6} {times} {reached:>8} {ran.ops / rate:8.1f} {ran.bytes / rate:6.1f}  {cut(ran.device, 8):8} "
            f"{cut(ran.name, 21):21} {', '.join(ran.origin)}")
    return cut(text.rstrip(), WIDTH)


def _roofline(ran: Ran) -> float:
    """The least time that the machine allows for a kernel."""
    found = machine(ran.device)
    level = found.level(ran.bytes)
    return max(ran.bytes / max(level.all, level.one), ran.ops / found.peak(dtypes.float32).all)


def _print_at_exit(pid: int) -> None:
    if pid == os.getpid():
        show(table())
