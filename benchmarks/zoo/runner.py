"""``python -m benchmarks zoo``: a process for each model, results in a JSON file that a second run continues."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.process import ROOT, machine
from benchmarks.zoo import summary
from benchmarks.zoo.registry import Model, models

KINDS: Final = ("inference/f32", "training/f32", "inference/bf16", "training/bf16")
EMPTY: Final[dict[str, Any]] = {
    "correct": False,
    "error": "",
    "errors": {},
    "seconds": {},
    "first": {},
    "peak": {},
    "graphs": 0,
    "breaks": 0,
    "ops": 0,
    "torch_ops": 0,
    "torch_share": 0.0,
    "fallbacks": {},
    "kernels": {},
    "passed": False,
}


def options(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks zoo", description=__doc__)
    parser.add_argument("--device", choices=["CPU", "CUDA"], default="CPU")
    parser.add_argument("--models", default="", metavar="NAME,…", help="names or their beginnings; the default is all")
    parser.add_argument("--rows", default=",".join(KINDS), help=f"kinds of rows; the default is {','.join(KINDS)}")
    parser.add_argument("--sizes", choices=["small", "full"], default="small")
    parser.add_argument(
        "--rounds", type=int, help="timed rounds in turn; 0: correctness alone (default: small 0, full 5)"
    )
    parser.add_argument("--inductor", action="store_true", help="time Inductor too (needs a C++ compiler)")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0, help="of the order in which models are drawn")
    parser.add_argument("--shard", default="1/1", metavar="K/N", help="the K-th of N parts of the drawn models")
    parser.add_argument("--budget", type=float, metavar="MIN", help="start no model after so many minutes")
    parser.add_argument("--limit", type=float, default=600.0, metavar="S", help="seconds per row (default 600)")
    parser.add_argument("--strict", action="store_true", help="a rule that fails is an error")
    parser.add_argument("--again", action="store_true", help="measure rows of the file again that did not pass")
    parser.add_argument("--ops", action="store_true", help="the distinct ops of the graphs, instead of the models")
    parser.add_argument(
        "--sample", type=int, default=0, metavar="N", help="with --ops: N ops of all models, drawn by the seed"
    )
    parser.add_argument(
        "--workers",
        type=int,
        metavar="N",
        help="with --ops: compile in N processes, then time in one (default: CUDA all cores, CPU in this process)",
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="JSON; the summary is written beside it (.md)")
    parser.add_argument(
        "--compile-only", choices=["sm_80", "sm_90a"], default="", help="compile for a GPU, without having one"
    )
    parser.add_argument("--list", action="store_true", help="print the names of the models")
    found = parser.parse_args(arguments)
    found.rounds = found.rounds if found.rounds is not None else {"small": 0, "full": 5}[found.sizes]
    return found


def chosen(given: argparse.Namespace) -> list[Model]:
    """Return the models of a command line, in the order of its seed."""
    wanted = tuple(name.strip() for name in given.models.split(","))
    found = [m for m in models().values() if m.name.startswith(wanted)]
    if not found:
        raise SystemExit(f"no model begins with {given.models!r}; there are: {', '.join(models())}")
    missing = sorted({n for m in found if not m.available for n in m.needs})
    if missing:
        print(f"models that need {', '.join(missing)} are left out where these are not installed", flush=True)
    found = [m for m in found if m.available]
    random.Random(given.seed).shuffle(found)
    part, _, parts = given.shard.partition("/")
    return found[int(part) - 1 :: int(parts)]


def commit() -> str:
    """Return the commit of this checkout, with a "+" if files differ from it."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True).stdout.strip()

    return (git("rev-parse", "--short", "HEAD") + ("+" if git("status", "--porcelain", "-uno") else "")) or "unknown"


def opened(path: Path | None, given: argparse.Namespace) -> dict[str, Any]:
    """Return the results to continue: those of the file, or none."""
    if path is not None and path.exists():
        return summary.loaded(path)
    import torch

    gpu = f"; {torch.cuda.get_device_name()}" if given.device == "CUDA" else ""
    return {
        "machine": machine() + gpu + (f"; compiled for {given.compile_only}" if given.compile_only else ""),
        "date": datetime.date.today().isoformat(),
        "commit": commit(),
        "torch": torch.__version__,
        "device": given.device,
        "threads": given.threads,
        "load": os.getloadavg()[0],
        "rows": {},
    }


def save(path: Path | None, found: dict[str, Any]) -> None:
    """Replace the file in one step: a run that is cut off leaves whole rows."""
    if path is not None:
        part = path.with_suffix(".part")
        part.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
        part.replace(path)


def run_model(model: Model, kinds: Sequence[str], given: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Return the rows of a model, measured in a process of its own; a row at which it dies is one with an error."""
    rows: dict[str, dict[str, Any]] = {}
    left = list(kinds)
    while left:
        command = [
            sys.executable,
            "-m",
            "benchmarks.zoo.worker",
            model.name,
            "--size",
            given.sizes,
            "--rows",
            ",".join(left),
            "--rounds",
            str(given.rounds),
            "--threads",
            str(given.threads),
            "--device",
            given.device.lower(),
            *(["--compile-only", given.compile_only] if given.compile_only else []),
            *(["--inductor"] if given.inductor else []),
            *(["--strict"] if given.strict else []),
        ]
        with tempfile.TemporaryFile("w+") as log:
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, text=True, cwd=ROOT, start_new_session=True
            )
            try:
                text, _ = process.communicate(timeout=given.limit * len(left))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)  # with the compilers that it started
                text, _ = process.communicate()
            for line in text.splitlines():
                row = json.loads(line)
                rows[row["key"]] = row
                left.pop(0)
            if left:  # the process ended before this row did
                log.seek(0)
                last = [line for line in log.read().splitlines() if line.strip()][-1:] or [""]
                key = f"{model.name}/{given.sizes}/{left.pop(0)}"
                rows[key] = {
                    **EMPTY,
                    "key": key,
                    "error": f"the process ended with {process.returncode}: {last[0]}"[:600],
                }
    return rows


def measure(given: argparse.Namespace) -> int:
    """Measure the models of a command line; return 1 if a row failed."""
    found = opened(given.out, given)
    rows = found["rows"]
    begin = time.monotonic()
    for model in chosen(given):
        if given.budget is not None and time.monotonic() - begin > given.budget * 60:
            print("the budget is spent; the same command continues", flush=True)
            break
        done = {k for k, r in rows.items() if r["passed"] or not given.again}
        kinds = [kind for kind in given.rows.split(",") if f"{model.name}/{given.sizes}/{kind}" not in done]
        if not kinds:
            continue
        start = time.monotonic()
        new = run_model(model, kinds, given)
        rows.update(new)
        save(given.out, found)
        for key, row in new.items():
            ratio = summary.speedup(row)
            print(
                f"{'ok  ' if row['passed'] else 'FAIL'} {key}"
                + (f" {ratio:.2f}" if ratio else "")
                + f"  {summary.reason(row)}"[:400],
                flush=True,
            )
        print(f"     {model.name}: {time.monotonic() - start:.0f} s", flush=True)
    if given.out is not None and rows:
        given.out.with_suffix(".md").write_text(summary.markdown(found))
    return int(any(not row["passed"] for row in rows.values()))


def main(arguments: Sequence[str]) -> int:
    """Run the command; return its exit status."""
    if arguments[:1] == ["compare"]:
        parser = argparse.ArgumentParser(prog="python -m benchmarks zoo compare")
        parser.add_argument("before", type=Path)
        parser.add_argument("after", type=Path)
        two = parser.parse_args(arguments[1:])
        print(summary.comparison(summary.loaded(two.before), summary.loaded(two.after)))
        return 0
    given = options(arguments)
    if given.list:
        print("\n".join(f"{m.name}  ({m.family})" for m in models().values()))
        return 0
    if given.ops:
        os.environ["THREADS"] = str(given.threads)
        from benchmarks.zoo import ops

        return ops.main(given)
    return measure(given)
