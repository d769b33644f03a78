"""ONNX models: ``OnnxRunner`` runs them. One file per family of operators, functions with the standard's names."""
from tinsmith.core.suggestions import unknown
from tinsmith.nn.onnx.graph import OPERATORS
from tinsmith.nn.onnx.runner import OnnxRunner

__all__ = ["OPERATORS", "OnnxRunner"]


def __getattr__(name: str) -> object:
    raise unknown("nn.onnx", name, __all__)
