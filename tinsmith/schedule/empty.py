"""Values without elements are never computed: what reads one gets a constant, a reduction of none its op's identity."""
from __future__ import annotations

from collections.abc import Sequence

from tinsmith.ir import Ops, UOp
from tinsmith.schedule.origins import rebuilt


def without_empty(roots: Sequence[UOp], device: str) -> list[UOp]:
    """The graph with no empty value below its roots.

    Args:
        device: where constants are computed; those of another device are copied there.
    """
    def known(node: UOp, n: UOp) -> UOp:
        found = _constant(n) or node
        if found is not n and found.device is None and n.device not in (None, device) and 0 not in n.shape:
            return found.contiguous().copy_to(str(n.device))
        return found

    return [r if 0 in r.shape else new for r, new in zip(roots, rebuilt(roots, known))]


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
