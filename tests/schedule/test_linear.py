"""Scheduling and the disk key visit each node a bounded number of times, for any depth of a graph.

The memory plan makes a bounded number of array operations for each temporary, over all of them.
"""
from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.counting import calls_of
from tinsmith.backend.memory import Buffer
from tinsmith.core.dtypes import dtypes
from tinsmith.ir import Ops, UOp
from tinsmith.runtime import disk_programs
from tinsmith.schedule.canonical import canonical, seen
from tinsmith.schedule.fusion.horizontal import fuse_horizontally
from tinsmith.schedule.memory.memory_plan import plan_memory
from tinsmith.schedule.schedule_item import Schedule
from tinsmith.schedule.scheduler import Scheduler
from tinsmith.tensor.tensor import Tensor


def elementwise(nodes: int) -> UOp:
    """A chain of sums; every tenth node is stored."""
    x = y = UOp(Ops.BUFFER, dtypes.float32, (), Buffer("CPU", 8, dtypes.float32))
    for _ in range(nodes // 11):
        for _ in range(9):
            y = y + x
        y = y.flip((0,)).contiguous()
    return y


def reductions(nodes: int) -> UOp:
    """A chain of reductions, each of which needs the full result of the previous one."""
    x = y = UOp(Ops.BUFFER, dtypes.float32, (), Buffer("CPU", 8, dtypes.float32))
    for _ in range(nodes // 5):
        y = x * y.reduce("MAX", (0,)).expand((8,)) + x
    return y.contiguous()


def branches(nodes: int) -> UOp:
    """Many stored values, all alive until a final sum."""
    x = UOp(Ops.BUFFER, dtypes.float32, (), Buffer("CPU", 8, dtypes.float32))
    values = [(x * float(n + 2)).flip((0,)).contiguous() for n in range(nodes // 5)]
    while len(values) > 1:
        values = [(a + b).contiguous() for a, b in zip(values[::2], values[1::2])] + values[len(values) & ~1 :]
    return values[0]


def gradients(nodes: int) -> UOp:
    """The gradient of a chain of functions, which needs all of their values."""
    x = y = Tensor([0.5] * 8, requires_grad=True).realize()
    for _ in range(nodes // 6):
        y = y.sin()
    y.sum().backward()
    return _grad(x)


def unrolled(nodes: int) -> UOp:
    """The gradient of a recurrent cell, written as a loop."""
    w = Tensor.ones(8, 32, requires_grad=True).realize()
    steps = Tensor.ones(nodes // 150 + 1, 4, 32).realize()
    h = c = Tensor.ones(4, 8).realize()
    for n in range(nodes // 150 + 1):
        i, f, g, o = (h @ w + steps[n]).chunk(4, 1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
    h.sum().backward()
    return _grad(w)


def joined(nodes: int) -> UOp:
    """Concatenations of concatenations."""
    x = y = Tensor.ones(4).realize()
    for _ in range(nodes // 4):
        y = y.cat(x)
    return y.uop.contiguous()


def assigned(nodes: int) -> UOp:
    """Elements set one by one before anything is realized."""
    y = Tensor.zeros(64).contiguous().realize()
    for n in range(nodes // 8):
        y[n % 64] = float(n)
    return y.uop.contiguous()


def layers(nodes: int) -> UOp:
    """The gradient for the first of many layers with row statistics."""
    x = first = Tensor.ones(4, 8, requires_grad=True).realize()
    w = Tensor.ones(8, 8).realize()
    for _ in range(nodes // 80):
        x = x + (x @ w).layernorm().relu()
    x.sum().backward()
    return _grad(first)


def _grad(x: Tensor) -> UOp:
    assert x.grad is not None
    return x.grad.uop.contiguous()


def scheduled(root: UOp) -> Schedule:
    assert seen([root]) is not None
    graph = canonical([root])[0]
    disk_programs.encode(graph)
    found = Scheduler(graph, "CPU").run()
    found.items = fuse_horizontally(found)
    plan_memory(found)
    return found


@pytest.mark.parametrize("make", [elementwise, reductions, branches, gradients, unrolled, joined, assigned, layers])
def test_work_grows_in_step_with_the_graph(make: Callable[[int], UOp]) -> None:
    small, large = make(1000), make(4000)
    scheduled(make(100))  # what is done once is no part of it
    assert calls_of(lambda: scheduled(large)).total() < 4.6 * calls_of(lambda: scheduled(small)).total()


def test_a_hundred_thousand_nodes() -> None:
    root = elementwise(100_000)
    assert len(root.toposort()) > 90_000
    found = scheduled(root)
    assert len(found.items) == 100_000 // 11
    assert sum(plan_memory(found).sizes.values()) <= 4 * 128
