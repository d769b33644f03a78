"""Call signatures, and the names that a function can read.

A signature is a hashable cache key of a call's arguments. It has the shape, dtype, device and view of each tensor, and
which of them share a buffer or are one object; Python scalars and NumPy arrays by value; other objects by identity.
``state.py`` guards the contents of those objects, and all other state that the function reads.

Bytecode analysis finds the globals, attributes and modules that a Python function can read.
"""
from __future__ import annotations

import array
import copy
import dataclasses
import dis
import functools
import sys
import textwrap
import types
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np

from tinsmith.core.dtypes import DType
from tinsmith.ir import Ops, UOp
from tinsmith.ir.algebra.sizes import symbols, with_symbols
from tinsmith.ir.uop import toposort
from tinsmith.tensor.tensor import Tensor

_GLOBAL: Final = ("LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL")
_ATTRIBUTE: Final = ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "STORE_ATTR", "DELETE_ATTR", "IMPORT_FROM")
_ANY: Final = {"getattr", "setattr", "hasattr", "delattr", "vars", "dir", "__dict__", "__getattribute__"}


class Names(NamedTuple):
    """The names that a code object looks up.

    Attributes:
        spaces: names of globals.
        attributes: names of attributes of any object, including ``texts``.
        texts: string constants that could be names of attributes.
        stored: names of attributes that the code sets.
        modules: names of modules that the code imports.
        any: True if attributes are looked up by computed names.
    """

    spaces: frozenset[str]
    attributes: frozenset[str]
    texts: frozenset[str]
    stored: frozenset[str]
    modules: frozenset[str]
    any: bool


@functools.lru_cache(maxsize=4096)
def names_of(code: types.CodeType) -> Names:
    """Return the names in the code of one function, without functions defined in it: these count when they run."""
    spaces, attributes, stored, modules = set(), set(), set(), set()
    for i in dis.get_instructions(code):
        if i.opname in _GLOBAL:
            spaces.add(i.argval)
        elif i.opname in _ATTRIBUTE:
            attributes.add(i.argval)
            if i.opname == "STORE_ATTR":
                stored.add(i.argval)
        elif i.opname == "IMPORT_NAME":
            modules.add(i.argval)
    constants = [c for const in code.co_consts for c in (const if isinstance(const, (tuple, frozenset)) else (const,))]
    texts = frozenset(c for c in constants if isinstance(c, str) and c.isidentifier())
    return Names(frozenset(spaces), texts | attributes, texts, frozenset(stored), frozenset(modules),
                 not _ANY.isdisjoint(spaces | attributes))


@functools.lru_cache(maxsize=4096)
def all_names(code: types.CodeType) -> tuple[str, ...]:
    """Return the names of globals and of attributes in a function and in its inner functions."""
    found = dict.fromkeys(code.co_names)
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            found.update(dict.fromkeys(all_names(inner)))
    return tuple(found)


def line_naming(code: types.CodeType, name: str) -> int:
    """Return the first line of a function that contains this name; 0 if there is none."""
    line = code.co_firstlineno
    for i in dis.get_instructions(code):
        line = i.starts_line or line
        if i.argval == name and isinstance(name, str):
            return line
    return 0

_OURS: Final = {"tinsmith", "numpy", "builtins", "functools", "types", "weakref", "typing"}
_FIXED: Final = {"tinsmith", "numpy", "builtins"}
_LAYERS: Final = "tinsmith.nn."


def ours(module: str) -> bool:
    """Return True if a module's globals are assumed constant, so that no guards are needed on them."""
    return module.partition(".")[0] in _OURS


def fixed(module: str) -> bool:
    """Return True if attributes of the module's objects are assumed constant (not so for ``tinsmith.nn``)."""
    return module.partition(".")[0] in _FIXED and not module.startswith(_LAYERS)


def library(module: str) -> bool:
    """Return True for the standard library and ``nn``, whose functions read only their arguments."""
    return module.partition(".")[0] in sys.stdlib_module_names or module.startswith(_LAYERS)

PLACE: Final = str  # the device of a tensor's memory in a description, unless it is over several devices
SCALARS: Final = (int, float, bool, str, bytes, type(None), complex)
EXACT: Final = frozenset({int, bool, str, bytes, type(None)})
BYTES: Final = (bytearray, memoryview, array.array)
WRITABLE: Final = (np.ndarray, set, deque, bytearray, array.array)


def fields_of(tree: Any) -> list[str]:
    """Return the names of a dataclass's fields; empty for other values."""
    if not dataclasses.is_dataclass(tree) or isinstance(tree, type):
        return []
    return [f.name for f in dataclasses.fields(tree) if hasattr(tree, f.name)]


def leaves(tree: Any) -> list[Any]:
    """Return the leaves of nested tuples, lists, dicts and dataclasses, in order."""
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
    elif names := fields_of(tree):
        for name in names:
            _collect(getattr(tree, name), found)
    else:
        found.append(tree)


def paths(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (path, value) of every leaf of a nesting; a path is like ``[0]['loss'].mean``."""
    if isinstance(tree, (list, tuple)):
        for n, item in enumerate(tree):
            yield from paths(item, f"{path}[{n}]")
    elif isinstance(tree, dict):
        for key, item in tree.items():
            yield from paths(item, f"{path}[{key!r}]")
    elif names := fields_of(tree):
        for name in names:
            yield from paths(getattr(tree, name), f"{path}.{name}")
    else:
        yield path, tree


def rebuilt(tree: Any, leaf: Callable[[Any], Any], made: dict[int, Any] | None = None) -> Any:
    """Return a copy of the nesting with ``leaf`` applied to every leaf; an object that occurs twice is copied once."""
    made = {} if made is None else made
    if id(tree) not in made:
        made[id(tree)] = _rebuilt(tree, leaf, made)
    return made[id(tree)]


def _rebuilt(tree: Any, leaf: Callable[[Any], Any], made: dict[int, Any]) -> Any:
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(rebuilt(item, leaf, made) for item in tree))
    if isinstance(tree, (list, tuple)):
        return type(tree)(rebuilt(item, leaf, made) for item in tree)
    if isinstance(tree, dict):
        new = copy.copy(tree)
        new.update((key, rebuilt(value, leaf, made)) for key, value in tree.items())
        return new
    if names := fields_of(tree):
        new = copy.copy(tree)
        for name in names:
            object.__setattr__(new, name, rebuilt(getattr(tree, name), leaf, made))
        return new
    return leaf(tree)


def writable(tree: Any) -> Iterator[Any]:
    """Yield the mutable values of a nesting except tensors: lists, dicts, dataclasses, arrays and sets."""
    if isinstance(tree, (list, dict, *WRITABLE)) or fields_of(tree):
        yield tree
    inside = (tree if isinstance(tree, (list, tuple)) else tree.values() if isinstance(tree, dict) else
              [getattr(tree, name) for name in fields_of(tree)])
    for item in inside:
        yield from writable(item)


def fresh(leaf: Any) -> Any:
    """Return a value other than a tensor for the results of one call: a copy if it is mutable."""
    return copy.copy(leaf) if isinstance(leaf, WRITABLE) else leaf


def base_of(uop: UOp) -> UOp:
    """Return the node below movement ops and ``detach()``, which are views of its memory."""
    node = uop.base
    while node.op is Ops.DETACH and node.arg is None:
        node = node.src[0].base
    return node


def placed(uop: UOp) -> bool:
    """Return True if nothing is left to compute: a view of a buffer (also on the host), or an empty value."""
    return base_of(uop).op is Ops.BUFFER or 0 in uop.shape


def view_of(uop: UOp) -> tuple[Any, ...]:
    """Return the views between a node and its base as a hashable value; empty for the base itself. Of consecutive
    reshapes only the last one is kept."""
    chain: list[tuple[Any, ...]] = []
    while uop.op.kind == "movement" or (uop.op is Ops.DETACH and uop.arg is None):
        if uop.op is not Ops.RESHAPE or not chain or chain[-1][0] is not Ops.RESHAPE:
            chain.append((uop.op, uop.arg, uop.src[1:]))
        uop = uop.src[0]
    return tuple(chain)


def surroundings(function: Any) -> list[Any]:
    """Return the values that a function's own code names, other than its arguments."""
    if isinstance(function, functools.partial):
        return [*function.args, *function.keywords.values(), *surroundings(function.func)]
    if isinstance(function, types.MethodType):
        return [function.__self__, *surroundings(function.__func__)]
    if not isinstance(function, types.FunctionType):
        call = type(function).__call__
        return [function, *(surroundings(call) if isinstance(call, types.FunctionType) else ())]
    space = function.__globals__
    return [*(function.__closure__ or ()), *(space[n] for n in all_names(function.__code__) if n in space),
            function.__defaults__, function.__kwdefaults__]


def difference(old: tuple[Any, ...], new: tuple[Any, ...]) -> str:
    """Return the first difference of two signatures, as text for messages."""
    if len(old) != len(new):
        return "the number or the nesting of its arguments"
    at = next(n for n, (a, b) in enumerate(zip(old, new)) if a != b)
    return f"its arguments: {_short(old[at])}, now {_short(new[at])}"


def signature(args: tuple[Any, ...], kwargs: dict[str, Any],
              held: list[Any] | None = None) -> tuple[tuple[Any, ...], Bound]:
    """Return a hashable description of a call's arguments, and the bound variables among them.

    The values of bound variables are not part of the description: a replay takes other values.

    Args:
        args, kwargs: the arguments of the call; tensors among them must be realized.
        held: receives the objects whose identity is part of the description, which is valid as long as they live.
    """
    call = _Call({}, {}, {}, held)
    parts: list[Any] = []
    _arguments(args, parts, call)
    if kwargs:
        _arguments(kwargs, parts, call)
    return tuple(parts), call.bound


def _short(part: Any) -> str:
    """Return a part of a description as text for messages: the size, dtype and place of a tensor."""
    if type(part) is tuple and len(part) == 7 and isinstance(part[1], DType):
        size, dtype, where, view = part[:4]
        shape = next((arg for op, arg, _ in view if op is Ops.RESHAPE), None)
        seen = " through a view" if view and shape is None else ""
        return f"a tensor {shape or (size,)} {dtype!r} on {where}{seen}"
    return textwrap.shorten(str(part[1] if type(part) is tuple and len(part) == 2 else part), 60)

Bound = dict[tuple[str, int], int]  # (name, value) → its number, in order of first occurrence


@dataclasses.dataclass(slots=True)
class _Call:
    """Tensors and buffers by id, and bound variables: each with its number in order of first occurrence."""

    objects: dict[int, int]
    buffers: dict[int, int]
    bound: Bound
    held: list[Any] | None

    def variable(self, bind: UOp) -> tuple[UOp, int]:
        """Return a bound variable without its value. Two variables that are equal in one call must be equal in the
        other."""
        variable = bind.src[0]
        return variable, self.bound.setdefault((variable.arg[0], bind.src[1].arg), len(self.bound))


def _arguments(tree: Any, parts: list[Any], call: _Call) -> None:
    if isinstance(tree, Tensor):
        parts.append(_tensor(tree, call))
    elif isinstance(tree, (list, tuple)):
        parts += (type(tree), len(tree))
        for item in tree:
            _arguments(item, parts, call)
    elif isinstance(tree, dict):
        parts += (type(tree), *tree)
        for item in tree.values():
            _arguments(item, parts, call)
    elif isinstance(tree, UOp):
        parts.append(call.variable(tree) if tree.op is Ops.BIND else _unbound(tree, call))
    elif names := fields_of(tree):
        parts += (type(tree), *names)
        for name in names:
            _arguments(getattr(tree, name), parts, call)
    else:
        parts.append(_value(tree, call.held))


def _tensor(t: Tensor, call: _Call) -> tuple[Any, ...]:
    uop = t.uop
    view = () if uop.op is Ops.BUFFER else view_of(uop)
    if any(type(s) is UOp for _, arg, _ in view for s in symbols(arg)):
        view = tuple((op, _unbound(arg, call), rest) for op, arg, rest in view)
    base = base_of(uop)
    first = call.objects.setdefault(id(t), len(call.objects))
    if base.op is not Ops.BUFFER:
        return uop, t.requires_grad, first
    b = base.arg
    return (b.size, b.dtype, b.layout or b.device, view, t.requires_grad, first,
            call.buffers.setdefault(id(b), len(call.buffers)))


def _unbound(value: Any, call: _Call) -> Any:
    """Return sizes with bound variables replaced by their numbers."""
    table = {b: UOp.variable(f"{b.src[0].arg[0]}#{call.variable(b)[1]}", *b.src[0].arg[1:])
             for u in symbols(value) for b in toposort(u) if b.op is Ops.BIND}
    return with_symbols(value, table)


def _value(value: Any, held: list[Any] | None) -> Any:
    if isinstance(value, (set, frozenset, deque)):
        return type(value), *(_one(v, held) for v in value)
    return _one(value, held)


def by_identity(value: Any) -> bool:
    """Return True if an argument is compared by identity only."""
    return not (isinstance(value, (*SCALARS, list, tuple, dict, set, frozenset, deque, *BYTES, np.ndarray, np.generic,
                                   Tensor, UOp)) or fields_of(value))


def _one(value: Any, held: list[Any] | None) -> Any:
    """Return the description of a scalar or an array by value, of any other object by identity."""
    kind = type(value)
    if kind in EXACT:
        return kind, value
    if isinstance(value, SCALARS):
        return kind, repr(value)
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype != object:
        return kind, value.shape, value.dtype.str, value.tobytes()
    if isinstance(value, BYTES):
        return kind, bytes(value)
    if held is not None:
        held.append(value)
    if isinstance(value, Tensor):
        return id(value), value.shape, value.dtype, value.device, value.requires_grad
    return id(value)
