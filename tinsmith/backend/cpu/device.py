"""The CPU device: kernels compiled by LLVM (default) or a C compiler, run by one pool of native workers.

``CPU:k`` are queues on the same pool; ``CPU:C`` renders C and compiles it with gcc or clang. Freed blocks of memory are
reused, because page faults of fresh memory cost more than the kernel that fills it. Copies between queues are commands
like kernels: a captured program over several ``CPU:k`` is one command table, and all threads share a long copy.
"""
from __future__ import annotations

import contextlib
import ctypes
import functools
import struct
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from tinsmith.backend.cpu import llvm, os_calls, pool
from tinsmith.backend.cpu.llvm import CCompiler, CPURenderer, load_shared, source_lines
from tinsmith.backend.cpu.pool import Commands, Table, build_table, get_pool
from tinsmith.backend.device import Allocator, Compiled, Compiler
from tinsmith.backend.memory import FreeLists, MemoryBlock
from tinsmith.backend.program import Call, Graph, Launched, Program
from tinsmith.codegen.launch import Launch
from tinsmith.codegen.render.base import Renderer
from tinsmith.codegen.render.llvm import STACK_BYTES, LLVMRenderer
from tinsmith.core.dtypes import dtypes
from tinsmith.core.errors import DeviceError, OutOfMemoryError
from tinsmith.core.settings import settings
from tinsmith.ir import matrix_unit
from tinsmith.target.target import Target
from tinsmith.target.units import x86

if TYPE_CHECKING:
    from tinsmith.backend.memory import Buffer


class HostMemory(FreeLists):
    """Blocks of host memory.

    Args:
        cache_limit: bytes of free blocks to keep. Default: a quarter of memory.
    """

    def __init__(self, cache_limit: int | None = None) -> None:
        super().__init__(os_calls.total_memory() // 4 if cache_limit is None else cache_limit)

    def _fresh(self, nbytes: int, capacity: int) -> MemoryBlock:
        total = os_calls.total_memory()
        # Linux overcommits memory and kills the process that touches too much of it, hence this check.
        if self.in_use + nbytes <= total:
            if self.in_use + self.cached + capacity > total:
                self._shrink(0)
            with contextlib.suppress(MemoryError):
                return MemoryBlock(nbytes, capacity, *os_calls.alloc(capacity))
            self._shrink(0)
            with contextlib.suppress(MemoryError):
                return MemoryBlock(nbytes, capacity, *os_calls.alloc(capacity))
        raise OutOfMemoryError(
            "CPU",
            f"{nbytes} bytes requested, {self.in_use} bytes in use, {total} bytes of memory in all",
            "free tensors, use a smaller batch or a narrower dtype",
        )

SHARED_BYTES: Final = 1 << 17  # bytes from which on the threads share a copy

_TEXT: Final = """
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)

; Arguments: target, source, bytes. Thread %tid copies its share of the cache lines.
define void @copy(ptr %args, i64 %tid, i64 %threads) {
  %target = load ptr, ptr %args
  %source_at = getelementptr i8, ptr %args, i64 8
  %source = load ptr, ptr %source_at
  %bytes_at = getelementptr i8, ptr %args, i64 16
  %bytes = load i64, ptr %bytes_at
  %round = mul i64 %threads, 64
  %more = add i64 %bytes, %round
  %last = sub i64 %more, 1
  %lines = udiv i64 %last, %round
  %share = mul i64 %lines, 64
  %begin = mul i64 %share, %tid
  %far = add i64 %begin, %share
  %over = icmp ugt i64 %far, %bytes
  %end = select i1 %over, i64 %bytes, i64 %far
  %some = icmp ult i64 %begin, %end
  br i1 %some, label %work, label %done
work:
  %length = sub i64 %end, %begin
  %to = getelementptr i8, ptr %target, i64 %begin
  %from = getelementptr i8, ptr %source, i64 %begin
  call void @llvm.memcpy.p0.p0.i64(ptr %to, ptr %from, i64 %length, i1 false)
  br label %done
done:
  ret void
}
"""


@functools.cache
def loaded() -> Any:
    """Return the copy's machine code; its one address is that of the symbol ``copy``."""
    return llvm.load([llvm.ObjectCompiler().compile(_TEXT)], ["copy"])


class HostAllocator(HostMemory, Allocator):
    """Allocator of host memory with reuse; a handle is a ``Block``."""

    def copyin(self, opaque: Any, offset: int, source: memoryview) -> None:
        self.host_view(opaque, offset, source.nbytes)[:] = source

    def copyout(self, target: memoryview, opaque: Any, offset: int) -> None:
        target[:] = self.host_view(opaque, offset, target.nbytes)

    def host_view(self, opaque: Any, offset: int, nbytes: int) -> memoryview:
        return memoryview((ctypes.c_ubyte * nbytes).from_address(opaque.address + offset)).cast("B")


class LLVMCompiler(Compiler):
    """Compiles LLVM IR to object files, cached on disk."""

    def __init__(self) -> None:
        self.llvm = llvm.ObjectCompiler()

    def threads(self) -> int:
        return max(os_calls.usable_cores() - 1, 1)

    def compile(self, source: str) -> bytes:
        return self.llvm.compile(source)

    def key(self) -> str:
        return self.llvm.key()

    def disassemble(self, source: str) -> str:
        return self.llvm.assembly(source)

    def assembly_lines(self, source: str) -> list[int]:
        return source_lines(source, self.llvm.assembly)


class CPUProgram(Program):
    """A loaded kernel: ``void symbol(args, tid, nthreads)``. ``constants`` are appended to its arguments."""

    constants: tuple[int, ...] = ()

    def __init__(self, kernel: Launch, binary: bytes, loaded: Any = None, address: int = 0) -> None:
        super().__init__(kernel, binary)
        self.loaded: Any = loaded or self.load()
        self.address: int = address or self.loaded.addresses[0]
        self.arena: Any = None

    def load(self) -> Any:
        return llvm.load([self.binary], [self.kernel.symbol])

    def arguments(self, buffers: Sequence[Any], variables: Sequence[int], near: int = 0) -> Any:
        """Return the argument table: buffer addresses, variables, and the local memory of all threads at ``near``."""
        values = [b.opaque.address + b.offset for b in buffers]
        values += variables
        if self.kernel.local_bytes > STACK_BYTES:
            values.append(near)
        values += self.constants
        return (ctypes.c_int64 * max(len(values), 1))(*values)

    def __call__(self, buffers: Sequence[Any], variables: Sequence[int] = ()) -> None:
        run_calls([Call(self, list(buffers), list(variables))])


class CProgram(CPUProgram):
    """A kernel loaded from a shared object that a C compiler made."""

    def load(self) -> Any:
        return load_shared(self.binary, self.kernel.symbol)


class CopyProgram(CPUProgram):
    """A copy of ``nbytes`` bytes from its second buffer to its first."""

    def __init__(self, nbytes: int) -> None:
        super().__init__(Launch("copy", "copy", [0, 1], [], frozenset((0,)), 0, nbytes, 0, nbytes < SHARED_BYTES,
                                [], []), b"", loaded())
        self.constants = (nbytes,)


class HostProgram(CPUProgram):
    """A host function, called by the thread that runs a command table."""

    def __init__(self, kernel: Launch) -> None:
        entry = pool.entry(kernel)
        super().__init__(kernel, b"", entry, ctypes.cast(entry, ctypes.c_void_p).value or 0)

KEPT_VALUES = 4096  # values of variables for which a graph remembers its serial kernels
LONG_WORK = 1 << 30  # operations or bytes of a kernel that may delay Ctrl-C by 0.1 s or more


LONG_GROWTH = LONG_WORK >> 14  # the same, in units of ``Launch.growth``


def _kernel(launched: Launched) -> Launch:
    return launched.program.kernel


def _are_long(kernels: Sequence[Launch]) -> bool:
    """Return True if a kernel may delay Ctrl-C. Kernels are not interrupted if the table calls host functions, since
    the interpreter may be running there."""
    return any(max(k.ops, k.bytes) >= LONG_WORK for k in kernels) and not any(k.host for k in kernels)

_host = HostAllocator()


@contextlib.contextmanager
def _arena(nbytes: int) -> Iterator[int]:
    """Yield the address of local memory for all threads that run one table."""
    block = _host.alloc(nbytes * get_pool().threads)
    try:
        yield block.address
    finally:
        _host.free(block)


def run_calls(calls: Sequence[Call]) -> None:
    """Run all kernels of a run in one native call over a command table."""
    entries, keep = [], []
    with _arena(max((call.program.kernel.local_bytes for call in calls), default=0)) as near:
        for call in calls:
            program = call.program
            assert isinstance(program, CPUProgram)
            table = program.arguments(call.buffers, call.variables, near)
            keep.append(table)
            entries.append((program.address, ctypes.addressof(table), program.kernel.is_serial(call.variables)))
        commands: Table = build_table(entries)
        get_pool().run(commands.address, commands.count, _are_long([call.program.kernel for call in calls]),
                       all(serial for _, _, serial in entries))
    pool.raise_failure()


class CPUGraph(Graph):
    """A captured graph as one native call: Python writes the base addresses, native code fills in the arguments and
    runs it."""

    whole = True

    def __init__(self, device: Compiled, launches: Sequence[Launched]) -> None:
        super().__init__(device, launches)
        self.bases = sorted({p.base for e in launches for p in e.places})
        self.values = sorted({v for e in launches for v in e.variables})
        base = {b: n for n, b in enumerate(self.bases)}
        value = {v: n for n, v in enumerate(self.values, len(base))}
        near = len(base) + len(value)
        nothing = near + 1
        self.near_bytes = 0
        kernels, arguments = [], []
        for e in launches:
            assert isinstance(e.program, CPUProgram)
            row = [(base[p.base], p.offset) for p in e.places]
            row += [(value[v], 0) for v in e.variables]
            if e.program.kernel.local_bytes > STACK_BYTES:
                row.append((near, 0))
                self.near_bytes = max(self.near_bytes, e.program.kernel.local_bytes)
            row += [(nothing, c) for c in e.program.constants]
            kernels.append((e.program.address, e.program.kernel.serial))
            arguments.append(row)
        self.calls_host = any(e.program.kernel.host for e in launches)
        long = _are_long([e.program.kernel for e in launches])
        self._kernels, self._arguments, self._words, self._long = kernels, arguments, near + 2, long
        # kernels that are serial, or short, for small values of their variables
        self._grows = [(n, e) for n, e in enumerate(launches) if e.program.kernel.growth]
        self._may_be_long = long and all(k.growth for k in map(_kernel, launches) if _are_long([k]))
        # by the values, which of these are serial, and at the end True if one of them is long
        self._serial: dict[tuple[int, ...], tuple[bool, ...]] = {}
        # command tables not in use, by the kernels that are serial in them; each run takes one
        self._idle: dict[tuple[bool, ...], list[Commands]] = {}
        self._write = struct.Struct(f"={near + (self.near_bytes > 0)}q").pack_into
        self._all = self.bases == list(range(len(self.bases)))

    def __call__(self, bases: Sequence[Buffer], values: Sequence[int]) -> None:
        used = bases if self._all and len(bases) == len(self.bases) else [bases[n] for n in self.bases]
        addresses = []
        for b in used:
            addresses.append((b._opaque or b.opaque).address + b.offset)
        self._run(addresses, values)

    def run(self, addresses: Sequence[int], values: Sequence[int]) -> None:
        """Run the launches on bases that begin at ``addresses``, one per base, in order."""
        all_used = self._all and len(addresses) == len(self.bases)
        self._run([*addresses] if all_used else [addresses[n] for n in self.bases], values)

    def _run(self, addresses: list[int], values: Sequence[int]) -> None:
        if self.values:
            addresses += [values[n] for n in self.values]
        alone = self._serial_now(tuple(values)) if self._grows else ()
        try:
            idle = self._idle[alone]
        except KeyError:
            idle = self._idle[alone] = []
        try:
            commands = idle.pop()
        except IndexError:
            commands = self._new(alone)
        if self.near_bytes:
            with _arena(self.near_bytes) as near:
                self._write(commands.words, 0, *addresses, near)
                get_pool().replay(commands)
        else:
            self._write(commands.words, 0, *addresses)
            get_pool().replay(commands)
        idle.append(commands)
        if self.calls_host:
            pool.raise_failure()

    def _serial_now(self, values: tuple[int, ...]) -> tuple[bool, ...]:
        """Return, for each of the kernels whose work grows with variables, True if one thread runs it; then True if one
        of them may delay Ctrl-C."""
        found = self._serial.get(values)
        if found is None:
            own = [(e.program.kernel, [values[v] for v in e.variables]) for _, e in self._grows]
            long = any(k.grown(v) >= LONG_GROWTH for k, v in own) if self._may_be_long else self._long
            found = *(k.is_serial(v) for k, v in own), long
            if len(self._serial) < KEPT_VALUES:
                self._serial[values] = found
        return found

    def _new(self, alone: tuple[bool, ...]) -> Commands:
        """Return a new command table; ``alone``: as from ``_serial_now``."""
        serial = {n: now for (n, _), now in zip(self._grows, alone)}
        kernels = [(address, serial.get(n, always)) for n, (address, always) in enumerate(self._kernels)]
        long = alone[-1] if alone else self._long
        return Commands(kernels, self._arguments, self._words, long)  # the last value stays zero


class CPUDevice(Compiled):
    """A queue on the host's cores."""

    concurrent = True

    dlpack = 1, 0
    calls_host = True

    @property
    def renderer(self) -> Renderer:
        """Return the renderer for the current ``CPU_FEATURES``, which may change in a ``Context`` while the device is
        open."""
        return _renderer(super().renderer.target.name, settings.CPU_FEATURES)

    @property
    def worker(self) -> str:
        """Return the worker's name: all ``CPU:k`` share one pool, which runs one kernel after the other on all cores.
        """
        return "CPU"

    def load(self, kernels: Sequence[tuple[Launch, bytes]]) -> list[Program]:
        """Load all object files as one library: faster and smaller than a library each."""
        if any(kernel.host for kernel, _ in kernels):
            written = iter(self.load([(k, binary) for k, binary in kernels if not k.host]))
            return [HostProgram(k) if k.host else next(written) for k, _ in kernels]
        if len(kernels) < 2 or self.runtime is not CPUProgram:
            return super().load(kernels)
        library = llvm.load([binary for _, binary in kernels], [kernel.symbol for kernel, _ in kernels])
        return [CPUProgram(k, binary, library, address) for (k, binary), address in zip(kernels, library.addresses)]

    def copier(self, source: Compiled, nbytes: int) -> Program | None:
        """Return a copy command for the common pool; None if ``source`` is on another worker."""
        return CopyProgram(nbytes) if source.worker == self.worker else None

    def run(self, calls: Sequence[Call]) -> None:
        run_calls(calls)

    def graph(self, launches: Sequence[Launched]) -> Graph:
        return CPUGraph(self, launches)

    def timed(self, call: Call) -> float:
        get_pool().start()  # start-up must not count as the first kernel's time
        return super().timed(call)


def host_target(name: str) -> Target:
    """Return the target description of this machine."""
    return cpu_target(name, os_calls.architecture(), llvm.host_features(), os_calls.usable_cores(),
                      os_calls.cache_sizes())


def cpu_target(name: str, architecture: str, features: frozenset[str], cores: int,
               caches: os_calls.CacheSizes) -> Target:
    """Return the target of renderer ``name`` on a processor with these features."""
    arm, width = architecture == "arm64", llvm.vector_bytes(features)
    fma_units = tuple(x86.fma(d, width) for d in (dtypes.float32, dtypes.float64))
    tables = (matrix_unit.available(rows, architecture, features) for rows in (x86.AMX, x86.DOT))
    matrix_units = next(filter(None, tables), ()) if name == "llvm" else ()  # next to tiles, vector units are slow
    fma = name == "llvm" and ("fma" in features or arm)
    scales = name == "llvm" and {"avx512f", "avx512vl", "avx512bw", "avx512dq"} <= features
    return Target(name, width, 32 if "avx512f" in features or arm else 16, cores, l1_bytes=caches.l1,
                  l2_bytes=caches.l2, fma=fma, scales=scales, masks=True, units=(*matrix_units, *fma_units))


@functools.cache
def _renderer(name: str, restriction: str) -> Renderer:
    """Return the renderer; ``restriction``, the value of ``CPU_FEATURES``, is the cache key (``host_target`` reads the
    setting)."""
    kind = LLVMRenderer if name == "llvm" else CPURenderer
    return kind(host_target(name))


def DEVICE(name: str) -> Compiled:
    """Open ``CPU``, ``CPU:k`` or ``CPU:k:C``."""
    renderer = next((p for p in name.split(":")[1:] if not p.isdigit()), "LLVM")
    if renderer == "LLVM":
        return CPUDevice(name, _host, LLVMCompiler(), CPUProgram, _renderer("llvm", settings.CPU_FEATURES))
    if renderer == "C":
        return CPUDevice(name, _host, CCompiler(), CProgram, _renderer("c", settings.CPU_FEATURES))
    raise DeviceError("Device", f"CPU has no renderer {renderer!r}", "CPU, CPU:LLVM or CPU:C")
