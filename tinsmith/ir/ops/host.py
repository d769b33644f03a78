"""The HOST op: functions computed on the host by NumPy: LAPACK factorizations and pocketfft transforms.

Each function takes and returns arrays of one dtype; multiple results are packed into one array. No function raises for
values: a matrix without a factorization gives NaN, and the other matrices of its batch get their results.
"""
from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from tinsmith.ir.ops.op import Array, Node

Shape = tuple[int, ...]


def value(n: Node, *flat: Array) -> Array:
    """Return the value of a HOST node, given its sources' arrays in any shape."""
    name, shapes, shape = n.arg
    return run(name, shapes, shape, *flat)


def run(name: str, shapes: tuple[Shape, ...], shape: Shape, *arrays: Array) -> Array:
    """Call the host function ``name`` on the arrays, reshaped to ``shapes``; return the result in ``shape``.

    >>> run("det", ((2, 2),), (), np.array([1.0, 2.0, 3.0, 4.0])).round(3)
    np.float64(-2.0)
    """
    with np.errstate(all="ignore"):
        found = FUNCTIONS[name](*(a.reshape(s) for a, s in zip(arrays, shapes)))
    return np.asarray(found, arrays[0].dtype).reshape(shape)


def _each(function: Callable[..., Array]) -> Callable[..., Array]:
    """Wrap a batched function: if it raises for the batch, run it matrix by matrix, with NaN for those that raise."""
    def whole(*arrays: Array) -> Array:
        try:
            return function(*arrays)
        except np.linalg.LinAlgError:
            batch = arrays[0].shape[:-2]
        places, found = list(itertools.product(*map(range, batch))), dict[Shape, Array | None]()
        for at in places:
            try:
                found[at] = function(*(a[at] for a in arrays))
            except np.linalg.LinAlgError:
                found[at] = None
        some = next((f for f in found.values() if f is not None), None)
        like = _shape_of(function, arrays) if some is None else some.shape
        out = np.full((*batch, *like), np.nan, arrays[0].dtype)
        for at, f in found.items():
            if f is not None:
                out[at] = f
        return out

    return whole


def _shape_of(function: Callable[..., Array], arrays: tuple[Array, ...]) -> Shape:
    """Return the result's shape, computed on identity matrices of the same size."""
    eyes = np.eye(*arrays[0].shape[-2:], dtype=arrays[0].dtype)
    return tuple(function(eyes, *(np.zeros(a.shape[-2:], a.dtype) for a in arrays[1:])).shape)


def _svd(x: Array) -> Array:
    """Return U and V, both square, as diagonal blocks of one matrix, and the singular values as an extra last row."""
    u, s, vh = np.linalg.svd(x, full_matrices=True)
    rows, columns = x.shape[-2:]
    out = np.zeros((*x.shape[:-2], rows + columns + 1, rows + columns), x.dtype)
    out[..., :rows, :rows], out[..., rows:-1, rows:] = u, np.swapaxes(vh, -1, -2)
    out[..., -1, : s.shape[-1]] = s
    return out


def _eigh(x: Array) -> Array:
    """Return the eigenvectors in the columns and the eigenvalues as an extra last row."""
    values, vectors = np.linalg.eigh(x)
    return np.concatenate([vectors, values[..., None, :]], -2)


def _lu(x: Array) -> Array:
    """Return L (below the diagonal) and U (on and above it) with partial pivoting, and the original row number of each
    row as an extra last column."""
    n, lead = x.shape[-1], x.shape[:-2]
    a = np.array(x.reshape(-1, n, n))
    order = np.broadcast_to(np.arange(n), a.shape[:2]).copy()
    every = np.arange(len(a))
    for k in range(n):
        size = np.abs(a[:, k:, k])
        at = k + np.argmax(np.where(np.isnan(size), np.inf, size), -1)
        for rows in (a, order):
            kept = rows[every, at]
            rows[every, at] = rows[:, k]
            rows[:, k] = kept
        pivot = a[:, k, k, None]
        a[:, k + 1 :, k] /= np.where(pivot == 0, 1, pivot)
        a[:, k + 1 :, k + 1 :] -= a[:, k + 1 :, k, None] * a[:, k, None, k + 1 :]
    return np.concatenate([a, order[..., None].astype(x.dtype)], -1).reshape(*lead, n, n + 1)


def _slogdet(x: Array) -> Array:
    return np.stack(np.linalg.slogdet(x), -1)


def _fft(x: Array) -> Array:
    """Return the FFT along axis -2 of (real, imaginary) pairs in axis -1."""
    return _pairs(np.fft.fft(_complex(x)))


def _ifft(x: Array) -> Array:
    return _pairs(np.fft.ifft(_complex(x), norm="forward"))


def _complex(x: Array) -> Array:
    return np.ascontiguousarray(x).view(np.result_type(x.dtype, np.complex64))[..., 0]


def _pairs(x: Array) -> Array:
    return np.ascontiguousarray(x).view(x.real.dtype).reshape(*x.shape, 2)


# Functions that communicate write their result where it belongs: name → function of (result, sources…). They are
# registered by name before a program that calls them is made, and must run once for each time that they are called.
WRITERS: dict[str, Callable[..., None]] = {}

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "cholesky": _each(np.linalg.cholesky), "det": np.linalg.det, "eigh": _each(_eigh),
    "fft": _fft, "ifft": _ifft, "inv": _each(np.linalg.inv), "lu": _lu,
    "qr": lambda x: np.linalg.qr(x, mode="complete")[0], "slogdet": _slogdet, "solve": _each(np.linalg.solve),
    "svd": _each(_svd)}
