"""Assignment: readers keep the old version, and memory is reused only where that is unobservable."""
from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, multiple, rule

from tests.schedule.helpers import given
from tinsmith.backend.device import Device
from tinsmith.core.errors import KernelError
from tinsmith.tensor.tensor import Tensor


def test_old_version_is_read() -> None:
    w = Tensor([1.0, 2.0]).realize()
    y = w + 1
    w.assign(Tensor.zeros(2))
    assert y.tolist() == [2, 3] and w.tolist() == [0, 0]
    w.assign(w + 5).realize()
    assert y.tolist() == [2, 3] and w.tolist() == [5, 5]


def test_in_place() -> None:
    w = given(64, 64)
    before, memory = w.numpy(), w.uop.base.arg
    w.assign(w * 2 + 1).realize()
    assert w.uop.base.arg is memory
    np.testing.assert_array_equal(w.numpy(), before * 2 + 1)


def test_not_in_place_while_an_old_value_is_wanted() -> None:
    w = given(64)
    before, memory = w.numpy(), w.uop.base.arg
    y = w + 1
    w.assign(w * 2).realize()
    assert w.uop.base.arg is not memory
    np.testing.assert_array_equal(y.numpy(), before + 1)


def test_not_in_place_when_elements_move() -> None:
    for change in (lambda w: w.flip(0), lambda w: w + w.T, lambda w: w - w.sum(),
                   lambda w: w - w.max(axis=1, keepdim=True)):
        w = given(48, 48)
        before = w.numpy()
        want = change(Tensor(before)).numpy()
        w.assign(change(w)).realize()
        np.testing.assert_allclose(w.numpy(), want, rtol=1e-5, atol=1e-4)


def test_reader_in_the_same_program() -> None:
    w = given(48, 48)
    before = w.numpy()
    y = w.T + 1
    w.assign(w * 2)
    w.realize(y)
    np.testing.assert_array_equal(y.numpy(), before.T + 1)
    np.testing.assert_array_equal(w.numpy(), before * 2)


class Versions(RuleBasedStateMachine):
    """Random reads, assigns and realizes against a NumPy model: values are those at the time of the call."""

    tensors: Bundle[Any] = Bundle("tensors")

    @initialize(target=tensors)
    def start(self) -> Any:
        rows = [np.arange(12, dtype=np.int32).reshape(3, 4) * k for k in (1, 2)]
        return multiple(*([Tensor(r), r] for r in rows))

    @rule(target=tensors, a=tensors, b=tensors, how=st.integers(0, 4))
    def compute(self, a: Any, b: Any, how: int) -> Any:
        (x, p), (y, q) = a, b
        if how == 0:
            return [x + y, p + q]
        if how == 1:
            return [x.flip(0) - y, p[::-1] - q]
        if how == 2:
            return [x.sum(axis=1, keepdim=True) + y, p.sum(1, keepdims=True, dtype=np.int32) + q]
        if how == 3:
            return [x.reshape(4, 3).T.reshape(3, 4) * 3, p.reshape(4, 3).T.reshape(3, 4) * 3]
        return [x.maximum(y), np.maximum(p, q)]

    @rule(a=tensors, b=tensors, factor=st.integers(1, 3))
    def assign(self, a: Any, b: Any, factor: int) -> None:
        a[0].assign(b[0] * factor)
        a[1] = b[1] * factor

    @rule(a=tensors, b=tensors)
    def update(self, a: Any, b: Any) -> None:
        a[0].assign(a[0] - b[0].flip(1))
        a[1] = a[1] - b[1][:, ::-1]

    @rule(a=tensors)
    def read(self, a: Any) -> None:
        np.testing.assert_array_equal(a[0].numpy(), a[1])

    @rule(a=tensors, b=tensors)
    def realize(self, a: Any, b: Any) -> None:
        a[0].realize(b[0])

    @rule(a=tensors)
    def forget(self, a: Any) -> None:
        a[0], a[1] = Tensor(a[1].copy()).realize(), a[1].copy()
        gc.collect()


Versions.TestCase.settings = settings(max_examples=8, stateful_step_count=20, deadline=None)
TestVersions = Versions.TestCase


def test_failure_leaves_the_old_version(monkeypatch: pytest.MonkeyPatch) -> None:
    w = given(8)
    before, memory = w.numpy(), w.uop.base.arg
    w.assign(w * 3)
    with monkeypatch.context() as patch:
        def refuse(self: Any, bases: Any, values: Any) -> None:
            raise RuntimeError("no")

        patch.setattr(type(Device["CPU"].graph([])), "__call__", refuse)
        with pytest.raises(KernelError):
            w.realize()
    np.testing.assert_array_equal(memory.numpy(), before)
    np.testing.assert_array_equal(w.numpy(), before * 3)
