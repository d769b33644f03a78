"""Collectives of NCCL on the memory of GPUs, in the streams of the programs that need them.

Each group of processes has one communicator per GPU, made with the group or at the first collective: all its processes
report their GPU and whether NCCL can be loaded, so that they choose the same way. A call is a stream function of its
program (``backend.cuda.stream_calls``): in a capture it is part of the CUDA graph. Its announcement on the host, before
each run, compares the processes' sequences as for MPI. The monitor cannot see where a GPU is: what is reported as
waiting for another rank may still be behind kernels, and is not judged as a deadlock.

Work beside kernels (``begin`` and ``end``) runs in a second stream. It writes to the memory of its result, which is
complete after the call that ends it.

A fault in a rank leaves the others' GPUs in calls that never end. So before it ends a process, all its communicators
are aborted.
"""
from __future__ import annotations

import contextlib
import functools
import importlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from tinsmith.backend.cuda.device import CUDADevice
from tinsmith.backend.cuda.driver import CudaGPU
from tinsmith.backend.cuda.stream_calls import FUNCTIONS, StreamFunction
from tinsmith.backend.device import Device
from tinsmith.core.dtypes import dtypes
from tinsmith.core.errors import ArgumentError, CommunicationError, TinsmithError
from tinsmith.distributed import watch
from tinsmith.distributed.transport import order
from tinsmith.distributed.transport.rendezvous import STORE
from tinsmith.distributed.world import GROUPS_MADE, ProcessGroup, world
from tinsmith.ir.ops.scans import WAITS

if TYPE_CHECKING:
    from tinsmith.codegen.launch import Launch
    from tinsmith.tensor.tensor import Tensor

_ID_BYTES: Final = 128  # of ncclUniqueId
_UUID_BYTES: Final = 16
_SEEN: Final = 256

_communicators: Final[list[tuple[Any, CudaGPU]]] = []  # those of this process

# NCCL's numbers (nccl.h, ncclDataType_t and ncclRedOp_t)
_TYPES: Final = {"int8": 0, "uint8": 1, "bool": 1, "int32": 2, "uint32": 3, "int64": 4, "uint64": 5, "float16": 6,
                 "float32": 7, "float64": 8, "bfloat16": 9}
_OPS: Final = {"sum": 0, "prod": 1, "max": 2, "min": 3, "mean": 4}  # the mean of floats only
_BYTES: Final = _TYPES["uint8"]
_MESSAGES: Final = ("send", "receive", "exchange")  # between two processes


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


def is_used(x: Tensor, group: ProcessGroup, kind: str = "all_reduce", options: Sequence[int | str] = ()) -> bool:
    """Return True if a command on ``x`` runs in the stream of its GPU.

    All processes of the group ask for a collective at the same time, because the first time makes the communicator.
    Only two ask for a message, for which a communicator must have been made before.

    Raises:
        ArgumentError: for the tag of a message under ``torchrun``: NCCL has no tags, and there is no MPI.
    """
    if world().simulated is not None:
        return world().streams and kind in _RUN and (kind not in _MESSAGES or not options[1])
    device = Device[x.device] if isinstance(x.device, str) and kind in _RUN else None
    if not isinstance(device, CUDADevice):
        return False
    if kind not in _MESSAGES:
        return _communicator(group, device.gpu) is not None
    if options[1] and world().mpi is STORE:
        raise ArgumentError(f"dist.{'recv' if kind == 'receive' else kind}", f"tag={options[1]}: messages of NCCL have "
                            "no tags, and come in the order in which they were sent", "tag=0, or mpirun")
    return not options[1] and group.nccl.get(device.gpu.number) is not None


def _prepare(group: ProcessGroup) -> None:
    """Make the communicator of a new group if programs run on a GPU; all its processes call this at the same time."""
    if group.size > 1 and world().simulated is None and Device.DEFAULT.startswith("CUDA"):
        device = Device[Device.DEFAULT]
        if isinstance(device, CUDADevice):
            _communicator(group, device.gpu)


GROUPS_MADE.append(_prepare)


def gpu_of(group: ProcessGroup) -> str | None:
    """Return the name of the default device if messages of the group go through NCCL, from GPU to GPU; else None. All
    processes of the group ask at the same time."""
    if group.size == 1:
        return None
    if world().simulated is not None:
        return Device.DEFAULT if world().streams else None
    device = Device[Device.DEFAULT]
    used = isinstance(device, CUDADevice) and _communicator(group, device.gpu) is not None
    return Device.DEFAULT if used else None


def _communicator(group: ProcessGroup, gpu: CudaGPU) -> Any:
    """Return the communicator of a group on a GPU; None if a process of the group has no NCCL, or two have one GPU."""
    if gpu.number not in group.nccl:
        group.nccl[gpu.number] = comm = _connected(group, gpu)
        if comm is not None:
            _communicators.append((comm, gpu))
            if abort not in watch.ending:
                watch.ending.append(abort)
        if _under_way.first not in watch.queued:
            watch.queued.append(_under_way.first)
    return group.nccl[gpu.number]


def abort() -> None:
    """Abort all communicators, in the order in which they were made, which is that of the other processes: calls of
    NCCL that are under way end, in streams and in threads."""
    nccl = library()
    while _communicators:
        comm, gpu = _communicators.pop(0)
        with contextlib.suppress(nccl.NCCLError, TinsmithError):  # this process ends anyway
            gpu.use()
            nccl.comm_abort(comm)


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
    if world().mpi is STORE:
        raise CommunicationError("dist", f"{gpu.name} needs NCCL under torchrun, but {reason}", advice)
    if group.rank == 0:
        watch.say(f"collectives on {gpu.name} are copied to the host and sent by MPI, because {reason} ({advice})")


@contextlib.contextmanager
def _explained(what: str, group: ProcessGroup) -> Iterator[None]:
    """Raise errors of NCCL as ours, with the call."""
    try:
        yield
    except library().NCCLError as error:
        raise CommunicationError("dist", f"NCCL failed in rank {world().group.rank} in {what} of {group}: {error}",
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
    """Return the name of a HOST node that starts a collective beside kernels, for its result."""
    name = "_".join(("nccl_start", kind, str(number), *map(str, options), group.name))
    if name not in FUNCTIONS:
        FUNCTIONS[name] = StreamFunction(functools.partial(_enqueue, kind, group, options),
                                         functools.partial(_announce, kind, group, options), _launched,
                                         beside=f"{group.name}/{number}")
    return name


def end(group: ProcessGroup, number: int) -> str:
    """Return the name of a HOST node that waits for a collective, for its token."""
    name = "_".join(("nccl_finish", str(number), group.name))
    if name not in FUNCTIONS:
        FUNCTIONS[name] = StreamFunction(functools.partial(_end, "all_reduce", group, ()),
                                         ends=f"{group.name}/{number}")
        WAITS.add(name)
    return name


# *** enqueueing ***


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
    size: int

    @property
    def itemsize(self) -> int:
        return _itemsize(self.dtype)


def _itemsize(dtype: str) -> int:
    found: int = getattr(dtypes, dtype).itemsize
    return found


def _enqueue(kind: str, group: ProcessGroup, options: tuple[Any, ...], gpu: CudaGPU, stream: int, out: int,
             sources: Sequence[int], launch: Launch) -> None:
    """Enqueue a collective on the memory at ``sources[-1]`` with its result at ``out``."""
    _, dtype, shapes, shape = launch.host
    data = _Data(out, sources[-1], prod(shapes[-1]), prod(shape), dtype, group.size)
    _run(kind, group, options, gpu, stream, data)


def _run(kind: str, group: ProcessGroup, options: tuple[Any, ...], gpu: CudaGPU, stream: int, data: _Data) -> None:
    comm = _communicator(group, gpu)
    # the first call of a communicator waits for the other processes
    with _explained(kind, group), watch.waiting(_called[0]) if _called else contextlib.nullcontext():
        _RUN[kind](library(), comm, stream, data, *options)


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


def _send(nccl: Any, comm: Any, stream: int, d: _Data, target: int, _tag: int) -> None:
    nccl.send(d.x, d.given * d.itemsize, _BYTES, target, comm, stream)


def _receive(nccl: Any, comm: Any, stream: int, d: _Data, source: int, _tag: int) -> None:
    nccl.recv(d.out, d.made * d.itemsize, _BYTES, source, comm, stream)


def _exchange(nccl: Any, comm: Any, stream: int, d: _Data, peer: int, _tag: int) -> None:
    """Send a message to a process and receive one from it; neither waits for the other."""
    nccl.group_start()
    try:
        _send(nccl, comm, stream, d, peer, 0)
        _receive(nccl, comm, stream, d, peer, 0)
    finally:
        nccl.group_end()


_RUN: Final[dict[str, Callable[..., None]]] = {
    "all_reduce": _all_reduce, "reduce_scatter": _reduce_scatter, "all_gather": _all_gather,
    "broadcast": _broadcast, "all_to_all": _all_to_all, "send": _send, "receive": _receive, "exchange": _exchange}


def _end(kind: str, group: ProcessGroup, options: tuple[Any, ...], gpu: CudaGPU, stream: int, out: int,
         sources: Sequence[int], launch: Launch) -> None:
    """Write the token; the stream or the graph waits before."""
    gpu.call(gpu.driver.cuMemsetD8Async, out, 0, _itemsize(launch.host[1]), stream)


# *** announcements, and calls under way ***

_called: Final[list[watch.Waiting]] = []  # the last call that was announced


class _UnderWay:
    """The calls whose end no stream has reached, the first first: at most ``_SEEN``."""

    def __init__(self) -> None:
        self.calls: deque[tuple[watch.Waiting, Any, CudaGPU]] = deque()  # with an event after the call
        self.lock = threading.Lock()  # the thread that reports to the monitor looks at them, too

    def add(self, call: watch.Waiting, gpu: CudaGPU, stream: Any) -> None:
        """Note a call that has just been enqueued in a stream."""
        with self.lock:
            self._drop()
            if len(self.calls) < _SEEN:
                event = gpu.event()
                gpu.call(gpu.driver.cuEventRecord, event, stream)
                self.calls.append((call, event, gpu))

    def first(self) -> watch.Waiting | None:
        with self.lock:
            self._drop()
            return self.calls[0][0] if self.calls else None

    def _drop(self) -> None:
        """Drop the calls that have ended."""
        ended = False
        while self.calls and not self.calls[0][2].lost and self.calls[0][2].is_reached(self.calls[0][1]):
            _, event, gpu = self.calls.popleft()
            gpu.dead.append((gpu.driver.cuEventDestroy, event))
            ended = True
        if ended and self.calls:  # the next one begins now at the earliest
            call, event, gpu = self.calls[0]
            self.calls[0] = call._replace(since=time.monotonic()), event, gpu


_under_way: Final = _UnderWay()


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
    """Note that the last call that was announced is in a stream."""
    _under_way.add(_called[0], gpu, stream)
