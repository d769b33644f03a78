# mypy: disable-error-code=misc
"""Dtype conversion: ``cast`` (same values), ``bitcast`` (same bits), and one method per dtype name.

The methods named after dtypes (``float``, ``int``, ``bool``) are in a separate class, because inside that class these
names hide Python's types in annotations."""
from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tinsmith.core.dtypes import DType, DTypeLike, dtypes, to_dtype
from tinsmith.core.errors import DTypeError, ShapeError
from tinsmith.tensor.base import check_tensors
from tinsmith.tensor.interop import files
from tinsmith.tensor.storage import BITS, Bits

if TYPE_CHECKING:
    from tinsmith.tensor.tensor import Tensor

_UINT: Final = {1: dtypes.uint8, 2: dtypes.uint16, 4: dtypes.uint32, 8: dtypes.uint64}


class Casting:
    """``cast`` and ``bitcast``."""

    __slots__ = ()

    def cast(self: Tensor, dtype: DTypeLike) -> Tensor:
        """Convert the values to ``dtype``; see the op table's CAST for out-of-range and non-finite values.

        >>> Tensor([1.7, 300]).cast("uint8").tolist()
        [1, 255]
        """
        return self._new(self.uop.cast(to_dtype(dtype)))

    def bitcast(self: Tensor, dtype: DTypeLike) -> Tensor:
        """Reinterpret the bits as ``dtype``: a view. If the item sizes differ, the last axis grows or shrinks to match.

        >>> hex(Tensor([1.0]).bitcast("int32").item()), Tensor([1.0]).bitcast("uint8").tolist()
        ('0x3f800000', [0, 0, 128, 63])

        Raises:
            ShapeError: if the bytes of the last axis are not a multiple of the new item size.
        """
        to = to_dtype(dtype)
        own, new = self.dtype.itemsize, to.itemsize
        if own != new and (not self.ndim or (self.shape[-1] * own) % new):
            raise ShapeError("bitcast", f"{self.shape} of {own} bytes each into elements of {new} bytes",
                             "a last axis whose bytes make whole elements")
        if self.dtype.is_bool is not to.is_bool and own != new:
            raise DTypeError("bitcast", f"{self.dtype!r} to {to!r}", "dtypes.uint8 between them")
        if files.on_disk(self._device):
            return self._new(files.bits(self, to))
        return self._view(BITS, Bits(self.dtype, to, type(self), self._device))

    def _as_bits(self: Tensor, to: DType) -> Tensor:
        """Return the result of ``bitcast`` as a new value instead of a view."""
        own, new = self.dtype.itemsize, to.itemsize
        if to.is_bool or self.dtype.is_bool:  # any nonzero byte is true; true is stored as 1
            bits = self.cast(dtypes.uint8) if self.dtype.is_bool else self._new(self.uop.bitcast(dtypes.uint8))
            return bits.ne(0) if to.is_bool else bits._new(bits.uop.bitcast(to))
        if own == new:
            return self._new(self.uop.bitcast(to))
        bits, wanted = self._new(self.uop.bitcast(_UINT[own])), _UINT[new]
        shift = type(self).arange(max(own, new) // min(own, new), dtype=_UINT[max(own, new)], device=self.device)
        shift = shift.mul(8 * min(own, new))
        if own < new:
            parts = bits.reshape(*self.shape[:-1], -1, new // own).cast(wanted).lshift(shift)
            return parts.sum(-1, dtype=wanted)._as_bits(to)
        cut = bits.unsqueeze(-1).rshift(shift).cast(wanted)
        return cut.reshape(*self.shape[:-1], -1)._as_bits(to)


class Conversions:
    """Casts to a named dtype: ``float half bfloat16 double int long short bool type_as``."""

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
        """Cast to bool: True where the value is not zero.

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
