"""``Tensor.autocast``: the operands it rounds, forward and backward, and the operations that run in float32."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from scipy.special import ndtr

from tests.nn.test_optim import GPT
from tinsmith import Tensor, TinyJit, dtypes, nn
from tinsmith.core.dtypes import to_dtype
from tinsmith.core.errors import DTypeError
from tinsmith.nn.optim import AdamW

KINDS = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16}


def random(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("dtype", KINDS)
def test_products_and_their_gradients(dtype: str) -> None:
    """Operands and results are rounded, accumulators are not; the same holds for gradients."""
    def rounded(a: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return a.astype(KINDS[dtype]).astype(np.float64)

    a, b, g = random(5, 40), random(40, 7, seed=1), random(5, 7, seed=2)
    x, w = Tensor(a), Tensor(b)
    with Tensor.autocast(dtype):
        y = x @ w
    (y * Tensor(g)).sum().backward()
    assert y.dtype is to_dtype(dtype) and x.grad is not None and w.grad is not None
    assert x.grad.dtype is w.grad.dtype is dtypes.float32
    eps = 2.0**-8 if dtype == "bfloat16" else 2.0**-11
    np.testing.assert_allclose(y.float().numpy(), rounded(a) @ rounded(b), rtol=eps, atol=1e-6)
    np.testing.assert_allclose(x.grad.numpy(), rounded(g) @ rounded(b).T, rtol=eps, atol=1e-5)
    np.testing.assert_allclose(w.grad.numpy(), rounded(a).T @ rounded(g), rtol=eps, atol=1e-5)
    assert np.abs(y.float().numpy() - a @ b).max() > 1e-5, "nothing was rounded"


CONTRACTIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "linear": lambda x, w: x.linear(w.T, Tensor.ones(6)), "einsum": lambda x, w: Tensor.einsum("ij,kj->ik", x, w),
    "conv2d": lambda x, w: x.reshape(1, 6, 4, 5).conv2d(w.reshape(20, 6, 1, 1)),
    "conv_transpose2d": lambda x, w: x.reshape(1, 6, 4, 5).conv_transpose2d(w.reshape(6, 20, 1, 1)),
    "attention": lambda x, w: x.unsqueeze(0).scaled_dot_product_attention(w.unsqueeze(0), w.unsqueeze(0))}


@pytest.mark.parametrize("name", CONTRACTIONS)
def test_every_contraction_is_near_and_not_the_same(name: str) -> None:
    call, found = CONTRACTIONS[name], []
    for enabled in (False, True):
        x, w = Tensor(random(6, 20)), Tensor(random(6, 20, seed=1))
        with Tensor.autocast(enabled=enabled):
            out = call(x, w)
        (out * out).sum().backward()
        assert x.grad is not None and w.grad is not None and x.grad.dtype is w.grad.dtype is dtypes.float32
        assert out.dtype is (dtypes.bfloat16 if enabled else dtypes.float32)
        found.append([t.float().numpy() for t in (out, x.grad, w.grad)])
    for exact, near in zip(*found):
        assert (exact != near).any()
        np.testing.assert_allclose(near, exact, rtol=0.05, atol=0.05 * np.abs(exact).max())


def test_what_is_left_alone() -> None:
    wide, whole = Tensor(random(3, 3).astype(np.float64)), Tensor([[1, 257], [2, 3]])
    with Tensor.autocast("bfloat16"):
        assert (wide @ wide).dtype is dtypes.float64 and (whole @ whole).tolist() == [[515, 1028], [8, 523]]
        x = Tensor([1.0, 2.0**-9])
        assert x.sum().item() == 1 + 2.0**-9 and x.exp().dtype is dtypes.float32
        with Tensor.autocast(enabled=False):
            assert (x.reshape(1, 2) @ Tensor.ones(2, 1)).item() == 1 + 2.0**-9
        half = Tensor([[1.0]], dtype="float16")
        assert (half @ half).dtype is dtypes.bfloat16
    with pytest.raises(DTypeError, match=r"contractions in dtypes.float .*bfloat16 or float16"):
        Tensor.autocast("float32")


def test_a_capture_is_of_its_precision() -> None:
    x = Tensor([[1.0, 2.0**-9]])
    call = TinyJit(lambda t: t @ Tensor.ones(2, 1))
    found = []
    for n in range(12):
        with Tensor.autocast(enabled=n // 3 % 2 == 1):
            found.append(call(x).item())
    assert found == ([1 + 2.0**-9] * 3 + [1.0] * 3) * 2 and len(call.captures) == 2

    @Tensor.autocast("bfloat16")
    def decorated() -> Any:
        return (x @ Tensor.ones(2, 1)).item()

    assert decorated() == 1.0


def test_a_small_gpt_trains_as_well_in_bfloat16() -> None:
    """The loss is within 1 % of the float32 loss, at the end and on average."""
    rng = np.random.default_rng(0)
    text = (np.arange(13)[None] * rng.integers(1, 5, (16, 1)) + rng.integers(0, 11, (16, 1))) % 11
    x, y = (Tensor(text[:, s].astype(np.int32)).realize() for s in (slice(0, -1), slice(1, None)))
    losses = []
    for enabled in (False, True):
        Tensor.manual_seed(2)
        model = GPT(11, 12, 32)
        opt = AdamW(nn.state.get_parameters(model), 0.01)

        @TinyJit
        @Tensor.train()
        def step(model: GPT = model, opt: AdamW = opt, enabled: bool = enabled) -> Tensor:
            opt.zero_grad()
            with Tensor.autocast(enabled=enabled):
                loss = model(x).sparse_categorical_crossentropy(y)
            loss.backward()
            opt.step()
            return loss

        losses.append([float(step().item()) for _ in range(40)])
    exact, narrow = np.array(losses)
    assert exact[-1] < 0.5 * exact[0] and (exact != narrow).all()
    np.testing.assert_allclose(narrow[-1], exact[-1], rtol=0.01)
    np.testing.assert_allclose(narrow.mean(), exact.mean(), rtol=0.01)


@pytest.mark.parametrize("dtype", KINDS)
def test_a_linear_layer_and_its_bias_are_rounded_once(dtype: str) -> None:
    """The result has 16 bits, and is as near to the exact sum as they allow."""
    x, w, b = random(9, 40), random(40, 7, seed=1), random(7, seed=2)
    with Tensor.autocast(dtype):
        y = Tensor(x).linear(Tensor(w), Tensor(b))
    exact = x.astype(KINDS[dtype]).astype(np.float64) @ w.astype(KINDS[dtype]).astype(np.float64) + b
    assert y.dtype is to_dtype(dtype)
    np.testing.assert_allclose(y.float().numpy(), exact, rtol=2.0**-8 if dtype == "bfloat16" else 2.0**-11, atol=1e-5)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_of_a_rounded_sum_is_as_good_as_its_argument(approximate: str) -> None:
    x = np.concatenate([np.linspace(-13, 13, 4001), random(2000) * 3]).astype(ml_dtypes.bfloat16).astype(np.float32)
    t = Tensor(x.reshape(-1, 1))
    with Tensor.autocast("bfloat16"):
        y = t.linear(Tensor.ones(1, 1)).gelu(approximate)
    (slope,) = y.gradient(t, gradient=Tensor.ones(*y.shape))
    z = x.astype(np.float64)
    inner = np.sqrt(2 / np.pi) * (z + 0.044715 * z**3)
    share = ndtr(z) if approximate == "none" else 1 / (1 + np.exp(-2 * inner))
    steep = (np.exp(-z * z / 2) / np.sqrt(2 * np.pi) if approximate == "none" else
             share * (1 - share) * 2 * np.sqrt(2 / np.pi) * (1 + 3 * 0.044715 * z**2))
    np.testing.assert_allclose(y.float().numpy().ravel(), z * share, rtol=2.0**-8, atol=1e-30)
    np.testing.assert_allclose(slope.numpy().ravel(), share + z * steep, rtol=2.0**-8, atol=1e-6)


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("name", ["addmm", "addmv", "addr", "baddbmm", "addbmm"])
def test_a_product_and_what_is_added_are_rounded_once(name: str, dtype: str) -> None:
    """Inside and outside of ``autocast``: -256 + 257 is 1, though the product alone is rounded to 256 in bfloat16."""
    half = dtype == "float16"
    factors, exact = ([33.0, 65.0], 2145.0) if half else ([19.0, 27.0], 513.0)
    if name != "addr":
        exact = 2049.0 if half else 257.0
    x, y = Tensor([[1.0, exact - 1]]), Tensor([[1.0], [1.0]])
    if name == "addr":
        x, y = Tensor(factors[:1]), Tensor(factors[1:])
    base, y = Tensor.full((1,) if name == "addmv" else (1, 1), 1 - exact) * 1, y.reshape(2) if name == "addmv" else y
    if name.endswith("bmm"):
        x, y, base = x.unsqueeze(0), y.unsqueeze(0), base.unsqueeze(0) if name == "baddbmm" else base
    with Tensor.autocast(dtype):
        inside = getattr(base, name)(x, y)
    outside = getattr(base.cast(dtype), name)(x.cast(dtype), y.cast(dtype))
    assert inside.dtype is outside.dtype is to_dtype(dtype)
    assert inside.item() == outside.item() == base.cast(dtype).item() + exact


def test_operands_that_are_no_tensors_and_those_that_stay_wide() -> None:
    x, a = Tensor(random(4, 5)), random(5, 6)
    image, kernel = Tensor(random(1, 4, 5, 5)), random(6, 4, 3, 3)
    with Tensor.autocast("bfloat16"):
        for found in (x @ a, random(3, 4) @ x, x.linear(a), x.dot([1.0, 2, 3, 4, 5]), image.conv2d(kernel)):
            assert found.dtype is dtypes.bfloat16
        assert x.linear(a, dtype=dtypes.float32).dtype is x.dot(a, dtype=dtypes.float32).dtype is dtypes.float32
        double = Tensor(a.astype(np.float64))
        assert Tensor.zeros(4, 6).addmm(x, double).dtype is dtypes.float64
        assert Tensor.zeros(4, 6).double().addmm(x, Tensor(a)).dtype is dtypes.float64
        assert x.linear(a, Tensor(np.zeros(6))).dtype is dtypes.float64
