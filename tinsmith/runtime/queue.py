"""Command queues: a schedule as a list of commands per device, with a SYNC and a WAIT wherever two queues meet.

A SYNC says that all before it on its queue has run; a WAIT stops its queue until a SYNC of another one. Kernels stand
in their device's queue, and so do copies from the host. A copy from one computing device to another stands in a queue
of its own beside the target's, so that the target computes what does not need it meanwhile.

Queues of one ``Compiled.worker`` (all ``CPU:k`` share a pool, all ``PYTHON:k`` the interpreter) take turns on one
thread; others have a thread each and overlap.
"""
from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

from tinsmith.backend.device import Device
from tinsmith.backend.memory import Buffer, copy_buffer
from tinsmith.backend.program import Graph, Launched
from tinsmith.backend.shards import flattened
from tinsmith.core.counters import GlobalCounters
from tinsmith.core.dtypes import dtypes
from tinsmith.core.errors import ArgumentError, DeviceError, VerifyError
from tinsmith.core.settings import settings
from tinsmith.runtime.compiled import CompiledSchedule
from tinsmith.runtime.step import Step
from tinsmith.schedule.overlap import COPIES, queue_of, workers


@dataclass(eq=False, repr=False)
class KernelItem:
    """Kernels of one device that are launched together."""

    steps: list[Step]
    graph: Graph | None = None

    def __repr__(self) -> str:
        return f"KERNEL {', '.join(s.name for s in self.steps)}"


@dataclass(eq=False, repr=False)
class CopyItem:
    """One copy between two devices, or between one and the host."""

    step: Step
    target: str
    source: str
    nbytes: int

    def __repr__(self) -> str:
        return f"COPY   {self.nbytes}, {self.target} <- {self.source}"


@dataclass(eq=False, repr=False)
class SyncItem:
    """All that stands before it in its queue has run."""

    number: int
    queue: str

    def __repr__(self) -> str:
        return f"SYNC   {self.number}"


@dataclass(eq=False, repr=False)
class WaitItem:
    """The queue stops here until ``sync`` is reached in another one."""

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
        self.compiled = schedule if isinstance(schedule, CompiledSchedule) else None
        if isinstance(schedule, CompiledSchedule):
            self._build(schedule)
        else:
            self.q = _checked(schedule)
        check_deadlock(self.q)
        self.threads: dict[str, list[str]] = {}
        for name in self.q:
            self.threads.setdefault(_thread_of(name), []).append(name)

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
            items += [WaitItem(syncs[u]) for u in waits[number]]
            if step.program is None:
                target, source = (compiled.schedule.slots[s] for s in step.slots)
                items.append(CopyItem(step, target.device, source.device, source.size * source.dtype.itemsize))
            elif items and isinstance(items[-1], KernelItem):
                items[-1].steps.append(step)
            else:
                items.append(KernelItem([step]))
            if number in met:
                syncs[number] = SyncItem(len(syncs), home)
                items.append(syncs[number])
        self.q = dict(sorted(self.q.items()))
        queued = [s for items in self.q.values() for item in items for s in _steps(item)]
        if sorted(map(id, queued)) != sorted(map(id, compiled.steps)):
            raise VerifyError(f"CommandQueue: {len(compiled.steps)} steps came in, {len(queued)} are in the queues")
        for name, items in self.q.items():
            for item in items:
                if isinstance(item, KernelItem):
                    item.graph = Device[name].graph([
                        Launched(s.program, tuple(bound.places[n] for n in s.slots), tuple(s.variables))
                        for s in item.steps if s.program is not None])

    # *** running ***

    def __call__(self, bases: Sequence[Buffer] | None = None, values: Sequence[int] = (),
                 launched: list[Step] | None = None) -> list[Buffer]:
        """Run all commands and return when the last one is done.

        Args:
            bases: buffers, as ``compiled.Bound`` numbers them; None: those that the tensor's schedule was made for, and
                fresh memory for what it computes.
            values: of the program's variables.
            launched: gets the steps of the command that failed, if one does.

        Returns:
            The buffers with the results, where it took them itself; of a value over several devices, one for each part.

        >>> from tinsmith import Tensor
        >>> (result,) = CommandQueue(Tensor([1, 2]).dot(Tensor([3, 4])).schedule())()
        >>> result.numpy()
        array([11], dtype=int32)

        Raises:
            Exception: the first that a command raised. The other queues then end where they are.
            DeviceError: for queues made by hand: they have no buffers to run on.
        """
        if self.compiled is None:
            raise DeviceError("CommandQueue", "queues made by hand are not bound to buffers, so they cannot run",
                              "CommandQueue(tensor.schedule())")
        results: list[Buffer] = []
        if bases is None:
            bases, values, results = _memory(self.compiled)
        for b in bases:
            b.check()
            b.opaque  # noqa: B018  memory is taken on this thread
        run = _Run(self, bases, values)
        run.start()
        run.finish([] if launched is None else launched)
        for items in self.q.values():
            for item in items:
                if isinstance(item, KernelItem):
                    _count(item)
                elif isinstance(item, CopyItem):
                    GlobalCounters.kernel_count += 1
                    GlobalCounters.global_mem += item.nbytes
        return results


def _memory(compiled: CompiledSchedule) -> tuple[list[Buffer], list[int], list[Buffer]]:
    """(bases, values, results) of a tensor's schedule.

    Raises:
        DeviceError: for a schedule that was not made for tensors.
    """
    if compiled.arguments is None:
        raise DeviceError("CommandQueue", "the schedule knows no buffers to run on",
                          "CommandQueue(tensor.schedule())()")
    (inputs, values), bound = compiled.arguments, compiled.bound
    given = flattened(inputs)
    outputs = [Buffer(s.device, s.size, s.dtype) for s in bound.outputs]
    blocks = [Buffer(device, size, dtypes.uint8) for device, size in bound.blocks]
    return [*(given[n] for n in bound.inputs), *outputs, *blocks], values, [outputs[n] for n in bound.results]


def _checked(queues: Any) -> dict[str, list[Item]]:
    """Queues made by hand, if that is what they are."""
    if not isinstance(queues, Mapping) or not all(isinstance(items, (list, tuple)) for items in queues.values()):
        raise ArgumentError("CommandQueue", "takes a schedule, or a list of commands for each device, not "
                            f"{queues!r:.60}", "CommandQueue(tensor.schedule()), or {'CPU': [SyncItem(0, 'CPU')]}")
    synced: set[SyncItem] = set()
    for name, items in queues.items():
        for n, item in enumerate(items):
            if not isinstance(item, (KernelItem, CopyItem, SyncItem, WaitItem)):
                raise ArgumentError("CommandQueue", f"{name} {n} is no command: {item!r:.60}",
                                    "KernelItem, CopyItem, SyncItem and WaitItem")
            if item in synced:
                text = " ".join(str(item).split())
                raise ArgumentError("CommandQueue", f"{name} {n} ({text}) stands in a queue twice",
                                    "one SyncItem for each place")
            if isinstance(item, SyncItem):
                synced.add(item)
    return {name: list(items) for name, items in queues.items()}


def _steps(item: Item) -> list[Step]:
    """What a command runs of a schedule."""
    return item.steps if isinstance(item, KernelItem) else [item.step] if isinstance(item, CopyItem) else []


def _count(item: KernelItem) -> None:
    GlobalCounters.kernel_count += len(item.steps)
    for step in item.steps:
        if step.launch is not None:
            GlobalCounters.global_ops += step.launch.ops
            GlobalCounters.global_mem += step.launch.bytes


def _waits(homes: Sequence[str], needs: Sequence[Sequence[int]]) -> list[list[int]]:
    """For each step, after which steps of other queues its queue waits: one per queue, none twice."""
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
    """Let the devices of a program overlap, where they do not take turns."""
    if len(workers(step.device for step in compiled.steps)) > 1:
        compiled.bound.queue = CommandQueue(compiled)


def _thread_of(name: str) -> str:
    if name.endswith(COPIES):
        return Device[name.removesuffix(COPIES)].worker + COPIES
    return Device[name].worker


class _Regions:
    """Which earlier steps a step must follow: those that wrote what it reads, and those whose memory it writes over."""

    def __init__(self, compiled: CompiledSchedule) -> None:
        self.bound, self.slots = compiled.bound, compiled.schedule.slots
        outputs = len(self.bound.inputs)
        self.same: dict[int, int] = {}  # base → the base whose memory it may be
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
            if writes:  # whoever follows this write follows what it followed
                rows[:] = [r for r in rows if not (begin <= r[0] and r[1] <= end)]
            rows.append((begin, end, number, writes))
        return sorted(found)


# *** deadlocks ***


def check_deadlock(queues: Mapping[str, Sequence[Item]]) -> None:
    """Play the queues through: those that are left at a WAIT wait for each other.

    Raises:
        DeviceError: naming the commands of the circle, or the WAIT without a SYNC.
    """
    home = {item: (name, n) for name, items in queues.items() for n, item in enumerate(items)
            if isinstance(item, SyncItem)}
    at = dict.fromkeys(queues, 0)
    reached: set[SyncItem] = set()
    moved = True
    while moved:
        moved = False
        for name, items in queues.items():
            while at[name] < len(items):
                item = items[at[name]]
                if isinstance(item, WaitItem) and item.sync not in reached:
                    break
                if isinstance(item, SyncItem):
                    reached.add(item)
                at[name] += 1
                moved = True
    stuck = {name: items[at[name]] for name, items in queues.items() if at[name] < len(items)}
    for name, item in stuck.items():
        if isinstance(item, WaitItem) and item.sync not in home:
            raise DeviceError("CommandQueue", f"{name} {at[name]} ({item}) waits for a SYNC that is in no queue",
                              "add it to a queue")
    if stuck:
        raise DeviceError("CommandQueue", "deadlock: " + " → ".join(_circle(stuck, at, home)),
                          "a SYNC before the WAIT that it depends on")


def _circle(stuck: Mapping[str, Item], at: Mapping[str, int], home: Mapping[SyncItem, tuple[str, int]]) -> list[str]:
    """The commands that wait for each other, from one queue on back to it."""
    path: list[str] = []
    name = next(iter(stuck))
    while name not in path:
        path.append(name)
        item = stuck[name]
        assert isinstance(item, WaitItem)
        name = home[item.sync][0]
    circle = path[path.index(name) :]
    shown = []
    for queue in circle:
        item = stuck[queue]
        assert isinstance(item, WaitItem)
        other, place = home[item.sync]
        shown.append(f"{queue} {at[queue]} ({' '.join(str(item).split())}), before {other} {place} "
                     f"({' '.join(str(item.sync).split())})")
    return [*shown, f"{circle[0]} {at[circle[0]]}"]


# *** threads ***


class _Run:
    """One run of a command queue: its threads, and what they have reached."""

    def __init__(self, queue: CommandQueue, bases: Sequence[Buffer], values: Sequence[int]) -> None:
        self.queue, self.bases, self.values = queue, bases, values
        self.changed = threading.Condition()
        self.reached: dict[SyncItem, tuple[str, Any]] = {}  # the device, and its event if work may still be under way
        self.under_way: set[str] = set()  # queues of copies that devices make in their own time
        self.error: BaseException | None = None
        self.failed: list[Step] = []
        self.stopped = False
        self.running = len(queue.threads)
        self.settings = dict(vars(settings))

    def start(self) -> None:
        for thread, names in self.queue.threads.items():
            _worker(thread).put(functools.partial(self.serve, names))

    def finish(self, launched: list[Step]) -> None:
        """Wait for the threads; Ctrl-C stops them after the commands they are at."""
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

    def serve(self, names: Sequence[str]) -> None:
        """One thread: its queues take turns, each until it has to wait."""
        vars(settings).update(self.settings)
        left = {name: list(reversed(self.queue.q[name])) for name in names}
        try:
            while left and not self.stopped:
                moved = [self.advance(name, items) for name, items in left.items()]
                left = {name: items for name, items in left.items() if items}
                if left and not any(moved):
                    self.wait([items[-1].sync for items in left.values() if isinstance(items[-1], WaitItem)])
        except BaseException as error:
            with self.changed:
                if self.error is None:
                    self.error = error
                self.stopped = True
                self.changed.notify_all()
        finally:
            with self.changed:
                self.running -= 1
                self.changed.notify_all()

    def wait(self, syncs: Sequence[SyncItem]) -> None:
        with self.changed:
            self.changed.wait_for(lambda: self.stopped or any(s in self.reached for s in syncs))

    def advance(self, name: str, items: list[Item]) -> bool:
        """Run one queue's commands until it has to wait; whether it ran any."""
        moved = False
        while items and not self.stopped:
            item = items[-1]
            if isinstance(item, WaitItem) and item.sync not in self.reached:
                break
            self.command(name, item)
            items.pop()
            moved = True
        return moved

    def command(self, name: str, item: Item) -> None:
        try:
            if isinstance(item, KernelItem):
                assert item.graph is not None
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
                device = name.removesuffix(COPIES)
                event = Device[device].record() if device == name or name in self.under_way else None
                with self.changed:
                    self.reached[item] = device, event
                    self.changed.notify_all()
            elif isinstance(item, WaitItem):
                device, event = self.reached[item.sync]
                mine = Device[name.removesuffix(COPIES)]
                if event is not None and mine.worker == Device[device].worker:
                    mine.wait(event)
                elif event is not None:
                    Device[device].synchronize()
        except BaseException:
            with self.changed:
                if not self.failed:
                    self.failed = _steps(item)
            raise


_workers: dict[str, SimpleQueue[Callable[[], None]]] = {}


def _worker(name: str) -> SimpleQueue[Callable[[], None]]:
    """The inbox of a thread that lives as long as the process."""
    if name not in _workers:
        inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
        _workers[name] = inbox

        def serve() -> None:
            while True:
                inbox.get()()

        threading.Thread(target=serve, name=f"tinsmith {name}", daemon=True).start()
    return _workers[name]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_workers.clear)
