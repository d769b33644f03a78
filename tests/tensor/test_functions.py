"""Every row of the table of unary functions (``tinsmith/tensor/math/table.py``) against its reference.

A new row needs no line here: values in every float dtype, of integers, of special values, near zero and in empty
shapes; gradients; devices; names."""
from __future__ import annotations

import importlib
import inspect
from typing import Any

import numpy as np
import pytest

import tinsmith
from tests.tensor.helpers import FLOATS, INTS, RTOL, SHAPES, check, check_gradient, special, values, wide
from tinsmith import Tensor, dtypes
from tinsmith.tensor.math.table import FUNCTIONS, MISSING
from tinsmith.tensor.names import ABSENT

ROWS = pytest.mark.parametrize("name", FUNCTIONS)
# Special values of a row whose reference says something else, or overflows where float32 does not.
APART = {"erfcx": (100.0, -100.0), "sinh": (100.0, -100.0), "cosh": (100.0, -100.0)}


def oracle(name: str, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the reference's values of ``x``, computed in float64 and rounded to the dtype of ``x``."""
    found = x.astype(np.float64)
    with np.errstate(all="ignore"):
        for path in FUNCTIONS[name].reference.split():
            module, _, function = path.rpartition(".")
            found = getattr(importlib.import_module(module), function)(found)
        return np.asarray(found).astype(x.dtype)


@ROWS
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_values(name: str, dtype: Any) -> None:
    row = FUNCTIONS[name]
    for shape in SHAPES if dtype is dtypes.float32 else [(4, 1, 5)]:
        x = values(shape, dtype, row.low, row.high)
        rtol = max(3 * RTOL[dtype], row.error * 1e-6 if dtype is dtypes.float32 else 0)
        check(getattr(Tensor(x), name)(), oracle(name, wide(x)), dtype, rtol=rtol, atol=RTOL[dtype] / 10)


@ROWS
def test_values_of_integers(name: str) -> None:
    row = FUNCTIONS[name]
    inside = [v for v in (1, 2, 3, 0) if row.low <= v <= row.high][:3]
    for dtype in INTS:
        x = np.array(inside, dtype.numpy)
        check(getattr(Tensor(x), name)(), oracle(name, x.astype(np.float32)), dtypes.default_float, rtol=1e-5,
              atol=1e-6)


@ROWS
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_special_values(name: str, dtype: Any) -> None:
    row = FUNCTIONS[name]
    x = special(dtype)
    x = x[~np.isin(wide(x), APART.get(name, ()))]
    if not row.edges:  # NaN alone: what happens at infinity is the function's own affair
        x = x[np.isnan(wide(x))]
    check(getattr(Tensor(x), name)(), oracle(name, wide(x)), dtype, rtol=3 * RTOL[dtype], atol=RTOL[dtype])


@pytest.mark.parametrize("name", [n for n, row in FUNCTIONS.items() if row.zero])
def test_near_zero(name: str) -> None:
    x = np.array([1e-3, -1e-5, 1e-8, -1e-12, 1e-20], np.float32)
    check(getattr(Tensor(x), name)(), oracle(name, x), rtol=1e-6)
    for dtype in FLOATS:
        got = getattr(Tensor([-0.0, 0.0], dtype=dtype), name)().cast(dtypes.float64).numpy()
        assert np.signbit(got).tolist() == [True, False] and not got.any()


@ROWS
def test_gradients(name: str) -> None:
    row = FUNCTIONS[name]
    x = np.random.default_rng(3).uniform(row.low, row.high, 6)
    check_gradient(lambda t: getattr(t, name)(), x, rtol=2e-5, atol=1e-6)


@ROWS
def test_the_interpreter_and_views_give_the_same(name: str) -> None:
    row = FUNCTIONS[name]
    x = values((4, 6), dtypes.float32, row.low, row.high)
    want = oracle(name, x)
    rtol = max(1e-5, row.error * 1e-6)
    check(getattr(Tensor(x, device="PYTHON"), name)(), want, rtol=rtol, atol=1e-6)
    check(getattr(Tensor(x).T[1:, ::2], name)(), want.T[1:, ::2], rtol=rtol, atol=1e-6)


@ROWS
def test_methods_are_documented(name: str) -> None:
    method = getattr(Tensor, name)
    assert list(inspect.signature(method).parameters) == ["self"]
    assert (inspect.getdoc(method) or "").startswith(("Return", "e raised", "2 raised")) and ">>>" in method.__doc__
    function = getattr(tinsmith.special, FUNCTIONS[name].torch.removeprefix("special."), None) \
        if FUNCTIONS[name].torch.startswith("special.") else method
    assert function is not None and function(Tensor([0.5])).shape == (1,)


def test_missing_functions_say_what_to_use() -> None:
    assert not set(FUNCTIONS) & set(MISSING) and set(MISSING) <= set(ABSENT)
    with pytest.raises(AttributeError, match="scipy"):
        _ = tinsmith.special.bessel_j0
