"""Command queues: a schedule as a list of commands per device, synchronized by SYNC and WAIT.

A SYNC marks that all earlier commands of its queue have run; a WAIT stops its queue until a SYNC of another queue.
Kernels run in the queue of their device, as do copies from the host. A copy from one computing device to another runs
in a separate copy queue of the target, so it overlaps with kernels of the target that do not need it.

Queues of one ``Compiled.worker`` (all ``CPU:k`` share a pool, all ``PYTHON:k`` the interpreter) share one thread; other
queues have a thread each and overlap.
"""
from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from queue import SimpleQueue
from typing import Any

from tinsmith.backend.device import Device
from tinsmith.backend.memory import Buffer, copy_buffer
from tinsmith.backend.shards import flattened
from tinsmith.core.errors import ArgumentError, DeviceError, VerifyError
from tinsmith.core.settings import in_context
from tinsmith.runtime.compiled_schedule import CompiledSchedule, CopyItem, KernelItem, copy_item
from tinsmith.runtime.step import Step
from tinsmith.schedule.multi.collectives import COPIES, queue_of, workers


@dataclass(eq=False, repr=False)
class SyncItem:
    """A mark that all earlier commands of its queue have run."""

    number: int
    queue: str

    def __repr__(self) -> str:
        return f"SYNC   {self.number}"


@dataclass(eq=False, repr=False)
class WaitItem:
    """A stop of the queue until ``sync`` is reached in another queue."""

    sync: SyncItem

    def __repr__(self) -> str:
        return f"WAIT   {self.sync.number} of {self.sync.queue}"


Item = KernelItem | CopyItem | SyncItem | WaitItem


class CommandQueue:
    """Queues of commands, by name of their device.

    Args:
        schedule: a compiled schedule, or queues made by hand.

    >>> ready, done = SyncItem(0, "CPU"), SyncItem(1, "CPU:1")
    >>> print(CommandQueue({"CPU": [ready, WaitItem(done)], "CPU:1": [WaitItem(ready), done]}))
    CPU
       0 SYNC   0
       1 WAIT   1 of CPU:1
    CPU:1
       0 WAIT   0 of CPU
       1 SYNC   1

    Raises:
        ArgumentError: for what is neither a schedule nor lists of commands by name, and for a SYNC that stands twice.
        DeviceError: if queues made by hand wait for each other in a circle, or for a SYNC that is in none of them.
    """

    def __init__(self, schedule: CompiledSchedule | Mapping[str, Sequence[Item]]) -> None:
        self.q: dict[str, list[Item]] = {}
        self.threads: dict[str, list[tuple[str, Item]]] = {}  # thread → its commands, each with the name of its queue
        self.compiled = schedule if isinstance(schedule, CompiledSchedule) else None
        if isinstance(schedule, CompiledSchedule):
            self._build(schedule)
        else:
            self.q = _checked(schedule)
        check_deadlock(self.q)

    def __str__(self) -> str:
        lines = []
        for name, items in self.q.items():
            lines += [name, *(f"{n:4d} {item}" for n, item in enumerate(items))]
        return "\n".join(lines)

    __repr__ = __str__

    # *** from a schedule ***

    def _build(self, compiled: CompiledSchedule) -> None:
        bound = compiled.bound
        regions = _Regions(compiled)
        homes = [queue_of(step.program is None, *(compiled.schedule.slots[s].device for s in step.slots[:2]))
                 for step in compiled.steps]
        waits = _waits(homes, [regions.needs(number, step) for number, step in enumerate(compiled.steps)])
        met = {u for before in waits for u in before}
        syncs: dict[int, SyncItem] = {}
        for number, (step, home) in enumerate(zip(compiled.steps, homes)):
            items = self.q.setdefault(home, [])
            before = len(items)
            items += [WaitItem(syncs[u]) for u in waits[number]]
            if step.program is None:
                items.append(copy_item(step, bound.slots))
            elif items and isinstance(items[-1], KernelItem):
                items[-1].steps.append(step)
            else:
                items.append(KernelItem([step]))
            if number in met:
                syncs[number] = SyncItem(len(syncs), home)
                items.append(syncs[number])
            self.threads.setdefault(_thread_of(home), []).extend((home, item) for item in items[before:])
        self.q = dict(sorted(self.q.items()))
        queued = [s for item in self._commands() for s in item.steps]
        if sorted(map(id, queued)) != sorted(map(id, compiled.steps)):
            raise VerifyError(f"CommandQueue: {len(compiled.steps)} steps were given, {len(queued)} are in the queues")
        for item in self._commands():
            if isinstance(item, KernelItem):
                item.make_ready(bound)

    def _commands(self) -> list[KernelItem | CopyItem]:
        """Return the commands that run steps of a schedule."""
        return [i for items in self.q.values() for i in items if isinstance(i, (KernelItem, CopyItem))]

    # *** running ***

    def __call__(self, bases: Sequence[Buffer] | None = None, values: Sequence[int] = (),
                 launched: list[Step] | None = None) -> list[Buffer]:
        """Run all commands and return when the last one is done.

        Args:
            bases: buffers, numbered as in ``compiled_schedule.Bound``; None: the buffers of the tensors that the
                schedule was made for, and new memory for its results.
            values: the values of the program's variables.
            launched: receives the steps of a command that fails.

        Returns:
            The buffers of the results if it allocated them itself (``bases`` is None); one per part for a value over
            several devices.

        >>> from tinsmith import Tensor
        >>> (result,) = CommandQueue(Tensor([1, 2]).dot(Tensor([3, 4])).schedule())()
        >>> result.numpy()
        array([11], dtype=int32)

        Raises:
            Exception: the first that a command raised. The other queues then end where they are.
            DeviceError: for queues made by hand: they have no buffers to run on.
        """
        if self.compiled is None:
            raise DeviceError("CommandQueue", "hand-made queues have no buffers, so they cannot run",
                              "CommandQueue(tensor.schedule())")
        results: list[Buffer] = []
        if bases is None:
            bases, values, results = _memory(self.compiled)
        for b in bases:
            b.check()
            b.opaque  # noqa: B018  allocate memory on this thread
        _Run(self, bases, values).wait([] if launched is None else launched)
        for item in self._commands():
            item.count()
        return results


def _memory(compiled: CompiledSchedule) -> tuple[list[Buffer], list[int], list[Buffer]]:
    """Return (bases, values, results) of a tensor's schedule.

    Raises:
        DeviceError: for a schedule that was not made for tensors.
    """
    if compiled.arguments is None:
        raise DeviceError("CommandQueue", "the schedule was made without tensors, so it has no buffers",
                          "CommandQueue(tensor.schedule())()")
    (inputs, values), bound = compiled.arguments, compiled.bound
    given, outputs = flattened(inputs), bound.new_outputs()
    bases = [*(given[n] for n in bound.inputs), *outputs, *bound.new_blocks()]
    return bases, values, [outputs[n] for n in bound.results]


def _checked(queues: Any) -> dict[str, list[Item]]:
    """Return hand-made queues after checking the types of their commands."""
    if not isinstance(queues, Mapping) or not all(isinstance(items, (list, tuple)) for items in queues.values()):
        raise ArgumentError("CommandQueue", "takes a schedule, or a dict of command lists by device, not "
                            f"{queues!r:.60}", "CommandQueue(tensor.schedule()), or {'CPU': [SyncItem(0, 'CPU')]}")
    synced: set[SyncItem] = set()
    for name, items in queues.items():
        for n, item in enumerate(items):
            if not isinstance(item, (KernelItem, CopyItem, SyncItem, WaitItem)):
                raise ArgumentError("CommandQueue", f"{name} {n} is not a command: {item!r:.60}",
                                    "KernelItem, CopyItem, SyncItem and WaitItem")
            if item in synced:
                raise ArgumentError("CommandQueue", f"{_shown(queues, (name, n))} is in the queues twice",
                                    "a new SyncItem for each position")
            if isinstance(item, SyncItem):
                synced.add(item)
    return {name: list(items) for name, items in queues.items()}


def _waits(homes: Sequence[str], needs: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return, for each step, the steps of other queues its queue waits for: at most one per queue, none twice."""
    waited: dict[tuple[str, str], int] = {}
    found = []
    for home, before in zip(homes, needs):
        latest: dict[str, int] = {}
        for u in before:
            if homes[u] != home and waited.get((home, homes[u]), -1) < u:
                latest[homes[u]] = max(latest.get(homes[u], -1), u)
        waited.update({(home, other): u for other, u in latest.items()})
        found.append(sorted(latest.values()))
    return found


def overlap(compiled: CompiledSchedule) -> None:
    """Use a command queue for the program if its devices have different workers and can therefore overlap."""
    if len(workers(step.device for step in compiled.steps)) > 1:
        compiled.bound.queue = CommandQueue(compiled)


def _thread_of(name: str) -> str:
    if name.endswith(COPIES):
        return Device[name.removesuffix(COPIES)].worker + COPIES
    return Device[name].worker


class _Regions:
    """The dependencies between steps by memory: a step follows the steps that wrote the memory that it reads, or that
    used the memory that it overwrites."""

    def __init__(self, compiled: CompiledSchedule) -> None:
        self.bound, self.slots = compiled.bound, compiled.schedule.slots
        outputs = len(self.bound.inputs)
        self.same: dict[int, int] = {}  # base → the base whose memory it may share (in-place output)
        for output, number in self.bound.in_place:
            if number in self.bound.inputs:
                self.same[outputs + output] = self.bound.inputs.index(number)
        self.accesses: dict[int, list[tuple[int, int, int, bool]]] = {}  # base → (begin, end, step, written)

    def needs(self, number: int, step: Step) -> list[int]:
        found: set[int] = set()
        written = set(step.written)
        for slot in step.slots:
            place = self.bound.places[slot]
            base, begin = self.same.get(place.base, place.base), place.offset
            end = begin + (self.slots[slot].size * self.slots[slot].dtype.itemsize)
            writes = slot in written
            rows = self.accesses.setdefault(base, [])
            found.update(n for b, e, n, w in rows if b < end and begin < e and (w or writes) and n != number)
            if writes:  # a later step that follows this write also follows all earlier accesses
                rows[:] = [r for r in rows if not (begin <= r[0] and r[1] <= end)]
            rows.append((begin, end, number, writes))
        return sorted(found)


# *** deadlocks ***


def check_deadlock(queues: Mapping[str, Sequence[Item]]) -> None:
    """Check that commands can run in some order: each after the previous one of its queue, a WAIT after its SYNC.

    Raises:
        DeviceError: naming the commands of the cycle, or the WAIT without a SYNC.
    """
    home = {item: (name, n) for name, items in queues.items() for n, item in enumerate(items)
            if isinstance(item, SyncItem)}
    needs: dict[tuple[str, int], list[tuple[str, int]]] = {}
    for name, items in queues.items():
        for n, item in enumerate(items):
            needs[name, n] = [(name, n - 1)] if n else []
            if isinstance(item, WaitItem) and item.sync not in home:
                raise DeviceError("CommandQueue", f"{name} {n} ({item}) waits for a SYNC that is in no queue",
                                  "add it to a queue")
            if isinstance(item, WaitItem):
                needs[name, n].append(home[item.sync])
    try:
        TopologicalSorter(needs).prepare()
    except CycleError as error:
        circle = [(at, to) for at, to in pairwise(reversed(error.args[1]))
                  if isinstance(wait := queues[at[0]][at[1]], WaitItem) and home[wait.sync] == to]
        first = min(range(len(circle)), key=lambda n: list(needs).index(circle[n][0]))
        circle = circle[first:] + circle[:first]
        shown = [f"{_shown(queues, at)}, before {_shown(queues, to)}" for at, to in circle]
        raise DeviceError("CommandQueue", f"deadlock: {' → '.join(shown)} → {circle[0][0][0]} {circle[0][0][1]}",
                          "a SYNC before the WAIT that it depends on") from None


def _shown(queues: Mapping[str, Sequence[Item]], place: tuple[str, int]) -> str:
    name, n = place
    return f"{name} {n} ({' '.join(str(queues[name][n]).split())})"


# *** threads ***


class _Run:
    """One run of a command queue: its threads, and the SYNCs they have reached."""

    def __init__(self, queue: CommandQueue, bases: Sequence[Buffer], values: Sequence[int]) -> None:
        self.queue, self.bases, self.values = queue, bases, values
        self.changed = threading.Condition()
        # SYNC → its device, and an event if work may still be running
        self.reached: dict[SyncItem, tuple[str, Any]] = {}
        self.under_way: set[str] = set()  # copy queues with asynchronous copies in flight
        self.error: BaseException | None = None
        self.failed: list[Step] = []
        self.stopped = False
        self.running = len(queue.threads)
        with _entering:  # enqueue on all threads atomically: otherwise two runs could each wait for the other
            for thread, commands in queue.threads.items():
                _worker(thread).put(in_context(functools.partial(self.serve, commands)))

    def wait(self, launched: list[Step]) -> None:
        """Wait for the threads; Ctrl-C stops each after its current command."""
        interrupted: BaseException | None = None
        while True:
            try:
                with self.changed:
                    while self.running:
                        self.changed.wait(0.5)
                break
            except BaseException as error:
                interrupted, self.stopped = error, True
        first = interrupted or self.error
        if first is not None:
            launched[:] = self.failed
            raise first

    def serve(self, commands: Sequence[tuple[str, Item]]) -> None:
        """Run the commands of one thread.

        All threads keep the order of the program's steps, so the earliest remaining command never waits.
        """
        steps: list[Step] = []
        try:
            for name, item in commands:
                steps = item.steps if isinstance(item, (KernelItem, CopyItem)) else []
                self.command(name, item)
                if self.stopped:
                    break
        except BaseException as error:
            with self.changed:
                if self.error is None:
                    self.error, self.failed = error, steps
                self.stopped = True
        finally:
            with self.changed:
                self.running -= 1
                self.changed.notify_all()

    def command(self, name: str, item: Item) -> None:
        device = name.removesuffix(COPIES)
        if isinstance(item, KernelItem):
            assert item.graph is not None
            with item.turn or contextlib.nullcontext():
                item.graph(self.bases, self.values)
        elif isinstance(item, CopyItem):
            assert self.queue.compiled is not None
            target, source = (self.queue.compiled.bound.places[s].of(self.bases) for s in item.step.slots)
            own = Device[target.device].copier(Device[source.device], target.nbytes)
            if own is not None:
                own([target, source])
                self.under_way.add(name)
            else:
                copy_buffer(target, source)
        elif isinstance(item, SyncItem):
            event = Device[device].record() if device == name or name in self.under_way else None
            with self.changed:
                self.reached[item] = device, event
                self.changed.notify_all()
        else:
            with self.changed:
                self.changed.wait_for(lambda: self.stopped or item.sync in self.reached)
            other, event = self.reached.get(item.sync, (device, None))
            if event is not None and Device[device].worker == Device[other].worker:
                Device[device].wait(event)
            elif event is not None:
                Device[other].synchronize()


_entering = threading.Lock()
_workers: dict[str, SimpleQueue[Callable[[], None]]] = {}


def _worker(name: str) -> SimpleQueue[Callable[[], None]]:
    """Return the inbox of a thread that lives as long as the process, started on first use."""
    if name not in _workers:
        inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
        _workers[name] = inbox

        def serve() -> None:
            while True:
                inbox.get()()

        threading.Thread(target=serve, name=f"tinsmith {name}", daemon=True).start()
    return _workers[name]


def _after_fork() -> None:
    global _entering
    _entering = threading.Lock()
    _workers.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
