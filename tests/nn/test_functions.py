"""Activations, norms, losses, dropout and attention against NumPy, and their derivatives."""
from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import scipy.special

from tests.nn.helpers import arrays, check_gradient
from tinsmith import Tensor, dtypes
from tinsmith.core.errors import ArgumentError, DTypeError, ShapeError
from tinsmith.tensor.create import random

sigmoid = scipy.special.expit
ACTIVATIONS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Any], Any]]] = {
    "relu": (lambda x: x.relu(), lambda x: np.maximum(x, 0)),
    "leaky_relu": (lambda x: x.leaky_relu(0.1), lambda x: np.where(x > 0, x, 0.1 * x)),
    "relu6": (lambda x: (x * 4).relu6(), lambda x: np.clip(4 * x, 0, 6)),
    "elu": (lambda x: x.elu(0.5), lambda x: np.where(x > 0, x, 0.5 * np.expm1(np.minimum(x, 0)))),
    "celu": (lambda x: x.celu(2.0), lambda x: np.where(x > 0, x, 2 * np.expm1(np.minimum(x, 0) / 2))),
    "selu": (lambda x: x.selu(), lambda x: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(x))),
    "sigmoid": (lambda x: x.sigmoid(), sigmoid),
    "logsigmoid": (lambda x: x.logsigmoid(), scipy.special.log_expit),
    "silu": (lambda x: x.silu(), lambda x: x * sigmoid(x)),
    "quick_gelu": (lambda x: x.quick_gelu(), lambda x: x * sigmoid(1.702 * x)),
    "gelu": (lambda x: x.gelu("tanh"), lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))),
    "gelu_exact": (lambda x: x.gelu(), lambda x: x * scipy.special.ndtr(x)),
    "softplus": (lambda x: x.softplus(2.0), lambda x: np.logaddexp(2 * x, 0) / 2),
    "mish": (lambda x: x.mish(), lambda x: x * np.tanh(np.logaddexp(x, 0))),
    "hardtanh": (lambda x: x.hardtanh(-0.5, 0.75), lambda x: np.clip(x, -0.5, 0.75)),
    "hardsigmoid": (lambda x: x.hardsigmoid(), lambda x: np.clip(x / 6 + 0.5, 0, 1)),
    "hardswish": (lambda x: x.hardswish(), lambda x: x * np.clip(x + 3, 0, 6) / 6),
    "softsign": (lambda x: x.softsign(), lambda x: x / (1 + abs(x))),
    "tanhshrink": (lambda x: x.tanhshrink(), lambda x: x - np.tanh(x)),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name: str) -> None:
    ours, reference = ACTIVATIONS[name]
    (x,) = arrays((5, 7))
    np.testing.assert_allclose(ours(Tensor(x)).numpy(), reference(x), rtol=1e-6, atol=1e-6)
    check_gradient(ours, x)


@pytest.mark.parametrize("name", ["relu", "sigmoid", "softplus", "elu", "logsigmoid", "celu"])
def test_activations_far_out(name: str) -> None:
    """No overflow far from zero, in the value or the derivative."""
    ours, reference = ACTIVATIONS[name]
    x = np.array([-1e4, -200.0, -90.0, 90.0, 200.0, 1e4], np.float32)
    t = Tensor(x, requires_grad=True)
    out = ours(t)
    np.testing.assert_allclose(out.numpy(), reference(x.astype(np.float64)), rtol=1e-5, atol=1e-30)
    (grad,) = out.sum().gradient(t)
    assert np.isfinite(grad.numpy()).all()


def test_relu_at_zero_and_nan() -> None:
    x = Tensor([0.0, float("nan"), -1.0, 2.0], requires_grad=True)
    assert np.isnan(x.relu().numpy()[1])
    assert x.relu().sum().gradient(x)[0].numpy()[[0, 2, 3]].tolist() == [0, 0, 1]
    assert Tensor([0.0]).sigmoid().sum().item() == 0.5


def test_sigmoid_slope_at_zero() -> None:
    x = Tensor([0.0], requires_grad=True)
    assert x.sigmoid().sum().gradient(x)[0].item() == 0.25


@pytest.mark.parametrize("axis", [-1, 1, (1, 2)])
def test_layernorm(axis: Any) -> None:
    (x,) = arrays((3, 4, 5))
    expected = (x - x.mean(axis, keepdims=True)) / np.sqrt(x.var(axis, keepdims=True) + 1e-5)
    np.testing.assert_allclose(Tensor(x).layernorm(axis).numpy(), expected, rtol=1e-5, atol=1e-6)
    check_gradient(lambda t: t.layernorm(axis), x, order=2)


def test_layernorm_far_from_zero() -> None:
    (x,) = arrays((4, 64))
    far = (x + 1e4).astype(np.float32)
    exact = far.astype(np.float64)
    expected = (exact - exact.mean(-1, keepdims=True)) / exact.std(-1, keepdims=True)
    np.testing.assert_allclose(Tensor(far).layernorm().numpy(), expected, atol=1e-2)


def test_rms_norm_and_normalize() -> None:
    (x,) = arrays((3, 5))
    expected = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6)
    np.testing.assert_allclose(Tensor(x).rms_norm().numpy(), expected, rtol=1e-5)
    check_gradient(lambda t: t.rms_norm(), x, order=2)
    for p in (1.0, 2.0, 3.0, np.inf):
        expected = x / np.linalg.norm(x, p, axis=1, keepdims=True)
        np.testing.assert_allclose(Tensor(x).normalize(p).numpy(), expected, rtol=1e-5)


def test_batchnorm_function() -> None:
    x, w, b, mean, inv = arrays((2, 3, 4, 4), (3,), (3,), (3,), (3,))
    by = (slice(None), None, None)
    expected = (x - mean[by]) * inv[by] * w[by] + b[by]
    np.testing.assert_allclose(Tensor(x).batchnorm(*map(Tensor, (w, b, mean, inv))).numpy(), expected, atol=1e-5)


def log_softmax(x: Any, axis: int = -1) -> Any:
    return x - scipy.special.logsumexp(x, axis, keepdims=True)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_sparse_categorical_crossentropy(reduction: str) -> None:
    (x,) = arrays((6, 5))
    y = np.array([0, 4, -1, 2, 2, 3])
    kept = y != -1
    logp = log_softmax(x)
    for smoothing in (0.0, 0.2):
        rows = -((1 - smoothing) * logp[np.arange(6), y] + smoothing * logp.mean(-1)) * kept
        expected = {"none": rows, "sum": rows.sum(), "mean": rows.sum() / kept.sum()}[reduction]

        def loss(t: Tensor, smoothing: float = smoothing) -> Tensor:
            return t.sparse_categorical_crossentropy(Tensor(y), label_smoothing=smoothing, reduction=reduction)

        np.testing.assert_allclose(loss(Tensor(x)).numpy(), expected, rtol=1e-5)
        check_gradient(loss, x, order=2)


@pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.int32])
def test_labels_of_any_integer_dtype(dtype: Any) -> None:
    (x,) = arrays((2, 300))
    y = np.array([250, 3])
    expected = -log_softmax(x)[[0, 1], y].mean()
    assert np.isclose(Tensor(x).cross_entropy(Tensor(y.astype(dtype))).item(), expected, rtol=1e-5)


def test_cross_entropy() -> None:
    x, p = arrays((2, 4, 3), (2, 4, 3))
    y = np.array([[0, 1, 3], [2, 2, 0]])
    logp = log_softmax(x, 1)
    expected = -np.take_along_axis(logp, y[:, None], 1).mean()
    assert np.isclose(Tensor(x).cross_entropy(Tensor(y)).item(), expected, rtol=1e-5)
    q = np.exp(log_softmax(p, 1))
    assert np.isclose(Tensor(x).cross_entropy(Tensor(q)).item(), -(q * logp).sum(1).mean(), rtol=1e-5)
    smooth = q * 0.9 + 0.1 / 4
    assert np.isclose(Tensor(x).cross_entropy(Tensor(q), label_smoothing=0.1).item(), -(smooth * logp).sum(1).mean(),
                      rtol=1e-5)
    check_gradient(lambda t: t.cross_entropy(Tensor(y)), x)
    check_gradient(lambda t, u: t.cross_entropy(u.softmax(1)), x, p)


def test_cross_entropy_of_extreme_logits() -> None:
    x = Tensor([[1e4, 0.0, -float("inf")]], requires_grad=True)
    assert x.cross_entropy(Tensor([1])).item() == 1e4
    loss = x.cross_entropy(Tensor([0]))
    assert loss.item() == 0
    assert loss.gradient(x)[0].tolist() == [[0, 0, 0]]


def test_nll_loss() -> None:
    x, w = arrays((4, 3), (3,))
    x, w, y = log_softmax(x), abs(w), np.array([0, 2, 1, 1])
    picked = -x[np.arange(4), y]
    assert np.isclose(Tensor(x).nll_loss(Tensor(y)).item(), picked.mean(), rtol=1e-5)
    assert np.isclose(Tensor(x).nll_loss(Tensor(y), Tensor(w)).item(), (picked * w[y]).sum() / w[y].sum(), rtol=1e-5)
    assert np.isclose(Tensor(x).nll_loss(Tensor(y), ignore_index=1).item(), picked[:2].mean(), rtol=1e-5)


def test_regression_losses() -> None:
    x, y = arrays((3, 4), (3, 4))
    d = abs(x - y)
    pairs: list[tuple[Callable[[Tensor, Tensor], Tensor], Any]] = [
        (lambda a, b: a.mse_loss(b), (d**2).mean()), (lambda a, b: a.l1_loss(b, "sum"), d.sum()),
        (lambda a, b: a.huber_loss(b, delta=0.5), np.where(d <= 0.5, d * d / 2, 0.5 * (d - 0.25)).mean()),
        (lambda a, b: a.smooth_l1_loss(b, "none", 0.5), np.where(d <= 0.5, d * d, d - 0.25))]
    for ours, expected in pairs:
        np.testing.assert_allclose(ours(Tensor(x), Tensor(y)).numpy(), expected, rtol=1e-5)
        check_gradient(ours, x, y)


def test_binary_crossentropy() -> None:
    x, t = arrays((3, 4), (3, 4))
    p, y = sigmoid(x), (t > 0).astype(np.float64)
    expected = -(y * np.log(p) + (1 - y) * np.log(1 - p)).mean()
    assert np.isclose(Tensor(p).binary_crossentropy(Tensor(y)).item(), expected, rtol=1e-5)
    assert np.isclose(Tensor(x).binary_crossentropy_logits(Tensor(y)).item(), expected, rtol=1e-5)
    weighted = -(3 * y * np.log(p) + (1 - y) * np.log(1 - p)).mean()
    got = Tensor(x).binary_crossentropy_logits(Tensor(y), pos_weight=Tensor([3.0], dtype="float64")).item()
    assert np.isclose(got, weighted, rtol=1e-5)
    check_gradient(lambda a: a.binary_crossentropy_logits(Tensor(y)), x, order=2)
    assert Tensor([0.0]).binary_crossentropy(Tensor([1.0])).item() == 100


def attention(q: Any, k: Any, v: Any, mask: Any = None) -> Any:
    scores = q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1])
    scores = scores if mask is None else np.where(mask, scores, -np.inf)
    return scipy.special.softmax(scores, -1) @ v


def test_attention() -> None:
    q, k, v = arrays((2, 3, 5, 4), (2, 3, 6, 4), (2, 3, 6, 7))
    np.testing.assert_allclose(Tensor(q).scaled_dot_product_attention(Tensor(k), Tensor(v)).numpy(), attention(q, k, v),
                               rtol=1e-5, atol=1e-6)
    causal = np.tril(np.ones((5, 6), bool))
    for arguments in ({"is_causal": True}, {"attn_mask": Tensor(causal)},
                      {"attn_mask": Tensor(np.where(causal, 0, -np.inf))}):
        got = Tensor(q).scaled_dot_product_attention(Tensor(k), Tensor(v), **arguments).numpy()
        np.testing.assert_allclose(got, attention(q, k, v, causal), rtol=1e-5, atol=1e-6)
    check_gradient(lambda a, b, c: a.scaled_dot_product_attention(b, c, is_causal=True),
                   *arrays((2, 4, 3), (2, 4, 3), (2, 4, 3)))
    shared = Tensor(q[:, :2]).scaled_dot_product_attention(Tensor(k[:, :1]), Tensor(v[:, :1]), enable_gqa=True).numpy()
    np.testing.assert_allclose(shared, attention(q[:, :2], k[:, :1], v[:, :1]), rtol=1e-5, atol=1e-6)
    few = Tensor(np.concatenate([k, k], 1)[:, :2])
    with pytest.raises(ShapeError, match=r"4 heads of query .*enable_gqa=True"):
        Tensor(np.concatenate([q, q], 1)[:, :4]).scaled_dot_product_attention(few, few)
    with pytest.raises(ShapeError, match=r"3 heads of query .*that divide them"):
        Tensor(q).scaled_dot_product_attention(few, few, enable_gqa=True)


def test_dropout_of_a_part_of_a_batch_is_that_part_of_the_whole_mask() -> None:
    """``dist.rows`` sets the part for its own thread."""
    def dropped(rows: int, part: tuple[int, int] | None = None) -> np.ndarray:
        Tensor.manual_seed(5)
        if part is not None:
            random.rows.append(part)
        try:
            with Tensor.train():
                return Tensor.ones(rows, 4).dropout(0.5).numpy()
        finally:
            if part is not None:
                random.rows.pop()

    whole = dropped(6)
    for n in range(3):
        np.testing.assert_array_equal(dropped(2, (n, 3)), whole[2 * n : 2 * n + 2])
    random.rows.append((1, 2))
    try:
        with ThreadPoolExecutor(1) as other:
            np.testing.assert_array_equal(other.submit(dropped, 6).result(), whole)
    finally:
        random.rows.pop()
    assert not random.rows


def test_dropout() -> None:
    Tensor.manual_seed(1)
    x = Tensor(np.ones(4096, np.float32))
    assert x.dropout(0.5) is x
    with Tensor.train():
        y = x.dropout(0.25).numpy()
        assert not x.dropout(1.0).numpy().any()
    assert set(np.unique(y)) == {np.float32(0), np.float32(4 / 3)}
    assert abs((y == 0).mean() - 0.25) < 0.04
    assert not Tensor.training
    with Tensor.train(), Tensor.test():
        assert not Tensor.training


def test_embedding() -> None:
    (w,) = arrays((5, 3))
    idx = np.array([[1, 4, 1], [0, 2, 4]])
    np.testing.assert_array_equal(Tensor(idx).embedding(Tensor(w)).numpy(), w[idx])
    check_gradient(lambda t: Tensor(idx).embedding(t), w)
    assert Tensor([2, 0]).one_hot(3).tolist() == [[0, 0, 1], [1, 0, 0]]


def test_errors() -> None:
    x = Tensor([[1.0, 2.0]])
    with pytest.raises(ShapeError, match="class indices"):
        x.sparse_categorical_crossentropy(Tensor([1, 2]))
    with pytest.raises(DTypeError, match="probabilities"):
        x.cross_entropy(Tensor([[1, 0]]))
    with pytest.raises(ArgumentError, match="reduction"):
        x.mse_loss(x, reduction="median")
    with pytest.raises(ArgumentError, match="dropout"):
        x.dropout(1.5)
    with pytest.raises(DTypeError, match="embedding"):
        x.embedding(x)
    with pytest.raises(ShapeError, match="equal shapes"):
        x.mse_loss(Tensor([1.0]))
    assert Tensor([1], dtype=dtypes.int32).relu().dtype is dtypes.int32


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_bends_at_zero(dtype: str, approximate: str) -> None:
    """abs(x), of which the distribution function is computed, has no slope at 0: half of the second derivative."""
    x = Tensor([0.0, -0.0, 1e-3, -2.0]).cast(dtype).realize()
    (slope,) = x.gelu(approximate).sum().gradient(x)
    (bend,) = slope.sum().gradient(x)
    values = x.double().numpy()
    want = np.exp(-values**2 / 2) / np.sqrt(2 * np.pi) * (2 - values**2)
    np.testing.assert_allclose(bend.double().numpy(), want, rtol=2.0**-7, atol=0.01)
