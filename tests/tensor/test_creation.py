"""Creation and random numbers."""
from __future__ import annotations

import math
import sys

import numpy as np
import pytest
import scipy.stats

from tests.tensor.helpers import check
from tinsmith import Context, GlobalCounters, Tensor, dtypes
from tinsmith.core.errors import ArgumentError, DeviceError, DTypeError, ShapeError
from tinsmith.ir import Ops, UOp
from tinsmith.ir.graphs import threefry2x32
from tinsmith.ir.interpret.tensor import evaluate
from tinsmith.tensor.create.random import sine_and_cosine


def test_from_data() -> None:
    assert Tensor(3).dtype is dtypes.int32 and Tensor(3.0).dtype is dtypes.float32 and Tensor(True).dtype is dtypes.bool
    assert Tensor([1, 2]).dtype is dtypes.int32 and Tensor([1, 2.5]).dtype is dtypes.float32
    assert Tensor([True, False]).dtype is dtypes.bool and Tensor([]).shape == (0,)
    assert Tensor(np.array([1.0])).dtype is dtypes.float64 and Tensor(np.float16(2)).dtype is dtypes.float16
    assert Tensor(np.arange(3)).dtype is dtypes.int64 and Tensor(b"ab").tolist() == [97, 98]
    assert Tensor([1, 2], dtype=dtypes.float16).dtype is dtypes.float16 and Tensor(5, dtype="int8").item() == 5
    assert Tensor(np.arange(3), dtype="float32").tolist() == [0, 1, 2]
    assert Tensor(Tensor([1, 2]), dtype=dtypes.float32).tolist() == [1, 2]
    check(Tensor(np.arange(6).reshape(2, 3).T), np.arange(6).reshape(2, 3).T)
    check(Tensor([Tensor([1, 2]).numpy(), [3, 4]]), [[1, 2], [3, 4]])


def test_integers_are_not_cut_to_32_bits() -> None:
    for value, dtype in ((2**31 - 1, dtypes.int32), (2**31, dtypes.int64), (-(2**40), dtypes.int64),
                         (2**63, dtypes.uint64)):
        for t in (Tensor(value), Tensor([value])[0], Tensor.full((2,), value)[0]):
            assert t.dtype is dtype and t.item() == value
    for data in (2**64, [2**64, 1]):
        with pytest.raises(DTypeError, match="no dtype holds"):
            Tensor(data)


@pytest.mark.parametrize("kind", [">i4", ">f8", "<u2"])
def test_byte_order_of_arrays(kind) -> None:
    assert Tensor(np.arange(3, dtype=kind)).tolist() == [0, 1, 2]
    assert Tensor(np.array(5, dtype=kind)).item() == 5


def test_an_array_may_change_after_it_was_taken() -> None:
    x = np.array([1.0, 2.0])
    t = Tensor(x)
    x[0] = 9
    assert t.tolist() == [1.0, 2.0]
    out = t.numpy()
    out[0] = 7
    assert t.tolist() == [1.0, 2.0]


@pytest.mark.parametrize("dtype", dtypes.all, ids=str)
def test_constants(dtype) -> None:
    check(Tensor.zeros(2, 3, dtype=dtype), np.zeros((2, 3)).astype(dtype.numpy), dtype)
    check(Tensor.ones((2,), dtype=dtype), np.ones(2).astype(dtype.numpy), dtype)
    check(Tensor.full((2, 1), 1, dtype=dtype), np.ones((2, 1)).astype(dtype.numpy), dtype)
    check(Tensor.eye(3, 2, dtype=dtype), np.eye(3, 2).astype(dtype.numpy), dtype)
    check(Tensor.arange(2, dtype=dtype), np.arange(2).astype(dtype.numpy), dtype)
    like = Tensor.zeros(2, dtype=dtype)
    assert like.ones_like().dtype is dtype and like.full_like(1).tolist() == like.ones_like().tolist()
    assert like.zeros_like(dtype=dtypes.int32).dtype is dtypes.int32 and like.empty_like().shape == (2,)
    assert Tensor.empty(3, 2, dtype=dtype).numpy().dtype == dtype.numpy


def test_ranges() -> None:
    for args in [(5,), (2, 9), (2, 9, 3), (9, 2, -2), (5, 5), (0, 1, 0.1), (0.0, 1.0, 0.25), (3.5,), (-2, 2, 0.5)]:
        want = np.arange(*args)
        check(Tensor.arange(*args), want.astype(np.float32 if want.dtype == np.float64 else np.int32), rtol=1e-6,
              atol=1e-7)
    check(Tensor.arange(300).cast("uint8"), np.arange(300).astype(np.uint8))
    check(Tensor.linspace(-1, 1, 7), np.linspace(-1, 1, 7), dtypes.float32, atol=1e-7)
    check(Tensor.linspace(3, 5, 1), [3])
    assert Tensor.linspace(0, 0.1, 11).tolist()[-1] == np.float32(0.1)
    assert Tensor.zeros(0, 3).shape == (0, 3) and Tensor.rand(0).shape == (0,) and Tensor.eye(0).shape == (0, 0)


def test_constants_take_no_kernel_of_their_own() -> None:
    x = Tensor([1.0, 2.0, 3.0]).realize()
    y = x + Tensor.arange(3) * Tensor.full((3,), 2) + Tensor.zeros(3)
    before = GlobalCounters.kernel_count
    y.realize()
    assert GlobalCounters.kernel_count == before + 1


@pytest.mark.parametrize("bad, error, message", [
    (lambda: Tensor([[1, 2], [3]]), ShapeError, "ragged"),  # PAINS R23
    (lambda: Tensor(object()), DTypeError, "object"),
    (lambda: Tensor([1.0], device="FOO"), DeviceError, "CPU"),  # PAINS R15
    (lambda: Tensor.zeros(2, device="FOO"), DeviceError, "no device 'FOO'"),
    (lambda: dtypes.flaot32, AttributeError, "float32"),  # PAINS R23
    (lambda: Tensor([1], dtype="flaot32"), DTypeError, "float32"),
    (lambda: Tensor.zeros(2, -1), ShapeError, "negative"),
    (lambda: Tensor.zeros(2.5), DTypeError, "integer"),
    (lambda: Tensor.arange(1, 2, 0), ArgumentError, "step"),
    (lambda: Tensor.randint(3, low=5, high=5), ArgumentError, "low < high"),
    (lambda: Tensor.uniform(3, low=5, high=4), ArgumentError, "from 5 to 4"),
    (lambda: Tensor.zeros(3).uniform_(5, 4), ArgumentError, "from 5 to 4"),
    (lambda: Tensor.rand(3, dtype=dtypes.int32), DTypeError, "randint"),
    (lambda: Tensor([1, 2]).item(), ShapeError, "2 elements"),
    (lambda: bool(Tensor([1, 2])), ArgumentError, "ambiguous"),
    (lambda: len(Tensor(1)), DTypeError, "0-d"),
    (lambda: Tensor([1, 2]) + Tensor([1, 2, 3]), ShapeError,
     r"add: shapes \(2,\) and \(3,\).*axis -1 has sizes 2 and 3"),
    (lambda: Tensor([1.0]) & 1, DTypeError, "bitwise_and"),
    (lambda: Tensor([1.0]) << 1, DTypeError, "lshift"),
])
def test_errors_name_the_line(bad, error, message) -> None:
    with pytest.raises(error, match=message) as caught:
        bad()
    assert "test_creation.py" in str(caught.value)


def test_numpy_and_printing() -> None:  # PAINS R17
    x = Tensor([[1.0, 2.0]])
    assert np.array(x).dtype == np.float32 and np.asarray(x).tolist() == [[1.0, 2.0]]
    assert "1., 2." in repr(x) and "float" in repr(x)
    assert repr(Tensor.rand(1000)).startswith("<Tensor (1000,) dtypes.float on CPU, rand (test_creation.py:")


# *** random numbers ***


def _threefry(k0: int, k1: int, c0: int, c1: int) -> list[int]:
    words = [UOp.const(dtypes.uint32, v).expand_to((1,)) for v in (k0, k1, c0, c1)]
    return [int(v[0]) for v in evaluate(threefry2x32((words[0], words[1]), (words[2], words[3])))]


def test_threefry_gives_the_published_vectors() -> None:  # Random123, kat_vectors: threefry2x32, 20 rounds
    assert _threefry(0, 0, 0, 0) == [0x6B200159, 0x99BA4EFE]
    ones = 0xFFFFFFFF
    assert _threefry(ones, ones, ones, ones) == [0x1CB996FC, 0xBB002BE7]
    assert _threefry(0x13198A2E, 0x03707344, 0x243F6A88, 0x85A308D3) == [0xC4923A9C, 0x483DF7A0]


def test_order_of_realization_does_not_matter() -> None:  # PAINS R7
    Tensor.manual_seed(3)
    a, b = Tensor.rand(8), Tensor.rand(8)
    second, first = b.tolist(), a.tolist()
    assert first != second
    Tensor.manual_seed(3)
    a, b = Tensor.rand(8), Tensor.rand(8)
    assert (a.tolist(), b.tolist()) == (first, second)
    assert a.tolist() == first  # reading again draws nothing new
    Tensor.manual_seed(4)
    assert Tensor.rand(8).tolist() != first


def test_another_draw_compiles_nothing() -> None:
    Tensor.rand(37).realize()
    before = GlobalCounters.schedule_count
    Tensor.rand(37).realize()
    Tensor.manual_seed(5)
    Tensor.rand(37).realize()
    assert GlobalCounters.schedule_count == before


def test_all_ways_of_computing_agree() -> None:
    Tensor.manual_seed(7)
    x = Tensor.randn(33)
    (want,) = evaluate([x.uop])
    np.testing.assert_allclose(x.numpy(), want, rtol=1e-5, atol=1e-6)
    Tensor.manual_seed(7)
    with Context(NOOPT=1):
        np.testing.assert_allclose(Tensor.randn(33).numpy(), want, rtol=1e-5, atol=1e-6)


def test_sine_and_cosine_of_turns() -> None:
    turns = np.arange(1 << 14) / (1 << 14)
    want = np.stack([np.sin(2 * np.pi * turns), np.cos(2 * np.pi * turns)])
    for dtype, error in ((dtypes.float32, 2e-7), (dtypes.float64, 1e-15)):
        (got,) = evaluate([sine_and_cosine(UOp.iota(1 << 14).cast(dtype) * 2.0**-14)])
        np.testing.assert_allclose(got, want, rtol=0, atol=error)


@pytest.mark.parametrize("dtype", dtypes.floats, ids=str)
def test_distributions(dtype) -> None:
    Tensor.manual_seed(11)
    n = 20001
    x = Tensor.rand(n, dtype=dtype).numpy().astype(np.float64)
    assert x.min() >= 0 and x.max() < 1 and (dtype.itemsize < 4 or scipy.stats.kstest(x, "uniform").pvalue > 1e-3)
    assert abs(x.mean() - 0.5) < 0.01
    z = Tensor.randn(n, dtype=dtype).numpy().astype(np.float64)
    assert np.isfinite(z).all() and abs(z.mean()) < 0.03 and abs(z.std() - 1) < 0.03
    assert abs(np.corrcoef(z[: n // 2], z[n // 2 : n - 1])[0, 1]) < 0.03
    if dtype.itemsize >= 4:
        assert scipy.stats.kstest(z, "norm").pvalue > 1e-3
        assert len(np.unique(x)) > n - 30


def test_integers_and_bounds() -> None:
    Tensor.manual_seed(13)
    x = Tensor.randint(5000, low=-3, high=4).numpy()
    assert x.dtype == np.int32 and set(x) == set(range(-3, 4)) and np.bincount(x + 3).min() > 600
    assert Tensor.randint(9, low=0, high=2, dtype="uint8").dtype is dtypes.uint8
    u = Tensor.uniform(1000, low=2, high=3).numpy()
    assert 2 <= u.min() < 2.1 and 2.9 < u.max() <= 3
    z = Tensor.normal(5000, mean=4, std=2).numpy()
    assert abs(z.mean() - 4) < 0.15 and abs(z.std() - 2) < 0.15
    assert sorted(Tensor.randperm(100).tolist()) == list(range(100)) != Tensor.randperm(100).tolist()
    assert Tensor.rand(1).shape == (1,) and isinstance(Tensor.rand().item(), float)
    assert Tensor([1.0, 2.0]).rand_like().shape == (2,)
    assert Tensor.zeros(3, dtype="float16").randn_like().dtype is dtypes.float16


def test_initializers() -> None:
    fan = 64 * 9
    for made, bound in [(Tensor.kaiming_uniform(32, 64, 3, 3, a=0), math.sqrt(6 / fan)),
                        (Tensor.glorot_uniform(32, fan), math.sqrt(6 / (32 + fan))),
                        (Tensor.scaled_uniform(100, 100), 0.01)]:
        x = made.numpy()
        assert abs(x).max() <= bound and abs(x).max() > 0.98 * bound
    assert abs(Tensor.kaiming_normal(100, 50, a=0).numpy().std() - 0.2) < 0.01


def test_equal_constants_are_two_leaves() -> None:
    a, b = Tensor.zeros(2), Tensor.zeros(2)
    ((a + 1) * 2 + (b + 1) * 3).sum().backward()
    assert a.grad is not None and b.grad is not None
    assert a.grad.tolist() == [2, 2] and b.grad.tolist() == [3, 3]
    c, d = Tensor(2.0), Tensor(2.0)
    (c * d * d).backward()
    assert c.grad is not None and d.grad is not None and (c.grad.item(), d.grad.item()) == (4, 8)
    assert Tensor.zeros(2, requires_grad=False).uop.op is Ops.EXPAND


def test_arange_is_as_wide_as_its_numbers() -> None:
    for args in ((2**40, 2**40 + 3), (0, 2**40, 2**39), (-(2**40), 0, 2**39), (0, 5, 2**40), (2**31 - 2, 2**31)):
        assert Tensor.arange(*args).numpy().tolist() == np.arange(*args).tolist()
    assert Tensor.arange(2**31 - 2, 2**31).dtype is dtypes.int32
    assert Tensor.arange(2**31 - 2, 2**31 + 1).dtype is dtypes.int64
    assert Tensor.arange(np.int64(3)).dtype is dtypes.int32
    assert Tensor.arange(0, 300, 100, dtype="uint8").tolist() == [0, 100, 200]


@pytest.mark.parametrize("device", ["CPU", "PYTHON"])
def test_bools_of_other_bytes_than_0_and_1(device: str) -> None:
    odd = np.array([[69, 0, 2], [1, 255, 0]], np.uint8).view(np.bool_)
    x = Tensor(odd, device=device)
    assert x.int().tolist() == [[1, 0, 1], [1, 1, 0]] and x.sum().item() == 4
    assert x.logical_not().tolist() == [[False, True, False], [False, False, True]]
    assert x.numpy().view(np.uint8).tolist() == [[1, 0, 1], [1, 1, 0]]


def test_a_constant_has_the_line_that_made_it() -> None:
    """Scalar operands are cached nodes, yet the same number on another line may be a separate tensor with its own
    origin."""
    (Tensor([1, 2, 3]) + 7).realize()
    frame = sys._getframe()
    found = Tensor.full((3,), 7), frame.f_lineno
    assert found[0].uop.origin[0][2] == found[1]
