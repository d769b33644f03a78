"""Dependency order of schedule items: each slot is written once (or in disjoint parts) before it is read.

Passes that merge or move items ask ``joinable``, or keep levels that rise along every read (``horizontal``), then sort
with ``toposorted``. ``verify_order`` checks the result of any pass.
"""
from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Protocol, TypeVar

from tinsmith.core.errors import VerifyError
from tinsmith.schedule.schedule_item import Slot


class Access(Protocol):
    """Anything that reads and writes slots: a schedule item, a compiled step, or several items run as one."""

    @property
    def written(self) -> Sequence[int]: ...

    @property
    def read(self) -> Sequence[int]: ...


A = TypeVar("A", bound=Access)


def verify_order(items: Iterable[Access], slots: Sequence[Slot], after: str) -> None:
    """Check that items run in an order that computes every result.

    Args:
        after: name of the pass that made this order, for the message.

    Raises:
        VerifyError: naming the slot that is read too early, written twice, or never written.
    """
    items = list(items)
    known = {s.number for s in slots if s.input}
    left = Counter(s for item in items for s in item.written if slots[s].in_parts)
    for n, item in enumerate(items):
        left.subtract(item.written)
        for s in item.read:
            if s not in known or left[s] > 0:
                raise VerifyError(f"{after}: item {n} reads slot {s} before it is written: {item!r:.300}")
        for s in item.written:
            if s in known and not slots[s].in_parts:
                raise VerifyError(f"{after}: item {n} writes slot {s}, which already holds a value: {item!r:.300}")
            known.add(s)
    lost = [s.number for s in slots if s.output and s.number not in known]
    if lost:
        raise VerifyError(f"{after}: the result slots {lost} are never written")


def toposorted(items: Sequence[A], start: Callable[[int], int] = lambda n: 0,
               run: Callable[[int, Sequence[int]], None] = lambda n, readers: None) -> list[A]:
    """Return the items in dependency order, otherwise in their given order.

    Args:
        start: the earliest time an item could run, by its number; it may rise as others run. The earliest item is next.
        run: called with the number of each item that runs, and the numbers of its readers.

    Raises:
        VerifyError: if items read each other in a cycle.
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
        raise VerifyError(f"{len(items) - len(out)} of {len(items)} items form a dependency cycle, "
                          f"such as {items[stuck]!r:.300}")
    return out


def joinable(items: Sequence[Access], members: Sequence[Access], late: Collection[int] = ()) -> bool:
    """Return True if ``members`` can be one item: no path through an outside item leads from them back to them.

    Args:
        items: all items, in order.
        late: slots that the merged item writes at its end, so that no member may read them.
    """
    inside = {id(m) for m in members}
    own = {s for m in members for s in m.written}
    after = set(late)  # slots that depend on the members through outside items
    for item in items:
        if id(item) in inside:
            if not after.isdisjoint(item.read):
                return False
        elif not own.isdisjoint(item.read) or not after.isdisjoint(item.read):
            after.update(item.written)
    return True
