"""The data of a target: a device's capabilities and the models of its processor, for lowering and planning."""
from __future__ import annotations

import functools
from dataclasses import dataclass, field, fields

from tinsmith.core.dtypes import DType, dtypes
from tinsmith.ir import UOp
from tinsmith.ir.matrix_unit import MatrixUnit
from tinsmith.ir.structure import Role
from tinsmith.target.cpu_model import CORE, CpuModel
from tinsmith.target.gpu_model import BLOCKS, GpuModel
from tinsmith.target.schedule_costs import CORE_COSTS, Costs


@dataclass(frozen=True)
class Target:
    """Capabilities and tuning data of a device, used by lowering and the analytic optimizer."""

    name: str
    vector_bytes: int = 0  # width of a vector register in bytes; 0: no vector type
    vector_registers: int = 16
    threads: int = 0  # workers that a THREAD range is split over; 0: kernels are not split over workers
    local_bytes: int = 1 << 62  # bytes of local memory that a kernel's stages may fill; unlimited if it is main memory
    l1_bytes: int = 32 << 10  # bytes of L1 and L2 data cache per core
    l2_bytes: int = 1 << 20
    dtypes: frozenset[DType] = field(  # element types with native arithmetic; others are widened
        default_factory=lambda: frozenset(set(dtypes.all) - {dtypes.float16, dtypes.bfloat16}))
    storage: frozenset[DType] = field(default_factory=lambda: frozenset(dtypes.all))
    fma: bool = False  # MULADD is one instruction, which rounds once
    scales: bool = False  # SCALE is one instruction
    masks: bool = False  # vector loads can be masked per lane
    exp2s: bool = False  # EXP2 of float32 is one instruction with at most 2 ulp error; only with ``fma``
    rough: bool = False  # ``ROUGH`` (approximate) float32 functions are instructions; only with ``exp2s``
    units: tuple[MatrixUnit, ...] = ()  # available matrix units, the preferred first
    block_threads: int = 0  # maximum threads per block, with shared local memory and barriers; 0: no blocks
    warp: int = 0  # threads per warp, which can exchange values by shuffles; 0: no shuffles
    matches: bool = False  # MATCH: threads of a warp find those with equal keys
    matrix_loads: bool = False  # warps load 8 × 8 matrices of 16-bit elements from local memory (ldmatrix)
    # alignment in bytes of rows for bulk copies of boxes issued by one thread (TMA); 0: no bulk copies
    bulk_copy: int = 0
    ring_bytes: int = 0  # local memory in bytes that a block with rings may fill
    block_registers: int = 0  # registers that the warps of a block may redistribute (setmaxnreg); 0: fixed allocation
    filling_registers: int = 32  # registers per thread of a producer warp, which only issues copies
    cores: int = 1  # cores (multiprocessors) that blocks of a grid are distributed over
    resident: int = 2048  # threads resident on a core at a time, at most
    clock: float = 2.5e9  # cycles per second, to convert prices in cycles to times
    # blocks of the next kernel may start before a kernel ends and wait for it (programmatic dependent launch)
    launches_early: bool = False
    replays: int = 4  # cached device graphs per program, one for each set of addresses
    parallel: Role = Role.LOOP  # initial role of parallel ranges: LOOP, or GLOBAL for an axis of a grid of blocks
    costs: Costs = CORE_COSTS  # scheduler costs
    blocks: GpuModel = BLOCKS  # tuning data of thread blocks
    core: CpuModel = CORE  # tuning data of a CPU core

    def blocks_by_registers(self, threads: int, held: int) -> int:
        """Return the number of blocks of ``threads`` threads that fit the registers of a core, if each thread holds
        ``held`` accumulators and operands in its loop."""
        return self.block_registers // (threads * (held + self.filling_registers))

    def tile_rows(self, size: int | UOp, even: bool = False) -> int:
        """Return the rows of a register tile of computed operands, of ``size`` rows in all; a divisor if ``even``.

        The accumulators, a vector of each column and one element of the other operand fit the vector registers. More
        accumulators hide more latency, and a last tile that is not full costs as much as the others; of equal choices,
        within 2 %, the highest tile.
        """
        if not isinstance(size, int) or size < 1:
            return 1
        columns = self.core.tile_vectors
        most = max(min(self.core.tile_rows, (self.vector_registers - 1) // columns - 1, size), 1)
        use = {n: size / -(-size // n) * columns / (n * columns + 1)
               for n in range(most, 0, -1) if not even or size % n == 0}
        return next(n for n, share in use.items() if share >= 0.98 * max(use.values()))

    @functools.cached_property
    def key(self) -> str:
        """Return all fields as text, the same in every process (part of cache keys)."""
        values = ((f.name, getattr(self, f.name)) for f in fields(self))
        return ",".join(f"{n}={sorted(d.name for d in v) if isinstance(v, frozenset) else repr(v)}" for n, v in values)
