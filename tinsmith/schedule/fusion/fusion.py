"""Kernel fusion: inline every value, and store it only for a recorded reason. A stored value is called *staged* here.

The graph is walked from its outputs. Every node collects read requests: the kernel that reads it, and its index
expression and enclosing loops there (``KernelInput``). When all of a value's readers are known, the rules
(``rules.py``) decide if it is computed where it is read, or staged. A reduction is fused into the kernel of its reader
if the loops can be nested so that it is computed once: the sets of ranges that the kernel's reductions depend on must
form a chain.

A contraction can fuse with an operand that is a function of another contraction (a stream, back-to-back GEMM as in
attention): a block of the operand's rows is computed over the full reduced axis, inside the loop that consumes it, with
the statistics of these rows. Any other computed operand is stored, unless it is cheap. A row-by-column value (the
scores) is recomputed tile by tile in every kernel that can; the statistics of its rows are stored if several kernels
read them.
"""
from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from tinsmith.codegen.lower.indexing import ZERO, Index, flatten, move
from tinsmith.ir import Ops, UOp
from tinsmith.ir.structure import Role, contraction, count_of
from tinsmith.ir.uop import toposort
from tinsmith.schedule.fusion import rules
from tinsmith.schedule.fusion.analysis import Analysis, KernelGroup, KernelInput, ranges_in
from tinsmith.schedule.fusion.fan_in import below_reshapes, narrower, rounded
from tinsmith.schedule.fusion.rules import FusionRule, Nest, Question, Scanned, Verdict, ask, decide
from tinsmith.schedule.values import SOURCES, STAGED, size_of
from tinsmith.target.schedule_costs import Costs


@dataclass(slots=True)
class Decision:
    """The record of a value: who reads it, and what the rules said.

    Attributes:
        requests: its reads, by kernel, index and enclosing reductions.
        stored: the verdict that stores it; None if it is computed where it is read.
        fused: the verdicts of the rules that did not store it.
        group: the kernel that stores it.
    """

    requests: dict[Any, KernelInput] = field(default_factory=dict)
    stored: Verdict | None = None
    fused: list[Verdict] = field(default_factory=list)
    group: KernelGroup | None = None


class Fusion:
    """The fusion decision for one graph.

    Attributes:
        decisions: the record of each value that is read or stored.
        epilogues: contraction → its epilogues that are stored: if there are several, it is stored instead.
        inputs: the inputs of the graph that are read, each with its read.
        reduce_ranges: (reduction, index) → the ranges it is reduced over at this index.
        count: number of ranges created.
    """

    def __init__(self, roots: Sequence[UOp], analysis: Analysis, reasons: Mapping[UOp, Verdict]) -> None:
        self.roots, self.analysis, self.costs, self.facts = roots, analysis, analysis.costs, analysis.facts
        self.decisions: dict[UOp, Decision] = {}
        self.epilogues: dict[UOp, list[UOp]] = {}
        self.inputs: list[tuple[UOp, KernelInput]] = []
        self.reduce_ranges: dict[tuple[UOp, Index], tuple[UOp, ...]] = {}
        self.count = 0
        for root in roots:
            self.stage(root, rules.OUTPUT)
        for node, verdict in reasons.items():
            self.store(node, verdict)
        for node in reversed(analysis.order):
            if node.op not in SOURCES:
                self.visit(node)

    def stored(self) -> dict[UOp, Verdict]:
        """Return the staged nodes, sources first, each with the verdict that stores it."""
        found = ((n, self.decisions[n].stored) for n in self.analysis.order if n in self.decisions)
        return {n: verdict for n, verdict in found if verdict is not None}

    def verdicts(self, node: UOp) -> tuple[Verdict, ...]:
        """Return why a value is stored, or why it is not: at least one verdict."""
        decision = self.decisions.get(node)
        if decision is None:
            return (Verdict(rules.IN_MEMORY, (False,)),)
        if decision.stored is not None:
            return (decision.stored,)
        return tuple({v.rule: v for v in decision.fused}.values()) or (Verdict(rules.ONE_READ, (False,)),)

    def reason(self, node: UOp) -> str:
        """Return the text of the verdicts about a value."""
        return "; ".join(dict.fromkeys(map(str, self.verdicts(node))))

    def rows(self) -> Iterator[tuple[UOp, str]]:
        """Yield each value that is computed with its verdict as text; views only if they are stored."""
        for n in self.analysis.order:
            decision = self.decisions.get(n)
            if decision is not None and (decision.stored is not None or n.op.kind != "movement"):
                verb = "fused" if decision.stored is None else "stored"
                yield n, f"{n.op.name} {n.dtype!r} {n.shape} is {verb} because: {self.reason(n)}"

    # *** decisions ***

    def decision(self, node: UOp) -> Decision:
        found = self.decisions.get(node)
        if found is None:
            found = self.decisions[node] = Decision()
        return found

    def stage(self, node: UOp, rule: FusionRule, *numbers: Any) -> None:
        """Store a value because of a rule without a test."""
        self.store(node, Verdict(rule, (True, *numbers)))

    def store(self, node: UOp, verdict: Verdict) -> None:
        """Store a value; its first reason counts."""
        decision = self.decision(node)
        decision.stored = decision.stored or verdict

    def visit(self, node: UOp) -> None:
        """Decide about a value whose readers have all been visited."""
        decision = self.decisions.get(node)
        if decision is None or not (decision.requests or decision.stored):
            return
        if node.op in STAGED:
            self.stage(node, rules.KIND, node.op.name.lower())
        elif decision.stored is None:
            self.decide(node, decision)
        if self.decisions[node] is not decision:
            return  # it is a part of the kernel of the narrower value that it is read as, and has been visited there
        if decision.stored is None:
            for request in decision.requests.values():
                self.propagate(node, request)
            return
        group = decision.group = KernelGroup(node)
        index = tuple(self.new_range(s, Role.LOOP) for s in node.shape)
        group.ranges = frozenset(i for i in index if i.op is Ops.RANGE)
        group.stream = self.analysis.stream_contractions(node)
        group.statistic = self.analysis.is_statistic(node)
        self.propagate(node, KernelInput(group, index, frozenset()))

    def decide(self, node: UOp, decision: Decision) -> None:
        """Ask the rules about a value, and store it, or a narrower value that it is a cast of or is read as."""
        verdict = decide(self.analysis, node, list(decision.requests.values()), decision.fused)
        for asked in decision.fused:
            if asked.rule is rules.SCATTERED_SOURCE:
                self.stage(asked.answer[2], rules.PASSES, asked.answer[1])
        if verdict is None:
            return
        if verdict.rule is rules.SHARED_RESULT and (below := verdict.answer[2]) is not None:
            self.epilogues.setdefault(below, []).append(node)
        if (narrow := narrower(node)) is not None:
            self.store(narrow, verdict)
            decision.fused.append(Verdict(rules.NARROWER, (False, verdict)))
        elif node.op is not Ops.REDUCE or not self.store_rounded(node, verdict):
            decision.stored = verdict

    def store_rounded(self, node: UOp, verdict: Verdict) -> bool:
        """Store, instead of a reduction, the narrower float that it is only read as: half the bytes; return False if
        there is none. The values between them have been visited: they are again, as parts of the new kernel."""
        chain = rounded(node, self.analysis.reader)
        if not chain or any(self.decision(n).stored is not None for n in chain):
            return False
        for n in (*chain[1:], node):
            self.decisions[n] = Decision()
        self.store(chain[0], verdict)
        self.decisions[node].fused.append(Verdict(rules.ROUNDED, (False, verdict)))
        for n in (*chain, node):
            self.visit(n)
        return True

    # *** requests ***

    def request(self, node: UOp, request: KernelInput) -> None:
        """Note a read of a value, or of an input of the graph."""
        if node.op is Ops.BUFFER:
            self.inputs.append((node, request))
        elif node.op not in SOURCES:
            self.decision(node).requests.setdefault((id(request.group), request.index, request.around), request)

    def propagate(self, node: UOp, request: KernelInput) -> None:
        """Pass a read request on to the sources of ``node``."""
        op = node.op
        request.group.work += max(op.cost, 1)
        if op.kind == "movement":
            self.through_movement(node, request)
        elif op is Ops.REDUCE:
            self.through_reduction(node, request)
        elif op is Ops.GATHER:
            source = node.src[0]
            if source.base.op not in SOURCES:
                self.stage(source.base if source.base in self.facts else source, rules.GATHERED)
                self.request(source, request)
            self.request(node.src[1], request)
        elif op in (Ops.SCATTER, Ops.SCAN, Ops.HISTOGRAM):
            self.in_order(node)
        elif op is Ops.COPY:
            if node.src[0].op is not Ops.BUFFER:
                self.stage(node.src[0], rules.COPIED)
        elif op is Ops.HOST:
            for s in node.src:
                if s.op is not Ops.BUFFER:
                    self.stage(s, rules.HOST, node.arg[0])
        elif op is Ops.ASSIGN:
            self.request(node.src[1], request)
        else:
            for s in node.src:
                self.request(s, request)

    def through_reduction(self, node: UOp, request: KernelInput) -> None:
        """Pass a request on to the values that a reduction reads, with its ranges."""
        group, ranges = request.group, self.ranges_of(node, request.index)
        inner = list(request.index)
        for axis, r in zip(node.arg[1], ranges):
            inner[axis] = r
        group.chain.append(ranges_in(request.index))
        group.reduces += 1
        group.contraction |= node in self.analysis.matmuls
        if not request.around and request.rows is None and contraction(node) is not None:
            group.walk = node
        own = frozenset(r for r in ranges if r.op is Ops.RANGE)
        if request.in_tile and (group.statistic or self.analysis.tiled(node, [request])):
            group.tiles.add((node, request.position))
        if (few := ask((rules.FEW_RESULTS,), Nest(self.analysis, node, request), [])) is not None:
            self.store(below_reshapes(node.src[0]), few)
        self.request(node.src[0], replace(request, index=tuple(inner), around=request.around | own))

    def in_order(self, node: UOp) -> None:
        """Start the kernel of a SCATTER, SCAN or HISTOGRAM: each source is computed in separate loops, and reductions
        are staged."""
        group = KernelGroup(node)
        for s in node.src:
            index = tuple(self.new_range(n, Role.LOOP) for n in s.shape)
            if self.facts[s].heavy and not (node.op is Ops.SCATTER and node.arg[1] is Ops.ASSIGN):
                self.stage(s, rules.SEQUENTIAL, node.op.name)
            elif node.op is Ops.SCAN and s is node.src[0] and (verdict := ask(
                    rules.SCANNED, Scanned(node, self.facts[s], self.costs), self.decision(s).fused)) is not None:
                self.store(s, verdict)
            else:
                self.request(s, KernelInput(group, index, frozenset()))

    def through_movement(self, node: UOp, request: KernelInput) -> None:
        source = node.src[0]
        index, _ = move(node, request.index)
        inner = replace(request, index=index)
        if node.op is Ops.EXPAND:
            if request.group.contraction and self.read_many_times(inner) and (seam := _seam(source, index)) is not None:
                self.stage(seam, rules.SEAM)
            if source.base.op not in SOURCES and source.base.op not in STAGED:
                return self.repeated(source, inner)
        self.request(source, inner)

    def repeated(self, source: UOp, request: KernelInput) -> None:
        """Pass on a request of a value that is repeated along an axis, or store it."""
        heavy, read = self.facts[source].heavy, ranges_in(request.index)
        rows = self.analysis.stream_rows(source, request) if heavy else None
        if rows is None and heavy and request.rows is not None and read <= request.rows:
            rows = request.rows
        fused = self.decision(source).fused
        if rows is not None:
            fused.append(Verdict(rules.STREAM, (False, count_of(rows))))
            return self.request(source, replace(request, around=request.around & read, rows=rows))
        stored = None
        if heavy:
            stored = ask(rules.NESTING, Nest(self.analysis, source, request), fused)
        elif self.read_many_times(request):
            stored = ask(rules.OPERAND, Question(self.analysis, source, (request,)), fused)
        if stored is not None:
            return self.store_below(source, request, stored)
        if self.facts[source].scores and not request.around & read:
            request = replace(request, around=frozenset())  # computed once per row, before the reduction
        self.request(source, request)

    def store_below(self, source: UOp, request: KernelInput, verdict: Verdict) -> None:
        """Store the value below a view, so that all views share it; a view of less than half its elements is stored
        itself, unless such views cover the value."""
        value = source
        while (below := value.base).op is Ops.CAST and below.dtype.is_float and below.src[0].dtype.is_float and (
                below.src[0].dtype.itemsize <= min(self.costs.chain_bytes, below.dtype.itemsize - 1) and (
                    below.src[0].op.kind == "movement")):
            value = below.src[0]  # the dtype that the matrix unit of a chain reads; padding is not stored
        few = size_of(value.base) > (2 if value is source else 1) * size_of(value) and not (
            self.analysis.is_covered(value.base))
        node = value if few else value.base
        node = narrower(node) or node
        self.store(node, verdict)
        if node is not source:
            self.request(source, request)

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


def _seam(value: UOp, index: Index) -> UOp | None:
    """Return the view to stage so that reads are strided: the views below it have indices with quotients of sums of
    ranges.

    The quotient of a single range needs no stage, because its loop can be split there. None if there is no such view,
    or if the quotients cancel in the address of the value below all views, as those of merged neighbouring axes do.
    """
    seam: UOp | None = None
    while value.op.kind == "movement" and value.op is not Ops.UNWINDOW:
        below = move(value, index)[0]
        if seam is None and any(map(_divides_sums, below)):
            seam = value
        value, index = value.src[0], below
    if seam is not None and value.op.kind != "movement" and not _divides_sums(flatten(value.shape, index).simplify()):
        return None
    return seam


def _divides_sums(index: UOp) -> bool:
    return any(len(n.src[0].ranges) > 1 for n in toposort([index]) if n.op in (Ops.IDIV, Ops.MOD))


def fused(roots: Sequence[UOp], costs: Costs, reasons: Mapping[UOp, Verdict] = MappingProxyType({})) -> Fusion:
    """Return the decision which values of a graph are stored; all others are computed inside their readers' kernels.

    If several functions of one contraction would be stored, the decision is repeated: one of them is stored of which
    all others are functions, else the contraction itself.

    Args:
        reasons: values that are stored in any case, with the verdicts to report.
    """
    analysis = Analysis(roots, costs)
    fusion = Fusion(roots, analysis, reasons)
    analysis.kept = {below: next((v for v in values if all(_is_function_of(w, v) for w in values)), below)
                     for below, values in fusion.epilogues.items() if len(values) > 1}
    return Fusion(roots, analysis, reasons) if analysis.kept else fusion


def _is_function_of(value: UOp, base: UOp) -> bool:
    """Return True if an elementwise function of a reduction is one of ``base``, too: a rounded sum and its GELU."""
    stack, seen = [value], {base}
    while stack:
        n = stack.pop()
        if n in seen:
            continue
        if n.op is Ops.REDUCE:
            return False
        seen.add(n)
        stack += n.src if n.op not in STAGED else ()
    return True
