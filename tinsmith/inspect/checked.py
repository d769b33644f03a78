"""``CHECKED=2``: kernels run one at a time on guarded buffers, and their results are compared with the interpreter.

A kernel may write only its outputs. The interpreter computes a reference result: in full for small kernels, else for
random boxes of its loops. The allowed float error is measured: the interpreter also gets inputs that differ by a
rounding error.
"""
from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tinsmith.backend.memory import Buffer, damaged
from tinsmith.codegen.lower.lower import lower
from tinsmith.codegen.lower.normalize import normalize
from tinsmith.core.dtypes import DType
from tinsmith.core.errors import CheckError
from tinsmith.ir import Ops, UOp
from tinsmith.ir.interpret.kernel import evaluate_kernel
from tinsmith.ir.interpret.tensor import evaluate_scalar
from tinsmith.ir.structure import count_of
from tinsmith.ir.uop import toposort
from tinsmith.runtime.compiled_schedule import Bound
from tinsmith.runtime.step import Step
from tinsmith.schedule.schedule_item import ScheduleItem

Array = np.ndarray[Any, Any]
# Relative rounding error of the coarsest float type, by size in bytes.
EPSILON: dict[int, float] = {1: 2.0**-2, 2: 2.0**-8, 4: 2.0**-23, 8: 2.0**-52}


class Sample:
    """A kernel reduced to a size that the interpreter computes quickly.

    Attributes:
        steps: number of sequential updates, which cannot be reduced.

    Args:
        sink: the kernel's tensor graph.
        whole: maximum number of elements of the largest value for a kernel to be interpreted in full.
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

WHOLE = 1 << 15  # elements of the largest value up to which a kernel is interpreted in full; larger kernels in boxes
BOXES = 2
STEPS = 1 << 10  # sequential updates that are interpreted; a kernel with more is not compared
ROUNDINGS = 3  # number of runs on inputs perturbed by a rounding error
SPREAD = 16  # allowed error of a kernel, as a multiple of the spread of these runs


def apart(bound: Bound, bases: Sequence[Buffer]) -> Callable[[int], Buffer]:
    """Return a function slot → buffer in which temporaries share no memory."""
    own: dict[int, Buffer] = {}

    def of(slot: int) -> Buffer:
        place = bound.places[slot]
        if place.dtype is None:
            return place.of(bases)
        if slot not in own:
            own[slot] = Buffer(bases[place.base].device, place.size, place.dtype)
        return own[slot]

    return of


@contextlib.contextmanager
def watched(step: Step, of: Callable[[int], Buffer], values: Sequence[int]) -> Iterator[None]:
    """Check the memory accesses and the results of a kernel that runs in this block.

    Raises:
        CheckError: naming the kernel and the user's line, if a check fails.
    """
    item = step.item
    read = step.read if item is None else item.read
    before = {s: of(s).numpy() for s in read}
    yield
    for s in dict.fromkeys([*step.slots, *read]):
        if not of(s).is_intact():
            of(s).guard()  # restore the guard, so that it is reported once
            raise _error(step, f"writes outside of {_name(step, s, of(s))}")
    for s, old in before.items():
        if not np.array_equal(old.view(np.uint8), of(s).numpy().view(np.uint8)):
            raise _error(step, f"writes to {_name(step, s, of(s))}, which it should only read")
    # a host function is NumPy itself
    if item is not None and item.sink is not None and item.sink.src[0].op is not Ops.HOST:
        _compare(step, item, item.sink, [before[s] for s in item.read], [of(s).numpy() for s in item.written], values)


def verify_guards(steps: Sequence[Step]) -> None:
    """Check the guards of all buffers after a program.

    Raises:
        CheckError: naming the first kernel of the program, if a guard was overwritten.
    """
    found = damaged()
    for b in found:
        b.guard()
    if found and steps:
        raise _error(steps[0], f"or a later kernel of its program writes outside of {found[0]!r}")


def _compare(step: Step, item: ScheduleItem, sink: UOp, inputs: Sequence[Array], found: Sequence[Array],
             values: Sequence[int]) -> None:
    random = np.random.default_rng(0)
    variables = {UOp.variable(f"v{k}", *b.src[0].arg[1:]): values[b.src[1].arg] for k, b in enumerate(item.variables)}
    small = Sample(sink, variables, random, WHOLE, BOXES)
    if small.steps > STEPS:
        return
    added, narrow = terms(sink), narrowest(sink)
    others = [small([_rounded(x, random) for x in inputs]) for _ in range(ROUNDINGS)]
    known = max((largest(x) for x in inputs if x.dtype.kind not in "biu"), default=0.0)
    for part, *rounded in zip(small(inputs), *others):
        for n, (at, want) in enumerate(part):
            (places,) = np.nonzero(at)
            scale = max(known, largest(want[at]))
            spread = np.max([_distance(want[at], other[n][1][at]) for other in rounded], axis=0)
            near = np.maximum(tolerance_of(sink.src[n].dtype, scale, added, narrow), spread * SPREAD)
            off = places[differing(found[n][at], want[at], near)]
            if off.size:
                k = int(off[0])
                raise _error(step, f"computes {found[n][k]} as element {k} of its output in slot {item.slots[n]}, the "
                                   f"interpreter {want[k]}; {off.size} of {places.size} elements looked at differ")


def _rounded(x: Array, random: np.random.Generator) -> Array:
    """Return values that each differ from ``x`` by a rounding error of their dtype."""
    if x.dtype.kind in "biu":
        return x
    with np.errstate(all="ignore"):
        out: Array = (x * (1 + random.choice([-1.0, 1.0], x.shape) * EPSILON[x.dtype.itemsize])).astype(x.dtype)
    return out


def _distance(a: Array, b: Array) -> Array:
    """Return the absolute difference of values; infinite if only one of them is finite."""
    with np.errstate(all="ignore"):
        x, y = a.astype(np.float64), b.astype(np.float64)
        same = (x == y) | (np.isnan(x) & np.isnan(y))
        return np.asarray(np.where(same, 0.0, np.nan_to_num(np.abs(x - y), nan=np.inf)))


def _name(step: Step, slot: int, buffer: Buffer) -> str:
    return f"its {'output' if slot in step.written else 'input'} in slot {slot} ({buffer.size} x {buffer.dtype!r})"


def _error(step: Step, what: str) -> CheckError:
    at = next((o[1:] for o in reversed(step.origin)), None)
    made = f" ({', '.join(step.methods)})" if any(step.methods) else ""
    return CheckError("realize", f"kernel {step.name}{made} on {step.device} {what}",
                      "report it: this is a bug in Tinsmith; NOOPT=1 may avoid it", at)
