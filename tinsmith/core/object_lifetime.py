"""Weak containers that run no Python code at the moment an object dies, and a pause of the garbage collector.

Python runs weak-reference callbacks, finalizers and ``__del__`` wherever an object happens to die, and an exception
raised there can only be printed and dropped: a Ctrl-C that arrives while one of them runs is lost. So the callbacks of
this package are methods of built-in containers, which record the death; the cleanup runs later, in ordinary code.

The collector is paused while many live objects are created, which it would scan in vain.
"""
from __future__ import annotations

import contextlib
import functools
import gc
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")

# The number of references to an object, and one more for the argument; -1 where the interpreter does not count them.
references: Final[Callable[[Any], int]] = getattr(sys, "getrefcount", lambda _: -1)


class _Identity(weakref.ref[K]):
    """A weak reference that compares and hashes by its own identity, regardless of its object's equality."""

    __slots__ = ()
    __hash__ = object.__hash__
    __eq__ = object.__eq__


class LiveSet(Generic[K]):
    """A set of objects, compared by identity, that does not keep them alive.

    >>> class Thing: ...
    >>> live, thing = LiveSet(), Thing()
    >>> live.add(thing); live.add(thing); list(live) == [thing]
    True
    >>> del thing; list(live)
    []
    """

    def __init__(self) -> None:
        self._refs: dict[_Identity[K], None] = {}  # in insertion order
        self._forget = self._refs.pop  # weak-reference callback: called once with the dead reference

    def add(self, value: K) -> None:
        """Add ``value``."""
        self._refs[_Identity(value, self._forget)] = None

    def clear(self) -> None:
        """Remove all members."""
        self._refs.clear()

    def __iter__(self) -> Iterator[K]:
        """Iterate over a snapshot of the members, even if another thread adds some meanwhile."""
        return iter({id(v): v for ref in _settled(self._refs) if (v := ref()) is not None}.values())

    def __len__(self) -> int:
        return len(self._refs)


class WeakTable(Generic[K, V]):
    """A dictionary whose keys, compared by identity, are not kept alive; an entry disappears with its key.

    Attributes:
        entries: ``id`` of the key → (reference to the key, value), for fast paths that read it directly.

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
        """Return the value of ``key``, or ``default`` if it has none."""
        entry = self.entries.get(id(key))
        return default if entry is None else entry[1]

    def __contains__(self, key: K) -> bool:
        return id(key) in self.entries

    def pop(self, key: K) -> V:
        """Remove an entry and return its value."""
        return self.entries.pop(id(key))[1]

    def __len__(self) -> int:
        return len(self.entries)

    def clear(self) -> None:
        """Remove all entries."""
        self.entries.clear()

    def items(self) -> list[tuple[K, V]]:
        """Return the live keys and their values."""
        entries = _settled(self.entries.values())
        return [(key, value) for ref, value in entries if (key := ref()) is not None]


class WhileAlive(Generic[V]):
    """A value that is dropped as soon as one of several objects dies. Objects without weak references are kept alive
    instead.

    Attributes:
        left: dictionary with the value as its only item; empty after the first death.

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
        gone = functools.partial(self.left.pop, "value")  # weak-reference callback: the dead reference is the default
        self._held: list[Any] = []
        for thing in objects:
            try:
                self._held.append(weakref.ref(thing, gone))
            except TypeError:
                self._held.append(thing)

    def get(self) -> V | None:
        """Return the value, or None after a death."""
        return self.left.get("value")


def _settled(values: Iterable[Any]) -> list[Any]:
    """Return the items as a list, retrying if another thread changes the container meanwhile."""
    while True:
        try:
            return list(values)
        except RuntimeError:  # it changed size during iteration
            continue


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """Disable the garbage collector inside the block; reference counting works as always.

    >>> with no_collection():
    ...     gc.isenabled()
    False
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
