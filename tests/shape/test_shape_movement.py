"""Any chain of movement ops indexes memory exactly as NumPy moves the data."""
import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinsmith.core.errors import ArgumentError, AxisError, ShapeError
from tinsmith.shape import ShapeTracker, View
from tinsmith.shape.tracker import compose

MAX_ELEMENTS = 400


def evaluate(tracker, data):
    """Return the array that a tracker views in flat ``data``, element by element; padding is 0."""
    out = np.zeros(tracker.shape, data.dtype)
    for idxs in itertools.product(*map(range, tracker.shape)):
        address, valid = tracker.expr_idxs(idxs)
        assert valid in (True, False)
        if valid:
            assert 0 <= address < data.size, (tracker, idxs, address)
            out[idxs] = data[address]
    return out


def factorizations(draw, total):
    shape = []
    while total > 1:
        divisor = draw(st.sampled_from([d for d in range(2, total + 1) if total % d == 0]))
        shape.append(divisor)
        total //= divisor
    for _ in range(draw(st.integers(0, 2))):
        shape.insert(draw(st.integers(0, len(shape))), 1)
    return tuple(shape)


def numpy_window(a, axis, size, stride, dilation, length):
    taken = [np.take(a, [o * stride + k * dilation for o in range(length)], axis=axis) for k in range(size)]
    return np.stack(taken, axis=-1)


def draw_op(draw, a):
    """Draw a random movement op for array ``a``: its name, arguments, and NumPy's result."""
    n = a.ndim
    name = draw(st.sampled_from(["permute", "expand", "pad", "shrink", "flip", "reshape", "reshape", "window"]))
    if name == "permute":
        order = tuple(draw(st.permutations(range(n))))
        return name, (order,), a.transpose(order)
    if name == "expand":
        shape = tuple(draw(st.integers(1, 4)) if s == 1 else s for s in a.shape)
        return name, (shape,), np.broadcast_to(a, shape)
    if name == "pad":
        padding = tuple((draw(st.integers(0, 2)), draw(st.integers(0, 2))) for _ in range(n))
        return name, (padding,), np.pad(a, padding) if n else a
    if name == "shrink":
        ranges = []
        for s in a.shape:
            begin = draw(st.integers(0, max(s - 1, 0)))
            ranges.append((begin, draw(st.integers(min(begin + 1, s), s))))
        return name, (tuple(ranges),), a[tuple(slice(b, e) for b, e in ranges)]
    if name == "flip":
        axes = tuple(draw(st.lists(st.integers(0, n - 1), unique=True))) if n else ()
        return name, (axes,), np.flip(a, axes) if axes else a
    if name == "window" and n and max(a.shape) > 1:
        axis = draw(st.sampled_from([i for i, s in enumerate(a.shape) if s > 1]))
        stride, dilation = draw(st.integers(1, 3)), draw(st.integers(1, 3))
        size = draw(st.integers(1, (a.shape[axis] - 1) // dilation + 1))
        length = (a.shape[axis] - dilation * (size - 1) - 1) // stride + 1
        return name, (axis, size, stride, dilation, length), numpy_window(a, axis, size, stride, dilation, length)
    shape = factorizations(draw, a.size)
    return "reshape", (shape,), a.reshape(shape)


@st.composite
def chains(draw, max_ops=7):
    """Draw data, the tracker of a random chain of movement ops over it, and NumPy's result."""
    shape = tuple(draw(st.lists(st.integers(1, 4), min_size=0, max_size=3)))
    data = np.arange(1, math.prod(shape) + 1)
    tracker, moved = ShapeTracker.from_shape(shape), data.reshape(shape)
    for _ in range(draw(st.integers(1, max_ops))):
        name, args, result = draw_op(draw, moved)
        if result.size <= MAX_ELEMENTS and result.ndim <= 8:
            tracker, moved = getattr(tracker, name)(*args), result
    return data, tracker, moved


@given(chains())
@settings(max_examples=600, deadline=None)
def test_chains_index_like_numpy(case):
    data, tracker, moved = case
    assert tracker.shape == moved.shape
    assert tracker.size == moved.size
    np.testing.assert_array_equal(evaluate(tracker, data), moved)


@given(chains(max_ops=9))
@settings(max_examples=600, deadline=None)
def test_simplify_keeps_the_meaning_and_never_adds_views(case):
    data, tracker, moved = case
    simple = tracker.simplify()
    assert len(simple.views) <= len(tracker.views)
    np.testing.assert_array_equal(evaluate(simple, data), moved)
    assert simple.simplify() is simple


@given(chains())
@settings(max_examples=300, deadline=None)
def test_real_strides_are_the_steps_in_memory(case):
    data, tracker, moved = case
    addresses = evaluate(tracker, np.arange(1, data.size + 1)) - 1  # -1: padding
    assert addresses.size == 0 or tracker.real_size() > addresses.max()
    assert tracker.real_size() <= data.size
    for ignore_valid in (False, True):
        strides = tracker.real_strides(ignore_valid)
        assert tracker.unit_stride_axes(ignore_valid) == [a for a, s in enumerate(strides) if s == 1]
        for axis, stride in enumerate(strides):
            before, after = np.delete(addresses, -1, axis), np.delete(addresses, 0, axis)
            known = (before >= 0) & (after >= 0)
            if stride is not None and moved.size and moved.shape[axis] > 1:
                assert (after - before == stride)[known].all()
                assert ignore_valid or ((before >= 0) == (after >= 0)).all()


@given(chains(), st.data())
@settings(max_examples=300, deadline=None)
def test_a_view_survives_a_reshape_there_and_back(case, extra):
    _, tracker, moved = case
    view = tracker.views[-1]
    there = view.reshape(factorizations(extra.draw, moved.size))
    if there is not None:
        assert there.reshape(view.shape) == view


def one_view_would_do(addresses):
    """Return True if the elements that are not padding (>= 0) form a box with affine addresses (brute force)."""
    seen = addresses >= 0
    if addresses.ndim == 0 or not seen.any():
        return bool(seen.any()) or addresses.ndim > 0
    box = tuple(slice(w.min(), w.max() + 1) for w in np.nonzero(seen))
    inner = addresses[box]
    if not seen[box].all():
        return False
    affine = np.full(inner.shape, inner.flat[0])
    for axis, n in enumerate(inner.shape):
        step = np.take(inner, 1, axis).flat[0] - inner.flat[0] if n > 1 else 0
        affine = affine + step * np.arange(n).reshape([-1 if i == axis else 1 for i in range(inner.ndim)])
    return bool((affine == inner).all())


@given(chains(max_ops=4), st.data())
@settings(max_examples=600, deadline=None)
def test_reshape_gives_up_only_where_no_view_exists(case, extra):
    data, tracker, _ = case
    view, shape = tracker.views[0], factorizations(extra.draw, int(tracker.views[0].size))
    addresses = evaluate(ShapeTracker((view,)), np.arange(1, data.size + 1)) - 1
    assert (view.reshape(shape) is not None) == one_view_would_do(addresses.reshape(shape))


@given(chains())
@settings(max_examples=100, deadline=None)
def test_a_dense_view_folds_into_its_neighbour(case):
    _, tracker, _ = case
    last = tracker.views[-1]
    assert compose(View.create(tracker.shape), last) == last
    assert compose(last, View.create((10**6,))) == last


@given(chains())
@settings(max_examples=300, deadline=None)
def test_axes_that_are_not_masked_are_so_at_every_step(case):
    _, tracker, moved = case
    for axis in range(moved.ndim):
        masked = tracker.axis_is_masked(axis)
        for idxs in itertools.product(*map(range, moved.shape)):
            if idxs[axis] + 1 == moved.shape[axis]:
                continue
            _, valid = tracker.expr_idxs(idxs)
            _, also = tracker.expr_idxs((*idxs[:axis], idxs[axis] + 1, *idxs[axis + 1:]))
            assert masked or bool(valid) == bool(also)


@given(st.integers(1, 12), st.integers(0, 6), st.integers(0, 6), st.integers(1, 4), st.integers(1, 4), st.data())
@settings(max_examples=300, deadline=None)
def test_window_over_padding_is_one_view_exactly_if_the_valid_set_is_a_box(n, before, after, stride, dilation, extra):
    padded = np.pad(np.arange(1, n + 1), (before, after))
    size = extra.draw(st.integers(1, (padded.size - 1) // dilation + 1))
    length = (padded.size - dilation * (size - 1) - 1) // stride + 1
    expected = numpy_window(padded, 0, size, stride, dilation, length)
    view = View.create((n,)).pad(((before, after),)).window(0, size, stride, dilation, length)
    seen = expected != 0
    is_box = bool((seen == np.outer(seen.any(1), seen.any(0))).all())
    gapless = all((np.diff(np.flatnonzero(seen.any(i))) == 1).all() for i in (0, 1))
    assert (view is not None) == (is_box and gapless)
    if view is not None:
        np.testing.assert_array_equal(evaluate(ShapeTracker((view,)), np.arange(1, n + 1)), expected)


@pytest.mark.parametrize("build", [
    lambda t: t.permute((1, 0)).reshape((12,)).reshape((4, 3)).permute((1, 0)),
    lambda t: t.pad(((1, 1), (0, 0))).reshape((20,)).reshape((5, 4)).shrink(((1, 4), (0, 4))),
    lambda t: t.permute((1, 0)).reshape((12,)).flip((0,)).reshape((4, 3)).flip((0, 1)).permute((1, 0)),
    lambda t: t.flip((0,)).reshape((12,)).reshape((3, 4)).flip((0,)),
])
def test_there_and_back_is_contiguous(build):
    assert build(ShapeTracker.from_shape((3, 4))).simplify().contiguous


def test_padding_in_a_lower_view_becomes_a_mask_of_the_fold():
    t = ShapeTracker.from_shape((3, 4)).pad(((1, 1), (1, 1))).reshape((30,)).reshape((5, 6)).flip((1,)).simplify()
    (view,) = t.views
    assert view == View.create((3, 4)).pad(((1, 1), (1, 1))).flip((1,))


def test_all_padding_and_no_elements():
    blank = ShapeTracker.from_shape((2,)).pad(((0, 2),)).shrink(((2, 3),))
    assert blank.expr_idxs((0,))[1] is False
    assert blank.reshape(()).expr_idxs(())[1] is False
    assert blank.reshape(()).simplify().expr_idxs(())[1] is False
    empty = ShapeTracker.from_shape((2, 0, 3))
    assert empty.contiguous and empty.permute((2, 1, 0)).reshape((0,)).contiguous
    assert empty.pad(((0, 0), (1, 1), (0, 0))).expr_idxs((0, 1, 0))[1] is False
    assert empty.shrink(((0, 1), (0, 0), (0, 3))).shape == (1, 0, 3)


def test_a_scalar_taken_from_the_padding_stays_zero():
    t = ShapeTracker.from_shape((3, 1)).pad(((0, 0), (1, 0))).reshape((6,)).shrink(((0, 1),)).reshape(())
    assert t.expr_idxs(())[1] is False
    assert t.simplify().expr_idxs(())[1] is False


def test_repr_is_what_the_tutorials_print():
    assert repr(ShapeTracker.from_shape((2,)).reshape((1, 2)).shrink(((0, 1), (0, 1)))) == (
        "ShapeTracker(views=(View(shape=(1, 1), strides=(0, 0), offset=0, mask=None, contiguous=True),))")


@pytest.mark.parametrize("error, call", [
    (ShapeError, lambda v: v.reshape((5,))),
    (ShapeError, lambda v: v.reshape((-2, -3))),
    (ShapeError, lambda v: v.expand((3, 3))),
    (ShapeError, lambda v: v.pad(((0, -1), (0, 0)))),
    (ShapeError, lambda v: v.shrink(((0, 3), (0, 3)))),
    (ShapeError, lambda v: v.shrink(((-1, 1), (0, 3)))),
    (ShapeError, lambda v: v.shrink(((2, 1), (0, 3)))),
    (ShapeError, lambda v: v.window(1, 2, 1, 1, 3)),
    (ShapeError, lambda v: View.create((2, -1))),
    (ShapeError, lambda v: View.create((2, 3), strides=(1,))),
    (ShapeError, lambda v: View.create((2, 3), mask=((0, 1),))),
    (ShapeError, lambda v: ShapeTracker(())),
    (ArgumentError, lambda v: v.window(1, 2, 0, 1, 2)),
    (AxisError, lambda v: v.window(2, 1, 1, 1, 1)),
    (AxisError, lambda v: v.permute((0, 0))),
    (AxisError, lambda v: v.permute((0,))),
    (AxisError, lambda v: v.flip((2,))),
    (AxisError, lambda v: v.flip((0, 0))),
    (AxisError, lambda v: v.expand((2,))),
    (AxisError, lambda v: v.pad(((0, 0),))),
    (AxisError, lambda v: v.shrink(((0, 1),))),
    (AxisError, lambda v: v.index((0,))),
    (AxisError, lambda v: ShapeTracker((v,)).axis_is_masked(2)),
])
def test_bad_arguments_are_refused(error, call):
    with pytest.raises(error, match=r"\[E0\d\d\] .*Try: "):
        call(View.create((2, 3)))
