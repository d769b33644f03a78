"""Stores into parts of a value: writes to slices, and parts of a concatenation.

**Slice writes**: only the written part is stored if the new version takes the memory of the old one.

    new = where(inside, placed(v), old)      →      new = old (skipped if ``new`` is in the memory of ``old``)
                                                    new[part] = v

A write through a view is recorded as a select between the written values, placed by movement ops, and the old version.
Here it becomes an item that *carries* the old version over, and one that stores the part: time and traffic of a write
in place are those of the part. Values that are computed from other elements of the old version are stored first.

**Concatenation**: the parts of an assembled value are stored directly at their final positions.

    y = pad(a) + pad(b), disjoint positions      →      y[positions of a] = a, y[positions of b] = b

The phases of a strided convolution's data gradient are an example. A part that nothing else reads becomes an ASSIGN to
a view of the assembled value: its movement ops are inverted, from the assembled value to the part. Elements of a part
that would fall outside the assembled value are not computed.
"""
from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from itertools import combinations
from typing import Final, NamedTuple

from tinsmith.backend.device import Device
from tinsmith.codegen.lower.indexing import moved_back, place_in
from tinsmith.codegen.lower.lower import lower
from tinsmith.core.dtypes import DType
from tinsmith.core.settings import settings
from tinsmith.ir import Ops, UOp
from tinsmith.ir.algebra.sizes import linear_form
from tinsmith.ir.ops import FOR_GRADIENTS
from tinsmith.ir.uop import substitute, toposort
from tinsmith.schedule.multi.collectives import workers
from tinsmith.schedule.schedule_item import Schedule, ScheduleItem, Slot
from tinsmith.schedule.values import Places, apart, inside

# Bytes of a tensor below which one kernel that writes all of it is faster than two launches: a launch takes 2 to 10 µs,
# in which a core moves about this much.
LEAST: Final = 1 << 16
LARGEST_PART: Final = 0.5  # share of the tensor from which on its parts are not written separately
_MOVES = (Ops.RESHAPE, Ops.PERMUTE, Ops.PAD, Ops.FLIP, Ops.SHRINK)


class _Write(NamedTuple):
    """A write to a part of the output (PARAM 0).

    Attributes:
        part: an ASSIGN to a view of PARAM 0, or a SCATTER into it; the last source holds the values.
        old: the number of the old version's PARAM.
    """

    part: UOp
    old: int

    @property
    def value(self) -> UOp:
        return self.part.src[-1]


def write_slices(schedule: Schedule) -> list[ScheduleItem]:
    """Return the items with writes to parts of an input's memory split; adds slots for values to store first.

    Returns the items unchanged under a memory budget, whose rematerialization works on single values, and on several
    devices, whose order is decided later.
    """
    items: list[ScheduleItem] = []
    if not schedule.versions or settings.memory_limit or len(workers(i.device for i in schedule.items)) > 1:
        return schedule.items
    schedule.items = _without_copies(schedule)
    last = {s: n for n, item in enumerate(schedule.items) for s in item.read}
    for n, item in enumerate(schedule.items):
        items += _split(schedule, item, {s for s in item.read if last[s] > n})
    return items


def _without_copies(schedule: Schedule) -> list[ScheduleItem]:
    """Return the items without copies of a whole temporary to a new version of a tensor.

    The kernel that computed the temporary writes to the new version's slot instead.
    """
    slots, renamed = schedule.slots, dict[int, int]()
    kept = []
    for item in schedule.items:
        if (source := _copied(schedule, item)) is None or source in renamed:
            kept.append(item)
            continue
        renamed[source] = item.slots[0]
        slots[item.slots[0]].in_parts |= slots[source].in_parts
    for node, slot in schedule.slot_of.items():
        schedule.slot_of[node] = renamed.get(slot, slot)
    return [replace(i, slots=[renamed.get(s, s) for s in i.slots]) if not renamed.keys().isdisjoint(i.slots) else i
            for i in kept]


def _copied(schedule: Schedule, item: ScheduleItem) -> int | None:
    """Return the slot of the temporary that an item copies unchanged to a new version; None if the item does anything
    else."""
    if item.sink is None or item.sink.arg is not None or len(item.slots) != 2 or item.slots[0] not in schedule.versions:
        return None
    value = _below_reshapes(item.sink.src[0])
    new, old = (schedule.slots[s] for s in item.slots)
    same = (new.size, new.dtype, new.device, new.may_be_empty) == (old.size, old.dtype, old.device, old.may_be_empty)
    whole = value.op is Ops.PARAM and value.size == new.size
    return old.number if same and whole and not (old.input or old.output) else None


def _split(schedule: Schedule, item: ScheduleItem, later: set[int]) -> list[ScheduleItem]:
    """Return ``item`` without the outputs that write a part of a tensor, followed by the items of each such output.

    For each output: an item that carries the old version over; if the values depend on other elements of the old
    version, an item that computes them into a temporary; and an item that stores the part.
    """
    if item.sink is None or item.sink.arg is not None or item.tiles:
        return [item]
    writes = {n: _write(schedule, item, n, value, later) for n, value in enumerate(item.sink.src)}
    found = {n: write for n, write in writes.items() if write is not None}
    if not found:
        return [item]
    rest = [n for n in range(item.outputs) if n not in found]
    items = [_with(item, [(item.slots[n], item.sink.src[n]) for n in rest], item.reason)] if rest else []
    for n, write in found.items():
        slot, old = schedule.slots[item.slots[n]], item.slots[write.old]
        whole = UOp(Ops.PARAM, write.value.dtype, (), (1, (slot.size,)))
        carry = ScheduleItem(item.device, UOp(Ops.SINK, None, (whole,)), [slot.number, old],
                             "the old version, where it can still be read", item.origin, carries=True)
        slot.in_parts, value = True, write.value
        if not _reads_only_what_it_writes(write):
            first = Slot(len(schedule.slots), value.size, value.dtype, slot.device, shape=value.shape,
                         origin=slot.origin)
            schedule.slots.append(first)
            items.append(_with(item, [(first.number, value)], "computed from elements that are written over"))
            value = UOp(Ops.PARAM, value.dtype, (), (len(item.slots), value.shape))
            item = replace(item, slots=[*item.slots, first.number])
        part = write.part.replace(src=(*write.part.src[:-1], value))
        items += [carry, _with(item, [(slot.number, part)], "a part of a tensor, written in place")]
    return items


def _with(item: ScheduleItem, results: Sequence[tuple[int, UOp]], reason: str) -> ScheduleItem:
    """Return an item that stores ``results`` (slot, value over the PARAMs of ``item``), with the PARAMs renumbered."""
    written = [slot for slot, _ in results]
    read = [n for n in toposort([v for _, v in results]) if n.op is Ops.PARAM and n.arg[0] > 0]  # 0 is the output
    inputs = list(dict.fromkeys(item.slots[n.arg[0]] for n in read))
    number = {slot: len(written) + k for k, slot in enumerate(inputs)}
    values = substitute([v for _, v in results],
                        {n: n.replace(arg=(number[item.slots[n.arg[0]]], n.arg[1])) for n in read})
    return replace(item, sink=UOp(Ops.SINK, None, tuple(values)), slots=[*written, *inputs], reason=reason,
                   outputs=len(written))


def _write(schedule: Schedule, item: ScheduleItem, n: int, value: UOp, later: set[int]) -> _Write | None:
    """Return output ``n`` of a kernel as a write to a part of an input that is not read later; None if it is not such a
    write."""
    slot = schedule.slots[item.slots[n]]
    if slot.number not in schedule.versions or slot.nbytes < LEAST or slot.in_parts or any(
            isinstance(s, UOp) for s in value.shape):
        return None
    value = _below_reshapes(value)
    kept = {Ops.WHERE: 2, Ops.SCATTER: 0}.get(value.op)
    old = None if kept is None else _below_reshapes(value.src[kept])
    if old is None or old.op is not Ops.PARAM or slot.size != value.size:
        return None
    if item.slots[old.arg[0]] in later or item.slots[old.arg[0]] != schedule.inputs.get(schedule.versions[slot.number]):
        return None
    output = UOp(Ops.PARAM, value.dtype, (), (0, value.shape))
    part = _selected(value, output) if value.op is Ops.WHERE else _scattered(value, output, old)
    if part is None or any(isinstance(s, UOp) for s in part.src[-1].shape):
        return None
    return _Write(part, old.arg[0]) if part.src[-1].size <= LARGEST_PART * slot.size else None


def _below_reshapes(value: UOp) -> UOp:
    while value.op is Ops.RESHAPE:
        value = value.src[0]
    return value


def _scattered(value: UOp, output: UOp, old: UOp) -> UOp | None:
    """Return a SCATTER into an old version as one into the output; None if its positions depend on that version."""
    if value.arg[1] is Ops.ASSIGN or old in toposort(value.src[1]):  # that kind has no base: it writes all elements
        return None
    return value.replace(src=(output, *value.src[1:]))


def _selected(value: UOp, output: UOp) -> UOp | None:
    """Return a select between placed values and the old version as an ASSIGN to a view of the output."""
    condition, placed, _ = value.src
    if condition.op is not Ops.CMPNE or condition.src[1].base.op is not Ops.CONST or condition.src[1].base.arg != 0:
        return None
    part = _unplaced(condition.src[0], placed, output)
    return None if part is None else UOp(Ops.ASSIGN, None, part)


def _unplaced(inside: UOp, placed: UOp, view: UOp) -> tuple[UOp, UOp] | None:
    """Return the view of the tensor that a write fills, and its values; None if they are not placed like ``inside``.

    ``inside`` is 1 at the written elements: a constant, placed by the same movement ops as the values.
    """
    if inside.base.op is Ops.PAD or any(n.op not in (*_MOVES, Ops.EXPAND, Ops.CONST) for n in toposort(inside)):
        return None
    padded = False
    while any(n.op is Ops.PAD for n in toposort(inside)):
        if inside.op not in _MOVES or placed.op is not inside.op or placed.arg != inside.arg:
            return None
        padded |= inside.op is Ops.SHRINK
        view, inside, placed = moved_back(inside, view), inside.src[0], placed.src[0]
    if toposort(inside)[0].op is not Ops.CONST or view.shape != placed.shape:
        return None
    return None if padded and not _within(view) else (view, placed)


def _within(view: UOp) -> bool:
    """Return True if all positions of a padded view provably lie inside of the tensor."""
    ranges = tuple(UOp.range(s, n, None) for n, s in enumerate(view.shape))
    whole, index = place_in(view, ranges)
    return all((at := i.simplify()).vmin >= 0 and at.vmax < s for i, s in zip(index, whole.shape))


def _reads_only_what_it_writes(write: _Write) -> bool:
    """Return True if the kernel reads only that element of the old version which it writes next."""
    if not any(n.op is Ops.PARAM and n.arg[0] == write.old for n in toposort(write.value)):
        return True
    if write.part.op is not Ops.ASSIGN:
        return False
    stores = lower(UOp(Ops.SINK, None, (write.part,))).src
    return all(n.src[1] is store.src[1] for store in stores for n in toposort(store)
               if n.op is Ops.LOAD and n.src[0].op is Ops.PARAM and n.src[0].arg[0] == write.old)

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
    last = max((a for a, s in enumerate(shape) if s != 1), default=len(shape) - 1)
    separate = all(any(map(apart, a.places, b.places)) for a, b in combinations(parts, 2))
    wide = all(p.places[last].side_by_side and p.places[last].number % least == 0 for p in parts)
    return separate and wide and sum(math.prod(at.number for at in p.places) for p in parts) == math.prod(shape)
