"""Software-pipelined loops over staged operands: rings filled by bulk copies (``Ring``), and double buffering by
threads (``RingPipeline``).

A ``Ring`` belongs to a matrix unit that reads its operands from local memory itself (wgmma). Asynchronous bulk copies
fill its slots ahead of the products:

    fill slots 0 … distance-1
    for step:  wait for the step's slot;  products;  fill the slot that the products `in_flight` + 1 ago have read;
               drain all groups of products but the last `in_flight`

One thread issues the bulk copies of boxes of a memory view; elements outside of the view are zero, so that padded
ranges need no guards. The threads of a block meet at a barrier once per step: by then all have drained the products
that read the slot to be filled. A ring of one slot is a plain copy between two barriers.

With warp specialization (``ROLES``), producer warps fill slots as soon as they are free, without barriers:

    filling:  for step:  wait until the slot is free;  fill it
    reading:  for step:  wait for the step's slot;  products;  drain;  release the slot

Consumer groups that alternate on the tiles of a block (ping-pong, ``Turns``) keep their last step in flight:

    reading:  take the turn
              for step:  wait for the step's slot;  products;  drain those before;  release their slot
              hand on the turn;  drain;  release the last slot;  store the result

If a persistent block loops over several tiles of the grid, producers and consumers continue counting steps from one
tile to the next, so that slots are filled for the next tile while a result is stored. The operands of a chain have a
ring each, which the loop over blocks steps through (``codegen/emit/fragments.py``).
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Protocol

from tinsmith.codegen.emit.emitter import Emitter, filling
from tinsmith.codegen.emit.scopes import Coords
from tinsmith.codegen.transform.matrix_units import made_ahead
from tinsmith.codegen.transform.tma_boxes import box_of, loaded
from tinsmith.core.dtypes import DType
from tinsmith.ir import Ops, UOp
from tinsmith.ir.algebra.symbolic import simplify
from tinsmith.ir.matrix_unit import BulkView
from tinsmith.ir.structure import Role, range_size
from tinsmith.ir.uop import toposort


class Sum(Protocol):
    """The reduction whose loop uses a ring: its emitter, and its accumulators by copy."""

    lin: Emitter
    values: dict[tuple[int, Coords, Coords], UOp]

    def in_loop(self, r: UOp, start: UOp, end: UOp, inside: Callable[[], None]) -> None: ...

    def step(self, bodies: list[UOp]) -> None: ...

    def drained(self) -> None: ...


class Ring:
    """The slots of staged operands, and the loop ``loop`` up to ``end`` that fills them.

    Attributes:
        in_flight: steps whose products are still running when the next step begins.
        distance: steps that slots are filled ahead.
        free: the barriers by which consumers release slots; None if all threads meet at a barrier, or if no slot is
            filled twice.
        slot: the slot of the step that was waited for last.
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
        """Emit the loop; the writer's accumulators are drained after it."""
        lin = self.lin
        if lin.role is None:
            if lin.turn is not None:
                lin.barrier()  # no warp still reads the slots
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
        """Issue the copies of the first ``distance`` steps."""
        for step in range(self.distance):
            self.fill(UOp.index(step))

    def at(self, step: UOp) -> tuple[UOp, UOp]:
        """Return the slot of a step and the parity of its fill; steps are numbered through all tiles of the block."""
        turn = self.lin.turn
        count = step if turn is None else turn * self.end + step
        count += 2 * self.depth * (count.vmin < 0)  # step -1, of the tile before
        return (count % self.depth).simplify(), (count // self.depth % 2).simplify()

    def step(self, writer: Sum, step: UOp, bodies: list[UOp]) -> None:
        """Wait for the slot of a step, issue its products, and fill another slot or release this one."""
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
        """Wait until the slot of a step is filled; operand tiles are read from it from then on."""
        self.slot, parity = self.at(step)
        lin = self.lin
        lin.force(UOp(Ops.WAIT, None, (self.ring, lin.expression(self.slot), lin.expression(parity))))

    def release(self, slot: UOp | None = None) -> None:
        """Signal that this warp no longer reads ``slot``, by default the slot that it waited for last."""
        if self.free is not None:
            self.lin.force(UOp(Ops.RELEASE, None, (self.free, self.lin.expression(slot or self.slot))))

    def refill(self, step: UOp) -> None:
        """Wait until the slot of a step is free and issue its copies (producer)."""
        lin = self.lin
        if self.free is not None:
            slot, parity = self.at(step)
            before = lin.expression((1 - parity).simplify())
            lin.force(UOp(Ops.WAIT, None, (self.free, lin.expression(slot), before)))
        self.copies(step)

    def tile(self, load: UOp, dtype: DType, coords: Coords) -> UOp:
        """Return an operand's tile in the slot of the current step."""
        lin, which, position = self.lin, self.stages.index(load.src[0]), load.src[1]
        first = {r: UOp.index(0) for r in position.ranges if r.arg[1] is Role.FRAGMENT}
        inside = lin.at(position.substitute(first).simplify(), coords)
        index = lin.expression((self.slot * self.stages[which].arg.layout.elements + inside).simplify())
        return lin.emit(lin.here, UOp(Ops.TILE, dtype, (self.memories[which], index)))

    def fill(self, step: UOp) -> None:
        """Let one thread of the block issue the copies of a step, if the loop has that step."""
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
        """Issue the copies of a step."""
        lin, slot = self.lin, self.at(step)[0]
        line = lin.expression(slot)
        copies = [self.boxes(which, step, slot) for which in range(len(self.stages))]
        total = sum(view.bytes(m.dtype.itemsize) for m, boxes in zip(self.memories, copies) for view, _ in boxes)
        lin.force(UOp(Ops.ARRIVE, None, (self.ring, line), total))
        for memory, boxes in zip(self.memories, copies):
            for view, src in boxes:
                lin.force(UOp(Ops.ASYNC_COPY, None, (self.ring, line, memory, *src), view))

    def boxes(self, which: int, step: UOp, slot: UOp) -> list[tuple[BulkView, tuple[UOp, ...]]]:
        """Return the copies that fill an operand's slot, one per chunk: (view, (offset in the ring, memory,
        coordinates))."""
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
    """Return the stages with slots whose innermost enclosing loop is the loop over ``r``, which fills them."""
    opened = lin.opened | {r}
    found = [n for n in toposort(nodes) if n.op is Ops.STAGE and n.arg.depth > 1]
    return [n for n in found if n.arg.layout is None and r in n.ranges and n.ranges <= opened]


class RingPipeline:
    """A double-buffered loop: threads load the next iteration's operands to registers, and store them to another slot.

        load, store 0
        for step:  barrier;  load step + 1;  work on slot step;  store to slot step + 1

    One barrier per step suffices: after it, all threads have stored this step's slot, and none reads the one before it.
    """

    def __init__(self, writer: Sum, loop: UOp, end: UOp, stages: Sequence[UOp]) -> None:
        self.writer, self.lin, self.loop, self.end, self.stages = writer, writer.lin, loop, end, stages
        self.memories = [self.lin.local(s.dtype, s.arg.depth * prod(s.arg)) for s in stages]
        for stage, memory in zip(stages, self.memories):
            self.lin.scopes[-1].values[stage, ()] = memory

    def run(self, start: UOp, stores: Sequence[UOp], inside: Callable[[list[UOp]], None]) -> None:
        """Emit the loop. ``stores``: the stores that ``inside`` emits; their loads are redirected to the slots."""
        lin, r = self.lin, self.loop
        if len(lin.scopes) > 1:  # an iteration of an outer loop may still read the slots
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
        """Return the offset of the slot of a step."""
        slots: int = stage.arg.depth
        elements: int = prod(stage.arg)
        return step % slots * elements

    def begin(self, step: UOp) -> list[UOp]:
        """Issue the loads of a step's slots and return the stores to them; above a limit of registers, loads are issued
        in ``land``."""
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
        """Store the loaded elements to the slots of a step."""
        for stage, fill in zip(self.stages, fills):
            at = (fill.src[1] + self.place(stage, step)).simplify()
            self.lin.fill([fill.replace(src=(fill.src[0], at, *fill.src[2:]))], ())


def rings_of(lin: Emitter, product: UOp) -> list[Ring]:
    """Return the rings of a product's operands: one for the operands that are filled in a loop (the product's loop, or
    the loop over the blocks of a chain), and in a chain one for the operands that are filled once."""
    stages = list(dict.fromkeys(s.src[0] for s in product.src[:2] if s.op is Ops.LOAD and s.src[0].op is Ops.STAGE))
    if all(s in lin.rings for s in stages):
        return [ring for ring in dict.fromkeys(lin.rings[s] for s in stages) if isinstance(ring, Ring)]
    blocks = next((r for r in lin.kernel.order if r.arg[1] is Role.BLOCK), None)
    if blocks is None:
        loop, one = loop_of(lin, product), UOp.index(1)
        deep = min(s.arg.depth for s in stages) > 2
        late = lin.role is None or lin.group is not None  # else the other consumers' products overlap instead
        return [Ring(lin, stages, loop, one if loop is None else loop.src[-1], int(late and deep))]
    fixed, brought = ([s for s in stages if (blocks in s.ranges) is moves] for moves in (False, True))
    out = [Ring(lin, fixed, None, UOp.index(1), 0)] if fixed else []
    late = made_ahead(product)  # the products of the last block overlap with the next block
    end = lin.span_of(blocks)[1]
    end = end.maximum(1).simplify() if late else end
    return out + ([Ring(lin, brought, blocks, end, int(late))] if brought else [])


def produce(lin: Emitter, rings: Sequence[Ring]) -> None:
    """Emit the producer thread: all fills of one tile of the grid, step by step."""
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
    """Define a ring of barriers by which all warps of ``groups`` consumer groups release slots."""
    warps = groups * lin.kernel.products[0].arg.threads // lin.kernel.target.warp
    return lin.emit(0, UOp(Ops.DEFINE_RING, None, (), (name, slots, warps)))


class Turns:
    """Ping-pong: consumer groups take turns at their matrix unit, ordered by a ring of barriers without data. Each
    group has a slot, which the group before it releases when its products are issued. While one group multiplies, the
    others compute softmax or epilogue."""

    def __init__(self, lin: Emitter, group: UOp, groups: int) -> None:
        self.lin, self.group, self.groups = lin, group, groups
        self.ring = readers(lin, "turn", groups, 1)

    def take(self, step: UOp) -> None:
        """Wait until it is this group's turn for step number ``step``; the first group does not wait for step 0."""
        lin, parity = self.lin, (step + 1 + self.group.minimum(1)) % 2
        lin.force(UOp(Ops.WAIT, None, (self.ring, self.group, lin.expression(parity.simplify()))))

    def hand_on(self) -> None:
        following = ((self.group + 1) % self.groups).simplify()
        self.lin.force(UOp(Ops.RELEASE, None, (self.ring, self.lin.expression(following))))


def loop_of(lin: Emitter, product: UOp) -> UOp | None:
    """Return the loop over the steps of a product; None if it has a single step."""
    fold = next((f for f in lin.kernel.folds if f.src[0] is product), None)
    return None if fold is None else next((r for r in fold.src[1:] if not r.arg[1].expanded), None)


def shared_out(lin: Emitter, readers: int, threads: int) -> tuple[int, int] | None:
    """Return the registers of a producer thread and of a consumer thread, for ``readers`` consumer groups of
    ``threads`` threads and one producer group; None if all threads can have the same number."""
    each = lin.kernel.target.block_registers // ((readers + 1) * threads) // 8 * 8
    if readers < 2 or not each:
        return None
    reader = (each * (readers + 1) - lin.kernel.target.filling_registers) // readers // 8 * 8
    return each * (readers + 1) - readers * reader, reader
