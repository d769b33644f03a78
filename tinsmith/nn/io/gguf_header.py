"""The header of a GGUF file: metadata, and the name, shape, type and position of each tensor.

The layout, little-endian (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md)::

    "GGUF"  version: u32  tensors: u64  entries: u64
    entries × (name: string, type: u32, value)
    tensors × (name: string, dimensions: u32, sizes: u64 × dimensions, type: u32, offset: u64)
    padding to ``general.alignment`` bytes, then the data

A string is its length (u64) and UTF-8 bytes; an array is the type (u32) and the number (u64) of its elements, and the
elements. A vocabulary has 10⁵ strings, so strings are read in one loop without an object for each of their parts; the
package ``gguf``, which makes arrays of each, takes three seconds for a vocabulary that takes 0.03 s here.
"""
from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

_NUMBERS: Final = {0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "?", 10: "<u8", 11: "<i8",
                   12: "<f8"}
_STRING, _ARRAY = 8, 9
_VERSIONS = 2, 3  # version 1 has counts of 32 bits
_LENGTH = struct.Struct("<Q")

TYPES: Final = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K",
    12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S",
    20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64",
    29: "IQ1_M", 30: "BF16", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4"}  # numbers without a name are retired


class TensorEntry(NamedTuple):
    """The entry of a tensor: its shape, slowest dimension first; its type; its first byte in the file."""

    name: str
    shape: tuple[int, ...]
    kind: str
    start: int


class Header(NamedTuple):
    """The header of a file."""

    metadata: dict[str, Any]
    tensors: list[TensorEntry]


class _Cursor:
    """A position in a file's bytes, from which values are read one after the other."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data, self.at = data, 0

    def bytes(self, count: int) -> bytes:
        """Return the next ``count`` bytes.

        Raises:
            ValueError: if the file ends before.
        """
        if count > len(self.data) - self.at:
            raise ValueError(f"{count} bytes at {self.at} go beyond the file's end")
        self.at += count
        return self.data[self.at - count : self.at]

    def numbers(self, kind: str, count: int = 1) -> list[Any]:
        """Return the next ``count`` numbers of a NumPy type."""
        dtype = np.dtype(kind)
        found: list[Any] = np.frombuffer(self.bytes(dtype.itemsize * count), dtype).tolist()
        return found

    def number(self, kind: str) -> Any:
        return self.numbers(kind)[0]

    def strings(self, count: int) -> list[str]:
        """Return the next ``count`` strings."""
        data, at, end, found = self.data, self.at, len(self.data), list[str]()
        for _ in range(count):
            if end - at < 8 or (after := at + 8 + _LENGTH.unpack_from(data, at)[0]) > end:
                raise ValueError(f"a string at {at} goes beyond the file's end")
            found.append(data[at + 8 : after].decode("utf-8"))
            at = after
        self.at = at
        return found

    def value(self, kind: int) -> Any:
        """Return the next metadata value: a number, a string, or a list."""
        if kind in _NUMBERS:
            return self.number(_NUMBERS[kind])
        if kind == _STRING:
            return self.strings(1)[0]
        if kind != _ARRAY:
            raise ValueError(f"a value at {self.at} is of the unknown type {kind}")
        inner, count = self.number("<u4"), self.number("<u8")
        if inner in _NUMBERS:
            return self.numbers(_NUMBERS[inner], count)
        return self.strings(count) if inner == _STRING else [self.value(inner) for _ in range(count)]

    def tensor(self) -> TensorEntry:
        """Return the next tensor's entry; its start is relative to the data."""
        name, dimensions = self.strings(1)[0], self.number("<u4")
        shape = tuple(reversed(self.numbers("<u8", dimensions)))
        kind, start = self.number("<u4"), self.number("<u8")
        return TensorEntry(name, shape, TYPES.get(kind, str(kind)), start)


def read_header(path: str | Path) -> Header:
    """Return the header of the GGUF file at ``path``, which is mapped, not read as a whole.

    Raises:
        ValueError: if the file is not GGUF of version 2 or 3, little-endian, or ends inside the header.
    """
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        cursor = _Cursor(data)
        if cursor.bytes(4) != b"GGUF":
            raise ValueError("it does not begin with GGUF")
        version = cursor.number("<u4")
        if version not in _VERSIONS:
            raise ValueError(f"it is of version {version}, not of 2 or 3, little-endian")
        tensors, entries = cursor.numbers("<u8", 2)
        metadata: dict[str, Any] = {}
        for _ in range(entries):
            name, kind = cursor.strings(1)[0], cursor.number("<u4")
            if name in metadata:
                raise ValueError(f"it has two entries {name!r}")
            metadata[name] = cursor.value(kind)
        found = [cursor.tensor() for _ in range(tensors)]
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise ValueError(f"its alignment is {alignment!r}, not a power of two")
        if len({t.name for t in found}) < len(found):
            raise ValueError("it has two tensors of one name")
        first = -(-cursor.at // alignment) * alignment
        return Header(metadata, [t._replace(start=first + t.start) for t in found])
