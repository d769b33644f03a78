"""Measured and predicted times of the programs of a trace and of their steps, from its events and estimates."""
from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

Times = dict[str, Any]  # keys: measured, runs, predicted, items


def times(document: Mapping[str, Any]) -> list[Times]:
    """Return the times in seconds of each program of a trace.

    ``measured`` is the total of all runs of the program (None if it did not run), ``runs`` their number, ``predicted``
    the estimate of one run. ``items`` holds the same for each step, with the mean of its runs as measured time; a copy
    has no prediction. A run of a kernel that several programs use counts for the one that was compiled last before it.
    """
    programs = document["programs"]
    taken = _taken(programs, document["events"])
    found: list[Times] = []
    for p, own in zip(programs, taken, strict=True):
        uses = Counter(_key(item) for item in p["items"])
        items = [_item(item, own.get(_key(item), ()), uses[_key(item)], document["kernels"]) for item in p["items"]]
        apart = [seconds for seconds, runs, _ in items if seconds is not None and not runs]  # measured by viz()
        total = sum(map(sum, own.values())) + sum(apart)
        found.append({"measured": total if own or apart else None, "items": items,
                      "runs": max((runs for _, runs, _ in items), default=0),
                      "predicted": sum(seconds or 0.0 for _, _, seconds in items)})
    return found


def costliest(found: Sequence[Times]) -> int:
    """Return the number of the program with the longest measured time, or predicted time if nothing was measured.

    >>> costliest([{"measured": 1.0, "predicted": 9.0}, {"measured": 2.0, "predicted": 1.0}])
    1
    >>> costliest([{"measured": None, "predicted": 9.0}, {"measured": None, "predicted": 1.0}])
    0
    """
    return max(range(len(found)), key=lambda n: (found[n]["measured"] or 0.0, found[n]["predicted"]), default=0)


def _key(item: Mapping[str, Any]) -> str:
    """Return the key that an item shares with its events: a kernel's symbol, a copy's name."""
    return str(item["kernel"] or item["name"])


def _taken(programs: Sequence[Mapping[str, Any]], events: Sequence[Sequence[Any]]) -> list[dict[str, list[float]]]:
    """Return, for each program, the seconds of all runs by the key of the step."""
    users: dict[str, list[int]] = {}
    for n, p in enumerate(programs):
        for key in dict.fromkeys(map(_key, p["items"])):
            users.setdefault(key, []).append(n)
    found: list[dict[str, list[float]]] = [{} for _ in programs]
    for kind, _, name, start, seconds, *_, key in events:
        if kind not in ("kernel", "copy"):
            continue
        before = [n for n in users.get(key or name, ()) if programs[n]["start"] <= start]
        if before:
            found[max(before, key=lambda n: programs[n]["start"])].setdefault(key or name, []).append(seconds)
    return found


def _item(item: Mapping[str, Any], taken: Sequence[float], uses: int,
          kernels: Mapping[str, Any]) -> tuple[float | None, int, float | None]:
    """Return (mean measured seconds, number of runs, predicted seconds) of a step."""
    kernel = kernels.get(item["kernel"])
    predicted = kernel["estimate"]["seconds"] if kernel else None
    if not taken:
        return item["seconds"], 0, predicted
    return sum(taken) / len(taken), max(1, round(len(taken) / uses)), predicted
