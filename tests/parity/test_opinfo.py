"""PyTorch's own operator samples (OpInfo): some random ones (their number is ``OPINFO``), and regressions they
found."""
from __future__ import annotations

import os
import random
from typing import Any

import numpy as np
import pytest

from tests.parity import opinfo
from tests.parity.helpers import random as draw
from tests.parity.helpers import same, table, torch
from tinsmith import Tensor

COUNT = int(os.environ.get("OPINFO", "48"))
X, M, V = draw(3, 4, 5), draw(4, 5), draw(6)
TIED = np.array([[1, 1, 2], [1, 1, 2], [3, 0, 1], [1, 1, 2]])
COUNTS, WEIGHTS = np.array([2, 1, 3, 1, 1]), abs(draw(5, seed=1))


def pooled(x: Any, *arguments: Any) -> Any:
    """Return PyTorch's function or our method."""
    return x.avg_pool2d(*arguments) if isinstance(x, Tensor) else torch.nn.functional.avg_pool2d(x, *arguments)


FOUND: dict[str, tuple[Any, ...]] = {  # the same expression there and here
    "avg_pool2d of int64": (lambda x: pooled(x, 2), np.arange(-8, 8).reshape(1, 4, 4)),
    "avg_pool2d of int64, counted": (lambda x: pooled(x, 2, 2, 1, False, False), np.arange(-8, 8).reshape(1, 4, 4)),
    "avg_pool2d of int64, divided": (lambda x: pooled(x, 2, 2, 0, True, True, -3), np.arange(-12, 13).reshape(1, 5, 5)),
    "nonzero of a number": (lambda x: x.nonzero(as_tuple=True), np.array(3)),
    "square of bool": (lambda x: x.square(), np.array([True, False])),
    "heaviside of bool": (lambda x, y: x.heaviside(y), np.array([True, False]), np.array([True, True])),
    "masked_select of a wider mask": (lambda x, y: x.masked_select(y), M[:1], M > 0),
    "scatter_reduce of bool": (lambda x, i, y: x.scatter_reduce(0, i, y, "sum", include_self=False),
                               np.array([True, True, False]), np.array([0, 0, 2]), np.array([True, False, True])),
    "unique slices": (lambda x: x.unique(dim=0, return_inverse=True, return_counts=True), TIED),
    "unique columns": (lambda x: x.unique(sorted=True, dim=1), TIED),
    "unique_consecutive slices": (lambda x: x.unique_consecutive(True, True, 0), TIED),
    "unique_consecutive": (lambda x: x.unique_consecutive(True, True), TIED),
    "tensor_split at a tensor's places": (lambda x, i: x.tensor_split(i, 1), X, np.array([1, 3])),
    "repeat_interleave of a tensor": (lambda x, n: x.repeat_interleave(n, 1), M, COUNTS),
    "repeat_interleave of one number": (lambda x, n: x.repeat_interleave(n, 0), M, np.array(2)),
    "unfold of a number": (lambda x: x.unfold(0, 1, 1), np.array(2.5, np.float32)),
    "nanmedian of a number": (lambda x: x.nanmedian(0, True), np.array(2.5, np.float32)),
    "histogram density": (lambda x: x.histogram(4, range=(-1, 1), density=True), V),
    "histogram of one number": (lambda x: x.histogram(2), np.array(2.5, np.float32)),
    "histogram of nothing": (lambda x: x.histogram(2), V[:0]),
    "cov of counted": (lambda x, n: x.cov(fweights=n), M, COUNTS),
    "cov of weighted": (lambda x, w: x.cov(aweights=w, correction=0), M, WEIGHTS),
    "cov of both": (lambda x, n, w: x.cov(fweights=n, aweights=w), M, COUNTS, WEIGHTS),
    "var with a part taken off": (lambda x: x.var(1, correction=0.5), M),
    "var with more taken off": (lambda x: x.var(1, correction=9), M),
}


@table(FOUND)
def test_what_the_samples_found(row: tuple[Any, ...]) -> None:
    constant = [FOUND[n] for n in ("histogram density", "histogram of nothing", "histogram of one number",
                                   "var with more taken off")]
    same(row[0], row[0], *row[1:], gradients=row[1].dtype.kind == "f" and row not in constant)


def test_functions_of_lists_and_keywords() -> None:
    row, other = draw(4), draw(4, seed=1)
    same(lambda *x: Tensor.stack(x, 1), lambda *x: torch.stack(x, 1), row, other)
    same(lambda *x: Tensor.meshgrid(x), lambda *x: torch.meshgrid(x, indexing="ij"), row, other)
    line = np.sort(row)
    same(lambda x, y: x.searchsorted(y, out_int32=True), lambda x, y: torch.searchsorted(x, y, out_int32=True),
         line, other)
    order = np.argsort(row)
    same(lambda x, y, i: x.searchsorted(y, sorter=i), lambda x, y, i: torch.searchsorted(x, y, sorter=i),
         row, other, order)
    same(lambda x, y: x.bucketize(y, out_int32=True), lambda x, y: torch.bucketize(x, y, out_int32=True), other, line)
    assert Tensor.triu_indices(2, 3, dtype="int64").tolist() == torch.triu_indices(2, 3).tolist()


@pytest.mark.parametrize("dtype", ["int64", "int32", "uint8"])
@pytest.mark.parametrize("line", [(3.1,), (0.1, 7.9, 4.0), (2.9, 5.2, 1.5), (1.0, 5.000001, 2.0), (2, 9, 3)], ids=str)
def test_lines_of_integers_between_floats(line: tuple[float, ...], dtype: str) -> None:
    assert Tensor.arange(*line, dtype=dtype).tolist() == torch.arange(*line, dtype=getattr(torch, dtype)).tolist()


def test_gradient_of_unpooled_values_that_share_a_place() -> None:
    values, places = draw(1, 1, 2, 2), np.array([[[[0, 0], [3, 0]]]])
    x, y = Tensor(values), torch.tensor(values, requires_grad=True)
    seed = draw(1, 1, 4, 4, seed=3)
    mine = (x.max_unpool2d(Tensor(places), 2) * Tensor(seed)).sum().gradient(x)[0]
    (torch.nn.functional.max_unpool2d(y, torch.tensor(places), 2) * torch.tensor(seed)).sum().backward()
    np.testing.assert_array_equal(mine.numpy(), y.grad.numpy())


@pytest.mark.parametrize("seed", range(COUNT))
def test_samples(seed: int) -> None:
    rng = random.Random(seed)
    operators = [op for op in opinfo.operators() if op.name not in opinfo.OPEN]
    for _ in range(20):  # some have no sample that can be compared
        op = rng.choice(operators)
        kind = rng.choice([k for k in opinfo.KINDS if k in op.dtypes] or [torch.float32])
        found = list(opinfo.chosen(op, kind, 0, 12))
        if found and opinfo.check(*rng.choice(found)):
            return
    raise AssertionError("no sample could be compared")
