"""Precision corner cases: scalars combined with 16-bit floats, remainders, signed zeros, integer wrap-around."""
from __future__ import annotations

import math
import operator

import ml_dtypes
import numpy as np
import pytest

from tests.backend.opencl import missing as opencl_missing
from tinsmith import Tensor, dtypes
from tinsmith.core.errors import ArgumentError, DTypeError

DEVICES = ["CPU", "CPU:C", "PYTHON", pytest.param("OPENCL", marks=pytest.mark.skipif(bool(opencl_missing()),
                                                                                     reason=opencl_missing()))]
HALVES = [np.float16, ml_dtypes.bfloat16]
F32 = np.float32


def same(got: Tensor, want: np.ndarray) -> None:
    """Check equal values with equal signs of zeros, and NaN at the same positions."""
    found = got.numpy()
    assert found.dtype == want.dtype
    np.testing.assert_array_equal(found, want)
    known = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(found)[known], np.signbit(want)[known])


@pytest.mark.parametrize("kind", HALVES, ids=["float16", "bfloat16"])
@pytest.mark.parametrize("f", [operator.add, operator.sub, operator.mul, operator.truediv], ids=lambda f: f.__name__)
def test_a_scalar_beside_a_16_bit_float_has_its_digits(f, kind) -> None:
    x = np.array([13, -2.5, 1e-4, 6e4, 1, 3e-5, 0.1, 7], kind)
    for number in (0.1, 1 / 65536, 1e5, 1e-9, -3.3, 70000, np.float64(0.1), np.float32(0.3)):
        with np.errstate(over="ignore", invalid="ignore"):
            same(f(Tensor(x), number), f(x.astype(F32), F32(number)).astype(kind))
            same(f(number, Tensor(x)), f(F32(number), x.astype(F32)).astype(kind))


@pytest.mark.parametrize("kind", HALVES, ids=["float16", "bfloat16"])
def test_methods_of_several_steps_round_once(kind) -> None:
    x, y = (np.random.default_rng(n).standard_normal((1, 1, 6, 6)).astype(kind) for n in (0, 1))
    a, b, tenth = x.astype(F32), y.astype(F32), F32(0.1)
    s, t = Tensor(x), Tensor(y)
    same(s.add(t, alpha=0.1), (a + b * tenth).astype(kind))
    same(s.sub(t, alpha=0.1), (a - b * tenth).astype(kind))
    same(s.rsub(t, alpha=0.1), (b - a * tenth).astype(kind))
    same(s.addcmul(t, t, value=0.1), (a + b * tenth * b).astype(kind))
    same(s.addcdiv(t, t, value=0.1), (a + b * tenth / b).astype(kind))
    same(s.leaky_relu(0.1), np.where(a > 0, a, a * tenth).astype(kind))
    ninth = np.lib.stride_tricks.sliding_window_view(a[0, 0], (3, 3))[::3, ::3].astype(np.float64).mean((-1, -2))
    np.testing.assert_allclose(s.avg_pool2d(3).numpy()[0, 0].astype(np.float64), ninth,
                               rtol=float(ml_dtypes.finfo(kind).eps) * 0.51)


def test_operands_meet_in_their_common_dtype_before_anything_is_rounded() -> None:
    one, three = (Tensor([v], dtype=dtypes.bfloat16) for v in (1.0, 3.0))
    same(Tensor([1.0]).addcdiv(one, three), np.array([1 + F32(1) / F32(3)], F32))
    same(Tensor([1.0], dtype=dtypes.float64).add(Tensor([1.0]), alpha=0.1), np.array([1.1]))
    assert Tensor([1], dtype=dtypes.int32).add(Tensor([100], dtype=dtypes.int8), alpha=3).tolist() == [301]


def test_the_gradient_of_a_scalar_product_is_rounded_once() -> None:
    x = Tensor([13.0], dtype=dtypes.bfloat16, requires_grad=True)
    (x * 0.1).sum().backward()
    assert x.grad is not None and x.grad.dtype is dtypes.bfloat16
    assert x.grad.item() == float(ml_dtypes.bfloat16(0.1))


def remainders(kind: type) -> tuple[np.ndarray, np.ndarray]:
    """Return pairs of all exponents, and edge cases: signs, infinities, quotients near integers."""
    rng, bits = np.random.default_rng(5), np.dtype(kind).itemsize * 8
    unsigned = {16: np.uint16, 32: np.uint32, 64: np.uint64}[bits]
    any_a, any_b = rng.integers(0, 1 << bits, (2, 300), dtype=unsigned, endpoint=False).view(kind)
    edge = np.array([0.0, -0.0, 1, -1, 0.1, -0.5, 7, 2.5, math.inf, -math.inf, math.nan, 1e4, np.finfo(kind).max,
                     np.finfo(kind).tiny, np.finfo(kind).smallest_subnormal], kind)
    a, b = (v.reshape(-1) for v in np.meshgrid(edge, edge))
    return np.concatenate([any_a, a]), np.concatenate([any_b, b])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64], ids=lambda k: k.__name__)
def test_remainders_are_exact(kind, device) -> None:
    a, b = remainders(kind)
    x, y = Tensor(a, device=device), Tensor(b, device=device)
    with np.errstate(all="ignore"):
        rest = np.fmod(a.astype(np.float64), b.astype(np.float64)).astype(kind)
        same(x.fmod(y), rest)
        same(x % y, np.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", [np.float32, np.float64], ids=lambda k: k.__name__)
def test_quotients_rounded_down_are_those_of_python(kind, device) -> None:
    a, b = remainders(kind)
    with np.errstate(all="ignore"):
        same(Tensor(a, device=device) // Tensor(b, device=device), np.floor_divide(a, b))


def test_quotients_and_remainders_with_scalars() -> None:
    one = Tensor([1.0, -1.0, -0.0])
    same(one // 0.1, np.array([9, -10, -0.0], F32))
    same(one // -math.inf, np.array([-1, 0, 0], F32))
    same(one % 0.1, np.fmod(np.array([1, -1, -0.0], F32), F32(0.1)) + np.array([0, F32(0.1), -0.0], F32))
    same(1.0 // Tensor([0.1]), np.array([9], F32))
    for kind in HALVES:  # the quotient takes the scalar as it is, the remainder rounds it, as in PyTorch
        same(Tensor(np.array([13], kind)) // 0.1, np.array([129], kind))
        near = np.array([0.1], kind)  # its quotient by 0.1 is not 1, but rounds to 1
        same(Tensor(near).div(0.1, rounding_mode="trunc"), np.trunc(near.astype(F32) / F32(0.1)).astype(kind))
        same(Tensor(np.array([13], kind)) % 0.1, np.array([math.fmod(13, float(kind(0.1)))], kind))


def test_gradients_of_remainders_and_quotients() -> None:
    x, y = Tensor([5.0, -7.0], requires_grad=True), Tensor([2.0, 3.0], requires_grad=True)
    (x % y).sum().backward()
    assert x.grad is not None and y.grad is not None
    assert (x.grad.tolist(), y.grad.tolist()) == ([1, 1], [-2, 3])
    assert [g.tolist() for g in x.fmod(y).sum().gradient(x, y)] == [[1, 1], [-2, 2]]
    zero = Tensor([0.0, 3.0])
    assert [g.tolist() for g in (x // zero).sum().gradient(x, zero)] == [[0, 0], [0, 0]]


@pytest.mark.parametrize("device", DEVICES)
def test_zeros_keep_their_sign(device) -> None:
    x = np.array([-0.2, -0.5, -0.0, 0.0, 0.5, -1.5, 2.5, -0.7, math.inf, math.nan] * 4, F32)
    for kind in (np.float16, np.float32, np.float64):
        t = Tensor(x.astype(kind), device=device)
        same(t.round(), np.round(x.astype(kind)))
        same(t.relu(), np.where(x < 0, 0, x).astype(kind))
        same(t.minimum(0.0), np.where(x > 0, 0, x).astype(kind))
        same(t.ceil(), np.ceil(x.astype(kind)))


@pytest.mark.parametrize("device", DEVICES)
def test_a_constant_nan_is_nan(device) -> None:
    x = Tensor([1.0, 2.0], device=device)
    for y in ((x * math.nan).trunc(), (x + math.nan).floor(), x // math.nan, x % math.nan, (math.nan - x).round()):
        assert np.isnan(y.numpy()).all()


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int16, np.int32, np.int64], ids=lambda k: k.__name__)
def test_integer_powers_wrap_like_products(kind) -> None:
    info = np.iinfo(kind)
    base = np.array([0, 1, 2, 3, 5, 7, info.max, info.min, 6, info.max - 1], kind)
    for power in (0, 1, 6, 7, 8, 31, 32, 62, 63, 64, 65, 100, 127):
        want = np.array([pow(int(b), power, 1 << info.bits) for b in base], object)
        want = np.array([w - (1 << info.bits) if w > info.max else w for w in want], kind)
        same_integers(Tensor(base) ** power, want)
        same_integers(Tensor(base) ** Tensor(np.full_like(base, power)), want)


def same_integers(got: Tensor, want: np.ndarray) -> None:
    assert got.numpy().dtype == want.dtype
    np.testing.assert_array_equal(got.numpy(), want)


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int16, np.uint16], ids=lambda k: k.__name__)
def test_products_of_integers_keep_their_dtype(kind) -> None:
    info, rng = np.iinfo(kind), np.random.default_rng(0)
    a, b = (rng.integers(info.min, info.max, s, dtype=kind, endpoint=True) for s in ((4, 33), (33, 5)))
    whole = a.astype(np.int64) @ b.astype(np.int64)
    x, y = Tensor(a), Tensor(b)
    same_integers(x @ y, whole.astype(kind))
    same_integers(x[0] @ y[:, 0], whole[0, 0].astype(kind))
    same_integers(Tensor.einsum("ij,jk->ik", x, y), whole.astype(kind))
    same_integers(x.matmul(y, dtype=dtypes.int32), whole.astype(np.int32))
    same_integers(x.reshape(1, 1, 4, 33).conv2d(y.T.reshape(5, 1, 1, 33)).reshape(5, 4).T, whole.astype(kind))


def test_bools_are_counted_where_they_are_summed() -> None:
    x = Tensor([[True, True], [True, False]])
    assert x.sum_to_size(1, 2).tolist() == [[2, 1]] and x.sum_to_size(2, 2).dtype is dtypes.bool
    assert (x @ x).dtype is dtypes.int32


def test_pools_take_the_order_of_either_library() -> None:
    x = Tensor(np.random.default_rng(0).standard_normal((1, 2, 8, 8)).astype(F32))

    def equal(a: Tensor, b: Tensor) -> None:
        np.testing.assert_array_equal(a.numpy(), b.numpy())

    equal(x.avg_pool2d(3, 2, 1, True, False), x.avg_pool2d(3, 2, padding=1, ceil_mode=True, count_include_pad=False))
    equal(x.avg_pool2d(3, 2, 2, 1, True), x.avg_pool2d(3, 2, dilation=2, padding=1, ceil_mode=True))
    equal(x.avg_pool2d(3, 2, 1, padding=1), x.avg_pool2d(3, 2, padding=1))
    equal(x.max_pool2d(3, 2, 0, 2), x.max_pool2d(3, 2, dilation=2))
    equal(x.max_pool2d(3, 2, 2, 0), x.max_pool2d(3, 2, dilation=2))
    equal(x.max_pool2d(3, 2, 1, 1), x.max_pool2d(3, 2, padding=1))
    for call in (lambda: x.avg_pool2d(3, 2, 1), lambda: x.max_pool2d(3, 2, 1), lambda: x.max_pool2d(3, 2, 1, 2)):
        with pytest.raises(ArgumentError, match="tinygrad and padding=1"):
            call()


def test_integers_have_no_gradient() -> None:
    for make in (lambda: Tensor([1], requires_grad=True), lambda: Tensor([True]).requires_grad_(),
                 lambda: Tensor.zeros(2, dtype=dtypes.int32, requires_grad=True),
                 lambda: Tensor.empty(2, dtype=dtypes.int32, requires_grad=True),
                 lambda: Tensor.randint(2, requires_grad=True), lambda: setattr(Tensor([1]), "requires_grad", True)):
        with pytest.raises(DTypeError, match="no gradient"):
            make()
    assert Tensor([1]).requires_grad_(False).requires_grad is False
