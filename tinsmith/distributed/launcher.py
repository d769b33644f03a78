"""``tinsmith launch``: the command of ``mpirun`` that fits the installed MPI, and restarts.

The ``mpirun`` of mpi4py's MPI must start the processes; if a wheel installed it, it is in the folder of ``python``.
"""
from __future__ import annotations

import functools
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tinsmith.core.errors import CommunicationError

_PAUSE = 1.0  # seconds before a restart


def mpirun() -> str | None:
    """Return the path of ``mpirun``: in the folder of ``python``, else the first on ``PATH``; None if there is none."""
    beside = Path(sys.executable).parent / "mpirun"
    return str(beside) if beside.exists() else shutil.which("mpirun")


@functools.cache
def is_open_mpi(path: str) -> bool:
    """Return True if an ``mpirun`` is Open MPI's; others take MPICH's options."""
    found = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
    return "Open MPI" in found.stdout + found.stderr


def command(count: int, program: Sequence[str], hosts: Sequence[str] = (), hostfile: str = "") -> list[str]:
    """Return the command that starts ``count`` processes of a Python program.

    Args:
        program: script and its arguments, or "-m" and a module.
        hosts: names of hosts, such as "node1:4" for four processes on node1; default: this host.
        hostfile: a file with such names, instead of ``hosts``.

    Raises:
        CommunicationError: if no MPI is installed.
    """
    path = mpirun()
    if path is None:
        raise CommunicationError("tinsmith launch", "no mpirun beside python or in PATH", "pip install 'tinsmith[mpi]'")
    options: list[str] = []
    if is_open_mpi(path):
        local = not hosts and not hostfile
        options += ["--map-by", ":OVERSUBSCRIBE"] if local and count > (os.cpu_count() or 1) else []
        options += ["--host", ",".join(hosts)] if hosts else ["--hostfile", hostfile] if hostfile else []
    else:
        options += ["-hosts", ",".join(hosts)] if hosts else ["-f", hostfile] if hostfile else []
    return [path, *options, "-n", str(count), sys.executable, *program]


def environment() -> dict[str, str]:
    """Return the variables that ``mpirun`` needs: Open MPI refuses to start for root, who owns most containers."""
    found = dict(os.environ)
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        found |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return found


def launch(count: int, program: Sequence[str], restarts: int = 0, hosts: Sequence[str] = (), hostfile: str = "",
           say: Callable[[str], object] = lambda text: print(text, file=sys.stderr)) -> int:
    """Run a program in ``count`` processes; return its exit code.

    Args:
        restarts: the maximum number of restarts of a failed program; the script itself loads its last checkpoint
            (``TINSMITH_RESTART`` counts the restarts).
        say: the function that prints a line.

    Raises:
        CommunicationError: if no MPI is installed.
    """
    line = command(count, program, hosts, hostfile)
    for attempt in range(restarts + 1):
        code = _run(line, environment() | {"TINSMITH_RESTART": str(attempt)})
        if code == 0 or code == 128 + signal.SIGINT or attempt == restarts:
            return code
        say(f"tinsmith launch: exit code {code}; restart {attempt + 1} of {restarts}")
        time.sleep(_PAUSE)
    return code


def _run(line: Sequence[str], variables: dict[str, str]) -> int:
    """Run ``mpirun``; Ctrl-C and SIGTERM go on to it, and it ends all processes."""
    process = subprocess.Popen(line, env=variables)
    came: list[int] = []

    def pass_on(number: int, _: object) -> None:
        came.append(number)
        process.send_signal(number)

    before = {n: signal.signal(n, pass_on) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        code = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return 128 + came[0] if came else code if code >= 0 else 128 - code
