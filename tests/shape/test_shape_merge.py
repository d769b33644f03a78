"""Dimension merging: the triples of the tutorials, and invariants of any triples."""
import doctest
import importlib
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinsmith.shape import View, merge_dims


@pytest.mark.parametrize("module", ["sint", "view", "tracker"])
def test_docstring_examples(module):
    failed, tried = doctest.testmod(importlib.import_module(f"tinsmith.shape.{module}"))
    assert tried > 0 and failed == 0


@pytest.mark.parametrize("shape, strides, mask, triples", [
    ((), (), None, ()),
    ((1, 1), (0, 0), None, ()),
    ((2, 3, 4), (12, 4, 1), None, ((24, 1, 24),)),
    ((2, 1, 4), (4, 0, 1), None, ((8, 1, 8),)),
    ((2, 3), (1, 2), None, ((2, 1, 2), (3, 2, 3))),
    ((4, 3, 2), (0, 2, 1), None, ((4, 0, 0), (6, 1, 6))),
    ((4, 5), (0, 0), None, ((20, 0, 0),)),
    ((3, 4), (-4, -1), None, ((12, -1, 12),)),
    ((3, 4), (0, 1), ((1, 2), (0, 4)), ((12, 1, 4),)),
    ((4, 3), (1, 0), ((0, 4), (1, 2)), ((4, 1, 4), (3, 0, 0))),
    ((2, 4), (4, 1), ((0, 2), (1, 3)), ((8, 1, 8),)),
])
def test_triples(shape, strides, mask, triples):
    assert merge_dims(shape, strides, mask) == triples


@st.composite
def views(draw):
    """Draw unmasked views: some dense, some permuted, some broadcast."""
    shape = tuple(draw(st.lists(st.integers(1, 4), max_size=5)))
    view = View.create(shape).permute(tuple(draw(st.permutations(range(len(shape))))))
    return view.expand(tuple(draw(st.integers(1, 3)) if s == 1 else s for s in view.shape))


@given(views())
def test_merging_keeps_the_walk_and_is_done_when_it_is_done(view):
    triples = merge_dims(view.shape, view.strides)
    sizes, strides = tuple(t[0] for t in triples), tuple(t[1] for t in triples)
    assert math.prod(sizes) == view.size
    assert merge_dims(sizes, strides) == triples
    merged = View.create(sizes, strides, view.offset)
    walk = [merged.index(merged.unflatten(n))[0] for n in range(view.size)]
    assert walk == [view.index(view.unflatten(n))[0] for n in range(view.size)]
    assert all(real == (size if stride else 0) for size, stride, real in triples)
    assert view.reshape(sizes) == merged


@given(st.lists(st.integers(1, 5), max_size=5))
def test_dense_shapes_merge_to_one(shape):
    size = math.prod(shape)
    view = View.create(shape)
    assert merge_dims(view.shape, view.strides) == (((size, 1, size),) if size > 1 else ())
