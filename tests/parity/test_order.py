"""Scans, sorting and interpolation against PyTorch, with gradients."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.parity.helpers import SPECIAL, compare, random, table, torch
from tinsmith import Tensor

VALUES: dict[str, Any] = {
    "cumsum": (lambda x: x.cumsum(1), lambda x: x.cumsum(1)),
    "cumprod": (lambda x: x.cumprod(0), lambda x: x.cumprod(0)),
    "cummax": (lambda x: x.cummax(1).values, lambda x: x.cummax(1).values),
    "cummin": (lambda x: x.cummin(0).values, lambda x: x.cummin(0).values),
    "logcumsumexp": (lambda x: x.logcumsumexp(1), lambda x: x.logcumsumexp(1)),
    "sort": (lambda x: x.sort(0).values, lambda x: x.sort(0).values),
    "descending": (lambda x: x.sort(-1, descending=True)[0], lambda x: x.sort(-1, descending=True)[0]),
    "topk": (lambda x: x.topk(3).values, lambda x: x.topk(3).values),
    "kthvalue": (lambda x: x.kthvalue(2, 1).values, lambda x: x.kthvalue(2, 1).values),
    "median": (lambda x: x.median(1).values, lambda x: x.median(1).values),
    "median of all": (lambda x: x.median(), lambda x: x.median()),
}


@table(VALUES)
@pytest.mark.parametrize("shape", [(4, 7), (5, 300), (300, 5)], ids=str)
def test_values_and_gradients(row: Any, shape: tuple[int, int]) -> None:
    compare(*row, random(*shape), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["cummax", "cummin", "sort", "topk"])
@pytest.mark.parametrize("repeat", [1, 20])
def test_positions_and_special_values(name: str, repeat: int) -> None:
    x = np.random.default_rng(0).permutation(np.tile(SPECIAL, repeat))
    arguments: dict[str, Any] = {"topk": {"k": 5}, "sort": {"stable": True}}.get(name, {})
    if name.startswith("cum"):
        ours, theirs = getattr(Tensor(x), name)(0), getattr(torch.tensor(x), name)(0)
    else:
        ours, theirs = getattr(Tensor(x), name)(**arguments), getattr(torch, name)(torch.tensor(x), **arguments)
    np.testing.assert_array_equal(ours.values.numpy(), theirs.values.numpy())
    if name != "topk":  # PyTorch's does not say which of equal elements it takes
        np.testing.assert_array_equal(ours.indices.numpy(), theirs.indices.numpy())


def test_unique() -> None:
    x = np.random.default_rng(0).integers(0, 9, (6, 7))
    ours = Tensor(x).unique(return_inverse=True, return_counts=True)
    theirs = torch.unique(torch.tensor(x), return_inverse=True, return_counts=True)
    for a, b in zip(ours, theirs):
        np.testing.assert_array_equal(a.numpy(), b.numpy())


@pytest.mark.parametrize("mode, align", [("nearest", None), ("nearest-exact", None), ("bilinear", False),
                                         ("bilinear", True)])
@pytest.mark.parametrize("size", [(1, 1), (9, 4), (16, 20)], ids=str)
def test_interpolate(mode: str, align: Any, size: tuple[int, int]) -> None:
    compare(lambda x: x.interpolate(size, mode, bool(align)),
            lambda x: torch.nn.functional.interpolate(x, size, mode=mode, align_corners=align), random(2, 3, 8, 5))
