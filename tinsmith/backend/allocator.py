"""The memory interface of a device: allocation, and copies from and to the host."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class BufferSpec:
    """Allocation options of a buffer.

    Attributes:
        cpu_access: the host can address the memory; on a GPU, that is pinned host memory.
        uncached: host writes bypass the host's caches (write-combined).
    """

    cpu_access: bool = False
    uncached: bool = False


class Allocator:
    """The memory of one device. Blocks are opaque handles; ``copyin`` and ``copyout`` copy bytes from and to the
    host."""

    def alloc(self, nbytes: int) -> Any:
        """Allocate a block of ``nbytes`` bytes.

        Raises:
            OutOfMemoryError: if there is not enough memory.
        """
        raise NotImplementedError

    def alloc_as(self, nbytes: int, options: BufferSpec) -> Any:
        """Allocate a block with the given options, which an allocator may ignore."""
        return self.alloc(nbytes)

    def free(self, opaque: Any) -> None:
        """Free a block."""

    def copyin(self, opaque: Any, offset: int, source: memoryview) -> None:
        """Copy ``source`` into the block, starting at byte ``offset``."""
        raise NotImplementedError

    def copyout(self, target: memoryview, opaque: Any, offset: int) -> None:
        """Fill ``target`` from the block, starting at byte ``offset``."""
        raise NotImplementedError

    def host_view(self, opaque: Any, offset: int, nbytes: int) -> memoryview | None:
        """Return the block's bytes without a copy, if the host can address them; else None."""
        return None
