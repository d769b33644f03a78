"""Running: a schedule is one native call on the CPU, and the same launches one by one elsewhere."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tests.schedule.helpers import given
from tinsmith import GlobalCounters, Tensor
from tinsmith.backend.cpu.pool import Commands, get_pool
from tinsmith.backend.device import Device, Graph
from tinsmith.backend.memory import Buffer


def chain(x: Tensor, length: int) -> Tensor:
    for n in range(length):
        x = (x[:, ::-1] * 0.5 + n).contiguous()
    return x


def test_one_native_call_per_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    pool = get_pool()
    replay = type(pool).replay

    def counted(self: Any, commands: Commands) -> None:
        calls.append(commands.table.count)
        replay(self, commands)

    monkeypatch.setattr(type(pool), "replay", counted)
    x = given(4, 8)
    before = GlobalCounters.kernel_count
    y = chain(x, 20).realize()
    assert calls == [20] and GlobalCounters.kernel_count - before == 20
    want = x.numpy()
    for n in range(20):
        want = want[:, ::-1] * np.float32(0.5) + np.float32(n)
    np.testing.assert_allclose(y.numpy(), want, rtol=1e-6)


def test_copies_between_devices_part_the_calls() -> None:
    x = given(3, 4)
    y = (chain((chain(x, 3).to("CPU:1") + 1), 2).to("CPU") * 2).realize()
    want = x.numpy()
    for n in range(3):
        want = want[:, ::-1] * np.float32(0.5) + np.float32(n)
    want = want + 1
    for n in range(2):
        want = want[:, ::-1] * np.float32(0.5) + np.float32(n)
    np.testing.assert_allclose(y.numpy(), want * 2, rtol=1e-6)


def test_a_device_without_a_graph_runs_the_same_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    """The general graph on the CPU device: one call of the device for all launches, with the same values."""
    device = type(Device["CPU"])
    ran: list[int] = []

    class Plain(Graph):
        def __call__(self, bases: Sequence[Buffer], values: Sequence[int]) -> None:
            ran.append(len(self.launches))
            super().__call__(bases, values)

    x = given(5, 6)
    want = chain(x + 0.25, 7).numpy()
    monkeypatch.setattr(device, "graph", lambda self, launches: Plain(self, launches))
    got = chain(x + 0.125 + 0.125, 7).numpy()  # another program of the same kernels
    np.testing.assert_array_equal(got, want)
    assert ran == [7]
