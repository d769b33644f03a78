"""Python's arithmetic and comparison operators, mapped to ops of the op table, and hints at misspelled attributes."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from tinsmith.core.names import missing_attribute
from tinsmith.ir.ops import Op, Ops


class Operators:
    """Operator methods for two operands; the other operand may be a Python scalar."""

    __slots__ = ()

    if not TYPE_CHECKING:  # a type checker finds missing attributes itself
        def __getattr__(self, name):
            return missing_attribute(self, name)

    def _binary(self, op: Op, other: Any, reverse: bool = False) -> Self:
        raise NotImplementedError

    def __add__(self, o: Any) -> Self: return self._binary(Ops.ADD, o)
    def __radd__(self, o: Any) -> Self: return self._binary(Ops.ADD, o)
    def __sub__(self, o: Any) -> Self: return self._binary(Ops.SUB, o)
    def __rsub__(self, o: Any) -> Self: return self._binary(Ops.SUB, o, True)
    def __mul__(self, o: Any) -> Self: return self._binary(Ops.MUL, o)
    def __rmul__(self, o: Any) -> Self: return self._binary(Ops.MUL, o)
    def __truediv__(self, o: Any) -> Self: return self._binary(Ops.FDIV, o)
    def __floordiv__(self, o: Any) -> Self: return self._binary(Ops.IDIV, o)
    def __rfloordiv__(self, o: Any) -> Self: return self._binary(Ops.IDIV, o, True)
    def __mod__(self, o: Any) -> Self: return self._binary(Ops.MOD, o)
    def __rmod__(self, o: Any) -> Self: return self._binary(Ops.MOD, o, True)
    def __and__(self, o: Any) -> Self: return self._binary(Ops.AND, o)
    def __rand__(self, o: Any) -> Self: return self._binary(Ops.AND, o)
    def __or__(self, o: Any) -> Self: return self._binary(Ops.OR, o)
    def __xor__(self, o: Any) -> Self: return self._binary(Ops.XOR, o)
    def __lshift__(self, o: Any) -> Self: return self._binary(Ops.SHL, o)
    def __rshift__(self, o: Any) -> Self: return self._binary(Ops.SHR, o)
    def __lt__(self, o: Any) -> Self: return self._binary(Ops.CMPLT, o)
    def __gt__(self, o: Any) -> Self: return self._binary(Ops.CMPLT, o, True)
    def lt(self, o: Any) -> Self: return self._binary(Ops.CMPLT, o)
    def eq(self, o: Any) -> Self: return self._binary(Ops.CMPEQ, o)
    def ne(self, o: Any) -> Self: return self._binary(Ops.CMPNE, o)
    def maximum(self, o: Any) -> Self: return self._binary(Ops.MAX, o)
    def minimum(self, o: Any) -> Self: return self._binary(Ops.MIN, o)
