"""Host memory with reuse of freed blocks: page faults of fresh memory cost more than the kernel that fills it."""
from __future__ import annotations

import contextlib

from tinsmith.backend.cpu import osys
from tinsmith.backend.freelists import Block, FreeLists
from tinsmith.core.errors import OutOfMemoryError


class HostMemory(FreeLists):
    """Blocks of host memory.

    Args:
        cache_limit: bytes of free blocks to keep. Default: a quarter of memory.
    """

    def __init__(self, cache_limit: int | None = None) -> None:
        super().__init__(osys.total_memory() // 4 if cache_limit is None else cache_limit)

    def _fresh(self, nbytes: int, capacity: int) -> Block:
        total = osys.total_memory()
        # Linux overcommits memory and kills the process that touches too much of it, hence this check.
        if self.in_use + nbytes <= total:
            if self.in_use + self.cached + capacity > total:
                self._shrink(0)
            with contextlib.suppress(MemoryError):
                return Block(nbytes, capacity, *osys.alloc(capacity))
            self._shrink(0)
            with contextlib.suppress(MemoryError):
                return Block(nbytes, capacity, *osys.alloc(capacity))
        raise OutOfMemoryError(
            "CPU",
            f"{nbytes} bytes requested, {self.in_use} bytes in use, {total} bytes of memory in all",
            "free tensors, use a smaller batch or a narrower dtype",
        )
