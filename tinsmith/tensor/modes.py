"""Training and evaluation mode: switches for a block, and whether any layer trained before an optimizer's step."""
from __future__ import annotations

import contextlib
import warnings
from typing import Any, Final

from tinsmith.core.errors import place, user_line

_ran: Final[dict[bool, tuple[str, str, int]]] = {}  # mode → the first layer in it since the last step, file, line
_said: Final[set[tuple[str, str, int]]] = set()


def note_mode(layer: str, training: bool) -> None:
    """A layer ran, in training or evaluation mode, and its result can be differentiated."""
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
    """``attribute`` of a class has another value inside.

    >>> class Lamp: on = False
    >>> with Mode(Lamp, "on", True):
    ...     Lamp.on
    True
    >>> Mode(Lamp, "on", True)(lambda: Lamp.on)(), Lamp.on
    (True, False)
    """

    def __init__(self, owner: type, attribute: str, value: Any) -> None:
        self.owner, self.attribute, self.value = owner, attribute, value
        self.before: list[Any] = []  # a block may stand inside itself

    def __enter__(self) -> None:
        self.before.append(getattr(self.owner, self.attribute))
        setattr(self.owner, self.attribute, self.value)

    def __exit__(self, *error: object) -> None:
        setattr(self.owner, self.attribute, self.before.pop())
