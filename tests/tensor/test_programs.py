"""Random programs: what runs is what the interpreter says, by default and with NOOPT=1."""
from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tinsmith import Context, Tensor, dtypes
from tinsmith.ir import Ops
from tinsmith.ir.evaluate import evaluate
from tinsmith.ir.uop import toposort

SHAPES = [(), (3,), (2, 3), (1, 4), (2, 1, 3)]
UNARY = ["neg", "abs", "square", "exp", "sin", "floor", "tanh", "relu", "isnan", "sign"]
BINARY = ["add", "sub", "mul", "maximum", "minimum", "lt", "eq"]
REDUCE = ["sum", "max", "min", "mean", "argmax", "softmax", "var"]
MOVE = ["T", "flip", "pad", "unsqueeze", "flatten", "slice", "cat", "repeat", "pick"]


JUMPS = ("floor", "sign", "lt", "eq", "argmax")  # of rounded values these could come out either way
ROUNDS = ("exp", "sin", "tanh", "mean", "softmax", "var")


def _grow(tensors: list[tuple[Tensor, bool]], choice: int, rng: np.random.Generator) -> tuple[Tensor, bool]:
    """One more tensor, and whether its values are exact."""
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
