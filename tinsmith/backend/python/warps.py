"""Warps, rings and asynchronous matrix units of the interpreter.

The warps of a block are generators that yield at synchronization points. A new synchronizing op is a subclass of
``Order``: the knowledge that an arriving warp publishes, the condition to continue, and the knowledge it has
afterwards. Unordered accesses are then races, and a state in which no warp can continue is a deadlock.

Asynchronous accesses to local memory are made by an ``Engine``, at the latest legal time. A copy completes only when a
thread waits for it; until then its slot holds poison. The steps of a unit read their operands when they are drained,
from the current contents of the slots; their accumulators are NaN before. So a read before the wait, and a refill
before all steps have drained, are races.
"""
from __future__ import annotations

import random
from collections.abc import Callable, Generator
from dataclasses import dataclass, field

import numpy as np

from tinsmith.backend.python.memory import NOWHERE, REPORT, UNNUMBERED, WARP, CheckedMemory, Clock, poison
from tinsmith.core.dtypes import dtypes
from tinsmith.core.errors import KernelError
from tinsmith.ir.matrix_unit import BulkView, MatrixUnit, StagedLayout
from tinsmith.ir.ops.elementwise import cast_values
from tinsmith.ir.ops.op import Array

FORWARD, BACKWARD = 0, 1  # orders of warps and blocks; any other number is the seed of a random one


class Order:
    """A statement at which a warp may have to wait. ``text`` names it."""

    def __init__(self, text: str) -> None:
        self._text = text

    @property
    def text(self) -> str:
        return self._text

    def arrive(self, block: ThreadBlock, warp: Warp) -> None:
        """Publish the warp's knowledge on arrival."""

    def ready(self, block: ThreadBlock, warp: Warp) -> bool:
        """Return True if the warp may continue."""
        raise NotImplementedError

    def leave(self, block: ThreadBlock, warp: Warp) -> None:
        """Update the warp's clocks as it continues."""


class Barrier(Order):
    """A block-wide barrier: all warps arrive before one continues, and know all earlier accesses to local memory."""

    def arrive(self, block: ThreadBlock, warp: Warp) -> None:
        meeting = block.meetings.setdefault(warp.met, Meeting(self.text, warp.near.told()))
        if meeting.text != self.text:
            raise KernelError(block.kernel, f"deadlock: warp {warp.number} reaches {self.text} while others wait at "
                              f"{meeting.text}", REPORT, NOWHERE)
        meeting.came += 1
        meeting.told = np.maximum(meeting.told, warp.near.told())

    def ready(self, block: ThreadBlock, warp: Warp) -> bool:
        return block.meetings[warp.met].came == len(block.warps)

    def leave(self, block: ThreadBlock, warp: Warp) -> None:
        warp.near.advance(block.meetings[warp.met].told)
        warp.met += 1


class WarpBarrier(Order):
    """A warp-wide barrier: the threads of a warp know each other's accesses."""

    def ready(self, block: ThreadBlock, warp: Warp) -> bool:
        return True

    def leave(self, block: ThreadBlock, warp: Warp) -> None:
        warp.near.advance(warp.near.told())


class Meeting:
    """The state of a barrier: the number of warps that have arrived, and their merged clocks."""

    def __init__(self, text: str, told: Array) -> None:
        self.text, self.told, self.came = text, told, 0


class Engine:
    """An asynchronous agent: pending copies, or a unit that reads its operands from local memory.

    Its accesses are recorded when a warp issues them, as those of a thread with that warp's knowledge. So accesses of
    other threads to the same elements must happen before that, or after a wait for their completion. Copied data
    appears in memory at that wait, the latest possible time, and is poison before.
    """

    def __init__(self, number: int, agents: int) -> None:
        self.clock = Clock(number, np.array([[number * WARP]]), agents)

    def begin(self, warp: Warp) -> int:
        """Record the following accesses by ``clock`` as issued by the warp now; return the time to wait for."""
        self.clock.known = np.zeros_like(self.clock.known)
        self.clock.advance(warp.near.told())
        return self.clock.time

    def done(self, warp: Warp, time: int) -> None:
        """Mark everything issued up to ``time`` as known to the warp, after its wait."""
        told = np.zeros_like(self.clock.known)
        told[self.clock.number] = time
        warp.near.advance(told)


class Warp:
    """Threads that run in lockstep, with clocks for local and for global memory."""

    def __init__(self, number: int, near: Clock, far: Clock) -> None:
        self.number, self.near, self.far = number, near, far
        self.met = 0  # number of barriers passed
        self.waits: Order | None = None
        self.steps: Lines | None = None  # the running generator; None when finished

Lines = Generator[Order, None, None]


class ThreadBlock:
    """The warps of a thread block, interleaved in an order that ``seed`` draws, between their barriers.

    Args:
        seed: the seed of the random order; FORWARD or BACKWARD: the first or the last warp that can run continues.

    Raises:
        KernelError: for a deadlock.
    """

    def __init__(self, kernel: str, warps: list[Warp], seed: int) -> None:
        self.kernel, self.warps, self.seed = kernel, warps, seed
        self.meetings: dict[int, Meeting] = {}

    def run(self) -> None:
        draw = random.Random(self.seed)
        while running := [w for w in self.warps if w.steps is not None]:
            able = [w for w in running if w.waits is None or w.waits.ready(self, w)]
            if not able:
                raise self.deadlock()
            self.advance(able[0] if self.seed == FORWARD else able[-1] if self.seed == BACKWARD else draw.choice(able))

    def advance(self, warp: Warp) -> None:
        """Run a warp to its next synchronization point, or to its end."""
        if warp.waits is not None:
            warp.waits.leave(self, warp)
        assert warp.steps is not None
        warp.waits = next(warp.steps, None)
        if warp.waits is None:
            warp.steps = None
        else:
            warp.waits.arrive(self, warp)

    def deadlock(self) -> KernelError:
        places: dict[str, list[int]] = {}
        for w in self.warps:
            places.setdefault("have finished" if w.waits is None else f"wait at {w.waits.text}",
                              []).append(w.number)
        told = "; ".join(f"warps {', '.join(map(str, w))} {text}" if len(w) > 1 else
                         f"warp {w[0]} {text.replace('have', 'has').replace('wait ', 'waits ')}"
                         for text, w in places.items())
        return KernelError(self.kernel, f"deadlock: {told}", f"{REPORT}; in hand-written code, place "
                           "barriers where all warps of a block arrive", NOWHERE)


def whole_warp(mask: Array, kernel: str, text: str) -> None:
    """Check that all threads of a warp execute a warp-wide statement.

    Raises:
        KernelError: if some threads do not.
    """
    if not mask.all():
        come = np.flatnonzero(mask)
        raise KernelError(kernel, f"deadlock: {text} is executed by only some threads of a warp: {len(come)} of "
                          f"{mask.size}, the first is {come[0]}", "move it out of the divergent branch", NOWHERE)


@dataclass
class RingFill:
    """A slot's number of fills, the bytes that the pending fill expects, and its pending copies.

    ``begun`` and ``landed`` are times of the engine: of its last copy, and of the last completed one. A slot with
    ``readers`` is filled by their releases (a barrier without data); another thread must wait for a fill before the
    next one, since waits only check the parity.
    """

    engine: Engine
    fills: int = 0
    wanted: int = 0
    begun: int = 0
    landed: int = 0
    copies: list[tuple[CheckedMemory, int, Array]] = field(default_factory=list)
    readers: int = 0
    seen: int = 0  # number of fills that a thread has waited for
    left: list[Array] = field(default_factory=list)  # clocks of the warps that have released the slot
    told: Array | None = None  # merged clocks of all warps of the last complete release

    @property
    def come(self) -> int:
        return sum(values.nbytes for _, _, values in self.copies)


class InterpretedRing:
    """The slots of a block, as accessed by one warp."""

    def __init__(self, kernel: str, name: str, slots: list[RingFill], warp: Warp) -> None:
        self.kernel, self.name, self.slots, self.warp = kernel, name, slots, warp

    def arrive(self, slot: int, count: int, mask: Array | None) -> None:
        """Begin a fill of a slot that expects ``count`` bytes; exactly one thread may do so."""
        threads = 1 if mask is None else int(mask.sum())
        if threads != 1 or self.slots[slot].wanted:
            filling = ", whose previous fill is pending" * bool(self.slots[slot].wanted)
            raise KernelError(self.kernel, f"{threads} threads start a fill of slot {slot} of {self.name}{filling}",
                              "one thread, after the previous fill has completed", NOWHERE)
        self.slots[slot].wanted = count

    def release(self, slot: int) -> None:
        """Release a slot by the warp."""
        here = self.slots[slot]
        here.left.append(self.warp.near.told())
        self.warp.near.advance(self.warp.near.known)
        if len(here.left) == here.readers:
            if here.fills > here.seen:
                raise KernelError(self.kernel, f"slot {slot} of {self.name} was released twice without a WAIT for the "
                                  "first release", "a WAIT per release", NOWHERE)
            here.fills, here.told, here.left = here.fills + 1, np.max(here.left, 0), []

    def copy(self, near: CheckedMemory, far: CheckedMemory, view: BulkView, slot: int, place: int, *start: int,
             statement: int = UNNUMBERED, to: str = "") -> None:
        """Start a copy of a box of memory; ``to``: the dtype of the slot's elements, if it differs."""
        values, here = _box(far, view, start), self.slots[slot]
        values = cast_values(values, getattr(dtypes, to)) if to else values
        if not 0 <= place <= near.size - values.size:
            raise near.outside(place, "written")
        at = np.arange(place, place + values.size)[None]
        nothing = poison(values.size, values.dtype, values.dtype.kind not in "iub")[None]
        here.begun = here.engine.begin(self.warp)
        near.seen_by(near.watch, here.engine.clock).write(at, np.ones_like(at, bool), nothing, statement)
        here.copies.append((near, place, values))

    def wait(self, slot: int, parity: int) -> Order:
        return Filled(self, slot, parity)


class Filled(Order):
    """The order of a wait for the fill of a slot with a parity, which completes the fill."""

    def __init__(self, ring: InterpretedRing, slot: int, parity: int) -> None:
        self.slot, self.parity, self.ring, self.number = ring.slots[slot], parity, ring, slot

    @property
    def text(self) -> str:
        if self.slot.readers:
            return (f"WAIT until slot {self.number} of {self.ring.name} is free: {len(self.slot.left)} of "
                    f"{self.slot.readers} warps released it")
        return (f"WAIT for the fill of parity {self.parity} of slot {self.number} of {self.ring.name}, of which "
                f"{self.slot.come} of {self.slot.wanted} bytes issued")

    def ready(self, block: ThreadBlock, warp: Warp) -> bool:
        here = self.slot
        if here.wanted and here.fills % 2 == self.parity and here.wanted == here.come:
            for near, place, values in here.copies:
                near.data[place : place + values.size] = values
            here.fills, here.wanted, here.copies, here.landed = here.fills + 1, 0, [], here.begun
        return here.fills % 2 != self.parity

    def leave(self, block: ThreadBlock, warp: Warp) -> None:
        if self.slot.readers:
            self.slot.seen = self.slot.fills
            if self.slot.told is not None:
                warp.near.advance(self.slot.told)
        else:
            self.slot.engine.done(warp, self.slot.landed)


def _box(far: CheckedMemory, view: BulkView, start: tuple[int, ...]) -> Array:
    """Return the elements of a box, the fastest dimension last; 0 outside of the view."""
    at, inside = np.zeros((), np.int64), np.ones((), bool)
    for size, stride, box, reach, first in zip(view.sizes, view.strides, view.box, view.reach(), start):
        x = first + np.linspace(0, reach - 1, box, dtype=np.int64).reshape((-1,) + (1,) * at.ndim)
        at, inside = at + x * stride, inside & (x >= 0) & (x < size)
    at = at + view.offset
    used = at[inside]
    if used.size and not (used.min() >= 0 and used.max() < far.size):
        raise far.outside(used[(used < 0) | (used >= far.size)][0], "read")
    return far.read(at.reshape(1, -1), np.broadcast_to(inside, at.shape).reshape(1, -1), UNNUMBERED).reshape(-1)


def alike(x: Array) -> int:
    """Return an index, slot or bound that is the same for all threads of a warp."""
    if (x != x.flat[0]).any():
        raise KernelError("PYTHON", "an index, slot or bound must be uniform across a warp",
                          "one value for all threads")
    return int(x.flat[0])


@dataclass
class Staged:
    """An operand tile that stays in local memory."""

    memory: CheckedMemory
    place: int
    layout: StagedLayout
    statement: int = UNNUMBERED

    def places(self, rows: int, columns: int, deep: bool) -> Array:
        """Return the addresses of a tile's (rows, columns); ``deep``: rows run along the reduction."""
        r, c = np.arange(rows)[:, None], np.arange(columns)
        row, column = (r, c) if self.layout.deep == deep else (c, r)
        at: Array = self.place + self.layout.place(row, column)
        if at.max() >= self.memory.size:
            raise self.memory.outside(at.max(), "read")
        return at

    def noted(self, engine: Engine, at: Array) -> None:
        """Record a read of these addresses by the engine."""
        if self.memory.watch is not None:
            self.memory.watch.read(engine.clock, at.reshape(1, -1), np.ones((1, at.size), bool), self.statement)


class UnitSteps:
    """The unit steps that a warp has issued."""

    def __init__(self, engine: Engine, warp: Warp) -> None:
        self.engine, self.warp, self.fenced = engine, warp, False
        self.begun: list[Callable[[], None]] = []
        self.groups: list[tuple[int, list[Callable[[], None]]]] = []

    def fence(self) -> None:
        self.fenced = True

    def step(self, unit: MatrixUnit, total: Array, a: Staged | Array, b: Staged, thread: Array) -> Array:
        """Issue a step and return its accumulator, NaN until drained, or for good without a preceding FENCE. An operand
        ``a`` in registers holds the rows of the warp's accumulator."""
        out = np.full((len(thread), unit.fragment_c.size), np.nan, unit.acc.numpy)
        places = unit.fragment_c.places()[thread[:, 0] % unit.threads]
        columns = b.places(unit.k, unit.n, True)
        self.engine.begin(self.warp)
        b.noted(self.engine, columns)
        if isinstance(a, Staged):
            rows = a.places(unit.m, unit.k, False)
            a.noted(self.engine, rows)

        def work() -> None:
            if isinstance(a, Staged):
                left = a.memory.data[rows].astype(unit.acc.numpy)
            else:
                left = np.zeros((unit.m, unit.k), unit.acc.numpy)
                at = unit.operand_a.places()[thread[:, 0] % unit.threads]
                left[at[..., 0], at[..., 1]] = a.astype(unit.acc.numpy)
            out[:] = total + (left @ b.memory.data[columns].astype(unit.acc.numpy))[places[..., 0], places[..., 1]]

        if self.fenced:
            self.begun.append(work)
        return out

    def commit(self) -> None:
        self.groups.append((self.engine.clock.time, self.begun))
        self.begun, self.fenced = [], False

    def drain(self, most: int, total: Array | None = None) -> Array | None:
        """Complete all but the last ``most`` groups; their operands' memory may be overwritten from now on."""
        while len(self.groups) > most:
            time, steps = self.groups.pop(0)
            for work in steps:
                work()
            self.engine.done(self.warp, time)
        return total
