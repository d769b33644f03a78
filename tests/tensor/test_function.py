"""``Function``: user-defined gradients, eager and captured, on one device and on several."""
from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from tinsmith import Function, Tensor, TinyJit
from tinsmith.core.errors import ArgumentError, GradientError

GROUP = ("CPU", "CPU:1")


class Rounded(Function):
    """Straight-through estimator: rounds, and passes the gradient on unchanged."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


class Product(Function):
    """x @ w with its true gradients times ``factor``; saves inputs and an intermediate value."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, factor: float) -> Tensor:
        ctx.save_for_backward(x, w)
        ctx.factor = factor
        return x @ w

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        x, w = ctx.saved_tensors
        return gradient @ w.transpose() * ctx.factor, x.transpose() @ gradient * ctx.factor, None


class Exponential(Function):
    """A function in tinygrad's former style, whose methods save what backward needs."""

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        self.out = x.exp()
        return self.out

    def backward(self, gradient: Tensor) -> Tensor:
        return gradient * self.out


def test_straight_through() -> None:
    x = Tensor([0.4, 1.6])
    y = Rounded.apply(x)
    (y * Tensor([3.0, 5.0])).sum().backward()
    assert y.tolist() == [0, 2] and x.grad is not None and x.grad.tolist() == [3, 5]


def expected(x: np.ndarray[Any, Any], w: np.ndarray[Any, Any], factor: float) -> list[Any]:
    """Return the gradients of the sum of squares of Product."""
    g = 2 * (x @ w)
    return [g @ w.T * factor, x.T @ g * factor]


@pytest.mark.parametrize("devices, axis", [(None, None), (GROUP, None), (GROUP, 0)])
def test_on_one_device_and_several(devices: tuple[str, ...] | None, axis: int | None) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((6, 4)).astype(np.float32), rng.standard_normal((4, 3)).astype(np.float32)
    x, w = Tensor(a), Tensor(b)
    if devices is not None:
        x.shard_(devices, axis=axis)
        w.shard_(devices)
    Product.apply(x, w, 10.0).square().sum().backward()
    assert x.grad is not None and w.grad is not None
    for got, want in zip((x.grad, w.grad), expected(a, b, 10.0)):
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("devices", [None, GROUP])
def test_under_the_jit(devices: tuple[str, ...] | None) -> None:
    rng = np.random.default_rng(1)
    b = rng.standard_normal((4, 3)).astype(np.float32)
    w = Tensor(b).realize()
    if devices is not None:
        w.shard_(devices).realize()

    @TinyJit
    def step(x: Tensor) -> tuple[Tensor, Tensor]:
        w.grad = None
        loss = Product.apply(Rounded.apply(x), w, 2.0).square().sum().backward()
        assert w.grad is not None
        return loss.realize(), w.grad.realize()

    for _ in range(4):
        a = rng.standard_normal((6, 4)).astype(np.float32)
        x = Tensor(a) if devices is None else Tensor(a).shard(devices, axis=0)
        loss, grad = step(x.realize())
        rounded = np.round(a)
        np.testing.assert_allclose(loss.item(), np.square(rounded @ b).sum(), rtol=1e-5)
        np.testing.assert_allclose(grad.numpy(), expected(rounded, b, 2.0)[1], rtol=1e-5, atol=1e-4)


@pytest.mark.filterwarnings("error")
def test_a_captured_step_replays() -> None:
    @TinyJit
    def step(x: Tensor) -> Tensor:
        return Rounded.apply(x).square().sum().gradient(x)[0].realize()

    got = [step(Tensor([0.6, float(n)]).realize()).tolist() for n in range(5)]
    assert got == [[2, 2 * n] for n in range(5)] and step.jit_cache


@pytest.mark.parametrize("realized", [False, True])
def test_gradients_of_gradients(realized: bool) -> None:
    x = Tensor([0.5, 1.0])
    y = Exponential.apply(x)
    if realized:
        y.realize()
    (first,) = y.sum().gradient(x)
    (second,) = first.sum().gradient(x)
    for g in (y, first, second):
        np.testing.assert_allclose(g.numpy(), np.exp([0.5, 1.0]), rtol=1e-6)


def test_saved_tensors_do_not_see_later_writes() -> None:
    x, w = Tensor([[1.0, 2.0]]), Tensor([[3.0], [4.0]])
    loss = Product.apply(x, w, 1.0).sum().realize()
    with Tensor.no_grad():
        w.assign(Tensor([[0.0], [0.0]])).realize()
    assert loss.gradient(x)[0].tolist() == [[3, 4]]


def test_who_needs_a_gradient() -> None:
    seen = []

    class Look(Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Tensor:
            seen.append(ctx.needs_input_grad)
            return inputs[0] * 1

    Look.apply(Tensor([1.0]), Tensor([1.0], requires_grad=False), Tensor([1]), 5)
    assert seen == [(True, False, False, False)]


def test_a_value_can_be_pickled() -> None:
    x = Tensor([0.4, 1.6])
    loaded, y = pickle.loads(pickle.dumps((x, Rounded.apply(x))))
    assert y.sum().gradient(loaded)[0].tolist() == [1, 1]


def test_mistakes_name_the_function() -> None:
    class Wrong(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, y: Tensor, what: Any) -> Any:
            ctx.what = what
            return x * y if what != "text" else "text"

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Any:
            return ctx.what

    x, y = Tensor([1.0, 2.0]), Tensor([3.0, 4.0])
    with pytest.raises(ArgumentError, match=r"Wrong\.forward.*'text' \(str\), not a tensor"):
        Wrong.apply(x, y, "text")
    for what, words in (([x], "gave 1 gradients for 3 inputs"),
                        ((x.sum(), x, None), r"shape \(\) for input 0 of shape \(2,\)"),
                        ((x, 3, None), r"gave 3 \(int\) for input 1")):
        with pytest.raises(GradientError, match=rf"Wrong\.backward.*{words}"):
            Wrong.apply(x, y, what).sum().backward()
    with pytest.raises(NotImplementedError, match=r"Function\.forward is not written"):
        Function.apply(x)


def test_nothing_is_recorded_in_no_grad() -> None:
    x = Tensor([0.4], requires_grad=True)
    with Tensor.no_grad():
        y = Rounded.apply(x)
    assert y.sum().gradient(x)[0].tolist() == [0]
