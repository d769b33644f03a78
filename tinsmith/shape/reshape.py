"""Dimension merging, and reshape: merge dimensions as far as possible, then split them at the new sizes."""
from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tinsmith.shape.sint import Mask, Shape, SInt, highest, lowest, minus, plus, product, times


def widths(shape: Shape) -> Shape:
    """Return the row-major strides: the number of elements that one step along each axis skips.

    >>> widths((2, 3, 4))
    (12, 4, 1)
    """
    return tuple(product(shape[axis + 1:]) for axis in range(len(shape)))


def full_mask(shape: Shape) -> Mask:
    """Return the mask that hides nothing.

    >>> full_mask((2, 3))
    ((0, 2), (0, 3))
    """
    return tuple((0, size) for size in shape)


def merge_dims(shape: Shape, strides: Shape, mask: Mask | None = None) -> tuple[tuple[SInt, SInt, SInt], ...]:
    """Return the fewest dimensions with the same memory order, as triples ``(merged size, stride, real size)``.

    Adjacent axes merge if the outer stride equals the inner size times the inner stride. *Real size* is the product of
    the merged sizes that have a stride, so it is 0 for a pure broadcast. A stride-0 axis whose mask leaves one position
    is padding around the axes to its right: it merges, and the merged size exceeds the real size. Other masks are
    ignored, because they change no address. Axes of size 1 vanish.

    >>> merge_dims((2, 3, 4), (12, 4, 1))
    ((24, 1, 24),)
    >>> merge_dims((4, 3, 2), (0, 2, 1))
    ((4, 0, 0), (6, 1, 6))
    >>> merge_dims((3, 4), (0, 1), mask=((1, 2), (0, 4)))
    ((12, 1, 4),)
    """
    axes = [a for a in range(len(shape)) if not (isinstance(shape[a], int) and shape[a] == 1)]
    padding = {a for a in axes if mask is not None and strides[a] == 0 and minus(mask[a][1], mask[a][0]) == 1}
    groups: list[list[int]] = []  # adjacent axes merged into one dimension, outermost first
    for a in axes:
        groups.append([a])
        while len(groups) > 1 and _one_walk(groups[-2], groups[-1], shape, strides, padding):
            inner = groups.pop()
            groups[-1].extend(inner)
    return tuple(_triple(g, shape, strides, padding) for g in groups)


def _one_walk(outer: list[int], inner: list[int], shape: Shape, strides: Shape, padding: set[int]) -> bool:
    """Return True if one step of ``outer``'s innermost axis equals a full pass through ``inner``, or that axis is
    padding."""
    size, stride, _ = _triple(inner, shape, strides, padding)
    return outer[-1] in padding or strides[outer[-1]] == times(size, stride)


def _triple(group: list[int], shape: Shape, strides: Shape, padding: set[int]) -> tuple[SInt, SInt, SInt]:
    size: SInt = 1
    real: SInt = 1
    for a in group:
        size = times(size, shape[a])
        real = real if a in padding and len(group) > 1 else times(real, shape[a])
    stride = strides[group[-1]]
    return size, stride, 0 if isinstance(stride, int) and stride == 0 else real


class StridedRun(NamedTuple):
    """An interval of index space with a single stride; positions outside ``begin <= i < end`` are padding.

    >>> StridedRun(4, 1, 0, 4).full, StridedRun(4, 1, 2, 3).single
    (True, True)
    """

    size: SInt
    stride: SInt
    begin: SInt
    end: SInt

    @property
    def full(self) -> bool:
        """True if no position is padding."""
        return bool(self.begin == 0 and self.end == self.size)

    @property
    def single(self) -> bool:
        """True if all but one position is padding, so that the stride is meaningless."""
        return bool(minus(self.end, self.begin) == 1)


def runs(shape: Shape, strides: Shape, mask: Mask | None) -> tuple[list[StridedRun], SInt]:
    """Return the longest runs of a view that is not all padding, and a correction to its offset.

    Stricter than ``merge_dims``: the positions of a run that are not padding must be consecutive, too. That holds if
    the outer axis has a single one, or the inner axis has no padding.

    >>> runs((3, 4), (0, 1), ((1, 2), (0, 4)))
    ([StridedRun(size=12, stride=1, begin=4, end=8)], -4)
    """
    found: list[StridedRun] = []
    shift: SInt = 0
    for size, stride, (begin, end) in zip(shape, strides, mask or full_mask(shape)):
        if size == 1:
            continue
        inner = StridedRun(size, stride, begin, end)
        if found and found[-1].single:
            outer = found[-1]
            shift = plus(shift, times(outer.begin, minus(outer.stride, times(size, stride))))
            start = times(outer.begin, size)
            found[-1] = StridedRun(times(outer.size, size), stride, plus(start, begin), plus(start, end))
        elif found and inner.full and found[-1].stride == times(size, stride):
            outer = found[-1]
            found[-1] = StridedRun(times(outer.size, size), stride, times(outer.begin, size), times(outer.end, size))
        else:
            found.append(inner)
    return found, shift


def split(run: StridedRun, sizes: Shape) -> tuple[Shape, Mask] | None:
    """Return strides and mask of one run split into axes of ``sizes``; None if the positions that are not padding form
    no box.

    >>> split(StridedRun(12, 1, 4, 8), (3, 4))
    ((4, 1), ((1, 2), (0, 4)))
    >>> split(StridedRun(12, 1, 3, 8), (3, 4)) is None
    True
    """
    steps = widths(sizes)
    strides = tuple(times(run.stride, step) for step in steps)
    if run.full:
        return strides, full_mask(sizes)
    mask: list[tuple[SInt, SInt]] = []
    begin, end = run.begin, run.end
    for size, step in zip(sizes, steps):
        if size == 1:
            mask.append((0, 1))
        elif step == 1:
            mask.append((begin, end))
        elif not (isinstance(begin, int) and isinstance(end, int) and isinstance(step, int)):
            return None
        elif begin // step == (end - 1) // step:
            first = begin // step
            mask.append((first, first + 1))
            begin, end = begin - first * step, end - first * step
        elif begin % step == 0 and end % step == 0:
            mask.append((begin // step, end // step))
            begin, end = 0, step
        else:
            return None
    return strides, tuple(mask)


def cut(found: Sequence[StridedRun], shape: Shape) -> tuple[Shape, Mask] | None:
    """Return strides and mask of ``shape`` over consecutive runs; None if a new axis would span two runs.

    >>> cut([StridedRun(6, 4, 0, 6), StridedRun(2, 1, 0, 2)], (3, 2, 2))
    ((8, 4, 1), ((0, 3), (0, 2), (0, 2)))
    >>> cut([StridedRun(6, 4, 0, 6), StridedRun(2, 1, 0, 2)], (3, 4)) is None
    True
    """
    strides: Shape = ()
    mask: Mask = ()
    stop = len(shape)
    for run in reversed(found):
        start = stop
        size: SInt = 1
        while size != run.size:
            if start == 0 or lowest(size) > highest(run.size):
                return None
            start -= 1
            size = product(shape[start:stop])
        pieces = split(run, shape[start:stop])
        if pieces is None:
            return None
        strides, mask, stop = pieces[0] + strides, pieces[1] + mask, start
    if any(size != 1 for size in shape[:stop]):
        return None
    return (0,) * stop + strides, full_mask(shape[:stop]) + mask
