"""What an op is: one row of the op table, from which verifier, interpreter, gradients and documentation are derived."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tinsmith.core.dtypes import DType, dtypes

if TYPE_CHECKING:
    from tinsmith.ir.uop import UOp

Array = np.ndarray[Any, Any]
Kind = Literal["unary", "binary", "ternary", "cast", "source", "movement", "reduce", "scan", "index",
    "memory", "loop", "program"]
DTypeRule = Callable[[tuple["UOp", ...], Any], DType]
ShapeRule = Callable[["UOp"], tuple[Any, ...]]
Gradient = Callable[["UOp", "UOp"], "tuple[UOp | None, ...]"]


@dataclass(eq=False, slots=True)
class Op:
    """One row of the op table.

    Attributes:
        kind: the group it belongs to.
        doc: one sentence; the meaning of special values included.
        arity: number of sources, or (least, most).
        dtype: result dtype from the sources; None where the node's maker states it.
        shape: result shape from the sources; None for ops that only occur below the tensor graph.
        meaning: the value, on NumPy arrays: ``meaning(node, *source values)``.
        gradient: (node, gradient of the node) -> gradients of the sources; None where it is zero everywhere.
        cost: arithmetic operations per element.
        commutative, associative: algebraic laws that rewrites may use (associative: up to rounding for floats).
        identity: for ops that can reduce: dtype -> the value that changes nothing.
        device: where the value lies, from the argument; None where it lies where the first placed source does.
    """

    kind: Kind
    doc: str
    arity: int | tuple[int, int]
    dtype: DTypeRule | None = None
    shape: ShapeRule | None = None
    meaning: Callable[..., Any] | None = None
    gradient: Gradient | None = None
    cost: int = 0
    commutative: bool = False
    associative: bool = False
    identity: Callable[[DType], int | float | bool] | None = None
    device: Callable[[Any], str] | None = None
    name: str = field(default="", init=False)

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"Ops.{self.name}"

    def __reduce__(self) -> str | tuple[Any, ...]:
        return _named, (self.name,)

    @property
    def elementwise(self) -> bool:
        return self.kind in ("unary", "binary", "ternary", "cast")

    @property
    def alu(self) -> bool:
        """Arithmetic on registers: rendered as an expression."""
        return self.kind in ("unary", "binary", "ternary")


def _named(name: str) -> Op:
    from tinsmith.ir.ops import Ops  # the table is complete only after this module

    found: Op = getattr(Ops, name)
    return found


def same(src: tuple[UOp, ...], arg: Any) -> DType:
    """All sources have one dtype, which is the result's."""
    first = src[0].dtype
    for s in src[1:]:
        if s.dtype is not first:
            raise TypeError(f"sources of different dtypes: {[x.dtype for x in src]}")
    return first


def boolean(src: tuple[UOp, ...], arg: Any) -> DType:
    """All sources have one dtype; the result is bool of the same width."""
    return dtypes.bool.vec(same(src, arg).count)


def of_first(src: tuple[UOp, ...], arg: Any) -> DType:
    return src[0].dtype


def nothing(src: tuple[UOp, ...], arg: Any) -> DType:
    return dtypes.void


def shape_of_first(node: UOp) -> tuple[Any, ...]:
    return node.src[0].shape


def shape_of_all(node: UOp) -> tuple[Any, ...]:
    """Elementwise: every source has the result's shape."""
    first = node.src[0].shape
    for s in node.src[1:]:
        if s.shape != first:
            raise ValueError(f"{node.op.name}: sources of different shapes: {[x.shape for x in node.src]}")
    return first
