"""``repr`` of layers, models and optimizers, and ``nn.summary``."""
from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

from tinsmith import Tensor, nn
from tinsmith.core.errors import ArgumentError

LIKE_PYTORCH = [
    "Linear(in_features=2, out_features=3, bias=True)", "Embedding(4, 5, padding_idx=1)", "Identity()",
    "Flatten(start_dim=1, end_dim=-1)", "Upsample(scale_factor=2.0, mode='nearest')", "Dropout(p=0.1, inplace=False)",
    "Conv2d(1, 4, kernel_size=(3, 3), stride=(1, 1))",
    "Conv2d(2, 4, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1), dilation=(2, 2), groups=2, bias=False)",
    "Conv1d(2, 4, kernel_size=(3,), stride=(1,), padding=(1,), padding_mode='reflect')",
    "ConvTranspose2d(4, 6, kernel_size=(3, 3), stride=(2, 2), output_padding=(1, 1), groups=2)",
    "Conv3d(1, 2, kernel_size=(1, 2, 3), stride=(2, 2, 2))", "GroupNorm(2, 4, eps=1e-05, affine=True, bias=True)",
    "LayerNorm((4, 5), eps=1e-05, elementwise_affine=False, bias=False)",
    "MaxPool2d(kernel_size=2, stride=2, padding=0, dilation=1, ceil_mode=False)",
    "AvgPool2d(kernel_size=3, stride=2, padding=1)", "AdaptiveAvgPool2d(output_size=1)",
    "AdaptiveAvgPool2d(output_size=(2, 3))", "ReLU()", "LeakyReLU(negative_slope=0.2)", "GELU(approximate='none')",
    "Softmax(dim=1)", "Hardtanh(min_val=-1.0, max_val=1.0)", "PReLU(num_parameters=1)", "GRUCell(3, 4)", "MSELoss()",
    "LSTM(3, 4, num_layers=2, batch_first=True, dropout=0.1, bidirectional=True)", "GRU(3, 4, bias=False)"]


@pytest.mark.parametrize("text", LIKE_PYTORCH)
def test_the_repr_of_a_layer_is_the_call_that_makes_it_as_in_pytorch(text: str) -> None:
    layer: Any = eval(text, vars(nn).copy())
    assert repr(layer) == text.replace("'reflect'", "reflect")
    assert repr(copy.deepcopy(layer)) == repr(pickle.loads(pickle.dumps(layer))) == repr(layer)


def test_the_repr_of_a_sequence_shows_its_layers_and_functions() -> None:
    model = nn.Sequential(nn.Linear(1, 2), Tensor.relu, nn.Sequential(nn.BatchNorm(2, affine=False)))
    assert repr(model) == """Sequential(
  (0): Linear(in_features=1, out_features=2, bias=True)
  (1): relu()
  (2): Sequential(
    (0): BatchNorm(2, eps=1e-05, momentum=0.1, affine=False, bias=False, track_running_stats=True)
  )
)"""


def test_the_repr_of_an_optimizer_shows_the_options_of_its_groups() -> None:
    a, b = Tensor([1.0]), Tensor([2.0])
    text = repr(nn.optim.SGD([{"params": [a]}, {"params": [b], "lr": 0.5}], lr=0.1))
    assert text.startswith("SGD (\nParameter Group 0\n    dampening: 0.0\n    lr: 0.1\n")
    assert "Parameter Group 1" in text and "    lr: 0.5\n" in text


class _Model:
    def __init__(self) -> None:
        self.conv, self.norm = nn.Conv2d(1, 3, 3), nn.BatchNorm(3)
        self.head = [nn.Linear(3, 4), Tensor.relu]
        self.tied = self.head[0]

    def __call__(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x)).mean((2, 3)).sequential(self.head)


def test_a_summary_has_shapes_and_counts_each_tensor_once() -> None:
    model = _Model()
    before = model.norm.running_mean.numpy().copy()
    with Tensor.train():
        found = nn.summary(model, Tensor.ones(2, 1, 5, 5))
    assert [(r.path, r.layer, r.shape, r.parameters) for r in found.rows] == [
        ("", "_Model", (2, 4), 0), ("conv", "Conv2d", (2, 3, 3, 3), 30), ("norm", "BatchNorm", (2, 3, 3, 3), 6),
        ("head.0", "Linear", (2, 4), 16), ("head.1", "relu", None, 0)]
    assert (found.parameters, found.buffers) == (52, 7)
    assert found.parameters == sum(t.numel() for t in nn.state.get_parameters(model) if t.requires_grad is not False)
    assert np.array_equal(model.norm.running_mean.numpy(), before)  # evaluation mode: nothing is written
    assert "52 parameters, 7 in buffers" in repr(found)


def test_a_summary_computes_nothing_and_needs_no_inputs() -> None:
    found = nn.summary(nn.Linear(10**5, 10**4), Tensor.empty(10**6, 10**5))
    assert found.rows[0].shape == (10**6, 10**4)
    assert nn.summary(nn.ReLU()).rows[0].shape is None


def test_a_summary_of_no_model_says_so() -> None:
    with pytest.raises(ArgumentError, match="summary"):
        nn.summary(3)  # type: ignore[arg-type]
