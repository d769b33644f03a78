"""Tar and zip archives, and NumPy array files, as tensors.

Uncompressed members of archives are views of the mapped file, not copies. ``.npy`` and ``.npz`` files with object
arrays, which need pickle, are rejected.
"""
from __future__ import annotations

import io
import math
import os
import tarfile
import zipfile
from collections.abc import Mapping
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

_LONGEST = 1 << 16  # bytes: maximum size of a header


def numpy_load(fn: Source) -> Tensor | dict[str, Tensor]:
    """Return the array of a ``.npy`` file, or the arrays of a ``.npz`` file by name. The file is mapped; uncompressed
    arrays are copied when first used.

    >>> import tempfile, os.path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "x.npy")
    ...     np.save(path, np.arange(3))
    ...     numpy_load(path).tolist()
    [0, 1, 2]

    Raises:
        FileFormatError: for another kind of file, a damaged one, or non-numeric arrays.
    """
    file = as_bytes("numpy_load", fn)
    if file[:2].numpy().tobytes() != b"PK":
        return _array(file, "the file")
    return {name.removesuffix(".npy"): _array(part, repr(name)) for name, part in zip_extract(file).items()}


def numpy_save(tensors: Tensor | Mapping[str, Tensor], fn: str | os.PathLike[str]) -> None:
    """Write one tensor to a ``.npy`` file, or tensors by name to an uncompressed ``.npz`` file.

    >>> import tempfile, os.path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "x.npz")
    ...     numpy_save({"a": Tensor([1., 2.])}, path)
    ...     np.load(path)["a"]
    array([1., 2.], dtype=float32)
    """
    with open(fn, "wb") as file:
        if isinstance(tensors, Tensor):
            np.save(file, tensors._array(), allow_pickle=False)
            return
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            for name, tensor in tensors.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as part:
                    np.lib.format.write_array(part, tensor._array(), allow_pickle=False)


def _array(file: Tensor, what: str) -> Tensor:
    head = io.BytesIO(file[:_LONGEST].numpy().tobytes())
    try:
        version = np.lib.format.read_magic(head)
        read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
        shape, transposed, kind = read(head)
        dtypes.from_numpy(kind.newbyteorder("="))
        count = math.prod(shape)
    except Exception as error:  # the header is a Python literal: damage raises many types
        raise FileFormatError("numpy_load", f"{what} holds no array of numbers: {error!r:.200}",
                              "np.save(path, array)") from None
    start, end = head.tell(), head.tell() + count * kind.itemsize
    if any(type(n) is not int or n < 0 for n in shape) or end > len(file):
        raise FileFormatError("numpy_load", f"{what} has no {shape} elements of {kind}", "a complete file")
    try:
        return _tensor(file[start:end], shape[::-1] if transposed else shape, kind, transposed)
    except (ValueError, OverflowError) as error:  # an axis of size 0 with another too large for an array
        raise FileFormatError("numpy_load", f"{what} is of shape {shape}: {error}", "a smaller shape") from None


def _tensor(block: Tensor, shape: tuple[int, ...], kind: np.dtype[np.generic], transposed: bool) -> Tensor:
    dtype = dtypes.from_numpy(kind.newbyteorder("="))
    if len(block) and kind.isnative and kind.kind != "b":  # bool bytes may differ from 0 and 1
        out = block.bitcast(dtype).reshape(shape).to(None)
    else:
        out = Tensor(np.frombuffer(block.numpy().tobytes(), kind).reshape(shape), requires_grad=False)
    return out.permute(*range(out.ndim - 1, -1, -1)) if transposed and out.ndim > 1 else out
