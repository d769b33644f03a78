"""The order of collectives: with ``CHECKED=1`` processes compare, before each, what they are about to call."""
from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from tinsmith.core.errors import CommunicationError, place
from tinsmith.distributed.world import ProcessGroup

_BYTES = 512  # of a record: a hash of what is called, and the text of it


def compare(group: ProcessGroup, kind: str, details: tuple[Any, ...], line: tuple[str, int]) -> None:
    """Compare a call with the other processes' calls at the same place of the group's sequence.

    Raises:
        CommunicationError: in all processes, if they differ; it names one line of each call.
    """
    called = f"{kind}{_shown(details)}"
    mark = hashlib.blake2b(f"{group.calls} {called}".encode(), digest_size=16).digest()
    text = f"{called} at {place(*line)}".encode()[: _BYTES - len(mark)]
    own = np.frombuffer((mark + text).ljust(_BYTES, b"\0"), np.uint8)
    every = np.empty((group.size, _BYTES), np.uint8)
    group.checks.Allgather(own, every)
    records = [row.tobytes() for row in every]
    if len({r[: len(mark)] for r in records}) == 1:
        return
    first: dict[bytes, list[int]] = {}
    for number, record in zip(group.ranks, records):
        first.setdefault(record[: len(mark)] + record[len(mark) :].rstrip(b"\0"), []).append(number)
    calls = [f"{_ranks(numbers)}: {record[len(mark):].decode(errors='replace')}" for record, numbers in first.items()]
    raise CommunicationError(f"dist.{kind}", f"call {group.calls} of {group} differs: {'; '.join(calls)}",
                             "the same collectives, in the same order, with the same shapes in all processes", line)


def _ranks(numbers: list[int]) -> str:
    return f"rank{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"


def _shown(details: tuple[Any, ...]) -> str:
    return f"({', '.join(str(d) for d in details)})"
