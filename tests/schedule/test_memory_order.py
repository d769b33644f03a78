"""The order of axes in which values are stored: that of the kernels that read them."""
from __future__ import annotations

import numpy as np
import pytest

from tests.schedule.helpers import count, given, kernels
from tinsmith import Tensor, explain


def _pool(x: Tensor, *args: int, **kwargs: int) -> list[Tensor]:
    """Return maxima of windows and their indices for images [N, H, W, C], in that order."""
    return [t.permute(0, 2, 3, 1).contiguous() for t in x.permute(0, 3, 1, 2).max_pool2d(
        *args, return_indices=True, **kwargs)]


def test_maxima_of_images_that_are_stored_channels_last_stay_channels_last() -> None:
    assert count(*_pool(given(2, 12, 12, 32))) == 2  # one for each result
    items = kernels(*_pool(given(2, 12, 12, 32), 3, 2, padding=1))
    assert len(items) == 3 and items[0].sink is not None  # the padded images first
    assert items[0].sink.src[0].shape == (2, 14, 14, 32)


@pytest.mark.parametrize("shape", [(2, 9, 7, 5), (1, 8, 8, 32)])
def test_results_in_another_order_are_correct(shape: tuple[int, ...]) -> None:
    x = given(*shape)
    values, places = (t.numpy() for t in _pool(x, 3, 2, padding=1))
    padded = np.pad(x.numpy(), ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=-np.inf)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (1, 2))[:, ::2, ::2]
    np.testing.assert_array_equal(values, windows.max((-2, -1)))
    flat = x.numpy().reshape(shape[0], -1, shape[3])
    np.testing.assert_array_equal(np.take_along_axis(flat, places.reshape(shape[0], -1, shape[3]), 1).ravel(),
                                  values.ravel())


def test_a_value_that_its_kernels_read_along_its_own_axes_keeps_them() -> None:
    x = given(64, 48)
    y = x.exp().cumsum(1).sum(0, keepdim=True) + x
    plain, copied = y.softmax(1), (y.exp() * 2).permute(1, 0)
    shapes = [i.sink.src[0].shape for i in kernels(plain, copied) if i.sink is not None]
    assert (48, 64) not in shapes[:-1]


def test_the_reason_of_a_value_in_another_order_is_that_of_the_value() -> None:
    report = explain(*_pool(given(2, 12, 12, 32), 3, 2, padding=1))
    assert "2 passes over rows read it" in str(report)


@pytest.mark.parametrize("stride", [1, 2])
def test_gradients_of_convolutions_per_channel_stay_channels_last(stride: int) -> None:
    """The gradient of images, all phases in one kernel, needs the weight with zeros where it is strided."""
    x, w = given(2, 12, 12, 32).requires_grad_(), given(32, 1, 3, 3).requires_grad_()
    y = x.permute(0, 3, 1, 2).conv2d(w, groups=32, stride=stride, padding=1)
    g = given(2, 12 // stride, 12 // stride, 32).permute(0, 3, 1, 2)
    of_images, of_weight = y.gradient(x, w, gradient=g)
    items = [*kernels(of_images.contiguous()), *kernels(of_weight)]
    shapes = [i.sink.src[0].shape for i in items if i.sink is not None]
    assert len(shapes) == 1 + stride and (32, 2, 12, 12) not in shapes and (2, 32, 12, 12) not in shapes
