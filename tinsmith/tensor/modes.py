"""Modes of ``Tensor`` (training, recording, autocast) as context managers, and a check before optimizer steps."""
from __future__ import annotations

import contextlib
import warnings
from typing import Any, Final

from tinsmith.core.errors import place, user_line
from tinsmith.core.settings import change, current, enter, leave

_ran: Final[dict[bool, tuple[str, str, int]]] = {}  # mode → the first layer in it since the last step, file, line
_said: Final[set[tuple[str, str, int]]] = set()


def note_mode(layer: str, training: bool) -> None:
    """Record that a layer ran in training or evaluation mode and that its result can be differentiated."""
    if training not in _ran:
        _ran[training] = (layer, *user_line())


def check_modes(op: str, training: bool) -> None:
    """Warn, once for each line, if a step follows layers that all ran in evaluation mode."""
    found = _ran.get(False)
    if found is not None and True not in _ran and not training and found not in _said:
        _said.add(found)
        layer, file, line = found
        warnings.warn_explicit(
            f"{op} follows a {layer} that ran in evaluation mode ({place(file, line)}): dropout drops nothing and "
            "running statistics stand still. Try: with Tensor.train(): around the training step",
            UserWarning, *user_line())
    _ran.clear()


class Mode(contextlib.ContextDecorator):
    """A context manager (and decorator) that sets a mode of ``Tensor`` in this thread and asyncio task only.

    >>> with Mode("training", True):
    ...     current().training
    True
    >>> Mode("training", True)(lambda: current().training)(), current().training
    (True, False)
    """

    def __init__(self, name: str, value: Any) -> None:
        self.changes = {name: value}

    def __enter__(self) -> None:
        enter(self, self.changes)

    def __exit__(self, *error: object) -> None:
        leave(self)


class ModeAttribute:
    """An attribute of a class, or of its instances, that shows a mode; assigning to the class's changes it."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return getattr(current(), self.name)

    def __set__(self, instance: Any, value: Any) -> None:
        change(self.name, value if self.name == "autocast_dtype" else bool(value))


class WithModes(type):
    """Metaclass of classes that have the modes as attributes."""

    training = ModeAttribute()
    recording = ModeAttribute()
    autocast_dtype = ModeAttribute()
