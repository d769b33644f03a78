"""``EXCESS_PRECISION=1``: kernels round 16-bit floats where they store them, compare them or multiply them in sums."""
from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinsmith import Context, Tensor
from tinsmith.backend.device import Device
from tinsmith.codegen.compile_kernel import compile_kernel
from tinsmith.core.dtypes import DType, dtypes
from tinsmith.ir import Ops, UOp
from tinsmith.ir.uop import toposort

HALVES = st.sampled_from((dtypes.bfloat16, dtypes.float16))
STEPS = ("add", "mul", "square", "tanh", "silu", "clamp", "where", "cast", "half", "neg")
# of one rounding, relative: bfloat16 keeps 8 bits, float16 11
UNIT = {dtypes.bfloat16: 2.0**-8, dtypes.float16: 2.0**-11}


def applied(name: str, x: Tensor, y: Tensor) -> Tensor:
    """Apply one step to ``x``, in its dtype; steps keep values and their sensitivity to errors small."""
    half = x.dtype
    return {"add": lambda: x + y, "mul": lambda: x * y * 0.5, "square": lambda: x * x * 0.25, "tanh": x.tanh,
            "silu": x.silu, "clamp": lambda: x.clamp(-1, 1), "where": lambda: (y > 0).where(x * 0.5, y),
            "cast": lambda: x.float().cast(half) * 0.5, "half": lambda: x.float().exp().cast(half) * 0.1,
            "neg": lambda: -x}[name]()


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(STEPS), min_size=1, max_size=8), HALVES, st.sampled_from(("CPU", "PYTHON")))
def test_a_chain_rounds_once(steps: list[str], half: DType, device: str) -> None:
    rng = np.random.default_rng(len(steps))
    x, y = (Tensor(rng.uniform(-2, 2, 33).astype(np.float32), device=device).cast(half).realize() for _ in range(2))

    def chain(a: Tensor, b: Tensor) -> Tensor:
        for name in steps:
            a = applied(name, a, b)
        return a

    with Context(EXCESS_PRECISION=1):
        got = chain(x, y).float().numpy()
    exact = chain(x.float().realize(), y.float().realize()).cast(half).float().numpy()
    # the exact chain in float32, rounded once; the last bit differs where float32's own errors decide a tie
    assert np.all(np.abs(got - exact) <= UNIT[half] * np.abs(exact) + 1e-6)


@given(HALVES)
@settings(max_examples=4, deadline=None)
def test_comparisons_hold_between_stored_values(half: DType) -> None:
    """The position of a maximum is found by comparing with the stored maximum."""
    rng = np.random.default_rng(0)
    x, y = (Tensor(rng.uniform(-2, 2, (64, 50)).astype(np.float32)).cast(half).realize() for _ in range(2))
    with Context(EXCESS_PRECISION=1):
        z = x * y * 1.1 + y
        most = z.max(1, keepdim=True).realize()
        hits = (z == most).sum(1).numpy()
        same = (z.contiguous() >= most).sum(1).numpy()
    assert hits.min() >= 1 and np.array_equal(hits, same)


@pytest.mark.parametrize("device", ["CPU", "PYTHON"])
def test_factors_of_sums_stay_narrow(device: str) -> None:
    """Matrix units multiply 16-bit floats: a computed operand is rounded before the product."""
    x, y = (Tensor.rand(48, 48, device=device).cast("bfloat16").realize() for _ in range(2))
    with Context(EXCESS_PRECISION=1):
        got = ((x * y + 1).relu() @ y).realize().float().numpy()
        sink = ((x * 2).relu() @ y).schedule().steps[-1].item.sink
        kernel = compile_kernel(sink, Device[device].renderer).kernel
    with Context(EXCESS_PRECISION=0):
        operand = (x.float() * y.float() + 1).relu().cast("bfloat16").realize()
        want = (operand @ y).realize().float().numpy()
    np.testing.assert_array_equal(got, want)
    assert isinstance(sink, UOp) and kernel is not None
    folds = [n for n in kernel.nodes if n.op in (Ops.FOLD, Ops.MMA)]
    assert folds and any(n.dtype.scalar is dtypes.bfloat16 for f in folds for n in toposort(f.src[0]))


def test_each_operation_rounds_without_it() -> None:
    x = Tensor([1.0]).cast("bfloat16").realize()
    assert (x + 2.0**-8 - 1).float().item() == 0
    with Context(EXCESS_PRECISION=1):
        assert (x + 2.0**-8 - 1).float().item() == 2.0**-8
