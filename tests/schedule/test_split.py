"""Split reductions: their accuracy, and merging of sums of sums."""
import numpy as np
import pytest

from tests.schedule.helpers import count, kernels
from tinsmith import Tensor, Variable

rng = np.random.default_rng(5)
THIRDS = np.full((1500, 1500), 1 / 3, np.float32)  # every addition rounds the same way, so that errors add up


@pytest.mark.parametrize("take", [
    lambda x: x.sum(), lambda x: x.sum(1).sum(), lambda x: x.sum(0).sum(), lambda x: x.sum(0, keepdim=True).sum((0, 1)),
    lambda x: x.reshape(30, 50, 1500).sum(2).sum(0).sum(), lambda x: x.mean() * x.numel()])
def test_rounding_errors_of_long_sums_do_not_add_up(take):
    assert take(Tensor(THIRDS)).item() == pytest.approx(THIRDS.sum(dtype=np.float64), rel=1e-5)


UNEVEN = [((1000003,), None), ((3, 200003), 1), ((1009, 1013), None), ((7, 11, 4099), (0, 2)), ((49999, 2), 0),
          ((2, 3, 33347), None), ((131071, 3), 1), ((181, 191, 3), (0, 1))]


@pytest.mark.parametrize(("shape", "axis"), UNEVEN, ids=str)
def test_sizes_that_chunks_do_not_divide(shape, axis):
    thirds = np.full(shape, 1 / 3, np.float32)
    x = Tensor(thirds).realize()
    np.testing.assert_allclose(x.sum(axis).numpy(), thirds.sum(axis, np.float64), rtol=1e-5)
    np.testing.assert_allclose(x.square().sum(axis).numpy(), np.square(thirds, dtype=np.float64).sum(axis), rtol=1e-5)
    a = rng.standard_normal(shape).astype(np.float32)
    assert (Tensor(a).max(axis).numpy() == a.max(axis)).all()
    np.testing.assert_allclose(Tensor(a).std(axis).numpy(), a.std(axis, ddof=1), rtol=1e-4)


@pytest.mark.parametrize(("shape", "axis"), [((40009,), None), ((2, 36007), 1), ((199, 193), None)], ids=str)
def test_sizes_that_chunks_do_not_divide_on_multiprocessors(shape, axis):
    a = rng.standard_normal(shape).astype(np.float32)
    x = Tensor(a, device="PYTHON:G256:C8")
    np.testing.assert_allclose(x.sum(axis).numpy(), a.sum(axis, np.float64), rtol=1e-4, atol=1e-3)
    assert (x.max(axis).numpy() == a.max(axis)).all()


@pytest.mark.parametrize("device", ["CPU", "PYTHON:G256", "PYTHON:G256:C8"])
def test_sizes_that_are_variables(device):
    a = rng.standard_normal(50_000).astype(np.float32)
    x = Tensor(a, device=device).realize()
    for size in (0, 1, 5, 4096, 40961, 49999):
        part = x[: Variable("n", 0, 1 << 17).bind(size)]
        np.testing.assert_allclose(part.sum().item(), a[:size].sum(dtype=np.float64), rtol=1e-4, atol=1e-2)
        np.testing.assert_allclose(part.square().sum().item(), np.square(a[:size], dtype=np.float64).sum(), rtol=1e-4)
        if size:
            assert (part.max().item(), part.argmin().item()) == (a[:size].max(), a[:size].argmin())


def test_sum_of_sums_is_cut_like_one_sum():
    x = Tensor(rng.standard_normal((256, 1000)).astype(np.float32)).realize()
    assert count(x.sum(1).sum()) == 2
    assert all("sum" in [o[0] for o in k.origin] for k in kernels(x.sum())), "parts know their line"
    w = Tensor(rng.standard_normal((1000, 300)).astype(np.float32)).realize()
    np.testing.assert_allclose((x @ w).sum(1).sum().numpy(), (x.numpy() @ w.numpy()).sum(), rtol=1e-3)


@pytest.mark.parametrize(("outer", "inner"),
                         [("max", "max"), ("sum", "max"), ("max", "sum"), ("sum", "sum"), ("min", "min")])
@pytest.mark.parametrize("keepdim", [False, True])
def test_reductions_of_reductions(outer, inner, keepdim):
    a = rng.standard_normal((3, 140, 1, 210)).astype(np.float32)
    for first in (0, 1, 2, 3, (1, 3), (0, 2)):
        small = getattr(np, inner)(a, axis=first, keepdims=keepdim)
        x = getattr(Tensor(a), inner)(first, keepdim=keepdim)
        for second in range(small.ndim):
            expected = getattr(np, outer)(small, axis=second)
            np.testing.assert_allclose(getattr(x, outer)(second).numpy(), expected, rtol=1e-4, atol=1e-4)


def test_inner_sum_with_two_readers_is_kept():
    a = rng.standard_normal((400, 500)).astype(np.float32)
    rows = Tensor(a).sum(1)
    total, most = rows.sum(), rows.max()
    Tensor.realize(total, most)
    np.testing.assert_allclose([total.item(), most.item()], [a.sum(), a.sum(1).max()], rtol=1e-3, atol=1e-2)


def test_gradient_of_a_sum_of_sums():
    a = rng.standard_normal((300, 200)).astype(np.float32)
    x = Tensor(a)
    x.square().sum(1).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), 2 * a, rtol=1e-6)


def test_chunks_of_a_contraction_are_long_enough_to_pay_for_their_sums():
    a, b = (Tensor(rng.standard_normal(s).astype(np.float32)).realize() for s in ((33, 4096), (4096, 40)))
    partial, total = (tuple(n for n in k.sink.src[0].shape if n != 1) for k in kernels(a @ b))
    assert (partial, total) == ((2, 33, 40), (33, 40))
    np.testing.assert_allclose((a @ b).numpy(), a.numpy() @ b.numpy(), rtol=1e-3, atol=1e-3)
    assert count(a[:, :2048].contiguous() @ b[:2048].contiguous()) == 3, "two copies and one product"


def test_weight_gradients_of_few_images_are_cut_along_the_images():
    x = Tensor(rng.standard_normal((8, 3, 30, 30)).astype(np.float32)).realize()
    w = Tensor(rng.standard_normal((5, 3, 3, 3)).astype(np.float32), requires_grad=True).realize()
    grad = x.conv2d(w).sum().gradient(w)[0]
    assert count(x.conv2d(w).square().sum().gradient(w)[0]) > 1
    expected = np.lib.stride_tricks.sliding_window_view(x.numpy(), (28, 28), (2, 3)).sum((0, 4, 5))
    np.testing.assert_allclose(grad.numpy(), np.broadcast_to(expected, (5, 3, 3, 3)), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("shape", "axis"), [((65537,), 0), ((2, 33000), 1), ((6000, 3), 0), ((40, 3, 5), 0)])
@pytest.mark.parametrize("take", [("cumsum", np.cumsum), ("cummax", np.maximum.accumulate)])
def test_scans_are_cut_for_multiprocessors(shape, axis, take):
    a = rng.standard_normal(shape).astype(np.float32)
    out = getattr(Tensor(a, device="PYTHON:G256:C8"), take[0])(axis)
    values = out[0] if isinstance(out, tuple) else out
    np.testing.assert_allclose(values.numpy(), take[1](a, axis=axis), rtol=1e-4, atol=1e-2)


def test_gradient_of_a_scan_that_is_cut():
    a, g = (rng.standard_normal(40000).astype(np.float32) for _ in range(2))
    x = Tensor(a, device="PYTHON:G256:C8")
    (x.cumsum() * Tensor(g, device="PYTHON:G256:C8")).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), np.cumsum(g[::-1].astype(np.float64))[::-1], rtol=1e-4, atol=1e-2)
