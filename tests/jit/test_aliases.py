"""Results that alias state, arguments and each other, and state replaced while views of it exist."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tinsmith import Context, Tensor, TinyJit


def _masked(v: Tensor) -> Any:
    return v.masked_fill_(v >= 0, v.sum() / 3 + 1)


def _item(v: Tensor) -> Any:
    v[:] = v + 1


WRITES: dict[str, Callable[[Tensor], Any]] = {
    "assign": lambda v: v.assign(v + 1), "add_": lambda v: v.add_(1), "setitem": _item, "masked_fill_": _masked,
    "scatter_": lambda v: v.scatter_(0, Tensor([0, 1, 2]), v + 1),
    "index_put_": lambda v: v.index_put_((Tensor([0, 1, 2]),), v + 1)}
RESULTS: dict[str, Callable[[Tensor], Tensor]] = {
    "detach": lambda v: v.detach(), "view": lambda v: v[:2], "of a view": lambda v: v.reshape(1, 3)[0][:2].detach(),
    "flip": lambda v: v.flip(0).flip(0), "reversed": lambda v: v[::-1][::-1]}


@pytest.mark.parametrize("result", RESULTS)
@pytest.mark.parametrize("how", WRITES)
def test_results_of_written_state_show_what_was_written(how: str, result: str) -> None:
    v = Tensor([0.0, 0.0, 0.0]).realize()

    @TinyJit
    def f() -> Tensor:
        WRITES[how](v)
        return RESULTS[result](v)

    kept = []
    for n in range(7):
        kept.append(f())
        assert kept[-1].tolist()[0] == v.tolist()[0] == n + 1
    assert f.replays == 5
    want = [float(n + 1) if result == "flip" else 7.0 for n in range(7)]  # flip() is a copy, as in PyTorch
    assert [k.tolist()[0] for k in kept] == want


@pytest.mark.parametrize("result", RESULTS)
def test_results_of_replaced_state_keep_what_they_showed(result: str) -> None:
    v = Tensor([0.0, 0.0, 0.0]).realize()
    first = v[:2]

    @TinyJit
    def f() -> Tensor:
        v.replace(v + 1)
        return RESULTS[result](v)

    kept = []
    for n in range(7):
        view = v[:2]
        kept.append(f())
        assert kept[-1].tolist()[0] == v.tolist()[0] == n + 1
        assert view.tolist() == [n, n]
    assert f.replays == 5 and first.tolist() == [0.0, 0.0]
    assert [k.tolist()[0] for k in kept] == [n + 1 for n in range(7)]
    kept[-1][:1] = 50.0
    assert v.tolist()[0] == (7 if result == "flip" else 50)


@pytest.mark.parametrize("late", [False, True])
def test_views_of_replaced_state_show_what_was_written_to_its_old_memory(late: bool) -> None:
    v = Tensor([0.0, 0.0]).realize()

    @TinyJit
    def f() -> Tensor:
        old = v.detach()
        if not late:
            old += 5
        v.replace(v + 1)
        if late:
            old += 5
        return v.clone()

    for n in range(8):
        before, view = v.tolist()[0], v[1:] if n in (1, 4, 6) else None
        assert f().tolist()[0] == v.tolist()[0] == before + (1 if late else 6)
        assert view is None or view.tolist() == [before + 5]
    assert f.replays == 3


def test_a_base_that_was_written_between_calls_is_read_through_its_view() -> None:
    b = Tensor([[0.0, 1.0], [2.0, 3.0]]).realize()
    w = b[:, 1:]

    @TinyJit
    def f() -> Tensor:
        w[0] = 50.0
        return w.flip(0)

    f(), f()
    b.assign(Tensor.full((2, 2), 7.0))
    assert f().tolist() == [[7.0], [50.0]]
    assert (b.tolist(), f.replays) == ([[7.0, 50.0], [7.0, 7.0]], 1)
    b.replace(Tensor([[1.0, 1.0], [1.0, 1.0]]))
    assert (f().tolist(), b.tolist(), w.tolist()) == ([[7.0], [50.0]], [[1.0, 1.0], [1.0, 1.0]], [[50.0], [7.0]])


def test_writes_to_results_reach_arguments_state_and_other_results() -> None:
    state = Tensor([[1.0, 2.0], [3.0, 4.0]]).realize()

    @TinyJit
    def f(x: Tensor) -> tuple[Tensor, ...]:
        y = x + 1
        return x[1:], state.T[0], y, y[:2], y[1:].detach()

    for n in range(5):
        x = Tensor([1.0, 2.0, 3.0]).realize()
        of_x, of_state, y, first, last = f(x)
        of_x[0] = of_state[1] = last[0] = n * 10
        assert x.tolist() == [1.0, n * 10, 3.0]
        assert state.tolist() == [[1.0, 2.0], [n * 10, 4.0]]
        assert (y.tolist(), first.tolist()) == ([2.0, n * 10, 4.0], [2.0, n * 10])
    assert f.replays == 3


def test_arguments_that_share_memory_though_they_were_computed_apart() -> None:
    def body(x: Tensor, y: Tensor) -> Tensor:
        x += 1
        return y * 2

    f = TinyJit(body)
    for n in range(8):
        x = Tensor([1.0, 2.0]).realize()
        y = x.detach().realize() if n > 3 else Tensor([1.0, 2.0]).realize()
        assert f(x, y).tolist() == ([4.0, 6.0] if n > 3 else [2.0, 4.0]), n


def test_an_argument_that_looks_at_state_which_is_only_written() -> None:
    state = Tensor([1.0, 2.0]).realize()

    @TinyJit
    def f(x: Tensor) -> Tensor:
        state.assign(Tensor([5.0, 6.0]))
        return x * 2

    for _ in range(4):
        assert f(Tensor([1.0, 2.0]).realize()).tolist() == [2.0, 4.0]
    state.assign(Tensor([1.0, 2.0]))
    assert f(state).tolist() == [10.0, 12.0]
    state.assign(Tensor([1.0, 2.0]))
    assert f(state[:]).tolist() == [10.0, 12.0]


def test_a_detached_view_that_the_function_keeps_is_replayed() -> None:
    state = Tensor([1.0, 2.0]).realize()
    seen = state.detach()

    @TinyJit
    def f() -> Tensor:
        state.assign(state + 1)
        return seen * 2

    assert [f().tolist()[0] for _ in range(6)] == [4.0, 6.0, 8.0, 10.0, 12.0, 14.0]
    assert f.replays == 4


def test_a_copy_made_between_calls_is_no_view() -> None:
    state = Tensor([[1.0, 2.0], [3.0, 4.0]]).realize()
    view = state.T

    @TinyJit
    def f() -> None:
        view.assign(view + 1)

    f(), f()
    copied = view.reshape(4)  # strides cannot say it
    f()
    assert copied.tolist() == [3.0, 5.0, 4.0, 6.0]
    assert state.tolist() == [[4.0, 5.0], [6.0, 7.0]]


def test_computing_a_result_computes_the_memory_that_views_share() -> None:
    base = Tensor(np.arange(6, dtype=np.float32).reshape(2, 3)).realize()
    view = base[1]
    view[0] = 9.0
    copy = view.flip(0).realize()
    assert view._shared is not None and view._shared.storage.value is base.uop
    assert (copy.tolist(), base.tolist()) == ([5.0, 4.0, 9.0], [[0.0, 1.0, 2.0], [9.0, 4.0, 5.0]])


def test_verify_leaves_shared_memory_as_it_was() -> None:
    state = Tensor([1.0, 2.0, 3.0]).realize()

    @TinyJit
    def f() -> Tensor:
        state.add_(1)
        return state[1:]

    with Context(VERIFY=1):
        for n in range(5):
            result = f()
            result += 10
            assert state.tolist() == [2.0 + n, 13.0 + 11 * n, 14.0 + 11 * n]


def test_a_bound_size_in_the_looks_of_a_result() -> None:
    from tinsmith import Variable

    f = TinyJit(lambda x, n: (x * 2, x[:n]))
    x = Tensor([1.0, 2.0, 3.0, 4.0]).realize()
    for size in (2, 2, 3, 4, 1):
        _, part = f(x, Variable("n", 1, 4).bind(size))
        part *= 2
        assert part.numpy()[:size].tolist() == x.tolist()[:size]
    assert x.tolist() == [32.0, 32.0, 12.0, 8.0]


def test_a_reshape_that_copies_still_copies_when_the_base_of_the_view_is_gone() -> None:
    for take in (lambda t: t.T, lambda t: t[:, 1:]):
        base = Tensor(np.arange(9, dtype=np.float32).reshape(3, 3)).realize()
        view = take(base)

        @TinyJit
        def f(view: Tensor = view) -> Tensor:
            copy = view.reshape(-1)
            copy[0] = 50.0
            return copy * 2

        want = view.tolist()
        for n in range(8):
            if n == 4:
                del base
            elif n == 6:
                view.assign(view + 1)
                want = [[v + 1 for v in row] for row in want]
            assert f().tolist() == [100.0, *[2 * v for row in want for v in row][1:]], n
            assert view.tolist() == want, n


PARTS = {"transpose": lambda x: x.T, "columns": lambda x: x[:, 1:], "rows of a transpose": lambda x: x.T[1:],
         "an expanded value": lambda x: x.unsqueeze(2).expand(3, 3, 2)[..., 0].T, "rows": lambda x: x[1:]}


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("how", ["lazy", "realized", "captured"])
def test_a_reshape_of_a_part_of_a_computed_value_copies_or_not_whenever_it_is_computed(part: str, how: str) -> None:
    """PyTorch decides by strides: ``reshape(-1)`` of columns is a copy, of rows a view."""
    f = lambda w: PARTS[part]((w + 1) * 2)  # noqa: E731
    call = TinyJit(f) if how == "captured" else f
    w = Tensor(np.arange(9, dtype=np.float32).reshape(3, 3)).realize()
    for _ in range(5):
        x = call(w)
        if how == "realized":
            x.realize()
        before = x.numpy().copy()
        flat = x.reshape(-1)
        flat[0] = 50
        assert (x.numpy() == before).all() == (part != "rows")
        assert flat.numpy()[0] == 50
