"""Concatenation and splitting: ``cat``, ``stack``, ``split``, ``chunk``, ``meshgrid``."""
# mypy: disable-error-code=misc
# ``self`` is the Tensor that this class is mixed into.
from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tinsmith.core.dtypes import promote
from tinsmith.core.errors import ArgumentError, ShapeError
from tinsmith.ir import UOp
from tinsmith.ir.algebra.sizes import size_text, value_of_size
from tinsmith.ir.concat import joined
from tinsmith.tensor.arguments import choice, integer
from tinsmith.tensor.base import check_tensors
from tinsmith.tensor.helpers import as_sized, axis_and_size, axis_of, equal, same_device, symbolic_size
from tinsmith.tensor.indexing.slices import box
from tinsmith.tensor.storage import SLICE

if TYPE_CHECKING:
    from tinsmith.tensor.tensor import Tensor

_MOST_EMPTY_PARTS = 1 << 16  # limit of ``chunk``: an empty axis yields as many parts as asked for, as in PyTorch


class Joining:
    """``cat``, ``stack``, ``split``, ``chunk``, ``meshgrid``."""

    __slots__ = ()

    def cat(self: Tensor | Sequence[Tensor], *others: Tensor, dim: int = 0) -> Tensor:
        """Concatenate tensors along an axis. As in PyTorch, one of shape (0,) fits any others: only its dtype counts.

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
        dtype = promote(*(t.dtype for t in parts))
        full = [as_sized(t.uop.cast(dtype), (*first.shape[:d], t.shape[d], *first.shape[d + 1 :])) for t in parts]
        return first._new(joined(full, d))

    def stack(self: Tensor | Sequence[Tensor], *others: Tensor, dim: int = 0) -> Tensor:
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

    def split(self: Tensor, sizes: int | Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
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

    def chunk(self: Tensor, chunks: int, dim: int = 0) -> list[Tensor]:
        """Split an axis into at most ``chunks`` parts of equal size (the last one may be smaller).

        >>> [t.tolist() for t in Tensor([1, 2, 3, 4, 5]).chunk(2)]
        [[1, 2, 3], [4, 5]]
        """
        d, whole = axis_and_size("chunk", self, dim)
        total = value_of_size(whole)
        chunks = integer("chunk", "the number of parts", chunks, 1, None if total else _MOST_EMPTY_PARTS)
        size = -(-total // chunks)
        if not size:
            return [self[:] for _ in range(chunks)]
        return list(self.split(size, d))

    def meshgrid(self: Tensor | Sequence[Tensor], *others: Tensor, indexing: str = "ij") -> tuple[Tensor, ...]:
        """Expand coordinate vectors to coordinate grids, one per vector.

        >>> [t.tolist() for t in Tensor([1, 2]).meshgrid(Tensor([3, 4]))]
        [[[1, 1], [2, 2]], [[3, 4], [3, 4]]]
        """
        choice("meshgrid", "indexing", indexing, ("ij", "xy"))
        axes = [t.reshape(-1) for t in _listed("meshgrid", self, others)]
        shape = tuple(t.shape[0] for t in axes)
        grids = [t.reshape((1,) * i + (-1,) + (1,) * (len(axes) - i - 1)).expand(shape) for i, t in enumerate(axes)]
        return tuple(g.transpose(0, 1) if indexing == "xy" and len(axes) > 1 else g for g in grids)


def _listed(op: str, first: Any, others: Sequence[Any]) -> list[Tensor]:
    """Return the tensors of ``a.cat(b, c)``, ``Tensor.cat(a, b, c)`` or ``Tensor.cat([a, b, c])`` as a list."""
    parts = [*first, *others] if isinstance(first, (tuple, list)) else [first, *others]
    if len(parts) > 1 and len(others) == 1 and isinstance(others[0], (tuple, list)):
        parts = [first, *others[0]]
    if not parts:
        raise ArgumentError(op, "no tensors given", "at least one")
    check_tensors(op, parts)
    return parts
