"""Memory-bound kernels on a GPU grid: number of loads in flight, vector access, and approximate functions."""
from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.corpus import record
from benchmarks.corpus.programs import CorpusProgram
from benchmarks.corpus.targets import device_name
from tinsmith import Tensor
from tinsmith.backend.device import Device
from tinsmith.codegen.compile_kernel import compile_kernel
from tinsmith.codegen.decompose.decompose import decompose, expand
from tinsmith.codegen.kernel import Kernel
from tinsmith.codegen.launch import KernelProgram
from tinsmith.codegen.lower.lower import lower
from tinsmith.codegen.lower.normalize import normalize
from tinsmith.codegen.opt import OptOps
from tinsmith.codegen.planner.candidate import stride_of
from tinsmith.codegen.planner.gpu.bandwidth import ways_down
from tinsmith.core.dtypes import dtypes
from tinsmith.ir import Ops, UOp
from tinsmith.ir.interpret.kernel import evaluate_kernel
from tinsmith.ir.ops.elementwise import ROUGH
from tinsmith.ir.uop import toposort

GPU = device_name("sm_90a")


def kernels(make: Callable[[], Tensor], target: str = "sm_90a") -> list[KernelProgram]:
    return record.kernels(CorpusProgram("", lambda: lambda: make().realize()), target)


def empty(*shape: int, dtype: Any = dtypes.float32) -> Tensor:
    return Tensor.empty(*shape, dtype=dtype, device=GPU)


def opts(kernel: KernelProgram) -> list[str]:
    return [record.short(o) for o in kernel.opts]


# *** loads in flight ***


def test_rows_that_a_list_picks_come_two_to_a_thread() -> None:
    """Both rows are loaded before either is stored: the compiler cannot know that the stores do not alias the loads."""
    table, rows = empty(65536, 768), empty(65536, dtype=dtypes.int32)
    (kernel,) = kernels(lambda: table[rows])
    assert "UPCAST(0,2)" in opts(kernel)
    reads, writes = ([m.start() for m in re.finditer(text, kernel.source)] for text in (r"= \*\(\(float4\*\)\(data1",
                                                                                        r"\(data0\+\w+\)\) ="))
    assert len(reads) == len(writes) == 2 and max(reads) < min(writes)


def test_elements_that_a_list_picks_come_in_vectors_of_the_list() -> None:
    """Each lane is a separate load; all of them precede the one vector store."""
    table, places = empty(1 << 20), empty(1 << 20, dtype=dtypes.int32)
    (kernel,) = kernels(lambda: table[places])
    assert "VECTOR(0,4)" in opts(kernel)
    found = [len(re.findall(text, kernel.source)) for text in (r"data2\[", r"\(int4\*\)", r"\(float4\*\)")]
    assert found == [4, 1, 1]


def test_few_rows_keep_all_threads() -> None:
    table, rows = empty(1000, 768), empty(100, dtype=dtypes.int32)
    assert not any(o.startswith("UPCAST") for k in kernels(lambda: table[rows]) for o in opts(k))


def test_windows_that_overlap_share_what_they_read() -> None:
    x = empty(64, 64, 112, 112)
    (kernel,) = kernels(lambda: x.max_pool2d((3, 3), stride=2, padding=1))
    assert "UPCAST(1,2)" in opts(kernel) and len(re.findall(r"data1\[", kernel.source)) == 5 * 3
    (apart,) = kernels(lambda: x.max_pool2d((2, 2), stride=2))
    assert not any(o.startswith("UPCAST") for o in opts(apart))


def test_a_row_that_is_only_read_has_more_of_it_under_way() -> None:
    x = empty(16384, 3136)
    (sums,) = kernels(lambda: x.sum(1))
    (softmax,) = kernels(lambda: x.softmax())
    assert "GROUP(1,160)" in opts(sums) and "UNROLL(1,5)" in opts(sums)
    assert "GROUP(2,416)" in opts(softmax)


@pytest.mark.parametrize("size", [17, 31, 49, 63, 65, 197])
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.bfloat16])
def test_each_element_of_a_short_row_is_read_once(size: int, dtype: Any) -> None:
    """A thread per element read its whole row, and computed all its exponentials: 364 us for 300,000 rows of 49."""
    x = empty(20_000, size, dtype=dtype)
    (kernel,) = kernels(lambda: x.softmax())
    shares = (OptOps.GROUP, OptOps.UNROLL, OptOps.VECTOR)
    width = math.prod(o.amt for o in kernel.opts if o.op in shares and o.axis == 3)
    assert width >= size and "for (" not in kernel.source


@pytest.mark.parametrize("size", [7, 10, 16])
def test_many_rows_of_a_few_elements_are_read_once(size: int) -> None:
    x = empty(200_000, size)
    (kernel,) = kernels(lambda: x.softmax())
    assert len(re.findall(r"data1\b[^;]*;", kernel.source)) <= 16 and "for (" not in kernel.source
    (few,) = kernels(lambda: x[:1000].softmax())
    assert few.opts[0].op is OptOps.LOCAL, "a thread per element, as there are few rows"


@pytest.mark.parametrize("count", [1 << 18, 3 << 19, 1 << 22])
@pytest.mark.parametrize("narrow", [False, True])
def test_blocks_of_maps_move_as_much_as_starting_them_takes(count: int, narrow: bool) -> None:
    """4M floats took 10.7 us to cast in blocks of 128 threads, now 3.7: the GPU starts a block in 1.1 ns."""
    x = empty(count)
    (kernel,) = kernels(lambda: x.cast(dtypes.bfloat16) if narrow else x * 2)
    assert math.prod(kernel.grid) <= 8 * 132 or 6 * count // math.prod(kernel.grid) >= 1 << 13


@pytest.mark.parametrize("shape", [(3, 5, 8, 16), (16, 7, 12, 11), (64, 4, 14, 14), (2, 300, 9, 13), (5, 1, 16, 16)])
def test_channels_of_images_are_reduced_by_groups_of_threads(shape: tuple[int, ...]) -> None:
    """Statistics of each channel over images and pixels, and what is stored of them in one kernel."""
    device = "PYTHON:G256"
    values = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    x = Tensor(values, device=device).realize()
    np.testing.assert_allclose(x.sum((0, 2, 3)).numpy(), values.sum((0, 2, 3)), rtol=1e-4, atol=1e-3)
    variance, mean = x.var_mean((0, 2, 3))
    Tensor.realize(variance, mean)
    np.testing.assert_allclose(variance.numpy(), values.var((0, 2, 3), ddof=1), rtol=1e-4)
    centered = x - x.mean((0, 2, 3), keepdim=True)
    np.testing.assert_allclose(centered.numpy(), values - values.mean((0, 2, 3), keepdims=True), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(x.max((0, 2)).numpy(), values.max((0, 2)))


def test_a_channel_has_a_full_block() -> None:
    """512 channels of 64 images have too few rows for a warp each: the images are divided among warps, too."""
    x = empty(64, 512, 28, 28, dtype=dtypes.bfloat16)
    (sums,) = kernels(lambda: x.float().sum((0, 2, 3)))
    threads = int(re.findall(r"__launch_bounds__\((\d+)\)", sums.source)[0])
    assert threads == 512


@pytest.mark.parametrize("channels", [256, 320, 640])
def test_groups_of_channels_last_are_read_in_vectors_by_full_blocks(channels: int) -> None:
    """A thread read a group of 32 channels one by one, 256 elements from its neighbour's: 1.07 ms, now 10 us."""
    x = empty(32, 1024, 8, channels // 8, dtype=dtypes.bfloat16)
    for kernel in kernels(lambda: x.float().var((1, 3)))[:2]:
        assert any(o.startswith("VECTOR") for o in opts(kernel)) and math.prod(kernel.block) >= 128


@settings(max_examples=30, deadline=None)
@given(images=st.integers(1, 3), pixels=st.integers(1, 40), groups=st.integers(1, 5), size=st.integers(1, 70),
       half=st.booleans())
def test_sums_of_groups_of_channels(images: int, pixels: int, groups: int, size: int, half: bool) -> None:
    values = np.random.default_rng(0).integers(-8, 9, (images, pixels, groups, size)).astype(np.float32)
    x = Tensor(values, device="PYTHON:G256:C4").cast(dtypes.bfloat16 if half else dtypes.float32).realize()
    mean = x.float().mean((1, 3), keepdim=True)
    found = [x.float().sum((1, 3)), (x.float() - mean).square().sum((1, 3)), x.max((1, 3))]
    Tensor.realize(*found)
    centered = np.square(values - values.mean((1, 3), keepdims=True)).sum((1, 3))
    np.testing.assert_array_equal(found[0].numpy(), values.sum((1, 3)))
    np.testing.assert_allclose(found[1].numpy(), centered, rtol=1e-4, atol=1e-3)
    np.testing.assert_array_equal(found[2].float().numpy(), values.max((1, 3)))


@pytest.mark.parametrize("rows", [16384, 12608 // 8, 1024])
def test_few_columns_occupy_several_cores(rows: int) -> None:
    """Two blocks of 128 threads summed 16,384 rows of 64 columns in 70 us."""
    x = empty(rows, 64)
    assert all(math.prod(k.grid) >= 8 for k in kernels(lambda: x.sum(0)))


def test_rows_across_images_are_cut_into_short_blocks() -> None:
    """Blocks of 64 images × 197 rows had 197 rows each, the only common divisor: 186 us, with at most 16 rows 16."""
    x, g, w, b = empty(64, 197, 768), empty(64, 197, 768), empty(768), empty(768)

    def gradients() -> Tensor:
        leaves = [t.requires_grad_(True) for t in (x, w, b)]
        y = x.layernorm() * w + b
        Tensor.realize(*y.gradient(*leaves, gradient=g))
        return g

    widest = [max(k.grid) for k in kernels(gradients)]
    assert max(widest) >= 64 * 197 // 16


def test_a_rounded_sum_is_stored_once_for_its_gelu_and_gradient() -> None:
    """The distribution function was stored, too, in 32 bits: recomputing it costs less than its memory."""
    x, w, b, v = empty(1024, 256), empty(256, 1024), empty(1024), empty(1024, 256)

    def gradients() -> Tensor:
        leaves = [t.requires_grad_(True) for t in (x, w, b, v)]
        with Tensor.autocast("bfloat16"):
            y = x.linear(w, b).gelu().linear(v)
        Tensor.realize(*y.sum().gradient(*leaves))
        return x

    stores = [text for k in kernels(gradients) for text in re.findall(r"float\* data\d+", k.source.split("{")[0])]
    found = [k for k in kernels(gradients) if "exp2_of(" in k.source]
    assert len(found) == 2, "GELU and its gradient"
    assert not any(re.search(r"[( ]float\* data0", k.source) for k in found), f"a result of 32 bits: {stores}"


def test_rounding_to_bfloat16_and_back_takes_pairs() -> None:
    x = empty(1 << 20)
    (kernel,) = kernels(lambda: x.cast(dtypes.bfloat16).float() * 3)
    assert kernel.source.partition("__launch_bounds__")[2].count("pack_bfloat16(") == 2


def test_rows_of_a_mean_over_rows_compile() -> None:
    """A sum over rows cannot share its threads with the sums along those rows."""
    x, y = empty(100, 1000), empty(100, dtype=dtypes.int32)
    assert kernels(lambda: x.cross_entropy(y))


@pytest.mark.parametrize("half", [True, False])
@pytest.mark.parametrize(("batch", "length", "heads", "width"), [(32, 128, 12, 64), (4, 197, 6, 64), (2, 256, 4, 128)])
def test_attention_reads_its_projection_in_place(batch: int, length: int, heads: int, width: int, half: bool) -> None:
    """Parts of a projection of 16 bits were stored in float32 each, and attention left the matrix unit."""
    total = heads * width
    dtype = dtypes.bfloat16 if half else dtypes.float32
    x, w, b = (empty(*shape, dtype=dtype) for shape in ((batch, length, total), (total, 3 * total), (3 * total,)))

    def attention() -> Tensor:
        with Tensor.autocast("bfloat16", enabled=not half):
            joined = x.linear(w, b).reshape(batch, length, 3, heads, width).permute(2, 0, 3, 1, 4)
            q, k, v = (t[0] for t in joined.chunk(3))
            return q.scaled_dot_product_attention(k, v)

    found = kernels(attention)
    products = [n for n, k in enumerate(found) if any(o.op is OptOps.TC for o in k.opts)]
    assert len(products) == 2, "the projection and attention are on a matrix unit"
    assert products[1] == products[0] + 1, "no part is copied between them"
    assert "wgmma" in found[products[1]].source


@pytest.mark.parametrize("shape", [(8192, 768), (12608, 768), (4096, 3072)])
def test_elements_that_are_stored_and_summed_move_as_vectors(shape: tuple[int, int]) -> None:
    """A gradient is rounded for two products, and its columns are summed for a bias: a thread took one float a step."""
    x = empty(*shape)
    found = kernels(lambda: Tensor.realize(y := x.cast("bfloat16"), y.float().sum(0)))
    both = next(k for k in found if {u.src[2].dtype.scalar for u in k.uops if u.op is Ops.STORE} >= {
        dtypes.bfloat16, dtypes.float32})
    assert {u.dtype.count for u in both.uops if u.op is Ops.LOAD and u.src[0].arg == 2} == {4}


@pytest.mark.parametrize("summed", [True, False])
@pytest.mark.parametrize(("batch", "length", "heads", "width"), [(8, 1024, 12, 64), (3, 200, 5, 32), (2, 77, 3, 8)])
def test_heads_side_by_side_are_read_as_vectors(batch: int, length: int, heads: int, width: int, summed: bool) -> None:
    """The gradients of queries, keys and values become one matrix, of which a block took one column (GPT-2:
    400 µs for 76 MB)."""
    q, k, v = (empty(batch, heads, length, width) for _ in range(3))

    def matrix() -> Tensor:
        rows = [t.permute(0, 2, 1, 3).reshape(batch, length, heads * width) for t in (q, k, v)]
        y = rows[0].cat(*rows[1:], dim=2).cast("bfloat16")
        return Tensor.realize(y, *([y.float().sum((0, 1))] if summed else []))

    first = kernels(matrix)[0]
    reads = [u.dtype.count for u in first.uops if u.op is Ops.LOAD and u.src[0].op is Ops.DEFINE_GLOBAL]
    assert reads and set(reads) == {4}


@settings(max_examples=100, deadline=None)
@given(size=st.integers(64, 1 << 16), beside=st.sampled_from((1, 2, 4, 8, 24, 32, 128)), blocks=st.integers(1, 400))
def test_threads_down_a_column(size: int, beside: int, blocks: int) -> None:
    target = Device[GPU].target
    ways = ways_down(target, size, beside, blocks)
    assert 1 <= ways * beside <= target.block_threads
    assert ways <= target.blocks.ways or blocks < target.cores, "blocks that occupy all cores keep long steps"
    least = min(target.blocks.ways, target.block_threads // beside)
    divided = size % min(least, ways) or size % ways == 0
    assert divided or size >= 8 * target.blocks.loads * least, "a column of few steps that threads divide stays divided"


@pytest.mark.parametrize("shape", [(512, 256), (1000, 96), (77, 640), (4096, 24)])
def test_sums_of_few_columns_use_many_blocks(shape: tuple[int, int]) -> None:
    """Rows of a norm's gradients: 6 blocks of 256 threads took twice as long as 24 of 128."""
    x = empty(*shape)
    widest = max(int(np.prod(k.grid)) for k in kernels(lambda: x.sum(0)))
    assert widest >= min(shape[1] // 32, 8)


# *** approximate functions ***


def test_normal_numbers_take_rough_functions_where_there_are() -> None:
    (kernel,) = kernels(lambda: Tensor.randn(64 << 20, device=GPU))
    for text in ("rough_lg2(", "rough_sqrt(", "rough_sin(", "rough_cos(", "add_by_product("):
        assert text in kernel.source
    assert opts(kernel)[-1] == "UPCAST(0,2)"
    other = device_name("opencl")
    (exact,) = kernels(lambda: Tensor.randn(64 << 20, device=other), "opencl")
    assert "sin" not in exact.source


@pytest.mark.parametrize("op", [Ops.SQRT, Ops.RECIP, Ops.EXP2, Ops.LOG2, Ops.SIN, Ops.COS])
def test_a_rough_function_is_the_function_itself_elsewhere(op: Any) -> None:
    x = UOp(Ops.PARAM, dtypes.float32, (), (0, ()))
    found = expand(UOp(Ops.SINK, None, (UOp(op, None, (x,), ROUGH),)))
    assert found is expand(UOp(Ops.SINK, None, (UOp(op, None, (x,)),))) and all(n.arg != ROUGH for n in toposort(found))


def param(number: int, shape: tuple[int, ...], dtype: Any = dtypes.float32) -> UOp:
    return UOp(Ops.PARAM, dtype, (), (number, shape))


def relative(x: UOp, op: str = "MAX") -> UOp:
    """Return exp(x - m) of the rows."""
    wide = x.cast(dtypes.float32)
    return (wide - wide.reduce(op, (1,)).expand(x.shape)).alu("EXP")


X, HALF = param(1, (5, 40)), param(1, (5, 40), dtypes.bfloat16)
ROUGHLY = {
    "a sum": (relative(X).reduce("ADD", (1,)), 1),
    "softmax": (relative(X) / relative(X).reduce("ADD", (1,)).expand(X.shape), 1),
    "what is rounded": ((relative(HALF) * 0.5 - 1).cast(dtypes.bfloat16), 1),
    "both": ((relative(HALF) * relative(HALF).reduce("ADD", (1,)).expand(X.shape)).cast(dtypes.bfloat16), 2),
    "a reciprocal that is rounded": ((HALF.cast(dtypes.float32) * 2).alu("RECIP").cast(dtypes.bfloat16), 1),
    "a reciprocal in an exponent": ((X.alu("EXP") + 1).alu("RECIP").alu("EXP").cast(dtypes.bfloat16), 1),
    "a reciprocal as it is": ((X * 2).alu("RECIP"), 0),
    "as it is": (relative(X), 0),
    "relative to something else": (relative(X, "ADD").reduce("ADD", (1,)), 0),
    "a weighted sum": ((relative(X) * X).reduce("ADD", (1,)), 0),
    "no exponential of a difference": (X.alu("EXP").reduce("ADD", (1,)), 0),
    "another sine": (X.alu("SIN").reduce("ADD", (1,)), 0),
}


@pytest.mark.parametrize("name", ROUGHLY)
def test_exponentials_are_rough_where_absolute_errors_count(name: str) -> None:
    value, count = ROUGHLY[name]
    sink = decompose(normalize(lower(UOp(Ops.SINK, None, (value,)))))
    found, exact = expand(sink, fma=True, exp2s=True, rough=True), expand(sink, fma=True)
    assert sum(n.arg == ROUGH for n in toposort(found)) == count
    x = np.random.default_rng(0).normal(size=(5, 40)).astype(np.float32) * 3
    x[1, ::2] = -np.inf
    kind = dtypes.bfloat16 if HALF in toposort(value) else dtypes.float32
    results = []
    for kernel in (found, exact):
        memory = [np.zeros(value.size, value.dtype.numpy), x.ravel().astype(kind.numpy)]
        evaluate_kernel(kernel, memory)
        results.append(memory[0].astype(np.float64))
    np.testing.assert_allclose(*results, rtol=1e-2 if value.dtype is dtypes.bfloat16 else 2e-6)


@pytest.mark.parametrize("shape", [(2, 60, 120), (1, 128, 50), (3, 49, 64)])
def test_transposed_tiles_have_edges(shape: tuple[int, int, int]) -> None:
    """Threads past the last row or column neither load nor store; mostly empty tiles are not used."""
    device = "PYTHON:G512:C3:B232448"
    values = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
    turned = Tensor(values, device=device).realize().transpose(1, 2)
    made = compile_kernel(turned.contiguous().schedule().steps[0].item.sink, Device[device].renderer)
    assert (OptOps.STAGE in {o.op for o in made.opts}) == all(4 * n > 3 * (n + -n % 64) for n in shape[1:])
    np.testing.assert_array_equal(turned.contiguous().numpy(), values.transpose(0, 2, 1))


@pytest.mark.parametrize("layout", ["spread", "channels last"])
def test_sums_of_channels_with_arguments_of_several_layouts_occupy_the_gpu(layout: str) -> None:
    """Of the gradients of batch norm below a residual sum, one comes from a strided 1×1 convolution or by channels."""
    x, y = empty(64, 256, 56, 56), empty(64, 256, 56, 56)
    other = empty(64, 56, 56, 256).permute(0, 3, 1, 2) if layout == "channels last" else empty(64, 256, 28, 28).reshape(
        64, 256, 28, 1, 28, 1).pad(((0, 0), (0, 0), (0, 0), (0, 1), (0, 0), (0, 1))).reshape(64, 256, 56, 56)
    found = kernels(lambda: ((y > 0).where(x + other, 0) * y).sum((0, 2, 3)))
    threads = max(math.prod(k.grid) * math.prod(k.block) for k in found)
    assert threads >= 256 * 64, [(k.name, k.grid, k.block) for k in found]


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_a_sum_whose_kept_axis_joins_two_loops_over_both(data: st.DataObject) -> None:
    """Every load has constant steps then; the results are those of the interpreter."""
    parts, rows, width = (data.draw(st.integers(1, 7), name) for name in ("parts", "rows", "width"))
    x = param(1, (parts, rows, 3, width))
    value = x.permute((1, 2, 0, 3)).reshape((rows * 3, parts * width)).reduce(
        data.draw(st.sampled_from(["ADD", "MAX"])), (0,))
    k = Kernel(decompose(normalize(lower(UOp(Ops.SINK, None, (value,))))))
    assert all(stride_of(n.src[1], r) is not None for n in k.loads for r in k.parallel)
    memory = [np.zeros(parts * width, np.float32), np.random.default_rng(0).normal(size=x.size).astype(np.float32)]
    want = memory[1].reshape(parts, rows * 3, width)
    want = want.sum(1) if value.arg[0] is Ops.ADD else want.max(1)
    evaluate_kernel(k.sink, memory)
    np.testing.assert_allclose(memory[0], want.ravel(), rtol=1e-5, atol=1e-6)
