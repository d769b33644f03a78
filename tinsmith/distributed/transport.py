"""MPI's collectives on arrays that lie in the memory of tensors. Nothing is pickled; large counts are sent in parts.

Each function takes a group, the array for the result and the array of this process. Where there are more than ``LIMIT``
elements, MPI's counts (32 bits before MPI 4) would overflow: they are sent in parts, through a copy where a part of the
result is not contiguous.
"""
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tinsmith.distributed.world import ProcessGroup, world

Array = np.ndarray[Any, Any]

LIMIT = 1 << 30  # elements of one call of MPI, on all processes together

_OPS = {"sum": "SUM", "max": "MAX", "min": "MIN", "prod": "PROD"}


def all_reduce(group: ProcessGroup, out: Array, x: Array, op: str) -> None:
    """Write the reduction of all processes' ``x`` to ``out``."""
    to, own, kind = _numbers(out), _numbers(x), getattr(world().mpi, _OPS[op])
    for begin, end in _parts(len(own), LIMIT):
        group.comm.Allreduce(own[begin:end], to[begin:end], kind)


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


def all_to_all(group: ProcessGroup, out: Array, x: Array) -> None:
    """Write row ``group.rank`` of each process's ``x`` to the row of ``out`` with the number of that process."""
    to, own = _words(out).reshape(group.size, -1), _words(x).reshape(group.size, -1)
    for begin, end in _parts(own.shape[1], LIMIT // group.size):
        if end - begin == own.shape[1]:
            group.comm.Alltoall(own, to)
        else:
            part = np.empty((group.size, end - begin), own.dtype)
            group.comm.Alltoall(np.ascontiguousarray(own[:, begin:end]), part)
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


def receive(group: ProcessGroup, out: Array, source: int, tag: int) -> None:
    """Write what a process sends to ``out``."""
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
