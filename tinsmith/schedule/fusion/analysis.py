"""Facts and queries that fusion rules use: kernels under construction, their reads, and the analysis of one graph.

``Analysis`` measures a graph once: one ``Facts`` record per value. Its methods answer the questions about contractions
with computed operands: a *stream* is a contraction that is fused with an operand which is a function of another
contraction (back-to-back GEMM, as in attention), a *chain* is a stream in the registers of a matrix unit.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tinsmith.codegen.lower.indexing import Index
from tinsmith.core.settings import settings
from tinsmith.ir import Ops, UOp
from tinsmith.ir.graphs import cipher_nodes
from tinsmith.ir.structure import contraction, count_of, unrepeated_size
from tinsmith.ir.uop import toposort
from tinsmith.schedule.fusion.fan_in import (
    MOST_CONE,
    cone_of,
    has_maximum,
    has_own_statistics,
    inner_products,
    is_chain,
    is_computed_in_rows,
    is_view,
    reductions_of,
)
from tinsmith.schedule.values import SOURCES, STAGED, size_of, views_of
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
        statistic: it stores a row statistic of tiles that a chain computes, and is merged with that chain
            (``fuse_horizontally``).
        tiles: row-by-column values it computes, each with its axes (True: parallel, False: reduced).
        work: operations per element, and views, that it holds so far.
    """

    root: UOp
    chain: list[Ranges] = field(default_factory=list)
    reduces: int = 0
    contraction: bool = False
    ranges: Ranges = frozenset()
    stream: frozenset[UOp] = frozenset()
    statistic: bool = False
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


UNBOUNDED = 1 << 20  # a count of operations or products that no threshold allows


@dataclass(slots=True)
class Facts:
    """The facts about a value; a view that changes none shares the record of its source.

    Attributes:
        heavy: it depends on a reduction.
        cost: operations per element to compute it from stored values.
        light: operations per element to compute it from stored values and reductions.
        depth: products summed per element by the contraction that it is an elementwise function of; 0 if that has an
            operand with statistics of its own, which is stored or computed in rows.
        grows: that contraction's result is at least as large as its operands.
        scores: it is, or depends on, a row-by-column value of small depth.
        windowed: it depends on a window or a padding.
        joins: gathers, and concatenations of padded parts, to compute it from stored values and reductions.
        edges: paddings that are no part of a concatenation, and repetitions along the last axis, likewise.
        product: it is, or depends on, a sum of products of two broadcast factors.
        matmul: it is, or depends on, such a sum that is large.
    """

    heavy: bool = False
    cost: int = 0
    light: int = 0
    depth: int = 0
    grows: bool = False
    scores: bool = False
    windowed: bool = False
    joins: int = 0
    edges: int = 0
    product: bool = False
    matmul: bool = False


_SOURCE = Facts()


def _readers_and_operands(order: Sequence[UOp]) -> tuple[dict[UOp, UOp | None], set[UOp]]:
    """Return the only reader of each value, None if several nodes read it; and the values that contractions read, below
    views and casts."""
    readers: dict[UOp, UOp | None] = {}
    for n in order:
        for s in set(n.src):
            readers[s] = None if s in readers else n
    products = [found for n in order if n.op is Ops.REDUCE and (found := contraction(n)) is not None]
    operands = {views_of(factor, lambda n: n.op is Ops.CONTIGUOUS or is_view(n)).source
                for found in products for factor in (found.a, found.b)}
    return readers, operands


class Analysis:
    """The facts about each value of a graph, and queries that combine them.

    Attributes:
        order: the nodes, sources first.
        facts: node → its facts.
        matmuls: the large contractions.
        chained: on a grid, the contractions inside chains (scores).
        maxima: on a grid, the row maxima of chains.
        cipher: nodes of random number generation (Threefry).
        reader: value → the only node that reads it; None if several do.
        kept: contraction → what is stored of it, since several functions of it (epilogues) would take more memory: one
            of which the others are functions, or the contraction itself; set by ``fused``.
        stored: outputs, and shared values, sums of residual blocks and operands that are too costly to recompute →
            their facts as readers see them.
        lanes_shared: root of a kernel → it has a sum of products whose factors are contiguous along the same kept axis.
    """

    def __init__(self, roots: Sequence[UOp], costs: Costs) -> None:
        self.costs = costs
        self.order = toposort(roots)
        self.cipher = cipher_nodes(self.order)
        self.facts: dict[UOp, Facts] = {}
        self.matmuls: set[UOp] = set()
        self.chained: set[UOp] = set()
        self.maxima: set[UOp] = set()
        self.kept: dict[UOp, UOp] = {}
        self.lanes_shared: dict[UOp, bool] = {}
        self._factors: dict[UOp, UOp | None] = {}
        self._viewed: dict[UOp, int] = {}
        self.stored: dict[UOp, Facts] = {}
        self.reader, operands = _readers_and_operands(self.order)
        outputs = set(roots)
        for n in self.order:
            view = n.op.kind == "movement" and len(n.src) == 1
            found = _SOURCE if n.op in SOURCES else self._of_view(n) if view else self._measured(n)
            self.facts[n] = found
            residual = n.op is Ops.ADD and all(self.facts[s].heavy for s in n.src)
            costly = self.reader.get(n, n) is None and found.light > costs.recompute
            if n in outputs or (costly and (residual or n in operands or not found.heavy)):
                self.stored[n] = replace(found, light=0, joins=0, edges=0, cost=found.cost if found.heavy else 0)
        for n in self.order if costs.chain_bytes and not settings.NOOPT else ():
            factor = self.factor(n) if n in self.matmuls and is_fixed(n.src[0]) else None
            if factor is not None and is_chain(n, factor, self.matmuls, costs):
                self.chained |= inner_products([factor], self.matmuls)
                self.maxima |= reductions_of(cone_of(factor, STAGED)) - self.chained if has_maximum(factor) else set()

    # *** facts ***

    def _seen(self, node: UOp) -> Facts:
        """Return the facts about a value as its readers see them: what is stored is not computed again. Without this, a
        value at the end of a chain of residual blocks would cost the operations of all of them."""
        return self.stored.get(node) or self.facts[node]

    def _of_view(self, view: UOp) -> Facts:
        """Return the facts about a view."""
        op, facts = view.op, self._seen(view.src[0])
        windowed = facts.windowed or op in _WINDOWS
        scores = facts.scores or 0 < facts.depth <= self.costs.stream_depth
        edges = op is Ops.PAD or (op is Ops.RESHAPE and _repeats(view))
        if edges or windowed is not facts.windowed or scores is not facts.scores:
            return replace(facts, windowed=windowed, scores=scores, edges=min(facts.edges + edges, UNBOUNDED))
        return facts

    def _measured(self, n: UOp) -> Facts:
        """Return the facts about a node that computes a value."""
        op = n.op
        joins = op is Ops.GATHER or (op.elementwise and _joins(n))
        found = Facts(windowed=op in _WINDOWS, joins=joins, edges=op is Ops.PAD)
        found.cost = found.light = op.cost if op.elementwise or op is Ops.GATHER else 0
        for s in n.src:
            below = self._seen(s)
            found.windowed |= below.windowed
            if op in STAGED:
                continue
            found.scores |= below.scores or 0 < below.depth <= self.costs.stream_depth
            found.heavy |= below.heavy
            found.grows |= below.grows
            found.product |= below.product
            found.matmul |= below.matmul
            found.joins += below.joins
            found.edges += below.edges
            found.cost += below.cost
            found.light += below.light
            if below.depth > found.depth:
                found.depth = below.depth
        if op is Ops.REDUCE:
            self._of_reduction(n, found)
            return found
        found.joins, found.edges = min(found.joins, UNBOUNDED), 0 if joins else min(found.edges, UNBOUNDED)
        found.cost, found.light = min(found.cost, UNBOUNDED), min(found.light, UNBOUNDED)
        return found

    def _of_reduction(self, n: UOp, facts: Facts) -> None:
        """Complete the facts about a reduction."""
        found = contraction(n)
        facts.heavy, facts.cost, facts.light, facts.joins, facts.edges = True, UNBOUNDED, 0, 0, 0
        facts.depth, facts.grows, facts.product = 0, False, found is not None
        facts.matmul = found is not None and size_of(n.src[0]) > self.costs.small_work
        if facts.matmul:
            self.matmuls.add(n)
        if found is None:
            return
        if self.factor(n) is None and not any(
                f.heavy and not f.depth and has_own_statistics(s) for s in _factors(n) if (f := self.facts[s])):
            facts.depth = UNBOUNDED if facts.windowed else size_of(n.src[0]) // max(size_of(n), 1)
            facts.grows = size_of(n) >= unrepeated_size(found.a) + unrepeated_size(found.b)
        if self.costs.chain_bytes:
            facts.windowed = False  # its result has no windows

    # *** queries ***

    def factor(self, contraction: UOp) -> UOp | None:
        """Return the operand of a contraction that is computed in blocks of rows next to it: a function of another
        contraction, larger than what that reads; None without one.

        Any other operand is stored: a product with packed panels takes less time than the memory traffic saved. A norm
        or softmax along the rows, then a product of 512×768×3072: 34 ms stored, 103 to 162 computed in rows (AVX2).
        """
        if contraction not in self._factors:
            found = [s for s in _factors(contraction) if 0 < self.facts[s].depth <= self.costs.stream_depth]
            fits = len(found) == 1 and self.facts[found[0]].grows and (not is_fixed(contraction.src[0]) or (
                is_computed_in_rows(contraction, found[0], lambda r: self.facts[r].depth > 0)))
            self._factors[contraction] = found[0] if fits else None
        return self._factors[contraction]

    def contraction_below(self, node: UOp) -> UOp | None:
        """Return the only contraction of which ``node`` is a cheap elementwise function of the
        same size (an epilogue), or None."""
        if node.op is Ops.REDUCE:
            return None
        cone = cone_of(node, STAGED)
        reduces = reductions_of(cone)
        # each operation counts once: ``light`` counts those of a common operand for each of its readers
        work = sum(n.op.cost for n in cone if n.op.elementwise)
        if len(reduces) != 1 or min(self.facts[node].light, work) > self.costs.recompute or len(cone) > MOST_CONE:
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

    def is_covered(self, value: UOp) -> bool:
        """Return True if the views of a value that are read have, together, at least as many elements as it."""
        if not self._viewed:
            for view in {s for n in self.order if n.op.kind != "movement" for s in n.src if s.op.kind == "movement"}:
                seen = views_of(view, lambda v: v.op.kind == "movement" and len(v.src) == 1)
                few = min((size_of(v) for v in seen.above), default=0)
                self._viewed[seen.source] = self._viewed.get(seen.source, 0) + few
        return self._viewed.get(value, 0) >= size_of(value)

    def parallel_enough(self, node: UOp, depends: Ranges, outer: Ranges) -> bool:
        """Return True if a kernel of several passes over rows (the ranges ``depends``) occupies all cores, or is so
        small that this does not matter: on a grid, where threads share a row, each of its rows."""
        work = max(count_of(outer), size_of(node.src[0]) if node.op is Ops.REDUCE else 0)
        apart, together = _lie_apart(depends, outer), count_of(depends)
        if self.costs.cuts.thread_values and not apart:
            work //= max(together, 1)
        return work <= self.costs.small_work or together >= (self.costs.rows_apart if apart else self.costs.rows)

    def stream_contractions(self, root: UOp) -> frozenset[UOp]:
        """Return the contractions with a computed operand that are fused into the kernel of ``root``: at most one.

        The kernel iterates over the tiles of that contraction and computes the operand tile by tile.
        """
        allowed = self.costs.streams or self.costs.chain_bytes
        if settings.NOOPT or not allowed or not any(self.facts[s].matmul for s in (root, *root.src)):
            return frozenset()
        near = reductions_of((root,) if root.op is Ops.REDUCE else cone_of(root, STAGED))
        found = [s for s in near if self.facts[s].matmul and self.factor(s) is not None and is_fixed(s.src[0])]
        if not self.costs.streams:
            found = [s for s in found if is_chain(s, self.factor(s), self.matmuls, self.costs)]
        return frozenset(sorted(found, key=list(self.facts).index)[:1] if len(found) > 1 else found)

    def stream_rows(self, node: UOp, request: KernelInput) -> Ranges | None:
        """Return the row ranges for which a repeated value is computed block by block inside its
        reader; None if it cannot be."""
        group, depends = request.group, ranges_in(request.index)
        if not group.stream or request.rows is not None or self.facts[node].depth > self.costs.stream_depth:
            return None
        if not request.around:  # a statistic of the rows
            return depends if depends < group.ranges and self.parallel_enough(node, depends, group.ranges) else None
        rows = depends & group.ranges
        columns = group.ranges - depends
        fits = replace(request, rows=rows).in_tile and columns and depends == rows | request.around
        return rows if fits and count_of(rows) >= self.costs.rows else None

    def is_statistic(self, node: UOp) -> bool:
        """Return True if ``node`` is, or is an elementwise function of, maxima of rows that a chain computes on a grid
        and sums of exponentials relative to them."""
        node = node.src[0] if node.op is Ops.CONTIGUOUS else node
        if not self.maxima or not self.facts[node].heavy or self.facts[node].matmul or node.op.kind == "movement":
            return False
        found = {node} if node.op is Ops.REDUCE else reductions_of(cone_of(node, STAGED))
        return bool(found) and all(r in self.maxima or (
            r.arg[0] is Ops.ADD and r.src[0].op is Ops.EXP and not self.maxima.isdisjoint(inner := reductions_of(
                cone_of(r.src[0], STAGED))) and inner <= self.maxima | self.chained) for r in found)

    def joins_product(self, node: UOp, requests: Sequence[KernelInput]) -> bool:
        """Return True on a grid for 16-bit functions of a chain's contraction (weights of attention) that a kernel with
        another contraction reads: it would have to store one of the contractions."""
        if node.op is not Ops.CAST or node.dtype.itemsize != 2 or not self.facts[node].matmul:
            return False
        inner = inner_products([node], self.matmuls)
        return len(inner) == 1 and inner <= self.chained and any(
            not (r.group.stream or r.around) and len(inner_products([r.group.root], self.matmuls)) > 1
            for r in requests)

    def joins_chain(self, node: UOp, requests: Sequence[KernelInput]) -> bool:
        """Return True if a row statistic of a chain is read by kernels that are merged with the chain only."""
        return all(r.group.stream or r.group.statistic for r in requests) and self.is_statistic(node)

    def tiled(self, node: UOp, requests: Sequence[KernelInput]) -> bool:
        """Return True if a row-by-column value is recomputed tile by tile in each of its readers."""
        here = self.costs.streams or all(r.group.stream for r in requests)
        return not settings.NOOPT and here and self.in_tiles(node, requests)

    def with_chain(self, node: UOp, requests: Sequence[KernelInput]) -> bool:
        """Return True on a grid if a function of a contraction is recomputed by its readers: by chains as tiles, by
        statistics that are merged with them, and by kernels that store an elementwise function of it."""
        if not self.chained or not self.facts[node].matmul or not any(r.group.stream for r in requests):
            return False
        if not inner_products([node], self.matmuls) <= self.chained:
            return False
        inside = [r for r in requests if r.group.stream or r.group.statistic]
        whole = [r for r in requests if not (r.group.stream or r.group.statistic)]
        plain = all(not r.around and ranges_in(r.index) == r.group.ranges for r in whole)
        return plain and len({id(r.group) for r in whole}) == len(whole) and self.in_tiles(node, inside)

    def in_tiles(self, node: UOp, requests: Sequence[KernelInput]) -> bool:
        """Return True if all kernels read a row-by-column value as tiles, each at one position."""
        if not self.facts[node].matmul:
            return False
        if not 0 < self.facts[node].depth <= self.costs.stream_depth:
            return False
        if not self.facts[node].grows and len({id(r.group) for r in requests}) > 1:
            return False
        positions: dict[int, tuple[bool, ...]] = {}
        for r in requests:
            if not r.in_tile or count_of(r.outer) < self.costs.rows:
                return False
            if positions.setdefault(id(r.group), r.position) != r.position:
                return False
        return True


_WINDOWS = (Ops.WINDOW, Ops.UNWINDOW, Ops.PAD)


def _joins(node: UOp) -> bool:
    """Return True if an elementwise op has several non-constant sources, one of which is padded (a concatenation)."""
    values = [s for s in node.src if s.base.op is not Ops.CONST]
    return len(values) > 1 and any(map(_is_padded, values))


def _repeats(view: UOp) -> bool:
    """Return True if a reshape merges the last axis, along which elements are repeated, with the one before."""
    return view.op is Ops.RESHAPE and view.src[0].op is Ops.EXPAND and view.src[0].src[0].shape[-1] == 1 and (
        view.shape[-1] != 1) and view.src[0].shape[-1] not in (1, view.shape[-1])


def _is_padded(value: UOp) -> bool:
    while value.op.kind == "movement":
        if value.op is Ops.PAD:
            return True
        value = value.src[0]
    return False


def _lie_apart(rows: Ranges, outer: Ranges) -> bool:
    """Return True if other ranges of the value that a kernel stores lie around ``rows``, as images and pixels around
    channels: the elements of a row are not contiguous."""
    inside = [r in rows for r in sorted(outer, key=lambda r: r.arg[0])]
    return any(inside) and not inside[0]


def is_fixed(node: UOp) -> bool:
    """Return True if no size is symbolic: a computed operand needs tiles of fixed size, else it would be recomputed for
    every column."""
    return not any(isinstance(s, UOp) for s in node.shape)


def _factors(reduction: UOp) -> tuple[UOp, ...]:
    return reduction.src[0].src if reduction.src[0].op is Ops.MUL else ()
