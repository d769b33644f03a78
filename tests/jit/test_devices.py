"""Captured functions over several devices."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tinsmith import Tensor, nn
from tinsmith.core.counters import GlobalCounters
from tinsmith.jit import TinyJit

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
