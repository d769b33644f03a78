"""Convolutions and pools against NumPy, and their derivatives."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.nn.helpers import arrays, check_gradient, conv, windows
from tinsmith import Tensor, dtypes
from tinsmith.core.errors import ArgumentError, ShapeError

CASES: list[dict[str, Any]] = [
    {}, {"stride": 2}, {"padding": 1}, {"dilation": 2, "padding": 2}, {"groups": 2}, {"groups": 4, "padding": 1},
    {"stride": (2, 1), "padding": (0, 1)}, {"padding": (1, 0, 2, 1)}, {"stride": 3, "dilation": (1, 2), "padding": 2},
]


def _two(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else tuple(value)


def _pairs(padding: Any) -> tuple[tuple[int, int], tuple[int, int]]:
    if not isinstance(padding, int) and len(padding) == 4:
        return (padding[2], padding[3]), (padding[0], padding[1])
    a, b = _two(padding)
    return (a, a), (b, b)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_conv2d(case: dict[str, Any]) -> None:
    groups = case.get("groups", 1)
    x, w, b = arrays((2, 4, 7, 6), (4, 4 // groups, 3, 2), (4,))
    expected = conv(x, w, b, groups, _two(case.get("stride", 1)), _two(case.get("dilation", 1)),
                    _pairs(case.get("padding", 0)))
    got = Tensor(x, dtype="float32").conv2d(Tensor(w, dtype="float32"), Tensor(b, dtype="float32"), **case)
    assert got.dtype is dtypes.float32
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("case", CASES[1:5] + CASES[7:], ids=str)
def test_conv2d_gradient(case: dict[str, Any]) -> None:
    groups = case.get("groups", 1)
    check_gradient(lambda x, w, b: x.conv2d(w, b, **case), *arrays((1, 4, 6, 5), (4, 4 // groups, 3, 2), (4,)))


def test_conv2d_second_derivative() -> None:
    check_gradient(lambda x, w: x.conv2d(w, stride=2, padding=1).square(), *arrays((1, 2, 4, 4), (2, 2, 3, 3)), order=2)


def test_conv1d_and_conv3d() -> None:
    x, w = arrays((2, 3, 9), (4, 3, 3))
    expected = conv(x[:, :, None], w[:, :, None], None, 1, (1, 2), (1, 1), ((0, 0), (1, 1)))[:, :, 0]
    np.testing.assert_allclose(Tensor(x).conv2d(Tensor(w), stride=2, padding=1).numpy(), expected, atol=1e-5)
    x, w = arrays((1, 1, 3, 4, 4), (2, 1, 3, 2, 2))
    expected = sum(conv(x[:, :, d], w[:, :, d], None, 1, (1, 1), (1, 1), ((0, 0), (0, 0))) for d in range(3))
    np.testing.assert_allclose(Tensor(x).conv2d(Tensor(w)).numpy()[:, :, 0], expected, atol=1e-5)


def test_half_precision_sums_in_float32() -> None:
    x = Tensor.ones(1, 4096, 1, 1, dtype=dtypes.float16)
    assert x.conv2d(Tensor.full((1, 4096, 1, 1), 0.5, dtype=dtypes.float16)).item() == 2048
    assert x.conv2d(x).dtype is dtypes.float16


TRANSPOSED: list[dict[str, Any]] = [{}, {"stride": 2}, {"stride": 2, "padding": 1, "output_padding": 1},
                                    {"groups": 2, "dilation": 2}, {"stride": (1, 3), "padding": (1, 0)}]


@pytest.mark.parametrize("case", TRANSPOSED, ids=str)
def test_conv_transpose_is_the_transpose(case: dict[str, Any]) -> None:
    """<conv_transpose(x), y> = <x, conv(y)> for every y."""
    groups = case.get("groups", 1)
    x, w = arrays((2, 4, 4, 3), (4, 6 // groups, 3, 2))
    out = Tensor(x).conv_transpose2d(Tensor(w), **case)
    (y,) = arrays(tuple(int(s) for s in out.shape), seed=3)
    back = {k: v for k, v in case.items() if k != "output_padding"}
    there = Tensor(y).conv2d(Tensor(w), **back).numpy()[:, :, : x.shape[2], : x.shape[3]]
    assert np.isclose((out.numpy() * y).sum(), (there * x).sum())
    check_gradient(lambda a, b: a.conv_transpose2d(b, **case), x, w)


POOLS: list[dict[str, Any]] = [{}, {"kernel_size": 3, "stride": 2}, {"kernel_size": (3, 2), "stride": 1, "padding": 1},
                               {"kernel_size": 2, "dilation": 2, "stride": 1}, {"kernel_size": 3}]


@pytest.mark.parametrize("case", POOLS, ids=str)
@pytest.mark.parametrize("kind", ["max", "avg"])
def test_pools(kind: str, case: dict[str, Any]) -> None:
    (x,) = arrays((2, 3, 7, 8))
    kernel = _two(case.get("kernel_size", 2))
    padded = np.pad(x, ((0, 0), (0, 0), *_pairs(case.get("padding", 0))),
                    constant_values=-np.inf if kind == "max" else 0)
    seen = windows(padded, kernel, _two(case.get("stride", kernel)), _two(case.get("dilation", 1)))
    expected = seen.max((-2, -1)) if kind == "max" else seen.mean((-2, -1))
    method = Tensor.max_pool2d if kind == "max" else Tensor.avg_pool2d
    np.testing.assert_allclose(method(Tensor(x), **case).numpy(), expected, atol=1e-6)
    check_gradient(lambda a: method(a, **case), x)


def test_pool_of_integers() -> None:
    x = Tensor([[[[1, 2], [3, -4]]]])
    assert x.max_pool2d(2, padding=1, stride=2).tolist() == [[[[1, 2], [3, -4]]]]
    assert x.avg_pool2d().item() == 0.5
    assert x.avg_pool2d(2, stride=2, padding=1, count_include_pad=False).tolist() == [[[[1, 2], [3, -4]]]]


@pytest.mark.parametrize("call", [
    lambda x: x.conv2d(Tensor.ones(2, 2, 3, 3)), lambda x: x.conv2d(Tensor.ones(2, 3, 9, 9)),
    lambda x: x.conv2d(Tensor.ones(2, 3, 3, 3), Tensor.ones(3)), lambda x: x.conv2d(Tensor.ones(3, 3)),
    lambda x: x.max_pool2d(9)])
def test_shape_errors(call: Any) -> None:
    with pytest.raises(ShapeError, match=r"test_windows\.py"):
        call(Tensor.ones(1, 3, 5, 5))


def test_argument_errors() -> None:
    with pytest.raises(ArgumentError, match="padding"):
        Tensor.ones(1, 3, 5, 5).conv2d(Tensor.ones(2, 3, 3, 3), padding=(1, 2, 3))


@pytest.mark.parametrize(("kernel", "dilation"), [(3, 1), (4, 1), ((2, 3), 1), (2, 3)])
def test_same_padding_keeps_the_size(kernel: Any, dilation: int) -> None:
    sizes = kernel if isinstance(kernel, tuple) else (kernel, kernel)
    x, w = Tensor(np.arange(42, dtype=np.float32).reshape(1, 1, 6, 7)), Tensor.ones(1, 1, *sizes)
    total = [dilation * (k - 1) for k in sizes]
    pads = [(t // 2, t - t // 2) for t in total]
    want = x.pad((None, None, *pads)).conv2d(w, dilation=dilation)
    got = x.conv2d(w, dilation=dilation, padding="same")
    assert got.shape == x.shape and np.array_equal(got.numpy(), want.numpy())
    assert np.array_equal(x.conv2d(w, padding="valid").numpy(), x.conv2d(w).numpy())
