"""Reference results of a kernel by the interpreter: in full for small kernels, else for random boxes of its loops."""
from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tinsmith.codegen.lower.lower import lower
from tinsmith.codegen.lower.normalize import normalize
from tinsmith.core.dtypes import DType
from tinsmith.ir import Ops, UOp
from tinsmith.ir.interpret.kernel import evaluate_kernel
from tinsmith.ir.interpret.tensor import evaluate_scalar
from tinsmith.ir.ranges import count_of
from tinsmith.ir.uop import toposort

Array = np.ndarray[Any, Any]
# Relative rounding error of the coarsest float type, by size in bytes.
EPSILON: dict[int, float] = {1: 2.0**-2, 2: 2.0**-8, 4: 2.0**-23, 8: 2.0**-52}


class Sample:
    """A kernel reduced to a size that the interpreter computes quickly.

    Attributes:
        steps: number of sequential updates, which cannot be reduced.

    Args:
        sink: the kernel's tensor graph.
        whole: elements of the largest value up to which the kernel is interpreted in full.
        boxes: number of random boxes of a larger kernel.
        variables: values of its VARIABLEs.
    """

    def __init__(self, sink: UOp, variables: Mapping[UOp, int], random: np.random.Generator, whole: int,
                 boxes: int) -> None:
        self.variables = variables
        self.outputs = [(v.dtype, most(v.size)) for v in sink.src]
        lowered = normalize(lower(sink))
        self.steps = max((count_of([n.src[4]]) for n in toposort(lowered) if n.op is Ops.SCATTER_STORE), default=1)
        needed = max(count_of(n.ranges | set(n.src[1:] if n.op is Ops.FOLD else ())) for n in toposort(lowered))
        self.parts = [lowered] if needed <= whole else [box(lowered, random, variables) for _ in range(boxes)]

    def __call__(self, inputs: Sequence[Array]) -> Iterator[list[tuple[Array, Array]]]:
        """Yield, for each part, an (is written, value) array pair for each output, over all its elements."""
        for part in self.parts:
            twice = []
            for filling in (0x00, 0xA5):
                arrays: list[Array] = [np.full(size * d.itemsize, filling, np.uint8).view(d.numpy)
                                       for d, size in self.outputs]
                evaluate_kernel(part, [*arrays, *inputs], self.variables)
                twice.append(arrays)
            yield [((a.view(np.uint8).reshape(a.size, -1) == b.view(np.uint8).reshape(a.size, -1)).all(axis=1), a)
                   for a, b in zip(*twice)]


def most(size: Any) -> int:
    """Return a size as int; for a symbolic size its maximum."""
    return int(size.vmax) if isinstance(size, UOp) else int(size)


def box(sink: UOp, random: np.random.Generator, variables: Mapping[UOp, int]) -> UOp:
    """Return the kernel restricted to a random small part of each range of its stores, except
    ranges of sequential steps."""
    ordered = {s for n in toposort(sink) if n.op in (Ops.PREFIX, Ops.SCATTER_STORE) for s in n.src[1:]}
    table: dict[UOp, UOp] = {}
    for r in frozenset().union(*(s.ranges for s in sink.src)) - ordered:
        size = evaluate_scalar(r.src[-1], variables)
        width = min(size, 3)
        begin = int(random.integers(0, size - width + 1))
        table[r] = UOp(Ops.RANGE, r.dtype, (UOp.index(begin), UOp.index(begin + width)), r.arg)
    return sink.substitute(table)


def terms(sink: UOp) -> int:
    """Return the largest number of values that one reduction adds up."""
    return max((int(np.prod([most(n.src[0].shape[a]) for a in n.arg[1]], dtype=np.int64))
                for n in toposort(sink) if n.op is Ops.REDUCE), default=1)


def narrowest(sink: UOp) -> float:
    """Return the relative rounding error of the narrowest float type that a kernel computes in."""
    computed = {n.dtype for n in toposort(sink) if n.op is not Ops.PARAM and n.dtype.is_float}
    return max((EPSILON[d.itemsize] for d in computed), default=0.0)


def largest(values: Array) -> float:
    """Return the largest absolute value among finite ones."""
    wide = values.astype(np.float64)
    return float(np.max(np.abs(wide[np.isfinite(wide)]), initial=0.0))


def tolerance_of(dtype: DType, scale: float, added: int, narrow: float = 0.0) -> float:
    """Return the allowed error of an element, for values up to ``scale``; 0 for integers.

    About one rounding for each of the ``added`` values, and a few in the narrowest intermediate type, whose relative
    rounding error is ``narrow``.
    """
    if not dtype.is_float:
        return 0.0
    sums: float = EPSILON[max(dtype.itemsize, 4)] * max(added, 4) ** 0.75
    return 8 * (sums + max(narrow, EPSILON[dtype.itemsize])) * scale


def differing(a: Array, b: Array, near: float | Array) -> Array:
    """Return True at each element where values differ by more than ``near``; NaN equals NaN."""
    if a.dtype.kind in "biu":
        return np.asarray((a != b) & (np.asarray(near) == 0))
    x, y = a.astype(np.float64), b.astype(np.float64)
    with np.errstate(invalid="ignore"):
        return np.asarray(~((x == y) | (np.abs(x - y) <= near) | (np.isnan(x) & np.isnan(y))))
