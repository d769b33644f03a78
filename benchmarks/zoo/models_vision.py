"""Transformers and mixers for images, written in plain PyTorch."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.zoo.registry import Example, Size, classified, model


class Attention(nn.Module):
    """Multi-head self-attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Any, causal: bool = False) -> Any:
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2).reshape(b, t, d))


def _mlp(width: int, inner: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, inner), nn.GELU(), nn.Dropout(0.1), nn.Linear(inner, width))


class _Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.n1, self.attention, self.n2 = nn.LayerNorm(width), Attention(width, heads), nn.LayerNorm(width)
        self.mlp = _mlp(width, 4 * width)

    def forward(self, x: Any) -> Any:
        x = x + self.attention(self.n1(x))
        return x + self.mlp(self.n2(x))


class _ViT(nn.Module):
    """A vision transformer with ``tokens`` class tokens (DeiT has two), whose classifiers are averaged."""

    def __init__(self, edge: int, patch: int, width: int, heads: int, depth: int, classes: int, tokens: int) -> None:
        super().__init__()
        self.patches, self.tokens = (
            nn.Conv2d(3, width, patch, patch),
            nn.Parameter(torch.randn(1, tokens, width) * 0.02),
        )
        self.places = nn.Parameter(torch.randn(1, (edge // patch) ** 2 + tokens, width) * 0.02)
        self.blocks, self.norm = nn.Sequential(*(_Block(width, heads) for _ in range(depth))), nn.LayerNorm(width)
        self.heads = nn.ModuleList(nn.Linear(width, classes) for _ in range(tokens))

    def forward(self, x: Any) -> Any:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.tokens.expand(x.shape[0], -1, -1), x], 1) + self.places
        x = self.norm(self.blocks(x))
        return sum(head(x[:, n]) for n, head in enumerate(self.heads)) / len(self.heads)


def _vit(size: Size, tokens: int, width: int, heads: int) -> Example:
    if size == "small":
        return classified(_ViT(16, 4, 32, 4, 2, 10, tokens), torch.randn(2, 3, 16, 16), 10)
    return classified(_ViT(224, 16, width, heads, 12, 1000, tokens), torch.randn(4, 3, 224, 224), 1000)


@model("vit_small", "vision")
def _vit_small(size: Size) -> Example:
    return _vit(size, 1, 384, 6)


@model("deit_tiny", "vision")
def _deit(size: Size) -> Example:
    return _vit(size, 2, 192, 3)


class _Mixer(nn.Module):
    def __init__(self, places: int, width: int) -> None:
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.across, self.along = _mlp(places, places * 2), _mlp(width, width * 4)

    def forward(self, x: Any) -> Any:
        x = x + self.across(self.n1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.along(self.n2(x))


class _Pooled(nn.Module):
    """Patches, blocks, norm, mean over places, classifier."""

    def __init__(self, patch: int, width: int, blocks: list[nn.Module], classes: int) -> None:
        super().__init__()
        self.patches, self.blocks = nn.Conv2d(3, width, patch, patch), nn.Sequential(*blocks)
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x: Any) -> Any:
        return self.out(self.norm(self.blocks(self.patches(x).flatten(2).transpose(1, 2))).mean(1))


@model("mlp_mixer", "vision")
def _mlp_mixer(size: Size) -> Example:
    if size == "small":
        return classified(_Pooled(4, 16, [_Mixer(16, 16) for _ in range(2)], 10), torch.randn(2, 3, 16, 16), 10)
    return classified(_Pooled(16, 512, [_Mixer(196, 512) for _ in range(8)], 1000), torch.randn(4, 3, 224, 224), 1000)


class _Gated(nn.Module):
    """A block of gMLP: a gate that mixes places."""

    def __init__(self, places: int, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(2 * width, width)
        self.inner, self.mix = nn.LayerNorm(2 * width), nn.Conv1d(places, places, 1)

    def forward(self, x: Any) -> Any:
        u, v = F.gelu(self.up(self.norm(x))).chunk(2, -1)
        return x + self.down(u * self.mix(self.inner(v)))


@model("gmlp", "vision")
def _gmlp(size: Size) -> Example:
    if size == "small":
        return classified(_Pooled(4, 16, [_Gated(16, 16) for _ in range(2)], 10), torch.randn(2, 3, 16, 16), 10)
    return classified(_Pooled(16, 256, [_Gated(196, 256) for _ in range(10)], 1000), torch.randn(4, 3, 224, 224), 1000)


class _WindowBlock(nn.Module):
    """A block of Swin: attention in windows, shifted in every second block, with relative position biases."""

    def __init__(self, edge: int, width: int, heads: int, window: int, shift: int) -> None:
        super().__init__()
        self.edge, self.window, self.shift, self.heads = edge, window, shift, heads
        self.n1, self.n2, self.mlp = nn.LayerNorm(width), nn.LayerNorm(width), _mlp(width, 4 * width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.bias = nn.Parameter(torch.randn((2 * window - 1) ** 2, heads) * 0.02)
        at = torch.stack(torch.meshgrid(torch.arange(window), torch.arange(window), indexing="ij")).flatten(1)
        relative = at[:, :, None] - at[:, None, :] + window - 1
        self.register_buffer("index", relative[0] * (2 * window - 1) + relative[1])
        regions = torch.zeros(1, edge, edge, 1)
        if shift:
            cuts = (slice(0, -window), slice(-window, -shift), slice(-shift, None))
            for n, (rows, columns) in enumerate((r, c) for r in cuts for c in cuts):
                regions[:, rows, columns] = n
        parts = self._windows(regions).squeeze(-1)
        self.register_buffer("mask", (parts[:, None] != parts[:, :, None]).float() * -100.0)

    def _windows(self, x: Any) -> Any:
        b, h, w, c = x.shape
        n = self.window
        return x.view(b, h // n, n, w // n, n, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, n * n, c)

    def forward(self, x: Any) -> Any:
        b, t, c = x.shape
        e, n = self.edge, self.window
        y = self.n1(x).view(b, e, e, c)
        y = self._windows(torch.roll(y, (-self.shift, -self.shift), (1, 2)) if self.shift else y)
        q, k, v = self.qkv(y).view(-1, n * n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        scores = q * (c // self.heads) ** -0.5 @ k.transpose(-2, -1)
        scores = scores + self.bias[self.index.view(-1)].view(n * n, n * n, -1).permute(2, 0, 1)
        scores = scores.view(b, -1, self.heads, n * n, n * n) + self.mask[:, None]
        y = scores.view(-1, self.heads, n * n, n * n).softmax(-1) @ v
        y = self.out(y.transpose(1, 2).reshape(-1, n * n, c))
        y = y.view(b, e // n, e // n, n, n, c).permute(0, 1, 3, 2, 4, 5).reshape(b, e, e, c)
        y = torch.roll(y, (self.shift, self.shift), (1, 2)) if self.shift else y
        x = x + y.reshape(b, t, c)
        return x + self.mlp(self.n2(x))


class _Merging(nn.Module):
    def __init__(self, edge: int, width: int) -> None:
        super().__init__()
        self.edge, self.norm, self.down = edge, nn.LayerNorm(4 * width), nn.Linear(4 * width, 2 * width, bias=False)

    def forward(self, x: Any) -> Any:
        b, _, c = x.shape
        x = x.view(b, self.edge, self.edge, c)
        x = torch.cat([x[:, 0::2, 0::2], x[:, 1::2, 0::2], x[:, 0::2, 1::2], x[:, 1::2, 1::2]], -1)
        return self.down(self.norm(x.flatten(1, 2)))


@model("swin_tiny", "vision")
def _swin(size: Size) -> Example:
    small = size == "small"
    edge, width, window, depths = (8, 16, 4, (2, 2)) if small else (56, 96, 7, (2, 2, 6, 2))
    blocks: list[nn.Module] = []
    w = width
    for stage, depth in enumerate(depths):
        if stage:
            blocks.append(_Merging(edge, w))
            edge, w = edge // 2, 2 * w
        shift = window // 2 if edge > window else 0
        blocks += [_WindowBlock(edge, w, max(w // 32, 2), window, shift * (n % 2)) for n in range(depth)]
    module = _Pooled(4, width, blocks, 10 if small else 1000)
    module.norm, module.out = nn.LayerNorm(w), nn.Linear(w, 10 if small else 1000)
    return classified(module, torch.randn(2, 3, 32, 32) if small else torch.randn(2, 3, 224, 224), 10)


class _Focus(nn.Module):
    """A block of PoolFormer: pooling in place of attention."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.n1, self.n2 = nn.GroupNorm(1, width), nn.GroupNorm(1, width)
        self.up, self.down = nn.Conv2d(width, 4 * width, 1), nn.Conv2d(4 * width, width, 1)

    def forward(self, x: Any) -> Any:
        y = self.n1(x)
        x = x + F.avg_pool2d(y, 3, 1, 1, count_include_pad=False) - y
        return x + self.down(F.gelu(self.up(self.n2(x))))


@model("poolformer", "vision")
def _poolformer(size: Size) -> Example:
    depths, widths, edge = ((1, 1), (8, 16), 32) if size == "small" else ((2, 2, 6, 2), (64, 128, 320, 512), 224)
    layers: list[nn.Module] = [nn.Conv2d(3, widths[0], 7, 4, 2)]
    for stage, (depth, width) in enumerate(zip(depths, widths)):
        layers += [nn.Conv2d(widths[stage - 1], width, 3, 2, 1)] if stage else []
        layers += [_Focus(width) for _ in range(depth)]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(widths[-1]), nn.Linear(widths[-1], 10)]
    return classified(nn.Sequential(*layers), torch.randn(2 if edge < 99 else 4, 3, edge, edge), 10)
