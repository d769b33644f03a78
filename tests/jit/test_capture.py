"""Replays give the results of the function: PAINS R1-R7, state, random draws, containers, guards."""
from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.golden.running import run
from tinsmith import GlobalCounters, Tensor, TinyJit, Variable, nn
from tinsmith.core.errors import JitError
from tinsmith.nn.optim import Adam
from tinsmith.nn.state import get_parameters


def test_another_shape_is_captured_anew() -> None:  # R1, R2
    f = TinyJit(lambda a, b: a + b)
    for _ in range(4):
        assert f(Tensor([1.0, 2.0, 3.0]), Tensor([1.0, 1.0, 1.0])).tolist() == [2.0, 3.0, 4.0]
    for n in (5, 2, 3, 5):
        assert f(Tensor.ones(n), Tensor.ones(n)).tolist() == [2.0] * n


def test_assigned_state_that_is_not_returned_moves_on() -> None:  # R3
    w = Tensor([0.0]).realize()

    @TinyJit
    def step() -> Tensor:
        w.assign(w + 1)
        return Tensor([7.0]) + 0

    for n in range(1, 7):
        step()
        assert w.tolist() == [float(n)]


def test_instances_do_not_share_captures() -> None:  # R4
    class Scale:
        def __init__(self, k: float) -> None:
            self.k = k

        @TinyJit
        def __call__(self, x: Tensor) -> Tensor:
            return x * self.k

    two, three = Scale(2), Scale(3)
    for _ in range(4):
        assert two(Tensor([1.0])).tolist() == [2.0]
        assert three(Tensor([1.0])).tolist() == [3.0]
    three.k = 5
    assert three(Tensor([1.0])).tolist() == [5.0]


def test_a_closed_over_number_is_a_guard() -> None:  # R5
    k = 0
    f = TinyJit(lambda x: x * k)
    for n in range(1, 6):
        k = n
        assert f(Tensor([1.0])).tolist() == [float(n)]


def test_results_of_earlier_calls_stay() -> None:  # R6
    f = TinyJit(lambda x: x * 2)
    kept = [f(Tensor([float(i)])) for i in range(1, 6)]
    assert [t.item() for t in kept] == [2.0, 4.0, 6.0, 8.0, 10.0]


def test_draws_go_on_and_match_the_uncaptured_run() -> None:  # R7
    def draw() -> Tensor:
        return Tensor.rand(4) + Tensor.rand(4)

    Tensor.manual_seed(3)
    expected = [draw().tolist() for _ in range(5)]
    Tensor.manual_seed(3)
    f = TinyJit(draw)
    assert [f().tolist() for _ in range(5)] == expected


def test_containers_repeated_and_viewed_arguments() -> None:
    f = TinyJit(lambda tree, k: {"sum": tree["a"] + tree["b"][0], "all": (tree["a"] * k, [tree["b"][0].T])})
    rng = np.random.default_rng(0)
    for _ in range(4):
        x = rng.standard_normal((3, 4)).astype(np.float32)
        a = Tensor(x).realize()
        out = f({"a": a, "b": [a]}, 3)
        np.testing.assert_allclose(out["sum"].numpy(), x + x)
        np.testing.assert_allclose(out["all"][0].numpy(), x * 3)
        np.testing.assert_allclose(out["all"][1][0].numpy(), x.T)
        part = f({"a": a[1:], "b": [Tensor(x[:2]).realize()]}, 3)
        np.testing.assert_allclose(part["sum"].numpy(), x[1:] + x[:2])


def test_a_host_read_runs_uncaptured_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    a, b = Tensor([1, 2]), Tensor([3, 4])

    @TinyJit
    def run() -> Any:
        result = a.dot(b).numpy()
        print(result)
        return result

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert [int(run()) for _ in range(4)] == [11] * 4
    assert capsys.readouterr().out.split() == ["11"] * 4
    assert len(caught) == 1 and "test_capture.py" in str(caught[0].message)


def test_nested_captures_are_refused() -> None:
    inner = TinyJit(lambda x: x + 1)
    outer = TinyJit(lambda x: inner(x) * 2)
    outer(Tensor([1.0]))
    with pytest.raises(JitError, match="captured"):
        outer(Tensor([1.0]))


def test_training_steps_equal_uncaptured_ones() -> None:
    def losses(wrap: Any) -> list[float]:
        Tensor.manual_seed(0)
        model = nn.Linear(8, 3)
        opt = Adam(get_parameters(model), lr=0.05)
        x, y = Tensor.randn(16, 8).realize(), Tensor.randint(16, high=3).realize()

        def step() -> Tensor:
            opt.zero_grad()
            loss = model(x).sparse_categorical_crossentropy(y).backward()
            return loss.realize(*opt.schedule_step())

        run = wrap(step)
        with Tensor.train():
            return [run().item() for _ in range(6)]

    np.testing.assert_allclose(losses(TinyJit), losses(lambda f: f), rtol=1e-6)


def test_an_old_version_kept_outside_is_not_written_over() -> None:
    w = Tensor([0.0]).realize()

    @TinyJit
    def step() -> Tensor:
        return w.assign(w + 1)

    kept = []
    for _ in range(5):
        kept.append(Tensor(w))
        step()
    assert [k.item() for k in kept] == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_looking_for_the_disk_cache_is_no_reason_not_to_capture(tmp_path: Path) -> None:
    script = """
from tinsmith import Tensor, TinyJit
f = TinyJit(lambda x: (x * Tensor([5.0, 6.0])).realize())
print([f(Tensor([1.0, n]).realize()).tolist() for n in range(4)], len(f.jit_cache))
"""
    done = run(["-W", "error", "-c", script], tmp_path, CACHE_DIR="", XDG_CACHE_HOME=str(tmp_path), CHECK_IR="0")
    assert done.stdout == "[[5.0, 0.0], [5.0, 6.0], [5.0, 12.0], [5.0, 18.0]] 1\n", done.stderr


@pytest.mark.parametrize("realized", [False, True])
def test_a_result_realized_over_pending_writes_is_computed_once(realized: bool) -> None:
    """A decoder that realized its token in the captured function ran twice: once for the token, with copies of the
    caches, and once to write them."""
    caches = [Tensor.zeros(4, 8).contiguous().realize() for _ in range(3)]

    @TinyJit
    def step(x: Tensor, row: Any) -> Tensor:
        for cache in caches:
            cache[row : row + 1] = x
            x = cache.sum(0, keepdim=True) * 0.5
        return x.realize() if realized else x

    row, want, counts = Variable("row", 0, 3), np.zeros((3, 4, 8), np.float32), []
    for n in range(6):
        given = np.full((1, 8), n + 1.0, np.float32)
        before = GlobalCounters.kernel_count
        got = step(Tensor(given).realize(), row.bind(n % 4))
        counts.append(GlobalCounters.kernel_count - before)
        for cache in want:
            cache[n % 4] = given
            given = cache.sum(0, keepdims=True) * 0.5
        np.testing.assert_allclose(got.numpy(), given, rtol=1e-6)
    for cache, expected in zip(caches, want):
        np.testing.assert_allclose(cache.numpy(), expected, rtol=1e-6)
    assert counts[-1] <= 6, "each cache is written and summed once"
