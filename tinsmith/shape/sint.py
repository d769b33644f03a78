"""Integers that may be symbolic: the protocol that Python ints and UOps satisfy, and arithmetic on both.

``plus``, ``minus``, ``times`` and ``product`` create no nodes for neutral elements. ``lowest``, ``highest`` and
``surely_at_most`` decide at once, from bounds alone, and are conservative. ``less``, ``at_least``, ``both`` and
``inside`` build a condition to evaluate later; on plain ints they compare directly.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Protocol, TypeAlias, TypeGuard, runtime_checkable


@runtime_checkable
class SymbolicInt(Protocol):
    """A symbolic integer: arithmetic builds an expression; ``vmin`` and ``vmax`` bound it."""

    @property
    def vmin(self) -> int: ...
    @property
    def vmax(self) -> int: ...
    def __add__(self, other: Any) -> Any: ...
    def __radd__(self, other: Any) -> Any: ...
    def __sub__(self, other: Any) -> Any: ...
    def __rsub__(self, other: Any) -> Any: ...
    def __mul__(self, other: Any) -> Any: ...
    def __rmul__(self, other: Any) -> Any: ...
    def __floordiv__(self, other: Any) -> Any: ...
    def __mod__(self, other: Any) -> Any: ...
    def __lt__(self, other: Any) -> Any: ...
    def __and__(self, other: Any) -> Any: ...
    def simplify(self) -> Any: ...


SInt: TypeAlias = int | SymbolicInt


class Symbols:
    """The hook through which code below the node class creates symbolic integers from (name, least, greatest)."""

    variable: ClassVar[Callable[[str, int, int], SymbolicInt] | None] = None  # set by tinsmith.ir


def symbol(name: str, least: int, greatest: int) -> SInt:
    """Return a symbolic integer between two inclusive bounds; the number itself if they are equal."""
    if least == greatest:
        return least
    assert Symbols.variable is not None, "symbolic integers need tinsmith.ir to be imported"
    return Symbols.variable(name, least, greatest)


def prod(values: Any) -> Any:
    """Return the product of ints or symbolic ints; 1 if there are none."""
    result: Any = 1
    for v in values:
        result = v * result if isinstance(result, int) and result == 1 else result * v
    return result


Shape: TypeAlias = tuple[SInt, ...]
Bounds: TypeAlias = tuple[SInt, SInt]
Mask: TypeAlias = tuple[Bounds, ...]


def plus(a: SInt, b: SInt) -> SInt:
    """Return ``a + b`` without adding 0: sizes are compared by identity, and ``n + 0`` need not be the node ``n``.

    >>> plus(2, 3)
    5
    """
    if isinstance(a, int) and isinstance(b, int):
        return a + b
    result: SInt = b if a == 0 else a if b == 0 else a + b
    return result


def minus(a: SInt, b: SInt) -> SInt:
    """Return ``a - b`` without subtracting 0; 0 for equal symbols.

    >>> minus(3, 2)
    1
    """
    if isinstance(a, int) and isinstance(b, int):
        return a - b
    result: SInt = a if b == 0 else 0 if a == b else a - b
    return result


def times(a: SInt, b: SInt) -> SInt:
    """Return ``a * b`` without multiplying by 0 or 1.

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
    """Return the product with all ints combined into one factor, so that ``2 * n * 2`` and ``n * 4`` are the same node.

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
    """Return the least possible value.

    >>> lowest(3)
    3
    """
    return value if isinstance(value, int) else value.vmin


def highest(value: SInt) -> int:
    """Return the greatest possible value.

    >>> highest(3)
    3
    """
    return value if isinstance(value, int) else value.vmax


def surely_at_most(a: SInt, b: SInt) -> bool:
    """Return True if ``a <= b`` holds for all values of the symbols. The bounds of ``a - b`` are checked too, for ``n
    <= n + 1``.

    >>> surely_at_most(2, 3), surely_at_most(3, 2)
    (True, False)
    """
    if isinstance(a, int) or isinstance(b, int):
        return highest(a) <= lowest(b)
    return highest(a) <= lowest(b) or highest(minus(a, b)) <= 0


def all_ints(values: Iterable[SInt]) -> TypeGuard[Iterable[int]]:
    """Return True if all values are plain ints.

    >>> all_ints((1, 2)), all_ints(())
    (True, True)
    """
    return all(isinstance(v, int) for v in values)


def less(a: SInt, b: SInt) -> Any:
    """Return the condition ``a < b``. An int left of a symbol is moved to the right, since the protocol has no ``>``.

    >>> less(1, 2)
    True
    """
    left: Any = a - b if isinstance(a, int) and not isinstance(b, int) else a
    return left < (b if left is a else 0)


def at_least(a: SInt, b: SInt) -> Any:
    """Return the condition ``a >= b``, written as ``-a < 1 - b`` because the protocol has only ``<``.

    >>> at_least(2, 2)
    True
    """
    return less(times(a, -1), minus(1, b))


def both(a: Any, b: Any) -> Any:
    """Return the condition ``a and b``; a constant side is eliminated, so that a symbolic result contains no Python
    bool.

    >>> both(True, False), both(1, True)
    (False, True)
    """
    if isinstance(a, int):
        return b if a else False
    if isinstance(b, int):
        return a if b else False
    return a & b


def inside(index: SInt, bounds: Bounds) -> Any:
    """Return the condition ``begin <= index < end``, without comparisons that the bounds of ``index`` already imply.

    >>> inside(2, (1, 3)), inside(3, (1, 3))
    (True, False)
    """
    begin, end = bounds
    lower = True if surely_at_most(begin, index) else at_least(index, begin)
    upper = True if surely_at_most(plus(index, 1), end) else less(index, end)
    return both(lower, upper)
