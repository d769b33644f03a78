"""Convolutions, pools, norms, losses, attention and optimizers against PyTorch."""
from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from tests.parity.helpers import compare, random, table, torch
from tinsmith import Tensor, nn

F = torch.nn.functional

CONV: list[dict[str, Any]] = [
    {}, {"stride": 2}, {"padding": 2}, {"dilation": 2, "padding": 1}, {"groups": 2}, {"groups": 4, "padding": 1},
    {"stride": (2, 1), "padding": (0, 2), "dilation": (1, 2)}]


@pytest.mark.parametrize("case", CONV, ids=str)
def test_conv2d(case: dict[str, Any]) -> None:
    compare(lambda x, w, b: x.conv2d(w, b, **case), lambda x, w, b: F.conv2d(x, w, b, **case),
            random(2, 4, 8, 7), random(4, 4 // case.get("groups", 1), 3, 3, seed=1), random(4, seed=2))


def test_conv1d_and_conv3d() -> None:
    compare(lambda x, w: x.conv2d(w, stride=2, padding=1), lambda x, w: F.conv1d(x, w, stride=2, padding=1),
            random(2, 3, 9), random(4, 3, 3, seed=1))
    compare(lambda x, w: x.conv2d(w, padding=1), lambda x, w: F.conv3d(x, w, padding=1),
            random(1, 2, 3, 4, 3), random(2, 2, 3, 2, 3, seed=1))


TRANSPOSED: list[dict[str, Any]] = [
    {}, {"stride": 2}, {"stride": 2, "padding": 1, "output_padding": 1}, {"groups": 2, "dilation": 2},
    {"stride": (1, 3), "padding": (1, 0), "output_padding": (0, 2)}]


@pytest.mark.parametrize("case", TRANSPOSED, ids=str)
def test_conv_transpose2d(case: dict[str, Any]) -> None:
    compare(lambda x, w, b: x.conv_transpose2d(w, b, **case), lambda x, w, b: F.conv_transpose2d(x, w, b, **case),
            random(2, 4, 4, 3), random(4, 6 // case.get("groups", 1), 3, 2, seed=1), random(6, seed=2))


POOL: list[dict[str, Any]] = [
    {"kernel_size": 2}, {"kernel_size": 3, "stride": 2}, {"kernel_size": (3, 2), "stride": 1, "padding": 1},
    {"kernel_size": 3, "stride": 2, "ceil_mode": True},
    {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True}]


@pytest.mark.parametrize("case", POOL, ids=str)
@pytest.mark.parametrize("size", [(7, 8), (6, 9)], ids=str)
def test_pools(case: dict[str, Any], size: tuple[int, int]) -> None:
    x = random(2, 3, *size)
    compare(lambda t: t.max_pool2d(**case), lambda t: F.max_pool2d(t, **case), x)
    for count in (True, False):
        options = case | {"count_include_pad": count}
        compare(partial(Tensor.avg_pool2d, **options), partial(F.avg_pool2d, **options), x)


@pytest.mark.parametrize("kernel, stride, padding, dilation", [
    (3, 2, 0, 2), (5, 2, 0, 1), (5, 4, 1, 1), ((5, 2), 3, 0, 1)])
def test_one_window_that_overhangs(kernel: Any, stride: int, padding: int, dilation: int) -> None:
    """With ``ceil_mode``, a window may be larger than the image."""
    x, case = random(2, 3, 4, 4), {"stride": stride, "padding": padding, "ceil_mode": True}
    compare(lambda t: t.max_pool2d(kernel, dilation=dilation, **case),
            lambda t: F.max_pool2d(t, kernel, dilation=dilation, **case), x)
    if dilation == 1:
        for count in (True, False):
            options = case | {"kernel_size": kernel, "count_include_pad": count}
            compare(partial(Tensor.avg_pool2d, **options), partial(F.avg_pool2d, **options), x)


def test_dilated_max_pool() -> None:
    compare(lambda t: t.max_pool2d(2, 1, dilation=2), lambda t: F.max_pool2d(t, 2, 1, dilation=2), random(1, 2, 6, 6))


def test_norms() -> None:
    x = random(2, 4, 3, 3)
    compare(lambda t: t.layernorm((2, 3)), lambda t: F.layer_norm(t, (3, 3)), x)
    compare(lambda t: t.rms_norm(eps=1e-6), lambda t: F.rms_norm(t, (3,), eps=1e-6), x)
    for p in (1.0, 2.0, 3.0):
        compare(partial(Tensor.normalize, p=p), partial(F.normalize, p=p), x)


NORM_LAYERS: dict[str, tuple[Any, Any]] = {
    "batch": (nn.BatchNorm(4), torch.nn.BatchNorm2d(4)), "group": (nn.GroupNorm(2, 4), torch.nn.GroupNorm(2, 4)),
    "instance": (nn.InstanceNorm(4), torch.nn.InstanceNorm2d(4, affine=True)),
    "layer": (nn.LayerNorm(3), torch.nn.LayerNorm(3)),
}


@table(NORM_LAYERS)
def test_norm_layers(row: Any) -> None:
    ours, theirs = row
    state = {k: random(*v.shape, seed=5) for k, v in theirs.state_dict().items() if k in ("weight", "bias")}
    nn.state.load_state_dict(ours, state, strict=False)
    theirs.load_state_dict({k: torch.tensor(v) for k, v in state.items()}, strict=False)
    with Tensor.train():
        for seed in range(3):
            compare(ours, theirs, random(5, 4, 2, 3, seed=seed), rtol=1e-3)
    theirs.eval()
    compare(ours, theirs, random(5, 4, 2, 3, seed=8), rtol=1e-3)
    for name, value in theirs.state_dict().items():
        np.testing.assert_allclose(nn.state.get_state_dict(ours)[name].numpy().reshape(value.shape), value, rtol=1e-4)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_cross_entropy(reduction: str) -> None:
    x, y = random(4, 5, 3), np.array([[0, 1, 2], [4, 4, 4], [3, 0, 1], [2, 2, 0]])
    for smoothing in (0.0, 0.1):
        options: Any = {"reduction": reduction, "label_smoothing": smoothing}
        ours, theirs = partial(Tensor.cross_entropy, **options), partial(F.cross_entropy, **options)
        compare(ours, theirs, x, y)
        p = np.exp(random(4, 5, 3, seed=2))
        compare(ours, theirs, x, p / p.sum(1, keepdims=True))
    ignored = np.where(y == 4, -1, y)
    compare(lambda t, i: t.permute(0, 2, 1).sparse_categorical_crossentropy(i, reduction=reduction),
            lambda t, i: F.cross_entropy(t, i, reduction=reduction, ignore_index=-1), x, ignored)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_other_losses(reduction: str) -> None:
    x, y = random(4, 5), random(4, 5, seed=1)
    options: Any = {"reduction": reduction}
    compare(lambda a, b: a.mse_loss(b, **options), lambda a, b: F.mse_loss(a, b, **options), x, y)
    compare(lambda a, b: a.l1_loss(b, **options), lambda a, b: F.l1_loss(a, b, **options), x, y)
    compare(lambda a, b: a.huber_loss(b, delta=0.7, **options),
            lambda a, b: F.huber_loss(a, b, delta=0.7, **options), x, y)
    compare(lambda a, b: a.smooth_l1_loss(b, beta=0.7, **options),
            lambda a, b: F.smooth_l1_loss(a, b, beta=0.7, **options), x, y)
    target = (y > 0).astype(np.float32)
    compare(lambda a: a.binary_crossentropy_logits(Tensor(target), **options),
            lambda a: F.binary_cross_entropy_with_logits(a, torch.tensor(target), **options), x)
    compare(lambda a: a.sigmoid().binary_crossentropy(Tensor(target), **options),
            lambda a: F.binary_cross_entropy(a.sigmoid(), torch.tensor(target), **options), x)
    labels, weights = np.array([0, 4, 2, 2]), abs(random(5, seed=3))
    compare(lambda a, i: a.log_softmax().nll_loss(i, Tensor(weights), 2, reduction),
            lambda a, i: F.nll_loss(a.log_softmax(-1), i, torch.tensor(weights), ignore_index=2, reduction=reduction),
            x, labels)


@pytest.mark.parametrize("mask", ["none", "causal", "bool", "float"])
def test_attention(mask: str) -> None:
    q, k, v = random(2, 3, 5, 4), random(2, 3, 5, 4, seed=1), random(2, 3, 5, 6, seed=2)
    seen = np.tril(np.ones((5, 5), bool), 1)
    given = {"bool": seen, "float": random(5, 5, seed=3)}.get(mask)
    compare(lambda a, b, c: a.scaled_dot_product_attention(b, c, None if given is None else Tensor(given),
                                                           is_causal=mask == "causal"),
            lambda a, b, c: F.scaled_dot_product_attention(a, b, c, None if given is None else torch.tensor(given),
                                                           is_causal=mask == "causal"), q, k, v)


def test_embedding_and_lstm() -> None:
    index = np.array([[0, 3, 3], [1, 2, 0]])
    compare(lambda w: Tensor(index).embedding(w), lambda w: F.embedding(torch.tensor(index), w), random(4, 5))
    ours, theirs = nn.LSTMCell(3, 4), torch.nn.LSTMCell(3, 4)
    nn.state.load_state_dict(ours, theirs.state_dict())
    for n in range(2):
        compare(lambda x, h, c, n=n: ours(x, (h, c))[n], lambda x, h, c, n=n: theirs(x, (h, c))[n],
                random(2, 3), random(2, 4, seed=1), random(2, 4, seed=2))


OPTIMIZERS: dict[str, tuple[Any, Any]] = {
    "sgd": (lambda p: nn.optim.SGD(p, 0.1), lambda p: torch.optim.SGD(p, 0.1)),
    "momentum": (lambda p: nn.optim.SGD(p, 0.1, 0.9, 0.01), lambda p: torch.optim.SGD(p, 0.1, 0.9, weight_decay=0.01)),
    "nesterov": (lambda p: nn.optim.SGD(p, 0.1, 0.9, nesterov=True),
                 lambda p: torch.optim.SGD(p, 0.1, 0.9, nesterov=True)),
    "adam": (lambda p: nn.optim.Adam(p, 0.01), lambda p: torch.optim.Adam(p, 0.01)),
    "adamw": (lambda p: nn.optim.AdamW(p, 0.01, weight_decay=0.1),
              lambda p: torch.optim.AdamW(p, 0.01, weight_decay=0.1)),
}


@table(OPTIMIZERS)
def test_optimizers_train_alike(row: Any) -> None:
    """Ten steps of a small convolutional network: the same losses and weights."""
    x, y = random(8, 1, 6, 6), np.arange(8) % 3
    theirs = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3, bias=False), torch.nn.BatchNorm2d(4), torch.nn.ReLU(),
                                 torch.nn.MaxPool2d(2), torch.nn.Flatten(), torch.nn.Linear(16, 3))
    conv, norm, linear = nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm(4), nn.Linear(16, 3)
    ours: list[Any] = [conv, norm, Tensor.relu, Tensor.max_pool2d, lambda t: t.flatten(1), linear]
    nn.state.load_state_dict(ours, theirs.state_dict())
    mine, other = row[0](nn.state.get_parameters(ours)), row[1](theirs.parameters())
    with Tensor.train():
        for _ in range(10):
            mine.zero_grad()
            loss = Tensor(x).sequential(ours).sparse_categorical_crossentropy(Tensor(y))
            loss.backward()
            mine.step()
            other.zero_grad()
            expected = F.cross_entropy(theirs(torch.tensor(x)), torch.tensor(y))
            expected.backward()
            other.step()
            assert np.isclose(loss.item(), expected.item(), rtol=1e-3, atol=1e-4)
    state = nn.state.get_state_dict(ours)
    for name, value in theirs.state_dict().items():
        np.testing.assert_allclose(state[name].numpy().reshape(value.shape), value.numpy(), rtol=2e-2, atol=2e-3)
