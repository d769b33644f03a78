"""SPMD partitioning: a graph of full values becomes one graph per device, with copies and collectives between them.

A program is written, differentiated and cached as if its values were on one device. Before it is scheduled,
``spread_out`` walks it, sources first, and gives every value that depends on a group of devices a *placement*:
replicated on each device, or partitioned along one axis. A partition propagates while parts of a result are made of
parts of its sources (``axes``). A few ops that mix the elements of an axis have a rule of their own, such as the
all-reduce after a sum of each part; all other ops are computed in full on each device. docs/devices.md lists the rules.

A sum of which every reader needs only parts is reduce-scattered instead of all-reduced.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tinsmith.backend.device import Device, members
from tinsmith.backend.memory import ShardLayout
from tinsmith.core.dtypes import dtypes
from tinsmith.core.errors import DeviceError
from tinsmith.ir import Ops, UOp
from tinsmith.ir.graphs import joined
from tinsmith.ir.rewrite import readers_of
from tinsmith.ir.uop import substitute, toposort
from tinsmith.schedule.canonical import buffer_name, part_names
from tinsmith.schedule.multi.axes import Bounds, Place, followed, part_of
from tinsmith.schedule.multi.collectives import all_gather, all_reduce, broadcast, cut, gather, reduce_scatter, sent
from tinsmith.schedule.passes.rewrites import note_origin
from tinsmith.schedule.values import size_of

_EVERYWHERE = (Ops.CONST, Ops.IOTA, Ops.BIND, Ops.VARIABLE, Ops.DETACH)


@dataclass(frozen=True)
class Spread:
    """A value over several devices.

    Attributes:
        parts: a node per device; None where its part is empty.
        axis: the axis that is partitioned; None if replicated.
        bounds: part i is ``bounds[i]`` to ``bounds[i + 1]`` of the axis.
    """

    devices: tuple[str, ...]
    parts: tuple[UOp | None, ...]
    axis: int | None = None
    bounds: Bounds = ()

    @property
    def full(self) -> tuple[UOp, ...]:
        """The parts, where none is empty."""
        found = tuple(p for p in self.parts if p is not None)
        assert len(found) == len(self.parts), self
        return found

    @property
    def place(self) -> Place | None:
        return None if self.axis is None else (self.axis, self.bounds)


def is_group(name: str | None) -> bool:
    """Return True if a device name is a group of several devices."""
    return name is not None and "," in name


def spread_out(roots: Sequence[UOp], device: str) -> tuple[list[UOp], list[ShardLayout | None]]:
    """Return nodes on single devices that compute ``roots``, and the layout that combines each root's nodes.

    Args:
        roots: concrete nodes of a canonical graph.
        device: the device that computes values without a device; a group computes them on each of its devices.
    """
    spreader = Spreader(members(device)[0], {})
    spreader.walk(roots)
    wanted = wanted_in_parts(roots, spreader) if spreader.reduced else {}
    if wanted:
        spreader = Spreader(members(device)[0], wanted)
        spreader.walk(roots)
    out: list[UOp] = []
    layouts: list[ShardLayout | None] = []
    for root in roots:
        s = spreader.placed_root(root, device)
        if isinstance(s, UOp):
            out.append(s)
            layouts.append(None)
            continue
        shape = root.shape if s.axis is not None else (size_of(root),)
        layouts.append(ShardLayout(s.devices, shape, s.axis, s.bounds))
        for part, d in zip(s.full, s.devices):
            part = sent(part, d) if part.device is None else part
            while part.op is Ops.RESHAPE and not any(isinstance(size, UOp) for size in part.src[0].shape):
                part = part.src[0]  # the layout knows the shape
            while part.op.kind == "movement" or part.op in (Ops.BUFFER, Ops.CONST, Ops.IOTA) or part in out:
                part = UOp(Ops.CONTIGUOUS, None, (part,))  # each root needs memory of its own
            out.append(part)
    return out, layouts


def place_of(node: UOp) -> tuple[str | None, int | None, Bounds]:
    """Return the placement of a node: its device or group, and the axis and bounds of its parts."""
    return places_of([node])[0]


def places_of(nodes: Sequence[UOp]) -> list[tuple[str | None, int | None, Bounds]]:
    """Return the placements of several nodes, with one walk per group of devices."""
    spread: dict[UOp, Spread] = {}
    for group in {n.device: None for n in nodes if is_group(n.device)}:
        grouped = [n for n in nodes if n.device == group]
        named = _named(grouped)
        spreader = Spreader(members(group or "")[0], {})
        spreader.walk(named)
        spread.update({n: spreader.spread[m] for n, m in zip(grouped, named)})
    return [(n.device, s.axis, s.bounds) if (s := spread.get(n)) is not None else (n.device, None, ()) for n in nodes]


def _named(nodes: Sequence[UOp]) -> list[UOp]:
    """Return the graphs with their buffers numbered, as the rules expect."""
    buffers = [n for n in toposort(nodes) if n.op is Ops.BUFFER]
    return substitute(nodes, {n: n.replace(arg=buffer_name(i << 16, n.arg)) for i, n in enumerate(buffers)})


class Spreader:
    """One walk over a graph: ``local`` holds nodes on a single device, ``spread`` the placements of the others."""

    def __init__(self, device: str, wanted: Mapping[UOp, Place]) -> None:
        self.device = device
        self.local: dict[UOp, UOp] = {}
        self.spread: dict[UOp, Spread] = {}
        # node → True if it is cheap to compute on every device and has the same value there
        self.anywhere: dict[UOp, bool] = {}
        self.gathered: dict[Spread, Spread] = {}
        self.sent: dict[tuple[UOp, tuple[str, ...]], Spread] = {}
        self.wanted = wanted
        self.reduced: list[UOp] = []  # sums that were all-reduced

    def walk(self, roots: Sequence[UOp]) -> None:
        for n in toposort(roots):
            found = self.visit(n)
            if isinstance(found, UOp):
                self.local[n] = found
                self.anywhere[n] = n.op in _EVERYWHERE or (
                    (n.op.elementwise or n.op.kind == "movement") and all(self.anywhere[s] for s in n.src))
                if found is not n:
                    note_origin(found, n)
            else:
                self.spread[n] = found
                for part in found.parts:
                    if part is not None:
                        note_origin(part, n)

    def placed_root(self, root: UOp, device: str) -> UOp | Spread:
        s = self.spread.get(root)
        if s is None:
            node = self.local[root]
            if node.device is None and is_group(device):
                return self.everywhere(node, members(device))
            return node
        if any(isinstance(size, UOp) for size in root.shape):
            return self.whole(s)
        return self.settled(s)

    # *** one node ***

    def visit(self, n: UOp) -> UOp | Spread:
        if n.op is Ops.BUFFER:
            return n if n.arg.layout is None else _of_buffer(n)
        if n.op is Ops.SHARD:
            return self.shard(n)
        if n.op is Ops.COPY:
            return self.copy(n)
        if not any(s in self.spread for s in n.src):
            src = tuple(self.local[s] for s in n.src)
            return n if src == n.src else n.replace(src=src)
        devices = self.devices(n)
        return self.across(n, devices) or self.side_by_side(n, devices)

    def devices(self, n: UOp) -> tuple[str, ...]:
        """Return the group of devices that all sources of a node lie on.

        Raises:
            DeviceError: if they lie on different devices.
        """
        groups = {self.spread[s].devices: None for s in n.src if s in self.spread}
        alone = {self.local[s].device: None for s in n.src if s in self.local and self.local[s].device is not None}
        if len(groups) + len(alone) > 1:
            names = [*(f"({', '.join(g)})" for g in groups), *map(str, alone)]
            raise DeviceError(n.op.name.lower(), f"values on different devices: {' and '.join(names)}",
                              "move one of them with .to() or .shard()")
        return next(iter(groups))

    # *** changes of placement ***

    def whole(self, s: Spread) -> Spread:
        """Return the value replicated on every device (all-gathered if partitioned)."""
        if s.axis is None:
            return s
        if s not in self.gathered:
            self.gathered[s] = Spread(s.devices, all_gather(s.parts, s.devices, s.axis))
        return self.gathered[s]

    def settled(self, s: Spread) -> Spread:
        """Return the value with a non-empty part on every device: replicated if one is empty."""
        return self.whole(s) if None in s.parts else s

    def everywhere(self, node: UOp, devices: tuple[str, ...]) -> Spread:
        """Return ``node``, a value on one device or a constant without device, replicated on ``devices``."""
        if node.device is None:
            first, *others = devices
            here = UOp(Ops.CONTIGUOUS, None, (node,)) if first == self.device else sent(node, first)
            return Spread(devices, (here, *(sent(node, d) for d in others)))
        able = Device[node.device].has_programs  # plain memory cannot slice, so each device reads the full value
        return Spread(devices, broadcast(node, devices, None if able else "direct"))

    def source(self, n: UOp, devices: tuple[str, ...]) -> UOp | Spread:
        """Return the placement of a source; an unplaced node only if every device can compute it cheaply."""
        if n in self.spread:
            return self.settled(self.spread[n])
        if self.anywhere[n]:
            return self.local[n]
        if (n, devices) not in self.sent:
            self.sent[n, devices] = self.everywhere(self.local[n], devices)
        return self.sent[n, devices]

    def whole_source(self, n: UOp, devices: tuple[str, ...]) -> tuple[UOp, ...]:
        s = self.source(n, devices)
        return (s,) * len(devices) if isinstance(s, UOp) else self.whole(s).full

    def along(self, n: UOp, devices: tuple[str, ...], place: Place | None) -> tuple[UOp, ...]:
        """Return a source partitioned as ``place`` (None: replicated)."""
        if place is None:
            return self.whole_source(n, devices)
        s, (axis, bounds) = self.source(n, devices), place
        if isinstance(s, UOp):
            return tuple(cut(s, axis, b, e) for b, e in pairwise(bounds))
        if s.axis is None:
            return tuple(cut(p, axis, b, e) for p, (b, e) in zip(s.full, pairwise(bounds)))
        if s.place == place:
            return s.full
        return tuple(self.piece(s, d, axis, b, e) for d, (b, e) in zip(devices, pairwise(bounds)))

    def piece(self, s: Spread, device: str, axis: int, begin: int, end: int) -> UOp:
        """Return elements ``begin`` to ``end`` of an axis on one device, sent from the devices
        that have some of them."""
        assert s.axis is not None
        if s.axis != axis:
            return gather([cut(p, axis, begin, end) for p in s.full], device, s.axis)
        pieces = []
        for p, low, high in zip(s.parts, s.bounds, s.bounds[1:]):
            b, e = max(begin, low), min(end, high)
            if p is not None and b < e:
                pieces.append(sent(cut(p, axis, b - low, e - low), device))
        return joined(pieces, axis)

    # *** sources of placements ***

    def shard(self, n: UOp) -> Spread:
        axis, devices = n.arg[0], members(n.arg[1])
        bounds = [0]
        for s in n.src:
            bounds.append(bounds[-1] + s.shape[axis])
        parts = []
        for s, d in zip(n.src, devices):
            part = self.local[s] if s in self.local else self.on_one(self.spread[s], d)
            parts.append(part if part.device in (d, None) else sent(part, d))
        return Spread(devices, tuple(parts), axis, tuple(bounds))

    def copy(self, n: UOp) -> UOp | Spread:
        source, devices = n.src[0], members(n.arg)
        if source in self.spread:
            s = self.spread[source]
            if len(devices) == 1:
                return self.on_one(s, n.arg)
            if devices == s.devices:
                return self.whole(s)
            return Spread(devices, broadcast(self.on_one(s, devices[0]), devices))
        node = self.local[source]
        if len(devices) > 1:
            return self.everywhere(node, devices)
        return sent(node, n.arg)

    def on_one(self, s: Spread, device: str) -> UOp:
        """Return the full value on one device."""
        if s.axis is not None:
            return gather(s.parts, device, s.axis)
        return s.full[s.devices.index(device)] if device in s.devices else sent(s.full[0], device)

    # *** rules ***

    def side_by_side(self, n: UOp, devices: tuple[str, ...]) -> Spread:
        """Return a partitioned node: each device computes its part from parts of the sources.

        If no partition of a source propagates to the node, each device computes the full value.
        """
        place = self.place(n, devices)
        needs = [place and followed(n, k, place, back=True) for k in range(len(n.src))]
        sources = [self.along(s, devices, need) for s, need in zip(n.src, needs)]
        axis, bounds = place or (None, ())
        sizes = [e - b for b, e in pairwise(bounds)] or [0] * len(devices)
        parts = tuple(part_of(n, src, axis, size) for src, size in zip(zip(*sources), sizes))
        return Spread(devices, parts, axis, bounds)

    def place(self, n: UOp, devices: tuple[str, ...]) -> Place | None:
        """Return the partition of a node: that of its first partitioned source.

        Indices and updates of a gather or scatter come before the indexed value. A new version
        keeps the partition of the old.
        """
        order = list(range(len(n.src)))
        for k in (*order[1:], 0) if n.op in (Ops.GATHER, Ops.SCATTER) else order:
            s = self.source(n.src[k], devices)
            found = followed(n, k, s.place) if isinstance(s, Spread) and s.place else None
            if found is not None or (n.op is Ops.ASSIGN and isinstance(s, Spread)):
                return found
        return None

    def across(self, n: UOp, devices: tuple[str, ...]) -> Spread | None:
        """Return a node whose op mixes elements of the partitioned axis, computed by a rule with communication.

        None if the op does not mix them, or if it has no rule and needs full sources.
        """
        if n.op in (Ops.GATHER, Ops.SCATTER):
            return self.gather(n, devices) if n.op is Ops.GATHER else self.scatter(n, devices)
        s = self.spread.get(n.src[0])
        if s is None or s.axis is None:
            return None
        if n.op is Ops.SHRINK:
            return _shrunk(n, s, s.axis)
        s = self.settled(s)
        if s.axis is None or followed(n, 0, (s.axis, s.bounds)) is not None:
            return None
        rule = {Ops.REDUCE: self.reduced_by_all, Ops.PAD: _padded, Ops.FLIP: _flipped}.get(n.op)
        return None if rule is None else rule(n, s, s.axis)

    def reduced_by_all(self, n: UOp, s: Spread, axis: int) -> Spread:
        partial = [UOp(n.op, n.dtype, (p,), n.arg) for p in s.full]
        for p in partial:
            note_origin(p, n)
        if n in self.wanted:
            axis, bounds = self.wanted[n]
            return Spread(s.devices, reduce_scatter(partial, s.devices, n.arg[0], axis, bounds), axis, bounds)
        self.reduced.append(n)
        return Spread(s.devices, all_reduce(partial, s.devices, n.arg[0]))

    def gather(self, n: UOp, devices: tuple[str, ...]) -> Spread | None:
        """Return a GATHER from a partitioned axis at replicated indices: each device looks up the indices in its part.

        Out-of-range indices give 0, so OR over the bits of all answers is exact, including -0 and NaN.
        """
        x, index = (self.source(s, devices) for s in n.src)
        if isinstance(x, UOp) or x.axis != n.arg or (isinstance(index, Spread) and index.axis is not None):
            return None
        answers = []
        for part, places, begin in zip(x.full, self.whole_source(n.src[1], devices), x.bounds):
            answers.append(UOp(n.op, n.dtype, (part, places - begin), n.arg))
        if n.dtype.is_bool:
            return Spread(devices, all_reduce(answers, devices, Ops.OR))
        bits = {1: dtypes.uint8, 2: dtypes.uint16, 4: dtypes.uint32, 8: dtypes.uint64}[n.dtype.itemsize]
        found = all_reduce([a.bitcast(bits) for a in answers], devices, Ops.OR)
        return Spread(devices, tuple(f.bitcast(n.dtype) for f in found))

    def scatter(self, n: UOp, devices: tuple[str, ...]) -> Spread | None:
        """Return a scatter-add of updates partitioned along its axis: each device adds its own, then all-reduce."""
        axis, op = n.arg
        updates = [self.source(s, devices) for s in n.src[1:]]
        place = next((s.place for s in updates if isinstance(s, Spread) and s.place), None)
        if place is None or place[0] != axis or op is not Ops.ADD:
            return None
        zeros = n.src[0].zeros(n.dtype)
        index, x = (self.along(s, devices, place) for s in n.src[1:])
        own = [UOp(n.op, n.dtype, (zeros, i, v), n.arg) for i, v in zip(index, x)]
        total = all_reduce(own, devices, Ops.ADD)
        return Spread(devices, tuple(b + t for b, t in zip(self.whole_source(n.src[0], devices), total)))


# *** reduce-scatter: sums of which only parts are needed ***


def wanted_in_parts(roots: Sequence[UOp], spreader: Spreader) -> dict[UOp, Place]:
    """Return the all-reduced sums whose readers all take the same partition, with that partition."""
    order = toposort(roots)
    readers = readers_of(order)
    kept = set(roots)
    wishes: dict[UOp, Place | None] = {}
    for n in reversed(order):
        own = spreader.spread.get(n)
        if own is None or own.axis is not None or n in kept:
            continue
        found = {_wish(reader, n, spreader, wishes) for reader in readers.get(n, [])}
        wishes[n] = next(iter(found)) if len(found) == 1 else None
    return {n: place for n in spreader.reduced if (place := wishes.get(n)) is not None}


def _wish(reader: UOp, n: UOp, spreader: Spreader, wishes: Mapping[UOp, Place | None]) -> Place | None:
    """Return the partition in which a reader takes the replicated value of ``n``; None if it needs the full value."""
    s = spreader.spread.get(reader)
    if s is None or not (reader.op.elementwise or reader.op in (Ops.CONTIGUOUS, Ops.ASSIGN, Ops.PERMUTE, Ops.RESHAPE)):
        return None
    place = s.place or wishes.get(reader)
    return place and followed(reader, reader.src.index(n), place, back=True)


# *** placements of single ops ***


def _of_buffer(n: UOp) -> Spread:
    layout = n.arg.layout
    parts = [UOp(Ops.BUFFER, n.dtype, (), name) for name in part_names(n.arg)]
    if layout.axis is None:
        return Spread(layout.devices, tuple(parts))
    shaped = tuple(p.reshape(layout.part_shape(i)) for i, p in enumerate(parts))
    return Spread(layout.devices, shaped, layout.axis, layout.bounds)


def _shrunk(n: UOp, s: Spread, axis: int) -> Spread | None:
    """Return a SHRINK along the partitioned axis: each device keeps its intersection with the
    box, which may be empty."""
    begin, end = n.arg[axis]
    if isinstance(begin, UOp) or isinstance(end, UOp):
        return None
    parts: list[UOp | None] = []
    for p, (low, high) in zip(s.parts, pairwise(s.bounds)):
        b, e = max(begin, low), min(end, high)
        box = (*n.arg[:axis], (b - low, e - low), *n.arg[axis + 1 :])
        parts.append(p.shrink(box) if p is not None and b < e else None)
    bounds = tuple(min(max(b, begin), end) - begin for b in s.bounds)
    return Spread(s.devices, tuple(parts), axis, bounds) if any(parts) else None


def _padded(n: UOp, s: Spread, axis: int) -> Spread | None:
    """Return a PAD along the partitioned axis: the first and last device add the zeros."""
    before, after = n.arg[axis]
    if isinstance(before, UOp) or isinstance(after, UOp):
        return None
    last = len(s.parts) - 1
    ends = [(before if i == 0 else 0, after if i == last else 0) for i in range(last + 1)]
    parts = tuple(p.pad((*n.arg[:axis], end, *n.arg[axis + 1 :])) for p, end in zip(s.full, ends))
    bounds = (0, *(b + before for b in s.bounds[1:-1]), s.bounds[-1] + before + after)
    return Spread(s.devices, parts, axis, bounds)


def _flipped(n: UOp, s: Spread, axis: int) -> Spread:
    """Return a FLIP along the partitioned axis: the parts swap devices."""
    parts = tuple(sent(p, d).flip(n.arg) for p, d in zip(s.full[::-1], s.devices))
    return Spread(s.devices, parts, axis, tuple(s.bounds[-1] - b for b in s.bounds[::-1]))
