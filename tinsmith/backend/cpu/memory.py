"""Host memory with reuse of freed blocks: page faults of fresh memory cost more than the kernel that fills it.

Copies between queues of the worker pool, as commands like kernels: a captured program over several ``CPU:k`` stays
one command table, and all threads share a long copy."""
from __future__ import annotations

import contextlib
import functools
from typing import Any, Final

from tinsmith.backend.cpu import llvm, os_calls
from tinsmith.backend.free_lists import FreeLists, MemoryBlock
from tinsmith.core.errors import OutOfMemoryError


class HostMemory(FreeLists):
    """Blocks of host memory.

    Args:
        cache_limit: bytes of free blocks to keep. Default: a quarter of memory.
    """

    def __init__(self, cache_limit: int | None = None) -> None:
        super().__init__(os_calls.total_memory() // 4 if cache_limit is None else cache_limit)

    def _fresh(self, nbytes: int, capacity: int) -> MemoryBlock:
        total = os_calls.total_memory()
        # Linux overcommits memory and kills the process that touches too much of it, hence this check.
        if self.in_use + nbytes <= total:
            if self.in_use + self.cached + capacity > total:
                self._shrink(0)
            with contextlib.suppress(MemoryError):
                return MemoryBlock(nbytes, capacity, *os_calls.alloc(capacity))
            self._shrink(0)
            with contextlib.suppress(MemoryError):
                return MemoryBlock(nbytes, capacity, *os_calls.alloc(capacity))
        raise OutOfMemoryError(
            "CPU",
            f"{nbytes} bytes requested, {self.in_use} bytes in use, {total} bytes of memory in all",
            "free tensors, use a smaller batch or a narrower dtype",
        )


SHARED_BYTES: Final = 1 << 17  # bytes from which on the threads share a copy

_TEXT: Final = """
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)

; Arguments: target, source, bytes. Thread %tid copies its share of the cache lines.
define void @copy(ptr %args, i64 %tid, i64 %threads) {
  %target = load ptr, ptr %args
  %source_at = getelementptr i8, ptr %args, i64 8
  %source = load ptr, ptr %source_at
  %bytes_at = getelementptr i8, ptr %args, i64 16
  %bytes = load i64, ptr %bytes_at
  %round = mul i64 %threads, 64
  %more = add i64 %bytes, %round
  %last = sub i64 %more, 1
  %lines = udiv i64 %last, %round
  %share = mul i64 %lines, 64
  %begin = mul i64 %share, %tid
  %far = add i64 %begin, %share
  %over = icmp ugt i64 %far, %bytes
  %end = select i1 %over, i64 %bytes, i64 %far
  %some = icmp ult i64 %begin, %end
  br i1 %some, label %work, label %done
work:
  %length = sub i64 %end, %begin
  %to = getelementptr i8, ptr %target, i64 %begin
  %from = getelementptr i8, ptr %source, i64 %begin
  call void @llvm.memcpy.p0.p0.i64(ptr %to, ptr %from, i64 %length, i1 false)
  br label %done
done:
  ret void
}
"""


@functools.cache
def loaded() -> Any:
    """Return the copy's machine code; its one address is that of the symbol ``copy``."""
    return llvm.load([llvm.ObjectCompiler().compile(_TEXT)], ["copy"])
