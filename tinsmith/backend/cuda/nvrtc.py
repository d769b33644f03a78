"""CUDA C++ → PTX or cubin with NVRTC, which needs no GPU: the library comes from the nvidia-cuda-nvrtc wheel or the
system."""
from __future__ import annotations

import ctypes
import ctypes.util
import functools
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tinsmith.backend.device import Compiler
from tinsmith.core.cache import cache_get, cache_key, cache_put
from tinsmith.core.counters import GlobalCounters
from tinsmith.core.errors import CompileError, DeviceError

_INSTALL = "pip install 'tinsmith[cuda]'"


def _candidates() -> Iterator[str]:
    """Files that may be the library: of the wheels, by either layout, then the system's."""
    found = importlib.util.find_spec("nvidia")
    for folder in (found.submodule_search_locations or []) if found is not None else []:
        for pattern in ("cuda_nvrtc/lib/libnvrtc.so.*", "cu*/lib/libnvrtc.so.*", "cuda_nvrtc/bin/nvrtc64*.dll"):
            yield from (str(p) for p in sorted(Path(folder).glob(pattern)) if ".alt." not in p.name)
    system = ctypes.util.find_library("nvrtc")
    if system:
        yield system


@functools.cache
def load_nvrtc() -> Any:
    """The library.

    Raises:
        DeviceError: if there is none.
    """
    reasons = []
    for path in _candidates():
        try:
            return ctypes.CDLL(path)
        except OSError as error:
            reasons.append(str(error))
    why = "; ".join(reasons) or "there is neither its wheel nor a CUDA toolkit"
    raise DeviceError("CUDA", f"NVRTC cannot be loaded: {why}", _INSTALL)


class NVRTCCompiler(Compiler):
    """Compiles for one architecture.

    Args:
        arch: such as ``sm_90``.
        binary: machine code (cubin) rather than PTX.
    """

    def __init__(self, arch: str = "sm_90", binary: bool = True) -> None:
        self.arch, self.binary, self.library = arch, binary, load_nvrtc()
        major, minor = ctypes.c_int(), ctypes.c_int()
        self.library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
        self.path = f"NVRTC {major.value}.{minor.value}"
        target = arch if binary else arch.replace("sm_", "compute_")
        self.options = [f"--gpu-architecture={target}", "--fmad=false", "--device-int128"]

    def key(self) -> str:
        return cache_key("cuda", self.path, *self.options)

    def compile(self, source: str) -> bytes:
        key = cache_key(self.key(), source)
        found = cache_get("cuda", key)
        if found is not None:
            return found
        GlobalCounters.compile_count += 1
        text = self._compiled(source)
        cache_put("cuda", key, text)
        return text

    def _compiled(self, source: str) -> bytes:
        lib, program = self.library, ctypes.c_void_p()
        self._check(lib.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None), "")
        try:
            options = (ctypes.c_char_p * len(self.options))(*(o.encode() for o in self.options))
            status = lib.nvrtcCompileProgram(program, len(self.options), options)
            self._check(status, self._text(program, "ProgramLog").decode(errors="replace") + "\n" + source)
            return self._text(program, "CUBIN" if self.binary else "PTX")
        finally:
            lib.nvrtcDestroyProgram(ctypes.byref(program))

    def _text(self, program: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        self._check(getattr(self.library, f"nvrtcGet{what}Size")(program, ctypes.byref(size)), "")
        buffer = ctypes.create_string_buffer(size.value)
        self._check(getattr(self.library, f"nvrtcGet{what}")(program, buffer), "")
        return buffer.raw if what == "CUBIN" else buffer.raw.rstrip(b"\0")

    def _check(self, status: int, log: str) -> None:
        if status:
            self.library.nvrtcGetErrorString.restype = ctypes.c_char_p
            reason = self.library.nvrtcGetErrorString(status).decode()
            raise CompileError("CUDA", f"{self.path} refused generated code: {reason}\n{log}",
                               "report it: this is a bug of tinsmith")

    def disassemble(self, source: str) -> str:
        """PTX, which is readable everywhere."""
        return NVRTCCompiler(self.arch, binary=False).compile(source).decode()
