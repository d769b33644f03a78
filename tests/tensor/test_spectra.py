"""Fourier transforms against SciPy's; complex numbers are pairs along a last axis of size 2."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.fft
import scipy.signal

from tinsmith import Tensor


def _random(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(len(shape)).standard_normal(shape)


def _complex(t: Tensor) -> np.ndarray[Any, Any]:
    pairs = t.numpy()
    return pairs[..., 0] + 1j * pairs[..., 1]  # type: ignore[no-any-return]


LENGTHS = [(264, None), (330, None), (8, None), (7, None), (12, 9), (5, 8), (30, None), (31, None), (1, None)]
NORMS = {None: "backward", "ortho": "ortho", "forward": "forward"}


@pytest.mark.parametrize(("size", "n"), LENGTHS)
def test_one_axis(size: int, n: int | None) -> None:
    z, x = _random(3, size, 2), _random(3, size)
    both = z[..., 0] + 1j * z[..., 1]
    norm = list(NORMS)[size % 3]
    options: dict[str, Any] = {"n": n, "norm": NORMS[norm]}
    for name in ("fft", "ifft"):
        np.testing.assert_allclose(_complex(getattr(Tensor(z), name)(n, norm=norm)),
                                   getattr(scipy.fft, name)(both, **options), atol=1e-12)
    for name in ("rfft", "ihfft"):
        np.testing.assert_allclose(_complex(getattr(Tensor(x), name)(n, norm=norm)),
                                   getattr(scipy.fft, name)(x, **options), atol=1e-12)
    if size > 1:
        for name in ("irfft", "hfft"):
            np.testing.assert_allclose(getattr(Tensor(z), name)(n, norm=norm).numpy(),
                                       getattr(scipy.fft, name)(both, **options), atol=1e-12)


def test_several_axes_and_frequencies() -> None:
    z, x = _random(4, 3, 6, 2), _random(4, 3, 6)
    both = z[..., 0] + 1j * z[..., 1]
    for name in ("fftn", "ifftn", "fft2", "ifft2"):
        np.testing.assert_allclose(_complex(getattr(Tensor(z), name)()), getattr(scipy.fft, name)(both), atol=1e-12)
    for name in ("rfftn", "rfft2"):
        np.testing.assert_allclose(_complex(getattr(Tensor(x), name)()), getattr(scipy.fft, name)(x), atol=1e-12)
    for name in ("irfftn", "irfft2"):
        np.testing.assert_allclose(getattr(Tensor(z), name)().numpy(), getattr(scipy.fft, name)(both), atol=1e-12)
    for n in (1, 6, 7):
        np.testing.assert_allclose(Tensor.fftfreq(n, 0.5).numpy(), scipy.fft.fftfreq(n, 0.5), rtol=1e-6)
        np.testing.assert_allclose(Tensor.rfftfreq(n, 0.5).numpy(), scipy.fft.rfftfreq(n, 0.5), rtol=1e-6)
        np.testing.assert_array_equal(Tensor(x[0, 0, :n]).fftshift().numpy(), scipy.fft.fftshift(x[0, 0, :n]))


def test_short_time() -> None:
    """SciPy's short-time transform without padding, which scales by the sum of the window."""
    x, window = _random(64), scipy.signal.get_window("hann", 16)
    _, _, want = scipy.signal.stft(x, window=window, nperseg=16, noverlap=12, boundary=None, padded=False)
    found = Tensor(x).stft(16, 4, window=Tensor(window), center=False)
    np.testing.assert_allclose(_complex(found), want * window.sum(), atol=1e-12)
    np.testing.assert_allclose(Tensor.hann_window(16).numpy(), window, atol=1e-6)
