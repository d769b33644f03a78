"""Rings: the loop of a reduction whose operands are on their way to local memory while others are worked on.

A ``Ring`` is that of a unit which reads its operands from slots itself; a ``Pipeline`` that of all other loops.

The loop of a product whose operands copies under way bring to local memory, slot by slot.

    fill slots 0 … distance-1
    for step:  wait for the step's slot;  products;  fill the slot that the products `in_flight` + 1 ago have read;
               drain all groups of products but the last `in_flight`

A slot is filled by bulk copies of boxes of a view of memory, which one thread issues; what lies outside of the view is
zero, so that padded ranges need no guards. A block's threads meet once per step: then all have drained what read the
slot to be filled. A ring of one slot is a plain copy between two barriers.

With roles, warps of their own fill slots as soon as they are free, and nobody meets:

    filling:  for step:  wait until the slot is free;  fill it
    reading:  for step:  wait for the step's slot;  products;  drain;  release the slot

Groups of readers that take turns at a block's places (``Turns``) leave their steps under way:

    reading:  take the turn
              for step:  wait for the step's slot;  products;  drain those before;  release their slot
              hand on the turn;  drain;  release the last slot;  store the result

Where a block goes through several places of the grid, both count steps on from one place to the next, so that the next
place's slots are filled while a result is stored. The operands of a chain come by a ring each, which the loop over
blocks walks (``emit_chains.py``).
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Protocol

from tinsmith.codegen.emitter import Emitter, filling
from tinsmith.codegen.matrix import made_ahead
from tinsmith.codegen.roles import Role, range_size
from tinsmith.codegen.scopes import Coords
from tinsmith.codegen.views import box_of, loaded
from tinsmith.core.dtypes import DType
from tinsmith.ir import Ops, UOp
from tinsmith.ir.layout import View
from tinsmith.ir.symbolic import simplify
from tinsmith.ir.uop import toposort


class Sum(Protocol):
    """The reduction whose loop goes through a ring: its emitter, and its values by copy."""

    lin: Emitter
    values: dict[tuple[int, Coords, Coords], UOp]

    def in_loop(self, r: UOp, start: UOp, end: UOp, inside: Callable[[], None]) -> None: ...

    def step(self, bodies: list[UOp]) -> None: ...

    def drained(self) -> None: ...


class Ring:
    """The slots of operands, and the loop that fills them up to its end.

    ``in_flight``: steps that the unit works on when the next begins. ``free``: where readers say that they have left a
    slot; None where all threads meet, or no slot is filled again.
    """

    def __init__(self, lin: Emitter, stages: Sequence[UOp], loop: UOp | None, end: UOp, in_flight: int) -> None:
        self.lin, self.loop, self.end, self.stages, self.in_flight = lin, loop, end, stages, in_flight
        self.depth = min(stage.arg.depth for stage in self.stages)
        self.distance = self.depth - 1 - self.in_flight
        self.memories = [lin.local(stage.dtype, self.depth * stage.arg.layout.elements, stage.arg.layout)
                         for stage in self.stages]
        number = len(set(lin.rings.values())) or ""
        lin.rings |= dict.fromkeys(self.stages, self)
        self.ring = lin.emit(0, UOp(Ops.DEFINE_RING, None, tuple(self.memories), (f"ring{number}", self.depth)))
        self.free: UOp | None = None
        if lin.role is not None and (loop is not None or lin.kernel.blocks):
            groups = int(lin.role.arg[1]) - 1
            self.free = readers(lin, f"free{number}", self.depth, groups // lin.kernel.tiles_in_turn)
        self.slot = UOp.index(0)

    def run(self, writer: Sum, bodies: list[UOp]) -> None:
        """The whole loop; the writer's values are drained after it."""
        lin = self.lin
        if lin.role is None:
            if lin.turn is not None:
                lin.barrier()  # no warp reads what is filled now
            self.fill_first()
        loop, turns = self.loop, lin.turns if lin.group is not None else None
        if turns is not None and lin.own_turn is not None:
            turns.take(lin.own_turn)
        if loop is None:
            self.step(writer, UOp.index(0), bodies)
        else:
            writer.in_loop(loop, UOp.index(0), self.end, lambda: self.step(writer, loop, bodies))
        if turns is not None:
            turns.hand_on()
        writer.drained()
        if self.in_flight:
            self.release(self.at(self.end - 1)[0])

    def fill_first(self) -> None:
        """What is under way before the first step."""
        for step in range(self.distance):
            self.fill(UOp.index(step))

    def at(self, step: UOp) -> tuple[UOp, UOp]:
        """The slot of a step, and the parity of its fill: steps count on through all places of the grid."""
        turn = self.lin.turn
        count = step if turn is None else turn * self.end + step
        count += 2 * self.depth * (count.vmin < 0)  # of a step before this one, which is none before the first
        return (count % self.depth).simplify(), (count // self.depth % 2).simplify()

    def step(self, writer: Sum, step: UOp, bodies: list[UOp]) -> None:
        """Wait for the slot of a step, let the unit work on it, and fill another or say that it is free."""
        lin, alone = self.lin, self.lin.role is None
        if alone and not self.distance:
            lin.barrier()
            self.fill(step)
        self.wait(step)
        if alone and self.distance:
            lin.barrier()
        lin.force(UOp(Ops.FENCE))
        writer.step(bodies)
        lin.force(UOp(Ops.COMMIT))
        if alone and self.distance and self.end.vmax > self.distance:
            self.fill((step + self.distance).simplify())
        lin.force(UOp(Ops.DRAIN, None, (), self.in_flight))
        if not self.in_flight:
            self.release()
        elif self.free is not None and self.loop is not None:
            with lin.only(lin.expression(UOp.index(0).lt(step))):
                self.release(self.at(step - 1)[0])

    def wait(self, step: UOp) -> None:
        """Until the slot of a step is filled, which tiles are read from then on."""
        self.slot, parity = self.at(step)
        lin = self.lin
        lin.force(UOp(Ops.WAIT, None, (self.ring, lin.expression(self.slot), lin.expression(parity))))

    def release(self, slot: UOp | None = None) -> None:
        """This warp has left a slot, the one that it waited for last if none is named."""
        if self.free is not None:
            self.lin.force(UOp(Ops.RELEASE, None, (self.free, self.lin.expression(slot or self.slot))))

    def refill(self, step: UOp) -> None:
        """The fill of a step, as soon as its slot is free."""
        lin = self.lin
        if self.free is not None:
            slot, parity = self.at(step)
            before = lin.expression((1 - parity).simplify())
            lin.force(UOp(Ops.WAIT, None, (self.free, lin.expression(slot), before)))
        self.copies(step)

    def tile(self, load: UOp, dtype: DType, coords: Coords) -> UOp:
        """An operand's tile in the slot of this step."""
        lin, which, position = self.lin, self.stages.index(load.src[0]), load.src[1]
        first = {r: UOp.index(0) for r in position.ranges if r.arg[1] is Role.FRAGMENT}
        inside = lin.at(position.substitute(first).simplify(), coords)
        index = lin.expression((self.slot * self.stages[which].arg.layout.elements + inside).simplify())
        return lin.emit(lin.here, UOp(Ops.TILE, dtype, (self.memories[which], index)))

    def fill(self, step: UOp) -> None:
        """One thread of the block issues the copies of a step, if there is such a step."""
        lin, within = self.lin, step.lt(self.end).simplify()
        if within.is_const and not within.arg:
            return
        condition = None if within.is_const else lin.expression(within)
        for _, thread in lin.threads_of:
            first = lin.raw(thread.eq(0))
            condition = first if condition is None else lin.combine(lin.here, Ops.AND, first.dtype, [condition, first])
        assert condition is not None
        with lin.only(condition):
            self.copies(step)

    def copies(self, step: UOp) -> None:
        """The fill of a step's slot begins."""
        lin, slot = self.lin, self.at(step)[0]
        line = lin.expression(slot)
        copies = [self.boxes(which, step, slot) for which in range(len(self.stages))]
        total = sum(view.bytes(m.dtype.itemsize) for m, boxes in zip(self.memories, copies) for view, _ in boxes)
        lin.force(UOp(Ops.ARRIVE, None, (self.ring, line), total))
        for memory, boxes in zip(self.memories, copies):
            for view, src in boxes:
                lin.force(UOp(Ops.ASYNC_COPY, None, (self.ring, line, memory, *src), view))

    def boxes(self, which: int, step: UOp, slot: UOp) -> list[tuple[View, tuple[UOp, ...]]]:
        """The copies that fill an operand's slot, a chunk each: (view, (place, memory, coordinates))."""
        lin, stage = self.lin, self.stages[which]
        layout, ranges = stage.arg.layout, stage.src[1:]
        chunk = ranges[0] if layout.chunks > 1 else UOp.index(0)
        load = loaded(stage.src[0])
        assert load is not None
        found = box_of(load, ranges[-1], ranges[-2], 1)
        assert found is not None
        view, starts, _ = found
        memory = lin.memory(load.src[0], ())
        out = []
        for n in range(layout.chunks):
            offset = lin.expression((slot * layout.elements + n * layout.rows * layout.columns).simplify())
            table = ({chunk: UOp.index(n)} if layout.chunks > 1 else {}) | (
                {self.loop: step} if self.loop is not None else {})
            starts_here = (c.substitute(table).simplify() for c in starts)
            out.append((view, (offset, memory, *(lin.expression(c) for c in starts_here))))
        return out


def slotted(lin: Emitter, r: UOp, nodes: Sequence[UOp]) -> list[UOp]:
    """The stages with slots that the loop over ``r`` fills: it is the last of the loops around them to be opened."""
    opened = lin.opened | {r}
    found = [n for n in toposort(nodes) if n.op is Ops.STAGE and n.arg.depth > 1]
    return [n for n in found if n.arg.layout is None and r in n.ranges and n.ranges <= opened]


class Pipeline:
    """A loop in which threads load what they will need an iteration later, and then store it to another slot.

        load, store 0
        for step:  barrier;  load step + 1;  work on slot step;  store to slot step + 1

    One barrier a step is enough: behind it, all have stored this step's slot and none reads the one before it.
    """

    def __init__(self, writer: Sum, loop: UOp, end: UOp, stages: Sequence[UOp]) -> None:
        self.writer, self.lin, self.loop, self.end, self.stages = writer, writer.lin, loop, end, stages
        self.memories = [self.lin.local(s.dtype, s.arg.depth * prod(s.arg)) for s in stages]
        for stage, memory in zip(stages, self.memories):
            self.lin.scopes[-1].values[stage, ()] = memory

    def run(self, start: UOp, stores: Sequence[UOp], inside: Callable[[list[UOp]], None]) -> None:
        """The loop; ``stores`` are what ``inside`` writes, which now reads from slots."""
        lin, r = self.lin, self.loop
        if len(lin.scopes) > 1:  # an earlier turn of the loop around may still be read
            lin.barrier(self.memories)
        self.land(self.begin(start), start)
        table = {n: n.replace(src=(n.src[0], (n.src[1] + self.place(n.src[0], r)).simplify(), *n.src[2:]))
                 for n in toposort(stores) if n.op is Ops.LOAD and n.src[0] in self.stages}
        bodies = [simplify(s.substitute(table)) for s in stores]

        def step() -> None:
            lin.barrier(self.memories)
            following = self.begin((r + 1).minimum(self.end - 1).simplify())
            inside(bodies)
            self.land(following, r + 1)

        self.writer.in_loop(r, start, self.end, step)

    def place(self, stage: UOp, step: UOp) -> UOp:
        """Where the slot of a step begins."""
        slots: int = stage.arg.depth
        elements: int = prod(stage.arg)
        return step % slots * elements

    def begin(self, step: UOp) -> list[UOp]:
        """What a step's slots are filled with, under way; of too many only when they land."""
        lin, found = self.lin, []
        for stage, memory in zip(self.stages, self.memories):
            fill = filling(stage, memory)
            most = 2 * lin.kernel.target.blocks.carried * lin.block_size
            ahead = lin.block_size > 1 and prod(int(range_size(n)) for n in stage.src[1:]) <= most
            if lin.block_size > 1:
                fill = lin.distributed(stage, fill, Role.UPCAST if ahead else Role.LOOP)
            fill = simplify(fill.substitute({self.loop: step}))
            loads = [n for n in toposort(fill.src[2]) if n.op is Ops.LOAD]
            for coords in lin.all_coords(fill.ranges) if ahead else ():
                for load in loads:
                    lin.value(load, lin.coords_of(load, coords))
            found.append(fill)
        return found

    def land(self, fills: Sequence[UOp], step: UOp) -> None:
        """Store to the slots of a step what has come."""
        for stage, fill in zip(self.stages, fills):
            at = (fill.src[1] + self.place(stage, step)).simplify()
            self.lin.fill([fill.replace(src=(fill.src[0], at, *fill.src[2:]))], ())


def rings_of(lin: Emitter, product: UOp) -> list[Ring]:
    """The rings of a product's operands: one for those that a loop brings, the product's own or that over the blocks
    of a chain; and in a chain one for what stays."""
    stages = list(dict.fromkeys(s.src[0] for s in product.src[:2] if s.op is Ops.LOAD and s.src[0].op is Ops.STAGE))
    if all(s in lin.rings for s in stages):
        return [ring for ring in dict.fromkeys(lin.rings[s] for s in stages) if isinstance(ring, Ring)]
    blocks = next((r for r in lin.kernel.order if r.arg[1] is Role.BLOCK), None)
    if blocks is None:
        loop, one = loop_of(lin, product), UOp.index(1)
        deep = min(s.arg.depth for s in stages) > 2
        late = lin.role is None or lin.group is not None  # else other readers' steps are under way meanwhile
        return [Ring(lin, stages, loop, one if loop is None else loop.src[-1], int(late and deep))]
    fixed, brought = ([s for s in stages if (blocks in s.ranges) is moves] for moves in (False, True))
    out = [Ring(lin, fixed, None, UOp.index(1), 0)] if fixed else []
    late = made_ahead(product)  # the unit still works on the last block when the next begins
    end = lin.span_of(blocks)[1]
    end = end.maximum(1).simplify() if late else end
    return out + ([Ring(lin, brought, blocks, end, int(late))] if brought else [])


def produce(lin: Emitter, rings: Sequence[Ring]) -> None:
    """What one thread does that fills slots: all fills of a place of the grid, step by step."""
    _, thread = lin.threads_of[0]
    with lin.only(lin.raw(thread.eq(0))):
        for loop in dict.fromkeys(ring.loop for ring in rings):
            mine = [ring for ring in rings if ring.loop is loop]
            if loop is not None:
                lin.open(loop, lin.raw(UOp.index(0)), lin.expression(mine[-1].end))
            for ring in mine:
                ring.refill(UOp.index(0) if loop is None else loop)
            if loop is not None:
                lin.close()


def readers(lin: Emitter, name: str, slots: int, groups: int) -> UOp:
    """A ring whose slots are filled by all warps of so many groups leaving them."""
    warps = groups * lin.kernel.products[0].arg.threads // lin.kernel.target.warp
    return lin.emit(0, UOp(Ops.DEFINE_RING, None, (), (name, slots, warps)))


class Turns:
    """Groups of warps that take turns at their unit: a ring without data, in which each group has a slot, and the group
    before it leaves that slot when the unit has got its work. While one multiplies, others compute what is between."""

    def __init__(self, lin: Emitter, group: UOp, groups: int) -> None:
        self.lin, self.group, self.groups = lin, group, groups
        self.ring = readers(lin, "turn", groups, 1)

    def take(self, step: UOp) -> None:
        """Until it is this group's turn, for the step of this number; the first group begins."""
        lin, parity = self.lin, (step + 1 + self.group.minimum(1)) % 2
        lin.force(UOp(Ops.WAIT, None, (self.ring, self.group, lin.expression(parity.simplify()))))

    def hand_on(self) -> None:
        following = ((self.group + 1) % self.groups).simplify()
        self.lin.force(UOp(Ops.RELEASE, None, (self.ring, self.lin.expression(following))))


def loop_of(lin: Emitter, product: UOp) -> UOp | None:
    """The loop that a product's steps stand in."""
    fold = next((f for f in lin.kernel.folds if f.src[0] is product), None)
    return None if fold is None else next((r for r in fold.src[1:] if not r.arg[1].expanded), None)


def shared_out(lin: Emitter, readers: int, threads: int) -> tuple[int, int] | None:
    """Registers of a thread that fills slots, and of one that reads them, where they are shared out between ``readers``
    groups of threads and one that needs few; None where all may have the same."""
    each = lin.kernel.target.block_registers // ((readers + 1) * threads) // 8 * 8
    if readers < 2 or not each:
        return None
    reader = (each * (readers + 1) - lin.kernel.target.filling_registers) // readers // 8 * 8
    return each * (readers + 1) - readers * reader, reader
