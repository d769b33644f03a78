"""Guards on the Python state that a capture read: scalars, containers and objects behind its globals, closure and self.

The walk starts at the function and the objects among its arguments, and at the globals that each function names which
runs during the capture. From an object the walk continues to the attributes that one of these functions names, from a
container to all items. Attributes are read without running code of their class (no descriptors, no ``__getattr__``); a
large NumPy array counts by identity and a sampled version. The result is one generated function, which returns for a
later call where the first difference is: an attribute costs what its own lookup costs.
"""
from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
import logging
import operator
import pickle
import random
import sys
import threading
import types
import weakref
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from io import IOBase
from operator import is_
from typing import Any, Final

import numpy as np

from tinsmith.core.errors import is_from_handler
from tinsmith.ir import UOp
from tinsmith.jit.guards.signature import BYTES, SCALARS, Names, fields_of, fixed, library, line_naming, names_of
from tinsmith.tensor.autograd.history import is_computed
from tinsmith.tensor.base import TensorBase
from tinsmith.tensor.tensor import Tensor

FUNCTIONS: Final = (types.FunctionType, staticmethod, classmethod, property, functools.cached_property)
ABSENT: Final[Any] = object()
UNSET: Final[Any] = object()  # a slot without a value
_LATE: Final = ("__slotnames__", "__annotations__", "__annotations_cache__")


def size_of(space: Mapping[str, Any]) -> int:
    """Return the number of names in a class's namespace, without those that Python adds lazily."""
    return len(space) - sum(map(space.__contains__, _LATE))


def found_in(kind: type, name: str) -> Any:
    """Return a class's raw attribute along its MRO, without binding it."""
    return next((vars(k)[name] for k in kind.__mro__ if name in vars(k)), ABSENT)


def parameters_of(function: Any) -> tuple[str, ...]:
    while isinstance(function, functools.partial):
        function = function.func
    code = getattr(function, "__code__", None) or getattr(found_in(type(function), "__call__"), "__code__", None)
    names = code.co_varnames[:code.co_argcount] if isinstance(code, types.CodeType) else ()
    return names if isinstance(function, types.FunctionType) else names[1:]


def default_of(f: types.FunctionType, number: int) -> str:
    count = f.__code__.co_argcount
    return f.__code__.co_varnames[count - len(f.__defaults__ or ()) + number]


def space_of(value: Any) -> dict[str, Any] | None:
    try:
        space = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return None
    return space if isinstance(space, dict) else None


def own_names(value: Any) -> set[str]:
    """Return the names of an object's own attributes, and of data attributes of its class."""
    if isinstance(value, types.ModuleType):
        return {n for n, v in vars(value).items() if isinstance(v, SCALARS)}
    names = set(space_of(value) or (vars(value) if isinstance(value, type) else ()))
    for kind in type(value).__mro__:
        if not fixed(kind.__module__):
            names |= {n for n, v in vars(kind).items() if not isinstance(v, FUNCTIONS)}
    return {n for n in names if not n.startswith("__")}


def read(value: Any, name: str) -> Any:
    """Return an instance's attribute without running code of its class; ``ABSENT`` if that needs such code."""
    raw = found_in(type(value), name)
    if isinstance(raw, types.MemberDescriptorType):
        if fixed(raw.__objclass__.__module__):
            return ABSENT
        return raw.__get__(value, type(value)) if has(raw, value) else UNSET
    if hasattr(type(raw), "__set__"):
        return ABSENT
    space = space_of(value)
    if space is not None and name in space:
        return space[name]
    return ABSENT if raw is ABSENT or hasattr(type(raw), "__get__") else raw


def has(slot: Any, value: Any) -> bool:
    try:
        slot.__get__(value, type(value))
    except AttributeError:
        return False
    return True


_GENERATORS: Final = (random.Random, np.random.Generator, np.random.RandomState, np.random.BitGenerator)
_DICTS: Final = (dict, OrderedDict, defaultdict, Counter, types.MappingProxyType)
_NAMING: Final = (operator.attrgetter, operator.methodcaller)
_CACHED: Final = type(functools.lru_cache(len))

_PARTS: Final[dict[type, tuple[str, ...]]] = {
    types.MethodType: ("__self__", "__func__"), functools.partial: ("func", "args", "keywords"),
    staticmethod: ("__func__",), classmethod: ("__func__",), property: ("fget", "fset", "fdel"),
    functools.cached_property: ("func",), _CACHED: ("__wrapped__",)}

_PLAIN: Final = (weakref.ref, tuple, frozenset, *list(_PARTS)[1:])  # immutable containers: compared by their items
_COPYING: Final = {"tinsmith", "copy", "dataclasses", "pickle", "inspect"}  # modules that read all attributes
_NUMPY: Final = np.random.mtrand._rand  # the global generator of np.random.rand and similar functions
_DRAWS: Final = {"random", "mtrand", "_rand",  # names by which code reaches it
                 *(name for name, f in vars(np.random).items() if getattr(f, "__self__", f) is _NUMPY)}
MOST_GUARDS: Final = 20_000


class Unguardable(Exception):
    """The call reads state that guards cannot check; the message names it."""


def other(value: Any, old: Any) -> bool:
    """Return True if a scalar differs from ``old`` in type or in any bit."""
    return type(value) is not type(old) or (value != old if type(value) is int else repr(value) != repr(old))


def others(values: Collection[Any], old: tuple[Any, ...]) -> bool:
    """Return True if any scalar of a sequence differs from ``old``, as in ``other``."""
    return len(values) != len(old) or not (all(map(is_, values, old)) or not any(map(other, values, old)))


def other_array(value: Any, old: Any) -> bool:
    return type(value) is not type(old) or value.shape != old.shape or value.dtype != old.dtype or (
        value.tobytes() != old.tobytes())


@dataclasses.dataclass(slots=True)
class _Node:
    """An object with attributes: its variable in the generated function, and its path for messages."""

    value: Any
    var: str
    path: str
    seen: set[str]


class State:
    """The Python state that a call reads, collected while the call runs, then compiled to guards.

    Args:
        function: the captured function.
        args, kwargs: the arguments of the call.

    Attributes:
        held: objects that are compared by identity; the guards are valid as long as they live.
        tensors: the tensors found, with their variables in the generated function.
        opaque: iterators, open files and random generators found; guards cannot check how they advance.
    """

    differs: Callable[[tuple[Any, ...], dict[str, Any]], int | None]

    def __init__(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.lines: list[tuple[str, str]] = []  # (guard statement, path of the guarded value)
        self.constants: dict[str, Any] = {"other": other, "others": others, "other_array": other_array,
                                          "version": version, "found_in": found_in, "is_computed": is_computed,
                                          "size_of": size_of, "deque": deque, "modules": sys.modules}
        self.variables: dict[int, str] = {}
        self.spaces: dict[int, str] = {}
        self.nodes: list[_Node] = []
        self.functions: dict[types.CodeType, list[_Node]] = {}
        self.methods: dict[types.CodeType, list[tuple[_Node, str]]] = {}
        self.places: set[str] = set()
        self.passed: list[Any] = []  # arrays, and containers among the arguments
        self.alive: list[Any] = []  # keeps visited objects alive, so that ids are not reused
        self.held: list[Any] = []
        self.tensors: list[tuple[Tensor, str, str]] = []
        self.given: list[tuple[Tensor, str, str]] = []  # tensors among the arguments
        self.opaque: list[tuple[Any, str, Any]] = [(_NUMPY, "random", _position(_NUMPY))]
        self.names: set[str] = set()
        self.failed = ""
        self.any = False
        self.grads = self.sets_grads = False  # the user's code looks at gradients, or sets them
        self.goes_back = False  # it calls backward(), which fills the gradients of data and of what asks for them
        self.texts: set[str] = set()
        self.ran: dict[types.CodeType, bool] = {}  # code that ran → True if it is user code
        self.users: list[types.CodeType] = []  # user code among ``ran``, set after the call
        parameters = parameters_of(function)
        with self.limited():
            self.visit(function, self.constant(function), "")
            for n, value in enumerate(args):
                self.argument(value, f"args[{n}]", parameters[n] if n < len(parameters) else f"args[{n}]")
            for name, value in kwargs.items():
                self.argument(value, f"kwargs[{name!r}]", name)

    @contextlib.contextmanager
    def limited(self) -> Iterator[None]:
        """Record unguardable state in ``failed`` instead of raising into the call."""
        try:
            yield
        except Unguardable as why:
            self.failed = str(why)
        except Exception as why:  # a user object whose inspection raises
            if is_from_handler(why):
                raise
            self.failed = f"can read Python state that cannot be watched ({type(why).__name__}: {why})"

    # *** what ran ***

    def add(self, code: types.CodeType, space: dict[str, Any]) -> None:
        """Record a function that runs for the first time; look up its names before it can change their values."""
        module = str(space.get("__name__", ""))
        if not fixed(module) and not self.failed:
            with self.limited():
                self.look(code, space, module)

    def look(self, code: types.CodeType, space: dict[str, Any], module: str) -> None:
        names, users = names_of(code), not library(module)
        self.ran[code] = users
        self.grads = self.grads or (users and "grad" in names.attributes)
        self.sets_grads = self.sets_grads or (users and "grad" in names.stored)
        self.goes_back = self.goes_back or (users and "backward" in names.attributes)
        self.texts |= names.texts
        self.more(names.attributes)
        if names.any and not self.any and (users or module.partition(".")[0] in _COPYING):
            self.any = True
            for node in list(self.nodes):
                self.attributes(node, None)
        for node in self.functions.get(code, ()):
            self.enter(node)
        for node, name in self.methods.get(code, ()):
            self.attributes(node, {name})
        if users:
            self.globals(space, names)

    def more(self, names: Collection[str]) -> None:
        """Add attribute names, and guard those attributes of known objects."""
        new = set(names) - self.names
        self.names |= new
        for node in list(self.nodes) if new else ():
            self.attributes(node, new)

    def globals(self, space: dict[str, Any], names: Names) -> None:
        if id(space) not in self.spaces:
            self.spaces[id(space)] = self.constant(space)
        var = self.spaces[id(space)]
        for name in sorted(names.spaces):
            if name in space:
                self.place(space[name], f"{var}[{name!r}]", name)
            else:
                self.guard(f"{name!r} in {var}", name)
        for name in sorted(names.modules):
            if isinstance(module := sys.modules.get(name), types.ModuleType):
                self.place(module, f"modules[{name!r}]", name)

    def place(self, value: Any, at: str, path: str) -> None:
        """``visit`` a value once, though several functions may name it."""
        if at not in self.places:
            self.places.add(at)
            self.visit(value, at, path)

    # *** the walk ***

    def constant(self, value: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = value
        return name

    def guard(self, condition: str, path: str) -> None:
        """Add a guard that fails if ``condition`` is true."""
        self.lines.append((f"if {condition}: return {len(self.lines)}", path))
        if len(self.lines) > MOST_GUARDS:
            raise Unguardable(f"reads more Python state than guards support (such as {path})")

    def argument(self, value: Any, at: str, path: str) -> None:
        """Guard objects among the arguments; the signature compares other values."""
        self.passed.append(value)
        if isinstance(value, (*SCALARS, TensorBase, UOp, np.ndarray, np.generic, *BYTES)):
            if isinstance(value, Tensor):
                self.given.append((value, at, path))
        elif isinstance(value, (list, tuple)):
            for n, item in enumerate(value):
                self.argument(item, f"{at}[{n}]", f"{path}[{n}]")
        elif isinstance(value, dict):
            for n, (key, item) in enumerate(value.items()):
                self.argument(item, f"[*{at}.values()][{n}]", f"{path}[{key!r}]")
        elif isinstance(value, (set, frozenset, deque)):
            for n, item in enumerate(value):
                self.argument(item, f"[*{at}][{n}]", f"{path}[{n}]")
        elif names := fields_of(value):
            self.visit(type(value), f"type({at})", type(value).__name__)
            for name in names:
                self.argument(getattr(value, name), f"{at}.{name}", f"{path}.{name}")
        else:
            self.visit(value, at, path)

    def visit(self, value: Any, at: str, path: str) -> None:
        """Guard that the expression ``at`` gives this value again, recursively."""
        if isinstance(value, enum.Enum) or value is None or value is True or value is False or value is Ellipsis:
            self.guard(f"{at} is not {self.constant(value)}", path)
        elif isinstance(value, SCALARS):
            var, const = f"v{len(self.lines)}", self.constant(value)
            self.lines.append((f"{var} = {at}", path))
            self.guard(f"{var} is not {const} and other({var}, {const})", path)
        elif isinstance(value, np.ndarray) and value.dtype != object and value.nbytes > LARGE:
            self.large(value, at, path)
        elif isinstance(value, (np.ndarray, np.generic)) and value.dtype != object:
            self.passed.append(value)
            self.guard(f"other_array({at}, {self.constant(value.copy())})", path)
        elif isinstance(value, BYTES):
            self.passed.append(value)
            self.guard(f"bytes({at}) != {self.constant(bytes(value))}", path)
        elif id(value) in self.variables:
            self.guard(f"{at} is not {self.variables[id(value)]}", path)
        else:
            self.object(value, at, path)

    def large(self, value: np.ndarray[Any, Any], at: str, path: str) -> None:
        """Guard a large array by identity and version number, because comparing all elements takes longer than most
        calls."""
        self.passed.append(value)
        self.held.append(value)
        self.guard(f"id({at}) != {id(value)} or version({at}) != {self.constant(version(value))}", path)

    def object(self, value: Any, at: str, path: str) -> None:
        """Guard an object by identity, and its contents."""
        var = f"v{len(self.lines)}"
        self.variables[id(value)] = var
        self.alive.append(value)
        self.lines.append((f"{var} = {at}", path))
        if not path or isinstance(value, types.MethodType):
            pass  # the captured function is what it is; a method is made anew by each look at it
        elif isinstance(value, _PLAIN):
            self.guard(f"type({var}) is not {self.constant(type(value))}", path)
        else:
            self.guard(f"id({var}) != {id(value)}", path)
            if not isinstance(value, (list, dict, set, deque, tuple)):  # their items are compared
                self.held.append(value)
        if isinstance(value, Tensor):
            self.tensors.append((value, var, path))
        elif isinstance(value, (list, tuple, set, frozenset, deque, *_DICTS)):
            self.items(value, var, path)
        elif isinstance(value, np.ndarray):
            self.guard(f"{var}.shape != {value.shape}", path)
            self.row(tuple(value.ravel().tolist()), f"{var}.ravel().tolist()", path)
        elif isinstance(value, weakref.ref):
            self.visit(value(), f"{var}()", path)
        elif isinstance(value, _NAMING):
            self.more({n for arg in value.__reduce__()[1] if isinstance(arg, str) for n in arg.split(".")})
        elif isinstance(value, _CACHED) and isinstance(value.__wrapped__, types.FunctionType):
            self.add(value.__wrapped__.__code__, value.__wrapped__.__globals__)  # it has run, now or before
        elif _goes_on(value):
            self.opaque.append((value, path, _position(value)))
        for kind, names in _PARTS.items():
            if isinstance(value, kind):
                self.parts(value, var, path, names)
        self.behind(value, var, path)

    def parts(self, value: Any, var: str, path: str, names: Iterable[str]) -> None:
        for name in names:
            self.visit(getattr(value, name), f"{var}.{name}", path if name != "__self__" else path or "self")

    def behind(self, value: Any, var: str, path: str) -> None:
        """Guard the attributes of ``value``: a function, class, module or instance of the user's code.

        Values of the standard library, of Tinsmith (``fixed``) and logging are assumed constant.
        """
        kind = type(value)
        if issubclass(value if isinstance(value, type) else kind, (logging.Filterer, logging.Manager)):
            return  # logging state does not change results
        if isinstance(value, types.ModuleType):
            if fixed(value.__name__) or value.__name__.partition(".")[0] in sys.stdlib_module_names:
                return
        elif hasattr(kind, "jit_cache") or fixed(
                (value if isinstance(value, (type, types.FunctionType)) else kind).__module__ or ""):
            return
        node = _Node(value, var, path, set())
        self.nodes.append(node)
        if isinstance(value, types.FunctionType):
            self.functions.setdefault(value.__code__, []).append(node)
            if value.__code__ in self.ran:
                self.enter(node)
        elif isinstance(value, type):
            for n, base in enumerate(value.__mro__):
                if not fixed(base.__module__):
                    self.guard(f"size_of({var}.__mro__[{n}].__dict__) != {size_of(vars(base))}", path)
            self.add_methods(node)
        elif not isinstance(value, types.ModuleType):
            self.visit(kind, f"type({var})", kind.__name__)
            if (space := space_of(value)) is not None:
                self.guard(f"len({var}.__dict__) != {len(space)}", path)
        self.attributes(node, None if self.any else self.names)

    def add_methods(self, node: _Node) -> None:
        """Register the functions of a class. When one of them runs, the attribute that holds it is guarded."""
        for kind in node.value.__mro__:
            for name, raw in vars(kind).items() if not fixed(kind.__module__) else ():
                for f in (raw, *(getattr(raw, part, None) for part in ("__func__", "fget", "fset", "func"))):
                    if isinstance(f, types.FunctionType):
                        self.methods.setdefault(f.__code__, []).append((node, name))
                        if f.__code__ in self.ran:
                            self.attributes(node, {name})

    def items(self, value: Any, var: str, path: str) -> None:
        """Guard all items of a container; scalars are compared by value."""
        if isinstance(value, _DICTS):
            keys, values = (f"{var}.{f}()" if type(value) in _DICTS else f"dict.{f}({var})" for f in ("keys", "values"))
            self.row(tuple(value.keys()), keys, path)
            self.row(tuple(value.values()), values, path, list(value))
        else:
            base: Any = next(k for k in (list, tuple, set, frozenset, deque) if isinstance(value, k))
            natural = type(value) is base
            whole = var if natural else f"[*{base.__name__}.__iter__({var})]"
            self.row(tuple(base.__iter__(value)), whole, path, direct=natural and base in (list, tuple))

    def row(self, items: tuple[Any, ...], whole: str, path: str, keys: list[Any] | None = None,
            direct: bool = False) -> None:
        """Guard the items of a sequence, which the expression ``whole`` evaluates to; ``direct``: it can be indexed."""
        if all(type(i) in SCALARS for i in items):
            self.guard(f"others({whole}, {self.constant(items)})", path)
            return
        if not direct:
            var = f"v{len(self.lines)}"
            self.lines.append((f"{var} = [*{whole}]", path))
            whole = var
        self.guard(f"len({whole}) != {len(items)}", path)
        for n, item in enumerate(items):
            key = keys[n] if keys is not None else n
            shown = f"[{key!r}]" if isinstance(key, SCALARS) else f"[{type(key).__name__}]"
            self.visit(item, f"{whole}[{n}]", path + shown)

    def attributes(self, node: _Node, names: Collection[str] | None) -> None:
        """Guard the attributes of a node with these names (None: all names that the call may read)."""
        value = node.value
        for name in sorted((own_names(value) | self.names if names is None else set(names)) - node.seen):
            if name.startswith("__") and name.endswith("__") and not isinstance(value, type):
                continue
            node.seen.add(name)
            path = f"{node.path}.{name}" if node.path else name
            if isinstance(value, type):
                self.of_class(node, name, path)
            elif isinstance(value, (types.ModuleType, types.FunctionType)):
                if name in vars(value):
                    self.visit(vars(value)[name], f"{node.var}.__dict__[{name!r}]", path)
                elif name in self.texts and not name.startswith("__"):
                    self.guard(f"{name!r} in {node.var}.__dict__", path)
            elif (found := read(value, name)) is UNSET:
                self.guard(f"hasattr({node.var}, {name!r})", path)
            elif found is not ABSENT:
                natural = found_in(type(value), "__getattribute__") is vars(object)["__getattribute__"]
                self.visit(found, f"{node.var}.{name}" if natural else
                           f"object.__getattribute__({node.var}, {name!r})", path)

    def of_class(self, node: _Node, name: str, path: str) -> None:
        if not any(name in vars(k) and not fixed(k.__module__) for k in node.value.__mro__):
            return
        raw = found_in(node.value, name)
        if raw is ABSENT or isinstance(raw, (types.MemberDescriptorType, types.GetSetDescriptorType)):
            return
        plain = isinstance(raw, types.FunctionType) or not hasattr(type(raw), "__get__")
        plain = plain and found_in(type(node.value), "__getattribute__") is vars(type)["__getattribute__"]
        self.visit(raw, f"{node.var}.{name}" if plain else f"found_in({node.var}, {name!r})", path)

    def enter(self, node: _Node) -> None:
        """Guard the closure and the defaults of a function that runs."""
        f = node.value
        for n, (name, cell) in enumerate(zip(f.__code__.co_freevars, f.__closure__ or ())):
            at = f"{self.constant(cell)}" if not node.path else f"{node.var}.__closure__[{n}]"
            try:
                self.visit(cell.cell_contents, f"{at}.cell_contents", name)
            except ValueError:
                self.guard(f"{at} != {self.constant(types.CellType())}", name)
        for n, value in enumerate(f.__defaults__ or ()):
            self.visit(value, f"{node.var}.__defaults__[{n}]", default_of(f, n))
        for name, value in (f.__kwdefaults__ or {}).items():
            self.visit(value, f"{node.var}.__kwdefaults__[{name!r}]", name)

    # *** afterwards ***

    def compile(self, placed: Collection[int], graded: Collection[int]) -> None:
        """Generate the guards of all tensors found and compile the guard function.

        Args:
            placed: ids of tensors whose size, dtype and device are guarded elsewhere.
            graded: ids of tensors whose gradient is guarded elsewhere.
        """
        for t, var, path in self.tensors:
            self.guard(f"{var}.requires_grad is not {self.constant(t.requires_grad)}", path)
            if id(t) not in placed:
                kind = self.constant((t.shape, t.dtype, t.device))
                self.guard(f"({var}.shape, {var}.dtype, {var}.device) != {kind}", path)
            if self.goes_back and t.requires_grad is None and t.dtype.is_float:
                self.guard(f"is_computed({var}.uop) is not {is_computed(t.uop)}", path)
        for t, var, path in [*self.tensors, *self.given] if self.grads else ():
            if self.sets_grads and id(t) not in graded:
                self.guard(f"id({var}.grad) != {id(t.grad)}", f"{path}.grad")
                self.held.append(t.grad)
            elif id(t) not in graded:
                self.guard(f"{var}.grad is {'not ' if t.grad is None else ''}None", f"{path}.grad")
        self.body = [line for line, _ in self.lines]
        self.define(dict(self.constants))
        self.paths = [path for _, path in self.lines]
        self.lines, self.nodes, self.alive, self.tensors, self.given, self.opaque = [], [], [], [], [], []
        self.functions, self.methods, self.variables, self.spaces, self.constants = {}, {}, {}, {}, {}
        self.users = [code for code, users in self.ran.items() if users]
        self.ran, self.passed = {}, []

    def define(self, space: dict[str, Any]) -> None:
        """Compile ``differs`` from the collected lines, with the constants in ``space``."""
        body = "\n ".join(self.body) or "pass"
        exec(compile(f"def differs(args, kwargs):\n {body}\n return None", "<guards>", "exec"), space)
        self.differs = space["differs"]

    def let_change(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Drop the guards on values that the call itself has changed. Return True if all others hold."""
        try:
            while (number := self.differs(args, kwargs)) is not None:
                self.body[number] = "pass"
                self.define(self.differs.__globals__)
        except Exception as why:  # something on the way is gone
            if is_from_handler(why):
                raise
            return False
        return True

    def knows(self, value: Any) -> bool:
        """Return True if an object was found by the walk, so it existed before the call."""
        return id(value) in self.variables or any(value is v for v in self.passed)

    def change(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
        """Return the path of the first difference; None if nothing changed."""
        try:
            number = self.differs(args, kwargs)
        except Exception as why:  # an object on the path no longer exists
            if is_from_handler(why):
                raise
            return "something that it reads, which is gone"
        return None if number is None else self.paths[number] or "the function"

    def gone_on(self) -> Iterator[tuple[str, str, int]]:
        """Yield (kind, file, line) of each iterator, file and random generator that the call has advanced."""
        for value, path, position in self.opaque:
            if (position is None or _position(value) != position) and not self._is_of_other_threads(value):
                kinds = (random.Random, "random"), (IOBase, "an open file"), (_GENERATORS, "np.random")
                what = next((text for kind, text in kinds if isinstance(value, kind)), type(value).__name__)
                yield what, *self.line(path.partition("[")[0].rpartition(".")[2])

    def _is_of_other_threads(self, value: Any) -> bool:
        """Return True if other threads run, and no function of the call could reach NumPy's global generator: they
        have advanced it."""
        return value is _NUMPY and threading.active_count() > 1 and not (
            any(v is _NUMPY for v, _, _ in self.opaque[1:]) or self.texts & _DRAWS
            or any(_DRAWS.intersection(code.co_names) for code in self.ran))

    def line(self, name: str) -> tuple[str, int]:
        """Return (file, line) of the first use of a name in user code that ran; its first line if there is none."""
        codes = self.users or [code for code, users in self.ran.items() if users]
        found = [(code.co_filename, line) for code in codes if (line := line_naming(code, name))]
        return (found or [(code.co_filename, code.co_firstlineno) for code in codes] or [("<unknown>", 0)])[0]


def _goes_on(value: Any) -> bool:
    """Return True if each use changes an object's hidden state (iterators, files, generators)."""
    if isinstance(value, IOBase):
        with contextlib.suppress(OSError, ValueError):
            return value.readable()  # writes are calls, which ``Watch`` sees
        return False
    if isinstance(value, _GENERATORS):
        return True
    step = getattr(type(value), "__next__", None)
    return step is not None and not isinstance(step, types.FunctionType)


def _position(value: Any) -> Any:
    """Return the position of a random generator, iterator or file as a comparable value; None if unknown."""
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, IOBase):
        with contextlib.suppress(OSError, ValueError):  # it is being iterated over, or closed
            return value.tell()
        return None
    if isinstance(value, np.random.RandomState):
        return pickle.dumps(value.get_state(legacy=False))
    if isinstance(value, np.random.Generator):
        return pickle.dumps(value.bit_generator.state)
    return pickle.dumps(value.state) if isinstance(value, np.random.BitGenerator) else None


LARGE: Final = 1 << 20  # bytes of an array from which on it counts by identity and version
SEEN: Final = 1024  # elements that tell versions of one apart


def version(a: np.ndarray[Any, Any]) -> tuple[Any, ...]:
    """Return a constant-cost fingerprint of an array: address, shape, strides, dtype, and ``SEEN`` or more elements
    spread over it, including the first and the last."""
    flat = a.reshape(-1) if a.flags.c_contiguous else a.T.reshape(-1) if a.flags.f_contiguous else None
    if flat is None:  # every axis in steps
        step = max(1, int((a.size / SEEN) ** (1 / a.ndim)))
        seen = a[(slice(None, None, step),) * a.ndim].tobytes(), a[(slice(-1, None),) * a.ndim].tobytes()
    else:
        seen = flat[::max(1, flat.size // SEEN)].tobytes(), flat[-1:].tobytes()
    return a.__array_interface__["data"][0], a.shape, a.strides, a.dtype.str, seen
