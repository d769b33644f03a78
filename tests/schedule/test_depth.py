"""A layer has the same kernels at any depth: no decision of fusion adds up costs along a chain of layers."""
from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from tinsmith import Tensor, nn

WIDTH, ROWS = 64, 128


class PreNorm:
    """A block of a transformer without attention, normalized before each layer."""

    def __init__(self) -> None:
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def __call__(self, x: Tensor) -> Tensor:
        return x + self.down(self.up(self.norm(x)).gelu("tanh"))


class PostNorm(PreNorm):
    def __call__(self, x: Tensor) -> Tensor:
        return self.norm(x + self.down(self.up(x).gelu("tanh")))


class Causal(PreNorm):
    """Attention with a mask of positions, which every layer shares."""

    def __call__(self, x: Tensor) -> Tensor:
        q = self.norm(x).reshape(2, ROWS // 2, 4, WIDTH // 4).transpose(1, 2)
        return x + self.down(self.up(q.scaled_dot_product_attention(q, q, is_causal=True).transpose(1, 2).reshape(
            ROWS, WIDTH)))


def inference(layers: list[PreNorm], x: Tensor) -> int:
    with Tensor.no_grad():
        for layer in layers:
            x = layer(x)
        return len(x.explain(run=False).kernels)


def training(layers: list[PreNorm], x: Tensor) -> int:
    for layer in layers:
        x = layer(x)
    weights = nn.state.get_parameters(layers)
    gradients = x.square().sum().gradient(*weights)
    return len(Tensor.stack(*[g.square().sum() for g in gradients]).explain(run=False).kernels)


def check(count: Callable[[list[PreNorm], Tensor], int], block: type[PreNorm], autocast: bool) -> None:
    """Compare the kernels that eight more layers add, after 2 layers and after 10."""
    x, found = Tensor.empty(ROWS, WIDTH).realize(), []
    for depth in (2, 10, 18):
        layers = [block() for _ in range(depth)]
        for p in nn.state.get_parameters(layers):
            p.replace(Tensor.empty(*p.shape)).realize()
        with Tensor.autocast(enabled=autocast):
            found.append(count(layers, x))
    first, second = (b - a for a, b in itertools.pairwise(found))
    assert second <= first, f"kernels with 2, 10 and 18 layers: {found}"


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("block", [PreNorm, PostNorm, Causal])
def test_a_layer_has_the_same_kernels_at_any_depth(block: type[PreNorm], autocast: bool) -> None:
    """From the 15th block on, a norm took three kernels instead of one, since the operations of all blocks before
    counted as its own; and the mask of 6 layers or more was stored for each batch and head."""
    check(inference, block, autocast)


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("block", [PreNorm, PostNorm, Causal])
def test_and_so_has_its_gradient(block: type[PreNorm], autocast: bool) -> None:
    check(training, block, autocast)
