"""The emitter base class: values, index expressions and memory accesses as lines of the linear program."""
from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from tinsmith.codegen.emit.scopes import Coords, is_tail
from tinsmith.codegen.emit.thread_blocks import BlockWriter
from tinsmith.codegen.kernel import Kernel
from tinsmith.codegen.lower.indexing import flatten
from tinsmith.codegen.transform import matrix_units
from tinsmith.codegen.transform.computed_operand import bind
from tinsmith.core.dtypes import DType, dtypes
from tinsmith.ir import Op, Ops, UOp
from tinsmith.ir.algebra.sizes import from_linear, linear_form, shifted
from tinsmith.ir.algebra.symbolic import is_made_of, values_over
from tinsmith.ir.matrix_unit import Fragment, StagedLayout
from tinsmith.ir.structure import Role, limits, range_size
from tinsmith.ir.uop import toposort


class Slots(Protocol):
    """The slots of a ring: return the line that holds the tile of an operand for a step."""

    def tile(self, load: UOp, dtype: DType, coords: Coords) -> UOp: ...


class Turn(Protocol):
    """The ping-pong order in which groups of warps use a matrix unit."""

    def take(self, step: UOp) -> None: ...

    def hand_on(self) -> None: ...


class Emitter(BlockWriter):
    """Values and index expressions of one kernel as lines; ``linearize.Linearizer`` adds the statements."""

    current_folds: list[UOp] | None = None
    turns: Turn | None = None  # ping-pong order of consumer groups at the matrix unit; None with one group
    writing: list[UOp] = []  # the reductions whose loop is being written
    beside: list[UOp] = []  # the statements of the loop body that is being written

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel)
        self.globals: dict[int, UOp] = {}
        self.rings: dict[UOp, Slots] = {}  # by the stage that a ring fills
        # column ranges of accumulators in registers, by the stage's sizes
        self.columns: dict[tuple[int, ...], UOp] = {}
        self.variables: dict[UOp, UOp] = {}
        self.known_numbers: dict[tuple[UOp, tuple[UOp, ...]], int] = {}
        self.indices: dict[tuple[UOp, Coords], UOp] = {}
        # blocks transposed in registers, by load and the other copies
        self.turned: dict[tuple[UOp, Coords], list[UOp]] = {}
        self.affines: dict[tuple[UOp, tuple[UOp, ...]], tuple[UOp, int, list[int]] | None] = {}

    def where(self, nodes: list[UOp], write: Callable[[list[UOp]], None]) -> None:
        """Write statements with one condition inside a branch, together with the values that only they need."""
        condition = _condition(nodes[0])
        assert condition is not None
        free = UOp.const(dtypes.bool, True)
        with self.branch(self.indexed(condition, ()), whole=True):
            write([n.replace(src=(*n.src[:3], free, *n.src[4:])) for n in nodes])

    def value(self, node: UOp, coords: Coords = ()) -> UOp:
        """Return the line that holds ``node`` for the register copies ``coords``; a vector if the node has lanes."""
        if node.op is Ops.CONST:
            return self.emit(0, node)
        stack = [(node, self.coords_of(node, coords))]
        while stack:
            request = stack[-1]
            if self.known(request) is not None:
                stack.pop()
                continue
            n, c = request
            if n.op in (Ops.FOLD, Ops.MMA):
                stack.pop()
                self.fold(n, c)
                continue
            now = () if not (n.op.alu or n.op.kind == "cast") else n.src[::2] if n.op is Ops.UNLIKELY else n.src
            needs = [(s, self.coords_of(s, c)) for s in now]
            missing = [q for q in needs if q[0].op is not Ops.CONST and self.known(q) is None]
            if missing:
                stack.extend(reversed(missing))
                continue
            self.remember(n, c, self.build(n, c))
            stack.pop()
        found = self.known((node, self.coords_of(node, coords)))
        assert found is not None
        return found

    def known(self, request: tuple[UOp, Coords]) -> UOp | None:
        for scope in reversed(self.scopes):
            found = scope.values.get(request)
            if found is not None:
                return found
        return None

    def remember(self, node: UOp, coords: Coords, line: UOp) -> UOp:
        self.scopes[self.depth_of(node)].values[(node, coords)] = line
        if node.origin and line.op is not Ops.CONST:
            line.origin = line.origin or node.origin
        return line

    def combine(self, depth: int, op: Op, dtype: Any, src: list[UOp], arg: Any = None) -> UOp:
        """Emit one ALU or cast line. Scalars are broadcast to the lanes of the other sources. A WHERE with a constant
        condition becomes its selected source."""
        count = max(s.dtype.count for s in src)
        if op is Ops.WHERE and src[0].op is Ops.CONST:
            return self.spread(src[1] if src[0].arg else src[2], count)
        wide = [self.spread(s, count) for s in src]
        depth = 0 if all(s.op is Ops.CONST for s in wide) else depth
        return self.emit(depth, UOp(op, dtype.vec(count), tuple(wide), arg))

    def spread(self, line: UOp, count: int) -> UOp:
        if line.op is Ops.CONST:
            return self.emit(0, UOp(Ops.CONST, line.dtype.scalar.vec(count), (), line.arg))
        if line.dtype.count == count:
            return line
        depth = 0 if line.op is Ops.DEFINE_GLOBAL else next(
            (d for d, s in enumerate(self.scopes) if line in s.values), self.here)
        return self.emit(depth, UOp(Ops.VECTORIZE, line.dtype.vec(count), (line,)))

    def picked(self, line: UOp, lanes: Iterable[int], depth: int | None = None) -> UOp:
        """Select lanes of a line, in the given order."""
        chosen = tuple(int(lane) for lane in lanes)
        return self.emit(self.here if depth is None else depth,
                         UOp(Ops.GEP, line.dtype.scalar.vec(len(chosen)), (line,), chosen))

    def joined(self, lines: Sequence[UOp], depth: int) -> UOp:
        """Concatenate the lanes of lines; the last line is repeated up to a power of two, because C has no vectors of
        other sizes."""
        parts = (*lines, *[lines[-1]] * ((1 << (len(lines) - 1).bit_length()) - len(lines)))
        size = sum(x.dtype.count for x in parts)
        return self.emit(depth, UOp(Ops.VECTORIZE, parts[0].dtype.scalar.vec(size), parts))

    def halved(self, op: Op, line: UOp, least: int = 1) -> UOp:
        """Reduce the lanes of a line by combining its lower and upper halves until ``least`` lanes are left."""
        while (count := line.dtype.count) > least:
            halves = [self.picked(line, half) for half in (range(count // 2), range(count // 2, count))]
            line = self.combine(self.here, op, line.dtype.scalar, halves)
        return line

    def words(self, line: UOp) -> UOp:
        """Bitcast pairs of 16-bit elements to 32-bit words."""
        if line.op is Ops.BITCAST and line.src[0].dtype.scalar is dtypes.uint32:
            return line.src[0]
        return self.emit(self.here, UOp(Ops.BITCAST, dtypes.uint32.vec(line.dtype.count // 2), (line,)))

    def shuffled(self, op: Op, line: UOp, step: int) -> UOp:
        """Combine a line with that of the thread whose index differs in the bit ``step`` (butterfly shuffle)."""
        other = self.emit(self.here, UOp(Ops.SHUFFLE, line.dtype, (line,), step))
        return self.combine(self.here, op, line.dtype.scalar, [line, other])

    def at(self, node: UOp, coords: Coords) -> UOp:
        """Return an index expression with the ranges of register copies replaced by ``coords``."""
        coords = self.coords_of(node, coords)
        if not coords:
            return node.simplify()
        key = node, coords
        found = self.indices.get(key)
        if found is None:
            found = self.indices[key] = self.bound(node, coords)
        return found

    def bound(self, node: UOp, coords: Coords) -> UOp:
        affine = self.affine(node, tuple([r for r, _ in coords])) if node.dtype is dtypes.index else None
        if affine is not None:
            rest, constant, strides = affine
            return shifted(rest, constant + sum([v * stride for (_, v), stride in zip(coords, strides)]))
        for r, v in coords:
            node = bind(node, r, UOp.index(v))
        return node.simplify()

    def affine(self, node: UOp, copied: tuple[UOp, ...]) -> tuple[UOp, int, list[int]] | None:
        """Split an index into the part that does not depend on the ranges ``copied``, a constant, and a stride per
        range.

        None if it is not affine in them. The result is shared by all copies.
        """
        key = node, copied
        if key not in self.affines:
            terms, constant = linear_form(node.simplify())
            strides = [terms.pop(r, 0) for r in copied]
            if any(r in t.ranges for t in terms for r in copied):
                self.affines[key] = None
            else:
                self.affines[key] = from_linear(terms, 0, node).simplify(), constant, strides
        return self.affines[key]

    def indexed(self, node: UOp, coords: Coords) -> UOp:
        return self.expression(self.at(node, coords))

    def expression(self, node: UOp) -> UOp:
        """Emit an index expression or condition. Lanes become a vector; sums are built from the outermost loop inwards,
        so that prefixes are loop-invariant."""
        if node.op is Ops.CONST:
            return self.emit(0, node)
        lanes = self.lanes(node)
        if lanes is not None and is_made_of(node, lanes):
            return self.table(node, lanes)
        found = self.known((node, ()))
        if found is not None:
            return found
        depth = self.depth_of(node)
        if node.op is Ops.SPECIAL:
            return self.emit(0, node)
        if node.op is Ops.VARIABLE:
            line = self.variables.setdefault(node, UOp(Ops.DEFINE_GLOBAL, dtypes.index, (), node.arg))
        elif lanes is not None and (limit := lanes_left(node, lanes)) is not None:
            line = self.first_lanes(limit, lanes, depth)
        elif node.op in (Ops.LOAD, Ops.FOLD) or (not node.op.alu and node.op.kind != "cast"):
            return self.value(node)
        elif node.op in (Ops.ADD, Ops.MUL) and node.dtype is dtypes.index:
            line = self.sum(node)
        else:
            src = [self.expression(s) if s.dtype is dtypes.index or s.dtype.is_bool else self.value(s)
                   for s in node.src]
            line = self.combine(depth, node.op, node.dtype, src, node.arg)
        self.remember(node, (), line)
        return line

    def first_lanes(self, limit: UOp, lanes: UOp, depth: int) -> UOp:
        """Emit the mask of the lanes below ``limit``, compared as 32-bit numbers: indices would take two registers."""
        count = range_size(lanes)
        numbers = tuple(self.emit(0, UOp.const(dtypes.int32, lane)) for lane in range(count))
        vector = self.emit(0, UOp(Ops.VECTORIZE, dtypes.int32.vec(count), numbers))
        left = self.combine(depth, Ops.CAST, dtypes.int32, [self.expression(limit)])
        return self.combine(depth, Ops.CMPLT, dtypes.bool, [vector, left])

    def table(self, node: UOp, lanes: UOp) -> UOp:
        """Emit an expression of the lane number alone as a constant vector."""
        values = [UOp.const(node.dtype, v) for v in values_over(node, lanes)]
        if all(v is values[0] for v in values):
            return self.emit(0, UOp(Ops.CONST, node.dtype.vec(len(values)), (), values[0].arg))
        return self.emit(0, UOp(Ops.VECTORIZE, node.dtype.vec(len(values)), tuple(self.emit(0, v) for v in values)))

    def sum(self, node: UOp) -> UOp:
        """Emit a sum: scalar terms from the outermost loop inwards, then the constant, then terms that differ between
        lanes."""
        if node.op is Ops.ADD and node.src[1].op is Ops.CONST and self.lanes(node) is None:
            # copies share the rest: they differ by the constant alone
            return self.plus(self.expression(node.src[0]), node.src[1], 0)
        terms, constant = linear_form(node)
        if len(terms) == 1 and constant == 0 and node in terms:
            return self.combine(self.depth_of(node), node.op, node.dtype, [self.expression(s) for s in node.src])
        total: UOp | None = None
        for term, k in sorted(terms.items(), key=lambda t: (self.lanes(t[0]) is not None, self.depth_of(t[0]))):
            if constant and self.lanes(term) is not None and total is not None:
                total = self.plus(total, UOp.index(constant), 0)
                constant = 0
            depth = self.depth_of(term)
            is_lane = k != 1 and term.op is Ops.RANGE and self.lanes(term) is term
            part = self.table(term * k, term) if is_lane else self.times(self.expression(term), k, depth)
            total = part if total is None else self.plus(total, part, depth)
        assert total is not None
        return total if constant == 0 else self.plus(total, UOp.index(constant), 0)

    def times(self, line: UOp, k: int, depth: int) -> UOp:
        return line if k == 1 else self.combine(depth, Ops.MUL, dtypes.index, [line, UOp.index(k)])

    def plus(self, a: UOp, b: UOp, depth: int) -> UOp:
        return self.combine(self.deeper(a, depth), Ops.ADD, dtypes.index, [a, b])

    def deeper(self, line: UOp, depth: int) -> int:
        own = next((d for d, s in enumerate(self.scopes) if line in s.values), 0)
        return max(own, depth)

    def memory(self, node: UOp, coords: Coords) -> UOp:
        if node.op is Ops.PARAM:
            return self.globals[node.arg[0]]
        assert node.op is Ops.STAGE, node.op
        key = (node, self.coords_of(node, coords))
        found = self.known(key)
        return found if found is not None else self.stage(node, key[1])

    def stage(self, node: UOp, coords: Coords) -> UOp:
        """Fill a stage in local memory in the scope that supplies its outer ranges, and record it there."""
        depth = self.depth_of(node)
        local = self.local(node.dtype, math.prod(node.arg))
        fill = filling(node, local)
        with self.at_depth(depth):
            if self.threads_of:
                self.fill_shared(node, fill, coords)
            else:
                self.fill([fill], coords)
        self.scopes[depth].values[(node, coords)] = local
        return local

    def local(self, dtype: DType, elements: int, *layout: StagedLayout) -> UOp:
        """Declare a new array in local memory."""
        self.counts["local"] += 1
        return self.emit(0, UOp(Ops.DEFINE_LOCAL, dtype, (), (f"tmp{self.counts['local'] - 1}", elements, *layout)))

    def fill(self, body: list[UOp], coords: Coords) -> None:
        needed = self.loop_ranges(body[0])
        if needed:
            self.over(needed[0], body, lambda b: self.fill(b, coords))
            return
        with self.first_threads(body[0]):
            self.store(body[0], coords)

    def operand(self, product: UOp, which: int, coords: Coords) -> UOp:
        """Return the fragment of an operand: a tile load from memory, a warp-wide matrix load, or the elements of each
        lane."""
        value = product.src[which]
        fragment, row, column = matrix_units.axes(product)[which]
        dtype = value.dtype.vec(fragment.size)
        if value.op is Ops.LOAD and value.src[0] in self.rings:
            return self.rings[value.src[0]].tile(value, dtype, coords)
        if fragment.whole:
            found = matrix_units.tile_address(self.at(value, coords), fragment, row, column)
            assert found is not None, value
            _, index, pitch = found
            line = UOp(Ops.LOAD_TILE, dtype, (self.memory(value.src[0], coords), self.expression(index),
                                              self.emit(0, UOp.index(pitch))), _shape(fragment))
            return self.emit(max(self.depth_of(value), self.depth_of(value.src[0])), line)
        matrices = self.matrices(value, fragment, row, column, coords)
        if matrices is not None:
            return matrices
        parts = []
        for table in self.elements(fragment, row, column):
            element = value.substitute(table).simplify()
            parts.append(self.value(element, self.coords_of(element, coords)))
        depth = max(next(d for d, s in enumerate(self.scopes) if p.op is Ops.CONST or p in s.values) for p in parts)
        return self.emit(depth, UOp(Ops.VECTORIZE, dtype, tuple(parts)))

    def matrices(self, value: UOp, fragment: Fragment, row: UOp, column: UOp, coords: Coords) -> UOp | None:
        """Load a fragment as 8 × 8 matrices with a warp-wide instruction (``ldmatrix``) from shared memory; None if
        rows or columns of eight are not contiguous there."""
        pair, *others = fragment.registers
        lanes = fragment.lanes
        words = len(fragment.lanes) == 2 and self.kernel.target.matrix_loads and value.dtype.itemsize == 2
        if not words or value.op is not Ops.LOAD or value.src[0].op is not Ops.STAGE or len(value.src) > 2:
            return None
        deep = bool(pair[1])  # pairs run along the rows of the operand
        along, beside = (row, column) if deep else (column, row)
        step = ((1, 0), (0, 1)) if deep else ((0, 1), (1, 0))
        right = ((2, *step[0]), (4, *(2 * s for s in step[0])), (8, *step[1]))
        if (pair, *lanes) != right or math.prod(size for size, _, _ in others) > 4:
            return None
        terms, constant = linear_form(value.src[1])
        turned = terms.get(beside) == 1
        one, other = (beside, along) if turned else (along, beside)
        if terms.get(one) != 1 or any(k % 8 for k in (constant, *(k for t, k in terms.items() if t is not one))):
            return None
        lane = UOp(Ops.SPECIAL, dtypes.index, (), ("lidx0", 32))
        place = {one: UOp.index(0), other: lane % 8}
        left = lane // 8
        for size, down, across in others:
            place = {row: place[row] + left % size * down, column: place[column] + left % size * across}
            left = left // size
        index = self.at(value.src[1].substitute({r: p.simplify() for r, p in place.items()}).simplify(), coords)
        return self.emit(self.here, UOp(Ops.LOAD_MATRIX, value.dtype.vec(fragment.size), (
            self.memory(value.src[0], coords), self.expression(index)), turned))

    def elements(self, fragment: Fragment, row: UOp, column: UOp) -> list[dict[UOp, UOp]]:
        """Return the row and column of each register as expressions of the lane number."""
        lanes = math.prod(size for size, _, _ in fragment.lanes)
        lane = UOp(Ops.SPECIAL, dtypes.index, (), ("lidx0", lanes))
        down, across = matrix_units.lane_position(fragment, lane)
        steps = fragment.places()[0]
        return [{row: (down + int(r)).simplify(), column: (across + int(c)).simplify()} for r, c in steps]

    def span_of(self, r: UOp) -> tuple[UOp, UOp]:
        """Return the start and end of a loop: its limits where they are known, else 0 and the range's size."""
        size = r.src[-1]
        start, end = limits(r) or (UOp.index(0), size)
        if limits(r) is not None and is_tail(start, end):
            return start, end  # its loads have guards
        opened = {o.arg[0]: o for s in self.scopes for o in s.ranges}
        if limits(r) is None or not all(x.arg[0] in opened for x in start.ranges | end.ranges):
            return UOp.index(0), size
        here = {x: opened[x.arg[0]] for x in start.ranges | end.ranges}
        start = start.substitute(here).maximum(0).minimum(size - 1)  # a load ahead of an empty loop must stay in bounds
        return start.simplify(), end.substitute(here).minimum(size).simplify()

    def adds_nothing(self, coords: Coords) -> bool:
        """Return True if an unrolled step lies outside the limits of its range."""
        at = {r.arg[0]: UOp.index(value) for r, value in coords}
        for step, value in coords:
            span = limits(step)
            if span is not None and all(r.arg[0] in at for s in span for r in s.ranges):
                start, end = (self.numbers(s, tuple(at[r.arg[0]] for r in s.ranges)) for s in span)
                if not start <= value < end:
                    return True
        return False

    def numbers(self, bound: UOp, values: tuple[UOp, ...]) -> int:
        """Return the integer value of ``bound`` for these values of its ranges."""
        key = bound, values
        if key not in self.known_numbers:
            self.known_numbers[key] = int(bound.substitute(dict(zip(bound.ranges, values))).simplify().arg)
        return self.known_numbers[key]

    def named(self, line: UOp) -> UOp:
        """Return a symbol that stands for a line in index expressions; values that depend on it are written in the
        current scope."""
        self.counts["name"] = self.counts.get("name", 0) + 1
        name = UOp(Ops.SPECIAL, line.dtype.scalar, (), ("name", self.counts["name"]))
        self.reread[name] = True
        self.scopes[-1].values[name, ()] = line
        return name

    def copies(self, fold: UOp) -> int:
        return math.prod(range_size(r) for r in fold.ranges if r.arg[1] in (Role.UPCAST, Role.UNROLL))

    def build(self, n: UOp, coords: Coords) -> UOp:
        raise NotImplementedError

    def store(self, n: UOp, fixed: Coords = ()) -> None:
        raise NotImplementedError

    def store_as_usual(self, n: UOp, fixed: Coords = ()) -> None:
        raise NotImplementedError

    def guard(self, valid: UOp | None, coords: Coords) -> UOp | None:
        raise NotImplementedError

    def fold(self, node: UOp, coords: Coords) -> None:
        raise NotImplementedError


def filling(stage: UOp, memory: UOp) -> UOp:
    """Return the store that fills a stage's memory."""
    return UOp(Ops.STORE, None, (memory, flatten(stage.arg, stage.src[1:]), stage.src[0]))


def lanes_left(condition: UOp, lanes: UOp) -> UOp | None:
    """Return the number of lanes for which the condition of a tail holds, ``r*8 + lane < n``; None if the condition has
    another form.

    >>> n, r, lane = UOp.variable("n", 1, 99), UOp.range(13, 0, Role.LOOP), UOp.range(8, 1, Role.VECTOR)
    >>> lanes_left((r * 8 + lane).lt(n), lane) is (r * -8 + n).simplify()
    True
    """
    if condition.op is not Ops.CMPLT or condition.src[0].dtype is not dtypes.index:
        return None
    terms, constant = linear_form(condition.src[0] - condition.src[1])
    if terms.pop(lanes, 0) != 1 or any(lanes in t.ranges for t in terms) or not any(
            n.op is Ops.VARIABLE for n in toposort(condition)):
        return None
    limit = from_linear({t: -k for t, k in terms.items()}, -constant, condition.src[0]).simplify()
    fits = dtypes.int32.min <= limit.vmin and limit.vmax <= dtypes.int32.max
    return limit if fits else None


def _condition(store: UOp) -> UOp | None:
    """Return the condition of a store, None if it is constant."""
    return store.src[3] if len(store.src) > 3 and not store.src[3].is_const else None


def _shape(fragment: Fragment) -> tuple[int, int]:
    return fragment.rows, fragment.size // fragment.rows
