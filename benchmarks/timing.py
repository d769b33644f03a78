"""Timing calls on a shared virtual machine."""
from __future__ import annotations

import time
from collections.abc import Callable

WARM_UP = 0.2  # seconds of calls before the samples of a turn


def warm_up(call: Callable[[], object], seconds: float = WARM_UP, calls: int = 1) -> None:
    """Repeat ``call`` for at least ``seconds`` and ``calls``: an idle virtual machine starts on one core."""
    start, done = time.perf_counter(), 0
    while done < calls or time.perf_counter() - start < seconds:
        call()
        done += 1


def timed(call: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the seconds of one call."""
    start = clock()
    call()
    return clock() - start
