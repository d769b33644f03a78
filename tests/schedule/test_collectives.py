"""Collectives: all algorithms give the same values, and the cheaper ones less traffic."""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tinsmith import Tensor, dtypes
from tinsmith.ir import Ops, UOp
from tinsmith.ir.interpret.tensor import evaluate
from tinsmith.ir.uop import toposort
from tinsmith.schedule.canonical import canonical
from tinsmith.schedule.multi.axes import moved_axis
from tinsmith.schedule.multi.collectives import all_gather, all_reduce, broadcast, cut, even_bounds, reduce_scatter
from tinsmith.schedule.multi.sharding import spread_out
from tinsmith.target.schedule_costs import Costs
from tinsmith.tensor.realize import _concrete

OPS = {"ADD": np.add, "MUL": np.multiply, "MAX": np.maximum, "MIN": np.minimum, "AND": np.bitwise_and,
       "OR": np.bitwise_or, "XOR": np.bitwise_xor}


def devices(count: int) -> list[str]:
    return [f"CPU:{n}" if n else "CPU" for n in range(count)]


def parts(count: int, shape: tuple[int, ...]) -> tuple[list[UOp], dict[UOp, Any], list[Any]]:
    rng = np.random.default_rng(0)
    values = [rng.integers(-9, 9, shape).astype(np.int32) for _ in range(count)]
    nodes = [UOp(Ops.PARAM, dtypes.int32, (), (n, (math.prod(shape),))).copy_to(d).reshape(shape)
             for n, d in enumerate(devices(count))]
    return nodes, {n.base.src[0]: v for n, v in zip(nodes, values)}, values


def copied(nodes: Sequence[UOp]) -> int:
    """Return the number of elements copied between devices."""
    return sum(n.size for n in toposort(nodes) if n.op is Ops.COPY and n.src[0].op is not Ops.PARAM)


@pytest.mark.parametrize("algorithm", ["direct", "ring"])
@pytest.mark.parametrize("count", [2, 3, 4, 7])
@pytest.mark.parametrize("shape", [(), (1,), (5,), (8, 3)])
@pytest.mark.parametrize("op", OPS)
def test_all_reduce(algorithm: str, count: int, shape: tuple[int, ...], op: str) -> None:
    if algorithm == "ring" and math.prod(shape) < count:
        return  # what is chosen by size never cuts a value into empty chunks
    nodes, given, values = parts(count, shape)
    found = all_reduce(nodes, devices(count), getattr(Ops, op), algorithm)
    assert [f.device for f in found] == devices(count)
    want = values[0]
    for v in values[1:]:
        want = OPS[op](want, v)
    assert all(np.array_equal(got, want) for got in evaluate(found, given))


def test_floats_are_equal_to_the_last_bit_on_all_devices() -> None:
    rng = np.random.default_rng(1)
    x = (rng.standard_normal((5, 4096)) * 10.0 ** rng.integers(-6, 6, (5, 4096))).astype(np.float32)
    for size in (4096, 64):
        t = Tensor(x[:, :size]).shard(devices(5), 0).sum(0).realize()
        held = [p.numpy() for p in t.uop.base.arg.parts]
        assert all(np.array_equal(held[0], other) for other in held[1:])


@pytest.mark.parametrize("count", [2, 3, 5])
@pytest.mark.parametrize("axis", [0, 1])
def test_reduce_scatter_and_all_gather(count: int, axis: int) -> None:
    nodes, given, values = parts(count, (7, 6))
    bounds = even_bounds((7, 6)[axis], count)
    found = reduce_scatter(nodes, devices(count), Ops.ADD, axis, bounds)
    assert [f.device for f in found] == devices(count)
    want = sum(values)
    for got, b, e in zip(evaluate(found, given), bounds, bounds[1:]):
        assert np.array_equal(got, np.take(want, range(b, e), axis))
    whole = all_gather(found, devices(count), axis)
    assert [f.device for f in whole] == devices(count)
    assert all(np.array_equal(got, want) for got in evaluate(whole, given))


@pytest.mark.parametrize("algorithm", ["direct", "scatter"])
@pytest.mark.parametrize("count", [2, 3, 5])
def test_broadcast(algorithm: str, count: int) -> None:
    (node, *_), given, values = parts(1, (4, 3))
    found = broadcast(node, devices(count), algorithm)
    assert [f.device for f in found] == devices(count) and found[0] is node
    assert all(np.array_equal(got, values[0]) for got in evaluate(found, given))


@pytest.mark.parametrize("count", [3, 4, 8])
def test_the_ring_moves_less(count: int) -> None:
    size = 24 * count
    nodes, _, _ = parts(count, (size,))
    direct, ring = (copied(all_reduce(nodes, devices(count), Ops.ADD, a)) for a in ("direct", "ring"))
    assert direct == count * (count - 1) * size
    assert ring == 2 * (count - 1) * size


def test_the_algorithm_is_chosen_by_size() -> None:
    for size, algorithm in ((Costs().rounds // 4 - 1, "direct"), (Costs().rounds // 4, "ring")):
        nodes, _, _ = parts(4, (size,))
        assert copied(all_reduce(nodes, devices(4), Ops.ADD)) == copied(
            all_reduce(nodes, devices(4), Ops.ADD, algorithm))
    (node,), _, _ = parts(1, (Costs().rounds // 4,))
    assert copied(broadcast(node, devices(4))) == copied(broadcast(node, devices(4), "scatter"))
    assert copied(broadcast(node, devices(2))) == copied(broadcast(node, devices(2), "direct"))


def test_large_values_through_rings() -> None:
    x = np.random.default_rng(0).integers(-9, 9, (4, Costs().rounds // 8 + 3)).astype(np.float64)
    group = devices(4)
    t = Tensor(x).shard(group, 0)
    assert np.array_equal(t.sum(0).numpy(), x.sum(0))
    assert np.array_equal(Tensor(x).to(group).realize().uop.base.arg.parts[3].numpy(), x.reshape(-1))


# *** sums that are only needed in parts ***


def spread(*tensors: Tensor) -> list[UOp]:
    graph, _, _ = canonical([_concrete(t.uop) for t in tensors])
    return spread_out(graph, tensors[0]._device)[0]


def test_a_sum_needed_in_parts_is_reduced_and_scattered() -> None:
    group = devices(4)
    x = Tensor(np.ones((8, 16), np.float32)).shard(group, 0).realize()
    w = Tensor(np.ones((16,), np.float32)).shard(group, 0).realize()
    state = w.assign(w - (x.sum(0) * 0.5).reshape(4, 4).reshape(16))
    assert copied(spread(state)) == 3 * 16, "each device gets the others' sums of its part only"
    assert np.array_equal(state.numpy(), np.full(16, -3.0))
    total = x.sum(0) * 2
    assert copied(spread(total, w - total)) == 4 * 3 * 16, "the sum itself is a result on every device"


# *** cuts and reshapes ***


@pytest.mark.parametrize("make", [
    lambda x: x, lambda x: x.permute((1, 0)), lambda x: x.reshape((2, 3, 8)), lambda x: x.reshape((48,)),
    lambda x: x.reshape((6, 1, 8)).expand((6, 5, 8)), lambda x: x.reshape((1, 6, 8)).expand((4, 6, 8)),
    lambda x: x.permute((1, 0)).reshape((4, 2, 6)).permute((2, 0, 1)), lambda x: (x + x).reshape((3, 16)),
    lambda x: UOp.const(dtypes.int32, 7).expand_to((6, 8))])
def test_cuts(make: Any) -> None:
    x = UOp(Ops.PARAM, dtypes.int32, (), (0, (6, 8)))
    given = {x: np.arange(48, dtype=np.int32).reshape(6, 8)}
    node = make(x)
    (whole,) = evaluate([node], given)
    for axis, size in enumerate(node.shape):
        for begin in range(size):
            for end in range(begin + 1, size + 1):
                (got,) = evaluate([cut(node, axis, begin, end)], given)
                assert np.array_equal(got, np.take(whole, range(begin, end), axis))


def test_cuts_go_below_movement() -> None:
    x = UOp(Ops.PARAM, dtypes.int32, (), (0, (8, 6)))
    bias = UOp(Ops.PARAM, dtypes.int32, (), (0, (6,))).reshape((1, 6)).expand((8, 6))
    assert cut(bias, 0, 2, 4) is bias.src[0].expand((2, 6))
    moved = cut(x.permute((1, 0)), 1, 2, 4)
    assert moved.op is Ops.PERMUTE and moved.src[0].op is Ops.SHRINK


@pytest.mark.parametrize("old, new, axis, bounds, want", [
    ((8, 3), (8, 3), 0, (0, 4, 8), (0, (0, 4, 8))), ((2, 8, 3), (2, 24), 1, (0, 4, 8), (1, (0, 12, 24))),
    ((8, 3), (4, 2, 3), 0, (0, 4, 8), (0, (0, 2, 4))), ((8,), (1, 8, 1), 0, (0, 3, 8), (1, (0, 3, 8))),
    ((6,), (4, 3), 0, (0, 3, 6), None), ((9,), (3, 3), 0, (0, 5, 9), None), ((4, 6), (24,), 1, (0, 3, 6), None),
    ((4, 6), (8, 3), 0, (0, 2, 4), (0, (0, 4, 8))), ((1, 4, 1), (2, 2), 1, (0, 2, 4), (0, (0, 1, 2)))])
def test_axes_through_reshapes(old: Any, new: Any, axis: int, bounds: Any, want: Any) -> None:
    if math.prod(old) == math.prod(new):
        assert moved_axis(old, new, axis, bounds) == want
