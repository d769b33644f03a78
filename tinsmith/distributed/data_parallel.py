"""Data parallelism, and ZeRO 1 and 2.

In data parallelism each process computes the gradients of its part of a batch, and all apply the same step. With ZeRO
each process keeps only a part of the optimizer's state (1), and of the reduced gradients (2).
"""
from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from tinsmith.core.dtypes import DType
from tinsmith.core.errors import ArgumentError, GradientError, ShapeError
from tinsmith.distributed.collectives import (
    OPS,
    all_reduce,
    broadcast,
    by_kernel,
    gathered,
    reduced_rows,
    rows_for_kernel,
    scattered,
)
from tinsmith.distributed.transport import background, nccl
from tinsmith.distributed.world import Mesh, ProcessGroup, divided, group_of, stage_of, world
from tinsmith.nn.optim import Optimizer
from tinsmith.nn.state import get_state_dict
from tinsmith.tensor.arguments import integer
from tinsmith.tensor.create import random
from tinsmith.tensor.host_data import host_value, on_host
from tinsmith.tensor.realize import realize_tensors
from tinsmith.tensor.tensor import Tensor

BUCKET_BYTES: Final = 32 << 20


def all_reduce_gradients(optimizer: Optimizer, op: str = "mean", axis: str | None = None,
                         bucket_bytes: int = BUCKET_BYTES, overlap: bool | None = None) -> None:
    """Replace the gradients of an optimizer's parameters by their mean (or sum, by ``op``) over all processes. Call it
    between ``backward`` and ``step``.

    Gradients are concatenated into buckets, each of which is reduced by one call. The losses of the gradients are
    computed with them, in one program. In one process nothing is done.

    >>> from tinsmith import nn
    >>> w = Tensor([1.0, 2.0]); optimizer = nn.optim.SGD([w], lr=0.1)
    >>> _ = (w * w).sum().backward(); all_reduce_gradients(optimizer); w.grad.tolist()
    [2.0, 4.0]

    Args:
        op: "mean" where the loss is the mean over a part of the batch, "sum" where it is a sum.
        axis: an axis of the mesh; all processes unless given. Parameters that are divided along it are left out: their
            gradients are reduced as they are computed.
        bucket_bytes: size at which a bucket is full.
        overlap: reduce a bucket beside kernels (in a thread, or in a second stream of a GPU), as soon as it is
            computed, while the backward pass goes on; else when all are computed. The bits are the same. Unless given:
            on GPUs with NCCL, and if the processes are on several hosts, since on one host copies need the cores that
            kernels run on. Gradients that MPI takes from a GPU are reduced at the end.
    """
    group = group_of("dist.all_reduce_gradients", axis)
    if op not in OPS[:2]:
        raise ArgumentError("dist.all_reduce_gradients", f"op={op!r}", 'op="mean" or "sum"')
    limit = integer("dist.all_reduce_gradients", "bucket_bytes", bucket_bytes, least=1)
    if group.size == 1:
        return
    owners = [p for part in optimizer.parts() for p in part.params if p.grad is not None and group not in divided(p)]
    if axis is None and (parts := next((p for p in owners if divided(p)), None)) is not None:
        raise ArgumentError("dist.all_reduce_gradients", f"a parameter of shape {parts.shape} is a part, divided over "
                            f"{divided(parts)[0]}: others have other parts", 'axis="data", along which they are alike')
    if axis is None and any(stage_of(p) is not None for p in owners):
        raise ArgumentError("dist.all_reduce_gradients", "parameters of a dist.pipeline: other stages have others",
                            'axis="data", along which they are alike')
    buckets = [(members, flat([p.grad for p in members if p.grad is not None])) for members in _buckets(owners, limit)]
    statistics = [b for part in optimizer.parts() for b in part.buffers]
    lines = [values for _, values in buckets]
    on_gpu = all(nccl.is_used(values, group) for values in lines)
    wanted = on_gpu or len(set(world().hosts)) > 1 if overlap is None else overlap
    if wanted and on_gpu and not any(by_kernel(values, group) for values in lines):
        found = reduced_beside(lines, op, group, [*Tensor.take_losses(), *statistics])
    elif wanted and all(on_host(values) for values in lines):
        found = reduced_meanwhile(lines, op, group)
        realize_tensors([*found, *Tensor.take_losses(), *statistics])
    else:
        realize_tensors([*Tensor.take_losses(), *statistics, *lines])
        with Tensor.no_grad():
            found = [all_reduce(values, op, axis) for values in lines]
    for (members, _), values in zip(buckets, found):
        for p, g in zip(members, unflat(values, members)):
            p.grad = g.detach()


def reduced_beside(lines: Sequence[Tensor], op: str, group: ProcessGroup, others: Sequence[Tensor]) -> list[Tensor]:
    """Return the reductions of all processes' ``lines`` by NCCL beside kernels, realized with ``others``.

    Each is the memory that NCCL writes to, and complete only after the command that waits for it. Nothing reads it in
    this program; later programs come after all its commands.
    """
    found: list[Tensor] = []
    for n, x in enumerate(lines):
        found.append(host_value(nccl.begin("all_reduce", group, n, (op,)), tuple(x.shape), x, after=found[-1:]))
    ends: list[Tensor] = []
    for n, (x, total) in enumerate(zip(lines, found)):  # reads both: their memory is needed until here
        ends.append(host_value(nccl.end(group, n), (1,), x, after=[total, found[-1], *ends[-1:]]))
    realize_tensors([*found, *ends, *others])
    return found


def reduced_meanwhile(lines: Sequence[Tensor], op: str, group: ProcessGroup) -> list[Tensor]:
    """Return the lazy reductions of all processes' ``lines``: each is started when it is computed, and waited for when
    all are."""
    sent = [rows_for_kernel(x, group) if by_kernel(x, group) else x for x in lines]
    token: list[Tensor] = []
    starts = []
    for n, (x, values) in enumerate(zip(lines, sent)):
        kind = ("all_to_all",) if by_kernel(x, group) else ("all_reduce", "sum")
        token = [background.start(kind[0], group, n, values, *kind[1:], after=token)]
        starts += token
    found = []
    for n, (x, values) in enumerate(zip(lines, sent)):
        came = background.finish(group, n, values, after=[starts[n], *token])
        token = [came]
        total = reduced_rows(came, x, group) if by_kernel(x, group) else came
        found.append(total if op == "sum" else total.mul(1.0 / group.size).cast(x.dtype))
    return found


def flat(tensors: Sequence[Tensor]) -> Tensor:
    """Return the elements of tensors of one dtype, one behind the other."""
    lines = [t.detach().reshape(t.numel()) for t in tensors]
    return lines[0].contiguous() if len(lines) == 1 else lines[0].cat(*lines[1:])


def unflat(values: Tensor, like: Sequence[Tensor]) -> Iterator[Tensor]:
    """Yield the tensors of which ``values`` has the elements, in the shapes of ``like``."""
    begin = 0
    for t in like:
        yield values[begin : begin + t.numel()].reshape(t.shape)
        begin += t.numel()


def _buckets(parameters: Sequence[Tensor], limit: int) -> list[list[Tensor]]:
    """Return the parameters in buckets of one dtype; the last ones, whose gradients are ready first, come first."""
    found: list[list[Tensor]] = []
    filling: dict[tuple[DType, Any], tuple[list[Tensor], int]] = {}
    for p in reversed(parameters):
        key, size = (p.dtype, p.device), p.numel() * p.dtype.itemsize
        bucket, held = filling.get(key, ([], 0))
        if not bucket or held + size > limit:
            bucket, held = [], 0
            found.append(bucket)
        bucket.append(p)
        filling[key] = bucket, held + size
    return found


@contextlib.contextmanager
def rows(axis: str | None = None) -> Iterator[None]:
    """In this block, or decorated function, the first axis of values is this process's part of a batch: dropout draws
    this part of the mask of the whole batch, so the numbers do not depend on the number of processes.

    >>> with rows(), Tensor.train():
    ...     Tensor.ones(4, 2).dropout(0.5).shape
    (4, 2)

    Args:
        axis: an axis of the mesh, along which processes have different rows; all processes unless given.
    """
    group = group_of("dist.rows", axis)
    random.rows.append((group.rank, group.size))
    try:
        yield
    finally:
        random.rows.pop()


def replicate(model: Any, source: int = 0) -> Any:
    """Copy the parameters and buffers of one process to all processes; return the model.

    This is needed only if the processes did not create them from the same seed, or if one process alone loaded them.

    >>> from tinsmith import nn
    >>> replicate(nn.Linear(2, 3)).weight.shape
    (3, 2)

    Args:
        model: a layer, an optimizer, or anything else of which ``nn.state.get_state_dict`` gives tensors.
        source: rank of the process.
    """
    if world().group.size > 1:
        with Tensor.no_grad():
            for t in get_state_dict(model).values():
                t.assign(broadcast(t.detach(), source)).realize()
    return model


def shard_batch(x: Tensor, mesh: Mesh | None = None, axis: str | None = None, dim: int = 0) -> Tensor:
    """Return this process's part of a batch that all processes have; over devices of one process, the batch in parts.

    >>> shard_batch(Tensor([[1.0], [2.0]])).shape
    (2, 1)

    Args:
        mesh: the one made last unless given.
        axis: of the mesh; all processes unless given.
        dim: the axis of ``x`` that is divided.

    Raises:
        ShapeError: if it cannot be divided.
    """
    if mesh is not None and mesh.devices:
        return x.shard(mesh.devices, axis=dim if axis is None or mesh.size(axis) > 1 else None)
    group = mesh.group(axis) if mesh is not None and axis is not None else group_of("dist.shard_batch", axis)
    return part(x, group.rank, group.size, dim, "dist.shard_batch")


def part(x: Tensor, number: int, count: int, dim: int, op: str) -> Tensor:
    """Return part ``number`` of ``count`` along an axis.

    Raises:
        ShapeError: if its size is no multiple of ``count``.
    """
    each = part_size(x.shape, dim, count, op)
    return x.shrink(tuple((number * each, (number + 1) * each) if n == dim % x.ndim else (0, s)
                          for n, s in enumerate(x.shape)))


def part_size(shape: tuple[Any, ...], dim: int, count: int, op: str) -> int:
    """Return the size of one of ``count`` equal parts along an axis.

    Raises:
        ShapeError: if its size is no multiple of ``count``.
    """
    each, rest = divmod(shape[dim], count)
    if rest:
        raise ShapeError(op, f"axis {dim} of shape {shape} in {count} parts", f"a multiple of {count} there")
    return int(each)


class ZeroOptimizer:
    """An optimizer whose state is divided among processes; ``step`` reduces the gradients itself.

    The parameters of one dtype are one line of elements, of which each process steps its part, so the update of an
    element must depend on no other element: SGD, Adam and AdamW will do, LAMB and Muon not.

    >>> from tinsmith import nn
    >>> w = Tensor([1.0, 2.0])
    >>> optimizer = ZeroOptimizer([w], lambda parts: nn.optim.SGD(parts, lr=0.25))
    >>> _ = (w * w).sum().backward(); optimizer.step(); w.tolist()
    [0.5, 1.0]

    Args:
        params: whole parameters, the same in all processes.
        make: makes the optimizer of a list of tensors.
        axis: an axis of the mesh; all processes unless given.

    Attributes:
        inner: the optimizer of this process's parts.
    """

    def __init__(self, params: Iterable[Tensor], make: Callable[[list[Tensor]], Optimizer], axis: str | None = None
                 ) -> None:
        self.group = group_of("dist.ZeroOptimizer", axis)
        given = [p for p in {id(p): p for p in params}.values() if p.requires_grad is not False and p.dtype.is_float]
        self.lines = [[p for p in given if p.dtype is d] for d in dict.fromkeys(p.dtype for p in given)]
        for p in given:
            p.requires_grad = True
        self.own = [self._rows(flat(line))[self.group.rank].clone().realize() for line in self.lines]
        self.inner = make(self.own)
        self.params = given

    def _rows(self, values: Tensor) -> Tensor:
        """Return a line of elements as a row per process."""
        each = -(-values.numel() // self.group.size)
        return values.pad((0, each * self.group.size - values.numel())).reshape(self.group.size, each)

    @property
    def lr(self) -> Tensor:
        """The learning rate, as of ``Optimizer``."""
        return self.inner.lr

    @lr.setter
    def lr(self, rate: Any) -> None:
        self.inner.lr = rate

    def zero_grad(self) -> None:
        """Clear the gradients of the parameters."""
        for p in self.params:
            p.grad = None
        Tensor.forget_gradients()

    def step(self) -> None:
        """Reduce the gradients to their mean, step this process's parts, and gather the parameters.

        Raises:
            GradientError: if a parameter has no gradient.
        """
        missing = [p for p in self.params if p.grad is None]
        if missing:
            raise GradientError("ZeroOptimizer.step",
                                f"{len(missing)} of {len(self.params)} parameters have no gradient",
                                "loss.backward() before step()")
        with Tensor.no_grad():
            rows = [self._rows(flat([p.grad for p in line if p.grad is not None])) for line in self.lines]
            realize_tensors([*Tensor.take_losses(), *rows])
            for own, values in zip(self.own, rows):
                own.grad = (scattered(values, "mean", self.group) if self.group.size > 1 else values[0]).realize()
            for p in self.params:
                p.grad = None
            self.inner.step()
            for line, own in zip(self.lines, self.own):
                every = (gathered(own, self.group) if self.group.size > 1 else own).reshape(-1).realize()
                for p, value in zip(line, unflat(every, line)):
                    p.assign(value)
            realize_tensors(self.params)
