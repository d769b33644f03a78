"""Kernels with outputs over the same axes, the last of which are sums over one axis accumulated in memory."""
from __future__ import annotations

import numpy as np
import pytest

from tests.codegen.running import Array, expected, run_graph, run_on
from tests.codegen.structures import sums_of_steps
from tinsmith.backend.device import Device
from tinsmith.codegen.compile_kernel import begin, choose
from tinsmith.codegen.opt import Opt, OptOps
from tinsmith.core.dtypes import dtypes
from tinsmith.core.errors import ArgumentError
from tinsmith.ir import Ops, UOp
from tinsmith.ir.structure import Role

CASES = {name: (sink, inputs) for name, sink, inputs in sums_of_steps()}


def compare(sink: UOp, inputs: dict[UOp, Array], opts: list[Opt]) -> None:
    right = expected(sink, inputs)
    for found in (run_graph(sink, inputs, opts), *(run_on(d, sink, inputs, opts) for d in ("PYTHON", "CPU"))):
        for got, want in zip(found, right, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("name", CASES)
def test_without_opts(name: str) -> None:
    compare(*CASES[name], [])


@pytest.mark.parametrize("name", CASES)
def test_with_the_opts_of_the_model(name: str) -> None:
    sink, inputs = CASES[name]
    kernel = begin(sink, Device["CPU"].renderer.target)
    choose(kernel, Device["CPU"].renderer.target)
    compare(sink, inputs, kernel.opts)


@pytest.mark.parametrize(("name", "steps"), [("sums of steps (5, 8, 15) dtypes.float", 2),
                                             ("sums of steps (5, 8, 15) dtypes.float", 4),
                                             ("sums of products (2, 6, 33)", 3)])
def test_steps_together(name: str, steps: int) -> None:
    """An unrolled loop of steps adds its terms in registers before the accumulator in memory is updated."""
    sink, inputs = CASES[name]
    kernel = begin(sink, Device["CPU"].renderer.target)
    at = next(n for n, r in enumerate(kernel.ranges) if r.arg[1] is Role.BLOCK)
    opts = [Opt(OptOps.UPCAST, at, steps)]
    compare(sink, inputs, opts)
    compare(sink, inputs, [*opts, Opt(OptOps.VECTOR, at + 1, 16)])


@pytest.mark.parametrize("steps", [3, 8, 16])
def test_only_whole_copies_of_steps(steps: int) -> None:
    sink, _ = CASES["sums of steps (5, 8, 15) dtypes.float"]
    kernel = begin(sink, Device["CPU"].renderer.target)
    before = kernel.sink
    at = next(n for n, r in enumerate(kernel.ranges) if r.arg[1] is Role.BLOCK)
    with pytest.raises(ArgumentError):
        kernel.apply(Opt(OptOps.UPCAST, at, steps))
    with pytest.raises(ArgumentError):
        kernel.apply(Opt(OptOps.VECTOR, at, 4))
    assert kernel.sink is before


def test_every_row_is_read_before_the_next() -> None:
    """Accumulators are zeroed before the loop; one loop over the steps holds statistics, rows and added terms."""
    sink, _ = CASES["sums of steps (5, 8, 15) dtypes.float"]
    kernel = begin(sink, Device["CPU"].renderer.target)
    assert [r.arg[1] for r in kernel.order] == [Role.LOOP, Role.BLOCK, Role.LOOP, Role.REDUCE]
    assert [s.op for s in kernel.sink.src] == [Ops.STORE] * 4 + [Ops.SCATTER_STORE] * 2


def test_large_results_beside_sums_are_written_past_the_caches() -> None:
    """Large results use non-temporal stores; the sums do not, since they are read again."""
    x = UOp(Ops.PARAM, dtypes.float32, (), (2, (16, 256, 4096)))
    kernel = begin(UOp(Ops.SINK, None, (x.alu("EXP"), x.reduce("ADD", (1,))), 1), Device["CPU"].renderer.target)
    choose(kernel, Device["CPU"].renderer.target)
    assert [s.arg for s in kernel.sink.src] == [None, "stream", None]
