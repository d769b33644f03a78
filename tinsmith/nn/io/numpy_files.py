"""NumPy array files, ``.npy`` and ``.npz``. Object arrays, which need pickle, are rejected."""
from __future__ import annotations

import io
import math
import os
import zipfile
from collections.abc import Mapping

import numpy as np

from tinsmith.core.dtypes import dtypes
from tinsmith.core.errors import FileFormatError
from tinsmith.nn.io.archives import Source, as_bytes, zip_extract
from tinsmith.tensor.tensor import Tensor

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
