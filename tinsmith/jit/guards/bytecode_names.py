"""Bytecode analysis: the globals, attributes and modules that a Python function can read."""
from __future__ import annotations

import dis
import functools
import sys
import types
from typing import Final, NamedTuple

_GLOBAL: Final = ("LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL")
_ATTRIBUTE: Final = ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "STORE_ATTR", "DELETE_ATTR", "IMPORT_FROM")
_ANY: Final = {"getattr", "setattr", "hasattr", "delattr", "vars", "dir", "__dict__", "__getattribute__"}


class Names(NamedTuple):
    """The names that a code object looks up.

    Attributes:
        spaces: names of globals.
        attributes: names of attributes of anything, with ``texts``.
        texts: those that could be such names.
        stored: attributes that it sets.
        modules: those imported by the code itself.
        any: attributes are looked up by names that are computed.
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
    """Names of globals and of attributes in a function and those inside it."""
    found = dict.fromkeys(code.co_names)
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            found.update(dict.fromkeys(all_names(inner)))
    return tuple(found)


def line_naming(code: types.CodeType, name: str) -> int:
    """The first line of a function with this name in it; 0 if there is none."""
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
