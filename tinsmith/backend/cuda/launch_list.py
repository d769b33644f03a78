"""Many kernel launches as one native call: a loop over a table, which fills in the arguments and calls the driver.

A launch from Python costs about 9 µs, from the loop about 4 µs. The table has one record per launch; the arguments are
sums of a word (the address of a base, or the value of a variable) and an offset. Python writes the words of a call.
"""
from __future__ import annotations

import ctypes
import functools
import os
import struct
from collections.abc import Sequence
from typing import Any, Final, Protocol

from tinsmith.backend.cpu import llvm
from tinsmith.backend.cuda.driver import CudaGPU
from tinsmith.backend.cuda.memory import TensorMap
from tinsmith.codegen.launch import Launch
from tinsmith.core.errors import CompileError, DeviceError


class LoadedKernel(Protocol):
    """A kernel on a GPU: its function, (grid, block), dynamic shared memory, and launch data."""

    gpu: CudaGPU
    kernel: Launch
    function: Any
    sizes: tuple[int, ...]
    shared: int


# A record: function, grid (3), block (3), bytes of dynamic shared memory, number of arguments, address of the pointers
# to the arguments, address of the arguments, address of the (word, offset) pairs; 12 × 64 bits.
_TEXT: Final = """
; Launch %count records in %stream with the driver's function %launch. Returns 0, or record << 32 | the driver's status.
define i64 @launch_list(ptr %records, i64 %count, ptr %words, ptr %stream, ptr %launch) {
entry:
  %some = icmp sgt i64 %count, 0
  br i1 %some, label %record, label %done
record:
  %k = phi i64 [ 0, %entry ], [ %next, %launched ]
  %start = mul i64 %k, 12
  %r = getelementptr i64, ptr %records, i64 %start
  %function = load ptr, ptr %r
  %sizes_at = getelementptr i64, ptr %r, i64 8
  %arguments = load i64, ptr %sizes_at
  %pointers_at = getelementptr i64, ptr %r, i64 9
  %pointers = load ptr, ptr %pointers_at
  %values_at = getelementptr i64, ptr %r, i64 10
  %values = load ptr, ptr %values_at
  %pairs_at = getelementptr i64, ptr %r, i64 11
  %pairs = load ptr, ptr %pairs_at
  %any = icmp sgt i64 %arguments, 0
  br i1 %any, label %fill, label %go
fill:
  %a = phi i64 [ 0, %record ], [ %following, %fill ]
  %twice = mul i64 %a, 2
  %pair = getelementptr i64, ptr %pairs, i64 %twice
  %number = load i64, ptr %pair
  %offset_at = getelementptr i64, ptr %pair, i64 1
  %offset = load i64, ptr %offset_at
  %word_at = getelementptr i64, ptr %words, i64 %number
  %word = load i64, ptr %word_at
  %value = add i64 %word, %offset
  %value_at = getelementptr i64, ptr %values, i64 %a
  store i64 %value, ptr %value_at
  %following = add i64 %a, 1
  %more = icmp slt i64 %following, %arguments
  br i1 %more, label %fill, label %go
go:
$sizes
  %status = call i32 %launch(ptr %function, $passed, ptr %stream, ptr %pointers, ptr null)
  %failed = icmp ne i32 %status, 0
  br i1 %failed, label %failure, label %launched
launched:
  %next = add i64 %k, 1
  %again = icmp slt i64 %next, %count
  br i1 %again, label %record, label %done
failure:
  %at = shl i64 %k, 32
  %code = zext i32 %status to i64
  %both = or i64 %at, %code
  ret i64 %both
done:
  ret i64 0
}
"""


def _text() -> str:
    lines = []
    for n in range(1, 8):
        lines += [f"  %at{n} = getelementptr i64, ptr %r, i64 {n}", f"  %long{n} = load i64, ptr %at{n}",
                  f"  %size{n} = trunc i64 %long{n} to i32"]
    passed = ", ".join(f"i32 %size{n}" for n in range(1, 8))
    return _TEXT.replace("$sizes", "\n".join(lines)).replace("$passed", passed)


@functools.cache
def driver_launch() -> int:
    """Return the address of the driver's function that launches a kernel; 0 if there is no driver."""
    try:
        library = ctypes.CDLL("nvcuda.dll" if os.name == "nt" else "libcuda.so.1")
        return int(ctypes.cast(library.cuLaunchKernel, ctypes.c_void_p).value or 0)
    except (OSError, AttributeError):
        return 0


@functools.cache
def _native() -> tuple[Any, Any] | None:
    """Return the loop as a function, and what keeps its code; None if LLVM is not here."""
    try:
        loaded = llvm.load([llvm.ObjectCompiler().compile(_text())], ["launch_list"])
    except (DeviceError, CompileError):
        return None
    pointer = ctypes.c_void_p
    kind = ctypes.CFUNCTYPE(ctypes.c_int64, pointer, ctypes.c_int64, pointer, pointer, pointer)
    return kind(loaded.addresses[0]), loaded


class LaunchList:
    """Launches of kernels in a fixed order, on other arguments in each call; the caller serializes the calls.

    Args:
        programs: the kernels.
        arguments: for each kernel, (number of a word, offset) per argument.
        words: the number of words.
    """

    def __init__(self, programs: Sequence[LoadedKernel], arguments: Sequence[Sequence[tuple[int, int]]],
                 words: int) -> None:
        native = _native()
        assert native is not None
        self._run, self._kept = native
        self._launch = driver_launch()
        self.words = (ctypes.c_int64 * max(words, 1))()
        self.count = len(programs)
        self._write = struct.Struct(f"={words}q").pack_into
        self._owned: list[Any] = []
        self._maps: list[tuple[TensorMap, int, int]] = []  # with the word and the offset of its address
        records = [word for program, pairs in zip(programs, arguments) for word in self._record(program, pairs)]
        self._records = (ctypes.c_int64 * max(len(records), 1))(*records)
        self._at = ctypes.addressof(self._records), self.count, ctypes.addressof(self.words)

    def _record(self, program: LoadedKernel, pairs: Sequence[tuple[int, int]]) -> list[int]:
        count = len(pairs)
        values = (ctypes.c_int64 * max(count, 1))()
        flat = (ctypes.c_int64 * max(2 * count, 1))(*(v for pair in pairs for v in pair))
        maps = [TensorMap(program.gpu, view) for view in program.kernel.maps]
        self._maps += [(m, *pairs[m.argument]) for m in maps]
        start = ctypes.addressof(values)
        places = [*(start + 8 * n for n in range(count)), *(ctypes.addressof(m.block) for m in maps)]
        pointers = (ctypes.c_void_p * max(len(places), 1))(*places)
        self._owned += [values, flat, pointers, program]
        return [int(program.function), *program.sizes, program.shared, count, ctypes.addressof(pointers), start,
                ctypes.addressof(flat)]

    def launch(self, words: Sequence[int], stream: int) -> tuple[int, int]:
        """Launch all kernels in a stream; return the driver's status, and the number of the launch that failed."""
        self._write(self.words, 0, *words)
        for m, word, offset in self._maps:
            m.point_to(words[word] + offset)
        found = self._run(*self._at, stream, self._launch)
        return found & 0xFFFFFFFF, found >> 32


def available() -> bool:
    """Return True if launches can run from native code."""
    return driver_launch() != 0 and _native() is not None
