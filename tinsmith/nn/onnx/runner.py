"""A model of ONNX's, read from a file and run on tensors."""
from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tinsmith.core.dtypes import DType
from tinsmith.core.errors import ArgumentError, FileFormatError
from tinsmith.core.object_lifetime import WeakTable
from tinsmith.nn.io.archives import Source, as_bytes
from tinsmith.nn.onnx.graph import Model, OnnxGraph, package
from tinsmith.nn.onnx.values import DTYPES, noted
from tinsmith.tensor.tensor import Tensor


class Input(NamedTuple):
    """The declaration of a model input: a size or symbolic name per axis, and the dtype (None for text)."""

    shape: tuple[int | str, ...]
    dtype: DType | None
    number: int = 0  # ONNX number of the element type


_graphs: WeakTable[OnnxRunner, OnnxGraph] = WeakTable()  # graphs never change: no guards needed


class OnnxRunner:
    """An ONNX model as a function of its inputs.

    Calling it builds one lazy graph, so a model whose shapes are known can be captured with ``TinyJit``. ``If``,
    ``Loop``, sizes that depend on values (``NonZero``, ``NonMaxSuppression``, ``Unique``) are read on the host.

    Args:
        model: a path, a tensor with the file's bytes, or a ``ModelProto``.

    Raises:
        ArgumentError: if the package ``onnx`` is not installed.
        FileFormatError: if the file is none, or has operators that are not built and have no definition.

    >>> import onnx.helper as h
    >>> x, y = (h.make_tensor_value_info(name, 1, [None]) for name in "xy")
    >>> graph = h.make_graph([h.make_node("Relu", ["x"], ["y"])], "example", [x], [y])
    >>> OnnxRunner(h.make_model(graph))({"x": Tensor([-1., 2.])})["y"].tolist()
    [0.0, 2.0]
    """

    def __init__(self, model: Source | Any) -> None:
        onnx, folder = package(), ""
        if isinstance(model, (str, os.PathLike, Tensor)):
            folder = "" if isinstance(model, Tensor) else str(Path(model).parent)
            text = as_bytes("OnnxRunner", model).numpy().tobytes()
            try:
                model = onnx.ModelProto.FromString(text)
            except Exception as error:  # protobuf's own error, which no module of it promises
                raise FileFormatError("OnnxRunner", f"no ONNX model: {error!r:.200}", "a complete file") from None
        if not model.HasField("graph"):
            raise FileFormatError("OnnxRunner", "the file holds no graph", "a model of ONNX")
        opsets = {o.domain: o.version for o in model.opset_import} or {"": 1}
        shared = Model(opsets, model.functions, folder)
        try:
            graph = _graphs[self] = OnnxGraph.of(model.graph, shared)
        except (ValueError, TypeError, KeyError, RecursionError, UnicodeDecodeError) as error:
            if isinstance(error, FileFormatError):
                raise
            raise FileFormatError("OnnxRunner", f"a damaged model: {error!r:.200}", "a complete file") from None
        self.graph_inputs = {i.name: _input(i.type) for i in model.graph.input if i.name in graph.inputs}
        self.graph_outputs = list(graph.outputs)

    def __call__(self, inputs: Mapping[str, Any], debug: int = 0) -> dict[str, Any]:
        """The outputs by name: tensors, lists of tensors for sequences, arrays of text.

        Args:
            inputs: tensors or arrays by name.
            debug: as in tinygrad's; ``DEBUG`` says what runs.

        Raises:
            ArgumentError: for names that the model has not, or values of another rank or dtype.
        """
        if inputs.keys() != self.graph_inputs.keys():
            raise ArgumentError("OnnxRunner", f"the inputs are named {', '.join(inputs) or 'by nothing'}",
                                f"{', '.join(self.graph_inputs)}")
        values = [_given(name, inputs[name], wanted) for name, wanted in self.graph_inputs.items()]
        return dict(zip(self.graph_outputs, _graphs[self].run(values, {})))


def _input(kind: Any) -> Input:
    if not kind.HasField("tensor_type"):
        return Input((), None)
    shape = tuple(d.dim_value if d.HasField("dim_value") else d.dim_param for d in kind.tensor_type.shape.dim)
    return Input(shape, DTYPES.get(kind.tensor_type.elem_type), kind.tensor_type.elem_type)


def _given(name: str, value: Any, wanted: Input) -> Any:
    if value is None or isinstance(value, list):
        return None if value is None else [v if isinstance(v, Tensor) else Tensor(np.asarray(v)) for v in value]
    if not isinstance(value, Tensor):
        array = np.asarray(value)
        if array.dtype.kind in "OSUT":
            return array.astype(object)
        value = Tensor(array if wanted.dtype is None else array.astype(wanted.dtype.numpy), requires_grad=False)
    if wanted.dtype is not None and value.dtype is not wanted.dtype:
        raise ArgumentError("OnnxRunner", f"the input {name!r} is {value.dtype!r}", f"{wanted.dtype!r}")
    return noted(value, wanted.number)
