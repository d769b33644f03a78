"""What this process waits for, for whoever looks after hanging processes."""
from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import NamedTuple

from tinsmith.distributed.world import Group


class Waiting(NamedTuple):
    """A collective that this process is in."""

    kind: str
    group: Group
    line: tuple[str, int]
    since: float


_now: list[Waiting] = []


def current() -> Waiting | None:
    """Return the collective that this process is in; None if it computes."""
    return _now[-1] if _now else None


@contextlib.contextmanager
def waiting(kind: str, group: Group, line: tuple[str, int]) -> Iterator[None]:
    """Note that this process is in a collective."""
    _now.append(Waiting(kind, group, line, time.monotonic()))
    try:
        yield
    finally:
        _now.pop()
