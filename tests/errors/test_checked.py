"""``CHECKED=1`` reports defined but suspicious results: indices out of range, integer division by 0, new NaNs."""
from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tinsmith import Context, Tensor, TinyJit, nn
from tinsmith.core.counters import GlobalCounters
from tinsmith.core.errors import CheckError


def checked(source: str, line: int, *parts: str, **names: Any) -> None:
    """Check that the last expression works without checks, and with them raises an error that names ``line``."""
    *statements, last = source.strip().splitlines()
    for on in (0, 1):
        values = {"Tensor": Tensor, "np": np, "nn": nn, "math": math, **names}
        exec(compile("\n".join(statements), "/home/user/model.py", "exec"), values)
        result = eval(last, values)
        with Context(CHECKED=on):
            if not on:
                result.numpy()
                continue
            for _ in range(2):  # asked again, it says the same again
                with pytest.raises(CheckError) as caught:
                    result.numpy()
                assert (caught.value.file, caught.value.line) == ("/home/user/model.py", line), str(caught.value)
                for part in parts:
                    assert part in str(caught.value), str(caught.value)
        result.numpy()


def test_r13() -> None:
    x = Tensor([1, 2, 3])
    y = x[Tensor([4, 3, 2]).realize()]
    assert y.tolist() == [0, 0, 3]
    z = x[Tensor([2, 4, 3]).realize()]
    with Context(CHECKED=1), pytest.raises(CheckError, match=r"getitem: index 4 .*size 3.*test_checked.*-3 to") as e:
        z.tolist()
    assert e.value.line == test_r13.__code__.co_firstlineno + 4
    assert x.tolist() == [1, 2, 3] and z.tolist() == [3, 0, 0]


INDICES = {
    "negative": ("x = Tensor([1, 2, 3])\ny = x[Tensor([0, -4]).realize()]\ny + 1", 2, "getitem: index -4", "size 3"),
    "second axis": ("x = Tensor([[1, 2, 3]])\ny = x[Tensor([0]), Tensor([7]).realize()]\ny", 2, "index 7", "size 3"),
    "first axis": ("x = Tensor([[1, 2, 3]])\ny = x[Tensor([-2]).realize(), Tensor([[0], [1]])]\ny",
                   2, "index -2", "size 1"),
    "gather": ("x = Tensor([[1., 2.]])\ny = x.gather(1, Tensor([[2]]).realize())\ny * 2", 2,
               "gather: index 2", "size 2"),
    "scatter": ("y = Tensor([0, 0]).scatter(0, Tensor([5]).realize(), Tensor([1]))\ny", 1,
                "scatter: index 5", "dropped"),
    "setitem": ("x = Tensor([1., 2.])\nx[Tensor([3]).realize()] = 0.\nx", 2, "setitem: index 3", "size 2"),
    "embedding": ("e = nn.Embedding(4, 2)\ny = e(Tensor([0, 3]) + 1)\ny.sum()", 2,
                  "Embedding: index 4", "0 to 3"),
    "cross entropy": ("x, i = Tensor([[1., 2.]]), Tensor([1]) * 9\ny = x.cross_entropy(i)\ny * 2", 2,
                      "cross_entropy: index 9", "size 2", "score 0"),
    "ignored": ("x, i = Tensor([[1., 2.]] * 2), Tensor([-8, 1]) + 1\ny = x.cross_entropy(i, ignore_index=-7)\ny",
                2, "cross_entropy: index 2", "go from 0 to 2"),
    "by the last axis": ("x, i = Tensor([[1., 2.]] * 2), Tensor([0, -1]) * 3\n"
                         "y = x.sparse_categorical_crossentropy(i)\ny", 2, "sparse_categorical", "index -3"),
    "log-probabilities": ("x, i = Tensor([[1., 2.]]), Tensor([1]) + 1\ny = x.nll_loss(i)\ny", 2,
                          "nll_loss: index 2"),
    "computed": ("i = Tensor([1, 2]) * 2\ny = Tensor([1, 2, 3])[i]\ny", 2, "index 4", "go from 2 to 4"),
    "backward": ("w = Tensor([1., 2.])\ny = w[Tensor([0, 9]).realize()]\n_ = y.sum().backward()\nw.grad", 2, "index 9"),
}


@pytest.mark.parametrize("name", INDICES)
def test_indices_out_of_range(name: str) -> None:
    source, line, *parts = INDICES[name]
    checked(source, line, *parts)


OTHERS = {
    "floor division": ("a = Tensor([1, 2])\nb = a // Tensor([0, 1])\nb + 1", 2, "floordiv: an integer division"),
    "remainder": ("a = Tensor([1, 2])\nb = a % Tensor([1, 0])\nb + 1", 2, "mod: an integer division by zero"),
    "logarithm": ("a = Tensor([-1.])\nb = a.log()\nc = b + 1\nc.sum()", 2, "log: the result of shape (1,) holds NaN"),
    "zero by zero": ("a = Tensor([0., 1.])\nb = a / a\nb * 2", 2, "NaN"),
    "infinities": ("a = Tensor([math.inf])\na - a", 2, "sub"),
    "power": ("a = Tensor([-2.]) ** Tensor([0.5])\na + 1", 1, "pow"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_divisors_and_nan(name: str) -> None:
    source, line, *parts = OTHERS[name]
    if name == "infinities":
        source = source.replace("\na - a", "\nb = a - a\nb")
    checked(source, line, *parts)


@pytest.mark.parametrize("make", [
    lambda: Tensor([1, 2, 3])[Tensor([0, -3, 2])],
    lambda: Tensor([1, 2, 3])[Tensor.arange(3)],
    lambda: Tensor([[1, 2], [3, 4]])[Tensor([0, -1]), Tensor([-2, 1])],
    lambda: Tensor([7, 8]) // 2 + Tensor([7, 8]) % Tensor([2, 3]),
    lambda: Tensor([math.nan, 1.0]) + 1,
    lambda: Tensor.full((2,), math.nan) * 2,
    lambda: Tensor([4.0]) ** Tensor([0.5]),
    lambda: Tensor([-1.0, 2.0]).log().isnan(),
    lambda: (Tensor([-1.0, 2.0]) > 0).where(Tensor([-1.0, 2.0]).log(), 0),
    lambda: Tensor.zeros(0, 3)[Tensor(np.zeros(0, np.int32))],
    lambda: Tensor.rand(3, 4).softmax().sum(),
    lambda: Tensor.rand(2, 4).cross_entropy(Tensor([0, 9]).realize(), ignore_index=9),
    lambda: Tensor.rand(2, 4).sparse_categorical_crossentropy(Tensor([3, -1]).realize()),
    lambda: Tensor.rand(2, 4).nll_loss(Tensor([3, -1]).realize(), ignore_index=-1),
    lambda: (Tensor.arange(3) == Tensor([[5]]).realize()).where(Tensor.rand(1, 3), 0).sum(1),
])
def test_what_is_in_order_passes(make: Callable[[], Tensor]) -> None:
    Tensor.manual_seed(0)
    want = make().numpy()
    Tensor.manual_seed(0)
    with Context(CHECKED=1):
        np.testing.assert_array_equal(make().numpy(), want)


def test_training_under_checks() -> None:
    """The steps are unchanged; one that produces a NaN raises and leaves the parameters as they were."""
    weights = []
    for on in (0, 1):
        Tensor.manual_seed(3)
        layer, x = nn.Linear(3, 1), Tensor([[1.0, 2.0, 3.0]])
        optimizer = nn.optim.SGD(nn.state.get_parameters(layer), lr=0.1)
        with Context(CHECKED=on), Tensor.train():
            for _ in range(2):
                optimizer.zero_grad()
                layer(x).square().sum().backward()
                optimizer.step()
        weights.append(layer.weight.numpy())
    np.testing.assert_allclose(weights[0], weights[1], rtol=1e-6)
    with Context(CHECKED=1), Tensor.train(), pytest.raises(CheckError, match="NaN"):
        optimizer.zero_grad()
        (layer(x) * 0).log().sub(math.inf).add(math.inf).sum().backward()
        optimizer.step()


def test_without_checks_nothing_is_added() -> None:
    x = Tensor([1, 2, 3]).realize()
    index = Tensor([2, 0]).realize()
    before = GlobalCounters.kernel_count
    x[index].numpy()
    plain = GlobalCounters.kernel_count - before
    with Context(CHECKED=1):
        x[index].mul(3).numpy()
    assert plain == 2 and GlobalCounters.kernel_count - before > 4  # the copy to the host counts too


def test_jitted_functions_are_checked_too() -> None:
    pick = TinyJit(lambda i: Tensor([1, 2, 3])[i].realize())
    for _ in range(3):
        assert pick(Tensor([2])).tolist() == [3]
    with Context(CHECKED=1), pytest.raises(CheckError, match="index 3"):
        pick(Tensor([3]).realize())
    assert pick(Tensor([1])).tolist() == [2]
