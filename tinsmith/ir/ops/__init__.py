"""The op table: every op is one row, declared once; ``Ops.ADD`` is the row itself.

A row gives shape and dtype rule, meaning in NumPy, gradient, cost and documentation (docs/ir.md is generated from it).

- ``op.py``: the class of a row, and recognition of broadcast factors; ``elementwise.py``: ops of all three dialects;
  ``tensor.py``: sources, movement, reductions, gathers and memory; ``kernel.py``: ranges, loads, stages and the lines
  of a linear program.
- ``scans.py``: meaning and gradient of SCAN and HISTOGRAM, and functions that the host computes with NumPy.
"""
from __future__ import annotations

from collections.abc import Iterator

from tinsmith.ir.ops.elementwise import ElementwiseOps
from tinsmith.ir.ops.kernel import KernelOps
from tinsmith.ir.ops.op import Op
from tinsmith.ir.ops.tensor import TensorOps


class Ops(ElementwiseOps, TensorOps, KernelOps):
    """The rows of all dialects, by name."""


def op_table() -> Iterator[Op]:
    """Yield every row, in the order of declaration."""
    for group in (ElementwiseOps, TensorOps, KernelOps):
        for row in vars(group).values():
            if isinstance(row, Op):
                yield row


FOR_GRADIENTS = (Ops.DETACH, Ops.CUSTOM_GRADIENT)  # identities on the first source that only affect gradients

__all__ = ["FOR_GRADIENTS", "Op", "Ops", "op_table"]
