"""CUDA sources compile with NVRTC on a machine without a GPU."""
from __future__ import annotations

import numpy as np
import pytest

from tests.backend.gpus import needs_nvrtc
from tests.codegen.test_matrix import axes, product, tensor_core
from tests.codegen.test_opts import LARGE
from tinsmith.backend.cuda import nvrtc
from tinsmith.backend.device import Device
from tinsmith.codegen.opt import Opt, OptOps
from tinsmith.codegen.program import compile_kernel
from tinsmith.codegen.render.cuda import CUDARenderer, cuda_target
from tinsmith.core.dtypes import DType, dtypes
from tinsmith.core.errors import CompileError, DeviceError
from tinsmith.ir import Ops, UOp
from tinsmith.tensor.tensor import Tensor


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("name", LARGE)
def test_kernels_compile(name: str, arch: str) -> None:
    needs_nvrtc()
    kernel = compile_kernel(UOp(Ops.SINK, None, (LARGE[name],)), CUDARenderer(cuda_target(arch)))
    assert nvrtc.NVRTCCompiler(arch).compile(kernel.source)[:4] == b"\x7fELF"
    text = nvrtc.NVRTCCompiler(arch, binary=False).compile(kernel.source).decode()
    assert f".entry {kernel.symbol}" in text and f".target {arch}" in text


@pytest.mark.parametrize("dtype", [*dtypes.all], ids=str)
def test_casts_of_every_type_compile(dtype: DType) -> None:
    needs_nvrtc()
    x = UOp(Ops.PARAM, dtype, (), (1, (64,)))
    outputs = tuple(x.cast(new) for new in dtypes.all if new is not dtype)
    inputs = UOp(Ops.SINK, None, tuple(
        o.substitute({x: UOp(Ops.PARAM, dtype, (), (len(outputs), (64,)))}) for o in outputs))
    kernel = compile_kernel(inputs, CUDARenderer())
    assert nvrtc.NVRTCCompiler(binary=False).compile(kernel.source)


@pytest.mark.parametrize("unit, dtype", [("mma_f16", dtypes.float16), ("mma_bf16", dtypes.bfloat16),
                                         ("mma_tf32", dtypes.float32)])
def test_matrix_units_compile(unit: str, dtype: DType) -> None:
    needs_nvrtc()
    sink, _ = product(40, 33, 24, dtype, dtypes.float32, epilogue=dtype.itemsize == 2)
    kernel = compile_kernel(sink, CUDARenderer(), [tensor_core(axes(sink), 2, 2, unit=unit)])
    assert "mma.sync" in nvrtc.NVRTCCompiler(binary=False).compile(kernel.source).decode()


def test_threads_and_barriers_compile() -> None:
    needs_nvrtc()
    x = UOp(Ops.PARAM, dtypes.float32, (), (1, (30, 50)))
    kernel = compile_kernel(UOp(Ops.SINK, None, (x.reduce("MAX", (1,)),)), CUDARenderer(),
                            [Opt(OptOps.LOCAL, 0, 4), Opt(OptOps.GROUP, 2, 8)])
    text = nvrtc.NVRTCCompiler(binary=False).compile(kernel.source).decode()
    assert "bar.sync" in text and ".shared" in text


def test_refused_source_is_an_error_with_the_log() -> None:
    needs_nvrtc()
    with pytest.raises(CompileError, match="nonsense"):
        nvrtc.NVRTCCompiler().compile('extern "C" __global__ void f() { nonsense; }')


def test_the_device_says_why_it_does_not_open() -> None:
    with pytest.raises(DeviceError, match="CUDA"):
        Device["CUDA"]
    with pytest.raises(DeviceError, match="METAL"):
        Device["METAL"]


def test_a_product_of_halves_uses_a_unit_where_there_is_one() -> None:
    """The tutorials' 256 × 256 product, with fragments emulated per lane, to the accuracy of float32 sums."""
    random = np.random.default_rng(0)
    a, b = (random.normal(size=(256, 256)).astype(np.float16) for _ in range(2))
    product = Tensor(a, device="PYTHON:G256").matmul(Tensor(b, device="PYTHON:G256"), dtype=dtypes.float32)
    assert "TC(" in str(product.explain(run=False))
    want = a.astype(np.float64) @ b.astype(np.float64)
    np.testing.assert_allclose(product.numpy(), want, atol=2e-4)
