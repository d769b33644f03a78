"""Less memory for the same program: another order of its steps, and values that are computed again instead of kept.

A program is a list of steps over slots. A step that gives back at least as much memory as it takes runs as early as it
can. Where that is not enough, the list is walked with a limit: when a step finds no room, a value that is not needed
at once gives way, and where a later step reads it, the steps that make it run again just before. docs/plan.md says
which one, and where the idea is from. Kernels are the same, so all values are the same bits.
"""
from __future__ import annotations

import bisect
import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tinsmith.backend.device import Device
from tinsmith.codegen.estimate import default_machine
from tinsmith.codegen.launch import Launch, lines_of
from tinsmith.core.dtypes import dtypes
from tinsmith.schedule.inplace import choose_in_place
from tinsmith.schedule.items import Schedule, Slot
from tinsmith.schedule.order import Access
from tinsmith.schedule.planner import ALIGN, plan_slots

ROUNDS: Final = 8  # walks with a smaller limit each, since values do not fill the block without gaps
HALVINGS: Final = 7  # of the search for the least memory
MOST_RUNS: Final = 4  # times the steps of a program that one with less memory may have
AGAIN: Final = "computed again: there was no room to keep it in the memory budget"
TURNS: Final = 3  # fits of a schedule, since another order may not allow to write over old versions

# Of each item: what runs, and what it is for the device, where something else runs in its place; None for copies.
Kernels = list[tuple[Launch | None, Launch | None]]


def within(schedule: Schedule, kernels: Kernels, limit: int, free: Collection[int] | None) -> tuple[Kernels, int]:
    """Let a schedule take at most ``limit`` bytes on each device that computes, with what it reads and what it gives.

    Args:
        schedule: gets its new order of items, and slots for what is computed again.
        kernels: of its items.
        free: numbers of the inputs whose memory new versions may take; None for any of them.

    Returns:
        The kernels of the new items, and how many bytes are missing.
    """
    items, slots = schedule.items, schedule.slots
    seconds = [seconds_of(item.device, k, sum(slots[s].nbytes for s in item.slots))
               for item, (k, _) in zip(items, kernels)]
    versions = {slot: schedule.inputs[n] for slot, n in schedule.versions.items() if n in schedule.inputs}
    given, fresh = kernels, _fresh(schedule, kernels, free)
    for _ in range(TURNS):
        found = fitted(items, seconds, slots, room_in(limit, slots, fresh), versions)
        schedule.slots = found.slots
        schedule.items = [replace(item, slots=[r.renamed.get(s, s) for s in item.slots], again=r.again,
                                  reason=AGAIN if r.again else item.reason)
                          for r in found.runs for item in [items[r.number]]]
        kernels = [given[r.number] for r in found.runs]
        before, fresh = fresh, _fresh(schedule, kernels, free)
        if fresh <= before:
            break
    return kernels, found.beyond(room_in(limit, slots, fresh))


def _fresh(schedule: Schedule, kernels: Kernels, free: Collection[int] | None) -> set[int]:
    """Slots of results that get new memory."""
    chosen = choose_in_place(schedule, [lines_of(k) for k, _ in kernels])
    return set(schedule.outputs) - {s for s, number in chosen.items() if free is None or number in free}


def room_in(limit: int, slots: Sequence[Slot], fresh: Collection[int]) -> dict[str, int]:
    """What inputs and ``fresh`` results leave of a limit for temporaries, by device that computes."""
    return {d: limit - sum(s.nbytes for s in slots if s.device == d and (s.input or s.number in fresh))
            for d in devices_of(slots)}


def devices_of(slots: Sequence[Slot]) -> set[str]:
    """The devices whose memory counts: those that compute."""
    return {d for d in {s.device for s in slots} if Device[d].has_programs}


def seconds_of(device: str, kernel: Launch | None, nbytes: int) -> float:
    """What a step should take on a modest machine of its kind: a choice must not depend on a measurement."""
    machine = default_machine(Device[device].target)
    if kernel is None:
        return machine.launch + nbytes / machine.memory[-1].all
    return machine.launch + max(kernel.bytes / machine.memory[-1].all, kernel.ops / machine.peak(dtypes.float32).all)


@dataclass(frozen=True)
class Run:
    """Step ``number`` of the program given; ``renamed``: its slots that are other ones now."""

    number: int
    renamed: Mapping[int, int]
    again: bool = False


@dataclass
class Fit:
    """A program of less memory.

    Attributes:
        slots: the given ones, and one for each value that is computed again.
        sizes: bytes of temporaries, by device, and ``missing``: how much of them is beyond what was allowed.
    """

    runs: list[Run]
    slots: list[Slot]
    sizes: dict[str, int]
    missing: int = 0

    def beyond(self, room: Mapping[str, int]) -> int:
        """The bytes of temporaries for which there is no room."""
        return sum(max(self.sizes.get(d, 0) - n, 0) for d, n in room.items())


def fitted(steps: Sequence[Access], seconds: Sequence[float], slots: Sequence[Slot], room: Mapping[str, int],
           versions: Mapping[int, int] | None = None) -> Fit:
    """A program whose temporaries take at most ``room``, with little computed again; the smallest if there is none.

    Args:
        steps: in an order that computes every result.
        seconds: what each step is expected to take.
        room: bytes, by device; a device that it does not name is not limited.
        versions: slots of new versions, and of the old ones, which they may overwrite when all have been read.
    """
    program = _Program(steps, seconds, slots, versions or {})
    given = program.fit([Run(n, {}) for n in range(len(steps))], slots, room)
    if not given.missing:
        return given
    order = early(program)
    found = program.fit([Run(n, {}) for n in order], slots, room)
    if not found.missing:
        return found
    if given.missing < found.missing:
        found, order = given, list(range(len(steps)))
    best = _walks(program, order, room, room, found)
    if not best.missing:
        return best
    low, high = 0.0, 1.0  # nothing fits: the least memory, between the room and what the best order takes
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        between = {d: max(n, int(n + middle * (found.sizes.get(d, 0) - n))) for d, n in room.items()}
        walked = _walks(program, order, between, room, best)
        if walked.missing < best.missing:
            best, high = walked, middle
        else:
            low = middle
    return best


def _walks(program: _Program, order: Sequence[int], limit: Mapping[str, int], room: Mapping[str, int],
           best: Fit) -> Fit:
    """The best of ``best`` and some walks, each with a limit that is lower by what the one before had too much."""
    limit = dict(limit)
    for _ in range(ROUNDS):
        walk = _Walk(program, order, limit)
        if not walk.run():
            break
        found = program.fit(walk.runs, walk.slots, room)
        if found.missing < best.missing:
            best = found
        over = {d: found.sizes.get(d, 0) - n for d, n in limit.items()}
        if not found.missing or max(over.values(), default=0) <= 0:
            break
        limit = {d: n - max(over[d], 0) for d, n in limit.items()}
    return best


class _Program:
    """A program as the passes of this file see it: what reads and makes each slot, and how large a temporary is."""

    def __init__(self, steps: Sequence[Access], seconds: Sequence[float], slots: Sequence[Slot],
                 versions: Mapping[int, int]) -> None:
        self.slots, self.seconds = list(slots), list(seconds)
        self.written = [list(s.written) for s in steps]
        self.read = [list(dict.fromkeys(s.read)) for s in steps]
        self.maker = {s: n for n, written in enumerate(self.written) for s in written}
        self.readers: dict[int, list[int]] = {}
        for n, read in enumerate(self.read):
            for s in read:
                self.readers.setdefault(s, []).append(n)
        self.size = {s.number: -(-max(s.nbytes, 1) // ALIGN) * ALIGN for s in slots if not (s.input or s.output)}
        self.after: list[set[int]] = [{self.maker[s] for s in read if s in self.maker} for read in self.read]
        self.overwrites: dict[int, int] = {}  # slot of an old version → the step that makes the new one
        for new, old in versions.items():
            writer = self.maker[new]
            self.overwrites[old] = writer
            self.after[writer] |= {r for r in self.readers.get(old, ()) if r < writer}

    def fit(self, runs: list[Run], slots: Sequence[Slot], room: Mapping[str, int]) -> Fit:
        uses = [[r.renamed.get(s, s) for s in (*self.written[r.number], *self.read[r.number])] for r in runs]
        sizes = plan_slots(slots, uses).sizes
        found = Fit(runs, list(slots), sizes)
        found.missing = found.beyond(room)
        return found


def early(program: _Program) -> list[int]:
    """Steps in an order that holds less: one that gives back what it takes, or more, runs as soon as it can; all
    others in their own order."""
    waiting = [len(before) for before in program.after]
    next_of: list[list[int]] = [[] for _ in waiting]
    for n, before in enumerate(program.after):
        for u in before:
            next_of[u].append(n)
    left = {s: len(readers) for s, readers in program.readers.items()}
    ready = [n for n, count in enumerate(waiting) if not count]

    def price(n: int) -> tuple[bool, int, int]:
        """Whether it takes more than it gives back; else what it takes while it runs."""
        taken = sum(program.size.get(s, 0) for s in program.written[n])
        freed = sum(program.size.get(s, 0) for s in program.read[n] if left[s] == 1)
        return taken > freed, taken if taken <= freed else 0, n

    order = []
    while ready:
        n = min(ready, key=price)
        ready.remove(n)
        order.append(n)
        for s in program.read[n]:
            left[s] -= 1
        for m in next_of[n]:
            waiting[m] -= 1
            if not waiting[m]:
                ready.append(m)
    return order


class _Walk:
    """One walk over the steps with a limit: what runs, and when, so that all temporaries in use fit.

    Attributes:
        live: the slot that holds each value now, by the slot that the program has for it.
    """

    def __init__(self, program: _Program, order: Sequence[int], limit: Mapping[str, int]) -> None:
        self.program, self.order, self.limit = program, order, limit
        self.slots = list(program.slots)
        self.runs: list[Run] = []
        self.live: dict[int, int] = {}
        self.used = dict.fromkeys(limit, 0)
        self.made: set[int] = set()  # steps that have run
        place = {n: at for at, n in enumerate(order)}
        self.overwritten = {old: place[writer] for old, writer in program.overwrites.items()}
        self.uses = {s: sorted(place[r] for r in readers) for s, readers in program.readers.items()}
        self.clock = [0.0, *itertools.accumulate(program.seconds[n] for n in order)]
        self.at = 0

    def run(self) -> bool:
        """Whether it went to the end."""
        return all(self.compute(number, at) for at, number in enumerate(self.order))

    def compute(self, number: int, at: int) -> bool:
        """Run the step at place ``at``, after those that make again what it reads and is not there; False if there is
        no room."""
        self.at = at
        read, size = self.program.read, self.program.size
        stack = [number]
        while stack:
            top = stack[-1]
            gone = next((s for s in read[top] if s in size and s not in self.live), None)
            if gone is not None:
                stack.append(self.program.maker[gone])
                continue
            if len(self.runs) > MOST_RUNS * len(self.order) + 64 or not self.make_room(top, stack):
                return False
            stack.pop()
            self.emit(top, stack)
        return True

    def make_room(self, number: int, stack: Sequence[int]) -> bool:
        """Let values give way until the results of a step fit."""
        program = self.program
        needed: dict[str, int] = {}
        for s in program.written[number]:
            if (s in program.size or number in self.made) and program.slots[s].device in self.limit:
                needed[program.slots[s].device] = needed.get(program.slots[s].device, 0) + program.size.get(s, ALIGN)
        pinned = {s for n in stack for s in program.read[n]}
        for device, nbytes in needed.items():
            while self.used[device] + nbytes > self.limit[device]:
                victim = self.victim(device, pinned)
                if victim is None:
                    return False
                self.drop(victim)
        return True

    def victim(self, device: str, pinned: Collection[int]) -> int | None:
        """The value to give way: cheapest per byte and second until it is read again."""
        best, least = None, float("inf")
        for s in self.live:
            if s in pinned or self.program.slots[s].device != device:
                continue
            until = self.next_use(s)
            if until is None or (cost := self.cost(s, until)) is None:
                continue
            score = cost / (self.program.size[s] * max(self.clock[until] - self.clock[self.at], 1e-9))
            if score < least:
                best, least = s, score
        return best

    def cost(self, slot: int, until: int) -> float | None:
        """Seconds to make a value again, with all that would have to be; None where an old version that it is made of
        is overwritten by then."""
        program, total = self.program, 0.0
        seen: set[int] = set()
        stack = [program.maker[slot]]
        while stack:
            n = stack.pop()
            if n in seen:
                continue
            seen.add(n)
            total += program.seconds[n]
            for s in program.read[n]:
                if self.overwritten.get(s, until) < until:
                    return None
                if s in program.size and s not in self.live:
                    stack.append(program.maker[s])
        return total

    def next_use(self, slot: int) -> int | None:
        """Where the program reads a value next."""
        uses = self.uses.get(slot, ())
        n = bisect.bisect_right(uses, self.at)
        return uses[n] if n < len(uses) else None

    def emit(self, number: int, stack: Sequence[int]) -> None:
        """Note that a step runs; what nothing reads any more, and what it makes though it is there, is dropped."""
        program = self.program
        again = number in self.made
        renamed = {s: self.live[s] for s in program.read[number] if s in program.size}
        wanted = {s for n in stack for s in program.read[n]}
        for s in program.written[number]:
            if s not in program.size and not again:
                continue
            new = s if not again else len(self.slots)
            if again:
                self.slots.append(replace(program.slots[s], number=new, output=False))
            renamed[s] = new
            if s in program.size and s not in self.live and (s in wanted or self.next_use(s) is not None):
                self.live[s] = new
                self.count(s, program.size[s])
        self.made.add(number)
        self.runs.append(Run(number, {s: m for s, m in renamed.items() if s != m}, again))
        for s in program.read[number]:
            if s in self.live and s not in wanted and self.next_use(s) is None:
                self.drop(s)

    def drop(self, slot: int) -> None:
        del self.live[slot]
        self.count(slot, -self.program.size[slot])

    def count(self, slot: int, nbytes: int) -> None:
        device = self.program.slots[slot].device
        if device in self.used:
            self.used[device] += nbytes
