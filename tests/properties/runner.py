"""The kinds of random programs by name, and the runner of a number of them."""
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
    """Return the names of the modules of this package that have a ``check``."""
    names = [m.name.removeprefix("test_") for m in pkgutil.iter_modules([str(Path(__file__).parent)])
             if m.name.startswith("test_")]
    return sorted(names)


def check_of(kind: str) -> Callable[[int], None]:
    """Return ``check(seed)`` of a kind: it generates a program, runs it, and raises if the result is wrong."""
    found: Callable[[int], None] = importlib.import_module(f"tests.properties.test_{kind}").check
    return found


def run(kind: str, seeds: Iterable[int], seconds: float = float("inf")) -> tuple[int, list[int]]:
    """Run a program per seed; return the number run and the failed seeds. Print each failure as it occurs."""
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
