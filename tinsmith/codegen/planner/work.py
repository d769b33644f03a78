"""The work of a kernel: arithmetic operations, and bytes read and written."""
from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from tinsmith.codegen.kernel import Kernel
from tinsmith.codegen.transform.thread_blocks import counted
from tinsmith.ir import Ops, UOp
from tinsmith.ir.structure import Role, count_of
from tinsmith.ir.uop import toposort

TRANSCENDENTAL = (Ops.EXP, Ops.LOG, Ops.EXP2, Ops.LOG2, Ops.EXPM1, Ops.LOG1P, Ops.SIN, Ops.COS, Ops.TANH, Ops.ERF,
                  Ops.POW)

MEMORY = (Ops.LOAD, Ops.STORE, Ops.SCATTER_STORE)


class Work(NamedTuple):
    """The minimal work of a kernel: arithmetic operations, and bytes read and written, each memory location counted
    once."""

    operations: int
    bytes_read: int
    bytes_written: int

    @property
    def bytes(self) -> int:
        return self.bytes_read + self.bytes_written

NO_WORK = Work(0, 0, 0)


def repeated(ranges: Iterable[UOp]) -> int:
    """Return the number of runs of a loop body; a RANK range counts as one step, because the threads of a block share
    it."""
    return count_of(r for r in ranges if r.arg[1] is not Role.RANK)


def is_arithmetic(n: UOp) -> bool:
    """Return True if ``n`` is arithmetic on data, not on indices or conditions."""
    return n.op.alu and n.dtype.name not in ("index", "bool")


def work_of(kernel: Kernel) -> Work:
    """Return the work of ``kernel``: arithmetic once per computed element, each memory location read or written once.

    >>> from tinsmith.codegen.lower.lower import lower
    >>> x = UOp(Ops.PARAM, dtypes.float32, (), (1, (4, 8)))
    >>> work_of(Kernel(lower(UOp(Ops.SINK, None, (x.reduce("ADD", (1,)),)))))
    Work(operations=32, bytes_read=128, bytes_written=16)
    """
    operations = 0
    reached: dict[tuple[UOp, bool], int] = {}
    for n in toposort(kernel.sink):
        if n.op is Ops.FOLD:
            keys = counted(n)  # one pass over the steps counts all keys
            over = n.src[0].ranges | frozenset(n.src[1:])  # steps that do not change the value are computed too
            steps = count_of(over) if keys is None else max(map(count_of, (n.ranges, keys.key.ranges)))
            operations += n.arg.cost * steps
        elif is_arithmetic(n):
            operations += n.op.cost * count_of(n.ranges)
        elif n.op in MEMORY and n.src[0].op is Ops.PARAM:
            place = (n.src[0], n.op is not Ops.LOAD)
            reached[place] = reached.get(place, 0) + elements_of(n)
    moved = {place: min(elements, size_of(place[0])) * place[0].dtype.itemsize for place, elements in reached.items()}
    return Work(operations, sum(b for (_, written), b in moved.items() if not written),
                sum(b for (_, written), b in moved.items() if written))


def transcendentals(sink: UOp) -> int:
    """Return the number of exponentials, logarithms and similar functions of a lowered kernel, before decomposition."""
    return sum(count_of(n.ranges) for n in toposort(sink) if n.op in TRANSCENDENTAL)


def elements_of(access: UOp) -> int:
    """Return the number of elements that one load or store accesses."""
    return count_of(access.src[1].ranges)


def size_of(param: UOp) -> int:
    """Return the number of elements of a kernel argument; the maximum for a symbolic size."""
    return math.prod(s.vmax if isinstance(s, UOp) else s for s in param.arg[1])
