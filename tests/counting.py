"""What tests that count calls or lines of code need: nothing of earlier tests in the count."""
from __future__ import annotations

import cProfile
import gc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tinsmith import Context
from tinsmith.core.object_lifetime import Recent
from tinsmith.ir.uop import forget_dead


@contextmanager
def undisturbed() -> Iterator[None]:
    """Drop what earlier tests left behind; collect no garbage and leave the disk cache alone until the end.

    Every cache of programs keeps one entry: a cache that earlier tests had filled would be trimmed during the count,
    and thousands of their graphs freed. Now and then, a write to the disk cache looks at all files in it.
    """
    for table in [x for x in gc.get_objects() if type(x) is Recent]:
        table.trim(1)
    gc.collect()
    forget_dead()
    gc.disable()
    try:
        with Context(CACHELEVEL=0):
            yield
    finally:
        gc.enable()


def calls_of(function: Callable[[], Any]) -> Counter[str]:
    """Return how often ``function`` calls each function, builtins included: a measure of work independent of the
    clock."""
    with undisturbed(), cProfile.Profile() as profile:  # counts in C
        function()
    found: Counter[str] = Counter()
    for entry in profile.getstats():
        found[str(entry.code)] += entry.callcount
    return found
