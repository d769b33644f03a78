"""Products with operands staged in a ring: both interpreters, edges, removed synchronization, CUDA text."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.backend.gpus import needs_nvrtc
from tests.codegen.running import (
    buffers,
    computes_the_same,
    each_is_needed,
    expected,
    linearize_on,
    ran,
    run_on,
    without,
)
from tests.codegen.test_matrix import close, product
from tinsmith import Tensor
from tinsmith.backend.cuda.driver import NVRTCCompiler
from tinsmith.backend.device import Device
from tinsmith.codegen.compile_kernel import compile_kernel
from tinsmith.codegen.emit.linearize import linearize
from tinsmith.codegen.kernel import Kernel
from tinsmith.codegen.opt import Opt, OptOps
from tinsmith.codegen.planner.candidate import Unfit
from tinsmith.codegen.planner.gpu.rings import apply_tile
from tinsmith.codegen.render.cuda import CUDARenderer, cuda_target
from tinsmith.core.dtypes import DType, dtypes, rounded_to_tf32
from tinsmith.core.errors import ArgumentError, KernelError
from tinsmith.core.settings import Context
from tinsmith.ir import Ops, UOp
from tinsmith.ir.matrix_unit import UnitTile, in_memory
from tinsmith.target.units.nvidia import HOPPER

DEVICE = "PYTHON:G512:C3:B232448"
CUDA = CUDARenderer(cuda_target("sm_90a"))
UNITS = {u.name: u for u in HOPPER}


def tiled(sink: UOp, unit: str = "wgmma_bf16_64", below: int = 1, slots: int = 4, roles: int = 0) -> list[Opt]:
    """Return the opts of one tile; with ``roles`` > 1, that many warp groups take turns (ping-pong)."""
    kernel = linearize_on(DEVICE, sink)
    loops = [*kernel.parallel[-2:], kernel.reduces[0]]
    apply_tile(kernel, [((r.arg[0], 0),) for r in loops], UNITS[unit],
               UnitTile(below, slots, 1.0, bool(roles), turns=roles * (roles > 1)))
    return kernel.opts


def of_size(m: int, k: int, n: int, transposed: str = "", batch: int = 1, dtype: DType = dtypes.bfloat16,
            epilogue: bool = False) -> tuple[UOp, dict[UOp, Any]]:
    sink, inputs = product(m, k, n, dtype, dtypes.float32, transposed, batch=batch)
    if epilogue:
        bias = UOp(Ops.PARAM, dtypes.float32, (), (3, (n,)))
        inputs[bias] = np.arange(n, dtype=np.float32) % 7
        out = sink.src[0] + bias.reshape((1, 1, n)).expand((batch, m, n))
        sink = UOp(Ops.SINK, None, (out.cast(dtype),))
    return sink, inputs


@pytest.mark.parametrize("slots", [1, 2, 3, 4])
@pytest.mark.parametrize("unit, below", [("wgmma_bf16_64", 1), ("wgmma_bf16_128", 2), ("wgmma_bf16_192", 1),
                                         ("wgmma_bf16_256", 2)])
def test_any_tile_of_any_depth_computes_the_same(unit: str, below: int, slots: int) -> None:
    for shape, epilogue in (((128, 320, 264), False), ((72, 64, 64), True)):
        sink, inputs = of_size(*shape, epilogue=epilogue)
        computes_the_same(DEVICE, sink, inputs, tiled(sink, unit, below, slots), close)


@pytest.mark.parametrize("slots", [1, 2, 4])
@pytest.mark.parametrize("unit, below", [("wgmma_bf16_64", 1), ("wgmma_bf16_64", 3)])
def test_roles_and_turns_compute_the_same(unit: str, below: int, slots: int) -> None:
    sink, inputs = of_size(200, 192, 264, epilogue=True)
    opts = tiled(sink, unit, below, slots, True)
    assert [o.op for o in opts[-4:]] == [OptOps.WALK, OptOps.STAGE, OptOps.STAGE, OptOps.ROLES]
    plain = opts[:-1]
    alone = [Opt(o.op, o.axis, o.amt[:3]) if o.op is OptOps.WALK and isinstance(o.amt, tuple) else o for o in opts]
    for these in (alone, plain, opts):  # roles alone, turns alone, both
        program = computes_the_same(DEVICE, sink, inputs, these, close)
    assert (program.grid, program.block) == ([3], [128, below + 1])


@pytest.mark.parametrize("roles", [0, 1, 2])
@pytest.mark.parametrize("shape", [(128, 192, 128), (384, 64, 128), (200, 192, 264)])
def test_what_the_epilogue_loads_for_each_element_is_prefetched(shape: tuple[int, int, int], roles: int) -> None:
    """Prefetches come before the products, once per vector of the residual, and stay within its memory: those of padded
    rows have the condition of their loads."""
    sink, inputs = of_size(*shape)
    residual = UOp(Ops.PARAM, dtypes.bfloat16, (), (3, (1, shape[0], shape[2])))
    inputs[residual] = np.random.default_rng(0).integers(-3, 4, residual.shape).astype(dtypes.bfloat16.numpy)
    bias = UOp(Ops.PARAM, dtypes.float32, (), (4, (shape[2],)))
    inputs[bias] = np.arange(shape[2], dtype=np.float32) % 7
    added = bias.reshape((1, 1, shape[2])).expand(residual.shape) + residual.cast(dtypes.float32)
    sink = UOp(Ops.SINK, None, ((sink.src[0] + added).cast(dtypes.bfloat16),))
    opts = tiled(sink, below=2, roles=roles)
    computes_the_same(DEVICE, sink, inputs, opts, close)
    kernel = linearize_on(DEVICE, sink, opts)
    program = linearize(kernel)
    fetched = [u for u in program if u.op is Ops.PREFETCH]
    vectors = [u for u in program if u.op is Ops.LOAD and u.src[0].arg == 3]
    loads = [(*u.src[:2], *(valid.src[0] for valid in u.src[2:])) for u in vectors]  # one condition for all lanes
    assert [u.src for u in fetched] == loads
    assert fetched and any(len(u.src) > 2 for u in fetched) == (shape[0] % 128 > 0)
    products = min(n for n, u in enumerate(program) if u.op is Ops.MMA)
    assert all(program.index(u) < products for u in fetched)
    loaded = [UOp(Ops.LOAD, dtypes.bfloat16, u.src) if u.op is Ops.PREFETCH else u for u in program]
    close(ran(loaded, buffers(sink, inputs))[0], expected(sink, inputs)[0])  # its memory checks every address


@pytest.mark.parametrize("rounded", [False, True])
def test_lanes_exchange_rounded_results_two_at_a_time(rounded: bool) -> None:
    sink, inputs = of_size(128, 64, 128)
    factor = UOp(Ops.PARAM, dtypes.float32, (), (3, (1, 128, 128)))
    inputs[factor] = np.random.default_rng(0).integers(-3, 4, factor.shape).astype(np.float32)
    total = sink.src[0].cast(dtypes.bfloat16).cast(dtypes.float32) if rounded else sink.src[0]
    sink = UOp(Ops.SINK, None, ((total * factor).cast(dtypes.bfloat16),))
    opts = tiled(sink)
    computes_the_same(DEVICE, sink, inputs, opts, close)
    shuffled = [u.dtype for u in linearize(linearize_on(DEVICE, sink, opts)) if u.op is Ops.SHUFFLE]
    assert {t.scalar for t in shuffled} == {dtypes.uint32 if rounded else dtypes.float32}
    assert sum(t.count for t in shuffled) == (16 if rounded else 32)  # half of the registers in each of two steps


@pytest.mark.parametrize("below, slots, groups", [(1, 1, 2), (2, 3, 2), (1, 4, 3)])
def test_groups_that_take_turns_compute_the_same(below: int, slots: int, groups: int) -> None:
    for shape in ((320, 192, 200), (260, 64, 136)):  # of the first, the last turn is one group's alone
        sink, inputs = of_size(*shape, epilogue=True)
        opts = tiled(sink, "wgmma_bf16_64", below, slots, groups)
        assert opts[-1] == Opt(OptOps.ROLES, amt=groups) and not any(o.op is OptOps.LOCAL for o in opts)
        program = computes_the_same(DEVICE, sink, inputs, opts, close)
        assert (program.grid, program.block) == ([3], [128, groups + 1])


@pytest.mark.parametrize("unit, transposed", [("wgmma_bf16_96", ""), ("wgmma_bf16_96", "ab")])
def test_columns_of_no_whole_chunks_have_shorter_rows(unit: str, transposed: str) -> None:
    sink, inputs = of_size(64, 128, 200, transposed)
    program = computes_the_same(DEVICE, sink, inputs, tiled(sink, unit, 1, 3), close)
    assert [view[5] for view in program.maps] == [[64, 64], [64, 96] if transposed else [32, 64]]
    rows = {u.arg[2].row for u in program.uops if u.op is Ops.DEFINE_LOCAL}
    assert rows == ({128} if transposed else {128, 64})


@settings(max_examples=12, deadline=None)
@given(st.sampled_from([63, 64, 65, 127, 129, 200]), st.sampled_from([64, 72, 120, 136, 200]),
       st.sampled_from([64, 72, 128, 136, 264]), st.sampled_from(["", "a", "b", "ab"]), st.sampled_from([1, 3]),
       st.booleans(), st.booleans())
def test_edges_of_any_layout(m: int, k: int, n: int, transposed: str, batch: int, epilogue: bool, roles: bool) -> None:
    m = m // 8 * 8 if "a" in transposed else m  # rows of memory begin at multiples of 16 bytes
    sink, inputs = of_size(m, k, n, transposed, batch, epilogue=epilogue)
    opts = tiled(sink, "wgmma_bf16_128", 2 if m > 64 else 1, roles=roles)
    close(run_on(DEVICE, sink, inputs, opts)[0], expected(sink, inputs)[0])


@pytest.mark.parametrize("dtype", [dtypes.bfloat16, dtypes.float16], ids=str)
def test_it_is_the_default_where_it_fits(dtype: DType) -> None:
    renderer = Device[DEVICE].renderer
    sink, inputs = of_size(136, 192, 200, dtype=dtype)
    program = compile_kernel(sink, renderer)
    assert any(u.op is Ops.MMA and u.arg.staged for u in program.uops)
    close(run_on(DEVICE, sink, inputs, None)[0], expected(sink, inputs)[0])
    odd, inputs = of_size(136, 193, 201, dtype=dtype)  # rows of memory begin anywhere: another unit
    program = compile_kernel(odd, renderer)
    assert any(u.op is Ops.MMA for u in program.uops) and not any(u.op is Ops.DEFINE_RING for u in program.uops)
    close(run_on(DEVICE, odd, inputs, None)[0], expected(odd, inputs)[0])


def test_the_tile_follows_from_the_size() -> None:
    def tile(m: int, k: int, n: int) -> tuple[int, int, int]:
        a, b = (UOp(Ops.PARAM, dtypes.bfloat16, (), (i, s)) for i, s in ((1, (m, k)), (2, (k, n))))
        x, y = a.reshape((m, 1, k)).expand((m, n, k)), b.permute((1, 0)).reshape((1, n, k)).expand((m, n, k))
        out = (x.cast(dtypes.float32) * y.cast(dtypes.float32)).reduce("ADD", (2,)).reshape((m, n))
        program = compile_kernel(UOp(Ops.SINK, None, (out.cast(dtypes.bfloat16),)), CUDA)
        unit = next(u.arg for u in program.uops if u.op is Ops.MMA)
        copies = next(o.amt[2] for o in program.opts if o.op is OptOps.TC and isinstance(o.amt, tuple))
        groups = next((o.amt or 1 for o in program.opts if o.op is OptOps.ROLES), 0)
        assert isinstance(groups, int) and (program.grid[0] <= 132 or not groups)
        warps = program.block[1] - bool(groups) if len(program.block) > 1 else 1
        return unit.m * copies * warps // max(groups, 1), unit.n, groups

    assert tile(4096, 4096, 4096) == (128, 256, 1), "several waves"
    assert tile(4104, 4160, 4160) == (192, 192, 1), "four waves instead of five"
    assert tile(8192, 768, 3072) == (128, 192, 2), "a short sum: results are stored meanwhile"
    assert tile(2048, 2048, 2048) == (128, 256, 0)
    assert tile(1024, 1024, 1024) == (64, 128, 0)
    assert tile(512, 4096, 4096) == (128, 128, 0)
    assert tile(1536, 1536, 1536) == (192, 96, 0), "128 tiles of one wave"


# *** necessary synchronization ***


@pytest.mark.parametrize("slots, roles", [(1, 0), (2, 0), (4, 0), (1, 1), (3, 1), (3, 2)])
def test_every_order_is_needed(slots: int, roles: int) -> None:
    """Without any one wait, fence, group, release or drain, the result is wrong, or nothing ever comes."""
    sink, inputs = of_size(64, 512 // max(roles, 1), (64, 256, 448)[roles])
    program = linearize(linearize_on(DEVICE, sink, tiled(sink, slots=slots, roles=roles)))
    kinds = {Ops.WAIT, Ops.FENCE, Ops.COMMIT, Ops.ARRIVE, Ops.ASYNC_COPY, Ops.DRAIN, *[Ops.RELEASE] * bool(roles)}
    found = each_is_needed(program, buffers(sink, inputs),
                           lambda u: u.op in kinds and not (u.op is Ops.DRAIN and (u.src or u.arg)))
    assert set(found) >= kinds - {Ops.DRAIN}


def test_a_deadlock_of_roles_is_named() -> None:
    """A slot that its readers never release: the error names what the producer and consumer warps wait for."""
    sink, inputs = of_size(64, 512, 64)
    program = linearize(linearize_on(DEVICE, sink, tiled(sink, slots=2, roles=True)))
    ((_, mutant),) = without(program, lambda u: u.op is Ops.RELEASE)
    with pytest.raises(KernelError, match=r"warps 0, 1, 2, 3 wait at WAIT for the fill.*warp 4 waits at WAIT until "
                       "slot 0 of free is free: 0 of 4 warps released it"):
        ran(mutant, buffers(sink, inputs))
    other = [u.replace(arg=(*u.arg[:2], 5)) if u.op is Ops.DEFINE_RING and len(u.arg) > 2 else u for u in program]
    table = {u: new for u, new in zip(program, other) if u is not new}
    with pytest.raises(KernelError, match="4 of 5 warps released it"):
        ran([u.substitute(table) for u in other], buffers(sink, inputs))


def test_what_is_not_drained_is_not_there() -> None:
    sink, inputs = of_size(64, 256, 64)
    program = linearize(linearize_on(DEVICE, sink, tiled(sink)))
    drain = next(u for u in program if u.op is Ops.DRAIN and u.src)
    late = [u if u is not drain else u.replace(arg=1) for u in program]
    table = {drain: late[program.index(drain)]}
    got = ran([u.substitute(table) for u in late], buffers(sink, inputs))[0]
    assert np.isnan(got.astype(np.float32)).any()


# *** illegal opts ***


def test_what_is_no_box_of_memory_is_refused() -> None:
    def staged(kernel: Kernel, opt: Opt, why: str) -> None:
        before = kernel.sink, list(kernel.order)
        with pytest.raises(ArgumentError, match=why):
            kernel.apply(opt)
        assert (kernel.sink, kernel.order) == before

    sink, _ = of_size(64, 136, 72)
    kernel = linearize_on(DEVICE, sink, [o for o in tiled(sink) if o.op is not OptOps.STAGE])
    kept = (kernel.ranges.index(kernel.reduces[0]),)
    staged(kernel, Opt(OptOps.STAGE, 0, kept), "reads swizzled")
    staged(kernel, Opt(OptOps.STAGE, 0, (), layout="swizzled", depth=4), "one loop outside of its stage")
    odd, _ = of_size(64, 129, 64)
    opts = [Opt(OptOps.PADTO, 2, 64), Opt(OptOps.TC, 2, (0, 1, 1, 1), unit="wgmma_bf16_64")]
    kernel = linearize_on(DEVICE, odd, opts)
    kernel.apply(Opt(OptOps.UNROLL, kernel.ranges.index(kernel.reduces[0]), 4))
    kept = (kernel.ranges.index(kernel.reduces[0]),)
    staged(kernel, Opt(OptOps.STAGE, 0, kept, layout="swizzled", depth=4), "aligned to 16 bytes")


def test_roles_and_turns_are_refused_where_nothing_is_to_share() -> None:
    sink, _ = of_size(128, 128, 128)
    kernel = linearize_on(DEVICE, sink)
    with pytest.raises(ArgumentError, match="ROLES needs a matrix unit"):
        kernel.apply(Opt(OptOps.ROLES))
    with pytest.raises(ArgumentError, match="grid tiles merged into one range"):
        kernel.apply(Opt(OptOps.WALK, 0, (1, 2, 0, 3)))
    kernel = linearize_on(DEVICE, sink, tiled(sink, roles=True))
    with pytest.raises(ArgumentError, match="loops over tiles of the grid"):
        linearize_on(DEVICE, sink, tiled(sink)).apply(Opt(OptOps.ROLES, amt=2))
    for opt, why in ((Opt(OptOps.ROLES), "once"), (Opt(OptOps.STAGE, 0, (0,)), "is staged already|comes before ROLES")):
        with pytest.raises(ArgumentError, match=why):
            kernel.apply(opt)
    kernel = linearize_on("PYTHON:G128:B232448", sink, tiled(sink))
    with pytest.raises(ArgumentError, match="at most 128 threads, it would have 256"):
        kernel.apply(Opt(OptOps.ROLES))


# *** operands rounded while staged ***


def float32s(*sizes: int, transposed: str = "b") -> tuple[UOp, dict[UOp, Any], Any]:
    """Return a float32 product with its inputs, and its value with operands rounded to tf32."""
    sink, inputs = product(*sizes, dtypes.float32, dtypes.float32, transposed)
    return sink, inputs, expected(sink, {p: rounded_to_tf32(x) for p, x in inputs.items()})[0]


@pytest.mark.parametrize("unit, below, slots, roles", [
    ("wgmma_tf32_64", 1, 1, False), ("wgmma_tf32_64", 2, 3, True), ("wgmma_tf32_192", 1, 2, False),
    ("wgmma_tf32_256", 2, 4, True)])
def test_boxes_bring_tf32(unit: str, below: int, slots: int, roles: bool) -> None:
    for shape in ((130, 68, 264), (3, 4, 5), (63, 36, 257)):
        sink, inputs, want = float32s(*shape)
        opts = tiled(sink, unit, below, slots, roles)
        program = computes_the_same(DEVICE, sink, inputs, opts, lambda got, _, want=want: close(got, want))
        assert [view[2] for view in program.maps] == ["tf32", "tf32"]


def test_rows_that_a_unit_cannot_turn_are_refused() -> None:
    for transposed, which in (("", "1"), ("ab", "0")):
        sink, _, _ = float32s(64, 64, 64, transposed=transposed)
        with pytest.raises(Unfit, match=rf"axis={which}.* along which wgmma_tf32_64 reads rows"):
            tiled(sink, "wgmma_tf32_64")


def test_tf32_is_the_default_where_the_user_allows_it() -> None:
    sink, inputs, want = float32s(136, 192, 200)
    renderer = Device[DEVICE].renderer
    assert not any(u.op is Ops.MMA for u in compile_kernel(sink, renderer).uops)
    with Context(ALLOW_TF32=1):
        program = compile_kernel(sink, renderer)
        assert any(u.op is Ops.MMA and u.arg.staged for u in program.uops)
        np.testing.assert_allclose(run_on(DEVICE, sink, inputs, None)[0], want, rtol=1e-5, atol=1e-5)


# *** CUDA ***


def test_the_text_names_boxes_slots_and_steps() -> None:
    sink, _ = of_size(256, 256, 512)
    program = compile_kernel(sink, CUDA, tiled(sink, "wgmma_bf16_256", 2))
    for part in ("__launch_bounds__(256, 1)", "const __grid_constant__ TensorMap map1", "#pragma unroll 1",
                 "steps_drain<1>();", "wgmma_bf16_256_tt(acc0_0", "copy_box2(", "ring_wait(ring"):
        assert part in program.source, part
    kind = "bfloat16"
    assert program.maps == [[1, 0, kind, [256, 256], [1, 256], [64, 128], [], 128],
                            [2, 0, kind, [512, 256], [1, 512], [64, 64], [], 128]]
    assert program.local_bytes == 4 * (128 + 256) * 128 + 64


def test_the_text_of_roles_shares_out_registers() -> None:
    sink, _ = of_size(512, 256, 1024)
    source = compile_kernel(sink, CUDA, tiled(sink, "wgmma_bf16_256", 2, roles=True)).source
    for part in ("__launch_bounds__(384, 1)", "setmaxnreg.dec.sync.aligned.u32 40;",
                 "setmaxnreg.inc.sync.aligned.u32 232;", "ring_begin(free, 4, 8);", "ring_wait(free + 8 * ",
                 "if (threadIdx.x % 32 == 0) ring_release(free + 8 * ", "steps_drain<0>();"):
        assert part in source, part
    small = compile_kernel(sink, CUDA, tiled(sink, "wgmma_bf16_128", 1, roles=True)).source
    assert "setmaxnreg" not in small, "two groups may have as many as there are"


def test_the_text_of_turns_has_an_order() -> None:
    sink, _ = of_size(2048, 256, 4096)
    kernel = linearize_on("PYTHON:G512:C132:B232448", sink)
    apply_tile(kernel, [((r.arg[0], 0),) for r in (*kernel.parallel[-2:], kernel.reduces[0])], UNITS["wgmma_bf16_128"],
               UnitTile(2, 4, 1.0, True, turns=2))
    source = compile_kernel(sink, CUDA, kernel.opts).source
    for part in ("__launch_bounds__(384, 1)", "ring_begin(free, 4, 4);", "ring_begin(turn, 2, 4);",
                 "ring_wait(turn + 8 * ", "ring_release(turn + 8 * ", "steps_drain<1>();"):
        assert part in source, part


@pytest.mark.parametrize("transposed", ["", "a", "b", "ab"])
@pytest.mark.parametrize("unit, below, roles", [("wgmma_bf16_256", 2, False), ("wgmma_f16_128", 1, False),
                                                ("wgmma_bf16_256", 2, True), ("wgmma_tf32_256", 2, True)])
def test_the_assembler_keeps_steps_under_way(unit: str, below: int, roles: bool, transposed: str) -> None:
    """ptxas neither spills nor serializes the asynchronous steps (its notes C7510 to C7517)."""
    needs_nvrtc()
    if not UNITS[unit].turned and transposed != "b":
        return
    compiler = NVRTCCompiler("sm_90a")
    for epilogue in (False, True):
        sink, _ = of_size(264, 256, 520, transposed, 1 + epilogue, in_memory(UNITS[unit].a), epilogue)
        _, log = compiler._compiled(compile_kernel(sink, CUDA, tiled(sink, unit, below, roles=roles)).source)
        assert " 0 bytes spill stores" in log and "C75" not in log, log


def test_the_text_of_tf32_has_no_bits_for_turned_operands() -> None:
    sink, _, _ = float32s(256, 256, 512)
    source = compile_kernel(sink, CUDA, tiled(sink, "wgmma_tf32_256", 2)).source
    assert "wgmma.mma_async.sync.aligned.m64n256k8.f32.tf32.tf32" in source and '%129, 1, 1, 1;" :' in source


def test_tensors_take_it_by_default() -> None:
    rng = np.random.default_rng(0)
    a, w, b = (Tensor(rng.normal(size=s).astype(np.float32)).cast("bfloat16").realize()
               for s in ((72, 128), (136, 128), (136,)))

    def layer(a: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return (a @ w.T + b).gelu("tanh").cast("float32")

    got = layer(*(x.to(DEVICE) for x in (a, w, b))).numpy()
    np.testing.assert_allclose(got, layer(a, w, b).numpy(), rtol=2e-2, atol=5e-2)
