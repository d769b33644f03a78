"""Store into concatenation: the parts of an assembled value are written directly to their final positions.

    y = pad(a) + pad(b), disjoint positions      →      y[positions of a] = a, y[positions of b] = b

An example are the phases of a strided convolution's data gradient. A part that nothing else reads becomes an ASSIGN to
a view of the assembled value: its movement ops are inverted, from the assembled value to the part. Elements of a part
that would land outside the assembled value are not computed.
"""
from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from itertools import combinations
from typing import NamedTuple

from tinsmith.backend.device import Device
from tinsmith.codegen.lower.indexing import moved_back, place_in
from tinsmith.core.dtypes import DType
from tinsmith.core.settings import settings
from tinsmith.ir import Ops, UOp
from tinsmith.ir.algebra.linear import linear_form
from tinsmith.ir.ops import FOR_GRADIENTS
from tinsmith.ir.uop import toposort
from tinsmith.schedule.places import Places, apart, inside
from tinsmith.schedule.schedule_item import Schedule, ScheduleItem

Box = tuple[tuple[int, int], ...]


class _Part(NamedTuple):
    """One part of an assembled value.

    Attributes:
        slot: the slot that holds the part now.
        view: the view of the assembled value (PARAM 0) that has the part's shape.
        casts: dtypes that the part is cast to, first to last.
        box: (begin, end) along each axis of the part: the elements that lie inside the assembled value.
        places: the positions that the part fills along each axis of the assembled value.
    """

    slot: int
    view: UOp
    casts: tuple[DType, ...]
    box: Box
    places: tuple[Places, ...]

    def stored(self, value: UOp) -> UOp:
        """Return the ASSIGN of ``value`` to this part of the assembled value (PARAM 0)."""
        return UOp(Ops.ASSIGN, None, (self.view.shrink(self.box), reduce(UOp.cast, self.casts, value.shrink(self.box))))


def store_in_place(schedule: Schedule) -> list[ScheduleItem]:
    """Return the items with parts stored directly, and without the kernels that only assembled them.

    Returns the items unchanged under a memory budget, whose rematerialization works on single values.
    """
    items = schedule.items
    if settings.memory_limit:
        return items
    readers = Counter(s for i in items for s in i.read)
    makers = {i.slots[0]: (i, value) for i in items if (value := _value_of(i)) is not None}
    for whole in items:
        if (value := _value_of(whole)) is None:
            continue
        parts = _parts(value, UOp(Ops.PARAM, value.dtype, (), (0, value.shape)), (), whole.slots)
        own = [p for p in parts if p is not None and p.slot in makers and readers[p.slot] == 1 and not (
            schedule.slots[p.slot].output) and makers[p.slot][0].device == whole.device]
        least = Device[whole.device].target.costs.sector // value.dtype.itemsize
        if not value.shape or len(own) < 2 or len(own) < len(parts) or not _fill(own, value.shape, least):
            continue
        for p in own:
            made, stored = makers[p.slot]
            items = [replace(made, sink=UOp(Ops.SINK, None, (p.stored(stored),)), slots=[whole.slots[0], *made.read],
                             reason="stored directly into its part of a concatenated value",
                             origin=[*made.origin, *whole.origin])
                     if i is made else i for i in items if i is not whole]
        schedule.slots[whole.slots[0]].in_parts = True
    return items


def _value_of(item: ScheduleItem) -> UOp | None:
    """Return the value an item stores if it is a single output of fixed shape, computed by a plain kernel; else
    None."""
    if item.sink is None or item.outputs > 1 or item.sink.arg is not None or item.variables or item.tiles:
        return None
    value = item.sink.src[0]
    return None if value.op in (Ops.ASSIGN, Ops.SCATTER, Ops.SCAN, Ops.HISTOGRAM, Ops.COPY, Ops.HOST) else value


def _parts(value: UOp, view: UOp, casts: tuple[DType, ...], slots: Sequence[int]) -> list[_Part | None]:
    """Return the terms of the sum ``value`` as parts: each a stored value surrounded by
    zeros; ``[None]`` if one is not.

    ``view`` is the view of the assembled value with the shape of ``value``; the movement ops passed are inverted on it.
    """
    found, terms = list[_Part | None](), [(value, view, casts)]
    while terms:
        value, view, casts = terms.pop()
        if value.op is Ops.ADD:
            terms += [(s, view, casts) for s in reversed(value.src)]
            continue
        if value.op is Ops.PARAM:
            placed = _placed(view)
            found.append(placed and _Part(slots[value.arg[0]], view, casts, *placed))
        elif value.op is Ops.CAST:
            terms.append((value.src[0], view, (value.dtype, *casts)))
        elif value.op in (Ops.RESHAPE, Ops.PERMUTE, Ops.PAD) or (value.op is Ops.SHRINK and _keeps_axes(view)):
            terms.append((value.src[0], moved_back(value, view), casts))
        elif value.op in (Ops.CONTIGUOUS, *FOR_GRADIENTS):
            terms.append((value.src[0], view, casts))
        else:
            found.append(None)
        if found and found[-1] is None:
            return [None]
    return found


def _keeps_axes(view: UOp) -> bool:
    """Return True if a view neither splits nor joins axes, so that its positions are independent per axis."""
    return all(n.op in (Ops.PERMUTE, Ops.PAD, Ops.PARAM) or (n.op is Ops.RESHAPE and [s for s in n.shape if s != 1] == [
        s for s in n.src[0].shape if s != 1]) for n in toposort(view))


def _placed(view: UOp) -> tuple[Box, tuple[Places, ...]] | None:
    """Return the box of a view inside the assembled value, and its positions along each axis.

    None if an axis of the view feeds several axes, if the inside is not a box, or if positions repeat.
    """
    ranges = [UOp.range(s, n, None) for n, s in enumerate(view.shape)]
    whole, index = place_in(view, tuple(ranges))
    box, known, seen = dict[UOp, tuple[int, int]]((r, (0, r.vmax + 1)) for r in ranges), list[Places](), set[UOp]()
    for at, size in zip(index, whole.shape):
        terms, first = linear_form(at)
        if not terms.keys() <= box.keys() - seen:
            return None
        seen.update(terms)
        inner = sorted(terms, key=lambda r: -terms[r])
        boxes = inside(Places(first, tuple((terms[r], r.vmax + 1) for r in inner)), size)
        if len(boxes) != 1:
            return None
        (bounds,) = boxes
        box |= zip(inner, bounds)
        first += sum(terms[r] * begin for r, (begin, _) in zip(inner, bounds))
        known.append(Places(first, tuple((terms[r], e - b) for r, (b, e) in zip(inner, bounds) if e - b > 1)))
        if not known[-1].differ:
            return None
    return tuple(box[r] for r in ranges), tuple(known)


def _fill(parts: Sequence[_Part], shape: tuple[int, ...], least: int) -> bool:
    """Return True if the parts are disjoint, cover ``shape``, and are contiguous along the last
    axis in multiples of ``least``."""
    separate = all(any(map(apart, a.places, b.places)) for a, b in combinations(parts, 2))
    wide = all(p.places[-1].side_by_side and p.places[-1].number % least == 0 for p in parts)
    return separate and wide and sum(math.prod(at.number for at in p.places) for p in parts) == math.prod(shape)
