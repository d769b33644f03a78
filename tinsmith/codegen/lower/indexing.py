"""Index maps of movement ops, and footprints: the elements of a value that loops access.

A movement op maps each output element to its source index and the condition under which it exists. A footprint is a box
along one loop or a sum of loops.
"""
from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from tinsmith.core.dtypes import dtypes
from tinsmith.ir import Ops, UOp
from tinsmith.ir.algebra.sizes import linear_form, normal_size, weighted_sum
from tinsmith.ir.structure import Role, range_size
from tinsmith.ir.uop import toposort

Index = tuple[UOp, ...]
ZERO = UOp.index(0)


def reshape_index(old: tuple[object, ...], new: tuple[object, ...], index: Index) -> Index:
    """Return the coordinates in shape ``old`` of the element at ``index`` of shape ``new``.

    Axes are matched in groups of equal size, so that unchanged axes pass through and only real splits and merges cost a
    division.
    """
    out: list[UOp] = []
    i = j = 0
    while i < len(old) or j < len(new):
        if i < len(old) and j < len(new) and old[i] == new[j]:
            out.append(index[j])
            i, j = i + 1, j + 1
            continue
        if i < len(old) and old[i] == 1 and type(old[i]) is int:
            out.append(ZERO)
            i += 1
            continue
        if j < len(new) and new[j] == 1 and type(new[j]) is int:
            j += 1
            continue
        if i == len(old) or j == len(new):  # sizes whose product is 1, perhaps only for the values of their variables
            return (*out, *[ZERO] * (len(old) - i))
        first_i, first_j = i, j
        a, b = old[i], new[j]
        i, j = i + 1, j + 1
        while a != b:
            if _smaller(a, b) and i < len(old):
                a, i = _times(a, old[i]), i + 1
            elif j < len(new):
                b, j = _times(b, new[j]), j + 1
            elif i < len(old):
                a, i = _times(a, old[i]), i + 1
            else:
                break
        flat = flatten(new[first_j:j], index[first_j:j])
        out.extend(unflatten(old[first_i:i], flat))
    return tuple(out)


def _times(a: Any, b: Any) -> Any:
    """Return the product of two sizes in normal form."""
    return normal_size(a * b)


def _smaller(a: Any, b: Any) -> bool:
    return bool((a.vmax if isinstance(a, UOp) else a) < (b.vmax if isinstance(b, UOp) else b))


def flatten(shape: Sequence[object], index: Sequence[UOp]) -> UOp:
    """Return the row-major offset of ``index`` in ``shape``."""
    if all(type(size) is int for size in shape):
        strides = list(itertools.accumulate(reversed(shape[1:]), operator.mul, initial=1))
        return weighted_sum(zip(index, reversed(strides)))
    flat: UOp = ZERO
    stride: UOp = UOp.index(1)
    for size, i in zip(reversed(shape), reversed(index)):
        flat = i * stride + flat
        stride = stride * UOp.index(size)
    return flat.simplify()


def unflatten(shape: tuple[object, ...], flat: UOp) -> list[UOp]:
    """Return the coordinates in ``shape`` of a row-major offset."""
    out: list[UOp] = []
    for n, size in reversed(list(enumerate(shape))):
        s = UOp.index(size)
        out.append((flat % s if n else flat).simplify())
        flat = (flat // s).simplify()
    return out[::-1]


def move(node: UOp, index: Index) -> tuple[Index, UOp | None]:
    """Return, for a movement node, the source's index and the condition under which the element exists (None: always).
    """
    old = node.src[0].shape
    if node.op is Ops.RESHAPE:
        return reshape_index(old, node.shape, index), None
    if node.op is Ops.EXPAND:
        return tuple(ZERO if type(s) is int and s == 1 else i for s, i in zip(old, index)), None
    if node.op is Ops.PERMUTE:
        out = [ZERO] * len(index)
        for to, axis in enumerate(node.arg):
            out[axis] = index[to]
        return tuple(out), None
    if node.op is Ops.SHRINK:
        return tuple((i + UOp.index(b)).simplify() for i, (b, _) in zip(index, node.arg)), None
    if node.op is Ops.FLIP:
        return tuple((UOp.index(s) - 1 - i).simplify() if n in node.arg else i
                     for n, (i, s) in enumerate(zip(index, old))), None
    if node.op is Ops.PAD:
        return _pad(node, index)
    w = node.arg
    if node.op is Ops.WINDOW:
        at = (index[w.axis] * w.stride + index[w.window_axis] * w.dilation).simplify()
        return (*index[: w.axis], at, *index[w.axis + 1 :]), None
    assert node.op is Ops.UNWINDOW, node.op
    start = (index[w.axis] - index[w.window_axis] * w.dilation).simplify()
    valid = start.ge(0) & (start // w.stride).lt(old[w.axis])
    if w.stride > 1:
        valid = valid & (start % w.stride).eq(0)
    at = (start // w.stride).simplify()
    return (*index[: w.axis], at, *index[w.axis + 1 :]), valid.simplify()


def place_in(view: UOp, index: Index) -> tuple[UOp, Index]:
    """Return the base of a view and the coordinates there of its element at ``index``."""
    while view.op.kind == "movement":
        index, view = move(view, index)[0], view.src[0]
    return view, tuple(i.simplify() for i in index)


def _pad(node: UOp, index: Index) -> tuple[Index, UOp | None]:
    valid: UOp | None = None
    out: list[UOp] = []
    for i, (before, after), size in zip(index, node.arg, node.src[0].shape):
        at = (i - UOp.index(before)).simplify()
        out.append(at)
        for needed, condition in ((before, at.ge(0)), (after, at.lt(UOp.index(size)))):
            if not (type(needed) is int and needed == 0):
                valid = condition if valid is None else valid & condition
    return tuple(out), None if valid is None else valid.simplify()


def moved_back(node: UOp, view: UOp) -> UOp:
    """Return ``view`` with the movement op ``node`` inverted: a view with the shape of the source of ``node``.

    The elements that a SHRINK drops are padding in the result, because the viewed value has no position for them.
    """
    below = node.src[0].shape
    if node.op is Ops.RESHAPE:
        return view.reshape(below)
    if node.op is Ops.PERMUTE:
        return view.permute(tuple(map(node.arg.index, range(len(below)))))
    if node.op is Ops.FLIP:
        return view.flip(node.arg)
    if node.op is Ops.PAD:
        return view.shrink(tuple((b, b + s) for (b, _), s in zip(node.arg, below)))
    assert node.op is Ops.SHRINK, node.op
    return view.pad(tuple((b, s - e) for (b, e), s in zip(node.arg, below)))


class Footprint(NamedTuple):
    """A box along one sum ``Σ weight·range`` (the first weight is 1) with overlapping steps: ``size`` values from
    ``low`` on. The value depends on its ranges only through this sum."""

    weights: dict[UOp, int]
    low: int
    size: int

    @property
    def lead(self) -> UOp:
        return next(iter(self.weights))

    @property
    def position(self) -> UOp:
        """Return the index of an element in the box."""
        return sum((r * weight for r, weight in self.weights.items()), UOp.index(-self.low)).simplify()


def footprints(value: UOp, inside: list[UOp]) -> list[Footprint]:
    """Group ``inside`` into boxes: y and ky of y + ky, or x and kx of x*stride - kx, form one box, if their sizes are
    fixed."""
    boxes, left = list[Footprint](), list(inside)
    sums = _sums([value])
    while left:
        r = left.pop(0)
        pairs = ((p, unit, other) for p in left for unit, other in ((r, p), (p, r))
                 if not r.arg[1].expanded and not p.arg[1].expanded
                 and isinstance(range_size(r), int) and isinstance(range_size(p), int))
        found = next(((p, unit, other, k) for p, unit, other in pairs
                      if 0 < abs(k := _weight(sums, unit, other)) < range_size(unit)), None)
        if found is None:
            boxes.append(Footprint({r: 1}, 0, range_size(r)))
            continue
        partner, unit, other, k = found
        left.remove(partner)
        reach = k * (range_size(other) - 1)
        boxes.append(Footprint({unit: 1, other: k}, min(reach, 0), range_size(unit) + abs(reach)))
    return boxes


def windows(value: UOp, ranges: Sequence[UOp]) -> Iterator[Footprint]:
    """Yield, for each range as the lead, the window formed with the ranges of longer steps that overlap it."""
    sums = _sums([value])
    for lead in ranges:
        weights, size = {lead: 1}, range_size(lead)
        steps = [(k, r) for r in ranges if r is not lead and (k := _weight(sums, lead, r)) > 0]
        for k, r in sorted(steps, key=lambda step: step[0]):
            if k < size:
                weights, size = weights | {r: k}, size + k * (range_size(r) - 1)
        yield Footprint(weights, 0, size)


def _sums(roots: Iterable[UOp]) -> list[UOp]:
    """Return the integer sums inside index and guard expressions."""
    return [s for root in roots for s in ([root] if root.dtype is dtypes.index else (
        s for n in toposort(root) if n.dtype is not dtypes.index for s in n.src if s.dtype is dtypes.index))]


def _weight(sums: Sequence[UOp], unit: UOp, other: UOp) -> int:
    """Return the number of steps of ``unit`` per step of ``other``, in all sums with either; 0 if the sums disagree."""
    found = set[int]()
    for terms in (linear_form(root)[0] for root in sums):
        a, b = terms.get(unit, 0), terms.get(other, 0)
        if any((unit in t.ranges or other in t.ranges) and t is not unit and t is not other for t in terms):
            return 0
        if a or b:
            found.add(b // a if a and b % a == 0 else 0)
    return found.pop() if len(found) == 1 else 0


def memory_order(value: UOp, box: Footprint) -> tuple[int, int]:
    """Return a sort key for the loops of a tile: the order of the source memory, so that copying is sequential."""
    lead = box.lead
    load = next((n for n in toposort(value) if n.op is Ops.LOAD), None)
    stride = 0 if load is None else abs(linear_form(load.src[1])[0].get(lead, 0))
    return layout_rank(lead), -stride if layout_rank(lead) == 0 else 0


def layout_rank(r: UOp) -> int:
    """Return a range's rank in a tile's layout: loops, then register copies, then lanes (fastest), for vector loads."""
    return {Role.UPCAST: 1, Role.VECTOR: 2}.get(r.arg[1], 0)


def strides(value: UOp) -> dict[UOp, int]:
    """Return the largest stride of each range in the index sums of a value."""
    found: dict[UOp, int] = {}
    for n in toposort(value):
        if n.op in (Ops.ADD, Ops.MUL, Ops.RANGE) and n.dtype is dtypes.index:
            for term, factor in linear_form(n)[0].items():
                if term.op is Ops.RANGE:
                    found[term] = max(found.get(term, 0), abs(factor))
    return found
