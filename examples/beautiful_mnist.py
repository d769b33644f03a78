"""Train a small convolutional network on handwritten digits with a captured step and a progress line.

After ``pip install -e '.[examples]'``:

    PYTHONPATH='.' python examples/beautiful_mnist.py          MNIST; without a network the digits of scikit-learn
    PYTHONPATH='.' python examples/beautiful_mnist.py DIR      the IDX files in DIR
    DEBUG=2 PYTHONPATH='.' python examples/beautiful_mnist.py  a timed line per kernel and copy
    PROFILE=1 …                                                which kernels took how long, at the end

STEPS, BATCH and LR change what their names say. mnist.py trains the same network without capture, on any devices.
"""
from __future__ import annotations

import argparse
import os
from collections.abc import Callable

from tqdm import trange

from tinsmith import Tensor, TinyJit, nn
from tinsmith.nn.datasets import load_digits

STEPS, BATCH, LR = int(os.getenv("STEPS", "70")), int(os.getenv("BATCH", "512")), float(os.getenv("LR", "1e-3"))
EVERY = 10  # steps between two looks at the test images


class Model:
    """Two pairs of convolutions, each with batch norm and pooling, and a linear layer."""

    def __init__(self) -> None:
        self.layers: list[Callable[[Tensor], Tensor]] = [
            nn.Conv2d(1, 32, 5), Tensor.relu, nn.Conv2d(32, 32, 5), Tensor.relu, nn.BatchNorm(32), Tensor.max_pool2d,
            nn.Conv2d(32, 64, 3), Tensor.relu, nn.Conv2d(64, 64, 3), Tensor.relu, nn.BatchNorm(64), Tensor.max_pool2d,
            lambda x: x.flatten(1), nn.Linear(576, 10)]

    def __call__(self, x: Tensor) -> Tensor:
        return ((x.float() - 127.5) / 127.5).sequential(self.layers)


def main() -> None:
    """Read the digits and train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", help="of the IDX files; unless given, MNIST is downloaded")
    digits = load_digits(parser.parse_args().folder, offline="digits")
    print(f"digits: {digits.source}")
    arrays = (digits.train_images, digits.train_labels, digits.test_images, digits.test_labels)
    images, labels, test_images, test_labels = (Tensor(a, requires_grad=False).realize() for a in arrays)
    model = Model()
    opt = nn.optim.Adam(nn.state.get_parameters(model), lr=LR)

    @TinyJit
    def train_step() -> Tensor:
        rows = Tensor.randint(BATCH, high=images.shape[0])
        with Tensor.train():
            opt.zero_grad()
            loss = model(images[rows]).sparse_categorical_crossentropy(labels[rows]).backward()
            opt.step()
        return loss.realize()

    @TinyJit
    def right_answers() -> Tensor:
        return (model(test_images).argmax(1) == test_labels).mean().realize()

    accuracy, shown = 0.0, ""
    bar = trange(STEPS)
    for step in bar:
        loss = train_step()
        if step % EVERY == EVERY - 1 or step == STEPS - 1:
            accuracy = 100 * float(right_answers().item())
            shown = f" test accuracy: {accuracy:5.2f}%"
        bar.set_description(f"loss: {loss.item():6.4f}{shown}")
    print(f"test accuracy {accuracy:.2f} %")


if __name__ == "__main__":
    main()
