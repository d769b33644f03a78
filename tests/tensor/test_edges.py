"""Gradients at edge cases: zero gradients, empty values, ties, zero rows, ends of domains."""
from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from tests.tensor.helpers import check_gradient
from tinsmith import Tensor, dtypes

NONE = np.zeros((0, 2), np.int32)
X, EMPTY = np.array([[1.0, 2.0], [3.0, 4.0]]), np.zeros((0, 3))

EMPTIES: dict[str, tuple[Callable[..., Tensor], tuple[np.ndarray, ...]]] = {
    "slice": (lambda x: x[:0], (X,)), "slice by steps": (lambda x: x[1:1:2], (X,)),
    "backwards": (lambda x: x[0:0:-1], (X,)), "sum": (lambda x: x[:0].sum(0), (X,)),
    "mean": (lambda x: x[:0].mean(0), (X,)), "std": (lambda x: x[:0].std(0), (X,)),
    "prod": (lambda x: x[:0].prod(0), (X,)), "leaf": (lambda x: x * 2, (EMPTY,)),
    "sum of a leaf": (lambda x: x.sum(0), (EMPTY,)), "pad": (lambda x: x.pad(((-2, 3), (0, 0))), (X,)),
    "pad of a value": (lambda x: x.pad(((-2, 3), (0, 0)), value=2), (X,)),
    "all cut off": (lambda x: x.pad(((-2, 0), (0, 0))), (X,)), "tril": (lambda x: x.tril(), (EMPTY,)),
    "triu": (lambda x: x.triu(), (EMPTY,)), "nothing left of tril": (lambda x: x.tril(-5), (X,)),
    "roll": (lambda x: x.roll(1, 0), (EMPTY,)), "unfold": (lambda x: x.unfold(1, 2, 1), (EMPTY,)),
    "unfold of no width": (lambda x: x.unfold(0, 0, 1), (EMPTY,)),
    "cat": (lambda x, y: x.cat(y), (EMPTY, np.ones((2, 3)))), "cat of two": (lambda x, y: x.cat(y), (EMPTY, EMPTY)),
    "gemm": (lambda x, y: x @ y, (np.ones((2, 0)), np.ones((0, 3)))),
    "gemm of no rows": (lambda x, y: x @ y, (np.ones((0, 2)), np.ones((2, 3)))),
    "gather": (lambda x: x.gather(0, Tensor(NONE)), (X,)),
    "scatter": (lambda x, y: x.scatter(0, Tensor(NONE), y), (X, np.ones((0, 2)))),
    "scatter_add": (lambda x, y: x.scatter_add(0, Tensor(NONE), y), (X, np.ones((0, 2)))),
    "scatter_reduce": (lambda x, y: x.scatter_reduce(0, Tensor(NONE), y, "amax"), (X, np.ones((0, 2)))),
    "list": (lambda x: x[[]], (X,)), "mask": (lambda x: x[x > 100], (X,)), "sort": (lambda x: x.sort(0)[0], (EMPTY,)),
    "topk": (lambda x: x.topk(0, 1)[0], (X,)), "cumsum": (lambda x: x.cumsum(0), (EMPTY,)),
    "cummax": (lambda x: x.cummax(0)[0], (EMPTY,)), "diagonal": (lambda x: x.diagonal(5), (X,)),
    "diagonal of no columns": (lambda x: x.T.diagonal(), (EMPTY,)), "x**0": (lambda x: x**0, (X,)),
    "expand": (lambda x: x.unsqueeze(0).expand(0, 2, 2), (X,)), "repeat": (lambda x: x.repeat(0, 2), (X,)),
    "repeat_interleave": (lambda x: x.repeat_interleave(0), (X,)), "split": (lambda x: x.split([0, 2])[0], (X,)),
    "conv": (lambda x, w: x.conv2d(w), (np.zeros((0, 1, 3)), np.ones((1, 1, 2)))),
    "max_pool": (lambda x: x.max_pool2d((2,)), (np.zeros((0, 1, 3)),)), "floor": (lambda x: x.floor(), (X,)),
    "softmax": (lambda x: x.softmax(-1), (EMPTY,)), "embedding": (lambda w: Tensor(NONE).embedding(w), (X,)),
}


@pytest.mark.parametrize("name", EMPTIES)
def test_a_gradient_of_zeros_is_no_error(name) -> None:
    function, arrays = EMPTIES[name]
    tensors = [Tensor(a, requires_grad=True) for a in arrays]
    out = function(*tensors)
    touched = out.sum().gradient(*tensors)
    assert [g.shape for g in touched] == [a.shape for a in arrays]
    if name not in ("cat", "scatter", "scatter_add", "scatter_reduce"):
        assert all(not g.numpy().any() for g in touched)
    out.sum().backward()
    assert all(t.grad is not None and t.grad.shape == t.shape for t in tensors)


def test_what_an_empty_value_is_made_of_is_not_computed() -> None:
    x = Tensor(np.ones((8, 8), np.float32)).realize()
    total = (x @ x)[:0].sum()
    assert len(total.schedule().steps) == 1
    assert total.item() == 0


def test_reading_an_input_keeps_an_empty_value_in_its_graph() -> None:
    x = Tensor([1.0, 2.0])
    out = (x * 2)[:0]
    x.numpy()
    assert out.sum().gradient(x)[0].tolist() == [0, 0]


@pytest.mark.parametrize("view", [Tensor.flatten, lambda x: x.reshape(4).reshape(2, 2), lambda x: x.reshape(1, 4)],
                         ids=["flatten", "there and back", "reshape"])
@pytest.mark.parametrize("read", ["x", "v", "xv", "vx"])
def test_reading_values_keeps_views_above_what_they_view(view, read) -> None:
    x = Tensor(np.arange(4.0).reshape(2, 2))
    v = view(x)
    for name in read:
        {"x": x, "v": v}[name].numpy()
    assert (v * v).sum().gradient(x)[0].tolist() == [[0, 2], [4, 6]]
    assert (x.sum() + v.sum()).gradient(x)[0].tolist() == [[2, 2], [2, 2]]


def gradient(function: Callable[..., Tensor], *values: object) -> list[object]:
    tensors = [Tensor(v, dtype=dtypes.float64) for v in values]
    return [g.tolist() for g in function(*tensors).sum().gradient(*tensors)]


INF = math.inf
EDGES = {
    "clip at its bounds": (lambda x: x.clip(-1, 2), ([-2, -1, 0, 2, 3],), [[0, 1, 1, 1, 0]]),
    "clip by values": (lambda x, a, b: x.clip(a, b), ([1, 1, 0, 3], [1, 0, 1, 0], [2, 1, 2, 2]),
                       [[1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]),
    "maximum": (lambda x, y: x.maximum(y), ([1, 2, 3], [2, 2, 2]), [[0, 0.5, 1], [1, 0.5, 0]]),
    "maximum of a number": (lambda x: x.maximum(0), ([-1, 0, 1],), [[0, 0.5, 1]]),
    "relu": (lambda x: x.relu(), ([-1, 0, 1],), [[0, 0, 1]]),
    "relu6": (lambda x: x.relu6(), ([-1, 0, 1, 6, 7],), [[0, 0, 1, 0, 0]]),
    "hardtanh": (lambda x: x.hardtanh(), ([-1, 0, 1],), [[0, 1, 0]]),
    "x**0.3": (lambda x: x**0.3, ([0],), [[INF]]), "x**1.5": (lambda x: x**1.5, ([0, 4],), [[0, 3]]),
    "x**0": (lambda x: x**0, ([0, 2, INF],), [[0, 0, 0]]), "x**-2": (lambda x: x**-2, ([0, 1],), [[-INF, -2]]),
    "fraction of a negative base": (lambda x: x**0.5 + x**0.3, ([-2],), [[math.nan]]),
    "x**y": (lambda x, y: x**y, ([0, 0, 2], [2, 0, 0]), [[0, 0, 0], [0, 0, math.log(2)]]),
    "acosh": (lambda x: x.acosh(), ([-2, 0.5, 1],), [[3**-0.5, math.nan, INF]]),
    "asin": (lambda x: x.asin(), ([-1, 0, 1],), [[INF, 1, INF]]),
    "acos": (lambda x: x.acos(), ([-1, 0, 1],), [[-INF, -1, -INF]]),
    "log1p": (lambda x: x.log1p(), ([-1, 0],), [[INF, 1]]),
    "norm of a zero row": (lambda x: x.norm(2, 1), ([[0, 0], [3, 4]],), [[[0, 0], [0.6, 0.8]]]),
    "other norms": (lambda x: x.norm(3, 1) + x.norm(0.5, 1), ([[0, 0]],), [[[0, 0]]]),
    "normalize a zero row": (lambda x: x.normalize(), ([[0, 0]],), [[[1e12, 1e12]]]),
    "std of a constant": (lambda x: x.std(1), ([[2, 2, 2]],), [[[0, 0, 0]]]),
    "max_pool of a tie": (lambda x: x.max_pool2d((2,)), ([[[5, 5, 1, 5]]],), [[[[1, 0, 0, 1]]]]),
    "crossentropy of certainty": (lambda x: x.binary_crossentropy(Tensor([0.0, 1]), "sum"), ([0, 1],), [[0, 0]]),
    "an extreme with an undefined slope": (lambda x: x.max().acos(), ([0, 2],), [[0, math.nan]]),
    "an extreme of NaNs": (lambda x: x.log().max(), ([-1, -2, 1],), [[-0.5, -0.25, 0]]),
    "where beside an infinite slope": (lambda x: (x > 0).where(x.sqrt(), 1), ([0, 4],), [[math.nan, 0.25]]),
    "infinities": (lambda x, y: x.logaddexp(y), ([INF], [0]), [[1], [0]]),
}


@pytest.mark.parametrize("name", EDGES)
def test_edges(name) -> None:
    function, values, wanted = EDGES[name]
    for found, expected in zip(gradient(function, *values), wanted, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("include", [True, False])
@pytest.mark.parametrize("reduce", ["sum", "prod", "amax", "amin", "mean"])
def test_scatter_reduce(reduce, include) -> None:
    index = Tensor([[0, 2, 0], [1, 1, 1]])
    x, y = np.array([[0.3, 1.1, -0.4], [0.7, -1.2, 0.9]]), np.array([[0.5, -0.7, 1.3], [-0.2, 1.9, 0.8]])
    check_gradient(lambda a, b: a.scatter_reduce(1, index, b, reduce, include_self=include), x, y)


def test_scattered_extremes_share() -> None:
    x, y = Tensor([1.0, 5.0]), Tensor([1.0, 1.0, 2.0])
    out = x.scatter_reduce(0, Tensor([0, 0, 1]), y, "amax")
    found = (out * Tensor([3.0, 1.0])).sum().gradient(x, y)
    assert [g.numpy().round(12).tolist() for g in found] == [[1, 1], [1, 1, 0]]


@pytest.mark.parametrize("zeros", [0, 1, 2, 3])
def test_second_derivatives_of_products_beside_zeros(zeros) -> None:
    values = np.array([0.0] * zeros + [2.0, 3.0, 5.0, 7.0][zeros:])
    n = len(values)
    wanted = np.array([[0 if i == j else np.prod(np.delete(values, [i, j])) for j in range(n)] for i in range(n)])
    index = Tensor([0] * (n - 1))
    products = {
        "prod": lambda x: x.prod(),
        "cumprod": lambda x: x.cumprod()[-1],
        "scatter_reduce": lambda x: x[:1].scatter_reduce(0, index, x[1:], "prod").sum(),
    }
    for name, product in products.items():
        x = Tensor(values, requires_grad=True)
        (first,) = product(x).gradient(x)
        hessian = np.stack([first[i].gradient(x)[0].numpy() for i in range(n)])
        np.testing.assert_allclose(hessian, wanted, rtol=1e-12, err_msg=name)


# *** masks and dtypes ***

PICKED = {
    "roll": lambda x, i: x.roll(1, 0), "flip": lambda x, i: x.flip(0), "gather": lambda x, i: x.gather(0, i),
    "scatter": lambda x, i: x.scatter(0, i, x), "sort": lambda x, i: x.sort().values,
    "topk": lambda x, i: x.topk(2).values, "kthvalue": lambda x, i: x.kthvalue(2).values,
    "median": lambda x, i: x.median(0).values, "where": lambda x, i: (i == 1).where(x, x),
    "masked_fill": lambda x, i: x.masked_fill(i == 1, 1), "masked_select": lambda x, i: x.masked_select(i == 1),
    "pad": lambda x, i: x.pad((1, 1)), "pad of a value": lambda x, i: x.pad((1, 1), value=1),
    "pad with own": lambda x, i: x.pad((1, 1), mode="circular"), "triu": lambda x, i: x.triu(),
    "tril": lambda x, i: x.tril(), "diag": lambda x, i: x[0].diag(), "diagonal": lambda x, i: x.diagonal(),
    "unfold": lambda x, i: x.unfold(0, 2, 1), "repeat": lambda x, i: x.repeat(2, 1),
    "repeat_interleave": lambda x, i: x.repeat_interleave(2), "cat": lambda x, i: x.cat(x),
    "stack": lambda x, i: x.stack(x), "split": lambda x, i: x.split(1)[0], "cummax": lambda x, i: x.cummax(0).values,
    "cummin": lambda x, i: x.cummin(0).values, "max": lambda x, i: x.max(0), "min": lambda x, i: x.min(),
    "maximum": lambda x, i: x.maximum(x), "minimum": lambda x, i: x.minimum(x), "unique": lambda x, i: x.unique(),
    "index": lambda x, i: x[i], "slice": lambda x, i: x[::2, -1], "index_select": lambda x, i: x.index_select(0, i[0]),
    "max_pool2d": lambda x, i: x.max_pool2d(1), "embedding": lambda x, i: i.embedding(x),
    "nearest": lambda x, i: x.interpolate((2, 4), mode="nearest"), "meshgrid": lambda x, i: x.meshgrid(x)[0],
    "expand": lambda x, i: x.expand(2, *x.shape), "contiguous": lambda x, i: x.contiguous(),
    "amax": lambda x, i: x.scatter_reduce(0, i, x, "amax"), "clone": lambda x, i: x.clone(),
}


@pytest.mark.parametrize("dtype", dtypes.all, ids=str)
def test_what_moves_or_picks_elements_keeps_the_dtype(dtype) -> None:
    x = Tensor([[1, 0, 1], [0, 0, 1]], requires_grad=False).cast(dtype)
    i = Tensor([[0, 1, 1], [1, 0, 0]], requires_grad=False)
    wrong = {name: out.dtype for name, f in PICKED.items() if (out := f(x, i)).dtype is not dtype}
    assert not wrong


def test_masks_stay_masks() -> None:
    mask = Tensor.ones(4, 4, dtype=dtypes.bool)
    assert mask.tril().tolist() == np.tril(np.ones((4, 4), bool)).tolist()
    assert mask.triu(1).tolist() == np.triu(np.ones((4, 4), bool), 1).tolist()
    q = Tensor(np.random.default_rng(0).normal(size=(2, 4, 3)))
    masked = q.scaled_dot_product_attention(q, q, attn_mask=mask.tril())
    np.testing.assert_allclose(masked.numpy(), q.scaled_dot_product_attention(q, q, is_causal=True).numpy(), rtol=1e-12)


@pytest.mark.parametrize("added", [False, True])
def test_a_row_that_sees_nothing_is_zero(added) -> None:
    rng = np.random.default_rng(1)
    seen = np.array([[True, False, True], [False, False, False]])
    mask = Tensor(np.where(seen, 0, -np.inf) if added else seen, requires_grad=False)
    q, k, v = (Tensor(rng.normal(size=s)) for s in ((2, 4), (3, 4), (3, 2)))
    out = q.scaled_dot_product_attention(k, v, attn_mask=mask)
    assert out[1].tolist() == [0, 0] and np.isfinite(out.numpy()).all()
    for g in out.sum().gradient(q, k, v):
        assert np.isfinite(g.numpy()).all()
    one = q[:1].scaled_dot_product_attention(k, v, attn_mask=mask[:1])
    for g, h in zip(out.sum().gradient(k, v), one.sum().gradient(k, v)):
        np.testing.assert_allclose(g.numpy(), h.numpy(), rtol=1e-12)


def test_circular_padding_does_not_bring_back_what_it_cuts() -> None:
    x = Tensor(np.arange(12).reshape(1, 3, 4))
    assert x.pad((1, -2, 2, -1), mode="circular").tolist() == [
        [[1, 0, 1], [5, 4, 5], [1, 0, 1], [5, 4, 5]]]
