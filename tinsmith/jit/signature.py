"""What a captured function depends on: two calls with equal signatures run the same programs.

Tensors count by shape, dtype, device and view, and by which of them share a buffer; Python scalars by value; other
objects by identity, with the scalars among their attributes by value. Closure cells and the globals that the function
names are part of it in the same way, one level deep.
"""
from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from typing import Any

from tinsmith.ir import Ops, UOp
from tinsmith.schedule.execute import canonical
from tinsmith.tensor.tensor import Tensor

_SCALARS = (int, float, bool, str, bytes, type(None), complex)
_INERT = (types.ModuleType, types.FunctionType, types.BuiltinFunctionType, type)


def leaves(tree: Any) -> Iterator[Any]:
    """The leaves of nested tuples, lists and dicts, in order."""
    if isinstance(tree, (list, tuple)):
        for item in tree:
            yield from leaves(item)
    elif isinstance(tree, dict):
        for key in tree:
            yield from leaves(tree[key])
    else:
        yield tree


def structure(tree: Any, leaf: Callable[[Any], Any]) -> Any:
    """The same nesting with ``leaf`` applied to every leaf, as a hashable value."""
    if isinstance(tree, (list, tuple)):
        return type(tree).__name__, tuple(structure(item, leaf) for item in tree)
    if isinstance(tree, dict):
        return "dict", tuple((key, structure(value, leaf)) for key, value in tree.items())
    return leaf(tree)


def rebuilt(tree: Any, leaf: Callable[[Any], Any]) -> Any:
    """A copy of the nesting with every leaf replaced."""
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(rebuilt(item, leaf) for item in tree))
    if isinstance(tree, (list, tuple)):
        return type(tree)(rebuilt(item, leaf) for item in tree)
    if isinstance(tree, dict):
        return {key: rebuilt(value, leaf) for key, value in tree.items()}
    return leaf(tree)


def signature(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """A hashable description of everything above; tensors among the arguments must be realized."""
    seen: dict[int, int] = {}

    def describe(value: Any) -> Any:
        if isinstance(value, Tensor):
            return _tensor(value, seen)
        if isinstance(value, UOp) and value.op is Ops.BIND:
            return "variable", value.src[0]
        return _python(value)

    return structure((args, kwargs), describe), _surroundings(function)


def _tensor(t: Tensor, seen: dict[int, int]) -> tuple[Any, ...]:
    (graph,), buffers, _ = canonical([t.uop])
    shared = tuple(seen.setdefault(id(b.arg), len(seen)) for b in buffers)
    return "tensor", graph, t.device, t.requires_grad, shared


def _python(value: Any) -> Any:
    if isinstance(value, _SCALARS):
        return type(value).__name__, repr(value) if isinstance(value, float) else value
    attributes = getattr(value, "__dict__", {})
    scalars = () if isinstance(value, _INERT) else tuple(
        (name, repr(v)) for name, v in attributes.items() if isinstance(v, _SCALARS))
    return type(value).__name__, id(value), scalars


def _surroundings(function: Callable[..., Any]) -> tuple[Any, ...]:
    """Closure cells and globals that the function's code names."""
    inner = getattr(function, "__func__", function)
    code = getattr(inner, "__code__", None)
    if code is None:
        return (_python(function),)
    cells = tuple(_cell(c) for c in inner.__closure__ or ())
    named = tuple((name, _python(inner.__globals__[name])) for name in code.co_names if name in inner.__globals__)
    owner = getattr(function, "__self__", None)
    return cells, named, None if owner is None else _python(owner)


def _cell(cell: Any) -> Any:
    try:
        value = cell.cell_contents
    except ValueError:
        return "empty"
    return ("tensor", id(value)) if isinstance(value, Tensor) else _python(value)
