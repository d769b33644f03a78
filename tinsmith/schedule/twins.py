"""Kernels that compute the same tiles for the same rows share one kernel: a stream's statistics and its contractions.

Attention forward stores its rows' statistics, which its gradient needs, from the kernel that uses them; the gradients
of keys and values share their tiles. Two kernels merge unless something outside has to run between them.
"""
from __future__ import annotations

import math
from collections.abc import Sequence

from tinsmith.codegen.carried import block_of
from tinsmith.core.dtypes import dtypes
from tinsmith.ir import Ops
from tinsmith.ir.uop import toposort
from tinsmith.schedule.contraction import is_contraction
from tinsmith.schedule.fusion import ROW_PARALLELISM
from tinsmith.schedule.items import ScheduleItem
from tinsmith.schedule.siblings import MOST_BUFFERS, merged, toposorted


def merge_twins(items: list[ScheduleItem]) -> list[ScheduleItem]:
    """The schedule with such kernels merged, in an order that respects what reads what."""
    home = list(range(len(items)))  # item → the group that it runs in, named by its first member
    for n, item in enumerate(items):
        if not item.tiles or item.variables:
            continue
        for g in dict.fromkeys(home[m] for m in range(n) if items[m].tiles & item.tiles or _crossed(items[m], item)):
            members = [m for m in range(n) if home[m] == g]
            if _fit(items, members, item) and not _between(items, home, g, n):
                home[n] = g
                break
    if home == list(range(len(items))):
        return items
    groups = [[m for m in range(len(items)) if home[m] == g] for g in sorted(set(home))]
    return toposorted([merged([items[m] for m in members]) for members in groups])


def _fit(items: Sequence[ScheduleItem], members: list[int], item: ScheduleItem) -> bool:
    """One device, not too many arguments, and no member reads another's contraction."""
    slots = set(item.slots).union(*(items[m].slots for m in members))
    contracted = {items[m].slots[0] for m in members if not items[m].statistics}
    same = all(items[m].device == item.device and not items[m].variables for m in members)
    return same and len(slots) <= MOST_BUFFERS and contracted.isdisjoint(item.read)


def _crossed(a: ScheduleItem, b: ScheduleItem) -> bool:
    """Whether both sum up the same tiles, along different sides, with work for all cores in the rows that they share,
    and so that the tiles can be cut into blocks."""
    for node, axes in a.tiles:
        for other, others in b.tiles:
            if node is not other or axes == others or not all(isinstance(s, int) for s in node.shape):
                continue
            shared = math.prod(s for s, x, y in zip(node.shape, axes, others) if x and y)
            sides = [s for s, x, y in zip(node.shape, axes, others) if x is not y and s > 1]
            if shared >= ROW_PARALLELISM and len(sides) == 2 and all(map(block_of, sides)):
                return _sums_only(a) and _sums_only(b)
    return False


def _sums_only(item: ScheduleItem) -> bool:
    """Whether a kernel holds contractions alone, no statistics, and its result keeps partial sums exactly enough."""
    assert item.sink is not None
    reduces = [n for n in toposort(item.sink) if n.op is Ops.REDUCE]
    wide = all(v.dtype in (dtypes.float32, dtypes.float64) for v in item.sink.src)
    return wide and not item.statistics and all(map(is_contraction, reduces))


def _between(items: Sequence[ScheduleItem], home: list[int], group: int, last: int) -> bool:
    """Whether a chain of reads leads from the group through something outside it to item ``last``."""
    writes = {s for m, item in enumerate(items) if home[m] == group for s in item.written}
    reached: set[int] = set()  # slots that depend on the group by way of others
    outside: set[int] = set()  # groups that do
    changed = True
    while changed:
        changed = False
        for m, item in enumerate(items):
            read = set(item.read)
            if home[m] == group or m == last or home[m] in outside:
                continue
            if not read.isdisjoint(writes | reached):
                outside.add(home[m])
                reached |= {s for k, other in enumerate(items) if home[k] == home[m]
                            for s in other.written}
                changed = True
    return not reached.isdisjoint(items[last].read)
