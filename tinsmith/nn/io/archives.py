"""Tar and zip archives as uint8 tensors. Uncompressed members are views of the mapped file, not copies."""
from __future__ import annotations

import io
import os
import tarfile
import zipfile
from pathlib import Path
from typing import IO, Any, cast

import numpy as np

from tinsmith.core.dtypes import dtypes
from tinsmith.core.errors import DTypeError, FileFormatError
from tinsmith.tensor.interop.files import on_disk, values
from tinsmith.tensor.tensor import Tensor

Source = Tensor | str | os.PathLike[str]


def as_bytes(op: str, source: Source) -> Tensor:
    """Return a file, or a 1-D uint8 tensor, as a 1-D uint8 tensor.

    Raises:
        DTypeError: for a tensor of another dtype or rank.
    """
    if not isinstance(source, Tensor):
        return Tensor(Path(source))
    if source.dtype is not dtypes.uint8 or source.ndim != 1:
        raise DTypeError(op, f"takes a vector of bytes, got {source.shape} {source.dtype!r}", "Tensor(Path(...))")
    return source


class TensorIO(io.RawIOBase):
    """A readable file object over a uint8 tensor.

    >>> TensorIO(Tensor(b"abcdef")).read(3)
    b'abc'
    """

    def __init__(self, t: Tensor) -> None:
        t = as_bytes("TensorIO", t)
        self._bytes = values(t.uop) if on_disk(t._device) else t.numpy()  # a tensor of a file is memory-mapped
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        end = len(self._bytes) if size is None or size < 0 else min(self._at + size, len(self._bytes))
        found = self._bytes[self._at : end].tobytes()  # slicing clips: a damaged length allocates no more than the data
        self._at = max(self._at, end)
        return found

    def readinto(self, buffer: Any) -> int:
        count = min(len(buffer), max(len(self._bytes) - self._at, 0))
        if count:
            buffer[:count] = self._bytes[self._at : self._at + count].tobytes()
        self._at += count
        return count

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: len(self._bytes)}[whence]
        self._at = max(start + offset, 0)
        return self._at


def tar_extract(fn: Source) -> dict[str, Tensor]:
    """Return the files of a tar archive, compressed or not, as uint8 tensors by name.

    Raises:
        FileFormatError: if the file is not a tar archive.
    """
    t = as_bytes("tar_extract", fn)
    try:
        file = TensorIO(t)
        with tarfile.open(fileobj=cast(IO[bytes], file), mode="r:*") as archive:
            plain = archive.fileobj is file  # a compressed archive is read through its codec
            out = {}
            for member in archive.getmembers():
                if not member.isfile():
                    continue
                if plain:
                    out[member.name] = t[member.offset_data : member.offset_data + member.size]
                else:
                    inside = archive.extractfile(member)
                    out[member.name] = Tensor(inside.read() if inside else b"")
    except tarfile.TarError as error:
        raise FileFormatError("tar_extract", f"no tar archive: {error}", "a complete file") from None
    return out


def zip_extract(fn: Source) -> dict[str, Tensor]:
    """Return the files of a zip archive as uint8 tensors by name. Uncompressed members are not copied.

    Raises:
        FileFormatError: if the file is not a zip archive.
    """
    t = as_bytes("zip_extract", fn)
    try:
        with zipfile.ZipFile(cast(IO[bytes], TensorIO(t))) as archive:
            return {info.filename: _member(t, archive, info) for info in archive.infolist() if not info.is_dir()}
    except Exception as error:  # a damaged archive raises many exception types
        raise FileFormatError("zip_extract", f"no zip archive that can be read: {error}", "a complete file") from None


def _member(t: Tensor, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Tensor:
    if info.compress_type != zipfile.ZIP_STORED:
        return Tensor(archive.read(info))
    header = t[info.header_offset : info.header_offset + 30].numpy().tobytes()
    name, extra = (int(n) for n in np.frombuffer(header, "<u2", 2, 26))
    start = info.header_offset + 30 + name + extra
    if info.header_offset < 0 or start + info.file_size > len(t):
        raise zipfile.BadZipFile(f"{info.filename!r} exceeds the file")
    return t[start : start + info.file_size]
