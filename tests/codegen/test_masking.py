"""Skipping of masked blocks: the condition derived for a block against the mask at every index of the block."""
from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.codegen.running import expected, optimized, run_graph, run_on
from tinsmith.codegen.emit.linearize import linearize
from tinsmith.codegen.opt import Opt, OptOps
from tinsmith.codegen.transform.skip_masked_blocks import covered_steps, everywhere, nothing_where
from tinsmith.core.dtypes import dtypes
from tinsmith.core.errors import ArgumentError
from tinsmith.ir import Ops, UOp
from tinsmith.ir.structure import range_size
from tinsmith.ir.uop import Window, toposort

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


def spread(size: int, taps: int, stride: int, dilation: int) -> UOp:
    """The gradient of a window's input: position p sums up y[j]·w[k] with j·stride + k·dilation = p."""
    whole = (3, size - dilation * (taps - 1) if stride == 1 else (size - dilation * (taps - 1) - 1) // stride + 1, taps)
    y = UOp(Ops.PARAM, dtypes.float32, (), (1, (whole[0], whole[1], 1))).expand(whole)
    w = UOp(Ops.PARAM, dtypes.float32, (), (2, (whole[0], 1, taps))).expand(whole)
    x = (y * w).unwindow(Window(1, 2, stride, dilation, size, whole[1])).reduce("ADD", (0, 2)).reshape((size,))
    return UOp(Ops.SINK, None, (x,))


@pytest.mark.parametrize(("size", "taps", "stride", "dilation"), [
    (9, 3, 1, 1), (24, 5, 1, 1), (11, 3, 1, 2), (6, 4, 1, 1), (13, 3, 2, 1), (12, 4, 3, 1)])
def test_steps_outside_of_a_window_are_left_out(size: int, taps: int, stride: int, dilation: int) -> None:
    sink = spread(size, taps, stride, dilation)
    kernel = optimized(sink, ())
    ((loop, span),) = covered_steps(kernel).items()
    assert range_size(loop) == taps
    (place,) = {r for s in span for r in s.ranges}
    windows = (size - dilation * (taps - 1) - 1) // stride + 1
    for at in range(size):
        start, end = (int(s.substitute({place: UOp.index(at)}).simplify().arg) for s in span)
        adds = [k for k in range(taps) if (at - k * dilation) % stride == 0
                and 0 <= at - k * dilation < stride * windows]
        assert all(start <= k < end for k in adds)
        if stride == 1 == dilation:
            assert adds == list(range(start, end))
    inputs = {p: np.random.default_rng(p.arg[0]).standard_normal(p.arg[1]).astype(np.float32)
              for p in (n for n in toposort(sink) if n.op is Ops.PARAM)}
    axis = kernel.ranges.index(place)
    copies, steps = Opt(OptOps.UPCAST, axis, 5), Opt(OptOps.UNROLL, kernel.ranges.index(loop))
    apart = Opt(OptOps.CUT, axis, tuple(range(1, -(-size // 5))))
    for opts in ([], [copies], [steps], [steps, copies], [steps, copies, apart]):
        opts = [Opt(OptOps.SKIP), *opts]
        for device in ("PYTHON", "CPU"):
            np.testing.assert_allclose(run_on(device, sink, inputs, opts)[0], expected(sink, inputs)[0], rtol=1e-5,
                                       atol=1e-5)
        np.testing.assert_allclose(run_graph(sink, inputs, opts)[0], expected(sink, inputs)[0], rtol=1e-5, atol=1e-5)


def test_what_is_outside_of_no_window_is_refused() -> None:
    whole = UOp(Ops.PARAM, dtypes.float32, (), (1, (4, 8))).reduce("ADD", (1,)).reshape((4,))
    kernel = optimized(UOp(Ops.SINK, None, (whole,)), ())
    with pytest.raises(ArgumentError):
        kernel.apply(Opt(OptOps.SKIP))


def test_what_is_written_out_holds_no_steps_outside_of_a_window() -> None:
    kernel = optimized(spread(9, 3, 1, 1), ())
    ((loop, span),) = covered_steps(kernel).items()
    (place,) = {r for s in span for r in s.ranges}
    axis = kernel.ranges.index(place)
    opts = [Opt(OptOps.UPCAST, axis, 3), Opt(OptOps.UNROLL, kernel.ranges.index(loop)), Opt(OptOps.CUT, axis, (1, 2))]
    adds = [sum(u.op is Ops.MULADD for u in linearize(optimized(spread(9, 3, 1, 1), first + opts)))
            for first in ([], [Opt(OptOps.SKIP)])]
    assert adds == [27, 21]  # each of seven positions of y has three taps
