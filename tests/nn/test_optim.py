"""Optimizers against their formulas, and small networks that learn."""
from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tinsmith import Tensor, TinyJit, dtypes, nn
from tinsmith.core.counters import GlobalCounters
from tinsmith.core.errors import ArgumentError, AxisError, DTypeError, GradientError, ShapeError
from tinsmith.nn.optim import LAMB, SGD, Adam, AdamW, Optimizer, OptimizerGroup
from tinsmith.tensor import modes

Array = np.ndarray[Any, Any]
START, SCALE = np.array([1.0, -2.0, 0.5]), np.array([1.0, 3.0, 0.25])


def run(make: Callable[[list[Tensor]], Optimizer], steps: int = 5) -> Array:
    w = Tensor(START.astype(np.float32))
    opt = make([w])
    for _ in range(steps):
        opt.zero_grad()
        (w * w * Tensor(SCALE.astype(np.float32))).sum().backward()
        opt.step()
    return w.numpy()


def sgd(momentum: float = 0.0, decay: float = 0.0, nesterov: bool = False) -> Array:
    w, b = START.copy(), np.zeros(3)
    for _ in range(5):
        g = 2 * w * SCALE + decay * w
        b = momentum * b + g
        w = w - 0.05 * (g + momentum * b if nesterov else b)
    return w


def adam(decay: float = 0.0, trust: bool = False) -> Array:
    w, m, v = START.copy(), np.zeros(3), np.zeros(3)
    for t in range(1, 6):
        g = 2 * w * SCALE
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        up = m / (1 - 0.9**t) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8) + decay * w
        w = w - 0.05 * up * (np.linalg.norm(w) / np.linalg.norm(up) if trust else 1)
    return w


@pytest.mark.parametrize(("make", "expected"), [
    (lambda p: SGD(p, 0.05), sgd()), (lambda p: SGD(p, 0.05, 0.9), sgd(0.9)),
    (lambda p: SGD(p, 0.05, 0.9, 0.1), sgd(0.9, 0.1)), (lambda p: SGD(p, 0.05, 0.9, nesterov=True), sgd(0.9, 0, True)),
    (lambda p: Adam(p, 0.05), adam()), (lambda p: AdamW(p, 0.05, weight_decay=0.1), adam(0.1)),
    (lambda p: LAMB(p, 0.05, eps=1e-8, weight_decay=0.1), adam(0.1, True)),
], ids=["sgd", "momentum", "decay", "nesterov", "adam", "adamw", "lamb"])
def test_formulas(make: Callable[[list[Tensor]], Optimizer], expected: Array) -> None:
    np.testing.assert_allclose(run(make), expected, rtol=1e-5, atol=1e-6)


def test_steps_are_one_program() -> None:
    """After the first step nothing is scheduled again, though the learning rate changes."""
    w = Tensor([1.0, 2.0])
    opt = Adam([w], 0.1)
    counts = []
    for step in range(4):
        opt.lr.assign(np.array([0.1 / (step + 1)], np.float32))
        opt.zero_grad()
        loss = (w * w).sum()
        loss.backward()
        opt.step()
        counts.append(GlobalCounters.schedule_count)
        assert loss.uop.base.op.name == "BUFFER", "the step computes the loss in passing"
    assert counts[1] == counts[3]


def test_groups_frozen_and_equal_parameters() -> None:
    a, b, c = Tensor.ones(3), Tensor.ones(3), Tensor.ones(3, requires_grad=False)
    opt = OptimizerGroup(SGD([a, c], 0.5), SGD([b], 0.25))
    (a.sum() * 2 + b.sum() + c.sum()).backward()
    opt.step()
    assert (a.tolist(), b.tolist(), c.tolist()) == ([0.0] * 3, [0.75] * 3, [1.0] * 3)
    opt.zero_grad()
    assert a.grad is None and b.grad is None


def test_gradients_of_inputs_do_not_pile_up() -> None:
    x, w = Tensor([1.0, 2.0]), Tensor([3.0, 4.0])
    opt = SGD([w], 0.0)
    for _ in range(3):
        opt.zero_grad()
        (x * w).sum().backward()
        opt.step()
    assert x.grad is not None and x.grad.tolist() == [3, 4]
    (x * w).sum().backward()
    assert w.grad is not None and w.grad.tolist() == [2, 4]


def test_errors() -> None:
    with pytest.raises(ArgumentError, match="no tensor"):
        SGD([], 0.1)
    with pytest.raises(ArgumentError, match="lr"):
        SGD([Tensor([1.0])], -1)
    w = Tensor([1.0])
    with pytest.raises(GradientError, match="backward"):
        SGD([w], 0.1).step()
    with pytest.raises(NotImplementedError, match="_step"):
        opt = Optimizer([w], 0.1)
        w.sum().backward()
        opt.step()


def test_mlp_learns() -> None:
    Tensor.manual_seed(0)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((64, 4)).astype(np.float32)
    y = (x.sum(1) > 0).astype(np.int32)
    layers = [nn.Linear(4, 16), Tensor.relu, nn.BatchNorm(16), nn.Linear(16, 2)]
    opt = Adam(nn.state.get_parameters(layers), 0.02)
    losses = []
    with Tensor.train():
        for _ in range(20):
            opt.zero_grad()
            loss = Tensor(x).sequential(layers).sparse_categorical_crossentropy(Tensor(y))
            loss.backward()
            opt.step()
            losses.append(loss.item())
    assert losses[-1] < 0.4 * losses[0]
    assert layers[2].num_batches_tracked.item() == 20  # type: ignore[union-attr]
    answers = Tensor(x).sequential(layers).argmax(1).numpy()
    assert (answers == y).mean() > 0.85


class Block:
    def __init__(self, width: int, heads: int) -> None:
        self.heads = heads
        self.norms = [nn.LayerNorm(width), nn.LayerNorm(width)]
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def __call__(self, x: Tensor) -> Tensor:
        n, length, width = x.shape
        parts = self.qkv(self.norms[0](x)).chunk(3, -1)
        q, k, v = (t.reshape(n, length, self.heads, -1).transpose(1, 2) for t in parts)
        seen = q.scaled_dot_product_attention(k, v, is_causal=True).transpose(1, 2).reshape(n, length, width)
        x = x + self.out(seen)
        return x + self.down(self.up(self.norms[1](x)).gelu("tanh"))


class GPT:
    def __init__(self, words: int, length: int, width: int) -> None:
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.block, self.norm = Block(width, 2), nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)

    def __call__(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens) + self.places(Tensor.arange(tokens.shape[1]))
        return self.head(self.norm(self.block(x)))


def test_gpt_learns() -> None:
    Tensor.manual_seed(1)
    model = GPT(11, 6, 8)
    text = (np.arange(7)[None] * np.array([[1], [2], [3], [4]])) % 11
    x, y = text[:, :-1].astype(np.int32), text[:, 1:].astype(np.int32)
    opt = AdamW(nn.state.get_parameters(model), 0.02)
    losses = []
    with Tensor.train():
        for _ in range(8):
            opt.zero_grad()
            loss = model(Tensor(x)).sparse_categorical_crossentropy(Tensor(y))
            loss.backward()
            opt.step()
            losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]
    changed = model(Tensor(np.concatenate([x[:, :-1], x[:, -1:] * 0], 1))).numpy()
    np.testing.assert_allclose(changed[:, :-1], model(Tensor(x)).numpy()[:, :-1], atol=1e-5)


def test_moments_of_half_parameters_are_float32() -> None:
    """In float16 the square of a gradient of 1e-5 and eps are 0: the step would be NaN or infinite."""
    w = Tensor(np.ones(2, np.float16))
    opt = nn.optim.Adam([w], lr=0.125)
    _ = (w * Tensor([1e-5, -1e-5], dtype="float16")).sum().backward()
    opt.step()
    assert w.dtype is dtypes.float16 and {t.dtype for t in (*opt.m, *opt.v)} == {dtypes.float32}
    assert np.allclose(w.numpy(), [0.875, 1.125], atol=2e-3)


def learned(dtype: str, jit: bool = False, devices: tuple[str, ...] = (), **options: bool) -> tuple[Tensor, LAMB]:
    w = Tensor(np.ones(4, np.float32)).cast(dtype).realize()
    if devices:
        w.shard_(devices, 0)
    opt = AdamW([w], 1e-3, weight_decay=0.0, **options)

    def step() -> None:
        opt.zero_grad()
        w.float().sum().backward()
        opt.step()

    call = TinyJit(step) if jit else step
    for _ in range(100):
        call()
    return w, opt


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("where", ["at once", "captured", "sharded"])
def test_16_bit_parameters_take_in_small_steps(dtype: str, where: str) -> None:
    w, opt = learned(dtype, where == "captured", ("CPU:0", "CPU:1") if where == "sharded" else ())
    master = opt.master_weights[0]
    assert master is not None and master.dtype is dtypes.float32 and w.device == master.device
    np.testing.assert_allclose(master.numpy(), 0.9, rtol=1e-4)
    assert w.tolist() == master.cast(dtype).tolist()


def test_master_weights_are_state_and_can_be_left_out() -> None:
    w, opt = learned("bfloat16", master_weights=False)
    assert w.tolist() == [1.0] * 4 and opt.master_weights == [None]
    other = learned("bfloat16")[1]
    saved = {name: t.numpy() for name, t in nn.state.get_state_dict(other).items()}
    assert saved["master_weights.0"].dtype == np.float32
    fresh = AdamW([Tensor([0.0] * 4, dtype="bfloat16")], 1e-3)
    nn.state.load_state_dict(fresh, saved)
    master = fresh.master_weights[0]
    assert master is not None and master.tolist() == saved["master_weights.0"].tolist()
    assert AdamW([Tensor([1.0])], 1e-3).master_weights == [None]


def test_what_is_written_to_a_16_bit_parameter_counts() -> None:
    """Weights loaded after the optimizer was created, or clipped in a loop, update its master weights."""
    w = Tensor([1.0, 2.0], dtype="bfloat16").realize()
    opt = SGD([w], 2.0**-12)
    for start, expected in ((None, [1 - 2**-12, 2 - 2**-12]), ([4.0, 2.0], [4 - 2**-12, 2 - 2 * 2**-12])):
        if start is not None:
            w.assign(Tensor(start, dtype="bfloat16"))
        opt.zero_grad()
        w.float().sum().backward()
        opt.step()
        assert opt.master_weights[0] is not None and opt.master_weights[0].tolist() == expected


def test_the_learning_rate_is_set_by_assignment() -> None:
    a, b = Tensor([1.0]), Tensor([1.0])
    opt = OptimizerGroup(SGD([a], 0.5), SGD([b], 0.25))
    opt.lr = 0.125
    (a + b).sum().backward()
    opt.step()
    assert (a.item(), b.item(), opt.lr.item(), opt[1].lr.item()) == (0.875, 0.875, 0.125, 0.125)
    opt.lr = opt.lr * 2
    assert opt[0].lr.tolist() == [0.25] and "optimizers.0.lr" in nn.state.get_state_dict(opt)
    with pytest.raises(ArgumentError, match="lr=-1"):
        opt.lr = -1
    rate = opt[0]

    @TinyJit
    def step() -> None:
        rate.zero_grad()
        a.sum().backward()
        rate.step()

    for n in range(6):
        rate.lr = float(n)
        step()
    assert a.item() == 0.875 - 15 and step.replays > 0


def test_errors_name_parameters() -> None:
    model = {"head": nn.Linear(2, 3), "tail": nn.Linear(3, 1)}
    opt = Adam(nn.state.get_parameters(model), 0.1)
    model["head"](Tensor.ones(1, 2)).sum().backward()
    with pytest.raises(GradientError, match=r"2 of 4 .*tail.weight of shape \(1, 3\), tail.bias"):
        opt.step()
    saved = {name: t.numpy() for name, t in nn.state.get_state_dict(opt).items()}
    saved["m.2"] = np.zeros((7, 3), np.float32)
    with pytest.raises(ShapeError, match=r"m.2 \(tail.weight\): \(7, 3\) into \(1, 3\)"):
        nn.state.load_state_dict(opt, saved)
    del saved["v.1"]
    with pytest.raises(ArgumentError, match=r"missing v.1 \(head.bias\)"):
        nn.state.load_state_dict(opt, saved)


def trained(layers: list[Any], steps: int, *, at: Callable[[], Any] = contextlib.nullcontext) -> list[str]:
    """Train ``layers``, with forward and backward passes inside ``at()``, and return the warnings."""
    opt = SGD(nn.state.get_parameters(layers), 0.1)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for _ in range(steps):
            opt.zero_grad()
            with at():
                Tensor.ones(2, 3).sequential(layers).sum().backward()
            opt.step()
    assert all(w.filename == __file__ for w in found)
    return [str(w.message) for w in found]


@pytest.mark.parametrize("layer", ["BatchNorm", "dropout"])
def test_a_step_after_layers_in_evaluation_mode_is_warned_of(layer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modes, "_said", set())
    layers = [nn.Linear(3, 4), nn.BatchNorm(4) if layer == "BatchNorm" else Tensor.dropout]
    (message,) = trained(layers, 3)
    assert f"SGD.step follows a {layer} that ran in evaluation mode" in message and "Tensor.train()" in message
    monkeypatch.setattr(modes, "_said", set())
    assert not trained(layers, 3, at=Tensor.train)
    with Tensor.no_grad():
        Tensor.ones(2, 3).sequential(layers).realize()
    assert not trained([nn.Linear(3, 4), nn.LayerNorm(4)], 2), "what was only looked at is no mistake"
    if layer == "BatchNorm":
        Tensor.ones(2, 3).sequential(layers).realize()
        assert not trained([nn.Linear(3, 4)], 2), "another model, as a teacher, may run in evaluation mode"


def test_class_labels_are_integers() -> None:
    x = Tensor.ones(2, 3)
    for name in ("cross_entropy", "sparse_categorical_crossentropy", "nll_loss"):
        with pytest.raises(DTypeError, match=r"class indices of dtype dtypes.float .*test_optim.py.*int32"):
            getattr(x, name)(Tensor([0.0, 1.0]))
        for labels in (Tensor([0, 3]), Tensor([0, 3]).realize(), Tensor([0, 1, 0, 3]).realize()[2:]):
            with pytest.raises(AxisError, match=r"class 3 is out of range"):
                getattr(x, name)(labels)
    with pytest.raises(AxisError, match="embedding: index 10 is out of range"):
        nn.Embedding(10, 2)((Tensor([3, 9]) + 1).realize())


OPTIMIZERS = ("SGD", "Adam", "AdamW", "LAMB", "NAdam", "RAdam", "Adagrad", "RMSprop", "Muon", "LARS")


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_making_one_runs_no_program(name: str) -> None:
    params = [nn.Linear(4, 4).weight, Tensor.zeros(4, 4), Tensor.zeros(4, 4), Tensor.ones(4, 4, dtype="bfloat16")]
    before = GlobalCounters.kernel_count
    opt = getattr(nn.optim, name)(params, lr=0.5)
    assert GlobalCounters.kernel_count == before
    opt.lr = 0.125
    sum((p * (n + 1)).sum() for n, p in enumerate(params)).backward()
    with Tensor.train():
        opt.step()
    assert opt.lr.item() == 0.125 and all((p != 0).all().item() for p in params)
    assert len({id(t.uop) for t in opt.params}) == len(params)


def test_a_first_step_inside_of_a_capture() -> None:
    def losses(captured: bool, every: int) -> list[float]:
        Tensor.manual_seed(3)
        layer = nn.Linear(3, 1)
        opt, x = nn.optim.Adam(nn.state.get_parameters(layer), lr=0.1), Tensor([[0.5, -1.0, 2.0]])

        def step(update: bool) -> Tensor:
            loss = layer(x).square().mean()
            loss.backward()
            if update:
                opt.step()
                opt.zero_grad()
            return loss.detach()

        call = TinyJit(step) if captured else step
        with Tensor.train():
            return [call((n + 1) % every == 0).item() for n in range(12)]

    for every in (1, 2, 3):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert losses(True, every) == losses(False, every)
