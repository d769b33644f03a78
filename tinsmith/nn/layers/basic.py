"""Linear, Embedding, Sequential, Flatten, Upsample and dropout layers."""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tinsmith.core.errors import ArgumentError, ShapeError
from tinsmith.nn.describe import Layer, arguments
from tinsmith.tensor.arguments import flag, integer, integers, number, size
from tinsmith.tensor.base import check_tensors
from tinsmith.tensor.tensor import Tensor


class Linear(Layer):
    """``x @ weight.T + bias``: ``[…, in] → […, out]``, weight ``[out, in]``, initialized as in PyTorch.

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

    def extra_repr(self) -> str:
        outputs, inputs = self.weight.shape
        return arguments(in_features=inputs, out_features=outputs, bias=self.bias is not None)

    def __call__(self, x: Tensor) -> Tensor:
        check_tensors("Linear", [x])
        return x.linear(self.weight.transpose(), self.bias)


class Embedding(Layer):
    """Look up a row of ``weight`` for each index: integers ``[…] → […, width]``.

    Args:
        padding_idx: an index (negative: from the end) whose row is initialized with zeros and gets no gradient.

    >>> from tinsmith import nn
    >>> nn.Embedding(10, 4)(Tensor([[1, 2, 3]])).shape
    (1, 3, 4)
    >>> nn.Embedding(10, 2, padding_idx=0)(Tensor([0])).tolist()
    [[0.0, 0.0]]
    """

    def __init__(self, vocab_size: int, embed_size: int, padding_idx: int | None = None) -> None:
        self.vocab_size = size("Embedding", "vocab_size", vocab_size)
        self.embed_size = size("Embedding", "embed_size", embed_size)
        self.padding_idx, rows = padding_idx, self.vocab_size
        self.weight = Tensor.normal(rows, self.embed_size, mean=0.0, std=1.0)
        if padding_idx is not None:
            self.padding_idx = integer("Embedding", "padding_idx", padding_idx, -rows, rows - 1) % rows
            self.weight = (Tensor.arange(rows).reshape(-1, 1) == self.padding_idx).where(0, self.weight).contiguous()

    def extra_repr(self) -> str:
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.vocab_size}, {self.embed_size}{padding}"

    def __call__(self, idx: Tensor) -> Tensor:
        check_tensors("Embedding", [idx])
        return idx.embedding(self.weight, self.padding_idx)


class Sequential(Layer, list[Callable[[Tensor], Tensor]]):
    """A list of layers that are called in order. ``seq[0]``, ``len`` and ``append`` are those of ``list``.

    >>> from tinsmith import nn
    >>> model = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 1))
    >>> model(Tensor.ones(3, 2)).shape, sorted(nn.state.get_state_dict(model))
    ((3, 1), ['0.bias', '0.weight', '2.bias', '2.weight'])
    """

    def __init__(self, *layers: Callable[[Tensor], Tensor]) -> None:
        super().__init__(layers)

    def __call__(self, x: Tensor) -> Tensor:
        check_tensors("Sequential", [x])
        return x.sequential(self)


class Identity(Layer):
    """The identity function: returns its argument."""

    def __call__(self, x: Tensor) -> Tensor:
        return x


class Flatten(Layer):
    """``x.flatten(start_dim, end_dim)`` as a layer; default: all axes but the first.

    >>> from tinsmith import nn
    >>> nn.Flatten()(Tensor.ones(2, 3, 4)).shape
    (2, 12)
    """

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        self.start_dim = integer("Flatten", "start_dim", start_dim)
        self.end_dim = integer("Flatten", "end_dim", end_dim)

    def extra_repr(self) -> str:
        return arguments(start_dim=self.start_dim, end_dim=self.end_dim)

    def __call__(self, x: Tensor) -> Tensor:
        check_tensors("Flatten", [x])
        return x.flatten(self.start_dim, self.end_dim)


class Upsample(Layer):
    """``x.interpolate`` as a layer: resizes the axes after the first two to ``size``, or by ``scale_factor``.

    >>> from tinsmith import nn
    >>> nn.Upsample(scale_factor=2)(Tensor([[[1., 2.]]])).tolist()
    [[[1.0, 1.0, 2.0, 2.0]]]
    """

    def __init__(self, size: int | Sequence[int] | None = None, scale_factor: float | Sequence[float] | None = None,
                 mode: str = "nearest", align_corners: bool | None = None,
                 recompute_scale_factor: bool | None = None) -> None:
        if (size is None) == (scale_factor is None):
            raise ArgumentError("Upsample", f"size={size} and scale_factor={scale_factor}", "one of the two")
        self.size, self.scale_factor, self.mode, self.align_corners = size, scale_factor, mode, align_corners
        self.recompute_scale_factor = recompute_scale_factor
        for factor in scale_factor if isinstance(scale_factor, (tuple, list)) else (scale_factor,):
            if factor is not None:
                number("Upsample", "scale_factor", factor, 0, zero=False)

    def extra_repr(self) -> str:
        if self.scale_factor is None:
            return arguments(size=self.size, mode=self.mode)
        factors = self.scale_factor
        return arguments(scale_factor=tuple(map(float, factors)) if isinstance(factors, Sequence) else float(factors),
                         mode=self.mode)

    def __call__(self, x: Tensor) -> Tensor:
        check_tensors("Upsample", [x])
        size = self.size if self.size is None else integers("Upsample", "size", self.size, max(x.ndim - 2, 1))
        return x.interpolate(size, self.mode, self.align_corners, scale_factor=self.scale_factor,
                             recompute_scale_factor=self.recompute_scale_factor)


class Dropout(Layer):
    """``x.dropout(p)`` as a layer. ``inplace`` is accepted and ignored: the result is a new tensor."""

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        self.p = number(type(self).__name__, "p", p, 0, 1)
        self.inplace = flag(type(self).__name__, "inplace", inplace)

    def extra_repr(self) -> str:
        return arguments(p=self.p, inplace=self.inplace)

    def __call__(self, x: Tensor) -> Tensor:
        check_tensors("Dropout", [x])
        return x.dropout(self.p)


class Dropout1d(Dropout):
    """Channel dropout: zeroes each channel of ``[N, C, …]`` with probability ``p``; also ``Dropout2d``, ``Dropout3d``.

    >>> from tinsmith import nn
    >>> with Tensor.train():
    ...     kept = nn.Dropout2d(0.5)(Tensor.ones(4, 8, 3, 3)).sum((2, 3))
    >>> sorted(set(kept.flatten().tolist()))
    [0.0, 18.0]
    """

    def __call__(self, x: Tensor) -> Tensor:
        check_tensors("Dropout1d", [x])
        if x.ndim < 3:
            raise ShapeError("Dropout1d", f"input {x.shape} has no axes behind its channels", "an input [N, C, …]")
        return x * Tensor.ones(*x.shape[:2], *[1] * (x.ndim - 2), dtype=x.dtype, device=x.device).dropout(self.p)


Dropout2d = Dropout3d = Dropout1d


class AlphaDropout(Dropout):
    """Dropout for SELU networks: dropped elements take SELU's lower limit; mean 0 and variance 1 are preserved.

    >>> from tinsmith import nn
    >>> nn.AlphaDropout(0.5)(Tensor([1.])).tolist()
    [1.0]
    """

    def __call__(self, x: Tensor) -> Tensor:
        check_tensors("AlphaDropout", [x])
        if not Tensor.training or self.p in (0, 1):
            return x.dropout(self.p)
        limit = -1.7580993408473766  # of SELU at minus infinity
        kept = Tensor.ones(*x.shape, device=x.device).dropout(self.p) != 0
        scale = ((1 - self.p) * (1 + self.p * limit**2)) ** -0.5
        out: Tensor = kept.where(x, limit) * scale - limit * scale * self.p
        return out
