"""Basic slicing: a range with a step and a direction per axis, expressed by flip, pad, shrink and reshape."""
from __future__ import annotations

from typing import Any, NamedTuple

from tinsmith.ir import UOp
from tinsmith.ir.algebra.sizes import normal_size


class Slice(NamedTuple):
    """One axis of a basic index: ``count`` elements from ``begin`` on, ``step`` apart, read backwards if ``flip``.

    ``begin`` counts from the end of the axis if ``flip``.
    """

    begin: Any
    count: Any
    step: int = 1
    flip: bool = False


Slices = tuple[Slice, ...]


def box(bounds: tuple[tuple[Any, Any], ...]) -> Slices:
    """Return the slices for the bounds (begin, end) of each axis."""
    return tuple(Slice(b, e - b if type(b) is type(e) is int else normal_size(e - b)) for b, e in bounds)


def sliced(x: UOp, slices: Slices) -> UOp:
    """Return the elements of the slices. A step is done by padding to a multiple of it, reshaping to (count, step), and
    keeping the first element of each group."""
    bounds: list[tuple[Any, Any]] = []
    for begin, count, step, flip in slices:
        if step != 1 or flip:
            return _stepped(x, slices)
        bounds.append((begin, begin + count))
    return x.shrink(tuple(bounds))


def _stepped(x: UOp, slices: Slices) -> UOp:
    x = x.flip(tuple(i for i, s in enumerate(slices) if s.flip))
    ends = [s.begin + (s.count if s.step == 1 else s.count * s.step) for s in slices]
    x = x.pad(tuple((0, _missing(s.step, end, size)) for s, end, size in zip(slices, ends, x.shape)))
    x = x.shrink(tuple((s.begin, end) for s, end in zip(slices, ends)))
    if all(s.step == 1 for s in slices):
        return x
    apart = x.reshape(tuple(v for s in slices for v in (s.count, s.step)))
    first = apart.shrink(tuple(r for s in slices for r in ((0, s.count), (0, 1))))
    return first.reshape(tuple(s.count for s in slices))


def _missing(step: int, end: Any, size: Any) -> int:
    """Return the padding after an axis that completes the last step; an upper bound for symbolic sizes."""
    if step == 1:
        return 0
    return step - 1 if isinstance(end, UOp) or isinstance(size, UOp) else max(end - size, 0)
