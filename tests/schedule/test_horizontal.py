"""Horizontal fusion: sibling kernels merge, and merging creates no dependency cycle."""
from __future__ import annotations

import numpy as np
import pytest

from tests.schedule.helpers import given, kernels, schedule
from tinsmith.backend.device import Device
from tinsmith.codegen.compile_kernel import compile_kernel
from tinsmith.core.counters import GlobalCounters
from tinsmith.core.settings import Context
from tinsmith.ir import Ops
from tinsmith.nn.optim import Adam
from tinsmith.schedule.fusion.horizontal import MOST_BUFFERS
from tinsmith.tensor.tensor import Tensor

SHAPES = [(64, 32), (64,), (32, 32), (32,), (64, 32)]


def adam(noopt: int) -> tuple[list[np.ndarray], int]:
    with Context(NOOPT=noopt):
        parameters = [given(*s, seed=n) for n, s in enumerate(SHAPES)]
        optimizer = Adam(parameters, lr=0.01)
        for _ in range(3):
            optimizer.zero_grad()
            loss = sum(((p * p).sum() for p in parameters), Tensor(0.0))
            loss.backward()
            before = GlobalCounters.kernel_count
            optimizer.step()
            launched = GlobalCounters.kernel_count - before
        return [p.numpy() for p in parameters], launched


def test_adam() -> None:
    """Both moments and the update of a parameter are one kernel."""
    merged, few = adam(0)
    apart, many = adam(1)
    assert few <= len(SHAPES) + 3 and many >= 3 * len(SHAPES)
    for a, b in zip(merged, apart):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_statistics_share_their_loop() -> None:
    x = given(64, 96)
    (item,) = kernels(x.sum(axis=1), (x * x).sum(axis=1))
    assert item.outputs == 2 and item.sink is not None
    program = compile_kernel(item.sink, Device["CPU"].renderer, [])
    assert sum(u.op is Ops.RANGE for u in program.uops) == 2
    assert sum(u.op is Ops.LOAD for u in program.uops) == 1


def test_values() -> None:
    x = given(64, 96)
    a, b, c = x.sum(axis=1), (x * x).sum(axis=1), x.max(axis=1)
    Tensor.realize(a, b, c)
    n = x.numpy()
    np.testing.assert_allclose(a.numpy(), n.sum(1), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(b.numpy(), (n * n).sum(1), rtol=1e-4)
    np.testing.assert_array_equal(c.numpy(), n.max(1))


def test_what_is_picked_shares_a_loop_with_where_it_was() -> None:
    """The end of a sort: one kernel gathers from another array by indices and stores the indices."""
    table, places = given(64), Tensor((np.arange(40) * 7 % 64).astype(np.int32)).realize()
    picked, shifted = table[places], places + 1
    (item,) = kernels(picked, shifted)
    assert item.outputs == 2
    Tensor.realize(picked, shifted)
    np.testing.assert_array_equal(picked.numpy(), table.numpy()[places.numpy()])
    np.testing.assert_array_equal(shifted.numpy(), places.numpy() + 1)


def test_different_rows_stay_apart() -> None:
    x = given(32, 32)
    assert len(kernels(x.sum(axis=1), x.sum(axis=0))) == 2


def test_limits() -> None:
    x = given(64)
    found = kernels(*((x + given(64, seed=n)).exp() for n in range(40)))
    assert 1 < len(found) < 40
    assert all(len(i.slots) <= MOST_BUFFERS for i in found)


def test_order() -> None:
    """Every item reads only values written earlier."""
    x, y = given(64), given(64, seed=1)
    a, b = (x + y).contiguous(), (x - y).contiguous()
    c, d = (a * b.flip(0)).contiguous(), (a.flip(0) * b).contiguous()
    found = schedule(a, b, c, d, c + d)
    written = set(found.inputs.values())
    for item in found.items:
        assert set(item.slots[item.outputs :]) <= written
        written |= set(item.slots[: item.outputs])
    with Context(NOOPT=1):
        assert len(kernels(a, b)) == 2


def test_column_sums_of_which_one_needs_statistics_share_a_kernel() -> None:
    """Two column sums whose inputs are ready at different times share a kernel that runs when both are ready."""
    x, w = given(128, 96), given(128, 96, seed=1)
    scale, shift = (w * (x - x.mean(1, keepdim=True))).sum(0), w.sum(0)
    for pair in ((scale, shift), (shift, scale)):
        assert [len(k.written) for k in kernels(*pair)].count(2) == 1
    np.testing.assert_allclose(shift.numpy(), w.numpy().sum(0), rtol=1e-4, atol=1e-4)
    centred = x.numpy() - x.numpy().mean(1, keepdims=True)
    np.testing.assert_allclose(scale.numpy(), (w.numpy() * centred).sum(0), rtol=1e-4, atol=1e-4)


def test_a_kernel_does_not_wait_for_what_needs_it() -> None:
    x = given(128, 96)
    first = x.sum(0)
    second = (x * first.contiguous()).sum(0)
    assert all(len(k.written) == 1 for k in kernels(first, second))
    between = (x - (x * first.contiguous()).sum(1, keepdim=True)).sum(0)
    assert all(len(k.written) == 1 for k in kernels(first, between))
    np.testing.assert_allclose(second.numpy(), (x.numpy() * first.numpy()).sum(0), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("device", ["CPU", "PYTHON"])
def test_tiny_maps_of_one_shape_share_kernels(device: str) -> None:
    """The counters and statistics of many batch norms took a launch each."""
    old = [Tensor.full((6,), n, device=device).contiguous().realize() for n in range(20)]
    new = [t * 0.9 + n for n, t in enumerate(old)]
    large = [Tensor.ones(100, 100, device=device).contiguous().realize() + n for n in range(3)]
    schedule = new[0].schedule(*new[1:], *large)
    assert len(schedule.steps) < len(large) + 3
    Tensor.realize(*new)
    np.testing.assert_allclose([t.numpy()[0] for t in new], [1.9 * n for n in range(20)], rtol=1e-6)
