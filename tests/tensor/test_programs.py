"""Random programs equal the interpreter's results, by default and with NOOPT=1; and long programs."""
from __future__ import annotations

import copy
import gc
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinsmith import Context, Tensor, TinyJit, dtypes
from tinsmith.ir import Ops
from tinsmith.ir.interpret.tensor import evaluate
from tinsmith.ir.uop import toposort

SHAPES = [(), (3,), (2, 3), (1, 4), (2, 1, 3)]
UNARY = ["neg", "abs", "square", "exp", "sin", "floor", "tanh", "relu", "isnan", "sign"]
BINARY = ["add", "sub", "mul", "maximum", "minimum", "lt", "eq"]
REDUCE = ["sum", "max", "min", "mean", "argmax", "softmax", "var"]
MOVE = ["T", "flip", "pad", "unsqueeze", "flatten", "slice", "cat", "repeat", "pick"]


JUMPS = ("floor", "sign", "lt", "eq", "argmax")  # of rounded values these could come out either way
ROUNDS = ("exp", "sin", "tanh", "mean", "softmax", "var")


def _grow(tensors: list[tuple[Tensor, bool]], choice: int, rng: np.random.Generator) -> tuple[Tensor, bool]:
    """Return one more tensor, and True if its values are exact."""
    x, exact = tensors[int(rng.integers(len(tensors)))]
    name = (UNARY + BINARY * 2 + REDUCE + MOVE)[choice % (len(UNARY) + 2 * len(BINARY) + len(REDUCE) + len(MOVE))]
    axis = int(rng.integers(max(x.ndim, 1)))
    if name in JUMPS and not exact:
        name = "neg"
    if name in ("exp", "square", "mul") and not x.dtype.is_bool:
        x = x.clamp(-3, 3)
    exact = exact and name not in ROUNDS
    if name in BINARY:
        y, also = tensors[int(rng.integers(len(tensors)))]
        y = y if also or name not in JUMPS else y.isnan()
        try:
            return getattr(x, name)(y), exact and also
        except ValueError:  # they do not broadcast
            return getattr(x, name)(y.max()), exact and also
    if name in REDUCE:
        return getattr(x, name)(axis) if x.ndim else x, exact
    if not x.ndim and name in MOVE:
        return x.reshape(1), exact
    moves = {"T": lambda: x.T, "flip": lambda: x.flip(axis), "unsqueeze": lambda: x.unsqueeze(axis),
             "flatten": x.flatten, "pad": lambda: x.pad([(1, 0)] * x.ndim, value=1), "slice": lambda: x[::2],
             "cat": lambda: x.cat(x, dim=axis), "repeat": lambda: x.repeat(*[2] * x.ndim), "pick": lambda: x[[0, -1]]}
    return moves[name]() if name in moves else getattr(x, name)(), exact


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=30), st.integers(0, 1 << 30))
def test_random_programs(choices: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    tensors: list[tuple[Tensor, bool]] = []
    for shape in SHAPES:
        dtype = [dtypes.float32, dtypes.float64, dtypes.int32][int(rng.integers(3))]
        tensors.append((Tensor(np.asarray(rng.integers(-3, 4, shape)).astype(dtype.numpy)).realize(), True))
    for choice in choices:
        grown = _grow(tensors, choice, rng)
        if grown[0].numel() < 2000 and grown[0].ndim < 6:
            tensors.append(grown)
    result = tensors[-1][0]
    buffers = {n: n.arg.numpy() for n in toposort(result.uop) if n.op is Ops.BUFFER}
    (want,) = evaluate([result.uop], buffers)
    for options in ({}, {"NOOPT": 1}):
        with Context(**options):
            got = result._new(result.uop.contiguous()).numpy()
        if result.dtype.is_float:
            scale = np.nanmax(np.abs(np.where(np.isfinite(want), want, 0)), initial=1)
            np.testing.assert_allclose(got, want, rtol=2e-4, atol=1e-4 * scale)
        else:
            np.testing.assert_array_equal(got, want)


def long_chain(x: Tensor, count: int) -> Tensor:
    for _ in range(count):
        x = x + 1
    return x


def test_a_chain_of_30000_operations() -> None:
    x = Tensor([1.0, 2.0]).realize()
    y = long_chain(x, 30_000)
    assert "add" in repr(y) and "add" in str(y.explain())
    for copy_of_y in (copy.deepcopy(y), pickle.loads(pickle.dumps(y)), y):
        assert copy_of_y.tolist() == [30_001.0, 30_002.0]
    del y
    gc.collect()


def test_a_long_chain_backwards_and_captured() -> None:
    x = Tensor([1.0], requires_grad=True)
    y = x
    for _ in range(3_000):
        y = y * 1.0001 + x
    y.sum().backward()
    want = 1.0001 ** 3_000 + sum(1.0001 ** n for n in range(3_000))
    assert x.grad is not None and abs(x.grad.item() / want - 1) < 1e-3
    step = TinyJit(lambda x: long_chain(x, 3_000))
    assert [step(Tensor([float(n)]).realize()).item() for n in range(4)] == [3000.0 + n for n in range(4)]


def test_a_sum_of_3000_tensors() -> None:
    parts = [Tensor([float(n)], requires_grad=True) for n in range(3_000)]
    total: Any = sum(p * p for p in parts)
    total.sum().backward()
    assert total.item() == pytest.approx(sum(n * n for n in range(3_000)), rel=1e-5)
    assert [p.grad.item() for p in parts[::1000] if p.grad is not None] == [0.0, 2000.0, 4000.0]
