"""Execution of a replay: one native call, planned and reused memory, no leaks, failures and forks."""
from __future__ import annotations

import gc
import multiprocessing
import threading
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.schedule.helpers import given
from tinsmith import Context, GlobalCounters, Tensor, TinyJit
from tinsmith.backend.cpu.pool import Commands, get_pool
from tinsmith.backend.device import Device
from tinsmith.backend.memory import Buffer
from tinsmith.core.errors import KernelError
from tinsmith.ir import Ops, UOp
from tinsmith.jit import replay
from tinsmith.jit.replay import LARGER, SMALL

LARGE = SMALL // 4 + 64  # float32 elements from which on state is written in place


def capture_of(f: TinyJit[Any]) -> Any:
    return f._last


def buffer_of(t: Tensor) -> Any:
    return t.uop.base.arg


@pytest.fixture
def native_calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    calls: list[int] = []
    replay = type(get_pool()).replay

    def counted(self: Any, commands: Commands) -> None:
        calls.append(commands.table.count)
        replay(self, commands)

    monkeypatch.setattr(type(get_pool()), "replay", counted)
    return calls


def test_a_replay_is_one_native_call(native_calls: list[int]) -> None:
    def several(x: Tensor) -> Tensor:
        y = (x[::-1] + 1).realize()
        z = (y[::-1] * 2).contiguous()
        return ((z.sum() + y).realize() * 3)[:2]

    f = TinyJit(several)
    x = given(7)
    for _ in range(2):
        f(x)
    native_calls.clear()
    want = several(x).numpy()
    assert sum(native_calls) == 4 and len(native_calls) > 1
    for _ in range(3):
        before = GlobalCounters.kernel_count
        native_calls.clear()
        got = f(x)
        assert native_calls == [4] and GlobalCounters.kernel_count - before == 4
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-6)


def test_memory_is_planned_over_the_whole_capture() -> None:
    def long(x: Tensor) -> Tensor:
        for _ in range(10):
            x = (x[::-1] + 1).realize()
        return x

    f = TinyJit(long)
    for n in range(4):
        x = Tensor.full((1000,), float(n)).contiguous()
        np.testing.assert_array_equal(f(x).numpy(), np.full(1000, n + 10))
    bound = capture_of(f).replay.bound
    assert len(bound.outputs) == 1 and sum(size for _, size in bound.blocks) == 2 * 4096


def test_memory_of_dropped_results_is_used_again_and_that_of_kept_ones_is_not() -> None:
    f = TinyJit(lambda x: x * 2 + 1)
    x = given(5, 3)
    want = x.numpy() * 2 + 1
    kept: list[Any] = []
    for n in range(40):
        y = f(x)
        if n % 4 == 1:
            kept.append(y)  # the tensor
        elif n % 4 == 2:
            kept.append(y[1:])  # only a view of it
        elif n % 4 == 3:
            kept.append(y + 0)  # only a graph on it
        x = Tensor(x.numpy() + 1).realize()
    for n, t in zip([n for n in range(40) if n % 4], kept):
        expected = want + 2 * n
        np.testing.assert_allclose(t.numpy(), expected[1:] if n % 4 == 2 else expected, rtol=1e-6)
    del kept, y, t
    f(x)
    places = {id(buffer_of(f(x))) for _ in range(20)}
    assert len(places) == 1


def test_larger_results_share_the_room_for_them() -> None:
    sizes = [LARGER // 16, LARGER // 8, LARGER // 32]  # float32 elements: a quarter, half, an eighth of the room
    f = TinyJit(lambda *xs: tuple(x + 1 for x in xs))
    xs = [Tensor([float(n)]).expand(size).contiguous().realize() for n, size in enumerate(sizes)]
    results = [f(*xs) for _ in range(8)]
    outputs = capture_of(f).replay.outputs
    assert sorted((o.nbytes, o.keeps, len(o.entries)) for o in outputs) == [
        (LARGER // 8, 0, 0), (LARGER // 4, 2, 2), (LARGER // 2, 1, 1)]
    assert len({id(buffer_of(r[0])) for r in results}) == len(results)
    assert all((t.numpy() == n + 1).all() for r in results for n, t in enumerate(r))
    del results
    assert len({id(buffer_of(f(*xs)[0])) for _ in range(6)}) == 1


def test_a_result_as_the_next_argument() -> None:
    f = TinyJit(lambda x: x + 1)
    for size in (3, LARGE):
        x = Tensor.zeros(size).contiguous()
        for _ in range(20):
            x = f(x)
        np.testing.assert_array_equal(x.numpy(), np.full(size, 20))


@pytest.mark.parametrize("flat", [True, False])
def test_large_state_is_written_in_place_if_nobody_reads_the_old_version(flat: bool) -> None:
    w = Tensor.zeros(LARGE).reshape(1, LARGE).contiguous().realize()
    f = TinyJit(lambda x: w.assign(w + x[0]))
    one = Tensor([1.0]).realize()
    x: Any = one if flat else [one]  # for the flat guards, and for the full ones
    for _ in range(3):
        f(x)
    assert (f._quick is not None) is flat
    memory = buffer_of(w).opaque.address
    for _ in range(3):
        f(x)
        assert buffer_of(w).opaque.address == memory
    old = Tensor(w)
    f(x)
    assert buffer_of(w).opaque.address != memory
    np.testing.assert_array_equal(old.numpy(), np.full((1, LARGE), 6))
    view, part = w[:, 5:7], Tensor(w)[:, 5:7]
    f(x)
    np.testing.assert_array_equal(view.numpy(), np.full((1, 2), 8))
    np.testing.assert_array_equal(part.numpy(), np.full((1, 2), 7))
    np.testing.assert_array_equal(w.numpy(), np.full((1, LARGE), 8))


def test_state_that_stays_where_it_is_makes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """In steady state every tensor keeps its node, except one assigned another value or aliased by others."""
    made: list[Any] = []
    old = replay.OutputMemory.__init__
    monkeypatch.setattr(replay.OutputMemory, "__init__", lambda self, *args: (made.append(None), old(self, *args))[1])
    state = [Tensor(np.full((200, 128), n, np.float32)).realize() for n in range(4)]

    @TinyJit
    def step(x: Tensor) -> None:
        for s in state:
            s.assign(s + x)
        Tensor.realize(*state)

    x = Tensor(np.ones((200, 128), np.float32)).realize()
    for _ in range(5):
        step(x)
    nodes, made[:] = [id(s.uop) for s in state], []  # who refers to a node sees the old version
    for _ in range(3):
        step(x)
    assert not made and [id(s.uop) for s in state] == nodes
    assert [s.numpy()[7, 9] for s in state] == [8, 9, 10, 11]
    view = state[1].reshape(-1)
    state[2].assign(Tensor(np.zeros((200, 128), np.float32))).realize()
    step(x)
    assert [s.numpy()[7, 9] for s in state] == [9, 10, 1, 12] and step.cnt == 9
    assert view.numpy()[0] == 10, "a view of the memory sees what is written"


@pytest.mark.parametrize("view", [lambda t: t.T, lambda t: t[:, 1:], lambda t: t[::-1, ::2], lambda t: t[1:, None].T])
def test_state_that_is_a_view_of_a_dead_base_stays_where_it_is(
        view: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    allocated: list[int] = []
    allocate = Buffer.allocate
    monkeypatch.setattr(Buffer, "allocate", lambda self: (allocated.append(self.nbytes), allocate(self))[1])
    start = np.arange(256 * 256, dtype=np.float32).reshape(256, 256) / 256
    w = view(Tensor(start).realize())

    @TinyJit
    def f(x: Tensor) -> None:
        w.assign(w * 0.5 + x)

    x = Tensor([1.0]).realize()
    for _ in range(3):
        f(x)
    memory, allocated[:] = buffer_of(w).opaque.address, []
    kernels = GlobalCounters.kernel_count
    for _ in range(3):
        f(x)
    assert buffer_of(w).opaque.address == memory and not allocated and GlobalCounters.kernel_count == kernels + 3
    want = view(start)
    for _ in range(6):
        want = want * np.float32(0.5) + np.float32(1)
    np.testing.assert_array_equal(w.numpy(), want)
    other = w[1:]
    f(x)
    np.testing.assert_array_equal(other.numpy(), (want * 0.5 + 1)[1:])
    assert buffer_of(w).opaque.address != memory, "a tensor that shares the memory is not looked for by the replay"
    old = Tensor(w)
    f(x)
    np.testing.assert_array_equal(old.numpy(), want * 0.5 + 1)


def test_two_tensors_of_one_buffer_are_not_written_in_place() -> None:
    w = Tensor.zeros(LARGE).contiguous().realize()
    v = Tensor(w.uop)

    @TinyJit
    def step(x: Tensor) -> Tensor:
        w.assign(w + x)
        return v.sum()

    v_is = [step(Tensor([1.0])).item() for _ in range(6)]
    assert v_is == [0.0] * 6 and w.numpy()[0] == 6.0 and v.numpy()[0] == 0.0


def test_state_that_no_program_reads_is_not_written_over() -> None:
    a, b, x = (Tensor([float(n), n + 1.0]).realize() for n in range(3))

    @TinyJit
    def f(x: Tensor) -> Tensor:
        a.replace(b)  # guards on both, and nothing to compute
        return x + 10

    for _ in range(6):
        assert f(x).tolist() == [12.0, 13.0]
        assert a.tolist() == b.tolist() == [1.0, 2.0]


def test_donated_results_share_memory() -> None:
    f = TinyJit(lambda x: {"y": x + 1, "w": x.sum()}, donate=True)
    for _ in range(2):
        f(Tensor([1.0] * LARGE))
    first = f(Tensor([2.0] * LARGE))
    assert first["y"].numpy()[0] == 3.0
    second = f(Tensor([5.0] * LARGE))
    assert buffer_of(first["y"]) is buffer_of(second["y"]) and first["y"].numpy()[0] == second["y"].numpy()[0] == 6.0
    g = TinyJit(lambda x: x[::-1] + 1, donate=True)  # an argument of the call is never written over
    x = Tensor([float(n) for n in range(9)])
    for _ in range(6):
        want = x.numpy()[::-1] + 1
        x = g(x)
        np.testing.assert_array_equal(x.numpy(), want)


def test_ten_thousand_replays_leave_nothing_behind() -> None:
    w = Tensor.zeros(4).contiguous().realize()

    def body(x: Tensor) -> Any:
        w.assign(w * 0.5 + x)
        return {"sum": w.sum(), "draw": Tensor.rand(3) + x[0]}

    f = TinyJit(body)
    plain = TinyJit(lambda x: x + 1)
    x = given(4)

    def some(count: int) -> None:
        for _ in range(count):
            f(x)
            plain(x)

    some(200)
    gc.collect()
    nodes, used, tensors = len(_interned()), GlobalCounters.mem_used, len(Tensor.live)
    tracemalloc.start()
    try:
        some(100)
        before = tracemalloc.get_traced_memory()[0]
        some(5000)
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown < 20_000
    assert len(_interned()) <= nodes + 20 and len(Tensor.live) <= tensors + 5
    assert GlobalCounters.mem_used <= used + 8 * SMALL


def _interned() -> Any:
    from tinsmith.ir import uop

    return uop.interned


def test_a_failing_kernel_leaves_every_tensor_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    w = Tensor([1.0, 2.0]).realize()
    big = Tensor.zeros(LARGE).contiguous().realize()

    def body(x: Tensor) -> Tensor:
        w.assign(w + x)
        big.assign(big + 1)
        return w * Tensor.rand(2)

    f = TinyJit(body)
    lone = TinyJit(lambda x: x * 2)
    x = given(2)
    for _ in range(4):
        f(x)
        lone(x)
    state, big_state = w.numpy(), big.numpy()
    with monkeypatch.context() as patch:
        def refuse(self: Any, bases: Any, values: Any) -> None:
            raise RuntimeError("no")

        patch.setattr(type(Device["CPU"].graph([])), "__call__", refuse)
        for function in (f, lone):
            with pytest.raises(KernelError, match="no"):
                function(x)
    np.testing.assert_array_equal(w.numpy(), state)
    np.testing.assert_array_equal(big.numpy(), big_state)
    f(x)
    np.testing.assert_allclose(w.numpy(), state + x.numpy(), rtol=1e-6)
    np.testing.assert_array_equal(big.numpy(), big_state + 1)
    np.testing.assert_allclose(lone(x).numpy(), x.numpy() * 2)


def test_a_fork_replays_with_workers_of_its_own() -> None:
    context = multiprocessing.get_context("fork")
    f = TinyJit(lambda x: (x[::-1] * 2).contiguous() + 1)
    x = Tensor.ones(100_000).contiguous().realize()
    for _ in range(4):
        f(x)
    queue = context.Queue()
    small = TinyJit(lambda x: (x[::-1] * 2).contiguous() + 1)
    for _ in range(3):
        small(x[:5])

    def child() -> None:
        large = f(x).numpy()
        queue.put((float(large.min()), float(large.max()), [small(x[:5]).tolist() for _ in range(3)]))

    process = context.Process(target=child)
    process.start()
    assert queue.get(timeout=120) == (3.0, 3.0, [[3.0] * 5] * 3)
    process.join()
    assert f(x).numpy()[0] == 3.0


def test_threads_take_turns() -> None:
    f = TinyJit(lambda x, k: x * 2 + k)
    errors: list[str] = []

    def work(number: int) -> None:
        x = Tensor([float(number)] * 8).realize()
        for n in range(200):
            got = f(x, number % 2).tolist()
            if got != [number * 2.0 + number % 2] * 8:
                errors.append(f"{number} {n} {got}")

    for k in (0, 1, 0, 1):
        f(Tensor([1.0] * 8), k)
    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors


def bound(value: int, name: str = "n") -> UOp:
    return UOp(Ops.BIND, None, (UOp.variable(name, 1, 40), UOp.index(value)))


def test_bound_variables_are_arguments_of_a_replay() -> None:
    data = np.arange(240, dtype=np.float32).reshape(40, 6)
    x = Tensor(data).realize()
    f = TinyJit(lambda x, n: {"sum": Tensor(x.uop.shrink(((0, n), (0, 6)))).sum(0), "x": x * 2})
    g = TinyJit(lambda part: (part + 1, part.sum(0)))
    programs = []
    for n in (3, 5, 40, 1, 17):
        np.testing.assert_array_equal(f(x, bound(n))["sum"].numpy(), data[:n].sum(0))
        more, total = g(Tensor(x.uop.shrink(((0, bound(n)), (0, 6)))))
        np.testing.assert_array_equal(more.numpy(), data[:n] + 1)
        np.testing.assert_array_equal(total.numpy(), data[:n].sum(0))
        programs.append(GlobalCounters.schedule_count)
    assert programs[1:] == programs[1:2] * 4 and f.replays == g.replays == 3
    assert len(f.captures) == len(g.captures) == 1


def test_two_variables_and_two_values_of_one() -> None:
    data = np.arange(40, dtype=np.float32)
    x = Tensor(data).realize()

    def part(n: UOp) -> Tensor:
        return Tensor(x.uop.shrink(((0, n),))).sum()

    f = TinyJit(lambda a, b: part(a) * 1000 + part(b))
    pairs = [(bound(3), bound(5, "m")), (bound(7), bound(2, "m")), (bound(4), bound(4, "m")), (bound(9), bound(5, "m"))]
    pairs += [(bound(3), bound(5)), (bound(8), bound(2)), (bound(6), bound(6)), (bound(7), bound(9))]
    for a, b in pairs:
        want = data[: a.src[1].arg].sum() * 1000 + data[: b.src[1].arg].sum()
        assert f(a, b).item() == want


def test_debug_lines_of_a_replay(capsys: pytest.CaptureFixture[str]) -> None:
    f = TinyJit(lambda x: (x[::-1] * 2).contiguous() + 1)
    x = given(5)
    for _ in range(3):
        f(x)
    with Context(DEBUG=2):
        got = f(x)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("*** CPU")]
    assert len(lines) == 2
    np.testing.assert_allclose(got.numpy(), x.numpy()[::-1] * 2 + 1)


@pytest.mark.parametrize("shape", [(0,), (2, 0), (), (1,)])
def test_results_with_few_elements_or_none(shape: tuple[int, ...]) -> None:
    f = TinyJit(lambda x: x + 1)
    for n in range(4):
        y = f(Tensor.full(shape, float(n)))
        assert y.shape == shape and np.array_equal(y.numpy(), np.full(shape, n + 1.0))
