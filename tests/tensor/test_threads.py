"""Threads: modes and settings are per thread, and its worker threads inherit them."""
from __future__ import annotations

import asyncio
import functools
import queue
import threading
from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest

from tinsmith import Context, Tensor, TinyJit, nn
from tinsmith.backend.cpu.device import CPUGraph
from tinsmith.core.dtypes import dtypes
from tinsmith.core.settings import settings


def in_threads(*functions: Callable[[], Any]) -> list[Any]:
    """Run ``functions`` concurrently, one thread each, and return their results."""
    found: list[Any] = [None] * len(functions)
    errors: list[BaseException] = []

    def run(n: int) -> None:
        try:
            found[n] = functions[n]()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(len(functions))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if errors:
        raise errors[0]
    return found


@pytest.fixture
def defaults() -> Iterator[None]:
    before = Tensor.training, settings.DEBUG
    yield
    Tensor.training, settings.DEBUG = before


def seen() -> tuple[Any, ...]:
    return Tensor.training, Tensor.recording, Tensor.autocast_dtype, settings.NOOPT


def test_blocks_change_nothing_for_other_threads() -> None:
    with Tensor.no_grad(), Tensor.train(), Tensor.autocast("float16"), Context(NOOPT=1):
        assert in_threads(seen) == [(False, True, None, 0)]
        assert seen() == (True, False, dtypes.float16, 1)
    assert seen() == (False, True, None, 0)


def test_gradients_beside_a_thread_in_no_grad() -> None:
    done = threading.Event()

    def without() -> None:
        while not done.is_set():
            with Tensor.no_grad():
                (Tensor([1.0]) * 2).realize()

    def gradients() -> list[float]:
        try:
            found = []
            for n in range(50):
                w = Tensor([float(n)], requires_grad=True)
                (w * w).sum().backward()
                found.append(0.0 if w.grad is None else w.grad.item())
            return found
        finally:
            done.set()

    assert in_threads(gradients, without)[0] == [2.0 * n for n in range(50)]


def test_an_assignment_outside_of_blocks_is_the_default_of_new_threads(defaults: None) -> None:
    Tensor.training = True
    with Tensor.train(False):
        assert in_threads(lambda: Tensor.training) == [True]
        Tensor.training = True  # until the block ends
        with Tensor.no_grad():
            settings.DEBUG = 1  # no block changes that
    assert Tensor.training is True
    assert in_threads(lambda: settings.DEBUG) == [1]
    Tensor.training = False
    assert in_threads(lambda: Tensor.training) == [False]


def test_an_assignment_inside_of_a_block_ends_with_it() -> None:
    with Tensor.train():
        Tensor.training = False
        assert not Tensor.training
        assert not Tensor([1.0]).training
    assert not Tensor.training
    with Tensor.no_grad():
        Tensor.recording = True
        assert Tensor.recording
        assert in_threads(lambda: Tensor.recording) == [True]
    assert Tensor.recording


def test_modes_of_asyncio_tasks() -> None:
    async def one(training: bool) -> list[bool]:
        found = []
        with Tensor.train(training):
            for _ in range(5):
                await asyncio.sleep(0)
                found.append(Tensor.training)
        return found

    async def both() -> list[list[bool]]:
        with Tensor.no_grad():  # which tasks inherit
            inner = asyncio.create_task(outer())
        return [*await asyncio.gather(one(True), one(False)), [await inner, Tensor.recording]]

    async def outer() -> bool:
        return Tensor.recording

    assert asyncio.run(both()) == [[True] * 5, [False] * 5, [False, True]]


def test_blocks_that_end_in_another_order() -> None:
    def generator() -> Generator[bool]:
        with Tensor.no_grad():
            yield Tensor.recording

    g = generator()
    assert next(g) is False
    with Tensor.train():
        g.close()
        assert Tensor.training
        assert Tensor.recording
    assert seen() == (False, True, None, 0)


def test_one_decorated_function_in_many_threads() -> None:
    barrier = threading.Barrier(4)

    @Tensor.train()
    def training() -> bool:
        barrier.wait()
        return Tensor.training

    def one() -> tuple[bool, bool]:
        return training(), Tensor.training

    assert in_threads(*[one] * 4) == [(True, False)] * 4


def test_workers_of_a_loader_have_the_settings_of_the_loop() -> None:
    class Samples:
        def __len__(self) -> int:
            return 4

        def __getitem__(self, n: int) -> int:
            return 2 * settings.NOOPT + Tensor.training

    with Context(NOOPT=1), Tensor.train():
        assert [b.tolist() for b in nn.DataLoader(Samples(), batch_size=2, num_workers=2)] == [[3, 3], [3, 3]]


def test_threads_that_compile_have_the_settings_of_the_program() -> None:
    with Context(CPU_FEATURES="generic", CACHELEVEL=0):
        xs = [(Tensor([1.0, 2.0]) * n).exp().sum() for n in range(2, 6)]
        Tensor.realize(*[x.reshape(1).expand(n + 1).contiguous() for n, x in enumerate(xs)])
        assert settings.CPU_FEATURES == "generic"


def test_a_captured_function_in_threads_of_different_modes() -> None:
    @TinyJit
    def f(x: Tensor) -> Tensor:
        return x * (3.0 if Tensor.training else 2.0)

    def calls(training: bool) -> list[float]:
        with Tensor.train(training):
            return [f(Tensor([1.0]).realize()).item() for _ in range(30)]

    assert in_threads(lambda: calls(True), lambda: calls(False)) == [[3.0] * 30, [2.0] * 30]


# *** tensors that threads share ***


def test_writes_and_reads_of_a_shared_tensor_are_whole() -> None:
    s, lock = Tensor([0.0] * 4).realize(), threading.Lock()

    def one() -> None:
        for _ in range(20):
            with lock:
                s.add_(1)
            assert len(set(s.tolist())) == 1

    in_threads(*[one] * 6)
    assert s.tolist() == [120.0] * 4


def test_updates_in_place_need_no_lock() -> None:
    s = Tensor([0] * 40_000, dtype=dtypes.int32).realize()
    view = s[10:20]

    def one() -> None:
        nonlocal s
        for n in range(10):
            s += 1
            view.add_(1)
            s[n] = 7
            s.realize()

    in_threads(*[one] * 4)
    assert s[10:20].tolist() == [80] * 10
    assert s[20:].tolist() == [40] * (40_000 - 20)


def test_gradients_of_threads_add_up() -> None:
    w = Tensor([1.0, 2.0], requires_grad=True)

    def one() -> None:
        for _ in range(10):
            (w * 3).sum().backward()

    in_threads(*[one] * 4)
    assert w.grad is not None
    assert w.grad.tolist() == [120.0, 120.0]


def test_replays_that_write_state_are_whole() -> None:
    s = Tensor([0.0] * 3).realize()

    @TinyJit
    def step() -> Tensor:
        s.assign(s + 1)
        return s * 2

    for _ in range(3):
        step()

    def one() -> None:
        for _ in range(50):
            found = step().tolist()
            assert len(set(found)) == 1

    in_threads(*[one] * 4)
    assert s.tolist() == [203.0] * 3


def test_a_capture_knows_nothing_of_what_other_threads_write() -> None:
    x, mine, other = (Tensor([float(n)]).realize() for n in (2, 0, 0))
    graded = Tensor([1.0], requires_grad=True)
    asked: queue.SimpleQueue[int] = queue.SimpleQueue()
    answered: queue.SimpleQueue[int] = queue.SimpleQueue()

    @TinyJit
    def f(x: Tensor) -> Tensor:
        mine.assign(mine + x)
        asked.put(1)
        answered.get(timeout=60)
        return mine * 1

    def capture() -> None:
        f(x)
        f(x)

    def write() -> None:
        for _ in range(2):
            asked.get(timeout=60)
            other.assign(other + 5).realize()  # it would wait for ever, were a lock held while the function runs
            (graded * 3).sum().backward()
            answered.put(1)

    in_threads(capture, write)
    other.assign(Tensor([100.0])).realize()
    assert graded.grad is not None
    assert graded.grad.item() == 6.0
    graded.grad = None
    assert [f(x).item() for _ in range(3)] == [6.0, 8.0, 10.0]
    assert f.replays == 3
    assert (mine.item(), other.item(), graded.grad) == (10.0, 100.0, None)


def test_a_long_kernel_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that ends only after another thread has computed, written and read."""
    x = Tensor([1.0, 2.0]).realize()
    y = x * 12345.5 + 0.25
    y.schedule()
    running, computed = threading.Event(), threading.Event()
    launch = CPUGraph.__call__

    def slow(self: CPUGraph, *args: Any) -> None:
        if threading.current_thread().name == "slow":
            running.set()
            assert computed.wait(60), "the other thread waits for this kernel"
        launch(self, *args)

    monkeypatch.setattr(CPUGraph, "__call__", slow)

    def first() -> list[float]:
        threading.current_thread().name = "slow"
        return y.tolist()  # type: ignore[no-any-return]

    def second() -> list[float]:
        assert running.wait(60)
        found: list[float] = (x * 3).tolist()
        x.add_(1).realize()  # the kernel reads the old version
        found += x.tolist()
        computed.set()
        return found

    assert in_threads(first, second) == [[12345.75, 24691.25], [3.0, 6.0, 2.0, 3.0]]


def test_two_results_of_one_program_at_a_time() -> None:
    """Threads that run one program have separate argument tables."""
    xs = [Tensor([float(n)] * 50_000).realize() for n in range(4)]

    def one(n: int) -> None:
        for _ in range(20):
            assert (xs[n] * 2 + 1).sum().item() == (2.0 * n + 1) * 50_000

    in_threads(*[functools.partial(one, n) for n in range(4)])


def test_a_version_that_another_thread_holds_is_not_applied_twice() -> None:
    """A node was read before a later write was realized in place: its own write must not be applied again."""
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, daemon=True)
    thread.start()
    try:
        t = Tensor.arange(10).realize()
        t += 7
        held = t.uop  # as by a method of another thread that has not made its result yet
        t *= 7
        t.realize()
        assert t.tolist()[:2] == [49, 56]
        assert (Tensor._wrap(held, t.device) * 8).tolist()[:2] == [56, 64]
    finally:
        stop.set()
