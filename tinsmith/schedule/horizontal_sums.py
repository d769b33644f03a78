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
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from tinsmith.backend.device import Device
from tinsmith.codegen.render.base import Target
from tinsmith.core.dtypes import dtypes
from tinsmith.ir import Ops, UOp
from tinsmith.ir.structure import contraction
from tinsmith.ir.uop import substitute, toposort
from tinsmith.schedule.horizontal import IN_ORDER, MOST_BUFFERS, MOST_NODES, as_one, placed
from tinsmith.schedule.items import Schedule, ScheduleItem, Slot
from tinsmith.schedule.order import joinable, toposorted

_AS_IT_LIES = (Ops.RESHAPE, Ops.CONTIGUOUS, Ops.DETACH)

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


def fuse_sums(schedule: Schedule) -> list[ScheduleItem]:
    """The items with such sums moved, in an order that respects what reads what; partial sums get slots."""
    items = _uncut(schedule)
    wanted: dict[int, list[ScheduleItem]] = {}
    for item in items:
        host = _host(items, item) if _sums(item) else None
        if host is not None:
            wanted.setdefault(id(host), []).append(item)
    for host in sorted(items, key=lambda i: id(i) not in wanted):
        if id(host) in wanted or _has_rows(host):
            items = _joined(items, schedule.slots, host, wanted.get(id(host), ()))
    return items


def _uncut(schedule: Schedule) -> list[ScheduleItem]:
    """The items with sums whole again that were cut to fill the cores, where hosts take in all that a kernel sums."""
    items = schedule.items
    for parts in items:
        cut = parts.sink is not None and Device[parts.device].target.costs.maps_beside and _sums(parts)
        if not cut or any(schedule.slots[s].output for s in parts.written):
            continue
        readers = [i for i in items if not set(parts.written).isdisjoint(i.read)]
        whole = [_with_parts(i, parts) if i.sink is not None and i.outputs == 1 else None for i in readers]
        new = {id(old): i for old, i in zip(readers, whole) if i is not None and _sums(i)}
        if len(new) < max(len(readers), 1):
            continue
        joined = [new.get(id(i), i) for i in items if i is not parts]
        hosts = [(i, _host(joined, i)) for i in new.values()]
        if all(host is not None and _fits(joined, [host, i], [i]) for i, host in hosts):
            items = joined
    return items


def _with_parts(item: ScheduleItem, parts: ScheduleItem) -> ScheduleItem:
    """A kernel that sums up another's sums as one that has them inside, each pair as one sum."""
    slots = [s for s in dict.fromkeys((*item.slots, *parts.read)) if s not in parts.written]
    place = {s: n for n, s in enumerate(slots)}
    values = dict(zip(parts.written, placed(parts, _values(parts), place, {})))
    (value,) = placed(item, _values(item), place, values)
    joined = {n: once for n in toposort(value) if n.op is Ops.REDUCE and (once := _one_sum(n)) is not n}
    return ScheduleItem(item.device, UOp(Ops.SINK, None, (value.substitute(joined),)), slots, item.reason,
                        list(dict.fromkeys((*parts.origin, *item.origin))), item.variables)


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


def _values(item: ScheduleItem) -> tuple[UOp, ...]:
    assert item.sink is not None
    return item.sink.src


def _sums(item: ScheduleItem) -> list[UOp]:
    """The reductions of a kernel, if they are long sums over the same axes that other loops can hold."""
    if not _is_plain(item):
        return []
    found = [n for n in toposort(_values(item)) if n.op is Ops.REDUCE]
    alike = len({(n.src[0].shape, n.arg) for n in found}) == 1 and found[0].arg[0] is Ops.ADD
    wide = all(n.dtype in (dtypes.float32, dtypes.float64) for n in found)
    return found if alike and wide and found[0].src[0].size > Device[item.device].target.costs.small_work else []


def _is_plain(item: ScheduleItem) -> bool:
    """Whether a kernel has fixed sizes, no contraction, nothing that goes in order, and results of one shape."""
    if item.sink is None or item.variables or item.tiles or len({v.shape for v in _values(item)}) > 1:
        return False
    if not Device[item.device].target.costs.sums_beside:
        return False
    nodes = toposort(_values(item))
    return len(nodes) <= MOST_NODES and not any(
        n.op in IN_ORDER or contraction(n) or not all(isinstance(s, int) for s in n.shape) for n in nodes)


def _host(items: Sequence[ScheduleItem], item: ScheduleItem) -> ScheduleItem | None:
    """The kernel of as many elements as are summed up that has the most, at least half, of them at hand."""
    totals, target = _sums(item), Device[item.device].target
    size = totals[0].src[0].size
    needed = set[int]().union(*(_in_order(item, total.src[0]) for total in totals))
    best, most = None, 0
    for other in items:
        if other is item or other.sink is None or other.device != item.device or needed.isdisjoint(other.slots):
            continue
        if _values(other)[0].size != size or not _is_plain(other):
            continue
        shared = len(needed & set(other.written).union(*(_in_order(other, v) for v in _values(other))))
        fits = shared > most and 2 * shared >= len(needed)
        if fits and next(_spaces(totals[0], _values(other)[0].shape, target), None):
            best, most = other, shared
    return best


def _in_order(item: ScheduleItem, value: UOp) -> set[int]:
    """The slots of which a value reads an element for each of its own, in order."""
    inside = toposort(value, lambda n: n.op.elementwise or n.op.kind == "cast" or n.op in (*_AS_IT_LIES, Ops.PARAM))
    return {item.slots[n.arg[0]] for n in inside if n.op is Ops.PARAM and n.size == value.size}


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
    out: list[tuple[int, bool]] = []
    left = list(reversed(shape))
    for size, summed in axes:
        while size > 1:
            other = left.pop()
            step = min(size, other)
            if max(size, other) % step:
                return []
            out.append((step, summed))
            size //= step
            if other > step:
                left.append(other // step)
    return out


def _is_statistic(item: ScheduleItem, group: Sequence[ScheduleItem], space: Space) -> bool:
    """Whether a kernel computes something of each row, and the group reads it where it has that row at hand."""
    if not any(s in i.read for i in group for s in item.written) or not _is_plain(item):
        return False
    count, found = math.prod(space.rows), toposort(_values(item))
    whole = all(n.src[0].size == math.prod(space.sizes) for n in found if n.op is Ops.REDUCE)
    by_rows = all(_by_rows(i, s, count) for i in group for s in item.written)
    return _values(item)[0].size == count and whole and by_rows


def _has_rows(item: ScheduleItem) -> bool:
    """Whether a kernel goes through much, and the target can compute more of the same rows beside."""
    costs = Device[item.device].target.costs
    return costs.maps_beside and item.sink is not None and _is_plain(item) and _values(item)[0].size > costs.small_work


def _rows_space(items: Sequence[ScheduleItem], host: ScheduleItem) -> Space | None:
    """The loops of a kernel that reads something of each of its rows; None if nothing computes it, or for few rows."""
    shape = tuple(s for s in _values(host)[0].shape if s > 1)
    costs = Device[host.device].target.costs
    for item in items:
        count = _values(item)[0].size if item.sink is not None and not set(item.written).isdisjoint(host.read) else 0
        axis = next((a for a in range(len(shape) - 1) if math.prod(shape[: a + 1]) == count), None)
        if axis is not None and count >= costs.rows and math.prod(shape) >= costs.cuts.shared_row * count:
            return Space(shape, axis, ())
    return None


def _is_map(item: ScheduleItem, host: ScheduleItem) -> bool:
    """Whether a kernel computes element by element from what the host goes through, and reads nothing else in full."""
    if item.device != host.device or not _is_plain(item) or _values(item)[0].size != _values(host)[0].size:
        return False
    size = _values(item)[0].size
    large = {item.slots[n.arg[0]] for n in toposort(_values(item)) if n.op is Ops.PARAM and n.size >= size}
    ordered = set[int]().union(*(_in_order(item, v) for v in _values(item)))
    here = set[int]().union(*(_in_order(host, v) for v in _values(host)))
    return bool(large) and large <= ordered & here and not any(n.op is Ops.REDUCE for n in toposort(_values(item)))


def _by_rows(item: ScheduleItem, slot: int, count: int) -> bool:
    """Whether a kernel reads a slot of ``count`` elements row by row only: what it is repeated along comes after it."""
    below: set[UOp] = set()
    for n in toposort(_values(item)):
        if n.op is Ops.PARAM and item.slots[n.arg[0]] == slot:
            below.add(n)
        elif below.isdisjoint(n.src):
            continue
        elif n.op is Ops.EXPAND:
            kept = [a for a, s in enumerate(n.src[0].shape) if s > 1]
            if any(s != n.src[0].shape[a] for a, s in enumerate(n.shape[: max(kept, default=-1)])):
                return False
        elif n.size == count and (n.op.elementwise or n.op in _AS_IT_LIES or n.op.kind == "cast"):
            below.add(n)
        else:
            return False
    return True


def _fits(items: Sequence[ScheduleItem], group: Sequence[ScheduleItem], sums: Sequence[ScheduleItem]) -> bool:
    """Whether a group can be one kernel: not too many arguments, and nothing in it or around it needs its sums, which
    are known only when all loops are done, or leads from it back into it."""
    if len({s for i in group for s in i.slots}) + sum(len(i.written) for i in sums) > MOST_BUFFERS:
        return False
    return joinable(items, group, {s for i in sums for s in i.written})


# *** joining ***


def _joined(items: list[ScheduleItem], slots: list[Slot], host: ScheduleItem,
            wanted: Sequence[ScheduleItem]) -> list[ScheduleItem]:
    """The items with sums, and with statistics that they share, moved into a host."""
    present, target = {id(i) for i in items}, Device[host.device].target
    group, sums, space = [host], list[ScheduleItem](), None
    for item in wanted if id(host) in present else ():
        found = _spaces(_sums(item)[0], _values(host)[0].shape, target)
        fitting = next((s for s in found if space in (None, s)), None)
        if id(item) in present and fitting is not None and _fits(items, [*group, item], [*sums, item]):
            group, sums, space = [*group, item], [*sums, item], fitting
    if space is None:
        space = _rows_space(items, host) if id(host) in present and _has_rows(host) else None
    if space is None:
        return items
    for item in items if target.costs.maps_beside else ():
        if all(item is not i for i in group) and _is_map(item, host):
            group = [*group, item] if _fits(items, [*group, item], sums) else group
    for item in reversed(items):
        if all(item is not i for i in group) and _is_statistic(item, group, space):
            group = [*group, item] if _fits(items, [*group, item], sums) else group
    if len(group) == 1:
        return items
    inside, late = {id(i) for i in group}, {id(i) for i in sums}
    rows = [i for i in items if id(i) in inside and id(i) not in late]
    others = [i for i in items if id(i) not in inside]
    parts: list[list[int]] = []
    for item in sums:
        first = len(slots)
        slots += [Slot(first + n, math.prod(space.part), total.dtype, item.device)
                  for n, total in enumerate(_sums(item))]
        parts.append(list(range(first, len(slots))))
    rests = [_rest(i, p, space) for i, p in zip(sums, parts)]
    needed = {s for i in (*others, *rests) for s in i.read} | {s.number for s in slots if s.output}
    joined = [_with_sums(rows, host, list(zip(sums, parts)), space, needed), *rests]
    last = max(n for n, i in enumerate(items) if id(i) in inside)
    return toposorted([*(i for i in items[:last] if id(i) not in inside), *joined, *items[last + 1 :]])


def _with_sums(rows: Sequence[ScheduleItem], host: ScheduleItem, sums: Sequence[tuple[ScheduleItem, list[int]]],
               space: Space, needed: set[int]) -> ScheduleItem:
    """The host with its partial sums behind its own results, and before these the statistics that others need."""
    members = [*rows, *(i for i, _ in sums)]
    kept = [s for i in rows for s in i.written if i is host or s in needed]
    inside = {s for i in members for s in i.written}
    read = dict.fromkeys(s for i in members for s in i.read if s not in inside)
    number = {s: n for n, s in enumerate((*kept, *(p for _, parts in sums for p in parts), *read))}
    values: dict[int, UOp] = {}
    for i in rows:
        values.update(zip(i.written, placed(i, _values(i), number, values)))
    results = [values[s].reshape(space.rows if values[s].size == math.prod(space.rows) else space.sizes) for s in kept]
    for i, _ in sums:
        results += [v.reshape(space.sizes).reduce(Ops.ADD, (space.axis,))
                    for v in placed(i, [total.src[0] for total in _sums(i)], number, values)]
    what = "with sums over its loops" if sums else "with what else its rows have"
    return as_one(members, UOp(Ops.SINK, None, tuple(results), len(results) - len(kept)), list(number), what)


def _rest(item: ScheduleItem, parts: Sequence[int], space: Space) -> ScheduleItem:
    """What is left of a kernel: the sums of partial sums, and what it makes of them."""
    totals = _sums(item)
    other = tuple(a for a in space.summed if a != space.axis)
    left = [n for n in toposort(_values(item), lambda n: n not in totals) if n.op is Ops.PARAM]
    slots = [*item.written, *parts, *dict.fromkeys(item.slots[n.arg[0]] for n in left)]
    table = {n: n.replace(arg=(slots.index(item.slots[n.arg[0]], item.outputs), n.arg[1])) for n in left}
    for k, total in enumerate(totals):
        part = UOp(Ops.PARAM, total.dtype, (), (item.outputs + k, space.part))
        table[total] = part.reduce(Ops.ADD, other).reshape(total.shape)
    values = substitute(_values(item), table)
    return ScheduleItem(item.device, UOp(Ops.SINK, None, tuple(values)), slots, item.reason, item.origin,
                        outputs=item.outputs)
