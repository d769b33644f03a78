"""Opts that the cost model chooses: they follow the memory access pattern, never the shape of a problem."""
from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from tests.codegen.running import run_on
from tests.codegen.structures import Inputs, convolution, weight_gradient
from tests.codegen.test_estimate import TARGET, kernel, matmul, param
from tinsmith.backend.device import Device
from tinsmith.codegen.compile_kernel import choose, compile_kernel
from tinsmith.codegen.kernel import Kernel
from tinsmith.codegen.opt import Opt, OptOps
from tinsmith.codegen.planner.candidate import stride_of
from tinsmith.codegen.planner.cost import busiest
from tinsmith.codegen.planner.cpu.loops import UPDATES
from tinsmith.codegen.render.cuda import CUDARenderer
from tinsmith.core.dtypes import DType, dtypes
from tinsmith.core.errors import ArgumentError
from tinsmith.ir import Ops, UOp
from tinsmith.ir.structure import Role, range_size
from tinsmith.ir.uop import toposort


def chosen(*values: UOp) -> Kernel:
    k = kernel(*values)
    choose(k, TARGET)
    return k


def opts(k: Kernel, *kinds: OptOps) -> list[Opt]:
    return [o for o in k.opts if o.op in kinds]


@pytest.mark.parametrize(("sizes", "packed"), [
    ((256, 256, 1000), True),  # rows of 1 KiB: a panel of them would share a part of the cache's sets
    ((256, 264, 1000), False), ((64, 256, 128), False), ((8, 256, 4096), False), ((512, 2048, 512), True)])
def test_panels_whose_rows_crowd_the_cache_are_packed(sizes: tuple[int, int, int], packed: bool) -> None:
    assert bool(opts(chosen(matmul(*sizes)), OptOps.STAGE)) == packed


@pytest.mark.parametrize("sizes", [(256, 256, 256), (1024, 1024, 1024), (64, 1000, 333)])
def test_tiles_leave_registers_for_both_operands(sizes: tuple[int, int, int]) -> None:
    copies = [o.amt for o in opts(chosen(matmul(*sizes)), OptOps.UPCAST)]
    rows, vectors = copies[0], copies[1] if len(copies) > 1 else 1
    assert isinstance(rows, int) and isinstance(vectors, int)
    assert rows * vectors + vectors + 1 <= TARGET.vector_registers


def test_elementwise_work_that_streams_out_looks_ahead() -> None:
    def ahead(size: int) -> list[Opt]:
        x, y = (param(n, (size,)) for n in (1, 2))
        return opts(chosen((x * y).alu("EXP")), OptOps.HINT)
    assert [o.axis for o in ahead(1 << 24)] == [None, 0, 1] and not ahead(1 << 16)


def scattered(rows: int, columns: int, results: int) -> UOp:
    where = UOp(Ops.PARAM, dtypes.int32, (), (2, (rows, 1))).expand((rows, columns))
    return param(1, (results, columns)).scatter(where, param(3, (rows, columns)), 0, "ADD")


@pytest.mark.parametrize("columns", [256, 48, 1040, 16, 17, 7])
def test_workers_add_rows_in_order_to_columns_of_their_own(columns: int) -> None:
    """Many rows are added to the same positions: the result is that of the sequential order."""
    rows, results = 600, 5
    rng = np.random.default_rng(1)
    inputs = {1: rng.standard_normal((results, columns)).astype(np.float32),
              2: rng.integers(-1, results + 1, (rows, 1)).astype(np.int32),
              3: rng.standard_normal((rows, columns)).astype(np.float32)}
    sink = UOp(Ops.SINK, None, (scattered(rows, columns, results),))
    want = inputs[1].copy()
    for at, x in zip(inputs[2][:, 0], inputs[3]):
        if 0 <= at < results:
            want[at] += x
    params = {p: inputs[p.arg[0]] for p in toposort(sink) if p.op is Ops.PARAM}
    (got,) = run_on("CPU", sink, params, None, threads=2)
    np.testing.assert_array_equal(got.reshape(want.shape), want)


def test_rows_of_a_scatter_are_walked_whole() -> None:
    k = kernel(scattered(600, 256, 5))
    choose(k, replace(TARGET, threads=2))
    (store,) = (s for s in k.stores if s.op is Ops.SCATTER_STORE)
    loops = [r for r in k.ranges if not r.arg[1].expanded]
    assert loops[0].arg[1] is Role.THREAD
    assert loops.index(store.src[4]) < len(loops) - 1 and loops[-1] in store.src[1].ranges


def scattered_elements(images: int, rows: int, columns: int, results: int, last: bool) -> UOp:
    """Elements with an index each, over the last axis or the one before it."""
    sizes = [(images, n, columns) if not last else (images, columns, n) for n in (rows, results)]
    base = UOp.const(dtypes.float32, 0).expand_to(sizes[1])
    return base.scatter(param(1, sizes[0], dtypes.int32), param(2, sizes[0]), 1 + last, "ADD")


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("images", "rows", "columns", "results"), [
    (3, 40, 64, 31), (1, 40, 64, 1), (2, 9, 13, 100), (1, 500, 7, 33), (2, 1, 1, 5), (1, 300, 100, 16)])
def test_elements_of_a_scatter_are_added_in_order(images: int, rows: int, columns: int, results: int, threads: int,
                                                  last: bool) -> None:
    sink = UOp(Ops.SINK, None, (scattered_elements(images, rows, columns, results, last),))
    shape = (images, columns, rows) if last else (images, rows, columns)
    rng = np.random.default_rng(1)
    at, x = rng.integers(-1, results + 1, shape).astype(np.int32), rng.standard_normal(shape).astype(np.float32)
    want = np.zeros((images, columns, results) if last else (images, results, columns), np.float32)
    for place in np.ndindex(shape):
        to = (*place[:2], at[place]) if last else (place[0], at[place], place[2])
        if 0 <= at[place] < results:
            want[to] += x[place]
    params = {p: {1: at, 2: x}[p.arg[0]] for p in toposort(sink) if p.op is Ops.PARAM}
    (got,) = run_on("CPU", sink, params, None, threads=threads)
    np.testing.assert_array_equal(got.reshape(want.shape), want)


def test_elements_of_a_scatter_are_walked_along_their_memory() -> None:
    k = kernel(scattered_elements(2, 400, 256, 400, last=False))
    choose(k, replace(TARGET, threads=1))
    (store,) = (s for s in k.stores if s.op is Ops.SCATTER_STORE)
    loops = [r for r in k.ranges if r in store.ranges and not r.arg[1].expanded]
    assert loops[-1] is not store.src[4] and stride_of(store.src[2].src[1].src[1], loops[-1]) == UPDATES
    assert any(r.arg[1] is Role.UPCAST for r in store.ranges)


def test_the_base_of_a_scatter_is_stored_in_vectors() -> None:
    k = kernel(scattered_elements(2, 400, 256, 400, last=True))
    choose(k, replace(TARGET, threads=1))
    (copy,) = (s for s in k.stores if s.op is Ops.STORE)
    assert any(r.arg[1] is Role.VECTOR for r in copy.ranges)


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64, dtypes.int8, dtypes.float16], ids=lambda d: d.name)
@pytest.mark.parametrize("device", ["PYTHON", "CPU", "CPU:C"])
def test_transposes(device: str, dtype: DType) -> None:
    for rows, columns in ((1, 5), (4, 4), (16, 16), (17, 20), (32, 31), (48, 36), (64, 12), (33, 65), (96, 64)):
        x = np.arange(3 * rows * columns).reshape(3, rows, columns).astype(dtype.numpy)
        leaf = UOp(Ops.PARAM, dtype, (), (1, x.shape))
        sink = UOp(Ops.SINK, None, (leaf.permute((0, 2, 1)) + leaf.const_like(1).permute((0, 2, 1)),))
        (got,) = run_on(device, sink, {leaf: x}, None, threads=2)
        np.testing.assert_array_equal(got.reshape(3, columns, rows), np.swapaxes(x, 1, 2) + x.dtype.type(1))


def test_blocks_are_transposed_in_registers() -> None:
    leaf = param(1, (64, 96))
    sink = UOp(Ops.SINK, None, (leaf.permute((1, 0)),))
    assert "masked.gather" not in compile_kernel(sink, Device["CPU"].renderer).source


@pytest.mark.parametrize(("images", "channels", "outwards"), [(64, 64, 2), (512, 64, 1), (512, 1, None), (8, 8, None)])
def test_short_pieces_far_apart_are_fetched_ahead(images: int, channels: int, outwards: int | None) -> None:
    """Rows of the next channel are prefetched if the current ones stay in the L1 cache, else rows of the next image."""
    hints = [o.amt for o in opts(chosen(weight_gradient(Inputs(), images, channels, 32, 8, 3)), OptOps.HINT)]
    assert hints == ([] if outwards is None else [(1, 0, outwards)])


def test_a_packed_operand_is_transposed_in_blocks() -> None:
    a, b = param(1, (70, 1, 64)).expand((70, 96, 64)), param(2, (1, 96, 64)).expand((70, 96, 64))
    source = compile_kernel(UOp(Ops.SINK, None, ((a * b).reduce("ADD", (2,)),)), Device["CPU"].renderer).source
    assert "masked.gather" not in source


def test_lanes_follow_what_moves_most_not_the_few_numbers_of_a_channel() -> None:
    whole = (4, 32, 20, 20)
    x, pooled = param(1, whole), param(2, (4, 32, 20, 10, 1)).expand((4, 32, 20, 10, 2)).reshape(whole)
    mean, scale, shift = (param(n, (1, 32, 1, 1)).expand(whole) for n in (3, 4, 5))
    k = chosen(((x - mean) * scale + shift - pooled).reduce("ADD", (0, 2, 3)).reshape((32,)))
    (lanes,) = (r for r in k.order if r.arg[1] is Role.VECTOR)
    assert {stride_of(n.src[1], lanes) for n in k.loads if n.src[0].arg[0] == 1} == {1}


@pytest.mark.parametrize(("columns", "ahead"), [(2048, True), (1 << 15, False)])
def test_the_last_pass_over_a_row_fetches_the_next(columns: int, ahead: bool) -> None:
    """The prefetch overlaps with the exponentials, which use no memory bandwidth; two rows must fit the L1 cache."""
    x = param(1, (512, columns))
    power = (x - x.reduce("MAX", (1,)).expand(x.shape)).alu("EXP")
    hints = [o.amt for o in opts(chosen(power.reduce("ADD", (1,))), OptOps.HINT)]
    assert [isinstance(a, tuple) for a in hints] == [ahead]
    if ahead:
        source = compile_kernel(UOp(Ops.SINK, None, (power.reduce("ADD", (1,)),)), Device["CPU"].renderer).source
        loops = [part for part in source.split("\nloop") if "load <" in part]
        assert [part.count("llvm.prefetch") > 0 for part in loops] == [False, True]


@pytest.mark.parametrize(("columns", "ahead"), [(1024, 64), (2048, 128), (1 << 13, None)])
def test_the_pass_that_keeps_a_row_fetches_the_next(columns: int, ahead: int | None) -> None:
    """Softmax: the exponentials are stored in local memory, which must fit the L1 cache with two rows; no other pass
    prefetches the same rows."""
    x = param(1, (512, columns))
    power = (x - x.reduce("MAX", (1,)).expand(x.shape)).alu("EXP")
    k = chosen(power / power.reduce("ADD", (1,)).expand(x.shape))
    hints = [o for o in opts(k, OptOps.HINT) if o.axis is not None]
    assert len(hints) == 1 and hints[0].amt == ((ahead, 0) if ahead else 16)
    (stage,) = (n for n in k.nodes if n.op is Ops.STAGE)
    own = {r.arg[0] for r in stage.src[1:]}
    assert [n.arg.loop in own for n in k.loads if n.arg is not None] == [ahead is not None]


def test_a_hint_of_two_numbers_is_checked() -> None:
    k = kernel(param(1, (64, 64)).reduce("ADD", (1,)))
    with pytest.raises(ArgumentError, match="number of iterations"):
        k.apply(Opt(OptOps.HINT, 0, (4, 2)))
    with pytest.raises(ArgumentError, match="has 2 enclosing loops"):
        k.apply(Opt(OptOps.HINT, 0, (4, 0, 2)))


@pytest.mark.parametrize(("sizes", "vectors"), [
    ((256, 256, 256), 2),  # a panel of two vectors fits the first cache, one of four does not
    ((2048, 2048, 2048), 4),  # the scalars do not fit the second cache: few panels
    ((784, 512, 80), 4)])  # a panel of four fits the first cache
def test_tiles_are_as_wide_as_what_feeds_them_asks_for(sizes: tuple[int, int, int], vectors: int) -> None:
    assert opts(chosen(matmul(*sizes)), OptOps.UPCAST)[-1].amt == vectors


def test_workers_share_panels_evenly() -> None:
    assert busiest(32, 4, 2) == 1.0 and busiest(32, 3, 2) == 34 / 32
    assert busiest(3, 4, 2) == busiest(99, 3, 1) == 1.0  # the rows are shared out; there is nobody to share with


@pytest.mark.parametrize(("size", "lanes"), [(6, 8), (5, 8), (4, 4)])
def test_short_rows_get_lanes_where_no_long_ones_lie_along_memory(size: int, lanes: int) -> None:
    whole = (512, 64, size, size)
    x, mean = param(1, whole), param(2, (1, 64, 1, 1)).expand(whole)
    pooled = param(3, (512, 64, size, 1)).expand(whole)
    k = chosen(((x - mean) * pooled).reduce("ADD", (0, 2, 3)).reshape((64,)))
    assert [range_size(r) for r in k.order if r.arg[1] is Role.VECTOR] == [lanes]


@pytest.mark.parametrize("sizes", [(512, 1, 32, 64, 10, 3, 1, 0, 1), (512, 1, 64, 64, 8, 3, 1, 2, 1)])
def test_products_of_windows_fill_blocks_and_use_what_they_load_again(sizes: tuple[int, ...]) -> None:
    """Narrow images still get full thread blocks; loaded elements are reused for several images and channels."""
    inputs = Inputs()
    made = compile_kernel(UOp(Ops.SINK, None, (convolution(inputs, *sizes),)), CUDARenderer())
    assert math.prod(made.block) >= 64
    copies = [o.amt for o in made.opts if o.op is OptOps.UPCAST and isinstance(o.amt, int)]
    assert math.prod(copies) >= 8 and [o.depth for o in made.opts if o.op is OptOps.STAGE] == [2, 2]


def test_short_sums_fill_the_cores() -> None:
    """32 sums of 64 × 400 elements take more than one block, and a sum over several short ranges is split."""
    x = param(1, (32, 64, 400))
    made = compile_kernel(UOp(Ops.SINK, None, (x.permute((1, 0, 2)).reduce("ADD", (0, 2)),)), CUDARenderer())
    assert math.prod(made.grid) == 32 and math.prod(made.block) >= 32
    y = param(1, (64, 8, 24, 24)).shrink(((0, 64), (0, 8), (2, 22), (2, 22))).reduce("ADD", (1, 2, 3))
    made = compile_kernel(UOp(Ops.SINK, None, (y,)), CUDARenderer())
    assert math.prod(made.grid) == 64 and math.prod(made.block) >= 32


@pytest.mark.parametrize("stride", [1, 2])
def test_images_are_copied_once_where_all_panels_of_weights_stay_near(stride: int) -> None:
    """The loops over image copies enclose those over weight panels; with larger weights a panel would serve all
    images."""
    for channels, images_outside in ((64, True), (512, False)):
        k = chosen(convolution(Inputs(), 4, 1, channels, 128, 28, 3, stride, 1, 1))
        image = next(n for n in k.nodes if n.op is Ops.STAGE and any(len(x.src) > 2 for x in toposort(n.src[0])))
        copies = max(k.order.index(r) for r in image.ranges)
        panels = min(n for n, r in enumerate(k.order) if not r.arg[1].expanded and r not in image.ranges)
        assert (copies < panels) == images_outside


def test_steps_of_a_window_that_share_scalars_are_written_out_only_with_registers_to_keep_them() -> None:
    """Strided windows included: 28 accumulators and 17 scalars would spill."""
    for rows, stride, written in ((56, 1, True), (56, 2, False)):
        k = chosen(convolution(Inputs(), 4, 1, 64, 64, rows, 3, stride, 1, 1))
        assert bool(opts(k, OptOps.UNROLL)) == written
