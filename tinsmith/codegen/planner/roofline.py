"""A roofline model of a kernel's run time, from the kernel graph and the rates of a machine.

The model, for a kernel after its opts:

* **memory**: every load and store moves the distinct elements that its index reaches, once per sweep. A loop that does
  not move the index repeats the sweep only if the data inside it exceed the last cache of a core. The kernel's
  footprint selects the bandwidth: that of the smallest level that holds it.
* **arithmetic**: a node costs the operations of its op per iteration; the lanes of one vector register count once. A
  step of a matrix unit takes the time that the unit's rate gives. A reduction with few accumulators waits for the
  latency of its own additions instead. Loads and stores have the same number of separate ports.
* **launch**: one command of a run, and waking the workers if the kernel has a THREAD range.

The time is the launch plus the maximum of memory and arithmetic, divided over the workers that get a share. On a grid
both are at least the time of its busiest core: its warps' accesses pass one piece after the other, and each thread
waits for memory in each iteration of its loops, however few threads there are.
"""
from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import NamedTuple

from tinsmith.codegen.kernel import Kernel
from tinsmith.codegen.planner.candidate import footprint, stride_of
from tinsmith.codegen.planner.cost import rate_of_core
from tinsmith.codegen.planner.work import MEMORY, Work, elements_of, is_arithmetic, repeated, size_of, work_of
from tinsmith.codegen.transform.matrix_units import held
from tinsmith.codegen.transform.thread_blocks import thread_axes, threads_per_block
from tinsmith.core.dtypes import DType, dtypes
from tinsmith.core.terminal import plural
from tinsmith.ir import Ops, UOp
from tinsmith.ir.matrix_unit import MatrixUnit
from tinsmith.ir.structure import THREADS, Role, count_of, limits, range_size, sum_of_products
from tinsmith.ir.uop import toposort
from tinsmith.target.target import Target

_RATES = "memory", "peaks", "units"  # the fields of ``Machine`` that hold rates


class Rate(NamedTuple):
    """The rate of one worker and of all workers together, per second. ``capacity``: bytes of a level of memory, of all
    workers together."""

    name: str
    one: float
    all: float
    capacity: int = 0


class Machine(NamedTuple):
    """The measured or assumed speed of a device; times in seconds, rates per second.

    Attributes:
        name: the processor.
        device: canonical name of the device.
        workers: threads that a THREAD range is split over; 1 on a grid.
        vector_bytes: bytes of a vector register.
        l1, l2, l3: bytes of the caches; l1 and l2 per core.
        memory: rates in bytes read and written by a copy, per level of memory, from the fastest to main memory.
        peaks: rates of fused multiply-adds in operations, by dtype.
        units: rates of matrix units in operations, by the unit's name.
        launch: time of launching one serial kernel inside a run.
        wake: extra time of a threaded kernel.
        call: time of a run of one kernel.
        measured: False if the rates are the model's defaults.
        issue: vector instructions that a core starts per cycle.
        latency: cycles of a dependent addition.
        cores: multiprocessors of a grid; 1 for other devices, and if unknown.

    >>> m = default_machine(Target("text", vector_bytes=32, threads=2))
    >>> m.peak(dtypes.float32).all / m.peak(dtypes.float64).all, m.measured, Machine.loads(m.dumps()) == m
    (2.0, False, True)
    """

    name: str
    device: str
    workers: int
    vector_bytes: int
    l1: int
    l2: int
    l3: int
    memory: tuple[Rate, ...]
    peaks: tuple[Rate, ...]
    units: tuple[Rate, ...] = ()
    launch: float = 0.5e-6
    wake: float = 1.5e-6
    call: float = 5e-6
    measured: bool = False
    issue: int = 2
    latency: int = 4
    cores: int = 1

    @property
    def size(self) -> str:
        """The parallel parts of the machine, in words.

        >>> default_machine(Target("text", threads=2)).size
        '2 workers'
        """
        return plural(self.workers, "worker") if self.cores == 1 else f"{self.cores} multiprocessors"

    def peak(self, dtype: DType) -> Rate:
        """Return the operations per second on a dtype; if not measured, the rate of float32 on the same number of
        registers."""
        found = next((r for r in self.peaks if r.name == dtype.name), None)
        if found is not None:
            return found
        base = next((r for r in self.peaks if r.name == "float32"), self.peaks[0])
        scale = 4 / max(dtype.itemsize, 1)
        return Rate(dtype.name, base.one * scale, base.all * scale)

    def level(self, footprint: int) -> Rate:
        """Return the smallest level of memory that holds ``footprint`` bytes."""
        return next((r for r in self.memory if footprint <= r.capacity), self.memory[-1])

    def dumps(self) -> str:
        """Return the machine as JSON."""
        rates = {part: [r._asdict() for r in getattr(self, part)] for part in _RATES}
        return json.dumps(self._asdict() | rates)

    @staticmethod
    def loads(text: str | bytes) -> Machine:
        """Return the machine that ``dumps`` wrote.

        Raises:
            ValueError: if the text does not describe a machine.
        """
        try:
            fields = json.loads(text)
            for part in _RATES:
                fields[part] = tuple(Rate(**r) for r in fields[part])
            found = Machine(**fields)
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"not a machine: {error}") from None
        if not found.memory or not found.peaks:
            raise ValueError("a machine needs rates of memory and arithmetic")
        return found


def unit_peak(unit: MatrixUnit, target: Target, machine: Machine) -> Rate:
    """Return the operations per second of a matrix unit: the measured ones, else float32's scaled by the unit's rate. A
    multiprocessor has several units of one warp each; a unit of several warps uses all of them."""
    one = unit.rate * machine.peak(dtypes.float32).one / _MODELS[target.parallel].step(unit, target, machine)
    return next((r for r in machine.units if r.name == unit.name), Rate(unit.name, one, one * machine.workers))


def _of_vectors(_: MatrixUnit, __: Target, machine: Machine) -> float:
    return 2 * max(machine.vector_bytes // 4, 1) * machine.issue


def _of_multiprocessor(unit: MatrixUnit, target: Target, _: Machine) -> float:
    return 2 * target.blocks.fma * unit.rate / rate_of_core(unit, target)


def default_machine(target: Target, device: str = "") -> Machine:
    """Return the rates of a machine that was not measured, from the target's data, with defaults of a modest current
    one."""
    return _MODELS[target.parallel].machine(target, device or target.name)


def _cores(target: Target, device: str) -> Machine:
    workers, width, clock = max(target.threads, 1), target.vector_bytes or 4, target.clock
    peaks = tuple(Rate(d.name, flops, flops * workers) for d in (dtypes.float32, dtypes.float64, dtypes.int32)
                  for flops in [2 * target.core.issue * clock * max(width // d.itemsize, 1)])
    (near, far, one, most), l3 = target.core.bandwidths, target.core.l3_bytes
    memory = (Rate("L2", near, near * workers, target.l2_bytes * workers), Rate("L3", far, far * workers, l3),
              Rate("memory", one, most if workers > 1 else one))
    return Machine(target.name, device, workers, width, target.l1_bytes, target.l2_bytes, l3, memory, peaks,
                   issue=target.core.issue, latency=target.core.latency)


def _grid(target: Target, device: str) -> Machine:
    """Return the default rates of a GPU. The latency of additions is 1, because other warps run while one waits."""
    every, width, blocks = target.cores * target.clock, target.vector_bytes or 4, target.blocks
    peaks = tuple(Rate(d.name, flops, flops) for d in (dtypes.float32, dtypes.float64, dtypes.int32)
                  for flops in [2 * blocks.fma * every * 4 / d.itemsize])
    return Machine(target.name, device, 1, width, target.l1_bytes, target.l2_bytes, 0,
                   (Rate("memory", blocks.bandwidth * every, blocks.bandwidth * every),), peaks, issue=1, latency=1,
                   cores=target.cores)


class Estimate(NamedTuple):
    """The expected time of a kernel in seconds, and its parts.

    Attributes:
        work: operations and bytes.
        memory, arithmetic, launch: the parts of the model, in seconds.
        roofline: the least time in seconds that the machine's peak rates allow for this work.
        level: the level of memory whose bandwidth applies.
    """

    work: Work
    memory: float
    arithmetic: float
    launch: float
    roofline: float
    level: str

    @property
    def seconds(self) -> float:
        return self.launch + max(self.memory, self.arithmetic)

    @property
    def bound(self) -> str:
        """The largest part of the time: ``memory``, ``arithmetic`` or ``launch``."""
        if self.launch > max(self.memory, self.arithmetic):
            return "launch"
        return "memory" if self.memory >= self.arithmetic else "arithmetic"


def estimate(kernel: Kernel, machine: Machine, work: Work | None = None) -> Estimate:
    """Return the expected time of ``kernel``, with the opts applied so far, on ``machine``.

    Args:
        work: the kernel's work before its opts, which may add padding; None: that of ``kernel``.
    """
    work = work_of(kernel) if work is None else work
    model = _MODELS[kernel.target.parallel].kernel(kernel, machine)
    workers, share = model.workers()
    level = machine.level(work.bytes)
    whole = max(level.all, level.one)
    bandwidth = min(level.one if workers == 1 else whole * workers / machine.workers, whole)
    nodes = list(model.around)
    launch = machine.launch + (machine.wake if workers > 1 else 0.0)
    dtype = max((n.dtype.scalar for n in nodes if is_arithmetic(n) or n.op is Ops.FOLD),
                key=lambda d: d.itemsize, default=dtypes.float32)
    units = [model.unit_peak(n.arg).all for n in nodes if n.op is Ops.MMA]
    roofline = max(work.bytes / whole, work.operations / max([machine.peak(dtype).all, *units]))
    busy = max(sum(map(model.computing, nodes)), sum(map(model.access, nodes)))
    if workers > 1:  # with all workers busy, each may run slower (clock)
        peak = machine.peak(dtypes.float32)
        busy *= max(peak.one * machine.workers / peak.all, 1.0)
    moving, waiting = model.busiest_core()
    return Estimate(work, max(sum(map(model.traffic, nodes)) / bandwidth, moving), max(busy * share, waiting), launch,
                    roofline, level.name)


def cycles(kernel: Kernel) -> dict[str, float]:
    """Return the expected cycles of ``kernel``, with the opts applied so far, by the limiting cause ("memory" or
    "arithmetic")."""
    found = estimate(kernel, default_machine(kernel.target))
    most = max(found.memory, found.arithmetic)
    return {"memory" if found.memory == most else "arithmetic": most * kernel.target.clock}


class _Model:
    """The model of one kernel on one machine. ``around``: the loops that enclose each node, outermost first."""

    def __init__(self, kernel: Kernel, machine: Machine) -> None:
        self.kernel, self.machine = kernel, machine
        self.width = max(machine.vector_bytes, 1)
        self.rank = {r: at for at, r in enumerate(kernel.order)}
        order = toposort(kernel.sink)
        readers: dict[UOp, set[UOp]] = {n: set() for n in order}
        self.around: dict[UOp, list[UOp]] = {}
        for n in reversed(order):
            inside = self.around[n] = self.enclosing(n, readers[n])
            inner = set(inside).union(r for r in n.src[1:] if n.op in (Ops.FOLD, Ops.STAGE) and r.op is Ops.RANGE
                                      and not r.arg[1].expanded)
            for s in n.src:
                readers[s] |= inner

    def enclosing(self, n: UOp, readers: set[UOp]) -> list[UOp]:
        """Return the loops of ``n`` and of its readers down to the innermost that ``n`` depends on, outermost first."""
        if n.op in (Ops.SINK, Ops.AFTER):
            return []  # statements side by side: each has loops of its own
        own = {r for r in n.ranges if not r.arg[1].expanded}
        loops = sorted(readers | own, key=self.rank.__getitem__)
        return loops[: max((at + 1 for at, r in enumerate(loops) if r in own), default=0)]

    def workers(self) -> tuple[int, float]:
        """Return the number of workers that get work, and the fraction of all work of the busiest one."""
        split = next((r for r in self.kernel.order if r.arg[1] is Role.THREAD), None)
        size = count_of([split]) if split is not None else 1
        workers = min(size, self.machine.workers)
        return workers, -(-size // workers) / size

    def busiest_core(self) -> tuple[float, float]:
        """Return lower bounds in seconds for memory and arithmetic on the busiest core of a grid; 0 without a grid."""
        return 0.0, 0.0

    def times(self, n: UOp) -> int:
        """Return the number of times that a node is computed; a vector counts once."""
        return repeated(self.around[n]) * count_of(r for r in n.ranges if r.arg[1] in (Role.UPCAST, Role.UNROLL))

    def traffic(self, n: UOp) -> int:
        """Return the bytes that a load or store moves between a core's last cache and the memory beyond it."""
        if n.op not in MEMORY or n.src[0].op is not Ops.PARAM:
            return 0
        size, own = n.src[0].dtype.itemsize, n.src[1].ranges
        moved = min(elements_of(n), size_of(n.src[0])) * size
        loops = self.around[n]
        for at, r in enumerate(loops):
            inside = count_of(x for x in own if x.arg[1].expanded or x in loops[at + 1 :]) * size
            if r not in own and inside > self.machine.l2:
                moved *= count_of([r])
        return moved

    def access(self, n: UOp) -> float:
        """Return the seconds that one worker would need for the instructions of a load or store."""
        if n.op not in MEMORY:
            return 0.0
        of = n.dtype if n.op is Ops.LOAD else n.src[2].dtype
        return self.times(n) * self.registers(n.ranges, of) / self.rate

    def computing(self, n: UOp) -> float:
        """Return the seconds that one worker would need for the arithmetic of a node."""
        if n.op is Ops.MMA:
            return self.unit_seconds(n)
        if n.op is Ops.FOLD:
            return 0.0 if n.src[0].op is Ops.MMA else self.fold_seconds(n)
        if is_arithmetic(n):
            cost = 1 if n.op is Ops.MULADD else n.op.cost  # fused multiply-add: two operations, one instruction
            return self.times(n) * self.registers(n.ranges, n.dtype) * cost / self.rate
        return 0.0

    def fold_seconds(self, n: UOp) -> float:
        """Return one worker's seconds for the additions of a reduction, or for their latency if that is longer. The
        additions of a sum of products are fused with the multiplications, which ``computing`` counts."""
        over = n.src[0].ranges | n.ranges
        steps = repeated(self.around[n]) * repeated(r for r in n.src[1:] if not r.arg[1].expanded)
        copies = count_of(r for r in over if r.arg[1] in (Role.UPCAST, Role.UNROLL))
        fused = sum_of_products(n) is not None and n.dtype.is_float
        work = 0 if fused else copies * self.registers(over, n.dtype) * n.arg.cost
        return steps * max(work, self.machine.latency * self.machine.issue) / self.rate

    def unit_seconds(self, n: UOp) -> float:
        """Return one worker's seconds for the steps of a matrix unit."""
        unit: MatrixUnit = n.arg
        copies = count_of(r for r in n.ranges if r.arg[1] in (Role.UPCAST, Role.UNROLL))
        return count_of(self.around[n]) * copies * 2.0 * unit.m * unit.n * unit.k / self.unit_peak(unit).one

    def unit_peak(self, unit: MatrixUnit) -> Rate:
        return unit_peak(unit, self.kernel.target, self.machine)

    def registers(self, ranges: Iterable[UOp], dtype: DType) -> int:
        """Return the number of vector registers that the lanes of a value fill."""
        lanes = count_of(r for r in ranges if r.arg[1] is Role.VECTOR)
        return max(-(-lanes * dtype.itemsize // self.width), 1)

    @property
    def rate(self) -> float:
        """Vector instructions per second of one worker: the float32 peak over two operations per lane."""
        return self.machine.peak(dtypes.float32).one / (2 * max(self.width // 4, 1))


class _Grid(_Model):
    """The model of one kernel on a grid of thread blocks. ``dealt``: ranges of stages that are distributed over the
    threads of a block."""

    def __init__(self, kernel: Kernel, machine: Machine) -> None:
        self.axes, self.threads = thread_axes(kernel), max(threads_per_block(kernel), 1)
        super().__init__(kernel, machine)
        self.target, self.data = kernel.target, kernel.target.blocks
        self.warp = self.target.warp or self.data.warp
        stages = [n for n in self.around if n.op is Ops.STAGE and not held(n)]
        self.dealt = {r for n in stages if all(x.arg[1] not in THREADS for x in n.src[1:])
                      for r in n.src[1:] if r.arg[1] in (Role.LOOP, Role.VECTOR)}

    def enclosing(self, n: UOp, readers: set[UOp]) -> list[UOp]:
        """Return the enclosing loops, with ranges that share a thread axis counted once."""
        axis = {r: axis[0] for axis in self.axes for r in axis}
        return list({axis.get(r, r): r for r in super().enclosing(n, readers)}.values())

    def steps(self, loops: Iterable[UOp]) -> int:
        """Return the iterations of one thread in ``loops``. Iterations whose bounds come from a list in memory,
        different for each block, are averaged over the blocks."""
        total, shared = 1, 1
        for r in loops:
            if r.arg[1] in (Role.LOOP, Role.REDUCE, Role.BLOCK):
                blocks = frozenset().union(*(n.src[1].ranges for s in limits(r) or () for n in toposort(s)
                                             if n.op is Ops.LOAD))
                total *= max(count_of([r]) // count_of(blocks), 1)
                shared *= count_of([r]) if r in self.dealt else 1
        return -(-total // min(shared, self.threads))

    def of_thread(self, n: UOp) -> int:
        """Return how many times a thread accesses memory for a node; copies that read the same element count once."""
        copies = [r for r in n.ranges if r.arg[1] in (Role.UPCAST, Role.UNROLL)]
        return self.steps(self.around[n]) * (footprint(n.src[1], copies) if n.op is Ops.LOAD else count_of(copies))

    def accesses(self) -> list[UOp]:
        return [n for n in self.around if n.op in MEMORY and n.src[0].op is Ops.PARAM]

    def of_warp(self, n: UOp) -> int:
        """Return the bytes that one access of a warp moves: all sectors that its threads access."""
        run, pieces, left = n.src[0].dtype.itemsize, 1, self.warp
        lanes = [[r] for r in n.src[1].ranges if r.arg[1] is Role.VECTOR]
        shared = sorted(([r] for r in self.dealt & n.src[1].ranges if r.arg[1] is Role.LOOP),
                        key=lambda axis: abs(stride_of(n.src[1], axis[0]) or 1 << 40))  # filled in memory order
        for axis in (*lanes, *(shared or self.axes)):
            size = range_size(axis[0]) if axis in lanes else min(range_size(axis[0]), left)
            left = left if axis in lanes else max(left // size, 1)
            if (r := next((r for r in axis if r in n.src[1].ranges), None)) is not None:
                step = stride_of(n.src[1], r)
                near = step is not None and abs(step) * n.src[0].dtype.itemsize <= run
                run, pieces = (run * size, pieces) if near else (run, pieces * size)
        sector = self.target.costs.sector
        return pieces * -(-run // sector) * sector

    def busiest_core(self) -> tuple[float, float]:
        """Return two times of the busiest core in seconds: to move the bytes of its warps, one access after the other;
        and for a thread to wait for its loads, in batches of ``GpuModel.loads``, and for the barriers of its block."""
        warps = -(-self.threads // self.warp)
        turns = -(-count_of(r for r in self.kernel.order if r.arg[1] is Role.GLOBAL) // self.target.cores)
        moved = sum(self.of_thread(n) * max(self.of_warp(n), self.data.access) for n in self.accesses()) * warps * turns
        batches: dict[frozenset[UOp], int] = {}
        for n in self.accesses():
            if n.op is Ops.LOAD:
                loops = frozenset(r for r in self.around[n] if r.arg[1] is not Role.GLOBAL)
                few = min(self.steps(loops), -(-self.of_thread(n) // self.data.loads))
                batches[loops] = max(few, batches.get(loops, 1))
        met = self.data.meeting * sum(r.arg[1] is Role.GROUP for r in self.kernel.order)
        waves = max(turns * warps * self.warp / self.target.resident, 1.0)
        waited = waves * (self.data.latency * sum(batches.values()) + met)
        return moved / self.data.access / self.target.clock, waited / self.target.clock


class _Models(NamedTuple):
    """The model of a kind of machine.

    Attributes:
        machine: the default rates of a target.
        kernel: the model of a kernel.
        step: the float32 operations of one worker per cycle, the unit in which a matrix unit's rate is stated.
    """

    machine: Callable[[Target, str], Machine]
    kernel: type[_Model]
    step: Callable[[MatrixUnit, Target, Machine], float]


_MODELS = {Role.LOOP: _Models(_cores, _Model, _of_vectors), Role.GLOBAL: _Models(_grid, _Grid, _of_multiprocessor)}
