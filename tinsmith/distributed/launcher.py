"""``tinsmith launch``: the command of ``mpirun`` that fits the installed MPI, and restarts.

The ``mpirun`` of mpi4py's MPI must start the processes; if a wheel installed it, it is in the folder of ``python``.
A restart leaves out hosts that do not answer any more to ``ssh``, by which ``mpirun`` reaches them, too.
"""
from __future__ import annotations

import functools
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from tinsmith.core.errors import CommunicationError

_PAUSE = 1.0  # seconds before a restart
_REACH = 10.0  # seconds for a host to answer

# Variables that name another program than ssh, as Open MPI 5 and 4 read them.
_AGENTS = ("PRTE_MCA_plm_ssh_agent", "OMPI_MCA_plm_rsh_agent")


class Host(NamedTuple):
    """A host, and the number of processes for it."""

    name: str
    slots: int = 1

    def __str__(self) -> str:
        return f"{self.name}:{self.slots}"


def hosts_of(names: Sequence[str], hostfile: str = "") -> list[Host]:
    """Return hosts given as "node1:4", several with commas between, or by the lines of a file, as "node1 slots=4".

    >>> hosts_of(["node1:4,node2"])
    [Host(name='node1', slots=4), Host(name='node2', slots=1)]

    Raises:
        CommunicationError: if the file cannot be read, or a number is none.
    """
    texts = [text for name in names for text in name.split(",")]
    if not texts and hostfile:
        try:
            texts = Path(hostfile).read_text().splitlines()
        except OSError as error:
            raise CommunicationError("tinsmith launch", f"{hostfile!r}: {error}", "a file of host names") from None
    found = []
    for text in texts:
        name, *rest = text.partition("#")[0].replace("slots=", " ").replace(":", " ").split() or [""]
        if rest and not (rest[0].isdecimal() and int(rest[0])):
            raise CommunicationError("tinsmith launch", f"{text!r}: {rest[0]!r} is no number of processes", "node1:4")
        found += [Host(name, int(rest[0]) if rest else 1)] if name else []
    return found


def is_reached(host: Host) -> bool:
    """Return True if a host answers."""
    if host.name in ("localhost", "127.0.0.1", socket.gethostname()):
        return True
    agent = next((os.environ[name] for name in _AGENTS if os.environ.get(name)), "ssh").split()
    options = ["-o", "BatchMode=yes", "-o", f"ConnectTimeout={_REACH:.0f}"] if Path(agent[0]).name == "ssh" else []
    try:
        return subprocess.run([*agent, *options, host.name, "true"], stdin=subprocess.DEVNULL, capture_output=True,
                              timeout=2 * _REACH, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


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
        program: script and its arguments, "-m" and a module, or "-c" and code.
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
            (``TINSMITH_RESTART`` counts the restarts). Hosts that do not answer are left out, and the number of
            processes is reduced to the slots of the others.
        say: the function that prints a line.

    Raises:
        CommunicationError: if no MPI is installed, or no host answers.
    """
    line = command(count, program, hosts, hostfile)
    for attempt in range(restarts + 1):
        code = _run(line, environment() | {"TINSMITH_RESTART": str(attempt)})
        if code == 0 or code == 128 + signal.SIGINT or attempt == restarts:
            return code
        say(f"tinsmith launch: exit code {code}; restart {attempt + 1} of {restarts}")
        time.sleep(_PAUSE)
        if hosts or hostfile:
            count, left = _left(count, hosts_of(hosts, hostfile), say)
            hosts, hostfile = [str(host) for host in left], ""
            line = command(count, program, hosts)
    return code


def _left(count: int, hosts: Sequence[Host], say: Callable[[str], object]) -> tuple[int, list[Host]]:
    """Return the hosts that answer, and how many of ``count`` processes they have room for."""
    with ThreadPoolExecutor(max_workers=min(len(hosts), 64)) as pool:
        reached = list(pool.map(is_reached, hosts))
    left = [host for host, there in zip(hosts, reached) if there]
    if not left:
        raise CommunicationError("tinsmith launch", f"none of {', '.join(h.name for h in hosts)} answers",
                                 "hosts that ssh reaches without a password")
    if len(left) < len(hosts):
        lost = ", ".join(host.name for host, there in zip(hosts, reached) if not there)
        count = min(count, sum(host.slots for host in left))
        say(f"tinsmith launch: no answer from {lost}; {count} processes on {', '.join(h.name for h in left)}")
    return count, left


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
