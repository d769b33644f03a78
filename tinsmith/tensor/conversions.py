"""Casts by the names of their dtypes, in a class of their own: the names hide Python's types in its annotations."""
# mypy: disable-error-code=misc
# ``self`` is the Tensor that this class is mixed into.
from __future__ import annotations

from typing import TYPE_CHECKING

from tinsmith.core.dtypes import dtypes
from tinsmith.tensor.base import check_tensors

if TYPE_CHECKING:
    from tinsmith.tensor.tensor import Tensor


class Conversions:
    """Casts to a named dtype."""

    __slots__ = ()

    def float(self: Tensor) -> Tensor:
        """Cast to float32.

        >>> Tensor([1, 2]).float().dtype
        dtypes.float
        """
        return self.cast(dtypes.float32)

    def half(self: Tensor) -> Tensor:
        """Cast to float16.

        >>> Tensor([1, 2]).half().dtype
        dtypes.half
        """
        return self.cast(dtypes.float16)

    def bfloat16(self: Tensor) -> Tensor:
        """Cast to bfloat16.

        >>> Tensor([1, 2]).bfloat16().dtype
        dtypes.bfloat16
        """
        return self.cast(dtypes.bfloat16)

    def double(self: Tensor) -> Tensor:
        """Cast to float64.

        >>> Tensor([1, 2]).double().dtype
        dtypes.double
        """
        return self.cast(dtypes.float64)

    def int(self: Tensor) -> Tensor:
        """Cast to int32.

        >>> Tensor([1.5, 2.]).int().tolist()
        [1, 2]
        """
        return self.cast(dtypes.int32)

    def long(self: Tensor) -> Tensor:
        """Cast to int64.

        >>> Tensor([1, 2]).long().dtype
        dtypes.long
        """
        return self.cast(dtypes.int64)

    def short(self: Tensor) -> Tensor:
        """Cast to int16.

        >>> Tensor([1, 2]).short().dtype
        dtypes.short
        """
        return self.cast(dtypes.int16)

    def bool(self: Tensor) -> Tensor:
        """Whether the value is not zero.

        >>> Tensor([0., 0.5]).bool().tolist()
        [False, True]
        """
        return self._copy() if self.dtype.is_bool else self.ne(0)

    def type_as(self: Tensor, other: Tensor) -> Tensor:
        """Cast to the dtype of ``other``.

        >>> Tensor([1]).type_as(Tensor([1.])).dtype
        dtypes.float
        """
        check_tensors("type_as", [other])
        return self.cast(other.dtype)
