"""Memory of interpreted kernels: named, bounds-checked, and checked for data races where threads share it.

The race detector keeps the last accesses of each element and the happened-before order. Time is counted per warp: it
advances at synchronization points, which order earlier accesses of its threads before later accesses of others (a
``Clock`` is advanced). An access happened before another one if one thread did both, or if the time of the first is
among those that the second one's clock knows (vector clocks: Lamport, 1978; Mattern, 1989). Two accesses of one
element, at least one of which writes, are a *race* if neither happened before the other. Races are found regardless of
the order in which the warps have run.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from tinsmith.codegen.launch import programs
from tinsmith.core.errors import KernelError, place
from tinsmith.ir import Ops, UOp
from tinsmith.ir.ops.op import Array
from tinsmith.ir.text.node import short

WARP: Final = 32

# A stamp encodes an access in 64 bits: the warp's time, the thread, and the number of the statement. 0: none.
_TIME = 46
_THREAD = 16
_SEVERAL: Final = (1 << _TIME - _THREAD) - 1  # stands for several threads in the thread field
_THREADS: Final = _SEVERAL << _THREAD
UNNUMBERED: Final = (1 << _THREAD) - 1
NOWHERE: Final = ("<unknown>", 0)  # no user line: the kernel's own line is not in user code
REPORT: Final = "report it, unless the program was built by hand: this is a bug of tinsmith"


class Clock:
    """The vector clock of a warp: it knows all accesses of warp v up to the time ``known[v]``."""

    def __init__(self, number: int, threads: Array, warps: int) -> None:
        self.number, self.threads, self.time = number, threads, 0
        self.known = np.zeros(warps, np.int64)
        self.all, self.none = np.ones_like(threads, bool), np.zeros_like(threads)
        self.advance(self.known)

    def told(self) -> Array:
        """Return the clock to publish: the warp's knowledge, including its own accesses so far."""
        told = self.known.copy()
        told[self.number] = self.time
        return told

    def advance(self, told: Array) -> None:
        """Merge a published clock and begin a new time."""
        self.known = np.maximum(self.known, told)
        self.time += 1
        self.stamps = (self.time << _TIME) + (self.threads << _THREAD)
        self.fresh = (int(self.known.min()) + 1) << _TIME  # the least stamp that may be unknown


class RaceDetector:
    """A detector of data races on one memory, which records the last reads and writes of each element.

    Two accesses of one element race if one of them writes and no barrier orders them (vector clocks).

    Args:
        kernel, name: names of the kernel and of the memory, for messages.
        statements: text of each statement, by its number.
        size: number of elements.
        warps: number of warps (agents) with separate times.
        thread: returns the name of a thread from its number.
        near: local memory: a read before any write is an error, and two threads may not write one element, even the
            same value. Otherwise threads may write the same value to one element.
    """

    def __init__(self, kernel: str, name: str, statements: Sequence[str], size: int, warps: int,
                 thread: Callable[[int], str], near: bool) -> None:
        self.kernel, self.name, self.statements, self.thread, self.near = kernel, name, statements, thread, near
        self.unwritten: KernelError | None = None  # a read of unwritten local memory, reported unless there is a race
        self.wrote = np.zeros(size, np.int64)
        # the last read by each warp, by one of its threads or by several
        self.reads = np.zeros((warps, size), np.int64)

    def read(self, clock: Clock, at: Array, mask: Array, statement: int) -> None:
        """Record reads by the threads of a warp where ``mask`` holds; the arrays are of (threads or 1, lanes).

        Raises:
            KernelError: for a race.
        """
        mask, at, stamps = _done(clock, at, mask, statement)
        if not at.size:
            return
        wrote = self.wrote[at]
        if self.near and not wrote.all():
            first, place = stamps[wrote == 0][0], at[wrote == 0][0]
            told = f"{self._thread(first)} reads {self.name}[{place}] ({self._said(first)}), which is uninitialized"
            self.unwritten = self.unwritten or KernelError(self.kernel, told, REPORT, NOWHERE)
        self._compare(clock, at, stamps, wrote, "reads")
        row = self.reads[clock.number]
        before = row[at]
        row[at] = stamps
        several = _others(row[at], stamps) | (_others(before, stamps) & (before >> _TIME > clock.known[clock.number]))
        if several.any():
            row[at[several]] = stamps[several] | _THREADS

    def write(self, clock: Clock, at: Array, mask: Array, statement: int, data: Array, value: Array) -> None:
        """Write ``value`` where ``mask`` holds, and record it.

        Raises:
            KernelError: for a race.
        """
        mask, at, stamps = _done(clock, at, mask, statement)
        if not at.size:
            return
        value = np.broadcast_to(value, mask.shape)[mask]
        self._compare(clock, at, stamps, self.reads[:, at], "writes")
        old = _bits(data[at])
        data[at] = value
        self._compare(clock, at, stamps, self.wrote[at], "writes", None if self.near else old != _bits(value))
        self.wrote[at] = stamps
        last = self.wrote[at]
        beside = _others(last, stamps) & (self.near | (_bits(data[at]) != _bits(value)))  # races within this access
        if beside.any():
            self._race(at[beside][0], stamps[beside][0], last[beside][0], "writes", "written")

    def _compare(self, clock: Clock, at: Array, stamps: Array, before: Array, verb: str,
                 among: Array | None = None) -> None:
        """Check accesses for races with the earlier ones: of one warp each (a row per warp) or of any warp."""
        if before.max() < clock.fresh:
            return
        if before.ndim > 1:
            known = clock.known[:, None]
        else:
            known = clock.known[(before >> _THREAD & _SEVERAL) // WARP if len(clock.known) > 1 else 0]
        race = (before >> _TIME > known) & _others(before, stamps)
        race = race if among is None else race & among
        if race.any():
            first = tuple(i[0] for i in race.nonzero())
            self._race(at[first[-1]], stamps[first[-1]], before[first], verb, "read" if before.ndim > 1 else "written")

    def _race(self, at: int, stamp: int, before: int, verb: str, did: str) -> None:
        raise KernelError(self.kernel, f"race: {self._thread(stamp)} {verb} {self.name}[{at}] ({self._said(stamp)}), "
                          f"{did} by {self._thread(before)} ({self._said(before)}): the two accesses are unordered",
                          f"{REPORT}; in hand-written code, a BARRIER between them", NOWHERE)

    def _thread(self, stamp: int) -> str:
        number = int(stamp) >> _THREAD & _SEVERAL
        return "several threads" if number == _SEVERAL else self.thread(number)

    def _said(self, stamp: int) -> str:
        number = int(stamp) & UNNUMBERED
        text = self.statements[number] if number < len(self.statements) else "through an alias"
        return text + user_line(self.kernel, number)


def _done(clock: Clock, at: Array, mask: Array, statement: int) -> tuple[Array, Array, Array]:
    """Return the mask, addresses and stamps of an access; a uniform access is made by each thread."""
    mask = mask & clock.all  # a sum is faster than a broadcast view
    stamps = clock.stamps + (min(statement, UNNUMBERED) + np.zeros(mask.shape[1], np.int64))
    at = at + clock.none
    return (mask, at.reshape(-1), stamps.reshape(-1)) if mask.all() else (mask, at[mask], stamps[mask])


def _bits(values: Array) -> Array:
    return values.view(f"u{values.itemsize}")


def _others(before: Array, stamps: Array) -> Array:
    """Return True where another thread made the earlier access."""
    found: Array = (before != 0) & ((before ^ stamps) & _THREADS != 0)
    return found


# *** the statements of a program ***
_MEMORY: Final = {Ops.LOAD: 0, Ops.STORE: 0, Ops.LOAD_TILE: 0, Ops.STORE_TILE: 0, Ops.ASYNC_COPY: 2, Ops.TILE: 0,
                  Ops.LOAD_MATRIX: 0}

_WRITES: Final = (Ops.STORE, Ops.STORE_TILE, Ops.ASYNC_COPY)


def shared_accesses(program: Sequence[UOp]) -> list[UOp]:
    """Return the loads and stores of memory that several threads share and one writes; each once, in order."""
    lines = [u for u in program if u.op is Ops.SPECIAL]
    block = any(is_lane(u) for u in lines)
    if not lines:
        return []
    written = {u.src[_MEMORY[u.op]] for u in program if u.op in _WRITES}
    shared = {m for m in written if block or m.op is not Ops.DEFINE_LOCAL}
    return list(dict.fromkeys(u for u in program if u.op in _MEMORY and u.src[_MEMORY[u.op]] in shared))


def statement_text(u: UOp) -> str:
    """Return a short text of an access.

    >>> near = UOp(Ops.DEFINE_LOCAL, dtypes.int32.ptr(), (), ("tmp0", 4))
    >>> statement_text(UOp(Ops.LOAD, dtypes.int32, (near, UOp.index(3))))
    'LOAD tmp0[3]'
    """
    memory, index = u.src[_MEMORY[u.op] : _MEMORY[u.op] + 2]
    return f"{u.op.name} {f'data{memory.arg}' if memory.op is Ops.DEFINE_GLOBAL else memory.arg[0]}[{short(index, 1)}]"


def user_line(symbol: str, number: int) -> str:
    """Return the user's line of a statement of a kernel compiled in this process, or an empty string."""
    program = next((p for p in programs.values() if p.symbol == symbol), None)
    found = shared_accesses(program.uops) if program is not None else []
    if number >= len(found):
        return ""
    origin = next((n.origin for n in reversed(found[number].toposort()) if n.origin), ())
    return f", {place(*origin[-1][1:])}" if origin else ""


def is_lane(u: UOp) -> bool:
    """Return True for a SPECIAL that differs between the threads of a block: ``("lidx0", size)``."""
    return u.op is Ops.SPECIAL and isinstance(u.arg, tuple) and str(u.arg[0]).startswith("lidx")


def poison(elements: int, dtype: Any, is_float: bool) -> Array:
    """Return the contents of unwritten local memory: NaN, or bytes that no integer is likely to have."""
    return (np.full(elements, np.nan, dtype) if is_float else
            np.full(elements * np.dtype(dtype).itemsize, 0xA5, np.uint8).view(dtype))


class CheckedMemory:
    """A buffer argument or local memory, with its name for error messages; if watched, as one warp accesses it."""

    __slots__ = ("clock", "data", "kernel", "name", "size", "watch")

    def __init__(self, kernel: str, name: str, data: Array, watch: RaceDetector | None = None,
                 clock: Clock | None = None) -> None:
        self.kernel, self.name, self.data, self.size = kernel, name, data, data.size
        self.watch, self.clock = watch, clock

    def seen_by(self, watch: RaceDetector | None, clock: Clock) -> CheckedMemory:
        """Return the same memory, with accesses recorded for a warp's clock."""
        return self if watch is None else CheckedMemory(self.kernel, self.name, self.data, watch, clock)

    def outside(self, index: Any, verb: str) -> KernelError:
        return KernelError(self.kernel, f"index {int(index)} of {self.name}, which has {self.size} elements, is {verb}",
                           REPORT)

    def read(self, at: Array, mask: Array, statement: int) -> Array:
        """Return the elements at ``at`` where ``mask`` holds, 0 elsewhere."""
        if self.watch is not None and self.clock is not None:
            self.watch.read(self.clock, at, mask, statement)
        out = np.zeros(at.shape, self.data.dtype)
        out[mask] = self.data[at[mask]]
        return out

    def write(self, at: Array, mask: Array, value: Array, statement: int) -> None:
        if self.watch is not None and self.clock is not None:
            self.watch.write(self.clock, at, mask, statement, self.data, value)
        else:
            self.data[at[mask]] = value[mask]
