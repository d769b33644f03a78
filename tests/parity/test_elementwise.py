"""Elementwise operations and reductions against PyTorch, special values included."""
from __future__ import annotations

import functools
from typing import Any

import numpy as np

from tests.parity.helpers import SPECIAL, compare, random, table, torch
from tinsmith import Tensor, special
from tinsmith.tensor.math.table import FUNCTIONS

F = torch.nn.functional

UNARY: dict[str, tuple[Any, Any]] = {
    name: (getattr(Tensor, name), getattr(torch, name))
    for name in ("exp", "exp2", "sin", "cos", "tanh", "abs", "neg", "square", "erf", "floor", "ceil", "trunc", "round",
                 "sign", "reciprocal", "sigmoid")
} | {
    "relu": (Tensor.relu, F.relu), "leaky_relu": (lambda x: x.leaky_relu(0.2), lambda x: F.leaky_relu(x, 0.2)),
    "elu": (Tensor.elu, F.elu), "celu": (lambda x: x.celu(2.0), lambda x: F.celu(x, 2.0)),
    "selu": (Tensor.selu, F.selu),
    "relu6": (Tensor.relu6, F.relu6), "softplus": (Tensor.softplus, F.softplus), "mish": (Tensor.mish, F.mish),
    "silu": (Tensor.silu, F.silu), "logsigmoid": (Tensor.logsigmoid, F.logsigmoid),
    "gelu": (Tensor.gelu, F.gelu), "gelu_tanh": (lambda x: x.gelu("tanh"), lambda x: F.gelu(x, approximate="tanh")),
    "hardtanh": (Tensor.hardtanh, F.hardtanh), "hardsigmoid": (Tensor.hardsigmoid, F.hardsigmoid),
    "hardswish": (Tensor.hardswish, F.hardswish), "softsign": (Tensor.softsign, F.softsign),
    "tanhshrink": (Tensor.tanhshrink, F.tanhshrink),
}
POSITIVE = {name: (getattr(Tensor, name), getattr(torch, name)) for name in ("log", "log2", "sqrt", "rsqrt")}
NO_LIMIT = ("sin", "cos", "silu", "mish", "gelu", "gelu_tanh", "hardswish", "softsign", "tanhshrink", "elu", "celu",
            "selu")


@table({k: (k, *v) for k, v in UNARY.items()})
def test_unary(row: Any) -> None:
    _, ours, theirs = row
    compare(ours, theirs, random(5, 7))


@table({k: (k, *v) for k, v in UNARY.items()})
def test_unary_special_values(row: Any) -> None:
    name, ours, theirs = row
    values = SPECIAL if name not in NO_LIMIT else SPECIAL[np.isfinite(SPECIAL) & (abs(SPECIAL) < 100)]
    if name == "sign":  # of NaN it is NaN, as in NumPy; PyTorch says 0
        values = values[~np.isnan(values)]
    compare(ours, theirs, values, gradients=False, atol=1e-6)


@table({name: (name, row) for name, row in FUNCTIONS.items()})
def test_rows_of_the_table(row: Any) -> None:
    name, row = row
    theirs = functools.reduce(getattr, (row.torch or name).split("."), torch)
    x = np.random.default_rng(0).uniform(row.low, row.high, (5, 7))  # float64: PyTorch's gradients in float32 cancel
    compare(getattr(Tensor, name), theirs, x, rtol=1e-8, atol=1e-9)
    if row.torch.startswith("special."):
        compare(getattr(special, row.torch.removeprefix("special.")), theirs, x, rtol=1e-8, atol=1e-9)


@table({k: (k, *v) for k, v in POSITIVE.items()})
def test_positive(row: Any) -> None:
    _, ours, theirs = row
    compare(ours, theirs, abs(random(5, 7)) + 0.1)
    compare(ours, theirs, SPECIAL, gradients=False)


BINARY: dict[str, tuple[Any, Any]] = {
    "add": (lambda x, y: x + y,) * 2, "sub": (lambda x, y: x - y,) * 2, "mul": (lambda x, y: x * y,) * 2,
    "div": (lambda x, y: x / y,) * 2, "maximum": (Tensor.maximum, torch.maximum),
    "minimum": (Tensor.minimum, torch.minimum),
}


@table({k: (k, *v) for k, v in BINARY.items()})
def test_binary(row: Any) -> None:
    _, ours, theirs = row
    compare(ours, theirs, random(4, 1, 5), random(3, 1, seed=1) + 3)
    compare(ours, theirs, SPECIAL[:, None], SPECIAL[None], gradients=False)


COMPARE: dict[str, tuple[Any, Any]] = {
    "lt": (lambda x, y: x < y,) * 2, "le": (lambda x, y: x <= y,) * 2, "gt": (lambda x, y: x > y,) * 2,
    "ge": (lambda x, y: x >= y,) * 2, "eq": (lambda x, y: x == y,) * 2, "ne": (lambda x, y: x != y,) * 2,
    "where": (lambda x, y: (x < y).where(x, y * 2), lambda x, y: torch.where(x < y, x, y * 2)),
}


@table({k: (k, *v) for k, v in COMPARE.items()})
def test_comparisons(row: Any) -> None:
    _, ours, theirs = row
    compare(ours, theirs, SPECIAL[:, None], SPECIAL[None], gradients=False)


REDUCE: dict[str, tuple[Any, Any]] = {
    "sum": (lambda x: x.sum(1), lambda x: x.sum(1)), "sum all": (lambda x: x.sum(), lambda x: x.sum()),
    "mean": (lambda x: x.mean((0, 2)), lambda x: x.mean((0, 2))), "prod": (lambda x: x.prod(1), lambda x: x.prod(1)),
    "max": (lambda x: x.max(1), lambda x: x.amax(1)), "min": (lambda x: x.min((0, 1)), lambda x: x.amin((0, 1))),
    "var": (lambda x: x.var(1), lambda x: x.var(1)),
    "std": (lambda x: x.std(1, correction=0), lambda x: x.std(1, correction=0)),
    "softmax": (lambda x: x.softmax(1), lambda x: x.softmax(1)),
    "log_softmax": (lambda x: x.log_softmax(), lambda x: x.log_softmax(-1)),
    "logsumexp": (lambda x: x.logsumexp(1), lambda x: x.logsumexp(1)),
}


@table({k: (k, *v) for k, v in REDUCE.items()})
def test_reductions(row: Any) -> None:
    _, ours, theirs = row
    compare(ours, theirs, random(3, 4, 5))


@table({k: (k, *v) for k, v in REDUCE.items() if k in ("sum", "mean", "max", "min", "prod")})
def test_reductions_of_special_values(row: Any) -> None:
    _, ours, theirs = row
    x = np.array([[[1, np.nan], [np.inf, 3], [2, -np.inf]], [[np.inf, -np.inf], [-np.inf, 0], [0, -0.0]]], np.float32)
    compare(ours, theirs, x, gradients=False)


@table({"argmax": (Tensor.argmax, torch.argmax), "argmin": (Tensor.argmin, torch.argmin)})
def test_positions(row: Any) -> None:
    ours, theirs = row
    x = np.array([[1, 3, 3, 0], [2, 2, 2, 2], [5, -1, 0, 5]], np.float32)
    compare(lambda t: ours(t, 1), lambda t: theirs(t, 1), x, gradients=False)
    compare(lambda t: ours(t, 0), lambda t: theirs(t, 0), random(4, 5), gradients=False)


MOVE: dict[str, tuple[Any, Any]] = {
    "permute": (lambda x: x.permute(2, 0, 1), lambda x: x.permute(2, 0, 1)),
    "flip": (lambda x: x.flip((0, 2)), lambda x: x.flip((0, 2))),
    "slices": (lambda x: x[1:, ::2, -3:], lambda x: x[1:, ::2, -3:]),
    "pad": (lambda x: x.pad((1, 2, 0, 1), value=3.0), lambda x: F.pad(x, (1, 2, 0, 1), value=3.0)),
    "cat": (lambda x: x.cat(x * 2, dim=1), lambda x: torch.cat([x, x * 2], 1)),
    "stack": (lambda x: x.stack(x * 2, dim=2), lambda x: torch.stack([x, x * 2], 2)),
    "expand": (lambda x: x[:, :1].expand(3, 6, 5), lambda x: x[:, :1].expand(3, 6, 5)),
    "repeat": (lambda x: x.repeat(2, 1, 3), lambda x: x.repeat(2, 1, 3)),
}


@table({k: (k, *v) for k, v in MOVE.items()})
def test_movement(row: Any) -> None:
    _, ours, theirs = row
    compare(ours, theirs, random(3, 4, 5))


def test_matmul_and_linear() -> None:
    compare(lambda x, y: x @ y, lambda x, y: x @ y, random(2, 3, 4), random(4, 5, seed=1))
    compare(lambda x, y: x.matmul(y), lambda x, y: x.matmul(y), random(2, 1, 3, 4), random(3, 4, 5, seed=1))
    compare(lambda x, w, b: x.linear(w.transpose(), b), F.linear, random(2, 3), random(4, 3, seed=1), random(4, seed=2))


def test_gathers() -> None:
    index = np.array([[0, 2], [1, 1], [3, 0]])
    compare(lambda x, i: x.gather(1, i), lambda x, i: x.gather(1, i), random(3, 4), index)
    compare(lambda x, i: x[i], lambda x, i: x[i], random(4, 3), index)
