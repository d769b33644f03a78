"""Symbolic sizes: one normal form, so that sizes which are provably equal are the same node, and conditions on them.

A size is a polynomial with integer coefficients over its variables (quotients and remainders count as variables of
their own): ``(n + 1) * 4`` and ``4 * n + 4`` are both ``n * 4 + 4``.

A condition that the algebra cannot prove is decided by the values that the variables are bound to. What was decided
that way holds for these values only, so whoever replays a program with others looks at the conditions again.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tinsmith.core.dtypes import dtypes
from tinsmith.core.errors import ArgumentError
from tinsmith.core.ofthread import OfThread
from tinsmith.ir.evaluate import evaluate_scalar
from tinsmith.ir.linear import order
from tinsmith.ir.ops import Ops
from tinsmith.ir.text import expression
from tinsmith.ir.uop import Algebra, UOp, toposort

Polynomial = dict[tuple[UOp, ...], int]  # product of terms, in order → coefficient


def polynomial(node: UOp) -> Polynomial:
    """An integer expression multiplied out.

    >>> n = UOp.variable("n", 1, 9)
    >>> sorted((len(term), k) for term, k in polynomial((n + 1) * (n + 2)).items())
    [(0, 2), (1, 3), (2, 1)]
    """
    new: dict[UOp, Polynomial] = {}
    for n in toposort(node, lambda n: n.op in (*_SUMS, Ops.MUL, Ops.CONST)):
        if n.op is Ops.CONST:
            new[n] = {(): n.arg} if n.arg else {}
            continue
        parts: list[Polynomial] = [new[s] if s in new else {(s.simplify(),): 1} for s in n.src]
        if n.op is Ops.MUL:
            new[n] = _product(*parts)
        else:
            new[n] = _sum(parts[0] if len(parts) > 1 else {}, parts[-1], 1 if n.op is Ops.ADD else -1)
    return new.get(node, {(node,): 1})


_SUMS = (Ops.ADD, Ops.SUB, Ops.NEG)


def _sum(a: Polynomial, b: Polynomial, sign: int) -> Polynomial:
    out = dict(a)
    for term, k in b.items():
        out[term] = out.get(term, 0) + sign * k
    return {term: k for term, k in out.items() if k}


def _product(a: Polynomial, b: Polynomial) -> Polynomial:
    out: Polynomial = {}
    for s, i in a.items():
        for t, j in b.items():
            term = tuple(sorted((*s, *t), key=order))
            out[term] = out.get(term, 0) + i * j
    return {term: k for term, k in out.items() if k}


def normal_size(size: Any) -> Any:
    """A size in its normal form; an int where it does not depend on any variable.

    >>> n = UOp.variable("n", 1, 9)
    >>> normal_size((n + 1) * 4) is normal_size(4 * n + 4), normal_size(n + 3 - n)
    (True, 3)
    """
    if not isinstance(size, UOp):
        return size
    if size._normal is None:
        found = _normal_form(size)
        size._normal = True if found is size else found
        if found is not size and isinstance(found, UOp):
            found._normal = True
    return size if size._normal is True else size._normal


def _normal_form(size: UOp) -> UOp | int:
    total: UOp | None = None
    for term, k in sorted(polynomial(size.simplify()).items(), key=lambda t: (-len(t[0]), [order(x) for x in t[0]])):
        value = UOp.index(1) if not term else term[0]
        for factor in term[1:]:
            value = value * factor
        total = value * k if total is None else total + value * k
    simple = UOp.index(0) if total is None else total.simplify()
    return int(simple.arg) if simple.is_const else simple


def unbound(size: UOp) -> Iterator[UOp]:
    """The variables in a size that have no value."""
    return (n for n in toposort(size, lambda n: n.op is not Ops.BIND) if n.op is Ops.VARIABLE)


Watcher = Callable[[UOp, int], None]
# Told of every size and condition whose value a program went by, and of the value.
watchers: OfThread[Watcher] = OfThread()


def value_of_size(size: Any) -> int:
    """What a size or condition is in this run, by the values that its variables are bound to.

    >>> value_of_size(UOp.variable("n", 1, 9).bind(4) * 2 + 1)
    9
    """
    if not isinstance(size, UOp):
        return int(size)
    assert all(n.src[1].dtype is dtypes.index for n in toposort(size) if n.op is Ops.BIND), "a program has no values"
    value = evaluate_scalar(size, {})
    for told in watchers:
        told(size, value)
    return value


def holds(condition: UOp) -> bool:
    """Whether a condition on sizes holds: for every value of its variables, or by those that they are bound to.

    What is no condition on bound variables alone, such as one of a kernel, is a node like any other, and true.

    >>> n = UOp.variable("n", 1, 9).bind(4)
    >>> holds(n < 10), holds(n < 4), holds(UOp.range(3, 0, None) < 2)
    (True, False, True)

    Raises:
        ArgumentError: if a variable has no value.
    """
    nodes = toposort(condition, lambda n: n.op is not Ops.BIND)
    if any(not n.op.alu and n.op not in (Ops.CONST, Ops.VARIABLE) for n in nodes):
        return True
    simple = condition.simplify()
    if simple.is_const:
        return bool(simple.arg)
    check_bound("bool", simple)
    return bool(value_of_size(simple))


def check_bound(op: str, size: UOp) -> None:
    """Raise an ArgumentError if a variable in a size has no value, or the size is divided by 0."""
    free = next(unbound(size), None)
    if free is not None:
        raise ArgumentError(op, f"variable {free.arg[0]!r} has no value", f"{free.arg[0]}.bind(value)")
    for n in toposort(size, lambda n: n.op is not Ops.BIND):
        if n.op in (Ops.IDIV, Ops.MOD) and not holds(n.src[1].ne(0)):
            raise ArgumentError(op, f"{size_text(n)} divides by {size_text(n.src[1])}", "another divisor")


def size_text(size: Any) -> str:
    """A size as people write it, with the values of the variables in it, or their bounds where they have none.

    >>> n = UOp.variable("n", 1, 9)
    >>> size_text(n.bind(3) * 4 + 4), size_text(n.bind(3)), size_text(n)
    ('n*4+4 (16 with n = 3)', 'n = 3', 'n (n from 1 to 9)')
    """
    if not isinstance(size, UOp):
        return str(size)
    if size.op is Ops.BIND:
        return f"{size.src[0].arg[0]} = {size.src[1].arg}"
    bound = [n for n in toposort(size) if n.op is Ops.BIND]
    plain = expression(size.substitute({n: n.src[0] for n in bound}))
    free = sorted(f"{n.arg[0]} from {n.arg[1]} to {n.arg[2]}" for n in unbound(size))
    values = sorted(f"{n.src[0].arg[0]} = {n.src[1].arg}" for n in bound)
    total = [] if free else [str(evaluate_scalar(size, {}))]
    return f"{plain} ({' with '.join([*total, ', '.join(values + free)])})"


Algebra.holds, Algebra.value_of_size, Algebra.normal_size = holds, value_of_size, normal_size
