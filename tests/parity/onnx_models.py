"""Networks in PyTorch to export to ONNX: ResNet-50, BERT, and a detector made like YOLOv8, with random weights."""
from __future__ import annotations

import io
import warnings
from typing import Any

import onnx
import torch
from torch import nn
from torch.nn import functional as F


class Bottleneck(nn.Module):
    def __init__(self, width: int, inner: int, stride: int) -> None:
        super().__init__()
        out = 4 * inner
        self.one, self.two = nn.Conv2d(width, inner, 1, bias=False), nn.Conv2d(inner, inner, 3, stride, 1, bias=False)
        self.three = nn.Conv2d(inner, out, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(n) for n in (inner, inner, out))
        self.short: Any = None
        if stride > 1 or width != out:
            self.short = nn.Sequential(nn.Conv2d(width, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norms[0](self.one(x)).relu()
        y = self.norms[1](self.two(y)).relu()
        return (self.norms[2](self.three(y)) + (x if self.short is None else self.short(x))).relu()


def resnet50(width: int = 64) -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
                               nn.MaxPool2d(3, 2, 1)]
    before = width
    for n, count in enumerate((3, 4, 6, 3)):
        for k in range(count):
            layers.append(Bottleneck(before, width << n, 2 if n and not k else 1))
            before = 4 * width << n
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 1000))


class Conv(nn.Sequential):
    def __init__(self, a: int, b: int, size: int = 1, stride: int = 1) -> None:
        super().__init__(nn.Conv2d(a, b, size, stride, size // 2, bias=False), nn.BatchNorm2d(b), nn.SiLU())


class C2f(nn.Module):
    """A split into halves, one of which passes through residual blocks, and a concatenation of all parts."""

    def __init__(self, a: int, b: int, count: int, residual: bool) -> None:
        super().__init__()
        half, self.residual = b // 2, residual
        self.first, self.last = Conv(a, b), Conv((2 + count) * half, b)
        self.blocks = nn.ModuleList(nn.Sequential(Conv(half, half, 3), Conv(half, half, 3)) for _ in range(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = list(self.first(x).chunk(2, 1))
        for block in self.blocks:
            parts.append(parts[-1] + block(parts[-1]) if self.residual else block(parts[-1]))
        return self.last(torch.cat(parts, 1))


class Yolo(nn.Module):
    """A YOLOv8-like detector: backbone, pooling pyramid, two paths through the scales, boxes from distance
    distributions."""

    def __init__(self, width: int = 16, classes: int = 8, bins: int = 16) -> None:
        super().__init__()
        w, self.bins, self.classes = width, bins, classes
        self.stem = nn.Sequential(Conv(3, w, 3, 2), Conv(w, 2 * w, 3, 2), C2f(2 * w, 2 * w, 1, True))
        self.down3 = nn.Sequential(Conv(2 * w, 4 * w, 3, 2), C2f(4 * w, 4 * w, 2, True))
        self.down4 = nn.Sequential(Conv(4 * w, 8 * w, 3, 2), C2f(8 * w, 8 * w, 2, True))
        self.down5 = nn.Sequential(Conv(8 * w, 16 * w, 3, 2), C2f(16 * w, 16 * w, 1, True))
        self.before, self.after = Conv(16 * w, 8 * w), Conv(32 * w, 16 * w)
        self.up4, self.up3 = C2f(24 * w, 8 * w, 1, False), C2f(12 * w, 4 * w, 1, False)
        self.to4, self.out4 = Conv(4 * w, 4 * w, 3, 2), C2f(12 * w, 8 * w, 1, False)
        self.to5, self.out5 = Conv(8 * w, 8 * w, 3, 2), C2f(24 * w, 16 * w, 1, False)
        self.heads = nn.ModuleList(nn.Sequential(Conv(n * w, 4 * w, 3), nn.Conv2d(4 * w, 4 * bins + classes, 1))
                                   for n in (4, 8, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        p3 = self.down3(self.stem(x))
        p4 = self.down4(p3)
        y = self.before(self.down5(p4))
        pooled = [y]
        for _ in range(3):
            pooled.append(F.max_pool2d(pooled[-1], 5, 1, 2))
        p5 = self.after(torch.cat(pooled, 1))
        n4 = self.up4(torch.cat([F.interpolate(p5, scale_factor=2.0), p4], 1))
        n3 = self.up3(torch.cat([F.interpolate(n4, scale_factor=2.0), p3], 1))
        n4 = self.out4(torch.cat([self.to4(n3), n4], 1))
        n5 = self.out5(torch.cat([self.to5(n4), p5], 1))
        return torch.cat([self.boxes(head(n), 8 << k) for k, (head, n) in enumerate(zip(self.heads, (n3, n4, n5)))], 2)

    def boxes(self, x: torch.Tensor, stride: int) -> torch.Tensor:
        batch, _, h, w = x.shape
        sides, scores = x.flatten(2).split([4 * self.bins, self.classes], 1)
        weights = sides.reshape(batch, 4, self.bins, h * w).softmax(2)
        reach = (weights * torch.arange(self.bins, dtype=x.dtype).reshape(1, 1, -1, 1)).sum(2)
        rows, columns = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
        centers = torch.stack([columns, rows]).reshape(1, 2, -1) + 0.5
        corners = torch.cat([centers - reach[:, :2], centers + reach[:, 2:]], 1) * stride
        return torch.cat([corners, scores.sigmoid()], 1)


def exported(model: nn.Module, inputs: tuple[Any, ...], names: list[str]) -> Any:
    """Return the model as ONNX, with normalization statistics that differ from the defaults."""
    torch.manual_seed(1)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.2)  # type: ignore[union-attr]
            module.running_var.uniform_(0.5, 1.5)  # type: ignore[union-attr]
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(model.eval(), inputs, file, dynamo=False, opset_version=17, input_names=names,
                          output_names=["y"])
    return onnx.ModelProto.FromString(file.getvalue())
