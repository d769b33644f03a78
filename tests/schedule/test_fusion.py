"""Fusion decisions: which values share a kernel, which are stored, and the reported reasons."""
from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.schedule.helpers import count, given, kernels, reductions, work
from tinsmith.core.settings import Context
from tinsmith.ir import Ops
from tinsmith.ir.structure import contraction
from tinsmith.ir.uop import toposort
from tinsmith.schedule.fusion.rules import MOST_WORK
from tinsmith.target.schedule_costs import Costs
from tinsmith.tensor.tensor import Tensor

ONE: dict[str, Callable[[], Tensor]] = {
    "elementwise chain": lambda: (given(16, 32) + 1).exp() * given(16, 32).sin(),
    "broadcast": lambda: given(16, 1) + given(1, 32) * given(32),
    "pad, slice, transpose": lambda: given(16, 32).pad(((1, 1), (0, 0)))[1:5].T + 1,
    "matmul": lambda: (given(64, 48) @ given(48, 40) + given(40)).relu(),
    "batched matmul": lambda: given(4, 16, 8) @ given(4, 8, 12),
    "convolution": lambda: given(8, 3, 16, 16).conv2d(given(6, 3, 3, 3), given(6)).relu(),
    "embedding": lambda: given(100, 32)[Tensor(np.arange(7, dtype=np.int32)).realize()] * 2,
    "pooling": lambda: given(2, 3, 8, 8).max_pool2d(),
}
ROWS: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": lambda x: x.softmax(),
    "log_softmax": lambda x: x.log_softmax(),
    "layernorm": lambda x: x.layernorm(),
    "var": lambda x: x.var(axis=-1),
}


@pytest.mark.parametrize("name", ONE)
@pytest.mark.parametrize("noopt", [0, 1])
def test_one_kernel(name: str, noopt: int) -> None:
    with Context(NOOPT=noopt):
        assert count(ONE[name]()) == 1


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("size", [(16, 32), (512, 512)])
def test_reductions_over_rows(name: str, size: tuple[int, int]) -> None:
    y = ROWS[name](given(*size))
    assert count(y) == 1
    with Context(NOOPT=1):
        assert count(y) > 1


def test_small_variance_of_everything() -> None:
    whole, real = Tensor([1, 2, 3, 4]).realize().var(), Tensor([1.0, 2.0, 3.0, 4.0]).realize().var()
    assert count(whole) == count(real) == 1
    with Context(NOOPT=1):
        assert count(whole) == 2
        assert count(real) == 4  # deviations are stored: their own mean and the sum of their squares read them


def test_matmul_chain() -> None:
    found = kernels((given(64, 48) @ given(48, 40)).relu() @ given(40, 24))
    assert [reductions(k) for k in found] == [1, 1]


@pytest.mark.parametrize("noopt", [0, 1])
def test_shared_reduction_is_staged_once(noopt: int) -> None:
    with Context(NOOPT=noopt):
        s = given(16, 32).sum(axis=1)
        found = kernels(s.exp(), s.reshape(1, 16).expand(20, 16).max(axis=0))
        assert sum(reductions(k) for k in found) == 2
        assert noopt or any("read this reduction's result" in k.reason for k in found)


def test_random_mask_is_not_recomputed_in_a_matmul() -> None:
    found = kernels((given(64, 48) * (Tensor.rand(64, 48) > 0.5)) @ given(48, 40))
    assert len(found) == 2
    assert "a reduction reads it repeatedly" in found[0].reason


def test_every_reduction_is_computed_once() -> None:
    x, w = given(32, 48), given(48, 48)
    h = (x @ w).relu()
    y = (h.softmax() @ w).layernorm() + h.sum()
    assert sum(reductions(k) for k in kernels(y, h)) == len({n for k in [y, h] for n in k.uop.toposort()
                                                            if n.op.name == "REDUCE"})


def test_many_places_of_one_kernel() -> None:
    """Without a limit on fusion, sums of shifted sums would be computed 2^n times."""
    x = given(4096)
    for n in range(12):
        x = x + x.pad(((1 << n, 0),))[: 4096] * 0.5
    assert 2 <= count(x) <= 12


def test_deep_graphs_are_cut_into_kernels_of_bounded_size() -> None:
    x, y = given(4), given(4)
    z = x
    for n in range(20_000):
        z = z + y if n % 2 else z * y
    items = kernels(z)
    assert len(items) == 20_000 // MOST_WORK
    assert all(len(toposort(i.sink)) < MOST_WORK + Costs().recompute for i in items), "the rest of a chain is cheap"
    assert all("already holds more than" in i.reason for i in items[:-1])


def test_what_is_cheap_to_compute_from_statistics_is_not_stored_beside_them():
    x, w = given(64, 8, 12, 12), given(8, 1, 1, seed=1)
    mean = x.mean((0, 2, 3), keepdim=True)
    apart = x - mean
    rstd = (apart.square().mean((0, 2, 3), keepdim=True) + 1e-5).rsqrt()
    y = (apart * rstd * w).relu()
    inner = [i for i in kernels(y, y.sum((1, 2, 3))) if i.reason not in ("output", "contiguous")]
    assert all(i.sink.src[0].size <= 8 for i in inner)
    top = x.max_pool2d()
    mask = (x.reshape(64, 8, 6, 2, 6, 2) == top.reshape(64, 8, 6, 1, 6, 1)).float()
    shapes = [i.sink.src[0].size for i in kernels(mask.sum((3, 5)), mask * 2)]
    assert shapes.count(x.numel()) == 1, "only the output has the input's size"


def test_results_of_contractions_are_stored_with_their_epilogue():
    x, w = given(64, 96), given(96, 128, seed=1)
    y = (x @ w).relu()
    found = kernels(y.sum(1), y.max(0))
    assert [i.sink.src[0].size for i in found].count(64 * 128) == 1
    assert any(i.sink.src[0].op is not Ops.REDUCE for i in found if i.sink.src[0].size == 64 * 128)


def test_contractions_read_normalized_rows_from_memory():
    words, places, w = given(64, 96), given(1, 16, 96, seed=1), given(96, 128, seed=2)
    scale, shift = given(96, seed=3), given(96, seed=4)
    for t in (words, places, w, scale, shift):
        t.requires_grad = True
    x = words[Tensor(np.arange(64, dtype=np.int32).reshape(4, 16) % 50).realize()] + places
    y = ((x.layernorm() * scale + shift) @ w).relu()
    found = kernels(y, *(y * 2).sum().gradient(words, places, w, scale, shift))
    products = [i for i in found if any(contraction(n) for n in toposort(i.sink) if n.op is Ops.REDUCE)]
    assert len(products) >= 3 and all(len(i.read) <= 4 for i in products)


def test_rows_below_a_reduction_of_few_results_have_a_kernel_of_their_own():
    """A loss reduces one number per row: the rows are computed in parallel, maximum and sum of exponentials in one
    kernel."""
    logits, labels = given(512, 300), Tensor(np.arange(512, dtype=np.int32) % 300).realize()
    rows, total = kernels(logits.sparse_categorical_crossentropy(labels))
    assert "too few results" in rows.reason and rows.sink is not None and rows.sink.src[0].shape == (512,)
    assert reductions(rows) == 3
    assert total.reason == "output"
    small = given(16, 300).sparse_categorical_crossentropy(labels[:16].realize())
    assert not any("too few results" in k.reason for k in kernels(small))
    with Context(NOOPT=1):
        assert count(logits.sparse_categorical_crossentropy(labels)) >= 4


def test_a_convolution_is_computed_once_for_all_windows_of_the_next_one() -> None:
    x, wide, deep = given(1, 8, 24, 24), given(32, 8, 1, 1), given(32, 1, 3, 3)
    found = kernels(x.conv2d(wide).silu().conv2d(deep, groups=32, padding=1))
    assert len(found) == 2 and [reductions(k) for k in found] == [1, 1]


def test_a_convolution_is_not_computed_inside_the_pooling_that_reads_it() -> None:
    """Nested in another reduction a convolution cannot be tiled: that took twelve times as long."""
    x, w = given(8, 16, 24, 24), given(32, 16, 5, 5)
    for pool in (Tensor.max_pool2d, Tensor.avg_pool2d, lambda t: t.mean((2, 3))):
        found = kernels(pool(x.conv2d(w).relu()))
        assert [reductions(k) for k in found] == [1, 1] and "tiled" in found[0].reason
    assert count(given(1, 2, 8, 8).conv2d(given(3, 2, 3, 3)).max_pool2d()) == 1, "a small one costs less than a kernel"


def test_a_long_product_is_not_computed_inside_the_sum_that_reads_it() -> None:
    """A loss of predictions and sums of their rows: fused into the reduction, they took 10 to 20 times as long."""
    x, w = given(256, 256), given(256, 256)
    for f in (lambda h: ((h - 1) ** 2).mean(), lambda h: h.relu().sum(0), lambda h: h.relu().mean(1)):
        found = kernels(f(x @ w))
        assert reductions(found[0]) == 1 and "tiled" in found[0].reason, [k.reason for k in found]
    assert count((given(256, 16) @ given(16, 256)).relu().sum(0)) == 1, "a short one is cheaper than its result"


def test_a_contraction_is_stored_rather_than_several_functions_of_it() -> None:
    """The gradient of gelu rematerializes the inner polynomial and tanh from the one value stored by the forward
    pass."""
    x, first, second = given(64, 48), given(48, 80), given(80, 40)
    first.requires_grad = second.requires_grad = True
    hidden = x @ first
    (hidden.gelu("tanh") @ second).sum().backward()
    found = kernels(first.grad, second.grad)
    stored = sum(k.outputs for k in found if not reductions(k))
    assert stored == 1, [k.reason for k in found]  # gelu's result, the second product's operand


def test_a_kernel_walks_over_the_tiles_of_one_contraction() -> None:
    """With keys = values the gradient of attention sums two contractions of computed operands: not in one kernel."""
    q, x = given(4, 32, 64), given(4, 512, 64)
    x.requires_grad = True
    ((q @ x.transpose(1, 2)).softmax() @ x).square().sum().backward()
    found = kernels(x.grad)
    assert all(len([n for n in toposort(k.sink) if n.op is Ops.REDUCE and contraction(n)]) < 2
               for k in found if not k.tiles), [k.reason for k in found]


def test_a_sum_is_not_computed_for_all_that_its_result_is_padded_to() -> None:
    """The gradient of a column that was compared with all others."""
    x = given(256, 100)
    x.requires_grad = True
    (x - x[:, :1] + 1).relu().sum(1).mean().backward()
    assert work(Tensor.schedule(x.grad)) < 32 * x.numel()


SCATTERED: dict[str, Callable[[Tensor], Tensor]] = {
    "joined": lambda x: x.cat(x + 1, dim=1),
    "rolled": lambda x: x.roll((1, 2), (2, 3)),
    "added to a border": lambda x: x + x[:, :, 1:-1].pad((0, 0, 1, 1)),
    "upsampled": lambda x: x.interpolate(scale_factor=2, mode="nearest"),
    "repeated": lambda x: x.repeat(1, 1, 2, 2),
    "shuffled": lambda x: x.reshape(2, 4, 2, 2, 12, 12).permute(0, 1, 4, 2, 5, 3).reshape(2, 4, 24, 24),
}


@pytest.mark.parametrize("name", SCATTERED)
def test_a_contraction_does_not_read_many_times_what_lies_scattered(name: str) -> None:
    """Guards and divisions in its innermost loop took up to four times as long as a copy plus the convolution."""
    x = given(2, 16, 12, 12)
    operand = SCATTERED[name](x)
    result = operand.conv2d(w := given(8, operand.shape[1], 3, 3), padding=1)
    assert [item.reason.partition(",")[0].partition(" and ")[0] for item in kernels(result)] == [
        "a matmul reads it repeatedly", "output"]
    assert np.allclose(result.numpy(), Tensor(operand.numpy()).conv2d(w, padding=1).numpy(), atol=1e-4)


def test_what_lies_scattered_but_is_read_once_has_no_memory() -> None:
    a, v = given(64, 64), given(128)
    assert count(a.cat(a + 1, dim=1) @ v) == 1
    assert count(a.reshape(8, 8, 64).permute(1, 0, 2).reshape(64, 64) @ given(64, 32)) == 1  # each loop cut in two
    q, k = given(2, 8, 16, 8), given(2, 2, 16, 8)
    assert count(q @ k.repeat_interleave(4, 1).transpose(2, 3)) == 1  # heads that share their keys


def test_the_gradient_of_a_slice_is_no_stream_inside_what_it_is_padded_to() -> None:
    """The producing product was recomputed for every column, padding included: hundreds of times as long."""
    a, b = given(256, 256), given(256, 256)
    grads = (a[:, :128] @ b[:128]).tanh().sum().gradient(a, b)
    found = kernels(*grads)
    assert [reductions(k) for k in found if "for padding" in k.reason] == [2, 2]
    assert all(not reductions(k) for k in found if k.reason == "output")
    slope = 1 - np.tanh(a.numpy()[:, :128] @ b.numpy()[:128]) ** 2
    assert np.allclose(grads[0].numpy(), np.pad(slope @ b.numpy()[:128].T, ((0, 0), (0, 128))), atol=1e-3)


def test_a_small_product_is_not_computed_inside_the_loops_of_a_large_map() -> None:
    """Squeeze-and-excitation: 512 gates applied to 400,000 elements, which a tile of the product would traverse across
    rows."""
    x, down, up = given(8, 64, 28, 28), given(64, 16), given(16, 64)
    found = kernels(x * ((x.mean((2, 3)) @ down).relu() @ up).sigmoid()[:, :, None, None])
    assert len(found) == 4 and reductions(found[-1]) == 0
    assert count(given(4, 8, 6) * (given(4, 16) @ given(16, 8)).sigmoid()[:, :, None]) == 1


def test_a_product_of_experts_is_computed_by_blocks() -> None:
    """The sum over experts keeps the rows and columns of each expert's product, so it is tiled."""
    x, gates, experts = given(256, 128), given(256, 8), given(8, 128, 128)
    found = kernels((gates[:, :, None] * (x[None] @ experts).permute(1, 0, 2)).sum(1))
    assert [reductions(k) for k in found] == [1, 1]


def test_what_many_kernels_read_is_not_computed_by_each() -> None:
    """Sinkhorn iterations: ten matrix-vector products share one stored matrix of exponentials."""
    kernel, u = (given(200, 200) * -0.1).exp(), given(200)
    for _ in range(5):
        u = 1 / (kernel @ (1 / (kernel.T @ u)))
    assert work(Tensor.schedule(u)) < 2 * (10 * 2 + 20) * 200 * 200  # ten would take 17 for each element, ten times


def test_the_gradient_of_windows_reads_each_of_their_elements_once() -> None:
    """A function of the elements of windows, 25 times as many as the image has, is not stored."""
    x, g, at = given(1, 2, 20, 20), given(1, 2, 20, 20, seed=1), given(1, 2, 20, 20, seed=2)
    x.requires_grad = True
    windows = x.pad((2, 2, 2, 2)).unfold(2, 5, 1).unfold(3, 5, 1)
    each = (at.reshape(1, 2, 20, 20, 1, 1) > Tensor.arange(25).reshape(5, 5)).where(g.reshape(1, 2, 20, 20, 1, 1), 0)
    (found,) = windows.gradient(x, gradient=each)
    assert count(found) == 1


def test_putting_values_into_a_whole_tensor_is_one_kernel() -> None:
    rows, values = given(30).cast("int32"), given(30, 8)
    assert count(Tensor.zeros(100, 8).index_put((rows,), values, accumulate=True)) == 1
    x = given(100, 8)
    found = x.index_put((rows, rows), values[:, 0], accumulate=True)
    assert count(found) == 1
    want = x.numpy().copy()
    np.add.at(want, (rows.numpy(), rows.numpy()), values.numpy()[:, 0])
    np.testing.assert_allclose(found.numpy(), want, rtol=1e-5)
