"""What a captured function depends on: two calls with equal signatures run the same programs.

Tensors count by shape, dtype, device and view, by which of them share a buffer and which are one object; Python scalars
and NumPy arrays by value; other objects by identity, with the scalars among their attributes by value and the rest by
identity. Closure cells, defaults, ``self`` and the globals that the function names are part of it in the same way, one
level deep; of modules, classes and functions among them only the attributes whose names stand in the function's code.
"""
from __future__ import annotations

import array
import copy
import dataclasses
import dis
import functools
import textwrap
import types
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np

from tinsmith.core.dtypes import DType
from tinsmith.ir import Ops, UOp
from tinsmith.ir.uop import symbols, toposort, with_symbols
from tinsmith.tensor.tensor import Tensor

SCALARS: Final = (int, float, bool, str, bytes, type(None), complex)
EXACT: Final = frozenset({int, bool, str, bytes, type(None)})
_CODE: Final = (types.ModuleType, types.FunctionType, types.BuiltinFunctionType, type)
CONTAINERS: Final = (list, tuple, dict, set, frozenset, deque)
_BYTES: Final = (bytearray, memoryview, array.array)


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
    """The movement ops between a node and its base, as a value; empty for the base itself. Of reshapes in a row only
    the last one counts."""
    chain: list[tuple[Any, ...]] = []
    while uop.op.kind == "movement":
        if uop.op is not Ops.RESHAPE or not chain or chain[-1][0] is not Ops.RESHAPE:
            chain.append((uop.op, uop.arg, uop.src[1:]))
        uop = uop.src[0]
    return tuple(chain)


class Signature:
    """Describes calls of one function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.cells: list[Any] = []
        self.names: list[tuple[dict[str, Any], str]] = []
        self.fixed: list[Any] = []
        self.cell_names: list[str] = []
        self.attributes: tuple[str, ...] = ()
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
            self.cell_names += function.__code__.co_freevars
            self.fixed += [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
            space = function.__globals__
            self.names += [(space, name) for name in globals_in(function.__code__)]
            self.attributes = tuple(names_in(function.__code__))

    def surroundings(self) -> list[Any]:
        """The values that the function reads besides its arguments."""
        found = [_content(c) for c in self.cells]
        found += [space[name] for space, name in self.names if name in space]
        return found + self.fixed

    def difference(self, old: tuple[Any, ...], new: tuple[Any, ...]) -> str:
        """What two descriptions of calls differ in, for people to read."""
        names = [*self.cell_names, *(n for space, n in self.names if n in space),
                 *("self or a default" for _ in self.fixed)]
        if len(old) != len(new):
            return "the number or the nesting of its arguments"
        at = next((n for n, (a, b) in enumerate(zip(old, new)) if a != b), len(new))
        if at >= len(new) - len(names):
            return names[at - len(new) + len(names)] if at < len(new) else "nothing that it names"
        return f"its arguments: {_short(old[at])}, now {_short(new[at])}"

    def of(self, args: tuple[Any, ...], kwargs: dict[str, Any],
           held: list[Any] | None = None) -> tuple[tuple[Any, ...], Bound]:
        """A hashable description, and the bound variables among the arguments, whose values are no part of it.

        Args:
            args, kwargs: the call's; tensors among them must be realized.
            held: gets the objects whose identity is part of the description: it is valid for as long as they live.
        """
        call = _Call({}, {}, {}, held, self.attributes)
        parts: list[Any] = []
        _arguments(args, parts, call)
        if kwargs:
            _arguments(kwargs, parts, call)
        parts.extend(python_value(v, held, self.attributes) for v in self.surroundings())
        return tuple(parts), call.bound


def _short(part: Any) -> str:
    """A part of a description: of a tensor its size, dtype and place."""
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
    names: Sequence[str]  # of attributes that the function's code names

    def variable(self, bind: UOp) -> tuple[UOp, int]:
        """A bound variable without its value: two that are equal in one call must be equal in the other."""
        variable = bind.src[0]
        return variable, self.bound.setdefault((variable.arg[0], bind.src[1].arg), len(self.bound))


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
    elif names := _fields(tree):
        parts += (type(tree), *names)
        for name in names:
            _arguments(getattr(tree, name), parts, call)
    else:
        parts.append(python_value(tree, call.held, call.names))


def _tensor(t: Tensor, call: _Call) -> tuple[Any, ...]:
    uop = t.uop
    view = view_of(uop) if uop.op.kind == "movement" else ()
    if any(type(s) is UOp for _, arg, _ in view for s in symbols(arg)):
        view = tuple((op, _unbound(arg, call), rest) for op, arg, rest in view)
    base = uop.base
    first = call.objects.setdefault(id(t), len(call.objects))
    if base.op is not Ops.BUFFER:
        return uop, t.requires_grad, first
    b = base.arg
    return (b.size, b.dtype, b.layout or b.device, view, t.requires_grad, first,
            call.buffers.setdefault(id(b), len(call.buffers)))


def _unbound(value: Any, call: _Call) -> Any:
    """Sizes with numbers of bound variables in place of their values."""
    table = {b: UOp.variable(f"{b.src[0].arg[0]}#{call.variable(b)[1]}", *b.src[0].arg[1:])
             for u in symbols(value) for b in toposort(u) if b.op is Ops.BIND}
    return with_symbols(value, table)


def python_value(value: Any, held: list[Any] | None, names: Sequence[str] = ()) -> Any:
    """A value and what is one level below it: of code the attributes with these names, of other objects all."""
    if isinstance(value, (list, tuple, set, frozenset, deque)):
        return type(value), *(_one(v, held) for v in value)
    if isinstance(value, dict):
        return dict, *(x for item in value.items() for x in (_one(item[0], held), _one(item[1], held)))
    if isinstance(value, _CODE):
        inside = _named(value, names)
    else:
        inside = {} if is_plain(value) else _attributes(value)
    if not inside:
        return _one(value, held)
    return _one(value, held), *((name, _one(v, held)) for name, v in inside.items())


def _named(code: Any, names: Sequence[str]) -> dict[str, Any]:
    """The attributes of a module, class or function that have one of these names."""
    if ours(code.__name__ if isinstance(code, types.ModuleType) else code.__module__ or ""):
        return {}
    spaces = [vars(k) for k in code.__mro__] if isinstance(code, type) else [getattr(code, "__dict__", {})]
    return {name: space[name] for space in reversed(spaces) for name in names if name in space}


def _attributes(value: Any) -> dict[str, Any]:
    """What an object has in its ``__dict__`` and its slots, and the data that it has from its class."""
    found: dict[str, Any] = {}
    for kind in type(value).__mro__:
        if ours(kind.__module__):
            continue
        for name, v in vars(kind).items():
            if type(v) is types.MemberDescriptorType:
                found.setdefault(name, getattr(value, name, None))
            elif not name.startswith("__") and not isinstance(v, type) and not hasattr(type(v), "__get__"):
                found.setdefault(name, v)
    found.update(getattr(value, "__dict__", {}))
    return found


def ours(module: str) -> bool:
    """Whether a module's names stay what they are, so that nobody looks behind them."""
    return module.partition(".")[0] in ("tinsmith", "numpy", "builtins", "functools", "types", "weakref", "typing")


def is_plain(value: Any) -> bool:
    """Whether an object counts by identity alone, such as jitted functions, which count their own calls."""
    return hasattr(type(value), "jit_cache")


def by_identity(value: Any, names: Sequence[str]) -> bool:
    """Whether identity says all that a signature says of a value."""
    if isinstance(value, (*CONTAINERS, *_BYTES, np.ndarray, np.generic, Tensor)):
        return False
    if isinstance(value, SCALARS) or is_plain(value):
        return True
    return not (_named(value, names) if isinstance(value, _CODE) else _attributes(value))


def _one(value: Any, held: list[Any] | None) -> Any:
    """A scalar or an array by value, anything else by identity."""
    kind = type(value)
    if kind in EXACT:
        return kind, value
    if isinstance(value, SCALARS):
        return kind, repr(value)
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype != object:
        return kind, value.shape, value.dtype.str, value.tobytes()
    if isinstance(value, _BYTES):
        return kind, bytes(value)
    if held is not None:
        held.append(value)
    if isinstance(value, Tensor):
        return id(value), value.shape, value.dtype, value.device, value.requires_grad
    return id(value)
