"""``PROFILE=1``: a table of run times at the end of the program, and a trace for Perfetto.

Kernels run one at a time so that each can be timed; the total is larger than without profiling. The time since the
first import that is not spent in kernels and copies is listed by phase: importing, recording, scheduling, generating
and compiling code, guards of captured functions, launching.
"""
from __future__ import annotations

import atexit
import os
import textwrap
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from tinsmith.backend.machine import machine, roofline, why_above
from tinsmith.core import counters
from tinsmith.core.counters import Ran
from tinsmith.core.errors import place
from tinsmith.core.origin import layers_text, wrapped_labels
from tinsmith.core.terminal import WIDTH, cut, name_column, percent, plural, show, time_text
from tinsmith.core.timeline import (
    GENERATING,
    IMPORTING,
    PERFETTO,
    PHASES,
    RECORDING,
    output_path,
    timeline,
    write_perfetto,
)

ROWS = 30  # rows of the table, to fit a screen; the remaining kernels share one row
_LAYERS_AT = 60  # column of labels of layers that do not fit into the row of their kernel
_HEAD = " share    total   runs     mean roofline   GFLOPS   GB/s  device  kernel                computes"


@dataclass
class Row:
    """One kernel or kind of copy: the number of its runs and their time."""

    ran: Ran
    runs: int = 0
    total: float = 0.0
    best: float = field(default=float("inf"))

    @property
    def mean(self) -> float:
        return self.total / self.runs


_rows: dict[tuple[object, ...], Row] = {}


def note(ran: Ran) -> None:
    """Count a run; the first call registers the output at exit."""
    if not _rows:
        atexit.register(_at_exit, os.getpid())
    row = _rows.setdefault((ran.device, ran.name, ran.origin, ran.lines), Row(ran))
    row.runs += 1
    row.total += ran.seconds
    row.best = min(row.best, ran.seconds)


def reset() -> None:
    """Clear all counts."""
    _rows.clear()
    timeline.reset()


def table() -> str:
    """Return the table of times so far, longest first, at most 120 columns wide; empty if nothing ran."""
    if not _rows:
        return ""
    rows = list(_rows.values())
    ran = sum(r.total for r in rows)
    phases = _phases(ran)
    whole = ran + sum(phases.values())
    kernels, copies = (_kind(rows, kind) for kind in ("kernel", "copy"))
    lines = [f"profile: {plural(sum(r.runs for r in kernels), 'launch')} of {plural(len(kernels), 'kernel')} and "
             f"{plural(sum(r.runs for r in copies), 'copy')} in {time_text(ran)}, "
             f"of {time_text(whole)} since the first import", _HEAD]
    others = [(seconds, timeline.programs if name == GENERATING else 0, name) for name, seconds in phases.items()]
    listed = sorted(((r.total, _line(r, whole), r.runs) for r in rows), key=lambda row: -row[0])
    rest = listed[ROWS:]
    if rest:
        runs = sum(r.runs for r in rows) - sum(runs for _, _, runs in listed[:ROWS])
        others.append((sum(total for total, _, _ in rest), runs, f"{len(rest)} others"))
    found = [(total, text) for total, text, _ in listed[:ROWS]]
    found += [(total, _other(total, runs, what, whole)) for total, runs, what in others if total]
    lines += [text for _, text in sorted(found, key=lambda pair: -pair[0])]
    if any(not machine(d).measured for d in {r.ran.device for r in kernels}):
        lines.append("roofline: of a default machine model; python -m tinsmith machine measures this one")
    return "\n".join([*lines, *_above(kernels)])


def _above(kernels: Iterable[Row]) -> list[str]:
    """Return the lines that explain shares of the roofline above 100 %, one per reason."""
    found: dict[str, list[str]] = {}
    for row in kernels:
        reason = why_above(row.ran.device, row.ran.ops, row.ran.bytes, row.best, row.ran.unit)
        if reason:
            found.setdefault(reason, []).append(row.ran.name)
    names = {reason: (", ".join(some[:3]) + f" and {len(some) - 3} more" * (len(some) > 3))
             for reason, some in found.items()}
    return [line for reason, some in names.items() for line in textwrap.wrap(
        f"above 100 % of the roofline: {reason}: {some}", WIDTH, subsequent_indent="  ", break_long_words=False,
        break_on_hyphens=False)]


def _phases(ran: float) -> dict[str, float]:
    """Return the seconds since the first import outside of kernels and copies, by phase. Unmeasured time is Python code
    that records operations, or the user's own."""
    found = {name: timeline.phases[name] for name in PHASES} | {IMPORTING: counters.import_seconds()}
    rest = time.perf_counter() - counters.BEGIN - ran - sum(found.values())
    found[RECORDING] += max(rest, 0.0)
    return found


def _kind(rows: Iterable[Row], kind: str) -> list[Row]:
    return [r for r in rows if r.ran.kind == kind]


def _other(total: float, runs: int, what: str, whole: float) -> str:
    """Return the row for time that is spent on no device."""
    count = f"{runs:6d} {time_text(total / runs):>8}" if runs else " " * 15
    return f"{percent(total / max(whole, 1e-12)):>6} {time_text(total):>8} {count}{' ' * 26}{what}"


def _line(row: Row, whole: float) -> str:
    ran, rate = row.ran, max(row.mean, 1e-12) * 1e9
    share = percent(row.total / max(whole, 1e-12))
    least = roofline(ran.device, ran.ops, ran.bytes, ran.unit) if ran.kind == "kernel" else 0.0
    reached = percent(least / max(row.best, 1e-12)) if least else "-"
    times = f"{time_text(row.total):>8} {row.runs:6d} {time_text(row.mean):>8}"
    lines = dict.fromkeys(f"{m} {place(file, line)}".strip() for m, file, line in ran.lines)
    occupied = "" if ran.occupancy is None else f"occupancy {percent(ran.occupancy)}: "
    numbers = f"{share:>6} {times} {reached:>8} {ran.ops / rate:8.1f} {ran.bytes / rate:6.1f}  {cut(ran.device, 6):6}  "
    name = name_column(ran.name, 21, len(numbers))
    return _fitted(f"{numbers}{name} {occupied}", layers_text(ran.layers), ", ".join(lines or ran.origin))


def _fitted(row: str, layers: str, lines: str) -> str:
    """Return a row of the table with the layers and, as far as space permits, the lines of the program that it
    computes. Labels of layers are never truncated; they continue on further lines if necessary."""
    *before, last = row.split("\n")
    if not layers or len(last) + len(layers) < WIDTH:
        return "\n".join([*before, cut(f"{last}{layers}{': ' * bool(layers)}{lines}".rstrip(), WIDTH)])
    indent = min(_LAYERS_AT, max(WIDTH - max(map(len, layers.split(", "))) - 1, 8))
    more = wrapped_labels(layers, WIDTH - indent)
    return "\n".join([*before, *([last.rstrip()] if last.strip() else []), *(" " * indent + text for text in more)])


def _at_exit(pid: int) -> None:
    if pid != os.getpid():
        return
    show(table())
    try:
        path = output_path(PERFETTO)
        write_perfetto(path)
    except OSError as error:
        show(f"timeline: not written: {error}")
        return
    left_out = f" (without the last {timeline.left_out} events)" if timeline.left_out else ""
    show(f"timeline: {path}{left_out}, for https://ui.perfetto.dev")
