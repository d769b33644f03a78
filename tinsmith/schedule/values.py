"""Values of the tensor graph, and sets of positions along their axes.

Helpers for values: their sizes, the views above them, and the ops that read or fill memory of their own. A set of
positions is a sum of strided terms, so that queries take constant time for any number of positions:

    first + 8·i + j, i < n, j < 2    →    2 of every 8 positions
"""
from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from tinsmith.ir import Ops, UOp

SOURCES = (Ops.BUFFER, Ops.PARAM, Ops.CONST, Ops.VARIABLE, Ops.BIND, Ops.IOTA)
STAGED = (Ops.COPY, Ops.CONTIGUOUS, Ops.ASSIGN, Ops.SCATTER, Ops.SCAN, Ops.HISTOGRAM, Ops.HOST)  # always stored


def size_of(node: UOp) -> int:
    """Return the number of elements of a value; for a symbolic size its maximum."""
    size = node.size
    return int(size.vmax if isinstance(size, UOp) else size)


class Views(NamedTuple):
    """Views and casts above a value: ``above`` from the last applied to the first, and the ``source`` below them."""

    above: tuple[UOp, ...]
    source: UOp

    def of(self, source: UOp) -> UOp:
        """Return the same views and casts, applied to another source."""
        for n in reversed(self.above):
            cast = n.op is Ops.CAST
            source = source.cast(n.dtype) if cast else UOp(n.op, None, (source, *n.src[1:]), n.arg)
        return source


def views_of(value: UOp, through: Callable[[UOp], bool]) -> Views:
    """Return ``value`` as the chain of nodes for which ``through`` holds, and the value below them."""
    above = list[UOp]()
    while through(value):
        above.append(value)
        value = value.src[0]
    return Views(tuple(above), value)

Bounds = list[tuple[int, int]]


class Places(NamedTuple):
    """The positions ``first`` plus a sum of terms (step, count), largest steps first.

    >>> Places(3, ((8, 2), (1, 2))).number, Places(3, ((8, 2), (1, 2))).last  # 3, 4, 11, 12
    (4, 12)
    """

    first: int
    terms: tuple[tuple[int, int], ...] = ()

    @property
    def number(self) -> int:
        return math.prod(count for _, count in self.terms)

    @property
    def last(self) -> int:
        return self.first + sum(step * (count - 1) for step, count in self.terms)

    @property
    def differ(self) -> bool:
        """Return True if each step exceeds the reach of all smaller ones, so that no position occurs twice."""
        return all(step > max(0, Places(0, self.terms[n + 1 :]).last) for n, (step, _) in enumerate(self.terms))

    @property
    def side_by_side(self) -> bool:
        """Return True if the positions are contiguous: none is missing between the first and the last."""
        return self.last - self.first == self.number - 1


def inside(places: Places, size: int) -> list[Bounds]:
    """Return the positions in [0, size) as boxes: bounds for each term.

    If terms overlap, the result is one box if all positions are inside, else [].

    >>> inside(Places(-2, ((1, 9),)), 5), inside(Places(-4, ((4, 3), (1, 4))), 4), inside(Places(-3, ((2, 2),)), 1)
    ([[(2, 7)]], [[(1, 2), (0, 4)]], [])
    >>> inside(Places(-1, ((2, 3), (1, 2))), 5)
    [[(0, 1), (1, 2)], [(1, 3), (0, 2)]]
    """
    if places.first >= 0 and places.last < size:
        return [[(0, count) for _, count in places.terms]]
    if not places.terms or not places.differ:
        return []
    (step, count), rest = places.terms[0], places.terms[1:]
    reach = Places(places.first, rest).last  # last position with index 0 in the first term
    begin, end = max(0, -(reach // step)), min(count - 1, (size - 1 - places.first) // step) + 1
    # indices of the first term for which all of the rest is inside
    whole = max(0, -(places.first // step)), min(count - 1, (size - 1 - reach) // step) + 1
    found = [(*whole, [(0, c) for _, c in rest])] if whole[0] < whole[1] else []
    # the rest is shorter than a step: only the first and last index can be cut
    for at in {begin, end - 1} if begin < end else ():
        if not whole[0] <= at < whole[1]:
            found += [(at, at + 1, box) for box in inside(Places(places.first + step * at, rest), size)]
    boxes = list[tuple[int, int, Bounds]]()
    for low, high, box in sorted(found):
        if boxes and boxes[-1][1:] == (low, box):
            low = boxes.pop()[0]
        boxes.append((low, high, box))
    return [[(low, high), *box] for low, high, box in boxes]


def apart(a: Places, b: Places) -> bool:
    """Return True if the sets are disjoint by their ranges, or by their ranges modulo a
    common period (sufficient only).

    >>> apart(Places(0, ((2, 9),)), Places(1, ((2, 9),))), apart(Places(0, ((3, 9),)), Places(1, ((2, 9),)))
    (True, False)
    """
    if a.last < b.first or b.last < a.first:
        return True
    steps = {step for step, _ in a.terms + b.terms}
    for least in steps:
        period = math.gcd(*(step for step in steps if step >= least))
        reach_a, reach_b = (Places(0, tuple(t for t in p.terms if t[0] % period)).last for p in (a, b))
        if (b.first - a.first) % period > reach_a and (a.first - b.first) % period > reach_b:
            return True
    return False
