"""Convolutions along one long axis: windows are staged in blocks of rows (``register_tiles._block_of_windows``)."""
from __future__ import annotations

import numpy as np
import pytest

from tinsmith import Opt, OptOps, Tensor, with_opts

# batch, channels, length, filters, kernel, stride, padding, dilation; lengths of results with divisors, and prime ones
CASES = [(2, 96, 2000, 64, 3, 2, 1, 1), (1, 128, 3203, 32, 5, 1, 0, 1), (1, 80, 1999, 48, 3, 1, 1, 1),
         (1, 200, 1700, 24, 4, 3, 2, 1), (2, 72, 2100, 16, 3, 1, 2, 2), (1, 96, 1597 + 2, 40, 3, 1, 0, 1)]


def convolved(x: np.ndarray, w: np.ndarray, stride: int, padding: int, dilation: int) -> np.ndarray:
    """Return the convolution of ``x`` [N, C, L] with ``w`` [O, C, K], in float64."""
    x = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (padding, padding)))
    size = dilation * (w.shape[2] - 1) + 1
    windows = np.lib.stride_tricks.sliding_window_view(x, size, 2)[:, :, ::stride, ::dilation]
    return np.einsum("nclk,ock->nol", windows, w.astype(np.float64), optimize=True)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_long_rows_of_windows_are_right(case: tuple[int, ...]) -> None:
    n, c, length, filters, size, stride, padding, dilation = case
    rng = np.random.default_rng(sum(case))
    x = rng.standard_normal((n, c, length), np.float32)
    w = rng.standard_normal((filters, c, size), np.float32)
    found = Tensor(x).conv2d(Tensor(w), stride=stride, padding=padding, dilation=dilation).relu().numpy()
    np.testing.assert_allclose(found, np.maximum(convolved(x, w, stride, padding, dilation), 0), atol=2e-3, rtol=1e-3)


@pytest.mark.parametrize("length", [37, 61, 64])
@pytest.mark.parametrize("tile", [5, 8, 60])
def test_a_tile_need_not_divide_a_loop(length: int, tile: int) -> None:
    x, w = np.arange(3 * length, dtype=np.float32).reshape(3, length), np.float32([1, -2, 3])
    value = Tensor(x).unsqueeze(0).conv2d(Tensor(w).reshape(1, 1, 3).expand(3, 1, 3), groups=3, padding=1)
    opts = [Opt(OptOps.TILE, 1, min(tile, length))] if tile < length else []
    kernel = with_opts(value, opts)
    padded = np.pad(x, ((0, 0), (1, 1)))
    wanted = np.stack([np.convolve(row, w[::-1], "valid") for row in padded])
    np.testing.assert_array_equal(np.reshape(kernel.run(), (3, length)), wanted)
