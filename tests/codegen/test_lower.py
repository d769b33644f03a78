"""Lowering: a kernel graph has the value of its tensor graph and follows the rules of its dialect."""
from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.codegen.kernels import FAMILIES
from tests.codegen.running import expected, run_graph
from tests.codegen.test_opts import check
from tinsmith.codegen.lower.lower import lower
from tinsmith.core.dtypes import dtypes
from tinsmith.ir import Ops, UOp
from tinsmith.ir.uop import toposort
from tinsmith.ir.verify import verify_kernel, verify_tensor


def param(number: int, *shape: int) -> UOp:
    return UOp(Ops.PARAM, dtypes.float32, (), (number, shape))


def lowered(*values: UOp) -> UOp:
    return lower(UOp(Ops.SINK, None, values))


@pytest.mark.parametrize("family", FAMILIES)
def test_lowering_keeps_the_meaning(family: str) -> None:
    @settings(max_examples=60, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def run(data: st.DataObject) -> None:
        case = data.draw(FAMILIES[family])
        verify_tensor(case.sink)
        verify_kernel(lower(case.sink))
        check(case, run_graph(case.sink, case.inputs, ()), expected(case.sink, case.inputs), "kernel graph")

    run()


def test_movement_costs_no_arithmetic_on_data() -> None:
    x = param(1, 6, 4)
    moved = x.permute((1, 0)).reshape((2, 2, 6)).flip((0,)).pad(((0, 0), (1, 1), (0, 0)))
    graph = lowered(moved)
    assert not any(n.op.alu and n.dtype is dtypes.float32 for n in toposort(graph))
    values = np.arange(24, dtype=np.float32).reshape(6, 4)
    (got,) = run_graph(UOp(Ops.SINK, None, (moved,)), {x: values}, ())
    want = np.pad(np.flip(values.T.reshape(2, 2, 6), 0), ((0, 0), (1, 1), (0, 0)))
    np.testing.assert_array_equal(got.reshape(2, 4, 6), want)


def test_reshape_there_and_back_leaves_no_division() -> None:
    graph = lowered(param(1, 6, 4).reshape((2, 12)).reshape((6, 4)) + param(2, 6, 4))
    assert not any(n.op in (Ops.IDIV, Ops.MOD) for n in toposort(graph))


def test_reductions_of_one_row_share_their_range() -> None:
    x = param(1, 5, 7)
    centred = x - x.reduce("MAX", (1,)).expand((5, 7))
    folds = [n for n in toposort(lowered((centred * centred).reduce("ADD", (1,)))) if n.op is Ops.FOLD]
    assert len(folds) == 2
    assert folds[0].src[1:] == folds[1].src[1:]


def test_padding_becomes_a_condition_of_the_load() -> None:
    (load,) = (n for n in toposort(lowered(param(1, 4).pad(((1, 2),)))) if n.op is Ops.LOAD)
    assert len(load.src) == 3
    assert load.src[2].dtype is dtypes.bool


@pytest.mark.parametrize(("padded", "conditions"), [(0, 1), (1, 0)])
def test_a_reduction_keeps_the_conditions_of_its_own_index(padded: int, conditions: int) -> None:
    """The statistic of a row does not depend on a padding of columns: it would be computed in the loop over them."""
    x = param(1, 5, 7)
    top = x.reduce("MAX", (1,)).expand((5, 7))
    root = (x - top).pad(tuple((2, 1) if a == padded else (0, 0) for a in range(2)))
    (fold,) = (n for n in toposort(lowered(root)) if n.op is Ops.FOLD)
    guards = [load.src[2] for load in toposort(fold) if load.op is Ops.LOAD and len(load.src) == 3]
    assert len(guards) == conditions and len(fold.ranges) == 1
    values = np.random.default_rng(0).standard_normal((5, 7)).astype(np.float32)
    (got,) = run_graph(UOp(Ops.SINK, None, (root,)), {x: values}, ())
    want = np.pad(values - values.max(1, keepdims=True), [(2, 1) if a == padded else (0, 0) for a in range(2)])
    np.testing.assert_array_equal(got.reshape(want.shape), want)


def test_a_reduction_keeps_conditions_that_bound_it_through_others() -> None:
    """Two paddings of one merged axis: the condition on the inner range holds only where that on both does."""
    x = param(1, 4, 3)
    top = x.reduce("MAX", (1,)).reshape((2, 2)).pad(((1, 0), (0, 1))).reshape((9,)).pad(((1, 2),))
    values = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
    (got,) = run_graph(UOp(Ops.SINK, None, (top,)), {x: values}, ())
    want = np.pad(np.pad(values.max(1).reshape(2, 2), ((1, 0), (0, 1))).reshape(9), (1, 2))
    np.testing.assert_array_equal(got.reshape(-1), want)


def test_outputs_of_one_shape_share_their_ranges() -> None:
    x, y = param(2, 5, 7), param(3, 5, 7)
    graph = lowered(x + y, x * y)
    assert len([n for n in toposort(graph) if n.op is Ops.RANGE]) == 2


def test_scatter_runs_in_order() -> None:
    base, x = param(1, 3), param(3, 5)
    index = UOp(Ops.PARAM, dtypes.int32, (), (2, (5,)))
    values = {base: np.zeros(3, np.float32), index: np.array([0, 0, 2, 7, 2], np.int32),
              x: np.arange(1, 6, dtype=np.float32)}
    (got,) = run_graph(UOp(Ops.SINK, None, (base.scatter(index, x, 0, None),)), values, ())
    assert got.tolist() == [2.0, 0.0, 5.0]
