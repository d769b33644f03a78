"""Composition of two stacked views into one.

The upper view yields a flat position; the lower view takes that position's mixed-radix digits. If every digit is an
affine function of the upper indices, and no digit carries into the next, the composition is a single view.
"""
from __future__ import annotations

from typing import NamedTuple

from tinsmith.shape.reshape import StridedRun, runs, widths
from tinsmith.shape.sint import Shape
from tinsmith.shape.view import View


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
