"""Origins of recorded nodes name the layer of the model that created them, by its state-dict name."""
from __future__ import annotations

import numpy as np

from tinsmith import Tensor, nn
from tinsmith.inspect.trace import recording
from tinsmith.ir.uop import toposort
from tinsmith.tensor.layer_names import InLayer


class Attention:
    def __init__(self) -> None:
        self.q, self.k = nn.Linear(4, 4), nn.Linear(4, 4)

    def scores(self, x: Tensor) -> Tensor:
        return self.q(x) @ self.k(x).T

    def __call__(self, x: Tensor) -> Tensor:
        return self.scores(x).softmax()


class Model:
    def __init__(self) -> None:
        self.encoder = [{"attn": Attention()} for _ in range(2)]
        self.head = nn.Sequential(nn.Linear(4, 3), Tensor.relu, nn.Linear(3, 2))

    def __call__(self, x: Tensor) -> Tensor:
        for block in self.encoder:
            x = x + block["attn"](x)
        return self.head(x * 2)


class Loop:
    """An object that contains a model and is no part of it."""

    def run(self, model: Model, x: Tensor) -> Tensor:
        return model(x).square()


def made(y: Tensor) -> dict[str, set[str]]:
    """Return the methods recorded for each layer."""
    found: dict[str, set[str]] = {}
    for n in toposort(y.uop):
        for o in n.origin:
            found.setdefault(o.layer if isinstance(o, InLayer) else "", set()).add(o[0])
    return found


def test_origins_have_the_path_of_their_layer() -> None:
    x = Tensor(np.ones((4, 4), np.float32))
    with recording():
        model = Model()
        Tensor.realize(*nn.state.get_parameters(model))
        found = made(Loop().run(model, x))
    layers = {f"encoder.{n}.attn{part}" for n in range(2) for part in ("", ".q", ".k")}
    assert set(found) == {*layers, "head.0", "head.2", "head", ""}
    assert "softmax" in found["encoder.1.attn"] and {"square", "add", "mul"} <= found[""]
    state = nn.state.get_state_dict(model)
    assert all(f"{name}.weight" in state for name in found if name.endswith(("q", "k", "0", "2")))


def test_a_layer_that_is_not_held_yet_is_found_once_it_is() -> None:
    model = Model()
    with recording():
        extra = nn.Linear(4, 4)
        made(model(Tensor.ones(4, 4)))
        model.encoder.append({"attn": extra})  # type: ignore[dict-item]
        extra.weight.assign(Tensor.ones(4, 4)).realize()
        model.encoder[0], model.encoder[2] = model.encoder[2], model.encoder[0]
        found = made(model(Tensor.ones(4, 4) * 3))
    assert {"encoder.0.attn", "encoder.2.attn.q"} <= set(found)


def test_nothing_is_looked_for_when_nothing_is_recorded() -> None:
    assert set(made(Model()(Tensor.ones(4, 4)))) == {""}
