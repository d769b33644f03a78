"""Indexed reads, writes and counts with PyTorch's names. Out-of-range indices behave as in ``gather``."""
# mypy: disable-error-code=misc
# ``self`` is the Tensor that this class is mixed into.
from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tinsmith.core.dtypes import dtypes
from tinsmith.core.errors import ArgumentError, DTypeError, ShapeError
from tinsmith.ir import UOp
from tinsmith.tensor.arguments import flag, integer
from tinsmith.tensor.base import check_tensors
from tinsmith.tensor.helpers import axis_and_size, broadcast_shape, operand

if TYPE_CHECKING:
    from tinsmith.tensor.tensor import Tensor


_LONG_ROW = 256  # elements; from this length on, a binary search is less work than a comparison with all elements


class Picking:
    """``take take_along_dim index_add index_put masked_scatter searchsorted`` and their like."""

    __slots__ = ()

    def take(self: Tensor, index: Tensor) -> Tensor:
        """Return the elements at ``index`` of the flattened tensor, in the shape of ``index``.

        >>> Tensor([[1, 2], [3, 4]]).take(Tensor([3, 0])).tolist()
        [4, 1]
        """
        return self.reshape(-1)[operand("take", index, self)]

    def take_along_dim(self: Tensor, indices: Tensor, dim: int | None = None) -> Tensor:
        """Return ``gather`` along ``dim`` with broadcasting; without ``dim``, of the flattened tensor.

        >>> x = Tensor([[3, 1, 2]]); x.take_along_dim(x.argsort(dim=1), dim=1).tolist()
        [[1, 2, 3]]
        """
        index = operand("take_along_dim", indices, self)
        if dim is None:
            return self.reshape(-1).gather(0, index.reshape(-1))
        d, size = axis_and_size("take_along_dim", self, dim)
        if index.ndim != self.ndim:
            raise ShapeError("take_along_dim", f"indices of shape {index.shape} for a tensor of shape {self.shape}",
                             "equally many axes")
        shapes = [(*t.shape[:d], 1, *t.shape[d + 1 :]) for t in (self, index)]
        shape = broadcast_shape("take_along_dim", *shapes)
        source = self.expand(*shape[:d], size, *shape[d + 1 :])
        return source.gather(d, index.expand(*shape[:d], index.shape[d], *shape[d + 1 :]))

    def put(self: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
        """Return a copy with ``source`` written (or added) at ``index`` of the flattened tensor.

        >>> Tensor([[1, 2], [3, 4]]).put(Tensor([3]), Tensor([9])).tolist()
        [[1, 2], [3, 9]]
        """
        index, source = operand("put", index, self).reshape(-1), operand("put", source, self).reshape(-1)
        reduce = "add" if flag("put", "accumulate", accumulate) else None
        return self.reshape(-1).scatter(0, index, source, reduce).reshape(self.shape)

    def index_add(self: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1) -> Tensor:
        """Return a copy with ``alpha * source`` added to the slices at ``index`` of axis ``dim``.

        >>> Tensor([1, 1, 1]).index_add(0, Tensor([0, 0]), Tensor([5, 6])).tolist()
        [12, 1, 1]
        """
        d, wide, source = _slices("index_add", self, dim, index, source)
        return self.scatter_add(d, wide, source if alpha == 1 else source.mul(alpha).cast(self.dtype))

    def index_copy(self: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
        """Return a copy with the slices at ``index`` of axis ``dim`` replaced by those of ``source``.

        >>> Tensor([1, 1, 1]).index_copy(0, Tensor([2, 0]), Tensor([5, 6])).tolist()
        [6, 1, 5]
        """
        d, wide, source = _slices("index_copy", self, dim, index, source)
        return self.scatter(d, wide, source)

    def index_fill(self: Tensor, dim: int, index: Tensor, value: float) -> Tensor:
        """Return a copy with the slices at ``index`` of axis ``dim`` filled with ``value``.

        >>> Tensor([1, 2, 3]).index_fill(0, Tensor([0, 2]), 9).tolist()
        [9, 2, 9]
        """
        if not self.ndim:
            return self.reshape(1).index_fill(dim, index, value).reshape(())
        d = axis_and_size("index_fill", self, dim)[0]
        wide = _wide_index("index_fill", self, d, index)
        return self.scatter(d, wide, operand("index_fill", value, self).cast(self.dtype).broadcast_to(wide.shape))

    def index_reduce(self: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *,
                     include_self: bool = True) -> Tensor:
        """Return a copy with the slices of ``source`` reduced into those at ``index`` of axis ``dim``.

        >>> Tensor([1, 4]).index_reduce(0, Tensor([0, 0]), Tensor([5, 3]), "amax").tolist()
        [5, 4]

        Args:
            reduce: "prod", "mean", "amax" or "amin".
        """
        d, wide, source = _slices("index_reduce", self, dim, index, source)
        return self.scatter_reduce(d, wide, source, reduce, include_self)

    def index_put(self: Tensor, indices: Sequence[Tensor], values: Tensor, accumulate: bool = False) -> Tensor:
        """Return a copy with ``out[indices] = values``, or ``+=`` with ``accumulate``.

        >>> Tensor([1, 2, 3]).index_put((Tensor([0, 0]),), Tensor([5, 6]), accumulate=True).tolist()
        [12, 2, 3]
        """
        if not isinstance(indices, (tuple, list)) or not indices:
            raise ArgumentError("index_put", "indices must be a sequence of tensors",
                                "index_put((rows, columns), values)")
        out = self.clone()
        out._put("index_put", tuple(indices), values, "ADD" if flag("index_put", "accumulate", accumulate) else None)
        return out

    def masked_scatter(self: Tensor, mask: Tensor, source: Tensor) -> Tensor:
        """Return a copy with the elements of ``source``, in order, at the positions where ``mask`` is True.

        >>> Tensor([0, 0, 0]).masked_scatter(Tensor([True, False, True]), Tensor([8, 9])).tolist()
        [8, 0, 9]
        """
        check_tensors("masked_scatter", [mask, source])
        shape = broadcast_shape("masked_scatter", self.shape, mask.shape)
        held, base = mask.bool().broadcast_to(shape), self.broadcast_to(shape)
        if 0 in shape:
            return base._copy()
        place = held.reshape(-1).cast(dtypes.int32).cumsum(0).sub(1).clamp(0)
        return held.where(source.cast(self.dtype).reshape(-1).gather(0, place).reshape(shape), base)

    def argwhere(self: Tensor) -> Tensor:
        """Return the indices of the nonzero elements, one row each; same as ``nonzero``.

        >>> Tensor([0, 5]).argwhere().tolist()
        [[1]]
        """
        rows: Tensor = self.nonzero()
        return rows

    def searchsorted(self: Tensor, values: Any, *, right: bool = False, side: str | None = None,
                     sorter: Tensor | None = None, out_int32: bool = False) -> Tensor:
        """Return the insertion positions of ``values`` in sorted rows: before equal elements, or after if ``right``.

        Each value is compared with all elements of a short row; long rows use a binary search.

        >>> Tensor([1, 3, 5]).searchsorted(Tensor([3, 4])).tolist()
        [1, 2]

        Args:
            sorter: indices that sort this tensor along the last axis, if it is not sorted.
            out_int32: return int32 instead of the default int.
        """
        if sorter is not None or out_int32:
            row = self if sorter is None else self.gather(-1, sorter)
            found = row.searchsorted(values, right=right, side=side)
            return found.cast(dtypes.int32) if flag("searchsorted", "out_int32", out_int32) else found
        x = operand("searchsorted", values, self)
        behind = flag("searchsorted", "right", right) or side == "right"
        if self.ndim > 1 and x.shape[:-1] != self.shape[:-1]:
            raise ShapeError("searchsorted", f"rows of shape {self.shape}, values of shape {x.shape}",
                             "equal leading axes")
        size = self.shape[-1] if self.ndim else 1
        if not isinstance(size, UOp) and size >= _LONG_ROW:
            return _halved(self, x if self.ndim > 1 else x.reshape(-1), size, behind).reshape(x.shape)
        row = self if self.ndim == 1 else self.unsqueeze(-2)
        return _stands_before(row, x.unsqueeze(-1), behind).sum(-1, dtype=dtypes.default_int)

    def bucketize(self: Tensor, boundaries: Tensor, *, right: bool = False, out_int32: bool = False) -> Tensor:
        """Return, for each element, its insertion position in the sorted vector ``boundaries``.

        >>> Tensor([0, 3, 9]).bucketize(Tensor([1, 5])).tolist()
        [0, 1, 2]
        """
        check_tensors("bucketize", [boundaries])
        if boundaries.ndim != 1:
            raise ShapeError("bucketize", f"boundaries of shape {boundaries.shape}", "a vector")
        return boundaries.searchsorted(self, right=right, out_int32=out_int32)

    def isin(self: Tensor, test_elements: Any, *, invert: bool = False) -> Tensor:
        """Return a bool tensor: True for each element that is one of ``test_elements``.

        >>> Tensor([1, 2, 3]).isin(Tensor([2, 5])).tolist()
        [False, True, False]
        """
        found = self.unsqueeze(-1).eq(operand("isin", test_elements, self).reshape(-1)).any(-1)
        return found.logical_not() if flag("isin", "invert", invert) else found

    def bincount(self: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
        """Return the count (or the sum of ``weights``) of each integer from 0 to the maximum, which is computed now.

        >>> Tensor([1, 1, 3]).bincount().tolist()
        [0, 2, 0, 1]

        Raises:
            DTypeError: if this tensor is not a vector of integers.
        """
        if self.ndim != 1 or not self.dtype.is_int:
            raise DTypeError("bincount", f"takes a vector of integers, got shape {self.shape} of {self.dtype!r}",
                             ".flatten().long()")
        least = integer("bincount", "minlength", minlength, least=0)
        count = max(int(self.max().item()) + 1 if self.shape[0] else 0, least)
        kind = dtypes.default_int if weights is None else weights.dtype if weights.dtype.is_float else dtypes.float64
        counts = type(self).zeros(count, dtype=kind, device=self.device, requires_grad=False)
        each = self.ones_like(dtype=kind, requires_grad=False) if weights is None else weights.cast(kind)
        return counts.scatter_add(0, self, each) if count else counts


def _stands_before(row: Tensor, value: Tensor, behind: bool) -> Tensor:
    """Return True for the elements of a sorted row before the insertion position of ``value``; NaN sorts last."""
    return value.lt(row).logical_not() if behind else row.lt(value) | value.isnan() & row.isnan().logical_not()


def _halved(row: Tensor, value: Tensor, size: int, behind: bool) -> Tensor:
    """Return the insertion position of each value by a binary search that sets its bits from the highest down."""
    place = value.zeros_like(dtype=dtypes.default_int, requires_grad=False)
    for digit in reversed(range(size.bit_length())):
        probe = place.add(1 << digit)
        found = row.gather(-1, probe.minimum(size).sub(1))
        place = (probe.le(size) & _stands_before(found, value, behind)).where(probe, place)
    return place


def _wide_index(op: str, x: Tensor, d: int, index: Tensor) -> Tensor:
    """Return a vector of positions along axis ``d``, expanded to the shape of the slices at these positions."""
    places = operand(op, index, x).reshape(-1)
    shape = (*x.shape[:d], places.shape[0], *x.shape[d + 1 :])
    return places.reshape((1,) * d + (-1,) + (1,) * (x.ndim - d - 1)).expand(shape)


def _slices(op: str, x: Tensor, dim: int, index: Tensor, source: Tensor) -> tuple[int, Tensor, Tensor]:
    """Return the axis, the position of each element of ``source``, and ``source`` cast to the dtype of ``x``."""
    value, x = operand(op, source, x), x if x.ndim else x.reshape(1)
    d = axis_and_size(op, x, dim)[0]
    wide = _wide_index(op, x, d, index)
    value = value if value.ndim or x.ndim > 1 else value.reshape(1)
    if value.shape != wide.shape:
        raise ShapeError(op, f"slices of shape {value.shape} at {wide.shape[d]} positions of axis {d} of {x.shape}",
                         f"shape {wide.shape}")
    return d, wide, value.cast(x.dtype)
