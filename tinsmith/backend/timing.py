"""Kernel timing: the same launch repeated in one graph; the minimum over several rounds."""
from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from tinsmith.backend.device import Device
from tinsmith.backend.memory import Buffer
from tinsmith.backend.program import BufferLocation, Launched, Program

ROUND = 300e-6  # seconds that a round should last, so that the cost of starting it is negligible
MOST = 1024  # launches per round, at most


def seconds_of(device: str, program: Program, buffers: Sequence[Buffer], values: Sequence[int] = (),
               budget: float = 0.1, launches: int = 0, clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the seconds of one launch of ``program`` on ``buffers``, with warm caches.

    Args:
        device: canonical name.
        values: the values of the program's variables, in order.
        budget: seconds to spend; at least two rounds are run.
        launches: launches per round; unless given, as many as take ``ROUND`` seconds.
        clock: the time source; ``time.process_time`` for single-threaded work on a shared machine.
    """
    opened = Device[device]
    places, numbers = tuple(BufferLocation(n) for n in range(len(buffers))), tuple(range(len(values)))

    def round_of(count: int) -> float:
        graph = opened.graph([Launched(program, places, numbers)] * count)
        graph(buffers, values)
        opened.synchronize()
        best = float("inf")
        end = clock() + budget / 2
        while True:
            start = clock()
            graph(buffers, values)
            opened.synchronize()
            now = clock()
            best = min(best, (now - start) / count)
            if now > end:
                return best

    once = round_of(launches or 1)
    fill = min(int(ROUND / max(once, 1e-9)), MOST)
    return min(once, round_of(fill)) if fill > 1 and not launches else once
