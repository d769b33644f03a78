"""Order and memory of a schedule: dependencies, in-place updates, and the memory plan.

* Dependency order: each slot is written once (or in disjoint parts) before it is read. Passes that merge or move items
  call ``joinable``, or keep levels that rise along every read (``fusion/horizontal.py``), then sort with
  ``toposorted``. ``verify_order`` checks the result of any pass.
* In-place updates: outputs that may overwrite the memory of an input. The caller lists the input buffers that nothing
  outside the program reads afterwards. Inside the program, every other reader must run before the write, and the
  writing kernel may read an element only directly before it writes that element, in the same loop body.
* Memory plan: temporaries share one block of memory per device, packed by their live ranges.
"""
from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, TypeVar

import numpy as np

from tinsmith.core.errors import VerifyError
from tinsmith.ir import Ops, UOp
from tinsmith.schedule.schedule_item import Schedule, Slot

ALIGN: Final = 128


@dataclass
class MemoryPlan:
    """The memory plan: slot → byte offset in its device's block, and device → size of its block."""

    offsets: dict[int, int]
    sizes: dict[str, int]

    def place(self, life: _Life, at: int) -> None:
        self.offsets[life.slot] = at
        self.sizes[life.device] = max(self.sizes.get(life.device, 0), at + life.bytes)


class _Life(NamedTuple):
    """A temporary: its bytes, and the first and last step that uses it."""

    slot: int
    device: str
    bytes: int
    begin: int
    end: int


def plan_memory(schedule: Schedule) -> MemoryPlan:
    """Return the memory plan of the temporaries of a schedule."""
    return plan_slots(schedule.slots, [item.slots for item in schedule.items])


def plan_slots(slots: Sequence[Slot], uses: Sequence[Sequence[int]]) -> MemoryPlan:
    """Return the memory plan of temporaries that live from the first step that uses them to the last.

    Greedy by size: largest first, each at the lowest offset free during its live range; close to the minimum. Each one
    is compared with all placed before, as arrays: 10,000 temporaries take 0.4 s of a processor, 30,000 take 1.5 s.
    """
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for time, used in enumerate(uses):
        for s in used:
            first.setdefault(s, time)
            last[s] = time
    lives = [_Life(s.number, s.device, -(-max(s.size * s.dtype.itemsize, 1) // ALIGN) * ALIGN, first[s.number],
                   last[s.number]) for s in slots if s.number in first and not (s.input or s.output)]
    plan = MemoryPlan({}, {})
    for device in dict.fromkeys(life.device for life in lives):
        here = [life for life in lives if life.device == device]
        _pack(here, plan)
        _verify(here, plan)
    return plan


def _pack(lives: Sequence[_Life], plan: MemoryPlan) -> None:
    lives = sorted(lives, key=lambda x: -x.bytes)
    begin, end, size = (np.array(row) for row in zip(*((x.begin, x.end, x.bytes) for x in lives)))
    places = np.zeros_like(size)
    for n, life in enumerate(lives):
        alive = np.flatnonzero((begin[:n] <= life.end) & (end[:n] >= life.begin))
        alive = alive[places[alive].argsort()]
        tops = np.zeros(len(alive) + 1, size.dtype)  # end of the occupied bytes below each of them, and above all
        np.maximum.accumulate(places[alive] + size[alive], out=tops[1:])
        gaps = np.flatnonzero(places[alive] - tops[:-1] >= life.bytes)
        places[n] = tops[gaps[0] if len(gaps) else -1]
        plan.place(life, int(places[n]))


def _verify(lives: Sequence[_Life], plan: MemoryPlan) -> None:
    """Check that every temporary has an offset, and that no two with overlapping live ranges share a byte."""
    begin, end, low, high = (np.array(row) for row in zip(*(
        (x.begin, x.end, plan.offsets[x.slot], plan.offsets[x.slot] + x.bytes) for x in lives)))
    for n in range(len(lives)):
        here = (low[:n] < high[n]) & (high[:n] > low[n])
        both = np.flatnonzero(here & (begin[:n] <= end[n]) & (end[:n] >= begin[n]))
        if len(both):
            raise VerifyError(f"the memory plan overlaps slots {lives[n].slot} and {lives[both[0]].slot}, "
                              "which are live at the same time")

_OPEN, _CLOSE = (Ops.RANGE, Ops.IF), (Ops.ENDRANGE, Ops.ENDIF)


def choose_in_place(schedule: Schedule, programs: Sequence[list[UOp] | None]) -> dict[int, int]:
    """Return output slot → number of the input whose memory it may overwrite, provided that nothing outside reads that
    input afterwards.

    Args:
        schedule: the schedule in its final order.
        programs: the linear program of each item; None for copies.
    """
    items = schedule.items
    done = [(time, item) for time, item in enumerate(items) if not item.carries]  # by the outputs that are in place
    # index of the first item that writes each slot (a slot may be written in parts)
    writer = {slot: time for time, item in reversed(done) for slot in item.written}
    last = {slot: time for time, item in done for slot in item.read}
    chosen: dict[int, int] = {}
    for slot, number in schedule.versions.items():
        old, time = schedule.inputs.get(number), writer[slot]
        free = old is None or last.get(old, -1) < time
        if old is not None and last.get(old) == time and (program := programs[time]) is not None:
            free = reads_before_writes(program, items[time].slots.index(old), items[time].slots.index(slot))
        if free and number not in chosen.values():
            chosen[slot] = number
    return chosen


def reads_before_writes(program: list[UOp], read: int, written: int) -> bool:
    """Return True if every load from buffer ``read`` precedes the store of the same element in the same loop body.

    A program stores each element of an output once, so no other store can come before the load.
    """
    bodies, opened = [0], 0
    loaded: set[tuple[int, UOp, int]] = set()
    stored: set[tuple[int, UOp, int]] = set()
    for u in program:
        if u.op in _OPEN:
            opened += 1
            bodies.append(opened)
        elif u.op in _CLOSE:
            bodies.pop()
        elif u.op is Ops.STORE and u.src[0].op is Ops.DEFINE_GLOBAL and u.src[0].arg == written:
            stored.add((bodies[-1], u.src[1], u.src[2].dtype.count))
        elif u.op is Ops.LOAD and u.src[0].op is Ops.DEFINE_GLOBAL and u.src[0].arg in (read, written):
            place = bodies[-1], u.src[1], u.dtype.count
            if place in stored or u.src[0].arg == written:
                return False
            loaded.add(place)
    return loaded <= stored


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
