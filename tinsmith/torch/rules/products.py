"""Rules for matrix products and attention."""
from __future__ import annotations

import math
from typing import Any

from tinsmith.core.dtypes import dtypes
from tinsmith.tensor.tensor import Tensor
from tinsmith.torch.rules.registry import Unsupported, rule


@rule("mm", "bmm", "mv", "dot", "vdot", "matmul")
def _product(x: Tensor, y: Tensor) -> Tensor:
    return x.matmul(y)


@rule("addmm", "baddbmm", "addmv")
def _add_product(bias: Tensor, x: Tensor, y: Tensor, beta: Any = 1, alpha: Any = 1) -> Tensor:
    if x.dtype.is_float:
        product = x.matmul(y, dtype=dtypes.float32) if x.dtype.itemsize == 2 else x.matmul(y)
    else:
        product, beta, alpha = x.matmul(y), int(beta), int(alpha)  # PyTorch cuts off their fractions
    product = product if alpha == 1 else product * alpha
    return product if beta == 0 else product + (bias if beta == 1 else bias * beta)


@rule("_cdist_forward")
def _distances(x: Tensor, y: Tensor, p: float, mode: int | None = None) -> Tensor:
    return x.cdist(y, p)


@rule("linear")
def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    product = x.matmul(weight.transpose(-1, -2))
    return product if bias is None else product + bias


# *** attention ***


def _bias(q: Tensor, k: Tensor, causal: bool, mask: Tensor | None) -> Tensor | None:
    """Return what is added to the scores: -inf where a key is hidden."""
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


@rule("_scaled_dot_product_flash_attention_for_cpu")
def _attention(q: Tensor, k: Tensor, v: Tensor, dropout_p: float = 0.0, is_causal: bool = False, *,
               attn_mask: Tensor | None = None, scale: float | None = None) -> tuple[Tensor, Tensor]:
    if dropout_p:
        raise Unsupported("dropout inside attention")
    scores = _scores(q, k, is_causal, attn_mask, scale)
    out, sums = scores.softmax(-1).cast(v.dtype).matmul(v), scores.logsumexp(-1)
    if attn_mask is None:
        return out, sums
    hidden = _hidden(q, k, is_causal, attn_mask)  # such rows are zero, not NaN, and so are their gradients
    return hidden.where(0, out), hidden.squeeze(-1).where(0, sums)


@rule("_scaled_dot_product_flash_attention_for_cpu_backward")
def _attention_backward(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, logsumexp: Tensor,
                        dropout_p: float, is_causal: bool, *, attn_mask: Tensor | None = None,
                        scale: float | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of attention from its result and the logarithm of its rows' sums (Dao et al. 2022, algorithm 4)."""
    if dropout_p:
        raise Unsupported("dropout inside attention")
    wide = _accumulator(q)
    factor = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    weights = (_scores(q, k, is_causal, attn_mask, scale) - logsumexp.unsqueeze(-1).cast(wide)).exp()
    grad_v = weights.cast(v.dtype).transpose(-1, -2).matmul(grad)
    grad_weights = grad.matmul(v.transpose(-1, -2), dtype=wide)
    rows = (grad.cast(wide) * out.cast(wide)).sum(-1, True)
    grad_scores = (weights * (grad_weights - rows) * factor).cast(q.dtype)
    return grad_scores.matmul(k), grad_scores.transpose(-1, -2).matmul(q), grad_v
