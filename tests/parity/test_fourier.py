"""Fourier transforms of (real, imaginary) pairs against PyTorch's of complex numbers: values and gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.parity.helpers import random, same, torch
from tinsmith import Tensor

X, Y, P = random(3, 4, 5), random(3, 4, 5, seed=1), abs(random(3, 4, 5)) + 0.1


def real(f: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *x: torch.view_as_real(f(*x).resolve_conj())


def pairs(f: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x: (lambda y: torch.view_as_real(y) if y.is_complex() else y)(f(torch.view_as_complex(x)))


T, HANN = torch.fft, np.hanning(9)[:8].astype(np.float32)
FOURIER: dict[str, tuple[Any, ...]] = {
    **{
        f"{name} {n} {norm}": (
            lambda x, n=n, norm=norm, name=name: getattr(x, name)(n, 0, norm),
            pairs(lambda x, n=n, norm=norm, name=name: getattr(T, name)(x, n, 0, norm)),
            random(6, 3, 2),
        )
        for name in ("fft", "ifft", "irfft", "hfft")
        for n, norm in ((None, None), (9, "ortho"), (5, "forward"))
    },
    **{
        f"{name} {n} {norm}": (
            lambda x, n=n, norm=norm, name=name: getattr(x, name)(n, 1, norm),
            real(lambda x, n=n, norm=norm, name=name: getattr(T, name)(x, n, 1, norm)),
            random(3, 8),
        )
        for name in ("rfft", "ihfft")
        for n, norm in ((None, None), (9, "ortho"), (5, "forward"))
    },
    **{
        name: (
            lambda x, name=name: getattr(x, name)(),
            pairs(lambda x, name=name: getattr(T, name)(x)),
            random(3, 4, 2),
        )
        for name in ("fft2", "ifft2", "fftn", "ifftn", "irfft2", "irfftn")
    },
    **{
        name: (
            lambda x, name=name: getattr(x, name)(norm="ortho"),
            real(lambda x, name=name: getattr(T, name)(x, norm="ortho")),
            random(3, 4),
        )
        for name in ("rfft2", "rfftn")
    },
    "fftn sizes": (lambda x: x.fftn((5, 2), (1, 0)), pairs(lambda x: T.fftn(x, (5, 2), (1, 0))), random(3, 4, 2)),
    "long": (lambda x: x.rfft(), real(T.rfft), random(2, 300)),
    "prime": (lambda x: x.rfft(), real(T.rfft), random(2, 131)),
    "fftshift": (lambda x: x.fftshift(), T.fftshift, X),
    "ifftshift": (lambda x: x.ifftshift((1,)), lambda x: T.ifftshift(x, (1,)), X),
    "fftfreq": (lambda: Tensor.fftfreq(5, 0.5), lambda: T.fftfreq(5, 0.5)),
    "rfftfreq": (lambda: Tensor.rfftfreq(5), lambda: T.rfftfreq(5)),
    **{
        f"{w} {p}": (lambda w=w, p=p: getattr(Tensor, w)(7, p), lambda w=w, p=p: getattr(torch, w)(7, p))
        for p in (True, False)
        for w in ("hann_window", "hamming_window", "blackman_window", "bartlett_window")
    },
    "complex_mul": (
        lambda x, y: x.complex_mul(y),
        lambda x, y: torch.view_as_real(torch.view_as_complex(x) * torch.view_as_complex(y)),
        random(3, 2),
        random(3, 2, seed=3),
    ),
    "polar": (lambda x, y: x.polar(y), real(torch.polar), P, Y),
    "complex": (lambda x, y: x.complex(y), real(torch.complex), X, Y),
    "stft": (
        lambda x, w: x.stft(8, 3, window=w),
        real(lambda x, w: torch.stft(x, 8, 3, window=w, return_complex=True)),
        random(2, 20),
        HANN,
    ),
    "stft plain": (
        lambda x: x.stft(8, center=False, normalized=True, onesided=False),
        real(
            lambda x: torch.stft(
                x, 8, center=False, normalized=True, onesided=False, window=torch.ones(8), return_complex=True
            )
        ),
        random(20),
    ),
    "stft short window": (
        lambda x, w: x.stft(12, 3, 8, w, pad_mode="constant"),
        real(lambda x, w: torch.stft(x, 12, 3, 8, w, pad_mode="constant", return_complex=True)),
        random(2, 20),
        HANN,
    ),
    "istft": (
        lambda x, w: x.istft(8, 3, window=w + 0.5, length=18),
        lambda x, w: torch.istft(torch.view_as_complex(x), 8, 3, window=w + 0.5, length=18),
        random(2, 5, 7, 2),
        HANN,
    ),
}


@pytest.mark.parametrize("name", FOURIER)
def test_fourier(name: str) -> None:
    same(*FOURIER[name])
