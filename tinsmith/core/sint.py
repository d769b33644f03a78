"""The integer protocol of ``shape/``, which Python ints and symbolic integers (UOps) both satisfy."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Protocol, TypeAlias, runtime_checkable


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
