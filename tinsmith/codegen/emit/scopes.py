"""Scopes of the linear program: open loops with their lines, and the ways to write a loop around a body.

A value is written in the outermost open loop that supplies all its ranges (loop-invariant code motion). A range whose
last iteration is partial becomes a loop over the full iterations and one peeled iteration, whose guards are then
decided.
"""
from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tinsmith.codegen.kernel import Kernel
from tinsmith.codegen.lower.normalize import conjuncts
from tinsmith.codegen.transform.computed_operand import bind
from tinsmith.core.dtypes import dtypes
from tinsmith.ir import Ops, UOp
from tinsmith.ir.algebra.sizes import from_linear, linear_form
from tinsmith.ir.algebra.symbolic import simplify
from tinsmith.ir.structure import Role, is_partial, limits, range_size, tiles_of
from tinsmith.ir.uop import toposort

Coords = tuple[tuple[UOp, int], ...]
Write = Callable[[list[UOp]], None]
# writes a loop over a range, of a size, around what ``Write`` emits for the body
Loop = Callable[[UOp, UOp, list[UOp], Write], None]
K = TypeVar("K")
_LEAVES = (Ops.CONST, Ops.RANGE, Ops.VARIABLE)


@dataclass
class Scope:
    """One open loop: the lines written so far in its body and the values known there.

    `closed` holds the lines of finished inner loops, which are no longer visible here.
    """

    lines: list[UOp] = field(default_factory=list)
    values: dict[Any, UOp] = field(default_factory=dict)
    ranges: set[UOp] = field(default_factory=set)
    closed: set[UOp] = field(default_factory=set)

    def has(self, node: UOp) -> bool:
        """Return True if the line is written in this scope or in a finished loop inside it."""
        return self.values.get(node) is node or node in self.closed

    def take(self, inner: Scope, end: UOp) -> None:
        """Append the lines of an inner loop that ends with the line ``end``."""
        self.lines += [*inner.lines, end]
        self.closed.update(inner.lines)


class ScopeWriter:
    """Lines, scopes and loops of one kernel; the subclasses decide what the lines compute."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.scopes = [Scope()]
        self.aside: list[tuple[int, Scope]] = []  # (depth, scope): scopes suspended by ``at_depth``, the latest first
        # outermost depth that values are hoisted to: the branch of a warp role while that is written
        self.outermost = 0
        self.consts: dict[UOp, None] = {}
        self.counts = {"loop": 0, "acc": 0, "local": 0}
        self.shared = False  # True while a loop split over CPU workers is written
        self.pure: dict[UOp, bool] = {}
        self.written = frozenset(s.src[0] for s in kernel.stores)
        self.position = {r.arg[0]: i for i, r in enumerate(kernel.order)}
        self.reread: dict[UOp, bool] = {n: True for n in toposort(kernel.sink)
                                        if n.op is Ops.LOAD and n.src[0] in self.written}

    def expression(self, node: UOp) -> UOp:
        """Return the line of an index expression, such as the size of a loop."""
        raise NotImplementedError

    # *** lines ***

    def emit(self, depth: int, node: UOp) -> UOp:
        if node.op is Ops.CONST:
            self.consts[node] = None
            return node
        for scope in self.scopes[: depth + 1]:
            if node in scope.values:
                return node
        reach, inner = depth, list[Scope]()
        for cut, aside in self.aside:  # a suspended scope shares with the current ones only the scopes up to its depth
            reach = min(reach, cut)
            if aside.has(node):
                depth = min(depth, reach)
                inner.append(aside)
        # already written in an inner scope: hoist the line to where both readers see it
        for scope in [*self.scopes[depth + 1 :], *inner]:
            if scope.has(node):
                scope.lines[:] = [line for line in scope.lines if line is not node]
        self.scopes[depth].values[node] = node
        self.scopes[depth].lines.append(node)
        return node

    def force(self, node: UOp) -> UOp:
        """Write a line here even if an equal one exists (stores, loop ends)."""
        self.scopes[-1].lines.append(node)
        return node

    def const(self, like: UOp, value: Any) -> UOp:
        return self.emit(0, UOp(Ops.CONST, like.dtype, (), like.dtype.as_const(value)))

    def depth_of(self, node: UOp) -> int:
        """Return the depth of the innermost open scope that supplies a range of the node; the current depth for a node
        that rereads written memory."""
        if self.reread and self.rereads(node):
            return self.here
        ranges = node.ranges
        for depth in range(self.here, 0, -1):
            if not self.scopes[depth].ranges.isdisjoint(ranges):
                return depth
        return self.outermost

    def rereads(self, node: UOp) -> bool:
        """Return True if the node depends on a load from memory that this kernel writes (the old value of a scatter).
        """
        known = self.reread
        for n in toposort(node, lambda n: n not in known):
            known[n] = (n.op is Ops.LOAD and n.src[0] in self.written) or any(known[s] for s in n.src)
        return known[node]

    @contextmanager
    def at_depth(self, depth: int) -> Iterator[None]:
        """Write at an outer depth inside the ``with`` block: the inner scopes are suspended and restored unchanged."""
        aside = self.scopes[depth + 1 :]
        del self.scopes[depth + 1 :]
        self.aside = [*((depth, s) for s in aside), *self.aside]
        yield
        del self.aside[: len(aside)]
        self.scopes.extend(aside)

    # *** ranges ***

    def index_only(self, node: UOp) -> bool:
        """Return True for an expression of indices and of conditions on them, without loaded values."""
        known = self.pure
        for n in toposort(node, lambda n: n not in known):
            known[n] = n.op in _LEAVES or ((n.op.alu or n.op is Ops.SPECIAL) and all(known[s] for s in n.src) and
                                           (n.dtype is dtypes.index or n.dtype.is_bool))
        return known[node]

    def lanes(self, node: UOp) -> UOp | None:
        """Return the vector range of a value, None if it is scalar."""
        for r in node.ranges:
            if r.arg[1] is Role.VECTOR:
                return r
        return None

    def coords_of(self, node: UOp, coords: Coords) -> Coords:
        """Return the part of ``coords`` that the node depends on."""
        ranges = node.ranges
        return tuple([c for c in coords if c[0] in ranges])

    def both(self, a: Coords, b: Coords) -> Coords:
        """Merge two sets of copies, in nesting order."""
        return tuple(sorted((*a, *b), key=lambda c: self.position[c[0].arg[0]]))

    def all_coords(self, ranges: frozenset[UOp]) -> Iterator[Coords]:
        """Yield every combination of the register copies among ``ranges``."""
        expanded = sorted((r for r in ranges if r.arg[1] in (Role.UPCAST, Role.UNROLL)),
                          key=lambda r: self.position[r.arg[0]])
        for values in itertools.product(*(range(range_size(r)) for r in expanded)):
            yield tuple(zip(expanded, values))

    def loop_ranges(self, node: UOp) -> list[UOp]:
        """Return the loops that the node still needs, outermost first."""
        opened = self.opened
        own = {node.src[4]} if node.op is Ops.SCATTER_STORE and node.src[4].op is Ops.RANGE else set()
        left = [r for r in node.ranges | own if not r.arg[1].expanded and r not in opened]
        return sorted(left, key=lambda r: self.position[r.arg[0]])

    # *** loops ***

    def over(self, r: UOp, body: list[UOp], write: Write, loop: Loop | None = None) -> None:
        """Write a loop over ``r`` around ``write(body)``, by ``loop`` (default: ``self.loop``); a partial last
        iteration is peeled."""
        loop = loop or self.loop
        if r.arg[1] is Role.THREAD:
            self.shared = True
            self.threads(r, body, write)
            self.shared = False
            return None
        if not is_partial(r):
            return loop(r, r.src[-1], body, write)
        if not r.src[-1].is_const:
            whole, tail = full_and_tail(r)
            loop(whole, whole.src[-1], self.without_guards(body, r, whole), write)
            return loop(tail, tail.src[-1], self.in_tail(body, r, tail), write)
        whole, last = all_but_last(r)
        loop(whole, last, self.narrowed(body, r, whole), write)
        write(self.narrowed(body, r, last))
        return None

    def loop(self, r: UOp, size: UOp, body: list[UOp], write: Callable[[list[UOp]], None]) -> None:
        if size.is_const and size.arg == 1:
            return write(self.narrowed(body, r, UOp.index(0)))
        self.open(r, self.expression(start_of_loop(r)), self.expression(size))
        write(body)
        self.close()
        return None

    def open(self, r: UOp, start: UOp, end: UOp) -> None:
        self.enter(r, self.loop_line(start, end, r.arg[1] is Role.REDUCE))

    def carrying(self, r: UOp, start: UOp, end: UOp, starts: dict[K, UOp],
                 write: Callable[[dict[K, UOp]], dict[K, UOp]], reduces: bool = False) -> dict[K, UOp]:
        """Write a loop that carries values: ``write`` gets the accumulators and returns their next values.

        Returns: the values after the loop, by the keys of ``starts``.
        """
        line = self.loop_line(start, end, reduces)
        accs = {key: self.accumulator(first, line) for key, first in starts.items()}
        self.enter(r, line, accs.values())
        after = write(accs)
        phis = {key: self.force(UOp(Ops.PHI, None, (acc, after[key]))) for key, acc in accs.items()}
        self.close()
        self.scopes[-1].values.update({phi: phi for phi in phis.values()})
        return phis

    def loop_line(self, start: UOp, end: UOp, reduces: bool = False) -> UOp:
        """Create the line that opens a loop, so that accumulators can refer to it before the loop is entered."""
        self.counts["loop"] += 1
        return UOp(Ops.RANGE, dtypes.index, (start, end), (self.counts["loop"] - 1, reduces))

    def enter(self, r: UOp, line: UOp, accumulators: Iterable[UOp] = ()) -> None:
        """Enter the loop ``line`` over ``r``, in which ``accumulators`` are visible."""
        known: dict[Any, UOp] = {acc: acc for acc in accumulators}
        self.scopes.append(Scope([line], {line: line, (r, ()): line, **known}, {r}))

    def accumulator(self, start: UOp, *loops: UOp) -> UOp:
        """Emit a new accumulator."""
        self.counts["acc"] += 1
        return self.force(UOp(Ops.DEFINE_ACC, start.dtype, (start, *loops), self.counts["acc"] - 1))

    def close(self) -> None:
        scope = self.scopes.pop()
        self.scopes[-1].take(scope, UOp(Ops.ENDRANGE, None, (scope.lines[0],)))

    def threads(self, r: UOp, body: list[UOp], write: Callable[[list[UOp]], None]) -> None:
        """Give each worker its share [tid*n/count, (tid+1)*n/count) of the range; the last worker takes the partial
        end."""
        tid = self.emit(0, UOp(Ops.SPECIAL, dtypes.index, (), "tid"))
        count = self.emit(0, UOp(Ops.SPECIAL, dtypes.index, (), "nthreads"))
        n = r.src[-1] if r.src[-1].is_const else self.expression(r.src[-1])
        low, high = self.raw(tid * n // count), self.raw((tid + 1) * n // count)
        if not is_partial(r):
            self.open(r, low, high)
            write(body)
            return self.close()
        if not n.is_const:
            whole, tail = full_and_tail(r)
            full = self.expression(whole.src[-1])
            self.open(whole, low, self.raw(high.minimum(full)))
            write(self.without_guards(body, r, whole))
            self.close()
            self.open(tail, self.raw(low.maximum(full)), high)
            write(self.in_tail(body, r, tail))
            return self.close()
        whole, last = all_but_last(r)
        self.open(whole, low, self.raw(high.minimum(last)))
        write(self.narrowed(body, r, whole))
        self.close()
        with self.branch(self.raw(last.lt(high))):
            write(self.narrowed(body, r, last))
        return None

    @contextmanager
    def branch(self, condition: UOp, whole: bool = False, registers: int | None = None) -> Iterator[None]:
        """Write lines inside an IF. With ``whole``, values that depend only on the enclosing loop are written inside
        it, too."""
        ranges = set(self.scopes[-1].ranges) if whole else set()
        self.scopes.append(Scope([UOp(Ops.IF, None, (condition,), registers)], ranges=ranges))
        yield
        scope = self.scopes.pop()
        self.scopes[-1].take(scope, UOp(Ops.ENDIF, None, (scope.lines[0],)))

    @contextmanager
    def first_step(self, r: UOp, start: UOp) -> Iterator[None]:
        """Write the peeled step ``start`` of a loop whose other steps follow."""
        self.scopes.append(Scope(values={(r, ()): self.expression(start)}, ranges={r}))
        yield
        inner, around = self.scopes.pop(), self.scopes[-1]
        around.lines += inner.lines
        around.closed |= inner.closed
        around.values |= {line: line for line in inner.lines if inner.values.get(line) is line}

    @contextmanager
    def first_worker(self, node: UOp) -> Iterator[None]:
        """Guard with an IF, for the first worker only, a statement outside of all loops split over workers."""
        if self.shared or all(r.arg[1] is not Role.THREAD for r in self.kernel.order):
            yield
            return
        tid = self.emit(0, UOp(Ops.SPECIAL, dtypes.index, (), "tid"))
        with self.branch(self.raw(tid.lt(1))):
            yield

    @property
    def here(self) -> int:
        """Return the depth of the innermost scope."""
        return len(self.scopes) - 1

    @property
    def opened(self) -> frozenset[UOp]:
        """Return the ranges of all open scopes."""
        return frozenset().union(*(s.ranges for s in self.scopes))

    def raw(self, node: UOp, depth: int = 0) -> UOp:
        """Emit an expression whose leaves are lines of the program."""
        for n in toposort(node):
            if n.op is Ops.CONST or n.op.alu:
                self.emit(depth, n)
        return node

    def without_guards(self, body: list[UOp], r: UOp, whole: UOp) -> list[UOp]:
        """Restrict a body to the full iterations ``whole`` of a range of symbolic size, in which its guards hold."""
        bodies = [bind(n, r, whole) for n in body]
        always = UOp.const(dtypes.bool, True)
        held = {n: always for n in toposort(bodies) if n.op is Ops.CMPLT and n.src[0].dtype is dtypes.index
                and whole in n.ranges and holds_for(n, whole)}
        return [simplify(n.substitute(held)) for n in bodies]

    def in_tail(self, body: list[UOp], r: UOp, tail: UOp) -> list[UOp]:
        """Restrict a body to the tail of a range of symbolic size. Copies beyond the size, which do not store, read the
        elements of the last copy: a load in a loop needs no branch."""
        found = []
        for store in (bind(n, r, tail) for n in body):
            guard = store.src[3] if store.op is Ops.STORE and len(store.src) > 3 else None
            bounds = {c for c in conjuncts(guard) if tail in c.ranges} if guard is not None else set[UOp]()
            loads = [n for n in toposort(store) if n.op is Ops.LOAD and len(n.src) > 2]
            table = {n: clamped for n in loads if (clamped := _clamped(n, tail, bounds)) is not n}
            found.append(simplify(store.substitute(table)))
        return found

    def narrowed(self, body: list[UOp], r: UOp, value: UOp) -> list[UOp]:
        """Restrict a body to the value or range ``value`` of ``r``: decided guards vanish, and so do copies that never
        store."""
        new = [simplify(bind(n, r, value)) for n in body]
        found = {x for n in new for m in toposort(n) for x in m.ranges if x.arg[1] is Role.UPCAST}
        for u in sorted(found, key=lambda x: x.arg[0]):
            live = [c for c in range(range_size(u)) if any(_may_store(n, u, c) for n in new)]
            keep = max(live, default=0) + 1
            if keep < range_size(u) and all(n.op is Ops.STORE for n in new):
                smaller = u.replace(src=(UOp.index(keep),)) if keep > 1 else UOp.index(0)
                new = [simplify(bind(n, u, smaller)) for n in new]
        return new


def all_but_last(r: UOp) -> tuple[UOp, UOp]:
    """Return a range over the full iterations of a partial range, and the index of the partial one."""
    last = UOp.index(range_size(r) - 1)
    return r.replace(src=(last,), arg=r.arg[:2]), last


def full_and_tail(r: UOp) -> tuple[UOp, UOp]:
    """Return, of a partial range of symbolic size, a range over the full iterations and one over the others, at most
    one: a range of ceil(n / w) steps has n // w full ones."""
    (elements, amount), size = tiles_of(r), r.src[-1]
    full = (elements // amount).simplify()
    return r.replace(src=(full,), arg=r.arg[:2]), r.replace(src=(full, size, size), arg=r.arg[:2])


def holds_for(condition: UOp, r: UOp) -> bool:
    """Return True if a comparison with a symbolic size holds for all steps of ``r``, which has n // w steps.

    >>> n = UOp.variable("n", 1, 99)
    >>> r, lane = UOp.range(n // 8, 0, Role.LOOP), UOp.range(8, 1, Role.VECTOR)
    >>> holds_for((r * 8 + lane).lt(n), r), holds_for((r * 8 + lane + 1).lt(n), r)
    (True, False)
    """
    terms, constant = linear_form(condition.src[0] - condition.src[1])
    greatest = UOp.index(constant)
    for term, factor in terms.items():
        if term.op is Ops.RANGE:
            greatest = greatest + (term.src[-1] - 1) * factor * (factor > 0)
        else:
            greatest = greatest + term * factor
    terms, constant = linear_form(greatest.simplify())
    bound = UOp.index(constant)
    for term, factor in terms.items():
        divisor = term.src[1].arg if term.op is Ops.IDIV and term.src[1].is_const else 0
        if divisor > 0 and factor > 0 and factor % divisor == 0:
            term, factor = term.src[0], factor // divisor  # n // w * w <= n
        bound = bound + term * factor
    return bound.simplify().vmax < 0


def _clamped(load: UOp, tail: UOp, bounds: Collection[UOp]) -> UOp:
    """Return a load whose copies along a parallel range, of which only the first ones are valid in the tail, read the
    last valid element instead of having a guard.

    Args:
        bounds: the conditions without which nothing is stored. Others, as those of padding, decide what is stored.
    """
    memory, index, valid = load.src
    for condition in conjuncts(valid):
        copies = [u for u in condition.ranges if u is not tail]
        if condition not in bounds or condition.op is not Ops.CMPLT or len(copies) != 1 or (
                copies[0].arg[1] is not Role.UPCAST):
            continue
        (u,), (terms, constant) = copies, linear_form(condition.src[0] - condition.src[1])
        if terms.pop(u, 0) != 1:
            continue
        last = from_linear({t: -k for t, k in terms.items()}, -constant - 1, index)
        rest = [c for c in conjuncts(valid) if c is not condition]
        nearest = u.minimum(last)
        return load.replace(src=(memory, bind(index, u, nearest), *(
            [bind(functools.reduce(operator.and_, rest), u, nearest)] if rest else [])))
    return load


def start_of_loop(r: UOp) -> UOp:
    """Return the first step of a loop: that of a tail, else 0. Other limits only bound reductions, by ``span_of``."""
    span = limits(r)
    return span[0] if span is not None and is_tail(*span) else UOp.index(0)


def is_tail(start: UOp, end: UOp) -> bool:
    """Return True if the limits of a range are those of a tail: they depend on variables, not on other ranges."""
    return not (start.ranges or end.ranges or end.is_const)


def _may_store(store: UOp, u: UOp, copy: int) -> bool:
    if store.op is not Ops.STORE or len(store.src) < 4 or u not in store.src[3].ranges:
        return True
    valid = store.src[3].substitute({u: UOp.index(copy)}).simplify()
    return not (valid.is_const and not valid.arg)
