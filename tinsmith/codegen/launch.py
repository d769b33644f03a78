"""Launch data of a compiled kernel. The compiler, ``codegen.compile_kernel``, is imported lazily."""
from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tinsmith.core.object_lifetime import Recent

if TYPE_CHECKING:
    from tinsmith.codegen.kernel import Kernel
    from tinsmith.codegen.opt import Opt
    from tinsmith.codegen.planner.planner import KernelPlan
    from tinsmith.codegen.planner.work import Work
    from tinsmith.ir import UOp


@dataclass(eq=False)
class Launch:
    """Data needed to load and launch a compiled kernel.

    Attributes:
        name: display name, such as ``r_2``.
        symbol: function name in the source: display name and content hash.
        buffers: numbers of the buffer arguments, in order.
        variables: names of the integer arguments, in order.
        written: numbers of the buffers that are stored to.
        ops, bytes: arithmetic operations and bytes that one launch must move (each buffer once).
        local_bytes: local memory per thread, in bytes.
        serial: True if one CPU thread runs the kernel.
        maps: tensor maps of buffers that the launch encodes: (index in ``buffers``, offset, element type of the copy,
            sizes, strides, box extent, steps, row of local memory in bytes); the other numbers are in elements, the
            fastest dimension first.
        unit: name of the matrix unit used; empty without one.
        growth: a threaded kernel's work as a sum of products of its variables, relative to the least work that is worth
            several threads: (factor, positions in ``variables``); empty without variables.
        host: a host function that replaces generated code: (name, dtype, shapes of the inputs, shape of the result).
        grid, block: number of blocks, and threads per block, per axis, the fastest first; empty without blocks.
    """

    name: str
    symbol: str
    buffers: list[int]
    variables: list[str]
    written: frozenset[int]
    ops: int
    bytes: int
    local_bytes: int
    serial: bool
    grid: list[int]
    block: list[int]
    maps: list[Any] = field(default_factory=list, kw_only=True)
    unit: str = field(default="", kw_only=True)
    growth: list[Any] = field(default_factory=list, kw_only=True)
    host: list[Any] = field(default_factory=list, kw_only=True)

    def is_serial(self, values: Sequence[int]) -> bool:
        """Return True if one CPU thread runs the kernel with these values of its variables.

        >>> grows = Launch("r", "r", [0], ["n"], frozenset([0]), 0, 0, 0, False, [], [], growth=[(0.01, [0])])
        >>> grows.is_serial([99]), grows.is_serial([101])
        (True, False)
        """
        return self.serial or (bool(self.growth) and self.grown(values) < 1)

    def grown(self, values: Sequence[int]) -> float:
        """Return the work for these values of the variables, relative to the least that is worth several threads."""
        work: float = sum(factor * math.prod(values[n] for n in names) for factor, names in self.growth)
        return work


@dataclass(eq=False)
class KernelProgram(Launch):
    """A rendered kernel: its launch data and the steps of its compilation.

    Attributes:
        source: text for the device's compiler.
        uops: the linear program.
        opts: the opts chosen by the optimizer.
        kernel: the kernel graph after these opts.
        work: operations and bytes before the opts.
        transcendentals: number of exponentials, logarithms and similar operations.
        plan: the chosen candidate and the runner-up; None if opts were given.
    """

    source: str
    uops: list[UOp]
    opts: list[Opt]
    kernel: Kernel
    work: Work
    transcendentals: int
    plan: KernelPlan | None = None


def lines_of(kernel: Launch | None) -> list[UOp] | None:
    """Return the linear program if it was compiled in this process; None for a copy and for a host function."""
    return kernel.uops if isinstance(kernel, KernelProgram) else None


programs: Recent[tuple[object, ...], KernelProgram] = Recent()
