"""PyTorch versions of the programs of examples/ that define layers, with the same parameter names."""
from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn


class Block(nn.Module):
    """A residual block of ResNet-18 (two convolutions) or ResNet-50 (three)."""

    def __init__(self, channels: int, width: int, stride: int, deep: bool) -> None:
        super().__init__()
        out = 4 * width if deep else width
        if deep:
            self.conv1, self.conv2 = nn.Conv2d(channels, width, 1, bias=False), nn.Conv2d(
                width, width, 3, stride, 1, bias=False)
            self.conv3, self.bn3 = nn.Conv2d(width, out, 1, bias=False), nn.BatchNorm2d(out)
        else:
            self.conv1, self.conv2 = nn.Conv2d(channels, width, 3, stride, 1, bias=False), nn.Conv2d(
                width, width, 3, 1, 1, bias=False)
        self.bn1, self.bn2, self.deep, self.downsample = nn.BatchNorm2d(width), nn.BatchNorm2d(width), deep, None
        if stride != 1 or channels != out:
            self.downsample = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: Any) -> Any:
        out = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        if self.deep:
            out = self.bn3(self.conv3(torch.relu(out)))
        return torch.relu(out + (x if self.downsample is None else self.downsample(x)))


class ResNet(nn.Module):
    """ResNet with the stem for large images."""

    def __init__(self, depth: int, classes: int, width: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width)
        deep, channels = depth >= 50, width
        for stage, count in enumerate({18: (2, 2, 2, 2), 50: (3, 4, 6, 3)}[depth]):
            blocks = []
            for n in range(count):
                blocks.append(Block(channels, width << stage, 2 if stage and n == 0 else 1, deep))
                channels = (4 if deep else 1) * (width << stage)
            setattr(self, f"layer{stage + 1}", nn.Sequential(*blocks))
        self.fc = nn.Linear(channels, classes)

    def forward(self, x: Any) -> Any:
        x = nn.functional.max_pool2d(torch.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        return self.fc(self.layer4(self.layer3(self.layer2(self.layer1(x)))).mean((2, 3)))


class Writer(nn.Module):
    """An LSTM over characters."""

    def __init__(self, characters: int, width: int, layers: int) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(characters, width), nn.Linear(width, characters)
        self.lstm = nn.LSTM(width, width, layers, batch_first=True)

    def forward(self, x: Any) -> Any:
        return self.head(self.lstm(self.embedding(x))[0])


class Residual(nn.Module):
    """The residual block of the U-Net."""

    def __init__(self, channels: int, out: int, times: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(4, channels), nn.Conv2d(channels, out, 3, padding=1)
        self.time, self.norm2 = nn.Linear(times, out), nn.GroupNorm(4, out)
        self.conv2 = nn.Conv2d(out, out, 3, padding=1)
        self.shortcut = nn.Identity() if channels == out else nn.Conv2d(channels, out, 1)

    def forward(self, x: Any, time: Any) -> Any:
        h = self.conv1(nn.functional.silu(self.norm1(x))) + self.time(time)[:, :, None, None]
        return self.conv2(nn.functional.silu(self.norm2(h))) + self.shortcut(x)


class Attention(nn.Module):
    """The attention block of the U-Net."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm, self.attention = nn.GroupNorm(4, channels), nn.MultiheadAttention(channels, 2, batch_first=True)

    def forward(self, x: Any) -> Any:
        places = self.norm(x).flatten(2).transpose(1, 2)
        return x + self.attention(places, places, places)[0].transpose(1, 2).reshape(x.shape)


class UNet(nn.Module):
    """The network of examples/diffusion.py."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width, t = width, 4 * width
        self.time = nn.Sequential(nn.Linear(width, t), nn.SiLU(), nn.Linear(t, t), nn.SiLU())
        self.first = nn.Conv2d(1, width, 3, padding=1)
        self.down1, self.half1 = Residual(width, width, t), nn.Conv2d(width, width, 3, 2, 1)
        self.down2, self.half2 = Residual(width, 2 * width, t), nn.Conv2d(2 * width, 2 * width, 3, 2, 1)
        self.middle1, self.look = Residual(2 * width, 2 * width, t), Attention(2 * width)
        self.middle2, self.twice = Residual(2 * width, 2 * width, t), nn.Upsample(scale_factor=2)
        self.up2, self.up1 = Residual(4 * width, width, t), Residual(2 * width, width, t)
        self.norm, self.last = nn.GroupNorm(4, width), nn.Conv2d(width, 1, 3, padding=1)

    def forward(self, x: Any, times: Any) -> Any:
        half = self.width // 2
        waves = times[:, None].float() * torch.exp(torch.arange(half) * (-math.log(10000) / half))
        time = self.time(torch.cat([waves.sin(), waves.cos()], 1))
        one = self.down1(self.first(x), time)
        two = self.down2(self.half1(one), time)
        deep = self.middle2(self.look(self.middle1(self.half2(two), time)), time)
        up = self.up2(torch.cat([self.twice(deep), two], 1), time)
        return self.last(nn.functional.silu(self.norm(self.up1(torch.cat([self.twice(up), one], 1), time))))
