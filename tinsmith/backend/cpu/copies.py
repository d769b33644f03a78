"""Copies between queues of the worker pool, as commands like kernels: a captured program over several ``CPU:k`` stays
one command table, and all threads share a long copy."""
from __future__ import annotations

import functools
from typing import Any, Final

from tinsmith.backend.cpu import llvm

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
    return llvm.load([llvm.Compiler().compile(_TEXT)], ["copy"])
