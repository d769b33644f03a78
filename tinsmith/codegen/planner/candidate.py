"""Candidates of the planner, and the helpers that their generators share. Every change to a kernel is an ``Opt``, so
that ``Kernel.opts`` describes it completely."""
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from tinsmith.codegen.kernel import Kernel
from tinsmith.codegen.opt import Opt, OptOps
from tinsmith.core.dtypes import dtypes
from tinsmith.core.errors import ArgumentError
from tinsmith.ir import Ops, UOp
from tinsmith.ir.algebra.sizes import linear_form
from tinsmith.ir.structure import count_of, range_size
from tinsmith.ir.uop import toposort
from tinsmith.target.target import Target


class Unfit(Exception):
    """A candidate does not suit a kernel, for a reason that only its application finds; the message says why."""


class Candidate(NamedTuple):
    """A schedule for a kernel (a list of opts) that is not applied yet.

    Attributes:
        what: its description in words.
        price: expected cycles of the busiest core, by cause (``"products"``, ``"memory"``, …).
        apply: the function that applies its opts, all of which are legal; it raises Unfit if they do not suit the
            kernel.
    """

    what: str
    price: dict[str, float]
    apply: Callable[[Kernel], None]

    @property
    def cycles(self) -> float:
        return sum(self.price.values())


def the_sum(kernel: Kernel) -> UOp | None:
    """Return the only reduction of a kernel whose stores are all plain STOREs; None if there is no such reduction."""
    return kernel.folds[0] if len(kernel.folds) == 1 and all(s.op is Ops.STORE for s in kernel.stores) else None


def name_of(r: UOp) -> str:
    """Return a range in words: its role letter, number and size ("L0 of 64")."""
    return f"{r.arg[1].value}{r.arg[0]} of {r.vmax + 1}"


def apply_to(kernel: Kernel, op: OptOps, r: UOp, amount: int | tuple[int, ...] | None = None) -> None:
    kernel.apply(Opt(op, kernel.ranges.index(r), amount))


def apply_if_it_fits(kernel: Kernel, opt: Opt) -> None:
    """Apply an opt whose legality depends on the memory layout, which only the opt itself checks.

    Raises:
        Unfit: with the reason, if the opt is illegal.
    """
    try:
        kernel.apply(opt)
    except ArgumentError as error:
        raise Unfit(error.message.partition("; axes: ")[0]) from None


def split(kernel: Kernel, op: OptOps, r: UOp, amount: int) -> tuple[UOp | None, UOp]:
    """Apply a splitting opt; return (outer loop, or None if no loop is left; inner range)."""
    at = kernel.order.index(r)
    size = range_size(r)
    apply_to(kernel, op, r, amount)
    if size <= amount:
        return None, kernel.order[at]
    return kernel.order[at], kernel.order[at + 1]


def stage(kernel: Kernel, value: UOp, outside: Iterable[UOp], lanes: int = 0, copies: int = 1) -> None:
    """Stage ``value`` over all of its ranges except ``outside``."""
    kept = tuple(kernel.ranges.index(r) for r in outside)
    kernel.apply(Opt(OptOps.STAGE, kernel.stageable.index(value), kept, lanes, copies=copies))


def order_loops(kernel: Kernel, first: Sequence[UOp]) -> None:
    """Permute the loops: ``first`` outermost, in the given order, then the others in their present order."""
    loops = [r for r in kernel.ranges if not r.arg[1].expanded]
    positions = tuple(loops.index(r) for r in [*first, *(r for r in loops if r not in first)])
    if positions != tuple(range(len(loops))):
        kernel.apply(Opt(OptOps.ORDER, None, positions))


def weight_of(kernel: Kernel) -> int:
    """Return the amount of work of a kernel: elements computed and stored, weighted by the cost of their operations."""
    return sum(cost * count_of(ranges) for cost, ranges in _weights(kernel))


def _weights(kernel: Kernel) -> Iterator[tuple[int, frozenset[UOp]]]:
    """Yield the cost of each operation of a kernel, and the ranges over which it runs."""
    for n in toposort(kernel.sink):
        if n.op is Ops.FOLD:
            yield 1, n.src[0].ranges
        elif n.op is Ops.STORE:
            yield 2, n.ranges
        elif n.op is Ops.SCATTER_STORE:
            yield 2, n.ranges | n.src[4].ranges
        elif n.op.alu and n.dtype is not dtypes.index and not n.dtype.is_bool and n.op.cost > 2:
            yield n.op.cost, n.ranges


def growth_of(kernel: Kernel, unit: int) -> list[tuple[float, list[str]]]:
    """Return the weight of a kernel, in multiples of ``unit``, as a sum of products of its variables: each with its
    factor and the names of the variables. A size is taken to be proportional to its first variable. Empty without
    variables.

    >>> from tinsmith.codegen.lower.lower import lower
    >>> n = UOp.variable("n", 1, 8)
    >>> x = UOp(Ops.PARAM, dtypes.float32, (), (1, (n, 4)))
    >>> growth_of(Kernel(lower(UOp(Ops.SINK, None, (x.reduce("ADD", (1,)),)))), 4)
    [(1.5, ['n'])]
    """
    found: dict[tuple[str, ...], float] = {}
    for cost, ranges in _weights(kernel):
        factor, names = float(cost) / unit, list[str]()
        for r in ranges:
            variable = next((v for v in toposort(r.src[-1]) if v.op is Ops.VARIABLE), None)
            factor *= r.vmax + 1 if variable is None else (r.vmax + 1) / max(variable.vmax, 1)
            names += [] if variable is None else [variable.arg[0]]
        key = tuple(sorted(names))
        found[key] = found.get(key, 0.0) + factor
    terms = [(factor, list(key)) for key, factor in found.items()]
    return terms if any(names for _, names in terms) else []


def stored_bytes(store: UOp) -> int:
    return count_of(store.ranges) * store.src[2].dtype.itemsize


def stride_of(index: UOp, r: UOp) -> int | None:
    """Return the step of ``index`` per step of ``r``; None if it is not constant."""
    if r not in index.ranges:
        return 0
    terms, _ = linear_form(index)
    if any(r in t.ranges for t in terms if t is not r):
        return None
    return terms.get(r, 0)


def footprint(index: UOp, ranges: Iterable[UOp]) -> int:
    """Return roughly the number of distinct elements that ``index`` reaches over ``ranges``, overlaps counted once."""
    count = reach = 1
    for step, size in sorted((abs(stride_of(index, r) or 0), range_size(r)) for r in ranges):
        further = reach + step * (size - 1)
        count = count * size if step >= reach else count * further // reach
        reach = further
    return count


def lanes_of(kernel: Kernel, target: Target) -> int:
    """Return the number of lanes of a vector register for the widest type that the kernel computes in: one that it only
    converts results to, such as the index of a maximum as int64, is stored in several registers."""
    widened = {n for s in kernel.stores if (value := s.src[-1]).op is Ops.CAST and (
        value.src[0].dtype.itemsize < value.dtype.itemsize) for n in (s, value, s.src[0])}
    sizes = [n.dtype.itemsize for n in toposort(kernel.sink) if n not in widened
             and n.dtype.scalar is n.dtype and n.dtype not in (dtypes.index, dtypes.void)]
    return max(target.vector_bytes // max([4, *sizes]), 1)


def power_of_two(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()
