"""Thread-local lists."""
from __future__ import annotations

from collections.abc import Iterator
from threading import get_ident
from typing import Generic, TypeVar

T = TypeVar("T")


class OfThread(Generic[T]):
    """A list whose contents are separate for each thread.

    >>> listeners = OfThread()
    >>> listeners.append(1); list(listeners), bool(listeners)
    ([1], True)
    >>> listeners.remove(1); bool(listeners)
    False
    """

    def __init__(self) -> None:
        self._all: dict[int, list[T]] = {}

    def __bool__(self) -> bool:
        return bool(self._all) and get_ident() in self._all

    def __iter__(self) -> Iterator[T]:
        return iter(self._all.get(get_ident(), ()) if self._all else ())

    def append(self, value: T) -> None:
        self._all.setdefault(get_ident(), []).append(value)

    def remove(self, value: T) -> None:
        mine = self._all[get_ident()]
        mine.remove(value)
        if not mine:
            del self._all[get_ident()]

    def pop(self) -> T:
        """Remove and return the last item of this thread."""
        value = self._all[get_ident()][-1]
        self.remove(value)
        return value

    def elsewhere(self) -> list[T]:
        """Return the items of all other threads."""
        if not self._all:
            return []
        me = get_ident()
        return [value for thread, values in list(self._all.items()) if thread != me for value in list(values)]

    def exchange(self, values: list[T]) -> list[T]:
        """Replace this thread's items by ``values``; return the old ones."""
        before = self._all.pop(get_ident(), [])
        if values:
            self._all[get_ident()] = values
        return before
