"""Values of the tensor graph: their sizes, the views above them, and the ops that read or fill memory of their own."""
from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tinsmith.ir import Ops, UOp

SOURCES = (Ops.BUFFER, Ops.PARAM, Ops.CONST, Ops.VARIABLE, Ops.BIND, Ops.IOTA)
STAGED = (Ops.COPY, Ops.CONTIGUOUS, Ops.ASSIGN, Ops.SCATTER, Ops.SCAN, Ops.HISTOGRAM, Ops.HOST)  # always stored


def size_of(node: UOp) -> int:
    """Return the number of elements of a value; for a symbolic size its maximum."""
    size = node.size
    return int(size.vmax if isinstance(size, UOp) else size)


class Views(NamedTuple):
    """Views and casts above a value: ``above`` from the last applied to the first, and the ``source`` below them."""

    above: tuple[UOp, ...]
    source: UOp

    def of(self, source: UOp) -> UOp:
        """Return the same views and casts, applied to another source."""
        for n in reversed(self.above):
            cast = n.op is Ops.CAST
            source = source.cast(n.dtype) if cast else UOp(n.op, None, (source, *n.src[1:]), n.arg)
        return source


def views_of(value: UOp, through: Callable[[UOp], bool]) -> Views:
    """Return ``value`` as the chain of nodes for which ``through`` holds, and the value below them."""
    above = list[UOp]()
    while through(value):
        above.append(value)
        value = value.src[0]
    return Views(tuple(above), value)
