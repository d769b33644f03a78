"""Optimizers against their formulas, and small networks that learn."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tinsmith import Tensor, dtypes, nn
from tinsmith.core.counters import GlobalCounters
from tinsmith.core.errors import ArgumentError, GradientError
from tinsmith.nn.optim import LAMB, SGD, Adam, AdamW, Optimizer, OptimizerGroup

Array = np.ndarray[Any, Any]
START, SCALE = np.array([1.0, -2.0, 0.5]), np.array([1.0, 3.0, 0.25])


def run(make: Callable[[list[Tensor]], Optimizer], steps: int = 5) -> Array:
    w = Tensor(START.astype(np.float32))
    opt = make([w])
    for _ in range(steps):
        opt.zero_grad()
        (w * w * Tensor(SCALE.astype(np.float32))).sum().backward()
        opt.step()
    return w.numpy()


def sgd(momentum: float = 0.0, decay: float = 0.0, nesterov: bool = False) -> Array:
    w, b = START.copy(), np.zeros(3)
    for _ in range(5):
        g = 2 * w * SCALE + decay * w
        b = momentum * b + g
        w = w - 0.05 * (g + momentum * b if nesterov else b)
    return w


def adam(decay: float = 0.0, trust: bool = False) -> Array:
    w, m, v = START.copy(), np.zeros(3), np.zeros(3)
    for t in range(1, 6):
        g = 2 * w * SCALE
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        up = m / (1 - 0.9**t) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8) + decay * w
        w = w - 0.05 * up * (np.linalg.norm(w) / np.linalg.norm(up) if trust else 1)
    return w


@pytest.mark.parametrize(("make", "expected"), [
    (lambda p: SGD(p, 0.05), sgd()), (lambda p: SGD(p, 0.05, 0.9), sgd(0.9)),
    (lambda p: SGD(p, 0.05, 0.9, 0.1), sgd(0.9, 0.1)), (lambda p: SGD(p, 0.05, 0.9, nesterov=True), sgd(0.9, 0, True)),
    (lambda p: Adam(p, 0.05), adam()), (lambda p: AdamW(p, 0.05, weight_decay=0.1), adam(0.1)),
    (lambda p: LAMB(p, 0.05, eps=1e-8, weight_decay=0.1), adam(0.1, True)),
], ids=["sgd", "momentum", "decay", "nesterov", "adam", "adamw", "lamb"])
def test_formulas(make: Callable[[list[Tensor]], Optimizer], expected: Array) -> None:
    np.testing.assert_allclose(run(make), expected, rtol=1e-5, atol=1e-6)


def test_steps_are_one_program() -> None:
    """After the first step nothing is scheduled any more, though the learning rate changes."""
    w = Tensor([1.0, 2.0])
    opt = Adam([w], 0.1)
    counts = []
    for step in range(4):
        opt.lr.assign(np.array([0.1 / (step + 1)], np.float32))
        opt.zero_grad()
        loss = (w * w).sum()
        loss.backward()
        opt.step()
        counts.append(GlobalCounters.schedule_count)
        assert loss.uop.base.op.name == "BUFFER", "the step computes the loss in passing"
    assert counts[1] == counts[3]


def test_groups_frozen_and_equal_parameters() -> None:
    a, b, c = Tensor.ones(3), Tensor.ones(3), Tensor.ones(3, requires_grad=False)
    opt = OptimizerGroup(SGD([a, c], 0.5), SGD([b], 0.25))
    (a.sum() * 2 + b.sum() + c.sum()).backward()
    opt.step()
    assert (a.tolist(), b.tolist(), c.tolist()) == ([0.0] * 3, [0.75] * 3, [1.0] * 3)
    opt.zero_grad()
    assert a.grad is None and b.grad is None


def test_gradients_of_inputs_do_not_pile_up() -> None:
    x, w = Tensor([1.0, 2.0]), Tensor([3.0, 4.0])
    opt = SGD([w], 0.0)
    for _ in range(3):
        opt.zero_grad()
        (x * w).sum().backward()
        opt.step()
    assert x.grad is not None and x.grad.tolist() == [3, 4]
    (x * w).sum().backward()
    assert w.grad is not None and w.grad.tolist() == [2, 4]


def test_errors() -> None:
    with pytest.raises(ArgumentError, match="no tensor"):
        SGD([], 0.1)
    with pytest.raises(ArgumentError, match="lr"):
        SGD([Tensor([1.0])], -1)
    w = Tensor([1.0])
    with pytest.raises(GradientError, match="backward"):
        SGD([w], 0.1).step()
    with pytest.raises(NotImplementedError, match="_step"):
        opt = Optimizer([w], 0.1)
        w.sum().backward()
        opt.step()


def test_mlp_learns() -> None:
    Tensor.manual_seed(0)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((64, 4)).astype(np.float32)
    y = (x.sum(1) > 0).astype(np.int32)
    layers = [nn.Linear(4, 16), Tensor.relu, nn.BatchNorm(16), nn.Linear(16, 2)]
    opt = Adam(nn.state.get_parameters(layers), 0.02)
    losses = []
    with Tensor.train():
        for _ in range(20):
            opt.zero_grad()
            loss = Tensor(x).sequential(layers).sparse_categorical_crossentropy(Tensor(y))
            loss.backward()
            opt.step()
            losses.append(loss.item())
    assert losses[-1] < 0.4 * losses[0]
    assert layers[2].num_batches_tracked.item() == 20  # type: ignore[union-attr]
    answers = Tensor(x).sequential(layers).argmax(1).numpy()
    assert (answers == y).mean() > 0.85


class Block:
    def __init__(self, width: int, heads: int) -> None:
        self.heads = heads
        self.norms = [nn.LayerNorm(width), nn.LayerNorm(width)]
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def __call__(self, x: Tensor) -> Tensor:
        n, length, width = x.shape
        parts = self.qkv(self.norms[0](x)).chunk(3, -1)
        q, k, v = (t.reshape(n, length, self.heads, -1).transpose(1, 2) for t in parts)
        seen = q.scaled_dot_product_attention(k, v, is_causal=True).transpose(1, 2).reshape(n, length, width)
        x = x + self.out(seen)
        return x + self.down(self.up(self.norms[1](x)).gelu())


class GPT:
    def __init__(self, words: int, length: int, width: int) -> None:
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.block, self.norm = Block(width, 2), nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)

    def __call__(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens) + self.places(Tensor.arange(tokens.shape[1]))
        return self.head(self.norm(self.block(x)))


def test_gpt_learns() -> None:
    Tensor.manual_seed(1)
    model = GPT(11, 6, 8)
    text = (np.arange(7)[None] * np.array([[1], [2], [3], [4]])) % 11
    x, y = text[:, :-1].astype(np.int32), text[:, 1:].astype(np.int32)
    opt = AdamW(nn.state.get_parameters(model), 0.02)
    losses = []
    with Tensor.train():
        for _ in range(8):
            opt.zero_grad()
            loss = model(Tensor(x)).sparse_categorical_crossentropy(Tensor(y))
            loss.backward()
            opt.step()
            losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]
    changed = model(Tensor(np.concatenate([x[:, :-1], x[:, -1:] * 0], 1))).numpy()
    np.testing.assert_allclose(changed[:, :-1], model(Tensor(x)).numpy()[:, :-1], atol=1e-5)


def test_moments_of_half_parameters_are_float32() -> None:
    """A gradient of 1e-5 has a square of 0 in float16, and eps is 0 there: the step would be NaN or infinite."""
    w = Tensor(np.ones(2, np.float16))
    opt = nn.optim.Adam([w], lr=0.125)
    _ = (w * Tensor([1e-5, -1e-5], dtype="float16")).sum().backward()
    opt.step()
    assert w.dtype is dtypes.float16 and {t.dtype for t in (*opt.m, *opt.v)} == {dtypes.float32}
    assert np.allclose(w.numpy(), [0.875, 1.125], atol=2e-3)
