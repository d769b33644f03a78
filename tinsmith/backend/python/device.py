"""The PYTHON device: an interpreter of linear programs that checks every access, for tests and for reading.

``PYTHON:V64`` compiles for vectors of 64 bytes, ``PYTHON:T3`` for 3 workers, which run one after the other, and
``PYTHON:G256`` for a grid of blocks of at most 256 threads, as on a GPU, with the matrix units of warps of 32.
``PYTHON:G256:C8`` splits work for 8 multiprocessors. ``PYTHON:G256:B232448`` gives blocks that many bytes for rings,
and asynchronous units of four warps that read from them.

The interpreter detects programs that are correct by chance. A data race (two threads access an element, one of them
writes, and nothing orders them) is an error that names both statements (``memory.py``), and so is a deadlock of warps.
Local memory is NaN before it is written. The last warp and the last block run first (``PYTHON:G256:S0``: the first; any
other number but 1: in a random order).
"""
from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tinsmith.backend.device import Allocator, Compiled, Compiler
from tinsmith.backend.program import Program
from tinsmith.backend.python.memory import WARP, CheckedMemory
from tinsmith.backend.python.render import PythonRenderer
from tinsmith.backend.python.runtime import NAMES, launch
from tinsmith.backend.python.warps import BACKWARD
from tinsmith.codegen.launch import Launch
from tinsmith.core.dtypes import dtypes
from tinsmith.core.errors import DeviceError, OutOfMemoryError
from tinsmith.ir.ranges import Role
from tinsmith.target.schedule_costs import CUTS_FOR_CORES, GRID_COSTS, RANKED_COSTS
from tinsmith.target.target import Target
from tinsmith.target.units import nvidia, x86

if TYPE_CHECKING:
    from tinsmith.backend.memory import Buffer

BLOCK_THREADS = 1024
BLOCK_BYTES = 48 << 10  # local memory per block, as on GPUs


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
        return memoryview(opaque)[offset : offset + nbytes]  # type: ignore[arg-type]


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
        target = Target("python", vector_bytes, local_bytes=BLOCK_BYTES, block_threads=block, warp=WARP,
                        matrix_loads=True, bulk_copy=16 * bool(ring), ring_bytes=ring, parallel=Role.GLOBAL,
                        costs=costs._replace(cuts=CUTS_FOR_CORES) if cores > 1 else costs, cores=cores,
                        matches=block >= WARP,
                        units=(*(nvidia.HOPPER if ring else ()), *(nvidia.CUDA if block >= WARP else ())))
    else:
        target = Target("python", vector_bytes, threads=threads, block_threads=BLOCK_THREADS, units=rows)
    return PythonDevice(name, BytesAllocator(), Compiler(),
                        lambda kernel, binary: PythonProgram(kernel, binary, threads, seed), PythonRenderer(target))
