"""Elementwise methods against NumPy: every dtype, empty and nonempty shapes, special values."""
from __future__ import annotations

import importlib
import math
import operator
from typing import Any

import numpy as np
import pytest

from tests.tensor.helpers import FLOATS, INTS, RTOL, SHAPES, check, special, values, wide
from tinsmith import Tensor, dtypes
from tinsmith.core.dtypes import promote
from tinsmith.core.errors import DTypeError
from tinsmith.tensor.math.table import ELEMENTWISE, ElementwiseRow

REFERRED = {name: row for name, row in ELEMENTWISE.items() if row.reference}


def cases(operands: int) -> list[Any]:
    """Return each row that has a reference in NumPy with each dtype that it takes."""
    kinds = {"b": [dtypes.bool], "i": INTS, "f": FLOATS}
    return [pytest.param(name, dtype, id=f"{name}-{dtype}") for name, row in REFERRED.items()
            for kind in row.takes for dtype in kinds[kind] if row.operands == operands]


def inputs(row: ElementwiseRow, dtype: Any) -> list[list[Any]]:
    """Return operands for a row: ordinary values of many shapes, and all pairs of special values."""
    low, high = (row.low, row.high) if dtype.is_float else (-9, 9)
    found = [[values(shape, dtype, low, high, seed) for seed in range(1, 1 + row.operands)]
             for shape in (SHAPES if dtype is dtypes.float32 else [(2, 3)])]
    s = special(dtype) if row.edges else special(dtype)[:0]
    return [*found, [s] if row.operands == 1 else [np.repeat(s, len(s)), np.tile(s, len(s))]]


def check_row(name: str, dtype: Any) -> None:
    row = ELEMENTWISE[name]
    module, _, function = row.reference.rpartition(".")
    of = getattr(importlib.import_module(module), function)
    for arrays in inputs(row, dtype):
        with np.errstate(all="ignore"):
            want = of(*map(wide, arrays))
        check(getattr(Tensor(arrays[0]), name)(*map(Tensor, arrays[1:])), want,
              dtypes.bool if row.gives == "bool" else dtype, rtol=RTOL.get(dtype, 0) * (0 if row.exact else 3))


def test_cos_far_from_zero() -> None:
    x = np.linspace(-1000, 1000, 999).astype(np.float32)
    check(Tensor(x).cos(), np.cos(x.astype(np.float64)), atol=1e-6)


def test_float_functions_of_bools() -> None:
    check(Tensor([True, False]).exp(), np.exp(np.array([1, 0], np.float32)), dtypes.float32)
    check(Tensor([True, False]).sqrt(), np.array([1, 0], np.float32), dtypes.float32)


@pytest.mark.parametrize(("name", "dtype"), cases(1))
def test_unary(name: str, dtype: Any) -> None:
    check_row(name, dtype)


def test_unary_of_bools() -> None:
    x = Tensor([True, False])
    assert (-x).tolist() == [False, True] and (~x).tolist() == [False, True]
    assert x.abs().tolist() == x.sign().tolist() == x.floor().tolist() == [True, False]


def test_round_takes_halves_to_even() -> None:
    x = np.array([0.5, 1.5, 2.5, -0.5, -1.5, 3.5, 0.49999997, 8388609, 1e30], np.float32)
    check(Tensor(x).round(), np.round(x))


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64], ids=str)
def test_edges_of_functions(dtype) -> None:
    """The worst arguments found by sweeps over all exponents, the poles of the tangent, and overflow thresholds."""
    most = float(np.finfo(dtype.numpy).max)
    over = {dtypes.float32: 89.41599, dtypes.float64: 710.4758600739439}[dtype]  # the last whose cosh is finite
    cases = {
        "tan": [-1.5707964, 1.5707963267948966, 4.712389, 7.853982, 1e22, -4.189893144731487e24, -23.299439943866417],
        "cosh": [-17.033191680908203, 14.92385013473253, over, -over, 1.01 * over, 20, 20.1, 1e-9],
        "sinh": [0.06072509288787842, over, -over, 1.01 * over, 1e-30],
        "acosh": [1.007567286491394, 1, 0.5, -1, -4100, -1e30, 1e9, most, 1.0872539818042746],
        "asinh": [most, -most, 1e-30, -0.3629201054573059], "atan": [most, -math.inf, 1.551197648, 2.414, 0.66],
        "asin": [1, -1, 0.12440759688615799, 1.0001, 1e-30], "atanh": [1, -1, 1.5, -0.4166063964366913],
        "log1p": [-1, -1.5, most, 1e-30, 0.4170454442501068, -0.99999994], "exp2": [6.614592800e16, most, -most, 1e18]}
    softplus = {"softplus": [-21.6, -103.0, -700.0, 21.6, most, -most, -0.8369255065917969]}
    for name, found in (cases | softplus).items():
        x = np.array(found, dtype.numpy)
        with np.errstate(all="ignore"):
            want = (np.logaddexp(0, x.astype(np.longdouble)) if name == "softplus" else
                    getattr(np, {"asin": "arcsin", "atan": "arctan", "acosh": "arccosh", "asinh": "arcsinh",
                                 "atanh": "arctanh"}.get(name, name))(x.astype(np.longdouble))).astype(dtype.numpy)
        got = getattr(Tensor(x), name)().numpy()
        np.testing.assert_array_equal(np.isnan(got), np.isnan(want), name)
        np.testing.assert_array_equal(np.isinf(got), np.isinf(want), name)
        finite = np.isfinite(want)
        np.testing.assert_array_max_ulp(got[finite], want[finite], 4)


def test_sign_of_zero() -> None:
    x = Tensor([0.0, -0.0])
    assert np.signbit((-x).numpy()).tolist() == [True, False]
    got = Tensor([1.0, 2.0, 3.0]).copysign(Tensor([-0.0, 0.0, -math.nan])).numpy()
    np.testing.assert_array_equal(got, np.copysign([1.0, 2.0, 3.0], [-0.0, 0.0, -math.nan]))


# *** two operands ***


@pytest.mark.parametrize(("name", "dtype"), cases(2))
def test_binary(name: str, dtype: Any) -> None:
    check_row(name, dtype)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_true_division(dtype) -> None:
    s = special(dtype)
    x, y = np.repeat(s, len(s)), np.tile(s, len(s))
    with np.errstate(all="ignore"):
        check(Tensor(x) / Tensor(y), wide(x) / wide(y), dtype)


@pytest.mark.parametrize("dtype", INTS, ids=str)
def test_integer_division_and_remainder(dtype) -> None:
    s = special(dtype)
    x, y = np.repeat(s, len(s)), np.tile(s, len(s))
    with np.errstate(all="ignore"):
        check(Tensor(x) // Tensor(y), np.where(y == 0, 0, x // np.where(y == 0, 1, y)), dtype)
        check(Tensor(x) % Tensor(y), np.where(y == 0, 0, x % np.where(y == 0, 1, y)), dtype)
    check(Tensor(x) / 4, x.astype(np.float32) / 4, dtypes.float32)


def test_float_division_rounds_down() -> None:
    x, y = np.repeat(np.array([7.5, -7.5, 0.0, 3.0]), 3), np.tile(np.array([2.0, -2.0, 0.75]), 4)
    check(Tensor(x) // Tensor(y), x // y)
    check(Tensor(x) % Tensor(y), x % y)
    check(Tensor(x).fmod(Tensor(y)), np.fmod(x, y))
    check(Tensor([7, -7, 7]).fmod(Tensor([4, 4, -4])), np.fmod([7, -7, 7], [4, 4, -4]))
    check(Tensor([7, -7, 7, 8]).div(Tensor([4, 4, -4, 4]), rounding_mode="trunc"), [1, -1, -1, 2], dtypes.int32)
    check(Tensor(x).div(Tensor(y), rounding_mode="trunc"), np.trunc(x / y))


@pytest.mark.parametrize("shapes", [((3,), ()), ((2, 1), (1, 3)), ((4, 1, 5), (2, 1)), ((0,), (1,)), ((1, 0), (3, 1))],
                         ids=str)
def test_broadcasting(shapes) -> None:
    x, y = values(shapes[0], dtypes.float32, seed=1), values(shapes[1], dtypes.float32, seed=2)
    check(Tensor(x) + Tensor(y), x + y)
    check(Tensor(x) < Tensor(y), x < y)
    check((Tensor(x) > 0).where(Tensor(y), Tensor(x)), np.where(x > 0, y, x))


def test_promotion_follows_the_lattice() -> None:
    for a in dtypes.all:
        for b in dtypes.all:
            assert (Tensor.ones(1, dtype=a) + Tensor.ones(1, dtype=b)).dtype is promote(a, b)


def test_python_numbers_are_weak() -> None:
    assert (Tensor([1], dtype=dtypes.int8) + 1).dtype is dtypes.int8
    assert (Tensor([1], dtype=dtypes.int8) + 1.5).dtype is dtypes.float32
    assert (Tensor([1], dtype=dtypes.float16) * 2.5).dtype is dtypes.float16
    assert (Tensor([True]) + 1).dtype is dtypes.int32
    assert (Tensor([True]) * 0.5).dtype is dtypes.float32
    assert (Tensor([True]) & True).dtype is dtypes.bool
    assert (Tensor([1.0], dtype=dtypes.float16) + np.float64(2)).dtype is dtypes.float16
    assert (np.float64(2) * Tensor([1.0])).dtype is dtypes.float32
    assert Tensor([True, False]).where(1, 2).dtype is dtypes.int32
    assert Tensor([True, False]).where(1, 2.0).dtype is dtypes.float32


def test_operators_and_their_reflections() -> None:
    x = np.array([5, 3, -7], np.int32)
    t = Tensor(x)
    for op in (operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod):
        check(op(t, 2), op(x, 2))
        check(op(2, t), op(2, x))
    for op in (operator.and_, operator.or_, operator.xor):
        check(op(t, 6), op(x, 6))
        check(op(6, t), op(6, x))
    check(1 << Tensor([1, 3]), [2, 8])
    check(256 >> Tensor([1, 3]), [128, 32])
    check(2 ** Tensor([1.0, 3.0]), [2, 8])
    check(abs(t), abs(x))
    check(np.array([1, 2, 3]) + t, np.add(x, [1, 2, 3]))
    check(t - np.array([1, 2, 3]), x - [1, 2, 3])
    check([3, 2, 1] - t, np.subtract([3, 2, 1], x))
    assert isinstance(np.array([1, 2, 3]) * t, Tensor)


def test_comparison_with_other_things_is_pythons() -> None:
    assert (Tensor([1]) == "a") is False
    assert (Tensor([1]) != None) is True  # noqa: E711
    with pytest.raises(TypeError):
        Tensor([1]) + "a"
    assert len({Tensor([1]), Tensor([1])}) == 2


@pytest.mark.parametrize("dtype", INTS, ids=str)
def test_bits(dtype) -> None:
    x, y = values((20,), dtype, -100, 100, 1), values((20,), dtype, -100, 100, 2)
    for name in ("and", "or", "xor"):
        check(getattr(Tensor(x), f"bitwise_{name}")(Tensor(y)), getattr(np, f"bitwise_{name}")(x, y), dtype)
    for one in (0, 1, 2, -1)[: 3 if dtype.is_unsigned else 4]:
        check(Tensor(x) & one, x & x.dtype.type(one), dtype)
        check(Tensor(x) | one, x | x.dtype.type(one), dtype)
        check(one ^ Tensor(x), x ^ x.dtype.type(one), dtype)
    check(~Tensor(x), ~x, dtype)
    n = values((20,), dtype, 0, 6, 3)
    check(Tensor(x) << Tensor(n), x << n, dtype)
    check(Tensor(x) >> Tensor(n), x >> n, dtype)
    for beyond in (dtype.bits, dtype.bits + 5):
        check(Tensor(x).lshift(beyond), np.zeros_like(x), dtype)
        check(Tensor(x).rshift(beyond), np.where(x < 0, -1, 0).astype(x.dtype), dtype)


# *** powers ***


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, -1, -2, 0.5, -0.5, 1.5, 7, 2.0, 0.3])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_power_by_a_number(exponent, dtype) -> None:
    x = values((2, 3), dtype, 0.25, 3)
    check(Tensor(x) ** exponent, wide(x) ** exponent, dtype, rtol=4 * RTOL[dtype])


def test_power_signs_and_zeros() -> None:
    x = np.array([2, -2, 0, 1, -1, np.inf, -np.inf, 0.5, -0.5, np.nan])
    y = np.array([0, 1, 2, 3, -1, -2, 0.5, 1.5, -0.5, np.inf, -np.inf, np.nan])
    a, b = np.repeat(x, len(y)), np.tile(y, len(x))
    with np.errstate(all="ignore"):
        check(Tensor(a) ** Tensor(b), a**b, rtol=1e-5)
        for e in (2, 3, 0.5, -1.0):
            check(Tensor(np.array([2, -2, 0, np.nan])) ** e, np.array([2, -2, 0, np.nan]) ** e, rtol=1e-6)
        for base in (2, 0, -2, 1.5):
            check(base ** Tensor(y), float(base) ** y, rtol=1e-5)


def test_power_of_signed_zeros_and_infinities_by_tensors() -> None:
    base, exponent = (a.ravel().astype(np.float32) for a in np.meshgrid(
        [0.0, -0.0, 1, -1, 2, -2, np.inf, -np.inf, np.nan, 0.5],
        [0, 1, -1, 2, 3, 0.5, -0.5, np.inf, -np.inf, np.nan, -3]))
    with np.errstate(all="ignore"):
        expected = base**exponent
    got = (Tensor(base) ** Tensor(exponent)).numpy()
    np.testing.assert_allclose(got, expected, rtol=1e-6)
    np.testing.assert_array_equal(np.signbit(got[got == got]), np.signbit(expected[expected == expected]))


def test_power_of_integers() -> None:
    x = np.array([-3, -2, -1, 0, 1, 2, 3], np.int32)
    for e in (0, 1, 2, 5, 31):
        check(Tensor(x) ** e, x**e, dtypes.int32)
    a, b = np.repeat(x, 8), np.tile(np.arange(8, dtype=np.int32), 7)
    check(Tensor(a) ** Tensor(b), a**b, dtypes.int32)
    check(2 ** Tensor([0, 3, 10]), [1, 8, 1024], dtypes.int32)
    check(Tensor(x) ** 2.0, x.astype(np.float32) ** 2, dtypes.float32)
    with pytest.raises(ValueError, match="negative power"):
        Tensor(x) ** -1


# *** choices and bounds ***


def test_where_clamp_lerp() -> None:
    x = values((2, 3), dtypes.float32)
    t = Tensor(x)
    check((t > 0).where(t, 0), np.where(x > 0, x, 0), dtypes.float32)
    check((t > 0).where(Tensor([1, 2, 3]), 0.5), np.where(x > 0, [1, 2, 3], 0.5), dtypes.float32)
    check((t > 0).where(x, np.zeros(3, np.float32)), np.where(x > 0, x, 0), dtypes.float32)
    for wrong in ("a", None):
        with pytest.raises(DTypeError, match="where: cannot combine"):
            (t > 0).where(wrong, 1)
    check(t.clamp(-1, 1), x.clip(-1, 1))
    check(t.clip(max_=1), x.clip(None, 1))
    check(t.clamp(Tensor([0.0, 1, 2])), np.maximum(x, [0, 1, 2]))
    check(t.lerp(Tensor(x + 4), 0.25), x + 1)
    check(t.masked_fill(t < 0, 9), np.where(x < 0, 9, x))
    with pytest.raises(ValueError):
        t.clamp()


def test_isclose() -> None:
    x = np.array([1, 1, np.inf, np.inf, np.nan, 0])
    y = np.array([1 + 1e-7, 1.1, np.inf, -np.inf, np.nan, 1e-9])
    check(Tensor(x).isclose(Tensor(y)), np.isclose(x, y))
    check(Tensor(x).isclose(Tensor(y), equal_nan=True), np.isclose(x, y, equal_nan=True))
    assert Tensor(x[:1]).allclose(Tensor(y[:1])) and not Tensor(x).allclose(Tensor(y))
    check(Tensor([np.inf, -np.inf]).isinf(detect_negative=False), [True, False])


def test_logaddexp() -> None:
    x, y = np.array([1000, -np.inf, 0, 3.0]), np.array([1000, -np.inf, -np.inf, 2.0])
    check(Tensor(x).logaddexp(Tensor(y)), np.logaddexp(x, y))


# *** casts ***


@pytest.mark.parametrize("target", dtypes.all, ids=str)
@pytest.mark.parametrize("source", dtypes.all, ids=str)
def test_cast(source, target) -> None:
    x = values((7,), source, 0, 100)
    check(Tensor(x).cast(target), wide(x).astype(target.numpy) if source.is_float else x.astype(target.numpy),
          target)


def test_casts_of_special_values() -> None:
    x = Tensor([65536.0, -65536.0, 1e9, -1e9, math.nan, 1e20])
    np.testing.assert_array_equal(x.half().numpy(),
                                  np.array([np.inf, -np.inf, np.inf, -np.inf, np.nan, np.inf], np.float16))
    assert x.cast("int8").tolist() == [127, -128, 127, -128, 0, 127]
    assert x.cast("int32").tolist() == [65536, -65536, 1000000000, -1000000000, 0, 2**31 - 1]
    assert x.cast("uint8").tolist() == [255, 0, 255, 0, 0, 255]
    assert x.bool().tolist() == [True] * 6
    assert Tensor([300, -1]).cast("uint8").tolist() == [44, 255]


def test_casts_by_name() -> None:
    x = Tensor([1.5, 0.0])
    for name, dtype in [("float", dtypes.float32), ("half", dtypes.float16), ("bfloat16", dtypes.bfloat16),
                        ("double", dtypes.float64), ("int", dtypes.int32), ("long", dtypes.int64),
                        ("short", dtypes.int16),
                        ("bool", dtypes.bool)]:
        assert getattr(x, name)().dtype is dtype
    assert x.type_as(Tensor([1])).dtype is dtypes.int32
    assert Tensor([1.0]).bitcast("int32").tolist() == [0x3F800000]


# *** IEEE ***


def test_no_algebra_that_is_false_for_floats() -> None:  # PAINS R10
    x = Tensor([math.inf, math.nan])
    for y in (x - x, x / x, x * 0):
        assert y.isnan().all().item()


def test_integer_division_by_zero_is_zero() -> None:  # PAINS R8
    assert (Tensor([1, 2]) // Tensor([0, 1])).tolist() == [0, 2]
    assert (Tensor([1, 2]) % Tensor([0, 1])).tolist() == [0, 0]


def test_half_of_a_large_float_is_infinite() -> None:  # PAINS R11
    x = Tensor([65536.0]).realize().half()
    assert x.float().item() == math.inf


# *** in place ***


def test_in_place_operators_change_the_object() -> None:
    x = Tensor([1, 2, 3]).realize()
    same, before = x, x + 0
    x += 1
    x *= 2
    x -= 1
    assert same is x and x.tolist() == [3, 5, 7]
    x //= 2
    x %= 2
    x <<= 3
    x |= 1
    x ^= 2
    assert x.tolist() == [11, 3, 11]
    assert before.tolist() == [1, 2, 3]
    y = Tensor([1.0]) + 1
    y /= 4
    y **= 2
    assert y.item() == 0.25


def test_in_place_keeps_shape_and_dtype() -> None:
    x = Tensor([1, 2, 3])
    with pytest.raises(TypeError):
        x += 1.5
    with pytest.raises(ValueError):
        x += Tensor([[1], [2]])
    assert x.tolist() == [1, 2, 3]
    h = Tensor([1.0], dtype=dtypes.float16)
    h += Tensor([1.0], dtype=dtypes.float32)
    assert h.dtype is dtypes.float16


def test_remainders_of_large_quotients_and_infinities() -> None:
    a = np.array([1e10, 5.0, 3e38, -5.0, 7.0, -7.0, 7.5, np.nan, np.inf], np.float32)
    b = np.array([1.5, np.inf, 0.5, np.inf, -2.0, 2.0, 0.25, 2.0, 2.0], np.float32)
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal((Tensor(a) % Tensor(b)).numpy(), a % b)
        np.testing.assert_array_equal(Tensor(a).fmod(Tensor(b)).numpy(), np.fmod(a, b))


@pytest.mark.parametrize("value", [2**40, -(2**40), 2**100, -(2**100), 128, -129])
@pytest.mark.parametrize("compare", ["__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"])
def test_comparisons_with_integers_that_do_not_fit(compare: str, value: int) -> None:
    for data in ([-128, 0, 127], [True, False]):
        array = np.array(data, np.int8 if len(data) == 3 else np.bool_)
        want = [getattr(int(v), compare)(value) for v in data]
        assert getattr(Tensor(array), compare)(value).tolist() == want


def test_one_element_tensors_are_python_numbers() -> None:
    assert (float(Tensor([1.5])), int(Tensor(7)), [5, 6][Tensor(1)], f"{Tensor([1.234]):.2f}") == (1.5, 7, 6, "1.23")
    assert list(range(Tensor([3]))) == [0, 1, 2] and f"{Tensor([1])}" == str(Tensor([1]))


def test_round_and_divmod() -> None:
    x = np.array([2.5, -1.5, 0.126, 1234.5], np.float32)
    for digits in (0, 1, 2, -1, -2):
        check(round(Tensor(x), digits), np.round(x, digits))
        check(Tensor(x).round(decimals=digits), np.round(x, digits))
    check(round(Tensor(x)), np.round(x))
    check(round(Tensor([3, -4]), 2), np.array([3, -4]), dtypes.int32)
    for a, b in ((np.array([7, -7, 3]), 2), (np.array([7.5, -7.5], np.float32), np.array([2, -2], np.float32))):
        for got, want in zip(divmod(Tensor(a), Tensor(b) if isinstance(b, np.ndarray) else b), divmod(a, b)):
            check(got, want)
    for got, want in zip(divmod(7, Tensor([2, -3])), divmod(7, np.array([2, -3]))):
        check(got, want)
    with pytest.raises(TypeError, match="divmod"):
        divmod(Tensor([1]), "a")


def test_functions_of_numpy_work_on_the_values() -> None:
    x = values((3, 4), dtypes.float32)
    t = Tensor(x)
    for function in (np.mean, np.sum, np.std, np.var, np.max, np.min, np.prod, np.median, np.argmax, np.cumsum, np.sort,
                     np.round, np.transpose, np.ravel, np.linalg.norm, np.sin, np.any):
        got = function(t)
        assert not isinstance(got, Tensor)
        np.testing.assert_array_equal(got, function(x))
    np.testing.assert_array_equal(np.mean(t, axis=0), np.mean(x, axis=0))
    np.testing.assert_array_equal(np.concatenate([t, x], axis=1), np.concatenate([x, x], axis=1))
    np.testing.assert_array_equal(np.where(t > 0, t, x), x)
    np.testing.assert_array_equal(np.stack(arrays=(t, t)), np.stack((x, x)))
    np.testing.assert_allclose(t, x)
    check(x[0] + t, x[0] + x)  # an operator is the tensor's
