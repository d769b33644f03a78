"""Metal source compiled as C++: it is well-formed and computes the programs' values."""
from __future__ import annotations

import numpy as np
import pytest

from tests.backend.running import param, run_value
from tests.codegen.metalcpu import NAME, needs_cpp
from tests.codegen.test_matrix import axes, product, tensor_core
from tinsmith import conformance
from tinsmith.backend.device import Device
from tinsmith.backend.memory import Buffer
from tinsmith.codegen.compile_kernel import compile_kernel
from tinsmith.codegen.opt import Opt, OptOps
from tinsmith.codegen.render.metal import MetalRenderer
from tinsmith.core.dtypes import DType, dtypes

CASES = {"op": lambda: conformance.op_cases(MetalRenderer().target.storage), "reduce": conformance.reduce_cases,
         "movement": conformance.movement_cases, "index": conformance.index_cases, "program": conformance.program_cases}
EVERY = {"op": 61, "reduce": 17, "movement": 7, "index": 3, "program": 3}


@pytest.mark.parametrize("group", CASES)
def test_conformance(group: str) -> None:
    needs_cpp()
    results = [conformance.run_case(NAME, case) for case in list(CASES[group]())[:: EVERY[group]]]
    assert [r for r in results if not r.ok and "double" not in r.message] == []


@pytest.mark.parametrize("opts", [[Opt(OptOps.GROUP, 1, 8)], [Opt(OptOps.LOCAL, 0, 3), Opt(OptOps.GROUP, 2, 5)],
                                  [Opt(OptOps.VECTOR, 0, 4)]], ids=str)
def test_threads_threadgroup_memory_and_vectors(opts: list[Opt]) -> None:
    needs_cpp()
    x = np.random.default_rng(0).integers(-9, 9, (12, 40)).astype(np.float32)
    value = param(1, 12, 40).reduce("ADD", (1,)) if opts[0].op is not OptOps.VECTOR else param(1, 12, 40) * 2 + 1
    got, source = run_value(NAME, value, opts, x)
    np.testing.assert_array_equal(got, x.sum(1, keepdims=True) if opts[0].op is not OptOps.VECTOR else x * 2 + 1)
    assert ("threadgroup_barrier" in source) == (opts[0].op is not OptOps.VECTOR)
    assert ("float4" in source) == (opts[0].op is OptOps.VECTOR)


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float16], ids=str)
def test_simdgroups_multiply(dtype: DType) -> None:
    """The default opts of a product: ``simdgroup_multiply_accumulate`` by 32 threads, each with two elements."""
    needs_cpp()
    sink, inputs = product(24, 16, 32, dtype, dtypes.float32)
    for opts in (None, [tensor_core(axes(sink), 1, 2, unit=f"simdgroup_f{8 * dtype.itemsize}")]):
        kernel = compile_kernel(sink, Device[NAME].renderer, opts)
        kind = "half" if dtype is dtypes.float16 else "float"
        assert f"simdgroup_{kind}8x8 a;" in kernel.source
        assert "simdgroup_multiply_accumulate(c, a, b, c);" in kernel.source
        assert kernel.block == ([32] if opts else [32, 2])  # the default: two tiles, a simdgroup each
        out = Buffer(NAME, 24 * 32, dtypes.float32)
        given = [Buffer(NAME, v.size, dtype).copyin(memoryview(np.ascontiguousarray(v).reshape(-1).view(np.uint8)))
                 for v in inputs.values()]
        (program,) = Device[NAME].load([(kernel, kernel.source.encode())])
        program([out, *given], [])
        a, b = (np.asarray(v, np.float64).reshape(v.shape[-2:]) for v in inputs.values())
        np.testing.assert_allclose(out.numpy().reshape(24, 32), a @ b, rtol=1e-5, atol=1e-5)
