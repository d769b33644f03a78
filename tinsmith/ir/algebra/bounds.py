"""Node properties derived from the sources: value bounds (interval arithmetic) and free ranges."""
from __future__ import annotations

from typing import Any, Protocol, Self, TypeVar

from tinsmith.core.dtypes import dtypes
from tinsmith.ir.ops import Ops
from tinsmith.ir.ops.op import Node


class KnownBounds(Node, Protocol):
    """The node protocol of this module: a node whose sources already have their properties."""

    @property
    def bounds(self) -> tuple[int, int]: ...
    @property
    def vmin(self) -> int: ...
    @property
    def vmax(self) -> int: ...
    @property
    def ranges(self) -> frozenset[Self]: ...


_FAR = 1 << 62
ANY = -_FAR, _FAR  # bounds of values that are not integers
K = TypeVar("K", bound=KnownBounds)
_NO_RANGES: frozenset[Any] = frozenset()


def free_ranges(node: K) -> frozenset[K]:
    if node.op is Ops.RANGE:  # not its bounds' ranges: iterations outside the bounds contribute nothing to any value
        return frozenset((node,))
    if not node.src:
        return _NO_RANGES
    if node.op not in (Ops.FOLD, Ops.STAGE, Ops.MMA, Ops.SCATTER_STORE):
        return _union(node.src)
    bound = bound_ranges(node)
    return _union(tuple(s for s in node.src if s not in bound)) - frozenset(bound)


def bound_ranges(node: K) -> tuple[K, ...]:
    """Return the ranges that a FOLD, STAGE, MMA or SCATTER_STORE itself iterates over."""
    if node.op is Ops.FOLD:
        return node.src[1:] if start_of(node) is None else node.src[1:-1]
    if node.op is Ops.STAGE:
        return node.src[1:]
    if node.op is Ops.SCATTER_STORE or (node.op is Ops.MMA and len(node.src) == 5):
        return node.src[4:]
    return ()


def start_of(node: K) -> K | None:
    """Return the initial value of a FOLD, or None if it starts from the identity."""
    if node.op is not Ops.FOLD:
        return None
    last = node.src[-1]
    return last if last.op is not Ops.RANGE and last.dtype is node.dtype else None


def _union(src: tuple[K, ...]) -> frozenset[K]:
    first = src[0].ranges
    for s in src[1:]:
        if not s.ranges <= first:
            first = first | s.ranges
    return first


def bounds_of(node: KnownBounds) -> tuple[int, int]:
    """Return (least, greatest) by interval arithmetic; an interval that could exceed the dtype becomes the dtype's full
    range."""
    dtype = node.dtype.scalar
    if dtype.is_bool:
        return _bool_bounds(node)
    if not dtype.is_int or node.dtype.pointer:
        return ANY
    low, high = _int_bounds(node)
    least, greatest = int(dtype.min), int(dtype.max)
    return (low, high) if least <= low and high <= greatest else (least, greatest)


def _int_bounds(node: KnownBounds) -> tuple[int, int]:
    op, src = node.op, node.src
    if op is Ops.CONST:
        return node.arg, node.arg
    if op is Ops.VARIABLE:
        return node.arg[1], node.arg[2]
    if op is Ops.BIND:
        return src[0].bounds
    if op is Ops.RANGE:
        return 0, max(src[-1].vmax - 1, 0)
    if op is Ops.IOTA:
        return 0, max(node.arg - 1, 0)
    if op is Ops.SPECIAL and node.dtype is dtypes.index:
        return 0, node.arg[1] - 1 if isinstance(node.arg, tuple) else _FAR
    if op is Ops.CAST and (src[0].dtype.is_int or src[0].dtype.is_bool):
        return src[0].bounds
    if op in (Ops.VECTORIZE, Ops.GEP):
        return min(s.vmin for s in src), max(s.vmax for s in src)
    if op.kind == "movement" and op not in (Ops.PAD, Ops.UNWINDOW):
        return src[0].bounds
    if op.alu:
        return _alu_bounds(node)
    return int(node.dtype.scalar.min), int(node.dtype.scalar.max)


def _alu_bounds(node: KnownBounds) -> tuple[int, int]:
    op, src = node.op, node.src
    a, b = src[-2].bounds if len(src) > 1 else src[0].bounds, src[-1].bounds
    if op is Ops.ADD:
        return a[0] + b[0], a[1] + b[1]
    if op is Ops.SUB:
        return a[0] - b[1], a[1] - b[0]
    if op is Ops.NEG:
        return -b[1], -b[0]
    if op is Ops.MUL:
        corners = [x * y for x in a for y in b]
        return min(corners), max(corners)
    if op is Ops.IDIV and b[0] > 0:
        corners = [x // y for x in a for y in b]
        return min(corners), max(corners)
    if op is Ops.IDIV and node.dtype is dtypes.index:  # division by 0 gives 0
        far = max(abs(a[0]), abs(a[1]))
        return (0 if a[0] >= 0 <= b[0] else -far), far
    if op is Ops.MOD and b[0] > 0:
        return (a if a[0] >= 0 and a[1] < b[0] else (0, b[1] - 1))
    if op is Ops.MOD and node.dtype is dtypes.index and b[0] == 0:
        return 0, max(b[1] - 1, 0)
    if op is Ops.MAX:
        return max(a[0], b[0]), max(a[1], b[1])
    if op is Ops.MIN:
        return min(a[0], b[0]), min(a[1], b[1])
    if op is Ops.WHERE:
        return min(a[0], b[0]), max(a[1], b[1])
    if op is Ops.AND and b[0] == b[1] >= 0:
        return 0, b[1]
    if op is Ops.SHR and b[0] >= 0 and a[0] >= 0:
        return a[0] >> b[1], a[1] >> b[0]
    return int(node.dtype.scalar.min), int(node.dtype.scalar.max)


def _bool_bounds(node: KnownBounds) -> tuple[int, int]:
    op, src = node.op, node.src
    if op is Ops.CONST:
        return int(node.arg), int(node.arg)
    if op is Ops.CMPLT and src[0].dtype.scalar.is_int:
        a, b = src[0].bounds, src[1].bounds
        return int(a[1] < b[0]), int(a[0] < b[1])
    if op in (Ops.CMPEQ, Ops.CMPNE) and not src[0].dtype.is_float:
        a, b = src[0].bounds, src[1].bounds
        apart, equal = a[1] < b[0] or b[1] < a[0], a[0] == a[1] == b[0] == b[1]
        low, high = int(equal), int(not apart)
        return (low, high) if op is Ops.CMPEQ else (1 - high, 1 - low)
    if op is Ops.AND:
        return min(src[0].vmin, src[1].vmin), min(src[0].vmax, src[1].vmax)
    if op is Ops.OR:
        return max(src[0].vmin, src[1].vmin), max(src[0].vmax, src[1].vmax)
    return 0, 1
