"""Movement methods against NumPy, and random chains of them."""
from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tensor.helpers import check, values
from tinsmith import Tensor, dtypes

X = values((2, 3, 4), dtypes.float32)


def test_shapes() -> None:
    t = Tensor(X)
    check(t.reshape(4, 6), X.reshape(4, 6))
    check(t.reshape((-1, 2)), X.reshape(-1, 2))
    check(t.reshape(None, -1), X.reshape(2, -1))
    check(t.view(24), X.reshape(24))
    check(t.flatten(), X.ravel())
    check(t.flatten(1), X.reshape(2, 12))
    check(t.flatten(0, 1), X.reshape(6, 4))
    check(t.unflatten(2, (2, 2)), X.reshape(2, 3, 2, 2))
    check(t.unsqueeze(1), X[:, None])
    check(t.unsqueeze(-1), X[..., None])
    check(t.unsqueeze(0).squeeze(0), X)
    check(t[:1].squeeze(), X[0])
    check(t.squeeze(1), X)
    check(Tensor(5.0).reshape(1, 1), [[5.0]])
    check(Tensor(np.zeros((0, 3), np.float32)).reshape(3, -1), np.zeros((3, 0)))


def test_a_shape_may_be_an_array() -> None:
    x = np.arange(6)
    check(Tensor(x).reshape(np.array([2, -1])), x.reshape(2, 3))
    check(Tensor(x).reshape(3, np.int8(2)), x.reshape(3, 2))
    assert Tensor.ones(np.array([2, 3])).shape == (2, 3)


def test_orders() -> None:
    t = Tensor(X)
    check(t.permute(2, 0, 1), X.transpose(2, 0, 1))
    check(t.permute((0, -1, 1)), X.transpose(0, 2, 1))
    check(t.transpose(), X.transpose(1, 0, 2))
    check(t.transpose(-1, 0), X.transpose(2, 1, 0))
    check(t.T, X.T)
    check(t.flip(0), X[::-1])
    check(t.flip((0, 2)), X[::-1, :, ::-1])
    check(t.flip(0, -1), X[::-1, :, ::-1])


def test_expand_and_shrink() -> None:
    row = X[:1, :, :1]
    check(Tensor(row).expand(5, 3, 2), np.broadcast_to(row, (5, 3, 2)))
    check(Tensor(row).expand(-1, None, 2), np.broadcast_to(row, (1, 3, 2)))
    check(Tensor(row).expand(7, 2, 3, 4), np.broadcast_to(row, (7, 2, 3, 4)))
    check(Tensor(row).expand_as(Tensor(X)), np.broadcast_to(row, X.shape))
    check(Tensor([1, 2]).broadcast_to(2, 2), [[1, 2], [1, 2]])
    check(Tensor(X).shrink(((0, 1), None, (1, 3))), X[:1, :, 1:3])


@pytest.mark.parametrize("dtype", [dtypes.bool, dtypes.int8, dtypes.float16, dtypes.float64], ids=str)
def test_pad(dtype) -> None:
    x = values((2, 3), dtype)
    check(Tensor(x).pad(((1, 2), (0, 1))), np.pad(x, ((1, 2), (0, 1))), dtype)
    check(Tensor(x).pad((None, (2, 0))), np.pad(x, ((0, 0), (2, 0))), dtype)
    check(Tensor(x).pad((1, 2)), np.pad(x, ((0, 0), (1, 2))), dtype)
    check(Tensor(x).pad((1, 2, 3, 4)), np.pad(x, ((3, 4), (1, 2))), dtype)
    check(Tensor(x).pad(((1, 0), (0, 1)), value=1), np.pad(x, ((1, 0), (0, 1)), constant_values=1), dtype)


def test_pad_special_cases() -> None:
    x = np.array([[1.0, np.nan], [np.inf, -0.0]], np.float32)
    check(Tensor(x).pad(((1, 1), (0, 0)), value=-np.inf), np.pad(x, ((1, 1), (0, 0)), constant_values=-np.inf))
    check(Tensor(X).pad((-1, 2)), np.pad(X[..., 1:], ((0, 0), (0, 0), (0, 2))))
    check(Tensor(np.zeros((0,), np.float32)).pad(((1, 1),), value=3), [3, 3])
    v = np.arange(4, dtype=np.float32)
    check(Tensor(v).pad((3, 2), mode="reflect"), np.pad(v, (3, 2), mode="reflect"))
    check(Tensor(v).pad((5, 2), mode="replicate"), np.pad(v, (5, 2), mode="edge"))
    check(Tensor(v).pad((4, 2), mode="circular"), np.pad(v, (4, 2), mode="wrap"))
    with pytest.raises(ValueError):
        Tensor(v).pad((4, 0), mode="reflect")


@pytest.mark.parametrize("dtype", dtypes.all, ids=str)
def test_cat_and_stack(dtype) -> None:
    parts = [values((2, n), dtype, seed=n) for n in (3, 0, 1, 4)]
    check(Tensor.cat(*map(Tensor, parts), dim=1), np.concatenate(parts, 1), dtype)
    check(Tensor(parts[0]).cat(Tensor(parts[0]), dim=-2), np.concatenate([parts[0]] * 2, 0), dtype)
    for axis in (0, 1, -1):
        check(Tensor.stack([Tensor(parts[0])] * 3, dim=axis), np.stack([parts[0]] * 3, axis), dtype)


def test_cat_is_exact() -> None:
    x, y = np.array([np.nan, -0.0, np.inf], np.float32), np.array([-0.0, np.nan], np.float32)
    got = Tensor(x).cat(Tensor(y)).numpy()
    np.testing.assert_array_equal(got.view(np.uint32), np.concatenate([x, y]).view(np.uint32))
    assert Tensor([1]).cat(Tensor([1.5])).dtype is dtypes.float32


def test_cat_of_many() -> None:
    parts = [np.full(n % 3 + 1, n, np.int32) for n in range(100)]
    check(Tensor.cat(*map(Tensor, parts)), np.concatenate(parts))


def test_split_chunk_repeat_roll() -> None:
    t = Tensor(X)
    for got, want in zip(t.split(2, 2), np.split(X, [2], 2)):
        check(got, want)
    for got, want in zip(t.split([1, 2], 1), np.split(X, [1], 1)):
        check(got, want)
    assert [c.shape for c in t.chunk(3, 2)] == [(2, 3, 2), (2, 3, 2)]
    assert [c.shape for c in Tensor.arange(5).chunk(2)] == [(3,), (2,)]
    check(t.repeat(2, 1, 3), np.tile(X, (2, 1, 3)))
    check(t.repeat((2, 1, 1, 2)), np.tile(X, (2, 1, 1, 2)))
    check(t.repeat_interleave(2, 1), X.repeat(2, 1))
    check(t.repeat_interleave(3), X.repeat(3))
    for shift in (-5, -1, 0, 1, 7):
        check(t.roll(shift, 1), np.roll(X, shift, 1))
        check(t.roll(shift), np.roll(X, shift))
    check(t.roll((1, 2), (0, 2)), np.roll(X, (1, 2), (0, 2)))
    for got, want in zip(Tensor([1, 2, 3]).meshgrid(Tensor([4, 5])), np.meshgrid([1, 2, 3], [4, 5], indexing="ij")):
        check(got, want)
    for got, want in zip(Tensor([1, 2, 3]).meshgrid(Tensor([4, 5]), indexing="xy"), np.meshgrid([1, 2, 3], [4, 5])):
        check(got, want)


def test_triangles_diagonals_windows() -> None:
    for k in (-2, 0, 1, 5):
        check(Tensor(X).tril(k), np.tril(X, k))
        check(Tensor(X).triu(k), np.triu(X, k))
        check(Tensor(X[0]).diagonal(k), np.diagonal(X[0], k))
        check(Tensor(X).diagonal(k, 0, 2), np.diagonal(X, k, 0, 2))
    nan = np.full((2, 2), np.nan, np.float32)
    check(Tensor(nan).tril(), np.tril(nan))
    check(Tensor([1, 2, 3]).diag(), np.diag([1, 2, 3]))
    v = np.arange(10)
    check(Tensor(v).unfold(0, 3, 2), np.lib.stride_tricks.sliding_window_view(v, 3)[::2])
    check(Tensor(X).unfold(2, 2, 1), np.lib.stride_tricks.sliding_window_view(X, 2, 2))


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(st.data())
def test_what_only_moves_data_is_numpys(data: st.DataObject) -> None:
    """Sizes near a vector's, at which loops are partitioned."""
    rows, columns = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 70))
    x = np.arange(rows * columns, dtype=np.float32).reshape(rows, columns)
    t, kind = Tensor(x).realize(), data.draw(st.sampled_from(("roll", "cat", "reflect", "edge", "wrap", "constant")))
    if kind == "roll":
        shifts = data.draw(st.tuples(st.integers(-9, 9), st.integers(-70, 70)))
        return check(t.roll(shifts, (0, 1)), np.roll(x, shifts, (0, 1)))
    if kind == "cat":
        axis = data.draw(st.integers(0, 1))
        parts = [x[: data.draw(st.integers(1, rows))] if axis == 0 else x[:, : data.draw(st.integers(1, columns))]
                 for _ in range(data.draw(st.integers(2, 4)))]
        made = [Tensor(p).realize() for p in parts]
        return check(made[0].cat(*made[1:], dim=axis).relu(), np.concatenate(parts, axis))
    most = [size - (kind == "reflect") if kind in ("reflect", "wrap") else 20 for size in x.shape]
    amounts = tuple((data.draw(st.integers(0, m)), data.draw(st.integers(0, m))) for m in most)
    mode = {"edge": "replicate", "wrap": "circular"}.get(kind, kind)
    return check(t.pad(amounts, mode=mode), np.pad(x, amounts, mode=kind))


# *** chains ***


@st.composite
def chains(draw) -> list[tuple[str, object]]:
    return draw(st.lists(st.tuples(st.sampled_from(["reshape", "permute", "flip", "expand", "pad", "shrink", "step",
                                                    "none"]),
                                   st.integers(0, 1 << 30)), min_size=1, max_size=6))


def _step(name: str, seed: int, x: np.ndarray, t: Tensor) -> tuple[np.ndarray, Tensor]:
    rng = np.random.default_rng(seed)
    axis = int(rng.integers(max(x.ndim, 1)))
    if name == "reshape":
        factors = [f for s in x.shape for f in ([2, s // 2] if s % 2 == 0 and rng.random() < 0.5 else [s])]
        if len(factors) > 1 and rng.random() < 0.5:
            k = int(rng.integers(len(factors) - 1))
            factors[k : k + 2] = [factors[k] * factors[k + 1]]
        return x.reshape(factors), t.reshape(factors)
    if name == "permute":
        order = tuple(int(i) for i in rng.permutation(x.ndim))
        return x.transpose(order), t.permute(order)
    if name == "flip":
        return np.flip(x, axis), t.flip(axis)
    if name == "expand":
        return np.broadcast_to(x, (2, *x.shape)), t.expand(2, *x.shape)
    if name == "pad":
        amounts = tuple((int(rng.integers(2)), int(rng.integers(2))) for _ in x.shape)
        return np.pad(x, amounts), t.pad(amounts)
    if name == "shrink":
        box = tuple((min(1, s - 1), s) for s in x.shape)
        return x[tuple(slice(b, e) for b, e in box)], t.shrink(box)
    if name == "step":
        step = int(rng.choice([-3, -2, -1, 2, 3]))
        index = (slice(None),) * axis + (slice(None, None, step),)
        return x[index], t[index]
    return x[..., None, :], t[..., None, :]


@settings(max_examples=40, deadline=None)
@given(chains())
def test_chains_index_like_numpy(steps) -> None:
    x = np.arange(1, 25).reshape(2, 3, 4)
    t = Tensor(x)
    for name, seed in steps:
        if x.size > 4000 or x.ndim > 7:
            break
        x, t = _step(name, seed, x, t)
    check(t + 0, x)


# *** errors ***


@pytest.mark.parametrize("bad, message", [
    (lambda t: t.reshape(5, 5), "24 elements"),
    (lambda t: t.reshape(-1, -1), "more than one"),
    (lambda t: t.permute(0, 1), "each of the 3 axes"),
    (lambda t: t.permute(0, 1, 1), "once"),
    (lambda t: t.expand(2, 5, 4), "not 1 or 5"),
    (lambda t: t.expand(4), "more axes"),
    (lambda t: t.shrink(((0, 3), None, None)), "no part of axis 0"),
    (lambda t: t.pad(((1, 1),)), "pairs"),
    (lambda t: t.split([1, 1], 1), "sum to 3"),
    (lambda t: Tensor.ones(3, 4).cat(Tensor.ones(5, 6)), r"\(5, 6\).*\(3, 4\).*axis 1"),  # PAINS R14
    (lambda t: t.cat(Tensor.ones(2)), "numbers of axes differ"),
    (lambda t: t.stack(Tensor.ones(2)), r"\(2,\)"),
    (lambda t: t.unsqueeze(9), "axis 9"),
    (lambda t: t.transpose(0, 3), "axis 3"),
    (lambda t: t.flatten(2, 1), "behind"),
    (lambda t: t.sum(3), "sum: axis 3"),
    (lambda t: t.sum((0, 0)), "twice"),
])
def test_errors_say_what_is_wrong(bad, message) -> None:
    t = Tensor(X)
    with pytest.raises((ValueError, IndexError), match=message) as caught:
        bad(t)
    assert "test_movement.py" in str(caught.value) and "Try:" in str(caught.value)
