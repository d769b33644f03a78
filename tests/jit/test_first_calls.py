"""The first call of a jitted function, which runs, and the second, which is captured, run the same programs."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.schedule.helpers import given
from tinsmith import Tensor, TinyJit, nn
from tinsmith.codegen import compile_kernel
from tinsmith.core.object_lifetime import Recent
from tinsmith.jit.deferred_grads import Unread
from tinsmith.runtime import realize


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Return a function that returns the number of kernels compiled since its last call."""
    monkeypatch.setattr(compile_kernel, "programs", Recent())
    monkeypatch.setattr(realize, "_compiled", Recent())
    seen = 0

    def new() -> int:
        nonlocal seen
        before, seen = seen, len(compile_kernel.programs)
        return seen - before

    return new


class Net:
    """Two convolutions with batch norm, and a residual connection."""

    def __init__(self) -> None:
        self.convs = [nn.Conv2d(3, 5, 3, padding=1, bias=False), nn.Conv2d(5, 5, 3, padding=1, groups=5, bias=False)]
        self.norms = [nn.BatchNorm(5), nn.BatchNorm(5)]
        self.last = nn.Linear(5, 3)

    def __call__(self, x: Tensor) -> Tensor:
        x = self.norms[0](self.convs[0](x)).relu()
        x = (x + self.norms[1](self.convs[1](x))).relu()
        return self.last(x.mean((2, 3)))


def inference() -> Callable[[Tensor], Tensor]:
    return Net().__call__


def training(kind: Any, late: bool = False) -> Callable[[Tensor], Tensor]:
    net, labels = Net(), Tensor([1, 2])
    opt = kind(nn.state.get_parameters(net), lr=0.01)

    def step(x: Tensor) -> Tensor:
        if not late:
            opt.zero_grad()
        with Tensor.train():
            loss = net(x).sparse_categorical_crossentropy(labels).backward()
        opt.step()
        if late:
            opt.zero_grad()
        return loss

    return step


def gradients_alone() -> Callable[[Tensor], Tensor]:
    net = Net()
    parameters = [p for p in nn.state.get_parameters(net) if p.requires_grad is not False]
    for p in parameters:
        p.requires_grad = True

    def step(x: Tensor) -> Tensor:
        for p in parameters:
            p.grad = None
        return net(x).square().mean().backward()

    return step


STEPS: list[Callable[[], Callable[[Tensor], Tensor]]] = [
    inference, lambda: training(nn.optim.SGD), lambda: training(nn.optim.Adam), lambda: training(nn.optim.AdamW, True),
    gradients_alone]


@pytest.mark.parametrize("made", STEPS)
def test_the_second_call_compiles_nothing(made: Any, compiled: Callable[[], int]) -> None:
    step = TinyJit(made())
    compiled()
    step(given(2, 3, 6, 6))
    assert compiled() > 5
    for _ in range(3):
        step(given(2, 3, 6, 6))
        assert compiled() == 0
    assert step.replays == 2


def test_gradients_that_add_up_compile_the_sum_alone(compiled: Callable[[], int]) -> None:
    w = given(4, 3)
    w.requires_grad = True
    step = TinyJit(lambda x: (x @ w).square().mean().backward())
    x = given(2, 4)
    x.requires_grad = False  # else what its .grad holds by now, which the sum is written to, is computed, too
    step(x)
    assert compiled() > 2
    for new in (1, 0):
        step(x)
        assert compiled() == new


def test_gradients_that_a_step_left_behind_are_not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    filled: list[int] = []
    allocate = Unread.allocate
    monkeypatch.setattr(Unread, "allocate", lambda self: (filled.append(self.size), allocate(self))[1])
    step = TinyJit(training(nn.optim.SGD))
    for _ in range(4):
        step(given(2, 3, 6, 6))
    assert not filled and step.replays == 2


@pytest.mark.parametrize("read", ["held", "added", "computed", "clipped"])
def test_gradients_that_a_step_left_behind_can_be_read(read: str) -> None:
    """A gradient that the first call leaves lazy can be read by its holder, and by the function in its second call."""
    def seen(wrap: Any) -> list[Any]:
        w = Tensor([1.0, 2.0], requires_grad=True).realize()
        opt = nn.optim.SGD([w], lr=0.1)

        def step(x: Tensor) -> Tensor:
            old = w.grad
            if read == "clipped" and old is not None:
                old *= 0.5
            if read in ("held", "computed"):
                w.grad = None
            loss = (w * w * x).sum().backward()
            opt.step()
            return loss + old.sum() if read == "computed" and old is not None else loss

        f, found, held = wrap(step), [], []
        for n in range(5):
            found.append(f(Tensor([1.0, n + 1.0])).item())
            held.append(w.grad)
        return [*found, *(g.tolist() for g in held), w.tolist()]

    for got, want in zip(seen(TinyJit), seen(lambda f: f), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5)
