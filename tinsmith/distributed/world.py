"""The processes of a program: who they are, groups of them, and the start of MPI.

MPI is started at the first use, and only where a launcher started several processes: a program of one process imports
no ``mpi4py``. All communication of a process goes through one thread at a time (``World.turn``), in one order.
"""
from __future__ import annotations

import importlib
import os
import socket
import threading
from dataclasses import dataclass, field
from typing import Any

from tinsmith.backend.cpu import os_calls
from tinsmith.core.errors import CommunicationError
from tinsmith.core.settings import settings
from tinsmith.distributed import watch
from tinsmith.distributed.environment import LauncherVariables, check_launcher, launched, threads_of
from tinsmith.tensor.create import random


@dataclass(eq=False, repr=False)
class ProcessGroup:
    """Processes that communicate: all of them, or those along an axis of a mesh.

    Attributes:
        name: the same in all processes; part of the names of host functions, so it is an identifier.
        ranks: numbers of the processes in the world, in the order of the group.
        rank: number of this process in the group.
        comm: MPI's communicator for data; None in a group of one process.
        checks: MPI's communicator for comparisons of their sequences.
        calls: number of collectives so far.
        sequence: a hash of them.
        recent: those since processes compared their sequences: the call's text, and the user's line.
    """

    name: str
    ranks: tuple[int, ...]
    rank: int = 0
    comm: Any = None
    checks: Any = None
    calls: int = 0
    sequence: bytes = b""
    recent: list[tuple[str, tuple[str, int]]] = field(default_factory=list)

    @property
    def size(self) -> int:
        return len(self.ranks)

    def __repr__(self) -> str:
        return f"<processes {', '.join(map(str, self.ranks))}>"


@dataclass(eq=False, repr=False)
class World:
    """All processes of the program.

    Attributes:
        group: all of them.
        local_rank, local_size: number of this process, and of processes, on this host.
        hosts: the host of each process.
        mpi: ``mpi4py.MPI``; None in a program of one process.
        turn: held while a thread communicates.
    """

    group: ProcessGroup
    local_rank: int = 0
    local_size: int = 1
    hosts: tuple[str, ...] = ()
    mpi: Any = None
    turn: threading.RLock = field(default_factory=threading.RLock)
    thread: int = 0

    def check_thread(self) -> None:
        """Check that this thread may communicate.

        Raises:
            CommunicationError: in a thread other than that of ``init``, if MPI supports only that one.
        """
        if threading.get_ident() != self.thread and self.mpi is not None and (
                self.mpi.Query_thread() < self.mpi.THREAD_SERIALIZED):
            raise CommunicationError("dist", "MPI was started for one thread, and another one communicates",
                                     "collectives in the thread of dist.init(), or an MPI with MPI_THREAD_MULTIPLE")


_world: list[World] = []
_starting = threading.Lock()


def init() -> None:
    """Start the communication between processes, if a launcher started several; implicit at the first use.

    The random streams of all processes become that of rank 0, and each takes its share of the host's cores. Call it
    before the model is made.

    >>> init(); init()  # a second call does nothing

    Raises:
        CommunicationError: if MPI is not installed, does not belong to the launcher, or the launcher is ``torchrun``.
    """
    world()


def world() -> World:
    """Return the processes of the program, started at the first call."""
    if not _world:
        with _starting:
            if not _world:
                found = launched()
                _world.append(_started(found) if found.size > 1 else World(ProcessGroup("world", (0,))))
    return _world[0]


def is_started() -> bool:
    """Return True once communication has been started."""
    return bool(_world)


def rank() -> int:
    """Return the number of this process, from 0 on.

    >>> rank()
    0
    """
    return world().group.rank


def world_size() -> int:
    """Return the number of processes.

    >>> world_size()
    1
    """
    return world().group.size


def local_rank() -> int:
    """Return the number of this process among those of its host.

    >>> local_rank()
    0
    """
    return world().local_rank


def share_cores(found: LauncherVariables) -> None:
    """Set ``THREADS`` to this process's share of the host's cores, unless the user has set it."""
    if settings.THREADS == 0 and (count := threads_of(found, len(os_calls.usable_cpus()), os.cpu_count() or 1)):
        settings.THREADS = count


def _started(found: LauncherVariables) -> World:
    check_launcher(found)
    address = watch.start_monitor(found.size, settings.DIST_TIMEOUT) if found.rank == 0 else None
    agent = watch.Agent() if found.local_rank == 0 else None
    mpi = _mpi(found)
    everyone = mpi.COMM_WORLD
    if everyone.Get_size() != found.size:
        raise CommunicationError(
            "dist.init", f"the launcher started {found.size} processes, MPI knows {everyone.Get_size()}: the launcher "
            f"belongs to another MPI than mpi4py's, {mpi.Get_library_version().splitlines()[0][:60]!r}",
            "the mpirun of that MPI, or tinsmith launch, which looks for it")
    number, host = everyone.Get_rank(), socket.gethostname()
    seed, calls = random.state()
    # pickled, but only once: names and numbers
    told = everyone.allgather((host, seed, calls, address, os.getpid()))
    random.restore(told[0][1:3])
    address = told[0][3]
    watch.Watcher(address, number, everyone.Abort)
    watch.print_as(number, settings.RANKS)
    local = [n for n, (other, *_) in enumerate(told) if other == host]
    if agent is not None:
        agent.begin(address, [told[n][4] for n in local] if number == local[0] else [])
    group = ProcessGroup("world", tuple(range(found.size)), number, everyone.Dup(), everyone.Dup())
    return World(group, local.index(number), len(local), tuple(t[0] for t in told), mpi, thread=threading.get_ident())


def _mpi(found: LauncherVariables) -> Any:
    """Return ``mpi4py.MPI``, started."""
    if found.local_size > len(os_calls.usable_cpus()):
        # an idle process must leave its core to one that works
        os.environ.setdefault("OMPI_MCA_mpi_yield_when_idle", "1")
    try:
        return importlib.import_module("mpi4py.MPI")
    except (ImportError, RuntimeError) as error:
        raise CommunicationError("dist.init", f"{found.launcher} started {found.size} processes, but MPI is not there: "
                                 f"{error}", "pip install 'tinsmith[mpi]'") from None


def split(name: str, members: tuple[int, ...]) -> ProcessGroup:
    """Return the group of ``members``, which must contain this process; all processes call it at the same time, each
    with its own group."""
    here = world()
    own = here.group.rank
    if len(members) == 1:
        return ProcessGroup(name, members)
    if members == here.group.ranks:
        return here.group  # one communicator, so one sequence of calls
    with here.turn:
        comm = here.group.comm.Split(members[0], members.index(own))
        return ProcessGroup(name, members, members.index(own), comm, comm.Dup())
