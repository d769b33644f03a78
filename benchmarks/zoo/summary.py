"""Result files of the zoo: Markdown of one, and the comparison of two."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

QUANTILES: Final = (1, 5, 25, 50, 75, 95)
WORST: Final = 20
Rows = dict[str, dict[str, Any]]  # key → fields of measure.Row


def loaded(path: Path) -> dict[str, Any]:
    """Return the contents of a result file."""
    return dict(json.loads(path.read_text()))


def quantile(values: Sequence[float], percent: float) -> float:
    """Return a quantile by linear interpolation of the sorted values."""
    ordered = sorted(values)
    at = (len(ordered) - 1) * percent / 100
    low = math.floor(at)
    return ordered[low] + (ordered[min(low + 1, len(ordered) - 1)] - ordered[low]) * (at - low)


def speedup(row: dict[str, Any], against: Sequence[str] = ("eager",)) -> float | None:
    """Return the least time of the systems ``against`` over ours; None where one is missing."""
    seconds = row["seconds"]
    if "tinsmith" not in seconds or not all(name in seconds for name in against):
        return None
    return float(min(seconds[name] for name in against) / seconds["tinsmith"])


def geometric_mean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def share(row: dict[str, Any]) -> float:
    """Return the share of ops that PyTorch ran."""
    return float(row["torch_ops"] / row["ops"]) if row["ops"] else 0.0


def reason(row: dict[str, Any]) -> str:
    """Return in a few words why a row failed; "" if it passed."""
    if row["error"]:
        return str(row["error"])[:160]
    if not row["correct"]:
        return "wrong: " + ", ".join(f"{k} {v:.1e}" for k, v in row["errors"].items())
    if not row["passed"]:
        ops = ", ".join(f"{op} ({why})" for op, why in list(row["fallbacks"].items())[:4])
        return f"PyTorch ran {share(row):.0%} of ops and {row['torch_share']:.0%} of time: {ops}"
    return ""


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    if not rows:
        return []
    line = lambda cells: "| " + " | ".join(str(c).replace("|", "\\|") for c in cells) + " |"  # noqa: E731
    return [line(head), line(["---"] * len(head)), *map(line, rows), ""]


def _ratios(rows: Rows) -> list[str]:
    """Return the table of quantiles of the speedups, by mode and precision."""
    kinds = sorted({key.split("/", 2)[2] for key in rows})
    references: dict[str, tuple[str, ...]] = {
        "eager": ("eager",),
        "Inductor": ("inductor",),
        "the better": ("eager", "inductor"),
    }
    lines = []
    for kind in kinds:
        mine = [row for key, row in rows.items() if key.endswith(kind)]
        for name, against in references.items():
            found = [s for s in (speedup(r, against) for r in mine) if s is not None]
            if found:
                lines.append(
                    [
                        kind,
                        name,
                        str(len(found)),
                        f"{geometric_mean(found):.2f}",
                        *(f"{quantile(found, q):.2f}" for q in QUANTILES),
                    ]
                )
    return _table(["rows", "against", "number", "mean", *(f"{q} %" for q in QUANTILES)], lines)


def _cells(key: str, row: dict[str, Any]) -> list[str]:
    ratio = speedup(row)
    inductor = speedup(row, ("inductor",))
    peaks = row["peak"]
    peak = f"{peaks['tinsmith'] / peaks['eager']:.2f}" if peaks.get("eager") else ""
    return [
        key,
        "" if ratio is None else f"{ratio:.2f}",
        "" if inductor is None else f"{inductor:.2f}",
        f"{row['first'].get('tinsmith', 0):.1f}",
        peak,
        f"{row['torch_ops']}/{row['ops']}",
        f"{row['torch_share']:.0%}",
        str(sum(row["kernels"].values())),
    ]


_HEAD: Final = (
    "row",
    "eager ÷ ours",
    "Inductor ÷ ours",
    "first call, s",
    "memory ÷ eager's",
    "PyTorch's ops",
    "of time",
    "kernels",
)


def markdown(found: dict[str, Any]) -> str:
    """Return the summary of a result file: failures, quantiles, the worst rows, all rows."""
    rows: Rows = found["rows"]
    failed = {key: row for key, row in rows.items() if not row["passed"]}
    wrong = sum(1 for row in rows.values() if not row["error"] and not row["correct"])
    broken = sum(1 for row in rows.values() if row["error"])
    lines = [
        "# Model zoo",
        "",
        f"{found['machine']}; {found['date']}; commit {found['commit']}; "
        f"PyTorch {found['torch']}; {found['threads']} thread(s); load at the start {found['load']:.1f}.",
        "",
        f"{len(rows)} rows of {len({k.split('/')[0] for k in rows})} models: {len(rows) - len(failed)} passed, "
        f"{broken} with an error, {wrong} wrong, {len(failed) - broken - wrong} with more than 5 % by PyTorch.",
        "",
    ]
    lines += _ratios(rows)
    timed: list[tuple[float, str]] = sorted(
        (s, k) for k, s in ((k, speedup(r)) for k, r in rows.items()) if s is not None
    )
    if timed:
        lines += ["## The worst", "", *_table(_HEAD, [_cells(key, rows[key]) for _, key in timed[:WORST]])]
    if failed:
        lines += ["## Failed", "", *_table(["row", "because"], [[k, reason(r)] for k, r in sorted(failed.items())])]
    lines += ["## All rows", "", *_table(_HEAD, [_cells(k, r) for k, r in sorted(rows.items())])]
    return "\n".join(lines)


def comparison(before: dict[str, Any], after: dict[str, Any]) -> str:
    """Return as Markdown what changed between two result files: rows that fail or pass now, and times."""
    a, b = before["rows"], after["rows"]
    both = [key for key in a if key in b]
    lines = [
        "# Comparison",
        "",
        f"Before: {before['commit']}, {before['date']}. After: {after['commit']}, "
        f"{after['date']}. {len(both)} rows in both, "
        f"{len(a) - len(both)} only before, {len(b) - len(both)} only after.",
    ]
    if before["machine"] != after["machine"]:
        lines.append("The machines differ: compare ratios to eager PyTorch, not times.")
    changes: list[tuple[str, Callable[[str], bool]]] = [
        ("Fail now", lambda k: a[k]["passed"] and not b[k]["passed"]),
        ("Pass now", lambda k: b[k]["passed"] and not a[k]["passed"]),
    ]
    for title, changed in changes:
        found = [[k, reason(b[k]) or reason(a[k])] for k in both if changed(k)]
        lines += ["", f"## {title}: {len(found)}", "", *_table(["row", "because"], found)]
    ratios = sorted((sb / sa, k, sa, sb) for k in both if (sa := speedup(a[k])) and (sb := speedup(b[k])))
    if ratios:
        values = [r[0] for r in ratios]
        lines += [
            f"## Speed: {geometric_mean(values):.3f} of before",
            "",
            "Ratio of (eager ÷ ours) after and before; above 1 is faster.",
            "",
            *_table([f"{q} %" for q in QUANTILES], [[f"{quantile(values, q):.2f}" for q in QUANTILES]]),
            *_table(
                ["row", "ratio", "before", "after"],
                [[k, f"{r:.2f}", f"{x:.2f}", f"{y:.2f}"] for r, k, x, y in ratios[:WORST]],
            ),
        ]
    return "\n".join(lines) + "\n"


def _op_cells(key: str, row: dict[str, Any]) -> list[str]:
    """Return the cells of an op: the ratio, times in µs and effective GB/s of both, what was timed, the op."""
    times = [row["seconds"][system] for system in ("eager", "tinsmith")]
    rates = [f"{row['bytes'] / t / 1e9:.1f}" if row.get("bytes") else "" for t in times]
    return [f"{times[0] / times[1]:.2f}", *(f"{t * 1e6:.1f}" for t in times), *rates, row.get("timed", ""), key[:200]]


_OP_HEAD: Final = ("eager ÷ ours", "eager, µs", "ours, µs", "eager, GB/s", "ours, GB/s", "timed", "op")


def _op_ratios(rows: Rows) -> list[str]:
    """Return the table of quantiles of the speedups: of all ops, of their calls, and by op."""
    groups: dict[str, list[float]] = {}
    for key, row in rows.items():
        if (ratio := speedup(row)) is not None:
            groups.setdefault("all", []).append(ratio)
            groups.setdefault(json.loads(key)[0], []).append(ratio)
        if ratio is not None and "call_seconds" in row:
            groups.setdefault("all, calls from Python", []).append(speedup({"seconds": row["call_seconds"]}) or ratio)
    return _table(["op", "forms", "mean of eager ÷ ours", *(f"{q} %" for q in QUANTILES)],
                  [[name, str(len(r)), f"{geometric_mean(r):.2f}", *(f"{quantile(r, q):.2f}" for q in QUANTILES)]
                   for name, r in sorted(groups.items(), key=lambda item: -len(item[1]))])


def _how_timed(rows: Rows) -> str:
    """Return the sentence on what the times are of; "" for the processor's."""
    timed = [row.get("timed", "") for row in rows.values() if row["seconds"]]
    graphs, calls = timed.count("graph"), timed.count("calls")
    if not graphs + calls:
        return ""
    return (f" Times are the GPU's, medians: of kernels in replayed CUDA graphs for {graphs} ops, of calls from Python "
            f"for {calls} ops that cannot be captured.")


def of_ops(found: dict[str, Any]) -> str:
    """Return the summary of a result file of ops: by op the number of its forms, quantiles of speed, failures."""
    rows: Rows = found["rows"]
    failed = {key: row for key, row in rows.items() if not row["passed"]}
    untimed = sum(not row["error"] and not row["seconds"] for row in rows.values())
    lines = ["# Ops of the model zoo", "", f"{found['machine']}; device {found.get('device', 'CPU')}; {found['date']}; "
             f"commit {found['commit']}; PyTorch {found['torch']}; {found['threads']} thread(s); load at the start "
             f"{found['load']:.1f}.", "", f"{len(rows)} ops of {len(found['collected'])} models; {len(failed)} failed"
             + (f", {untimed} not timed yet" if untimed else "") + "." + _how_timed(rows), "", *_op_ratios(rows)]
    timed = sorted((s, key) for key, row in rows.items() if (s := speedup(row)) is not None)
    lines += ["## The worst", "", *_table(_OP_HEAD, [_op_cells(k, rows[k]) for _, k in timed[:WORST]])]
    lines += ["## Failed", "", *_table(["op", "because"], [[k[:200], reason(r)] for k, r in sorted(failed.items())])]
    return "\n".join(lines)
