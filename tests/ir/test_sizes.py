"""Symbolic sizes: equal polynomials are one node, whatever they were written like."""
from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tinsmith.ir import UOp
from tinsmith.ir.evaluate import evaluate_scalar
from tinsmith.ir.sizes import least_value, normal_size, size_text, sizes_equal, value_of_size

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
    assert sizes_equal(a * b + a, a * (b + 1)) and sizes_equal(a - b, -(b - a)) and not sizes_equal(a, a + 1)
    assert normal_size(a * b + a) is normal_size((b + 1) * a) or not isinstance(normal_size(a * b + a), UOp)


def test_sizes_that_depend_on_nothing_are_numbers() -> None:
    assert normal_size((N + 3) - N) == 3 and normal_size(UOp.index(4) * 2) == 8 and normal_size(7) == 7
    assert not sizes_equal(N, 4) and not sizes_equal(N, M) and sizes_equal(3, 3)


def test_least_value() -> None:
    assert least_value(N - N // 2) == 1 and least_value(N.bind(3) - 2) == -1 and least_value(N * M - M) == 0
    wide = UOp.variable("w", 0, 1 << 20)
    assert least_value(wide - wide // 2) == -(1 << 19) and least_value(wide + 1) == 1 and least_value(4) == 4


def test_value_and_text() -> None:
    assert value_of_size(N.bind(4) * 2 + M.bind(0)) == 8 and value_of_size(5) == 5
    assert size_text(N.bind(4) + 1) == "n + 1, n from 1 to 9" and size_text(5) == "5"
