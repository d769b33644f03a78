"""Collectives of NCCL on the memory of GPUs, in the streams of the programs that need them.

Each group of processes has one communicator per GPU, made at the first use: all processes of the group report their GPU
and whether NCCL can be loaded, so that they choose the same way. A call is a stream function of its program
(``backend.cuda.stream_calls``): in a capture it is part of the CUDA graph. Its announcement on the host, before each
run, compares the processes' sequences as for MPI. The monitor cannot see where a GPU is: what is reported as waiting
for another rank may still be behind kernels, and is not judged as a deadlock.

Work beside kernels (``begin`` and ``end``) runs in a second stream, with memory of its own for the result.
"""
from __future__ import annotations

import functools
import importlib
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from math import prod
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from tinsmith.backend.cuda.driver import CudaGPU
from tinsmith.backend.cuda.stream_calls import FUNCTIONS, StreamFunction
from tinsmith.backend.device import Device
from tinsmith.core.dtypes import dtypes
from tinsmith.core.errors import CommunicationError
from tinsmith.distributed import order, watch
from tinsmith.distributed.world import ProcessGroup, world

if TYPE_CHECKING:
    from tinsmith.codegen.launch import Launch
    from tinsmith.tensor.tensor import Tensor

_ID_BYTES: Final = 128  # of ncclUniqueId
_UUID_BYTES: Final = 16
_SEEN: Final = 256  # calls whose end has not been observed yet

# NCCL's numbers (nccl.h, ncclDataType_t and ncclRedOp_t)
_TYPES: Final = {"int8": 0, "uint8": 1, "bool": 1, "int32": 2, "uint32": 3, "int64": 4, "uint64": 5, "float16": 6,
                 "float32": 7, "float64": 8, "bfloat16": 9}
_OPS: Final = {"sum": 0, "prod": 1, "max": 2, "min": 3}
_BYTES: Final = _TYPES["uint8"]


@functools.cache
def library() -> Any:
    """Return the bindings of NCCL; None if they or the library are not installed."""
    try:
        found = importlib.import_module("nccl.bindings.nccl")
        found.get_version()
    except Exception:  # the loader of libraries raises types of its own
        return None
    return found


def reduces(x: Tensor) -> bool:
    """Return True for a dtype that NCCL reduces."""
    return x.dtype.name in _TYPES


def is_used(x: Tensor, group: ProcessGroup) -> bool:
    """Return True if a collective on ``x`` runs in the stream of its GPU; all processes of the group call it at the
    same time, because the first call makes the communicator."""
    if not isinstance(x.device, str) or not Device[x.device].calls_in_stream or world().simulated is not None:
        return False
    return _communicator(group, Device[x.device].gpu) is not None  # type: ignore[attr-defined]


def _communicator(group: ProcessGroup, gpu: CudaGPU) -> Any:
    """Return the communicator of a group on a GPU; None if a process of the group has no NCCL, or two have one GPU."""
    if gpu.number not in group.nccl:
        group.nccl[gpu.number] = _connected(group, gpu)
        if _first_under_way not in watch.queued:
            watch.queued.append(_first_under_way)
    return group.nccl[gpu.number]


def _connected(group: ProcessGroup, gpu: CudaGPU) -> Any:
    nccl = library()
    own = np.zeros(1 + _UUID_BYTES, np.uint8)
    own[0] = nccl is not None
    own[1:] = np.frombuffer(gpu.uuid, np.uint8)
    every = np.empty((group.size, len(own)), np.uint8)
    first = np.zeros(_ID_BYTES, np.uint8)
    here = world()
    with here.turn:
        if group.size > 1:
            group.checks.Allgather(own, every)
        else:
            every[0] = own
        reason = ""
        if not every[:, 0].all():
            reason = f"rank {group.ranks[int(every[:, 0].argmin())]} has no NCCL"
        elif len({row.tobytes() for row in every}) < group.size:
            reason = "two processes use one GPU"
        if reason:
            _without(group, gpu, reason)
            return None
        if group.rank == 0:
            first[:] = np.frombuffer(bytes(nccl.get_unique_id()), np.uint8)
        if group.size > 1:
            group.checks.Bcast(first, 0)
        gpu.use()
        with _explained("init", group):
            return nccl.comm_init_rank_scalable(group.size, group.rank, 1, bytearray(first.tobytes()), 0)


def _without(group: ProcessGroup, gpu: CudaGPU, reason: str) -> None:
    """Tell the user, or raise where there is no other way, that tensors on a GPU do not travel by NCCL.

    Raises:
        CommunicationError: under ``torchrun``.
    """
    advice = ("one GPU for each process: DEV=CUDA, and as many processes on a host as it has GPUs"
              if "one GPU" in reason else "pip install 'tinsmith[nccl]'")
    if isinstance(world().mpi, SimpleNamespace):
        raise CommunicationError("dist", f"{gpu.name} needs NCCL under torchrun, but {reason}", advice)
    if group.rank == 0:
        watch.say(f"collectives on {gpu.name} are copied to the host and sent by MPI, because {reason} ({advice})")


class _explained:
    """A context in which errors of NCCL are raised as ours, with the call."""

    def __init__(self, what: str, group: ProcessGroup) -> None:
        self.what, self.group = what, group

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is not None and type(error).__name__ == "NCCLError":
            raise CommunicationError(
                "dist", f"NCCL failed in rank {world().group.rank} in {self.what} of {self.group}: {error}",
                "NCCL_DEBUG=INFO, which prints the reason") from error


# *** values ***


def value(kind: str, group: ProcessGroup, options: tuple[int | str, ...]) -> str:
    """Return the name of a HOST node for a collective in the stream of a GPU."""
    name = "_".join(("nccl", kind, *map(str, options), group.name))
    if name not in FUNCTIONS:
        FUNCTIONS[name] = StreamFunction(functools.partial(_enqueue, kind, group, options),
                                         functools.partial(_announce, kind, group, options), _launched)
    return name


def begin(kind: str, group: ProcessGroup, number: int, options: tuple[int | str, ...]) -> str:
    """Return the name of a HOST node that starts a collective beside kernels; see ``background.start``."""
    name = "_".join(("nccl_start", kind, str(number), *map(str, options), group.name))
    if name not in FUNCTIONS:
        FUNCTIONS[name] = StreamFunction(functools.partial(_begin, kind, group, options, number),
                                         functools.partial(_announce, kind, group, options), _launched, beside=True)
    return name


def end(group: ProcessGroup, number: int) -> str:
    """Return the name of a HOST node that waits for a collective and takes its result; see ``background.finish``."""
    name = "_".join(("nccl_finish", str(number), group.name))
    if name not in FUNCTIONS:
        FUNCTIONS[name] = StreamFunction(functools.partial(_end, group, number))
    return name


# *** enqueueing ***


def _enqueue(kind: str, group: ProcessGroup, options: tuple[Any, ...], gpu: CudaGPU, stream: int, out: int,
             sources: Sequence[int], launch: Launch) -> None:
    """Enqueue a collective on the memory at ``sources[-1]`` with its result at ``out``."""
    _, dtype, shapes, shape = launch.host
    comm = _communicator(group, gpu)
    itemsize = getattr(dtypes, dtype).itemsize
    with _explained(kind, group), watch.waiting(_called[0]) if _called else nullcontext():
        _RUN[kind](library(), comm, stream, _Data(out, sources[-1], prod(shapes[-1]), prod(shape), dtype, itemsize,
                                                  group.size), *options)


class _Data(NamedTuple):
    """The memory of a collective.

    Attributes:
        out, x: addresses of the result and of the argument.
        given, made: their numbers of elements.
        size: number of processes.
    """

    out: int
    x: int
    given: int
    made: int
    dtype: str
    itemsize: int
    size: int


def _all_reduce(nccl: Any, comm: Any, stream: int, d: _Data, op: str) -> None:
    nccl.all_reduce(d.x, d.out, d.made, _TYPES[d.dtype], _OPS[op], comm, stream)


def _reduce_scatter(nccl: Any, comm: Any, stream: int, d: _Data, op: str) -> None:
    nccl.reduce_scatter(d.x, d.out, d.made, _TYPES[d.dtype], _OPS[op], comm, stream)


def _all_gather(nccl: Any, comm: Any, stream: int, d: _Data) -> None:
    nccl.all_gather(d.x, d.out, d.given * d.itemsize, _BYTES, comm, stream)


def _broadcast(nccl: Any, comm: Any, stream: int, d: _Data, source: int) -> None:
    nccl.broadcast(d.x, d.out, d.made * d.itemsize, _BYTES, source, comm, stream)


def _all_to_all(nccl: Any, comm: Any, stream: int, d: _Data) -> None:
    each = d.made * d.itemsize // d.size
    nccl.group_start()
    try:
        for peer in range(d.size):
            nccl.send(d.x + peer * each, each, _BYTES, peer, comm, stream)
            nccl.recv(d.out + peer * each, each, _BYTES, peer, comm, stream)
    finally:
        nccl.group_end()


def _send(nccl: Any, comm: Any, stream: int, d: _Data, target: int, tag: int) -> None:
    nccl.send(d.x, d.given * d.itemsize, _BYTES, target, comm, stream)


def _receive(nccl: Any, comm: Any, stream: int, d: _Data, source: int, tag: int) -> None:
    nccl.recv(d.out, d.made * d.itemsize, _BYTES, source, comm, stream)


_RUN: Final[dict[str, Callable[..., None]]] = {
    "all_reduce": _all_reduce, "reduce_scatter": _reduce_scatter, "all_gather": _all_gather,
    "broadcast": _broadcast, "all_to_all": _all_to_all, "send": _send, "receive": _receive}
KINDS: Final = frozenset(_RUN)

_results: Final[dict[tuple[str, int, int, int], Any]] = {}  # memory of collectives beside kernels, kept for replays


def _result(group: ProcessGroup, number: int, gpu: CudaGPU, nbytes: int) -> int:
    key = group.name, number, gpu.number, nbytes
    if key not in _results:
        _results[key] = Device[gpu.name].allocator.alloc(nbytes)
    return int(_results[key].address)


def _begin(kind: str, group: ProcessGroup, options: tuple[Any, ...], number: int, gpu: CudaGPU, stream: int, out: int,
           sources: Sequence[int], launch: Launch) -> None:
    """Enqueue a collective whose result ``_end`` takes; ``out`` is the token that orders the two."""
    name, dtype, shapes, _ = launch.host
    nbytes = prod(shapes[-1]) * getattr(dtypes, dtype).itemsize
    whole = SimpleNamespace(host=[name, dtype, shapes, shapes[-1]])
    _enqueue(kind, group, options, gpu, stream, _result(group, number, gpu, nbytes), sources, whole)  # type: ignore[arg-type]
    gpu.call(gpu.driver.cuMemsetD8Async, out, 0, getattr(dtypes, dtype).itemsize, stream)


def _end(group: ProcessGroup, number: int, gpu: CudaGPU, stream: int, out: int, sources: Sequence[int],
         launch: Launch) -> None:
    _, dtype, _, shape = launch.host
    nbytes = prod(shape) * getattr(dtypes, dtype).itemsize
    gpu.call(gpu.driver.cuMemcpyDtoDAsync, out, _result(group, number, gpu, nbytes), nbytes, stream)


# *** announcements, and calls under way ***

_called: list[watch.Waiting] = []  # the last call that was announced
_under_way: Final[deque[tuple[watch.Waiting, Any, CudaGPU]]] = deque(maxlen=_SEEN)  # with an event after the call


def _announce(kind: str, group: ProcessGroup, options: tuple[Any, ...], launch: Launch) -> None:
    """Give a coming call its place in the group's sequence, and compare the sequences when that is due."""
    _, dtype, shapes, shape = launch.host
    here = world()
    with here.turn:
        call = order.call_of(kind, group, options, dtype, tuple(shape if kind == "receive" else shapes[-1]))
        _called[:] = [call._replace(sure=False)]
        if group.size > 1:
            with watch.waiting(call):
                order.count(group, call)


def _launched(gpu: CudaGPU, stream: Any) -> None:
    """Record the end of the last call that was announced, which a stream reaches later."""
    event = gpu.event()
    gpu.call(gpu.driver.cuEventRecord, event, stream)
    _under_way.append((_called[0], event, gpu))


def _first_under_way() -> watch.Waiting | None:
    """Return the first call whose work has not ended; for the thread that reports to the monitor."""
    while _under_way:
        call, event, gpu = _under_way[0]
        if gpu.lost or not gpu.is_reached(event):
            return call
        _under_way.popleft()
        gpu.dead.append((gpu.driver.cuEventDestroy, event))
        if _under_way:  # the next one begins now at the earliest
            after, *rest = _under_way[0]
            _under_way[0] = (after._replace(since=max(after.since, time.monotonic())), *rest)
    return None
