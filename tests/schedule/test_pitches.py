"""Row padding of products: the operands and results that get it, their values, and its cost."""
from __future__ import annotations

import copy
import math
from dataclasses import replace

import numpy as np
import pytest

from tests.schedule.helpers import make_copies_free
from tinsmith import Tensor
from tinsmith.backend.device import Device
from tinsmith.codegen.compile_kernel import compile_kernel
from tinsmith.codegen.render.cuda import CUDARenderer, cuda_target
from tinsmith.core.dtypes import dtypes, rounded_to_tf32
from tinsmith.core.settings import Context
from tinsmith.ir import Ops, UOp
from tinsmith.ir.uop import toposort
from tinsmith.schedule.passes.channels_last import pitched
from tinsmith.schedule.passes.rewrites import cast_below_views
from tinsmith.target.schedule_costs import Costs

DEVICE = "PYTHON:G256:B232448"
CUDA = cuda_target("sm_90a")


@pytest.fixture
def eager_to_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device on which copies and launches are free."""
    make_copies_free(monkeypatch, DEVICE)


def made(*values: Tensor) -> list[UOp]:
    return pitched(cast_below_views([v.uop for v in values]), CUDA)


def copies(*values: Tensor) -> list[tuple[int, ...]]:
    """Return the shapes of the stored values."""
    return [n.shape for n in toposort(made(*values)) if n.op is Ops.CONTIGUOUS]


def bf16(*shape: int) -> Tensor:
    return Tensor.empty(*shape, dtype=dtypes.bfloat16)


def test_what_is_copied_follows_from_a_price() -> None:
    a = bf16(4104, 4104)
    assert copies(a @ bf16(4104, 4104)) == [(4104, 1, 4160), (1, 4104, 4160)], "lines are split: both"
    assert copies(bf16(4096, 4096) @ bf16(4096, 4096)) == []
    assert copies(bf16(4000, 4000) @ bf16(4000, 4000)) == [], "rows begin in the middle of a line, at a sector"
    assert copies(a @ bf16(4104, 256)) == [], "too few columns to use the copy"
    assert copies(bf16(256, 256) @ bf16(256, 264)) == [], "too small for a launch"
    assert copies(bf16(4097, 4097) @ bf16(4097, 4097)) == [
        (4097, 1, 4160), (1, 4097, 4160), (4097, 4160, 1)], "no boxes: the result as well"
    assert copies(a @ bf16(4104, 4104), a @ bf16(4104, 4104).T)[0] == (4104, 1, 4160)
    assert len(copies(a @ bf16(4104, 4104), (a @ bf16(4104, 4104).T).exp())) == 3, "one copy for both products"
    x = Tensor.empty(4104, 4104)
    assert copies(x @ x) == [], "no unit reads float32 so"
    assert pitched([(a @ a).uop], replace(CUDA, units=()))[0] is (a @ a).uop


def test_what_a_unit_reads_along_the_reduction_only_is_turned() -> None:
    def f32(*shape: int) -> Tensor:
        return Tensor.empty(*shape)

    x = f32(2048, 2048)
    assert copies(x @ x) == copies(x @ x.T) == []
    with Context(ALLOW_TF32=1):
        assert copies(x @ f32(2048, 2048)) == [(1, 2048, 2048)], "columns"
        assert copies(x @ f32(2048, 2048).T) == []
        assert copies(x.T @ f32(2048, 2048)) == [(2048, 1, 2048), (1, 2048, 2048)], "both"
        assert copies(f32(2049, 2049) @ f32(2049, 2049)) == [(2049, 1, 2080), (1, 2049, 2080)], "padded as well"
        assert copies(f32(4, 2048, 2048) @ f32(4, 2048, 2048)) == [(4, 1, 2048, 2048)]
        assert copies(f32(256, 256) @ f32(256, 256)) == [], "too small for a launch"
        assert copies(x @ f32(2048, 2048).relu()) == [(1, 2048, 2048)], "computed and turned at once"


def test_operands_that_fusion_would_compute_for_each_tile_are_stored_once() -> None:
    """As the weights that autocast converts: a unit reads boxes of memory."""
    def sizes(*values: Tensor) -> list[int]:
        return [math.prod(shape) for shape in copies(*values)]

    x, w, v = bf16(2048, 2048), Tensor.empty(2048, 2048), Tensor.empty(2048, 2048)
    assert sizes(x @ w.cast("bfloat16").T) == [1 << 22]
    assert sizes(x @ w.cast("bfloat16"), x @ w.cast("bfloat16").T) == [1 << 22], "one copy for both"
    assert sizes(w.cast("bfloat16") @ (v * 2).cast("bfloat16").T) == [1 << 22] * 2
    assert sizes(bf16(128, 128) @ Tensor.empty(128, 128).cast("bfloat16")) == [], "too small for a launch"
    assert sizes(x @ (x @ x).cast("bfloat16")) == [], "fusion stores reductions in any case"
    assert sizes(x @ v.exp().sin().cos().tan().cast("bfloat16")) == [], "and long functions"


@pytest.mark.parametrize("form", ["ab", "aB", "Ab", "AB", "batch"])
@pytest.mark.usefixtures("eager_to_copy")
def test_turned_copies_compute_the_same(form: str) -> None:
    rng = np.random.default_rng(0)
    batch = (2,) if form == "batch" else ()
    x, y = (rng.normal(size=s).astype(np.float32) for s in ((*batch, 65, 131), (*batch, 131, 67)))
    a, b = (Tensor(v.T if turn else v, device=DEVICE).realize() for v, turn in ((x, form[0] == "A"), (y, "B" in form)))
    want = rounded_to_tf32(x) @ rounded_to_tf32(y)
    with Context(ALLOW_TF32=1):
        got = ((a.T if form[0] == "A" else a) @ (b.T if "B" in form else b)).numpy()
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_a_result_is_read_where_it_lies() -> None:
    """A product that reads a result with padded rows needs no copy."""
    a, b, c = bf16(2049, 4096), bf16(4096, 4097), bf16(4097, 4096)
    found = copies((a @ b) @ c)
    assert found == [(1, 4096, 4160), (2049, 4160, 1)]


@pytest.mark.parametrize("m, k, n", [(72, 193, 201), (65, 129, 67), (130, 72, 131), (129, 131, 128)])
@pytest.mark.parametrize("form", ["ab", "aB", "Ab", "batch", "epilogue"])
@pytest.mark.usefixtures("eager_to_copy")
def test_it_computes_the_same(m: int, k: int, n: int, form: str) -> None:
    rng = np.random.default_rng(m)
    batch = (2,) if form == "batch" else ()
    x, y = (rng.normal(size=s).astype(np.float32) for s in ((*batch, m, k), (k, n)))
    a = Tensor(x.T if form == "Ab" else x).cast("bfloat16").realize().to(DEVICE).realize()
    b = Tensor(y.T if form == "aB" else y).cast("bfloat16").realize().to(DEVICE).realize()
    left, right = (a.T if form == "Ab" else a), (b.T if form == "aB" else b)
    out = left @ right
    if form == "epilogue":
        out = (out + Tensor.arange(n, device=DEVICE).cast("bfloat16")).relu()
    want = (left.numpy().astype(np.float32) @ right.numpy().astype(np.float32))
    want = np.maximum(want + np.arange(n), 0) if form == "epilogue" else want
    np.testing.assert_allclose(out.cast("float32").numpy(), want, rtol=3e-2, atol=0.3)


def test_boxes_of_padded_rows_are_copied_by_the_engine() -> None:
    """A product of odd sizes becomes copies and one kernel with a ring."""
    from tinsmith.schedule.scheduler import Scheduler
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tinsmith.schedule.scheduler.Device", {DEVICE: Device[DEVICE]})
        renderer = copy.copy(Device[DEVICE].renderer)
        renderer.target = CUDA
        patch.setattr(Device[DEVICE], "_renderer", renderer)
        items = Scheduler([(bf16(4097, 4097) @ bf16(4097, 4097)).uop], DEVICE).run().items
    programs = [compile_kernel(item.sink, CUDARenderer(CUDA)) for item in items if item.sink is not None]
    assert [sorted({u.op.name for u in p.uops} & {"ASYNC_COPY", "MMA"}) for p in programs] == [
        [], [], ["ASYNC_COPY", "MMA"], []]
    assert [m[3:5] for m in programs[2].maps] == [[[4097, 4097], [1, 4160]]] * 2


def test_prices_are_data() -> None:
    assert Costs().balance > 0 and Costs().no_boxes > Costs().split_lines > 0
