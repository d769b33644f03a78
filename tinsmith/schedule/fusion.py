"""Fusion: start with everything inlined, and give a value memory of its own only for a reason.

The graph is walked from its outputs. Every node collects requests: the kernel that reads it and the index at which it
is read. One request means it can be computed where it is read. A value that several kernels read, or one kernel at
several places, is computed again where that is cheap, else staged. A reduction stays inside its reader's kernel if the
loops can be nested so that it is computed once: the sets of ranges that the kernel's reductions depend on form a chain.
"""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tinsmith.codegen.indexing import ZERO, Index, move
from tinsmith.codegen.roles import Role
from tinsmith.core.settings import settings
from tinsmith.ir import Ops, UOp
from tinsmith.ir.uop import toposort
from tinsmith.schedule.contraction import is_contraction

RECOMPUTE_COST = 48  # operations per element up to which a value is computed again instead of stored
PLACES_COST = 128  # operations per element spent on computing a value again at several places of one kernel
OPERAND_COST = 12  # the same for a value that a contraction reads many times over
ROW_PARALLELISM = 8  # rows that a multi-pass kernel needs before it may hold work worth several cores
SMALL_WORK = 1 << 14  # elements below which parallelism does not matter

SOURCES = (Ops.BUFFER, Ops.PARAM, Ops.CONST, Ops.VARIABLE, Ops.BIND, Ops.IOTA)
STAGED = (Ops.COPY, Ops.CONTIGUOUS, Ops.ASSIGN, Ops.SCATTER, Ops.SCAN, Ops.TALLY)

Ranges = frozenset[UOp]


@dataclass
class KernelGroup:
    """A kernel in the making: its root, and the range sets its reductions depend on."""

    root: UOp
    chain: list[Ranges] = field(default_factory=list)
    reduces: int = 0
    contraction: bool = False
    ranges: Ranges = frozenset()


@dataclass(frozen=True, eq=False)
class Request:
    """Kernel ``group`` reads a node at ``index``, inside the loops ``around`` (the reductions entered on the way)."""

    group: KernelGroup
    index: Index
    around: Ranges


@dataclass
class Fusion:
    """The decision for one graph: staged nodes in order of computation, each with its reason."""

    roots: list[UOp]
    reasons: dict[UOp, str] = field(default_factory=dict)
    heavy: dict[UOp, bool] = field(default_factory=dict)
    cost: dict[UOp, int] = field(default_factory=dict)
    light: dict[UOp, int] = field(default_factory=dict)
    requests: dict[UOp, list[Request]] = field(default_factory=dict)
    reduce_ranges: dict[tuple[UOp, Index], tuple[UOp, ...]] = field(default_factory=dict)
    count: int = 0

    def run(self) -> list[UOp]:
        order = toposort(self.roots)
        self.measure(order)
        for root in self.roots:
            self.stage(root, "output")
        for node in reversed(order):
            self.visit(node)
        return [n for n in order if n in self.reasons]

    def measure(self, order: list[UOp]) -> None:
        """heavy: a reduction lies below; cost: operations per element to compute it from stored values; light: the same
        from stored values and reductions."""
        for n in order:
            if n.op in SOURCES or n.op in STAGED:
                self.heavy[n], self.cost[n], self.light[n] = False, 0, 0
                continue
            self.heavy[n] = n.op is Ops.REDUCE or any(self.heavy[s] for s in n.src)
            own = n.op.cost if n.op.elementwise or n.op is Ops.GATHER else 0
            self.cost[n] = min(own + sum(self.cost[s] for s in n.src), 1 << 20)
            self.light[n] = min(own + sum(self.light[s] for s in n.src), 1 << 20)
            if n.op is Ops.REDUCE:
                self.cost[n], self.light[n] = 1 << 20, 0

    # *** decisions ***

    def stage(self, node: UOp, reason: str) -> None:
        self.reasons.setdefault(node, reason)

    def visit(self, node: UOp) -> None:
        if node.op in SOURCES:
            return
        if node.op in STAGED and (node in self.requests or node in self.reasons):
            self.stage(node, node.op.name.lower())
        requests = self.requests.get(node, [])
        if node in self.reasons:
            group = KernelGroup(node)
            index = tuple(self.new_range(s, Role.LOOP) for s in node.shape)
            group.ranges = frozenset(i for i in index if i.op is Ops.RANGE)
            self.propagate(node, Request(group, index, frozenset()))
            return
        if not requests:
            return
        reason = self.why_stage(node, requests)
        if reason:
            self.stage(node, reason)
            self.visit(node)
            return
        for request in requests:
            self.propagate(node, request)

    def why_stage(self, node: UOp, requests: list[Request]) -> str | None:
        """The reason to give ``node`` memory, or None to compute it where it is read."""
        if node.op.kind == "movement":
            return None
        groups = {id(r.group) for r in requests}
        if len(groups) > 1:
            if self.heavy[node]:
                return f"{len(groups)} kernels read a reduction's result"
            if self.cost[node] > RECOMPUTE_COST:
                return f"{len(groups)} kernels read it and computing it costs {self.cost[node]} operations"
        if node.op is Ops.REDUCE:
            return self.why_stage_reduce(node, requests)
        again = len(requests) - len(groups)
        if again * self.light[node] > PLACES_COST:
            return f"it is read at {len(requests)} places and computing it costs {self.light[node]} operations"
        return None

    def why_stage_reduce(self, node: UOp, requests: list[Request]) -> str | None:
        if len({r.index for r in requests}) > 1:
            return "one kernel reads the reduction at different places"
        return self.misfit(node, requests[0], _ranges(requests[0].index))

    def misfit(self, node: UOp, request: Request, depends: Ranges) -> str | None:
        """Why a reduction that depends on ``depends`` cannot be computed once inside the reader's kernel."""
        group = request.group
        outer = group.ranges
        if settings.NOOPT and (group.reduces or depends != outer):
            return "NOOPT=1 keeps reductions apart"
        if request.around & depends and not (outer | request.around) <= depends:
            return "it would be computed again for every element that the outer reduction reads"
        nested = bool(request.around) and (outer | request.around) <= depends
        if not nested and (group.contraction or (self.contracts(node) and (group.reduces or depends != outer))):
            return "a contraction's kernel holds nothing but its elementwise neighbours"
        if not nested and _count(depends) > _size(node) and self.contracts(node):
            return "a contraction is not computed where its result is only padding"
        for other in [*group.chain, outer]:
            if not (depends <= other or other <= depends):
                return "its loops do not nest with the kernel's other loops"
        if depends < outer and not self.parallel_enough(node, depends, outer):
            return "too few rows to keep all cores busy"
        return None

    def contracts(self, node: UOp) -> bool:
        """Whether the value is a sizeable sum of products whose factors are both read many times."""
        while node.op is not Ops.REDUCE and node.src:
            heavy = [s for s in node.src if self.heavy[s]]
            if len(heavy) != 1:
                return any(self.contracts(s) for s in heavy)
            node = heavy[0]
        return node.op is Ops.REDUCE and is_contraction(node) and _size(node.src[0]) > SMALL_WORK

    def parallel_enough(self, node: UOp, depends: Ranges, outer: Ranges) -> bool:
        work = max(_count(outer), _size(node.src[0]) if node.op is Ops.REDUCE else 0)
        return work <= SMALL_WORK or _count(depends) >= ROW_PARALLELISM

    # *** requests ***

    def request(self, node: UOp, request: Request) -> None:
        known = self.requests.setdefault(node, [])
        for r in known:
            if r.group is request.group and r.index == request.index and r.around == request.around:
                return
        known.append(request)

    def propagate(self, node: UOp, request: Request) -> None:
        """Pass a request on to the sources."""
        op, index = node.op, request.index
        if op.kind == "movement":
            self.through_movement(node, request)
        elif op is Ops.REDUCE:
            ranges = self.ranges_of(node, index)
            inner = list(index)
            for axis, r in zip(node.arg[1], ranges):
                inner[axis] = r
            request.group.chain.append(_ranges(index))
            request.group.reduces += 1
            request.group.contraction |= self.contracts(node)
            own = frozenset(r for r in ranges if r.op is Ops.RANGE)
            self.request(node.src[0], Request(request.group, tuple(inner), request.around | own))
        elif op is Ops.GATHER:
            source = node.src[0]
            if source.base.op not in SOURCES:
                self.stage(source.base if source.base in self.heavy else source, "gathered from")
                self.requests.setdefault(source, []).append(request)
            self.request(node.src[1], request)
        elif op in (Ops.SCATTER, Ops.SCAN, Ops.TALLY):
            self.in_order(node)
        elif op in (Ops.COPY, Ops.ASSIGN):
            self.memory(node, request)
        else:
            for s in node.src:
                self.request(s, request)

    def memory(self, node: UOp, request: Request) -> None:
        if node.op is Ops.COPY:
            source = node.src[0]
            if source.op is not Ops.BUFFER:
                self.stage(source, "copied to another device")
            return
        self.request(node.src[1], request)

    def in_order(self, node: UOp) -> None:
        """The kernel of a scatter, scan or tally has loops for each of its sources: requests with indices of their
        own, and no reduction inside."""
        group = KernelGroup(node)
        for s in node.src:
            index = tuple(self.new_range(n, Role.LOOP) for n in s.shape)
            if self.heavy[s]:
                self.stage(s, f"read by a {node.op.name} in order")
                self.requests.setdefault(s, [])
            else:
                self.request(s, Request(group, index, frozenset()))

    def through_movement(self, node: UOp, request: Request) -> None:
        source = node.src[0]
        index, _ = move(node, request.index)
        inner = Request(request.group, index, request.around)
        if node.op is Ops.EXPAND and source.base.op not in SOURCES and source.base.op not in STAGED:
            reason = self.why_stage_expanded(source, inner)
            if reason:
                self.stage_below(source, inner, reason)
                return
        self.request(source, inner)

    def stage_below(self, source: UOp, request: Request, reason: str) -> None:
        """Give the value below a view its memory, so that all views share it; a small part of it gets its own."""
        node = source if _size(source.base) > 2 * _size(source) else source.base
        self.stage(node, reason)
        if node is not source:
            self.request(source, request)

    def why_stage_expanded(self, source: UOp, request: Request) -> str | None:
        """A value read many times over: recomputing it must be cheap, or its loops must come outside."""
        depends = _ranges(request.index)
        if self.heavy[source]:
            return self.misfit(source, request, depends)
        if request.around and self.cost[source] > OPERAND_COST and not depends <= request.group.ranges:
            return f"a reduction reads it many times and computing it costs {self.cost[source]} operations"
        return None

    def ranges_of(self, node: UOp, index: Index) -> tuple[UOp, ...]:
        key = (node, index)
        if key not in self.reduce_ranges:
            self.reduce_ranges[key] = tuple(self.new_range(node.src[0].shape[a], Role.REDUCE) for a in node.arg[1])
        return self.reduce_ranges[key]

    def new_range(self, size: Any, role: Role) -> UOp:
        if type(size) is int and size == 1:
            return ZERO
        self.count += 1
        return UOp.range(size, self.count - 1, role)


def _ranges(index: Index) -> Ranges:
    return frozenset().union(*(i.ranges for i in index))


def _count(ranges: Ranges) -> int:
    total = 1
    for r in ranges:
        total *= r.vmax + 1
    return total


def _size(node: UOp) -> int:
    total = 1
    for s in node.shape:
        total *= s.vmax if isinstance(s, UOp) else s
    return total
