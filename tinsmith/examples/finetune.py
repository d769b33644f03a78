"""Fine-tuning a network whose weights come from PyTorch: a ResNet-18 from a ``.pth`` file, with a new last layer.

    python -m tinsmith.examples.finetune resnet18.pth    torchvision's names; only the last layer and the norms learn
    python -m tinsmith.examples.finetune                 the same from random weights, for comparison

The images are the 8×8 digits of scikit-learn, made three channels wide and larger. A file's last layer is left out
where its number of classes is another one.
"""
from __future__ import annotations

import argparse
import importlib
from pathlib import Path
from typing import Any

import numpy as np

from tinsmith import Tensor, TinyJit, nn
from tinsmith.nn.state import get_parameters, get_state_dict, load_state_dict, safe_save, torch_load


class Block:
    """A residual block of two convolutions, with torchvision's parameter names."""

    def __init__(self, width: int, out: int, stride: int) -> None:
        self.conv1 = nn.Conv2d(width, out, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(out), nn.BatchNorm2d(out)
        self.downsample: list[Any] = []
        if stride > 1 or width != out:
            self.downsample = [nn.Conv2d(width, out, 1, stride, bias=False), nn.BatchNorm2d(out)]

    def __call__(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        return (y + x.sequential(self.downsample)).relu()


class ResNet18:
    """Images ``[n, 3, h, w]`` → scores ``[n, classes]``."""

    def __init__(self, classes: int = 1000, width: int = 64) -> None:
        self.conv1, self.bn1 = nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width)
        sizes = [width << n for n in range(4)]
        self.layer1, self.layer2, self.layer3, self.layer4 = (
            [Block(before, size, 2 if n else 1), Block(size, size, 1)]
            for n, (before, size) in enumerate(zip([width, *sizes], sizes)))
        self.fc = nn.Linear(sizes[-1], classes)

    def __call__(self, x: Tensor) -> Tensor:
        x = self.bn1(self.conv1(x)).relu().max_pool2d(3, 2, padding=1)
        for layer in (self.layer1, self.layer2, self.layer3, self.layer4):
            x = x.sequential(layer)
        return self.fc(x.mean((2, 3)))


def load(model: ResNet18, path: Path) -> list[str]:
    """Load a file's weights where they fit; return the names not loaded (a last layer with other classes)."""
    stored = torch_load(path)
    stored = stored.get("state_dict", stored) if isinstance(stored, dict) else {}
    stored = {name.removeprefix("module."): t for name, t in stored.items()}
    own = get_state_dict(model)
    fitting = {name: t for name, t in stored.items()
               if name in own and (t.shape == own[name].shape or t.numel() == own[name].numel() == 1)}
    if not fitting:
        raise SystemExit(f"{path} holds no weights of a ResNet-18: {', '.join(list(stored)[:4])} …")
    return load_state_dict(model, fitting, strict=False)


def learning(model: ResNet18) -> list[Tensor]:
    """Return the parameters to train: the last layer and the norms. All other weights are frozen."""
    norms = [t for n, t in get_state_dict(model).items() if "bn" in n or "downsample.1" in n]
    kept = get_parameters([model.fc, norms])
    return [t for t in kept if t.requires_grad is not False and t.is_floating_point()]


def train(model: ResNet18, images: np.ndarray, labels: np.ndarray, steps: int, batch: int, lr: float,
          seed: int) -> list[float]:
    """Return the losses of all steps; the step is one captured program."""
    optimizer = nn.optim.AdamW(learning(model), lr=lr)

    @TinyJit
    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = model(x).sparse_categorical_crossentropy(y)
        loss.backward()
        optimizer.step()
        return loss

    rng, losses = np.random.default_rng(seed), []
    with Tensor.train():
        for n in range(steps):
            chosen = rng.integers(0, len(images), batch)
            losses.append(float(step(Tensor(images[chosen]).realize(), Tensor(labels[chosen]).realize()).item()))
            if n % 10 == 0 or n == steps - 1:
                print(f"step {n:4d}   loss {losses[-1]:.3f}")
    return losses


def digits(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Images ``[n, 3, size, size]`` and labels of scikit-learn's digits."""
    found = importlib.import_module("sklearn.datasets").load_digits()
    images = found.images.astype(np.float32) / 8 - 1
    large = images.repeat(size // 8, 1).repeat(size // 8, 2)
    return np.repeat(large[:, None], 3, 1), found.target.astype(np.int32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("weights", type=Path, nargs="?", help="a .pth file with torchvision's names")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--size", type=int, default=64, help="pixels of a side, a multiple of 8")
    parser.add_argument("--width", type=int, default=64, help="of the first layer")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--save", type=Path, help="where to write the result, as safetensors")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if args.weights and not args.weights.is_file():
        parser.error(f"no file {args.weights}")
    Tensor.manual_seed(args.seed)
    model = ResNet18(10, args.width)
    if args.weights:
        print(f"not in the file: {', '.join(load(model, args.weights)) or 'nothing'}")
    images, labels = digits(args.size)
    train(model, images[:1500], labels[:1500], args.steps, args.batch, args.lr, args.seed)
    guesses = np.concatenate([model(Tensor(images[k : k + 99])).argmax(1).numpy() for k in range(1500, 1797, 99)])
    print(f"{100 * float((guesses == labels[1500:]).mean()):.1f} % of 297 unseen digits are right")
    if args.save:
        safe_save(get_state_dict(model), args.save)


if __name__ == "__main__":
    main()
