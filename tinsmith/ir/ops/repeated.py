"""Values that are read many times over, as factors of products are: what gradients and ``structure`` ask."""
from __future__ import annotations

from tinsmith.ir.ops.op import Node


def is_repeated(node: Node, constants: bool = True) -> bool:
    """Whether a factor in a tensor graph is an expanded view, so that each of its elements is read many times.

    Args:
        constants: whether an expanded constant counts, which is not read at all.
    """
    while node.op.kind == "movement" or node.op.name == "CAST":
        if node.op.name == "EXPAND" and (constants or node.base.op.name != "CONST"):
            return True
        node = node.src[0]
    return False


def is_product(node: Node, constants: bool = True) -> bool:
    """Whether ``node`` multiplies two values that are both read many times over: what a contraction sums up."""
    return node.op.name == "MUL" and all(is_repeated(s, constants) for s in node.src)
