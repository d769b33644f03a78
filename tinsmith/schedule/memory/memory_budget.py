"""Memory budget: reorder a program's steps and rematerialize values so that temporaries fit a limit.

A program is a list of steps over slots. First, list scheduling: a step that frees at least as much memory as it
allocates runs as early as possible. If that is not enough, a walk over the list simulates memory under a limit: when
the results of a step do not fit, a value that is not needed at once is evicted, and the steps that compute it run
again just before its next use. docs/plan.md describes the eviction score and its source. The kernels are unchanged, so
all values are bit-identical.
"""
from __future__ import annotations

import bisect
import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tinsmith.backend.device import Device
from tinsmith.codegen.launch import Launch, lines_of
from tinsmith.codegen.planner.roofline import default_machine
from tinsmith.core.dtypes import dtypes
from tinsmith.schedule.memory.memory_plan import ALIGN, Access, choose_in_place, plan_slots
from tinsmith.schedule.schedule_item import Schedule, Slot

# walks, each with a smaller limit: the memory plan has gaps, so a walk within the limit may still exceed it
ROUNDS: Final = 8
HALVINGS: Final = 7  # bisection steps of the search for the smallest memory
MOST_RUNS: Final = 4  # bound on the steps that run, as a multiple of the steps of the given program
AGAIN: Final = "rematerialized: it did not fit the memory budget"
TURNS: Final = 3  # attempts for a schedule: a new order may prevent in-place outputs, which then need new memory

# By item: the kernel to launch, and its device version where the device runs another one instead; None for copies.
Kernels = list[tuple[Launch | None, Launch | None]]


def within(schedule: Schedule, kernels: Kernels, limit: int, free: Collection[int] | None) -> tuple[Kernels, int]:
    """Reorder and rematerialize ``schedule`` so that each device that computes needs at most ``limit`` bytes.

    The limit counts inputs, results and temporaries.

    Args:
        schedule: changed in place: the new order of items, and slots for rematerialized values.
        kernels: the kernels of the schedule's items.
        free: numbers of the inputs whose memory new versions may overwrite; None for any of them.

    Returns:
        The kernels of the new items, and the number of bytes still missing.
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
    """Return the output slots that need new memory: those not computed in place of an input."""
    chosen = choose_in_place(schedule, [lines_of(k) for k, _ in kernels])
    return set(schedule.outputs) - {s for s, number in chosen.items() if free is None or number in free}


def room_in(limit: int, slots: Sequence[Slot], fresh: Collection[int]) -> dict[str, int]:
    """Return, by device that computes, the bytes of ``limit`` left for temporaries after
    inputs and ``fresh`` results."""
    return {d: limit - sum(s.nbytes for s in slots if s.device == d and (s.input or s.number in fresh))
            for d in devices_of(slots)}


def devices_of(slots: Sequence[Slot]) -> set[str]:
    """Return the devices whose memory is limited: those that run programs."""
    return {d for d in {s.device for s in slots} if Device[d].has_programs}


def seconds_of(device: str, kernel: Launch | None, nbytes: int) -> float:
    """Return the estimated time of a step on the default machine of its kind of device, because choices must not depend
    on measurements."""
    machine = default_machine(Device[device].target)
    if kernel is None:
        return machine.launch + nbytes / machine.memory[-1].all
    return machine.launch + max(kernel.bytes / machine.memory[-1].all, kernel.ops / machine.peak(dtypes.float32).all)


@dataclass(frozen=True)
class StepRun:
    """One execution of step ``number``; ``renamed``: replacements for some of its slots; ``again``: the step has run
    before."""

    number: int
    renamed: Mapping[int, int]
    again: bool = False


@dataclass
class Fit:
    """A reordered program and its memory.

    Attributes:
        runs: the steps in order.
        slots: the given slots, and one for each rematerialized value.
        sizes: bytes of temporaries, by device.
        missing: bytes of temporaries beyond the limit, summed over devices.
    """

    runs: list[StepRun]
    slots: list[Slot]
    sizes: dict[str, int]
    missing: int = 0

    def beyond(self, room: Mapping[str, int]) -> int:
        """Return the bytes of temporaries that exceed ``room``, summed over its devices."""
        return sum(max(self.sizes.get(d, 0) - n, 0) for d, n in room.items())


def fitted(steps: Sequence[Access], seconds: Sequence[float], slots: Sequence[Slot], room: Mapping[str, int],
           versions: Mapping[int, int] | None = None) -> Fit:
    """Return a program whose temporaries take at most ``room`` bytes, with few recomputations; the smallest one found
    if none fits.

    Args:
        steps: in an order that computes every result.
        seconds: estimated time of each step.
        room: the limit of bytes for temporaries, by device; a device without an entry is not limited.
        versions: slot of a new version → slot of the old one, which it may overwrite after the last read.
    """
    program = _Program(steps, seconds, slots, versions or {})
    given = program.fit([StepRun(n, {}) for n in range(len(steps))], slots, room)
    if not given.missing:
        return given
    order = early(program)
    found = program.fit([StepRun(n, {}) for n in order], slots, room)
    if not found.missing:
        return found
    if given.missing < found.missing:
        found, order = given, list(range(len(steps)))
    best = _walks(program, order, room, room, found)
    if not best.missing:
        return best
    # nothing fits: bisect between ``room`` and the sizes of the best order for the smallest memory
    low, high = 0.0, 1.0
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
    """Return the best fit of ``best`` and up to ROUNDS walks; each limit is lowered by the previous walk's excess."""
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
    """Tables of a program: readers and maker of each slot, sizes of temporaries, and dependencies between steps."""

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
        self.overwrites: dict[int, int] = {}  # slot of an old version → the step that writes the new version over it
        for new, old in versions.items():
            writer = self.maker[new]
            self.overwrites[old] = writer
            self.after[writer] |= {r for r in self.readers.get(old, ()) if r < writer}

    def fit(self, runs: list[StepRun], slots: Sequence[Slot], room: Mapping[str, int]) -> Fit:
        uses = [[r.renamed.get(s, s) for s in (*self.written[r.number], *self.read[r.number])] for r in runs]
        sizes = plan_slots(slots, uses).sizes
        found = Fit(runs, list(slots), sizes)
        found.missing = found.beyond(room)
        return found


def early(program: _Program) -> list[int]:
    """Return the steps in an order that needs less memory.

    A step that frees at least as much as it allocates runs as soon as it is ready; the others keep their order.
    """
    waiting = [len(before) for before in program.after]
    next_of: list[list[int]] = [[] for _ in waiting]
    for n, before in enumerate(program.after):
        for u in before:
            next_of[u].append(n)
    left = {s: len(readers) for s, readers in program.readers.items()}
    ready = [n for n, count in enumerate(waiting) if not count]

    def price(n: int) -> tuple[bool, int, int]:
        """Return the sort key of a ready step: whether it allocates more than it frees, else the bytes it allocates."""
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
    """A simulation of the steps under a memory limit, which evicts and rematerializes values so that all live ones fit.

    Attributes:
        live: the slot that holds each value now, by the slot that the program has for it.
        used: bytes of live temporaries, by limited device.
    """

    def __init__(self, program: _Program, order: Sequence[int], limit: Mapping[str, int]) -> None:
        self.program, self.order, self.limit = program, order, limit
        self.slots = list(program.slots)
        self.runs: list[StepRun] = []
        self.live: dict[int, int] = {}
        self.used = dict.fromkeys(limit, 0)
        self.made: set[int] = set()  # steps that have run
        place = {n: at for at, n in enumerate(order)}
        self.overwritten = {old: place[writer] for old, writer in program.overwrites.items()}
        self.uses = {s: sorted(place[r] for r in readers) for s, readers in program.readers.items()}
        self.clock = [0.0, *itertools.accumulate(program.seconds[n] for n in order)]
        self.at = 0

    def run(self) -> bool:
        """Return True if all steps could run within the limit."""
        return all(self.compute(number, at) for at, number in enumerate(self.order))

    def compute(self, number: int, at: int) -> bool:
        """Run the step at position ``at``, after the steps that recompute its evicted inputs;
        False if memory does not suffice."""
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
        """Evict values until the results of a step fit; return False if the step itself needs all remaining values."""
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
        """Return the value to evict: the one with the least recomputation time per byte and per
        second until its next use."""
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
        """Return the seconds to recompute a value with its evicted inputs.

        None if an input is an old version that will be overwritten before position ``until``.
        """
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
        """Return the next position at which the program reads a value; None if there is none."""
        uses = self.uses.get(slot, ())
        n = bisect.bisect_right(uses, self.at)
        return uses[n] if n < len(uses) else None

    def emit(self, number: int, stack: Sequence[int]) -> None:
        """Append a run of a step. Inputs are freed after their last use; results that are live already, or that nothing
        reads, are not kept."""
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
        self.runs.append(StepRun(number, {s: m for s, m in renamed.items() if s != m}, again))
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
