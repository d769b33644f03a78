"""Movement ops, concatenation and splitting.

Movement ops give new shapes and orders of the same elements. Nothing is computed; most results are views.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self, TypeVar

import numpy as np

from tinsmith.core.dtypes import DType, dtypes, promote
from tinsmith.core.errors import ArgumentError, AxisError, DTypeError, ShapeError
from tinsmith.ir import UOp
from tinsmith.ir.algebra.sizes import holds, normal_size, size_text, value_of_size
from tinsmith.ir.graphs import joined
from tinsmith.ir.uop import Window
from tinsmith.tensor.arguments import choice, given, integer, integers, listed, number, pairs, shown, symbolic
from tinsmith.tensor.base import TensorBase, check_tensors
from tinsmith.tensor.execution import Execution
from tinsmith.tensor.helpers import (
    as_sized,
    axes_of,
    axis_and_size,
    axis_of,
    axis_or_dim,
    check_box,
    constant,
    equal,
    one,
    product,
    same_device,
    sizes,
    symbolic_size,
)
from tinsmith.tensor.indexing.slices import box
from tinsmith.tensor.sizes.growth import compute_growing
from tinsmith.tensor.storage import DIAGONAL, EXPAND, PERMUTE, RESHAPE, SLICE

T = TypeVar("T", bound="Movement")
_MOST_EMPTY_PARTS = 1 << 16  # limit of ``chunk``: an empty axis yields as many parts as asked for, as in PyTorch


class Movement(Execution):
    """Reshape, permute, expand, pad, shrink; join and split."""

    __slots__ = ()

    # *** joining and splitting ***

    def cat(self: T | Sequence[T], *others: T, dim: int = 0) -> T:
        """Concatenate tensors along an axis. As in PyTorch, a tensor of shape (0,) can be concatenated with any others:
        it only takes part in dtype promotion.

        >>> Tensor([1, 2]).cat(Tensor([3])).tolist()
        [1, 2, 3]

        Raises:
            ShapeError: if the shapes differ in another axis than ``dim``.
        """
        if isinstance(self, (tuple, list)) and len(others) == 1 and isinstance(others[0], int):
            others, dim = (), others[0]
        parts = _listed("cat", self, others)
        first = next((t for t in parts if t.shape != (0,)), parts[0])
        if not first.ndim:
            raise ShapeError("cat", "0-d tensors have no axis to join along", "stack")
        d = axis_of("cat", first, dim)
        empty = (*first.shape[:d], 0, *first.shape[d + 1 :])
        parts = [t.reshape(empty) if t.shape == (0,) else t for t in parts]
        for n, t in enumerate(parts):
            if t.ndim != first.ndim:
                raise ShapeError("cat", f"tensor {n} has shape {t.shape}, tensor 0 has shape {first.shape}: "
                                 "the numbers of axes differ", "tensors with equally many axes")
            for axis, (a, b) in enumerate(zip(first.shape, t.shape)):
                if axis != d and not equal(a, b):
                    raise ShapeError("cat",
                                     f"tensor {n} has shape {t.shape}, tensor 0 has shape {first.shape}: they may "
                                     f"differ in axis {d} only, but axis {axis} has {size_text(b)} and {size_text(a)}",
                                     f"dim={axis}, or equal sizes")
        same_device("cat", *parts)
        compute_growing(parts)
        dtype = promote(*(t.dtype for t in parts))
        full = [as_sized(t.uop.cast(dtype), (*first.shape[:d], t.shape[d], *first.shape[d + 1 :])) for t in parts]
        return first._new(joined(full, d))

    def stack(self: T | Sequence[T], *others: T, dim: int = 0) -> T:
        """Stack tensors of equal shape along a new axis.

        >>> Tensor([1, 2]).stack(Tensor([3, 4]), dim=1).tolist()
        [[1, 3], [2, 4]]

        Raises:
            ShapeError: if the shapes differ.
        """
        if isinstance(self, (tuple, list)) and len(others) == 1 and isinstance(others[0], int):
            others, dim = (), others[0]
        parts = _listed("stack", self, others)
        for n, t in enumerate(parts):
            if len(t.shape) != len(parts[0].shape) or not all(equal(a, b) for a, b in zip(t.shape, parts[0].shape)):
                raise ShapeError("stack", f"tensor {n} has shape {t.shape}, tensor 0 has shape {parts[0].shape}",
                                 "tensors of one shape")
        d = axis_of("stack", parts[0], dim, extra=1)
        rows = [t.unsqueeze(d) for t in parts]
        return rows[0].cat(*rows[1:], dim=d)

    def split(self, sizes: int | Sequence[int], dim: int = 0) -> tuple[Self, ...]:
        """Split an axis into parts of the given size (the last one may be smaller), or of the given sizes.

        >>> [t.tolist() for t in Tensor([1, 2, 3]).split(2)]
        [[1, 2], [3]]
        """
        d, whole = axis_and_size("split", self, dim)
        total = value_of_size(whole)  # the number of parts depends on it
        lengths: list[Any]
        if isinstance(sizes, (tuple, list)):
            lengths = [symbolic_size("split", s) if isinstance(s, UOp) else
                       integer("split", "a part's size", s, least=0) for s in sizes]
        else:
            size = integer("split", "the parts' size", sizes, least=1)
            lengths = [min(size, total - b) for b in range(0, max(total, 1), size)]
        if value_of_size(sum(lengths)) != total:
            raise ShapeError("split", f"parts of sizes {tuple(lengths)} for axis {d} of {self.shape}",
                             f"sizes that sum to {total}")
        out, begin = [], 0
        for length in lengths:
            bounds = tuple((begin, begin + length) if i == d else (0, s) for i, s in enumerate(self.shape))
            out.append(self._view(SLICE, box(bounds)))
            begin += length
        return tuple(out)

    def chunk(self, chunks: int, dim: int = 0) -> list[Self]:
        """Split an axis into at most ``chunks`` parts of equal size (the last one may be smaller).

        >>> [t.tolist() for t in Tensor([1, 2, 3, 4, 5]).chunk(2)]
        [[1, 2, 3], [4, 5]]
        """
        d, whole = axis_and_size("chunk", self, dim)
        if isinstance(whole, UOp) and type(chunks) is int and chunks > 0:
            size = normal_size((whole + (chunks - 1)) // chunks)
            if holds(UOp.index((chunks - 1) * size) < whole):  # as many parts for all values that keep this
                return [_part(self, d, n * size, (n + 1) * size if n + 1 < chunks else whole) for n in range(chunks)]
        total = value_of_size(whole)
        chunks = integer("chunk", "the number of parts", chunks, 1, None if total else _MOST_EMPTY_PARTS)
        size = -(-total // chunks)
        if not size:
            return [self[:] for _ in range(chunks)]
        return list(self.split(size, d))

    def meshgrid(self: T | Sequence[T], *others: T, indexing: str = "ij") -> tuple[T, ...]:
        """Expand coordinate vectors to coordinate grids, one per vector.

        >>> [t.tolist() for t in Tensor([1, 2]).meshgrid(Tensor([3, 4]))]
        [[[1, 1], [2, 2]], [[3, 4], [3, 4]]]
        """
        choice("meshgrid", "indexing", indexing, ("ij", "xy"))
        axes = [t.reshape(-1) for t in _listed("meshgrid", self, others)]
        shape = tuple(t.shape[0] for t in axes)
        grids = [t.reshape((1,) * i + (-1,) + (1,) * (len(axes) - i - 1)).expand(shape) for i, t in enumerate(axes)]
        return tuple(g.transpose(0, 1) if indexing == "xy" and len(axes) > 1 else g for g in grids)

    # *** movement ***

    def reshape(self, *dims: Any, shape: Any = None) -> Self:
        """Change the shape; elements stay in row-major order. One size may be -1 (inferred); None keeps an axis.

        >>> Tensor([1, 2, 3, 4]).reshape(2, -1).tolist()
        [[1, 2], [3, 4]]
        """
        asked = _sizes_or_none("reshape", given("reshape", "shape", dims, shape))
        wanted = [self.shape[i] if s is None and i < self.ndim else s for i, s in enumerate(asked)]
        open_axes = [i for i, s in enumerate(wanted) if not isinstance(s, UOp) and s == -1]
        if len(open_axes) > 1:
            raise ShapeError("reshape", f"{tuple(wanted)} leaves more than one size open", "at most one -1")
        if open_axes:
            rest = product(sizes("reshape", [s for s in wanted if isinstance(s, UOp) or s != -1]))
            wanted[open_axes[0]] = _open_size(self, rest)
        new = sizes("reshape", wanted)
        total, count = self.numel(), product(new)
        if not equal(total, count):
            raise ShapeError("reshape", f"{self.shape} has {size_text(total)} elements, {asked} has {size_text(count)}",
                             "a shape with as many elements")
        return self._view(RESHAPE, new)

    def view(self, *dims: Any, shape: Any = None) -> Self:
        """Return the same as ``reshape``; with a dtype, the same as ``bitcast``.

        >>> Tensor([1, 2]).view(2, 1).shape, Tensor([1.0]).view(dtypes.int32).dtype
        ((2, 1), dtypes.int)
        """
        if len(dims) == 1 and isinstance(dims[0], DType):
            return self.bitcast(dims[0])
        return self.reshape(*given("view", "shape", dims, shape))

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Self:
        """Merge the axes ``start_dim`` to ``end_dim`` (inclusive) into one.

        >>> Tensor([[1, 2], [3, 4]]).flatten().tolist()
        [1, 2, 3, 4]
        """
        start, end = axis_of("flatten", self, start_dim), axis_of("flatten", self, end_dim)
        if start > end:
            raise AxisError("flatten", f"start_dim {start_dim} lies behind end_dim {end_dim}", "start_dim <= end_dim")
        shape = self.shape
        return self._view(RESHAPE, (*shape[:start], product(shape[start : end + 1]), *shape[end + 1 :]))

    def unflatten(self, dim: int, sizes: Sequence[int]) -> Self:
        """Split an axis into axes of the given sizes.

        >>> Tensor([1, 2, 3, 4]).unflatten(0, (2, 2)).tolist()
        [[1, 2], [3, 4]]
        """
        d = axis_of("unflatten", self, dim)
        return self.reshape(*self.shape[:d], *listed((sizes,)), *self.shape[d + 1 :])

    def squeeze(self, dim: int | Sequence[int] | None = None) -> Self:
        """Remove axes of size 1: all, or those named.

        >>> Tensor([[[1, 2]]]).squeeze().shape
        (2,)
        """
        named = axes_of("squeeze", self, dim)
        return self._view(RESHAPE, tuple(s for i, s in enumerate(self.shape) if not (i in named and one(s))))

    def unsqueeze(self, dim: int) -> Self:
        """Insert an axis of size 1 at ``dim``.

        >>> Tensor([1, 2]).unsqueeze(0).shape
        (1, 2)
        """
        d = axis_of("unsqueeze", self, dim, extra=1)
        return self._view(RESHAPE, (*self.shape[:d], 1, *self.shape[d:]))

    def permute(self, *axes: Any, order: Any = None) -> Self:
        """Reorder the axes.

        >>> Tensor([[1, 2, 3]]).permute(1, 0).shape
        (3, 1)
        """
        asked = listed(given("permute", "order", axes, order))
        axes = tuple(axis_of("permute", self, a) for a in asked)
        if sorted(axes) != list(range(self.ndim)):
            raise AxisError("permute", f"order {asked} does not name each of the {self.ndim} axes of {self.shape} once",
                            "every axis once")
        return self._view(PERMUTE, axes)

    def transpose(self, dim0: int = 1, dim1: int = 0) -> Self:
        """Exchange two axes.

        >>> Tensor([[1, 2], [3, 4]]).transpose().tolist()
        [[1, 3], [2, 4]]
        """
        order = list(range(self.ndim))
        a, b = axis_of("transpose", self, dim0), axis_of("transpose", self, dim1)
        if order:
            order[a], order[b] = order[b], order[a]
        return self._view(PERMUTE, tuple(order))

    @property
    def T(self) -> Self:
        """The tensor with its axes in reverse order.

        >>> Tensor([[1, 2, 3]]).T.shape
        (3, 1)
        """
        return self._view(PERMUTE, tuple(reversed(range(self.ndim))))

    def flip(self, axis: int | Sequence[int] = (), *more: int,
             dims: int | Sequence[int] | None = None) -> Self:
        """Reverse axes (PyTorch's name for ``axis`` is ``dims``). A copy, as in PyTorch; ``x[::-1]`` is a view.

        >>> Tensor([1, 2, 3]).flip(0).tolist()
        [3, 2, 1]
        """
        first = axis_or_dim("flip", axis, dims, ())
        asked = (*first, *more) if isinstance(first, (tuple, list)) else (first, *more)
        axes = axes_of("flip", self, asked)
        return self._new(self.uop.flip(axes))

    def expand(self, *dims: Any, shape: Any = None) -> Self:
        """Repeat axes of size 1 as a view; -1 or None keeps a size, new axes are added in front.

        >>> Tensor([[1], [2]]).expand(2, 3).tolist()
        [[1, 1, 1], [2, 2, 2]]
        """
        wanted = _sizes_or_none("expand", given("expand", "shape", dims, shape))
        extra = len(wanted) - self.ndim
        if extra < 0:
            raise ShapeError("expand", f"{self.shape} has more axes than {wanted}", "as many axes or more")
        old = (1,) * extra + self.shape
        new = sizes("expand",
                    [o if n is None or (not isinstance(n, UOp) and n == -1) else n for o, n in zip(old, wanted)])
        return self._broadcast_to(new, "expand")

    def _broadcast_to(self, shape: tuple[Any, ...], op: str = "broadcast_to") -> Self:
        extra = len(shape) - self.ndim
        old = (1,) * extra + self.shape
        for axis, (a, b) in enumerate(zip(old, shape)):
            if extra < 0 or not (equal(a, b) or one(a)):
                raise ShapeError(op, f"{self.shape} does not expand to {shape}: axis {axis} has {size_text(a)}, not 1 "
                                 f"or {size_text(b)}", "only axes of size 1 can be repeated; repeat() copies others")
        if extra < 0:
            raise ShapeError(op, f"{self.shape} has more axes than {shape}", "a sum over the axes that are too many")
        x = self._view(RESHAPE, old) if extra else self
        own = tuple(a if one(a) else b for a, b in zip(old, shape))  # equal sizes, in ``shape``'s symbolic form
        x = x if x.shape == own else x._view(SLICE, box(tuple((0, s) for s in own)))
        return x._view(EXPAND, shape)

    def broadcast_to(self, *shape: Any) -> Self:
        """Expand to ``shape`` by the broadcasting rules.

        >>> Tensor([1, 2]).broadcast_to((2, 2)).tolist()
        [[1, 2], [1, 2]]
        """
        return self._broadcast_to(sizes("broadcast_to", shape))

    def expand_as(self, other: Self) -> Self:
        """Expand to the shape of ``other``.

        >>> Tensor([[1], [2]]).expand_as(Tensor([[1, 2], [3, 4]])).shape
        (2, 2)
        """
        check_tensors("expand_as", [other])
        return self.expand(other.shape)

    def shrink(self, bounds: Sequence[Any]) -> Self:
        """Slice each axis to its (begin, end); None keeps an axis.

        >>> Tensor([1, 2, 3, 4]).shrink(((1, 3),)).tolist()
        [2, 3]
        """
        ranges = pairs("shrink", "a range", bounds, self.shape)
        full = tuple((0, s) if r is None else (normal_size(r[0]), normal_size(r[1]))
                     for r, s in zip(ranges, self.shape))
        for axis, ((b, e), s) in enumerate(zip(full, self.shape)):
            if any(isinstance(v, UOp) for v in (b, e, s)):
                check_box("shrink", axis, b, e, s)
            elif not 0 <= b <= e <= s:
                raise ShapeError("shrink", f"({b}, {e}) is no part of axis {axis} with size {s}",
                                 "0 <= begin <= end <= size")
        return self._view(SLICE, box(full))

    def shrink_to(self, *dims: Any, shape: Any = None) -> Self:
        """Slice each axis to its first elements, up to the new size; None keeps an axis.

        >>> Tensor([[1, 2, 3], [4, 5, 6]]).shrink_to(1, 2).tolist()
        [[1, 2]]
        """
        wanted = self._new_sizes("shrink_to", given("shrink_to", "shape", dims, shape))
        return self.shrink([(0, s) for s in wanted])

    def pad_to(self, *dims: Any, shape: Any = None, value: float = 0) -> Self:
        """Pad each axis with ``value`` at its end up to the new size; None keeps an axis.

        >>> Tensor([1, 2]).pad_to(4).tolist()
        [1, 2, 0, 0]

        Raises:
            ShapeError: if an axis is longer than its new size.
        """
        wanted = self._new_sizes("pad_to", given("pad_to", "shape", dims, shape))
        for axis, (old, new) in enumerate(zip(self.shape, wanted)):
            if normal_size(new - old) < 0:
                raise ShapeError("pad_to", f"axis {axis} of shape {self.shape} is longer than {size_text(new)}",
                                 "shrink_to, or a greater size")
        return self.pad([(0, normal_size(new - old)) for old, new in zip(self.shape, wanted)], value=value)

    def _new_sizes(self, op: str, values: Sequence[Any]) -> tuple[Any, ...]:
        """Return one size per axis, with None replaced by the axis's own size."""
        asked = _sizes_or_none(op, values)
        if len(asked) != self.ndim:
            raise ShapeError(op, f"{len(asked)} sizes for the {self.ndim} axes of {self.shape}", "one size per axis")
        return sizes(op, [own if s is None else s for own, s in zip(self.shape, asked)])

    def pad(self, padding: Sequence[Any], mode: str = "constant", value: float | None = 0.0) -> Self:
        """Pad axes before and after; negative amounts slice.

        Args:
            padding: one (before, after) or None per axis, or PyTorch's flat form, which starts at the last axis.
            mode: "constant" (with ``value``), or "reflect", "replicate", "circular" for the tensor's own values.

        >>> Tensor([1, 2]).pad(((1, 2),), value=9).tolist()
        [9, 1, 2, 9, 9]
        """
        amounts = _amounts(self, padding)
        if choice("pad", "mode", mode, ("constant", "reflect", "replicate", "circular")) != "constant":
            return self._pad_with_own(amounts, mode)
        value = number("pad", "value", 0.0 if value is None else value)
        cut = self.shrink([(max(-b, 0), s - max(-e, 0)) if b < 0 or e < 0 else None
                           for (b, e), s in zip(amounts, self.shape)])
        grown = tuple((max(b, 0), max(e, 0)) for b, e in amounts)
        padded = cut.uop.pad(grown)
        if value == 0 or padded is cut.uop:
            return self._new(padded)
        inside = UOp.const(dtypes.bool, True).expand_to(cut.shape).pad(grown)
        return self._new(inside.where(padded, constant("pad", value, self.dtype).expand_to(padded.shape)))

    def _pad_with_own(self, amounts: tuple[tuple[Any, Any], ...], mode: str) -> Self:
        out = self._copy()
        for axis, (before, after) in enumerate(amounts):
            if mode == "circular" and (before < 0 or after < 0):  # sliced elements must not wrap around
                out = _part(out, axis, max(-before, 0), out.shape[axis] - max(-after, 0))
                before, after = max(before, 0), max(after, 0)
            size = out.shape[axis]
            if before == 0 and after == 0:
                continue
            limit = {"reflect": size - 1, "replicate": 1 << 62 if size else 0, "circular": size}[mode]
            if max(before, after) > limit:
                raise ShapeError("pad", f"{mode} padding {(before, after)} is too much for axis {axis} of size {size}",
                                 f"at most {limit}")
            out = _grown(out, axis, max(before, 0), max(after, 0), mode)
            if before < 0 or after < 0:
                out = _part(out, axis, max(-before, 0), out.shape[axis] - max(-after, 0))
        return out

    def repeat(self, *repeats: Any) -> Self:
        """Repeat the tensor along each axis the given number of times.

        >>> Tensor([1, 2]).repeat(2, 2).tolist()
        [[1, 2, 1, 2], [1, 2, 1, 2]]
        """
        times = sizes("repeat", repeats)
        if len(times) < self.ndim:
            raise ShapeError("repeat", f"{len(times)} numbers for the {self.ndim} axes of {self.shape}", "one per axis")
        base = (1,) * (len(times) - self.ndim) + self.shape
        apart = tuple(v for s in base for v in (1, s))
        wide = tuple(v for r, s in zip(times, base) for v in (r, s))
        x = self.uop.reshape(apart).expand(wide)
        return self._new(x.reshape(tuple(r * s for r, s in zip(times, base))))

    def repeat_interleave(self, repeats: int | Self | Sequence[int], dim: int | None = None, *,
                          output_size: int | None = None) -> Self:
        """Repeat each element along an axis, or of the flat tensor; a list or tensor of repeats is read at once.

        >>> Tensor([1, 2]).repeat_interleave(2).tolist()
        [1, 1, 2, 2]
        """
        x, d = (self.flatten(), 0) if dim is None else (self, axis_and_size("repeat_interleave", self, dim)[0])
        if isinstance(repeats, (TensorBase, list, tuple)) and (each := _numbers(repeats)) is not None:
            if len(each) != x.shape[d]:
                raise ShapeError("repeat_interleave", f"{len(each)} repeats for {x.shape[d]} elements", "one for each")
            return x.index_select(d, type(self)(np.repeat(np.arange(len(each), dtype=np.int32), each),
                                                device=self.device))
        if not isinstance(repeats, UOp):
            repeats = integer("repeat_interleave", "repeats", repeats, least=0)
        shape = x.shape
        wide = x.uop.reshape((*shape[: d + 1], 1, *shape[d + 1 :])).expand((*shape[: d + 1], repeats, *shape[d + 1 :]))
        return self._new(wide.reshape((*shape[:d], shape[d] * repeats, *shape[d + 1 :])))

    def roll(self, shifts: int | Sequence[int], dims: int | Sequence[int] | None = None) -> Self:
        """Shift elements along axes; elements that leave at the end re-enter at the front.

        >>> Tensor([1, 2, 3, 4]).roll(1).tolist()
        [4, 1, 2, 3]
        """
        if dims is None:
            return self.flatten().roll(shifts, 0).reshape(self.shape)
        by, along = integers("roll", "a shift", shifts), integers("roll", "an axis", dims)
        if len(by) != len(along):
            raise ArgumentError("roll", f"{len(by)} shifts for {len(along)} axes", "one shift per axis")
        out = self._copy()
        for shift, dim in zip(by, along):
            d, size = axis_and_size("roll", self, dim)
            if isinstance(size, UOp) and not holds(UOp.index(abs(shift)) < size):
                size = value_of_size(size)
            cut = (-shift if shift <= 0 else size - shift) if isinstance(size, UOp) else -shift % size if size else 0
            if isinstance(cut, UOp) or cut:
                out = _part(out, d, cut, size).cat(_part(out, d, 0, cut), dim=d)
        return out

    def unfold(self, dim: int, size: int, step: int) -> Self:
        """Sliding windows of ``size`` along an axis, ``step`` apart, as a new last axis.

        >>> Tensor([1, 2, 3, 4]).unfold(0, 2, 1).tolist()
        [[1, 2], [2, 3], [3, 4]]
        """
        if not self.ndim:
            return self.reshape(1).unfold(dim, size, step).reshape(-1)
        d, whole = axis_and_size("unfold", self, dim)
        size, step = integer("unfold", "size", size, 0, whole), integer("unfold", "step", step, 1)
        count = (whole - size) // step + 1
        wide = self.uop.reshape((*self.shape, 1)).expand((*self.shape, size))
        return self._new(wide.window(Window(d, self.ndim, step, 1, whole, count)))

    def diagonal(self, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Self:
        """Return the diagonal of two axes as the last axis; a positive ``offset`` selects a diagonal above the main
        one.

        >>> Tensor([[1, 2], [3, 4]]).diagonal().tolist()
        [1, 4]
        """
        a, b = axis_of("diagonal", self, dim1), axis_of("diagonal", self, dim2)
        offset = integer("diagonal", "offset", offset)
        if a == b or self.ndim < 2:
            raise AxisError("diagonal", f"axes {dim1} and {dim2} of shape {self.shape} are no pair",
                            "two different axes")
        x = self.permute(*[i for i in range(self.ndim) if i not in (a, b)], a, b)
        rows, columns = x.shape[-2:]
        down, right = max(-offset, 0), max(offset, 0)
        n = max(min(rows - down, columns - right), 0)
        if n == 0:
            return x[..., :0, :0]._view(RESHAPE, (*x.shape[:-2], 0))
        return x[..., down : down + n, right : right + n]._view(DIAGONAL, n)

    def diag(self, diagonal: int = 0) -> Self:
        """Return a matrix with this vector on a diagonal; for a matrix, a copy of its diagonal.

        >>> Tensor([1, 2]).diag().tolist(), Tensor([[1, 2], [3, 4]]).diag().tolist()
        ([[1, 0], [0, 2]], [1, 4])
        """
        if self.ndim == 2:
            return self.diagonal(diagonal)._copy()
        if self.ndim != 1:
            raise ShapeError("diag", f"takes a vector or a matrix, got shape {self.shape}",
                             ".diagonal() or .diag_embed() for batches")
        return self.diag_embed(diagonal)


def _listed(op: str, first: T | Sequence[T], others: Sequence[T]) -> list[T]:
    """Return the tensors of ``a.cat(b, c)``, ``Tensor.cat(a, b, c)`` or ``Tensor.cat([a, b, c])`` as a list."""
    parts: list[Any] = [*first, *others] if isinstance(first, (tuple, list)) else [first, *others]
    if len(parts) > 1 and len(others) == 1 and isinstance(others[0], (tuple, list)):
        parts = [first, *others[0]]
    if not parts:
        raise ArgumentError(op, "no tensors given", "at least one")
    check_tensors(op, parts)
    return parts


def _numbers(repeats: Any) -> list[int] | None:
    """Return the number of repeats per element; None if one number is given for all."""
    found = repeats.tolist() if isinstance(repeats, TensorBase) else list(repeats)
    return [integer("repeat_interleave", "repeats", n, least=0) for n in found] if isinstance(found, list) else None


def _open_size(x: Movement, rest: Any) -> Any:
    """Return the size to infer for -1 if the other sizes have the product ``rest``; 0 if no size fits."""
    total = x.numel()
    if not isinstance(rest, UOp) and not isinstance(total, UOp):
        return total // rest if rest and total % rest == 0 else 0
    found = normal_size(UOp.index(total) // rest) if not one(rest) else total
    if not equal(found * rest, total):
        raise ShapeError("reshape", f"{size_text(total)} elements are not divisible by {size_text(rest)}",
                         "sizes that divide them")
    return found


def _sizes_or_none(op: str, values: Sequence[Any]) -> tuple[Any, ...]:
    """Return a shape in which None and -1 are sizes to be inferred."""
    return tuple(None if s is None else symbolic(op, "a size", s) for s in listed(values))


def _amounts(x: Movement, padding: Sequence[Any]) -> tuple[tuple[Any, Any], ...]:
    """Return one (before, after) per axis from either form of ``padding``."""
    if not isinstance(padding, (tuple, list)):
        raise DTypeError("pad", f"padding must be a sequence, got {shown(padding)}", "pad(((1, 1), (0, 2)))")
    if not padding or any(p is None or isinstance(p, (tuple, list)) for p in padding):
        return tuple((0, 0) if p is None else p for p in pairs("pad", "padding", padding, x.shape))
    flat = [symbolic("pad", "padding", p) for p in padding]
    if len(flat) % 2 or len(flat) // 2 > x.ndim:
        raise ShapeError("pad", f"{len(flat)} numbers for the {x.ndim} axes of {x.shape}",
                         "two for each axis, last first")
    found = [(flat[i], flat[i + 1]) for i in range(0, len(flat), 2)]
    return tuple([(0, 0)] * (x.ndim - len(found)) + found[::-1])


def _part(x: T, axis: int, begin: Any, end: Any) -> T:
    """Return the elements ``begin`` to ``end`` of an axis."""
    return x.shrink([None] * axis + [(begin, end)] + [None] * (x.ndim - axis - 1))


def _grown(x: T, axis: int, before: Any, after: Any, mode: str) -> T:
    """Extend an axis by copies of its own elements; each part of the result is a view of ``x``."""
    size = x.shape[axis]
    if mode == "reflect":
        front, back = (_part(x, axis, 1, 1 + before).flip(axis), _part(x, axis, size - 1 - after, size - 1).flip(axis))
    elif mode == "circular":
        front, back = _part(x, axis, size - before, size), _part(x, axis, 0, after)
    else:
        front, back = (_part(x, axis, at, at + 1).expand(*x.shape[:axis], count, *x.shape[axis + 1 :]) if count else x
                       for at, count in ((0, before), (size - 1, after)))
    parts = [front] * (before != 0) + [x] + [back] * (after != 0)
    return parts[0].cat(*parts[1:], dim=axis) if len(parts) > 1 else x
