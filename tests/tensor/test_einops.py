"""einops on tensors: every pattern gives the same result as on NumPy arrays."""
from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

einops = pytest.importorskip("einops", reason="the test extra (einops) is not installed")

from tinsmith import Tensor, TinyJit  # noqa: E402

X = np.random.default_rng(0).standard_normal((2, 6, 4, 3)).astype(np.float32)

REARRANGE: list[tuple[str, dict[str, int]]] = [
    ("b h w c -> b c h w", {}), ("b h w c -> (b h) w c", {}), ("b (h1 h2) w c -> h1 b (w h2) c", {"h1": 2}),
    ("b h w c -> h (b w c)", {}), ("b h w c -> b h w c 1", {}), ("b ... -> ... b", {}),
    ("b (h h2) (w w2) c -> b h w (c h2 w2)", {"h2": 2, "w2": 2})]


@pytest.mark.parametrize(("pattern", "sizes"), REARRANGE)
def test_rearrange(pattern: str, sizes: dict[str, int]) -> None:
    found = einops.rearrange(Tensor(X), pattern, **sizes)
    np.testing.assert_array_equal(found.numpy(), einops.rearrange(X, pattern, **sizes))


@pytest.mark.parametrize("operation", ["mean", "sum", "max", "min", "prod"])
@pytest.mark.parametrize(("pattern", "sizes"), [("b h w c -> b c", {}), ("b (h h2) w c -> h c", {"h2": 3}),
                                                ("b h w c -> () h w ()", {}), ("b h w c -> ", {})])
def test_reduce(operation: str, pattern: str, sizes: dict[str, int]) -> None:
    found = einops.reduce(Tensor(X), pattern, operation, **sizes)
    np.testing.assert_allclose(found.numpy(), einops.reduce(X, pattern, operation, **sizes), rtol=2e-5, atol=1e-5)


def test_integers_have_no_mean() -> None:
    with pytest.raises(NotImplementedError, match="reduce_mean is not available for non-floating"):
        einops.reduce(Tensor([[1, 2]]), "a b -> a", "mean")


@pytest.mark.parametrize(("pattern", "sizes"), [
    ("b h w c -> b h w c k", {"k": 3}), ("b h w c -> k b h (w 2) c", {"k": 2}), ("b h w c -> (b b2) h w c", {"b2": 2})])
def test_repeat(pattern: str, sizes: dict[str, int]) -> None:
    np.testing.assert_array_equal(einops.repeat(Tensor(X), pattern, **sizes).numpy(),
                                  einops.repeat(X, pattern, **sizes))


def test_einsum_pack_lists_and_shapes() -> None:
    a, b = X[0], X[1]
    np.testing.assert_allclose(einops.einsum(Tensor(a), Tensor(b), "h w c, h v c -> h w v").numpy(),
                               einops.einsum(a, b, "h w c, h v c -> h w v"), rtol=1e-5, atol=1e-5)
    packed, shapes = einops.pack([Tensor(a), Tensor(a[0])], "* c")
    np.testing.assert_array_equal(packed.numpy(), einops.pack([a, a[0]], "* c")[0])
    assert [t.shape for t in einops.unpack(packed, shapes, "* c")] == [(6, 4, 3), (4, 3)]
    np.testing.assert_array_equal(einops.rearrange([Tensor(a), Tensor(b)], "n h w c -> h w (n c)").numpy(),
                                  einops.rearrange([a, b], "n h w c -> h w (n c)"))
    assert einops.parse_shape(Tensor(a), "h w _") == {"h": 6, "w": 4} and einops.asnumpy(Tensor([1])).tolist() == [1]


def test_gradients_and_captures() -> None:
    x = Tensor(X, requires_grad=True)
    weights = Tensor(np.arange(6, dtype=np.float32))
    einops.einsum(einops.reduce(x, "b h w c -> b h", "sum"), weights, "b h, h ->").backward()
    assert x.grad is not None
    np.testing.assert_array_equal(x.grad.numpy(), np.broadcast_to(np.arange(6)[:, None, None], X.shape))
    step = TinyJit(lambda v: einops.rearrange(v, "a (b c) -> b (c a)", b=2) * 2)
    found: list[Any] = [step(Tensor(np.full((3, 4), n, np.float32))).numpy() for n in range(4)]
    assert step.replays == 2 and all((f == 2 * n).all() and f.shape == (2, 6) for n, f in enumerate(found))


@pytest.mark.parametrize("first", ["einops", "tinsmith"])
def test_whichever_is_imported_first(first: str) -> None:
    second = {"einops": "tinsmith", "tinsmith": "einops"}[first]
    script = f"""
import {first}, {second}, sys
import numpy, tinsmith, einops
turned = [einops.rearrange(x, 'a b -> b a') for x in (tinsmith.Tensor([[1, 2]]), numpy.array([[3, 4]]))]
print(*(t.tolist() for t in turned))
print(any('einops' in type(f).__module__ for f in sys.meta_path))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[[1], [2]] [[3], [4]]\nFalse\n"
