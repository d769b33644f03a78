"""The invariant of the optimizer: every legal list of opts computes the same result."""
from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from tests.codegen.kernels import FAMILIES, Array, Case, apply_random
from tests.codegen.running import HAS_C, NATIVE, expected, optimized, run_graph, run_on
from tinsmith.backend.device import Device
from tinsmith.backend.memory import Buffer
from tinsmith.backend.program import Call
from tinsmith.codegen.compile_kernel import compile_kernel
from tinsmith.codegen.kernel import Kernel
from tinsmith.codegen.lower.lower import lower
from tinsmith.codegen.opt import Opt, OptOps
from tinsmith.core.dtypes import dtypes
from tinsmith.core.errors import ArgumentError
from tinsmith.ir import Ops, UOp
from tinsmith.ir.uop import Window

relaxed = settings(max_examples=25, deadline=None, derandomize=True, database=None,
                   suppress_health_check=list(HealthCheck))


def check(case: Case, got: list[Array], want: list[Array], where: str) -> None:
    """Compare integers exactly, floats within the rounding of another summation order."""
    for n, (a, b) in enumerate(zip(got, want)):
        dtype = case.sink.src[n].dtype
        assert a.dtype == b.dtype
        if not dtype.is_float:
            np.testing.assert_array_equal(a, b, f"{where}: output {n}")
            continue
        eps = {2: 2.0**-8 if dtype.name == "bfloat16" else 2.0**-11, 4: 2.0**-23, 8: 2.0**-52}[dtype.itemsize]
        wide, right = a.astype(np.float64), b.astype(np.float64)
        scale = float(np.max(np.abs(right[np.isfinite(right)]), initial=1.0)) * (4 + case.terms**0.5)
        atol = eps * case.terms * scale
        np.testing.assert_allclose(wide, right, rtol=2 * eps, atol=atol, err_msg=f"{where}: output {n}")


def draw_opts(draw: st.DrawFn, case: Case, device: str = "PYTHON", blocks: bool = False) -> list[Opt]:
    opts = apply_random(draw, optimized(case.sink, (), device), blocks=blocks)
    note(f"opts = {opts}")
    return opts


@pytest.mark.parametrize("family", FAMILIES)
def test_any_opts_compute_the_same(family: str) -> None:
    @settings(relaxed, max_examples=10 if family == "stream" else 25)  # the interpreter takes seconds for a stream
    @given(st.data())
    def run(data: st.DataObject) -> None:
        case = data.draw(FAMILIES[family])
        opts = draw_opts(data.draw, case, "CPU")  # whose matrix units PYTHON has too
        want = expected(case.sink, case.inputs)
        check(case, run_graph(case.sink, case.inputs, opts), want, "kernel graph")
        for threads in (1, 2, 3) if any(o.op.name == "THREAD" for o in opts) else (1,):
            check(case, run_on("PYTHON", case.sink, case.inputs, opts, threads), want, f"PYTHON, {threads} threads")
            check(case, run_on("CPU", case.sink, case.inputs, opts, threads), want, f"LLVM, {threads} threads")

    run()


@pytest.mark.parametrize("device", ["PYTHON", "PYTHON:G64"])
@pytest.mark.parametrize("family", FAMILIES)
def test_any_opts_with_blocks_of_threads_compute_the_same(family: str, device: str) -> None:
    @relaxed
    @given(st.data())
    def run(data: st.DataObject) -> None:
        case = data.draw(FAMILIES[family])
        opts = draw_opts(data.draw, case, device, blocks=True)
        want = expected(case.sink, case.inputs)
        check(case, run_graph(case.sink, case.inputs, opts, device), want, "kernel graph")
        check(case, run_on(device, case.sink, case.inputs, opts), want, device)

    run()


@pytest.mark.parametrize("family", FAMILIES)
def test_the_heuristics_compute_the_same(family: str) -> None:
    @settings(relaxed, max_examples=15)
    @given(st.data())
    def run(data: st.DataObject) -> None:
        case = data.draw(FAMILIES[family])
        want = expected(case.sink, case.inputs)
        for device in ("PYTHON", "PYTHON:T3:V64", "PYTHON:G64", "CPU"):
            check(case, run_on(device, case.sink, case.inputs, None, 3), want, device)

    run()


def param(number: int, *shape: int) -> UOp:
    return UOp(Ops.PARAM, dtypes.float32, (), (number, shape))


def large_matmul(m: int = 128, k: int = 1024, n: int = 1024) -> UOp:
    """A product whose rows are so far apart that a panel is packed."""
    a, b = param(1, m, 1, k).expand((m, n, k)), param(2, k, n).permute((1, 0)).reshape((1, n, k)).expand((m, n, k))
    return (a * b).reduce("ADD", (2,))


def padded_convolution(o: int = 8, c: int = 4, size: int = 64, taps: int = 3) -> UOp:
    """A convolution whose guarded image is staged as a padded tile."""
    x = param(1, c, size).pad(((0, 0), (1, 1))).reshape((1, c, size + 2, 1)).expand((o, c, size + 2, taps))
    x = x.window(Window(2, 3, 1, 1, size + 2, size))
    w = param(2, o, c, 1, taps).expand((o, c, size, taps))
    return (x * w).reduce("ADD", (1, 3))


LARGE = {"matmul": large_matmul(), "convolution": padded_convolution(), "sum": param(1, 300, 700).reduce("ADD", (1,)),
         "transpose": param(1, 300, 70).permute((1, 0)) + param(2, 70, 300)}


def replays(device: str, sink: UOp) -> list[Opt]:
    """Check that the recorded opts reproduce everything the planner did to the kernel."""
    chosen = compile_kernel(sink, Device[device].renderer)
    again = compile_kernel(sink, Device[device].renderer, chosen.opts)
    assert again.opts == chosen.opts
    assert again.uops == chosen.uops
    assert again.source == chosen.source
    return chosen.opts


@pytest.mark.parametrize("device", ["PYTHON:T3:V64", "PYTHON:G256", "CPU"])
def test_the_listed_opts_are_all_that_the_heuristics_did(device: str) -> None:
    opts = {name: replays(device, UOp(Ops.SINK, None, (value,))) for name, value in LARGE.items()}
    assert all(opts.values())
    if device == "PYTHON:T3:V64":  # where the target, and so the choice, is fixed
        assert all(any(o.op is OptOps.STAGE and o.lanes for o in opts[name]) for name in ("matmul", "convolution"))


@pytest.mark.parametrize("family", FAMILIES)
def test_replaying_the_heuristics_of_any_kernel(family: str) -> None:
    @settings(relaxed, max_examples=10)
    @given(st.data())
    def run(data: st.DataObject) -> None:
        replays("PYTHON:T3:V64", data.draw(FAMILIES[family]).sink)

    run()


@pytest.mark.skipif(not HAS_C, reason="no C compiler")
@pytest.mark.parametrize("family", FAMILIES)
def test_any_opts_compute_the_same_in_c(family: str) -> None:
    @settings(relaxed, max_examples=5)
    @given(st.data())
    def run(data: st.DataObject) -> None:
        case = data.draw(FAMILIES[family])
        opts = draw_opts(data.draw, case, "CPU:C")
        got = run_on("CPU:C", case.sink, case.inputs, opts, 2)
        check(case, got, expected(case.sink, case.inputs), "C")

    run()


def test_steps_are_left_out_once() -> None:
    """A second SKIP would count the steps from the first one's start."""
    x, w = (UOp(Ops.PARAM, dtypes.int32, (), (n, shape)) for n, shape in ((1, (4, 1)), (2, (1, 2))))
    y = (x.expand((4, 2)) * w.expand((4, 2))).unwindow(Window(0, 1, 1, 1, 5, 4)).reduce("ADD", (1,))
    sink = UOp(Ops.SINK, None, (y,))
    inputs = {x: np.array([[3], [1], [0], [-2]], np.int32), w: np.array([[-2, -4]], np.int32)}
    once = [Opt(OptOps.SKIP)]
    np.testing.assert_array_equal(run_graph(sink, inputs, once)[0], expected(sink, inputs)[0])
    with pytest.raises(ArgumentError, match=r"left out already|no block or step"):
        optimized(sink, once * 2, "CPU")


@pytest.mark.parametrize("amount", [2, 3])
def test_partial_results_of_threads_are_unrolled_without_rest(amount: int) -> None:
    x = UOp(Ops.PARAM, dtypes.int32, (), (1, (7,)))
    sink, inputs = UOp(Ops.SINK, None, (x.reduce("ADD", (0,)),)), {x: np.arange(7, dtype=np.int32)}
    opts = [Opt(OptOps.GROUP, 0, 3), Opt(OptOps.UNROLL, 1, amount)]
    if amount == 3:
        np.testing.assert_array_equal(run_on("PYTHON", sink, inputs, opts)[0], expected(sink, inputs)[0])
    else:
        with pytest.raises(ArgumentError, match="threads' partial results"):
            optimized(sink, opts)


def test_lanes_of_an_outer_reduction_are_not_combined_by_an_inner_one() -> None:
    """max_i sum_k x[i], whose body does not use the inner range: two vector ranges in one value are refused."""
    x = UOp(Ops.PARAM, dtypes.int32, (), (1, (5,)))
    value = x.reshape((5, 1)).expand((5, 4)).reduce("ADD", (1,)).reduce("MAX", (0,))
    kernel = Kernel(lower(UOp(Ops.SINK, None, (value,))))
    kernel.apply(Opt(OptOps.VECTOR, 1, 4))
    with pytest.raises(ArgumentError, match="vectorized along one range"):
        kernel.apply(Opt(OptOps.VECTOR, 0, 4))


DEVICES = ["CPU", "PYTHON", *(["CPU:C"] if HAS_C else [])]


def _run(device: str, sink: UOp, opts: list[Opt], size: int, *inputs: Array) -> Array:
    opened = Device[device]
    kernel = compile_kernel(sink, opened.renderer, opts)
    target = Buffer(device, size, dtypes.float32)
    sources = [Buffer(device, x.size, dtypes.float32).copyin(memoryview(x)) for x in inputs]
    opened.run([Call(opened.runtime(kernel, opened.compiler.compile(kernel.source)), [target, *sources], [])])
    return target.numpy()


@pytest.mark.parametrize("device", DEVICES)
def test_a_split_reduction_combines_partial_results(device: str) -> None:
    x = UOp(Ops.PARAM, dtypes.float32, (), (1, (3, 24)))
    data = np.arange(72, dtype=np.float32)
    for opts in ([Opt(OptOps.SPLIT, 1, 4)], [Opt(OptOps.SPLIT, 1, 6), Opt(OptOps.UNROLL, 2, 2)]):
        for op, numpy_op in (("ADD", np.sum), ("MAX", np.max)):
            got = _run(device, UOp(Ops.SINK, None, (x.reduce(op, (1,)),)), opts, 3, data)
            np.testing.assert_array_equal(got, numpy_op(data.reshape(3, 24), axis=1))
    with pytest.raises(ArgumentError, match="divide 24"):
        Kernel(lower(UOp(Ops.SINK, None, (x.reduce("ADD", (1,)),)))).apply(Opt(OptOps.SPLIT, 1, 5))


@pytest.mark.parametrize("device", DEVICES)
def test_hinted_stores_write_the_same(device: str) -> None:
    x = UOp(Ops.PARAM, dtypes.float32, (), (1, (4, 32)))
    data = np.arange(128, dtype=np.float32)
    opts = [Opt(OptOps.VECTOR, 0, 16), Opt(OptOps.HINT)]
    np.testing.assert_array_equal(_run(device, UOp(Ops.SINK, None, (x + x,)), opts, 128, data), data * 2)
    with pytest.raises(ArgumentError, match="full aligned vectors"):
        Kernel(lower(UOp(Ops.SINK, None, (x + x,)))).apply(Opt(OptOps.HINT))


def integers(*shape: int) -> Array:
    return np.random.default_rng(0).integers(-4, 5, shape).astype(np.float32)


def rows_read_again() -> Case:
    x = param(1, 2, 2)
    centred = x - x.reduce("MAX", (1,)).expand((2, 2))
    square = centred * centred + 1
    out = (square / square.reduce("ADD", (1,)).expand((2, 2))).reduce("ADD", (1,))
    return Case(UOp(Ops.SINK, None, (out,)), {x: integers(2, 2)}, 24)


@pytest.mark.parametrize("device", NATIVE)
@pytest.mark.parametrize("lanes, copies", [(0, 3), (2, 2)])
def test_a_line_that_two_loops_beside_each_other_need_is_written_before_both(device: str, lanes: int,
                                                                             copies: int) -> None:
    case = rows_read_again()
    for value in range(1, 5):  # what fills up a tile beyond the rows is the same in both loops
        opts = (Opt(OptOps.UPCAST, 0, 0), Opt(OptOps.STAGE, value, (0,), lanes, copies=copies))
        check(case, run_on(device, case.sink, case.inputs, opts), expected(case.sink, case.inputs), device)


@pytest.mark.parametrize("device", NATIVE)
@pytest.mark.parametrize("rows", [2, 3, 7])
def test_copies_of_vectors_fill_a_stage_in_whole_vectors(device: str, rows: int) -> None:
    a, b = param(1, 1, rows, 1, 2), param(2, 1, 1, 3, 2)
    x, y = (p.expand((1, rows, 3, 2)) for p in (a, b))
    case = Case(UOp(Ops.SINK, None, ((x * y).reduce("ADD", (3,)),)), {a: integers(*a.shape), b: integers(*b.shape)})
    opts = (Opt(OptOps.UPCAST, 0, rows), Opt(OptOps.STAGE, 0, (), 2))
    check(case, run_on(device, case.sink, case.inputs, opts), expected(case.sink, case.inputs), device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("rows", [1, 2, 3])
def test_a_load_ahead_stops_at_a_bound_known_at_launch(device: str, rows: int) -> None:
    n, x = UOp.variable("n", 1, 3), param(1, 3, 2)
    sink = UOp(Ops.SINK, None, (x.shrink(((0, n), (0, 2))).reduce("ADD", (0,)),))
    case = Case(sink, {x: integers(3, 2), n: rows})
    check(case, run_on(device, sink, case.inputs, [Opt(OptOps.ROTATE, 0)]), expected(sink, case.inputs), device)


@pytest.mark.parametrize("device", ["PYTHON", "CPU"])
def test_a_load_ahead_of_a_step_that_is_all_padding_has_its_lanes(device: str) -> None:
    x = UOp(Ops.PARAM, dtypes.float32, (), (1, (2,)))
    sink, values = UOp(Ops.SINK, None, (x.reduce("ADD", (0,)),)), {x: np.asarray([3, 1], np.float32)}
    opts = [Opt(OptOps.PADTO, 0, 4), Opt(OptOps.VECTOR, 0, 2), Opt(OptOps.ROTATE, 0)]
    np.testing.assert_array_equal(run_on(device, sink, values, opts)[0], expected(sink, values)[0])


@pytest.mark.parametrize("wrong", [{"depth": 0}, {"copies": 0}, {"lanes": -1}])
def test_an_opt_says_what_is_wrong_with_its_counts(wrong: dict[str, int]) -> None:
    with pytest.raises(ArgumentError, match="must be positive"):
        Opt(OptOps.STAGE, 0, (0,), **wrong)
