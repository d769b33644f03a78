"""Kernels carry the path of the model layer that they compute, in every view of a program, and never in their names."""
from __future__ import annotations

import functools
import gc
import pickle
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.golden.running import run
from tinsmith import Tensor, TinyJit, nn
from tinsmith.core.counters import Ran, timed_line
from tinsmith.core.origin import InLayer, layers_of
from tinsmith.core.settings import Context
from tinsmith.inspect import profile
from tinsmith.inspect.trace import recording
from tinsmith.ir.uop import toposort


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


class Network:
    """A convolutional network in tinygrad's style."""

    def __init__(self) -> None:
        self.layers: list[Callable[[Tensor], Tensor]] = [
            nn.Conv2d(1, 4, 3), Tensor.relu, nn.BatchNorm2d(4), functools.partial(Tensor.max_pool2d, kernel_size=2),
            lambda x: x.flatten(1), nn.Linear(36, 3)]

    def __call__(self, x: Tensor) -> Tensor:
        return x.sequential(self.layers)


NETWORK = {"layers.0 Conv2d", "layers.1 relu", "layers.2 BatchNorm", "layers.3 max_pool2d", "layers.4 <lambda>",
           "layers.5 Linear"}


def made(y: Tensor) -> dict[str, set[str]]:
    """Return the methods recorded for each layer.

    Nodes of constants alone are left out: equal ones are one node, perhaps of another test, and no kernel is labelled
    by them.
    """
    found: dict[str, set[str]] = {}
    for n in toposort(y.uop):
        for o in () if n.device is None else n.origin:
            found.setdefault(o.layer if isinstance(o, InLayer) else "", set()).add(o[0])
    return found


def step_of(model: Callable[[Tensor], Tensor], size: tuple[int, ...]) -> Callable[[], Tensor]:
    """Return a training step."""
    Tensor.realize(*nn.state.get_parameters(model))
    opt = nn.optim.Adam(nn.state.get_parameters(model))
    x, y = Tensor(np.ones(size, np.float32)), Tensor([0] * size[0])

    @Tensor.train()
    def step() -> Tensor:
        loss = model(x).sparse_categorical_crossentropy(y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.realize()

    return step


def test_origins_have_the_path_of_their_layer() -> None:
    x = Tensor(np.ones((4, 4), np.float32))
    model = Model()
    Tensor.realize(*nn.state.get_parameters(model))
    found = made(Loop().run(model, x))
    layers = {f"encoder.{n}.attn{part}" for n in range(2)
              for part in (" Attention", ".q Linear", ".k Linear")}
    assert set(found) == {*layers, "head.0 Linear", "head.1 relu", "head.2 Linear", "Model", ""}
    assert "softmax" in found["encoder.1.attn Attention"] and "square" in found[""] and {"add", "mul"} <= found["Model"]
    state = nn.state.get_state_dict(model)
    assert all(f"{name.split()[0]}.weight" in state for name in found if name.endswith("Linear"))


def test_lists_lambdas_and_partials_of_sequential() -> None:
    model = Network()
    Tensor.realize(*nn.state.get_parameters(model))
    found = made(model(Tensor(np.ones((2, 1, 8, 8), np.float32))))
    assert set(found) == {*NETWORK, ""}
    assert found["layers.5 Linear"] == {"Linear"} and found["layers.1 relu"] == {"relu"}


def test_equal_callables_of_a_list_differ_by_position() -> None:
    chain: list[Callable[[Tensor], Tensor]] = [Tensor.exp, nn.Linear(2, 2), Tensor.exp]
    Tensor.realize(*nn.state.get_parameters(chain))
    y = Tensor(np.ones((1, 2), np.float32)).sequential(chain)
    assert set(made(y)) == {"chain.0 exp", "chain.1 Linear", "chain.2 exp", ""}


def test_a_layer_without_a_model_is_named_by_its_variable() -> None:
    first, rest = nn.Linear(2, 2), [nn.Linear(2, 2)]
    Tensor.realize(*nn.state.get_parameters([first, rest]))

    def model(x: Tensor) -> Tensor:
        return rest[0](first(x))

    assert {"first Linear", "rest.0 Linear"} <= set(made(model(Tensor(np.ones((1, 2), np.float32)))))


def test_a_layer_that_is_not_held_yet_is_found_once_it_is() -> None:
    model = Model()
    extra = nn.Linear(4, 4)
    made(model(Tensor.ones(4, 4)))
    model.encoder.append({"attn": extra})  # type: ignore[dict-item]
    extra.weight.assign(Tensor.ones(4, 4)).realize()
    model.encoder[0], model.encoder[2] = model.encoder[2], model.encoder[0]
    found = made(model(Tensor.ones(4, 4) * 3))
    assert {"encoder.0.attn Linear", "encoder.2.attn.q Linear"} <= set(found)


def test_gradients_and_optimizer_steps_are_labelled() -> None:
    step = step_of(Network(), (2, 1, 8, 8))
    with recording() as trace:
        step()
    document = trace.document()
    labels = {label for p in document["programs"] for item in p["items"] for label in item["layers"]}
    assert {"optimizer step Adam", "grad of layers.0 Conv2d", "grad of layers.5 Linear", "layers.0 Conv2d"} <= labels
    # of graph nodes and items; kernels, which equal programs share, may have been made for another test's
    numbers = {row[5] for p in document["programs"] for row in p["nodes"] if row[5] >= 0}
    numbers |= {n for p in document["programs"] for item in p["items"] for n in item["origins"]}
    paths = {document["layers"][n] for n in numbers} - {""}
    assert paths and paths <= {f"layers.{n}" for n in range(6)}
    assert labels <= set(document["labels"])


def test_an_optimizer_of_the_user_is_labelled() -> None:
    class Signs(nn.optim.Optimizer):
        def _step(self, params: Any, grads: Any) -> Any:
            return [self.lr * g.sign() for g in grads], []

    w = Tensor([1.0, -2.0])
    opt = Signs([w], lr=0.5)
    (w * w).sum().backward()
    with recording() as trace:
        opt.step()
    assert {"optimizer step Signs"} <= set(trace.document()["labels"])


def test_debug_profile_explain_and_plan_print_labels(capsys: pytest.CaptureFixture[str]) -> None:
    model = Network()
    Tensor.realize(*nn.state.get_parameters(model))
    x = Tensor(np.ones((2, 1, 8, 8), np.float32)).realize()
    y = model(x)
    assert "layers layers.0 Conv2d" in str(y.explain(run=False))
    assert {"layers.5 Linear"} <= {label for k in y.explain(run=False).kernels for label in k.layers}
    assert "layers.5 Linear: Linear (" in str(y.plan())
    capsys.readouterr()
    profile.reset()
    try:
        with Context(DEBUG=2, PROFILE=1):
            model(x * 2).realize()
        table = profile.table()
    finally:
        profile.reset()
    printed = capsys.readouterr().out
    for text in (printed, table):
        assert "layers.0 Conv2d" in " ".join(text.split()), text


def test_captured_steps_keep_their_labels(capsys: pytest.CaptureFixture[str]) -> None:
    step = TinyJit(step_of(Network(), (2, 1, 8, 8)))
    for _ in range(3):
        step()
    capsys.readouterr()
    with Context(DEBUG=2):
        step()
    printed = " ".join(capsys.readouterr().out.split())
    assert "grad of layers.0 Conv2d" in printed and "optimizer step Adam" in printed


def test_labels_are_part_of_no_kernel() -> None:
    def kernels(first: int) -> list[str]:
        layers: list[Any] = [Tensor.contiguous] * first + [nn.Linear(8, 8)]
        Tensor.realize(*nn.state.get_parameters(layers))
        y = Tensor(np.ones((2, 8), np.float32)).realize().sequential(layers)
        found = [item.step.launch for item in y.schedule()]
        return [k.symbol for k in found if k is not None and k.ops]

    assert kernels(0)[-1] == kernels(2)[-1]


def test_labels_and_names_are_never_cut() -> None:
    label = "a_rather_long_name_of_a_block.0.another_long_name.17.projection Linear"
    ran = Ran("CPU", "r_4_16_32_8_3_3_4_2_2_16", 2, 1e-6, origin=("first_of_the_methods", "second"), layers=(label,),
              lines=(("dot", "f.py", 3),))
    assert timed_line(ran).splitlines()[1].strip() == label
    profile.reset()
    try:
        profile.note(ran)
        table = profile.table()
    finally:
        profile.reset()
    assert label in " ".join(table.split()) and ran.name in table
    assert all(len(line) <= 120 for line in table.splitlines())


def test_a_short_label_stays_in_the_line_of_its_kernel() -> None:
    line = timed_line(Ran("CPU", "r_4", 2, 1e-6, origin=("dot",), layers=("fc Linear",)))
    assert line.endswith("fc Linear") and "\n" not in line


def test_origins_of_layers_compare_and_pickle() -> None:
    a, b = InLayer("relu", "m.py", 3, "0 A"), InLayer("relu", "m.py", 3, "1 A")
    assert a != b and len({a, b, ("relu", "m.py", 3)}) == 3 and tuple(a) == ("relu", "m.py", 3)
    assert pickle.loads(pickle.dumps(a)) is a
    assert layers_of([a, ("relu", "m.py", 3), b, a]) == ("0 A", "1 A")


def test_recording_keeps_no_values_of_a_method_alive() -> None:
    """Up to Python 3.12, reading the variables of a frame makes a copy that lives as long as the frame."""
    class Box:
        pass

    class Block:
        def __init__(self) -> None:
            self.alive: bool | None = None

        def __call__(self, x: Tensor) -> Tensor:
            box = Box()
            before = weakref.ref(box)
            y = x + 1
            box = Box()
            gc.collect()
            self.alive = before() is not None
            return y

    block = Block()
    block(Tensor.ones(2))
    assert block.alive is False


def test_variables_that_the_user_asked_for_stay() -> None:
    class Block:
        def __call__(self, x: Tensor) -> Tensor:
            first = 1
            found = locals()
            y = x + first
            assert found["first"] == 1 and found["self"] is self
            return y

    assert Block()(Tensor.ones(2)).tolist() == [2, 2]


@pytest.mark.parametrize("cached", ["0", "1"])
def test_equal_layers_that_share_a_program_have_their_own_labels(cached: str,
                                                                 capsys: pytest.CaptureFixture[str]) -> None:
    blocks = [nn.Linear(7, 7) for _ in range(3)]
    Tensor.realize(*nn.state.get_parameters(blocks))
    x = Tensor(np.ones((5, 7), np.float32)).realize()
    capsys.readouterr()
    with Context(DEBUG=2, CACHELEVEL=int(cached) * 2):
        for _ in range(2):
            for n in range(3):
                x = blocks[n](x).realize()
    printed = " ".join(capsys.readouterr().out.split())
    assert [printed.count(f"blocks.{n} Linear") for n in range(3)] == [2, 2, 2]


def test_examples_of_the_package_are_programs_of_the_user(tmp_path: Path) -> None:
    done = run(["-m", "tinsmith.examples.decoder", "--tokens", "2"], tmp_path, DEBUG="2")
    printed = " ".join(done.stdout.split())
    assert "layers.0" in printed and "runpy" not in printed
