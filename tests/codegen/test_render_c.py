"""C renderer: compiled with gcc or clang, every op of every dtype has its defined value; accesses are in bounds."""
from __future__ import annotations

import numpy as np
import pytest

from tests.codegen.render_cases import ALL, CHECKS, WIDTHS, check_constants
from tests.codegen.running import HAS_C, run_on
from tests.codegen.test_render_llvm import run_guarded
from tinsmith import Tensor
from tinsmith.backend.device import Device
from tinsmith.codegen.compile_kernel import compile_kernel
from tinsmith.core.dtypes import DType, dtypes
from tinsmith.ir import Ops, UOp

pytestmark = pytest.mark.skipif(not HAS_C, reason="no C compiler")


@pytest.mark.parametrize("dtype", ALL, ids=lambda d: d.name)
@pytest.mark.parametrize("what", CHECKS)
def test_meaning(what: str, dtype: DType) -> None:
    for width in WIDTHS[:1] if what == "reductions" else (1, 8):
        CHECKS[what]("CPU:C", dtype, width)


@pytest.mark.parametrize("dtype", dtypes.ints, ids=lambda d: d.name)
def test_constant_right_sides(dtype: DType) -> None:
    check_constants("CPU:C", dtype, 1)


def test_no_access_leaves_a_buffer() -> None:
    done = run_guarded("CPU:C", "all")
    assert done.returncode == 0, done.stderr


def test_negative_constants_and_zeros() -> None:
    x = UOp(Ops.PARAM, dtypes.float32, (), (1, (2,)))
    y = x - x.const_like(-0.0) - x.const_like(-2.0)
    values = np.array([1.0, -0.0], np.float32)
    (got,) = run_on("CPU:C", UOp(Ops.SINK, None, (y,)), {x: values})
    assert got.tolist() == [3.0, 2.0]


@pytest.mark.skipif(not HAS_C, reason="no C compiler")
def test_a_condition_on_lanes_that_an_accumulator_takes_in() -> None:
    """The condition gets a variable, because an accumulator is assigned as one vector."""
    x = UOp(Ops.PARAM, dtypes.float32, (), (1, (64,)))
    sink = UOp(Ops.SINK, None, (x.ne(x).reduce("OR", (0,)),))
    for values in (np.zeros(64, np.float32), np.where(np.arange(64) == 41, np.nan, 1).astype(np.float32)):
        (got,) = run_on("CPU:C", sink, {x: values}, None)
        assert got.tolist() == [np.isnan(values).any()]


def test_text_of_the_dot_product() -> None:
    a, b = (UOp(Ops.PARAM, dtypes.int32, (), (n, (2,))) for n in (1, 2))
    sink = UOp(Ops.SINK, None, ((a * b).reduce("ADD", (0,)),))
    source = compile_kernel(sink, Device["CPU:C"].renderer, ()).source
    body = source[source.index("{") : source.index("}\n") + 1]
    assert body == """{
  int acc0 = 0;
  for (int ridx0 = 0; ridx0 < 2; ridx0++) {
    int val0 = *(data1+ridx0);
    int val1 = *(data2+ridx0);
    acc0 = (acc0+(val0*val1));
  }"""


@pytest.mark.parametrize("axis", [None, 0, -1])
@pytest.mark.parametrize("shape", [(64, 64), (7, 130), (33,)], ids=str)
def test_reductions_of_conditions(shape: tuple[int, ...], axis: int | None) -> None:
    x = np.random.default_rng(0).random(shape).astype(np.float32)
    values = Tensor(x, device="CPU:C")
    for limit in (0.01, 0.5, 0.99):
        bound = Tensor([limit], device="CPU:C")  # no constant: the kernels of one limit serve all
        lazy, want = values < bound, x < np.float32(limit)
        for condition in (lazy, Tensor(want, device="CPU:C"), (values >= bound).logical_not()):
            for op in ("any", "all", "max", "min", "argmax", "argmin"):
                np.testing.assert_array_equal(getattr(condition, op)(axis).numpy(), getattr(want, op)(axis))
