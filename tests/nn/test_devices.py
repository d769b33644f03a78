"""Data-parallel training equals training on one device: convolutions, synced batch norm, pooling, Adam."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tinsmith import Tensor, nn


class Network:
    def __init__(self) -> None:
        self.first, self.norm = nn.Conv2d(1, 4, 3), nn.BatchNorm(4)
        self.second, self.last = nn.Conv2d(4, 6, 3, padding=1), nn.Linear(54, 10)

    def __call__(self, x: Tensor) -> Tensor:
        x = self.norm(self.first(x).relu()).max_pool2d()
        return self.last(self.second(x).relu().flatten(1))


def losses(devices: tuple[str, ...], kind: str, steps: int, batch: int = 8) -> tuple[list[float], list[Any]]:
    Tensor.manual_seed(0)
    rng = np.random.default_rng(0)
    network = Network()
    parameters = nn.state.get_parameters(network)
    for p in parameters:
        if p.dtype.is_float:
            p.replace(p.cast(kind))
        p.shard_(devices)
    opt, found = nn.optim.Adam(parameters, lr=1e-2), []
    for _ in range(steps):
        x, y = rng.standard_normal((batch, 1, 8, 8)).astype(kind), rng.integers(0, 10, batch)
        with Tensor.train():
            opt.zero_grad()
            loss = network(Tensor(x).shard(devices, 0)).sparse_categorical_crossentropy(Tensor(y).shard(devices, 0))
            loss.backward()
            opt.step()
        found.append(loss.item())
    return found, [p.numpy() for p in parameters]


@pytest.mark.parametrize("devices, batch", [(("CPU:0", "CPU:1", "CPU:2", "CPU:3"), 8), (("CPU:0", "CPU:1"), 7)])
def test_float64(devices: tuple[str, ...], batch: int) -> None:
    (one, weights), (many, others) = (losses(d, "float64", 4, batch) for d in (("CPU",), devices))
    assert np.allclose(one, many, rtol=0, atol=1e-8)
    assert all(np.allclose(a, b, rtol=0, atol=1e-8) for a, b in zip(weights, others))


def test_float32() -> None:
    (one, _), (many, _) = (losses(d, "float32", 8) for d in (("CPU",), ("CPU:0", "CPU:1")))
    assert np.allclose(one, many, rtol=0.02)
