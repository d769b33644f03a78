"""Fourier transforms with PyTorch's names: ``tinsmith.fft.rfft(x)`` is ``torch.fft.rfft(x)``.

There is no complex dtype: complex numbers are (real, imaginary) pairs along a last axis of size 2, as in
``torch.view_as_real``; ``dim`` does not count that axis. Real values become complex by ``x.complex()``. ``norm`` is
"backward" (the inverse is divided by n; the default), "ortho" (both are divided by the root of n) or "forward".

>>> from tinsmith import fft
>>> fft.fft(Tensor([1.0, 2.0, 3.0, 4.0]).complex()).numpy().round(4).tolist()
[[10.0, 0.0], [-2.0, 2.0], [-2.0, 0.0], [-2.0, -2.0]]
"""
from __future__ import annotations

import sys

from tinsmith.backend.device import DeviceName
from tinsmith.core.dtypes import DType
from tinsmith.core.suggestions import guide
from tinsmith.tensor.fft import Axes, Sizes, transform_axes
from tinsmith.tensor.tensor import Tensor

__all__ = ["fft", "fft2", "fftfreq", "fftn", "fftshift", "hfft", "hfft2", "hfftn", "ifft", "ifft2", "ifftn",
           "ifftshift", "ihfft", "ihfft2", "ihfftn", "irfft", "irfft2", "irfftn", "rfft", "rfft2", "rfftfreq", "rfftn"]


def fft(input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """Return the discrete Fourier transform of complex numbers; ``n``: cut or fill up with zeros to so many first.

    >>> fft(Tensor([1.0, 2.0, 3.0, 4.0]).complex()).numpy().round(4).tolist()
    [[10.0, 0.0], [-2.0, 2.0], [-2.0, 0.0], [-2.0, -2.0]]
    """
    return input.fft(n, dim, norm)


def ifft(input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """Return the inverse of ``fft``.

    >>> ifft(fft(Tensor([1.0, 2.0, 3.0, 4.0]).complex())).numpy().round(4).tolist()
    [[1.0, 0.0], [2.0, 0.0], [3.0, 0.0], [4.0, 0.0]]
    """
    return input.ifft(n, dim, norm)


def rfft(input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """Return the first ``n // 2 + 1`` values of the transform of real numbers.

    >>> rfft(Tensor([1.0, 2.0, 3.0, 4.0])).numpy().round(4).tolist()
    [[10.0, 0.0], [-2.0, 2.0], [-2.0, 0.0]]
    """
    return input.rfft(n, dim, norm)


def irfft(input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """Return the ``n`` real values whose ``rfft`` this is; an even number by default.

    >>> irfft(rfft(Tensor([1.0, 2.0, 3.0, 4.0]))).numpy().round(4).tolist()
    [1.0, 2.0, 3.0, 4.0]
    """
    return input.irfft(n, dim, norm)


def hfft(input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """Return the real transform of a signal whose second half mirrors the first (``n // 2 + 1`` values).

    >>> hfft(Tensor([[1.0, 0.0], [0.0, 0.0]])).tolist()
    [1.0, 1.0]
    """
    return input.hfft(n, dim, norm)


def ihfft(input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """Return the inverse of ``hfft``.

    >>> ihfft(hfft(Tensor([[1.0, 0.0], [0.0, 0.0]]))).abs().tolist()
    [[1.0, 0.0], [0.0, 0.0]]
    """
    return input.ihfft(n, dim, norm)


def fft2(input: Tensor, s: Sizes = None, dim: Axes = (-2, -1), norm: str | None = None) -> Tensor:
    """Return ``fft`` along two axes.

    >>> fft2(Tensor([[1.0, 2.0], [3.0, 4.0]]).complex()).numpy().round(4).tolist()
    [[[10.0, 0.0], [-2.0, 0.0]], [[-4.0, 0.0], [0.0, 0.0]]]
    """
    return input.fft2(s, dim, norm)


def ifft2(input: Tensor, s: Sizes = None, dim: Axes = (-2, -1), norm: str | None = None) -> Tensor:
    """Return ``ifft`` along two axes.

    >>> ifft2(fft2(Tensor([[1.0, 2.0], [3.0, 4.0]]).complex())).numpy().round(4).tolist()
    [[[1.0, 0.0], [2.0, 0.0]], [[3.0, 0.0], [4.0, 0.0]]]
    """
    return input.ifft2(s, dim, norm)


def rfft2(input: Tensor, s: Sizes = None, dim: Axes = (-2, -1), norm: str | None = None) -> Tensor:
    """Return ``rfft`` along the last of the axes, ``fft`` along the others.

    >>> rfft2(Tensor([[1.0, 2.0], [3.0, 4.0]])).numpy().round(4).tolist()
    [[[10.0, 0.0], [-2.0, 0.0]], [[-4.0, 0.0], [0.0, 0.0]]]
    """
    return input.rfft2(s, dim, norm)


def irfft2(input: Tensor, s: Sizes = None, dim: Axes = (-2, -1), norm: str | None = None) -> Tensor:
    """Return ``irfft`` along the last of the axes, ``ifft`` along the others.

    >>> irfft2(rfft2(Tensor([[1.0, 2.0], [3.0, 4.0]]))).numpy().round(4).tolist()
    [[1.0, 2.0], [3.0, 4.0]]
    """
    return input.irfft2(s, dim, norm)


def hfft2(input: Tensor, s: Sizes = None, dim: Axes = (-2, -1), norm: str | None = None) -> Tensor:
    """Return ``hfft`` along the last of the axes, ``fft`` along the others.

    >>> hfft2(Tensor([[1.0, 2.0], [3.0, 4.0]]).complex()).numpy().round(4).tolist()
    [[10.0, -2.0], [-4.0, 0.0]]
    """
    sizes, axes, n, last = _last_apart("hfft2", input, s, dim, input.ndim - 1)
    return (input.fftn(sizes, axes, norm) if axes else input).hfft(n, last, norm)


def ihfft2(input: Tensor, s: Sizes = None, dim: Axes = (-2, -1), norm: str | None = None) -> Tensor:
    """Return ``ihfft`` along the last of the axes, ``ifft`` along the others.

    >>> ihfft2(Tensor([[1.0, 2.0], [3.0, 4.0]])).numpy().round(4).tolist()
    [[[2.5, 0.0], [-0.5, 0.0]], [[-1.0, 0.0], [0.0, 0.0]]]
    """
    sizes, axes, n, last = _last_apart("ihfft2", input, s, dim, input.ndim)
    x = input.ihfft(n, last, norm)
    return x.ifftn(sizes, axes, norm) if axes else x


def fftn(input: Tensor, s: Sizes = None, dim: Axes = None, norm: str | None = None) -> Tensor:
    """Return ``fft`` along several axes: all of them by default.

    >>> fftn(Tensor([[1.0, 2.0], [3.0, 4.0]]).complex()).numpy().round(4).tolist()
    [[[10.0, 0.0], [-2.0, 0.0]], [[-4.0, 0.0], [0.0, 0.0]]]
    """
    return input.fftn(s, dim, norm)


def ifftn(input: Tensor, s: Sizes = None, dim: Axes = None, norm: str | None = None) -> Tensor:
    """Return ``ifft`` along several axes: all of them by default.

    >>> ifftn(fftn(Tensor([[1.0, 2.0], [3.0, 4.0]]).complex())).numpy().round(4).tolist()
    [[[1.0, 0.0], [2.0, 0.0]], [[3.0, 0.0], [4.0, 0.0]]]
    """
    return input.ifftn(s, dim, norm)


def rfftn(input: Tensor, s: Sizes = None, dim: Axes = None, norm: str | None = None) -> Tensor:
    """Return ``rfft`` along the last of the axes, ``fft`` along the others.

    >>> rfftn(Tensor([[1.0, 2.0], [3.0, 4.0]])).numpy().round(4).tolist()
    [[[10.0, 0.0], [-2.0, 0.0]], [[-4.0, 0.0], [0.0, 0.0]]]
    """
    return input.rfftn(s, dim, norm)


def irfftn(input: Tensor, s: Sizes = None, dim: Axes = None, norm: str | None = None) -> Tensor:
    """Return ``irfft`` along the last of the axes, ``ifft`` along the others.

    >>> irfftn(rfftn(Tensor([[1.0, 2.0], [3.0, 4.0]]))).numpy().round(4).tolist()
    [[1.0, 2.0], [3.0, 4.0]]
    """
    return input.irfftn(s, dim, norm)


def hfftn(input: Tensor, s: Sizes = None, dim: Axes = None, norm: str | None = None) -> Tensor:
    """Return ``hfft`` along the last of the axes, ``fft`` along the others.

    >>> hfftn(Tensor([[1.0, 2.0], [3.0, 4.0]]).complex()).numpy().round(4).tolist()
    [[10.0, -2.0], [-4.0, 0.0]]
    """
    sizes, axes, n, last = _last_apart("hfftn", input, s, dim, input.ndim - 1)
    return (input.fftn(sizes, axes, norm) if axes else input).hfft(n, last, norm)


def ihfftn(input: Tensor, s: Sizes = None, dim: Axes = None, norm: str | None = None) -> Tensor:
    """Return ``ihfft`` along the last of the axes, ``ifft`` along the others.

    >>> ihfftn(Tensor([[1.0, 2.0], [3.0, 4.0]])).numpy().round(4).tolist()
    [[[2.5, 0.0], [-0.5, 0.0]], [[-1.0, 0.0], [0.0, 0.0]]]
    """
    sizes, axes, n, last = _last_apart("ihfftn", input, s, dim, input.ndim)
    x = input.ihfft(n, last, norm)
    return x.ifftn(sizes, axes, norm) if axes else x


def fftfreq(n: int, d: float = 1.0, *, dtype: DType | str | None = None, device: DeviceName | None = None) -> Tensor:
    """Return the frequencies of the values of ``fft``, in cycles per unit of the distance ``d`` of samples.

    >>> fftfreq(4).tolist()
    [0.0, 0.25, -0.5, -0.25]
    """
    return Tensor.fftfreq(n, d, dtype=dtype, device=device)


def rfftfreq(n: int, d: float = 1.0, *, dtype: DType | str | None = None, device: DeviceName | None = None) -> Tensor:
    """Return the frequencies of the values of ``rfft``, in cycles per unit of the distance ``d`` of samples.

    >>> rfftfreq(4).tolist()
    [0.0, 0.25, 0.5]
    """
    return Tensor.rfftfreq(n, d, dtype=dtype, device=device)


def fftshift(input: Tensor, dim: Axes = None) -> Tensor:
    """Return the values with frequency 0 moved to the middle of the axes.

    >>> fftshift(fftfreq(4)).tolist()
    [-0.5, -0.25, 0.0, 0.25]
    """
    return input.fftshift(dim)


def ifftshift(input: Tensor, dim: Axes = None) -> Tensor:
    """Return the inverse of ``fftshift``.

    >>> ifftshift(fftfreq(4)).tolist()
    [-0.5, -0.25, 0.0, 0.25]
    """
    return input.ifftshift(dim)


def _last_apart(op: str, x: Tensor, s: Sizes, dim: Axes, count: int
                ) -> tuple[list[int], list[int], int | None, int]:
    """Return sizes and axes of all transforms but the last, and the size and the axis of the last."""
    axes, sizes = transform_axes(op, x, s, dim, count)
    return [-1 if n is None else n for n in sizes[:-1]], [*axes[:-1]], sizes[-1], axes[-1]


guide(sys.modules[__name__])
