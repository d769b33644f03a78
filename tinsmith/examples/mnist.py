"""Train a small convolutional network on handwritten digits.

    python -m tinsmith.examples.mnist  MNIST; without a network the digits that scikit-learn ships
    python -m tinsmith.examples.mnist --data DIR [--holdout N]     the IDX files in DIR
    python -m tinsmith.examples.mnist --devices 4  each batch in parts on CPU:0 … CPU:3, weights on all of them
    python -m tinsmith.examples.mnist --device CUDA                on a GPU
    python -m tinsmith.examples.mnist --float64  the same in float64: 4 devices then agree with one to 1e-14
"""
from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Callable

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from tinsmith import Device, Tensor, dtypes, nn
from tinsmith.nn.datasets import Digits, load_digits

SHIFT = 2  # maximum random shift of training images, in pixels
SMOOTHING = 0.1  # share of each label that all classes have: the network learns to be right, not to be certain


class Network:
    """Two pairs of convolutions, each with batch norm and pooling, and a linear layer."""

    def __init__(self) -> None:
        self.layers: list[Callable[[Tensor], Tensor]] = [
            nn.Conv2d(1, 32, 5), Tensor.relu, nn.Conv2d(32, 32, 5), Tensor.relu, nn.BatchNorm(32), Tensor.max_pool2d,
            nn.Conv2d(32, 64, 3), Tensor.relu, nn.Conv2d(64, 64, 3), Tensor.relu, nn.BatchNorm(64), Tensor.max_pool2d,
            lambda x: x.flatten(1), nn.Linear(576, 10)]

    def __call__(self, x: Tensor) -> Tensor:
        return x.sequential(self.layers)


class Images:
    """The training images with a margin, so that one gather crops a batch at any positions."""

    def __init__(self, images: np.ndarray, labels: np.ndarray, margin: int, devices: tuple[str, ...]) -> None:
        self.margin, self.side, self.devices = margin, 28 + 2 * margin, devices
        wide = np.pad(images[:, 0], ((0, 0), (margin, margin), (margin, margin)))
        self.pixels = Tensor(wide.reshape(-1), requires_grad=False).realize()
        self.labels = Tensor(labels.astype(np.int32), requires_grad=False).realize()

    def batch(self, rows: np.ndarray, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        """Images ``[N, 1, 28, 28]`` in [-1, 1], shifted at random, and their labels."""
        corner = rng.integers(0, 2 * self.margin + 1, (2, len(rows)))
        first = rows * self.side**2 + corner[0] * self.side + corner[1]
        inside = Tensor.arange(28).reshape(28, 1) * self.side + Tensor.arange(28)
        where = Tensor(first.astype(np.int32)).reshape(-1, 1, 1, 1) + inside
        images = (self.pixels[where].cast(dtypes.default_float) / 127.5 - 1).shard(self.devices, axis=0)
        labels = self.labels[Tensor(rows.astype(np.int32))].shard(self.devices, axis=0)
        return images.contiguous().realize(), labels.contiguous().realize()


def accuracy(network: Network, images: Tensor, labels: np.ndarray, batch: int, devices: tuple[str, ...]) -> float:
    """Return the accuracy in percent."""
    right = 0
    for begin in range(0, len(labels), batch):
        rows = np.arange(begin, begin + batch) % len(labels)
        x = (images[Tensor(rows.astype(np.int32))].cast(dtypes.default_float) / 127.5 - 1).shard(devices, axis=0)
        answers = network(x.contiguous().realize()).argmax(1).numpy()
        count = min(batch, len(labels) - begin)
        right += int((answers[:count] == labels[begin : begin + count]).sum())
    return 100 * right / len(labels)


def batches(count: int, size: int, steps: int, rng: np.random.Generator) -> np.ndarray:
    """Return row numbers ``[steps, size]``: each epoch is a random permutation of all rows."""
    rounds = -(-steps * size // count)
    order = np.concatenate([rng.permutation(count) for _ in range(rounds)])
    return order[: steps * size].reshape(steps, size)


def train(digits: Digits, steps: int, batch: int, seed: int, lr: float, console: Console,
          devices: tuple[str, ...]) -> tuple[list[float], float]:
    """Train; returns the loss of every step, and the test accuracy at the end in percent."""
    Tensor.manual_seed(seed)
    rng = np.random.default_rng(seed)
    network = Network()
    for parameter in nn.state.get_parameters(network):
        parameter.shard_(devices)  # a whole copy on each device
    opt = nn.optim.Adam(nn.state.get_parameters(network), lr=lr)
    images = Images(digits.train_images, digits.train_labels, SHIFT, devices)
    test = Tensor(digits.test_images, requires_grad=False).realize()
    rates = lr * np.minimum(1, 2 * (1 - np.arange(steps) / steps))  # constant, then down to zero
    losses: list[float] = []
    found, every, start = float("nan"), max(steps // 5, 1), time.perf_counter()
    columns = ("step {task.completed}/{task.total}", "loss {task.fields[loss]:.4f}",
               "{task.fields[accuracy]}", "{task.fields[rate]:.2f} steps/s")
    progress = Progress(BarColumn(), *map(TextColumn, columns), TimeRemainingColumn(), console=console)
    task = progress.add_task("train", total=steps, loss=0.0, accuracy="", rate=0.0)
    with contextlib.ExitStack() as stack:
        for step, rows in enumerate(batches(len(digits.train_labels), batch, steps, rng)):
            x, y = images.batch(rows, rng)
            opt.lr.assign(np.array([rates[step]], np.float32))
            with Tensor.train():
                opt.zero_grad()
                loss = network(x).sparse_categorical_crossentropy(y, label_smoothing=SMOOTHING)
                loss.backward()
                opt.step()
            if (step + 1) % every == 0 or step + 1 == steps:
                found = accuracy(network, test, digits.test_labels, batch, devices)
            losses.append(loss.item())
            if step == 0:  # before that, a line on standard error says what is compiling
                stack.enter_context(progress)
            shown = "" if np.isnan(found) else f"test accuracy {found:.2f} %"
            progress.update(task, advance=1, loss=losses[-1], accuracy=shown,
                            rate=(step + 1) / (time.perf_counter() - start))
    return losses, found


def main() -> None:
    """Read the arguments and train."""
    parser = argparse.ArgumentParser(description="Train a small convolutional network on handwritten digits.")
    parser.add_argument("--data", metavar="DIR", help="folder with the MNIST files, gzipped or not")
    parser.add_argument("--holdout", type=int, metavar="N", help="test on N images where there is only one split")
    parser.add_argument("--epochs", type=float, help="passes over the training images")
    parser.add_argument("--steps", type=int,
                        help="steps, instead of epochs (default: 60, or 150 for more than 5,000 images)")
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default=Device.DEFAULT, metavar="NAME", help="train there: CPU, CUDA, …")
    parser.add_argument("--devices", type=int, default=1, metavar="N", help="spread each batch over N devices")
    parser.add_argument("--float64", action="store_true", help="train in float64")
    args = parser.parse_args()
    if args.float64:
        dtypes.default_float = dtypes.float64
    console = Console()
    digits = load_digits(args.data, args.holdout, offline="digits")
    console.print(f"digits: {digits.source}", highlight=False, soft_wrap=True)
    count = len(digits.train_labels)
    steps = args.steps or (60 if count < 5000 else 150)
    if args.epochs:
        steps = max(round(args.epochs * count / args.batch), 1)
    Device.DEFAULT = args.device
    devices = tuple(f"{args.device}:{n}" for n in range(args.devices))
    losses, found = train(digits, steps, args.batch, args.seed, args.lr, console, devices)
    print(f"loss of step {steps}: {losses[-1]:.12g}")
    print(f"test accuracy {found:.2f} %")


if __name__ == "__main__":
    main()
