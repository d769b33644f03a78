"""Small models of PyTorch that the tests of the backend train and run."""
from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F


class Convolutional(nn.Module):
    """Convolutions with batch norm, pooling and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.c1, self.b1 = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.c2, self.b2 = nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16)
        self.out = nn.Linear(16, 10)

    def forward(self, x: Any) -> Any:
        x = F.max_pool2d(F.relu(self.b1(self.c1(x))), 2)
        return self.out(F.adaptive_avg_pool2d(F.relu(self.b2(self.c2(x))), 1).flatten(1))


class _Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.n1, self.n2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Any) -> Any:
        b, t, d = x.shape
        q, k, v = (part.view(b, t, self.heads, -1).transpose(1, 2) for part in self.qkv(self.n1(x)).chunk(3, -1))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(a.transpose(1, 2).reshape(b, t, d))
        return x + self.mlp(self.n2(x))


class Transformer(nn.Module):
    """A causal language model whose input and output embeddings are one tensor."""

    def __init__(self, words: int = 50, width: int = 32, heads: int = 4, layers: int = 2) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(64, width)
        self.blocks = nn.ModuleList([_Block(width, heads) for _ in range(layers)])
        self.out = nn.Linear(width, words, bias=False)
        self.out.weight = self.words.weight
        nn.init.normal_(self.words.weight, std=0.05)

    def forward(self, tokens: Any) -> Any:
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.out(x)


class Recurrent(nn.Module):
    """An LSTM, step by step."""

    def __init__(self) -> None:
        super().__init__()
        self.x, self.h, self.out = nn.Linear(5, 32), nn.Linear(8, 32), nn.Linear(8, 10)

    def forward(self, x: Any) -> Any:
        h = c = x.new_zeros(x.shape[0], 8)
        for t in range(x.shape[1]):
            i, f, g, o = (self.x(x[:, t]) + self.h(h)).chunk(4, 1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
        return self.out(h)


class Hourglass(nn.Module):
    """A convolutional network that goes down and up again, with a connection across (a small U-Net)."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8)
        self.middle = nn.Conv2d(8, 16, 3, stride=2, padding=1)
        self.up, self.out = nn.ConvTranspose2d(16, 8, 2, stride=2), nn.Conv2d(16, 10, 1)

    def forward(self, x: Any) -> Any:
        a = F.silu(self.norm(self.down(x)))
        b = F.avg_pool2d(F.silu(self.middle(a)), 2)
        b = F.interpolate(b, scale_factor=2, mode="nearest")
        return self.out(torch.cat([a, self.up(b)], 1)).mean((2, 3))


def perceptron() -> Any:
    """Return a perceptron of two layers with a norm between them."""
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 10))
