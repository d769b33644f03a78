"""Pickles and deep copies of tensors: values, gradients, and memory sharing."""
from __future__ import annotations

import copy
import gc
import io
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tinsmith import Tensor, TinyJit, Variable, nn
from tinsmith.ir.uop import forget_dead

WAYS: list[Callable[[Any], Any]] = [copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))]
ways = pytest.mark.parametrize("way", WAYS)


class Model:
    """Tensors that are identical or alias each other, and captured functions that read them."""

    def __init__(self) -> None:
        self.layers = [nn.Linear(2, 2), nn.Linear(2, 2)]
        self.named = {"out": nn.Linear(2, 2)}
        self.tied = self.layers[0].weight
        self.w = Tensor([1.0, 2.0]).realize()
        self.half = self.w[:1]
        self.step = TinyJit(self.forward)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.w + self.half

    @TinyJit
    def shifted(self, x: Tensor) -> Tensor:
        return x + self.w


@ways
@pytest.mark.parametrize("lazy", [False, True])
def test_views_share_memory_with_each_other_and_not_with_the_original(way: Any, lazy: bool) -> None:
    x = Tensor(np.arange(6, dtype=np.float32)) * 1
    x = x if lazy else x.realize()
    every = [x, x[1:5], x.reshape(2, 3), x.reshape(2, 3).T, x.reshape(2, 3).T.reshape(6), x.detach(), x]
    y, part, rows, turned, line, same, again = way(every)
    assert y is again and same.requires_grad is False
    part[0] = 9
    turned[2, 1] += 1
    assert y.tolist() == same.tolist() == [0, 9, 2, 3, 4, 6] and rows.tolist() == [[0, 9, 2], [3, 4, 6]]
    assert line.tolist() == [0, 3, 1, 4, 2, 5], "a copy, as strides cannot express it"
    assert x.tolist() == [0, 1, 2, 3, 4, 5]
    x[1] = 7
    assert part.tolist() == [9, 2, 3, 4] and every[1].tolist() == [7, 2, 3, 4]


@ways
def test_gradients_and_what_asks_for_them(way: Any) -> None:
    w = Tensor([1.0, 2.0], requires_grad=True)
    (w * w).sum().backward()
    v = way(w)
    (v * 3).sum().backward()
    assert v.requires_grad and v.grad.tolist() == [5, 7] and w.grad.tolist() == [2, 4]


@ways
def test_models_with_captured_functions(way: Any) -> None:
    model, x = Model(), Tensor([1.0, 1.0])
    for _ in range(4):
        model.step(x)
        model.shifted(x)
    other = way(model)
    assert other.step.fxn.__self__ is other and other.tied is other.layers[0].weight
    names = ["layers.0.weight", "layers.0.bias", "layers.1.weight", "layers.1.bias", "named.out.weight",
             "named.out.bias", "tied", "w", "half"]
    assert list(nn.state.get_state_dict(model)) == list(nn.state.get_state_dict(other)) == names
    other.w.assign(Tensor([10.0, 20.0]))
    for _ in range(4):
        assert other.step(x).tolist() == [20.0, 30.0] and other.shifted(x).tolist() == [11.0, 21.0]
        assert model.step(x).tolist() == [2.0, 3.0] and model.shifted(x).tolist() == [2.0, 3.0]
    assert other.step.replays == 2


def test_each_pickler_gets_the_nodes_that_its_values_need_and_no_others() -> None:
    x = Tensor([1.0, 2.0]).realize()
    y = x * 2
    large = y + Tensor(np.ones((1000, 2), np.float32)).realize()
    most, file = len(pickle.dumps(y)) + 100, io.BytesIO()
    pickler = pickle.Pickler(file)
    pickler.dump(large)
    assert len(pickle.dumps(y)) < most, "and not those of the pickler that may go on"
    pickler.dump([y, large * 2])
    assert len(pickle.dumps(y)) < most
    file.seek(0)
    unpickler = pickle.Unpickler(file)
    np.testing.assert_array_equal(unpickler.load().numpy(), np.tile(np.array([3, 5], np.float32), (1000, 1)))
    small, twice = unpickler.load()
    assert small.tolist() == [2, 4] and twice[7].tolist() == [6, 10]
    node = weakref.ref(large.uop)
    del pickler, unpickler, large
    gc.collect()
    forget_dead()
    assert node() is None, "a pickle keeps nothing alive"


@ways
def test_sizes_that_depend_on_variables(way: Any) -> None:
    n = Variable("n", 1, 4).bind(3)
    x = Tensor([1.0, 2.0, 3.0, 4.0]).realize()
    parts = [x[:n], x[:n] + 1, x[:n].sum(), (x[:n] * 2).reshape(1, n)]
    a, b, c, d = way(parts)
    assert b.shape == parts[1].shape and c.item() == 6 and a.sum().item() == 6 and b.sum().item() == 9
    assert d.sum().item() == 12


def test_a_shallow_copy_is_a_value_of_its_own() -> None:
    for x in (Tensor([1.0, 2.0]), Tensor([[1.0, 2.0]])[0]):
        y = copy.copy(x)
        y += 1
        assert x.tolist() == [1, 2] and y.tolist() == [2, 3]
