"""The normal form of kernel graphs: every rule preserves the value and has its intended effect."""
from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.codegen.running import expected, run_on
from tinsmith.backend.device import Device
from tinsmith.codegen.compile_kernel import begin
from tinsmith.codegen.lower.lower import lower
from tinsmith.codegen.lower.normalize import normal_form, normalize
from tinsmith.core.dtypes import DType, dtypes
from tinsmith.ir import Ops, UOp
from tinsmith.ir.graphs import joined
from tinsmith.ir.rewrite import Rule
from tinsmith.ir.uop import toposort


@pytest.mark.parametrize("rule", normal_form.rules, ids=lambda r: r.name)
def test_every_rule_has_an_example(rule: Rule) -> None:
    node = rule.example()
    new = rule.apply(node)
    assert new is not None and new is not node and new.dtype is node.dtype


def _picked(dtype: DType, classes: int, shifted: bool) -> UOp:
    """Return the element of each row that a label selects, as a masked sum over the row."""
    x = UOp(Ops.PARAM, dtypes.float32, (), (2, (6, classes)))
    label = UOp(Ops.PARAM, dtype, (), (1, (6, 1)))
    if shifted:
        x = x - x.reduce(Ops.MAX, (1,)).expand(x.shape)
    hit = x.iota_like(1).cast(dtype).eq(label.expand(x.shape))
    return UOp(Ops.SINK, None, (hit.where(x, x.const_like(0)).reduce(Ops.ADD, (1,)).reshape((6,)),))


@pytest.mark.parametrize("device", ["PYTHON", "CPU"])
@pytest.mark.parametrize("shifted", [False, True], ids=["plain", "shifted"])
@pytest.mark.parametrize("dtype", [dtypes.int32, dtypes.int64, dtypes.uint8], ids=lambda d: d.name)
def test_a_sum_over_one_place_is_a_load(dtype: DType, shifted: bool, device: str) -> None:
    """Out-of-range labels select nothing; infinities elsewhere in the row do not affect the result."""
    sink, classes = _picked(dtype, 7, shifted), 7
    x = np.random.default_rng(0).standard_normal((6, classes)).astype(np.float32)
    x[0, 3] = x[1, 2] = -np.inf
    labels = np.array([2, 2, 6, 0, 7, 200 if dtype.is_unsigned else -1], dtype.numpy)
    params = {p.arg[0]: p for p in toposort(sink) if p.op is Ops.PARAM}
    (got,) = run_on(device, sink, {params[1]: labels.reshape(6, 1), params[2]: x}, None)
    moved = x - x.max(1, keepdims=True) if shifted else x
    want = [moved[i, k] if 0 <= k < classes else 0 for i, k in enumerate(labels.astype(int))]
    np.testing.assert_array_equal(got, np.array(want, np.float32))
    sums = [n for n in toposort(normalize(lower(sink))) if n.op is Ops.FOLD and n.arg is Ops.ADD]
    assert not sums


def test_a_dtype_too_small_for_the_range_stays_a_sum() -> None:
    sums = [n for n in toposort(normalize(lower(_picked(dtypes.uint8, 300, False)))) if n.op is Ops.FOLD]
    assert len(sums) == 1


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=3), st.integers(1, 5), st.sampled_from((1, 2, 4, 7, 8, 12, 32)),
       st.sampled_from((dtypes.float32, dtypes.float16, dtypes.int64)), st.booleans(), st.booleans())
def test_rows_of_heads(heads: list[int], rows: int, width: int, dtype: DType, summed: bool, shared: bool) -> None:
    """Heads that lie apart in memory become the columns of a matrix, as a map, a sum over rows, or both."""
    parts = [UOp(Ops.PARAM, dtype, (), (1 + (summed and shared) + n, (h, rows, width))) for n, h in enumerate(heads)]
    matrix = joined([x.permute((1, 0, 2)).reshape((rows, x.shape[0] * width)) for x in parts], 1)
    values = (matrix + matrix, *([(matrix * matrix).reduce(Ops.ADD, (0,))] if summed else []))
    sink = UOp(Ops.SINK, None, values if shared or not summed else values[1:])
    rng = np.random.default_rng(0)
    inputs = {x: rng.integers(-3, 4, x.shape).astype(dtype.numpy) for x in parts}
    for device in ("PYTHON:G256:C4", "PYTHON"):
        for got, want in zip(run_on(device, sink, inputs, None), expected(sink, inputs), strict=True):
            np.testing.assert_array_equal(got, want)
    if not summed and width * dtype.itemsize >= 32 and dtype is not dtypes.int64:
        target = Device["PYTHON:G256:C4"].renderer.target
        steps = [n.src[1] for n in begin(sink, target).of(Ops.LOAD)]
        assert not any(n.op is Ops.MOD for s in steps for n in toposort(s)), "loops over heads have constant steps"
