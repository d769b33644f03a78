"""Memory with free lists: fresh memory costs more than the kernel that fills it, so blocks are kept and reused."""
from __future__ import annotations

import functools
import threading
from collections.abc import Callable

from tinsmith.core.counters import GlobalCounters


class Block:
    """Memory at ``address``: ``nbytes`` were asked for, ``capacity`` are there."""

    __slots__ = ("_release", "address", "capacity", "nbytes")

    def __init__(self, nbytes: int, capacity: int, address: int, release: Callable[[], None]) -> None:
        self.address, self.nbytes, self.capacity, self._release = address, nbytes, capacity, release


@functools.lru_cache(maxsize=1024)
def size_class(nbytes: int) -> int:
    """The capacity of a block for ``nbytes``: the next quarter step between powers of two, at least 64 bytes apart.

    >>> [size_class(n) for n in (0, 65, 1000, 1100, 5000)]
    [64, 128, 1024, 1280, 5120]
    """
    step = max(64, 1 << max(0, (nbytes - 1).bit_length() - 3)) if nbytes > 1 else 64
    return max(-(-nbytes // step) * step, 64)


class FreeLists:
    """Freed blocks wait for the next request of their size class, the latest (warmest) first.

    A subclass makes fresh ones.

    Args:
        cache_limit: bytes of free blocks to keep; the classes used longest ago go first.
    """

    def __init__(self, cache_limit: int) -> None:
        self.cache_limit = cache_limit
        self.in_use = 0
        self.cached = 0
        self._free: dict[int, list[Block]] = {}  # by capacity; what came back last is at the end, in both
        self._lock = threading.RLock()  # who makes a fresh block may want the free ones given back

    def alloc(self, nbytes: int) -> Block:
        """A block of at least ``nbytes`` with undefined contents, aligned to 64 bytes.

        Raises:
            OutOfMemoryError: if there is not that much.
        """
        capacity = size_class(nbytes)
        with self._lock:
            waiting = self._free.get(capacity)
            if waiting:
                block = waiting.pop()
                block.nbytes = nbytes
                self.cached -= capacity
            else:
                block = self._fresh(nbytes, capacity)
            self.in_use += nbytes
            GlobalCounters.memory += nbytes
        return block

    def free(self, block: Block) -> None:
        """Take ``block`` back. Nothing may read or write it from now on."""
        capacity = block.capacity
        with self._lock:
            assert block.nbytes >= 0, f"the block of {capacity} bytes at {block.address:#x} was freed twice"
            self.in_use -= block.nbytes
            GlobalCounters.memory -= block.nbytes
            block.nbytes = -1
            waiting = self._free.pop(capacity, [])
            waiting.append(block)
            self._free[capacity] = waiting
            self.cached += capacity
            if self.cached > self.cache_limit:
                self._shrink(self.cache_limit)

    def trim(self) -> None:
        """Give all cached blocks back to the system."""
        with self._lock:
            self._shrink(0)

    def _shrink(self, limit: int) -> None:
        while self.cached > limit:
            capacity = next(iter(self._free))
            waiting = self._free[capacity]
            if waiting:
                waiting.pop(0)._release()  # the block freed longest ago is the coldest one
                self.cached -= capacity
            else:
                del self._free[capacity]

    def _fresh(self, nbytes: int, capacity: int) -> Block:
        """A block of ``capacity`` bytes from the system.

        Raises:
            OutOfMemoryError: if it has not that much.
        """
        raise NotImplementedError
