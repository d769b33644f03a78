"""Damaged ONNX files: a model that builds its graph from inputs, or Tinsmith's error."""
from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.properties import damage
from tests.properties.runner import FEW
from tinsmith import Tensor
from tinsmith.core.errors import TinsmithError
from tinsmith.nn.onnx import OnnxRunner


def whole_file(rng: random.Random) -> bytes:
    """Return a valid file: a small network with constants, attributes, a branch and shape arithmetic."""
    onnx = pytest.importorskip("onnx", reason="pip install 'tinsmith[onnx]'")
    h, values = onnx.helper, np.random.default_rng(rng.getrandbits(32))
    weights = {"w": values.standard_normal((4, 3, 3, 3)).astype(np.float32), "b": np.zeros(4, np.float32),
               "shape": np.array([0, -1]), "m": values.standard_normal((64, 5)).astype(np.float32)}
    nodes = [h.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1], strides=[1, 1]),
             h.make_node(rng.choice(("Relu", "Sigmoid", "Tanh")), ["c"], ["r"]),
             h.make_node(rng.choice(("MaxPool", "AveragePool")), ["r"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
             h.make_node("Reshape", ["p", "shape"], ["f"]), h.make_node("MatMul", ["f", "m"], ["l"]),
             h.make_node("Softmax", ["l"], ["y"], axis=-1)]
    info = onnx.helper.make_tensor_value_info
    graph = h.make_graph(nodes, "net", [info("x", 1, [1, 3, 8, 8])], [info("y", 1, [1, 5])],
                         [onnx.numpy_helper.from_array(v, n) for n, v in weights.items()])
    return bytes(h.make_model(graph, opset_imports=[h.make_opsetid("", 17)]).SerializeToString())


def read(path: Path) -> Any:
    """Load the file and build the graph of its outputs; an unknown name or a wrong shape raises Tinsmith's error."""
    runner = OnnxRunner(path)
    try:
        out = runner({"x": Tensor.zeros(1, 3, 8, 8)})
    except TinsmithError:
        return None
    return [t for t in out.values() if isinstance(t, Tensor) and t.numel() < 100]


def check(seed: int) -> None:
    rng = random.Random(seed)
    text, done = damage.damaged(rng, whole_file(rng))
    damage.check(read, text, done, f"seed {seed}", ".onnx")


@pytest.mark.parametrize("seed", range(FEW))
def test_damaged_files(seed: int) -> None:
    check(seed)
