"""The scheduler: from a graph through rewrites and fusion to a list of kernels and copies over numbered buffers."""
from __future__ import annotations

from collections.abc import Sequence

from tinsmith.backend.device import Device
from tinsmith.core.origin import passed
from tinsmith.core.settings import settings
from tinsmith.core.terminal import show
from tinsmith.ir import Ops, UOp
from tinsmith.ir.algebra.sizes import bindings, symbols, with_symbols
from tinsmith.ir.uop import toposort
from tinsmith.schedule.fusion.memory_order import fused_in_best_orders
from tinsmith.schedule.passes.channels_last import pitched
from tinsmith.schedule.passes.compact_scatter import compact_scatters
from tinsmith.schedule.passes.layout_propagation import propagate_layouts, store_normalized
from tinsmith.schedule.passes.polyphase_conv import sum_by_phase
from tinsmith.schedule.passes.rewrites import cast_below_views, gather_first, sum_copies
from tinsmith.schedule.passes.sorted_scatter import spread_scatters
from tinsmith.schedule.passes.split_reductions import split_reductions
from tinsmith.schedule.schedule_item import Schedule, ScheduleItem, Slot
from tinsmith.schedule.slot_sizes import terms_of


class Scheduler:
    """A builder of the schedule of ``roots`` (nodes without movement ops at the top) over BUFFERs."""

    def __init__(self, roots: Sequence[UOp], device: str) -> None:
        self.roots, self.device = list(roots), device
        self.slots: list[Slot] = []
        self.items: list[ScheduleItem] = []
        self.slot_of: dict[UOp, int] = {}
        self.inputs: list[UOp] = []

    def run(self) -> Schedule:
        target = Device[self.device].target
        if not settings.NOOPT:
            self.roots = passed("layouts", propagate_layouts(self.roots, target))
            self.roots = passed("cast below views", cast_below_views(self.roots))
            self.roots = passed("gathers first", gather_first(self.roots))
            self.roots = passed("sum by phase", sum_by_phase(self.roots, target))
            self.roots = passed("spread scatters", spread_scatters(self.roots, target))
            self.roots = passed("compact scatters", compact_scatters(self.roots, target))
            self.roots = passed("stored results", store_normalized(self.roots, target))
            self.roots = passed("padded rows", pitched(self.roots, target))
            self.roots = passed("sums of copies", sum_copies(self.roots))
            self.roots = passed("split reductions", split_reductions(self.roots, target))
        self.roots, fusion = fused_in_best_orders(self.roots, target.costs)
        passed("fusion", fusion)
        if settings.DEBUG >= 6:
            show("\n".join(text for _, text in fusion.rows()))
        for node, verdict in fusion.stored().items():
            self.add(node, str(verdict))
            if (group := fusion.decisions[node].group) is not None and group.tiles:
                self.items[-1].tiles = frozenset(group.tiles)
                self.items[-1].statistics = not group.stream
        for root in self.roots:
            self.slots[self.slot_of[root]].output = True
        passed("schedule", self.items)
        return Schedule(self.items, self.slots, {getattr(b.arg, "number", n): self.slot_of[b]
                                                 for n, b in enumerate(self.inputs)},
                        [self.slot_of[r] for r in self.roots], self.versions(), fusion, self.slot_of)

    def versions(self) -> dict[int, int]:
        """Return slot of an assigned output → number of the buffer that holds the previous version."""
        found: dict[int, int] = {}
        for root in self.roots:
            old = root
            while old.op is Ops.ASSIGN:
                old = old.src[0].base
            slot = self.slots[self.slot_of[root]]
            if old.op is Ops.BUFFER and old is not root and hasattr(old.arg, "number") and (
                    (old.arg.size, old.dtype, old.arg.device) == (slot.size, slot.dtype, slot.device)):
                found[slot.number] = old.arg.number
        return found

    def slot(self, node: UOp) -> int:
        """Return the slot of a staged node's value, or of a BUFFER input."""
        if node not in self.slot_of:
            assert node.op is Ops.BUFFER, node
            self.slot_of[node] = len(self.slots)
            self.slots.append(Slot(len(self.slots), node.arg.size, node.dtype, node.arg.device, input=True))
            self.inputs.append(node)
        return self.slot_of[node]

    def new_slot(self, node: UOp, device: str) -> int:
        self.slot_of[node] = len(self.slots)
        least, most = _size_bounds(node)
        self.slots.append(Slot(len(self.slots), most, node.dtype, device, may_be_empty=least <= 0 < most,
                               terms=terms_of(node.size), shape=node.shape, origin=node.origin))
        return self.slot_of[node]

    def add(self, node: UOp, reason: str) -> None:
        if node.op is Ops.COPY:
            source = self.slot(node.src[0])
            self.items.append(ScheduleItem(node.arg, None, [self.new_slot(node, node.arg), source], reason,
                                           list(node.origin)))
            return
        device = node.device or self.device
        sink, buffers, variables, origin = self.kernel(node)
        slots = [self.slot(b) for b in buffers]
        self.items.append(ScheduleItem(device, sink, [self.new_slot(node, device), *slots], reason, origin, variables))

    def kernel(self, node: UOp) -> tuple[UOp, list[UOp], list[UOp], list[tuple[str, str, int]]]:
        """Return the kernel of a node: its graph, buffers, variables and origin.

        Staged values below become PARAM 1, 2, … in order of visit.
        """
        value = node.src[1] if node.op is Ops.ASSIGN else node
        inside = toposort(value, lambda n: not self.is_memory(n))
        buffers: dict[UOp, UOp] = {}
        origin: dict[tuple[str, str, int], None] = {}
        variables = bindings([*inside, *(b for n in inside for s in n.src if self.is_memory(s) for b in _sizes(s))])
        names = {v: UOp.variable(f"v{k}", *v.src[0].arg[1:]) for k, v in enumerate(variables)}
        new: dict[UOp, UOp] = dict(names)
        constants: set[UOp] = set()  # constants are shared by the entire program, so their source lines say nothing
        for n in inside:
            if n.op is not Ops.BIND and all(s in constants for s in n.src):
                constants.add(n)
            else:
                origin.update(dict.fromkeys(n.origin))
            if n in names:
                continue
            src = tuple(new[s] if s in new else self.param(s, buffers, names) for s in n.src)
            arg = with_symbols(n.arg, names) if names and n.op.kind == "movement" else n.arg
            new[n] = made = n if src == n.src and arg is n.arg else UOp(n.op, n.dtype, src, arg)
            made.origin = made.origin or n.origin
        top = new[value] if value in new else self.param(value, buffers, names)
        origin.update(dict.fromkeys(node.origin))
        return UOp(Ops.SINK, None, (top,)), list(buffers), variables, list(origin)

    def is_memory(self, n: UOp) -> bool:
        return n.op is Ops.BUFFER or n in self.slot_of

    def param(self, n: UOp, buffers: dict[UOp, UOp], names: dict[UOp, UOp]) -> UOp:
        if n not in buffers:
            shape = (n.arg.size,) if n.op is Ops.BUFFER else with_symbols(tuple(n.shape), names)
            buffers[n] = UOp(Ops.PARAM, n.dtype, (), (len(buffers) + 1, shape))
        return buffers[n]


def _sizes(node: UOp) -> list[UOp]:
    """Return the bound variables in a stored value's shape."""
    return [] if node.op is Ops.BUFFER else [b for u in symbols(tuple(node.shape)) for b in toposort(u)]


def _size_bounds(node: UOp) -> tuple[int, int]:
    """Return the minimum and maximum number of elements of a value."""
    size = node.size
    return (size.vmin, size.vmax) if isinstance(size, UOp) else (size, size)
