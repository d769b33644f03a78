"""Linear, Embedding and Dropout."""
from __future__ import annotations

import math

from tinsmith.tensor.arguments import flag, number, size
from tinsmith.tensor.base import check_tensors
from tinsmith.tensor.tensor import Tensor


class Linear:
    """``x @ weight.T + bias`` with weight ``[out, in]``, drawn as PyTorch draws it.

    >>> from tinsmith import nn
    >>> nn.Linear(3, 4)(Tensor.ones(2, 3)).shape
    (2, 4)
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        in_features = size("Linear", "in_features", in_features)
        out_features = size("Linear", "out_features", out_features)
        bound = 1 / math.sqrt(in_features) if in_features else 0.0
        self.weight = Tensor.uniform(out_features, in_features, low=-bound, high=bound)
        self.bias = Tensor.uniform(out_features, low=-bound, high=bound) if flag("Linear", "bias", bias) else None

    def __call__(self, x: Tensor) -> Tensor:
        check_tensors("Linear", [x])
        return x.linear(self.weight.transpose(), self.bias)


class Embedding:
    """A row of ``weight`` for each index.

    >>> from tinsmith import nn
    >>> nn.Embedding(10, 4)(Tensor([[1, 2, 3]])).shape
    (1, 3, 4)
    """

    def __init__(self, vocab_size: int, embed_size: int) -> None:
        self.vocab_size = size("Embedding", "vocab_size", vocab_size)
        self.embed_size = size("Embedding", "embed_size", embed_size)
        self.weight = Tensor.normal(self.vocab_size, self.embed_size, mean=0.0, std=1.0)

    def __call__(self, idx: Tensor) -> Tensor:
        check_tensors("Embedding", [idx])
        return idx.embedding(self.weight)


class Dropout:
    """``x.dropout(p)`` as a layer."""

    def __init__(self, p: float = 0.5) -> None:
        self.p = number("Dropout", "p", p, 0, 1)

    def __call__(self, x: Tensor) -> Tensor:
        check_tensors("Dropout", [x])
        return x.dropout(self.p)
