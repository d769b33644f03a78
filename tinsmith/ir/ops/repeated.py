"""Recognition of broadcast factors and of products of them, for gradients and ``structure``."""
from __future__ import annotations

from tinsmith.ir.ops.op import Node


def is_repeated(node: Node, constants: bool = True) -> bool:
    """Return True if a tensor-graph factor is an expanded view, so that each of its elements is read many times.

    Args:
        constants: True to count expanded constants too, which cause no reads.
    """
    while node.op.kind == "movement" or node.op.name == "CAST":
        if node.op.name == "EXPAND" and (constants or node.base.op.name != "CONST"):
            return True
        node = node.src[0]
    return False


def is_product(node: Node, constants: bool = True) -> bool:
    """Return True if ``node`` multiplies two expanded views: the summand of a contraction."""
    return node.op.name == "MUL" and all(is_repeated(s, constants) for s in node.src)
