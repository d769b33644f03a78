"""Modes of ``Tensor`` (training, recording, autocast) as context managers, and a check before optimizer steps."""
from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from tinsmith.core.errors import place, user_line
from tinsmith.core.settings import change, current, enter, leave

_MOST: Final = 64  # layers remembered between two steps
_said: Final[set[tuple[str, str, int]]] = set()
_ran: Final[list[LayerRun]] = []  # since the last step


class LayerRun(NamedTuple):
    """Layers that ran in a mode, and whose results can be differentiated.

    Attributes:
        training: the mode: training or evaluation.
        parameter: id of a parameter of the layer; None if it has none.
        place: the layer that ran first, file, line.
    """

    training: bool
    parameter: int | None
    place: tuple[str, str, int]


def note_mode(layer: str, training: bool, parameter: Any = None) -> None:
    """Record that a layer ran in training or evaluation mode and that its result can be differentiated."""
    key = None if parameter is None else id(parameter)
    if not any(run.training == training and run.parameter == key for run in _ran) and len(_ran) < _MOST:
        _ran.append(LayerRun(training, key, (layer, *user_line())))


def check_modes(op: str, training: bool, parameters: Iterable[Any]) -> None:
    """Warn, once for each line, if a step of ``parameters`` follows layers that all ran in evaluation mode.

    A layer that has parameters counts if the step changes them: the model beside it may be another one.
    """
    known = {None, *map(id, parameters)} if _ran else set()
    runs = [run for run in _ran if run.parameter in known]
    if runs and not training and not any(run.training for run in runs) and runs[0].place not in _said:
        _said.add(runs[0].place)
        layer, file, line = runs[0].place
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
