"""One system's process: reads requests as JSON lines, runs them, answers with seconds or with the error's text.

``python -m benchmarks.worker SYSTEM [FOLDER]``; FOLDER: a checkout whose Tinsmith it is. A request names a case, a
variant, for how many seconds to run before the first sample, how many samples it wants at most, and after how many
seconds to stop; ``"cold": true`` times the first call, the making of its inputs included; ``"processor": true`` the
processor's time instead of the clock's.
"""
from __future__ import annotations

import importlib.metadata
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks.cases import BY_NAME
from benchmarks.peers import make
from benchmarks.timing import timed, warm_up

_FIRST_CALLS = 4  # minimum number after building: a JIT captures in its second one


def _version(system: str) -> str:
    try:
        return importlib.metadata.version(system)
    except importlib.metadata.PackageNotFoundError:
        return "checkout"


class Worker:
    """Holds the case of the last request, with one built call per variant."""

    def __init__(self, system: str) -> None:
        self.system, self.case = system, ""
        self.built: dict[str, Callable[[], None]] = {}

    def build(self, variant: str) -> Callable[[], None]:
        """Return a function that runs one sample of the current case: ``loops`` calls and a sync."""
        case = BY_NAME[self.case]
        peer = make(self.system, variant)
        run = getattr(peer, case.kind)(**case.sizes)

        def sample() -> None:
            for _ in range(case.loops):
                run()
            peer.sync()
        return sample

    def answer(self, case: str, variant: str, samples: int, budget: float, cold: bool,
               processor: bool = False) -> list[float]:
        if case != self.case:
            self.case, self.built = case, {}
        if cold:
            make(self.system, variant)  # imported before the timing starts
            return [timed(lambda: self.build(variant)())]
        if new := variant not in self.built:
            self.built[variant] = self.build(variant)
        sample, seconds = self.built[variant], list[float]()
        warm_up(sample, calls=_FIRST_CALLS if new else 1)
        while not seconds or (len(seconds) < samples and sum(seconds) < budget):
            seconds.append(timed(sample, time.process_time if processor else time.perf_counter))
        return [s / BY_NAME[case].loops for s in seconds]


def main() -> None:
    system, *folder = sys.argv[1:]
    sys.path[:0] = folder  # this package is imported already
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries print to stderr; stdout carries only answers
    worker = Worker(system)

    def say(**answer: Any) -> None:
        print(json.dumps(answer), file=out, flush=True)

    say(version=_version(system))
    for line in sys.stdin:
        try:
            say(seconds=worker.answer(**json.loads(line)))
        except Exception as e:
            text = str(e).strip().splitlines()
            say(error=f"{type(e).__name__}: {text[0] if text else ''}")


if __name__ == "__main__":
    main()
