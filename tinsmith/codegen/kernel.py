"""A kernel in the hands of the optimizer: its graph, its ranges in nesting order, and the opts applied so far.

Every opt splits a range, changes its role, reorders it, or stages a value. Every legal list of opts computes the same
result (up to the rounding of reordered float sums).
"""
from __future__ import annotations

import enum
import math
from collections.abc import Callable, Sequence
from copy import copy as shallow_copy
from dataclasses import dataclass, field, replace
from typing import Any

from tinsmith.codegen import ahead, blocks, carried, hidden, matrix, online
from tinsmith.codegen.normalize import mergeable
from tinsmith.codegen.roles import Role
from tinsmith.codegen.streams import TILE_ROWS, bind, computed_values, equal_values, is_product_sum
from tinsmith.core.dtypes import dtypes
from tinsmith.core.errors import ArgumentError
from tinsmith.ir import Ops, UOp
from tinsmith.ir.symbolic import linear_form, rename, simplify
from tinsmith.ir.units import MatrixUnit, fma
from tinsmith.ir.uop import toposort


class OptOps(enum.Enum):
    """The language of the optimizer; `axis` is a position in ``Kernel.ranges``, `amt` a size."""

    THREAD = enum.auto()  # split a parallel range over CPU workers
    UPCAST = enum.auto()  # the inner `amt` of a parallel range become copies in registers
    VECTOR = enum.auto()  # the inner `amt` of a range become lanes of vector registers
    UNROLL = enum.auto()  # the inner `amt` of a reduction become copies
    TILE = enum.auto()  # split a range into an outer and an inner loop of `amt`
    SWAP = enum.auto()  # exchange two loops of one kind in nesting order
    ORDER = enum.auto()  # the nesting order of the loops, outermost first, as positions
    PADTO = enum.auto()  # round a range up to a multiple of `amt`; what is beyond is masked
    MERGE = enum.auto()  # two parallel ranges become one, the second running faster
    STAGE = enum.auto()  # `axis` numbers a ``Kernel.stageable`` value; `amt` = positions of the ranges kept outside
    SPLIT = enum.auto()  # a reduction becomes `amt` partial results, which are then combined
    TC = enum.auto()  # the reduction `axis` steps through a matrix unit; `amt` = (m, n[, copies along m, along n])
    # Without an axis: stores of whole aligned vectors go past the caches, for results too large to stay there.
    # `axis` numbers a load: it fetches `amt` iterations of its innermost loop ahead.
    HINT = enum.auto()
    ROTATE = enum.auto()  # `axis` numbers a load in a reduction: it is issued one iteration ahead of its reader
    CARRY = enum.auto()  # a sum in blocks that stays in memory; `amt` = (block, the parallel range of the same tiles)
    ONLINE = enum.auto()  # a maximum and the sums relative to it become one loop over blocks of `amt`
    SKIP = enum.auto()  # blocks of carried sums that a mask hides are not computed
    WALK = enum.auto()  # tiles of two loops in bands: `amt` = (the other, band[, 1: as one range of tiles])
    LOCAL = enum.auto()  # the inner `amt` of a parallel range become threads of a block
    GROUP = enum.auto()  # `amt` threads of a block share a reduction, taking turns
    GROUPTOP = enum.auto()  # the same, each with a piece of its own
    NOLOCALS = enum.auto()  # no blocks: every thread works alone

    def __repr__(self) -> str:
        return f"OptOps.{self.name}"


@dataclass(frozen=True)
class Opt:
    """One optimizer choice. ``lanes`` belongs to STAGE: the width of the vectors that fill it; 0: one by one.
    ``copies``: how many of them are filled side by side, where the staged value is a computed tile.

    ``unit`` belongs to TC: the name of one of the target's matrix units; none: the first that fits.

    >>> Opt(OptOps.UPCAST, 0, 4), Opt(OptOps.STAGE, 1, (0,), lanes=16)
    (Opt(op=OptOps.UPCAST, axis=0, amt=4), Opt(op=OptOps.STAGE, axis=1, amt=(0,), lanes=16))
    """

    op: OptOps
    axis: int | None = None
    amt: int | tuple[int, ...] | None = None
    lanes: int = 0
    unit: str = ""
    copies: int = 1

    def __repr__(self) -> str:
        more = f", lanes={self.lanes}" * bool(self.lanes) + f", unit={self.unit!r}" * bool(self.unit)
        more += f", copies={self.copies}" * (self.copies > 1)
        return f"Opt(op={self.op!r}, axis={self.axis}, amt={self.amt}{more})"


@dataclass
class Kernel:
    """A kernel graph (SINK of stores) with the nesting order of its ranges.

    `full` maps the number of a partial range to how many of its iterations are whole; the linearizer peels the rest.
    `units` are the matrix units that the target has. `block_threads` says how many threads a block may have on the
    target; 0: it has no blocks.
    """

    sink: UOp
    order: list[UOp] = field(default_factory=list)
    opts: list[Opt] = field(default_factory=list)
    full: dict[int, int] = field(default_factory=dict)
    ends: dict[int, UOp] = field(default_factory=dict)  # number of a loop over blocks → how many of them add anything
    running_lanes: dict[int, int] = field(default_factory=dict)  # number of an ordered range → steps at once
    count: int = 0
    units: tuple[MatrixUnit, ...] = ()
    block_threads: int = 0
    _sorted: tuple[UOp | None, list[UOp]] = field(default=(None, []), repr=False, compare=False)

    def __post_init__(self) -> None:
        self.sink = simplify(self.sink)
        found = [n for n in self.nodes if n.op is Ops.RANGE]
        # What more reductions depend on comes further out: each is then computed once.
        users = {r: sum(r in f.ranges for f in self.folds) for r in found}
        ordered = self.ordered
        self.order = sorted(found, key=lambda r: (r.arg[1] is not Role.LOOP, r in ordered, -users[r], r.arg[0]))
        self.count = 1 + max((r.arg[0] for r in found), default=-1)
        while pair := next(mergeable(self.sink, self.order), None):
            self.join(*pair)

    # *** what there is ***

    @property
    def nodes(self) -> list[UOp]:
        """All nodes of the graph, sources first."""
        if self._sorted[0] is not self.sink:
            self._sorted = self.sink, toposort(self.sink)
        return self._sorted[1]

    @property
    def ranges(self) -> list[UOp]:
        """Loops in nesting order, then expanded ranges."""
        return [r for r in self.order if not r.arg[1].expanded] + [r for r in self.order if r.arg[1].expanded]

    @property
    def parallel(self) -> list[UOp]:
        """Loops whose iterations are independent, outermost first."""
        inner = self.bound
        return [r for r in self.order if r not in inner and not r.arg[1].expanded]

    @property
    def bound(self) -> frozenset[UOp]:
        """Ranges that belong to a reduction, a stage, a running value or an ordered scatter."""
        nodes = self.nodes
        inner = self.ordered | frozenset(r for n in nodes if n.op in (Ops.FOLD, Ops.STAGE) for r in n.src[1:])
        inner |= frozenset(n.src[4] for n in nodes if n.op is Ops.MMA)
        return inner | frozenset(n.src[4] for n in nodes if n.op is Ops.SCATTER_STORE)

    @property
    def ordered(self) -> frozenset[UOp]:
        """Ranges of running values: their loops are the innermost, so that one register per copy carries the value."""
        return frozenset(n.src[1] for n in self.nodes if n.op is Ops.PREFIX)

    @property
    def reduces(self) -> list[UOp]:
        """Loops of reductions, in nesting order."""
        return [r for r in self.order if r.arg[1] is Role.REDUCE]

    @property
    def loads(self) -> list[UOp]:
        """Loads from kernel arguments, in a stable order."""
        return [n for n in self.nodes if n.op is Ops.LOAD and n.src[0].op is Ops.PARAM]

    @property
    def products(self) -> list[UOp]:
        """The steps of matrix units."""
        return [n for n in self.nodes if n.op is Ops.MMA]

    @property
    def stageable(self) -> list[UOp]:
        """What STAGE can put into near memory: loads, then computed values inside reductions."""
        return self.loads + computed_values(self.sink)

    @property
    def stores(self) -> list[UOp]:
        return [n for n in self.nodes if n.op in (Ops.STORE, Ops.SCATTER_STORE)]

    @property
    def folds(self) -> list[UOp]:
        return [n for n in self.nodes if n.op is Ops.FOLD]

    def name(self) -> str:
        """``r_2``, ``E_4_3``: r where something is reduced, E elementwise, then the sizes of the ranges."""
        sizes = [_size_name(_size(r)) for r in self.ranges if r.arg[0] not in self.stage_only]
        return "_".join(["r" if self.folds else "E", *(sizes or ["1"])])

    stage_only: set[int] = field(default_factory=set)  # numbers of ranges that only fill stages

    def may_have_lanes(self, r: UOp) -> bool:
        """Whether no value that is computed over ``r`` has lanes along another range."""
        for n in self.nodes:
            if n.op in (Ops.FOLD, Ops.STORE, Ops.STAGE):
                over = n.ranges if n.op is Ops.STORE else n.src[0].ranges | n.ranges | set(n.src[1:])
                if r in over and any(x.arg[1] in (Role.VECTOR, Role.FRAGMENT) for x in over):
                    return False
        return True

    # *** building blocks of the opts ***

    def new_range(self, size: Any, role: Role) -> UOp:
        self.count += 1
        return UOp.range(size, self.count - 1, role) if size != 1 else UOp.index(0)

    def rebuild(self, table: dict[UOp, UOp], valid: UOp | None = None, of: UOp | None = None) -> None:
        """Substitute ranges; ``valid`` guards loads, stores and reductions that depended on range ``of``."""
        new: dict[UOp, UOp] = dict(table)
        for node in toposort(self.sink, lambda n: n not in table):
            src: list[UOp] = []
            for position, s in enumerate(node.src):
                n = new.get(s, s)
                if node.op in (Ops.FOLD, Ops.STAGE) and position and s in table:
                    src.extend(sorted((r for r in n.ranges), key=lambda r: r.arg[0]))
                else:
                    src.append(n)
            if valid is not None and of is not None:
                src = _guarded(node, src, valid, of)
            new[node] = node if tuple(src) == node.src else node.replace(src=tuple(src))
        self.sink = simplify(new[self.sink])

    def rebuild_as(self, statements: Sequence[UOp], table: dict[UOp, UOp]) -> None:
        """Other statements, with ranges substituted."""
        self.sink = simplify(self.sink.replace(src=tuple(statements)).substitute(table))

    def split(self, r: UOp, amount: int, role: Role) -> tuple[UOp, UOp]:
        """r → outer*amount + inner. A last, partial iteration is guarded here and peeled by the linearizer."""
        size = _size(r)
        if not isinstance(size, int):
            raise ArgumentError("Opt", f"a range of symbolic size {size} cannot be split", "split another range")
        outer = self.new_range(-(-size // amount), r.arg[1])
        inner = self.new_range(amount, role)
        place = outer * amount + inner
        partial = size % amount != 0
        if partial and outer.op is Ops.RANGE and r.arg[1] is not Role.GLOBAL:
            self.full[outer.arg[0]] = size // amount
        self.rebuild({r: place.simplify()}, place.lt(size).simplify() if partial else None, r)
        at = self.order.index(r)
        self.order[at : at + 1] = [x for x in (outer, inner) if x.op is Ops.RANGE]
        return outer, inner

    def change_role(self, r: UOp, role: Role) -> UOp:
        new = r.replace(arg=(r.arg[0], role))
        self.sink = rename(self.sink, {r: new})
        self.order[self.order.index(r)] = new
        return new

    def pad(self, r: UOp, multiple: int) -> UOp:
        """Round a range up to a multiple; what is beyond is neither loaded nor stored, and adds nothing to a sum."""
        size = _size(r)
        padded = -(-size // multiple) * multiple
        if padded == size:
            return r
        new = self.new_range(padded, r.arg[1])
        self.rebuild({r: new}, new.lt(size), r)
        self.order[self.order.index(r)] = new
        return new

    def merge(self, a: UOp, b: UOp) -> UOp:
        """Two ranges become one of size a*b: a → m // size(b), b → m % size(b)."""
        size_b = _size(b)
        m = self.new_range(_size(a) * size_b, a.arg[1])
        self.rebuild({a: (m // size_b).simplify(), b: (m % size_b).simplify()})
        self.order[self.order.index(a)] = m
        self.order.remove(b)
        return m

    def join(self, a: UOp, b: UOp) -> None:
        """Two ranges that every index uses as a*size(b) + b become one."""
        m = self.new_range(_size(a) * _size(b), a.arg[1])
        self.rebuild({a: UOp.index(0), b: m})
        self.order[self.order.index(a)] = m
        self.order.remove(b)

    def stage(self, value: UOp, outside: Sequence[UOp], lanes: int = 0) -> UOp:
        """Compute ``value`` once into near memory for all ranges but ``outside`` and read it from there.

        It is filled by vectors of ``lanes`` elements where memory runs along it, else (or for 0) one by one.
        Ranges that only enter as one sum (a window's position and offset) are staged as that sum: a padded tile.
        """
        inside = sorted((r for r in self.order if r in value.ranges and r not in outside), key=_layout_rank)
        fresh: list[UOp] = []
        table: dict[UOp, UOp] = {}
        place = UOp.index(0)
        valid: UOp | None = None
        for box in sorted(windows(value, inside), key=lambda b: _memory_order(value, b)):
            lead = box.ranges[0]
            loops, at = self.stage_loops(value, box, lanes)
            if not lead.arg[1].expanded and loops and loops[-1].arg[1] is Role.VECTOR and box.size % lanes:
                valid = at.lt(box.size) if valid is None else valid & at.lt(box.size)
            self.stage_only |= {f.arg[0] for f in loops}
            fresh += loops
            table.update({r: UOp.index(0) for r in box.ranges})
            table[lead] = at + box.low
            pitch = 1
            for f in loops:
                pitch *= _size(f)
            place = place * pitch + box.position
            if len(box.ranges) == 1 and len(loops) == 1 and lead.arg[0] in self.full:
                self.full[loops[0].arg[0]] = self.full[lead.arg[0]]
        copy = value.substitute(table)
        if valid is not None:
            copy = copy.substitute({n: n.replace(src=(*n.src[:2], n.src[2] & valid if len(n.src) > 2 else valid))
                                    for n in toposort(copy) if n.op is Ops.LOAD})
        copy = simplify(copy)
        staged = UOp(Ops.STAGE, value.dtype.ptr(), (copy, *fresh), tuple(_size(f) for f in fresh))
        self.order += fresh
        self.sink = simplify(self.sink.substitute({value: staged.load(place)}))
        return staged

    def stage_operand(self, product: UOp, which: int, inside: Sequence[UOp]) -> None:
        """Read an operand of a matrix unit from a stage over ``inside`` and the unit's own ranges."""
        operand, fresh = matrix.stage_operand(product, which, inside, self.new_range)
        self.stage_only |= {f.arg[0] for f in fresh}
        self.order += fresh
        src = (*product.src[:which], operand, *product.src[which + 1 :])
        self.sink = simplify(self.sink.substitute({product: product.replace(src=src)}))

    def stage_what_no_unit_loads(self) -> None:
        """Operands that do not lie in memory as their unit loads them are staged, a tile at a time."""
        while found := next((p for p in self.products if matrix.unloadable(p)), None):
            self.stage_operand(found, matrix.unloadable(found)[0], ())

    def stage_tile(self, value: UOp, outside: Sequence[UOp], lanes: int, copies: int) -> UOp:
        """Compute a value that is made of reductions once, for its rows and all that reductions run over.

        It is laid out row by row along the last reduced range, filled as a tile of ``copies`` vectors of ``lanes``, and
        read wherever the same value is needed, also by reductions that call their ranges otherwise.
        """
        inside = [r for r in self.order if r in value.ranges and r not in outside]
        inside.sort(key=lambda r: r.arg[1] is Role.REDUCE)
        tiled = any(is_product_sum(n) for n in toposort(value) if n.op is Ops.FOLD)
        fresh: list[UOp] = []
        table: dict[UOp, UOp] = {}
        place = UOp.index(0)
        valid: UOp | None = None
        for r in inside:
            size, group = _size(r), max(lanes, 1) * copies
            if r is not inside[-1]:
                in_registers = tiled and r.arg[1] is Role.UPCAST
                rows = TILE_ROWS if tiled and not in_registers and size % TILE_ROWS == 0 else 1
                own = [self.new_range(size // rows, Role.UPCAST if in_registers else Role.LOOP),
                       self.new_range(rows, Role.UPCAST)]
                at = (own[0] * rows + own[1]).simplify()
            else:
                size = -(-size // group) * group
                own = [self.new_range(size // group, Role.LOOP), self.new_range(copies, Role.UPCAST),
                       self.new_range(max(lanes, 1), Role.VECTOR)]
                at = (own[0] * group + own[1] * max(lanes, 1) + own[2]).simplify()
                valid = at.lt(_size(r)) if size != _size(r) else None
            fresh += [f for f in own if f.op is Ops.RANGE]
            table[r] = at
            place = place * size + r
        fixed = frozenset(outside)
        same = equal_values(self.sink, value, fixed)
        copy = value
        for r, at in table.items():
            copy = bind(copy, r, at)
        if valid is not None:
            copy = copy.substitute({n: n.replace(src=(*n.src[:2], n.src[2] & valid if len(n.src) > 2 else valid))
                                    for n in toposort(copy) if n.op is Ops.LOAD and at.ranges & n.src[1].ranges})
        staged = UOp(Ops.STAGE, value.dtype.ptr(), (simplify(copy), *fresh), tuple(_size(f) for f in fresh))
        self.order += fresh
        read = {n: staged.load(place.substitute(names).simplify()) for n, names in same.items()}
        self.sink = simplify(self.sink.substitute(read))
        left = set(toposort(self.sink))
        self.order = [r for r in self.order if r in left]
        return staged

    def stage_loops(self, value: UOp, box: Box, lanes: int) -> tuple[list[UOp], UOp]:
        """Fresh ranges that fill a box, and the position they stand for; whole vectors where memory runs along it."""
        lead = box.ranges[0]
        whole = lanes and box.size >= lanes // 2 and lead.arg[0] not in self.full
        one_row = not lead.arg[1].expanded and not any(r.arg[1] is Role.VECTOR for r in value.ranges)
        if whole and one_row and all(
                linear_form(n.src[1])[0].get(lead) == 1 for n in toposort(value) if n.op is Ops.LOAD):
            outer = self.new_range(-(-box.size // lanes), Role.LOOP)
            inner = self.new_range(lanes, Role.VECTOR)
            at = (outer * lanes + inner).simplify()
            return [r for r in (outer, inner) if r.op is Ops.RANGE], at
        role = lead.arg[1] if lead.arg[1] in (Role.UPCAST, Role.VECTOR) else Role.LOOP
        f = self.new_range(box.size, role)
        return ([f] if f.op is Ops.RANGE else []), f

    # *** the opt language ***

    def apply(self, opt: Opt) -> None:
        """Apply one opt.

        Raises:
            ArgumentError: if the opt is not legal here; the kernel is unchanged.
        """
        said = _HANDLERS[opt.op](self, opt)
        self.opts += [opt] if said is None else said

    def copied(self) -> Kernel:
        """A kernel of its own, to which opts can be applied."""
        new = shallow_copy(self)
        for name, value in vars(self).items():
            if isinstance(value, (list, dict, set)):
                setattr(new, name, value.copy())
        return new

    def axis(self, opt: Opt) -> UOp:
        ranges = self.ranges
        if opt.axis is None or not 0 <= opt.axis < len(ranges):
            raise ArgumentError("Opt", f"{opt} names no range; there are {len(ranges)}", "an axis of Kernel.ranges")
        return ranges[opt.axis]


@dataclass(frozen=True)
class Box:
    """Ranges that enter a staged value only as one sum, ``position + low``, which takes ``size`` values."""

    ranges: tuple[UOp, ...]
    position: UOp
    low: int
    size: int


def windows(value: UOp, inside: list[UOp]) -> list[Box]:
    """``inside`` grouped into boxes: y and ky of y + ky, or x and kx of x*stride - kx, are one box."""
    boxes: list[Box] = []
    left = list(inside)
    while left:
        r = left.pop(0)
        partner = next((p for p in left if _enter_as_sum(value, r, p) is not None), None)
        if partner is None:
            boxes.append(Box((r,), r, 0, _size(r)))
            continue
        left.remove(partner)
        k, unit, other = _enter_as_sum(value, r, partner) or (0, r, r)
        reach = k * (_size(other) - 1)
        low = min(reach, 0)
        boxes.append(Box((unit, other), (unit + other * k - low).simplify(), low, _size(unit) + abs(reach)))
    return boxes


def _enter_as_sum(value: UOp, a: UOp, b: UOp) -> tuple[int, UOp, UOp] | None:
    """(k, unit, other) if the value depends on a and b only through unit + k*other."""
    roots = [s for n in toposort(value) if n.op is Ops.LOAD for s in n.src[1:]]
    if a.arg[1].expanded or b.arg[1].expanded:
        return None
    for unit, other in ((a, b), (b, a)):
        ratios = {_ratio(root, unit, other) for root in _sums(roots)}
        ratios.discard(None)
        if len(ratios) == 1:
            k = ratios.pop()
            if isinstance(k, int) and 0 < abs(k) < _size(unit):  # neighbours overlap: else there is nothing to share
                return k, unit, other
    return None


def _sums(roots: list[UOp]) -> list[UOp]:
    """The integer sums inside index and guard expressions."""
    out: list[UOp] = []
    for root in roots:
        out += [root] if root.dtype is dtypes.index else [s for n in toposort(root) if n.dtype is not dtypes.index
                                                          for s in n.src if s.dtype is dtypes.index]
    return out


def _ratio(root: UOp, unit: UOp, other: UOp) -> int | float | None:
    """coefficient(other) / coefficient(unit) in a sum; None if neither occurs, nan if they do not fit."""
    terms, _ = linear_form(root)
    if any((unit in t.ranges or other in t.ranges) and t is not unit and t is not other for t in terms):
        return math.nan
    a, b = terms.get(unit, 0), terms.get(other, 0)
    if a == 0 and b == 0:
        return None
    return b // a if a and b % a == 0 else math.nan


def _memory_order(value: UOp, box: Box) -> tuple[int, int]:
    """Loops of a tile in the order of the memory it is copied from, so that copying walks along it."""
    lead = box.ranges[0]
    load = next((n for n in toposort(value) if n.op is Ops.LOAD), None)
    stride = 0 if load is None else abs(linear_form(load.src[1])[0].get(lead, 0))
    return _layout_rank(lead), -stride if _layout_rank(lead) == 0 else 0


def _layout_rank(r: UOp) -> int:
    """A tile is stored loop by loop, then register copies, lanes fastest, so that its reader loads whole vectors."""
    return {Role.UPCAST: 1, Role.VECTOR: 2}.get(r.arg[1], 0)


def _size(r: UOp) -> Any:
    return r.src[-1].arg if r.src[-1].is_const else r.src[-1]


range_size = _size


def _size_name(size: int | UOp) -> str:
    """A size as part of a name: a variable by its own, an expression by the variables in it."""
    if isinstance(size, UOp):
        return "".join(n.arg[0] for n in toposort(size) if n.op is Ops.VARIABLE)
    return str(size)


def _guarded(node: UOp, src: list[UOp], valid: UOp, of: UOp) -> list[UOp]:
    if node.op is Ops.LOAD and of in node.src[1].ranges:
        both = valid if len(src) == 2 else (src[2] & valid).simplify()
        return [src[0], src[1], both]
    if node.op is Ops.STORE and of in node.ranges:
        both = valid if len(src) == 3 else (src[3] & valid).simplify()
        return [*src[:3], both]
    if node.op is Ops.SCATTER_STORE and of in node.ranges:
        return [*src[:3], (src[3] & valid).simplify(), src[4]]
    if node.op is Ops.FOLD and of in node.src[1:]:
        assert node.arg.identity is not None
        nothing = UOp.const(node.dtype, node.arg.identity(node.dtype))
        return [valid.where(src[0], nothing), *src[1:]]
    return src


def _illegal(opt: Opt, why: str) -> ArgumentError:
    return ArgumentError("Opt", f"{opt}: {why}", "another axis or amount")


def _require(condition: bool, opt: Opt, why: str) -> None:
    if not condition:
        raise _illegal(opt, why)


def _amount(k: Kernel, opt: Opt, r: UOp, most: int = 0) -> int:
    size = _size(r)
    _require(isinstance(size, int), opt, "the range has a symbolic size")
    amount = size if opt.amt in (0, None) else opt.amt
    most = max(most, size)
    if not (isinstance(amount, int) and 1 < amount <= most):
        raise _illegal(opt, f"the amount must be in 2..{most}")
    return amount


def _is_parallel(k: Kernel, r: UOp) -> bool:
    return r.arg[1] in (Role.LOOP, Role.THREAD, Role.GLOBAL) and r not in k.bound


def _upcast(k: Kernel, opt: Opt) -> None:
    r = k.axis(opt)
    _require(_is_parallel(k, r), opt, "only a parallel loop can be upcast")
    amount = _amount(k, opt, r)
    for n in k.products:
        sums = math.prod(_size(x) for x in n.ranges if x.arg[1] is Role.UPCAST)
        _require(r not in n.ranges or sums * amount <= n.arg.accumulators, opt, f"{n.arg.name} holds no more sums")
    k.split(r, amount, Role.UPCAST)


def _unroll(k: Kernel, opt: Opt) -> None:
    r = k.axis(opt)
    _require(r.arg[1] is Role.REDUCE, opt, "only a reduction can be unrolled")
    k.split(r, _amount(k, opt, r), Role.UNROLL)


def _vector(k: Kernel, opt: Opt) -> None:
    r = k.axis(opt)
    size = _size(r)
    amount = _amount(k, opt, r, 2 * size - 1 if isinstance(size, int) else 0)
    _require(amount & (amount - 1) == 0, opt, "lanes come in powers of two")
    _require(not k.running_lanes, opt, "running values have lanes already")
    if r in k.ordered:
        running = [n for n in toposort(k.sink) if n.op is Ops.PREFIX]
        _require(size % amount == 0, opt, "the steps must fill whole vectors")
        _require(all(n.arg is not Ops.MULADD and n.src[1] is r for n in running), opt, "its steps cannot be combined")
        _require(k.may_have_lanes(r), opt, "a value has lanes along one range only")
        _require(not any(n.op is Ops.STAGE for n in toposort(k.sink)), opt, "a stage has no copy per lane")
        k.running_lanes[r.arg[0]] = amount
        return
    _require(_is_parallel(k, r) or r.arg[1] is Role.REDUCE, opt, "only loops become lanes")
    _require(k.may_have_lanes(r), opt, "a value has lanes along one range only")
    stages = [n for n in toposort(k.sink) if n.op is Ops.STAGE]
    _require(not any(r in n.ranges for n in stages), opt, "a stage has no copy per lane")
    k.split(r, amount, Role.VECTOR)


def _tile(k: Kernel, opt: Opt) -> None:
    r = k.axis(opt)
    _require(r.arg[1] in (Role.LOOP, Role.GLOBAL, Role.REDUCE), opt, "only loops can be tiled")
    _require(r not in k.bound or r.arg[1] is Role.REDUCE, opt, "an ordered loop cannot be tiled")
    _require(not _feeds_unit(k, r), opt, "a matrix unit's reduction stays one loop")
    amount = _amount(k, opt, r)
    _require(_size(r) % amount == 0, opt, "a tile must divide the range")
    k.split(r, amount, r.arg[1])


def _feeds_unit(k: Kernel, r: UOp) -> bool:
    """Whether a range is reduced by the steps of a matrix unit: its tiles of sums live through one loop."""
    return any(f.src[0].op is Ops.MMA and r in f.src[1:] for f in k.folds)


def _thread(k: Kernel, opt: Opt) -> None:
    r = k.axis(opt)
    _require(r.arg[1] is Role.LOOP and r not in k.bound, opt, "one parallel loop can be split over threads")
    _require(not any(x.arg[1] in (Role.THREAD, Role.LOCAL, Role.GROUP) for x in k.order), opt,
             "the kernel is split over threads already")
    _require(k.ranges.index(r) == 0, opt, "it must be the outermost loop")
    _require(all(r in s.ranges for s in k.stores), opt, "every store must depend on it")
    k.change_role(r, Role.THREAD)


def _swap(k: Kernel, opt: Opt) -> None:
    a = k.axis(opt)
    b = k.axis(Opt(opt.op, opt.amt if isinstance(opt.amt, int) else None))
    _require(a.arg[1] == b.arg[1] and not a.arg[1].expanded, opt, "only loops of one kind change places")
    _require((a in k.bound) == (b in k.bound), opt, "only loops of one kind change places")
    i, j = k.order.index(a), k.order.index(b)
    k.order[i], k.order[j] = b, a


def _padto(k: Kernel, opt: Opt) -> None:
    r = k.axis(opt)
    _require(isinstance(opt.amt, int) and opt.amt > 1 and isinstance(_size(r), int), opt, "needs a multiple")
    _require(_is_parallel(k, r) or r.arg[1] is Role.REDUCE, opt, "only loops can be padded")
    assert isinstance(opt.amt, int)
    k.pad(r, opt.amt)


def _merge(k: Kernel, opt: Opt) -> None:
    a = k.axis(opt)
    b = k.axis(Opt(opt.op, opt.amt if isinstance(opt.amt, int) else None))
    _require(a is not b and _is_parallel(k, a) and _is_parallel(k, b), opt, "two parallel loops can be merged")
    _require(a.arg[0] not in k.full and b.arg[0] not in k.full, opt, "a partial range cannot be merged")
    _require(all((a in s.ranges) == (b in s.ranges) for s in k.stores), opt, "every store must have both or none")
    _require(a.arg[1] is b.arg[1], opt, "only loops of one kind can be merged")
    k.merge(a, b)


def _stage(k: Kernel, opt: Opt) -> None:
    values = k.stageable
    _require(opt.axis is not None and 0 <= opt.axis < len(values), opt, f"there are {len(values)} values to stage")
    assert opt.axis is not None
    kept = opt.amt if isinstance(opt.amt, tuple) else ()
    _require(all(0 <= i < len(k.ranges) for i in kept), opt, f"there are {len(k.ranges)} ranges")
    outside = [k.ranges[i] for i in kept]
    value = values[opt.axis]
    for product in k.products:
        for which, operand in enumerate(product.src[:2]):
            if value in toposort(operand):
                _stage_operand(k, opt, product, which, outside)
                return
    value = _widened(k, value) if value.op is Ops.LOAD else value
    lanes = [r for r in outside if r.arg[1] is Role.VECTOR and r in value.ranges]
    _require(not lanes, opt, "a stage has no copy per lane")
    threads = [r for r in outside if r.arg[1] in blocks.THREADS and r in value.ranges]
    _require(not threads, opt, "a stage is shared by the threads of a block")
    _require(opt.lanes != 1 and opt.lanes & (opt.lanes - 1) == 0, opt, "lanes come in powers of two")
    inside = [r for r in k.order if r in value.ranges and r not in outside]
    _require(bool(inside), opt, "nothing is left to stage over")
    _require(all(isinstance(_size(r), int) for r in inside), opt, "a stage has a fixed size")
    bound = frozenset(r for n in toposort(k.sink) if n.op is Ops.SCATTER_STORE
                      for r in ({n.src[4]} if n.src[4].arg[1] is Role.BLOCK else n.ranges | {n.src[4]}))
    _require(not bound & set(inside), opt, "an ordered scatter cannot be staged")
    _require(not k.running_lanes, opt, "a stage has no copy per lane")
    if not any(n.op is Ops.FOLD for n in toposort(value)):
        k.stage(value, outside, opt.lanes)
        return
    free = [r for r in inside if r.arg[1] is Role.VECTOR or (r.arg[1] is Role.REDUCE and r.arg[0] in k.full)]
    _require(not free, opt, "a computed tile has no lanes yet, and no partial reduction")
    k.stage_tile(value, outside, opt.lanes, opt.copies)


def _widened(k: Kernel, load: UOp) -> UOp:
    """A load of 16-bit floats that is only read as float32 is staged as float32: widened once, not at every use."""
    users = [n for n in toposort(k.sink) if load in n.src]
    wide = len(users) == 1 and users[0].op is Ops.CAST and users[0].dtype is dtypes.float32
    return users[0] if wide and load.dtype.is_float and load.dtype.itemsize == 2 else load


def _stage_operand(k: Kernel, opt: Opt, product: UOp, which: int, outside: list[UOp]) -> None:
    """An operand of a matrix unit is staged as a whole, in the order in which the unit wants its elements."""
    operand = product.src[which]
    _require(product.arg.fragment_c.whole, opt, f"the lanes of {product.arg.name} load their own elements")
    _require(all(n.op is not Ops.STAGE for n in toposort(operand)), opt, "the operand is staged already")
    inside = [r for r in k.order if r in operand.ranges and r not in outside and r.arg[1] is not Role.FRAGMENT]
    _require(all(isinstance(_size(r), int) and r.arg[0] not in k.full for r in inside), opt, "a stage has a fixed size")
    k.stage_operand(product, which, inside)


def _unit_of(k: Kernel, opt: Opt, fold: UOp, m: UOp, n: UOp) -> MatrixUnit:
    """The unit that the opt names, else the first that multiplies these types; multiply-adds where there is none."""
    everywhere = (*(u for u in k.units if u.emit == "muladd"), fma(fold.dtype, 0))
    for unit in (*(u for u in k.units if u.emit != "muladd"), *everywhere):
        wanted = opt.unit == unit.name or (not opt.unit and not unit.significand)
        if wanted and matrix.operands(fold, m, n, unit):
            return unit
    known = ", ".join(u.name for u in k.units) or "none"
    raise ArgumentError("Opt", f"{opt}: no matrix unit of that name multiplies this (the target has: {known})",
                        "the opt without a unit, which falls back on an outer product of multiply-adds")


def _matrix_unit(k: Kernel, opt: Opt) -> list[Opt]:
    """Pad the ranges of a sum of products to whole tiles, split them, and let a unit do the steps.

    The opt is noted with the unit's name, so that it means the same on another target.
    """
    r = k.axis(opt)
    amt = opt.amt if isinstance(opt.amt, tuple) else ()
    _require(len(amt) in (2, 4), opt, "the amount is (m, n) or (m, n, copies along m, copies along n)")
    m, n = (k.axis(Opt(opt.op, a)) for a in amt[:2])
    _require(m is not n and all(_is_parallel(k, x) and x.arg[1] in (Role.LOOP, Role.GLOBAL) for x in (m, n)), opt,
             "m and n are two parallel loops")
    _require(not any(x.arg[1] in blocks.THREADS for x in k.order), opt, "the block has other threads already")
    fixed = all(isinstance(_size(x), int) and x.arg[0] not in k.full for x in (m, n, r))
    _require(fixed, opt, "a range is partial or of symbolic size")
    fold = next((f for f in k.folds if r in f.src[1:] and matrix.factors(f)), None)
    if fold is None:
        raise _illegal(opt, "no sum of products runs over it")
    inside = toposort(fold)
    plain = not any(x.arg[1].expanded for x in fold.src[0].ranges) and all(x.op is not Ops.STAGE for x in inside)
    _require(plain, opt, "copies, lanes and stages come after it")
    alone = sum(x.op is Ops.FOLD for x in inside) == 1
    _require({m, n} <= fold.ranges and alone, opt, "it must be the one sum over m and n")
    unit = _unit_of(k, opt, fold, m, n)
    _require(not unit.fragment_c.whole or Role.GLOBAL not in (m.arg[1], n.arg[1]), opt, f"{unit.name} has no grid")
    mu, nu = amt[2:] or (1, 1)
    _require(mu > 0 and nu > 0 and mu * nu <= unit.accumulators, opt, f"{unit.name} holds {unit.accumulators} sums")
    if unit.emit == "muladd":
        return _outer_product(k, k.ranges.index(m), k.ranges.index(n), (mu, nu), unit.n)
    m, n, r = k.pad(m, unit.m * mu), k.pad(n, unit.n * nu), k.pad(r, unit.k)
    whole = unit.fragment_c.whole
    if not whole:  # copies and the unit's own ranges belong to the reader too
        m, n = _split_copies(k, m, mu, unit.m), _split_copies(k, n, nu, unit.n)
    else:
        _, m = k.split(m, unit.m * mu, Role.LOOP)
        _, n = k.split(n, unit.n * nu, Role.LOOP)
        for inner in (m, n):  # these read what the loops around them have computed
            k.order.remove(inner)
            k.order.append(inner)
    _, r = k.split(r, unit.k, Role.REDUCE)
    fold = next(f for f in k.folds if r in f.src[1:] and matrix.operands(f, m, n, unit))
    place = matrix.on_unit if whole else matrix.in_registers
    value, fresh = place(fold, m, n, r, unit, k.new_range)
    k.sink = simplify(k.sink.substitute({fold: value}))
    k.stage_only |= {f.arg[0] for f in fresh}
    k.order += fresh
    if r not in toposort(k.sink):
        k.order.remove(r)
    return [replace(opt, unit=unit.name)]


def _outer_product(k: Kernel, m: int, n: int, copies: tuple[int, int], lanes: int) -> list[Opt]:
    """What every machine can do: lanes along n, and copies of a vector's sums along m and n; as opts of their own."""
    trial = k.copied()
    for axis, multiple in ((m, copies[0]), (n, lanes * copies[1])):
        if multiple > 1 and _size(trial.ranges[axis]) % multiple:
            trial.apply(Opt(OptOps.PADTO, axis, multiple))
    for op, axis, amount in ((OptOps.VECTOR, n, lanes), (OptOps.UPCAST, n, copies[1]), (OptOps.UPCAST, m, copies[0])):
        if amount > 1:
            loops = len(trial.parallel)
            trial.apply(Opt(op, axis, amount))
            m -= axis == n and n < m and len(trial.parallel) < loops  # all of n's loop became lanes or copies
    vars(k).update(vars(trial))
    return []


def _split_copies(k: Kernel, r: UOp, copies: int, step: int) -> UOp:
    outer, inner = k.split(r, step, Role.FRAGMENT)
    if copies > 1 and outer.op is Ops.RANGE:
        k.split(outer, copies, Role.UPCAST)
    return inner


def _order(k: Kernel, opt: Opt) -> None:
    loops = [r for r in k.order if not r.arg[1].expanded]
    _require(isinstance(opt.amt, tuple) and sorted(opt.amt) == list(range(len(loops))), opt, "give every loop once")
    assert isinstance(opt.amt, tuple)
    wanted = [loops[i] for i in opt.amt]
    _require(all(r in k.ordered for r in wanted[len(wanted) - len(k.ordered) :]), opt, "running values stay innermost")
    k.order = wanted + [r for r in k.order if r.arg[1].expanded]


def _split_reduction(k: Kernel, opt: Opt) -> None:
    r = k.axis(opt)
    size = _size(r)
    _require(r.arg[1] is Role.REDUCE and isinstance(size, int), opt, "only a reduction of fixed size is split")
    _require(not _feeds_unit(k, r), opt, "a matrix unit's reduction stays one loop")
    divides = isinstance(opt.amt, int) and 1 < opt.amt < size and size % opt.amt == 0
    _require(divides, opt, f"the parts must divide {size}")
    assert isinstance(opt.amt, int)
    outer, inner = k.split(r, size // opt.amt, Role.REDUCE)
    while whole := next((f for f in k.folds if outer in f.src[1:] and inner in f.src[1:]), None):
        part = whole.replace(src=tuple(s for s in whole.src if s is not outer))
        k.sink = k.sink.substitute({whole: UOp(Ops.FOLD, None, (part, outer), whole.arg)})


_HANDLERS: dict[OptOps, Callable[[Kernel, Opt], list[Opt] | None]] = {
    OptOps.UPCAST: _upcast, OptOps.UNROLL: _unroll, OptOps.VECTOR: _vector, OptOps.TILE: _tile,
    OptOps.THREAD: _thread, OptOps.SWAP: _swap, OptOps.PADTO: _padto, OptOps.MERGE: _merge, OptOps.STAGE: _stage,
    OptOps.ORDER: _order, OptOps.SPLIT: _split_reduction, OptOps.HINT: ahead.hint, OptOps.LOCAL: blocks.local,
    OptOps.GROUP: blocks.group, OptOps.GROUPTOP: blocks.group, OptOps.NOLOCALS: blocks.no_locals,
    OptOps.TC: _matrix_unit, OptOps.ROTATE: ahead.rotate, OptOps.WALK: ahead.walk, OptOps.CARRY: carried.carry,
    OptOps.SKIP: hidden.skip, OptOps.ONLINE: online.online,
}
