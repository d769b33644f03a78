"""Emits a chain over blocks: a maximum and sums relative to it, of what a unit leaves in registers.

    S = q·k of the block;  m = max(m, rows of S);  p = exp(S - m);  l = l·exp(m before - m) + rows of p
    O = O·exp(m before - m) + p·v                            on the unit, which goes on with the sum it had

So a block's sums are relative to the maximum so far. Rings bring the blocks' operands: all threads meet once per block,
and have then drained what read the slot that is filled next.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence

from tinsmith.codegen.emit_folds import FoldWriter, OnlineWriter
from tinsmith.codegen.emit_tiles import Place, across_lanes, product_in, statistic, tile_of, widened
from tinsmith.codegen.masking import clear_end
from tinsmith.codegen.matrix import held, product_of
from tinsmith.codegen.online import finite
from tinsmith.codegen.rings import Ring
from tinsmith.codegen.roles import Role
from tinsmith.codegen.scopes import Coords
from tinsmith.ir import Ops, UOp
from tinsmith.ir.symbolic import simplify
from tinsmith.ir.uop import toposort


class FedRing(Ring):
    """The slots of one operand, filled up to the end of a loop that others walk."""

    def at(self, step: UOp) -> tuple[UOp, UOp]:
        return (step % self.depth).simplify(), (step // self.depth % 2).simplify()


class ChainWriter(OnlineWriter):
    """One loop over blocks whose values live where the unit's sums do."""

    rings: Sequence[FedRing] = ()

    def place(self, f: UOp) -> Place:
        """Where a value with rows and columns lies, or, without columns, the tile whose rows it has."""
        products = [n for n in toposort(f) if n.op is Ops.MMA]
        own = [p for p in products if {p.src[2], p.src[3]} <= f.ranges]
        if own:
            return Place(own[0].arg.fragment_c, own[0].src[2], own[0].src[3])
        stage = next(n for n in toposort(f) if held(n))
        product = product_in(stage)
        return Place(tile_of(stage), product.src[2], product.src[3])

    def lanes_of(self, f: UOp) -> int:
        at = self.place(f)
        return at.fragment.size if at.column in f.ranges else at.rows.size if at.row in f.ranges else 1

    def counted(self, r: UOp, span: tuple[UOp, UOp], stores: list[UOp], inside: Callable[[list[UOp]], None]) -> None:
        """Operands that do not depend on the block are brought before the loop, the others by rings. Blocks in which no
        mask hides anything come first, in a loop of their own."""
        lin, bodies, (start, end) = self.lin, [f.src[0] for f in self.group], span
        stages = dict.fromkeys(s.src[0] for p in toposort(bodies) if p.op is Ops.MMA and p.arg.staged
                               for s in p.src[:2] if s.op is Ops.LOAD and s.src[0].op is Ops.STAGE)
        fixed = [FedRing(lin, [s], None, UOp.index(1)) for s in stages if r not in s.ranges]
        self.rings = [FedRing(lin, [s], r, end) for s in stages if r in s.ranges]
        for ring in fixed:
            ring.fill(UOp.index(0))
        for ring in self.rings:
            ring.fill_first()
        for ring in fixed:
            ring.wait(UOp.index(0))
        found = clear_end(r, toposort(bodies), {x for x in lin.opened if x.arg[1] is Role.GLOBAL})
        if found is not None:
            middle, free = found[0].minimum(end).simplify(), [s.substitute(found[1]) for s in stores]
            self.in_loop(r, start, middle, lambda: self.block(r, lambda: inside([simplify(s) for s in free])))
            start = middle
        self.in_loop(r, start, end, lambda: self.block(r, lambda: inside(stores)))

    def block(self, r: UOp, inside: Callable[[], None]) -> None:
        if self.rings:
            self.lin.barrier()
        for ring in self.rings:
            ring.fill((r + ring.distance).simplify())
        for ring in self.rings:
            ring.wait(r)
        inside()

    def step(self, bodies: list[UOp]) -> None:
        lin, here = self.lin, self.lin.here
        known: dict[Coords, tuple[UOp, UOp]] = {}
        for c in self.copies[self.group[0]]:
            old = self.values[0, c, ()]
            new = self.values[0, c, ()] = self.accumulate(Ops.MAX, old, bodies[0], c)
            known[c] = lin.named(old), lin.named(lin.value(finite(lin.named(new))))
        for g, (f, body) in enumerate(zip(self.group, bodies)):
            if g == 0:
                continue
            starts, at = {}, self.place(f)
            for c in self.copies[f]:
                old, shift = known[lin.coords_of(self.group[0], c)]
                weight, part, top = self.parts(body)
                keep = widened(lin, lin.value(weight.substitute({top: shift, top.src[0]: old})), at, self.lanes_of(f))
                starts[c] = lin.combine(here, Ops.MUL, f.dtype, [self.values[g, c, ()], keep])
                part = part.substitute({finite(top.src[0]): shift, top.src[0]: shift})
            if product_of(part) is not None:
                FoldWriter(lin, [part], self.coords, starts).run()
                self.values |= {(g, c, ()): lin.value(part, c) for c in starts}
                continue
            for c, start in starts.items():
                own = statistic(lin, part, c, False) if self.over_tile(part) else lin.value(part, c)
                self.values[g, c, ()] = lin.combine(here, Ops.ADD, f.dtype, [start, own])

    def over_tile(self, part: UOp) -> bool:
        """Whether a reduction of columns, which the lanes of a row share, may wait for the end of the loop."""
        return part.op is Ops.FOLD and part.src[1].arg[1] is Role.FRAGMENT

    def finish(self, g: int, f: UOp, c: Coords) -> UOp:
        lin, at, line = self.lin, self.place(f), self.values[g, c, ()]
        if g == 0:
            return line
        weight, part, top = self.parts(f.src[0])
        line = across_lanes(lin, Ops.ADD, line, at.fragment) if self.over_tile(part) else line
        return lin.combine(lin.here, Ops.MUL, f.dtype, [line, widened(lin, self.whole(weight, top, c), at,
                                                                                 line.dtype.count)])
