"""Containers and caches that bound or follow the lifetime of objects.

Python runs weak-reference callbacks, finalizers and ``__del__`` wherever an object happens to die, and an exception
raised there can only be printed and dropped: a Ctrl-C that arrives while one of them runs is lost. So the callbacks of
the weak containers here are methods of built-in containers, which record the death; the cleanup runs later, in ordinary
code.

The file also has a pause of the garbage collector (it would scan many new live objects without freeing any), values per
thread (``OfThread``), and a least-recently-used table for in-memory caches (``Recent``).
"""
from __future__ import annotations

import contextlib
import functools
import gc
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from threading import get_ident
from typing import Any, Final, Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")

# The number of references to an object, and one more for the argument; -1 where the interpreter does not count them.
references: Final[Callable[[Any], int]] = getattr(sys, "getrefcount", lambda _: -1)


class IdentityRef(weakref.ref[K]):
    """A weak reference that compares and hashes by its own identity, regardless of its object's equality."""

    __slots__ = ()
    __hash__ = object.__hash__
    __eq__ = object.__eq__


class LiveSet(Generic[K]):
    """A set of objects, compared by identity, that does not keep them alive.

    Attributes:
        refs, forget: the references to the members, and the callback of each, for fast paths that add one directly.

    >>> class Thing: ...
    >>> live, thing = LiveSet(), Thing()
    >>> live.add(thing); live.add(thing); list(live) == [thing]
    True
    >>> del thing; list(live)
    []
    """

    def __init__(self) -> None:
        self.refs: dict[IdentityRef[K], None] = {}  # in insertion order
        self.forget = self.refs.pop  # weak-reference callback: called once with the dead reference

    def add(self, value: K) -> None:
        """Add ``value``."""
        self.refs[IdentityRef(value, self.forget)] = None

    def clear(self) -> None:
        """Remove all members."""
        self.refs.clear()

    def __iter__(self) -> Iterator[K]:
        """Iterate over a snapshot of the members, even if another thread adds some meanwhile."""
        return iter({id(v): v for ref in _settled(self.refs) if (v := ref()) is not None}.values())

    def __len__(self) -> int:
        return len(self.refs)


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

T = TypeVar("T")


class OfThread(Generic[T]):
    """A list whose contents are separate for each thread.

    Attributes:
        threads: the items by thread; empty if no thread has any, for fast paths that read it directly.

    >>> listeners = OfThread()
    >>> listeners.append(1); list(listeners), bool(listeners)
    ([1], True)
    >>> listeners.append(2); listeners.append(1); listeners.pop(), listeners.last(), list(listeners)
    (1, 2, [1, 2])
    >>> listeners.remove(2); listeners.remove(1); bool(listeners)
    False
    """

    def __init__(self) -> None:
        self.threads: dict[int, list[T]] = {}

    def __bool__(self) -> bool:
        return bool(self.threads) and get_ident() in self.threads

    def __iter__(self) -> Iterator[T]:
        return iter(self.threads.get(get_ident(), ()) if self.threads else ())

    def append(self, value: T) -> None:
        self.threads.setdefault(get_ident(), []).append(value)

    def remove(self, value: T) -> None:
        mine = self.threads[get_ident()]
        mine.remove(value)
        if not mine:
            del self.threads[get_ident()]

    def pop(self) -> T:
        """Remove and return the last item of this thread."""
        mine = self.threads[get_ident()]
        value = mine.pop()
        if not mine:
            del self.threads[get_ident()]
        return value

    def last(self) -> T | None:
        """Return the last item of this thread; None if it has none."""
        mine = self.threads.get(get_ident()) if self.threads else None
        return mine[-1] if mine else None

    def elsewhere(self) -> list[T]:
        """Return the items of all other threads."""
        if not self.threads:
            return []
        me = get_ident()
        return [value for thread, values in list(self.threads.items()) if thread != me for value in list(values)]

    def exchange(self, values: list[T]) -> list[T]:
        """Replace this thread's items by ``values``; return the old ones."""
        before = self.threads.pop(get_ident(), [])
        if values:
            self.threads[get_ident()] = values
        return before


class _Entry(Generic[V]):
    __slots__ = ("used", "value")

    def __init__(self, value: V, used: int) -> None:
        self.value, self.used = value, used


class Recent(Generic[K, V]):
    """A dictionary that ``trim`` reduces to its most recently used entries.

    It grows without limit between calls of ``trim``, so that one program's entries never evict each other.

    >>> table = Recent()
    >>> for n in range(10):
    ...     table[n] = str(n)
    >>> table.get(0), table.get(10)
    ('0', None)
    >>> table.trim(4)
    >>> [n for n in range(10) if n in table]
    [0, 8, 9]
    """

    def __init__(self) -> None:
        self._entries: dict[K, _Entry[V]] = {}
        self._clock = 0

    def get(self, key: K) -> V | None:
        """Return the value and mark it as used; None if absent."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._clock += 1
        entry.used = self._clock
        return entry.value

    def __setitem__(self, key: K, value: V) -> None:
        self._clock += 1
        self._entries[key] = _Entry(value, self._clock)

    def __contains__(self, key: K) -> bool:
        return key in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def values(self) -> Iterator[V]:
        """Yield all values without marking them as used."""
        return (entry.value for entry in self._entries.values())

    def clear(self) -> None:
        self._entries.clear()

    def trim(self, most: int) -> None:
        """If there are more than ``most`` entries, keep the most recently used three quarters of ``most``, so that
        trimming is rare."""
        if len(self._entries) > most:
            last = sorted(self._entries.items(), key=lambda item: item[1].used)
            self._entries = dict(last[len(last) - most + most // 4 :])
