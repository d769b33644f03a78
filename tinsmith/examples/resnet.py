"""ResNet-18 and ResNet-50: train on images, or classify images with published weights.

    python -m tinsmith.examples.resnet                              ResNet-18 on handwritten digits
    python -m tinsmith.examples.resnet --cifar --depth 50           ResNet-50 on CIFAR-10
    python -m tinsmith.examples.resnet --weights resnet18.pth IMAGE.jpg …  the likeliest classes (Pillow)

Parameters have torchvision's names, so that its files (.pth or .safetensors) load.
"""
from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence

import numpy as np

from tinsmith import Tensor, TinyJit, nn
from tinsmith.nn.datasets import load_digits

BLOCKS = {18: (2, 2, 2, 2), 50: (3, 4, 6, 3)}


class Block:
    """Two 3×3 convolutions, or for deep networks a 3×3 one between two of 1×1, beside a shortcut."""

    def __init__(self, channels: int, width: int, stride: int, deep: bool) -> None:
        out, sizes = width * (4 if deep else 1), [(1, 1), (3, stride), (1, 1)] if deep else [(3, stride), (3, 1)]
        widths = [channels, *[width] * (len(sizes) - 1), out]
        for n, (kernel, step) in enumerate(sizes):
            setattr(self, f"conv{n + 1}", nn.Conv2d(widths[n], widths[n + 1], kernel, step, kernel // 2, bias=False))
            setattr(self, f"bn{n + 1}", nn.BatchNorm2d(widths[n + 1]))
        self.count = len(sizes)
        self.downsample = nn.Sequential()
        if stride > 1 or channels != out:
            self.downsample += [nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out)]

    def __call__(self, x: Tensor) -> Tensor:
        out = x
        for n in range(1, self.count + 1):
            out = getattr(self, f"bn{n}")(getattr(self, f"conv{n}")(out))
            out = out.relu() if n < self.count else out
        return (out + self.downsample(x)).relu()


class ResNet:
    """Images ``[N, 3, H, W]`` → logits ``[N, classes]``.

    Args:
        depth: 18 or 50.
        width: channels of the first stage; each later one has twice as many.
        small: for images of some 32 pixels: no pooling, and a first convolution that keeps the size.
    """

    def __init__(self, depth: int = 18, classes: int = 1000, width: int = 64, small: bool = False) -> None:
        deep = depth >= 50
        self.conv1 = nn.Conv2d(3, width, 3 if small else 7, 1 if small else 2, 1 if small else 3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.pool: Callable[[Tensor], Tensor] = nn.Identity() if small else nn.MaxPool2d(3, 2, 1)
        channels = width
        for stage, count in enumerate(BLOCKS[depth]):
            blocks = nn.Sequential()
            for n in range(count):
                blocks.append(Block(channels, width << stage, 2 if stage and not n else 1, deep))
                channels = (width << stage) * (4 if deep else 1)
            setattr(self, f"layer{stage + 1}", blocks)
        self.fc = nn.Linear(channels, classes)

    def __call__(self, x: Tensor) -> Tensor:
        x = self.pool(self.bn1(self.conv1(x)).relu())
        for stage in range(1, 5):
            x = getattr(self, f"layer{stage}")(x)
        return self.fc(x.mean((2, 3)))


def classify(model: ResNet, files: Sequence[str], likeliest: int = 5) -> None:
    """Print the likeliest classes of image files."""
    from PIL import Image  # an option of this program: pip install pillow
    mean, deviation = np.array([0.485, 0.456, 0.406], np.float32), np.array([0.229, 0.224, 0.225], np.float32)
    for file in files:
        image = Image.open(file).convert("RGB")
        scale = 256 / min(image.size)
        image = image.resize((round(image.width * scale), round(image.height * scale)))
        left, top = (image.width - 224) // 2, (image.height - 224) // 2
        pixels = np.asarray(image.crop((left, top, left + 224, top + 224)), np.float32) / 255
        x = Tensor(((pixels - mean) / deviation).transpose(2, 0, 1)[None])
        chance, label = model(x).softmax()[0].topk(likeliest)
        print(file, ", ".join(f"class {n}: {c:.1%}" for n, c in zip(label.tolist(), chance.tolist())))


def images(cifar: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training and test images ``[N, 3, H, W]`` in [-1, 1] and their labels."""
    if cifar:
        x, y, test_x, test_y = nn.datasets.cifar()
    else:
        d = load_digits(offline="digits")
        print(f"digits: {d.source}")
        x, y, test_x, test_y = (Tensor(a) for a in (d.train_images, d.train_labels, d.test_images, d.test_labels))
    x, test_x = (t.expand(t.shape[0], 3, *t.shape[2:]).float() / 127.5 - 1 for t in (x, test_x))
    found = (x, y.cast("int32"), test_x, test_y.cast("int32"))
    for t in found:
        t.requires_grad = False
        t.realize()
    return found


def train(model: ResNet, x: Tensor, y: Tensor, steps: int, batch: int, lr: float) -> list[float]:
    """Return the loss of every step, on random batches."""
    opt = nn.optim.SGD(nn.state.get_parameters(model), lr, momentum=0.9, weight_decay=5e-4)

    @TinyJit
    @Tensor.train()
    def step() -> Tensor:
        rows = Tensor.randint(batch, high=x.shape[0])
        opt.zero_grad()
        loss = model(x[rows]).cross_entropy(y[rows]).backward()
        opt.step()
        return loss.realize()

    losses: list[float] = []
    for n in range(steps):
        start = time.perf_counter()
        losses.append(float(step().item()))
        print(f"step {n + 1}: loss {losses[-1]:.4f}, {(time.perf_counter() - start) * 1e3:.0f} ms", flush=True)
    return losses


def main() -> None:
    """Read the arguments; train or classify."""
    parser = argparse.ArgumentParser(description="ResNet-18 and ResNet-50.")
    parser.add_argument("files", nargs="*", metavar="IMAGE", help="images to classify")
    parser.add_argument("--weights", metavar="FILE", help="a state dict of torchvision's model")
    parser.add_argument("--depth", type=int, default=18, choices=BLOCKS)
    parser.add_argument("--width", type=int, default=64, help="channels of the first stage")
    parser.add_argument("--cifar", action="store_true", help="train on CIFAR-10 instead of digits")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    Tensor.manual_seed(args.seed)
    if args.files:
        model = ResNet(args.depth, width=args.width)
        if args.weights:
            load = nn.state.safe_load if args.weights.endswith(".safetensors") else nn.state.torch_load
            nn.state.load_state_dict(model, load(args.weights))
        classify(model, args.files)
        return
    x, y, test_x, test_y = images(args.cifar)
    model = ResNet(args.depth, 10, args.width, small=True)
    train(model, x, y, args.steps, args.batch, args.lr)
    count = min(500, test_x.shape[0])
    right = (model(test_x[:count]).argmax(1) == test_y[:count]).mean().item()
    print(f"test accuracy {100 * right:.2f} %")


if __name__ == "__main__":
    main()
