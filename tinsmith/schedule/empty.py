"""Values without elements are never computed: what reads one gets a constant, a reduction of none its op's identity."""
from __future__ import annotations

from collections.abc import Sequence

from tinsmith.ir import Ops, UOp
from tinsmith.ir.uop import toposort
from tinsmith.schedule.origins import note_origin


def without_empty(roots: Sequence[UOp], device: str) -> list[UOp]:
    """The graph with no empty value below its roots.

    Args:
        device: where constants are computed; those of another device are copied there.
    """
    new: dict[UOp, UOp] = {}
    for n in toposort(roots):
        src = tuple(new.get(s, s) for s in n.src)
        node = _constant(n) or (n if src == n.src else n.replace(src=src))
        if node is n:
            continue
        if node.device is None and n.device not in (None, device) and 0 not in n.shape:
            node = node.contiguous().copy_to(str(n.device))
        note_origin(node, n)
        new[n] = node
    return [r if 0 in r.shape else new.get(r, r) for r in roots]


def _constant(n: UOp) -> UOp | None:
    """What is known of a value without elements, or made of none."""
    if n.op in (Ops.BUFFER, Ops.CONST) or not n.src:
        return None
    if 0 in n.shape:
        return UOp.const(n.dtype, 0).expand_to(n.shape)
    if n.op is Ops.REDUCE and 0 in n.src[0].shape:
        identity = n.arg[0].identity
        assert identity is not None
        return UOp.const(n.dtype, identity(n.dtype)).expand_to(n.shape)
    return None
