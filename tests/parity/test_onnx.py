"""ONNX models against onnxruntime: the networks of ``onnx_models`` with random weights, small unless run by hand."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tinsmith import Tensor, TinyJit
from tinsmith.nn.onnx import OnnxRunner

torch = pytest.importorskip("torch", reason="pip install 'tinsmith[parity]'")
onnxruntime = pytest.importorskip("onnxruntime", reason="pip install 'tinsmith[parity]'")
transformers = pytest.importorskip("transformers", reason="pip install 'tinsmith[parity]'")

from tests.parity.onnx_models import Yolo, exported, resnet50  # noqa: E402


def compare(model: Any, inputs: dict[str, np.ndarray], captured: int = 1, tolerance: float = 1e-4) -> float:
    """Return the largest difference from onnxruntime in the last of several calls, checked against a tolerance relative
    to the largest value."""
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    want = session.run(None, inputs)[0]
    runner = OnnxRunner(model)
    step = TinyJit(lambda **given: runner(given)[runner.graph_outputs[0]].realize())
    for _ in range(captured):
        got = step(**{name: Tensor(array).realize() for name, array in inputs.items()}).numpy()
    assert captured == 1 or len(step.captures) == 1
    difference = float(np.abs(got - want).max())
    assert got.shape == want.shape and difference <= tolerance * max(1.0, float(np.abs(want).max())), difference
    return difference


def image(size: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((1, 3, size, size)).astype(np.float32)


def test_resnet50(width: int = 8, size: int = 64) -> None:
    torch.manual_seed(0)
    model = exported(resnet50(width), (torch.tensor(image(size)),), ["x"])
    assert sum(n.op_type == "Conv" for n in model.graph.node) == 53
    print(compare(model, {"x": image(size)}))


def test_yolo(width: int = 4, size: int = 64) -> None:
    torch.manual_seed(0)
    print(compare(exported(Yolo(width), (torch.tensor(image(size)),), ["x"]), {"x": image(size)}))


def test_bert(layers: int = 2, width: int = 32, words: int = 100) -> None:
    torch.manual_seed(0)
    config = transformers.BertConfig(vocab_size=words, hidden_size=width, num_hidden_layers=layers,
                                     num_attention_heads=width // 16, intermediate_size=4 * width)
    config._attn_implementation = "eager"

    class Scores(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bert = transformers.BertForMaskedLM(config)

        def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.bert(input_ids=ids, attention_mask=mask).logits
            return found

    rng = np.random.default_rng(0)
    inputs = {"ids": rng.integers(0, words, (2, 12)), "mask": np.array([[1] * 12, [1] * 7 + [0] * 5])}
    print(compare(exported(Scores(), tuple(map(torch.tensor, inputs.values())), list(inputs)), inputs, captured=3))
