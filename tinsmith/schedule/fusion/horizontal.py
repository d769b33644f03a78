"""Horizontal fusion: independent kernels with common loops or inputs become one kernel with several outputs.

Three kinds are found, in this order:

- kernels over the same *tiles*: attention forward stores its rows' statistics, which its gradient needs, from the
  kernel that uses them; the gradients of keys and values share their tiles;
- *siblings*, such as optimizer updates and statistics of one tensor: their outputs have one shape, their reductions run
  over the same axes, and they read a common buffer, or are tiny maps (the counters of batch norms), or one reads the
  other's outputs element by element (row by row, on targets that keep rows in registers), so the value is still in a
  register;
- *sums* of values that another kernel computes or reads.

Column sums (``fuse_sums``) move into the kernel that computes or reads the same rows:

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

import functools
import math
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, groupby, pairwise, product, takewhile
from operator import is_not, mul
from typing import Any, NamedTuple

from tinsmith.backend.device import Device
from tinsmith.codegen.lower.lower import lower
from tinsmith.codegen.lower.normalize import normalize
from tinsmith.codegen.transform.skip_masked_blocks import block_of, crossing
from tinsmith.core.dtypes import dtypes
from tinsmith.ir import Ops, UOp
from tinsmith.ir.ops.op import is_repeated
from tinsmith.ir.structure import contraction
from tinsmith.ir.uop import substitute, toposort
from tinsmith.schedule.memory.memory_plan import A, joinable, toposorted
from tinsmith.schedule.schedule_item import Schedule, ScheduleItem, Slot
from tinsmith.target.target import Target

MOST_BUFFERS = 30  # arguments of a merged kernel
MOST_NODES = 400  # nodes of a merged kernel's graph
TINY = 1 << 12  # elements up to which a map takes no longer than its launch

AS_IT_LIES = (Ops.RESHAPE, Ops.CONTIGUOUS, Ops.DETACH)


class KernelPart(NamedTuple):
    """The part of a kernel that a merged kernel takes: some of its values, and the slots they are written to."""

    item: ScheduleItem
    values: Sequence[UOp]
    written: Sequence[int]


def values_of(item: ScheduleItem) -> tuple[UOp, ...]:
    """Return the values a kernel computes."""
    assert item.sink is not None
    return item.sink.src


def merged(members: Sequence[ScheduleItem], same: str) -> ScheduleItem:
    """Return the item that merges ``members``, with all their results; ``same`` names their common property in the
    reason."""
    if len(members) == 1:
        return members[0]
    item = taken_together([KernelPart(m, values_of(m), m.written) for m in members],
                          f"{len(members)} kernels fused horizontally (same {same})")
    item.tiles = frozenset().union(*(m.tiles for m in members))
    return item


def taken_together(parts: Sequence[KernelPart], what: str, kept: Iterable[int] | None = None) -> ScheduleItem:
    """Return one item that computes ``parts`` of several items, producers first.

    Its slots are the written slots in ``kept`` (None: all), then each input once. The text of its reason begins with
    ``what``.
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

    ``late`` slots are complete only after all loops, so neither the group nor a path back into it may read them.
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

    The slots may be broadcast only by EXPANDs for which ``after`` holds: along axes after the rows.
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
    """Return the items with column sums moved into hosts, in dependency order; adds slots for partial sums."""
    kept, count = set[int](), len(slots)  # kept: split sums that no host took
    while True:
        joined, parts_of = _uncut(items, slots, kept)
        done = _hosted(joined, slots)
        here = {id(i) for i in done}
        left = {id(parts) for whole, parts in parts_of if id(whole) in here}
        if not left:
            return done
        kept |= left
        del slots[count:]


def _hosted(items: list[ScheduleItem], slots: list[Slot]) -> list[ScheduleItem]:
    """Return the items with column sums moved into hosts."""
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
    """Return the items with the ``wanted`` sums, and the statistics that they share, moved into ``host``; unchanged if
    the host was merged before."""
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
    """Return the merged host, and for each kernel of a sum the item that finishes the sum from partial sums.

    The merged host stores its own results and the statistics that other kernels read, then the partial sums.
    """
    parts, rests = list[KernelPart](), list[ScheduleItem]()
    for item in sums:
        totals, first = _sums(item), len(slots)
        slots += [Slot(first + n, math.prod(space.part), t.dtype, item.device) for n, t in enumerate(totals)]
        written = range(first, len(slots))
        sums_of_blocks = [t.src[0].reshape(space.sizes).reduce(Ops.ADD, (space.axis,)) for t in totals]
        parts.append(KernelPart(item, sums_of_blocks, written))
        rests += _rests(item, written, space, slots)
    inside, late = {id(i) for i in group}, {id(i) for i in sums}
    needed = {s for i in (*(i for i in items if id(i) not in inside), *rests) for s in i.read}
    needed |= {s.number for s in slots if s.output}
    rows = [i for i in items if id(i) in inside and id(i) not in late]
    kept = [s for i in rows for s in i.written if i is group[0] or s in needed]
    item = taken_together([*(KernelPart(i, values_of(i), i.written) for i in rows), *parts],
                          "fused with column sums over its rows" if sums else
                          "fused with other maps and statistics of its rows",
                          [*kept, *(s for p in parts for s in p.written)])
    values, count = values_of(item), math.prod(space.rows)
    own = [v.reshape(space.rows if v.size == count else space.sizes) for v in values[: len(kept)]]
    item.sink = UOp(Ops.SINK, None, (*own, *values[len(kept) :]), len(values) - len(kept))
    return [item, *rests]


def _rests(item: ScheduleItem, parts: Sequence[int], space: Space, slots: list[Slot]) -> list[ScheduleItem]:
    """Return the items that add up partial sums, and compute the results of a kernel of sums from the totals. Results
    larger than the totals are computed by an item of their own, which reads the totals from memory, except on targets
    that keep rows in registers."""
    totals = _sums(item)
    other = tuple(a for a in space.summed if a != space.axis)

    def total(n: int, at: int) -> UOp:
        return UOp(Ops.PARAM, totals[n].dtype, (), (at, space.part)).reduce(Ops.ADD, other).reshape(totals[n].shape)

    left = [n for n in toposort(values_of(item), lambda n: n not in totals) if n.op is Ops.PARAM]
    large = values_of(item)[0].size > totals[0].size and not Device[item.device].target.costs.maps_beside
    read = range(len(slots), len(slots) + len(totals)) if large else parts
    own = [*item.written, *read, *dict.fromkeys(item.slots[n.arg[0]] for n in left)]
    table = {n: n.replace(arg=(own.index(item.slots[n.arg[0]], item.outputs), n.arg[1])) for n in left}
    for k, t in enumerate(totals):
        table[t] = UOp(Ops.PARAM, t.dtype, (), (item.outputs + k, t.shape)) if large else total(k, item.outputs + k)
    rest = replace(item, sink=UOp(Ops.SINK, None, tuple(substitute(values_of(item), table))), slots=own)
    if not large:
        return [rest]
    slots += [Slot(n, int(t.size), t.dtype, item.device) for n, t in zip(read, totals)]
    sums = UOp(Ops.SINK, None, tuple(total(k, len(totals) + k) for k in range(len(totals))))
    return [ScheduleItem(item.device, sums, [*read, *parts], "the sums of its blocks are added once", item.origin,
                         outputs=len(totals)), rest]


# *** joining sums that were split ***
def _uncut(items: list[ScheduleItem], slots: Sequence[Slot], kept: Collection[int]
           ) -> tuple[list[ScheduleItem], list[tuple[ScheduleItem, ScheduleItem]]]:
    """Return the items with split sums merged again, if hosts take all sums that read the partial results; and each
    such sum with the kernel of its partial results. Those whose ids are in ``kept`` stay split."""
    made = list[tuple[ScheduleItem, ScheduleItem]]()
    for parts in items:
        cut = parts.sink is not None and Device[parts.device].target.costs.maps_beside and _sums(parts)
        if not cut or id(parts) in kept or any(slots[s].output for s in parts.written):
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
            made += [(i, parts) for i in new.values()]
    return items, made


def _with_parts(item: ScheduleItem, parts: ScheduleItem) -> ScheduleItem:
    """Return one kernel of full sums for ``item`` and for the kernel ``parts``, whose partial sums it adds up."""
    made = taken_together([KernelPart(i, values_of(i), i.written) for i in (parts, item)], "", item.written)
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
    """Return the host for a kernel of sums, or None: the kernel with equally many elements that reads or computes most
    of the inputs of the sums, at least half."""
    totals, target = _sums(item), Device[item.device].target
    size = totals[0].src[0].size
    needed = _in_order(item, [total.src[0] for total in totals])
    best, most = None, 0
    for other in items:
        if other is item or other.sink is None or other.device != item.device or needed.isdisjoint(other.slots):
            continue
        if values_of(other)[0].size != size or not _is_plain(other) or _adds_up(other, size) or _is_assembled(other):
            continue
        shared = len(needed & {*other.written, *_in_order(other, values_of(other))})
        fits = shared > most and 2 * shared >= len(needed)
        if fits and next(_spaces(totals[0], values_of(other)[0].shape, target), None):
            best, most = other, shared
    return best


def _adds_up(item: ScheduleItem, size: int) -> bool:
    """Return True if a kernel of a grid has reductions of more than ``size`` elements, such as the partial results of a
    split sum. Few threads would be left if each of them added up several results."""
    return Device[item.device].target.costs.maps_beside and any(
        n.op is Ops.REDUCE and n.src[0].size > size for n in toposort(values_of(item)))


def _is_assembled(item: ScheduleItem) -> bool:
    """Return True if a kernel pads values on a target without a grid: its loops are partitioned at the edges, which the
    loops of sums cannot be."""
    return Device[item.device].target.costs.join > 0 and any(n.op is Ops.PAD for n in toposort(values_of(item)))


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
    ordered = [1] if 2 * before >= wished else sorted(blocks, key=lambda d: abs(d * before - wished))
    nested = [d for d in ordered if _cut(runs, at, d, host)]
    few = not nested or nested[0] * before * cuts.few_blocks < ordered[0] * before
    for d in ordered if few else nested:
        loops = _cut(runs, at, d, host if d in nested else ())
        axis = next((a for a in range(len(loops)) if math.prod(s for s, _ in loops[:a]) == before * d
                     and loops[a][0] == size // d), None)
        if axis is not None:
            yield Space(tuple(s for s, _ in loops), axis, tuple(a for a, (_, x) in enumerate(loops) if x))


def _cut(runs: Sequence[tuple[int, bool]], at: int, blocks: int, host: Sequence[int]) -> list[tuple[int, bool]]:
    """Return ``runs`` with run ``at`` cut into ``blocks`` and split at the boundaries of shape ``host``; [] if these do
    not nest."""
    cut = [(blocks, True)] * (blocks > 1) + [(runs[at][0] // blocks, True)]
    return _refined([*runs[:at], *cut, *runs[at + 1 :]], [s for s in host if s > 1])


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
    """Return True if a kernel is large, and its target can compute other maps of the same rows in this kernel."""
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

_MOST_CROP = 8  # a crop has at most this fraction of the elements
_ALONE = (Ops.SCATTER, Ops.SCAN, Ops.HISTOGRAM, Ops.HOST)
_PLAIN = (Ops.RESHAPE, Ops.EXPAND)


def fuse_horizontally(schedule: Schedule) -> list[ScheduleItem]:
    """Return the items with tiles, siblings and column sums merged, in dependency order; adds slots for partial
    sums."""
    return fuse_sums(_siblings(_same_tiles(schedule.items)), schedule.slots)


# *** the same tiles ***
def _same_tiles(items: list[ScheduleItem]) -> list[ScheduleItem]:
    """Return the items with contractions merged that a single loop nest over common tiles can compute.

    Two kernels are not merged if one reads the contraction of the other.
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

    A group with sums along both sides of the tiles cannot contain row statistics, because these must be complete before
    the walk.
    """
    *members, item = group
    if any(m.variables or m.device != item.device for m in group):
        return False
    if not Device[item.device].target.costs.streams:
        return _one_chain(group)
    if not any(m.tiles & item.tiles or _crossed(m, item) for m in members):
        return False
    if not any(_crossed(a, b) for a, b in product(group, group) if a is not b):
        return True
    return all(map(_sums_only, group)) and _crosses(merged(group, "tiles").sink)


def _one_chain(group: list[ScheduleItem]) -> bool:
    """Return True if a grid can compute all kernels of a group in one loop over tiles: a chain with the statistics of
    its rows, or chains without statistics, if none reads another."""
    written = {s for m in group for s in m.written}
    if not written.isdisjoint(s for m in group for s in m.read) or not frozenset.intersection(*(
            m.tiles for m in group)):
        return False
    online = [any(n.op is Ops.REDUCE and n.arg[0] is Ops.MAX for n in toposort(values_of(m))) for m in group]
    return all(online) and sum(not m.statistics for m in group) <= 1 if any(online) else len(group) <= 2


@functools.lru_cache(64)
def _crosses(sink: UOp) -> bool:
    return bool(crossing(normalize(lower(sink))))


def _crossed(a: ScheduleItem, b: ScheduleItem) -> bool:
    """Return True if both kernels sum the same tiles along different sides.

    Their common rows must occupy all cores, and both sides must divide into blocks.
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
    """Return the items with siblings merged: independent kernels of equal loops that read a common input, or are tiny.

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
        reads = [*item.read, *([_ANY] if key is not None and _is_tiny(*key[1:]) else [])]
        if group is None and key is not None:
            found = (readers.get((key, s)) for s in reads)
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
            readers.update(((key, s), group) for s in reads)
    groups.sort(key=lambda g: g.members[-1])
    return toposorted([merged([items[m] for m in g.members], "loops") for g in groups])


_ANY = -1  # the slot that all tiny maps read in common


def _is_tiny(shape: Shape, reduces: frozenset[Any]) -> bool:
    return not reduces and math.prod(shape) <= TINY


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
            factors = n.src[0].src if n.src[0].op is Ops.MUL else ()
            if contraction(n) or any(is_repeated(s, constants=False) for s in factors):
                return None, 0
            reduces.add((n.src[0].shape, n.arg[1]))
    if reduces and any(n.op is Ops.GATHER for n in nodes):  # a reduction of gathered values is never merged
        return None, 0
    return (item.device, shape, frozenset(reduces)), len(nodes)


def _in_order_of_memory(value: UOp) -> bool:
    """Return True if a value is read in memory order: through reshapes and broadcasts, views that compose to a
    contiguous block, such as a gradient in a bucket of gradients, or a small crop, such as a row that is repeated."""
    top = value
    while value.op in _PLAIN or (value.op is Ops.SHRINK and _MOST_CROP * value.size <= value.src[0].size):
        value = value.src[0]
    return value.op.kind != "movement" or top.st.block


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

    No view may come between read and result. If the kernel reduces axes of a shape (``over``: axes and shape), values
    per row may be broadcast along these axes.
    """
    if over is None:
        return not any(s.op is Ops.PARAM and item.slots[s.arg[0]] in written
                       for n in toposort(values_of(item)) if n.op.kind == "movement" for s in n.src)
    shape, axes = over
    row = tuple(1 if a in axes else s for a, s in enumerate(shape))
    return reads_by_rows(item, written, math.prod(row), lambda n: (n.src[0].shape, n.shape) == (row, shape))
