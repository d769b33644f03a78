"""Affine sets of positions along an axis (``Places``) against explicit lists of their members."""
from __future__ import annotations

import doctest

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tinsmith.schedule import values as places
from tinsmith.schedule.values import Places, apart, inside

TERMS = st.lists(st.tuples(st.integers(1, 12), st.integers(2, 4)), max_size=3).map(
    lambda terms: tuple(sorted(terms, reverse=True)))
PLACES = st.builds(Places, st.integers(-12, 12), TERMS)


def listed(p: Places) -> np.ndarray:
    found = np.array(p.first)
    for step, number in p.terms:
        found = np.add.outer(found, step * np.arange(number))
    return found


@given(PLACES)
def test_what_is_known_of_all(p: Places) -> None:
    values = listed(p)
    different = len(np.unique(values)) == values.size
    assert (p.number, p.last) == (values.size, values.max()) and (different or not p.differ)
    if p.differ:
        assert p.side_by_side == bool((np.diff(np.sort(values.reshape(-1))) == 1).all())


@given(PLACES, st.integers(1, 30))
def test_boxes_hold_what_is_inside(p: Places, size: int) -> None:
    values = listed(p)
    wanted = (values >= 0) & (values < size)
    covered = np.zeros(values.shape, int)
    for box in inside(p, size):
        covered[tuple(slice(*bounds) for bounds in box)] += 1
    assert (covered == wanted).all() if p.differ or wanted.all() else not covered.any()
    if p.differ and wanted.any() and p.terms:
        found = np.argwhere(wanted)
        assert (len(inside(p, size)) == 1) == (len(found) == np.prod(np.ptp(found, axis=0) + 1))


@given(PLACES, PLACES)
def test_what_lies_apart_shares_nothing(a: Places, b: Places) -> None:
    assert not (apart(a, b) and np.isin(listed(a), listed(b)).any())


def test_examples() -> None:
    found = doctest.testmod(places)
    assert found.attempted and not found.failed
