"""Op groups of older tinygrad versions, and the op names of its linear programs, over Tinsmith's op table."""
from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Final

from tinsmith.core.errors import ArgumentError
from tinsmith.ir import UOp
from tinsmith.ir.builder import SPELLINGS
from tinsmith.ir.ops import Ops, op_table
from tinsmith.ir.verify.program import PROGRAM_OPS


def _group(kind: str, *more: str) -> SimpleNamespace:
    """The ops of a kind by name, with older spellings."""
    found = {op.name: op for op in op_table() if op.kind == kind}
    return SimpleNamespace(**found, **{name: getattr(Ops, SPELLINGS.get(name, name)) for name in more})


UnaryOps: Final = _group("unary", "CAST", "BITCAST")
BinaryOps: Final = _group("binary", "DIV")
TernaryOps: Final = _group("ternary", "MULACC")
ReduceOps: Final = SimpleNamespace(SUM=Ops.ADD, MAX=Ops.MAX)
BufferOps: Final = SimpleNamespace(LOAD=Ops.LOAD, STORE=Ops.STORE, CONST=Ops.CONST)
MetaOps: Final = SimpleNamespace(KERNEL=Ops.SINK, EMPTY=Ops.BUFFER, CONST=Ops.CONST, COPY=Ops.COPY,
                                 CONTIGUOUS=Ops.CONTIGUOUS, ASSIGN=Ops.ASSIGN)
LoadOps: Final = MetaOps  # as it was called before


def _realized(self: UOp) -> Any:
    """Return the memory of a value that has been computed, else None (there: ``LazyBuffer.realized``)."""
    base = self.base
    return base.arg if base.op is Ops.BUFFER and base.arg.is_allocated() else None


def _buffer(self: UOp) -> Any:
    """Return the memory of a value that has some.

    Raises:
        ArgumentError: for a value that is not computed yet.
    """
    base = self.base
    if base.op is not Ops.BUFFER:
        raise ArgumentError("UOp.buffer", f"{base.op.name} has no memory yet", "Tensor.realize() first")
    return base.arg


# Attributes of tinygrad's nodes, of today's UOp and of the tutorials' LazyBuffer.
ATTRIBUTES: Final = {
    "realized": property(_realized), "is_realized": property(lambda self: _realized(self) is not None),
    "buffer": property(_buffer), "srcs": property(lambda self: self.src), "_base": property(lambda self: self.base)}

# Names for ProgramBuilder.add (there: UOpGraph.add), as text.
UOps: Final = SimpleNamespace(**{name: name for name in (
    "ALU", *(op.name for op in op_table() if op in PROGRAM_OPS), *SPELLINGS)})
