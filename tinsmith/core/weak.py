"""What is done when an object dies, without running Python code at that moment.

Python runs the callbacks of weak references, finalizers and ``__del__`` wherever an object happens to die, and it can
only print and drop an exception raised there: a Ctrl-C that comes while one of them runs is lost. So the callbacks of
this package are methods of built-in containers. They note the death, and the work is done later, in ordinary code.
"""
from __future__ import annotations

import functools
import weakref
from collections.abc import Iterable, Iterator
from typing import Any, Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class _Identity(weakref.ref[K]):
    """A reference that stands for itself as a key, whatever its object thinks of equality."""

    __slots__ = ()
    __hash__ = object.__hash__
    __eq__ = object.__eq__


class LiveSet(Generic[K]):
    """Objects, told apart by identity, for as long as someone else refers to them.

    >>> class Thing: ...
    >>> live, thing = LiveSet(), Thing()
    >>> live.add(thing); live.add(thing); list(live) == [thing]
    True
    >>> del thing; list(live)
    []
    """

    def __init__(self) -> None:
        self._refs: dict[_Identity[K], None] = {}  # in the order in which they came
        self._forget = self._refs.pop  # called with the dead reference, once

    def add(self, value: K) -> None:
        """Hold ``value``."""
        self._refs[_Identity(value, self._forget)] = None

    def clear(self) -> None:
        """Hold nothing."""
        self._refs.clear()

    def __iter__(self) -> Iterator[K]:
        """The members at this moment, even if another thread adds some at the same time."""
        return iter({id(v): v for ref in _settled(self._refs) if (v := ref()) is not None}.values())

    def __len__(self) -> int:
        return len(self._refs)


class WeakTable(Generic[K, V]):
    """A dictionary whose keys, told apart by identity, are let go when nobody else refers to them.

    Attributes:
        entries: (reference to the key, value) by the key's ``id``, for readers in a hurry.

    >>> class Thing: ...
    >>> table, thing = WeakTable(), Thing()
    >>> table[thing] = 5; table[thing], thing in table
    (5, True)
    >>> del thing; len(table)
    0
    """

    def __init__(self) -> None:
        self.entries: dict[int, tuple[weakref.ref[K], V]] = {}

    def __setitem__(self, key: K, value: V) -> None:
        number = id(key)
        self.entries[number] = weakref.ref(key, functools.partial(self.entries.pop, number)), value

    def __getitem__(self, key: K) -> V:
        return self.entries[id(key)][1]

    def get(self, key: K, default: V) -> V:
        """The value of ``key``, or ``default`` where it has none."""
        entry = self.entries.get(id(key))
        return default if entry is None else entry[1]

    def __contains__(self, key: K) -> bool:
        return id(key) in self.entries

    def pop(self, key: K) -> V:
        """Take an entry out."""
        return self.entries.pop(id(key))[1]

    def __len__(self) -> int:
        return len(self.entries)

    def clear(self) -> None:
        """Hold nothing."""
        self.entries.clear()

    def items(self) -> list[tuple[K, V]]:
        """Keys that are alive, and their values."""
        entries = _settled(self.entries.values())
        return [(key, value) for ref, value in entries if (key := ref()) is not None]


class WhileAlive(Generic[V]):
    """A value that is let go as soon as one of some objects dies. Objects that cannot die early are simply held.

    Attributes:
        left: holds the value as its only item; empty from the first death on.

    >>> class Thing: ...
    >>> a, b = Thing(), Thing()
    >>> kept = WhileAlive("value", [a, b, 5])
    >>> kept.get(), len(kept.left)
    ('value', 1)
    >>> del b; kept.get(), len(kept.left)
    (None, 0)
    """

    def __init__(self, value: V, objects: Iterable[Any]) -> None:
        self.left: dict[str, V] = {"value": value}
        gone = functools.partial(self.left.pop, "value")  # called with the dead reference as the default
        self._held: list[Any] = []
        for thing in objects:
            try:
                self._held.append(weakref.ref(thing, gone))
            except TypeError:
                self._held.append(thing)

    def get(self) -> V | None:
        """The value, or None after a death."""
        return self.left.get("value")


def _settled(values: Iterable[Any]) -> list[Any]:
    """The items as a list, even if an entry comes or goes while it is read."""
    while True:
        try:
            return list(values)
        except RuntimeError:  # it changed size during iteration
            continue
