"""Measured data of this machine (bandwidths, peak rates, launch costs), and the timing of kernels.

``python -m tinsmith machine`` measures with generated kernels and caches the result; ``machine()`` returns it. Only
predictions for the user read it: generated code never depends on a measurement. A kernel is timed by repeating the same
launch in one graph; the result is the minimum over several rounds.
"""
from __future__ import annotations

import functools
import math
import platform
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tinsmith.backend.cpu import os_calls
from tinsmith.backend.device import Device
from tinsmith.backend.memory import Buffer
from tinsmith.backend.program import BufferLocation, Launched, Program
from tinsmith.codegen.compile_kernel import compile_kernel
from tinsmith.codegen.launch import KernelProgram
from tinsmith.codegen.opt import Opt, OptOps
from tinsmith.codegen.planner.roofline import Machine, Rate, default_machine, unit_peak
from tinsmith.core.disk_cache import cache_get, cache_key, cache_put
from tinsmith.core.dtypes import DType, dtypes
from tinsmith.core.errors import DeviceError
from tinsmith.ir import Ops, UOp
from tinsmith.ir.structure import Role

ROUND = 300e-6  # seconds that a round should last, so that the cost of starting it is negligible
MOST = 1024  # launches per round, at most


def seconds_of(device: str, program: Program, buffers: Sequence[Buffer], values: Sequence[int] = (),
               budget: float = 0.1, launches: int = 0, clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the seconds of one launch of ``program`` on ``buffers``, with warm caches.

    Args:
        device: canonical name.
        values: the values of the program's variables, in order.
        budget: seconds to spend; at least two rounds are run.
        launches: launches per round; default: the number that takes ``ROUND`` seconds.
        clock: the time source; ``time.process_time`` for single-threaded work on a shared machine.
    """
    opened = Device[device]
    places, numbers = tuple(BufferLocation(n) for n in range(len(buffers))), tuple(range(len(values)))

    def round_of(count: int) -> float:
        graph = opened.graph([Launched(program, places, numbers)] * count)
        graph(buffers, values)
        opened.synchronize()
        best = float("inf")
        end = clock() + budget / 2
        while True:
            start = clock()
            graph(buffers, values)
            opened.synchronize()
            now = clock()
            best = min(best, (now - start) / count)
            if now > end:
                return best

    once = round_of(launches or 1)
    fill = min(int(ROUND / max(once, 1e-9)), MOST)
    return min(once, round_of(fill)) if fill > 1 and not launches else once

_KIND, _VERSION = "machine", "6"
_measured: dict[str, Machine] = {}

SUMMANDS = 256  # terms of each sum in the peak-rate kernel
TILES = 16  # register tiles per worker in the peak-rate kernel; with their operands they fit into the L1 cache
TURNS, MOST_TURNS = 2, 8  # least and most alternations between measuring one worker and all workers
HELPED = 0.75  # if all workers take more than this fraction of one worker's time, they may share a core: try again
LEVELS = (16 << 20, 64 << 20)  # bytes: footprints of copies between a core's last private cache and main memory
FARTHEST = 256 << 20  # bytes: footprint of the copy in main memory
UNIT_SHAPE = (256, 256, 512)  # (m, n, k) of the matmuls that measure matrix units
SLOW = 0.5  # seconds of a copy beyond which larger copies are skipped (interpreters)


def machine(device: str | None = None) -> Machine:
    """Return the machine data of ``device``: measured data if there is any, else the model's defaults.

    >>> found = machine("CPU")
    >>> found.workers >= 1 and found.peak(dtypes.float32).one > 0
    True

    ``Machine.measured`` tells which; ``python -m tinsmith machine`` measures.
    """
    name = Device.canonicalize(device)
    key = _key(name)
    if key not in _measured:
        text = cache_get(_KIND, key)
        try:
            if text is not None:
                _measured[key] = Machine.loads(text)
        except ValueError:
            pass
    found = _measured.get(key)
    return _defaults(name) if found is None else found._replace(device=name)


def measure(device: str | None = None, budget: float = 5.0) -> Machine:
    """Measure the machine, cache the result for this and later processes, and return it.

    Args:
        device: a device that runs programs.
        budget: approximate seconds to measure, without compile time.

    Raises:
        DeviceError: if the device has no programs.
    """
    name = Device.canonicalize(device)
    if not Device.here(name).has_programs:
        raise DeviceError("machine", f"{name} runs no programs", "CPU")
    found = _Measurement(name, budget).run()
    _measured[_key(name)] = found
    cache_put(_KIND, _key(name), found.dumps().encode())
    return found


def roofline(device: str, ops: int, nbytes: int, unit: str = "") -> float:
    """Return the roofline lower bound, in seconds, of ``ops`` float32 operations (or operations of matrix ``unit``) and
    ``nbytes`` of traffic.

    >>> roofline("CPU", 2 << 30, 64) > roofline("CPU", 1 << 30, 64) > 0
    True
    """
    found, target = machine(device), Device[device].target
    peaks = [unit_peak(u, target, found).all for u in target.units if u.name == unit]
    level = found.level(nbytes)
    return max(nbytes / max(level.all, level.one), ops / max([found.peak(dtypes.float32).all, *peaks]))


def why_above(device: str, ops: int, nbytes: int, seconds: float, unit: str = "") -> str:
    """Return the reason why a kernel took less time than its ``roofline``; empty if it did not.

    >>> why_above("CPU", 1 << 10, 64, 10.0)
    ''
    """
    if not 0 < seconds < roofline(device, ops, nbytes, unit):
        return ""
    found = machine(device)
    if not found.measured:
        return "the bound is that of a modest machine, since this one is not measured (python -m tinsmith machine)"
    if roofline(device, ops, 0, unit) <= seconds:  # the bound of memory is the one that does not hold
        used, level = nbytes / seconds, found.level(nbytes)
        if nbytes <= found.l1 * max(found.workers, found.cores):
            return f"its data lie in L1 caches, and the bound is that of {level.name}"
        nearer = found.memory[: found.memory.index(level)]
        faster = next((r.name for r in reversed(nearer) if max(r.all, r.one) >= used), None)
        if faster is not None:
            return f"part of its data still lies in {faster}, and the bound is that of {level.name}"
        return "it touches fewer bytes than its buffers hold, or this machine was busy when it was measured"
    return ("the machine was slower when it was measured (busy, or at a lower clock): python -m tinsmith machine "
            "--again")


def _key(device: str) -> str:
    opened = Device[device]
    target = f"{opened.renderer.key()} {opened.compiler.key()}" if opened.has_programs else ""
    return cache_key(_VERSION, device.split(":")[0], opened.hardware or processor(), target)  # CPU:1 is like CPU


def _defaults(device: str) -> Machine:
    opened = Device[device]
    found = default_machine(opened.renderer.target, device)
    return found._replace(name=opened.hardware or processor(), l3=found.l3 and os_calls.cache_sizes().l3)


@functools.cache
def processor() -> str:
    """Return the processor's name.

    >>> len(processor()) > 0
    True
    """
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine() or "unknown"


class _Measurement:
    """The measuring kernels, run one after the other."""

    def __init__(self, device: str, budget: float) -> None:
        self.device, self.target = device, Device[device].renderer.target
        self.workers = max(self.target.threads, 1)
        self.grid = self.target.parallel is Role.GLOBAL
        self.each = budget / (24 * TURNS)  # seconds per kernel and turn: there are about 24 kernels

    def run(self) -> Machine:
        launch, wake, call = self.overheads()
        peaks = tuple(self.peak(d) for d in (dtypes.float32, dtypes.float64, dtypes.int32, dtypes.int64))
        units = self.units(peaks[0])
        return _defaults(self.device)._replace(memory=self.levels(), peaks=peaks, units=units, launch=launch, wake=wake,
                                               call=call, measured=True)

    def load(self, value: UOp, opts: Sequence[Opt] | None) -> Program:
        return self.made(compile_kernel(UOp(Ops.SINK, None, (value,)), Device[self.device].renderer, opts))

    def made(self, kernel: KernelProgram) -> Program:
        return Device[self.device].load([(kernel, Device[self.device].compiler.compile(kernel.source))])[0]

    def seconds(self, programs: Sequence[Program], buffers: Sequence[Buffer]) -> list[float]:
        """Return the best time of each program (one worker, then all workers) over several turns: idle processors start
        slowly, and a virtual machine may temporarily map two of them to one core."""
        best = [float("inf")] * len(programs)
        for turn in range(1, MOST_TURNS + 1):
            best = [min(b, seconds_of(self.device, p, buffers, budget=self.each)) for b, p in zip(best, programs)]
            if best[0] > SLOW or (turn >= TURNS and (len(programs) == 1 or best[-1] < HELPED * best[0])):
                break
        return best

    def ones(self, dtype: DType, *sizes: int) -> list[Buffer]:
        buffers = [Buffer(self.device, size, dtype) for size in sizes]
        for b in buffers:
            b.copyin(memoryview(bytearray(dtype.numpy.type(1).tobytes() * b.size)))
        return buffers

    def rates(self, amount: float, value: UOp, opts: Sequence[Opt], buffers: Sequence[Buffer],
              blocks: Sequence[Opt] | None = None) -> tuple[float, float]:
        """Return ``amount`` per second of the kernel of ``value``, with one worker and with all; on a GPU, with
        ``blocks`` or the planner's opts."""
        if self.grid:
            (seconds,) = self.seconds([self.load(value, blocks)], buffers)
            return amount / seconds, amount / seconds
        split = [[*opts, Opt(OptOps.THREAD, 0)]] if self.workers > 1 else []
        found = [amount / s for s in self.seconds([self.load(value, o) for o in (opts, *split)], buffers)]
        return found[0], max(found)

    def lanes(self, dtype: DType) -> int:
        return max(self.target.vector_bytes // dtype.itemsize, 1)

    def vectors(self, dtype: DType) -> list[Opt]:
        return [Opt(OptOps.VECTOR, 0, self.lanes(dtype))] if self.lanes(dtype) > 1 else []

    def overheads(self) -> tuple[float, float, float]:
        """Return the seconds of a tiny kernel inside a run, the extra cost of waking the workers, and the cost of a run
        of one kernel."""
        x = UOp(Ops.PARAM, dtypes.int32, (), (1, (64,)))
        split = [Opt(OptOps.THREAD, 0)] if self.workers > 1 else []
        programs, buffers = [self.load(x + 1, []), self.load(x + 1, split)], self.ones(dtypes.int32, 64, 64)
        serial, threaded = self.seconds(programs, buffers)
        alone = seconds_of(self.device, programs[0], buffers, budget=self.each, launches=1)
        return serial, max(threaded - serial, 0.0), max(alone, serial)

    def peak(self, dtype: DType) -> Rate:
        """Measure the multiply-add peak: sums of x[i]·y[k] over k in half of the registers, enough independent sums to
        hide the latency of an addition; on a GPU, enough to fill all multiprocessors with threads."""
        copies, threads = self.target.vector_registers // 2, self.target.blocks.threads
        rows, terms = self.lanes(dtype) * copies * TILES * self.workers, SUMMANDS
        if self.grid:
            terms *= TILES  # makes the cost of storing the results negligible
            copies //= 2  # sums of 8-byte types take two registers each
            rows = copies * self.target.resident * self.target.cores
        x, y = (UOp(Ops.PARAM, dtype, (), (n, (size,))) for n, size in ((1, rows), (2, terms)))
        shape = rows, terms
        products = x.reshape((rows, 1)).expand(shape) * y.reshape((1, terms)).expand(shape)
        sums, opts = products.reduce("ADD", (1,)), [*self.vectors(dtype), Opt(OptOps.UPCAST, 0, copies)]
        blocks = [Opt(OptOps.UNROLL, 1, 4), Opt(OptOps.UPCAST, 0, copies), Opt(OptOps.LOCAL, 0, threads)]
        return Rate(dtype.name, *self.rates(2.0 * x.size * y.size, sums, opts, self.ones(dtype, rows, rows, terms),
                                            blocks))

    def units(self, peak: Rate) -> tuple[Rate, ...]:
        """Measure matmuls on each matrix unit that moves its own tiles, with operands that stay in a core's last
        private cache; none on a device (an interpreter) that takes too long for one at its ``peak``."""
        found: list[Rate] = []
        if 2.0 * math.prod(UNIT_SHAPE) / peak.one > SLOW:
            return ()
        for unit in self.target.units:
            if unit.emit == "muladd" or unit.threads > 1 or not unit.fragment_a.whole:
                continue
            m, n, k = UNIT_SHAPE
            a, b = UOp(Ops.PARAM, unit.a, (), (1, (m, k))), UOp(Ops.PARAM, unit.b, (), (2, (k, n)))
            x = a.cast(unit.acc).reshape((m, 1, k)).expand((m, n, k))
            y = b.cast(unit.acc).permute((1, 0)).reshape((1, n, k)).expand((m, n, k))
            sink = UOp(Ops.SINK, None, ((x * y).reduce("ADD", (2,)),))
            kernel = compile_kernel(sink, Device[self.device].renderer)
            if not any(o.op is OptOps.TC for o in kernel.opts):
                continue  # the planner does not choose the unit
            sizes = ((m * n, unit.acc), (m * k, unit.a), (k * n, unit.b))
            buffers = [Buffer(self.device, size, d) for size, d in sizes]
            for buffer in buffers:
                buffer.copyin(memoryview(bytearray(buffer.nbytes)))
            serial = [o for o in kernel.opts if o.op is not OptOps.THREAD]
            found.append(Rate(unit.name, *self.rates(2.0 * m * n * k, sink.src[0], serial, buffers)))
        return tuple(found)

    def levels(self) -> tuple[Rate, ...]:
        """Measure copies within the cores' last private caches, at some sizes beyond, and in main memory."""
        own = self.target.l2_bytes * max(self.workers, self.target.cores)
        found: list[Rate] = []
        for capacity in (own, *(size for size in LEVELS if size > own), FARTHEST):
            footprint = capacity // 2 if capacity == own else capacity
            if found and footprint / found[-1].one > SLOW:
                break
            name = "L2" if capacity == own else "memory" if capacity == FARTHEST else f"{capacity >> 20} MB"
            found.append(Rate(name, *self.copy(footprint), capacity))
        return tuple(found)

    def copy(self, footprint: int) -> tuple[float, float]:
        """Return bytes read and written per second by a vectorized copy; results too large for a cache use non-temporal
        stores."""
        vectors = self.vectors(dtypes.float32)
        unit = 1024 * self.workers
        size = max(footprint // 8 // unit * unit, unit)
        x = UOp(Ops.PARAM, dtypes.float32, (), (1, (size,)))
        value, buffers = UOp(Ops.CONTIGUOUS, None, (x,)), self.ones(dtypes.float32, size, size)
        found = self.rates(8.0 * size, value, vectors, buffers)
        if footprint < FARTHEST or not vectors or self.grid:
            return found
        past = self.rates(8.0 * size, value, [*vectors, Opt(OptOps.HINT)], buffers)
        return max(found[0], past[0]), max(found[1], past[1])
