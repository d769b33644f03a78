"""Propagation of a partition along an axis through an op: from a source to the result and back."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from tinsmith.ir import Op, Ops, UOp

# ``bounds``: part i of the axis is the half-open range from ``bounds[i]`` to ``bounds[i + 1]``
Bounds = tuple[int, ...]
Place = tuple[int, Bounds]  # a partition: the number of the axis, and its bounds

# By op: the axes of source ``k`` along which an element of the result depends on elements at other positions.
_MIXED: dict[Op, Callable[[UOp, int], Sequence[int]]] = {
    Ops.REDUCE: lambda n, k: n.arg[1],
    Ops.GATHER: lambda n, k: () if k else (n.arg,),
    Ops.SCATTER: lambda n, k: (n.arg[0],),
    Ops.SCAN: lambda n, k: (n.arg[1],),
    Ops.HISTOGRAM: lambda n, k: (n.arg[1],),
    Ops.EXPAND: lambda n, k: [a for a, s in enumerate(n.src[0].shape) if type(s) is int and s == 1],
    Ops.SHRINK: lambda n, k: [a for a, (s, box) in enumerate(zip(n.src[0].shape, n.arg)) if box != (0, s)],
    Ops.PAD: lambda n, k: [a for a, ends in enumerate(n.arg) if ends != (0, 0)],
    Ops.FLIP: lambda n, k: n.arg,
    Ops.WINDOW: lambda n, k: (n.arg.axis, n.arg.window_axis),
    Ops.UNWINDOW: lambda n, k: (n.arg.axis, n.arg.window_axis),
    **dict.fromkeys((Ops.CONTIGUOUS, Ops.DETACH, Ops.ASSIGN), lambda n, k: ()),
}


def followed(n: UOp, k: int, place: Place, back: bool = False) -> Place | None:
    """Return the partition of ``n`` that the partition ``place`` of its source ``k`` gives (``back``: the partition of
    the source that ``place`` of ``n`` needs); None if the op mixes elements across the parts.

    >>> x = UOp(Ops.PARAM, dtypes.int32, (), (0, (4, 6)))
    >>> followed(x.permute((1, 0)), 0, (0, (0, 2, 4))), followed(x.reshape((24,)), 0, (0, (0, 12, 24)), back=True)
    ((1, (0, 2, 4)), (0, (0, 2, 4)))
    >>> followed(x.reduce("ADD", (0,)), 0, (0, (0, 2, 4))) is None
    True
    """
    axis, bounds = place
    if n.op is Ops.PERMUTE:
        return (n.arg[axis] if back else n.arg.index(axis)), bounds
    if n.op is Ops.RESHAPE:
        old, new = n.src[0].shape, n.shape
        return moved_axis(new, old, axis, bounds) if back else moved_axis(old, new, axis, bounds)
    mixed = () if n.op.elementwise else _MIXED[n.op](n, k) if n.op in _MIXED else range(n.ndim)
    return None if axis in mixed else place


def part_of(n: UOp, sources: Sequence[UOp], axis: int | None, size: int) -> UOp:
    """Return the part of ``n`` computed from parts of its sources, with ``size`` elements along ``axis`` (None:
    all)."""
    if axis is None or n.op not in (Ops.RESHAPE, Ops.EXPAND):
        return UOp(n.op, n.dtype, tuple(sources), n.arg)
    shape = resized(n.shape, axis, size)
    return sources[0].reshape(shape) if n.op is Ops.RESHAPE else sources[0].expand(shape)


def resized(shape: tuple[Any, ...], axis: int, size: int) -> tuple[Any, ...]:
    return (*shape[:axis], size, *shape[axis + 1 :])


def moved_axis(old: tuple[Any, ...], new: tuple[Any, ...], axis: int, bounds: Bounds) -> Place | None:
    """Return the axis and the bounds of a partition after a reshape; None if its parts are not parts of one new
    axis.

    >>> moved_axis((4, 6), (24,), 0, (0, 2, 4)), moved_axis((8, 3), (2, 4, 3), 0, (0, 4, 8))
    ((0, (0, 12, 24)), (0, (0, 1, 2)))
    >>> moved_axis((4, 6), (24,), 1, (0, 3, 6)) is None
    True
    """
    if not all(type(s) is int for s in (*old, *new)):
        return None
    before, after = prod(old[:axis]), prod(old[axis + 1 :])
    n = next((n for n, size in enumerate(new) if prod(new[:n]) == before and size != 1), None)
    inner = 1 if n is None else prod(new[n + 1 :])
    if n is None or any(b * after % inner for b in bounds):
        return None
    return n, tuple(b * after // inner for b in bounds)
