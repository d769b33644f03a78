"""Command queues: their printed form, overlap of devices, and deadlocks, which are reported and not entered."""
from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import pytest

from tinsmith import Context, Device, Tensor
from tinsmith.backend.device import Compiled, Compiler
from tinsmith.backend.memory import Buffer
from tinsmith.backend.python.device import BytesAllocator, PythonProgram
from tinsmith.backend.python.render import PythonRenderer
from tinsmith.core.counters import GlobalCounters
from tinsmith.core.errors import ArgumentError, DeviceError, KernelError
from tinsmith.runtime.command_queue import CommandQueue, CopyItem, KernelItem, SyncItem, WaitItem, _Regions
from tinsmith.runtime.compiled_schedule import CompiledSchedule
from tinsmith.runtime.lowering import lower
from tinsmith.schedule.canonical import canonical
from tinsmith.target.target import Target
from tinsmith.tensor.realize import _concrete

PATIENCE = 20.0  # seconds after which a meeting that never comes fails


class Slow:
    """Settings of the test programs: a barrier to meet at, a failure, or a delay before they compute."""

    meeting: threading.Barrier | None = None
    fails = False
    seconds = 0.0


class SlowProgram(PythonProgram):
    """A program that sleeps without the GIL or, if a barrier is set, waits until another device's program runs too."""

    def __call__(self, buffers: Sequence[Buffer], variables: Sequence[int] = ()) -> None:
        if Slow.meeting is not None:
            Slow.meeting.wait(PATIENCE)
        if Slow.fails and buffers[0].device == "SLOW:1":
            raise RuntimeError("the device fell over")
        time.sleep(Slow.seconds)
        super().__call__(buffers, variables)


def slow(name: str) -> Compiled:
    return Compiled(name, BytesAllocator(), Compiler(), SlowProgram, PythonRenderer(Target("python", 16, threads=1)))


@pytest.fixture(autouse=True)
def devices() -> Iterator[None]:
    Device.register("SLOW", slow)
    Slow.meeting, Slow.fails, Slow.seconds = None, False, 0.0
    yield
    Slow.meeting, Slow.fails, Slow.seconds = None, False, 0.0


def compiled(*tensors: Tensor) -> CompiledSchedule:
    graph, _, _ = canonical([_concrete(t.uop) for t in tensors])
    return lower(graph, tensors[0]._device)


def values(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(-8, 9, shape).astype(np.float64)


# *** printed form ***


def test_the_tutorials_single_device() -> None:
    out = Tensor([1, 2]).dot(Tensor([3, 4])).to("NPY")
    with Context(NOOPT=1):
        assert str(CommandQueue(compiled(out))) == """\
CPU
   0 COPY   8, CPU <- NPY
   1 COPY   8, CPU <- NPY
   2 KERNEL r_2
   3 SYNC   0
NPY
   0 WAIT   0 of CPU
   1 COPY   4, NPY <- CPU"""


def test_the_tutorials_two_devices() -> None:
    a = Tensor([1.0, 2.0, 3.0, 4.0]).realize().shard_(("CPU:0", "CPU:1"), axis=0).realize()
    b = Tensor([5.0, 6.0, 7.0, 8.0]).realize().shard_(("CPU:0", "CPU:1"), axis=0).realize()
    with Context(NOOPT=1):
        assert str(CommandQueue(compiled(a.dot(b)))) == """\
CPU
   0 KERNEL r_2
   1 SYNC   0
   2 WAIT   2 of CPU copies
   3 KERNEL E_1
CPU copies
   0 WAIT   1 of CPU:1
   1 COPY   4, CPU <- CPU:1
   2 SYNC   2
CPU:1
   0 KERNEL r_2
   1 SYNC   1
   2 WAIT   3 of CPU:1 copies
   3 KERNEL E_1
CPU:1 copies
   0 WAIT   0 of CPU
   1 COPY   4, CPU:1 <- CPU
   2 SYNC   3"""


def test_every_wait_has_its_sync_on_another_queue() -> None:
    x = Tensor(values(16, 16)).shard(("SLOW:0", "SLOW:1", "SLOW:2"), 0)
    queue = CommandQueue(compiled((x.sum(0) * x).sum(1), x @ x.T))
    syncs = {i: name for name, items in queue.q.items() for i in items if isinstance(i, SyncItem)}
    waits = [(name, i) for name, items in queue.q.items() for i in items if isinstance(i, WaitItem)]
    assert {w.sync for _, w in waits} == set(syncs) and waits
    assert all(syncs[w.sync] != name == name for name, w in waits)
    assert all(i.target == name.removesuffix(" copies") for name, items in queue.q.items() for i in items
               if isinstance(i, CopyItem))
    assert sum(len(i.steps) for items in queue.q.values() for i in items if isinstance(i, KernelItem)) > 6


def test_debug_lines_are_timed_and_numbered(capsys: pytest.CaptureFixture[str]) -> None:
    x = Tensor(values(4, 4)).shard(("CPU:0", "CPU:1"), 0).realize()
    with Context(DEBUG=2):
        x.sum(0).realize()
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("***")]
    assert [int(line[2]) for line in lines] == list(range(int(lines[0][2]), int(lines[0][2]) + len(lines)))
    what = [(line[1], line[3]) for line in lines]
    assert ("CPU:1", "synchronize") in what and ("CPU", "synchronize") in what
    assert what.count(("CPU", "copy")) == what.count(("CPU:1", "copy")) == 1
    assert all("tm" in line and "ms" in " ".join(line) for line in lines)


# *** overlapping ***


def test_independent_devices_overlap() -> None:
    """Each program waits until the other device's runs at the same time; sequential execution would never end."""
    x = Tensor(values(4, 4)).shard(("SLOW:0", "SLOW:1"), 0).realize()
    Slow.meeting = threading.Barrier(2)
    y = (x * 2 + 1).realize()
    Slow.meeting = None
    assert np.array_equal(y.numpy(), values(4, 4) * 2 + 1)


def test_copies_do_not_hold_up_what_does_not_need_them() -> None:
    """While the sum of the first part is exchanged, the device computes the second, by the order of its queue."""
    x = Tensor(values(64, 64)).shard(("SLOW:0", "SLOW:1"), 0).realize()
    y = Tensor(values(64, 64, seed=1)).shard(("SLOW:0", "SLOW:1"), 0).realize()
    queue = CommandQueue(compiled(x.sum(0), y.sum(0)))
    items = queue.q["SLOW"]
    first = next(n for n, i in enumerate(items) if isinstance(i, WaitItem))
    kernels = sum(len(i.steps) for i in items[:first] if isinstance(i, KernelItem))
    assert kernels >= 2, queue


@pytest.mark.parametrize("names", [("SLOW:0", "SLOW:1"), ("SLOW:0", "CPU"), ("CPU", "PYTHON", "SLOW:1"),
                                   ("SLOW:0", "SLOW:1", "SLOW:2", "SLOW:3")])
def test_values_are_right_whoever_is_slow(names: tuple[str, ...]) -> None:
    Slow.seconds = 0.002
    x, w = values(12, 12), values(12, 12, seed=1)
    a, b = Tensor(x).shard(names, 0), Tensor(w).shard(names, 1)
    for _ in range(3):
        y = ((a @ b).sum(0) + a.max(1)).realize()
        assert np.array_equal(y.numpy(), (x @ w).sum(0) + x.max(1))


def test_state_is_written_after_its_readers() -> None:
    Slow.seconds = 0.001
    names = ("SLOW:0", "SLOW:1", "SLOW:2")
    x = values(9, 4)
    t = Tensor(x).shard(names, 0).realize()
    memory = [p.opaque for p in t.uop.base.arg.parts]
    for _ in range(4):
        t.assign(t * 2 - t.sum(0)).realize()
        x = x * 2 - x.sum(0)
        assert np.array_equal(t.numpy(), x)
    assert all(a is b for a, b in zip(memory, [p.opaque for p in t.uop.base.arg.parts]))


def test_everything_is_counted() -> None:
    x = Tensor(values(4, 4)).shard(("SLOW:0", "SLOW:1"), 0).realize()
    GlobalCounters.reset()
    (x.sum(0)).realize()
    assert GlobalCounters.kernel_count == 6 and GlobalCounters.global_mem > 0


class Evented(Compiled):
    """Devices of one worker that only enqueue work in streams, and record who waits for which event."""

    noted: ClassVar[list[tuple[str, str]]] = []

    @property
    def worker(self) -> str:
        return "EVENTED"

    def record(self) -> Any:
        return self.device

    def wait(self, event: Any) -> None:
        self.noted.append((self.device, event))

    def synchronize(self) -> None:
        self.noted.append((self.device, "synchronized"))


def test_devices_of_one_worker_wait_by_events_and_others_by_standing_still() -> None:
    Device.register("EVENTED", lambda name: Evented(name, BytesAllocator(), Compiler(), PythonProgram,
                                                    PythonRenderer(Target("python", 16, threads=1))))
    a, b, c = (Tensor(values(8, seed=n), device=d).realize() for n, d in enumerate(("EVENTED", "EVENTED:1", "SLOW")))
    x = (a * 2).contiguous()
    y = (x.to("EVENTED:1") + b).contiguous()
    z = (y.to("SLOW") * c).contiguous()
    Evented.noted.clear()
    Tensor.realize(x, y, z)
    during = list(Evented.noted)
    np.testing.assert_allclose(z.numpy(), (a.numpy() * 2 + b.numpy()) * c.numpy(), rtol=1e-6)
    assert ("EVENTED:1", "EVENTED") in during, "a stream waits for the other's event"
    assert ("EVENTED:1", "synchronized") in during, "another worker's thread stands still"


def test_a_failure_ends_all_queues() -> None:
    x = Tensor(values(4, 4)).shard(("SLOW:0", "SLOW:1"), 0).realize()
    y = x.sum(0)
    Slow.fails = True
    with pytest.raises(KernelError, match="the device fell over"):
        y.realize()
    Slow.fails = False
    assert np.array_equal(y.numpy(), values(4, 4).sum(0))


PROGRAMS = {
    "sums": lambda x: [x.sum(0) * x, x.sum(1)], "gram": lambda x: [x @ x.T, x.T @ x], "flip": lambda x: [x.flip(0) + x],
    "softmax": lambda x: [x.softmax(0), x.softmax(1)], "state": lambda x: [x.assign(x * 2 - x.sum(0))],
    "statistics": lambda x: [(x - x.mean(0)) / (x.std(0) + 1), x.max(0), x.argmax(0)]}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("count", [2, 3, 5])
def test_no_interleaving_breaks_a_dependency(name: str, count: int) -> None:
    """For any order of serving the queues, a step runs after all steps whose results it reads or whose memory it
    overwrites."""
    x = Tensor(values(10, 12)).shard([f"SLOW:{n}" for n in range(count)], 0).realize()
    program = compiled(*PROGRAMS[name](x))
    regions = _Regions(program)
    needs = {id(step): regions.needs(n, step) for n, step in enumerate(program.steps)}
    queues = CommandQueue(program).q
    rng = np.random.default_rng(0)
    for _ in range(20):
        left = {queue: list(items) for queue, items in queues.items()}
        reached: set[SyncItem] = set()
        done: set[int] = set()
        while left:
            queue = rng.choice(sorted(left))
            item = left[queue][0]
            if isinstance(item, WaitItem) and item.sync not in reached:
                continue
            if isinstance(item, SyncItem):
                reached.add(item)
            steps = item.steps if isinstance(item, KernelItem) else [item.step] if isinstance(item, CopyItem) else []
            for step in steps:
                assert done.issuperset(id(program.steps[n]) for n in needs[id(step)])
                done.add(id(step))
            left[queue].pop(0)
            left = {q: items for q, items in left.items() if items}
        assert len(done) == len(program.steps)


# *** deadlocks ***


def test_a_circle_is_told() -> None:
    a, b = SyncItem(0, "CPU"), SyncItem(1, "CPU:1")
    with pytest.raises(DeviceError, match="deadlock") as found:
        CommandQueue({"CPU": [WaitItem(b), a], "CPU:1": [WaitItem(a), b]})
    text = str(found.value)
    assert "CPU 0 (WAIT 1 of CPU:1), before CPU:1 1 (SYNC 1)" in text
    assert "CPU:1 0 (WAIT 0 of CPU), before CPU 1 (SYNC 0) → CPU 0" in text


def test_a_longer_circle_leaves_out_who_only_waits_for_it() -> None:
    a, b, c, d = (SyncItem(n, f"CPU:{n}") for n in range(4))
    with pytest.raises(DeviceError, match="deadlock") as found:
        CommandQueue({"CPU:3": [WaitItem(a), d], "CPU:0": [WaitItem(b), a], "CPU:1": [WaitItem(c), b],
                      "CPU:2": [WaitItem(a), c]})
    text = str(found.value)
    assert "CPU:3" not in text and all(f"CPU:{n} 0" in text for n in range(3))


def test_a_queue_that_waits_for_itself() -> None:
    a = SyncItem(0, "CPU")
    with pytest.raises(DeviceError, match=r"deadlock: CPU 0 \(WAIT 0 of CPU\), before CPU 1"):
        CommandQueue({"CPU": [WaitItem(a), a]})


def test_a_sync_that_is_nowhere() -> None:
    with pytest.raises(DeviceError, match=r"CPU 0 \(WAIT   0 of CPU:1\) waits for a SYNC that is in no queue"):
        CommandQueue({"CPU": [WaitItem(SyncItem(0, "CPU:1"))]})


def test_queues_that_come_to_their_end() -> None:
    a, b = SyncItem(0, "CPU"), SyncItem(1, "CPU:1")
    CommandQueue({"CPU": [a, WaitItem(b)], "CPU:1": [WaitItem(a), b]})


@pytest.mark.parametrize(("queues", "words"), [
    ([SyncItem(0, "CPU")], "takes a schedule, or a dict of command lists by device"),
    ({"CPU": SyncItem(0, "CPU")}, "takes a schedule"),
    ({"CPU": ["SYNC 0"]}, "CPU 0 is not a command: 'SYNC 0'"),
    ({"CPU": (twice := SyncItem(3, "CPU"),), "CPU:1": [twice]}, r"CPU:1 0 \(SYNC 3\) is in the queues twice"),
])
def test_what_is_no_queue(queues: Any, words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        CommandQueue(queues)


def test_queues_made_by_hand_do_not_run() -> None:
    with pytest.raises(DeviceError, match="have no buffers"):
        CommandQueue({"CPU": [SyncItem(0, "CPU")]})([], [], [])


def test_a_tensors_queue_needs_no_arguments() -> None:
    x = Tensor([1.0, 2.0, 3.0, 4.0])
    q = CommandQueue((x * 2).sum().schedule())
    assert [q()[0].numpy().tolist() for _ in range(2)] == [[20.0]] * 2
    parts = Tensor([1.0, 2.0, 3.0, 4.0]).shard(("CPU", "CPU:1"), axis=0).realize()
    assert [b.numpy().tolist() for b in CommandQueue(parts.sum().schedule())()] == [[10.0]] * 2
    assert [b.numpy().tolist() for b in CommandQueue((parts + 1).schedule())()] == [[2.0, 3.0], [4.0, 5.0]]


def test_a_queue_of_no_tensors_says_what_it_lacks() -> None:
    graph, _, _ = canonical([_concrete((Tensor([1.0, 2.0]) * 2).uop)])
    with pytest.raises(DeviceError, match=r"has no buffers.*CommandQueue\(tensor\.schedule\(\)\)\(\)"):
        CommandQueue(lower(graph, "CPU"))()
