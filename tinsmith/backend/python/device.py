"""The PYTHON device: an interpreter of linear programs that checks every access, for tests and for reading.

``PYTHON:V64`` compiles for vectors of 64 bytes, ``PYTHON:T3`` for 3 workers, which run one after the other, and
``PYTHON:G256`` for a grid of blocks of at most 256 threads, as on a GPU, with the matrix units of warps of 32.
``PYTHON:G256:C8`` splits work for 8 multiprocessors. ``PYTHON:G256:B232448`` gives blocks that many bytes for rings,
and asynchronous units of four warps that read from them.

Kernels are launched block by block and warp by warp. The interpreter detects programs that are correct only by chance.
A data race (two threads access an element, one of them writes, and nothing orders them) is an error that names both
statements (``memory.py``), and so is a deadlock of warps. Local memory is NaN before it is written. The last warp and
the last block run first (``PYTHON:G256:S0``: the first; any other number but 1: in a random order).
"""
from __future__ import annotations

import itertools
import random
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tinsmith.backend.device import Allocator, Compiled, Compiler
from tinsmith.backend.program import Program
from tinsmith.backend.python.memory import UNNUMBERED, WARP, CheckedMemory, Clock, RaceDetector, poison
from tinsmith.backend.python.render import PythonRenderer
from tinsmith.backend.python.warps import (
    BACKWARD,
    FORWARD,
    Barrier,
    Engine,
    InterpretedRing,
    RingFill,
    Staged,
    ThreadBlock,
    UnitSteps,
    Warp,
    WarpBarrier,
    alike,
    whole_warp,
)
from tinsmith.codegen.launch import Launch
from tinsmith.core.dtypes import DType, dtypes
from tinsmith.core.errors import DeviceError, KernelError, OutOfMemoryError
from tinsmith.ir import Ops, UOp
from tinsmith.ir.matrix_unit import BulkView, Fragment, MatrixUnit, StagedLayout
from tinsmith.ir.ops.op import Array
from tinsmith.ir.structure import Role
from tinsmith.target.gpu_model import BLOCKS
from tinsmith.target.schedule_costs import CUTS_FOR_CORES, GRID_COSTS, RANKED_COSTS
from tinsmith.target.target import Target
from tinsmith.target.units import nvidia, x86

if TYPE_CHECKING:
    from tinsmith.backend.memory import Buffer


# *** called by kernels ***
def load_one(memory: CheckedMemory, index: int) -> Array:
    """Load one element, at an index that all threads share."""
    if not 0 <= index < memory.size:
        raise memory.outside(index, "read")
    if memory.watch is not None:
        return memory.read(np.array([[index]]), np.array([[True]]), UNNUMBERED)
    return memory.data[index : index + 1].copy().reshape(1, 1)


def _places(memory: CheckedMemory, count: int, index: Any, ok: Any, verb: str) -> tuple[Array, Array]:
    """Broadcast indices and conditions to all threads and lanes; check the bounds of the active ones."""
    at = np.asarray(index).reshape(-1, np.asarray(index).size) if np.ndim(index) < 2 else index
    if at.shape[1] != count:
        at = at + np.arange(count)
    at, mask = np.broadcast_arrays(at, np.asarray(ok))
    used = at[mask]
    if used.size and not (used.min() >= 0 and used.max() < memory.size):
        raise memory.outside(used[(used < 0) | (used >= memory.size)][0], verb)
    return at, mask


def load(memory: CheckedMemory, count: int, index: Any, ok: Any = True, statement: int = UNNUMBERED) -> Array:
    """Load ``count`` elements per thread, consecutive or one index per lane; 0 where ``ok`` is false."""
    return memory.read(*_places(memory, count, index, ok, "read"), statement)


def store(memory: CheckedMemory, count: int, index: Any, value: Array, ok: Any = True,
          statement: int = UNNUMBERED) -> None:
    """Store where ``ok`` holds; of several lanes with one index the last one wins."""
    at, mask = _places(memory, count, index, ok, "written")
    threads = max(at.shape[0], value.shape[0])
    at, mask, value = (np.broadcast_to(a, (threads, count)) for a in (at, mask, value))
    memory.write(at, mask, value, statement)


def load_tile(memory: CheckedMemory, index: int, pitch: int, rows: int, columns: int,
              statement: int = UNNUMBERED) -> Array:
    """Load a tile's elements in order, its rows ``pitch`` apart."""
    return memory.read(*_places(memory, rows * columns, _tile(index, pitch, rows, columns), True, "read"), statement)


def load_matrix(memory: CheckedMemory, index: Array, count: int, turned: bool, statement: int = UNNUMBERED) -> Array:
    """Load ``count`` matrices of 8 × 8, whose row addresses the lanes give; return each lane's elements."""
    lanes, rows = np.arange(len(index))[:, None], 8 * count
    found = memory.read(*_places(memory, 8, index, lanes < rows, "read"), statement)
    matrices = found[:rows].reshape(count, 8, 8)
    if turned:
        matrices = matrices.transpose(0, 2, 1)
    return matrices.transpose(1, 2, 0).reshape(8, 4, 2, count).transpose(0, 1, 3, 2).reshape(32, 2 * count)


def store_tile(memory: CheckedMemory, index: int, pitch: int, rows: int, columns: int, value: Array,
               statement: int = UNNUMBERED) -> None:
    store(memory, rows * columns, _tile(index, pitch, rows, columns), value, True, statement)


def _tile(index: int, pitch: int, rows: int, columns: int) -> Array:
    return (index + pitch * np.arange(rows)[:, None] + np.arange(columns)).reshape(1, -1)


def const(dtype: str, count: int, value: Any) -> Array:
    return np.full((1, count), value, to_numpy(dtype))


def lift(value: int, dtype: str) -> Array:
    """Convert a Python integer to an array."""
    return np.full((1, 1), value, to_numpy(dtype))


def spread(value: Array, times: int) -> Array:
    return np.tile(value, (1, times))


def join(*parts: Array) -> Array:
    """Concatenate the lanes of ``parts``."""
    threads = max(p.shape[0] for p in parts)
    return np.concatenate([np.broadcast_to(p, (threads, p.shape[1])) for p in parts], 1)


def meaning(op: str, dtype: str, *sources: str, arg: Any = None) -> Callable[..., Array]:
    """Return the function that computes an op for these dtypes, by its row."""
    row = getattr(Ops, op)
    node = UOp(row, _dtype(dtype), tuple(UOp(Ops.PARAM, _dtype(s), (), (n, ())) for n, s in enumerate(sources)), arg)
    return lambda *values: np.asarray(row.meaning(node, *values))


def floor_div(x: int, y: int) -> int:
    return x // y if y else 0


def floor_mod(x: int, y: int) -> int:
    return x % y if y else 0


def shuffle(value: Array, dtype: str, bits: int) -> Array:
    """Return the values of the threads whose indices in the warp differ in ``bits``.

    Raises:
        KernelError: if one of them does not exist.
    """
    if len(value) > 1 and len(value) % (2 * bits):
        raise KernelError("PYTHON", f"a shuffle by {bits} in a warp of {len(value)} threads", "a smaller power of two")
    return meaning("SHUFFLE", dtype, dtype, arg=bits)(value)


def match(key: Array, threads: Array) -> Array:
    """Return, per thread, the number of lower threads of the warp with the same key, and the number of all such
    threads."""
    return meaning("MATCH", "int32", "int32")(np.broadcast_to(key, threads.shape))


def _dtype(name: str) -> DType:
    found: DType = getattr(dtypes, name)
    return found


def to_numpy(name: str) -> Any:
    return _dtype(name).numpy

NAMES: Final = {f.__name__: f for f in (load_one, load, store, const, lift, spread, join, meaning, floor_div, floor_mod,
                                        whole_warp, shuffle, match, load_tile, load_matrix, store_tile, MatrixUnit,
                                        Fragment, Barrier, WarpBarrier, StagedLayout, BulkView, Staged, alike)} | {
                                            "where": np.where, "dtypes": dtypes}


# *** launching ***
def launch(symbol: str, module: dict[str, Any], arguments: Sequence[Any], threads: int, seed: int = BACKWARD) -> None:
    """Run all blocks of a kernel one after the other, for each of ``threads`` CPU-style workers.

    Args:
        seed: the order of warps and blocks: 0 forward, 1 backward, else a random one. Results do not depend on it.

    Raises:
        KernelError: for an access outside memory, a race, or a deadlock.
    """
    sizes: dict[str, int] = module["SIZES"]
    grid = {n: range(s) for n, s in sizes.items() if not n.startswith("lidx")}
    takes = module[symbol].__code__.co_varnames[: module[symbol].__code__.co_argcount]
    places = list(itertools.product(range(threads), *grid.values()))
    given = dict(zip(takes, arguments))
    block = _Threads(sizes, len(places), "block" if grid else "worker", module["RINGS"])
    far = _watched(module, given, block)
    with np.errstate(all="ignore"):
        for number, (tid, *place) in _in_order(list(enumerate(places)), seed):
            numbers = {"tid": tid, "nthreads": threads, **dict(zip(grid, place))}
            near = _local_memory(symbol, module, block, number)
            slots = {name: [RingFill(Engine(e, block.agents), readers=block.readers[name]) for e in engines]
                     for name, engines in block.rings.items()}
            warps = []
            for w, coordinates in enumerate(block.warps):
                warp = Warp(w, Clock(w, block.numbers[w], block.agents),
                            Clock(0, block.numbers[w] + number * block.size, 1))
                own: dict[str, Any] = {name: InterpretedRing(symbol, name, found, warp) for name,
                                       found in slots.items()}
                own["steps"] = UnitSteps(Engine(block.agents - len(block.warps) + w, block.agents), warp)
                seen = {n: m.seen_by(far.get(n), warp.far) if isinstance(m, CheckedMemory) else m for n,
                        m in given.items()}
                seen |= {n: m.seen_by(m.watch, warp.near) for n, m in near.items()}
                values = {**seen, **own, **numbers, **coordinates}
                warp.steps = module[symbol](*(values[name] for name in takes))
                warps.append(warp)
            ThreadBlock(symbol, warps, seed).run()
            for m in near.values():
                if m.watch is not None and m.watch.unwritten is not None:
                    raise m.watch.unwritten


def _in_order(places: list[Any], seed: int) -> list[Any]:
    if seed not in (FORWARD, BACKWARD):
        random.Random(seed).shuffle(places)
    return places[::-1] if seed == BACKWARD else places


class _Threads:
    """The threads of a block: for each warp their indices, as columns; ``lidx0`` is the fastest.

    ``agents`` access local memory: the warps, the copies to each slot of ``rings``, and a unit of each warp.
    """

    def __init__(self, sizes: dict[str, int], blocks: int, kind: str, rings: list[tuple[str, int, int]]) -> None:
        axes = {n: s for n, s in sorted(sizes.items()) if n.startswith("lidx")}
        self.blocks, self.kind, self.size = blocks, kind, int(np.prod(list(axes.values()), dtype=np.int64))
        self.numbers = [np.arange(first, min(first + WARP, self.size)).reshape(-1, 1)
                        for first in range(0, self.size, WARP)]
        self.warps = []
        for number in self.numbers:
            coordinates = {}
            for name, size in axes.items():
                coordinates[name] = number % size
                number = number // size
            self.warps.append(coordinates)
        self.agents, self.rings = len(self.warps), dict[str, range]()
        self.readers = {name: readers for name, _, readers in rings}
        for name, slots, _ in rings:
            self.rings[name] = range(self.agents, self.agents + slots)
            self.agents += slots
        self.agents += len(self.warps) if rings else 0

    def near_name(self, block: int, thread: int) -> str:
        """Return the name of a thread of a block, or of an engine (copy or unit)."""
        agent = thread // WARP
        if agent < len(self.warps):
            return self.name(block * self.size + thread)
        slot = next((f"slot {agent - e.start} of {name}" for name, e in self.rings.items() if agent in e), None)
        return f"the unit of warp {agent - self.agents + len(self.warps)}" if slot is None else f"a copy to {slot}"

    def name(self, thread: int) -> str:
        """Return the name of a thread of the launch."""
        found = [f"thread {thread % self.size}"] if self.size > 1 else []
        return " of ".join([*found, *([f"{self.kind} {thread // self.size}"] if self.blocks > 1 else [])])


def _watched(module: dict[str, Any], given: dict[str, Any], block: _Threads) -> dict[str, RaceDetector]:
    """Return the race detectors of written arguments, by name; arguments that share memory share one."""
    kept = {n: m for n, m in given.items() if isinstance(m, CheckedMemory)} if block.blocks * block.size > 1 else {}
    sizes: dict[tuple[int, int], int] = {}
    for m in kept.values():
        sizes[_where(m)] = max(m.size, sizes.get(_where(m), 0))
    shared = {_where(m): RaceDetector(m.kernel, m.name, module["STATEMENTS"], sizes[_where(m)], 1, block.name, False)
              for n, m in kept.items() if n in module["WRITTEN"]}
    return {n: shared[_where(m)] for n, m in kept.items() if _where(m) in shared}


def _where(memory: CheckedMemory) -> tuple[int, int]:
    return memory.data.__array_interface__["data"][0], memory.data.itemsize


def _local_memory(symbol: str, module: dict[str, Any], block: _Threads, number: int) -> dict[str, CheckedMemory]:
    out = {}
    for name, dtype, elements in module["LOCALS"]:
        watch = (RaceDetector(symbol, name, module["STATEMENTS"], elements, block.agents,
                       lambda thread: block.near_name(number, thread), True) if block.size > 1 else None)
        out[name] = CheckedMemory(symbol, name, poison(elements, to_numpy(dtype), _dtype(dtype).is_float), watch)
    return out

BLOCK_THREADS = 1024
BLOCK_BYTES = 48 << 10  # local memory per block, as on GPUs
IN_VAIN = 1 << 8  # idle blocks for sizes known only at run time: each takes as long as a busy one


class BytesAllocator(Allocator):
    """Allocator of byte arrays."""

    def alloc(self, nbytes: int) -> np.ndarray[Any, Any]:
        try:
            return np.empty(nbytes, np.uint8)
        except (MemoryError, ValueError):  # NumPy raises ValueError for sizes beyond the address space
            raise OutOfMemoryError("PYTHON", f"{nbytes} bytes requested", "free tensors, or a smaller batch") from None

    def copyin(self, opaque: np.ndarray[Any, Any], offset: int, source: memoryview) -> None:
        opaque[offset : offset + source.nbytes] = np.frombuffer(source, np.uint8)

    def copyout(self, target: memoryview, opaque: np.ndarray[Any, Any], offset: int) -> None:
        target[:] = self.host_view(opaque, offset, target.nbytes)

    def host_view(self, opaque: np.ndarray[Any, Any], offset: int, nbytes: int) -> memoryview:
        return opaque.data[offset : offset + nbytes]


class PythonProgram(Program):
    """The generator function of a kernel, compiled once."""

    def __init__(self, kernel: Launch, binary: bytes, threads: int = 1, seed: int = BACKWARD) -> None:
        super().__init__(kernel, binary)
        self.seed = seed
        self.threads = 1 if kernel.serial else threads
        self.module: dict[str, Any] = dict(NAMES)
        exec(compile(binary, f"<{kernel.symbol}>", "exec"), self.module)

    def __call__(self, buffers: Sequence[Buffer], variables: Sequence[int] = ()) -> None:
        arguments: list[Any] = []
        for number, b in zip(self.kernel.buffers, buffers):
            data = b.opaque[b.offset : b.offset + b.nbytes].view(b.dtype.numpy)
            arguments.append(CheckedMemory(self.kernel.symbol, f"data{number}", data))
        launch(self.kernel.symbol, self.module, [*arguments, *variables], self.threads, self.seed)


class PythonDevice(Compiled):
    """An interpreter in this process."""

    interpreted = True

    @property
    def worker(self) -> str:
        """Return the worker's name: the interpreter holds Python's lock, so ``PYTHON:k`` take turns."""
        return "PYTHON"


def DEVICE(name: str) -> Compiled:
    """Open ``PYTHON`` with the options ``:V<vector bytes>``, ``:T<workers>``, ``:G<threads of a block>``,
    ``:C<cores>``, ``:B<bytes of rings>`` and ``:S<order of warps and blocks>``."""
    options = {"V": 16, "T": 1, "G": 0, "C": 1, "B": 0, "S": BACKWARD}
    for part in name.split(":")[1:]:
        option = re.fullmatch(r"([VTGCBS]?)(\d+)", part)
        if option is None:
            raise DeviceError("Device", f"PYTHON has no option {part!r}",
                              "PYTHON, PYTHON:V64, PYTHON:T2, PYTHON:G256 or PYTHON:G256:C8")
        options[option[1]] = int(option[2])
    vector_bytes, threads, block, cores, ring, seed = (options[o] for o in "VTGCBS")
    rows = (*x86.AMX, *x86.DOT, *(x86.fma(d, vector_bytes) for d in (dtypes.float32, dtypes.float64)))
    if block:
        costs = RANKED_COSTS if block >= 1 << RANKED_COSTS.digits[0] else GRID_COSTS
        costs = costs._replace(chain_width=128 * bool(ring))
        target = Target("python", vector_bytes, local_bytes=BLOCK_BYTES, block_threads=block, warp=WARP,
                        matrix_loads=True, bulk_copy=16 * bool(ring), ring_bytes=ring, parallel=Role.GLOBAL,
                        costs=costs._replace(cuts=CUTS_FOR_CORES) if cores > 1 else costs, cores=cores,
                        matches=block >= WARP, blocks=BLOCKS._replace(in_vain=IN_VAIN),
                        units=(*(nvidia.HOPPER if ring else ()), *(nvidia.CUDA if block >= WARP else ())))
    else:
        target = Target("python", vector_bytes, threads=threads, block_threads=BLOCK_THREADS, units=rows)
    return PythonDevice(name, BytesAllocator(), Compiler(),
                        lambda kernel, binary: PythonProgram(kernel, binary, threads, seed), PythonRenderer(target))
