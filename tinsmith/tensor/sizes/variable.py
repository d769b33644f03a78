"""Tensor methods that report sizes and dtypes, and ``Variable``: sizes known at run time, not at compile time."""
from __future__ import annotations

from tinsmith.core.dtypes import DTypeLike, dtypes, to_dtype
from tinsmith.core.errors import ArgumentError, DTypeError, shown
from tinsmith.ir import UOp
from tinsmith.tensor.host_data import check_range


def Variable(name: str, least: int, greatest: int, dtype: DTypeLike | None = None) -> UOp:
    """Return a named integer between ``least`` and ``greatest``; ``bind`` returns it with a value.

    Bound variables, and sums, products and quotients of them, are sizes like any other: in slices, reshapes and new
    tensors; as an operand and in ``Tensor(v)`` they are values of the default int, or of int64 where the bounds need
    it. A program depends only on names and bounds, and gets the values as arguments, so that one program serves all
    values.

    >>> from tinsmith import Tensor
    >>> n = Variable("n", 1, 10)
    >>> [Tensor.arange(10)[: n.bind(v)].sum().item() for v in (3, 7)]
    [3, 21]

    Args:
        dtype: an integer dtype that must hold the bounds, as in tinygrad; it changes nothing else.

    Raises:
        DTypeError: if ``dtype`` is not one of integers.
        RangeError: if it cannot hold the bounds.
        ArgumentError: if the name is no string or the bounds are no integers in order.
    """
    ints = type(least) is int and type(greatest) is int
    if not isinstance(name, str) or not ints or least > greatest:
        raise ArgumentError("Variable", f"name {shown(name)}, bounds {shown(least)} and {shown(greatest)}",
                            'Variable("n", least, greatest) with integers least <= greatest')
    if dtype is not None and (kind := to_dtype(dtype)) is not dtypes.index:
        if not kind.is_int or kind.is_bool:
            raise DTypeError("Variable", f"a size is an integer, not {kind!r}", "dtypes.int32 or dtypes.int64")
        for end in (least, greatest):
            check_range("Variable", end, kind)
    return UOp.variable(name, least, greatest)
