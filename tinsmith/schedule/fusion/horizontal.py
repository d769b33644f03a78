"""Horizontal fusion: independent kernels with common loops or inputs become one kernel with several outputs.

Three kinds are found, in this order:

- kernels over the same *tiles*: attention forward stores its rows' statistics, which its gradient needs, from the
  kernel that uses them; the gradients of keys and values share their tiles;
- *siblings*, such as optimizer updates and statistics of one tensor: their outputs have one shape, their reductions run
  over the same axes, and they read a common buffer, or one reads the other's outputs element by element (row by row, on
  targets that keep rows in registers), so the value is still in a register;
- *sums* of values that another kernel computes or reads (``horizontal_sums``).
"""
from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field
from itertools import product, takewhile
from operator import is_not
from typing import Any

from tinsmith.backend.device import Device
from tinsmith.codegen.lower.lower import lower
from tinsmith.codegen.lower.normalize import normalize
from tinsmith.codegen.transform.carried_accumulators import block_of, crossing
from tinsmith.core.dtypes import dtypes
from tinsmith.ir import Ops, UOp
from tinsmith.ir.ops.repeated import is_repeated
from tinsmith.ir.structure import contraction
from tinsmith.ir.uop import toposort
from tinsmith.schedule.fusion.horizontal_sums import fuse_sums
from tinsmith.schedule.fusion.kernel_merge import (
    MOST_BUFFERS,
    MOST_NODES,
    may_join,
    merged,
    reads_by_rows,
    replaced,
    values_of,
)
from tinsmith.schedule.memory.dependencies import toposorted
from tinsmith.schedule.schedule_item import Schedule, ScheduleItem

_ALONE = (Ops.SCATTER, Ops.SCAN, Ops.HISTOGRAM, Ops.HOST)
_PLAIN = (Ops.RESHAPE, Ops.EXPAND)


def fuse_horizontally(schedule: Schedule) -> list[ScheduleItem]:
    """Return the items with such kernels merged, in dependency order; adds slots for partial sums."""
    return fuse_sums(_siblings(_same_tiles(schedule.items)), schedule.slots)


# *** the same tiles ***


def _same_tiles(items: list[ScheduleItem]) -> list[ScheduleItem]:
    """Return the items with contractions merged that one loop nest over the same tiles can compute.

    Kernels of which one reads the other's contraction are not merged.
    """
    members = {id(i): [i] for i in items}
    for item in [i for i in items if i.tiles]:
        for other in takewhile(functools.partial(is_not, item), items):
            group = [*members[id(other)], item]
            late = [s for m in group if not m.statistics for s in m.written]
            if _one_walk(group) and may_join(items, [other, item], late):
                one = merged(group, "tiles")
                members[id(one)] = group
                items = replaced(items, [other, item], [one])
                break
    return items


def _one_walk(group: list[ScheduleItem]) -> bool:
    """Return True if the code generator can compute all kernels of a group in one walk over their tiles.

    Sums along both sides of the tiles exclude statistics of their rows, which would have to be known before the walk.
    """
    *members, item = group
    if any(m.variables or m.device != item.device for m in group):
        return False
    if not any(m.tiles & item.tiles or _crossed(m, item) for m in members):
        return False
    if not any(_crossed(a, b) for a, b in product(group, group) if a is not b):
        return True
    return all(map(_sums_only, group)) and _crosses(merged(group, "tiles").sink)


@functools.lru_cache(64)
def _crosses(sink: UOp) -> bool:
    return bool(crossing(normalize(lower(sink))))


def _crossed(a: ScheduleItem, b: ScheduleItem) -> bool:
    """Return True if both kernels sum the same tiles along different sides.

    Their common rows must have work for all cores, and both sides must divide into blocks.
    """
    target = Device[a.device].target
    for (node, axes), (other, others) in product(a.tiles, b.tiles):
        if node is not other or axes == others or not all(isinstance(s, int) for s in node.shape):
            continue
        shared = math.prod(s for s, x, y in zip(node.shape, axes, others) if x and y)
        sides = [s for s, x, y in zip(node.shape, axes, others) if x is not y and s > 1]
        whole = all(block_of(s, target.core.tile_blocks) for s in sides)
        if shared >= target.costs.rows and len(sides) == 2 and whole:
            return _sums_only(a) and _sums_only(b)
    return False


def _sums_only(item: ScheduleItem) -> bool:
    """Return True if a kernel contains only contractions, no statistics, and its dtype can hold partial sums."""
    wide = all(v.dtype in (dtypes.float32, dtypes.float64) for v in values_of(item))
    return wide and not item.statistics and all(contraction(n) for n in toposort(values_of(item)) if n.op is Ops.REDUCE)


# *** siblings ***


@dataclass(eq=False)
class _Siblings:
    """A group of items that become one kernel; ``key`` is None for items that never merge.

    Levels rise along every read: a group that this one reads has a lower level, and ``first_reader`` is the lowest
    level that reads this one. Two groups merge only if they can have the same level, so no merge creates a cycle.
    """

    level: int
    key: Any
    first_reader: int = 1 << 60
    members: list[int] = field(default_factory=list)
    slots: set[int] = field(default_factory=set)
    written: set[int] = field(default_factory=set)
    nodes: int = 0


def _siblings(items: list[ScheduleItem]) -> list[ScheduleItem]:
    """Return the items with siblings merged: independent kernels of equal loops that read a common input.

    One pass over items in dependency order.
    """
    groups: list[_Siblings] = []
    home: dict[int, _Siblings] = {}
    readers: dict[tuple[Any, int], _Siblings] = {}  # (key, slot) → the latest group of this key that reads the slot
    for number, item in enumerate(items):
        producers = list({id(home[s]): home[s] for s in item.read if s in home}.values())
        key, size = _key(item)
        group = _continued(item, key, size, producers)
        level = 1 + max((g.level for g in producers if g is not group), default=0)
        if group is None and key is not None:
            found = (readers.get((key, s)) for s in item.read)
            group = next((g for g in found if g is not None and g not in producers and level < g.first_reader
                          and _fits(item, size, g)), None)
        if group is None:
            group = _Siblings(level, key)
            groups.append(group)
        group.level = max(group.level, level)
        group.members.append(number)
        group.nodes += size
        group.slots.update(item.slots)
        group.written.update(item.written)
        home.update(dict.fromkeys(item.written, group))
        for p in producers:
            if p is not group:
                p.first_reader = min(p.first_reader, group.level)
        if key is not None:
            readers.update(((key, s), group) for s in item.read)
    groups.sort(key=lambda g: g.members[-1])
    return toposorted([merged([items[m] for m in g.members], "loops") for g in groups])


def _key(item: ScheduleItem) -> tuple[Any, int]:
    """Return the properties that siblings must share (None: never merged), and the number of nodes."""
    if item.sink is None or item.variables or item.tiles:
        return None, 0
    shape = values_of(item)[0].shape
    if not all(isinstance(s, int) for s in shape):
        return None, 0
    nodes = toposort(item.sink)
    reduces: set[Any] = set()
    for n in nodes:
        if n.op in _ALONE or not all(_in_order_of_memory(s) for s in n.src if n.op.kind != "movement"):
            return None, 0
        if n.op is Ops.REDUCE:
            if n.src[0].op is Ops.MUL and any(is_repeated(s, constants=False) for s in n.src[0].src):
                return None, 0
            reduces.add((n.src[0].shape, n.arg[1]))
    if reduces and any(n.op is Ops.GATHER for n in nodes):  # a reduction of gathered values is never merged
        return None, 0
    return (item.device, shape, frozenset(reduces)), len(nodes)


def _in_order_of_memory(value: UOp) -> bool:
    """Return True if a value is read in memory order: through reshapes and broadcasts, or
    views that compose to contiguous."""
    top = value
    while value.op in _PLAIN:
        value = value.src[0]
    return value.op.kind != "movement" or top.st.contiguous


def _fits(item: ScheduleItem, size: int, group: _Siblings) -> bool:
    return len(group.slots | set(item.slots)) <= MOST_BUFFERS and group.nodes + size <= MOST_NODES


def _continued(item: ScheduleItem, key: Any, size: int, producers: list[_Siblings]) -> _Siblings | None:
    """Return the producer group that a kernel can extend, with its level raised above all
    other inputs; None without one.

    The kernel must read the group's outputs element by element, or row by row if it reduces rows.
    """
    if key is None or (key[2] and not (len(key[2]) == 1 and Device[item.device].target.costs.maps_beside)):
        return None
    for group in producers:
        level = max([group.level, *(p.level + 1 for p in producers if p is not group)])
        if key != group.key or not _fits(item, size, group) or group.level < level >= group.first_reader:
            continue
        if _at_its_place(item, group.written, *key[2]):
            return group
    return None


def _at_its_place(item: ScheduleItem, written: set[int], over: Any = None) -> bool:
    """Return True if a kernel reads the slots at the index of its own result.

    No view may be between; if it reduces axes of a shape (``over``: both), rows may be broadcast along these axes.
    """
    if over is None:
        return not any(s.op is Ops.PARAM and item.slots[s.arg[0]] in written
                       for n in toposort(values_of(item)) if n.op.kind == "movement" for s in n.src)
    shape, axes = over
    row = tuple(1 if a in axes else s for a, s in enumerate(shape))
    return reads_by_rows(item, written, math.prod(row), lambda n: (n.src[0].shape, n.shape) == (row, shape))
