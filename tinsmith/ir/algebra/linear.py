"""Linear forms of integer expressions: conversion between an index and {term: coefficient} plus a constant."""
from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tinsmith.core.dtypes import dtypes
from tinsmith.ir.ops import Ops
from tinsmith.ir.uop import UOp, toposort

Linear = dict[UOp, int]
_SUMS = (Ops.ADD, Ops.SUB, Ops.NEG, Ops.MUL)


def is_index(node: UOp) -> bool:
    return node.dtype is dtypes.index


def linear_form(node: UOp) -> tuple[Linear, int]:
    """Return an integer expression as ({term: coefficient}, constant).

    >>> i = UOp.variable("i", 0, 9)
    >>> linear_form(i * 3 + 2 - i) == ({i: 2}, 2), linear_form(i + UOp.range(1, 0, None)) == ({i: 1}, 0)
    (True, True)
    """
    if node.op not in _SUMS:
        if node.op is Ops.RANGE and node.vmax == 0:
            return {}, 0  # a range of size 1 is always 0
        return ({}, node.arg) if node.op is Ops.CONST else ({node: 1}, 0)
    found = node._linear
    if found is None:
        found = _sum_of_terms(node)
        if node in found[0]:  # a product of two terms is its own term; caching it would make a reference cycle
            return found
        node._linear = found
    return dict(found[0]), found[1]


def _sum_of_terms(node: UOp) -> tuple[Linear, int]:
    terms: Linear = {}
    constant = 0
    stack = [(node, 1)]
    while stack:
        n, factor = stack.pop()
        if n.op is Ops.CONST:
            constant += factor * n.arg
        elif n.op is Ops.RANGE and n.vmax == 0:
            continue  # a range of size 1 is always 0
        elif n.op is Ops.ADD:
            stack += [(s, factor) for s in n.src]
        elif n.op is Ops.SUB:
            stack += [(n.src[0], factor), (n.src[1], -factor)]
        elif n.op is Ops.NEG:
            stack.append((n.src[0], -factor))
        elif n.op is Ops.MUL and n.src[1].op is Ops.CONST:
            stack.append((n.src[0], factor * n.src[1].arg))
        elif n.op is Ops.MUL and n.src[0].op is Ops.CONST:
            stack.append((n.src[1], factor * n.src[0].arg))
        else:
            terms[n] = terms.get(n, 0) + factor
    return {t: c for t, c in terms.items() if c}, constant


def weighted_sum(parts: Iterable[tuple[UOp, int]]) -> UOp:
    """Return Σ index · factor, simplified, without building a node for every intermediate sum.

    >>> i, j = UOp.variable("i", 0, 7), UOp.variable("j", 0, 3)
    >>> weighted_sum([(i, 4), (j + 1, 1)]) is (i * 4 + j + 1).simplify()
    True
    """
    total: Linear = {}
    constant = 0
    for node, factor in parts:
        terms, rest = linear_form(node.simplify())
        constant += rest * factor
        for term, k in terms.items():
            total[term] = total.get(term, 0) + k * factor
    return from_linear({t: k for t, k in total.items() if k}, constant, UOp.index(0)).simplify()


def order(node: UOp) -> tuple[Any, ...]:
    """Return a sort key that depends on structure alone, so that equal programs sort alike in every process."""
    if node._order is None:
        for n in toposort(node, lambda m: m._order is None):
            number = n.arg[0] if n.op is Ops.RANGE else -1
            n._order = (number < 0, number, n.op.name, str(n.arg), tuple(s._order for s in n.src))
        assert node._order is not None
    return node._order


def from_linear(terms: Linear, constant: int, like: UOp) -> UOp:
    """Return the canonical sum of a linear form: largest strides first, the constant last."""
    result: UOp | None = None
    for term, c in sorted(terms.items(), key=lambda item: (-abs(item[1]), order(item[0]))):
        part = term if c == 1 else term * UOp.const(like.dtype, c)
        result = part if result is None else result + part
    k = UOp.const(like.dtype, constant)
    return k if result is None else (result if constant == 0 else result + k)


def shifted(total: UOp, constant: int) -> UOp:
    """Return ``(total + constant).simplify()`` for an already simplified ``total``, mostly without running the rewrite
    rules.

    >>> i = UOp.variable("i", 0, 9)
    >>> shifted(i * 3, 2) is (i * 3 + 2).simplify(), shifted(i + 1, -1) is i
    (True, True)
    """
    if not constant:
        return total
    moved = total + constant
    if total.op is not Ops.CONST and not (total.op is Ops.ADD and total.src[1].op is Ops.CONST):
        moved._simple = True
    return moved.simplify()
