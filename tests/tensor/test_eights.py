"""8-bit floats: every bit pattern, rounding to each format, arithmetic in float32."""
from __future__ import annotations

import numpy as np
import pytest

from tests.tensor.helpers import check
from tinsmith import Tensor, dtypes
from tinsmith.core.dtypes import DType

pytestmark = pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning", "ignore:overflow:RuntimeWarning")


def _floats() -> np.ndarray:
    rng = np.random.default_rng(0)
    spread = rng.standard_normal(2000) * np.exp2(rng.integers(-24, 20, 2000))
    edges = [0, -0.0, 448, 464, 465, 480, -480, 57344, 61439, 61440, 61441, 240, 247, 248, 249, np.inf, -np.inf, np.nan,
             2**-9, 2**-10, 2**-10 * 1.01, 2**-17, 2**-18, 1e-30, 1e38]
    return np.concatenate([spread, edges]).astype(np.float32)


@pytest.mark.parametrize("dtype", dtypes.fp8s)
def test_rounds_as_ml_dtypes(dtype: DType) -> None:
    x = _floats()
    got, want = Tensor(x).cast(dtype).numpy(), x.astype(dtype.numpy)
    nan = np.isnan(want.astype(np.float32))
    assert np.array_equal(np.isnan(got.astype(np.float32)), nan)
    assert np.array_equal(got.view(np.uint8)[~nan], want.view(np.uint8)[~nan])


@pytest.mark.parametrize("dtype", dtypes.fp8s)
@pytest.mark.parametrize("device", ["CPU", "PYTHON"])
def test_every_byte_means_what_it_should(dtype: DType, device: str) -> None:
    bytes_ = np.arange(256, dtype=np.uint8)
    got = Tensor(bytes_, device=device).bitcast(dtype).float().numpy()
    want = bytes_.view(dtype.numpy).astype(np.float32)
    assert np.array_equal(got, want, equal_nan=True)


def test_arithmetic_rounds_once_per_operation() -> None:
    a = Tensor(np.array([1.5, 2.5, 3.0, -7.0], np.float32)).cast(dtypes.fp8e4m3)
    wide = a.float().numpy()
    for got, want in ((a + a, wide + wide), (a * a, wide * wide), (a.exp(), np.exp(wide)), (a.sum(), wide.sum()),
                      (a @ a, wide @ wide), (a * 0.25, wide * np.float32(0.25))):
        assert got.dtype is dtypes.fp8e4m3
        assert got.numpy().astype(np.float32).tolist() == want.astype(np.float32).astype(
            dtypes.fp8e4m3.numpy).astype(np.float32).tolist()
    assert (a > 2).tolist() == [False, True, True, False]


def test_promotion() -> None:
    a, b = Tensor([1.0]).cast(dtypes.fp8e4m3), Tensor([2.0]).cast(dtypes.fp8e5m2)
    assert (a + b).dtype is dtypes.float16 and (a + Tensor([1])).dtype is dtypes.fp8e4m3
    assert (a + Tensor([1.0])).dtype is dtypes.float32 and (a + 1.5).dtype is dtypes.fp8e4m3


def test_gradients_flow_through_a_cast() -> None:
    x = Tensor([1.0, 2.0])
    (x.cast(dtypes.fp8e5m2) * 3).sum().backward()
    check(x.grad, np.array([3.0, 3.0]), dtypes.float32)


def test_arrays_go_in_and_out() -> None:
    array = np.array([1.0, 0.5], dtypes.fp8e5m2.numpy)
    assert Tensor(array).dtype is dtypes.fp8e5m2 and Tensor(array).numpy().dtype == array.dtype
    assert Tensor([1, 2], dtype="fp8e4m3").tolist() == [1.0, 2.0]
    drawn = Tensor.rand(64, dtype=dtypes.fp8e4m3).float().numpy()
    assert (drawn >= 0).all() and (drawn < 1).all() and len(set(drawn.tolist())) > 4


def test_finfo_and_the_families() -> None:
    assert dtypes.finfo(dtypes.float32)[:2] == (8, 23) and dtypes.finfo(dtypes.fp8e4m3)[:2] == (4, 3)
    assert dtypes.finfo(dtypes.bfloat16).eps == 2.0**-7 and dtypes.finfo(dtypes.fp8e5m2).max == 57344.0
    with pytest.raises(TypeError, match=r"finfo: dtypes\.int is no float"):
        dtypes.finfo(dtypes.int32)
    assert dtypes.is_float(dtypes.fp8e4m3) and not dtypes.is_int(dtypes.bool) and dtypes.is_unsigned(dtypes.uint8)
    assert set(dtypes.sints) | set(dtypes.uints) == set(dtypes.ints)
    assert dtypes.from_py([1, 2.0]) is dtypes.float32 and dtypes.from_py([[True]]) is dtypes.bool
