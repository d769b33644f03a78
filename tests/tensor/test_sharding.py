"""Tensors sharded over several devices have the same values as on one."""
from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinsmith import Context, Tensor, Variable, dtypes, nn
from tinsmith.core.errors import CheckError, DeviceError, ShapeError
from tinsmith.target.schedule_costs import Costs

TWO, THREE, FOUR = (tuple(f"CPU:{i}" for i in range(n)) for n in (2, 3, 4))


def values(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(-8, 9, shape).astype(np.float64)


def same(x: Tensor, want: np.ndarray[Any, Any]) -> None:
    got = x.numpy()
    assert got.shape == want.shape and np.array_equal(got, want), (got, want)


# *** placement ***


def test_the_tutorials_dot_product() -> None:
    a = Tensor([1.0, 2.0, 3.0, 4.0]).shard_(TWO, axis=0)
    b = Tensor([5.0, 6.0, 7.0, 8.0]).shard_(TWO, axis=0)
    assert float(a.dot(b).numpy()) == 70.0


@pytest.mark.parametrize("devices", [TWO, FOUR, ("PYTHON:0", "PYTHON:1"), ("CPU", "PYTHON")])
@pytest.mark.parametrize("axis", [None, 0, 1])
def test_round_trip(devices: tuple[str, ...], axis: int | None) -> None:
    x = values(4, 6)
    t = Tensor(x).shard(devices, axis)
    assert t.shape == (4, 6) and t.shard_axis == axis and len(t.device) == len(devices)
    same(t, x)
    same(t.realize(), x)
    assert t.shard_axis == axis
    same(t.to("CPU:1"), x)
    assert t.to("CPU:1").device == "CPU:1"
    same(t.shard(devices, 1), x)
    same(t.to(devices[::-1]), x)


def test_parts_lie_on_their_devices() -> None:
    t = Tensor(values(10, 2)).shard(FOUR, 0).realize()
    parts = t.uop.base.arg.parts
    assert [p.device for p in parts] == ["CPU", "CPU:1", "CPU:2", "CPU:3"]
    assert [p.size for p in parts] == [6, 6, 4, 4]
    whole = Tensor(values(10, 2)).to(TWO).realize()
    assert [p.size for p in whole.uop.base.arg.parts] == [20, 20]


def test_one_device_is_no_group() -> None:
    assert Tensor([1, 2]).shard(("CPU:1",), 0).device == "CPU:1"


@pytest.mark.parametrize("call, error, words", [
    (lambda: Tensor([1, 2]).shard(THREE, 0), ShapeError, "too short for 3 devices"),
    (lambda: Tensor([1, 2]).shard(("CPU", "CPU:0"), 0), DeviceError, "twice"),
    (lambda: Tensor([1, 2]).shard(("CPU", "NOSUCH"), 0), DeviceError, "NOSUCH"),
    (lambda: Tensor([1, 2]).shard((), 0), DeviceError, "empty device group"),
    (lambda: Tensor([1, 2]).shard(TWO, 0) + Tensor([1, 2]), DeviceError, "different devices"),
    (lambda: Tensor([1, 2]).shard(TWO, 0) + Tensor([1, 2]).shard(TWO[::-1], 0), DeviceError, "different devices"),
    (lambda: Tensor.zeros(4).shard_like(Tensor([1, 2]).shard(TWO, 0)), ShapeError, "cannot lie like"),
])
def test_errors(call: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()


def test_constants_and_likes() -> None:
    x = Tensor(values(4, 3)).shard(TWO, 0)
    assert x.zeros_like().shard_axis == 0 and x.ones_like().device == x.device
    same(x.ones_like(), np.ones((4, 3)))
    same(Tensor.ones(2, 2, device=TWO, dtype="float64"), np.ones((2, 2)))
    same(Tensor.arange(5, device=TWO, dtype="float64").realize(), np.arange(5.0))
    assert Tensor.empty(3, device=TWO).realize().device == ("CPU", "CPU:1")
    same(Tensor.zeros(5, dtype="float64").shard(TWO, 0).realize(), np.zeros(5))


def test_random_numbers_do_not_depend_on_devices() -> None:
    found = []
    for place in (lambda t: t, lambda t: t.shard(TWO, 0), lambda t: t.shard(FOUR, 1), lambda t: t.to(THREE)):
        Tensor.manual_seed(3)
        found.append([place(Tensor.rand(4, 8)).numpy(), place(Tensor.randn(4, 8)).realize().numpy()])
    for other in found[1:]:
        assert all(np.array_equal(a, b) for a, b in zip(found[0], other))


def test_dropout_is_the_same() -> None:
    x = values(8, 4)
    found = []
    for devices in (None, TWO, FOUR):
        Tensor.manual_seed(1)
        t = Tensor(x) if devices is None else Tensor(x).shard(devices, 0)
        with Tensor.train():
            found.append(t.dropout(0.5).numpy())
    assert np.array_equal(found[0], found[1]) and np.array_equal(found[0], found[2])


# *** every class of ops ***


def both(x: np.ndarray[Any, Any], devices: tuple[str, ...], axis: int | None, f: Any) -> None:
    same(f(Tensor(x).shard(devices, axis)), f(Tensor(x)).numpy())


OPS = {
    "unary": lambda t: (t * 2).relu() - 1,
    "weak": lambda t: 3 - t,
    "cast": lambda t: t.cast("int32").cast("float64"),
    "sum": lambda t: t.sum(), "sum0": lambda t: t.sum(0), "sum1": lambda t: t.sum(1), "max": lambda t: t.max(0),
    "min": lambda t: t.min(1), "prod": lambda t: (t > 0).any(0), "argmax": lambda t: t.argmax(0),
    "mean": lambda t: t.sum((0, 1), keepdim=True), "all": lambda t: (t > -9).all(),
    "transpose": lambda t: t.T + t.T, "merge": lambda t: t.reshape(-1) * 2, "split": lambda t: t.reshape(4, 3, 3, 4),
    "tear": lambda t: t.reshape(8, 18), "expand": lambda t: t.unsqueeze(1).expand(12, 2, 12),
    "pad": lambda t: t.pad(((1, 2), (0, 3))), "pad back": lambda t: t.pad(((1, 2), (0, 3)))[1:13, :12] + t,
    "shrink": lambda t: t[2:11], "one part": lambda t: t[0:2] + 1, "row": lambda t: t[7], "column": lambda t: t[:, 3],
    "step": lambda t: t[::2], "flip": lambda t: t.flip(0) + t, "flip1": lambda t: t.flip(1),
    "cat": lambda t: t.cat(t, dim=0), "cat1": lambda t: t.cat(t * 2, dim=1), "stack": lambda t: t.stack(t),
    "roll": lambda t: t.roll(3, 0), "triu": lambda t: t.triu(), "matmul": lambda t: t @ t, "gram": lambda t: t.T @ t,
    "outer": lambda t: t @ t.T, "gather": lambda t: t.gather(0, t.abs().cast("int32")),
    "gather1": lambda t: t.gather(1, t.abs().cast("int32")), "pick": lambda t: t[Tensor([3, 1, 3]).to(t.device)],
    "onehot": lambda t: t.abs().cast("int32").one_hot(9).sum(0), "where": lambda t: (t > 0).where(t, -1),
    "scatter": lambda t: t.zeros_like().scatter(0, t.abs().cast("int32"), t),
    "scatter add": lambda t: t.scatter_reduce(0, t.abs().cast("int32"), t, "sum"),
    "scatter add1": lambda t: t.scatter_reduce(1, t.abs().cast("int32"), t, "sum"),
    "pool": lambda t: t.reshape(1, 1, 12, 12).max_pool2d(),
    "cumsum": lambda t: t.cumsum(0), "cumsum1": lambda t: t.cumsum(1), "sort": lambda t: t.sort(0)[0],
    "contiguous": lambda t: t.T.contiguous() + 1,
    "softmaxed": lambda t: t.softmax(0).sum(0).round(), "diagonal": lambda t: t.diagonal(),
}


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("devices, axis", [(TWO, 0), (FOUR, 1), (("CPU:0", "CPU:1", "CPU:2", "CPU:3", "CPU:4"), 0),
                                           (TWO, None)])
def test_ops(name: str, devices: tuple[str, ...], axis: int | None) -> None:
    both(values(12, 12), devices, axis, OPS[name])


# *** random programs ***


STEPS: dict[str, Any] = {
    "add": lambda a, b: a + b, "mul": lambda a, b: a * b, "maximum": lambda a, b: a.maximum(b),
    "matmul": lambda a, b: a @ b, "flip": lambda a, b: a.flip(0), "transpose": lambda a, b: a.T,
    "roll": lambda a, b: a[1:].cat(a[:1]), "pad": lambda a, b: a.pad(((2, 0), (0, 0)))[:8],
    "rows": lambda a, b: a - a.sum(0), "columns": lambda a, b: a * a.max(1, keepdim=True), "where": lambda a, b:
    (a < b).where(a, b), "fold": lambda a, b: a.reshape(4, 2, 8).sum(1).reshape(4, 8).repeat(2, 1),
    "gather": lambda a, b: a.gather(0, b.abs().cast("int32") % 8), "copy": lambda a, b: a.contiguous(),
    "dot": lambda a, b: (a * b).sum() + a, "swap": lambda a, b: a.reshape(2, 4, 8).permute(1, 0, 2).reshape(8, 8),
    "window": lambda a, b: a.reshape(1, 1, 8, 8).max_pool2d(3, stride=1, padding=1).reshape(8, 8),
    "scatter": lambda a, b: a.zeros_like().scatter_reduce(1, b.abs().cast("int32") % 8, a, "sum"),
}
PLACES = st.sampled_from([None, 0, 1])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(sorted(STEPS)), st.integers(0, 9), st.integers(0, 9)), max_size=6),
       st.sampled_from([TWO, THREE, FOUR]), PLACES, PLACES)
def test_random_programs(steps: list[tuple[str, int, int]], devices: tuple[str, ...], first: int | None,
                         second: int | None) -> None:
    found = []
    for spread in (False, True):
        made = []
        for seed, axis in ((0, first), (1, second)):
            t = Tensor(values(8, 8, seed=seed).clip(-2, 2))
            made.append(t.shard(devices, axis) if spread else t)
        for name, i, j in steps:
            made.append(STEPS[name](made[i % len(made)], made[j % len(made)]) % 97)
        found.append([t.numpy() for t in made])
        Tensor.realize(*made)
        assert all(np.array_equal(t.numpy(), want) for t, want in zip(made, found[-1]))
    for got, want in zip(found[1], found[0]):
        assert np.array_equal(got, want), (steps, devices, first, second)


# *** gradients, state, optimizers ***


@pytest.mark.parametrize("name", ["unary", "sum0", "max", "min", "merge", "tear", "pad back", "shrink", "one part",
                                  "flip", "cat", "roll", "matmul", "gram", "outer", "gather", "gather1", "scatter add",
                                  "where", "pool", "softmaxed", "step", "contiguous"])
@pytest.mark.parametrize("devices, axis", [(TWO, 0), (FOUR, 1), (THREE, None)])
def test_gradients(name: str, devices: tuple[str, ...], axis: int | None) -> None:
    x, want = values(12, 12), []
    for t in (Tensor(x), Tensor(x).shard(devices, axis)):
        weights = Tensor(values(4096, seed=5)[: OPS[name](t).numel()]).to(t.device).reshape(OPS[name](t).shape)
        (OPS[name](t) * weights).sum().backward()
        want.append(t.grad.numpy())
    assert np.allclose(*want, rtol=1e-12, atol=1e-12)


def test_gradients_reach_the_tensor_before_shard() -> None:
    for axis in (None, 0):
        w = Tensor(values(4, 2), requires_grad=True)
        (w.shard(TWO, axis) * Tensor(values(4, 2, seed=1)).shard(TWO, 0)).sum().backward()
        assert w.grad.device == "CPU"
        same(w.grad, values(4, 2, seed=1))


def test_assign_keeps_the_place() -> None:
    t = Tensor(values(6, 4)).shard(TWO, 0).realize()
    memory = [p.opaque for p in t.uop.base.arg.parts]
    for k in range(3):
        t.assign(t + Tensor(values(6, 4)).shard(TWO, 1)).realize()
        assert t.shard_axis == 0
        same(t, values(6, 4) * (k + 2))
    assert [p.opaque for p in t.uop.base.arg.parts] == memory, "new versions take the place of old ones"


def test_a_step_is_scheduled_once() -> None:
    from tinsmith.core.counters import GlobalCounters

    t = Tensor(values(6, 4)).shard(TWO, 0).realize()
    before = 0
    for k in range(3):
        t.assign((t * 0.5).sum(0) + t).realize()
        if k == 0:
            before = GlobalCounters.schedule_count
    assert GlobalCounters.schedule_count == before


def trained(devices: tuple[str, ...] | None, axis: int | None, make: Any, steps: int = 4) -> list[np.ndarray[Any, Any]]:
    """Return the parameters after some steps on a sharded batch; with an axis the weights are sharded too."""
    weights = [Tensor(values(8, 4, seed=1) / 8), Tensor(values(4, seed=2) / 8)]
    x, y = Tensor(values(16, 8)), Tensor(values(16, 4, seed=3))
    if devices is not None:
        x, y = x.shard(devices, 0), y.shard(devices, 0)
        for w in weights:
            w.shard_(devices, None if axis is None else axis % w.ndim)
    opt = make(weights)
    for _ in range(steps):
        opt.zero_grad()
        ((x @ weights[0] + weights[1]).tanh() - y).square().mean().backward()
        opt.step()
    for state in (getattr(opt, "m", []), getattr(opt, "v", []), getattr(opt, "b", [])):
        assert [s.shard_axis for s in state] == [w.shard_axis for w in weights[: len(state)]]
    return [w.numpy() for w in weights]


@pytest.mark.parametrize("make", [lambda p: nn.optim.SGD(p, lr=0.1, momentum=0.9), lambda p: nn.optim.Adam(p, lr=0.1),
                                  lambda p: nn.optim.LAMB(p, lr=0.1)], ids=["SGD", "Adam", "LAMB"])
@pytest.mark.parametrize("devices, axis", [(TWO, None), (FOUR, None), (TWO, 0), (FOUR, 0), (THREE, -1)])
def test_training_is_that_of_one_device(make: Any, devices: tuple[str, ...], axis: int | None) -> None:
    for got, want in zip(trained(devices, axis, make), trained(None, None, make)):
        assert np.allclose(got, want, rtol=0, atol=1e-12)


@pytest.mark.parametrize("synced", [True, False])
def test_batch_norm(synced: bool) -> None:
    x = values(8, 3, 4, 4)
    found = []
    for devices in (None, TWO):
        layer = nn.BatchNorm(3, synced=synced)
        for t in nn.state.get_parameters(layer):
            t.replace(t.cast("float64") if t.dtype.is_float else t).realize()
            if devices:
                t.shard_(devices)
        with Tensor.train():
            y = layer(Tensor(x) if devices is None else Tensor(x).shard(devices, 0)).numpy()
        found.append((y, layer.running_mean.numpy(), layer.running_var.numpy()))
    if synced:
        assert all(np.allclose(a, b, rtol=0, atol=1e-12) for a, b in zip(*found))
        return
    halves = x.reshape(2, 4, 3, 16).transpose(0, 2, 1, 3).reshape(2, 3, 64)
    mean, var = halves.mean(2), halves.var(2)
    want = (x.reshape(2, 4, 3, 4, 4) - mean[:, None, :, None, None]) / np.sqrt(var + 1e-5)[:, None, :, None, None]
    assert np.allclose(found[1][0], want.reshape(x.shape), rtol=0, atol=1e-12)
    assert np.allclose(found[1][1], 0.1 * mean.mean(0)) and not np.allclose(found[0][0], found[1][0])


def test_unsynced_batch_norm_wants_equal_parts() -> None:
    with pytest.raises(ShapeError, match="unequal parts"), Tensor.train():
        nn.BatchNorm(2, synced=False)(Tensor(values(5, 2)).shard(TWO, 0))


def test_state_is_loaded_into_its_place() -> None:
    layer = nn.Linear(4, 6)
    layer.weight.shard_(TWO, 0)
    layer.bias.shard_(TWO)
    nn.state.load_state_dict(layer, {"weight": values(6, 4), "bias": values(6)})
    assert layer.weight.shard_axis == 0 and layer.bias.shard_axis is None and layer.weight.device == ("CPU", "CPU:1")
    same(layer.weight.cast(dtypes.float64), values(6, 4))


def test_constants_of_several_places_in_one_program() -> None:
    a = Tensor.arange(4, dtype="float64").shard(TWO, 0)
    b, c, d = Tensor.arange(3, dtype="float64"), Tensor.rand(3, device="CPU:1"), Tensor.ones(2, 3, device=TWO)
    Tensor.realize(a, b, c, d)
    places = [t.uop.base.arg.device for t in (a, b, c, d)]
    assert places == ["CPU,CPU:1", "CPU", "CPU:1", "CPU,CPU:1"]
    same(b, np.arange(3.0))
    same(d.cast("float64"), np.ones((2, 3)))


# *** other features ***


def test_a_pickle_keeps_the_parts() -> None:
    x = Tensor(values(4, 6)).shard(TWO, 1).realize()
    y = pickle.loads(pickle.dumps(x))
    assert y.device == x.device and y.shard_axis == 1
    same(y + x, values(4, 6) * 2)


def test_checked_programs() -> None:
    x = Tensor(values(4, 6)).shard(TWO, 0).realize()
    with Context(CHECKED=1):
        same(x.sum(0) * 2, values(4, 6).sum(0) * 2)
        with pytest.raises(CheckError, match="index"):
            x[Tensor([1, 9]).realize().to(TWO)].numpy()


@pytest.mark.parametrize("axis", [0, 1, None])
def test_setitem(axis: int | None) -> None:
    x, want = Tensor(values(4, 6)).shard(TWO, axis).realize(), values(4, 6)
    x[1:3] = Tensor(values(2, 6, seed=1)).to(TWO)
    x[:, 2] = 7
    want[1:3], want[:, 2] = values(2, 6, seed=1), 7
    same(x.realize(), want)
    assert x.shard_axis == axis


def test_vocabulary_in_parts() -> None:
    layer = nn.Embedding(10, 4)
    weight = layer.weight.numpy()
    layer.weight.shard_(THREE, 0)
    places = np.array([[1, 9], [3, 4]])
    out = layer(Tensor(places).to(THREE))
    assert np.array_equal(out.numpy(), weight[places])
    (out * 2).sum().backward()
    want = np.zeros((10, 4), np.float32)
    np.add.at(want, places, 2)
    assert np.array_equal(layer.weight.grad.numpy(), want)


def test_looked_up_bits_are_exact() -> None:
    odd = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 5e-324])
    got = Tensor(odd).shard(TWO, 0)[Tensor([5, 4, 1, 0, 3, 2]).to(TWO)].numpy()
    assert np.array_equal(got.view(np.int64), odd[[5, 4, 1, 0, 3, 2]].view(np.int64))


def test_heads_and_channels_in_parts() -> None:
    q = values(2, 4, 8, 8) / 8
    t = Tensor(q).shard(TWO, 1)
    want = Tensor(q).scaled_dot_product_attention(Tensor(q), Tensor(q)).numpy()
    assert np.allclose(t.scaled_dot_product_attention(t, t).numpy(), want, rtol=0, atol=1e-12)
    assert t.scaled_dot_product_attention(t, t).shard_axis == 1
    x, w = values(2, 3, 6, 6), values(8, 3, 3, 3)
    out = Tensor(x).to(TWO).conv2d(Tensor(w).shard(TWO, 0))
    assert out.shard_axis == 1
    same(out, Tensor(x).conv2d(Tensor(w)).numpy())


def test_saving(tmp_path: Path) -> None:
    x = Tensor(values(4, 6)).shard(TWO, 0)
    nn.state.safe_save({"x": x}, tmp_path / "x.safetensors")
    same(nn.state.safe_load(tmp_path / "x.safetensors")["x"], values(4, 6))


def test_what_explain_says() -> None:
    text = str(Tensor(values(4, 6)).shard(TWO, 0).realize().sum(0).explain(run=False))
    assert "CPU:1" in text and "copies" in text


@pytest.mark.parametrize("axis", [None, 0, 1])
def test_sizes_known_at_launch(axis: int | None) -> None:
    x = Tensor(values(8, 3)).shard(TWO, axis).realize()
    for n in (3, 5):
        rows = x[: Variable("n", 1, 8).bind(n)]
        same((rows * 2).sum(0), values(8, 3)[:n].sum(0) * 2)
        same((rows + 1).realize().sum(0), values(8, 3)[:n].sum(0) + n)


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_data_go_straight_to_their_devices(axis: int | None, capsys: pytest.CaptureFixture[str]) -> None:
    a = values(5, 3, 4)
    with Context(DEBUG=2):
        moved = [Tensor(a).shard_(("CPU:1", "CPU:2"), axis),
                 Tensor(a, requires_grad=False).shard(("CPU:1", "CPU:2"), axis),
                 Tensor(a.astype(np.int32)).shard(("CPU:1", "CPU:2"), axis)]
        moved[0].realize(*moved[1:])
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("***")]
    assert len(lines) == 6 and all(line[3] == "copy" and line[1] in ("CPU:1", "CPU:2") for line in lines)
    assert all("<- NPY" in " ".join(line) for line in lines)
    for t, want in zip(moved, (a, a, a.astype(np.int32))):
        assert np.array_equal(t.numpy(), want) and t.device == ("CPU:1", "CPU:2")


def test_data_on_their_way_keep_their_gradient_and_their_views() -> None:
    w = Tensor(values(4, 2), requires_grad=True).shard_(TWO, 0)
    w.square().sum().backward()
    same(w.grad, 2 * values(4, 2))
    assert w.grad.shard_axis == 0
    x = Tensor(values(4, 3))
    for view in (x.T, x.flip(0), x[1:], x.expand(4, 3), x.reshape(2, 6), x + 1):
        for axis in (None, 0, 1):
            same(Tensor(view).shard_(TWO, axis), view.numpy())
    plain = Tensor(values(3), requires_grad=False)
    same(plain.to("CPU:1"), values(3))
    assert plain.device == "CPU" and Tensor(values(3)).to_("CPU:2").device == "CPU:2"
    same(plain.to_("CPU").to_("CPU:3"), values(3))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("device", [None, "NPY"])
@pytest.mark.parametrize("spread", [
    lambda t: t.to(FOUR), lambda t: t.shard(FOUR), lambda t: t.shard(FOUR, 0), lambda t: t.shard(FOUR, 1),
    lambda t: t.shard_like(Tensor.ones(*t.shape).shard(FOUR, 1)), lambda t: t.shard_like(Tensor.ones(4).to(FOUR)),
    lambda t: t.to_(FOUR), lambda t: t.shard_(FOUR, 1),
])
@pytest.mark.parametrize("rows", [4, Costs().rounds // (4 * 64)])  # below and at the size that is scattered first
def test_memory_without_programs_is_spread(spread: Any, rows: int, device: str | None, dtype: Any) -> None:
    data = np.arange(rows * 64).reshape(rows, 64).astype(dtype)
    for requires_grad in (None, False):
        t = Tensor(data, device=device, requires_grad=requires_grad)
        np.testing.assert_array_equal((spread(t) + 1).numpy(), data + 1)


def test_gradients_of_spread_memory() -> None:
    t = Tensor(np.arange(12.0).reshape(4, 3), device="NPY", requires_grad=True)
    (t.shard(FOUR, 0) ** 2).sum().backward()
    assert t.grad is not None
    np.testing.assert_array_equal(t.grad.to("CPU").numpy(), 2 * np.arange(12.0).reshape(4, 3))


@pytest.mark.parametrize("realized", [False, True], ids=["lazy", "realized"])
@pytest.mark.parametrize("there", ["CPU:1", ("CPU", "CPU:1"), (("CPU", "CPU:1"), 0), (("CPU", "CPU:1"), 1)], ids=str)
def test_gradients_of_what_was_moved_come_back(there: Any, realized: bool) -> None:
    w = Tensor.rand(4, 2)
    if realized:
        w.realize()
    for n in (1, 2):
        moved = w.shard(*there) if isinstance(there[-1], int) else w.to(there)
        (moved * Tensor([[1.0, 2.0]]).to(moved.device)).sum().backward()
        assert w.grad is not None and w.grad.device == "CPU"
        assert w.grad.realize().tolist() == [[n, 2.0 * n]] * 4
    assert (w.to("CPU:1") ** 3).sum().gradient(w)[0].sum().gradient(w)[0].device == "CPU"


@pytest.mark.parametrize("other", [0, 1, None])
@pytest.mark.parametrize("axis", [0, 1, None])
def test_gradients_lie_as_their_tensors_do(axis: int | None, other: int | None) -> None:
    devices = ("CPU", "CPU:1")
    a, b = np.arange(8, dtype=np.float32).reshape(4, 2), np.arange(8, dtype=np.float32).reshape(2, 4) - 3
    for loss, want in ((lambda w, x: (w.T * x).sum(), b.T), (lambda w, x: (w @ x).sum(), np.tile(b.sum(1), (4, 1))),
                       (lambda w, x: w.sum(), np.ones((4, 2))), (lambda w, x: w[:1].exp().sum(), None)):
        w, x = Tensor(a).shard(devices, axis), Tensor(b).shard(devices, other)
        loss(w, x).backward()
        assert w.grad is not None and (w.grad.device, w.grad.shard_axis) == (devices, axis)
        if want is not None:
            np.testing.assert_allclose(w.grad.numpy(), want)
