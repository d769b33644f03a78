"""Kernels over the same rows on a GPU grid: statistics, maps and column sums together, moments by chunks."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from tinsmith import Tensor, Variable, nn
from tinsmith.backend.device import Compiled, Device
from tinsmith.backend.python.device import DEVICE
from tinsmith.codegen.compile_kernel import compile_kernel
from tinsmith.ir import Ops
from tinsmith.runtime.lowering import planned
from tinsmith.schedule.canonical import canonical
from tinsmith.schedule.schedule_item import ScheduleItem
from tinsmith.tensor.realize import _concrete


def make(name: str) -> Compiled:
    """Return the interpreter device with the target of a GPU of several multiprocessors."""
    device = DEVICE("PYTHON:G64:C4")
    device.device, device.renderer.target = name, replace(device.target, resident=64)
    return device


@pytest.fixture(autouse=True)
def grid(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    Device.register("GRIDS", make)
    monkeypatch.setattr(type(Device), "DEFAULT", "GRIDS")
    yield
    Device._opened.pop("GRIDS", None)
    Device._classes.pop("GRIDS")


def given(*shape: int, seed: int = 0, shift: float = 0) -> Tensor:
    return Tensor(np.random.default_rng(seed).normal(shift, 1, shape).astype(np.float32)).realize()


def kernels(*tensors: Tensor) -> list[ScheduleItem]:
    graph = canonical(list(dict.fromkeys(_concrete(t.uop) for t in tensors)))[0]
    return [i for i in planned(graph, "GRIDS")[0].items if i.sink is not None]


def wide(items: list[ScheduleItem], size: int) -> int:
    """Return the number of kernels that read or write an array of at least ``size`` elements."""
    return sum(any(n.op is Ops.PARAM and n.size >= size for n in i.sink.toposort()) or i.sink.src[0].size >= size
               for i in items if i.sink is not None)


@pytest.mark.parametrize(("rows", "columns"), [(192, 96), (256, 128)])
def test_a_norm_and_all_its_gradients_go_through_the_rows_once(rows: int, columns: int) -> None:
    x, scale, shift = given(rows, columns), given(columns, seed=1), given(columns, seed=2)
    for t in (x, scale, shift):
        t.requires_grad = True
    flow = given(rows, columns, seed=3)
    out = x.layernorm() * scale + shift
    found = [out, *(out * flow).sum().gradient(x, scale, shift)]
    assert wide(kernels(*found), rows * columns) == 1
    Tensor.realize(*found)
    a, f = x.numpy().astype(np.float64), flow.numpy().astype(np.float64)
    spread = np.sqrt(a.var(1, keepdims=True) + 1e-5)
    normed, inner = (a - a.mean(1, keepdims=True)) / spread, f * scale.numpy()
    back = (inner - inner.mean(1, keepdims=True) - normed * (inner * normed).mean(1, keepdims=True)) / spread
    for got, want in zip(found, [normed * scale.numpy() + shift.numpy(), back, (f * normed).sum(0), f.sum(0)],
                         strict=True):
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-3, atol=1e-3)


def test_a_loss_and_its_gradient_go_through_the_rows_once() -> None:
    x, labels = given(160, 112), Tensor(np.arange(160, dtype=np.int32) % 112).realize()
    x.requires_grad = True
    loss = x.cross_entropy(labels)
    (gradient,) = loss.gradient(x)
    assert wide(kernels(loss, gradient), 160 * 112) == 1
    Tensor.realize(loss, gradient)
    e = np.exp(x.numpy().astype(np.float64))
    share = e / e.sum(1, keepdims=True)
    picked = np.eye(112)[np.arange(160) % 112]
    np.testing.assert_allclose(loss.item(), -np.log((share * picked).sum(1)).mean(), rtol=1e-5)
    np.testing.assert_allclose(gradient.numpy(), (share - picked) / 160, rtol=1e-4, atol=1e-6)


def test_statistics_that_come_from_each_other_are_one_kernel() -> None:
    x = given(192, 96)
    mean = x.mean(1, keepdim=True)
    variance = (x - mean).square().mean(1, keepdim=True)
    assert len(kernels(mean, variance)) == 1
    Tensor.realize(mean, variance)
    np.testing.assert_allclose(variance.numpy(), x.numpy().var(1, keepdims=True), rtol=1e-5)


def test_the_moments_of_a_batch_take_one_pass() -> None:
    """Values far from 0: sums of squares lose precision that moments about each chunk's mean keep."""
    x = given(64, 3, 24, 24, shift=1000)
    layer = nn.BatchNorm(3)
    with Tensor.train():
        out = layer(x)
    found = [out, layer.running_mean, layer.running_var]
    assert wide(kernels(*found), x.numel()) == 2, "the moments, and the normalized values"
    Tensor.realize(*found)
    a = x.numpy().astype(np.float64)
    mean, variance = a.mean((0, 2, 3), keepdims=True), a.var((0, 2, 3), keepdims=True)
    np.testing.assert_allclose(out.numpy(), (a - mean) / np.sqrt(variance + 1e-5), atol=2e-3)
    count = a.size // 3
    np.testing.assert_allclose(layer.running_var.numpy(), 0.9 + 0.1 * variance.ravel() * count / (count - 1), rtol=1e-5)


def test_sums_over_rows_stay_in_registers_and_loads_come_before_barriers() -> None:
    x, flow = given(128, 512), given(128, 512, seed=1)
    scale = given(512, seed=2)
    for t in (x, scale):
        t.requires_grad = True
    found = ((x.layernorm() * scale) * flow).sum().gradient(x, scale)
    (host,) = [i for i in kernels(*found) if i.sink is not None and i.sink.arg]
    assert host.sink is not None
    lines = compile_kernel(host.sink, Device["GRIDS"].renderer).uops
    written = {u.src[0] for u in lines if u.op is Ops.STORE}
    assert not any(u.op is Ops.LOAD and u.src[0] in written and u.src[0].op is Ops.DEFINE_GLOBAL for u in lines)
    barrier = next(n for n, u in enumerate(lines) if u.op is Ops.BARRIER)
    large = [n for n, u in enumerate(lines) if u.op is Ops.LOAD and u.dtype.count > 1
             and u.src[0].op is Ops.DEFINE_GLOBAL]
    assert large and max(large) < barrier, "x and what flows back are under way before the threads wait"


def test_rows_written_by_their_threads_may_have_a_size_that_is_a_variable() -> None:
    keys, query = given(40, 2, 16), given(1, 2, 16, seed=1)
    n = Variable("n", 1, 40).bind(37)
    part = keys[:n].transpose(0, 1)
    got = query.transpose(0, 1).scaled_dot_product_attention(part, part).numpy()
    k, q = keys.numpy()[:37].astype(np.float64), query.numpy()[0].astype(np.float64)
    scores = np.exp(np.einsum("hd,khd->hk", q, k) / 4)
    want = np.einsum("hk,khd->hd", scores / scores.sum(1, keepdims=True), k)
    np.testing.assert_allclose(got[:, 0], want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("rows", "columns", "count"), [(8, 4096, 1), (32, 640, 1), (3, 1 << 15, 2)])
def test_few_rows_that_a_block_computes_quickly_are_one_kernel(rows: int, columns: int, count: int) -> None:
    """Threads of a block share a row: what matters is its length, not that of all rows together."""
    x = given(rows, columns)
    found = kernels(x.softmax())
    assert (len(found) == 1) is (count == 1)
    want = np.exp(x.numpy() - x.numpy().max(-1, keepdims=True))
    np.testing.assert_allclose(x.softmax().numpy(), want / want.sum(-1, keepdims=True), rtol=1e-4)
