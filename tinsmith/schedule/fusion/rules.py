"""The rules of fusion: why a value is stored, and why it is computed inside the kernels that read it.

A value is computed where it is read, unless a rule stores it. Each rule is a row of a table: its name, its law in one
sentence, the test that compares its price with a limit of ``Costs``, and the text of both verdicts with the numbers
that decided. The tables are asked in this order, each from the first row to the last:

- ``BY_KIND``: views, random words and sizes, and only they;
- ``SHARED``: a value that several kernels read; before it ``LARGE``, for every value;
- ``REDUCTION``, and ``NESTING`` for each read: a reduction;
- ``PLACES``: any other value that one kernel reads at several indices, or inside a reduction.

Besides, ``OPERAND`` is asked of a value that is repeated along an axis (``NESTING`` if it depends on a reduction),
``SCANNED`` of the source of a scan, ``FEW_RESULTS`` of a reduction's source. The remaining rows have no test: outputs,
and values that something reads from memory.

A test returns None if its rule does not apply, else ``(stores, number, …)``. A verdict that stores ends everything; one
that fuses ends its table, unless the rule's ``settles`` is False. To add a rule, write its test, add its row to one of
the tables, and add a program that it stores to the tests.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tinsmith.codegen.lower.indexing import flatten, place_in
from tinsmith.core.dtypes import dtypes
from tinsmith.core.settings import settings
from tinsmith.ir import Ops, UOp
from tinsmith.ir.algebra.sizes import linear_form
from tinsmith.ir.ops.op import is_product, is_repeated
from tinsmith.ir.structure import contraction, count_of
from tinsmith.ir.uop import toposort
from tinsmith.schedule.fusion.analysis import Analysis, Facts, KernelInput, is_fixed, ranges_in
from tinsmith.schedule.fusion.fan_in import (
    MOST_CONE,
    below_reshapes,
    cone_of,
    is_view,
    ranges_of,
    read_by,
    reductions_of,
)
from tinsmith.schedule.values import STAGED, size_of
from tinsmith.target.schedule_costs import Costs

Answer = tuple[Any, ...] | None

# operations and views of one kernel before it is cut: compile time grows faster than linearly with them
MOST_WORK = 768
MOST_UNPACKED = 17  # reads of an element of quantized weights from which on they are unpacked once, into memory
SPREAD = 4  # bytes of a value per byte that it is computed from, from which on it is cheaper to compute than to load
FEW_SUMS = 16  # elements of an operand per result of a sum, from which on the results may be stored across memory
SHORT_TABLE = 64  # elements of a table of positions that kernels compute instead of loading it, at most


class Question:
    """A value about which a rule is asked, with its reads.

    Attributes:
        kernels: number of kernels that read it.
        read: the first read; the only one for ``NESTING`` and ``OPERAND``.
    """

    __slots__ = ("analysis", "costs", "facts", "kernels", "node", "read", "reads")

    def __init__(self, analysis: Analysis, node: UOp, reads: Sequence[KernelInput]) -> None:
        self.analysis, self.costs, self.node, self.facts = analysis, analysis.costs, node, analysis.facts[node]
        self.reads, self.read = reads, reads[0]
        self.kernels = 1 if len(reads) == 1 else len({id(r.group) for r in reads})


class Nest(Question):
    """One read of a value that depends on a reduction.

    Attributes:
        depends: the ranges that it depends on at this read.
        outer: the parallel ranges that enclose the read.
        nested: it depends on all loops around the read, a reduction's among them.
    """

    __slots__ = ("depends", "nested", "outer")

    def __init__(self, analysis: Analysis, node: UOp, read: KernelInput) -> None:
        super().__init__(analysis, node, (read,))
        self.depends, self.outer = ranges_in(read.index), read.outer
        self.nested = bool(read.around) and (self.outer | read.around) <= self.depends


@dataclass(frozen=True, eq=False)
class FusionRule:
    """A named rule.

    Attributes:
        law: what it says, in one sentence.
        test: returns None if the rule does not apply, else True (store) or False (fuse) and the numbers that decided.
        stored, fused: the text of each verdict, a format of these numbers.
        settles: a verdict that fuses ends the table.
    """

    name: str
    law: str
    test: Callable[[Any], Answer] = lambda case: None
    stored: str = ""
    fused: str = ""
    settles: bool = True


class Verdict(NamedTuple):
    """The decision of a rule about a value: ``answer`` is True (stored) or False (fused), then the numbers."""

    rule: FusionRule
    answer: tuple[Any, ...]

    @property
    def stores(self) -> bool:
        return bool(self.answer[0])

    def __str__(self) -> str:
        return (self.rule.stored if self.stores else self.rule.fused).format(*self.answer[1:])


def ask(table: Sequence[FusionRule], case: Question | Scanned, fused: list[Verdict]) -> Verdict | None:
    """Return the verdict of the first rule that stores, else None; add the verdicts that fuse to ``fused``."""
    for rule in table:
        answer = rule.test(case)
        if answer is None:
            continue
        verdict = Verdict(rule, answer)
        if answer[0]:
            return verdict
        fused.append(verdict)
        if rule.settles:
            break
    return None


def decide(analysis: Analysis, node: UOp, reads: Sequence[KernelInput], fused: list[Verdict]) -> Verdict | None:
    """Return the verdict that stores a value, else None: it is computed where it is read, and ``fused`` says why."""
    case = Question(analysis, node, reads)
    if node.op.kind == "movement" or node in analysis.cipher or node.dtype is dtypes.index:
        return ask(BY_KIND, case, fused)
    stored = ask(LARGE, case, fused)
    if stored is None and case.kernels > 1:
        stored = ask(SHARED, case, fused)
    if stored is not None:
        return stored
    if node.op is Ops.REDUCE:
        stored = ask(REDUCTION, case, fused)
        for read in reads:
            stored = stored or ask(NESTING, Nest(analysis, node, read), fused)
        return stored
    return ask(PLACES, case, fused) if len(reads) > 1 or case.read.around else None


# *** values that something reads from memory ***

OUTPUT = FusionRule("output", "An output has memory.",
                    stored="output")
KIND = FusionRule("kind",
                  "Copies, assignments, scatters, scans, histograms, host functions and contiguous() fill memory.",
                  stored="{0}")
GATHERED = FusionRule("gathered", "The source of a gather is read at indices that are known at run time only.",
                      stored="it is the source of a gather")
COPIED = FusionRule("copied", "A copy between devices reads memory.",
                    stored="it is copied to another device")
HOST = FusionRule("host function", "A host function reads memory.",
                  stored="the host function {0} reads it")
SEQUENTIAL = FusionRule("sequential", "The loops of a SCATTER, SCAN or HISTOGRAM contain no reduction.",
                        stored="a sequential {0} reads it")
SEAM = FusionRule("seam", "A matmul's loops read an operand at indices with strides.",
                  stored="a matmul reads it repeatedly, with a non-strided index")
NARROWER = FusionRule("narrower", "The narrower float below a cast is stored instead of the cast.",
                      fused="the narrower value that it is a cast of is stored instead: {0}")
ROUNDED = FusionRule("rounded", "A reduction that is only read as a narrower float is stored as that.",
                     fused="the narrower value that it is only read as is stored instead: {0}")
STREAM = FusionRule("stream", "An operand that is a function of another matmul is computed in blocks of rows.",
                    fused="a matmul reads it in blocks of rows, and computes each block once: {0} rows")
ONE_READ = FusionRule("one read", "A value that is read once is computed where it is read.",
                      fused="one kernel reads it, at one index")
IN_MEMORY = FusionRule("in memory", "Inputs, constants and sizes are not computed.",
                       fused="it is not computed")


# *** views, random words, sizes ***

def _permuted(c: Question) -> Answer:
    """Ask about windows of a kernel without reuse, such as a depthwise convolution's, above a permuted view."""
    node = c.node
    if node.op is not Ops.PERMUTE or node.arg[-1] == node.ndim - 1 or is_product(node.base) or is_repeated(node):
        return None
    own = [r for r in c.reads if r.around and r.outer <= ranges_in(r.index) and not _along(c.analysis, r, node)]
    often = max((_overlap(r.index, node.shape) for r in own), default=1.0)
    return None if often == 1 else ((often - 1) * c.costs.join > c.costs.recompute, often)


BY_KIND = (
    FusionRule("permuted windows",
               "A permuted view is stored below windows that read each element often, across memory.",
               _permuted, "windows read each element {0:.1f} times, across memory",
               "windows read each element {0:.1f} times, across memory: a copy costs more"),
    FusionRule("view", "A view has no memory: its readers index the value below it.",
               lambda c: (False,) if c.node.op.kind == "movement" else None,
               fused="it is a view, which its readers index"),
    FusionRule("random words", "Both words of a Threefry block come out of the same rounds.",
               lambda c: (False,) if c.node in c.analysis.cipher else None,
               fused="both words of a random number's block come out of the same rounds"),
    FusionRule("size", "A size is an argument of the kernel, and so is what is computed of sizes.",
               lambda c: (False,), fused="it is computed of sizes, which are arguments of the kernel"),
)


def _along(analysis: Analysis, read: KernelInput, view: UOp) -> bool:
    """Return True if lanes run along the memory of both a permuted view and the result of the kernel that reads it: the
    contiguous axis of the view is the innermost of the kernel, or that of all factors whose products it sums to few
    results."""
    contiguous = read.index[view.arg.index(view.ndim - 1)]
    if contiguous in read.outer and FEW_SUMS * count_of(read.outer) <= size_of(view):
        known = analysis.lanes_shared
        if read.group.root not in known:
            known[read.group.root] = any(map(_shares_lanes, reductions_of(cone_of(read.group.root))))
        return known[read.group.root]
    return contiguous is max(read.group.ranges, key=lambda r: r.arg[0], default=None)


def _shares_lanes(reduction: UOp) -> bool:
    """Return True for a sum of products whose factors are contiguous in memory along the same kept axis."""
    if not is_fixed(reduction.src[0]):
        return False
    index = ranges_of(reduction.src[0].shape)
    product, at = place_in(reduction.src[0], index)
    if not is_product(product):
        return False
    reads = [read_by(f, at, is_view, lambda v: False) for f in product.src]
    first, second = ({r for r, step in linear_form(flatten(f.source.shape, f.place))[0].items() if step == 1}
                     for f in reads)
    return any(index[a] in first & second for a in range(len(index)) if a not in reduction.arg[1])


def _overlap(index: Sequence[UOp], shape: Sequence[Any], apart: bool = False) -> float:
    """Return how often windows read an element with this index: per axis, position · stride + offset.

    Args:
        apart: a range that is the index of an axis by itself, as in ``x[position - offset, offset]``, tells elements
            apart: the gradient of windows reads each of their elements once.
    """
    forms = [linear_form(i)[0] for i in index]
    alone = {r for terms in forms if apart and len(terms) == 1 for r in terms}
    often = 1.0
    for i, terms, size in zip(index, forms, shape):
        if type(size) is int and len(terms) == 2 and all(r.op is Ops.RANGE for r in terms):
            often *= max(count_of(i.ranges - alone) / max(size, 1), 1.0)
    return often


# *** several kernels ***

def _large(c: Question) -> Answer:
    if c.facts.cost > c.costs.recompute and any(r.group.work > MOST_WORK for r in c.reads):
        return True, MOST_WORK
    return None


def _second_matmul(c: Question) -> Answer:
    return (True,) if c.analysis.chained and c.analysis.joins_product(c.node, c.reads) else None


LARGE = (
    FusionRule("large kernel", "A kernel is cut where it holds so many operations that it compiles slowly.",
               _large, "the kernel that reads it already holds more than {0} operations"),
    FusionRule("second matmul", "On a grid a matmul's epilogue does not compute a second matmul.",
               _second_matmul, "a matmul's epilogue reads this function of another matmul"),
)


def _factor_pair(c: Question) -> Answer:
    return (False,) if is_product(c.node) else None


def _tiles(c: Question) -> Answer:
    tiled = c.facts.heavy and (c.analysis.tiled(c.node, c.reads) or c.analysis.with_chain(c.node, c.reads))
    return (False, c.kernels, c.facts.depth) if tiled else None


def _light_on_statistics(c: Question) -> Answer:
    light = c.facts.heavy and not _is_operand(c) and c.analysis.light_on_statistics(c.node)
    return (False, c.kernels, c.costs.light) if light else None


def _shared_result(c: Question) -> Answer:
    """Ask about a value that depends on a reduction. The last number is the contraction that would be stored with it as
    its epilogue, or None; it is computed again if something else of that contraction is stored."""
    if not c.facts.heavy:
        return None
    operand = _is_operand(c)
    below = None if operand or settings.NOOPT else c.analysis.contraction_below(c.node)
    return below is None or c.analysis.kept.get(below, c.node) is c.node, c.kernels, below


def _is_operand(c: Question) -> bool:
    """Return True if a kernel with a contraction reads the value inside a reduction."""
    return any(r.around and r.group.contraction for r in c.reads)


def _short_table(c: Question) -> Answer:
    short = not c.facts.heavy and not c.node.dtype.is_float and size_of(c.node) <= SHORT_TABLE and all(
        n.src or n.op in (Ops.CONST, Ops.IOTA) for n in toposort(c.node))
    return (False, c.kernels, SHORT_TABLE) if short else None


def _spread(c: Question) -> Answer:
    cost, limit = c.facts.cost, c.costs.operand
    if c.facts.heavy or c.facts.joins + c.facts.edges or cost > limit:
        return None
    stored = c.analysis.stored
    cone = cone_of(c.node, STAGED, stored)
    if len(cone) > MOST_CONE:
        return None
    sources = {s for n in cone for s in n.src if s.op in STAGED or s in stored or not (
        s.src or s.op in (Ops.CONST, Ops.IOTA))}
    read = sum(size_of(s) * s.dtype.itemsize for s in sources)
    few = SPREAD * read <= size_of(c.node) * c.node.dtype.itemsize
    return (False, c.kernels, cost, limit) if few else None


def _recompute(c: Question) -> Answer:
    cost, limit = c.facts.cost, c.costs.recompute
    return (c.kernels - 1) * cost > limit, c.kernels, cost, limit


PRODUCT = FusionRule("product", "The products of a contraction are larger than its operands, and never stored.",
                     _factor_pair, fused="the products that a matmul sums are never stored")
SHARED_RESULT = FusionRule(
    "shared result", "A function of a reduction that several kernels read is stored, or the contraction below it.",
    _shared_result, "{0} kernels read this reduction's result",
    "{0} kernels read it, and each computes it from a matmul's result, which several such functions share")
SHARED = (
    PRODUCT,
    FusionRule("row statistic", "A row statistic of a chain is computed in the kernel that is merged with the chain.",
               lambda c: (False,) if c.analysis.joins_chain(c.node, c.reads) else None,
               fused="its readers are merged into one kernel, which computes it once per row"),
    FusionRule("tiles", "A matmul of few products per element is recomputed tile by tile by each of its readers.",
               _tiles,
               fused="{0} kernels recompute it tile by tile: {1} products per element cost less than its memory"),
    FusionRule("light on statistics",
               "A cheap function of much smaller reductions and of values in memory is recomputed.",
               _light_on_statistics,
               fused="{0} kernels read it, and each computes it from smaller reductions, with at most {1} operations"),
    SHARED_RESULT,
    FusionRule("short table", "A short table of integers or conditions, computed from positions, needs no memory.",
               _short_table, fused="{0} kernels read it, and it is a table of positions of at most {1} elements"),
    FusionRule("spread",
               "A cheap function of values of much less memory, such as a mask, is recomputed by each of its kernels.",
               _spread, fused="{0} kernels read it, and each computes it from far fewer elements, with {1} operations "
                              "of at most {2}"),
    FusionRule("recompute", "A value is recomputed by several kernels if that costs few operations.",
               _recompute, "{0} kernels read it, and recomputing it costs {1} operations per element",
               "{0} kernels read it, and recomputing it costs {1} operations per element, of at most {2}"),
)


# *** reductions ***

def _different_indices(c: Question) -> Answer:
    if len(c.reads) == 1:
        return None
    a, indices = c.analysis, len({r.index for r in c.reads})
    apart = indices > (c.kernels if a.joins_chain(c.node, c.reads) else 1)
    return (True,) if apart and not a.tiled(c.node, c.reads) and not a.with_chain(c.node, c.reads) else None


REDUCTION = (
    FusionRule("different indices", "A reduction is computed once, so that a kernel reads it at one index.",
               _different_indices, "one kernel reads the reduction at different indices"),
)


def _no_opt(c: Nest) -> Answer:
    return (True,) if settings.NOOPT and (c.read.group.reduces or c.depends != c.outer) else None


def _per_element(c: Nest) -> Answer:
    return (True,) if c.read.around & c.depends and not (c.outer | c.read.around) <= c.depends else None


def _windows_of_reduction(c: Nest) -> Answer:
    if not c.nested:
        return None
    times = count_of(c.depends)
    return (True,) if times >= 2 * size_of(c.node) and times > c.costs.small_work else None


def _nested_matmul(c: Nest) -> Answer:
    return (True,) if c.nested and not c.facts.depth and c.node in c.analysis.matmuls else None


def _long_matmul(c: Nest) -> Answer:
    return (True,) if c.nested and c.facts.depth > c.costs.stream_depth and c.node in c.analysis.matmuls else None


def _block(c: Nest) -> Answer:
    """Ask if rows and columns of a product are both kept by the enclosing reduction over other axes, or are both
    reduced in windows (as by a pool)."""
    node, read = c.node, c.read
    if not c.nested or read.rows is not None or node not in c.analysis.matmuls or node.src[0].op is not Ops.MUL:
        return None
    kept = {n for n, stays in enumerate(read.position) if stays}
    pooled = {n for n, i in enumerate(read.index) if i.ranges & read.around and i.ranges & c.outer}
    own = [{n for n, s in enumerate(node.shape) if f.op is Ops.EXPAND and f.shape[n] != 1 and f.src[0].shape[n] == 1}
           for f in node.src[0].src]
    return (True,) if any(axes & own[0] - own[1] and axes & own[1] - own[0] for axes in (kept, pooled)) else None


def _stream_matmul(c: Nest) -> Answer:
    of_stream = c.read.rows is not None and c.node.op is Ops.REDUCE and contraction(c.node) is not None
    return (True,) if of_stream and c.analysis.factor(c.node) is not None else None


def _stream_rows(c: Nest) -> Answer:
    return None if c.read.rows is None else (not (c.nested or c.depends <= c.outer),)


def _padding(c: Nest) -> Answer:
    if c.nested or (times := count_of(c.depends)) <= (size := size_of(c.node)):
        return None
    large = c.facts.matmul or times * size_of(c.node.src[0]) > size * c.costs.small_work
    return (True,) if large else None


def _own_stream(c: Nest) -> Answer:
    group = c.read.group
    own = c.node in group.stream and c.depends == c.outer and (group.walk is None or group.walk is c.node)
    return (False,) if own else None


def _epilogue_only(c: Nest) -> Answer:
    group = c.read.group
    alone = group.contraction or (c.facts.matmul and (group.reduces or c.depends != c.outer))
    return (True,) if not c.nested and alone else None


def _repeated_matmul(c: Nest) -> Answer:
    repeated = not c.nested and c.facts.product and c.depends < c.outer
    return (True,) if repeated and count_of(c.outer) > c.costs.small_work else None


def _other_loops(c: Nest) -> Answer:
    fits = all(c.depends <= other or other <= c.depends for other in [*c.read.group.chain, c.outer])
    return None if fits else (True,)


def _few_rows(c: Nest) -> Answer:
    few = c.depends < c.outer and not c.analysis.parallel_enough(c.node, c.depends, c.outer)
    return (True,) if few else None


def _split_lanes(c: Nest) -> Answer:
    """Ask about a reduction that its kernel reads at the quotient and the remainder of its innermost loop, as sums per
    phase that lie side by side in the result: the lanes would load each element by itself."""
    if c.facts.product or c.read.around:
        return None
    lanes = max(c.outer, key=lambda r: r.arg[0], default=None)
    if not any(n.op is Ops.MOD and lanes in n.ranges for n in toposort(c.read.index)):
        return None
    source = c.node.src[0]
    work = max(c.analysis.facts[source].light, 1) * size_of(source) // max(size_of(c.node), 1)
    return work > c.costs.scalar, work, c.costs.scalar


NESTING = (
    FusionRule("NOOPT", "NOOPT=1 gives each reduction a kernel.",
               _no_opt, "NOOPT=1 disables fusion of reductions"),
    FusionRule("per element", "A reduction is not recomputed for the elements that an outer reduction reads.",
               _per_element, "fusion would recompute it for every element that the outer reduction reads"),
    FusionRule("windows of a reduction", "A reduction is not recomputed for overlapping windows.",
               _windows_of_reduction, "fusion would recompute it for every window that reads it"),
    FusionRule("nested matmul", "A matmul with a computed operand is not nested in another reduction.",
               _nested_matmul, "a matmul with a computed operand needs a kernel of its own"),
    FusionRule("long matmul", "A matmul of many products per element is not nested in another reduction.",
               _long_matmul,
               "a matmul with a long reduction is tiled, not computed per element inside another reduction"),
    FusionRule("block", "A matmul is not nested in a reduction that keeps its rows and columns, or pools both.",
               _block,
               "the outer reduction keeps the rows and columns of this matmul, so it is tiled in its own kernel"),
    FusionRule("matmul in a stream", "The rows of a stream contain no matmul with a computed operand.",
               _stream_matmul, "a matmul with a computed operand needs a kernel of its own"),
    FusionRule("rows of a stream", "A reduction in the rows of a stream nests with the loops of the rows.",
               _stream_rows, "its loops do not nest with the row loops",
               "it is computed with the rows of the matmul that reads it"),
    FusionRule("padding", "A reduction is not computed for what its result is padded to.",
               _padding, "fusion would compute the reduction for padding, too"),
    FusionRule("own stream", "A kernel walks over the tiles of its matmul with a computed operand.",
               _own_stream,
               fused="the kernel walks over the tiles of this matmul, and computes its operand tile by tile"),
    FusionRule("epilogue only", "A matmul shares a kernel with no other reduction.",
               _epilogue_only, "a matmul fuses only with a pointwise prologue and epilogue"),
    FusionRule("repeated matmul", "A matmul is not recomputed in loops that it does not depend on.",
               _repeated_matmul, "fusion would recompute the matmul in loops that it does not depend on"),
    FusionRule("other loops", "The sets of loops that a kernel's reductions depend on form a chain.",
               _other_loops, "its loops do not nest with the kernel's other loops"),
    FusionRule("few rows", "A kernel of several passes over rows has enough rows for all cores.",
               _few_rows, "too few rows to occupy all cores"),
    FusionRule("split lanes",
               "A reduction that is read at quotients and remainders of the innermost loop is stored, unless short.",
               _split_lanes, "the lanes of its kernel read it at quotients and remainders, and it has {0} operations",
               "the lanes of its kernel read it at quotients and remainders, and it has {0} operations, of at most {1}",
               settles=False),
    FusionRule("nested loops", "A reduction is fused where the loops nest so that it is computed once.",
               lambda c: (False, count_of(c.depends)),
               fused="the loops nest so that each of its {0} results is computed once"),
)


def _few_results(c: Nest) -> Answer:
    """Ask if a reduction has too few results to run in parallel, but its source has enough rows, reductions of their
    own."""
    value = below_reshapes(c.node.src[0])
    if settings.NOOPT or not c.analysis.facts[value].heavy or value.op.kind == "movement":
        return None
    if count_of(c.outer) >= c.costs.rows:
        return None
    read = max((size_of(r.src[0]) for r in reductions_of(cone_of(value))), default=0)
    return (c.costs.rows <= size_of(value) <= read // 4 and read > c.costs.small_work,)


FEW_RESULTS = FusionRule("few results",
                         "Rows that contain reductions are stored, if what reduces them has few results.",
                         _few_results, "the outer reduction has too few results to occupy all cores")


# *** one kernel, several places ***

def _window_reads(c: Question) -> Answer:
    """Ask about overlapping windows of a kernel other than a contraction."""
    if any(r.group.contraction for r in c.reads):
        return None
    often = max((_overlap(r.index, c.node.shape, apart=True) for r in c.reads if r.around), default=1.0)
    work = _work(c)
    return None if often <= 1 else ((often - 1) * work > c.costs.windows, often, work)


def _work(c: Question) -> int:
    return c.facts.light + c.costs.join * c.facts.joins


def _passes(c: Question) -> int:
    return sum(1 for r in c.reads if r.around or r.group.reduces)


def _row_passes(c: Question) -> Answer:
    scattered = c.facts.joins + c.facts.edges
    if not scattered or (passes := _passes(c)) < 2:
        return None
    return (passes - 1) * c.costs.join * scattered > c.costs.recompute, passes


def _scattered_source(c: Question) -> Answer:
    """Ask about a value that the rule "passes" would store, whose own statistics read the same scattered value. That is
    the last number: it is stored, if the passes recompute the rest for less than a second assembly."""
    if not c.facts.heavy or (answer := _row_passes(c)) is None or not answer[0]:
        return None
    below = _scattered_below(c.analysis, c.node)
    if below is None:
        return None
    again = (answer[1] - 1) * (c.facts.light - c.analysis.facts[below].light)
    return (False, answer[1], below) if again <= c.costs.join else None


def _passes_of_value(c: Question) -> Answer:
    return _row_passes(c) if _scattered_source(c) is None else None


def _scattered_below(a: Analysis, node: UOp) -> UOp | None:
    """Return the only scattered value below ``node``, if the reductions below ``node`` read it too, else None."""
    own = {n for r in reductions_of(cone_of(node)) for n in cone_of(r.src[0])}
    while True:
        below = {s for s in node.src if s.op not in STAGED and a.facts[s].joins + a.facts[s].edges}
        if len(below) != 1:
            return None
        (node,) = below
        if node in own and (node.op is Ops.PAD or node.op.kind != "movement"):
            return node


def _indices(c: Question) -> Answer:
    again = len(c.reads) - c.kernels
    if not again:
        return None
    short = any(r.around and count_of(r.around) <= c.costs.short_row for r in c.reads)
    limit = c.costs.windows if short else c.costs.places
    return again * c.facts.light > limit, len(c.reads), c.facts.light, limit


def _unpartitioned(c: Question) -> Answer:
    again = len(c.reads) - len({(id(r.group), r.around) for r in c.reads})
    if not again or not (c.facts.heavy or _passes(c)):
        return None
    work = _work(c)
    return again * work > c.costs.unpartitioned, again + 1, work, c.costs.unpartitioned


SCATTERED_SOURCE = FusionRule(
    "scattered source", "Of passes whose statistics read a gathered, padded or assembled value, that value is stored.",
    _scattered_source, fused="{0} passes over rows read it, and the padded or assembled value below it is stored",
    settles=False)
PASSES = FusionRule(
    "passes", "A value that several passes read is stored if it is gathered, padded or assembled from parts.",
    _passes_of_value, "{0} passes over rows read it, and it is gathered, padded or assembled from parts",
    "{0} passes over rows read it", settles=False)
PLACES = (
    PRODUCT,
    FusionRule("windows", "A value that overlapping windows read often is recomputed if that costs few operations.",
               _window_reads, "windows read each element {0:.1f} times, and recomputing it costs {1} operations",
               "windows read each element {0:.1f} times, and recomputing it costs {1} operations", settles=False),
    SCATTERED_SOURCE,
    PASSES,
    FusionRule("indices", "A value that a kernel reads at several indices is recomputed if that costs few operations.",
               _indices, "it is read at {0} indices, and recomputing it costs {1} operations per element",
               "it is read at {0} indices, and recomputing it costs {1} operations per element, of at most {2}",
               settles=False),
    FusionRule("unpartitioned",
               "The same for a kernel of passes over rows, whose loops cannot be partitioned at edges.",
               _unpartitioned, "passes over rows read it at {0} indices, and recomputing it costs {1} operations",
               "passes over rows read it at {0} indices, and recomputing it costs {1} operations, of at most {2}",
               settles=False),
)


# *** operands, and sources of scans ***

def _operand(c: Question) -> Answer:
    cost, limit = c.facts.cost, c.costs.operand
    if cost > limit and c.costs.block_factors and not c.read.group.contraction and _is_unpacked(c.node):
        # the scale of blocks of quantized weights in a sum that reads each of them once: a kernel of a core computes
        # the scales of several blocks as a vector
        limit = c.costs.recompute
    return (cost > limit, cost, limit) if cost else None


def _operand_reads(c: Question) -> Answer:
    read, cost = c.read, c.facts.cost
    if not read.group.contraction or not cost:
        return None
    reads = count_of((read.outer | read.around) - ranges_in(read.index))
    stores = cost * reads > c.costs.operand_reads and (
        not _is_unpacked(c.node) or (reads >= MOST_UNPACKED and _is_scaled(c.node)))
    return stores, reads, cost


def _scattered_operand(c: Question) -> Answer:
    return (True,) if c.read.group.contraction and c.facts.joins else None


def _is_unpacked(value: UOp) -> bool:
    """Return True if a value is computed from elements of a narrower dtype (quantized weights): a matmul reads fewer
    bytes if it computes the value itself."""
    return any(n.op is Ops.CAST and n.src[0].dtype.itemsize < n.dtype.itemsize and 8 * size_of(n) >= size_of(value)
               for n in cone_of(value))


def _is_scaled(value: UOp) -> bool:
    """Return True if an unpacked value is a float computed from integers by several operations: quantized weights."""
    inside = cone_of(value)
    return value.dtype.is_float and any(n.op is Ops.MUL and n.dtype.is_float for n in inside) and any(
        n.op is Ops.CAST and n.src[0].dtype.is_int for n in inside)


OPERAND = (
    FusionRule("operand", "A value that a reduction reads repeatedly is recomputed if that costs few operations.",
               _operand, "a reduction reads it repeatedly, and recomputing it costs {0} operations per element",
               "a reduction reads it repeatedly, and recomputing it costs {0} operations per element, of at most {1}",
               settles=False),
    FusionRule("operand reads",
               "The same for a matmul, by the number of its reads, unless few of them unpack it from fewer bytes.",
               _operand_reads, "a matmul reads each element {0} times, and recomputing it costs {1} operations",
               "a matmul reads each element {0} times, and recomputing it costs {1} operations", settles=False),
    FusionRule("scattered operand", "A matmul reads no operand that is gathered or assembled from parts.",
               _scattered_operand, "a matmul reads it repeatedly, and it is gathered or assembled from parts"),
)


class Scanned(NamedTuple):
    """A scan, and the facts about its source."""

    scan: UOp
    facts: Facts
    costs: Costs


def _scanned_parts(c: Scanned) -> Answer:
    parts = c.facts.joins + c.facts.edges
    return (c.costs.join * parts > c.costs.recompute,) if parts else None


def _scanned_scalars(c: Scanned) -> Answer:
    along = c.scan.arg[1] == c.scan.ndim - 1 and c.facts.cost
    return (c.facts.cost > c.costs.scalar, c.facts.cost, c.costs.scalar) if along else None


SCANNED = (
    FusionRule("scanned parts", "The source of a scan is stored if it is gathered, padded or assembled from parts.",
               _scanned_parts, "a scan reads it, and it is gathered, padded or assembled from parts",
               "a scan reads it, and its parts cost less than its memory", settles=False),
    FusionRule("scanned scalars", "A scan along contiguous memory computes its source without vectors.",
               _scanned_scalars, "a scan along contiguous memory computes scalars, and this costs {0} operations",
               "a scan along contiguous memory computes scalars, and this costs {0} operations, of at most {1}",
               settles=False),
)
