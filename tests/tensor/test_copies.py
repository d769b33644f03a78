"""Copies and views: which methods return which, and the gradients of both after writes in place."""
from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import pytest

from tinsmith import GlobalCounters, Tensor, TinyJit, dtypes
from tinsmith.tensor.autograd import history

COPIES: dict[str, Callable[[Tensor], Tensor]] = {
    "clone": lambda b: b.clone(), "contiguous": lambda b: b.contiguous(), "cat": lambda b: Tensor.cat(b),
    "stack": lambda b: Tensor.stack(b), "pad": lambda b: b.pad(((0, 0),)), "repeat": lambda b: b.repeat(1),
    "cast": lambda b: b.cast(b.dtype), "to": lambda b: b.to("CPU:1"), "flip": lambda b: b.flip(0).flip(0),
    "roll": lambda b: b.roll(0), "shard": lambda b: b.shard(("CPU", "CPU:1", "CPU:2"), 0),
    "Tensor": lambda b: Tensor(b), "copy.copy": lambda b: copy.copy(b), "pow": lambda b: b.pow(1),
    "realize": lambda b: b.clone().realize(), "add": lambda b: b + 0,
    "copy_": lambda b: Tensor([0.0, 0.0, 0.0]).copy_(b), "assign": lambda b: Tensor([0.0, 0.0, 0.0]).assign(b),
    "assign memory": lambda b: Tensor([0.0, 0.0, 0.0]).realize().assign(b),
    "assign computed": lambda b: (Tensor([0.0, 0.0, 0.0]) * 2).assign(b),
    "setitem": lambda b: written(Tensor([0.0, 0.0, 0.0]), b),
    "setitem memory": lambda b: written(Tensor([0.0, 0.0, 0.0]).realize(), b),
}


def written(v: Tensor, b: Tensor) -> Tensor:
    v[:] = b
    return v


@pytest.mark.parametrize("realized", [False, True], ids=["lazy", "realized"])
@pytest.mark.parametrize("wanted", [None, True], ids=["data", "requires_grad"])
@pytest.mark.parametrize("name", COPIES)
def test_gradient_of_a_copy_written_unseen(name: str, wanted: bool | None, realized: bool) -> None:
    for factor in (1.0, 1.5):
        for whole in (True, False):
            b = Tensor([1.0, 2.0, 3.0], requires_grad=wanted)
            if realized:
                b.realize()
            v = COPIES[name](b if factor == 1 else b * factor)
            before = v * 3
            with Tensor.no_grad():
                if whole:
                    v += 0.5
                else:
                    v[0] = 9.0
            out = (before + v * 10).sum()
            assert out.gradient(b)[0].tolist() == [13 * factor] * 3
            out.backward()
            assert b.grad is not None and b.grad.tolist() == [13 * factor] * 3
            assert b.tolist() == [1.0, 2.0, 3.0]


def test_gradient_of_a_copy_counts_uses_before_the_write() -> None:
    b = Tensor([1.0, 2.0, 3.0])
    v = b.clone()
    before = v * 3
    with Tensor.no_grad():
        v += 0.5
    assert [g.tolist() for g in (before + v * 5).sum().gradient(v, b)] == [[8.0] * 3] * 2
    assert (v * v * b).sum().gradient(b)[0].tolist() == [5.25, 16.25, 33.25]


def test_original_of_a_copy_that_is_written_is_data() -> None:
    b = Tensor([1.0, 2.0, 3.0]).realize()
    v = Tensor(b)
    before = b * 3
    with Tensor.no_grad():
        b += 1
    assert (before + b * 5).sum().gradient(b)[0].tolist() == [8.0] * 3
    assert v.tolist() == [1.0, 2.0, 3.0]


def test_write_through_detach_keeps_the_gradient_of_what_was_computed() -> None:
    b = Tensor([1.0, 2.0, 3.0])
    y = b * 2
    y.detach().add_(1)
    assert y.tolist() == [3.0, 5.0, 7.0] and y.sum().gradient(b)[0].tolist() == [2.0] * 3


def test_recorded_write_to_a_moved_parameter() -> None:
    b, c = Tensor([1.0, 2.0], requires_grad=True), Tensor([1.0, 1.0])
    v = b.to("CPU:1")
    v += c.to("CPU:1") * 2
    assert [g.tolist() for g in v.sum().gradient(b, c)] == [[1.0, 1.0], [2.0, 2.0]]


def test_history_of_an_average_does_not_grow() -> None:
    w = Tensor([1.0, 2.0, 3.0]).realize()
    average = w.clone().realize()
    for _ in range(100):
        with Tensor.no_grad():
            average.assign(average * 0.5 + 1)
        average.realize()
    depth, node = 0, average.uop
    while (made := history.made_of(node)) is not None:
        depth, node = depth + 1, made.src[0]
    assert depth <= 2
    assert (average * average).sum().gradient(w)[0].tolist() == [4.0, 4.0, 4.0]


@pytest.mark.parametrize("realized", [False, True], ids=["lazy", "realized"])
def test_backward_adds_to_the_gradient_that_is_there(realized: bool) -> None:
    x = Tensor([1.0, 2.0, 3.0])
    (x * x).sum().backward()
    first = x.grad
    assert first is not None
    part = first[1:]
    if realized:
        first.realize()
    for n in (2, 3):
        (x * x).sum().backward()
        assert x.grad is first and part.tolist() == [4.0 * n, 6.0 * n]
        assert first.tolist() == [2.0 * n, 4.0 * n, 6.0 * n]
    x.grad = None
    (x * x).sum().backward()
    assert x.grad is not first and first.tolist() == [6.0, 12.0, 18.0]
    x.grad = mine = Tensor([10.0, 10.0, 10.0])
    (x * x).sum().backward()
    assert x.grad is mine and mine.tolist() == [12.0, 14.0, 16.0]
    (x * x).sum().backward(create_graph=True)
    assert x.grad is not mine and x.grad is not None
    assert x.grad.tolist() == [14.0, 18.0, 22.0] and mine.tolist() == [12.0, 14.0, 16.0]


def test_captured_backward_adds_to_the_gradient_that_is_there() -> None:
    x = Tensor([1.0, 2.0]).realize()

    @TinyJit
    def step() -> Tensor:
        loss = (x * x).sum()
        loss.backward()
        return loss

    step()
    first = x.grad
    assert first is not None
    for n in range(2, 7):
        step()
        assert x.grad is first and first.tolist() == [2.0 * n, 4.0 * n]


def test_first_backward_of_a_step_takes_no_further_kernel() -> None:
    x = Tensor([1.0, 2.0, 3.0]).realize()
    counts = []
    for _ in range(3):
        x.grad = None
        (x * x).sum().backward()
        assert x.grad is not None
        before = GlobalCounters.kernel_count
        x.grad.realize()
        counts.append(GlobalCounters.kernel_count - before)
    (x * x).sum().backward()
    before = GlobalCounters.kernel_count
    x.grad.realize()
    assert counts == [1, 1, 1] and GlobalCounters.kernel_count - before == 1


def test_diag_of_a_matrix_is_a_copy() -> None:
    x = Tensor([[1.0, 2.0], [3.0, 4.0]])
    y = x.diag()
    y[0] = 9
    assert x.tolist() == [[1.0, 2.0], [3.0, 4.0]] and y.tolist() == [9.0, 4.0]


@pytest.mark.parametrize("seed", range(40))
def test_bitcast_is_a_view(seed: int) -> None:
    """Writes through bitcast views, partial ones and views of views included, against NumPy's views."""
    rng = np.random.default_rng(seed)
    names = ["float32", "int32", "int16", "uint8", "float16", "int64", "float64"]
    raw = rng.integers(0, 120, (4, 64), dtype=np.uint8)
    own, new, last = rng.choice(names, 3)
    theirs = raw.view(own).copy()
    x = Tensor(theirs)
    if rng.random() < 0.5:
        x.realize()
    mine, other = x, theirs
    if rng.random() < 0.5:
        mine, other = mine[1:3], other[1:3]
    mine, other = mine.bitcast(str(new)), other.view(new)
    if rng.random() < 0.5:
        mine, other = mine.view(getattr(dtypes, str(last))), other.view(last)
    value = int(rng.integers(3))
    if rng.random() < 0.5:
        mine, other = mine[1:, :1], other[1:, :1]
    mine[...] = value
    other[...] = value
    if rng.random() < 0.5:
        mine += 1
        other += other.dtype.type(1)
    assert x.numpy().tobytes() == theirs.tobytes() and mine.numpy().tobytes() == other.tobytes()


def test_write_of_bits_has_no_gradient() -> None:
    w = Tensor([1.0, 2.0], requires_grad=True)
    w.bitcast(dtypes.int32).assign(Tensor([0, 1 << 30]))
    assert w.tolist() == [0.0, 2.0] and (w * 3).sum().gradient(w)[0].tolist() == [3.0, 3.0]
    both = copy.deepcopy([w, w.bitcast("int32")])
    both[1][0] = 1 << 30
    assert both[0].tolist() == [2.0, 2.0] and w.tolist() == [0.0, 2.0]
