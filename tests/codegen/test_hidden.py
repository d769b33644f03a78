"""What masks hide: conditions for whole blocks, against every value of their ranges."""
from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinsmith.codegen.hidden import everywhere, nothing_where
from tinsmith.core.dtypes import dtypes
from tinsmith.ir import Ops, UOp

I, J, K = UOp.range(3, 0, None), UOp.range(5, 1, None), UOp.range(4, 2, None)
X = UOp(Ops.PARAM, dtypes.float32.ptr(), (), (0, (64,))).load(I * 20 + J * 4 + K)
ZERO, LOWEST = UOp.const(dtypes.float32, 0), UOp.const(dtypes.float32, -math.inf)


def holds(condition: UOp, **values: int) -> bool:
    found = condition.substitute({r: UOp.index(values[name]) for name, r in zip("ijk", (I, J, K))}).simplify()
    assert found.is_const
    return bool(found.arg)


@given(st.lists(st.integers(-6, 6), min_size=3, max_size=3), st.integers(-20, 20), st.sampled_from(["&", "|", ""]),
       st.booleans())
def test_everywhere_is_what_all_values_inside_say(factors: list[int], bound: int, joined: str, truth: bool) -> None:
    line = (I * factors[0] + J * factors[1] + K * factors[2]).cast(dtypes.int32)
    condition = line.lt(bound)
    if joined:
        other = (J + I).lt(K * 2)
        condition = condition & other if joined == "&" else condition | other
    whole = everywhere(condition, [J, K], truth)
    if whole is None:
        assert joined
        return
    assert whole.ranges <= {I}
    for i in range(3):
        inside = [holds(condition, i=i, j=j, k=k) is truth for j, k in itertools.product(range(5), range(4))]
        assert not holds(whole, i=i, j=0, k=0) or all(inside)
        if not joined:
            assert holds(whole, i=i, j=0, k=0) is all(inside)


@pytest.mark.parametrize(("value", "hidden"), [
    (I.lt(J).where(ZERO, X), True), (I.lt(J).where(X, ZERO), False), (X * I.lt(J).where(ZERO, X), True),
    ((I.lt(J).where(LOWEST, X * 2) - X).alu("EXP") * X, True), ((X * ZERO) * X, None), (I.lt(J).where(X * 0, X), True),
])
def test_where_a_value_is_nothing(value: UOp, hidden: bool | None) -> None:
    condition = nothing_where(value)
    assert condition is not None
    for i, j in itertools.product(range(3), range(5)):
        assert holds(condition, i=i, j=j, k=0) is (hidden is None or (i < j) is hidden)


@pytest.mark.parametrize("value", [X, X + 1, X * X, I.lt(J).where(X, X + 1), I.lt(J).where(LOWEST, X), LOWEST - X,
                                   I.lt(J).where(LOWEST, X) * -1])
def test_where_nothing_is_known(value: UOp) -> None:
    assert nothing_where(value) is None


def test_conditions_on_values_are_unknown() -> None:
    assert everywhere(X.lt(0), [J]) is None
    assert everywhere((I // J).lt(2), [J]) is None
