"""The linearizer: lowers an optimized kernel graph to a linear list of UOps for the renderers.

Expanded ranges are written out here: UPCAST and UNROLL as copies, VECTOR as lanes. The second source of UNLIKELY is
computed in a branch that is taken only if its condition holds. Loops, and the scope of every line, are in
``scopes.py``.
"""
from __future__ import annotations

import itertools
from collections.abc import Callable

from tinsmith.codegen.decompose.decompose import expand
from tinsmith.codegen.emit.barriers import needed_barriers
from tinsmith.codegen.emit.block_rank import write_counts
from tinsmith.codegen.emit.emitter import Emitter, _condition
from tinsmith.codegen.emit.fragments import ChainWriter, JoinedWriter, held_operand, statistic, store_fragments
from tinsmith.codegen.emit.reductions import FoldWriter, OnlineWriter, loads_first, running_by_warps, shared_by_warps
from tinsmith.codegen.emit.scopes import Coords, Write, start_of_loop
from tinsmith.codegen.emit.strided import store_strided, strided
from tinsmith.codegen.kernel import Kernel
from tinsmith.codegen.planner.cpu.loops import one_load
from tinsmith.codegen.transform.computed_operand import bind
from tinsmith.codegen.transform.matrix_units import product_of, reads_held
from tinsmith.codegen.transform.rings import Turns, produce, rings_of, shared_out
from tinsmith.codegen.transform.skip_masked_blocks import added_sum, continued, in_register
from tinsmith.codegen.transform.stages import Ahead, stage_what_no_unit_loads
from tinsmith.codegen.transform.thread_blocks import ranked
from tinsmith.core.dtypes import dtypes
from tinsmith.core.origin import passed
from tinsmith.ir import Op, Ops, UOp
from tinsmith.ir.algebra.bounds import bound_ranges
from tinsmith.ir.algebra.sizes import from_linear, linear_form
from tinsmith.ir.algebra.symbolic import simplify
from tinsmith.ir.structure import Role, range_size
from tinsmith.ir.uop import toposort


class Linearizer(Emitter):
    """Emits one kernel; ``run`` returns the linear program."""

    def run(self) -> list[UOp]:
        for param in sorted((n for n in toposort(self.kernel.sink) if n.op is Ops.PARAM), key=lambda n: n.arg[0]):
            self.globals[param.arg[0]] = UOp(Ops.DEFINE_GLOBAL, param.dtype, (), param.arg[0])
        self.open_grid()
        if self.role is not None:
            self.by_roles(self.role)
        else:
            self.places(lambda: self.statements(self.flat_statements()))
        assert len(self.scopes) == 1
        return [*self.globals.values(), *self.variables.values(), *self.consts, *self.scopes[0].lines]

    def by_roles(self, role: UOp) -> None:
        """Write a warp-specialized kernel: producer warps (the last ones) fill the ring slots, consumer warps read
        them."""
        rings = list(dict.fromkeys(ring for product in self.kernel.products for ring in rings_of(self, product)))
        own = int(role.arg[1]) - 1
        self.turns = Turns(self, role, own) if self.kernel.turns and own > 1 else None
        registers = shared_out(self, own, self.kernel.products[0].arg.threads)
        filling, reading = registers or (None, None)
        with self.only(self.raw(role.eq(own)), filling, True):
            self.places(lambda: produce(self, rings))
        with self.only(self.raw(role.lt(own)), reading, True):
            self.places(lambda: self.statements(self.flat_statements()), self.group)

    def flat_statements(self) -> list[UOp]:
        out: list[UOp] = []
        for s in self.kernel.sink.src:
            out.extend([*s.src[1:], s.src[0]] if s.op is Ops.AFTER else [s])
        # accumulate from 0 in registers: their initial stores are dropped
        sums = {s.src[:2] for s in out if in_register(s)}
        return [s for s in out if s.op is not Ops.STORE or s.src[:2] not in sums]

    # *** statements ***

    def statements(self, nodes: list[UOp]) -> None:
        """Write statements in order; consecutive statements that need the same loop next share it."""
        i = 0
        while i < len(nodes):
            same = self.under_one_condition(nodes[i:])
            if same:
                self.where(same, self.statements)
                i += len(same)
                continue
            needed = self.loop_ranges(nodes[i])
            if not needed:
                self.beside = nodes
                with self.first_threads(nodes[i]), self.first_worker(nodes[i]):
                    self.store(nodes[i])
                i += 1
                continue
            j = i + 1
            while j < len(nodes) and self.shares(nodes[j], needed[0]):
                j += 1
            group = nodes[i:j]
            r = next(r for r in sorted(needed, key=lambda r: self.position[r.arg[0]])
                     if all(r in self.loop_ranges(n) for n in group))
            self.over(r, group, lambda body: self.statements(body))
            i = j

    def shares(self, node: UOp, loop: UOp) -> bool:
        """Return True if a statement may join the loop ``loop`` of preceding statements. A loop over blocks stays
        outside of the loops that depend on it."""
        needed = self.loop_ranges(node)
        if loop not in needed:
            return False
        around = needed[: needed.index(loop)]
        return loop.arg[1] is Role.BLOCK or all(r.arg[1] is not Role.BLOCK for r in around)

    def under_one_condition(self, nodes: list[UOp]) -> list[UOp]:
        """Return the leading statements that are stored under one condition on open loops over blocks."""
        condition = _condition(nodes[0])
        if condition is None or not condition.ranges <= self.opened or not self.index_only(condition):
            return []
        if not any(r.arg[1] is Role.BLOCK for r in condition.ranges):
            return []
        return list(itertools.takewhile(lambda n: _condition(n) is condition, nodes))

    # *** values ***

    def build(self, n: UOp, coords: Coords) -> UOp:
        if n.dtype is dtypes.index or (n.op.name in ("CMPLT", "CMPEQ", "CMPNE", "AND", "OR") and self.index_only(n)):
            return self.indexed(n, coords)
        if n.op is Ops.LOAD:
            return self.load(n, coords)
        assert n.op.alu or n.op.kind in ("cast", "scan"), n.op
        if n.op is Ops.UNLIKELY:
            return unlikely(self, n, coords)
        if n.op is Ops.PREFIX:  # a scan without a loop: all its steps at once
            return self.at_once(n, coords)
        src = [s if s.op is Ops.CONST else self.known((s, self.coords_of(s, coords))) for s in n.src]
        return self.combine(self.depth_of(n), n.op, n.dtype, [s for s in src if s is not None], n.arg)

    # *** memory ***

    def address(self, index: UOp, coords: Coords) -> tuple[UOp, UOp | None]:
        """Return (index line, vector range). Lanes of stride 1 need only the first lane's index; range None: a scalar.
        """
        lanes = self.lanes(index)
        if lanes is not None and index.dtype is dtypes.index:
            affine = self.affine(index, (*(r for r, _ in self.coords_of(index, coords)), lanes))
            if affine is not None and affine[2][-1] == 1:
                return self.expression(self.at(index, (*coords, (lanes, 0)))), lanes
        expr = self.at(index, coords)
        lanes = self.lanes(expr)
        if lanes is None:
            return self.expression(expr), None
        terms, constant = linear_form(expr)
        stride = terms.pop(lanes, 0)
        if stride == 1 and not any(lanes in t.ranges for t in terms):
            return self.expression(from_linear(terms, constant, expr).simplify()), lanes
        return self.expression(expr), lanes

    def guard(self, valid: UOp | None, coords: Coords) -> UOp | None:
        """Emit a condition; return None if it always holds, a false constant if it never does."""
        if valid is None:
            return None
        line = self.indexed(valid, coords) if self.index_only(valid) else self.value(valid, coords)
        return None if line.op is Ops.CONST and line.arg else line

    def load(self, n: UOp, coords: Coords) -> UOp:
        memory = self.memory(n.src[0], coords)
        valid = self.guard(n.src[2] if len(n.src) > 2 else None, coords)
        if valid is not None and valid.op is Ops.CONST:
            return self.emit(0, UOp(Ops.CONST, n.dtype, (), n.dtype.as_const(0)))
        beside = self.beside_each_other(n, coords) if valid is None and memory.op is Ops.DEFINE_LOCAL else None
        if beside is not None:
            return beside
        index, lanes = self.address(n.src[1], coords)
        if lanes is not None and index.dtype.count > 1:
            found = strided(self, n, memory, coords, lanes, valid)
            if found is not None:
                return found
        count = range_size(lanes) if lanes is not None else 1
        if valid is not None and valid.dtype.count > count:
            count = valid.dtype.count
            index = self.spread(index, count)
        if valid is not None:
            valid = self.spread(valid, count)
        src = (memory, index) if valid is None else (memory, index, valid)
        line = UOp(Ops.LOAD, n.dtype.vec(count), src, None)
        if n.src[0] in self.written:
            return self.force(line)
        depth = max(self.depth_of(n), self.depth_of(n.src[0]))
        if isinstance(n.arg, Ahead) and n.arg.prefetch:
            self.prefetch(n, coords, memory, depth)
        return self.emit(depth, line)

    def beside_each_other(self, n: UOp, coords: Coords) -> UOp | None:
        """Return one register copy of a shared-memory load as a lane of an aligned vector load of adjacent copies; None
        if it is not aligned."""
        affine = self.affine(n.src[1], tuple(r for r, _ in coords)) if self.threads_of and coords else None
        if affine is None or self.lanes(n) is not None:
            return None
        rest, constant, strides = affine
        own = next((r for (r, _), stride in zip(coords, strides) if stride == 1), None)
        size = 1 if own is None else min(range_size(own) & -range_size(own), 16 // n.dtype.itemsize)
        others = [*linear_form(rest)[0].values(), linear_form(rest)[1], constant,
                  *(stride for (r, _), stride in zip(coords, strides) if r is not own)]
        if own is None or size < 2 or any(x % size for x in others):
            return None
        place = dict(coords)[own]
        first = tuple((r, v - v % size if r is own else v) for r, v in coords)
        depth = max(self.depth_of(n), self.depth_of(n.src[0]))
        memory, index = self.memory(n.src[0], coords), self.indexed(n.src[1], first)
        whole = self.emit(depth, UOp(Ops.LOAD, n.dtype.vec(size), (memory, index), None))
        return self.picked(whole, (place % size,), depth)

    def prefetch(self, n: UOp, coords: Coords, memory: UOp, depth: int) -> None:
        """Emit a prefetch of the address that the load needs ``n.arg.prefetch`` iterations later; past the end it is
        harmless."""
        loop = next((r for r in n.src[1].ranges if r.arg[0] == n.arg.loop), None)
        if loop is None or n.src[0].op is not Ops.PARAM or (n.arg.last and self.read_again(n)):
            return
        if n.arg.first and any(at for _, at in coords):
            return
        index, _ = self.address(bind(n.src[1], loop, loop + n.arg.prefetch), coords)
        if index.dtype.count == 1:
            self.emit(depth, UOp(Ops.PREFETCH, None, (memory, index)))

    def read_again(self, n: UOp) -> bool:
        """Return True if a later reduction, which depends on the reductions being written, reads the same load."""
        return any(_depends(f, g) and n in toposort(f.src[0], lambda x: x.op is not Ops.FOLD)
                   for f in self.kernel.folds for g in self.writing)

    def store(self, n: UOp, fixed: Coords = ()) -> None:
        """Write all register copies of a store."""
        if n.op is Ops.SCATTER_STORE:
            n = UOp(Ops.STORE, None, n.src[:4])
        if any(r.arg[1] is Role.RANK for r in self.kernel.order) and (counts := ranked(n)):
            return write_counts(self, n, counts[0])
        return self.store_as_usual(n, fixed)

    def store_as_usual(self, n: UOp, fixed: Coords = ()) -> None:
        if any(r.arg[1] is Role.FRAGMENT for r in n.ranges):
            return store_fragments(self, n, fixed)
        if store_strided(self, n, fixed):
            return
        vector = self.lanes(n)
        for own in self.all_coords(n.ranges - {r for r, _ in fixed}):
            coords = self.both(own, fixed)
            valid = self.guard(n.src[3] if len(n.src) > 3 else None, coords)
            if valid is not None and valid.op is Ops.CONST:
                continue
            value = self.value(n.src[2], coords)
            memory = self.memory(n.src[0], coords) if n.src[0].op is not Ops.DEFINE_LOCAL else n.src[0]
            index, lanes = self.address(n.src[1], coords)
            count = range_size(vector) if vector is not None else 1
            if count > 1:
                value = self.spread(value, count)
                if lanes is None:
                    raise AssertionError(f"lanes of {n!r} would all store to one place")
                valid = None if valid is None else self.spread(valid, count)
            src = (memory, index, value) if valid is None else (memory, index, value, valid)
            self.force(UOp(Ops.STORE, None, src, n.arg))

    # *** running values and sums ***

    def loop(self, r: UOp, size: UOp, body: list[UOp], write: Write) -> None:
        """Write a loop over ``r``; scans along it and sums over blocks are carried in accumulators."""
        whole = not (size.is_const and size.arg == 1)
        if whole and any(n.op is Ops.PREFIX and r in n.src[1].ranges for n in toposort(body)):
            return self.loop_carried(r, size, body, write)
        if whole and any(in_register(n) and n.src[4] is r for n in body):
            return self.summed(r, size, body, write)
        return super().loop(r, size, body, write)

    def loop_carried(self, r: UOp, size: UOp, body: list[UOp], write: Callable[[list[UOp]], None]) -> None:
        running = [n for n in toposort(body) if n.op is Ops.PREFIX and r in n.src[1].ranges]
        threads, step = shared_steps(running[0])
        end = self.expression(size)
        starts: dict[tuple[UOp, Coords], UOp] = {}
        for n in running:
            lanes = self.lanes(n) if threads is None else None
            for c in self.all_coords(n.ranges):
                starts[n, c] = self.spread(self.value(n.src[2], c), 1 if lanes is None else range_size(lanes))

        def steps(accs: dict[tuple[UOp, Coords], UOp]) -> dict[tuple[UOp, Coords], UOp]:
            carried = {}
            for (n, c), acc in accs.items():
                x = self.value(n.src[0], c)
                if step > 1 or threads is not None:
                    x, carried[n, c] = self.steps_at_once(n.arg, self.spread(x, step), acc, threads)
                else:
                    src = [acc, x] if n.arg is not Ops.MULADD else [acc, self.value(n.src[3], c), x]
                    x = carried[n, c] = self.combine(self.here, n.arg, n.dtype, src)
                self.scopes[-1].values[n, c] = x
            write(body)
            return carried

        self.carrying(r, self.expression(start_of_loop(r)), end, starts, steps)

    def at_once(self, n: UOp, coords: Coords) -> UOp:
        """Write a scan whose steps are only lanes and threads (no loop)."""
        threads, step = shared_steps(n)
        with self.at_depth(self.depth_of(n)):
            start = self.spread(self.value(n.src[2], coords), 1 if threads is not None else step)
            return self.steps_at_once(n.arg, self.spread(self.value(n.src[0], coords), step), start, threads)[0]

    def summed(self, r: UOp, size: UOp, body: list[UOp], write: Callable[[list[UOp]], None]) -> None:
        """Write a loop over blocks with its sums in registers; they are stored after the loop."""
        sums = {s: found[0] for s in body if in_register(s) and (found := added_sum(s)) is not None}
        starts: dict[tuple[UOp, Coords], UOp] = {}
        for s in sums:
            lanes = self.lanes(s)
            start = self.emit(0, UOp(Ops.CONST, s.src[2].dtype.vec(1 if lanes is None else range_size(lanes)), (), 0))
            starts |= {(s, c): start for c in self.all_coords(s.ranges)}

        def step(accs: dict[tuple[UOp, Coords], UOp]) -> dict[tuple[UOp, Coords], UOp]:
            for (s, c), acc in accs.items():  # within the loop the accumulator stands for the sum's memory
                self.scopes[-1].values[sums[s], self.coords_of(sums[s], c)] = acc
            write([s for s in body if s not in sums])
            return {(s, c): self.value(s.src[2], c) for s, c in accs}

        for (s, c), phi in self.carrying(r, self.const(size, 0), self.expression(size), starts, step).items():
            table = {q: UOp.index(v) for q, v in c}
            memory, offset, _, valid, _ = (simplify(x.substitute(table)) for x in s.src)
            with self.first_threads(s):
                self.store(UOp(Ops.STORE, None, (memory, offset, self.named(phi),
                                                 *(() if valid.is_const else [valid]))))

    def steps_at_once(self, op: Op, x: UOp, carry: UOp, threads: UOp | None) -> tuple[UOp, UOp]:
        """Return the scan of a vector's steps after ``carry``, and the next carry, in every lane: an inclusive scan
        over lanes by offsets 1, 2, 4, … (Hillis and Steele 1986), then over ``threads``."""
        here, count, dtype = self.here, x.dtype.count, x.dtype.scalar
        reach = 1
        while reach < count:
            before = tuple(max(i - reach, 0) for i in range(count))
            conditions = tuple(self.emit(0, UOp.const(dtypes.bool, i >= reach)) for i in range(count))
            far = self.emit(0, UOp(Ops.VECTORIZE, dtypes.bool.vec(count), conditions))
            both = self.combine(here, op, dtype, [self.picked(x, before), x])
            x = self.combine(here, Ops.WHERE, dtype, [far, both, x])
            reach *= 2
        if threads is None:
            last = self.picked(x, (count - 1,) * count)
            return self.combine(here, op, dtype, [carry, x]), self.combine(here, op, dtype, [carry, last])
        last = x if count == 1 else self.picked(x, (count - 1,))
        ahead, total = running_by_warps(self, op, last, threads)
        both = self.combine(here, op, dtype, [carry, ahead])
        return self.combine(here, op, dtype, [both, x]), self.combine(here, op, dtype, [carry, total])

    # *** reductions ***

    def operand(self, product: UOp, which: int, coords: Coords) -> UOp:
        return held_operand(self, product, coords) if which == 0 and reads_held(product.src[0]) else super().operand(
            product, which, coords)

    def fold(self, node: UOp, coords: Coords) -> None:
        """Write the loop of ``node`` and of all other reductions that can share it, for all their copies."""
        depth = self.depth_of(node)
        if node.op is Ops.FOLD and node.src[1].arg[1] is Role.BLOCK:
            folds = [n for n in toposort(self.beside) if n.op is Ops.FOLD and n.src[1:] == node.src[1:]]
            writer = ChainWriter if any(n.op is Ops.MMA for n in toposort(folds)) else OnlineWriter
            if writer is ChainWriter and all(f.arg is not Ops.MAX for f in folds):
                writer = JoinedWriter
            with self.at_depth(depth):
                return writer(self, sorted(folds, key=lambda f: f.arg is not Ops.MAX), coords).run()
        if node.op is Ops.FOLD and node.src[1].arg[1] is Role.FRAGMENT:
            with self.at_depth(depth):
                self.scopes[-1].values[node, self.coords_of(node, coords)] = statistic(self, node, coords)
            return None
        if self.threads_of and shared_by_warps(self, node, coords):
            return None
        group = self.partners(node, depth)
        with self.at_depth(depth):
            FoldWriter(self, group, coords).run()
        return None

    def partners(self, node: UOp, depth: int) -> list[UOp]:
        """Return the independent reductions over the same ranges that are needed in the same scope, with ``node``
        first."""
        opened = frozenset().union(*(s.ranges for s in self.scopes[: depth + 1]))
        outer = node.ranges & opened
        if product_of(node) is not None:
            return [node]
        known = self.kernel.folds if self.current_folds is None else self.current_folds
        live = [f for f in known if product_of(f) is None]
        same = [f for f in live if bound_ranges(f) == bound_ranges(node) and f.ranges & opened == outer
                and self.depth_of(f) == depth and all(r in opened or r.arg[1].expanded for r in f.ranges)
                and not any(k[0] is f for s in self.scopes for k in s.values if isinstance(k, tuple))]
        group = [node]
        copies = self.copies(node)
        for f in same:
            if f is not node and not any(_depends(f, g) or _depends(g, f) for g in group):
                copies += self.copies(f)
                if copies > self.kernel.target.core.shared_sums:
                    break
                group.append(f)
        return group


def shared_steps(running: UOp) -> tuple[UOp | None, int]:
    """Return the range of threads that share the steps of a scan, and the number of steps (lanes) each takes at once.
    """
    steps = running.src[1].ranges
    lanes = next((r for r in steps if r.arg[1] is Role.VECTOR), None)
    return next((r for r in steps if r.arg[1] is Role.GROUP), None), 1 if lanes is None else range_size(lanes)


def _depends(a: UOp, b: UOp) -> bool:
    return a is not b and b in set(toposort(a))


def linearize(kernel: Kernel) -> list[UOp]:
    """Return the linear program of an optimized kernel."""
    stage_what_no_unit_loads(kernel)
    target, sink = kernel.target, one_load(continued(kernel.sink))
    kernel.sink = expand(sink, target.fma, target.scales, target.exp2s, target.rough, target.vector_bytes > 0)
    lin = Linearizer(kernel)
    program = passed("linearize", lin.run())
    if lin.threads_of:
        program = passed("barriers", needed_barriers(program))
    if lin.threads_of and kernel.target.warp and not any(p.arg.staged for p in kernel.products):
        program = passed("loads first", loads_first(program, kernel.target.blocks.early))
    return program


def unlikely(lin: Emitter, n: UOp, coords: Coords) -> UOp:
    """Write ``UNLIKELY(c, y, z)`` as a branch around ``y``, after ``c`` and ``z``::

            acc = z
            if any lane of c:
                acc = c ? y : acc
    """
    lanes = lin.lanes(n)
    count = range_size(lanes) if lanes is not None else 1
    with lin.at_depth(lin.depth_of(n)):
        condition, usual = (lin.spread(lin.value(s, coords), count) for s in n.src[::2])
        acc = lin.accumulator(usual)
        with lin.branch(_any(lin, condition), whole=True):
            rare = lin.value(n.src[1], coords)
            chosen = lin.combine(lin.here, Ops.WHERE, n.dtype, [condition, rare, acc])
            phi = lin.force(UOp(Ops.PHI, None, (acc, chosen)))
        lin.scopes[-1].values[phi] = phi
    return phi


def _any(lin: Emitter, condition: UOp) -> UOp:
    """Return a scalar that is true if the condition holds in any lane (OR with rotations by 1/2, 1/4, … of the vector).
    """
    kind = condition.dtype
    reach = kind.count
    while reach > 1:
        reach = (reach + 1) // 2
        away = tuple((lane + reach) % kind.count for lane in range(kind.count))
        condition = lin.emit(lin.here, UOp(Ops.OR, None, (condition, lin.picked(condition, away))))
    return condition if kind.count == 1 else lin.picked(condition, (0,))
