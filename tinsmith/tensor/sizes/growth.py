"""Values that grow in a loop: ``idx = idx.cat(next)``.

A loop whose results are read only at its end would become one graph of all its steps, each with other sizes, and each
step would be planned and compiled anew. So ``cat`` computes a tensor that the same line has made before: every step is
then a program of its own, and these differ in sizes only (``schedule/passes/dynamic_sizes.py``).
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tinsmith.core.errors import user_line
from tinsmith.core.settings import current, settings
from tinsmith.ir.uop import toposort
from tinsmith.runtime.launch import recorders
from tinsmith.tensor.realize import is_realized, realize_tensors

if TYPE_CHECKING:
    from tinsmith.tensor.base import TensorBase


def compute_growing(parts: Sequence[TensorBase]) -> None:
    """Compute the tensors to be concatenated if the first of them is a pending result of ``cat`` at the user's current
    line, together with all other tensors that were computed on the way.

    Floats with gradients stay lazy, and so does everything inside a captured function, which is one program.
    """
    first = parts[0]
    if is_realized(first.uop) or recorders or (current().recording and first.uop.dtype.is_float):
        return
    made = first.uop.base.origin or first.uop.origin
    if not settings.DYNAMIC or not made or made[-1][0] != "cat" or tuple(made[-1][1:]) != user_line():
        return
    below = set(toposort([t.uop for t in parts]))
    realize_tensors([*parts, *(t for t in first.live if t.uop in below and not is_realized(t.uop))])
