# mypy: disable-error-code=misc
"""Tensor methods that report sizes and dtypes, and ``Variable``: sizes known at run time, not at compile time."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tinsmith.core.dtypes import DTypeLike, dtypes, to_dtype
from tinsmith.core.errors import ArgumentError, DTypeError, shown
from tinsmith.ir import UOp
from tinsmith.ir.algebra.sizes import normal_size
from tinsmith.tensor.helpers import axis_and_size, product
from tinsmith.tensor.host_data import check_range

if TYPE_CHECKING:
    from tinsmith.tensor.tensor import Tensor


class Extents:
    """The methods of ``Tensor`` that depend on its shape and dtype only."""

    __slots__ = ()

    def size(self: Tensor, dim: int | None = None) -> Any:
        """Return the shape, or the size of one axis.

        >>> Tensor([[1, 2, 3]]).size(), Tensor([[1, 2, 3]]).size(1)
        ((1, 3), 3)
        """
        return self.shape if dim is None else axis_and_size("size", self, dim)[1]

    def numel(self: Tensor) -> int:
        """Number of elements.

        >>> Tensor([[1, 2]]).numel()
        2
        """
        return normal_size(self.uop.size)  # type: ignore[no-any-return]

    @property
    def max_shape(self: Tensor) -> tuple[int, ...]:
        """The shape with every size of a variable at its greatest.

        >>> from tinsmith import Variable
        >>> Tensor([1, 2, 3])[: Variable("n", 1, 3).bind(2)].max_shape
        (3,)
        """
        return tuple(int(s.bounds[1]) if isinstance(s, UOp) else s for s in self.shape)

    def max_numel(self: Tensor) -> int:
        """Number of elements of ``max_shape``.

        >>> Tensor([[1, 2]]).max_numel()
        2
        """
        return int(product(self.max_shape))

    def nbytes(self: Tensor) -> int:
        """Bytes of all elements.

        >>> Tensor([1.0, 2.0]).nbytes()
        8
        """
        return self.numel() * self.dtype.itemsize

    def element_size(self: Tensor) -> int:
        """Bytes of one element.

        >>> Tensor([1.0]).element_size()
        4
        """
        return self.dtype.itemsize

    def is_floating_point(self: Tensor) -> bool:
        """Return True if the dtype is floating point.

        >>> Tensor([1.0]).is_floating_point()
        True
        """
        return self.dtype.is_float


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
