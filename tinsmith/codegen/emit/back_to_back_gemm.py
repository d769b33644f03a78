"""Back-to-back contractions over blocks with an online softmax (as in FlashAttention), on a matrix unit.

    S = q·k of the block;  m = max(m, rows of S);  p = exp(S - m);  l = l·exp(m before - m) + rows of p
    O = O·exp(m before - m) + p·v                            on the unit, which accumulates into O

The sums l and O of a block are relative to the running maximum m. The operands of each block arrive through rings
(software pipelines in shared memory). Without warp specialization the block has one barrier per iteration, after all
reads of the slots that are filled next have been drained.

With p computed one block ahead (``chains.make_ahead``), the unit overlaps the scores of the next block with the product
of this one:

    S = q·k of block 0;  p, m, l of it
    for block:  S = q·k;  O = O + p·v of the block before;  drain S;  m, l;  drain O;  O = O·exp(m before - m);  p
    O = O + p·v of the last
"""
from __future__ import annotations

from collections.abc import Callable, Sequence

from tinsmith.codegen.emit.fragments import ThreadTile, across_lanes, product_in, statistic, tile_of, widened
from tinsmith.codegen.emit.reductions import FoldWriter, OnlineWriter
from tinsmith.codegen.emit.scopes import Coords
from tinsmith.codegen.transform.matrix_units import held, made_ahead, product_of, reads_held
from tinsmith.codegen.transform.online_softmax import finite
from tinsmith.codegen.transform.rings import Ring, rings_of
from tinsmith.codegen.transform.skip_masked_blocks import clear_end
from tinsmith.ir import Ops, UOp
from tinsmith.ir.algebra.symbolic import simplify
from tinsmith.ir.ranges import Role
from tinsmith.ir.uop import toposort


class ChainWriter(OnlineWriter):
    """A loop over blocks whose accumulators are fragments of a matrix unit.

    ``block`` is the index of the block being written; ``turn`` is its number in the ping-pong order of the consumer
    groups. ``ahead``: p is computed one block before its product. It is then carried by the loop: in ``values``, under
    the key ``~g`` (negative) for reduction ``g``.
    """

    ahead = False
    block = UOp.index(0)
    turn: UOp | None = None

    def place(self, f: UOp) -> ThreadTile:
        """Return the tile that holds ``f``; for a value without columns (a row statistic), the tile whose rows it has.
        """
        products = [n for n in toposort(f) if n.op is Ops.MMA]
        own = [p for p in products if {p.src[2], p.src[3]} <= f.ranges]
        if own:
            return ThreadTile(own[0].arg.fragment_c, own[0].src[2], own[0].src[3])
        stage = next(n for n in toposort(f) if held(n))
        product = product_in(stage)
        return ThreadTile(tile_of(stage), product.src[2], product.src[3])

    def lanes_of(self, f: UOp) -> int:
        at = self.place(f)
        return at.fragment.size if at.column in f.ranges else at.rows.size if at.row in f.ranges else 1

    def counted(self, r: UOp, size: UOp, bodies: list[UOp], inside: Callable[[list[UOp]], None]) -> None:
        """Write the loop over blocks. Operands that do not depend on the block are loaded before the loop, the others
        through rings. Blocks without masked elements come first, in a separate loop without the mask (loop
        partitioning). With p ahead, the first block is peeled."""
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
            self.turn = (r + start).simplify()  # has the same parity as r - start
        found = clear_end(r, toposort(bodies), {x for x in lin.opened if x.arg[1] is Role.GLOBAL})
        if found is not None:
            middle = found[0].minimum(end).maximum(start).simplify()
            blocks(start, middle, [b.substitute(found[1]) for b in bodies])
            start = middle
        blocks(start, end, bodies)
        self.block = end
        for g, writer in self.behind(bodies).items():
            writer.drained()  # all copies are done: no slot is filled any more
            self.values |= {(g, *key[1:]): value for key, value in writer.values.items()}

    def at_block(self, block: UOp, rings: Sequence[Ring], inside: Callable[[], None]) -> None:
        self.block = block
        if rings and self.lin.role is None:
            if block.op is Ops.RANGE:  # the peeled first block needs no barrier: no thread has read a slot yet
                self.lin.barrier()
            for ring in rings:
                ring.fill((block + ring.distance).simplify())
        inside()

    def issue(self, writer: FoldWriter, block: UOp) -> None:
        """Wait for the operands of a block and issue the product's steps to the unit."""
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
        """Wait for the product and release the ring slots of its operands."""
        assert writer.product is not None
        writer.drained(in_flight)
        for ring in rings_of(self.lin, writer.product):
            ring.release()

    def scores(self, bodies: list[UOp]) -> list[FoldWriter]:
        """Return writers of the asynchronous products (scores) that the block's values are computed from."""
        stages = dict.fromkeys(n.src[0] for body in bodies for n in reads_held(body))
        return [FoldWriter(self.lin, [s.src[0]], self.coords) for s in stages if product_in(s).arg.staged]

    def behind(self, bodies: list[UOp]) -> dict[int, FoldWriter]:
        """Issue the products of the previous block (p computed ahead), if any; return their writers by reduction
        number."""
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
        """Add a product to a sum rescaled to the current maximum. With p ahead, defer the product to the next
        iteration."""
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
        """Return True if ``part`` reduces columns of a tile, so that combining across lanes can wait until after the
        loop."""
        return part.op is Ops.FOLD and part.src[1].arg[1] is Role.FRAGMENT

    def finish(self, g: int, f: UOp, c: Coords) -> UOp:
        lin, at, line = self.lin, self.place(f), self.values[g, c, ()]
        if g == 0:
            return line
        weight, part, top = self.parts(f.src[0])
        line = across_lanes(lin, Ops.ADD, line, at.fragment) if self.over_tile(part) else line
        return lin.combine(lin.here, Ops.MUL, f.dtype, [line, widened(lin, self.whole(weight, top, c), at,
                                                                                 line.dtype.count)])
