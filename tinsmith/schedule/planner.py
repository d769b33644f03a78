"""The memory plan: temporaries of one program share one block per device, laid out by when they live."""
from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from tinsmith.core.errors import VerifyError
from tinsmith.schedule.items import Schedule, Slot

ALIGN: Final = 128
MOST_PACKED: Final = 500


@dataclass
class Plan:
    """Where each temporary lies: slot → byte offset in its device's block; and the size of each block."""

    offsets: dict[int, int]
    sizes: dict[str, int]

    def place(self, life: _Life, at: int) -> None:
        self.offsets[life.slot] = at
        self.sizes[life.device] = max(self.sizes.get(life.device, 0), at + life.bytes)


class _Life(NamedTuple):
    """A temporary: the bytes it takes, and the first and last step that uses it."""

    slot: int
    device: str
    bytes: int
    begin: int
    end: int


def plan_memory(schedule: Schedule) -> Plan:
    """Where the temporaries of a schedule lie."""
    return plan_slots(schedule.slots, [item.slots for item in schedule.items])


def plan_slots(slots: Sequence[Slot], uses: Sequence[Sequence[int]]) -> Plan:
    """Where temporaries lie, from the slots that each step uses; they live from the first of these steps to the last.

    Up to MOST_PACKED of them are placed largest first, each at the lowest place that no value alive at that time holds:
    close to the least memory, in quadratic time. More are placed in order of time, from a list of gaps.
    """
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for time, used in enumerate(uses):
        for s in used:
            first.setdefault(s, time)
            last[s] = time
    lives = [_Life(s.number, s.device, -(-max(s.size * s.dtype.itemsize, 1) // ALIGN) * ALIGN, first[s.number],
                   last[s.number]) for s in slots if s.number in first and not (s.input or s.output)]
    plan = Plan({}, {})
    (_pack if len(lives) <= MOST_PACKED else _sweep)(lives, plan)
    _verify(lives, plan)
    return plan


def _verify(lives: Sequence[_Life], plan: Plan) -> None:
    """Check that every temporary has a place, and that no two share a byte while both live."""
    alive: dict[str, list[tuple[int, _Life]]] = {}  # (end of its place, what lies there), in the order of places
    ending: dict[int, list[_Life]] = {}
    time = 0
    for life in sorted(lives, key=lambda x: x.begin):
        while time < life.begin:
            for old in ending.pop(time, ()):
                here = alive[old.device]
                del here[bisect.bisect_left(here, plan.offsets[old.slot] + old.bytes, key=lambda row: row[0])]
            time += 1
        at, here = plan.offsets[life.slot], alive.setdefault(life.device, [])
        n = bisect.bisect_right(here, at, key=lambda row: row[0])
        if n < len(here) and plan.offsets[here[n][1].slot] < at + life.bytes:
            raise VerifyError(f"the memory plan puts slot {life.slot} where slot {here[n][1].slot} lives")
        here.insert(n, (at + life.bytes, life))
        ending.setdefault(life.end, []).append(life)


def _pack(lives: list[_Life], plan: Plan) -> None:
    placed: dict[str, list[tuple[int, int, int, int]]] = {}
    for life in sorted(lives, key=lambda x: -x.bytes):
        others = sorted(p for p in placed.setdefault(life.device, []) if p[2] <= life.end and life.begin <= p[3])
        at = 0
        for low, high, _, _ in others:
            if at + life.bytes <= low:
                break
            at = max(at, high)
        placed[life.device].append((at, at + life.bytes, life.begin, life.end))
        plan.place(life, at)


def _sweep(lives: list[_Life], plan: Plan) -> None:
    """A value takes the smallest gap that it fits into, else the end; its place joins the gaps after its last use."""
    gaps: dict[str, _Gaps] = {}
    ending: dict[int, list[_Life]] = {}
    time = 0
    for life in sorted(lives, key=lambda x: (x.begin, -x.bytes)):
        while time < life.begin:
            for old in ending.pop(time, ()):
                gaps[old.device].give(plan.offsets[old.slot], old.bytes)
            time += 1
        plan.place(life, gaps.setdefault(life.device, _Gaps()).take(life.bytes))
        ending.setdefault(life.end, []).append(life)


class _Gaps:
    """Unused places below ``top``: by size, for the smallest that is large enough, and by both ends, to join them."""

    def __init__(self) -> None:
        self.top = 0
        self.sizes: list[tuple[int, int]] = []  # (bytes, offset), sorted
        self.begins: dict[int, int] = {}  # offset → bytes
        self.ends: dict[int, int] = {}  # end → offset

    def take(self, size: int) -> int:
        n = bisect.bisect_left(self.sizes, (size, 0))
        if n == len(self.sizes):
            at = self.ends.get(self.top, self.top)  # the last gap grows
            if at < self.top:
                self._remove(at)
            self.top = at + size
            return at
        found, at = self.sizes[n]
        self._remove(at)
        if found > size:
            self._add(at + size, found - size)
        return at

    def give(self, at: int, size: int) -> None:
        if at in self.ends:
            before = self.ends[at]
            size += self._remove(before)
            at = before
        if at + size in self.begins:
            size += self._remove(at + size)
        self._add(at, size)

    def _add(self, at: int, size: int) -> None:
        bisect.insort(self.sizes, (size, at))
        self.begins[at] = size
        self.ends[at + size] = at

    def _remove(self, at: int) -> int:
        size = self.begins.pop(at)
        del self.ends[at + size]
        del self.sizes[bisect.bisect_left(self.sizes, (size, at))]
        return size
