"""Results and side effects of a captured function: containers, state, gradients, statistics, random draws."""
from __future__ import annotations

import dataclasses
import multiprocessing
import pickle
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from tests.golden.running import run, run_tutorial
from tinsmith import Context, GlobalCounters, Tensor, TinyJit, nn
from tinsmith.core.errors import JitError
from tinsmith.jit import CacheCollector
from tinsmith.nn.optim import SGD, Adam
from tinsmith.nn.state import get_parameters, get_state_dict


class Pair(NamedTuple):
    first: Tensor
    second: Any


@dataclasses.dataclass(frozen=True)
class Batch:
    x: Tensor
    name: str = "b"


@TinyJit
def plus_one(x: Tensor) -> Tensor:
    return x + 1


def test_nested_outputs_keep_their_types() -> None:
    f = TinyJit(lambda b: Pair(b.x + 1, {"a": [Batch(b.x * 2, b.name)], "n": None, "s": "text", "k": (1, 2.5)}))
    for n in range(4):
        out = f(Batch(Tensor([float(n)])))
        inner = out.second["a"][0]
        assert type(out) is Pair and type(inner) is Batch and inner.name == "b"
        assert (out.first.item(), inner.x.item()) == (n + 1.0, n * 2.0)
        assert (out.second["n"], out.second["s"], out.second["k"]) == (None, "text", (1, 2.5))


def test_tensors_in_other_objects_run_uncaptured() -> None:
    class Box:
        def __init__(self, t: Tensor) -> None:
            self.t = t

    f = TinyJit(lambda x: Box(x + 1))
    with pytest.warns(UserWarning, match="inside a Box"):
        assert [f(Tensor([float(n)])).t.item() for n in range(4)] == [1.0, 2.0, 3.0, 4.0]


def test_returned_inputs_state_and_nothing() -> None:
    w = Tensor([0.0]).realize()

    def body(x: Tensor) -> Any:
        w.assign(w + x)
        return x, w, x.reshape(1, 1), None

    f = TinyJit(body)
    for n in range(1, 6):
        x = Tensor([1.0]).realize()
        same, state, view, nothing = f(x)
        assert same is x and state is w and nothing is None
        assert (state.item(), view.tolist()) == (float(n), [[1.0]])
    g = TinyJit(lambda x: None)
    assert [g(Tensor([1.0])) for _ in range(4)] == [None] * 4


def test_an_argument_assigned_inside() -> None:
    @TinyJit
    def bump(x: Tensor) -> Tensor:
        x.assign(x + 1)
        return x * 10

    for n in range(5):
        x = Tensor([float(n)])
        assert bump(x).item() == (n + 1) * 10.0 and x.item() == n + 1.0


def test_empty_unrealized_view_and_keyword_arguments() -> None:
    f = TinyJit(lambda x, *, y, k=2: (x * k + y, x.shape))
    for n in range(4):
        big = Tensor([[1.0, 2.0], [3.0, 4.0]])
        assert f(big[1] + n, y=big.T[0], k=3)[0].tolist() == [3.0 * (3 + n) + 1, 3.0 * (4 + n) + 3]
        assert f(Tensor([]), y=Tensor([]))[0].tolist() == []
        assert f(y=Tensor(1.0), x=Tensor.ones(3))[0].tolist() == [3.0] * 3


def test_gradients_are_left_as_the_function_leaves_them() -> None:
    def losses(wrap: Any) -> list[Any]:
        w = Tensor([1.0, 2.0], requires_grad=True).realize()
        v = Tensor([3.0, 4.0]).realize()

        def step(x: Tensor) -> Tensor:
            return (w * v * x).sum().backward()  # adds up in w.grad

        f, found = wrap(step), []
        for n in range(6):
            x = Tensor([float(n), 1.0])
            found.append(f(x).item())
            assert w.grad is not None and v.grad is not None and x.grad is not None
            found.append((w.grad.tolist(), v.grad.tolist(), x.grad.tolist()))
            if n == 3:
                w.grad = None
        return found

    assert losses(TinyJit) == losses(lambda f: f)


def test_steps_leave_a_gradient_to_look_at() -> None:
    def seen(wrap: Any) -> list[Any]:
        w = Tensor([1.0, 2.0]).realize()
        opt = SGD([w], lr=0.1, momentum=0.9)

        def step(x: Tensor) -> Tensor:
            opt.zero_grad()
            loss = (w * w * x).sum().backward()
            opt.step()
            return loss

        f, found = wrap(step), []
        for n in range(6):
            found.append([f(Tensor([1.0, float(n)])).item(), w.grad.tolist(), w.tolist()])
            if n == 3:
                opt.lr.assign(Tensor([0.5]))
        return found

    for got, want in zip(seen(TinyJit), seen(lambda f: f)):
        for g, w in zip(got, want):
            np.testing.assert_allclose(g, w, rtol=1e-5)


def test_a_step_forgets_a_gradient_that_the_user_set_as_without_capture() -> None:
    def seen(wrap: Any) -> list[Any]:
        w, state = Tensor([1.0, 2.0]).realize(), Tensor([3.0, 4.0]).realize()
        opt = SGD([w], lr=0.1)

        def step(x: Tensor) -> Tensor:
            opt.zero_grad()
            loss = (w * state * x).sum().backward()  # gives state a gradient that nobody asked for
            opt.step()
            return loss

        f, found = wrap(step), []
        for n in range(8):
            if n % 3 == 2:
                opt.zero_grad()
                state.grad = Tensor([10.0, 20.0])  # is added to once, and forgotten then
            found.append([f(Tensor([1.0, float(n)])).item(), state.grad.tolist()])
        return found

    np.testing.assert_equal([s[1] for s in seen(TinyJit)], [s[1] for s in seen(lambda f: f)])


def test_a_gradient_that_is_read_before_it_is_forgotten() -> None:
    w, state = Tensor([1.0, 2.0]).realize(), Tensor([3.0, 4.0]).realize()
    opt = SGD([w], lr=0.0)

    @TinyJit
    def step(x: Tensor) -> Tensor:
        opt.zero_grad()
        x = x if state.grad is None else x + state.grad
        (w * x).sum().backward()
        opt.step()
        return x

    found = []
    for n in range(9):
        if n in (0, 6):
            state.grad = Tensor([10.0, 20.0])
        if n == 3:
            (state * 2).sum().backward()  # joins the ones that nobody asked for: forgotten before it is read
        found.append(step(Tensor([1.0, 1.0])).tolist())
    assert found == [[11.0, 21.0]] * 3 + [[1.0, 1.0]] * 3 + [[11.0, 21.0]] * 3


def test_a_gradient_from_before_the_call_is_that_of_today() -> None:
    """The old gradient is returned and written in place while its tensor gets a new one."""
    def seen(wrap: Any) -> list[Any]:
        w, kept, found = Tensor([1.0, 2.0], requires_grad=True).realize(), [], []

        def step(x: Tensor) -> Any:
            old = w.grad
            old *= 2
            w.grad = None
            return old, (w * x).sum().backward()

        f = wrap(step)
        w.grad = Tensor([1.0, 1.0])
        for n in range(6):
            kept.append(w.grad)
            old, loss = f(Tensor([1.0, float(n)]))
            assert old is kept[-1] and w.grad is not old
            found += [old.tolist(), loss.item()]
        return [*found, *(g.tolist() for g in kept), w.grad.tolist()]

    assert seen(TinyJit) == seen(lambda f: f)
    w = Tensor([1.0], requires_grad=True)
    f = TinyJit(lambda x: (w.grad, x + 1))
    for n in range(5):
        w.grad = Tensor([float(n)])
        assert f(w)[0] is w.grad and w.grad.tolist() == [n]


def test_batch_norm_dropout_and_adam_as_without_capture() -> None:
    def state(wrap: Any) -> dict[str, Any]:
        Tensor.manual_seed(0)
        model = [nn.Linear(6, 8), nn.BatchNorm(8), nn.Linear(8, 3)]
        opt = Adam(get_parameters(model), lr=0.05)

        def step(x: Tensor, y: Tensor) -> Tensor:
            opt.zero_grad()
            hidden = model[1](model[0](x)).relu().dropout(0.3)
            loss = model[2](hidden).sparse_categorical_crossentropy(y).backward()
            opt.step()
            return loss

        f = wrap(step)
        found: dict[str, Any] = {}
        with Tensor.train():
            for n in range(6):
                x, y = Tensor.randn(16, 6), Tensor.randint(16, high=3)
                found[f"loss {n}"] = f(x, y).numpy()
        return {**found, **{k: v.numpy() for k, v in get_state_dict(model).items()}}

    want, got = state(lambda f: f), state(TinyJit)
    assert got["1.num_batches_tracked"] == 6
    for key, value in want.items():
        np.testing.assert_allclose(got[key], value, rtol=2e-4, atol=1e-5, err_msg=key)


def test_a_training_step_is_replayed_and_verified() -> None:
    model = [nn.Linear(6, 8), nn.BatchNorm(8), nn.Linear(8, 3)]
    opt = Adam(get_parameters(model), lr=0.05)

    @TinyJit
    def step(x: Tensor, y: Tensor) -> Tensor:
        opt.zero_grad()
        hidden = model[1](model[0](x)).relu().dropout(0.2)
        loss = model[2](hidden).sparse_categorical_crossentropy(y).backward()
        opt.step()  # an attribute of the same name as the function
        return loss

    with Tensor.train():
        for _ in range(3):
            step(Tensor.randn(16, 6), Tensor.randint(16, high=3))
        with Context(VERIFY=2):
            for _ in range(6):
                step(Tensor.randn(16, 6), Tensor.randint(16, high=3))
    assert step.replays >= 6 and len(step.captures) == 1


def test_dropout_masks_differ() -> None:
    f = TinyJit(lambda x: x.dropout(0.5))
    with Tensor.train():
        masks = [tuple(f(Tensor.ones(64)).tolist()) for _ in range(6)]
    assert len(set(masks)) == 6


def test_replays_schedule_nothing_and_verify_agrees() -> None:
    w = Tensor([1.0]).realize()

    def step(x: Tensor) -> dict[str, Tensor]:
        w.assign(w + 1)
        return {"y": x * w + Tensor.rand(1), "n": (x * 3).cast("int32")}

    f = TinyJit(step)
    for _ in range(3):
        f(Tensor([1.0]))
    before = GlobalCounters.schedule_count
    x = Tensor([1.0]).realize()
    for _ in range(3):
        f(x)
    assert GlobalCounters.schedule_count == before and f.replays >= 4
    with Context(VERIFY=1):
        for _ in range(3):
            f(x)
    assert w.item() == 10.0


def test_verify_names_the_first_output_that_differs(request: pytest.FixtureRequest) -> None:
    w = Tensor([1.0]).realize()
    limit = sys.getrecursionlimit()

    def step(x: Tensor) -> Any:
        w.assign(w + (sys.getrecursionlimit() - limit + 1))
        return {"same": x + 1, "other": [x * (sys.getrecursionlimit() - limit + 1)]}

    f = TinyJit(step)
    for _ in range(3):
        f(Tensor([2.0]))
    request.addfinalizer(lambda: sys.setrecursionlimit(limit))
    sys.setrecursionlimit(limit + 2)
    f(Tensor([2.0]))  # no guard looks at the interpreter's settings
    assert f.replays == 2
    with Context(VERIFY=4):
        f(Tensor([2.0]))
        with pytest.raises(JitError, match=r"output \['other'\]\[0\].* 2\.0 at \(0,\), not 6\.0"):
            f(Tensor([2.0]))


def test_jit_off_and_debug_run_the_function(capsys: pytest.CaptureFixture[str]) -> None:
    def body(x: Tensor) -> Tensor:
        print("ran")
        return x + 1

    def runs(count: int) -> int:
        capsys.readouterr()
        for _ in range(count):
            f(Tensor([1.0]))
        return capsys.readouterr().out.split().count("ran")

    f = TinyJit(body)
    with Context(JIT=0):
        assert runs(4) == 4 and not f.captures
    assert runs(4) == 2 and len(f.jit_cache) == 1
    with Context(DEBUG=3):
        assert runs(1) == 1


def test_pickled_functions_capture_again(tmp_path: Path) -> None:
    for _ in range(3):
        plus_one(Tensor([1.0]))
    assert pickle.loads(pickle.dumps(plus_one)) is plus_one
    layer = TinyJit(nn.Linear(3, 2))
    x = Tensor([[1.0, 2.0, 3.0]])
    want = [layer(x).tolist() for _ in range(3)][-1]
    (tmp_path / "layer.pickle").write_bytes(pickle.dumps(layer))
    done = run(["-c", "import pickle\nfrom tinsmith import Tensor\nf = pickle.load(open('layer.pickle', 'rb'))\n"
                "for _ in range(4): out = f(Tensor([[1.0, 2.0, 3.0]])).tolist()\nprint(out, f.replays)"], tmp_path)
    assert done.stdout.strip() == f"{want} 2", done.stderr
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.map(_replayed, [plus_one]) == [[2.0]]


def _replayed(f: Any) -> Any:
    return [f(Tensor([1.0])).tolist() for _ in range(4)][-1]


def test_the_tutorials_names_and_example(tmp_path: Path) -> None:
    CacheCollector.start({})
    (Tensor([1.0]) + 1).realize()
    assert len(CacheCollector.finish()) == 1
    assert run_tutorial("jit", tmp_path).split() == ["11"] * 3
    script = tmp_path / "names.py"
    script.write_text("from tinygrad.engine.jit import TinyJit, CacheCollector, JitItem\n"
                      "print(TinyJit.__mro__[1].__module__)\n")
    assert run(["-m", "tinsmith.compat", str(script)], tmp_path).stdout == "tinsmith.jit.function\n"
