"""Metal's kernels as C++: a compiler of this machine takes them as they are, and threads run them.

``tests/codegen/metal`` has what Metal's library gives; a block's threads are threads of the system. So the text is
checked by a real compiler, and what it computes by the same cases as a device's.
"""
from __future__ import annotations

import ctypes
import functools
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tinsmith.backend.device import Compiled, Compiler, Device
from tinsmith.backend.program import Program
from tinsmith.backend.python.device import BytesAllocator
from tinsmith.codegen.launch import Launch
from tinsmith.codegen.render.metal import MetalRenderer

HERE = Path(__file__).parent / "metal"
NAME = "METALCPU"
_COMPILERS = ("clang++", *(f"clang++-{n}" for n in range(22, 14, -1)), "g++", "c++")
_FLAGS = ("-std=c++20", "-shared", "-fPIC", "-ffp-contract=off", "-w", "-pthread", f"-I{HERE}")


@functools.cache
def compiler() -> str:
    """Return a C++ compiler with 16-bit floats; empty if there is none."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "half.cpp")
        path.write_text("#include <barrier>\n_Float16 half(float x) { return x; }\n")
        for name in filter(shutil.which, _COMPILERS):
            if not subprocess.run([name, *_FLAGS, path, "-o", f"{path}.so"], capture_output=True).returncode:
                return name
    return ""


def shared(source: str, *flags: str) -> Any:
    """Compile C++ source and load it as a shared library."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernel.cpp")
        path.write_text(source, "utf-8")
        done = subprocess.run([compiler(), *_FLAGS, *flags, path, "-o", f"{path}.so"], capture_output=True, text=True)
        assert not done.returncode, f"{done.stderr[:3000]}\n{source}"
        return ctypes.CDLL(f"{path}.so", mode=ctypes.RTLD_GLOBAL)


@functools.cache
def blocks() -> Any:
    return shared((HERE / "blocks.cpp").read_text("utf-8"), "-O1")


class MetalProgram(Program):
    """A kernel called through a function that takes its arguments from a table."""

    def __init__(self, kernel: Launch, binary: bytes) -> None:
        super().__init__(kernel, binary)
        text = re.sub(r"^( *)threadgroup (\w+) (\w+\[)", r"\1static \2 \3", binary.decode(), flags=re.MULTILINE)
        given = [f"Any{{b[{n}]}}" for n in range(len(kernel.buffers))]
        given += [f"v[{n}]" for n in range(len(kernel.variables))]
        text += ("\nstruct Any { void* p; template <typename T> operator T*() const { return (T*)p; } };\n"
                 "extern \"C\" void run(void** b, int* v, uint3 gid, uint3 lid) { "
                 f"{kernel.symbol}({', '.join([*given, 'gid', 'lid'])}); }}\n")
        blocks()
        self.library = shared(text)

    def __call__(self, buffers: Sequence[Any], variables: Sequence[int] = ()) -> None:
        places = [b.opaque.ctypes.data + b.offset for b in buffers]
        sizes = [(ctypes.c_uint * 3)(*(*of, 1, 1, 1)[:3]) for of in (self.kernel.grid, self.kernel.block)]
        blocks().launch(self.library.run, (ctypes.c_void_p * len(places))(*places),
                        (ctypes.c_int * max(len(variables), 1))(*variables), *sizes)


class MetalOnCPU(Compiled):
    """A device with Metal's renderer and target, and this machine's memory and threads."""

    def __init__(self, device: str) -> None:
        super().__init__(device, BytesAllocator(), Compiler(), MetalProgram, MetalRenderer())


def needs_cpp() -> None:
    if not compiler():
        pytest.skip("no C++ compiler with 16-bit floats and <barrier> (clang++ 15 or g++ 13)")
    Device.register(NAME, MetalOnCPU)
