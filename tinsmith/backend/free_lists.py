"""A caching allocator: freed blocks are kept in free lists, since fresh memory costs more than the kernel that fills
it."""
from __future__ import annotations

import functools
import threading
from collections.abc import Callable

from tinsmith.core.counters import GlobalCounters


class MemoryBlock:
    """Memory at ``address``: ``nbytes`` were requested, ``capacity`` bytes are allocated."""

    __slots__ = ("_release", "address", "capacity", "nbytes")

    def __init__(self, nbytes: int, capacity: int, address: int, release: Callable[[], None]) -> None:
        self.address, self.nbytes, self.capacity, self._release = address, nbytes, capacity, release


@functools.lru_cache(maxsize=1024)
def size_class(nbytes: int) -> int:
    """Return the capacity of a block for ``nbytes``: rounded up to a quarter of a power of two, and to a multiple of 64
    bytes.

    >>> [size_class(n) for n in (0, 65, 1000, 1100, 5000)]
    [64, 128, 1024, 1280, 5120]
    """
    step = max(64, 1 << max(0, (nbytes - 1).bit_length() - 3)) if nbytes > 1 else 64
    return max(-(-nbytes // step) * step, 64)


class FreeLists:
    """Free lists by size class; a request takes the most recently freed (warmest) block of its class.

    A subclass allocates fresh blocks.

    Args:
        cache_limit: bytes of free blocks to keep; the size classes freed into longest ago are released first.
    """

    def __init__(self, cache_limit: int) -> None:
        self.cache_limit = cache_limit
        self.in_use = 0
        self.cached = 0
        # capacity → free blocks; keys and blocks in order of the last free
        self._free: dict[int, list[MemoryBlock]] = {}
        self._lock = threading.RLock()  # reentrant: allocating a fresh block may release the free ones

    def alloc(self, nbytes: int) -> MemoryBlock:
        """Return a block of at least ``nbytes`` with undefined contents, aligned to 64 bytes.

        Raises:
            OutOfMemoryError: if the system has not enough memory.
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

    def free(self, block: MemoryBlock) -> None:
        """Take ``block`` back; nothing may read or write it afterwards."""
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
        """Release all cached blocks to the system."""
        with self._lock:
            self._shrink(0)

    def _shrink(self, limit: int) -> None:
        while self.cached > limit:
            capacity = next(iter(self._free))
            waiting = self._free[capacity]
            if waiting:
                waiting.pop(0)._release()  # the block freed longest ago is the coldest
                self.cached -= capacity
            else:
                del self._free[capacity]

    def _fresh(self, nbytes: int, capacity: int) -> MemoryBlock:
        """Allocate a block of ``capacity`` bytes from the system.

        Raises:
            OutOfMemoryError: if the system has not enough memory.
        """
        raise NotImplementedError
