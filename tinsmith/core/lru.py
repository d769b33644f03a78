"""A least-recently-used table, which bounds in-memory caches."""
from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


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
