"""Rules for scaled dot-product attention: one function for all of PyTorch's ops, which differ in arguments and results.

PyTorch chooses an op by device and dtype while it traces. The gradients are those of ``tensor/nnops/attention.py``.
"""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tinsmith.core.dtypes import dtypes
from tinsmith.tensor.nnops.attention import attended, is_narrow, recomputed
from tinsmith.tensor.tensor import Tensor
from tinsmith.torch.rules.registry import Unsupported, rule


def _bias(q: Tensor, k: Tensor, causal: bool, mask: Tensor | None) -> Tensor | None:
    """Return the bias to add to the scores: -inf where a key is hidden."""
    bias = None
    if causal:
        rows = Tensor.arange(q.shape[-2], device=q.device).reshape(-1, 1)
        columns = Tensor.arange(k.shape[-2], device=q.device).reshape(1, -1)
        bias = (columns <= rows).where(0.0, float("-inf"))
    if mask is not None:
        other = mask.where(0.0, float("-inf")) if mask.dtype is dtypes.bool else mask.cast(dtypes.float32)
        bias = other if bias is None else bias + other
    return bias


def _scores(q: Tensor, k: Tensor, causal: bool, mask: Tensor | None, scale: float | None) -> Tensor:
    factor = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    scores = q.matmul(k.transpose(-1, -2), dtype=_accumulator(q)) * factor
    bias = _bias(q, k, causal, mask)
    return scores if bias is None else scores + bias.cast(scores.dtype)


def _hidden(q: Tensor, k: Tensor, causal: bool, mask: Tensor) -> Tensor:
    """Return True for the queries that no key is visible to, with an axis of one element in place of the keys."""
    bias = _bias(q, k, causal, mask)
    assert bias is not None
    return (bias == float("-inf")).all(-1, True)


def _accumulator(q: Tensor) -> Any:
    return dtypes.float32 if q.dtype.itemsize < 4 else q.dtype


def _heads(q: Tensor, x: Tensor) -> Tensor:
    """Return keys or values with a head for each head of the queries: groups of queries share one (GQA)."""
    if x.ndim < 4 or x.shape[-3] == q.shape[-3]:
        return x
    b, h, n, d = x.shape
    return x.reshape(b, h, 1, n, d).expand(b, h, q.shape[-3] // h, n, d).reshape(b, q.shape[-3], n, d)


def _grouped(grad: Tensor, like: Tensor) -> Tensor:
    """Return the gradient of keys or values whose heads are shared: the sum over the queries' heads of a group."""
    if grad.shape == like.shape:
        return grad
    b, h, n, d = like.shape
    return grad.reshape(b, h, -1, n, d).sum(2)


def _forward(q: Tensor, k: Tensor, v: Tensor, causal: bool, mask: Tensor | None, scale: float | None,
             dropout_p: float) -> tuple[Tensor, Tensor]:
    """Return the result, and the logarithm of the sums of each row of weights."""
    if dropout_p:
        raise Unsupported("dropout inside attention")
    k, v = _heads(q, k), _heads(q, v)
    scores = _scores(q, k, causal, mask, scale)
    if is_narrow(q, k, v):
        out, lse = attended(scores, v, mask is not None)
        lse = lse if mask is None else lse.isinf().where(0, lse)
        return out, lse.contiguous().squeeze(-1)  # whatever its layout: one kernel computes it with the result
    out, sums = scores.softmax(-1).cast(v.dtype).matmul(v), scores.logsumexp(-1)
    if mask is None:
        return out, sums
    hidden = _hidden(q, k, causal, mask)  # such rows are zero, not NaN, and so are their gradients
    return hidden.where(0, out), hidden.squeeze(-1).where(0, sums)


def _backward(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, sums: Tensor, causal: bool,
              mask: Tensor | None, scale: float | None, dropout_p: float) -> tuple[Tensor, ...]:
    """Return the gradients of queries, keys, values, and of the scores."""
    if dropout_p:
        raise Unsupported("dropout inside attention")
    keys, values = _heads(q, k), _heads(q, v)
    scores, factor = _scores(q, keys, causal, mask, scale), 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    found = recomputed(grad, out, q, keys, values, scores, sums.unsqueeze(-1).cast(scores.dtype), factor)
    inner = found.weights.cast(scores.dtype) * found.slopes
    return (found.query.cast(q.dtype), _grouped(found.key, k).cast(k.dtype), _grouped(found.value, v).cast(v.dtype),
            inner)


def _random_state(q: Tensor, *shape: int) -> tuple[Tensor, Tensor]:
    """Return a seed and an offset of dropout that is not there."""
    dtype = dtypes.uint64 if shape else dtypes.int64
    return Tensor.zeros(*shape, dtype=dtype, device=q.device), Tensor.zeros((), dtype=dtype, device=q.device)


# *** CPU ***
@rule("_scaled_dot_product_flash_attention_for_cpu")
def _cpu(q: Tensor, k: Tensor, v: Tensor, dropout_p: float = 0.0, is_causal: bool = False, *,
         attn_mask: Tensor | None = None, scale: float | None = None) -> tuple[Tensor, Tensor]:
    return _forward(q, k, v, is_causal, attn_mask, scale, dropout_p)


@rule("_scaled_dot_product_flash_attention_for_cpu_backward")
def _cpu_backward(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, logsumexp: Tensor, dropout_p: float,
                  is_causal: bool, *, attn_mask: Tensor | None = None,
                  scale: float | None = None) -> tuple[Tensor, ...]:
    return _backward(grad, q, k, v, out, logsumexp, is_causal, attn_mask, scale, dropout_p)[:3]


# *** CUDA ***
@rule("_scaled_dot_product_flash_attention", meta=True)
def _flash(q: Tensor, k: Tensor, v: Tensor, dropout_p: float = 0.0, is_causal: bool = False,
           return_debug_mask: bool = False, *, scale: float | None = None, meta: Any) -> tuple[Any, ...]:
    if return_debug_mask:
        raise Unsupported("the mask of dropout, for debugging")
    out, sums = _forward(q, k, v, is_causal, None, scale, dropout_p)
    return (out, sums, None, None, q.shape[2], k.shape[2], *_random_state(q, *meta[6].shape),
            Tensor.zeros(0, dtype=q.dtype, device=q.device))


@rule("_scaled_dot_product_flash_attention_backward")
def _flash_backward(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, logsumexp: Tensor, cum_q: Any,
                    cum_k: Any, max_q: int, max_k: int, dropout_p: float, is_causal: bool, seed: Any, offset: Any, *,
                    scale: float | None = None) -> tuple[Tensor, ...]:
    return _backward(grad, q, k, v, out, logsumexp, is_causal, None, scale, dropout_p)[:3]


@rule("_scaled_dot_product_cudnn_attention", meta=True)
def _cudnn(q: Tensor, k: Tensor, v: Tensor, attn_bias: Tensor | None, compute_log_sumexp: bool,
           dropout_p: float = 0.0, is_causal: bool = False, return_debug_mask: bool = False, *,
           scale: float | None = None, meta: Any) -> tuple[Any, ...]:
    out, sums = _forward(q, k, v, is_causal, attn_bias, scale, dropout_p)
    return (out, sums.reshape(meta[1].shape), None, None, q.shape[2], k.shape[2], *_random_state(q), None)


@rule("_scaled_dot_product_cudnn_attention_backward")
def _cudnn_backward(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, logsumexp: Tensor, seed: Any,
                    offset: Any, attn_bias: Tensor | None, cum_q: Any, cum_k: Any, max_q: int, max_k: int,
                    dropout_p: float, is_causal: bool, *, scale: float | None = None) -> tuple[Tensor, ...]:
    sums = logsumexp.reshape(logsumexp.shape[:3])
    return _backward(grad, q, k, v, out, sums, is_causal, attn_bias, scale, dropout_p)[:3]


@rule("_scaled_dot_product_efficient_attention", meta=True)
def _efficient(q: Tensor, k: Tensor, v: Tensor, attn_bias: Tensor | None, compute_log_sumexp: bool,
               dropout_p: float = 0.0, is_causal: bool = False, *, scale: float | None = None,
               meta: Any) -> tuple[Tensor, ...]:
    """The rows of the logarithms are padded to a multiple of 32."""
    out, sums = _forward(q, k, v, is_causal, attn_bias, scale, dropout_p)
    room = meta[1].shape[-1]
    sums = sums.shrink([(0, s) for s in (*sums.shape[:-1], min(room, sums.shape[-1]))])
    return (out, sums.pad((0, room - sums.shape[-1])), *_random_state(q))


@rule("_scaled_dot_product_efficient_attention_backward")
def _efficient_backward(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, attn_bias: Tensor | None, out: Tensor,
                        logsumexp: Tensor, seed: Any, offset: Any, dropout_p: float, mask: Sequence[bool],
                        is_causal: bool = False, *, scale: float | None = None) -> tuple[Any, ...]:
    sums = logsumexp.shrink([*((0, s) for s in logsumexp.shape[:-1]), (0, q.shape[-2])])
    *found, inner = _backward(grad, q, k, v, out, sums, is_causal, attn_bias, scale, dropout_p)
    bias = None if attn_bias is None else inner.cast(attn_bias.dtype)
    return tuple(g if wanted else None for g, wanted in zip((*found, bias), mask))
