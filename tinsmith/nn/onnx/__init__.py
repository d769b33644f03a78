"""ONNX models: a file goes in; ``OnnxRunner`` runs it on tensors.

- ``runner.py``: the model; ``graph.py``: its nodes, and the resolution of operators; ``values.py``: values and types.
- Operators, functions with the standard's names: ``arithmetic.py``, ``reductions.py``, ``shapes.py``, ``neural.py``,
  ``recurrent.py``, ``quantized.py``, ``resampling.py``, ``signals.py``, ``text.py``, ``control.py`` (If, Loop, Scan,
  sequences) and ``training.py`` (optimizers).
"""
from tinsmith.core.suggestions import unknown
from tinsmith.nn.onnx.graph import OPERATORS, OnnxRunner

__all__ = ["OPERATORS", "OnnxRunner"]


def __getattr__(name: str) -> object:
    raise unknown("nn.onnx", name, __all__)
