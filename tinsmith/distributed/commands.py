"""Collectives as host commands: nodes of a graph that a program runs in the memory of its buffers, in a capture too.

A command's name says what it does and in which group, and is the same in all processes, so that they make the same
programs and share cached ones.
"""
from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

from tinsmith.core.errors import CommunicationError, user_line
from tinsmith.distributed import sequence, transport, watch
from tinsmith.distributed.transport import Array
from tinsmith.distributed.world import ProcessGroup, world
from tinsmith.ir.ops.host import WRITERS
from tinsmith.tensor.host_calls import host_value, on_host
from tinsmith.tensor.tensor import Tensor

_SENT = ("send", "receive")  # between two processes: no place in the order of a group


def _send(group: ProcessGroup, out: Array, x: Array, target: int, tag: int) -> None:
    out[...] = 0
    transport.send(group, x, target, tag)


def _receive(group: ProcessGroup, out: Array, x: Array, source: int, tag: int) -> None:
    transport.receive(group, out, source, tag)


def _barrier(group: ProcessGroup, out: Array, x: Array) -> None:
    out[...] = 0
    group.comm.Barrier()


_RUN: dict[str, Callable[..., None]] = {
    "all_reduce": transport.all_reduce, "reduce_scatter": transport.reduce_scatter, "all_gather": transport.all_gather,
    "all_to_all": transport.all_to_all, "broadcast": transport.broadcast, "send": _send, "receive": _receive,
    "barrier": _barrier}


def value(kind: str, group: ProcessGroup, shape: tuple[int, ...], x: Tensor, *options: int | str) -> Tensor:
    """Return the lazy result of a collective on ``x``, computed on the host.

    Args:
        kind: a name of ``_RUN``.
        shape: of the result.
        options: what its function takes besides the arrays.
    """
    name = "_".join(("mpi", kind, *map(str, options), group.name))
    WRITERS.setdefault(name, functools.partial(_run, kind, group, options))
    here = x if on_host(x) else x.to("CPU")
    return host_value(name, shape, here).to(x.device)


def _peers(kind: str, group: ProcessGroup, options: tuple[Any, ...]) -> tuple[int, ...]:
    """Return the ranks that a command waits for; of a message, only the sender waits to be judged by its receiver."""
    return (group.ranks[options[0]],) if kind in _SENT else group.ranks


def _run(kind: str, group: ProcessGroup, options: tuple[Any, ...], out: Array, x: Array) -> None:
    """Run a command: the function that programs call."""
    here, line = world(), user_line()
    here.check_thread()
    details = (*options[len(options) * (kind in _SENT) :], x.dtype.name, tuple(x.shape))
    what = kind if kind == "barrier" else f"{kind}({', '.join(map(str, details))})"
    with here.turn:
        call = watch.Waiting(kind, group.name, group.ranks, _peers(kind, group, options), group.calls + 1, what,
                             options[1] if kind in _SENT else 0, line, time.monotonic())
        with watch.waiting(call):
            if kind not in _SENT:
                group.calls += 1
                sequence.check(group, kind, what, line)
            try:
                _RUN[kind](group, out, x, *options)
            except here.mpi.Exception as error:
                raise CommunicationError(
                    f"dist.{kind}", f"MPI failed in rank {here.group.rank} in call {call.call} of {group}, {what}: "
                    f"{error}", "CHECKED=1, which compares what the processes call", line) from None
