"""Expert parallelism: a mixture of experts, of which each process has a part, with tokens sent to them and back.

GShard (Lepikhin et al. 2020), Switch Transformer (Fedus et al. 2021): each token goes to the ``k`` experts with the
largest gates. All shapes are fixed: an expert takes ``capacity`` tokens of each process, and further ones are dropped.
"""
from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tinsmith.core.dtypes import dtypes
from tinsmith.core.errors import ArgumentError, ShapeError
from tinsmith.distributed.collectives import exchanged
from tinsmith.distributed.world import ProcessGroup
from tinsmith.tensor.arguments import integer
from tinsmith.tensor.autograd.function import Function
from tinsmith.tensor.tensor import Tensor


class Experts:
    """Two-layer perceptrons, of which each token uses ``k``: ``sum of gate * down(activation(up(x)))``.

    ``dist.shard(model, mesh, {"*.up": ("data",), "*.down": ("data",)}, gathered=())`` divides them among processes,
    each of which gives its own tokens. The gradients of experts are then those of the mean of all processes' losses,
    and ``all_reduce_gradients(optimizer, axis="data")`` leaves them out.

    >>> layer = Experts(4, 8, 16, k=2)
    >>> x, gates = Tensor.ones(2, 3, 8), Tensor.rand(2, 3, 4).softmax(-1)
    >>> layer(x, gates).shape
    (2, 3, 8)

    Args:
        count: number of experts.
        width: size of tokens.
        hidden: size of the hidden layer.
        k: experts for each token.
        capacity: the most tokens that an expert takes of a process, as a multiple of the mean, ``k * tokens / count``;
            None: it takes all, in ``count * tokens`` rows of memory. Earlier tokens come first, and a token's first
            choice before other tokens' second one.
        normalize: divide the gates of the chosen experts by their sum; with ``k=1`` they are 1 then, and the router
            gets no gradient.

    Attributes:
        up, down: weights ``[experts, width, hidden]`` and ``[experts, hidden, width]``.
    """

    def __init__(self, count: int, width: int, hidden: int, k: int = 2, capacity: float | None = None,
                 normalize: bool = True, activation: Callable[[Tensor], Tensor] = Tensor.gelu) -> None:
        self.count = integer("dist.Experts", "count", count, least=1)
        self.k = integer("dist.Experts", "k", k, least=1, most=count)
        if capacity is not None and not capacity > 0:
            raise ArgumentError("dist.Experts", f"capacity={capacity}", "a positive number, or None for no limit")
        self.capacity, self.normalize, self.activation = capacity, normalize, activation
        self.up = Tensor.uniform(count, width, hidden, low=-(width**-0.5), high=width**-0.5)
        self.down = Tensor.uniform(count, hidden, width, low=-(hidden**-0.5), high=hidden**-0.5)

    def __call__(self, x: Tensor, gates: Tensor) -> Tensor:
        """Return the weighted sums of the chosen experts' results.

        Args:
            x: tokens ``[…, width]``.
            gates: ``[…, count]``, of each token for each expert, as the softmax of a ``Linear``.

        Raises:
            ShapeError: for gates of another shape.
        """
        return self.run(x, gates, None)

    def run(self, x: Tensor, gates: Tensor, group: ProcessGroup | None) -> Tensor:
        """Return the same where the experts are divided among the processes of ``group``."""
        if tuple(gates.shape) != (*x.shape[:-1], self.count):
            raise ShapeError("Experts", f"gates of shape {gates.shape} for x of {x.shape} and {self.count} experts",
                             f"gates of shape {(*x.shape[:-1], self.count)}")
        tokens, width = math.prod(x.shape[:-1]), x.shape[-1]
        room = tokens if self.capacity is None else min(math.ceil(self.capacity * self.k * tokens / self.count), tokens)
        weights, chosen = gates.reshape(tokens, self.count).topk(self.k, dim=-1)
        if self.normalize:
            weights = weights / weights.sum(-1, keepdim=True)
        places = self._places(chosen, room)
        none = self.count * room  # the place of choices that are dropped
        owners = Tensor.full((none + 1,), tokens, dtype=dtypes.int32, device=x.device).scatter(
            0, places.flatten(), Tensor.arange(tokens, device=x.device).cast(dtypes.int32).repeat(self.k))
        rows = _with_zeros(x.reshape(tokens, width))[owners[:none]].reshape(self.count, room, width)
        found = _with_zeros(self._computed(rows, group).reshape(none, width))[places]  # [k, tokens, width]
        return (found * weights.transpose(0, 1).unsqueeze(-1).cast(x.dtype)).sum(0).reshape(x.shape)

    def _places(self, chosen: Tensor, room: int) -> Tensor:
        """Return the place of each choice, ``[k, tokens]``, in rows of ``room`` for each expert; the number of all
        places for choices that find no room."""
        expert = chosen.transpose(0, 1).detach().cast(dtypes.int32)
        one = expert.reshape(-1, 1).eq(Tensor.arange(self.count, device=chosen.device)).cast(dtypes.int32)
        before = (one.cumsum(0) - one).cast(dtypes.int32).mul(one).sum(-1).reshape(expert.shape).cast(dtypes.int32)
        return (before < room).where(expert * room + before, self.count * room).detach()

    def _computed(self, rows: Tensor, group: ProcessGroup | None) -> Tensor:
        """Return the results of each expert for its rows, ``[count, room, width]``."""
        if group is None:
            return self._perceptron(rows)
        count, room, width = rows.shape
        parts = rows.reshape(group.size, count // group.size, room, width)
        there = _Exchanged.apply(parts, group, group.size).realize()
        mine = there.transpose(0, 1).reshape(count // group.size, group.size * room, width)
        found = self._perceptron(mine).reshape(count // group.size, group.size, room, width).transpose(0, 1)
        return _Exchanged.apply(found, group, 1 / group.size).realize().reshape(count, room, width)

    def _perceptron(self, rows: Tensor) -> Tensor:
        return self.activation(rows @ self.up) @ self.down


class _Exchanged(Function):
    """Row k for process k, and the rows from all. The gradient is multiplied by ``factor``: a process's experts get the
    sum of the gradients of all processes' losses, of which a step takes the mean."""

    def forward(self, x: Tensor, group: ProcessGroup, factor: float) -> Tensor:
        self.group, self.factor = group, factor
        return exchanged(x, 0, 0, group)

    def backward(self, gradient: Tensor) -> Any:
        return exchanged(gradient, 0, 0, self.group) * self.factor, None, None


def _with_zeros(rows: Tensor) -> Tensor:
    """Return rows with a row of zeros behind them."""
    return rows.pad(((0, 1), (0, 0)))
