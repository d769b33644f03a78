"""Which layer of a model is at work, named as its state is: ``encoder.0.attn.q``. Only a trace asks.

A layer is no class of its own here: any object may be one. So the objects whose methods are running tell: each is
looked for in the attributes, lists and dicts of the one around it.
"""
from __future__ import annotations

import functools
import itertools
import os
import sysconfig
from collections import deque
from collections.abc import Mapping
from types import FrameType, ModuleType
from typing import Any, Final

from tinsmith.core.errors import _PACKAGE
from tinsmith.ir.uop import Origin

_LAYERS: Final = os.path.join(_PACKAGE, "nn", "")
_MOST: Final = 100_000  # values that are looked at for one layer

Step = tuple[str, Any]  # an attribute's name, or a list's or dict's key


class InLayer(Origin):
    """An origin that knows its layer; equal lines of different layers are different origins.

    >>> a, b = InLayer("relu", "model.py", 3, "blocks.0"), InLayer("relu", "model.py", 3, "blocks.1")
    >>> method, file, line = a
    >>> method, line, a.layer, a == b, len({a, b})
    ('relu', 3, 'blocks.0', False, 2)
    """

    layer: str

    def __new__(cls, method: str, file: str, line: int, layer: str) -> InLayer:
        self = super().__new__(cls, (method, file, line))
        self.layer = layer
        return self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, InLayer) and self.layer == other.layer and tuple(self) == tuple(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((tuple(self), self.layer))

    def __reduce__(self) -> tuple[Any, ...]:
        return InLayer, (*self, self.layer)


@functools.cache
def _installed() -> tuple[str, ...]:
    """How the names of files begin that are no part of the user's program."""
    return (*(sysconfig.get_path(p) + os.sep for p in ("stdlib", "purelib", "platlib")),
            "<frozen ", "<string>", "<execnet", "<remote", _PACKAGE)


def layer_path(frame: FrameType | None, tensor: type) -> str:
    """The path of the innermost layer that is running, below the model around it; empty outside of any. An instance of
    ``tensor`` is no layer.

    What is found in nothing around it begins a path where there is none yet: a training loop's object holds no model. A
    layer that another makes on the fly counts as part of that one.
    """
    path, owner = "", None
    for layer in _running(frame, tensor):
        if owner is None:
            owner = layer
        elif layer is not owner:
            found = _name_in(owner, layer, tensor)
            if found:
                path = f"{path}.{found}" if path else found
            if found or not path:
                owner = layer
    return path


def _running(frame: FrameType | None, tensor: type) -> list[Any]:
    """The objects whose methods are running, the outermost first: the user's, and layers of this package. What runs the
    user's program (pytest, a notebook) is no part of it."""
    frames = []
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    found = []
    for f in itertools.dropwhile(lambda f: f.f_code.co_filename.startswith(_installed()), reversed(frames)):
        file = f.f_code.co_filename
        if file.startswith(_LAYERS) or not file.startswith(_PACKAGE):
            owner = f.f_locals.get("self")
            if hasattr(owner, "__dict__") and not isinstance(owner, (tensor, type, ModuleType)):
                found.append(owner)
    return found


# By ids, so what was found is checked again; what was not is looked for again once the owner has more attributes.
_paths: dict[tuple[int, int], tuple[str, tuple[Step, ...], int]] = {}


def _name_in(owner: Any, layer: Any, tensor: type) -> str:
    """The shortest path from an object to one that it holds; empty if it holds none such."""
    key = id(owner), id(layer)
    size = len(vars(owner))
    name, steps, size_then = _paths.get(key, ("", (), -1))
    if _followed(owner, steps) is not layer if steps else size != size_then:
        steps = _search(owner, layer, tensor)
        name = ".".join(str(name) for _, name in steps)
        _paths[key] = name, steps, size
    return name


def _followed(value: Any, steps: tuple[Step, ...]) -> Any:
    try:
        for kind, name in steps:
            value = vars(value)[name] if kind else value[name]
    except (KeyError, IndexError, TypeError):
        return None
    return value


def _search(owner: Any, layer: Any, tensor: type) -> tuple[Step, ...]:
    leaves = (str, bytes, int, float, tensor, type, ModuleType)
    seen, waiting = {id(owner)}, deque[tuple[Any, tuple[Step, ...]]]([(owner, ())])
    while waiting and len(seen) < _MOST:
        value, steps = waiting.popleft()
        for step, child in _children(value):
            if child is layer:
                return (*steps, step)
            if id(child) not in seen and not isinstance(child, leaves):
                seen.add(id(child))
                waiting.append((child, (*steps, step)))
    return ()


def _children(value: Any) -> list[tuple[Step, Any]]:
    if isinstance(value, Mapping):
        return [(("", k), v) for k, v in value.items()]
    if isinstance(value, (list, tuple)):
        return [(("", k), v) for k, v in enumerate(value)]
    return [((".", k), v) for k, v in vars(value).items()] if hasattr(value, "__dict__") else []
