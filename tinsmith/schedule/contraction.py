"""What a contraction looks like in the tensor graph: a sum of products whose factors are both read many times over."""
from __future__ import annotations

from tinsmith.ir import Ops, UOp


def is_contraction(node: UOp) -> bool:
    """Whether ``node`` is such a sum, seen through sums of sums, movement and casts."""
    if node.op is not Ops.REDUCE or node.arg[0] is not Ops.ADD:
        return False
    body = node.src[0]
    while body.op.kind == "movement" or body.op is Ops.CAST or (body.op is Ops.REDUCE and body.arg[0] is Ops.ADD):
        body = body.src[0]
    return is_product(body)


def is_product(node: UOp) -> bool:
    """Whether ``node`` multiplies two values that are both read many times over: what a contraction sums up."""
    return node.op is Ops.MUL and all(is_repeated(s) for s in node.src)


def is_repeated(node: UOp, constants: bool = True) -> bool:
    """Whether a factor is an expanded view, so that each of its elements is read many times.

    Args:
        constants: whether an expanded constant counts, which is not read at all.
    """
    while node.op.kind == "movement" or node.op is Ops.CAST:
        if node.op is Ops.EXPAND and (constants or node.base.op is not Ops.CONST):
            return True
        node = node.src[0]
    return False


def operands_size(node: UOp) -> int:
    """Elements that the factors of a contraction have before they are repeated."""
    body = node.src[0]
    while body.op is not Ops.MUL:
        body = body.src[0]
    total = 0
    for factor in body.src:
        while factor.op is not Ops.EXPAND:
            factor = factor.src[0]
        size = factor.src[0].size
        total += size.vmax if isinstance(size, UOp) else size
    return total
