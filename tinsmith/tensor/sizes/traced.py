"""Sizes as the user's code sees them while a function is traced for a range of sizes.

Such a size behaves as the integer of the current call, as far as Python's code can observe. Arithmetic with integers
gives another traced size. A comparison is decided by the current values and reported to the watchers of
``ir.algebra.sizes``, so that it becomes a guard. Every other use of the value (``range``, ``int``, a dictionary's key,
a format) reports the value itself, which restricts the trace to it.
"""
from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

from tinsmith.core.object_lifetime import OfThread
from tinsmith.core.suggestions import converters
from tinsmith.ir import Ops, UOp
from tinsmith.ir.algebra.sizes import holds, normal_size, value_of_size
from tinsmith.ir.uop import toposort

traces: Final[OfThread[object]] = OfThread()  # one item for each trace of this thread
_PACKAGE: Final = __name__.partition(".")[0]
_USERS: Final = (f"{_PACKAGE}.examples", f"{_PACKAGE}.torch")  # written like a user's code
_PASSED: Final = f"{_PACKAGE}.core.suggestions"


def _sized(value: Any) -> Any:
    """Return an expression of sizes as an int or a traced size."""
    found = normal_size(value)
    return TracedSize(found) if isinstance(found, UOp) else found


def _node(value: Any) -> Any:
    """Return an integer operand as an int or a node; None for other types."""
    if type(value) is TracedSize:
        return value.node
    return int(value) if isinstance(value, int) or (hasattr(value, "dtype") and hasattr(value, "__index__")) else None


def _arithmetic(compute: Callable[[Any, Any], Any], swapped: bool = False) -> Callable[[TracedSize, Any], Any]:
    def method(self: TracedSize, other: Any) -> Any:
        node = _node(other)
        if node is None:
            return NotImplemented
        return _sized(compute(node, self.node) if swapped else compute(self.node, node))
    return method


def _comparison(compare: Callable[[Any, Any], Any], plain: Callable[[Any, Any], Any]) -> Callable[
        [TracedSize, Any], Any]:
    def method(self: TracedSize, other: Any) -> Any:
        node = _node(other)
        if node is None:  # a float, or no number
            return plain(int(self), other)
        difference = normal_size(self.node - node)
        return holds(compare(difference, 0)) if isinstance(difference, UOp) else plain(difference, 0)
    return method


def _by_value(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, *others: function(int(self), *others)


def _by_value_swapped(function: Callable[[Any, Any], Any]) -> Callable[[TracedSize, Any], Any]:
    return lambda self, other: function(other, int(self))


class TracedSize:
    """A size that depends on the call's sizes: ``node``, an expression of bound variables.

    >>> n = TracedSize(UOp.variable("n", 2, 100).bind(5))
    >>> n * 2 + 1, n > 3, isinstance(n, int), list(range(n))[-1], n / 2
    (11, True, True, 4, 2.5)
    """

    __slots__ = ("node",)
    # for isinstance(size, int); Python's C code looks at the type itself, and calls __index__
    locals()["__class__"] = property(lambda self: int)

    def __init__(self, node: UOp) -> None:
        self.node = node

    __add__ = __radd__ = _arithmetic(operator.add)
    __sub__, __rsub__ = _arithmetic(operator.sub), _arithmetic(operator.sub, True)
    __mul__ = __rmul__ = _arithmetic(operator.mul)
    __floordiv__, __mod__ = _arithmetic(operator.floordiv), _arithmetic(operator.mod)
    __lt__ = _comparison(lambda a, b: a < b, operator.lt)
    __le__ = _comparison(lambda a, b: a < b + 1, operator.le)
    __gt__ = _comparison(lambda a, b: UOp.index(b) < a, operator.gt)
    __ge__ = _comparison(lambda a, b: UOp.index(b - 1) < a, operator.ge)
    __eq__ = _comparison(lambda a, b: a.eq(b), operator.eq)
    __ne__ = _comparison(lambda a, b: a.ne(b), operator.ne)
    __rfloordiv__, __rmod__ = _by_value_swapped(operator.floordiv), _by_value_swapped(operator.mod)
    __truediv__, __rtruediv__ = _by_value(operator.truediv), _by_value_swapped(operator.truediv)
    __pow__, __rpow__ = _by_value(operator.pow), _by_value_swapped(operator.pow)
    __divmod__, __float__, __hash__ = _by_value(divmod), _by_value(float), _by_value(hash)
    __and__, __or__, __xor__ = _by_value(operator.and_), _by_value(operator.or_), _by_value(operator.xor)
    __lshift__, __rshift__ = _by_value(operator.lshift), _by_value(operator.rshift)
    __repr__ = __str__ = _by_value(repr)
    __format__, __round__ = _by_value(format), _by_value(round)

    def __int__(self) -> int:
        return value_of_size(self.node)

    __index__ = __trunc__ = __int__

    def __neg__(self) -> Any:
        return _sized(self.node * -1)

    def __pos__(self) -> TracedSize:
        return self

    def __abs__(self) -> Any:
        return -self if self < 0 else self

    def __bool__(self) -> bool:
        return bool(self != 0)

    def bit_length(self) -> int:
        """Return the bits of the value, as ``int.bit_length``."""
        return int(self).bit_length()


def plain(value: Any) -> Any:
    """Return an argument of the user's with nodes in place of traced sizes, also in tuples, lists, dicts and slices."""
    kind = type(value)
    if kind is TracedSize:
        return value.node
    if kind is tuple or kind is list:
        return kind(map(plain, value))
    if kind is dict:
        return {key: plain(v) for key, v in value.items()}
    return slice(*map(plain, (value.start, value.stop, value.step))) if kind is slice else value


def shown(value: Any, frame: FrameType | None) -> Any:
    """Return a size or a shape for the function at ``frame``: the user's code gets traced sizes, this package nodes."""
    while frame is not None and frame.f_globals.get("__name__") == _PASSED:
        frame = frame.f_back
    name = str(frame.f_globals.get("__name__", "")) if frame is not None else ""
    if not traces or (name.partition(".")[0] == _PACKAGE and not name.startswith(_USERS)):
        return value
    return tuple(map(_shown, value)) if type(value) is tuple else _shown(value)


def _shown(size: Any) -> Any:
    return TracedSize(size) if isinstance(size, UOp) and any(n.op is Ops.BIND for n in toposort(size)) else size


@contextmanager
def tracing() -> Iterator[None]:
    """Show traced sizes to the user's code in this thread."""
    traces.append(None)
    converters.append(plain)
    try:
        yield
    finally:
        converters.remove(plain)
        traces.remove(None)
