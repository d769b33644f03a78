"""Collectives that overlap with kernels: a command starts one, and a later command waits for its result.

NCCL runs them in a second stream of the GPU (``nccl.begin``). For MPI, a thread runs them one after the other, by the
same blocking calls, on a communicator of its own: the bits are those of a collective that the program waits for. Where
MPI allows only one thread at a time, they run as they start.
"""
from __future__ import annotations

import atexit
import functools
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from tinsmith.core.errors import CommunicationError
from tinsmith.distributed import watch
from tinsmith.distributed.transport import order
from tinsmith.distributed.transport.commands import Array, all_reduce, all_to_all
from tinsmith.distributed.world import ProcessGroup, world
from tinsmith.ir.ops.scans import WAITS, WRITERS
from tinsmith.tensor.host_data import host_value
from tinsmith.tensor.tensor import Tensor

_RUN: Final[dict[str, Callable[..., None]]] = {"all_reduce": all_reduce, "all_to_all": all_to_all}


class Job:
    """A collective that has been started.

    Attributes:
        call: its place in the order of the group, for the monitor.
        result: written by the thread.
    """

    def __init__(self, call: watch.Waiting, run: Callable[[], None], result: Array) -> None:
        self.call, self.run, self.result = call, run, result
        self.done = threading.Event()
        self.error: BaseException | None = None

    def work(self) -> None:
        """Run it; an error is kept for the command that waits."""
        try:
            self.run()
        except BaseException as error:
            self.error = error
        self.done.set()


class Worker:
    """The thread that runs collectives, the jobs by number of their bucket, and free memory for results."""

    def __init__(self) -> None:
        self.jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self.started: dict[tuple[str, int], Job] = {}
        self.free: dict[tuple[int, str], list[Array]] = {}
        self.thread: threading.Thread | None = None

    def start(self, key: tuple[str, int], job: Job) -> None:
        """Start a collective; it runs at once if MPI supports no other thread."""
        self.started[key] = job
        mpi = world().mpi
        if mpi.Query_thread() < mpi.THREAD_MULTIPLE:
            return job.work()
        if self.thread is None:
            self.thread = threading.Thread(target=self._work, name="tinsmith-collectives", daemon=True)
            self.thread.start()
            atexit.register(self.end)
        self.jobs.put(job)

    def _work(self) -> None:
        while (job := self.jobs.get()) is not None:
            job.work()

    def memory(self, like: Array) -> Array:
        """Return memory for a result."""
        kept = self.free.get((like.size, like.dtype.name))
        return kept.pop() if kept else np.empty(like.size, like.dtype)

    def end(self) -> None:
        """Wait for the thread: MPI ends after this."""
        if self.thread is not None and not self.started:  # else an error has left some
            self.jobs.put(None)
            self.thread.join()


_WORKER: Final = Worker()


def start(kind: str, group: ProcessGroup, number: int, x: Tensor, *options: str, after: Sequence[Tensor] = ()
          ) -> Tensor:
    """Return a token: a command that starts a collective on ``x``, which ``finish`` must be given, too.

    Args:
        kind: "all_reduce" or "all_to_all".
        number: of the collective among those that are started before the next ``finish``.
        after: as of ``commands.value``.
    """
    if group.background is None:  # all processes of the group are here at the same time
        with world().turn:
            group.background = group.comm.Dup()
    name = "_".join(("mpi_start", kind, str(number), *options, group.name))
    WRITERS.setdefault(name, functools.partial(_start, kind, group, number, options))
    return host_value(name, (1,), x, after=after)


def finish(group: ProcessGroup, number: int, x: Tensor, after: Sequence[Tensor]) -> Tensor:
    """Return the result of a collective that was started on ``x``: a command that waits for it.

    Args:
        after: with the token of ``start``.
    """
    name = "_".join(("mpi_finish", str(number), group.name))
    WRITERS.setdefault(name, functools.partial(_finish, group, number))
    WAITS.add(name)
    return host_value(name, tuple(x.shape), x, after=after)


def _start(kind: str, group: ProcessGroup, number: int, options: tuple[str, ...], out: Array, *arrays: Array) -> None:
    here, x = world(), arrays[-1]
    here.check_thread()
    call = order.call_of(kind, group, options, x.dtype.name, tuple(x.shape))
    with here.turn, watch.waiting(call):
        order.count(group, call)
    out[...] = 0
    result = _WORKER.memory(x)
    run = functools.partial(_RUN[kind], group, result, x, *options, comm=group.background)
    _WORKER.start((group.name, number), Job(call, run, result))


def _finish(group: ProcessGroup, number: int, out: Array, *_: Array) -> None:
    job = _WORKER.started.pop((group.name, number))
    call = job.call._replace(since=time.monotonic())
    with watch.waiting(call):
        job.done.wait()
    if isinstance(job.error, world().mpi.Exception):
        raise CommunicationError(f"dist.{call.kind}", f"MPI failed in rank {world().group.rank} in call {call.call} of "
                                 f"{group}, {call.what}: {job.error}", "CHECKED=1, which compares what the processes "
                                 "call", call.line) from None
    if job.error is not None:
        raise job.error
    out.reshape(-1)[...] = job.result
    _WORKER.free.setdefault((out.size, out.dtype.name), []).append(job.result)
