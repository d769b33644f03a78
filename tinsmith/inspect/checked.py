"""``CHECKED=2``: kernels run one at a time on guarded buffers of their own, and their results are verified.

A kernel may write only its outputs; a sample of the output is compared with the interpreter. The allowed float error is
measured: the interpreter also gets inputs that differ by a rounding error.
"""
from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from tinsmith.backend.memory import Buffer, damaged
from tinsmith.core.errors import CheckError
from tinsmith.inspect import sample
from tinsmith.ir import Ops, UOp
from tinsmith.runtime.compiled_schedule import Bound
from tinsmith.runtime.step import Step
from tinsmith.schedule.schedule_item import ScheduleItem

Array = np.ndarray[Any, Any]
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
        CheckError: naming the first of its kernels, if a guard was overwritten.
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
    small = sample.Sample(sink, variables, random, WHOLE, BOXES)
    if small.steps > STEPS:
        return
    added, narrow = sample.terms(sink), sample.narrowest(sink)
    others = [small([_rounded(x, random) for x in inputs]) for _ in range(ROUNDINGS)]
    known = max((sample.largest(x) for x in inputs if x.dtype.kind not in "biu"), default=0.0)
    for part, *rounded in zip(small(inputs), *others):
        for n, (at, want) in enumerate(part):
            (places,) = np.nonzero(at)
            scale = max(known, sample.largest(want[at]))
            spread = np.max([_distance(want[at], other[n][1][at]) for other in rounded], axis=0)
            near = np.maximum(sample.tolerance_of(sink.src[n].dtype, scale, added, narrow), spread * SPREAD)
            off = places[sample.differing(found[n][at], want[at], near)]
            if off.size:
                k = int(off[0])
                raise _error(step, f"computes {found[n][k]} as element {k} of its output in slot {item.slots[n]}, the "
                                   f"interpreter {want[k]}; {off.size} of {places.size} elements looked at differ")


def _rounded(x: Array, random: np.random.Generator) -> Array:
    """Return values that each differ from ``x`` by a rounding error of their dtype."""
    if x.dtype.kind in "biu":
        return x
    with np.errstate(all="ignore"):
        out: Array = (x * (1 + random.choice([-1.0, 1.0], x.shape) * sample.EPSILON[x.dtype.itemsize])).astype(x.dtype)
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
