"""Guards: a replay reads current state when that moves, is replaced, shared, assigned outside, or deleted."""
from __future__ import annotations

import array
import gc
import sys
import types
from collections import deque
from typing import Any

import numpy as np
import pytest

from tinsmith import Context, Tensor, TinyJit, nn
from tinsmith.backend.memory import give_back
from tinsmith.jit.function import MOST_SIGNATURES
from tinsmith.jit.replay import LARGER

factor = 1.0
table = Tensor([1.0, 2.0])


def test_a_global_number_and_a_global_tensor() -> None:
    global factor, table
    f = TinyJit(lambda x: x * factor + table)
    for n in range(6):
        factor = float(n // 3)
        table = Tensor([float(n), 0.0])
        assert f(Tensor([1.0, 1.0])).tolist() == [factor + n, factor]


def test_a_closure_tensor_assigned_replaced_and_reshaped_between_calls() -> None:
    w = Tensor([1.0, 2.0]).realize()
    f = TinyJit(lambda x: x + w)
    x = Tensor([0.0, 0.0]).realize()
    for n in range(4):
        w.assign(w + 1)
        assert f(x).tolist() == [n + 2.0, n + 3.0]
    w.replace(Tensor([7.0, 8.0]))
    assert f(x).tolist() == [7.0, 8.0]
    w.replace(Tensor([[9.0, 1.0], [8.0, 2.0]]).realize()[:, 0])  # a view of another buffer
    assert f(x).tolist() == f(x).tolist() == [9.0, 8.0]
    w = Tensor([5.0])
    assert f(x).tolist() == [5.0, 5.0]


def test_an_argument_that_is_also_state() -> None:
    w = Tensor([1.0]).realize()
    f = TinyJit(lambda x: x + w * 10)
    for _ in range(4):
        assert f(w).tolist() == [11.0]
    assert f(Tensor([3.0])).tolist() == [13.0]
    assert f(w).tolist() == [11.0]
    g = TinyJit(lambda x: x + w * 10)
    for _ in range(4):
        assert g(Tensor([3.0])).tolist() == [13.0]
    assert g(w).tolist() == [11.0]


def test_two_state_tensors_that_share_a_buffer_and_part() -> None:
    a = Tensor([1.0, 2.0]).realize()
    b = a.reshape(2)
    c = Tensor(a)
    f = TinyJit(lambda: a + b * 10 + c * 100)
    for _ in range(4):
        assert f().tolist() == [111.0, 222.0]
    a.assign(Tensor([0.0, 0.0])).realize()
    for _ in range(3):
        assert f().tolist() == [100.0, 200.0]  # b is a view of a, c a copy


def test_a_kept_view_of_an_old_version_does_not_mislead() -> None:
    w = Tensor([0.0, 0.0]).realize()
    kept = []

    @TinyJit
    def step() -> Tensor:
        return w.assign(w + 1)

    for n in range(6):
        kept.append(Tensor(w).reshape(2, 1))
        assert step().tolist() == [n + 1.0] * 2
    assert [k.tolist()[0][0] for k in kept] == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


def test_views_of_state_see_what_replays_write() -> None:
    w = Tensor([0.0, 0.0]).realize()
    kept = []

    @TinyJit
    def step() -> Tensor:
        return w.assign(w + 1)

    for n in range(6):
        kept += [w.reshape(2, 1), w[1:], w.detach()]
        assert step().tolist() == [n + 1.0] * 2
        assert all(set(np.ravel(k.numpy())) == {n + 1.0} for k in kept)


@pytest.mark.parametrize("how", ["assign", "add", "set"])
@pytest.mark.parametrize("alive", [True, False])
def test_captured_updates_of_a_view_reach_its_memory(how: str, alive: bool) -> None:
    base = Tensor(np.zeros(9, np.float32)).realize()
    w = base[3:6]
    whole = base if alive else None
    del base

    @TinyJit
    def step(x: Tensor) -> Tensor:
        nonlocal w
        if how == "assign":
            w.assign(w + x)
        elif how == "add":
            w += x
        else:
            w[:] = w + x
        return w

    with Context(VERIFY=2):
        for n in range(1, 8):
            assert step(Tensor([1.0])).tolist() == [n] * 3 and w.tolist() == [n] * 3
            if whole is not None:
                assert whole.tolist() == [0] * 3 + [n] * 3 + [0] * 3
                whole[4] = float(n)


def test_a_lazy_tensor_of_old_state() -> None:
    w = Tensor([1.0]).realize()
    z = w * 2
    f = TinyJit(lambda: z + w)
    for n in range(5):
        assert f().tolist() == [2.0 + 1 + n]
        w.assign(w + 1).realize()
    z.assign(Tensor([100.0]))
    assert [f().tolist() for _ in range(3)] == [[106.0]] * 3


def test_swapped_state() -> None:
    a, b = Tensor([1.0]).realize(), Tensor([2.0]).realize()

    @TinyJit
    def swap() -> None:
        old = Tensor(a)
        a.replace(b)
        b.replace(old)

    for n in range(6):
        swap()
        assert (a.item(), b.item()) == ((2.0, 1.0) if n % 2 == 0 else (1.0, 2.0))


def test_state_that_becomes_an_argument() -> None:
    last = Tensor([0.0]).realize()

    @TinyJit
    def difference(x: Tensor) -> Tensor:
        d = (x - last).realize()
        last.replace(x)
        return d

    assert [difference(Tensor([float(n * n)])).item() for n in range(6)] == [0.0, 1.0, 3.0, 5.0, 7.0, 9.0]
    assert last.item() == 25.0


def test_a_dead_tensor_behind_a_list_is_not_read() -> None:
    state = types.SimpleNamespace(layers=[Tensor([1.0]).realize()])
    f = TinyJit(lambda x: x + state.layers[0])
    x = Tensor([0.0]).realize()
    for n in range(5):
        assert f(x).tolist() == f(x).tolist() == [n + 1.0]
        state.layers[0] = Tensor([n + 2.0]).realize()
        gc.collect()


def test_an_attribute_of_self_replaced_by_another_tensor() -> None:
    class Model:
        def __init__(self) -> None:
            self.w = Tensor([1.0]).realize()

        @TinyJit
        def __call__(self, x: Tensor) -> Tensor:
            return x + self.w

    model, kept = Model(), []
    for n in range(5):
        kept.append(model.w)
        model.w = Tensor([float(n)]).realize()
        assert model(Tensor([0.0])).tolist() == model(Tensor([0.0])).tolist() == [float(n)]


def test_ids_are_not_mistaken_when_objects_die() -> None:
    class Scale:
        def __init__(self, k: Any) -> None:
            self.hidden = [k]

        @TinyJit
        def __call__(self, x: Tensor) -> Tensor:
            return x * self.hidden[0]

    for n in range(30):
        scale = Scale(float(n))
        assert [scale(Tensor([1.0])).item() for _ in range(3)] == [float(n)] * 3
        del scale


def test_a_capture_is_let_go_with_what_it_names_and_no_python_code_runs_then() -> None:
    class Model:
        def __init__(self) -> None:
            self.w = Tensor([2.0]).realize()

    def scaled(model: Model, x: Tensor) -> Tensor:
        return x * model.w

    f = TinyJit(scaled)
    model, other = Model(), Model()
    for m in (model, other):
        assert [f(m, Tensor([3.0])).item() for _ in range(4)] == [6.0] * 4
    first, second = f.captures.values()
    assert first.alive and len(first.captures) == 1
    ran: list[str] = []
    sys.setprofile(lambda frame, event, _: ran.append(frame.f_code.co_qualname) if event == "call" else None)
    try:
        del model, m
    finally:
        sys.setprofile(None)
    assert ran == []
    assert not first.alive and first.captures == []
    assert second.alive and f(other, Tensor([5.0])).item() == 10


def test_an_attribute_that_the_function_changes_is_not_lost() -> None:
    class Counter:
        def __init__(self) -> None:
            self.calls, self.h = 0, Tensor([0.0])

        @TinyJit
        def step(self, x: Tensor) -> Tensor:
            self.calls += 1
            self.h = self.h + x
            return self.h * 1

    counter = Counter()
    with pytest.warns(UserWarning, match="changes Python values"):
        assert [counter.step(Tensor([1.0])).item() for _ in range(6)] == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    assert counter.calls == 6 and counter.h.item() == 6.0


def test_arrays_count_by_value() -> None:
    a = np.array([1.0, 2.0], np.float32)
    f = TinyJit(lambda x: x + Tensor(a))
    for n in range(5):
        a[0] = n
        assert f(Tensor([0.0, 0.0])).tolist() == f(Tensor([0.0, 0.0])).tolist() == [float(n), 2.0]


def test_kinds_of_scalars_are_told_apart() -> None:
    f = TinyJit(lambda x, k: x * k)
    one = Tensor([3]).realize()
    for k in (1, 1, 1.0, True, 1, 1.0, True):
        assert f(one, k).dtype is (one * k).dtype


def test_devices_dtypes_and_modes_are_guards() -> None:
    f = TinyJit(lambda x: (x + 1).dropout(0.5))
    for _ in range(3):
        for x in (Tensor([1.0] * 100), Tensor([1] * 100).cast("float64"), Tensor([1.0] * 100, device="CPU:1")):
            y = f(x)
            assert (y.dtype, y.device) == (x.dtype, x.device) and y.numpy().min() == 2.0
            with Tensor.train():
                assert f(x).numpy().min() == 0.0


def test_a_seed_and_lazy_draws() -> None:
    Tensor.manual_seed(1)
    noise = Tensor.rand(3)
    f = TinyJit(lambda: noise + 0)
    want = noise.tolist()
    for n in range(5):
        Tensor.manual_seed(n)
        assert f().tolist() == want

    def seeded() -> Tensor:
        Tensor.manual_seed(5)
        return Tensor.rand(2)

    g = TinyJit(seeded)
    first = g().tolist()
    with pytest.warns(UserWarning, match="seed"):
        assert [g().tolist() for _ in range(4)] == [first] * 4


def test_captures_are_bounded_and_said(capsys: pytest.CaptureFixture[str]) -> None:
    f = TinyJit(lambda x, k: x + k)
    with Context(DEBUG=1):
        for k in range(MOST_SIGNATURES + 10):
            assert f(Tensor([1.0]), k).item() == k + 1
    assert len(f.captures) == MOST_SIGNATURES
    assert "captured again" in capsys.readouterr().out


def test_a_capture_holds_no_values() -> None:
    import weakref

    f = TinyJit(lambda x: ((x + 1).realize() * 2, x + 3))
    for _ in range(3):
        x = Tensor.ones(LARGER // 4 + 1).contiguous()  # more bytes than what is kept for the next call
        out = f(x)
        refs = [weakref.ref(t.uop.base.arg) for t in (x, *out)]
    del x, out
    gc.collect()
    give_back()
    assert [r() for r in refs] == [None] * 3


def test_debug_says_why_it_is_captured_again(capsys: pytest.CaptureFixture[str]) -> None:
    k, w = 1, Tensor([1.0])

    def body(x: Tensor, scale: int = 2) -> Tensor:
        return x * k * scale + w

    f = TinyJit(body)

    def said(*args: Any, **kwargs: Any) -> str:
        capsys.readouterr()
        with Context(DEBUG=1):
            f(*args, **kwargs)
        return " ".join(capsys.readouterr().out.split())  # long lines go on in the next

    x, y = Tensor([1.0, 2.0]).realize(), Tensor([[1.0], [2.0], [3.0]]).realize()
    f(x)
    f(x)
    assert said(x) == ""
    assert "its arguments: a tensor (2,) dtypes.float on CPU, now a tensor (3, 1) dtypes.float on CPU" in said(y)
    whole = x.cast("int32")
    assert "its arguments: a tensor (3, 1) dtypes.float on CPU, now a tensor (2,) dtypes.int on CPU" in said(whole)
    assert "the number or the nesting of its arguments" in said(x, 3)
    assert "its arguments: 3, now 4" in said(x, 4)
    k = 5
    assert "changed: k" in said(x, 4)
    w.replace(Tensor([[2.0]]).reshape(1).expand(1).contiguous().realize()[::-1])
    assert "a tensor that it reads besides" in said(x, 4)
    with Tensor.train():
        assert "Tensor.training" in said(x, 4)


class Config:
    rate = 1.0


class Derived(Config):
    pass


class Slotted:
    __slots__ = ("rate",)

    def __init__(self) -> None:
        self.rate = 1.0


knobs = types.ModuleType("knobs")
knobs.rate = 1.0  # type: ignore[attr-defined]


def helper() -> None:
    """A function with an attribute."""


helper.rate = 1.0  # type: ignore[attr-defined]
instance, slotted = Derived(), Slotted()
queue, numbers, octets = deque([1.0]), array.array("d", [1.0]), bytearray(b"\1")


@pytest.mark.parametrize("body, holder", [
    (lambda x: x * knobs.rate, knobs), (lambda x: x * Config.rate, Config), (lambda x: x * Derived.rate, Config),
    (lambda x: x * Derived.rate, Derived), (lambda x: x * helper.rate, helper), (lambda x: x * instance.rate, Config),
    (lambda x: x * instance.rate, instance), (lambda x: x * slotted.rate, slotted)])
def test_attributes_of_modules_classes_functions_and_slots_are_guards(
        body: Any, holder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    f, x = TinyJit(body), Tensor([1.0]).realize()
    first = [f(x).item() for _ in range(4)]
    monkeypatch.setattr(holder, "rate", 5.0, raising=False)
    assert first == [1.0] * 4 and [f(x).item() for _ in range(3)] == [5.0] * 3 and f.replays == 4
    monkeypatch.setattr(holder, "rate", 6.0)
    assert f(x).item() == 6.0


@pytest.mark.parametrize("body, holder", [
    (lambda x: x * queue[0], queue), (lambda x: x * numbers[0], numbers), (lambda x: x * octets[0], octets)])
def test_other_containers_of_numbers_are_guards(body: Any, holder: Any) -> None:
    f, x = TinyJit(body), Tensor([1.0]).realize()
    for n in (1, 1, 1, 2, 2, 1):
        holder[0] = n
        assert f(x).item() == n


def test_attributes_of_self_slots_and_class_and_of_a_class_as_argument() -> None:
    class Layer:
        __slots__ = ("shift",)
        scale = 2.0

        def __init__(self, shift: float) -> None:
            self.shift = shift

        @TinyJit
        def __call__(self, x: Tensor) -> Tensor:
            return x * self.scale + self.shift

        @classmethod
        @TinyJit
        def scaled(cls, x: Tensor) -> Tensor:
            return x * cls.scale

    layer, x = Layer(1.0), Tensor([1.0]).realize()
    for n in range(8):
        layer.shift, Layer.scale = float(n // 3), float(n // 4)
        assert layer(x).item() == layer.scale + layer.shift
        assert Layer.scaled(x).item() == Layer.scale


class Model:
    def __init__(self) -> None:
        self.w = Tensor([[1.0, 2.0], [3.0, 4.0]])
        self.opt = nn.optim.SGD([self.w], lr=0.1)

    @TinyJit
    def step(self, x: Tensor) -> Tensor:
        self.opt.zero_grad()
        loss = (x @ self.w).square().mean().backward()
        self.opt.step()
        return loss


BATCHES = [Tensor([[float(n), 1.0]]).realize() for n in range(8)]


def test_batches_that_stay_alive_are_replayed_on() -> None:
    """``zero_grad`` drops the gradient of the previous batch, which does not concern this call's guards."""
    model, plain = Model(), Model()
    for n in range(8):
        loss = model.step(BATCHES[n])
        assert [b.grad is not None for b in BATCHES] == [k == n for k in range(8)]
        plain.opt.zero_grad()
        want = (Tensor([[float(n), 1.0]]) @ plain.w).square().mean().backward()
        plain.opt.step()
        assert np.isclose(loss.item(), want.item()) and np.allclose(model.w.numpy(), plain.w.numpy())
    assert Model.step.replays == 6
    x = BATCHES[0]
    for _ in range(6):  # the same batch has a gradient when it comes again: a second capture
        model.step(x)
    assert Model.step.replays == 6 + 5
    grad = x.grad
    assert grad is not None
    want = (x @ model.w).square().mean().gradient(x)[0]
    model.step(x)
    assert x.grad is not None and np.allclose(x.grad.numpy(), want.numpy())
