"""Each network of examples/ learns easy data in a few steps."""
from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tinsmith import Tensor, TinyJit, nn


def example(name: str) -> Any:
    path = Path(__file__).parents[2] / "tinsmith" / "examples" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"example_{name}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def seed() -> None:
    Tensor.manual_seed(0)


def test_resnet_learns_images_by_heart() -> None:
    program = example("resnet")
    x, y = Tensor.randn(4, 3, 8, 8).realize(), Tensor([0, 1, 2, 3])
    losses = program.train(program.ResNet(18, 4, 4, small=True), x, y, 12, 8, 0.05)
    assert min(losses) < losses[0] / 2


def test_lstm_writes_what_it_has_read() -> None:
    program = example("lstm_text")
    model = program.Writer(4, 16, 1)
    losses = program.train(model, np.tile([0, 1, 2, 3], 20), 60, 4, 8, 0.03)
    assert losses[-1] < 0.5 < losses[0]
    assert program.write(model, [0, 1], 6, 0.1, np.random.default_rng(0)) == [2, 3, 0, 1, 2, 3]


def test_dcgan_plays() -> None:
    program = example("dcgan")
    game, real = program.Game(4, 1e-3), Tensor.zeros(4, 1, 28, 28)
    step = TinyJit(lambda noise: game.step(real, noise))
    judged = [step(Tensor.randn(4, program.NOISE, 1, 1).realize())[0].item() for _ in range(12)]
    assert judged[-1] < judged[0]  # it is easy to tell drawings from nothing
    drawn = game.draws(Tensor.randn(4, program.NOISE, 1, 1)).numpy()
    assert drawn.shape == (4, 1, 28, 28) and abs(drawn).max() <= 1


def test_diffusion_learns_and_draws() -> None:
    program = example("diffusion")
    model, x = program.UNet(8), Tensor.ones(2, 1, 12, 12).realize()
    opt = nn.optim.Adam(nn.state.get_parameters(model), 0.01)

    @TinyJit
    @Tensor.train()
    def step(times: Tensor, noise: Tensor) -> Tensor:
        opt.zero_grad()
        loss = program.loss_of(model, x, times, noise).backward()
        opt.step()
        return loss.realize()

    losses = [step(Tensor([150, 190]).realize(), Tensor.randn(2, 1, 12, 12).realize()).item() for _ in range(20)]
    assert np.mean(losses[-3:]) < 0.7 * losses[0]
    drawn = program.draw(model, 2, 12, steps=2)
    assert drawn.shape == (2, 12, 12) and np.isfinite(drawn).all()
