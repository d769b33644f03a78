"""CUDA sources compile with NVRTC on a machine without a GPU."""
from __future__ import annotations

import numpy as np
import pytest

from tests.backend.gpus import missing_cuda, needs_nvrtc
from tests.codegen.test_matrix import axes, product, tensor_core
from tests.codegen.test_opts import LARGE
from tinsmith.backend.cuda import nvrtc
from tinsmith.backend.device import Device
from tinsmith.codegen.opt import Opt, OptOps
from tinsmith.codegen.program import compile_kernel
from tinsmith.codegen.render.cuda import CUDARenderer, cuda_target
from tinsmith.core.dtypes import DType, dtypes
from tinsmith.core.errors import CompileError, DeviceError
from tinsmith.core.settings import Context
from tinsmith.ir import Ops, UOp
from tinsmith.schedule.split import split_reductions
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
                            [Opt(OptOps.LOCAL, 0, 4), Opt(OptOps.GROUP, 2, 50)])
    text = nvrtc.NVRTCCompiler(binary=False).compile(kernel.source).decode()
    assert "bar.sync" in text and ".shared" in text


def test_refused_source_is_an_error_with_the_log() -> None:
    needs_nvrtc()
    with pytest.raises(CompileError, match="nonsense"):
        nvrtc.NVRTCCompiler().compile('extern "C" __global__ void f() { nonsense; }')


def test_the_device_says_why_it_does_not_open() -> None:
    if not missing_cuda():
        pytest.skip("there is a GPU, and the device opens")
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


def test_what_is_cast_to_16_bits_is_stored_so() -> None:
    """The tutorials' example as typed: nothing is realized before the product."""
    with Context(DEV="PYTHON:G256"):
        a = Tensor.rand(256, 256).cast(dtypes.float16)
        b = Tensor.rand(256, 256).cast(dtypes.float16)
        product = a.matmul(b)
    text = str(product.explain(run=False))
    assert "TC(" in text and "temporaries 262.1 KB" in text


def test_architectures_are_ordered_by_number() -> None:
    assert [len(cuda_target(arch).units) for arch in ("sm_75", "sm_80", "sm_90", "sm_100", "sm_120")] == [0, 3, 3, 3, 3]
    assert any(u.staged for u in cuda_target("sm_90a").units) and not cuda_target("sm_100a").bulk_copy


def test_places_beyond_32_bits_are_computed_in_64() -> None:
    """50,000² elements: only what may lie so far is wide."""
    needs_nvrtc()
    x = UOp(Ops.PARAM, dtypes.float32, (), (1, (50_000, 50_000)))
    source = compile_kernel(UOp(Ops.SINK, None, (x.permute((1, 0)) + 1,)), CUDARenderer()).source
    assert "(long long)" in source and "int gidx0" in source
    assert nvrtc.NVRTCCompiler().compile(source)
    small = UOp(Ops.PARAM, dtypes.float32, (), (1, (40_000, 50_000)))
    assert "long long" not in compile_kernel(UOp(Ops.SINK, None, (small.permute((1, 0)) + 1,)), CUDARenderer()).source


@pytest.mark.parametrize("rows, columns", [(64, 1024), (3, 4096), (16384, 4096), (8, 50_304), (1000, 96), (5, 1030)])
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.bfloat16], ids=str)
def test_the_threads_of_a_block_share_rows(rows: int, columns: int, dtype: DType) -> None:
    """Every opt that the model chooses is legal: a refused one raises here. Rows go through shuffles."""
    needs_nvrtc()
    x = UOp(Ops.PARAM, dtype, (), (1, (rows, columns))).cast(dtypes.float32)
    e = (x - x.reduce("MAX", (1,)).expand((rows, columns))).alu(Ops.EXP)
    value = (e / e.reduce("ADD", (1,)).expand((rows, columns))).cast(dtype)
    with Context(CHECK_IR=1):
        kernel = compile_kernel(UOp(Ops.SINK, None, (value,)), CUDARenderer())
    threads = int(np.prod(kernel.block))
    assert 32 <= threads <= 1024 and "__shfl_xor_sync" in kernel.source
    assert nvrtc.NVRTCCompiler().compile(kernel.source)


def test_long_sums_are_cut_for_the_multiprocessors() -> None:
    """64 × 65536 × 64: a block for each of 132 multiprocessors, and as many pieces as ever on the CPU."""
    m = n = 64
    x = UOp(Ops.PARAM, dtypes.float32, (), (1, (m, 1, 65536))).expand((m, n, 65536))
    y = UOp(Ops.PARAM, dtypes.float32, (), (2, (1, n, 65536))).expand((m, n, 65536))
    pieces = {name: split_reductions([(x * y).reduce("ADD", (2,))], target)[0].base.src[0].shape[0]
              for name, target in (("gpu", cuda_target()), ("cpu", Device["CPU"].target))}
    assert pieces == {"gpu": 128, "cpu": 32}


def test_threads_that_reduce_and_those_that_write_fit_into_one_block() -> None:
    """64 of the one kind and 35 of the other cannot be the same threads."""
    x = UOp(Ops.PARAM, dtypes.float16, (), (1, (35, 2048))).cast(dtypes.float32)
    total = x.reduce("ADD", (0, 1)).expand((35, 1))
    with Context(CHECK_IR=1):
        kernel = compile_kernel(UOp(Ops.SINK, None, (x.reduce("MAX", (1,)) + total,)), CUDARenderer())
    assert int(np.prod(kernel.block)) <= 1024
