"""The device ``DISK:path``: its memory is the memory-mapped file."""
from __future__ import annotations

import os
from typing import Any

import numpy as np

from tinsmith.backend.device import Compiled, Compiler
from tinsmith.backend.npy.device import ArrayAllocator
from tinsmith.backend.program import Program
from tinsmith.codegen.launch import Launch
from tinsmith.core.errors import DeviceError


class FileAllocator(ArrayAllocator):
    """Allocator over one file: every block maps the file's beginning; the file is created or extended as needed."""

    def __init__(self, path: str) -> None:
        self.path = path

    def alloc(self, nbytes: int) -> np.ndarray[Any, Any]:
        try:
            if not os.path.exists(self.path) or os.path.getsize(self.path) < nbytes:
                with open(self.path, "ab") as file:
                    file.truncate(nbytes)
            mode: Any = "r+" if os.access(self.path, os.W_OK) else "r"
            return np.memmap(self.path, np.uint8, mode, shape=(nbytes,)) if nbytes else np.empty(0, np.uint8)
        except OSError as error:
            raise DeviceError("DISK", f"cannot open {self.path!r}: {error.strerror}", "another path") from None


class DiskDevice(Compiled):
    """The device of one file."""

    persistent = True


def _no_programs(kernel: Launch, binary: bytes) -> Program:
    raise DeviceError("DISK", "files are memory without programs", "tensor.to('CPU')")


def DEVICE(name: str) -> Compiled:
    """Open the device of a file, which need not exist yet."""
    _, _, path = name.partition(":")
    if not path:
        raise DeviceError("DISK", "a device of a file needs its path", "'disk:/tmp/weights.bin'")
    return DiskDevice(name, FileAllocator(os.path.abspath(path)), Compiler(), _no_programs)
