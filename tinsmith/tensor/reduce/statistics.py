# mypy: disable-error-code=misc
"""Statistics under PyTorch's names (NaN-ignoring sums, quantiles, histograms, distances), sorting and selection.

To sort, elements are mapped to unsigned integer keys of the same order. Short rows are sorted by counting the elements
that come before each one, long rows by a radix sort (``ir.graphs``). Both are stable. NaN is the greatest value, as in
PyTorch and NumPy.
"""
from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tinsmith.backend.device import Device, members
from tinsmith.core.dtypes import DType, dtypes, promote
from tinsmith.core.errors import ArgumentError, DTypeError, ShapeError
from tinsmith.core.settings import settings
from tinsmith.ir import Ops, UOp
from tinsmith.ir.graphs import by_digits, by_pieces, digit_bits_for
from tinsmith.target.schedule_costs import Costs
from tinsmith.tensor.arguments import choice, flag, integer, number
from tinsmith.tensor.base import check_tensors
from tinsmith.tensor.helpers import axis_and_size, axis_of, broadcast_shape, float_of, operand, product, rounded_once
from tinsmith.tensor.reduce.reduce import Axis, ValuesAndIndices

if TYPE_CHECKING:
    from tinsmith.tensor.tensor import Tensor

_COMPUTE_MODES = (None, "use_mm_for_euclid_dist_if_necessary", "use_mm_for_euclid_dist", "donot_use_mm_for_euclid_dist")


class LeastAndGreatest(NamedTuple):
    """The result of ``aminmax``."""

    min: Tensor
    max: Tensor


class Histogram(NamedTuple):
    """The result of ``histogram``: the counts and the bin edges."""

    hist: Tensor
    bin_edges: Tensor


class Statistics:
    """``amax nansum quantile mode histc cov cdist`` and similar methods."""

    __slots__ = ()

    def amax(self: Tensor, dim: Axis = None, keepdim: bool = False) -> Tensor:
        """Return the maximum along axes (the same as ``max``).

        >>> Tensor([[1, 5], [3, 4]]).amax(dim=1).tolist()
        [5, 4]
        """
        return self.max(None if dim == () else dim, keepdim)

    def amin(self: Tensor, dim: Axis = None, keepdim: bool = False) -> Tensor:
        """Return the minimum along axes (the same as ``min``).

        >>> Tensor([[1, 5], [3, 4]]).amin(dim=1).tolist()
        [1, 3]
        """
        return self.min(None if dim == () else dim, keepdim)

    def aminmax(self: Tensor, *, dim: int | None = None, keepdim: bool = False) -> LeastAndGreatest:
        """Return the minimum and the maximum, along an axis or of all elements.

        >>> [t.item() for t in Tensor([3, 1, 2]).aminmax()]
        [1, 3]
        """
        return LeastAndGreatest(self.min(dim, keepdim), self.max(dim, keepdim))

    def count_nonzero(self: Tensor, dim: Axis = None) -> Tensor:
        """Return the number of nonzero values along axes.

        >>> Tensor([[0, 2], [3, 4]]).count_nonzero(1).tolist()
        [1, 2]
        """
        return self.ne(0).sum(dim, dtype=dtypes.default_int)

    def nansum(self: Tensor, dim: Axis = None, keepdim: bool = False, *, dtype: DType | str | None = None) -> Tensor:
        """Return the sum along axes, ignoring NaN.

        >>> Tensor([1.0, math.nan]).nansum().item()
        1.0
        """
        return self.isnan().where(0, self).sum(dim, keepdim, dtype)

    @rounded_once
    def nanmean(self: Tensor, dim: Axis = None, keepdim: bool = False) -> Tensor:
        """Return the mean along axes, ignoring NaN.

        >>> Tensor([1.0, math.nan, 3.0]).nanmean().item()
        2.0
        """
        x = self._new(float_of(self))
        return x.nansum(dim, keepdim).div(x.isnan().logical_not().sum(dim, keepdim).cast(x.dtype))

    def nanmedian(self: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
        """Return the median (the lower of two middle values), ignoring NaN; along an axis, also its index.

        >>> Tensor([3.0, math.nan, 1.0]).nanmedian().item()
        1.0
        """
        if dim is None:
            return self.reshape(-1).nanmedian(0).values
        if not self.ndim:
            axis_of("nanmedian", self.reshape(1), dim)
            return ValuesAndIndices(self._copy(), self._new(self.uop.const_like(0).cast(dtypes.default_int)))
        d, _ = axis_and_size("nanmedian", self, dim)
        values, indices = self.sort(d)
        middle = self.isnan().logical_not().sum(d, keepdim=True).sub(1).clamp(0).idiv(2)
        found = values.gather(d, middle), indices.gather(d, middle)
        return ValuesAndIndices(*(t if keepdim else t.squeeze(d) for t in found))

    def quantile(self: Tensor, q: Any, dim: int | None = None, keepdim: bool = False, *,
                 interpolation: str = "linear") -> Tensor:
        """Return the ``q``-quantile of the values along an axis (or of all); NaN if any value is NaN.

        >>> Tensor([1.0, 2.0, 4.0]).quantile(0.5).item(), Tensor([1.0, 2.0, 4.0]).quantile(Tensor([0.0, 0.75])).tolist()
        (2.0, [1.0, 3.0])

        Args:
            q: a number in [0, 1], or a vector of them, which becomes the first axis.
            interpolation: between the two nearest values: "linear", "lower", "higher", "midpoint", "nearest".
        """
        return _quantile("quantile", self, q, dim, keepdim, interpolation, False)

    def nanquantile(self: Tensor, q: Any, dim: int | None = None, keepdim: bool = False, *,
                    interpolation: str = "linear") -> Tensor:
        """Return ``quantile`` of the values that are not NaN.

        >>> Tensor([1.0, math.nan, 3.0]).nanquantile(0.5).item()
        2.0
        """
        return _quantile("nanquantile", self, q, dim, keepdim, interpolation, True)

    def mode(self: Tensor, dim: int = -1, keepdim: bool = False) -> ValuesAndIndices:
        """Return the most frequent value along an axis (the smallest of several) and the index of its last occurrence.

        Each value is compared with its full row: quadratic in the size of the axis.

        >>> [t.item() for t in Tensor([1, 3, 3, 2]).mode()]
        [3, 2]
        """
        if not self.ndim:
            return ValuesAndIndices(*(t.reshape(()) for t in self.reshape(1).mode(dim, True)))
        d, size = axis_and_size("mode", self, dim)
        row = self.transpose(d, -1)
        same = row.unsqueeze(-1).eq(row.unsqueeze(-2))
        counts = same.sum(-1)
        often = counts.eq(counts.max(-1, keepdim=True))
        order = row.detach().argsort(-1)
        line = type(self).arange(size, dtype=order.dtype, device=self.device)
        rank = order.scatter(-1, order, line.expand(order.shape))
        first = often.where(rank, size).argmin(-1, keepdim=True)
        value = row.gather(-1, first)
        places = row.eq(value).where(line, -1).max(-1, keepdim=True)
        found = value.transpose(d, -1), places.transpose(d, -1)
        return ValuesAndIndices(*(t if keepdim else t.squeeze(d) for t in found))

    def msort(self: Tensor) -> Tensor:
        """Return the values sorted along the first axis.

        >>> Tensor([3, 1, 2]).msort().tolist()
        [1, 2, 3]
        """
        return self.sort(0).values

    def unique_consecutive(self: Tensor, return_inverse: bool = False, return_counts: bool = False,
                           dim: int | None = None) -> Any:
        """Return the values of the flat tensor, or slices along ``dim``, without consecutive repetitions; realizes the
        tensor.

        >>> Tensor([1, 1, 2, 1]).unique_consecutive().tolist()
        [1, 2, 1]
        """
        return_inverse = flag("unique_consecutive", "return_inverse", return_inverse)
        return_counts = flag("unique_consecutive", "return_counts", return_counts)
        x, d = (self.reshape(-1), 0) if dim is None else (self, axis_and_size("unique_consecutive", self, dim)[0])
        rows = x.transpose(0, d)
        rows = rows.reshape(rows.shape[0], product(rows.shape[1:]))
        new = rows[1:].ne(rows[:-1]).any(1).pad(((1, 0),), value=1) if rows.shape[0] else rows.ne(rows).any(1)
        found = new.nonzero().reshape(-1)
        out = [x.index_select(d, found)]
        place = new.cast(dtypes.default_int).cumsum(0).sub(1)
        if return_inverse:
            out.append(place.reshape(self.shape) if dim is None else place)
        if return_counts:
            out.append(found.zeros_like(dtype=dtypes.default_int).scatter_add(0, place, place.ones_like()))
        return out[0] if len(out) == 1 else tuple(out)

    def histc(self: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
        """Return the counts of values in ``bins`` equal bins of [min, max]; if both are equal, of the data's range.

        >>> Tensor([1.0, 2.0, 1.0]).histc(4, 0, 3).tolist()
        [0.0, 2.0, 1.0, 0.0]
        """
        return _counted("histc", self, bins, min, max, None).hist

    def histogram(self: Tensor, bins: int | Tensor = 100, *, range: tuple[float, float] | None = None,
                  weight: Tensor | None = None, density: bool = False) -> Histogram:
        """Return the counts of values in ``bins`` equal bins of a range, and the bin edges.

        >>> [t.tolist() for t in Tensor([1.0, 2.0, 1.0]).histogram(3, range=(0, 3))]
        [[0.0, 2.0, 1.0], [0.0, 1.0, 2.0, 3.0]]

        Args:
            bins: the number of bins, or a vector of bin edges.
            weight: the amount that each value adds to its bin (default 1).
            density: divide by the total and the bin width, so that the integral is 1.
        """
        if flag("histogram", "density", density):
            counts, ends = self.histogram(bins, range=range, weight=weight)
            return Histogram(counts.div(counts.sum()).div(ends[1:].sub(ends[:-1])), ends)
        if not isinstance(bins, int):
            check_tensors("histogram", [bins])
            x = self.reshape(-1)
            inside = x.ge(bins[0]) & x.le(bins[-1])
            place = inside.where(bins.searchsorted(x, right=True).sub(1).clamp(0, bins.shape[0] - 2), -1)
            return Histogram(_histogram(self, place, inside, bins.shape[0] - 1, weight), bins)
        low, high = (0.0, 0.0) if range is None else range
        return _counted("histogram", self, bins, low, high, weight)

    @rounded_once
    def cov(self: Tensor, *, correction: int = 1, fweights: Tensor | None = None,
            aweights: Tensor | None = None) -> Tensor:
        """Return the covariance matrix of variables, one per row, over their observations (columns).

        >>> Tensor([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]]).cov().tolist()
        [[1.0, -1.0], [-1.0, 1.0]]

        Args:
            fweights: the integer frequency of each observation.
            aweights: the relative weight of each observation.
        """
        if self.ndim > 2:
            raise ShapeError("cov", f"takes a vector or a matrix, got shape {self.shape}", "a row for each variable")
        x = self._new(float_of(self)).atleast_2d() if self.ndim < 2 else self._new(float_of(self))
        correction = integer("cov", "correction", correction)
        given = [w.reshape(-1) for w in (fweights, aweights) if w is not None]
        if not given:
            away = x.sub(x.mean(1, keepdim=True))
            out = away.matmul(away.transpose(-1, -2)).div(x.shape[1] - correction)
            return out.squeeze() if x.shape[0] == 1 else out
        kind = promote(x.dtype, *(w.dtype for w in given))
        x, w = x.cast(kind), (given[0] if len(given) == 1 else given[0].mul(given[1])).cast(kind)
        total = w.sum()
        away = x.sub(x.mul(w).sum(1, keepdim=True).div(total))
        lost = correction if aweights is None else w.mul(aweights.reshape(-1)).sum().div(total).mul(correction)
        out = away.mul(w).matmul(away.transpose(-1, -2)).div(total.sub(lost).clamp(0))
        return out.squeeze() if x.shape[0] == 1 else out

    def corrcoef(self: Tensor) -> Tensor:
        """Return the matrix of Pearson correlation coefficients of variables, one per row.

        >>> Tensor([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]]).corrcoef().numpy().round(4).tolist()
        [[1.0, -1.0], [-1.0, 1.0]]
        """
        c = self.cov()
        if not c.ndim:
            return c.div(c)
        size = c.diagonal().sqrt()
        return c.div(size.unsqueeze(1)).div(size.unsqueeze(0)).clamp(-1, 1)

    def dist(self: Tensor, other: Tensor, p: float = 2.0) -> Tensor:
        """Return the p-norm of ``self - other``.

        >>> Tensor([3.0, 0.0]).dist(Tensor([0.0, 4.0])).item()
        5.0
        """
        return self.sub(other).reshape(-1).norm(p)

    def cdist(self: Tensor, x2: Tensor, p: float = 2.0, compute_mode: str | None = None) -> Tensor:
        """Return the p-norms of the differences of all pairs of rows: ``[…, P, M], […, R, M] → […, P, R]``.

        >>> Tensor([[0.0, 0.0]]).cdist(Tensor([[3.0, 4.0], [0.0, 1.0]])).tolist()
        [[5.0, 1.0]]

        Args:
            compute_mode: accepted for PyTorch compatibility; it has no effect.
        """
        choice("cdist", "compute_mode", compute_mode, _COMPUTE_MODES)
        y = operand("cdist", x2, self)
        return self.unsqueeze(-2).sub(y.unsqueeze(-3)).norm(p, axis=-1)

    def cosine_similarity(self: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
        """Return the cosine of the angle between vectors along ``dim``.

        >>> Tensor([[1.0, 0.0]]).cosine_similarity(Tensor([[1.0, 0.0]])).tolist()
        [1.0]
        """
        y = operand("cosine_similarity", x2, self)
        shape = broadcast_shape("cosine_similarity", self.shape, y.shape)
        both = self.broadcast_to(shape), y.broadcast_to(shape)
        sizes = (t.norm(2, dim, keepdim=True).clamp(number("cosine_similarity", "eps", eps)) for t in both)
        a, b = (t.div(s) for t, s in zip(both, sizes))
        return a.mul(b).sum(dim)

    def pairwise_distance(self: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-6,
                          keepdim: bool = False) -> Tensor:
        """Return the p-norm of ``self - x2 + eps`` along the last axis.

        >>> Tensor([[3.0, 0.0]]).pairwise_distance(Tensor([[0.0, 4.0]])).numpy().round(3).tolist()
        [5.0]
        """
        return self.sub(x2).add(eps).norm(p, axis=-1, keepdim=keepdim)


def _quantile(op: str, x: Tensor, q: Any, dim: int | None, keepdim: bool, interpolation: str, skip: bool) -> Tensor:
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
    rows = flat.sort(d).values.transpose(d, -1)  # NaN sorts last
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


def _counted(op: str, x: Tensor, bins: int, low: float, high: float, weight: Tensor | None) -> Histogram:
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
    return Histogram(_histogram(x, inside.where(place, -1).cast(dtypes.int32), inside, bins, weight), edges)


def _histogram(x: Tensor, place: Tensor, inside: Tensor, bins: int, weight: Tensor | None) -> Tensor:
    kind = float_of(x).dtype
    each = inside.cast(kind) if weight is None else inside.where(weight.reshape(-1).cast(kind), 0)
    counts = type(x).zeros(bins, dtype=kind, device=x.device, requires_grad=False)
    return counts.scatter_add(0, place.clamp(0), each)

_COUNTED = 256  # longest row (elements) that is sorted by comparing all pairs
_FEW = 16  # largest k for which topk of a short row selects one maximum after another
_ROWS = 8  # … in more rows than this: one kernel per selected element then has enough work
_GROUPED = 16  # elements per selected element from which on selecting groups is cheaper than sorting


class Sorting:
    """``sort``, ``argsort``, ``topk``, ``kthvalue``, ``median``, ``unique``."""

    __slots__ = ()

    def sort(self: Tensor, dim: int = -1, descending: bool = False, stable: bool = True) -> ValuesAndIndices:
        """Return the sorted elements along an axis and their original indices; stable, NaN is greatest.

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
        """Return the indices that sort the elements along an axis.

        >>> Tensor([3, 1, 2]).argsort(descending=True).tolist()
        [0, 2, 1]

        Raises:
            AxisError: if the axis does not exist.
            ShapeError: if the size of the axis is symbolic.
        """
        return self.sort(dim, descending).indices

    def topk(self: Tensor, k: int, dim: int = -1, largest: bool = True, sorted_: bool = True) -> ValuesAndIndices:
        """Return the ``k`` greatest (or smallest) elements along an axis, best first, and their indices. NaN is
        greatest.

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
        """Return the k-th smallest element along an axis (k counts from 1), and its index.

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
        """Return the median (the lower of the two middle elements); NaN if any value is NaN. With an axis, also its
        index.

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
        """Return the distinct elements, sorted; this realizes the tensor. Every NaN differs from all others.

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

    These are all in the k groups of adjacent elements with the greatest maxima (the first of equal groups). A group
    width of sqrt(size / k) minimizes the number of groups plus candidates."""
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
