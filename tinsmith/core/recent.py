"""A table that forgets what was used longest ago: how caches in memory stay bounded."""
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
    """A dictionary that ``trim`` shortens to the entries that were used last.

    It grows until then, so that all that one program needs is there together.

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
        """The value, used now; None if there is none."""
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
        """All values, which are not used by that."""
        return (entry.value for entry in self._entries.values())

    def clear(self) -> None:
        self._entries.clear()

    def trim(self, most: int) -> None:
        """Keep ``most`` entries at most; where there are more, a quarter less, so that this is seldom done."""
        if len(self._entries) > most:
            last = sorted(self._entries.items(), key=lambda item: item[1].used)
            self._entries = dict(last[len(last) - most + most // 4 :])
