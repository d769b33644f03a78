"""The addresses given by a tensor's ``uop.st`` are those its values are read from."""
from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tinsmith import Tensor


def moved(draw: st.DrawFn, t: Tensor) -> Tensor:
    """Apply one movement op to a tensor."""
    kind = draw(st.sampled_from(["permute", "flip", "pad", "shrink", "reshape", "expand"]))
    axis = draw(st.integers(0, t.ndim - 1))
    size = t.shape[axis]
    if kind == "permute":
        return t.permute(draw(st.permutations(range(t.ndim))))
    if kind == "flip":
        return t.flip(axis)
    if kind == "pad":
        return t.pad(tuple((draw(st.integers(0, 2)), 1) if i == axis else (0, 0) for i in range(t.ndim)))
    if kind == "shrink":
        begin = draw(st.integers(0, size - 1))
        return t.shrink(tuple((begin, size) if i == axis else (0, s) for i, s in enumerate(t.shape)))
    if kind == "reshape":
        factor = draw(st.sampled_from([d for d in range(1, size + 1) if size % d == 0]))
        return t.reshape(*t.shape[:axis], factor, size // factor, *t.shape[axis + 1:]) if t.ndim < 5 else t
    return t.reshape(*t.shape, 1).expand(*t.shape, 2) if t.ndim < 4 else t


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_addresses_are_where_the_values_come_from(data: st.DataObject) -> None:
    memory = np.arange(1, 25, dtype=np.int32)
    t = Tensor(memory.reshape(4, 6)).realize()
    for _ in range(data.draw(st.integers(1, 4))):
        t = moved(data.draw, t)
    tracker = t.uop.st
    assert tracker.shape == t.shape
    found = np.zeros(t.shape, np.int32)
    for idxs in itertools.product(*map(range, t.shape)):
        address, valid = tracker.expr_idxs(idxs)
        found[idxs] = memory[address] if valid else 0
    np.testing.assert_array_equal(t.numpy(), found)
