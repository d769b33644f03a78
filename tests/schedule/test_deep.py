"""Graphs deeper than Python's stack can be recorded, scheduled, computed, differentiated, shown and pickled."""
from __future__ import annotations

import copy
import pickle
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tinsmith import Tensor

DEEP = 3 * sys.getrecursionlimit()
X = np.arange(4, dtype=np.float64)
Step = Callable[[Any, Any, int], Any]
BOTH: dict[str, Step] = {  # what NumPy's arrays do, too
    "constants": lambda y, x, i: y + 1, "mixed": lambda y, x, i: (y * 0.5, y - 1, y + x, -y)[i % 4],
    "shapes": lambda y, x, i: y.reshape(2, 2).T.reshape(4) + 1,
}


def deep(step: Step, x: Any, count: int = DEEP) -> Any:
    y = x
    for i in range(count):
        y = step(y, x, i)
    return y


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize("device", ["CPU", "PYTHON"])
def test_a_long_chain(name: str, device: str) -> None:
    np.testing.assert_allclose(deep(BOTH[name], Tensor(X, device=device).realize()).numpy(), deep(BOTH[name], X))


def test_a_sum_of_many_tensors() -> None:
    tensors = [Tensor([float(i)], requires_grad=True).realize() for i in range(DEEP)]
    total = sum(tensors)
    assert total.tolist() == [DEEP * (DEEP - 1) / 2]
    (total * 2).sum().backward()
    assert {tensors[i].grad.item() for i in (0, DEEP // 2, DEEP - 1)} == {2.0}


def test_a_gradient_through_a_long_chain() -> None:
    x = Tensor(X, requires_grad=True)
    deep(lambda y, x, i: y * 1.001, x).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), 1.001**DEEP, rtol=1e-9)


def test_a_long_chain_is_shown_and_copied() -> None:
    y = deep(BOTH["constants"], Tensor(X).realize())
    assert "add" in repr(y) and repr(y.uop).startswith("ADD(") and "add" in y._repr_html_()
    for other in (pickle.loads(pickle.dumps(y)), copy.deepcopy(y), copy.copy(y)):
        assert other.tolist() == (X + DEEP).tolist()


def test_many_writes() -> None:
    x = Tensor(X).realize()
    deep(lambda y, x, i: x.add_(1), x)
    assert x.tolist() == (X + DEEP).tolist()
