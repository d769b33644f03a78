"""Measurement of this machine for ``tinsmith simulate``, under ``mpirun``: kernels, and collectives through MPI.

All processes measure kernels at the same time, so that the bandwidth of memory is the share of each.
"""
from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Final

import numpy as np

from tinsmith.backend.cpu import os_calls
from tinsmith.backend.machine import measure as measure_kernels
from tinsmith.core.errors import CommunicationError
from tinsmith.distributed.simulation.links import Link, Links
from tinsmith.distributed.transport.commands import run
from tinsmith.distributed.world import ProcessGroup, world

SMALL: Final = 1 << 6  # bytes of the message whose time is that of a call
LARGE: Final = 8 << 20  # bytes of the message whose time gives the bandwidth
ROUNDS: Final = 60
SPIN: Final = 1.0  # seconds in which all processes compute, to see how many cores they get
MOST_CPUS: Final = 1 << 13  # numbers of processors
_OPTIONS: Final = {"all_reduce": ("sum",), "reduce_scatter": ("sum",), "broadcast": (0,)}


def measure(path: Path) -> int:
    """Measure the machine of this process's world; rank 0 writes the file. Return 0, the exit code.

    Raises:
        CommunicationError: in one process.
    """
    group = world().group
    if group.size == 1:
        raise CommunicationError("tinsmith simulate", "--measure in one process",
                                 f"mpirun -n 2 python -m tinsmith simulate --measure {path}")
    _seconds(group, "barrier", SMALL, 1)
    machine = measure_kernels("CPU")
    kinds = {}
    for kind in ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast"):
        few, many = (_seconds(group, kind, nbytes, ROUNDS) for nbytes in (SMALL, LARGE))
        unit = Link(0.0, 1.0).seconds(kind, LARGE - SMALL, group.size)
        kinds[kind] = [few, unit / max(many - few, 1e-9)]
    few, many = (_message(group, nbytes, ROUNDS) for nbytes in (SMALL, LARGE))
    kinds["send"] = [few, (LARGE - SMALL) / max(many - few, 1e-9)]
    barrier = _seconds(group, "barrier", SMALL, ROUNDS)
    memory = os_calls.total_memory()
    here = Link(0.0, min(b for _, b in kinds.values()), barrier, kinds)
    device = {"renderer": "cpu", "machine": json.loads(machine.dumps())}
    found = Links(f"{group.size} processes on {machine.name}", device, memory // world().local_size, world().local_size,
                  here, here, False, _cores(group),
                  {"all": f"tinsmith simulate --measure in {group.size} processes, {time.strftime('%Y-%m-%d')}"})
    if group.rank == 0:
        path.write_text(found.dumps() + os.linesep, "utf-8")
        print(f"{path}: all-reduce of {LARGE >> 20} MB at {kinds['all_reduce'][1] / 1e9:.2f} GB/s, "
              f"{kinds['all_reduce'][0] * 1e6:.0f} us per call")
    return 0


def _cores(group: ProcessGroup) -> float:
    """Return the cores that processes get on each host, with whatever else it runs: the share of a core that a thread
    of each gets, for all cores that one of them may use (MPI may bind each to some)."""
    _seconds(group, "barrier", SMALL, 1)
    begin, used = time.perf_counter(), time.process_time()
    while time.perf_counter() - begin < SPIN:
        pass
    share = np.array([(time.process_time() - used) / (time.perf_counter() - begin)])
    total, usable = np.empty(1), np.zeros(MOST_CPUS, np.int32)
    run("all_reduce", group, ("sum",), total, share)
    usable[list(os_calls.usable_cpus())] = 1
    anywhere = np.empty_like(usable)
    run("all_reduce", group, ("max",), anywhere, usable)
    local, count = world().local_size, int(anywhere.sum())
    return float(min(total[0] * local / group.size * max(count / local, 1), count))


def _message(group: ProcessGroup, nbytes: int, rounds: int) -> float:
    """Return the median seconds of a message: half of the way there and back, between neighbours."""
    x = np.ones(nbytes // 4, np.float32)
    peer, times, out = group.rank ^ 1, np.zeros(rounds), np.zeros(1, np.float32)
    for n in range(rounds if peer < group.size else 0):
        start = time.perf_counter()
        for kind in ("send", "receive") if group.rank < peer else ("receive", "send"):
            run(kind, group, (peer, 0), out if kind == "send" else x, x)
        times[n] = (time.perf_counter() - start) / 2
    slowest = np.empty(rounds)
    run("all_reduce", group, ("max",), slowest, times)
    return float(np.median(slowest))


def _seconds(group: ProcessGroup, kind: str, nbytes: int, rounds: int) -> float:
    """Return the median seconds of a collective over some rounds, in each of which the slowest process counts."""
    full, part = np.ones(nbytes // 4, np.float32), np.ones(nbytes // 4 // group.size, np.float32)
    x, out = {"all_gather": (part, full.copy()), "reduce_scatter": (full, part)}.get(kind, (full, full.copy()))
    times = np.empty(rounds)
    for n in range(rounds):
        run("barrier", group, (), out, x)
        start = time.perf_counter()
        run(kind, group, _OPTIONS.get(kind, ()), out, x)
        times[n] = time.perf_counter() - start
    slowest = np.empty(rounds)
    run("all_reduce", group, ("max",), slowest, times)
    return float(np.median(slowest))
