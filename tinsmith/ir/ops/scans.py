"""Ops whose meaning is a longer function: SCAN, HISTOGRAM and HOST.

SCAN carries one value along an axis, HISTOGRAM one per key. Their gradients follow G. E. Blelloch, "Prefix sums and
their applications" (1990): the transpose of a running sum is a running sum from the other end.

HOST calls a function of NumPy on the host: LAPACK factorizations and pocketfft transforms. Each function takes and
returns arrays of one dtype; multiple results are packed into one array. Values never raise errors: a matrix without a
factorization gives NaN, and the other matrices of its batch get their results.
"""
from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from tinsmith.ir.ops.op import Array, Node, Op

N = TypeVar("N", bound=Node)

# Names of host functions that wait for the work that an earlier one has begun: they run as late as their readers allow.
WAITS: set[str] = set()

_RUNNING = {"ADD": np.add, "MUL": np.multiply, "MAX": np.maximum, "MIN": np.minimum}


def running(op: Op, x: Array, axis: int, start: Array | None, weight: Array | None) -> Array:
    """Return the scan ``y[k] = y[k-1] op x[k]`` along ``axis`` with ``y[-1] = start``; with weights, ``y[k] = y[k-1] *
    w[k] + x[k]``. 16-bit floats are accumulated in float32."""
    if x.dtype.itemsize <= 2 and x.dtype.kind not in "iub":
        wide = [None if a is None else a.astype(np.float32) for a in (start, weight)]
        return running(op, x.astype(np.float32), axis, *wide).astype(x.dtype)
    y = np.moveaxis(x.copy(), axis, 0)
    if weight is not None:
        assert start is not None
        w, last = np.moveaxis(weight, axis, 0), np.moveaxis(start, axis, 0)[0]
        for k in range(len(y)):
            last = y[k] = last * w[k] + y[k]
    else:
        function = _RUNNING[op.name]
        if start is not None and len(y):
            y[0] = function(np.moveaxis(start, axis, 0)[0], y[0])
        y = function.accumulate(y, axis=0, dtype=x.dtype)
    return np.moveaxis(y, 0, axis)


def scan(n: Node, x: Array, start: Array | None = None, weight: Array | None = None) -> Array:
    """Compute SCAN; if ``start`` has several values along the axis, each equal block of the axis starts from its
    own."""
    op, axis = n.arg
    blocks = 1 if start is None else start.shape[axis]
    length = -(-x.shape[axis] // blocks)
    parts = []
    for b in range(blocks):
        def cut(a: Array, step: int, b: int = b) -> Array:
            part: Array = a[(slice(None),) * axis + (slice(b * step, (b + 1) * step),)]
            return part

        parts.append(running(op, cut(x, length), axis, None if start is None else cut(start, 1),
                             None if weight is None else cut(weight, length)))
    return np.concatenate(parts, axis)


def scan_gradient(n: Node, g: Node) -> tuple[Node | None, ...]:
    op, axis = n.arg
    if op.name == "MULADD":
        return _weighted_gradient(n, g)
    if len(n.src) > 1:
        raise NotImplementedError("a SCAN with a start is made by the scheduler, after gradients")
    if op.name == "ADD":
        return (_from_the_end(g, axis),)
    if op.name == "MUL":
        return (_product_gradient(n, g),)
    if not g.dtype.is_float:
        return (None,)
    return (g.const_like(0).scatter(extreme_position(n), g, axis, "ADD"),)


def _from_the_end(x: Node, axis: int) -> Node:
    return x.flip((axis,)).scan("ADD", axis).flip((axis,))


def _product_gradient(n: Node, g: Node) -> Node:
    """Return the gradient of a running product: the product before an element, times the sum of g[j] times the products
    of the factors between it and each result j."""
    x, axis = n.src[0], n.arg[1]
    one = _first(x, axis).const_like(1)
    return _backwards(g, one.const_like(0), x, axis) * _earlier(n, axis, one)


def product_of_others(x: Node, axis: int) -> Node:
    """Return, for each element, the product of all others along ``axis``: of those before it and those after it."""
    if 0 in x.shape:
        return x
    one = _first(x, axis).const_like(1)
    before = _earlier(x.scan("MUL", axis), axis, one)
    behind = _earlier(x.flip((axis,)).scan("MUL", axis), axis, one).flip((axis,))
    return before * behind


def _weighted_gradient(n: Node, g: Node) -> tuple[Node, Node, Node]:
    (_, start, weight), axis = n.src, n.arg[1]
    h = _backwards(g, start.const_like(0), weight, axis)
    return h, _first(h * weight, axis), h * _earlier(n, axis, start)


def _backwards(g: Node, end: Node, weight: Node, axis: int) -> Node:
    """Return the recurrence run backwards: h[k] = g[k] + w[k+1] h[k+1]."""
    return g.flip((axis,)).scan("MULADD", axis, end, _later(weight, axis).flip((axis,))).flip((axis,))


def _first(x: Node, axis: int) -> Node:
    return x.shrink(tuple((0, 1) if i == axis else (0, s) for i, s in enumerate(x.shape)))


def _later(x: Node, axis: int) -> Node:
    """Return each element's successor along an axis; 0 after the last."""
    box = tuple((1, s) if i == axis else (0, s) for i, s in enumerate(x.shape))
    return x.shrink(box).pad(tuple((0, int(i == axis)) for i in range(x.ndim)))


def _earlier(x: Node, axis: int, first: Node) -> Node:
    """Return each element's predecessor along an axis; ``first`` before the first."""
    box = tuple((0, s - 1) if i == axis else (0, s) for i, s in enumerate(x.shape))
    moved = x.shrink(box).pad(tuple((int(i == axis), 0) for i in range(x.ndim)))
    place = x.iota_like(axis)
    return place.eq(place.const_like(0)).where(first.expand(x.shape), moved)


def again(n: N) -> N:
    """Return a node that recomputes ``n`` from its current sources, for comparison with those sources.

    If the result was realized and its sources were not, the sources are recomputed and may round differently, so that
    no element would equal the stored result.
    """
    return n.replace(src=tuple([s.alu("DETACH") if s.dtype.is_float else s for s in n.src]))


def extreme_position(n: N) -> N:
    """Return the index of the element that each running MAX or MIN came from: the last of equal elements, or the last
    NaN."""
    x, axis = n.src[0], n.arg[1]
    hit = x.eq(again(n)) | x.ne(x)
    place = x.iota_like(axis)
    return hit.where(place, place.const_like(0)).scan("MAX", axis)


def histogram(n: Node, base: Array, index: Array, x: Array) -> Array:
    """Compute HISTOGRAM: the final counters, then for each step the value of its counter before that step."""
    op, axis = n.arg
    counters, keys, steps = (np.moveaxis(a, axis, 0).reshape(a.shape[axis], -1) for a in (base.copy(), index, x))
    before = np.zeros(keys.shape, base.dtype)
    function: Any = _RUNNING[op.name]
    for k in range(len(keys)):
        (inside,) = np.nonzero((keys[k] >= 0) & (keys[k] < len(counters)))
        at = keys[k][inside], inside
        before[k][inside] = counters[at]
        counters[at] = function(counters[at], steps[k][inside])
    out = np.concatenate([counters, before])
    beside = tuple(s for i, s in enumerate(base.shape) if i != axis)
    return np.moveaxis(out.reshape(len(out), *beside), 0, axis)

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
