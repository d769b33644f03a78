"""Accuracy: functions are within a few ulp over their full domain; 16-bit results are rounded once."""
from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import special

from tests.codegen.running import NATIVE
from tests.codegen.test_transcendentals import ulps
from tinsmith import Tensor, dtypes
from tinsmith.core.dtypes import DType

Array = np.ndarray[Any, Any]
DEVICES = [*NATIVE, "PYTHON"]


def softplus(x: Array) -> Array:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def elu(x: Array) -> Array:
    return np.where(x > 0, x, np.expm1(np.minimum(x, 0)))


def gelu(x: Array) -> Array:
    return x * special.ndtr(x.astype(np.float64))


# The exact function, and how many units of the last place float32 and float64 may be off
FUNCTIONS: dict[str, tuple[Callable[[Array], Array], float]] = {
    "sin": (np.sin, 2), "cos": (np.cos, 2.5), "tan": (np.tan, 4), "asin": (np.arcsin, 2.5), "acos": (np.arccos, 2.5),
    "atan": (np.arctan, 2), "sinh": (np.sinh, 2.5), "cosh": (np.cosh, 2.5), "tanh": (np.tanh, 2.5),
    "asinh": (np.arcsinh, 2.5), "acosh": (np.arccosh, 2.5), "atanh": (np.arctanh, 2.5), "exp": (np.exp, 1.5),
    "exp2": (np.exp2, 1.5), "expm1": (np.expm1, 2), "log": (np.log, 1.5), "log2": (np.log2, 2), "log10": (np.log10, 3),
    "log1p": (np.log1p, 2), "softplus": (softplus, 2.5), "logsigmoid": (lambda x: -softplus(-x), 2.5), "elu": (elu, 2),
    "rsqrt": (lambda x: 1 / np.sqrt(x), 2), "softsign": (lambda x: x / (1 + np.abs(x)), 2),
}
HALF_ONLY: dict[str, Callable[[Array], Array]] = {  # float32 loses digits in their tails: exponentials of products
    "gelu": gelu, "silu": lambda x: x / (1 + np.exp(-x)), "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "quick_gelu": lambda x: x / (1 + np.exp(-1.702 * x)), "mish": lambda x: x * np.tanh(softplus(x)),
    "celu": elu, "hardswish": lambda x: x * np.clip(x + 3, 0, 6) / 6,
    "hardsigmoid": lambda x: np.clip(x / 6 + 0.5, 0, 1),
}


def samples(dtype: DType, count: int = 1500) -> Array:
    """Return arguments near 0 and 1, of every exponent, and at the limits of exponentials."""
    rng, info = np.random.default_rng(5), np.finfo(np.float32 if dtype.itemsize < 4 else dtype.numpy)
    end = math.log2(float(info.max))
    x = np.concatenate([rng.uniform(-10, 10, count), rng.normal(0, 1e-3, count), 1 + rng.normal(0, 1e-3, count),
                        rng.choice([-1, 1], count) * np.exp2(rng.uniform(-end - 20, min(end, 60), count)),
                        rng.uniform(-end * math.log(2), end * math.log(2), count), rng.uniform(-1, 1, count),
                        np.round(rng.uniform(-1000, 1000, count)) * math.pi / 2, [0.0, -0.0, 89.0, -20.0, 20.0, 300.0]])
    return x.astype(dtype.numpy)


def exact(function: Callable[[Array], Array], x: Array) -> Array:
    with np.errstate(all="ignore"):
        return function(x.astype(np.longdouble))


@pytest.mark.skipif(np.finfo(np.longdouble).nmant < 63, reason="long double is no wider than double here")
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_right_to_the_last_places(name: str, dtype: DType) -> None:
    function, most = FUNCTIONS[name]
    x = samples(dtype)
    expected = exact(function, x)
    largest = np.longdouble(np.finfo(dtype.numpy).max)
    for device in DEVICES:
        step = 29 if device == "PYTHON" else 1  # it is slow
        error = ulps(getattr(Tensor(x[::step], device=device), name)().numpy(), expected[::step])
        error[np.abs(expected[::step]) > largest * (1 - np.longdouble(2) ** -20)] = 0  # infinity is as good there
        assert error.max() <= most, f"{device}: {error.max():.2f} ulp at {x[::step][error.argmax()]!r}"


@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16], ids=str)
@pytest.mark.parametrize("name", [*FUNCTIONS, *HALF_ONLY])
def test_functions_of_16_bits_round_once(name: str, dtype: DType) -> None:
    """The result equals the rounded float32 result, with at most one rounding in the other direction."""
    function = FUNCTIONS[name][0] if name in FUNCTIONS else HALF_ONLY[name]
    x = samples(dtype, 500)
    with np.errstate(all="ignore"):
        expected = exact(function, x)
        got, nearest = getattr(Tensor(x), name)().float().numpy(), expected.astype(dtype.numpy).astype(np.float32)
        unit = np.maximum(np.abs(nearest) * float(2 * np.finfo(dtype.numpy).eps if dtype is dtypes.float16 else 2**-6),
                          6e-8 if dtype is dtypes.float16 else 1e-37)
        same = (got == nearest) | (np.isnan(got) & np.isnan(nearest))
        wrong = ~same & ~(np.abs(got - nearest) <= unit)
    assert not wrong.any(), (x[wrong][:4], got[wrong][:4], nearest[wrong][:4])
    assert same.mean() > 0.98


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64], ids=str)
def test_powers(dtype: DType, device: str) -> None:
    rng, count = np.random.default_rng(2), 100 if device == "PYTHON" else 2000
    end = math.log2(float(np.finfo(dtype.numpy).max))
    base = np.exp2(rng.uniform(-end, end, count)).astype(dtype.numpy)
    power = (rng.uniform(-end, end, count) / np.log2(base)).astype(dtype.numpy)
    expected = np.power(base.astype(np.longdouble), power.astype(np.longdouble))
    assert ulps(Tensor(base, device=device).pow(Tensor(power, device=device)).numpy(), expected).max() <= 1.5
    one = Tensor(base, device=device).pow(Tensor(np.ones_like(base), device=device)).numpy()
    np.testing.assert_array_equal(one, base)
    for n in (-2, -1, 2, 3, 4, 5, 8, 20, 0.3, -1.5):
        x = rng.uniform(0.5, 1.5, count // 4).astype(dtype.numpy)
        exactly = np.power(x.astype(np.longdouble), np.longdouble(dtype.numpy.type(n)))
        assert ulps((Tensor(x, device=device) ** n).numpy(), exactly).max() <= 2, n


def test_what_cancels_is_kept() -> None:
    for name, x, y, slope in (("elu", -1e-9, -1e-9, 1.0), ("softplus", -20.0, math.exp(-20), math.exp(-20)),
                              ("logsigmoid", 20.0, -math.exp(-20), math.exp(-20)), ("expm1", 100.0, INF, INF),
                              ("sinh", 89.0, math.sinh(89), math.cosh(89)), ("sinh", 100.0, INF, INF),
                              ("cosh", -89.0, math.cosh(89), -math.sinh(89)), ("cosh", 1e-5, 1.0, 1e-5)):
        t = Tensor([x])
        out = getattr(t, name)()
        np.testing.assert_allclose([out.item(), out.sum().gradient(t)[0].item()], [y, slope], rtol=1e-6)
    assert Tensor([0.0]).logaddexp(Tensor([-20.0])).item() == pytest.approx(math.exp(-20), rel=1e-6)
    for logit, target in ((20.0, 1.0), (-20.0, 0.0)):
        for weight in (None, Tensor([1.0])):
            loss = Tensor([logit]).binary_crossentropy_logits(Tensor([target]), pos_weight=weight)
            assert loss.item() == pytest.approx(math.exp(-20), rel=1e-6)
    assert Tensor([1e-9]).binary_crossentropy(Tensor([0.0])).item() == pytest.approx(1e-9, rel=1e-6)


INF = math.inf


@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16], ids=str)
def test_sums_of_squares_of_16_bits(dtype: DType) -> None:
    """300² overflows float16; its square root does not."""
    x = Tensor([[300.0, -300.0, 300.0, -300.0]]).cast(dtype)
    assert x.norm().item() == 600 and x.norm(p=3).dtype is dtype
    assert x.norm(p=3).item() == pytest.approx(300 * 4 ** (1 / 3), rel=1e-2)
    assert x.normalize().float().numpy().tolist() == [[0.5, -0.5, 0.5, -0.5]]
    assert x.std(correction=0).item() == 300
    assert (x**-2).max().item() == pytest.approx(300.0**-2, rel=1e-2)
    loss = x.mse_loss(x * 0.9)
    assert loss.dtype is dtype and loss.item() == pytest.approx(900, rel=2e-2)
    attended = x.expand(4, 4).scaled_dot_product_attention(x.expand(4, 4), x.expand(4, 4))
    np.testing.assert_array_equal(attended.float().numpy(), np.broadcast_to(x.float().numpy(), (4, 4)))
    (gradient,) = x.norm().gradient(x)
    assert gradient.dtype is dtype and gradient.float().numpy().tolist() == [[0.5, -0.5, 0.5, -0.5]]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("axis", [0, 1, None])
def test_variance_far_from_zero(device: str, axis: int | None) -> None:
    """The mean of numbers near a million is rounded to a sixteenth; the squares must not contain that error."""
    x = (np.random.default_rng(0).normal(size=(64, 48)) + 1e6).astype(np.float32)
    wide, t = x.astype(np.float64), Tensor(x, device=device)
    np.testing.assert_allclose(t.var(axis=axis).numpy(), wide.var(axis=axis, ddof=1), rtol=1e-5)
    np.testing.assert_allclose(t.std(axis=axis).numpy(), wide.std(axis=axis, ddof=1), rtol=1e-5)
    if axis is not None:
        want = (wide - wide.mean(axis, keepdims=True)) / np.sqrt(wide.var(axis, keepdims=True) + 1e-5)
        np.testing.assert_allclose(t.layernorm(axis).numpy(), want, rtol=1e-5, atol=1e-5)
    same = Tensor(np.full((5, 7), 1e6 + 0.3, np.float32), device=device)
    assert same.var(axis=axis).numpy().max() == 0 and np.all(same.std(axis=axis).numpy() == 0)


def test_erf_is_that_of_scipy() -> None:
    x = samples(dtypes.float32)
    assert ulps(Tensor(x).erf().numpy(), special.erf(x.astype(np.float64)).astype(np.longdouble)).max() <= 2


def test_integers_that_no_integer_holds_become_the_default_float() -> None:
    a, b = Tensor([1 << 40], dtype=dtypes.int64), Tensor([1 << 63], dtype=dtypes.uint64)
    assert (a + b).dtype is dtypes.default_float and (a + b).item() == 2.0**63 + 2.0**40
    assert (a + b.cast(dtypes.uint32)).dtype is dtypes.int64
