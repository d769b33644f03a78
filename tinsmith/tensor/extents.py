"""Extents: sizes of axes and elements, counted or in bytes."""
# mypy: disable-error-code=misc
# ``self`` is the Tensor that this class is mixed into.
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tinsmith.ir import UOp
from tinsmith.ir.sizes import normal_size
from tinsmith.tensor.helpers import axis_and_size, product

if TYPE_CHECKING:
    from tinsmith.tensor.tensor import Tensor


class Extents:
    """What a tensor's shape and dtype say, without its values."""

    __slots__ = ()

    def size(self: Tensor, dim: int | None = None) -> Any:
        """The shape, or the size of one axis.

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
        """Whether the elements are floats.

        >>> Tensor([1.0]).is_floating_point()
        True
        """
        return self.dtype.is_float
