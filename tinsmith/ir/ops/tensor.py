"""Tensor-graph ops that are not elementwise: sources, movement, reductions, gathers, memory."""
from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tinsmith.core.dtypes import DType, dtypes
from tinsmith.ir.ops import scans
from tinsmith.ir.ops.op import Array, Node, Op, is_product, nothing, of_first, shape_of_first

# *** movement: shapes, meanings and gradients ***


def _pad_shape(n: Node) -> tuple[Any, ...]:
    return tuple(b + s + e for s, (b, e) in zip(n.src[0].shape, n.arg))


def _shrink_shape(n: Node) -> tuple[Any, ...]:
    return tuple([e - b for b, e in n.arg])


def _window_shape(n: Node) -> tuple[Any, ...]:
    return tuple(n.arg.outputs if i == n.arg.axis else s for i, s in enumerate(n.src[0].shape))


def _unwindow_shape(n: Node) -> tuple[Any, ...]:
    return tuple(n.arg.inputs if i == n.arg.axis else s for i, s in enumerate(n.src[0].shape))


def _window(n: Node, x: Array) -> Array:
    w = n.arg
    moved = np.moveaxis(x, (w.axis, w.window_axis), (0, 1))
    o, k = np.ogrid[: w.outputs, : moved.shape[1]]
    return np.moveaxis(moved[o * w.stride + k * w.dilation, k], (0, 1), (w.axis, w.window_axis))


def _unwindow(n: Node, x: Array) -> Array:
    w = n.arg
    moved = np.moveaxis(x, (w.axis, w.window_axis), (0, 1))
    out = np.zeros((w.inputs, *moved.shape[1:]), x.dtype)
    o, k = np.ogrid[: moved.shape[0], : moved.shape[1]]
    out[o * w.stride + k * w.dilation, k] = moved
    return np.moveaxis(out, (0, 1), (w.axis, w.window_axis))


def _expand_gradient(n: Node, g: Node) -> tuple[Node]:
    axes = tuple(i for i, (a, b) in enumerate(zip(n.src[0].shape, n.shape)) if type(a) is int and a == 1 and a != b)
    return (_summed(g, axes),)


def _summed(g: Node, axes: tuple[int, ...]) -> Node:
    """Return the sum over ``axes``. A sum of products of broadcast values (one value read by several contractions, such
    as a gated MLP) is summed term by term: each term is then a contraction, but their sum is not."""
    addends = [g]
    while any(a.op.name == "ADD" for a in addends):
        addends = [s for a in addends for s in (a.src if a.op.name == "ADD" else (a,))]
    if not all(is_product(a, constants=False) for a in addends):
        return g.reduce("ADD", axes)
    total, *rest = (a.reduce("ADD", axes) for a in addends)
    for a in rest:
        total = total + a
    return total


def _expand(n: Node, x: Array) -> Array:
    return np.broadcast_to(x, tuple(int(s) for s in n.shape))


# *** reductions and gathers ***


def _reduce_shape(n: Node) -> tuple[Any, ...]:
    axes, shape = n.arg[1], n.src[0].shape
    return (1,) * len(shape) if len(axes) == len(shape) else tuple([1 if i in axes else s for i, s in enumerate(shape)])


def reduce_values(op: Op, x: Array, axes: tuple[int, ...], dtype: DType) -> Array:
    """Reduce with ``op``: sums and products of 16-bit floats in float32; MAX and MIN propagate NaN."""
    if x.size == 0 or any(x.shape[a] == 0 for a in axes):
        assert op.identity is not None
        shape = tuple(1 if i in axes else s for i, s in enumerate(x.shape))
        return np.full(shape, op.identity(dtype), dtype.numpy)
    wide = x.astype(np.float32) if dtype.is_float and dtype.itemsize <= 2 else x
    function = {"ADD": np.add, "MUL": np.multiply, "MAX": np.maximum, "MIN": np.minimum, "AND": np.bitwise_and,
                "OR": np.bitwise_or, "XOR": np.bitwise_xor}[op.name]
    return np.asarray(function.reduce(wide, axis=axes, keepdims=True)).astype(dtype.numpy)


def _reduce_gradient(n: Node, g: Node) -> tuple[Node | None]:
    (x,), (op, axes) = n.src, n.arg
    if op.name == "ADD":
        return (g.expand(x.shape),)
    if op.name in ("MAX", "MIN"):  # ties share the gradient, as in torch.amax; so do NaNs, as in torch.max
        hit = x.eq(scans.again(n).expand(x.shape)) | x.ne(x)
        return (hit.where((g / hit.cast(g.dtype).reduce("ADD", axes)).expand(x.shape), 0),)
    if op.name == "MUL":
        return (g.expand(x.shape) * _product_of_others(x, axes),)
    return (None,)


def _product_of_others(x: Node, axes: tuple[int, ...]) -> Node:
    """Return, for each element, the product of all others along ``axes``, without division, so that it is exact for
    zeros."""
    order = (*(i for i in range(x.ndim) if i not in axes), *axes)
    rows = x.permute(order)
    flat = rows.reshape((*rows.shape[: x.ndim - len(axes)], math.prod(x.shape[a] for a in axes)))
    others = scans.product_of_others(flat, flat.ndim - 1).reshape(rows.shape)
    return others.permute(tuple(order.index(i) for i in range(x.ndim)))


def _gather(n: Node, x: Array, i: Array) -> Array:
    size = x.shape[n.arg]
    inside = (i >= 0) & (i < size)
    if size == 0:
        return np.zeros(i.shape, x.dtype)
    taken = np.take_along_axis(x, np.where(inside, i, 0).astype(np.int64), n.arg)
    return np.where(inside, taken, np.zeros((), x.dtype))


def _scatter(n: Node, base: Array, i: Array, x: Array) -> Array:
    axis, op = n.arg
    out = base.copy()
    where: list[Array] = list(np.indices(i.shape))
    where[axis] = i
    inside = (i >= 0) & (i < base.shape[axis])
    places = tuple(w[inside] for w in where)
    if op is None or op.name == "ASSIGN":
        for at, value in zip(zip(*places), x[inside]):  # in order: for equal indices, the last write wins
            out[at] = value
    else:
        function = {"ADD": np.add, "MUL": np.multiply, "MAX": np.maximum, "MIN": np.minimum}[op.name]
        function.at(out, places, x[inside])
    return out


def _scatter_gradient(n: Node, g: Node) -> tuple[Node | None, ...]:
    _, index, x = n.src
    axis, op = n.arg
    if op is not None and op.name == "ADD":
        return g, None, g.gather(index, axis)
    if op is None:  # overwritten elements have no gradient; of equal indices, only the last write counts
        order = x.iota_like(axis)
        last = g.cast(dtypes.int32).const_like(-1).scatter(index, order, axis, "MAX").gather(index, axis)
        written = g.const_like(0).scatter(index, x.cast(g.dtype).const_like(1), axis, None)
        kept = last.eq(order)
        picked = g.gather(index, axis)
        return written.ne(written.const_like(0)).where(0, g), None, kept.where(picked, 0)
    if op.name == "ASSIGN":
        return None, None, g.gather(index, axis)
    if op.name == "MUL":
        return _scattered_product_gradient(n, g)
    if not g.dtype.is_float:
        return None, None, None
    base, _, x = n.src  # MAX and MIN: all elements equal to the result share the gradient
    n = scans.again(n)
    base_hit, x_hit = base.eq(n), x.eq(n.gather(index, axis))
    share = g / base_hit.cast(g.dtype).scatter(index, x_hit.cast(g.dtype), axis, "ADD")
    return base_hit.where(share, 0), None, x_hit.where(share.gather(index, axis), 0)


def _scattered_product_gradient(n: Node, g: Node) -> tuple[Node, None, Node]:
    """Return the gradients of SCATTER MUL: g times the product of the other factors, computed as result / element.

    For a zero element, that product is the product of the nonzero factors, times the second zero if there is one (as a
    node, so that the second derivative is right too).
    """
    (base, index, x), axis = n.src, n.arg[0]

    def gathered(op: str, of: Callable[[Node], Node]) -> Node:
        return of(base).scatter(index, of(x), axis, op)

    def zero(v: Node) -> Node:
        return v.eq(v.const_like(0))

    count = gathered("ADD", lambda v: zero(v).cast(dtypes.int32))
    product = gathered("MUL", lambda v: zero(v).where(1, v))
    zeros = gathered("ADD", lambda v: zero(v).where(v, 0))

    def to(v: Node, at: Callable[[Node], Node]) -> Node:
        one, two = at(count).eq(1), at(count).eq(2)
        factor = one.where(1, two.where(at(zeros) - v, 0))
        return zero(v).where(at(g * product) * factor, at(g * n) / zero(v).where(1, v))

    return to(base, lambda u: u), None, to(x, lambda u: u.gather(index, axis))


def _histogram_shape(n: Node) -> tuple[Any, ...]:
    base, index = n.src[0].shape, n.src[1].shape
    return tuple(a + b if i == n.arg[1] else a for i, (a, b) in enumerate(zip(base, index)))


def _shard_shape(n: Node) -> tuple[Any, ...]:
    axis, first = n.arg[0], n.src[0].shape
    total = sum(s.shape[axis] for s in n.src)
    return (*first[:axis], total, *first[axis + 1 :])


def _shard_gradient(n: Node, g: Node) -> tuple[Node, ...]:
    axis, out, begin = n.arg[0], [], 0
    for s in n.src:
        end = begin + s.shape[axis]
        box = tuple((begin, end) if i == axis else (0, size) for i, size in enumerate(n.shape))
        out.append(g.shrink(box).copy_to(s.device))
        begin = end
    return tuple(out)


class TensorOps:
    """Op-table rows of the tensor graph."""

    BUFFER = Op("source", "Memory on a device; the argument is the Buffer.", 0, None, lambda n: n.arg.shape,
                device=lambda arg: arg.device)
    PARAM = Op("source", "A buffer argument of a kernel or cached program, by number: (index, shape).", 0, None,
               lambda n: n.arg[1])
    CONST = Op("source", "A scalar value.", 0, None, lambda n: (),
               lambda n: np.asarray(n.arg, n.dtype.scalar.numpy))
    VARIABLE = Op("source", "A named integer within bounds: (name, least, greatest).", 0, None, lambda n: ())
    BIND = Op("source", "A variable with its value for this run: (variable, value).", 2, of_first, lambda n: (),
              lambda n, v, value: value)
    IOTA = Op("source", "0, 1, 2, … along one axis; the argument is the length.", 0, None, lambda n: (n.arg,),
              lambda n: np.arange(int(n.arg)).astype(n.dtype.numpy))

    RESHAPE = Op("movement", "The same elements in row-major order under another shape.", 1, of_first,
                 lambda n: n.arg, lambda n, x: x.reshape(tuple(int(s) for s in n.arg)),
                 lambda n, g: (g.reshape(n.src[0].shape),))
    PERMUTE = Op("movement", "Axes in another order.", 1, of_first,
                 lambda n: tuple(n.src[0].shape[i] for i in n.arg), lambda n, x: x.transpose(n.arg),
                 lambda n, g: (g.permute(tuple(n.arg.index(i) for i in range(len(n.arg)))),))
    EXPAND = Op("movement", "Axes of size 1 repeated.", 1, of_first, lambda n: n.arg, _expand, _expand_gradient)
    PAD = Op("movement", "Zeros before and after each axis.", 1, of_first, _pad_shape, lambda n, x: np.pad(x, n.arg),
             lambda n, g: (g.shrink(tuple((b, b + s) for (b, _), s in zip(n.arg, n.src[0].shape))),))
    SHRINK = Op("movement", "A box (begin, end) of each axis.", 1, of_first, _shrink_shape,
                lambda n, x: x[tuple(slice(int(b), int(e)) for b, e in n.arg)],
                lambda n, g: (g.pad(tuple((b, s - e) for (b, e), s in zip(n.arg, n.src[0].shape))),))
    FLIP = Op("movement", "Axes read backwards.", 1, of_first, shape_of_first, lambda n, x: np.flip(x, n.arg),
              lambda n, g: (g.flip(n.arg),))
    WINDOW = Op("movement", "Sliding windows: y[.., o, .., k] = x[.., o*stride + k*dilation, .., k].", 1, of_first,
                _window_shape, _window, lambda n, g: (g.unwindow(n.arg),))
    UNWINDOW = Op("movement", "The transpose of WINDOW: y[.., o*stride + k*dilation, .., k] = x[.., o, .., k], else 0.",
                  1, of_first, _unwindow_shape, _unwindow, lambda n, g: (g.window(n.arg),))

    REDUCE = Op("reduce", "Combine elements along axes, which stay with size 1: (op, axes).", 1, of_first,
        _reduce_shape,
                lambda n, x: reduce_values(n.arg[0], x, n.arg[1], n.dtype), _reduce_gradient, cost=1)

    GATHER = Op("index", "y[i..] = x[.., index[i..], ..] along one axis; 0 where the index is out of range.", 2,
                of_first, lambda n: n.src[1].shape, _gather,
                lambda n, g: (n.src[0].zeros(g.dtype).scatter(n.src[1], g, n.arg, "ADD"), None), cost=1)
    SCATTER = Op("index", "A copy of base with x combined in at index along one axis, in order: (axis, op or None to"
                 " set; ASSIGN: each place of base is set once); indices out of range are dropped.", 3, of_first,
                 shape_of_first, _scatter, _scatter_gradient, cost=1)

    SCAN = Op("scan", "Running values along an axis: y[k] = y[k-1] op x[k], or y[k-1] * weight[k] + x[k] for MULADD."
              " Sources: x[, start[, weight]], where start has y[-1] for each of the equal blocks that the axis is cut"
              " into; (op, axis).", (1, 3), of_first, shape_of_first, scans.scan, scans.scan_gradient, cost=1)
    HISTOGRAM = Op("scan", "Counters by key: each step, in order, records counter[index] and then combines x into it:"
               " (base, index, x), (op, axis). The result has the final counters, then the recorded values,"
               " concatenated along the axis; an index out of range records 0.", 3, of_first, _histogram_shape,
               scans.histogram, cost=1)

    CONTIGUOUS = Op("memory", "The same value, in its own memory; the argument distinguishes clones of one value.", 1,
                    of_first, shape_of_first, lambda n, x: x, lambda n, g: (g,))
    DETACH = Op("memory", "The same value, without a gradient.", 1, of_first, shape_of_first, lambda n, x: x)
    CUSTOM_GRADIENT = Op("memory", "The value of the first source; the argument gives the gradients of the others:"
                         " (node, gradient) -> one for each.", (2, 1 << 30), of_first, shape_of_first,
                         lambda n, x, *others: x, lambda n, g: (None, *n.arg(n, g)))
    COPY = Op("memory", "The value on another device, or replicated on several; the argument names them.", 1,
              of_first, shape_of_first,
              lambda n, x: x, lambda n, g: (g.copy_to(n.src[0].device),), device=lambda arg: arg)
    ASSIGN = Op("memory", "A new version of the first source with the value of the second. With a true argument it"
                " was written in no_grad(), and the gradient goes to the first source.", 2, of_first, shape_of_first,
                lambda n, old, new: new, lambda n, g: (g, None) if n.arg else (None, g))

    HOST = Op("memory", "The result of a host function on values in memory: (its name, the shapes of its"
              " arguments, the shape of the result). Further sources are only computed before it.",
              (1, 1 << 30), of_first, lambda n: n.arg[2], scans.value)

    SHARD = Op("memory", "A value split along an axis over several devices: (axis, devices).",
               (2, 1 << 30), of_first, _shard_shape, lambda n, *parts: np.concatenate(parts, n.arg[0]),
               _shard_gradient, device=lambda arg: arg[1])

    SINK = Op("program", "The results that a program or kernel must compute; the argument is the number of "
              "last values of a kernel that are partial sums over one axis of the others.", (0, 1 << 30), nothing,
              lambda n: (), lambda n, *xs: None)
