"""Origins of new graph nodes: the method that the user called, its line, and the path of the running model layer.

Layers have no common base class: any object may be one. The path is therefore derived from the call stack: each object
whose method is running is searched in the attributes, lists and dicts of the object whose method called it. The result
is kept per layer and verified at each use, so that recording an operation seldom walks the whole stack.
"""
from __future__ import annotations

import functools
import itertools
import os
import sys
import weakref
from collections import deque
from collections.abc import Iterator, Mapping
from types import FrameType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from tinsmith.core.errors import _PACKAGE, EXAMPLES
from tinsmith.core.lazy_import import Late
from tinsmith.core.origin import GRADIENT, InLayer, Origin, in_layer, layer_of

if TYPE_CHECKING:
    import html as markup

else:
    markup = Late("html")

_LAYERS: Final = os.path.join(_PACKAGE, "nn", "")

_FUNCTIONAL: Final = os.path.join(_PACKAGE, "tensor", "nnops", "functional.py")  # the file of ``Tensor.sequential``

_USER, _OURS, _NN, _SEQUENTIAL = range(4)  # kinds of source files

_MOST: Final = 100_000  # largest number of objects visited in the search for one layer

_KEPT: Final = 10_000  # labels kept

_CO_OPTIMIZED: Final = 1  # flag of the code of functions: the frame's ``f_locals`` is a copy of its variables

Step = tuple[str, Any]  # (".", attribute name), or ("", key of a list or dict)


class _Position(NamedTuple):
    """A callable that ``x.sequential(layers)`` is calling."""

    layers: Any
    number: int


class _Kept(NamedTuple):
    """The label of a layer, valid while ``steps`` lead from the outermost object to it."""

    root: weakref.ref[Any]
    steps: tuple[Step, ...]
    label: str

_kept: dict[tuple[int, int, str, int], _Kept] = {}


def origin_of(frame: FrameType | None, tensor: type) -> Origin | None:
    """Return the origin of the node that the function of ``frame`` makes; None if the user's program is not running.

    Data has a line and no method. Instances of ``tensor`` are not layers.
    """
    called, innermost, layer = None, None, None
    while frame is not None:
        code = frame.f_code
        kind = _kinds.get(code.co_filename)
        if kind is None:
            kind = _kind(code.co_filename)
        if kind == _USER:
            if innermost is None:
                innermost = frame
                layer = _owner(frame) if code.co_argcount and code.co_varnames[0] == "self" else None
            break
        if innermost is None and kind != _OURS:
            layer = _layer(frame, kind)
            innermost = None if layer is None else frame
        if called is None or code.co_name != "sequential":  # the layer that it calls tells more
            called = frame
        frame = frame.f_back
    user = frame
    if called is None or user is None or innermost is None:
        return None
    name = called.f_code.co_name
    if name in ("__init__", "__call__"):  # of a tensor, or of a layer: that is its class's name
        owner = layer if called is innermost else _owner(called)
        method = "" if isinstance(owner, tensor) else type(owner).__name__
    else:
        method = name.strip("_")
    origin: Origin = method, user.f_code.co_filename, user.f_lineno
    if name == "__init__" or (layer is None and not _may_run_a_layer(innermost)):
        return origin
    label = _label(layer, innermost, user, tensor)
    return in_layer(origin, label) if label else origin


def gradient_origins(frame: FrameType | None, tensor: type) -> Any:
    """Return a function from the origins of a node to those of the nodes of its gradient, for the user's call of
    ``backward`` in which ``frame`` runs.

    The new origins have the method and the line of that call, and the label ``grad of`` with the node's layer.
    """
    found = origin_of(frame, tensor)
    if found is None:
        return lambda _: ()
    plain, labelled = (found,), dict[str, tuple[Origin, ...]]()

    def of(origins: tuple[Origin, ...]) -> tuple[Origin, ...]:
        if not origins or type(origins[-1]) is tuple or not (label := layer_of(origins[-1])):
            return plain
        if label not in labelled:
            labelled[label] = (InLayer(*found, f"{GRADIENT}{label}"),)
        return labelled[label]

    return of


_kinds: Final[dict[str, int]] = {}


def _kind(file: str) -> int:
    """Return the kind of a source file."""
    found = _kinds.get(file)
    if found is None:
        ours = _NN if file.startswith(_LAYERS) else _SEQUENTIAL if file == _FUNCTIONAL else _OURS
        found = _kinds[file] = ours if file.startswith(_PACKAGE) and not file.startswith(EXAMPLES) else _USER
    return found


@functools.cache
def _installed() -> tuple[str, ...]:
    """Return the prefixes of the file names that are not part of the user's program: those of the standard library, of
    installed packages and of their console scripts (``sysconfig`` knows these folders, too, but takes milliseconds to
    import)."""
    windows = os.name == "nt"
    installed = [os.path.join(sys.prefix, folder) for folder in (("Lib", "Scripts") if windows else ("lib", "bin"))]
    folders = os.path.dirname(os.__file__), *installed, os.path.dirname(os.path.dirname(np.__file__))
    return (*(folder + os.sep for folder in folders), "<frozen ", "<string>", "<execnet", "<remote", _PACKAGE)


@functools.cache
def _is_installed(file: str) -> bool:
    return file.startswith(_installed()) and not file.startswith(EXAMPLES)


def _variables(frame: FrameType) -> Mapping[str, Any]:
    """Return the variables of a frame, without keeping their values alive or changing what ``locals()`` returned.

    Up to Python 3.12 a frame keeps the dictionary that ``f_locals`` made, and with it each value, until it ends.
    """
    found = frame.f_locals
    if frame.f_code.co_flags & _CO_OPTIMIZED and type(found) is dict and sys.getrefcount(found) <= 3:
        copy = dict(found)
        found.clear()
        return copy
    return found


def _owner(frame: FrameType) -> Any:
    """Return the value of the variable ``self`` of a frame; None without one."""
    found = frame.f_locals
    owner = found.get("self")
    if frame.f_code.co_flags & _CO_OPTIMIZED and type(found) is dict and sys.getrefcount(found) <= 3:
        found.clear()  # nobody else has this copy: see _variables
    return owner


def _layer(frame: FrameType, kind: int) -> Any:
    """Return the object or the position in a list that a frame runs; None if it runs no layer."""
    if kind == _NN:
        return _owner(frame)
    code = frame.f_code
    if kind == _USER:
        return _owner(frame) if code.co_argcount and code.co_varnames[0] == "self" else None
    if code.co_name != "sequential":
        return None
    found = frame.f_locals
    layers, number = found["layers"], found.get("position")
    if type(found) is dict:
        found.clear()  # see _variables
    return None if number is None else _Position(layers, number)


def _label(layer: Any, innermost: FrameType, user: FrameType, tensor: type) -> str:
    """Return the label of the innermost running layer, ``layer``, which runs in the frame ``innermost``."""
    if layer is None:  # a function, which a layer may have called
        return _walked(innermost, tensor)[0]
    if hasattr(type(layer), "kernel_label"):  # an optimizer
        named: str = layer.kernel_label
        return named
    target, number = (layer.layers, layer.number) if type(layer) is _Position else (layer, -1)
    key = id(target), number, user.f_code.co_filename, user.f_code.co_firstlineno
    kept = _kept.get(key)
    if kept is not None:
        root = kept.root()
        if root is not None and _followed(root, kept.steps) is target:
            return kept.label
    label, chain = _walked(innermost, tensor)
    if len(_kept) >= _KEPT:
        _kept.clear()
    steps = _steps_to(chain[:-1] if number >= 0 else chain, target)
    if steps is not None:
        _kept[key] = _Kept(weakref.ref(chain[0][0]), steps, label)
    return label


def _may_run_a_layer(frame: FrameType | None) -> bool:
    """Return False if no frame, from this one outwards, can belong to a layer.

    Only the code of each frame is inspected, not its variables. Frames of installed packages are included if the user's
    program called them; other such frames run the program (pytest, a notebook).
    """
    method_of_package = False
    while frame is not None:
        code = frame.f_code
        kind = _kinds.get(code.co_filename)
        if kind is None:
            kind = _kind(code.co_filename)
        if kind == _USER:
            method = code.co_argcount > 0 and code.co_varnames[0] == "self"
            if method or method_of_package:
                if not _is_installed(code.co_filename):
                    return True
                method_of_package |= method
        elif kind == _NN or (kind == _SEQUENTIAL and code.co_name == "sequential"):
            return True
        frame = frame.f_back
    return False


def _steps_to(chain: list[tuple[Any, tuple[Step, ...]]], target: Any) -> tuple[Step, ...] | None:
    """Return the steps from the first object of ``chain`` to ``target``, if they exist and that object can be
    referred to weakly."""
    if not chain or not type(chain[0][0]).__weakrefoffset__:
        return None
    steps = tuple(itertools.chain.from_iterable(steps for _, steps in chain[1:]))
    return steps if _followed(chain[0][0], steps) is target else None


def _walked(frame: FrameType, tensor: type) -> tuple[str, list[tuple[Any, tuple[Step, ...]]]]:
    """Return the label of the innermost running layer, and the objects along its path, outermost first, each with the
    path from the previous object.

    An object that no enclosing object holds starts the path if the path is still empty: the object of a training loop
    may not hold the model. A layer that another layer creates temporarily is treated as a part of that layer.
    """
    names: list[str] = []
    chain: list[tuple[Any, tuple[Step, ...]]] = []
    for layer, caller in _running(frame, tensor):
        if hasattr(type(layer), "kernel_label"):
            return layer.kernel_label, []
        position = type(layer) is _Position
        target = layer.layers if position else layer
        if not chain:
            names, chain = _name_in_variables(caller, target, tensor), [(target, ())]
        elif target is not chain[-1][0]:
            steps = _steps_in(chain[-1][0], target, tensor)
            if steps:
                names += [str(name) for _, name in steps]
                chain.append((target, steps))
            elif not names:
                names, chain = _name_in_variables(caller, target, tensor), [(target, ())]
            else:
                continue
        if position:
            names.append(str(layer.number))
            chain.append((target[layer.number], (("", layer.number),)))
    if not chain:
        return "", []
    innermost = chain[-1][0]
    if not names:
        return (type(innermost).__name__ if callable(innermost) or hasattr(type(innermost), "forward") else ""), chain
    return f"{'.'.join(names)} {_class(innermost)}", chain


def _class(layer: Any) -> str:
    """Return the name of a layer's class, or of a function."""
    function = getattr(layer, "func", layer)  # of functools.partial
    return function.__name__ if isinstance(function, (FunctionType, MethodType)) else type(layer).__name__


def _running(frame: FrameType | None, tensor: type) -> Iterator[tuple[Any, FrameType | None]]:
    """Yield the layers that are running, outermost first, each with the frame that called it: the user's objects,
    layers of this package, and positions in lists. Frames that run the user's program (pytest, a notebook) are
    skipped."""
    frames = []
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    before = None
    for f in itertools.dropwhile(lambda f: _is_installed(f.f_code.co_filename), reversed(frames)):
        kind = _kind(f.f_code.co_filename)
        if kind != _OURS:
            owner = _layer(f, kind)
            if type(owner) is _Position or (hasattr(owner, "__dict__")
                                            and not isinstance(owner, (tensor, type, ModuleType))):
                yield owner, before
            before = f


def _name_in_variables(frame: FrameType | None, layer: Any, tensor: type) -> list[str]:
    """Return the name by which the caller of an outermost layer knows it, if it is no model of the user's but a layer
    of this package or a list; empty for models."""
    if frame is None or not (type(layer) in (list, tuple) or type(layer).__module__.startswith("tinsmith.nn.layers.")):
        return []
    if isinstance(layer, list) and type(layer) is not list:  # nn.Sequential: a model
        return []
    for variables in (_variables(frame), frame.f_globals):
        for name, value in variables.items():
            if value is layer:
                return [name]
            if type(value) in (list, tuple, dict):
                step = next((k for (_, k), v in _children(value) if v is layer), None)
                if step is not None:
                    return [name, str(step)]
    return []

# Cache by (id of owner, id of layer) → (steps, number of attributes of the owner). Ids may be reused, so a hit is
# verified; a miss is searched again when the owner's number of attributes changes.
_paths: dict[tuple[int, int], tuple[tuple[Step, ...], int]] = {}


def _steps_in(owner: Any, layer: Any, tensor: type) -> tuple[Step, ...]:
    """Return the shortest path from ``owner`` to ``layer``; empty if ``owner`` does not hold the layer."""
    key = id(owner), id(layer)
    size = len(getattr(owner, "__dict__", ()))
    steps, size_then = _paths.get(key, ((), -1))
    if _followed(owner, steps) is not layer if steps else size != size_then:
        steps = _search(owner, layer, tensor)
        _paths[key] = steps, size
    return steps


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
