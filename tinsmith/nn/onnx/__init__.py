"""ONNX models: a file goes in; ``OnnxRunner`` runs it on tensors.

- ``graph.py``: the model, its nodes, and the resolution of operators; ``values.py``: values and types.
- Operators, functions with the standard's names: ``arithmetic.py`` (also quantized), ``shapes.py`` (also
  reductions), ``neural.py``, ``recurrent.py``, ``resampling.py`` (also signals), ``control.py`` (If,
  Loop, Scan, sequences, text) and ``training.py`` (optimizers).
"""
from tinsmith.core.suggestions import unknown
from tinsmith.nn.onnx.graph import OPERATORS, OnnxRunner

__all__ = ["OPERATORS", "OnnxRunner"]


def __getattr__(name: str) -> object:
    raise unknown("nn.onnx", name, __all__)
