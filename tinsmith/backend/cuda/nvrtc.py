"""NVRTC: compiles CUDA C++ to PTX or cubin; needs no GPU."""
from __future__ import annotations

import functools
import re
from typing import Any, Final

from tinsmith.backend.cpu import os_calls
from tinsmith.backend.cuda.driver import INSTALL, bindings
from tinsmith.backend.device import Compiler
from tinsmith.codegen.render.cuda import generation
from tinsmith.core.counters import GlobalCounters
from tinsmith.core.disk_cache import cache_get, cache_key, cache_put
from tinsmith.core.errors import CompileError, DeviceError

REGISTERS: Final = 1 << 16  # per multiprocessor (CUDA C++ Programming Guide, "Technical Specifications")
_BLOCK = re.compile(r"__launch_bounds__\((\d+)\)")
_USED = re.compile(r"Used (\d+) registers")


@functools.cache
def load_nvrtc() -> tuple[Any, str]:
    """Return the NVRTC bindings and the library's version.

    Raises:
        DeviceError: if NVRTC is not installed.
    """
    nvrtc = bindings("nvrtc")
    try:
        status, major, minor = nvrtc.nvrtcVersion()
    except Exception as error:  # the bindings' loader raises its own exception type for a missing library
        raise DeviceError("CUDA", f"NVRTC cannot be loaded: {error}", INSTALL) from None
    if status:
        raise DeviceError("CUDA", f"NVRTC does not answer: {status.name}", INSTALL)
    return nvrtc, f"{major}.{minor}"


class NVRTCCompiler(Compiler):
    """The compiler for one GPU architecture.

    Args:
        arch: target architecture, such as ``sm_90``.
        binary: True for machine code (cubin), False for PTX.
        gpu: model name, for messages.

    Raises:
        DeviceError: if this NVRTC does not support the architecture, or is not installed.
    """

    def __init__(self, arch: str = "sm_90", binary: bool = True, gpu: str = "") -> None:
        self.arch, self.binary = arch, binary
        self.nvrtc, version = load_nvrtc()
        self.version = f"NVRTC {version}"
        whose = f"{arch}{f' ({gpu})' if gpu else ''}"
        self.path = f"{self.version}, {whose}"
        known = self._check(self.nvrtc.nvrtcGetSupportedArchs(), "")
        if generation(arch) not in known:
            newer = generation(arch) > max(known)
            raise DeviceError("CUDA", f"{self.version} does not support {whose}, only "
                              f"{', '.join(f'sm_{n}' for n in known)}",
                              "pip install -U nvidia-cuda-nvrtc" if newer else "DEV=CPU, or DEV=WEBGPU on such a GPU")
        target = arch if binary else arch.replace("sm_", "compute_")
        self.options = [f"--gpu-architecture={target}", "--fmad=false", "--device-int128", "--ptxas-options=-v"]

    def threads(self) -> int:
        return max(os_calls.usable_cores() - 1, 1)

    def key(self) -> str:
        return cache_key("cuda", self.version, *self.options)

    def compile(self, source: str) -> bytes:
        key = cache_key(self.key(), source)
        found = cache_get("cuda", key)
        if found is not None:
            return found
        GlobalCounters.compile_count += 1
        text, log = self._compiled(source)
        used, block = _USED.search(log), _BLOCK.search(source)
        if used and block and "__syncthreads" in source and _leaves_one(int(used[1]), int(block[1])):
            text, _ = self._compiled(_BLOCK.sub(rf"__launch_bounds__({block[1]}, 2)", source))
        cache_put("cuda", key, text)
        return text

    def _compiled(self, source: str) -> tuple[bytes, str]:
        """Return the compiled program and the compiler's log."""
        nvrtc = self.nvrtc
        program = self._check(nvrtc.nvrtcCreateProgram(source.encode(), b"kernel.cu", 0, [], []), "")
        try:
            status = nvrtc.nvrtcCompileProgram(program, len(self.options), [o.encode() for o in self.options])
            log = self._text(program, "ProgramLog").decode(errors="replace")
            if status[0]:
                self._check(status, log + "\n" + source)
            text = self._text(program, "CUBIN" if self.binary else "PTX")
            return text if self.binary else text.rstrip(b"\0"), log
        finally:
            nvrtc.nvrtcDestroyProgram(program)

    def _text(self, program: Any, what: str) -> bytes:
        size = self._check(getattr(self.nvrtc, f"nvrtcGet{what}Size")(program), "")
        buffer = bytes(size)  # NVRTC writes into the bytes object in place
        self._check(getattr(self.nvrtc, f"nvrtcGet{what}")(program, buffer), "")
        return buffer

    def _check(self, found: tuple[Any, ...], log: str) -> Any:
        if found[0]:
            raise CompileError("CUDA", f"{self.version} rejected the generated code: {found[0].name}\n{log}",
                               "report it: this is a bug of tinsmith")
        return found[1] if len(found) > 1 else None

    def disassemble(self, source: str) -> str:
        """Return the PTX of ``source``."""
        return NVRTCCompiler(self.arch, binary=False).compile(source).decode()


def _leaves_one(registers: int, threads: int) -> bool:
    """Return True if the registers limit occupancy to one block per multiprocessor and at 64 registers per thread two
    would fit: with two, one block works while the other waits at a barrier. Two are not requested from the start,
    because ptxas then uses more registers than it needs."""
    return threads * (-(-registers // 8) * 8) * 2 > REGISTERS and 2 * threads * 64 <= REGISTERS
