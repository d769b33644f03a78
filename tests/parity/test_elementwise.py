"""Elementwise operations and reductions against PyTorch, special values included."""
from __future__ import annotations

import functools
from typing import Any

import numpy as np

from tests.parity.helpers import SPECIAL, compare, random, table, torch
from tinsmith import Tensor, special
from tinsmith.tensor.math.table import ELEMENTWISE, FUNCTIONS, REDUCTIONS, ElementwiseRow

F = torch.nn.functional

def pytorchs(name: str, torch_name: str) -> Any:
    return functools.reduce(getattr, (torch_name or name).split("."), torch)


ROWS = {name: (getattr(Tensor, name), pytorchs(name, row.torch), row) for name, row in ELEMENTWISE.items()}
UNARY = {name: row for name, row in ROWS.items() if row[2].operands == 1 and "f" in row[2].takes}
BINARY = {name: row for name, row in ROWS.items() if row[2].operands == 2}
WITH_ARGUMENTS: dict[str, tuple[Any, Any]] = {
    "leaky_relu": (lambda x: x.leaky_relu(0.2), lambda x: F.leaky_relu(x, 0.2)),
    "celu": (lambda x: x.celu(2.0), lambda x: F.celu(x, 2.0)),
    "gelu": (lambda x: x.gelu("tanh"), lambda x: F.gelu(x, approximate="tanh")),
}


def special_values(row: ElementwiseRow) -> np.ndarray[Any, Any]:
    return SPECIAL if row.torch_nan else SPECIAL[~np.isnan(SPECIAL)]


@table(UNARY)
def test_unary(row: Any) -> None:
    ours, theirs, facts = row
    compare(ours, theirs, random(5, 7), gradients=facts.gives == "same")


@table(UNARY)
def test_unary_special_values(row: Any) -> None:
    ours, theirs, facts = row
    values = special_values(facts) if facts.edges else SPECIAL[np.isfinite(SPECIAL) & (abs(SPECIAL) < 100)]
    compare(ours, theirs, values, gradients=False, atol=1e-6)


@table(WITH_ARGUMENTS)
def test_activations_with_arguments(row: Any) -> None:
    compare(*row, random(5, 7))


@table({name: (name, row) for name, row in FUNCTIONS.items()})
def test_rows_of_the_table(row: Any) -> None:
    name, row = row
    theirs = pytorchs(name, row.torch)
    x = np.random.default_rng(0).uniform(row.low, row.high, (5, 7))  # float64: PyTorch's gradients in float32 cancel
    compare(getattr(Tensor, name), theirs, x, rtol=1e-8, atol=1e-9)
    if row.torch.startswith("special."):
        compare(getattr(special, row.torch.removeprefix("special.")), theirs, x, rtol=1e-8, atol=1e-9)


@table({name: (getattr(Tensor, name), pytorchs(name, row.torch)) for name, row in FUNCTIONS.items() if row.edges})
def test_special_values_of_functions(row: Any) -> None:
    compare(*row, SPECIAL[~(abs(SPECIAL) > 100) | ~np.isfinite(SPECIAL)], gradients=False, atol=1e-6)


@table(BINARY)
def test_binary(row: Any) -> None:
    ours, theirs, facts = row
    if "f" not in facts.takes:
        x, y = (np.random.default_rng(n).integers(0, 9, shape) for n, shape in ((0, (4, 1, 5)), (1, (3, 1))))
        compare(ours, theirs, x.astype(np.int32), y.astype(np.int32), gradients=False)
        return
    x, y = (np.random.default_rng(n).uniform(facts.low, facts.high, shape).astype(np.float32)
            for n, shape in ((0, (4, 1, 5)), (1, (3, 1))))
    compare(ours, theirs, x, y, gradients=facts.gives == "same" and facts.gradient)
    if facts.edges:
        values = special_values(facts)
        compare(ours, theirs, values[:, None], values[None], gradients=False)


def test_a_choice_by_a_comparison() -> None:
    compare(lambda x, y: (x < y).where(x, y * 2), lambda x, y: torch.where(x < y, x, y * 2), SPECIAL[:, None],
            SPECIAL[None], gradients=False)


REDUCE: dict[str, tuple[Any, Any]] = {
    **{name: (functools.partial(getattr(Tensor, name), axis=1), functools.partial(pytorchs(name, row.torch), dim=1))
       for name, row in REDUCTIONS.items() if row.gives != "bool"},
    "sum all": (lambda x: x.sum(), lambda x: x.sum()), "mean of two": (lambda x: x.mean((0, 2)),) * 2,
    "min of two": (lambda x: x.min((0, 1)), lambda x: x.amin((0, 1))),
    "var": (lambda x: x.var(1), lambda x: x.var(1)),
    "std": (lambda x: x.std(1, correction=0), lambda x: x.std(1, correction=0)),
    "softmax": (lambda x: x.softmax(1), lambda x: x.softmax(1)),
    "log_softmax": (lambda x: x.log_softmax(), lambda x: x.log_softmax(-1)),
}


@table({k: (k, *v) for k, v in REDUCE.items()})
def test_reductions(row: Any) -> None:
    _, ours, theirs = row
    compare(ours, theirs, random(3, 4, 5))


@table({k: (k, *v) for k, v in REDUCE.items() if k in REDUCTIONS})
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
