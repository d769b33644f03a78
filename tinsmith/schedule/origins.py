"""Which lines of the user's program a rewritten graph stands for."""
from __future__ import annotations

from collections.abc import Callable, Sequence

from tinsmith.ir import Ops, UOp
from tinsmith.ir.uop import toposort


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


def rebuilt(roots: Sequence[UOp], rule: Callable[[UOp, UOp], UOp]) -> list[UOp]:
    """The graph from its sources on: ``rule`` is given each node with what its sources became, and the node itself."""
    new: dict[UOp, UOp] = {}
    for n in toposort(roots):
        src = tuple([new.get(s, s) for s in n.src])
        node = rule(n if src == n.src else n.replace(src=src), n)
        if node is not n:
            note_origin(node, n)
            new[n] = node
    return [new.get(r, r) for r in roots]
