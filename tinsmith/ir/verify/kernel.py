"""Verifier of kernel graphs: a table of named checks."""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tinsmith.core.dtypes import dtypes
from tinsmith.ir.algebra.bounds import bound_ranges, start_of
from tinsmith.ir.algebra.symbolic import digits
from tinsmith.ir.matrix_unit import MatrixUnit
from tinsmith.ir.ops import Op, Ops
from tinsmith.ir.text.node import short
from tinsmith.ir.uop import UOp, toposort
from tinsmith.ir.verify.checks import BITCAST, CONST, ELEMENTWISE, Check, allowed, dtype, run, unless


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
    if not (isinstance(n.arg, tuple) and isinstance(n.arg[0], int) and n.arg[2:] in ((), ("partial",))):
        return f"a range's argument is (number, role) or (number, role, 'partial'), not {n.arg!r}"
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
