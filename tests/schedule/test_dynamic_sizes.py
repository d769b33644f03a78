"""Programs whose sizes became variables: results beside programs of fixed sizes, NumPy's values, and the number of
programs."""
from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.properties.runner import FEW
from tinsmith import Context, GlobalCounters, Tensor, Variable, dtypes, nn, with_opts
from tinsmith.core.dtypes import DType
from tinsmith.runtime import symbolic_programs
from tinsmith.runtime.symbolic_programs import Served
from tinsmith.schedule.passes.dynamic_sizes import Refused, SizeHistory, related
from tinsmith.schedule.schedule_item import Slot

ORIGINAL: Any = SizeHistory.is_slow


@pytest.fixture(autouse=True)
def dynamic(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for table in symbolic_programs.tables:  # sizes that other tests of this process drew
        table.clear()
    monkeypatch.setattr(SizeHistory, "is_slow", False)  # whatever the machine does meanwhile
    with Context(DYNAMIC=1):
        yield


SIZES = (5, 9, 7, 12, 3, 17, 33, 64, 2, 100)


def data(*shape: int) -> Tensor:
    rng = np.random.default_rng(sum(shape))
    return Tensor(rng.standard_normal(shape).astype(np.float32)).realize()


WEIGHT, CACHE = data(6, 4), data(100, 6)
CASES: dict[str, Callable[[int], Tensor]] = {
    "elementwise": lambda n: data(n, 3) * 2 + 1,
    "product": lambda n: data(n, 6) @ WEIGHT,
    "product of both": lambda n: data(n, 5) @ data(5, n),
    "square": lambda n: data(n, n) @ data(n, n),
    "mean": lambda n: data(n, 3).mean(0),
    "softmax": lambda n: data(2, n).softmax(1),
    "variance": lambda n: data(3, n).var(1),
    "mask": lambda n: data(n, n).tril().sum(1),
    "cat": lambda n: data(n, 2).cat(data(3, 2)),
    "flip and slice": lambda n: data(n + 3, 2).flip(0)[1:n],
    "pad": lambda n: data(n).pad((1, 2)),
    "argmax": lambda n: data(3, n).argmax(1),
    "cumsum": lambda n: data(n, 2).cumsum(0),
    "gather": lambda n: data(n, 3)[Tensor([0, n - 1, 1])],
    "attention": lambda n: data(1, 2, n, 4).scaled_dot_product_attention(data(1, 2, n, 4), data(1, 2, n, 4),
                                                                         is_causal=True),
    "convolution": lambda n: data(1, 2, n + 4, 8).conv2d(data(3, 2, 3, 3)),
    "pooling": lambda n: data(1, 2, n + 4, 8).max_pool2d((2, 2)),
    "two sizes": lambda n: data(n, 2 * n + 1).sum(1) + data(n),
    "window": lambda n: data(n + 2).unfold(0, 2, 1).sum(1),
    "square and predecessor": lambda n: (data(n, 3) @ data(3, n)).reshape(n * n)[1:].sum() + data(n + 1)[:n - 1].sum(),
    "part of fixed memory": lambda n: CACHE[:n].softmax(0) @ WEIGHT,
    "arange": lambda n: Tensor.arange(n).float().sqrt(),
    "constant": lambda n: data(4) * (n / 7),
    "nothing changes but a constant": lambda n: data(4) + n,
}


@pytest.mark.parametrize("name", CASES)
def test_results_are_those_of_fixed_sizes(name: str) -> None:
    for n in SIZES:
        with Context(DYNAMIC=0):
            want = CASES[name](n).numpy()
        for _ in range(2):
            got = CASES[name](n).numpy()
            assert got.shape == want.shape
            np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5, err_msg=f"size {n}")


@pytest.mark.parametrize("take", [lambda x: x.sum(), lambda x: x.exp().sum(0), lambda x: x.max(), lambda x: x.var(0),
                                  lambda x: x.square().sum().sqrt()])
def test_long_reductions_are_accurate(take: Callable[[Tensor], Tensor]) -> None:
    for n in (40_009, 70_001, 5, 99_991, 16384, 1_500_007, 32768, 131072):
        x = Tensor(np.resize(np.float64([1 / 3, 0.3, 0.4]), n), dtype="float64").realize()
        np.testing.assert_allclose(take(x.float()).numpy(), take(x).numpy(), rtol=1e-5, err_msg=f"size {n}")
    for n, m in ((200, 201), (3, 40_000), (1009, 1013), (40_000, 3), (1500, 1500), (1, 7)):
        x = Tensor(np.resize(np.float64([1 / 3, 0.3, 0.4]), (n, m)), dtype="float64").realize()
        got, want = (take(t) for t in (x.float(), x))
        # of an unknown number, columns are added in order: n rounding errors of 2⁻²⁴ at most
        np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=max(1e-4, n * 2**-24), atol=1e-9,
                                   err_msg=f"sizes {n} and {m}")


def test_typical_sizes_may_leave_no_elements_of_a_range() -> None:
    for n in range(3, 12):
        for m in (n - 1, n + 1):
            a = np.random.default_rng(n).standard_normal((m, n)).astype(np.float32)
            q, r = Tensor(a).qr("complete")
            np.testing.assert_allclose(q.numpy() @ r.numpy(), a, atol=1e-5)
        x = data(2, 3, n, n + 1)
        np.testing.assert_allclose(x.max_pool2d(3).mean((2, 3)).numpy(), x.numpy()[
            :, :, : n // 3 * 3, : (n + 1) // 3 * 3].reshape(2, 3, n // 3, 3, (n + 1) // 3, 3).max((3, 5)).mean((2, 3)),
            rtol=1e-5)


def test_a_growing_length_takes_few_programs() -> None:
    layer, out = nn.Linear(8, 8), nn.Linear(8, 3)

    def run(n: int) -> Tensor:
        x = Tensor(np.ones((1, n, 8), np.float32)).realize()
        y = layer(x)
        return out(y.scaled_dot_product_attention(y, y, is_causal=True))[:, -1].softmax()

    with Context(DYNAMIC=1):
        for n in range(3, 6):
            run(n).realize()
        before = GlobalCounters.schedule_count
        for n in range(6, 40):
            run(n).realize()
    assert GlobalCounters.schedule_count == before


def test_growing_slices_of_fixed_memory_share_a_program() -> None:
    cache = data(50, 6)
    before = GlobalCounters.schedule_count
    for n in range(20, 50):
        np.testing.assert_allclose((cache[:n] * 2).sum(0).numpy(), cache.numpy()[:n].sum(0) * 2, rtol=1e-4)
    assert GlobalCounters.schedule_count == before + 2


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.bfloat16, dtypes.float16])
def test_zeros_of_both_signs_are_two_constants(dtype: DType) -> None:
    for n in range(3, 9):
        for zero in (0.0, -0.0):
            found = 1 / (data(n).cast(dtype) * 0 + zero).copysign(zero).float()
            assert (found.numpy() == np.copysign(np.inf, zero)).all()


@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16, dtypes.float64, dtypes.int32, dtypes.uint8,
                                   dtypes.int64, dtypes.bool])
def test_dtypes(dtype: DType) -> None:
    for n in SIZES:
        x = (data(n, 5) * 3).cast(dtype)
        with Context(DYNAMIC=0):
            want = [x.flip(0).float().numpy(), x.max(0).float().numpy(), (x + x).sum(1).float().numpy()]
        for got, right in zip((x.flip(0), x.max(0), (x + x).sum(1)), want):
            np.testing.assert_allclose(got.float().numpy(), right, rtol=1e-2)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 8, 11, 40])
def test_rows_of_a_product(size: int) -> None:
    rows, columns = data(40, 9), data(9, 32)
    part = rows[: Variable("n", 1, 40).bind(size)]
    np.testing.assert_allclose((part @ columns).numpy(), rows.numpy()[:size] @ columns.numpy(), rtol=1e-4, atol=1e-5)


def test_a_size_that_stays_gets_its_own_program() -> None:
    inputs = {n: data(n, 7, 3) for n in (11, 13, 19)}
    for x in inputs.values():
        (x.exp() + 1).sum(2).realize()
    before = GlobalCounters.schedule_count
    for _ in range(40):
        (inputs[19].exp() + 1).sum(2).realize()
    assert GlobalCounters.schedule_count == before + 1


def test_where_running_takes_longer_than_compiling_new_sizes_get_their_own_programs(
        monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = [data(n, 3, 2) for n in range(21, 27)]
    for x in inputs[:4]:
        (x.sin() - 2).sum(1).realize()
    monkeypatch.setattr(SizeHistory, "is_slow", True)
    before = GlobalCounters.schedule_count
    for x in inputs[4:]:
        (x.sin() - 2).sum(1).realize()
    assert GlobalCounters.schedule_count == before + 2


def test_the_time_of_first_runs_and_of_compiling_decide() -> None:
    history = SizeHistory(seconds=1.0)
    served = Served(None, None, "CPU", [], [], history)  # type: ignore[arg-type]
    for seconds, slow, stays in ((0.25, False, False), (0.5, False, False), (0.5, False, True)):
        served.ran(seconds)
        assert (ORIGINAL.fget(history), served.stays) == (slow, stays)
    other = replace(served, seconds=0.0, runs=0)
    other.ran(2.0)
    assert ORIGINAL.fget(history) and other.stays


def test_without_dynamic_each_size_has_its_own_program() -> None:
    with Context(DYNAMIC=0):
        before = GlobalCounters.schedule_count
        for n in range(41, 47):
            (data(n, 2) * 3 - 1).realize()
    assert GlobalCounters.schedule_count == before + 6


def test_batches_of_any_size_train_as_fixed_ones() -> None:
    def train(dynamic: int) -> list[float]:
        Tensor.manual_seed(3)
        model = nn.Linear(6, 5), nn.Linear(5, 2)
        opt = nn.optim.Adam(nn.state.get_parameters(model), lr=0.01)
        losses = []
        with Context(DYNAMIC=dynamic), Tensor.train():
            for n in (8, 5, 7, 3, 9, 8, 6, 2, 11):
                y = model[1](model[0](data(n, 6)).relu())
                loss = y.sparse_categorical_crossentropy(Tensor(np.arange(n) % 2))
                opt.zero_grad()
                loss.backward()
                opt.step()
                losses.append(loss.item())
        return losses

    np.testing.assert_allclose(train(1), train(0), rtol=1e-4)


def test_values_held_before_stay() -> None:
    held = [data(n, 4) * 2 for n in SIZES]
    for t in held:
        t.realize()
    for n, t in zip(SIZES, held):
        np.testing.assert_array_equal(t.numpy(), data(n, 4).numpy() * 2)


def test_writes_to_tensors_that_change_keep_their_programs() -> None:
    for n in SIZES:
        x = data(n, 2)
        want = x.numpy() + 1
        x += 1
        np.testing.assert_array_equal(x.numpy(), want)


STEPS: list[Callable[[Tensor], Tensor]] = [
    lambda x: (x * 0.1).exp(),
    lambda x: x + x.sum(0, keepdim=True),
    lambda x: x.flip(1),
    lambda x: x.pad(((0, 0), (1, 0), (0, 0))),
    lambda x: x[:, 1:] if x.shape[1] > 2 else x,
    lambda x: x.transpose(0, 1),
    lambda x: x @ data(x.shape[2], x.shape[2]),
    lambda x: x.maximum(x.max(1, keepdim=True) * 0.5),
    lambda x: x / x.shape[0],
    lambda x: x.cat(x * 2, dim=0),
    lambda x: x.softmax(0),
]


def program(rng: random.Random) -> Callable[[int, int], Tensor]:
    """Return a random program of two sizes."""
    steps = [rng.choice(STEPS) for _ in range(rng.randint(2, 6))]
    inner = rng.choice([1, 3, 4, 8])

    def run(n: int, m: int) -> Tensor:
        x = data(n, m, inner)
        for step in steps:
            x = step(x)
        return x

    return run


@pytest.mark.parametrize("seed", range(6 * FEW))
def test_random_programs_of_two_sizes(seed: int) -> None:
    rng = random.Random(seed)
    run = program(rng)
    for _ in range(6):
        n, m = rng.choice((2, 3, 5, 8, 13, 16, 31)), rng.choice((2, 3, 4, 7, 10, 17))
        with Context(DYNAMIC=0):
            want = run(n, m).numpy()
        np.testing.assert_allclose(run(n, m).numpy(), want, rtol=1e-4, atol=1e-4, err_msg=f"{n}, {m}")


def test_sizes_that_are_0_or_1_are_no_variables() -> None:
    with pytest.raises(Refused, match="0 or 1"):
        related({0: (0, 1, 5)})
    for n in (4, 1, 6, 0, 9, 1, 5, 0):
        assert (data(n, 3) + 1).sum(1).shape == (n,)
        np.testing.assert_allclose((data(n, 3) + 1).sum(1).numpy(), (data(n, 3).numpy() + 1).sum(1), rtol=1e-5)


@pytest.mark.parametrize("small", [0, 1])
def test_small_sizes_among_others_do_not_forbid_variables(small: int) -> None:
    """A batch of one among others, or a length that grows from one: the other sizes share a program."""
    def check(n: int) -> None:
        x, w = data(n, 3), data(3, n)
        np.testing.assert_allclose(((x * 2) @ w + x.sum(1)).tanh().numpy(), np.tanh(
            x.numpy() * 2 @ w.numpy() + x.numpy().sum(1)), rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose((CACHE[:n] * 3).sum(0).numpy(), CACHE.numpy()[:n].sum(0) * 3, rtol=1e-5, atol=1e-5)

    for n in (small, 21, small, 23, 25, small):
        check(n)
    before = GlobalCounters.schedule_count
    for n in (27, 31, small, 22, 29):
        check(n)
    assert GlobalCounters.schedule_count == before


def test_several_axes_of_unknown_size_have_a_bounded_grid() -> None:
    """A grid of the greatest sizes of all four axes would have more than 10⁹ blocks, nearly all of them idle."""
    sizes = [Variable(f"n{k}", 1, 200).bind(2 + k) for k in range(4)]
    x = Tensor.ones(*sizes, device="PYTHON:G64")
    kernel = with_opts(x + 1, None)
    assert math.prod(kernel.kernel.grid) <= 200 * 64
    np.testing.assert_array_equal(kernel.run(), np.full((2, 3, 4, 5), 2))


def test_sizes_that_shrink_while_others_grow_have_their_memory() -> None:
    """Two sets of sizes fit many linear relations; memory for a rounded size must hold the smaller ones, too."""
    for n in (5, 9, 11, 6, 3):
        x = Tensor(np.arange(n * (40 - 2 * n), dtype=np.float32).reshape(n, -1))
        got = ((x + 1).contiguous().sum(0) * 2).contiguous().numpy()
        np.testing.assert_array_equal(got, (x.numpy() + 1).sum(0) * 2)


def test_an_upper_bound_of_elements() -> None:
    slot = Slot(0, 100, dtypes.float32, "CPU", terms=((40, ()), (-2, (0,)), (3, (0, 1))))
    most = slot.most_elements([3, 2], [4, 2])
    assert most >= max(slot.elements([n, 2]) for n in (3, 4)) and most == 40 - 6 + 24


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_windows_whose_taps_and_positions_are_variables(dtype: str) -> None:
    """Memory is contiguous along both sides of a window: only one of them may fill a panel with vectors."""
    rng = np.random.default_rng(0)
    for batch, channels, out, taps, length in ((1, 32, 64, 3, 63), (3, 64, 32, 3, 31), (1, 64, 64, 4, 101)):
        x = rng.integers(-3, 4, (batch, channels, length)).astype(np.float32)
        g = rng.integers(-3, 4, (batch, out, length - taps + 1)).astype(np.float32)
        image, gradient = (Tensor(a).cast(dtype).realize() for a in (x, g))
        weight = Tensor.zeros(out, channels, taps).cast(dtype).realize()
        (found,) = image.conv2d(weight).gradient(weight, gradient=gradient)
        windows = np.lib.stride_tricks.sliding_window_view(x, taps, 2)
        exact = np.einsum("bctk,bot->ock", windows.astype(np.float64), g.astype(np.float64))
        np.testing.assert_allclose(found.float().numpy(), exact, rtol=1e-2, atol=1)


PADDED = st.lists(st.tuples(*(st.integers(2, 5) for _ in range(2)), *(st.integers(0, 3) for _ in range(4))), min_size=2,
                 max_size=4, unique=True)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(PADDED, st.sampled_from(("plain", "turned", "flipped", "axis")), st.sampled_from((np.int64, np.float32)))
@example([(3, 4, 2, 3, 1, 3), (4, 4, 0, 3, 1, 2)], "turned", np.int64)
@example([(4, 3, 2, 3, 1, 3), (4, 4, 0, 3, 1, 2)], "flipped", np.int64)
def test_padding_of_sizes_that_change_is_zero(sizes: list[tuple[int, ...]], how: str, dtype: type) -> None:
    """In the tail of a loop, copies of rows beyond the padded ones repeated the last row of the array."""
    for table in symbolic_programs.tables:
        table.clear()
    for rows, columns, *amounts in sizes:
        x = np.arange(1, 1 + rows * columns).astype(dtype).reshape(rows, columns)
        t = Tensor(x)
        if how == "turned":
            x, t = x.T, t.permute(1, 0)
        elif how == "flipped":
            x, t = np.flip(x, 1).T, t.flip(1).permute(1, 0)
        pads = ((amounts[0], amounts[1]), (amounts[2], amounts[3]))
        if how == "axis":
            x, t, pads = x[:, None], t.unsqueeze(1), (pads[0], (1, 2), pads[1])
        np.testing.assert_array_equal((t.pad(pads) + 0).numpy(), np.pad(x, pads))
