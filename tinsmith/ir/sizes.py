"""Symbolic sizes in one normal form, so that sizes which are provably equal are the same node.

A size is a polynomial with integer coefficients over its variables (quotients and remainders count as variables of
their own): ``(n + 1) * 4`` and ``4 * n + 4`` are both ``n * 4 + 4``.
"""
from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator
from typing import Any

from tinsmith.ir.evaluate import evaluate_scalar
from tinsmith.ir.ops import Ops
from tinsmith.ir.printer import expression
from tinsmith.ir.symbolic import order
from tinsmith.ir.uop import UOp, toposort

_TRIED = 1 << 12  # values of variables that are tried at most, to prove a bound

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
    total: UOp | None = None
    for term, k in sorted(polynomial(size.simplify()).items(), key=lambda t: (-len(t[0]), [order(x) for x in t[0]])):
        value = UOp.index(1) if not term else term[0]
        for factor in term[1:]:
            value = value * factor
        total = value * k if total is None else total + value * k
    simple = UOp.index(0) if total is None else total.simplify()
    return simple.arg if simple.is_const else simple


def sizes_equal(a: Any, b: Any) -> bool:
    """Whether two sizes are equal for every value of their variables.

    >>> n = UOp.variable("n", 1, 9)
    >>> sizes_equal(n * (n + 1), n * n + n), sizes_equal(n, 4)
    (True, False)
    """
    if a is b:
        return True
    if not isinstance(a, UOp) and not isinstance(b, UOp):
        return bool(a == b)
    return bool(normal_size(UOp.index(a) - UOp.index(b)) == 0)


def unbound(size: UOp) -> Iterator[UOp]:
    """The variables in a size that have no value."""
    return (n for n in toposort(size, lambda n: n.op is not Ops.BIND) if n.op is Ops.VARIABLE)


def least_value(size: Any) -> int:
    """The least value of a size: by its variables' bounds, or where these say too little and the variables have few
    values, by trying all of them.

    >>> n = UOp.variable("n", 1, 9)
    >>> (n - n // 2).vmin, least_value(n - n // 2)
    (-3, 1)
    """
    if not isinstance(size, UOp):
        return int(size)
    return size.vmin if size.vmin >= 0 else _least_of_all(size)


@functools.lru_cache(maxsize=256)
def _least_of_all(size: UOp) -> int:
    nodes = toposort(size)
    plain = size.substitute({n: n.src[0] for n in nodes if n.op is Ops.BIND})
    variables = [n for n in nodes if n.op is Ops.VARIABLE]
    if math.prod(v.vmax - v.vmin + 1 for v in variables) > _TRIED:
        return size.vmin
    values = itertools.product(*(range(v.vmin, v.vmax + 1) for v in variables))
    return min(evaluate_scalar(plain, dict(zip(variables, v))) for v in values)


def value_of_size(size: Any) -> int:
    """What a size is in this run, by the values that its variables are bound to.

    >>> value_of_size(UOp.variable("n", 1, 9).bind(4) * 2 + 1)
    9
    """
    return evaluate_scalar(size, {}) if isinstance(size, UOp) else int(size)


def size_text(size: Any) -> str:
    """A size as people write it, with the bounds of the variables in it.

    >>> size_text(UOp.variable("n", 1, 9).bind(3) * 4 + 4)
    '(n * 4) + 4, n from 1 to 9'
    """
    if not isinstance(size, UOp):
        return str(size)
    nodes = toposort(size)
    plain = size.substitute({n: n.src[0] for n in nodes if n.op is Ops.BIND})
    bounds = sorted(f"{n.arg[0]} from {n.arg[1]} to {n.arg[2]}" for n in nodes if n.op is Ops.VARIABLE)
    return ", ".join([expression(plain), *bounds])
