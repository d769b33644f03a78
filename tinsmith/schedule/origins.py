"""Which lines of the user's program a rewritten graph stands for."""
from __future__ import annotations

from tinsmith.ir import Ops, UOp


def note_origin(made: UOp, of: UOp) -> None:
    """The user's lines of a node, on the nodes that stand for it."""
    if not of.origin:
        return
    stack = [made]
    while stack:
        n = stack.pop()
        if not n.origin and n.op not in (Ops.CONST, Ops.BUFFER):
            n.origin = of.origin
            stack.extend(n.src)
