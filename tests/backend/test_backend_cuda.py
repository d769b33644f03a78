"""CUDA sources compile with NVRTC on a machine without a GPU."""
from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from benchmarks.corpus.programs import CorpusProgram
from benchmarks.corpus.record import kernels
from tests.backend.gpus import missing_cuda, needs_nvrtc
from tests.codegen.test_matrix import axes, product, tensor_core
from tests.codegen.test_opts import LARGE
from tinsmith.backend.cuda import driver
from tinsmith.backend.device import Device
from tinsmith.codegen.compile_kernel import compile_kernel
from tinsmith.codegen.opt import Opt, OptOps
from tinsmith.codegen.render.cuda import CUDARenderer, cuda_target
from tinsmith.core.dtypes import DType, dtypes
from tinsmith.core.errors import CompileError, DeviceError
from tinsmith.core.settings import Context
from tinsmith.ir import Ops, UOp
from tinsmith.schedule.passes.split_reductions import split_reductions
from tinsmith.tensor.tensor import Tensor


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("name", LARGE)
def test_kernels_compile(name: str, arch: str) -> None:
    needs_nvrtc()
    kernel = compile_kernel(UOp(Ops.SINK, None, (LARGE[name],)), CUDARenderer(cuda_target(arch)))
    assert driver.NVRTCCompiler(arch).compile(kernel.source)[:4] == b"\x7fELF"
    text = driver.NVRTCCompiler(arch, binary=False).compile(kernel.source).decode()
    assert f".entry {kernel.symbol}" in text and f".target {arch}" in text


@pytest.mark.parametrize("dtype", [*dtypes.all], ids=str)
def test_casts_of_every_type_compile(dtype: DType) -> None:
    needs_nvrtc()
    x = UOp(Ops.PARAM, dtype, (), (1, (64,)))
    outputs = tuple(x.cast(new) for new in dtypes.all if new is not dtype)
    inputs = UOp(Ops.SINK, None, tuple(
        o.substitute({x: UOp(Ops.PARAM, dtype, (), (len(outputs), (64,)))}) for o in outputs))
    kernel = compile_kernel(inputs, CUDARenderer())
    assert driver.NVRTCCompiler(binary=False).compile(kernel.source)


@pytest.mark.parametrize("unit, dtype", [("mma_f16", dtypes.float16), ("mma_bf16", dtypes.bfloat16),
                                         ("mma_tf32", dtypes.float32)])
def test_matrix_units_compile(unit: str, dtype: DType) -> None:
    needs_nvrtc()
    sink, _ = product(40, 33, 24, dtype, dtypes.float32, epilogue=dtype.itemsize == 2)
    kernel = compile_kernel(sink, CUDARenderer(), [tensor_core(axes(sink), 2, 2, unit=unit)])
    assert "mma.sync" in driver.NVRTCCompiler(binary=False).compile(kernel.source).decode()


def test_threads_and_barriers_compile() -> None:
    needs_nvrtc()
    x = UOp(Ops.PARAM, dtypes.float32, (), (1, (30, 50)))
    kernel = compile_kernel(UOp(Ops.SINK, None, (x.reduce("MAX", (1,)),)), CUDARenderer(),
                            [Opt(OptOps.LOCAL, 0, 4), Opt(OptOps.GROUP, 2, 50)])
    text = driver.NVRTCCompiler(binary=False).compile(kernel.source).decode()
    assert "bar.sync" in text and ".shared" in text


def test_refused_source_is_an_error_with_the_log() -> None:
    needs_nvrtc()
    with pytest.raises(CompileError, match="nonsense"):
        driver.NVRTCCompiler().compile('extern "C" __global__ void f() { nonsense; }')


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
    """50,000² elements: only indices that may exceed 32 bits have 64 bits."""
    needs_nvrtc()
    x = UOp(Ops.PARAM, dtypes.float32, (), (1, (50_000, 50_000)))
    source = compile_kernel(UOp(Ops.SINK, None, (x.permute((1, 0)) + 1,)), CUDARenderer()).source
    assert "(long long)" in source and "int gidx0" in source
    assert driver.NVRTCCompiler().compile(source)
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
    assert driver.NVRTCCompiler().compile(kernel.source)


def test_long_sums_are_cut_for_the_multiprocessors() -> None:
    """64 × 65536 × 64: split-K gives each of 132 multiprocessors a block; the CPU's number of parts is unchanged."""
    m = n = 64
    x = UOp(Ops.PARAM, dtypes.float32, (), (1, (m, 1, 65536))).expand((m, n, 65536))
    y = UOp(Ops.PARAM, dtypes.float32, (), (2, (1, n, 65536))).expand((m, n, 65536))
    pieces = {name: split_reductions([(x * y).reduce("ADD", (2,))], target)[0].base.src[0].shape[0]
              for name, target in (("gpu", cuda_target()), ("cpu", Device["CPU"].target))}
    assert pieces == {"gpu": 128, "cpu": 32}


def test_threads_that_reduce_and_those_that_write_fit_into_one_block() -> None:
    """64 reducing and 35 writing threads cannot be the same threads."""
    x = UOp(Ops.PARAM, dtypes.float16, (), (1, (35, 2048))).cast(dtypes.float32)
    total = x.reduce("ADD", (0, 1)).expand((35, 1))
    with Context(CHECK_IR=1):
        kernel = compile_kernel(UOp(Ops.SINK, None, (x.reduce("MAX", (1,)) + total,)), CUDARenderer())
    assert int(np.prod(kernel.block)) <= 1024


# *** extremes of negated integers: some assemblers lose the sign ***

_EXTREME = re.compile(r"(?:max|min)\.[su](?:16|32)\s+%\w+, (%\w+), (%\w+);")
_CHANGES_SIGN = re.compile(r"(?:neg|sub|mul\.lo|mad\.lo)\.\w+\s+(%\w+),")
_KEEPS = re.compile(r"(?:mov|cvt)[.\w]*\s+(%\w+), (%\w+);")


def integer_kernels(dtype: DType) -> list[str]:
    """Return sources of MIN and MAX of negations, differences and products, also as loop accumulators."""
    def build() -> Callable[[], None]:
        x, y = (Tensor.empty(512, 64, dtype=dtype) for _ in range(2))
        steps = Tensor.arange(64, dtype=dtype)
        outputs = [x.maximum(y.abs()), x.abs().max(1), x.abs().cummax(1)[0], x.minimum(y.minimum(-x)),
                   x.maximum(y.maximum(0 - x)), x.maximum(y.maximum(y - x)), (x < 0).where(-x, x).maximum(y).max(1),
                   (steps - x).max(1), x.maximum((x * y).minimum(steps * y))]
        return lambda: Tensor.realize(*outputs)

    return [k.source for k in kernels(CorpusProgram(f"extremes of {dtype.name}", build), "sm_90a")]


@pytest.mark.parametrize("dtype", [dtypes.int8, dtypes.int16, dtypes.int32, dtypes.uint16, dtypes.uint32], ids=str)
def test_no_sign_changes_right_below_an_extreme(dtype: DType) -> None:
    """ptxas 12.6 to 13.2 read ``x`` for ``-x`` in ``max(w, max(u, -x))``: see ``minus`` in render/cuda.py."""
    needs_nvrtc()
    compiler, seen = driver.NVRTCCompiler("sm_90a", binary=False), 0
    for source in integer_kernels(dtype):
        text = compiler.compile(source).decode()
        changed, renamed = set(_CHANGES_SIGN.findall(text)), dict(_KEEPS.findall(text))
        for pair in _EXTREME.findall(text):
            for operand in pair:
                while operand in renamed and operand not in changed:
                    operand = renamed[operand]
                assert operand not in changed, f"{operand} in\n{text}"
            seen += 1
    assert seen > 20


def test_the_assembler_keeps_the_sign_below_extremes(tmp_path: Path) -> None:
    """No VIMNMX3 instruction has the same operand twice, which would show a lost sign."""
    needs_nvrtc()
    if (tool := shutil.which("nvdisasm")) is None:
        pytest.skip("no nvdisasm to look at machine code with")
    for n, source in enumerate(integer_kernels(dtypes.int32)):
        path = tmp_path / f"{n}.cubin"
        path.write_bytes(driver.NVRTCCompiler("sm_90a").compile(source))
        text = subprocess.run([tool, "-c", str(path)], capture_output=True, text=True, check=True).stdout
        for line in re.findall(r"VIMNMX3[.\w]* (.*?);", text):
            operands = [o.strip().removesuffix(".reuse") for o in line.split(",")[1:4]]
            assert len(set(operands)) == 3, line


# *** negations introduced by the compiler: some assemblers misread their sign ***

_OPERATION = re.compile(r"\s*(?:@!?%\w+\s+)?([a-z]\w*(?:\.\w+)*)\s+([\[%][^,]*), (.*);")
_OF_ITS_OWN = re.compile(r"(?:neg|abs)\.s16|abs\.s(?:32|64)")
_KEEPS_SIGN = re.compile(r"(?:mov|selp|and|or|xor|not)\.|cvt\.u16\.[us]32|cvt\.u32\.u64")
_WIDENS = re.compile(r"cvt\.s32\.s16|cvt\.s64\.s(?:16|32)")
_READS = re.compile(r"(?:setp|set|shr|div|rem|min|max|mul\.wide|cvt(?:\.r.)?\.f\d\d)\.")


def signed_outputs(dtype: DType) -> list[Tensor]:
    """Return values that a compiler may compute by negation or abs, each with a use that reads its sign or extends
    it."""
    x, y = (Tensor.empty(96, dtype=dtype) for _ in range(2))
    low, all_ones = -(1 << (dtype.bits - 1)), x >> (dtype.bits - 1)
    signed = [x.abs(), (x < 0).where(-x, x), x * (x < 0).where(Tensor.full((96,), -1, dtype=dtype), 1), x.maximum(-x),
              (x ^ all_ones) - all_ones, (x + all_ones) ^ all_ones, (x < 0).where(~x + 1, x), x * -2, x * -4,
              -(x << 1), x * -2 + y * -2, x.maximum(y.maximum(-y)) * -2, (x < y).where(x * -2, y),
              Tensor.stack(x, y).mul(-2).sum(0, dtype=dtype), (x * -2) & y]
    unsigned = {1: dtypes.uint8, 2: dtypes.uint16, 4: dtypes.uint32, 8: dtypes.uint64}[dtype.itemsize]
    return [output for v in signed for output in (
        v < 0, v > y, v == low, v != y, v.sign(), v // 3, v % 7, v.maximum(y), v.minimum(1), v >> 1,
        v.cast(unsigned) >> (dtype.bits - 1), v & low, v.cast(dtypes.int32), v.cast(dtypes.int64),
        v.cast(dtypes.float32), v.cast(dtypes.uint64))]


def signed_kernels(dtype: DType) -> list[str]:
    def build() -> Callable[[], None]:
        outputs = signed_outputs(dtype)
        return lambda: Tensor.realize(*outputs)

    return [k.source for k in kernels(CorpusProgram(f"signs of {dtype.name}", build), "sm_90a")]


def misread(text: str) -> list[str]:
    """Return the PTX instructions that read the sign of ``neg.s16`` or ``abs``, or use it extended, with nothing opaque
    between (``prmt``): ptxas 13.0 assumes that neither wraps around."""
    owned, widened, found = set[str](), set[str](), list[str]()
    for line in text.splitlines():
        if (match := _OPERATION.match(line)) is None or match[1] == "prmt.b32":
            continue
        op, into, operands = match.groups()
        used = set(re.findall(r"%\w+", operands))
        if used & widened or (used & owned and _READS.match(op)):
            found.append(line.strip())
        if _OF_ITS_OWN.match(op) or (used & owned and _KEEPS_SIGN.match(op)):
            owned.add(into)
        elif used & owned and _WIDENS.match(op):
            widened.add(into)
    return found


@pytest.mark.parametrize("dtype", [dtypes.int8, dtypes.int16, dtypes.int32, dtypes.int64], ids=str)
def test_no_sign_of_the_compilers_own_is_read(dtype: DType) -> None:
    needs_nvrtc()
    compiler = driver.NVRTCCompiler("sm_90a", binary=False)
    texts = [compiler.compile(source).decode() for source in signed_kernels(dtype)]
    for text in texts:
        assert not misread(text), text
    assert any("setp.lt" in text and "prmt.b32" in text for text in texts)


def test_a_misread_sign_is_found() -> None:
    needs_nvrtc()
    source = """extern "C" __global__ void f(long long* out, const long long* in, short* less, const short* of) {
      long long x = in[threadIdx.x], y = x < 0 ? (long long)(0 - (unsigned long long)x) : x;
      short z = (short)(of[threadIdx.x] * -2);
      out[threadIdx.x] = y < 0 ? y : 7; less[threadIdx.x] = z < 0 ? z : 7; }"""
    found = misread(driver.NVRTCCompiler("sm_90a", binary=False).compile(source).decode())
    assert len(found) == 2 and all(line.startswith("setp.") for line in found)
