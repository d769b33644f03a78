"""Indexing as PyTorch has it: ints, slices, None, Ellipsis are movement; integer tensors are one GATHER; bool masks are
turned into positions at once, on the host, since the shape of the result depends on them.

An index out of range that the host knows raises; one computed reads 0 (and is dropped when written), and ``CHECKED=1``
reports it: see ``hostdata``.
"""
from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self, TypeVar

import numpy as np

from tinsmith.core.dtypes import DType, dtypes, promote
from tinsmith.core.errors import ArgumentError, DTypeError, ShapeError
from tinsmith.ir import UOp
from tinsmith.runtime.thread_turns import writing
from tinsmith.tensor.arguments import choice, flag, integer, number
from tinsmith.tensor.autocast import in_float32
from tinsmith.tensor.base import TensorBase, check_tensors
from tinsmith.tensor.helpers import (
    as_lines,
    axis_and_size,
    axis_of,
    broadcast_shape,
    equal,
    expand_uop,
    float_of,
    operand,
    product,
    rounded_once,
    same_device,
)
from tinsmith.tensor.host_data import check_indices
from tinsmith.tensor.indexing.positions import LONG_ROW, halved, indexed_slices, stands_before, wide_index
from tinsmith.tensor.indexing.subscripts import ParsedIndex, index_dtype, taken_apart, whole_mask
from tinsmith.tensor.interop import files
from tinsmith.tensor.reduce.reduce import Axis, Reduce, ValuesAndIndices
from tinsmith.tensor.reduce.statistics import (
    COMPUTE_MODES,
    Histogram,
    LeastAndGreatest,
    counted,
    counted_values,
    first_along,
    histogram_of,
    quantile_of,
    sorted_along,
    sorted_values,
    unique_slices,
    value_and_index,
)
from tinsmith.tensor.storage import RESHAPE, SLICE

T = TypeVar("T", bound="Indexing")


def _sliced(x: T, plan: ParsedIndex) -> T:
    """Return the view that the slices, dropped and new axes of an index show."""
    return x._view(SLICE, tuple(plan.slices), (RESHAPE, plan.shape))


class Indexing(Reduce):
    """Indexing, gather and scatter, sorting, and statistics of sorted values."""

    __slots__ = ()

    # *** indexing ***

    def __getitem__(self, index: Any) -> Self:
        plan = taken_apart("getitem", self, index)
        x = _sliced(self, plan)
        if not plan.picks:
            return x
        picked = _Picked(x, plan.picks)
        return self._new(picked.source.gather(picked.spread(), picked.axis).reshape(picked.shape))

    def __setitem__(self, index: Any, value: Any) -> None:
        with writing(self):
            self._set(index, value)

    def _set(self, index: Any, value: Any) -> None:
        if files.on_disk(self._device) and any(isinstance(i, (list, np.ndarray, TensorBase)) for i in (
                index if isinstance(index, tuple) else (index,))):  # its places are computed, which no file can do
            changed = self.to("CPU")
            changed[index] = value.to("CPU") if isinstance(value, Indexing) else value
            return self._write(changed.uop)
        mask = whole_mask(self, index)
        if mask is not None:
            v = operand("setitem", value, self)
            if v.ndim == 0 or v.shape == self.shape:
                self._become("setitem", mask.where(v.cast(self.dtype), self))
                return
        self._put("setitem", index, value)

    def _put(self, op: str, index: Any, value: Any, reduce: str | None = None) -> None:
        """Assign ``value`` to ``self[index]`` in place, or combine it with the present elements by ``reduce``."""
        plan = taken_apart(op, self, index)
        part = _sliced(self, plan)
        v = operand(op, value, self).cast(self.dtype)
        if not files.on_disk(self._device):
            same_device(op, self, v)
        part._write(_scattered(op, part, plan, v, reduce) if plan.picks else _fitted(op, v, plan.shape))

    def __iter__(self) -> Iterator[Self]:
        if not self.ndim:
            raise DTypeError("iter", "a 0-d tensor has no rows", ".item()")
        return iter([self[i] for i in range(len(self))])

    def __contains__(self, value: Any) -> bool:
        return bool(self.eq(value).any().item())

    def gather(self, dim: int, index: Self) -> Self:
        """Return ``out[i][j][k] = self[index[i][j][k]][j][k]`` for ``dim=0``, and so on; 0 where the index is out of
        range.

        >>> Tensor([[1, 2], [3, 4]]).gather(1, Tensor([[1], [0]])).tolist()
        [[2], [3]]
        """
        index = operand("gather", index, self)
        x, lines = as_lines(self, index)
        d, source, places = _aligned("gather", x, dim, lines)
        return self._new(source.gather(places, d)).reshape(index.shape)

    def scatter(self, dim: int, index: Self, src: Any, reduce: str | None = None) -> Self:
        """Return a copy with ``self[index[i][j][k]][j][k] = src[i][j][k]`` for ``dim=0``, and so on, in order.

        Args:
            reduce: None to set, else "add" or "multiply".

        >>> Tensor([0, 0, 0]).scatter(0, Tensor([2, 0]), Tensor([5, 6])).tolist()
        [6, 0, 5]
        """
        ops = {None: None, "add": "ADD", "multiply": "MUL"}
        choice("scatter", "reduce", reduce, ops)
        return _scatter("scatter", self, dim, index, src, ops[reduce])

    def scatter_add(self, dim: int, index: Self, src: Any) -> Self:
        """Return a copy with the elements of ``src`` added at ``index`` along an axis.

        >>> Tensor([1, 1]).scatter_add(0, Tensor([0, 0]), Tensor([5, 6])).tolist()
        [12, 1]
        """
        return _scatter("scatter_add", self, dim, index, src, "ADD")

    def scatter_reduce(self, dim: int, index: Self, src: Self, reduce: str,
                       include_self: bool = True) -> Self:
        """Return a copy with the elements of ``src`` combined in at ``index`` along an axis.

        Args:
            reduce: "sum", "prod", "amax", "amin" or "mean".
            include_self: whether the tensor's own elements take part where something is combined in.

        >>> Tensor([4, 1]).scatter_reduce(0, Tensor([0, 0]), Tensor([5, 3]), "amax").tolist()
        [5, 1]
        """
        ops = {"sum": "ADD", "prod": "MUL", "amax": "MAX", "amin": "MIN", "mean": "ADD"}
        choice("scatter_reduce", "reduce", reduce, ops)
        src = operand("scatter_reduce", src, self)
        base = self
        none = self.zeros_like(dtype=dtypes.int32, requires_grad=False)
        hits = none.scatter_add(dim, index, src.ones_like(dtype=dtypes.int32))
        if not include_self:
            neutral = {"ADD": 0, "MUL": 1, "MAX": self.dtype.min, "MIN": self.dtype.max}[ops[reduce]]
            base = hits.eq(0).where(self, neutral).cast(self.dtype)
        out = _scatter("scatter_reduce", base, dim, index, src, ops[reduce])
        if reduce != "mean":
            return out
        count = hits.add(1) if include_self else hits.maximum(1)
        return out.div(count.cast(out.dtype)).cast(out.dtype) if out.dtype.is_float else out.idiv(count.cast(out.dtype))

    def index_select(self, dim: int, index: Self) -> Self:
        """Return the slices at ``index`` along an axis.

        >>> Tensor([[1, 2], [3, 4]]).index_select(1, Tensor([1])).tolist()
        [[2], [4]]
        """
        d = axis_of("index_select", self, dim)
        places = operand("index_select", index, self).reshape(-1)
        return self[(slice(None),) * d + (places,)] if self.ndim else self.reshape(1)[places].reshape(())

    def masked_select(self, mask: Self, size: int | None = None, fill_value: float = 0) -> Self:
        """Return the elements where the mask is true, as a vector. Without ``size`` the mask is realized at once.

        >>> x, mask = Tensor([1, 2, 3]), Tensor([True, False, True])
        >>> x.masked_select(mask).tolist(), x.masked_select(mask, size=4, fill_value=-1).tolist()
        ([1, 3], [1, 3, -1, -1])

        Args:
            size: give so many elements, the first ones, with ``fill_value`` behind them where there are less: so it
                stays lazy, and can be captured.
        """
        wide = operand("masked_select", mask, self).bool()
        shape = broadcast_shape("masked_select", self.shape, wide.shape)
        x, wide = self.broadcast_to(shape), wide.broadcast_to(shape)
        if size is None:
            return x.flatten()[wide.flatten()]
        places, inside = _first_true(wide, integer("masked_select", "size", size, least=0))
        if 0 in shape:
            return type(self).full((size,), fill_value, self.dtype, self.device, requires_grad=False)
        return inside.where(x.flatten().gather(0, places), fill_value)

    def nonzero(self, size: int | None = None, fill_value: int = 0, *, as_tuple: bool = False) -> Any:
        """Positions of the elements that are not zero, one row each; without ``size`` they are computed now.

        >>> Tensor([0, 5, 0, 7]).nonzero().tolist(), Tensor([0, 5, 0, 7]).nonzero(size=3, fill_value=-1).tolist()
        ([[1], [3]], [[1], [3], [-1]])

        Args:
            size: give so many rows, the first ones, with ``fill_value`` behind them where there are less: that stays
                lazy, and can be captured.
            as_tuple: give the columns, each a vector of positions along one axis, as an index takes them.
        """
        if flag("nonzero", "as_tuple", as_tuple):
            x = self if self.ndim else self.reshape(1)
            places = x.nonzero(size, fill_value)
            return tuple(places[:, i] for i in range(x.ndim))
        if size is None:
            found = np.argwhere(self.bool().numpy()).astype(dtypes.default_int.numpy)
            return type(self)(found, device=self.device)
        flat, inside = _first_true(self.bool(), integer("nonzero", "size", size, least=0))
        columns: list[Indexing] = []
        for width in reversed(self.shape):
            columns.insert(0, flat.mod(width))
            flat = flat.idiv(width)
        rows = columns[0].stack(*columns[1:], dim=1) if columns else flat.reshape(-1, 1)[:, :0]
        return inside.unsqueeze(1).where(rows, integer("nonzero", "fill_value", fill_value))

    def one_hot(self, num_classes: int = -1) -> Self:
        """1 at each element's own value along a new last axis, 0 elsewhere.

        >>> Tensor([2, 0]).one_hot(3).tolist()
        [[0, 0, 1], [1, 0, 0]]

        Raises:
            AxisError: for a class out of range that the host knows; a computed one gives zeros.
        """
        if not self.dtype.is_int:
            raise DTypeError("one_hot", f"takes integers, got {self.dtype!r}", ".cast(dtypes.int32)")
        classes = integer("one_hot", "num_classes", num_classes, least=-1)
        classes = int(self.max().item()) + 1 if classes == -1 else classes
        check_indices("one_hot", self, 0, classes, "class", seen=True)
        places = type(self).arange(classes, device=self.device)
        return places.eq(self.unsqueeze(-1)).where(1, 0)  # CHECKED=1 knows this choice by its form

    # *** positions ***

    def take(self, index: Self) -> Self:
        """Return the elements at ``index`` of the flattened tensor, in the shape of ``index``.

        >>> Tensor([[1, 2], [3, 4]]).take(Tensor([3, 0])).tolist()
        [4, 1]
        """
        return self.reshape(-1)[operand("take", index, self)]

    def take_along_dim(self, indices: Self, dim: int | None = None) -> Self:
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

    def put(self, index: Self, source: Self, accumulate: bool = False) -> Self:
        """Return a copy with ``source`` written (or added) at ``index`` of the flattened tensor.

        >>> Tensor([[1, 2], [3, 4]]).put(Tensor([3]), Tensor([9])).tolist()
        [[1, 2], [3, 9]]
        """
        index, source = operand("put", index, self).reshape(-1), operand("put", source, self).reshape(-1)
        reduce = "add" if flag("put", "accumulate", accumulate) else None
        return self.reshape(-1).scatter(0, index, source, reduce).reshape(self.shape)

    def index_add(self, dim: int, index: Self, source: Self, *, alpha: float = 1) -> Self:
        """Return a copy with ``alpha * source`` added to the slices at ``index`` of axis ``dim``.

        >>> Tensor([1, 1, 1]).index_add(0, Tensor([0, 0]), Tensor([5, 6])).tolist()
        [12, 1, 1]
        """
        d, wide, source = indexed_slices("index_add", self, dim, index, source)
        return self.scatter_add(d, wide, source if alpha == 1 else source.mul(alpha).cast(self.dtype))

    def index_copy(self, dim: int, index: Self, source: Self) -> Self:
        """Return a copy with the slices at ``index`` of axis ``dim`` replaced by those of ``source``.

        >>> Tensor([1, 1, 1]).index_copy(0, Tensor([2, 0]), Tensor([5, 6])).tolist()
        [6, 1, 5]
        """
        d, wide, source = indexed_slices("index_copy", self, dim, index, source)
        return self.scatter(d, wide, source)

    def index_fill(self, dim: int, index: Self, value: float) -> Self:
        """Return a copy with the slices at ``index`` of axis ``dim`` filled with ``value``.

        >>> Tensor([1, 2, 3]).index_fill(0, Tensor([0, 2]), 9).tolist()
        [9, 2, 9]
        """
        if not self.ndim:
            return self.reshape(1).index_fill(dim, index, value).reshape(())
        d = axis_and_size("index_fill", self, dim)[0]
        wide = wide_index("index_fill", self, d, index)
        return self.scatter(d, wide, operand("index_fill", value, self).cast(self.dtype).broadcast_to(wide.shape))

    def index_reduce(self, dim: int, index: Self, source: Self, reduce: str, *,
                     include_self: bool = True) -> Self:
        """Return a copy with the slices of ``source`` reduced into those at ``index`` of axis ``dim``.

        >>> Tensor([1, 4]).index_reduce(0, Tensor([0, 0]), Tensor([5, 3]), "amax").tolist()
        [5, 4]

        Args:
            reduce: "prod", "mean", "amax" or "amin".
        """
        d, wide, source = indexed_slices("index_reduce", self, dim, index, source)
        return self.scatter_reduce(d, wide, source, reduce, include_self)

    def index_put(self, indices: Sequence[Self], values: Self, accumulate: bool = False) -> Self:
        """Return a copy with ``out[indices] = values``, or ``+=`` with ``accumulate``.

        >>> Tensor([1, 2, 3]).index_put((Tensor([0, 0]),), Tensor([5, 6]), accumulate=True).tolist()
        [12, 2, 3]
        """
        if not isinstance(indices, (tuple, list)) or not indices:
            raise ArgumentError("index_put", "indices must be a sequence of tensors",
                                "index_put((rows, columns), values)")
        reduce = "ADD" if flag("index_put", "accumulate", accumulate) else None
        plan = taken_apart("index_put", self, tuple(indices))
        part = _sliced(self, plan)
        if plan.picks and part.uop is self.uop and not files.on_disk(self._device):  # all of it: no write to a copy
            new = operand("index_put", values, self).cast(self.dtype)
            same_device("index_put", self, new)
            return self._new(_scattered("index_put", part, plan, new, reduce))
        out = self.clone()
        out._put("index_put", tuple(indices), values, reduce)
        return out

    def masked_scatter(self, mask: Self, source: Self) -> Self:
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

    def argwhere(self) -> Self:
        """Return the indices of the nonzero elements, one row each; same as ``nonzero``.

        >>> Tensor([0, 5]).argwhere().tolist()
        [[1]]
        """
        rows: Self = self.nonzero()
        return rows

    def searchsorted(self, values: Any, *, right: bool = False, side: str | None = None,
                     sorter: Self | None = None, out_int32: bool = False) -> Self:
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
        if not isinstance(size, UOp) and size >= LONG_ROW:
            return halved(self, x if self.ndim > 1 else x.reshape(-1), size, behind).reshape(x.shape)
        row = self if self.ndim == 1 else self.unsqueeze(-2)
        return stands_before(row, x.unsqueeze(-1), behind).sum(-1, dtype=dtypes.default_int)

    def bucketize(self, boundaries: Self, *, right: bool = False, out_int32: bool = False) -> Self:
        """Return, for each element, its insertion position in the sorted vector ``boundaries``.

        >>> Tensor([0, 3, 9]).bucketize(Tensor([1, 5])).tolist()
        [0, 1, 2]
        """
        check_tensors("bucketize", [boundaries])
        if boundaries.ndim != 1:
            raise ShapeError("bucketize", f"boundaries of shape {boundaries.shape}", "a vector")
        return boundaries.searchsorted(self, right=right, out_int32=out_int32)

    def isin(self, test_elements: Any, *, invert: bool = False) -> Self:
        """Return a bool tensor: True for each element that is one of ``test_elements``.

        >>> Tensor([1, 2, 3]).isin(Tensor([2, 5])).tolist()
        [False, True, False]
        """
        found = self.unsqueeze(-1).eq(operand("isin", test_elements, self).reshape(-1)).any(-1)
        return found.logical_not() if flag("isin", "invert", invert) else found

    def bincount(self, weights: Self | None = None, minlength: int = 0) -> Self:
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

    # *** sorting ***

    def sort(self, dim: int = -1, descending: bool = False, stable: bool = True) -> ValuesAndIndices[Self]:
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
        return value_and_index(self, "sort", dim, lambda x: sorted_along(x, descending))

    def argsort(self, dim: int = -1, descending: bool = False, stable: bool = True) -> Self:
        """Return the indices that sort the elements along an axis.

        >>> Tensor([3, 1, 2]).argsort(descending=True).tolist()
        [0, 2, 1]

        Raises:
            AxisError: if the axis does not exist.
            ShapeError: if the size of the axis is symbolic.
        """
        return self.sort(dim, descending).indices

    def topk(self, k: int, dim: int = -1, largest: bool = True, sorted_: bool = True) -> ValuesAndIndices[Self]:
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
        return value_and_index(self, "topk", dim, lambda x: (None, first_along(x, k, largest)))

    def kthvalue(self, k: int, dim: int = -1, keepdim: bool = False) -> ValuesAndIndices[Self]:
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
        found = value_and_index(self, "kthvalue", d, lambda x: (
            None, sorted_along(x, False)[1].shrink(((0, x.shape[0]), (k - 1, k)))))
        return found if keepdim or not self.ndim else ValuesAndIndices(*(t.squeeze(d) for t in found))

    def median(self, dim: int | None = None, keepdim: bool = False) -> Any:
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

    def unique(self, return_inverse: bool = False, return_counts: bool = False, *, sorted: bool = True,
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
            out = unique_slices(self, axis_of("unique", self, dim))
            out = [out[0], *out[1:2] * return_inverse, *out[2:] * return_counts]
            return out[0] if len(out) == 1 else tuple(out)
        flat = self.reshape(-1)
        if not flat.shape[0]:
            none = flat.cast(dtypes.default_int)
            empty = [flat] + [none.reshape(self.shape)] * return_inverse + [none] * return_counts
            return empty[0] if len(empty) == 1 else tuple(empty)
        values, inverse, counts = counted_values(flat) or sorted_values(flat)
        out = [values] + [inverse.reshape(self.shape)] * return_inverse + [counts] * return_counts
        return out[0] if len(out) == 1 else tuple(out)

    # *** statistics ***

    def amax(self, dim: Axis = None, keepdim: bool = False) -> Self:
        """Return the maximum along axes (the same as ``max``).

        >>> Tensor([[1, 5], [3, 4]]).amax(dim=1).tolist()
        [5, 4]
        """
        return self.max(None if dim == () else dim, keepdim)

    def amin(self, dim: Axis = None, keepdim: bool = False) -> Self:
        """Return the minimum along axes (the same as ``min``).

        >>> Tensor([[1, 5], [3, 4]]).amin(dim=1).tolist()
        [1, 3]
        """
        return self.min(None if dim == () else dim, keepdim)

    def aminmax(self, *, dim: int | None = None, keepdim: bool = False) -> LeastAndGreatest[Self]:
        """Return the minimum and the maximum, along an axis or of all elements.

        >>> [t.item() for t in Tensor([3, 1, 2]).aminmax()]
        [1, 3]
        """
        return LeastAndGreatest(self.min(dim, keepdim), self.max(dim, keepdim))

    def count_nonzero(self, dim: Axis = None) -> Self:
        """Return the number of nonzero values along axes.

        >>> Tensor([[0, 2], [3, 4]]).count_nonzero(1).tolist()
        [1, 2]
        """
        return self.ne(0).sum(dim, dtype=dtypes.default_int)

    def nansum(self, dim: Axis = None, keepdim: bool = False, *, dtype: DType | str | None = None) -> Self:
        """Return the sum along axes, ignoring NaN.

        >>> Tensor([1.0, math.nan]).nansum().item()
        1.0
        """
        return self.isnan().where(0, self).sum(dim, keepdim, dtype)

    @rounded_once
    def nanmean(self, dim: Axis = None, keepdim: bool = False) -> Self:
        """Return the mean along axes, ignoring NaN.

        >>> Tensor([1.0, math.nan, 3.0]).nanmean().item()
        2.0
        """
        x = self._new(float_of(self))
        return x.nansum(dim, keepdim).div(x.isnan().logical_not().sum(dim, keepdim).cast(x.dtype))

    def nanmedian(self, dim: int | None = None, keepdim: bool = False) -> Any:
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

    def quantile(self, q: Any, dim: int | None = None, keepdim: bool = False, *,
                 interpolation: str = "linear") -> Self:
        """Return the ``q``-quantile of the values along an axis (or of all); NaN if any value is NaN.

        >>> Tensor([1.0, 2.0, 4.0]).quantile(0.5).item(), Tensor([1.0, 2.0, 4.0]).quantile(Tensor([0.0, 0.75])).tolist()
        (2.0, [1.0, 3.0])

        Args:
            q: a number in [0, 1], or a vector of them, which becomes the first axis.
            interpolation: between the two nearest values: "linear", "lower", "higher", "midpoint", "nearest".
        """
        return quantile_of("quantile", self, q, dim, keepdim, interpolation, False)

    def nanquantile(self, q: Any, dim: int | None = None, keepdim: bool = False, *,
                    interpolation: str = "linear") -> Self:
        """Return ``quantile`` of the values that are not NaN.

        >>> Tensor([1.0, math.nan, 3.0]).nanquantile(0.5).item()
        2.0
        """
        return quantile_of("nanquantile", self, q, dim, keepdim, interpolation, True)

    def mode(self, dim: int = -1, keepdim: bool = False) -> ValuesAndIndices[Self]:
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

    def msort(self) -> Self:
        """Return the values sorted along the first axis.

        >>> Tensor([3, 1, 2]).msort().tolist()
        [1, 2, 3]
        """
        return self.sort(0).values

    def unique_consecutive(self, return_inverse: bool = False, return_counts: bool = False,
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

    def histc(self, bins: int = 100, min: float = 0, max: float = 0) -> Self:
        """Return the counts of values in ``bins`` equal bins of [min, max]; if both are equal, of the data's range.

        >>> Tensor([1.0, 2.0, 1.0]).histc(4, 0, 3).tolist()
        [0.0, 2.0, 1.0, 0.0]
        """
        return counted("histc", self, bins, min, max, None).hist

    def histogram(self, bins: int | Self = 100, *, range: tuple[float, float] | None = None,
                  weight: Self | None = None, density: bool = False) -> Histogram[Self]:
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
            return Histogram(histogram_of(self, place, inside, bins.shape[0] - 1, weight), bins)
        low, high = (0.0, 0.0) if range is None else range
        return counted("histogram", self, bins, low, high, weight)

    @rounded_once
    def cov(self, *, correction: int = 1, fweights: Self | None = None,
            aweights: Self | None = None) -> Self:
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

    def corrcoef(self) -> Self:
        """Return the matrix of Pearson correlation coefficients of variables, one per row.

        >>> Tensor([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]]).corrcoef().numpy().round(4).tolist()
        [[1.0, -1.0], [-1.0, 1.0]]
        """
        c = self.cov()
        if not c.ndim:
            return c.div(c)
        size = c.diagonal().sqrt()
        return c.div(size.unsqueeze(1)).div(size.unsqueeze(0)).clamp(-1, 1)

    @in_float32
    def dist(self, other: Self, p: float = 2.0) -> Self:
        """Return the p-norm of ``self - other``.

        >>> Tensor([3.0, 0.0]).dist(Tensor([0.0, 4.0])).item()
        5.0
        """
        return self.sub(other).reshape(-1).norm(p)

    @in_float32
    def cdist(self, x2: Self, p: float = 2.0, compute_mode: str | None = None) -> Self:
        """Return the p-norms of the differences of all pairs of rows: ``[…, P, M], […, R, M] → […, P, R]``.

        >>> Tensor([[0.0, 0.0]]).cdist(Tensor([[3.0, 4.0], [0.0, 1.0]])).tolist()
        [[5.0, 1.0]]

        Args:
            compute_mode: accepted for PyTorch compatibility; it has no effect.
        """
        choice("cdist", "compute_mode", compute_mode, COMPUTE_MODES)
        y = operand("cdist", x2, self)
        return self.unsqueeze(-2).sub(y.unsqueeze(-3)).norm(p, axis=-1)

    @in_float32
    def cosine_similarity(self, x2: Self, dim: int = 1, eps: float = 1e-8) -> Self:
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

    def pairwise_distance(self, x2: Self, p: float = 2.0, eps: float = 1e-6,
                          keepdim: bool = False) -> Self:
        """Return the p-norm of ``self - x2 + eps`` along the last axis.

        >>> Tensor([[3.0, 0.0]]).pairwise_distance(Tensor([[0.0, 4.0]])).numpy().round(3).tolist()
        [5.0]
        """
        return self.sub(x2).add(eps).norm(p, axis=-1, keepdim=keepdim)


def _first_true(mask: T, count: int) -> tuple[T, T]:
    """Return the flat positions of the first ``count`` true elements of a mask, and a mask of the positions that
    exist."""
    flat = mask.flatten().cast(dtypes.int32)
    total = flat.shape[0]
    if total == 0:
        none = flat._new(UOp.const(dtypes.int32, 0).expand_to((count,)))
        return none, none.ne(0)
    rank = flat.cumsum(0).sub(flat)
    line = type(mask).arange(total, device=mask.device)
    start = type(mask).zeros(count + 1, dtype=dtypes.int32, device=mask.device, requires_grad=False)
    places = start.scatter(0, flat.bool().where(rank.minimum(count), count), line)[:count]
    return places, type(mask).arange(count, device=mask.device).lt(flat.sum())


# *** taking an index apart ***


def _fitted(op: str, value: Indexing, shape: tuple[Any, ...]) -> UOp:
    """Return ``value`` broadcast to ``shape``; leading axes of size 1 that are too many are dropped."""
    x = value
    while x.ndim > len(shape) and x.shape[0] == 1:
        x = x.reshape(x.shape[1:])
    wide = shape if x.ndim > len(shape) else broadcast_shape(op, x.shape, shape)
    if x.ndim > len(shape) or not all(map(equal, wide, shape)):
        raise ShapeError(op, f"a value of shape {value.shape} does not fit the {shape} that the index names",
                         "a value that broadcasts to it")
    return expand_uop(x.uop, shape)


# *** gathers and scatters ***


class _Picked:
    """The axes that index tensors select from, merged into one axis in PyTorch's order.

    If the indexed axes are adjacent, the merged axis takes their place, else it comes first. A 0-d index tensor acts
    like an integer. Selected values are read in the order of the result: the gather needs no transposition after it.

    Attributes:
        source: shape (axes before, product of the indexed sizes, axes after).
        axis: position of the merged axis.
        flat: index into that axis, -1 where any coordinate is out of range.
        shape: shape of the result: the index tensors' common shape in place of the merged axis.
        order: permutation of the original axes that brings picked ones together.
    """

    def __init__(self, x: Reduce, picks: Mapping[int, TensorBase]) -> None:
        axes = sorted(picks)
        others = [i for i in range(x.ndim) if i not in picks]
        wide = [a for a in axes if picks[a].ndim] or axes[:1]
        first, last = (sum(o < a for o in others) for a in (wide[0], wide[-1]))
        self.axis = first if first == last else 0
        self.order = (*others[: self.axis], *axes, *others[self.axis :])
        self.sizes = [x.shape[i] for i in self.order]
        picked = [x.shape[a] for a in axes]
        before, behind = self.sizes[: self.axis], self.sizes[self.axis + len(axes) :]
        index_shape = broadcast_shape("getitem", *(picks[a].shape for a in axes))
        total = product(picked)
        same_device("getitem", x, *picks.values())
        self.source = x.uop.permute(self.order).reshape((*before, total, *behind))
        self.shape = (*before, *index_shape, *behind)
        self.lines = (*before, product(index_shape), *behind)
        large = any(p.dtype is dtypes.int64 for p in picks.values()) or (not isinstance(total, UOp) and total > 1 << 31)
        dtype = dtypes.int64 if large else dtypes.int32
        places = [expand_uop(picks[a].uop.cast(dtype), index_shape) for a in axes]
        self.flat = places[0]
        if len(axes) > 1:
            inside = None
            flat = None
            for place, size in zip(places, picked):
                ok = place.ge(0) & place.lt(size)
                inside = ok if inside is None else inside & ok
                flat = place if flat is None else flat * size + place
            assert inside is not None and flat is not None
            self.flat = inside.where(flat, flat.const_like(-1))

    def spread(self) -> UOp:
        """Return the flat index repeated over the other axes."""
        flat = (1,) * self.axis + (self.lines[self.axis],) + (1,) * (len(self.lines) - self.axis - 1)
        return self.flat.reshape(flat).expand(self.lines)


def _scattered(op: str, part: Indexing, plan: ParsedIndex, value: Indexing, reduce: str | None) -> UOp:
    """Return ``part`` with ``value`` written at the picked positions; of equal positions the last one wins."""
    p = _Picked(part, plan.picks)
    rows = _fitted(op, value, p.shape).reshape(p.lines)
    new = p.source.scatter(p.spread(), rows, p.axis, reduce)
    return new.reshape(tuple(p.sizes)).permute(tuple(int(i) for i in np.argsort(p.order)))


def _aligned(op: str, x: Indexing, dim: int, index: Indexing) -> tuple[int, UOp, UOp]:
    """Return the axis, the tensor sliced to the sizes of the index along the other axes, and the index with negative
    positions wrapped."""
    d = axis_and_size(op, x, dim)[0]
    if not index.dtype.is_int:
        raise DTypeError(op, f"cannot index with a tensor of {index.dtype!r}", ".cast(dtypes.int32)")
    if index.ndim != x.ndim:
        raise ShapeError(op, f"an index of shape {index.shape} for a tensor of shape {x.shape}", "equally many axes")
    for axis, (i, s) in enumerate(zip(index.shape, x.shape)):
        if axis != d and i > s:
            raise ShapeError(op,
                             f"an index of shape {index.shape} for a tensor of shape {x.shape}: axis {axis} has {i}, "
                             f"more than {s}", "an index no larger than the tensor but along dim")
    same_device(op, x, index)
    check_indices(op, index, -x.shape[d], x.shape[d])
    box = tuple((0, s) if axis == d else (0, i) for axis, (i, s) in enumerate(zip(index.shape, x.shape)))
    places = index.cast(index_dtype(index, x.shape[d]))
    wrapped = places.lt(0).where(places.add(x.shape[d]), places)
    return d, x.uop.shrink(box), wrapped.uop


def _scatter(name: str, x: T, dim: int, index: T, src: Any, op: str | None) -> T:
    shape, index, value = x.shape, operand(name, index, x), operand(name, src, x)
    x, index = as_lines(x, index)
    d, source, places = _aligned(name, x, dim, index)
    if isinstance(src, TensorBase):
        value, _ = as_lines(value, index)
        if value.ndim != index.ndim or any(i > s for i, s in zip(index.shape, value.shape)):
            raise ShapeError(name, f"an index of shape {index.shape} for values of shape {value.shape}",
                             "an index no larger than the values")
        rows = value.uop.shrink(tuple((0, i) for i in index.shape))
    else:
        rows = expand_uop(value.uop, index.shape)
    if value.dtype is not x.dtype:
        if isinstance(src, TensorBase):
            raise DTypeError(name, f"values of {value.dtype!r} for a tensor of {x.dtype!r}", f".cast({x.dtype!r})")
        rows = rows.cast(x.dtype)
    new = source.scatter(places, rows, d, op)
    rest = tuple((0, size - s) for s, size in zip(source.shape, x.shape))
    if source.shape == x.shape:
        return x._new(new).reshape(shape)
    inside = UOp.const(dtypes.bool, True).expand_to(source.shape).pad(rest)
    return x._new(inside.where(new.pad(rest), x.uop)).reshape(shape)
