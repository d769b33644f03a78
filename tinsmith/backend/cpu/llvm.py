"""Machine code for the CPU: LLVM in this process, and C compilers.

llvmlite compiles LLVM IR; it is imported lazily. The code generator emits vectors, unrolling and register tiles itself,
so that only two clean-up passes and code generation at level 2 pay off. This file also has

* the loader, with the disk cache and the features of the processor;
* the conversions of 16-bit floats that LLVM calls by name if the processor has no instruction (no C library provides
  all of them);
* a map from each line of assembly to its line of LLVM IR, by debug information;
* the compilation of C source to a shared object, with gcc or clang, whichever is on the PATH.
"""
from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, ParamSpec, TypeVar

from tinsmith.backend.cpu import os_calls
from tinsmith.backend.cpu.os_calls import usable_cores
from tinsmith.backend.device import Compiler
from tinsmith.codegen.render.cstyle import CRenderer
from tinsmith.codegen.render.llvm import STACK_BYTES
from tinsmith.core.counters import GlobalCounters
from tinsmith.core.disk_cache import cache_key, cached
from tinsmith.core.errors import ArgumentError, CompileError, DeviceError
from tinsmith.core.settings import settings
from tinsmith.ir import Ops, UOp

_P = ParamSpec("_P")
_R = TypeVar("_R")

SYMBOLS: Final = ("__truncsfbf2", "__truncdfbf2", "__truncsfhf2", "__truncdfhf2", "__extendhfsf2")

TEXT: Final = """
; Round to nearest, ties to even: adding 0x7fff plus the lowest bit that stays carries exactly when it should.
define bfloat @__truncsfbf2(float %x) {
  %bits = bitcast float %x to i32
  %high = lshr i32 %bits, 16
  %odd = and i32 %high, 1
  %bias = add i32 %odd, 32767
  %rounded = add i32 %bits, %bias
  %quiet = or i32 %bits, 4194304
  %nan = fcmp uno float %x, %x
  %chosen = select i1 %nan, i32 %quiet, i32 %rounded
  %top = lshr i32 %chosen, 16
  %short = trunc i32 %top to i16
  %result = bitcast i16 %short to bfloat
  ret bfloat %result
}

define half @__truncsfhf2(float %x) {
  %bits = bitcast float %x to i32
  %sign_high = lshr i32 %bits, 16
  %sign = and i32 %sign_high, 32768
  %size = and i32 %bits, 2147483647
  ; Below 2^-14: the unit of 0.5 is that of half's denormals, so one float addition rounds to it.
  %float_size = bitcast i32 %size to float
  %shifted = fadd float %float_size, 5.0e-01
  %shifted_bits = bitcast float %shifted to i32
  %denormal = sub i32 %shifted_bits, 1056964608
  %high = lshr i32 %size, 13
  %odd = and i32 %high, 1
  %bias = add i32 %odd, 4095
  %rounded = add i32 %size, %bias
  %rebased = sub i32 %rounded, 939524096
  %normal = lshr i32 %rebased, 13
  %payload = and i32 %high, 1023
  %quiet = or i32 %payload, 32256
  %small = icmp ult i32 %size, 947912704
  %huge = icmp uge i32 %size, 1199566848
  %nan = icmp ugt i32 %size, 2139095040
  %a = select i1 %small, i32 %denormal, i32 %normal
  %b = select i1 %huge, i32 31744, i32 %a
  %c = select i1 %nan, i32 %quiet, i32 %b
  %signed = or i32 %c, %sign
  %short = trunc i32 %signed to i16
  %result = bitcast i16 %short to half
  ret half %result
}

; A multiplication by 2^112 moves the exponent's zero and makes denormals normal.
define float @__extendhfsf2(half %x) {
  %short = bitcast half %x to i16
  %bits = zext i16 %short to i32
  %sign_low = and i32 %bits, 32768
  %sign = shl i32 %sign_low, 16
  %size = and i32 %bits, 32767
  %moved = shl i32 %size, 13
  %float_moved = bitcast i32 %moved to float
  %scaled = fmul float %float_moved, 0x46F0000000000000
  %finite = bitcast float %scaled to i32
  %special = or i32 %moved, 2139095040
  %is_special = icmp uge i32 %size, 31744
  %chosen = select i1 %is_special, i32 %special, i32 %finite
  %signed = or i32 %chosen, %sign
  %result = bitcast i32 %signed to float
  ret float %result
}

; Rounding a double to odd first makes the second rounding exact: an inexact result never looks like a tie.
define internal float @to_odd(double %x) {
  %near = fptrunc double %x to float
  %bits = bitcast float %near to i32
  %back = fpext float %near to double
  %inexact = fcmp une double %back, %x
  %back_size = call double @llvm.fabs.f64(double %back)
  %x_size = call double @llvm.fabs.f64(double %x)
  %above = fcmp ogt double %back_size, %x_size
  %step = zext i1 %above to i32
  %cut = sub i32 %bits, %step
  %sticky = zext i1 %inexact to i32
  %odd = or i32 %cut, %sticky
  %result = bitcast i32 %odd to float
  ret float %result
}
declare double @llvm.fabs.f64(double)

define bfloat @__truncdfbf2(double %x) {
  %odd = call float @to_odd(double %x)
  %result = call bfloat @__truncsfbf2(float %odd)
  ret bfloat %result
}

define half @__truncdfhf2(double %x) {
  %odd = call float @to_odd(double %x)
  %result = call half @__truncsfhf2(float %odd)
  ret half %result
}
"""

_FIRST: Final = 1_000_000  # first number of our metadata, beyond those of any kernel
_FLAGS, _VERSION, _UNIT, _FILE, _FUNCTION, _TYPE, _NONE = (f"!{_FIRST + n}" for n in range(7))

_METADATA: Final = f"""
!llvm.module.flags = !{{{_FLAGS}}}
!llvm.dbg.cu = !{{{_UNIT}}}
{_FLAGS} = !{{i32 2, !"Debug Info Version", i32 3}}
{_UNIT} = distinct !DICompileUnit(language: DW_LANG_C99, file: {_FILE}, isOptimized: true, emissionKind: LineTablesOnly)
{_FILE} = !DIFile(filename: "kernel", directory: "")
{_FUNCTION} = distinct !DISubprogram(name: "kernel", scope: {_FILE}, file: {_FILE}, line: 1, type: {_TYPE}, \
spFlags: DISPFlagDefinition | DISPFlagOptimized, unit: {_UNIT})
{_TYPE} = !DISubroutineType(types: {_NONE})
{_NONE} = !{{}}
"""

_LOCATION: Final = re.compile(r"\s+\.loc\s+\d+\s+(\d+)")
_INSTRUCTION: Final = re.compile(r"\s+[a-z]")


def source_lines(source: str, assembly: Callable[[str], str]) -> list[int]:
    """Return, for each line of ``assembly(source)``, the index of its line of ``source``; -1 where unknown.

    The assembly is that of the text without debug locations; if the compiler generates other instructions with them,
    all entries are -1.
    """
    plain, found, line = assembly(source).split("\n"), list[tuple[str, int]](), -1
    for text in assembly(_with_places(source)).split("\n"):
        place = _LOCATION.match(text)
        if place:
            line = int(place[1]) - 1
        elif _INSTRUCTION.match(text):
            found.append((text, line))
    if [text for text, _ in found] != [text for text in plain if _INSTRUCTION.match(text)]:
        return [-1] * len(plain)
    places = iter(line for _, line in found)
    return [next(places) if _INSTRUCTION.match(text) else -1 for text in plain]


def _with_places(source: str) -> str:
    """Return LLVM IR with a debug location for each instruction: its line in this text."""
    lines, locations = list[str](), list[str]()
    for n, text in enumerate(source.split("\n"), 1):
        if text.startswith("define "):
            text = f"{text.removesuffix('{')}!dbg {_FUNCTION} {{"
        elif text.startswith("  "):
            number = _FIRST + 10 + n
            locations.append(f"!{number} = !DILocation(line: {n}, column: 1, scope: {_FUNCTION})")
            text = f"{text}, !dbg !{number}"
        lines.append(text)
    return "\n".join(lines) + _METADATA + "\n".join(locations) + "\n"

PASSES: Final = "instcombine,simplifycfg"
CODEGEN_LEVEL: Final = 2
_lock = threading.RLock()
_own = threading.local()  # .machines: this thread's target machines by restriction
_contexts: list[Any] = []  # all contexts ever created
_idle_contexts: list[Any] = []
_library_numbers = itertools.count()


def _renew_lock() -> None:
    """Reset the lock in a forked child, whichever thread held it in the parent."""
    global _lock
    _lock = threading.RLock()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


@functools.cache
def _llvm() -> Any:
    """Return llvmlite's binding, initialized for this machine."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    llvm.initialize_native_asmparser()
    return llvm

# Processor features
_BASELINE: Final = {
    "x86_64": frozenset({"64bit", "cx8", "cmov", "fxsr", "mmx", "sse", "sse2"}),
    "arm64": frozenset({"fp-armv8", "neon"}),
}

_TOO_NEW: Final = {
    "": (),
    "avx512": ("amx", "avx10"),
    "avx2": ("amx", "avx10", "avx512", "evex512", "avxvnni", "avxifma", "avxneconvert"),
}


def host_features() -> frozenset[str]:
    """Return the processor features that code may use, as LLVM spells them, minus those that ``CPU_FEATURES`` excludes.

    They are read from the processor's feature bits, because features derived from its model name are wrong in virtual
    machines.

    Raises:
        ArgumentError: for an unknown ``CPU_FEATURES``.
    """
    return _features(settings.CPU_FEATURES)


@functools.cache
def _host_map() -> dict[str, bool]:
    return dict(_llvm().get_host_cpu_features())


@functools.cache
def _features(restriction: str) -> frozenset[str]:
    found = frozenset(name for name, present in _host_map().items() if present)
    if restriction == "generic":
        return found & _BASELINE.get(os_calls.architecture(), frozenset())
    if restriction not in _TOO_NEW:
        known = ", ".join(sorted({*_TOO_NEW, "generic"} - {""}))
        raise ArgumentError("settings", f"unknown CPU_FEATURES={restriction!r}", f"one of {known}, or nothing for all")
    found = frozenset(name for name in found if not name.startswith(_TOO_NEW[restriction]))
    if "amx-tile" in found and not os_calls.request_amx():
        found = frozenset(name for name in found if not name.startswith("amx"))
    return found


def vector_bytes(features: frozenset[str] | None = None) -> int:
    """Return the width in bytes of the widest vector register with these features (default: this machine's): 64, 32 or
    16."""
    features = host_features() if features is None else features
    return 64 if "avx512f" in features else 32 if "avx2" in features else 16


class _Target(NamedTuple):
    """The code generation target; ``cpu`` only steers instruction scheduling, ``features`` decides what is legal."""

    triple: str
    cpu: str
    features: str


@functools.cache
def _target(restriction: str) -> _Target:
    llvm, features = _llvm(), _features(restriction)
    # Every feature is spelled out, present or not, so that the cpu name can bring in none that the host lacks.
    text = ",".join(("+" if name in features else "-") + name for name in sorted(_host_map()))
    if os_calls.architecture() != "x86_64":
        cpu = "generic"
    elif "amx-tile" in features:
        cpu = "sapphirerapids"
    else:
        cpu = "x86-64-v4" if "avx512vl" in features else "x86-64-v3" if "avx2" in features else "x86-64"
    return _Target(llvm.get_process_triple(), cpu, text)


def _machine(restriction: str) -> Any:
    """Return the calling thread's target machine: no two threads may use one at a time."""
    machines = vars(_own).setdefault("machines", {})
    if restriction not in machines:
        target = _target(restriction)
        machines[restriction] = _llvm().Target.from_triple(target.triple).create_target_machine(
            cpu=target.cpu, features=target.features, opt=CODEGEN_LEVEL, reloc="pic", codemodel="default")
    return machines[restriction]

# Intrinsics that LLVM cannot select make it abort the whole process, so they are refused before it sees them.
_INTRINSIC: Final = re.compile(r'@"?llvm\.(x86|aarch64|arm|nvvm|amdgcn|r600|ppc|riscv|s390|wasm|spv)\.([\w.]+)')
_OWN_INTRINSICS: Final = {"x86": "x86_64", "aarch64": "arm64"}

# The first prefix that fits decides; "" in the last column means that every processor of the family has it.
_NEEDS: Final = (
    ("x86.tdpbf16ps", "amx-bf16"), ("x86.tdpfp16ps", "amx-fp16"), ("x86.tdpb", "amx-int8"),
    ("x86.tile", "amx-tile"), ("x86.ldtilecfg", "amx-tile"), ("x86.sttilecfg", "amx-tile"),
    ("x86.avx512bf16.", "avx512bf16"), ("x86.avx512fp16.", "avx512fp16"), ("x86.avx512.vpdp", "avx512vnni"),
    ("x86.avx512.vpmadd52", "avx512ifma"), ("x86.avx512.vpermi2var.qi", "avx512vbmi"),
    ("x86.avx512.permvar.qi", "avx512vbmi"), ("x86.avx512.", "avx512f avx512bw avx512dq"),
    ("x86.avx2.", "avx2"), ("x86.avx.", "avx"), ("x86.fma.", "fma"), ("x86.vcvtp", "f16c"),
    ("x86.bmi.pdep", "bmi2"), ("x86.bmi.pext", "bmi2"), ("x86.bmi.", "bmi"), ("x86.sse42.", "sse4.2"),
    ("x86.sse41.", "sse4.1"), ("x86.ssse3.", "ssse3"), ("x86.sse3.", "sse3"), ("x86.sse2.", "sse2"),
    ("x86.sse.", "sse"), ("x86.rdtsc", ""),
    ("aarch64.sve.", "sve"), ("aarch64.neon.bf", "bf16"), ("aarch64.neon.", "neon"), ("aarch64.hint", ""),
)  # fmt: skip


def _refuse_unsupported(ir_text: str, features: frozenset[str]) -> None:
    for found in _INTRINSIC.finditer(ir_text):
        family, name = found[1], f"{found[1]}.{found[2]}"
        needs = next((need for prefix, need in _NEEDS if name.startswith(prefix)), None)
        if needs is None or _OWN_INTRINSICS.get(family) != os_calls.architecture():
            reason = "is not in the table of supported intrinsics"
        else:
            wanted = set(needs.split())
            if name.startswith("x86.avx512") and name.endswith((".128", ".256")):
                wanted.add("avx512vl")
            if wanted <= features:
                continue
            reason = f"needs {', '.join(sorted(wanted - features))}, which this processor or CPU_FEATURES lacks"
        line = ir_text.count("\n", 0, found.start()) + 1
        raise CompileError("llvm", f"@llvm.{name} {reason}\n{_numbered(ir_text, line)}")


def _numbered(ir_text: str, line: int, around: int = 4) -> str:
    """Return the lines of ``ir_text`` near ``line`` (from 1), numbered, the line itself marked."""
    lines = ir_text.splitlines()
    first, last = max(line - around, 1), min(line + around, len(lines))
    return "\n".join(f"{'>' if n == line else ' '}{n:5d} | {lines[n - 1]}" for n in range(first, last + 1))


def _located(message: str, ir_text: str) -> str:
    """Return LLVM's ``message`` with the lines that it refers to."""
    where = re.search(r"<string>:(\d+):\d+", message)
    if where:
        return f"{message.strip()}\n{_numbered(ir_text, int(where[1]))}"
    # The verifier quotes the instruction instead of numbering it.
    quoted = {line.strip() for line in message.splitlines() if line.startswith("  ")}
    lines = enumerate(ir_text.splitlines(), 1)
    line = next((n for n, text in lines if text.strip() and text.split(";")[0].strip() in quoted), 1)
    return f"{message.strip()}\n{_numbered(ir_text, line)}"


def _interruptible(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Wrap a function that calls llvmlite, so that an exception of a signal handler does not leave its lock taken.

    llvmlite takes the lock around each of its calls by Python code (``_LLVMLock``, the same up to version 0.50), which
    the exception may end between the lock and the ``with`` block; every other thread would then wait forever.
    """
    @functools.wraps(function)
    def run(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return function(*args, **kwargs)
        finally:  # also without an exception here: one in a finalizer of llvmlite's objects is dropped
            lock = _llvm().ffi.lib._lock._lock
            while lock._is_owned():  # no call of llvmlite is under way in this thread any more
                lock.release()

    return run


class ObjectCompiler:
    """The compiler from LLVM IR text to object files for this machine; results are kept in the disk cache."""

    def key(self) -> str:
        """Return the cache key: everything that determines the object file except the text."""
        target = _target(settings.CPU_FEATURES)
        version = ".".join(map(str, _llvm().llvm_version_info))
        return cache_key(target.triple, target.cpu, target.features, f"{PASSES} -O{CODEGEN_LEVEL}", version)

    @_interruptible
    def compile(self, ir_text: str) -> bytes:
        """Return the object file of ``ir_text``.

        Raises:
            CompileError: if LLVM refuses the text, or if an intrinsic in it needs a feature that the processor lacks.
        """
        return cached("llvm", cache_key(ir_text, self.key()), functools.partial(self._compiled, ir_text))

    def _compiled(self, ir_text: str) -> bytes:
        machine = _machine(settings.CPU_FEATURES)
        with _optimized(ir_text, machine) as module:
            found = _object_file(machine, module)
        with _lock:
            GlobalCounters.compile_count += 1
        return found

    @_interruptible
    def assembly(self, ir_text: str) -> str:
        """Return the assembly of ``ir_text``, for reading.

        Raises:
            CompileError: as ``compile`` does.
        """
        machine = _machine(settings.CPU_FEATURES)
        with _optimized(ir_text, machine) as module:
            text: str = machine.emit_assembly(module)
        return text


@contextlib.contextmanager
def _context() -> Iterator[Any]:
    """Yield an LLVM context for exclusive use.

    It is reused unless an exception occurred: then a module in it may still wait for the garbage collector. Contexts
    are never disposed: in a garbage cycle, Python may free the context before its module, which crashes LLVM.
    """
    try:
        context = _idle_contexts.pop()
    except IndexError:
        context = _llvm().create_context()
        _contexts.append(context)
    yield context
    _idle_contexts.append(context)


@contextlib.contextmanager
def _optimized(ir_text: str, machine: Any) -> Iterator[Any]:
    """Yield ``ir_text`` parsed, verified and optimized for ``machine``; the module is freed afterwards."""
    _refuse_unsupported(ir_text, _features(settings.CPU_FEATURES))
    with _context() as context, _parsed(ir_text, context) as module:
        _clean_up(module, machine)
        yield module


def _parsed(ir_text: str, context: Any) -> Any:
    try:
        module = _llvm().parse_assembly(ir_text, context=context)
        module.verify()
    except RuntimeError as e:
        raise CompileError("llvm", _located(str(e), ir_text)) from None
    return module


def _clean_up(module: Any, machine: Any) -> None:
    llvm = _llvm()
    module.triple = machine.triple
    module.data_layout = str(machine.target_data)
    passes = llvm.create_new_module_pass_manager()
    passes.add_instruction_combine_pass()
    passes.add_simplify_cfg_pass()
    passes.run(module, llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=0)))


@functools.cache
def _emit() -> Any:
    """Return LLVM's code generation function without the lock that llvmlite holds around all of its calls.

    That lock would let one thread generate code at a time; LLVM itself only requires that no two threads share a
    context or a machine.
    """
    lib = _llvm().ffi.lib
    locked, emit = (l.LLVMPY_TargetMachineEmitToMemory for l in (lib, ctypes.CDLL(lib._name, handle=lib._handle)))
    emit.argtypes, emit.restype = locked.argtypes, locked.restype
    return emit


def _object_file(machine: Any, module: Any) -> bytes:
    """Return the result of ``machine.emit_object(module)``, without blocking other threads' code generation."""
    ffi = _llvm().ffi
    with ffi.OutputString() as error:
        buffer = _emit()(machine, module, 1, error)
        if not buffer:
            raise CompileError("llvm", f"LLVM generated no machine code: {error}")
    try:
        return ctypes.string_at(ffi.lib.LLVMPY_GetBufferStart(buffer), ffi.lib.LLVMPY_GetBufferSize(buffer))
    finally:
        ffi.lib.LLVMPY_DisposeMemoryBuffer(buffer)


class Loaded:
    """Machine code in memory. ``addresses`` are those of the requested symbols, in that order.

    The code is freed with this handle: keep the handle for as long as an address is in use.
    """

    __slots__ = ("_tracker", "addresses")

    def __init__(self, tracker: Any, symbols: list[str]) -> None:
        self._tracker = tracker
        self.addresses: list[int] = [tracker[symbol] for symbol in symbols]


@functools.cache
def _jit() -> Any:
    # JITLink loads in half the time of the older linker; on Windows it does not know the object format well.
    return _llvm().create_lljit_compiler(_machine(""), use_jit_link=sys.platform != "win32")


@functools.cache
def _halves() -> tuple[str, Loaded]:
    """Return the library of half conversions: its name and the handle that keeps it loaded."""
    with _lock:
        compiled = ObjectCompiler().compile(TEXT)
        builder = _llvm().JITLibraryBuilder().add_object_img(compiled)
        return "tinsmith-halves", _link(builder, "tinsmith-halves", list(SYMBOLS))


@_interruptible
def load(objects: list[bytes], symbols: list[str]) -> Loaded:
    """Link object files into one library of this process, which also sees the C library's symbols.

    Many objects in one library load faster and take less memory than a library each.

    Raises:
        CompileError: if a symbol is missing or defined twice.
    """
    builder = _llvm().JITLibraryBuilder().add_current_process()
    for data in objects:
        builder.add_object_img(data)
    with _lock:  # created once, by the first thread
        builder.add_jit_library(_halves()[0])
    return _link(builder, f"tinsmith{next(_library_numbers)}", symbols)


def _link(builder: Any, name: str, symbols: list[str]) -> Loaded:
    for symbol in symbols:
        builder.export_symbol(symbol)
    with _lock:
        try:
            return Loaded(builder.link(_jit(), name), symbols)
        except RuntimeError as e:
            raise CompileError("llvm", f"cannot load {', '.join(symbols)}: {e}") from None

_C_FLAGS = ("-O2", "-march=native", "-fPIC", "-shared", "-ffp-contract=off", "-fwrapv", "-fno-math-errno",
          "-fno-strict-aliasing", "-Wno-psabi", "-x", "c", "-", "-lm")


class CPURenderer(CRenderer):
    """C with a second function that unpacks the argument table, with the signature that the worker pool calls."""

    signature = "static inline void"

    def render(self, name: str, program: Sequence[UOp]) -> str:
        return super().render(name + "_kernel", program) + self.entry(name, program)

    def local(self, u: UOp) -> str:
        small = u.arg[1] * u.dtype.itemsize <= STACK_BYTES
        return super().local(u) if small else "static _Thread_local " + super().local(u)

    def entry(self, name: str, program: Sequence[UOp]) -> str:
        arguments = []
        for slot, u in enumerate(u for u in program if u.op is Ops.DEFINE_GLOBAL):
            arguments.append(f"(void*)args[{slot}]" if u.dtype.pointer else f"(int)args[{slot}]")
        arguments += [f"(int){u.arg}" for u in program if u.op is Ops.SPECIAL]
        return f"void {name}(long* args, long tid, long nthreads) {{ {name}_kernel({', '.join(arguments)}); }}\n"


def find_compiler() -> str:
    """Return the path of the C compiler.

    Raises:
        DeviceError: if there is neither gcc nor clang on the PATH.
    """
    for name in ("gcc", "clang", "cc"):
        path = shutil.which(name)
        if path:
            return path
    raise DeviceError("CPU:C", "there is neither gcc nor clang on the PATH", "DEV=CPU, which needs no compiler")


class CCompiler(Compiler):
    """Compiles with the flags above; the binary is the bytes of a shared object."""

    def __init__(self) -> None:
        self.path = find_compiler()

    def threads(self) -> int:
        return max(usable_cores() - 1, 1)

    def key(self) -> str:
        """Return the cache key: the compiler's path, size and date, its flags, and the processor features (for
        ``-march=native``)."""
        real = os.stat(self.path)
        return cache_key("c", self.path, f"{real.st_size} {real.st_mtime_ns}", *_C_FLAGS, *sorted(host_features()))

    def compile(self, source: str) -> bytes:
        return cached("c", cache_key(self.key(), source), functools.partial(self._compiled, source))

    def _compiled(self, source: str) -> bytes:
        GlobalCounters.compile_count += 1
        with tempfile.TemporaryDirectory() as folder:  # a private folder: linkers delete and recreate the output file
            out = Path(folder) / "kernel.so"
            done = subprocess.run([self.path, *_C_FLAGS, "-o", str(out)], input=source.encode(), capture_output=True,
                                  check=False)
            if done.returncode:
                raise CompileError("compile", f"{self.path} rejected the generated code:\n{done.stderr.decode()}",
                                   "report it: this is a bug of tinsmith")
            return out.read_bytes()


class SharedObject:
    """A loaded shared object."""

    def __init__(self, binary: bytes, symbol: str) -> None:
        handle, path = tempfile.mkstemp(suffix=".so")
        try:
            with os.fdopen(handle, "wb") as f:
                f.write(binary)
            self.library = ctypes.CDLL(path)
        finally:
            with contextlib.suppress(OSError):
                os.unlink(path)
        function = ctypes.cast(getattr(self.library, symbol), ctypes.c_void_p).value
        assert function is not None
        self.addresses = [function]


def load_shared(binary: bytes, symbol: str) -> SharedObject:
    """Load a shared object from bytes and look up its kernel."""
    return SharedObject(binary, symbol)
