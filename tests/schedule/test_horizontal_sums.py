"""Sums merged into the kernel that computes, or reads, their operand."""
from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from benchmarks.corpus.targets import TARGETS
from tests.schedule.helpers import given, kernels, schedule
from tinsmith import nn
from tinsmith.codegen.compile_kernel import compile_kernel
from tinsmith.codegen.opt import OptOps
from tinsmith.core.settings import Context
from tinsmith.ir import Ops
from tinsmith.schedule.schedule_item import ScheduleItem
from tinsmith.tensor.tensor import Tensor


def joined(*tensors: Tensor) -> list[ScheduleItem]:
    """Return the kernels that contain sums over their own loops."""
    return [k for k in kernels(*tensors) if k.sink is not None and k.sink.arg is not None]


def gradients(rows: int, columns: int) -> tuple[list[Tensor], list[np.ndarray]]:
    """Return the gradients of a layer norm with scale and shift, and the expected ones."""
    x, flow = given(rows, columns), given(rows, columns, seed=1)
    scale, shift = given(columns, seed=2), given(columns, seed=3)
    for t in (x, scale, shift):
        t.requires_grad = True
    found = ((x.layernorm() * scale + shift) * flow).sum().gradient(x, scale, shift)
    a, f = x.numpy().astype(np.float64), flow.numpy().astype(np.float64)
    spread = np.sqrt(a.var(1, keepdims=True) + 1e-5)
    normed, flow_in = (a - a.mean(1, keepdims=True)) / spread, f * scale.numpy()
    back = (flow_in - flow_in.mean(1, keepdims=True) - normed * (flow_in * normed).mean(1, keepdims=True)) / spread
    return list(found), [back, (f * normed).sum(0), f.sum(0)]


@pytest.mark.parametrize(("rows", "columns"), [(512, 64), (640, 100), (128, 129), (1024, 17), (160, 1000), (256, 65)])
def test_gradients_of_a_norm_are_one_kernel(rows: int, columns: int) -> None:
    """One kernel computes statistics, the input's gradient and partial column sums; a second one adds the partial
    sums."""
    found, right = gradients(rows, columns)
    (host,) = joined(*found)
    assert len(kernels(*found)) == 2 and len(host.written) == 3 and host.sink is not None and host.sink.arg == 2
    Tensor.realize(*found)
    for got, want in zip(found, right, strict=True):
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("rows", "columns"), [(257, 128), (2, 20000), (64, 96), (20000, 8)])
def test_what_has_no_blocks_stays_apart(rows: int, columns: int) -> None:
    """A prime number of rows, too few rows, too little work, or rows shorter than a vector."""
    found, right = gradients(rows, columns)
    assert not joined(*found)
    Tensor.realize(*found)
    for got, want in zip(found, right, strict=True):
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-3, atol=1e-3)


def test_statistics_that_others_read_are_stored() -> None:
    x, w = given(256, 96), given(256, 96, seed=1)
    mean = x.mean(1, keepdim=True)
    away, total = (x - mean) * w, ((x - mean) * w * w).sum(0)
    (host,) = joined(mean, away, total)
    assert len(host.written) == 3 and len(kernels(mean, away, total)) == 2
    Tensor.realize(mean, away, total)
    a, b = x.numpy(), w.numpy()
    np.testing.assert_allclose(mean.numpy(), a.mean(1, keepdims=True), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(away.numpy(), (a - a.mean(1, keepdims=True)) * b, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(total.numpy(), ((a - a.mean(1, keepdims=True)) * b * b).sum(0), rtol=1e-3, atol=1e-3)


def test_statistics_that_only_the_rest_of_a_sum_reads_are_stored() -> None:
    x, w = given(256, 256), given(256, 256, seed=1)
    mean = x.mean(1)
    away = (x - mean.reshape(256, 1)) * w
    total = away.sum(0) + mean
    assert len(joined(away, total)) == 1
    Tensor.realize(away, total)
    a = x.numpy().astype(np.float64)
    right = (a - a.mean(1, keepdims=True)) * w.numpy()
    np.testing.assert_allclose(away.numpy(), right, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(total.numpy(), right.sum(0) + a.mean(1), rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize(("shape", "axes"), [((128, 16, 6, 6), (0, 2, 3)), ((512, 8, 20, 20), (0, 2, 3)),
                                             ((144, 3, 5, 50), (0, 3)), ((4, 128, 64), (0, 1)), ((1, 256, 96), 1),
                                             ((24, 64, 33), 1)])
def test_sums_of_what_a_kernel_computes(shape: tuple[int, ...], axes: int | tuple[int, ...]) -> None:
    """Sums of a kernel's result over any of its loops, such as the gradient of a bias."""
    x = given(*shape)
    y = (x * 2 + 1).relu().contiguous()
    z = y.sum(axes)
    (host,) = joined(y, z)
    assert host.outputs == 2
    Tensor.realize(y, z)
    right = np.maximum(x.numpy() * 2 + 1, 0)
    np.testing.assert_array_equal(y.numpy(), right)
    np.testing.assert_allclose(z.numpy(), right.sum(axes), rtol=1e-4)


def test_what_the_sum_is_used_for_stays_behind() -> None:
    x, bias = given(256, 96), given(96, seed=1)
    y = x.exp().contiguous()
    new = bias - 0.1 * y.sum(0)
    found = kernels(y, new)
    assert len(found) == 2 and len(joined(y, new)) == 1
    Tensor.realize(y, new)
    np.testing.assert_allclose(new.numpy(), bias.numpy() - 0.1 * np.exp(x.numpy()).sum(0), rtol=1e-4)


@pytest.mark.parametrize("of", [
    lambda x: [x.exp(), (x @ x.T).sum(0)],  # a contraction
    lambda x: [x.exp(), x.max(0)],  # no sum
    lambda x: [x.cumsum(1), x.sum(0)],  # a host that goes in order
    lambda x: [(s := x.sum(0)), (x - s).contiguous()],  # a host that needs the sum
])
def test_what_cannot_join(of: Callable[[Tensor], list[Tensor]]) -> None:
    x = given(256, 256)
    found = of(x)
    assert not joined(*found)
    with Context(NOOPT=1):
        right = [t.numpy() for t in of(x)]
    for got, want in zip(found, right, strict=True):
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-3, atol=1e-2)


def test_order() -> None:
    """Every item reads only values written earlier, and every output is written once."""
    x, w = given(256, 96), given(256, 96, seed=1)
    y = (x * w).contiguous()
    first = y.sum(0)
    z = (y * first).contiguous()
    found = schedule(y, first, z, z.sum(0), (z * y).sum(0), (z - z.mean(1, keepdim=True)) * w)
    written = set(found.inputs.values())
    for item in found.items:
        assert set(item.read) <= written and written.isdisjoint(item.written)
        written |= set(item.written)
    assert set(found.outputs) <= written
    with Context(NOOPT=1):
        assert not joined(y, first)


def test_partial_sums_do_not_depend_on_the_number_of_workers() -> None:
    def total(threads: int) -> np.ndarray:
        with Context(THREADS=threads):
            found = gradients(640, 100)[0]
            Tensor.realize(*found)
            return found[1].numpy()

    assert total(1).tobytes() == total(2).tobytes()
    sizes = [n.src[0].shape for k in joined(*gradients(640, 100)[0]) for n in (k.sink.src if k.sink else ())
             if n.op is Ops.REDUCE]
    assert sizes == [(16, 40, 100)] * 2


def test_places_of_windows_have_lanes_beside_sums() -> None:
    """The gradient of a pool stores to every second element; the same kernel adds up its partial sums."""
    x, flow, norm = given(512, 8, 20, 20), given(512, 8, 10, 10, seed=1), nn.BatchNorm2d(8)
    x.requires_grad = True
    with Tensor.train():
        found = (norm(x).max_pool2d() * flow).sum().gradient(x, norm.weight, norm.bias)
    hosts = [k.sink for k in joined(*found) if k.sink is not None]
    assert hosts
    for target in ("avx2", "avx512"):
        for sink in hosts:
            made = compile_kernel(sink, TARGETS[target]())
            assert any(opt.op is OptOps.VECTOR for opt in made.opts), made.plan
