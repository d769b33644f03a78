"""Multi-head attention and transformer layers (Vaswani et al. 2017), with PyTorch's interface."""
from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Final

from tinsmith.core.errors import ArgumentError, ShapeError
from tinsmith.nn.describe import Layer
from tinsmith.nn.layers.basic import Dropout, Linear
from tinsmith.nn.layers.norms import LayerNorm
from tinsmith.tensor.arguments import choice, flag, number, size
from tinsmith.tensor.base import check_tensors
from tinsmith.tensor.tensor import Tensor

Activation = str | Callable[[Tensor], Tensor]
_ACTIVATIONS: Final[dict[str, Callable[[Tensor], Tensor]]] = {"relu": Tensor.relu, "gelu": Tensor.gelu}


class MultiheadAttention(Layer):
    """Multi-head attention with PyTorch's parameters and masks.

    A call takes ``query [L, N, E], key [S, N, kdim], value [S, N, vdim]`` (``[N, L, E]`` with ``batch_first``;
    unbatched 2-D inputs are accepted) and returns ``(output, weights [N, L, S])``, where the weights are the mean over
    heads. Evaluation is lazy: unused weights are not computed.

    Args:
        dropout: dropout probability of the attention weights, in training.
        kdim: width of the keys; default ``embed_dim``. ``vdim``: width of the values, likewise.
        batch_first: inputs and output have the batch as axis 0.
        add_bias_kv: append a learned key and value, visible to every query.
        add_zero_attn: append a key and a value of zeros, visible to every query.

    >>> from tinsmith import nn
    >>> x = Tensor.ones(2, 5, 8)
    >>> out, weights = nn.MultiheadAttention(8, 2, batch_first=True)(x, x, x, is_causal=True)
    >>> out.shape, weights.shape
    ((2, 5, 8), (2, 5, 5))
    """

    def __init__(self, embed_dim: int, num_heads: int, dropout: float = 0.0, bias: bool = True,
                 kdim: int | None = None, vdim: int | None = None, batch_first: bool = False,
                 add_bias_kv: bool = False, add_zero_attn: bool = False) -> None:
        op = "MultiheadAttention"
        self.embed_dim = width = size(op, "embed_dim", embed_dim, 1)
        self.num_heads = size(op, "num_heads", num_heads, 1)
        if width % self.num_heads:
            raise ArgumentError(op, f"{num_heads} heads for embed_dim={width}", "a divisor")
        self.kdim = width if kdim is None else size(op, "kdim", kdim, 1)
        self.vdim = width if vdim is None else size(op, "vdim", vdim, 1)
        self.dropout, self.batch_first = number(op, "dropout", dropout, 0, 1), flag(op, "batch_first", batch_first)
        if self.kdim == self.vdim == width:
            self.in_proj_weight = Tensor.glorot_uniform(3 * width, width)
        else:
            self.q_proj_weight = Tensor.glorot_uniform(width, width)
            self.k_proj_weight = Tensor.glorot_uniform(width, self.kdim)
            self.v_proj_weight = Tensor.glorot_uniform(width, self.vdim)
        learned = flag(op, "add_bias_kv", add_bias_kv)
        self.bias_k, self.bias_v = (Tensor.normal(1, 1, width, std=math.sqrt(1 / width)) if learned else None
                                    for _ in range(2))
        self.add_zero_attn = flag(op, "add_zero_attn", add_zero_attn)
        self.in_proj_bias = Tensor.zeros(3 * width).contiguous() if flag(op, "bias", bias) else None
        self.out_proj = Linear(width, width, bias)
        if self.out_proj.bias is not None:
            self.out_proj.bias = Tensor.zeros(width).contiguous()

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, key_padding_mask: Tensor | None = None,
                 need_weights: bool = True, attn_mask: Tensor | None = None, average_attn_weights: bool = True,
                 is_causal: bool = False) -> tuple[Tensor, Tensor | None]:
        """Return (output, weights) for ``query``.

        Args:
            key_padding_mask: ``[N, S]``, True where a key is masked out (or a float that is added to the scores).
            need_weights: False returns None instead of the weights.
            attn_mask: ``[L, S]`` or ``[N * heads, L, S]``, with the same meaning.
            average_attn_weights: False returns the weights of each head, ``[N, heads, L, S]``.
            is_causal: position i attends only to positions up to i, in addition to the masks.
        """
        check_tensors("MultiheadAttention", [query, key, value])
        flat = query.ndim == 2
        if query.ndim not in (2, 3) or key.ndim != query.ndim or value.ndim != query.ndim:
            raise ShapeError("MultiheadAttention", f"query {query.shape}, key {key.shape}, value {value.shape}",
                             "three tensors [L, N, E], or [L, E] without a batch")
        if flat:
            query, key, value = (t.unsqueeze(0) for t in (query, key, value))
        elif not self.batch_first:
            query, key, value = (t.transpose(0, 1) for t in (query, key, value))
        q, k, v = self._projected(query, key, value)
        mask = self._mask(q, k, key_padding_mask, attn_mask, is_causal)
        only_causal = is_causal and key_padding_mask is None and attn_mask is None
        if self.bias_k is not None or self.add_zero_attn:
            more, k, v = k.shape[2], *map(self._extended, (k, v), (self.bias_k, self.bias_v))
            mask = None if mask is None else mask.pad((0, k.shape[2] - more))
            only_causal = False
        dropped = self.dropout if Tensor.training else 0.0
        heads = q.scaled_dot_product_attention(k, v, None if only_causal else mask, dropped, only_causal)
        out = self.out_proj(heads.transpose(1, 2).flatten(2))
        weights = self._weights(q, k, mask) if need_weights else None
        if weights is not None and average_attn_weights:
            weights = weights.mean(1)
        if flat:
            return out.squeeze(0), None if weights is None else weights.squeeze(0)
        return out if self.batch_first else out.transpose(0, 1), weights

    def _projected(self, *inputs: Tensor) -> list[Tensor]:
        """Return the projected queries, keys and values ``[N, heads, L, E / heads]``."""
        width = self.embed_dim
        weights = (self.in_proj_weight.split(width) if self.kdim == self.vdim == width else
                   (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight))
        biases = [None] * 3 if self.in_proj_bias is None else self.in_proj_bias.split(width)
        whole = [t.linear(w.transpose(), b) for t, w, b in zip(inputs, weights, biases)]
        return [t.reshape(*t.shape[:2], self.num_heads, width // self.num_heads).transpose(1, 2) for t in whole]

    def _extended(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """Append the learned key or value and the zeros to ``x [N, heads, S, E / heads]``, as configured."""
        n, heads, _, width = x.shape
        if bias is not None:
            x = x.cat(bias.reshape(1, heads, 1, width).expand(n, heads, 1, width).cast(x.dtype), dim=2)
        return x.pad((0, 0, 0, 1)) if self.add_zero_attn else x

    def _mask(self, q: Tensor, k: Tensor, padding: Tensor | None, given: Tensor | None,
              is_causal: bool) -> Tensor | None:
        """Return the mask added to the scores ``[N, heads, L, S]``: 0 for a visible key, -inf for a masked one."""
        (n, heads, lines, _), columns = q.shape, k.shape[2]
        parts: list[Tensor] = []
        if is_causal:
            ones = Tensor.ones(lines, columns, dtype="bool", device=q.device)
            parts.append(ones.triu(1))
        if given is not None:
            if given.shape not in ((lines, columns), (n * heads, lines, columns)):
                raise ShapeError("MultiheadAttention", f"attn_mask {given.shape}",
                                 f"{(lines, columns)} or {(n * heads, lines, columns)}")
            parts.append(given if given.ndim == 2 else given.reshape(n, heads, lines, columns))
        if padding is not None:
            padding = padding.unsqueeze(0) if padding.ndim == 1 else padding
            if padding.shape != (n, columns):
                raise ShapeError("MultiheadAttention", f"key_padding_mask {padding.shape}", f"{(n, columns)}")
            parts.append(padding.reshape(n, 1, 1, columns))
        floats = [p.where(-math.inf, 0.0) if p.dtype.is_bool else p for p in parts]
        return sum(floats[1:], floats[0]).cast(q.dtype) if floats else None

    def _weights(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        scores = q.matmul(k.transpose(-2, -1)) * (1 / math.sqrt(q.shape[-1]))
        return (scores if mask is None else scores + mask).softmax(-1)


class _Block(Layer):
    """The common part of encoder and decoder layers: feed-forward network, residuals, pre- or post-norm."""

    def _made(self, op: str, d_model: int, dim_feedforward: int, dropout: float, activation: Activation,
              layer_norm_eps: float, norm_first: bool, bias: bool, norms: int) -> None:
        self.linear1 = Linear(d_model, dim_feedforward, bias)
        self.linear2 = Linear(dim_feedforward, d_model, bias)
        self.norm_first, self.dropout = flag(op, "norm_first", norm_first), Dropout(dropout)
        for n in range(norms):
            setattr(self, f"norm{n + 1}", LayerNorm(d_model, layer_norm_eps, bias=bias))
        self.activation: Callable[[Tensor], Tensor] = (
            activation if callable(activation) else _ACTIVATIONS[choice(op, "activation", activation, _ACTIVATIONS)])

    def _feed_forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.linear2(self.dropout(self.activation(self.linear1(x)))))

    def _residuals(self, x: Tensor, *parts: Callable[[Tensor], Tensor]) -> Tensor:
        for n, part in enumerate(parts, 1):
            norm: LayerNorm = getattr(self, f"norm{n}")
            x = x + part(norm(x)) if self.norm_first else norm(x + part(x))
        return x


class TransformerEncoderLayer(_Block):
    """Encoder layer: self-attention and feed-forward, each with residual and norm; ``[L, N, E] → [L, N, E]``.

    >>> from tinsmith import nn
    >>> nn.TransformerEncoderLayer(8, 2, dim_feedforward=16, batch_first=True)(Tensor.ones(2, 5, 8)).shape
    (2, 5, 8)
    """

    def __init__(self, d_model: int, nhead: int, dim_feedforward: int = 2048, dropout: float = 0.1,
                 activation: Activation = "relu", layer_norm_eps: float = 1e-5, batch_first: bool = False,
                 norm_first: bool = False, bias: bool = True) -> None:
        self.self_attn = MultiheadAttention(d_model, nhead, dropout, bias, batch_first=batch_first)
        self._made("TransformerEncoderLayer", d_model, dim_feedforward, dropout, activation, layer_norm_eps,
                   norm_first, bias, 2)

    def __call__(self, src: Tensor, src_mask: Tensor | None = None, src_key_padding_mask: Tensor | None = None,
                 is_causal: bool = False) -> Tensor:
        def attend(x: Tensor) -> Tensor:
            return self.dropout(self.self_attn(x, x, x, src_key_padding_mask, False, src_mask,
                                               is_causal=is_causal and src_mask is None)[0])

        return self._residuals(src, attend, self._feed_forward)


class TransformerDecoderLayer(_Block):
    """Decoder layer: self-attention, cross-attention to ``memory``, feed-forward; each with residual and norm.

    >>> from tinsmith import nn
    >>> nn.TransformerDecoderLayer(8, 2, dim_feedforward=16)(Tensor.ones(3, 2, 8), Tensor.ones(5, 2, 8)).shape
    (3, 2, 8)
    """

    def __init__(self, d_model: int, nhead: int, dim_feedforward: int = 2048, dropout: float = 0.1,
                 activation: Activation = "relu", layer_norm_eps: float = 1e-5, batch_first: bool = False,
                 norm_first: bool = False, bias: bool = True) -> None:
        self.self_attn = MultiheadAttention(d_model, nhead, dropout, bias, batch_first=batch_first)
        self.multihead_attn = MultiheadAttention(d_model, nhead, dropout, bias, batch_first=batch_first)
        self._made("TransformerDecoderLayer", d_model, dim_feedforward, dropout, activation, layer_norm_eps,
                   norm_first, bias, 3)

    def __call__(self, tgt: Tensor, memory: Tensor, tgt_mask: Tensor | None = None, memory_mask: Tensor | None = None,
                 tgt_key_padding_mask: Tensor | None = None, memory_key_padding_mask: Tensor | None = None,
                 tgt_is_causal: bool = False, memory_is_causal: bool = False) -> Tensor:
        def attend(x: Tensor) -> Tensor:
            return self.dropout(self.self_attn(x, x, x, tgt_key_padding_mask, False, tgt_mask,
                                               is_causal=tgt_is_causal and tgt_mask is None)[0])

        def look(x: Tensor) -> Tensor:
            return self.dropout(self.multihead_attn(x, memory, memory, memory_key_padding_mask, False, memory_mask,
                                                    is_causal=memory_is_causal and memory_mask is None)[0])

        return self._residuals(tgt, attend, look, self._feed_forward)


class TransformerEncoder(Layer):
    """A stack of ``num_layers`` copies of an encoder layer, followed by an optional norm.

    >>> from tinsmith import nn
    >>> layer = nn.TransformerEncoderLayer(8, 2, dim_feedforward=16)
    >>> nn.TransformerEncoder(layer, 2, nn.LayerNorm(8))(Tensor.ones(5, 2, 8)).shape
    (5, 2, 8)
    """

    def __init__(self, encoder_layer: TransformerEncoderLayer, num_layers: int, norm: LayerNorm | None = None) -> None:
        count = size("TransformerEncoder", "num_layers", num_layers)
        self.layers, self.norm = [copy.deepcopy(encoder_layer) for _ in range(count)], norm

    def __call__(self, src: Tensor, mask: Tensor | None = None, src_key_padding_mask: Tensor | None = None,
                 is_causal: bool = False) -> Tensor:
        for layer in self.layers:
            src = layer(src, mask, src_key_padding_mask, is_causal)
        return src if self.norm is None else self.norm(src)


class TransformerDecoder(Layer):
    """A stack of ``num_layers`` copies of a decoder layer, followed by an optional norm.

    >>> from tinsmith import nn
    >>> layer = nn.TransformerDecoderLayer(8, 2, dim_feedforward=16)
    >>> nn.TransformerDecoder(layer, 2)(Tensor.ones(3, 2, 8), Tensor.ones(5, 2, 8), tgt_is_causal=True).shape
    (3, 2, 8)
    """

    def __init__(self, decoder_layer: TransformerDecoderLayer, num_layers: int, norm: LayerNorm | None = None) -> None:
        count = size("TransformerDecoder", "num_layers", num_layers)
        self.layers, self.norm = [copy.deepcopy(decoder_layer) for _ in range(count)], norm

    def __call__(self, tgt: Tensor, memory: Tensor, tgt_mask: Tensor | None = None, memory_mask: Tensor | None = None,
                 tgt_key_padding_mask: Tensor | None = None, memory_key_padding_mask: Tensor | None = None,
                 tgt_is_causal: bool = False, memory_is_causal: bool = False) -> Tensor:
        for layer in self.layers:
            tgt = layer(tgt, memory, tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask,
                        tgt_is_causal, memory_is_causal)
        return tgt if self.norm is None else self.norm(tgt)
