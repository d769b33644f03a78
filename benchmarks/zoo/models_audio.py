"""Models of sound, written in plain PyTorch."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.zoo.models_vision import Attention
from benchmarks.zoo.registry import Example, Size, classified, model


class _WaveNet(nn.Module):
    """Dilated causal convolutions with gates (van den Oord et al. 2016)."""

    def __init__(self, width: int, depth: int, levels: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(levels, width)
        self.gates = nn.ModuleList(nn.Conv1d(width, 2 * width, 2, dilation=2**n) for n in range(depth))
        self.mixes = nn.ModuleList(nn.Conv1d(width, 2 * width, 1) for _ in range(depth))
        self.out = nn.Sequential(nn.ReLU(), nn.Conv1d(width, width, 1), nn.ReLU(), nn.Conv1d(width, levels, 1))

    def forward(self, samples: Any) -> Any:
        x = self.embed(samples).transpose(1, 2)
        total: Any = 0
        for n, (gate, mix) in enumerate(zip(self.gates, self.mixes)):
            a, b = gate(F.pad(x, (2**n, 0))).chunk(2, 1)
            more, skip = mix(a.tanh() * b.sigmoid()).chunk(2, 1)
            x, total = x + more, total + skip
        return self.out(total)


@model("wavenet", "audio")
def _wavenet(size: Size) -> Example:
    width, depth, levels, length = (8, 3, 16, 64) if size == "small" else (64, 8, 256, 8000)
    samples = torch.randint(levels, (2, length))
    return Example(_WaveNet(width, depth, levels), (samples,), (samples.roll(-1, 1),), F.cross_entropy)


class _ConvModule(nn.Module):
    """The convolution module of Conformer (Gulati et al. 2020)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Conv1d(width, 2 * width, 1), nn.Conv1d(width, width, 1)
        self.depthwise, self.inner = nn.Conv1d(width, width, 15, padding=7, groups=width), nn.BatchNorm1d(width)

    def forward(self, x: Any) -> Any:
        y = F.glu(self.up(self.norm(x).transpose(1, 2)), 1)
        return x + self.down(F.silu(self.inner(self.depthwise(y)))).transpose(1, 2)


class _Conformer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        half = lambda: nn.Sequential(  # noqa: E731
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.SiLU(),
            nn.Linear(4 * width, width),
        )
        self.first, self.last, self.conv = half(), half(), _ConvModule(width)
        self.n1, self.attention, self.n2 = nn.LayerNorm(width), Attention(width, heads), nn.LayerNorm(width)

    def forward(self, x: Any) -> Any:
        x = x + 0.5 * self.first(x)
        x = self.conv(x + self.attention(self.n1(x)))
        return self.n2(x + 0.5 * self.last(x))


class _Speech(nn.Module):
    """A Conformer over spectra with two convolutions that shorten time, trained with CTC's input distribution."""

    def __init__(self, bands: int, width: int, heads: int, depth: int, letters: int) -> None:
        super().__init__()
        self.front = nn.Sequential(nn.Conv2d(1, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, 2, 1), nn.ReLU())
        self.start, self.out = nn.Linear(8 * (bands // 4), width), nn.Linear(width, letters)
        self.blocks = nn.Sequential(*(_Conformer(width, heads) for _ in range(depth)))

    def forward(self, x: Any) -> Any:
        y = self.front(x[:, None]).permute(0, 2, 1, 3).flatten(2)
        return self.out(self.blocks(self.start(y))).log_softmax(-1)


@model("conformer", "audio")
def _conformer(size: Size) -> Example:
    if size == "small":
        return Example(_Speech(16, 16, 2, 1, 10), (torch.randn(2, 32, 16),))
    return Example(_Speech(80, 144, 4, 8, 200), (torch.randn(4, 400, 80),))


class _Keywords(nn.Module):
    """Log-mel spectra of samples by products with a windowed Fourier basis, then convolutions."""

    def __init__(self, window: int, hop: int, bands: int, width: int, classes: int) -> None:
        super().__init__()
        self.window, self.hop = window, hop
        angles = torch.arange(window)[:, None] * torch.arange(window // 2 + 1) * (6.283185 / window)
        shape = torch.hann_window(window)[:, None]
        self.register_buffer("basis", torch.cat([angles.cos() * shape, angles.sin() * shape], 1))
        self.register_buffer("mel", torch.rand(window // 2 + 1, bands))
        self.body = nn.Sequential(
            nn.Conv1d(bands, width, 5, padding=2),
            nn.BatchNorm1d(width),
            nn.ReLU(),
            nn.MaxPool1d(2),
            nn.Conv1d(width, width, 5, padding=2),
            nn.ReLU(),
            nn.AdaptiveAvgPool1d(1),
            nn.Flatten(),
            nn.Linear(width, classes),
        )

    def forward(self, samples: Any) -> Any:
        frames = samples.unfold(-1, self.window, self.hop) @ self.basis
        real, imaginary = frames.chunk(2, -1)
        spectrum = (real**2 + imaginary**2) @ self.mel
        return self.body((spectrum + 1e-3).log().transpose(1, 2))


@model("keyword_spotting", "audio")
def _keywords(size: Size) -> Example:
    if size == "small":
        return classified(_Keywords(32, 16, 8, 8, 5), torch.randn(2, 320), 5)
    return classified(_Keywords(400, 160, 64, 128, 35), torch.randn(16, 16000), 35)


class _Separator(nn.Module):
    """Conv-TasNet: learned filters, dilated depthwise convolutions, a mask for each source."""

    def __init__(self, filters: int, width: int, depth: int, sources: int) -> None:
        super().__init__()
        self.sources, self.filters = sources, filters
        self.encode, self.decode = nn.Conv1d(1, filters, 16, 8), nn.ConvTranspose1d(filters, 1, 16, 8)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Conv1d(filters, width, 1),
                nn.PReLU(),
                nn.GroupNorm(1, width),
                nn.Conv1d(width, width, 3, padding=2**n, dilation=2**n, groups=width),
                nn.PReLU(),
                nn.GroupNorm(1, width),
                nn.Conv1d(width, filters, 1),
            )
            for n in range(depth)
        )
        self.mask = nn.Conv1d(filters, filters * sources, 1)

    def forward(self, x: Any) -> Any:
        y = z = F.relu(self.encode(x))
        for block in self.blocks:
            z = z + block(z)
        mask = self.mask(z).sigmoid().view(x.shape[0], self.sources, self.filters, -1)
        return self.decode((mask * y[:, None]).flatten(0, 1)).view(x.shape[0], self.sources, -1)


@model("conv_tasnet", "audio")
def _tasnet(size: Size) -> Example:
    if size == "small":
        return Example(_Separator(8, 16, 2, 2), (torch.randn(2, 1, 256),))
    return Example(_Separator(256, 256, 8, 2), (torch.randn(2, 1, 16000),))
