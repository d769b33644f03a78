"""Attention and its gradients, with scores computed tile by tile and never stored, against NumPy."""
from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.codegen.running import expected, run_graph, run_on
from tests.schedule.helpers import kernels, reductions, schedule
from tinsmith.backend.device import Device
from tinsmith.codegen.compile_kernel import begin, choose, compile_kernel
from tinsmith.codegen.kernel import Kernel
from tinsmith.codegen.launch import KernelProgram
from tinsmith.codegen.opt import Opt, OptOps
from tinsmith.codegen.transform.back_to_back_gemm import greatest
from tinsmith.core.dtypes import dtypes
from tinsmith.core.errors import ArgumentError
from tinsmith.core.settings import Context
from tinsmith.ir import Ops, UOp
from tinsmith.ir.structure import contraction, limits
from tinsmith.ir.uop import toposort
from tinsmith.schedule.schedule_item import ScheduleItem
from tinsmith.target.target import Target
from tinsmith.tensor.nnops.attention import recomputed
from tinsmith.tensor.tensor import Tensor

Array = np.ndarray[Any, Any]
MASKS = ("none", "causal", "bool", "bias")


def inputs(b: int, rows: int, keys: int, e: int, d: int) -> list[Array]:
    random = np.random.default_rng(rows * 1000 + keys)
    return [random.standard_normal(s).astype(np.float32) for s in ((b, rows, e), (b, keys, e), (b, keys, d),
                                                                   (b, rows, d))]


def mask_of(kind: str, rows: int, keys: int) -> Array | None:
    random = np.random.default_rng(3)
    if kind == "bool":
        some = random.random((rows, keys)) > 0.3
        some[:, 0] = True
        return some
    if kind == "bias":
        return random.standard_normal((rows, keys)).astype(np.float32)
    return np.tril(np.ones((rows, keys), bool)) if kind == "causal" else None


def attention(q: Array, k: Array, v: Array, g: Array, mask: Array | None) -> tuple[Array, ...]:
    """Return the result and the gradients of sum(result * g), in float64."""
    q, k, v, g = (x.astype(np.float64) for x in (q, k, v, g))
    factor = 1 / np.sqrt(q.shape[-1])
    s = q @ k.swapaxes(-1, -2) * factor
    if mask is not None:
        s = np.where(mask, s, -np.inf) if mask.dtype == bool else s + mask
    p = np.exp(s - s.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    dp = g @ v.swapaxes(-1, -2)
    ds = p * (dp - (p * dp).sum(-1, keepdims=True)) * factor
    return p @ v, ds @ k, ds.swapaxes(-1, -2) @ q, p.swapaxes(-1, -2) @ g


def recorded(arrays: list[Array], kind: str, mask: Array | None) -> list[Tensor]:
    q, k, v, g = (Tensor(a).realize() for a in arrays)
    for t in (q, k, v):
        t.requires_grad = True
    given = None if mask is None or kind == "causal" else Tensor(mask).realize()
    out = q.scaled_dot_product_attention(k, v, given, is_causal=kind == "causal")
    (out * g).sum().backward()
    return [out, *(t.grad for t in (q, k, v) if t.grad is not None)]


@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("sizes", [(2, 33, 61, 8, 24), (1, 65, 63, 16, 17), (3, 16, 128, 32, 5), (8, 40, 192, 8, 24),
                                   (9, 128, 16, 5, 7), (8, 192, 128, 16, 16), (1, 65, 320, 16, 17),
                                   (2, 33, 512, 8, 40)])
def test_attention_and_its_gradients(sizes: tuple[int, int, int, int, int], kind: str) -> None:
    arrays, mask = inputs(*sizes), mask_of(kind, sizes[1], sizes[2])
    found = recorded(arrays, kind, mask)
    Tensor.realize(*found)
    for t, right in zip(found, attention(*arrays, mask)):
        np.testing.assert_allclose(t.numpy(), right, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("sizes", [(2, 1, 300, 16, 16), (2, 300, 1, 16, 16), (1, 7, 5, 3, 2), (1, 40, 300, 16, 1)])
def test_sizes_that_are_no_stream(sizes: tuple[int, int, int, int, int]) -> None:
    arrays = inputs(*sizes)
    found = recorded(arrays, "none", None)
    Tensor.realize(*found)
    for t, right in zip(found, attention(*arrays, None)):
        np.testing.assert_allclose(t.numpy(), right, rtol=2e-5, atol=2e-5)


def test_rows_without_a_key_are_zero_and_nan_stays_in_its_row() -> None:
    q, k, v, _ = inputs(1, 32, 64, 16, 16)
    mask = np.ones((32, 64), bool)
    mask[3] = False
    q[0, 7, 0] = np.nan
    out = Tensor(q).scaled_dot_product_attention(Tensor(k), Tensor(v), Tensor(mask)).numpy()
    assert (out[0, 3] == 0).all() and np.isnan(out[0, 7]).all()
    assert np.isfinite(np.delete(out[0], [3, 7], 0)).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_other_float_types(dtype: str) -> None:
    arrays = inputs(1, 40, 70, 16, 16)
    q, k, v = (Tensor(a).cast(dtype).realize() for a in arrays[:3])
    wide = [t.float().numpy() for t in (q, k, v)]
    out = q.scaled_dot_product_attention(k, v)
    right = attention(*wide, arrays[3], None)[0]
    np.testing.assert_allclose(out.float().numpy(), right, atol={"float16": 4e-3, "bfloat16": 3e-2}.get(dtype, 1e-6))


def test_attention_is_one_kernel_without_scores() -> None:
    q, k, v, _ = (Tensor(a).realize() for a in inputs(2, 256, 256, 32, 32))
    (item,) = kernels(q.scaled_dot_product_attention(k, v))
    assert item.sink is not None
    assert sum(n.op is Ops.REDUCE for n in toposort(item.sink)) == 4


def test_gradients_store_statistics_but_no_scores() -> None:
    found = recorded(inputs(2, 256, 256, 32, 32), "none", None)
    plan = schedule(*found)
    assert max(s.size for s in plan.slots) == 2 * 256 * 32
    assert sum(bool(i.tiles) for i in plan.items) == 3  # forward, queries, keys with values
    with Context(NOOPT=1):
        assert max(s.size for s in schedule(*found).slots) == 2 * 256 * 256


def gradients_of_attention(kind: str = "none") -> ScheduleItem:
    """Return the kernel of all three gradients of eight heads."""
    found = recorded(inputs(8, 32, 48, 8, 16), kind, mask_of(kind, 32, 48))
    (item,) = (i for i in schedule(*found).items if len(i.tiles) > 1)
    return item


def test_gradients_are_one_kernel_of_five_contractions() -> None:
    item = gradients_of_attention()
    assert item.sink is not None and item.outputs == 3
    kernel = begin(item.sink, Device["CPU"].renderer.target)
    choose(kernel, Device["CPU"].renderer.target)
    assert sum(o.op is OptOps.CARRY for o in kernel.opts) == 2
    assert sum(contraction(f) is not None for f in kernel.folds) == 5
    stages = [n for n in kernel.nodes if n.op is Ops.STAGE]
    assert stages and max(math.prod(s.arg) for s in stages) <= 64 * 64


def test_gradients_from_saved_logarithms_are_one_kernel() -> None:
    """What ``torch.compile`` computes: the scale of the scores does not keep the sums from being accumulated."""
    q, k, v, g = (Tensor(a).realize() for a in inputs(8, 32, 48, 8, 16))
    scores = q @ k.transpose(-2, -1) * 0.3
    out, lse = (scores.softmax(-1) @ v).realize(), scores.logsumexp(-1, keepdim=True).realize()
    found = recomputed(g, out, q, k, v, q @ k.transpose(-2, -1) * 0.3, lse, 0.3)
    (item,) = (i for i in schedule(*found[:3]).items if i.tiles)
    assert item.outputs == 3
    for x, y in zip(found[:3], (scores.softmax(-1) @ v).gradient(q, k, v, gradient=g)):
        np.testing.assert_allclose(x.numpy(), y.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("sizes", [(197, 197), (330, 250)], ids=str)
def test_columns_are_packed_once_for_all_rows(sizes: tuple[int, int]) -> None:
    """Also where positions lie before heads in memory: a panel is in no loop that does not change it."""
    q, k, v, g = (Tensor(a.reshape(2, 3, *a.shape[1:])).transpose(1, 2).contiguous().realize().transpose(1, 2)
                  for a in inputs(6, *sizes, 32, 32))
    found = q.scaled_dot_product_attention(k, v).gradient(q, k, v, gradient=g)
    items = [i for i in schedule(*(x.transpose(1, 2).contiguous() for x in found)).items if i.tiles]
    assert len(items) == 3  # statistics, queries, keys with values: neither side divides into blocks
    for item in items:
        assert item.sink is not None
        kernel = begin(item.sink, Device["CPU"].renderer.target)
        choose(kernel, Device["CPU"].renderer.target)
        panels = [n for n in kernel.nodes if n.op is Ops.STAGE and all(x.op is not Ops.FOLD for x in toposort(n))]
        assert panels
        for panel in panels:
            places = [kernel.order.index(r) for r in panel.ranges]
            assert sorted(places) == list(range(len(places)))


@pytest.mark.parametrize("kind", ["none", "causal"])
@pytest.mark.parametrize("device", ["PYTHON", "PYTHON:V32", "CPU"])
def test_sums_carried_in_memory_are_the_same_by_every_interpreter(device: str, kind: str) -> None:
    item = gradients_of_attention(kind)
    assert item.sink is not None
    random = np.random.default_rng(5)
    given = {p: random.standard_normal(p.shape, np.float32) for p in toposort(item.sink) if p.op is Ops.PARAM}
    right = expected(item.sink, given)
    target = Device[device].renderer.target
    kernel = begin(item.sink, target)
    choose(kernel, target)
    blocks_and_tiles = kernel.opts[:4]  # the interpreter of graphs has an axis per range, of which there are 32
    for found in (run_graph(item.sink, given, blocks_and_tiles, device), run_on(device, item.sink, given, kernel.opts)):
        for x, y in zip(found, right):
            np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4 * np.abs(y).max())


def long_rows(kind: str, device: str = "CPU") -> tuple[UOp, Kernel, Target]:
    """Return the kernel of attention for a target whose L2 cache is too small for full rows."""
    q, k, v, _ = (Tensor(a).realize() for a in inputs(2, 10, 256, 8, 24))
    mask = mask_of(kind, 10, 256)
    given = None if mask is None or kind == "causal" else Tensor(mask).realize()
    (item,) = kernels(q.scaled_dot_product_attention(k, v, given, is_causal=kind == "causal"))
    assert item.sink is not None
    target = replace(Device[device].renderer.target, l2_bytes=1 << 12)
    kernel = begin(item.sink, target)
    choose(kernel, target)
    return item.sink, kernel, target


@pytest.mark.parametrize("kind", ["none", "causal"])
def test_rows_that_go_block_by_block_are_shared_by_threads(kind: str) -> None:
    """Each thread iterates over the blocks of its own rows; the outer block loop is not split over threads."""
    sink, _, target = long_rows(kind)
    kernel = begin(sink, replace(target, threads=2))
    choose(kernel, replace(target, threads=2))
    assert [o.op for o in kernel.opts if o.op in (OptOps.ONLINE, OptOps.THREAD)] == [OptOps.ONLINE, OptOps.THREAD]


@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("device", ["PYTHON", "PYTHON:V32", "CPU"])
def test_long_rows_go_block_by_block(device: str, kind: str) -> None:
    sink, kernel, _ = long_rows(kind, device)
    assert kernel.opts[0].op is OptOps.ONLINE
    stages = [n for n in kernel.nodes if n.op is Ops.STAGE and any(f.op is Ops.FOLD for f in toposort(n.src[0]))]
    assert stages and max(math.prod(s.arg) for s in stages) <= 64 * 8
    random = np.random.default_rng(5)
    given = {p: random.standard_normal(p.shape).astype(p.dtype.numpy) for p in toposort(sink) if p.op is Ops.PARAM}
    if kind == "bool":
        (mask,) = (p for p in given if p.dtype.is_bool)
        seen = random.random(mask.shape) > 0.5
        rows = seen.reshape(-1, 256)
        rows[1], rows[2, :128], rows[3, 64:] = False, False, False  # nothing, nothing in front, nothing behind
        given[mask] = seen
    if kind == "bias":
        next(v for p, v in given.items() if p.size == 10 * 256).reshape(10, 256)[4, 70] = np.nan
        next(v for p, v in given.items() if p.size == 10 * 256).reshape(10, 256)[5, 200] = np.inf
    right = expected(sink, given)
    assert np.isnan(right[0]).any() == (kind == "bias")
    assert (right[0].reshape(2, 10, 24)[:, 1] == 0).all() == (kind == "bool")
    for found in (run_graph(sink, given, kernel.opts[:2], device), run_on(device, sink, given, kernel.opts)):
        np.testing.assert_allclose(found[0], right[0], rtol=2e-5, atol=2e-5)


def test_a_mask_ends_loops_over_blocks() -> None:
    assert Opt(OptOps.SKIP) in long_rows("causal")[1].opts
    assert any(limits(r) for r in long_rows("causal")[1].order)
    assert not any(limits(r) for r in long_rows("bool")[1].order)


@pytest.mark.parametrize("block", [3, 5, 15])
def test_exponentials_of_long_rows_are_summed_in_blocks(block: int) -> None:
    x = np.random.default_rng(1).standard_normal((4, 45)).astype(np.float32) * 40
    x[1], x[2, :9], x[3, 7] = -np.inf, -np.inf, np.nan
    t = Tensor(x).realize()
    (item,) = kernels((t - t.max(-1, keepdim=True)).exp().sum(-1))
    assert item.sink is not None
    (param,) = (p for p in toposort(item.sink) if p.op is Ops.PARAM)
    kernel = begin(item.sink, Device["CPU"].renderer.target)
    top = greatest(kernel.sink)
    assert top is not None
    opts = [Opt(OptOps.ONLINE, kernel.ranges.index(top.src[1]), block)]
    right = expected(item.sink, {param: x})
    for found in (run_graph(item.sink, {param: x}, opts), *(run_on(d, item.sink, {param: x}, opts) for d in (
            "PYTHON", "CPU"))):
        np.testing.assert_allclose(found[0], right[0], rtol=1e-5)


@pytest.mark.parametrize(("axis", "amount"), [(0, 64), (99, 64), (None, 64), (3, 7), (3, 256), (3, None)])
def test_what_is_not_relative_is_refused(axis: int | None, amount: int | None) -> None:
    sink, _, target = long_rows("none")
    kernel = begin(sink, target)
    before = kernel.sink
    with pytest.raises(ArgumentError):
        kernel.apply(Opt(OptOps.ONLINE, axis, amount))
    assert kernel.sink is before


def test_blocks_that_a_mask_hides_are_passed_by() -> None:
    def program(kind: str) -> KernelProgram:
        found = recorded(inputs(8, 128, 192, 8, 16), kind, mask_of(kind, 128, 192))
        (item,) = (i for i in schedule(*found).items if len(i.tiles) > 1)
        assert item.sink is not None
        return compile_kernel(item.sink, Device["CPU"].renderer)

    assert Opt(OptOps.SKIP) in program("causal").opts
    assert sum(u.op is Ops.IF for u in program("causal").uops) == 1  # around all that a block adds
    assert Opt(OptOps.SKIP) not in program("none").opts
    with pytest.raises(ArgumentError):
        begin(gradients_of_attention().sink or UOp(Ops.SINK, None, ()), Device["CPU"].renderer.target).apply(
            Opt(OptOps.SKIP))


@pytest.mark.parametrize(("axis", "amount"), [(0, (16, 1)), (3, (16,)), (3, (7, 1)), (None, None), (3, (16, 99)),
                                              (3, (16, 0))])
def test_what_cannot_be_carried_is_refused(axis: int | None, amount: tuple[int, ...] | None) -> None:
    item = gradients_of_attention()
    assert item.sink is not None
    kernel = begin(item.sink, Device["CPU"].renderer.target)
    before = kernel.sink
    with pytest.raises(ArgumentError):
        kernel.apply(Opt(OptOps.CARRY, axis, amount))
    assert kernel.sink is before


def test_softmax_of_stored_scores_times_values_is_stored() -> None:
    """Its product has packed panels, which takes less time than to compute rows next to it."""
    random = np.random.default_rng(0)
    x, v = (random.standard_normal(s).astype(np.float32) for s in ((64, 300), (300, 48)))
    out = Tensor(x).realize().softmax() @ Tensor(v).realize()
    assert [reductions(item) for item in kernels(out)] == [2, 1]
    e = np.exp(x - x.max(-1, keepdims=True))
    np.testing.assert_allclose(out.numpy(), e / e.sum(-1, keepdims=True) @ v, rtol=1e-5, atol=1e-5)


def test_log_sum_exp_of_scores_stores_no_scores() -> None:
    q, k, _, _ = inputs(2, 64, 128, 16, 16)
    out = (Tensor(q).realize() @ Tensor(k).realize().transpose(-2, -1)).logsumexp(-1)
    assert max(s.size for s in schedule(out).slots) == k.size
    s = q.astype(np.float64) @ k.swapaxes(-1, -2)
    np.testing.assert_allclose(out.numpy(), np.log(np.exp(s - s.max(-1, keepdims=True)).sum(-1)) + s.max(-1), rtol=1e-5)


@pytest.mark.parametrize("n", [5, 8, 9])
def test_a_contraction_that_is_repeated_before_it_is_summed(n: int) -> None:
    """A contraction repeated along an axis and then summed over it; for a sum over one element there is no range."""
    x = np.random.default_rng(0).random((n, 4), np.float32)
    rows = Tensor(x)
    wide = (rows @ rows.T).unsqueeze(2).expand(-1, -1, 2)
    found = (wide + wide[:, :, :1].cat(wide[:, :, :1], dim=2) * 2).var(2, correction=0)
    np.testing.assert_allclose(found.numpy(), np.zeros((n, n)), atol=1e-6)


def test_lanes_avoid_what_is_staged_once_for_all_of_them() -> None:
    """The gradient of an image through two depthwise convolutions, one of them residual."""
    random = np.random.default_rng(5)
    x, wide, deep, last = (Tensor(random.standard_normal(s).astype(np.float32)).realize() for s in (
        (2, 3, 6, 6), (5, 3, 3, 3), (5, 1, 3, 3), (5, 3)))

    def gradient() -> Array:
        h = x.conv2d(wide, padding=1).relu()
        h = (h + h.conv2d(deep, padding=1, groups=5)).relu()
        return (h.mean((2, 3)) @ last).square().mean().gradient(x)[0].numpy()

    found = gradient()
    with Context(NOOPT=1):
        np.testing.assert_allclose(found, gradient(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("statistic", "turned"), [(True, False), (False, False), (False, True)])
def test_a_computed_factor_is_made_once_for_all_columns(statistic: bool, turned: bool) -> None:
    """``softmax(x) @ w`` and similar, with x in memory: exponentials are vectors, computed once for all columns."""
    rows, keys, width = 16, 64, 96
    shape = (keys, rows) if turned else (rows, keys)
    x, w = (UOp(Ops.PARAM, dtypes.float32, (), (n, s)) for n, s in ((1, shape), (2, (keys, width))))
    x = x.permute((1, 0)) if turned else x
    top = x.reduce("MAX", (1,)).expand((rows, keys)) if statistic else x.const_like(1)
    factor = (x - top).alu("EXP").reshape((rows, 1, keys)).expand((rows, width, keys))
    other = w.permute((1, 0)).reshape((1, width, keys)).expand((rows, width, keys))
    root = UOp(Ops.SINK, None, ((factor * other).reduce("ADD", (2,)),))
    program = compile_kernel(root, Device["PYTHON:T1:V64"].renderer)
    assert OptOps.STAGE in {o.op for o in program.opts}
    scalars = [u for u in program.uops if u.op is Ops.MULADD and u.dtype.count == 1]
    assert turned or not scalars
    random = np.random.default_rng(0)
    arrays = {p: random.standard_normal(p.arg[1]).astype(np.float32) for p in toposort(root) if p.op is Ops.PARAM}
    for device in ("PYTHON:T1:V64", "CPU"):
        found, want = run_on(device, root, arrays, None)[0], expected(root, arrays)[0]
        np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-4)
