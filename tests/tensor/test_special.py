"""Special functions against SciPy's, and their gradients."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.special

from tests.tensor.helpers import check_gradient
from tinsmith import Tensor, dtypes

EDGES = np.array([0.0, -0.0, 1e-30, 15.0, -15.0, 15.001, 20.0, -20.001, 88.0, -88.0, np.inf, -np.inf, np.nan])
RANGES = {"i0": (-60, 60), "i0e": (-600, 600), "i1": (-60, 60), "i1e": (-600, 600), "ndtr": (-30, 9),
          "log_ndtr": (-900, 30), "entr": (0, 50), "psi": (0.1, 40), "gammaln": (0.1, 40), "erfc": (-3, 9),
          "sinc": (-4, 4)}


@pytest.mark.parametrize("name", RANGES)
def test_values_are_scipys(name: str) -> None:
    x = np.concatenate([np.linspace(*RANGES[name], 801), [] if name in ("psi", "gammaln", "sinc") else EDGES])
    exact = np.sinc(x) if name == "sinc" else getattr(scipy.special, name)(x)
    if name in ("i0", "i1"):
        exact = np.where(np.isinf(x), np.copysign(np.inf, x if name == "i1" else 1.0), exact)  # SciPy: NaN
    for dtype, rtol in ((dtypes.float64, 2e-13), (dtypes.float32, 6e-7), (dtypes.bfloat16, 5e-3)):
        given = Tensor(x).cast(dtype)
        rounded = given.cast("float64").numpy()
        want = exact if dtype is dtypes.float64 else (
            np.sinc(rounded) if name == "sinc" else getattr(scipy.special, name)(rounded))
        if name in ("i0", "i1"):
            want = np.where(np.isinf(rounded), exact, want)
        found = getattr(given, name)()
        assert found.dtype is dtype
        seen = np.abs(want) < 3e38 if dtype is not dtypes.float64 else np.ones(len(x), bool)
        near = {"psi": 1e-12, "gammaln": 1e-12, "sinc": 1e-15}.get(name, 1e-300)
        near = near if dtype is dtypes.float64 else max(near, 1e-36 if name not in ("sinc", "psi", "gammaln") else 1e-6)
        np.testing.assert_allclose(found.cast("float64").numpy()[seen], want[seen], rtol=rtol, atol=near)


@pytest.mark.parametrize("name", ["i0", "i0e", "i1", "i1e", "ndtr", "log_ndtr", "entr"])
def test_gradients(name: str) -> None:
    x = np.array([0.3, 2.0, 16.0, *([] if name == "entr" else [-1.5, -20.5])])
    check_gradient(lambda t: getattr(t, name)(), x / 8 if name in ("i0", "i1") else x)


def test_of_two_numbers_and_of_orders() -> None:
    x, y = np.array([0.0, 0.0, 2.0, 3.0, 0.0]), np.array([-1.0, -2.0, 1e-9, 5.0, np.nan])
    np.testing.assert_allclose(Tensor(x).xlog1py(Tensor(y)).numpy(), scipy.special.xlog1py(x, y), rtol=1e-14)
    check_gradient(lambda a, b: a.xlog1py(b), np.array([1.0, 2.0]), np.array([0.5, 3.0]))
    z = np.linspace(0.3, 20, 50)
    for order in (0, 1, 3):
        np.testing.assert_allclose(Tensor(z).polygamma(order).numpy(), scipy.special.polygamma(order, z), rtol=1e-11)
    np.testing.assert_allclose(Tensor(z + 2).mvlgamma(3).numpy(),
                               [scipy.special.multigammaln(v, 3) for v in z + 2], rtol=1e-12, atol=1e-12)
    inside = np.linspace(-0.999, 0.999, 101)
    np.testing.assert_allclose(Tensor(inside).erfinv().numpy(), scipy.special.erfinv(inside), rtol=2e-15)
