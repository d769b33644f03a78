"""Merging kernels into one: the conditions, and the merged kernel."""
from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

from tinsmith.ir import Ops, UOp
from tinsmith.ir.uop import substitute, toposort
from tinsmith.schedule.memory.dependencies import A, joinable, toposorted
from tinsmith.schedule.schedule_item import ScheduleItem

MOST_BUFFERS = 30  # arguments of a merged kernel
MOST_NODES = 400  # nodes of a merged kernel's graph

AS_IT_LIES = (Ops.RESHAPE, Ops.CONTIGUOUS, Ops.DETACH)


class Part(NamedTuple):
    """The part of a kernel that a merged kernel takes: some of its values, and the slots they are written to."""

    item: ScheduleItem
    values: Sequence[UOp]
    written: Sequence[int]


def values_of(item: ScheduleItem) -> tuple[UOp, ...]:
    """Return the values a kernel computes."""
    assert item.sink is not None
    return item.sink.src


def merged(members: Sequence[ScheduleItem], same: str) -> ScheduleItem:
    """Return one item for several, with all their results; ``same`` names their common property in the reason."""
    if len(members) == 1:
        return members[0]
    item = taken_together([Part(m, values_of(m), m.written) for m in members],
                          f"{len(members)} kernels fused horizontally (same {same})")
    item.tiles = frozenset().union(*(m.tiles for m in members))
    return item


def taken_together(parts: Sequence[Part], what: str, kept: Iterable[int] | None = None) -> ScheduleItem:
    """Return one item for parts of several, producers first.

    Its slots are the written ones that are ``kept`` (None: all), then each input once; ``what`` begins the reason.
    """
    written = list(kept) if kept is not None else [s for p in parts for s in p.written]
    inside = {s for p in parts for s in (*p.item.written, *p.written)}
    slots = [*written, *dict.fromkeys(s for p in parts for s in p.item.read if s not in inside)]
    number = {s: n for n, s in enumerate(slots)}
    values: dict[int, UOp] = {}
    for p in parts:
        read = {n: p.item.slots[n.arg[0]] for n in toposort(p.values) if n.op is Ops.PARAM}
        table = {n: values[s] if s in values else n.replace(arg=(number[s], n.arg[1])) for n, s in read.items()}
        values.update(zip(p.written, substitute(p.values, table)))
    reasons = "; ".join(dict.fromkeys(p.item.reason for p in parts))
    origin = list(dict.fromkeys(o for p in parts for o in p.item.origin))
    sink = UOp(Ops.SINK, None, tuple(values[s] for s in written))
    return ScheduleItem(parts[0].item.device, sink, slots, f"{what}: {reasons}", origin, outputs=len(written))


def may_join(items: Sequence[A], group: Sequence[A], late: Collection[int] = ()) -> bool:
    """Return True if ``group`` can be one kernel: its arguments are few enough, and merging creates no cycle.

    ``late`` slots are known only after all loops, so neither the group nor a path back into it may read them.
    """
    slots = {s for i in group for s in (*i.written, *i.read)}
    return len(slots) + len(late) <= MOST_BUFFERS and joinable(items, group, late)


def replaced(items: Sequence[A], group: Sequence[A], new: Sequence[A]) -> list[A]:
    """Return the items with ``new`` in place of ``group``, at the position of its last item."""
    inside = {id(i) for i in group}
    last = max(n for n, i in enumerate(items) if id(i) in inside)
    return toposorted([*(i for i in items[:last] if id(i) not in inside), *new, *items[last + 1 :]])


def reads_by_rows(item: ScheduleItem, slots: Collection[int], count: int, after: Callable[[UOp], bool]) -> bool:
    """Return True if a kernel reads slots of ``count`` elements (one per row) only row by row.

    They may be broadcast only by EXPANDs for which ``after`` holds: along axes after the rows.
    """
    below: set[UOp] = set()
    for n in toposort(values_of(item)):
        if n.op is Ops.PARAM and item.slots[n.arg[0]] in slots:
            below.add(n)
        elif below.isdisjoint(n.src) or (n.op is Ops.EXPAND and after(n)):
            continue
        elif n.size == count and (n.op.elementwise or n.op in AS_IT_LIES):
            below.add(n)
        else:
            return False
    return True
