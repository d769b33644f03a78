"""A DCGAN: two convolutional networks, one of which learns to draw digits that the other cannot tell from real ones.

    python -m tinsmith.examples.dcgan  MNIST; without a network the digits that scikit-learn ships
    python -m tinsmith.examples.dcgan --steps 2000 --out F    and the drawings as an image file, F.pgm
"""
from __future__ import annotations

import argparse
import time

import numpy as np

from tinsmith import Tensor, TinyJit, nn
from tinsmith.nn.datasets import load_digits

NOISE = 64  # numbers that a drawing is made of


def generator(width: int = 32) -> nn.Sequential:
    """Noise ``[N, NOISE, 1, 1]`` → drawings ``[N, 1, 28, 28]`` in [-1, 1]."""
    return nn.Sequential(
        nn.ConvTranspose2d(NOISE, 2 * width, 7, bias=False), nn.BatchNorm2d(2 * width), nn.ReLU(),
        nn.ConvTranspose2d(2 * width, width, 4, 2, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
        nn.ConvTranspose2d(width, 1, 4, 2, 1), nn.Tanh())


def discriminator(width: int = 32) -> nn.Sequential:
    """Images ``[N, 1, 28, 28]`` → logits ``[N, 1]`` of being real."""
    return nn.Sequential(
        nn.Conv2d(1, width, 4, 2, 1), nn.LeakyReLU(0.2),
        nn.Conv2d(width, 2 * width, 4, 2, 1, bias=False), nn.BatchNorm2d(2 * width), nn.LeakyReLU(0.2),
        nn.Flatten(), nn.Linear(98 * width, 1))


class Game:
    """The generator and the discriminator, each with its own optimizer."""

    def __init__(self, width: int = 32, lr: float = 2e-4) -> None:
        self.draws, self.judges, self.loss = generator(width), discriminator(width), nn.BCEWithLogitsLoss()
        self.optimizers = [nn.optim.Adam(nn.state.get_parameters(m), lr, b1=0.5) for m in (self.draws, self.judges)]

    @Tensor.train()
    def step(self, real: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Train the discriminator on real and generated images, then the generator; return both losses."""
        drawing, judging = self.optimizers
        false = self.draws(noise)
        yes, no = Tensor.ones(real.shape[0], 1), Tensor.zeros(real.shape[0], 1)
        judging.zero_grad()
        judged = (self.loss(self.judges(real), yes) + self.loss(self.judges(false.detach()), no)).backward()
        judging.step()
        drawing.zero_grad()
        drawn = self.loss(self.judges(false), yes).backward()
        drawing.step()
        return judged.realize(), drawn.realize()


def main() -> None:
    """Read the arguments and train."""
    parser = argparse.ArgumentParser(description="A DCGAN that draws digits.")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--lr", type=float, default=2e-4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", metavar="FILE", help="write 64 drawings to this PGM image")
    args = parser.parse_args()
    Tensor.manual_seed(args.seed)
    digits = load_digits(offline="digits")
    print(f"digits: {digits.source}")
    images = Tensor(digits.train_images, requires_grad=False).realize()
    game = Game(args.width, args.lr)

    @TinyJit
    def step() -> tuple[Tensor, Tensor]:
        real = images[Tensor.randint(args.batch, high=images.shape[0])].float() / 127.5 - 1
        return game.step(real, Tensor.randn(args.batch, NOISE, 1, 1))

    for n in range(args.steps):
        start = time.perf_counter()
        judged, drawn = (t.item() for t in step())
        if n < 3 or (n + 1) % 20 == 0 or n + 1 == args.steps:
            took = (time.perf_counter() - start) * 1e3
            print(f"step {n + 1}: judge {judged:.4f}, drawer {drawn:.4f}, {took:.0f} ms", flush=True)
    if args.out:
        drawings = game.draws(Tensor.randn(64, NOISE, 1, 1)).numpy().reshape(8, 8, 28, 28)
        pixels = ((drawings.transpose(0, 2, 1, 3).reshape(224, 224) + 1) * 127.5).astype(np.uint8)
        with open(args.out, "wb") as f:
            f.write(b"P5 224 224 255\n" + pixels.tobytes())


if __name__ == "__main__":
    main()
