"""The decompositions that AOTAutograd applies before a graph is compiled."""
from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import torch
from torch._decomp import core_aten_decompositions
from torch.nn import functional as F

# ops that have rules of their own, which are better than PyTorch's decompositions
_KEPT: Final = ("_scaled_dot_product_flash_attention_for_cpu", "gelu_backward", "embedding_dense_backward",
                "native_batch_norm_backward", "native_layer_norm_backward", "native_group_norm_backward",
                "_softmax_backward_data", "_safe_softmax", "upsample_nearest2d",
                "upsample_bilinear2d", "baddbmm", "index_add", "addcmul", "addcdiv", "silu", "rsub", "sigmoid_backward",
                "tanh_backward", "threshold_backward")
# functions of one tensor of a list, where they are not PyTorch's function of the same name
_EACH: Final[dict[str, Callable[..., Any]]] = {
    "addcmul": lambda x, a, b, value=1: torch.addcmul(x, a, b, value=value),
    "addcdiv": lambda x, a, b, value=1: torch.addcdiv(x, a, b, value=value),
    "copy": lambda x, source, non_blocking=False: torch.ops.aten.copy.default(x, source),
    "maximum": lambda x, y: torch.maximum(x, y) if isinstance(y, torch.Tensor) else torch.clamp_min(x, y),
    "minimum": lambda x, y: torch.minimum(x, y) if isinstance(y, torch.Tensor) else torch.clamp_max(x, y),
    "norm": lambda x, ord=2, dtype=None: torch.linalg.vector_norm(x, ord, dtype=dtype),
    "zero": torch.zeros_like,
}


@functools.cache
def decompositions() -> dict[Any, Callable[..., Any]]:
    """Return PyTorch's decompositions into core ATen, except those of ops that have a rule undecomposed, and those of
    ops on lists of tensors, which optimizers use on GPUs."""
    table: dict[Any, Callable[..., Any]] = dict(core_aten_decompositions())
    for op in list(table):
        namespace, name, *_ = str(op).split(".")
        if namespace == "aten" and name in _KEPT:
            del table[op]
    return table | _of_lists() | _own()


def _own() -> dict[Any, Callable[..., Any]]:
    """Return the decompositions written here.

    Those of the cross entropy let a training step keep the logits, in their 16 bits, and two numbers per row for the
    backward pass. PyTorch's would keep two values of 32 bits per logit: the result of ``log_softmax``, and the classes
    as one-hot rows, since AOTAutograd recomputes elementwise ops alone, and no scatter.
    """
    aten = torch.ops.aten
    return {aten._transformer_encoder_layer_fwd.default: _encoder_layer, aten._log_softmax.default: _log_softmax,
            aten._log_softmax_backward_data.default: _log_softmax_backward,
            aten.nll_loss_backward.default: _nll_loss_backward, aten.nll_loss2d_backward.default: _nll_loss_backward}


def _wide(x: Any) -> Any:
    """Return the numbers in the dtype that they are computed in: float32 for those of 16 bits."""
    return x.to(torch.float32) if x.dtype in (torch.float16, torch.bfloat16) else x


def _log_softmax(x: Any, dim: int, half_to_float: bool) -> Any:
    wide = _wide(x)
    if wide.ndim and wide.numel():
        shifted = wide - wide.amax(dim, True)
        found = shifted - shifted.exp().sum(dim, True).log()
    else:
        found = torch.zeros_like(wide)
    return found if half_to_float else found.to(x.dtype)


def _log_softmax_backward(grad: Any, y: Any, dim: int, dtype: Any) -> Any:
    grad, y = _wide(grad), _wide(y)
    return (grad - y.exp() * grad.sum(dim, True)).to(dtype)


def _nll_loss_backward(grad: Any, x: Any, target: Any, weight: Any, reduction: int, ignored: int, total: Any) -> Any:
    """Return the gradient of the classes' log-probabilities ``x``, whose classes lie in axis 1, or 0 if it has one."""
    axis = min(x.ndim, 2) - 1
    by_class = [1] * x.ndim
    by_class[axis] = x.shape[axis]
    target = target.unsqueeze(axis)
    chosen = (torch.arange(x.shape[axis], device=x.device).view(by_class) == target) & (target != ignored)
    grad = grad / total if reduction == 1 else grad  # of the mean
    grad = grad.unsqueeze(axis) if grad.ndim else grad
    return torch.where(chosen, -grad if weight is None else -grad * weight.view(by_class), 0).to(x.dtype)


def _encoder_layer(x: Any, width: int, heads: int, qkv_weight: Any, qkv_bias: Any, proj_weight: Any, proj_bias: Any,
                   use_gelu: bool, norm_first: bool, eps: float, weight1: Any, bias1: Any, weight2: Any, bias2: Any,
                   up_weight: Any, up_bias: Any, down_weight: Any, down_bias: Any, mask: Any = None,
                   mask_type: int | None = None) -> Any:
    """Return the result of ``nn.TransformerEncoderLayer``'s inference op, by ops that have rules.

    A mask hides the keys where it is True or, as PyTorch's op reads floats, not 0. Its type is 0 for (queries, keys), 1
    for (batch, keys), 2 for all four axes.
    """
    if x.is_nested or x.ndim != 3:
        return NotImplemented
    batch, length, _ = x.shape
    if mask is not None:
        mask = mask.to(torch.bool).logical_not()
        mask = mask[:, None, None] if mask_type == 1 else mask

    def attended(x: Any) -> Any:
        parts = F.linear(x, qkv_weight, qkv_bias).view(batch, length, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
        found = F.scaled_dot_product_attention(parts[0], parts[1], parts[2], mask)
        return F.linear(found.transpose(1, 2).reshape(batch, length, width), proj_weight, proj_bias)

    def transformed(x: Any) -> Any:
        inner = F.linear(x, up_weight, up_bias)
        return F.linear(F.gelu(inner) if use_gelu else F.relu(inner), down_weight, down_bias)

    for change, weight, bias in ((attended, weight1, bias1), (transformed, weight2, bias2)):
        if norm_first:
            x = x + change(F.layer_norm(x, (width,), weight, bias, eps))
        else:
            x = F.layer_norm(x + change(x), (width,), weight, bias, eps)
    return x


def _of_lists() -> dict[Any, Callable[..., Any]]:
    """Return the decompositions of the functional ops on lists of tensors (``_foreach_add``): one op per tensor."""
    table: dict[Any, Callable[..., Any]] = {}
    names: Any = torch._C._dispatch_get_all_op_names
    for full in names():
        packet, _, overload = full.removeprefix("aten::").partition(".")
        name = packet.removeprefix("_foreach_")
        if not packet.startswith("_foreach_") or name.endswith("_") or overload.endswith("out"):
            continue
        function = _EACH.get(name, getattr(torch, name, None))
        if function is not None:
            table[getattr(getattr(torch.ops.aten, packet), overload or "default")] = _each(function)
    return table


def _each(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function from lists of tensors and numbers to a list that applies ``function`` to one of each."""
    def run(*args: Any, **kwargs: Any) -> list[Any]:
        count = next(len(a) for a in args if isinstance(a, (list, tuple)))
        return [function(*(_pick(a, n) for a in args), **{k: _pick(v, n) for k, v in kwargs.items()})
                for n in range(count)]

    return run


def _pick(value: Any, n: int) -> Any:
    return value[n] if isinstance(value, (list, tuple)) else value
