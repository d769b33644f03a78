"""Rings: the loop of a product whose operands copies under way bring to local memory, slot by slot.

    fill slots 0 … distance-1
    for step:  wait for the step's slot;  products;  fill the slot that the products `in_flight` + 1 ago have read;
               drain all groups of products but the last `in_flight`

A slot is filled by bulk copies of boxes of a view of memory, which one thread issues; what lies outside of the view is
zero, so that padded ranges need no guards. A block's threads meet once per step: then all have drained what read the
slot to be filled. A ring of one slot is a plain copy between two barriers.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from tinsmith.codegen.emitter import Emitter
from tinsmith.codegen.roles import Role, range_size
from tinsmith.codegen.scopes import Coords, Scope
from tinsmith.codegen.views import view_of
from tinsmith.ir import Ops, UOp
from tinsmith.ir.layout import View


class Sum(Protocol):
    """The reduction whose loop goes through a ring: its emitter, and its values by copy."""

    lin: Emitter
    values: dict[tuple[int, Coords, Coords], UOp]

    def in_loop(self, r: UOp, start: UOp, end: UOp, inside: Callable[[], None]) -> None: ...

    def step(self, bodies: list[UOp]) -> None: ...


class Ring:
    """The slots of one product's operands and the loop that goes through them."""

    def __init__(self, writer: Sum, product: UOp, loop: UOp | None) -> None:
        self.writer, self.lin, self.loop = writer, writer.lin, loop
        self.product = product
        self.stages = [operand.src[0] for operand in product.src[:2]]
        self.depth = min(stage.arg.depth for stage in self.stages)
        self.in_flight = int(self.depth > 2)
        self.distance = self.depth - 1 - self.in_flight
        self.steps = 1 if loop is None else int(range_size(loop))
        lin = self.lin
        self.memories = [lin.local(stage.dtype, self.depth * stage.arg.layout.elements, stage.arg.layout)
                         for stage in self.stages]
        self.ring = lin.emit(0, UOp(Ops.DEFINE_RING, None, tuple(self.memories), ("ring", self.depth)))
        self.slot = UOp.index(0)

    def run(self, bodies: list[UOp]) -> None:
        """The whole loop; the writer's values are drained after it."""
        lin, writer = self.lin, self.writer
        for step in range(min(self.distance, self.steps)):
            self.fill(UOp.index(step))
        loop = self.loop
        if loop is None:
            self.step(UOp.index(0), bodies)
        else:
            writer.in_loop(loop, UOp.index(0), UOp.index(self.steps), lambda: self.step(loop, bodies))
        for key, value in writer.values.items():
            writer.values[key] = lin.force(UOp(Ops.DRAIN, None, (value,), 0))
            lin.scopes[-1].values[writer.values[key]] = writer.values[key]

    def step(self, step: UOp, bodies: list[UOp]) -> None:
        """Wait for the slot of a step, let the unit work on it, and fill another."""
        lin = self.lin
        if not self.distance:
            lin.barrier()
            self.fill(step)
        self.slot = (step % self.depth).simplify()
        parity = lin.expression((step // self.depth % 2).simplify())
        lin.force(UOp(Ops.WAIT, None, (self.ring, lin.expression(self.slot), parity)))
        if self.distance:
            lin.barrier()
        lin.force(UOp(Ops.FENCE))
        lin.ring = self
        self.writer.step(bodies)
        lin.ring = None
        lin.force(UOp(Ops.COMMIT))
        if self.distance and self.steps > self.distance:
            self.fill((step + self.distance).simplify())
        lin.force(UOp(Ops.DRAIN, None, (), self.in_flight))

    def tile(self, which: int, position: UOp, coords: Coords) -> UOp:
        """An operand's tile in the slot of this step, which begins at ``place``."""
        lin, unit = self.lin, self.product.arg
        fragment, dtype = (unit.fragment_a, unit.fragment_b)[which], self.product.src[which].dtype
        first = {r: UOp.index(0) for r in position.ranges if r.arg[1] is Role.FRAGMENT}
        inside = lin.at(position.substitute(first).simplify(), coords)
        index = lin.expression((self.slot * self.stages[which].arg.layout.elements + inside).simplify())
        return lin.emit(len(lin.scopes) - 1, UOp(Ops.TILE, dtype.vec(fragment.size), (self.memories[which], index)))

    def fill(self, step: UOp) -> None:
        """One thread of the block issues the copies of a step, if there is such a step."""
        lin, here = self.lin, len(self.lin.scopes) - 1
        condition = None if step.is_const else lin.expression(step.lt(self.steps))
        for _, thread in lin.threads_of:
            first = lin.raw(thread.eq(0))
            condition = first if condition is None else lin.combine(here, Ops.AND, first.dtype, [condition, first])
        assert condition is not None
        slot = (step % self.depth).simplify()
        line = lin.expression(slot)
        copies = [self.boxes(which, step, slot) for which in range(2)]
        total = sum(view.bytes(m.dtype.itemsize) for m, boxes in zip(self.memories, copies) for view, _ in boxes)
        lin.scopes.append(Scope([UOp(Ops.IF, None, (condition,))]))
        lin.force(UOp(Ops.ARRIVE, None, (self.ring, line), total))
        for memory, boxes in zip(self.memories, copies):
            for view, src in boxes:
                lin.force(UOp(Ops.ASYNC_COPY, None, (self.ring, line, memory, *src), view))
        scope = lin.scopes.pop()
        lin.scopes[-1].take(scope, UOp(Ops.ENDIF, None, (scope.lines[0],)))

    def boxes(self, which: int, step: UOp, slot: UOp) -> list[tuple[View, tuple[UOp, ...]]]:
        """The copies that fill an operand's slot, a chunk each: (view, (place, memory, coordinates))."""
        lin, stage = self.lin, self.stages[which]
        layout, ranges = stage.arg.layout, stage.src[1:]
        chunk = ranges[0] if layout.chunks > 1 else UOp.index(0)
        found = view_of(stage.src[0], ranges[-1], ranges[-2], chunk, 1)
        assert found is not None
        view, starts = found
        memory = lin.memory(stage.src[0].src[0], ())
        out = []
        for n in range(layout.chunks):
            offset = lin.expression((slot * layout.elements + n * layout.rows * layout.columns).simplify())
            table = ({chunk: UOp.index(n)} if layout.chunks > 1 else {}) | (
                {self.loop: step} if self.loop is not None else {})
            starts_here = (c.substitute(table).simplify() for c in starts)
            out.append((view, (offset, memory, *(lin.expression(c) for c in starts_here))))
        return out
