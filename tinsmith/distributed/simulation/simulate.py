"""``tinsmith simulate``: the schedule of one process of a program, on any number of processes, without the machines.

The script runs once, in one process that takes itself for one rank of a world of any size. Its graphs are scheduled and
lowered as ever, for a device that runs nothing (``device.py``): kernels take the time of the roofline model,
collectives that of the links (``links.py``). The script is ended after some optimizer steps; the last one is reported.
Stages of a pipeline are simulated together, in a process each (``peers.py``).
"""
from __future__ import annotations

import argparse
import contextlib
import functools
import json
import math
import os
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from tinsmith.backend.device import Device
from tinsmith.core.counters import GlobalCounters
from tinsmith.core.errors import ArgumentError, TinsmithError
from tinsmith.core.terminal import bytes_text, percent, time_text
from tinsmith.distributed import world as worlds
from tinsmith.distributed.simulation.device import STEP, SimulatedDevice, SimulatedEvent, SimulatedTimeline, renderer_of
from tinsmith.distributed.simulation.links import Links
from tinsmith.distributed.simulation.measured_links import measure
from tinsmith.distributed.simulation.peers import Peers, SimulatedCommunicator, Start
from tinsmith.distributed.transport.rendezvous import STORE
from tinsmith.ir.ops.scans import WRITERS
from tinsmith.nn.optim import Optimizer
from tinsmith.tensor.helpers import held_tensors
from tinsmith.tensor.host_data import host_value
from tinsmith.tensor.tensor import Tensor

NAMES: Final = ("CPU", "CUDA")  # devices that scripts name; both are the simulated one
ROWS: Final = 10  # of the critical path in a report
OTHER: Final = "--other-stage"  # the option by which the process of another stage is started


class Ended(BaseException):
    """Enough steps are simulated: the script ends."""


@dataclass(frozen=True)
class StepReport:
    """The last step of a simulation; times in seconds, memory in bytes.

    Attributes:
        seconds: of the step.
        kernels: the time of kernels, by the bound ("arithmetic", "memory" or "launch").
        exposed: the time in which the queue waits for collectives, by "kind axis".
        idle: the time in which the queue waits for other stages of a pipeline.
        hidden: the time of collectives beside kernels, the same way.
        operations: arithmetic operations.
        parameters, gradients, state: bytes in the parameters of optimizers, their gradients, and the other tensors of
            optimizers.
        peak: the most bytes allocated at a time during the step.
        capacity: bytes of the device's memory.
        path: the longest parts of the critical path: (what, count, seconds).
        stages: of a pipeline, for each stage: seconds of kernels, of communication and idle ones; peak bytes.
    """

    mesh: str
    machine: str
    steps: int
    seconds: float
    kernels: dict[str, float]
    exposed: dict[str, float]
    hidden: dict[str, float]
    operations: float
    parameters: int
    gradients: int
    state: int
    peak: int
    capacity: int
    path: list[tuple[str, int, float]]
    idle: float = 0.0
    stages: list[tuple[float, float, float, int]] = field(default_factory=list)

    @property
    def communication(self) -> float:
        """The share of the step in which the queue waits for collectives."""
        return sum(self.exposed.values()) / self.seconds if self.seconds else 0.0


class Simulation:
    """The simulation of one process of a world.

    Args:
        links: the machine.
        mesh: sizes of the mesh's axes; their product is the number of processes.
        rank: the process whose schedule is made.
        steps: optimizer steps until the script is ended.
        start, given: see ``Peers``: the simulations of other stages of a pipeline.
    """

    def __init__(self, links: Links, mesh: dict[str, int], rank: int = 0, steps: int = 3, start: Start | None = None,
                 given: str = "") -> None:
        self.links, self.mesh, self.rank, self.steps = links, mesh, rank, steps
        self.size = math.prod(mesh.values())
        if not 0 <= rank < self.size:
            raise ArgumentError("tinsmith simulate", f"rank {rank} of {self.size} processes", "--rank 0")
        self.local = min(links.per_host, self.size)
        self.threads = max(round(links.cores) // self.local, 1)
        self.peers = Peers(rank, start, given)
        self.timeline = SimulatedTimeline(links, self.peers, links.slowdown(self.local, self.threads),
                                          at_step=self._at_step)
        self.renderer = renderer_of(links, self.threads)
        self.optimizers: list[Optimizer] = []
        self.peak = 0

    def run(self, script: Callable[[], object]) -> StepReport:
        """Run a script, and return the report of its last step."""
        try:
            with self._world(), contextlib.suppress(Ended), _marked_steps(self.optimizers):
                script()
            return self._with_stages(self.report())
        finally:
            self.peers.end()

    @contextlib.contextmanager
    def _world(self) -> Iterator[None]:
        """Make this process a rank of the simulated world. Nothing is undone but the names of devices: a process runs
        one simulation."""
        for name in NAMES:
            Device.register(name, lambda canonical: SimulatedDevice(canonical, self.timeline, self.renderer))
        WRITERS.setdefault(STEP, lambda out, *_: None)
        here, per = SimulatedCommunicator(self.peers), self.links.per_host
        # one host per process where collectives run beside kernels, which all_reduce_gradients does between hosts
        hosts = [str(r if self.links.overlaps else self.links.host(r)) for r in range(self.size)]
        group = worlds.ProcessGroup("world", tuple(range(self.size)), self.rank, here, here)
        here.group = group
        worlds.GROUPS_MADE.append(_bind)
        worlds.install(worlds.World(group, self.rank % per, min(per, self.size), tuple(hosts), STORE,
                                    simulated=self.mesh, streams=self.links.device.get("renderer") == "cuda"))
        yield

    def _at_step(self) -> None:
        if self.peers.group is not None:  # a stage that waits leaves its cores to others
            shares = self.peers.all(self.peers.group, self._busy())
            self.timeline.slowdown = self.links.slowdown(self.local, self.threads, sum(shares) / len(shares))
        if len(self.timeline.steps) >= self.steps:
            raise Ended
        GlobalCounters.peak_on = GlobalCounters.memory_on.copy()

    def _last_step(self) -> tuple[list[SimulatedEvent], float]:
        """Return the events and the seconds of the last step; of the whole script if it has no two steps."""
        line = self.timeline
        ends = [(0, 0.0), *line.steps] if line.steps else [(0, 0.0), (len(line.events), line.now)]
        (first, begin), (last, end) = ends[-2:]
        return line.events[first:last], end - begin

    def _busy(self) -> float:
        """Return the share of the last step in which the queue does not wait for other stages."""
        events, seconds = self._last_step()
        return 1.0 - sum(e.seconds for e in events if e.kind == "idle") / seconds if seconds else 1.0

    def _with_stages(self, own: StepReport) -> StepReport:
        """Return a report with the numbers of all stages."""
        found = {self.rank: own}
        others = [r for r in self.peers.ranks if r != self.rank]
        for rank, fields in zip(others, self.peers.reports()):
            found[rank] = StepReport(**fields)
        stages = [(sum(r.kernels.values()), sum(r.exposed.values()), r.idle, r.peak) for _, r in sorted(found.items())]
        return replace(own, stages=stages) if len(stages) > 1 else own

    def report(self) -> StepReport:
        """Return the report of the last step; of the whole script if it has no two steps."""
        line = self.timeline
        events, seconds = self._last_step()
        idle = sum(e.seconds for e in events if e.kind == "idle")
        kernels: dict[str, float] = {}
        for e in events:
            if e.lane == "queue" and not e.group:
                kernels[e.bound or e.kind] = kernels.get(e.bound or e.kind, 0.0) + e.seconds
        talking = [e for e in events if e.kind != "idle"]
        exposed, hidden = self._by_axis(talking, "queue"), self._by_axis(talking, "links")
        waits = self._by_axis([e for e in events if e.kind == "wait"], "queue")
        hidden = {k: max(v - waits.get(k, 0.0), 0.0) for k, v in hidden.items()}
        parameters, gradients, state = self._memory()
        mesh = ", ".join(f"{k}={v}" for k, v in self.mesh.items())
        return StepReport(mesh, self.links.name, len(line.steps), seconds, kernels, exposed, hidden,
                      sum(e.work for e in events if e.kind == "kernel"), parameters, gradients, state,
                      max(GlobalCounters.peak_on[name] for name in NAMES), self.links.memory, self._path(events), idle)

    def _axis(self, group: str) -> str:
        """Return the axis of a group of processes: "all" for the world."""
        ranks = self.timeline.groups[group].ranks
        for mesh in worlds.meshes():
            for axis in mesh.shape:
                if not mesh.devices and mesh.group(axis).ranks == ranks:
                    return axis
        return "all"

    def _by_axis(self, events: Sequence[SimulatedEvent], lane: str) -> dict[str, float]:
        found: dict[str, float] = {}
        for e in events:
            if e.group and e.lane == lane:
                name = f"{e.name.split()[0]} {self._axis(e.group)}"
                found[name] = found.get(name, 0.0) + e.seconds
        return found

    def _path(self, events: Sequence[SimulatedEvent]) -> list[tuple[str, int, float]]:
        """Return the parts of the critical path, the longest first: the queue, in which a wait is the collective on the
        links that it waits for."""
        found: dict[str, tuple[int, float]] = {}
        for e in events:
            if e.lane == "queue":
                name = f"{e.name.split()[0]} {self._axis(e.group)}" if e.group else e.name
                count, seconds = found.get(name, (0, 0.0))
                found[name] = count + 1, seconds + e.seconds
        return [(k, n, s) for k, (n, s) in sorted(found.items(), key=lambda x: -x[1][1])]

    def _memory(self) -> tuple[int, int, int]:
        """Return the bytes of parameters, gradients and state of optimizers."""
        parameters = {id(p): p for o in self.optimizers for part in o.parts() for p in part.params}
        held = {id(t): t for o in self.optimizers for part in o.parts() for t in held_tensors(part)}
        gradients = [p.grad for p in parameters.values() if p.grad is not None]
        state = [t for k, t in held.items() if k not in parameters and all(t is not g for g in gradients)]
        return _bytes(parameters.values()), _bytes(gradients), _bytes(state)


def _bind(group: worlds.ProcessGroup) -> None:
    """Tell the communicator of a new group its ranks."""
    group.checks.group = group


def _bytes(tensors: Any) -> int:
    return sum(t.numel() * t.dtype.itemsize for t in tensors)


@contextlib.contextmanager
def _marked_steps(optimizers: list[Optimizer]) -> Iterator[None]:
    """Let optimizers run the command ``STEP`` after each step, in captured programs, too."""
    original = Optimizer.step

    def step(self: Optimizer, skip: Tensor | None = None) -> None:
        original(self, skip)
        if all(o is not self for o in optimizers):
            optimizers.append(self)
        if optimizers[0] is self:
            token = Tensor.zeros(1, device=self.params[0].device).contiguous()
            host_value(STEP, (1,), token, after=[self.params[0].detach()]).realize()

    type.__setattr__(Optimizer, "step", step)
    try:
        yield
    finally:
        type.__setattr__(Optimizer, "step", original)


# *** the command ***


def text(report: StepReport) -> str:
    """Return a report as text."""
    r = report
    busy = sum(r.kernels.values())
    bounds = ", ".join(f"{name} {percent(s / max(busy, 1e-30))}" for name, s in _longest(r.kernels))
    rest = max(r.peak - r.parameters - r.gradients - r.state, 0)
    step, waits = max(r.seconds, 1e-30), sum(r.exposed.values())
    lines = [
        f"{r.mesh} on {r.machine}",
        f"time per step       {time_text(r.seconds)} (step {r.steps}), {r.operations / step:.3g} FLOP/s",
        f"  kernels           {time_text(busy)}: {bounds}",
        f"  communication     {time_text(waits)}, {percent(r.communication)} of the step"]
    lines += [f"    {name:<26} {time_text(s)}" for name, s in _longest(r.exposed)]
    if r.idle:
        lines += [f"  idle              {time_text(r.idle)}, {percent(r.idle / step)} of the step, for other stages"]
    lines += [
        f"  beside kernels    {time_text(sum(r.hidden.values()))}",
        f"memory per device   {bytes_text(r.peak)} of {bytes_text(r.capacity)}"
        + (" (too little)" if r.peak > r.capacity else ""),
        f"  parameters {bytes_text(r.parameters)}, gradients {bytes_text(r.gradients)}, optimizer "
        f"{bytes_text(r.state)}, activations and temporaries {bytes_text(rest)}",
        *[f"  stage {n}: kernels {time_text(k)}, communication {time_text(c)}, idle {time_text(i)}; {bytes_text(peak)}"
          for n, (k, c, i, peak) in enumerate(r.stages)],
        "critical path"]
    lines += [f"  {percent(s / step):>6}  {time_text(s):>8}  {count:>5} x {name}" for name, count, s in r.path[:ROWS]]
    return "\n".join(lines)


def _longest(times: dict[str, float]) -> list[tuple[str, float]]:
    return sorted(times.items(), key=lambda x: -x[1])


def mesh_sizes(words: str) -> dict[str, int]:
    """Return the sizes of axes.

    >>> mesh_sizes("data=64,model=8")
    {'data': 64, 'model': 8}

    Raises:
        ArgumentError: for another form.
    """
    found = {}
    for word in words.split(","):
        name, _, size = word.partition("=")
        if not name.isidentifier() or not size.isdecimal() or int(size) < 1:
            raise ArgumentError("tinsmith simulate", f"--mesh {words}", "data=64,model=8")
        found[name] = int(size)
    return found


def simulate(arguments: Sequence[str]) -> int:
    """Run the command ``tinsmith simulate``; return its exit code."""
    parser = argparse.ArgumentParser(prog="tinsmith simulate", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mesh", default="data=1", metavar="AXIS=SIZE,...",
                        help="the product is the number of processes; sizes replace those of the script's mesh")
    parser.add_argument("--links", default="h200.json", metavar="FILE", help="the machine; default: h200.json")
    parser.add_argument("--rank", type=int, default=0, help="the process whose schedule is made")
    parser.add_argument("--steps", type=int, default=3, help="optimizer steps; the last one is reported")
    parser.add_argument("--extrapolate", type=depths, metavar="A,B:N",
                        help="simulate A and B layers instead of N, which take the place of {} in the script's "
                             "arguments; all numbers of the report are linear in the layers")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--measure", metavar="FILE", help="measure this machine under mpirun, and write the file")
    parser.add_argument(OTHER, default="", help=argparse.SUPPRESS)
    parser.add_argument("-m", dest="module", help="a module instead of a script")
    parser.add_argument("script", nargs="?",
                        help="what follows it and is no option above is the script's, or all after --")
    own = list(arguments).index("--") if "--" in arguments else len(arguments)
    chosen, rest = parser.parse_known_args(arguments[:own])
    rest += arguments[own + 1 :]
    if chosen.module and chosen.script:
        chosen.script, rest = None, [chosen.script, *rest]
    try:
        if chosen.measure:
            return measure(Path(chosen.measure))
        if not (chosen.script or chosen.module) or chosen.steps < 1:
            parser.error("a script, and at least one step")
        if chosen.extrapolate:
            report = _extrapolated(list(arguments), *chosen.extrapolate)
        else:
            other = chosen.other_stage
            simulation = Simulation(Links.load(chosen.links), mesh_sizes(chosen.mesh),
                                    int(other.split(":")[3]) if other else chosen.rank, chosen.steps,
                                    functools.partial(_started, arguments), other)
            with (open(os.devnull, "w") as nowhere,
                  contextlib.redirect_stdout(nowhere if other else sys.stderr)):  # what is printed is not computed
                report = simulation.run(functools.partial(_run_script, chosen.script, chosen.module, rest))
    except TinsmithError as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps(asdict(report)) if chosen.json or chosen.other_stage else text(report))
    return 0


def _started(arguments: Sequence[str], given: str) -> subprocess.Popen[str]:
    """Start the simulation of another rank by the same command."""
    return subprocess.Popen([sys.executable, "-m", "tinsmith", "simulate", OTHER, given, *arguments],
                            stdout=subprocess.PIPE, text=True)


def depths(words: str) -> tuple[int, int, int]:
    """Return two numbers of layers to simulate, and the number of layers to extrapolate to.

    >>> depths("2,4:80")
    (2, 4, 80)

    Raises:
        argparse.ArgumentTypeError: for another form.
    """
    few, _, wanted = words.partition(":")
    numbers = [*few.split(","), wanted]
    if len(numbers) != 3 or not all(n.isdecimal() for n in numbers) or not int(numbers[0]) < int(numbers[1]):
        raise argparse.ArgumentTypeError(f"{words!r}: give 2,4:80")
    return int(numbers[0]), int(numbers[1]), int(numbers[2])


def _extrapolated(arguments: list[str], few: int, many: int, wanted: int) -> StepReport:
    """Return the report for ``wanted`` layers from those for ``few`` and ``many``, each by a process of its own.

    Raises:
        ArgumentError: if a process fails.
    """
    at = next(n for n, a in enumerate(arguments) if a.startswith("--extrapolate"))
    rest = arguments[:at] + arguments[at + (1 if "=" in arguments[at] else 2) :]
    found = []
    for layers in (few, many):
        given = [a.replace("{}", str(layers)) for a in rest]
        command = [sys.executable, "-m", "tinsmith", "simulate", "--json", *given]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        if done.returncode:
            raise ArgumentError("tinsmith simulate", f"the simulation of {layers} layers failed", "its message above")
        found.append(StepReport(**json.loads(done.stdout)))
    return extrapolated(found[0], found[1], (wanted - few) / (many - few))


def extrapolated(a: StepReport, b: StepReport, t: float) -> StepReport:
    """Return ``a + t * (b - a)``, by each number; no time is negative."""

    def line(x: float, y: float) -> float:
        return x + t * (y - x)

    def lines(x: dict[str, float], y: dict[str, float]) -> dict[str, float]:
        return {k: max(line(x.get(k, 0.0), y.get(k, 0.0)), 0.0) for k in {**x, **y}}

    counts = [{name: count for name, count, _ in r.path} for r in (a, b)]
    times = lines(*({name: s for name, _, s in r.path} for r in (a, b)))
    path = [(k, max(round(line(counts[0].get(k, 0), counts[1].get(k, 0))), 1), s) for k, s in _longest(times)]
    kernels, exposed = lines(a.kernels, b.kernels), lines(a.exposed, b.exposed)
    # a wait does not get shorter than nothing, so the time is the sum of the parts
    idle = max(line(a.idle, b.idle), 0.0)
    stages = [(line(k, p), line(c, q), max(line(i, r), 0.0), round(line(m, n)))
              for (k, c, i, m), (p, q, r, n) in zip(a.stages, b.stages)]
    return replace(b, seconds=sum(kernels.values()) + sum(exposed.values()) + idle, kernels=kernels, exposed=exposed,
                   idle=idle, stages=stages,
                   hidden=lines(a.hidden, b.hidden), operations=line(a.operations, b.operations),
                   parameters=round(line(a.parameters, b.parameters)),
                   gradients=round(line(a.gradients, b.gradients)), state=round(line(a.state, b.state)),
                   peak=round(line(a.peak, b.peak)), path=path)


def _run_script(script: str | None, module: str | None, arguments: Sequence[str]) -> None:
    """Run a script or a module as ``python`` does."""
    if module:
        sys.argv[:] = [module, *arguments]
        sys.path.insert(0, os.getcwd())
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    elif script:
        sys.argv[:] = [script, *arguments]
        sys.path.insert(0, os.path.dirname(os.path.abspath(script)))
        runpy.run_path(script, run_name="__main__")
