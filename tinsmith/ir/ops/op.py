"""The Op row of the op table, from which verifier, interpreter, gradients and documentation are derived.

The module also recognizes broadcast factors and products of them, for gradients and ``ir.structure``."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Literal, Protocol, Self

import numpy as np

from tinsmith.core.dtypes import DType, dtypes

Array = np.ndarray[Any, Any]
Kind = Literal["unary", "binary", "ternary", "cast", "source", "movement", "reduce", "scan", "index",
    "memory", "loop", "program"]
DTypeRule = Callable[[tuple[Any, ...], Any], DType]  # (source nodes, argument) → dtype
ShapeRule = Callable[[Any], tuple[Any, ...]]
Gradient = Callable[[Any, Any], tuple[Any, ...]]


class Node(Protocol):
    """The node interface that the table's rules use; ``UOp``, which is built on the table, implements it."""

    @property
    def op(self) -> Op: ...
    @property
    def dtype(self) -> DType: ...
    @property
    def src(self) -> tuple[Self, ...]: ...
    @property
    def arg(self) -> Any: ...
    @property
    def shape(self) -> tuple[Any, ...]: ...
    @property
    def ndim(self) -> int: ...
    @property
    def base(self) -> Self: ...
    @property
    def device(self) -> str | None: ...
    def alu(self, op: str, *others: Self) -> Self: ...
    def __add__(self, o: Any) -> Self: ...
    def __sub__(self, o: Any) -> Self: ...
    def __mul__(self, o: Any) -> Self: ...
    def __truediv__(self, o: Any) -> Self: ...
    def __or__(self, o: Any) -> Self: ...
    def __neg__(self) -> Self: ...
    def lt(self, o: Any) -> Self: ...
    def eq(self, o: Any) -> Self: ...
    def ne(self, o: Any) -> Self: ...
    def where(self, yes: Any, no: Any) -> Self: ...
    def cast(self, dtype: DType) -> Self: ...
    def const_like(self, value: Any) -> Self: ...
    def iota_like(self, axis: int) -> Self: ...
    def reshape(self, shape: tuple[Any, ...]) -> Self: ...
    def expand(self, shape: tuple[Any, ...]) -> Self: ...
    def permute(self, order: tuple[int, ...]) -> Self: ...
    def pad(self, amounts: tuple[tuple[Any, Any], ...]) -> Self: ...
    def shrink(self, box: tuple[tuple[Any, Any], ...]) -> Self: ...
    def flip(self, axes: tuple[int, ...]) -> Self: ...
    def reduce(self, op: str, axes: tuple[int, ...]) -> Self: ...
    def gather(self, index: Self, axis: int) -> Self: ...
    def scatter(self, index: Self, x: Self, axis: int, op: str | None) -> Self: ...
    def scan(self, op: str, axis: int, *start_and_weight: Self) -> Self: ...
    def copy_to(self, device: str | None) -> Self: ...
    def replace(self, **fields: Any) -> Self: ...


@dataclass(eq=False, slots=True)
class Op:
    """One row of the op table.

    Attributes:
        kind: the op's group.
        doc: one sentence on the meaning, special values included; printed in docs/ir.md.
        arity: number of sources, or (least, most).
        dtype: (sources, argument) -> result dtype; None if the constructor call states it.
        shape: node -> result shape; None for ops that only occur below the tensor graph.
        meaning: the value, on NumPy arrays: ``meaning(node, *source values)``.
        gradient: (node, gradient of the node) -> gradients of the sources; None if it is zero everywhere.
        cost: arithmetic operations per element.
        commutative, associative: algebraic laws that rewrites may use (associative: up to rounding for floats).
        identity: for ops that can reduce: dtype -> the identity element.
        device: argument -> the value's device; None: the device of the first source that has one.
        takes: the kinds of dtypes that the op is computed for, and tested: "b" bools, "i" integers, "f" floats.
        domain: for a transcendental function, the arguments (least, greatest) that conformance tests; else None.
        keeps_zero: the value is 0 where the first source is 0 and the others are 0: padding commutes with the op.
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
    takes: str = ""
    domain: tuple[float, float] | None = None
    keeps_zero: bool = False
    name: str = field(default="", init=False)
    rows: ClassVar[dict[str, Op]] = {}  # name → row, in the order of declaration

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name
        Op.rows.setdefault(name, self)

    def __repr__(self) -> str:
        return f"Ops.{self.name}"

    def __reduce__(self) -> str | tuple[Any, ...]:
        return _named, (self.name,)

    @property
    def transcendental(self) -> bool:
        return self.domain is not None

    @property
    def elementwise(self) -> bool:
        return self.kind in ("unary", "binary", "ternary", "cast")

    @property
    def alu(self) -> bool:
        """True for arithmetic on registers, which renderers print as an expression."""
        return self.kind in ("unary", "binary", "ternary")


def _named(name: str) -> Op:
    return Op.rows[name]


def same(src: tuple[Node, ...], arg: Any) -> DType:
    """Dtype rule: return the dtype that all sources share."""
    first = src[0].dtype
    for s in src[1:]:
        if s.dtype is not first:
            raise TypeError(f"sources of different dtypes: {[x.dtype for x in src]}")
    return first


def boolean(src: tuple[Node, ...], arg: Any) -> DType:
    """Dtype rule: all sources share a dtype; return bool with as many lanes."""
    return dtypes.bool.vec(same(src, arg).count)


def of_first(src: tuple[Node, ...], arg: Any) -> DType:
    return src[0].dtype


def nothing(src: tuple[Node, ...], arg: Any) -> DType:
    return dtypes.void


def shape_of_first(node: Node) -> tuple[Any, ...]:
    return node.src[0].shape


def shape_of_all(node: Node) -> tuple[Any, ...]:
    """Shape rule of elementwise ops: return the shape that all sources share."""
    first = node.src[0].shape
    for s in node.src[1:]:
        if s.shape != first:
            raise ValueError(f"{node.op.name}: sources of different shapes: {[x.shape for x in node.src]}")
    return first


def is_repeated(node: Node, constants: bool = True) -> bool:
    """Return True if a tensor-graph factor is an expanded view, so that each of its elements is read many times.

    Args:
        constants: True to count expanded constants too, which cause no reads.
    """
    while node.op.kind == "movement" or node.op.name == "CAST":
        if node.op.name == "EXPAND" and (constants or node.base.op.name != "CONST"):
            return True
        node = node.src[0]
    return False


MAY_ROUND: Final = "tf32"  # the argument of a MUL whose float32 factors a matrix unit may round


def is_product(node: Node, constants: bool = True) -> bool:
    """Return True if ``node`` multiplies two expanded views: the summand of a contraction."""
    return node.op.name == "MUL" and all(is_repeated(s, constants) for s in node.src)
