"""All Python state that a capture reads is guarded, whichever function reads it; unguardable state is reported."""
from __future__ import annotations

import copy
import cProfile
import functools
import gc
import itertools
import logging
import operator
import os
import random
import sys
import threading
import time
import types
import warnings
import weakref
from collections import OrderedDict, UserDict, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from tinsmith import Context, Tensor, TinyJit, nn
from tinsmith.jit.guards import state


class Base:
    """The base class of ``Holder``: the last in its attribute lookup."""


class Holder(Base):
    """Any object with attributes."""

    common = 1.0

    def __init__(self, **values: Any) -> None:
        vars(self).update(values)

    @property
    def doubled(self) -> float:
        return float(self.k * 2)

    def __getattr__(self, name: str) -> Any:
        if name == "given":
            return self.inside["given"]
        raise AttributeError(name)

    def scaled(self, x: Tensor) -> Tensor:
        return x * self.k


class Slotted:
    __slots__ = ("k",)

    def __init__(self, k: float) -> None:
        self.k = k


class Names(NamedTuple):
    k: float


class Listed(list[Any]):
    factor = 1.0


gain = 1.0
config = types.ModuleType("a_users_config")


def helped(x: Tensor) -> Tensor:
    return x * gain


@functools.lru_cache(None)
def cached() -> float:
    return gain * 2


get_k = operator.attrgetter("k")


def read_through(x: Tensor, get: Callable[[], Any]) -> Tensor:
    return x * get()


def set_gain(value: float) -> None:
    global gain
    gain = value


h = Holder(k=1.0, inside={"given": 1.0}, a=Holder(k=1.0, b=[Holder(k=1.0)]), text="k", parts=[1.0, 2.0],
           table={"x": {"y": [1.0]}}, slots=Slotted(1.0), names=Names(1.0), listed=Listed([1.0]), many={1.0, 2.0},
           queue=deque([[1.0]]), ordered=OrderedDict(a=1.0, b=2.0), user=UserDict(k=1.0),
           proxy=types.MappingProxyType({"k": [1.0]}), array=np.ones(2), objects=np.array([[1.0], 2.0], object),
           octets=bytearray(b"\1"), layers=[Holder(k=1.0), Holder(k=2.0)])
h.partial, h.bound = functools.partial(lambda k, x: x * k[0], [1.0]), h.a.scaled
h.reference = weakref.ref(h.a)
config.__dict__.update(k=1.0, inner=types.ModuleType("a_users_inner"))
config.inner.__dict__.update(k=[1.0])

# Functions that read state, and changes of that state between calls.
CHANGES: dict[str, tuple[Callable[[Tensor], Any], Callable[[float], Any]]] = {
    "a global of a helper": (helped, set_gain),
    "an attribute of an attribute": (lambda x: x * h.a.k, lambda v: setattr(h.a, "k", v)),
    "a submodule in a list": (lambda x: x * h.a.b[0].k, lambda v: setattr(h.a.b[0], "k", v)),
    "a replaced submodule": (lambda x: x * h.a.b[0].k, lambda v: h.a.b.__setitem__(0, Holder(k=v))),
    "a dict in a dict": (lambda x: x * h.table["x"]["y"][0], lambda v: h.table["x"].update(y=[v])),
    "a property": (lambda x: x * h.doubled, lambda v: setattr(h, "k", v)),
    "an attribute made by __getattr__": (lambda x: x * h.given, lambda v: h.inside.update(given=v)),
    "a slot of an attribute": (lambda x: x * h.slots.k, lambda v: setattr(h.slots, "k", v)),
    "a named tuple": (lambda x: x * h.names.k, lambda v: setattr(h, "names", Names(v))),
    "a class attribute": (lambda x: x * h.common, lambda v: setattr(Holder, "common", v)),
    "a class attribute shadowed": (lambda x: x * h.a.common, lambda v: setattr(h.a, "common", v)),
    "a method replaced": (lambda x: h.scaled(x), lambda v: setattr(Holder, "scaled", lambda self, x: x * v)),
    "a method shadowed": (lambda x: h.a.scaled(x), lambda v: setattr(h.a, "scaled", lambda x: x * v)),
    "a bound method": (lambda x: h.bound(x), lambda v: setattr(h.a, "k", v)),
    "a partial": (lambda x: h.partial(x), lambda v: h.partial.args[0].__setitem__(0, v)),
    "a weak reference": (lambda x: x * h.reference().k, lambda v: setattr(h.a, "k", v)),
    "a subclass of list": (lambda x: x * h.listed[0], lambda v: h.listed.__setitem__(0, v)),
    "its attribute": (lambda x: x * h.listed.factor, lambda v: setattr(h.listed, "factor", v)),
    "a list appended to": (lambda x: x * sum(h.parts), lambda v: h.parts.append(v)),
    "a list reordered": (lambda x: x - h.layers[0].k, lambda v: h.layers.reverse()),
    "the length of a list": (lambda x: x * len(h.layers), lambda v: h.layers.append(Holder(k=v))),
    "a set": (lambda x: x * sum(h.many), lambda v: h.many.add(v)),
    "a deque of lists": (lambda x: x * h.queue[0][0], lambda v: h.queue[0].__setitem__(0, v)),
    "the order of an ordered dict": (lambda x: x * next(iter(h.ordered.values())),
                                     lambda v: h.ordered.move_to_end("a")),
    "a user's dict": (lambda x: x * h.user["k"], lambda v: h.user.update(k=v)),
    "a mapping proxy": (lambda x: x * h.proxy["k"][0], lambda v: h.proxy["k"].__setitem__(0, v)),
    "an array in an object": (lambda x: x * float(h.array[0]), lambda v: h.array.__setitem__(0, v)),
    "an array of objects": (lambda x: x * h.objects[0][0], lambda v: h.objects[0].__setitem__(0, v)),
    "bytes in an object": (lambda x: x * h.octets[0], lambda v: h.octets.__setitem__(0, int(v))),
    "a computed name": (lambda x: x * getattr(h.a, h.text), lambda v: setattr(h.a, "k", v)),
    "an attribute that was not there": (lambda x: x * getattr(h.a, "late", 1.0), lambda v: setattr(h.a, "late", v)),
    "an unset slot": (lambda x: x * (h.slots.k if hasattr(h.slots, "k") else 7.0),
                      lambda v: setattr(h, "slots", Slotted.__new__(Slotted))),
    "vars": (lambda x: x * vars(h.a)["k"], lambda v: setattr(h.a, "k", v)),
    "a module in a module": (lambda x: x * config.inner.k[0], lambda v: config.inner.k.__setitem__(0, v)),
    "a name that a module got": (lambda x: x * getattr(config, "late", 1.0),
                                 lambda v: setattr(config, "late" if v == 3.0 else "k", v)),
    "an attribute that a class got": (lambda x: x * getattr(h.a, "later", 1.0), lambda v: setattr(Base, "later", v)),
    "a cached function": (lambda x: x * cached(), lambda v: (set_gain(v), cached.cache_clear())),
    "a getter of attributes": (lambda x: x * get_k(h.a), lambda v: setattr(h.a, "k", v)),
    "a closure of a helper": (lambda x: read_through(x, lambda: h.a.k), lambda v: setattr(h.a, "k", v)),
    "a sign of zero": (lambda x: x / 1 + np.copysign(1.0, h.a.k), lambda v: setattr(h.a, "k", -0.0)),
    "a kind of number": (lambda x: x.cast("int32") * h.a.k, lambda v: setattr(h.a, "k", int(v) + 1)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_state_read_at_any_depth_is_guarded(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read, change = CHANGES[name]
    kept = ("reference", "bound", "partial", "proxy")
    vars_before = copy.deepcopy({k: v for k, v in vars(h).items() if k not in kept})
    monkeypatch.setattr(Holder, "common", 1.0)
    monkeypatch.setattr(Holder, "scaled", Holder.scaled)
    set_gain(1.0)
    f, x = TinyJit(read), Tensor([2.0]).realize()
    try:
        for _ in range(4):
            assert f(x).tolist() == read(x).tolist()
        assert f.replays == 2
        for value in (3.0, 5.0):
            change(value)
            for _ in range(3):
                got, want = f(x), read(x)
                assert got.tolist() == want.tolist() and got.dtype is want.dtype
        assert f.replays >= 4
    finally:
        vars(h).update(vars_before)
        vars(config).pop("late", None)
        cached.cache_clear()
        h.bound, h.reference = h.a.scaled, weakref.ref(h.a)


def test_a_model_with_lists_dicts_and_flags() -> None:
    class Layer:
        def __init__(self, k: float) -> None:
            self.k, self.on = k, True

        def __call__(self, x: Tensor) -> Tensor:
            return x * self.k if self.on else x

    class Model:
        def __init__(self) -> None:
            self.layers = [Layer(1.0), Layer(2.0)]
            self.named = {"a": Layer(3.0)}

        @TinyJit
        def __call__(self, x: Tensor) -> Tensor:
            for layer in [*self.layers, *self.named.values()]:
                x = layer(x) + 1
            return x

    model, x = Model(), Tensor([1.0]).realize()

    def check() -> None:
        assert [model(x).item() for _ in range(3)] == [Model.__call__.fxn(model, x).item()] * 3

    check()
    model.layers[1].k = 5.0
    check()
    model.layers[0].on = False
    check()
    model.layers.append(Layer(7.0))
    check()
    model.layers.reverse()
    check()
    model.named["b"] = Layer(0.5)
    check()
    model.named["a"].k = -1.0
    check()
    del model.layers[1:]
    check()
    assert Model.__call__.replays >= 15


def test_layers_of_ours_are_guarded_too() -> None:
    norm, drop = nn.LayerNorm(3), nn.Dropout(0.0)
    layers, x = [norm, drop], Tensor([1.0, 2.0, 4.0]).realize()
    f = TinyJit(lambda x: x.sequential(layers))
    for eps in (1e-5, 1e-5, 1e-5, 10.0, 10.0):
        norm.eps = eps
        np.testing.assert_allclose(f(x).numpy(), norm(x).numpy(), rtol=1e-5)
    layers.pop(0)
    assert f(x).tolist() == [1.0, 2.0, 4.0] and f.replays == 2


def test_a_gradient_that_is_looked_at_is_guarded() -> None:
    w = Tensor([1.0]).realize()
    f = TinyJit(lambda x: x if w.grad is None else x + w.grad)
    x = Tensor([1.0]).realize()
    for grad in (None, None, None, Tensor([2.0]), Tensor([3.0]), None):
        w.grad = grad
        assert f(x).item() == (1.0 if grad is None else 1.0 + grad.item())


def test_whether_state_was_computed_is_guarded_where_gradients_are_filled() -> None:
    state, w = [Tensor([3.0]) * 2], Tensor([1.0], requires_grad=True)

    @TinyJit
    def f(x: Tensor) -> list[Tensor]:
        (w * (x + state[0])).sum().backward()
        return [x + 1, state[0]]

    for n in range(8):
        if n == 4:
            state[0].assign(Tensor([1.0]).realize())
        f(Tensor([1.0]).realize())
        assert (state[0].grad is None) == (n < 4)
    assert state[0].grad is not None and state[0].grad.item() == 4


def test_state_that_a_helper_changes_keeps_the_call_uncaptured() -> None:
    counted = Holder(deep=[{"calls": 0}], h=Tensor([0.0]))

    def count() -> None:
        counted.deep[0]["calls"] += 1

    def body(x: Tensor) -> Tensor:
        count()
        return x + counted.deep[0]["calls"]

    f = TinyJit(body)
    with pytest.warns(UserWarning, match="changes Python values"):
        assert [f(Tensor([0.0])).item() for _ in range(5)] == [1.0, 2.0, 3.0, 4.0, 5.0]
    logged: list[Tensor] = []
    g = TinyJit(lambda x: (logged.append(x), x + 1)[1])
    with pytest.warns(UserWarning, match="changes Python values"):
        for _ in range(5):
            g(Tensor([0.0]))
    assert len(logged) == 5


def test_a_value_made_at_the_first_look_is_captured_later() -> None:
    class Model:
        @functools.cached_property
        def k(self) -> float:
            return 2.0

    model = Model()
    f = TinyJit(lambda x: x * model.k)
    assert [f(Tensor([1.0])).item() for _ in range(5)] == [2.0] * 5 and f.replays == 3


rng, drawn, numbers = np.random.default_rng(0), random.Random(0), iter(range(1000))


def generated() -> Iterator[int]:
    yield from range(1000)


steps = generated()


def nothing(x: Tensor) -> float:
    return 0.0


@pytest.mark.parametrize("name, read", [
    ("random.random", lambda: random.random()), ("random", lambda: random.randint(1, 9)),
    ("random", lambda: drawn.random()), ("np.random", lambda: float(np.random.rand())),
    ("np.random", lambda: float(rng.random())), ("urandom", lambda: float(np.random.default_rng().random())),
    ("time.time", lambda: time.time() % 1), ("time.perf_counter", lambda: time.perf_counter() % 1),
    ("os.environ", lambda: len(os.environ["PATH"])), ("os.environ", lambda: len(os.environ.get("PATH", ""))),
    ("os.environ", lambda: len(os.getenv("PATH", ""))), ("iterator", lambda: next(numbers)),
    ("generator", lambda: next(steps)), ("open", lambda: len(Path(__file__).read_text()))])
def test_what_no_replay_can_repeat_is_named_once_with_its_line(name: str, read: Any) -> None:
    ran = []

    def body(x: Tensor) -> Tensor:
        print("ran")
        return x * read()

    f, x = TinyJit(body), Tensor([1.0]).realize()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(4):
            ran.append(f(x).item())
    (warning,) = caught
    line = read.__code__.co_firstlineno
    assert name in str(warning.message) and f"test_state.py:{line}" in str(warning.message)
    assert warning.filename == __file__, "the warning stands at the call, not inside the package"
    assert f.replays == 0


def test_random_numbers_of_another_thread_do_not_count() -> None:
    """A loader that augments its data draws from NumPy's global generator while a function is captured."""
    stop, drawn = threading.Event(), threading.Event()

    def augment() -> None:
        while not stop.is_set():
            np.random.rand(3)
            drawn.set()

    def body(x: Tensor) -> Tensor:
        drawn.clear()
        drawn.wait(10)
        return (x * 2 + 1).sum()

    thread = threading.Thread(target=augment)
    thread.start()
    try:
        f, x = TinyJit(body), Tensor([1.0, 2.0]).realize()
        own = TinyJit(lambda x: x * np.random.rand())
        assert [f(x).item() for _ in range(4)] == [8.0] * 4 and f.replays == 2
        with pytest.warns(UserWarning, match=r"uses np.random"):
            for _ in range(4):
                own(x).realize()
        assert own.replays == 0
    finally:
        stop.set()
        thread.join()


def test_an_open_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "numbers").write_text("1\n2\n3\n4\n")
    with (tmp_path / "numbers").open() as lines:
        f = TinyJit(lambda x: x * float(lines.readline()))
        with pytest.warns(UserWarning, match=r"a file's readline at .*test_state.py:\d+; it runs uncaptured"):
            assert [f(Tensor([1.0])).item() for _ in range(4)] == [1.0, 2.0, 3.0, 4.0]
        lines.seek(0)
        g = TinyJit(lambda x: x * float(next(itertools.islice(lines, 1))))
        with pytest.warns(UserWarning, match="an open file at"):
            assert [g(Tensor([1.0])).item() for _ in range(4)] == [1.0, 2.0, 3.0, 4.0]


def test_a_generator_of_the_calls_own_and_our_use_of_the_clock_are_no_matter() -> None:
    f = TinyJit(lambda x: x + next(iter([1.0])) + sum(k for k in range(3)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [f(Tensor([1.0])).item() for _ in range(4)] == [5.0] * 4
    assert f.replays == 2


def test_what_the_garbage_collector_calls_is_no_matter() -> None:
    """Garbage collection callbacks, which may run between any two lines, are not part of the capture (Hypothesis reads
    the clock in one)."""
    seen, threshold = [], gc.get_threshold()

    def note(phase: str, info: dict[str, int]) -> None:
        seen.append(time.perf_counter())

    def body(x: Tensor) -> Tensor:
        for _ in range(50):
            cycle: list[Any] = []
            cycle.append(cycle)
        return x + 1

    f = TinyJit(body)
    gc.callbacks.append(note)
    gc.set_threshold(5)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert [f(Tensor([1.0])).item() for _ in range(4)] == [2.0] * 4
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(note)
    assert f.replays == 2 and seen and gc.isenabled()


def test_too_much_state_runs_uncaptured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "MOST_GUARDS", 100)
    many = [[n, [n]] for n in range(200)]
    f = TinyJit(lambda x: x + many[7][0])
    with pytest.warns(UserWarning, match="more Python state than guards support"):
        assert [f(Tensor([0.0])).item() for _ in range(3)] == [7.0] * 3
    many[7][0] = 8
    assert f(Tensor([0.0])).item() == 8.0


def test_results_that_are_one_object_stay_one() -> None:
    f = TinyJit(lambda x: (x + 1, b := x * 2, b, {"b": b, "l": [b]}))
    for n in range(5):
        a, b, c, more = f(Tensor([float(n)]))
        assert b is c is more["b"] is more["l"][0] and a is not b
        assert (a.item(), b.item()) == (n + 1.0, n * 2.0)

    def shared(x: Tensor) -> Any:
        inner = [x + 1]
        return inner, inner, np.array([1.0])

    g, kept = TinyJit(shared), []
    for _ in range(5):
        first, second, array = g(Tensor([1.0]))
        assert first is second and array[0] == 1.0
        array[0] = 5.0
        kept.append(first)
    assert len({id(k) for k in kept}) == 5


def test_a_list_from_before_the_call_is_returned_itself() -> None:
    cache = [Tensor([1.0]).realize()]
    f = TinyJit(lambda x: (x + cache[0], cache))
    with pytest.warns(UserWarning, match="was there before the call"):
        assert all(f(Tensor([1.0]))[1] is cache for _ in range(4))


def test_a_profiler_of_the_users_goes_on() -> None:
    def helper(x: Tensor) -> Tensor:
        return x + 1

    f, g, x = TinyJit(lambda x: helper(x)), TinyJit(lambda x: helper(x) * 2), Tensor([1.0]).realize()
    f(x)
    g(x)
    seen: list[str] = []

    def profile(frame: types.FrameType, event: str, arg: Any) -> None:
        if event == "call":
            seen.append(frame.f_code.co_name)

    sys.setprofile(profile)
    try:
        f(x)
        assert sys.getprofile() is profile
    finally:
        sys.setprofile(None)
    assert "helper" in seen
    profiler = cProfile.Profile()
    profiler.enable()
    g(x)
    helper(x)
    profiler.disable()
    assert any(entry.code is helper.__code__ for entry in profiler.getstats())


def test_debug_names_the_path_that_changed(capsys: pytest.CaptureFixture[str]) -> None:
    model = Holder(layers=[Holder(k=1.0)])
    f, x = TinyJit(lambda x: x * model.layers[0].k), Tensor([1.0]).realize()
    for _ in range(3):
        f(x)
    model.layers[0].k = 2.0
    with Context(DEBUG=1):
        assert f(x).item() == 2.0
    assert "changed: model.layers[0].k" in capsys.readouterr().out


def test_guards_hold_no_tensors() -> None:
    model = Holder(layers=[Holder(w=Tensor([1.0]).realize())], table={"w": Tensor([2.0]).realize()})
    f = TinyJit(lambda model, x: x * model.layers[0].w + model.table["w"])
    for _ in range(4):
        f(model, Tensor([1.0]))
    old = weakref.ref(model.layers[0].w)
    model.layers = [Holder(w=Tensor([3.0]).realize())]
    gc.collect()
    assert old() is None
    assert [f(model, Tensor([1.0])).item() for _ in range(4)] == [5.0] * 4
    gone = weakref.ref(model.table["w"])
    del model
    gc.collect()
    assert gone() is None


def test_giving_a_tensor_what_it_had_is_a_write_all_the_same() -> None:
    """An assignment that changes nothing at capture is replayed, since the tensor may have another value by then."""
    a, b, x = Tensor([1.0]).realize(), Tensor([2.0]).realize(), Tensor([3.0]).realize()

    def body(x: Tensor) -> Tensor:
        a.replace(x.detach())
        b.replace(a)
        return x * 2

    f = TinyJit(body)
    for n in range(6):
        f(x)
        assert (a.item(), b.item()) == (3.0, 3.0), n
        if n > 2:
            (a, b)[n % 2].assign(Tensor([9.0]))


def test_gradients_of_arguments_add_up() -> None:
    w, x = Tensor([1.0, 3.0]).realize(), Tensor([1.0, 2.0]).realize()

    def body(x: Tensor) -> Tensor:
        (w * x).sum().backward()
        return x + 1

    f = TinyJit(body)
    for _ in range(5):
        f(x)
    assert x.grad is not None and x.grad.tolist() == [5.0, 15.0]


def test_no_grad_around_a_call_is_part_of_it() -> None:
    w = Tensor([2.0]).realize()

    @TinyJit
    def slope(x: Tensor) -> Tensor:
        y = w * x
        return (y + w).sum().gradient(w)[0]

    for _ in range(3):
        assert slope(Tensor([3.0])).tolist() == [4.0]
        with Tensor.no_grad():
            assert slope(Tensor([3.0])).tolist() == [0.0]


def test_a_large_array_counts_by_identity_and_version() -> None:
    table = {"big": np.zeros((3, 1 << 20), np.float32), "k": 2.0}

    @TinyJit
    def f(x: Tensor) -> Tensor:
        return x * table["k"] + float(table["big"][0, 0])

    x = Tensor([1.0]).realize()
    assert [f(x).item() for _ in range(4)] == [2.0] * 4 and f.replays == 2
    table["big"][0, 0] = 3.0
    assert f(x).item() == 5.0
    table["big"] = table["big"] + 1
    assert f(x).item() == 6.0
    table["big"] = table["big"][:, ::2]
    table["big"] += 1
    assert [f(x).item() for _ in range(2)] == [7.0, 7.0]


def test_what_is_logged_and_a_file_that_is_only_written_are_no_state(tmp_path: Path) -> None:
    class Model:
        def __init__(self) -> None:
            self.logger = logging.getLogger("tests.jit")
            self.logger.addHandler(logging.StreamHandler())
            self.file = (tmp_path / "log").open("w")
            self.logger.handler = self.logger.handlers[0]  # type: ignore[attr-defined]
            self.w = Tensor([2.0]).realize()

        def __call__(self, x: Tensor) -> Tensor:
            stream = self.logger.handler.stream  # type: ignore[attr-defined]
            return x * self.w if stream is not None and self.file is not None else x

    model = Model()
    f = TinyJit(model.__call__)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [f(Tensor([n + 1.0])).item() for n in range(4)] == [2.0, 4.0, 6.0, 8.0]
    assert f.replays == 2
    model.file.close()


def test_a_value_that_the_function_changes_is_named_with_its_line_and_the_remedy() -> None:
    class Counter:
        def __init__(self) -> None:
            self.n, self.hist = 0, list[Tensor]()

        def count(self, x: Tensor) -> Tensor:
            self.n += 1
            return x + 1

        def keep(self, x: Tensor) -> Tensor:
            self.hist.append(x)
            return x + 1

    counter = Counter()
    for function, name in ((counter.count, "self.n"), (counter.keep, "self.hist")):
        f = TinyJit(function)
        with pytest.warns(UserWarning, match=rf"{name} at .*test_state.py:\d+.*in a tensor"):
            for n in range(4):
                assert f(Tensor([float(n)])).item() == n + 1
    assert (counter.n, len(counter.hist)) == (4, 4)
