"""Origins of graph nodes, and the observer of compiler passes.

An origin is the method that the user called, its source line, and the model layer that was running. It is metadata:
part of no cache key and of no kernel's symbol. Passes and rewrite rules report their results to the observer, which is
the current trace.
"""
from __future__ import annotations

import textwrap
from collections.abc import Iterable
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from tinsmith.core.terminal import plural

Origin: TypeAlias = tuple[str, str, int]  # method, file, line
GRADIENT: Final = "grad of "
OPTIMIZER: Final = "optimizer step "
_interned: Final[dict[tuple[str, str, int, str], InLayer]] = {}


class InLayer(tuple[str, str, int]):
    """An origin (method, file, line) with the label of a layer. Equal lines of different layers are different origins.

    Origins of equal contents are one object.

    Attributes:
        layer: the path of the layer in the model and its class, ``layers.0 Conv2d``; ``grad of …`` for its gradient;
            ``optimizer step Adam`` for an optimizer.

    >>> a, b = InLayer("relu", "model.py", 3, "blocks.0 Block"), InLayer("relu", "model.py", 3, "blocks.1 Block")
    >>> method, file, line = a
    >>> method, line, a.layer, a == b, a is InLayer(*a, a.layer), len({a, b})
    ('relu', 3, 'blocks.0 Block', False, True, 2)
    """

    layer: str

    def __new__(cls, method: str, file: str, line: int, layer: str) -> InLayer:
        key = method, file, line, layer
        self = _interned.get(key)
        if self is None:
            self = super().__new__(cls, key[:3])
            self.layer = layer
            self = _interned.setdefault(key, self)
        return self

    __hash__ = object.__hash__  # by identity, as equality is

    def __eq__(self, other: object) -> bool:
        return self is other

    def __ne__(self, other: object) -> bool:
        return self is not other

    def __reduce__(self) -> tuple[type[InLayer], tuple[str, str, int, str]]:
        return InLayer, (*self, self.layer)

    @property
    def path(self) -> str:
        """The layer's path in the model, as in its state dict; empty for gradients, optimizers and the model itself.

        >>> InLayer("relu", "model.py", 3, "blocks.0 Block").path, InLayer("relu", "model.py", 3, "Model").path
        ('blocks.0', '')
        """
        path, _, _ = self.layer.rpartition(" ")
        return "" if self.layer.startswith((GRADIENT, OPTIMIZER)) else path


def in_layer(origin: Origin, layer: str) -> InLayer:
    """Return ``InLayer(*origin, layer)``; for hot paths, where most origins exist already.

    >>> in_layer(("relu", "model.py", 3), "act ReLU").layer
    'act ReLU'
    """
    return _interned.get((*origin, layer)) or InLayer(*origin, layer)


def layer_of(origin: Origin) -> str:
    """Return the label of an origin's layer; empty if it has none.

    >>> layer_of(("relu", "model.py", 3)), layer_of(InLayer("relu", "model.py", 3, "act ReLU"))
    ('', 'act ReLU')
    """
    return origin.layer if isinstance(origin, InLayer) else ""


def layers_of(origins: Iterable[Origin]) -> tuple[str, ...]:
    """Return the labels of the layers of some origins, each once, in order.

    >>> layers_of([("add", "m.py", 1), InLayer("relu", "m.py", 3, "act ReLU"), InLayer("exp", "m.py", 3, "act ReLU")])
    ('act ReLU',)
    """
    return tuple(dict.fromkeys(label for o in origins if (label := layer_of(o))))


def layers_text(labels: Iterable[str], most: int = 4) -> str:
    """Return labels of layers as one text: at most ``most`` of them, then the number of the others. Labels are never
    truncated, so that they can be searched for.

    >>> layers_text(["0 Linear", "1 relu"]), layers_text([f"{n} Linear" for n in range(9)], 2)
    ('0 Linear, 1 relu', '0 Linear, 1 Linear and 7 other layers')
    """
    found = list(labels)
    rest = len(found) - most
    if rest <= 1:
        return ", ".join(found)
    return f"{', '.join(found[:most])} and {plural(rest, 'other layer')}"


def wrapped_labels(text: str, width: int) -> list[str]:
    """Return the text of ``layers_text`` as lines, broken between labels only.

    >>> wrapped_labels("grad of 0 Linear, 1 relu", 20)
    ['grad of 0 Linear,', '1 relu']
    """
    kept = ", ".join(label.replace(" ", "\xa0") for label in text.split(", "))
    lines = textwrap.wrap(kept, width, break_long_words=False, break_on_hyphens=False)
    return [line.replace("\xa0", " ") for line in lines]

T = TypeVar("T")


class Observer(Protocol):
    """The receiver of every pass's result and of the rewrites in it. ``seen``: old node → new node in this pass."""

    seen: dict[Any, Any]

    def passed(self, name: str, value: Any) -> None: ...

    def rewritten(self, rule: Any, before: Any, after: Any) -> None: ...


class _Observed:
    observer: Observer | None = None

observed = _Observed()


def passed(name: str, value: T) -> T:
    """Return ``value``, the result of the pass ``name``, after reporting it to the observer, if any.

    >>> passed("simplify", 3)
    3
    """
    if observed.observer is not None:
        observed.observer.passed(name, value)
    return value
