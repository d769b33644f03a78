"""A safe unpickler for plain data: a stack machine over the opcodes of ``pickletools`` that runs no code of the file.

``pickle.Unpickler`` lets a file set attributes of any object that it may name, and allocate memory of any size. Here a
file can only build containers, numbers and strings, and call functions of an allow-list.
"""
from __future__ import annotations

import pickletools
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import IO, Any, Final

from tinsmith.core.errors import FileFormatError

Name = tuple[str, str]


class Mark:
    """A stack entry that marks the start of the next container's items."""


class KnownName:
    """A stack entry for a name of the allow-list; only a call can use it."""

    def __init__(self, value: Any) -> None:
        self.value = value


_VALUES: Final = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_CONTAINERS: Final[dict[str, Callable[[], Any]]] = {"EMPTY_LIST": list, "EMPTY_DICT": dict, "EMPTY_SET": set}
_LITERALS: Final = frozenset((
    "INT", "LONG", "LONG1", "LONG4", "BININT", "BININT1", "BININT2", "FLOAT", "BINFLOAT", "STRING", "BINSTRING",
    "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES",
    "BINBYTES8"))
_NOTHING: Final = frozenset(("PROTO", "FRAME"))


def unpickle(op: str, file: IO[bytes], known: Mapping[Name, Any], stored: Callable[[Any], Any] | None = None) -> Any:
    """Return the object of the next pickle in a file.

    Args:
        op: name of the reading function, for error messages.
        known: the allow-list, (module, name) → value. Functions are called with the file's arguments; other values are
            used directly.
        stored: maps a persistent id to its object.

    Raises:
        FileFormatError: if the data is not a pickle, or names a value outside ``known``.
    """
    try:
        return _Machine(op, known, stored).run(file)
    except FileFormatError:
        raise
    except Exception as error:  # a damaged pickle can pass any argument to any function
        raise FileFormatError(op, f"cannot read the pickle: {error!r:.200}", "a complete file") from None


class _Machine:
    """The stack machine: stack, memo, and the opcodes of plain data."""

    def __init__(self, op: str, known: Mapping[Name, Any], stored: Callable[[Any], Any] | None) -> None:
        self.op, self.known, self.stored = op, known, stored
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def run(self, file: IO[bytes]) -> Any:
        for opcode, argument, _ in pickletools.genops(file):
            name = opcode.name
            if name == "STOP":
                return self.plain(self.stack.pop())
            if name in _LITERALS:
                self.stack.append(argument)
            elif name in _VALUES:
                self.stack.append(_VALUES[name])
            elif name in _CONTAINERS:
                self.stack.append(_CONTAINERS[name]())
            elif name not in _NOTHING:
                step = getattr(self, f"on_{name.lower()}", None)
                if step is None:
                    raise FileFormatError(self.op, f"the pickle has the opcode {name}, which plain data does not need",
                                          "torch.save(model.state_dict(), ...)")
                step(argument)
        raise EOFError("the pickle has no end")

    def plain(self, value: Any) -> Any:
        """Return ``value`` as data for containers and results; reject marks and functions."""
        if isinstance(value, KnownName):
            if callable(value.value):
                raise TypeError("a function name is used as a value")
            return value.value
        if isinstance(value, Mark):
            raise TypeError("a mark is used as a value")
        return value

    def pop(self) -> Any:
        return self.plain(self.stack.pop())

    def pop_items(self) -> list[Any]:
        """Pop the last mark and the items above it; return the items."""
        items = []
        while not isinstance(self.stack[-1], Mark):
            items.append(self.pop())
        self.stack.pop()
        return items[::-1]

    def on_mark(self, _: Any) -> None:
        self.stack.append(Mark())

    def on_pop(self, _: Any) -> None:
        self.stack.pop()

    def on_pop_mark(self, _: Any) -> None:
        self.pop_items()

    def on_dup(self, _: Any) -> None:
        self.stack.append(self.stack[-1])

    def on_tuple(self, _: Any) -> None:
        self.stack.append(tuple(self.pop_items()))

    def on_tuple1(self, _: Any, count: int = 1) -> None:
        self.stack.append(tuple([self.pop() for _ in range(count)][::-1]))

    def on_tuple2(self, _: Any) -> None:
        self.on_tuple1(_, 2)

    def on_tuple3(self, _: Any) -> None:
        self.on_tuple1(_, 3)

    def on_list(self, _: Any) -> None:
        self.stack.append(self.pop_items())

    def on_dict(self, _: Any) -> None:
        self.stack.append({})
        self.put(self.pop_items_below())

    def pop_items_below(self) -> list[Any]:
        """Pop the last mark and the items between it and the top entry, which stays; return the items."""
        top = self.stack.pop()
        items = self.pop_items()
        self.stack.append(top)
        return items

    def put(self, items: list[Any]) -> None:
        target = self.top(dict)
        if len(items) % 2:
            raise ValueError("a key without a value")
        for key, value in zip(items[::2], items[1::2]):
            target[key] = value

    def top(self, kind: type) -> Any:
        target = self.stack[-1]
        if not isinstance(target, kind):
            raise TypeError(f"a {type(target).__name__} is filled like a {kind.__name__}")
        return target

    def on_append(self, _: Any) -> None:
        item = self.pop()
        self.top(list).append(item)

    def on_appends(self, _: Any) -> None:
        items = self.pop_items()
        self.top(list).extend(items)

    def on_setitem(self, _: Any) -> None:
        value, key = self.pop(), self.pop()
        self.put([key, value])

    def on_setitems(self, _: Any) -> None:
        self.put(self.pop_items())

    def on_additems(self, _: Any) -> None:
        items = self.pop_items()
        self.top(set).update(items)

    def on_frozenset(self, _: Any) -> None:
        self.stack.append(frozenset(self.pop_items()))

    def on_binput(self, number: int) -> None:
        self.memo[number] = self.stack[-1]

    on_long_binput = on_binput

    def on_put(self, number: str) -> None:
        self.on_binput(int(number))

    def on_memoize(self, _: Any) -> None:
        self.on_binput(len(self.memo))

    def on_binget(self, number: int) -> None:
        self.stack.append(self.memo[number])

    on_long_binget = on_binget

    def on_get(self, number: str) -> None:
        self.on_binget(int(number))

    def on_global(self, text: str) -> None:
        module, _, name = text.partition(" ")
        self.name(module, name)

    def on_stack_global(self, _: Any) -> None:
        name, module = self.pop(), self.pop()
        self.name(module, name)

    def name(self, module: str, name: str) -> None:
        module = "builtins" if module == "__builtin__" else module
        if (module, name) not in self.known:
            raise FileFormatError(self.op, f"the file holds a {module}.{name}, no tensor or container",
                                  "torch.save(model.state_dict(), ...)")
        self.stack.append(KnownName(self.known[module, name]))

    def on_reduce(self, _: Any) -> None:
        arguments, function = self.pop(), self.stack.pop()
        if not isinstance(function, KnownName) or not isinstance(arguments, tuple):
            raise TypeError("a call of what is no function")
        self.stack.append(function.value(*arguments))

    def on_build(self, _: Any) -> None:
        self.pop()  # ignore attributes of a dict: ``_metadata`` of a state_dict
        self.top(OrderedDict)

    def on_binpersid(self, _: Any) -> None:
        pid = self.pop()
        if self.stored is None:
            raise TypeError("a persistent id")
        self.stack.append(self.stored(pid))
