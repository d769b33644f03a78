"""Horizontal fusion: kernels side by side become one with several outputs: optimizer updates, statistics of one tensor.

Two kernels merge sideways if their outputs have one shape, their reductions run over the same axes, they read a buffer
in common and can have the same level: that of the higher one, if what reads the lower one is higher still. An
elementwise kernel joins the kernel before it if it reads that one's outputs element by element and that one can have a
level above all else that it reads: the value is still in a register. So does one that reduces the same rows again and
reads that one's outputs row by row, where the target has rows in registers. Levels rise along every read from one
group to another, whatever is merged, so no merge closes a circle.
"""
from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tinsmith.backend.device import Device
from tinsmith.ir import Ops, UOp
from tinsmith.ir.ops.repeated import is_repeated
from tinsmith.ir.uop import substitute, toposort
from tinsmith.schedule.items import Schedule, ScheduleItem
from tinsmith.schedule.order import toposorted

MOST_BUFFERS = 30  # arguments of a merged kernel
MOST_NODES = 400  # nodes of a merged kernel's graph

ALONE = (Ops.SCATTER, Ops.SCAN, Ops.HISTOGRAM)
IN_ORDER = (Ops.GATHER, *ALONE)
_PLAIN = (Ops.RESHAPE, Ops.EXPAND)


@dataclass(eq=False)
class Group:
    """Items that will be one kernel; ``key`` is None for what never merges.

    What a group reads from another group has a lower level; ``first_reader`` is the lowest level that reads this one.
    """

    level: int
    key: Any
    first_reader: int = 1 << 60
    members: list[int] = field(default_factory=list)
    slots: set[int] = field(default_factory=set)
    written: set[int] = field(default_factory=set)
    nodes: int = 0


def fuse_horizontally(schedule: Schedule) -> list[ScheduleItem]:
    """The items with siblings merged, in an order that respects what reads what."""
    items = schedule.items
    groups = _grouped(items)
    if len(groups) == len(items):
        return items
    groups.sort(key=lambda g: g.members[-1])
    return toposorted([merged([items[m] for m in g.members]) for g in groups])


def _grouped(items: list[ScheduleItem]) -> list[Group]:
    """The groups, in one pass: producers are placed before their readers."""
    groups: list[Group] = []
    home: dict[int, Group] = {}
    readers: dict[tuple[Any, int], Group] = {}  # (key, slot) → the latest group that reads it
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
            group = Group(level, key)
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
            for s in item.read:
                readers[key, s] = group
    return groups


def _key(item: ScheduleItem) -> tuple[Any, int]:
    """What siblings have in common (None: never merged), and the number of nodes."""
    if item.sink is None or item.variables or item.tiles:
        return None, 0
    (value,) = item.sink.src
    shape = value.shape
    if not all(isinstance(s, int) for s in shape):
        return None, 0
    nodes = toposort(item.sink)
    reduces: set[Any] = set()
    for n in nodes:
        if n.op in ALONE or not all(_is_plain(s) for s in n.src if n.op.kind != "movement"):
            return None, 0
        if n.op is Ops.REDUCE:
            if n.src[0].op is Ops.MUL and any(is_repeated(s, constants=False) for s in n.src[0].src):
                return None, 0
            reduces.add((n.src[0].shape, n.arg[1]))
    if reduces and any(n.op is Ops.GATHER for n in nodes):  # a sum of what is picked stays by itself
        return None, 0
    return (item.device, shape, frozenset(reduces)), len(nodes)


def _is_plain(value: UOp) -> bool:
    """Whether a value is seen in the order of its memory: by reshapes and broadcasts, or all its views together."""
    top = value
    while value.op in _PLAIN:
        value = value.src[0]
    return value.op.kind != "movement" or top.st.contiguous


def _fits(item: ScheduleItem, size: int, group: Group) -> bool:
    return len(group.slots | set(item.slots)) <= MOST_BUFFERS and group.nodes + size <= MOST_NODES


def _continued(item: ScheduleItem, key: Any, size: int, producers: list[Group]) -> Group | None:
    """The group whose outputs a kernel reads only element by element, or row by row where it reduces rows, raised above
    all else it reads."""
    if key is None or (key[2] and not (len(key[2]) == 1 and Device[item.device].target.costs.maps_beside)):
        return None
    for group in producers:
        level = max([group.level, *(p.level + 1 for p in producers if p is not group)])
        if key != group.key or not _fits(item, size, group) or group.level < level >= group.first_reader:
            continue
        over = next(iter(key[2]), None)
        if _element_by_element(item, group.written) if over is None else _row_by_row(item, group.written, *over):
            return group
    return None


def _element_by_element(item: ScheduleItem, written: set[int]) -> bool:
    assert item.sink is not None
    inputs = {n for n, s in enumerate(item.slots) if n and s in written}
    return not any(s.op is Ops.PARAM and s.arg[0] in inputs
                   for n in toposort(item.sink) if n.op.kind == "movement" for s in n.src)


def _row_by_row(item: ScheduleItem, written: set[int], shape: tuple[int, ...], axes: tuple[int, ...]) -> bool:
    """Whether a kernel that reduces axes of a shape reads ``written`` at the place that its own result has."""
    assert item.sink is not None
    row = tuple(1 if a in axes else s for a, s in enumerate(shape))
    below: set[UOp] = set()
    for n in toposort(item.sink.src):
        if n.op is Ops.PARAM and item.slots[n.arg[0]] in written:
            below.add(n)
        elif below.isdisjoint(n.src) or (n.op is Ops.EXPAND and (n.src[0].shape, n.shape) == (row, shape)):
            continue
        elif n.size == math.prod(row) and (n.op.elementwise or n.op.kind == "cast" or n.op in (
                Ops.RESHAPE, Ops.CONTIGUOUS)):
            below.add(n)
        else:
            return False
    return True


def merged(members: list[ScheduleItem]) -> ScheduleItem:
    """One item for several: outputs first, then every input once."""
    if len(members) == 1:
        return members[0]
    written = [m.slots[0] for m in members]
    read = dict.fromkeys(s for m in members for s in m.read if s not in written)
    same = "tiles" if any(m.tiles for m in members) else "loops"
    number = {s: n for n, s in enumerate((*written, *read))}
    values: dict[int, UOp] = {}
    for m in members:
        assert m.sink is not None
        values.update(zip(m.written, placed(m, m.sink.src, number, values)))
    sink = UOp(Ops.SINK, None, tuple(values[s] for s in written))
    item = as_one(members, sink, list(number), f"{len(members)} kernels of the same {same} in one")
    item.tiles = frozenset().union(*(m.tiles for m in members))
    return item


def placed(item: ScheduleItem, nodes: Sequence[UOp], number: Mapping[int, int], values: Mapping[int, UOp]) -> list[UOp]:
    """Nodes of a kernel in another one, which has other numbers for its slots, or the values themselves."""
    found = {n: item.slots[n.arg[0]] for n in toposort(nodes) if n.op is Ops.PARAM}
    return substitute(nodes, {n: values[s] if s in values else n.replace(arg=(number[s], n.arg[1]))
                              for n, s in found.items()})


def as_one(members: Sequence[ScheduleItem], sink: UOp, slots: list[int], what: str) -> ScheduleItem:
    """The item that computes what several did."""
    reasons = "; ".join(dict.fromkeys(m.reason for m in members))
    origin = list(dict.fromkeys(o for m in members for o in m.origin))
    return ScheduleItem(members[0].device, sink, slots, f"{what}: {reasons}", origin, outputs=len(sink.src))
