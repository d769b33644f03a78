"""Symbolic sizes: one program serves all values of a variable."""
from __future__ import annotations

import numpy as np

from tinsmith import GlobalCounters, Tensor
from tinsmith.ir import Ops, UOp


def bound(value: int) -> UOp:
    return UOp(Ops.BIND, None, (UOp.variable("n", 1, 40), UOp.index(value)))


def test_one_program_serves_every_size() -> None:
    data = np.arange(240, dtype=np.float32).reshape(40, 6)
    x = Tensor(data).realize()
    before = None
    for n in (27, 1, 40, 13):
        part = Tensor(x.uop.shrink(((0, bound(n)), (0, 6))))
        np.testing.assert_array_equal(part.sum(0).numpy(), data[:n].sum(0))
        doubled = (part + part).realize()
        np.testing.assert_array_equal(doubled.numpy(), 2 * data[:n])
        np.testing.assert_array_equal((doubled.sum(1) * 2).numpy(), 4 * data[:n].sum(1))
        if before is not None:
            assert GlobalCounters.schedule_count == before
        before = GlobalCounters.schedule_count


def test_equal_symbolic_sizes_are_one_node() -> None:
    x = Tensor.ones(40, 6).contiguous().realize()
    a, b = (Tensor(x.uop.shrink(((0, bound(9)), (0, 6)))) for _ in range(2))
    assert a.shape[0] is b.shape[0]
    assert (a * b).sum().item() == 54.0
