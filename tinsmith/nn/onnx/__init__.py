"""Models of ONNX's: ``OnnxRunner`` runs them; a file per family of operators, by the standard's names."""
from tinsmith.core.names import unknown
from tinsmith.nn.onnx.graph import OPERATORS
from tinsmith.nn.onnx.runner import OnnxRunner

__all__ = ["OPERATORS", "OnnxRunner"]


def __getattr__(name: str) -> object:
    raise unknown("nn.onnx", name, __all__)
