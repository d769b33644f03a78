"""Gradients of attention that recompute the scores (Dao et al. 2022, algorithm 4).

Forward keeps the logarithm of each row's sum, ``lse``. Backward computes the weights from scores and ``lse``:

    P = exp(S - lse)    dV = Pᵀ·dO    D = row sums of dO∘O    dS = P∘(dO·Vᵀ - D)    dQ = dS·K    dK = dSᵀ·Q

P and dS are rounded to the dtype of the operands, because they are operands of matrix units; S, dO·Vᵀ and all sums have
the accumulator's dtype. ``weighted_mean`` is attention of 16-bit floats with these gradients; the rules of
``torch.compile`` use ``recomputed`` for all dtypes.
"""
from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from tinsmith.backend.device import Device
from tinsmith.ir import Ops, UOp
from tinsmith.tensor.linalg.linear_algebra import LinearAlgebra

T = TypeVar("T", bound=LinearAlgebra)


def is_narrow(query: LinearAlgebra, key: LinearAlgebra, value: LinearAlgebra) -> bool:
    """Return True if all three have one 16-bit float dtype, and no axis is empty."""
    narrow = query.dtype.is_float and query.dtype.itemsize == 2 and query.dtype is key.dtype is value.dtype
    return narrow and not any(type(s) is int and s == 0 for t in (query, key, value) for s in t.shape)


def memory_order(x: LinearAlgebra) -> list[int]:
    """Return the axes of a tensor in the order in which they lie in memory, the slowest first: [0, 2, 1, 3] for heads
    that a transpose has moved before positions. The axes in order for other views; axes of one element stay in their
    places."""
    value = x.uop
    while value.op is Ops.CAST:
        value = value.src[0]
    views, axes = value.st.views, list(range(x.ndim))
    steps = [s for s in views[0].strides if isinstance(s, int)]
    sizes = [s for s in x.shape if isinstance(s, int)]
    plain = len(views) == 1 and views[0].mask is None and len(steps) == len(sizes) == x.ndim
    if not plain or any(step <= 0 for step, n in zip(steps, sizes) if n > 1):
        return axes
    moved = iter(sorted((a for a in axes if sizes[a] > 1), key=lambda a: -steps[a]))
    return [next(moved) if sizes[a] > 1 else a for a in axes]


def stored_in(x: T, order: list[int]) -> T:
    """Return the values of ``x`` stored with their axes in this order."""
    back = [order.index(a) for a in range(len(order))]
    return x.permute(*order).contiguous().permute(*back)


def attended(scores: T, value: T, masked: bool, kept: T | None = None) -> tuple[T, T]:
    """Return ``softmax(scores) @ value`` in the dtype of ``value``, and the logarithm of each row's sum, with an axis
    of one element for the keys.

    Args:
        scores: float32, scaled and masked.
        value: values of 16 bits.
        masked: all keys of a row may be hidden: such a row is 0, and its logarithm infinite.
        kept: factors of the weights (dropout); None without.
    """
    shift = scores._new(UOp(Ops.DETACH, None, (scores.uop,))).max(-1, keepdim=True)
    shift = shift if not masked else shift.eq(-math.inf).where(0, shift)
    weights = scores.sub(shift).exp()
    total = weights.sum(-1, True)
    lse = shift + total.log()
    if masked:
        hidden = total.eq(0)
        total, lse = hidden.where(1, total), hidden.where(math.inf, lse)
    weights = weights if kept is None else weights * kept
    sums = weights.cast(value.dtype).matmul(value, dtype=total.dtype)
    return (sums * total.reciprocal()).cast(value.dtype), lse


def weighted_mean(query: T, key: T, value: T, scores: T, factor: float, mask: T | None, kept: T | None) -> T:
    """Return ``attended`` with the gradients above.

    Args:
        query, key, value: operands of one 16-bit dtype.
        scores: scaled and masked products of ``query`` and ``key``, float32.
        factor: the scale of the scores.
        mask: the mask of the scores, bool or added; with one, all keys of a row may be hidden. Such a row is 0.
        kept: factors of the weights (dropout); None without.
    """
    out, lse = attended(scores, value, mask is not None, kept)
    order = memory_order(query)
    if order != list(range(query.ndim)) and out.ndim == query.ndim:
        out = stored_in(out, order)
    operands = [t if t.shape[:-2] == out.shape[:-2] else t.expand(*out.shape[:-2], *t.shape[-2:])
                for t in (query, key, value)]
    others = [t for t in (kept, mask) if t is not None]
    sources = tuple(t.uop for t in (out, *operands, scores, lse.contiguous(), *others))
    return out._new(UOp(Ops.CUSTOM_GRADIENT, None, sources, _Gradients(type(query), factor, kept is not None)))


class Recomputed(NamedTuple, Generic[T]):
    """The gradients of attention, with the accumulator's dtype.

    Attributes:
        query, key, value: gradients of the operands.
        weights: the weights, rounded to the operands' dtype.
        slopes: gradients of the scores, divided by the weights.
    """

    query: T
    key: T
    value: T
    weights: T
    slopes: T


def recomputed(gradient: T, out: T, query: T, key: T, value: T, scores: T, lse: T, factor: float,
               kept: T | None = None) -> Recomputed[T]:
    """Return the gradients of attention from its result and the logarithms of its rows' sums.

    Args:
        gradient: the gradient of the result ``out``.
        scores: scaled and masked products of ``query`` and ``key``, with the accumulator's dtype.
        lse: the logarithms, with an axis of one element for the keys.
        factor: the scale of the scores.
        kept: factors of the weights (dropout); None without.
    """
    dtype, wide = query.dtype, scores.dtype
    weights = scores.sub(lse).exp().cast(dtype)
    dropped = weights if kept is None else (weights * kept).cast(dtype)
    rows = (gradient.cast(wide) * out.cast(wide)).sum(-1, True).contiguous()  # once per query, not per score
    products = gradient.matmul(value.transpose(-2, -1), dtype=wide)
    slopes = (products if kept is None else products * kept) - rows
    if dtype is wide:  # the sums are stored as they are, so that they may be accumulated in memory
        narrow, factor = weights * slopes * factor, 1.0
    else:
        narrow = (weights.cast(wide) * slopes).cast(dtype)
    return Recomputed(narrow.matmul(key, dtype=wide) * factor,
                      narrow.transpose(-2, -1).matmul(query, dtype=wide) * factor,
                      dropped.transpose(-2, -1).matmul(gradient, dtype=wide), weights, slopes)


@dataclass(frozen=True)
class _Gradients:
    """The gradient rule of attention: of query, key and value, and of a mask that was added to the scores.

    Attributes:
        kind: the tensor class.
        factor: the scale of the scores.
        drops: True if weights are multiplied by the factors of dropout.
    """

    kind: type[LinearAlgebra]
    factor: float
    drops: bool

    def __call__(self, node: UOp, gradient: UOp) -> tuple[UOp | None, ...]:
        device = node.device or Device.DEFAULT
        g, out, query, key, value, scores, lse, *others = (
            self.kind._wrap(u, device) for u in (gradient, node, *node.src[1:]))
        kept, mask = others.pop(0) if self.drops else None, others.pop() if others else None
        found = recomputed(g, out, query, key, value, scores, lse, self.factor, kept)
        dtype, wide = query.dtype, scores.dtype
        of_mask = None
        if mask is not None and mask.dtype.is_float:  # read by sums over heads and batches, so stored
            stored = (found.weights.contiguous().cast(wide) * found.slopes).cast(dtype).contiguous()
            of_mask = stored.cast(wide).sum_to_size(mask.shape).cast(mask.dtype).uop
        laid_out = (stored_in(t.cast(dtype), memory_order(x)).uop for t, x in zip(found[:3], (query, key, value)))
        return (*laid_out, None, None, *[None] * self.drops, *[of_mask] * (mask is not None))

    def __str__(self) -> str:
        return "attention"
