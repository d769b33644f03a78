"""Scans (running reductions) along an axis: ``cumsum``, ``cumprod``, ``cummax``, ``cummin``, ``logcumsumexp``."""
# mypy: disable-error-code=misc
# ``self`` is the Tensor that this class is mixed into.
from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tinsmith.core.dtypes import DTypeLike, dtypes, sum_dtype, to_dtype
from tinsmith.ir import Ops, UOp
from tinsmith.ir.ops import Op
from tinsmith.ir.ops.scans import extreme_position
from tinsmith.tensor.helpers import axis_of, axis_or_dim, float_of
from tinsmith.tensor.reduce.reduce import accumulator

if TYPE_CHECKING:
    from tinsmith.tensor.tensor import Tensor


class ValuesAndIndices(NamedTuple):
    """The result of ``cummax``, ``sort``, ``topk`` and others: unpack it, or read ``.values`` and ``.indices``."""

    values: Tensor
    indices: Tensor


class Scans:
    """Inclusive scans. Long axes are split into blocks that are scanned in parallel."""

    __slots__ = ()

    def _scan(self: Tensor, name: str, op: Op, axis: int, x: UOp) -> UOp:
        """Return the inclusive scan of ``x``, which has this tensor's shape, along ``axis``."""
        d = axis_of(name, self, axis)
        return x if not self.ndim or 0 in self.shape else x.scan(op, d)

    def cumsum(self: Tensor, axis: int = 0, dtype: DTypeLike | None = None, *, dim: int | None = None) -> Tensor:
        """The running sum along an axis. Integers below 32 bits are summed in 32 bits.

        >>> Tensor([1, 2, 3]).cumsum().tolist()
        [1, 3, 6]

        Raises:
            AxisError: if the axis does not exist.
        """
        result, axis = sum_dtype(self.dtype) if dtype is None else to_dtype(dtype), axis_or_dim("cumsum", axis, dim, 0)
        return self._new(self._scan("cumsum", Ops.ADD, axis, self.uop.cast(accumulator(result))).cast(result))

    def cumprod(self: Tensor, axis: int = 0, dtype: DTypeLike | None = None, *, dim: int | None = None) -> Tensor:
        """The running product along an axis.

        >>> Tensor([1, 2, 3, 4]).cumprod().tolist()
        [1, 2, 6, 24]

        Raises:
            AxisError: if the axis does not exist.
        """
        result, axis = sum_dtype(self.dtype) if dtype is None else to_dtype(dtype), axis_or_dim("cumprod", axis, dim, 0)
        return self._new(self._scan("cumprod", Ops.MUL, axis, self.uop.cast(accumulator(result))).cast(result))

    def cummax(self: Tensor, axis: int = 0, *, dim: int | None = None) -> ValuesAndIndices:
        """The running maximum along an axis and its index; NaN from the first NaN on.

        Of equal elements the last one's index is returned, as in PyTorch.

        >>> values, indices = Tensor([1, 3, 2, 3]).cummax()
        >>> values.tolist(), indices.tolist()
        ([1, 3, 3, 3], [0, 1, 1, 3])

        Raises:
            AxisError: if the axis does not exist.
        """
        return _extremes(self, "cummax", Ops.MAX, axis_or_dim("cummax", axis, dim, 0))

    def cummin(self: Tensor, axis: int = 0, *, dim: int | None = None) -> ValuesAndIndices:
        """The running minimum along an axis and its index; NaN from the first NaN on.

        >>> values, indices = Tensor([3, 1, 2, 1]).cummin()
        >>> values.tolist(), indices.tolist()
        ([3, 1, 1, 1], [0, 1, 1, 3])

        Raises:
            AxisError: if the axis does not exist.
        """
        return _extremes(self, "cummin", Ops.MIN, axis_or_dim("cummin", axis, dim, 0))

    def logcumsumexp(self: Tensor, axis: int = 0, *, dim: int | None = None) -> Tensor:
        """The logarithm of the running sum of exponentials, without overflow. With the running maximum m:
        ``s[k] = s[k-1] * exp(m[k-1] - m[k]) + exp(x[k] - m[k])``, and the result is ``m + log(s)``.

        >>> [round(v, 3) for v in Tensor([1000., 1000.]).logcumsumexp().tolist()]
        [1000.0, 1000.693]

        Raises:
            AxisError: if the axis does not exist.
        """
        d = axis_of("logcumsumexp", self, axis_or_dim("logcumsumexp", axis, dim, 0))
        dtype = float_of(self).dtype
        x = self._new(float_of(self).cast(accumulator(dtype)))
        if not self.ndim or 0 in self.shape:
            return x.cast(dtype)
        greatest = x.detach()._new(x.detach().uop.scan(Ops.MAX, d))
        m = greatest.isfinite().where(greatest, 0)
        shift = [(0, 0)] * self.ndim
        shift[d] = (1, -1)
        scale = m.pad(tuple(shift)).sub(m).minimum(0).exp()
        terms = x.sub(m).exp()
        first = terms.uop.shrink(tuple((0, 1) if i == d else (0, s) for i, s in enumerate(x.shape)))
        total = self._new(terms.uop.scan(Ops.MULADD, d, first.const_like(0), scale.detach().uop))
        return total.log().add(m).cast(dtype)


def _extremes(x: Tensor, name: str, op: Op, axis: int) -> ValuesAndIndices:
    wide = x.uop.cast(dtypes.uint8) if x.dtype.is_bool else x.uop
    running = x._scan(name, op, axis, wide)
    at = extreme_position(running) if running is not wide else wide.zeros(dtypes.int32)
    return ValuesAndIndices(x._new(running.cast(x.dtype)), x._new(at.cast(dtypes.default_int)))
