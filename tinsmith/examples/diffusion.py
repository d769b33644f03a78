"""Diffusion: a U-Net learns to tell noise from digits, and draws by taking noise away step by step.

    python -m tinsmith.examples.diffusion  MNIST; without a network the digits that scikit-learn ships
    python -m tinsmith.examples.diffusion --steps 2000 --out F    and 16 drawings as an image file, F.pgm
"""
from __future__ import annotations

import argparse
import math
import time

import numpy as np

from tinsmith import Tensor, TinyJit, nn
from tinsmith.nn.datasets import load_digits

TIMES = 200  # steps from an image to noise
KEPT = np.cumprod(1 - np.linspace(1e-4, 0.04, TIMES)).astype(np.float32)  # variance share by time


class Residual:
    """A residual block: two convolutions, conditioned on the time, and a shortcut."""

    def __init__(self, channels: int, out: int, times: int) -> None:
        self.norm1, self.conv1 = nn.GroupNorm(4, channels), nn.Conv2d(channels, out, 3, padding=1)
        self.time = nn.Linear(times, out)
        self.norm2, self.conv2 = nn.GroupNorm(4, out), nn.Conv2d(out, out, 3, padding=1)
        self.shortcut = nn.Identity() if channels == out else nn.Conv2d(channels, out, 1)

    def __call__(self, x: Tensor, time: Tensor) -> Tensor:
        h = self.conv1(self.norm1(x).silu()) + self.time(time).reshape(x.shape[0], -1, 1, 1)
        return self.conv2(self.norm2(h).silu()) + self.shortcut(x)


class Attention:
    """Self-attention among all pixels of an image."""

    def __init__(self, channels: int, heads: int = 2) -> None:
        self.norm = nn.GroupNorm(4, channels)
        self.attention = nn.MultiheadAttention(channels, heads, batch_first=True)

    def __call__(self, x: Tensor) -> Tensor:
        places = self.norm(x).flatten(2).transpose(1, 2)
        seen = self.attention(places, places, places)[0]
        return x + seen.transpose(1, 2).reshape(x.shape)


class UNet:
    """Noisy images ``[N, 1, H, W]`` and times ``[N]`` → the noise in them; H and W are multiples of 4."""

    def __init__(self, width: int = 16) -> None:
        self.width, times = width, 4 * width
        self.time = nn.Sequential(nn.Linear(width, times), nn.SiLU(), nn.Linear(times, times), nn.SiLU())
        self.first = nn.Conv2d(1, width, 3, padding=1)
        self.down1, self.half1 = Residual(width, width, times), nn.Conv2d(width, width, 3, 2, 1)
        self.down2, self.half2 = Residual(width, 2 * width, times), nn.Conv2d(2 * width, 2 * width, 3, 2, 1)
        self.middle1, self.look = Residual(2 * width, 2 * width, times), Attention(2 * width)
        self.middle2, self.twice = Residual(2 * width, 2 * width, times), nn.Upsample(scale_factor=2)
        self.up2, self.up1 = Residual(4 * width, width, times), Residual(2 * width, width, times)
        self.norm, self.last = nn.GroupNorm(4, width), nn.Conv2d(width, 1, 3, padding=1)

    def __call__(self, x: Tensor, times: Tensor) -> Tensor:
        half = self.width // 2
        waves = times.float().unsqueeze(1) * (Tensor.arange(half) * (-math.log(10000) / half)).exp()
        time = self.time(waves.sin().cat(waves.cos(), dim=1))
        one = self.down1(self.first(x), time)
        two = self.down2(self.half1(one), time)
        deep = self.middle2(self.look(self.middle1(self.half2(two), time)), time)
        up = self.up2(self.twice(deep).cat(two, dim=1), time)
        up = self.up1(self.twice(up).cat(one, dim=1), time)
        return self.last(self.norm(up).silu())


def noisy(images: Tensor, times: Tensor, noise: Tensor) -> Tensor:
    """Return the images with the noise of the given times added."""
    kept = Tensor(KEPT)[times].reshape(-1, 1, 1, 1)
    return images * kept.sqrt() + noise * (1 - kept).sqrt()


def loss_of(model: UNet, images: Tensor, times: Tensor, noise: Tensor) -> Tensor:
    """Return the mean squared error of the predicted noise."""
    return model(noisy(images, times, noise), times).mse_loss(noise)


def draw(model: UNet, count: int, side: int = 28, steps: int = 20) -> np.ndarray:
    """Drawings ``[count, side, side]`` from noise, without new noise in between (DDIM)."""
    @TinyJit
    def step(x: Tensor, time: Tensor, now: Tensor, then: Tensor) -> Tensor:
        noise = model(x, time)
        clean = ((x - noise * (1 - now).sqrt()) / now.sqrt()).clamp(-1, 1)
        return (clean * then.sqrt() + noise * (1 - then).sqrt()).realize()

    x = Tensor.randn(count, 1, side, side).realize()
    times = np.linspace(TIMES - 1, 0, steps).astype(np.int32)
    for n, t in enumerate(times):
        then = KEPT[times[n + 1]] if n + 1 < steps else np.float32(1)
        x = step(x, Tensor(np.full(count, t)).realize(), Tensor(np.array([KEPT[t]])).realize(),
                 Tensor(np.array([then])).realize())
    return x.numpy()[:, 0]


def main() -> None:
    """Read the arguments, train and draw."""
    parser = argparse.ArgumentParser(description="Diffusion on digits.")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", metavar="FILE", help="write 16 drawings to this PGM image")
    args = parser.parse_args()
    Tensor.manual_seed(args.seed)
    digits = load_digits(offline="digits")
    print(f"digits: {digits.source}")
    images = Tensor(digits.train_images, requires_grad=False).realize()
    model = UNet(args.width)
    opt = nn.optim.Adam(nn.state.get_parameters(model), args.lr)

    @TinyJit
    @Tensor.train()
    def step() -> Tensor:
        x = images[Tensor.randint(args.batch, high=images.shape[0])].float() / 127.5 - 1
        opt.zero_grad()
        loss = loss_of(model, x, Tensor.randint(args.batch, high=TIMES), Tensor.randn(*x.shape)).backward()
        opt.step()
        return loss.realize()

    for n in range(args.steps):
        start = time.perf_counter()
        loss = step().item()
        if n < 3 or (n + 1) % 20 == 0 or n + 1 == args.steps:
            print(f"step {n + 1}: loss {loss:.4f}, {(time.perf_counter() - start) * 1e3:.0f} ms", flush=True)
    if args.out:
        drawings = draw(model, 16).reshape(4, 4, 28, 28).transpose(0, 2, 1, 3).reshape(112, 112)
        with open(args.out, "wb") as f:
            f.write(b"P5 112 112 255\n" + ((drawings.clip(-1, 1) + 1) * 127.5).astype(np.uint8).tobytes())


if __name__ == "__main__":
    main()
