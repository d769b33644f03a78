"""How Fourier transforms are computed, of complex numbers as pairs along the last axis.

A transform of n values is a product with a matrix for each factor of n, of up to 64 (J. Cooley, J. Tukey, 1965), with
the twiddle factors between them. Real and imaginary parts stand apart there, and what is transformed already runs along
memory (T. Stockham, 1966): every product is one of dense matrices. Where n has a prime factor beyond 64, it is a
convolution over the next power of two beyond 2 n (L. Bluestein, 1970); on a CPU NumPy's pocketfft is faster there.
An even number of real values is transformed as half as many complex ones. Matrices and factors are computed on the host
in float64.
"""
from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from tinsmith.ir import UOp
from tinsmith.tensor.hostcalls import host_value, on_host
from tinsmith.tensor.slopes import with_slopes
from tinsmith.tensor.windowfunctions import constant

if TYPE_CHECKING:
    from tinsmith.tensor.tensor import Tensor

_LARGEST_FACTOR = 64
_STAGE = 16  # multiplications that take as long as the twiddle factors of one more product


def real_spectrum(x: Tensor, n: int) -> Tensor:
    """Of ``n`` real values (even) along the last axis the first ``n // 2 + 1`` pairs: those of even and odd places are
    the parts of complex numbers, whose transform z has both: even + i odd at k, and conjugated at n/2 - k."""
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


def real_inverse(x: Tensor, n: int) -> Tensor:
    """The ``n`` real values (even) of ``n // 2 + 1`` pairs along the last axis but one, not scaled: the way back."""
    half, ends = n // 2, x._new(UOp.iota(n // 2 + 1))
    re, im = x[..., 0], (ends.eq(0) | ends.eq(half)).where(0, x[..., 1])  # real there, as of all real signals
    (a, b), (c, d) = ((v[..., :half], v.flip(-1)[..., :half]) for v in (re, im))
    turn = _roots(np.arange(half), n, True)
    cos, sin = _beside(x, turn.real), _beside(x, turn.imag)
    odd, even = c.add(d), a.sub(b)
    parts = (a.add(b).sub(even.mul(sin)).sub(odd.mul(cos)), c.sub(d).add(even.mul(cos)).sub(odd.mul(sin)))
    pairs = parts[0].stack(parts[1], dim=-2).contiguous().transpose(-1, -2)
    return spectrum(pairs, half, True).reshape(*x.shape[:-2], n)


def spectrum(x: Tensor, n: int, inverse: bool) -> Tensor:
    """The transform of ``n`` pairs along the last axis but one, not scaled."""
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


def _slope(g: Tensor, out: Tensor, x: Tensor) -> tuple[Tensor]:
    return (spectrum(g, x.shape[-2], True),)


def _slope_of_inverse(g: Tensor, out: Tensor, x: Tensor) -> tuple[Tensor]:
    return (spectrum(g, x.shape[-2], False),)


@functools.cache
def _factors(n: int) -> tuple[int, tuple[int, ...]]:
    """The fewest multiplications of a transform of ``n`` values, and its factors then, the largest first."""
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
    """``exp(-2 pi i turns / n)``, conjugated for the inverse; whole numbers where it is one."""
    angle = 2 * np.pi * turns / n
    roots = np.exp(1j * angle if inverse else -1j * angle)
    return np.asarray(np.where(4 * turns % n == 0, roots.round(), roots) + 0)


@functools.lru_cache(64)
def _turns(a: int, done: int, inverse: bool) -> np.ndarray[Any, Any]:
    """The twiddle factors before a product with the matrix of ``a``, behind others for ``done`` values."""
    return _roots(np.outer(np.arange(a), np.arange(done)), a * done, inverse).reshape(a, 1, done)


@functools.lru_cache(64)
def _matrix(n: int, inverse: bool) -> np.ndarray[Any, Any]:
    """The matrix of the transform of rows of ``n`` pairs, to all real parts and then all imaginary ones."""
    w = _roots(np.outer(np.arange(n), np.arange(n)) % n, n, inverse)
    matrix = np.empty((n, 2, 2, n))
    matrix[:, 0, 0], matrix[:, 1, 1] = w.real, w.real
    matrix[:, 0, 1], matrix[:, 1, 0] = w.imag, -w.imag
    return matrix.reshape(2 * n, 2 * n)


def _times(x: Tensor, w: np.ndarray[Any, Any]) -> Tensor:
    """Pairs times complex numbers that the host knows."""
    re, im = _beside(x, w.real), _beside(x, w.imag)
    a, b = x[..., 0], x[..., 1]
    return a.mul(re).sub(b.mul(im)).stack(a.mul(im).add(b.mul(re)), dim=-1)


def _bluestein(x: Tensor, n: int, inverse: bool) -> Tensor:
    """``j k = (j² + k² - (j - k)²) / 2`` makes it a convolution, which transforms of another length compute."""
    length = 1 << math.ceil(math.log2(2 * n - 1))
    chirp = _roots(np.arange(n) ** 2 % (2 * n), 2 * n, inverse)
    kernel = np.zeros(length, np.complex128)
    kernel[:n] = chirp.conj()
    kernel[length - n + 1 :] = chirp.conj()[:0:-1]
    padded = _times(x, chirp).pad((None,) * (x.ndim - 2) + ((0, length - n), None))
    product = _times(spectrum(padded, length, False), np.fft.fft(kernel) / length)
    return _times(spectrum(product, length, True)[..., :n, :], chirp)


def _beside(x: Tensor, values: np.ndarray[Any, Any]) -> Tensor:
    """Numbers in the dtype and place of ``x``."""
    return constant(type(x), values, x.dtype, x.device)
