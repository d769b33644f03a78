"""The processes of a program: variables of launchers, the start of MPI, groups and meshes.

The launchers are ``mpirun`` of Open MPI and MPICH, ``srun`` and ``torchrun``. MPI is started at the first use, and only
if a launcher started several processes: a program of one process does not import ``mpi4py``. Processes of ``torchrun``
find each other through a store (``rendezvous.py``). All communication of a process is done by one thread at a time
(``World.turn``), in one order.

A mesh arranges processes, or devices of one process, in a grid with named axes; each line along an axis is a group.
"""
from __future__ import annotations

import importlib
import math
import os
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np

from tinsmith.backend.cpu import os_calls
from tinsmith.backend.cuda.driver import gpu_count
from tinsmith.backend.device import Device
from tinsmith.core import disk_cache, timeline
from tinsmith.core.errors import ArgumentError, CommunicationError
from tinsmith.core.object_lifetime import WeakTable
from tinsmith.core.settings import settings
from tinsmith.distributed import watch
from tinsmith.distributed.transport.rendezvous import STORE, Store, StoreGroup
from tinsmith.tensor.arguments import integer
from tinsmith.tensor.create import random
from tinsmith.tensor.tensor import Tensor


class LauncherVariables(NamedTuple):
    """The description of this process by its launcher.

    Attributes:
        launcher: "mpirun", "srun" or "torchrun"; "" for a process that no launcher started.
        rank, size: number of the process, and of processes.
        local_rank, local_size: the same among the processes of this host; 0 and 1 if the launcher does not set them.
    """

    launcher: str = ""
    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1

# By launcher: the names of rank, size, local rank and local size. ``srun`` sets those of a step; a batch script, which
# is one process, has only those of the job.
_NAMES = (
    ("mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("mpirun", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"),
    ("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
)


def launched(environment: Mapping[str, str] | None = None) -> LauncherVariables:
    """Return the values of the launcher's variables.

    >>> launched({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4"})
    LauncherVariables(launcher='mpirun', rank=1, size=4, local_rank=0, local_size=1)
    >>> launched({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}).size  # a batch script
    1

    Raises:
        CommunicationError: for a variable that is no number.
    """
    variables = os.environ if environment is None else environment
    for launcher, *names in _NAMES:
        if all(variables.get(name) for name in names[:2]):
            numbers = [_number(variables, name, default) for name, default in zip(names, (0, 1, 0, 1))]
            return LauncherVariables(launcher, *numbers)
    return LauncherVariables()


def _number(variables: Mapping[str, str], name: str, default: int) -> int:
    text = variables.get(name) or str(default)
    if not text.isdecimal():
        raise CommunicationError("dist.init", f"{name}={text!r} is not a whole number", "the variables of a launcher")
    return int(text)


def check_launcher(found: LauncherVariables) -> None:
    """Check that the processes can be connected.

    Raises:
        CommunicationError: under ``torchrun`` on CPUs: MPI knows nothing of its processes.
    """
    if found.launcher == "torchrun" and found.size > 1 and not Device.DEFAULT.startswith("CUDA"):
        raise CommunicationError(
            "dist.init", f"torchrun started {found.size} processes; on CPUs they communicate through MPI, which does "
            "not know processes of torchrun", f"mpirun -n {found.size} python train.py, or "
            f"tinsmith launch -n {found.size} train.py; or DEV=CUDA")


def share_gpus(found: LauncherVariables) -> None:
    """Let ``DEV=CUDA`` without a number be the GPU with this process's number on its host, if there are as many."""
    if settings.DEV.upper() == "CUDA" and found.local_size > 1 and gpu_count() >= found.local_size:
        settings.DEV = f"CUDA:{found.local_rank}"


def threads_of(found: LauncherVariables, cpus: int, every: int) -> int:
    """Return the number of threads for each process of a host; 0 if the launcher has divided the CPUs already.

    >>> threads_of(LauncherVariables("mpirun", 0, 4, 0, 4), 8, 8)
    2
    >>> threads_of(LauncherVariables("mpirun", 0, 2, 0, 2), 1, 2)
    0

    Args:
        cpus: CPUs that this process may run on.
        every: CPUs of the host.
    """
    return max(cpus // found.local_size, 1) if found.local_size > 1 and cpus >= min(every, found.local_size) else 0


@dataclass(eq=False, repr=False)
class ProcessGroup:
    """Processes that communicate: all of them, or those along an axis of a mesh.

    Attributes:
        name: an identifier, the same in all processes; part of the names of host functions.
        ranks: numbers of the processes in the world, in the order of the group.
        rank: number of this process in the group.
        comm: MPI's communicator for data; None in a group of one process.
        checks: MPI's communicator for comparisons of their sequences.
        background: MPI's communicator of the thread of collectives that overlap with kernels; made at first use.
        nccl: NCCL's communicators, by number of the GPU; None where NCCL cannot be used.
        calls: number of collectives so far.
        sequence: a hash of these collectives.
        recent: those since processes compared their sequences: the call's text, and the user's line.
    """

    name: str
    ranks: tuple[int, ...]
    rank: int = 0
    comm: Any = None
    checks: Any = None
    background: Any = None
    nccl: dict[int, Any] = field(default_factory=dict)
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
    """The processes of the program.

    Attributes:
        group: the group of all processes.
        local_rank, local_size: number of this process, and of processes, on this host.
        hosts: the host of each process.
        mpi: ``mpi4py.MPI``, or ``rendezvous.STORE`` under ``torchrun``; None in a program of one process.
        turn: the lock held while a thread communicates.
        simulated: sizes of axes of meshes that replace the program's; None unless this process simulates a rank.
        streams: True if the simulated machine has GPUs, in whose streams collectives run.
    """

    group: ProcessGroup
    local_rank: int = 0
    local_size: int = 1
    hosts: tuple[str, ...] = ()
    mpi: Any = None
    turn: threading.RLock = field(default_factory=threading.RLock)
    thread: int = 0
    simulated: dict[str, int] | None = None
    streams: bool = False

    def check_thread(self) -> None:
        """Check that this thread may communicate.

        Raises:
            CommunicationError: in a thread other than that of ``init``, if MPI supports only that one.
        """
        if threading.get_ident() != self.thread and self.mpi is not None and (
                self.mpi.Query_thread() < self.mpi.THREAD_SERIALIZED):
            raise CommunicationError("dist", "MPI was started for one thread, and another one communicates",
                                     "collectives in the thread of dist.init(), or an MPI with MPI_THREAD_MULTIPLE")

# Functions that are called with each new group of several processes, in all of them at the same time.
GROUPS_MADE: Final[list[Callable[[ProcessGroup], None]]] = []

_world: list[World] = []
_starting = threading.Lock()


def init() -> None:
    """Start the communication between processes, if a launcher started several; implicit at the first use.

    The random streams of all processes become that of rank 0, and each takes its share of the host's cores and, with
    ``DEV=CUDA``, the GPU with its number. Call it before the model is made.

    >>> init(); init()  # a second call does nothing

    Raises:
        CommunicationError: if MPI is not installed, does not belong to the launcher, or the launcher is ``torchrun``
            and the device no GPU.
    """
    world()


def world() -> World:
    """Return the processes of the program, started at the first call."""
    if not _world:
        with _starting:
            if not _world:
                found = launched()
                _world.append(_started(found) if found.size > 1 else World(ProcessGroup("world", (0,))))
                _made_known(_world[0].group)
    return _world[0]


def _made_known(group: ProcessGroup) -> ProcessGroup:
    for tell in GROUPS_MADE if group.size > 1 else ():
        tell(group)
    return group


def install(simulated: World) -> None:
    """Make this process a rank of a simulated world; no communication may have been started."""
    assert not _world, "communication has been started"
    _world.append(simulated)


def is_simulated() -> bool:
    """Return True in a process that simulates a rank: no kernel runs, and tensors have no values."""
    return bool(_world) and _world[0].simulated is not None


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


def share_host(found: LauncherVariables) -> None:
    """Set ``THREADS`` to this process's share of the host's cores, unless the user has set it; let the processes of a
    program compile each kernel once."""
    disk_cache.take_turns[:] = [True] if found.size > 1 else []
    if settings.THREADS == 0 and (count := threads_of(found, len(os_calls.usable_cpus()), os.cpu_count() or 1)):
        settings.THREADS = count


def _started(found: LauncherVariables) -> World:
    check_launcher(found)
    share_gpus(found)
    address = watch.start_monitor(found.size, settings.DIST_TIMEOUT) if found.rank == 0 else None
    agent = watch.Agent() if found.local_rank == 0 else None
    mpi: Any = STORE
    if found.launcher == "torchrun":
        everyone: Any = StoreGroup(Store(found.rank, os.environ), "world", found.size, found.rank)
    else:
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
    address = watch.Address(*told[0][3])
    watch.Watcher(address, number, everyone.Abort)
    timeline.parts[:] = [timeline.Participant(number, host, address.token)]
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
        return _made_known(ProcessGroup(name, members, members.index(own), comm, comm.Dup()))


class Mesh:
    """Processes, or devices of this process, in a grid with named axes.

    Attributes:
        shape: the size of each axis, by name.
        devices: the devices of a mesh in one process; () if the mesh consists of processes.
        place: this process's number along each axis.
    """

    def __init__(self, shape: dict[str, int], devices: tuple[str, ...] = ()) -> None:
        self.shape, self.devices = shape, devices
        self.place = dict.fromkeys(shape, 0)
        self._groups: dict[str, ProcessGroup] = {}
        if not devices:
            own = world().group.rank
            grid = np.arange(world().group.size).reshape(tuple(shape.values()))
            at = [int(n) for n in np.argwhere(grid == own)[0]] if shape else []
            self.place = dict(zip(shape, at))
            for n, axis in enumerate(shape):
                line = tuple(int(r) for r in grid[tuple(slice(None) if k == n else i for k, i in enumerate(at))])
                self._groups[axis] = split(f"{'x'.join(map(str, grid.shape))}_{n}", line)

    def __repr__(self) -> str:
        axes = ", ".join(f"{name}={size}" for name, size in self.shape.items())
        return f"mesh({axes}{f', devices={self.devices}' if self.devices else ''})"

    def size(self, axis: str) -> int:
        """Return the size of an axis; 1 for one that the mesh does not have."""
        return self.shape.get(axis, 1)

    def group(self, axis: str) -> ProcessGroup:
        """Return this process's line of the mesh along an axis.

        Raises:
            ArgumentError: for an unknown axis, or in a mesh of devices, which has no process groups.
        """
        if axis not in self.shape:
            raise ArgumentError("dist.mesh", f"no axis {axis!r} in {self}", f"one of {', '.join(self.shape)}")
        if self.devices:
            raise ArgumentError("dist.mesh", f"{self} is of devices of one process", "operations on whole tensors")
        return self._groups[axis]

Rule = tuple[str | None, ...]  # for each axis of a parameter, an axis of the mesh; () for none

_placed: Final[WeakTable[Tensor, tuple[Mesh, Rule]]] = WeakTable()  # part of a parameter → how it was divided
_staged: Final[WeakTable[Tensor, tuple[Mesh, str, int]]] = WeakTable()
_current: list[Mesh] = []
_made: dict[tuple[Any, ...], Mesh] = {}


def mesh(devices: Sequence[str] | None = None, **axes: int) -> Mesh:
    """Return the mesh of all processes with these axes, and make it the one whose axes collectives know.

    Neighbouring ranks are neighbours along the last axis: give the axis that communicates most last.

    >>> mesh(data=1, model=1)
    mesh(data=1, model=1)
    >>> mesh(model=2, devices=("CPU", "CPU:1")).size("model")
    2

    Args:
        axes: sizes by name; one may be -1: what the others leave.
        devices: names of devices of this process, instead of the processes; then one axis may be larger than 1.

    Raises:
        ArgumentError: if the sizes do not multiply to the number of processes or devices.
    """
    names = tuple(Device.canonicalize(d) for d in devices or ())
    count = len(names) or world().group.size
    if not names:
        axes |= {name: size for name, size in (world().simulated or {}).items() if name in axes}
    sizes = {name: integer("dist.mesh", name, size, least=-1) for name, size in axes.items()}
    known = math.prod(s for s in sizes.values() if s > 0)
    free = [name for name, size in sizes.items() if size == -1]
    if len(free) == 1 and known and count % known == 0:
        sizes[free[0]] = count // known
    what = "devices" if names else "processes"
    if math.prod(sizes.values()) != count or min(sizes.values(), default=1) < 1:
        raise ArgumentError("dist.mesh", f"axes {axes} for {count} {what}", f"sizes whose product is {count}")
    if names and sum(size > 1 for size in sizes.values()) > 1:
        raise ArgumentError("dist.mesh", f"axes {axes} over devices of one process",
                            "one axis over the devices, or processes for the other")
    key = (names, tuple(sizes.items()))
    if key not in _made:
        _made[key] = Mesh(sizes, names)
    _current[:] = [_made[key]]
    return _made[key]


def meshes() -> list[Mesh]:
    """Return all meshes that were made."""
    return list(_made.values())


def current() -> Mesh | None:
    """Return the mesh that was made last."""
    return _current[0] if _current else None


def group_of(op: str, axis: str | None) -> ProcessGroup:
    """Return the processes along an axis of the current mesh; all processes for None.

    Raises:
        ArgumentError: if there is no mesh with that axis.
    """
    if axis is None:
        return world().group
    if not _current:
        raise ArgumentError(op, f"axis={axis!r} without a mesh", f"dist.mesh({axis}={world().group.size}) first")
    return _current[0].group(axis)


def note_placement(t: Tensor, mesh: Mesh, rule: Rule) -> None:
    """Record that a parameter is this process's part of one that was divided over a mesh."""
    _placed[t] = (mesh, rule)


def note_stage(t: Tensor, mesh: Mesh, axis: str, number: int) -> None:
    """Record that only the processes at this one's place along ``axis`` have a tensor; ``number`` is its number among
    the trained tensors, or among the others, of all stages."""
    _staged[t] = (mesh, axis, number)


def stage_of(t: Tensor) -> tuple[Mesh, str, int] | None:
    """Return what ``note_stage`` recorded; None for a tensor of no stage."""
    return _staged[t] if t in _staged else None  # noqa: SIM401


def placement(t: Tensor) -> tuple[Mesh, Rule] | None:
    """Return the mesh and the axes over which a parameter is sharded; None if it is not sharded."""
    return _placed[t] if t in _placed else None  # noqa: SIM401  get() has no None of another type


def divided(t: Tensor) -> tuple[ProcessGroup, ...]:
    """Return the groups among which a parameter is sharded; () if it is not sharded."""
    mesh, rule = placement(t) or (None, ())
    return () if mesh is None else tuple(mesh.group(a) for a in rule if a is not None and mesh.size(a) > 1)
