"""Symbolic sizes of slots, as data: sums of products that are evaluated without nodes, and stored in the disk cache.

A size is a list of (factor, parts). Its value is the sum of each factor times the product of its parts. A part is the
number of a value of the program, or a quotient or remainder: ("//" or "%", a size, a positive divisor), which round
down as Python does. ``[(2, [0, ("//", [(1, [1]), (1, [])], 2)])]`` is 2·v0·((v1 + 1) // 2).
"""
from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from tinsmith.ir import Ops, UOp
from tinsmith.ir.algebra.sizes import polynomial

Part = Any  # int | tuple[str, Terms, int]; a list instead of a tuple in the disk cache
Terms = Sequence[tuple[int, Sequence[Part]]]

_SIGNS = {Ops.IDIV: "//", Ops.MOD: "%"}


def terms_of(size: Any) -> Terms | None:
    """Return a size of a canonical graph; None if it is an int, or of another form, such as a maximum.

    >>> from tinsmith.core.dtypes import dtypes
    >>> v = [UOp(Ops.BIND, None, (UOp.variable(f"v{n}", 1, 9), UOp.const(dtypes.int32, n))) for n in range(2)]
    >>> terms_of(v[0] * v[1] * 2 + 3), terms_of(v[0] // 2 * 3), terms_of(v[0].maximum(v[1]))
    ([(2, [0, 1]), (3, [])], [(3, [('//', [(1, [0])], 2)])], None)
    """
    if not isinstance(size, UOp):
        return None
    found: list[tuple[int, list[Part]]] = []
    for parts, factor in polynomial(size).items():
        made = [_part_of(p) for p in parts]
        if None in made:
            return None
        found.append((factor, made))
    return found


def _part_of(node: UOp) -> Part | None:
    if node.op is Ops.BIND:
        return node.src[1].arg
    if node.op not in _SIGNS or not node.src[1].is_const or node.src[1].arg <= 0:
        return None
    inner = terms_of(node.src[0])
    return None if inner is None else (_SIGNS[node.op], inner, node.src[1].arg)


def value_of(terms: Terms, values: Sequence[int]) -> int:
    """Return a size for values of the program's variables.

    >>> value_of([(2, [0, ("//", [(1, [1]), (1, [])], 2)])], [3, 8])
    24
    """
    return sum(factor * math.prod(_value(p, values) for p in parts) for factor, parts in terms)


def _value(part: Part, values: Sequence[int]) -> int:
    if isinstance(part, int):
        return values[part]
    sign, inner, divisor = part
    quotient, remainder = divmod(value_of(inner, values), int(divisor))
    return quotient if sign == "//" else remainder


def bounds_of_size(terms: Terms, low: Sequence[int], high: Sequence[int]) -> tuple[int, int]:
    """Return a lower and an upper bound of a size if each variable, at least 0, is between ``low`` and ``high``.

    >>> bounds_of_size([(1, [0]), (-1, [("%", [(1, [0])], 4)])], [3], [9])
    (0, 9)
    """
    least = most = 0
    for factor, parts in terms:
        ends = [_bounds(p, low, high) for p in parts]
        products = [math.prod(a for a, _ in ends), math.prod(b for _, b in ends)]
        if any(a < 0 for a, _ in ends):  # the sign is unknown, the magnitude is bounded
            furthest = math.prod(max(abs(a), abs(b)) for a, b in ends)
            products = [-furthest, furthest]
        a, b = sorted(factor * p for p in products)
        least, most = least + a, most + b
    return least, most


def _bounds(part: Part, low: Sequence[int], high: Sequence[int]) -> tuple[int, int]:
    if type(part) is int:
        return low[part], high[part]
    sign, inner, divisor = part
    a, b = bounds_of_size(inner, low, high)
    if sign == "//":
        return a // divisor, b // divisor
    return (a, b) if a >= 0 and b < divisor else (0, divisor - 1)


def values_in(terms: Terms) -> Iterator[int]:
    """Yield the numbers of the values that a size depends on."""
    for _, parts in terms:
        for p in parts:
            if type(p) is int:
                yield p
            else:
                yield from values_in(p[1])


def renumbered(terms: Terms, first: int) -> Terms:
    """Return a size with ``first`` added to the numbers of its values.

    >>> renumbered([(1, [0, ("%", [(1, [1])], 4)])], 5)
    [(1, [5, ('%', [(1, [6])], 4)])]
    """
    return [(factor, [first + p if type(p) is int else (p[0], renumbered(p[1], first), p[2]) for p in parts])
            for factor, parts in terms]
