"""Products of few rows by a matrix of which memory runs along the sum, plain and quantized."""
from __future__ import annotations

import random

import numpy as np
import pytest

from tests.properties.runner import FEW
from tinsmith import Context, Tensor
from tinsmith.nn.io.ggml import KINDS, matrix


def _weights(kind: str, count: int, length: int, rng: np.random.Generator) -> Tensor:
    if kind in KINDS:
        size, nbytes = KINDS[kind][:2]
        packed = rng.integers(0, 50, count * length // size * nbytes, dtype=np.uint8)
        return matrix(Tensor(packed).realize(), kind, (count, length))
    return Tensor(rng.standard_normal((count, length), np.float32)).cast(kind).realize()


@pytest.mark.parametrize("seed", range(max(FEW // 5, 1)))
@pytest.mark.parametrize("kind", ["float32", "float16", "bfloat16", "float64", "Q8_0", "Q4_0", "Q4_K", "Q6_K", "Q5_1",
                                  "Q2_K", "Q3_K", "Q5_K", "IQ4_XS", "MXFP4"])
def test_few_rows(kind: str, seed: int) -> None:
    """Rows, columns, lengths, batches and epilogues at random; no opt that the planner offers is refused."""
    draw, rng = random.Random(f"{kind} {seed}"), np.random.default_rng(seed)
    rows, columns = draw.choice([1, 1, draw.randint(2, 33)]), draw.choice([1, 2, 3, 5, 17, 64, 100, 333])
    unit = KINDS[kind].size if kind in KINDS else 1
    length = unit * draw.choice([1, 2, 3, 5]) if unit > 1 else draw.choice([1, 7, 8, 16, 31, 64, 100, 257, 1000])
    w, lead = _weights(kind, columns, length, rng), draw.choice([(), (), (3,)])
    x = Tensor(rng.standard_normal((*lead, rows, length), np.float32)).cast(w.dtype).realize()
    with Context(CHECK_IR=1, DYNAMIC=0):
        got = x.linear(w.T)
        got = (got + 1).relu() if draw.random() < 0.5 else got + 1
        found = got.cast("float64").numpy()
    exact = x.cast("float64").numpy() @ w.cast("float64").numpy().T + 1
    want = np.maximum(exact, 0) if found.min() >= 0 and exact.min() < 0 else exact
    scale = np.abs(exact).max(initial=1)
    error = {"float16": 2e-3, "bfloat16": 1.6e-2, "float64": 1e-13}.get(kind, 1e-5)
    np.testing.assert_allclose(found, want, rtol=0, atol=error * scale)
