"""Indexing as PyTorch has it: ints, slices, None, Ellipsis are movement; integer tensors are one GATHER; bool masks are
turned into positions at once, on the host, since the shape of the result depends on them.

An index out of range that the host knows raises; one computed reads 0 (and is dropped when written), and ``CHECKED=1``
reports it: see ``hostdata``.
"""
# mypy: disable-error-code=misc
# ``self`` is the Tensor that this class is mixed into.
from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from tinsmith.core.dtypes import dtypes
from tinsmith.core.errors import DTypeError, ShapeError
from tinsmith.ir import UOp
from tinsmith.runtime.thread_turns import writing
from tinsmith.tensor.arguments import choice, flag, integer
from tinsmith.tensor.base import TensorBase
from tinsmith.tensor.helpers import (
    as_lines,
    axis_and_size,
    axis_of,
    broadcast_shape,
    equal,
    expand_uop,
    operand,
    product,
    same_device,
)
from tinsmith.tensor.host_data import check_indices
from tinsmith.tensor.indexing.subscripts import ParsedIndex, index_dtype, taken_apart, whole_mask
from tinsmith.tensor.interop import files
from tinsmith.tensor.storage import RESHAPE, SLICE

if TYPE_CHECKING:
    from tinsmith.tensor.tensor import Tensor


def _sliced(x: Tensor, plan: ParsedIndex) -> Tensor:
    """Return the view that the slices, dropped and new axes of an index show."""
    return x._view(SLICE, tuple(plan.slices), (RESHAPE, plan.shape))


class Indexing:
    """``x[...]``, ``x[...] = v``, and gathers and scatters along one axis."""

    __slots__ = ()

    def __getitem__(self: Tensor, index: Any) -> Tensor:
        plan = taken_apart("getitem", self, index)
        x = _sliced(self, plan)
        if not plan.picks:
            return x
        picked = _Picked(x, plan.picks)
        return self._new(picked.source.gather(picked.spread(), picked.axis).reshape(picked.shape))

    def __setitem__(self: Tensor, index: Any, value: Any) -> None:
        with writing(self):
            self._set(index, value)

    def _set(self: Tensor, index: Any, value: Any) -> None:
        if files.on_disk(self._device) and any(isinstance(i, (list, np.ndarray, TensorBase)) for i in (
                index if isinstance(index, tuple) else (index,))):  # its places are computed, which no file can do
            changed = self.to("CPU")
            changed[index] = value.to("CPU") if isinstance(value, TensorBase) else value  # type: ignore[attr-defined]
            return self._write(changed.uop)
        mask = whole_mask(self, index)
        if mask is not None:
            v = operand("setitem", value, self)
            if v.ndim == 0 or v.shape == self.shape:
                self._become("setitem", mask.where(v.cast(self.dtype), self))
                return
        self._put("setitem", index, value)

    def _put(self: Tensor, op: str, index: Any, value: Any, reduce: str | None = None) -> None:
        """Assign ``value`` to ``self[index]`` in place, or combine it with the present elements by ``reduce``."""
        plan = taken_apart(op, self, index)
        part = _sliced(self, plan)
        v = operand(op, value, self).cast(self.dtype)
        if not files.on_disk(self._device):
            same_device(op, self, v)
        part._write(_scattered(op, part, plan, v, reduce) if plan.picks else _fitted(op, v, plan.shape))

    def __iter__(self: Tensor) -> Iterator[Tensor]:
        if not self.ndim:
            raise DTypeError("iter", "a 0-d tensor has no rows", ".item()")
        return iter([self[i] for i in range(len(self))])

    def __contains__(self: Tensor, value: Any) -> bool:
        return bool(self.eq(value).any().item())

    def gather(self: Tensor, dim: int, index: Tensor) -> Tensor:
        """Return ``out[i][j][k] = self[index[i][j][k]][j][k]`` for ``dim=0``, and so on; 0 where the index is out of
        range.

        >>> Tensor([[1, 2], [3, 4]]).gather(1, Tensor([[1], [0]])).tolist()
        [[2], [3]]
        """
        index = operand("gather", index, self)
        x, lines = as_lines(self, index)
        d, source, places = _aligned("gather", x, dim, lines)
        return self._new(source.gather(places, d)).reshape(index.shape)

    def scatter(self: Tensor, dim: int, index: Tensor, src: Any, reduce: str | None = None) -> Tensor:
        """Return a copy with ``self[index[i][j][k]][j][k] = src[i][j][k]`` for ``dim=0``, and so on, in order.

        Args:
            reduce: None to set, else "add" or "multiply".

        >>> Tensor([0, 0, 0]).scatter(0, Tensor([2, 0]), Tensor([5, 6])).tolist()
        [6, 0, 5]
        """
        ops = {None: None, "add": "ADD", "multiply": "MUL"}
        choice("scatter", "reduce", reduce, ops)
        return _scatter("scatter", self, dim, index, src, ops[reduce])

    def scatter_add(self: Tensor, dim: int, index: Tensor, src: Any) -> Tensor:
        """Return a copy with the elements of ``src`` added at ``index`` along an axis.

        >>> Tensor([1, 1]).scatter_add(0, Tensor([0, 0]), Tensor([5, 6])).tolist()
        [12, 1]
        """
        return _scatter("scatter_add", self, dim, index, src, "ADD")

    def scatter_reduce(self: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str,
                       include_self: bool = True) -> Tensor:
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

    def index_select(self: Tensor, dim: int, index: Tensor) -> Tensor:
        """Return the slices at ``index`` along an axis.

        >>> Tensor([[1, 2], [3, 4]]).index_select(1, Tensor([1])).tolist()
        [[2], [4]]
        """
        d = axis_of("index_select", self, dim)
        places = operand("index_select", index, self).reshape(-1)
        return self[(slice(None),) * d + (places,)] if self.ndim else self.reshape(1)[places].reshape(())

    def masked_select(self: Tensor, mask: Tensor, size: int | None = None, fill_value: float = 0) -> Tensor:
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

    def nonzero(self: Tensor, size: int | None = None, fill_value: int = 0, *, as_tuple: bool = False) -> Any:
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
        columns: list[Tensor] = []
        for width in reversed(self.shape):
            columns.insert(0, flat.mod(width))
            flat = flat.idiv(width)
        rows = columns[0].stack(*columns[1:], dim=1) if columns else flat.reshape(-1, 1)[:, :0]
        return inside.unsqueeze(1).where(rows, integer("nonzero", "fill_value", fill_value))

    def one_hot(self: Tensor, num_classes: int = -1) -> Tensor:
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


def _first_true(mask: Tensor, count: int) -> tuple[Tensor, Tensor]:
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


def _fitted(op: str, value: Tensor, shape: tuple[Any, ...]) -> UOp:
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

    def __init__(self, x: Tensor, picks: dict[int, Tensor]) -> None:
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


def _scattered(op: str, part: Tensor, plan: ParsedIndex, value: Tensor, reduce: str | None) -> UOp:
    """Return ``part`` with ``value`` written at the picked positions; of equal positions the last one wins."""
    p = _Picked(part, plan.picks)
    rows = _fitted(op, value, p.shape).reshape(p.lines)
    new = p.source.scatter(p.spread(), rows, p.axis, reduce)
    return new.reshape(tuple(p.sizes)).permute(tuple(int(i) for i in np.argsort(p.order)))


def _aligned(op: str, x: Tensor, dim: int, index: Tensor) -> tuple[int, UOp, UOp]:
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


def _scatter(name: str, x: Tensor, dim: int, index: Tensor, src: Any, op: str | None) -> Tensor:
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
