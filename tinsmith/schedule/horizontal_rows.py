"""Horizontal fusion of kernels that compute the same tiles for the same rows: a stream's statistics and its
contractions.

Attention forward stores its rows' statistics, which its gradient needs, from the kernel that uses them; the gradients
of keys and values share their tiles. Two kernels merge unless something outside has to run between them.
"""
from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

from tinsmith.backend.device import Device
from tinsmith.codegen.accumulators import block_of, crossing
from tinsmith.codegen.lower import lower
from tinsmith.codegen.normalize import normalize
from tinsmith.core.dtypes import dtypes
from tinsmith.ir import Ops, UOp
from tinsmith.ir.structure import contraction
from tinsmith.ir.uop import toposort
from tinsmith.schedule.horizontal import MOST_BUFFERS, merged
from tinsmith.schedule.items import Schedule, ScheduleItem
from tinsmith.schedule.order import joinable, toposorted


def fuse_rows(schedule: Schedule) -> list[ScheduleItem]:
    """The items with such kernels merged, in an order that respects what reads what."""
    items = schedule.items
    home = list(range(len(items)))  # item → the group that it runs in, named by its first member
    for n, item in enumerate(items):
        if not item.tiles or item.variables:
            continue
        for g in dict.fromkeys(home[m] for m in range(n) if items[m].tiles & item.tiles or _crossed(items[m], item)):
            members = [m for m in range(n) if home[m] == g]
            group = [*(items[m] for m in members), item]
            if _fit(items, members, item) and _joinable(items, home, g, n) and _one_walk(group):
                home[n] = g
                break
    if home == list(range(len(items))):
        return items
    return toposorted([merged(g.members) for g in _groups(items, home)])


class _Group(NamedTuple):
    """Items that run as one."""

    members: list[ScheduleItem]
    written: list[int]
    read: list[int]


def _groups(items: Sequence[ScheduleItem], home: Sequence[int]) -> list[_Group]:
    """The groups in the order of their last members."""
    found: dict[int, list[ScheduleItem]] = {}
    for g, item in reversed(list(zip(home, items))):
        found.setdefault(g, []).insert(0, item)
    groups = []
    for members in reversed(found.values()):
        written = [s for m in members for s in m.written]
        groups.append(_Group(members, written, [s for m in members for s in m.read if s not in written]))
    return groups


def _joinable(items: Sequence[ScheduleItem], home: Sequence[int], group: int, number: int) -> bool:
    """Whether an item, still alone, can join a group."""
    groups = toposorted(_groups(items, home))
    wanted = items[group], items[number]
    return joinable(groups, [g for g in groups if any(m is w for m in g.members for w in wanted)])


def _fit(items: Sequence[ScheduleItem], members: list[int], item: ScheduleItem) -> bool:
    """One device, not too many arguments, and no member reads another's contraction."""
    slots = set(item.slots).union(*(items[m].slots for m in members))
    contracted = {items[m].slots[0] for m in members if not items[m].statistics}
    same = all(items[m].device == item.device and not items[m].variables for m in members)
    return same and len(slots) <= MOST_BUFFERS and contracted.isdisjoint(item.read)


def _one_walk(members: list[ScheduleItem]) -> bool:
    """Whether one walk over the tiles computes all, as the code generator sees it: sums along both sides of the tiles
    leave no room for statistics of their rows, which have to be known before."""
    if not any(_crossed(a, b) for a in members for b in members if a is not b):
        return True
    return all(map(_sums_only, members)) and _crosses(merged(members).sink)


@functools.lru_cache(64)
def _crosses(sink: UOp) -> bool:
    return bool(crossing(normalize(lower(sink))))


def _crossed(a: ScheduleItem, b: ScheduleItem) -> bool:
    """Whether both sum up the same tiles, along different sides, with work for all cores in the rows that they share,
    and so that the tiles can be cut into blocks."""
    for node, axes in a.tiles:
        for other, others in b.tiles:
            if node is not other or axes == others or not all(isinstance(s, int) for s in node.shape):
                continue
            shared = math.prod(s for s, x, y in zip(node.shape, axes, others) if x and y)
            sides = [s for s, x, y in zip(node.shape, axes, others) if x is not y and s > 1]
            target = Device[a.device].target
            whole = all(block_of(s, target.core.tile_blocks) for s in sides)
            if shared >= target.costs.rows and len(sides) == 2 and whole:
                return _sums_only(a) and _sums_only(b)
    return False


def _sums_only(item: ScheduleItem) -> bool:
    """Whether a kernel holds contractions alone, no statistics, and its result keeps partial sums exactly enough."""
    assert item.sink is not None
    reduces = [n for n in toposort(item.sink) if n.op is Ops.REDUCE]
    wide = all(v.dtype in (dtypes.float32, dtypes.float64) for v in item.sink.src)
    return wide and not item.statistics and all(map(contraction, reduces))
