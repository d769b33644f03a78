"""Places along an axis, as sums of strided steps: what is asked of them takes as long for many as for few.

    first + 8·i + j, i < n, j < 2    →    2 of every 8 places
"""
from __future__ import annotations

import math
from typing import NamedTuple

Bounds = list[tuple[int, int]]


class Places(NamedTuple):
    """``first`` and a sum of terms, each a step and how many values it has: greatest steps first.

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
        """Return True if each step is longer than all that the smaller ones reach, so that no place is there twice."""
        return all(step > max(0, Places(0, self.terms[n + 1 :]).last) for n, (step, _) in enumerate(self.terms))

    @property
    def side_by_side(self) -> bool:
        """Return True if no place is left out between the first and the last."""
        return self.last - self.first == self.number - 1


def inside(places: Places, size: int) -> list[Bounds]:
    """The places from 0 to ``size``, as boxes: bounds of each term. Those of terms that reach over each other are all
    inside, or are no boxes.

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
    reach = Places(places.first, rest).last  # with none of the first steps
    begin, end = max(0, -(reach // step)), min(count - 1, (size - 1 - places.first) // step) + 1
    whole = max(0, -(places.first // step)), min(count - 1, (size - 1 - reach) // step) + 1  # all of the rest
    found = [(*whole, [(0, c) for _, c in rest])] if whole[0] < whole[1] else []
    for at in {begin, end - 1} if begin < end else ():  # the rest is shorter than a step: it is cut at the ends only
        if not whole[0] <= at < whole[1]:
            found += [(at, at + 1, box) for box in inside(Places(places.first + step * at, rest), size)]
    boxes = list[tuple[int, int, Bounds]]()
    for low, high, box in sorted(found):
        if boxes and boxes[-1][1:] == (low, box):
            low = boxes.pop()[0]
        boxes.append((low, high, box))
    return [[(low, high), *box] for low, high, box in boxes]


def apart(a: Places, b: Places) -> bool:
    """Return True if no place is in both, as far as their first and last ones, or these within a common period, tell.

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
