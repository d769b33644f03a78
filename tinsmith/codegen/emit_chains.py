"""Emits a chain over blocks: a maximum and sums relative to it, of what a unit leaves in registers.

    S = q·k of the block;  m = max(m, rows of S);  p = exp(S - m);  l = l·exp(m before - m) + rows of p
    O = O·exp(m before - m) + p·v                            on the unit, which goes on with the sum it had

So a block's sums are relative to the maximum so far. Rings bring the blocks' operands. Without roles all threads meet
once per block, and have then drained what read the slots that are filled next.

Where p is made one block ahead (``chains.make_ahead``), the unit has the next block's scores and this block's product
to work on at the same time:

    S = q·k of block 0;  p, m, l of it
    for block:  S = q·k;  O = O + p·v of the block before;  drain S;  m, l;  drain O;  O = O·exp(m before - m);  p
    O = O + p·v of the last
"""
from __future__ import annotations

from collections.abc import Callable, Sequence

from tinsmith.codegen.emit_folds import FoldWriter, OnlineWriter
from tinsmith.codegen.emit_tiles import Place, across_lanes, product_in, statistic, tile_of, widened
from tinsmith.codegen.masking import clear_end
from tinsmith.codegen.matrix import held, made_ahead, product_of, reads_held
from tinsmith.codegen.online import finite
from tinsmith.codegen.rings import Ring, rings_of
from tinsmith.codegen.roles import Role
from tinsmith.codegen.scopes import Coords
from tinsmith.ir import Ops, UOp
from tinsmith.ir.symbolic import simplify
from tinsmith.ir.uop import toposort


class ChainWriter(OnlineWriter):
    """One loop over blocks whose values live where the unit's sums do.

    ``block``: the number of the block that is being written, ``turn``: that of its turn at the unit. ``ahead``: p is
    made one block before its product; it is among the values of the loop then, under negative numbers.
    """

    ahead = False
    block = UOp.index(0)
    turn: UOp | None = None

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

    def counted(self, r: UOp, size: UOp, bodies: list[UOp], inside: Callable[[list[UOp]], None]) -> None:
        """Operands that do not depend on the block are brought before the loop, the others by rings. Blocks in which no
        mask hides anything come first, in a loop of their own; but for the very first, where p is made ahead."""
        lin, (start, end) = self.lin, self.lin.span_of(r)
        products = [p for p in toposort(bodies) if p.op is Ops.MMA and p.arg.staged]
        rings = list(dict.fromkeys(ring for p in products for ring in rings_of(lin, p)))
        for ring in rings if lin.role is None else ():
            ring.fill_first() if ring.loop is not None else ring.fill(UOp.index(0))
        for ring in rings:
            if ring.loop is None:
                ring.wait(UOp.index(0))
        walked = [ring for ring in rings if ring.loop is not None]

        def blocks(first: UOp, last: UOp, bodies: list[UOp]) -> None:
            simple = [simplify(b) for b in bodies]
            self.in_loop(r, first, last, lambda: self.at_block(r, walked, lambda: inside(simple)))

        self.ahead = any(map(made_ahead, products))
        if self.ahead:
            end = end.maximum(start + 1).simplify()
            with lin.first_step(r, start):
                self.at_block(start, walked, lambda: inside([simplify(b) for b in bodies]))
            start = (start + 1).simplify()
        if lin.turns is not None:
            self.turn = (r + start).simplify()  # is as odd as r - start
        found = clear_end(r, toposort(bodies), {x for x in lin.opened if x.arg[1] is Role.GLOBAL})
        if found is not None:
            middle = found[0].minimum(end).maximum(start).simplify()
            blocks(start, middle, [b.substitute(found[1]) for b in bodies])
            start = middle
        blocks(start, end, bodies)
        self.block = end
        for g, writer in self.behind(bodies).items():
            writer.drained()  # no slot is filled any more
            self.values |= {(g, *key[1:]): value for key, value in writer.values.items()}

    def at_block(self, block: UOp, rings: Sequence[Ring], inside: Callable[[], None]) -> None:
        self.block = block
        if rings and self.lin.role is None:
            if block.op is Ops.RANGE:  # in the first one alone nobody has read a slot yet
                self.lin.barrier()
            for ring in rings:
                ring.fill((block + ring.distance).simplify())
        inside()

    def issue(self, writer: FoldWriter, block: UOp) -> None:
        """The unit gets the steps of a product, when what they read of a block is there."""
        assert writer.product is not None
        bodies = writer.begun()
        writer.hold(writer.product)
        for ring in rings_of(self.lin, writer.product):
            if ring.loop is not None:
                ring.wait(block)
        self.lin.force(UOp(Ops.FENCE))
        writer.step(bodies)
        self.lin.force(UOp(Ops.COMMIT))

    def land(self, writer: FoldWriter, in_flight: int = 0) -> None:
        """The product is there, and nobody reads its operands' slots any more."""
        assert writer.product is not None
        writer.drained(in_flight)
        for ring in rings_of(self.lin, writer.product):
            ring.release()

    def scores(self, bodies: list[UOp]) -> list[FoldWriter]:
        """Products that the block's values are made of, of a unit that works on its own."""
        stages = dict.fromkeys(n.src[0] for body in bodies for n in reads_held(body))
        return [FoldWriter(self.lin, [s.src[0]], self.coords) for s in stages if product_in(s).arg.staged]

    def behind(self, bodies: list[UOp]) -> dict[int, FoldWriter]:
        """The products of the block before, if any, which the unit gets now."""
        found = {}
        for g in {~key[0] for key in self.values if key[0] < 0}:
            part = self.parts(bodies[g])[1]
            product = product_of(part)
            assert product is not None
            dtype = product.arg.a.vec(product.arg.operand_a.size)
            made = {key[2]: self.lin.emit(self.lin.here, UOp(Ops.BITCAST, dtype, (words,)))
                    for key, words in self.values.items() if key[0] == ~g}
            starts = {c: self.values[g, c, ()] for c in self.copies[self.group[g]]}
            found[g] = FoldWriter(self.lin, [part], self.coords, starts, made)
            self.issue(found[g], (self.block - 1).simplify())
        return found

    def step(self, bodies: list[UOp]) -> None:
        lin, here, turns = self.lin, self.lin.here, self.lin.turns if self.turn is not None else None
        if turns is not None and self.turn is not None:
            turns.take(self.turn)
        scores = self.scores(bodies)
        for writer in scores:
            self.issue(writer, self.block)
        behind = self.behind(bodies)
        if turns is not None:
            turns.hand_on()
        for n, writer in enumerate(scores, 1):
            self.land(writer, len(scores) - n + len(behind))
            writer.finished()
        known = {c: (old, lin.named(lin.value(shift))) for c, (old, shift) in self.maxima(bodies[0]).items()}
        products = list[tuple[int, UOp, dict[Coords, UOp]]]()
        for g, (f, body) in enumerate(zip(self.group, bodies)):
            if g == 0:
                continue
            keeps, at = {}, self.place(f)
            for c in self.copies[f]:
                old, shift = known[lin.coords_of(self.group[0], c)]
                weight, part, top = self.parts(body)
                keep = lin.value(weight.substitute({top: shift, top.src[0]: old}))
                keeps[c] = widened(lin, keep, at, self.lanes_of(f))
                part = part.substitute({finite(top.src[0]): shift, top.src[0]: shift})
            if product_of(part) is not None:
                products.append((g, part, keeps))
                continue
            for c, keep in keeps.items():
                own = statistic(lin, part, c, False) if self.over_tile(part) else lin.value(part, c)
                kept = lin.combine(here, Ops.MUL, f.dtype, [self.values[g, c, ()], keep])
                self.values[g, c, ()] = lin.combine(here, Ops.ADD, f.dtype, [kept, own])
        for g, part, keeps in products:
            self.multiply(g, part, keeps, behind.get(g))

    def multiply(self, g: int, part: UOp, keeps: dict[Coords, UOp], behind: FoldWriter | None) -> None:
        """What a product adds to a sum that is relative to the maximum now; of p made ahead, in the next step."""
        lin, f = self.lin, self.group[g]
        if behind is not None:
            self.land(behind)
            self.values |= {(g, *key[1:]): value for key, value in behind.values.items()}
        starts = {c: lin.combine(lin.here, Ops.MUL, f.dtype, [self.values[g, c, ()], keep])
                  for c, keep in keeps.items()}
        writer = FoldWriter(lin, [part], self.coords, starts)
        assert writer.product is not None
        if self.ahead:
            writer.hold(writer.product)
            self.values |= {(g, c, ()): start for c, start in starts.items()}
            self.values |= {(~g, (), steps): lin.words(line) for steps, line in writer.held.items()}
            return
        if writer.product.arg.staged:
            self.issue(writer, self.block)
            self.land(writer)
            writer.finished()
        else:
            writer.run()
        self.values |= {(g, c, ()): lin.value(part, c) for c in starts}

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
