"""The variables that launchers of processes set: ``mpirun`` of Open MPI and MPICH, ``srun``, ``torchrun``."""
from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

from tinsmith.core.errors import CommunicationError


class LauncherVariables(NamedTuple):
    """The launcher's account of this process.

    Attributes:
        launcher: "mpirun", "srun" or "torchrun"; "" for a process that no launcher started.
        rank, size: number of the process, and of processes.
        local_rank, local_size: the same among those of one host; 0 and 1 where the launcher does not say.
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
    """Return what the launcher's variables say.

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
    """Check that MPI can connect the processes.

    Raises:
        CommunicationError: under ``torchrun``, which starts processes that MPI knows nothing of.
    """
    if found.launcher == "torchrun" and found.size > 1:
        raise CommunicationError(
            "dist.init", f"torchrun started {found.size} processes; on CPUs they communicate through MPI, which does "
            "not know processes of torchrun", f"mpirun -n {found.size} python train.py, or "
            f"tinsmith launch -n {found.size} train.py")


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
