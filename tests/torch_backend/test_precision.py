"""TF32 where PyTorch's settings allow it, on devices whose matrix units round."""
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the backend of torch.compile needs PyTorch")

from tinsmith import Tensor  # noqa: E402
from tinsmith.backend.device import Device  # noqa: E402
from tinsmith.codegen.compile_kernel import compile_kernel  # noqa: E402
from tinsmith.ir import Ops  # noqa: E402
from tinsmith.torch.precision import may_round, rounding  # noqa: E402
from tinsmith.torch.rules import RULES  # noqa: E402

GPU = "PYTHON:G512:C3:B232448"  # has units of TF32
ATEN = torch.ops.aten


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


def convolutions(allow_tf32: bool) -> Any:
    """Return a context in which PyTorch allows TF32 in convolutions, or not."""
    return torch.backends.cudnn.flags(enabled=True, allow_tf32=allow_tf32)


def values(*shape: int, dtype: str = "float32", device: str = GPU) -> Tensor:
    a = np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)
    return Tensor(a, device=device).cast(dtype).realize()


def test_pytorch_decides() -> None:
    x, w = values(1, 8, 4, 4), values(8, 8, 1, 1)
    a, convolution = values(4, 4), ATEN.convolution.default
    with convolutions(True):
        assert may_round(convolution, [x, w], GPU) and not may_round(ATEN.mm.default, [a, a], GPU)
        assert may_round(ATEN.convolution_backward.default, [x, x, w], GPU)
    torch.set_float32_matmul_precision("high")
    with convolutions(False):
        assert not may_round(convolution, [x, w], GPU) and may_round(ATEN.mm.default, [a, a], GPU)
    with convolutions(True):
        assert not may_round(ATEN.add.Tensor, [a, a], GPU)
        assert not may_round(convolution, [x.cast("bfloat16"), w.cast("bfloat16")], GPU), "no operand is float32"
        assert not may_round(convolution, [x, w], "CPU"), "no unit rounds"


def matrices(t: Tensor) -> list[bool]:
    """Return for each kernel with a product if a matrix unit computes it."""
    sinks = [s.item.sink for s in t.contiguous().schedule().steps if s.item.sink is not None]
    uops = [compile_kernel(s, Device[GPU].renderer).uops for s in sinks]
    return [any(u.op is Ops.MMA for u in program) for program in uops]


@pytest.mark.parametrize("shape, kernel, stride", [
    ((2, 16, 9, 9), 3, 1), ((1, 16, 12, 12), 3, 2), ((2, 32, 8, 8), 1, 1)])
def test_products_of_an_op_round_and_others_do_not(shape: tuple[int, ...], kernel: int, stride: int) -> None:
    x, w, weight = values(*shape), values(32, shape[1], kernel, kernel), values(32, 32)
    args: list[Any] = [x, w, None, [stride], [kernel // 2], [1], False, [0], 1]
    y = rounding(RULES["convolution.default"].function(*args), args)
    assert any(matrices(y)), "a unit that rounds"
    exact = RULES["convolution.default"].function(*args)
    assert not any(matrices(exact))
    later = y.realize().permute(0, 2, 3, 1) @ weight
    assert not any(matrices(later)), "the matrices after it"
    error = np.abs(y.numpy() - exact.numpy()).max()
    assert 1e-5 < error < 2e-2, "rounded to 10 bits, summed in float32"


@pytest.mark.parametrize("kernel, stride", [(3, 1), (3, 2), (1, 1)])
def test_gradients_round(kernel: int, stride: int) -> None:
    x, w = values(8, 32, 10, 10), values(16, 32, kernel, kernel)
    pad = kernel // 2
    y = torch.nn.functional.conv2d(torch.from_numpy(x.numpy()), torch.from_numpy(w.numpy()), None, stride, pad)
    grad = values(*y.shape)
    args: list[Any] = [grad, x, w, None, [stride], [pad], [1], False, [0], 1, [True, True, False]]
    found = rounding(RULES["convolution_backward.default"].function(*args), args)
    want = ATEN.convolution_backward(*(torch.from_numpy(t.numpy()) for t in (grad, x, w)), None, [stride] * 2,
                                     [pad] * 2, [1, 1], False, [0, 0], 1, [True, True, False])
    for got, exact in zip(found[:2], want[:2]):
        assert any(matrices(got))
        np.testing.assert_allclose(got.numpy(), exact.numpy(), rtol=2e-2, atol=2e-1)
