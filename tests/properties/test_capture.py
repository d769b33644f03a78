"""Random stateful programs: results and side effects of every call are the same with and without capture."""
from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.properties.runner import FEW
from tinsmith import Context, Tensor, TinyJit, nn
from tinsmith.tensor.create import random as draws

SIZE = 4

HEADER = """
class Block:
    scale = 1.0
    def __init__(self, n):
        self.k, self.on, self.n = 1.0 + n, True, n
        self.w = fresh(n)
        self.options = {"shift": float(n), "flag": False, "deep": {"gain": 1.0}}
    def __call__(self, x):
        if self.on:
            x = x * self.w
        return x * self.k * self.scale

class Slotted:
    __slots__ = ("rate", "inner")
    def __init__(self, inner):
        self.rate, self.inner = 2.0, inner

class Model:
    def __init__(self):
        self.layers = [Block(n) for n in range(3)]
        self.named = {"a": Block(3), "b": Block(4)}
        self.slotted = Slotted(Block(5))
        self.state, self.buffers = fresh(6), [fresh(7), fresh(8)]
        self.order, self.mode, self.linear = (0, 1), "add", nn.Linear(SIZE, SIZE)
        self.norm = nn.LayerNorm(SIZE)
        self.kept = None
    @property
    def strength(self):
        return self.slotted.rate * GAIN
    def run(self, x):
        for layer in self.layers:
            x = layer(x)
        return x

GAIN, TABLE, FLAGS, CONFIG = 1.5, [1.0, 2.0, 3.0], {"neg": False, "twice": True}, {"model": {"bias": 0.5}}
WEIGHT = fresh(9)
cell, lists = 2.0, [[1.0], [2.0, 3.0]]

def helper(x):
    y = x * GAIN + CONFIG["model"]["bias"]
    return -y if FLAGS["neg"] else y

def table(x, n):
    for value in TABLE[n:]:
        x = x + value
    return x

def outer():
    inner = [0.25]
    def closed(x):
        return x * cell + inner[0]
    return closed, inner
closed, inner = outer()

model = Model()
optimizer = nn.optim.SGD([model.layers[0].w, WEIGHT], lr=0.125)
"""

READS = [
    "x = helper(x)", "x = table(x, {n})", "x = model.run(x)", "x = model.named['a'](x)",
    "x = sum([b(x) for b in model.named.values()], x)", "x = x * model.strength", "x = closed(x)",
    "x = x + model.slotted.inner.k", "x = x * model.layers[{n}].options['shift']",
    "x = x + model.layers[{n}].options['deep']['gain']", "x = x + model.state", "x = x + model.buffers[{m}]",
    "x = model.buffers[model.order[0]] + x", "x = x * 2 if model.mode == 'add' else x - 1", "x = x + WEIGHT",
    "x = x + getattr(model.layers[{n}], 'k')", "x = x + getattr(model.layers[{n}], 'o' + 'n')",
    "x = x + lists[1][0] if len(lists) > 1 else x", "x = x + len(model.layers)", "x = model.norm(x)",
    "x = model.linear(x)", "x = x.clip(-CLIP, CLIP)", "x = x + Block.scale", "x = x.dropout(0.5)",
    "x = x + (model.state.grad if model.state.grad is not None else 1)", "x = x * vars(model.layers[{n}])['k']",
    "x = x + (0 if model.kept is None else model.kept)", "x = Tensor.rand(SIZE) + x", "x = x + Tensor.randn(SIZE)",
    "x = x * (3 if model.state.requires_grad else 1)", "x = x + model.buffers[{m}].shape[0]",
]
WRITES = [
    "model.state.assign(x.detach())", "model.buffers[{m}] += 1", "model.state *= 0.5", "model.buffers[{m}][{n}] = 3.0",
    "model.buffers[{m}][1:3] = x.detach()[:2]", "model.state.assign(model.buffers[{m}])",
    "model.state.assign(model.state + 1).realize()", "WEIGHT.assign(WEIGHT * 0.5)",
    "model.buffers[{m}].replace(x.detach())", "model.state.replace(model.buffers[{m}])", "model.kept = GAIN * 2",
    "model.layers[{n}].k += 0.5", "CALLS[0] += 1\n    x = x + CALLS[0]", "x = x * random.random()",
    "x = x * float(np.random.rand())", "x = x + next(NUMBERS)", "lists.append([1.0])", "model.state = model.state + x",
    "model.layers[0].w.requires_grad = True\n    (model.layers[0].w * x).sum().backward()",
    "optimizer.zero_grad()\n    ((WEIGHT + optimizer.params[0]) * x).square().mean().backward()\n    optimizer.step()",
    "model.state.assign(Tensor.rand(SIZE))",
]
RETURNS = ["x", "x, x + 1, x", "model.state, x", "{{'x': x, 'y': [x, model.state]}}", "x, x.sum(), model.buffers[{m}]",
           "(a := x * 2), a, x", "x[1:], x", "None", "x.reshape(2, 2), x", "[x], (x,), GAIN"]
MUTATIONS = [
    "GAIN = {v}", "CONFIG['model']['bias'] = {v}", "FLAGS['neg'] = not FLAGS['neg']", "TABLE.append({v})",
    "TABLE.reverse()", "TABLE = [{v}, 1.0, 2.0]", "cell = {v}", "inner[0] = {v}", "model.layers[{n}].k = {v}",
    "model.layers[{n}].on = not model.layers[{n}].on", "model.layers.reverse()", "model.layers.append(Block({n}))",
    "model.layers[{n}] = Block({n} + 1)", "model.layers = list(model.layers)", "model.named['b'].k = {v}",
    "model.named['c'] = Block(2)", "model.named.pop('c', None)", "model.slotted.rate = {v}",
    "model.slotted.inner.k = {v}", "model.slotted = Slotted(model.layers[0])",
    "model.layers[{n}].options['shift'] = {v}",
    "model.layers[{n}].options['deep']['gain'] = {v}", "model.layers[{n}].options['deep'] = {{'gain': {v}}}",
    "model.layers[{n}].scale = {v}", "Block.scale = {v}", "model.state.assign(fresh({n}))", "model.state = fresh({n})",
    "model.buffers[{m}] = fresh({n})", "model.buffers.reverse()", "model.buffers[0] = model.buffers[1]",
    "model.order = model.order[::-1]", "model.mode = 'sub' if model.mode == 'add' else 'add'",
    "WEIGHT.replace(fresh({n}))", "lists[1][0] = {v}", "lists.append([{v}])", "del lists[2:]", "CLIP = {v}",
    "model.state.grad = fresh({n})", "model.state.grad = None", "model.state.requires_grad = True",
    "model.state.requires_grad = None", "model.norm.eps = {v}", "model.linear.bias = None",
    "model.linear.bias = fresh({n})", "model.kept = {v}", "model.kept = fresh({n})", "model.kept = None",
    "Tensor.manual_seed({n})", "Tensor.training = not Tensor.training", "model.layers[0].w = model.layers[1].w",
    "model.state = model.buffers[0]", "model.state[{n}] = {v}", "model.buffers[{m}] += {v}",
    "model.run = (lambda x: x + {v})", "vars(model).pop('run', None)", "optimizer.zero_grad()", "pass", "pass", "pass",
    "KEPT.append(OUT)", "model.kept = OUT if isinstance(OUT, Tensor) and OUT.shape == (SIZE,) else None",
    "model.state = fresh({n}) * 2", "del model.layers[3:]", "helper = (lambda x: x * GAIN - {v})",
    "helper = (lambda x, k={v}: x * k)", "closed, inner = outer()", "optimizer.weight_decay = {v}",
]


def fresh(n: int) -> Tensor:
    return Tensor(np.linspace(-1.0, 1.0 + n, SIZE).astype(np.float32)).realize()


def program(seed: int) -> tuple[str, list[list[str]]]:
    """Return the text of a function, and the changes before each of its calls."""
    rng = random.Random(seed)

    def filled(text: str) -> str:
        return text.format(n=rng.randrange(3), m=rng.randrange(2), v=rng.choice((0.5, 1.0, 2.0, 3.0, -1.0)))

    body = rng.sample(READS, rng.randint(1, 4)) + rng.sample(WRITES, rng.choice((0, 0, 1, 1, 2)))
    rng.shuffle(body)
    lines = [filled(line) for line in body]
    text = "def f(x):\n    " + "\n    ".join([*lines, f"return {filled(rng.choice(RETURNS))}"]) + "\n"
    # Most mutations change state that the program names; the others must have no effect.
    named = [m for m in MUTATIONS if any(word in text for word in m.replace("[", " ").replace(".", " ").split()
                                         if len(word) > 3 and word not in ("model", "fresh"))]
    steps = []
    for n in range(8):
        count = 0 if n < 2 else rng.choice((0, 1, 1, 1, 2))
        steps.append([filled(rng.choice(named if named and rng.random() < 0.6 else MUTATIONS)) for _ in range(count)])
    return text, steps


class World:
    """One run of a program: its globals and the results of its calls."""

    def __init__(self, text: str, wrap: Callable[[Any], Any]) -> None:
        Tensor.manual_seed(7)
        self.space: dict[str, Any] = {
            "__name__": "program", "Tensor": Tensor, "nn": nn, "SIZE": SIZE, "fresh": fresh, "KEPT": [], "OUT": None,
            "CLIP": 10.0, "CALLS": [0], "NUMBERS": iter(range(1000)), "random": random, "np": np}
        random.seed(3)
        np.random.seed(3)
        exec(HEADER, self.space)
        exec(text, self.space)
        self.function = wrap(self.space["f"])
        self.x = fresh(1)

    def step(self, mutations: list[str]) -> list[Any]:
        """Call the function once; return its result and side effects as comparable values."""
        for mutation in mutations:
            try:
                exec(mutation, self.space)
            except (IndexError, KeyError) as error:
                del error  # a list was made shorter: the same in every run
        try:
            out = self.space["OUT"] = self.function(self.x)
        except (IndexError, KeyError) as error:
            return [type(error).__name__]
        model = self.space["model"]
        tensors = [model.state, *model.buffers, *(b.w for b in model.layers), self.space["WEIGHT"], model.linear.weight]
        seen: dict[int, int] = {}
        every = [out, tensors, [_gradient(t) for t in [*tensors, self.x]], self.space["KEPT"]]
        return [*_described(every, seen), draws.state()]


def _gradient(t: Tensor) -> Tensor | None:
    """Return a tensor's gradient; None if it is zero and was not requested (it only shows how far back a history
    goes)."""
    return t.grad if t.grad is not None and (t.requires_grad or t.grad.numpy().any()) else None


def _described(value: Any, seen: dict[int, int]) -> list[Any]:
    """Return nesting, values, dtypes, and object identity of tensors."""
    if isinstance(value, Tensor):
        if id(value) in seen:
            return ["seen", seen[id(value)]]
        number = seen[id(value)] = len(seen)
        return ["tensor", number, value.requires_grad, value.dtype, value.shape, value.numpy()]
    if isinstance(value, (list, tuple)):
        return [type(value), len(value), *(part for item in value for part in _described(item, seen))]
    if isinstance(value, dict):
        return [dict, *value, *(part for item in value.values() for part in _described(item, seen))]
    return [value]


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a.shape == b.shape and np.allclose(a, b, rtol=1e-4, atol=1e-5, equal_nan=True)
    return type(a) is type(b) and bool(a == b)


def _history(text: str, steps: list[list[str]], wrap: Callable[[Any], Any]) -> tuple[list[list[Any]], World]:
    world = World(text, wrap)
    training = Tensor.training
    try:
        return [world.step(mutations) for mutations in steps], world
    finally:
        Tensor.training = training


def check(seed: int) -> None:
    """Compare a random program without and with capture, and with neither capture nor the border that ends gradients.

    Raises:
        AssertionError: with the program and the call that differs.
    """
    text, steps = program(seed)
    with Context(JIT=0):
        want, _ = _history(text, steps, TinyJit)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _compare(seed, text, steps, _history(text, steps, TinyJit)[0], want)
    if "backward" not in text:
        _compare(seed, text, steps, want, _history(text, steps, lambda f: f)[0])


def _compare(seed: int, text: str, steps: list[list[str]], got: list[list[Any]], want: list[list[Any]]) -> None:
    for n, (a, b) in enumerate(zip(got, want)):
        same = len(a) == len(b) and all(map(_equal, a, b))
        story = "".join(f"  call {k} after {'; '.join(s) or 'nothing'}\n" for k, s in enumerate(steps[:n + 1]))
        at = next((k for k, (x, y) in enumerate(zip(a, b)) if not _equal(x, y)), 0)
        assert same, f"seed {seed}, call {n} differs\n{text}{story}got  {a[:at + 1][-8:]}\nwant {b[:at + 1][-8:]}"


@pytest.mark.parametrize("seed", range(FEW))
def test_captured_programs_equal_uncaptured_ones(seed: int) -> None:
    check(seed)
