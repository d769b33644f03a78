"""Realizing tensors: which nodes become programs, and what the tensors hold afterwards."""
from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tinsmith.ir import Ops, UOp
from tinsmith.schedule.execute import realize

if TYPE_CHECKING:
    from tinsmith.tensor.base import TensorBase

_KEPT_VIEWS = (Ops.RESHAPE, Ops.PERMUTE, Ops.EXPAND, Ops.FLIP)


def realize_tensors(tensors: Sequence[TensorBase]) -> None:
    """Compute ``tensors`` in one program; each then holds a view of a buffer.

    Views of realized buffers stay views: nothing is copied.
    """
    pending = [t for t in tensors if not is_realized(t.uop)]
    if not pending:
        return
    roots: dict[UOp, None] = {}
    for t in pending:
        roots[concrete(t.uop)] = None
    nodes = list(roots)
    buffers = realize(nodes, pending[0]._device)
    done = {}
    for node, buffer in zip(nodes, buffers):
        done[node] = UOp(Ops.BUFFER, node.dtype, (), buffer).reshape(node.shape)
    for t in pending:
        t.uop = t.uop.substitute(done)


def is_realized(uop: UOp) -> bool:
    """A view of a buffer, or empty."""
    return uop.base.op is Ops.BUFFER and uop.base.arg.device != "NPY" or 0 in uop.shape


def concrete(uop: UOp) -> UOp:
    """The node to compute: below views that keep every element, else the view itself made dense."""
    node = uop
    while node.op in _KEPT_VIEWS:
        node = node.src[0]
    if node.op.kind == "movement" or node.op in (Ops.CONST, Ops.BUFFER, Ops.IOTA, Ops.BIND):
        return UOp(Ops.CONTIGUOUS, None, (node,))
    return node
