"""ShapeTracker: a stack of views that represents any chain of movement ops, and the composition of two views into one.

The upper view yields a flat position; the lower view takes that position's mixed-radix digits. If every digit is an
affine function of the upper indices, and no digit carries into the next, the composition is a single view.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from tinsmith.core.errors import AxisError, ShapeError
from tinsmith.core.suggestions import missing_attribute
from tinsmith.shape.sint import Bounds, Shape, SInt, symbol
from tinsmith.shape.view import StridedRun, View, runs, widths


class Digit(NamedTuple):
    """``start + sum(steps * t)``: the position of ``run`` that is read, as a function of ``t``, counted from the corner
    of a box."""

    run: StridedRun
    start: int
    steps: tuple[int, ...]

    def extremes(self, box: list[range]) -> tuple[int, int]:
        """Return the least and greatest value over a box.

        >>> Digit(StridedRun(9, 1, 0, 9), 5, (1, -2)).extremes([range(3), range(2)])
        (3, 7)
        """
        ends = [(step * t.start, step * (t.stop - 1)) for step, t in zip(self.steps, box)]
        return self.start + sum(map(min, ends)), self.start + sum(map(max, ends))

    def tighten(self, box: list[range]) -> list[range]:
        """Return ``box`` without outer slices in which this digit is always outside the bounds of its run.

        >>> Digit(StridedRun(8, 1, 5, 7), 0, (4, 1)).tighten([range(2), range(4)])
        [range(1, 2), range(1, 3)]
        """
        box = list(box)
        for axis, step in enumerate(self.steps):
            if step == 0 or not box[axis]:
                continue
            ends = sorted((step * box[axis].start, step * (box[axis].stop - 1)))
            low, high = self.extremes(box)
            least, most = _plain(self.run.begin) - (high - ends[1]), _plain(self.run.end) - 1 - (low - ends[0])
            first, last = (-(-least // step), most // step) if step > 0 else (-(most // -step), -least // -step)
            box[axis] = range(max(box[axis].start, first), min(box[axis].stop, last + 1))
        return box


def _plain(value: object) -> int:
    assert isinstance(value, int), "only views of plain ints are folded"
    return value


def flat_digits(flat: int, sizes: tuple[int, ...]) -> list[int]:
    """Return the digits of ``flat`` in the mixed radix ``sizes``; the first digit is not wrapped.

    >>> flat_digits(7, (2, 4))
    [1, 3]
    """
    result = []
    for size in reversed(sizes[1:]):
        flat, digit = divmod(flat, size)
        result.append(digit)
    return [flat, *reversed(result)][:len(sizes)]


def digits_of(upper: View, found: list[StridedRun]) -> list[Digit]:
    """Return the only candidate affine digits of ``upper`` over ``found``: those of its first element and of a unit
    step per axis.

    >>> runs = [StridedRun(4, 4, 0, 4), StridedRun(4, 1, 0, 4)]
    >>> [(d.start, d.steps) for d in digits_of(View.create((4,), (5,)), runs)]
    [(0, (1,)), (0, (1,))]
    """
    sizes = tuple(_plain(run.size) for run in found)
    corner = _plain(upper.offset) + sum(_plain(b) * _plain(s) for (b, _), s in zip(upper.bounds, upper.strides))
    start = flat_digits(corner, sizes)
    steps = [[d - s for d, s in zip(flat_digits(corner + _plain(stride), sizes), start)] for stride in upper.strides]
    return [Digit(run, start[m], tuple(step[m] for step in steps)) for m, run in enumerate(found)]


def carried(digits: list[Digit], box: list[range]) -> list[bool]:
    """Return, for each digit, True if it may be wrong: it, or the digits to its right combined, leave their range in
    the box.

    >>> digits = digits_of(View.create((4,)), [StridedRun(3, 2, 0, 3), StridedRun(2, 1, 0, 2)])
    >>> carried(digits, [range(4)])
    [True, True]
    """
    places = widths(tuple(digit.run.size for digit in digits))
    low_right = high_right = 0
    result = []
    for digit, place in zip(reversed(digits), reversed(places)):
        low, high = digit.extremes(box)
        fits = low >= 0 and high < _plain(digit.run.size)
        result.append(not (fits and low_right >= 0 and high_right < _plain(place)))
        low_right, high_right = low_right + low * _plain(place), high_right + high * _plain(place)
    return result[::-1]


def visible_box(digits: list[Digit], box: list[range]) -> list[range] | None:
    """Return the part of ``box`` in which every digit is inside the bounds of its run; None if that part is not a box.

    >>> visible_box([Digit(StridedRun(8, 1, 5, 7), 0, (4, 1))], [range(2), range(4)])
    [range(1, 2), range(1, 3)]
    >>> visible_box([Digit(StridedRun(8, 1, 1, 7), 0, (4, 1))], [range(2), range(4)]) is None
    True
    """
    for _ in range(len(box) + 2):
        before = box
        for digit in digits:
            box = digit.tighten(box)
        if box == before or not all(box):
            break
    if not all(box):
        return box
    inside = True
    for digit in digits:
        low, high = digit.extremes(box)
        if high < _plain(digit.run.begin) or low >= _plain(digit.run.end):
            return [range(0)] * len(box) or None  # a 0-d box cannot be empty
        inside = inside and _plain(digit.run.begin) <= low and high < _plain(digit.run.end)
    return box if inside else None


def compose(upper: View, lower: View) -> View | None:
    """Return one view equal to ``upper`` applied to ``lower``, or None if there is none.

    >>> compose(View.create((2, 2), (6, 1), 1), View.create((4, 3)).flip((1,)))
    View(shape=(2, 2), strides=(6, -1), offset=1, mask=None, contiguous=False)
    >>> compose(View.create((12,)), View.create((4, 3)).permute((1, 0))) is None
    True
    """
    if lower.contiguous:
        return upper
    if upper.contiguous and upper.size == lower.size:
        return lower.reshape(upper.shape)
    if not (upper.plain and lower.plain) or 0 in lower.shape:
        return None
    if upper.blank:
        return upper
    if lower.blank:
        return _all_padding(upper.shape)
    found, shift = runs(lower.shape, lower.strides, lower.mask)
    whole = [range(_plain(end) - _plain(begin)) for begin, end in upper.bounds]
    digits = [_still(digit, whole) for digit in digits_of(upper, found)]
    if any(carried(digits, whole)):
        return None
    box = visible_box(digits, whole)
    if box is None:
        return None
    if not all(box):
        return _all_padding(upper.shape)
    offset = _plain(lower.offset) + _plain(shift) + sum(d.start * _plain(d.run.stride) for d in digits)
    begins = [_plain(begin) for begin, _ in upper.bounds]
    strides = [sum(d.steps[axis] * _plain(d.run.stride) for d in digits) for axis in range(len(upper.shape))]
    offset -= sum(begin * stride for begin, stride in zip(begins, strides))
    mask = [(begin + t.start, begin + t.stop) for begin, t in zip(begins, box)]
    return View.create(upper.shape, strides, offset, mask)


def _still(digit: Digit, box: list[range]) -> Digit:
    """Return ``digit`` with step 0 along axes of size 1: such a step is never taken but might carry."""
    return Digit(digit.run, digit.start, tuple(0 if len(t) == 1 else s for s, t in zip(digit.steps, box)))


def _all_padding(shape: Shape) -> View | None:
    return View.create(shape, mask=((0, 0),) * len(shape)) if shape else None


@dataclass(frozen=True, slots=True)
class ShapeTracker:
    """Movement ops from a buffer to a value, as index maps. The first view reads memory; each further view reads the
    view before it.

    A view is added only if a reshape cannot be expressed by strides, as in flattening a transpose.

    >>> ShapeTracker.from_shape((2,))
    ShapeTracker(views=(View(shape=(2,), strides=(1,), offset=0, mask=None, contiguous=True),))
    >>> len(ShapeTracker.from_shape((2, 3)).permute((1, 0)).reshape((6,)).views)
    2
    """

    views: tuple[View, ...]

    def __post_init__(self) -> None:
        if not self.views:
            raise ShapeError("ShapeTracker", "no views", "ShapeTracker.from_shape(shape)")

    @staticmethod
    def from_shape(shape: Sequence[SInt]) -> ShapeTracker:
        """Return the index map of a dense tensor.

        >>> ShapeTracker.from_shape((2, 3)).contiguous
        True
        """
        return ShapeTracker((View.create(shape),))

    @property
    def shape(self) -> Shape:
        """The shape after all movement ops.

        >>> ShapeTracker.from_shape((2, 3)).permute((1, 0)).shape
        (3, 2)
        """
        return self.views[-1].shape

    @property
    def size(self) -> SInt:
        """The number of elements after all movement ops.

        >>> ShapeTracker.from_shape((1, 3)).expand((2, 3)).size
        6
        """
        return self.views[-1].size

    @property
    def contiguous(self) -> bool:
        """True if this is the index map of a dense tensor. Conservative for several views: call ``simplify`` first.

        >>> ShapeTracker.from_shape((2, 3)).flip((0,)).flip((0,)).contiguous
        True
        """
        return len(self.views) == 1 and self.views[0].contiguous

    @property
    def block(self) -> bool:
        """True if the elements lie one behind the other in memory, in order, from any place on.

        >>> ShapeTracker.from_shape((6,)).shrink(((2, 6),)).reshape((2, 2)).block
        True
        """
        return len(self.views) == 1 and self.views[0].block

    def _with_last(self, view: View) -> ShapeTracker:
        return self if view is self.views[-1] else ShapeTracker((*self.views[:-1], view))

    def permute(self, order: Sequence[int]) -> ShapeTracker:
        """Reorder the axes.

        >>> ShapeTracker.from_shape((2, 3)).permute((1, 0)).shape
        (3, 2)
        """
        return self._with_last(self.views[-1].permute(order))

    def expand(self, shape: Sequence[SInt]) -> ShapeTracker:
        """Repeat axes of size 1.

        >>> ShapeTracker.from_shape((1, 3)).expand((2, 3)).shape
        (2, 3)
        """
        return self._with_last(self.views[-1].expand(shape))

    def pad(self, padding: Sequence[Bounds]) -> ShapeTracker:
        """Surround with zeros.

        >>> ShapeTracker.from_shape((3,)).pad(((1, 2),)).shape
        (6,)
        """
        return self._with_last(self.views[-1].pad(padding))

    def shrink(self, ranges: Sequence[Bounds]) -> ShapeTracker:
        """Keep a range of each axis.

        >>> ShapeTracker.from_shape((3,)).shrink(((1, 3),)).shape
        (2,)
        """
        return self._with_last(self.views[-1].shrink(ranges))

    def flip(self, axes: Sequence[int]) -> ShapeTracker:
        """Reverse the order along axes.

        >>> ShapeTracker.from_shape((3,)).flip((0,)).views[0].strides
        (-1,)
        """
        return self._with_last(self.views[-1].flip(axes))

    def reshape(self, shape: Sequence[SInt]) -> ShapeTracker:
        """Return the same elements under another shape; adds a view if the last one cannot express it.

        >>> ShapeTracker.from_shape((2, 3)).reshape((3, 2)).contiguous
        True
        """
        view = self.views[-1].reshape(shape)
        return ShapeTracker((*self.views, View.create(shape))) if view is None else self._with_last(view)

    def window(self, axis: int, size: SInt, stride: int, dilation: int, length: SInt) -> ShapeTracker:
        """Return sliding windows along ``axis``, with the window position as a new last axis; see ``View.window``.

        >>> ShapeTracker.from_shape((5,)).window(0, size=3, stride=2, dilation=1, length=2).shape
        (2, 3)
        """
        view = self.views[-1].window(axis, size, stride, dilation, length)
        if view is not None:
            return self._with_last(view)
        fresh = View.create(self.shape).window(axis, size, stride, dilation, length)
        assert fresh is not None, "a view without mask has windows"
        return ShapeTracker((*self.views, fresh))

    def simplify(self) -> ShapeTracker:
        """Return the same map with adjacent views composed where possible.

        >>> t = ShapeTracker.from_shape((2, 3)).permute((1, 0)).reshape((6,)).reshape((3, 2)).permute((1, 0))
        >>> len(t.views), t.simplify().contiguous
        (2, True)
        """
        stack: list[View] = []
        for view in self.views:
            stack.append(view)
            while len(stack) > 1 and (one := compose(stack[-1], stack[-2])) is not None:
                stack[-2:] = [one]
        return self if len(stack) == len(self.views) else ShapeTracker(tuple(stack))

    def expr_idxs(self, idxs: Sequence[SInt] | None = None) -> tuple[SInt, Any]:
        """Return the address of the element at ``idxs`` and its validity condition (False: padding, whose address is
        meaningless).

        Without ``idxs``, the indices are variables ``idx0, idx1, …``, one per axis longer than 1.

        >>> ShapeTracker.from_shape((2, 3)).permute((1, 0)).reshape((6,)).expr_idxs((1,))
        (3, True)
        >>> ShapeTracker.from_shape((3,)).pad(((1, 0),)).expr_idxs((0,))
        (-1, False)
        >>> ShapeTracker.from_shape((2, 3)).permute((1, 0)).expr_idxs()
        (idx1*3+idx0, True)

        Raises:
            AxisError: if there is not one index per axis.
        """
        if idxs is None:
            lasts = [(s if isinstance(s, int) else s.vmax) - 1 for s in self.shape]
            idxs = [symbol(f"idx{axis}", 0, max(last, 0)) for axis, last in enumerate(lasts)]
        address, valid = self.views[-1].index(idxs)
        for view in reversed(self.views[:-1]):
            address, valid = view.index(view.unflatten(address), valid)
        valid = _simple(valid)
        return _simple(address), bool(valid) if isinstance(valid, int) else valid

    def real_strides(self, ignore_valid: bool = False) -> tuple[SInt | None, ...]:
        """Return the step in memory along each axis; None where it is not one number.

        Along a padded axis there is none either, unless ``ignore_valid``: the padding has no address.

        >>> ShapeTracker.from_shape((2, 3)).permute((1, 0)).real_strides()
        (1, 3)
        >>> padded = ShapeTracker.from_shape((2, 3)).pad(((0, 0), (1, 0)))
        >>> padded.real_strides(), padded.real_strides(ignore_valid=True)
        ((3, None), (3, 1))
        """
        views = self.simplify().views
        if len(views) > 1:
            return (None,) * len(self.shape)
        strides = views[0].strides
        return tuple(None if not ignore_valid and self.axis_is_masked(axis) else stride
                     for axis, stride in enumerate(strides))

    def real_size(self) -> SInt:
        """Return the number of elements that memory must have: the last address read, plus one.

        >>> ShapeTracker.from_shape((2, 3)).pad(((1, 1), (0, 0))).real_size()
        6
        >>> ShapeTracker.from_shape((4, 6)).shrink(((1, 3), (2, 5))).real_size()
        17
        """
        first = self.views[0]
        if any(isinstance(s, int) and s == 0 for s in self.shape):
            return 0
        last: SInt = first.offset
        for (begin, end), stride, size in zip(first.bounds, first.strides, first.shape):
            if isinstance(size, int) and isinstance(begin, int) and isinstance(end, int) and end <= begin:
                return 0  # nothing but padding
            last = last + ((end - 1) * stride if not isinstance(stride, int) or stride > 0 else begin * stride)
        return last + 1

    def unit_stride_axes(self, ignore_valid: bool = False) -> list[int]:
        """Return the axes along which elements are adjacent in memory.

        >>> ShapeTracker.from_shape((2, 3)).unit_stride_axes()
        [1]
        """
        return [axis for axis, stride in enumerate(self.real_strides(ignore_valid)) if stride == 1]

    if not TYPE_CHECKING:  # a type checker finds missing attributes itself
        def __getattr__(self, name):
            return missing_attribute(self, name)

    def axis_is_masked(self, axis: int) -> bool:
        """Return True if the index along ``axis`` can decide whether an element is padding.

        Exact if the views compose into one; else also True for an axis with a stride above a masked lower view.

        >>> padded = ShapeTracker.from_shape((2, 3)).pad(((0, 0), (1, 0)))
        >>> padded.axis_is_masked(0), padded.axis_is_masked(1)
        (False, True)

        Raises:
            AxisError: if there is no such axis.
        """
        if not 0 <= axis < len(self.shape):
            raise AxisError("axis_is_masked", f"axis {axis} of shape {self.shape}", f"0 to {len(self.shape) - 1}")
        *below, last = self.simplify().views
        if last.bounds[axis] != (0, last.shape[axis]):
            return True
        return last.strides[axis] != 0 and any(view.mask is not None for view in below)


def _simple(value: Any) -> Any:
    """Simplify a symbolic address or condition; return a number if only one value is possible."""
    if isinstance(value, int):
        return value
    found = value.simplify()
    return found if found.vmin < found.vmax else found.vmin
