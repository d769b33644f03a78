"""Contractions with operand tiles in block-local memory: layouts, depths, edges, the default choice, CUDA text."""
from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.backend.gpus import needs_nvrtc
from tests.codegen.running import computes_the_same, expected, linearize_on, run_on
from tests.codegen.structures import Inputs, convolution, weight_gradient
from tests.codegen.test_matrix import close, product
from tinsmith import Context, Tensor
from tinsmith.backend.cuda.driver import NVRTCCompiler
from tinsmith.backend.device import Device
from tinsmith.codegen.compile_kernel import _compile, compile_kernel
from tinsmith.codegen.emit.linearize import linearize
from tinsmith.codegen.kernel import Kernel
from tinsmith.codegen.opt import Opt, OptOps
from tinsmith.codegen.planner.gpu import products
from tinsmith.codegen.render.cuda import CUDARenderer, cuda_target
from tinsmith.core.dtypes import DType, dtypes
from tinsmith.core.errors import ArgumentError
from tinsmith.ir import Ops, UOp
from tinsmith.ir.structure import Role

DEVICE = "PYTHON:G256:C4"
F32, F16, BF16 = dtypes.float32, dtypes.float16, dtypes.bfloat16


def staged(kernel: Kernel, layout: str, depth: int, lanes: int) -> list[Opt]:
    """Return the opts, with the loads of both operands staged as tiles."""
    for number in (1, 2):
        at, load = next((i, n) for i, n in enumerate(kernel.loads) if n.src[0].arg[0] == number)
        kept = tuple(i for i, r in enumerate(kernel.ranges) if r in load.ranges and (
            r.arg[1] is Role.GLOBAL or r is kernel.reduces[0]))
        kernel.apply(Opt(OptOps.STAGE, at, kept, lanes, layout=layout, depth=depth))
    return kernel.opts


THREADS = [Opt(OptOps.UPCAST, 0, 2), Opt(OptOps.LOCAL, 0, 4), Opt(OptOps.VECTOR, 2, 4), Opt(OptOps.LOCAL, 2, 2),
           Opt(OptOps.TILE, 4, 4)]
WARPS = [Opt(OptOps.TC, 2, (0, 1, 1, 2), unit="mma_f16"), Opt(OptOps.LOCAL, 0, 2), Opt(OptOps.UNROLL, 2, 2)]


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("layout", ["deep", "flat"])
def test_any_layout_of_any_depth_computes_the_same(layout: str, depth: int) -> None:
    for opts, dtype, shape in ((THREADS, F32, (16, 24, 24)), (WARPS, F16, (32, 96, 32))):
        for transposed, lanes in (("", 4), ("ab", 8), ("b", 0)):
            sink, inputs = product(*shape, dtype, F32, transposed)
            kernel = linearize_on(DEVICE, sink, opts)
            chosen = staged(kernel, layout, depth, lanes)
            program = computes_the_same(DEVICE, sink, inputs, chosen, close)
            near = math.prod(next(u for u in program.uops if u.op is Ops.DEFINE_LOCAL).arg[1:])
            assert near % depth == 0


@settings(max_examples=14, deadline=None)
@given(st.sampled_from([F32, F16, BF16]), st.sampled_from([1, 16, 17, 31, 32, 67]), st.sampled_from([1, 16, 31, 50]),
       st.sampled_from([1, 8, 16, 31, 33, 64]), st.sampled_from(["", "a", "b", "ab"]), st.sampled_from([1, 3]),
       st.booleans())
def test_edges_of_any_layout(dtype: DType, m: int, k: int, n: int, transposed: str, batch: int, epilogue: bool) -> None:
    sink, inputs = product(m, k, n, dtype, F32, transposed, epilogue, batch)
    got = run_on(DEVICE, sink, inputs, None)[0]
    close(got, expected(sink, inputs)[0])
    np.testing.assert_array_equal(got, run_on(DEVICE, sink, inputs, None)[0])


def has(sink: UOp, *ops: object) -> bool:
    uops = compile_kernel(sink, Device[DEVICE].renderer).uops
    return all(any(u.op is op for u in uops) for op in ops) and any(u.op is Ops.BARRIER and u.src for u in uops)


def test_it_is_the_default_of_products_and_convolutions() -> None:
    assert has(product(40, 50, 70, F32)[0]) and has(product(40, 50, 70, F16)[0], Ops.MMA, Ops.LOAD_MATRIX)
    for numbers in ((2, 1, 4, 17, 11, 3, 1, 1, 1), (1, 2, 3, 16, 9, 3, 2, 0, 1), (2, 1, 1, 16, 9, 5, 1, 0, 1)):
        inputs = Inputs()
        sink = UOp(Ops.SINK, None, (convolution(inputs, *numbers),))
        assert has(sink)
        close(run_on(DEVICE, sink, inputs.values, None)[0], expected(sink, inputs.values)[0])
    inputs = Inputs()
    sink = UOp(Ops.SINK, None, (weight_gradient(inputs, 2, 2, 17, 9, 3),))
    assert has(sink)
    close(run_on(DEVICE, sink, inputs.values, None)[0], expected(sink, inputs.values)[0])


def test_float32_is_rounded_where_the_user_allows_it() -> None:
    sink, inputs = product(32, 64, 48, F32)
    exact = run_on(DEVICE, sink, inputs, None)[0]
    with Context(ALLOW_TF32=1):
        assert has(sink, Ops.MMA)
        rounded = run_on(DEVICE, sink, inputs, None)[0]
    assert 1e-5 < np.abs(rounded - exact).max() < 2e-2
    assert not any(u.op is Ops.MMA for u in compile_kernel(sink, Device[DEVICE].renderer).uops)


@pytest.mark.parametrize("dtype", [F32, F16, BF16])
@pytest.mark.parametrize("unit", [F16, BF16])
def test_a_computed_operand_is_staged_as_the_unit_reads_it(dtype: DType, unit: DType) -> None:
    """Its tiles have the size that the planner assumed, and each element is computed once."""
    m, k, n = 64, 96, 64
    x, y = (UOp(Ops.PARAM, dtype, (), (number, shape)) for number, shape in ((1, (m, k)), (2, (k, n))))
    zero = UOp.const(dtype, 0).reshape((1, 1)).expand((m, k))
    a = x.alu(Ops.MAX, zero).cast(unit).cast(F32).reshape((m, 1, k)).expand((m, n, k))
    b = y.permute((1, 0)).cast(unit).cast(F32).reshape((1, n, k)).expand((m, n, k))
    sink = UOp(Ops.SINK, None, ((a * b).reduce("ADD", (2,)).reshape((m, n)),))
    program = compile_kernel(sink, Device[DEVICE].renderer)
    tiles = [u.dtype.scalar for u in program.uops if u.op is Ops.DEFINE_LOCAL]
    assert tiles and set(tiles) == {unit} and program.plan is not None and not program.plan.mistakes
    random = np.random.default_rng(3)
    inputs = {p: random.normal(size=p.arg[1]).astype(dtype.numpy) for p in (x, y)}
    close(run_on(DEVICE, sink, inputs, None)[0], run_on(DEVICE, sink, inputs, [])[0])


@pytest.mark.parametrize("dtype", [F32, F16])
def test_a_sum_of_one_step_of_a_unit_has_tiles_too(dtype: DType) -> None:
    for k in (3, 8, 16):
        sink, inputs = product(64, k, 64, dtype, F32)
        close(run_on(DEVICE, sink, inputs, None)[0], expected(sink, inputs)[0])


def test_a_plan_that_does_not_fit_gives_way_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    sink, _ = product(2048, 2048, 2048, F32)
    renderer = CUDARenderer(cuda_target("sm_80", 108))
    monkeypatch.setattr(products, "widths", lambda factors: products.Widths((4, 4), (0, 0)))
    renderer.target = replace(renderer.target, local_bytes=12 << 10)
    with Context(CHECK_IR=0):
        program = _compile(sink, renderer, None)
    assert program.plan is not None and program.local_bytes <= 12 << 10
    assert any("a block has 12288" in m for m in program.plan.mistakes)
    with Context(CHECK_IR=1), pytest.raises(ArgumentError, match="a block has 12288"):
        _compile(sink, renderer, None)


def test_a_product_of_padded_steps_has_no_choice_in_its_loop() -> None:
    """Both factors are 0 in the padding, so the loop needs no select."""
    sink, _ = product(32, 50, 32, F32)
    program = linearize(compile_kernel(sink, Device[DEVICE].renderer).kernel)
    assert not any(u.op is Ops.WHERE and u.dtype.is_float for u in program)


def test_what_cannot_be_staged_so_is_refused() -> None:
    def refused(kernel: Kernel, opt: Opt, why: str) -> None:
        before = kernel.sink, list(kernel.order)
        with pytest.raises(ArgumentError, match=why):
            kernel.apply(opt)
        assert (kernel.sink, kernel.order) == before

    sink, _ = product(16, 16, 16, F32)
    kernel = linearize_on(DEVICE, sink, THREADS)
    refused(kernel, Opt(OptOps.STAGE, 0, (), layout="deep", depth=2), "needs a kept reduction loop")
    refused(kernel, Opt(OptOps.STAGE, 0, (), layout="swizzled", depth=2), "deep or flat")
    refused(kernel, Opt(OptOps.STAGE, 0, (4,), depth=2), "deep or flat")
    kernel.apply(Opt(OptOps.STAGE, 0, (), layout="deep"))
    refused(kernel, Opt(OptOps.STAGE, 0, (), layout="deep"), "needs a loaded value, not staged yet")
    refused(linearize_on("CPU", sink), Opt(OptOps.STAGE, 0, (), layout="deep"), "thread blocks")


# *** CUDA ***


@pytest.mark.parametrize("arch", ["sm_80", "sm_89", "sm_90a"])
def test_the_assembler_keeps_tiles_in_registers(arch: str) -> None:
    needs_nvrtc()
    compiler = NVRTCCompiler(arch)
    renderer = CUDARenderer(cuda_target(arch))
    for dtype, size, needed in ((F32, 512, "float4"), (F16, 513, "ldmatrix")):
        source = _compile(product(size, 520, size, dtype)[0], renderer, None).source
        _, log = compiler._compiled(source)
        assert needed in source and " 0 bytes spill stores" in log, log


def test_groups_of_threads_share_the_sums_of_few_results() -> None:
    """64 rows of float32 had two warps per multiprocessor, each with all 512 steps."""
    found = set[int]()

    @settings(max_examples=25, deadline=None)
    @given(m=st.integers(16, 70), k=st.integers(16, 300), n=st.integers(16, 70), turned=st.booleans())
    def check(m: int, k: int, n: int, turned: bool) -> None:
        rng = np.random.default_rng(m * k + n)
        a, b = (rng.integers(-4, 5, shape).astype(np.float32) for shape in ((m, k), (n, k) if turned else (k, n)))
        x, y = (Tensor(t, device="PYTHON:G256:C64").realize() for t in (a, b))
        product = x @ (y.T if turned else y)
        found.update(int(o.amt) for kernel in product.explain(run=False).kernels for o in kernel.opts
                     if o.op is OptOps.GROUP and any(s.op is OptOps.STAGE for s in kernel.opts))
        np.testing.assert_array_equal(product.numpy(), a @ (b.T if turned else b))

    with Context(DYNAMIC=0):
        check()
    assert found, "no sum is shared"
