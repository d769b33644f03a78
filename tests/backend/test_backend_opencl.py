"""OpenCL on any available platform (PoCL in the tests' own environment)."""
from __future__ import annotations

import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.backend.opencl import needs_opencl
from tests.backend.running import param, run_case, run_value
from tests.codegen.kernels import FAMILIES
from tests.codegen.running import expected
from tests.codegen.test_opts import check, draw_opts
from tinsmith import conformance
from tinsmith.backend.device import Device
from tinsmith.backend.memory import Buffer
from tinsmith.codegen.compile_kernel import compile_kernel
from tinsmith.codegen.opt import Opt, OptOps
from tinsmith.core.counters import GlobalCounters
from tinsmith.core.dtypes import dtypes
from tinsmith.core.errors import CompileError, DeviceError, OutOfMemoryError
from tinsmith.core.settings import Context
from tinsmith.ir import Ops, UOp
from tinsmith.tensor.tensor import Tensor

GROUPS = {"reduce": conformance.reduce_cases, "movement": conformance.movement_cases,
          "index": conformance.index_cases, "program": conformance.program_cases}


@pytest.mark.parametrize("group", GROUPS)
def test_conformance(group: str) -> None:
    """Every third case; ``python -m tinsmith conformance OPENCL`` runs all of them."""
    needs_opencl()
    results = [conformance.run_case("OPENCL", case) for case in list(GROUPS[group]())[::3]]
    assert [r for r in results if not r.ok] == []


@pytest.mark.parametrize("op", ["EXP float32", "LOG2 float16", "IDIV int32", "MOD int64", "SHR uint8",
                                "CAST float16 to float64", "CAST float64 to float16", "CAST bfloat16 to int8",
                                "CAST float32 to uint64", "MAX bfloat16", "WHERE bool"])
def test_ops_conform(op: str) -> None:
    needs_opencl()
    cases = [c for c in conformance.op_cases(Device["OPENCL"].renderer.target.storage) if c.name == op]
    assert len(cases) == 1
    assert conformance.run_case("OPENCL", cases[0]).message == ""


@pytest.mark.parametrize("opts", [
    [], [Opt(OptOps.LOCAL, 0, 2)], [Opt(OptOps.GROUP, 1, 8)], [Opt(OptOps.GROUPTOP, 1, 4)], [Opt(OptOps.NOLOCALS)],
    [Opt(OptOps.LOCAL, 0, 3), Opt(OptOps.GROUP, 2, 5), Opt(OptOps.UNROLL, 2, 2)], None], ids=str)
def test_threads_share_a_reduction(opts: list[Opt] | None) -> None:
    needs_opencl()
    x = np.random.default_rng(0).integers(-9, 9, (7, 48)).astype(np.float32)
    got, source = run_value("OPENCL", param(1, 7, 48).reduce("ADD", (1,)), opts, x)
    np.testing.assert_array_equal(got, x.sum(1, keepdims=True))
    shared = any(o.op in (OptOps.GROUP, OptOps.GROUPTOP) for o in opts or [])
    assert (("barrier(CLK_LOCAL_MEM_FENCE)" in source) and ("__local" in source)) >= shared
    assert ("get_local_id" in source) >= any(o.op is OptOps.LOCAL for o in opts or [])


def test_a_matmul_goes_through_local_memory() -> None:
    needs_opencl()
    random = np.random.default_rng(1)
    a, b = (random.integers(-3, 4, s).astype(np.float32) for s in ((64, 32), (32, 64)))
    left = param(1, 64, 1, 32).expand((64, 64, 32))
    right = param(2, 32, 64).permute((1, 0)).reshape((1, 64, 32)).expand((64, 64, 32))
    got, source = run_value("OPENCL", (left * right).reduce("ADD", (2,)), None, a, b)
    np.testing.assert_array_equal(got.reshape(64, 64), a @ b)
    assert source.count("__local") == 2 and "vload4" in source and "reqd_work_group_size(8, 16, 1)" in source


def test_a_program_trains() -> None:
    """A step of gradient descent gives what the CPU gives."""
    needs_opencl()

    def step(device: str) -> np.ndarray:
        x = Tensor(np.arange(32, dtype=np.float32).reshape(8, 4) / 32, device=device)
        w = Tensor(np.ones((4, 3), np.float32), device=device, requires_grad=True)
        (x @ w).relu().log_softmax().square().mean().backward()
        assert w.grad is not None
        return (w - w.grad * 0.1).numpy()

    np.testing.assert_allclose(step("OPENCL"), step("CPU"), rtol=1e-5)


def test_parts_of_a_buffer_may_start_anywhere() -> None:
    needs_opencl()
    base = Buffer("OPENCL", 400, dtypes.float32).copyin(memoryview(np.arange(400, dtype=np.float32)))
    opened = Device["OPENCL"]
    kernel = compile_kernel(UOp(Ops.SINK, None, (param(1, 5) + 1,)), opened.renderer)
    (program,) = opened.load([(kernel, opened.compiler.compile(kernel.source))])
    for target, source in ((303, 17), (320, 1), (99, 256)):
        program([base.view(5, dtypes.float32, target * 4), base.view(5, dtypes.float32, source * 4)], [])
        np.testing.assert_array_equal(base.numpy()[target : target + 5], np.arange(source, source + 5) + 1)


def test_kernels_are_timed_by_the_device(capsys: pytest.CaptureFixture[str]) -> None:
    needs_opencl()
    with Context(DEBUG=2):
        Tensor([1.0, 2.0], device="OPENCL").sum().realize()
    assert "*** OPENCL" in capsys.readouterr().out


def test_what_was_compiled_is_not_compiled_again() -> None:
    needs_opencl()
    source = compile_kernel(UOp(Ops.SINK, None, (param(1, 9) * 5,)), Device["OPENCL"].renderer).source
    first = Device["OPENCL"].compiler.compile(source)
    before = GlobalCounters.compile_count
    assert Device["OPENCL"].compiler.compile(source) == first
    assert GlobalCounters.compile_count == before


def test_refused_source_is_an_error_with_the_log() -> None:
    needs_opencl()
    with pytest.raises(CompileError, match="nonsense"):
        Device["OPENCL"].compiler.compile("__kernel void f() { nonsense; }")


def test_too_much_memory() -> None:
    needs_opencl()
    with pytest.raises(OutOfMemoryError, match="bytes requested"):
        Buffer("OPENCL", 1 << 50, dtypes.float32).allocate()


def test_there_are_only_so_many_devices() -> None:
    needs_opencl()
    with pytest.raises(DeviceError, match="OPENCL:99"):
        Device["OPENCL:99"]


def test_without_pyopencl_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyopencl", None)
    with pytest.raises(DeviceError, match=r"tinsmith\[opencl\]"):
        Device["OPENCL:77"]


@pytest.mark.parametrize("family", FAMILIES)
def test_any_opts_compute_the_same(family: str) -> None:
    needs_opencl()

    @settings(max_examples=2, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def run(data: st.DataObject) -> None:
        case = data.draw(FAMILIES[family])
        opts = draw_opts(data.draw, case, "OPENCL", blocks=True)
        want = expected(case.sink, case.inputs)
        check(case, run_case("OPENCL", case, opts), want, "OPENCL")
        check(case, run_case("OPENCL", case, None), want, "OPENCL, the default opts")

    run()
