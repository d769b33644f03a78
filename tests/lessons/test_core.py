"""The page that rebuilds the core: its code computes the same as the package."""
from __future__ import annotations

import gc
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tests.lessons import core
from tinsmith import Tensor

Array = np.ndarray[Any, Any]


@pytest.fixture(scope="module")
def page() -> ModuleType:
    return core.load()


def ring(*shapes: tuple[int, ...]) -> list[Array]:
    """Return arrays of these shapes; the elements of one are distinct, and none is near 0."""
    rng = np.random.default_rng(0)
    return [(rng.permutation(np.prod(s, dtype=int)) / 7 - 1.03).reshape(s).astype(np.float32) for s in shapes]


def convolution(x: Any, w: Any) -> Any:
    """Return a 3 × 3 convolution of (6, 6) as nine shifted products."""
    padded, total = x.pad(((1, 1), (1, 1))), 0.0
    for i in range(3):
        for j in range(3):
            total = padded.shrink(((i, i + 6), (j, j + 6))) * w.shrink(((i, i + 1), (j, j + 1))) + total
    return total


def pooled(x: Any) -> Any:
    """Return the maximum of each 2 × 2 block."""
    return x.reshape(3, 2, 3, 2).permute((0, 2, 1, 3)).reshape(3, 3, 4).max(2)


def layernorm(x: Any) -> Any:
    moved = x - x.mean(1, keepdim=True)
    return moved / ((moved * moved).mean(1, keepdim=True) + 1e-5).sqrt()


def attention(q: Any, k: Any, v: Any) -> Any:
    return (q @ k.T).log_softmax().exp() @ v


PROGRAMS: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    "dot": (lambda a, b: (a * b).sum(), [(5,), (5,)]),
    "elementwise": (lambda a, b: (a * 2 - b / 3 + 1) * (0.5 - a) / (b * b + 1), [(3, 4), (3, 4)]),
    "broadcast": (lambda a, b: a * b + 1 / (a * a + 2), [(3, 1), (1, 4)]),
    "broadcast of ranks": (lambda a, b: a - b, [(2, 3, 4), (4,)]),
    "exp and log": (lambda a: (a.exp() + 1).log(), [(3, 4)]),
    "sqrt": (lambda a: (a * a + 1).sqrt(), [(7,)]),
    "relu": (lambda a: a.relu(), [(4, 4)]),
    "maximum": (lambda a, b: a.maximum(b * 0.9 + 0.01), [(4, 4), (4, 4)]),
    "mean": (lambda a: a.mean(), [(4, 5)]),
    "max of rows": (lambda a: a.max(1), [(4, 5)]),
    "variance": (lambda a: ((a - a.mean()) * (a - a.mean())).sum() / 4, [(5,)]),
    "matmul": (lambda a, b: a @ b, [(3, 4), (4, 5)]),
    "two products": (lambda a, b: (a @ b).relu() @ b.T, [(3, 4), (4, 5)]),
    "log_softmax": (lambda a: a.log_softmax(), [(4, 6)]),
    "softmax of columns": (lambda a: a.log_softmax(0).exp(), [(4, 6)]),
    "layernorm": (layernorm, [(4, 6)]),
    "attention": (attention, [(4, 3), (5, 3), (5, 2)]),
    "transpose as a row": (lambda a: a.T.reshape(12) * a.reshape(12), [(3, 4)]),
    "sums of sums": (lambda a: a.sum(0).reshape(2, 2).sum(1), [(3, 4)]),
    "permuted blocks": (lambda a: a.reshape(2, 2, 3, 2).permute((2, 0, 3, 1)).reshape(12, 2).sum(1), [(4, 6)]),
    "padded blocks": (lambda a: a.pad(((1, 2), (0, 1))).reshape(7, 2, 2).exp().sum(1), [(4, 3)]),
    "padding of a sum": (lambda a: a.sum(1).pad(((2, 1),)).exp(), [(4, 3)]),
    "convolution": (convolution, [(6, 6), (3, 3)]),
    "pooling": (pooled, [(6, 6)]),
    "a small network": (lambda x, w, b, v: ((x @ w + b).relu() @ v).log_softmax(), [(4, 3), (3, 5), (5,), (5, 2)]),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_values_and_gradients_are_those_of_the_package(page: ModuleType, name: str) -> None:
    program, shapes = PROGRAMS[name]
    arrays = ring(*shapes)
    results = []
    for kind in (page.Tensor, Tensor):
        inputs = [kind(a) for a in arrays]
        value = program(*inputs)
        weights = kind(np.cos(np.arange(value.numpy().size, dtype=np.float32)).reshape(value.shape))
        slopes = (value * weights).sum().gradient(*inputs)
        results.append([t.numpy() for t in (value, *slopes)])
    for ours, theirs in zip(*results, strict=True):
        assert ours.shape == theirs.shape and ours.dtype == theirs.dtype == np.float32
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-5)


def test_a_gradient_has_a_gradient(page: ModuleType) -> None:
    (x,) = ring((5,))
    found = []
    for kind in (page.Tensor, Tensor):
        t = kind(x)
        (slope,) = (t.exp() * t * t).sum().gradient(t)
        found.append(slope.sum().gradient(t)[0].numpy())
    np.testing.assert_allclose(*found, rtol=1e-5)


def test_training_goes_the_same_way(page: ModuleType) -> None:
    arrays = ring((8, 3), (3, 4), (4,), (4, 2))
    classes = np.eye(2, dtype=np.float32)[np.arange(8) % 2]

    def train(kind: Any, settled: Callable[[Any], Any]) -> tuple[list[float], list[Array]]:
        x, *weights = (kind(a) for a in arrays)
        losses = []
        for _ in range(10):
            w, b, v = weights
            loss = -(((x @ w + b).relu() @ v).log_softmax() * kind(classes)).sum(1).mean()
            losses.append(float(loss.numpy()))
            weights = [settled(p - g * 0.2) for p, g in zip(weights, loss.gradient(*weights))]
        return losses, [p.numpy() for p in weights]

    (ours, our_weights), (theirs, their_weights) = (
        train(page.Tensor, lambda t: t.detach()), train(Tensor, lambda t: Tensor(t.numpy())))
    assert theirs[-1] < theirs[0]
    np.testing.assert_allclose(ours, theirs, rtol=1e-4)
    for a, b in zip(our_weights, their_weights):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_rules_keep_the_value(page: ModuleType) -> None:
    """Random index expressions, at every value of their loops."""
    rng = np.random.default_rng(1)
    sizes = (3, 4, 5)
    loops = [page.Node("RANGE", "index", (), (n, size)) for n, size in enumerate(sizes)]

    def value(n: Any, at: tuple[int, ...]) -> Any:
        s = [value(source, at) for source in n.src]
        return {"CONST": lambda: n.arg, "RANGE": lambda: at[n.arg[0]], "ADD": lambda: s[0] + s[1],
                "MUL": lambda: s[0] * s[1], "IDIV": lambda: s[0] // s[1], "MOD": lambda: s[0] % s[1],
                "LESS": lambda: s[0] < s[1], "AND": lambda: s[0] and s[1],
                "WHERE": lambda: s[1] if s[0] else s[2]}[n.op]()

    steps: list[Callable[[Any, int, Any], Any]] = [
        lambda n, k, other: n * k, lambda n, k, other: n + k, lambda n, k, other: n + -k, lambda n, k, other: n // k,
        lambda n, k, other: n % k, lambda n, k, other: n + other, lambda n, k, other: n * k + other,
        lambda n, k, other: page.where((n < k) & (other < 2), n, other)]
    changed = 0
    for _ in range(300):
        n = loops[rng.integers(3)]
        for _ in range(rng.integers(1, 7)):
            k, other = int(rng.integers(1, 13)), loops[rng.integers(3)]
            n = steps[rng.integers(len(steps))](n, k, other)
        simple = page.rewrite(n)
        changed += simple is not n
        for at in np.ndindex(*sizes):
            found = value(simple, at)
            assert found == value(n, at), (n, simple, at)
            assert simple.bounds[0] <= found <= simple.bounds[1]
    assert changed > 100


def test_equal_graphs_are_one_object_and_are_forgotten(page: ModuleType) -> None:
    x = page.Tensor([1.0, 2.0])
    assert (x + 1).exp().node is (x + 1).exp().node
    gc.collect()
    before = len(page.Node.made), len(page.computed)
    for _ in range(3):
        ((x + 1).exp() * x).sum().numpy()
    gc.collect()
    assert (len(page.Node.made), len(page.computed)) == before


def test_what_was_computed_is_not_computed_again(page: ModuleType) -> None:
    x = page.Tensor(np.ones((3, 5)))
    y = (x @ x.T).exp()
    first = y.numpy()
    assert y.numpy() is first and page.stored([y.node]) == []
    assert [n.op for n in page.stored([(y + 1).node])] == ["ADD"]


def test_padding_reads_nothing_outside_of_memory(page: ModuleType) -> None:
    """Every load is in bounds at every value of the loops."""
    x = page.Tensor(np.ones((2, 3)))
    kernel = page.Kernel(x.pad(((3, 1), (2, 2))).reshape(7, 6).sum(1).node)
    loads = [n for n in page.toposort([kernel.store]) if n.op == "LOAD"]
    assert loads and all(n.src[0].op == "WHERE" for n in loads)


def test_mistakes_are_named(page: ModuleType) -> None:
    a = page.Tensor(np.ones((2, 3)))
    with pytest.raises(ValueError, match=r"reshape of \(2, 3\) to \(4, 2\)"):
        a.reshape(4, 2)
    with pytest.raises(ValueError, match=r"expand of \(2, 3\) to \(4, 3\)"):
        a.expand(4, 3)
    with pytest.raises(ValueError, match="broadcast"):
        a + page.Tensor(np.ones((2, 2)))


def test_it_is_short() -> None:
    assert sum(1 for b in core.code() for line in b.text if line.strip()) < 600
