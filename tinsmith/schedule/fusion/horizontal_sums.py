"""Horizontal fusion of column sums into a kernel that computes or reads the same rows.

    y[r, c] = f(x[r, ·], g[r, ·], …)        s[c] = Σ_r v(x[r, c], g[r, c], …)

Both read x and g, or v is a function of y. The rows are cut into blocks, r = (p, m). The kernel of y, the *host*, gets
the extra result part[p, c] = Σ_m v[p, m, c]: one row of accumulators per block, in cache, to which each row is added.
The rest of the kernel of s sums over the blocks. Blocks depend on sizes only, so results do not depend on the number
of workers.

Row statistics that were stored only because the sums also read them are then computed by the host: its second pass over
the row hits the cache. On targets that keep rows in registers, the host also takes maps of the same rows that read
nothing else of full size. Sums that were split to fill the cores are joined again where a host takes them.
"""
from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, groupby, pairwise
from operator import mul
from typing import NamedTuple

from tinsmith.backend.device import Device
from tinsmith.core.dtypes import dtypes
from tinsmith.ir import Ops, UOp
from tinsmith.ir.structure import contraction
from tinsmith.ir.uop import substitute, toposort
from tinsmith.schedule.fusion.kernel_merge import (
    AS_IT_LIES,
    MOST_NODES,
    Part,
    may_join,
    reads_by_rows,
    replaced,
    taken_together,
    values_of,
)
from tinsmith.schedule.schedule_item import ScheduleItem, Slot
from tinsmith.target.target import Target

_IN_ORDER = (Ops.GATHER, Ops.SCATTER, Ops.SCAN, Ops.HISTOGRAM, Ops.HOST)

Shape = tuple[int, ...]


class Space(NamedTuple):
    """The loops of a host.

    Attributes:
        sizes: the size of each loop.
        axis: the loop that partial sums run over.
        summed: all loops that the full sums run over.
    """

    sizes: Shape
    axis: int
    summed: tuple[int, ...]

    @property
    def rows(self) -> Shape:
        """The sizes of the loops up to ``axis``, and 1 for the inner loops."""
        return tuple(s if a <= self.axis else 1 for a, s in enumerate(self.sizes))

    @property
    def part(self) -> Shape:
        """The shape of the partial sums: size 1 along ``axis``."""
        return tuple(1 if a == self.axis else s for a, s in enumerate(self.sizes))


def fuse_sums(items: list[ScheduleItem], slots: list[Slot]) -> list[ScheduleItem]:
    """Return the items with such sums moved into hosts, in dependency order; adds slots for partial sums."""
    items = _uncut(items, slots)
    wanted: dict[int, list[ScheduleItem]] = {}
    for item in items:
        host = _host(items, item) if _sums(item) else None
        if host is not None:
            wanted.setdefault(id(host), []).append(item)
    for host in sorted(items, key=lambda i: id(i) not in wanted):
        if id(host) in wanted or _has_rows(host):
            items = _joined(items, slots, host, wanted.get(id(host), ()))
    return items


def _joined(items: list[ScheduleItem], slots: list[Slot], host: ScheduleItem,
            wanted: Sequence[ScheduleItem]) -> list[ScheduleItem]:
    """Return the items with sums, and statistics that they share, moved into ``host``, if it
    has not been merged already."""
    costs, here = Device[host.device].target.costs, {id(i) for i in items}
    if id(host) not in here:
        return items
    group, sums, space = [host], list[ScheduleItem](), None

    def fits(item: ScheduleItem, *also: ScheduleItem) -> bool:
        late = [s for i in (*sums, *also) for s in i.written]
        return all(item is not i for i in group) and may_join(items, [*group, item], late)

    for item in wanted:
        found = _spaces(_sums(item)[0], values_of(host)[0].shape, Device[host.device].target)
        fitting = next((s for s in found if space in (None, s)), None)
        if id(item) in here and fitting is not None and fits(item, item):
            group.append(item)
            sums.append(item)
            space = fitting
    space = _rows_space(items, host) if space is None and _has_rows(host) else space
    if space is None:
        return items
    for item in items if costs.maps_beside else ():
        if _is_map(item, host) and fits(item):
            group.append(item)
    for item in reversed(items):
        if _is_statistic(item, group, space) and fits(item):
            group.append(item)
    return items if len(group) == 1 else replaced(items, group, _with_sums(items, slots, group, sums, space))


def _with_sums(items: Sequence[ScheduleItem], slots: list[Slot], group: Sequence[ScheduleItem],
               sums: Sequence[ScheduleItem], space: Space) -> list[ScheduleItem]:
    """Return the merged host and the rests of the sums' kernels.

    The host's results: its own and the statistics that other kernels read, then the partial sums.
    """
    parts, rests = list[Part](), list[ScheduleItem]()
    for item in sums:
        totals, first = _sums(item), len(slots)
        slots += [Slot(first + n, math.prod(space.part), t.dtype, item.device) for n, t in enumerate(totals)]
        written = range(first, len(slots))
        sums_of_blocks = [t.src[0].reshape(space.sizes).reduce(Ops.ADD, (space.axis,)) for t in totals]
        parts.append(Part(item, sums_of_blocks, written))
        rests.append(_rest(item, written, space))
    inside, late = {id(i) for i in group}, {id(i) for i in sums}
    needed = {s for i in (*(i for i in items if id(i) not in inside), *rests) for s in i.read}
    needed |= {s.number for s in slots if s.output}
    rows = [i for i in items if id(i) in inside and id(i) not in late]
    kept = [s for i in rows for s in i.written if i is group[0] or s in needed]
    item = taken_together([*(Part(i, values_of(i), i.written) for i in rows), *parts],
                          "fused with column sums over its rows" if sums else
                          "fused with other maps and statistics of its rows",
                          [*kept, *(s for p in parts for s in p.written)])
    values, count = values_of(item), math.prod(space.rows)
    own = [v.reshape(space.rows if v.size == count else space.sizes) for v in values[: len(kept)]]
    item.sink = UOp(Ops.SINK, None, (*own, *values[len(kept) :]), len(values) - len(kept))
    return [item, *rests]


def _rest(item: ScheduleItem, parts: Sequence[int], space: Space) -> ScheduleItem:
    """Return the rest of a kernel of sums: it sums the partial sums and computes its results from the totals."""
    totals = _sums(item)
    other = tuple(a for a in space.summed if a != space.axis)
    left = [n for n in toposort(values_of(item), lambda n: n not in totals) if n.op is Ops.PARAM]
    slots = [*item.written, *parts, *dict.fromkeys(item.slots[n.arg[0]] for n in left)]
    table = {n: n.replace(arg=(slots.index(item.slots[n.arg[0]], item.outputs), n.arg[1])) for n in left}
    for k, total in enumerate(totals):
        part = UOp(Ops.PARAM, total.dtype, (), (item.outputs + k, space.part))
        table[total] = part.reduce(Ops.ADD, other).reshape(total.shape)
    values = substitute(values_of(item), table)
    return ScheduleItem(item.device, UOp(Ops.SINK, None, tuple(values)), slots, item.reason, item.origin,
                        outputs=item.outputs)


# *** joining sums that were split ***


def _uncut(items: list[ScheduleItem], slots: Sequence[Slot]) -> list[ScheduleItem]:
    """Return the items with split sums joined again, where hosts take all sums that read the partial results."""
    for parts in items:
        cut = parts.sink is not None and Device[parts.device].target.costs.maps_beside and _sums(parts)
        if not cut or any(slots[s].output for s in parts.written):
            continue
        readers = [i for i in items if not set(parts.written).isdisjoint(i.read)]
        whole = [_with_parts(i, parts) if i.sink is not None and i.outputs == 1 else None for i in readers]
        new = {id(old): i for old, i in zip(readers, whole) if i is not None and _sums(i)}
        if len(new) < max(len(readers), 1):
            continue
        joined = [new.get(id(i), i) for i in items if i is not parts]
        hosts = [(i, _host(joined, i)) for i in new.values()]
        if all(host is not None and may_join(joined, [host, i], i.written) for i, host in hosts):
            items = joined
    return items


def _with_parts(item: ScheduleItem, parts: ScheduleItem) -> ScheduleItem:
    """Return a kernel that sums another's partial sums as one kernel of joined sums."""
    made = taken_together([Part(i, values_of(i), i.written) for i in (parts, item)], "", item.written)
    joined = {n: once for n in toposort(values_of(made)) if n.op is Ops.REDUCE and (once := _one_sum(n)) is not n}
    sink = UOp(Ops.SINK, None, tuple(substitute(values_of(made), joined)))
    return replace(made, sink=sink, reason=item.reason)


def _one_sum(node: UOp) -> UOp:
    """Return a sum of a sum, with the inner axes in any order, as one sum; ``node`` itself if it is no such sum."""
    inner, axes, order = node.src[0], node.arg[1], list(range(node.src[0].ndim))
    while inner.op in (Ops.PERMUTE, Ops.CONTIGUOUS):
        order = [inner.arg[a] for a in order] if inner.op is Ops.PERMUTE else order
        inner = inner.src[0]
    if inner.op is not Ops.REDUCE or inner.arg[0] is not node.arg[0]:
        return node
    total = inner.src[0].reduce(node.arg[0], tuple(sorted({*inner.arg[1], *(order[a] for a in axes)})))
    return total.permute(tuple(order)).reshape(node.shape)


# *** which kernels fit ***


def _sums(item: ScheduleItem) -> list[UOp]:
    """Return the reductions of a kernel if all are long sums over the same axes, whose dtype
    can hold partial sums; else []."""
    if not _is_plain(item):
        return []
    found = [n for n in toposort(values_of(item)) if n.op is Ops.REDUCE]
    alike = len({(n.src[0].shape, n.arg) for n in found}) == 1 and found[0].arg[0] is Ops.ADD
    wide = all(n.dtype in (dtypes.float32, dtypes.float64) for n in found)
    return found if alike and wide and found[0].src[0].size > Device[item.device].target.costs.small_work else []


def _is_plain(item: ScheduleItem) -> bool:
    """Return True if a kernel has fixed sizes, no contraction, no sequential op, and results of one shape."""
    if item.sink is None or item.variables or item.tiles or len({v.shape for v in values_of(item)}) > 1:
        return False
    if not Device[item.device].target.costs.sums_beside:
        return False
    nodes = toposort(values_of(item))
    return len(nodes) <= MOST_NODES and not any(
        n.op in _IN_ORDER or contraction(n) or not all(isinstance(s, int) for s in n.shape) for n in nodes)


def _host(items: Sequence[ScheduleItem], item: ScheduleItem) -> ScheduleItem | None:
    """Return the kernel of as many elements as the sums that reads or computes most of their
    inputs, at least half; or None."""
    totals, target = _sums(item), Device[item.device].target
    size = totals[0].src[0].size
    needed = _in_order(item, [total.src[0] for total in totals])
    best, most = None, 0
    for other in items:
        if other is item or other.sink is None or other.device != item.device or needed.isdisjoint(other.slots):
            continue
        if values_of(other)[0].size != size or not _is_plain(other):
            continue
        shared = len(needed & {*other.written, *_in_order(other, values_of(other))})
        fits = shared > most and 2 * shared >= len(needed)
        if fits and next(_spaces(totals[0], values_of(other)[0].shape, target), None):
            best, most = other, shared
    return best


def _in_order(item: ScheduleItem, values: Sequence[UOp]) -> set[int]:
    """Return the slots that ``values`` read element by element, in order."""
    size = values[0].size
    inside = toposort(values, lambda n: n.op.elementwise or n.op in (*AS_IT_LIES, Ops.PARAM))
    return {item.slots[n.arg[0]] for n in inside if n.op is Ops.PARAM and n.size == size}


def _spaces(total: UOp, host: Shape, target: Target) -> Iterator[Space]:
    """Yield the loops that a sum and a host of shape ``host`` have in common, best first."""
    runs, steps, cuts = _runs(total), target.costs.sum_steps, target.costs.cuts
    before = 1
    for at, (size, summed) in enumerate(runs):
        after = math.prod(s for s, _ in runs[at + 1 :])
        if summed and after >= cuts.least_row and size >= steps:
            break
        before *= size
    else:
        return
    wished = max(target.cores * target.resident * cuts.thread_values // (2 * after), cuts.blocks)
    blocks = [d for d in range(max(cuts.least_blocks // before, 2), size // steps + 1) if size % d == 0]
    for d in ([1] if 2 * before >= wished else sorted(blocks, key=lambda d: abs(d * before - wished))):
        cut = [(d, True)] * (d > 1) + [(size // d, True)]
        loops = _refined([*runs[:at], *cut, *runs[at + 1 :]], [s for s in host if s > 1])
        axis = next((a for a in range(len(loops)) if math.prod(s for s, _ in loops[:a]) == before * d
                     and loops[a][0] == size // d), None)
        if axis is not None:
            yield Space(tuple(s for s, _ in loops), axis, tuple(a for a, (_, x) in enumerate(loops) if x))


def _runs(total: UOp) -> list[tuple[int, bool]]:
    """Return adjacent axes that are all summed or all kept, merged: (size, summed)."""
    sizes = [(s, a in total.arg[1]) for a, s in enumerate(total.src[0].shape) if s > 1]
    return [(math.prod(s for s, _ in run), summed) for summed, run in groupby(sizes, key=lambda x: x[1])]


def _refined(axes: Sequence[tuple[int, bool]], shape: Sequence[int]) -> list[tuple[int, bool]]:
    """Return the axes split at the boundaries of ``shape``; [] if the boundaries do not nest."""
    ends = list(accumulate((s for s, _ in axes), mul))
    cuts = sorted({1, *ends, *accumulate(shape, mul)})
    if any(end % begin for begin, end in pairwise(cuts)):
        return []
    return [(end // begin, axes[bisect_left(ends, end)][1]) for begin, end in pairwise(cuts)]


def _is_statistic(item: ScheduleItem, group: Sequence[ScheduleItem], space: Space) -> bool:
    """Return True if a kernel computes one value per row, and the group reads it only row by row."""
    if not any(s in i.read for i in group for s in item.written) or not _is_plain(item):
        return False
    count, found = math.prod(space.rows), toposort(values_of(item))
    whole = all(n.src[0].size == math.prod(space.sizes) for n in found if n.op is Ops.REDUCE)
    by_rows = all(reads_by_rows(i, item.written, count, _follows) for i in group)
    return values_of(item)[0].size == count and whole and by_rows


def _has_rows(item: ScheduleItem) -> bool:
    """Return True if a kernel is large, and its target can compute other maps of its rows in the same kernel."""
    costs = Device[item.device].target.costs
    return costs.maps_beside and _is_plain(item) and values_of(item)[0].size > costs.small_work


def _rows_space(items: Sequence[ScheduleItem], host: ScheduleItem) -> Space | None:
    """Return the loops of a kernel that reads a value per row from another kernel; None if
    there is none, or too few rows."""
    shape = tuple(s for s in values_of(host)[0].shape if s > 1)
    costs = Device[host.device].target.costs
    for item in items:
        count = values_of(item)[0].size if item.sink is not None and not set(item.written).isdisjoint(host.read) else 0
        axis = next((a for a in range(len(shape) - 1) if math.prod(shape[: a + 1]) == count), None)
        if axis is not None and count >= costs.rows and math.prod(shape) >= costs.cuts.shared_row * count:
            return Space(shape, axis, ())
    return None


def _is_map(item: ScheduleItem, host: ScheduleItem) -> bool:
    """Return True if a kernel is elementwise over inputs that ``host`` also reads in order, and
    reads nothing else of full size."""
    if item.device != host.device or not _is_plain(item) or values_of(item)[0].size != values_of(host)[0].size:
        return False
    size = values_of(item)[0].size
    large = {item.slots[n.arg[0]] for n in toposort(values_of(item)) if n.op is Ops.PARAM and n.size >= size}
    here = _in_order(item, values_of(item)) & _in_order(host, values_of(host))
    return bool(large) and large <= here and not any(n.op is Ops.REDUCE for n in toposort(values_of(item)))


def _follows(node: UOp) -> bool:
    """Return True if an EXPAND repeats rows only along axes after those of the rows."""
    kept = [a for a, s in enumerate(node.src[0].shape) if s > 1]
    return all(s == node.src[0].shape[a] for a, s in enumerate(node.shape[: max(kept, default=-1)]))
