"""Symbolic sizes: equal polynomials are one node, however they were written."""
from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinsmith.core.dtypes import dtypes
from tinsmith.core.errors import ArgumentError
from tinsmith.ir import Ops, UOp
from tinsmith.ir.algebra.sizes import holds, is_never_negative, normal_size, size_text, value_of_size, watchers
from tinsmith.ir.interpret.tensor import evaluate_scalar
from tinsmith.schedule.slot_sizes import bounds_of_size, renumbered, terms_of, value_of, values_in

N, M = UOp.variable("n", 1, 9), UOp.variable("m", 0, 7)
leaves = st.sampled_from([N, M, N.bind(3), UOp.index(2), UOp.index(5), N // 2, (N + M) % 3])
OPS = st.sampled_from(["__add__", "__sub__", "__mul__"])
sizes = st.recursive(leaves, lambda s: st.builds(lambda op, a, b: getattr(a, op)(b), OPS, s, s), max_leaves=6)


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(sizes, sizes, st.integers(1, 9), st.integers(0, 7))
def test_the_normal_form_keeps_the_value(a: UOp, b: UOp, n: int, m: int) -> None:
    known = {N: n, M: m}
    for size in (a, a * b, a - b):
        found = normal_size(size)
        value = evaluate_scalar(found, known) if isinstance(found, UOp) else found
        assert value == evaluate_scalar(size, known)
        assert normal_size(found) is found or normal_size(found) == found
    assert normal_size(a - b + (b - a)) == 0 and normal_size(a - (a + 1)) == -1
    assert normal_size(a * b + a) is normal_size((b + 1) * a) or not isinstance(normal_size(a * b + a), UOp)


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(sizes)
def test_what_is_proved_is_never_negative(size: UOp) -> None:
    values = [evaluate_scalar(size, {N: n, M: m}) for n in range(1, 10) for m in range(8)]
    assert min(values) >= 0 or not is_never_negative(size)


@pytest.mark.parametrize("size", [N * M - M, N - N // 2, N - (N + 1) // 2, N * N - N, (N + 2) * (M + 1) - M * N - 2])
def test_sizes_that_are_proved(size: UOp) -> None:
    assert is_never_negative(size) and not is_never_negative(size - N - 1)


def test_parts_that_may_be_negative_are_not_replaced_by_bounds() -> None:
    part = (N - 5) // 2  # from -2 to 2
    for size in (part * (M // 2) + N, N - part * (M // 2) * 4, part * (M // 2) * -1 + 2):
        found = [evaluate_scalar(size, {N: n, M: m}) for n in range(1, 10) for m in range(8)]
        assert min(found) < 0 and not is_never_negative(size)


def values(size: UOp) -> UOp:
    """Return a size of a canonical graph, whose variables are bound to the numbers of values."""
    return size.substitute({N.bind(3): BOUND[0]}).substitute(dict(zip((N, M), BOUND)))


BOUND = [UOp(Ops.BIND, None, (v, UOp.const(dtypes.int32, k))) for k, v in enumerate((N, M))]


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(sizes, st.integers(1, 9), st.integers(0, 9), st.integers(0, 7), st.integers(0, 7))
def test_sizes_as_data_have_the_same_values_and_bounds(size: UOp, n: int, more: int, m: int, further: int) -> None:
    given_size = values(size)
    terms = terms_of(given_size)
    assert terms is not None
    stored = json.loads(json.dumps(terms))  # in the disk cache
    least, most = bounds_of_size(terms, [n, m], [n + more, m + further])
    for a in (n, n + more // 2, n + more):
        for b in (m, m + further):
            plain = size.substitute({N.bind(3): N})
            value = evaluate_scalar(plain, {N: a, M: b})
            assert value_of(terms, [a, b]) == value_of(stored, [a, b]) == value and least <= value <= most
            assert value_of(renumbered(stored, 2), [-1, -1, a, b]) == value
    assert set(values_in(terms)) <= {0, 1}


def test_sizes_that_depend_on_nothing_are_numbers() -> None:
    assert normal_size((N + 3) - N) == 3 and normal_size(UOp.index(4) * 2) == 8 and normal_size(7) == 7


def test_every_shape_has_its_sizes_in_normal_form() -> None:
    n, m = N.bind(3), M.bind(2)
    x = UOp.const(dtypes.int32, 0).expand_to((n, 1))
    wide = x.expand((n, m * 2)).reshape((m * n * 2,))
    assert wide.shape[0] is x.expand((n, 2)).reshape((2 * n,)).expand_to((2 * n, m)).reshape((m * (n + n),)).shape[0]
    assert x.pad(((n, m), (0, 0))).shape[0] is x.pad(((m, n), (0, 0))).shape[0]
    assert x.shrink(((m - 1, m + n - 1), (0, 1))).shape[0] is n


def test_conditions() -> None:
    n = N.bind(3)
    seen: list[tuple[UOp, int]] = []
    watchers.append(lambda size, value: seen.append((size, value)))
    try:
        assert holds(n < 10) and not holds(n * 2 < 2) and not seen  # proven
        assert n < 4 and not n > 3 and max(n, 2) is n and min(n, 2) == 2 and not n > 3
        assert [value for _, value in seen] == [1, 0, 0, 1, 0]
        assert value_of_size(n + 1) == 4 and n.val == 3 and [value for _, value in seen[5:]] == [4, 3]
    finally:
        watchers.pop()
    with pytest.raises(ArgumentError, match="variable 'n' has no value"):
        bool(N < 4)
    assert UOp.range(9, 0, None) < N and UOp.const(dtypes.float32, 0.0)  # nodes like any other


def test_value_and_text() -> None:
    assert value_of_size(N.bind(4) * 2 + M.bind(0)) == 8 and value_of_size(5) == 5
    assert size_text(N.bind(4) + 1) == "n+1 (5 with n = 4)" and size_text(N.bind(4)) == "n = 4"
    assert size_text(5) == "5" and size_text(N + M.bind(2)) == "n+m (m = 2, n from 1 to 9)"
