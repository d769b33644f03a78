"""The intermediate representation: op table, UOp, integer algebra, rewrite engine, interpreter, verifiers, printer."""
from tinsmith.ir.algebra import sizes as sizes  # installs the integer algebra that UOp's methods call (uop.Algebra)
from tinsmith.ir.builder import ProgramBuilder
from tinsmith.ir.ops import Op, Ops
from tinsmith.ir.uop import UOp

__all__ = ["Op", "Ops", "ProgramBuilder", "UOp"]
