"""The programs of examples/ against PyTorch twins: from the same state, the same outputs and training step."""
from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.parity.helpers import random, torch
from tinsmith import Tensor, nn

twins = pytest.importorskip("tests.parity.twins")
F = torch.nn.functional


def example(name: str) -> Any:
    path = Path(__file__).parents[2] / "tinsmith" / "examples" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"example_{name}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def alike(ours: Any, theirs: Any) -> None:
    """Load the same random state into both."""
    rng, state = np.random.default_rng(3), {}
    for name, value in theirs.state_dict().items():
        shape = tuple(value.shape)
        if name.endswith("num_batches_tracked"):
            state[name] = np.zeros(shape, np.int64)
        elif name.endswith("running_var") or (len(shape) == 1 and name.endswith("weight")):
            state[name] = rng.uniform(0.5, 1.5, shape).astype(np.float32)
        else:
            fan = max(int(np.prod(shape[1:])), 1)
            state[name] = (rng.standard_normal(shape) / np.sqrt(fan if len(shape) > 1 else 10)).astype(np.float32)
    assert nn.state.load_state_dict(ours, state) == []
    theirs.load_state_dict({n: torch.tensor(v) for n, v in state.items()})


def equal(ours: Any, theirs: Any, what: str = "") -> None:
    np.testing.assert_allclose(ours.numpy().reshape(tuple(theirs.shape)), theirs.detach().numpy(), rtol=1e-4, atol=1e-4,
                               err_msg=what)


def same_step(ours: Any, theirs: Any, loss: Callable[[], Tensor], expected: Callable[[], Any],
              lr: float = 0.01) -> None:
    """Check one step of gradient descent: equal losses, and equal states after it."""
    names = [n for n, _ in theirs.named_parameters()]
    state = nn.state.get_state_dict(ours)
    mine, other = nn.optim.SGD([state[n] for n in names], lr), torch.optim.SGD(theirs.parameters(), lr)
    with Tensor.train():
        got = loss().backward()
        mine.step()
    wanted = expected()
    wanted.backward()
    other.step()
    equal(got, wanted, "loss")
    for name, value in theirs.state_dict().items():
        equal(state[name], value, name)


@pytest.mark.parametrize("depth", [18, 50])
def test_resnet(depth: int) -> None:
    ours, theirs = example("resnet").ResNet(depth, 5, 4), twins.ResNet(depth, 5, 4)
    alike(ours, theirs)
    x, y = random(4, 3, 96, 96), np.array([1, 4, 0, 2])
    equal(ours(Tensor(x)), theirs.eval()(torch.tensor(x)))
    theirs.train()
    same_step(ours, theirs, lambda: ours(Tensor(x)).cross_entropy(Tensor(y)),
              lambda: F.cross_entropy(theirs(torch.tensor(x)), torch.tensor(y)))


def test_lstm_text() -> None:
    ours, theirs = example("lstm_text").Writer(11, 8, 2), twins.Writer(11, 8, 2)
    alike(ours, theirs)
    codes = np.random.default_rng(0).integers(0, 11, (3, 7))
    equal(ours(Tensor(codes))[0], theirs(torch.tensor(codes)))
    x, y = codes[:, :-1], codes[:, 1:]
    same_step(ours, theirs, lambda: ours(Tensor(x))[0].sparse_categorical_crossentropy(Tensor(y)),
              lambda: F.cross_entropy(theirs(torch.tensor(x)).transpose(1, 2), torch.tensor(y)), lr=0.1)


def test_dcgan() -> None:
    """The twin is the program itself with PyTorch's layers."""
    program, twin = example("dcgan"), example("dcgan")
    twin.nn = torch.nn
    game, draws, judges = program.Game(4, 1e-3), twin.generator(4), twin.discriminator(4)
    alike(game.draws, draws)
    alike(game.judges, judges)
    real, noise = random(4, 1, 28, 28), random(4, program.NOISE, 1, 1, seed=1)
    equal(game.draws(Tensor(noise)), draws.eval()(torch.tensor(noise)))
    equal(game.judges(Tensor(real)), judges.eval()(torch.tensor(real)))
    draws.train()
    judges.train()
    drawing, judging = (torch.optim.Adam(m.parameters(), 1e-3, betas=(0.5, 0.999)) for m in (draws, judges))
    judged, drawn = game.step(Tensor(real), Tensor(noise))
    false, yes, no = draws(torch.tensor(noise)), torch.ones(4, 1), torch.zeros(4, 1)
    loss = F.binary_cross_entropy_with_logits
    first = loss(judges(torch.tensor(real)), yes) + loss(judges(false.detach()), no)
    first.backward()
    judging.step()
    second = loss(judges(false), yes)
    second.backward()
    drawing.step()
    equal(judged, first)
    equal(drawn, second)
    for ours, theirs in ((game.draws, draws), (game.judges, judges)):
        state = nn.state.get_state_dict(ours)
        for name, value in theirs.state_dict().items():
            equal(state[name], value, name)


def test_diffusion() -> None:
    program = example("diffusion")
    ours, theirs = program.UNet(8), twins.UNet(8)
    alike(ours, theirs)
    x, noise, times = random(2, 1, 12, 12), random(2, 1, 12, 12, seed=1), np.array([3, 150])
    equal(ours(Tensor(x), Tensor(times)), theirs(torch.tensor(x), torch.tensor(times)))
    kept = torch.tensor(program.KEPT)[torch.tensor(times)][:, None, None, None]
    mixed = torch.tensor(x) * kept.sqrt() + torch.tensor(noise) * (1 - kept).sqrt()
    same_step(ours, theirs, lambda: program.loss_of(ours, Tensor(x), Tensor(times), Tensor(noise)),
              lambda: F.mse_loss(theirs(mixed, torch.tensor(times)), torch.tensor(noise)))
