"""What is known of a compiled kernel. What makes one, ``codegen.program``, is imported when the first one is made."""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tinsmith.core.recent import Recent

if TYPE_CHECKING:
    from tinsmith.codegen.kernel import Kernel
    from tinsmith.codegen.opt import Opt
    from tinsmith.codegen.plan import Plan
    from tinsmith.codegen.work import Work
    from tinsmith.ir import UOp


@dataclass(eq=False)
class Launch:
    """What loading and launching a compiled kernel needs to know.

    Attributes:
        name: display name, such as ``r_2``.
        symbol: the name in the source: display name and content hash.
        buffers: numbers of the buffer arguments that it has, in order.
        variables: names of the integer arguments, in order.
        written: numbers of the buffers it stores to.
        ops, bytes: arithmetic operations and bytes that one launch must move (each buffer once).
        local_bytes: local memory per thread.
        serial: one thread runs all of it.
        maps: views of buffers that the launch describes to the device: (position among ``buffers``, offset, type of
            the elements that arrive, sizes, strides, reach of a box, steps, bytes of a row of local memory), the
            other numbers in elements and the fastest dimension first.
        unit: name of the matrix unit that it works on; empty without one.
        host: a function of the host instead of code: (name, dtype, shapes of what it reads, shape of the result).
        grid, block: blocks and threads of each along each axis, the fastest first; empty where there are none.
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
    host: list[Any] = field(default_factory=list, kw_only=True)


@dataclass(eq=False)
class KernelProgram(Launch):
    """A rendered kernel: its launch data and how it came about.

    Attributes:
        source: text for the device's compiler.
        uops: the linear program.
        opts: what the optimizer chose.
        kernel: the graph after these opts.
        work: operations and bytes before them.
        transcendentals: exponentials, logarithms and the like among the operations.
        plan: what was chosen and what came next; None where opts were given.
    """

    source: str
    uops: list[UOp]
    opts: list[Opt]
    kernel: Kernel
    work: Work
    transcendentals: int
    plan: Plan | None = None


def lines_of(kernel: Launch | None) -> list[UOp] | None:
    """The linear program, if it was written in this process; None for a copy and for a function of the host."""
    return kernel.uops if isinstance(kernel, KernelProgram) else None


programs: Recent[tuple[object, ...], KernelProgram] = Recent()
