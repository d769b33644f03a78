"""The order of collectives, compared between the processes of a group.

Each process keeps a hash of its sequence: kind, op, dtype and shape of each call. Processes compare hashes after calls
1, 2, 4, … and every ``EVERY`` calls, before each call with ``CHECKED=1``. Where they differ, the texts of the calls
since the last comparison are exchanged, and the first that differ are named. The monitor compares the calls that ranks
wait in, so that an order which ends in a deadlock is named, too.
"""
from __future__ import annotations

import hashlib
from typing import Final

import numpy as np

from tinsmith.core.errors import CommunicationError, place
from tinsmith.core.settings import settings
from tinsmith.distributed.monitor import numbered
from tinsmith.distributed.world import ProcessGroup

EVERY: Final = 64  # calls between two comparisons
_HASH: Final = 16  # bytes
_TEXT: Final = 496  # bytes of a call's text


def check(group: ProcessGroup, kind: str, what: str, line: tuple[str, int]) -> None:
    """Note call number ``group.calls`` and compare the sequence with that of the other processes, if it is time to.

    Args:
        what: the call, with op, dtype and shape.

    Raises:
        CommunicationError: in all processes, if they differ; it names one line of each call.
    """
    group.sequence = hashlib.blake2b(group.sequence + f"{group.name} {what}".encode(), digest_size=_HASH).digest()
    group.recent.append((what, line))
    calls = group.calls
    if not settings.CHECKED and calls % EVERY and calls & (calls - 1):
        return
    own = np.frombuffer(group.sequence, np.uint8)
    every = np.empty((group.size, _HASH), np.uint8)
    group.checks.Allgather(own, every)
    recent, group.recent = group.recent, []
    if (every == own).all():
        return
    _differ(group, kind, [f"{text}\0{place(*at)}" for text, at in recent], line)


def _differ(group: ProcessGroup, kind: str, recent: list[str], line: tuple[str, int]) -> None:
    """Raise the error for the first calls that differ. ``recent``: those since the last comparison, as many in all
    processes."""
    own = np.frombuffer(b"".join(t.encode()[:_TEXT].ljust(_TEXT, b"\0") for t in recent), np.uint8)
    every = np.empty((group.size, len(own)), np.uint8)
    group.checks.Allgather(own, every)
    for n in range(len(recent)):
        texts = [row[n * _TEXT : (n + 1) * _TEXT].tobytes().decode(errors="replace").split("\0")[:2] for row in every]
        if len({what for what, _ in texts}) > 1:
            break
    found: dict[str, list[int]] = {}
    for number, (what, at) in zip(group.ranks, texts):
        found.setdefault(f"{what} at {at}", []).append(number)
    calls = [f"{numbered(ranks)}: {what}" for what, ranks in found.items()]
    raise CommunicationError(
        f"dist.{kind}", f"call {group.calls - len(recent) + n + 1} of {group} differs: {'; '.join(calls)}",
        "the same collectives, in the same order, with the same shapes in all processes", line)
