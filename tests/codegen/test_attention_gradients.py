"""Gradients of 16-bit attention on a grid: chains without row statistics recompute the scores, or epilogues store them
in 16 bits."""
from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import pytest

from tests.codegen.running import Array
from tests.codegen.test_rings import DEVICE
from tinsmith import Tensor
from tinsmith.codegen.kernel import Kernel
from tinsmith.codegen.planner.candidate import Candidate
from tinsmith.codegen.planner.gpu import rings
from tinsmith.target.target import Target


def reference(q: Array, k: Array, v: Array, g: Array, mask: Array | None) -> list[Array]:
    """Return the result and the gradients of attention, in float64; ``mask`` is added, -inf hides."""
    s = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    s = s if mask is None else s + mask
    top = s.max(-1, keepdims=True)
    p = np.exp(s - np.where(np.isneginf(top), 0, top))
    total = p.sum(-1, keepdims=True)
    p /= np.where(total == 0, 1, total)
    dp = g @ v.swapaxes(-1, -2)
    ds = p * (dp - (p * dp).sum(-1, keepdims=True)) / np.sqrt(q.shape[-1])
    return [p @ v, ds @ k, ds.swapaxes(-1, -2) @ q, p.swapaxes(-1, -2) @ g]


@pytest.mark.parametrize("heads, shared, rows, keys, depth, width, kind", [
    (1, 1, 128, 128, 64, 64, "causal"), (2, 2, 130, 77, 32, 64, "none"), (2, 1, 192, 192, 72, 72, "causal"),
    (1, 1, 65, 130, 64, 40, "bool"), (1, 1, 40, 64, 192, 192, "none"), (1, 1, 100, 130, 20, 20, "none")])
@pytest.mark.parametrize("dtype, error", [("bfloat16", 4e-3), ("float16", 6e-4)])
def test_gradients_agree_with_numpy(heads: int, shared: int, rows: int, keys: int, depth: int, width: int, kind: str,
                                    dtype: str, error: float) -> None:
    random = np.random.default_rng(rows + keys + depth)
    shapes = (1, heads, rows, depth), (1, shared, keys, depth), (1, shared, keys, width), (1, heads, rows, width)
    arrays = [random.standard_normal(s).astype(np.float32) for s in shapes]
    seen = random.random((rows, keys)) > 0.4
    seen[3] = False
    q, k, v, g = (Tensor(a, device=DEVICE).cast(dtype).realize() for a in arrays)
    wide = [t.float().numpy().astype(np.float64) for t in (q, k, v, g)]
    for t in (q, k, v):
        t.requires_grad = True
    mask = Tensor(seen, device=DEVICE).realize() if kind == "bool" else None
    out = q.scaled_dot_product_attention(k, v, mask, is_causal=kind == "causal", enable_gqa=heads != shared)
    out.backward(g)
    assert q.grad is not None and k.grad is not None and v.grad is not None
    found = [out, q.grad, k.grad, v.grad]
    Tensor.realize(*found)
    times = heads // shared
    repeated = [wide[0], *(np.repeat(a, times, 1) for a in wide[1:3]), wide[3]]
    added = {"none": None, "causal": np.where(np.tri(rows, keys), 0, -np.inf), "bool": np.where(seen, 0, -np.inf)}[kind]
    wanted = reference(*repeated, added)
    wanted[2:] = [a.reshape(1, shared, times, keys, -1).sum(2) for a in wanted[2:]]
    for got, want in zip(found, wanted):
        assert np.linalg.norm(got.float().numpy() - want) <= error * np.linalg.norm(want)


@pytest.mark.parametrize("depth", [32, 64])
@pytest.mark.parametrize("causal", [False, True])
def test_producer_warps_bring_the_operands(monkeypatch: pytest.MonkeyPatch, depth: int, causal: bool) -> None:
    """The plan of long rows, whose blocks do not fit side by side on a multiprocessor, on short ones."""
    joined, applied = rings.joined_ways, set[str]()

    def by_producers(kernel: Kernel, target: Target) -> Iterator[Candidate]:
        for way in joined(kernel, target):
            if "producer" in way.what:
                yield way._replace(apply=partial(apply, way))

    def apply(way: Candidate, kernel: Kernel) -> None:
        way.apply(kernel)
        applied.add(way.what.partition(",")[0])

    monkeypatch.setattr(rings, "joined_ways", by_producers)
    random = np.random.default_rng(depth)
    arrays = [random.standard_normal((1, 2, rows, depth)).astype(np.float32) for rows in (200, 136, 136, 200)]
    q, k, v, g = (Tensor(a, device=DEVICE).cast("bfloat16").realize() for a in arrays)
    wide = [t.float().numpy().astype(np.float64) for t in (q, k, v, g)]
    for t in (q, k, v):
        t.requires_grad = True
    q.scaled_dot_product_attention(k, v, is_causal=causal).backward(g)
    assert q.grad is not None and k.grad is not None and v.grad is not None
    Tensor.realize(q.grad, k.grad, v.grad)
    wanted = reference(*wide, np.where(np.tri(200, 136), 0, -np.inf) if causal else None)[1:]
    for got, want in zip((q.grad, k.grad, v.grad), wanted):
        assert np.linalg.norm(got.float().numpy() - want) <= 4e-3 * np.linalg.norm(want)
    assert applied == {"a chain of 3 products", "a chain of 4 products"}, "of one sum and of two"


def test_no_scores_are_stored() -> None:
    q, k, v, g = (Tensor.empty(2, 4, 256, 64, device=DEVICE).cast("bfloat16").realize() for _ in range(4))
    for t in (q, k, v):
        t.requires_grad = True
    out = q.scaled_dot_product_attention(k, v, is_causal=True)
    out.backward(g)
    assert q.grad is not None and k.grad is not None and v.grad is not None
    items = Tensor.schedule(out, q.grad, k.grad, v.grad)
    assert max(max(value.size for value in item.sink.src) for item in items if item.sink is not None) == out.numel()


@pytest.mark.parametrize("shape", [(256, 64), (1, 256, 64), (1, 1, 256, 64), (2, 1, 256, 64)])
def test_axes_of_one_element_need_no_copy(shape: tuple[int, ...]) -> None:
    q = Tensor.empty(*shape, dtype="bfloat16", device=DEVICE)
    assert len(q.scaled_dot_product_attention(q, q).schedule()) == 1
