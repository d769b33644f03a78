"""A device whose programs are not run: each launch advances a clock by its predicted time.

Programs are scheduled, lowered and rendered for the target of the simulated machine; nothing is compiled, and memory is
only counted. Collectives are commands of these programs, and take the time of the links. Reading a value gives zeros.
"""
from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from tinsmith.backend.cpu.device import host_target
from tinsmith.backend.cuda.stream_calls import FUNCTIONS
from tinsmith.backend.device import Allocator, Compiled, Compiler
from tinsmith.backend.memory import Buffer, MemoryBlock
from tinsmith.backend.program import Program
from tinsmith.codegen.launch import KernelProgram, Launch
from tinsmith.codegen.planner.roofline import Machine
from tinsmith.codegen.render.base import Renderer
from tinsmith.codegen.render.cuda import CUDARenderer, cuda_target
from tinsmith.codegen.render.llvm import LLVMRenderer
from tinsmith.core.dtypes import dtypes
from tinsmith.core.errors import ArgumentError, user_line
from tinsmith.distributed.simulation.links import Links
from tinsmith.distributed.simulation.peers import Peers
from tinsmith.distributed.world import ProcessGroup
from tinsmith.ir.ops.scans import WRITERS

STEP: Final = "simulated_step"  # the host function that marks the end of an optimizer's step
MESSAGES: Final = ("send", "receive", "post", "exchange")


class SimulatedEvent(NamedTuple):
    """A part of the timeline.

    Attributes:
        lane: "queue" for kernels, and collectives that the queue waits for; "links" for collectives beside it.
        kind: "kernel", "copy", "wait" (for a collective on the links), "idle" (for another stage of a pipeline), or the
            kind of the collective.
        name: of the kernel or the collective.
        group: the name of the group of processes; "" for kernels.
        work: operations of a kernel, or bytes of a collective.
        bound: the largest part of a kernel's time: "memory", "arithmetic" or "launch".
    """

    lane: str
    kind: str
    name: str
    start: float
    end: float
    group: str = ""
    work: float = 0.0
    bound: str = ""

    @property
    def seconds(self) -> float:
        return self.end - self.start


@dataclass
class SimulatedTimeline:
    """The clock of the simulated process.

    Attributes:
        peers: the other stages of a pipeline.
        now: the time of the queue, in seconds.
        free: the time at which the links are free.
        slowdown: factor on the time of kernels.
        steps: for each optimizer step, the position in ``events`` after it, and its time.
        pending: the time at which collectives end that were started, by the name of the work.
        at_step: called after each step.
    """

    links: Links
    peers: Peers
    slowdown: float = 1.0
    now: float = 0.0
    free: float = 0.0
    events: list[SimulatedEvent] = field(default_factory=list)
    steps: list[tuple[int, float]] = field(default_factory=list)
    pending: dict[str, float] = field(default_factory=dict)
    groups: dict[str, ProcessGroup] = field(default_factory=dict)
    at_step: Callable[[], None] = lambda: None
    has_read: bool = False

    def run(self, kind: str, name: str, seconds: float, group: str = "", work: float = 0.0, bound: str = "") -> None:
        """Let the queue work for ``seconds``."""
        self.events.append(SimulatedEvent("queue", kind, name, self.now, self.now + seconds, group, work, bound))
        self.now += seconds

    def kernel(self, name: str, launch: float, seconds: float, work: float, bound: str) -> None:
        """Run a kernel."""
        self.run("kernel", name, launch + seconds * self.slowdown, "", work, bound)

    def collective(self, kind: str, group: ProcessGroup, options: Sequence[Any], nbytes: int) -> None:
        """Run a collective that the queue waits for; the links run one at a time. Simulated stages begin together."""
        self.groups[group.name] = group
        self._wait_until(self.free, kind, group)
        stages = self.peers.knows(group)
        if stages is not None:
            self._wait_until(max(self.peers.all(stages, self.now)), "idle", group, "idle")
        self.run(kind, f"{kind} {group.size}", self.links.seconds(kind, nbytes, group.ranks), group.name, nbytes)
        self.free = self.now

    def message(self, kind: str, group: ProcessGroup, options: Sequence[Any], nbytes: int, stream: bool) -> None:
        """Run a message to or from another stage.

        In the stream of a GPU, by NCCL, it begins when both stages have come to it. By MPI a send does not wait, and
        each side copies the data, because processes of one host communicate through its memory.
        """
        self.groups[group.name] = group
        peer, tag = options
        if stream or kind != "receive":
            self.peers.send(group, peer, tag, self.now)
        if stream or kind == "receive":
            self._wait_until(self.peers.receive(group, peer, tag), "idle", group, "idle")
        seconds = self.links.seconds(kind, nbytes, [group.ranks[group.rank], group.ranks[peer]])
        self.run(kind, f"{kind} {group.size}", seconds, group.name, nbytes)

    def start(self, kind: str, group: ProcessGroup, work: str, nbytes: int) -> None:
        """Start a collective on the links; where it takes the cores of kernels, the queue waits for it."""
        if not self.links.overlaps:
            self.collective(kind, group, (), nbytes)
            self.pending[work] = self.now
            return
        self.groups[group.name] = group
        begin = max(self.now, self.free)
        self.pending[work] = self.free = begin + self.links.seconds(kind, nbytes, group.ranks)
        self.events.append(SimulatedEvent("links", kind, f"{kind} {group.size}", begin, self.free, group.name, nbytes))

    def finish(self, group: ProcessGroup, work: str) -> None:
        """Wait for a collective that was started."""
        self._wait_until(self.pending.pop(work), "all_reduce", group)

    def _wait_until(self, end: float, name: str, group: ProcessGroup, kind: str = "wait") -> None:
        if end > self.now:
            self.run(kind, name, end - self.now, group.name)

    def step(self) -> None:
        """Mark the end of an optimizer's step."""
        self.steps.append((len(self.events), self.now))
        self.at_step()


class CountedMemory(Allocator):
    """An allocator without memory: blocks are only counted, copies to them are dropped, and reads give zeros."""

    def __init__(self, timeline: SimulatedTimeline) -> None:
        self.timeline = timeline

    def alloc(self, nbytes: int) -> MemoryBlock:
        return MemoryBlock(nbytes, nbytes, 0, lambda: None)

    def copyin(self, opaque: Any, offset: int, source: memoryview) -> None:
        pass

    def copyout(self, target: memoryview, opaque: Any, offset: int) -> None:
        target[:] = bytes(target.nbytes)
        if not self.timeline.has_read:
            self.timeline.has_read = True
            warnings.warn_explicit("a value is read: nothing is computed, so all values are 0", UserWarning,
                                   *user_line())


class NoCompiler(Compiler):
    """A compiler that compiles nothing; programs are not stored on disk."""

    def compile(self, source: str) -> bytes:
        return b""


class SimulatedProgram(Program):
    """A kernel or a command of the host, of which a launch takes its predicted time."""

    def __init__(self, timeline: SimulatedTimeline, machine: Machine, kernel: Launch) -> None:
        super().__init__(kernel, b"")
        self.timeline = timeline
        self.action = self._host(machine) if kernel.host else self._kernel(machine)

    def __call__(self, buffers: Sequence[Buffer], variables: Sequence[int] = ()) -> None:
        self.action()

    def _kernel(self, machine: Machine) -> Callable[[], None]:
        kernel, timeline = self.kernel, self.timeline
        assert isinstance(kernel, KernelProgram)  # lowered in this process, because the compiler has no key
        launch, seconds, bound = timeline.links.kernel(kernel, machine)
        return functools.partial(timeline.kernel, kernel.name, launch, seconds, kernel.work.operations, bound)

    def _host(self, machine: Machine) -> Callable[[], None]:
        """Return the action of a command: a collective, by the name under which ``commands`` or ``nccl`` registered
        it."""
        name, dtype, shapes, shape = self.kernel.host
        timeline, size = self.timeline, getattr(dtypes, dtype).itemsize
        given, result = math.prod(shapes[-1]) * size, math.prod(shape) * size
        if name == STEP:
            return timeline.step
        if name.startswith("mpi_start_"):
            kind, group, number, _ = _arguments(name)
            return functools.partial(timeline.start, kind, group, f"{group.name}/{number}", given)
        if name.startswith("mpi_finish_"):
            group, number = _arguments(name)
            return functools.partial(timeline.finish, group, f"{group.name}/{number}")
        called = FUNCTIONS.get(name)
        if called is not None or name.startswith("mpi_"):
            kind, group, options = _arguments(name)
            if called is not None and called.ends:
                return functools.partial(timeline.finish, group, called.ends)
            if called is not None and called.beside:
                return functools.partial(timeline.start, kind, group, called.beside, given)
            nbytes = result if kind in ("all_gather", "receive") else given
            if kind in MESSAGES:
                return functools.partial(timeline.message, kind, group, options, nbytes, called is not None)
            return functools.partial(timeline.collective, kind, group, options, nbytes)
        seconds = self.kernel.bytes / machine.memory[-1].all
        return functools.partial(timeline.run, "kernel", self.kernel.name, seconds, "", 0.0, "memory")


def _arguments(name: str) -> tuple[Any, ...]:
    """Return the arguments with which a command of ``distributed.transport`` was registered."""
    called = FUNCTIONS.get(name)
    command: Any = WRITERS[name] if called is None else called.enqueue
    assert isinstance(command, functools.partial)
    return command.args


class SimulatedDevice(Compiled):
    """A device of the simulated machine, under the name by which the user's script calls it."""

    calls_host = True  # collectives are commands of its queue

    def __init__(self, name: str, timeline: SimulatedTimeline, renderer: Renderer) -> None:
        machine = timeline.links.machine(renderer.target, name)
        super().__init__(name, CountedMemory(timeline), NoCompiler(),
                         lambda kernel, binary: SimulatedProgram(timeline, machine, kernel), renderer)
        self.timeline, self.hardware = timeline, timeline.links.name

    @property
    def worker(self) -> str:
        """One queue for all devices of the process."""
        return "simulated"

    def copier(self, source: Compiled, nbytes: int) -> Program | None:
        """Return a copy within the process's memory: a kernel that reads and writes as many bytes."""
        return _Copy(self.timeline, self.timeline.links.machine(self.target, self.device), nbytes)


class _Copy(Program):
    def __init__(self, timeline: SimulatedTimeline, machine: Machine, nbytes: int) -> None:
        super().__init__(Launch("copy", "copy", [0, 1], [], frozenset((0,)), 0, nbytes, 0, False, [], []), b"")
        self.timeline, self.seconds = timeline, machine.launch + 2 * nbytes / machine.memory[-1].all

    def __call__(self, buffers: Sequence[Buffer], variables: Sequence[int] = ()) -> None:
        self.timeline.run("copy", "copy", self.seconds)


def renderer_of(links: Links, threads: int) -> Renderer:
    """Return the renderer of a simulated device.

    Args:
        threads: threads of a process, if it is a CPU.

    Raises:
        ArgumentError: for another renderer than "cpu" and "cuda".
    """
    kind = links.device.get("renderer")
    if kind == "cpu":
        return LLVMRenderer(replace(host_target("llvm"), threads=threads))
    if kind == "cuda":
        target = cuda_target(links.device["arch"], links.device["cores"])
        return CUDARenderer(replace(target, clock=links.device["clock"]))
    raise ArgumentError("tinsmith simulate", f'"renderer": {kind!r} of {links.name}', '"cpu" or "cuda"')
