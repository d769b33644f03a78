"""Verifiers of the three dialects: a graph goes in; a violation raises ``VerifyError`` with the faulty node marked.

Each verifier is a table of named checks; docs/ir.md lists them. ``CHECK_IR=1`` runs them between passes. A check
examines one node (in a linear program: one line and the state after the lines before it) and returns an error message,
or None. The tables follow in this order: tensor graphs, kernel graphs, linear programs."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from tinsmith.core.dtypes import dtypes
from tinsmith.core.errors import VerifyError
from tinsmith.ir.algebra.bounds import bound_ranges, start_of
from tinsmith.ir.algebra.symbolic import digits
from tinsmith.ir.matrix_unit import MatrixUnit, StagedLayout, in_memory
from tinsmith.ir.ops import Op, Ops, op_table
from tinsmith.ir.ops.tensor import TensorOps
from tinsmith.ir.text.node import short
from tinsmith.ir.text.printer import listing_rows, table_rows
from tinsmith.ir.uop import UOp, toposort

Subject = TypeVar("Subject")


@dataclass(frozen=True)
class Check(Generic[Subject]):
    """A named check of the nodes whose op is in ``ops`` (empty: all nodes)."""

    name: str
    doc: str
    ops: tuple[Op, ...]
    fault: Callable[[UOp, Subject], str | None]

    def find(self, node: UOp, subject: Subject) -> str | None:
        if self.ops and node.op not in self.ops:
            return None
        try:
            return self.fault(node, subject)
        except (TypeError, ValueError, AttributeError, IndexError) as error:  # a node too malformed to be checked
            return str(error) or type(error).__name__


def marked(rows: Sequence[tuple[UOp, str]], at: int, name: str, fault: str) -> str:
    lines = [f"[{name}] {fault}"]
    for i, (_, text) in enumerate(rows):
        lines.append(f"{text}   <-- {name}" if i == at else text)
    return "\n".join(lines)


def run(checks: Sequence[Check[Any]], root: UOp, subject: Any) -> None:
    for node in toposort(root):
        for check in checks:
            fault = check.find(node, subject)
            if fault is not None:
                rows = listing_rows(root)
                at = next(i for i, (n, _) in enumerate(rows) if n is node)
                raise VerifyError(marked(rows, at, check.name, fault))


def unless(condition: bool, fault: str) -> str | None:
    return None if condition else fault


def allowed(ops: frozenset[Op], dialect: str) -> Check[Any]:
    return Check("allowed-op", f"Only ops of the {dialect}.", (),
                 lambda n, _: unless(n.op in ops, f"{n.op.name} is not allowed in a {dialect}"))


def dtype(n: UOp, _: Any) -> str | None:
    if n.op.dtype is None:
        return None
    right = n.op.dtype(n.src, n.arg)
    return unless(right is n.dtype, f"{n.op.name} of {[s.dtype for s in n.src]} is {right}, not {n.dtype}")


def _const(n: UOp, _: Any) -> str | None:
    held = n.dtype.as_const(n.arg)
    return unless(type(held) is type(n.arg) and (held == n.arg or held != held), f"{n.dtype} cannot hold {n.arg!r}")


def _bitcast(n: UOp, _: Any) -> str | None:
    old = n.src[0].dtype
    same = old.scalar.itemsize * old.count == n.dtype.scalar.itemsize * n.dtype.count
    return unless(same, f"{old} and {n.dtype} differ in width")


def sink_root(n: UOp, root: UOp) -> str | None:
    return unless(n is root, "a SINK cannot be a source of another node")

DTYPE: Check[Any] = Check("dtype", "The dtype equals the one that the op's dtype rule derives.", (), dtype)
CONST: Check[Any] = Check("const", "A constant is representable in its dtype.", (Ops.CONST,), _const)
BITCAST: Check[Any] = Check("bitcast", "A bitcast keeps the width, of all lanes together.", (Ops.BITCAST,), _bitcast)
ELEMENTWISE = frozenset(op for op in op_table() if op.elementwise)


def _scalars(n: UOp, _: UOp) -> str | None:
    return unless(n.dtype.count == 1 and not n.dtype.pointer, f"{n.dtype} is not a scalar element type")


def _shape(n: UOp, _: UOp) -> str | None:
    bad = [s for s in n.shape if not _is_size(s)]
    return unless(not bad, f"{bad} in shape {n.shape}: sizes are whole numbers or index nodes")


def _is_size(size: Any) -> bool:
    return size.dtype is dtypes.index if isinstance(size, UOp) else type(size) is int and size >= 0


def _ints(*values: Any) -> bool:
    return all(type(v) is int for v in values)


def _reshape(n: UOp, _: UOp) -> str | None:
    old, new = n.src[0].size, n.size
    return unless(not _ints(old, new) or old == new, f"{n.src[0].shape} has {old} elements, {n.shape} has {new}")


def _expand(n: UOp, _: UOp) -> str | None:
    old = n.src[0].shape
    kept = [(type(a) is int and a == 1) or a == b for a, b in zip(old, n.shape)]
    return unless(len(old) == n.ndim and all(kept), f"{old} cannot be expanded to {n.shape}: only axes of size 1 can")


def _permute(n: UOp, _: UOp) -> str | None:
    return unless(sorted(n.arg) == list(range(n.src[0].ndim)), f"{n.arg} is not a permutation of {n.src[0].ndim} axes")


def _pad(n: UOp, _: UOp) -> str | None:
    fits = len(n.arg) == n.src[0].ndim and all(not _ints(v) or v >= 0 for pair in n.arg for v in pair)
    return unless(fits, f"{n.arg} does not pad the axes of {n.src[0].shape}")


def _shrink(n: UOp, _: UOp) -> str | None:
    old = n.src[0].shape
    fits = len(n.arg) == len(old) and all(not _ints(b, e, s) or 0 <= b <= e <= s for (b, e), s in zip(n.arg, old))
    return unless(fits, f"{n.arg} is not a box inside {old}")


def _axes_inside(axes: Sequence[int], ndim: int) -> bool:
    return list(axes) == sorted(set(axes)) and all(0 <= a < ndim for a in axes)


def _flip(n: UOp, _: UOp) -> str | None:
    return unless(_axes_inside(sorted(n.arg), n.ndim), f"{n.arg} are not axes of {n.shape}")


def _window(n: UOp, _: UOp) -> str | None:
    w, shape = n.arg, n.src[0].shape
    if not (w.axis != w.window_axis and _axes_inside(sorted((w.axis, w.window_axis)), len(shape))):
        return f"{w} does not name two different axes of {shape}"
    if shape[w.axis] != (w.inputs if n.op is Ops.WINDOW else w.outputs):
        return f"axis {w.axis} of {shape} does not have the size that {w} states"
    last = (w.outputs - 1) * w.stride + (shape[w.window_axis] - 1) * w.dilation
    empty = w.outputs == 0 or shape[w.window_axis] == 0
    fits = w.stride > 0 and w.dilation > 0 and (empty or not _ints(last, w.inputs) or last < w.inputs)
    return unless(fits, f"{w} reaches position {last} of {w.inputs}")


def _reduce(n: UOp, _: UOp) -> str | None:
    op, axes = n.arg
    if op.identity is None:
        return f"{op.name} cannot reduce"
    return unless(_axes_inside(axes, n.src[0].ndim), f"{axes} are not sorted axes of {n.src[0].shape}")


def _along(n: UOp, _: UOp) -> str | None:
    x, index = n.src[0], n.src[1]
    axis = n.arg if n.op is Ops.GATHER else n.arg[1] if n.op is Ops.HISTOGRAM else n.arg[0]
    if not index.dtype.is_int:
        return f"an index is an integer, not {index.dtype}"
    if x.ndim != index.ndim or not 0 <= axis < x.ndim:
        return f"axis {axis}: {x.shape} is indexed by {index.shape}"
    beside = [(a, b) for i, (a, b) in enumerate(zip(x.shape, index.shape)) if i != axis]
    if not all(a == b for a, b in beside):
        return f"except for axis {axis}, {x.shape} and {index.shape} differ"
    if n.op in (Ops.SCATTER, Ops.HISTOGRAM):
        value = n.src[2]
        return unless(value.dtype is x.dtype and value.shape == index.shape,
                       f"{value.dtype}{value.shape} does not fit {x.dtype} at {index.shape}")
    return None


def _scan(n: UOp, _: UOp) -> str | None:
    (op, axis), x = n.arg, n.src[0]
    if (op is Ops.MULADD) != (len(n.src) == 3) or (op is not Ops.MULADD and op.identity is None):
        return f"{op.name} cannot scan {len(n.src)} sources"
    if not 0 <= axis < x.ndim or any(s.ndim != x.ndim or s.dtype is not x.dtype for s in n.src[1:]):
        return f"axis {axis} of {x.shape} with {[(s.dtype, s.shape) for s in n.src[1:]]}"
    weight = n.src[2:]
    beside = [(a, b) for s in n.src[1:] for i, (a, b) in enumerate(zip(x.shape, s.shape)) if i != axis or s in weight]
    return unless(all(a == b for a, b in beside), f"{[s.shape for s in n.src]} do not fit")


def _bind(n: UOp, _: UOp) -> str | None:
    variable, value = n.src
    if variable.op is not Ops.VARIABLE or value.op is not Ops.CONST:
        return "BIND takes a VARIABLE and a CONST"
    return unless(variable.arg[1] <= value.arg <= variable.arg[2], f"{value.arg} is not within {variable.arg}")


def _assign(n: UOp, _: UOp) -> str | None:
    old, new = n.src
    return unless(old.dtype is new.dtype and old.shape == new.shape,
                   f"{new.dtype}{new.shape} cannot be a new version of {old.dtype}{old.shape}")


def _shard(n: UOp, _: UOp) -> str | None:
    axis, devices = n.arg
    if len(devices.split(",")) != len(n.src):
        return f"{len(n.src)} parts on {devices}"
    first, *others = [(*s.shape[:axis], *s.shape[axis + 1 :]) for s in n.src]
    fits = all(first == o for o in others) and len({s.dtype for s in n.src}) == 1
    return unless(fits, f"parts {[f'{s.dtype}{s.shape}' for s in n.src]}")


def _tensor_sink(n: UOp, root: UOp) -> str | None:
    return unless(all(s.dtype is not dtypes.void for s in n.src), "a SINK of a tensor graph holds values")

TENSOR_OPS = (ELEMENTWISE - {Ops.SCALE, Ops.UNLIKELY}) | {op for op in vars(TensorOps).values() if isinstance(op, Op)}
TENSOR_CHECKS: tuple[Check[UOp], ...] = (
    allowed(TENSOR_OPS, "tensor graph"),
    DTYPE, CONST, BITCAST,
    Check("scalar", "Element types are scalar: no vectors, no pointers.", (), _scalars),
    Check("shape", "The row's shape rule holds; sizes are ints or index nodes.", (), _shape),
    Check("reshape", "A reshape keeps the number of elements.", (Ops.RESHAPE,), _reshape),
    Check("expand", "Only axes of size 1 are repeated.", (Ops.EXPAND,), _expand),
    Check("permute", "The order names every axis once.", (Ops.PERMUTE,), _permute),
    Check("pad", "A pair of amounts for each axis, none negative.", (Ops.PAD,), _pad),
    Check("shrink", "The box lies inside the shape.", (Ops.SHRINK,), _shrink),
    Check("flip", "The axes exist.", (Ops.FLIP,), _flip),
    Check("window", "Every window lies inside its axis.", (Ops.WINDOW, Ops.UNWINDOW), _window),
    Check("reduce", "The op has an identity; the axes exist, in order.", (Ops.REDUCE,), _reduce),
    Check("index", "The index is an integer; shapes are equal except along the axis.",
          (Ops.GATHER, Ops.SCATTER, Ops.HISTOGRAM), _along),
    Check("scan", "The op can scan along the axis; start and weight have matching shapes.", (Ops.SCAN,), _scan),
    Check("bind", "A variable is bound within its bounds.", (Ops.BIND,), _bind),
    Check("assign", "A new version has the old one's dtype and shape.", (Ops.ASSIGN,), _assign),
    Check("shard", "A part for each device; parts differ in their axis only.", (Ops.SHARD,), _shard),
    Check("sink-root", "SINK comes last.", (Ops.SINK,), sink_root),
    Check("sink-values", "SINK holds values.", (Ops.SINK,), _tensor_sink),
)


def verify_tensor(sink: UOp) -> None:
    """Verify a tensor graph: a SINK of values, or any value.

    >>> verify_tensor(UOp.const(dtypes.int32, 1).reshape((1,)))

    Raises:
        VerifyError: at the first fault.
    """
    run(TENSOR_CHECKS, sink, sink)


@dataclass
class KernelFacts:
    """Facts about a full kernel graph that the checks need."""

    sink: UOp
    numbers: dict[int, set[UOp]] = field(default_factory=dict)  # range number → RANGE nodes that have it
    binders: dict[UOp, set[UOp]] = field(default_factory=dict)  # RANGE → nodes that iterate over it

    @staticmethod
    def of(sink: UOp) -> KernelFacts:
        facts = KernelFacts(sink)
        for n in toposort(sink):
            if n.op is Ops.RANGE:
                facts.numbers.setdefault(n.arg[0], set()).add(n)
            for r in _bound(n):
                facts.binders.setdefault(r, set()).add(n)
        return facts


def _bound(n: UOp) -> tuple[UOp, ...]:
    """Return the ranges that a node itself iterates over."""
    if n.op is Ops.PREFIX:
        return tuple(sorted(n.src[1].ranges, key=lambda r: r.arg[0]))
    return bound_ranges(n)


def position_of_valid(n: UOp) -> int:
    return 2 if n.op is Ops.LOAD else 3


def memory(n: UOp, _: Any) -> str | None:
    memory = n.src[0]
    if memory.op not in (Ops.PARAM, Ops.STAGE, Ops.DEFINE_GLOBAL, Ops.DEFINE_LOCAL):
        return f"{memory.op.name} is not memory"
    if n.op is not Ops.LOAD and memory.op is Ops.STAGE:
        return "a STAGE cannot be the target of a store"
    if not memory.dtype.pointer and memory.op is not Ops.DEFINE_LOCAL:
        return f"memory of dtype {memory.dtype} is not a pointer"
    element = n.dtype if n.op is Ops.LOAD else n.src[2].dtype
    return unless(element.scalar is memory.dtype.scalar, f"{element} in memory of {memory.dtype.scalar}")


def index(n: UOp, _: Any) -> str | None:
    index = n.src[1]
    right = index.dtype.scalar is dtypes.index
    return unless(right, f"an index has the index dtype, not {index.dtype} ({short(index)})")


def valid(n: UOp, _: Any) -> str | None:
    at = position_of_valid(n)
    if len(n.src) <= at:
        return None
    return unless(n.src[at].dtype.is_bool, f"a condition is bool, not {n.src[at].dtype}")


def _range_args(n: UOp, facts: KernelFacts) -> str | None:
    if not all(s.dtype is dtypes.index for s in n.src):
        return f"a range has index bounds, not {[s.dtype for s in n.src]}"
    tiles = isinstance(n.arg, tuple) and len(n.src) == 2 and isinstance(n.arg[-1], int)
    if not (isinstance(n.arg, tuple) and isinstance(n.arg[0], int) and (n.arg[2:] in ((), ("partial",)) or tiles)):
        return f"a range's argument is (number, role[, 'partial' or the steps of a tile]), not {n.arg!r}"
    return unless(len(facts.numbers[n.arg[0]]) == 1, f"two ranges have number {n.arg[0]}")


def _binds_ranges(n: UOp, _: KernelFacts) -> str | None:
    bound = _bound(n)
    if not all(r.op is Ops.RANGE for r in bound):
        return f"{n.op.name} must iterate over ranges, not {[short(r) for r in bound if r.op is not Ops.RANGE]}"
    return unless(len(set(bound)) == len(bound), "a range is named twice")


def _bound_once(n: UOp, facts: KernelFacts) -> str | None:
    """Check that a range has binders of one kind and does not escape. Reductions may share ranges, and so may ordered
    statements and stages that threads fill together. An unrolled (``expanded``) range may be reduced and also be used
    outside the reduction."""
    binders = facts.binders.get(n, set())
    if len({b.op for b in binders}) > 1:
        return f"bound by {sorted(b.op.name for b in binders)}"
    looped = not getattr(n.arg[1], "expanded", False)
    escapes = looped and n in facts.sink.ranges and any(b.op in (Ops.FOLD, Ops.STAGE) for b in binders)
    return unless(not escapes, f"R{n.arg[0]} is bound by a reduction or stage and used outside it")


def _fold(n: UOp, _: KernelFacts) -> str | None:
    if not isinstance(n.arg, Op) or n.arg.identity is None:
        return f"{n.arg} cannot reduce"
    start = start_of(n)
    return unless(start is None or start.ranges.isdisjoint(bound_ranges(n)), "the start depends on the ranges")


def _prefix(n: UOp, _: KernelFacts) -> str | None:
    value, place, start = n.src[:3]
    if (n.arg is Ops.MULADD) != (len(n.src) == 4) or any(s.dtype is not value.dtype for s in n.src[2:]):
        return f"{n.arg} with {[s.dtype for s in n.src[2:]]} cannot scan {value.dtype}"
    if not digits(place):
        return f"{short(place)} is neither a range nor a mixed-radix number of ranges"
    return unless(place.ranges.isdisjoint(start.ranges), "the start depends on the range")


def _stage(n: UOp, _: KernelFacts) -> str | None:
    if not n.dtype.pointer or n.dtype.scalar is not n.src[0].dtype:
        return f"a stage of {n.src[0].dtype} is a pointer to it, not {n.dtype}"
    if len(n.arg) != len(n.src) - 1:
        return f"{len(n.arg)} sizes for {len(n.src) - 1} ranges"
    fits = all(r.src[-1].vmax <= s for r, s in zip(n.src[1:], n.arg))
    return unless(fits, f"a range is longer than its size in {n.arg}")


def _product(n: UOp, _: KernelFacts) -> str | None:
    if not isinstance(n.arg, MatrixUnit) or len(n.src) != 5:
        return f"(a, b, m, n, k) on a matrix unit, not {len(n.src)} sources on {n.arg!r}"
    if (n.src[0].dtype, n.src[1].dtype) != (n.arg.a, n.arg.b):
        return f"{n.arg.name} multiplies {n.arg.a} and {n.arg.b}, not {[s.dtype for s in n.src[:2]]}"
    sizes = [r.src[-1].arg if r.op is Ops.RANGE and r.src[-1].is_const else 1 for r in n.src[2:]]
    if sizes != [n.arg.m, n.arg.n, n.arg.k]:
        return f"{n.arg.name} steps over {n.arg.m}, {n.arg.n} and {n.arg.k}, not {sizes}"
    crossed = n.src[3] in n.src[0].ranges or n.src[2] in n.src[1].ranges
    return unless(not crossed, "a depends on n, or b on m")


def _statement(n: UOp, facts: KernelFacts) -> str | None:
    if n.op is Ops.SINK and n is not facts.sink:
        return "a SINK cannot be a source of another node"
    bad = [s.op.name for s in n.src if s.op not in (Ops.STORE, Ops.SCATTER_STORE, Ops.AFTER)]
    return unless(not bad, f"{bad} are not statements")


def _covered(n: UOp, _: KernelFacts) -> str | None:
    """Check that a store's index depends on every range of its value: otherwise iterations would write different values
    to one element."""
    loose = frozenset().union(*(s.ranges for s in n.src[2:])) - n.src[1].ranges
    return unless(not loose, f"the value depends on {sorted(map(short, loose))}, but the index does not")

_KERNEL_VALUES = {Ops.CONST, Ops.VARIABLE, Ops.PARAM, Ops.RANGE, Ops.LOAD, Ops.FOLD, Ops.PREFIX, Ops.STAGE, Ops.MMA}
KERNEL_OPS = ELEMENTWISE | _KERNEL_VALUES | {Ops.STORE, Ops.SCATTER_STORE, Ops.AFTER, Ops.SINK}
KERNEL_CHECKS: tuple[Check[KernelFacts], ...] = (
    allowed(KERNEL_OPS, "kernel graph"),
    CONST, BITCAST,
    Check("memory", "Loads and stores access memory of their dtype.", (Ops.LOAD, Ops.STORE, Ops.SCATTER_STORE), memory),
    Check("index-dtype", "Indices have the index dtype.", (Ops.LOAD, Ops.STORE, Ops.SCATTER_STORE), index),
    Check("valid-bool", "Conditions are bool.", (Ops.LOAD, Ops.STORE, Ops.SCATTER_STORE), valid),
    Check("range", "Ranges have index bounds and unique numbers.", (Ops.RANGE,), _range_args),
    Check("binds-ranges", "Nodes that iterate over ranges list each range once.",
          (Ops.FOLD, Ops.PREFIX, Ops.STAGE, Ops.SCATTER_STORE), _binds_ranges),
    Check("bound-once", "A range is bound by nodes of one op and not used outside them.", (Ops.RANGE,),
          _bound_once),
    Check("fold", "The op has an identity; the start does not depend on the ranges.", (Ops.FOLD,), _fold),
    Check("prefix", "The start does not depend on the range; MULADD has a weight.", (Ops.PREFIX,), _prefix),
    Check("product", "A matrix-unit step has the unit's dtypes and sizes.", (Ops.MMA,), _product),
    Check("stage", "A stage is a pointer with one size per range.", (Ops.STAGE,), _stage),
    Check("statement", "SINK and AFTER hold statements.", (Ops.SINK, Ops.AFTER), _statement),
    Check("covered", "A store's index depends on every range that its value depends on.", (Ops.STORE,), _covered),
    Check("dtype", "The dtype equals the one that the op's dtype rule derives.", (),
          lambda n, _: None if n.op is Ops.STAGE else dtype(n, _)),
)


def verify_kernel(sink: UOp) -> None:
    """Verify a kernel graph.

    Raises:
        VerifyError: at the first fault.
    """
    run(KERNEL_CHECKS, sink, KernelFacts.of(sink))


@dataclass
class ProgramState:
    """State of the verifier before a line: open scopes with their values, and the groups of asynchronous MMAs."""

    # Open scopes, outermost first: (opening RANGE or IF, values defined in the scope).
    scopes: list[tuple[UOp | None, set[UOp]]] = field(default_factory=lambda: [(None, set())])
    begun: bool = False  # a line other than DEFINE_GLOBAL has been seen
    started: set[UOp] = field(default_factory=set)  # RANGEs and IFs opened so far
    groups: int = 0  # COMMITs so far
    group_of: dict[UOp, int] = field(default_factory=dict)  # MMA → number of COMMITs before it

    def sees(self, node: UOp) -> bool:
        return any(node in values for _, values in self.scopes)

    def home(self, node: UOp) -> set[UOp]:
        return next((values for _, values in self.scopes if node in values), self.scopes[-1][1])

    def advance(self, node: UOp) -> None:
        """Update the state with a line. A PHI is visible in every scope where its accumulator is."""
        self.begun = self.begun or node.op is not Ops.DEFINE_GLOBAL
        self.groups += node.op is Ops.COMMIT
        if node.op is Ops.MMA:
            self.group_of[node] = self.groups
        if node.op in _OPENS:
            self.scopes.append((node, {node}))
            self.started.add(node)
        elif node.op in _CLOSES:
            self.scopes.pop()
        else:
            self.home(node.src[0] if node.op is Ops.PHI else node).add(node)

_OPENS = (Ops.RANGE, Ops.IF)
_CLOSES = {Ops.ENDRANGE: Ops.RANGE, Ops.ENDIF: Ops.IF}
_REPEATABLE = (Ops.LOAD, Ops.STORE, Ops.LOAD_TILE, Ops.STORE_TILE, Ops.CONST, Ops.IF, Ops.ENDIF, Ops.BARRIER,
               Ops.WARP_BARRIER, Ops.PREFETCH, Ops.ARRIVE, Ops.ASYNC_COPY, Ops.WAIT, Ops.RELEASE, Ops.FENCE, Ops.COMMIT,
               Ops.DRAIN)


def _globals_first(n: UOp, state: ProgramState) -> str | None:
    return unless(not state.begun, "DEFINE_GLOBAL must precede all other lines")


def _nesting(n: UOp, state: ProgramState) -> str | None:
    opened = state.scopes[-1][0]
    return unless(opened is not None and n.src[0] is opened and opened.op is _CLOSES[n.op],
                   f"{short(n.src[0])} is not the innermost open loop or condition")


def _defined(n: UOp, state: ProgramState) -> str | None:
    sources = n.src[:1] if n.op is Ops.DEFINE_ACC else n.src  # an accumulator is defined before its loops
    missing = [s for s in sources if s.op is not Ops.CONST and not state.sees(s)]
    return unless(not missing, f"not defined before, or defined in a closed scope: {', '.join(map(short, missing))}")


def _once(n: UOp, state: ProgramState) -> str | None:
    return unless(n.op in _REPEATABLE or not state.sees(n), "defined twice")


def _widths(n: UOp, _: ProgramState) -> str | None:
    counts = [s.dtype.count for s in n.src]
    return unless(all(c == n.dtype.count for c in counts), f"{n.dtype.count} lanes from sources of {counts}")


def _access_widths(n: UOp, _: ProgramState) -> str | None:
    count = n.dtype.count if n.op is Ops.LOAD else n.src[2].dtype.count
    if n.src[1].dtype.count not in (1, count):
        return f"{n.src[1].dtype.count} indices for {count} lanes"
    at = position_of_valid(n)
    return unless(len(n.src) <= at or n.src[at].dtype.count == count, f"{count} lanes need {count} conditions")


def _accumulator(n: UOp, state: ProgramState) -> str | None:
    if n.src[0].dtype is not n.dtype:
        return f"starts as {n.src[0].dtype}"
    if any(s.op is not Ops.RANGE for s in n.src[1:]):
        return "the sources after the start value must be RANGEs"
    return unless(not any(s in state.started for s in n.src[1:]), "its loop is already open")


def _phi(n: UOp, state: ProgramState) -> str | None:
    acc, value = n.src
    if acc.op is not Ops.DEFINE_ACC:
        return f"{acc.op.name} is no accumulator"
    if value.dtype is not acc.dtype:
        return f"{acc.dtype} gets a {value.dtype}"
    open_now = {opened for opened, _ in state.scopes}
    return unless(all(r in open_now for r in acc.src[1:]), "the accumulator's loop is not open")


def _vectorize(n: UOp, _: ProgramState) -> str | None:
    lanes = sum(s.dtype.count for s in n.src)
    spread = len(n.src) == 1 and n.dtype.count % lanes == 0
    same = all(s.dtype.scalar is n.dtype.scalar for s in n.src)
    return unless(same and (spread or lanes == n.dtype.count), f"{n.dtype} from {[s.dtype for s in n.src]}")


def _gep(n: UOp, _: ProgramState) -> str | None:
    vector = n.src[0].dtype
    fits = len(n.arg) == n.dtype.count and all(0 <= lane < vector.count for lane in n.arg)
    return unless(fits and n.dtype.scalar is vector.scalar, f"{n.dtype} from lanes {n.arg} of {vector}")


def _shuffle(n: UOp, _: ProgramState) -> str | None:
    return unless(isinstance(n.arg, int) and n.arg > 0 and n.src[0].dtype is n.dtype,
                   f"{n.dtype} from {n.src[0].dtype} of the thread at XOR distance {n.arg}")


def _match(n: UOp, _: ProgramState) -> str | None:
    key = n.src[0].dtype
    return unless(isinstance(n.arg, int) and n.arg > 0 and key.is_int and key.count == 1, f"{key} of {n.arg} bits")


def _loop_bounds(n: UOp, _: ProgramState) -> str | None:
    return unless(n.dtype is dtypes.index and len(n.src) == 2, "a RANGE has two index bounds")


def _multiply(n: UOp, _: ProgramState) -> str | None:
    if not isinstance(n.arg, MatrixUnit) or len(n.src) != 3:
        return f"(accumulator, a, b) on a matrix unit, not {len(n.src)} sources on {n.arg!r}"
    unit = n.arg
    a = unit.operand_a if unit.held and n.src[1].op is not Ops.TILE else unit.fragment_a
    right = [unit.acc.vec(unit.fragment_c.size), unit.a.vec(a.size), unit.b.vec(unit.fragment_b.size)]
    return unless([s.dtype for s in n.src] == right, f"{unit.name} takes {right}, not {[s.dtype for s in n.src]}")


def _tile(n: UOp, _: ProgramState) -> str | None:
    memory, value = n.src[0], n if n.op is Ops.LOAD_TILE else n.src[3]
    if memory.op not in (Ops.DEFINE_GLOBAL, Ops.DEFINE_LOCAL) or memory.dtype.scalar is not value.dtype.scalar:
        return f"{value.dtype} in {memory.op.name} of {memory.dtype}"
    rows, columns = n.arg
    if not all(s.dtype is dtypes.index for s in n.src[1:3]):
        return "a tile has an index and a pitch"
    return unless(rows * columns == value.dtype.count, f"{value.dtype.count} elements, not {rows} x {columns}")


def _matrices(n: UOp, _: ProgramState) -> str | None:
    memory, index = n.src
    if memory.op is not Ops.DEFINE_LOCAL or memory.dtype.scalar is not n.dtype.scalar or n.dtype.itemsize != 2:
        return f"matrices of {n.dtype} in {memory.op.name} of {memory.dtype}"
    fits = index.dtype is dtypes.index and n.dtype.count in (2, 4, 8)
    return unless(fits, f"{n.dtype.count} elements at an {index.dtype}")


def _staged_tile(n: UOp, _: ProgramState) -> str | None:
    memory, index = n.src
    laid_out = memory.op is Ops.DEFINE_LOCAL and len(memory.arg) == 3 and isinstance(memory.arg[2], StagedLayout)
    if not laid_out or memory.dtype.scalar is not n.dtype.scalar:
        return f"a tile of {n.dtype} must be in local memory with a layout, not in {short(memory)} of {memory.dtype}"
    return unless(index.dtype is dtypes.index, f"the position has the index dtype, not {index.dtype}")


def _ring(n: UOp, _: ProgramState) -> str | None:
    slots = n.arg[1]
    fits = all(m.op is Ops.DEFINE_LOCAL and len(m.arg) == 3 and m.arg[1] == slots * m.arg[2].elements for m in n.src)
    return unless(fits, f"local memory of a ring must hold {slots} tiles")


def _in_ring(n: UOp, _: ProgramState) -> str | None:
    if n.src[0].op is not Ops.DEFINE_RING:
        return f"{n.src[0].op.name} is not a ring"
    places = n.src[1:] if n.op is not Ops.ASYNC_COPY else (n.src[1], n.src[3], *n.src[5:])
    if not all(s.dtype is dtypes.index for s in places):
        return "slots, parities, offsets and coordinates must have the index dtype"
    if n.op is not Ops.ASYNC_COPY:
        return None
    near, far = n.src[2], n.src[4]
    if near not in n.src[0].src or far.op is not Ops.DEFINE_GLOBAL or far.dtype.scalar is not in_memory(
            near.dtype.scalar):
        return f"cannot copy {short(far)} to {short(near)}"
    dimensions = {len(n.arg.sizes), len(n.arg.strides), len(n.arg.box), len(n.src) - 5}
    return unless(len(dimensions) == 1, f"{len(n.src) - 5} coordinates of {n.arg}")


def _drain(n: UOp, state: ProgramState) -> str | None:
    counted = isinstance(n.arg, int) and n.arg >= 0
    later = state.groups - 1 - state.group_of.get(n.src[0], state.groups - 1) if n.src else n.arg
    return unless(counted and n.arg <= later,
                  f"DRAIN must wait for the accumulator's steps: at most {later} groups may be in flight")


def _condition(n: UOp, _: ProgramState) -> str | None:
    return unless(n.src[0].dtype is dtypes.bool, f"a condition is one bool, not {n.src[0].dtype}")

_ALU = tuple(op for op in op_table() if op.elementwise and op is not Ops.BITCAST)
PROGRAM_OPS = (ELEMENTWISE - {Ops.UNLIKELY}) | {
    Ops.DEFINE_GLOBAL, Ops.DEFINE_LOCAL, Ops.DEFINE_ACC, Ops.CONST, Ops.SPECIAL, Ops.RANGE, Ops.ENDRANGE, Ops.IF,
    Ops.ENDIF, Ops.LOAD, Ops.STORE, Ops.PHI, Ops.VECTORIZE, Ops.GEP, Ops.BARRIER, Ops.PREFETCH, Ops.MMA, Ops.LOAD_TILE,
    Ops.STORE_TILE, Ops.SHUFFLE, Ops.MATCH, Ops.WARP_BARRIER, Ops.DEFINE_RING, Ops.ARRIVE, Ops.ASYNC_COPY, Ops.WAIT,
    Ops.TILE, Ops.FENCE, Ops.COMMIT, Ops.DRAIN, Ops.LOAD_MATRIX, Ops.RELEASE}
PROGRAM_CHECKS: tuple[Check[ProgramState], ...] = (
    allowed(PROGRAM_OPS, "linear program"),
    Check("globals-first", "DEFINE_GLOBAL comes first.", (Ops.DEFINE_GLOBAL,), _globals_first),
    Check("nesting", "ENDRANGE and ENDIF close the innermost open loop or condition.",
          (Ops.ENDRANGE, Ops.ENDIF), _nesting),
    Check("defined", "Sources are defined before use, in an open scope.", (), _defined),
    Check("once", "A value is defined once per scope.", (), _once),
    Check("widths", "Vector widths agree across arithmetic.", _ALU, _widths),
    Check("memory", "Loads and stores access memory of their dtype.", (Ops.LOAD, Ops.STORE), memory),
    Check("index-dtype", "Indices have the index dtype.", (Ops.LOAD, Ops.STORE, Ops.PREFETCH), index),
    Check("valid-bool", "Conditions are bool.", (Ops.LOAD, Ops.STORE, Ops.PREFETCH), valid),
    Check("access-widths", "One index (of the first lane) or one per lane; one condition per lane.",
          (Ops.LOAD, Ops.STORE), _access_widths),
    Check("accumulator", "An accumulator has its start's dtype and is defined before its loops.", (Ops.DEFINE_ACC,),
          _accumulator),
    Check("phi", "PHI gives an accumulator its next value, inside its loop.", (Ops.PHI,), _phi),
    Check("vectorize", "The sources' lanes fill the vector, or one source is broadcast.", (Ops.VECTORIZE,), _vectorize),
    Check("gep", "The lanes exist.", (Ops.GEP,), _gep),
    Check("shuffle", "Source and result have the same dtype.", (Ops.SHUFFLE,), _shuffle),
    Check("match", "The key is a scalar integer with a positive number of bits.", (Ops.MATCH,), _match),
    Check("loop-bounds", "A loop has two index bounds.", (Ops.RANGE,), _loop_bounds),
    Check("multiply", "A matrix unit gets fragments of its types.", (Ops.MMA,), _multiply),
    Check("tile", "A tile is in memory of its dtype and has rows × columns elements.",
          (Ops.LOAD_TILE, Ops.STORE_TILE), _tile),
    Check("matrices", "Matrices of 8 × 8 in local memory.", (Ops.LOAD_MATRIX,), _matrices),
    Check("staged-tile", "A staged operand is in local memory with a layout.", (Ops.TILE,), _staged_tile),
    Check("ring", "The slots of a ring are local memory.", (Ops.DEFINE_RING,), _ring),
    Check("in-ring", "Copies fill slots of a ring.", (Ops.ARRIVE, Ops.WAIT, Ops.ASYNC_COPY, Ops.RELEASE), _in_ring),
    Check("drain", "At most `arg` later groups of steps are in flight.", (Ops.DRAIN,), _drain),
    Check("condition", "IF takes one bool.", (Ops.IF,), _condition),
    BITCAST, DTYPE,
)


def verify_program(linear: Sequence[UOp]) -> None:
    """Verify a linear program, line by line.

    Raises:
        VerifyError: at the first fault.
    """
    state = ProgramState()
    for at, node in enumerate(linear):
        for check in PROGRAM_CHECKS:
            fault = check.find(node, state)
            if fault is not None:
                raise VerifyError(_program_text(linear, at, check.name, fault))
        state.advance(node)
    if len(state.scopes) > 1:
        opened = state.scopes[-1][0]
        assert opened is not None
        raise VerifyError(_program_text(linear, linear.index(opened), "closed", f"{short(opened)} is never closed"))


def _program_text(linear: Sequence[UOp], at: int, name: str, fault: str) -> str:
    """Return the program's table with the faulty line marked. Equal constants share a row, so rows are fewer than
    lines."""
    rows = table_rows(linear)
    before = len(table_rows(linear[: at + 1])) - 1
    return marked(rows, before, name, fault)
