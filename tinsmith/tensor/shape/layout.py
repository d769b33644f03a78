"""PyTorch's names for moving, splitting, selecting and joining axes, and ``rearrange``.

Views in PyTorch are views here. ``rearrange`` splits, reorders and merges axes by a formula in the notation of einops.
"""
from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import Any, Self, TypeVar

from tinsmith.backend.device import DeviceName
from tinsmith.core.dtypes import DTypeLike, dtypes
from tinsmith.core.errors import ArgumentError, AxisError, ShapeError
from tinsmith.ir import UOp
from tinsmith.ir.algebra.sizes import value_of_size
from tinsmith.tensor.arguments import integer, integers, listed, size, symbolic
from tinsmith.tensor.base import TensorBase, check_tensors
from tinsmith.tensor.helpers import axis_and_size, axis_of, broadcast_shape, one, operand, product
from tinsmith.tensor.indexing.subscripts import from_front
from tinsmith.tensor.shape.movement import Movement, _listed

T = TypeVar("T", bound="Layout")


class Layout(Movement):
    """Methods that rearrange, select and repeat axes, composed of movement operations."""

    __slots__ = ()

    # *** axes ***

    def movedim(self, source: int | Sequence[int], destination: int | Sequence[int]) -> Self:
        """Move axes to other positions; the other axes keep their order.

        >>> Tensor.ones(2, 3, 4).movedim(0, -1).shape
        (3, 4, 2)
        """
        froms = [axis_of("movedim", self, a) for a in integers("movedim", "source", source)]
        places = [axis_of("movedim", self, a) for a in integers("movedim", "destination", destination)]
        if len(froms) != len(places) or len(set(froms)) != len(froms) or len(set(places)) != len(places):
            raise AxisError("movedim", f"from {source} to {destination} of shape {self.shape}", "each axis once")
        rest = iter(a for a in range(self.ndim) if a not in froms)
        there = dict(zip(places, froms))
        return self.permute(*[there[i] if i in there else next(rest) for i in range(self.ndim)])

    def swapaxes(self, axis0: int, axis1: int) -> Self:
        """Exchange two axes (the same as ``transpose``).

        >>> Tensor([[1, 2]]).swapaxes(0, 1).tolist()
        [[1], [2]]
        """
        return self.transpose(axis0, axis1)

    def t(self) -> Self:
        """Transpose a matrix; a vector is returned unchanged.

        >>> Tensor([[1, 2]]).t().tolist()
        [[1], [2]]
        """
        if self.ndim > 2:
            raise ShapeError("t", f"takes at most two axes, got shape {self.shape}", ".transpose(-1, -2) or .mT")
        return self.transpose() if self.ndim == 2 else self[...]

    @property
    def mT(self) -> Self:
        """The last two axes transposed.

        >>> Tensor([[[1, 2]]]).mT.shape
        (1, 2, 1)
        """
        return self.transpose(-1, -2)

    def adjoint(self) -> Self:
        """Return the last two axes transposed (there are no complex numbers to conjugate).

        >>> Tensor([[1, 2]]).adjoint().tolist()
        [[1], [2]]
        """
        return self.transpose(-1, -2)

    @property
    def mH(self) -> Self:
        """The last two axes transposed (there are no complex numbers to conjugate).

        >>> Tensor([[1, 2]]).mH.shape
        (2, 1)
        """
        return self.transpose(-1, -2)

    @property
    def H(self) -> Self:
        """A matrix transposed.

        >>> Tensor([[1, 2]]).H.shape
        (2, 1)
        """
        return self.t()

    def select(self, dim: int, index: int) -> Self:
        """Return the slice at ``index`` along ``dim``, without that axis.

        >>> Tensor([[1, 2], [3, 4]]).select(1, 0).tolist()
        [1, 3]
        """
        return self[(slice(None),) * axis_and_size("select", self, dim)[0] + (symbolic("select", "index", index),)]

    def narrow(self, dim: int, start: int, length: int) -> Self:
        """Return the elements ``start`` to ``start + length`` along ``dim``.

        >>> Tensor([1, 2, 3, 4]).narrow(0, 1, 2).tolist()
        [2, 3]
        """
        d, size = axis_and_size("narrow", self, dim)
        if not isinstance(start, UOp):
            start = integer("narrow", "start", start, -value_of_size(size), value_of_size(size))
        start = from_front(start, size)
        length = length if isinstance(length, UOp) else integer("narrow", "length", length, least=0)
        return self.shrink([None] * d + [(start, start + length)] + [None] * (self.ndim - d - 1))

    def unbind(self, dim: int = 0) -> tuple[Self, ...]:
        """Return the slices along ``dim`` as a tuple, without that axis.

        >>> [t.tolist() for t in Tensor([[1, 2], [3, 4]]).unbind(1)]
        [[1, 3], [2, 4]]
        """
        d, size = axis_and_size("unbind", self, dim)
        return tuple(self.select(d, i) for i in range(value_of_size(size)))

    def tensor_split(self, indices_or_sections: int | Sequence[int] | Self,
                     dim: int = 0) -> tuple[Self, ...]:
        """Split an axis into n parts of nearly equal size, the longer ones first, or at the given indices.

        >>> [t.tolist() for t in Tensor([1, 2, 3]).tensor_split(2)], len(Tensor([1, 2, 3]).tensor_split((1, 2)))
        ([[1, 2], [3]], 3)
        """
        if isinstance(indices_or_sections, TensorBase):
            indices_or_sections = indices_or_sections.tolist()
        d, whole = axis_and_size("tensor_split", self, dim)
        total = value_of_size(whole)
        if isinstance(indices_or_sections, (tuple, list)):
            places = [min(max(i + total if i < 0 else i, 0), total)
                      for i in integers("tensor_split", "indices", indices_or_sections)]
        else:
            count = integer("tensor_split", "sections", indices_or_sections, least=1)
            ends = itertools.accumulate(total // count + (i < total % count) for i in range(count))
            places = list(ends)[:-1]
        return tuple(self.narrow(d, a, max(b - a, 0)) for a, b in zip([0, *places], [*places, total]))

    def hsplit(self, indices_or_sections: int | Sequence[int]) -> tuple[Self, ...]:
        """Return ``tensor_split`` along the second axis; a vector is split along its only axis.

        >>> [t.tolist() for t in Tensor([[1, 2]]).hsplit(2)]
        [[[1]], [[2]]]
        """
        return self._split_evenly("hsplit", indices_or_sections, 0 if self.ndim == 1 else 1)

    def vsplit(self, indices_or_sections: int | Sequence[int]) -> tuple[Self, ...]:
        """Return ``tensor_split`` along the first axis; takes at least two axes.

        >>> [t.tolist() for t in Tensor([[1], [2]]).vsplit(2)]
        [[[1]], [[2]]]
        """
        return self._split_evenly("vsplit", indices_or_sections, 0, 2)

    def dsplit(self, indices_or_sections: int | Sequence[int]) -> tuple[Self, ...]:
        """Return ``tensor_split`` along the third axis.

        >>> [t.tolist() for t in Tensor([[[1, 2]]]).dsplit(2)]
        [[[[1]]], [[[2]]]]
        """
        return self._split_evenly("dsplit", indices_or_sections, 2, 3)

    def _split_evenly(self, op: str, parts: int | Sequence[int], axis: int,
                      least: int = 1) -> tuple[Self, ...]:
        if self.ndim < max(least, axis + 1):
            raise ShapeError(op, f"shape {self.shape} has too few axes", f"at least {max(least, axis + 1)}")
        if isinstance(parts, int) and (parts < 1 or value_of_size(self.shape[axis]) % parts):
            raise ShapeError(op, f"axis {axis} of shape {self.shape} into {parts} equal parts", "tensor_split")
        return self.tensor_split(parts, axis)

    def split_with_sizes(self, split_sizes: Sequence[int], dim: int = 0) -> tuple[Self, ...]:
        """Split an axis into parts of the given sizes (the same as ``split``).

        >>> [t.tolist() for t in Tensor([1, 2, 3]).split_with_sizes([1, 2])]
        [[1], [2, 3]]
        """
        return self.split(split_sizes, dim)

    def tile(self, *dims: Any) -> Self:
        """Return ``repeat`` that accepts fewer repeats than axes: they apply to the last axes.

        >>> Tensor([[1], [2]]).tile(2).tolist()
        [[1, 1], [2, 2]]
        """
        times = listed(dims)
        return self.repeat(*(1,) * (self.ndim - len(times)), *times)

    def fliplr(self) -> Self:
        """Reverse the second axis.

        >>> Tensor([[1, 2]]).fliplr().tolist()
        [[2, 1]]
        """
        return self.flip(1)

    def flipud(self) -> Self:
        """Reverse the first axis.

        >>> Tensor([1, 2]).flipud().tolist()
        [2, 1]
        """
        return self.flip(0)

    def rot90(self, k: int = 1, dims: Sequence[int] = (0, 1)) -> Self:
        """Rotate by ``k`` quarter turns in the plane of two axes, from the first towards the second.

        >>> Tensor([[1, 2], [3, 4]]).rot90().tolist()
        [[2, 4], [1, 3]]
        """
        a, b = (axis_of("rot90", self, d) for d in integers("rot90", "dims", tuple(dims), 2))
        if a == b or self.ndim < 2:
            raise AxisError("rot90", f"axes {tuple(dims)} of shape {self.shape} span no plane", "two different axes")
        k = integer("rot90", "k", k) % 4
        if k % 2 == 0:
            return self.flip((a, b)) if k else self._copy()
        return self.flip(b).transpose(a, b) if k == 1 else self.transpose(a, b).flip(b)

    def ravel(self) -> Self:
        """Flatten to one axis.

        >>> Tensor([[1, 2], [3, 4]]).ravel().tolist()
        [1, 2, 3, 4]
        """
        return self.reshape(-1)

    def reshape_as(self, other: Self) -> Self:
        """Reshape to the shape of ``other``.

        >>> Tensor([1, 2]).reshape_as(Tensor([[0], [0]])).shape
        (2, 1)
        """
        check_tensors("reshape_as", [other])
        return self.reshape(other.shape)

    def sum_to_size(self, *size: Any) -> Self:
        """Sum to a shape that broadcasts to this one.

        >>> Tensor([[1, 2], [3, 4]]).sum_to_size(1, 2).tolist()
        [[4, 6]]
        """
        wanted = listed(size)
        extra = self.ndim - len(wanted)
        axes = [i for i, s in enumerate(self.shape) if i < extra or (one(wanted[i - extra]) and not one(s))]
        if extra < 0 or broadcast_shape("sum_to_size", self.shape, tuple(wanted)) != self.shape:
            raise ShapeError("sum_to_size", f"shape {tuple(wanted)} does not broadcast to {self.shape}",
                             "a shape that does")
        if not wanted:
            return self.sum()  # also for 0-d, so that a bool is summed to an integer as in PyTorch
        return self.sum(axes, keepdim=True).reshape(wanted) if axes else self._copy()

    def diag_embed(self, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Self:
        """Matrices with the rows of the last axis on a diagonal: ``[…, N] → […, N, N]`` for offset 0.

        >>> Tensor([1, 2]).diag_embed().tolist()
        [[1, 0], [0, 2]]
        """
        offset = integer("diag_embed", "offset", offset)
        if not self.ndim:
            raise ShapeError("diag_embed", "a 0-d tensor has no diagonal", ".reshape(1)")
        a, b = (axis_of("diag_embed", self.unsqueeze(0), d) for d in (dim1, dim2))
        if a == b:
            raise AxisError("diag_embed", f"axes {dim1} and {dim2} are one", "two different axes")
        if a > b:  # an upper diagonal of (a, b) is a lower diagonal of (b, a)
            offset = -offset
        n = self.shape[-1]
        below, right = max(-offset, 0), max(offset, 0)
        places = self._new(UOp.iota(n))
        inside = places.unsqueeze(-1).eq(places)
        rows = inside.where(self.unsqueeze(-1), self._zeros())
        rows = rows.pad((None,) * (self.ndim - 1) + ((below, right), (right, below)))
        return rows.movedim((-2, -1), (min(a, b), max(a, b)))

    def diagflat(self, offset: int = 0) -> Self:
        """Return a matrix with all elements of the flat tensor on a diagonal.

        >>> Tensor([[1], [2]]).diagflat().tolist()
        [[1, 0], [0, 2]]
        """
        return self.reshape(-1).diag_embed(offset)

    def atleast_1d(self) -> Self:
        """Add axes until there is at least one.

        >>> Tensor(1).atleast_1d().shape
        (1,)
        """
        return self.reshape(1) if not self.ndim else self

    def atleast_2d(self) -> Self:
        """Add axes until there are at least two: a vector becomes a row.

        >>> Tensor([1, 2]).atleast_2d().shape
        (1, 2)
        """
        return self.atleast_1d().unsqueeze(0) if self.ndim < 2 else self

    def atleast_3d(self) -> Self:
        """Add axes until there are at least three; the third one is added at the end.

        >>> Tensor([1, 2]).atleast_3d().shape
        (1, 2, 1)
        """
        return self.atleast_2d().unsqueeze(-1) if self.ndim < 3 else self

    def hstack(self: T | Sequence[T], *others: T) -> T:
        """Concatenate along the second axis; vectors along their only axis.

        >>> Tensor.hstack(Tensor([1, 2]), Tensor([3])).tolist()
        [1, 2, 3]
        """
        parts = [t.atleast_1d() for t in _listed("hstack", self, others)]
        return parts[0].cat(*parts[1:], dim=0 if parts[0].ndim == 1 else 1)

    def vstack(self: T | Sequence[T], *others: T) -> T:
        """Concatenate along the first axis; vectors count as rows.

        >>> Tensor.vstack(Tensor([1, 2]), Tensor([3, 4])).tolist()
        [[1, 2], [3, 4]]
        """
        parts = [t.atleast_2d() for t in _listed("vstack", self, others)]
        return parts[0].cat(*parts[1:], dim=0)

    def dstack(self: T | Sequence[T], *others: T) -> T:
        """Concatenate along the third axis.

        >>> Tensor.dstack(Tensor([1, 2]), Tensor([3, 4])).tolist()
        [[[1, 3], [2, 4]]]
        """
        parts = [t.atleast_3d() for t in _listed("dstack", self, others)]
        return parts[0].cat(*parts[1:], dim=2)

    def column_stack(self: T | Sequence[T], *others: T) -> T:
        """Concatenate along the second axis; vectors count as columns.

        >>> Tensor.column_stack(Tensor([1, 2]), Tensor([3, 4])).tolist()
        [[1, 3], [2, 4]]
        """
        parts = [t.reshape(-1, 1) if t.ndim < 2 else t for t in _listed("column_stack", self, others)]
        return parts[0].cat(*parts[1:], dim=1)

    def block_diag(self: T | Sequence[T], *others: T) -> T:
        """Return the block-diagonal matrix of the given matrices.

        >>> Tensor.block_diag(Tensor([[1]]), Tensor([[2, 3]])).tolist()
        [[1, 0, 0], [0, 2, 3]]
        """
        parts = [t.atleast_2d() for t in _listed("block_diag", self, others)]
        width, before, rows = sum(t.shape[1] for t in parts), 0, []
        for t in parts:
            rows.append(t.pad((None, (before, width - before - t.shape[1]))))
            before += t.shape[1]
        return rows[0].cat(*rows[1:], dim=0)

    def broadcast_tensors(self: T | Sequence[T], *others: T) -> tuple[T, ...]:
        """Expand tensors to their common broadcast shape.

        >>> [t.shape for t in Tensor.broadcast_tensors(Tensor([1, 2]), Tensor([[3]]))]
        [(1, 2), (1, 2)]
        """
        parts = _listed("broadcast_tensors", self, others)
        shape = broadcast_shape("broadcast_tensors", *(t.shape for t in parts))
        return tuple(t.broadcast_to(shape) for t in parts)

    def cartesian_prod(self: T | Sequence[T], *others: T) -> T:
        """The Cartesian product of vectors: one row per combination.

        >>> Tensor.cartesian_prod(Tensor([1, 2]), Tensor([3, 4])).tolist()
        [[1, 3], [1, 4], [2, 3], [2, 4]]
        """
        parts = _listed("cartesian_prod", self, others)
        if len(parts) == 1:
            return parts[0]
        grids = [g.reshape(-1) for g in parts[0].meshgrid(*parts[1:])]
        return grids[0].stack(*grids[1:], dim=1)

    def combinations(self, r: int = 2, with_replacement: bool = False) -> Self:
        """Return the combinations of ``r`` elements of a vector, one per row, in ``itertools`` order.

        >>> Tensor([1, 2, 3]).combinations().tolist()
        [[1, 2], [1, 3], [2, 3]]
        """
        if self.ndim != 1:
            raise ShapeError("combinations", f"takes a vector, got shape {self.shape}", ".flatten()")
        choose = itertools.combinations_with_replacement if with_replacement else itertools.combinations
        rows = list(choose(range(self.shape[0]), integer("combinations", "r", r, least=0)))
        if not rows or not rows[0]:
            return self[:0] if not r else self[:0].reshape(0, r)
        return self[type(self)(rows, device=self.device, requires_grad=False)]

    # *** copies with a part replaced ***

    def select_scatter(self, src: Self, dim: int, index: int) -> Self:
        """Return a copy with the slice at ``index`` along ``dim`` replaced by ``src``.

        >>> Tensor([[1, 2], [3, 4]]).select_scatter(Tensor([8, 9]), 0, 1).tolist()
        [[1, 2], [8, 9]]
        """
        d, size = axis_and_size("select_scatter", self, dim)
        index = integer("select_scatter", "index", index, -size, size - 1) % size
        return self._with_part("select_scatter", src, (slice(None),) * d + (index,))

    def slice_scatter(self, src: Self, dim: int = 0, start: int | None = None, end: int | None = None,
                      step: int = 1) -> Self:
        """Return a copy with a slice along ``dim`` replaced by ``src``.

        >>> Tensor([1, 2, 3]).slice_scatter(Tensor([9]), 0, 1, 2).tolist()
        [1, 9, 3]
        """
        d = axis_and_size("slice_scatter", self, dim)[0]
        return self._with_part("slice_scatter", src, (slice(None),) * d + (slice(start, end, step),))

    def diagonal_scatter(self, src: Self, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Self:
        """Return a copy with a diagonal replaced by ``src``.

        >>> Tensor([[1, 2], [3, 4]]).diagonal_scatter(Tensor([8, 9])).tolist()
        [[8, 2], [3, 9]]
        """
        check_tensors("diagonal_scatter", [src])
        out = self.clone()
        out.diagonal(offset, dim1, dim2).assign(src.cast(self.dtype))
        return out

    def _with_part(self, op: str, src: Self, index: tuple[Any, ...]) -> Self:
        out = self.clone()
        part = out[index]
        value = operand(op, src, self)
        if value.shape != part.shape:
            raise ShapeError(op, f"a part of shape {part.shape} from shape {value.shape}", "equal shapes")
        part.assign(value.cast(self.dtype))
        return out

    @classmethod
    def tril_indices(cls, row: int, col: int, offset: int = 0, *, dtype: DTypeLike | None = None,
                     device: DeviceName | None = None) -> Self:
        """Return the row and column indices of the lower triangle of a ``row`` x ``col`` matrix, shape [2, count].

        >>> Tensor.tril_indices(2, 2).tolist()
        [[0, 1, 1], [0, 0, 1]]
        """
        return cls._triangle("tril_indices", row, col, lambda i, j: j <= i + offset, dtype, device)

    @classmethod
    def triu_indices(cls, row: int, col: int, offset: int = 0, *, dtype: DTypeLike | None = None,
                     device: DeviceName | None = None) -> Self:
        """Return the row and column indices of the upper triangle of a ``row`` x ``col`` matrix, shape [2, count].

        >>> Tensor.triu_indices(2, 2).tolist()
        [[0, 0, 1], [0, 1, 1]]
        """
        return cls._triangle("triu_indices", row, col, lambda i, j: j >= i + offset, dtype, device)

    @classmethod
    def _triangle(cls, op: str, row: int, col: int, inside: Any,
                  dtype: DTypeLike | None, device: DeviceName | None) -> Self:
        row, col = integer(op, "row", row, least=0), integer(op, "col", col, least=0)
        found = [(i, j) for i in range(row) for j in range(col) if inside(i, j)]
        if not found:
            return cls.zeros(2, 0, dtype=dtype or dtypes.default_int, device=device)
        return cls([list(axis) for axis in zip(*found)], dtype=dtype or dtypes.default_int, device=device)

    # *** rearrange ***

    def rearrange(self, formula: str, **sizes: int) -> Self:
        """Rearrange axes by a formula: names on the left are put in the order on the right; parentheses group one axis.

        >>> Tensor([[1, 2, 3, 4]]).rearrange("a (b c) -> (a c) b", b=2).tolist()
        [[1, 3], [2, 4]]

        Args:
            sizes: sizes of names; in each parenthesis on the left one may be omitted.

        Raises:
            ArgumentError: if the formula is malformed.
            ShapeError: if the formula does not fit the shape.
        """
        left, right = _sides(formula)
        left, right = _without_dots(formula, self, left, right)
        names = [n for group in left for n in group]
        wanted = [n for group in right for n in group]
        named = [n for n in names if n != "1"]
        if sorted(named) != sorted(n for n in wanted if n != "1") or len(set(named)) < len(named):
            raise ArgumentError("rearrange", f"{formula!r} does not name the same axes on both sides, each once",
                                "'a b c -> (a c) b'")
        stray = sorted(set(sizes) - set(names))
        if stray:
            raise ArgumentError("rearrange", f"size of {', '.join(stray)}, of which {formula!r} knows nothing",
                                f"sizes of {', '.join(names)}")
        known = {n: size("rearrange", n, s) for n, s in sizes.items()}
        apart = [s for axis, group in enumerate(left) for s in _split(formula, self, axis, group, known)]
        kept = [i for i, n in enumerate(names) if n != "1"]
        x = self.reshape(*[apart[i] for i in kept]) if apart else self
        place = {names[i]: at for at, i in enumerate(kept)}
        found = {n: x.shape[at] for n, at in place.items()}
        x = x.permute(*[place[n] for n in wanted if n != "1"]) if place else x
        return x.reshape(*[product([found[n] for n in group if n != "1"]) for group in right])

_TOKEN = re.compile(r"\s*(\(|\)|\.\.\.|[A-Za-z_]\w*|\d+)")
Groups = list[list[str]]  # the names of each axis


def _sides(formula: str) -> tuple[Groups, Groups]:
    if not isinstance(formula, str) or formula.count("->") != 1:
        raise ArgumentError("rearrange", f"{formula!r} is no formula", "'a b c -> (a c) b'")
    left, right = formula.split("->")
    return _groups(formula, left), _groups(formula, right)


def _groups(formula: str, side: str) -> Groups:
    """Return the names of each axis on one side; numbers other than 1 are refused."""
    out: Groups = []
    inside, place = False, 0
    for token in _TOKEN.finditer(side):
        if token.start() != place:
            break
        text = token.group(1)
        if text == "(" and not inside:
            inside = True
            out.append([])
        elif text == ")" and inside:
            inside = False
            if out[-1] == ["..."]:
                out[-1].append("1")  # marks a merged group: a bare ``...`` keeps its axes separate
        elif text in "()" or (text.isdigit() and text != "1"):
            break
        elif inside:
            out[-1].append(text)
        else:
            out.append([text])
        place = token.end()
    if inside or side[place:].strip():
        raise ArgumentError("rearrange", f"{formula!r}: cannot read {side[place:].strip() or side.strip()!r}",
                            "names, 1, '...' and parentheses")
    return out


def _without_dots(formula: str, x: Layout, left: Groups, right: Groups) -> tuple[Groups, Groups]:
    """Replace ``...`` by generated names for the axes that it stands for."""
    count = sum(group.count("...") for group in left)
    if count > 1 or count != sum(group.count("...") for group in right) or any(
            "..." in group and len(group) > 1 for group in left):
        raise ArgumentError("rearrange", f"{formula!r}: '...' stands once on each side, alone on the left",
                            "'... a -> a ...'")
    extra = x.ndim - (len(left) - count)
    if extra < 0 or (not count and extra):
        raise ShapeError("rearrange", f"{formula!r} has {len(left) - count} axes on the left, shape {x.shape} has "
                         f"{x.ndim}", "as many names as axes, or '...'")
    dots = [f"...{i}" for i in range(extra)]
    left = [g for group in left for g in ([[d] for d in dots] if group == ["..."] else [group])]
    alone = [[[d] for d in dots] if group == ["..."] else
             [[n for name in group for n in (dots if name == "..." else [name])]] for group in right]
    return left, [g for groups in alone for g in groups]


def _split(formula: str, x: Layout, axis: int, group: list[str], known: dict[str, int]) -> list[Any]:
    """Return the sizes of the names in one axis's group."""
    whole = x.shape[axis]
    sizes: list[Any] = [1 if n == "1" else known.get(n) for n in group]
    open_ones = [i for i, s in enumerate(sizes) if s is None]
    rest = product([s for s in sizes if s is not None])
    if len(open_ones) == 1 and (len(sizes) == 1 or (rest and whole % rest == 0)):
        sizes[open_ones[0]] = whole if len(sizes) == 1 else whole // rest
    elif open_ones or rest != whole:
        what = f"({' '.join(group)})" if len(group) != 1 else group[0]
        raise ShapeError("rearrange", f"{formula!r}: axis {axis} of shape {x.shape} is not {what}"
                         + (f" with {', '.join(f'{n}={s}' for n, s in known.items() if n in group)}" if known else ""),
                         "sizes whose product is the axis's, at most one of them left out")
    return sizes
