"""The warps of a block, as generators that yield at synchronization points, and the order that these establish.

A new synchronizing op is a subclass of ``Order``: the knowledge that an arriving warp publishes, the condition to
continue, and the knowledge it has afterwards. Asynchronous accesses to local memory are made by an ``Engine``. The rest
follows: unordered accesses are races, and a state in which no warp can continue is a deadlock.
"""
from __future__ import annotations

import random
from collections.abc import Generator

import numpy as np

from tinsmith.backend.python.memory import NOWHERE, REPORT, WARP, Clock
from tinsmith.core.errors import KernelError
from tinsmith.ir.ops.op import Array

FORWARD, BACKWARD = 0, 1  # orders of warps and blocks; any other number is the seed of a random one


class Order:
    """A statement at which a warp may have to wait. ``text`` names it."""

    def __init__(self, text: str) -> None:
        self.text = text

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
        seed: of the random order; FORWARD or BACKWARD: the first or the last warp that can run goes on.

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
