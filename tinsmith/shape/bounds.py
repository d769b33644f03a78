"""Arithmetic, questions and conditions about integers that may be symbolic.

``plus``, ``minus``, ``times`` and ``product`` build no node where none is needed. ``lowest``, ``highest`` and
``surely_at_most`` decide now, from bounds alone, and answer "not surely" when they cannot know. ``less``, ``at_least``,
``both`` and ``inside`` build the condition for later; on plain ints they are the comparison itself.
"""
from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias, TypeGuard

from tinsmith.core.sint import SInt

Shape: TypeAlias = tuple[SInt, ...]
Bounds: TypeAlias = tuple[SInt, SInt]
Mask: TypeAlias = tuple[Bounds, ...]


def plus(a: SInt, b: SInt) -> SInt:
    """``a + b``. A zero leaves no trace: sizes are compared by identity, and ``n + 0`` need not be the node ``n``.

    >>> plus(2, 3)
    5
    """
    if isinstance(a, int) and isinstance(b, int):
        return a + b
    result: SInt = b if a == 0 else a if b == 0 else a + b
    return result


def minus(a: SInt, b: SInt) -> SInt:
    """``a - b``, without a trace of a zero, and 0 for equal symbols.

    >>> minus(3, 2)
    1
    """
    if isinstance(a, int) and isinstance(b, int):
        return a - b
    result: SInt = a if b == 0 else 0 if a == b else a - b
    return result


def times(a: SInt, b: SInt) -> SInt:
    """``a * b``, without a trace of zeros and ones.

    >>> times(2, 3)
    6
    """
    if isinstance(a, int) and isinstance(b, int):
        return a * b
    if a == 0 or b == 0:
        return 0
    result: SInt = b if a == 1 else a if b == 1 else a * b
    return result


def product(values: Iterable[SInt]) -> SInt:
    """The product, its ints gathered in one factor, so that ``2 * n * 2`` and ``n * 4`` are the same node.

    >>> product((2, 1, 3)), product(())
    (6, 1)
    """
    ints, symbols = 1, list[SInt]()
    for value in values:
        if isinstance(value, int):
            ints *= value
        else:
            symbols.append(value)
    result: SInt = 1
    for symbol in symbols:
        result = times(result, symbol)
    return times(result, ints)


def lowest(value: SInt) -> int:
    """The smallest value that ``value`` can have.

    >>> lowest(3)
    3
    """
    return value if isinstance(value, int) else value.vmin


def highest(value: SInt) -> int:
    """The largest value that ``value`` can have.

    >>> highest(3)
    3
    """
    return value if isinstance(value, int) else value.vmax


def surely_at_most(a: SInt, b: SInt) -> bool:
    """Is ``a <= b`` whatever the symbols stand for? The difference is asked too, so that ``n <= n + 1`` is seen.

    >>> surely_at_most(2, 3), surely_at_most(3, 2)
    (True, False)
    """
    if isinstance(a, int) or isinstance(b, int):
        return highest(a) <= lowest(b)
    return highest(a) <= lowest(b) or highest(minus(a, b)) <= 0


def all_ints(values: Iterable[SInt]) -> TypeGuard[Iterable[int]]:
    """Are all of these plain ints, so that they can be compared and divided freely?

    >>> all_ints((1, 2)), all_ints(())
    (True, True)
    """
    return all(isinstance(v, int) for v in values)


def less(a: SInt, b: SInt) -> Any:
    """The condition ``a < b``. An int left of a symbol would need a reflected ``>``, which the protocol lacks.

    >>> less(1, 2)
    True
    """
    left: Any = a - b if isinstance(a, int) and not isinstance(b, int) else a
    return left < (b if left is a else 0)


def at_least(a: SInt, b: SInt) -> Any:
    """The condition ``a >= b``, written ``-a < 1 - b`` because ``<`` is all that the protocol has.

    >>> at_least(2, 2)
    True
    """
    return less(times(a, -1), minus(1, b))


def both(a: Any, b: Any) -> Any:
    """The condition ``a and b``; a side that is known disappears, so a symbolic result never holds a Python bool.

    >>> both(True, False), both(1, True)
    (False, True)
    """
    if isinstance(a, int):
        return b if a else False
    if isinstance(b, int):
        return a if b else False
    return a & b


def inside(index: SInt, bounds: Bounds) -> Any:
    """The condition ``begin <= index < end``, without the halves that the bounds of ``index`` already promise.

    >>> inside(2, (1, 3)), inside(3, (1, 3))
    (True, False)
    """
    begin, end = bounds
    lower = True if surely_at_most(begin, index) else at_least(index, begin)
    upper = True if surely_at_most(plus(index, 1), end) else less(index, end)
    return both(lower, upper)
