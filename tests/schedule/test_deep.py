"""Graphs deeper than Python's stack can be recorded, scheduled, computed, differentiated, shown and pickled."""
from __future__ import annotations

import copy
import pickle
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np
import pytest

from tests.counting import undisturbed
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


VIEWS: dict[str, list[Callable[[Any], Any]]] = {
    "reshape and permute": [lambda y: y.reshape(2, 8), lambda y: y.permute(1, 0), lambda y: y.reshape(4, 2, 2)],
    "permute": [lambda y: y.permute(1, 2, 0)],
    "slices": [lambda y: y[::-1], lambda y: y.T],
    "new axes": [lambda y: y.unsqueeze(0), lambda y: y.squeeze(0)],
    "expand": [lambda y: y.unsqueeze(1).expand(4, 3, 2, 2), lambda y: y[:, 0]],
    "detach": [lambda y: y.detach(), lambda y: y.permute(1, 0, 2)],
}


def lines(f: Callable[[], Any]) -> int:
    """Return the number of lines of Python that a call runs."""
    total = 0

    def count(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal total
        total += event == "line"
        return count

    with undisturbed():
        before = sys.gettrace()
        sys.settrace(count)
        try:
            f()
        finally:
            sys.settrace(before)
    return total


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("kept", [False, True])
def test_many_views_of_views_take_linear_time(name: str, kept: bool) -> None:
    data = np.arange(16, dtype=np.float32).reshape(4, 2, 2)
    x, steps, every = Tensor(data).realize(), VIEWS[name], []

    def chain(count: int) -> None:
        every.clear()
        y = x
        for i in range(count):
            y = steps[i % len(steps)](y)
            if kept:
                every.append(y)
        y.numpy()

    for count in (60, 240):  # import, and compile
        chain(count)
    few, many = lines(lambda: chain(60)), lines(lambda: chain(240))
    assert many < 5 * few, "a view costs more the more views are below it"


def test_many_views_of_views() -> None:
    data = np.arange(16, dtype=np.float32).reshape(4, 2, 2)
    x = Tensor(data).realize()
    y, want = x, data
    for _ in range(DEEP):
        y, want = VIEWS["permute"][0](y), want.transpose(1, 2, 0)
    np.testing.assert_array_equal(y.numpy(), want)
    y[0] = 5
    want[0] = 5
    np.testing.assert_array_equal(x.numpy(), data)
    np.testing.assert_array_equal(y.numpy(), want)


@pytest.mark.parametrize("way", [lambda value: pickle.loads(pickle.dumps(value)), copy.deepcopy])
def test_tensors_of_one_graph_are_copied_in_linear_time(way: Callable[[Any], Any]) -> None:
    def chain(count: int) -> list[Tensor]:
        every = [Tensor(X).realize()]
        for i in range(count):
            every.append(every[-1] * 0.5 + i)
        return every

    few, many = chain(50), chain(200)
    way(few)
    assert lines(lambda: way(many)) < 5 * lines(lambda: way(few))
    assert len(pickle.dumps(many)) < 5 * len(pickle.dumps(few))
    copied = way(many[::-1])
    for n in (0, 100, 200):
        np.testing.assert_allclose(copied[n].numpy(), many[200 - n].numpy())
    assert copied[3].uop.src[0].src[0] is copied[4].uop, "one graph again"
