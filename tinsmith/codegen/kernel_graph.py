"""The kernel graph that the optimizer transforms: its ranges in nesting order, and the opts applied so far.

Every opt splits a range, changes its role, reorders it, or stages a value. Every legal list of opts computes the same
result (up to the rounding of reordered float sums).
"""
from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from copy import copy as shallow_copy
from dataclasses import dataclass, field
from typing import Any, Self

from tinsmith.codegen.lower.normalize import grouped, implies, joined, mergeable, runs
from tinsmith.codegen.opt import Opt
from tinsmith.codegen.transform import matrix_units
from tinsmith.codegen.transform.computed_operand import block_factors, computed_values
from tinsmith.core.dtypes import dtypes
from tinsmith.core.errors import ArgumentError
from tinsmith.ir import Op, Ops, UOp
from tinsmith.ir.algebra.bounds import bound_ranges
from tinsmith.ir.algebra.symbolic import rename, simplify
from tinsmith.ir.graphs import draws
from tinsmith.ir.structure import Role, divides, is_partial, range_size, tiles_of
from tinsmith.ir.uop import toposort
from tinsmith.target.target import Target


@dataclass
class KernelGraph:
    """A kernel graph (SINK of stores) with the nesting order of its ranges.

    `target`: the data of the device that it is compiled for.
    """

    sink: UOp
    order: list[UOp] = field(default_factory=list)
    opts: list[Opt] = field(default_factory=list)
    blocks: int = 0  # persistent blocks that loop over the grid tiles; 0: one block per grid tile
    symbolic_blocks: int = 1  # blocks along all grid axes of symbolic size, which are launched for its greatest value
    backwards: set[int] = field(default_factory=set)  # numbers of the grid ranges traversed in reverse order
    roles: bool = False  # warp specialization: producer warps fill the slots of rings
    turns: int = 0  # consumer warp groups that take turns at the matrix unit (ping-pong); 0: none
    count: int = 0
    target: Target = field(default_factory=lambda: Target(""))
    _sorted: tuple[UOp | None, list[UOp], dict[Op, list[UOp]]] = field(default=(None, [], {}), repr=False,
                                                                      compare=False)

    def __post_init__(self) -> None:
        self.sink = simplify(self.sink)
        found = self.of(Ops.RANGE)
        # Ranges that more reductions depend on come further out, so that each reduction is computed once.
        users = {r: sum(r in f.ranges for f in self.folds) for r in found}
        ordered = self.ordered | frozenset(n.src[4] for n in self.of(Ops.SCATTER_STORE) if n.src[4].arg[1] is Role.LOOP)
        loops = (Role.LOOP, Role.BLOCK)
        self.order = sorted(found, key=lambda r: (r.arg[1] not in loops, r in ordered, -users[r], r.arg[0]))
        self.count = 1 + max((r.arg[0] for r in found), default=-1)
        for axes_of in (grouped, joined):
            while apart := next(filter(None, map(axes_of, self.folds)), None):
                self.split(*apart, apart[0].arg[1])
        while apart := runs(self.sink, self.target.costs.run):
            self.split(*apart, apart[0].arg[1])
        while pair := next(mergeable(self.sink, self.order), None):
            self.join(*pair)

    # *** queries ***

    @property
    def nodes(self) -> list[UOp]:
        """Return all nodes of the graph, sources first."""
        if self._sorted[0] is not self.sink:
            found, by_op = toposort(self.sink), defaultdict[Op, list[UOp]](list)
            for n in found:
                by_op[n.op].append(n)
            self._sorted = self.sink, found, by_op
        return self._sorted[1]

    def of(self, *ops: Op) -> list[UOp]:
        """Return the nodes of the given ops, sources first."""
        nodes, by_op = self.nodes, self._sorted[2]
        present = [op for op in ops if op in by_op]
        return list(by_op[present[0]]) if len(present) == 1 else [n for n in nodes if n.op in present]

    @property
    def ranges(self) -> list[UOp]:
        """Return loops in nesting order, then expanded ranges."""
        return [r for r in self.order if not r.arg[1].expanded] + [r for r in self.order if r.arg[1].expanded]

    @property
    def numbered(self) -> dict[int, UOp]:
        """Return the ranges by number; numbers are stable when roles and limits change."""
        return {r.arg[0]: r for r in self.order}

    def axis_of(self, number: int) -> int:
        """Return the index in ``ranges`` of the range with a number: the axis of an opt."""
        return self.ranges.index(self.numbered[number])

    @property
    def parallel(self) -> list[UOp]:
        """Return the loops with independent iterations, outermost first."""
        inner = self.bound
        return [r for r in self.order if r not in inner and not r.arg[1].expanded]

    @property
    def bound(self) -> frozenset[UOp]:
        """Return the ranges that belong to a reduction, a stage, a scan or an ordered scatter."""
        own = self.of(Ops.FOLD, Ops.STAGE, Ops.MMA, Ops.SCATTER_STORE)
        return self.ordered | self.scan_threads | {r for n in own for r in bound_ranges(n)}

    @property
    def ordered(self) -> frozenset[UOp]:
        """Return the loops of scans, which are innermost: one register per copy then carries the running value."""
        return frozenset(r for r in self._steps if r.arg[1] is Role.LOOP)

    @property
    def scan_threads(self) -> frozenset[UOp]:
        """Return the thread ranges that share the steps of scans."""
        return frozenset(r for r in self._steps if r.arg[1] is Role.GROUP)

    @property
    def scan_lanes(self) -> frozenset[UOp]:
        """Return the vector ranges whose lanes are steps of scans."""
        return frozenset(r for r in self._steps if r.arg[1] is Role.VECTOR)

    @property
    def _steps(self) -> frozenset[UOp]:
        return frozenset().union(*(n.src[1].ranges for n in self.of(Ops.PREFIX)))

    @property
    def reduces(self) -> list[UOp]:
        """Return the loops of reductions, in nesting order."""
        return [r for r in self.order if r.arg[1] is Role.REDUCE]

    @property
    def loads(self) -> list[UOp]:
        """Return the loads from kernel arguments, in a stable order."""
        return [n for n in self.of(Ops.LOAD) if n.src[0].op is Ops.PARAM]

    @property
    def products(self) -> list[UOp]:
        """Return the steps (MMA) of matrix units."""
        return self.of(Ops.MMA)

    @property
    def stageable(self) -> list[UOp]:
        """Return the values that STAGE accepts: loads, then computed values inside reductions (both staged in local
        memory), then A operands of matrix units that are computed in registers (made one block ahead), then factors
        that the steps of an inner range share."""
        held = [p.src[0] for p in self.products if matrix_units.reads_held(p.src[0])]
        return self.loads + computed_values(self.sink) + held + block_factors(self.sink)

    @property
    def goes_by_blocks(self) -> bool:
        """Return True if the kernel has a loop over blocks."""
        return any(r.arg[1] is Role.BLOCK for r in self.order)

    @property
    def tiles_in_turn(self) -> int:
        """Return the number of tiles that a block computes at a time: one per ping-pong group, or only one if the
        groups share the blocks of a back-to-back contraction."""
        return 1 if self.goes_by_blocks else max(self.turns, 1)

    @property
    def stores(self) -> list[UOp]:
        return self.of(Ops.STORE, Ops.SCATTER_STORE)

    @property
    def folds(self) -> list[UOp]:
        return self.of(Ops.FOLD)

    def name(self) -> str:
        """Return ``r_2``, ``E_4_3``: r for a kernel with reductions, E for elementwise, then the sizes of the ranges.

        A kernel that only generates random numbers is ``rand_4_3``.
        """
        own = {Ops.STAGE: 1, Ops.MMA: 4}  # from this source on, ranges only fill a stage or belong to a unit's step
        fills = {r for n in self.nodes if n.op in own for r in n.src[own[n.op] :]}
        sizes = [_size_name(range_size(r)) for r in self.ranges if r not in fills | self.scan_threads]
        return "_".join(["r" if self.folds else "rand" if self.is_random else "E", *(sizes or ["1"])])

    @property
    def is_random(self) -> bool:
        """Return True if the kernel generates random numbers and neither loads nor reduces."""
        return all(n.op not in (Ops.LOAD, Ops.FOLD) for n in self.nodes) and draws(self.nodes)

    def may_have_lanes(self, r: UOp) -> bool:
        """Return True if no value computed over ``r`` has lanes along another range."""
        for n in self.nodes:
            if n.op in (Ops.FOLD, Ops.STORE, Ops.STAGE):
                over = n.ranges if n.op is Ops.STORE else n.src[0].ranges | n.ranges | set(n.src[1:])
                if r in over and any(x.arg[1] in (Role.VECTOR, Role.FRAGMENT) for x in over):
                    return False
        return True

    # *** building blocks of the opts ***

    def new_number(self) -> int:
        """Return an unused range number."""
        self.count += 1
        return self.count - 1

    def new_range(self, size: Any, role: Role, partial: bool = False) -> UOp:
        return UOp.range(size, self.new_number(), role, partial) if size != 1 else UOp.index(0)

    def new_tiles(self, size: int | UOp, amount: int, role: Role) -> UOp:
        """Return a range over tiles of ``amount`` steps of a range of symbolic size, the last one perhaps partial."""
        count = ((size + (amount - 1)) // amount).simplify() if isinstance(size, UOp) else -(-size // amount)
        if isinstance(size, int) or divides(amount, size) or role is Role.GLOBAL:
            return self.new_range(count.arg if isinstance(count, UOp) and count.is_const else count, role)
        return UOp(Ops.RANGE, dtypes.index, (size, UOp.index(count)), (self.new_number(), role, amount))

    def in_place_of(self, r: UOp, size: int, role: Role) -> UOp:
        """Return a range with the steps of ``r`` and a new size and role."""
        return r.replace(src=(*r.src[:-1], UOp.index(size)), arg=(self.new_number(), role))

    def rebuild(self, table: dict[UOp, UOp], valid: UOp | None = None, of: UOp | None = None,
                peeled: bool = True) -> None:
        """Substitute ranges; ``valid`` guards loads, stores and reductions that depended on range ``of``."""
        new: dict[UOp, UOp] = dict(table)
        for node in toposort(self.sink, lambda n: n not in table):
            src: list[UOp] = []
            for position, s in enumerate(node.src):
                n = new.get(s, s)
                if node.op in (Ops.FOLD, Ops.STAGE) and position and s in table:
                    src.extend(sorted((r for r in n.ranges if r not in src), key=lambda r: r.arg[0]))
                elif node.op is Ops.SCATTER_STORE and position == 4 and s in table:
                    src.append(next(r for r in n.ranges if not r.arg[1].expanded))
                else:
                    src.append(n)
            if valid is not None and of is not None:
                src = _guarded(node, src, valid, of, peeled)
            new[node] = node if tuple(src) == node.src else node.replace(src=tuple(src))
        self.sink = simplify(new[self.sink])
        self.reorder()

    def reorder(self) -> None:
        """Update ``order`` with ranges whose limits have changed, in their old positions."""
        now = {n.arg[0]: n for n in self.of(Ops.RANGE)}
        self.order = [now.get(r.arg[0], r) for r in self.order]

    def rebuild_as(self, statements: Sequence[UOp], table: dict[UOp, UOp]) -> None:
        """Replace the statements, with ranges substituted."""
        self.sink = simplify(self.sink.replace(src=tuple(statements)).substitute(table))

    def split(self, r: UOp, amount: int, role: Role) -> tuple[UOp, UOp]:
        """Split r into outer*amount + inner. A last, partial iteration is guarded here and peeled by the linearizer.

        A range of symbolic size has a partial iteration unless ``amount`` provably divides the size. Where it is
        partial already, its first guard also holds for the second split.
        """
        size = range_size(r)
        partial = not divides(amount, size)
        elements, weight = tiles_of(r)
        outer = self.new_tiles(elements, weight * amount, r.arg[1]) if isinstance(size, UOp) else self.new_range(
            -(-size // amount), r.arg[1], partial and r.arg[1] is not Role.GLOBAL)
        inner = self.new_range(amount, role) if outer.op is Ops.RANGE else self.in_place_of(r, amount, role)
        position = outer * amount + inner
        guarded = isinstance(size, UOp) and is_partial(r)
        self.rebuild({r: position.simplify()}, position.lt(size).simplify() if partial and not guarded else None, r)
        at = self.order.index(r)
        self.order[at : at + 1] = [x for x in (outer, inner) if x.op is Ops.RANGE]
        return outer, inner

    def change_role(self, r: UOp, role: Role) -> UOp:
        new = r.replace(arg=(r.arg[0], role, *r.arg[2:]))
        self.sink = rename(self.sink, {r: new})
        self.reorder()
        return new

    def pad(self, r: UOp, multiple: int) -> UOp:
        """Round a range up to a multiple. Elements beyond the old size are neither loaded nor stored, and add nothing
        to a sum."""
        size = range_size(r)
        padded = -(-size // multiple) * multiple
        if padded == size:
            return r
        new = self.in_place_of(r, padded, r.arg[1])
        self.rebuild({r: new}, new.lt(size), r, peeled=False)
        self.order[self.order.index(r)] = new
        return new

    def merge(self, a: UOp, b: UOp) -> UOp:
        """Fuse two ranges into one of size a*b: a → m // size(b), b → m % size(b)."""
        size_b = range_size(b)
        m = self.new_range(range_size(a) * size_b, a.arg[1])
        self.rebuild({a: (m // size_b).simplify(), b: (m % size_b).simplify()})
        self.order[self.order.index(a)] = m
        self.order.remove(b)
        return m

    def join(self, a: UOp, b: UOp) -> None:
        """Fuse two ranges into one, if every index uses them only as a*size(b) + b."""
        m = self.new_range(range_size(a) * range_size(b), a.arg[1])
        self.rebuild({a: UOp.index(0), b: m})
        self.order[self.order.index(a)] = m
        self.order.remove(b)

    def read_staged(self, load: UOp, readers: dict[UOp, UOp]) -> None:
        """Replace the keys of ``readers``, which are values, by reads of the stage of ``load``."""
        self.order += load.src[0].src[1:]
        self.sink = simplify(self.sink.substitute(readers))
        self.reorder()  # the simplification may write the limit of a symbolic range in another way

    # *** opts ***

    def copied(self) -> Self:
        """Return an independent copy, to which opts can be applied."""
        new = shallow_copy(self)
        for name, value in vars(self).items():
            if isinstance(value, (list, dict, set)):
                setattr(new, name, value.copy())
        return new

    def axis(self, opt: Opt) -> UOp:
        ranges = self.ranges
        if not isinstance(opt.axis, int) or not 0 <= opt.axis < len(ranges):
            raise ArgumentError("Opt", f"{opt}: no such axis", "one of these")
        return ranges[opt.axis]


def _size_name(size: int | UOp) -> str:
    """Return a size as part of a kernel name; a symbolic size is named by its variables."""
    if isinstance(size, UOp):
        return "".join(n.arg[0] for n in toposort(size) if n.op is Ops.VARIABLE)
    return str(size)


def _guarded(node: UOp, src: list[UOp], valid: UOp, of: UOp, peeled: bool) -> list[UOp]:
    """Return a node's sources guarded by ``valid``. A product of values that are 0 outside needs no guard, unless
    peeling decides the guard (``peeled``)."""
    if node.op is Ops.LOAD and of in node.src[1].ranges:
        both = valid if len(src) == 2 else (src[2] & valid).simplify()
        return [src[0], src[1], both]
    if node.op is Ops.STORE and of in node.ranges:
        both = valid if len(src) == 3 else (src[3] & valid).simplify()
        return [*src[:3], both]
    if node.op is Ops.SCATTER_STORE and of in node.ranges:
        return [*src[:3], (src[3] & valid).simplify(), src[4]]
    if node.op is Ops.FOLD and of in node.src[1:]:
        product = not peeled and node.arg is Ops.ADD and src[0].op is Ops.MUL
        if product and all(_is_zero_outside(s, valid) for s in src[0].src):
            return src
        assert node.arg.identity is not None
        nothing = UOp.const(node.dtype, node.arg.identity(node.dtype))
        return [valid.where(src[0], nothing), *src[1:]]
    return src


def _is_zero_outside(value: UOp, valid: UOp) -> bool:
    """Return True if a value is a load, possibly under casts, that gives 0 where ``valid`` does not hold."""
    while value.op is Ops.CAST:
        value = value.src[0]
    return value.op is Ops.LOAD and len(value.src) > 2 and implies(value.src[2], valid)
