"""The work of a kernel: arithmetic operations, and bytes read and written."""
from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from tinsmith.codegen.kernel import Kernel
from tinsmith.codegen.transform.skip_masked_blocks import covered_steps
from tinsmith.codegen.transform.thread_blocks import counted
from tinsmith.ir import Ops, UOp
from tinsmith.ir.structure import Role, count_of
from tinsmith.ir.uop import toposort

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
    operations, divided = 0, segments(kernel)

    def count(ranges: Iterable[UOp]) -> int:
        """Return the iterations of loops; those of a loop over segments are divided among the loops around it."""
        inside = set(ranges)
        for loop, around in divided.items():
            inside -= around if loop in inside else frozenset()
        return count_of(inside)

    reached: dict[tuple[UOp, bool], int] = {}
    for n in toposort(kernel.sink):
        if n.op is Ops.FOLD:
            keys = counted(n)  # one pass over the steps counts all keys
            over = n.src[0].ranges | frozenset(n.src[1:])  # steps that do not change the value are computed too
            steps = count(over) if keys is None else max(map(count_of, (n.ranges, keys.key.ranges)))
            operations += n.arg.cost * steps
        elif is_arithmetic(n):
            operations += n.op.cost * count(n.ranges)
        elif n.op in MEMORY and n.src[0].op is Ops.PARAM:
            place = (n.src[0], n.op is not Ops.LOAD)
            reached[place] = reached.get(place, 0) + count(n.src[1].ranges)
    moved = {place: min(elements, size_of(place[0])) * place[0].dtype.itemsize for place, elements in reached.items()}
    return Work(operations, sum(b for (_, written), b in moved.items() if not written),
                sum(b for (_, written), b in moved.items() if written))


def segments(kernel: Kernel) -> dict[UOp, frozenset[UOp]]:
    """Return the loops whose steps a list in memory divides, as the sums of sorted rows: each with the loops around it
    that number the segments. Segment ``i`` begins at element ``i`` of the list and ends at element ``i + 1``, so the
    segments have as many steps together as the loop."""
    found = {}
    for loop, span in covered_steps(kernel).items():
        ends = [[n for n in toposort(s) if n.op is Ops.LOAD] for s in span]
        if [len(e) for e in ends] == [1, 1]:
            (first,), (last,) = ends
            step = (last.src[1] - first.src[1]).simplify()
            if first.src[0] is last.src[0] and step.is_const and step.arg == 1:
                found[loop] = frozenset(first.src[1].ranges)
    return found


def transcendentals(sink: UOp) -> int:
    """Return the number of exponentials, logarithms and similar functions of a lowered kernel, before decomposition."""
    return sum(count_of(n.ranges) for n in toposort(sink) if n.op.transcendental)


def elements_of(access: UOp) -> int:
    """Return the number of elements that one load or store accesses."""
    return count_of(access.src[1].ranges)


def size_of(param: UOp) -> int:
    """Return the number of elements of a kernel argument; the maximum for a symbolic size."""
    return math.prod(s.vmax if isinstance(s, UOp) else s for s in param.arg[1])
