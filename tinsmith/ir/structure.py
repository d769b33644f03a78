"""Structure of kernels: their class (contraction, rows, scan, scatter, map), and the roles of their ranges.

``structure`` classifies a complete kernel. The scheduler classifies tensor graphs, the planner kernel graphs, by the
same functions. ``Role`` is the kind of a range; helpers give the sizes of ranges.
"""
from __future__ import annotations

import enum
import math
from collections.abc import Iterable
from typing import Any, NamedTuple

from tinsmith.core.settings import settings
from tinsmith.ir.ops.op import MAY_ROUND, is_product
from tinsmith.ir.uop import UOp, toposort


class Contraction(NamedTuple):
    """A sum of products of two factors, each reused along an axis of the other: Σ_k a[batch, m, k] · b[batch, n, k].

    Each group is a tuple of ranges, outermost first: the m of a convolution may be image, row and column, its k channel
    and window position. In a tensor graph the groups are empty; there, reuse is recognized by expanded views.

    Attributes:
        valid: the mask of the products, if a range is padded; None: all count.
        chain: in a kernel, its other contractions (back-to-back GEMM), which compute an operand or share the tile.
        may_round: a matrix unit may round float32 factors to TF32, by the setting ``ALLOW_TF32`` or by the argument of
            the product.
    """

    a: UOp
    b: UOp
    valid: UOp | None = None
    batch: tuple[UOp, ...] = ()
    m: tuple[UOp, ...] = ()
    n: tuple[UOp, ...] = ()
    k: tuple[UOp, ...] = ()
    chain: tuple[Contraction, ...] = ()
    may_round: bool = False


class Rows(NamedTuple):
    """Reductions over ``columns`` for each of ``rows``, with a pointwise epilogue."""

    rows: tuple[UOp, ...]
    columns: tuple[UOp, ...]


class Scan(NamedTuple):
    """A scan (prefix reduction) over ``steps``, for each of ``rows``."""

    rows: tuple[UOp, ...]
    steps: tuple[UOp, ...]


class Scatter(NamedTuple):
    """Stores whose indices come from memory, executed in the order of ``steps``."""

    steps: tuple[UOp, ...]


class Map(NamedTuple):
    """Independent elements: pointwise work, movement, gathers."""

    ranges: tuple[UOp, ...]

Structure = Contraction | Rows | Scan | Scatter | Map


def structure(sink: UOp) -> Structure:
    """Classify a kernel, given as a SINK of statements over ranges.

    >>> from tinsmith.ir import Ops
    >>> from tinsmith.core.dtypes import dtypes
    >>> i, k = UOp.range(4, 0, None), UOp.range(8, 1, None)
    >>> x, y = (UOp(Ops.PARAM, dtypes.float32.ptr(), (), (n, (32,))) for n in (0, 1))
    >>> def kernel(value): return UOp(Ops.SINK, None, (UOp(Ops.STORE, None, (x, i, value)),))
    >>> structure(kernel(y.load(i) * 2)) == Map((i,))
    True
    >>> structure(kernel(UOp(Ops.FOLD, None, (y.load(i * 8 + k), k), Ops.ADD))) == Rows((i,), (k,))
    True
    """
    nodes = toposort(sink)
    folds = [n for n in nodes if n.op.name == "FOLD"]
    inner = {r for f in folds for r in f.src[1:]}
    steps = [r for n in nodes if n.op.name == "PREFIX" for r in n.src[1].ranges]
    rows = tuple(n for n in nodes if n.op.name == "RANGE" and n not in inner and n not in steps)
    if steps:
        return Scan(rows, tuple(dict.fromkeys(steps)))
    found = [c for f in folds if (c := contraction(f, guarded=True))]
    if found:
        return found[-1]._replace(chain=tuple(found[:-1]))
    if folds:
        return Rows(rows, tuple(dict.fromkeys(r for f in folds for r in f.src[1:])))
    ordered = tuple(dict.fromkeys(n.src[4] for n in nodes if n.op.name == "SCATTER_STORE"))
    return Scatter(ordered) if ordered else Map(rows)


def contraction(node: UOp, guarded: bool = False) -> Contraction | None:
    """Return the contraction that a FOLD over ranges or a REDUCE over axes computes; None for any other node.

    Args:
        guarded: for a FOLD, also accept masked products, ``where(condition, a * b, 0)``.

    >>> from tinsmith.ir import Ops, UOp
    >>> from tinsmith.core.dtypes import dtypes
    >>> i, j, k = (UOp.range(4, n, None) for n in range(3))
    >>> x, y = (UOp(Ops.PARAM, dtypes.float32.ptr(), (), (n, (16,))) for n in (1, 2))
    >>> found = contraction(UOp(Ops.FOLD, None, (x.load(i * 4 + k) * y.load(k * 4 + j), k), Ops.ADD))
    >>> found is not None and (found.batch, found.m, found.n, found.k) == ((), (i,), (j,), (k,))
    True
    >>> contraction(UOp(Ops.FOLD, None, (x.load(i * 4 + k) * y.load(k), k), Ops.ADD)) is None
    True
    """
    if node.op.name == "REDUCE":
        return _of_axes(node)
    found = sum_of_products(node, guarded)
    return found if found is not None and found.m and found.n else None


def sum_of_products(fold: UOp, guarded: bool = False) -> Contraction | None:
    """Return a FOLD that sums products as a Contraction, even without reuse (a matrix-vector product has no n); else
    None."""
    if fold.op.name != "FOLD" or fold.arg.name != "ADD":
        return None
    body: UOp = fold.src[0]
    valid: UOp | None = None
    while guarded and (guard := guard_of(body)) is not None:
        valid, body = guard if valid is None else valid & guard, body.src[1]
    if body.op.name != "MUL":
        return None
    a, b = (s.ranges & fold.ranges for s in body.src)
    batch, m, n = (tuple(sorted(group, key=lambda r: r.arg[0])) for group in (a & b, a - b, b - a))
    return Contraction(body.src[0], body.src[1], valid, batch, m, n, fold.src[1:], may_round=_may_round(body))


def guard_of(value: UOp) -> UOp | None:
    """Return the mask of a value that is 0 elsewhere: c of where(c, x, 0); else None."""
    return value.src[0] if value.op.name == "WHERE" and value.src[2].is_const and value.src[2].arg == 0 else None


def _of_axes(node: UOp) -> Contraction | None:
    """Return the contraction of a tensor-graph REDUCE, looking through nested sums, movement ops and casts."""
    body = node
    while body.op.kind == "movement" or body.op.name == "CAST" or (
            body.op.name == "REDUCE" and body.arg[0].name == "ADD"):
        body = body.src[0]
    if body is node or not is_product(body):
        return None
    return Contraction(body.src[0], body.src[1], may_round=_may_round(body))


def _may_round(product: UOp) -> bool:
    return bool(settings.ALLOW_TF32) or product.arg == MAY_ROUND


def unrepeated_size(factor: UOp) -> int:
    """Return the number of elements of an expanded factor before its expansion."""
    while factor.op.name != "EXPAND":
        factor = factor.src[0]
    size = factor.src[0].size
    return size if isinstance(size, int) else size.vmax


class Role(enum.Enum):
    """The kind of a range; the letter names it in kernel names and DEBUG output."""

    THREAD = "t"  # split over the CPU worker threads
    GLOBAL = "g"  # index of a thread block in the grid
    LOCAL = "l"  # threads of a block
    GROUP = "G"  # threads of a block that share a reduction
    LOOP = "L"  # loop over independent iterations, or over the ordered steps of a scan
    BLOCK = "b"  # outer loop over blocks of another range; sums over it are accumulated in memory
    REDUCE = "R"  # loop of a reduction
    RANK = "k"  # steps of a histogram or rank, which the threads of a block share
    UPCAST = "u"  # register tile: copies of a parallel iteration
    UNROLL = "r"  # unrolled copies of a reduction step
    VECTOR = "v"  # lanes of vector registers
    FRAGMENT = "m"  # rows, columns or depth of a matrix unit's tile

    def __repr__(self) -> str:
        return self.name

    @property
    def expanded(self) -> bool:
        """True if the linearizer unrolls or vectorizes the range instead of emitting a loop."""
        return self in (Role.UPCAST, Role.UNROLL, Role.VECTOR, Role.FRAGMENT)

THREADS = (Role.LOCAL, Role.GROUP)  # threads of a block


def range_size(r: UOp) -> Any:
    """Return the number of iterations of a range: an int, or a UOp if it is known only at launch."""
    return r.src[-1].arg if r.src[-1].is_const else r.src[-1]


def divides(amount: int, size: int | UOp) -> bool:
    """Return True if ``amount`` divides a size for all values of its variables.

    >>> n = UOp.variable("n", 1, 9)
    >>> divides(4, 12), divides(4, n), divides(4, n * 8)
    (True, False, True)
    """
    rest = size % amount
    return rest == 0 if isinstance(rest, int) else bool(rest.simplify().vmax == 0)


def count_of(ranges: Iterable[UOp]) -> int:
    """Return the product of the sizes of ``ranges``; a symbolic size counts as its greatest value.

    >>> count_of([UOp.range(3, 0, Role.LOOP), UOp.range(4, 1, Role.REDUCE)])
    12
    """
    return math.prod(r.vmax + 1 for r in ranges)


def digits(ranges: Iterable[UOp], number: UOp) -> dict[UOp, UOp]:
    """Return each range as a mixed-radix digit of ``number``; the first range varies fastest."""
    table, pitch = dict[UOp, UOp](), 1
    for r in ranges:
        table[r] = (number // pitch % range_size(r)).simplify()
        pitch *= range_size(r)
    return table


def limits(r: UOp) -> tuple[UOp, UOp] | None:
    """Return (start, end) of a range that runs over part of its steps; None if it runs over all."""
    return r.src[:2] if len(r.src) == 3 else None


def is_partial(r: UOp) -> bool:
    """Return True if the range's last iteration is partial: guards leave it early, and it is emitted as a separate copy
    of the loop body, so that the other iterations need no guards.

    >>> is_partial(UOp.range(3, 0, Role.LOOP)), is_partial(UOp.range(3, 0, Role.LOOP, True))
    (False, True)
    """
    return len(r.arg) == 3


def tiles_of(r: UOp) -> tuple[Any, int]:
    """Return (elements, elements of an iteration) of a range: those of a partial range of symbolic size, which its
    first source and its argument hold; else its size and 1.

    >>> tiles_of(UOp.range(3, 0, Role.LOOP, True))
    (3, 1)
    """
    return (r.src[0], r.arg[2]) if is_partial(r) and len(r.src) == 2 else (range_size(r), 1)


class Axis(NamedTuple):
    """A range of a kernel as shown to users: the item that an opt's ``axis`` numbers.

    >>> Axis(8, Role.REDUCE)
    8 reduce
    """

    size: int | UOp
    role: Role

    def __repr__(self) -> str:
        return f"{self.size} {self.role.name.lower()}"
