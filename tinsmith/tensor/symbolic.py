"""Sizes that are known when a program runs, not when it is compiled."""
from __future__ import annotations

from tinsmith.core.errors import ArgumentError, shown
from tinsmith.ir import UOp


def Variable(name: str, least: int, greatest: int) -> UOp:
    """A named integer between ``least`` and ``greatest``; ``bind`` gives it a value for one use.

    Bound variables, and sums, products and quotients of them, are sizes like any other: in slices, reshapes and new
    tensors. A program depends on names and bounds only and takes the values as arguments, so that one serves all.

    >>> from tinsmith import Tensor
    >>> n = Variable("n", 1, 10)
    >>> [Tensor.arange(10)[: n.bind(v)].sum().item() for v in (3, 7)]
    [3, 21]

    Raises:
        ArgumentError: if the name is no string or the bounds are no integers in order.
    """
    ints = type(least) is int and type(greatest) is int
    if not isinstance(name, str) or not ints or least > greatest:
        raise ArgumentError("Variable", f"name {shown(name)}, bounds {shown(least)} and {shown(greatest)}",
                            'Variable("n", least, greatest) with integers least <= greatest')
    return UOp.variable(name, least, greatest)
