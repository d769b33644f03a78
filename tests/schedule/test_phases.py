"""Polyphase convolutions: sums over strided windows become dense sums of their phases, with as many terms as windows
cover an element."""
from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.schedule.helpers import kernels
from tinsmith import Context, Tensor
from tinsmith.ir import Ops
from tinsmith.ir.uop import toposort
from tinsmith.schedule.schedule_item import ScheduleItem

rng = np.random.default_rng(3)


def terms(items: list[ScheduleItem]) -> int:
    """Return the number of elements reduced by some kernels."""
    found = {n for i in items if i.sink is not None for n in toposort(i.sink) if n.op is Ops.REDUCE}
    return sum(math.prod(int(s) for s in n.src[0].shape) for n in found)


def data(*shape: int) -> Tensor:
    return Tensor(rng.standard_normal(shape).astype(np.float32))


@settings(max_examples=15, deadline=None)
@given(st.tuples(st.integers(1, 5), st.integers(1, 5)), st.tuples(st.integers(1, 4), st.integers(1, 4)),
       st.integers(0, 2), st.tuples(st.integers(5, 11), st.integers(5, 11)), st.sampled_from((1, 2)))
def test_data_gradients_of_strided_convolutions(kernel, stride, padding, size, groups) -> None:
    padding = min(padding, *kernel)
    x, w = data(2, 4, *size), data(6, 4 // groups, *kernel)

    def gradient() -> np.ndarray:
        out = x.conv2d(w, stride=stride, padding=padding, groups=groups)
        weights = np.arange(out.numel(), dtype=np.float32).reshape(out.shape) % 7
        return out.gradient(x, gradient=Tensor(weights))[0].numpy()

    with Context(NOOPT=1):
        expected = gradient()
    np.testing.assert_allclose(gradient(), expected, rtol=1e-4, atol=1e-4)


@settings(max_examples=30, deadline=None)
@given(st.tuples(st.integers(1, 4), st.integers(1, 4)), st.tuples(st.integers(1, 4), st.integers(1, 4)),
       st.sampled_from((1, 2)), st.sampled_from(("dense", "rows alike", "all alike")),
       st.sampled_from(("CPU", "PYTHON:G256:C8")))
def test_data_gradients_of_strided_depthwise_convolutions(kernel, stride, often, form, device) -> None:
    """Windows of one element along an axis, and weights that are repeated along the window, have phases too."""
    x, shape = data(2, 3, 7, 9).to(device), (3 * often, 1, *kernel)
    w = {"dense": data(*shape), "rows alike": data(3 * often, 1, 1, kernel[1]).expand(shape),
         "all alike": data(3 * often, 1, 1, 1).expand(shape)}[form].to(device)

    def gradient() -> np.ndarray:
        out = x.conv2d(w, stride=stride, padding=(kernel[0] // 2, 0), groups=3)
        weights = np.arange(out.numel(), dtype=np.float32).reshape(out.shape) % 7
        return out.gradient(x, gradient=Tensor(weights, device=device))[0].numpy()

    with Context(NOOPT=1):
        expected = gradient()
    np.testing.assert_allclose(gradient(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
def test_strided_depthwise_gradients_are_one_kernel_on_a_grid(last: bool) -> None:
    """Phase by phase, with a copy to interleave them, a GPU took 667 µs for what takes 60."""
    device = "PYTHON:G256:C8"
    x = Tensor.empty(4, 16, 16, 32, device=device).permute(0, 3, 1, 2) if last else Tensor.empty(
        4, 32, 16, 16, device=device)
    y = x.conv2d(Tensor.empty(32, 1, 3, 3, device=device), padding=1, stride=2, groups=32)
    grad = Tensor.empty(4, 8, 8, 32, device=device).permute(0, 3, 1, 2) if last else Tensor.empty(
        *y.shape, device=device)
    (found,) = y.gradient(x, gradient=grad)
    found = found.permute(0, 2, 3, 1) if last else found
    kernels = [s for s in found.contiguous().schedule().steps if s.item.sink is not None]
    assert len(kernels) <= 2, "zeros around the weights, and all phases together"


@settings(max_examples=10, deadline=None)
@given(st.integers(1, 5), st.integers(2, 4), st.integers(1, 2), st.integers(3, 8))
def test_transposed_convolutions(kernel, stride, dilation, size) -> None:
    x, w = data(1, 3, size, size), data(3, 2, kernel, kernel)
    with Context(NOOPT=1):
        expected = x.conv_transpose2d(w, stride=stride, dilation=dilation).numpy()
    np.testing.assert_allclose(x.conv_transpose2d(w, stride=stride, dilation=dilation).numpy(), expected, rtol=1e-4,
                               atol=1e-4)


def test_nothing_is_multiplied_that_no_window_shows() -> None:
    x, w = data(2, 8, 17, 17).realize(), data(6, 8, 3, 3).realize()
    out = x.conv2d(w, stride=2)
    found = terms(kernels(out.gradient(x, gradient=data(*out.shape).realize())[0]))
    assert found <= 2 * 8 * 6 * (9 * 2) ** 2 * 9 / 4, "a quarter of the taps at each of 18² positions"
    with Context(NOOPT=1):
        plain = terms(kernels(out.gradient(x, gradient=data(*out.shape).realize())[0]))
    assert plain >= 3.5 * found


def test_parts_of_a_stored_sum_are_not_copied() -> None:
    """A crop of the phases' sum is stored alone; a part of another stored sum is read where it is."""
    x, w, bias = data(16, 8).realize(), data(8, 32).realize(), data(32).realize()
    gates = (x.matmul(w) + bias).contiguous().reshape(16, 4, 8)
    assert len(kernels(gates[:, 0].sigmoid() * gates[:, 1].tanh() + gates[:, 2] * gates[:, 3])) == 2


def test_infinities_and_nan_stay_where_they_are() -> None:
    x = Tensor(np.zeros((1, 1, 6), np.float32))
    g = Tensor(np.array([[[np.inf, 1, np.nan]]], np.float32))
    out = x.conv2d(Tensor(np.ones((1, 1, 2), np.float32)), stride=2)
    np.testing.assert_array_equal(out.gradient(x, gradient=g)[0].numpy(), [[[np.inf, np.inf, 1, 1, np.nan, np.nan]]])
