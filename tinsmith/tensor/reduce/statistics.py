"""Algorithms of sorting, selection, quantiles and histograms.

To sort, elements are mapped to unsigned integer keys of the same order. Short rows are sorted by counting the elements
that come before each one, long rows by a radix sort (``ir.graphs``). Both are stable. NaN is the greatest value, as in
PyTorch and NumPy.
"""
from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from tinsmith.backend.device import Device, members
from tinsmith.core.dtypes import DType, dtypes
from tinsmith.core.errors import ArgumentError, DTypeError, ShapeError
from tinsmith.core.settings import settings
from tinsmith.ir import Ops, UOp
from tinsmith.ir.graphs import by_digits, by_pieces, digit_bits_for
from tinsmith.target.schedule_costs import Costs
from tinsmith.tensor.arguments import choice, integer, number
from tinsmith.tensor.helpers import axis_of, float_of, operand, product
from tinsmith.tensor.reduce.reduce import Reduce, ValuesAndIndices

T = TypeVar("T", bound=Reduce)
COMPUTE_MODES = (None, "use_mm_for_euclid_dist_if_necessary", "use_mm_for_euclid_dist", "donot_use_mm_for_euclid_dist")


class LeastAndGreatest(NamedTuple, Generic[T]):
    """The result of ``aminmax``."""

    min: T
    max: T


class Histogram(NamedTuple, Generic[T]):
    """The result of ``histogram``: the counts and the bin edges."""

    hist: T
    bin_edges: T


def quantile_of(op: str, x: T, q: Any, dim: int | None, keepdim: bool, interpolation: str, skip: bool) -> T:
    choice(op, "interpolation", interpolation, ("linear", "lower", "higher", "midpoint", "nearest"))
    if not x.dtype.is_float or x.dtype.itemsize < 4:
        raise DTypeError(op, f"takes float32 or float64, got {x.dtype!r}", ".float()")
    if not hasattr(q, "uop"):
        number(op, "q", q, 0, 1)
    fractions = operand(op, q, x).cast(x.dtype)
    d = 0 if dim is None else axis_of(op, x, dim)
    flat = x.reshape(-1) if dim is None or not x.ndim else x
    if not flat.shape[d]:
        raise ShapeError(op, f"nothing to take the {op} of in shape {x.shape}", "at least one element")
    rows = flat.sort(d)[0].transpose(d, -1)  # NaN sorts last
    nan = flat.isnan().sum(d, keepdim=True).transpose(d, -1)
    count = nan.neg().add(flat.shape[d]) if skip else nan.zeros_like(requires_grad=False).add(flat.shape[d])
    places = fractions.reshape(-1).mul(count.sub(1).clamp(0).cast(x.dtype))
    if interpolation == "nearest":
        places = places.round()
    low, high = places.floor(), places.ceil()
    below, above = (rows.gather(-1, t.cast(dtypes.int32)) for t in (low, high))
    weight = {"linear": places.sub(low), "midpoint": places.sub(low).ne(0).where(0.5, 0.0),
              "lower": 0.0, "higher": 1.0, "nearest": 0.0}[interpolation]
    out = below if interpolation in ("lower", "nearest") else above if interpolation == "higher" else \
        below.add(above.sub(below).mul(weight))
    out = (count.eq(0) if skip else nan.gt(0)).where(math.nan, out)
    out = out.unsqueeze(0).transpose(0, -1).squeeze(-1)  # the axis of quantiles in front
    out = out.unsqueeze(-1).transpose(d + 1, -1) if out.ndim > d + 1 else out.unsqueeze(d + 1)
    if not keepdim:
        out = out.squeeze(d + 1)
    elif dim is None or not x.ndim:
        out = out.reshape(-1, *(1,) * x.ndim)
    return out if fractions.ndim else out.squeeze(0)


def counted(op: str, x: T, bins: int, low: float, high: float, weight: T | None) -> Histogram[T]:
    bins, kind = integer(op, "bins", bins, least=1), float_of(x).dtype
    low, high = number(op, "min", low), number(op, "max", high)
    if low > high:
        raise ArgumentError(op, f"no values between {low} and {high}", "min <= max")
    flat = x.reshape(-1).cast(kind)
    if op == "histogram" and low == high and not flat.shape[0]:  # PyTorch's range of an empty tensor
        high = low + 1
    own = low == high and flat.shape[0]
    least, most = (flat.min(), flat.max()) if own else (flat._zeros().add(v) for v in (low, high))
    none, more = least.eq(most), 1 if op == "histc" else 0.5
    least, most = none.where(least.sub(more), least), none.where(most.add(more), most)
    inside = flat.ge(least) & flat.le(most)
    place = flat.sub(least).div(most.sub(least)).mul(bins).floor().clamp(0, bins - 1)
    count = type(x).arange(bins + 1, device=x.device)
    step, ahead = most.sub(least).div(bins), count.cast(kind)
    edges = count.lt((bins + 1) // 2).where(ahead.mul(step).add(least), ahead.sub(bins).mul(step).add(most))
    return Histogram(histogram_of(x, inside.where(place, -1).cast(dtypes.int32), inside, bins, weight), edges)


def histogram_of(x: T, place: T, inside: T, bins: int, weight: T | None) -> T:
    kind = float_of(x).dtype
    each = inside.cast(kind) if weight is None else inside.where(weight.reshape(-1).cast(kind), 0)
    counts = type(x).zeros(bins, dtype=kind, device=x.device, requires_grad=False)
    return counts.scatter_add(0, place.clamp(0), each)

_COUNTED = 256  # longest row (elements) that is sorted by comparing all pairs
_FEW = 16  # largest k for which topk of a short row selects one maximum after another
_ROWS = 8  # … in more rows than this: one kernel per selected element then has enough work
_GROUPED = 16  # elements per selected element from which on selecting groups is cheaper than sorting


def unique_slices(x: T, d: int) -> list[T]:
    """Return the distinct slices along axis ``d``, sorted, the index of each slice among them, and their counts."""
    array = (x.float() if x.dtype.is_float and x.dtype.itemsize < 4 else x).numpy()
    _, first, inverse, counts = np.unique(array, return_index=True, return_inverse=True, return_counts=True, axis=d)
    indices = [type(x)(i.reshape(-1).astype(dtypes.default_int.numpy), device=x.device)
               for i in (first, inverse, counts)]
    return [x.index_select(d, indices[0]), *indices[1:]]


def counted_values(flat: T) -> tuple[T, T, T] | None:
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


def sorted_values(flat: T) -> tuple[T, T, T]:
    """Return the distinct elements of a vector, each element's index among them, and their counts, by sorting.

    The elements are realized; indices and counts stay lazy.
    """
    values, order = flat.sort()
    type(flat).realize(values, order)  # together: the next lines read both
    new = values[1:].ne(values[:-1]).pad(((1, 0),), value=1)
    found = values[new]
    inverse = order.scatter(0, order, new.cast(dtypes.default_int).cumsum() - 1)
    return found, inverse, found.zeros_like(dtype=dtypes.default_int).scatter_add(0, inverse, inverse.ones_like())


def value_and_index(x: T, op: str, dim: int, positions: Callable[[UOp], tuple[UOp | None, UOp]]
                    ) -> ValuesAndIndices[T]:
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


def sorted_along(x: UOp, descending: bool) -> tuple[UOp | None, UOp]:
    """Return (sorted elements of each row if the sort yields them, else None; their indices)."""
    keys, (rows, size) = _keys(x, descending), x.shape
    target = Device[members(x.device or Device.DEFAULT)[0]].target
    costs, in_order, bits = Costs() if settings.NOOPT else target.costs, target.cores == 1, keys.dtype.bits
    if _compares_all(rows, size, costs.compared * keys.dtype.itemsize):
        return None, _by_counting(keys)
    digit_bits = digit_bits_for(bits, size, costs.digits, 0 if in_order else costs.piece)
    if in_order:
        return None, by_digits(keys, bits, digit_bits)
    ordered, order = by_pieces(keys, bits, digit_bits, costs.piece)
    ordered = _complement(ordered) if descending else ordered
    return _element(ordered, x, order), order


def _compares_all(rows: int | UOp, size: int, most: int) -> bool:
    """Return True if comparing all pairs of each row takes less time than passes over digits."""
    return size <= _COUNTED or (isinstance(rows, int) and rows * size * size <= most)


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
    return place.const_like(0).scatter(place, place.iota_like(1), 1, Ops.ASSIGN)


def first_along(x: UOp, k: int, largest: bool) -> UOp:
    """Return the indices of the ``k`` greatest or smallest elements of each row, in order."""
    return _greatest(_keys(x, not largest).contiguous(), k)


def _greatest(keys: UOp, k: int) -> UOp:
    """Return the indices of the ``k`` greatest keys of each row, in order.

    These are all in the k groups of adjacent elements with the greatest maxima (the first of equal groups). A group
    width of sqrt(size / k) minimizes the number of groups plus candidates."""
    rows, size = keys.shape
    if 0 < k <= _FEW and size <= 2 * _COUNTED and keys.dtype.itemsize <= 4 and rows > _ROWS:
        return _one_by_one(keys, k)
    if size <= max(_COUNTED, _GROUPED * k) or not k:
        return sorted_along(keys, True)[1].shrink(((0, rows), (0, k)))
    width = math.isqrt(size // k)
    count = -(-size // width)
    groups = keys.pad(((0, 0), (0, count * width - size)))  # padding: smallest key, after all others
    tops = groups.reshape((rows, count, width)).reduce("MAX", (2,)).reshape((rows, count)).contiguous()
    chosen = _greatest(tops, k)
    chosen = chosen.gather(sorted_along(chosen.cast(dtypes.uint32), False)[1], 1)  # equal elements keep their order
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
