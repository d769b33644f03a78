"""Collectives as commands of programs, over MPI or NCCL.

A collective is a node of a graph, which a program runs on the memory of its buffers, also in a capture. The name of a
command gives its operation and group, and is the same in all processes, so that they make the same programs and share
cached ones.

**MPI.** Collectives run on arrays in the memory of tensors; nothing is pickled. Each function takes a group, the array
for the result and the array of this process. Beyond ``LIMIT`` elements, MPI's counts (32 bits before MPI 4) would
overflow: the data are sent in parts, through a copy where a part of the result is not contiguous.

Tensors on a GPU go through NCCL where it is installed (``nccl.py``).
"""
from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np

from tinsmith.core.errors import ArgumentError, CommunicationError
from tinsmith.distributed import watch
from tinsmith.distributed.transport import nccl, order
from tinsmith.distributed.transport.messages import OUTBOX
from tinsmith.distributed.world import ProcessGroup, world
from tinsmith.ir.ops.scans import WRITERS
from tinsmith.tensor.host_data import host_value, on_host
from tinsmith.tensor.tensor import Tensor

NOT_IN: Final[list[str]] = []  # the place, where collectives cannot run at once

Array = np.ndarray[Any, Any]

LIMIT = 1 << 30  # elements of one call of MPI, on all processes together

_OPS = {"sum": "SUM", "max": "MAX", "min": "MIN", "prod": "PROD"}


def all_reduce(group: ProcessGroup, out: Array, x: Array, op: str, comm: Any = None) -> None:
    """Write the reduction of all processes' ``x`` to ``out``, by the group's communicator unless another is given."""
    to, own, kind = _numbers(out), _numbers(x), getattr(world().mpi, _OPS[op])
    for begin, end in _parts(len(own), LIMIT):
        (comm or group.comm).Allreduce(own[begin:end], to[begin:end], kind)


def reduce_scatter(group: ProcessGroup, out: Array, x: Array, op: str) -> None:
    """Write row ``group.rank`` of the reduction of all processes' ``x`` (a row per process) to ``out``."""
    to, own, kind = _numbers(out), _numbers(x).reshape(group.size, -1), getattr(world().mpi, _OPS[op])
    for begin, end in _parts(len(to), LIMIT // group.size):
        part = own if end - begin == len(to) else np.ascontiguousarray(own[:, begin:end])
        group.comm.Reduce_scatter_block(part, to[begin:end], kind)


def all_gather(group: ProcessGroup, out: Array, x: Array) -> None:
    """Write all processes' ``x`` to the rows of ``out``."""
    to, own = _words(out).reshape(group.size, -1), _words(x)
    for begin, end in _parts(len(own), LIMIT // group.size):
        if end - begin == len(own):
            group.comm.Allgather(own, to)
        else:
            part = np.empty((group.size, end - begin), own.dtype)
            group.comm.Allgather(own[begin:end], part)
            to[:, begin:end] = part


def all_to_all(group: ProcessGroup, out: Array, x: Array, comm: Any = None) -> None:
    """Write row ``group.rank`` of each process's ``x`` to the row of ``out`` with the number of that process, by the
    group's communicator unless another is given."""
    to, own = _words(out).reshape(group.size, -1), _words(x).reshape(group.size, -1)
    for begin, end in _parts(own.shape[1], LIMIT // group.size):
        if end - begin == own.shape[1]:
            (comm or group.comm).Alltoall(own, to)
        else:
            part = np.empty((group.size, end - begin), own.dtype)
            (comm or group.comm).Alltoall(np.ascontiguousarray(own[:, begin:end]), part)
            to[:, begin:end] = part


def broadcast(group: ProcessGroup, out: Array, x: Array, source: int) -> None:
    """Write the ``x`` of process ``source`` of the group to ``out``."""
    to = _words(out)
    if group.rank == source:
        to[...] = _words(x)
    for begin, end in _parts(len(to), LIMIT):
        group.comm.Bcast(to[begin:end], source)


def send(group: ProcessGroup, x: Array, target: int, tag: int) -> None:
    """Send ``x`` to a process, which receives it."""
    own = _words(x)
    for begin, end in _parts(len(own), LIMIT):
        group.comm.Send(own[begin:end], target, tag)


def post(group: ProcessGroup, x: Array, target: int, tag: int) -> None:
    """Send a copy of ``x`` to a process, and do not wait for its arrival."""
    OUTBOX.post(group, x, target, lambda own: [group.comm.Isend(own[begin:end], target, tag)
                                               for begin, end in _parts(len(own), LIMIT)])


def receive(group: ProcessGroup, out: Array, source: int, tag: int) -> None:
    """Receive data from a process into ``out``."""
    to = _words(out)
    for begin, end in _parts(len(to), LIMIT):
        group.comm.Recv(to[begin:end], source, tag)


def _parts(count: int, most: int) -> Iterator[tuple[int, int]]:
    most = max(most, 1)
    for begin in range(0, count, most):
        yield begin, min(begin + most, count)


def _numbers(x: Array) -> Array:
    """Return an array as a line of numbers that MPI knows; a bool is a byte, of which max is *or* and min *and*."""
    return x.reshape(-1).view(np.uint8) if x.dtype == np.bool_ else x.reshape(-1)


def _words(x: Array) -> Array:
    """Return an array as a line of words of the size of its elements: no type of the sender matters to the receiver."""
    return x.reshape(-1).view(f"u{x.dtype.itemsize}")

def _send(group: ProcessGroup, out: Array, x: Array, target: int, tag: int) -> None:
    out[...] = 0
    send(group, x, target, tag)


def _post(group: ProcessGroup, out: Array, x: Array, target: int, tag: int) -> None:
    out[...] = 0
    post(group, x, target, tag)


def _receive(group: ProcessGroup, out: Array, x: Array, source: int, tag: int) -> None:
    receive(group, out, source, tag)


def _barrier(group: ProcessGroup, out: Array, x: Array) -> None:
    out[...] = 0
    group.comm.Barrier()

_RUN: dict[str, Callable[..., None]] = {
    "all_reduce": all_reduce, "reduce_scatter": reduce_scatter, "all_gather": all_gather,
    "all_to_all": all_to_all, "broadcast": broadcast, "send": _send, "post": _post, "receive": _receive,
    "barrier": _barrier}


def value(kind: str, group: ProcessGroup, shape: tuple[int, ...], x: Tensor, *options: int | str,
          after: Sequence[Tensor] = (), by_host: bool = False) -> Tensor:
    """Return the lazy result of a collective on ``x``: by NCCL in the stream of its GPU, else by MPI on the host.

    Args:
        kind: a name of ``_RUN``.
        shape: the shape of the result.
        options: further arguments of its function.
        after: tensors that are computed before the call; it does not read them.
        by_host: use MPI, also for values on a GPU.

    Raises:
        ArgumentError: in a layer of a pipeline, where a collective cannot run at once.
    """
    if NOT_IN:
        raise ArgumentError(f"dist.{kind}", f"in {NOT_IN[0]}", "dist.pipeline(..., communicates=True)")
    if not by_host and nccl.is_used(x, group, kind, options):
        return host_value(nccl.value(kind, group, options), shape, x, after=[token(t, x) for t in after])
    name = "_".join(("mpi", kind, *map(str, options), group.name))
    WRITERS.setdefault(name, functools.partial(run, kind, group, options))
    here = x if on_host(x) else x.to("CPU")
    return host_value(name, shape, here, after=[token(t, here) for t in after]).to(x.device)


def token(t: Tensor, x: Tensor) -> Tensor:
    """Return a tensor on the device of ``x`` that is computed after ``t``: an element of it if it is elsewhere."""
    return t if t.device == x.device else t.contiguous().reshape(-1)[:1].to(x.device)


def run(kind: str, group: ProcessGroup, options: tuple[Any, ...], out: Array, *arrays: Array) -> None:
    """Run a command: the function that programs call. Before its argument stands what it has to come after."""
    here, x = world(), arrays[-1]
    here.check_thread()
    moved = out if kind == "receive" else x
    with here.turn:
        call = order.call_of(kind, group, options, moved.dtype.name, tuple(moved.shape))
        with watch.waiting(call):
            order.count(group, call)
            try:
                _RUN[kind](group, out, x, *options)
            except here.mpi.Exception as error:
                raise CommunicationError(
                    f"dist.{kind}", f"MPI failed in rank {here.group.rank} in call {call.call} of {group}, "
                    f"{call.what}: {error}", "CHECKED=1, which compares what the processes call", call.line) from None
