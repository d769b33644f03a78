"""Sorting and selection: ``sort``, ``topk``, ``median``, ``unique``.

Elements are mapped to unsigned integer keys of the same order. Short rows are sorted by counting the elements that
come before each one, long rows by a radix sort (``ir.sort_graph``). Both are stable. NaN is the greatest value, as in
PyTorch and NumPy.
"""
# mypy: disable-error-code=misc
# ``self`` is the Tensor that this class is mixed into.
from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from tinsmith.backend.device import Device, members
from tinsmith.core.dtypes import DType, dtypes
from tinsmith.core.errors import ArgumentError, ShapeError
from tinsmith.core.settings import settings
from tinsmith.ir import Ops, UOp
from tinsmith.ir.sort_graph import by_digits, by_pieces, digit_bits_for
from tinsmith.target.schedule_costs import Costs
from tinsmith.tensor.arguments import flag, integer
from tinsmith.tensor.helpers import axis_of, product
from tinsmith.tensor.reduce.scans import ValuesAndIndices

if TYPE_CHECKING:
    from tinsmith.tensor.tensor import Tensor

_COUNTED = 256  # longest row (elements) that is sorted by comparing all pairs
_FEW = 16  # largest k for which topk of a short row selects one maximum after another
_ROWS = 8  # … in more rows than this: one kernel per selected element then has enough work
_GROUPED = 16  # elements per selected element from which on selecting groups is cheaper than sorting


class Sorting:
    """``sort``, ``argsort``, ``topk``, ``kthvalue``, ``median``, ``unique``."""

    __slots__ = ()

    def sort(self: Tensor, dim: int = -1, descending: bool = False, stable: bool = True) -> ValuesAndIndices:
        """The sorted elements along an axis and their original indices; stable, NaN is greatest.

        Args:
            stable: accepted for PyTorch compatibility; sorting is always stable.

        >>> values, indices = Tensor([3, 1, 2]).sort()
        >>> values.tolist(), indices.tolist()
        ([1, 2, 3], [1, 2, 0])

        Raises:
            AxisError: if the axis does not exist.
            ShapeError: if the size of the axis is symbolic.
        """
        return _picked(self, "sort", dim, lambda x: _sorted(x, descending))

    def argsort(self: Tensor, dim: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
        """The indices that sort the elements along an axis.

        >>> Tensor([3, 1, 2]).argsort(descending=True).tolist()
        [0, 2, 1]

        Raises:
            AxisError: if the axis does not exist.
            ShapeError: if the size of the axis is symbolic.
        """
        return self.sort(dim, descending).indices

    def topk(self: Tensor, k: int, dim: int = -1, largest: bool = True, sorted_: bool = True) -> ValuesAndIndices:
        """The ``k`` greatest (or smallest) elements along an axis, best first, and their indices. NaN is greatest.

        Args:
            sorted_: accepted for PyTorch compatibility; the result is always sorted.

        >>> values, indices = Tensor([3, 1, 4, 2]).topk(2)
        >>> values.tolist(), indices.tolist()
        ([4, 3], [2, 0])

        Raises:
            ArgumentError: if there are fewer than k elements.
        """
        k = integer("topk", "k", k)
        size = self.shape[axis_of("topk", self, dim)] if self.ndim else 1
        if isinstance(size, int) and not 0 <= k <= size:
            raise ArgumentError("topk", f"the {k} greatest of {size} elements, shape {self.shape}",
                                f"k from 0 to {size}")
        return _picked(self, "topk", dim, lambda x: (None, _first(x, k, largest)))

    def kthvalue(self: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> ValuesAndIndices:
        """The k-th smallest element along an axis (k counts from 1), and its index.

        >>> values, indices = Tensor([3, 1, 2]).kthvalue(2)
        >>> values.item(), indices.item()
        (2, 2)

        Raises:
            ArgumentError: if there are fewer than k elements.
        """
        d, k = axis_of("kthvalue", self, dim), integer("kthvalue", "k", k)
        size = self.shape[d] if self.ndim else 1
        if isinstance(size, int) and not 1 <= k <= size:
            raise ArgumentError("kthvalue", f"element {k} of {size}, shape {self.shape}", f"k from 1 to {size}")
        found = _picked(self, "kthvalue", d, lambda x: (
            None, _sorted(x, False)[1].shrink(((0, x.shape[0]), (k - 1, k)))))
        return found if keepdim or not self.ndim else ValuesAndIndices(*(t.squeeze(d) for t in found))

    def median(self: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
        """The median (the lower of the two middle elements); NaN if any value is NaN. With an axis, also its index.

        >>> Tensor([3, 1, 4, 2]).median().item()
        2
        >>> Tensor([[3, 1, 2]]).median(dim=1).indices.tolist()
        [2]

        Raises:
            ShapeError: if there are no elements.
        """
        if dim is None:
            return self.reshape(-1).median(0).values
        d = axis_of("median", self, dim)
        size = self.shape[d] if self.ndim else 1
        if size == 0:
            raise ShapeError("median", f"axis {d} of shape {self.shape} is empty", "at least one element")
        found = self.kthvalue((size + 1) // 2, d, keepdim)
        if not self.dtype.is_float:
            return found
        last = self.kthvalue(size, d, keepdim)
        nan = last.values.isnan()
        first = self.isnan().argmax(d, keepdim) if self.ndim else found.indices
        return ValuesAndIndices(nan.where(last.values, found.values), nan.where(first, found.indices))

    def unique(self: Tensor, return_inverse: bool = False, return_counts: bool = False, *, sorted: bool = True,
               dim: int | None = None) -> Any:
        """The distinct elements, sorted; this realizes the tensor. Every NaN differs from all others.

        Args:
            return_inverse: also return the index of each element among the distinct ones, in this tensor's shape.
            return_counts: also return the number of occurrences of each distinct element.
            sorted: accepted for PyTorch compatibility; the result is always sorted.
            dim: compare the slices along this axis instead of elements.

        >>> Tensor([3, 1, 3]).unique().tolist()
        [1, 3]
        >>> [t.tolist() for t in Tensor([3, 1, 3]).unique(return_inverse=True, return_counts=True)]
        [[1, 3], [1, 0, 1], [1, 2]]
        """
        return_inverse = flag("unique", "return_inverse", return_inverse)
        return_counts = flag("unique", "return_counts", return_counts)
        if dim is not None:
            out = _unique_slices(self, axis_of("unique", self, dim))
            out = [out[0], *out[1:2] * return_inverse, *out[2:] * return_counts]
            return out[0] if len(out) == 1 else tuple(out)
        flat = self.reshape(-1)
        if not flat.shape[0]:
            none = flat.cast(dtypes.default_int)
            empty = [flat] + [none.reshape(self.shape)] * return_inverse + [none] * return_counts
            return empty[0] if len(empty) == 1 else tuple(empty)
        values, inverse, counts = _counted_values(flat) or _sorted_values(flat)
        out = [values] + [inverse.reshape(self.shape)] * return_inverse + [counts] * return_counts
        return out[0] if len(out) == 1 else tuple(out)


def _unique_slices(x: Tensor, d: int) -> list[Tensor]:
    """Return the distinct slices along axis ``d``, sorted, the index of each slice among them, and their counts."""
    array = (x.float() if x.dtype.is_float and x.dtype.itemsize < 4 else x).numpy()
    _, first, inverse, counts = np.unique(array, return_index=True, return_inverse=True, return_counts=True, axis=d)
    indices = [type(x)(i.reshape(-1).astype(dtypes.default_int.numpy), device=x.device)
               for i in (first, inverse, counts)]
    return [x.index_select(d, indices[0]), *indices[1:]]


def _counted_values(flat: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
    """Return the distinct integers of a vector, each element's index among them, and their counts, by counting.

    None if the dtype is not an integer or the value range is not smaller than the number of elements."""
    if not flat.dtype.is_int:
        return None
    low, high = flat.detach().min(), flat.detach().max()
    type(flat).realize(low, high)
    between = int(high.item()) - int(low.item())
    if between >= flat.shape[0]:
        return None
    wide = flat.dtype if flat.dtype.itemsize == 8 else dtypes.int64
    place = (flat.cast(wide) - low.cast(wide)).cast(dtypes.default_int)
    each = place.ones_like(dtype=dtypes.default_int)
    size = 1 << between.bit_length()  # powers of two: few sizes, so few kernels to compile
    counts = type(flat).zeros(size, dtype=dtypes.default_int, device=flat.device).scatter_add(0, place, each).realize()
    found = counts.gt(0)
    values = found.nonzero().reshape(-1)
    inverse = (found.cast(dtypes.default_int).cumsum() - 1).gather(0, place)
    return (low.cast(wide) + values.cast(wide)).cast(flat.dtype), inverse, counts.gather(0, values)


def _sorted_values(flat: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the distinct elements of a vector, each element's index among them, and their counts, by sorting.

    The elements are realized; indices and counts stay lazy.
    """
    values, order = flat.sort()
    type(flat).realize(values, order)  # together: the next lines read both
    new = values[1:].ne(values[:-1]).pad(((1, 0),), value=1)
    found = values[new]
    inverse = order.scatter(0, order, new.cast(dtypes.default_int).cumsum() - 1)
    return found, inverse, found.zeros_like(dtype=dtypes.default_int).scatter_add(0, inverse, inverse.ones_like())


def _picked(x: Tensor, op: str, dim: int, positions: Callable[[UOp], tuple[UOp | None, UOp]]) -> ValuesAndIndices:
    """Return elements along ``dim`` and their indices; ``positions`` maps rows to (elements or None, indices)."""
    d = axis_of(op, x, dim)
    row = x.reshape(1) if not x.ndim else x.transpose(d, -1)
    if isinstance(row.shape[-1], UOp):
        raise ShapeError(op, f"axis {d} of shape {x.shape} has a symbolic size", "an axis of fixed size")
    rows, size = product(row.shape[:-1]), row.shape[-1]
    known, found = positions(row.detach().uop.reshape((rows, size)))
    shape = (*row.shape[:-1], found.shape[-1])
    index = x._new(found.reshape(shape))
    values = row.gather(-1, index) if known is None else x._new(UOp(
        Ops.CUSTOM_GRADIENT, None, (known, row.uop.reshape((rows, size)), found), _put_back).reshape(shape))
    if not x.ndim:
        return ValuesAndIndices(values.reshape(()), index.reshape(()).cast(dtypes.default_int))
    return ValuesAndIndices(values.transpose(d, -1), index.transpose(d, -1).cast(dtypes.default_int))


def _put_back(node: UOp, gradient: UOp) -> tuple[UOp, None]:
    """Return the gradient of sorted rows in their original order."""
    return gradient.const_like(0).scatter(node.src[2], gradient, 1, Ops.ASSIGN), None


def ordered_bits(x: UOp) -> UOp:
    """Return unsigned keys in the order of ``x``: equal for equal elements (zeros of both signs), all ones for NaN.

    The bits of positive floats are already in order; for negative floats all bits are flipped.
    """
    if x.dtype.is_bool:
        return x.cast(dtypes.uint8)
    if x.dtype.kind == "uint":
        return x
    bits = x.bitcast(_unsigned(x.dtype))
    top = bits.const_like(1 << (x.dtype.bits - 1))
    if not x.dtype.is_float:
        return bits ^ top
    ones = bits.const_like((1 << x.dtype.bits) - 1)
    flipped = bits ^ bits.lt(top).where(top, ones)
    return x.ne(x).where(ones, x.eq(x.const_like(0)).where(top, flipped))


def _element(keys: UOp, x: UOp, at: UOp) -> UOp:
    """Return the elements of ``x`` with the given ``ordered_bits``; zeros and NaN, whose sign and payload the keys
    lack, are gathered from ``x`` at ``at``."""
    if x.dtype.is_bool or x.dtype.kind == "uint":
        return keys.cast(x.dtype)
    top, ones = keys.const_like(1 << (x.dtype.bits - 1)), keys.const_like((1 << x.dtype.bits) - 1)
    if not x.dtype.is_float:
        return (keys ^ top).bitcast(x.dtype)
    lost = keys.eq(top) | keys.eq(ones)
    found = x.gather(lost.where(at, -1), 1)
    return lost.where(found, (keys ^ keys.lt(top).where(ones, top)).bitcast(x.dtype))


def _unsigned(dtype: DType) -> DType:
    return {1: dtypes.uint8, 2: dtypes.uint16, 4: dtypes.uint32, 8: dtypes.uint64}[dtype.itemsize]


def _keys(x: UOp, descending: bool) -> UOp:
    return _complement(ordered_bits(x)) if descending else ordered_bits(x)


def _complement(keys: UOp) -> UOp:
    return keys ^ keys.const_like((1 << keys.dtype.bits) - 1)


def _sorted(x: UOp, descending: bool) -> tuple[UOp | None, UOp]:
    """Return (sorted elements of each row if the sort yields them, else None; their indices)."""
    if x.shape[1] <= _COUNTED:
        return None, _by_counting(_keys(x, descending))
    keys = _keys(x, descending)
    target = Device[members(x.device or Device.DEFAULT)[0]].target
    costs, in_order, bits = Costs() if settings.NOOPT else target.costs, target.cores == 1, keys.dtype.bits
    digit_bits = digit_bits_for(bits, x.shape[1], costs.digits, 0 if in_order else costs.piece)
    if in_order:
        return None, by_digits(keys, bits, digit_bits)
    ordered, order = by_pieces(keys, bits, digit_bits, costs.piece)
    ordered = _complement(ordered) if descending else ordered
    return _element(ordered, x, order), order


def _by_counting(keys: UOp) -> UOp:
    """Return sorting indices: the rank of an element is the number of smaller, or equal and earlier, elements."""
    rows, size = keys.shape
    cube = (rows, size, size)
    keys = keys.contiguous()
    own = keys.reshape((rows, size, 1)).expand(cube)
    other = keys.reshape((rows, 1, size)).expand(cube)
    first = other.iota_like(2).lt(other.iota_like(1))
    before = other.lt(own) | (other.eq(own) & first)
    place = before.cast(dtypes.int32).reduce("ADD", (2,)).reshape((rows, size))
    return place.const_like(0).scatter(place, place.iota_like(1), 1, None)


def _first(x: UOp, k: int, largest: bool) -> UOp:
    """Return the indices of the ``k`` greatest or smallest elements of each row, in order."""
    return _greatest(_keys(x, not largest).contiguous(), k)


def _greatest(keys: UOp, k: int) -> UOp:
    """Return the indices of the ``k`` greatest keys of each row, in order.

    They lie in the k groups of adjacent elements with the greatest maxima (the first of equal ones). A group width of
    sqrt(size / k) minimizes the number of groups plus candidates."""
    rows, size = keys.shape
    if 0 < k <= _FEW and size <= 2 * _COUNTED and keys.dtype.itemsize <= 4 and rows > _ROWS:
        return _one_by_one(keys, k)
    if size <= max(_COUNTED, _GROUPED * k) or not k:
        return _sorted(keys, True)[1].shrink(((0, rows), (0, k)))
    width = math.isqrt(size // k)
    count = -(-size // width)
    groups = keys.pad(((0, 0), (0, count * width - size)))  # padding: smallest key, after all others
    tops = groups.reshape((rows, count, width)).reduce("MAX", (2,)).reshape((rows, count)).contiguous()
    chosen = _greatest(tops, k)
    chosen = chosen.gather(_sorted(chosen.cast(dtypes.uint32), False)[1], 1)  # equal elements keep their order
    cube = (rows, k, width)
    first = chosen.reshape((rows, k, 1)).expand(cube) * width
    place = (first + first.iota_like(2)).reshape((rows, k * width)).contiguous()
    return place.gather(_greatest(groups.gather(place, 1).contiguous(), k), 1)


def _one_by_one(keys: UOp, k: int) -> UOp:
    """Return the indices of the ``k`` greatest keys of each row, selecting one maximum after another."""
    low = (1 << 32) - 1
    place = keys.iota_like(1).cast(dtypes.uint64)
    packed = (keys.cast(dtypes.uint64) << 32) | (place.const_like(low) - place)
    found: list[UOp] = []
    for _ in range(k):
        left = packed if not found else packed.lt(found[-1].expand(packed.shape)).where(packed, 0)
        found.append(left.reduce("MAX", (1,)).contiguous())
    columns = [(found[0].const_like(low) - (f & low)).cast(dtypes.int32) for f in found]
    out = columns[0].pad(((0, 0), (0, k - 1)))
    for n, c in enumerate(columns[1:], 1):
        out = out + c.pad(((0, 0), (n, k - 1 - n)))
    return out
