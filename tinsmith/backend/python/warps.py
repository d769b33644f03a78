"""The warps of a block, each a generator that yields where it may have to wait, and what such a wait orders.

A new op that orders something is a subclass of ``Order``: what a warp leaves there for others, when it may go on, and
what it knows then. What accesses local memory on its own is an ``Engine``. The rest follows: races are what nothing
orders, a deadlock is that no warp may go on.
"""
from __future__ import annotations

import random
from collections.abc import Generator

import numpy as np

from tinsmith.backend.python.watch import NOWHERE, REPORT, WARP, Clock
from tinsmith.core.errors import KernelError
from tinsmith.ir.ops.op import Array

FORWARD, BACKWARD = 0, 1  # orders of warps and blocks; any other number is the seed of a random one


class Order:
    """A statement at which a warp may have to wait. ``text`` names it."""

    def __init__(self, text: str) -> None:
        self.text = text

    def arrive(self, block: Block, warp: Warp) -> None:
        """What the warp leaves behind as it comes."""

    def ready(self, block: Block, warp: Warp) -> bool:
        """Whether it may go on."""
        raise NotImplementedError

    def leave(self, block: Block, warp: Warp) -> None:
        """What it knows as it goes on: its clocks are advanced."""


class Barrier(Order):
    """All warps of the block come before one goes on, and know what each did to local memory."""

    def arrive(self, block: Block, warp: Warp) -> None:
        meeting = block.meetings.setdefault(warp.met, Meeting(self.text, warp.near.told()))
        if meeting.text != self.text:
            raise KernelError(block.kernel, f"deadlock: warp {warp.number} comes to {self.text} while others wait at "
                              f"{meeting.text}", REPORT, NOWHERE)
        meeting.came += 1
        meeting.told = np.maximum(meeting.told, warp.near.told())

    def ready(self, block: Block, warp: Warp) -> bool:
        return block.meetings[warp.met].came == len(block.warps)

    def leave(self, block: Block, warp: Warp) -> None:
        warp.near.advance(block.meetings[warp.met].told)
        warp.met += 1


class WarpBarrier(Order):
    """The threads of a warp know what each of them did."""

    def ready(self, block: Block, warp: Warp) -> bool:
        return True

    def leave(self, block: Block, warp: Warp) -> None:
        warp.near.advance(warp.near.told())


class Meeting:
    """Warps at a barrier: how many have come, and what all of them have told."""

    def __init__(self, text: str, told: Array) -> None:
        self.text, self.told, self.came = text, told, 0


class Engine:
    """What works on its own while warps go on: copies under way, or a unit that reads its operands in local memory.

    Its accesses are noted when a warp begins them, as those of a thread that knows what the warp knows by then, so that
    others' accesses of the same elements must lie before that; or behind the wait by which a warp knows them done.
    What they bring belongs to memory at the last such moment, and poison until then.
    """

    def __init__(self, number: int, agents: int) -> None:
        self.clock = Clock(number, np.array([[number * WARP]]), agents)

    def begin(self, warp: Warp) -> int:
        """Accesses by ``clock`` are from now on those that the warp begins here; the time by which to wait for them."""
        self.clock.known = np.zeros_like(self.clock.known)
        self.clock.advance(warp.near.told())
        return self.clock.time

    def done(self, warp: Warp, time: int) -> None:
        """The warp has waited for all that was begun up to a time."""
        told = np.zeros_like(self.clock.known)
        told[self.clock.number] = time
        warp.near.advance(told)


class Warp:
    """Threads that run in lockstep, with clocks for local memory and for the device's."""

    def __init__(self, number: int, near: Clock, far: Clock) -> None:
        self.number, self.near, self.far = number, near, far
        self.met = 0  # barriers behind it
        self.waits: Order | None = None
        self.steps: Lines | None = None  # until it ends


Lines = Generator[Order, None, None]


class Block:
    """Warps that run until all have ended.

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
        """Run a warp to where it waits next, or to its end."""
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
            places.setdefault("have come to the end" if w.waits is None else f"wait at {w.waits.text}",
                              []).append(w.number)
        told = "; ".join(f"warps {', '.join(map(str, w))} {text}" if len(w) > 1 else
                         f"warp {w[0]} {text.replace('have', 'has').replace('wait ', 'waits ')}"
                         for text, w in places.items())
        return KernelError(self.kernel, f"deadlock: {told}", f"{REPORT}; by hand, place barriers where all warps of a "
                           "block come", NOWHERE)





def whole_warp(mask: Array, kernel: str, text: str) -> None:
    """What the threads of a warp do together, some of them do not come to.

    Raises:
        KernelError: if so.
    """
    if not mask.all():
        come = np.flatnonzero(mask)
        raise KernelError(kernel, f"deadlock: {text} stands where only some threads of a warp come: {len(come)} of "
                          f"{mask.size}, the first is {come[0]}", "move it out of the condition", NOWHERE)
