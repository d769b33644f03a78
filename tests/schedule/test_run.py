"""Execution: a schedule is one native call on the CPU, and the same launches one by one on other devices."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tests.schedule.helpers import given
from tinsmith import GlobalCounters, Tensor
from tinsmith.backend.cpu.pool import Commands, get_pool
from tinsmith.backend.device import Device
from tinsmith.backend.memory import Buffer
from tinsmith.backend.program import Graph
from tinsmith.ir import Ops, UOp
from tinsmith.schedule.canonical import canonical, seen
from tinsmith.tensor.autograd import history


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
    """The generic graph on the CPU device: one device call for all launches, with the same values."""
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


def test_keys_tell_graphs_apart_as_canonical_graphs_do() -> None:
    """Two graphs have equal keys if and only if they have equal canonical graphs; buffers and values are ordered
    alike."""
    x, y, z = given(4, 4), given(4, 4, seed=1), given(4, 4, seed=2)
    short, other = given(16), Tensor([[1.0] * 4] * 4, device="CPU:1").realize()
    ints = Tensor([[1] * 4] * 4).realize()

    def graphs() -> list[list[UOp]]:
        Tensor.manual_seed(3)
        made = [x + y, y + x, y + z, x + x, x - y, x * 2.0, x * 3.0, z * 2.0, x.T + y, x + y.T, x.sum(0), x.sum(1),
                x.max(0), x.detach() + y, short + 1, other + other, ints + ints, x.cast("float16"), x.cast("int32"),
                (x + y) * (x + y), (x + y) * (y + x), Tensor.rand(4), Tensor.rand(4), Tensor.rand(5), x[1:] + 1,
                Tensor.rand(4) + Tensor.rand(4), x[:-1] + 1]
        sizes = (UOp(Ops.BIND, None, (UOp.variable("n", 1, 4), UOp.index(n))) for n in (2, 3))
        parts = [[v.uop.shrink(((0, n), (0, 4))).contiguous()] for n in sizes for v in (x, x.T)]  # symbolic sizes
        return [[t.uop] for t in made] + [[(x + 1).uop, (y + 1).uop], [(y + 1).uop, (x + 1).uop], [(x + 1).uop], *parts]

    found = [(seen(roots), canonical(roots)) for roots in graphs()]
    for s, c in found:
        assert s is not None and (s.buffers, s.values) == c[1:]
        for s2, c2 in found:
            assert s2 is not None and (s.key == s2.key) == (c[0] == c2[0])
    assert [s.symbolic for s, _ in found if s is not None] == [False] * (len(found) - 4) + [True] * 4


def test_what_gradients_read_is_known_by_the_structure() -> None:
    """One walk of a graph collects the same facts as separate walks for gradients and copies."""
    x, y, ints = given(4, 4), given(4, 4, seed=1), Tensor([[1] * 4] * 4).realize()
    n = UOp(Ops.BIND, None, (UOp.variable("n", 1, 4), UOp.index(2)))
    for made in ([x + y, (x * x).sum(0), y.T.contiguous() * 3], [x + ints, ints + 1], [x[1:] * n + n, x + 1]):
        roots = [t.uop for t in made]
        for _ in range(2):
            found = seen(roots)
            assert found is not None and found.plain and not found.form.copies
            walked = history._reads(roots)
            assert history._sets(found.buffers, dict(zip(roots, found.form.reads))) == walked
            assert all(isinstance(b, UOp) and b.op is Ops.BUFFER for below in walked.values() for b in below)
    first, second = seen([(x + y).uop]), seen([(y + x).uop])
    assert first is not None and second is not None and first.form is second.form
    copied = seen([(x.to("CPU:1") + 1).uop])
    assert copied is not None and copied.form.copies
    for other in (x.detach() + y, x.clone().realize().assign(y)):
        found = seen([other.uop])
        assert found is not None and not found.plain


def test_devices_of_deep_graphs_are_found_without_recursion() -> None:
    x = given(1).uop
    left = right = one = UOp.const(x.dtype, 1.0).reshape((1,))
    for _ in range(5000):
        left, right = left + one, one + right
    assert left.device is None and right.device is None
    for _ in range(5000):
        x = one + x
    assert x.device == "CPU"
