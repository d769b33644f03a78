"""The one rule of every order: each slot is written once, or part by part, and before it is read, and no result is
lost.

What merges or moves items asks ``joinable`` or keeps levels that rise along every read (``horizontal``), sorts with
``toposorted``, and ``verify_order`` looks at the outcome, whoever made it.
"""
from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Protocol, TypeVar

from tinsmith.core.errors import VerifyError
from tinsmith.schedule.items import Slot


class Access(Protocol):
    """Whatever reads and writes slots: an item, a compiled step, several items that run as one."""

    @property
    def written(self) -> Sequence[int]: ...

    @property
    def read(self) -> Sequence[int]: ...


A = TypeVar("A", bound=Access)


def verify_order(items: Iterable[Access], slots: Sequence[Slot], after: str) -> None:
    """Check that items run in an order that computes every result.

    Args:
        after: what made this order, for the message.

    Raises:
        VerifyError: naming the slot that is read too early, written twice, or lost.
    """
    items = list(items)
    known = {s.number for s in slots if s.input}
    left = Counter(s for item in items for s in item.written if slots[s].in_parts)
    for n, item in enumerate(items):
        left.subtract(item.written)
        for s in item.read:
            if s not in known or left[s] > 0:
                raise VerifyError(f"{after}: item {n} reads slot {s}, which nothing before it writes: {item!r:.300}")
        for s in item.written:
            if s in known and not slots[s].in_parts:
                raise VerifyError(f"{after}: item {n} writes slot {s}, which holds a value already: {item!r:.300}")
            known.add(s)
    lost = [s.number for s in slots if s.output and s.number not in known]
    if lost:
        raise VerifyError(f"{after}: nothing writes the results in slots {lost}")


def toposorted(items: Sequence[A], start: Callable[[int], int] = lambda n: 0,
               run: Callable[[int, Sequence[int]], None] = lambda n, readers: None) -> list[A]:
    """Items after all that they read, otherwise in their order.

    Args:
        start: when an item could run, by its number; it may rise as others run. The first one that could is next.
        run: is told each item that runs, and what reads it.

    Raises:
        VerifyError: if items read each other in a circle.
    """
    writers: dict[int, list[int]] = {}
    for n, item in enumerate(items):
        for s in item.written:
            writers.setdefault(s, []).append(n)
    needs = [{n for s in item.read for n in writers.get(s, ())} for item in items]
    readers: list[list[int]] = [[] for _ in items]
    for n, before in enumerate(needs):
        for u in before:
            readers[u].append(n)
    ready = [(start(n), n) for n, before in enumerate(needs) if not before]
    out = []
    while ready:
        time, n = heapq.heappop(ready)
        if (now := start(n)) > time:
            heapq.heappush(ready, (now, n))
            continue
        out.append(items[n])
        run(n, readers[n])
        for r in readers[n]:
            needs[r].discard(n)
            if not needs[r]:
                heapq.heappush(ready, (start(r), r))
    if len(out) < len(items):
        stuck = next(n for n, before in enumerate(needs) if before)
        raise VerifyError(f"{len(items) - len(out)} of {len(items)} items read each other in a circle, "
                          f"such as {items[stuck]!r:.300}")
    return out


def joinable(items: Sequence[Access], members: Sequence[Access], late: Collection[int] = ()) -> bool:
    """Whether ``members`` can be one item: nothing outside reads what they write and leads back into them.

    Args:
        items: all of them, in order.
        late: slots that the members write when everything else in them is done, so that none of them can read these.
    """
    inside = {id(m) for m in members}
    own = {s for m in members for s in m.written}
    after = set(late)  # what depends on the members by way of others
    for item in items:
        if id(item) in inside:
            if not after.isdisjoint(item.read):
                return False
        elif not own.isdisjoint(item.read) or not after.isdisjoint(item.read):
            after.update(item.written)
    return True
