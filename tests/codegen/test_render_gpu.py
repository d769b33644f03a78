"""OpenCL, CUDA and Metal source text: the required structure of kernels in each language."""
from __future__ import annotations

import itertools
import re

import pytest

from tests.codegen.test_matrix import axes, product, tensor_core
from tinsmith.codegen.compile_kernel import compile_kernel
from tinsmith.codegen.launch import KernelProgram
from tinsmith.codegen.opt import Opt, OptOps
from tinsmith.codegen.render.base import Renderer
from tinsmith.codegen.render.cuda import CUDARenderer, cuda_target
from tinsmith.codegen.render.gpu import divisor
from tinsmith.codegen.render.metal import MetalRenderer
from tinsmith.codegen.render.opencl import OpenCLRenderer
from tinsmith.core.dtypes import DType, dtypes
from tinsmith.core.errors import ArgumentError, CompileError
from tinsmith.ir import Ops, UOp
from tinsmith.ir.structure import Role
from tinsmith.target.target import Target

LANGUAGES: dict[str, Renderer] = {
    "opencl": OpenCLRenderer(Target("opencl", 16, local_bytes=48 << 10, block_threads=1024, parallel=Role.GLOBAL)),
    "cuda": CUDARenderer(), "metal": MetalRenderer()}
SHARED = {"opencl": "__local", "cuda": "__shared__", "metal": "threadgroup float"}
BARRIER = {"opencl": "barrier(CLK_LOCAL_MEM_FENCE);", "cuda": "__syncthreads();",
           "metal": "threadgroup_barrier(mem_flags::mem_threadgroup);"}
THREAD = {"opencl": "get_local_id(0)", "cuda": "threadIdx.x", "metal": "lid.x"}
VECTOR = {"opencl": "vload4(0, data1", "cuda": "*((float4*)(data1", "metal": "*((const device float4*)(data1"}


def param(number: int, *shape: int, dtype: DType = dtypes.float32) -> UOp:
    return UOp(Ops.PARAM, dtype, (), (number, shape))


def written(language: str, value: UOp, opts: list[Opt] | None = None) -> KernelProgram:
    return compile_kernel(UOp(Ops.SINK, None, (value,)), LANGUAGES[language], opts)


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_shared_reduction(language: str) -> None:
    """Partial results in local memory, a barrier, and one storing thread; one word per warp if warps shuffle."""
    kernel = written(language, param(1, 4, 256).reduce("ADD", (1,)), [Opt(OptOps.GROUP, 1, 64)])
    text = kernel.source
    assert (kernel.grid, kernel.block) == ([4], [64])
    if language == "metal":
        text = re.sub(r"\*\((\w+)\+(\S+)\)", r"\1[\2]", text)
    if language == "cuda":
        assert text.count("__shfl_xor_sync(0xffffffff") == 5 and "float tmp0[2]" in text
        text = text.replace("tmp0[lidx0/32] =", "tmp0[lidx0] =")
    fill, barrier, store = (text.index(part) for part in ("tmp0[lidx0] =", BARRIER[language], "if (lidx0==0) {"))
    assert text.index(SHARED[language]) < fill < barrier < store < text.index("data0[gidx0] =")
    assert text.count(BARRIER[language]) == 1 and THREAD[language] in text


@pytest.mark.parametrize("language", LANGUAGES)
def test_vectors_of_memory(language: str) -> None:
    text = written(language, param(1, 64) + 1, [Opt(OptOps.VECTOR, 0, 4), Opt(OptOps.LOCAL, 0, 8)]).source
    assert VECTOR[language] in text and text.count("vec0.") == 4
    assert "[gidx0" not in text, "the store is one vector too"


@pytest.mark.parametrize("language", ["cuda", "metal"])
def test_vectors_that_are_not_aligned_are_read_one_by_one(language: str) -> None:
    text = written(language, param(1, 65).shrink(((1, 65),)) + 1, [Opt(OptOps.VECTOR, 0, 4)]).source
    assert VECTOR[language] not in text and {"cuda": "data1[", "metal": " *(data1+"}[language] in text


def test_what_divides_an_index() -> None:
    i, j = UOp.range(4, 0, None), UOp.range(8, 1, None)
    assert divisor(i * 12 + j * 8 + 16) == 4 and divisor(i * 6 + 3) == 3 and divisor(UOp.index(0)) == 0


@pytest.mark.parametrize("language", LANGUAGES)
def test_halves_are_computed_as_floats(language: str) -> None:
    text = written(language, param(1, 8, dtype=dtypes.float16) * 3).source
    if language == "metal":
        assert "half* data0" in text and "((float)" in text and "(half)(" in text
    else:
        assert "half_float(" in text and "float_half(" in text and "short* data0" in text


@pytest.mark.parametrize("language", LANGUAGES)
def test_bfloat16_is_bits(language: str) -> None:
    text = written(language, param(1, 8, dtype=dtypes.bfloat16) * 3).source
    assert "bf16_float(" in text and "float_bf16(" in text and re.search(r"(ushort|unsigned short)\* data0", text)


def test_metal_has_no_double() -> None:
    with pytest.raises(CompileError, match="float64"):
        written("metal", param(1, 8, dtype=dtypes.float64) * 3)


def test_signatures() -> None:
    value = param(1, 3) + param(2, 3)
    assert "kernel void E_3_" in (metal := written("metal", value, []).source)
    assert ("(device float* data0, const device float* data1, const device float* data2, uint3 gid "
            "[[threadgroup_position_in_grid]], uint3 lid [[thread_position_in_threadgroup]])") in metal
    assert 'extern "C" __global__ void __launch_bounds__(1) E_3_' in written("cuda", value, []).source
    assert "__kernel void E_3_" in written("opencl", value, []).source


@pytest.mark.parametrize("language", LANGUAGES)
def test_blocks_are_no_larger_than_the_target_allows(language: str) -> None:
    with pytest.raises(ArgumentError, match="at most 1024 threads"):
        written(language, param(1, 4096) + 1, [Opt(OptOps.LOCAL, 0, 2048)])
    with pytest.raises(ArgumentError, match="bytes of local memory"):
        written(language, param(1, 2, 64000).reduce("ADD", (1,)), [Opt(OptOps.STAGE, 0, (0,))])


@pytest.mark.parametrize("unit, dtype", [("mma_f16", dtypes.float16), ("mma_bf16", dtypes.bfloat16),
                                         ("mma_tf32", dtypes.float32)])
def test_matrix_units_are_inline_ptx(unit: str, dtype: DType) -> None:
    sink, _ = product(32, 32, 32, dtype, dtypes.float32)
    kernel = compile_kernel(sink, LANGUAGES["cuda"], [tensor_core(axes(sink), 2, 2, unit=unit)])
    steps = len(re.findall(rf"^ +{unit}\(mma", kernel.source, re.M))
    assert steps == 4 and kernel.block == [32]
    instruction = next(u for u in cuda_target().units if u.name == unit).emit
    assert kernel.source.count(instruction) == 1


def test_a_target_has_the_units_of_its_architecture() -> None:
    assert [u.name for u in cuda_target("sm_80").units] == ["mma_f16", "mma_bf16", "mma_tf32"]
    assert cuda_target("sm_70").units == ()


def test_a_unit_that_drops_bits_is_only_taken_by_name() -> None:
    sink, _ = product(32, 32, 32, dtypes.float32, dtypes.float32)
    assert "tf32" not in compile_kernel(sink, LANGUAGES["cuda"], [tensor_core(axes(sink))]).source
    assert "tf32" in compile_kernel(sink, LANGUAGES["cuda"], [tensor_core(axes(sink), unit="mma_tf32")]).source


def test_a_large_product_goes_through_local_memory_or_a_unit() -> None:
    plain, _ = product(64, 64, 64, dtypes.float32, dtypes.float32)
    halves, _ = product(64, 64, 64, dtypes.float16, dtypes.float32)
    tiled = compile_kernel(plain, LANGUAGES["cuda"])
    assert tiled.source.count("__shared__") == 2 + 4 and "float4" in tiled.source and tiled.block == [8, 8, 2]
    assert "mma_f16(" in compile_kernel(halves, LANGUAGES["cuda"]).source
    assert tiled.grid == [2, 2]


def test_cuda_has_powers_of_two_and_rounds_to_bfloat16_by_instruction() -> None:
    x = UOp(Ops.PARAM, dtypes.float32, (), (1, (64,)))
    sink = UOp(Ops.SINK, None, (x.alu("EXP").cast(dtypes.bfloat16),))
    new, old = (compile_kernel(sink, CUDARenderer(cuda_target(arch))).source for arch in ("sm_90", "sm_70"))
    assert "ex2.approx.f32" in new and "cvt.rn.bf16.f32" in new
    assert "ex2.approx.f32" in old and "cvt.rn.bf16.f32" not in old


@pytest.mark.parametrize("depth", [32, 128, 256, 512])
def test_the_compiler_unrolls_no_loops_to_long_programs(depth: int) -> None:
    """A product of 256 steps had its 16 tiles of 16 steps unrolled: ptxas took 34 s for 16,384 multiply-adds."""
    sink, _ = product(1024, depth, 1024, dtypes.float32)
    lines = compile_kernel(sink, CUDARenderer(cuda_target("sm_80", 108))).source.split("\n")
    steps = 1
    times = []  # of the open loops, if they are unrolled
    for before, line in itertools.pairwise(lines):
        loop = re.fullmatch(r" *for \(int \w+ = 0; \w+ < (\d+); \w+\+\+\) {", line)
        if loop is not None:
            several = re.fullmatch(r" *#pragma unroll (\d+)", before)
            written = int(several[1]) if several else int(loop[1]) if before.strip() == "#pragma unroll" else 1
            times.append(written)
            steps *= times[-1]
        elif line.strip() == "}" and times:
            steps //= times.pop()
        assert steps <= (64 if depth <= 64 else 16), "so many steps are written out"
    assert any("#pragma unroll" in line for line in lines)
