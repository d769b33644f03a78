"""Reductions against NumPy and SciPy."""
from __future__ import annotations

import importlib
import math

import numpy as np
import pytest
import scipy.special

from tests.tensor.helpers import FLOATS, INTS, RTOL, check, values, wide
from tinsmith import Tensor, dtypes
from tinsmith.core.dtypes import sum_dtype
from tinsmith.tensor.math.table import REDUCTIONS

AXES = [None, 0, 1, -1, (0, 2), (0, 1, 2)]
SHAPE = (4, 3, 5)


@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("axis", AXES, ids=str)
def test_axes_and_keepdim(axis, keepdim) -> None:
    x = values(SHAPE, dtypes.float32)
    for name, row in REDUCTIONS.items():
        module, _, function = row.reference.rpartition(".")
        of = getattr(importlib.import_module(module), function)
        given = x > 3 if row.gives == "bool" else x
        check(getattr(Tensor(given), name)(axis, keepdim), of(wide(given), axis=axis, keepdims=keepdim),
              dtypes.bool if row.gives == "bool" else dtypes.float32, rtol=1e-5, atol=1e-5)
    for correction in (0, 1, 2):
        check(Tensor(x).var(axis, keepdim, correction),
              x.astype(np.float64).var(axis, ddof=correction, keepdims=keepdim),
              rtol=1e-5)
        check(Tensor(x).std(axis, keepdim, correction),
              x.astype(np.float64).std(axis, ddof=correction, keepdims=keepdim),
              rtol=1e-5)


@pytest.mark.parametrize("dtype", [dtypes.bool, *INTS, *FLOATS], ids=str)
def test_dtypes(dtype) -> None:
    x = values((3, 7), dtype)
    for axis in (None, 1):
        check(Tensor(x).sum(axis), wide(x).sum(axis).astype(sum_dtype(dtype).numpy), sum_dtype(dtype), atol=1e-4)
        check(Tensor(x).max(axis), x.max(axis), dtype)
        check(Tensor(x).min(axis), x.min(axis), dtype)
        check(Tensor(x).any(axis), x.astype(bool).any(axis), dtypes.bool)
        check(Tensor(x).all(axis), x.astype(bool).all(axis), dtypes.bool)
        result = dtype if dtype.is_float else dtypes.float32
        check(Tensor(x).mean(axis), wide(x).mean(axis), result, rtol=2 * RTOL[result], atol=1e-6)
        check(Tensor(x).var(axis), wide(x).var(axis, ddof=1), result, rtol=8 * RTOL[result])
    check(Tensor(x).argmax(1), wide(x).argmax(1), dtypes.int32)
    check(Tensor(x).argmin(1), wide(x).argmin(1), dtypes.int32)
    check(Tensor(x).argmax(), wide(x).argmax(), dtypes.int32)
    small = values((3, 4), dtype, 1, 2)
    check(Tensor(small).prod(1), wide(small).astype(np.float64).prod(1).astype(sum_dtype(dtype).numpy),
          sum_dtype(dtype),
          rtol=10 * RTOL.get(dtype, 0))


def test_small_integers_do_not_wrap() -> None:
    x = np.full(300, 100, np.uint8)
    assert Tensor(x).sum().item() == 30000 and Tensor(x).mean().item() == 100
    big = np.full(4, 2**31 - 1, np.int32)
    assert Tensor(big).mean().item() == 2**31


def test_sums_of_halves_are_kept_in_float32() -> None:  # PAINS R12
    ones = Tensor.ones(5000, dtype=dtypes.float16)
    assert ones.sum().item() == 5000 and ones.mean().item() == 1
    assert Tensor.ones(70000, dtype=dtypes.float16).sum().item() == math.inf
    assert Tensor.ones(70000, dtype=dtypes.float16).sum().float().item() == math.inf
    assert Tensor.ones(70000, dtype=dtypes.float16).sum(dtype=dtypes.float32).item() == 70000


def test_nan_is_the_extreme() -> None:  # PAINS R9
    x = np.array([[1, np.nan, 3], [4, 5, 6], [np.nan, 0, np.nan]], np.float32)
    for axis in (None, 0, 1):
        check(Tensor(x).max(axis), x.max(axis))
        check(Tensor(x).min(axis), x.min(axis))
        check(Tensor(x).argmax(axis), x.argmax(axis))
        check(Tensor(x).argmin(axis), x.argmin(axis))


def test_first_of_equal_positions() -> None:
    x = np.array([[1, 3, 3], [2, 2, 2]], np.int32)
    check(Tensor(x).argmax(1), [1, 0])
    check(Tensor(x).argmin(1), [0, 0])
    check(Tensor(x).argmax(0, keepdim=True), [[1, 0, 0]])
    check(Tensor(x).argmax(keepdim=True), [[1]])
    long = Tensor.zeros((1 << 31) + 9, dtype=dtypes.uint8)  # computed on a GPU by another test
    assert long.argmax().dtype is long.argmin(0).dtype is dtypes.int64 and long[:9].argmax().dtype is dtypes.int32
    check(Tensor([-math.inf, -math.inf]).argmax(), 0)


def test_scalars() -> None:
    x = Tensor(3.0)
    for name in ("sum", "max", "mean", "prod"):
        assert getattr(x, name)().item() == 3.0 and getattr(x, name)(0).shape == ()
    assert x.argmax().item() == 0 and x.softmax(0).item() == 1.0


def test_nothing_to_reduce() -> None:
    x = Tensor(np.zeros((0, 3), np.float32))
    assert x.sum().item() == 0 and x.prod(0).tolist() == [1, 1, 1] and x.any(0).tolist() == [False] * 3
    assert x.sum(1).shape == (0,) and x.all().item() is True
    assert math.isnan(x.mean().item()) and math.isnan(Tensor([1.0]).var().item())
    with pytest.raises(ValueError, match="nothing to take the max"):
        x.max()
    with pytest.raises(ValueError, match="argmax"):
        x.argmax(0)
    assert x.max(1).shape == (0,)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_softmax(axis, dtype) -> None:
    x = values((4, 6), dtype, -9, 9)
    check(Tensor(x).softmax(axis), scipy.special.softmax(wide(x), axis), dtype, rtol=4 * RTOL[dtype])
    check(Tensor(x).log_softmax(axis), scipy.special.log_softmax(wide(x), axis), dtype, rtol=4 * RTOL[dtype],
          atol=RTOL[dtype])
    check(Tensor(x).softmin(axis), scipy.special.softmax(-wide(x), axis), dtype, rtol=4 * RTOL[dtype])


def test_rows_of_large_and_infinite_values() -> None:
    x = np.array([[1e4, 1e4], [-np.inf, 0], [-1e4, 1e4]])
    check(Tensor(x).softmax(), scipy.special.softmax(x, 1))
    check(Tensor(x).log_softmax(), scipy.special.log_softmax(x, 1))
    check(Tensor(x).logsumexp(1), scipy.special.logsumexp(x, 1))
    check(Tensor([-np.inf, -np.inf]).logsumexp(), -np.inf)
    check(Tensor([np.inf, 1]).logsumexp(), np.inf)
    assert Tensor([1, 2]).softmax(dtype=dtypes.float64).dtype is dtypes.float64


def test_norms_and_pairs() -> None:
    x = values((3, 4), dtypes.float64)
    for p in (1, 2, 3, math.inf):
        check(Tensor(x).norm(p, 1), np.linalg.norm(x, p, 1), rtol=1e-9)
        check(Tensor(x).normalize(p), x / np.linalg.norm(x, p, 1)[:, None], rtol=1e-9)
    check(Tensor([[0., 2., 3.], [0., 0., 0.]]).norm(0, 1), [2, 0])
    for got, want in zip(Tensor(x).var_mean(0), (x.var(0, ddof=1), x.mean(0))):
        check(got, want)
    for got, want in zip(Tensor(x).std_mean(0), (x.std(0, ddof=1), x.mean(0))):
        check(got, want)


def test_variance_of_the_tutorial() -> None:
    assert round(Tensor([1, 2, 3, 4]).var().item(), 5) == 1.66667


def test_large_sums() -> None:
    x = values((1000, 1000), dtypes.float32, 0, 1)
    check(Tensor(x).sum(), x.astype(np.float64).sum(), rtol=1e-4)
    check(Tensor(x).sum(0), x.astype(np.float64).sum(0), rtol=1e-4)
    check(Tensor(x).max(1), x.max(1))


def test_dim_is_another_name_of_axis() -> None:
    x = Tensor(np.arange(6, dtype=np.float32).reshape(2, 3))
    for name in ("sum", "prod", "any", "all", "mean", "var", "std", "argmax", "argmin", "softmax", "log_softmax",
                 "softmin", "logsumexp", "norm"):
        method = getattr(x, name)
        assert np.array_equal(method(dim=0).numpy(), method(axis=0).numpy()), name
    for name in ("var_mean", "std_mean"):
        pairs = zip(getattr(x, name)(dim=1), getattr(x, name)(axis=1))
        assert all(np.array_equal(a.numpy(), b.numpy()) for a, b in pairs)
