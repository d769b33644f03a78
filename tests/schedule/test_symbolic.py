"""Symbolic sizes: one program serves all values of a variable."""
from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tinsmith import GlobalCounters, Tensor, Variable
from tinsmith.core.errors import ArgumentError
from tinsmith.ir import Ops, UOp
from tinsmith.schedule.canonical import canonical, seen


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


N, M = Variable("n", 1, 40), Variable("m", 1, 40)
DATA = Tensor(np.arange(1600, dtype=np.float32).reshape(40, 40)).realize()


@pytest.mark.parametrize("make", [
    lambda n, m: DATA[:n] * 2, lambda n, m: DATA[:n, :m].sum(0), lambda n, m: DATA[:m, :n].sum(0) + DATA[:n, 0].sum(),
    lambda n, m: DATA[n - 1:].sum(1) @ DATA[n - 1:], lambda n, m: DATA[:n].pad((0, 40 - m)) * Tensor(n),
    lambda n, m: Tensor(m) + DATA[:n].sum() + Tensor(n),
    lambda n, m: DATA[:n].reshape(n * 40)[: n * 8].cat(DATA[m // 2]),
    lambda n, m: DATA[0].expand(n, 40) + DATA[:1] * (n * m), lambda n, m: DATA[(n + m) // 2].sum() * m,
    lambda n, m: DATA[:n][:, :m].flip(0, 1).T.contiguous()])
def test_the_key_of_a_graph_says_what_its_canonical_graph_says(make: Callable[[UOp, UOp], Tensor]) -> None:
    graphs = [[make(N.bind(n), M.bind(m)).uop.base] for n, m in ((5, 7), (6, 8), (7, 5), (5, 5), (1, 40))]
    graphs.append([make(N.bind(5), N.bind(7)).uop.base])  # two values of one variable
    keys = []
    for graph in graphs:
        found = seen(graph)
        (whole, buffers, values) = canonical(graph)
        assert found is not None and found.symbolic
        assert (found.buffers, found.values) == (buffers, values)
        keys.append((found.key, tuple(whole)))
    for key, whole in keys:
        for other, its in keys:
            assert (key == other) == all(a is b for a, b in zip(whole, its, strict=True))
    assert len({whole for _, whole in keys}) <= 2


def test_a_variable_without_a_value_has_no_key() -> None:
    with pytest.raises(ArgumentError, match="'n' has no value"):
        (Tensor(DATA.uop.shrink(((0, N), (0, 6)))) * 2).numpy()
    assert seen([DATA.uop.shrink(((0, N), (0, 6)))]) is None
