"""The order of collectives: each process announces its calls, and processes compare their sequences.

Each process keeps a hash of its sequence: kind, op, dtype and shape of each call. Processes compare hashes after calls
1, 2, 4, … and every ``EVERY`` calls, or before each call with ``CHECKED=1``. If they differ, the texts of the calls
since the last comparison are exchanged, and the first different ones are named. The monitor compares the calls in which
ranks wait, so that an order that ends in a deadlock is named, too.
"""
from __future__ import annotations

import hashlib
import time
from typing import Any, Final

import numpy as np

from tinsmith.core.errors import CommunicationError, place, user_line
from tinsmith.core.settings import settings
from tinsmith.distributed import watch
from tinsmith.distributed.monitor import numbered
from tinsmith.distributed.world import ProcessGroup

EVERY: Final = 64  # calls between two comparisons
_HASH: Final = 16  # bytes
_TEXT: Final = 496  # bytes of a call's text


def check(group: ProcessGroup, kind: str, what: str, line: tuple[str, int]) -> None:
    """Record call number ``group.calls``, and compare the sequence with the other processes if a comparison is due.

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

_SENT: Final = ("send", "receive", "post", "exchange")  # between two processes: no place in the order of a group


def call_of(kind: str, group: ProcessGroup, options: tuple[Any, ...], dtype: str, shape: tuple[int, ...]
            ) -> watch.Waiting:
    """Return the next call of a group, for the monitor.

    Args:
        options: of the command; a message has its other process and its tag first.
        dtype, shape: of the data of this process, or of what it receives.
    """
    sent = kind in _SENT
    details = (*options[len(options) * sent :], dtype, shape)
    what = kind if kind == "barrier" else f"{kind}({', '.join(map(str, details))})"
    peers = (group.ranks[options[0]],) if sent else group.ranks  # of a message, only the sender waits for its receiver
    return watch.Waiting(kind, group.name, group.ranks, peers, group.calls + 1, what, options[1] if sent else 0,
                         user_line(), time.monotonic())


def count(group: ProcessGroup, call: watch.Waiting) -> None:
    """Give a call its place in the sequence of the group, and compare the sequences if that is due.

    The caller holds ``World.turn``, and has told the watch of the call.

    Raises:
        CommunicationError: in all processes, if they differ.
    """
    if call.kind not in _SENT:
        group.calls += 1
        check(group, call.kind, call.what, call.line)
