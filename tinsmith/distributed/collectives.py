"""Collectives on tensors: each runs when it is called, in all processes of the group, and has a gradient.

Results are on the device of the argument. Values on a GPU are sent by NCCL where it is installed, else copied to the
host and back. 16-bit floats, which MPI does not know, are exchanged by MPI and summed in float32 by kernels.

In a function captured by ``TinyJit`` a collective is a command of its program. Gradients are computed with the program
that needs them, in the order of the graph, which is the same in processes that run the same program.
"""
from __future__ import annotations

from typing import Any

from tinsmith.core.dtypes import dtypes
from tinsmith.core.errors import ArgumentError, DTypeError, GradientError, ShapeError, shown
from tinsmith.distributed.transport import nccl
from tinsmith.distributed.transport.commands import value
from tinsmith.distributed.world import ProcessGroup, group_of
from tinsmith.tensor.arguments import integer
from tinsmith.tensor.autograd.function import Function
from tinsmith.tensor.base import TensorBase
from tinsmith.tensor.tensor import Tensor

OPS = ("sum", "mean", "max", "min", "prod")


def all_reduce(x: Tensor, op: str = "sum", axis: str | None = None) -> Tensor:
    """Return the reduction of all processes' ``x``, which have one shape; the same bits in all processes.

    The gradient is that of the sum of all processes' losses, as in ``torch.distributed.nn``.

    >>> all_reduce(Tensor([1.0, 2.0])).tolist()  # of one process
    [1.0, 2.0]

    Args:
        op: "sum", "mean", "max", "min" or "prod"; bools take "max" (or) and "min" (and).
        axis: an axis of the mesh: only processes along it take part; all unless given.

    Raises:
        ArgumentError: for another op, or an unknown axis.
        DTypeError: for the mean of integers, or the sum of bools.
    """
    group = _checked("dist.all_reduce", x, axis)
    _check_op("dist.all_reduce", x, op)
    return x if group.size == 1 else _AllReduce.apply(x, op, group).realize()


def all_gather(x: Tensor, dim: int = 0, axis: str | None = None) -> Tensor:
    """Return all processes' ``x``, which have one shape, concatenated along ``dim``, in the order of their ranks.

    >>> all_gather(Tensor([1.0, 2.0])).tolist()
    [1.0, 2.0]

    Args:
        axis: an axis of the mesh; all processes unless given.
    """
    group = _checked("dist.all_gather", x, axis)
    dim = _dim("dist.all_gather", x, dim)
    return x if group.size == 1 else _AllGather.apply(x, dim, group).realize()


def reduce_scatter(x: Tensor, op: str = "sum", dim: int = 0, axis: str | None = None) -> Tensor:
    """Return this process's part, along ``dim``, of the reduction of all processes' ``x``.

    >>> reduce_scatter(Tensor([1.0, 2.0])).tolist()
    [1.0, 2.0]

    Args:
        op: as in ``all_reduce``.
        axis: an axis of the mesh; all processes unless given.

    Raises:
        ShapeError: if ``dim`` cannot be divided among the processes.
    """
    group = _checked("dist.reduce_scatter", x, axis)
    _check_op("dist.reduce_scatter", x, op)
    dim = _dim("dist.reduce_scatter", x, dim)
    _check_parts("dist.reduce_scatter", x, dim, group)
    return x if group.size == 1 else _ReduceScatter.apply(x, op, dim, group).realize()


def all_to_all(x: Tensor, split_dim: int = 0, concat_dim: int = 0, axis: str | None = None) -> Tensor:
    """Send part k of ``x`` along ``split_dim`` to process k; return the received parts, concatenated along
    ``concat_dim``.

    >>> all_to_all(Tensor([1.0, 2.0])).tolist()
    [1.0, 2.0]

    Args:
        axis: an axis of the mesh; all processes unless given.

    Raises:
        ShapeError: if ``split_dim`` cannot be divided among the processes.
    """
    group = _checked("dist.all_to_all", x, axis)
    split, concat = _dim("dist.all_to_all", x, split_dim), _dim("dist.all_to_all", x, concat_dim)
    _check_parts("dist.all_to_all", x, split, group)
    return x if group.size == 1 else _AllToAll.apply(x, split, concat, group).realize()


def broadcast(x: Tensor, source: int = 0, axis: str | None = None) -> Tensor:
    """Return the ``x`` of process ``source``; the others give a tensor of its shape and dtype.

    >>> broadcast(Tensor([1.0, 2.0])).tolist()
    [1.0, 2.0]

    Args:
        source: number of a process in the group.
        axis: an axis of the mesh; all processes unless given.
    """
    group = _checked("dist.broadcast", x, axis)
    source = _peer("dist.broadcast", source, group)
    return x if group.size == 1 else _Broadcast.apply(x, source, group).realize()


def send(x: Tensor, target: int, tag: int = 0, axis: str | None = None) -> None:
    """Send ``x`` to a process, which must ``recv`` it.

    Args:
        target: number of a process in the group, another one.
        tag: distinguishes messages between the same two processes; those of NCCL have none, so that tensors on a GPU
            with a tag are sent by MPI.

    Raises:
        ArgumentError: for a process that is not there, or this one.
    """
    group = _checked("dist.send", x, axis)
    target = _other("dist.send", target, group)
    value("send", group, (1,), x.detach(), target, integer("dist.send", "tag", tag, least=0)).realize()


def recv(like: Tensor, source: int, tag: int = 0, axis: str | None = None) -> Tensor:
    """Return the tensor sent by a process, with the shape, dtype and device of ``like``; it has no gradient.

    Args:
        source: number of a process in the group, another one.
        tag: the tag of the message.

    Raises:
        ArgumentError: for a process that is not there, or this one.
    """
    group = _checked("dist.recv", like, axis)
    source = _other("dist.recv", source, group)
    token = Tensor.zeros(1, dtype=like.dtype, device=like.device).contiguous()
    tag = integer("dist.recv", "tag", tag, least=0)
    found = value("receive", group, tuple(like.shape), token, source, tag)
    found.requires_grad = False
    return found.realize()


def barrier(axis: str | None = None) -> None:
    """Wait until all processes of the group are here.

    >>> barrier()
    """
    group = group_of("dist.barrier", axis)
    if group.size > 1:
        value("barrier", group, (1,), Tensor.zeros(1, dtype=dtypes.uint8, device="CPU").contiguous()).realize()


# *** values, without checks and gradients ***


def reduced(x: Tensor, op: str, group: ProcessGroup) -> Tensor:
    """Return the lazy reduction of all processes' ``x``."""
    if op == "mean" and not nccl.is_used(x, group):
        return reduced(x, "sum", group).mul(1.0 / group.size).cast(x.dtype)
    if not by_kernel(x, group):
        return value("all_reduce", group, tuple(x.shape), x, op)
    rows = rows_for_kernel(x, group)
    return reduced_rows(value("all_to_all", group, tuple(rows.shape), rows), x, group, op)


def rows_for_kernel(x: Tensor, group: ProcessGroup) -> Tensor:
    """Return the elements of ``x`` in a row for each process, which reduces it."""
    size = x.numel()
    each = -(-size // group.size)
    return x.reshape(size).pad((0, each * group.size - size)).reshape(group.size, each)


def reduced_rows(every: Tensor, like: Tensor, group: ProcessGroup, op: str = "sum") -> Tensor:
    """Return the reduction of all processes' values, of which ``every`` has this process's rows; lazy."""
    return gathered(_own_row(every, op), group).reshape(-1)[: like.numel()].reshape(like.shape)


def gathered(x: Tensor, group: ProcessGroup) -> Tensor:
    """Return all processes' ``x``, stacked along a new first axis; lazy."""
    return value("all_gather", group, (group.size, *x.shape), x)


def scattered(rows: Tensor, op: str, group: ProcessGroup) -> Tensor:
    """Return this process's row of the reduction of all processes' ``rows``; lazy."""
    if op == "mean" and not nccl.is_used(rows, group):
        return scattered(rows, "sum", group).mul(1.0 / group.size).cast(rows.dtype)
    if not by_kernel(rows, group):
        return value("reduce_scatter", group, tuple(rows.shape[1:]), rows, op)
    return _own_row(value("all_to_all", group, tuple(rows.shape), rows), op)


def _own_row(every: Tensor, op: str) -> Tensor:
    """Return the reduction of the rows that the processes have sent; floats in float32."""
    found: Tensor = getattr(every.cast(dtypes.float32) if every.dtype.is_float else every, op)(0)
    return found.cast(every.dtype)


def by_kernel(x: Tensor, group: ProcessGroup) -> bool:
    """Return True for dtypes that MPI or NCCL cannot reduce: each process gets its row of all others, and reduces
    them."""
    if nccl.is_used(x, group):
        return not nccl.reduces(x)
    return x.dtype.is_float and x.dtype.itemsize < 4


def gathered_along(x: Tensor, dim: int, group: ProcessGroup) -> Tensor:
    """Return all processes' ``x`` concatenated along ``dim``; lazy."""
    rows = gathered(x, group)
    shape = (*x.shape[:dim], group.size * x.shape[dim], *x.shape[dim + 1 :])
    return (rows if dim == 0 else rows.permute(*range(1, dim + 1), 0, *range(dim + 1, x.ndim + 1))).reshape(shape)


def rows_along(x: Tensor, dim: int, group: ProcessGroup) -> Tensor:
    """Return the parts of ``x`` along ``dim``, stacked along a new first axis."""
    parts = x.reshape(*x.shape[:dim], group.size, x.shape[dim] // group.size, *x.shape[dim + 1 :])
    return parts.permute(dim, *range(dim), *range(dim + 1, x.ndim + 1))


def exchanged(x: Tensor, split: int, concat: int, group: ProcessGroup) -> Tensor:
    """Return the lazy result of ``all_to_all``."""
    rows = rows_along(x, split, group)
    part = rows.shape[1:]
    came = value("all_to_all", group, tuple(rows.shape), rows)
    shape = (*part[:concat], group.size * part[concat], *part[concat + 1 :])
    return came.permute(*range(1, concat + 1), 0, *range(concat + 1, x.ndim + 1)).reshape(shape)


# *** gradients ***


class _AllReduce(Function):
    def forward(self, x: Tensor, op: str, group: ProcessGroup) -> Tensor:
        self.op, self.group = op, group
        found = reduced(x, op, group)
        if op in ("max", "min"):
            self.save_for_backward(x, found)
        return found

    def backward(self, gradient: Tensor) -> Any:
        if self.op == "prod":
            raise GradientError("dist.all_reduce", "the product over processes has no gradient",
                                "all_reduce(x.log()).exp() for positive numbers")
        if self.op not in ("max", "min"):
            return reduced(gradient, self.op, self.group), None, None
        x, found = self.saved_tensors
        here = x.eq(found).cast(gradient.dtype)  # where several processes have it, each takes its share
        shared = reduced(here, "sum", self.group)
        return reduced(gradient, "sum", self.group).mul(here).div(shared), None, None


class _AllGather(Function):
    def forward(self, x: Tensor, dim: int, group: ProcessGroup) -> Tensor:
        self.dim, self.group = dim, group
        return gathered_along(x, dim, group)

    def backward(self, gradient: Tensor) -> Any:
        return scattered(rows_along(gradient, self.dim, self.group), "sum", self.group), None, None


class _ReduceScatter(Function):
    def forward(self, x: Tensor, op: str, dim: int, group: ProcessGroup) -> Tensor:
        self.op, self.dim, self.group = op, dim, group
        return scattered(rows_along(x, dim, group), op, group)

    def backward(self, gradient: Tensor) -> Any:
        if self.op not in ("sum", "mean"):
            raise GradientError("dist.reduce_scatter", f"op={self.op!r} has no gradient", 'op="sum" or "mean"')
        scale = 1.0 / self.group.size if self.op == "mean" else 1.0
        return gathered_along(gradient, self.dim, self.group).mul(scale), None, None, None


class _AllToAll(Function):
    def forward(self, x: Tensor, split: int, concat: int, group: ProcessGroup) -> Tensor:
        self.split, self.concat, self.group = split, concat, group
        return exchanged(x, split, concat, group)

    def backward(self, gradient: Tensor) -> Any:
        return exchanged(gradient, self.concat, self.split, self.group), None, None, None


class _Broadcast(Function):
    def forward(self, x: Tensor, source: int, group: ProcessGroup) -> Tensor:
        self.source, self.group = source, group
        return value("broadcast", group, tuple(x.shape), x, source)

    def backward(self, gradient: Tensor) -> Any:
        total = reduced(gradient, "sum", self.group)
        return total if self.group.rank == self.source else total.mul(0.0), None, None


# *** checks ***


def _checked(op: str, x: Any, axis: str | None) -> ProcessGroup:
    if not isinstance(x, TensorBase):
        raise DTypeError(op, f"takes a tensor, got {shown(x)}", "Tensor(x)")
    if isinstance(x.device, tuple):
        raise ArgumentError(op, f"a tensor on the devices {x.device} of this process", 'x.to("CPU")')
    if not all(isinstance(s, int) and s > 0 for s in x.shape):
        raise ShapeError(op, f"shape {x.shape}", "sizes that are known and not 0")
    return group_of(op, axis)


def _check_op(name: str, x: Tensor, op: str) -> None:
    if op not in OPS:
        raise ArgumentError(name, f"op={op!r} is no reduction", f"one of {', '.join(OPS)}")
    if op == "mean" and not x.dtype.is_float:
        raise DTypeError(name, f"the mean of {x.dtype!r}", 'x.float(), or op="sum"')
    if x.dtype.is_bool and op not in ("max", "min"):
        raise DTypeError(name, f"op={op!r} of {x.dtype!r}", 'op="max" (or), op="min" (and), or x.int()')


def _check_parts(name: str, x: Tensor, dim: int, group: ProcessGroup) -> None:
    if x.shape[dim] % group.size:
        raise ShapeError(name, f"axis {dim} of shape {x.shape} among {group.size} processes",
                         f"a multiple of {group.size} there")


def _dim(name: str, x: Tensor, dim: int) -> int:
    if x.ndim == 0:
        raise ShapeError(name, "a tensor without axes", "x.reshape(1)")
    return integer(name, "dim", dim, least=-x.ndim, most=x.ndim - 1) % x.ndim


def _peer(name: str, number: int, group: ProcessGroup) -> int:
    return integer(name, "source", number, least=0, most=group.size - 1)


def _other(name: str, number: int, group: ProcessGroup) -> int:
    found = _peer(name, number, group)
    if found == group.rank:
        raise ArgumentError(name, f"rank {number} is this process", "another one of the group")
    return found
