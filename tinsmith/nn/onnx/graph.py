"""ONNX models: the runner, graphs as sequences of steps, and the resolution of operators.

An operator is a function in ``OPERATORS``; else the model's function of that name; else the standard's function body
(a definition by other operators), which the package ``onnx`` provides.
"""
from __future__ import annotations

import importlib
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import numpy as np

from tinsmith.core.errors import ArgumentError, FileFormatError
from tinsmith.core.object_lifetime import WeakTable
from tinsmith.nn.io.archives import Source, as_bytes
from tinsmith.nn.onnx import arithmetic, control, neural, recurrent, resampling, shapes, training
from tinsmith.nn.onnx.values import DTYPES, NUMBER_OF, STRING, Declared, constant, folded, fresh, kept, noted, type_of
from tinsmith.tensor.tensor import Tensor

MODULES: Final[tuple[ModuleType, ...]] = (
    arithmetic, shapes, neural, recurrent, resampling, control)
PREVIEW: Final = "ai.onnx.preview.training"
LEARNING: Final = ("LabelEncoder", "ArrayFeatureExtractor", "Binarizer")  # of ai.onnx.ml
OPERATORS: Final[dict[tuple[str, str], Callable[..., Any]]] = {
    **{("", name): f for name, f in arithmetic.SIMPLE.items()},
    **{("", name): f for name, f in shapes.REDUCERS.items()},
    **{("", name): f for module in MODULES for name, f in vars(module).items()
       if name[0].isupper() and inspect.isfunction(f) and name not in LEARNING},
    **{("ai.onnx.ml", name): vars(control)[name] for name in LEARNING},
    **{(PREVIEW, name): f for name, f in vars(training).items() if name[0].isupper() and inspect.isfunction(f)}}
_SPECIAL: Final = ("opset", "outputs", "scope")  # what a function may ask of the step beside inputs and attributes


def package() -> Any:
    """Return the package ``onnx``.

    Raises:
        ArgumentError: if it is not installed.
    """
    try:
        return importlib.import_module("onnx")
    except ImportError:
        raise ArgumentError("OnnxRunner", "the package onnx is not installed", "pip install 'tinsmith[onnx]'") from None


def value_of(proto: Any, folder: str = "") -> Any:
    """A TensorProto as a tensor, or as an array of text.

    Raises:
        FileFormatError: if its data contradict its shape or type.
    """
    if proto.data_type != STRING and proto.data_type not in DTYPES:
        raise FileFormatError("OnnxRunner", f"{proto.name!r} is of element type {proto.data_type}", "numbers or text")
    _check_sizes(proto.name, proto.dims)
    try:
        array = package().numpy_helper.to_array(proto, folder)
        if proto.data_type == STRING:
            return array.astype(object)
        dtype = DTYPES[proto.data_type]
        return noted(constant(array if array.dtype == dtype.numpy else array.astype(dtype.numpy)), proto.data_type)
    except Exception as error:  # data of a damaged model fail in ways of their own
        raise FileFormatError("OnnxRunner", f"the data of {proto.name!r}: {error!r:.200}", "a complete file") from None


def _check_sizes(name: str, dims: Sequence[int]) -> None:
    """Refuse a shape that no tensor has; NumPy would take one negative size for the rest of the elements."""
    if any(n < 0 for n in dims):
        raise FileFormatError("OnnxRunner", f"{name!r} has the shape {tuple(dims)}: a negative size",
                              "a complete file, with sizes of at least 0")


class Model:
    """Data common to all graphs of a file: operator set versions, functions, folder of external data."""

    def __init__(self, opsets: Mapping[str, int], functions: Sequence[Any] = (), folder: str = "") -> None:
        self.opsets = {("" if domain == "ai.onnx" else domain): version for domain, version in opsets.items()}
        self.functions = {(f.domain, f.name): f for f in functions}
        self.folder = folder


class OnnxNode:
    """One node: a function, names of its inputs and outputs, and its attributes."""

    def __init__(self, node: Any, model: Model, given: Mapping[str, Any]) -> None:
        self.proto, self.model = node, model
        self.domain = "" if node.domain == "ai.onnx" else node.domain
        self.name, self.inputs, self.outputs = node.op_type, list(node.input), list(node.output)
        self.attributes: dict[str, Any] = {}
        self.protos: dict[str, Any] = {}
        for attribute in node.attribute:
            known = given.get(attribute.ref_attr_name) if attribute.ref_attr_name else attribute
            if known is not None:
                self.protos[attribute.name] = known
                self.attributes[attribute.name] = kept(attribute_of(known, model))
        if any(a.ref_attr_name for a in node.attribute):  # the node as it is with the given attributes
            self.proto = package().NodeProto()
            self.proto.CopyFrom(node)
            del self.proto.attribute[:]
            for name, known in self.protos.items():
                self.proto.attribute.add().CopyFrom(known)
                self.proto.attribute[-1].name = name
        self.opset = model.opsets.get(self.domain, 1)
        self.function = None if (self.domain, self.name) in model.functions else OPERATORS.get((self.domain, self.name))
        self.expanded: dict[Any, OnnxGraph] = {}
        if self.function is not None:
            self._prepare(self.function)
        elif (self.domain, self.name) not in model.functions and not _schema(self).has_function \
                and not _schema(self).has_context_dependent_function:
            raise _unknown(self)

    def _prepare(self, function: Callable[..., Any]) -> None:
        """Bind the special arguments that the function takes, and check that it takes the node's attributes."""
        parameters = inspect.signature(function).parameters
        takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        wrong = [n for n in self.attributes if n not in parameters and not takes_any]
        if wrong and not (self.name == "Cast" or wrong == ["consumed_inputs"]):
            raise FileFormatError("OnnxRunner", f"{self.name} has no attribute {', '.join(wrong)}", "another opset")
        self.attributes = {n: v for n, v in self.attributes.items() if n in parameters or takes_any}
        self.more = {"opset": self.opset, "outputs": len([n for n in self.outputs if n])}
        self.more = {n: v for n, v in self.more.items() if n in parameters}
        self.scoped = "scope" in parameters

    def run(self, scope: Mapping[str, Any]) -> tuple[Any, ...]:
        unknown = [name for name in self.inputs if name and name not in scope]
        if unknown:
            raise FileFormatError("OnnxRunner", f"{self.name} reads {unknown[0]!r:.60}, which nothing before it gives",
                                  "a model whose nodes are in order")
        values = [scope[name] if name else None for name in self.inputs]
        if self.function is None:
            return tuple(self._body(values).run(values, scope))
        while values and values[-1] is None:
            values.pop()
        more = {**self.more, "scope": scope} if self.scoped else self.more
        out = self.function(*values, **{n: fresh(v) for n, v in self.attributes.items()}, **more)
        return out if isinstance(out, tuple) else (out,)

    def _body(self, values: list[Any]) -> OnnxGraph:
        """Return the graph that defines this operator; it can depend on the types of its inputs."""
        key = tuple(_type_number(v) for v in values)
        if key not in self.expanded:
            self.expanded[key] = self._expand(values)
        return self.expanded[key]

    def _expand(self, values: list[Any]) -> OnnxGraph:
        function = self.model.functions.get((self.domain, self.name))
        given = dict(self.protos)
        if function is None:
            schema = _schema(self)
            if schema.has_context_dependent_function:
                types = [_type_proto(v) for v in values]
                text = schema.get_context_dependent_function_with_opset_version(
                    _newest(schema.context_dependent_function_opset_versions, self.opset),
                    self.proto.SerializeToString(), types)
            else:
                text = schema.get_function_with_opset_version(
                    _newest(schema.function_opset_versions, self.opset))
            function = package().FunctionProto.FromString(text) if isinstance(text, bytes) else text
            for name, attribute in schema.attributes.items():
                if name not in given and attribute.default_value.name:
                    given[name] = attribute.default_value
        for attribute in function.attribute_proto:
            given.setdefault(attribute.name, attribute)
        opsets = {o.domain: o.version for o in function.opset_import} or self.model.opsets
        inner = Model(opsets, list(self.model.functions.values()), self.model.folder)
        return OnnxGraph(function.node, list(function.input), list(function.output), {}, inner, given)


def _newest(versions: Sequence[int], opset: int) -> int:
    """Return the newest of ``versions`` of an operator that is not newer than ``opset``; else the oldest."""
    return max((v for v in versions if v <= opset), default=min(versions))


def _schema(step: OnnxNode) -> Any:
    try:
        return package().defs.get_schema(step.name, step.opset, step.domain)
    except Exception:
        raise _unknown(step) from None


def _unknown(step: OnnxNode) -> FileFormatError:
    where = f" of {step.domain!r}" if step.domain else ""
    return FileFormatError("OnnxRunner", f"the operator {step.name!r:.60}{where} in opset {step.opset} is not built",
                           "a function of that name in the model, made of others")


def _type_number(value: Any) -> Any:
    if isinstance(value, Tensor):
        return type_of(value), value.ndim
    return type(value).__name__


def _type_proto(value: Any) -> bytes:
    make = package().helper
    if isinstance(value, list):
        element = make.make_tensor_type_proto(NUMBER_OF[value[0].dtype] if value else 1, None)
        return bytes(make.make_sequence_type_proto(element).SerializeToString())
    if not isinstance(value, Tensor):
        return bytes(make.make_tensor_type_proto(1, None).SerializeToString()) if value is not None else b""
    return bytes(make.make_tensor_type_proto(type_of(value), value.shape).SerializeToString())


def attribute_of(proto: Any, model: Model) -> Any:
    """Return an attribute's value: numbers, text, tensors, graphs, and lists of them."""
    kinds = package().AttributeProto
    if proto.type == kinds.GRAPH:
        return OnnxGraph.of(proto.g, model)
    if proto.type == kinds.TENSOR:
        return value_of(proto.t, model.folder)
    if proto.type == kinds.TYPE_PROTO:
        return proto.tp
    if proto.type == kinds.SPARSE_TENSOR:
        return _dense(proto.sparse_tensor, model)
    value = package().helper.get_attribute_value(proto)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, (int, float)):
        return value
    return [v.decode("utf-8", "replace") if isinstance(v, bytes) else v for v in value]


def _dense(proto: Any, model: Model) -> Tensor:
    values, places = value_of(proto.values, model.folder).numpy(), value_of(proto.indices, model.folder).numpy()
    shape, name = tuple(proto.dims), proto.values.name
    _check_sizes(name, shape)
    if np.prod([float(n) for n in shape]) > 1 << 28:
        raise FileFormatError("OnnxRunner", f"a sparse constant of shape {shape}", "a smaller one")
    out = np.zeros(shape, values.dtype)
    sizes = (out.size,) if places.ndim == 1 else shape
    places = places.reshape(-1, 1) if places.ndim == 1 else places
    if places.shape != (values.size, len(sizes)) or ((places < 0) | (places >= sizes)).any():
        raise FileFormatError("OnnxRunner", f"the sparse constant {name!r} of shape {shape} has places outside of it",
                              "a complete file")
    (out.reshape(-1) if len(sizes) == 1 else out)[tuple(places.T)] = values.reshape(-1)
    return constant(out)


class OnnxGraph:
    """Steps in order, constants by name, the names of inputs and outputs, and what a file declares of its outputs."""

    def __init__(self, nodes: Sequence[Any], inputs: list[str], outputs: list[str], constants: dict[str, Any],
                 model: Model, given: Mapping[str, Any] | None = None, declared: Sequence[Declared] = ()) -> None:
        self.inputs, self.outputs, self.declared = inputs, outputs, declared
        self.constants = {name: kept(value) for name, value in constants.items()}
        self.steps = [OnnxNode(node, model, given or {}) for node in nodes]

    @classmethod
    def of(cls, proto: Any, model: Model) -> OnnxGraph:
        constants = {t.name: value_of(t, model.folder) for t in proto.initializer}
        constants |= {t.values.name: _dense(t, model) for t in proto.sparse_initializer}
        inputs = [i.name for i in proto.input if i.name not in constants]
        declared = [_declared(o.type) for o in proto.output]
        return cls(proto.node, inputs, [o.name for o in proto.output], constants, model, declared=declared)

    def run(self, values: Sequence[Any], outside: Mapping[str, Any]) -> list[Any]:
        """Return the outputs; names of graphs around this one are in ``outside``."""
        own = {name: fresh(value) for name, value in self.constants.items()}
        scope = {**outside, **own, **dict(zip(self.inputs, values))}
        for name in self.inputs[len(values) :]:
            scope[name] = None
        for step in self.steps:
            for name, value in zip(step.outputs, step.run(scope)):
                scope[name] = folded(value) if isinstance(value, Tensor) else value
        return [scope.get(name) for name in self.outputs]  # a definition may leave optional ones out


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
        self.graph_inputs = {i.name: _declared(i.type) for i in model.graph.input if i.name in graph.inputs}
        self.graph_outputs = list(graph.outputs)

    def __call__(self, inputs: Mapping[str, Any], debug: int = 0) -> dict[str, Any]:
        """Return the outputs by name: tensors, lists of tensors for sequences, arrays of text.

        Args:
            inputs: tensors or arrays by name.
            debug: accepted as in tinygrad; use ``DEBUG`` to print kernels.

        Raises:
            ArgumentError: for unknown input names, or values of another rank or dtype.
        """
        if inputs.keys() != self.graph_inputs.keys():
            raise ArgumentError("OnnxRunner", f"the inputs are named {', '.join(inputs) or 'by nothing'}",
                                f"{', '.join(self.graph_inputs)}")
        values = [_given(name, inputs[name], wanted) for name, wanted in self.graph_inputs.items()]
        return dict(zip(self.graph_outputs, _graphs[self].run(values, {})))


def _declared(kind: Any) -> Declared:
    if not kind.HasField("tensor_type"):
        return Declared((), None)
    shape = tuple(d.dim_value if d.HasField("dim_value") else d.dim_param for d in kind.tensor_type.shape.dim)
    return Declared(shape, DTYPES.get(kind.tensor_type.elem_type), kind.tensor_type.elem_type,
                 kind.tensor_type.HasField("shape"))


def _given(name: str, value: Any, wanted: Declared) -> Any:
    if value is None or isinstance(value, list):
        return None if value is None else [v if isinstance(v, Tensor) else Tensor(np.asarray(v)) for v in value]
    if not isinstance(value, Tensor):
        array = np.asarray(value)
        if array.dtype.kind in "OSUT":
            return array.astype(object)
        value = Tensor(array if wanted.dtype is None else array.astype(wanted.dtype.numpy), requires_grad=False)
    if wanted.dtype is not None and value.dtype is not wanted.dtype:
        raise ArgumentError("OnnxRunner", f"the input {name!r} is {value.dtype!r}", f"{wanted.dtype!r}")
    if wanted.ranked and value.ndim != len(wanted.shape):
        declared = ", ".join(str(d) or "?" for d in wanted.shape)
        raise ArgumentError("OnnxRunner", f"the input {name!r} has the shape {value.shape}",
                            f"{len(wanted.shape)} axes: ({declared})")
    return noted(value, wanted.number)
