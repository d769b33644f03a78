"""Attributes of objects and classes, read without running their code (no descriptors, no ``__getattr__``)."""
from __future__ import annotations

import functools
import types
from collections.abc import Mapping
from typing import Any, Final

from tinsmith.jit.reads import fixed
from tinsmith.jit.signature import SCALARS

FUNCTIONS: Final = (types.FunctionType, staticmethod, classmethod, property, functools.cached_property)
ABSENT: Final[Any] = object()
UNSET: Final[Any] = object()  # a slot without a value
_LATE: Final = ("__slotnames__", "__annotations__", "__annotations_cache__")


def size_of(space: Mapping[str, Any]) -> int:
    """Return the number of names in a class's namespace, without those that Python adds lazily."""
    return len(space) - sum(map(space.__contains__, _LATE))


def found_in(kind: type, name: str) -> Any:
    """Return a class's raw attribute along its MRO, without binding it."""
    return next((vars(k)[name] for k in kind.__mro__ if name in vars(k)), ABSENT)


def parameters_of(function: Any) -> tuple[str, ...]:
    while isinstance(function, functools.partial):
        function = function.func
    code = getattr(function, "__code__", None) or getattr(found_in(type(function), "__call__"), "__code__", None)
    names = code.co_varnames[:code.co_argcount] if isinstance(code, types.CodeType) else ()
    return names if isinstance(function, types.FunctionType) else names[1:]


def default_of(f: types.FunctionType, number: int) -> str:
    count = f.__code__.co_argcount
    return f.__code__.co_varnames[count - len(f.__defaults__ or ()) + number]


def space_of(value: Any) -> dict[str, Any] | None:
    try:
        space = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return None
    return space if isinstance(space, dict) else None


def own_names(value: Any) -> set[str]:
    """Return the names of an object's own attributes, and of data attributes of its class."""
    if isinstance(value, types.ModuleType):
        return {n for n, v in vars(value).items() if isinstance(v, SCALARS)}
    names = set(space_of(value) or (vars(value) if isinstance(value, type) else ()))
    for kind in type(value).__mro__:
        if not fixed(kind.__module__):
            names |= {n for n, v in vars(kind).items() if not isinstance(v, FUNCTIONS)}
    return {n for n in names if not n.startswith("__")}


def read(value: Any, name: str) -> Any:
    """Return an instance's attribute without running code of its class; ``ABSENT`` if that needs such code."""
    raw = found_in(type(value), name)
    if isinstance(raw, types.MemberDescriptorType):
        if fixed(raw.__objclass__.__module__):
            return ABSENT
        return raw.__get__(value, type(value)) if has(raw, value) else UNSET
    if hasattr(type(raw), "__set__"):
        return ABSENT
    space = space_of(value)
    if space is not None and name in space:
        return space[name]
    return ABSENT if raw is ABSENT or hasattr(type(raw), "__get__") else raw


def has(slot: Any, value: Any) -> bool:
    try:
        slot.__get__(value, type(value))
    except AttributeError:
        return False
    return True
