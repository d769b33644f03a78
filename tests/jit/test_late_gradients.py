"""Gradients that a captured step leaves unread: their values, and the memory that they hold."""
from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tinsmith import Tensor, TinyJit
from tinsmith.core.errors import JitError, OutOfMemoryError
from tinsmith.jit import replay
from tinsmith.nn.optim import SGD

SIZES = [(3, 4), (300, 70)]  # small outputs and large ones are kept by different rules


def made(size: tuple[int, int], wrap: Callable[[Any], Any] = TinyJit) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Return a parameter and a training step whose gradient is 2·w·x², with x of one element."""
    w = Tensor(np.arange(size[0] * size[1], dtype=np.float32).reshape(size) / 1e4, requires_grad=True).realize()
    optimizer = SGD([w], lr=0.125)

    def step(x: Tensor) -> Tensor:
        with Tensor.train():
            optimizer.zero_grad()
            loss = (w * x).square().sum().backward()
            optimizer.step()
            return loss.realize()
    return w, wrap(step)


def batch(n: int) -> Tensor:
    return Tensor([float(n % 3)], requires_grad=False).realize()


@pytest.mark.parametrize("size", SIZES)
def test_parameters_alternate_between_two_buffers(size: tuple[int, int]) -> None:
    w, step = made(size)
    addresses = list[int]()
    for n in range(12):
        step(batch(n))
        addresses.append(id(w.uop.base.arg._opaque))
    assert addresses[-6:] == addresses[-8:-2] and len(set(addresses[-6:])) == 2


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("reads", ["never", "last", "each", "some", "later"])
def test_values_are_those_without_a_capture(size: tuple[int, int], reads: str) -> None:
    """``later``: the gradient is taken at once, and read after further steps."""
    def seen(wrap: Callable[[Any], Any]) -> list[Any]:
        (w, step), found, held = made(size, wrap), list[Any](), list[Tensor]()
        for n in range(10):
            step(batch(n))
            assert w.grad is not None
            if n in {"each": range(10), "some": range(0, 10, 3), "last": [9]}.get(reads, ()):
                found.append(w.grad.numpy())
            if reads == "later":
                held.append(w.grad)
        return [*found, *(g.numpy() for g in held), w.numpy()]

    for ours, want in zip(seen(TinyJit), seen(lambda f: f), strict=True):
        np.testing.assert_allclose(ours, want, rtol=1e-6)


@pytest.mark.parametrize("place", [(replay.Output, "take"), (replay.Replay, "blocks_now")], ids=["result", "temporary"])
def test_an_allocation_that_fails_loses_no_gradient(monkeypatch: pytest.MonkeyPatch, place: tuple[Any, str]) -> None:
    w, step = made(SIZES[1])
    for _ in range(6):
        step(batch(1))
    before = w.numpy()  # the gradient is that at the version before: w = v − 2v / 8
    with monkeypatch.context() as patch:
        def fails(*_: Any) -> None:
            raise OutOfMemoryError("CPU", "no memory")
        patch.setattr(*place, fails)
        with pytest.raises(OutOfMemoryError):
            step(batch(1))
    assert w.grad is not None
    np.testing.assert_allclose(w.grad.numpy(), before / 0.75 * 2, rtol=1e-5)
    np.testing.assert_array_equal(w.numpy(), before)


def test_a_launch_that_fails_says_that_the_gradient_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    w, step = made(SIZES[1])
    for _ in range(6):
        step(batch(1))
    before = w.numpy()
    with monkeypatch.context() as patch:
        def fails(*_: Any) -> None:
            raise RuntimeError("no launch")
        patch.setattr(replay, "launch", fails)
        with pytest.raises(RuntimeError, match="no launch"):
            step(batch(1))
    assert w.grad is not None
    with pytest.raises(JitError, match=r"lost.*zero_grad"):
        w.grad.numpy()
    np.testing.assert_array_equal(w.numpy(), before)
    step(batch(1))
    np.testing.assert_allclose(w.grad.numpy(), before * 2, rtol=1e-5)


def test_another_thread_reads_gradients_meanwhile() -> None:
    """It sees the gradient of one of the steps: with lr 1/8 and x = 1, w is (3/4)ⁿ of its start."""
    w, step = made((64, 64))
    start, steps, errors, ended = w.numpy()[-1, -1], 60, list[str](), threading.Event()
    allowed = np.array([2 * start * 0.75**n for n in range(steps)], np.float32)

    def read() -> None:
        while not ended.is_set():
            g = w.grad
            if g is None:
                continue
            try:
                found = g.numpy()[-1, -1]
            except Exception as error:
                errors.append(repr(error))
                return
            if np.abs(allowed / found - 1).min() > 1e-4:
                errors.append(f"{found} is no gradient")

    step(batch(1))
    thread = threading.Thread(target=read)
    thread.start()
    try:
        for _ in range(steps - 1):
            step(batch(1))
    finally:
        ended.set()
        thread.join()
    assert not errors, errors[:3]
