"""View: one strided, offset and optionally padded index map of a flat memory region.

A reshape merges dimensions as far as possible, then splits them at the new sizes.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tinsmith.core.errors import ArgumentError, AxisError, ShapeError
from tinsmith.shape.sint import (
    Bounds,
    Mask,
    Shape,
    SInt,
    all_ints,
    both,
    highest,
    inside,
    lowest,
    minus,
    plus,
    product,
    surely_at_most,
    times,
)


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


def row_major(shape: Shape) -> Shape:
    """Return the strides of a dense tensor; 0 for axes of size 1.

    >>> row_major((2, 1, 3))
    (3, 0, 1)
    """
    if 0 in shape:
        return (0,) * len(shape)
    return tuple(0 if size == 1 else width for size, width in zip(shape, widths(shape)))


@dataclass(frozen=True, slots=True, repr=False)
class View:
    """An index map: element ``i`` is at ``offset + sum(i * strides)`` if every index is inside ``mask``, else it is
    zero.

    Build views with ``View.create``, which canonicalizes: equal maps then usually give equal views.

    >>> View.create((2, 3)).permute((1, 0))
    View(shape=(3, 2), strides=(1, 3), offset=0, mask=None, contiguous=False)
    """

    shape: Shape
    strides: Shape
    offset: SInt = 0
    mask: Mask | None = None

    @staticmethod
    def create(shape: Sequence[SInt], strides: Sequence[SInt] | None = None, offset: SInt = 0,
               mask: Sequence[Bounds] | None = None) -> View:
        """Return a view in canonical form: unused strides are 0, a mask that hides nothing is None.

        >>> View.create((2, 1), strides=(1, 7), mask=((0, 2), (0, 1)))
        View(shape=(2, 1), strides=(1, 0), offset=0, mask=None, contiguous=True)

        Raises:
            ShapeError: for a negative size, or if the lengths of strides or mask and shape differ.
        """
        shape = tuple(shape)
        _check_new(shape, strides, mask)
        if strides is None and mask is None and offset == 0:
            return View(shape, row_major(shape))
        if 0 in shape:
            return View(shape, (0,) * len(shape))
        steps = row_major(shape) if strides is None else tuple(strides)
        if mask is not None and any(surely_at_most(end, begin) for begin, end in mask):
            return View(shape, (0,) * len(shape), 0, ((0, 0),) * len(shape))
        canonical = []
        for size, step, (begin, end) in zip(shape, steps, mask or full_mask(shape)):
            stepped_along = size != 1 and minus(end, begin) != 1
            canonical.append(step if stepped_along else 0)
            if not stepped_along:
                offset = plus(offset, times(begin, step))
        hides = mask is not None and any(begin != 0 or end != size for size, (begin, end) in zip(shape, mask))
        return View(shape, tuple(canonical), offset, tuple(mask) if mask is not None and hides else None)

    def __repr__(self) -> str:
        return (f"View(shape={self.shape}, strides={self.strides}, offset={self.offset}, mask={self.mask}, "
                f"contiguous={self.contiguous})")

    @property
    def contiguous(self) -> bool:
        """True if element ``n`` in row-major order is at address ``n``.

        >>> View.create((2, 3)).contiguous, View.create((2, 3)).flip((0,)).contiguous
        (True, False)
        """
        return bool(self.offset == 0 and self.mask is None and self.strides == row_major(self.shape))

    @property
    def block(self) -> bool:
        """True if element ``n`` in row-major order is at address ``offset + n``.

        >>> View.create((2, 3), offset=6).block
        True
        """
        return bool(self.mask is None and self.strides == row_major(self.shape))

    @property
    def size(self) -> SInt:
        """The number of elements, padding included.

        >>> View.create((2, 3)).size
        6
        """
        return product(self.shape)

    @property
    def plain(self) -> bool:
        """True if nothing is symbolic.

        >>> View.create((2, 3)).plain
        True
        """
        mask_ends = (end for pair in self.mask or () for end in pair)
        return all_ints((*self.shape, *self.strides, self.offset, *mask_ends))

    @property
    def blank(self) -> bool:
        """True if every element is padding.

        >>> View.create((2,)).pad(((0, 2),)).shrink(((2, 4),)).blank
        True
        """
        return bool(self.mask) and (0, 0) in (self.mask or ())

    @property
    def bounds(self) -> Mask:
        """The mask, written out if it is None.

        >>> View.create((2, 3)).bounds
        ((0, 2), (0, 3))
        """
        return full_mask(self.shape) if self.mask is None else self.mask

    def index(self, idxs: Sequence[SInt], valid: Any = True) -> tuple[SInt, Any]:
        """Return the address of the element at ``idxs``, and the condition (``valid`` included) that it is not padding.

        >>> View.create((2, 3)).pad(((0, 0), (1, 0))).index((1, 2))
        (4, True)

        Raises:
            AxisError: if there is not one index per axis.
        """
        self._check_length("index", idxs)
        for idx, bounds in zip(idxs, self.mask or ()):
            valid = both(valid, inside(idx, bounds))
        address = self.offset
        for idx, stride in zip(idxs, self.strides):
            address = plus(address, times(idx, stride))
        return address, valid

    def unflatten(self, flat: SInt) -> Shape:
        """Return the indices of the ``flat``-th element in row-major order.

        >>> View.create((2, 3)).unflatten(4)
        (1, 1)
        """
        result: list[SInt] = []
        outermost = True
        for size, width in zip(self.shape, widths(self.shape)):
            if size == 1:
                result.append(0)
                continue
            position: Any = flat
            position = position if width == 1 else position // width
            result.append(position if outermost else position % size)
            outermost = False
        return tuple(result)

    def permute(self, order: Sequence[int]) -> View:
        """Reorder the axes: axis ``i`` of the result is axis ``order[i]``.

        >>> View.create((2, 3, 4)).permute((2, 0, 1)).shape
        (4, 2, 3)

        Raises:
            AxisError: if ``order`` does not name every axis once.
        """
        if sorted(order) != list(range(len(self.shape))):
            raise AxisError("permute", f"order {tuple(order)} does not name each axis of shape {self.shape} once",
                            f"a permutation of {tuple(range(len(self.shape)))}")
        mask = None if self.mask is None else tuple(self.mask[i] for i in order)
        return View(tuple(self.shape[i] for i in order), tuple(self.strides[i] for i in order), self.offset, mask)

    def expand(self, shape: Sequence[SInt]) -> View:
        """Repeat axes of size 1 (stride 0).

        >>> View.create((1, 3)).expand((2, 3)).strides
        (0, 1)

        Raises:
            ShapeError: if an axis of size other than 1 would change.
        """
        self._check_length("expand", shape)
        if any(old != new and old != 1 for old, new in zip(self.shape, shape)):
            raise ShapeError("expand", f"shape {self.shape} does not expand to {tuple(shape)}",
                             "only axes of size 1 can grow")
        mask = None
        if self.mask is not None:
            mask = [bounds if old == new or bounds == (0, 0) else (0, new)
                    for old, new, bounds in zip(self.shape, shape, self.mask)]
        return View.create(shape, self.strides, self.offset, mask)

    def pad(self, padding: Sequence[Bounds]) -> View:
        """Add ``(before, after)`` zeros around each axis.

        >>> View.create((3,)).pad(((1, 2),))
        View(shape=(6,), strides=(1,), offset=-1, mask=((1, 4),), contiguous=False)

        Raises:
            ShapeError: for negative padding.
        """
        self._check_length("pad", padding)
        if any(lowest(before) < 0 or lowest(after) < 0 for before, after in padding):
            raise ShapeError("pad", f"negative padding {tuple(padding)} for shape {self.shape}", "shrink cuts off")
        if all(before == 0 and after == 0 for before, after in padding):
            return self
        offset = self.offset
        for (before, _), stride in zip(padding, self.strides):
            offset = minus(offset, times(before, stride))
        shape = [plus(plus(before, size), after) for (before, after), size in zip(padding, self.shape)]
        mask = [(plus(before, begin), plus(before, end)) for (before, _), (begin, end) in zip(padding, self.bounds)]
        return View.create(shape, self.strides, offset, mask)

    def shrink(self, ranges: Sequence[Bounds]) -> View:
        """Keep ``begin <= i < end`` of each axis.

        >>> View.create((4, 4)).shrink(((1, 3), (0, 4)))
        View(shape=(2, 4), strides=(4, 1), offset=4, mask=None, contiguous=False)

        Raises:
            ShapeError: if a range is reversed or leaves its axis.
        """
        self._check_length("shrink", ranges)
        for size, (begin, end) in zip(self.shape, ranges):
            if any(surely_at_most(plus(high, 1), low) for low, high in ((0, begin), (begin, end), (end, size))):
                raise ShapeError("shrink", f"ranges {tuple(ranges)} do not fit shape {self.shape}",
                                 "0 <= begin <= end <= size on every axis")
        offset = self.offset
        for (begin, _), stride in zip(ranges, self.strides):
            offset = plus(offset, times(begin, stride))
        mask = None if self.mask is None else [_clip(m, r) for m, r in zip(self.mask, ranges)]
        return View.create([minus(end, begin) for begin, end in ranges], self.strides, offset, mask)

    def flip(self, axes: Sequence[int]) -> View:
        """Reverse the order along ``axes``.

        >>> View.create((4,)).flip((0,))
        View(shape=(4,), strides=(-1,), offset=3, mask=None, contiguous=False)

        Raises:
            AxisError: if an axis does not exist or is named twice.
        """
        if len(set(axes)) != len(axes) or any(not 0 <= axis < len(self.shape) for axis in axes):
            raise AxisError("flip", f"axes {tuple(axes)} are not distinct axes of shape {self.shape}",
                            f"axes from 0 to {len(self.shape) - 1}")
        if self.blank:
            return self
        offset, strides, mask = self.offset, list(self.strides), list(self.bounds)
        for axis in axes:
            size, (begin, end) = self.shape[axis], mask[axis]
            offset = plus(offset, times(minus(size, 1), strides[axis]))
            strides[axis] = times(strides[axis], -1)
            mask[axis] = (minus(size, end), minus(size, begin))
        return View.create(self.shape, strides, offset, None if self.mask is None else mask)

    def reshape(self, shape: Sequence[SInt]) -> View | None:
        """Return the same elements in row-major order under another shape; None if one view cannot express it.

        >>> View.create((4, 3)).permute((1, 0)).reshape((3, 2, 2))
        View(shape=(3, 2, 2), strides=(1, 6, 3), offset=0, mask=None, contiguous=False)
        >>> View.create((4, 3)).permute((1, 0)).reshape((12,)) is None
        True

        Raises:
            ShapeError: if the number of elements would change.
        """
        shape = tuple(shape)
        _check_reshape(self.shape, shape)
        if shape == self.shape:
            return self
        if self.contiguous:
            return View.create(shape)
        if self.blank:
            return View.create(shape, mask=((0, 0),) * len(shape)) if shape else None
        found, shift = runs(self.shape, self.strides, self.mask)
        pieces = cut(found, shape)
        if pieces is None:
            return None
        return View.create(shape, pieces[0], self.offset + shift, pieces[1])

    def window(self, axis: int, size: SInt, stride: int, dilation: int, length: SInt) -> View | None:
        """Return sliding windows: ``out[..., o, ..., k] = in[..., o*stride + k*dilation, ...]`` with ``k`` a new last
        axis.

        Windows share memory, and a convolution becomes a plain sum of products. None if the padding of the axis does
        not form a box in ``(o, k)``.

        >>> View.create((5,)).window(0, size=3, stride=1, dilation=1, length=3)
        View(shape=(3, 3), strides=(1, 1), offset=0, mask=None, contiguous=False)

        Raises:
            AxisError: if there is no such axis.
            ArgumentError: if stride or dilation is not positive.
            ShapeError: if the last window exceeds the axis.
        """
        self._check_window(axis, size, stride, dilation, length)
        step = self.strides[axis]
        shape = (*self.shape[:axis], length, *self.shape[axis + 1:], size)
        strides = (*self.strides[:axis], times(step, stride), *self.strides[axis + 1:], times(step, dilation))
        if self.mask is None or 0 in shape:
            return View.create(shape, strides, self.offset)
        box = _window_box(self.mask[axis], length, stride, size, dilation)
        if box is None:
            return None
        return View.create(shape, strides, self.offset, (*self.mask[:axis], box[0], *self.mask[axis + 1:], box[1]))

    def _check_window(self, axis: int, size: SInt, stride: int, dilation: int, length: SInt) -> None:
        if not 0 <= axis < len(self.shape):
            raise AxisError("window", f"axis {axis} of shape {self.shape}", f"0 to {len(self.shape) - 1}")
        if stride < 1 or dilation < 1:
            raise ArgumentError("window", f"stride {stride} and dilation {dilation} must be positive", "1 or more")
        if size == 0 or length == 0:
            return
        reach = _reach(length, stride, size, dilation)
        if surely_at_most(plus(self.shape[axis], 1), reach):
            raise ShapeError("window", f"{length} windows reach over {reach} of {self.shape[axis]} positions",
                             "fewer windows, or pad first")

    def _check_length(self, op: str, values: Sequence[Any]) -> None:
        if len(values) != len(self.shape):
            raise AxisError(op, f"{len(values)} entries for the {len(self.shape)} axes of shape {self.shape}",
                            "one entry per axis")


def _check_new(shape: Shape, strides: Sequence[SInt] | None, mask: Sequence[Bounds] | None) -> None:
    if any(surely_at_most(size, -1) for size in shape):
        raise ShapeError("view", f"shape {shape} has a negative size", "sizes of 0 or more")
    for name, values in (("strides", strides), ("mask", mask)):
        if values is not None and len(values) != len(shape):
            raise ShapeError("view", f"{name} {tuple(values)} for shape {shape}", "one entry per axis")


def _check_reshape(old: Shape, new: Shape) -> None:
    if any(surely_at_most(size, -1) for size in new):
        raise ShapeError("reshape", f"shape {new} has a negative size", "sizes of 0 or more")
    before, after = product(old), product(new)
    if before != after and (surely_at_most(plus(before, 1), after) or surely_at_most(plus(after, 1), before)):
        raise ShapeError("reshape", f"shape {old} has {before} elements, {new} has {after}",
                         "a shape with as many elements")


def _clip(mask: Bounds, kept: Bounds) -> Bounds:
    """Return ``mask`` relative to the range ``kept``. A bound that cannot be proved to lie outside it is kept, which is
    always valid."""
    begin, end, size = minus(mask[0], kept[0]), minus(mask[1], kept[0]), minus(kept[1], kept[0])
    return (0 if surely_at_most(begin, 0) else begin), (size if surely_at_most(size, end) else end)


def _reach(length: SInt, stride: int, size: SInt, dilation: int) -> SInt:
    """Return the number of positions that ``length`` windows cover."""
    return plus(plus(times(minus(length, 1), stride), times(minus(size, 1), dilation)), 1)


def _window_box(bounds: Bounds, length: SInt, stride: int, size: SInt, dilation: int) -> tuple[Bounds, Bounds] | None:
    """Return the ranges of ``(o, k)`` for which ``o*stride + k*dilation`` is inside ``bounds``, if they form a box;
    else None.

    The range of ``k`` moves down monotonically as ``o`` grows, so it is constant if it is equal at both ends.
    """
    begin, end = bounds
    if surely_at_most(begin, 0) and surely_at_most(_reach(length, stride, size, dilation), end):
        return (0, length), (0, size)
    if not (isinstance(begin, int) and isinstance(end, int) and isinstance(length, int) and isinstance(size, int)):
        return None
    per_tap = [_steps_inside(begin - k * dilation, end - k * dilation, stride, length) for k in range(size)]
    outputs = [reached for reached in per_tap if reached]
    if not outputs:
        return (0, 0), (0, 0)
    first, last = min(reached.start for reached in outputs), max(reached.stop for reached in outputs) - 1
    taps, last_taps = (_steps_inside(begin - o * stride, end - o * stride, dilation, size) for o in (first, last))
    return ((first, last + 1), (taps.start, taps.stop)) if taps == last_taps else None


def _steps_inside(begin: int, end: int, step: int, count: int) -> range:
    """Return the range of ``i < count`` with ``begin <= i*step < end``."""
    return range(max(0, -(-begin // step)), min(count, -(-end // step)))
