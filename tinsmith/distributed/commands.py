"""Collectives as host commands, over MPI, with a check of their order.

A collective is a node of a graph, which a program runs on the memory of its buffers, also in a capture. The name of a
command gives its operation and group, and is the same in all processes, so that they make the same programs and share
cached ones.

**MPI.** Collectives run on arrays in the memory of tensors; nothing is pickled. Each function takes a group, the array
for the result and the array of this process. Beyond ``LIMIT`` elements, MPI's counts (32 bits before MPI 4) would
overflow: the data are sent in parts, through a copy where a part of the result is not contiguous.

**Order.** Each process keeps a hash of its sequence: kind, op, dtype and shape of each call. Processes compare hashes
after calls 1, 2, 4, … and every ``EVERY`` calls, or before each call with ``CHECKED=1``. If they differ, the texts of
the calls since the last comparison are exchanged, and the first different ones are named. The monitor compares the
calls in which ranks wait, so that an order that ends in a deadlock is named, too.
"""
from __future__ import annotations

import functools
import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np

from tinsmith.core.errors import ArgumentError, CommunicationError, place, user_line
from tinsmith.core.settings import settings
from tinsmith.distributed import watch
from tinsmith.distributed.messages import OUTBOX
from tinsmith.distributed.monitor import numbered
from tinsmith.distributed.world import ProcessGroup, world
from tinsmith.ir.ops.scans import WRITERS
from tinsmith.tensor.host_data import host_value, on_host
from tinsmith.tensor.tensor import Tensor

NOT_IN: Final[list[str]] = []  # the place, where collectives cannot run at once

EVERY: Final = 64  # calls between two comparisons
_HASH: Final = 16  # bytes
_TEXT: Final = 496  # bytes of a call's text


def check(group: ProcessGroup, kind: str, what: str, line: tuple[str, int]) -> None:
    """Record call number ``group.calls``, and compare the sequence with the other processes if a comparison is due.

    Args:
        what: the call, with op, dtype and shape.

    Raises:
        CommunicationError: in all processes, if they differ; it names one line of each call.
    """
    group.sequence = hashlib.blake2b(group.sequence + f"{group.name} {what}".encode(), digest_size=_HASH).digest()
    group.recent.append((what, line))
    calls = group.calls
    if not settings.CHECKED and calls % EVERY and calls & (calls - 1):
        return
    own = np.frombuffer(group.sequence, np.uint8)
    every = np.empty((group.size, _HASH), np.uint8)
    group.checks.Allgather(own, every)
    recent, group.recent = group.recent, []
    if (every == own).all():
        return
    _differ(group, kind, [f"{text}\0{place(*at)}" for text, at in recent], line)


def _differ(group: ProcessGroup, kind: str, recent: list[str], line: tuple[str, int]) -> None:
    """Raise the error for the first calls that differ. ``recent``: those since the last comparison, as many in all
    processes."""
    own = np.frombuffer(b"".join(t.encode()[:_TEXT].ljust(_TEXT, b"\0") for t in recent), np.uint8)
    every = np.empty((group.size, len(own)), np.uint8)
    group.checks.Allgather(own, every)
    for n in range(len(recent)):
        texts = [row[n * _TEXT : (n + 1) * _TEXT].tobytes().decode(errors="replace").split("\0")[:2] for row in every]
        if len({what for what, _ in texts}) > 1:
            break
    found: dict[str, list[int]] = {}
    for number, (what, at) in zip(group.ranks, texts):
        found.setdefault(f"{what} at {at}", []).append(number)
    calls = [f"{numbered(ranks)}: {what}" for what, ranks in found.items()]
    raise CommunicationError(
        f"dist.{kind}", f"call {group.calls - len(recent) + n + 1} of {group} differs: {'; '.join(calls)}",
        "the same collectives, in the same order, with the same shapes in all processes", line)

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

_SENT = ("send", "receive", "post")  # between two processes: no place in the order of a group


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
          after: Sequence[Tensor] = ()) -> Tensor:
    """Return the lazy result of a collective on ``x``, computed on the host.

    Args:
        kind: a name of ``_RUN``.
        shape: the shape of the result.
        options: further arguments of its function.
        after: tensors of the host that are computed before the call; it does not read them.

    Raises:
        ArgumentError: in a layer of a pipeline, where a collective cannot run at once.
    """
    if NOT_IN:
        raise ArgumentError(f"dist.{kind}", f"in {NOT_IN[0]}", "dist.pipeline(..., communicates=True)")
    name = "_".join(("mpi", kind, *map(str, options), group.name))
    WRITERS.setdefault(name, functools.partial(run, kind, group, options))
    here = x if on_host(x) else x.to("CPU")
    return host_value(name, shape, here, after=after).to(x.device)


def _peers(kind: str, group: ProcessGroup, options: tuple[Any, ...]) -> tuple[int, ...]:
    """Return the ranks that a command waits for; of a message, only the sender waits to be judged by its receiver."""
    return (group.ranks[options[0]],) if kind in _SENT else group.ranks


def run(kind: str, group: ProcessGroup, options: tuple[Any, ...], out: Array, *arrays: Array) -> None:
    """Run a command: the function that programs call. Before its argument stands what it has to come after."""
    here, line, x = world(), user_line(), arrays[-1]
    here.check_thread()
    moved = out if kind == "receive" else x
    details = (*options[len(options) * (kind in _SENT) :], moved.dtype.name, tuple(moved.shape))
    what = kind if kind == "barrier" else f"{kind}({', '.join(map(str, details))})"
    with here.turn:
        call = watch.Waiting(kind, group.name, group.ranks, _peers(kind, group, options), group.calls + 1, what,
                             options[1] if kind in _SENT else 0, line, time.monotonic())
        with watch.waiting(call):
            if kind not in _SENT:
                group.calls += 1
                check(group, kind, what, line)
            try:
                _RUN[kind](group, out, x, *options)
            except here.mpi.Exception as error:
                raise CommunicationError(
                    f"dist.{kind}", f"MPI failed in rank {here.group.rank} in call {call.call} of {group}, {what}: "
                    f"{error}", "CHECKED=1, which compares what the processes call", line) from None
