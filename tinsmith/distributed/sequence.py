"""Sequence parallelism: layers between tensor-parallel ones compute parts of the sequence (Korthikanti et al. 2022).

Norms, dropout and residual connections, which tensor parallelism computes alike in all processes, are divided along the
sequence. A linear layer divided by outputs gathers the parts of its input, one divided by inputs adds and scatters its
result: together they move as much data as the all-reduce that they replace.
"""
from __future__ import annotations

from typing import Any

from tinsmith.core.errors import ArgumentError
from tinsmith.distributed.collectives import gathered_along, rows_along, scattered
from tinsmith.distributed.data_parallel import part, part_size
from tinsmith.distributed.world import ProcessGroup, group_of
from tinsmith.tensor.arguments import integer
from tinsmith.tensor.autograd.function import Function
from tinsmith.tensor.tensor import Tensor


def split_sequence(x: Tensor, dim: int = 1, axis: str = "model") -> Tensor:
    """Return this process's part of a value that all processes along ``axis`` have alike, as embeddings.

    >>> from tinsmith.distributed.world import mesh
    >>> _ = mesh(model=1)
    >>> split_sequence(Tensor.ones(2, 6, 4)).shape
    (2, 6, 4)

    Args:
        dim: the axis of ``x`` that is divided.
        axis: of the mesh.

    Raises:
        ShapeError: if the processes cannot have equal parts.
    """
    group, dim = _checked("dist.split_sequence", x, dim, axis)
    if group.size == 1:
        return x
    part_size(x.shape, dim, group.size, "dist.split_sequence")
    found: Tensor = _Split.apply(x, dim, group)
    return found


def gather_sequence(x: Tensor, dim: int = 1, axis: str = "model") -> Tensor:
    """Return the whole of a value of which each process along ``axis`` has a part; all then use it alike.

    >>> from tinsmith.distributed.world import mesh
    >>> _ = mesh(model=1)
    >>> gather_sequence(split_sequence(Tensor.ones(2, 6, 4))).shape
    (2, 6, 4)

    Args:
        dim: the axis of ``x`` that is divided.
        axis: of the mesh.
    """
    group, dim = _checked("dist.gather_sequence", x, dim, axis)
    return x if group.size == 1 else _Joined.apply(x, dim, group).realize()


def _checked(op: str, x: Tensor, dim: int, axis: str) -> tuple[ProcessGroup, int]:
    if x.ndim == 0:
        raise ArgumentError(op, "a tensor without axes", "activations [batch, sequence, …]")
    return group_of(op, axis), integer(op, "dim", dim, least=-x.ndim, most=x.ndim - 1) % x.ndim


class _Split(Function):
    """The own part of a value that all have: the parts of its gradient are gathered."""

    def forward(self, x: Tensor, dim: int, group: ProcessGroup) -> Tensor:
        self.dim, self.group = dim, group
        return part(x, group.rank, group.size, dim, "dist.split_sequence")

    def backward(self, gradient: Tensor) -> Any:
        return gathered_along(gradient, self.dim, self.group), None, None


class _Joined(Function):
    """The parts together, which all use alike, so that all have the whole gradient."""

    def forward(self, x: Tensor, dim: int, group: ProcessGroup) -> Tensor:
        self.dim, self.group = dim, group
        return gathered_along(x, dim, group)

    def backward(self, gradient: Tensor) -> Any:
        return part(gradient, self.group.rank, self.group.size, self.dim, "dist.gather_sequence"), None, None


class Gathered(Function):
    """The parts together, which processes use for different parts of a result: the gradients are added, and parted."""

    def forward(self, x: Tensor, dim: int, group: ProcessGroup) -> Tensor:
        self.dim, self.group = dim, group
        return gathered_along(x, dim, group)

    def backward(self, gradient: Tensor) -> Any:
        return scattered(rows_along(gradient, self.dim, self.group), "sum", self.group), None, None


class Scattered(Function):
    """The own part of the sum of the processes' parts of a result."""

    def forward(self, x: Tensor, dim: int, group: ProcessGroup) -> Tensor:
        self.dim, self.group = dim, group
        return scattered(rows_along(x, dim, group), "sum", group)

    def backward(self, gradient: Tensor) -> Any:
        return gathered_along(gradient, self.dim, self.group), None, None
