"""Path of the model layer that is running, named as in its state dict: ``encoder.0.attn.q``. Used only by traces.

Layers have no common base class: any object may be one. The path is therefore derived from the call stack: each object
whose method is running is searched in the attributes, lists and dicts of the object whose method called it.
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
_MOST: Final = 100_000  # largest number of objects visited in the search for one layer

Step = tuple[str, Any]  # (".", attribute name), or ("", key of a list or dict)


class InLayer(Origin):
    """An origin (method, file, line) with a layer path; equal lines of different layers are different origins.

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
    """Return the prefixes of the file names that are not part of the user's program."""
    return (*(sysconfig.get_path(p) + os.sep for p in ("stdlib", "purelib", "platlib")),
            "<frozen ", "<string>", "<execnet", "<remote", _PACKAGE)


def layer_path(frame: FrameType | None, tensor: type) -> str:
    """Return the path of the innermost running layer from the outermost model; empty outside of any layer. Instances
    of ``tensor`` are not layers.

    An object that no enclosing object holds starts the path if the path is still empty: the object of a training loop
    may not hold the model. A layer that another layer creates temporarily counts as part of that layer.
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
    """Return the objects whose methods are running, outermost first: the user's objects and layers of this package.
    Frames that run the user's program (pytest, a notebook) are skipped."""
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


# Cache by (id of owner, id of layer) → (path, steps, number of attributes of the owner). Ids may be reused, so a hit is
# verified; a miss is searched again when the owner's number of attributes changes.
_paths: dict[tuple[int, int], tuple[str, tuple[Step, ...], int]] = {}


def _name_in(owner: Any, layer: Any, tensor: type) -> str:
    """Return the shortest attribute path from ``owner`` to ``layer``; empty if ``owner`` does not hold it."""
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
