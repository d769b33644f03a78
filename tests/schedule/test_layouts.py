"""Layout propagation: values stay, with convolutions that are computed channels last."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tinsmith import Tensor, nn
from tinsmith.codegen.render.cuda import cuda_target
from tinsmith.core.dtypes import dtypes
from tinsmith.ir import Ops, UOp
from tinsmith.ir.interpret.tensor import evaluate
from tinsmith.ir.uop import toposort
from tinsmith.schedule.passes.layout_propagation import orders_computed, propagate_layouts
from tinsmith.schedule.passes.polyphase_conv import sum_by_phase
from tinsmith.schedule.passes.split_reductions import split_reductions

CUDA = cuda_target("sm_90a")
GRID = "PYTHON:G512:C3:B232448"  # interprets kernels for a GPU with staged units


class Residual:
    """A block with a strided shortcut, as in ResNet."""

    def __init__(self) -> None:
        self.a, self.b = nn.Conv2d(8, 16, 3, stride=2, padding=1, bias=False), nn.Conv2d(16, 16, 1)
        self.short, self.n1, self.n2 = nn.Conv2d(8, 16, 1, stride=2), nn.BatchNorm(16), nn.BatchNorm(16)

    def __call__(self, x: Tensor) -> Tensor:
        y = (self.n2(self.b(self.n1(self.a(x)).relu())) + self.short(x)).relu()
        return y.max_pool2d(3, stride=2, padding=1).mean((2, 3))


class Joined:
    """Down, up and a concatenation, with group norms, as in a U-Net."""

    def __init__(self) -> None:
        self.a, self.up = nn.Conv2d(8, 16, 3, padding=1), nn.ConvTranspose2d(16, 16, 2, stride=2)
        self.n, self.out = nn.GroupNorm(4, 16), nn.Conv2d(32, 8, 3, padding=1)

    def __call__(self, x: Tensor) -> Tensor:
        x = self.n(self.a(x)).relu()
        return self.out(x.cat(self.up(x.max_pool2d(2)), dim=1)).flatten(2).transpose(1, 2).softmax(-1)


class Patches:
    """Patches as tokens, then a grouped and a depthwise convolution."""

    def __init__(self) -> None:
        self.a, self.b = nn.Conv2d(8, 16, 2, stride=2), nn.Conv2d(16, 32, 3, padding=1, groups=2)
        self.c, self.norm = nn.Conv2d(32, 32, 3, padding=1, groups=32), nn.LayerNorm(32)

    def __call__(self, x: Tensor) -> Tensor:
        y = self.c(self.b(self.a(x)).gelu())
        return self.norm(y.flatten(2).transpose(1, 2)).cat(Tensor.ones(2, 1, 32, device=x.device), dim=1)


def gradients(make: Callable[[], Any], device: str) -> list[np.ndarray]:
    """Return the result and all gradients of a network, under autocast."""
    rng = np.random.default_rng(0)
    model = make()
    names = sorted(nn.state.get_state_dict(model))
    for name in names:
        p = nn.state.get_state_dict(model)[name]
        if p.dtype is dtypes.float32:
            value = rng.normal(size=p.shape).astype(np.float32) / max(np.prod(p.shape[1:]), 1) ** 0.5
            p.replace(Tensor(value + (len(p.shape) == 1 and "weight" in name), device=device,
                             requires_grad="running" not in name))
        else:
            p.replace(p.to(device))
    x = Tensor(rng.normal(size=(2, 8, 8, 8)).astype(np.float32), device=device, requires_grad=True)
    with Tensor.train(), Tensor.autocast("bfloat16"):
        y = model(x)
    flow = Tensor(rng.normal(size=y.shape).astype(np.float32), device=device)
    (y * flow).sum().backward()
    found = [x, *(p for n, p in sorted(nn.state.get_state_dict(model).items()) if p.grad is not None)]
    Tensor.realize(y, *(p.grad for p in found))
    return [y.numpy(), *(p.grad.numpy() for p in found)]


@pytest.mark.parametrize("make", [Residual, Joined, Patches])
def test_results_and_gradients_stay(make: Callable[[], Any]) -> None:
    for got, want in zip(gradients(make, GRID), gradients(make, "CPU"), strict=True):
        scale = np.abs(want).max() + 1e-3
        np.testing.assert_allclose(got / scale, want / scale, atol=2e-2)


def orders(*values: Tensor) -> list[tuple[int, ...]]:
    """Return the shapes of products, over the axes in which they are computed."""
    made = propagate_layouts([v.uop for v in values], CUDA)
    return [tuple(s for s in n.shape if s > 1) for n in toposort(made) if n.op is Ops.REDUCE]


def test_channels_move_inside_and_stay_there() -> None:
    x, w = (Tensor.empty(*s, dtype=dtypes.bfloat16) for s in ((8, 64, 14, 14), (32, 64, 3, 3)))
    y = x.conv2d(w, padding=1).relu()
    assert orders(y) == [(8, 14, 14, 32)]
    assert orders(y.float().sum((0, 2, 3))) == [(8, 14, 14, 32), (32,)]
    assert orders((x.float() @ Tensor.empty(14, 16)).relu()) == [(8, 64, 14, 16)], "float32 stays"


def test_views_of_rows_of_channels_move_up() -> None:
    """As those of a layer norm over channels between convolutions, or of an input that lies channels last."""
    x, w = (Tensor.empty(*s, dtype=dtypes.bfloat16) for s in ((8, 64, 14, 14), (64, 64, 3, 3)))
    rows = Tensor.empty(8, 14, 14, 64, dtype=dtypes.bfloat16)
    y = (rows * 2).permute(0, 3, 1, 2) * Tensor.empty(64, 1, 1, dtype=dtypes.bfloat16) + 1
    for value in (y, rows.permute(0, 3, 1, 2).relu()):
        made = propagate_layouts([((value + x.conv2d(w, padding=1)) * 2).uop], CUDA)
        assert {n.shape for n in toposort(made) if n.op is Ops.ADD} == {(8, 14, 14, 64)}
    keys = (Tensor.empty(8, 4, 14, 64) * 2).permute(0, 1, 3, 2) + 1
    made = propagate_layouts([keys.uop, x.conv2d(w, padding=1).uop], CUDA)
    assert made[0] is keys.uop, "one axis is no image"


def test_sums_that_are_roots_read_rows() -> None:
    x, w = (Tensor.empty(*s, dtype=dtypes.bfloat16) for s in ((8, 64, 14, 14), (32, 64, 3, 3)))
    total = x.conv2d(w, padding=1).float().sum((0, 2, 3), keepdim=True)
    (made,) = propagate_layouts([total.uop], CUDA)
    assert made.shape == total.shape
    assert orders(total) == [(8, 14, 14, 32), (32,)]
    assert [n.src[0].shape for n in toposort([made]) if n.op is Ops.REDUCE and n.size == 32] == [(8, 14, 14, 32)]


def test_groups_of_channels_move_inside() -> None:
    """In the gradient of the image of a strided grouped convolution, whose statistics read short runs of memory."""
    w = Tensor.empty(40, 8, 3, 3, dtype=dtypes.bfloat16)
    x = Tensor.empty(8, 40, 28, 28, dtype=dtypes.bfloat16, requires_grad=True)
    y = x.conv2d(w, stride=2, padding=1, groups=5)
    (grad,) = y.gradient(x, gradient=Tensor.empty(*y.shape, dtype=dtypes.bfloat16))
    assert orders(grad.float().sum((0, 2, 3))) == [(8, 30, 30, 5, 8), (40,)]
    assert orders((grad.float() * 2).relu().sum((0, 2, 3))) == [(8, 30, 30, 5, 8), (40,)]


@pytest.mark.parametrize("size", [2, 4])
def test_phases_are_stored_as_rows_of_channels(size: int) -> None:
    """Windows side by side, as of patches: a kernel reads the gradient of an image by rows of its channels, and its
    product reads such rows of the weights."""
    x = Tensor.empty(8, 64, 28, 28, dtype=dtypes.bfloat16, requires_grad=True)
    y = x.conv2d(Tensor.empty(32, 64, size, size, dtype=dtypes.bfloat16), stride=size)
    (grad,) = y.gradient(x, gradient=Tensor.empty(*y.shape, dtype=dtypes.bfloat16))
    made = sum_by_phase(propagate_layouts([(grad.permute(0, 2, 3, 1).float() * 2).uop], CUDA), CUDA)
    weights, stored = ([s for s in n.shape if s > 1] for n in toposort(made) if n.op is Ops.CONTIGUOUS)
    assert weights == [size, size, 32, 64]
    assert stored == [8, 28 // size, size, 28 // size, size, 64]


def test_orders_in_which_values_are_computed() -> None:
    x, w = (Tensor.empty(*s, dtype=dtypes.bfloat16) for s in ((8, 64, 14, 14), (32, 64, 3, 3)))
    y = x.conv2d(w, padding=1)
    free = [t.uop for t in (y, y.relu(), y.permute(0, 2, 3, 1), y.flatten(2), y.max_pool2d(2), x * 2, y.flatten(1))]
    assert orders_computed(free, [True] * len(free), CUDA) == [
        (0, 2, 3, 1), (0, 2, 3, 1), (0, 1, 2, 3), (0, 2, 1), (0, 2, 3, 1), None, None]
    values = [y.uop, y.detach().uop, y.relu().uop]
    assert orders_computed(values, [False, True, True], CUDA) == [None, None, (0, 1, 2, 3)], "y keeps its order"
    assert orders_computed(values, [False] * len(values), CUDA) == [None] * len(values)


def test_roots_keep_their_shapes() -> None:
    x, w = (Tensor.empty(*s, dtype=dtypes.bfloat16) for s in ((8, 64, 14, 14), (32, 64, 1, 1)))
    values = [x.conv2d(w), x.conv2d(w).relu(), x.conv2d(w).permute(0, 2, 3, 1).contiguous()]
    made: list[UOp] = propagate_layouts([v.uop for v in values], CUDA)
    assert [m.shape for m in made] == [v.uop.shape for v in values]


def test_statistics_of_groups_of_channels_go_down_columns() -> None:
    """Sums over pixels and the channels of a group, in memory with the channels innermost."""
    rng = np.random.default_rng(0)
    x = Tensor((rng.normal(size=(2, 64, 48, 4, 8)) * 2 + 5).astype(np.float32)).realize()
    mean, center = x.mean((1, 2, 4), keepdim=True), x.mean((0, 1, 2), keepdim=True)
    values = [mean, (x - mean).square().sum((1, 2, 4)), (x * x).sum((1, 2, 4)), (x * 3).sum((0, 1, 2)),
              (x - center).square().sum((0, 1, 2)), (x - x.detach().mean()).sum((1, 2))]
    roots = [v.uop for v in values]
    made = split_reductions(roots, CUDA)
    assert any(n.op is Ops.CONTIGUOUS for n in toposort(made))
    inputs = {n: x.numpy().reshape(-1) for n in toposort(roots) if n.op is Ops.BUFFER}
    for want, got in zip(evaluate(roots, inputs), evaluate(made, inputs), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize(("channels", "side", "size", "stride"), [(16, 24, 3, 1), (24, 17, 5, 2), (8, 32, 3, 1)])
def test_weight_gradients_of_single_channels_are_split_along_rows_too(channels: int, side: int, size: int,
                                                                      stride: int) -> None:
    rng = np.random.default_rng(0)
    x = Tensor(rng.integers(-3, 4, (64, side, side, channels)).astype(np.float32)).realize()
    w = Tensor(np.ones((channels, 1, size, size), np.float32), requires_grad=True).realize()
    y = x.permute(0, 3, 1, 2).conv2d(w, groups=channels, stride=stride, padding=1)
    flow = Tensor(rng.integers(-3, 4, y.shape).astype(np.float32)).realize()
    roots = [y.gradient(w, gradient=flow)[0].uop]
    made = split_reductions(roots, CUDA)
    (partial,) = [n for n in toposort(made) if n.op is Ops.CONTIGUOUS]
    assert sum(s > 1 for s in partial.shape) == 5, "two axes of chunks, the channels and the places in the window"
    inputs = {t.uop.base: t.numpy().reshape(-1) for t in (x, w, flow)}
    np.testing.assert_array_equal(evaluate(made, inputs)[0], evaluate(roots, inputs)[0])
