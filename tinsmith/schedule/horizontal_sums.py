"""Horizontal fusion of sums with the kernel that computes or reads what they sum up: column sums beside rows.

    y[r, c] = f(x[r, ·], g[r, ·], …)        s[c] = Σ_r v(x[r, c], g[r, c], …)

Both go through x and g, or v is made of y. The rows are cut into blocks, r = (p, m). The kernel of y, the *host*, gets
the result part[p, c] = Σ_m v[p, m, c]: it stays in memory, which is near, since it is a row for each block, and takes
in what each row adds. What is left of the kernel of s sums up the blocks. Blocks depend on the sizes alone, so that
results do not depend on the number of workers.

Statistics of rows that were stored because the sums read them, too, are then computed by the host, which has the row
at hand: what reads it once more finds it in the cache. So are, where the target has rows in registers, maps of the
same rows that read nothing else in full. Sums that were cut to fill the cores are whole again where a host takes them.
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
from tinsmith.codegen.render.base import Target
from tinsmith.core.dtypes import dtypes
from tinsmith.ir import Ops, UOp
from tinsmith.ir.structure import contraction
from tinsmith.ir.uop import substitute, toposort
from tinsmith.schedule.items import ScheduleItem, Slot
from tinsmith.schedule.merging import (
    AS_IT_LIES,
    MOST_NODES,
    Part,
    may_join,
    reads_by_rows,
    replaced,
    taken_together,
    values_of,
)

_IN_ORDER = (Ops.GATHER, Ops.SCATTER, Ops.SCAN, Ops.HISTOGRAM, Ops.HOST)

Shape = tuple[int, ...]


class Space(NamedTuple):
    """The loops of a host: ``sizes``, the one that partial sums run over, and all that the whole sums run over."""

    sizes: Shape
    axis: int
    summed: tuple[int, ...]

    @property
    def rows(self) -> Shape:
        """The loops up to that of the sums, and 1 for those inside."""
        return tuple(s if a <= self.axis else 1 for a, s in enumerate(self.sizes))

    @property
    def part(self) -> Shape:
        """The shape of partial sums."""
        return tuple(1 if a == self.axis else s for a, s in enumerate(self.sizes))


def fuse_sums(items: list[ScheduleItem], slots: list[Slot]) -> list[ScheduleItem]:
    """The items with such sums moved, in an order that respects what reads what; partial sums get slots."""
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
    """The items with sums, and with statistics that they share, moved into a host, if that still stands alone."""
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
    """The host with its partial sums behind its own results, and before these the statistics that others need; and what
    is left of the kernels of the sums."""
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
                          "with sums over its loops" if sums else "with what else its rows have",
                          [*kept, *(s for p in parts for s in p.written)])
    values, count = values_of(item), math.prod(space.rows)
    own = [v.reshape(space.rows if v.size == count else space.sizes) for v in values[: len(kept)]]
    item.sink = UOp(Ops.SINK, None, (*own, *values[len(kept) :]), len(values) - len(kept))
    return [item, *rests]


def _rest(item: ScheduleItem, parts: Sequence[int], space: Space) -> ScheduleItem:
    """What is left of a kernel: the sums of partial sums, and what it makes of them."""
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


# *** sums that were cut ***


def _uncut(items: list[ScheduleItem], slots: Sequence[Slot]) -> list[ScheduleItem]:
    """The items with sums whole again that were cut to fill the cores, where hosts take in all that a kernel sums."""
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
    """A kernel that sums up another's sums as one that has them inside, each pair as one sum."""
    made = taken_together([Part(i, values_of(i), i.written) for i in (parts, item)], "", item.written)
    joined = {n: once for n in toposort(values_of(made)) if n.op is Ops.REDUCE and (once := _one_sum(n)) is not n}
    sink = UOp(Ops.SINK, None, tuple(substitute(values_of(made), joined)))
    return replace(made, sink=sink, reason=item.reason)


def _one_sum(node: UOp) -> UOp:
    """A sum of a sum, in whatever order the latter's axes are, as one; the node itself where it is none."""
    inner, axes, order = node.src[0], node.arg[1], list(range(node.src[0].ndim))
    while inner.op in (Ops.PERMUTE, Ops.CONTIGUOUS):
        order = [inner.arg[a] for a in order] if inner.op is Ops.PERMUTE else order
        inner = inner.src[0]
    if inner.op is not Ops.REDUCE or inner.arg[0] is not node.arg[0]:
        return node
    total = inner.src[0].reduce(node.arg[0], tuple(sorted({*inner.arg[1], *(order[a] for a in axes)})))
    return total.permute(tuple(order)).reshape(node.shape)


# *** what fits ***


def _sums(item: ScheduleItem) -> list[UOp]:
    """The reductions of a kernel, if they are long sums over the same axes that other loops can hold."""
    if not _is_plain(item):
        return []
    found = [n for n in toposort(values_of(item)) if n.op is Ops.REDUCE]
    alike = len({(n.src[0].shape, n.arg) for n in found}) == 1 and found[0].arg[0] is Ops.ADD
    wide = all(n.dtype in (dtypes.float32, dtypes.float64) for n in found)
    return found if alike and wide and found[0].src[0].size > Device[item.device].target.costs.small_work else []


def _is_plain(item: ScheduleItem) -> bool:
    """Whether a kernel has fixed sizes, no contraction, nothing that goes in order, and results of one shape."""
    if item.sink is None or item.variables or item.tiles or len({v.shape for v in values_of(item)}) > 1:
        return False
    if not Device[item.device].target.costs.sums_beside:
        return False
    nodes = toposort(values_of(item))
    return len(nodes) <= MOST_NODES and not any(
        n.op in _IN_ORDER or contraction(n) or not all(isinstance(s, int) for s in n.shape) for n in nodes)


def _host(items: Sequence[ScheduleItem], item: ScheduleItem) -> ScheduleItem | None:
    """The kernel of as many elements as are summed up that has the most, at least half, of them at hand."""
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
    """The slots of which values read an element for each of their own, in order."""
    size = values[0].size
    inside = toposort(values, lambda n: n.op.elementwise or n.op in (*AS_IT_LIES, Ops.PARAM))
    return {item.slots[n.arg[0]] for n in inside if n.op is Ops.PARAM and n.size == size}


def _spaces(total: UOp, host: Shape, target: Target) -> Iterator[Space]:
    """Loops that a sum and a host of this shape have in common, the best first."""
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
    """Neighbouring axes that are all summed up, or all kept, as one: (size, summed)."""
    sizes = [(s, a in total.arg[1]) for a, s in enumerate(total.src[0].shape) if s > 1]
    return [(math.prod(s for s, _ in run), summed) for summed, run in groupby(sizes, key=lambda x: x[1])]


def _refined(axes: Sequence[tuple[int, bool]], shape: Sequence[int]) -> list[tuple[int, bool]]:
    """The axes cut where those of the shape end; none if they do not nest."""
    ends = list(accumulate((s for s, _ in axes), mul))
    cuts = sorted({1, *ends, *accumulate(shape, mul)})
    if any(end % begin for begin, end in pairwise(cuts)):
        return []
    return [(end // begin, axes[bisect_left(ends, end)][1]) for begin, end in pairwise(cuts)]


def _is_statistic(item: ScheduleItem, group: Sequence[ScheduleItem], space: Space) -> bool:
    """Whether a kernel computes something of each row, and the group reads it where it has that row at hand."""
    if not any(s in i.read for i in group for s in item.written) or not _is_plain(item):
        return False
    count, found = math.prod(space.rows), toposort(values_of(item))
    whole = all(n.src[0].size == math.prod(space.sizes) for n in found if n.op is Ops.REDUCE)
    by_rows = all(reads_by_rows(i, item.written, count, _follows) for i in group)
    return values_of(item)[0].size == count and whole and by_rows


def _has_rows(item: ScheduleItem) -> bool:
    """Whether a kernel goes through much, and the target can compute more of the same rows beside."""
    costs = Device[item.device].target.costs
    return costs.maps_beside and _is_plain(item) and values_of(item)[0].size > costs.small_work


def _rows_space(items: Sequence[ScheduleItem], host: ScheduleItem) -> Space | None:
    """The loops of a kernel that reads something of each of its rows; None if nothing computes it, or for few rows."""
    shape = tuple(s for s in values_of(host)[0].shape if s > 1)
    costs = Device[host.device].target.costs
    for item in items:
        count = values_of(item)[0].size if item.sink is not None and not set(item.written).isdisjoint(host.read) else 0
        axis = next((a for a in range(len(shape) - 1) if math.prod(shape[: a + 1]) == count), None)
        if axis is not None and count >= costs.rows and math.prod(shape) >= costs.cuts.shared_row * count:
            return Space(shape, axis, ())
    return None


def _is_map(item: ScheduleItem, host: ScheduleItem) -> bool:
    """Whether a kernel computes element by element from what the host goes through, and reads nothing else in full."""
    if item.device != host.device or not _is_plain(item) or values_of(item)[0].size != values_of(host)[0].size:
        return False
    size = values_of(item)[0].size
    large = {item.slots[n.arg[0]] for n in toposort(values_of(item)) if n.op is Ops.PARAM and n.size >= size}
    here = _in_order(item, values_of(item)) & _in_order(host, values_of(host))
    return bool(large) and large <= here and not any(n.op is Ops.REDUCE for n in toposort(values_of(item)))


def _follows(node: UOp) -> bool:
    """Whether an EXPAND repeats rows along axes that come after theirs."""
    kept = [a for a, s in enumerate(node.src[0].shape) if s > 1]
    return all(s == node.src[0].shape[a] for a, s in enumerate(node.shape[: max(kept, default=-1)]))
