"""Names that do not exist: errors that say which one was meant."""
from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any, Final, TypeVar

from tinsmith.core.errors import KeywordError, UnknownNameError

T = TypeVar("T")

# What other libraries call a keyword.
_ELSEWHERE: Final = {
    "learning_rate": ("lr",), "betas": ("b1", "b2"), "beta_1": ("b1",), "beta_2": ("b2",), "epsilon": ("eps",),
    "decay": ("weight_decay",), "parameters": ("params",), "var_list": ("params",)}


def nearest(name: str, known: Iterable[str], least: float = 0.6) -> str:
    """The one of ``known`` that ``name`` was meant to be; empty if none is near: ``least`` of 1 is the same name.

    >>> nearest("axsi", ["axis", "keepdim"]), nearest("colour", ["axis", "keepdim"])
    ('axis', '')
    """
    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=least)), "")


def unknown(owner: str, name: str, known: Iterable[str]) -> Any:
    """The error for an attribute that ``owner`` has not.

    >>> print(unknown("dtypes", "flaot32", ["float32", "int32"]).mend)
    did you mean dtypes.float32?
    """
    if name.startswith("_"):  # what Python and other libraries look for: nobody has mistyped it
        return AttributeError(f"{owner} has no attribute {name!r}", name=name)
    known = [k for k in known if not k.startswith("_")]
    close = nearest(name, known)
    few = f"one of {', '.join(sorted(known))}" if len(known) <= 30 else f"dir({owner})"
    return UnknownNameError(owner, f"no attribute {name!r}", f"did you mean {owner}.{close}?" if close else few)


def guide(*owners: type | ModuleType) -> None:
    """Let classes and modules explain names that modules, and keywords that public functions do not have; ``dir`` of a
    module shows its public names."""
    for owner in owners:
        if isinstance(owner, ModuleType):
            vars(owner).setdefault("__getattr__", functools.partial(_no_name, owner))
            vars(owner).setdefault("__dir__", functools.partial(public, owner))
        for name, value in list(vars(owner).items()):
            if name.startswith("_") and name != "__init__":
                continue
            kind = type(value)
            if kind in (staticmethod, classmethod):
                setattr(owner, name, kind(guided(value.__func__)))
            elif callable(value) and hasattr(value, "__code__") and value.__module__ == _module(owner):
                setattr(owner, name, guided(value))
            elif isinstance(owner, ModuleType) and kind is type and value.__module__ == owner.__name__:
                guide(value)


def public(module: ModuleType) -> list[str]:
    """What ``dir`` shows of a module: ``__all__``, or what the module defines; and Python's own names.

    >>> import json
    >>> [name for name in public(json) if not name.startswith("__")][3:]
    ['dump', 'dumps', 'load', 'loads']
    """
    names = vars(module).get("__all__") or [
        n for n, v in vars(module).items() if not n.startswith("_") and getattr(v, "__module__", "") == module.__name__]
    return sorted({*names, *(n for n in vars(module) if n.startswith("__"))})


def _no_name(module: ModuleType, name: str) -> Any:
    raise unknown(module.__name__.removeprefix("tinsmith."), name, dir(module))


def _module(owner: type | ModuleType) -> str:
    return owner.__name__ if isinstance(owner, ModuleType) else owner.__module__


def guided(function: Callable[..., T]) -> Callable[..., T]:
    """``function``, which raises a KeywordError that says what it takes when a keyword is wrong.

    >>> def area(width, height=1):
    ...     return width * height
    >>> try:
    ...     guided(area)(2, hieght=3)
    ... except KeywordError as error:
    ...     print(error.op, error.message, error.mend)
    area no argument 'hieght' did you mean height=?
    """
    is_init = function.__name__ == "__init__"

    def call(*args: Any, **keywords: Any) -> T:
        try:
            return function(*args, **keywords)
        except TypeError:
            _explain(function, args, keywords)
            raise

    def init(self: Any, /, *args: Any, **keywords: Any) -> T:
        try:
            return function(self, *args, **keywords)
        except TypeError:
            _explain(function, (self, *args), keywords)
            raise

    found: Any = functools.wraps(function)(init if is_init else call)
    found.__code__ = found.__code__.replace(co_name=function.__name__)  # nodes and errors name what the user called
    made: Callable[..., T] = found
    return made


def _explain(function: Callable[..., Any], args: tuple[Any, ...], keywords: dict[str, Any]) -> None:
    """Raise a KeywordError if the call failed since a keyword is none of the function's."""
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    code = function.__code__
    known = code.co_varnames[code.co_posonlyargcount : code.co_argcount + code.co_kwonlyargcount]
    wrong = next((k for k in keywords if k not in known), None)
    if wrong is None or code.co_flags & inspect.CO_VARKEYWORDS:
        return
    name = type(args[0]).__name__ if function.__name__ == "__init__" else function.__name__
    close = "=, ".join(k for k in _ELSEWHERE.get(wrong, ()) if k in known) or nearest(wrong, known)
    takes = ", ".join(k for k in known if k not in ("self", "cls")) or "no keywords"
    raise KeywordError(name, f"no argument {wrong!r}", f"did you mean {close}=?" if close else takes) from None
