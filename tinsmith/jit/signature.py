"""What a captured function depends on: two calls with equal signatures run the same programs.

Tensors count by shape, dtype, device and view, by which of them share a buffer and which are one object; Python scalars
and NumPy arrays by value; other objects by identity, with the scalars among their attributes by value and the rest by
identity. Closure cells, defaults, ``self`` and the globals that the function names are part of it in the same way, one
level deep.
"""
from __future__ import annotations

import copy
import dataclasses
import dis
import functools
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tinsmith.ir import Ops, UOp
from tinsmith.tensor.tensor import Tensor

_SCALARS = (int, float, bool, str, bytes, type(None), complex)
_EXACT = frozenset({int, bool, str, bytes, type(None)})
_CODE = (types.ModuleType, types.FunctionType, types.BuiltinFunctionType, type)
_CONTAINERS = (list, tuple, dict, set, frozenset)


def _fields(tree: Any) -> list[str]:
    """Names of a dataclass's fields; empty for anything else."""
    if not dataclasses.is_dataclass(tree) or isinstance(tree, type):
        return []
    return [f.name for f in dataclasses.fields(tree) if hasattr(tree, f.name)]


def leaves(tree: Any) -> list[Any]:
    """The leaves of nested tuples, lists, dicts and dataclasses, in order."""
    found: list[Any] = []
    _collect(tree, found)
    return found


def _collect(tree: Any, found: list[Any]) -> None:
    if isinstance(tree, Tensor):
        found.append(tree)
    elif isinstance(tree, (list, tuple)):
        for item in tree:
            _collect(item, found)
    elif isinstance(tree, dict):
        for item in tree.values():
            _collect(item, found)
    elif names := _fields(tree):
        for name in names:
            _collect(getattr(tree, name), found)
    else:
        found.append(tree)


def paths(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every leaf with where it is, such as ``[0]['loss'].mean``."""
    if isinstance(tree, (list, tuple)):
        for n, item in enumerate(tree):
            yield from paths(item, f"{path}[{n}]")
    elif isinstance(tree, dict):
        for key, item in tree.items():
            yield from paths(item, f"{path}[{key!r}]")
    elif names := _fields(tree):
        for name in names:
            yield from paths(getattr(tree, name), f"{path}.{name}")
    else:
        yield path, tree


def rebuilt(tree: Any, leaf: Callable[[Any], Any]) -> Any:
    """A copy of the nesting with every leaf replaced."""
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(rebuilt(item, leaf) for item in tree))
    if isinstance(tree, (list, tuple)):
        return type(tree)(rebuilt(item, leaf) for item in tree)
    if isinstance(tree, dict):
        made = copy.copy(tree)
        made.update((key, rebuilt(value, leaf)) for key, value in tree.items())
        return made
    if names := _fields(tree):
        new = copy.copy(tree)
        for name in names:
            object.__setattr__(new, name, rebuilt(getattr(tree, name), leaf))
        return new
    return leaf(tree)


def placed(uop: UOp) -> bool:
    """A view of a buffer, on the host too, or empty: nothing is left to compute."""
    return uop.base.op is Ops.BUFFER or 0 in uop.shape


def view_of(uop: UOp) -> tuple[Any, ...]:
    """The movement ops between a node and its base, as a value; empty for the base itself."""
    chain = []
    while uop.op.kind == "movement":
        chain.append((uop.op, uop.arg, uop.src[1:]))
        uop = uop.src[0]
    return tuple(chain)


class Signature:
    """Describes calls of one function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.cells: list[Any] = []
        self.names: list[tuple[dict[str, Any], str]] = []
        self.fixed: list[Any] = []
        self._look(function)

    def _look(self, function: Any) -> None:
        if isinstance(function, functools.partial):
            self.fixed += [*function.args, *function.keywords.values()]
            self._look(function.func)
            return
        if isinstance(function, types.MethodType):
            self.fixed.append(function.__self__)
            function = function.__func__
        elif not isinstance(function, types.FunctionType):
            self.fixed.append(function)
            function = type(function).__call__
        if isinstance(function, types.FunctionType):
            self.cells += function.__closure__ or ()
            self.fixed += [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
            space = function.__globals__
            self.names += [(space, name) for name in globals_in(function.__code__)]

    def surroundings(self) -> list[Any]:
        """The values that the function reads besides its arguments."""
        found = [_content(c) for c in self.cells]
        found += [space[name] for space, name in self.names if name in space]
        return found + self.fixed

    def of(self, args: tuple[Any, ...], kwargs: dict[str, Any], held: list[Any] | None = None) -> tuple[Any, ...]:
        """A hashable description; tensors among the arguments must be realized. ``held`` gets the objects whose
        identity is part of it: it is valid for as long as they live."""
        objects: dict[int, int] = {}
        buffers: dict[int, int] = {}
        parts: list[Any] = []
        _arguments(args, parts, objects, buffers, held)
        if kwargs:
            _arguments(kwargs, parts, objects, buffers, held)
        parts.extend(_python(v, held) for v in self.surroundings())
        return tuple(parts)


def globals_in(code: types.CodeType) -> list[str]:
    """Names that a function and those inside it look up in their globals."""
    found = {str(i.argval): None for i in dis.get_instructions(code) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            found.update(dict.fromkeys(globals_in(inner)))
    return list(found)


def names_in(code: types.CodeType) -> list[str]:
    """Names of globals and of attributes in a function and those inside it."""
    found = dict.fromkeys(code.co_names)
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            found.update(dict.fromkeys(names_in(inner)))
    return list(found)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return "empty cell"


def _arguments(tree: Any, parts: list[Any], objects: dict[int, int], buffers: dict[int, int],
               held: list[Any] | None) -> None:
    if isinstance(tree, Tensor):
        parts.append(_tensor(tree, objects, buffers))
    elif isinstance(tree, (list, tuple)):
        parts += (type(tree), len(tree))
        for item in tree:
            _arguments(item, parts, objects, buffers, held)
    elif isinstance(tree, dict):
        parts += (type(tree), *tree)
        for item in tree.values():
            _arguments(item, parts, objects, buffers, held)
    elif isinstance(tree, UOp):
        parts.append(tree.src[0] if tree.op is Ops.BIND else tree)
    elif names := _fields(tree):
        parts += (type(tree), *names)
        for name in names:
            _arguments(getattr(tree, name), parts, objects, buffers, held)
    else:
        parts.append(_python(tree, held))


def _tensor(t: Tensor, objects: dict[int, int], buffers: dict[int, int]) -> tuple[Any, ...]:
    uop = t.uop
    view = view_of(uop) if uop.op.kind == "movement" else ()
    base = uop.base
    first = objects.setdefault(id(t), len(objects))
    if base.op is not Ops.BUFFER:
        return uop, t.requires_grad, first
    b = base.arg
    return b.size, b.dtype, b.device, view, t.requires_grad, first, buffers.setdefault(id(b), len(buffers))


def _python(value: Any, held: list[Any] | None) -> Any:
    """A value and what is one level below it."""
    if isinstance(value, (list, tuple, set, frozenset)):
        return type(value), *(_one(v, held) for v in value)
    if isinstance(value, dict):
        return dict, *(x for item in value.items() for x in (_one(item[0], held), _one(item[1], held)))
    plain = isinstance(value, _CODE) or hasattr(type(value), "jit_cache")  # a jitted function counts its own calls
    inside = None if plain else getattr(value, "__dict__", None)
    if not inside:
        return _one(value, held)
    return _one(value, held), *((name, _one(v, held)) for name, v in inside.items())


def _one(value: Any, held: list[Any] | None) -> Any:
    """A scalar or an array by value, anything else by identity."""
    kind = type(value)
    if kind in _EXACT:
        return kind, value
    if isinstance(value, _SCALARS):
        return kind, repr(value)
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype != object:
        return kind, value.shape, value.dtype.str, value.tobytes()
    if held is not None:
        held.append(value)
    if isinstance(value, Tensor):
        return id(value), value.shape, value.dtype, value.device, value.requires_grad
    return id(value)
