"""Collectives (all-reduce, reduce-scatter, all-gather, broadcast) as graphs of copies and elementwise kernels.

Each is a function from one node per device to one node per device. Copies and sums are ordinary nodes, so the scheduler
overlaps them with other work: ``overlapped`` orders the steps so that copies run while kernels do. Every element is
combined once, or on all devices in the same order, so that the results on all devices are bit-identical.

With n devices and a value of b bytes, each device receives:

| collective | direct | ring, or scatter first |
| --- | --- | --- |
| all-reduce | (n - 1)·b in one round | 2·(n - 1)/n·b in 2·(n - 1) rounds |
| reduce-scatter | (n - 1)/n·b in one round | (the same direct way: parts go straight to their owners) |
| all-gather | (n - 1)/n·b in one round | – |
| broadcast | b, (n - 1)·b leave the source | 2·b, of which 1·b leaves the source |
"""
from __future__ import annotations

from collections.abc import Iterable, Sequence

from tinsmith.backend.device import Device
from tinsmith.ir import Ops, UOp
from tinsmith.ir.graphs import joined
from tinsmith.ir.ops import Op
from tinsmith.schedule.memory.memory_plan import toposorted
from tinsmith.schedule.multi.axes import followed, part_of, resized
from tinsmith.schedule.schedule_item import Schedule, ScheduleItem
from tinsmith.schedule.values import views_of

Parts = tuple[UOp, ...]

_VIEWS = (Ops.RESHAPE, Ops.PERMUTE, Ops.EXPAND)


def all_reduce(parts: Sequence[UOp], devices: Sequence[str], op: Op, algorithm: str | None = None) -> Parts:
    """Return the reduction of all parts by ``op``, on every device.

    Args:
        algorithm: "direct" or "ring"; None chooses by size.

    >>> a, b = (UOp(Ops.PARAM, dtypes.int32, (), (n, (3,))) for n in (0, 1))
    >>> given = {a: np.array([1, 2, 3], np.int32), b: np.array([4, 5, 6], np.int32)}
    >>> evaluate(all_reduce([a, b], ["CPU", "CPU:1"], Ops.ADD), given)
    [array([5, 7, 9], dtype=int32), array([5, 7, 9], dtype=int32)]
    """
    chosen = algorithm or ("ring" if len(parts) > 2 and _large(parts[0], devices) else "direct")
    if chosen == "direct":
        return tuple(_combined([sent(p, d) for p in parts], op) for d in devices)
    count, shape = len(parts), parts[0].shape
    flat = [p.reshape((p.size,)) for p in parts]
    bounds = even_bounds(flat[0].size, count)
    chunks = []
    for c in range(count):  # reduce-scatter around the ring: from the device after the chunk's owner to the owner
        order = [(c + 1 + step) % count for step in range(count)]
        chunks.append(_travelled([cut(flat[k], 0, bounds[c], bounds[c + 1]) for k in order],
                                 [devices[k] for k in order], op))
    return tuple(w.reshape(shape) for w in _ring_gather(chunks, devices))


def reduce_scatter(parts: Sequence[UOp], devices: Sequence[str], op: Op, axis: int, bounds: Sequence[int]) -> Parts:
    """Return, for each device i, elements ``bounds[i]`` to ``bounds[i + 1]`` of the reduction of all parts by
    ``op``.

    >>> a, b = (UOp(Ops.PARAM, dtypes.int32, (), (n, (2,))) for n in (0, 1))
    >>> given = {a: np.array([1, 2], np.int32), b: np.array([4, 5], np.int32)}
    >>> evaluate(reduce_scatter([a, b], ["CPU", "CPU:1"], Ops.ADD, 0, (0, 1, 2)), given)
    [array([5], dtype=int32), array([7], dtype=int32)]
    """
    return tuple(_combined([sent(cut(p, axis, b, e), d) for p in parts], op)
                 for d, b, e in zip(devices, bounds, bounds[1:]))


def all_gather(parts: Sequence[UOp | None], devices: Sequence[str], axis: int) -> Parts:
    """Return the concatenation of the parts along ``axis``, on every device; a part is None where a device has none.

    >>> a, b = (UOp(Ops.PARAM, dtypes.int32, (), (n, (1,))) for n in (0, 1))
    >>> evaluate(all_gather([a, b], ["CPU", "CPU:1"], 0), {a: np.array([1], np.int32), b: np.array([4], np.int32)})
    [array([1, 4], dtype=int32), array([1, 4], dtype=int32)]
    """
    return tuple(gather(parts, d, axis) for d in devices)


def gather(parts: Sequence[UOp | None], device: str, axis: int) -> UOp:
    """Return the concatenation of the parts along ``axis``, on one device."""
    return joined([sent(p, device) for p in parts if p is not None], axis)


def broadcast(value: UOp, devices: Sequence[str], algorithm: str | None = None) -> Parts:
    """Return a value copied to every device.

    Args:
        algorithm: "direct": the source sends the full value to each device; "scatter": it sends each device one part,
            and the devices exchange their parts around a ring. None chooses by size.

    >>> a = UOp(Ops.PARAM, dtypes.int32, (), (0, (2,)))
    >>> evaluate(broadcast(a, ["CPU", "CPU:1", "CPU:2"], "scatter"), {a: np.array([1, 2], np.int32)})[2]
    array([1, 2], dtype=int32)
    """
    chosen = algorithm or ("scatter" if len(devices) > 3 and _large(value, devices) else "direct")
    if chosen == "direct":
        return tuple(sent(value, d) for d in devices)
    flat = value.reshape((value.size,))
    bounds = even_bounds(flat.size, len(devices))
    chunks = [sent(cut(flat, 0, b, e), d) for d, b, e in zip(devices, bounds, bounds[1:])]
    whole = _ring_gather(chunks, devices)
    return tuple(value if d == value.device else w.reshape(value.shape) for d, w in zip(devices, whole))


def _combined(parts: Sequence[UOp], op: Op) -> UOp:
    out = parts[0]
    for p in parts[1:]:
        out = UOp(op, None, (out, p))
    return out


def _travelled(parts: Sequence[UOp], devices: Sequence[str], op: Op) -> UOp:
    """Return the reduction of the parts computed around the ring: the running value is sent on,
    and each device adds its part."""
    out = parts[0]
    for p, d in zip(parts[1:], devices[1:]):
        out = UOp(op, None, (sent(out, d), p))
    return out


def _ring_gather(chunks: Sequence[UOp], devices: Sequence[str]) -> list[UOp]:
    """Return the concatenated chunks on every device: each chunk is passed around the ring
    from neighbour to neighbour."""
    count = len(devices)
    held: list[list[UOp]] = [list(chunks) for _ in devices]
    for c in range(count):
        for step in range(1, count):
            k = (c + step) % count
            held[k][c] = held[k - 1][c].copy_to(devices[k])
    return [joined(row, 0) for row in held]


def _large(value: UOp, devices: Sequence[str]) -> bool:
    size, least = value.size, Device[devices[0]].target.costs.rounds
    return not isinstance(size, UOp) and size >= len(devices) and size * value.dtype.itemsize >= least


def even_bounds(size: int, count: int) -> tuple[int, ...]:
    """Return the bounds of ``count`` nearly equal parts of ``size`` elements; the first parts
    are one longer if uneven.

    >>> even_bounds(10, 4)
    (0, 3, 6, 8, 10)
    """
    short, longer = divmod(size, count)
    return tuple(i * short + min(i, longer) for i in range(count + 1))


# *** parts of a node ***
def cut(node: UOp, axis: int, begin: int, end: int) -> UOp:
    """Return elements ``begin`` to ``end`` of an axis. The SHRINK is pushed below movement ops where possible, so that
    kernels have the same form as on one device."""
    above: list[tuple[UOp, int, int]] = []
    while type(node.shape[axis]) is not int or (begin, end) != (0, node.shape[axis]):
        if node.op is Ops.EXPAND and type(one := node.src[0].shape[axis]) is int and one == 1:
            node = node.src[0].expand(resized(node.shape, axis, end - begin))
            break
        below = followed(node, 0, (axis, (begin, end)), back=True) if node.op in _VIEWS else None
        if below is None:
            node = node.shrink(tuple((begin, end) if i == axis else (0, s) for i, s in enumerate(node.shape)))
            break
        above.append((node, axis, end - begin))
        node, (axis, (begin, end)) = node.src[0], below
    for n, at, length in reversed(above):
        node = part_of(n, (node,), at, length)
    return node


def sent(node: UOp, device: str) -> UOp:
    """Return the value on another device. The COPY is put below views that keep every
    element: it copies memory, not views."""
    if node.device == device:
        return node
    seen = views_of(node, lambda n: n.op in _VIEWS)
    return seen.of(seen.source.copy_to(device))

COPIES = " copies"  # suffix of a device's name: its queue of copies from other devices


def queue_of(copy: bool, target: str, source: str = "") -> str:
    """Return the queue of a kernel that writes on ``target``, or of a copy from ``source`` to it."""
    apart = copy and target != source and Device[target].has_programs and Device[source].has_programs
    return target + COPIES if apart else target


def workers(names: Iterable[str]) -> set[str]:
    """Return the names of the workers (``Compiled.worker``) of devices that run kernels; of a single device, its name.

    Only devices with different workers run at the same time.
    """
    devices = set(names)
    return {Device[d].worker for d in devices if Device[d].has_programs} if len(devices) > 1 else devices


def overlapped(schedule: Schedule) -> list[ScheduleItem]:
    """Return the items in an order that minimizes waits between queues, by list scheduling.

    It simulates a run in which each item takes as long as the bytes it touches; each queue
    starts its earliest ready item.
    """
    items, slots = schedule.items, schedule.slots
    if len(workers(item.device for item in items)) <= 1:
        return items
    devices = [slots[item.slots[0]].device for item in items]
    homes = [queue_of(item.sink is None, d, slots[item.slots[-1]].device) for item, d in zip(items, devices)]
    clocks, ready = dict.fromkeys(homes, 0), [0] * len(items)

    def run(n: int, readers: Sequence[int]) -> None:
        traffic = sum(slots[s].nbytes for s in items[n].slots)
        clocks[homes[n]] = max(clocks[homes[n]], ready[n]) + 1 + traffic * (
            Device[devices[n]].target.costs.copied if items[n].sink is None else 1)
        for r in readers:
            ready[r] = max(ready[r], clocks[homes[n]])

    return toposorted(items, lambda n: max(clocks[homes[n]], ready[n]), run)
