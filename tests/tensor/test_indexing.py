"""Indexing, and writing by index, against NumPy."""
from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.tensor.helpers import check, values
from tinsmith import Context, Tensor, dtypes
from tinsmith.core.errors import CheckError
from tinsmith.ir import Ops

X = np.arange(1, 61, dtype=np.int32).reshape(3, 4, 5)

BASIC = [
    0, -1, slice(1, 3), slice(None, None, 2), slice(None, None, -1), slice(5, 1), slice(-2, None), slice(3, 0, -2),
    None, ...,
    (0, 1), (0, 1, 2), (slice(None), 1), (..., 2), (None, 0, ..., None), (slice(None), None, 0),
    (slice(0, 2), slice(1, 4, 2), -1),
    (slice(None), slice(None, None, -2), slice(4, None, -3)), (slice(1, 1), 0), (slice(10, 20),),
    (1, ..., slice(1, 100)),
    (slice(None, None, 3), slice(1, None, 3), slice(None, None, 4)), (np.int64(1), slice(np.int32(1), 3)),
]


@pytest.mark.parametrize("index", BASIC, ids=str)
def test_basic(index) -> None:
    check(Tensor(X)[index], X[index], dtypes.int32)


I1, I2, I3 = np.array([2, 0, -1]), np.array([[0, 1], [-4, 3]]), np.array([[1], [0]])
ADVANCED = [
    I1, [0, 2], I2[:, 0] % 3, (slice(None), I2), (..., I1), (I1, I1), (I3, I1), (I1, slice(None), I1),
    (slice(None), I1, 0), (slice(1, 3), I1, I1), (I1, None, slice(None)), (None, I1, I1), (I1, I1, I1),
    (I1, ..., None, I1),
    (slice(None, None, -1), slice(None), I2), ([0, 1], [1, 2]), (0, I1, 1), (slice(0, 0), I1), np.array([], np.int64),
    [],
    np.array(1), (slice(None), np.int32(2), I1),
    ((0, 2),), ((0, 1), (1, 0)), [slice(None), [0, 2]], [I1, I1], [[0, 1], [1, 0]], [None, 0], [..., -1], range(2),
    (slice(None), range(1, 4)), ([[0, 1], [1, 0]],), True, (0, False), (slice(None), np.True_, [1, 2]),
]


def as_numpy_takes(index):
    """Convert an index for NumPy: a list of anything but numbers becomes a tuple, ranges become arrays."""
    if isinstance(index, list) and not all(isinstance(i, int) for i in index):
        index = tuple(index)
    return np.array([], int) if isinstance(index, list) and not index else index


@pytest.mark.parametrize("index", ADVANCED, ids=lambda i: str(i).replace("\n", ""))
def test_integer_arrays(index) -> None:
    want = X[as_numpy_takes(index)]
    check(Tensor(X)[index], want, dtypes.int32)
    got, written = Tensor(X), X.copy()
    got[index] = -1
    written[as_numpy_takes(index)] = -1
    check(got, written, dtypes.int32)
    items = as_numpy_takes(index) if isinstance(as_numpy_takes(index), tuple) else (index,)
    as_tensors = tuple(Tensor(i) if isinstance(i, np.ndarray) else i for i in items)
    check(Tensor(X)[as_tensors], want, dtypes.int32)


ZERO = [np.array(1), Tensor(1), Tensor([0, 1])[1], Tensor(2) - 1]
MASK = np.array([True, False, True, False, True])


@pytest.mark.parametrize("one", [1, *ZERO], ids=["1", "array", "tensor", "view", "computed"])
@pytest.mark.parametrize("index, order", [
    (lambda n: (n, slice(None), I1), lambda x: x[1][:, I1]),
    (lambda n: (n, ..., I1), lambda x: x[1][:, I1]),
    (lambda n: (n, slice(None), [0, 2]), lambda x: x[1][:, [0, 2]]),
    (lambda n: (n, slice(None), Tensor(MASK)), lambda x: x[1][:, MASK]),
    (lambda n: (n, None, slice(None), I1), lambda x: x[1][None, :, I1]),
    (lambda n: (I1, slice(None), n), lambda x: x[..., 1][I1]),
    (lambda n: (slice(None), n, I1), lambda x: x[:, 1][:, I1]),
    (lambda n: (I1, n, I1), lambda x: x[:, 1][I1, I1]),
    (lambda n: (slice(None), n, slice(None)), lambda x: x[:, 1]),
    (lambda n: [n, slice(None), I1], lambda x: x[1][:, I1]),
])
def test_an_integer_chooses_before_index_arrays(one, index, order) -> None:
    """As in PyTorch; in NumPy an integer counts as an index array."""
    places = order(np.arange(60).reshape(3, 4, 5))
    check(Tensor(X)[index(one)], order(X), dtypes.int32)
    values_there = -1 - np.arange(places.size, dtype=np.int32).reshape(places.shape)
    got, want = Tensor(X), X.copy()
    got[index(one)] = Tensor(values_there)
    np.put(want, places, values_there)
    check(got, want)


def test_an_ellipsis_for_no_axis_parts_no_index_arrays() -> None:
    check(Tensor(X)[:, I1, ..., I1], X[:, I1, I1])


def test_lists_of_tensors() -> None:
    rows, columns = [0, 2], [1, 3]
    check(Tensor(X)[[Tensor(rows), Tensor(columns)]], X[rows, columns])
    check(Tensor(X)[[Tensor(0), Tensor(1)]], X[0, 1])
    check(Tensor(X)[[Tensor(0), Tensor(2)],], X[rows])
    check(Tensor(X)[:, [Tensor(1), 3]], X[:, columns])


def test_accumulating_where_a_mask_holds() -> None:
    mask, x = np.array([True, False, True]), np.zeros((3, 4), np.float32)
    y = np.arange(8, dtype=np.float32).reshape(2, 4)
    want = x.copy()
    want[mask] += y
    check(Tensor(x).index_put((Tensor(mask),), Tensor(y), accumulate=True), want)
    ones = Tensor(x).index_put((Tensor(mask), Tensor([1, 1])), Tensor([2.0, 3.0]), accumulate=True)
    assert ones[:, 1].tolist() == [2, 0, 3]


@pytest.mark.parametrize("dtype", dtypes.ints, ids=str)
def test_index_dtypes(dtype) -> None:
    check(Tensor(X)[Tensor([2, 0], dtype=dtype)], X[[2, 0]])


@pytest.mark.parametrize("dtype", dtypes.all, ids=str)
def test_value_dtypes(dtype) -> None:
    x = values((5, 3), dtype)
    check(Tensor(x)[[4, 0]], x[[4, 0]], dtype)
    check(Tensor(x)[1:4:2], x[1:4:2], dtype)


def test_masks() -> None:  # PAINS R16
    check(Tensor(X)[Tensor(X % 7 == 0)], X[X % 7 == 0])
    check(Tensor(X)[X % 7 == 0], X[X % 7 == 0])
    rows = np.array([True, False, True])
    check(Tensor(X)[rows], X[rows])
    check(Tensor(X)[Tensor(rows), 1], X[rows, 1])
    check(Tensor(X)[:, [True, False, True, False]], X[:, [True, False, True, False]])
    check(Tensor(X)[..., np.array([True, False, True, True, False])],
          X[..., np.array([True, False, True, True, False])])
    check(Tensor(X)[X > 100], X[X > 100])
    check(Tensor(X).masked_select(Tensor(X) > 50), X[X > 50])
    check(Tensor(X).masked_select(Tensor([True, False, False, True, False])), X[..., [0, 3]].ravel())
    check(Tensor([[0, 1], [2, 0]]).nonzero(), [[0, 1], [1, 0]])


def test_computed_positions_out_of_range_read_zero() -> None:  # PAINS R13
    assert Tensor([1, 2, 3])[Tensor([4, 3, 2, -3, -4]).realize()].tolist() == [0, 0, 3, 1, 0]
    x = Tensor([[1, 2], [3, 4]])
    assert x[Tensor([0, 0, 1]), Tensor([1, 2, -3]) * 1].tolist() == [2, 0, 0]


@pytest.mark.parametrize("make", [
    lambda: [3], lambda: [0, -4], lambda: np.array([9]), lambda: np.array([[0], [3]], np.uint8),
    lambda: Tensor([1, 3]), lambda: Tensor(5), lambda: Tensor([0, 3, 7])[1:2], lambda: Tensor([[0, 7]]).T,
    lambda: Tensor([7.0]).cast("int32"), lambda: Tensor([1, 3]).clone().detach()])
def test_positions_out_of_range_that_the_host_knows(make) -> None:
    index, x, matrix = make(), Tensor([1, 2, 3]), Tensor.zeros(3, 4)
    for use in (lambda: x[index], lambda: x.__setitem__(index, 0), lambda: matrix[index, 1],
                lambda: matrix[:, :3][0, index], lambda: x[None, index]):
        with pytest.raises(IndexError, match=r"(getitem|setitem): index .* is out of range for an axis of size 3"):
            use()
    if isinstance(index, Tensor) and index.ndim == 1:
        for use in (lambda: x.gather(0, index), lambda: x.scatter(0, index, 1), lambda: x.scatter_add(0, index, index),
                    lambda: index.embedding(matrix), lambda: x.index_select(0, index)):
            with pytest.raises(IndexError, match="out of range for an axis of size 3"):
                use()
    assert x.tolist() == [1, 2, 3]


def test_positions_in_range_of_data_that_is_not() -> None:
    data = Tensor([9, 0, -9, 2])
    assert Tensor([1, 2, 3])[data[1::2]].tolist() == [1, 3]
    changed = Tensor([9, 0])
    changed[0] = 2
    assert Tensor([1, 2, 3])[changed].tolist() == [3, 1]
    assert Tensor.zeros(0, 3)[Tensor(np.zeros(0, np.int64))].shape == (0, 3)
    assert Tensor([1, 2, 3])[Tensor([300]).cast("uint8") * 0].tolist() == [1]


def test_gathers_from_computed_values_and_views() -> None:
    x = X.astype(np.float32)
    check((Tensor(x) * 2 + 1)[I1], (x * 2 + 1)[I1])
    check(Tensor(x).permute(2, 0, 1)[I1], x.transpose(2, 0, 1)[I1])
    check(Tensor(x).sum(0)[I1], x.sum(0)[I1])
    check(Tensor(x)[1:][Tensor([1, 0])].sum(1), x[1:][[1, 0]].sum(1))
    check(Tensor.arange(10)[Tensor([3, 4])], [3, 4])


def test_picked_values_lie_in_the_order_in_which_they_are_read() -> None:
    """A gather in another order would give its reader, or ``numpy()``, strided rows."""
    x, i = Tensor(np.arange(120, dtype=np.int32).reshape(2, 3, 4, 5)).realize(), Tensor([2, 0, 1]).realize()
    for index in ((..., i), (slice(None), i), (slice(None), i, i), (slice(None), i, slice(None), i)):
        picked = x[index]
        assert Ops.PERMUTE not in {n.op for n in (picked.uop, picked.uop.base)}
        assert np.array_equal(picked.numpy(), x.numpy()[tuple(p.numpy() if p is i else p for p in index)])


def test_rows_and_membership() -> None:
    assert [r.tolist() for r in Tensor([[1, 2], [3, 4]])] == [[1, 2], [3, 4]]
    assert 3 in Tensor([1, 3]) and 4 not in Tensor([1, 3])
    with pytest.raises(TypeError):
        iter(Tensor(1))


@st.composite
def indices(draw) -> tuple:
    out = []
    for size in X.shape[: draw(st.integers(0, 3))]:
        kind = draw(st.sampled_from(["int", "slice", "slice", "list", "none"]))
        if kind == "none":
            out.append(None)
        if kind == "int":
            out.append(draw(st.integers(-size, size - 1)))
        elif kind == "list":
            out.append(draw(st.lists(st.integers(-size, size - 1), min_size=2, max_size=2)))
        else:
            end = st.none() | st.integers(-size - 2, size + 2)
            out.append(slice(draw(end), draw(end), draw(st.none() | st.sampled_from([-3, -2, -1, 1, 2, 3]))))
    if draw(st.booleans()):
        out.insert(draw(st.integers(0, len(out))), ...)
    return tuple(out)


def integers_first(index):
    """Apply the integers of an index, so that NumPy does not count them as index arrays; return the array and the
    rest."""
    fill = X.ndim - sum(i is not None and i is not ... for i in index)
    at = next((n for n, i in enumerate(index) if i is ...), len(index))
    items = [*index[:at], *[slice(None)] * fill, *index[at + 1 :]]
    first = tuple(i if isinstance(i, int) else slice(None) for i in items if i is not None)
    return first, tuple(i for i in items if not isinstance(i, int))


@settings(max_examples=60, deadline=None)
@example((None, slice(None), 0, ..., [0, 0]))
@given(indices())
def test_random_indices(index) -> None:
    try:
        first, then = integers_first(index)
        want = X[(*first, ...)][then]
    except IndexError:
        return
    check(Tensor(X)[index], want)


@settings(max_examples=40, deadline=None)
@given(indices(), st.booleans())
def test_random_writes(index, scalar) -> None:
    want = X.copy()
    try:
        first, then = integers_first(index)
        shape = want[(*first, ...)][then].shape
    except IndexError:
        return
    if any(isinstance(i, list) and len(set(np.arange(9)[i])) < len(i) for i in index):
        return  # which of two equal places wins is checked below
    value = 7 if scalar else -np.arange(1, int(np.prod(shape)) + 1, dtype=np.int32).reshape(shape)
    want[(*first, ...)][then] = value
    got = Tensor(X)
    got[index] = value if scalar else Tensor(value)
    check(got, want)


def test_writes_by_slices() -> None:
    for index, value in [((0,), 5), ((slice(None), 1), [1, 2, 3, 4, 5]), ((..., slice(None, None, 2)), -1),
                         ((slice(None, None, -1), 0), np.arange(15).reshape(3, 5)), ((None, 1, 2), 9), ((), 3)]:
        want = X.copy()
        want[index] = value
        got = Tensor(X)
        got[index] = value if isinstance(value, int) else Tensor(value)
        check(got, want, dtypes.int32)


def test_writes_of_nan_and_by_mask() -> None:
    x = np.array([1.0, np.nan, 3.0, -0.0], np.float32)
    t = Tensor(x)
    t[0] = np.nan
    t[t != t] = 0.0
    assert t.tolist() == [0, 0, 3, 0]
    t[Tensor([True, False, False, True])] = Tensor([8.0, 9.0])
    assert t.tolist() == [8, 0, 3, 9]
    m = Tensor([[1, 2], [3, 4]])
    m[Tensor([False, True])] = 0
    assert m.tolist() == [[1, 2], [0, 0]]


def test_writes_by_positions() -> None:
    x = Tensor([0, 0, 0, 0])
    x[Tensor([1, 3, 1])] = Tensor([5, 6, 7])
    assert x.tolist() == [0, 7, 0, 6]  # of equal places the last one wins
    m = Tensor.zeros(3, 4, dtype=dtypes.int32)
    m[[0, 2], [1, 3]] = 5
    m[1, [0, 1]] = Tensor([8, 9])
    assert m.tolist() == [[0, 5, 0, 0], [8, 9, 0, 0], [0, 0, 0, 5]]
    m[1:, [3, 0]] = Tensor([[1, 2], [3, 4]])
    assert m.tolist() == [[0, 5, 0, 0], [2, 9, 0, 1], [4, 0, 0, 3]]
    m[Tensor([7]).realize()] = 1  # out of range: dropped
    assert m[0].tolist() == [0, 5, 0, 0]


def test_earlier_uses_keep_the_old_value() -> None:
    for x in (Tensor([1, 2, 3]), Tensor([1, 2, 3]).realize(), Tensor([0, 1, 2]) + 1):
        y, z = x + 1, x[1:]
        x[0] = 9
        x[1:] = x[:-1]
        assert (x.tolist(), y.tolist(), z.tolist()) == ([9, 9, 2], [2, 3, 4], [9, 2])  # z is a view


def test_many_writes() -> None:
    x = Tensor.zeros(20)
    for i in range(20):
        x[i] = float(i * i)
    assert x.tolist() == [float(i * i) for i in range(20)]


def test_a_sum_scattered_into_one_element_begins_with_what_was_there() -> None:
    x, index = Tensor([3.0]), Tensor([0, 0])
    np.testing.assert_array_equal(x.scatter_reduce(0, index, Tensor([1.0, 2.0]), "sum").numpy(), [6])
    scalar = Tensor(np.float32(3))
    np.testing.assert_array_equal(scalar.reshape(1)[index].sum().gradient(scalar)[0].numpy(), 2)


def test_gather_and_scatter_along_an_axis() -> None:
    x = values((3, 4), dtypes.float32)
    i = np.array([[0, 3], [1, 1], [2, 0]])
    check(Tensor(x).gather(1, Tensor(i)), np.take_along_axis(x, i, 1))
    j = np.array([[2, 0, 1, 1]])
    check(Tensor(x).gather(0, Tensor(j)), np.take_along_axis(x, j, 0))
    check(Tensor(x).gather(1, Tensor(i[:2])), np.take_along_axis(x[:2], i[:2], 1))
    src = np.arange(6, dtype=np.float32).reshape(3, 2)
    want = x.copy()
    np.put_along_axis(want, i[:, :1], src[:, :1], 1)
    check(Tensor(x).scatter(1, Tensor(i[:, :1]), Tensor(src)), want)
    want = x.copy()
    np.add.at(want, (np.arange(3)[:, None], i), src)
    check(Tensor(x).scatter_add(1, Tensor(i), Tensor(src)), want)
    check(Tensor(x).scatter(1, Tensor(i), Tensor(src), reduce="add"), want)
    want = x.copy()
    np.multiply.at(want, (np.arange(3)[:, None], i), 2.0)
    check(Tensor(x).scatter(1, Tensor(i), 2.0, reduce="multiply"), want)
    want = x.copy()
    np.put_along_axis(want[:2], i[:2, :1], 5.0, 1)
    check(Tensor(x).scatter(1, Tensor(i[:2, :1]), 5.0), want)


@pytest.mark.parametrize("include_self", [True, False])
def test_scatter_reduce(include_self) -> None:
    base, index, src = np.array([4.0, 1, 9]), [0, 0, 1, 1, 0], [5.0, 3, 2, 8, 1]
    groups = [[5.0, 3, 1], [2.0, 8], []]
    for name, f in {"sum": np.sum, "prod": np.prod, "amax": np.max, "amin": np.min, "mean": np.mean}.items():
        want = [f(([b] if include_self or not g else []) + g) for b, g in zip(base, groups)]
        check(Tensor(base).scatter_reduce(0, Tensor(index), Tensor(np.array(src)), name, include_self), np.array(want))


def test_selecting_and_one_hot() -> None:
    check(Tensor(X).index_select(1, Tensor([3, 0])), X[:, [3, 0]])
    check(Tensor([[1, 0], [2, 2]]).one_hot(3), np.eye(3, dtype=np.int32)[[[1, 0], [2, 2]]])
    check(Tensor([1, 3]).one_hot(), np.eye(4, dtype=np.int32)[[1, 3]])


@pytest.mark.parametrize("labels", [[5], [0, 3, 1], [-1]])
def test_one_hot_out_of_range(labels: list[int]) -> None:
    for known in (Tensor(labels), Tensor(labels).realize(), Tensor([labels]).long()[0]):
        with pytest.raises(IndexError, match=f"one_hot: class {max(labels, key=abs)} is out of range.*Try: 0 to 2"):
            known.one_hot(3)
    assert (Tensor(labels) + 0).one_hot(3).sum().item() == sum(0 <= n < 3 for n in labels)  # computed: zeros
    with pytest.raises(CheckError, match=rf"one_hot: index {max(labels, key=abs)} is .*the class gives zeros"), \
            Context(CHECKED=1):
        (Tensor(labels) + 0).one_hot(3).realize()
    with pytest.raises(IndexError, match="class -1"):
        Tensor([-1, 2]).one_hot()


@pytest.mark.parametrize("bad, error, message", [
    (lambda x: x[3], IndexError, "index 3 is out of range for axis 0"),
    (lambda x: x[0, 0, -6], IndexError, "axis 2"),
    (lambda x: x[0, 0, 0, 0], IndexError, "4 indices"),
    (lambda x: x[..., ...], IndexError, "ellipsis"),
    (lambda x: x[1.0], TypeError, "cannot index with 1.0"),
    (lambda x: x["a"], TypeError, "str"),
    (lambda x: x[Tensor([1.0])], TypeError, "float"),
    (lambda x: x[::0], ValueError, "step 0"),
    (lambda x: x[Tensor([True, False])], ValueError, "mask"),
    (lambda x: x[..., Tensor([True, False])], ValueError, "mask of shape .* at axis 2"),
    (lambda x: x[Tensor([0, 1]), Tensor([0, 1, 2])], ValueError, "broadcast"),
    (lambda x: x.gather(0, Tensor([0])), ValueError, "equally many axes"),
    (lambda x: x.gather(0, Tensor([[[0.5]]])), TypeError, "float"),
    (lambda x: x.__setitem__(0, Tensor([1, 2, 3])), ValueError, "does not (fit|broadcast)|do not broadcast"),
    (lambda x: x.scatter(0, Tensor([[[0]]]), 1, reduce="max"), ValueError, "unknown reduce"),
])
def test_errors(bad, error, message) -> None:
    with pytest.raises(error, match=message) as caught:
        bad(Tensor(X))
    assert "test_indexing.py" in str(caught.value)


@pytest.mark.parametrize("device", ["CPU", "CPU:C", "PYTHON"])
@pytest.mark.parametrize("columns", [(), (2,), (7,), (3, 5)], ids=str)
def test_indices_not_yet_computed(device: str, columns: tuple[int, ...]) -> None:
    data = np.arange(10 * int(np.prod(columns)), dtype=np.float32).reshape(10, *columns)
    x = Tensor(data, device=device)
    drawn = Tensor.randint(4, high=10, device=device)
    computed = (Tensor([1.5, 2.5, 4.0], device=device) * 2).cast("int32") % 10
    for index in (drawn, computed, drawn * 0 + Tensor.randint(1, high=10, device=device)):
        rows = x[index]
        check(rows, data[index.numpy()])
        check(x[index] + 1, data[index.numpy()] + 1)


@pytest.mark.parametrize("device", ["CPU", "PYTHON"])
def test_a_part_is_written_across_rows_without_reading_beside_its_memory(device: str) -> None:
    for width in (3, 4, 5, 8):
        x = Tensor.zeros(4, width).to(device)
        part = x[1:]
        part[:, [1, 2]] = 8
        want = np.zeros((4, width), np.float32)
        want[1:, [1, 2]] = 8
        np.testing.assert_array_equal(x.numpy(), want)


def test_data_of_several_axes_move_to_other_devices() -> None:
    for device in ("CPU:1", "PYTHON"):
        assert Tensor([[1, 2], [3, 4]]).to(device).tolist() == [[1, 2], [3, 4]]
        assert Tensor([1.0, 2.0]).reshape(2, 1).to_(device).tolist() == [[1], [2]]
