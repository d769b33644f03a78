"""Vectorized scans: each lane adds the lanes before it, and the last lane is carried to the next vector."""
from __future__ import annotations

import numpy as np
import pytest

from tests.codegen.running import NATIVE, expected, optimized, run_graph, run_on
from tests.codegen.structures import Inputs
from tinsmith.codegen.opt import Opt, OptOps
from tinsmith.core.dtypes import DType, dtypes
from tinsmith.core.errors import ArgumentError
from tinsmith.ir import Ops, UOp


def given(number: int, shape: tuple[int, ...], dtype: DType) -> UOp:
    return UOp(Ops.PARAM, dtype, (), (number, shape))


def axis_of_steps(sink: UOp) -> int:
    kernel = optimized(sink, ())
    (ordered,) = kernel.ordered
    return kernel.ranges.index(ordered)


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64, dtypes.float16, dtypes.int8, dtypes.uint32], ids=str)
@pytest.mark.parametrize("op", ["ADD", "MUL", "MAX", "MIN"])
@pytest.mark.parametrize("lanes", [2, 4, 16, 32])  # 32: all steps are one vector
def test_several_steps_at_once(op: str, lanes: int, dtype: DType) -> None:
    x, start = given(1, (3, 64), dtype), given(2, (3, 2), dtype)
    sink = UOp(Ops.SINK, None, ((x + x).scan(op, 1, start),))
    rng = np.random.default_rng(0)
    low, high = (0.25, 0.75) if dtype.is_float else (1, 5)
    inputs = {p: (rng.uniform(low, high, p.shape)).astype(dtype.numpy) for p in (x, start)}
    want = expected(sink, inputs)[0].astype(np.float64)
    opts = [Opt(OptOps.VECTOR, axis_of_steps(sink), lanes)]
    rtol = {2: 2e-2, 4: 1e-5, 8: 1e-13}.get(dtype.itemsize, 0) if dtype.is_float else 0
    for got in [run_graph(sink, inputs, opts), *(run_on(d, sink, inputs, opts) for d in ("PYTHON", *NATIVE))]:
        np.testing.assert_allclose(got[0].astype(np.float64), want, rtol=rtol)


def test_what_has_no_lanes() -> None:
    x, w, s = given(1, (3, 64), dtypes.float32), given(2, (3, 64), dtypes.float32), given(3, (3, 1), dtypes.float32)
    weighted = UOp(Ops.SINK, None, (x.scan("MULADD", 1, s, w),))
    with pytest.raises(ArgumentError, match="cannot be combined"):
        optimized(weighted, [Opt(OptOps.VECTOR, axis_of_steps(weighted), 4)])
    odd = UOp(Ops.SINK, None, (given(1, (3, 10), dtypes.float32).scan("ADD", 1),))
    with pytest.raises(ArgumentError, match="must divide the steps"):
        optimized(odd, [Opt(OptOps.VECTOR, axis_of_steps(odd), 4)])
    plain = UOp(Ops.SINK, None, (x.scan("ADD", 1),))
    steps = axis_of_steps(plain)
    with pytest.raises(ArgumentError, match="vectorized already"):
        optimized(plain, [Opt(OptOps.VECTOR, steps, 4), Opt(OptOps.VECTOR, 1 - steps, 2)])


@pytest.mark.parametrize("op", ["ADD", "MUL", "MAX", "MIN"])
@pytest.mark.parametrize(("lanes", "threads", "rows"), [(8, 64, 0), (1, 16, 0), (4, 4, 2), (8, 128, 2), (1, 32, 3)])
def test_threads_share_the_steps(op: str, lanes: int, threads: int, rows: int) -> None:
    x, start = given(1, (6, 1020), dtypes.float32), given(2, (6, 1), dtypes.float32)
    sink = UOp(Ops.SINK, None, (x.scan(op, 1, start),))
    rng = np.random.default_rng(0)
    inputs = {p: rng.uniform(0.99, 1.01, p.shape).astype(np.float32) for p in (x, start)}
    opts = [Opt(OptOps.PADTO, 1, 1024), *[Opt(OptOps.VECTOR, 1, lanes)] * (lanes > 1), Opt(OptOps.GROUP, 1, threads),
            *[Opt(OptOps.LOCAL, 0, rows)] * (rows > 1)]
    (got,) = run_on("PYTHON:G256", sink, inputs, opts)
    np.testing.assert_allclose(got, expected(sink, inputs)[0], rtol=1e-5)


def test_what_threads_do_not_share() -> None:
    x, w, s = (given(n, shape, dtypes.float32) for n, shape in ((1, (3, 64)), (2, (3, 64)), (3, (3, 1))))

    def refused(sink: UOp, *opts: Opt, device: str = "PYTHON:G256", match: str) -> None:
        with pytest.raises(ArgumentError, match=match):
            run_on(device, UOp(Ops.SINK, None, (sink,)), {p: np.ones(p.shape, np.float32) for p in (x, w, s)}, opts)

    refused(x.scan("MULADD", 1, s, w), Opt(OptOps.GROUP, 1, 4), match="threads cannot combine")
    refused(x.scan("ADD", 1), Opt(OptOps.GROUP, 1, 4), device="PYTHON", match="threads cannot combine")
    refused(x.scan("ADD", 1), Opt(OptOps.GROUP, 1, 24), match="a power of two")
    refused(x.scan("ADD", 1), Opt(OptOps.GROUP, 1, 4), Opt(OptOps.VECTOR, 1, 2), match="GROUP was applied")
    refused(x.scan("ADD", 1), Opt(OptOps.GROUP, 1, 16), Opt(OptOps.LOCAL, 0, 3), match="not full warps")


def test_counters_of_a_single_step_with_loops_in_any_order() -> None:
    """A loop of one step is removed, so there is no range with a role."""
    inputs = Inputs()
    base, index, x = inputs((2, 1), dtypes.int32), inputs((2, 1), dtypes.int32), inputs((2, 1), dtypes.int32)
    _, sink, values = inputs.case("histogram", base.histogram(index, x, 1))
    opts = [Opt(OptOps.ORDER, None, (1, 0))]
    for device in ("PYTHON", "CPU"):
        for got, want in zip(run_on(device, sink, values, opts), expected(sink, values), strict=True):
            np.testing.assert_array_equal(got, want)


def test_threads_that_fill_what_one_of_them_scatters_to_are_refused() -> None:
    """Nothing orders one thread's initialization before another thread's scatter-add."""
    inputs = Inputs()
    base, index, x = inputs((4, 3)), inputs((5, 1), dtypes.int32), inputs((5, 3))
    _, sink, values = inputs.case("scatter", base.scatter(index.expand((5, 3)), x, 0, "ADD"))
    with pytest.raises(ArgumentError, match="two statements store to the same memory"):
        run_on("PYTHON:G64", sink, values, [Opt(OptOps.LOCAL, 1, 4)])
    (got,) = run_on("PYTHON:G64", sink, values, [Opt(OptOps.LOCAL, 0, 3)])
    np.testing.assert_array_equal(got, expected(sink, values)[0])


def test_steps_in_order_are_no_loop_to_walk_over() -> None:
    x = given(1, (2, 2), dtypes.int32)
    with pytest.raises(ArgumentError, match="needs two loops"):
        optimized(UOp(Ops.SINK, None, (x.scan("ADD", 1),)), [Opt(OptOps.WALK, 0, (1, 2, 1))])
