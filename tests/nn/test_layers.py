"""Layers against NumPy, and their state."""
from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.nn.helpers import arrays, check_gradient
from tinsmith import Tensor, dtypes, nn
from tinsmith.core.errors import ArgumentError, FileFormatError, ShapeError


def test_initial_values() -> None:
    Tensor.manual_seed(3)
    for layer, fan in ((nn.Linear(64, 50), 64), (nn.Conv2d(8, 32, 3, groups=2), 36), (nn.ConvTranspose2d(8, 4, 3), 36)):
        w = layer.weight.numpy()
        assert 0.95 / np.sqrt(fan) < abs(w).max() <= 1 / np.sqrt(fan)
        assert layer.bias is not None and abs(layer.bias.numpy()).max() <= 1 / np.sqrt(fan)
    assert abs(nn.Embedding(64, 64).weight.numpy().std() - 1) < 0.1


def test_linear_and_conv_same() -> None:
    (x,) = arrays((2, 3))
    layer = nn.Linear(3, 4)
    assert layer.bias is not None
    expected = x @ layer.weight.numpy().T + layer.bias.numpy()
    np.testing.assert_allclose(layer(Tensor(x)).numpy(), expected, rtol=1e-4, atol=1e-5)
    assert nn.Conv2d(1, 2, (4, 3), padding="same")(Tensor.ones(1, 1, 6, 5)).shape == (1, 2, 6, 5)
    assert nn.Conv1d(1, 2, 3, bias=False)(Tensor.ones(1, 1, 6)).shape == (1, 2, 4)
    assert nn.ConvTranspose1d(1, 2, 3, stride=2)(Tensor.ones(1, 1, 4)).shape == (1, 2, 9)
    with pytest.raises(ArgumentError, match="same"):
        nn.Conv2d(1, 1, 3, stride=2, padding="same")


@pytest.mark.parametrize("shape", [(6, 3), (4, 3, 5), (2, 3, 4, 5)], ids=str)
def test_batchnorm(shape: tuple[int, ...]) -> None:
    layer = nn.BatchNorm(3)
    axes = (0, *range(2, len(shape)))
    mean, var = np.zeros(3), np.ones(3)
    for seed in range(3):
        (x,) = arrays(shape, seed=seed)
        x = x.astype(np.float32) * 2 + 1
        with Tensor.train():
            out = layer(Tensor(x))
        m, v = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
        np.testing.assert_allclose(out.numpy(), (x - m) / np.sqrt(v + 1e-5), rtol=1e-3, atol=1e-4)
        mean = 0.9 * mean + 0.1 * m.ravel()
        var = 0.9 * var + 0.1 * x.var(axes, ddof=1)
        np.testing.assert_allclose(layer.running_mean.numpy(), mean, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(layer.running_var.numpy(), var, rtol=1e-4, atol=1e-5)
    assert layer.num_batches_tracked.item() == 3
    by = (slice(None), *[None] * (len(shape) - 2))
    expected = (x - mean[by]) / np.sqrt(var[by] + 1e-5)
    np.testing.assert_allclose(layer(Tensor(x)).numpy(), expected, rtol=1e-3, atol=1e-4)
    assert layer.num_batches_tracked.item() == 3


def test_batchnorm_derivatives() -> None:
    layer = nn.BatchNorm(2, track_running_stats=False, affine=False)
    check_gradient(lambda x: layer(x), *arrays((3, 2, 2)), order=2, tolerance=1e-5)
    with pytest.raises(ShapeError, match="channels"):
        layer(Tensor.ones(2, 3))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_batchnorm_made_half_by_replace(dtype) -> None:
    layer = nn.BatchNorm(3)
    for t in (layer.weight, layer.bias, layer.running_mean, layer.running_var):
        t.replace(t.cast(dtype))
    x = Tensor.randn(8, 3, 4).cast(dtype)
    with Tensor.train():
        out = layer(x)
    assert str(out.dtype) == str(x.dtype) == str(layer.running_var.dtype)
    assert abs(layer.running_var.float().numpy() - 1).max() < 0.2
    assert abs(out.float().numpy().mean((0, 2))).max() < 0.02


def test_group_instance_and_layer_norms() -> None:
    (x,) = arrays((2, 4, 3, 3))
    x = x.astype(np.float32)

    def standard(a: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
        return (a - a.mean(axes, keepdims=True)) / np.sqrt(a.var(axes, keepdims=True) + 1e-5)

    grouped = standard(x.reshape(2, 2, 2, 3, 3), (2, 3, 4)).reshape(x.shape)
    for layer, expected in ((nn.GroupNorm(2, 4), grouped), (nn.InstanceNorm(4), standard(x, (2, 3))),
                            (nn.LayerNorm((3, 3)), standard(x, (2, 3))), (nn.LayerNorm2d(4), standard(x, (1,)))):
        np.testing.assert_allclose(layer(Tensor(x)).numpy(), expected, rtol=1e-3, atol=1e-4)
    with pytest.raises(ShapeError, match="normalized shape"):
        nn.LayerNorm(5)(Tensor(x))


def test_lstm_cell() -> None:
    x, h, c = arrays((2, 3), (2, 4), (2, 4))
    cell = nn.LSTMCell(3, 4)
    assert cell.bias_ih is not None and cell.bias_hh is not None
    gates = x @ cell.weight_ih.numpy().T + cell.bias_ih.numpy() + h @ cell.weight_hh.numpy().T + cell.bias_hh.numpy()
    i, f, g, o = np.split(gates, 4, 1)

    def sigmoid(v: np.ndarray) -> np.ndarray:
        return 1 / (1 + np.exp(-v))

    new = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    got_h, got_c = cell(Tensor(x), (Tensor(h), Tensor(c)))
    np.testing.assert_allclose(got_c.numpy(), new, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(got_h.numpy(), sigmoid(o) * np.tanh(new), rtol=1e-4, atol=1e-5)


class Model:
    def __init__(self) -> None:
        self.layers = [nn.Linear(2, 3), Tensor.relu, nn.BatchNorm(3)]
        self.heads = {"a": nn.Linear(3, 1, bias=False)}
        self.owner = self
        self.pair = (Tensor([1.0]), "text")


def test_state_dict() -> None:
    model = Model()
    found = nn.state.get_state_dict(model)
    assert sorted(found) == ["heads.a.weight", "layers.0.bias", "layers.0.weight", "layers.2.bias",
                             "layers.2.num_batches_tracked", "layers.2.running_mean", "layers.2.running_var",
                             "layers.2.weight", "pair.0"]
    assert nn.state.get_parameters([model, model.layers[0]])[0] is found["layers.0.weight"]
    assert len(nn.state.get_parameters([model, model.layers[0]])) == len(found)
    other = Model()
    assert nn.state.load_state_dict(other, found) == []
    for name, t in nn.state.get_state_dict(other).items():
        np.testing.assert_array_equal(t.numpy(), found[name].numpy())


def test_load_state_dict_errors() -> None:
    layer = nn.Linear(2, 3)
    before = layer.weight.numpy()
    with pytest.raises(ArgumentError, match="missing bias; unexpected extra"):
        nn.state.load_state_dict(layer, {"weight": before, "extra": before})
    with pytest.raises(ShapeError, match=r"bias: \(4,\) into \(3,\)"):
        nn.state.load_state_dict(layer, {"weight": before + 1, "bias": np.zeros(4)})
    np.testing.assert_array_equal(layer.weight.numpy(), before)
    assert nn.state.load_state_dict(layer, {"weight": before + 1}, strict=False) == ["bias"]
    np.testing.assert_array_equal(layer.weight.numpy(), before + 1)
    assert layer.weight.dtype is dtypes.float32


def test_safetensors(tmp_path: Path) -> None:
    file = tmp_path / "x.safetensors"
    tensors = {str(d): Tensor([[0, 1, 1]], dtype=d) for d in dtypes.all}
    tensors["empty"] = Tensor(np.zeros((0, 2), np.float32))
    nn.state.safe_save(tensors, file)
    back = nn.state.safe_load(file)
    assert back.keys() == tensors.keys()
    for name, t in tensors.items():
        assert back[name].dtype is t.dtype and back[name].shape == t.shape
        np.testing.assert_array_equal(back[name].numpy(), t.numpy())
    assert [p.name for p in tmp_path.iterdir()] == ["x.safetensors"]
    whole = file.read_bytes()
    for broken in (whole[:-3], whole[:5], b"text" * 9, whole[:8] + b"[]" + whole[10:]):
        file.write_bytes(broken)
        with pytest.raises(FileFormatError, match="no safetensors file"):
            nn.state.safe_load(file)
    header = b'{"x":{"dtype":"F32","shape":[0,18446744073709551615],"data_offsets":[0,0]}}'
    file.write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(FileFormatError, match=r"'x' of shape \(0, 18446744073709551615\)"):
        nn.state.safe_load(file)


def test_safetensors_as_its_own_package_writes_them(tmp_path: Path) -> None:
    package = importlib.import_module("safetensors.numpy")
    values = {"a": np.arange(6, dtype=np.int16).reshape(2, 3), "b": np.array(2.5)}
    package.save_file(values, tmp_path / "theirs")
    nn.state.safe_save({k: Tensor(v) for k, v in values.items()}, tmp_path / "ours", {"made": "by us"})
    for back in (package.load_file(tmp_path / "ours"), nn.state.safe_load(tmp_path / "theirs")):
        for name, v in values.items():
            np.testing.assert_array_equal(np.asarray(back[name]), v)


def stored(file: Path, header: dict[str, Any], data: bytes, pad: int = 0) -> Path:
    text = json.dumps(header).encode() + b" " * pad
    file.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return file


def test_safetensors_of_any_size_open_at_once(tmp_path: Path) -> None:
    """A sparse file of 64 GiB, more than the memory: opening it neither reads nor copies."""
    elements = 1 << 34
    file = stored(tmp_path / "x", {"first": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
                                   "large": {"dtype": "F32", "shape": [2, elements // 2],
                                             "data_offsets": [8, 8 + 4 * elements]}}, b"")
    with file.open("r+b") as f:
        f.truncate(file.stat().st_size + 8 + 4 * elements)
    found = nn.state.safe_load(file)
    assert found["large"].shape == (2, elements // 2) and found["first"].tolist() == [0, 0]


@pytest.mark.parametrize("device", ["CPU", "PYTHON"])
def test_safetensors_at_odd_bytes(tmp_path: Path, device: str) -> None:
    values = np.arange(33, dtype=np.float32)
    file = stored(tmp_path / "x", {"b": {"dtype": "BOOL", "shape": [3], "data_offsets": [0, 3]},
                                   "x": {"dtype": "F32", "shape": [33], "data_offsets": [3, 135]}},
                  bytes([0, 1, 7]) + values.tobytes(), pad=1)
    found = nn.state.safe_load(file, device=device)
    assert found["b"].tolist() == [False, True, True] and found["b"].where(5, 6).tolist() == [6, 5, 5]
    np.testing.assert_array_equal((found["x"] * 2).numpy(), values * 2)
    np.testing.assert_array_equal(found["x"].numpy(), values)
    assert (found["x"].square().sum().gradient(found["x"])[0].numpy() == values * 2).all()


def test_safetensors_saved_where_they_were_loaded_from(tmp_path: Path) -> None:
    file = tmp_path / "x"
    nn.state.safe_save({"x": Tensor([1.0, 2.0]), "view": Tensor([[1, 2], [3, 4]]).realize().T}, file)
    found = nn.state.safe_load(file)
    nn.state.safe_save({"x": found["x"] + 1, "view": found["view"]}, file)
    assert found["x"].tolist() == [1.0, 2.0]
    again = nn.state.safe_load(file)
    assert again["x"].tolist() == [2.0, 3.0] and again["view"].tolist() == [[1, 3], [2, 4]]


def test_parameters_are_of_the_default_float() -> None:
    before = dtypes.default_float
    try:
        for kind in (dtypes.float64, dtypes.float16, dtypes.bfloat16):
            dtypes.default_float = kind
            for layer in (nn.BatchNorm(3), nn.LayerNorm(3), nn.GroupNorm(1, 3), nn.RMSNorm(3), nn.Linear(2, 3)):
                found = {t.dtype for t in nn.state.get_state_dict(layer).values() if t.dtype.is_float}
                assert found == {kind}, type(layer).__name__
    finally:
        dtypes.default_float = before


def test_wrong_arguments_of_layers_are_named() -> None:
    with pytest.raises(ArgumentError, match="padding_mode='mirror'"):
        nn.Conv2d(1, 1, 3, padding_mode="mirror")
    with pytest.raises(ArgumentError, match="3 heads for embed_dim=8"):
        nn.MultiheadAttention(8, 3)
    with pytest.raises(ArgumentError, match="padding_idx is 7"):
        nn.Embedding(5, 2, padding_idx=7)
    with pytest.raises(ArgumentError, match="one of the two"):
        nn.Upsample()
    with pytest.raises(ShapeError, match="no steps"):
        nn.LSTM(2, 3)(Tensor.ones(0, 1, 2))
    with pytest.raises(ShapeError, match=r"lengths .* for 2 sequences"):
        nn.GRU(2, 3)(Tensor.ones(4, 2, 2), lengths=[1, 2, 3])
    with pytest.raises(ShapeError, match="attn_mask"):
        nn.MultiheadAttention(4, 2)(*[Tensor.ones(3, 1, 4)] * 3, attn_mask=Tensor.ones(2, 2))
    with pytest.raises(ShapeError, match="size 0 to pool"):
        nn.AdaptiveAvgPool2d(1)(Tensor.ones(1, 2, 0, 3))


def test_names_of_torchs_module_system_say_what_is_here() -> None:
    with pytest.raises(AttributeError, match=r"Try: a class with __call__"):
        nn.Module  # noqa: B018
    with pytest.raises(AttributeError, match=r"did you mean nn\.Conv2d"):
        nn.Conv2D  # noqa: B018


def test_layers_of_a_stack_learn_apart() -> None:
    stack = nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 1, 4, dropout=0.0), 2)
    opt = nn.optim.SGD(nn.state.get_parameters(stack), 0.1)
    x = Tensor.randn(3, 1, 4)
    with Tensor.train():
        (stack(x) * Tensor.randn(3, 1, 4)).sum().backward()
        opt.step()
    first, second = (layer.linear1.weight.numpy() for layer in stack.layers)
    assert (first != second).any()


def test_recurrent_layers_drop_between_layers_in_training_only() -> None:
    layer, x = nn.LSTM(2, 3, num_layers=2, dropout=1.0), Tensor.randn(4, 2, 2)
    plain = layer(x)[0]
    with Tensor.train():
        nothing, other = layer(x)[0].numpy(), layer(x * 2)[0].numpy()
    np.testing.assert_array_equal(nothing, other)  # the second layer sees zeros
    assert (plain.numpy() != nothing).any()
