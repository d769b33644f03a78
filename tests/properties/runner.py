"""Kinds of random programs by name, and how many of them a run takes."""
from __future__ import annotations

import importlib
import os
import pkgutil
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path

FEW = int(os.environ.get("PROPERTIES", "25"))  # programs of each kind in the test suite


def kinds() -> list[str]:
    """Names of the modules beside this one that have a ``check``."""
    names = [m.name.removeprefix("test_") for m in pkgutil.iter_modules([str(Path(__file__).parent)])
             if m.name.startswith("test_")]
    return sorted(names)


def check_of(kind: str) -> Callable[[int], None]:
    """``check(seed)`` of a kind: makes a program of the seed, runs it, and raises if it is wrong."""
    found: Callable[[int], None] = importlib.import_module(f"tests.properties.test_{kind}").check
    return found


def run(kind: str, seeds: Iterable[int], seconds: float = float("inf")) -> tuple[int, list[int]]:
    """How many programs ran, and the seeds of those that failed; each failure is printed as it comes."""
    check, begin, count, failed = check_of(kind), time.monotonic(), 0, []
    for seed in seeds:
        if time.monotonic() - begin > seconds:
            break
        try:
            check(seed)
        except Exception:
            failed.append(seed)
            print(f"--- {kind}, seed {seed}", traceback.format_exc(limit=-6), sep="\n", file=sys.stderr, flush=True)
        count += 1
    return count, failed
