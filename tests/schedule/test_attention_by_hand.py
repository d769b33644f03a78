"""Hand-written attention with losses that change what its gradients sum: no kernel recomputes it repeatedly, and each
gradient equals the one without an optimizer."""
from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.schedule.helpers import work
from tinsmith.core.settings import Context
from tinsmith.ir import Ops
from tinsmith.tensor.tensor import Tensor

B, H, N, E = 2, 4, 64, 16
SEEN = np.tril(np.ones((N, N), bool))

ATTENTION: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "softmax": lambda q, k, v: scores(q, k).softmax(-1) @ v,
    "masked": lambda q, k, v: scores(q, k).masked_fill(Tensor(~SEEN), -np.inf).softmax(-1) @ v,
    "softmax of columns": lambda q, k, v: scores(q, k).softmax(-2) @ v,
    "relu": lambda q, k, v: scores(q, k).relu() @ v,
    "sigmoid": lambda q, k, v: scores(q, k).sigmoid() @ v,
    "divided afterwards": lambda q, k, v: divided(scores(q, k).exp(), v),
    "capped": lambda q, k, v: ((scores(q, k) / 3).tanh() * 3).softmax(-1) @ v,
    "entropy": lambda q, k, v: with_entropy(scores(q, k).softmax(-1), v),
}
WEIGHT = np.random.default_rng(9).standard_normal((B, H, N, E)).astype(np.float32)
LOSS: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": Tensor.sum, "squares": lambda y: (y * y).sum(), "weighted": lambda y: (y * Tensor(WEIGHT)).sum(),
}


def scores(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.transpose(-1, -2) * 0.25


def divided(weights: Tensor, v: Tensor) -> Tensor:
    return (weights @ v) / weights.sum(-1, keepdim=True)


def with_entropy(p: Tensor, v: Tensor) -> Tensor:
    return p @ v + (p * (p + 1e-6).log()).sum(-1, keepdim=True)


def gradients(attend: str, loss: str) -> list[Tensor]:
    random = np.random.default_rng(3)
    q, k, v = (Tensor(random.standard_normal((B, H, N, E)).astype(np.float32), requires_grad=True) for _ in range(3))
    return LOSS[loss](ATTENTION[attend](q, k, v)).gradient(q, k, v)


@pytest.mark.parametrize(("attend", "loss"), [*((a, "weighted") for a in ATTENTION), *(
    (a, loss) for a in ("softmax", "masked", "entropy") for loss in LOSS if loss != "weighted")])
def test_gradients(attend: str, loss: str) -> None:
    with Context(CHECK_IR=1):
        compiled = Tensor.schedule(*gradients(attend, loss))
    scored = B * H * N * N * E
    tanh = 3 * Ops.TANH.cost * B * H * N * N if attend == "capped" else 0  # in the kernel of each of three contractions
    assert work(compiled) < 24 * scored + tanh  # some seven to ten contractions, and what is done to each score
    found = [g.numpy() for g in gradients(attend, loss)]
    with Context(NOOPT=1):
        right = [g.numpy() for g in gradients(attend, loss)]
    for got, want in zip(found, right, strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-4 * max(np.abs(want).max(), 1e-2))
