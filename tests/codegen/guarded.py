"""Kernels with partial vectors, padding and gathers on buffers that end at a protected page; see test_render_llvm.

``python -m tests.codegen.guarded CPU all`` ends with a fault if any access leaves a buffer.
"""
from __future__ import annotations

import sys

import numpy as np

from tests.codegen.running import expected, run_on
from tinsmith.codegen.opt import Opt, OptOps
from tinsmith.core.dtypes import DType, dtypes
from tinsmith.ir import Ops, UOp

VECTOR, PADTO, UPCAST = OptOps.VECTOR, OptOps.PADTO, OptOps.UPCAST
SPLITS = ([Opt(VECTOR, 0, 4)], [Opt(VECTOR, 0, 8)], [Opt(PADTO, 0, 16), Opt(VECTOR, 0, 16)],
          [Opt(PADTO, 0, 32), Opt(VECTOR, 0, 4)], [Opt(UPCAST, 0, 3), Opt(VECTOR, 0, 4)])


def check(device: str, value: UOp, inputs: dict[UOp, np.ndarray], opts: list[Opt]) -> None:
    sink = UOp(Ops.SINK, None, (value,))
    (want,) = expected(sink, inputs)
    (got,) = run_on(device, sink, inputs, opts)
    np.testing.assert_array_equal(got, want, str(opts))


def run(device: str, dtype: DType) -> None:
    """Run the kernels on guarded buffers; fewer of them with the C compiler, which is slow."""
    random = np.random.default_rng(1)
    sizes, splits = ((13,), SPLITS[1:3]) if device.endswith(":C") else ((11, 13, 17), SPLITS)
    for n, opts in ((n, opts) for n in sizes for opts in splits):
        values = random.integers(0, 2 if dtype.is_bool else 9, n).astype(dtype.numpy)
        x = UOp(Ops.PARAM, dtype, (), (1, (n,)))
        both = x.maximum(x)
        check(device, both, {x: values}, opts)
        check(device, both.flip((0,)), {x: values}, opts)
        check(device, both.pad(((3, 5),)), {x: values}, opts)
        check(device, both.shrink(((2, n),)), {x: values}, opts)
        if not dtype.is_bool:
            check(device, both.reduce("ADD", (0,)), {x: values}, [o for o in opts if o.op is not UPCAST])
        index = UOp(Ops.PARAM, dtypes.int32, (), (2, (n,)))
        places = random.integers(-3, n + 3, n).astype(np.int32)
        check(device, x.gather(index, 0), {x: values, index: places}, opts)


def outside(device: str) -> None:
    """A program that reads one element past the end, to prove that the guard page works."""
    x = UOp(Ops.PARAM, dtypes.float32, (), (1, (1025,)))
    sink = UOp(Ops.SINK, None, (x + x,))
    run_on(device, sink, {x: np.zeros(1024, np.float32)})


if __name__ == "__main__":
    if sys.argv[2] == "outside":
        outside(sys.argv[1])
    else:
        for checked in (dtypes.float32, dtypes.bool, dtypes.int8, dtypes.float64):
            run(sys.argv[1], checked)
