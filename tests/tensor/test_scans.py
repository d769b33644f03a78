"""Scans against NumPy: every dtype, axis and edge size; long axes, which are split into blocks; gradients."""
from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tensor.helpers import FLOATS, INTS, SHAPES, check, check_gradient, values, wide
from tinsmith import Tensor, dtypes
from tinsmith.core.dtypes import DType, sum_dtype
from tinsmith.core.errors import AxisError
from tinsmith.core.settings import Context
from tinsmith.target.schedule_costs import Cuts

NAMES = {"cumsum": np.cumsum, "cumprod": np.cumprod, "cummax": np.maximum.accumulate, "cummin": np.minimum.accumulate}


def last_extreme(x: np.ndarray, axis: int, sign: int) -> np.ndarray:
    """Return the index of the running extreme along ``axis``: the last of equal ones; NaN is the most extreme."""
    rows = np.moveaxis(x, axis, -1)
    out = np.zeros(rows.shape, np.int32)
    for place in np.ndindex(rows.shape[:-1]):
        best = 0
        for k, v in enumerate(rows[place]):
            if np.isnan(v) or (not np.isnan(rows[place][best]) and sign * v >= sign * rows[place][best]):
                best = k
            out[(*place, k)] = best
    return np.moveaxis(out, -1, axis)


def ours(name: str, x: Tensor, axis: int) -> Tensor:
    out = getattr(x, name)(axis)
    return out.values if name in ("cummax", "cummin") else out


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", [*SHAPES, (1,), (17,), (64,), (7, 33), (33, 7), (2, 3, 65), (5, 0)], ids=str)
def test_every_axis(name: str, shape: tuple[int, ...]) -> None:
    x = values(shape, dtypes.float32, 0.5, 1.5)
    for axis in range(-max(x.ndim, 1), max(x.ndim, 1)):
        want = NAMES[name](x.astype(np.float64), axis) if x.ndim else x
        check(ours(name, Tensor(x), axis), want, dtypes.float32, rtol=1e-5)


@pytest.mark.parametrize("dtype", [*FLOATS, *INTS, dtypes.bool], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_every_dtype(name: str, dtype: DType) -> None:
    x = values((4, 9), dtype, -2, 2)
    result = sum_dtype(dtype) if name in ("cumsum", "cumprod") else dtype
    exact = wide(x) if result is dtype else x.astype(result.numpy)
    want = NAMES[name](exact.astype(np.float64) if dtype.is_float else exact, axis=1)
    check(ours(name, Tensor(x), 1), want, result, rtol=None if dtype.itemsize == 2 else 1e-5, atol=1e-6)


def test_asked_dtype() -> None:
    check(Tensor([100, 100], dtype="int8").cumsum(dtype="int8"), np.array([100, -56], np.int8), dtypes.int8)
    check(Tensor([1, 2]).cumprod(dtype="float32"), np.array([1.0, 2.0]), dtypes.float32)


@pytest.mark.parametrize("sign", [1, -1])
def test_where_the_extreme_stands(sign: int) -> None:
    x = np.array([[1, 3, 3, 2, np.nan, 5, np.nan, 0], [-0.0, 0.0, -np.inf, 1, 1, np.inf, np.inf, 2]], np.float32)
    for axis in (0, 1):
        found = (Tensor(x).cummax if sign > 0 else Tensor(x).cummin)(axis)
        check(found.indices, last_extreme(x, axis, sign), dtypes.int32)
        check(found.values, (np.maximum if sign > 0 else np.minimum).accumulate(x, axis))


@pytest.mark.parametrize("length", [Cuts().scan - 1, Cuts().scan, Cuts().scan + 37, 20_011, 1 << 15], ids=str)
@pytest.mark.parametrize("noopt", [0, 1])
def test_long_axes_are_cut(length: int, noopt: int) -> None:
    x = np.random.default_rng(0).integers(-50, 50, (2, length)).astype(np.int32)
    with Context(NOOPT=noopt):
        check(Tensor(x).cumsum(1), np.cumsum(x, 1), dtypes.int32)
        check(Tensor(x.T).cummax(0).values, np.maximum.accumulate(x.T, 0), dtypes.int32)
        check((Tensor(x) % 3 + 1).cumprod(1), np.cumprod(np.mod(x, 3) + 1, 1, dtype=np.int32), dtypes.int32)
    f = np.random.default_rng(1).standard_normal(length).astype(np.float32)
    check(Tensor(f).cumsum(), np.cumsum(f.astype(np.float64)), rtol=1e-4, atol=1e-3)


@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(st.lists(st.integers(-9, 9), min_size=1, max_size=40), st.integers(1, 4), st.sampled_from(sorted(NAMES)))
def test_any_numbers(row: list[int], rows: int, name: str) -> None:
    x = np.array([row] * rows, np.int64) + np.arange(rows)[:, None]
    got = ours(name, Tensor(x, dtype="int64") * 2 - 1, 1)
    check(got, NAMES[name](x * 2 - 1, axis=1), dtypes.int64)


def test_inside_other_work() -> None:
    """A scan may read the result of a reduction, and its result may be reduced."""
    x = values((6, 40), dtypes.float32)
    soft = np.exp(x) / np.exp(x).sum(1, keepdims=True)
    check(Tensor(x).softmax().cumsum(1), np.cumsum(soft, 1), rtol=1e-5)
    check((Tensor(x).cumsum(1) * 2).sum(0), (np.cumsum(x, 1) * 2).sum(0), rtol=1e-4, atol=1e-4)
    check(Tensor(x).T.cumsum(0)[5:, ::2].flip(1), np.cumsum(x.T, 0)[5:, ::2][:, ::-1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("name", [*NAMES, "logcumsumexp"])
def test_gradient(name: str, axis: int) -> None:
    x = np.random.default_rng(2).permutation(12).reshape(3, 4) / 4 - 1.1
    check_gradient(lambda t: ours(name, t, axis), x)


@pytest.mark.parametrize("zeros", [[1], [0, 2], [3], [0, 1, 2, 3]])
def test_gradient_of_product_with_zeros(zeros: list[int]) -> None:
    x = np.array([[0.5, -1.5, 2.0, 0.7]])
    x[0, zeros] = 0
    check_gradient(lambda t: t.cumprod(1), x)


def test_gradient_of_gradient() -> None:
    x = np.array([0.4, 1.2, -0.7])
    for name in ("cumsum", "cumprod", "logcumsumexp"):
        t = Tensor(x, dtype=dtypes.float64)
        (first,) = (getattr(t, name)() ** 2).sum().gradient(t)
        (second,) = first.sum().gradient(t)
        step = 1e-6

        def slope(v: np.ndarray, name: str = name) -> float:
            u = Tensor(v, dtype=dtypes.float64)
            return float((getattr(u, name)() ** 2).sum().gradient(u)[0].sum().item())

        want = [(slope(x + step * e) - slope(x - step * e)) / (2 * step) for e in np.eye(3)]
        np.testing.assert_allclose(second.numpy(), want, rtol=1e-6)


def test_logcumsumexp() -> None:
    x = values((3, 50), dtypes.float32, -30, 30)
    check(Tensor(x).logcumsumexp(1), np.logaddexp.accumulate(x.astype(np.float64), axis=1), rtol=1e-5)
    check(Tensor(x).logcumsumexp(), np.logaddexp.accumulate(x.astype(np.float64), axis=0), rtol=1e-5)
    edge = np.array([-np.inf, -np.inf, 1000.0, -1000.0, -np.inf, 1001.0], np.float32)
    check(Tensor(edge).logcumsumexp(), np.logaddexp.accumulate(edge.astype(np.float64)), rtol=1e-6)
    check(Tensor([1.0, np.inf, 2.0]).logcumsumexp(), np.array([1, np.inf, np.inf]))
    check(Tensor([-5e5, 1.0, np.nan, 2.0]).logcumsumexp(), np.array([-5e5, 1, np.nan, np.nan]))
    half = values((50,), dtypes.float16, -3, 3)
    check(Tensor(half).logcumsumexp(), np.logaddexp.accumulate(half.astype(np.float64)), dtypes.float16)


def test_no_such_axis() -> None:
    with pytest.raises(AxisError, match="cumsum"):
        Tensor([1, 2]).cumsum(1)
