"""Guards on the sizes of tensor arguments: the range, the relations and the divisibility for which a capture is valid.

A signature is separated into its form and its sizes. Signatures of one form differ in sizes only. ``SizeGuard`` is the
condition on these for one capture: one generated function over a list of integers, which gives the values of the
capture's variables.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tinsmith.core.dtypes import DType
from tinsmith.core.settings import settings
from tinsmith.core.terminal import show
from tinsmith.ir import Ops, UOp
from tinsmith.jit.guards.signature import PLACE
from tinsmith.schedule.passes.dynamic_sizes import WITHOUT_SIZES, Expression, taken_apart

Sizes = tuple[int, ...]
MOST_RANGES: Final = 8  # captures over ranges of sizes of one form
_KEPT: Final = 4  # sets of sizes that are compared


def separated(described: Sequence[Any]) -> tuple[tuple[Any, ...], Sizes] | None:
    """Return the (form, sizes) of the description of a call's arguments; None if no size of it may change: there is no
    tensor, or one is over several devices, has symbolic sizes or no memory."""
    form: list[Any] = []
    sizes: list[int] = []
    for part in described:
        if type(part) is not tuple or len(part) != 7 or not isinstance(part[1], DType):
            if type(part) is tuple and part and isinstance(part[0], UOp):
                return None
            form.append(part)
            continue
        size, dtype, where, view, *rest = part
        if not isinstance(where, PLACE):
            return None
        sizes.append(size)
        kept = []
        for op, arg, others in view:
            if op is not Ops.DETACH and op not in WITHOUT_SIZES:
                arg = taken_apart(arg, sizes)
                if arg is None:
                    return None
            kept.append((op, arg, others))
        form.append((dtype, where, tuple(kept), *rest))
    return (tuple(form), tuple(sizes)) if sizes else None


def marked(described: Sequence[Any], axes: Mapping[int, Sequence[int]]) -> list[Any]:
    """Return the description of a call in which the sizes of the marked axes are others.

    Args:
        axes: number of a tensor in order of first occurrence → its axes. Axes of equal size stay equal.
    """
    found = list(described)
    for n, part in enumerate(described):
        if type(part) is tuple and len(part) == 7 and isinstance(part[1], DType) and part[5] in axes:
            size, view = part[0], part[3]
            shape = list(view[0][1]) if view else [size]
            if [op for op, _, _ in view] not in ([], [Ops.RESHAPE]) or 0 in shape:
                continue
            for axis in axes[part[5]]:
                shape[axis] = 2 * shape[axis] + 1
            changed = tuple((op, tuple(shape), rest) for op, _, rest in view)
            found[n] = math.prod(shape), *part[1:3], changed, *part[4:]
    return found


@dataclass
class RangeHistory:
    """The history of the calls of one form.

    Attributes:
        key: the key of its captures over ranges.
        samples: the latest sets of sizes.
        proven: a call of this form was captured, so its function may be run again.
        refused: the reason why sizes cannot change; empty if they can.
        pinned: numbers of the sizes whose value decided the control flow.
        ranges: the number of captures over ranges so far.
        seconds: the longest time of a call that compiled its programs for fixed sizes.
        spent: values of the variables → seconds of replays with them.
    """

    key: tuple[Any, ...]
    samples: list[Sizes] = field(default_factory=list)
    proven: bool = False
    refused: str = ""
    pinned: set[int] = field(default_factory=set)
    ranges: int = 0
    seconds: float = 0.0
    spent: dict[tuple[int, ...], float] = field(default_factory=dict)

    def ran(self, values: Sequence[int], seconds: float) -> bool:
        """Count a replay over a range. Return True if a capture for these sizes pays, since its kernels are faster:
        once replays with them have taken as long as it."""
        key = tuple(values)
        total = self.spent[key] = self.spent.get(key, 0.0) + seconds
        return total > self.seconds

    def stays(self, values: Sequence[int]) -> bool:
        """Return True if a capture for these values of the variables pays."""
        return self.spent.get(tuple(values), 0.0) > self.seconds

    @property
    def may_change(self) -> bool:
        """True if the next capture may be one over a range of sizes."""
        if not self.proven or self.refused or self.ranges >= MOST_RANGES:
            return False
        return any(len(set(column)) > 1 for column in zip(*self.comparable()))

    def refuse(self, reason: str, name: str, for_ever: bool = True) -> None:
        """Say once why sizes cannot change."""
        if for_ever:
            self.refused = reason
        if settings.DEBUG >= 1:
            show(f"jit {name}: captured for each size: {reason}")

    def add(self, sizes: Sizes) -> None:
        """Add a set of sizes, as the latest."""
        self.samples = [*(s for s in self.samples if s != sizes), sizes][-_KEPT:]

    def comparable(self) -> list[Sizes]:
        """Return the samples that agree with the latest in all pinned sizes; the latest is the last."""
        latest = self.samples[-1]
        return [s for s in self.samples if all(s[n] == latest[n] for n in self.pinned)]


class SizeGuard:
    """The condition on the sizes of a call under which a capture over a range is valid.

    Args:
        sample: the sizes of the captured call; those without an expression must be equal.
        places: for each variable, the number of a size that is equal to it.
        bounds: for each variable, the least and the greatest value.
        expressions: the number of a size → its expression of variables.

    >>> guard = SizeGuard((12, 4, 3), [1], [(2, 64)], {0: Expression(3, (0,)), 1: Expression(1, (0,))})
    >>> guard.values((15, 5, 3)), guard.values((15, 5, 4)), guard.values((300, 100, 3))
    ([5], None, None)
    >>> print(guard.source)
    def values(s):
        v0 = s[1]
        if 2 <= v0 <= 64 and s[0] == 3*v0 and s[2] == 3: return [v0]
    """

    values: Callable[[Sizes], list[int] | None]

    def __init__(self, sample: Sizes, places: Sequence[int], bounds: Sequence[tuple[int, int]],
                 expressions: dict[int, Expression]) -> None:
        self.sample, self.places, self.bounds, self.expressions = sample, places, bounds, expressions
        tests = [f"{low} <= v{k} <= {high}" for k, (low, high) in enumerate(bounds)]
        tests += [f"s[{n}] == {_text(expressions[n]) if n in expressions else size}"
                  for n, size in enumerate(sample) if n not in places]
        lines = ["def values(s):", *(f"    v{k} = s[{n}]" for k, n in enumerate(places)),
                 f"    if {' and '.join(tests)}: return [{', '.join(f'v{k}' for k in range(len(places)))}]"]
        self.source = "\n".join(lines)
        space: dict[str, Any] = {}
        exec(compile(self.source, "<guards>", "exec"), space)
        self.values = space["values"]

    def text(self) -> str:
        """Return the ranges of the variables, for messages.

        >>> SizeGuard((12, 4, 3), [1], [(2, 64)], {0: Expression(3, (0,)), 1: Expression(1, (0,))}).text()
        '4 of 2 to 64'
        """
        return ", ".join(f"{self.sample[n]} of {low} to {high}" for n, (low, high) in zip(self.places, self.bounds))

    def sizes(self, symbols: Sequence[UOp]) -> list[Any]:
        """Return all sizes, as integers or as expressions of ``symbols``."""
        return [self.expressions[n].of(symbols) if n in self.expressions else size
                for n, size in enumerate(self.sample)]


def _text(e: Expression) -> str:
    factors = [*([str(e.factor)] if e.factor != 1 else []), *(f"v{v}" for v in e.variables)]
    return "*".join(factors) + (f"{e.more:+d}" if e.more else "")
