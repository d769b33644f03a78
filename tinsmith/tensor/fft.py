"""Fourier transforms (``fft``, ``rfft``, ``stft`` and their inverses), complex products, windows and frequencies.

There is no complex dtype: complex numbers are (real, imaginary) pairs along a last axis of size 2, as in
``torch.view_as_real``. ``complex`` makes pairs of two tensors, ``x[..., 0]`` and ``x[..., 1]`` are their parts,
``norm(dim=-1)`` is the magnitude and ``complex_mul`` the product.

A transform of n values is a product with a matrix for each factor of n, of up to 64 (J. Cooley, J. Tukey, 1965), with
the twiddle factors between them. Real and imaginary parts are separate arrays there, and the transformed axes run along
memory (T. Stockham, 1966): every product is one of dense matrices. If n has a prime factor beyond 64, the transform is
a convolution over the next power of two beyond 2 n (L. Bluestein, 1970); on a CPU NumPy's pocketfft is faster there. An
even number of real values is transformed as half as many complex ones. Matrices and factors are computed on the host in
float64. The transform is linear, so its gradient is the transposed transform.
"""
from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from tinsmith.backend.device import DeviceName
from tinsmith.core.dtypes import DType, dtypes, to_dtype
from tinsmith.core.errors import ArgumentError, AxisError, ShapeError
from tinsmith.ir import UOp
from tinsmith.tensor.arguments import choice, flag, integer, integers
from tinsmith.tensor.autograd.backward import with_slopes
from tinsmith.tensor.helpers import float_of, rounded_once
from tinsmith.tensor.host_data import host_value, on_host
from tinsmith.tensor.indexing.indexing import Indexing

T = TypeVar("T", bound=Indexing)


def sample_points(count: int, periodic: bool) -> np.ndarray[Any, Any]:
    """Return the positions of the samples of a window between 0 and 1."""
    return np.arange(count) / max(count - (not periodic), 1)


def cosines(cls: type[T], op: str, weights: Sequence[float], count: int, periodic: bool,
             dtype: DType | str | None, device: DeviceName | None) -> T:
    count = integer(op, "window_length", count, least=0)
    turn = 2 * np.pi * sample_points(count, flag(op, "periodic", periodic))
    values = sum((-1) ** k * w * np.cos(k * turn) for k, w in enumerate(weights)) if count != 1 else np.ones(1)
    return host_constant(cls, np.asarray(values), dtypes.default_float if dtype is None else to_dtype(dtype), device)


def host_constant(cls: type[T], values: np.ndarray[Any, Any], dtype: DType, device: DeviceName | None) -> T:
    return cls(values.astype(dtype.numpy), device=device, requires_grad=False)

_NORMS = (None, "backward", "ortho", "forward")
Axes = int | Sequence[int] | None
Sizes = int | Sequence[int] | None


def conjugation(x: T) -> T:
    return x._new(UOp.iota(2)).eq(0).where(1.0, -1.0).cast(float_of(x).dtype)


def complex_pairs(op: str, x: Indexing) -> None:
    if not x.ndim or x.shape[-1] != 2:
        raise ShapeError(op, f"takes complex numbers as pairs along a last axis of size 2, got shape {x.shape}",
                         f"x.complex().{op}() of real values, or x.rfft()")


def transform_axis(op: str, x: Indexing, dim: int) -> int:
    """Return an axis of pairs' values; the axis of the pairs itself does not count."""
    complex_pairs(op, x)
    count, d = x.ndim - 1, integer(op, "dim", dim)
    if not -count <= d < count:
        raise AxisError(op, f"axis {d} of complex numbers of shape {x.shape[:-1]}",
                        f"an axis from {-count} to {count - 1}")
    if isinstance(x.shape[d % count], UOp):
        raise ShapeError(op, f"axis {d} of shape {x.shape} has a symbolic size", "an axis of fixed size")
    return d % count


def transform_axes(op: str, x: Indexing, s: Sizes, dim: Axes, count: int) -> tuple[tuple[int, ...], tuple[Any, ...]]:
    """Return the axes to transform, and the size to which each is cut or zero-padded (None: unchanged)."""
    given = None if s is None else integers(op, "s", s)
    if dim is None:
        axes = tuple(range(count)) if given is None else tuple(range(count - len(given), count))
    else:
        axes = tuple(d % count if -count <= d < count else d for d in integers(op, "dim", dim))
    sizes = (None,) * len(axes) if given is None else tuple(None if n == -1 else n for n in given)
    if not axes or len(axes) != len(sizes) or len(set(axes)) != len(axes):
        raise ArgumentError(op, f"axes {axes} and sizes {sizes}", "different axes, and a size for each or none")
    return axes, sizes


def along_axis(op: str, x: T, s: Sizes, dim: Axes, norm: str | None, inverse: bool) -> T:
    complex_pairs(op, x)
    out = x
    for d, n in zip(*transform_axes(op, x, s, dim, x.ndim - 1)):
        out = transformed(out, op, n, d, norm, inverse)
    return out


def turned(norm: str | None) -> str | None:
    return {None: "forward", "backward": "forward", "forward": "backward"}.get(norm, norm)


def fitted(x: T, n: int, d: int) -> T:
    """Cut, or filled up with zeros, to ``n`` values along an axis."""
    size = x.shape[d]
    return x if size == n else x.pad((None,) * d + ((0, n - size),) + (None,) * (x.ndim - d - 1))


@rounded_once
def transformed(x: T, op: str, n: int | None, dim: int, norm: str | None, inverse: bool) -> T:
    d = transform_axis(op, x, dim)
    choice(op, "norm", norm, _NORMS)
    x = x._new(float_of(x))
    count = x.shape[d] if n is None else integer(op, "n", n, least=1)
    if not count:
        raise ShapeError(op, f"nothing to transform along axis {dim} of shape {x.shape}", "at least one value")
    y = spectrum(fitted(x, count, d).transpose(d, -2), count, inverse).transpose(d, -2)
    return _scaled(y, count, norm, inverse)


@rounded_once
def real_transformed(x: T, d: int, norm: str | None) -> T:
    choice("rfft", "norm", norm, _NORMS)
    y = real_spectrum(x._new(float_of(x)).transpose(d, -1), x.shape[d]).transpose(d, -2)
    return _scaled(y, x.shape[d], norm, False)


@rounded_once
def inverse_real(x: T, d: int, norm: str | None) -> T:
    choice("irfft", "norm", norm, _NORMS)
    n = 2 * (x.shape[d] - 1)
    return _scaled(real_inverse(x._new(float_of(x)).transpose(d, -2), n).transpose(d, -1), n, norm, True)


def _scaled(y: T, count: int, norm: str | None, inverse: bool) -> T:
    scaled = norm == "ortho" or (norm == "forward") != inverse
    return y.mul(count ** (-0.5 if norm == "ortho" else -1.0)) if scaled else y


def window_values(op: str, x: T, n: int, win_length: int | None, window: T | None) -> T:
    """Return the weights of a part, in the middle of ``n`` values."""
    count = n if win_length is None else integer(op, "win_length", win_length, 1, n)
    weights = x._new(float_of(x)).const_like(1)[(0,) * x.ndim].expand(count) if window is None else window
    if weights.shape != (count,):
        raise ShapeError(op, f"a window of shape {weights.shape} for win_length {count}", "one weight for each value")
    left = (n - count) // 2
    return weights.pad(((left, n - count - left),))


def overlapped(parts: T, hop: int) -> T:
    """Parts (batch, number, n) added up at distances of ``hop``."""
    batch, number, n = parts.shape
    steps = -(-n // hop)
    cut = parts.pad((None, None, (0, steps * hop - n))).reshape(batch, number, steps, hop)
    total = None
    for k in range(steps):
        moved = cut[:, :, k].pad((None, (k, steps - 1 - k), None))
        total = moved if total is None else total.add(moved)
    assert total is not None
    return total.reshape(batch, (number + steps - 1) * hop)[:, : (number - 1) * hop + n]

_LARGEST_FACTOR = 64
_STAGE = 16  # multiplications that take as long as the twiddle factors of one more product


def real_spectrum(x: T, n: int) -> T:
    """Return the first ``n // 2 + 1`` pairs of the spectrum of ``n`` (even) real values along the last axis. Values at
    even and odd positions are the real and imaginary parts of n/2 complex numbers; their transform z contains both
    spectra: even + i·odd at k, and conjugated at n/2 - k."""
    lead, half = x.shape[:-1], n // 2
    z = spectrum(x.reshape(*lead, half, 2), half, False)
    re, im = z[..., 0], z[..., 1]
    (a, b), (c, d) = ((v.cat(v[..., :1], dim=-1), v[..., :1].cat(v.flip(-1), dim=-1)) for v in (re, im))
    turn = _roots(np.arange(half + 1), n, False) / 2
    cos, sin = _beside(x, turn.real), _beside(x, turn.imag)
    odd, even = c.add(d), a.sub(b)  # of the odd places: odd - i even
    parts = (a.add(b).mul(0.5).add(odd.mul(cos)).add(even.mul(sin)),
             c.sub(d).mul(0.5).add(odd.mul(sin)).sub(even.mul(cos)))
    return parts[0].stack(parts[1], dim=-2).contiguous().transpose(-1, -2)


def real_inverse(x: T, n: int) -> T:
    """Return the ``n`` (even) real values of a spectrum of ``n // 2 + 1`` pairs along the second-to-last axis,
    unscaled: the inverse of ``real_spectrum``."""
    half, ends = n // 2, x._new(UOp.iota(n // 2 + 1))
    re, im = x[..., 0], (ends.eq(0) | ends.eq(half)).where(0, x[..., 1])  # real there, as of all real signals
    (a, b), (c, d) = ((v[..., :half], v.flip(-1)[..., :half]) for v in (re, im))
    turn = _roots(np.arange(half), n, True)
    cos, sin = _beside(x, turn.real), _beside(x, turn.imag)
    odd, even = c.add(d), a.sub(b)
    parts = (a.add(b).sub(even.mul(sin)).sub(odd.mul(cos)), c.sub(d).add(even.mul(cos)).sub(odd.mul(sin)))
    pairs = parts[0].stack(parts[1], dim=-2).contiguous().transpose(-1, -2)
    return spectrum(pairs, half, True).reshape(*x.shape[:-2], n)


def spectrum(x: T, n: int, inverse: bool) -> T:
    """Return the transform of ``n`` pairs along the last axis but one, not scaled."""
    if n == 1:
        return x
    if _largest_prime(n) > _LARGEST_FACTOR:
        if on_host(x) and x.dtype.itemsize >= 4:
            return with_slopes(host_value("ifft" if inverse else "fft", x.shape, x.detach()),
                               _slope_of_inverse if inverse else _slope, x)
        return _bluestein(x, n, inverse)
    first, *others = _factors(n)[1]
    lead, left, done = x.shape[:-2], n // first, first  # values not transformed yet, frequencies so far
    matrix = _matrix(first, inverse)
    rows = x.reshape(*lead, first, left, 2).transpose(-2, -3).reshape(*lead, left, 2 * first)
    if not others:
        pairs = matrix.reshape(2 * n, 2, n).swapaxes(1, 2).reshape(2 * n, 2 * n)
        return rows.matmul(_beside(x, pairs)).reshape(*x.shape)
    y = rows.matmul(_beside(x, matrix))
    for a in others:
        left //= a
        y = y.reshape(*lead, a, left, 2, done)
        turn = _turns(a, done, inverse)
        cos, sin = _beside(x, turn.real), _beside(x, turn.imag)
        re, im = y[..., 0, :], y[..., 1, :]
        y = re.mul(cos).sub(im.mul(sin)).stack(re.mul(sin).add(im.mul(cos)), dim=-3)  # (a, 2, left, done)
        columns = y.permute(*range(len(lead)), *(len(lead) + i for i in (2, 0, 1, 3))).reshape(*lead, left, 2 * a, done)
        y = _beside(x, _matrix(a, inverse).T).matmul(columns)
        done *= a
    return y.reshape(*lead, 2, n).contiguous().transpose(-1, -2)


def _slope(g: T, out: T, x: T) -> tuple[T]:
    return (spectrum(g, x.shape[-2], True),)


def _slope_of_inverse(g: T, out: T, x: T) -> tuple[T]:
    return (spectrum(g, x.shape[-2], False),)


@functools.cache
def _factors(n: int) -> tuple[int, tuple[int, ...]]:
    """Return the fewest multiplications of a transform of ``n`` values, and its factors then, the largest first."""
    ways: list[tuple[int, tuple[int, ...]]] = [(n, (n,))] if n <= _LARGEST_FACTOR else []
    for a in range(2, min(_LARGEST_FACTOR, n - 1) + 1):
        if n % a == 0:
            cost, others = _factors(n // a)
            ways.append((a + _STAGE + cost, tuple(sorted((a, *others), reverse=True))))
    return min(ways, key=lambda way: (way[0], len(way[1])))


def _largest_prime(n: int) -> int:
    largest, p = 1, 2
    while p * p <= n:
        while n % p == 0:
            largest, n = p, n // p
        p += 1
    return max(largest, n)


def _roots(turns: np.ndarray[Any, Any], n: int, inverse: bool) -> np.ndarray[Any, Any]:
    """Return ``exp(-2 pi i turns / n)``, conjugated for the inverse; exact where it is 1, -1, i or -i."""
    angle = 2 * np.pi * turns / n
    roots = np.exp(1j * angle if inverse else -1j * angle)
    return np.asarray(np.where(4 * turns % n == 0, roots.round(), roots) + 0)


@functools.lru_cache(64)
def _turns(a: int, done: int, inverse: bool) -> np.ndarray[Any, Any]:
    """Return the twiddle factors before a product with the matrix of ``a``, behind others for ``done`` values."""
    return _roots(np.outer(np.arange(a), np.arange(done)), a * done, inverse).reshape(a, 1, done)


@functools.lru_cache(64)
def _matrix(n: int, inverse: bool) -> np.ndarray[Any, Any]:
    """Return the DFT matrix ``[2 n, 2 n]``: from n pairs (real, imaginary) to n real and then n imaginary parts."""
    w = _roots(np.outer(np.arange(n), np.arange(n)) % n, n, inverse)
    matrix = np.empty((n, 2, 2, n))
    matrix[:, 0, 0], matrix[:, 1, 1] = w.real, w.real
    matrix[:, 0, 1], matrix[:, 1, 0] = w.imag, -w.imag
    return matrix.reshape(2 * n, 2 * n)


def _times(x: T, w: np.ndarray[Any, Any]) -> T:
    """Return complex values, as pairs (real, imaginary), times the complex constants ``w``."""
    re, im = _beside(x, w.real), _beside(x, w.imag)
    a, b = x[..., 0], x[..., 1]
    return a.mul(re).sub(b.mul(im)).stack(a.mul(im).add(b.mul(re)), dim=-1)


def _bluestein(x: T, n: int, inverse: bool) -> T:
    """Return the DFT of any length n by Bluestein's algorithm: a convolution, computed by DFTs of a power of two.

    Because ``j k = (j² + k² - (j - k)²) / 2``.
    """
    length = 1 << math.ceil(math.log2(2 * n - 1))
    chirp = _roots(np.arange(n) ** 2 % (2 * n), 2 * n, inverse)
    kernel = np.zeros(length, np.complex128)
    kernel[:n] = chirp.conj()
    kernel[length - n + 1 :] = chirp.conj()[:0:-1]
    padded = _times(x, chirp).pad((None,) * (x.ndim - 2) + ((0, length - n), None))
    product = _times(spectrum(padded, length, False), np.fft.fft(kernel) / length)
    return _times(spectrum(product, length, True)[..., :n, :], chirp)


def _beside(x: T, values: np.ndarray[Any, Any]) -> T:
    """Return numbers as a tensor with the dtype and device of ``x``."""
    return host_constant(type(x), values, x.dtype, x.device)
