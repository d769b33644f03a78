"""tinygrad's context variables: each a Tinsmith setting, a Tinsmith state, or a hint to the replacement."""
from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable
from typing import Any, Final

from tinsmith.core.dtypes import dtypes, to_dtype
from tinsmith.core.errors import ArgumentError
from tinsmith.core.settings import DECLARED, ELSEWHERE, settings, tell
from tinsmith.core.settings import Context as _settings_context
from tinsmith.core.suggestions import nearest
from tinsmith.tensor.tensor import Tensor


@functools.cache
def getenv(key: str, default: Any = 0) -> Any:
    """Return the environment variable ``key`` converted to the type of ``default``; read once.

    Empty text is 0 if the default is a number.

    Raises:
        ArgumentError: if the text is not a number.
    """
    kind, text = type(default), os.environ.get(key)
    if text is None:
        return kind(default)
    try:
        return kind(text or 0) if kind in (int, float) else kind(text)
    except ValueError:
        raise ArgumentError("getenv", f"{key}={text!r} is not a number", f"{key}={default}") from None


def _set_training(value: Any) -> None:
    Tensor.training = bool(int(value))


def _set_float(value: Any) -> None:
    dtypes.default_float = to_dtype(str(value).lower())


def _set_int(value: Any) -> None:
    dtypes.default_int = to_dtype(str(value).lower())


# Variables that are a state of ours: how it is read, and how it is set.
STATES: Final[dict[str, tuple[Callable[[], Any], Callable[[Any], None]]]] = {
    "TRAINING": (lambda: int(Tensor.training), _set_training),
    "DEFAULT_FLOAT": (lambda: dtypes.default_float.name, _set_float),
    "DEFAULT_INT": (lambda: dtypes.default_int.name, _set_int)}
_DECLARED: Final = {s.name for s in DECLARED}


class ContextVar:
    """A setting of a script: ours where we have one of that name, else a value that only the script reads."""

    known: dict[str, ContextVar] = {}

    def __init__(self, key: str, default_value: Any, read: bool = True) -> None:
        self.key = key
        ours = key in STATES or key in _DECLARED
        self._own = default_value if ours or not read else getenv(key, default_value)
        ContextVar.known.setdefault(key, self)

    @property
    def value(self) -> Any:
        if self.key in STATES:
            return STATES[self.key][0]()
        return getattr(settings, self.key) if self.key in _DECLARED else self._own

    @value.setter
    def value(self, new: Any) -> None:
        if self.key in STATES:
            STATES[self.key][1](new)
        elif self.key in _DECLARED:
            setattr(settings, self.key, new)
        else:
            tell(self.key, str(new))
            self._own = new

    def __bool__(self) -> bool:
        return bool(self.value)

    def __int__(self) -> int:
        return int(self.value)

    def __eq__(self, other: object) -> bool:
        return bool(self.value == other)

    def __ge__(self, other: Any) -> bool:
        return bool(self.value >= other)

    def __gt__(self, other: Any) -> bool:
        return bool(self.value > other)

    def __lt__(self, other: Any) -> bool:
        return bool(self.value < other)

    def __le__(self, other: Any) -> bool:
        return bool(self.value <= other)

    def __hash__(self) -> int:
        return hash(self.key)

    def __str__(self) -> str:
        return str(self.value)

    def __repr__(self) -> str:
        return f"ContextVar({self.key!r}, {self.value!r})"


def _defaults() -> dict[str, Any]:
    """Every variable that tinygrad documents or its programs set, and its value if nobody sets it."""
    own = {s.name: s.default for s in DECLARED}
    return {**own, "DEFAULT_FLOAT": "float32", "DEFAULT_INT": "int32", "TRAINING": 0}


def _unread(name: str, default: str) -> ContextVar:
    """Return a variable without effect here. A non-numeric value was likely meant for another program."""
    number = default.lstrip("-").isdigit()
    found = ContextVar(name, int(default) if number else default, read=False)
    text = os.environ.get(name, "")
    if text and (not number or text.lstrip("-").isdigit()):
        found._own = int(text) if number else text
    return found


class _Dev(ContextVar):
    """The default device as tinygrad reads it, ``[interface+]device[:renderer[:arch]]``; a device's number is no part.

    >>> dev = _Dev("DEV", "")
    >>> with Context(DEV="CPU:1:C"):
    ...     dev.device, dev.renderer, dev.arch, dev.interface
    ('CPU', 'C', '', '')
    """

    def _parts(self) -> tuple[str, str, str, str]:
        interface, _, rest = str(self.value).upper().rpartition("+")
        device, renderer, arch, *_ = *(p for p in rest.split(":") if not p.isdigit()), "", "", ""
        return interface, device, renderer, arch.lower()

    @property
    def interface(self) -> str:
        return self._parts()[0]

    @property
    def device(self) -> str:
        return self._parts()[1]

    @property
    def renderer(self) -> str:
        return self._parts()[2]

    @property
    def arch(self) -> str:
        return self._parts()[3]


VARIABLES: Final = {**{name: ContextVar(name, value) for name, value in _defaults().items()},
                    "DEV": _Dev("DEV", ""),
                    **{name: _unread(name, default) for name, (default, _) in ELSEWHERE.items()}}


def from_environment() -> None:
    """Set Tinsmith states from their environment variables."""
    for name, (_, set_to) in STATES.items():
        if os.environ.get(name):
            set_to(os.environ[name])


class Context(contextlib.ContextDecorator):
    """Change settings inside a ``with`` block; variables that only tinygrad has can be read by the script only.

    >>> with Context(TRAINING=1, DEFAULT_FLOAT="HALF"):
    ...     Tensor.training, dtypes.default_float
    (True, dtypes.half)

    Raises:
        ArgumentError: for a name that is a setting of neither.
    """

    def __init__(self, **changes: Any) -> None:
        self.changes, self.stack = changes, contextlib.ExitStack()

    def __enter__(self) -> None:
        for name in self.changes:
            if name not in ContextVar.known:
                close = nearest(name, ContextVar.known)
                raise ArgumentError("Context", f"unknown setting {name!r}", f"did you mean {close}=?" if close else
                                    "one that the README lists; docs/api.md has those of tinygrad's")
        ours = {k: v for k, v in self.changes.items() if k in _DECLARED}
        self.stack.enter_context(_settings_context(**ours))
        for name in self.changes.keys() - ours.keys():
            variable = ContextVar.known[name]
            self.stack.callback(_restore, variable, variable.value)
            variable.value = self.changes[name]

    def __exit__(self, *error: object) -> None:
        self.stack.close()


def _restore(variable: ContextVar, value: Any) -> None:
    if variable.key in STATES:
        variable.value = value
    else:
        variable._own = value
