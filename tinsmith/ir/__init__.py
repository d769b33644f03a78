"""The intermediate representation: one node class, ``UOp``, for tensor graphs, kernel graphs and linear programs.

- ``uop.py``: the interned node; ``ops/``: the op table; ``rewrite.py``: the rewrite engine (patterns, rules, rule
  sets).
- ``algebra/``: simplification and bounds of integers; ``verify.py``: checks of each dialect; ``interpret/``: its
  meaning in NumPy; ``text/``: its printed forms; ``builder.py``: linear programs by hand.
- ``structure.py``: classification of a kernel (contraction, rows, scan, scatter, map), and kinds of ranges.
- ``matrix_unit.py``: data types for matrix instructions and for tiles in local memory.
- ``graphs.py``: graphs of concatenations, radix sorts and random words.
"""
from tinsmith.ir.algebra import sizes as sizes  # installs the integer algebra that UOp's methods call (uop.Algebra)
from tinsmith.ir.builder import ProgramBuilder
from tinsmith.ir.ops import Op, Ops
from tinsmith.ir.uop import UOp

__all__ = ["Op", "Ops", "ProgramBuilder", "UOp"]
