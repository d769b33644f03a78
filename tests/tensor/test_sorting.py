"""Sorting against NumPy: both algorithms, every dtype, stability, NaN, every axis; derived functions; gradients."""
from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.schedule.helpers import given as given_values
from tests.schedule.helpers import kernels, reductions
from tests.tensor.helpers import FLOATS, INTS, check, check_gradient, special, values, wide
from tinsmith import GlobalCounters, Tensor, dtypes
from tinsmith.core.dtypes import DType
from tinsmith.core.errors import ArgumentError, AxisError, ShapeError
from tinsmith.core.settings import Context
from tinsmith.ir import Ops
from tinsmith.ir.uop import toposort
from tinsmith.tensor.reduce import statistics

SIZES = [1, 2, 3, 17, 64, statistics._COUNTED - 1, statistics._COUNTED, statistics._COUNTED + 1, 1000, 2053]


def stable_order(x: np.ndarray, axis: int = -1, descending: bool = False) -> np.ndarray:
    """Return NumPy's stable order; for descending order, of negated ranks, so that equal elements keep theirs."""
    if not descending:
        return np.argsort(wide(x), axis, kind="stable")
    flat = x.astype(np.float64) if x.dtype.kind not in "iub" else x
    _, rank = np.unique(flat, return_inverse=True)
    return np.argsort(-rank.reshape(x.shape), axis, kind="stable")


def check_sorted(x: np.ndarray, axis: int = -1, descending: bool = False) -> None:
    found = Tensor(x).sort(axis, descending)
    order = stable_order(x, axis, descending)
    check(found.indices, order, dtypes.int32)
    check(found.values, np.take_along_axis(x, order, axis), Tensor(x).dtype, rtol=0)


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_every_size(size: int, descending: bool) -> None:
    rng = np.random.default_rng(size)
    check_sorted(rng.standard_normal(size).astype(np.float32), descending=descending)
    check_sorted(rng.integers(-5, 5, size).astype(np.int32), descending=descending)  # many equal ones


@pytest.mark.parametrize("dtype", [*FLOATS, *INTS, dtypes.bool], ids=str)
@pytest.mark.parametrize("size", [40, 300])
def test_every_dtype(dtype: DType, size: int) -> None:
    x = np.concatenate([values((size,), dtype), special(dtype)])
    for descending in (False, True):
        check_sorted(np.random.default_rng(1).permutation(x), descending=descending)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (0, 3), (5, 300), (300, 5), (2, 270, 3), (4, 3, 9)], ids=str)
def test_every_axis(shape: tuple[int, ...]) -> None:
    x = values(shape, dtypes.float32)
    if not shape:
        assert [t.item() for t in Tensor(x).sort()] == [x, 0]
        return
    for axis in range(-len(shape), len(shape)):
        check_sorted(x, axis)


def test_zeros_of_both_signs_are_equal() -> None:
    for size in (4, 400):
        x = np.tile(np.array([0.0, -0.0], np.float32), size // 2)
        assert Tensor(x).argsort().tolist() == list(range(size))


@settings(max_examples=30, deadline=None, derandomize=True, database=None)
@given(st.lists(st.floats(width=32), min_size=1, max_size=24), st.booleans(), st.booleans())
def test_any_floats(row: list[float], descending: bool, long: bool) -> None:
    x = np.array(row, np.float32)
    check_sorted(np.tile(x, 30)[:300] if long else x, descending=descending)


@pytest.mark.parametrize("size", [50, 400])
@pytest.mark.parametrize("where", ["NOOPT", "PYTHON"])
def test_everywhere(size: int, where: str) -> None:
    x = values((2, size), dtypes.float32)
    with Context(NOOPT=int(where == "NOOPT")):
        t = Tensor(x, device="PYTHON" if where == "PYTHON" else None)
        check(t.sort().indices, stable_order(x))
        check(t.topk(3).values, -np.sort(-x)[:, :3])
        check(t.cumsum(1), np.cumsum(x, 1), rtol=1e-4, atol=1e-5)


def test_few_kernels() -> None:
    """Each pass of the radix sort takes a few kernels, for any size."""
    counts = []
    for size in (1000, 100_000):
        x = Tensor.rand(size).realize()
        before = GlobalCounters.kernel_count
        x.argsort().realize()
        counts.append(GlobalCounters.kernel_count - before)
    assert max(counts) <= 24


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("k", [0, 1, 3, 16, 17, 300])
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.int8, dtypes.uint32, dtypes.int64, dtypes.float64], ids=str)
def test_topk(k: int, largest: bool, dtype: DType) -> None:
    x = values((3, 300), dtype, -100, 100)
    found = Tensor(x).topk(k, largest=largest)
    order = stable_order(x, descending=largest)[:, :k]
    check(found.indices, order, dtypes.int32)
    check(found.values, np.take_along_axis(x, order, -1), dtype, rtol=0)
    check(Tensor(x.T).topk(k, 0, largest).indices, order.T)


@pytest.mark.parametrize("k", [1, 3, 40])
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.int8, dtypes.int64], ids=str)
def test_topk_of_long_rows(k: int, dtype: DType) -> None:
    """Rows are split into groups, whose number divides no size; of equal elements the first ones win, in order."""
    for rows, size in ((2, 1501), (9, 997), (1, 20011)):
        x = values((rows, size), dtype, -100, 100)
        found = Tensor(x).topk(k, largest=rows != 2)
        order = stable_order(x, descending=rows != 2)[:, :k]
        check(found.indices, order, dtypes.int32)
        check(found.values, np.take_along_axis(x, order, -1), dtype, rtol=0)
    least = np.zeros((1, 5000), dtype.numpy)
    assert Tensor(least).topk(3).indices.tolist() == [[0, 1, 2]]


def test_topk_sorts_few_of_a_long_row() -> None:
    x = Tensor.rand(4, 50_000).realize()
    before = GlobalCounters.global_ops
    x.topk(50)[1].realize()
    assert GlobalCounters.global_ops - before < 12 * 4 * 50_000


def test_topk_of_special_values() -> None:
    x = np.concatenate([special(dtypes.float32), np.full(300, -np.inf, np.float32)])
    found = Tensor(x).topk(5)
    np.testing.assert_array_equal(found.values.numpy(), [np.nan, np.inf, 100, 2.5, 1.5])
    assert Tensor(x).topk(4, largest=False).indices.tolist() == [14, 16, 17, 18]


def test_kthvalue_and_median() -> None:
    for shape, axis in (((301,), 0), ((4, 10), 1), ((4, 11), 0)):
        x = values(shape, dtypes.float32)
        n = shape[axis]
        for k in (1, n // 2 + 1, n):
            check(Tensor(x).kthvalue(k, axis).values, np.sort(x, axis).take(k - 1, axis), rtol=0)
        found = Tensor(x).median(axis)
        check(found.values, np.sort(x, axis).take((n - 1) // 2, axis), rtol=0)
        check(found.indices, stable_order(x, axis).take((n - 1) // 2, axis))
        check(Tensor(x).median(), np.sort(x, None)[(x.size - 1) // 2], rtol=0)
    kept = Tensor(values((4, 10), dtypes.int32)).median(1, keepdim=True)
    assert kept.values.shape == kept.indices.shape == (4, 1)
    with_nan = np.array([[1, np.nan, 0], [3, 1, 2]], np.float32)
    found = Tensor(with_nan).median(1)
    np.testing.assert_array_equal(found.values.numpy(), [np.nan, 2])
    assert found.indices.tolist() == [1, 2]
    assert Tensor(5.0).median().item() == 5


def test_unique() -> None:
    for x in (np.random.default_rng(0).integers(-9, 9, (20, 30)), np.array([[3, 1], [3, 3]]), np.array([7])):
        want = np.unique(x, return_inverse=True, return_counts=True)
        for got, right in zip(Tensor(x).unique(return_inverse=True, return_counts=True), want):
            np.testing.assert_array_equal(got.numpy(), right.reshape(got.shape))
        np.testing.assert_array_equal(Tensor(x).unique().numpy(), want[0])
    assert Tensor.zeros(0).unique().shape == (0,)


@pytest.mark.parametrize("size", [5, 300])
def test_gradient_flows_to_the_values(size: int) -> None:
    x = np.random.default_rng(0).standard_normal(size).astype(np.float32)
    t, weights = Tensor(x), np.arange(size, dtype=np.float32)
    (t.sort().values * Tensor(weights)).sum().backward()
    want = np.zeros(size, np.float32)
    want[np.argsort(x)] = weights
    np.testing.assert_array_equal(t.grad.numpy(), want)


def test_gradients() -> None:
    x = np.random.default_rng(3).permutation(12).reshape(3, 4) / 4 - 1.1
    for f in (lambda t: t.sort(0).values, lambda t: t.topk(2, 1).values, lambda t: t.kthvalue(2, 1).values,
              lambda t: t.median(0).values, lambda t: t.sort(1, descending=True).values.cumsum(1)):
        check_gradient(f, x)


def test_errors() -> None:
    with pytest.raises(AxisError, match="sort"):
        Tensor([1, 2]).sort(1)
    with pytest.raises(ArgumentError, match="3 greatest of 2"):
        Tensor([1, 2]).topk(3)
    with pytest.raises(ArgumentError, match="kthvalue"):
        Tensor([1, 2]).kthvalue(0)
    with pytest.raises(ShapeError, match="median"):
        Tensor.zeros(3, 0).median(1)


@pytest.mark.parametrize("size", [1, 255, 256, 257, 1000])
@pytest.mark.parametrize("right", [False, True])
def test_searchsorted_of_short_and_long_rows(size: int, right: bool) -> None:
    rng = np.random.default_rng(size)
    row = np.sort(rng.integers(0, size, size).astype(np.float32))
    sought = np.concatenate([rng.integers(-1, size + 1, 300), [np.inf, -np.inf]]).astype(np.float32)
    side: Literal["left", "right"] = "right" if right else "left"
    assert Tensor(row).searchsorted(Tensor(sought), right=right).tolist() == np.searchsorted(row, sought, side).tolist()
    rows, values_ = np.stack([row, row - 2]), np.stack([sought, sought]).reshape(2, -1)
    found = Tensor(rows).searchsorted(Tensor(values_), right=right).numpy()
    np.testing.assert_array_equal(found, [np.searchsorted(r, v, side) for r, v in zip(rows, values_)])


def test_a_search_halves_a_long_row() -> None:
    """Binary search: each value reads about log2(length) elements."""
    [kernel] = kernels(Tensor(np.arange(5000.0)).realize().searchsorted(given_values(7000)))
    assert kernel.sink is not None and reductions(kernel) == 0
    assert sum(n.op is Ops.GATHER for n in toposort(kernel.sink)) == (5000).bit_length()


@pytest.mark.parametrize("dtype", [*INTS, dtypes.bool, dtypes.float32], ids=str)
@pytest.mark.parametrize("size", [1, 300])
def test_unique_by_counting_and_by_sorting(dtype: DType, size: int) -> None:
    rng = np.random.default_rng(size)
    kind = np.dtype(dtype.numpy)
    near = rng.integers(0, 5, size).astype(kind)
    rows = [near]
    if dtype.is_int:
        low, high = np.iinfo(kind).min, np.iinfo(kind).max
        rows += [(low + near).astype(kind), (high - near).astype(kind), rng.integers(low, high, size, kind, True)]
    for x in rows:
        found = Tensor(x).unique(return_inverse=True, return_counts=True)
        for ours, want in zip(found, np.unique(x, return_inverse=True, return_counts=True), strict=True):
            np.testing.assert_array_equal(ours.numpy(), want)
        assert found[0].dtype is dtype and Tensor(x).unique().tolist() == np.unique(x).tolist()


def test_unique_sorts_once() -> None:
    x = Tensor(np.random.default_rng(2).standard_normal(500).astype(np.float32)).realize()
    x.sort().values.realize()
    GlobalCounters.reset()
    x.sort().values.realize()
    sorting_alone = GlobalCounters.kernel_count
    GlobalCounters.reset()
    x.unique().realize()
    assert sorting_alone < GlobalCounters.kernel_count <= sorting_alone + 4
