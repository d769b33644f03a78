"""Models as text: the ``repr`` of layers as in PyTorch, and ``summary`` with shapes and parameters."""
from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping
from types import FrameType, ModuleType
from typing import Any, Final, NamedTuple

from tinsmith.core.errors import ArgumentError
from tinsmith.tensor.base import TensorBase
from tinsmith.tensor.tensor import Tensor

_LEAVES: Final = (str, bytes, int, float, complex, TensorBase, type, ModuleType)


class Layer:
    """The base of the layers of ``nn``, which gives them a ``repr``. A layer of your own needs no base.

    >>> from tinsmith import nn
    >>> nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU())
    Sequential(
      (0): Conv2d(1, 4, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1))
      (1): ReLU()
    )
    """

    def extra_repr(self) -> str:
        """Return the arguments that ``repr`` shows between the parentheses."""
        return ""

    def __repr__(self) -> str:
        return describe(self)


def arguments(**values: Any) -> str:
    """Return ``name=value`` pairs as an argument list."""
    return ", ".join(f"{name}={value!r}" for name, value in values.items())


def per_axis(value: Any, axes: int) -> tuple[Any, ...]:
    """Return a window setting (kernel size, stride, …) as a tuple with one value per axis."""
    return tuple(value) if isinstance(value, (tuple, list)) else (value,) * axes


def describe(layer: Any) -> str:
    """Return the class of a layer or model with its arguments, and the layers that it holds, one per line."""
    name = type(layer).__name__
    extra = layer.extra_repr() if isinstance(layer, Layer) else ""
    inner = [f"({path}): {describe(part) if _is_layer(part) else _function_name(part)}"
             for path, part in _parts(layer, within=False)]
    if not inner:
        return f"{name}({extra})"
    lines = [*([extra] if extra else []), *inner]
    return f"{name}(\n" + "\n".join("  " + line.replace("\n", "\n  ") for line in lines) + "\n)"


def _function_name(function: Any) -> str:
    return f"{getattr(function, '__name__', type(function).__name__)}()"


def _is_layer(value: Any) -> bool:
    """Return True if a value is a callable object that may hold tensors, not a function."""
    return callable(value) and hasattr(value, "__dict__") and not hasattr(value, "__code__") and not isinstance(
        value, _LEAVES)


def _parts(layer: Any, within: bool) -> Iterator[tuple[str, Any]]:
    """Yield (path, layer or function) for the attributes, list items and dict values of a layer, in order.

    Args:
        within: also yield nested layers, each after its parent.
    """
    seen = {id(layer)}

    def walk(value: Any, path: str, listed: bool) -> Iterator[tuple[str, Any]]:
        for name, child in _children(value):
            inner = f"{path}.{name}" if path else str(name)
            if id(child) in seen or isinstance(child, _LEAVES) or child is None:
                continue
            if _is_layer(child):
                seen.add(id(child))
                yield inner, child
                if within:
                    yield from walk(child, inner, False)
            elif isinstance(child, (list, tuple, Mapping)) and not hasattr(child, "_fields"):
                seen.add(id(child))
                yield from walk(child, inner, True)
            elif callable(child) and isinstance(value, (list, tuple, Mapping)):
                yield inner, child

    yield from walk(layer, "", False)


def _children(value: Any) -> list[tuple[Any, Any]]:
    if isinstance(value, Mapping):
        return list(value.items())
    listed = list(enumerate(value)) if isinstance(value, (list, tuple)) else []
    return [*listed, *(vars(value).items() if hasattr(value, "__dict__") else ())]


class SummaryRow(NamedTuple):
    """One layer of a summary.

    Attributes:
        path: where the model holds it, as in its state: ``encoder.0``; empty for the model.
        layer: its class.
        shape: of its first result: a shape, or None if it was not called or returned no tensor.
        parameters: elements of the tensors that it holds itself, without running statistics.
    """

    path: str
    layer: str
    shape: tuple[Any, ...] | None
    parameters: int


def _indented(row: SummaryRow, paths: set[str]) -> str:
    """Return the name of a row below the row of the layer that holds it."""
    words = row.path.split(".") if row.path else []
    holders = [n for n in range(len(words)) if ".".join(words[:n]) in paths]
    name = ".".join(words[holders[-1]:]) if holders else ""
    return f"{'  ' * len(holders)}{name} {row.layer}" if name else row.layer


class Summary(NamedTuple):
    """The layers of a model as a table.

    Attributes:
        rows: the model and its layers, each after the one that holds it.
        parameters: elements of all tensors that are trained.
        buffers: elements of the others, such as running statistics.
        nbytes: memory of both.
    """

    rows: tuple[SummaryRow, ...]
    parameters: int
    buffers: int
    nbytes: int

    def __repr__(self) -> str:
        head = ("layer", "output", "parameters")
        body = [(_indented(r, {other.path for other in self.rows}), "–" if r.shape is None else str(r.shape),
                 f"{r.parameters:,}" if r.parameters else "–") for r in self.rows]
        widths = [max(len(line[n]) for line in [head, *body]) for n in range(3)]
        table = [f"{a:<{widths[0]}}  {b:<{widths[1]}}  {c:>{widths[2]}}" for a, b, c in [head, *body]]
        rule = "─" * len(table[0])
        total = f"{self.parameters:,} parameters, {self.buffers:,} in buffers, {self.nbytes / 1e6:,.2f} MB"
        return "\n".join([table[0], rule, *table[1:], rule, total])


def summary(model: Callable[..., Any], *inputs: Any) -> Summary:
    """Return the layers of a model with output shapes and numbers of parameters.

    The model is called once in evaluation mode, without gradients; nothing is computed. Without inputs, shapes are
    left out.

    >>> from tinsmith import nn
    >>> nn.summary(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), Tensor.ones(3, 4))
    layer       output  parameters
    ──────────────────────────────
    Sequential  (3, 2)           –
      0 Linear  (3, 8)          40
      1 ReLU    (3, 8)           –
      2 Linear  (3, 2)          18
    ──────────────────────────────
    58 parameters, 0 in buffers, 0.00 MB

    Raises:
        ArgumentError: if the model cannot be called.
    """
    if not callable(model):
        raise ArgumentError("summary", f"a model is called with its inputs, not {type(model).__name__}",
                            "an object with __call__")
    layers = [("", model), *_parts(model, within=True)]
    shapes = _shapes(model, inputs, {id(layer) for _, layer in layers}) if inputs else {}
    rows, counted = [], dict[int, TensorBase]()
    for path, layer in layers:
        name = type(layer).__name__ if _is_layer(layer) else getattr(layer, "__name__", type(layer).__name__)
        own = {id(t): t for t in _tensors(layer)} if _is_layer(layer) else {}
        new = [t for key, t in own.items() if key not in counted]
        counted.update(own)
        rows.append(SummaryRow(path, name, shapes.get(id(layer)),
                               sum(_size(t) for t in new if t.requires_grad is not False)))
    trained = [t for t in counted.values() if t.requires_grad is not False]
    others = [t for t in counted.values() if t.requires_grad is False]
    return Summary(tuple(rows), sum(map(_size, trained)), sum(map(_size, others)),
                   sum(_size(t) * t.dtype.itemsize for t in counted.values()))


def _size(t: TensorBase) -> int:
    return math.prod(t.shape)


def _tensors(value: Any) -> Iterator[TensorBase]:
    """Yield the tensors in the attributes, lists and dicts of a layer, without those of layers that it holds."""
    for _, child in _children(value):
        if isinstance(child, TensorBase):
            yield child
        elif isinstance(child, (list, tuple, Mapping)):
            yield from _tensors(child)


def _shapes(model: Callable[..., Any], inputs: tuple[Any, ...], layers: set[int]) -> dict[int, tuple[Any, ...]]:
    """Call a model and return the shape of the first result of each layer, by the layer's id."""
    found: dict[int, tuple[Any, ...]] = {}
    before = sys.getprofile()

    def note(frame: FrameType, event: str, value: Any) -> None:
        if event != "return" or frame.f_code.co_name != "__call__":
            return
        layer = frame.f_locals.get(frame.f_code.co_varnames[0]) if frame.f_code.co_argcount else None
        first = value[0] if isinstance(value, (tuple, list)) and value else value
        if id(layer) in layers and isinstance(first, TensorBase):
            found.setdefault(id(layer), first.shape)

    with Tensor.train(False), Tensor.no_grad():
        sys.setprofile(note)
        try:
            model(*inputs)
        finally:
            sys.setprofile(before)
    return found
