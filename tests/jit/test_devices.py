"""Captured functions over several devices."""
from __future__ import annotations

import shutil
import types
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tinsmith import Device, Tensor, nn
from tinsmith.backend.cpu.pool import get_pool
from tinsmith.backend.device import Compiled
from tinsmith.backend.memory import Buffer
from tinsmith.backend.python.device import PythonDevice, PythonProgram
from tinsmith.core.counters import GlobalCounters
from tinsmith.jit import TinyJit
from tinsmith.jit.replay import SMALL
from tinsmith.runtime.command_queue import CommandQueue

TWO = ("CPU:0", "CPU:1")


def values(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal(shape)


@pytest.mark.parametrize("devices", [TWO, ("PYTHON:0", "PYTHON:1"), ("CPU", "PYTHON"), ("CPU:0", "CPU:1", "CPU:2")])
@pytest.mark.parametrize("axis", [None, 0, 1])
def test_replays_on_new_values(devices: tuple[str, ...], axis: int | None) -> None:
    w = Tensor(values(6, 3)).shard(devices).realize()

    @TinyJit
    def step(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x @ w
        return y.relu(), y.sum(0)

    for k in range(5):
        if k == 2:
            GlobalCounters.reset()
        x = values(6, 6, seed=k)
        a, b = step(Tensor(x).shard(devices, axis).realize())
        y = x @ w.numpy()
        assert np.allclose(a.numpy(), np.maximum(y, 0)) and np.allclose(b.numpy(), y.sum(0))
        assert a.shard_axis == (0 if axis == 0 else None)
    assert GlobalCounters.schedule_count <= 3, "only the arguments are scheduled"


def test_another_placement_captures_again() -> None:
    @TinyJit
    def double(x: Tensor) -> Tensor:
        return x * 2

    for axis in (0, 0, 0, 1, 1, 1, 0, None, 1):
        x = values(4, 4)
        y = double(Tensor(x).shard(TWO, axis).realize())
        assert np.allclose(y.numpy(), x * 2) and y.shard_axis == axis


@pytest.mark.parametrize("axis", [None, 0])
def test_training(axis: int | None) -> None:
    found = []
    for jitted, devices in ((False, None), (True, None), (True, TWO)):
        w, b = Tensor(values(6, 4)), Tensor(values(4, seed=1))
        if devices is not None:
            w.shard_(devices, axis), b.shard_(devices)
        opt = nn.optim.Adam([w, b], lr=0.1)

        def step(x: Tensor, y: Tensor, w: Tensor = w, b: Tensor = b, opt: Any = opt) -> Tensor:
            opt.zero_grad()
            loss = ((x @ w + b).tanh() - y).square().mean().backward()
            opt.step()
            return loss

        run = TinyJit(step) if jitted else step
        losses = []
        for k in range(6):
            x, y = Tensor(values(8, 6, seed=k)), Tensor(values(8, 4, seed=k + 9))
            if devices is not None:
                x, y = x.shard(devices, 0), y.shard(devices, 0)
            losses.append(run(x.realize(), y.realize()).item())
        found.append((losses, w.numpy(), b.numpy()))
        assert w.shard_axis == (axis if devices is not None else None)
    for other in found[1:]:
        assert all(np.allclose(a, b, rtol=0, atol=1e-12) for a, b in zip(found[0], other))


FOUR = tuple(f"CPU:{n}" for n in range(4))


@pytest.mark.parametrize("devices", [TWO, FOUR, ("CPU:0", "CPU:1:C")])
def test_a_replay_is_one_native_call(devices: tuple[str, ...]) -> None:
    """Copies between queues of the pool are commands of its table, like kernels."""
    if "CPU:1:C" in devices and not (shutil.which("gcc") or shutil.which("clang")):
        pytest.skip("no C compiler")
    w = Tensor(values(6, 6)).shard(devices).realize()
    opt = nn.optim.Adam([w], lr=0.1)

    @TinyJit
    def step(x: Tensor) -> tuple[Tensor, Tensor]:
        opt.zero_grad()
        first = (x @ w).realize()  # a capture of several programs
        y = x @ w
        loss = (y.tanh() - 1).square().mean().backward()
        opt.step()
        return loss, first.to(devices[1])

    xs = [Tensor(values(9, 6, seed=k)).shard(devices, 0).realize() for k in range(4)]
    for x in xs[:3]:
        step(x)
    before = w.numpy()
    pool, calls = get_pool(), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pool, "replay", lambda commands, run=pool.replay: (calls.append(commands), run(commands)))
        loss, y = step(xs[3])
    assert len(calls) == 1 and step.replays == 2 and y.device == Device.canonicalize(devices[1])
    want = xs[3].numpy() @ before
    assert np.allclose(y.numpy(), want) and np.isclose(loss.item(), ((np.tanh(want) - 1) ** 2).mean())
    assert not np.array_equal(w.numpy(), before)


def parts_of(t: Tensor) -> tuple[Any, ...]:
    return tuple(t.uop.base.arg.parts)


def test_large_state_in_parts_is_written_in_place() -> None:
    big = 4 * SMALL
    w, v = (Tensor(values(big)).shard(TWO, 0).realize() for _ in range(2))

    @TinyJit
    def step(x: Tensor) -> None:
        w.assign(w * 0.5 + x)
        v.assign(v * 0.5 + x)

    want = w.numpy()
    for k in range(6):
        x = Tensor(values(big, seed=k)).shard(TWO, 0).realize()
        seen = v.shard(TWO, 0) if k == 4 else None  # who looks at the old value keeps it
        old = v.numpy()
        places = parts_of(w), parts_of(v)
        step(x)
        want = want * 0.5 + x.numpy()
        assert np.allclose(w.numpy(), want)
        if k >= 2:
            assert all(a is b for a, b in zip(places[0], parts_of(w)))
        if seen is not None:
            assert np.array_equal(seen.numpy(), old) and not any(a is b for a, b in zip(places[1], parts_of(v)))


def test_results_in_parts_are_fresh_unless_donated() -> None:
    x = Tensor(values(5, 4)).shard(TWO, 0).realize()
    for donate in (False, True):
        f = TinyJit(lambda a: {"y": a * 2, "sum": [a.sum(0)], "same": a}, donate=donate)
        results = [f((x + k).realize()) for k in range(6)]
        assert results[5]["y"].shard_axis == 0 and np.allclose(results[5]["y"].numpy(), (x.numpy() + 5) * 2)
        shared = parts_of(results[4]["y"])[1] is parts_of(results[5]["y"])[1]
        assert shared is donate
        if not donate:
            assert all(np.allclose(r["y"].numpy(), (x.numpy() + k) * 2) for k, r in enumerate(results))
            assert all(np.allclose(r["sum"][0].numpy(), (x.numpy() + k).sum(0)) for k, r in enumerate(results))
        assert all(np.allclose(r["same"].numpy(), x.numpy() + k) for k, r in enumerate(results))
    g = TinyJit(lambda a: a[::-1] + 1, donate=True)  # an argument of the call is never written over
    for _ in range(6):
        want = x.numpy()[::-1] + 1
        x = g(x)
        assert np.array_equal(x.numpy(), want)


def test_what_is_kept_of_an_argument_does_not_donate_something_else() -> None:
    w = Tensor(values(4)).realize()

    def body(a: Tensor) -> tuple[Tensor, Tensor]:
        w.assign(w + a)
        return a.reshape(2, 2), w

    f = TinyJit(body, donate=True)
    found = [f(Tensor(values(4, seed=k)).realize())[1].numpy() for k in range(6)]
    old = [w.numpy().copy()]
    f(Tensor(values(4, seed=9)).realize())
    assert len({a.tobytes() for a in found}) == 6 and not np.array_equal(old[0], w.numpy())


def test_captures_over_devices_that_do_not_take_turns() -> None:
    devices = ("CPU", "PYTHON")

    @TinyJit
    def f(x: Tensor) -> Tensor:
        return (x * 2).sum(0)

    for k in range(5):
        x = values(4, 3, seed=k)
        assert np.allclose(f(Tensor(x).shard(devices, 0).realize()).numpy(), (x * 2).sum(0))
    (entry,) = f.captures.values()
    assert isinstance(entry.captures[0].replay.bound.queue, CommandQueue)


def test_random_numbers_are_drawn_anew() -> None:
    @TinyJit
    def noisy(x: Tensor) -> Tensor:
        return x + Tensor.rand(4, 2, dtype="float64")

    found = []
    for axis in (None, 0):
        Tensor.manual_seed(7)
        x = Tensor(values(4, 2))
        found.append([noisy((x if axis is None else x.shard(TWO, axis)).realize()).numpy() for _ in range(4)])
    assert np.array_equal(found[0], found[1]) and not np.array_equal(found[0][2], found[0][3])


def test_what_a_device_runs_in_python_is_not_the_functions_own() -> None:
    """State and clock reads of a device's Python package do not make the function run uncaptured."""
    package = types.ModuleType("somebodys")
    exec("import time\nlaunches = [0]\ndef work():\n    launches[0] += 1\n    return time.time()", vars(package))

    class Borrowing(PythonProgram):
        def __call__(self, buffers: Sequence[Buffer], variables: Sequence[int] = ()) -> None:
            package.work()
            super().__call__(buffers, variables)

    def make(name: str) -> Compiled:
        plain = Device["PYTHON"]
        return PythonDevice(name, plain.allocator, plain.compiler, Borrowing, plain.renderer)

    Device.register("BORROWING", make)

    @TinyJit
    def double(x: Tensor) -> Tensor:
        return (x * 2).realize()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [double(Tensor([float(n)], device="BORROWING").realize()).item() for n in range(4)] == [0, 2, 4, 6]
    assert package.launches[0] == 4 and double.captures
