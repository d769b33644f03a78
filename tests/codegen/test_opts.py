"""The invariant of the optimizer: every legal list of opts computes the same result."""
from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from tests.codegen.kernels import FAMILIES, Array, Case, apply_random
from tests.codegen.running import HAS_C, expected, optimized, run_graph, run_on
from tinsmith.codegen.kernel import Opt

relaxed = settings(max_examples=25, deadline=None, derandomize=True, database=None,
                   suppress_health_check=list(HealthCheck))


def check(case: Case, got: list[Array], want: list[Array], where: str) -> None:
    """Integers exactly; floats within the rounding that another order of summation may cause."""
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


def draw_opts(draw: st.DrawFn, case: Case) -> list[Opt]:
    opts = apply_random(draw, optimized(case.sink, ()))
    note(f"opts = {opts}")
    return opts


@pytest.mark.parametrize("family", FAMILIES)
def test_any_opts_compute_the_same(family: str) -> None:
    @relaxed
    @given(st.data())
    def run(data: st.DataObject) -> None:
        case = data.draw(FAMILIES[family])
        opts = draw_opts(data.draw, case)
        want = expected(case.sink, case.inputs)
        check(case, run_graph(case.sink, case.inputs, opts), want, "kernel graph")
        for threads in (1, 2, 3) if any(o.op.name == "THREAD" for o in opts) else (1,):
            check(case, run_on("PYTHON", case.sink, case.inputs, opts, threads), want, f"PYTHON, {threads} threads")
            check(case, run_on("CPU", case.sink, case.inputs, opts, threads), want, f"LLVM, {threads} threads")

    run()


@pytest.mark.parametrize("family", FAMILIES)
def test_the_heuristics_compute_the_same(family: str) -> None:
    @settings(relaxed, max_examples=15)
    @given(st.data())
    def run(data: st.DataObject) -> None:
        case = data.draw(FAMILIES[family])
        want = expected(case.sink, case.inputs)
        for device in ("PYTHON", "PYTHON:T3:V64", "CPU"):
            check(case, run_on(device, case.sink, case.inputs, None, 3), want, device)

    run()


@pytest.mark.skipif(not HAS_C, reason="no C compiler")
@pytest.mark.parametrize("family", FAMILIES)
def test_any_opts_compute_the_same_in_c(family: str) -> None:
    @settings(relaxed, max_examples=5)
    @given(st.data())
    def run(data: st.DataObject) -> None:
        case = data.draw(FAMILIES[family])
        opts = draw_opts(data.draw, case)
        got = run_on("CPU:C", case.sink, case.inputs, opts, 2)
        check(case, got, expected(case.sink, case.inputs), "C")

    run()
