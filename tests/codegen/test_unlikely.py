"""Unlikely paths (reduction of huge angles) are behind a branch, and every lane still gets the right value."""
from __future__ import annotations

import numpy as np
import pytest

from tests.codegen.running import NATIVE, expected, linearize_on, run_on
from tests.codegen.test_transcendentals import reference, ulps
from tinsmith.codegen.emit.linearize import linearize
from tinsmith.codegen.opt import Opt, OptOps
from tinsmith.core.dtypes import dtypes
from tinsmith.ir import Ops, UOp
from tinsmith.ir.verify import verify_program
from tinsmith.target.target import Target

FUSED = Target("text", vector_bytes=64, fma=True)
VECTOR = Opt(OptOps.VECTOR, 0, 16)


def leaf(number: int, *shape: int) -> UOp:
    return UOp(Ops.PARAM, dtypes.float32, (), (number, shape))


def sink(value: UOp) -> UOp:
    return UOp(Ops.SINK, None, (value,))


def angles(size: int, far: str) -> np.ndarray:
    """Return angles of which none, one in 50, or all are too large for the usual reduction."""
    rng = np.random.default_rng(size)
    near = rng.uniform(-1e5, 1e5, size)
    large = rng.choice([-1, 1], size) * np.exp2(rng.uniform(17, 127, size))
    x = np.where(rng.random(size) < {"none": 0, "some": 0.02, "all": 1}[far], large, near).astype(np.float32)
    x[:5] = [0.0, -0.0, np.inf, np.nan, 2.0**17][: len(x[:5])]
    return x


@pytest.mark.parametrize("far", ["none", "some", "all"])
@pytest.mark.parametrize("opts", [(), (VECTOR,), (VECTOR, Opt(OptOps.UPCAST, 0, 2)), None],
                         ids=["scalars", "lanes", "copies", "default"])
@pytest.mark.parametrize("device", ["PYTHON", *NATIVE])
def test_lanes_near_and_far(device: str, opts: tuple[Opt, ...] | None, far: str) -> None:
    x = angles(320, far)
    value = leaf(1, 320).alu(Ops.SIN)
    (got,) = run_on(device, sink(value), {value.src[0]: x}, opts)
    assert ulps(got, reference(Ops.SIN, x)).max() <= 2.0
    np.testing.assert_array_equal(np.signbit(got[:2]), [False, True])


@pytest.mark.parametrize("size", [1, 3, 15, 16, 17, 31, 47])
@pytest.mark.parametrize("device", NATIVE)
def test_partial_vectors(device: str, size: int) -> None:
    x = angles(size, "some")
    value = leaf(1, size).alu(Ops.SIN)
    (got,) = run_on(device, sink(value), {value.src[0]: x}, (VECTOR,) if size > 8 else ())
    assert ulps(got, reference(Ops.SIN, x)).max() <= 2.0


@pytest.mark.parametrize("device", ["PYTHON", *NATIVE])
def test_outside_of_a_loop_that_does_not_change_it(device: str) -> None:
    """The branch is in the outer loop, whose sine the inner loop shares; and again in a sum."""
    x, y = leaf(1, 6, 1), leaf(2, 6, 64)
    product = x.alu(Ops.SIN).expand((6, 64)) * y
    both = sink(product), sink(product.alu(Ops.SIN).reduce(Ops.ADD, (1,)))
    rng = np.random.default_rng(1)
    inputs = {x: angles(6, "some").clip(-1e30, 1e30).reshape(6, 1), y: rng.normal(0, 1e5, (6, 64)).astype(np.float32)}
    inputs[x][3] = 1.0  # no NaN
    for graph in both:
        (got,) = run_on(device, graph, inputs, None)
        np.testing.assert_allclose(got, expected(graph, inputs)[0], rtol=1e-5, atol=0.2)


def test_the_usual_way_is_free_of_what_is_rare() -> None:
    """64-bit operations occur only in the branch; accumulators of a sum's loop live across it."""
    x = leaf(1, 64)
    for value, opts in ((x.alu(Ops.SIN), (VECTOR,)), (x.alu(Ops.SIN).reduce(Ops.ADD, (0,)), ())):
        program = linearize(linearize_on("PYTHON", sink(value), opts, FUSED))
        verify_program(program)
        depth, inside = 0, 0
        for line in program:
            depth += (line.op is Ops.IF) - (line.op is Ops.ENDIF)
            wide = line.dtype.scalar is dtypes.uint64 and line.op is not Ops.CONST
            inside += wide
            assert depth == 1 or not wide
        assert inside > 10 and sum(line.op is Ops.IF for line in program) == 1
        assert all(line.op is not Ops.UNLIKELY for line in program)
