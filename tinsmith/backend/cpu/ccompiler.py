"""Compilation of C source to a shared object with gcc or clang, whichever is on the PATH."""
from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tinsmith.backend.cpu.llvm import host_features
from tinsmith.backend.cpu.os_calls import usable_cores
from tinsmith.backend.device import Compiler
from tinsmith.codegen.render.cstyle import CRenderer
from tinsmith.codegen.render.llvm import STACK_BYTES
from tinsmith.core.counters import GlobalCounters
from tinsmith.core.disk_cache import cache_get, cache_key, cache_put
from tinsmith.core.errors import CompileError, DeviceError
from tinsmith.ir import Ops, UOp

_FLAGS = ("-O2", "-march=native", "-fPIC", "-shared", "-ffp-contract=off", "-fwrapv", "-fno-math-errno",
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
        return cache_key("c", self.path, f"{real.st_size} {real.st_mtime_ns}", *_FLAGS, *sorted(host_features()))

    def compile(self, source: str) -> bytes:
        key = cache_key(self.key(), source)
        found = cache_get("c", key)
        if found is not None:
            return found
        GlobalCounters.compile_count += 1
        with tempfile.TemporaryDirectory() as folder:  # a private folder: linkers delete and recreate the output file
            out = Path(folder) / "kernel.so"
            done = subprocess.run([self.path, *_FLAGS, "-o", str(out)], input=source.encode(), capture_output=True,
                                  check=False)
            if done.returncode:
                raise CompileError("compile", f"{self.path} rejected the generated code:\n{done.stderr.decode()}",
                                   "report it: this is a bug of tinsmith")
            binary = out.read_bytes()
        cache_put("c", key, binary)
        return binary


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

