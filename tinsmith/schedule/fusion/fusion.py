"""Kernel fusion: inline every value, and store it only for a recorded reason. A stored value is called *staged* here.

The graph is walked from its outputs. Every node collects read requests: the kernel that reads it, and its index
expression and enclosing loops there (``KernelInput``). A value with one request is computed where it is read. A value
that several kernels read, or one kernel at several indices, is recomputed if that is cheap, else staged. A reduction is
fused into the kernel of its reader if the loops can be nested so that it is computed once: the sets of ranges that the
kernel's reductions depend on must form a chain.

A contraction can fuse with an operand that is a function of another contraction (a stream, back-to-back GEMM as in
attention): a block of the operand's rows is computed over the full reduced axis, inside the loop that consumes it, with
the statistics of these rows. Any other computed operand is stored, unless it is cheap. A row-by-column value (the
scores) is recomputed tile by tile in every kernel that can; the statistics of its rows are stored if several kernels
read them.
"""
from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

from tinsmith.codegen.lower.indexing import ZERO, Index, move
from tinsmith.core.dtypes import dtypes
from tinsmith.core.settings import settings
from tinsmith.ir import Ops, UOp
from tinsmith.ir.algebra.sizes import linear_form
from tinsmith.ir.graphs import cipher_nodes
from tinsmith.ir.ops.op import is_product
from tinsmith.ir.structure import Role, contraction, count_of, unrepeated_size
from tinsmith.ir.uop import toposort
from tinsmith.schedule.fusion.fan_in import (
    MOST_CONE,
    below_reshapes,
    cone_of,
    has_own_statistics,
    is_chain,
    is_computed_in_rows,
    narrower,
    reductions_of,
)
from tinsmith.schedule.values import SOURCES, STAGED, size_of
from tinsmith.target.schedule_costs import Costs

Ranges = frozenset[UOp]


@dataclass
class KernelGroup:
    """A kernel under construction.

    Attributes:
        root: the value it stores.
        chain: for each reduction, the set of ranges it depends on.
        reduces: number of reductions.
        contraction: True if it contains a large contraction.
        ranges: its parallel ranges.
        stream: contractions of computed operands that it fuses.
        tiles: row-by-column values it computes, each with its axes (True: parallel, False: reduced).
        work: operations per element, and views, that it holds so far.
    """

    root: UOp
    chain: list[Ranges] = field(default_factory=list)
    reduces: int = 0
    contraction: bool = False
    ranges: Ranges = frozenset()
    stream: frozenset[UOp] = frozenset()
    walk: UOp | None = None  # the contraction whose tiles it walks over
    tiles: set[tuple[UOp, tuple[bool, ...]]] = field(default_factory=set)
    work: int = 0


@dataclass(frozen=True, eq=False)
class KernelInput:
    """A read of a node by kernel ``group`` at ``index``, inside the reduction loops ``around``.

    ``rows``: inside a stream, the parallel ranges of its rows, else None.
    """

    group: KernelGroup
    index: Index
    around: Ranges
    rows: Ranges | None = None

    @property
    def outer(self) -> Ranges:
        """The parallel ranges that enclose the read."""
        return self.group.ranges if self.rows is None else self.rows

    @property
    def in_tile(self) -> bool:
        """Return True if the value is indexed by both row ranges and reduced ranges, each axis by
        one range: a value of a tile."""
        plain = all(i.op is Ops.RANGE or i.is_const for i in self.index)
        return plain and bool(self.around) and bool(self.outer) and (self.outer | self.around) <= ranges_in(self.index)

    @property
    def position(self) -> tuple[bool, ...]:
        """Return, for each axis of the index, True if it is parallel."""
        return tuple(i.ranges <= self.outer for i in self.index)


def ranges_in(index: Index) -> Ranges:
    return frozenset().union(*(i.ranges for i in index))


def _is_fixed(node: UOp) -> bool:
    """Return True if no size is symbolic: a computed operand needs tiles of fixed size, else it would be recomputed for
    every column."""
    return not any(isinstance(s, UOp) for s in node.shape)


def _factors(reduction: UOp) -> tuple[UOp, ...]:
    return reduction.src[0].src if reduction.src[0].op is Ops.MUL else ()


def is_block(node: UOp, request: KernelInput) -> bool:
    """Return True if rows and columns of a product are both kept by the enclosing reduction over other axes, or are
    both reduced in windows (as by a pool)."""
    body = node.src[0]
    if body.op is not Ops.MUL:
        return False
    kept = {n for n, stays in enumerate(request.position) if stays}
    pooled = {n for n, i in enumerate(request.index) if i.ranges & request.around and i.ranges & request.outer}
    own = [{n for n, s in enumerate(node.shape) if f.op is Ops.EXPAND and f.shape[n] != 1 and f.src[0].shape[n] == 1}
           for f in body.src]
    return any(bool(axes & own[0] - own[1]) and bool(axes & own[1] - own[0]) for axes in (kept, pooled))


# operations and views of one kernel before it is cut: compile time grows faster than linearly with them
MOST_WORK = 768


@dataclass
class Fusion:
    """The fusion decision for one graph: the staged nodes in order of computation, each with its reason.

    Attributes:
        costs: thresholds of the decisions.
        bare: contractions that are stored without their epilogue, since storing several
            epilogues would take more memory.
        functions: contraction → its epilogues that would be staged (candidates for ``bare``).
        reasons: staged node → the reason.
        heavy, cost, light, depth, scores, grows, windowed, joins, products, contracts: see ``measure``.
        factors: contraction → its computed operand, or None.
        groups: staged node → its kernel.
        reduce_ranges: (reduction, index) → the ranges it is reduced over at this index.
        cipher: nodes of random number generation (Threefry).
        count: number of ranges created.
    """

    roots: list[UOp]
    costs: Costs = field(default_factory=Costs)
    bare: frozenset[UOp] = frozenset()
    functions: dict[UOp, list[UOp]] = field(default_factory=dict)
    reasons: dict[UOp, str] = field(default_factory=dict)
    heavy: dict[UOp, bool] = field(default_factory=dict)
    cost: dict[UOp, int] = field(default_factory=dict)
    light: dict[UOp, int] = field(default_factory=dict)
    depth: dict[UOp, int] = field(default_factory=dict)
    scores: dict[UOp, bool] = field(default_factory=dict)
    grows: dict[UOp, bool] = field(default_factory=dict)
    windowed: dict[UOp, bool] = field(default_factory=dict)
    joins: dict[UOp, int] = field(default_factory=dict)
    products: dict[UOp, bool] = field(default_factory=dict)
    contracts: dict[UOp, bool] = field(default_factory=dict)
    factors: dict[UOp, UOp | None] = field(default_factory=dict)
    groups: dict[UOp, KernelGroup] = field(default_factory=dict)
    # node → its read requests, by kernel, index and enclosing reductions
    requests: dict[UOp, dict[Any, KernelInput]] = field(default_factory=dict)
    reduce_ranges: dict[tuple[UOp, Index], tuple[UOp, ...]] = field(default_factory=dict)
    cipher: set[UOp] = field(default_factory=set)
    count: int = 0

    def run(self) -> list[UOp]:
        order = toposort(self.roots)
        self.cipher = cipher_nodes(order)
        self.measure(order)
        for root in self.roots:
            self.stage(root, "output")
        for node in reversed(order):
            self.visit(node)
        return [n for n in order if n in self.reasons]

    def measure(self, order: list[UOp]) -> None:
        """Fill the tables of facts about each node:

        - heavy: it depends on a reduction;
        - cost: operations per element to compute it from stored values;
        - light: operations per element to compute it from stored values and reductions;
        - depth: products summed per element by the contraction that it is an elementwise function of; 0 if that has an
          operand with statistics of its own, which is stored or computed in rows;
        - grows: that contraction's result is at least as large as its operands;
        - scores: it is, or depends on, a row-by-column value of small depth;
        - windowed: it depends on a window or a padding;
        - joins: gathers, and concatenations of padded parts, to compute it from stored values and reductions;
        - products: it is, or depends on, a sum of products of two broadcast factors;
        - contracts: it is, or depends on, such a sum that is large.
        """
        for n in order:
            self.windowed[n] = n.op in (Ops.WINDOW, Ops.UNWINDOW, Ops.PAD) or any(self.windowed[s] for s in n.src)
            below = () if n.op in SOURCES or n.op in STAGED else n.src
            self.scores[n] = any(self.scores[s] or 0 < self.depth[s] <= self.costs.stream_depth for s in below)
            if n.op is Ops.REDUCE:
                self.measure_reduce(n)
                continue
            own = n.op.cost if n.op.elementwise or n.op is Ops.GATHER else 0
            joins = n.op is Ops.GATHER or (n.op.elementwise and _joins(n))
            self.joins[n] = min(joins + sum(self.joins[s] for s in below), 1 << 20)
            self.cost[n] = min(own + sum(self.cost[s] for s in below), 1 << 20)
            self.light[n] = min(own + sum(self.light[s] for s in below), 1 << 20)
            self.depth[n] = max((self.depth[s] for s in below), default=0)
            for table in (self.heavy, self.grows, self.products, self.contracts):
                table[n] = any(table[s] for s in below)

    def measure_reduce(self, n: UOp) -> None:
        """Fill the same tables for a reduction."""
        found = contraction(n)
        self.heavy[n], self.cost[n], self.light[n], self.joins[n] = True, 1 << 20, 0, 0
        self.products[n] = found is not None
        self.contracts[n] = found is not None and size_of(n.src[0]) > self.costs.small_work
        self.depth[n], self.grows[n] = 0, False
        if found is not None and self.factor(n) is None and not any(
                self.heavy[s] and not self.depth[s] and has_own_statistics(s) for s in _factors(n)):
            self.depth[n] = 1 << 20 if self.windowed[n] else size_of(n.src[0]) // max(size_of(n), 1)
            self.grows[n] = size_of(n) >= unrepeated_size(found.a) + unrepeated_size(found.b)

    # *** decisions ***

    def stage(self, node: UOp, reason: str) -> None:
        self.reasons.setdefault(node, reason)

    def visit(self, node: UOp) -> None:
        if node.op in SOURCES:
            return
        if node.op in STAGED and (node in self.requests or node in self.reasons):
            self.stage(node, node.op.name.lower())
        requests = list(self.requests.get(node, {}).values())
        if node in self.reasons:
            group = self.groups[node] = KernelGroup(node)
            index = tuple(self.new_range(s, Role.LOOP) for s in node.shape)
            group.ranges = frozenset(i for i in index if i.op is Ops.RANGE)
            group.stream = self.stream_contractions(node)
            self.propagate(node, KernelInput(group, index, frozenset()))
            return
        if not requests:
            return
        reason = self.why_stage(node, requests)
        if reason and (narrow := narrower(node)) is not None:
            self.stage(narrow, reason)
        elif reason:
            self.stage(node, reason)
            self.visit(node)
            return
        for request in requests:
            self.propagate(node, request)

    def why_stage(self, node: UOp, requests: list[KernelInput]) -> str | None:
        """Return the reason to give ``node`` memory, or None to compute it where it is read."""
        # both words of a Threefry block come out of the same rounds
        if node.op.kind == "movement" or node in self.cipher:
            return None
        if node.dtype is dtypes.index:  # of sizes: an argument of the kernel, and what is computed of it
            return None
        if self.cost[node] > self.costs.recompute and any(r.group.work > MOST_WORK for r in requests):
            return f"the kernel that reads it already holds more than {MOST_WORK} operations"
        groups = {id(r.group) for r in requests}
        if len(groups) > 1 and not is_product(node) and not (self.heavy[node] and self.tiled(node, requests)):
            operand = any(r.around and r.group.contraction for r in requests)
            if self.heavy[node] and (operand or not self.light_on_statistics(node)):
                below = None if operand or settings.NOOPT else self.contraction_below(node)
                if below is None or below not in self.bare:
                    if below is not None:
                        self.functions.setdefault(below, []).append(node)
                    return f"{len(groups)} kernels read this reduction's result"
            if not self.heavy[node] and (len(groups) - 1) * self.cost[node] > self.costs.recompute:
                return (f"{len(groups)} kernels read it, and recomputing it costs {self.cost[node]} operations "
                        "per element")
        if node.op is Ops.REDUCE:
            return self.why_stage_reduce(node, requests)
        work = self.light[node] + self.costs.join * self.joins[node]
        if (again := self.window_reads(node, requests) - 1) * work > self.costs.recompute:
            return f"windows read each element {again + 1:.1f} times, and recomputing it costs {work} operations"
        passes = sum(bool(r.around) for r in requests)
        if (passes - 1) * self.costs.join * self.joins[node] > self.costs.recompute:
            return f"{passes} reductions read it, and it is gathered or assembled from parts"
        again = len(requests) - len(groups)
        if again * self.light[node] > self.costs.places:
            return (f"it is read at {len(requests)} indices, and recomputing it costs {self.light[node]} operations "
                    "per element")
        return None

    def window_reads(self, node: UOp, requests: list[KernelInput]) -> float:
        """Return how often overlapping windows of a kernel other than a contraction read an element of ``node``, on
        average."""
        if is_product(node) or any(r.group.contraction for r in requests):
            return 1.0
        return max((math.prod(map(_overlap, r.index, node.shape)) for r in requests if r.around), default=1.0)

    def contraction_below(self, node: UOp) -> UOp | None:
        """Return the only contraction of which ``node`` is a cheap elementwise function of the
        same size (an epilogue), or None."""
        if node.op is Ops.REDUCE or self.light[node] > self.costs.recompute:
            return None
        reduces = reductions_of(cone_of(node, STAGED))
        if len(reduces) != 1:
            return None
        (below,) = reduces
        return below if contraction(below) and size_of(below) == size_of(node) else None

    def light_on_statistics(self, node: UOp) -> bool:
        """Return True if a value is cheap to recompute from much smaller reductions and from values that are in memory
        anyway.

        Values in memory anyway are the stored ones, and those that the same reductions read.
        """
        if node.op is Ops.REDUCE or settings.NOOPT:
            return False
        cone = cone_of(node, STAGED)
        work = sum(n.op.cost * size_of(n) for n in cone if n.op.elementwise)
        if len(cone) > MOST_CONE or work > self.costs.light * size_of(node):
            return False
        reduces = reductions_of(cone)
        shared = {r for r in reduces if 4 * size_of(r) <= size_of(node)}
        front, looked = set(shared), 0
        while front and not reduces <= shared and looked <= MOST_CONE:
            cones = [cone_of(r.src[0]) for r in front]
            front = {s for c in cones for s in reductions_of(c)} - shared
            shared |= front
            looked += sum(map(len, cones))
        return bool(shared) and reduces <= shared

    def why_stage_reduce(self, node: UOp, requests: list[KernelInput]) -> str | None:
        if len({r.index for r in requests}) > 1 and not self.tiled(node, requests):
            return "one kernel reads the reduction at different indices"
        return next(filter(None, (self.misfit(node, r, ranges_in(r.index)) for r in requests)), None)

    # *** streams ***

    def stream_contractions(self, root: UOp) -> frozenset[UOp]:
        """Return the contractions with a computed operand that are fused into the kernel of ``root``: at most one.

        The kernel iterates over the tiles of that contraction and computes the operand tile by tile.
        """
        allowed = self.costs.streams or self.costs.chain_bytes
        if settings.NOOPT or not allowed or not any(self.contracts[s] for s in (root, *root.src)):
            return frozenset()
        near = reductions_of((root,) if root.op is Ops.REDUCE else cone_of(root, STAGED))
        found = [s for s in near if self.contracts[s] and self.factor(s) is not None and _is_fixed(s.src[0])]
        if not self.costs.streams:
            found = [s for s in found if is_chain(s, self.factor(s), self.contracts, self.costs)]
        return frozenset(sorted(found, key=list(self.depth).index)[:1] if len(found) > 1 else found)

    def factor(self, contraction: UOp) -> UOp | None:
        """Return the operand of a contraction that is computed in blocks of rows next to it: a function of another
        contraction, larger than what that reads; None without one.

        Any other operand is stored: a product with packed panels takes less time than the memory traffic saved. A norm
        or softmax along the rows, then a product of 512×768×3072: 34 ms stored, 103 to 162 computed in rows (AVX2).
        """
        if contraction not in self.factors:
            found = [s for s in _factors(contraction) if 0 < self.depth[s] <= self.costs.stream_depth]
            fits = len(found) == 1 and self.grows[found[0]] and (not _is_fixed(contraction.src[0]) or (
                is_computed_in_rows(contraction, found[0], lambda r: self.depth[r] > 0)))
            self.factors[contraction] = found[0] if fits else None
        return self.factors[contraction]

    def stream_rows(self, node: UOp, request: KernelInput) -> Ranges | None:
        """Return the row ranges for which a repeated value is computed block by block inside its
        reader; None if it cannot be."""
        group, depends = request.group, ranges_in(request.index)
        if not group.stream or request.rows is not None or self.depth[node] > self.costs.stream_depth:
            return None
        if not request.around:  # a statistic of the rows
            return depends if depends < group.ranges and self.parallel_enough(node, depends, group.ranges) else None
        rows = depends & group.ranges
        columns = group.ranges - depends
        fits = replace(request, rows=rows).in_tile and columns and depends == rows | request.around
        return rows if fits and count_of(rows) >= self.costs.rows else None

    def tiled(self, node: UOp, requests: list[KernelInput]) -> bool:
        """Return True if a row-by-column value is recomputed tile by tile in each of its readers."""
        here = self.costs.streams or all(r.group.stream for r in requests)
        if settings.NOOPT or not here or not self.contracts[node]:
            return False
        if not 0 < self.depth[node] <= self.costs.stream_depth:
            return False
        if not self.grows[node] and len({id(r.group) for r in requests}) > 1:
            return False
        positions: dict[int, tuple[bool, ...]] = {}
        for r in requests:
            if not r.in_tile or count_of(r.outer) < self.costs.rows:
                return False
            if positions.setdefault(id(r.group), r.position) != r.position:
                return False
        return True

    def misfit(self, node: UOp, request: KernelInput, depends: Ranges) -> str | None:
        """Return why a reduction that depends on ``depends`` cannot be computed once inside its
        reader's kernel; None if it can."""
        group, outer = request.group, request.outer
        if settings.NOOPT and (group.reduces or depends != outer):
            return "NOOPT=1 disables fusion of reductions"
        if request.around & depends and not (outer | request.around) <= depends:
            return "fusion would recompute it for every element that the outer reduction reads"
        nested = bool(request.around) and (outer | request.around) <= depends
        if nested and count_of(depends) >= 2 * size_of(node) and count_of(depends) > self.costs.small_work:
            return "fusion would recompute it for every window that reads it"
        if nested and node.op is Ops.REDUCE and self.contracts[node]:
            if not self.depth[node]:
                return "a matmul with a computed operand needs a kernel of its own"
            if self.depth[node] > self.costs.stream_depth:
                return "a matmul with a long reduction is tiled, not computed per element inside another reduction"
            if request.rows is None and is_block(node, request):
                return "the outer reduction keeps the rows and columns of this matmul, so it is tiled in its own kernel"
        if request.rows is not None:
            if node.op is Ops.REDUCE and contraction(node) and self.factor(node) is not None:
                return "a matmul with a computed operand needs a kernel of its own"
            return None if nested or depends <= outer else "its loops do not nest with the row loops"
        if not nested and count_of(depends) > size_of(node) and (
                self.contracts[node]
                or count_of(depends) * size_of(node.src[0]) > size_of(node) * self.costs.small_work):
            return "fusion would compute the reduction for padding, too"
        if node in group.stream and depends == outer and group.walk in (None, node):
            return None
        if not nested and (group.contraction or (self.contracts[node] and (group.reduces or depends != outer))):
            return "a matmul fuses only with a pointwise prologue and epilogue"
        if not nested and depends < outer and self.products[node] and count_of(outer) > self.costs.small_work:
            return "fusion would recompute the matmul in loops that it does not depend on"
        for other in [*group.chain, outer]:
            if not (depends <= other or other <= depends):
                return "its loops do not nest with the kernel's other loops"
        if depends < outer and not self.parallel_enough(node, depends, outer):
            return "too few rows to occupy all cores"
        return None

    def parallel_enough(self, node: UOp, depends: Ranges, outer: Ranges) -> bool:
        work = max(count_of(outer), size_of(node.src[0]) if node.op is Ops.REDUCE else 0)
        rows = self.costs.rows_apart if _lie_between(depends, outer) else self.costs.rows
        return work <= self.costs.small_work or count_of(depends) >= rows

    def lacks_rows(self, node: UOp, request: KernelInput) -> bool:
        """Return True if a reduction has too few results to run in parallel, but its input has enough rows.

        The input is then staged, since it contains reductions of many rows that can run in parallel.
        """
        value = below_reshapes(node.src[0])
        if settings.NOOPT or not self.heavy[value] or value.op.kind == "movement":
            return False
        if count_of(request.outer) >= self.costs.rows:
            return False
        read = max((size_of(r.src[0]) for r in reductions_of(cone_of(value))), default=0)
        return self.costs.rows <= size_of(value) <= read // 4 and read > self.costs.small_work

    # *** requests ***

    def request(self, node: UOp, request: KernelInput) -> None:
        if node.op not in SOURCES:
            key = id(request.group), request.index, request.around
            self.requests.setdefault(node, {}).setdefault(key, request)

    def propagate(self, node: UOp, request: KernelInput) -> None:
        """Pass a read request on to the sources of ``node``."""
        op, index = node.op, request.index
        request.group.work += max(op.cost, 1)
        if op.kind == "movement":
            self.through_movement(node, request)
        elif op is Ops.REDUCE:
            ranges = self.ranges_of(node, index)
            inner = list(index)
            for axis, r in zip(node.arg[1], ranges):
                inner[axis] = r
            request.group.chain.append(ranges_in(index))
            request.group.reduces += 1
            request.group.contraction |= self.contracts[node]
            if not request.around and request.rows is None and contraction(node) is not None:
                request.group.walk = node
            own = frozenset(r for r in ranges if r.op is Ops.RANGE)
            if request.in_tile and self.tiled(node, [request]):
                request.group.tiles.add((node, request.position))
            if self.lacks_rows(node, request):
                self.stage(below_reshapes(node.src[0]), "the outer reduction has too few results to occupy all cores")
            self.request(node.src[0], replace(request, index=tuple(inner), around=request.around | own))
        elif op is Ops.GATHER:
            source = node.src[0]
            if source.base.op not in SOURCES:
                self.stage(source.base if source.base in self.heavy else source, "it is the source of a gather")
                self.request(source, request)
            self.request(node.src[1], request)
        elif op in (Ops.SCATTER, Ops.SCAN, Ops.HISTOGRAM):
            self.in_order(node)
        elif op is Ops.COPY:
            if node.src[0].op is not Ops.BUFFER:
                self.stage(node.src[0], "it is copied to another device")
        elif op is Ops.HOST:
            for s in node.src:
                if s.op is not Ops.BUFFER:
                    self.stage(s, f"the host function {node.arg[0]} reads it")
        elif op is Ops.ASSIGN:
            self.request(node.src[1], request)
        else:
            for s in node.src:
                self.request(s, request)

    def in_order(self, node: UOp) -> None:
        """Start the kernel of a SCATTER, SCAN or HISTOGRAM: each source is computed in separate loops, and reductions
        are staged."""
        group = KernelGroup(node)
        for s in node.src:
            index = tuple(self.new_range(n, Role.LOOP) for n in s.shape)
            if self.heavy[s] and not (node.op is Ops.SCATTER and node.arg[1] is Ops.ASSIGN):
                self.stage(s, f"a sequential {node.op.name} reads it")
                self.requests.setdefault(s, {})
            else:
                self.request(s, KernelInput(group, index, frozenset()))

    def through_movement(self, node: UOp, request: KernelInput) -> None:
        source = node.src[0]
        index, _ = move(node, request.index)
        inner = replace(request, index=index)
        repeated = node.op is Ops.EXPAND and request.group.contraction and self.read_many_times(inner)
        if repeated and (seam := _seam(source, index)) is not None:
            self.stage(seam, "a matmul reads it repeatedly, with a non-strided index")
        if node.op is Ops.EXPAND and source.base.op not in SOURCES and source.base.op not in STAGED:
            rows = self.stream_rows(source, inner) if self.heavy[source] else None
            read = ranges_in(index)
            if rows is not None or (request.rows is not None and self.heavy[source] and read <= request.rows):
                around = request.around & read
                return self.request(source, replace(inner, around=around, rows=request.rows if rows is None else rows))
            reason = self.why_stage_expanded(source, inner)
            if reason:
                self.stage_below(source, inner, reason)
                return
            if self.scores[source] and not request.around & ranges_in(index):
                inner = replace(inner, around=frozenset())  # computed once per row, before the reduction
        self.request(source, inner)

    def stage_below(self, source: UOp, request: KernelInput, reason: str) -> None:
        """Stage the value below a view, so that all views share it; a view of less than half its
        elements is staged itself."""
        node = source if size_of(source.base) > 2 * size_of(source) else source.base
        node = narrower(node) or node
        self.stage(node, reason)
        if node is not source:
            self.request(source, request)

    def why_stage_expanded(self, source: UOp, request: KernelInput) -> str | None:
        """Return the reason to stage a broadcast value; None if recomputing it is cheap, or if its loops are outer
        loops."""
        depends = ranges_in(request.index)
        if self.heavy[source]:
            return self.misfit(source, request, depends)
        if self.read_many_times(request):
            if self.cost[source] > self.costs.operand:
                return (f"a reduction reads it repeatedly, and recomputing it costs {self.cost[source]} operations "
                        "per element")
            if request.group.contraction and self.joins[source]:
                return "a matmul reads it repeatedly, and it is gathered or assembled from parts"
        return None

    def read_many_times(self, request: KernelInput) -> bool:
        """Return True if a value repeated inside a reduction depends on the reduced ranges."""
        return bool(request.around) and not ranges_in(request.index) <= request.group.ranges

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


def _lie_between(rows: Ranges, outer: Ranges) -> bool:
    """Return True if other ranges of the value that a kernel stores lie on both sides of ``rows``, as images and pixels
    around channels: the elements of a row are not contiguous."""
    inside = [r in rows for r in sorted(outer, key=lambda r: r.arg[0])]
    return any(inside) and not inside[0] and not inside[-1]


def _overlap(index: UOp, size: Any) -> float:
    """Return how often windows with this index read an element of an axis of ``size``: position · stride + offset."""
    terms, _ = linear_form(index)
    if type(size) is not int or len(terms) != 2 or not all(r.op is Ops.RANGE for r in terms):
        return 1.0
    return max(count_of(index.ranges) / max(size, 1), 1.0)


def _joins(node: UOp) -> bool:
    """Return True if an elementwise op has several non-constant sources, one of which is padded (a concatenation)."""
    values = [s for s in node.src if s.base.op is not Ops.CONST]
    return len(values) > 1 and any(map(_is_padded, values))


def _is_padded(value: UOp) -> bool:
    while value.op.kind == "movement":
        if value.op is Ops.PAD:
            return True
        value = value.src[0]
    return False


def _seam(value: UOp, index: Index) -> UOp | None:
    """Return the view to stage so that reads are strided: the views below it have indices with quotients of sums of
    ranges.

    The quotient of a single range needs no stage, because its loop can be split there. None if there is no such view.
    """
    while value.op.kind == "movement" and value.op is not Ops.UNWINDOW:
        below = move(value, index)[0]
        if any(len(n.src[0].ranges) > 1 for i in below for n in toposort([i]) if n.op in (Ops.IDIV, Ops.MOD)):
            return value
        value, index = value.src[0], below
    return None


def fused(roots: list[UOp], costs: Costs) -> tuple[Fusion, list[UOp]]:
    """Decide what the kernels of a graph fuse: return the ``Fusion`` record and the staged nodes, sources first.

    A staged node is stored; ``Fusion.reasons`` says why. All other nodes are computed inside their readers' kernels.
    If several functions of one contraction would be stored, the decision is repeated with the contraction stored.
    """
    fusion = Fusion(roots, costs)
    staged = fusion.run()
    bare = frozenset(below for below, values in fusion.functions.items() if len(values) > 1)
    if bare:
        fusion = Fusion(roots, costs, bare)
        staged = fusion.run()
    return fusion, staged
