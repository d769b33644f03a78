"""Convolutional networks, written in plain PyTorch."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.zoo.registry import Example, Size, classified, model


def _conv(i: int, o: int, size: int = 3, stride: int = 1, groups: int = 1, act: Any = nn.ReLU) -> nn.Sequential:
    """Return convolution, batch norm and activation."""
    layers = [nn.Conv2d(i, o, size, stride, size // 2, groups=groups, bias=False), nn.BatchNorm2d(o)]
    return nn.Sequential(*layers, *([act()] if act else []))


def _head(width: int, classes: int) -> nn.Sequential:
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes))


def _images(size: Size, small: int = 32, full: int = 224, batch: int = 8) -> Any:
    return torch.randn(2, 3, small, small) if size == "small" else torch.randn(batch, 3, full, full)


def _classes(size: Size) -> int:
    return 10 if size == "small" else 1000


class _Residual(nn.Module):
    """A residual block of ResNet: two 3×3, or a bottleneck 1×1, 3×3, 1×1."""

    def __init__(self, i: int, o: int, stride: int, bottleneck: bool, groups: int = 1) -> None:
        super().__init__()
        if bottleneck:
            inner = o // 4 if groups == 1 else o // 2
            self.body = nn.Sequential(
                _conv(i, inner, 1), _conv(inner, inner, 3, stride, groups), _conv(inner, o, 1, act=None)
            )
        else:
            self.body = nn.Sequential(_conv(i, o, 3, stride), _conv(o, o, act=None))
        self.skip = nn.Identity() if i == o and stride == 1 else _conv(i, o, 1, stride, act=None)

    def forward(self, x: Any) -> Any:
        return F.relu(self.body(x) + self.skip(x))


def _resnet(depths: tuple[int, ...], width: int, bottleneck: bool, classes: int, groups: int = 1) -> nn.Sequential:
    layers: list[nn.Module] = [_conv(3, width, 7, 2), nn.MaxPool2d(3, 2, 1)]
    i = width
    for stage, depth in enumerate(depths):
        o = width * 2**stage * (4 if bottleneck else 1)
        for n in range(depth):
            layers.append(_Residual(i, o, 2 if stage and not n else 1, bottleneck, groups))
            i = o
    return nn.Sequential(*layers, _head(i, classes))


@model("resnet18", "convolutional")
def _resnet18(size: Size) -> Example:
    depths, width = ((1, 1), 8) if size == "small" else ((2, 2, 2, 2), 64)
    return classified(_resnet(depths, width, False, _classes(size)), _images(size), _classes(size))


@model("resnet50", "convolutional")
def _resnet50(size: Size) -> Example:
    depths, width = ((1, 2), 8) if size == "small" else ((3, 4, 6, 3), 64)
    return classified(_resnet(depths, width, True, _classes(size)), _images(size, batch=4), _classes(size))


@model("resnext50", "convolutional")
def _resnext50(size: Size) -> Example:
    depths, width, groups = ((1, 1), 16, 4) if size == "small" else ((3, 4, 6, 3), 64, 32)
    return classified(_resnet(depths, width, True, _classes(size), groups), _images(size, batch=4), _classes(size))


class _SqueezeExcite(nn.Module):
    def __init__(self, width: int, inner: int, gate: Any = nn.Sigmoid) -> None:
        super().__init__()
        self.down, self.up, self.gate = nn.Conv2d(width, inner, 1), nn.Conv2d(inner, width, 1), gate()

    def forward(self, x: Any) -> Any:
        return x * self.gate(self.up(F.relu(self.down(x.mean((2, 3), keepdim=True)))))


class _RegBlock(nn.Module):
    def __init__(self, i: int, o: int, stride: int, group: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            _conv(i, o, 1), _conv(o, o, 3, stride, o // group), _SqueezeExcite(o, i // 4), _conv(o, o, 1, act=None)
        )
        self.skip = nn.Identity() if i == o and stride == 1 else _conv(i, o, 1, stride, act=None)

    def forward(self, x: Any) -> Any:
        return F.relu(self.body(x) + self.skip(x))


@model("regnet_y", "convolutional")
def _regnet(size: Size) -> Example:
    depths, widths, group = ((1, 1), (8, 16), 4) if size == "small" else ((1, 3, 6, 6), (48, 104, 208, 440), 8)
    layers: list[nn.Module] = [_conv(3, 16, 3, 2)]
    i = 16
    for depth, o in zip(depths, widths):
        for n in range(depth):
            layers.append(_RegBlock(i, o, 1 if n else 2, group))
            i = o
    return classified(nn.Sequential(*layers, _head(i, _classes(size))), _images(size), _classes(size))


@model("vgg11", "convolutional")
def _vgg(size: Size) -> Example:
    plan = (8, "m", 16, "m") if size == "small" else (64, "m", 128, "m", 256, 256, "m", 512, 512, "m", 512, 512, "m")
    layers: list[nn.Module] = []
    i = 3
    for o in plan:
        layers += [nn.MaxPool2d(2)] if isinstance(o, str) else [nn.Conv2d(i, o, 3, padding=1), nn.ReLU(inplace=True)]
        i = i if isinstance(o, str) else o
    wide, pooled = (32, 4) if size == "small" else (1024, 7)
    head = nn.Sequential(
        nn.AdaptiveAvgPool2d(pooled),
        nn.Flatten(),
        nn.Linear(i * pooled**2, wide),
        nn.ReLU(True),
        nn.Dropout(),
        nn.Linear(wide, _classes(size)),
    )
    return classified(nn.Sequential(*layers, *head), _images(size, batch=2), _classes(size))


class _DenseLayer(nn.Module):
    def __init__(self, i: int, growth: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.BatchNorm2d(i),
            nn.ReLU(),
            nn.Conv2d(i, 4 * growth, 1, bias=False),
            nn.BatchNorm2d(4 * growth),
            nn.ReLU(),
            nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False),
        )

    def forward(self, x: Any) -> Any:
        return torch.cat([x, self.body(x)], 1)


@model("densenet", "convolutional")
def _densenet(size: Size) -> Example:
    depths, growth = ((2, 2), 4) if size == "small" else ((6, 12, 16, 8), 32)
    i = 2 * growth
    layers: list[nn.Module] = [_conv(3, i, 7, 2), nn.MaxPool2d(3, 2, 1)]
    for stage, depth in enumerate(depths):
        for _ in range(depth):
            layers.append(_DenseLayer(i, growth))
            i += growth
        if stage + 1 < len(depths):
            layers += [nn.BatchNorm2d(i), nn.ReLU(), nn.Conv2d(i, i // 2, 1, bias=False), nn.AvgPool2d(2)]
            i //= 2
    module = nn.Sequential(*layers, nn.BatchNorm2d(i), nn.ReLU(), _head(i, _classes(size)))
    return classified(module, _images(size, batch=4), _classes(size))


class _Inverted(nn.Module):
    """An inverted residual of MobileNet and EfficientNet: widen, depthwise, squeeze and excite, narrow."""

    def __init__(self, i: int, o: int, wide: int, kernel: int, stride: int, squeeze: int, act: Any, gate: Any) -> None:
        super().__init__()
        layers = [_conv(i, wide, 1, act=act)] if wide != i else []
        layers.append(_conv(wide, wide, kernel, stride, wide, act))
        if squeeze:
            layers.append(_SqueezeExcite(wide, squeeze, gate))
        self.body = nn.Sequential(*layers, _conv(wide, o, 1, act=None))
        self.same = i == o and stride == 1

    def forward(self, x: Any) -> Any:
        return x + self.body(x) if self.same else self.body(x)


def _inverted(plan: Any, stem: int, act: Any, gate: Any, squeezed: bool, last: int, classes: int) -> nn.Sequential:
    layers: list[nn.Module] = [_conv(3, stem, 3, 2, act=act)]
    i = stem
    for expand, o, count, kernel, stride in plan:
        for n in range(count):
            layers.append(_Inverted(i, o, i * expand, kernel, 1 if n else stride, max(i // 4, 2) * squeezed, act, gate))
            i = o
    return nn.Sequential(*layers, _conv(i, last, 1, act=act), _head(last, classes))


@model("mobilenet_v2", "convolutional")
def _mobilenet2(size: Size) -> Example:
    plan = (
        [(1, 8, 1, 3, 1), (4, 12, 2, 3, 2)]
        if size == "small"
        else [
            (1, 16, 1, 3, 1),
            (6, 24, 2, 3, 2),
            (6, 32, 3, 3, 2),
            (6, 64, 4, 3, 2),
            (6, 96, 3, 3, 1),
            (6, 160, 3, 3, 2),
            (6, 320, 1, 3, 1),
        ]
    )
    module = _inverted(
        plan, 8 if size == "small" else 32, nn.ReLU6, nn.Sigmoid, False, 32 if size == "small" else 1280, _classes(size)
    )
    return classified(module, _images(size), _classes(size))


@model("mobilenet_v3", "convolutional")
def _mobilenet3(size: Size) -> Example:
    plan = (
        [(1, 8, 1, 3, 2), (4, 12, 2, 5, 2)]
        if size == "small"
        else [(1, 16, 1, 3, 2), (4, 24, 2, 3, 2), (4, 40, 3, 5, 2), (4, 48, 2, 5, 1), (6, 96, 3, 5, 2)]
    )
    module = _inverted(
        plan,
        8 if size == "small" else 16,
        nn.Hardswish,
        nn.Hardsigmoid,
        True,
        32 if size == "small" else 576,
        _classes(size),
    )
    return classified(module, _images(size), _classes(size))


@model("efficientnet_b0", "convolutional")
def _efficientnet(size: Size) -> Example:
    plan = (
        [(1, 8, 1, 3, 1), (6, 12, 2, 5, 2)]
        if size == "small"
        else [
            (1, 16, 1, 3, 1),
            (6, 24, 2, 3, 2),
            (6, 40, 2, 5, 2),
            (6, 80, 3, 3, 2),
            (6, 112, 3, 5, 1),
            (6, 192, 4, 5, 2),
            (6, 320, 1, 3, 1),
        ]
    )
    module = _inverted(
        plan, 8 if size == "small" else 32, nn.SiLU, nn.Sigmoid, True, 32 if size == "small" else 1280, _classes(size)
    )
    return classified(module, _images(size), _classes(size))


class _ChannelNorm(nn.LayerNorm):
    """Layer norm over the channels of an image."""

    def forward(self, x: Any) -> Any:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class _NextBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.full((width,), 0.1))

    def forward(self, x: Any) -> Any:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        return x + (self.scale * self.down(F.gelu(self.up(y)))).permute(0, 3, 1, 2)


@model("convnext_tiny", "convolutional")
def _convnext(size: Size) -> Example:
    depths, widths = ((1, 1), (8, 16)) if size == "small" else ((3, 3, 9, 3), (96, 192, 384, 768))
    layers: list[nn.Module] = [nn.Conv2d(3, widths[0], 4, 4), _ChannelNorm(widths[0])]
    for stage, (depth, width) in enumerate(zip(depths, widths)):
        if stage:
            layers += [_ChannelNorm(widths[stage - 1]), nn.Conv2d(widths[stage - 1], width, 2, 2)]
        layers += [_NextBlock(width) for _ in range(depth)]
    return classified(nn.Sequential(*layers, _head(widths[-1], _classes(size))), _images(size, batch=4), _classes(size))


class _Fire(nn.Module):
    def __init__(self, i: int, squeeze: int, expand: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(i, squeeze, 1)
        self.a, self.b = nn.Conv2d(squeeze, expand, 1), nn.Conv2d(squeeze, expand, 3, padding=1)

    def forward(self, x: Any) -> Any:
        x = F.relu(self.squeeze(x))
        return torch.cat([F.relu(self.a(x)), F.relu(self.b(x))], 1)


@model("squeezenet", "convolutional")
def _squeezenet(size: Size) -> Example:
    plan = (
        [(8, 4, 8), "m", (16, 4, 16)]
        if size == "small"
        else [
            (64, 16, 64),
            (128, 16, 64),
            "m",
            (128, 32, 128),
            (256, 32, 128),
            "m",
            (256, 48, 192),
            (384, 48, 192),
            (384, 64, 256),
            (512, 64, 256),
        ]
    )
    fires = [nn.MaxPool2d(3, 2, ceil_mode=True) if isinstance(p, str) else _Fire(*p) for p in plan]
    stem, last = (8, 32) if size == "small" else (64, 512)
    module = nn.Sequential(
        nn.Conv2d(3, stem, 3, 2),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, ceil_mode=True),
        *fires,
        nn.Dropout(),
        nn.Conv2d(last, _classes(size), 1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )
    return classified(module, _images(size), _classes(size))


class _Shuffle(nn.Module):
    """A unit of ShuffleNet v2: half of the channels pass, and both halves are interleaved."""

    def __init__(self, i: int, o: int, stride: int) -> None:
        super().__init__()
        self.stride, half = stride, o // 2
        start = i if stride > 1 else half
        self.left = nn.Sequential(_conv(i, i, 3, stride, i, None), _conv(i, half, 1)) if stride > 1 else nn.Identity()
        self.right = nn.Sequential(
            _conv(start, half, 1), _conv(half, half, 3, stride, half, None), _conv(half, half, 1)
        )

    def forward(self, x: Any) -> Any:
        a, b = (x, x) if self.stride > 1 else x.chunk(2, 1)
        x = torch.cat([self.left(a), self.right(b)], 1)
        n, c, h, w = x.shape
        return x.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)


@model("shufflenet_v2", "convolutional")
def _shufflenet(size: Size) -> Example:
    plan, i = (((16, 2),), 8) if size == "small" else (((116, 4), (232, 8), (464, 4)), 24)
    layers: list[nn.Module] = [_conv(3, i, 3, 2), nn.MaxPool2d(3, 2, 1)]
    for o, count in plan:
        for n in range(count):
            layers.append(_Shuffle(i, o, 1 if n else 2))
            i = o
    return classified(nn.Sequential(*layers, _head(i, _classes(size))), _images(size), _classes(size))


class _Inception(nn.Module):
    def __init__(self, i: int, width: int) -> None:
        super().__init__()
        self.a = _conv(i, width, 1)
        self.b = nn.Sequential(_conv(i, width, 1), _conv(width, 2 * width))
        self.c = nn.Sequential(_conv(i, width // 2, 1), _conv(width // 2, width, 5))
        self.d = nn.Sequential(nn.MaxPool2d(3, 1, 1), _conv(i, width, 1))

    def forward(self, x: Any) -> Any:
        return torch.cat([self.a(x), self.b(x), self.c(x), self.d(x)], 1)


@model("googlenet", "convolutional")
def _googlenet(size: Size) -> Example:
    widths, i = ((4, 8), 8) if size == "small" else ((64, 96, 128, 160), 192)
    layers: list[nn.Module] = [_conv(3, i, 7, 2), nn.MaxPool2d(3, 2, 1)]
    for width in widths:
        layers += [_Inception(i, width), nn.MaxPool2d(3, 2, 1)]
        i = 5 * width
    return classified(nn.Sequential(*layers, _head(i, _classes(size))), _images(size), _classes(size))


class _UNet(nn.Module):
    """Down and up with concatenated connections (Ronneberger et al. 2015)."""

    def __init__(self, widths: tuple[int, ...], classes: int) -> None:
        super().__init__()
        pair = lambda i, o: nn.Sequential(_conv(i, o), _conv(o, o))  # noqa: E731
        self.down = nn.ModuleList(pair(i, o) for i, o in zip((3, *widths), widths))
        self.up = nn.ModuleList(nn.ConvTranspose2d(i, o, 2, 2) for i, o in zip(widths[:0:-1], widths[-2::-1]))
        self.after = nn.ModuleList(pair(2 * o, o) for o in widths[-2::-1])
        self.out = nn.Conv2d(widths[0], classes, 1)

    def forward(self, x: Any) -> Any:
        kept = []
        for n, layer in enumerate(self.down):
            x = layer(F.max_pool2d(x, 2) if n else x)
            kept.append(x)
        for up, after in zip(self.up, self.after):
            kept.pop()
            x = after(torch.cat([kept[-1], up(x)], 1))
        return self.out(x)


@model("unet", "convolutional")
def _unet(size: Size) -> Example:
    widths = (4, 8, 16) if size == "small" else (32, 64, 128, 256)
    x = torch.randn(2, 3, 32, 32) if size == "small" else torch.randn(2, 3, 192, 192)
    return Example(_UNet(widths, 3), (x,), (torch.randint(3, (2, *x.shape[2:])),), F.cross_entropy)


class _TimeBlock(nn.Module):
    def __init__(self, i: int, o: int, time: int) -> None:
        super().__init__()
        self.n1, self.c1 = nn.GroupNorm(4, i), nn.Conv2d(i, o, 3, padding=1)
        self.n2, self.c2 = nn.GroupNorm(4, o), nn.Conv2d(o, o, 3, padding=1)
        self.time, self.skip = nn.Linear(time, o), nn.Conv2d(i, o, 1) if i != o else nn.Identity()

    def forward(self, x: Any, t: Any) -> Any:
        y = self.c1(F.silu(self.n1(x))) + self.time(F.silu(t))[:, :, None, None]
        return self.skip(x) + self.c2(F.silu(self.n2(y)))


class _PixelAttention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = (
            nn.GroupNorm(4, width),
            nn.Conv2d(width, 3 * width, 1),
            nn.Conv2d(width, width, 1),
        )

    def forward(self, x: Any) -> Any:
        n, c, h, w = x.shape
        q, k, v = self.qkv(self.norm(x)).flatten(2).transpose(1, 2).chunk(3, -1)
        return x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, c, h, w))


class _Diffusion(nn.Module):
    """The U-Net of DDPM (Ho et al. 2020): time embedding, group norm, attention at the lowest resolution."""

    def __init__(self, widths: tuple[int, ...]) -> None:
        super().__init__()
        self.width, time = widths[0], 4 * widths[0]
        self.embed = nn.Sequential(nn.Linear(widths[0], time), nn.SiLU(), nn.Linear(time, time))
        self.first = nn.Conv2d(3, widths[0], 3, padding=1)
        pairs = list(zip(widths, (*widths[1:], widths[-1])))
        self.down = nn.ModuleList(_TimeBlock(i, o, time) for i, o in pairs)
        self.shrink = nn.ModuleList(nn.Conv2d(o, o, 3, 2, 1) for _, o in pairs[:-1])
        self.attention = _PixelAttention(widths[-1])
        self.up = nn.ModuleList(_TimeBlock(o + o, i, time) for i, o in reversed(pairs))
        self.grow = nn.ModuleList(nn.Conv2d(i, i, 3, padding=1) for i, _ in list(reversed(pairs))[:-1])
        self.norm, self.out = nn.GroupNorm(4, widths[0]), nn.Conv2d(widths[0], 3, 3, padding=1)

    def forward(self, x: Any, steps: Any) -> Any:
        half = self.width // 2
        angles = steps[:, None].float() * torch.exp(torch.arange(half, device=x.device) * (-9.21 / half))
        t = self.embed(torch.cat([angles.sin(), angles.cos()], -1).to(x.dtype))
        x, kept = self.first(x), []
        for n, block in enumerate(self.down):
            x = block(x, t)
            kept.append(x)
            if n < len(self.shrink):
                x = self.shrink[n](x)
        x = self.attention(x)
        for n, block in enumerate(self.up):
            x = block(torch.cat([x, kept.pop()], 1), t)
            if n < len(self.grow):
                x = self.grow[n](F.interpolate(x, scale_factor=2.0, mode="nearest"))
        return self.out(F.silu(self.norm(x)))


@model("ddpm_unet", "convolutional")
def _ddpm(size: Size) -> Example:
    widths, edge, batch = ((8, 16), 16, 2) if size == "small" else ((64, 128, 256), 64, 4)
    return Example(_Diffusion(widths), (torch.randn(batch, 3, edge, edge), torch.randint(1000, (batch,))))


class _Csp(nn.Module):
    def __init__(self, width: int, count: int) -> None:
        super().__init__()
        half = width // 2
        self.a, self.b = _conv(width, half, 1, act=nn.SiLU), _conv(width, half, 1, act=nn.SiLU)
        self.body = nn.Sequential(
            *(nn.Sequential(_conv(half, half, 1, act=nn.SiLU), _conv(half, half, act=nn.SiLU)) for _ in range(count))
        )
        self.out = _conv(width, width, 1, act=nn.SiLU)

    def forward(self, x: Any) -> Any:
        return self.out(torch.cat([self.body(self.a(x)), self.b(x)], 1))


class _Yolo(nn.Module):
    """A detector like YOLOv5: stages, pooling pyramid, two scales, boxes decoded on a grid."""

    def __init__(self, width: int, count: int, classes: int) -> None:
        super().__init__()
        conv = lambda i, o, k=3, s=1: _conv(i, o, k, s, act=nn.SiLU)  # noqa: E731
        w = width
        self.low = nn.Sequential(
            conv(3, w, 6 - 1, 2), conv(w, 2 * w, 3, 2), _Csp(2 * w, count), conv(2 * w, 4 * w, 3, 2), _Csp(4 * w, count)
        )
        self.high = nn.Sequential(conv(4 * w, 8 * w, 3, 2), _Csp(8 * w, count))
        self.reduce, self.merge = conv(8 * w * 4, 8 * w, 1), conv(12 * w, 4 * w, 1)
        self.outs = nn.ModuleList([nn.Conv2d(4 * w, 3 * (5 + classes), 1), nn.Conv2d(8 * w, 3 * (5 + classes), 1)])
        self.register_buffer("anchors", torch.rand(2, 3, 2) + 0.5)

    def forward(self, x: Any) -> Any:
        low = self.low(x)
        high = self.high(low)
        a = F.max_pool2d(high, 5, 1, 2)
        b = F.max_pool2d(a, 5, 1, 2)
        high = self.reduce(torch.cat([high, a, b, F.max_pool2d(b, 5, 1, 2)], 1))
        low = self.merge(torch.cat([low, F.interpolate(high, size=low.shape[2:], mode="nearest")], 1))
        return torch.cat(
            [self._decoded(out(y), anchors) for out, y, anchors in zip(self.outs, (low, high), self.anchors)], 1
        )

    def _decoded(self, y: Any, anchors: Any) -> Any:
        n, c, h, w = y.shape
        y = y.view(n, 3, c // 3, h, w).permute(0, 1, 3, 4, 2).sigmoid()
        rows, columns = (torch.arange(size, device=y.device) for size in (h, w))
        rows, columns = torch.meshgrid(rows, columns, indexing="ij")
        centre = (y[..., :2] * 2 - 0.5 + torch.stack([columns, rows], -1)) / torch.tensor([w, h], device=y.device)
        return torch.cat([centre, (y[..., 2:4] * 2) ** 2 * anchors[:, None, None], y[..., 4:]], -1).flatten(1, 3)


@model("yolo", "convolutional")
def _yolo(size: Size) -> Example:
    module = _Yolo(4, 1, 4) if size == "small" else _Yolo(32, 2, 80)
    return Example(module, (_images(size, 32, 320, 2),))


class _Heads(nn.Module):
    """Heads like those of Mask R-CNN on one feature map: proposals, regions by bilinear samples, boxes, masks."""

    def __init__(self, width: int, regions: int, classes: int) -> None:
        super().__init__()
        self.regions = regions
        self.back = nn.Sequential(_conv(3, width, 3, 2), _conv(width, width, 3, 2))
        self.score, self.box = nn.Conv2d(width, 3, 1), nn.Conv2d(width, 12, 1)
        self.inner = nn.Sequential(nn.Linear(width * 49, 64), nn.ReLU())
        self.kind, self.fine = nn.Linear(64, classes), nn.Linear(64, 4 * classes)
        self.mask = nn.Sequential(
            _conv(width, width), nn.ConvTranspose2d(width, width, 2, 2), nn.ReLU(), nn.Conv2d(width, classes, 1)
        )

    def forward(self, x: Any) -> Any:
        y = self.back(x)
        n, _, h, w = y.shape
        score = self.score(y).flatten(1)
        box = self.box(y).view(n, 3, 4, h, w).permute(0, 2, 1, 3, 4).flatten(2)
        best = score.topk(self.regions, 1).indices
        box = box.gather(2, best[:, None].expand(-1, 4, -1)).sigmoid()
        steps = (torch.arange(7, device=x.device) + 0.5) / 7
        ys, xs = (box[:, k, :, None] + steps * (box[:, k + 2, :, None] - box[:, k, :, None]) for k in (0, 1))
        crops = self._sampled(y, ys * (h - 1), xs * (w - 1))
        inner = self.inner(crops.flatten(1))
        return score, box, self.kind(inner), self.fine(inner), self.mask(crops)

    def _sampled(self, y: Any, rows: Any, columns: Any) -> Any:
        """Return bilinear samples (n·regions, c, 7, 7) of images y."""
        n, _, h, w = y.shape
        r0, c0 = rows.detach().floor().long().clamp(0, h - 2), columns.detach().floor().long().clamp(0, w - 2)
        fr, fc = (rows - r0)[..., :, None, None], (columns - c0)[..., None, :, None]
        images = y.permute(0, 2, 3, 1)
        batch = torch.arange(n, device=y.device)[:, None, None, None]
        at = lambda a, b: images[batch, (r0 + a)[..., :, None], (c0 + b)[..., None, :]]  # noqa: E731
        found = (at(0, 0) * (1 - fr) + at(1, 0) * fr) * (1 - fc) + (at(0, 1) * (1 - fr) + at(1, 1) * fr) * fc
        return found.flatten(0, 1).permute(0, 3, 1, 2)


@model("mask_heads", "convolutional")
def _mask_heads(size: Size) -> Example:
    module = _Heads(8, 4, 3) if size == "small" else _Heads(128, 64, 80)
    return Example(module, (_images(size, 32, 256, 2),))
